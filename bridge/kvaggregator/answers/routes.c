#include "kvaggregator/answers/routes.h"

#include "core/clock.h"
#include "core/limits.h"
#include "core/own.h"
#include "daemon/prometheus.h"
#include "wire/query/json.h"

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

/* A request while its handler runs; all fields are borrowed. */
struct exchange {
    struct kvb_http_route_context *context;
    const struct kvb_http_request *request;
    struct kvb_http_answer *answer; /* 200 and JSON, unless the handler changes it */
    struct kvb_detail detail;       /* why it failed */
};

/* KVB_OK: *answer is complete.  Any other status becomes an HTTP error. */
typedef kvb_status (*route_handler)(struct exchange *exchange);

typedef kvb_status (*body_decoder)(
    kvb_span json, struct kvb_query *out_query, struct kvb_detail *detail);

struct kvb_http_route {
    const char *method;
    const char *path;
    bool needs_context;
    route_handler answer;
    body_decoder decode; /* for POST */
};

/* ---- Small answers ---- */

static void
set_answer_type(struct kvb_http_answer *answer, unsigned status, const char *content_type)
{
    kvb_buf_reset(&answer->body);
    answer->status = status;
    answer->content_type = content_type;
    answer->allow = NULL;
}

static void answer_sentence(
    struct kvb_http_answer *answer, unsigned status, const char *before, const char *sentence)
{
    set_answer_type(answer, status, text_type);
    /* out of memory: the answer is the status alone, without a body */
    (void)kvb_buf_append_format(&answer->body, "%s%s", before, sentence);
}

/* Answers with the HTTP status for `status` and with the reason; the fallback text is sent when
 * `why` is empty. */
static void
refuse_http_request(struct kvb_http_answer *answer, kvb_status status, const struct kvb_detail *why)
{
    /* clang-format off */
    static const struct {
        kvb_status status;
        unsigned http;
        const char *fallback;
    } rows[] = {
        { KVB_NOT_FOUND, 404, "not found" },
        { KVB_AGAIN,     503, "no worker of the model is up" },
        { KVB_TOO_LARGE, 503, "the answer exceeds the size limit; request less" },
        { KVB_NO_MEMORY, 503, "out of memory; try again later" },
    };
    /* clang-format on */

    if (status == KVB_BAD_INPUT) {
        answer_sentence(
            answer, 422, "Failed to deserialize the JSON body into the target type: ", why->text);
        return;
    }
    for (size_t i = 0; i < KVB_COUNT_OF(rows); i++) {
        if (rows[i].status == status) {
            kvb_http_refuse(answer, rows[i].http, *why->text ? why->text : rows[i].fallback);
            return;
        }
    }
    kvb_http_refuse(answer, 500, kvb_status_name(status));
}

/* ---- Queries with a body ---- */

/* False: the body is invalid and *answer is complete. */
static bool read_query_body(
    const struct kvb_http_route *found, const struct kvb_http_request *request,
    struct kvb_http_answer *answer, struct kvb_query *out_query)
{
    struct kvb_detail detail = { { 0 } };
    const kvb_status status = found->decode(request->body, out_query, &detail);

    /* As Dynamo's indexer: 400 for what is no JSON, 422 for JSON of another form. */
    if (status == KVB_OK) {
        return true;
    }
    if (status == KVB_BAD_INPUT) {
        answer_sentence(answer, 400, "Failed to parse the request body as JSON: ", detail.text);
    } else if (status == KVB_NOT_FOUND) {
        answer_sentence(
            answer, 422, "Failed to deserialize the JSON body into the target type: ", detail.text);
    } else if (status == KVB_TOO_LARGE) {
        kvb_http_refuse(answer, 413, detail.text);
    } else {
        refuse_http_request(answer, status, &detail);
    }
    return false;
}

static bool
has_parameter(const struct kvb_http_request *request, const char *key, const char *value)
{
    char given[32];

    return kvb_http_parameter(request->parameters, key, given, sizeof given) &&
           strcmp(given, value) == 0;
}

/* Like kvb_query_json_decode(), but refuses tokens and text: this route needs hashes. */
static kvb_status
decode_hashes(kvb_span json, struct kvb_query *out_query, struct kvb_detail *detail)
{
    struct kvb_query query = { 0 };

    KVB_TRY(kvb_query_json_decode(json, &query, detail));
    if (query.form == KVB_QUERY_TOKENS || query.form == KVB_QUERY_TEXT) {
        kvb_query_done(&query);
        kvb_detail_set(detail, "missing field `block_hashes`");
        return KVB_NOT_FOUND;
    }
    *out_query = query;
    return KVB_OK;
}

