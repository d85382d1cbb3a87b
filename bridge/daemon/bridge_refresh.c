#include "core/clock.h"
#include "core/own.h"
#include "daemon/bridge_inside.h"
#include "wire/json_writer.h"

/* What is held is stored again, for routers that read JSON, came late and ask for nothing:
 *
 *     turn   [ sockets ][ time ][ a part of one stream, or the ends of some ][ ... ]
 *
 * One stream is at work at a time: whoever was asked for first, else the next that had no
 * turn in this round.  refresh_plan.c says how much may go out.  A stream that routers must
 * not hear of now has no turn: it is announced as a whole when they may. */

static const uint64_t work_ns = KVB_NS_PER_MS; /* engines wait meanwhile */
static const uint64_t look_ns = 5 * KVB_NS_PER_MS;
static const uint64_t measure_ns = 100 * KVB_NS_PER_MS;

enum { step_blocks = 256, asks_a_turn = 4, most_answer_bytes = 4096 };

static void count(struct kvb_bridge *bridge, enum kvb_bridge_metric metric, uint64_t more)
{
    kvb_metric_add(&bridge->metrics, metric, more);
}

static uint64_t blocks_of(const struct bridge_rank *rank)
{
    return kvb_stream_mirror_count(rank->stream)->held[KVB_TIER_DEVICE];
}

/* Routers know all of it, and may. */
static bool is_ready(const struct bridge_rank *rank)
{
    return rank->is_announced && !rank->is_withdrawn && rank->down_ns == 0;
}

/* ---- Requests ---- */

static void answer(struct kvb_bridge *bridge, const struct kvb_refresh_ask *ask, kvb_span text)
{
    if (ask->reply[0] != '\0') {
        (void)kvb_bus_publish(bridge->bus, ask->reply, text); /* it asks again */
    }
}

static void
answer_error(struct kvb_bridge *bridge, const struct kvb_refresh_ask *ask, const char *why)
{
    KVB_OWN(kvb_buf_done) struct kvb_buf buf = { 0 };

    kvb_buf_init(&buf, most_answer_bytes);
    struct kvb_json_writer json = kvb_json_writer_of(&buf);
    kvb_json_write_begin(&json, '{');
    kvb_json_write_pair_text(&json, "error", why);
    kvb_json_write_end(&json, '}');
    if (json.status == KVB_OK) {
        answer(bridge, ask, kvb_buf_span(&buf));
    }
}

/* What became of a request. */
struct granting {
    uint64_t streams;
    uint64_t blocks; /* of these */
    uint64_t rationed;
    uint64_t away;
};

static void
answer_granted(struct kvb_bridge *bridge, const struct kvb_refresh_ask *ask, struct granting *all)
{
    KVB_OWN(kvb_buf_done) struct kvb_buf buf = { 0 };

    kvb_buf_init(&buf, most_answer_bytes);
    struct kvb_json_writer json = kvb_json_writer_of(&buf);
    kvb_json_write_begin(&json, '{');
    kvb_json_write_pair_text(&json, "bridge_id", bridge->bridge_id);
    kvb_json_write_pair_u64(&json, "streams", all->streams);
    kvb_json_write_pair_u64(&json, "blocks", all->blocks);
    kvb_json_write_pair_u64(&json, "rationed", all->rationed);
    kvb_json_write_pair_u64(&json, "away", all->away);
    kvb_json_write_end(&json, '}');
    if (json.status == KVB_OK) {
        answer(bridge, ask, kvb_buf_span(&buf));
    }
    count(bridge, kvb_bridge_refresh_granted, all->streams);
    count(bridge, kvb_bridge_refresh_rationed, all->rationed);
    count(bridge, kvb_bridge_refresh_away, all->away);
}

static void grant_rank(
    struct kvb_bridge *bridge, struct bridge_rank *rank, uint64_t now_ns, struct granting *all)
{
    const bool was_asked = rank->refresh.is_asked;

    if (!is_ready(rank)) {
        all->away++;
    } else if (kvb_refresh_turn_ask(&rank->refresh, now_ns)) {
        bridge->refresh.asked += !was_asked;
        all->streams++;
        all->blocks += blocks_of(rank);
    } else {
        all->rationed++;
    }
}

static bool is_meant(const struct kvb_refresh_request *request, const struct bridge_rank *rank)
{
    return (!request->has_worker_id || request->worker_id == rank->worker_id) &&
           (!request->has_rank || request->dp_rank == rank->dp_rank);
}

