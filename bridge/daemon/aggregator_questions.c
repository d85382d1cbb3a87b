#include "core/clock.h"
#include "core/limits.h"
#include "core/own.h"
#include "daemon/aggregator_inside.h"
#include "wire/json_scan.h"

#include <string.h>

struct kvb_question {
    const char *tail;
    enum kvb_aggregator_metric counter;
    bool has_prompt;
    kvb_status (*answer)(struct kvb_aggregator *aggregator, struct kvb_asked *asked);
};

/* ---- With a prompt ---- */

static kvb_status answer_match(struct kvb_aggregator *aggregator, struct kvb_asked *asked)
{
    return kvb_answer_match(
        &aggregator->view, asked->query, kvb_aggregator_most_rows, asked->out, &asked->detail);
}

static kvb_status answer_route(struct kvb_aggregator *aggregator, struct kvb_asked *asked)
{
    KVB_TRY(kvb_answer_route(
        &aggregator->view, asked->query, kvb_aggregator_most_rows, asked->out, &asked->decision,
        &asked->detail));
    asked->has_decision = true;
    return KVB_OK;
}

/* ---- Without ---- */

static kvb_status answer_state(struct kvb_aggregator *aggregator, struct kvb_asked *asked)
{
    return kvb_answer_state(&aggregator->view, asked->out);
}

static kvb_status answer_load(struct kvb_aggregator *aggregator, struct kvb_asked *asked)
{
    return kvb_answer_load(&aggregator->view, kvb_aggregator_most_rows, asked->out);
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

static kvb_status answer_streams(struct kvb_aggregator *aggregator, struct kvb_asked *asked)
{
    struct page page = { 0 };

    KVB_TRY(read_page(asked->payload, &page, &asked->detail));
    return kvb_answer_streams(&aggregator->view, page.from, kvb_aggregator_most_rows, asked->out);
}

static kvb_status answer_dump(struct kvb_aggregator *aggregator, struct kvb_asked *asked)
{
    struct page page = { 0 };

    KVB_TRY(read_page(asked->payload, &page, &asked->detail));
    return kvb_answer_dump_page(
        &aggregator->view, kvb_aggregator_page_bytes, page.place, asked->out);
}

/* ---- The table ---- */

/* clang-format off */
static const struct kvb_question questions[] = {
    { "kv_match",       kvb_aggregator_questions_match, true,  answer_match },
    { "kv_route",       kvb_aggregator_questions_route, true,  answer_route },
    { "kv_get.state",   kvb_aggregator_questions_get,   false, answer_state },
    { "kv_get.load",    kvb_aggregator_questions_get,   false, answer_load },
    { "kv_get.streams", kvb_aggregator_questions_get,   false, answer_streams },
    { "kv_get.dump",    kvb_aggregator_questions_get,   false, answer_dump },
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

bool kvb_question_has_prompt(const struct kvb_question *question)
{
    return question->has_prompt;
}

void kvb_question_answer(
    const struct kvb_question *question, struct kvb_aggregator *aggregator, struct kvb_asked *asked)
{
    const uint64_t began_ns = kvb_clock_monotonic_ns();
    const kvb_status status =
        asked->read == KVB_OK ? question->answer(aggregator, asked) : asked->read;
    const uint64_t processing_ns = kvb_clock_monotonic_ns() - began_ns;

    if (status == KVB_OK) {
        kvb_metric_add(&aggregator->metrics, question->counter, 1);
        kvb_aggregator_note_request(aggregator, question, processing_ns, NULL);
        return;
    }
    const char *error = asked->detail.text[0] ? asked->detail.text : kvb_status_name(status);
    kvb_aggregator_note_request(aggregator, question, processing_ns, error);
    kvb_metric_add(&aggregator->metrics, kvb_aggregator_questions_failed, 1);
    kvb_buf_reset(asked->out);
    /* Without memory even for this, the asker runs into its own deadline. */
    (void)kvb_answer_error(error, asked->out);
}
