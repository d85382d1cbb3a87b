#include "serve/routes.h"

#include "core/clock.h"
#include "core/limits.h"
#include "core/own.h"
#include "serve/prometheus.h"
#include "serve/status_page.h"
#include "wire/query_json.h"

#include <errno.h>
#include <inttypes.h>
#include <microhttpd.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

static const char json_type[] = "application/json";
static const char text_type[] = "text/plain; charset=utf-8";

static const struct kvb_http_header data_headers[] = {
    { "Cache-Control", "no-store" },
    { "X-Content-Type-Options", "nosniff" },
    { NULL, NULL },
};

typedef void (*route_handler)(
    struct kvb_http_route_context *context, const struct kvb_http_request *request,
    struct kvb_http_answer *answer);

struct kvb_http_route {
    const char *method;
    const char *path;
    bool needs_view;
    route_handler answer;
};

/* ---- Small answers ---- */

static void set(struct kvb_http_answer *answer, unsigned status, const char *content_type)
{
    kvb_buf_reset(&answer->body);
    answer->status = status;
    answer->content_type = content_type;
    answer->allow = NULL;
}

static void
say(struct kvb_http_answer *answer, unsigned status, const char *before, const char *sentence)
{
    set(answer, status, text_type);
    /* Without memory for a sentence the status alone must do. */
    (void)kvb_buf_append_format(&answer->body, "%s%s", before, sentence);
}

void kvb_http_route_refuse(struct kvb_http_answer *answer, unsigned status, const char *sentence)
{
    set(answer, status, json_type);
    if (kvb_answer_error(sentence, &answer->body) != KVB_OK) {
        kvb_buf_reset(&answer->body); /* the status alone must do */
    }
}

/* What a failed answer means to the asker.  Rows: status, HTTP status, how the
 * sentence begins; NULL: as {"error":...}. */
static void refuse(struct kvb_http_answer *answer, kvb_status status, const struct kvb_detail *why)
{
    /* clang-format off */
    static const struct {
        kvb_status status;
        unsigned http;
        const char *fallback;
    } rows[] = {
        { KVB_NOT_FOUND, 404, "not found" },
        { KVB_AGAIN,     503, "no worker of the model is up" },
        { KVB_TOO_LARGE, 503, "the answer is larger than may be sent; ask for less" },
        { KVB_NO_MEMORY, 503, "out of memory; try again later" },
    };
    /* clang-format on */

    if (status == KVB_BAD_INPUT) {
        say(answer, 422, "Failed to deserialize the JSON body into the target type: ", why->text);
        return;
    }
    for (size_t i = 0; i < KVB_COUNT_OF(rows); i++) {
        if (rows[i].status == status) {
            kvb_http_route_refuse(answer, rows[i].http, *why->text ? why->text : rows[i].fallback);
            return;
        }
    }
    kvb_http_route_refuse(answer, 500, kvb_status_name(status));
}

static void
finish(struct kvb_http_answer *answer, kvb_status status, const struct kvb_detail *detail)
{
    static const struct kvb_detail nothing = { { 0 } };

    if (status == KVB_OK) {
        answer->status = 200;
        answer->content_type = json_type;
    } else {
        refuse(answer, status, detail ? detail : &nothing);
    }
}

/* ---- Questions with a body ---- */

/* False: the answer says what is wrong with the body. */
static bool read_query(
    const struct kvb_http_request *request, struct kvb_http_answer *answer,
    struct kvb_query *out_query)
{
    struct kvb_detail detail = { { 0 } };
    const kvb_status status = kvb_query_json_decode(request->body, out_query, &detail);

    if (status == KVB_OK) {
        return true;
    }
    if (status == KVB_BAD_INPUT) {
        say(answer, 400, "Failed to parse the request body as JSON: ", detail.text);
    } else if (status == KVB_NOT_FOUND) {
        say(answer, 422, "Failed to deserialize the JSON body into the target type: ", detail.text);
    } else if (status == KVB_TOO_LARGE) {
        kvb_http_route_refuse(answer, 413, detail.text);
    } else {
        refuse(answer, status, &detail);
    }
    return false;
}

