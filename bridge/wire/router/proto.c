#include "wire/router/proto.h"

#include "core/limits.h"
#include "core/own.h"
#include "kvbridge.pb-c.h"
#include "wire/protobuf/number.h"
#include "wire/router/form.h"
#include "wire/router/json.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

static const uint32_t wire_kinds[] = {
    [KVB_ROUTER_STORED] = kvb_form_stored,
    [KVB_ROUTER_REMOVED] = kvb_form_removed,
    [KVB_ROUTER_CLEARED] = kvb_form_cleared,
};

/* protobuf-c gets pointers to the columns, and copies each in one piece. */
_Static_assert(sizeof(kvb_block_hash) == sizeof(uint64_t), "a block hash is one fixed64");
_Static_assert(sizeof(kvb_tokens_hash) == sizeof(uint64_t), "a tokens hash is one fixed64");

/* A block has two hashes of 8 bytes.  An event has a form, a count of two bytes and a parent:
 * less than that. */
enum { max_head_bytes = 128, block_bytes = 16 };

size_t kvb_router_proto_room(size_t max_bytes)
{
    return (max_bytes - max_head_bytes) / block_bytes;
}

/* ---- encode ------------------------------------------------------------------ */

/* Columns of up to 8 KiB, enough for the events of one turn, are not allocated. */
enum { short_columns = 1024 };

/* The columns that the batch does not have in this form, in one piece of memory. */
struct columns {
    uint64_t *owned;   /* that piece; NULL: the caller owns it */
    uint64_t *parents; /* at its beginning */
    uint64_t *tokens;
    uint32_t *forms;
    uint32_t *counts;
    size_t event_count, parent_count, block_count, token_count;
};

static void drop_event_columns(struct columns *columns)
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
    columns->forms = (uint32_t *)(memory + count + blocks); /* two u32 columns in one of u64 */
    columns->counts = columns->forms + count;
    return KVB_OK;
}

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

static void add_event_columns(
    struct columns *columns, const struct kvb_router_event *event, const kvb_tokens_hash *tokens)
{
    const size_t at = columns->event_count++;
    const uint32_t form = form_of(event);

    columns->forms[at] = form;
    columns->counts[at] = event->block_count;
    if (form & kvb_form_parent_bit) {
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

/* Casts const away: protobuf-c only reads these, but its types are not const. */
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
    KVB_OWN(drop_event_columns) struct columns columns = { 0 };
    const struct kvb_router_event *events = batch->events + at;
    uint64_t room[short_columns]; /* not initialised: only the used part is written */

    assert(batch->has_epoch && count > 0 && at + count <= batch->event_count);
    KVB_TRY(reserve_columns(&columns, events, count, room));
    for (size_t i = 0; i < count; i++) {
        assert(events[i].event_id == events[0].event_id + i);
        assert(events[i].block_at == events[0].block_at + columns.block_count);
        add_event_columns(&columns, &events[i], batch->tokens);
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
