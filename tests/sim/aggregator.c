#include "sim.h"

#include <stdlib.h>
#include <string.h>

/* The index thread of one aggregator: daemon/aggregator_loop.c, _intake.c and _sync.c.
 * Whoever changes those changes this. */

static const uint64_t tick_ns = 100 * KVB_NS_PER_MS;
static const uint64_t echo_gives_up_ns = 1750 * KVB_NS_PER_MS;

void sim_aggregator_begin(struct sim_world *world, size_t number)
{
    struct sim_aggregator *aggregator = &world->aggregators[number];
    const struct kvb_prefix_index_options index = { .max_nodes = 4096, .max_slots = 64 };

    if (kvb_prefix_index_new(&index, &aggregator->index) != KVB_OK) {
        abort();
    }
    const struct kvb_followers_options followers = { .max_streams = 8,
                                                     .heartbeat_ms = 1000,
                                                     .forget_ms = 600000,
                                                     .asks = aggregator->asks,
                                                     .max_window_blocks = SIZE_MAX,
                                                     .index = aggregator->index };
    if (kvb_followers_new(&followers, &aggregator->followers) != KVB_OK) {
        abort();
    }
    aggregator->is_up = true;
    aggregator->life++;
    aggregator->began_ns = world->now_ns;
    aggregator->nats = (struct sim_client){ .try_ns = world->now_ns };
    aggregator->was_connected = false;
    aggregator->connects_seen = 0;
    sim_note(world, "aggregator %zu begins", number);
}

void sim_aggregator_end(struct sim_world *world, size_t number)
{
    struct sim_aggregator *aggregator = &world->aggregators[number];
    struct kvb_index_counters counters = { 0 };

    kvb_followers_free(aggregator->followers);
    aggregator->followers = NULL;
    if (aggregator->index) {
        kvb_prefix_index_count(aggregator->index, &counters);
    }
    if (counters.memberships != 0) {
        sim_fail(world, "aggregator %zu leaves a list behind", number);
    }
    kvb_prefix_index_free(aggregator->index);
    aggregator->index = NULL;
    aggregator->is_up = false;
    aggregator->nats.is_connected = false;
    sim_empty(world, &aggregator->heard);
    sim_empty(world, &aggregator->answers);
    sim_empty(world, &aggregator->asks_sent);
    sim_empty(world, &aggregator->past);
    aggregator->past_count = 0;
    memset(aggregator->was_lied_to, 0, sizeof aggregator->was_lied_to);
}

/* An echo is sent twice a second, and missed after 1.5 s. */
static bool hears_itself(const struct sim_world *world)
{
    return !world->broker.is_frozen || world->now_ns < world->broker.frozen_ns + echo_gives_up_ns;
}

static void watch_nats(struct sim_world *world, struct sim_aggregator *aggregator)
{
    const bool is_connected = aggregator->nats.is_connected && hears_itself(world);
    const uint64_t connects = aggregator->nats.connects;
    const bool was_replaced = connects != aggregator->connects_seen;

    if (aggregator->was_connected && (!is_connected || was_replaced)) {
        kvb_followers_nats_away(aggregator->followers, world->now_ns);
    }
    if (is_connected && (!aggregator->was_connected || was_replaced)) {
        kvb_followers_nats_back(aggregator->followers, world->now_ns);
    }
    aggregator->was_connected = is_connected;
    aggregator->connects_seen = connects;
}

static void take_message(struct sim_world *world, size_t number, const struct sim_message *message)
{
    struct sim_aggregator *aggregator = &world->aggregators[number];
    struct kvb_followers *followers = aggregator->followers;
    const uint64_t now_ns = world->now_ns;
    const struct kvb_stream_id id = { .name_space = "n",
                                      .component = "c",
                                      .worker_id = sim_worker_of(world, message->stream_number),
                                      .dp_rank = sim_rank_of(world, message->stream_number) };
    kvb_status status = KVB_OK;

    aggregator->dirty |= UINT64_C(1) << message->stream_number;
    if (message->kind == SIM_EVENTS) {
        sim_note(
            world, "aggregator %zu stream %u: %zu events up to %lu", number, message->stream_number,
            message->events.event_count,
            message->events.events[message->events.event_count - 1].event_id);
        status = kvb_followers_apply(followers, &id, &message->events, now_ns);
    } else if (message->kind == SIM_BEAT) {
        sim_note(
            world, "aggregator %zu stream %u: heartbeat at %lu", number, message->stream_number,
            message->beat.last_id);
        status = kvb_followers_heartbeat(followers, &id, &message->beat, now_ns);
    } else {
        sim_note(
            world, "aggregator %zu stream %u: answer %d chunk %u", number, message->stream_number,
            (int)message->reply.answer, message->reply.chunk);
        kvb_followers_reply(followers, message->token, &message->reply, now_ns);
    }
    if (status != KVB_OK) {
        sim_fail(world, "a follower refuses a message: %s", kvb_status_name(status));
    }
    sim_check_lists(world, number, false);
}

/* Two subscriptions, two threads of nats.c: whoever is quicker. */
static void take_messages(struct sim_world *world, size_t number)
{
    struct sim_aggregator *aggregator = &world->aggregators[number];

    for (;;) {
        const bool answers_first = kvb_random_below(&aggregator->dice, 2) == 0;
        struct sim_mailbox *boxes[2] = { &aggregator->heard, &aggregator->answers };
        struct sim_message *message = sim_take(world, boxes[answers_first]);
        if (!message) {
            message = sim_take(world, boxes[!answers_first]);
        }
        if (!message) {
            return;
        }
        take_message(world, number, message);
        sim_remember(world, message);
    }
}

static void ask_bridges(struct sim_world *world, size_t number)
{
    struct sim_aggregator *aggregator = &world->aggregators[number];
    struct kvb_follower_ask ask;

    while (aggregator->nats.is_connected &&
           kvb_followers_next_ask(aggregator->followers, world->now_ns, &ask)) {
        sim_note(
            world, "aggregator %zu asks worker %lu rank %u: kind %d from %lu to %lu", number,
            ask.id.worker_id, ask.id.dp_rank, (int)ask.request.kind, ask.request.from_id,
            ask.request.to_id);
        sim_ask(world, number, &ask);
    }
}

void sim_aggregator_turn(struct sim_world *world, size_t number)
{
    struct sim_aggregator *aggregator = &world->aggregators[number];

    if (!aggregator->is_up && world->now_ns >= aggregator->up_ns) {
        sim_aggregator_begin(world, number);
    }
    if (!aggregator->is_up || aggregator->is_frozen) {
        return;
    }
    watch_nats(world, aggregator);
    take_messages(world, number);
    ask_bridges(world, number);
    if (world->now_ns >= aggregator->next_tick_ns) {
        aggregator->next_tick_ns = world->now_ns + tick_ns;
        kvb_followers_tick(aggregator->followers, world->now_ns);
        sim_check_lists(world, number, true);
    }
}