bool kvb_http_parameter(const char *query, const char *key, char *out, size_t out_bytes)
{
    const size_t key_len = strlen(key);

    for (const char *at = query; *at;) {
        const size_t len = strcspn(at, "&");
        if (len > key_len && strncmp(at, key, key_len) == 0 && at[key_len] == '=') {
            const size_t value_len = len - key_len - 1;
            if (value_len >= out_bytes) {
                return false;
            }
            memcpy(out, at + key_len + 1, value_len);
            out[value_len] = '\0';
            return true;
        }
        at += len + (at[len] == '&');
    }
    return false;
}

static bool
has_parameter(const struct kvb_http_request *request, const char *key, const char *value)
{
    char given[32];

    return kvb_http_parameter(request->query, key, given, sizeof given) &&
           strcmp(given, value) == 0;
}

static void answer_query(
    const struct kvb_http_route_context *context, const struct kvb_http_request *request,
    bool is_hashed, struct kvb_http_answer *answer)
{
    struct kvb_detail detail = { { 0 } };
    const bool with_down = has_parameter(request, "down", "true");
    kvb_status status = KVB_BAD_INPUT;

    if (is_hashed && context->query->form == KVB_QUERY_TOKENS) {
        kvb_detail_set(&detail, "missing field `block_hashes`");
    } else {
        status = kvb_answer_query(context->view, context->query, with_down, &answer->body, &detail);
    }
    finish(answer, status, &detail);
}

static void query(
    struct kvb_http_route_context *context, const struct kvb_http_request *request,
    struct kvb_http_answer *answer)
{
    answer_query(context, request, false, answer);
}

static void query_by_hash(
    struct kvb_http_route_context *context, const struct kvb_http_request *request,
    struct kvb_http_answer *answer)
{
    answer_query(context, request, true, answer);
}

static void route(
    struct kvb_http_route_context *context, const struct kvb_http_request *request,
    struct kvb_http_answer *answer)
{
    struct kvb_detail detail = { { 0 } };

    (void)request;
    const kvb_status status = kvb_answer_route(
        context->view, context->query, kvb_max_streams, &answer->body, &context->decision, &detail);
    context->has_decision = status == KVB_OK;
    finish(answer, status, &detail);
}

/* ---- Questions without ---- */

static void workers(
    struct kvb_http_route_context *context, const struct kvb_http_request *request,
    struct kvb_http_answer *answer)
{
    (void)request;
    finish(answer, kvb_answer_workers(context->view, &answer->body), NULL);
}

static void streams(
    struct kvb_http_route_context *context, const struct kvb_http_request *request,
    struct kvb_http_answer *answer)
{
    (void)request;
    finish(answer, kvb_answer_streams(context->view, 0, kvb_max_streams, &answer->body), NULL);
}

static void load(
    struct kvb_http_route_context *context, const struct kvb_http_request *request,
    struct kvb_http_answer *answer)
{
    (void)request;
    finish(answer, kvb_answer_load(context->view, kvb_max_streams, &answer->body), NULL);
}

/* Room for all of it, which costs nothing until it is written to: to move some MiB while the
 * answer grows would hold up others. */
static void make_room(
    const struct kvb_http_route_context *context, size_t block_bytes,
    struct kvb_http_answer *answer)
{
    struct kvb_index_counters counters;

    kvb_prefix_index_count(context->view->index, &counters);
    const uint64_t most = answer->body.ceiling;
    const uint64_t bytes = counters.memberships * block_bytes;
    (void)kvb_buf_reserve(&answer->body, bytes < most ? bytes : most); /* else it grows */
}

static kvb_status begin_dump(
    struct kvb_http_route_context *context, const struct kvb_http_request *request,
    struct kvb_http_answer *answer)
{
    enum { row_bytes = 48, event_block_bytes = 96 }; /* about */
    char model[kvb_model_bytes + 1] = "";

    if (has_parameter(request, "format", "rows")) {
        make_room(context, row_bytes, answer);
        return kvb_dump_begin_rows(&context->dump, context->view);
    }
    (void)kvb_http_parameter(request->query, "model_name", model, sizeof model); /* else all */
    make_room(context, event_block_bytes, answer);
    return kvb_dump_begin(&context->dump, context->view, model);
}

