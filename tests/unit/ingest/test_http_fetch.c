#include "kvb_test.h"

#include "control/control.h"
#include "core/clock.h"
#include "core/own.h"
#include "fail_alloc.h"
#include "ingest/dns/resolver.h"
#include "ingest/http/fetch.h"
#include "name_server.h"
#include "web_server.h"

#include <stdio.h>
#include <string.h>

enum { patience_ms = 20000, max_bytes = 1000 };

static const struct web_page pages[] = {
    { "/ok", web_answers, "hello" },
    { "/empty", web_answers, "" },
    { "/parts", web_in_parts, "one two three four five six seven" },
    { "/busy", web_refuses, "later" },
    { "/moved", web_sends_on, "" },
    { "/packed", web_compresses, "as it was sent" },
    { "/whoami", web_echoes, "" },
    { "/post", web_echoes_body, "" },
    { "/cut", web_cuts, "hell" },
    { "/hangs", web_hangs, "" },
    { "/endless", web_endless, "and on and on and on and on and on and on" },
    { .path = NULL },
};

/* The result of one fetch. */
struct seen {
    char text[max_bytes + 1];
    size_t len;
    size_t ends;
    size_t opens;
    size_t stop_at; /* in bytes; 0: never */
    struct kvb_fetch_end end;
};

static kvb_status keep(void *context, kvb_span bytes)
{
    struct seen *seen = context;

    assert_true(bytes.len <= max_bytes - seen->len);
    memcpy(seen->text + seen->len, bytes.data, bytes.len);
    seen->len += bytes.len;
    return seen->stop_at > 0 && seen->len >= seen->stop_at ? KVB_BAD_INPUT : KVB_OK;
}

static void end(void *context, const struct kvb_fetch_end *how)
{
    struct seen *seen = context;

    seen->ends++;
    seen->end = *how;
}

static void open_seen(void *context)
{
    struct seen *seen = context;

    assert_int_equal(seen->len, 0); /* called before the body arrives */
    seen->opens++;
}

static struct kvb_fetch_options options_of(const char *url, uint32_t timeout_ms, struct seen *seen)
{
    return (struct kvb_fetch_options){ .url = url,
                                       .timeout_ms = timeout_ms,
                                       .max_bytes = max_bytes,
                                       .on_open = open_seen,
                                       .on_bytes = keep,
                                       .on_end = end,
                                       .context = seen };
}

static struct kvb_fetch *
start(struct kvb_fetcher *fetcher, const char *url, uint32_t timeout_ms, struct seen *seen)
{
    const struct kvb_fetch_options options = options_of(url, timeout_ms, seen);
    struct kvb_fetch *fetch = NULL;

    assert_ok(kvb_fetch_start(fetcher, &options, &fetch));
    return fetch;
}

/* A job with nothing but a fetcher, whose turns the test runs. */
static struct {
    struct kvb_control *control;
    struct kvb_job *job;
    struct kvb_fetcher *fetcher;
} loop;

static uint64_t work(void *context, uint64_t now_ns)
{
    (void)context;
    return kvb_fetcher_work(loop.fetcher, now_ns);
}

static void end_fetcher(void *context)
{
    (void)context;
    kvb_fetcher_free(loop.fetcher);
    loop.fetcher = NULL;
}

static const struct kvb_job_options job_options = { .turn = work, .end = end_fetcher };

static struct kvb_fetcher *open_fetcher(struct kvb_resolver *resolver)
{
    assert_ok(kvb_control_new(&loop.control));
    assert_ok(kvb_job_add(loop.control, &job_options, &loop.job));
    assert_ok(kvb_fetcher_new(loop.job, resolver, &loop.fetcher));
    return loop.fetcher;
}

static void close_fetcher(void)
{
    kvb_job_remove(loop.job);
    kvb_control_free(loop.control);
}

static void work_until_ended(const struct seen *seen)
{
    const uint64_t deadline = kvb_clock_monotonic_ns() + patience_ms * KVB_NS_PER_MS;

    while (seen->ends == 0) {
        assert_true(kvb_clock_monotonic_ns() < deadline);
        kvb_control_run_once(loop.control, 20);
    }
}

