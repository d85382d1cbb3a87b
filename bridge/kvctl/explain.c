#include "bus/subject.h"
#include "core/limits.h"
#include "core/own.h"
#include "kvctl/explain_text.h"
#include "kvctl/kvctl.h"
#include "wire/json/tree.h"
#include "wire/json/writer.h"

#include <inttypes.h>
#include <string.h>
#include <time.h>

/* `explain`: block by block, what a worker holds of a prompt by its bridge, why not more, since
 * when and by which event; and whether the aggregator, which the routers ask, says the same.
 *
 *     streams <-- R.kv_get.streams, or P.bridge_status where no aggregator knows the worker
 *     bridge  <-- P.kv_explain.{worker_id}.{dp_rank}, a page after another
 *     router  <-- R.kv_match */

enum { second_look_ms = 300, stream_name_bytes = 32 };

/* What is known so far.  All json-c objects are owned. */
struct explained {
    struct json_object *streams; /* rows: worker_id, dp_rank, namespace, component, model */
    struct json_object *stream;  /* the row that is meant; borrowed from streams */
    struct json_object *bridge;  /* the bridge's answer, its pages together */
    struct json_object *router;  /* the row of R.kv_match; NULL: it lists nothing */
    bool has_router;             /* an aggregator answered */
    bool is_known;               /* and knows the worker */
};

static void drop_explained(struct json_object **object)
{
    kvb_json_drop(object);
    *object = NULL;
}

static void explained_done(struct explained *explained)
{
    kvb_json_drop(&explained->streams);
    kvb_json_drop(&explained->bridge);
    kvb_json_drop(&explained->router);
}

static void append_all(struct json_object *out, struct json_object *items)
{
    for (size_t i = 0; i < kvb_json_list_len(items); i++) {
        json_object_array_add(out, json_object_get(json_object_array_get_idx(items, i)));
    }
}

/* ---- Which stream ---- */

static enum kvctl_exit
take_stream_rows(void *context, const struct kvb_buf *answer, struct json_object **out_page)
{
    struct explained *explained = context;
    const enum kvctl_exit read = kvctl_read_answer(answer, out_page);

    if (read == kvctl_ok) {
        append_all(explained->streams, kvb_json_member(*out_page, "streams"));
    }
    return read;
}

static bool is_of_worker(struct json_object *row, uint64_t worker_id)
{
    return kvb_json_member(row, "worker_id") && kvb_json_member_u64(row, "worker_id") == worker_id;
}

static size_t count_ranks(const struct explained *explained, uint64_t worker_id)
{
    size_t count = 0;

    for (size_t i = 0; i < kvb_json_list_len(explained->streams); i++) {
        count += is_of_worker(json_object_array_get_idx(explained->streams, i), worker_id);
    }
    return count;
}

/* The aggregator's streams; where it does not answer, or does not know the worker, the bridges'. */
static enum kvctl_exit find_streams(const struct kvctl_line *line, struct explained *explained)
{
    const kvb_span no_body = { 0 };
    KVB_OWN(kvb_json_drop) struct json_object *rows = NULL;

    explained->streams = json_object_new_array();
    explained->has_router =
        kvctl_request_pages(line, "kv_get.streams", no_body, take_stream_rows, explained) ==
        kvctl_ok;
    explained->is_known = count_ranks(explained, line->options->workers[0]) > 0;
    if (explained->is_known) {
        return kvctl_ok;
    }
    kvctl_say(
        explained->has_router
            ? "the aggregator does not know worker %" PRIu64 ": reading the status of bridges"
            : "no aggregator for worker %" PRIu64 ": reading the status of bridges",
        line->options->workers[0]);
    const enum kvctl_exit got = kvctl_streams_of_bridges(line->options, &rows);
    if (got == kvctl_ok) {
        append_all(explained->streams, rows);
    }
    return got;
}

/* "0, 1, 2": the ranks of a worker. */
static void
say_ranks(const struct explained *explained, uint64_t worker_id, char *text, size_t size)
{
    size_t len = 0;

    text[0] = '\0';
    for (size_t i = 0; i < kvb_json_list_len(explained->streams); i++) {
        struct json_object *row = json_object_array_get_idx(explained->streams, i);
        if (is_of_worker(row, worker_id) && len + stream_name_bytes < size) {
            len += (size_t)snprintf(
                text + len, size - len, "%s%" PRIu64, len > 0 ? ", " : "",
                kvb_json_member_u64(row, "dp_rank"));
        }
    }
}

static bool is_wanted(const struct kvctl_options *options, struct json_object *row)
{
    return is_of_worker(row, options->workers[0]) &&
           (!options->has_rank || kvb_json_member_u64(row, "dp_rank") == options->dp_rank);
}

