#include "core/own.h"
#include "kvaggregator/answers/answers.h"
#include "wire/json/writer.h"

#include <stdio.h>
#include <stdlib.h>

static void drop_candidates(struct kvb_route_candidate **candidates)
{
    free(*candidates);
}

/* False when neither a recent heartbeat nor a recent load value confirms that the worker exists:
 * anyone who may publish events could make up thousands of workers. */
static bool fill_candidate(
    const struct kvb_query_context *ctx, const struct kvb_overlap *overlap,
    struct kvb_route_candidate *out_candidate)
{
    const struct kvb_load_endpoint *endpoint =
        kvb_load_tracker_find(ctx->tracker, &overlap->follower->id);

    if (!overlap->follower->has_heartbeat && (!endpoint || endpoint->is_stale)) {
        return false;
    }
    *out_candidate = (struct kvb_route_candidate){
        .id = &overlap->follower->id,
        .state = overlap->follower->state,
        .place = overlap->number,
        .block_size = overlap->shape.block_size,
        .request_blocks = overlap->request_blocks,
        .overlap_blocks = overlap->blocks,
    };
    if (endpoint) { /* a stale figure is still the best guess there is */
        out_candidate->has_load = true;
        out_candidate->load = endpoint->load;
        out_candidate->routed_blocks = endpoint->routed_blocks;
        out_candidate->routed_requests = endpoint->routed_requests;
    }
    return true;
}

static kvb_status make_candidates(
    struct kvb_query_context *ctx, struct kvb_route_candidate **out_candidates, size_t *out_count)
{
    struct kvb_route_candidate *candidates = calloc(ctx->overlap_count + 1, sizeof *candidates);

    if (!candidates) {
        return KVB_NO_MEMORY;
    }
    size_t count = 0;
    for (size_t i = 0; i < ctx->overlap_count; i++) {
        count += fill_candidate(ctx, &ctx->overlaps[i], &candidates[count]);
    }
    *out_candidates = candidates;
    *out_count = count;
    return KVB_OK;
}

/* Cheapest first; of equal ones the lowest worker and rank. */
static int by_cost(const void *left, const void *right)
{
    const struct kvb_route_candidate *a = left;
    const struct kvb_route_candidate *b = right;

    if (a->cost != b->cost) {
        return a->cost < b->cost ? -1 : 1;
    }
    if (a->id->worker_id != b->id->worker_id) {
        return a->id->worker_id < b->id->worker_id ? -1 : 1;
    }
    return (a->id->dp_rank > b->id->dp_rank) - (a->id->dp_rank < b->id->dp_rank);
}

static void write_score(struct kvb_json_writer *json, const struct kvb_route_candidate *candidate)
{
    kvb_json_write_begin(json, '{');
    kvb_json_write_pair_u64(json, "worker_id", candidate->id->worker_id);
    kvb_json_write_pair_u64(json, "dp_rank", candidate->id->dp_rank);
    kvb_json_write_pair_number(json, "cost", candidate->cost);
    kvb_json_write_pair_u64(json, "overlap_blocks", candidate->overlap_blocks);
    kvb_json_write_pair_u64(json, "decode_blocks", candidate->decode_blocks);
    kvb_json_write_pair_u64(json, "waiting", candidate->load.num_requests_waiting);
    kvb_json_write_end(json, '}');
}

static void write_choice(
    char *text, size_t bytes, const struct kvb_query_context *ctx,
    const struct kvb_route_candidate *chosen, size_t count)
{
    const double cost = chosen->cost;

    switch (kvb_route_policy_choice(ctx->route.policy)) {
    case KVB_ROUTE_CHOOSES_OF_TWO:
        (void)snprintf(text, bytes, "lower cost %.9g of two drawn among %zu", cost, count);
        return;
    case KVB_ROUTE_CHOOSES_NEXT:
        (void)snprintf(text, bytes, "next in turn of %zu; cost %.9g", count, cost);
        return;
    case KVB_ROUTE_CHOOSES_ANY:
        (void)snprintf(text, bytes, "drawn among %zu; cost %.9g", count, cost);
        return;
    case KVB_ROUTE_CHOOSES_LOWEST:
        break;
    }
    if (ctx->route.temperature > 0) {
        (void)snprintf(
            text, bytes, "drawn among %zu at temperature %.9g; cost %.9g", count,
            ctx->route.temperature, cost);
    } else {
        (void)snprintf(text, bytes, "lowest cost %.9g of %zu", cost, count);
    }
}

