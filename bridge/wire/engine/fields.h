#pragma once

#include "model/event_batch.h"
#include "wire/msgpack/cursor.h"

/* The fields of one engine event: located, but not read yet.  They may have arrived in any order
 * and form.  For the files of this room only. */
enum engine_field {
    field_block_hashes,
    field_seq_hashes,
    field_block_hash,
    field_parent_block_hash,
    field_parent_hash,
    field_token_ids,
    field_block_size,
    field_lora_id,
    field_medium,
    field_lora_name,
    field_extra_keys,
    field_group_idx,
    field_spec_kind,
    field_locality,
    field_object_key,
    field_shared_key,
    field_tenant,
    field_replicas,
    field_cache_salt,
    field_lookahead,
    field_mm_keys,
    field_spec_window,
    field_model_name,
    field_model,
    field_count
};

/* The long lists are read when they are located, so that they are walked only once.  They are
 * stored in the batch's arrays after the counted items; increasing the count accepts them. */
struct engine_list {
    bool is_read; /* else the reader of the field reads it, whatever its form */
    uint32_t count;
};

struct engine_fields {
    bool has_event_type; /* it has Mooncake's event_type */
    /* The event is an array without an element for group_idx.  Its vLLM may write multimodal ids
     * as bare texts: see wire/engine/extra_keys.c. */
    bool has_bare_ids;
    uint32_t elements;              /* of an array, its tag included; 0: the event is a map */
    bool has[field_count];          /* present, and not nil */
    struct engine_list hashes;      /* field_block_hashes, after the counted batch->hashes */
    struct engine_list tokens;      /* field_token_ids, after the counted batch->tokens */
    const uint8_t *end;             /* of the message */
    const uint8_t *at[field_count]; /* undefined for absent fields */
};

static inline struct kvb_mp_cursor
kvb_engine_cursor_at(const struct engine_fields *fields, enum engine_field field)
{
    return (struct kvb_mp_cursor){ .at = fields->at[field], .end = fields->end };
}

/* ---- wire/engine/fields.c: finding fields, and reading those of every event ---- */

/* Begins an event without fields; end: end of the message. */
void kvb_engine_fields_begin(struct engine_fields *fields, const uint8_t *end);

/* Records the position of the field and moves past it, whatever its type; max_depth as in
 * kvb_mp_skip_within().  If a field occurs twice, the second value is used. */
kvb_status kvb_engine_find_field(
    struct kvb_event_batch *batch, struct engine_fields *fields, enum engine_field field,
    struct kvb_mp_cursor *cursor, unsigned max_depth);

/* Each reads one field into the event and the batch's arrays.
 * KVB_BAD_INPUT  the field has a wrong type, or a text is longer than
 *                kvb_max_string_bytes: the event is refused
 * KVB_TOO_LARGE, KVB_NO_MEMORY  the batch is refused */
kvb_status kvb_engine_read_hashes(
    struct kvb_event_batch *batch, const struct engine_fields *fields,
    struct kvb_engine_event *event);
kvb_status kvb_engine_read_parent(
    const struct kvb_event_batch *batch, const struct engine_fields *fields,
    struct kvb_engine_event *event);
kvb_status kvb_engine_read_lora(
    struct kvb_event_batch *batch, const struct engine_fields *fields,
    struct kvb_engine_event *event);
/* The model of the event, if it states one. */
kvb_status kvb_engine_read_model(
    struct kvb_event_batch *batch, const struct engine_fields *fields,
    struct kvb_engine_event *event);
/* The group and its kind.  The length of a sliding window is read for a Stored only, by
 * kvb_engine_read_window(). */
kvb_status
kvb_engine_read_group(const struct engine_fields *fields, struct kvb_engine_event *event);
/* The window's length, for KVB_GROUP_WINDOW; without a length the group becomes KVB_GROUP_OTHER. */
kvb_status
kvb_engine_read_window(const struct engine_fields *fields, struct kvb_engine_event *event);
kvb_status
kvb_engine_read_medium(const struct engine_fields *fields, struct kvb_engine_event *event);

/* Takes one hash: an integer, bytes (the last 8, big-endian), or a text of digits, decimal or
 * hexadecimal after 0x. */
kvb_status kvb_engine_take_hash(struct kvb_mp_cursor *cursor, uint64_t *out_hash);

/* The last 16 of hexadecimal digits.  KVB_BAD_INPUT: there are none, or it contains something
 * else. */
kvb_status kvb_engine_hash_of_hex(kvb_span digits, uint64_t *out_hash);

/* The hash of a text of digits.  KVB_BAD_INPUT: it contains something else. */
kvb_status kvb_engine_hash_of_digits(kvb_span text, uint64_t *out_hash);

/* The tier of a medium, by the word that any engine uses for it; false: the word is unknown. */
bool kvb_engine_find_tier(kvb_span medium, enum kvb_tier *out_tier);

/* Copies a peer's text into the batch; statuses as above.  known: the same text of the previous
 * event; an equal text is not copied again, because a batch repeats the same names. */
kvb_status kvb_engine_add_text(
    struct kvb_event_batch *batch, kvb_span text, struct kvb_text_ref known,
    struct kvb_text_ref *out_ref);

