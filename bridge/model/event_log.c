#include "model/event_log.h"

#include "core/limits.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

enum { first_capacity = 8 };

struct kvb_event_log {
    size_t max_blocks;
    struct kvb_router_event *events; /* owned; ring, a power of two; block_at: index in `blocks` */
    size_t event_capacity;
    uint64_t event_at; /* number of the oldest event since the log began */
    size_t event_count;
    uint64_t range_at;       /* number of the first event of the range */
    uint64_t next_id;        /* of the next event; 0: any, because the range is empty */
    kvb_block_hash *blocks;  /* owned; ring, a power of two */
    kvb_tokens_hash *tokens; /* owned; parallel to blocks */
    size_t block_capacity;
    size_t block_next;  /* index behind the newest event's blocks */
    size_t block_count; /* from the oldest event's first block to there, unused ones included */
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
    free(log->tokens);
    free(log);
}

/* The numbers of the dropped events are not used again. */
void kvb_event_log_clear(struct kvb_event_log *log)
{
    log->event_at += log->event_count;
    log->event_count = 0;
    log->range_at = log->event_at;
    log->next_id = 0;
    log->block_next = log->block_count = 0;
}

void kvb_event_log_begin_range(struct kvb_event_log *log)
{
    log->range_at = log->event_at + log->event_count;
    log->next_id = 0;
}

static size_t event_index(const struct kvb_event_log *log, uint64_t number)
{
    return (size_t)number & (log->event_capacity - 1);
}

static struct kvb_router_event *event_at(const struct kvb_event_log *log, size_t number)
{
    return &log->events[event_index(log, log->event_at + number)];
}

/* Events before the range. */
static size_t count_before_range(const struct kvb_event_log *log)
{
    return (size_t)(log->range_at - log->event_at);
}

/* The ring's end does not cut the blocks of an event: they begin at index 0 instead. */
static size_t unused_before(const struct kvb_event_log *log, size_t blocks)
{
    const size_t left = log->block_capacity - log->block_next;

    return blocks > left ? left : 0;
}

static size_t blocks_with(const struct kvb_event_log *log, size_t blocks)
{
    return log->block_count + unused_before(log, blocks) + blocks;
}

/* How many blocks the oldest event takes, with those unused behind it. */
static size_t span_of_oldest(const struct kvb_event_log *log)
{
    const struct kvb_router_event *oldest = event_at(log, 0);
    const size_t end = oldest->block_at + oldest->block_count;

    if (log->event_count == 1) {
        return log->block_count;
    }
    return event_at(log, 1)->block_at == (end & (log->block_capacity - 1))
               ? oldest->block_count
               : log->block_capacity - oldest->block_at;
}

static void forget_oldest_event(struct kvb_event_log *log)
{
    log->block_count -= span_of_oldest(log);
    /* The range may begin with this event. */
    log->range_at += log->range_at == log->event_at;
    log->event_at++;
    log->event_count--;
    if (log->event_count == 0) {
        log->block_next = 0;
    }
}

/* Doubles the rings.  An event whose index in the larger rings is another one moves there: to the
 * upper half, which is free. */
static kvb_status double_events(struct kvb_event_log *log)
{
    const size_t bigger = log->event_capacity > 0 ? 2 * log->event_capacity : first_capacity;
    struct kvb_router_event *events = realloc(log->events, bigger * sizeof *events);

    if (!events) {
        return KVB_NO_MEMORY;
    }
    log->events = events;
    for (uint64_t at = log->event_at; at < log->event_at + log->event_count; at++) {
        events[(size_t)at & (bigger - 1)] = events[event_index(log, at)];
    }
    log->event_capacity = bigger;
    return KVB_OK;
}

/* Copies the blocks of all events to the beginning of larger rings. */
static void move_blocks(struct kvb_event_log *log, kvb_block_hash *blocks, kvb_tokens_hash *tokens)
{
    size_t next = 0;

    for (size_t i = 0; i < log->event_count; i++) {
        struct kvb_router_event *event = event_at(log, i);
        if (event->block_count > 0) {
            memcpy(
                blocks + next, log->blocks + event->block_at, event->block_count * sizeof *blocks);
            memcpy(
                tokens + next, log->tokens + event->block_at, event->block_count * sizeof *tokens);
        }
        /* Unused blocks at the old end are left out. */
        event->block_at = (uint32_t)next;
        next += event->block_count;
    }
    log->block_next = log->block_count = next;
}