static void each_outcome_has_its_name(void **state)
{
    (void)state;
    const struct {
        const char *path;
        enum kvb_fetch_outcome outcome;
        unsigned code;
        const char *text;
        const char *why;
    } cases[] = {
        { "/ok", KVB_FETCH_OK, 200, "hello", "" },
        { "/empty", KVB_FETCH_OK, 200, "", "" },
        { "/parts", KVB_FETCH_OK, 200, "one two three four five six seven", "" },
        { "/busy", KVB_FETCH_CODE, 503, "", "answered HTTP 503" },
        /* never decompressed: protects against decompression bombs */
        { "/packed", KVB_FETCH_OK, 200, "as it was sent", "" },
        { "/moved", KVB_FETCH_CODE, 302, "", "answered HTTP 302" },
        { "/nowhere", KVB_FETCH_CODE, 404, "", "answered HTTP 404" },
        { "/cut", KVB_FETCH_UNREACHABLE, 200, "hell", "100 bytes remaining" },
        { "/hangs", KVB_FETCH_LATE, 0, "", "gave no whole answer in 400 ms" },
    };
    struct web_server *server = web_server_start(pages);
    struct kvb_fetcher *fetcher = NULL;
    char url[128];

    fetcher = open_fetcher(NULL);
    for (size_t i = 0; i < KVB_COUNT_OF(cases); i++) {
        struct seen seen = { .len = 0 };
        const uint32_t patience = cases[i].outcome == KVB_FETCH_LATE ? 400 : patience_ms;
        (void)start(fetcher, web_server_url(server, cases[i].path, url), patience, &seen);
        work_until_ended(&seen);
        assert_int_equal(seen.end.outcome, cases[i].outcome);
        assert_int_equal(seen.end.code, cases[i].code);
        assert_string_equal(seen.text, cases[i].text);
        if (!strstr(seen.end.why.text, cases[i].why) || !cases[i].why[0] != !seen.end.why.text[0]) {
            fail_msg("%s: %s", cases[i].path, seen.end.why.text);
        }
    }
    close_fetcher();
    web_server_stop(server);
}

static void a_token_is_sent_with_its_own_request_only(void **state)
{
    static const char *const tokens[] = { "abc.def", "", NULL };
    static const char *const said[] = { "Bearer abc.def", "none", "none" };
    struct web_server *server = web_server_start(pages);
    struct kvb_fetcher *fetcher = NULL;
    char url[128];

    (void)state;
    fetcher = open_fetcher(NULL);
    for (size_t i = 0; i < KVB_COUNT_OF(tokens); i++) { /* on one connection */
        struct seen seen = { .len = 0 };
        struct kvb_fetch *fetch = NULL;
        struct kvb_fetch_options options =
            options_of(web_server_url(server, "/whoami", url), patience_ms, &seen);
        options.token = tokens[i];
        assert_ok(kvb_fetch_start(fetcher, &options, &fetch));
        work_until_ended(&seen);
        assert_string_equal(seen.text, said[i]);
        assert_int_equal(seen.opens, 1);
    }
    close_fetcher();
    web_server_stop(server);
}

static void a_body_is_posted_as_json(void **state)
{
    static const char body[] = "{\"prompt\":\"a\"}";
    struct web_server *server = web_server_start(pages);
    struct kvb_fetcher *fetcher = NULL;
    char url[128];

    (void)state;
    fetcher = open_fetcher(NULL);
    assert_ok(kvb_fetcher_limit(fetcher, 1));
    for (size_t i = 0; i < 2; i++) { /* the second request uses the same connection */
        struct seen seen = { .len = 0 };
        struct kvb_fetch *fetch = NULL;
        struct kvb_fetch_options options =
            options_of(web_server_url(server, "/post", url), patience_ms, &seen);
        options.json = kvb_span_of(body);
        assert_ok(kvb_fetch_start(fetcher, &options, &fetch));
        work_until_ended(&seen);
        assert_string_equal(seen.text, "application/json: {\"prompt\":\"a\"}");
    }
    close_fetcher();
    web_server_stop(server);
}

static void a_refusal_tells_the_retry_after_and_is_no_success(void **state)
{
    struct web_server *server = web_server_start(pages);
    struct kvb_fetcher *fetcher = NULL;
    struct seen seen = { .len = 0 };
    char url[128];

    (void)state;
    fetcher = open_fetcher(NULL);
    (void)start(fetcher, web_server_url(server, "/busy", url), patience_ms, &seen);
    work_until_ended(&seen);
    assert_int_equal(seen.end.retry_after_s, 7);
    assert_int_equal(seen.opens, 0);
    close_fetcher();
    web_server_stop(server);
}

static void the_body_of_a_refusal_is_returned_on_request(void **state)
{
    struct web_server *server = web_server_start(pages);
    struct kvb_fetcher *fetcher = NULL;
    struct seen seen = { .len = 0 };
    struct kvb_fetch *fetch = NULL;
    char url[128];

    (void)state;
    fetcher = open_fetcher(NULL);
    struct kvb_fetch_options options =
        options_of(web_server_url(server, "/busy", url), patience_ms, &seen);
    options.takes_errors = true;
    assert_ok(kvb_fetch_start(fetcher, &options, &fetch));
    work_until_ended(&seen);
    assert_int_equal(seen.end.code, 503);
    assert_string_equal(seen.text, "later");
    close_fetcher();
    web_server_stop(server);
}

