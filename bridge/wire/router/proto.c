#include "wire/router/proto.h"

#include "core/array.h"
#include "core/limits.h"
#include "core/own.h"
#include "wire/protobuf/message.h"
#include "wire/router/json.h"

#include <assert.h>
#include <string.h>

/* The form of an event in a KvEventBatch is kind + 4 * tier + 32 * has_parent: see
 * kvbridge.proto. */
enum {
    kvb_form_kind_mask = 3,
    kvb_form_tier_shift = 2,
    kvb_form_tier_mask = 7,
    kvb_form_parent_bit = 1 << 5,
    kvb_form_last = 2 * kvb_form_parent_bit - 1,

    kvb_form_stored = 1,
    kvb_form_removed = 2,
    kvb_form_cleared = 3
};

static const uint32_t wire_kinds[] = {
    [KVB_ROUTER_STORED] = kvb_form_stored,
    [KVB_ROUTER_REMOVED] = kvb_form_removed,
    [KVB_ROUTER_CLEARED] = kvb_form_cleared,
};

/* Columns are copied in one piece, without conversion. */
_Static_assert(sizeof(kvb_block_hash) == sizeof(uint64_t), "a block hash is one fixed64");
_Static_assert(sizeof(kvb_tokens_hash) == sizeof(uint64_t), "a tokens hash is one fixed64");
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "as fixed64 is");

/* What a message has besides the items of its columns: four fields of at most 42 bytes, and for
 * each of five columns a tag and a length. */
enum { max_head_bytes = 128 };

/* A block has two hashes of 8 bytes.  An event is smaller: it has a form, a count of at most three
 * bytes and a parent. */
enum { block_bytes = 16 };

size_t kvb_router_proto_room(size_t max_bytes)
{
    return (max_bytes - max_head_bytes) / block_bytes;
}

/* ---- encode ------------------------------------------------------------------ */

/* Writes a KvEventBatch without protobuf-c, which takes six times as many instructions for a
 * message of one event.  One pass over the events measures the columns, then the fields are written
 * straight into the buffer's memory, in the order of their numbers:
 *
 *     0a 10 epoch | 11 worker_id | 18 dp_rank | 21 first_event_id     a number 0 is omitted
 *     2a len | form | form ...          one byte each: the highest form is 63
 *     32 len | count | count ...        varints
 *     3a len | parent ...               like the two below, copied as they are;
 *     42 len | block_hash ...           a column without items is omitted
 *     4a len | tokens_hash ...
 *
 * The bytes are those that protobuf-c writes: a unit test and the fuzzer compare them. */
enum {
    tag_epoch = 0x0a,
    tag_worker = 0x11,
    tag_rank = 0x18,
    tag_first_id = 0x21,
    tag_forms = 0x2a,
    tag_counts = 0x32,
    tag_parents = 0x3a,
    tag_blocks = 0x42,
    tag_tokens = 0x4a
};

/* The number of items of each column, and the length of the only one whose items differ in size. */
struct columns {
    size_t event_count, parent_count, block_count, token_count;
    size_t counts_bytes;
};

static uint32_t form_of(const struct kvb_router_event *event)
{
    const uint32_t kind = wire_kinds[event->kind];

    switch (event->kind) {
    case KVB_ROUTER_STORED:
        return kind + (kvb_proto_tiers[event->tier] << kvb_form_tier_shift) +
               (event->has_parent ? (uint32_t)kvb_form_parent_bit : 0);
    case KVB_ROUTER_REMOVED:
        return kind + (kvb_proto_tiers[event->tier] << kvb_form_tier_shift);
    case KVB_ROUTER_CLEARED:
        break;
    }
    return kind; /* a clear applies to all tiers */
}

static bool has_parent_item(const struct kvb_router_event *event)
{
    return event->kind == KVB_ROUTER_STORED && event->has_parent;
}

static struct columns measure_events(const struct kvb_router_event *events, size_t count)
{
    struct columns columns = { .event_count = count };

    for (size_t i = 0; i < count; i++) {
        const size_t blocks = events[i].block_count;
        assert(events[i].event_id == events[0].event_id + i);
        assert(events[i].block_at == events[0].block_at + columns.block_count);
        columns.counts_bytes += kvb_proto_varint_bytes(blocks);
        columns.parent_count += has_parent_item(&events[i]);
        columns.block_count += blocks;
        columns.token_count += events[i].kind == KVB_ROUTER_STORED ? blocks : 0;
    }
    return columns;
}