static kvb_status double_blocks(struct kvb_event_log *log)
{
    const size_t bigger = log->block_capacity > 0 ? 2 * log->block_capacity : first_capacity;
    kvb_block_hash *blocks = malloc(bigger * sizeof *blocks);
    kvb_tokens_hash *tokens = malloc(bigger * sizeof *tokens);

    if (!blocks || !tokens) {
        free(blocks);
        free(tokens);
        return KVB_NO_MEMORY;
    }
    move_blocks(log, blocks, tokens);
    free(log->blocks);
    free(log->tokens);
    log->blocks = blocks;
    log->tokens = tokens;
    log->block_capacity = bigger;
    return KVB_OK;
}

/* Each loop ends, because each iteration drops an event or doubles a ring. */
static kvb_status make_log_room(struct kvb_event_log *log, size_t blocks)
{
    while (log->event_count > 0 &&
           (log->event_count >= log->max_blocks || blocks_with(log, blocks) > log->max_blocks)) {
        forget_oldest_event(log);
    }
    while (log->event_count + 1 > log->event_capacity) {
        KVB_TRY(double_events(log));
    }
    while (blocks_with(log, blocks) > log->block_capacity) {
        KVB_TRY(double_blocks(log));
    }
    return KVB_OK;
}

[[gnu::hot]] static void put_logged_event(
    struct kvb_event_log *log, const struct kvb_router_batch *batch,
    const struct kvb_router_event *event)
{
    const size_t index = event_index(log, log->event_at + log->event_count);
    const size_t unused = unused_before(log, event->block_count);
    const size_t at = unused > 0 ? 0 : log->block_next;

    log->events[index] = *event;
    log->events[index].block_at = (uint32_t)at;
    for (size_t i = 0; i < event->block_count; i++) {
        log->blocks[at + i] = batch->blocks[event->block_at + i];
        log->tokens[at + i] = batch->tokens[event->block_at + i];
    }
    /* From here on the event owns its blocks, and those left unused before them. */
    log->block_next = (at + event->block_count) & (log->block_capacity - 1);
    log->block_count += unused + event->block_count;
    log->event_count++;
}

void kvb_event_log_add_event(
    struct kvb_event_log *log, const struct kvb_router_batch *batch,
    const struct kvb_router_event *event)
{
    /* A jump of the event ids: what is older cannot be replayed without a hole. */
    if (log->next_id != 0 && event->event_id != log->next_id) {
        kvb_event_log_clear(log);
    }
    /* An event that cannot be kept is a hole as well. */
    if (event->block_count > log->max_blocks || make_log_room(log, event->block_count) != KVB_OK) {
        kvb_event_log_clear(log);
        return;
    }
    put_logged_event(log, batch, event);
    log->next_id = event->event_id + 1;
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
    const size_t before = count_before_range(log);

    if (log->event_count == before) {
        return false;
    }
    *out_first_id = event_at(log, before)->event_id;
    *out_last_id = event_at(log, log->event_count - 1)->event_id;
    return true;
}

static kvb_status
copy_logged_event(const struct kvb_event_log *log, size_t number, struct kvb_router_batch *out)
{
    const struct kvb_router_event *event = event_at(log, number);

    KVB_TRY(kvb_router_batch_add_event(out, event));
    for (size_t i = event->block_at; i < event->block_at + event->block_count; i++) {
        KVB_TRY(kvb_router_batch_add_block(out, log->blocks[i], log->tokens[i]));
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

/* ---- Lending ---- */

size_t kvb_event_log_max_blocks(const struct kvb_event_log *log)
{
    return log->max_blocks;
}

uint64_t kvb_event_log_end(const struct kvb_event_log *log)
{
    return log->event_at + log->event_count;
}

size_t kvb_event_log_lend(
    const struct kvb_event_log *log, uint64_t number, size_t count, struct kvb_router_batch *out)
{
    if (number < log->event_at || number + count > kvb_event_log_end(log)) {
        return 0;
    }
    const size_t index = event_index(log, number);
    const size_t left = log->event_capacity - index;
    size_t end = log->events[index].block_at;
    size_t lent = 0;

    /* As long as neither ring wraps: what is lent is one piece. */
    while (lent < count && lent < left && log->events[index + lent].block_at == end) {
        end += log->events[index + lent++].block_count;
    }
    out->events = log->events + index;
    out->event_count = lent;
    out->blocks = log->blocks;
    out->tokens = log->tokens;
    out->block_count = end - out->events[0].block_at;
    return lent;
}
