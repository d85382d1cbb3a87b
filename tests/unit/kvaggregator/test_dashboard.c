#include "kvb_test.h"

#include "core/clock.h"
#include "core/limits.h"
#include "core/own.h"
#include "fail_alloc.h"
#include "kvaggregator/answers/dashboard.h"
#include "kvaggregator/query_scene.h"

#include <stdio.h>
#include <string.h>

enum { text_bytes = 1 << 16, all = kvb_max_overview_rows };

static const uint64_t began_ns = 1000 * KVB_NS_PER_S;

static uint64_t at_ms(uint64_t ms)
{
    return began_ns + (ms * KVB_NS_PER_MS);
}

static struct kvb_dashboard *dashboard_of(enum kvb_load_statistic statistic)
{
    const struct kvb_dashboard_options options = {
        .now_ns = began_ns,
        .started_ms = 1700000000123,
        .statistic = statistic,
        .nats = "nats://n:4222",
        .subjects = { "a.kv_events", "a.kv_events_pb", "a.kv_window_events", "a.kv_heartbeat" },
    };
    struct kvb_dashboard *dashboard = NULL;

    assert_ok(kvb_dashboard_new(&options, &dashboard));
    return dashboard;
}

/* ---- Requests ---- */

static void assert_fits(const struct kvb_buf *buf, char out[text_bytes])
{
    assert_true(buf->len < text_bytes);
    memcpy(out, buf->data, buf->len);
    out[buf->len] = '\0';
}

static void overview(
    struct kvb_dashboard *dashboard, const char *filter, size_t rows, uint64_t ms,
    char out[text_bytes])
{
    KVB_OWN(kvb_buf_done) struct kvb_buf buf = { 0 };
    const struct kvb_dashboard_query ask = { .filter = filter,
                                             .max_rows = rows,
                                             .now_ns = at_ms(ms) };

    kvb_buf_init(&buf, kvb_max_answer_bytes);
    assert_ok(kvb_dashboard_streams(dashboard, &ask, &buf));
    assert_fits(&buf, out);
}

static void
history(struct kvb_dashboard *dashboard, uint64_t after, const char *not_ready, char *out)
{
    KVB_OWN(kvb_buf_done) struct kvb_buf buf = { 0 };

    kvb_buf_init(&buf, kvb_max_answer_bytes);
    assert_ok(kvb_dashboard_history(dashboard, after, not_ready, &buf));
    assert_fits(&buf, out);
}

static size_t times(const char *text, const char *word)
{
    size_t found = 0;

    for (const char *at = strstr(text, word); at; at = strstr(at + 1, word)) {
        found++;
    }
    return found;
}

/* Takes the current content of the query context into the dashboard cache. */
static void look(struct kvb_dashboard *dashboard, const struct scene *scene, uint64_t ms)
{
    char out[text_bytes];

    overview(dashboard, "", 0, ms, out);
    kvb_dashboard_renew(dashboard, &scene->ctx, at_ms(ms));
}

/* ---- History ---- */

static void history_has_one_row_a_second(void **state)
{
    (void)state;
    struct kvb_dashboard *dashboard = dashboard_of(KVB_LOAD_USAGE);
    const struct kvb_dashboard_reading reading = {
        .events_applied = 1234,
        .asked_blocks = 10,
        .hit_blocks = 4,
        .promised_tokens = 640,
        .delivered_tokens = 600,
        .held_blocks = 99,
        .load_avg = 1.0 / 3,
        .load_std = 0.5,
        .streams = { [KVB_STREAM_EXACT] = 7, [KVB_STREAM_DOWN] = 1 },
    };
    char out[text_bytes];

    for (uint64_t ms = 0; ms <= 2000; ms += 100) {
        kvb_dashboard_add_sample(dashboard, &reading, at_ms(ms));
    }
    history(dashboard, 0, NULL, out);
    assert_string_equal(
        out, "{\"version\":\"" KVB_VERSION "\",\"started_ms\":1700000000123,\"not_ready\":null,"
             "\"load_statistic\":\"ratio\",\"columns\":[\"second\",\"events_per_s\","
             "\"asked_blocks\",\"hit_blocks\",\"held_blocks\",\"load_avg\",\"load_std\","
             "\"SYNCING\",\"EXACT\",\"PARTIAL\",\"UNVERIFIED\",\"STALE\",\"DOWN\","
             "\"promised_tokens\",\"delivered_tokens\"],"
             "\"samples\":[[1,1234,10,4,99,0.3333,0.5,0,7,0,0,0,1,640,600],"
             "[2,0,0,0,99,0.3333,0.5,0,7,0,0,0,1,0,0]]}");
    history(dashboard, 1, "not connected", out);
    assert_non_null(strstr(out, "\"not_ready\":\"not connected\""));
    assert_non_null(strstr(out, "\"samples\":[[2,"));
    history(dashboard, 2, NULL, out);
    assert_non_null(strstr(out, "\"samples\":[]}"));
    kvb_dashboard_free(dashboard);
}