static uint8_t *put_items(uint8_t *at, const void *bytes, size_t len)
{
    memcpy(at, bytes, len);
    return at + len;
}

static uint8_t *put_fixed64(uint8_t *at, uint8_t tag, uint64_t value)
{
    if (value == 0) {
        return at;
    }
    *at++ = tag;
    return put_items(at, &value, sizeof value);
}

static uint8_t *
put_head(uint8_t *at, const struct kvb_router_batch *batch, const struct kvb_router_event *first)
{
    *at++ = tag_epoch;
    *at++ = sizeof batch->epoch.bytes;
    at = put_items(at, batch->epoch.bytes, sizeof batch->epoch.bytes);
    at = put_fixed64(at, tag_worker, batch->worker_id);
    if (batch->dp_rank != 0) {
        *at++ = tag_rank;
        at = kvb_proto_write_varint(at, batch->dp_rank);
    }
    return put_fixed64(at, tag_first_id, first->event_id);
}

/* Of a column that has items. */
static uint8_t *put_column_head(uint8_t *at, uint8_t tag, size_t len)
{
    *at++ = tag;
    return kvb_proto_write_varint(at, len);
}

/* A column that the batch has in this form; nothing if count is 0. */
static uint8_t *put_hashes(uint8_t *at, uint8_t tag, const void *hashes, size_t count)
{
    const size_t len = count * sizeof(uint64_t);

    return count > 0 ? put_items(put_column_head(at, tag, len), hashes, len) : at;
}

static uint8_t *
put_event_columns(uint8_t *at, const struct kvb_router_event *events, const struct columns *columns)
{
    at = put_column_head(at, tag_forms, columns->event_count);
    for (size_t i = 0; i < columns->event_count; i++) {
        *at++ = (uint8_t)form_of(&events[i]);
    }
    at = put_column_head(at, tag_counts, columns->counts_bytes);
    for (size_t i = 0; i < columns->event_count; i++) {
        at = kvb_proto_write_varint(at, events[i].block_count);
    }
    if (columns->parent_count == 0) {
        return at;
    }
    at = put_column_head(at, tag_parents, columns->parent_count * sizeof(uint64_t));
    for (size_t i = 0; i < columns->event_count; i++) {
        if (has_parent_item(&events[i])) {
            at = put_items(at, &events[i].parent.value, sizeof(uint64_t));
        }
    }
    return at;
}

/* The tokens of stored blocks among those of removed ones, which have none. */
static uint8_t *put_some_tokens(
    uint8_t *at, const struct kvb_router_batch *batch, const struct kvb_router_event *events,
    const struct columns *columns)
{
    at = put_column_head(at, tag_tokens, columns->token_count * sizeof(uint64_t));
    for (size_t i = 0; i < columns->event_count; i++) {
        if (events[i].kind == KVB_ROUTER_STORED && events[i].block_count > 0) {
            at = put_items(
                at, batch->tokens + events[i].block_at,
                events[i].block_count * sizeof *batch->tokens);
        }
    }
    return at;
}

static uint8_t *put_block_columns(
    uint8_t *at, const struct kvb_router_batch *batch, const struct kvb_router_event *events,
    const struct columns *columns)
{
    const size_t from = events[0].block_at;

    if (columns->block_count == 0) {
        return at; /* the batch may have no memory for blocks */
    }
    at = put_hashes(at, tag_blocks, batch->blocks + from, columns->block_count);
    if (columns->token_count > 0 && columns->token_count < columns->block_count) {
        return put_some_tokens(at, batch, events, columns);
    }
    return put_hashes(at, tag_tokens, batch->tokens + from, columns->token_count);
}

[[gnu::hot]] kvb_status kvb_router_proto_encode(
    const struct kvb_router_batch *batch, size_t at, size_t count, struct kvb_buf *out)
{
    const struct kvb_router_event *events = batch->events + at;

    assert(batch->has_epoch && count > 0 && at + count <= batch->event_count);
    const struct columns columns = measure_events(events, count);
    const size_t hashes = columns.parent_count + columns.block_count + columns.token_count;
    KVB_TRY(kvb_buf_reserve(
        out, max_head_bytes + count + columns.counts_bytes + hashes * sizeof(uint64_t)));
    uint8_t *end = put_head(out->data + out->len, batch, events);
    end = put_event_columns(end, events, &columns);
    end = put_block_columns(end, batch, events, &columns);
    out->len = (size_t)(end - out->data);
    return KVB_OK;
}

/* ---- decode ------------------------------------------------------------------ */

