#include "fleet/fleet.h"

#include "core/buf.h"
#include "core/clock.h"
#include "core/limits.h"
#include "core/own.h"
#include "core/random.h"
#include "fleet/inside.h"
#include "fleet/malformed.h"

#include <assert.h>
#include <stdlib.h>
#include <zmq.h>

/* The share of turns of a conversation that go to the rank of the turn before. */
static const double sticky_share = 0.75;

/* A late tick makes up for at most this time. */
enum { max_arrival_ms = 1000 };

enum { max_load_message_bytes = 4096 };

static const struct kvb_dialect_row *dialect_of(const struct kvb_fleet *fleet, size_t at)
{
    return kvb_fleet_dialect(fleet, (uint32_t)(at / fleet->options.ranks));
}

static uint64_t first_seq_of(const struct kvb_dialect_row *dialect)
{
    switch (dialect->first_seq) {
    case KVB_SEQ_FROM_1:
        return 1;
    case KVB_SEQ_FROM_CLOCK:
        return kvb_clock_wall_us() * 1000;
    default:
        return 0;
    }
}

static kvb_status new_engines(struct kvb_fleet *fleet)
{
    for (size_t at = 0; at < fleet->rank_count; at++) {
        struct kvb_engine_options options = fleet->options.engine;
        options.rank = (uint32_t)(at % fleet->options.ranks);
        const struct kvb_dialect_row *dialect = dialect_of(fleet, at);
        options.seed = kvb_random_next(&fleet->rng);
        options.first_seq = first_seq_of(dialect);
        options.clears_first = dialect->clears_first;
        if (dialect->events != KVB_EVENTS_MAPS || dialect->replay != KVB_REPLAY_WITH_TOPIC) {
            options.report_probability = 0; /* such engines announce nothing again */
        }
        fleet->ranks[at].seed = options.seed;
        KVB_TRY(kvb_engine_new(&options, &fleet->ranks[at].engine));
    }
    return KVB_OK;
}

static kvb_status set_up_fleet(struct kvb_fleet *fleet, struct kvb_detail *detail)
{
    const uint32_t workers = fleet->options.workers;

    fleet->rank_count = (size_t)workers * fleet->options.ranks;
    fleet->workers = calloc(workers, sizeof *fleet->workers);
    fleet->ranks = calloc(fleet->rank_count, sizeof *fleet->ranks);
    if (!fleet->workers || !fleet->ranks) {
        return KVB_NO_MEMORY;
    }
    for (uint32_t i = 0; i < workers; i++) {
        fleet->workers[i].dialect = fleet->options.dialects[i % fleet->options.dialect_count];
    }
    const kvb_status status = new_engines(fleet);
    if (status == KVB_BAD_INPUT) {
        kvb_detail_set(detail, "an engine needs 2 .. 16,777,216 blocks of 1 .. 65,536 tokens");
        return KVB_BAD_CONFIG;
    }
    KVB_TRY(status);
    return kvb_fleet_open(fleet, detail);
}

kvb_status kvb_fleet_new(
    const struct kvb_fleet_options *options, struct kvb_detail *detail,
    struct kvb_fleet **out_fleet)
{
    struct kvb_fleet *fleet = calloc(1, sizeof *fleet);
    if (!fleet) {
        return KVB_NO_MEMORY;
    }
    fleet->options = *options;
    fleet->rng = options->seed;
    kvb_buf_init(&fleet->payload, kvb_max_payload_bytes);
    kvb_buf_init(&fleet->malformed, (size_t)2 * kvb_max_payload_bytes);
    kvb_buf_init(&fleet->load, max_load_message_bytes);
    const kvb_status status = set_up_fleet(fleet, detail);
    if (status != KVB_OK) {
        kvb_fleet_free(fleet);
        return status;
    }
    *out_fleet = fleet;
    return KVB_OK;
}

void kvb_fleet_free(struct kvb_fleet *fleet)
{
    if (!fleet) {
        return;
    }
    kvb_fleet_close(fleet);
    for (size_t at = 0; fleet->ranks && at < fleet->rank_count; at++) {
        kvb_engine_free(fleet->ranks[at].engine);
    }
    kvb_trace_request_done(&fleet->request);
    kvb_buf_done(&fleet->payload);
    kvb_buf_done(&fleet->malformed);
    kvb_buf_done(&fleet->load);
    free(fleet->ranks);
    free(fleet->workers);
    free(fleet);
}

