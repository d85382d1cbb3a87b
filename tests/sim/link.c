#include "sim.h"

#include "core/own.h"

#include <stdlib.h>
#include <string.h>

/* libzmq between one engine and its bridge: PUB to SUB over one TCP connection, the
 * SUB's monitor, and a DEALER with a connection of its own to the engine's ROUTER.
 *
 *     send -> [ wire ] -> [ sub ] -> bridge        one connection: in order, or not at all
 *             lost with it  stays
 *
 * The monitor may be read late, but never later than the first batch of the connection
 * that follows: libzmq's I/O thread writes the event before it takes the next
 * connection's bytes. */

enum { wire_high_water = 300, sub_high_water = 100, router_high_water = 5 };

static const uint64_t heartbeat_timeout_ns = KVB_NS_PER_S;
static const uint64_t for_ever = UINT64_MAX;

/* ---- Queues ---- */

static void queue_begin(struct sim_queue *queue)
{
    queue->items = calloc(sim_flight, sizeof *queue->items);
    if (!queue->items) {
        abort();
    }
}

/* Items arrive in the order in which they were sent. */
static bool put(struct sim_queue *queue, struct sim_flying item, size_t max)
{
    if (queue->count >= max) {
        return false;
    }
    const uint64_t last_ns =
        queue->count > 0 ? queue->items[(queue->at + queue->count - 1) % sim_flight].due_ns : 0;
    item.due_ns = last_ns > item.due_ns ? last_ns : item.due_ns;
    queue->items[(queue->at + queue->count++) % sim_flight] = item;
    return true;
}

static bool take(struct sim_queue *queue, uint64_t now_ns, struct sim_flying *out)
{
    if (queue->count == 0 || queue->items[queue->at].due_ns > now_ns) {
        return false;
    }
    *out = queue->items[queue->at];
    queue->at = (queue->at + 1) % sim_flight;
    queue->count--;
    return true;
}

static void empty(struct sim_queue *queue)
{
    queue->count = 0;
}

void sim_link_begin(struct sim_world *world, size_t number)
{
    struct sim_link *link = &world->links[number];

    queue_begin(&link->wire);
    queue_begin(&link->sub);
    queue_begin(&link->replies);
    link->open_ns = world->now_ns + kvb_random_below(&link->rng, 200 * KVB_NS_PER_MS);
}

void sim_link_end(struct sim_link *link)
{
    free(link->wire.items);
    free(link->sub.items);
    free(link->replies.items);
}

/* ---- The connection ---- */

static void report_connection(struct sim_world *world, size_t number, bool is_up)
{
    struct sim_link *link = &world->links[number];
    uint64_t due_ns = world->now_ns;

    if (sim_active(world, SIM_LATE_MONITOR, (unsigned)number) ||
        world->engines[number].waits_for_link) {
        due_ns += kvb_random_below(&link->rng, 400 * KVB_NS_PER_MS);
    }
    if (link->monitor_count == sim_monitor) {
        abort();
    }
    link->monitor[link->monitor_count++] =
        (struct sim_monitor_event){ .is_up = is_up, .due_ns = due_ns };
}

static void close_connection(struct sim_world *world, size_t number)
{
    struct sim_link *link = &world->links[number];

    link->open_ns = for_ever;
    if (link->is_open) {
        link->is_open = false;
        sim_note(world, "link %zu is lost, %zu batches with it", number, link->wire.count);
        empty(&link->wire);
        report_connection(world, number, false);
    }
}

void sim_link_engine_gone(struct sim_world *world, size_t number)
{
    struct sim_link *link = &world->links[number];
    struct sim_flying item;

    /* Bytes that the kernel had received are still delivered, as far as they go. */
    for (uint64_t n = kvb_random_below(&link->rng, 4); n > 0; n--) {
        if (link->is_open && !link->is_deaf && take(&link->wire, for_ever, &item)) {
            (void)put(&link->sub, item, sub_high_water);
        }
    }
    sim_link_lose_answer(link);
    if (link->is_deaf) {
        empty(&link->wire); /* the process that would send it again is gone */
    } else {
        close_connection(world, number);
    }
}

