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

/* ---- Runs ---- */

enum { max_items = 100, max_list_bytes = max_items * 12 };

/* What a reader of one number at a time takes: numbers, each with the comma after it. */
static size_t read_commas_slowly(kvb_span text, uint32_t *out, const uint8_t **out_at)
{
    struct kvb_json_scan scan = kvb_json_scan_of(text);
    size_t count = 0;
    uint32_t number = 0;

    *out_at = scan.at;
    while (count < max_items && kvb_json_u32(&scan, &number) == KVB_OK &&
           kvb_json_take(&scan, ',')) {
        out[count++] = number;
        *out_at = scan.at;
    }
    return count;
}

/* A run may end early, but never reads another number, nor past the place where the slow reader
 * finds a fault. */
static size_t compare_run(kvb_span text)
{
    uint32_t expected[max_items];
    uint32_t numbers[max_items];
    const uint8_t *expected_at = NULL;
    struct kvb_json_scan scan = kvb_json_scan_of(text);
    const size_t expected_count = read_commas_slowly(text, expected, &expected_at);
    const size_t count = kvb_json_u32_run(&scan, numbers, max_items);

    assert_true(count <= expected_count);
    assert_memory_equal(numbers, expected, count * sizeof *numbers);
    for (size_t i = count; i < expected_count; i++) {
        uint32_t number = 0;
        assert_ok(kvb_json_u32(&scan, &number));
        assert_int_equal(number, expected[i]);
        assert_true(kvb_json_take(&scan, ','));
    }
    uint32_t number = 0;
    struct kvb_json_scan slow = { .at = expected_at, .end = scan.end };
    assert_int_equal(kvb_json_u32(&scan, &number), kvb_json_u32(&slow, &number));
    return count;
}

/* Writes a list of random numbers, separated in one of the usual ways, and spoils a byte of half of
 * them. */
static size_t make_random_list(unsigned *seed, char *out)
{
    static const char *const separators[] = { ",", ", ", ",", ", ", ",\n", " ," };
    const char *separator = separators[(size_t)rand_r(seed) % KVB_COUNT_OF(separators)];
    static const uint64_t powers[] = { 10,      100,      1000,      10000,      100000,
                                       1000000, 10000000, 100000000, 1000000000, 10000000000 };
    const size_t digits = 1 + (size_t)rand_r(seed) % KVB_COUNT_OF(powers);
    const size_t items = (size_t)rand_r(seed) % max_items;
    size_t len = 0;

    for (size_t i = 0; i < items; i++) {
        const uint64_t number = (uint64_t)rand_r(seed) * 5U;
        len += (size_t)snprintf(
            out + len, max_list_bytes - len, "%llu%s",
            (unsigned long long)(number % powers[(size_t)rand_r(seed) % digits]), separator);
    }
    if (len > 0 && rand_r(seed) % 2) {
        out[(size_t)rand_r(seed) % len] = "0, ]-.e\xff:/"[rand_r(seed) % 10];
    }
    return len;
}

static void a_run_reads_what_single_numbers_read(void **state)
{
    (void)state;
    enum { rounds = 100000 };
    unsigned seed = 20261124;
    size_t total = 0;

    for (int round = 0; round < rounds; round++) {
        char text[max_list_bytes];
        const size_t len = make_random_list(&seed, text);
        uint8_t *bytes = malloc(len > 0 ? len : 1); /* no more than the text, for ASan */
        assert_non_null(bytes);
        memcpy(bytes, text, len);
        total += compare_run((kvb_span){ .data = bytes, .len = len });
        free(bytes);
    }
    assert_true(total > (size_t)rounds * 10); /* the fast path was taken */
}

static void a_run_stops_at_its_maximum(void **state)
{
    (void)state;
    char text[] = "1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,"
                  "30,31,32,33";
    uint32_t numbers[4] = { 0, 0, 0, 77 };
    struct kvb_json_scan scan = kvb_json_scan_of(kvb_span_of(text));

    assert_int_equal(kvb_json_u32_run(&scan, numbers, 3), 3);
    assert_int_equal(numbers[2], 3);
    assert_int_equal(numbers[3], 77);
    assert_ptr_equal(scan.at, text + 6);
    assert_int_equal(kvb_json_u32_run(&scan, numbers, 0), 0);
    assert_ptr_equal(scan.at, text + 6);
}

SUITE(json_scan)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_run_reads_what_single_numbers_read),
        cmocka_unit_test(a_run_stops_at_its_maximum),
        cmocka_unit_test(numbers_of_any_length_are_read_wherever_the_text_ends),
        cmocka_unit_test(a_number_ends_at_whatever_is_no_digit),
        cmocka_unit_test(the_largest_number_is_read_and_one_more_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
