#include "core/clock.h"
#include "daemon/bridge_inside.h"

static const uint64_t settled_ns = KVB_NS_PER_S; /* what passes sooner is not worth a line */
static const uint64_t again_ns = 10 * KVB_NS_PER_S;

static bool is_trouble(enum kvb_stream_state state)
{
    return state == KVB_STREAM_DOWN || state == KVB_STREAM_PARTIAL;
}

/* Every state without trouble is as good as the other here. */
static bool is_news(enum kvb_stream_state now, enum kvb_stream_state said)
{
    return now != said && (is_trouble(now) || is_trouble(said));
}

static void
say(struct kvb_bridge *bridge, const struct bridge_rank *rank, const struct kvb_heartbeat *beat)
{
    char worker[24];
    char dp_rank[24];

    kvb_log_write(
        bridge->log, is_trouble(beat->state) ? KVB_LOG_WARNING : KVB_LOG_INFO, "bridge",
        is_trouble(beat->state) ? "a stream is in trouble" : "a stream is well again", "state",
        kvb_stream_state_name(beat->state), "reason", kvb_stream_reason_name(beat->reason),
        "worker", kvb_log_u64(worker, rank->worker_id), "dp_rank",
        kvb_log_u64(dp_rank, rank->dp_rank), "events", rank->settings.events, NULL);
}

void kvb_bridge_watch_state(
    struct kvb_bridge *bridge, struct bridge_rank *rank, const struct kvb_heartbeat *beat,
    uint64_t now_ns)
{
    struct rank_trouble *trouble = &rank->trouble;

    if (!rank->is_up) {
        kvb_bridge_look_again(bridge, rank->origin); /* it may have moved */
    }
    if (trouble->now != beat->state || trouble->since_ns == 0) {
        trouble->now = beat->state;
        trouble->since_ns = now_ns;
    }
    const bool is_settled = now_ns - trouble->since_ns >= settled_ns;
    const bool may_speak = trouble->said_ns == 0 || now_ns - trouble->said_ns >= again_ns;
    if (is_settled && may_speak && is_news(beat->state, trouble->said)) {
        say(bridge, rank, beat);
        trouble->said = beat->state;
        trouble->said_ns = now_ns;
    }
}
