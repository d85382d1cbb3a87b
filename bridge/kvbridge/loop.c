#include "core/clock.h"
#include "kvbridge/checkpoints.h"
#include "kvbridge/ingest.h"
#include "kvbridge/membership.h"
#include "kvbridge/parts.h"
#include "kvbridge/publisher.h"
#include "kvbridge/refresh.h"
#include "kvbridge/republish.h"
#include "kvbridge/rivals.h"
#include "kvbridge/shown.h"
#include "stream/coalesce.h"

/* How long the thread waits for input: the first while something is under way, the second at rest.
 */
static const uint64_t poll_ns = 20 * KVB_NS_PER_MS;
static const uint64_t rest_ns = 200 * KVB_NS_PER_MS;

static const uint64_t status_ns = KVB_NS_PER_S;
static const uint64_t sync_turn_ns = 2 * KVB_NS_PER_MS; /* limit: engines' sockets wait meanwhile */
static const uint64_t republish_turn_ns = 2 * KVB_NS_PER_MS; /* limit: as above */

static uint64_t sooner(uint64_t one, uint64_t other)
{
    return one < other ? one : other;
}

/* When there is something to do without input; 0: in each turn.  was_busy: the turn before had
 * work, and the pages do not show it yet. */
static uint64_t due_ns_of(const struct kvb_bridge *bridge, bool was_busy, uint64_t now_ns)
{
    struct kvb_server *server = &bridge->ingest->server;
    const struct bridge_publisher *publisher = bridge->publisher;

    /* Both look in each turn whether they can go on, and no descriptor tells. */
    if (kvb_bridge_is_saving(bridge->checkpoints) || bridge->membership->republished_count > 0) {
        return 0;
    }
    const uint64_t loads_ns =
        now_ns < publisher->load_until_ns ? publisher->next_load_ns : UINT64_MAX;
    const uint64_t pages_ns = was_busy ? server->next_work_ns : publisher->next_status_ns;
    return sooner(
        sooner(kvb_visits_due_ns(&server->visits), sooner(pages_ns, publisher->next_status_ns)),
        sooner(kvb_bridge_refresh_due_ns(bridge), loads_ns));
}

static int wait_ms_of(const struct kvb_bridge *bridge, bool was_busy)
{
    const uint64_t now_ns = kvb_clock_monotonic_ns();
    const uint64_t due_ns = sooner(due_ns_of(bridge, was_busy, now_ns), now_ns + rest_ns);
    const uint64_t wait_ns = due_ns < now_ns + poll_ns ? poll_ns : due_ns - now_ns;

    return (int)((wait_ns + KVB_NS_PER_MS - 1) / KVB_NS_PER_MS);
}

static void wait_for_sockets(struct kvb_bridge *bridge, bool has_more, bool was_busy)
{
    struct bridge_ingest *ingest = bridge->ingest;
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
        status = kvb_poller_wait(ingest->poller, wait_ms_of(bridge, was_busy));
    }
    if (status != KVB_OK) {
        kvb_bridge_count(bridge->shown, kvb_bridge_wait_failures, 1);
    }
}

void *kvb_bridge_run(void *context)
{
    struct kvb_bridge *bridge = context;
    struct bridge_publisher *publisher = bridge->publisher;
    bool has_more = false;
    bool was_busy = false;

    (void)pthread_setname_np(pthread_self(), "kvb-ingest"); /* for top -H; may fail */
    while (!atomic_load(&bridge->is_stopping)) {
        wait_for_sockets(bridge, has_more, was_busy);
        const uint64_t now_ns = kvb_clock_monotonic_ns();
        atomic_store_explicit(&bridge->shown->turned_ns, now_ns, memory_order_relaxed);

        const uint64_t work_ns = bridge->ingest->server.next_work_ns;
        const bool is_busy = !kvb_poller_is_idle(bridge->ingest->poller) ||
                             kvb_visits_due_ns(&bridge->ingest->server.visits) <= now_ns;

        /* Engines first: their events are what everybody waits for. */
        has_more = kvb_bridge_take_turn(bridge, now_ns);
        /* The periodic work, which shows what came before it, comes before a turn's round. */
        was_busy = is_busy || (was_busy && bridge->ingest->server.next_work_ns == work_ns);

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
    for (size_t i = 0; publisher->was_allowed && i < bridge->membership->rank_count; i++) {
        kvb_bridge_say_goodbye(bridge, bridge->membership->ranks[i]);
    }
    kvb_bridge_save_all(bridge);
    kvb_bridge_save_numbers(bridge);
    return NULL;
}
