#include "kvaggregator/answers/answers.h"
#include "model/books.h"
#include "wire/json/writer.h"

/* What streams promise, and what engines deliver: from decisions and reports to load/audit.h.
 *
 *     decision      stream is EXACT or PARTIAL: its promise is kept with the request in flight
 *     its report    with "cached_tokens": promised and delivered tokens are compared
 *
 * Left out is a promise that the stream itself has taken back before the report: its list was
 * emptied, or was not claimed to be right for a while, or the promised blocks were removed. */

struct kvb_promise
kvb_answer_promise(const struct kvb_query_context *ctx, const struct kvb_route_decision *decision)
{
    const struct kvb_follower *follower = kvb_followers_find(ctx->followers, &decision->id);

    if (!follower || !follower->is_claimed) {
        return (struct kvb_promise){ 0 };
    }
    struct kvb_promise promise = { .tokens = decision->promised_tokens,
                                   .block = decision->promised_block,
                                   .claim = follower->claim };
    if (follower->heartbeat.hashes == KVB_HASHES_ENGINE) {
        promise.block = (kvb_block_hash){ 0 }; /* its removals have other names */
    }
    return promise;
}

static bool is_claim_same(const struct kvb_query_context *ctx, const struct kvb_request_promise *of)
{
    const struct kvb_follower *follower = kvb_followers_find(ctx->followers, &of->id);

    /* A list that was emptied or doubted since claims anew, with another number. */
    return follower && follower->is_claimed && follower->claim == of->promise.claim;
}

/* The size of a block that the engine may drop without saying so; 0: it says what it drops, or its
 * hashes have lookahead. */
static uint32_t
droppable_tokens(const struct kvb_query_context *ctx, const struct kvb_stream_id *id)
{
    const struct kvb_follower *follower = kvb_followers_find(ctx->followers, id);
    const bool is_said =
        !follower || follower->heartbeat.speculative_drop > 0 || follower->heartbeat.lookahead > 0;

    return is_said ? 0 : follower->heartbeat.block_size;
}

static void
audit_promise(struct kvb_query_context *ctx, const struct kvb_request_promise *of, uint64_t cached)
{
    uint64_t *left_out = ctx->audit_left_out;

    /* Only what the stream has neither removed nor taken back is held against it. */
    if (of->state == KVB_PROMISE_NONE) {
        left_out[KVB_LEFT_OUT_NO_PROMISE]++;
    } else if (of->state == KVB_PROMISE_EVICTED) {
        left_out[KVB_LEFT_OUT_EVICTED]++;
    } else if (!is_claim_same(ctx, of)) {
        left_out[KVB_LEFT_OUT_LIST_CHANGED]++;
    } else if (
        kvb_audit_add(
            ctx->audit, &of->id, of->promise.tokens, cached, droppable_tokens(ctx, &of->id),
            ctx->now_ns) != KVB_OK) {
        left_out[KVB_LEFT_OUT_NO_ROOM]++;
    }
}

void kvb_answer_audit(struct kvb_query_context *ctx, const struct kvb_shared_report *report)
{
    struct kvb_request_promise promise;

    if (ctx->audit && report->has_cached_tokens &&
        kvb_requests_promise(ctx->requests, report->request_id, &promise) == KVB_OK) {
        audit_promise(ctx, &promise, report->cached_tokens);
    }
}

void kvb_answer_write_audit(
    struct kvb_json_writer *json, const struct kvb_query_context *ctx,
    const struct kvb_stream_id *id)
{
    struct kvb_audit_stats stats;

    if (!ctx->audit || !kvb_audit_find(ctx->audit, id, &stats)) {
        return;
    }
    kvb_json_write_pair_begin(json, "audit", '{');
    kvb_json_write_pair_text(json, "verdict", kvb_audit_verdict_name(stats.verdict));
    kvb_json_write_pair_u64(json, "requests", stats.requests);
    kvb_json_write_pair_u64(json, "short_requests", stats.short_requests);
    kvb_json_write_pair_u64(json, "promised_tokens", stats.promised_tokens);
    kvb_json_write_pair_u64(json, "delivered_tokens", stats.delivered_tokens);
    kvb_json_write_pair_u64(json, "extra_tokens", stats.extra_tokens);
    kvb_json_write_pair_number(json, "evidence", stats.evidence);
    const char *why = kvb_audit_why(&stats);
    if (why) {
        kvb_json_write_pair_text(json, "why", why);
    }
    kvb_json_write_end(json, '}');
}
