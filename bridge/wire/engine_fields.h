#pragma once

#include "model/event_batch.h"
#include "wire/mp_cursor.h"

/* The fields of one engine event, found but not yet read: where each value
 * stands, in whatever order and form they came.  For the engine_*.c files. */
enum engine_field {
    field_block_hashes,
    field_parent_block_hash,
    field_token_ids,
    field_block_size,
    field_lora_id,
    field_medium,
    field_lora_name,
    field_extra_keys,
    field_group_idx,
    field_spec_kind,
    field_locality,
    field_count
};

struct engine_fields {
    bool has[field_count]; /* there, and not nil */
    struct kvb_mp_cursor at[field_count];
};

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
kvb_status kvb_engine_read_lora(
    struct kvb_event_batch *batch, const struct engine_fields *fields,
    struct kvb_engine_event *event);
kvb_status
kvb_engine_read_group(const struct engine_fields *fields, struct kvb_engine_event *event);
kvb_status
kvb_engine_read_medium(const struct engine_fields *fields, struct kvb_engine_event *event);

/* Copies a peer's text into the batch; statuses as above. */
kvb_status
kvb_engine_add_text(struct kvb_event_batch *batch, kvb_span text, struct kvb_text_ref *out_ref);

/* After hashes and lora: salt, multimodal ids, what cannot be matched. */
kvb_status kvb_engine_read_extra_keys(
    struct kvb_event_batch *batch, const struct engine_fields *fields,
    struct kvb_engine_event *event);

/* KVB_SKIP_NONE when the event is about this worker's prefix blocks. */
enum kvb_skip kvb_engine_scope(const struct engine_fields *fields);
