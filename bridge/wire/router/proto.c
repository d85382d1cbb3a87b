#include "wire/router/proto.h"

#include "core/array.h"
#include "core/limits.h"
#include "core/own.h"
#include "kvbridge.pb-c.h"
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

/* Writes a KvEventBatch without protobuf-c, which takes four times as long: 81 against 19 ns of the
 * 331 ns that a batch of one block takes through the bridge.  One pass over the events measures the
 * columns, then the fields are written straight into the buffer's memory, in the order of their
 * numbers:
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
        /* The message says only where ids begin, and blocks are copied in one piece. */
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
    /* protobuf-c leaves a 0 out, and the bytes are to be the same. */
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
    /* Forms and counts have an item for each event; this column may have none. */
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
    /* Only a mix of stored and removed events needs a copy event by event. */
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
    /* One reservation: what follows writes without checks. */
    KVB_TRY(kvb_buf_reserve(
        out, max_head_bytes + count + columns.counts_bytes + hashes * sizeof(uint64_t)));
    uint8_t *end = put_head(out->data + out->len, batch, events);
    end = put_event_columns(end, events, &columns);
    end = put_block_columns(end, batch, events, &columns);
    out->len = (size_t)(end - out->data);
    return KVB_OK;
}

/* ---- decode ------------------------------------------------------------------ */

enum { max_fields = 64 }; /* the message has 9; the rest is for newer versions */

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
    /* The bits have room for tiers that are none. */
    KVB_TRY(kvb_proto_number_find(
        kvb_proto_tiers, KVB_LIST_COUNT, (form >> kvb_form_tier_shift) & kvb_form_tier_mask,
        &tier));
    event->kind = kinds[kind];
    event->tier = (enum kvb_tier)tier;
    event->has_parent = (form & kvb_form_parent_bit) != 0;
    /* It would take a parent from the column that is meant for a stored event after it. */
    if (event->kind != KVB_ROUTER_STORED && event->has_parent) {
        return KVB_BAD_INPUT;
    }
    return event->kind == KVB_ROUTER_CLEARED && tier != KVB_TIER_DEVICE ? KVB_BAD_INPUT : KVB_OK;
}

/* Checks the message before its single events are read. */
static bool is_plausible(const Kvb__KvEventBatch *message)
{
    uint64_t last_id = 0;

    /* Ids are counted on from the first, so the last one must not wrap around. */
    return message->epoch.len == sizeof(kvb_epoch) && message->worker_id <= INT64_MAX &&
           message->n_forms > 0 && message->n_forms == message->n_block_counts &&
           message->n_parents <= message->n_forms &&
           message->n_tokens_hashes <= message->n_block_hashes &&
           !__builtin_add_overflow(message->first_event_id, message->n_forms - 1, &last_id);
}

static kvb_status reserve_parts(const Kvb__KvEventBatch *message, struct kvb_router_batch *batch)
{
    KVB_TRY(kvb_array_reserve(
        &batch->events, &batch->event_capacity, message->n_forms, sizeof *batch->events,
        kvb_max_router_events));
    KVB_TRY(kvb_array_reserve(
        &batch->blocks, &batch->block_capacity, message->n_block_hashes, sizeof *batch->blocks,
        kvb_max_router_blocks));
    /* As many as blocks, not as tokens on the wire: the two arrays are parallel. */
    return kvb_array_reserve(
        &batch->tokens, &batch->token_capacity, message->n_block_hashes, sizeof *batch->tokens,
        kvb_max_router_blocks);
}

/* How many items of the columns belong to the events before. */
struct used {
    size_t parents, blocks, tokens;
};

/* True: the columns have what this event takes of them. */
static bool has_items(
    const Kvb__KvEventBatch *message, const struct used *used, const struct kvb_router_event *event)
{
    const size_t count = event->block_count;

    switch (event->kind) {
    case KVB_ROUTER_STORED:
        return count <= message->n_block_hashes - used->blocks &&
               count <= message->n_tokens_hashes - used->tokens &&
               (!event->has_parent || used->parents < message->n_parents);
    case KVB_ROUTER_REMOVED:
        return count <= message->n_block_hashes - used->blocks;
    case KVB_ROUTER_CLEARED:
        break;
    }
    return count == 0;
}

