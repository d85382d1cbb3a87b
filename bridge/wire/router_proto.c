#include "wire/router_proto.h"

#include "core/array.h"
#include "core/limits.h"
#include "core/own.h"
#include "kvbridge.pb-c.h"
#include "wire/proto_guard.h"
#include "wire/proto_number.h"
#include "wire/router_json.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* A form: kind + 4 * tier + 32 * has_parent, as stated in kvbridge.proto. */
enum {
    kind_mask = 3,
    tier_shift = 2,
    tier_mask = 7,
    parent_bit = 1 << 5,
    last_form = 2 * parent_bit - 1,
    max_fields = 64, /* the message has 9; the rest is for a newer one */
};

static const uint32_t wire_kinds[] = {
    [KVB_ROUTER_STORED] = 1,
    [KVB_ROUTER_REMOVED] = 2,
    [KVB_ROUTER_CLEARED] = 3,
};

/* The columns are handed to protobuf-c where they lie, and copied in one go. */
_Static_assert(sizeof(kvb_block_hash) == sizeof(uint64_t), "a block hash is one fixed64");
_Static_assert(sizeof(kvb_tokens_hash) == sizeof(uint64_t), "a tokens hash is one fixed64");

/* ---- encode ------------------------------------------------------------------ */

/* Of a message of up to 8 KiB, as one turn's events make it: no allocation for those. */
enum { short_columns = 1024 };

/* The columns that the batch does not hold as such, in one piece of memory. */
struct columns {
    uint64_t *owned;   /* that piece; NULL: it is the caller's */
    uint64_t *parents; /* its head */
    uint64_t *tokens;
    uint32_t *forms;
    uint32_t *counts;
    size_t event_count, parent_count, block_count, token_count;
};

static void drop_columns(struct columns *columns)
{
    free(columns->owned);
}

static kvb_status reserve_columns(
    struct columns *columns, const struct kvb_router_event *events, size_t count,
    uint64_t room[short_columns])
{
    uint64_t *memory = room;
    size_t blocks = 0;

    for (size_t i = 0; i < count; i++) {
        blocks += events[i].block_count;
    }
    if (count + blocks + count > short_columns) {
        memory = columns->owned = malloc((count + blocks + count) * sizeof *memory);
        if (!memory) {
            return KVB_NO_MEMORY;
        }
    }
    columns->parents = memory;
    columns->tokens = memory + count;
    columns->forms = (uint32_t *)(memory + count + blocks); /* two u32 columns a u64 */
    columns->counts = columns->forms + count;
    return KVB_OK;
}

static uint32_t form_of(const struct kvb_router_event *event)
{
    const uint32_t kind = wire_kinds[event->kind];

    switch (event->kind) {
    case KVB_ROUTER_STORED:
        return kind + (kvb_proto_tiers[event->tier] << tier_shift) +
               (event->has_parent ? (uint32_t)parent_bit : 0);
    case KVB_ROUTER_REMOVED:
        return kind + (kvb_proto_tiers[event->tier] << tier_shift);
    case KVB_ROUTER_CLEARED:
        break;
    }
    return kind; /* a clear is of all tiers */
}

static void add_event(
    struct columns *columns, const struct kvb_router_event *event, const kvb_tokens_hash *tokens)
{
    const size_t at = columns->event_count++;
    const uint32_t form = form_of(event);

    columns->forms[at] = form;
    columns->counts[at] = event->block_count;
    if (form & parent_bit) {
        columns->parents[columns->parent_count++] = event->parent.value;
    }
    if (event->kind == KVB_ROUTER_STORED && event->block_count > 0) {
        memcpy(
            columns->tokens + columns->token_count, tokens + event->block_at,
            event->block_count * sizeof *tokens);
        columns->token_count += event->block_count;
    }
    columns->block_count += event->block_count;
}

/* Cast away const: protobuf-c reads these, but says nothing of it in its types. */
static void *lend(const void *borrowed)
{
    void *lent = NULL;

    memcpy(&lent, &borrowed, sizeof lent);
    return lent;
}