static enum kvctl_exit
refuse_stream(const struct kvctl_options *options, const struct explained *explained)
{
    const uint64_t worker_id = options->workers[0];
    char text[kvctl_sentence_bytes];

    if (count_ranks(explained, worker_id) == 0) {
        kvctl_near_workers(explained->streams, worker_id, text);
        kvctl_say(
            "--worker: no bridge or aggregator knows worker %" PRIu64 "; known are%s %s", worker_id,
            text[0] ? ", nearest first:" : "", text[0] ? text : "none");
        return kvctl_failed;
    }
    say_ranks(explained, worker_id, text, sizeof text);
    if (options->has_rank) {
        kvctl_say(
            "--rank: worker %" PRIu64 " has no rank %" PRIu32 ", but %s", worker_id,
            options->dp_rank, text);
        return kvctl_failed;
    }
    kvctl_say("worker %" PRIu64 " has the ranks %s: give --rank", worker_id, text);
    return kvctl_usage;
}

static enum kvctl_exit
choose_explained(const struct kvctl_options *options, struct explained *explained)
{
    size_t count = 0;

    for (size_t i = 0; i < kvb_json_list_len(explained->streams); i++) {
        struct json_object *row = json_object_array_get_idx(explained->streams, i);
        if (is_wanted(options, row)) {
            explained->stream = count++ == 0 ? row : explained->stream;
        }
    }
    if (count == 0 || (count > 1 && !options->has_rank)) {
        return refuse_stream(options, explained);
    }
    if (count > 1) {
        kvctl_say(
            "two components have this worker and rank: explaining that of %s/%s",
            kvb_json_member_text(explained->stream, "namespace"),
            kvb_json_member_text(explained->stream, "component"));
    }
    return kvctl_ok;
}

/* ---- The bridge ---- */

static enum kvctl_exit
say_bridge_failure(const struct kvctl_options *options, kvb_status status, const char *subject)
{
    if (status == KVB_TOO_LARGE) {
        kvctl_say("the request on %s is larger than nats-server's max_payload", subject);
    } else {
        kvctl_say(
            "no bridge answers %s within %" PRIu32
            " ms: is the bridge of the worker running, not older than kvctl, and may this login "
            "publish there?  Give --timeout MS",
            subject, options->timeout_ms);
    }
    return kvctl_failed;
}

static kvb_status write_page_request(kvb_span query, uint64_t from, struct kvb_buf *out)
{
    char tail[48];

    kvb_buf_reset(out);
    (void)snprintf(tail, sizeof tail, ",\"from\":%" PRIu64 "}", from); /* query ends with "}" */
    KVB_TRY(kvb_buf_append(out, query.data, query.len - 1));
    return kvb_buf_append_text(out, tail);
}

/* Adds a page; the first one also has what is said of the whole. */
static void add_page(struct explained *explained, struct json_object *page)
{
    if (!explained->bridge) {
        explained->bridge = json_object_get(page);
    } else {
        append_all(kvb_json_member(explained->bridge, "rows"), kvb_json_member(page, "rows"));
    }
}

static enum kvctl_exit request_explain_page(
    const struct kvctl_line *line, const char *subject, kvb_span body,
    struct json_object **out_page)
{
    KVB_OWN(kvb_buf_done) struct kvb_buf answer = { 0 };
    struct kvb_detail detail = { 0 };

    kvb_buf_init(&answer, kvb_max_answer_bytes);
    const kvb_status status = kvctl_request(line, subject, body, &answer, &detail);
    if (status != KVB_OK) {
        return say_bridge_failure(line->options, status, subject);
    }
    const enum kvctl_exit read = kvctl_read_answer(&answer, out_page);
    if (read == kvctl_ok &&
        !json_object_is_type(kvb_json_member(*out_page, "rows"), json_type_array)) {
        kvctl_say("the answer on %s has no rows: is there another program on it?", subject);
        return kvctl_failed;
    }
    return read;
}

