#include "sim.h"

#include <stdlib.h>
#include <string.h>

uint64_t sim_spread(uint64_t name)
{
    name ^= name >> 31;
    name *= UINT64_C(0x9e3779b97f4a7c15);
    return name ^ name >> 29;
}

static uint64_t short_epoch(const kvb_epoch *epoch)
{
    uint64_t first = 0;
    memcpy(&first, epoch->bytes, sizeof first);
    return first;
}

/* The record of what was published earlier. */
static void compare(struct sim_story *story, uint64_t event_id)
{
    for (size_t i = story->count; i-- > 0;) {
        const struct sim_moment *moment = &story->moments[i];
        if (moment->event_id == event_id && moment->epoch == story->epoch) {
            story->has_two_truths |= moment->sum != story->sum;
            return;
        }
    }
}

static void push(struct sim_story *story, uint64_t event_id)
{
    if (event_id <= story->advertised_to) {
        compare(story, event_id);
    }
    if (story->count == story->capacity) {
        story->capacity = story->capacity ? 2 * story->capacity : 1024;
        story->moments = realloc(story->moments, story->capacity * sizeof *story->moments);
        if (!story->moments) {
            abort();
        }
    }
    story->moments[story->count++] =
        (struct sim_moment){ .epoch = story->epoch, .event_id = event_id, .sum = story->sum };
}

static size_t find(const struct sim_story *story, uint64_t block)
{
    size_t at = 0;

    while (at < story->held_count && story->held[at] != block) {
        at++;
    }
    return at;
}

bool sim_story_holds(const struct sim_story *story, uint64_t block)
{
    return find(story, block) < story->held_count;
}

static void hold(struct sim_story *story, uint64_t block, bool is_held)
{
    const size_t at = find(story, block);

    if (is_held && at == story->held_count) {
        if (at == sim_advertised) {
            abort(); /* more than the engines of this world can hold */
        }
        story->held[story->held_count++] = block;
        story->sum += sim_spread(block);
    } else if (!is_held && at < story->held_count) {
        story->held[at] = story->held[--story->held_count];
        story->sum -= sim_spread(block);
    }
}

bool sim_story_is_of(const struct sim_story *story, const kvb_epoch *epoch)
{
    return story->epoch == short_epoch(epoch);
}

void sim_story_open(struct sim_story *story, const kvb_epoch *epoch, uint64_t first_id)
{
    story->epoch = short_epoch(epoch);
    story->advertised_to = 0;
    story->held_count = 0; /* a reader starts with nothing */
    story->sum = 0;
    push(story, first_id - 1);
}

static void note_what_was_advertised(struct sim_story *story)
{
    story->advertised_to = 0;
    for (size_t i = 0; i < story->count; i++) {
        const struct sim_moment *moment = &story->moments[i];
        if (moment->epoch == story->epoch && moment->event_id > story->advertised_to) {
            story->advertised_to = moment->event_id;
        }
    }
}

void sim_story_restore(struct sim_story *story, const struct kvb_stream *stream, bool is_same_epoch)
{
    const struct kvb_sync_request request = { .kind = KVB_SYNC_SNAPSHOT };
    const kvb_epoch epoch = kvb_stream_epoch(stream);
    struct kvb_router_batch events = { 0 };
    struct kvb_sync_reply reply = { .is_last = false };
    struct kvb_sync_job job;

    story->epoch = short_epoch(&epoch);
    story->held_count = 0;
    story->sum = 0;
    if (is_same_epoch) {
        note_what_was_advertised(story);
    }
    kvb_sync_job_begin(&job, stream, &request);
    while (!reply.is_last) {
        if (kvb_sync_job_step(&job, stream, sim_advertised, &events, &reply) != KVB_OK) {
            abort();
        }
        for (size_t at = 0; at < events.block_count; at++) {
            hold(story, events.blocks[at].value, true);
        }
    }
    kvb_router_batch_done(&events);
}

void sim_story_take(struct sim_story *story, const struct kvb_router_batch *events)
{
    if (events->event_count > 0) {
        story->epoch = short_epoch(&events->epoch);
    }
    for (size_t i = 0; i < events->event_count; i++) {
        const struct kvb_router_event *event = &events->events[i];
        if (event->kind == KVB_ROUTER_CLEARED) {
            story->held_count = 0;
            story->sum = 0;
        }
        for (size_t at = event->block_at; at < event->block_at + event->block_count; at++) {
            hold(story, events->blocks[at].value, event->kind == KVB_ROUTER_STORED);
        }
        push(story, event->event_id);
    }
}

bool sim_story_sum(
    const struct sim_story *story, const kvb_epoch *epoch, uint64_t event_id, uint64_t *out_sum)
{
    const uint64_t wanted = short_epoch(epoch);

    for (size_t i = story->count; i-- > 0;) {
        const struct sim_moment *moment = &story->moments[i];
        if (moment->event_id == event_id && moment->epoch == wanted) {
            *out_sum = moment->sum;
            return true;
        }
    }
    return false;
}