static kvb_status query(struct exchange *exchange)
{
    const struct kvb_http_route_context *context = exchange->context;

    return kvb_answer_query(
        context->ctx, context->query, has_parameter(exchange->request, "down", "true"),
        &exchange->answer->body, &exchange->detail);
}

static kvb_status route(struct exchange *exchange)
{
    struct kvb_http_route_context *context = exchange->context;

    KVB_TRY(kvb_answer_route(
        context->ctx, context->query, kvb_max_streams, &exchange->answer->body, &context->decision,
        &exchange->detail));
    context->has_decision = !context->decision.is_dry_run;
    return KVB_OK;
}

static kvb_status take_request_report(struct exchange *exchange, enum kvb_request_report_kind kind)
{
    struct kvb_http_route_context *context = exchange->context;

    context->has_request_report = true;
    context->request_report = kind;
    return kvb_answer_request_report(
        context->ctx, context->query, kind, &exchange->answer->body, &exchange->detail);
}

static kvb_status finished(struct exchange *exchange)
{
    return take_request_report(exchange, KVB_REQUEST_FINISHED);
}

static kvb_status first_token(struct exchange *exchange)
{
    return take_request_report(exchange, KVB_REQUEST_FIRST_TOKEN);
}

/* ---- Queries without a body ---- */

static kvb_status workers(struct exchange *exchange)
{
    return kvb_answer_workers(exchange->context->ctx, &exchange->answer->body);
}

static kvb_status streams(struct exchange *exchange)
{
    return kvb_answer_streams(exchange->context->ctx, 0, kvb_max_streams, &exchange->answer->body);
}

static kvb_status answer_load_request(struct exchange *exchange)
{
    return kvb_answer_load(exchange->context->ctx, kvb_max_streams, &exchange->answer->body);
}

static bool is_rows(const struct kvb_http_request *request)
{
    return has_parameter(request, "format", "rows");
}

/* The value of a parameter, decoded; "" where it is absent.  out has room for a whole query. */
static const char *
read_text_parameter(const struct kvb_http_request *request, const char *key, char *out)
{
    out[0] = '\0';
    (void)kvb_http_parameter(request->parameters, key, out, kvb_max_filter_bytes); /* absent: "" */
    (void)MHD_http_unescape(out);
    return out;
}

static kvb_status begin_dump(struct exchange *exchange)
{
    struct kvb_http_route_context *context = exchange->context;
    const struct kvb_http_request *request = exchange->request;
    char model[kvb_max_filter_bytes];
    char name_space[kvb_max_filter_bytes];
    char component[kvb_max_filter_bytes];
    char names[kvb_max_filter_bytes];

    /* From here on each parameter fits into its buffer. */
    if (strlen(request->parameters) >= kvb_max_filter_bytes) {
        kvb_detail_set(&exchange->detail, "the parameters are too long");
        return KVB_BAD_INPUT;
    }
    if (*read_text_parameter(request, "names", names) && strcmp(names, "engine") != 0) {
        kvb_detail_set(&exchange->detail, "names: expected engine, or no names at all");
        return KVB_BAD_INPUT;
    }
    const struct kvb_dump_options options = {
        .model = read_text_parameter(request, "model_name", model),
        .name_space = read_text_parameter(request, "namespace", name_space),
        .component = read_text_parameter(request, "component", component),
        .engine_names = *names,
        .max_blocks = kvb_max_dump_blocks,
    };
    return kvb_dump_begin(&context->dump, context->ctx, &options, &exchange->detail);
}

static kvb_status dump_rows(struct exchange *exchange)
{
    struct kvb_http_route_context *context = exchange->context;

    exchange->answer->content_type = text_type;
    KVB_TRY(kvb_answer_dump_rows(
        context->ctx, kvb_dump_part_bytes, &context->rows, &exchange->answer->body));
    context->is_unfinished = !context->rows.is_end;
    return KVB_OK;
}

static kvb_status dump(struct exchange *exchange)
{
    struct kvb_http_route_context *context = exchange->context;

    context->is_unfinished = false; /* what fails has no further part */
    if (is_rows(exchange->request)) {
        return dump_rows(exchange);
    }
    if (!context->dump.numbers) {
        const kvb_status begun = begin_dump(exchange);
        if (begun == KVB_BAD_INPUT) {
            kvb_http_refuse(exchange->answer, 409, exchange->detail.text);
            return KVB_OK;
        }
        KVB_TRY(begun);
    }
    const kvb_status status = kvb_dump_step(&context->dump, context->ctx, &exchange->answer->body);
    context->is_unfinished = status == KVB_AGAIN;
    return context->is_unfinished ? KVB_OK : status;
}

