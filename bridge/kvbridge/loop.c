#include "core/clock.h"
#include "kvbridge/checkpoints.h"
#include "kvbridge/ingest.h"
#include "kvbridge/loads.h"
#include "kvbridge/membership.h"
#include "kvbridge/parts.h"
#include "kvbridge/publisher.h"
#include "kvbridge/refresh.h"
#include "kvbridge/republish.h"
#include "kvbridge/rivals.h"
#include "kvbridge/shown.h"
#include "stream/coalesce.h"

#include <unistd.h>

static const int poll_ms = 20;
static const uint64_t status_ns = KVB_NS_PER_S;
static const uint64_t sync_turn_ns = 2 * KVB_NS_PER_MS; /* limit: engines' sockets wait meanwhile */
static const uint64_t republish_turn_ns = 2 * KVB_NS_PER_MS; /* limit: as above */

/* ---- Sockets ---- */

/* Before the thread waits for input.  While many engines send seldom, it lets their batches gather
 * first: stream/coalesce.h. */
static void pause_for_input(struct kvb_bridge *bridge)
{
    const uint64_t pause_ns =
        kvb_coalescing_pause_ns(&bridge->ingest->server.coalescing, kvb_clock_monotonic_ns());

    if (pause_ns > 0) {
        kvb_poller_pause(pause_ns);
    }
}

/* Published events are flushed only when no input is left: a burst fills nats.c's buffer, and a
 * single event is sent at once. */
static void wait_for_sockets(struct kvb_bridge *bridge, bool has_more)
{
    kvb_status status = kvb_poller_wait(bridge->ingest->poller, 0);

    if (kvb_poller_is_idle(bridge->ingest->poller) && !has_more) {
        kvb_bus_flush_soon(bridge->publisher->bus);
        pause_for_input(bridge);
        status = kvb_poller_wait(bridge->ingest->poller, poll_ms);
    }
    if (status != KVB_OK) {
        kvb_metric_add(&bridge->shown->metrics, kvb_bridge_wait_failures, 1);
    }
}

/* Only clears the eventfd: each turn checks for commands and is_stopping anyway. */
static void take_wake(struct kvb_bridge *bridge)
{
    uint64_t times = 0;

    (void)!read(bridge->wake_fd, &times, sizeof times); /* failure: nothing was pending */
}

/* Serves the sockets that the poller reports, then metrics pages.  The next wait reports a socket
 * again that is not empty. */
