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

/* The ingest thread.  stream/serve.h says what is done next in a turn, in which order, and what
 * follows from it; the switch below does it.  The loop at the end takes one turn after another, and
 * between them does what others have asked for. */

/* How long the thread waits for input: the first while something is under way, the second at rest.
 */
static const uint64_t poll_ns = 20 * KVB_NS_PER_MS;
static const uint64_t rest_ns = 200 * KVB_NS_PER_MS;

static const uint64_t status_ns = KVB_NS_PER_S;
static const uint64_t sync_turn_ns = 2 * KVB_NS_PER_MS; /* limit: engines' sockets wait meanwhile */
static const uint64_t republish_turn_ns = 2 * KVB_NS_PER_MS; /* limit: as above */

/* ---- Sockets ---- */

/* The next rank that the poller reports.  What else it reports is served on the way, and metrics
 * pages after all sockets.  The next wait reports a socket again that is not empty. */
static void find_socket(struct kvb_bridge *bridge, struct kvb_action *action)
{
    struct bridge_ingest *ingest = bridge->ingest;
    const uint64_t now_ns = ingest->server.now_ns;
    size_t owner = 0;
    unsigned ready = 0;

    action->rank = NULL;
    while (kvb_poller_next(ingest->poller, &owner, &ready)) {
        void *whose = ingest->owners[owner];
        if (owner == kvb_stop_owner) {
            /* Only cleared: each turn looks for commands and is_stopping anyway. */
            uint64_t times = 0;
            (void)!read(bridge->wake_fd, &times, sizeof times); /* failure: nothing was pending */
        }
        if (!whose) {
            continue; /* a removed rank, or a descriptor that only wakes the thread */
        }
        /* From the highest numbers down, as they stand in kvbridge/ingest.h. */
        if (owner >= kvb_first_republish_owner) {
            kvb_bridge_republish_input(whose);
        } else if (owner >= kvb_first_load_owner) {
            kvb_bridge_take_loads(bridge, whose, now_ns);
        } else {
            struct bridge_rank *rank = whose;
            action->rank = &rank->served;
            action->has_replies = ready & kvb_ready_reply;
            action->has_live = ready & kvb_ready_live;
            return;
        }
    }
    /* The poller has no more: pages come last, because nobody waits for them. */
    kvb_bridge_take_pages(bridge, now_ns);
}

/* ---- Replays ---- */

/* False: the engine's host name is not resolved yet.  After any other failure the replay counts as
 * started, and fails when the stream's deadline passes. */
static bool start_replay(struct kvb_bridge *bridge, const struct bridge_rank *rank, uint64_t from)
{
    const kvb_status status = kvb_source_replay_start(rank->source, from);

    if (status == KVB_TOO_LARGE) {
        kvb_bridge_count(bridge->shown, kvb_bridge_replays_no_files, 1);
        if (kvb_log_backoff_due(&bridge->ingest->files_log, bridge->ingest->server.now_ns)) {
            kvb_log_write(
                bridge->log, KVB_LOG_ERROR, "bridge",
                "no replay: the limit of open files is reached; raise it (LimitNOFILE= of the "
                "unit, or ulimit -Hn)",
                "worker", KVB_LOG_U64(rank->worker_id), NULL);
        }
    }
    return status != KVB_AGAIN;
}

/* ---- What is said of it ---- */

static void
note_share(struct kvb_bridge *bridge, const struct bridge_rank *rank, enum kvb_share_verdict share)
{
    const bool begins = share == KVB_SHARE_QUARANTINE;

    kvb_bridge_count(bridge->shown, kvb_bridge_quarantines, begins);
    kvb_log_write(
        bridge->log, begins ? KVB_LOG_WARNING : KVB_LOG_INFO, "bridge",
        begins ? "an engine uses more than its share of the thread: its stream is quarantined"
               : "the quarantine of a stream is over: a replay fetches what it missed",
        "wait_ms", KVB_LOG_U64(rank->served.share.quarantines.pause_ns / KVB_NS_PER_MS), "worker",
        KVB_LOG_U64(rank->worker_id), "dp_rank", KVB_LOG_U64(rank->dp_rank), "events",
        rank->part->events, NULL);
}

static void note_nats(struct kvb_bridge *bridge, const struct kvb_action *action)
{
    struct bridge_publisher *publisher = bridge->publisher;

    /* /state shows the change in this turn. */
    publisher->next_status_ns = bridge->ingest->server.now_ns;
    /* Which streams this bridge has may not have reached the other bridges. */
    if (action->is_new_connection) {
        kvb_bridge_list_streams_soon(bridge);
    }
    if (action->is_connected == publisher->was_allowed) {
        return;
    }
    publisher->was_allowed = action->is_connected;
    if (action->is_connected) {
        kvb_log_write(bridge->log, KVB_LOG_INFO, "bridge", "publishing", NULL);
    } else {
        kvb_log_write(
            bridge->log, KVB_LOG_WARNING, "bridge", "not publishing", "why",
            "not connected to NATS", NULL);
    }
}

/* ---- Time ---- */

