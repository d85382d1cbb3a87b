#include "core/array.h"
#include "core/limits.h"
#include "kvaggregator/answers/answers.h"

#include <stdlib.h>
#include <string.h>

static uint32_t indexed_blocks(const struct kvb_overlap *overlap)
{
    const uint64_t device = overlap->tokens[KVB_TIER_DEVICE];
    const uint64_t host = overlap->tokens[KVB_TIER_HOST];

    return (uint32_t)((device > host ? device : host) / overlap->shape.block_size);
}

/* The ranks that can be answered with, in ctx->matches.  Returns how many. */
static size_t collect_ranks(struct kvb_query_context *ctx, struct kvb_indexer_gaps *gaps)
{
    size_t count = 0;

    for (size_t i = 0; i < ctx->overlap_count; i++) {
        const struct kvb_overlap *overlap = &ctx->overlaps[i];
        const struct kvb_heartbeat *heartbeat = &overlap->follower->heartbeat;
        const uint32_t blocks = indexed_blocks(overlap);
        /* Under other names equal numbers mean nothing. */
        if (blocks == 0 || heartbeat->hashes != KVB_HASHES_ENGINE) {
            continue;
        }
        if (heartbeat->facts.address[0] == '\0') {
            gaps->without_address++;
            continue;
        }
        ctx->matches[count++] =
            (struct kvb_indexer_match){ .address = heartbeat->facts.address,
                                        .worker_id = overlap->follower->id.worker_id,
                                        .dp_rank = overlap->follower->id.dp_rank,
                                        .blocks = blocks };
    }
    return count;
}

static int compare_workers(const struct kvb_indexer_match *a, const struct kvb_indexer_match *b)
{
    if (a->worker_id != b->worker_id) {
        return a->worker_id < b->worker_id ? -1 : 1;
    }
    return strcmp(a->address, b->address); /* workers of two components may share an id */
}

/* Each worker's ranks are neighbours, the best of them first. */
static int by_worker_then_blocks(const void *left, const void *right)
{
    const struct kvb_indexer_match *a = left;
    const struct kvb_indexer_match *b = right;
    const int workers = compare_workers(a, b);

    if (workers != 0 || a->blocks != b->blocks) {
        return workers != 0 ? workers : (a->blocks < b->blocks) - (a->blocks > b->blocks);
    }
    return (a->dp_rank > b->dp_rank) - (a->dp_rank < b->dp_rank);
}

static int by_blocks_then_worker(const void *left, const void *right)
{
    const struct kvb_indexer_match *a = left;
    const struct kvb_indexer_match *b = right;

    return a->blocks != b->blocks ? (a->blocks < b->blocks) - (a->blocks > b->blocks)
                                  : compare_workers(a, b);
}

static size_t keep_best_ranks(struct kvb_indexer_match *matches, size_t count)
{
    size_t kept = 0;

    qsort(matches, count, sizeof *matches, by_worker_then_blocks);
    for (size_t i = 0; i < count; i++) {
        if (kept == 0 || compare_workers(&matches[kept - 1], &matches[i]) != 0) {
            matches[kept++] = matches[i];
        }
    }
    return kept;
}

kvb_status kvb_answer_indexer(
    struct kvb_query_context *ctx, struct kvb_query *query, struct kvb_buf *out,
    struct kvb_indexer_gaps *out_gaps)
{
    const struct kvb_listing_options any_order = { .ordered = 1 };
    const kvb_status status = kvb_query_context_overlaps(ctx, query, any_order, NULL);

    *out_gaps = (struct kvb_indexer_gaps){ .has_several_models = status == KVB_BAD_INPUT };
    /* An empty answer, because sgl-router would fail its user's request for an error. */
    if (status == KVB_BAD_INPUT || status == KVB_NOT_FOUND) {
        return KVB_OK;
    }
    KVB_TRY(status);
    KVB_TRY(kvb_array_reserve(
        &ctx->matches, &ctx->matches_capacity, ctx->overlap_count + 1, sizeof *ctx->matches,
        kvb_max_streams + 1));
    const size_t count = keep_best_ranks(ctx->matches, collect_ranks(ctx, out_gaps));
    qsort(ctx->matches, count, sizeof *ctx->matches, by_blocks_then_worker);
    return kvb_indexer_response_encode(ctx->matches, count, query->count, out);
}
