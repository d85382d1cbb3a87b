#include "kvb_test.h"

#include "core/limits.h"
#include "core/own.h"
#include "wire/load/prometheus_text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- One line ---- */

static void skips_lines_that_are_no_samples(void **state)
{
    (void)state;
    const char *const nothing[] = { "", "  ", "\r", "# HELP a b", "#", "  # TYPE a counter" };
    for (size_t i = 0; i < KVB_COUNT_OF(nothing); i++) {
        struct kvb_prometheus_sample sample;
        assert_int_equal(kvb_prometheus_read(kvb_span_of(nothing[i]), &sample), KVB_NOT_FOUND);
        assert_int_equal(kvb_prometheus_name(kvb_span_of(nothing[i])).len, 0);
    }
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

SUITE(prometheus_text)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(skips_lines_that_are_no_samples),
        cmocka_unit_test(only_the_line_that_is_too_long_is_skipped),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