/* Of streams that are another bridge's nothing is said. */
static void grant(struct kvb_bridge *bridge, const struct kvb_refresh_ask *ask, uint64_t now_ns)
{
    struct granting all = { 0 };

    for (size_t i = 0; i < bridge->rank_count; i++) {
        if (is_meant(&ask->request, bridge->ranks[i])) {
            grant_rank(bridge, bridge->ranks[i], now_ns, &all);
        }
    }
    if (all.streams + all.rationed + all.away > 0 || !ask->request.has_worker_id) {
        answer_granted(bridge, ask, &all);
    }
}

static void take_asks(struct kvb_bridge *bridge, uint64_t now_ns)
{
    struct kvb_refresh_ask ask;

    for (int i = 0; i < asks_a_turn && kvb_refresh_desk_take(&bridge->refresh.desk, &ask) == KVB_OK;
         i++) {
        if (ask.is_bad) {
            answer_error(bridge, &ask, ask.why.text);
        } else if (!kvb_bridge_config_refreshes(bridge->config)) {
            bridge->refresh.desk.refused++;
            answer_error(
                bridge, &ask,
                "this bridge stores nothing again: ask P.kv_sync, or set publish.profile = "
                "\"json\" and publish.reannounce = \"auto\"");
        } else {
            grant(bridge, &ask, now_ns);
        }
    }
}

/* ---- Whose turn it is ---- */

static void end_rank(struct kvb_bridge *bridge, enum kvb_bridge_metric outcome)
{
    kvb_stream_refresh_end(bridge->refresh.rank->stream);
    bridge->refresh.rank = NULL;
    count(bridge, outcome, 1);
}

static void begin_rank(struct kvb_bridge *bridge, struct bridge_rank *rank)
{
    bridge->refresh.rank = rank;
    if (kvb_stream_refresh_begin(rank->stream) != KVB_OK) {
        end_rank(bridge, kvb_bridge_refresh_given_up);
    }
}

/* One that holds nothing, or is not to be told, has had its turn. */
static bool take_turn(struct kvb_bridge *bridge, struct bridge_rank *rank)
{
    const uint64_t round = bridge->refresh.plan.round;

    if (rank->refresh.round == round) {
        return false;
    }
    rank->refresh.round = round;
    return is_ready(rank) && blocks_of(rank) > 0;
}

static bool take_wish(struct kvb_bridge *bridge, struct bridge_rank *rank)
{
    if (!rank->refresh.is_asked) {
        return false;
    }
    rank->refresh.is_asked = false;
    bridge->refresh.asked--;
    return is_ready(rank) && blocks_of(rank) > 0;
}

static void end_round(struct kvb_bridge *bridge, uint64_t now_ns)
{
    const uint64_t took_ns = kvb_refresh_plan_next_round(&bridge->refresh.plan, now_ns);

    kvb_metric_set_real(
        &bridge->metrics, kvb_bridge_refresh_round, (double)took_ns / (double)KVB_NS_PER_S);
}

/* Goes on behind *next, once through all ranks at most; false: none was taken. */
static bool find_rank(
    struct kvb_bridge *bridge, size_t *next,
    bool (*take)(struct kvb_bridge *bridge, struct bridge_rank *rank))
{
    for (size_t i = 0; i < bridge->rank_count; i++) {
        struct bridge_rank *rank = bridge->ranks[*next % bridge->rank_count];
        *next = (*next + 1) % bridge->rank_count;
        if (take(bridge, rank)) {
            begin_rank(bridge, rank);
            return true;
        }
    }
    return false;
}

/* Who asked comes first, and does not change the order of the round. */
static void find_work(struct kvb_bridge *bridge, uint64_t now_ns)
{
    struct bridge_refresh *refresh = &bridge->refresh;

    refresh->is_wished = refresh->asked > 0;
    if (refresh->is_wished) {
        (void)find_rank(bridge, &refresh->next_asked, take_wish);
    } else if (!find_rank(bridge, &refresh->next_rank, take_turn)) {
        refresh->next_rank = 0;
        refresh->next_look_ns = now_ns + look_ns;
        end_round(bridge, now_ns);
    }
}

static void measure(struct kvb_bridge *bridge, uint64_t now_ns)
{
    uint64_t all = 0;
    uint64_t largest = 0;

    if (now_ns < bridge->refresh.next_measure_ns) {
        return;
    }
    bridge->refresh.next_measure_ns = now_ns + measure_ns;
    for (size_t i = 0; i < bridge->rank_count; i++) {
        const uint64_t blocks = is_ready(bridge->ranks[i]) ? blocks_of(bridge->ranks[i]) : 0;
        all += blocks;
        largest = blocks > largest ? blocks : largest;
    }
    kvb_refresh_plan_measure(&bridge->refresh.plan, all, largest);
}

/* ---- Telling ---- */