static void dump(
    struct kvb_http_route_context *context, const struct kvb_http_request *request,
    struct kvb_http_answer *answer)
{
    kvb_status status = context->dump.numbers ? KVB_OK : begin_dump(context, request, answer);

    if (status == KVB_OK) {
        status = kvb_dump_step(&context->dump, context->view, &answer->body);
    }
    context->is_unfinished = status == KVB_AGAIN;
    if (context->is_unfinished) {
        return;
    }
    finish(answer, status, NULL);
    if (status == KVB_OK && !context->dump.models) {
        answer->content_type = text_type;
    }
}

static void health(
    struct kvb_http_route_context *context, const struct kvb_http_request *request,
    struct kvb_http_answer *answer)
{
    (void)context;
    (void)request;
    set(answer, 200, NULL);
}

static void livez(
    struct kvb_http_route_context *context, const struct kvb_http_request *request,
    struct kvb_http_answer *answer)
{
    (void)context;
    (void)request;
    say(answer, 200, "ok\n", "");
}

static void readyz(
    struct kvb_http_route_context *context, const struct kvb_http_request *request,
    struct kvb_http_answer *answer)
{
    (void)request;
    if (context->not_ready) {
        say(answer, 503, context->not_ready, "\n");
    } else {
        say(answer, 200, "ready\n", "");
    }
}

static void metrics(
    struct kvb_http_route_context *context, const struct kvb_http_request *request,
    struct kvb_http_answer *answer)
{
    const kvb_status status = kvb_prometheus_table(context->metrics, &answer->body);

    (void)request;
    finish(answer, status, NULL);
    if (status == KVB_OK) {
        answer->content_type = KVB_PROMETHEUS_TYPE;
    }
}

/* ---- The status page and what it polls ---- */

/* Another address than our own is never asked, nothing but what is in the page is run,
 * and no text becomes markup. */
static const struct kvb_http_header page_headers[] = {
    { "Content-Security-Policy", kvb_status_page_policy },
    { "Cache-Control", "no-cache" }, /* that is: ask whether it is still this one */
    { "ETag", kvb_status_page_etag },
    { "Referrer-Policy", "no-referrer" },
    { "X-Content-Type-Options", "nosniff" },
    { NULL, NULL },
};

static void status_page(
    struct kvb_http_route_context *context, const struct kvb_http_request *request,
    struct kvb_http_answer *answer)
{
    const bool is_known = strcmp(request->if_none_match, kvb_status_page_etag) == 0;

    (void)context;
    set(answer, is_known ? 304 : 200, is_known ? NULL : "text/html; charset=utf-8");
    answer->headers = page_headers;
    if (!is_known &&
        kvb_buf_append(&answer->body, kvb_status_page, kvb_status_page_bytes) != KVB_OK) {
        refuse(answer, KVB_NO_MEMORY, &(struct kvb_detail){ 0 });
    }
}

struct number_parameter {
    const char *key;
    uint64_t fallback; /* when it is not given */
    uint64_t most;
};

/* False: the answer says what is wrong with it. */
static bool read_number(
    const struct kvb_http_request *request, const struct number_parameter *parameter,
    struct kvb_http_answer *answer, uint64_t *out_number)
{
    char text[24] = "";
    char *end = text;
    char why[80];

    if (!kvb_http_parameter(request->query, parameter->key, text, sizeof text)) {
        *out_number = parameter->fallback;
        return true;
    }
    errno = 0;
    const uint64_t number = strtoull(text, &end, 10);
    if (text[0] >= '0' && text[0] <= '9' && !*end && !errno && number <= parameter->most) {
        *out_number = number;
        return true;
    }
    (void)snprintf(
        why, sizeof why, "%s: expected an integer from 0 to %" PRIu64, parameter->key,
        parameter->most);
    kvb_http_route_refuse(answer, 400, why);
    return false;
}

