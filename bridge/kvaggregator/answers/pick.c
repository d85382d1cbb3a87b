#include "kvaggregator/answers/pick.h"

#include "core/array.h"
#include "core/hash.h"
#include "core/limits.h"
#include "core/sort_first.h"
#include "kvaggregator/answers/answers.h"
#include "kvaggregator/answers/selection.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- Endpoints ---- */

bool kvb_pick_endpoint(
    struct kvb_query_context *ctx, uint32_t number, const struct kvb_follower *follower,
    struct kvb_endpoint *out_endpoint)
{
    const char *address = follower->heartbeat.facts.address;
    const uint64_t hash = kvb_selection_address(address);
    struct kvb_endpoint endpoint;

    if (address[0] == '\0') {
        return false;
    }
    /* Read again only when the address is another one.  Without memory it is read each time. */
    if (number >= ctx->endpoint_capacity) {
        const size_t known = ctx->endpoint_capacity;
        if (kvb_array_reserve(
                &ctx->endpoints, &ctx->endpoint_capacity, (size_t)number + 1,
                sizeof *ctx->endpoints, kvb_max_streams + 1) == KVB_OK) {
            memset(
                ctx->endpoints + known, 0,
                (ctx->endpoint_capacity - known) * sizeof *ctx->endpoints);
        }
    }
    if (number >= ctx->endpoint_capacity) {
        return kvb_endpoint_of_address(address, out_endpoint) == KVB_OK;
    }
    struct kvb_known_endpoint *known = &ctx->endpoints[number];
    if (known->address_hash != hash) {
        const bool has_any = kvb_endpoint_of_address(address, &endpoint) == KVB_OK;
        *known = (struct kvb_known_endpoint){ .address_hash = hash, .has_any = has_any };
        if (has_any) {
            known->endpoint = endpoint;
        }
    }
    *out_endpoint = known->endpoint;
    return known->has_any;
}

bool kvb_pick_is_reachable(
    struct kvb_query_context *ctx, const struct kvb_selection *selection, uint32_t number,
    const struct kvb_follower *follower)
{
    struct kvb_endpoint endpoint;

    return follower->heartbeat.facts.role != KVB_ROLE_PREFILL &&
           kvb_pick_endpoint(ctx, number, follower, &endpoint) &&
           (!selection->has_endpoints ||
            kvb_endpoint_is_among(&endpoint, selection->endpoints, selection->endpoint_count));
}

/* ---- Candidates ---- */

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
        .ended_blocks = sums.ended_blocks,
        .ended_requests = sums.ended_requests,
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
static kvb_status
make_candidates(struct kvb_query_context *ctx, const struct kvb_query *query, size_t *out_count)
{
    size_t count = 0;

    KVB_TRY(kvb_array_reserve(
        &ctx->candidates, &ctx->candidate_capacity, ctx->overlap_count + 1, sizeof *ctx->candidates,
        kvb_max_streams + 1));
    for (size_t i = 0; i < ctx->overlap_count; i++) {
        const struct kvb_overlap *overlap = &ctx->overlaps[i];
        if (!query->selection.needs_endpoint ||
            kvb_pick_is_reachable(ctx, &query->selection, overlap->number, overlap->follower)) {
            count += fill_candidate(ctx, overlap, &ctx->candidates[count]);
        }
    }
    *out_count = count;
    return KVB_OK;
}

/* ---- Order ---- */

/* Lowest cost first, then lowest worker and rank. */
static int by_cost(const void *left, const void *right, void *context)
{
    (void)context;
    const struct kvb_pick_place *a = left;
    const struct kvb_pick_place *b = right;

    if (a->cost != b->cost) {
        return a->cost < b->cost ? -1 : 1;
    }
    if (a->worker_id != b->worker_id) {
        return a->worker_id < b->worker_id ? -1 : 1;
    }
    return (a->dp_rank > b->dp_rank) - (a->dp_rank < b->dp_rank);
}

kvb_status kvb_pick_sort(
    const struct kvb_route_candidate *candidates, size_t count, size_t shown,
    struct kvb_pick_place **out_places)
{
    struct kvb_pick_place *places = calloc(count + 1, sizeof *places);

    if (!places) {
        return KVB_NO_MEMORY;
    }
    for (size_t i = 0; i < count; i++) {
        places[i] = (struct kvb_pick_place){ .cost = candidates[i].cost,
                                             .worker_id = candidates[i].key->id->worker_id,
                                             .dp_rank = candidates[i].key->id->dp_rank,
                                             .at = (uint32_t)i };
    }
    kvb_sort_first(places, count, sizeof *places, shown, by_cost, NULL);
    *out_places = places;
    return KVB_OK;
}

/* ---- The decision ---- */

/* Of a text of which only the beginning is known, or nothing: what else it costs its worker. */
static uint64_t
unknown_blocks(const struct kvb_query *query, const struct kvb_route_candidate *chosen)
{
    return chosen->block_size > 0 ? query->unknown_tokens / chosen->block_size : 0;
}

