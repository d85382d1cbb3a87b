#include "core/own.h"
#include "daemon/prometheus.h"

#include "fail_alloc.h"
#include "kvb_test.h"

#include <math.h>
#include <stdatomic.h>
#include <string.h>

static const struct kvb_metric_row rows[] = {
    { "kvb_batches_total", "", "Batches read.", KVB_METRIC_COUNTER },
    { "kvb_skipped_total", "reason=\"bad\"", "Not applied,\nby \"reason\" \\.",
      KVB_METRIC_COUNTER },
    { "kvb_skipped_total", "reason=\"odd\"", "Not applied,\nby \"reason\" \\.",
      KVB_METRIC_COUNTER },
    { "kvb_connected", "", "1 while NATS is there.", KVB_METRIC_GAUGE },
};

static const char page[] = "# HELP kvb_batches_total Batches read.\n"
                           "# TYPE kvb_batches_total counter\n"
                           "kvb_batches_total 18446744073709551615\n"
                           "# HELP kvb_skipped_total Not applied,\\nby \"reason\" \\\\.\n"
                           "# TYPE kvb_skipped_total counter\n"
                           "kvb_skipped_total{reason=\"bad\"} 3\n"
                           "kvb_skipped_total{reason=\"odd\"} 0\n"
                           "# HELP kvb_connected 1 while NATS is there.\n"
                           "# TYPE kvb_connected gauge\n"
                           "kvb_connected 1\n";

static void assert_text(const struct kvb_buf *buf, const char *text)
{
    assert_int_equal(buf->len, strlen(text));
    assert_memory_equal(buf->data, text, buf->len);
}

static void a_table_is_a_page_with_each_help_and_type_line_once(void **state)
{
    _Atomic uint64_t values[] = { UINT64_MAX, 3, 0, 1 };
    const struct kvb_metrics metrics = { rows, values, KVB_COUNT_OF(rows) };
    KVB_OWN(kvb_buf_done) struct kvb_buf out = { 0 };

    (void)state;
    kvb_buf_init(&out, 4096);
    assert_ok(kvb_prometheus_table(&metrics, &out));
    assert_text(&out, page);
}

static void values_read_back_equal(void **state)
{
    static const struct kvb_metric_row row = { "x", "", "X.", KVB_METRIC_REAL_GAUGE };
    static const struct {
        double value;
        const char *text;
    } cases[] = {
        { 0, "x 0\n" },
        { -1.5, "x -1.5\n" },
        { 1e15, "x 1e+15\n" },
        { 123456789, "x 123456789\n" },
        { 0.1, "x 0.1\n" },
        { 1.0 / 3, "x 0.3333333333333333\n" },
        { (double)NAN, "x NaN\n" },
        { (double)INFINITY, "x +Inf\n" },
        { -(double)INFINITY, "x -Inf\n" },
    };
    static const char head[] = "# HELP x X.\n# TYPE x gauge\n";
    _Atomic uint64_t value = 0;
    struct kvb_metrics metrics = { &row, &value, 1 };
    KVB_OWN(kvb_buf_done) struct kvb_buf out = { 0 };

    (void)state;
    kvb_buf_init(&out, 4096);
    for (size_t i = 0; i < KVB_COUNT_OF(cases); i++) {
        kvb_buf_reset(&out);
        kvb_metric_set_real(&metrics, 0, cases[i].value);
        assert_ok(kvb_prometheus_table(&metrics, &out));
        assert_memory_equal(out.data, head, sizeof head - 1);
        assert_int_equal(out.len, sizeof head - 1 + strlen(cases[i].text));
        assert_memory_equal(out.data + sizeof head - 1, cases[i].text, strlen(cases[i].text));
    }
}

/* ---- Several sets of the same metrics ---- */

enum { streams = 2, histogram_at = 1, lag_at = histogram_at + kvb_metric_slots_HISTOGRAM };

static const struct kvb_metric_row stream_rows[lag_at + 3] = {
    { "kvb_messages_total", "", "Messages.", KVB_METRIC_COUNTER },
    [histogram_at] = { "kvb_took_seconds", "", "Time.", KVB_METRIC_HISTOGRAM },
    [lag_at] = { "kvb_lag_seconds", "", "Lag.", KVB_METRIC_REAL_GAUGE },
    [lag_at + 1] = { "kvb_errors_total", "kind=\"odd\"", "Errors.", KVB_METRIC_COUNTER },
    [lag_at + 2] = { "kvb_cpu_seconds_total", "", "Time.", KVB_METRIC_REAL_COUNTER },
};

