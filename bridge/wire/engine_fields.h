#pragma once

#include "model/event_batch.h"
#include "wire/mp_cursor.h"

/* The fields of one engine event, found but not yet read: where each value
 * stands, in whatever order and form they came.  For the engine_*.c files. */
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
    field_replicas,
    field_cache_salt,
    field_lookahead,
    field_mm_keys,
    field_spec_window,
    field_model_name,
    field_model,
    field_count
};

/* The long lists are read where they are found, so that nobody walks them twice: they
 * wait behind what the batch counts as its own, and are taken in by a count, or left. */
struct engine_list {
    bool is_read; /* else it has to be, in whatever form it is */
    uint32_t count;
};

struct engine_fields {
    bool has_event_type; /* the form of Mooncake's maps */
    /* An array without a place for group_idx: of a vLLM whose multimodal ids may be bare
     * text, see engine_extra_keys.c. */
    bool has_bare_ids;
    bool has[field_count];          /* there, and not nil */
    struct engine_list hashes;      /* of field_block_hashes, behind batch->hashes */
    struct engine_list tokens;      /* of field_token_ids, behind batch->tokens */
    const uint8_t *end;             /* of the message */
    const uint8_t *at[field_count]; /* of what is not there: anything */
};

static inline struct kvb_mp_cursor
kvb_engine_cursor_at(const struct engine_fields *fields, enum engine_field field)
{
    return (struct kvb_mp_cursor){ .at = fields->at[field], .end = fields->end };
}

/* Nothing was found yet; end: of the message. */
void kvb_engine_fields_begin(struct engine_fields *fields, const uint8_t *end);

/* Notes where the field stands and moves past it, whatever it is; max_depth as in
 * kvb_mp_skip_within().  A field that comes twice is what it is the second time. */
kvb_status kvb_engine_find_field(
    struct kvb_event_batch *batch, struct engine_fields *fields, enum engine_field field,
    struct kvb_mp_cursor *cursor, unsigned max_depth);

/* Each reads one field into the event and the batch's arrays.
 * KVB_BAD_INPUT  the field is not of its type, or a text is longer than
 *                kvb_max_string_bytes: the event cannot be taken
 * KVB_TOO_LARGE, KVB_NO_MEMORY  the batch cannot be taken */
kvb_status kvb_engine_read_hashes(
    struct kvb_event_batch *batch, const struct engine_fields *fields,
    struct kvb_engine_event *event);
kvb_status
kvb_engine_read_parent(const struct engine_fields *fields, struct kvb_engine_event *event);
kvb_status kvb_engine_read_tokens(
    struct kvb_event_batch *batch, const struct engine_fields *fields,
    struct kvb_engine_event *event);
/* After the tokens: the tokens behind each block that its name covers too. */
kvb_status kvb_engine_read_lookahead(
    struct kvb_event_batch *batch, const struct engine_fields *fields,
    struct kvb_engine_event *event);
kvb_status kvb_engine_read_lora(
    struct kvb_event_batch *batch, const struct engine_fields *fields,
    struct kvb_engine_event *event);
/* The model that the event is about, where it says one. */
kvb_status kvb_engine_read_model(
    struct kvb_event_batch *batch, const struct engine_fields *fields,
    struct kvb_engine_event *event);
/* The group and its kind.  Whether a sliding window says how long it is, only a Stored is
 * asked: see kvb_engine_read_window(). */
kvb_status
kvb_engine_read_group(const struct engine_fields *fields, struct kvb_engine_event *event);
/* Of KVB_GROUP_WINDOW; a window without a length becomes KVB_GROUP_OTHER. */
kvb_status
kvb_engine_read_window(const struct engine_fields *fields, struct kvb_engine_event *event);
kvb_status
kvb_engine_read_medium(const struct engine_fields *fields, struct kvb_engine_event *event);

/* One hash, wherever it stands: an integer, bytes (the last 8, big-endian), or digits as
 * text, decimal or hexadecimal after 0x. */
kvb_status kvb_engine_take_hash(struct kvb_mp_cursor *cursor, uint64_t *out_hash);

/* The digits alone.  KVB_BAD_INPUT: there is something else among them. */
kvb_status kvb_engine_hash_of_digits(kvb_span text, uint64_t *out_hash);

/* The token list of an event whose block_size is known.  A token id that is a text marks its
 * block unmatchable; of a sliding window's event that leaves blocks out (is_sparse) the tokens
 * are left. */
kvb_status kvb_engine_read_token_list(
    struct kvb_event_batch *batch, const struct engine_fields *fields,
    struct kvb_engine_event *event);

/* Where a copy lies, by whatever word; false: the word is on no list. */
bool kvb_engine_find_tier(kvb_span medium, enum kvb_tier *out_tier);

/* ---- engine_pool.c: objects of a pool that are told by key and replicas ---- */

/* Key and hash; of a store the parent and the tokens too, which are one block's. */
kvb_status kvb_engine_read_pool_store(
    struct kvb_event_batch *batch, const struct engine_fields *fields,
    struct kvb_engine_event *event);
kvb_status kvb_engine_read_pool_update(
    struct kvb_event_batch *batch, const struct engine_fields *fields,
    struct kvb_engine_event *event);

/* The tiers in which a pool's objects may lie, and those in which this one does: bit t
 * is tier t. */
extern const unsigned kvb_engine_pool_tiers;
kvb_status kvb_engine_read_replicas(const struct engine_fields *fields, unsigned *out_tiers);

/* Copies a peer's text into the batch; statuses as above.  known: where the event before this
 * one has such a text; an equal one is not copied again, for a batch says the same names over
 * and over. */
kvb_status kvb_engine_add_text(
    struct kvb_event_batch *batch, kvb_span text, struct kvb_text_ref known,
    struct kvb_text_ref *out_ref);

/* An extra for each of the event's blocks, empty; those that it has already stay. */
kvb_status kvb_engine_need_extras(struct kvb_event_batch *batch, struct kvb_engine_event *event);

/* ---- engine_extra_keys.c: what goes into a block's identity beside its tokens ---- */

/* The salt that SGLang names as such.  KVB_BAD_INPUT also when it is named twice and differs.
 * One that is longer than any query's makes the event a KVB_SKIP_UNMATCHABLE. */
kvb_status kvb_engine_read_salt(
    struct kvb_event_batch *batch, const struct engine_fields *fields,
    struct kvb_engine_event *event);

/* After hashes, lora and salt: vLLM's salt, multimodal ids, what cannot be matched. */
kvb_status kvb_engine_read_extra_keys(
    struct kvb_event_batch *batch, const struct engine_fields *fields,
    struct kvb_engine_event *event);

/* TensorRT-LLM's multimodal ids. */
kvb_status kvb_engine_read_mm_keys(
    struct kvb_event_batch *batch, const struct engine_fields *fields,
    struct kvb_engine_event *event);

/* KVB_SKIP_NONE when the event is about this worker's blocks, and its group's kind, which
 * was read before, is one that can be followed. */
enum kvb_skip
kvb_engine_scope(const struct engine_fields *fields, const struct kvb_engine_event *event);
