#include "kvb_test.h"

#include "core/hash.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static kvb_span span_of(const char *text)
{
    return (kvb_span){ .data = (const uint8_t *)text, .len = strlen(text) };
}

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
    assert_true(kvb_hash64(span_of("test data"), 1337) == read_first_vector());
}

/* The values that XXH3's own documentation gives for no input at all. */
static void hashes_nothing_as_xxh3_does(void **state)
{
    (void)state;
    const kvb_span nothing = { 0 };
    const struct kvb_hash128 wide = kvb_hash128(nothing, 0);

    assert_true(kvb_hash64(nothing, 0) == UINT64_C(0x2d06800538d394c2));
    assert_true(wide.low == UINT64_C(0x6001c324468d497f));
    assert_true(wide.high == UINT64_C(0x99aa06d3014798d8));
}

static void seed_and_every_byte_matter(void **state)
{
    (void)state;
    assert_true(kvb_hash64(span_of("abc"), 0) != kvb_hash64(span_of("abc"), 1));
    assert_true(kvb_hash64(span_of("abc"), 0) != kvb_hash64(span_of("abd"), 0));
    assert_true(kvb_hash128(span_of("abc"), 0).low != kvb_hash128(span_of("abc"), 1).low);
    assert_true(kvb_hash128(span_of("abc"), 0).high != kvb_hash128(span_of("abd"), 0).high);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(agrees_with_the_published_vector),
        cmocka_unit_test(hashes_nothing_as_xxh3_does),
        cmocka_unit_test(seed_and_every_byte_matter),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