static const char streams_page[] =
    "# HELP kvb_messages_total Messages.\n# TYPE kvb_messages_total counter\n"
    "kvb_messages_total{worker=\"7\"} 3\nkvb_messages_total{worker=\"8\"} 0\n"
    "# HELP kvb_took_seconds Time.\n# TYPE kvb_took_seconds histogram\n"
    "kvb_took_seconds_bucket{worker=\"7\",le=\"1e-06\"} 2\n"
    "kvb_took_seconds_bucket{worker=\"7\",le=\"4e-06\"} 2\n"
    "kvb_took_seconds_bucket{worker=\"7\",le=\"1.6e-05\"} 3\n"
    "kvb_took_seconds_bucket{worker=\"7\",le=\"6.4e-05\"} 3\n"
    "kvb_took_seconds_bucket{worker=\"7\",le=\"0.000256\"} 3\n"
    "kvb_took_seconds_bucket{worker=\"7\",le=\"0.001024\"} 3\n"
    "kvb_took_seconds_bucket{worker=\"7\",le=\"0.004096\"} 3\n"
    "kvb_took_seconds_bucket{worker=\"7\",le=\"0.016384\"} 3\n"
    "kvb_took_seconds_bucket{worker=\"7\",le=\"0.065536\"} 3\n"
    "kvb_took_seconds_bucket{worker=\"7\",le=\"0.262144\"} 3\n"
    "kvb_took_seconds_bucket{worker=\"7\",le=\"+Inf\"} 4\n"
    "kvb_took_seconds_sum{worker=\"7\"} 1.000012\n"
    "kvb_took_seconds_count{worker=\"7\"} 4\n"
    "kvb_took_seconds_bucket{worker=\"8\",le=\"1e-06\"} 0\n"
    "kvb_took_seconds_bucket{worker=\"8\",le=\"4e-06\"} 0\n"
    "kvb_took_seconds_bucket{worker=\"8\",le=\"1.6e-05\"} 0\n"
    "kvb_took_seconds_bucket{worker=\"8\",le=\"6.4e-05\"} 0\n"
    "kvb_took_seconds_bucket{worker=\"8\",le=\"0.000256\"} 0\n"
    "kvb_took_seconds_bucket{worker=\"8\",le=\"0.001024\"} 0\n"
    "kvb_took_seconds_bucket{worker=\"8\",le=\"0.004096\"} 0\n"
    "kvb_took_seconds_bucket{worker=\"8\",le=\"0.016384\"} 0\n"
    "kvb_took_seconds_bucket{worker=\"8\",le=\"0.065536\"} 0\n"
    "kvb_took_seconds_bucket{worker=\"8\",le=\"0.262144\"} 0\n"
    "kvb_took_seconds_bucket{worker=\"8\",le=\"+Inf\"} 0\n"
    "kvb_took_seconds_sum{worker=\"8\"} 0\n"
    "kvb_took_seconds_count{worker=\"8\"} 0\n"
    "# HELP kvb_lag_seconds Lag.\n# TYPE kvb_lag_seconds gauge\n"
    "kvb_lag_seconds{worker=\"7\"} 0.25\nkvb_lag_seconds{worker=\"8\"} 0\n"
    "# HELP kvb_errors_total Errors.\n# TYPE kvb_errors_total counter\n"
    "kvb_errors_total{worker=\"7\",kind=\"odd\"} 0\n"
    "kvb_errors_total{worker=\"8\",kind=\"odd\"} 5\n"
    "# HELP kvb_cpu_seconds_total Time.\n# TYPE kvb_cpu_seconds_total counter\n"
    "kvb_cpu_seconds_total{worker=\"7\"} 0\nkvb_cpu_seconds_total{worker=\"8\"} 1.5\n";

static void sets_share_help_and_type_lines_and_keep_their_labels(void **state)
{
    _Atomic uint64_t values[streams][KVB_COUNT_OF(stream_rows)] = { 0 };
    const struct kvb_prometheus_set sets[streams] = {
        { "worker=\"7\"", { stream_rows, values[0], KVB_COUNT_OF(stream_rows) } },
        { "worker=\"8\"", { stream_rows, values[1], KVB_COUNT_OF(stream_rows) } },
    };
    struct kvb_metrics one = sets[0].metrics;
    struct kvb_metrics other = sets[1].metrics;
    KVB_OWN(kvb_buf_done) struct kvb_buf out = { 0 };

    (void)state;
    kvb_metric_set(&one, 0, 3);
    kvb_metric_observe(&one, histogram_at, 2000, 2);
    kvb_metric_observe(&one, histogram_at, 10000, 1);
    kvb_metric_observe(&one, histogram_at, 1000000000, 1);
    kvb_metric_set_real(&one, lag_at, 0.25);
    kvb_metric_set(&other, lag_at + 1, 5);
    kvb_metric_set_real(&other, lag_at + 2, 1.5);
    kvb_buf_init(&out, 8192);
    assert_ok(kvb_prometheus_sets(sets, streams, &out));
    assert_text(&out, streams_page);
}

static void survives_each_allocation_failing(void **state)
{
    _Atomic uint64_t values[] = { UINT64_MAX, 3, 0, 1 };
    const struct kvb_metrics metrics = { rows, values, KVB_COUNT_OF(rows) };
    kvb_status status = KVB_NO_MEMORY;

    (void)state;
    for (long n = 0; status != KVB_OK; n++) {
        KVB_OWN(kvb_buf_done) struct kvb_buf out = { 0 };
        kvb_buf_init(&out, 4096);
        fail_alloc_after(n);
        status = kvb_prometheus_table(&metrics, &out);
        fail_alloc_after(-1);
        assert_true(status == KVB_OK || status == KVB_NO_MEMORY);
        assert_true(n < 100);
    }
}

SUITE(prometheus)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_table_is_a_page_with_each_help_and_type_line_once),
        cmocka_unit_test(values_read_back_equal),
        cmocka_unit_test(sets_share_help_and_type_lines_and_keep_their_labels),
        cmocka_unit_test(survives_each_allocation_failing),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