static size_t pick_rank(struct kvb_fleet *fleet, uint64_t conversation)
{
    uint64_t place = conversation; /* a separate random sequence for each conversation */

    if (kvb_random_chance(&fleet->rng, sticky_share)) {
        return kvb_random_below(&place, fleet->rank_count);
    }
    return kvb_random_below(&fleet->rng, fleet->rank_count);
}

/* If the dialect names salts on each event, every second conversation has a salt, and keeps it. */
static const char *pick_salt(const struct kvb_dialect_row *dialect, uint64_t conversation)
{
    static const char *const salts[] = { "tenant-a", "tenant-b", "tenant-c" };
    uint64_t place = ~conversation; /* another sequence than for its rank */

    if (!(dialect->fields & KVB_FIELD_NAMESPACE)) {
        return NULL;
    }
    const size_t at = kvb_random_below(&place, 2 * KVB_COUNT_OF(salts));
    return at < KVB_COUNT_OF(salts) ? salts[at] : NULL;
}

static void count_completion(struct kvb_fleet *fleet, kvb_status status)
{
    fleet->totals.requests += status == KVB_OK;
    fleet->totals.refused += status == KVB_AGAIN;
    fleet->totals.too_large += status == KVB_TOO_LARGE;
}

static kvb_status admit_one(struct kvb_fleet *fleet)
{
    KVB_TRY(kvb_trace_request_make(fleet->options.trace, fleet->next_row, &fleet->request));

    const size_t at = pick_rank(fleet, fleet->request.conversation);
    kvb_engine_set_salt(
        fleet->ranks[at].engine, pick_salt(dialect_of(fleet, at), fleet->request.conversation));
    const kvb_status status = kvb_engine_admit(
        fleet->ranks[at].engine, fleet->request.tokens, fleet->request.count,
        fleet->request.output_length);
    if (status == KVB_NO_MEMORY) {
        return status;
    }
    fleet->next_row++;
    count_completion(fleet, status);
    return KVB_OK;
}

kvb_status kvb_fleet_admit(
    struct kvb_fleet *fleet, size_t at, const uint32_t *tokens, uint32_t count,
    uint32_t output_length, struct kvb_request_progress *progress)
{
    struct kvb_engine *engine = fleet->ranks[at].engine;

    kvb_engine_set_salt(engine, NULL);
    const kvb_status status =
        kvb_engine_admit_watched(engine, tokens, count, output_length, progress);
    count_completion(fleet, status);
    return status;
}

static bool has_more_requests(const struct kvb_fleet *fleet)
{
    return fleet->options.max_requests == 0 || fleet->totals.requests < fleet->options.max_requests;
}

static kvb_status admit_due(struct kvb_fleet *fleet, uint64_t now_ns)
{
    uint64_t passed_ns = fleet->last_tick_ns ? now_ns - fleet->last_tick_ns : 0;

    if (passed_ns > max_arrival_ms * KVB_NS_PER_MS) {
        passed_ns = max_arrival_ms * KVB_NS_PER_MS;
    }
    fleet->last_tick_ns = now_ns;
    fleet->requests_due += fleet->options.requests_per_s * (double)passed_ns / (double)KVB_NS_PER_S;
    while (fleet->requests_due >= 1 && has_more_requests(fleet)) {
        KVB_TRY(admit_one(fleet));
        fleet->requests_due -= 1;
    }
    return KVB_OK;
}

/* The kind of malformed payload to send after this batch; false: none. */
static bool
next_malformed(const struct kvb_fleet *fleet, struct kvb_fleet_rank *rank, size_t *out_kind)
{
    const struct kvb_fleet_options *options = &fleet->options;

    if (rank->malformed_next < rank->malformed_end) {
        *out_kind = rank->malformed_next++;
        return true;
    }
    if (options->malformed_every == 0 || rank->batches % options->malformed_every != 0) {
        return false;
    }
    *out_kind = options->malformed_first + rank->malformed % options->malformed_count;
    return true;
}

/* Sends it with a sequence number and puts it into the replay buffer, like a batch. */
static kvb_status send_malformed(struct kvb_fleet *fleet, struct kvb_fleet_rank *rank)
{
    size_t kind = 0;

    if (!next_malformed(fleet, rank, &kind)) {
        return KVB_OK;
    }
    kvb_buf_reset(&fleet->malformed);
    KVB_TRY(kvb_malformed_make(kind, kvb_buf_span(&fleet->payload), &fleet->malformed));
    rank->malformed++;
    return kvb_publisher_send(
        rank->publisher, kvb_engine_take_seq(rank->engine), kvb_buf_span(&fleet->malformed), true);
}

