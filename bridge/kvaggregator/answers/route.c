#include "core/array.h"
#include "core/limits.h"
#include "core/own.h"
#include "core/sort_first.h"
#include "kvaggregator/answers/answers.h"
#include "kvaggregator/answers/selection.h"
#include "wire/json/writer.h"
#include "wire/query/text.h"
#include "wire/router/heartbeat.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The blocks of the prompt that the route counts as held.  Of what the worker holds only in tiers
 * that nothing proves right, the share that the options say. */
static uint64_t
credited_blocks(const struct kvb_query_context *ctx, const struct kvb_overlap *overlap)
{
    const enum kvb_stream_reason *reasons = overlap->follower->heartbeat.tier_reasons;
    uint64_t proven = 0;

    for (size_t tier = 0; tier < KVB_TIER_COUNT; tier++) {
        if (reasons[tier] == KVB_REASON_NONE && overlap->tokens[tier] > proven) {
            proven = overlap->tokens[tier];
        }
    }
    const double more = (double)(overlap->max_tokens - proven) * ctx->route.unverified_tiers;
    const uint64_t blocks = (proven + (uint64_t)more) / overlap->shape.block_size;
    return blocks < overlap->blocks ? blocks : overlap->blocks;
}

/* False: no recent heartbeat and no recent load value confirms that the worker exists.  Otherwise
 * anybody who may publish events could invent thousands of workers. */
static bool fill_candidate(
    const struct kvb_query_context *ctx, const struct kvb_overlap *overlap,
    struct kvb_route_candidate *out_candidate)
{
    const struct kvb_load_endpoint *endpoint =
        kvb_load_tracker_find_key(ctx->tracker, &overlap->key);
    struct kvb_request_sums sums;

    if (!overlap->follower->has_heartbeat && (!endpoint || endpoint->is_stale)) {
        return false;
    }
    kvb_requests_sums(ctx->requests, &overlap->key, endpoint != NULL, ctx->now_ns, &sums);
    *out_candidate = (struct kvb_route_candidate){
        .key = &overlap->key,
        .facts = &overlap->follower->heartbeat.facts,
        .state = overlap->follower->state,
        .place = overlap->number,
        .last_turn =
            overlap->number < ctx->last_turn_capacity ? ctx->last_turns[overlap->number] : 0,
        .is_draining = overlap->follower->heartbeat.facts.is_draining,
        .is_not_ready = overlap->follower->heartbeat.facts.ready == KVB_READY_NO,
        .block_size = overlap->shape.block_size,
        .lookahead = overlap->shape.lookahead,
        .request_blocks = overlap->request_blocks,
        .overlap_blocks = credited_blocks(ctx, overlap),
        .hit_tokens = overlap->hit_tokens,
        .routed_blocks = endpoint ? sums.routed_blocks : sums.in_flight_blocks,
        .routed_requests = endpoint ? sums.routed_requests : sums.in_flight,
        .pending_prefill_blocks = sums.pending_prefill_blocks,
        .prefill_blocks_per_s = sums.prefill_blocks_per_s,
    };
    if (endpoint) { /* a stale value is still the best guess */
        out_candidate->has_load = true;
        out_candidate->load = endpoint->load;
        out_candidate->load_block_size = endpoint->block_size;
    }
    return true;
}

static struct kvb_block_shape candidate_shape(const struct kvb_route_candidate *candidate)
{
    return (struct kvb_block_shape){ .block_size = candidate->block_size,
                                     .lookahead = candidate->lookahead };
}

/* Visits one block shape after another, so that the prompt is hashed once for each shape.  Without
 * memory the decision is made without predictions. */
static void fill_predictions(
    struct kvb_query_context *ctx, const struct kvb_query *query,
    struct kvb_route_candidate *candidates, size_t count)
{
    const struct kvb_listing *listing = &ctx->listing;