/* The time limit of a stream covers only the connection. */
static void a_stream_may_last_longer_than_its_time_limit(void **state)
{
    struct web_server *server = web_server_start(pages);
    struct kvb_fetcher *fetcher = NULL;
    struct kvb_fetch *fetch = NULL;
    struct seen seen = { .len = 0 };
    char url[128];
    struct kvb_fetch_options options = options_of(web_server_url(server, "/hangs", url), 50, &seen);

    (void)state;
    options.is_stream = true;
    fetcher = open_fetcher(NULL);
    assert_ok(kvb_fetch_start(fetcher, &options, &fetch));
    for (const uint64_t until_ns = kvb_clock_monotonic_ns() + 300 * KVB_NS_PER_MS;
         kvb_clock_monotonic_ns() < until_ns;) {
        kvb_control_run_once(loop.control, 20);
    }
    assert_int_equal(seen.ends, 0);
    kvb_fetch_cancel(fetch);
    close_fetcher();
    web_server_stop(server);
}

static void an_endless_body_ends_at_the_ceiling(void **state)
{
    (void)state;
    struct web_server *server = web_server_start(pages);
    struct kvb_fetcher *fetcher = NULL;
    struct seen seen = { .len = 0 };
    char url[128];

    fetcher = open_fetcher(NULL);
    (void)start(fetcher, web_server_url(server, "/endless", url), patience_ms, &seen);
    work_until_ended(&seen);
    assert_int_equal(seen.end.outcome, KVB_FETCH_TOO_LARGE);
    assert_string_equal(seen.end.why.text, "sent more than 1000 bytes");
    assert_true(seen.len > 0 && seen.len <= max_bytes);
    close_fetcher();
    web_server_stop(server);
}

static void a_reader_may_end_a_stream(void **state)
{
    (void)state;
    struct web_server *server = web_server_start(pages);
    struct kvb_fetcher *fetcher = NULL;
    struct seen seen = { .stop_at = 50 };
    char url[128];

    fetcher = open_fetcher(NULL);
    (void)start(fetcher, web_server_url(server, "/endless", url), patience_ms, &seen);
    work_until_ended(&seen);
    assert_int_equal(seen.end.outcome, KVB_FETCH_STOPPED);
    close_fetcher();
    web_server_stop(server);
}

static void a_cancelled_fetch_reports_nothing(void **state)
{
    (void)state;
    struct web_server *server = web_server_start(pages);
    struct kvb_fetcher *fetcher = NULL;
    struct seen gone = { .len = 0 };
    struct seen seen = { .len = 0 };
    char url[128];

    fetcher = open_fetcher(NULL);
    struct kvb_fetch *first =
        start(fetcher, web_server_url(server, "/ok", url), patience_ms, &gone);
    struct kvb_fetch *last = start(fetcher, web_server_url(server, "/ok", url), patience_ms, &gone);
    (void)start(fetcher, url, patience_ms, &seen);
    kvb_fetch_cancel(first);
    kvb_fetch_cancel(last);
    kvb_fetch_cancel(NULL);
    work_until_ended(&seen);
    assert_int_equal(gone.ends, 0);
    assert_int_equal(gone.len, 0);
    close_fetcher();
    web_server_stop(server);
}

static void only_http_is_spoken(void **state)
{
    (void)state;
    const char *const bad[] = { "",     "127.0.0.1:8000", "ftp://h/x",        "file:///etc/passwd",
                                "http", "http://",        "http://h:99999/x", "tcp://h:1" };
    const char *const good[] = { "http://127.0.0.1:8000/metrics", "https://engine/metrics",
                                 "http://[::1]:8000/" };
    struct kvb_fetcher *fetcher = NULL;
    struct kvb_detail detail;

    fetcher = open_fetcher(NULL);
    for (size_t i = 0; i < KVB_COUNT_OF(bad); i++) {
        const struct kvb_fetch_options options = { .url = bad[i], .on_bytes = keep, .on_end = end };
        struct kvb_fetch *fetch = NULL;
        assert_int_equal(kvb_fetch_check_url(bad[i], &detail), KVB_BAD_CONFIG);
        assert_non_null(strstr(detail.text, "http://host:port/path"));
        assert_int_equal(kvb_fetch_start(fetcher, &options, &fetch), KVB_BAD_CONFIG);
    }
    for (size_t i = 0; i < KVB_COUNT_OF(good); i++) {
        assert_ok(kvb_fetch_check_url(good[i], NULL));
    }
    close_fetcher();
}

/* ---- Names ---- */

