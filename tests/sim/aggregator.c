#include "sim.h"

#include <stdlib.h>
#include <string.h>

/* A simulated aggregator: it carries out the actions of replica/turn.h with mailboxes in place of
 * NATS, and virtual time. */

/* ---- NATS ---- */

static void read_facts(struct sim_aggregator *aggregator, struct kvb_replica_facts *out_facts)
{
    /* A frozen server delivers nothing until it continues.  When this process goes on after a
     * pause, nats.c's thread has read nothing yet, echoes neither; it reads until the next turn. */
    if (!aggregator->world->broker.is_frozen && !aggregator->has_unread) {
        aggregator->echo = aggregator->echo_sent;
    }
    *out_facts = (struct kvb_replica_facts){
        .now_ns = aggregator->world->now_ns,
        .is_connected = aggregator->nats.is_connected,
        .connects = aggregator->nats.connects,
        .echo_returned = aggregator->echo,
        .echo_applied = aggregator->echo,
        .lag_ns = 0,  /* each turn takes all messages that are there */
        .dropped = 0, /* the server drops messages, and reports it to nobody */
    };
}

static void
send_request(struct sim_aggregator *aggregator, const struct kvb_follower_request *request)
{
    sim_note(
        aggregator->world, "aggregator %zu asks worker %lu rank %u: kind %d from %lu to %lu",
        aggregator->number, request->id.worker_id, request->id.dp_rank, (int)request->request.kind,
        request->request.from_id, request->request.to_id);
    sim_request(aggregator->world, aggregator->number, request);
}

/* ---- Messages ---- */

static void apply_message(struct sim_world *world, size_t number, const struct sim_message *message)
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

/* Of events and answers, either may come first. */
static bool take_message(struct sim_aggregator *aggregator)
{
    struct sim_world *world = aggregator->world;
    const bool answers_first = kvb_random_below(&aggregator->rng, 2) == 0;
    struct sim_mailbox *boxes[2] = { &aggregator->received, &aggregator->answers };

    if (aggregator->has_unread) {
        return false;
    }
    struct sim_message *message = sim_take(world, boxes[answers_first]);
    if (!message) {
        message = sim_take(world, boxes[!answers_first]);
    }
    if (!message) {
        return false;
    }
    apply_message(world, aggregator->number, message);
    sim_remember(world, message);
    return true;
}

/* Unread, in the connection, for a second or longer. */
static bool is_kept_waiting(const struct sim_aggregator *aggregator)
{
    const struct sim_world *world = aggregator->world;
    const struct sim_message *oldest = aggregator->received.first;

    return aggregator->has_unread && oldest && sim_has_arrived(world, oldest) &&
           world->now_ns >= oldest->due_ns + KVB_NS_PER_S;
}

/* What a frozen server holds never came to this process: a missing echo tells it, which is sent
 * within half a second, in a process that is not paused, and awaited for one and a half. */
static bool is_held_back(const struct sim_aggregator *aggregator)
{
    static const uint64_t told_ns = 2 * KVB_NS_PER_S;
    const struct sim_world *world = aggregator->world;
    const struct sim_broker *broker = &world->broker;

    return broker->is_frozen && aggregator->received.first &&
           aggregator->went_on_ns < broker->frozen_ns &&
           world->now_ns > broker->frozen_ns + told_ns + 2 * sim_step_ns;
}

/* There are no queries: sim_check_lists() reads the lists itself.  But an answer of this moment may
 * be called EXACT only if it does not lack what came long ago. */
static void answer_queries(struct sim_aggregator *aggregator)
{
    const bool is_after_pause = is_kept_waiting(aggregator);

    if (!is_after_pause && !is_held_back(aggregator)) {
        return;
    }
    for (size_t i = 0; i < kvb_followers_limit(aggregator->followers); i++) {
        const struct kvb_follower *follower = kvb_followers_at(aggregator->followers, i);
        if (follower && follower->state == KVB_STREAM_EXACT) {
            sim_fail(
                aggregator->world, "aggregator %zu: an answer %s is EXACT as of before it",
                aggregator->number, is_after_pause ? "after a pause" : "of a time without NATS");
        }
    }
}

/* ---- Start, stop and crash ---- */

void sim_aggregator_begin(struct sim_world *world, size_t number)
{
    struct sim_aggregator *aggregator = &world->aggregators[number];
    const struct kvb_prefix_index_options index = { .max_nodes = 4096, .max_slots = 64 };

    if (kvb_prefix_index_new(&index, &aggregator->index) != KVB_OK) {
        abort();
    }
    const struct kvb_followers_options followers = { .max_streams = 64,
                                                     .heartbeat_ms = 1000,
                                                     .forget_ms = 600000,
                                                     .sends_requests = aggregator->sends_requests,
                                                     .max_window_blocks = SIZE_MAX,
                                                     .index = aggregator->index };
    if (kvb_followers_new(&followers, &aggregator->followers) != KVB_OK) {
        abort();
    }
    aggregator->is_up = true;
    aggregator->life++;
    aggregator->began_ns = world->now_ns;
    aggregator->nats = (struct sim_client){ .try_ns = world->now_ns };
    aggregator->world = world;
    aggregator->number = number;
    aggregator->echo = 0;
    aggregator->echo_sent = 0;
    aggregator->has_unread = false;
    aggregator->turn = (struct kvb_replica_turn){ .followers = aggregator->followers,
                                                  .next_tick_ns = aggregator->turn.next_tick_ns };
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
    sim_empty(world, &aggregator->received);
    sim_empty(world, &aggregator->answers);
    sim_empty(world, &aggregator->requests_sent);
    sim_empty(world, &aggregator->past);
    aggregator->past_count = 0;
    memset(aggregator->was_lied_to, 0, sizeof aggregator->was_lied_to);
}

static void take_turn(struct sim_aggregator *aggregator)
{
    struct kvb_replica_facts facts;
    struct kvb_replica_action action;

    read_facts(aggregator, &facts);
    while (kvb_replica_next(&aggregator->turn, &facts, &action)) {
        switch (action.kind) {
        case KVB_REPLICA_SEND_ECHO:
            aggregator->echo_sent = action.number;
            kvb_replica_echo_sent(&aggregator->turn, action.number, &facts);
            break;
        case KVB_REPLICA_APPLY_MESSAGES:
            while (take_message(aggregator)) { /* ends: no time passes, and nothing is sent */
            }
            break;
        case KVB_REPLICA_ANSWER_QUERIES:
            answer_queries(aggregator);
            break;
        case KVB_REPLICA_SEND_REQUEST:
            send_request(aggregator, &action.request);
            break;
        case KVB_REPLICA_TICK:
            sim_check_lists(aggregator->world, aggregator->number, true);
            break;
        }
        read_facts(aggregator, &facts);
    }
    aggregator->has_unread = false;
}

void sim_aggregator_turn(struct sim_world *world, size_t number)
{
    struct sim_aggregator *aggregator = &world->aggregators[number];

    if (!aggregator->is_up && world->now_ns >= aggregator->up_ns) {
        sim_aggregator_begin(world, number);
    }
    if (aggregator->is_up && !aggregator->is_frozen) {
        take_turn(aggregator);
    }
}
