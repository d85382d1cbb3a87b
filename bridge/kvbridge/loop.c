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

static const int poll_ms = 20;
static const uint64_t status_ns = KVB_NS_PER_S;
static const uint64_t sync_turn_ns = 2 * KVB_NS_PER_MS; /* limit: engines' sockets wait meanwhile */
static const uint64_t republish_turn_ns = 2 * KVB_NS_PER_MS; /* limit: as above */

static void wait_for_sockets(struct kvb_bridge *bridge, bool has_more)
{
    struct bridge_ingest *ingest = bridge->ingest;
    kvb_status status = kvb_poller_wait(ingest->poller, 0);

    if (kvb_poller_is_idle(ingest->poller) && !has_more) {
        /* Published events are flushed only when no input is left: a burst fills nats.c's buffer,
         * and a single event is sent at once. */
        kvb_bus_flush_soon(bridge->publisher->bus);
        /* While many engines send seldom, their batches gather first. */
        const uint64_t pause_ns =
            kvb_coalescing_pause_ns(&ingest->server.coalescing, kvb_clock_monotonic_ns());
        if (pause_ns > 0) {
            kvb_poller_pause(pause_ns);
        }
        status = kvb_poller_wait(ingest->poller, poll_ms);
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

    (void)pthread_setname_np(pthread_self(), "kvb-ingest"); /* for top -H; may fail */
    while (!atomic_load(&bridge->is_stopping)) {
        wait_for_sockets(bridge, has_more);
        const uint64_t now_ns = kvb_clock_monotonic_ns();
        atomic_store_explicit(&bridge->shown->turned_ns, now_ns, memory_order_relaxed);

        /* Engines first: their events are what everybody waits for. */
        has_more = kvb_bridge_take_turn(bridge, now_ns);

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