static void a_host_that_is_a_name_is_reached_by_its_address(void **state)
{
    (void)state;
    struct web_server *server = web_server_start(pages);
    struct kvb_fetcher *fetcher = NULL;
    char url[128];
    char named[160];

    fetcher = open_fetcher(NULL);
    const char *port = strrchr(web_server_url(server, "/ok", url), ':');
    (void)snprintf(named, sizeof named, "http://localhost%s", port);
    for (int i = 0; i < 2; i++) { /* the second request uses the same connection */
        struct seen seen = { .len = 0 };
        (void)start(fetcher, named, patience_ms, &seen);
        work_until_ended(&seen);
        assert_int_equal(seen.end.outcome, KVB_FETCH_OK);
        assert_string_equal(seen.text, "hello");
    }
    struct seen seen = { .len = 0 };
    (void)start(fetcher, "http://engine-2.fleet/ok", patience_ms, &seen);
    assert_int_equal(seen.ends, 0); /* an error is reported by the next call of work */
    work_until_ended(&seen);
    assert_int_equal(seen.end.outcome, KVB_FETCH_UNREACHABLE);
    assert_non_null(strstr(seen.end.why.text, "the name engine-2.fleet cannot be resolved: "));
    close_fetcher();
    web_server_stop(server);
}

/* This and all later tests run in namespaces of their own, so they come last. */
static void a_silent_name_server_delays_a_fetch_only_to_its_time_limit(void **state)
{
    (void)state;
    const struct name_row rows[] = { { "silent.fleet", "", name_silent }, { .name = NULL } };
    struct kvb_resolver *resolver = NULL;
    struct kvb_fetcher *fetcher = NULL;
    struct seen late = { .len = 0 };
    struct seen other = { .len = 0 };
    struct seen cancelled = { .len = 0 };

    if (!name_server_isolate()) {
        skip();
    }
    name_server_settings("nameserver 127.0.53.7\n", "");
    struct name_server *names = name_server_start("127.0.53.7", rows);
    assert_ok(kvb_resolver_new(&resolver));
    fetcher = open_fetcher(resolver);
    (void)start(fetcher, "http://silent.fleet/", 400, &late);
    kvb_fetch_cancel(start(fetcher, "http://silent.fleet/", 400, &cancelled));
    (void)start(fetcher, "http://127.0.0.1:1/", patience_ms, &other);
    work_until_ended(&other);
    assert_int_equal(late.ends, 0);
    work_until_ended(&late);
    assert_int_equal(late.end.outcome, KVB_FETCH_LATE);
    assert_string_equal(late.end.why.text, "its name was not resolved in 400 ms");
    assert_int_equal(cancelled.ends, 0);
    (void)start(fetcher, "http://silent.fleet/", patience_ms, &cancelled);
    close_fetcher(); /* stops with one fetch under way */
    kvb_resolver_free(resolver);
    name_server_stop(names);
}

/* Only this project's allocations: --wrap does not reach those of libcurl. */
static void survives_every_allocation_failing(void **state)
{
    (void)state;
    kvb_status status = KVB_NO_MEMORY;

    for (long n = 0; status != KVB_OK; n++) {
        const struct kvb_fetch_options options = { .url = "http://127.0.0.1:1/",
                                                   .on_bytes = keep,
                                                   .on_end = end };
        struct kvb_fetch *fetch = NULL;
        assert_ok(kvb_control_new(&loop.control));
        assert_ok(kvb_job_add(loop.control, &job_options, &loop.job));
        fail_alloc_after(n);
        status = kvb_fetcher_new(loop.job, NULL, &loop.fetcher);
        if (status == KVB_OK) {
            status = kvb_fetch_start(loop.fetcher, &options, &fetch);
        }
        fail_alloc_after(-1);
        close_fetcher();
        assert_true(status == KVB_OK || status == KVB_NO_MEMORY);
        assert_true(n < 50);
    }
}

SUITE(http_fetch)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_outcome_has_its_name),
        cmocka_unit_test(a_token_is_sent_with_its_own_request_only),
        cmocka_unit_test(a_body_is_posted_as_json),
        cmocka_unit_test(a_refusal_tells_the_retry_after_and_is_no_success),
        cmocka_unit_test(the_body_of_a_refusal_is_returned_on_request),
        cmocka_unit_test(a_stream_may_last_longer_than_its_time_limit),
        cmocka_unit_test(an_endless_body_ends_at_the_ceiling),
        cmocka_unit_test(a_reader_may_end_a_stream),
        cmocka_unit_test(a_cancelled_fetch_reports_nothing),
        cmocka_unit_test(only_http_is_spoken),
        cmocka_unit_test(survives_every_allocation_failing),
        cmocka_unit_test(a_host_that_is_a_name_is_reached_by_its_address),
        cmocka_unit_test(a_silent_name_server_delays_a_fetch_only_to_its_time_limit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