static void add_events(struct kvb_dashboard *dashboard, uint64_t events_applied, uint64_t ms)
{
    const struct kvb_dashboard_reading reading = { .events_applied = events_applied };

    kvb_dashboard_add_sample(dashboard, &reading, at_ms(ms));
}

/* The first is late and covers the time since the beginning, the last one six seconds. */
static void a_rate_is_divided_by_the_time_that_has_passed(void **state)
{
    (void)state;
    struct kvb_dashboard *dashboard = dashboard_of(KVB_LOAD_USAGE);
    char out[text_bytes];

    add_events(dashboard, 150, 1500);
    add_events(dashboard, 200, 2000);
    add_events(dashboard, 800, 8000);
    history(dashboard, 0, NULL, out);
    assert_non_null(strstr(out, "[1,100,"));
    assert_non_null(strstr(out, "[2,100,"));
    assert_non_null(strstr(out, "[8,100,"));
    kvb_dashboard_free(dashboard);
}

/* These seconds, and no others, have a sample in the answer. */
static void
assert_seconds(struct kvb_dashboard *dashboard, uint64_t after, const uint64_t *taken, size_t count)
{
    static const char key[] = "\"samples\":[";
    char out[text_bytes];
    char begin[32];

    history(dashboard, after, NULL, out);
    const char *at = strstr(out, key) + strlen(key);
    for (size_t i = 0; i < count; i++) {
        (void)snprintf(begin, sizeof begin, "[%llu,", (unsigned long long)taken[i]);
        assert_memory_equal(at, begin, strlen(begin));
        at = strchr(at, ']') + 1;
        at += *at == ',';
    }
    assert_string_equal(at, "]}");
}

/* A quarter of the seconds get no sample. */
static void the_newest_samples_are_shown_in_order(void **state)
{
    enum { seconds = 2500, kept = kvb_max_history_samples };
    (void)state;
    struct kvb_dashboard *dashboard = dashboard_of(KVB_LOAD_USAGE);
    static uint64_t taken[seconds];
    uint64_t random = 7;
    size_t count = 0;

    for (uint64_t second = 1; second <= seconds; second++) {
        random = (random * 6364136223846793005U) + 1442695040888963407U;
        if (random >> 62U) {
            add_events(dashboard, second, second * 1000 + 500);
            taken[count++] = second;
        }
        if (second % 50 == 0) {
            const size_t from = count > kept ? count - kept : 0;
            assert_seconds(dashboard, 0, taken + from, count - from);
            assert_seconds(dashboard, taken[count - 10], taken + count - 9, 9);
            assert_seconds(dashboard, taken[count - 1], NULL, 0);
            assert_seconds(dashboard, second + 1, taken + from, count - from); /* another life */
        }
    }
    kvb_dashboard_free(dashboard);
}

/* ---- The list of streams ---- */

