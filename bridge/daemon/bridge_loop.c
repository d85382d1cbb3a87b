#include "core/clock.h"
#include "daemon/bridge_inside.h"

enum { most_replays_at_once = 8 };

static const int poll_ms = 20;
static const uint64_t tick_ns = 50 * KVB_NS_PER_MS;
static const uint64_t status_ns = KVB_NS_PER_S;
static const uint64_t announce_turn_ns = 20 * KVB_NS_PER_MS;

/* Aggregators reconnect at most a second after NATS is back; what they miss before
 * that, they miss. */
static const uint64_t after_connect_ns = 1200 * KVB_NS_PER_MS;

/* ---- What the sockets brought ---- */

static void wait_for_sockets(struct kvb_bridge *bridge, bool has_more)
{
    struct kvb_waiter *waiter = bridge->waiter;

    kvb_waiter_begin(waiter);
    for (size_t i = 0; i < bridge->rank_count; i++) {
        (void)kvb_waiter_add_source(waiter, bridge->ranks[i].source);
    }
    for (size_t i = 0; i < bridge->load_count; i++) {
        (void)kvb_waiter_add_load(waiter, bridge->loads[i].source);
    }
    (void)kvb_waiter_add_fd(waiter, bridge->wake_fd);
    kvb_waiter_wait(waiter, has_more ? 0 : poll_ms);
}

/* Positions are as wait_for_sockets() added them.  True when a socket may have
 * more than was taken. */
static bool take_sockets(struct kvb_bridge *bridge, uint64_t now_ns)
{
    bool has_more = false;
    size_t at = 0;

    for (size_t i = 0; i < bridge->rank_count; i++, at += kvb_source_sockets) {
        const unsigned ready = kvb_waiter_source_ready(bridge->waiter, at);
        if (ready & kvb_ready_reply) {
            has_more |= kvb_bridge_take_replies(bridge, &bridge->ranks[i], now_ns);
        }
        if (ready & kvb_ready_live) {
            has_more |= kvb_bridge_take_live(bridge, &bridge->ranks[i], now_ns);
        }
    }
    for (size_t i = 0; i < bridge->load_count; i++, at++) {
        if (kvb_waiter_is_ready(bridge->waiter, at)) {
            kvb_bridge_take_loads(bridge, &bridge->loads[i], now_ns);
        }
    }
    return has_more;
}

/* ---- What time brings ---- */

/* At most 8 replays in the process: each stops its engine's publishing. */
static void start_replays(struct kvb_bridge *bridge, uint64_t now_ns)
{
    size_t running = 0;

    for (size_t i = 0; i < bridge->rank_count; i++) {
        running += kvb_stream_is_replaying(bridge->ranks[i].stream);
    }
    for (size_t i = 0; i < bridge->rank_count && running < most_replays_at_once; i++) {
        struct bridge_rank *rank = &bridge->ranks[(bridge->next_replay + i) % bridge->rank_count];
        uint64_t from = 0;
        if (!kvb_stream_wants_replay(rank->stream, now_ns, &from)) {
            continue;
        }
        (void)kvb_source_replay_start(rank->source, from); /* if not: the deadline tells */
        kvb_stream_replay_started(rank->stream, now_ns);
        running++;
    }
    bridge->next_replay++; /* the next turn begins with the next rank: nobody starves */
}

/* A new connection, or the first: what was said before may never have arrived. */
static void follow_nats(struct kvb_bridge *bridge, uint64_t now_ns)
{
    const uint64_t connects = kvb_bus_connects(bridge->bus);

    if (connects == bridge->connects_seen) {
        return;
    }
    bridge->connects_seen = connects;
    kvb_profile_guard_begin(&bridge->guard, now_ns);
    for (size_t i = 0; i < bridge->rank_count; i++) {
        bridge->ranks[i].is_announced = false;
        bridge->ranks[i].announce_ns = now_ns + after_connect_ns;
    }
    bridge->next_status_ns = now_ns;
}

static bool may_publish(struct kvb_bridge *bridge, uint64_t now_ns)
{
    struct kvb_detail why = { .text = "" };
    const bool allowed =
        kvb_bus_is_connected(bridge->bus) && kvb_profile_guard_allows(&bridge->guard, now_ns, &why);

    if (allowed != bridge->was_allowed) {
        if (allowed) {
            kvb_log_write(bridge->log, KVB_LOG_INFO, "bridge", "publishing", NULL);
        } else {
            kvb_log_write(
                bridge->log, KVB_LOG_WARNING, "bridge", "not publishing", "why",
                why.text[0] ? why.text : "not connected to NATS", NULL);
        }
        bridge->was_allowed = allowed;
        bridge->next_status_ns = now_ns;
    }
    return allowed;
}

/* Announcing stops for the turn when it took long: the sockets wait meanwhile. */
static void tell_routers(struct kvb_bridge *bridge, uint64_t now_ns)
{
    bool may_announce = true;
    const uint64_t beat_ns = bridge->config->publish.heartbeat_ms * KVB_NS_PER_MS;

    for (size_t i = 0; i < bridge->rank_count; i++) {
        struct bridge_rank *rank = &bridge->ranks[i];
        if (!rank->is_announced && may_announce && now_ns >= rank->announce_ns) {
            kvb_bridge_announce(bridge, rank, now_ns);
            may_announce = kvb_clock_monotonic_ns() < now_ns + announce_turn_ns;
        }
        if (rank->is_announced && (rank->is_beat_due || now_ns >= rank->next_beat_ns)) {
            rank->next_beat_ns = now_ns + beat_ns;
            kvb_bridge_beat(bridge, rank, false);
        }
    }
    if (now_ns >= bridge->next_load_ns) {
        bridge->next_load_ns = now_ns + bridge->config->publish.load_period_ms * KVB_NS_PER_MS;
        kvb_bridge_publish_loads(bridge, now_ns);
    }
}

/* While nothing may be published, nothing counts as said. */
static void withhold(struct kvb_bridge *bridge)
{
    for (size_t i = 0; i < bridge->rank_count; i++) {
        bridge->ranks[i].is_announced = false;
    }
}

static void take_time(struct kvb_bridge *bridge, uint64_t now_ns)
{
    follow_nats(bridge, now_ns);
    if (now_ns >= bridge->next_tick_ns) {
        bridge->next_tick_ns = now_ns + tick_ns;
        for (size_t i = 0; i < bridge->rank_count; i++) {
            kvb_bridge_tick_rank(bridge, &bridge->ranks[i], now_ns);
        }
        kvb_bridge_update_metrics(bridge);
    }
    start_replays(bridge, now_ns);
    if (may_publish(bridge, now_ns)) {
        tell_routers(bridge, now_ns);
    } else {
        withhold(bridge);
    }
    if (now_ns >= bridge->next_status_ns) {
        bridge->next_status_ns = now_ns + status_ns;
        kvb_bridge_publish_status(bridge, now_ns);
    }
}

void *kvb_bridge_run(void *context)
{
    struct kvb_bridge *bridge = context;
    bool has_more = false;

    while (!atomic_load(&bridge->is_stopping)) {
        wait_for_sockets(bridge, has_more);
        const uint64_t now_ns = kvb_clock_monotonic_ns();
        has_more = take_sockets(bridge, now_ns);
        take_time(bridge, now_ns);
    }
    for (size_t i = 0; i < bridge->rank_count && bridge->was_allowed; i++) {
        kvb_bridge_beat(bridge, &bridge->ranks[i], true);
    }
    return NULL;
}
