#include "kvb_test.h"

#include "vector_file.h"
#include "wire/msgpack/cursor.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- Reading values, with each reader ---- */

/* The result of each reader of numbers for one value. */
struct want {
    const char *hex;
    bool is_integer;
    bool is_negative;
    uint64_t bits;
    double number;
};

/* clang-format off */
static const struct want numbers[] = {
    { "00",                 true,  false, 0,                    0 },
    { "7f",                 true,  false, 127,                  127 },
    { "cc00",               true,  false, 0,                    0 },
    { "ccff",               true,  false, 255,                  255 },
    { "cd0100",             true,  false, 256,                  256 },
    { "cdffff",             true,  false, 65535,                65535 },
    { "ce00010000",         true,  false, 65536,                65536 },
    { "ceffffffff",         true,  false, UINT32_MAX,           4294967295.0 },
    { "cf0000000100000000", true,  false, UINT32_MAX + 1ull,    4294967296.0 },
    { "cf8000000000000000", true,  false, 1ull << 63,           0x1p63 },
    { "cfffffffffffffffff", true,  false, UINT64_MAX,           0x1p64 },
    { "ff",                 true,  true,  (uint64_t)-1,         -1 },
    { "e0",                 true,  true,  (uint64_t)-32,        -32 },
    { "d0df",               true,  true,  (uint64_t)-33,        -33 },
    { "d080",               true,  true,  (uint64_t)-128,       -128 },
    { "d07f",               true,  false, 127,                  127 },
    { "d1ff7f",             true,  true,  (uint64_t)-129,       -129 },
    { "d18000",             true,  true,  (uint64_t)-32768,     -32768 },
    { "d17fff",             true,  false, 32767,                32767 },
    { "d2ffff7fff",         true,  true,  (uint64_t)-32769,     -32769 },
    { "d280000000",         true,  true,  (uint64_t)INT32_MIN,  -0x1p31 },
    { "d27fffffff",         true,  false, INT32_MAX,            2147483647.0 },
    { "d3ffffffff7fffffff", true,  true,  (uint64_t)(INT32_MIN - 1LL), -2147483649.0 },
    { "d38000000000000000", true,  true,  1ull << 63,           -0x1p63 },
    { "d37fffffffffffffff", true,  false, INT64_MAX,            0x1p63 },
    { "ca3f800000",         false, false, 0,                    1 },
    { "cabf000000",         false, false, 0,                    -0.5 },
    { "cb3ff8000000000000", false, false, 0,                    1.5 },
    { "cb41d954fc40200000", false, false, 0,                    1700000000.5 },
    { "cb7ff0000000000000", false, false, 0,                    INFINITY },
};
/* clang-format on */

static void check_number(const struct want *want, kvb_span value)
{
    const bool is_u64 = want->is_integer && !want->is_negative;
    const bool is_u32 = is_u64 && want->bits <= UINT32_MAX;
    struct kvb_mp_cursor cursor = kvb_mp_cursor_of(value);
    uint64_t bits = 77;
    uint64_t large = 77;
    uint32_t small = 77;
    double number = 77;

    /* a refused read does not move, so the next read finds the value again */
    assert_int_equal(kvb_mp_take_u32(&cursor, &small), is_u32 ? KVB_OK : KVB_BAD_INPUT);
    assert_true(cursor.at == value.data + (is_u32 ? value.len : 0));
    cursor.at = value.data;
    assert_int_equal(kvb_mp_take_u64(&cursor, &large), is_u64 ? KVB_OK : KVB_BAD_INPUT);
    assert_true(cursor.at == value.data + (is_u64 ? value.len : 0));
    cursor.at = value.data;
    assert_int_equal(kvb_mp_take_bits(&cursor, &bits), want->is_integer ? KVB_OK : KVB_BAD_INPUT);
    assert_true(cursor.at == value.data + (want->is_integer ? value.len : 0));
    cursor.at = value.data;
    assert_ok(kvb_mp_take_number(&cursor, &number));
    assert_true(cursor.at == cursor.end);
    assert_true(bits == (want->is_integer ? want->bits : 77));
    assert_true(large == (is_u64 ? want->bits : 77));
    assert_true(small == (is_u32 ? want->bits : 77));
    assert_true(number == want->number);
}

static void takes_numbers_of_every_width_at_their_borders(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        size_t len = 0;
        uint8_t *bytes = bytes_of_hex(numbers[i].hex, &len);
        check_number(&numbers[i], (kvb_span){ bytes, len });
        free(bytes);
    }
}

/* Numbers of every width in random order: reading them as a list gives the same as one by one, up
 * to the end and not beyond. A list that is truncated or contains another value is refused. */
static size_t put_number(uint8_t *at, uint64_t *rng, uint32_t *out_value)
{
    *rng = *rng * UINT64_C(6364136223846793005) + 1442695040888963407;
    const uint32_t value = (uint32_t)(*rng >> 32);
    /* wider than necessary, as some engines write them */
    const unsigned bytes = 1U << (*rng >> 30 & 3);

    switch (bytes) {
    case 1:
        *out_value = value & 0x7f;
        *at = (uint8_t)*out_value;
        return 1;
    case 2:
        *out_value = value & 0xff;
        at[0] = 0xcc;
        at[1] = (uint8_t)*out_value;
        return 2;
    case 4:
        *out_value = value & 0xffff;
        at[0] = 0xcd;
        at[1] = (uint8_t)(*out_value >> 8);
        at[2] = (uint8_t)*out_value;
        return 3;
    default:
        *out_value = value;
        at[0] = 0xce;
        for (unsigned i = 0; i < 4; i++) {
            at[1 + i] = (uint8_t)(value >> (24 - 8 * i));
        }
        return 5;
    }
}

