#include "sim.h"

#include "core/own.h"

#include <stdlib.h>
#include <string.h>

/* One nats-server and the connections to it.  Messages of one client reach one subscription of
 * another in order, and some may be lost. Two subscriptions (events and answers) have no common
 * order here, which is more than nats.c's one delivery thread permits. */

static const uint64_t ping_gives_up_ns = 2500 * KVB_NS_PER_MS;

static void must(kvb_status status)
{
    if (status != KVB_OK) {
        abort();
    }
}

/* ---- Messages ---- */

struct sim_message *sim_message_new(struct sim_world *world, enum sim_message_kind kind)
{
    struct sim_message *message = world->broker.spare;

    if (message) {
        world->broker.spare = message->next;
    } else {
        message = calloc(1, sizeof *message);
    }
    if (!message) {
        abort();
    }
    message->kind = kind;
    message->next = NULL;
    message->due_ns = 0;
    kvb_router_batch_reset(&message->events);
    return message;
}

void sim_give_back(struct sim_world *world, struct sim_message *message)
{
    message->next = world->broker.spare;
    world->broker.spare = message;
}

static void copy_event(
    struct sim_message *message, const struct kvb_router_batch *events,
    const struct kvb_router_event *event)
{
    must(kvb_router_batch_add_event(&message->events, event));
    for (size_t at = event->block_at; at < event->block_at + event->block_count; at++) {
        must(kvb_router_batch_add_block(&message->events, events->blocks[at], events->tokens[at]));
    }
}

static void copy_identity(struct sim_message *message, const struct kvb_router_batch *events)
{
    message->events.worker_id = events->worker_id;
    message->events.dp_rank = events->dp_rank;
    message->events.has_epoch = events->has_epoch;
    message->events.epoch = events->epoch;
}

void sim_message_copy_events(struct sim_message *message, const struct kvb_router_batch *events)
{
    copy_identity(message, events);
    for (size_t i = 0; i < events->event_count; i++) {
        copy_event(message, events, &events->events[i]);
    }
}

void sim_empty(struct sim_world *world, struct sim_mailbox *box)
{
    while (box->first) {
        struct sim_message *next = box->first->next;
        sim_give_back(world, box->first);
        box->first = next;
    }
    box->last = NULL;
}

static void put(struct sim_mailbox *box, struct sim_message *message)
{
    if (box->last && box->last->due_ns > message->due_ns) {
        message->due_ns = box->last->due_ns;
    }
    if (box->last) {
        box->last->next = message;
    } else {
        box->first = message;
    }
    box->last = message;
}

bool sim_has_arrived(const struct sim_world *world, const struct sim_message *message)
{
    const struct sim_broker *broker = &world->broker;

    return message->due_ns <= world->now_ns &&
           !(broker->is_frozen && message->due_ns > broker->frozen_ns);
}

struct sim_message *sim_take(struct sim_world *world, struct sim_mailbox *box)
{
    struct sim_message *message = box->first;

    if (!message || !sim_has_arrived(world, message)) {
        return NULL;
    }
    box->first = message->next;
    box->last = box->first ? box->last : NULL;
    message->next = NULL;
    return message;
}

/* Drops messages in flight: all of them, or those of a disconnected bridge that have not reached
 * the server. */
static void drop_flying(struct sim_world *world, struct sim_mailbox *box, const unsigned *bridge)
{
    struct sim_mailbox kept = { 0 };

    for (struct sim_message *message = box->first; message;) {
        struct sim_message *next = message->next;
        const bool is_lost =
            bridge ? message->from_bridge == *bridge && message->routed_ns > world->now_ns
                   : message->due_ns > world->now_ns;
        message->next = NULL;
        if (is_lost) {
            sim_give_back(world, message);
        } else {
            put(&kept, message);
        }
        message = next;
    }
    *box = kept;
}

/* ---- Sending ---- */

static void send(
    struct sim_world *world, size_t aggregator, struct sim_mailbox *box,
    struct sim_message *message)
{
    struct sim_aggregator *reader = &world->aggregators[aggregator];
    const struct sim_fault *slow = sim_active(world, SIM_NATS_SLOW, (unsigned)aggregator);
    uint64_t latency = kvb_random_below(&reader->rng, 12 * KVB_NS_PER_MS);