static kvb_status health(struct exchange *exchange)
{
    set_answer_type(exchange->answer, 200, NULL);
    return KVB_OK;
}

static kvb_status livez(struct exchange *exchange)
{
    const char *cause = exchange->context->not_live;

    answer_sentence(exchange->answer, cause ? 503 : 200, cause ? cause : "ok", "\n");
    return KVB_OK;
}

static kvb_status readyz(struct exchange *exchange)
{
    const struct kvb_http_route_context *context = exchange->context;
    const char *cause = context->not_ready;

    /* ?exact= asks for more than readiness, so what is not ready says that first. */
    if (cause ||
        !kvb_exact_share_refuses(context->share, exchange->request->parameters, exchange->answer)) {
        answer_sentence(exchange->answer, cause ? 503 : 200, cause ? cause : "ready", "\n");
    }
    return KVB_OK;
}

static kvb_status metrics(struct exchange *exchange)
{
    exchange->answer->content_type = KVB_PROMETHEUS_TYPE;
    return kvb_prometheus_table(exchange->context->metrics, &exchange->answer->body);
}

/* ---- The status page and what it polls ---- */

/* The policy allows requests to our own address only and runs no script but the page's own, so
 * that a worker's name can inject neither script nor markup. */
static const struct kvb_http_header page_headers[] = {
    { "Content-Security-Policy", kvb_status_page_policy },
    { "Cache-Control", "no-cache" }, /* may be stored, but is revalidated by its ETag */
    { "ETag", kvb_status_page_etag },
    { "Referrer-Policy", "no-referrer" },
    { "X-Content-Type-Options", "nosniff" },
    { NULL, NULL },
};

static kvb_status status_page(struct exchange *exchange)
{
    /* A browser that has the page asks with its ETag. */
    const bool is_known = strcmp(exchange->request->if_none_match, kvb_status_page_etag) == 0;
    struct kvb_http_answer *answer = exchange->answer;

    set_answer_type(answer, is_known ? 304 : 200, is_known ? NULL : "text/html; charset=utf-8");
    answer->headers = page_headers;
    return is_known ? KVB_OK
                    : kvb_buf_append(&answer->body, kvb_status_page, kvb_status_page_bytes);
}

struct number_parameter {
    const char *key;
    uint64_t fallback; /* the value when the parameter is absent */
    uint64_t max;
};

/* False: the parameter is invalid and *answer is complete. */
static bool read_number_parameter(
    const struct kvb_http_request *request, const struct number_parameter *parameter,
    struct kvb_http_answer *answer, uint64_t *out_number)
{
    char text[24] = "";
    char *end = text;
    char why[80];

    if (!kvb_http_parameter(request->parameters, parameter->key, text, sizeof text)) {
        *out_number = parameter->fallback;
        return true;
    }
    errno = 0;
    const uint64_t number = strtoull(text, &end, 10);
    if (text[0] >= '0' && text[0] <= '9' && !*end && !errno && number <= parameter->max) {
        *out_number = number;
        return true;
    }
    (void)snprintf(
        why, sizeof why, "%s: expected an integer from 0 to %" PRIu64, parameter->key,
        parameter->max);
    kvb_http_refuse(answer, 400, why);
    return false;
}

static kvb_status history(struct exchange *exchange)
{
    static const struct number_parameter since = { "since", 0, UINT64_MAX };
    const struct kvb_http_route_context *context = exchange->context;
    struct kvb_http_answer *answer = exchange->answer;
    uint64_t after = 0;

    return read_number_parameter(exchange->request, &since, answer, &after)
               ? kvb_dashboard_history(context->dashboard, after, context->not_ready, &answer->body)
               : KVB_OK;
}