static kvb_status publish_rank_batch(
    struct kvb_fleet *fleet, size_t at, const struct kvb_event_batch *batch, uint64_t seq)
{
    struct kvb_fleet_rank *rank = &fleet->ranks[at];
    const struct kvb_fleet_worker *worker = &fleet->workers[at / fleet->options.ranks];
    const bool is_live = rank->withheld == 0;

    kvb_buf_reset(&fleet->payload);
    if (kvb_engine_batch_encode(batch, worker->dialect, &fleet->payload) != KVB_OK) {
        fleet->totals.failures++;
        return KVB_OK;
    }
    rank->withheld -= !is_live;
    rank->batches++;
    KVB_TRY(kvb_publisher_send(rank->publisher, seq, kvb_buf_span(&fleet->payload), is_live));
    return send_malformed(fleet, rank);
}

/* An idle engine publishes an empty batch now and then, if its dialect does. */
static kvb_status
beat(struct kvb_fleet *fleet, size_t at, const struct kvb_event_batch *empty, uint64_t now_ns)
{
    struct kvb_fleet_rank *rank = &fleet->ranks[at];
    const uint32_t period_ms = dialect_of(fleet, at)->heartbeat_ms;

    if (period_ms == 0 || rank->published_ns == 0 ||
        now_ns - rank->published_ns < period_ms * KVB_NS_PER_MS) {
        return KVB_OK;
    }
    rank->published_ns = now_ns;
    return publish_rank_batch(fleet, at, empty, kvb_engine_take_seq(rank->engine));
}

static kvb_status step_rank(struct kvb_fleet *fleet, size_t at, uint64_t now_ns)
{
    const struct kvb_event_batch *batch = NULL;
    uint64_t seq = 0;
    const double now_s = (double)kvb_clock_wall_us() / 1e6;

    kvb_engine_set_time(fleet->ranks[at].engine, kvb_clock_monotonic_ns());
    const kvb_status status = kvb_engine_step(fleet->ranks[at].engine, now_s, &batch, &seq);
    if (status == KVB_AGAIN) {
        const struct kvb_event_batch empty = { .timestamp_s = now_s,
                                               .has_rank = true,
                                               .rank = (uint32_t)(at % fleet->options.ranks) };
        return beat(fleet, at, &empty, now_ns);
    }
    KVB_TRY(status);
    fleet->totals.batches++;
    fleet->ranks[at].published_ns = now_ns;
    return publish_rank_batch(fleet, at, batch, seq);
}

kvb_status kvb_fleet_tick(struct kvb_fleet *fleet, uint64_t now_ns)
{
    if (fleet->totals.is_paused) {
        fleet->last_tick_ns = now_ns;
        return KVB_OK;
    }
    KVB_TRY(admit_due(fleet, now_ns));
    for (size_t at = 0; at < fleet->rank_count; at++) {
        KVB_TRY(step_rank(fleet, at, now_ns));
    }
    return KVB_OK;
}

void kvb_fleet_send_load(struct kvb_fleet *fleet)
{
    const uint32_t ranks = fleet->options.ranks;

    for (size_t at = 0; at < fleet->rank_count; at++) {
        struct kvb_engine_stats stats = { 0 };
        kvb_engine_stats(fleet->ranks[at].engine, &stats);
        kvb_fleet_send_rank_load(
            fleet, (uint32_t)(at / ranks), (uint32_t)(at % ranks), &stats.load);
    }
}

void kvb_fleet_pause(struct kvb_fleet *fleet, bool is_paused)
{
    fleet->totals.is_paused = is_paused;
}

static bool is_fleet_drained(const struct kvb_fleet *fleet)
{
    for (size_t at = 0; at < fleet->rank_count; at++) {
        if (!kvb_publisher_is_drained(fleet->ranks[at].publisher)) {
            return false;
        }
    }
    return true;
}

kvb_status kvb_fleet_drain(struct kvb_fleet *fleet, uint64_t timeout_ms)
{
    const uint64_t deadline_ns = kvb_clock_monotonic_ns() + timeout_ms * KVB_NS_PER_MS;

    kvb_fleet_pause(fleet, true);
    while (!is_fleet_drained(fleet)) {
        if (kvb_clock_monotonic_ns() > deadline_ns) {
            return KVB_AGAIN;
        }
        (void)zmq_poll(NULL, 0, 1); /* the publishers' threads do not signal that they are idle */
    }
    return KVB_OK;
}

size_t kvb_fleet_rank_count(const struct kvb_fleet *fleet)
{
    return fleet->rank_count;
}

