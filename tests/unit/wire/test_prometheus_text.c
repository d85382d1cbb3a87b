#include "fail_alloc.h"
#include "kvb_test.h"

#include "core/limits.h"
#include "core/own.h"
#include "wire/load/prometheus_text.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void assert_span(kvb_span span, const char *text)
{
    assert_int_equal(span.len, strlen(text));
    assert_memory_equal(span.data, text, span.len);
}

/* ---- One line ---- */

static void reads_samples(void **state)
{
    (void)state;
    const struct {
        const char *line;
        const char *name;
        const char *labels;
        double value;
    } cases[] = {
        { "up 1", "up", "", 1 },
        { "vllm:num_requests_running{engine=\"0\",model_name=\"m\"} 4.0",
          "vllm:num_requests_running", "engine=\"0\",model_name=\"m\"", 4 },
        { "a{} 2", "a", "", 2 },
        { "  a {\t} 2\r", "a", "\t", 2 },
        { "a{x=\"1\",} -2.5e-3", "a", "x=\"1\",", -2.5e-3 },
        { "a { x = \"1\" , y=\"2\" } 3", "a", " x = \"1\" , y=\"2\" ", 3 },
        { "a 7 1795249764058", "a", "", 7 },
        { "a_total{x=\"1\"} 7 # {trace=\"z\"} 1 2", "a_total", "x=\"1\"", 7 },
        { "a{x=\"}\\\" \\\\\"} 1", "a", "x=\"}\\\" \\\\\"", 1 },
        { "a +Inf", "a", "", INFINITY },
        { "a -Inf", "a", "", -INFINITY },
        { "_:9 0", "_:9", "", 0 },
    };
    for (size_t i = 0; i < KVB_COUNT_OF(cases); i++) {
        struct kvb_prometheus_sample sample;
        assert_ok(kvb_prometheus_read(kvb_span_of(cases[i].line), &sample));
        assert_span(sample.name, cases[i].name);
        assert_span(sample.labels, cases[i].labels);
        assert_true(sample.value == cases[i].value);
        assert_span(kvb_prometheus_name(kvb_span_of(cases[i].line)), cases[i].name);
    }
    struct kvb_prometheus_sample sample;
    assert_ok(kvb_prometheus_read(kvb_span_of("a NaN"), &sample));
    assert_true(isnan(sample.value));
}

static void skips_lines_that_are_no_samples(void **state)
{
    (void)state;
    const char *const nothing[] = { "", "  ", "\r", "# HELP a b", "#", "  # TYPE a counter" };
    const char *const bad[] = {
        "a",
        "a ",
        "a one",
        "a 1x",
        "a 0x10",
        "a{",
        "a{x",
        "a{x}1",
        "a{x=} 1",
        "a{x=\"1} 1",
        "a{x=\"1\\",
        "a{x=\"1\" y=\"2\"} 1",
        "a{x=1} 1",
        "a{,} 1",
        "a{x=\"1\"",
        "a{x=\"1\"} ",
        "9a 1",
        "{x=\"1\"} 1",
        "<html> 1",
        "a\x01 1",
        "a{1=\"x\"} 1",
        "a 1,5",
        "a 1000000000000000000000000000000000000000000000000000000000000000000",
    };
    for (size_t i = 0; i < KVB_COUNT_OF(nothing); i++) {
        struct kvb_prometheus_sample sample;
        assert_int_equal(kvb_prometheus_read(kvb_span_of(nothing[i]), &sample), KVB_NOT_FOUND);
        assert_int_equal(kvb_prometheus_name(kvb_span_of(nothing[i])).len, 0);
    }
    for (size_t i = 0; i < KVB_COUNT_OF(bad); i++) {
        struct kvb_prometheus_sample sample = { .value = 77 };
        if (kvb_prometheus_read(kvb_span_of(bad[i]), &sample) != KVB_BAD_INPUT ||
            sample.value != 77) {
            fail_msg("taken: %s", bad[i]);
        }
    }
}

static void label_names_must_match_completely(void **state)
{
    (void)state;
    struct kvb_prometheus_sample sample;
    kvb_span value = { .len = 0 };

    assert_ok(kvb_prometheus_read(
        kvb_span_of(
            "a{engine_type=\"x\", my_engine=\"y\",engine=\"12\",e=\"\",last=\"\\\"q,=\"} 1"),
        &sample));
    assert_true(kvb_prometheus_label(&sample, "engine", &value));
    assert_span(value, "12");
    assert_true(kvb_prometheus_label(&sample, "e", &value));
    assert_span(value, "");
    assert_true(kvb_prometheus_label(&sample, "last", &value));
    assert_span(value, "\\\"q,=");
    assert_false(kvb_prometheus_label(&sample, "engin", &value));
    assert_false(kvb_prometheus_label(&sample, "q", &value));
    assert_ok(kvb_prometheus_read(kvb_span_of("a 1"), &sample));
    assert_false(kvb_prometheus_label(&sample, "engine", &value));
}

/* ---- Lines ---- */

struct received {
    struct kvb_buf text; /* the lines, each followed by | */
    kvb_status answer;
};