static void who_sees_no_stream_is_told_where_bridges_are_listened_to(void **state)
{
    (void)state;
    struct scene scene;
    scene_empty(&scene);
    struct kvb_dashboard *dashboard = dashboard_of(KVB_LOAD_USAGE);
    char out[text_bytes];

    overview(dashboard, "", all, 0, out);
    assert_null(strstr(out, "listens")); /* nothing is known yet */
    look(dashboard, &scene, 0);
    overview(dashboard, "", all, 1, out);
    assert_non_null(strstr(
        out, "\"matching\":0,\"listens\":{\"nats\":\"nats://n:4222\",\"subjects\":[\"a.kv_events\","
             "\"a.kv_events_pb\",\"a.kv_window_events\",\"a.kv_heartbeat\"]}}"));
    kvb_dashboard_free(dashboard);
    scene_done(&scene);

    scene_recorded(&scene);
    dashboard = dashboard_of(KVB_LOAD_USAGE);
    look(dashboard, &scene, 0);
    overview(dashboard, "nobody", all, 1, out);
    assert_null(strstr(out, "listens")); /* the filter hides them */
    kvb_dashboard_free(dashboard);
    scene_done(&scene);
}

static void the_list_is_updated_only_while_somebody_looks(void **state)
{
    (void)state;
    const struct scene_holding holding = { 1, 0, "m", 16, KVB_TIER_DEVICE, 4, false };
    struct scene scene;
    scene_recorded(&scene);
    struct kvb_dashboard *dashboard = dashboard_of(KVB_LOAD_USAGE);
    char out[text_bytes];

    look(dashboard, &scene, 0);
    scene_bye(&scene, &holding);
    kvb_dashboard_renew(dashboard, &scene.ctx, at_ms(499)); /* not updated yet */
    overview(dashboard, "", all, 499, out);
    assert_int_equal(times(out, "\"state\":\"DOWN\""), 0);
    kvb_dashboard_renew(dashboard, &scene.ctx, at_ms(500));
    overview(dashboard, "", all, 500, out);
    assert_int_equal(times(out, "\"state\":\"DOWN\",\"reason\":\"bridge_stopped\""), 1);
    kvb_dashboard_renew(dashboard, &scene.ctx, at_ms(5400));
    kvb_dashboard_renew(dashboard, &scene.ctx, at_ms(6000)); /* no request for 5.5 s */
    overview(dashboard, "", all, 6400, out);
    assert_non_null(strstr(out, "{\"age_ms\":1000,"));
    kvb_dashboard_free(dashboard);
    scene_done(&scene);
}

static void streams_in_trouble_come_first(void **state)
{
    (void)state;
    const struct scene_holding unheard = { 8, 0, NULL, 16, KVB_TIER_DEVICE, 1, false };
    const struct scene_holding gone = { 9, 0, "m", 16, KVB_TIER_DEVICE, 1, false };
    struct scene scene;
    scene_recorded(&scene);
    struct kvb_dashboard *dashboard = dashboard_of(KVB_LOAD_USAGE);
    char out[text_bytes];

    scene_hold(&scene, &unheard);
    scene_hold(&scene, &gone);
    scene_bye(&scene, &gone);
    look(dashboard, &scene, 0);
    overview(dashboard, "", 3, 0, out);
    const char *first = strstr(out, "\"worker_id\":9,");
    const char *second = strstr(out, "\"worker_id\":8,");
    const char *third = strstr(out, "\"worker_id\":1,");
    assert_true(first && second && third && first < second && second < third);
    assert_int_equal(times(out, "\"worker_id\":"), 3);
    assert_non_null(strstr(out, "],\"matching\":5}"));
    kvb_dashboard_free(dashboard);
    scene_done(&scene);
}