static enum kvctl_exit
request_bridge(const struct kvctl_line *line, kvb_span query, struct explained *explained)
{
    KVB_OWN(kvb_buf_done) struct kvb_buf body = { 0 };
    char tail[64];
    char subject[kvb_subject_bytes];
    struct json_object *next = NULL;
    uint64_t from = 0;

    kvb_buf_init(&body, kvb_max_query_body_bytes);
    (void)snprintf(
        tail, sizeof tail, "kv_explain.%" PRIu64 ".%" PRIu64, line->options->workers[0],
        kvb_json_member_u64(explained->stream, "dp_rank"));
    if (kvb_subject_make(
            subject, kvb_json_member_text(explained->stream, "namespace"),
            kvb_json_member_text(explained->stream, "component"), tail) != KVB_OK) {
        kvctl_say("the worker's namespace or component is not valid");
        return kvctl_failed;
    }
    drop_explained(&explained->bridge);
    do {
        KVB_OWN(kvb_json_drop) struct json_object *page = NULL;
        if (write_page_request(query, from, &body) != KVB_OK) {
            kvctl_say("the request does not fit");
            return kvctl_failed;
        }
        const enum kvctl_exit got = request_explain_page(line, subject, kvb_buf_span(&body), &page);
        if (got != kvctl_ok) {
            return got;
        }
        next = kvb_json_member(page, "next");
        const uint64_t next_from = json_object_get_uint64(next);
        next = next_from > from ? next : NULL; /* whatever a bridge says, this ends */
        from = next_from;
        add_page(explained, page);
    } while (next);
    return kvctl_ok;
}

/* ---- The aggregator ---- */

static enum kvctl_exit
take_match(void *context, const struct kvb_buf *answer, struct json_object **out_page)
{
    struct explained *explained = context;
    const enum kvctl_exit read = kvctl_read_answer(answer, out_page);
    struct json_object *workers = kvb_json_member(read == kvctl_ok ? *out_page : NULL, "workers");

    for (size_t i = 0; i < kvb_json_list_len(workers); i++) {
        struct json_object *row = json_object_array_get_idx(workers, i);
        if (is_of_worker(row, kvb_json_member_u64(explained->stream, "worker_id")) &&
            kvb_json_member_u64(row, "dp_rank") ==
                kvb_json_member_u64(explained->stream, "dp_rank") &&
            strcmp(
                kvb_json_member_text(row, "component"),
                kvb_json_member_text(explained->stream, "component")) == 0) {
            drop_explained(&explained->router);
            explained->router = json_object_get(row);
        }
    }
    return read;
}

static void
request_router(const struct kvctl_line *line, kvb_span query, struct explained *explained)
{
    drop_explained(&explained->router);
    if (explained->has_router && explained->is_known) {
        explained->has_router =
            kvctl_request_pages(line, "kv_match", query, take_match, explained) == kvctl_ok;
    }
}

static bool is_same_answer(const struct explained *explained)
{
    KVB_OWN(kvb_json_drop)
    struct json_object *differences =
        kvctl_explain_differences(explained->bridge, explained->router);

    return json_object_array_length(differences) == 0;
}

/* Events are on their way between the two, so a difference counts only when it stays. */
static enum kvctl_exit
request_both(const struct kvctl_line *line, kvb_span query, struct explained *explained)
{
    const struct timespec pause = { .tv_nsec = second_look_ms * 1000000L };
    enum kvctl_exit got = request_bridge(line, query, explained);

    if (got == kvctl_ok) {
        request_router(line, query, explained);
    }
    if (got == kvctl_ok && explained->has_router && explained->is_known &&
        !is_same_answer(explained)) {
        (void)nanosleep(&pause, NULL);
        got = request_bridge(line, query, explained);
        request_router(line, query, explained);
    }
    return got;
}

/* ---- Showing ---- */

static void print_head(const struct explained *explained)
{
    struct json_object *trace = kvb_json_member(explained->bridge, "trace");
    char text[kvctl_sentence_bytes];

    printf(
        "worker %" PRIu64 " rank %" PRIu64 " of %s/%s, model %s: %s%s%s at event %" PRIu64 "\n",
        kvb_json_member_u64(explained->bridge, "worker_id"),
        kvb_json_member_u64(explained->bridge, "dp_rank"),
        kvb_json_member_text(explained->stream, "namespace"),
        kvb_json_member_text(explained->stream, "component"),
        kvb_json_member_text(explained->bridge, "model"),
        kvb_json_member_text(explained->bridge, "state"),
        kvb_json_member_text(explained->bridge, "reason")[0] ? " " : "",
        kvb_json_member_text(explained->bridge, "reason"),
        kvb_json_member_u64(explained->bridge, "last_event_id"));
    if (kvb_json_member_text(explained->bridge, "why")[0]) {
        printf("%s\n", kvb_json_member_text(explained->bridge, "why"));
    }
    kvctl_explain_event(
        kvb_json_member_u64(trace, "first_event_id"), kvb_json_member_u64(trace, "first_time_ms"),
        text, sizeof text);
    printf(
        "%" PRIu64 " complete blocks of %" PRIu64 " tokens; the trace has %" PRIu64
        " events%s%s%s\n",
        kvb_json_member_u64(explained->bridge, "blocks"),
        kvb_json_member_u64(explained->bridge, "block_size"), kvb_json_member_u64(trace, "events"),
        kvb_json_member_u64(trace, "events") > 0 ? ", from " : "",
        kvb_json_member_u64(trace, "events") > 0 ? text : "",
        json_object_get_boolean(kvb_json_member(trace, "whole")) ? " (all there were)" : "");
    kvctl_explain_break(explained->bridge, text);
    printf("%s.\n", text);
}

