#include "core/clock.h"
#include "core/limits.h"
#include "core/own.h"
#include "daemon/aggregator_inside.h"
#include "wire/json_scan.h"
#include "wire/query_json.h"

#include <string.h>

/* One question and what it needs to be answered. */
struct asking {
    struct kvb_aggregator *aggregator;
    kvb_span payload;
    struct kvb_buf *out;
    bool has_decision;
    struct kvb_route_decision decision;
};

struct kvb_question {
    const char *tail;
    enum kvb_aggregator_metric counter;
    kvb_status (*answer)(struct asking *asking, struct kvb_detail *detail);
};

/* ---- With a prompt ---- */

static kvb_status answer_match(struct asking *asking, struct kvb_detail *detail)
{
    KVB_OWN(kvb_query_done) struct kvb_query query = { 0 };

    KVB_TRY(kvb_query_json_decode(asking->payload, &query, detail));
    return kvb_answer_match(
        &asking->aggregator->view, &query, kvb_aggregator_most_rows, asking->out, detail);
}

static kvb_status answer_route(struct asking *asking, struct kvb_detail *detail)
{
    KVB_OWN(kvb_query_done) struct kvb_query query = { 0 };

    KVB_TRY(kvb_query_json_decode(asking->payload, &query, detail));
    KVB_TRY(kvb_answer_route(
        &asking->aggregator->view, &query, kvb_aggregator_most_rows, asking->out, &asking->decision,
        detail));
    asking->has_decision = true;
    return KVB_OK;
}

/* ---- Without ---- */

static kvb_status answer_state(struct asking *asking, struct kvb_detail *detail)
{
    (void)detail;
    return kvb_answer_state(&asking->aggregator->view, asking->out);
}

static kvb_status answer_load(struct asking *asking, struct kvb_detail *detail)
{
    (void)detail;
    return kvb_answer_load(&asking->aggregator->view, kvb_aggregator_most_rows, asking->out);
}

/* Where the asker wants to go on: {"from":n} or {"stream":n,"row":n}. */
struct page {
    uint64_t from;
    struct kvb_dump_place place;
};

static kvb_status read_from(struct kvb_json_scan *scan, void *context)
{
    struct page *page = context;

    return kvb_json_u64(scan, &page->from);
}

static kvb_status read_stream(struct kvb_json_scan *scan, void *context)
{
    struct page *page = context;

    return kvb_json_u64(scan, &page->place.stream);
}

static kvb_status read_row(struct kvb_json_scan *scan, void *context)
{
    struct page *page = context;

    return kvb_json_u64(scan, &page->place.row);
}

/* An empty request means the first page. */
static kvb_status read_page(kvb_span payload, struct page *out_page, struct kvb_detail *detail)
{
    /* clang-format off */
    static const struct kvb_json_field fields[] = {
        { .name = "from",   .read = read_from },
        { .name = "stream", .read = read_stream },
        { .name = "row",    .read = read_row },
    };
    /* clang-format on */
    struct kvb_json_scan scan = kvb_json_scan_of(payload);

    if (payload.len == 0) {
        return KVB_OK;
    }
    if (kvb_json_object(&scan, fields, KVB_COUNT_OF(fields), out_page) != KVB_OK ||
        kvb_json_finish(&scan) != KVB_OK) {
        kvb_detail_set(
            detail,
            "expected nothing, {\"from\":n} or {\"stream\":n,\"row\":n} with whole numbers");
        return KVB_BAD_INPUT;
    }
    return KVB_OK;
}

static kvb_status answer_streams(struct asking *asking, struct kvb_detail *detail)
{
    struct page page = { 0 };

    KVB_TRY(read_page(asking->payload, &page, detail));
    return kvb_answer_streams(
        &asking->aggregator->view, page.from, kvb_aggregator_most_rows, asking->out);
}

static kvb_status answer_dump(struct asking *asking, struct kvb_detail *detail)
{
    struct page page = { 0 };

    KVB_TRY(read_page(asking->payload, &page, detail));
    return kvb_answer_dump_page(
        &asking->aggregator->view, kvb_aggregator_page_bytes, page.place, asking->out);
}

/* ---- The table ---- */

/* clang-format off */
static const struct kvb_question questions[] = {
    { "kv_match",       kvb_aggregator_questions_match, answer_match },
    { "kv_route",       kvb_aggregator_questions_route, answer_route },
    { "kv_get.state",   kvb_aggregator_questions_get,   answer_state },
    { "kv_get.load",    kvb_aggregator_questions_get,   answer_load },
    { "kv_get.streams", kvb_aggregator_questions_get,   answer_streams },
    { "kv_get.dump",    kvb_aggregator_questions_get,   answer_dump },
};
/* clang-format on */
_Static_assert(KVB_COUNT_OF(questions) == kvb_question_count, "each question is counted");

const struct kvb_question *kvb_question_find(const char *tail)
{
    for (size_t i = 0; i < KVB_COUNT_OF(questions); i++) {
        if (strcmp(questions[i].tail, tail) == 0) {
            return &questions[i];
        }
    }
    return NULL;
}

size_t kvb_question_number(const struct kvb_question *question)
{
    return (size_t)(question - questions);
}

const char *kvb_question_tail(size_t number)
{
    return questions[number].tail;
}

void kvb_question_answer(
    const struct kvb_question *question, struct kvb_aggregator *aggregator, kvb_span payload,
    struct kvb_buf *out, bool *has_decision, struct kvb_route_decision *out_decision)
{
    struct asking asking = { .aggregator = aggregator, .payload = payload, .out = out };
    struct kvb_detail detail = { { 0 } };

    const uint64_t began_ns = kvb_clock_monotonic_ns();
    const kvb_status status = question->answer(&asking, &detail);
    const uint64_t processing_ns = kvb_clock_monotonic_ns() - began_ns;
    *has_decision = asking.has_decision;
    *out_decision = asking.decision;
    if (status == KVB_OK) {
        kvb_metric_add(&aggregator->metrics, question->counter, 1);
        kvb_aggregator_note_request(aggregator, question, processing_ns, NULL);
        return;
    }
    const char *error = detail.text[0] ? detail.text : kvb_status_name(status);
    kvb_aggregator_note_request(aggregator, question, processing_ns, error);
    kvb_metric_add(&aggregator->metrics, kvb_aggregator_questions_failed, 1);
    kvb_buf_reset(out);
    /* Without memory even for this, the asker runs into its own deadline. */
    (void)kvb_answer_error(error, out);
}
