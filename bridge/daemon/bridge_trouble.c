#include "core/clock.h"
#include "daemon/bridge_inside.h"

static const uint64_t settled_ns = KVB_NS_PER_S; /* what passes sooner is not worth a line */
static const uint64_t again_ns = 10 * KVB_NS_PER_S;

/* A socket that is bound was so before the engine's HTTP side named it. */
static const uint64_t unreachable_after_ns = 5 * KVB_NS_PER_S;
static const uint64_t unreachable_look_ns = 60 * KVB_NS_PER_S; /* it may be started otherwise */

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

/* ---- An engine that connects ---- */

static void say_unreachable(struct kvb_bridge *bridge, struct bridge_rank *rank)
{
    char worker[24];
    char dp_rank[24];

    kvb_detail_set(
        &rank->trouble.why,
        "the engine says %.100s, and nobody listens there: without a * in its endpoint it "
        "connects. Give the engine tcp://*:PORT, or read it with `events` and bind = true",
        rank->settings.events);
    kvb_log_write(
        bridge->log, KVB_LOG_WARNING, "bridge",
        "an engine that connects to its endpoint cannot be subscribed to", "why",
        rank->trouble.why.text, "worker", kvb_log_u64(worker, rank->worker_id), "dp_rank",
        kvb_log_u64(dp_rank, rank->dp_rank), NULL);
}

/* What an engine names without a * it has bound (it was given port 0, and says which it got),
 * or connects to: nobody can tell but by trying.  A rank that was ever connected was bound. */
static void watch_reach(struct kvb_bridge *bridge, struct bridge_rank *rank, uint64_t now_ns)
{
    struct rank_trouble *trouble = &rank->trouble;

    if (!rank->settings.may_connect) {
        return;
    }
    if (rank->is_up || kvb_source_count(rank->source)->connects > 0) {
        trouble->is_unreachable = false;
        trouble->why.text[0] = '\0';
        return;
    }
    if (!trouble->is_unreachable && now_ns - trouble->since_ns >= unreachable_after_ns) {
        trouble->is_unreachable = true;
        say_unreachable(bridge, rank);
    }
}

/* Whether its engine has moved.  One that connects has not: it is asked as often as it may
 * have been started again. */
static void look_again(struct kvb_bridge *bridge, struct bridge_rank *rank, uint64_t now_ns)
{
    struct rank_trouble *trouble = &rank->trouble;

    if (rank->is_up || now_ns < trouble->next_look_ns) {
        return;
    }
    trouble->next_look_ns = trouble->is_unreachable ? now_ns + unreachable_look_ns : 0;
    kvb_bridge_look_again(bridge, rank->origin);
}

/* ---- A configured block size that is not the engine's ---- */

/* The engine's own is used: every prompt would be hashed in blocks that it does not have. */
static void watch_block_size(
    struct kvb_bridge *bridge, struct bridge_rank *rank, const struct kvb_heartbeat *beat)
{
    char worker[24];
    char dp_rank[24];
    char configured[24];
    char engine[24];

    if (rank->trouble.is_block_size_said || beat->block_size == rank->settings.block_size) {
        return;
    }
    rank->trouble.is_block_size_said = true;
    kvb_log_write(
        bridge->log, KVB_LOG_WARNING, "bridge",
        "block_size of a worker is not its engine's: the engine's is used, correct the "
        "configuration",
        "worker", kvb_log_u64(worker, rank->worker_id), "dp_rank",
        kvb_log_u64(dp_rank, rank->dp_rank), "configured",
        kvb_log_u64(configured, rank->settings.block_size), "engine",
        kvb_log_u64(engine, beat->block_size), NULL);
}

/* ---- Streams ---- */

void kvb_bridge_watch_state(
    struct kvb_bridge *bridge, struct bridge_rank *rank, const struct kvb_heartbeat *beat,
    uint64_t now_ns)
{
    struct rank_trouble *trouble = &rank->trouble;

    if (trouble->now != beat->state || trouble->since_ns == 0) {
        trouble->now = beat->state;
        trouble->since_ns = now_ns;
    }
    watch_reach(bridge, rank, now_ns);
    look_again(bridge, rank, now_ns);
    watch_block_size(bridge, rank, beat);
    const bool is_settled = now_ns - trouble->since_ns >= settled_ns;
    const bool may_speak = trouble->said_ns == 0 || now_ns - trouble->said_ns >= again_ns;
    if (is_settled && may_speak && is_news(beat->state, trouble->said)) {
        say(bridge, rank, beat);
        trouble->said = beat->state;
        trouble->said_ns = now_ns;
    }
}
