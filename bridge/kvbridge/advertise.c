#include "core/clock.h"
#include "kvbridge/checkpoints.h"
#include "kvbridge/ingest.h"
#include "kvbridge/membership.h"
#include "kvbridge/parts.h"
#include "kvbridge/publisher.h"
#include "kvbridge/rank.h"
#include "kvbridge/shown.h"
#include "stream/advertiser.h"
#include "stream/stream.h"

/* What stream/advertiser.h decides, published on NATS. */

static const uint64_t announce_turn_ns = 20 * KVB_NS_PER_MS;

struct rank_port {
    struct kvb_bridge *bridge;
    struct bridge_rank *rank;
};

static kvb_status publish_events(void *context, const struct kvb_router_batch *events)
{
    const struct rank_port *to = context;

    kvb_bridge_telling_epoch(to->bridge, to->rank, &events->epoch);
    return kvb_event_publisher_add(
        &to->bridge->publisher->events, events, kvb_stream_log(to->rank->served.stream));
}

static kvb_status flush(void *context)
{
    const struct rank_port *to = context;

    return kvb_event_publisher_flush(&to->bridge->publisher->events);
}

static struct kvb_advertiser_port port_of(struct rank_port *to)
{
    return (struct kvb_advertiser_port){ .publish = publish_events, .flush = flush, .context = to };
}

static void note_siblings(struct kvb_bridge *bridge, const struct bridge_rank *rank)
{
    for (size_t i = 0; i < bridge->membership->rank_count; i++) {
        struct bridge_rank *sibling = bridge->membership->ranks[i];
        if (sibling != rank && sibling->worker_id == rank->worker_id) {
            kvb_advertiser_sibling_cleared(&sibling->served.advertiser);
            kvb_serve_wake(&bridge->ingest->server, &sibling->served);
        }
    }
}

/* Published outside of a step, events were lost: what they lack is published soon. */
static void wake_after_loss(struct kvb_bridge *bridge, struct bridge_rank *rank)
{
    if (!kvb_advertiser_is_current(&rank->served.advertiser)) {
        kvb_serve_wake(&bridge->ingest->server, &rank->served);
    }
}

/* ---- Events ---- */

void kvb_bridge_publish_step(struct kvb_bridge *bridge, struct bridge_rank *rank)
{
    struct rank_port to = { .bridge = bridge, .rank = rank };
    const struct kvb_advertiser_port port = port_of(&to);

    if (kvb_advertiser_step(&rank->served.advertiser, &rank->served.output.events, &port)) {
        note_siblings(bridge, rank);
    }
}

void kvb_bridge_publish_events(
    struct kvb_bridge *bridge, struct bridge_rank *rank, const struct kvb_router_batch *events)
{
    struct rank_port to = { .bridge = bridge, .rank = rank };
    const struct kvb_advertiser_port port = port_of(&to);

    kvb_advertiser_publish(&rank->served.advertiser, events, &port);
    wake_after_loss(bridge, rank);
}

void kvb_bridge_flush_events(struct kvb_bridge *bridge, struct bridge_rank *rank)
{
    struct rank_port to = { .bridge = bridge, .rank = rank };
    const struct kvb_advertiser_port port = port_of(&to);

    kvb_advertiser_flush(&rank->served.advertiser, &port);
    wake_after_loss(bridge, rank);
}

/* ---- Whole streams ---- */

static void advertise(
    struct kvb_bridge *bridge, struct bridge_rank *rank, enum kvb_advertiser_action action,
    uint64_t now_ns)
{
    struct rank_port to = { .bridge = bridge, .rank = rank };
    const struct kvb_advertiser_port port = port_of(&to);

    if (action == KVB_ADVERTISER_REST) {
        return;
    }
    if (action == KVB_ADVERTISER_REPUBLISH) {
        kvb_bridge_void_checkpoint(bridge, rank); /* no batch makes these ids */
        kvb_metric_add(&bridge->shown->metrics, kvb_bridge_retellings, 1);
    } else {
        kvb_metric_add(&bridge->shown->metrics, kvb_bridge_announcements, 1);
    }
    if (kvb_advertiser_do(&rank->served.advertiser, action, &port, now_ns, kvb_clock_wall_us())) {
        note_siblings(bridge, rank);
    }
}

bool kvb_bridge_advertise_stream(void *context, struct kvb_served *served, uint64_t now_ns)
{
    struct kvb_bridge *bridge = context;
    struct bridge_rank *rank = kvb_bridge_rank_of(served);

    const struct kvb_advertiser_input input = {
        .now_ns = now_ns,
        .down_ns = kvb_connection_away_ns(&served->connection),
        .is_proven = kvb_checkpoint_is_proven(&rank->checkpoint, served->stream)
    };
    const enum kvb_advertiser_action action = kvb_advertiser_next(&served->advertiser, &input);
    advertise(bridge, rank, action, now_ns);
    return action == KVB_ADVERTISER_REST || kvb_clock_monotonic_ns() < now_ns + announce_turn_ns;
}

void kvb_bridge_say_goodbye(struct kvb_bridge *bridge, struct bridge_rank *rank, uint64_t now_ns)
{
    advertise(bridge, rank, kvb_advertiser_last(&rank->served.advertiser), now_ns);
    kvb_bridge_beat(bridge, rank, true);
}