    message->routed_ns = world->now_ns + latency / 2;
    if (slow) {
        latency += kvb_random_below(&reader->rng, (uint64_t)slow->count * 60 * KVB_NS_PER_MS);
    }
    message->due_ns = world->now_ns + latency;
    message->to_aggregator = (unsigned)aggregator;
    message->aggregator_life = reader->life;
    put(box, message);
}

static bool can_receive(struct sim_world *world, size_t aggregator)
{
    const struct sim_aggregator *reader = &world->aggregators[aggregator];

    return reader->is_up && reader->nats.is_connected &&
           !sim_hits(world, SIM_DROP_MESSAGES, (unsigned)aggregator);
}

static struct sim_message *
stream_message(struct sim_world *world, size_t stream, enum sim_message_kind kind)
{
    struct sim_message *message = sim_message_new(world, kind);

    message->stream_number = (unsigned)stream;
    message->from_bridge = sim_bridge_of(world, stream);
    return message;
}

/* Flips bytes in flight. The messages have no checksum that would detect it. */
static void flip(struct sim_world *world, size_t aggregator, struct sim_message *message)
{
    struct sim_aggregator *reader = &world->aggregators[aggregator];

    if (message->events.block_count > 0 && sim_hits(world, SIM_FLIP, (unsigned)aggregator)) {
        const size_t at = kvb_random_below(&reader->rng, message->events.block_count);
        message->events.blocks[at].value ^= UINT64_C(1) << 40;
        reader->was_lied_to[message->stream_number] = true;
    }
}

static void publish_events(
    struct sim_world *world, size_t stream, size_t aggregator,
    const struct kvb_router_batch *events)
{
    const bool has_json = kvb_formats_have(world->formats, KVB_FORMAT_JSON);
    const bool has_protobuf = kvb_formats_have(world->formats, KVB_FORMAT_PROTOBUF);

    /* one reply for each, without an epoch */
    for (size_t i = 0; i < events->event_count && has_json; i++) {
        if (can_receive(world, aggregator)) {
            struct sim_message *message = stream_message(world, stream, SIM_EVENTS);
            copy_identity(message, events);
            message->events.has_epoch = false;
            copy_event(message, events, &events->events[i]);
            flip(world, aggregator, message);
            send(world, aggregator, &world->aggregators[aggregator].received, message);
        }
    }
    if (has_protobuf && events->event_count > 0 && can_receive(world, aggregator)) {
        struct sim_message *message = stream_message(world, stream, SIM_EVENTS);
        sim_message_copy_events(message, events);
        flip(world, aggregator, message);
        send(world, aggregator, &world->aggregators[aggregator].received, message);
    }
}

void sim_publish(
    struct sim_world *world, size_t stream, enum sim_message_kind kind,
    const struct kvb_heartbeat *beat, const struct kvb_router_batch *events)
{
    if (!world->bridges[sim_bridge_of(world, stream)].nats.is_connected) {
        return;
    }
    for (size_t i = 0; i < world->aggregator_count; i++) {
        if (kind == SIM_EVENTS) {
            publish_events(world, stream, i, events);
        } else if (can_receive(world, i)) {
            struct sim_message *message = stream_message(world, stream, kind);
            message->beat = *beat;
            send(world, i, &world->aggregators[i].received, message);
        }
    }
}

void sim_answer(
    struct sim_world *world, const struct sim_job *job, const struct kvb_sync_reply *reply)
{
    struct sim_aggregator *reader = &world->aggregators[job->aggregator];

    if (!reader->is_up || !reader->nats.is_connected || reader->life != job->aggregator_life ||
        sim_hits(world, SIM_DROP_ANSWERS, job->aggregator)) {
        return;
    }
    struct sim_message *message = stream_message(world, job->stream_number, SIM_ANSWER);
    message->token = job->token;
    message->reply = *reply;
    message->reply.events = NULL;
    if (reply->events) {
        sim_message_copy_events(message, reply->events);
        message->reply.events = &message->events;
    }
    for (size_t tier = 0; tier < KVB_LIST_COUNT; tier++) {
        if (reply->sums[tier]) {
            memcpy(message->sums[tier], reply->sums[tier], sizeof message->sums[tier]);
            message->reply.sums[tier] = message->sums[tier];
        }
    }
    send(world, job->aggregator, &reader->answers, message);
}