void sim_link_bridge_gone(struct sim_world *world, size_t number)
{
    struct sim_link *link = &world->links[number];

    link->is_open = false;
    link->open_ns = for_ever;
    link->monitor_count = 0;
    link->is_up_reported = false;
    empty(&link->wire);
    empty(&link->sub);
    sim_link_stop_request(link);
}

/* Heartbeats detect a cut. A process that has ended is detected when packets flow again. */
static void follow_cut(struct sim_world *world, size_t number)
{
    struct sim_link *link = &world->links[number];
    const bool is_cut_off = sim_active(world, SIM_CUT_LINK, (unsigned)number) ||
                            sim_active(world, SIM_OVERTAKE, (unsigned)number);

    link->is_deaf = is_cut_off || sim_active(world, SIM_CUT_IN, (unsigned)number);
    link->is_mute = is_cut_off || sim_active(world, SIM_CUT_OUT, (unsigned)number);
    const bool is_cut = link->is_deaf || link->is_mute;
    if (is_cut && link->cut_ns == 0) {
        link->cut_ns = world->now_ns;
    }
    const uint64_t received_ns =
        link->is_deaf || link->received_ns < link->cut_ns ? link->cut_ns : link->received_ns;
    if (is_cut && world->now_ns >= received_ns + heartbeat_timeout_ns) {
        close_connection(world, number);
        sim_link_lose_answer(link);
    }
    if (!is_cut && link->cut_ns > 0) {
        link->cut_ns = 0;
        if (link->is_open && link->life != world->engines[number].life) {
            close_connection(world, number);
        }
    }
}

static void try_to_open(struct sim_world *world, size_t number)
{
    struct sim_link *link = &world->links[number];
    const struct sim_bridge *bridge = &world->bridges[sim_bridge_of(world, number)];
    const bool is_possible =
        world->engines[number].is_up && bridge->is_up && !bridge->is_frozen && link->cut_ns == 0;

    if (link->is_open || !is_possible) {
        return;
    }
    if (link->open_ns == for_ever) { /* libzmq's back-off is at most a second */
        link->open_ns = world->now_ns + kvb_random_below(&link->rng, KVB_NS_PER_S);
    }
    if (world->now_ns < link->open_ns) {
        return;
    }
    link->is_open = true;
    link->life = world->engines[number].life;
    link->subscribed_ns = world->now_ns + kvb_random_below(&link->rng, 30 * KVB_NS_PER_MS);
    report_connection(world, number, true);
    sim_note(world, "link %zu is up", number);
}

/* Moves batches from TCP into the SUB's queue. */
static void arrive(struct sim_world *world, size_t number)
{
    struct sim_link *link = &world->links[number];
    const struct sim_bridge *bridge = &world->bridges[sim_bridge_of(world, number)];
    struct sim_flying item;

    if (link->is_deaf || bridge->is_frozen || bridge->has_unread) {
        return;
    }
    while (link->sub.count < sub_high_water && take(&link->wire, world->now_ns, &item)) {
        (void)put(&link->sub, item, sub_high_water);
        link->received_ns = world->now_ns;
        for (size_t i = 0; i < link->monitor_count; i++) {
            link->monitor[i].due_ns = 0; /* the monitor's event was written before this batch was */
        }
    }
}

struct kvb_link_report sim_link_read_monitor(struct sim_world *world, size_t number)
{
    struct sim_link *link = &world->links[number];
    struct kvb_link_report update = { .was_lost = false };
    size_t read = 0;

    while (!world->bridges[sim_bridge_of(world, number)].has_unread && read < link->monitor_count &&
           link->monitor[read].due_ns <= world->now_ns) {
        link->is_up_reported = link->monitor[read].is_up;
        update.was_lost |= !link->is_up_reported;
        read++;
    }
    memmove(
        link->monitor, link->monitor + read,
        (link->monitor_count - read) * sizeof link->monitor[0]);
    link->monitor_count -= read;
    update.is_up = link->is_up_reported;
    return update;
}

