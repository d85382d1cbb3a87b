#pragma once

#include "core/hash.h"
#include "stream/checkpoint.h"
#include "stream/mirror_record.h"

/* The layout, for the checkpoint*.c files alone. */

/* The first bytes of a file are "KVB" and the head's kind. */
enum section_kind {
    section_head = 0x0142564b,
    section_names = 0x0242564b,
    section_entries = 0x0342564b,
    section_state = 0x0442564b
};

enum { section_header_bytes = 16, section_hash_bytes = 16, head_bytes = 16, name_bytes = 8 };

enum state_flag {
    state_is_complete = 1,
    state_has_skipped = 2,
    state_has_unknown_event = 4,
    state_is_withdrawn = 8,
    state_all_flags = 15
};

/* Where the parts of a state begin; the fingerprints follow, 24 bytes each. */
enum {
    state_last_seq = 0,
    state_epoch = 8,
    state_first_id = 24,
    state_last_id = 32,
    state_digest_seed = 40,
    state_flags = 48,
    state_flaw = 52,
    state_ends = 56,                                  /* kvb_mirror_put_ends() */
    state_tiers = state_ends + kvb_mirror_ends_bytes, /* of each: blocks, digest low, high u64 */
    state_tier_bytes = 24,
    state_fingerprints = state_tiers + KVB_LIST_COUNT * state_tier_bytes,
    fingerprint_bytes = 24
};

/* What the head holds: of everything in the options that the list's meaning, or the
 * events made of a batch, depend on. */
struct kvb_hash128 kvb_checkpoint_identity(const struct kvb_stream *stream);