/* Makes the events of the columns.  The batch has a place for the tokens of each block; those of a
 * removed one are 0. */
static kvb_status read_columns(const Kvb__KvEventBatch *message, struct kvb_router_batch *batch)
{
    struct used used = { 0 };

    KVB_TRY(reserve_parts(message, batch));
    for (size_t i = 0; i < message->n_forms; i++) {
        struct kvb_router_event event = { .event_id = message->first_event_id + i,
                                          .block_at = (uint32_t)used.blocks,
                                          .block_count = message->block_counts[i] };
        const size_t bytes = event.block_count * sizeof(uint64_t);
        /* The form says what the event takes of the columns; the check precedes each copy. */
        KVB_TRY(read_form(message->forms[i], &event));
        if (!has_items(message, &used, &event)) {
            return KVB_BAD_INPUT;
        }
        if (event.has_parent) {
            event.parent.value = message->parents[used.parents++];
        }
        if (event.block_count > 0) { /* else the arrays may be NULL */
            memcpy(batch->blocks + used.blocks, message->block_hashes + used.blocks, bytes);
            if (event.kind == KVB_ROUTER_STORED) {
                memcpy(batch->tokens + used.blocks, message->tokens_hashes + used.tokens, bytes);
                used.tokens += event.block_count;
            } else {
                memset(batch->tokens + used.blocks, 0, bytes);
            }
        }
        used.blocks += event.block_count;
        batch->events[i] = event;
    }
    /* What is left over would belong to no event: a writer and a reader that disagree. */
    return used.parents == message->n_parents && used.blocks == message->n_block_hashes &&
                   used.tokens == message->n_tokens_hashes
               ? KVB_OK
               : KVB_BAD_INPUT;
}

kvb_status kvb_router_proto_decode(kvb_span bytes, struct kvb_router_batch *batch)
{
    KVB_OWN(kvb_proto_arena_done) struct kvb_proto_arena arena;
    const ProtobufCMessage *unpacked = NULL;

    kvb_proto_arena_init(&arena);
    kvb_router_batch_reset(batch);
    batch->worker_id = 0;
    batch->dp_rank = 0;
    if (bytes.len > kvb_max_payload_bytes) {
        return KVB_TOO_LARGE;
    }
    KVB_TRY(
        kvb_proto_unpack(&kvb__kv_event_batch__descriptor, bytes, max_fields, &arena, &unpacked));
    const Kvb__KvEventBatch *message = (const Kvb__KvEventBatch *)unpacked;
    if (!is_plausible(message)) {
        return KVB_BAD_INPUT;
    }
    KVB_TRY(read_columns(message, batch));
    /* Set last: until here the batch is empty for whoever looks after a failure. */
    batch->event_count = message->n_forms;
    batch->block_count = message->n_block_hashes;
    batch->worker_id = message->worker_id;
    batch->dp_rank = message->dp_rank;
    batch->has_epoch = true;
    memcpy(batch->epoch.bytes, message->epoch.data, sizeof batch->epoch.bytes);
    return KVB_OK;
}

/* ---- either format ----------------------------------------------------------- */

kvb_status kvb_router_payload_decode(kvb_span bytes, struct kvb_router_batch *batch)
{
    static const struct {
        uint8_t first;
        kvb_status (*decode)(kvb_span, struct kvb_router_batch *);
    } formats[] = {
        { '{', kvb_router_json_decode },
        { 0x0a, kvb_router_proto_decode },
    };

    /* No byte fits both: an epoch is always written, and written first. */
    for (size_t i = 0; i < KVB_COUNT_OF(formats) && bytes.len > 0; i++) {
        if (bytes.data[0] == formats[i].first) {
            return formats[i].decode(bytes, batch);
        }
    }
    kvb_router_batch_reset(batch);
    return KVB_BAD_INPUT;
}