/* At most every 50 ms, in turns that something else has caused, or that come after rest_ns. */
static void work_periodically(struct kvb_bridge *bridge, uint64_t now_ns)
{
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

/* ---- The switch ---- */

/* In the order of a turn. */
static void carry_out(struct kvb_bridge *bridge, struct kvb_action *action)
{
    struct bridge_ingest *ingest = bridge->ingest;
    struct kvb_server *server = &ingest->server;
    struct bridge_rank *rank = kvb_bridge_rank_of(action->rank); /* NULL: it is of no rank */

    switch (action->kind) {
    case KVB_DO_NEXT_SOCKET:
        find_socket(bridge, action);
        break;

    /* ---- a run: one rank's replies, live batches, or tick ---- */
    case KVB_DO_BEGIN_RUN:
        /* The clocks are read for a run, not for each message: reading one takes as long as a
         * small event. */
        kvb_bridge_begin_run(ingest);
        break;
    case KVB_DO_NOTE_SHARE:
        note_share(bridge, rank, action->share);
        break;
    case KVB_DO_NEXT_REPLY:
        action->reply = kvb_bridge_next_reply(bridge, rank, &action->input);
        break;
    case KVB_DO_STOP_REPLAY:
        kvb_source_replay_stop(rank->source);
        break;
    case KVB_DO_RECEIVE:
        action->count = kvb_bridge_receive(bridge, rank);
        break;
    case KVB_DO_READ_MONITOR:
        /* Only now it is known from which engine the batches came. */
        action->link = kvb_bridge_read_monitor(bridge, rank);
        break;
    case KVB_DO_NOTE_LINK:
        if (action->is_up) {
            kvb_log_backoff_end(&rank->renewal_log);
            kvb_bridge_rediscover(bridge, rank->source_number, rank->part->worker);
        }
        break;
    case KVB_DO_NEXT_BATCH:
        action->has_batch = kvb_bridge_next_batch(bridge, rank, &action->input);
        break;
    case KVB_DO_PASS_OVER:
        kvb_bridge_count(bridge->shown, kvb_bridge_batches_unread, ingest->received.count);
        break;
    case KVB_DO_OUTPUT:
        /* The events join the message of the run: a burst of batches costs one. */
        /* The replies that are left are of no use to the stream. */
        if (action->stops_replay) {
            kvb_source_replay_stop(rank->source);
        }
        if (action->events) {
            action->status = kvb_bridge_publish_events(bridge, rank, action->events);
        }
        break;
    case KVB_DO_END_RUN:
        action->status = kvb_event_publisher_send(&bridge->publisher->events);
        kvb_bridge_end_run(ingest, rank, &action->took_ns);
        break;

    /* ---- time ---- */
    case KVB_DO_ASK_NATS:
        action->connects = kvb_bus_connects(bridge->publisher->bus);
        action->is_connected = kvb_bus_is_connected(bridge->publisher->bus);
        break;
    case KVB_DO_NOTE_NATS:
        note_nats(bridge, action);
        break;
    case KVB_DO_WORK:
        work_periodically(bridge, server->now_ns);
        break;
    case KVB_DO_TEND_LINK:
        kvb_bridge_tend_link(bridge, rank, server->now_ns);
        break;
    case KVB_DO_START_REPLAY:
        action->is_unresolved = !start_replay(bridge, rank, action->from);
        break;
    case KVB_DO_PUBLISH_LOADS:
        /* Asked in each turn; the period is the configuration's. */
        if (server->now_ns >= bridge->publisher->next_load_ns) {
            bridge->publisher->next_load_ns =
                server->now_ns + bridge->config->publish.load_period_ms * KVB_NS_PER_MS;
            kvb_bridge_publish_loads(bridge, server->now_ns);
        }
        break;
    case KVB_DO_ANNOUNCE:
        if (action->list == KVB_ADVERTISER_REPUBLISH) {
            kvb_bridge_void_checkpoint(bridge, rank); /* no batch makes these ids */
            kvb_bridge_count(bridge->shown, kvb_bridge_retellings, 1);
        } else {
            kvb_bridge_count(bridge->shown, kvb_bridge_announcements, 1);
        }
        server->wall_us = kvb_clock_wall_us();
        break;
    case KVB_DO_CHUNK:
        action->status = kvb_bridge_publish_events(bridge, rank, action->events);
        if (action->status == KVB_OK) {
            action->status = kvb_event_publisher_send(&bridge->publisher->events);
        }
        server->clock_ns = kvb_clock_monotonic_ns();
        break;
    case KVB_DO_BEAT:
        action->status = kvb_bridge_beat(bridge, rank, action->is_bye);
        break;
    case KVB_DO_NOTHING:
        break;
    }
}

static void carry_out_all(struct kvb_bridge *bridge)
{
    struct kvb_action *action = NULL;

    while ((action = kvb_serve_next(&bridge->ingest->server)) != NULL) {
        carry_out(bridge, action);
    }
}

/* True: there is more to do at once. */
static bool take_turn(struct kvb_bridge *bridge, uint64_t now_ns)
{
    kvb_serve_begin(&bridge->ingest->server, now_ns);
    carry_out_all(bridge);
    return bridge->ingest->server.has_slices;
}

void kvb_bridge_say_goodbye(struct kvb_bridge *bridge, struct bridge_rank *rank)
{
    kvb_serve_begin_goodbye(&bridge->ingest->server, &rank->served);
    carry_out_all(bridge);
}

/* ---- Waiting ---- */

static uint64_t sooner(uint64_t one, uint64_t other)
{
    return one < other ? one : other;
}

/* When there is something to do without input; 0: in each turn.  The periodic work is not counted:
 * the next turn does it, and one comes at least every rest_ns. */
static uint64_t due_ns_of(const struct kvb_bridge *bridge, uint64_t now_ns)
{
    const struct bridge_publisher *publisher = bridge->publisher;

    /* Both look in each turn whether they can go on, and no descriptor tells. */
    if (kvb_bridge_is_saving(bridge->checkpoints) || bridge->membership->republished_count > 0) {
        return 0;
    }
    /* While all figures have expired there is nothing to publish, and nothing to wake up for. */
    const uint64_t loads_ns =
        now_ns < publisher->load_until_ns ? publisher->next_load_ns : UINT64_MAX;
    return sooner(
        sooner(kvb_visits_due_ns(&bridge->ingest->server.visits), publisher->next_status_ns),
        sooner(kvb_bridge_refresh_due_ns(bridge), loads_ns));
}

static int wait_ms_of(const struct kvb_bridge *bridge)
{
    const uint64_t now_ns = kvb_clock_monotonic_ns();
    const uint64_t due_ns = sooner(due_ns_of(bridge, now_ns), now_ns + rest_ns);
    /* At least 20 ms: time alone never makes the thread turn more often, only input does. */
    const uint64_t wait_ns = due_ns < now_ns + poll_ns ? poll_ns : due_ns - now_ns;

    return (int)((wait_ns + KVB_NS_PER_MS - 1) / KVB_NS_PER_MS);
}

static void wait_for_sockets(struct kvb_bridge *bridge, bool has_more)
{
    struct bridge_ingest *ingest = bridge->ingest;
    /* First without waiting: whether there is input decides about the write and the pause. */
    kvb_status status = kvb_poller_wait(ingest->poller, 0);

    if (kvb_poller_is_idle(ingest->poller) && !has_more) {
        /* Published events are written only when no input is left: a burst fills nats.c's buffer,
         * and a single event is sent at once. */
        kvb_bus_write(bridge->publisher->bus);
        /* While many engines send seldom, their batches gather first. */
        const uint64_t pause_ns =
            kvb_coalescing_pause_ns(&ingest->server.coalescing, kvb_clock_monotonic_ns());
        if (pause_ns > 0) {
            kvb_poller_pause(pause_ns);
        }
        status = kvb_poller_wait(ingest->poller, wait_ms_of(bridge));
    }
    if (status != KVB_OK) {
        kvb_bridge_count(bridge->shown, kvb_bridge_wait_failures, 1);
    }
}

/* ---- The loop ---- */

void *kvb_bridge_run(void *context)
{
    struct kvb_bridge *bridge = context;
    struct bridge_publisher *publisher = bridge->publisher;
    bool has_more = false;

    (void)pthread_setname_np(pthread_self(), "kvb-ingest"); /* for top -H; may fail */
    while (!atomic_load(&bridge->is_stopping)) {
        wait_for_sockets(bridge, has_more);
        const uint64_t now_ns = kvb_clock_monotonic_ns();
        atomic_store_explicit(&bridge->shown->turned_ns, now_ns, memory_order_relaxed);

        /* Engines first: their events are what everybody waits for. */
        has_more = take_turn(bridge, now_ns);
        if (now_ns >= publisher->next_status_ns) {
            publisher->next_status_ns = now_ns + status_ns;
            kvb_bridge_publish_status(bridge, now_ns);
        }
        kvb_bridge_watch_rivals(bridge, now_ns);

        /* Then what others asked for.  Each has a limit of its own, because engines wait. */
        kvb_bridge_refresh(bridge, kvb_clock_monotonic_ns());
        has_more |=
            kvb_sync_responder_work(&publisher->sync, kvb_clock_monotonic_ns(), sync_turn_ns);
        has_more |= kvb_bridge_republish(bridge, republish_turn_ns);

        /* Ranks come and go only here, between two turns. */
        has_more |= kvb_bridge_work_membership(bridge, kvb_clock_monotonic_ns());
        kvb_bridge_save(bridge);
        kvb_bridge_count(bridge->shown, kvb_bridge_turns, 1); /* for the watchdog */
    }
    /* A bye says that the blocks are void.  Nobody would receive it while NATS is away. */
    for (size_t i = 0; publisher->was_allowed && i < bridge->membership->rank_count; i++) {
        kvb_bridge_say_goodbye(bridge, bridge->membership->ranks[i]);
    }
    /* Last: this may wait for the disk, and no engine and no reader waits any more. */
    kvb_bridge_save_all(bridge);
    kvb_bridge_save_numbers(bridge);
    return NULL;
}
