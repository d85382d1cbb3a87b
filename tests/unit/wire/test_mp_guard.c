#include "kvb_test.h"

#include "core/own.h"
#include "vector_file.h"
#include "wire/msgpack/cursor.h"

#include <stdlib.h>
#include <string.h>

/* Checks a heap copy of exactly these bytes, so that ASan sees a read beyond them. */
static kvb_status guard(const uint8_t *bytes, size_t len, unsigned max_depth, size_t *out_used)
{
    uint8_t *copy = malloc(len ? len : 1);
    assert_non_null(copy);
    memcpy(copy, bytes, len);
    const kvb_status status = kvb_mp_guard((kvb_span){ copy, len }, max_depth, out_used);
    free(copy);
    return status;
}

static kvb_status guard_hex(const char *hex, unsigned max_depth, size_t *out_used)
{
    size_t len = 0;
    uint8_t *bytes = bytes_of_hex(hex, &len);
    const kvb_status status = guard(bytes, len, max_depth, out_used);
    free(bytes);
    return status;
}

/* A type byte with its length, and the number of bytes (scalars) or of nil values (containers) that
 * follow. */
struct form {
    const char *head;
    size_t body;
};

/* Each form of the format at its minimum, and at the largest size that is quick to make. */
/* clang-format off */
static const struct form forms[] = {
    { "00", 0 },           { "7f", 0 },           { "e0", 0 },           { "ff", 0 },
    { "c0", 0 },           { "c2", 0 },           { "c3", 0 },
    { "cc", 1 },           { "cd", 2 },           { "ce", 4 },           { "cf", 8 },
    { "d0", 1 },           { "d1", 2 },           { "d2", 4 },           { "d3", 8 },
    { "ca", 4 },           { "cb", 8 },
    { "a0", 0 },           { "a1", 1 },           { "bf", 31 },
    { "d900", 0 },         { "d9ff", 255 },       { "da0000", 0 },       { "daffff", 65535 },
    { "db00000000", 0 },   { "db00010000", 65536 },
    { "c400", 0 },         { "c4ff", 255 },       { "c50000", 0 },       { "c5ffff", 65535 },
    { "c600000000", 0 },   { "c600010000", 65536 },
    { "d4", 2 },           { "d5", 3 },           { "d6", 5 },           { "d7", 9 },
    { "d8", 17 },
    { "c700", 1 },         { "c7ff", 256 },       { "c80000", 1 },       { "c8ffff", 65536 },
    { "c900000000", 1 },   { "c900010000", 65537 },
    { "90", 0 },           { "91", 1 },           { "9f", 15 },
    { "dc0000", 0 },       { "dcffff", 65535 },   { "dd00000000", 0 },   { "dd00010000", 65536 },
    { "80", 0 },           { "81", 2 },           { "8f", 30 },
    { "de0000", 0 },       { "deffff", 131070 },  { "df00000000", 0 },   { "df00010000", 131072 },
};
/* clang-format on */

/* The head, followed by a body of nils; the caller frees it. */
static uint8_t *value_of(const struct form *form, size_t *out_len)
{
    size_t head_len = 0;
    uint8_t *head = bytes_of_hex(form->head, &head_len);
    uint8_t *value = malloc(head_len + form->body);

    assert_non_null(value);
    memcpy(value, head, head_len);
    memset(value + head_len, 0xc0, form->body);
    free(head);
    *out_len = head_len + form->body;
    return value;
}

static void accepts_every_form_with_its_exact_length(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof forms / sizeof forms[0]; i++) {
        size_t len = 0;
        size_t used = 0;
        uint8_t *value = value_of(&forms[i], &len);

        assert_ok(guard(value, len, 1, &used));
        assert_int_equal(used, len);
        free(value);
    }
}

