#include "model/event_log.h"

#include "core/limits.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

enum { first_capacity = 64, count_bits = 24 };

struct logged_event {
    uint32_t kind : 2;
    uint32_t tier : 3;
    uint32_t has_parent : 1;
    uint32_t origin : 2;
    uint32_t block_count : count_bits;
    uint32_t block_at; /* low half of the number of its first block: first_block_of() */
    kvb_block_hash parent;
    uint64_t event_id;
    uint64_t wall_us;
};

static_assert(sizeof(struct logged_event) == 32, "two events in a cache line");
static_assert(
    kvb_max_router_blocks < 1 << count_bits, "block_count can count the blocks of any event");
static_assert(KVB_ORIGIN_COUNT <= 1 << 2 && KVB_LIST_COUNT <= 1 << 3, "their fields are so wide");

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
    uint64_t range_at;           /* number of the first event of the range */
    uint64_t next_id;            /* of the next event; 0: any, because the range is empty */
    struct logged_block *blocks; /* owned; ring, a power of two */
    size_t block_capacity;
    uint64_t block_end; /* number of the next block since the log began; mod capacity: its index */
    bool has_dropped;
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
    log->range_at = log->event_at;
    log->next_id = 0;
    log->has_dropped = true;
}

void kvb_event_log_begin_range(struct kvb_event_log *log)
{
    log->range_at = log->event_at + log->event_count;
    log->next_id = 0;
}

static struct logged_event *event_at(const struct kvb_event_log *log, size_t number)
{
    return &log->events[(log->event_at + number) & (log->event_capacity - 1)];
}

/* Events before the range. */
static size_t count_before_range(const struct kvb_event_log *log)
{
    return (size_t)(log->range_at - log->event_at);
}

/* The log has far less than 2^32 blocks, so the low half of the number tells it. */
static uint64_t first_block_of(const struct kvb_event_log *log, const struct logged_event *event)
{
    return log->block_end - (uint32_t)((uint32_t)log->block_end - event->block_at);
}

static uint64_t first_block(const struct kvb_event_log *log)
{
    return log->event_count > 0 ? first_block_of(log, event_at(log, 0)) : log->block_end;
}

static void forget_oldest_event(struct kvb_event_log *log)
{
    log->range_at += log->range_at == log->event_at;
    log->event_at++;
    log->event_count--;
    log->has_dropped = true;
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
    const struct kvb_router_event *event, struct kvb_event_note note)
{
    *event_at(log, log->event_count) =
        (struct logged_event){ .kind = event->kind,
                               .tier = event->tier,
                               .has_parent = event->has_parent,
                               .origin = (uint32_t)note.origin & 3U,
                               .block_count = event->block_count & ((1U << count_bits) - 1),
                               .block_at = (uint32_t)log->block_end,
                               .parent = event->parent,
                               .event_id = event->event_id,
                               .wall_us = note.wall_us };
    for (size_t i = 0; i < event->block_count; i++) {
        log->blocks[log->block_end++ & (log->block_capacity - 1)] =
            (struct logged_block){ .block = batch->blocks[event->block_at + i],
                                   .tokens = batch->tokens[event->block_at + i] };
    }
    log->event_count++;
}

void kvb_event_log_add_event(
    struct kvb_event_log *log, const struct kvb_router_batch *batch,
    const struct kvb_router_event *event, struct kvb_event_note note)
{
    if (log->next_id != 0 && event->event_id != log->next_id) {
        kvb_event_log_clear(log);
    }
    if (event->block_count > log->max_blocks || make_log_room(log, event->block_count) != KVB_OK) {
        kvb_event_log_clear(log);
        return;
    }
    put_logged_event(log, batch, event, note);
    log->next_id = event->event_id + 1;
}

void kvb_event_log_add(
    struct kvb_event_log *log, const struct kvb_router_batch *batch, struct kvb_event_note note)
{
    for (size_t i = 0; i < batch->event_count; i++) {
        kvb_event_log_add_event(log, batch, &batch->events[i], note);
    }
}

bool kvb_event_log_range(
    const struct kvb_event_log *log, uint64_t *out_first_id, uint64_t *out_last_id)
{
    const size_t before = count_before_range(log);

    if (log->event_count == before) {
        return false;
    }
    *out_first_id = event_at(log, before)->event_id;
    *out_last_id = event_at(log, log->event_count - 1)->event_id;
    return true;
}

static struct kvb_router_event router_event_of(const struct logged_event *logged)
{
    return (struct kvb_router_event){ .kind = (enum kvb_router_kind)logged->kind,
                                      .tier = (enum kvb_tier)logged->tier,
                                      .has_parent = logged->has_parent,
                                      .event_id = logged->event_id,
                                      .parent = logged->parent };
}

static kvb_status
copy_logged_event(const struct kvb_event_log *log, size_t number, struct kvb_router_batch *out)
{
    const struct logged_event *logged = event_at(log, number);
    const struct kvb_router_event event = router_event_of(logged);
    const uint64_t first = first_block_of(log, logged);

    KVB_TRY(kvb_router_batch_add_event(out, &event));
    for (uint64_t i = 0; i < logged->block_count; i++) {
        const struct logged_block *block = &log->blocks[(first + i) & (log->block_capacity - 1)];
        KVB_TRY(kvb_router_batch_add_block(out, block->block, block->tokens));
    }
    return KVB_OK;
}

kvb_status kvb_event_log_read(
    const struct kvb_event_log *log, uint64_t from_id, uint64_t to_id, size_t max_blocks,
    struct kvb_router_batch *out, uint64_t *out_next_id)
{
    const size_t before = count_before_range(log);
    const uint64_t first_id = event_at(log, before)->event_id;
    size_t blocks = 0;
    uint64_t id = from_id;

    while (id <= to_id) {
        const size_t number = before + (size_t)(id - first_id);
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

/* ---- The trace ---- */

size_t kvb_event_log_trace_count(const struct kvb_event_log *log)
{
    return log->event_count;
}

bool kvb_event_log_trace_is_whole(const struct kvb_event_log *log)
{
    return !log->has_dropped;
}

struct kvb_traced_event kvb_event_log_traced(const struct kvb_event_log *log, size_t number)
{
    const struct logged_event *logged = event_at(log, number);
    struct kvb_traced_event traced = {
        .event = router_event_of(logged),
        .note = { .origin = (enum kvb_event_origin)logged->origin, .wall_us = logged->wall_us },
        .first_block = first_block_of(log, logged),
    };

    traced.event.block_count = logged->block_count;
    return traced;
}

static const struct logged_block *
traced_block(const struct kvb_event_log *log, const struct kvb_traced_event *traced, uint32_t i)
{
    return &log->blocks[(traced->first_block + i) & (log->block_capacity - 1)];
}

kvb_block_hash kvb_event_log_traced_block(
    const struct kvb_event_log *log, const struct kvb_traced_event *traced, uint32_t i)
{
    return traced_block(log, traced, i)->block;
}

kvb_tokens_hash kvb_event_log_traced_tokens(
    const struct kvb_event_log *log, const struct kvb_traced_event *traced, uint32_t i)
{
    return traced_block(log, traced, i)->tokens;
}