    for (size_t i = 0; kvb_predictions_any(ctx->predictions) && i < listing->shape_count; i++) {
        const kvb_block_hash *names = NULL;
        size_t blocks = 0;
        if (kvb_query_context_names(ctx, query, listing->shapes[i], &names, &blocks) != KVB_OK) {
            return;
        }
        for (size_t n = 0; n < count; n++) {
            if (kvb_block_shape_is_same(candidate_shape(&candidates[n]), listing->shapes[i])) {
                candidates[n].predicted_blocks = kvb_predictions_beyond(
                    ctx->predictions, candidates[n].key, names, blocks,
                    candidates[n].overlap_blocks, ctx->now_ns);
            }
        }
    }
}

/* Fills ctx->candidates. */
static kvb_status make_candidates(struct kvb_query_context *ctx, size_t *out_count)
{
    size_t count = 0;

    KVB_TRY(kvb_array_reserve(
        &ctx->candidates, &ctx->candidate_capacity, ctx->overlap_count + 1, sizeof *ctx->candidates,
        kvb_max_streams + 1));
    for (size_t i = 0; i < ctx->overlap_count; i++) {
        const struct kvb_overlap *overlap = &ctx->overlaps[i];
        count += fill_candidate(ctx, overlap, &ctx->candidates[count]);
    }
    *out_count = count;
    return KVB_OK;
}

/* The sort key of a candidate.  Candidates are large: to sort them in place, or through pointers,
 * costs ten times as much. */
struct candidate_place {
    double cost;
    uint64_t worker_id;
    uint32_t dp_rank;
    uint32_t at; /* index in ctx->candidates */
};

/* The most bytes of a row of scores whose address has 255 bytes without escapes. */
enum { usual_row_bytes = 440 };

/* Lowest cost first, then lowest worker and rank. */
static int by_cost(const void *left, const void *right, void *context)
{
    (void)context;
    const struct candidate_place *a = left;
    const struct candidate_place *b = right;

    if (a->cost != b->cost) {
        return a->cost < b->cost ? -1 : 1;
    }
    if (a->worker_id != b->worker_id) {
        return a->worker_id < b->worker_id ? -1 : 1;
    }
    return (a->dp_rank > b->dp_rank) - (a->dp_rank < b->dp_rank);
}

/* Sorts the candidates for the answer; only the first `shown` are in order. */
static kvb_status place_candidates(
    const struct kvb_route_candidate *candidates, size_t count, size_t shown,
    struct candidate_place **out_places)
{
    struct candidate_place *places = calloc(count + 1, sizeof *places);

    if (!places) {
        return KVB_NO_MEMORY;
    }
    for (size_t i = 0; i < count; i++) {
        places[i] = (struct candidate_place){ .cost = candidates[i].cost,
                                              .worker_id = candidates[i].key->id->worker_id,
                                              .dp_rank = candidates[i].key->id->dp_rank,
                                              .at = (uint32_t)i };
    }
    kvb_sort_first(places, count, sizeof *places, shown, by_cost, NULL);
    *out_places = places;
    return KVB_OK;
}

static void write_score(struct kvb_json_writer *json, const struct kvb_route_candidate *candidate)
{
    kvb_json_write_begin(json, '{');
    kvb_json_write_pair_u64(json, "worker_id", candidate->key->id->worker_id);
    kvb_json_write_pair_u64(json, "dp_rank", candidate->key->id->dp_rank);
    if (candidate->facts->address[0] != '\0') {
        kvb_json_write_pair_text(json, "address", candidate->facts->address);
    }
    kvb_json_write_pair_number(json, "cost", candidate->cost);
    kvb_json_write_pair_u64(json, "overlap_blocks", candidate->overlap_blocks);
    kvb_json_write_pair_u64(json, "predicted_blocks", candidate->predicted_blocks);
    kvb_json_write_pair_u64(json, "pending_prefill_blocks", candidate->pending_prefill_blocks);
    kvb_json_write_pair_u64(json, "decode_blocks", candidate->decode_blocks);
    kvb_json_write_pair_u64(json, "waiting", candidate->load.num_requests_waiting);
    kvb_json_write_end(json, '}');
}

