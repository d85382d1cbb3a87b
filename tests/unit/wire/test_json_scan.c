#include "wire/json/scan.h"

#include "kvb_test.h"

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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(numbers_of_any_length_are_read_wherever_the_text_ends),
        cmocka_unit_test(a_number_ends_at_whatever_is_no_digit),
        cmocka_unit_test(the_largest_number_is_read_and_one_more_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
