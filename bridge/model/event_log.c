#include "model/event_log.h"

#include "core/limits.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

enum { first_capacity = 64 };

struct logged_event {
    enum kvb_router_kind kind;
    enum kvb_tier tier;
    bool has_parent;
    uint32_t block_count;
    kvb_block_hash parent;
    uint64_t block_at; /* number of its first block since the log began; mod capacity: its index */
};

struct logged_block {
    kvb_block_hash block;
    kvb_tokens_hash tokens;
};

struct kvb_event_log {
    size_t max_blocks;
    struct logged_event *events; /* owned; ring, a power of two */
    size_t event_capacity;
    uint64_t event_at; /* number of the oldest event since the log began */
    size_t event_count;
    struct logged_block *blocks; /* owned; ring, a power of two */
    size_t block_capacity;
    uint64_t block_end; /* number of the next block */
    uint64_t first_id;  /* of the oldest event */
};

kvb_status kvb_event_log_new(size_t max_blocks, struct kvb_event_log **out_log)
{
    if (max_blocks == 0 || max_blocks > kvb_max_router_blocks) {
        return KVB_TOO_LARGE;
    }
    struct kvb_event_log *log = calloc(1, sizeof *log);
    if (!log) {
        return KVB_NO_MEMORY;
    }
    log->max_blocks = max_blocks;
    *out_log = log;
    return KVB_OK;
}

void kvb_event_log_free(struct kvb_event_log *log)
{
    if (!log) {
        return;
    }
    free(log->events);
    free(log->blocks);
    free(log);
}

void kvb_event_log_clear(struct kvb_event_log *log)
{
    log->event_count = 0;
}

static struct logged_event *event_at(const struct kvb_event_log *log, size_t number)
{
    return &log->events[(log->event_at + number) & (log->event_capacity - 1)];
}

static uint64_t first_block(const struct kvb_event_log *log)
{
    return log->event_count > 0 ? event_at(log, 0)->block_at : log->block_end;
}

static void forget_oldest_event(struct kvb_event_log *log)
{
    log->event_at++;
    log->event_count--;
    log->first_id++;
}

/* Doubles a ring and moves items from .. to - 1 to their new indexes. */
static kvb_status
double_ring(void *ring, size_t *capacity, size_t item_bytes, uint64_t from, uint64_t to)
{
    const size_t bigger = *capacity > 0 ? 2 * *capacity : first_capacity;
    uint8_t *old = NULL;
    uint8_t *fresh = calloc(bigger, item_bytes);

    if (!fresh) {
        return KVB_NO_MEMORY;
    }
    memcpy(&old, ring, sizeof old);
    assert(*capacity > 0 || from == to); /* an empty ring has nothing to move */
    for (uint64_t at = from; at < to; at++) {
        memcpy(fresh + (at % bigger) * item_bytes, old + (at % *capacity) * item_bytes, item_bytes);
    }
    free(old);
    memcpy(ring, &fresh, sizeof fresh);
    *capacity = bigger;
    return KVB_OK;
}

/* Each loop ends, because each iteration drops an event or doubles a ring. */
static kvb_status make_log_room(struct kvb_event_log *log, size_t blocks)
{
    while (log->event_count > 0 && (log->event_count >= log->max_blocks ||
                                    log->block_end - first_block(log) + blocks > log->max_blocks)) {
        forget_oldest_event(log);
    }
    while (log->event_count + 1 > log->event_capacity) {
        KVB_TRY(double_ring(
            &log->events, &log->event_capacity, sizeof *log->events, log->event_at,
            log->event_at + log->event_count));
    }
    while (log->block_end - first_block(log) + blocks > log->block_capacity) {
        KVB_TRY(double_ring(
            &log->blocks, &log->block_capacity, sizeof *log->blocks, first_block(log),
            log->block_end));
    }
    return KVB_OK;
}

static void put_logged_event(
    struct kvb_event_log *log, const struct kvb_router_batch *batch,
    const struct kvb_router_event *event)
{
    *event_at(log, log->event_count) = (struct logged_event){ .kind = event->kind,
                                                              .tier = event->tier,
                                                              .has_parent = event->has_parent,
                                                              .block_count = event->block_count,
                                                              .parent = event->parent,
                                                              .block_at = log->block_end };
    for (size_t i = 0; i < event->block_count; i++) {
        log->blocks[log->block_end++ & (log->block_capacity - 1)] =
            (struct logged_block){ .block = batch->blocks[event->block_at + i],
                                   .tokens = batch->tokens[event->block_at + i] };
    }
    log->event_count++;
}

void kvb_event_log_add_event(
    struct kvb_event_log *log, const struct kvb_router_batch *batch,
    const struct kvb_router_event *event)
{
    if (log->event_count > 0 && event->event_id != log->first_id + log->event_count) {
        kvb_event_log_clear(log);
    }
    if (event->block_count > log->max_blocks || make_log_room(log, event->block_count) != KVB_OK) {
        kvb_event_log_clear(log);
        return;
    }
    if (log->event_count == 0) {
        log->first_id = event->event_id;
    }
    put_logged_event(log, batch, event);
}

void kvb_event_log_add(struct kvb_event_log *log, const struct kvb_router_batch *batch)
{
    for (size_t i = 0; i < batch->event_count; i++) {
        kvb_event_log_add_event(log, batch, &batch->events[i]);
    }
}

bool kvb_event_log_range(
    const struct kvb_event_log *log, uint64_t *out_first_id, uint64_t *out_last_id)
{
    *out_first_id = log->first_id;
    *out_last_id = log->first_id + log->event_count - 1;
    return log->event_count > 0;
}

static kvb_status
copy_logged_event(const struct kvb_event_log *log, size_t number, struct kvb_router_batch *out)
{
    const struct logged_event *logged = event_at(log, number);
    const struct kvb_router_event event = { .kind = logged->kind,
                                            .tier = logged->tier,
                                            .has_parent = logged->has_parent,
                                            .event_id = log->first_id + number,
                                            .parent = logged->parent };

    KVB_TRY(kvb_router_batch_add_event(out, &event));
    for (uint64_t i = 0; i < logged->block_count; i++) {
        const struct logged_block *block =
            &log->blocks[(logged->block_at + i) & (log->block_capacity - 1)];
        KVB_TRY(kvb_router_batch_add_block(out, block->block, block->tokens));
    }
    return KVB_OK;
}

kvb_status kvb_event_log_read(
    const struct kvb_event_log *log, uint64_t from_id, uint64_t to_id, size_t max_blocks,
    struct kvb_router_batch *out, uint64_t *out_next_id)
{
    size_t blocks = 0;
    uint64_t id = from_id;

    while (id <= to_id) {
        const size_t number = (size_t)(id - log->first_id);
        /* the event itself counts as one block: an event may have none */
        blocks += event_at(log, number)->block_count + 1;
        if (blocks > max_blocks && id > from_id) {
            break;
        }
        KVB_TRY(copy_logged_event(log, number, out));
        id++;
    }
    *out_next_id = id;
    return KVB_OK;
}