static void takes_lists_of_numbers_and_nothing_else(void **state)
{
    enum { count = 40 };
    uint64_t rng = 1;

    (void)state;
    for (int round = 0; round < 2000; round++) {
        uint32_t want[count];
        uint32_t got[count];
        uint8_t made[5 * count];
        size_t starts[count];
        size_t len = 0;
        for (size_t i = 0; i < count; i++) {
            starts[i] = len;
            len += put_number(made + len, &rng, &want[i]);
        }
        uint8_t *bytes = malloc(len); /* no byte more: the sanitizers see a read beyond the end */
        assert_non_null(bytes);
        memcpy(bytes, made, len);
        struct kvb_mp_cursor cursor = kvb_mp_cursor_of((kvb_span){ bytes, len });
        assert_ok(kvb_mp_take_u32s(&cursor, count, got));
        assert_true(cursor.at == cursor.end);
        assert_memory_equal(got, want, sizeof want);

        const size_t cut = (size_t)(rng >> 40) % len;
        cursor = (struct kvb_mp_cursor){ bytes, bytes + cut };
        assert_int_equal(kvb_mp_take_u32s(&cursor, count, got), KVB_BAD_INPUT);
        assert_true(cursor.at == bytes);

        static const uint8_t others[] = { 0xc0, 0x80, 0x91, 0xa1, 0xcb, 0xd0, 0xff, 0xe0, 0xc1 };
        bytes[starts[rng >> 50 & 31]] = others[(size_t)round % sizeof others];
        cursor = kvb_mp_cursor_of((kvb_span){ bytes, len });
        if (kvb_mp_take_u32s(&cursor, count, got) == KVB_OK) {
            /* 0xd0: a non-negative signed byte is a number too */
            assert_int_equal(others[(size_t)round % sizeof others], 0xd0);
        }
        free(bytes);
    }
}

/* Gives each reader the same signature. */
typedef kvb_status (*taker)(struct kvb_mp_cursor *cursor);

#define TAKER(name, type)                                                                          \
    static kvb_status name(struct kvb_mp_cursor *cursor)                                           \
    {                                                                                              \
        type value;                                                                                \
        return kvb_mp_##name(cursor, &value);                                                      \
    }

TAKER(take_bits, uint64_t)
TAKER(take_u64, uint64_t)
TAKER(take_u32, uint32_t)
TAKER(take_number, double)
TAKER(take_text, kvb_span)
TAKER(take_bytes, kvb_span)
TAKER(take_array, uint32_t)
TAKER(take_map, uint32_t)

static kvb_status take_nil(struct kvb_mp_cursor *cursor)
{
    return kvb_mp_take_nil(cursor) ? KVB_OK : KVB_BAD_INPUT;
}

enum { taker_count = 9 };

static const struct {
    taker take;
    const char *values[10]; /* one value of each width of its type */
} takers[taker_count] = {
    { take_nil, { "c0" } },
    { take_bits, { "01", "ff", "cc01", "cd0001", "ce00000001", "cf0000000000000001", "d001" } },
    { take_u64, { "01", "cc01", "cd0001", "ce00000001", "cf0000000000000001", "d10001" } },
    { take_u32, { "01", "cc01", "cd0001", "ce00000001", "cf0000000000000001", "d200000001" } },
    { take_number, { "ca00000000", "cb0000000000000000", "d30000000000000001", "05" } },
    { take_text, { "a0", "a161", "d90161", "da000161", "db0000000161" } },
    { take_bytes, { "c400", "c40161", "c5000161", "c60000000161" } },
    { take_array, { "90", "9f", "dc0001", "dd00000001" } },
    { take_map, { "80", "8f", "de0001", "df00000001" } },
};

/* Reads each from a heap copy of exactly that length, so that ASan sees a read beyond it. */
static void refuses_a_value_cut_at_any_byte_and_stays(void **state)
{
    (void)state;
    for (size_t i = 0; i < taker_count; i++) {
        for (const char *const *hex = takers[i].values; *hex; hex++) {
            size_t len = 0;
            uint8_t *bytes = bytes_of_hex(*hex, &len);
            for (size_t cut = 0; cut <= len; cut++) {
                uint8_t *copy = malloc(cut ? cut : 1);
                assert_non_null(copy);
                memcpy(copy, bytes, cut);
                struct kvb_mp_cursor cursor = kvb_mp_cursor_of((kvb_span){ copy, cut });
                assert_int_equal(takers[i].take(&cursor), cut == len ? KVB_OK : KVB_BAD_INPUT);
                assert_true(cursor.at == copy + (cut == len ? len : 0));
                free(copy);
            }
            free(bytes);
        }
    }
}

SUITE(mp_cursor)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(takes_numbers_of_every_width_at_their_borders),
        cmocka_unit_test(takes_lists_of_numbers_and_nothing_else),
        cmocka_unit_test(refuses_a_value_cut_at_any_byte_and_stays),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
