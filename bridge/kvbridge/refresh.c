#include "kvbridge/refresh.h"
#include "bus/subject.h"
#include "core/clock.h"
#include "core/own.h"
#include "kvbridge/ingest.h"
#include "kvbridge/membership.h"
#include "kvbridge/parts.h"
#include "kvbridge/publisher.h"
#include "kvbridge/rank.h"
#include "kvbridge/shown.h"
#include "stream/advertiser.h"
#include "stream/stream.h"
#include "wire/json/writer.h"
#include "wire/query/refresh.h"

#include <stdlib.h>
#include <string.h>

/* Publishes all held blocks again, for routers that read JSON, start late and send no requests:
 *
 *     turn   [ sockets ][ time ][ a part of one stream, or the ends of some ][ ... ]
 *
 * One stream is refreshed at a time: the one requested first, else the next that had no turn in
 * this round.  refresh_plan.c limits how much may be published.  A stream that must not be
 * published now has no turn: it is announced as a whole later. */

static const uint64_t work_ns = KVB_NS_PER_MS; /* limit of one turn: engines wait meanwhile */
static const uint64_t look_ns = 5 * KVB_NS_PER_MS;
static const uint64_t measure_ns = 100 * KVB_NS_PER_MS;

enum {
    step_blocks = 256,
    waiting_requests = 64,
    requests_a_turn = 4,
    reply_bytes = 256,
    max_answer_bytes = 4096
};

/* A request that was received. */
struct pending_refresh {
    struct kvb_refresh_request request; /* unless is_bad */
    bool is_bad;
    struct kvb_detail why;   /* why it is no request */
    char reply[reply_bytes]; /* "": no answer is expected */
};

static uint64_t refresh_blocks(const struct bridge_rank *rank)
{
    return kvb_stream_mirror_count(rank->served.stream)->held[KVB_TIER_DEVICE];
}

/* True: the stream is announced and its engine is connected. */
static bool is_rank_ready(const struct bridge_rank *rank)
{
    return kvb_advertiser_lists(&rank->served.advertiser) &&
           kvb_stream_away_ns(rank->served.stream) == 0;
}

/* ---- On nats.c's thread ---- */

void kvb_bridge_refresh_receive(void *context, const struct kvb_bus_message *message)
{
    struct bridge_refresh *refresh = context;
    const char *reply = message->reply ? message->reply : "";
    struct pending_refresh *pending = calloc(1, sizeof *pending);

    /* An answer among events would stop some routers for good. */
    if (!pending || strlen(reply) >= sizeof pending->reply || kvb_reply_is_refused(reply)) {
        free(pending);
        refresh->refused++;
        return;
    }
    memcpy(pending->reply, reply, strlen(reply) + 1);
    /* What is no request is queued, too: the ingest thread answers with the reason. */
    pending->is_bad =
        kvb_refresh_json_decode(message->payload, &pending->request, &pending->why) != KVB_OK;
    refresh->refused += pending->is_bad;
    if (kvb_ring_put(refresh->requests, pending) != KVB_OK) {
        free(pending);
        refresh->refused++;
    }
}

/* ---- Requests ---- */

static void answer_refresh(
    struct bridge_publisher *publisher, const struct pending_refresh *pending, kvb_span text)
{
    if (pending->reply[0] != '\0') {
        /* If the answer is lost, the router requests again. */
        (void)kvb_bus_publish(publisher->bus, pending->reply, text);
    }
}

static void answer_error(
    struct bridge_publisher *publisher, const struct pending_refresh *pending, const char *why)
{
    KVB_OWN(kvb_buf_done) struct kvb_buf buf = { 0 };

    kvb_buf_init(&buf, max_answer_bytes);
    if (kvb_http_write_error(why, &buf) == KVB_OK) {
        answer_refresh(publisher, pending, kvb_buf_span(&buf));
    }
}

/* The outcome of a request. */
struct granting {
    uint64_t streams;
    uint64_t blocks; /* blocks of these streams */
    uint64_t rationed;
    uint64_t away;
};

static void answer_granted(
    struct kvb_bridge *bridge, const struct pending_refresh *pending, struct granting *all)
{
    KVB_OWN(kvb_buf_done) struct kvb_buf buf = { 0 };