static void refuses_every_form_one_byte_short(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof forms / sizeof forms[0]; i++) {
        size_t len = 0;
        size_t used = 77;
        uint8_t *value = value_of(&forms[i], &len);
        /* every truncation of the short ones; of the long ones only the last byte */
        for (size_t cut = len > 300 ? len - 1 : 0; cut < len; cut++) {
            assert_int_equal(guard(value, cut, 1, &used), KVB_BAD_INPUT);
        }
        assert_int_equal(used, 77); /* stays as it was */
        free(value);
    }
}

static void each_case_has_its_answer(void **state)
{
    static const struct {
        const char *hex;
        unsigned max_depth;
        kvb_status status;
        size_t used; /* of KVB_OK */
    } rows[] = {
        { "93010203c1c1", 8, KVB_OK, 4 }, /* what follows the value is not looked at */
        { "c0c1", 8, KVB_OK, 1 },
        { "c1", 8, KVB_BAD_INPUT, 0 }, /* the type that is never used */
        { "92c0c1", 8, KVB_BAD_INPUT, 0 },
        { "", 8, KVB_BAD_INPUT, 0 },
        /* counts that the bytes cannot hold */
        { "dd05f5e100", 8, KVB_BAD_INPUT, 0 },         /* 10^8 items in nothing */
        { "ddffffffff", 8, KVB_BAD_INPUT, 0 },         /* 2^32-1 */
        { "dfffffffff", 8, KVB_BAD_INPUT, 0 },         /* 2^32-1 pairs: twice that many values */
        { "df80000000c0c0", 8, KVB_BAD_INPUT, 0 },     /* 2^31 pairs must not wrap to 0 */
        { "dcffffc0c0c0", 8, KVB_BAD_INPUT, 0 },       /* only a few of them are there */
        { "82c0c0c0", 8, KVB_BAD_INPUT, 0 },           /* the last pair has no value */
        { "dbffffffff61", 8, KVB_BAD_INPUT, 0 },       /* text */
        { "c6ffffffff61", 8, KVB_BAD_INPUT, 0 },       /* bytes */
        { "c9ffffffff0161", 8, KVB_BAD_INPUT, 0 },     /* ext: the length and its tag */
        { "929fc0c0c0c0c0c0c0", 8, KVB_BAD_INPUT, 0 }, /* inside another */
        /* an empty container is no level */
        { "9190", 1, KVB_OK, 2 },
        { "9180", 1, KVB_OK, 2 },
        { "9181c0c0", 1, KVB_TOO_LARGE, 0 },
        /* [[1, [2]], {3: [4]}, 5] and the same without its last */
        { "93920191028103910405", 3, KVB_OK, 10 },
        { "939201910281039104", 3, KVB_BAD_INPUT, 0 },
    };

    (void)state;
    for (size_t i = 0; i < KVB_COUNT_OF(rows); i++) {
        size_t used = 0;
        if (guard_hex(rows[i].hex, rows[i].max_depth, &used) != rows[i].status ||
            used != rows[i].used) {
            fail_msg("%s", rows[i].hex);
        }
    }
}

/* `depth` arrays of one around a nil. */
static kvb_status guard_nested(unsigned depth, unsigned max_depth)
{
    uint8_t bytes[256];
    size_t used = 0;

    memset(bytes, 0x91, depth);
    bytes[depth] = 0xc0;
    return guard(bytes, depth + 1, max_depth, &used);
}

static void allows_nesting_to_the_depth_and_no_deeper(void **state)
{
    (void)state;
    for (unsigned max_depth = 1; max_depth <= 32; max_depth++) {
        assert_ok(guard_nested(max_depth, max_depth));
        assert_int_equal(guard_nested(max_depth + 1, max_depth), KVB_TOO_LARGE);
        assert_int_equal(guard_nested(200, max_depth), KVB_TOO_LARGE);
    }
    assert_int_equal(guard_nested(0, 33), KVB_TOO_LARGE); /* beyond what it can count */
}

SUITE(mp_guard)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(accepts_every_form_with_its_exact_length),
        cmocka_unit_test(refuses_every_form_one_byte_short),
        cmocka_unit_test(each_case_has_its_answer),
        cmocka_unit_test(allows_nesting_to_the_depth_and_no_deeper),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
