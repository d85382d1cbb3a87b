#pragma once

#include "core/hash.h"
#include "stream/checkpoint/checkpoint.h"
#include "stream/mirror/record.h"

/* The layout of a checkpoint.  Only the files of this folder include this header. */

/* Kinds of sections.  Each begins with the bytes "KVB" and the number of the kind. */
enum section_kind {
    section_head = 0x0142564b,
    section_entries = 0x0342564b,
    section_state = 0x0442564b,
    section_tokens = 0x0542564b, /* kvb_shown_save() */
    section_end = 0x0642564b
};

/* All options on which the meaning of the list, or the events of a batch, depend. */
enum checkpoint_key {
    key_worker_id,
    key_dp_rank,
    key_namespace, /* this key and the next ones are in the order of enum kvb_stream_place */
    key_component,
    key_events,
    key_replay,
    key_topic,
    key_unknown_medium,
    key_reannounce,
    key_model,
    key_lora,
    key_block_size,
    key_total_blocks,
    key_formats,
    key_tiers,
    key_hashes,
    key_copies,
    checkpoint_keys
};

enum {
    section_header_bytes = 16,
    section_hash_bytes = 16,
    head_bytes = 8 * checkpoint_keys /* for each key a number, or the hash of a text */
};

enum state_flag {
    state_is_complete = 1,
    state_has_skipped = 2,
    state_has_unknown_event = 4,
    state_is_withdrawn = 8,
    state_has_objects = 16,
    state_is_origin_found = 32,
    state_is_cache_discarded = 64,
    state_has_misfit = 128,
    /* From bit 8 on: whether a removal from the host, disk, external tier came. */
    state_removals_shift = 8 - KVB_TIER_HOST,
    state_lacks_salts = 2048,
    state_is_ambiguous = 4096,
    state_has_hashes_of_pages = 8192,
    state_has_hidden_pools = 16384,
    state_has_reset = 32768,
    state_counts_from_zero = 65536,
    state_counts_from_one = 131072,
    state_speculates = 262144, /* by a method that its page does not name */
    state_has_tokens = 524288, /* sections of tokens follow, and an end */
    state_all_flags = 1048575
};

/* The tiers besides the device's, as bits. */
enum { kvb_offload_tiers = 1U << KVB_TIER_HOST | 1U << KVB_TIER_DISK | 1U << KVB_TIER_EXTERNAL };

/* Offsets of the parts of a state.  The fingerprints follow, 24 bytes each. */
enum {
    state_last_seq = 0,
    state_epoch = 8,
    state_first_id = 24,
    state_last_id = 32,
    state_digest_seed = 40,
    state_flags = 48,
    state_cause = 52,
    state_ends = 56,                                  /* kvb_mirror_put_ends() */
    state_tiers = state_ends + kvb_mirror_ends_bytes, /* each: blocks, digest low, high u64 */
    state_tier_bytes = 24,
    state_fingerprints = state_tiers + KVB_LIST_COUNT * state_tier_bytes,
    fingerprint_bytes = 24
};

/* The values of the head. */
struct checkpoint_identity {
    uint64_t values[checkpoint_keys];
};

struct checkpoint_identity kvb_checkpoint_identity(const struct kvb_stream *stream);

/* Returns the name of the key in the configuration. */
const char *kvb_checkpoint_key_name(enum checkpoint_key key);