/* Decodes a KvEventBatch without protobuf-c, which allocates each column.  Each column is copied
 * to its final place, or stored temporarily in the batch itself.  Then the events are expanded in
 * place, from the last one to the first.  The source of an event never has a higher index than the
 * event, so no unread source is overwritten.
 *
 *     fields are read       events  [ form 0, count 0, parent 0 ][ form 1, count 1, ... ] ...
 *                           tokens  [ t0 ][ t1 ][ t2 ] ...            only of stored blocks
 *     events are expanded   events  complete, each with its own parent
 *                           tokens  [ t0 ][ t1 ] [ 0 ] [ t2 ] ...     one for every block
 *
 * A column may arrive in several pieces, or item by item, as protobuf allows. */

enum { max_fields = 64 }; /* the message has 9; the rest is for newer versions */

/* The part of the message that was read so far and is not stored in the batch. */
struct message {
    struct kvb_router_batch *batch; /* borrowed */
    kvb_span epoch;
    uint64_t worker_id;
    uint32_t dp_rank;
    uint64_t first_event_id;
    size_t form_count, length_count, parent_count, block_count, token_count;
};

typedef kvb_status (*field_reader)(struct message *message, const struct kvb_proto_field *field);

static uint64_t fixed64_at(const uint8_t *at)
{
    uint64_t value = 0;

    memcpy(&value, at, sizeof value);
    return value;
}

/* Single fields. */

static kvb_status read_epoch(struct message *message, const struct kvb_proto_field *field)
{
    message->epoch = field->bytes;
    return field->type == KVB_PROTO_BYTES ? KVB_OK : KVB_BAD_INPUT;
}

static kvb_status read_fixed64(const struct kvb_proto_field *field, uint64_t *out_value)
{
    if (field->type != KVB_PROTO_FIXED64) {
        return KVB_BAD_INPUT;
    }
    *out_value = fixed64_at(field->bytes.data);
    return KVB_OK;
}

static kvb_status read_worker(struct message *message, const struct kvb_proto_field *field)
{
    return read_fixed64(field, &message->worker_id);
}

static kvb_status read_first_id(struct message *message, const struct kvb_proto_field *field)
{
    return read_fixed64(field, &message->first_event_id);
}

static kvb_status read_proto_rank(struct message *message, const struct kvb_proto_field *field)
{
    message->dp_rank = (uint32_t)field->value;
    return field->type == KVB_PROTO_VARINT ? KVB_OK : KVB_BAD_INPUT;
}

/* Columns. */

static kvb_status reserve_events(struct kvb_router_batch *batch, size_t count)
{
    return kvb_array_reserve(
        &batch->events, &batch->event_capacity, count, sizeof *batch->events,
        kvb_max_router_events);
}

/* Reads a column of numbers; put() stores each. */
static kvb_status read_varints(
    struct message *message, const struct kvb_proto_field *field,
    kvb_status (*put)(struct message *message, uint32_t value))
{
    struct kvb_proto_scan scan = kvb_proto_scan_of(field->bytes);
    uint64_t value = 0;

    if (field->type == KVB_PROTO_VARINT) {
        return put(message, (uint32_t)field->value);
    }
    if (field->type != KVB_PROTO_BYTES) {
        return KVB_BAD_INPUT;
    }
    while (scan.at < scan.end) {
        KVB_TRY(kvb_proto_varint(&scan, &value));
        KVB_TRY(put(message, (uint32_t)value));
    }
    return KVB_OK;
}

static kvb_status put_form(struct message *message, uint32_t form)
{
    KVB_TRY(reserve_events(message->batch, message->form_count + 1));
    message->batch->events[message->form_count++].event_id = form; /* until it is expanded */
    return KVB_OK;
}

static kvb_status put_length(struct message *message, uint32_t length)
{
    KVB_TRY(reserve_events(message->batch, message->length_count + 1));
    message->batch->events[message->length_count++].block_count = length;
    return KVB_OK;
}

static kvb_status read_forms(struct message *message, const struct kvb_proto_field *field)
{
    return read_varints(message, field, put_form);
}

static kvb_status read_lengths(struct message *message, const struct kvb_proto_field *field)
{
    return read_varints(message, field, put_length);
}

/* Counts the items of a fixed64 field, packed or single. */
static kvb_status count_fixed64(const struct kvb_proto_field *field, size_t *out_count)
{
    const bool is_column = field->type == KVB_PROTO_BYTES || field->type == KVB_PROTO_FIXED64;

    *out_count = field->bytes.len / sizeof(uint64_t);
    return is_column && field->bytes.len % sizeof(uint64_t) == 0 ? KVB_OK : KVB_BAD_INPUT;
}

