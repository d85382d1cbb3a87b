#include "kvb_test.h"

#include "core/clock.h"
#include "core/limits.h"
#include "core/own.h"
#include "kvaggregator/answers/routes.h"
#include "kvaggregator/query_scene.h"

#include <stdio.h>
#include <string.h>

/* The status page and the routes that it polls. */

static struct kvb_dashboard *new_dashboard(uint64_t seconds)
{
    const struct kvb_dashboard_options options = { .started_ms = 17 };
    struct kvb_dashboard *dashboard = NULL;

    assert_ok(kvb_dashboard_new(&options, &dashboard));
    for (uint64_t second = 1; second <= seconds; second++) {
        const struct kvb_dashboard_reading reading = { .held_blocks = 40 + second };
        kvb_dashboard_add_sample(dashboard, &reading, second * KVB_NS_PER_S);
    }
    return dashboard;
}

struct question {
    const char *path;
    const char *parameters;
    const char *if_none_match;
};

static struct kvb_http_answer ask(struct kvb_dashboard *dashboard, const struct question *question)
{
    struct kvb_http_route_context context = { .dashboard = dashboard };
    const struct kvb_http_request request = {
        .method = "GET",
        .path = question->path,
        .parameters = question->parameters,
        .content_type = "",
        .authorization = "",
        .if_none_match = question->if_none_match,
    };
    struct kvb_http_answer answer = { 0 };

    kvb_buf_init(&answer.body, kvb_max_answer_bytes);
    const struct kvb_http_route *route = kvb_http_route_find(&request, &answer);
    assert_non_null(route);
    /* these routes never wait for the index thread */
    assert_false(kvb_http_route_needs_context(route));
    kvb_http_route_answer(route, &context, &request, &answer);
    assert_ok(kvb_buf_append(&answer.body, "", 1)); /* a string for the tests */
    return answer;
}

static struct kvb_http_answer
get_of(struct kvb_dashboard *dashboard, const char *path, const char *query)
{
    const struct question question = { path, query, "" };

    return ask(dashboard, &question);
}

static const char *text_of(const struct kvb_http_answer *answer)
{
    return (const char *)answer->body.data;
}

static void assert_refused(struct kvb_dashboard *dashboard, const char *path, const char *query)
{
    struct kvb_http_answer answer = get_of(dashboard, path, query);

    assert_int_equal(answer.status, 400);
    assert_memory_equal(text_of(&answer), "{\"error\":\"", strlen("{\"error\":\""));
    kvb_buf_done(&answer.body);
}

static void overview_filters_by_decoded_words(void **state)
{
    (void)state;
    struct scene scene;
    scene_recorded(&scene);
    struct kvb_dashboard *dashboard = new_dashboard(0);
    char query[kvb_max_filter_bytes + 1];

    struct kvb_http_answer answer = get_of(dashboard, "/overview", "");
    assert_non_null(strstr(text_of(&answer), "\"age_ms\":null"));
    kvb_buf_done(&answer.body);
    kvb_dashboard_renew(dashboard, &scene.ctx, kvb_clock_monotonic_ns());
    answer = get_of(dashboard, "/overview", "rows=1&filter=2%2f%31%20exact");
    assert_int_equal(answer.status, 200);
    assert_non_null(strstr(text_of(&answer), "[{\"worker_id\":2,\"dp_rank\":1,"));
    assert_non_null(strstr(text_of(&answer), "\"matching\":1}"));
    kvb_buf_done(&answer.body);
    assert_refused(dashboard, "/overview", "rows=1001");
    (void)snprintf(query, sizeof query, "filter=%0*d", (int)sizeof query - 8, 7);
    assert_refused(dashboard, "/overview", query);
    kvb_dashboard_free(dashboard);
    scene_done(&scene);
}

static const char *header_of(const struct kvb_http_answer *answer, const char *name)
{
    for (const struct kvb_http_header *at = answer->headers; at && at->name; at++) {
        if (strcmp(at->name, name) == 0) {
            return at->value;
        }
    }
    return "";
}

static void browsers_must_not_store_data(void **state)
{
    (void)state;
    struct kvb_dashboard *dashboard = new_dashboard(1);
    static const char *const paths[] = { "/history", "/overview", "/livez" };

    for (size_t i = 0; i < KVB_COUNT_OF(paths); i++) {
        struct kvb_http_answer answer = get_of(dashboard, paths[i], "");
        assert_string_equal(header_of(&answer, "Cache-Control"), "no-store");
        kvb_buf_done(&answer.body);
    }
    kvb_dashboard_free(dashboard);
}

static void the_page_permits_only_its_own_code(void **state)
{
    (void)state;
    struct kvb_http_answer answer = get_of(NULL, "/", "");

    assert_int_equal(answer.status, 200);
    assert_string_equal(answer.content_type, "text/html; charset=utf-8");
    assert_memory_equal(text_of(&answer), "<!doctype html>", strlen("<!doctype html>"));
    const char *policy = header_of(&answer, "Content-Security-Policy");
    assert_non_null(strstr(policy, "default-src 'none'; script-src 'sha256-"));
    assert_null(strstr(policy, "unsafe"));
    assert_null(strstr(policy, "http"));
    kvb_buf_done(&answer.body);
}

static void the_page_knows_every_state_and_reason(void **state)
{
    (void)state;
    struct kvb_http_answer answer = get_of(NULL, "/", "");
    char row[80];

    for (int i = 0; i < KVB_STREAM_STATE_COUNT; i++) {
        (void)snprintf(
            row, sizeof row, "[data-state=%s]", kvb_stream_state_name((enum kvb_stream_state)i));
        assert_non_null(strstr(text_of(&answer), row));
    }
    for (int i = KVB_REASON_NONE + 1; i < KVB_REASON_COUNT; i++) {
        (void)snprintf(
            row, sizeof row, "\n    %s: \"", kvb_stream_reason_name((enum kvb_stream_reason)i));
        if (!strstr(text_of(&answer), row)) {
            fail_msg("REASONS in status_page.html lacks%s", row);
        }
    }
    kvb_buf_done(&answer.body);
}

static void a_cached_page_is_not_sent_again(void **state)
{
    (void)state;
    struct kvb_http_answer answer = get_of(NULL, "/", "");
    const struct question again = { "/", "", header_of(&answer, "ETag") };

    kvb_buf_done(&answer.body);
    answer = ask(NULL, &again);
    assert_int_equal(answer.status, 304);
    assert_string_equal(text_of(&answer), "");
    assert_string_equal(header_of(&answer, "ETag"), again.if_none_match);
    kvb_buf_done(&answer.body);
}

SUITE(page_routes)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(overview_filters_by_decoded_words),
        cmocka_unit_test(browsers_must_not_store_data),
        cmocka_unit_test(the_page_permits_only_its_own_code),
        cmocka_unit_test(the_page_knows_every_state_and_reason),
        cmocka_unit_test(a_cached_page_is_not_sent_again),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
