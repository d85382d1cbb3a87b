#include "kvbridge/rivals.h"
#include "core/clock.h"
#include "daemon/http.h"
#include "kvbridge/membership.h"
#include "kvbridge/parts.h"
#include "kvbridge/publisher.h"
#include "kvbridge/rank.h"
#include "kvbridge/shown.h"
#include "wire/router/bridge_streams.h"

/* Publishes which streams this bridge has, and logs other bridges that have one of them.
 *
 * With a thousand bridges some 30 lists a second arrive: 0.1 % of a core.  To compare one of 8
 * streams takes 0.4 us, and to deliver it some 40 us, for two wake-ups of nats.c.  Once a rival is
 * heard, both publish each second, so that both find each other. */

static const uint64_t look_ns = KVB_NS_PER_S;
static const uint64_t changed_ns = 5 * KVB_NS_PER_S; /* workers may come and go all the time */
static const uint64_t quiet_ns = 30 * KVB_NS_PER_S;  /* a message may have been lost */

static struct kvb_bridge_stream own_stream(const void *context, size_t at)
{
    const struct bridge_membership *membership = context;

    return (struct kvb_bridge_stream){ .worker_id = membership->ranks[at]->worker_id,
                                       .dp_rank = membership->ranks[at]->dp_rank };
}

/* KVB_AGAIN: not connected. */
static kvb_status publish_streams(struct kvb_bridge *bridge)
{
    const struct bridge_membership *membership = bridge->membership;
    struct bridge_rivals *rivals = bridge->rivals;
    struct kvb_buf *buf = &bridge->publisher->buf;
    size_t count = 0;

    if (rivals->listed_changes != membership->changes) {
        KVB_TRY(kvb_rival_table_set_own(
            &rivals->table, own_stream, membership, membership->rank_count));
        rivals->listed_changes = membership->changes;
    }
    const struct kvb_bridge_stream *own = kvb_rival_table_own(&rivals->table, &count);
    for (size_t at = 0; at < count; at += kvb_bridge_streams_most) {
        const size_t left = count - at;
        const size_t some = left < kvb_bridge_streams_most ? left : kvb_bridge_streams_most;
        kvb_buf_reset(buf);
        KVB_TRY(kvb_bridge_streams_encode(bridge->bridge_id, own + at, some, buf));
        KVB_TRY(kvb_bus_publish(bridge->publisher->bus, rivals->subject, kvb_buf_span(buf)));
        bridge->publisher->events.messages++;
    }
    return KVB_OK;
}

static void
log_rival(struct kvb_bridge *bridge, enum kvb_rival_change change, const struct kvb_rival *rival)
{
    if (change == KVB_RIVAL_GONE) {
        kvb_log_write(
            bridge->log, KVB_LOG_INFO, "bridge",
            "the other bridge publishes workers of this one no more", "bridge", bridge->bridge_id,
            "other", rival->bridge_id, NULL);
        return;
    }
    kvb_log_write(
        bridge->log, KVB_LOG_WARNING, "bridge",
        "another bridge publishes workers of this one, so their lists are unverified: remove them "
        "from the configuration of one of the two, or stop the other bridge",
        "bridge", bridge->bridge_id, "other", rival->bridge_id, "streams",
        KVB_LOG_U64(rival->streams), "worker", KVB_LOG_U64(rival->stream.worker_id), "dp_rank",
        KVB_LOG_U64(rival->stream.dp_rank), NULL);
}

static bool is_list_due(const struct kvb_bridge *bridge, bool is_heard, uint64_t now_ns)
{
    const struct bridge_rivals *rivals = bridge->rivals;
    const uint64_t since_ns = now_ns - rivals->listed_ns;
    /* Spread, because bridges that lost the same server have begun at once. */
    const uint64_t pause_ns = quiet_ns + (bridge->publisher->id % 8) * KVB_NS_PER_S;

    return rivals->listed_ns == 0 || is_heard || since_ns >= pause_ns ||
           (since_ns >= changed_ns && rivals->listed_changes != bridge->membership->changes);
}

void kvb_bridge_watch_rivals(struct kvb_bridge *bridge, uint64_t now_ns)
{
    struct bridge_rivals *rivals = bridge->rivals;
    enum kvb_rival_change change;
    struct kvb_rival rival;
    size_t found = 0;

    if (now_ns < rivals->next_look_ns) {
        return;
    }
    rivals->next_look_ns = now_ns + look_ns;
    while (kvb_rival_table_next(&rivals->table, now_ns, &change, &rival)) {
        log_rival(bridge, change, &rival);
    }
    const bool is_heard = kvb_rival_table_count(&rivals->table, &found) > 0;
    kvb_metric_set(&bridge->shown->metrics, kvb_bridge_rivals, found);
    if (is_list_due(bridge, is_heard, now_ns) && publish_streams(bridge) == KVB_OK) {
        rivals->listed_ns = now_ns;
    }
}

void kvb_bridge_list_streams_soon(struct kvb_bridge *bridge)
{
    bridge->rivals->listed_ns = 0;
    bridge->rivals->next_look_ns = 0;
}

kvb_status kvb_bridge_open_rivals(struct kvb_bridge *bridge)
{
    struct bridge_rivals *rivals = bridge->rivals;

    rivals->listed_changes = UINT64_MAX; /* none */
    KVB_TRY(kvb_contract_subject_make(
        KVB_SUBJECT_BRIDGE_STREAMS, &bridge->publisher->names, rivals->subject));
    return kvb_bus_subscribe(
        bridge->publisher->bus, rivals->subject, kvb_rival_table_receive, &rivals->table,
        &rivals->incoming);
}