bool sim_link_waits_since(const struct sim_world *world, size_t number, uint64_t since_ns)
{
    const struct sim_queue *wire = &world->links[number].wire;

    return wire->count > 0 && wire->items[wire->at].due_ns <= since_ns;
}

/* libzmq's own thread continues meanwhile. */
bool sim_link_receive(struct sim_world *world, size_t number, struct sim_flying *out)
{
    arrive(world, number);
    return take(&world->links[number].sub, for_ever, out);
}

/* ---- Live ---- */

static uint64_t latency_ns(struct sim_world *world, size_t number)
{
    struct sim_link *link = &world->links[number];
    const struct sim_fault *slow = sim_active(world, SIM_SLOW_LINK, (unsigned)number);
    uint64_t latency = kvb_random_below(&link->rng, 15 * KVB_NS_PER_MS);

    if (slow) {
        latency += kvb_random_below(&link->rng, (uint64_t)slow->count * 50 * KVB_NS_PER_MS);
    }
    return latency;
}

void sim_link_send(struct sim_world *world, size_t number, uint32_t batch)
{
    struct sim_link *link = &world->links[number];
    struct sim_flying item = { .engine = (uint32_t)number,
                               .batch = batch,
                               .due_ns = world->now_ns + latency_ns(world, number) };

    if (!link->is_open || link->life != world->engines[number].life ||
        world->now_ns < link->subscribed_ns || sim_hits(world, SIM_DROP_LIVE, (unsigned)number) ||
        sim_active(world, SIM_FILL_GAP, (unsigned)number)) {
        return;
    }
    item.is_corrupt = sim_hits(world, SIM_CORRUPT, (unsigned)number);
    world->engines[number].was_corrupt |= item.is_corrupt;
    /* a PUB drops messages above its high-water mark */
    (void)put(&link->wire, item, wire_high_water);
    if (!item.is_corrupt && sim_hits(world, SIM_DUPLICATE, (unsigned)number)) {
        const uint32_t back = (uint32_t)kvb_random_below(&link->rng, 6);
        const uint32_t first = world->engines[number].life_first;
        item.batch = batch - first >= back ? batch - back : batch;
        if (world->engines[number].batches[item.batch].is_kept) {
            (void)put(&link->wire, item, wire_high_water);
        }
    }
}

/* ---- Replays ---- */

void sim_link_request(struct sim_world *world, size_t number, uint64_t from)
{
    struct sim_link *link = &world->links[number];

    sim_link_stop_request(link);
    link->is_requesting = true;
    link->request_from = from;
    link->asked_ns = world->now_ns;
    link->request_due_ns = world->now_ns + latency_ns(world, number);
    sim_note(world, "bridge asks engine %zu from %lu", number, from);
}

void sim_link_stop_request(struct sim_link *link)
{
    link->is_requesting = false;
    link->is_asked = false;
    empty(&link->replies);
}

void sim_link_lose_answer(struct sim_link *link)
{
    if (link->is_requesting && link->request_from == 0 &&
        (!link->is_asked || link->replies.count > 0)) {
        link->lost_full_ns = link->asked_ns;
    }
    empty(&link->replies);
}

