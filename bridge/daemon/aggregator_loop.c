#include "core/clock.h"
#include "core/own.h"
#include "daemon/aggregator_inside.h"

#include <poll.h>
#include <stdatomic.h>
#include <sys/eventfd.h>

enum {
    tick_ms = 100,
    swept_a_turn = 250, /* extents of the index: well under 250 us */
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
    kvb_followers_tick(aggregator->followers, now_ns);
    if (kvb_load_tracker_expire(aggregator->tracker, now_ns)) {
        aggregator->has_load_changed = true;
    }
    kvb_aggregator_publish_load(aggregator, now_ns);
    kvb_aggregator_update_metrics(aggregator, now_ns);
    kvb_aggregator_update_board(aggregator, now_ns);
}

/* Until something lies in a ring, the connection changes, or the next tick. */
static void
wait_for_work(const struct kvb_aggregator *aggregator, bool is_work_left, uint64_t now_ns)
{
    struct pollfd fds[3] = {
        { .fd = kvb_ring_fd(aggregator->events), .events = POLLIN },
        { .fd = kvb_ring_fd(aggregator->asks), .events = POLLIN },
        { .fd = aggregator->news_fd, .events = POLLIN },
    };
    const uint64_t wait_ns =
        aggregator->next_tick_ns > now_ns ? aggregator->next_tick_ns - now_ns : 0;
    const int wait_ms = is_work_left ? 0 : (int)(wait_ns / KVB_NS_PER_MS);
    eventfd_t ignored = 0;

    (void)poll(fds, KVB_COUNT_OF(fds), wait_ms + 1); /* early is harmless */
    if (fds[2].revents) {
        (void)eventfd_read(aggregator->news_fd, &ignored); /* looked at in each turn */
    }
}

/* Idle, so what cleared slots have left behind may go.  A pause between two pieces: where
 * memory is out nothing goes, and it must not be tried all the time. */
static bool sweep(struct kvb_aggregator *aggregator)
{
    return kvb_prefix_index_tend(aggregator->index, swept_a_turn);
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
            wait_for_work(aggregator, sweep(aggregator), now_ns);
        }
    }
    return NULL;
}