static void write_reason(
    struct kvb_json_writer *json, const struct kvb_route_options *options,
    const struct kvb_route_candidate *chosen, size_t count)
{
    const double cost = chosen->cost;
    char text[128];

    if (!kvb_route_has_capacity(chosen)) {
        (void)snprintf(text, sizeof text, "all of %zu are full; cost %.9g", count, cost);
    } else if (options->policy == KVB_ROUTE_ROUND_ROBIN) {
        (void)snprintf(text, sizeof text, "next in turn of %zu; cost %.9g", count, cost);
    } else if (options->temperature > 0) {
        (void)snprintf(
            text, sizeof text, "drawn among %zu at temperature %.9g; cost %.9g", count,
            options->temperature, cost);
    } else {
        (void)snprintf(text, sizeof text, "lowest cost %.9g of %zu", cost, count);
    }
    kvb_json_write_pair_text(json, "reason", text);
}

static void write_chosen(
    struct kvb_json_writer *json, const struct kvb_route_options *options,
    const struct kvb_route_candidate *chosen, size_t candidate_count)
{
    kvb_json_write_pair_u64(json, "worker_id", chosen->key->id->worker_id);
    kvb_json_write_pair_u64(json, "dp_rank", chosen->key->id->dp_rank);
    kvb_json_write_pair_text(json, "namespace", chosen->key->id->name_space);
    kvb_json_write_pair_text(json, "component", chosen->key->id->component);
    kvb_json_write_pair_text(json, "policy", kvb_route_policy_name(options->policy));
    kvb_json_write_pair_u64(json, "overlap_blocks", chosen->overlap_blocks);
    write_reason(json, options, chosen, candidate_count);
    kvb_worker_facts_json_write(chosen->facts, json);
}

/* A route is chosen only once, so an answer that is too long cannot be repeated with fewer rows.
 * Therefore a row with a long address counts as several rows. */
static kvb_status write_scores(
    struct kvb_json_writer *json, const struct kvb_route_candidate *candidates, size_t count,
    size_t max_rows)
{
    KVB_OWN(kvb_own_free) struct candidate_place *places = NULL;
    const size_t max = count < max_rows ? count : max_rows;
    size_t rows = 0;
    size_t shown = 0;

    KVB_TRY(place_candidates(candidates, count, max, &places));
    kvb_json_write_pair_begin(json, "scores", '[');
    while (shown < max && rows < max_rows) {
        const size_t begin = json->out->len;
        write_score(json, &candidates[places[shown++].at]);
        rows += 1 + (json->out->len - begin) / usual_row_bytes;
    }
    kvb_json_write_end(json, ']');
    if (shown < count) {
        kvb_json_write_pair_u64(json, "more", count - shown);
    }
    return json->status;
}

static struct kvb_route_decision
decision_of(const struct kvb_query *query, const struct kvb_route_candidate *chosen)
{
    const bool has_tokens = query->form == KVB_QUERY_TOKENS;

    return (struct kvb_route_decision){
        .id = *chosen->key->id,
        .isl_tokens = has_tokens ? query->count : query->count * chosen->block_size,
        .hit_tokens = chosen->overlap_blocks * chosen->block_size,
        .isl_blocks = chosen->request_blocks,
        .overlap_blocks = chosen->overlap_blocks,
        .is_dry_run = query->selection.is_dry_run,
    };
}

/* Without memory the decision is still valid; the worker may get the next turn, too. */
static void note_turn(struct kvb_query_context *ctx, const struct kvb_route_candidate *chosen)
{
    const size_t known = ctx->last_turn_capacity;

    if (!chosen->is_turn ||
        kvb_array_reserve(
            &ctx->last_turns, &ctx->last_turn_capacity, (size_t)chosen->place + 1,
            sizeof *ctx->last_turns, kvb_max_streams + 1) != KVB_OK) {
        return;
    }
    for (size_t place = known; place < ctx->last_turn_capacity; place++) {
        ctx->last_turns[place] = 0;
    }
    ctx->last_turns[chosen->place] = ctx->decisions;
}