static kvb_status read_parents(struct message *message, const struct kvb_proto_field *field)
{
    size_t count = 0;

    KVB_TRY(count_fixed64(field, &count));
    KVB_TRY(reserve_events(message->batch, message->parent_count + count));
    for (size_t i = 0; i < count; i++) {
        message->batch->events[message->parent_count++].parent.value =
            fixed64_at(field->bytes.data + (i * sizeof(uint64_t)));
    }
    return KVB_OK;
}

static kvb_status read_proto_blocks(struct message *message, const struct kvb_proto_field *field)
{
    struct kvb_router_batch *batch = message->batch;
    size_t count = 0;

    KVB_TRY(count_fixed64(field, &count));
    KVB_TRY(kvb_array_reserve(
        &batch->blocks, &batch->block_capacity, message->block_count + count, sizeof *batch->blocks,
        kvb_max_router_blocks));
    if (count > 0) {
        memcpy(batch->blocks + message->block_count, field->bytes.data, field->bytes.len);
        message->block_count += count;
    }
    return KVB_OK;
}

static kvb_status read_proto_tokens(struct message *message, const struct kvb_proto_field *field)
{
    struct kvb_router_batch *batch = message->batch;
    size_t count = 0;

    KVB_TRY(count_fixed64(field, &count));
    KVB_TRY(kvb_array_reserve(
        &batch->tokens, &batch->token_capacity, message->token_count + count, sizeof *batch->tokens,
        kvb_max_router_blocks));
    if (count > 0) {
        memcpy(batch->tokens + message->token_count, field->bytes.data, field->bytes.len);
        message->token_count += count;
    }
    return KVB_OK;
}

/* By field number, as stated in kvbridge.proto. */
static const field_reader readers[] = {
    [1] = read_epoch,    [2] = read_worker,       [3] = read_proto_rank,
    [4] = read_first_id, [5] = read_forms,        [6] = read_lengths,
    [7] = read_parents,  [8] = read_proto_blocks, [9] = read_proto_tokens,
};

static kvb_status read_fields(kvb_span bytes, struct message *message)
{
    struct kvb_proto_scan scan = kvb_proto_scan_of(bytes);
    struct kvb_proto_field field = { 0 };

    for (size_t fields = 0; scan.at < scan.end; fields++) {
        if (fields == max_fields) {
            return KVB_BAD_INPUT;
        }
        KVB_TRY(kvb_proto_next(&scan, &field));
        if (field.number < KVB_COUNT_OF(readers)) {
            KVB_TRY(readers[field.number](message, &field));
        }
    }
    return KVB_OK;
}

/* Expanding events, from the last one. */

/* How many items of the columns belong to the events before the current one. */
struct left {
    size_t parents;
    size_t blocks;
    size_t tokens;
};

static kvb_status read_form(uint32_t form, struct kvb_router_event *event)
{
    static const enum kvb_router_kind kinds[] = {
        [kvb_form_stored] = KVB_ROUTER_STORED,
        [kvb_form_removed] = KVB_ROUTER_REMOVED,
        [kvb_form_cleared] = KVB_ROUTER_CLEARED,
    };
    const uint32_t kind = form & kvb_form_kind_mask;
    unsigned tier = 0;

    if (form > kvb_form_last || kind == 0) {
        return KVB_BAD_INPUT;
    }
    KVB_TRY(kvb_proto_number_find(
        kvb_proto_tiers, KVB_LIST_COUNT, (form >> kvb_form_tier_shift) & kvb_form_tier_mask,
        &tier));
    event->kind = kinds[kind];
    event->tier = (enum kvb_tier)tier;
    event->has_parent = (form & kvb_form_parent_bit) != 0;
    if (event->kind != KVB_ROUTER_STORED && event->has_parent) {
        return KVB_BAD_INPUT;
    }
    return event->kind == KVB_ROUTER_CLEARED && tier != KVB_TIER_DEVICE ? KVB_BAD_INPUT : KVB_OK;
}

static kvb_status
take_parent(const struct kvb_router_batch *batch, struct left *left, struct kvb_router_event *event)
{
    if (!event->has_parent) {
        event->parent = (kvb_block_hash){ 0 };
        return KVB_OK;
    }
    if (left->parents == 0) {
        return KVB_BAD_INPUT;
    }
    event->parent = batch->events[--left->parents].parent;
    return KVB_OK;
}