static struct kvb_route_decision
decision_of(const struct kvb_query *query, const struct kvb_route_candidate *chosen)
{
    const bool has_tokens = query->form == KVB_QUERY_TOKENS;
    const uint64_t tokens = has_tokens ? query->count : query->count * chosen->block_size;

    return (struct kvb_route_decision){
        .id = *chosen->key->id,
        .isl_tokens = tokens + query->unknown_tokens,
        .hit_tokens = chosen->overlap_blocks * chosen->block_size,
        .isl_blocks = chosen->request_blocks + unknown_blocks(query, chosen),
        .overlap_blocks = chosen->overlap_blocks,
        .is_dry_run = query->selection.is_dry_run,
    };
}

/* Without memory the decision is still valid; the worker may get the next turn, too. */
static void note_turn(struct kvb_query_context *ctx, const struct kvb_route_candidate *chosen)
{
    const size_t known = ctx->last_turn_capacity;

    /* Picked because it alone has the most of the prompt: the next turn is still its own. */
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
    const struct kvb_route_candidate *chosen, bool is_promise, struct kvb_route_decision *decision)
{
    const uint64_t shared = chosen->overlap_blocks + chosen->predicted_blocks;
    const kvb_block_hash *names = NULL;
    size_t count = 0;

    const uint64_t blocks = chosen->request_blocks + unknown_blocks(query, chosen);
    decision->prefill_blocks = blocks - shared;
    /* Predicted blocks mean that a request with the same prefix is in flight and already counts
     * them.  This request adds only its own remainder, at least the block that it generates. */
    decision->blocks = chosen->predicted_blocks > 0 ? decision->prefill_blocks : blocks;
    decision->blocks += decision->blocks == 0;
    decision->ttl_ms = query->ttl_ms ? query->ttl_ms : ctx->request_ttl_ms;
    const kvb_status status =
        kvb_query_context_names(ctx, query, candidate_shape(chosen), &names, &count);
    if (status == KVB_OK && is_promise) {
        note_promise(ctx, chosen, names, count, decision);
    }
    /* Until its events say so, the worker is expected to store what it does not hold. */
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

    /* Of a request that is over already nothing will be stored any more. */
    if (kvb_requests_add(ctx->requests, &request, ctx->now_ns) != KVB_AGAIN) {
        (void)kvb_predictions_add(
            ctx->predictions, &decision->id, decision->names, decision->name_count, ctx->now_ns);
    }
}

/* Sessions without state: each prefers the candidate for which the hash of both is highest
 * (rendezvous hashing), and keeps to it while others are not less loaded.  Where blocks of the
 * prompt are known, these say more. */
static void prefer_session(
    const struct kvb_query *query, const struct kvb_route_candidate *candidates, size_t count,
    enum kvb_route_policy policy, size_t *chosen)
{
    uint64_t best_hash = 0;
    size_t best = count;
    double highest = 0;
    double lowest = 0;

    const bool is_by_load = candidates[*chosen].request_blocks == 0 || policy != KVB_ROUTE_KV;
    if (query->selection.affinity == 0 || !is_by_load) {
        return;
    }
    /* Among those that compete; the costs say whether the preferred one is loaded most. */
    for (size_t i = 0; i < count; i++) {
        if (!candidates[i].competes) {
            continue;
        }
        const uint64_t pair[] = { query->selection.affinity, candidates[i].key->id->worker_id,
                                  candidates[i].key->id->dp_rank };
        const uint64_t hash = kvb_hash64((kvb_span){ (const uint8_t *)pair, sizeof pair }, 0);
        const double cost = candidates[i].cost;
        highest = best == count || cost > highest ? cost : highest;
        lowest = best == count || cost < lowest ? cost : lowest;
        if (best == count || hash > best_hash) {
            best = i;
            best_hash = hash;
        }
    }
    /* Where all cost the same nobody is loaded most. */
    if (best < count && (candidates[best].cost < highest || highest <= lowest)) {
        *chosen = best;
    }
}

kvb_status kvb_pick_make(
    struct kvb_query_context *ctx, struct kvb_query *query, struct kvb_pick *out_pick,
    struct kvb_detail *detail)
{
    const struct kvb_listing_options options = { .with_none = true };
    const double draw = kvb_query_context_draw(ctx);
    struct kvb_pick pick = { .is_promise =
                                 !query->was_text || query->known == KVB_TEXT_TOKENS_WHOLE };

    KVB_TRY(kvb_route_options_for(ctx, query, &pick.route, detail));
    KVB_TRY(kvb_query_context_overlaps(ctx, query, options, detail));
    KVB_TRY(make_candidates(ctx, query, &pick.count));
    pick.candidates = ctx->candidates;
    /* What requests before this one will store counts as held, before any event says so. */
    fill_predictions(ctx, query, pick.candidates, pick.count);
    if (kvb_route_choose(&pick.route, draw, pick.candidates, pick.count, &pick.chosen) != KVB_OK) {
        return kvb_route_explain_none(ctx, query, detail);
    }
    prefer_session(query, pick.candidates, pick.count, pick.route.policy, &pick.chosen);
    pick.decision = decision_of(query, &pick.candidates[pick.chosen]);
    name_request(ctx, query, pick.decision.request_id);
    *out_pick = pick;
    return KVB_OK;
}

void kvb_pick_enter(
    struct kvb_query_context *ctx, const struct kvb_query *query, struct kvb_pick *pick)
{
    ctx->decisions++;
    note_turn(ctx, &pick->candidates[pick->chosen]);
    enter_decision(ctx, query, &pick->candidates[pick->chosen], pick->is_promise, &pick->decision);
}