/* The id of the request, or a new one that is unique among aggregators. */
static void name_request(
    const struct kvb_query_context *ctx, const struct kvb_query *query,
    char out[kvb_request_id_bytes + 1])
{
    if (query->request_id[0]) {
        memcpy(out, query->request_id, sizeof query->request_id);
    } else {
        (void)snprintf(/* fits: a service's id has 32 bytes */
                       out, kvb_request_id_bytes + 1, "%s-%" PRIu64, ctx->aggregator_id,
                       ctx->decisions);
    }
}

/* Without the name of its deepest block there is no promise. */
static void note_promise(
    const struct kvb_query_context *ctx, const struct kvb_route_candidate *chosen,
    const kvb_block_hash *names, size_t count, struct kvb_route_decision *decision)
{
    const uint64_t held = chosen->block_size > 0 ? chosen->hit_tokens / chosen->block_size : 0;
    const uint64_t blocks = held > ctx->audit_slack_blocks ? held - ctx->audit_slack_blocks : 0;

    if (blocks > 0 && blocks <= count) {
        decision->promised_tokens = blocks * chosen->block_size;
        decision->promised_block = names[blocks - 1];
    }
}

/* Enters in the books what the decision costs the chosen worker.  Without memory the decision is
 * still valid, but is not entered. */
static void enter_decision(
    struct kvb_query_context *ctx, const struct kvb_query *query,
    const struct kvb_route_candidate *chosen, struct kvb_route_decision *decision)
{
    const uint64_t shared = chosen->overlap_blocks + chosen->predicted_blocks;
    const kvb_block_hash *names = NULL;
    size_t count = 0;

    decision->prefill_blocks = chosen->request_blocks - shared;
    /* Predicted blocks mean that a request with the same prefix is in flight and already counts
     * them.  This request adds only its own remainder, at least the block that it generates. */
    decision->blocks =
        chosen->predicted_blocks > 0 ? decision->prefill_blocks : chosen->request_blocks;
    decision->blocks += decision->blocks == 0;
    decision->ttl_ms = query->ttl_ms ? query->ttl_ms : ctx->request_ttl_ms;
    const kvb_status status =
        kvb_query_context_names(ctx, query, candidate_shape(chosen), &names, &count);
    if (status == KVB_OK) {
        note_promise(ctx, chosen, names, count, decision);
    }
    if (status == KVB_OK && count > chosen->overlap_blocks) {
        const size_t missing = count - chosen->overlap_blocks;
        decision->names = names + chosen->overlap_blocks;
        decision->name_count =
            missing < kvb_max_decision_blocks ? missing : kvb_max_decision_blocks;
    }
    kvb_answer_enter_decision(ctx, decision, false);
}

void kvb_answer_enter_decision(
    struct kvb_query_context *ctx, const struct kvb_route_decision *decision, bool is_shared)
{
    const struct kvb_request_decision request = {
        .request_id = decision->request_id,
        .id = &decision->id,
        .blocks = decision->blocks,
        .prefill_blocks = decision->prefill_blocks,
        .ttl_ms = decision->ttl_ms,
        .promise = kvb_answer_promise(ctx, decision),
        .is_shared = is_shared,
    };

    if (kvb_requests_add(ctx->requests, &request, ctx->now_ns) != KVB_AGAIN) {
        (void)kvb_predictions_add(
            ctx->predictions, &decision->id, decision->names, decision->name_count, ctx->now_ns);
    }
}

kvb_status kvb_answer_route(
    struct kvb_query_context *ctx, struct kvb_query *query, size_t max_rows, struct kvb_buf *out,
    struct kvb_route_decision *out_decision, struct kvb_detail *detail)
{
    const struct kvb_listing_options options = { .with_none = true };
    const double draw = kvb_query_context_draw(ctx);
    struct kvb_route_options route;
    size_t count = 0;
    size_t at = 0;

