#include "wire/query/explain.h"

#include "core/own.h"
#include "wire/json/scan.h"
#include "wire/json/writer.h"
#include "wire/query/json.h"

enum { max_row_bytes = 2048, us_in_ms = 1000 };

/* ---- The request ---- */

void kvb_explain_request_done(struct kvb_explain_request *request)
{
    kvb_query_done(&request->query);
}

static kvb_status read_first_block(struct kvb_json_scan *scan, void *context)
{
    struct kvb_explain_request *request = context;

    return kvb_json_take_word(scan, "null") ? KVB_OK : kvb_json_u64(scan, &request->from);
}

/* What a query does not have. */
static kvb_status read_other_fields(kvb_span json, struct kvb_explain_request *request)
{
    static const struct kvb_json_field fields[] = { { .name = "from", .read = read_first_block } };
    struct kvb_json_scan scan = kvb_json_scan_of(json);

    return kvb_json_object(&scan, fields, KVB_COUNT_OF(fields), request);
}

kvb_status kvb_explain_json_decode(
    kvb_span json, struct kvb_explain_request *out_request, struct kvb_detail *detail)
{
    KVB_OWN(kvb_explain_request_done) struct kvb_explain_request request = { 0 };

    const kvb_status status = kvb_query_json_decode(json, &request.query, detail);
    if (status != KVB_OK) {
        return status == KVB_NOT_FOUND ? KVB_BAD_INPUT : status;
    }
    if (request.query.form == KVB_QUERY_TEXT) {
        kvb_detail_set(detail, "token_ids: missing; a bridge does not tokenize texts");
        return KVB_BAD_INPUT;
    }
    if (read_other_fields(json, &request) != KVB_OK) {
        kvb_detail_set(detail, "from: expected a number of a block, once");
        return KVB_BAD_INPUT;
    }
    *out_request = request;
    request = (struct kvb_explain_request){ 0 }; /* now the caller's */
    return KVB_OK;
}

/* ---- The answer ---- */

static const char *const verdict_names[] = {
    [KVB_TRACE_HELD] = "held",       [KVB_TRACE_HELD_BEFORE] = "held_before",
    [KVB_TRACE_REMOVED] = "removed", [KVB_TRACE_CLEARED] = "cleared",
    [KVB_TRACE_ABSENT] = "absent",
};

static void write_traced(struct kvb_json_writer *json, const struct kvb_explained_trace *trace)
{
    if (trace->verdict == KVB_TRACE_NOTHING) {
        return;
    }
    kvb_json_write_pair_begin(json, "trace", '{');
    kvb_json_write_pair_text(json, "what", verdict_names[trace->verdict]);
    kvb_json_write_pair_u64(json, "event_id", trace->event_id);
    kvb_json_write_pair_u64(json, "time_ms", trace->note.wall_us / us_in_ms);
    kvb_json_write_pair_text(json, "origin", kvb_event_origin_name(trace->note.origin));
    kvb_json_write_end(json, '}');
}

/* Something is known of the block in this list beyond that it is not there. */
static bool is_worth_saying(const struct kvb_explained_block *row, unsigned list)
{
    const enum kvb_trace_verdict verdict = row->traces[list].verdict;

    return list == KVB_TIER_DEVICE || (row->lists >> list & 1) != 0 ||
           (list < KVB_TIER_COUNT && row->max[list] > 0) || verdict == KVB_TRACE_REMOVED ||
           verdict == KVB_TRACE_CLEARED;
}

static void
write_list(struct kvb_json_writer *json, const struct kvb_explained_block *row, unsigned list)
{
    kvb_json_write_pair_begin(json, kvb_tier_name((enum kvb_tier)list), '{');
    kvb_json_write_pair_bool(json, "listed", (row->lists >> list & 1) != 0);
    if (list < KVB_TIER_COUNT) {
        kvb_json_write_pair_u64(json, "min_copies", row->min[list]);
        kvb_json_write_pair_u64(json, "max_copies", row->max[list]);
    }
    write_traced(json, &row->traces[list]);
    kvb_json_write_end(json, '}');
}

