#include "core/clock.h"
#include "core/limits.h"
#include "daemon/bridge_inside.h"

#include <unistd.h>

static const int poll_ms = 20;
static const uint64_t tick_ns = 50 * KVB_NS_PER_MS;
static const uint64_t round_ns = 5 * KVB_NS_PER_MS; /* of all ranks; sooner when one changed */
static const uint64_t status_ns = KVB_NS_PER_S;
static const uint64_t sync_turn_ns = 2 * KVB_NS_PER_MS; /* engines wait meanwhile */

/* Whatever aggregators ask, a stream has five heartbeats a second at most by it. */
static const uint64_t wanted_beat_ns = 200 * KVB_NS_PER_MS;

/* Aggregators reconnect at most a second after NATS is back; what they miss before
 * that, they miss. */
static const uint64_t after_connect_ns = 1200 * KVB_NS_PER_MS;

/* ---- What the sockets brought ---- */

/* Only when the input has run dry is what was published written out: a burst fills nats.c's
 * buffer, a lone event leaves at once. */
static void wait_for_sockets(struct kvb_bridge *bridge, bool has_more)
{
    kvb_status status = kvb_waiter_wait(bridge->waiter, 0);

    if (kvb_waiter_is_idle(bridge->waiter) && !has_more) {
        kvb_bus_flush_soon(bridge->bus);
        status = kvb_waiter_wait(bridge->waiter, poll_ms);
    }
    if (status != KVB_OK) {
        kvb_metric_add(&bridge->metrics, kvb_bridge_wait_failures, 1);
    }
}

/* What it woke us for, the turn looks at in any case. */
static void take_wake(struct kvb_bridge *bridge)
{
    uint64_t times = 0;

    (void)!read(bridge->wake_fd, &times, sizeof times); /* it is readable, or nothing is lost */
}

/* Whatever is left in a socket, the next wait finds. */
static void take_sockets(struct kvb_bridge *bridge, uint64_t now_ns)
{
    size_t owner = 0;
    unsigned ready = 0;

    while (kvb_waiter_next(bridge->waiter, &owner, &ready)) {
        void *whose = bridge->owners[owner];
        if (owner == kvb_stop_owner) {
            take_wake(bridge);
        }
        if (!whose) {
            continue; /* it has left, or the turn itself looks at what it is about */
        }
        if (owner >= kvb_first_load_owner) {
            kvb_bridge_take_loads(bridge, whose, now_ns);
            continue;
        }
        if (ready & kvb_ready_reply) {
            kvb_bridge_take_replies(bridge, whose, now_ns);
        }
        if (ready & kvb_ready_live) {
            kvb_bridge_take_live(bridge, whose, now_ns);
        }
    }
}

/* ---- What time brings ---- */

static void note_running(struct kvb_bridge *bridge, size_t running)
{
    if (running > kvb_metric_get(&bridge->metrics, kvb_bridge_replays_running_most)) {
        kvb_metric_set(&bridge->metrics, kvb_bridge_replays_running_most, running);
    }
}