    kvb_buf_init(&buf, max_answer_bytes);
    struct kvb_json_writer json = kvb_json_writer_of(&buf);
    kvb_json_write_begin(&json, '{');
    kvb_json_write_pair_text(&json, "bridge_id", bridge->bridge_id);
    kvb_json_write_pair_u64(&json, "streams", all->streams);
    kvb_json_write_pair_u64(&json, "blocks", all->blocks);
    kvb_json_write_pair_u64(&json, "rationed", all->rationed);
    kvb_json_write_pair_u64(&json, "away", all->away);
    kvb_json_write_end(&json, '}');
    if (json.status == KVB_OK) {
        answer_refresh(bridge->publisher, pending, kvb_buf_span(&buf));
    }
    kvb_bridge_count(bridge->shown, kvb_bridge_refresh_granted, all->streams);
    kvb_bridge_count(bridge->shown, kvb_bridge_refresh_rationed, all->rationed);
    kvb_bridge_count(bridge->shown, kvb_bridge_refresh_away, all->away);
}

static void grant_rank(
    struct bridge_refresh *refresh, struct bridge_rank *rank, uint64_t now_ns, struct granting *all)
{
    const bool was_requested = rank->refresh.is_requested;

    if (!is_rank_ready(rank)) {
        all->away++;
    } else if (kvb_refresh_turn_request(&rank->refresh, now_ns)) {
        refresh->asked += !was_requested;
        all->streams++;
        all->blocks += refresh_blocks(rank);
    } else {
        all->rationed++;
    }
}

static void grant_worker(
    struct kvb_bridge *bridge, const struct kvb_refresh_request *request, uint64_t now_ns,
    struct granting *all)
{
    const struct kvb_part_table *running = &bridge->membership->running;
    size_t at = kvb_part_table_start(running, request->worker_id);

    for (uint32_t number;
         (number = kvb_part_table_next(running, request->worker_id, &at)) != KVB_NO_ID;) {
        struct bridge_rank *rank = running->slots[number].owner;
        if (!request->has_rank || request->dp_rank == rank->dp_rank) {
            grant_rank(bridge->refresh, rank, now_ns, all);
        }
    }
}

/* Grants a request, for one worker or for all ranks. */
static void grant(struct kvb_bridge *bridge, const struct pending_refresh *pending, uint64_t now_ns)
{
    const struct kvb_refresh_request *request = &pending->request;
    struct granting all = { 0 };

    if (request->has_worker_id) {
        grant_worker(bridge, request, now_ns, &all);
    }
    for (size_t i = 0; !request->has_worker_id && i < bridge->membership->rank_count; i++) {
        grant_rank(bridge->refresh, bridge->membership->ranks[i], now_ns, &all);
    }
    /* The bridge that has the worker answers: another one of the component is silent. */
    if (all.streams + all.rationed + all.away > 0 || !request->has_worker_id) {
        answer_granted(bridge, pending, &all);
    }
}

static void take_requests(struct kvb_bridge *bridge, uint64_t now_ns)
{
    struct bridge_refresh *refresh = bridge->refresh;
    void *item = NULL;

    /* A few a turn, because each may be for all ranks. */
    for (int i = 0; i < requests_a_turn && kvb_ring_take(refresh->requests, &item) == KVB_OK; i++) {
        struct pending_refresh *pending = item;
        if (pending->is_bad) {
            answer_error(bridge->publisher, pending, pending->why.text);
        } else if (!kvb_bridge_config_refreshes(bridge->config)) {
            refresh->refused++;
            answer_error(
                bridge->publisher, pending,
                "this bridge has no refreshes: use P.kv_sync, or set publish.formats = "
                "[\"json\"] and publish.reannounce = \"auto\"");
        } else {
            grant(bridge, pending, now_ns);
        }
        free(pending);
    }
}

/* ---- Choosing the next stream ---- */

static void end_rank(struct kvb_bridge *bridge, enum kvb_bridge_metric outcome)
{
    kvb_stream_refresh_end(bridge->refresh->rank->served.stream);
    bridge->refresh->rank = NULL;
    kvb_bridge_count(bridge->shown, outcome, 1);
}

/* Takes a turn.  A stream that holds nothing, or must not be published now, is skipped. */
static bool take_turn(struct kvb_bridge *bridge, struct bridge_rank *rank)
{
    const uint64_t round = bridge->refresh->plan.round;

    if (rank->refresh.round == round) {
        return false;
    }
    /* Its turn in this round is over, even if it has nothing to publish now. */
    rank->refresh.round = round;
    return is_rank_ready(rank) && refresh_blocks(rank) > 0;
}

