#include "core/clock.h"
#include "daemon/bridge_inside.h"

/* What routers are told of the streams, and when they are told all of it anew.
 *
 *                      a loss, a ceiling, `cleared` spelt out
 *            +-----------------------------------------------+
 *            v                                               |
 *     not announced --- new epoch, all that is held ---> announced --- steps --->
 *                                                            |  ^
 *                     engine away for down_clear_ms: new     v  |  it is back
 *                     epoch, nothing held                withdrawn
 *
 * A restored stream (bridge_checkpoint.c) begins as announced where readers ask for what
 * they lack: the same epoch, the next id, nothing to be said.  Where they cannot ask, the
 * last process may have died with events that had not left it yet, and at a clean stop it
 * told that nothing is held: so a restored stream begins as not announced, and is told
 * anew as soon as its engine has proven it, or as away when the engine is. */

static const uint64_t announce_again_ns = 500 * KVB_NS_PER_MS;
static const uint64_t announce_turn_ns = 20 * KVB_NS_PER_MS;

enum { announce_chunk_blocks = 4096 };

static bool is_announcing_never(const struct kvb_bridge *bridge)
{
    const enum kvb_reannounce when = bridge->config->publish.reannounce;

    return when == KVB_REANNOUNCE_NEVER ||
           (when == KVB_REANNOUNCE_AUTO && bridge->config->publish.profile == KVB_PROFILE_PROTOBUF);
}

static bool has_cleared(const struct kvb_router_batch *events)
{
    for (size_t i = 0; i < events->event_count; i++) {
        if (events->events[i].kind == KVB_ROUTER_CLEARED) {
            return true;
        }
    }
    return false;
}

/* Readers of JSON that know no ranks have lost what the worker's other ranks hold. */
static void retell_siblings(struct kvb_bridge *bridge, const struct bridge_rank *rank)
{
    for (size_t i = 0; i < bridge->rank_count; i++) {
        struct bridge_rank *sibling = bridge->ranks[i];
        if (sibling != rank && sibling->worker_id == rank->worker_id && sibling->is_announced) {
            sibling->is_retelling_due = bridge->config->publish.profile == KVB_PROFILE_JSON;
        }
    }
}

/* ---- Steps ---- */

kvb_status kvb_bridge_tell_events(
    struct kvb_bridge *bridge, struct bridge_rank *rank, const struct kvb_router_batch *events,
    uint64_t now_ns)
{
    kvb_bridge_telling_epoch(bridge, rank, &events->epoch);
    /* first, for it may arrive even when its publish fails */
    if (rank->told) {
        KVB_TRY(kvb_told_note(rank->told, events, now_ns));
    }
    return kvb_event_publisher_add(&bridge->events, events);
}

void kvb_bridge_tell_step(struct kvb_bridge *bridge, struct bridge_rank *rank, uint64_t now_ns)
{
    const struct kvb_router_batch *events = &rank->output.events;

    if (!rank->is_announced || rank->is_withdrawn || events->event_count == 0) {
        if (rank->told) { /* a predecessor that was killed may have told it */
            (void)kvb_told_note(rank->told, events, now_ns);
        }
        return; /* the announcement to come says it */
    }
    const bool is_cleared = has_cleared(events);
    if (is_cleared && rank->told) {
        rank->is_announced = false;
        rank->needs_epoch = true;
        rank->announce_ns = now_ns;
        return;
    }
    if (kvb_bridge_tell_events(bridge, rank, events, now_ns) != KVB_OK) {
        rank->is_announced = false;
    } else if (is_cleared) {
        retell_siblings(bridge, rank);
    }
}

void kvb_bridge_tell_rest(struct kvb_bridge *bridge, struct bridge_rank *rank)
{
    if (kvb_event_publisher_flush(&bridge->events) != KVB_OK) {
        rank->is_announced = false;
    }
}

/* ---- Telling all ---- */

struct telling {
    struct kvb_bridge *bridge;
    struct bridge_rank *rank;
    uint64_t now_ns;
};

static kvb_status publish_chunk(void *context, const struct kvb_router_batch *chunk)
{
    const struct telling *telling = context;

    KVB_TRY(kvb_bridge_tell_events(telling->bridge, telling->rank, chunk, telling->now_ns));
    return kvb_event_publisher_flush(&telling->bridge->events);
}

