#include "kvaggregator/answers/gateway.h"

#include "core/limits.h"
#include "core/own.h"
#include "kvaggregator/answers/pick.h"
#include "kvaggregator/answers/selection.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- The model ---- */

/* The engine answers a request for a model that it does not have, in its own words; so one is found
 * in any case: that of the first worker that this gateway may pick. */
static void settle_model(
    struct kvb_query_context *ctx, struct kvb_query *query, struct kvb_gateway_found *found)
{
    const char *model = NULL;

    if (kvb_query_context_find_model(ctx, query, &model, NULL) == KVB_OK) {
        return;
    }
    found->is_model_unknown = query->has_model;
    query->has_model = false;
    query->lora_name[0] = query->served_name[0] = '\0';
    /* Any model that has workers, so that one of them is picked, by load. */
    query->count = 0; /* another model's tokens say nothing about this one's blocks */
    for (size_t i = 0; i < kvb_followers_limit(ctx->followers); i++) {
        const struct kvb_follower *follower = kvb_followers_at(ctx->followers, i);
        if (follower && !follower->heartbeat.is_store && follower->state != KVB_STREAM_DOWN &&
            kvb_query_context_model(ctx, follower)[0] != '\0' &&
            kvb_selection_takes(query, follower) &&
            kvb_pick_is_reachable(ctx, &query->selection, (uint32_t)i, follower)) {
            query->has_model = true;
            (void)snprintf(/* fits: both are names of models */
                           query->model, sizeof query->model, "%s",
                           kvb_query_context_model(ctx, follower));
            return;
        }
    }
}

/* ---- Endpoints ---- */

static bool endpoint_of(
    struct kvb_query_context *ctx, const struct kvb_route_candidate *candidate, bool rank_ports,
    char out[kvb_endpoint_bytes])
{
    const struct kvb_follower *follower = kvb_followers_at(ctx->followers, candidate->place);
    const uint64_t rank = candidate->key->id->dp_rank;
    struct kvb_endpoint endpoint;

    /* Ranks with ports of their own share the worker's address, which is that of rank 0. */
    if (!follower || !kvb_pick_endpoint(ctx, candidate->place, follower, &endpoint)) {
        return false;
    }
    kvb_endpoint_write(&endpoint, rank_ports ? (unsigned)rank : 0, out);
    return true;
}

static bool has_endpoint(const char *list, const char *one)
{
    const size_t len = strlen(one);

    /* 10.0.0.1:80 is not in "10.0.0.1:8000": it must be a whole item. */
    for (const char *at = list; (at = strstr(at, one)) != NULL; at += len) {
        /* Whole items: 10.0.0.1:80 is also how 10.0.0.1:8000 begins. */
        const bool begins = at == list || at[-1] == ',';
        if (begins && (at[len] == ',' || at[len] == '\0')) {
            return true;
        }
    }
    return false;
}

static void add_endpoint(char list[kvb_gateway_endpoints_bytes], const char *one)
{
    const size_t len = strlen(list);

    if (!has_endpoint(list, one) && len + strlen(one) + 2 <= kvb_gateway_endpoints_bytes) {
        (void)snprintf(
            list + len, kvb_gateway_endpoints_bytes - len, "%s%s", len > 0 ? "," : "", one);
    }
}

/* The pick, and those that cost least after it.  Without memory: the pick alone. */
static void list_endpoints(
    struct kvb_query_context *ctx, const struct kvb_pick *pick, const struct kvb_gateway_wish *wish,
    char list[kvb_gateway_endpoints_bytes])
{
    KVB_OWN(kvb_own_free) struct kvb_pick_place *places = NULL;
    char one[kvb_endpoint_bytes];
    size_t listed = 1;

    list[0] = '\0';
    if (endpoint_of(ctx, &pick->candidates[pick->chosen], wish->rank_ports, one)) {
        add_endpoint(list, one);
    }
    if (wish->endpoints < 2 ||
        kvb_pick_sort(pick->candidates, pick->count, pick->count, &places) != KVB_OK) {
        return;
    }
    for (size_t i = 0; i < pick->count && listed < wish->endpoints; i++) {
        const struct kvb_route_candidate *candidate = &pick->candidates[places[i].at];
        /* One for each endpoint: the ranks of a worker may share it. */
        if (candidate->competes && places[i].at != pick->chosen &&
            endpoint_of(ctx, candidate, wish->rank_ports, one) && !has_endpoint(list, one)) {
            add_endpoint(list, one);
            listed++;
        }
    }
}