static void write_explained_row(
    struct kvb_json_writer *json, size_t block, const struct kvb_explained_block *row)
{
    kvb_json_write_begin(json, '{');
    kvb_json_write_pair_u64(json, "block", block);
    if (row->has_name) {
        kvb_json_write_pair_u64(json, "hash", row->block.value);
    }
    kvb_json_write_pair_text(json, "reason", kvb_explain_reason_name(row->reason));
    kvb_json_write_pair_begin(json, "lists", '{');
    for (unsigned list = 0; list < KVB_LIST_COUNT; list++) {
        if (is_worth_saying(row, list)) {
            write_list(json, row, list);
        }
    }
    kvb_json_write_end(json, '}');
    kvb_json_write_end(json, '}');
}

static void write_explained_stream(struct kvb_json_writer *json, const struct kvb_explanation *said)
{
    const struct kvb_heartbeat *beat = &said->beat;

    kvb_json_write_pair_u64(json, "worker_id", beat->worker_id);
    kvb_json_write_pair_u64(json, "dp_rank", beat->dp_rank);
    kvb_json_write_pair_text(json, "model", beat->model);
    kvb_json_write_pair_text(json, "state", kvb_stream_state_name(beat->state));
    kvb_json_write_pair_text(json, "reason", kvb_stream_reason_name(beat->reason));
    if (said->why) {
        kvb_json_write_pair_text(json, "why", said->why);
    }
    kvb_json_write_pair_text(json, "hashes", kvb_hashes_name(beat->hashes));
    kvb_json_write_pair_u64(json, "block_size", beat->block_size);
    kvb_json_write_pair_u64(json, "lookahead", beat->lookahead);
    kvb_json_write_pair_u64(json, "window_tokens", beat->window_tokens);
    kvb_json_write_pair_u64(json, "last_event_id", beat->last_id);
    kvb_json_write_pair_u64(json, "epoch_first_id", beat->epoch_first_id);
}

static void write_trace_extent(struct kvb_json_writer *json, const struct kvb_explanation *said)
{
    kvb_json_write_pair_begin(json, "trace", '{');
    kvb_json_write_pair_u64(json, "events", said->trace_events);
    if (said->trace_events > 0) {
        kvb_json_write_pair_u64(json, "first_event_id", said->trace_first_id);
        kvb_json_write_pair_u64(json, "first_time_ms", said->trace_first_us / us_in_ms);
    }
    kvb_json_write_pair_bool(json, "whole", said->is_trace_whole);
    kvb_json_write_end(json, '}');
}

kvb_status kvb_explain_json_encode(
    const struct kvb_explanation *explanation, const char *bridge_id, size_t max_bytes,
    struct kvb_buf *out)
{
    struct kvb_json_writer json = kvb_json_writer_of(out);
    size_t i = 0;

    kvb_json_write_begin(&json, '{');
    kvb_json_write_pair_text(&json, "bridge_id", bridge_id);
    write_explained_stream(&json, explanation);
    kvb_json_write_pair_u64(&json, "blocks", explanation->blocks);
    kvb_json_write_pair_u64(&json, "held_blocks", explanation->held_blocks);
    if (explanation->is_held_at_least) {
        kvb_json_write_pair_bool(&json, "held_at_least", true);
    }
    kvb_json_write_pair_u64(&json, "usable_blocks", explanation->usable_blocks);
    write_trace_extent(&json, explanation);
    kvb_json_write_pair_begin(&json, "rows", '[');
    for (; i < explanation->row_count && json.status == KVB_OK &&
           (i == 0 || out->len + max_row_bytes <= max_bytes);
         i++) {
        write_explained_row(&json, explanation->from + i, &explanation->rows[i]);
    }
    kvb_json_write_end(&json, ']');
    if (explanation->from + i < explanation->blocks) {
        kvb_json_write_pair_u64(&json, "next", explanation->from + i);
    }
    kvb_json_write_end(&json, '}');
    return json.status;
}