/* Moves the tokens of stored blocks to the indexes of their hashes, and writes zeros for removed
 * blocks.  No unread token is overwritten, unless there are more tokens than blocks. */
static kvb_status
take_proto_blocks(struct kvb_router_batch *batch, struct left *left, struct kvb_router_event *event)
{
    const size_t count = event->block_count;
    const bool is_stored = event->kind == KVB_ROUTER_STORED;

    if (count > left->blocks || (is_stored && count > left->tokens) ||
        (event->kind == KVB_ROUTER_CLEARED && count > 0)) {
        return KVB_BAD_INPUT;
    }
    left->blocks -= count;
    left->tokens -= is_stored ? count : 0;
    event->block_at = (uint32_t)left->blocks;
    if (left->tokens > left->blocks) {
        return KVB_BAD_INPUT;
    }
    if (count == 0) {
        return KVB_OK; /* the array may be NULL */
    }
    kvb_tokens_hash *tokens = batch->tokens + left->blocks;
    if (!is_stored) {
        memset(tokens, 0, count * sizeof *tokens);
    } else if (left->tokens != left->blocks) {
        memmove(tokens, batch->tokens + left->tokens, count * sizeof *tokens);
    }
    return KVB_OK;
}

static kvb_status make_events(const struct message *message)
{
    struct kvb_router_batch *batch = message->batch;
    struct left left = { .parents = message->parent_count,
                         .blocks = message->block_count,
                         .tokens = message->token_count };

    for (size_t i = message->form_count; i-- > 0;) {
        struct kvb_router_event event = { .event_id = message->first_event_id + i,
                                          .block_count = batch->events[i].block_count };
        KVB_TRY(read_form((uint32_t)batch->events[i].event_id, &event));
        KVB_TRY(take_parent(batch, &left, &event));
        KVB_TRY(take_proto_blocks(batch, &left, &event));
        batch->events[i] = event;
    }
    return left.parents == 0 && left.blocks == 0 && left.tokens == 0 ? KVB_OK : KVB_BAD_INPUT;
}

/* Checks the message before its single events are read. */
static bool is_plausible(const struct message *message)
{
    uint64_t last_id = 0;

    return message->epoch.len == sizeof(kvb_epoch) && message->worker_id <= INT64_MAX &&
           message->form_count > 0 && message->form_count == message->length_count &&
           message->parent_count <= message->form_count &&
           message->token_count <= message->block_count &&
           !__builtin_add_overflow(message->first_event_id, message->form_count - 1, &last_id);
}

static kvb_status read_proto_message(kvb_span bytes, struct kvb_router_batch *batch)
{
    struct message message = { .batch = batch };

    KVB_TRY(read_fields(bytes, &message));
    if (!is_plausible(&message)) {
        return KVB_BAD_INPUT;
    }
    KVB_TRY(kvb_array_reserve(
        &batch->tokens, &batch->token_capacity, message.block_count, sizeof *batch->tokens,
        kvb_max_router_blocks));
    KVB_TRY(make_events(&message));
    batch->event_count = message.form_count;
    batch->block_count = message.block_count;
    batch->worker_id = message.worker_id;
    batch->dp_rank = message.dp_rank;
    batch->has_epoch = true;
    memcpy(batch->epoch.bytes, message.epoch.data, sizeof batch->epoch.bytes);
    return KVB_OK;
}

kvb_status kvb_router_proto_decode(kvb_span bytes, struct kvb_router_batch *batch)
{
    kvb_router_batch_reset(batch);
    batch->worker_id = 0;
    batch->dp_rank = 0;
    if (bytes.len > kvb_max_payload_bytes) {
        return KVB_TOO_LARGE;
    }
    return read_proto_message(bytes, batch);
}

/* ---- either profile ---------------------------------------------------------- */

kvb_status kvb_router_payload_decode(kvb_span bytes, struct kvb_router_batch *batch)
{
    static const struct {
        uint8_t first;
        kvb_status (*decode)(kvb_span, struct kvb_router_batch *);
    } profiles[] = {
        { '{', kvb_router_json_decode },
        { 0x0a, kvb_router_proto_decode },
    };

    for (size_t i = 0; i < KVB_COUNT_OF(profiles) && bytes.len > 0; i++) {
        if (bytes.data[0] == profiles[i].first) {
            return profiles[i].decode(bytes, batch);
        }
    }
    kvb_router_batch_reset(batch);
    return KVB_BAD_INPUT;
}