static bool has_several_ranks(const struct kvb_pick *pick)
{
    const struct kvb_stream_id *chosen = pick->candidates[pick->chosen].key->id;

    for (size_t i = 0; i < pick->count; i++) {
        const struct kvb_stream_id *id = pick->candidates[i].key->id;
        if (id->worker_id == chosen->worker_id && id->dp_rank != chosen->dp_rank) {
            return true;
        }
    }
    return false;
}

kvb_status kvb_answer_gateway(
    struct kvb_query_context *ctx, struct kvb_query *query, const struct kvb_gateway_wish *wish,
    struct kvb_gateway_found *out_found)
{
    struct kvb_gateway_found found = { .has_ranks = false };
    struct kvb_detail detail;
    struct kvb_pick pick;

    settle_model(ctx, query, &found);
    query->selection.needs_endpoint = true;
    const kvb_status status = kvb_pick_make(ctx, query, &pick, &detail);
    if (status != KVB_OK) {
        return status == KVB_NO_MEMORY ? KVB_NO_MEMORY : KVB_NOT_FOUND;
    }
    /* Nothing is entered before it is sure that the gateway is given an endpoint. */
    list_endpoints(ctx, &pick, wish, found.endpoints);
    if (found.endpoints[0] == '\0') {
        return KVB_NOT_FOUND;
    }
    /* Entered only now: before, the request might have gone nowhere. */
    pick.is_promise = wish->is_promise && !found.is_model_unknown;
    found.has_ranks = !wish->rank_ports && has_several_ranks(&pick);
    found.prompt_tokens = query->count;
    found.overlap_tokens = pick.decision.hit_tokens;
    kvb_pick_enter(ctx, query, &pick);
    found.decision = pick.decision;
    *out_found = found;
    return KVB_OK;
}

kvb_status kvb_answer_gateway_moved(
    struct kvb_query_context *ctx, const struct kvb_endpoint *served, bool rank_ports,
    struct kvb_route_decision *decision)
{
    for (size_t i = 0; i < kvb_followers_limit(ctx->followers); i++) {
        const struct kvb_follower *follower = kvb_followers_at(ctx->followers, i);
        struct kvb_endpoint endpoint;
        if (!follower || follower->heartbeat.is_store ||
            !kvb_pick_endpoint(ctx, (uint32_t)i, follower, &endpoint)) {
            continue;
        }
        endpoint.port = (uint16_t)(endpoint.port + (rank_ports ? follower->id.dp_rank : 0));
        /* Of ranks behind one port the first: nobody says which of them served. */
        if (kvb_endpoint_hash(&endpoint) == kvb_endpoint_hash(served)) {
            decision->id = follower->id;
            /* That engine has promised nothing, and what it stores was not foreseen. */
            decision->promised_tokens = 0;
            decision->names = NULL;
            decision->name_count = 0;
            kvb_answer_enter_decision(ctx, decision, false);
            return KVB_OK;
        }
    }
    return KVB_NOT_FOUND;
}

void kvb_answer_gateway_count(
    struct kvb_query_context *ctx, size_t *out_endpoints, size_t *out_without)
{
    const size_t limit = kvb_followers_limit(ctx->followers);
    uint64_t *hashes = malloc((limit + 1) * sizeof *hashes);
    size_t count = 0;
    size_t different = 0;

    *out_without = 0;
    for (size_t i = 0; hashes && i < limit; i++) {
        const struct kvb_follower *follower = kvb_followers_at(ctx->followers, i);
        struct kvb_endpoint endpoint;
        /* What cannot be picked anyway counts as neither. */
        if (!follower || follower->heartbeat.is_store || follower->state == KVB_STREAM_DOWN) {
            continue;
        }
        if (kvb_pick_endpoint(ctx, (uint32_t)i, follower, &endpoint)) {
            hashes[count++] = kvb_endpoint_hash(&endpoint);
        } else {
            ++*out_without;
        }
    }
    if (count > 0) { /* the ranks of a worker share one */
        qsort(hashes, count, sizeof *hashes, kvb_selection_compare);
    }
    for (size_t i = 0; i < count; i++) {
        different += i == 0 || hashes[i] != hashes[i - 1];
    }
    free(hashes);
    *out_endpoints = different;
}