    KVB_TRY(kvb_route_options_for(ctx, query, &route, detail));
    KVB_TRY(kvb_query_context_overlaps(ctx, query, options, detail));
    KVB_TRY(make_candidates(ctx, &count));
    struct kvb_route_candidate *candidates = ctx->candidates;
    /* What requests before this one will store counts as held, before any event says so. */
    fill_predictions(ctx, query, candidates, count);
    if (kvb_route_choose(&route, draw, candidates, count, &at) != KVB_OK) {
        return kvb_route_explain_none(ctx, query, detail);
    }
    const struct kvb_route_candidate *chosen = &candidates[at];
    struct kvb_route_decision decision = decision_of(query, chosen);
    name_request(ctx, query, decision.request_id);
    /* The answer is written before anything is entered: one without memory must count nowhere. */
    struct kvb_json_writer json = kvb_json_writer_of(out);
    kvb_json_write_begin(&json, '{');
    write_chosen(&json, &route, chosen, count);
    if (!decision.is_dry_run) {
        kvb_json_write_pair_text(&json, "request_id", decision.request_id);
    }
    kvb_prompt_tokens_write(query, &json);
    KVB_TRY(write_scores(&json, candidates, count, max_rows));
    kvb_json_write_end(&json, '}');
    KVB_TRY(json.status);
    if (!decision.is_dry_run) {
        ctx->decisions++;
        note_turn(ctx, chosen);
        enter_decision(ctx, query, chosen, &decision);
    }
    *out_decision = decision;
    return KVB_OK;
}

kvb_status kvb_answer_hit_rate(const struct kvb_route_decision *decision, struct kvb_buf *out)
{
    struct kvb_json_writer json = kvb_json_writer_of(out);

    kvb_json_write_begin(&json, '{');
    kvb_json_write_pair_u64(&json, "worker_id", decision->id.worker_id);
    kvb_json_write_pair_u64(&json, "isl_tokens", decision->isl_tokens);
    kvb_json_write_pair_u64(&json, "hit_tokens", decision->hit_tokens);
    kvb_json_write_pair_u64(&json, "isl_blocks", decision->isl_blocks);
    kvb_json_write_pair_u64(&json, "overlap_blocks", decision->overlap_blocks);
    kvb_json_write_end(&json, '}');
    return json.status;
}

kvb_status kvb_answer_request_report(
    struct kvb_query_context *ctx, const struct kvb_query *query, enum kvb_request_report_kind kind,
    struct kvb_buf *out, struct kvb_detail *detail)
{
    const struct kvb_shared_report report = kvb_answer_report_of(query);
    const kvb_status status = kvb_answer_take_report(ctx, &report, kind);

    if (status != KVB_OK) {
        kvb_detail_set(
            detail, "request_id: no such request is in flight: it was finished before, its ttl_ms "
                    "is over, or nobody routed it");
        return status;
    }
    struct kvb_json_writer json = kvb_json_writer_of(out);
    kvb_json_write_begin(&json, '{');
    kvb_json_write_pair_text(&json, "request_id", query->request_id);
    kvb_json_write_end(&json, '}');
    return json.status;
}

struct kvb_shared_report kvb_answer_report_of(const struct kvb_query *query)
{
    struct kvb_shared_report report = { .has_cached_tokens = query->has_cached_tokens,
                                        .cached_tokens = query->cached_tokens };

    memcpy(report.request_id, query->request_id, sizeof report.request_id);
    return report;
}

kvb_status kvb_answer_take_report(
    struct kvb_query_context *ctx, const struct kvb_shared_report *report,
    enum kvb_request_report_kind kind)
{
    if (kind == KVB_REQUEST_FIRST_TOKEN) {
        return kvb_requests_first_token(ctx->requests, report->request_id, ctx->now_ns);
    }
    /* While the request is in the books: they have what was promised. */
    kvb_answer_audit(ctx, report);
    return kvb_requests_finish(ctx->requests, report->request_id, ctx->now_ns);
}
