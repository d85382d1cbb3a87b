#include "core/clock.h"
#include "core/own.h"
#include "daemon/prometheus.h"
#include "kvbridge/parts.h"
#include "kvbridge/shown.h"
#include "model/liveness.h"

#include <string.h>

static void answer_text(struct kvb_http_answer *answer, unsigned status, const char *text)
{
    answer->status = status;
    answer->content_type = "text/plain; charset=utf-8";
    (void)kvb_buf_append_text(&answer->body, text); /* without memory the status alone is sent */
}

/* Does not wait for the ingest thread, because that may be the thread that hangs. */
static const char *cause_of(struct bridge_shown *shown)
{
    const uint64_t turned_ns = atomic_load_explicit(&shown->turned_ns, memory_order_relaxed);

    return kvb_liveness_cause(turned_ns, kvb_clock_monotonic_ns());
}

static void answer_live(
    struct kvb_bridge *bridge, const struct kvb_http_request *request,
    struct kvb_http_answer *answer)
{
    const char *cause = cause_of(bridge->shown);

    (void)request;
    answer_text(answer, cause ? 503 : 200, cause ? cause : "ok");
    answer_text(answer, answer->status, "\n");
}

static void answer_ready(
    struct kvb_bridge *bridge, const struct kvb_http_request *request,
    struct kvb_http_answer *answer)
{
    (void)pthread_mutex_lock(&bridge->shown->text_lock);
    struct kvb_detail why = bridge->shown->not_ready;
    (void)pthread_mutex_unlock(&bridge->shown->text_lock);
    const char *cause = cause_of(bridge->shown);
    if (cause) {
        kvb_detail_set(&why, "%s", cause);
    }
    if (!why.text[0] &&
        kvb_exact_share_refuses(&bridge->shown->share, request->parameters, answer)) {
        return;
    }
    answer_text(answer, why.text[0] ? 503 : 200, why.text[0] ? why.text : "ready");
    answer_text(answer, answer->status, "\n");
}

static void answer_metrics(
    struct kvb_bridge *bridge, const struct kvb_http_request *request,
    struct kvb_http_answer *answer)
{
    (void)request;
    answer->status = kvb_bridge_metrics_page(bridge->shown, &answer->body) == KVB_OK ? 200 : 500;
    answer->content_type = KVB_PROMETHEUS_TYPE;
}

static void answer_state_page(
    struct kvb_bridge *bridge, const struct kvb_http_request *request,
    struct kvb_http_answer *answer)
{
    (void)request;
    (void)pthread_mutex_lock(&bridge->shown->text_lock);
    const kvb_span text = kvb_buf_span(&bridge->shown->state_text);
    const kvb_status status = kvb_buf_append(&answer->body, text.data, text.len);
    (void)pthread_mutex_unlock(&bridge->shown->text_lock);
    answer->status = status == KVB_OK && text.len > 0 ? 200 : 503;
    answer->content_type = "application/json";
}

/* clang-format off */
static const struct route {
    const char *method;
    const char *path;
    void (*answer)(
        struct kvb_bridge *bridge, const struct kvb_http_request *request,
        struct kvb_http_answer *answer);
} routes[] = {
    { "GET",  "/livez",      answer_live },
    { "GET",  "/readyz",     answer_ready },
    { "GET",  "/metrics",    answer_metrics },
    { "GET",  "/state",      answer_state_page },
    { "POST", "/register",   kvb_bridge_answer_register },
    { "POST", "/unregister", kvb_bridge_answer_unregister },
    { "POST", "/drain",      kvb_bridge_answer_drain },
    { "POST", "/undrain",    kvb_bridge_answer_undrain },
};
/* clang-format on */

static void refuse_method(struct kvb_http_answer *answer, const char *method)
{
    answer->allow = method;
    answer_text(answer, 405, "this path requires ");
    answer_text(answer, 405, method);
    answer_text(answer, 405, "\n");
}

void kvb_bridge_answer(
    void *context, const struct kvb_http_request *request, struct kvb_http_answer *answer)
{
    for (size_t i = 0; i < KVB_COUNT_OF(routes); i++) {
        if (strcmp(request->path, routes[i].path) != 0) {
            continue;
        }
        if (strcmp(request->method, routes[i].method) != 0) { /* HEAD arrives as GET */
            refuse_method(answer, routes[i].method);
        } else {
            routes[i].answer(context, request, answer);
        }
        return;
    }
    answer_text(
        answer, 404,
        "no such path; there are /livez /readyz /metrics /state, and POST /register /unregister "
        "/drain "
        "/undrain\n");
}
