#include "core/own.h"
#include "kvaggregator/answers/answers.h"
#include "kvaggregator/answers/pick.h"
#include "wire/json/writer.h"
#include "wire/query/text.h"
#include "wire/router/heartbeat.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The most bytes of a row of scores whose address has 255 bytes without escapes. */
enum { usual_row_bytes = 440 };

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

static kvb_status write_scores(
    struct kvb_json_writer *json, const struct kvb_route_candidate *candidates, size_t count,
    size_t max_rows)
{
    KVB_OWN(kvb_own_free) struct kvb_pick_place *places = NULL;
    const size_t max = count < max_rows ? count : max_rows;
    size_t rows = 0;
    size_t shown = 0;

    KVB_TRY(kvb_pick_sort(candidates, count, max, &places));
    kvb_json_write_pair_begin(json, "scores", '[');
    /* A route is chosen only once, so an answer that is too long cannot be repeated with fewer
     * rows.  Therefore a row with a long address counts as several rows. */
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

kvb_status kvb_answer_route(
    struct kvb_query_context *ctx, struct kvb_query *query, size_t max_rows, struct kvb_buf *out,
    struct kvb_route_decision *out_decision, struct kvb_detail *detail)
{
    struct kvb_pick pick;

    KVB_TRY(kvb_pick_make(ctx, query, &pick, detail));
    /* The answer is written before anything is entered: one without memory must count nowhere. */
    struct kvb_json_writer json = kvb_json_writer_of(out);
    kvb_json_write_begin(&json, '{');
    write_chosen(&json, &pick.route, &pick.candidates[pick.chosen], pick.count);
    if (!pick.decision.is_dry_run) {
        kvb_json_write_pair_text(&json, "request_id", pick.decision.request_id);
    }
    kvb_text_tokens_write(query, &json);
    KVB_TRY(write_scores(&json, pick.candidates, pick.count, max_rows));
    kvb_json_write_end(&json, '}');
    KVB_TRY(json.status);
    if (!pick.decision.is_dry_run) {
        kvb_pick_enter(ctx, query, &pick);
    }
    *out_decision = pick.decision;
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