static bool take_wish(struct kvb_bridge *bridge, struct bridge_rank *rank)
{
    if (!rank->refresh.is_requested) {
        return false;
    }
    rank->refresh.is_requested = false;
    bridge->refresh->asked--;
    return is_rank_ready(rank) && refresh_blocks(rank) > 0;
}

/* Searches from *next on, at most once over all ranks.  False: no rank was taken. */
static bool find_next_rank(
    struct kvb_bridge *bridge, size_t *next,
    bool (*take)(struct kvb_bridge *bridge, struct bridge_rank *rank))
{
    for (size_t i = 0; i < bridge->membership->rank_count; i++) {
        /* The number of ranks may have changed since the last search. */
        struct bridge_rank *rank =
            bridge->membership->ranks[*next % bridge->membership->rank_count];
        *next = (*next + 1) % bridge->membership->rank_count;
        if (!take(bridge, rank)) {
            continue;
        }
        bridge->refresh->rank = rank;
        /* Without memory it is given up, but it had its turn. */
        if (kvb_stream_refresh_begin(rank->served.stream) != KVB_OK) {
            end_rank(bridge, kvb_bridge_refresh_given_up);
        }
        return true;
    }
    return false;
}

/* Chooses the next rank.  Requested ranks come first, and do not change the order of the round. */
static void find_work(struct kvb_bridge *bridge, uint64_t now_ns)
{
    struct bridge_refresh *refresh = bridge->refresh;

    refresh->is_wished = refresh->asked > 0;
    if (refresh->is_wished) {
        (void)find_next_rank(bridge, &refresh->next_requested, take_wish);
    } else if (!find_next_rank(bridge, &refresh->next_rank, take_turn)) {
        /* All have had their turn.  The pause keeps rounds apart when no rank has anything. */
        refresh->next_rank = 0;
        refresh->next_look_ns = now_ns + look_ns;
        const uint64_t took_ns = kvb_refresh_plan_next_round(&refresh->plan, now_ns);
        kvb_metric_set_real(
            &bridge->shown->metrics, kvb_bridge_refresh_round,
            (double)took_ns / (double)KVB_NS_PER_S);
    }
}

static void measure_ranks(struct kvb_bridge *bridge, uint64_t now_ns)
{
    uint64_t all = 0;
    uint64_t largest = 0;

    if (now_ns < bridge->refresh->next_measure_ns) {
        return;
    }
    bridge->refresh->next_measure_ns = now_ns + measure_ns;
    for (size_t i = 0; i < bridge->membership->rank_count; i++) {
        const uint64_t blocks = is_rank_ready(bridge->membership->ranks[i])
                                    ? refresh_blocks(bridge->membership->ranks[i])
                                    : 0;
        all += blocks;
        largest = blocks > largest ? blocks : largest;
    }
    kvb_refresh_plan_measure(&bridge->refresh->plan, all, largest);
}

/* ---- Publishing ---- */

/* Publishes a part of the current rank. */
static void publish_part(struct kvb_bridge *bridge, size_t max_blocks)
{
    struct bridge_refresh *refresh = bridge->refresh;
    struct bridge_rank *rank = refresh->rank;
    const uint64_t bytes_before = bridge->publisher->events.bytes;
    const size_t max = max_blocks < step_blocks ? max_blocks : step_blocks;
    bool is_done = false;

    if (kvb_stream_refresh_step(rank->served.stream, max, &refresh->events, &is_done) != KVB_OK) {
        end_rank(bridge, kvb_bridge_refresh_given_up);
        return;
    }
    const kvb_status added = kvb_bridge_publish_events(bridge, rank, &refresh->events);
    /* Sent even after a failure: what was added must not wait for other events. */
    const kvb_status sent = kvb_event_publisher_send(&bridge->publisher->events);
    if (added != KVB_OK || sent != KVB_OK) {
        kvb_serve_lost(&rank->served);
    }
    const uint64_t bytes = bridge->publisher->events.bytes - bytes_before;
    kvb_bridge_count(bridge->shown, kvb_bridge_refresh_blocks, refresh->events.block_count);
    kvb_bridge_count(bridge->shown, kvb_bridge_refresh_bytes, bytes);
    kvb_refresh_plan_published(
        &refresh->plan, refresh->events.block_count, bytes, refresh->is_wished);
    if (is_done) {
        end_rank(bridge, kvb_bridge_refresh_streams);
    }
}