static kvb_status pack(const Kvb__KvEventBatch *message, struct kvb_buf *out)
{
    const size_t len = kvb__kv_event_batch__get_packed_size(message);

    KVB_TRY(kvb_buf_reserve(out, len));
    out->len += kvb__kv_event_batch__pack(message, out->data + out->len);
    return KVB_OK;
}

kvb_status kvb_router_proto_encode(
    const struct kvb_router_batch *batch, size_t at, size_t count, struct kvb_buf *out)
{
    KVB_OWN(drop_columns) struct columns columns = { 0 };
    const struct kvb_router_event *events = batch->events + at;
    uint64_t room[short_columns]; /* filled as far as it is used */

    assert(batch->has_epoch && count > 0 && at + count <= batch->event_count);
    KVB_TRY(reserve_columns(&columns, events, count, room));
    for (size_t i = 0; i < count; i++) {
        assert(events[i].event_id == events[0].event_id + i);
        assert(events[i].block_at == events[0].block_at + columns.block_count);
        add_event(&columns, &events[i], batch->tokens);
    }

    Kvb__KvEventBatch message;
    kvb__kv_event_batch__init(&message);
    message.epoch.data = lend(batch->epoch.bytes);
    message.epoch.len = sizeof batch->epoch.bytes;
    message.worker_id = batch->worker_id;
    message.dp_rank = batch->dp_rank;
    message.first_event_id = events[0].event_id;
    message.forms = columns.forms;
    message.n_forms = count;
    message.block_counts = columns.counts;
    message.n_block_counts = count;
    message.parents = columns.parents;
    message.n_parents = columns.parent_count;
    message.block_hashes =
        columns.block_count > 0 ? lend(batch->blocks + events[0].block_at) : NULL;
    message.n_block_hashes = columns.block_count;
    message.tokens_hashes = columns.tokens;
    message.n_tokens_hashes = columns.token_count;
    return pack(&message, out);
}

/* ---- decode ------------------------------------------------------------------ */

/* How far the columns have been read. */
struct progress {
    size_t parents;
    size_t blocks;
    size_t tokens;
};

static kvb_status read_form(uint32_t form, struct kvb_router_event *event)
{
    unsigned kind = 0;
    unsigned tier = 0;

    if (form > last_form) {
        return KVB_BAD_INPUT;
    }
    KVB_TRY(kvb_proto_number_find(wire_kinds, KVB_COUNT_OF(wire_kinds), form & kind_mask, &kind));
    KVB_TRY(kvb_proto_number_find(
        kvb_proto_tiers, KVB_COUNT_OF(kvb_proto_tiers), (form >> tier_shift) & tier_mask, &tier));
    event->kind = (enum kvb_router_kind)kind;
    event->tier = (enum kvb_tier)tier;
    event->has_parent = (form & parent_bit) != 0;
    if (event->kind != KVB_ROUTER_STORED && event->has_parent) {
        return KVB_BAD_INPUT;
    }
    return KVB_OK;
}

static kvb_status
read_parent(const Kvb__KvEventBatch *message, struct progress *done, struct kvb_router_event *event)
{
    if (!event->has_parent) {
        return KVB_OK;
    }
    if (done->parents == message->n_parents) {
        return KVB_BAD_INPUT;
    }
    event->parent.value = message->parents[done->parents++];
    return KVB_OK;
}

/* Which part of the columns is the event's: tokens of stored blocks go beside
 * their names, zeros beside removed ones. */
static kvb_status read_blocks(
    const Kvb__KvEventBatch *message, struct progress *done, const struct kvb_router_event *event,
    struct kvb_router_batch *batch)
{
    const size_t count = event->block_count;

