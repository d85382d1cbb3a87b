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

/* A server, and a job with nothing but a fetcher, whose turns the test runs. */
static struct {
    struct web_server *server;
    struct kvb_control *control;
    struct kvb_job *job;
    struct kvb_fetcher *fetcher;
    char url[128];
} world;

static uint64_t work(void *context, uint64_t now_ns)
{
    (void)context;
    return kvb_fetcher_work(world.fetcher, now_ns);
}

static void end_fetcher(void *context)
{
    (void)context;
    kvb_fetcher_free(world.fetcher);
    world.fetcher = NULL;
}

static const struct kvb_job_options job_options = { .turn = work, .end = end_fetcher };

static void open_fetcher(struct kvb_resolver *resolver)
{
    assert_ok(kvb_control_new(&world.control));
    assert_ok(kvb_job_add(world.control, &job_options, &world.job));
    assert_ok(kvb_fetcher_new(world.job, resolver, &world.fetcher));
}

static void close_fetcher(void)
{
    kvb_job_remove(world.job);
    kvb_control_free(world.control);
}

static int begin(void **state)
{
    (void)state;
    world.server = web_server_start(pages);
    open_fetcher(NULL);
    return 0;
}

static int finish(void **state)
{
    (void)state;
    close_fetcher();
    web_server_stop(world.server);
    return 0;
}

static const char *url_of(const char *path)
{
    return web_server_url(world.server, path, world.url);
}

static struct kvb_fetch *start_with(const struct kvb_fetch_options *options)
{
    struct kvb_fetch *fetch = NULL;

    assert_ok(kvb_fetch_start(world.fetcher, options, &fetch));
    return fetch;
}

static struct kvb_fetch *start(const char *url, uint32_t timeout_ms, struct seen *seen)
{
    const struct kvb_fetch_options options = options_of(url, timeout_ms, seen);

    return start_with(&options);
}

static void work_until_ended(const struct seen *seen)
{
    const uint64_t deadline = kvb_clock_monotonic_ns() + patience_ms * KVB_NS_PER_MS;

    while (seen->ends == 0) {
        assert_true(kvb_clock_monotonic_ns() < deadline);
        kvb_control_run_once(world.control, 20);
    }
}

