#include "kvb_test.h"

#include "wire/msgpack/small_integers.h"

#include <stdlib.h>
#include <string.h>

enum { count_max = 64, bytes_max = 5 * count_max, margin = 24 };

/* A plain reference: reads one integer, returns how many bytes it has, 0: another kind of value, or
 * cut off. */
static size_t read_small_integer(const uint8_t *at, size_t len, uint32_t *out)
{
    static const size_t widths[] = { [0xcc - 0xcc] = 1, [0xcd - 0xcc] = 2, [0xce - 0xcc] = 4 };

    if (len == 0) {
        return 0;
    }
    if (*at < 0x80) {
        *out = *at;
        return 1;
    }
    if (*at < 0xcc || *at > 0xce || len < 1 + widths[*at - 0xcc]) {
        return 0;
    }
    *out = 0;
    for (size_t i = 0; i < widths[*at - 0xcc]; i++) {
        *out = *out << 8 | at[1 + i];
    }
    return 1 + widths[*at - 0xcc];
}

/* Takes a list, compares each integer and where the list ends with the reference; where the reading
 * stopped early, there is a reason for it. */
static void check(kvb_small_integers *take, const uint8_t *bytes, size_t len, uint32_t count)
{
    uint32_t got[count_max];
    size_t got_len = 0;
    const uint32_t taken = take(bytes, len, count, got, &got_len);
    size_t at = 0;

    assert_in_range(taken, 0, count);
    for (uint32_t i = 0; i < taken; i++) {
        uint32_t want = 0;
        const size_t read = read_small_integer(bytes + at, len - at, &want);
        assert_int_not_equal(read, 0);
        assert_int_equal(got[i], want);
        at += read;
    }
    assert_int_equal(got_len, at);
    uint32_t next = 0;
    if (taken < count && len - at > margin) {
        assert_int_equal(read_small_integer(bytes + at, len - at, &next), 0);
    }
}

/* Bytes in a buffer of their own: the sanitizers watch its end. */
static void check_both(const uint8_t *made, size_t len, uint32_t count)
{
    uint8_t *bytes = malloc(len + 1);

    assert_non_null(bytes);
    uint8_t *at = bytes + 1; /* not aligned */
    memcpy(at, made, len);
    check(kvb_small_integers_scalar, at, len, count);
    check(kvb_small_integers_best(), at, len, count);
    free(bytes);
}

static uint32_t draw(uint64_t *rng)
{
    *rng = *rng * UINT64_C(6364136223846793005) + 1442695040888963407;
    return (uint32_t)(*rng >> 32);
}

/* A random integer in a random form; one in `other_in` is of another kind (0: none). */
static size_t put_random(uint8_t *at, uint64_t *rng, uint32_t other_in)
{
    static const uint8_t codes[] = { 0x00, 0xcc, 0xcd, 0xce };
    static const size_t lens[] = { 1, 2, 3, 5 };
    const uint32_t form = draw(rng) % 4;

    for (size_t i = 0; i < lens[form]; i++) {
        at[i] = (uint8_t)draw(rng);
    }
    at[0] = form == 0 ? at[0] & 0x7f : codes[form];
    if (other_in > 0 && draw(rng) % other_in == 0) {
        at[0] = (uint8_t)(0x80 + draw(rng) % 0x80);
    }
    return lens[form];
}

static void reads_what_the_reference_reads(void **state)
{
    uint64_t rng = 1;

    (void)state;
    for (int round = 0; round < 20000; round++) {
        uint8_t made[bytes_max];
        const uint32_t count = draw(&rng) % (count_max + 1);
        const uint32_t other_in = round % 2 == 0 ? 0 : 1 + draw(&rng) % count_max;
        size_t len = 0;
        for (uint32_t i = 0; i < count; i++) {
            len += put_random(made + len, &rng, other_in);
        }
        const size_t cut = len == 0 ? 0 : draw(&rng) % len;
        check_both(made, len, count);
        check_both(made, cut, count);
    }
}

static void reads_any_bytes_as_the_reference_does(void **state)
{
    uint64_t rng = 2;

    (void)state;
    for (int round = 0; round < 20000; round++) {
        uint8_t made[bytes_max];
        for (size_t i = 0; i < sizeof made; i++) {
            made[i] = (uint8_t)draw(&rng);
        }
        check_both(made, draw(&rng) % sizeof made, draw(&rng) % (count_max + 1));
    }
}

/* Each code that is none, at each of four places: nothing from it on is read. */
static void stops_before_every_other_code(void **state)
{
    (void)state;
    for (unsigned code = 0x80; code <= 0xff; code++) {
        for (size_t place = 0; place < 8; place++) {
            uint8_t made[bytes_max] = { 0 };
            uint32_t got[8];
            size_t len = 0;
            if (code >= 0xcc && code <= 0xce) {
                continue;
            }
            made[place] = (uint8_t)code;
            assert_int_equal(kvb_small_integers_best()(made, sizeof made, 8, got, &len), place);
            assert_int_equal(len, place);
        }
    }
}

SUITE(small_integers)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reads_what_the_reference_reads),
        cmocka_unit_test(reads_any_bytes_as_the_reference_does),
        cmocka_unit_test(stops_before_every_other_code),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