static void a_filter_needs_all_its_words_in_any_case(void **state)
{
    /* clang-format off */
    static const struct {
        const char *filter;
        size_t matching;
    } rows[] = {
        { "", 3 }, { "  ", 3 }, { "exact", 3 }, { "EXACT vllmworker", 3 }, { "2/1", 1 },
        { " dynamo   2/ ", 2 }, { "down", 0 }, { "exact down", 0 }, { "model-x", 0 },
        { "e x a c t d y n zz", 3 }, /* only eight words count */
    };
    /* clang-format on */
    (void)state;
    struct scene scene;
    scene_recorded(&scene);
    struct kvb_dashboard *dashboard = dashboard_of(KVB_LOAD_USAGE);
    char out[text_bytes];
    char expected[32];

    look(dashboard, &scene, 0);
    for (size_t i = 0; i < KVB_COUNT_OF(rows); i++) {
        overview(dashboard, rows[i].filter, all, 0, out);
        (void)snprintf(expected, sizeof expected, "],\"matching\":%zu}", rows[i].matching);
        if (!strstr(out, expected)) {
            fail_msg("\"%s\": expected %s in %s", rows[i].filter, expected, out);
        }
        assert_int_equal(times(out, "\"worker_id\":"), rows[i].matching);
    }
    kvb_dashboard_free(dashboard);
    scene_done(&scene);
}

static void without_memory_the_list_stays_old_and_recovers_later(void **state)
{
    (void)state;
    struct scene scene;
    scene_recorded(&scene);
    struct kvb_dashboard *dashboard = dashboard_of(KVB_LOAD_USAGE);
    char out[text_bytes];
    long failed = 0;

    look(dashboard, &scene, 0);
    for (uint64_t ms = 500;; ms += 500, failed++) {
        overview(dashboard, "", 0, ms, out);
        fail_alloc_after(failed);
        kvb_dashboard_renew(dashboard, &scene.ctx, at_ms(ms));
        fail_alloc_after(-1);
        overview(dashboard, "", all, ms, out);
        assert_int_equal(times(out, "\"worker_id\":"), 3);
        if (strstr(out, "{\"age_ms\":0,")) {
            break;
        }
    }
    assert_true(failed > 2);
    kvb_dashboard_free(dashboard);
    scene_done(&scene);
}

static kvb_status read_history(struct kvb_dashboard *dashboard, struct kvb_buf *buf)
{
    return kvb_dashboard_history(dashboard, 0, NULL, buf);
}

static kvb_status read_streams(struct kvb_dashboard *dashboard, struct kvb_buf *buf)
{
    const struct kvb_dashboard_query ask = { .filter = "", .max_rows = all, .now_ns = began_ns };

    return kvb_dashboard_streams(dashboard, &ask, buf);
}

static long failures_survived(
    struct kvb_dashboard *dashboard, kvb_status (*ask)(struct kvb_dashboard *, struct kvb_buf *))
{
    kvb_status status = KVB_NO_MEMORY;
    long n = 0;

    for (; status != KVB_OK; n++) {
        KVB_OWN(kvb_buf_done) struct kvb_buf buf = { .ceiling = kvb_max_answer_bytes };
        fail_alloc_after(n);
        status = ask(dashboard, &buf);
        fail_alloc_after(-1);
        assert_true(status == KVB_OK || status == KVB_NO_MEMORY);
    }
    return n;
}

static void answers_survive_each_allocation_failing(void **state)
{
    (void)state;
    struct scene scene;
    scene_recorded(&scene);
    struct kvb_dashboard *dashboard = dashboard_of(KVB_LOAD_USAGE);

    look(dashboard, &scene, 0);
    assert_true(failures_survived(dashboard, read_history) > 2);
    assert_true(failures_survived(dashboard, read_streams) > 2);
    kvb_dashboard_free(dashboard);
    scene_done(&scene);
}

SUITE(dashboard)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(history_has_one_row_a_second),
        cmocka_unit_test(a_rate_is_divided_by_the_time_that_has_passed),
        cmocka_unit_test(the_newest_samples_are_shown_in_order),
        cmocka_unit_test(who_sees_no_stream_is_told_where_bridges_are_listened_to),
        cmocka_unit_test(the_list_is_updated_only_while_somebody_looks),
        cmocka_unit_test(streams_in_trouble_come_first),
        cmocka_unit_test(a_filter_needs_all_its_words_in_any_case),
        cmocka_unit_test(without_memory_the_list_stays_old_and_recovers_later),
        cmocka_unit_test(answers_survive_each_allocation_failing),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