/* Tells a part of the rank at work. */
static void tell_part(struct kvb_bridge *bridge, size_t max_blocks, uint64_t now_ns)
{
    struct bridge_refresh *refresh = &bridge->refresh;
    struct bridge_rank *rank = refresh->rank;
    const uint64_t bytes_before = bridge->events.bytes;
    const size_t most = max_blocks < step_blocks ? max_blocks : step_blocks;
    bool is_done = false;

    if (kvb_stream_refresh_step(rank->stream, most, &refresh->events, &is_done) != KVB_OK) {
        end_rank(bridge, kvb_bridge_refresh_given_up);
        return;
    }
    if (kvb_bridge_tell_events(bridge, rank, &refresh->events, now_ns) != KVB_OK) {
        rank->is_announced = false;
    }
    kvb_bridge_tell_rest(bridge, rank);
    const uint64_t bytes = bridge->events.bytes - bytes_before;
    count(bridge, kvb_bridge_refresh_blocks, refresh->events.block_count);
    count(bridge, kvb_bridge_refresh_bytes, bytes);
    kvb_refresh_plan_told(&refresh->plan, refresh->events.block_count, bytes, refresh->is_wished);
    if (is_done) {
        end_rank(bridge, kvb_bridge_refresh_streams);
    }
}

/* How many blocks may go out; 0: there is nothing to do. */
static size_t allows(struct kvb_bridge *bridge, uint64_t now_ns)
{
    struct bridge_refresh *refresh = &bridge->refresh;
    /* who asked waits for the stream at work to end: that hurries then */
    const bool is_asked = refresh->asked > 0 || (refresh->rank && refresh->is_wished);

    if (!refresh->rank && !is_asked && now_ns < refresh->next_look_ns) {
        return 0;
    }
    return kvb_refresh_plan_allows(
        &refresh->plan, now_ns, refresh->rank ? blocks_of(refresh->rank) : 0, is_asked);
}

static void work(struct kvb_bridge *bridge, size_t max_blocks, uint64_t now_ns)
{
    struct bridge_refresh *refresh = &bridge->refresh;

    if (refresh->rank && !is_ready(refresh->rank)) {
        end_rank(bridge, kvb_bridge_refresh_given_up);
    } else if (refresh->rank) {
        tell_part(bridge, max_blocks, now_ns);
    } else {
        find_work(bridge, now_ns);
    }
}

static void note_work(struct kvb_bridge *bridge, uint64_t now_ns, uint64_t took_ns)
{
    struct kvb_metrics *metrics = &bridge->metrics;
    const double before_s = kvb_metric_get_real(metrics, kvb_bridge_refresh_seconds);

    kvb_metric_set_real(metrics, kvb_bridge_refresh_seconds, before_s + (double)took_ns / 1e9);
    kvb_refresh_plan_rest(&bridge->refresh.plan, now_ns, took_ns);
}

void kvb_bridge_refresh(struct kvb_bridge *bridge, uint64_t now_ns)
{
    uint64_t end_ns = now_ns;

    take_asks(bridge, now_ns);
    if (!bridge->was_allowed || !kvb_bridge_config_refreshes(bridge->config)) {
        return;
    }
    measure(bridge, now_ns);
    size_t most = allows(bridge, now_ns);
    if (most == 0) {
        return;
    }
    const uint64_t began_ns = kvb_clock_thread_ns();
    for (; most > 0 && end_ns < now_ns + work_ns; most = allows(bridge, end_ns)) {
        work(bridge, most, end_ns);
        end_ns = kvb_clock_monotonic_ns();
    }
    note_work(bridge, end_ns, kvb_clock_thread_ns() - began_ns);
}

/* ---- Coming and going ---- */

void kvb_bridge_drop_refresh(struct kvb_bridge *bridge, struct bridge_rank *rank)
{
    if (bridge->refresh.rank == rank) {
        end_rank(bridge, kvb_bridge_refresh_given_up);
    }
    bridge->refresh.asked -= rank->refresh.is_asked;
}

kvb_status kvb_bridge_open_refresh(struct kvb_bridge *bridge)
{
    const struct kvb_bridge_config *config = bridge->config;
    char subject[kvb_subject_bytes];

    kvb_refresh_plan_init(
        &bridge->refresh.plan, config->publish.refresh_s, kvb_clock_monotonic_ns());
    KVB_TRY(kvb_refresh_desk_init(&bridge->refresh.desk));
    KVB_TRY(kvb_subject_make(
        subject, config->publish.name_space, config->publish.component, "kv_refresh"));
    return kvb_bus_subscribe(
        bridge->bus, subject, kvb_refresh_desk_hear, &bridge->refresh.desk, &bridge->refresh.asks);
}

void kvb_bridge_close_refresh(struct kvb_bridge *bridge)
{
    kvb_refresh_desk_done(&bridge->refresh.desk);
    kvb_router_batch_done(&bridge->refresh.events);
}
