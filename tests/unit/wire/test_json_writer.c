#include "kvb_test.h"

#include "fail_alloc.h"
#include "wire/json/scan.h"
#include "wire/json/writer.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void assert_text(const struct kvb_buf *buf, const char *expected)
{
    assert_int_equal(buf->len, strlen(expected));
    assert_memory_equal(buf->data, expected, buf->len);
}

static void write_sample(struct kvb_json_writer *json)
{
    kvb_json_write_begin(json, '{');
    kvb_json_write_pair_u64(json, "worker_id", UINT64_MAX);
    kvb_json_write_pair_begin(json, "list", '[');
    kvb_json_write_u64(json, 1);
    kvb_json_write_bool(json, true);
    kvb_json_write_null(json);
    kvb_json_write_begin(json, '{');
    kvb_json_write_end(json, '}');
    kvb_json_write_end(json, ']');
    kvb_json_write_key_u64(json, 7);
    kvb_json_write_number(json, 0.25);
    kvb_json_write_pair_text(json, "name", "m");
    kvb_json_write_end(json, '}');
}

static void assert_written(const char *text, size_t len, const char *expected)
{
    struct kvb_buf buf;
    kvb_buf_init(&buf, 4096);
    struct kvb_json_writer json = kvb_json_writer_of(&buf);

    kvb_json_write_span(&json, (kvb_span){ .data = (const uint8_t *)text, .len = len });
    assert_text(&buf, expected);
    kvb_buf_done(&buf);
}

static void escapes_the_characters_that_json_requires(void **state)
{
    (void)state;

    assert_written("a\"b\\c\n\r\t\x01\x7f", 10, "\"a\\\"b\\\\c\\n\\r\\t\\u0001\\u007f\"");
    assert_written("a\0b", 3, "\"a\\u0000b\"");
    assert_written(
        "\xc3\xa4\xe2\x82\xac\xf0\x9f\x98\x80", 9, "\"\xc3\xa4\xe2\x82\xac\xf0\x9f\x98\x80\"");
}

static void replaces_bytes_that_are_no_utf8(void **state)
{
    (void)state;

    assert_written("\xff", 1, "\"\xef\xbf\xbd\"");
    assert_written("\xc3", 1, "\"\xef\xbf\xbd\"");                                 /* cut short */
    assert_written("\xc0\x80", 2, "\"\xef\xbf\xbd\xef\xbf\xbd\"");                 /* overlong */
    assert_written("\xed\xa0\x80", 3, "\"\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\""); /* surrogate */
}

static void assert_number(double value)
{
    char expected[40];
    struct kvb_buf buf;
    kvb_buf_init(&buf, 4096);
    struct kvb_json_writer json = kvb_json_writer_of(&buf);

    (void)snprintf(expected, sizeof expected, "%.9g", value);
    kvb_json_write_number(&json, value);
    assert_ok(json.status);
    assert_text(&buf, expected);
    kvb_buf_done(&buf);
}

static void numbers_have_the_digits_of_printf(void **state)
{
    (void)state;
    enum { rounds = 200000, million = 1000000 };
    static const double edges[] = { 1,          -1,        100,        999999999, 1234567890123,
                                    0.25,       1e-7,      -0.0,       999999.5,  0,
                                    -0.5,       0.001,     0.0009,     0.000999,  1e-6,
                                    999.999999, 1000.5,    78.125,     1e9,       1e9 - 1,
                                    100.0 / 3,  0.1 + 0.2, 99.9999995, 12.3456785 };
    unsigned seed = 20261124;

    for (size_t i = 0; i < sizeof edges / sizeof edges[0]; i++) {
        assert_number(edges[i]);
    }
    for (int round = 0; round < rounds; round++) {
        const int blocks = 1 + rand_r(&seed) % 5000;
        assert_number(100.0 * (double)(rand_r(&seed) % (blocks + 1)) / (double)blocks);
        assert_number((double)rand_r(&seed) / million); /* 6 digits after the point */
        assert_number((double)(rand_r(&seed) % million) / million * (1 + 0x1p-52)); /* almost */
    }
}

static void infinity_and_nan_are_written_as_null(void **state)
{
    (void)state;
    struct kvb_buf buf;
    kvb_buf_init(&buf, 4096);
    struct kvb_json_writer json = kvb_json_writer_of(&buf);

    kvb_json_write_begin(&json, '[');
    kvb_json_write_number(&json, NAN);
    kvb_json_write_number(&json, -INFINITY);
    kvb_json_write_number(&json, -1.5);
    kvb_json_write_end(&json, ']');
    assert_text(&buf, "[null,null,-1.5]");
    kvb_buf_done(&buf);
}

/* Whatever the bytes are, the result is valid JSON. */
static void any_bytes_give_a_valid_json_string(void **state)
{
    (void)state;
    uint64_t seed = 7;

    for (size_t round = 0; round < 20000; round++) {
        uint8_t bytes[12];
        for (size_t i = 0; i < sizeof bytes; i++) {
            seed = (seed * UINT64_C(6364136223846793005)) + 1442695040888963407U;
            bytes[i] = (uint8_t)(seed >> 40U);
        }
        struct kvb_buf buf;
        kvb_buf_init(&buf, 4096);
        struct kvb_json_writer json = kvb_json_writer_of(&buf);
        struct kvb_json_budget budget = { .depth = 1, .values = 1 };
        kvb_json_write_span(&json, (kvb_span){ .data = bytes, .len = sizeof bytes });
        assert_ok(json.status);
        assert_ok(kvb_json_guard(kvb_buf_span(&buf), &budget));
        kvb_buf_done(&buf);
    }
}

static void survives_every_failing_allocation(void **state)
{
    (void)state;
    kvb_status status = KVB_NO_MEMORY;

    for (long n = 0; status != KVB_OK; n++) {
        struct kvb_buf buf;
        kvb_buf_init(&buf, 4096);
        struct kvb_json_writer json = kvb_json_writer_of(&buf);
        fail_alloc_after(n);
        write_sample(&json);
        fail_alloc_after(-1);
        status = json.status;
        assert_true(status == KVB_OK || status == KVB_NO_MEMORY);
        kvb_buf_done(&buf);
    }
}

SUITE(json_writer)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(numbers_have_the_digits_of_printf),
        cmocka_unit_test(escapes_the_characters_that_json_requires),
        cmocka_unit_test(replaces_bytes_that_are_no_utf8),
        cmocka_unit_test(infinity_and_nan_are_written_as_null),
        cmocka_unit_test(any_bytes_give_a_valid_json_string),
        cmocka_unit_test(survives_every_failing_allocation),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