/* Adds an empty extra for each of the event's blocks, unless it has them already. */
kvb_status kvb_engine_need_extras(struct kvb_event_batch *batch, struct kvb_engine_event *event);

/* KVB_SKIP_NONE when the event is about this worker's blocks and the kind of its group, which
 * was read before, is supported. */
enum kvb_skip
kvb_engine_scope(const struct engine_fields *fields, const struct kvb_engine_event *event);

/* ---- wire/engine/tokens.c: the tokens of blocks, and those behind each ---- */

/* Errors as above. */
kvb_status kvb_engine_read_tokens(
    struct kvb_event_batch *batch, const struct engine_fields *fields,
    struct kvb_engine_event *event);
/* Whether the hash of the event's first block is CPython's hash of the tuple of its tokens.  Called
 * after hashes and tokens. */
bool kvb_engine_is_hash_of_page(
    const struct kvb_event_batch *batch, const struct kvb_engine_event *event);
/* Called after the tokens: reads the lookahead tokens after each block, which the block's hash
 * also covers. */
kvb_status kvb_engine_read_lookahead(
    struct kvb_event_batch *batch, const struct engine_fields *fields,
    struct kvb_engine_event *event);

/* The token list of an event whose block_size is known.  A token id that is a text makes its
 * block unmatchable.  The tokens of a sparse event (is_sparse) are not read. */
kvb_status kvb_engine_read_token_list(
    struct kvb_event_batch *batch, const struct engine_fields *fields,
    struct kvb_engine_event *event);

/* ---- wire/engine/pool.c: objects of a pool, given by key and replicas ---- */

/* Reads key and hash; for a store also the parent and the tokens of its only block. */
kvb_status kvb_engine_read_pool_store(
    struct kvb_event_batch *batch, const struct engine_fields *fields,
    struct kvb_engine_event *event);
kvb_status kvb_engine_read_pool_update(
    struct kvb_event_batch *batch, const struct engine_fields *fields,
    struct kvb_engine_event *event);

/* Reads an object of a Mooncake store in the form of a map: the block that its key names, or its
 * hash if it has one.  A key that names no block makes the event a KVB_SKIP_UNKNOWN_KEY. */
kvb_status kvb_engine_read_object(
    struct kvb_event_batch *batch, const struct engine_fields *fields,
    struct kvb_engine_event *event);

/* The tiers that a pool's objects may be in, and the tiers of this one: bit t is tier t. */
extern const unsigned kvb_engine_pool_tiers;
/* *out_has_bad: a replica was left out, because it is no [medium, place]. */
kvb_status kvb_engine_read_replicas(
    const struct engine_fields *fields, unsigned *out_tiers, bool *out_has_bad);

/* The key of an object in a Mooncake store, as the engine's connector wrote it.  It names a block,
 * and the part of the block's KV cache that the object contains:
 *
 *     [PREFIX@]MODEL@tp_rank:T@pcpP@dcpD@pp_rank:R@group:G@HASH   vLLM; the last 8 bytes
 *     MODEL@pcpP@dcpD@head_or_tp_rank:T@pp_rank:R@HASH            vLLM Ascend, likewise
 *     SHA256_RANK_k, SHA256_RANK_v                                SGLang; the first 8 bytes
 *     1234, -1234, 0x4d2                                          a client's own: the hash alone
 *
 * HASH and SHA256 are hexadecimal.  SGLang with MLA writes no RANK, with pipeline stages two. */
struct kvb_object_key {
    uint64_t hash; /* of the block, as the engine's events have it */
    /* Keys of one family differ in shard and hash only: a request can load a block if one family
     * has all its shards.  Both numbers are hashes of texts; a family is never 0, and has 24 bits,
     * which fit a checkpoint. */
    uint32_t family;
    uint32_t shard;
    kvb_span model; /* borrowed from the key; empty: the key names none */
};

/* KVB_BAD_INPUT: the key has another form. */
kvb_status kvb_object_key_read(kvb_span key, struct kvb_object_key *out_key);

/* The family and the shard of an object whose key has another form, but whose event has a hash. */
void kvb_object_key_of_hash(uint64_t hash, struct kvb_object_key *out_key);

/* ---- wire/engine/extra_keys.c: what identifies a block besides its tokens ---- */

/* SGLang's cache_salt.  KVB_BAD_INPUT also when it is given twice with different values.  A salt
 * longer than a query may have makes the event a KVB_SKIP_UNMATCHABLE. */
kvb_status kvb_engine_read_salt(
    struct kvb_event_batch *batch, const struct engine_fields *fields,
    struct kvb_engine_event *event);

/* Called after hashes, lora and salt: reads vLLM's salt, multimodal ids, unmatchable keys. */
kvb_status kvb_engine_read_extra_keys(
    struct kvb_event_batch *batch, const struct engine_fields *fields,
    struct kvb_engine_event *event);

/* TensorRT-LLM's multimodal ids. */
kvb_status kvb_engine_read_mm_keys(
    struct kvb_event_batch *batch, const struct engine_fields *fields,
    struct kvb_engine_event *event);