kvb_status
kvb_fleet_find(const struct kvb_fleet *fleet, uint64_t worker_id, uint32_t rank, size_t *out_at)
{
    const uint64_t worker = worker_id - fleet->options.first_worker;

    if (worker >= fleet->options.workers || rank >= fleet->options.ranks) {
        return KVB_NOT_FOUND;
    }
    *out_at = (size_t)worker * fleet->options.ranks + rank;
    return KVB_OK;
}

static uint64_t worker_id_of(const struct kvb_fleet *fleet, size_t at)
{
    return fleet->options.first_worker + at / fleet->options.ranks;
}

kvb_status kvb_fleet_truth(const struct kvb_fleet *fleet, size_t at, struct kvb_truth *out_truth)
{
    KVB_TRY(kvb_engine_truth(fleet->ranks[at].engine, out_truth));
    out_truth->worker_id = worker_id_of(fleet, at);
    out_truth->by_hash = !(dialect_of(fleet, at)->fields & KVB_FIELD_TOKENS);
    return KVB_OK;
}

const struct kvb_content_log *kvb_fleet_log(const struct kvb_fleet *fleet, size_t at)
{
    return kvb_engine_log(fleet->ranks[at].engine);
}

kvb_status kvb_fleet_reset(struct kvb_fleet *fleet, size_t at)
{
    kvb_engine_set_time(fleet->ranks[at].engine, kvb_clock_monotonic_ns());
    return kvb_engine_reset_cache(fleet->ranks[at].engine);
}

kvb_status kvb_fleet_set_sleep(struct kvb_fleet *fleet, size_t at, enum kvb_engine_sleep sleep)
{
    kvb_engine_set_time(fleet->ranks[at].engine, kvb_clock_monotonic_ns());
    return kvb_engine_set_sleep(fleet->ranks[at].engine, sleep);
}

void kvb_fleet_lose_events(struct kvb_fleet *fleet, size_t at, uint64_t batches)
{
    kvb_engine_lose_events(fleet->ranks[at].engine, batches);
}

kvb_status kvb_fleet_restart(struct kvb_fleet *fleet, size_t at, bool keeps_seed)
{
    struct kvb_fleet_rank *rank = &fleet->ranks[at];

    KVB_TRY(kvb_publisher_restart(rank->publisher));
    if (!keeps_seed) {
        rank->seed = kvb_random_next(&fleet->rng);
    }
    rank->withheld = 0;
    rank->published_ns = 0;
    kvb_engine_set_first_seq(rank->engine, first_seq_of(dialect_of(fleet, at)));
    kvb_engine_set_time(rank->engine, kvb_clock_monotonic_ns());
    kvb_engine_restart(rank->engine, rank->seed);
    return KVB_OK;
}

void kvb_fleet_withhold(struct kvb_fleet *fleet, size_t at, uint64_t batches)
{
    fleet->ranks[at].withheld = batches;
}

void kvb_fleet_malform(struct kvb_fleet *fleet, size_t at, size_t first, size_t count)
{
    assert(first + count <= kvb_malformed_kinds);
    fleet->ranks[at].malformed_next = first;
    fleet->ranks[at].malformed_end = first + count;
}

void kvb_fleet_rank_state(
    const struct kvb_fleet *fleet, size_t at, struct kvb_fleet_rank_state *out_state)
{
    assert(at < fleet->rank_count);
    *out_state = (struct kvb_fleet_rank_state){
        .worker_id = worker_id_of(fleet, at),
        .worker = (uint32_t)(at / fleet->options.ranks),
        .rank = (uint32_t)(at % fleet->options.ranks),
        .malformed = fleet->ranks[at].malformed,
    };
    kvb_engine_stats(fleet->ranks[at].engine, &out_state->stats);
    kvb_publisher_counts(fleet->ranks[at].publisher, &out_state->counts);
}

void kvb_fleet_totals(const struct kvb_fleet *fleet, struct kvb_fleet_totals *out_totals)
{
    *out_totals = fleet->totals;
    for (size_t at = 0; at < fleet->rank_count; at++) {
        struct kvb_engine_stats stats = { 0 };
        kvb_engine_stats(fleet->ranks[at].engine, &stats);
        out_totals->finished += stats.requests_finished;
        out_totals->held_blocks += stats.held_blocks;
        out_totals->running += stats.load.request_active_slots;
        out_totals->waiting += stats.load.num_requests_waiting;
    }
}

struct kvb_fleet_ports kvb_fleet_ports(const struct kvb_fleet *fleet, uint32_t worker)
{
    return fleet->workers[worker].ports;
}

const struct kvb_dialect_row *kvb_fleet_dialect(const struct kvb_fleet *fleet, uint32_t worker)
{
    return kvb_dialect_row_of(fleet->workers[worker].dialect);
}