static void write_reason(
    struct kvb_json_writer *json, const struct kvb_query_context *ctx,
    const struct kvb_route_candidate *chosen, size_t candidate_count)
{
    char text[128];

    if (!kvb_route_has_capacity(chosen)) {
        (void)snprintf(
            text, sizeof text, "all of %zu are full; cost %.9g", candidate_count, chosen->cost);
    } else {
        write_choice(text, sizeof text, ctx, chosen, candidate_count);
    }
    kvb_json_write_pair_text(json, "reason", text);
}

static void write_chosen(
    struct kvb_json_writer *json, const struct kvb_query_context *ctx,
    const struct kvb_route_candidate *chosen, size_t candidate_count)
{
    kvb_json_write_pair_u64(json, "worker_id", chosen->id->worker_id);
    kvb_json_write_pair_u64(json, "dp_rank", chosen->id->dp_rank);
    kvb_json_write_pair_text(json, "namespace", chosen->id->name_space);
    kvb_json_write_pair_text(json, "component", chosen->id->component);
    kvb_json_write_pair_text(json, "policy", kvb_route_policy_name(ctx->route.policy));
    kvb_json_write_pair_u64(json, "overlap_blocks", chosen->overlap_blocks);
    write_reason(json, ctx, chosen, candidate_count);
}

static void write_scores(
    struct kvb_json_writer *json, const struct kvb_route_candidate *candidates, size_t count,
    size_t max_rows)
{
    const size_t shown = count < max_rows ? count : max_rows;

    kvb_json_write_key(json, "scores");
    kvb_json_write_begin(json, '[');
    for (size_t i = 0; i < shown; i++) {
        write_score(json, &candidates[i]);
    }
    kvb_json_write_end(json, ']');
    if (shown < count) {
        kvb_json_write_pair_u64(json, "more", count - shown);
    }
}

static struct kvb_route_decision
decision_of(const struct kvb_query *query, const struct kvb_route_candidate *chosen)
{
    const bool has_tokens = query->form == KVB_QUERY_TOKENS;

    return (struct kvb_route_decision){
        .id = *chosen->id,
        .isl_tokens = has_tokens ? query->count : query->count * chosen->block_size,
        .hit_tokens = chosen->overlap_blocks * chosen->block_size,
        .isl_blocks = chosen->request_blocks,
        .overlap_blocks = chosen->overlap_blocks,
    };
}

kvb_status kvb_answer_route(
    struct kvb_query_context *ctx, const struct kvb_query *query, size_t max_rows,
    struct kvb_buf *out, struct kvb_route_decision *out_decision, struct kvb_detail *detail)
{
    const struct kvb_listing_options options = { .with_none = true };
    KVB_OWN(drop_candidates) struct kvb_route_candidate *candidates = NULL;
    const struct kvb_route_random random = { .turn = ctx->turn,
                                             .draw = kvb_query_context_draw(ctx),
                                             .second_draw = kvb_query_context_draw(ctx),
                                             .next_place = ctx->next_place };
    size_t count = 0;
    size_t at = 0;

    KVB_TRY(kvb_query_context_overlaps(ctx, query, options, detail));
    KVB_TRY(make_candidates(ctx, &candidates, &count));
    if (kvb_route_choose(&ctx->route, random, candidates, count, &at) != KVB_OK) {
        kvb_detail_set(detail, "no worker of the model is up");
        return KVB_AGAIN;
    }
    const struct kvb_route_candidate chosen = candidates[at];
    qsort(candidates, count, sizeof *candidates, by_cost);
    struct kvb_json_writer json = kvb_json_writer_of(out);
    kvb_json_write_begin(&json, '{');
    write_chosen(&json, ctx, &chosen, count);
    write_scores(&json, candidates, count, max_rows);
    kvb_json_write_end(&json, '}');
    KVB_TRY(json.status);
    /* Only what was answered counts as sent. */
    ctx->turn++;
    ctx->next_place = chosen.place + 1;
    kvb_load_tracker_add_routed(ctx->tracker, chosen.id, chosen.request_blocks);
    *out_decision = decision_of(query, &chosen);
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