static void history(
    struct kvb_http_route_context *context, const struct kvb_http_request *request,
    struct kvb_http_answer *answer)
{
    static const struct number_parameter since = { "since", 0, UINT64_MAX };
    uint64_t after = 0;

    if (read_number(request, &since, answer, &after)) {
        finish(
            answer, kvb_board_history(context->board, after, context->not_ready, &answer->body),
            NULL);
    }
}

static void overview(
    struct kvb_http_route_context *context, const struct kvb_http_request *request,
    struct kvb_http_answer *answer)
{
    static const struct number_parameter rows = { "rows", 100, kvb_max_overview_rows };
    char filter[kvb_max_filter_bytes] = "";
    uint64_t max_rows = 0;

    if (!read_number(request, &rows, answer, &max_rows)) {
        return;
    }
    if (strlen(request->query) >= sizeof filter) {
        kvb_http_route_refuse(answer, 400, "filter: too long");
        return;
    }
    (void)kvb_http_parameter(request->query, "filter", filter, sizeof filter); /* else all */
    (void)MHD_http_unescape(filter);
    const struct kvb_board_ask ask = {
        .filter = filter,
        .max_rows = max_rows,
        .now_ns = kvb_clock_monotonic_ns(),
    };
    finish(answer, kvb_board_streams(context->board, &ask, &answer->body), NULL);
}

/* ---- The table ---- */

/* clang-format off */
static const struct kvb_http_route routes[] = {
    { "POST", "/query",         true,  query },
    { "POST", "/query_by_hash", true,  query_by_hash },
    { "POST", "/route",         true,  route },
    { "GET",  "/workers",       true,  workers },
    { "GET",  "/streams",       true,  streams },
    { "GET",  "/load",          true,  load },
    { "GET",  "/dump",          true,  dump },
    { "GET",  "/health",        false, health },
    { "GET",  "/",              false, status_page },
    { "GET",  "/history",       false, history },
    { "GET",  "/overview",      false, overview },
    { "GET",  "/livez",         false, livez },
    { "GET",  "/readyz",        false, readyz },
    { "GET",  "/metrics",       false, metrics },
};
/* clang-format on */

static bool is_post(const struct kvb_http_route *found)
{
    return strcmp(found->method, "POST") == 0;
}

/* HEAD is a GET whose body the server keeps to itself. */
static bool fits_method(const struct kvb_http_route *found, const char *method)
{
    return strcmp(found->method, method) == 0 || (strcmp(method, "HEAD") == 0 && !is_post(found));
}

bool kvb_http_is_json(const char *content_type)
{
    const size_t len = strlen(json_type);

    return strncasecmp(content_type, json_type, len) == 0 &&
           (content_type[len] == '\0' || content_type[len] == ';' || content_type[len] == ' ');
}

const struct kvb_http_route *
kvb_http_route_find(const struct kvb_http_request *request, struct kvb_http_answer *answer)
{
    const struct kvb_http_route *found = NULL;

    for (size_t i = 0; i < KVB_COUNT_OF(routes); i++) {
        if (strcmp(routes[i].path, request->path) == 0) {
            found = &routes[i];
        }
    }
    if (!found) {
        set(answer, 404, NULL);
        return NULL;
    }
    if (!fits_method(found, request->method)) {
        set(answer, 405, NULL);
        answer->allow = found->method;
        return NULL;
    }
    if (is_post(found) && !kvb_http_is_json(request->content_type)) {
        say(answer, 415, "Expected request with `Content-Type: application/json`", "");
        return NULL;
    }
    return found;
}

bool kvb_http_route_needs_view(const struct kvb_http_route *found)
{
    return found->needs_view;
}

bool kvb_http_route_read(
    const struct kvb_http_route *found, const struct kvb_http_request *request,
    struct kvb_query *out_query, struct kvb_http_answer *answer)
{
    answer->headers = data_headers;
    return !is_post(found) || read_query(request, answer, out_query);
}

void kvb_http_route_answer(
    const struct kvb_http_route *found, struct kvb_http_route_context *context,
    const struct kvb_http_request *request, struct kvb_http_answer *answer)
{
    answer->headers = data_headers;
    found->answer(context, request, answer);
}