void sim_request(struct sim_world *world, size_t aggregator, const struct kvb_follower_request *ask)
{
    const size_t stream = sim_stream_of(world, ask->id.worker_id, ask->id.dp_rank);

    if (stream == SIZE_MAX || sim_hits(world, SIM_DROP_REQUESTS, (unsigned)aggregator)) {
        return;
    }
    struct sim_message *message = stream_message(world, stream, SIM_REQUEST);
    message->token = ask->token;
    message->request = ask->request;
    send(world, aggregator, &world->aggregators[aggregator].requests_sent, message);
}

/* ---- Repeated messages ---- */

/* Kept when a later fault needs it. */
void sim_remember(struct sim_world *world, struct sim_message *message)
{
    struct sim_aggregator *reader = &world->aggregators[message->to_aggregator];

    if (message->kind == SIM_ANSWER ||
        !(sim_is_planned(world, SIM_ECHO, message->to_aggregator) ||
          sim_is_planned(world, SIM_FORGE, message->to_aggregator))) {
        sim_give_back(world, message);
        return;
    }
    put(&reader->past, message);
    if (++reader->past_count > sim_past) {
        struct sim_message *oldest = reader->past.first;
        reader->past.first = oldest->next;
        reader->past_count--;
        sim_give_back(world, oldest);
    }
}

/* An earlier message, to be sent to the aggregator again; NULL when there is none. */
static struct sim_message *copy_past(struct sim_world *world, size_t aggregator)
{
    struct sim_aggregator *reader = &world->aggregators[aggregator];
    const struct sim_message *old = reader->past.first;

    if (!reader->is_up || !reader->nats.is_connected || !old) {
        return NULL;
    }
    for (uint64_t n = kvb_random_below(&reader->rng, reader->past_count); n > 0; n--) {
        old = old->next;
    }
    struct sim_message *message = stream_message(world, old->stream_number, old->kind);
    message->beat = old->beat;
    sim_message_copy_events(message, &old->events);
    reader->was_lied_to[old->stream_number] = true;
    return message;
}

static void echo(struct sim_world *world, size_t aggregator)
{
    struct sim_message *message =
        sim_hits(world, SIM_ECHO, (unsigned)aggregator) ? copy_past(world, aggregator) : NULL;

    if (message) {
        sim_note(world, "aggregator %zu stream %u: once more", aggregator, message->stream_number);
        send(world, aggregator, &world->aggregators[aggregator].received, message);
    }
}

/* ---- Forged messages ---- */

static uint64_t draw_step(uint64_t *rng)
{
    static const uint64_t steps[] = { 1, 5, 1000, UINT64_C(1) << 30, UINT64_C(1) << 62 };

    return steps[kvb_random_below(rng, KVB_COUNT_OF(steps))];
}

static void forge_events(struct sim_message *message, uint64_t *rng)
{
    struct kvb_router_batch *events = &message->events;
    const uint64_t step = draw_step(rng);

    if (kvb_random_below(rng, 4) == 0) {
        events->epoch.bytes[15] ^= 1; /* an epoch of no bridge; JSON does not contain it */
    }
    for (size_t i = 0; i < events->event_count; i++) {
        events->events[i].event_id += step;
        if (kvb_random_below(rng, 3) == 0) {
            events->events[i].kind = KVB_ROUTER_CLEARED;
            events->events[i].block_count = 0;
        }
    }
}

static void forge_beat(struct kvb_heartbeat *beat, uint64_t *rng)
{
    switch (kvb_random_below(rng, 5)) {
    case 0:
        beat->epoch.bytes[15] ^= 1;
        beat->period_ms = UINT32_MAX;
        break;
    case 1:
        beat->last_id += draw_step(rng);
        break;
    case 2:
        beat->last_id -= draw_step(rng);
        break;
    case 3:
        beat->is_bye = true;
        break;
    default:
        beat->digest_seed++;
        break;
    }
}

static void forge(struct sim_world *world, size_t aggregator)
{
    struct sim_aggregator *reader = &world->aggregators[aggregator];
    struct sim_message *message =
        sim_hits(world, SIM_FORGE, (unsigned)aggregator) ? copy_past(world, aggregator) : NULL;

    if (!message) {
        return;
    }
    if (message->kind == SIM_EVENTS) {
        forge_events(message, &reader->rng);
    } else {
        forge_beat(&message->beat, &reader->rng);
    }
    sim_note(world, "aggregator %zu stream %u: made up", aggregator, message->stream_number);
    send(world, aggregator, &reader->received, message);
}