static void reply_with(struct sim_world *world, size_t number, size_t by)
{
    const struct sim_engine *engine = &world->engines[by];
    struct sim_link *link = &world->links[number];
    const struct sim_fault *cut = sim_active(world, SIM_REPLAY_CUT, (unsigned)number);
    struct sim_flying item = { .engine = (uint32_t)by,
                               .due_ns = world->now_ns + latency_ns(world, number) };
    uint64_t kept = 0;
    uint64_t left = cut ? kvb_random_below(&link->rng, 12) : for_ever;
    left += left == 1; /* after the first reply, a cut looks the same as the end */

    for (uint32_t at = sim_engine_find(engine, link->request_from);
         at < engine->batch_count && left > 0; at++, left--) {
        item.batch = at;
        item.due_ns += 100000;
        /* A ROUTER drops replies when the peer's pipe is full, but never the first ones. */
        const bool has_room =
            kept < router_high_water || !sim_hits(world, SIM_REPLAY_HOLES, (unsigned)number);
        if (engine->batches[at].is_kept && has_room) {
            kept++;
            (void)put(&link->replies, item, sim_flight - 1);
        }
    }
    item.batch = UINT32_MAX;
    item.is_corrupt = left == 0 && cut->percent == 50;
    if (!sim_hits(world, SIM_REPLAY_NO_END, (unsigned)number)) {
        (void)put(&link->replies, item, sim_flight);
    }
}

/* A request from exactly the batch that the engine did not keep is answered from the next one, as
 * if nothing older were kept. */
static bool begins_with_hole(const struct sim_engine *engine, uint64_t from)
{
    const uint32_t at = sim_engine_find(engine, from);

    return at < engine->batch_count && engine->batches[at].seq == from &&
           !engine->batches[at].is_kept;
}

static bool is_replay_bad(struct sim_world *world, size_t number)
{
    for (enum sim_fault_kind kind = SIM_REPLAY_CUT; kind <= SIM_REPLAY_MUTE; kind++) {
        if (sim_active(world, kind, (unsigned)number)) {
            return true;
        }
    }
    return false;
}

static void serve(struct sim_world *world, size_t number)
{
    struct sim_link *link = &world->links[number];
    struct sim_engine *engine = &world->engines[number];

    engine->was_replay_bad |= link->is_mute && link->is_requesting;
    if (!link->is_requesting || link->is_asked || world->now_ns < link->request_due_ns ||
        link->is_mute || !engine->is_up) {
        return;
    }
    link->is_asked = true;
    engine->was_replay_bad |= is_replay_bad(world, number);
    if (sim_active(world, SIM_REPLAY_MUTE, (unsigned)number)) {
        return;
    }
    const bool is_crossed = sim_active(world, SIM_REPLAY_CROSSED, (unsigned)number) != NULL;
    engine->may_be_hole |= is_crossed;
    if (is_crossed) {
        engine->full_ns = 0; /* after another engine's answer this one is a new publisher */
    }
    engine->may_be_gone |= begins_with_hole(engine, link->request_from);
    const size_t by = is_crossed ? (number + 1) % world->stream_count : engine->replay_by;
    if (by == number && !sim_active(world, SIM_REPLAY_CUT, (unsigned)number)) {
        sim_check_ration(world, number);
    }
    sim_note(world, "engine %zu answers %zu from %lu", by, number, link->request_from);
    reply_with(world, number, by);
}

bool sim_link_reply(struct sim_world *world, size_t number, struct sim_flying *out)
{
    struct sim_link *link = &world->links[number];

    return !link->is_deaf && take(&link->replies, world->now_ns, out);
}

/* A replay that is cut does not extend the list: what is missing must show at once. */
static void note_hindrance(struct sim_world *world, size_t number)
{
    static const enum sim_fault_kind kinds[] = { SIM_SLOW_LINK, SIM_REPLAY_HOLES, SIM_REPLAY_NO_END,
                                                 SIM_REPLAY_MUTE };

    bool is_hindered = world->bridges[sim_bridge_of(world, number)].is_frozen;
    for (size_t i = 0; i < KVB_COUNT_OF(kinds); i++) {
        is_hindered |= sim_active(world, kinds[i], (unsigned)number) != NULL;
    }
    if (is_hindered) {
        world->links[number].hindered_ns = world->now_ns;
    }
}

void sim_link_step(struct sim_world *world, size_t number)
{
    note_hindrance(world, number);
    follow_cut(world, number);
    try_to_open(world, number);
    arrive(world, number);
    serve(world, number);
}