/* How many blocks may be published now; 0: none. */
static size_t allows(struct kvb_bridge *bridge, uint64_t now_ns)
{
    struct bridge_refresh *refresh = bridge->refresh;
    /* a requested rank waits for the current one, which is then refreshed faster */
    const bool is_requested = refresh->asked > 0 || (refresh->rank && refresh->is_wished);

    if (!refresh->rank && !is_requested && now_ns < refresh->next_look_ns) {
        return 0;
    }
    return kvb_refresh_plan_allows(
        &refresh->plan, now_ns, refresh->rank ? refresh_blocks(refresh->rank) : 0, is_requested);
}

static void work_refresh(struct kvb_bridge *bridge, size_t max_blocks, uint64_t now_ns)
{
    struct bridge_refresh *refresh = bridge->refresh;

    /* Readers lost the list, or its engine left, since its refresh began. */
    if (refresh->rank && !is_rank_ready(refresh->rank)) {
        end_rank(bridge, kvb_bridge_refresh_given_up);
    } else if (refresh->rank) {
        publish_part(bridge, max_blocks);
    } else {
        find_work(bridge, now_ns);
    }
}

void kvb_bridge_refresh(struct kvb_bridge *bridge, uint64_t now_ns)
{
    uint64_t end_ns = now_ns;

    /* Before the return: a bridge that has no refreshes says so. */
    take_requests(bridge, now_ns);
    if (!bridge->publisher->was_allowed || !kvb_bridge_config_refreshes(bridge->config)) {
        return;
    }
    measure_ranks(bridge, now_ns);
    size_t max = allows(bridge, now_ns);
    if (max == 0) {
        return;
    }
    const uint64_t began_ns = kvb_clock_thread_ns();
    for (; max > 0 && end_ns < now_ns + work_ns; max = allows(bridge, end_ns)) {
        work_refresh(bridge, max, end_ns);
        end_ns = kvb_clock_monotonic_ns();
    }
    /* The processor rests in proportion to what it worked: processor time, not the time that
     * passed. */
    const uint64_t took_ns = kvb_clock_thread_ns() - began_ns;
    struct kvb_metrics *metrics = &bridge->shown->metrics;
    const double before_s = kvb_metric_get_real(metrics, kvb_bridge_refresh_seconds);
    kvb_metric_set_real(metrics, kvb_bridge_refresh_seconds, before_s + (double)took_ns / 1e9);
    kvb_refresh_plan_rest(&bridge->refresh->plan, end_ns, took_ns);
}

uint64_t kvb_bridge_refresh_due_ns(const struct kvb_bridge *bridge)
{
    const struct bridge_refresh *refresh = bridge->refresh;

    if (!bridge->publisher->was_allowed || !kvb_bridge_config_refreshes(bridge->config)) {
        return UINT64_MAX;
    }
    if (refresh->asked > 0 || (refresh->rank && refresh->is_wished)) {
        return 0; /* only the ceilings limit it */
    }
    return kvb_refresh_plan_due_ns(
        &refresh->plan, refresh->rank ? refresh_blocks(refresh->rank) : 0);
}

/* ---- Opening and closing ---- */

void kvb_bridge_drop_refresh(struct kvb_bridge *bridge, struct bridge_rank *rank)
{
    if (bridge->refresh->rank == rank) {
        end_rank(bridge, kvb_bridge_refresh_given_up);
    }
    /* It waits no more: only ranks that are here may be counted. */
    bridge->refresh->asked -= rank->refresh.is_requested;
}

kvb_status kvb_bridge_open_refresh(struct kvb_bridge *bridge)
{
    const struct kvb_bridge_config *config = bridge->config;
    char subject[kvb_subject_bytes];

    kvb_refresh_plan_init(
        &bridge->refresh->plan, config->publish.refresh_s, kvb_clock_monotonic_ns());
    KVB_TRY(kvb_ring_new(waiting_requests, free, &bridge->refresh->requests));
    KVB_TRY(kvb_contract_subject_make(KVB_SUBJECT_REFRESH, &bridge->publisher->names, subject));
    return kvb_bus_subscribe(
        bridge->publisher->bus, subject, kvb_bridge_refresh_receive, bridge->refresh,
        &bridge->refresh->incoming);
}

void kvb_bridge_close_refresh(struct bridge_refresh *refresh)
{
    kvb_ring_free(refresh->requests);
    kvb_router_batch_done(&refresh->events);
}