static void print_differences(const struct explained *explained, struct json_object *differences)
{
    if (!explained->has_router) {
        printf("No aggregator has answered.\n");
        return;
    }
    if (kvb_json_list_len(differences) == 0) {
        printf("The aggregator says the same.\n");
    }
    for (size_t i = 0; i < kvb_json_list_len(differences); i++) {
        printf(
            "DIFFERENT: %s\n", json_object_get_string(json_object_array_get_idx(differences, i)));
    }
}

static void print_explained(const struct explained *explained, struct json_object *differences)
{
    static const struct kvctl_column columns[] = {
        { "BLOCKS", "blocks", true },    { "TOKENS", "tokens", true },
        { "BRIDGE", "bridge", false },   { "ROUTER", "router", false },
        { "FIRST HASH", "hash", false }, { "WHY", "why", false },
    };
    const int64_t router_blocks =
        explained->has_router ? kvctl_explain_router_blocks(explained->bridge, explained->router)
                              : -1;
    KVB_OWN(kvb_json_drop)
    struct json_object *table = kvctl_explain_table(explained->bridge, router_blocks);

    print_head(explained);
    print_differences(explained, differences);
    kvctl_print_table(stdout, table, columns, KVB_COUNT_OF(columns));
}

static void show_explained(const struct explained *explained, bool is_json)
{
    KVB_OWN(kvb_json_drop) struct json_object *root = json_object_new_object();
    struct json_object *differences =
        explained->has_router ? kvctl_explain_differences(explained->bridge, explained->router)
                              : json_object_new_array();

    json_object_object_add(root, "bridge", json_object_get(explained->bridge));
    json_object_object_add(root, "router_answered", json_object_new_boolean(explained->has_router));
    json_object_object_add(root, "router", json_object_get(explained->router));
    json_object_object_add(root, "differences", differences);
    if (is_json) {
        json_object_object_del(explained->bridge, "next"); /* all pages are here */
        printf("%s\n", json_object_to_json_string_ext(root, JSON_C_TO_STRING_PLAIN));
    } else {
        print_explained(explained, differences);
    }
}

/* Adds the worker, and its model where --model names none. */
static kvb_status
finish_query(const struct kvctl_options *options, struct json_object *stream, struct kvb_buf *query)
{
    const char *model = kvb_json_member_text(stream, "model");
    struct kvb_json_writer json = kvb_json_writer_of(query);

    query->len--; /* the closing brace */
    json.is_after_value = true;
    kvb_json_write_pair_u64(&json, "instance_id", options->workers[0]);
    if (!options->model && model[0]) {
        kvb_json_write_pair_text(&json, "model", model);
    }
    kvb_json_write_end(&json, '}');
    return json.status;
}

static enum kvctl_exit
explain_on_line(const struct kvctl_line *line, struct kvb_buf *query, struct explained *explained)
{
    enum kvctl_exit result = find_streams(line, explained);

    result = result == kvctl_ok ? choose_explained(line->options, explained) : result;
    if (result == kvctl_ok && finish_query(line->options, explained->stream, query) != KVB_OK) {
        kvctl_say("the request does not fit");
        result = kvctl_failed;
    }
    result = result == kvctl_ok ? request_both(line, kvb_buf_span(query), explained) : result;
    if (result == kvctl_ok) {
        show_explained(explained, line->options->is_json);
    }
    return result;
}

enum kvctl_exit kvctl_explain(const struct kvctl_options *options)
{
    KVB_OWN(explained_done) struct explained explained = { 0 };
    KVB_OWN(kvctl_hang_up) struct kvctl_line line = { 0 };
    KVB_OWN(kvb_buf_done) struct kvb_buf query = { 0 };
    struct kvb_detail detail = { 0 };

    kvb_buf_init(&query, kvb_max_query_body_bytes);
    const kvb_status status = kvctl_write_query(options, &query, &detail);
    if (status != KVB_OK) { /* before any request */
        kvctl_say("%s", detail.text[0] ? detail.text : kvb_status_name(status));
        return kvctl_usage;
    }
    const enum kvctl_exit connected = kvctl_connect(options, NULL, &line);
    return connected == kvctl_ok ? explain_on_line(&line, &query, &explained) : connected;
}