static kvb_status overview(struct exchange *exchange)
{
    static const struct number_parameter rows = { "rows", 100, kvb_max_overview_rows };
    const struct kvb_http_request *request = exchange->request;
    struct kvb_http_answer *answer = exchange->answer;
    char filter[kvb_max_filter_bytes] = "";
    uint64_t max_rows = 0;

    if (!read_number_parameter(request, &rows, answer, &max_rows)) {
        return KVB_OK;
    }
    if (strlen(request->parameters) >= sizeof filter) {
        kvb_http_refuse(answer, 400, "filter: too long");
        return KVB_OK;
    }
    (void)kvb_http_parameter(
        request->parameters, "filter", filter, sizeof filter); /* absent: all */
    (void)MHD_http_unescape(filter);
    const struct kvb_dashboard_query wanted = {
        .filter = filter,
        .max_rows = max_rows,
        .now_ns = kvb_clock_monotonic_ns(),
    };
    return kvb_dashboard_streams(exchange->context->dashboard, &wanted, &answer->body);
}

/* ---- The table ---- */

/* clang-format off */
static const struct kvb_http_route routes[] = {
    { "POST", "/query",         true,  query, kvb_query_json_decode },
    { "POST", "/query_by_hash", true,  query, decode_hashes },
    { "POST", "/route",         true,  route, kvb_query_json_decode },
    { "POST", "/finished",      true,  finished, kvb_request_json_decode },
    { "POST", "/first_token",   true,  first_token, kvb_request_json_decode },
    { "GET",  "/workers",       true,  workers, NULL },
    { "GET",  "/streams",       true,  streams, NULL },
    { "GET",  "/load",          true,  answer_load_request, NULL },
    { "GET",  "/dump",          true,  dump, NULL },
    { "GET",  "/health",        false, health, NULL },
    { "GET",  "/",              false, status_page, NULL },
    { "GET",  "/history",       false, history, NULL },
    { "GET",  "/overview",      false, overview, NULL },
    { "GET",  "/livez",         false, livez, NULL },
    { "GET",  "/readyz",        false, readyz, NULL },
    { "GET",  "/metrics",       false, metrics, NULL },
};
/* clang-format on */

/* Paths of earlier versions, and what serves in their place. */
static const struct gone_path {
    const char *path;
    const char *instead;
} gone_paths[] = {
    { "/register", "gone: workers register at a bridge, with POST /register there" },
    { "/unregister",
      "gone: workers are unregistered at their bridge, with POST /unregister there" },
};

/* True: the path is one of them, and the answer says so. */
static bool is_gone(const char *path, struct kvb_http_answer *answer)
{
    for (size_t i = 0; i < KVB_COUNT_OF(gone_paths); i++) {
        if (strcmp(gone_paths[i].path, path) == 0) {
            answer_sentence(answer, 410, gone_paths[i].instead, "\n");
            return true;
        }
    }
    return false;
}

static bool is_post(const struct kvb_http_route *found)
{
    return strcmp(found->method, "POST") == 0;
}

/* HEAD is handled as GET; libmicrohttpd leaves the body out. */
static bool fits_method(const struct kvb_http_route *found, const char *method)
{
    return strcmp(found->method, method) == 0 || (strcmp(method, "HEAD") == 0 && !is_post(found));
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
        if (!is_gone(request->path, answer)) {
            set_answer_type(answer, 404, NULL);
        }
        return NULL;
    }
    /* The path is known, so a wrong method is told from a wrong path. */
    if (!fits_method(found, request->method)) {
        set_answer_type(answer, 405, NULL);
        answer->allow = found->method;
        return NULL;
    }
    if (is_post(found) && !kvb_http_is_json(request->content_type)) {
        answer_sentence(answer, 415, "Expected request with `Content-Type: application/json`", "");
        return NULL;
    }
    return found;
}

bool kvb_http_route_is_short(const struct kvb_http_route *found)
{
    return is_post(found);
}

bool kvb_http_route_is_large(
    const struct kvb_http_route *found, const struct kvb_http_request *request)
{
    return found->answer == dump && !is_rows(request);
}

bool kvb_http_route_needs_context(const struct kvb_http_route *found)
{
    return found->needs_context;
}

bool kvb_http_route_read(
    const struct kvb_http_route *found, const struct kvb_http_request *request,
    struct kvb_query *out_query, struct kvb_http_answer *answer)
{
    answer->headers = data_headers;
    return !is_post(found) || read_query_body(found, request, answer, out_query);
}

void kvb_http_route_answer(
    const struct kvb_http_route *found, struct kvb_http_route_context *context,
    const struct kvb_http_request *request, struct kvb_http_answer *answer)
{
    struct exchange exchange = { .context = context, .request = request, .answer = answer };

    answer->headers = data_headers;
    answer->status = 200;
    answer->content_type = json_type;
    const kvb_status status = found->answer(&exchange);
    if (status != KVB_OK) {
        refuse_http_request(answer, status, &exchange.detail);
    }
}