/* ---- Connections ---- */

void sim_client_lose(struct sim_world *world, struct sim_client *client)
{
    const size_t bridges = world->bridge_count;

    if (!client->is_connected) {
        return;
    }
    client->is_connected = false;
    client->try_ns = world->now_ns + kvb_random_below(&world->rng, KVB_NS_PER_S);
    for (size_t i = 0; i < world->aggregator_count; i++) {
        struct sim_aggregator *reader = &world->aggregators[i];
        if (client == &reader->nats) {
            drop_flying(world, &reader->received, NULL);
            drop_flying(world, &reader->answers, NULL);
            sim_empty(world, &reader->requests_sent);
        }
        for (unsigned bridge = 0; bridge < bridges; bridge++) {
            if (client == &world->bridges[bridge].nats) {
                drop_flying(world, &reader->received, &bridge);
                drop_flying(world, &reader->answers, &bridge);
            }
        }
    }
}

static void follow_client(struct sim_world *world, struct sim_client *client, bool is_owner_up)
{
    const struct sim_broker *broker = &world->broker;
    const bool has_given_up =
        broker->is_frozen && world->now_ns >= broker->frozen_ns + ping_gives_up_ns;

    if (client->is_connected && (!broker->is_up || has_given_up)) {
        sim_client_lose(world, client);
    }
    /* clients try again at most a second after the server is back */
    if (!client->is_connected && !broker->is_up) {
        client->try_ns = world->now_ns + kvb_random_below(&world->rng, KVB_NS_PER_S);
    }
    if (!client->is_connected && broker->is_up && !broker->is_frozen && is_owner_up &&
        world->now_ns >= client->try_ns) {
        client->is_connected = true;
        client->connects++;
    }
}

static void deliver_requests(struct sim_world *world, struct sim_aggregator *reader)
{
    struct sim_message *message = NULL;

    while ((message = sim_take(world, &reader->requests_sent))) {
        const struct sim_bridge *bridge = &world->bridges[message->from_bridge];
        if (bridge->is_up && bridge->nats.is_connected && !bridge->is_frozen) {
            sim_bridge_receive_request(world, message->from_bridge, message);
        }
        sim_give_back(world, message);
    }
}

/* What a frozen server held arrives when the server goes on. */
static void deliver_held(const struct sim_world *world, const struct sim_mailbox *box)
{
    for (struct sim_message *message = box->first; message; message = message->next) {
        if (message->due_ns > world->broker.frozen_ns && message->due_ns < world->now_ns) {
            message->due_ns = world->now_ns;
        }
    }
}

void sim_broker_step(struct sim_world *world)
{
    struct sim_broker *broker = &world->broker;
    const bool was_frozen = broker->is_frozen;

    broker->is_up = !sim_active(world, SIM_NATS_DOWN, 0);
    broker->is_frozen = sim_active(world, SIM_NATS_FREEZE, 0) != NULL;
    if (broker->is_frozen && !was_frozen) {
        broker->frozen_ns = world->now_ns;
    }
    for (size_t i = 0; i < world->bridge_count; i++) {
        const struct sim_bridge *bridge = &world->bridges[i];
        follow_client(world, &world->bridges[i].nats, bridge->is_up && !bridge->is_frozen);
    }
    for (size_t i = 0; i < world->aggregator_count; i++) {
        struct sim_aggregator *reader = &world->aggregators[i];
        if (was_frozen && !broker->is_frozen) {
            deliver_held(world, &reader->received);
            deliver_held(world, &reader->answers);
        }
        follow_client(world, &reader->nats, reader->is_up && !reader->is_frozen);
        echo(world, i);
        forge(world, i);
        deliver_requests(world, reader);
    }
}

void sim_broker_end(struct sim_world *world)
{
    while (world->broker.spare) {
        struct sim_message *next = world->broker.spare->next;
        kvb_router_batch_done(&world->broker.spare->events);
        free(world->broker.spare);
        world->broker.spare = next;
    }
}