    if (count > message->n_block_hashes - done->blocks) {
        return KVB_BAD_INPUT;
    }
    if (count == 0) {
        return KVB_OK; /* the arrays may be NULL */
    }
    kvb_tokens_hash *tokens = batch->tokens + done->blocks;
    done->blocks += count;
    switch (event->kind) {
    case KVB_ROUTER_STORED:
        if (count > message->n_tokens_hashes - done->tokens) {
            return KVB_BAD_INPUT;
        }
        memcpy(tokens, message->tokens_hashes + done->tokens, count * sizeof *tokens);
        done->tokens += count;
        return KVB_OK;
    case KVB_ROUTER_REMOVED:
        memset(tokens, 0, count * sizeof *tokens);
        return KVB_OK;
    case KVB_ROUTER_CLEARED:
        break;
    }
    return KVB_BAD_INPUT; /* a clear names no blocks */
}

static kvb_status read_event(
    const Kvb__KvEventBatch *message, size_t at, struct progress *done,
    struct kvb_router_batch *batch)
{
    struct kvb_router_event event = {
        .event_id = message->first_event_id + at,
        .block_at = (uint32_t)done->blocks,
        .block_count = message->block_counts[at],
    };

    KVB_TRY(read_form(message->forms[at], &event));
    if (event.kind == KVB_ROUTER_CLEARED && event.tier != KVB_TIER_DEVICE) {
        return KVB_BAD_INPUT;
    }
    KVB_TRY(read_parent(message, done, &event));
    KVB_TRY(read_blocks(message, done, &event, batch));
    batch->events[at] = event;
    return KVB_OK;
}

static kvb_status reserve(const Kvb__KvEventBatch *message, struct kvb_router_batch *batch)
{
    KVB_TRY(kvb_array_reserve(
        &batch->events, &batch->event_capacity, message->n_forms, sizeof *batch->events,
        kvb_max_router_events));
    KVB_TRY(kvb_array_reserve(
        &batch->blocks, &batch->block_capacity, message->n_block_hashes, sizeof *batch->blocks,
        kvb_max_router_blocks));
    return kvb_array_reserve(
        &batch->tokens, &batch->token_capacity, message->n_block_hashes, sizeof *batch->tokens,
        kvb_max_router_blocks);
}

/* What is wrong without looking at a single event. */
static bool is_plausible(const Kvb__KvEventBatch *message)
{
    uint64_t last_id = 0;

    return message->epoch.len == sizeof(kvb_epoch) && message->worker_id <= INT64_MAX &&
           message->n_forms > 0 && message->n_forms == message->n_block_counts &&
           !__builtin_add_overflow(message->first_event_id, message->n_forms - 1, &last_id);
}

static kvb_status read_columns(const Kvb__KvEventBatch *message, struct kvb_router_batch *batch)
{
    struct progress done = { 0 };

    for (size_t i = 0; i < message->n_forms; i++) {
        KVB_TRY(read_event(message, i, &done, batch));
    }
    if (done.parents != message->n_parents || done.blocks != message->n_block_hashes ||
        done.tokens != message->n_tokens_hashes) {
        return KVB_BAD_INPUT;
    }
    if (done.blocks > 0) {
        memcpy(batch->blocks, message->block_hashes, done.blocks * sizeof *batch->blocks);
    }
    batch->event_count = message->n_forms;
    batch->block_count = done.blocks;
    return KVB_OK;
}

static kvb_status read_message(const Kvb__KvEventBatch *message, struct kvb_router_batch *batch)
{
    if (!is_plausible(message)) {
        return KVB_BAD_INPUT;
    }
    KVB_TRY(reserve(message, batch));
    KVB_TRY(read_columns(message, batch));
    batch->worker_id = message->worker_id;
    batch->dp_rank = message->dp_rank;
    batch->has_epoch = true;
    memcpy(batch->epoch.bytes, message->epoch.data, sizeof batch->epoch.bytes);
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
    KVB_TRY(kvb_proto_guard(bytes, max_fields));

    struct kvb_proto_memory memory = kvb_proto_memory_of(&memory);
    Kvb__KvEventBatch *message =
        kvb__kv_event_batch__unpack(&memory.allocator, bytes.len, bytes.data);
    if (!message) {
        return kvb_proto_refusal(&memory);
    }
    const kvb_status status = read_message(message, batch);
    kvb__kv_event_batch__free_unpacked(message, &memory.allocator);
    return status;
}

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