/* So many replays in the process: each stops its engine's publishing. */
static void start_replays(struct kvb_bridge *bridge, uint64_t now_ns)
{
    size_t running = 0;

    for (size_t i = 0; i < bridge->rank_count; i++) {
        running += kvb_stream_is_replaying(bridge->ranks[i]->stream);
    }
    for (size_t i = 0; i < bridge->rank_count && running < kvb_max_replays_at_once; i++) {
        struct bridge_rank *rank = bridge->ranks[(bridge->next_replay + i) % bridge->rank_count];
        uint64_t from = 0;
        if (!kvb_stream_wants_replay(rank->stream, now_ns, &from)) {
            continue;
        }
        (void)kvb_source_replay_start(rank->source, from); /* if not: the deadline tells */
        kvb_stream_replay_started(rank->stream, now_ns);
        running++;
    }
    note_running(bridge, running);
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
    kvb_bridge_lose_touch(bridge, now_ns + after_connect_ns);
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

static bool
is_time_to_beat(const struct kvb_bridge *bridge, const struct bridge_rank *rank, uint64_t now_ns)
{
    const uint64_t period_ns = bridge->config->publish.heartbeat_ms * KVB_NS_PER_MS;
    const uint64_t wait_ns =
        rank->is_beat_wanted && wanted_beat_ns < period_ns ? wanted_beat_ns : period_ns;

    return rank->is_announced && (rank->is_beat_due || now_ns - rank->beat_ns >= wait_ns);
}

static void tell_routers(struct kvb_bridge *bridge, uint64_t now_ns)
{
    kvb_bridge_tell_streams(bridge, now_ns);
    for (size_t i = 0; i < bridge->rank_count; i++) {
        struct bridge_rank *rank = bridge->ranks[i];
        if (is_time_to_beat(bridge, rank, now_ns)) {
            rank->beat_ns = now_ns;
            kvb_bridge_beat(bridge, rank, false);
        }
    }
    if (now_ns >= bridge->next_load_ns) {
        bridge->next_load_ns = now_ns + bridge->config->publish.load_period_ms * KVB_NS_PER_MS;
        kvb_bridge_publish_loads(bridge, now_ns);
    }
}

/* A look at a thousand ranks costs more than a turn should. */
static bool is_round_due(struct kvb_bridge *bridge, uint64_t now_ns)
{
    if (!bridge->is_round_due && now_ns < bridge->next_round_ns) {
        return false;
    }
    bridge->is_round_due = false;
    bridge->next_round_ns = now_ns + round_ns;
    return true;
}

static void take_time(struct kvb_bridge *bridge, uint64_t now_ns)
{
    follow_nats(bridge, now_ns);
    if (now_ns >= bridge->next_tick_ns) {
        bridge->next_tick_ns = now_ns + tick_ns;
        for (size_t i = 0; i < bridge->rank_count; i++) {
            kvb_bridge_tick_rank(bridge, bridge->ranks[i], now_ns);
        }
        kvb_bridge_watch_loads(bridge, now_ns);
        kvb_bridge_show_loads(bridge);
        kvb_bridge_update_metrics(bridge, now_ns);
    }
    const bool is_round = is_round_due(bridge, now_ns);
    if (is_round) {
        start_replays(bridge, now_ns);
    }
    if (may_publish(bridge, now_ns)) {
        if (is_round) {
            tell_routers(bridge, now_ns);
        }
    } else {
        kvb_bridge_lose_touch(bridge, 0); /* while nothing is published, nothing counts as said */
    }
    if (now_ns >= bridge->next_status_ns) {
        bridge->next_status_ns = now_ns + status_ns;
        kvb_bridge_publish_status(bridge, now_ns);
    }
}

static void tell_goodbyes(struct kvb_bridge *bridge, uint64_t now_ns)
{
    for (size_t i = 0; i < bridge->rank_count; i++) {
        kvb_bridge_tell_goodbye(bridge, bridge->ranks[i], now_ns);
    }
}

void *kvb_bridge_run(void *context)
{
    struct kvb_bridge *bridge = context;
    bool has_more = false;

    (void)pthread_setname_np(pthread_self(), "kvb-ingest"); /* for top -H; else unnamed */
    while (!atomic_load(&bridge->is_stopping)) {
        wait_for_sockets(bridge, has_more);
        const uint64_t now_ns = kvb_clock_monotonic_ns();
        take_sockets(bridge, now_ns);
        kvb_bridge_take_pages(bridge, now_ns);
        take_time(bridge, now_ns);
        kvb_bridge_refresh(bridge, kvb_clock_monotonic_ns());
        has_more = kvb_sync_desk_work(&bridge->sync, kvb_clock_monotonic_ns(), sync_turn_ns);
        has_more |= bridge->next_tick_ns <= now_ns; /* a stream has another slice */
        has_more |= kvb_bridge_work_members(bridge, kvb_clock_monotonic_ns());
        kvb_bridge_save(bridge);
        kvb_metric_add(&bridge->metrics, kvb_bridge_turns, 1); /* the watchdog looks */
    }
    if (bridge->was_allowed) {
        tell_goodbyes(bridge, kvb_clock_monotonic_ns());
    }
    kvb_bridge_save_all(bridge);
    return NULL;
}