static kvb_status tell_all(
    struct kvb_bridge *bridge, struct bridge_rank *rank, enum kvb_opening opening, uint64_t now_ns)
{
    struct telling context = { .bridge = bridge, .rank = rank, .now_ns = now_ns };
    const struct kvb_stream_telling telling = { .opening = opening,
                                                .told = rank->told,
                                                .max_chunk_blocks = announce_chunk_blocks,
                                                .visit = publish_chunk,
                                                .context = &context };

    return kvb_stream_tell(rank->stream, &telling);
}

/* Opens a new epoch, and tells what is in it. */
static void
announce(struct kvb_bridge *bridge, struct bridge_rank *rank, bool is_withdrawn, uint64_t now_ns)
{
    kvb_stream_open_epoch(rank->stream, kvb_clock_wall_us(), is_withdrawn);
    if (rank->told) {
        kvb_bridge_beat_opening(bridge, rank);
    }
    const kvb_status status =
        tell_all(bridge, rank, rank->told ? KVB_OPENING_REMOVED : KVB_OPENING_CLEARED, now_ns);
    kvb_metric_add(&bridge->metrics, kvb_bridge_announcements, 1);
    rank->is_announced = status == KVB_OK;
    rank->needs_epoch = status != KVB_OK;
    rank->is_withdrawn = is_withdrawn;
    rank->is_retelling_due = false;
    rank->is_beat_due = true;
    rank->announce_ns = now_ns + announce_again_ns;
    retell_siblings(bridge, rank);
}

/* In the same epoch: whoever has it already notices nothing. */
static void retell(struct kvb_bridge *bridge, struct bridge_rank *rank, uint64_t now_ns)
{
    rank->is_retelling_due = false;
    kvb_bridge_void_checkpoint(bridge, rank); /* no batch makes these ids */
    rank->is_announced = tell_all(bridge, rank, KVB_OPENING_NONE, now_ns) == KVB_OK;
    kvb_metric_add(&bridge->metrics, kvb_bridge_retellings, 1);
}

static bool
is_long_away(const struct kvb_bridge *bridge, const struct bridge_rank *rank, uint64_t now_ns)
{
    const uint64_t limit_ns = bridge->config->publish.down_clear_ms * KVB_NS_PER_MS;

    return limit_ns > 0 && rank->down_ns > 0 && now_ns - rank->down_ns >= limit_ns;
}

static void tell_stream(struct kvb_bridge *bridge, struct bridge_rank *rank, uint64_t now_ns)
{
    const bool is_away = is_long_away(bridge, rank, now_ns);

    if (!rank->is_announced && !rank->needs_epoch && is_announcing_never(bridge)) {
        rank->is_announced = true; /* the ids show what is lost */
        rank->is_beat_due = true;
    }
    if (!rank->is_announced && !kvb_bridge_is_proven(rank) && !is_away) {
        return; /* of what was restored nothing is told that may be wrong */
    }
    if (!rank->is_announced || rank->is_withdrawn != is_away) {
        if (now_ns >= rank->announce_ns) {
            announce(bridge, rank, is_away, now_ns);
        }
    } else if (rank->is_retelling_due) {
        retell(bridge, rank, now_ns);
    } else if (rank->told && !kvb_bridge_is_saving(bridge, rank)) {
        kvb_told_forget(rank->told, now_ns);
    }
}

void kvb_bridge_tell_streams(struct kvb_bridge *bridge, uint64_t now_ns)
{
    for (size_t i = 0; i < bridge->rank_count; i++) {
        const size_t at = (bridge->next_told + i) % bridge->rank_count;
        tell_stream(bridge, bridge->ranks[at], now_ns);
        if (kvb_clock_monotonic_ns() >= now_ns + announce_turn_ns) {
            bridge->next_told = at + 1; /* nobody waits for ever */
            break;
        }
    }
}

void kvb_bridge_lose_touch(struct kvb_bridge *bridge, uint64_t from_ns)
{
    for (size_t i = 0; i < bridge->rank_count; i++) {
        struct bridge_rank *rank = bridge->ranks[i];
        rank->is_announced = false;
        rank->announce_ns = from_ns > rank->announce_ns ? from_ns : rank->announce_ns;
    }
}

/* Readers of JSON may know no heartbeats, and so no goodbye. */
void kvb_bridge_tell_goodbye(struct kvb_bridge *bridge, struct bridge_rank *rank, uint64_t now_ns)
{
    if (bridge->config->publish.profile == KVB_PROFILE_JSON && !rank->needs_epoch) {
        announce(bridge, rank, true, now_ns);
    }
    kvb_bridge_beat(bridge, rank, true);
}
