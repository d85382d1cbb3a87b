#pragma once

#include "core/ref.h"
#include "core/span.h"
#include "core/status.h"
#include "model/tier.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* One decoded message of an engine: the changes of its cache, in order.
 *
 * Everything is in arrays that are reused from message to message; events refer to them by
 * position, so the arrays may move while they grow:
 *
 *     events  [ stored: hash_at 0, hash_count 2 ][ removed: hash_at 2 ] ...
 *     hashes  [ h0 ][ h1 ] [ r0 ] ...
 *     tokens  [ block 0's tokens ][ block 1's tokens ] ...   block_size each
 *     extras  [ block 0 ][ block 1 ] ...       only where an event has them
 *     keys    [ multimodal ids ] ...           extras point here
 *     text    [ lora names and salts ] ...     events point here
 *
 * The batch borrows nothing from the message's bytes, so it may outlive them.
 * Threads: the caller locks.
 * Memory:  each array doubles up to its ceiling in core/limits.h and stays. */

enum kvb_event_kind {
    KVB_EVENT_STORED,
    KVB_EVENT_REMOVED,
    KVB_EVENT_CLEARED,
    KVB_EVENT_SKIPPED /* not understood, or not relevant here; `skip` says why */
};

/* Why an event was skipped.  kvb_skip_effect() says what the skipped event may have changed. */
enum kvb_skip {
    KVB_SKIP_NONE,
    KVB_SKIP_BAD_STORED,    /* a Stored whose fields do not fit together */
    KVB_SKIP_BAD_REMOVED,   /* a Removed or Cleared that cannot be read */
    KVB_SKIP_UNKNOWN_EVENT, /* an event type that is not known */
    KVB_SKIP_NO_TOKENS,     /* a Stored without tokens for an unknown block */
    KVB_SKIP_NOT_PREFIX,    /* a cache group of a kind without a rule */
    KVB_SKIP_REMOTE,        /* locality REMOTE: another worker's block */
    KVB_SKIP_UNMATCHABLE,   /* keyed by something that no query can contain */
    KVB_SKIP_NO_BLOCK,      /* a partial block: fewer tokens than a block has */
    KVB_SKIP_OTHER_MODEL,   /* a block of another model, in a store that serves several models */
    KVB_SKIP_UNKNOWN_KEY,   /* an object of a store whose key names no block */
    KVB_SKIP_BAD_REPLICA,   /* a replica of an object that cannot be read; its others count */
    KVB_SKIP_COUNT
};

enum kvb_skip_effect {
    KVB_EFFECT_NONE,      /* the list stays correct */
    KVB_EFFECT_MISSING,   /* a block may be missing: PARTIAL(skipped) */
    KVB_EFFECT_PHANTOM,   /* a removal may be missing: clear and rebuild */
    KVB_EFFECT_UNVERIFIED /* anything may be missing: UNVERIFIED(unknown_event) */
};

/* "bad_stored", ...: a stable name for metric labels.  Never NULL. */
const char *kvb_skip_name(enum kvb_skip skip);
enum kvb_skip_effect kvb_skip_effect(enum kvb_skip skip);

/* Which part of a prefix a cache group has to hold so that a request can use it. */
enum kvb_group_kind {
    KVB_GROUP_FULL,   /* all blocks: full attention, and groups that do not state their kind */
    KVB_GROUP_WINDOW, /* the last blocks, as many as the sliding window reaches back; of Mamba
                       * states, one */
    /* The others have no rule here: how much of a prefix they allow is not known.  Checkpoints
     * contain these numbers. */
    KVB_GROUP_OTHER,   /* a kind that the reader does not know, or a window without a length */
    KVB_GROUP_CHUNKED, /* chunked local attention: the blocks of the last chunk */
    KVB_GROUP_CROSS,   /* cross attention */
    KVB_GROUP_ENCODER, /* attention of an encoder */
    KVB_GROUP_KIND_COUNT
};

/* "full", "window", "cross", ...  Never NULL. */
const char *kvb_group_kind_name(enum kvb_group_kind kind);
bool kvb_group_kind_has_rule(enum kvb_group_kind kind);

/* What the identity of a block contains besides its tokens. */
struct kvb_block_extra {
    uint32_t key_at;    /* into keys */
    uint32_t key_count; /* multimodal ids, any order */
    bool unmatchable;   /* keyed by bytes that no query can contain */
};

struct kvb_text_ref {
    uint32_t at; /* into text */
    uint32_t len;
};

