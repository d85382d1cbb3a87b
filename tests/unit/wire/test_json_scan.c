#include "wire/json/scan.h"

#include "core/own.h"

#include "kvb_test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A simple reader that does what kvb_json_u64() promises; false when it refuses. */
static bool read_slowly(const char *text, uint64_t *out_value, size_t *out_len)
{
    uint64_t value = 0;
    size_t len = 0;

    for (; text[len] >= '0' && text[len] <= '9'; len++) {
        if (__builtin_mul_overflow(value, 10, &value) ||
            __builtin_add_overflow(value, (uint64_t)(text[len] - '0'), &value)) {
            return false;
        }
    }
    *out_value = value;
    *out_len = len;
    return len > 0 && !(text[0] == '0' && len > 1) && text[len] != '.' && text[len] != 'e' &&
           text[len] != 'E';
}

/* Copies the text into memory of exactly its size, so that ASan sees a read behind it. */
static void compare(const char *text)
{
    const size_t text_len = strlen(text);
    uint8_t *bytes = malloc(text_len > 0 ? text_len : 1);
    uint64_t expected = 0;
    uint64_t value = 0;
    size_t len = 0;

    assert_non_null(bytes);
    memcpy(bytes, text, text_len); /* NOLINT(bugprone-not-null-terminated-result) */
    struct kvb_json_scan scan = kvb_json_scan_of((kvb_span){ .data = bytes, .len = text_len });
    const bool is_good = read_slowly(text, &expected, &len);
    assert_int_equal(kvb_json_u64(&scan, &value), is_good ? KVB_OK : KVB_BAD_INPUT);
    if (is_good) {
        assert_true(value == expected);
        assert_ptr_equal(scan.at, bytes + len);
    }
    free(bytes);
}

static void numbers_of_any_length_are_read_wherever_the_text_ends(void **state)
{
    (void)state;
    enum { rounds = 200000, max_digits = 22 };
    unsigned seed = 20261121;

    for (int round = 0; round < rounds; round++) {
        char text[max_digits + 12];
        size_t len = (size_t)rand_r(&seed) % max_digits;
        for (size_t i = 0; i < len; i++) {
            text[i] = (char)('0' + rand_r(&seed) % 10);
        }
        const size_t end = len + (size_t)rand_r(&seed) % 10;
        for (; len < end; len++) {
            text[len] = (char)(1 + rand_r(&seed) % 255);
        }
        text[len] = '\0';
        if (text[0] != ' ' && text[0] != '\t' && text[0] != '\n' && text[0] != '\r') {
            compare(text); /* skips leading white space, which the simple reader does not */
        }
    }
}

/* Each byte that may follow, after each number of digits. */
static void a_number_ends_at_whatever_is_no_digit(void **state)
{
    (void)state;
    static const char digits[] = "12345678901234567890";

    for (size_t len = 1; len < sizeof digits; len++) {
        for (int next = 1; next < 256; next++) {
            char text[sizeof digits + 16];
            memcpy(text, digits, len);
            text[len] = (char)next;
            memcpy(text + len + 1, "7,7,7,7,7", sizeof "7,7,7,7,7");
            compare(text);
        }
    }
}

static void the_largest_number_is_read_and_one_more_is_refused(void **state)
{
    (void)state;
    static const char *const texts[] = { "18446744073709551615",
                                         "18446744073709551616",
                                         "99999999999999999999",
                                         "184467440737095516150",
                                         "0",
                                         "00",
                                         "01",
                                         "-1",
                                         "",
                                         "1.5",
                                         "1e5",
                                         "12345678E1",
                                         "1234567812345678.0",
                                         "10000000000000000000,",
                                         "00000000000000000000,",
                                         "1234567a" };

    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        compare(texts[i]);
    }
}

/* Numbers between commas, of which some have spaces, too many digits or a leading zero, in memory
 * of exactly that size: a run followed by single numbers reads what single numbers read. */
static void a_run_of_numbers_reads_what_single_ones_do(void **state)
{
    (void)state;
    enum { rounds = 20000, max_bytes = 200, max_values = 64 };
    static const char *const items[] = { "0",          "7",          "12",  "1234567", "12345678",
                                         "4294967295", "4294967296", "007", " 5",      "5 ",
                                         "",           "-1",         "1.5", "x" };
    unsigned seed = 20261124;

    for (int round = 0; round < rounds; round++) {
        char text[max_bytes] = "";
        const int count = 1 + rand_r(&seed) % 10;
        for (int i = 0; i < count; i++) {
            const int number = rand_r(&seed) % (rand_r(&seed) % 4 ? 4 : (int)KVB_COUNT_OF(items));
            (void)snprintf(text + strlen(text), sizeof text - strlen(text), "%s,", items[number]);
        }
        text[strlen(text) - (size_t)(rand_r(&seed) % 2)] = '\0';
        const size_t len = strlen(text);
        uint8_t *bytes = malloc(len);
        uint32_t run[max_values];
        uint32_t single = 0;
        assert_non_null(bytes);
        memcpy(bytes, text, len); /* NOLINT(bugprone-not-null-terminated-result) */
        struct kvb_json_scan fast = kvb_json_scan_of((kvb_span){ .data = bytes, .len = len });
        struct kvb_json_scan slow = fast;
        const size_t got = kvb_json_u32_run(&fast, run, (size_t)(rand_r(&seed) % max_values));
        for (size_t i = 0; i < got; i++) {
            assert_int_equal(kvb_json_u32(&slow, &single), KVB_OK);
            assert_int_equal(single, run[i]);
            assert_true(kvb_json_take(&slow, ','));
        }
        assert_ptr_equal(fast.at, slow.at);
        free(bytes);
    }
}

static void a_run_ends_before_what_it_does_not_read(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        size_t count;
    } rows[] = {
        { "1,22,333,4444]          ", 3 },
        { "1234567,7]          ", 1 },
        { "12345678,7]         ", 0 },
        { "1,007,3]          ", 1 },
        { "1, 2,3]           ", 1 },
        { "1 ,2,3]           ", 0 },
        { "1,,3]             ", 1 },
        { "0,0,0,0]          ", 3 },
        { "1,2]", 0 }, /* too near to the end: 8 bytes are read at once */
    };

    for (size_t i = 0; i < KVB_COUNT_OF(rows); i++) {
        uint32_t values[8];
        const kvb_span text = { .data = (const uint8_t *)rows[i].text,
                                .len = strlen(rows[i].text) };
        struct kvb_json_scan scan = kvb_json_scan_of(text);
        assert_int_equal(kvb_json_u32_run(&scan, values, KVB_COUNT_OF(values)), rows[i].count);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(numbers_of_any_length_are_read_wherever_the_text_ends),
        cmocka_unit_test(a_number_ends_at_whatever_is_no_digit),
        cmocka_unit_test(the_largest_number_is_read_and_one_more_is_refused),
        cmocka_unit_test(a_run_of_numbers_reads_what_single_ones_do),
        cmocka_unit_test(a_run_ends_before_what_it_does_not_read),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
