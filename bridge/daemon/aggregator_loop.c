#include "core/clock.h"
#include "daemon/aggregator_inside.h"

#include <poll.h>
#include <stdatomic.h>

enum {
    tick_ms = 100,
    subscribe_wait_ms = 200,
    swept_a_tick = 2000, /* extents of the index: about 1 ms */
};

/* A loss and a return between two looks are both told. */
static void watch_nats(struct kvb_aggregator *aggregator, uint64_t now_ns)
{
    const bool is_connected =
        kvb_bus_is_connected(aggregator->bus) && kvb_aggregator_hears_itself(aggregator, now_ns);
    const uint64_t connects = kvb_bus_connects(aggregator->bus);
    const bool was_replaced = connects != aggregator->connects_seen;

    if (aggregator->was_connected && (!is_connected || was_replaced)) {
        kvb_followers_nats_away(aggregator->followers, now_ns);
    }
    if (is_connected && (!aggregator->was_connected || was_replaced)) {
        kvb_followers_nats_back(aggregator->followers, now_ns);
    }
    aggregator->was_connected = is_connected;
    aggregator->connects_seen = connects;
}

/* A subscription counts once the server has answered a PING sent after it: what is
 * published before may pass us by.  Waits, but once a connection. */
static void confirm_subscriptions(struct kvb_aggregator *aggregator)
{
    const uint64_t connects = aggregator->connects_seen;

    if (aggregator->was_connected &&
        atomic_load_explicit(&aggregator->connects_subscribed, memory_order_relaxed) != connects &&
        kvb_bus_flush(aggregator->bus, subscribe_wait_ms) == KVB_OK) {
        atomic_store_explicit(&aggregator->connects_subscribed, connects, memory_order_relaxed);
    }
}

const char *kvb_aggregator_not_ready(const struct kvb_aggregator *aggregator)
{
    if (!kvb_bus_is_connected(aggregator->bus)) {
        return "not connected to NATS (nats.url); trying again";
    }
    if (atomic_load_explicit(&aggregator->connects_subscribed, memory_order_relaxed) !=
        kvb_bus_connects(aggregator->bus)) {
        return "connected to NATS, but not subscribed yet";
    }
    return NULL;
}

static void tick(struct kvb_aggregator *aggregator, uint64_t now_ns)
{
    if (now_ns < aggregator->next_tick_ns) {
        return;
    }
    aggregator->next_tick_ns = now_ns + (tick_ms * KVB_NS_PER_MS);
    confirm_subscriptions(aggregator);
    kvb_followers_tick(aggregator->followers, now_ns);
    (void)kvb_prefix_index_tend(aggregator->index, swept_a_tick); /* the rest another time */
    if (kvb_load_tracker_expire(aggregator->tracker, now_ns)) {
        aggregator->has_load_changed = true;
    }
    kvb_aggregator_publish_load(aggregator, now_ns);
    kvb_aggregator_update_metrics(aggregator, now_ns);
    kvb_aggregator_update_board(aggregator, now_ns);
}

/* Until something lies in a ring, or the next tick. */
static void wait_for_work(const struct kvb_aggregator *aggregator, uint64_t now_ns)
{
    struct pollfd fds[2] = {
        { .fd = kvb_ring_fd(aggregator->events), .events = POLLIN },
        { .fd = kvb_ring_fd(aggregator->asks), .events = POLLIN },
    };
    const uint64_t wait_ns =
        aggregator->next_tick_ns > now_ns ? aggregator->next_tick_ns - now_ns : 0;

    (void)poll(fds, 2, (int)(wait_ns / KVB_NS_PER_MS) + 1); /* early is harmless */
}

void *kvb_aggregator_run(void *context)
{
    struct kvb_aggregator *aggregator = context;

    (void)pthread_setname_np(pthread_self(), "kvb-index"); /* for top -H; else unnamed */
    while (!atomic_load(&aggregator->is_stopping)) {
        const uint64_t now_ns = kvb_clock_monotonic_ns();
        watch_nats(aggregator, now_ns);
        const bool had_events = kvb_aggregator_take_events(aggregator, now_ns);
        const bool had_asks = kvb_aggregator_take_asks(aggregator);
        kvb_aggregator_ask_bridges(aggregator, now_ns);
        tick(aggregator, now_ns);
        kvb_metric_add(&aggregator->metrics, kvb_aggregator_turns, 1); /* the watchdog looks */
        if (!had_events && !had_asks) {
            wait_for_work(aggregator, now_ns);
        }
    }
    return NULL;
}