/* All on one connection, as far as it lasts. */
static void each_outcome_has_its_name(void **state)
{
    (void)state;
    static const struct {
        const char *path;
        enum kvb_fetch_outcome outcome;
        unsigned code;
        const char *text; /* NULL: some */
        const char *why;
        /* of the request */
        const char *token, *json;
        bool takes_errors;
        size_t stop_at;
    } rows[] = {
        { .path = "/ok", KVB_FETCH_OK, 200, "hello", "" },
        { .path = "/empty", KVB_FETCH_OK, 200, "", "" },
        { .path = "/parts", KVB_FETCH_OK, 200, "one two three four five six seven", "" },
        { .path = "/busy", KVB_FETCH_CODE, 503, "", "answered HTTP 503" },
        { .path = "/busy",
          KVB_FETCH_CODE,
          503,
          "later",
          "answered HTTP 503",
          .takes_errors = true },
        /* never decompressed: protects against decompression bombs */
        { .path = "/packed", KVB_FETCH_OK, 200, "as it was sent", "" },
        { .path = "/moved", KVB_FETCH_CODE, 302, "", "answered HTTP 302" },
        { .path = "/nowhere", KVB_FETCH_CODE, 404, "", "answered HTTP 404" },
        { .path = "/cut", KVB_FETCH_UNREACHABLE, 200, "hell", "100 bytes remaining" },
        { .path = "/hangs", KVB_FETCH_LATE, 0, "", "gave no whole answer in 400 ms" },
        /* a token is sent with its own request only */
        { .path = "/whoami", KVB_FETCH_OK, 200, "Bearer abc.def", "", .token = "abc.def" },
        { .path = "/whoami", KVB_FETCH_OK, 200, "none", "", .token = "" },
        { .path = "/whoami", KVB_FETCH_OK, 200, "none", "" },
        { .path = "/post",
          KVB_FETCH_OK,
          200,
          "application/json: {\"a\":1}",
          "",
          .json = "{\"a\":1}" },
        { .path = "/post",
          KVB_FETCH_OK,
          200,
          "application/json: {\"a\":2}",
          "",
          .json = "{\"a\":2}" },
        { .path = "/endless", KVB_FETCH_TOO_LARGE, 200, NULL, "sent more than 1000 bytes" },
        { .path = "/endless", KVB_FETCH_STOPPED, 200, NULL, "", .stop_at = 50 },
    };

    assert_ok(kvb_fetcher_limit(world.fetcher, 1));
    for (size_t i = 0; i < KVB_COUNT_OF(rows); i++) {
        struct seen seen = { .stop_at = rows[i].stop_at };
        struct kvb_fetch_options options = options_of(
            url_of(rows[i].path), rows[i].outcome == KVB_FETCH_LATE ? 400 : patience_ms, &seen);
        options.token = rows[i].token;
        options.json = rows[i].json ? kvb_span_of(rows[i].json) : (kvb_span){ 0 };
        options.takes_errors = rows[i].takes_errors;
        (void)start_with(&options);
        work_until_ended(&seen);
        print_message("%s\n", rows[i].path);
        assert_int_equal(seen.end.outcome, rows[i].outcome);
        assert_int_equal(seen.end.code, rows[i].code);
        assert_int_equal(seen.end.retry_after_s, rows[i].code == 503 ? 7 : 0);
        assert_int_equal(seen.opens, rows[i].code == 200);
        if (rows[i].text) {
            assert_string_equal(seen.text, rows[i].text);
        }
        assert_true(seen.len <= max_bytes);
        assert_non_null(strstr(seen.end.why.text, rows[i].why));
        assert_int_equal(rows[i].why[0] != '\0', seen.end.why.text[0] != '\0');
    }
}

/* The time limit of a stream covers only the connection. */
static void a_stream_may_last_longer_than_its_time_limit(void **state)
{
    struct kvb_fetch *fetch = NULL;
    struct seen seen = { .len = 0 };
    struct kvb_fetch_options options = options_of(url_of("/hangs"), 50, &seen);

    (void)state;
    options.is_stream = true;
    assert_ok(kvb_fetch_start(world.fetcher, &options, &fetch));
    for (const uint64_t until_ns = kvb_clock_monotonic_ns() + 300 * KVB_NS_PER_MS;
         kvb_clock_monotonic_ns() < until_ns;) {
        kvb_control_run_once(world.control, 20);
    }
    assert_int_equal(seen.ends, 0);
    kvb_fetch_cancel(fetch);
}

static void a_cancelled_fetch_reports_nothing(void **state)
{
    (void)state;
    struct seen gone = { .len = 0 };
    struct seen seen = { .len = 0 };

    struct kvb_fetch *first = start(url_of("/ok"), patience_ms, &gone);
    struct kvb_fetch *last = start(url_of("/ok"), patience_ms, &gone);
    (void)start(url_of("/ok"), patience_ms, &seen);
    kvb_fetch_cancel(first);
    kvb_fetch_cancel(last);
    kvb_fetch_cancel(NULL);
    work_until_ended(&seen);
    assert_int_equal(gone.ends, 0);
    assert_int_equal(gone.len, 0);
}

static void only_http_is_spoken(void **state)
{
    (void)state;
    const char *const bad[] = { "",     "127.0.0.1:8000", "ftp://h/x",        "file:///etc/passwd",
                                "http", "http://",        "http://h:99999/x", "tcp://h:1" };
    const char *const good[] = { "http://127.0.0.1:8000/metrics", "https://engine/metrics",
                                 "http://[::1]:8000/" };
    struct kvb_detail detail;

    for (size_t i = 0; i < KVB_COUNT_OF(bad); i++) {
        const struct kvb_fetch_options options = { .url = bad[i], .on_bytes = keep, .on_end = end };
        struct kvb_fetch *fetch = NULL;
        assert_int_equal(kvb_fetch_check_url(bad[i], &detail), KVB_BAD_CONFIG);
        assert_non_null(strstr(detail.text, "http://host:port/path"));
        assert_int_equal(kvb_fetch_start(world.fetcher, &options, &fetch), KVB_BAD_CONFIG);
    }
    for (size_t i = 0; i < KVB_COUNT_OF(good); i++) {
        assert_ok(kvb_fetch_check_url(good[i], NULL));
    }
}

