#include "kvb_test.h"

#include "core/hash.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The first value of the vectors: xxh3("test data", seed 1337) | N */
static uint64_t read_first_vector(void)
{
    char line[256];
    FILE *file = fopen(KVB_DATA "/vectors/hashes.txt", "re");

    assert_non_null(file);
    do {
        assert_non_null(fgets(line, sizeof line, file));
    } while (line[0] == '#' || line[0] == '\n');
    (void)fclose(file);
    assert_non_null(strstr(line, "xxh3(\"test data\", seed 1337) | "));
    return strtoull(strrchr(line, '|') + 1, NULL, 10);
}

static void agrees_with_the_published_vector(void **state)
{
    (void)state;
    assert_true(kvb_hash64(kvb_span_of("test data"), 1337) == read_first_vector());
}

/* The values that XXH3's own documentation gives for no input at all. */
static void hashes_empty_input_as_xxh3_does(void **state)
{
    (void)state;
    const kvb_span nothing = { 0 };
    const struct kvb_hash128 wide = kvb_hash128(nothing, 0);

    assert_true(kvb_hash64(nothing, 0) == UINT64_C(0x2d06800538d394c2));
    assert_true(wide.low == UINT64_C(0x6001c324468d497f));
    assert_true(wide.high == UINT64_C(0x99aa06d3014798d8));
}

/* Lengths around every limit at which XXH3 changes its algorithm, split at every position. */
static void parts_hash_as_their_concatenation(void **state)
{
    (void)state;
    enum { max_bytes = 1100, few = 300 };
    uint8_t bytes[max_bytes];

    for (size_t i = 0; i < max_bytes; i++) {
        bytes[i] = (uint8_t)(i * 7 + i / 256);
    }
    for (size_t len = 0; len <= max_bytes; len += len < few ? 1 : 50) {
        const uint64_t whole = kvb_hash64((kvb_span){ bytes, len }, 1337);
        for (size_t cut = 0; cut <= len; cut += len < few ? 1 : 50) {
            const kvb_span parts[] = { { bytes, cut }, { NULL, 0 }, { bytes + cut, len - cut } };
            assert_true(kvb_hash64_parts(parts, 3, 1337) == whole);
        }
        assert_true(kvb_hash64_parts(&(kvb_span){ bytes, len }, 1, 1338) != whole);
    }
    assert_true(kvb_hash64_parts(NULL, 0, 1337) == kvb_hash64((kvb_span){ 0 }, 1337));
}

static void words_hash_as_their_bytes(void **state)
{
    (void)state;
    const uint64_t words[] = { 1, UINT64_MAX, UINT64_C(0x123456789abcdef0) };
    const kvb_span two = { (const uint8_t *)words, 2 * sizeof words[0] };
    const kvb_span three = { (const uint8_t *)words, sizeof words };

    for (uint64_t seed = 0; seed < 3; seed++) {
        const struct kvb_hash128 wide = kvb_hash128(three, seed);
        const struct kvb_hash128 of_words = kvb_hash128_triple(words, seed);
        assert_true(kvb_hash64_pair(words, seed) == kvb_hash64(two, seed));
        assert_true(of_words.low == wide.low && of_words.high == wide.high);
    }
}

SUITE(hash)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(agrees_with_the_published_vector),
        cmocka_unit_test(hashes_empty_input_as_xxh3_does),
        cmocka_unit_test(parts_hash_as_their_concatenation),
        cmocka_unit_test(words_hash_as_their_bytes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