static kvb_status on_message(void *context, kvb_span line)
{
    struct received *received = context;

    assert_ok(kvb_buf_append(&received->text, line.data, line.len));
    assert_ok(kvb_buf_append_text(&received->text, "|"));
    return received->answer;
}

/* Feeds the text in pieces of this many bytes. */
static void assert_lines(const char *text, size_t piece, const char *expected, uint64_t too_long)
{
    struct received received = { .answer = KVB_OK };
    struct kvb_text_lines lines;
    const size_t len = strlen(text);

    kvb_buf_init(&received.text, 1 << 20);
    kvb_text_lines_init(&lines, on_message, &received);
    for (size_t at = 0; at < len; at += piece) {
        const size_t part = len - at < piece ? len - at : piece;
        uint8_t *copy = malloc(part);
        assert_non_null(copy);
        memcpy(copy, text + at, part);
        assert_ok(kvb_text_lines_feed(&lines, (kvb_span){ copy, part }));
        free(copy);
    }
    assert_ok(kvb_text_lines_end(&lines));
    assert_int_equal(received.text.len, strlen(expected));
    assert_memory_equal(received.text.data, expected, received.text.len);
    assert_int_equal(lines.too_long, too_long);
    kvb_text_lines_done(&lines);
    kvb_buf_done(&received.text);
}

static void lines_are_complete_however_they_are_split(void **state)
{
    (void)state;
    for (size_t piece = 1; piece < 20; piece++) {
        assert_lines("a 1\nbb 2\n\nccc 3\n", piece, "a 1|bb 2||ccc 3||", 0);
        assert_lines("a 1\nb 2", piece, "a 1|b 2|", 0);
    }
}

/* Two short lines with one of len bytes between them. */
static char *text_with_a_line_of(size_t len)
{
    char *text = malloc(len + 16);

    assert_non_null(text);
    (void)snprintf(text, len + 16, "a 1\n%0*d\nb 2\n", (int)len, 0);
    return text;
}

static void only_the_line_that_is_too_long_is_skipped(void **state)
{
    (void)state;
    const size_t max = kvb_max_page_line_bytes;
    const size_t pieces[] = { 1, 1000, max, max + 1, 3 * max };
    char *fits = text_with_a_line_of(max);
    char *longer = text_with_a_line_of(max + 1);
    char *longest = text_with_a_line_of(10 * max);
    char *whole = text_with_a_line_of(max);

    for (char *end = whole; (end = strchr(end, '\n'));) {
        *end = '|';
    }
    for (size_t i = 0; i < KVB_COUNT_OF(pieces); i++) {
        char want[kvb_max_page_line_bytes + 32];
        (void)snprintf(want, sizeof want, "%s|", whole);
        assert_lines(fits, pieces[i], want, 0);
        assert_lines(longer, pieces[i], "a 1|b 2||", 1);
        assert_lines(longest, pieces[i], "a 1|b 2||", 1);
    }
    free(fits);
    free(longer);
    free(longest);
    free(whole);
}

static void the_reader_of_lines_may_stop(void **state)
{
    (void)state;
    struct received received = { .answer = KVB_TOO_LARGE };
    struct kvb_text_lines lines;

    kvb_buf_init(&received.text, 100);
    kvb_text_lines_init(&lines, on_message, &received);
    assert_int_equal(kvb_text_lines_feed(&lines, kvb_span_of("a\nb\nc\n")), KVB_TOO_LARGE);
    assert_int_equal(received.text.len, 2);
    kvb_text_lines_reset(&lines);
    received.answer = KVB_OK;
    assert_ok(kvb_text_lines_feed(&lines, kvb_span_of("half of")));
    kvb_text_lines_reset(&lines);
    assert_ok(kvb_text_lines_feed(&lines, kvb_span_of("d\n")));
    assert_memory_equal(received.text.data, "a|d|", 4);
    kvb_text_lines_done(&lines);
    kvb_buf_done(&received.text);
}

static void survives_every_allocation_failing(void **state)
{
    (void)state;
    kvb_status status = KVB_NO_MEMORY;

    for (long n = 0; status != KVB_OK; n++) {
        struct received received = { .answer = KVB_OK };
        struct kvb_text_lines lines;
        kvb_buf_init(&received.text, 100);
        assert_ok(kvb_buf_reserve(&received.text, 50));
        kvb_text_lines_init(&lines, on_message, &received);
        fail_alloc_after(n);
        status = kvb_text_lines_feed(&lines, kvb_span_of("a 1\nb"));
        if (status == KVB_OK) {
            status = kvb_text_lines_feed(&lines, kvb_span_of(" 2\n"));
        }
        fail_alloc_after(-1);
        assert_true(status == KVB_OK || status == KVB_NO_MEMORY);
        kvb_text_lines_done(&lines);
        kvb_buf_done(&received.text);
        assert_true(n < 20);
    }
}

SUITE(prometheus_text)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reads_samples),
        cmocka_unit_test(skips_lines_that_are_no_samples),
        cmocka_unit_test(label_names_must_match_completely),
        cmocka_unit_test(lines_are_complete_however_they_are_split),
        cmocka_unit_test(only_the_line_that_is_too_long_is_skipped),
        cmocka_unit_test(the_reader_of_lines_may_stop),
        cmocka_unit_test(survives_every_allocation_failing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