static void a_host_that_is_a_name_is_reached_by_its_address(void **state)
{
    (void)state;
    char named[160];

    const char *port = strrchr(url_of("/ok"), ':');
    (void)snprintf(named, sizeof named, "http://localhost%s", port);
    for (int i = 0; i < 2; i++) { /* the second request uses the same connection */
        struct seen seen = { .len = 0 };
        (void)start(named, patience_ms, &seen);
        work_until_ended(&seen);
        assert_int_equal(seen.end.outcome, KVB_FETCH_OK);
        assert_string_equal(seen.text, "hello");
    }
    struct seen seen = { .len = 0 };
    (void)start("http://engine-2.fleet/ok", patience_ms, &seen);
    assert_int_equal(seen.ends, 0); /* an error is reported by the next call of work */
    work_until_ended(&seen);
    assert_int_equal(seen.end.outcome, KVB_FETCH_UNREACHABLE);
    assert_non_null(strstr(seen.end.why.text, "the name engine-2.fleet cannot be resolved: "));
}

/* ---- Names ---- */

/* It runs in namespaces of its own, so it comes last. */
static void a_silent_name_server_delays_a_fetch_only_to_its_time_limit(void **state)
{
    (void)state;
    const struct name_row rows[] = { { "silent.fleet", "", name_silent }, { .name = NULL } };
    struct kvb_resolver *resolver = NULL;
    struct seen late = { .len = 0 };
    struct seen other = { .len = 0 };
    struct seen cancelled = { .len = 0 };

    if (!name_server_isolate()) {
        skip();
    }
    name_server_settings("nameserver 127.0.53.7\n", "");
    struct name_server *names = name_server_start("127.0.53.7", rows);
    assert_ok(kvb_resolver_new(&resolver));
    open_fetcher(resolver);
    (void)start("http://silent.fleet/", 400, &late);
    kvb_fetch_cancel(start("http://silent.fleet/", 400, &cancelled));
    (void)start("http://127.0.0.1:1/", patience_ms, &other);
    work_until_ended(&other);
    assert_int_equal(late.ends, 0);
    work_until_ended(&late);
    assert_int_equal(late.end.outcome, KVB_FETCH_LATE);
    assert_string_equal(late.end.why.text, "its name was not resolved in 400 ms");
    assert_int_equal(cancelled.ends, 0);
    (void)start("http://silent.fleet/", patience_ms, &cancelled);
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
        assert_ok(kvb_control_new(&world.control));
        assert_ok(kvb_job_add(world.control, &job_options, &world.job));
        fail_alloc_after(n);
        status = kvb_fetcher_new(world.job, NULL, &world.fetcher);
        if (status == KVB_OK) {
            status = kvb_fetch_start(world.fetcher, &options, &fetch);
        }
        fail_alloc_after(-1);
        close_fetcher();
        assert_true(status == KVB_OK || status == KVB_NO_MEMORY);
        assert_true(n < 50);
    }
}

SUITE(http_fetch)
{
#define SERVED(test) cmocka_unit_test_setup_teardown(test, begin, finish)
    const struct CMUnitTest tests[] = {
        SERVED(each_outcome_has_its_name),
        SERVED(a_stream_may_last_longer_than_its_time_limit),
        SERVED(a_cancelled_fetch_reports_nothing),
        SERVED(only_http_is_spoken),
        SERVED(a_host_that_is_a_name_is_reached_by_its_address),
        cmocka_unit_test(survives_every_allocation_failing),
        cmocka_unit_test(a_silent_name_server_delays_a_fetch_only_to_its_time_limit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