static void take_sockets(void *context, uint64_t now_ns)
{
    struct kvb_bridge *bridge = context;
    size_t owner = 0;
    unsigned ready = 0;

    while (kvb_poller_next(bridge->ingest->poller, &owner, &ready)) {
        void *whose = bridge->ingest->owners[owner];
        if (owner == kvb_stop_owner) {
            take_wake(bridge);
        }
        if (whose && owner >= kvb_first_republish_owner) {
            kvb_bridge_republish_input(whose);
            continue;
        }
        if (!whose) {
            continue; /* a removed rank, or a descriptor that only wakes the thread */
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
    kvb_bridge_take_pages(bridge, now_ns);
}

/* ---- Periodic work ---- */

/* False: the engine's host name is not resolved yet.  After any other failure the replay counts as
 * started, and fails when the stream's deadline passes. */
static bool start_replay(void *context, struct kvb_served *served, uint64_t from, uint64_t now_ns)
{
    struct kvb_bridge *bridge = context;
    const struct bridge_rank *rank = kvb_bridge_rank_of(served);

    const kvb_status status = kvb_source_replay_start(rank->source, from);

    if (status != KVB_TOO_LARGE) {
        return status != KVB_AGAIN;
    }
    kvb_metric_add(&bridge->shown->metrics, kvb_bridge_replays_no_files, 1);
    if (kvb_log_backoff_due(&bridge->ingest->files_log, now_ns)) {
        kvb_log_write(
            bridge->log, KVB_LOG_ERROR, "bridge",
            "no replay: the limit of open files is reached; raise it (LimitNOFILE= of the unit, "
            "or ulimit -Hn)",
            "worker", KVB_LOG_U64(rank->worker_id), NULL);
    }
    return true;
}

static uint64_t nats_connects(void *context)
{
    const struct kvb_bridge *bridge = context;

    return kvb_bus_connects(bridge->publisher->bus);
}

static void note_connected(void *context, uint64_t now_ns)
{
    struct kvb_bridge *bridge = context;

    bridge->publisher->next_status_ns = now_ns;
    kvb_bridge_list_streams_soon(bridge);
}

static bool may_publish(void *context, uint64_t now_ns)
{
    struct kvb_bridge *bridge = context;
    const bool allowed = kvb_bus_is_connected(bridge->publisher->bus);

    if (allowed != bridge->publisher->was_allowed) {
        if (allowed) {
            kvb_log_write(bridge->log, KVB_LOG_INFO, "bridge", "publishing", NULL);
        } else {
            kvb_log_write(
                bridge->log, KVB_LOG_WARNING, "bridge", "not publishing", "why",
                "not connected to NATS", NULL);
        }
        bridge->publisher->was_allowed = allowed;
        bridge->publisher->next_status_ns = now_ns;
    }
    return allowed;
}

static void publish_due(void *context, uint64_t now_ns)
{
    struct kvb_bridge *bridge = context;

    if (now_ns >= bridge->publisher->next_load_ns) {
        bridge->publisher->next_load_ns =
            now_ns + bridge->config->publish.load_period_ms * KVB_NS_PER_MS;
        kvb_bridge_publish_loads(bridge, now_ns);
    }
}

static void tick_rank(void *context, struct kvb_served *served, uint64_t now_ns)
{
    kvb_bridge_tick_rank(context, kvb_bridge_rank_of(served), now_ns);
}

static void send_beat(void *context, struct kvb_served *served)
{
    kvb_bridge_beat(context, kvb_bridge_rank_of(served), false);
}

static void work_periodically(void *context, uint64_t now_ns)
{
    struct kvb_bridge *bridge = context;

    kvb_bridge_watch_loads(bridge, now_ns);
    for (size_t i = 0; i < bridge->membership->rank_count; i++) {
        kvb_source_end_floods(bridge->membership->ranks[i]->source, now_ns);
    }
    kvb_bridge_show_loads(bridge);
    kvb_metric_set(
        &bridge->shown->metrics, kvb_bridge_replays_running_max,
        bridge->ingest->server.max_replaying);
    kvb_bridge_update_metrics(bridge, now_ns);
}

static size_t rank_count(void *context)
{
    const struct kvb_bridge *bridge = context;

    return bridge->membership->rank_count;
}

static struct kvb_served *served_rank(void *context, size_t number)
{
    const struct kvb_bridge *bridge = context;

    return &bridge->membership->ranks[number]->served;
}

const struct kvb_serve_world kvb_bridge_world = {
    .receive = kvb_bridge_receive,
    .apply_received = kvb_bridge_apply_received,
    .pass_over_received = kvb_bridge_pass_over_received,
    .read_monitor = kvb_bridge_read_monitor,
    .take_reply = kvb_bridge_take_reply,
    .stop_replay = kvb_bridge_stop_replay,
    .start_replay = start_replay,
    .publish_step = kvb_bridge_publish_output,
    .connection_changed = kvb_bridge_connection_changed,
    .share_changed = kvb_bridge_share_changed,
    .tick_rank = tick_rank,
    .advertise = kvb_bridge_advertise_stream,
    .beat = send_beat,
    .rank_count = rank_count,
    .rank = served_rank,
    .take_sockets = take_sockets,
    .work_slices = kvb_bridge_work_slices,
    .tick = work_periodically,
    .connects = nats_connects,
    .connected = note_connected,
    .may_publish = may_publish,
    .publish_due = publish_due,
};

static void publish_goodbyes(struct kvb_bridge *bridge, uint64_t now_ns)
{
    for (size_t i = 0; i < bridge->membership->rank_count; i++) {
        kvb_bridge_say_goodbye(bridge, bridge->membership->ranks[i], now_ns);
    }
}

static void publish_due_status(struct kvb_bridge *bridge, uint64_t now_ns)
{
    if (now_ns >= bridge->publisher->next_status_ns) {
        bridge->publisher->next_status_ns = now_ns + status_ns;
        kvb_bridge_publish_status(bridge, now_ns);
    }
}

void *kvb_bridge_run(void *context)
{
    struct kvb_bridge *bridge = context;
    bool has_more = false;

    (void)pthread_setname_np(pthread_self(), "kvb-ingest"); /* for top -H; may fail */
    while (!atomic_load(&bridge->is_stopping)) {
        wait_for_sockets(bridge, has_more);
        const uint64_t now_ns = kvb_clock_monotonic_ns();
        atomic_store_explicit(&bridge->shown->turned_ns, now_ns, memory_order_relaxed);
        has_more = kvb_serve_turn(&bridge->ingest->server, now_ns);
        publish_due_status(bridge, now_ns);
        kvb_bridge_watch_rivals(bridge, now_ns);
        kvb_bridge_refresh(bridge, kvb_clock_monotonic_ns());
        has_more |= kvb_sync_responder_work(
            &bridge->publisher->sync, kvb_clock_monotonic_ns(), sync_turn_ns);
        has_more |= kvb_bridge_republish(bridge, republish_turn_ns);
        has_more |= kvb_bridge_work_membership(bridge, kvb_clock_monotonic_ns());
        kvb_bridge_save(bridge);
        kvb_metric_add(&bridge->shown->metrics, kvb_bridge_turns, 1); /* for the watchdog */
    }
    if (bridge->publisher->was_allowed) {
        publish_goodbyes(bridge, kvb_clock_monotonic_ns());
    }
    kvb_bridge_save_all(bridge);
    kvb_bridge_save_numbers(bridge);
    return NULL;
}