struct kvb_engine_event {
    /* The number of a pool's object; 0: none.  A tier holds an object at most once, so a repeated
     * Stored does not add a copy.  The object's only hash comes from the pool; if the pool sends
     * none, it comes from the text of the key. */
    uint64_t key;
    kvb_engine_hash parent; /* where has_parent */
    enum kvb_event_kind kind;
    enum kvb_skip skip;
    enum kvb_tier tier;
    bool all_tiers; /* a Cleared without a medium */
    /* Of these, one that may be about the device alone: vLLM's reset of the prefix cache leaves
     * what is offloaded, unless it resets the connector too, and the event is the same. */
    bool leaves_tiers;
    bool has_parent; /* else the first block begins a prompt */
    bool has_group;
    bool is_paired; /* the tokens came as pairs (a,b) (b,c), as SGLang writes them for EAGLE */
    bool is_medium_unknown; /* tier is EXTERNAL; see kvb_event_batch_place_unknown() */
    /* A Stored of an older form, which has no place for salts, adapters and media: its blocks may
     * have them all the same. */
    bool lacks_salts;
    bool is_kind_unstated; /* a Stored of a group above 0 that does not say which kind it is of */
    /* The first block's hash is Python's hash of its tokens alone, as SGLang up to 0.5.5 writes it:
     * it does not say where in a prompt the block is. */
    bool is_hash_of_page;
    /* Only for KVB_GROUP_WINDOW: the event omits some of the blocks that token_ids covered.  Only
     * the same hashes in the full-attention group then show the positions of its blocks.
     * token_count is then 0, and hash_count may be 0. */
    bool is_sparse;
    bool is_array;       /* it came as an array: its engine never announces a block again */
    bool has_extra_keys; /* it has a list of extra keys, be they all nil */
    /* A map with a cache group and without that list: vLLM's offload connectors write such ones,
     * and say nothing of salt and media. */
    bool is_of_connector;
    /* Not 0: the object is one shard of its block, and `group` is the number of the shard; the
     * block is held where one family has all its shards.  Its hash is that in the text of the key.
     * See struct kvb_object_key in wire/engine/fields.h. */
    uint32_t family;
    uint32_t group;
    enum kvb_group_kind group_kind;
    uint32_t window_tokens; /* only for KVB_GROUP_WINDOW; 0: not given */
    uint32_t block_size;    /* tokens; 0 on a tokenless Stored */
    uint32_t hash_at;
    uint32_t hash_count;
    uint32_t token_at;
    uint32_t token_count; /* 0: tokenless, refers to blocks that are known already */
    /* Speculative decoding: the hash of a block also covers this many tokens after the block.
     * These tokens begin at tokens[lookahead_at], `lookahead` of them for each hash. */
    uint32_t lookahead;
    uint32_t lookahead_at;
    uint32_t extra_at;
    uint32_t extra_count;          /* 0, or hash_count */
    struct kvb_text_ref lora_name; /* len 0: the base model */
    /* Salt of the first block.  The other blocks inherit it, and so do children without a salt. */
    struct kvb_text_ref salt;
    bool is_salt_unsure;            /* a text that was read as a media id may be the salt */
    struct kvb_text_ref model_name; /* len 0: the engine's model; a store may serve several */
};

/* What the messages of one engine have shown so far of the way in which it writes them. */
struct kvb_engine_habits {
    bool has_pairs;     /* media ids come as [id, offset] */
    bool has_zero_hash; /* a block has the hash 0; else a parent 0 is no parent */
};

struct kvb_event_batch {
    double timestamp_s; /* the engine's clock */
    bool has_rank;
    uint32_t rank;
    bool counts_from_one;            /* the publisher's first seq is 1, not 0 */
    struct kvb_engine_habits habits; /* this batch included */
    bool has_signed_hashes;          /* a hash came as a signed number, as SGLang writes them */
    uint32_t unknown_media;          /* events with is_medium_unknown */

    struct kvb_engine_event *events; /* owned, like the five below */
    kvb_engine_hash *hashes;
    uint32_t *tokens;
    struct kvb_block_extra *extras;
    uint64_t *keys;
    uint8_t *text;
    size_t event_count, event_capacity;
    size_t hash_count, hash_capacity;
    size_t token_count, token_capacity;
    size_t extra_count, extra_capacity;
    size_t key_count, key_capacity;
    size_t text_len, text_capacity;
};

/* Frees the arrays.  {0} is an empty batch. */
void kvb_event_batch_done(struct kvb_event_batch *batch);

/* Removes the contents and keeps the memory. */
void kvb_event_batch_reset(struct kvb_event_batch *batch);

/* Each makes room for `more` items after the used ones; the caller writes them and adds to the
 * count.  KVB_TOO_LARGE at the ceiling, KVB_NO_MEMORY. */
kvb_status kvb_event_batch_reserve_events(struct kvb_event_batch *batch, size_t more);
kvb_status kvb_event_batch_reserve_hashes(struct kvb_event_batch *batch, size_t more);
kvb_status kvb_event_batch_reserve_tokens(struct kvb_event_batch *batch, size_t more);
kvb_status kvb_event_batch_reserve_extras(struct kvb_event_batch *batch, size_t more);
kvb_status kvb_event_batch_reserve_keys(struct kvb_event_batch *batch, size_t more);

/* Copies the text into the batch; *out_ref refers to the copy. */
kvb_status kvb_event_batch_add_text(
    struct kvb_event_batch *batch, kvb_span text, struct kvb_text_ref *out_ref);

/* Borrowed until the batch changes. */
kvb_span kvb_event_batch_text(const struct kvb_event_batch *batch, struct kvb_text_ref ref);

/* Makes *out_copy, which must be {0}, an independent copy; the caller owns it. */
kvb_status
kvb_event_batch_copy(const struct kvb_event_batch *batch, struct kvb_event_batch *out_copy);

/* Assigns this tier to all events with an unknown medium, for callers that know the tier of such
 * media. */
void kvb_event_batch_place_unknown(struct kvb_event_batch *batch, enum kvb_tier tier);

/* The memory of a copy of this batch, in bytes. */
size_t kvb_event_batch_bytes(const struct kvb_event_batch *batch);
