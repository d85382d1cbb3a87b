#include "kvb_test.h"

#include "core/hash.h"
#include "core/limits.h"
#include "index/block_hash.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Every line of vectors/hashes.txt, "input | value", is computed from its own text,
 * so that a line that is added there is tested here. */

enum { max_numbers = 64, vector_lines = 20 };

struct numbers {
    uint64_t values[max_numbers];
    size_t count;
};

static kvb_span span_of(const char *text, size_t len)
{
    return (kvb_span){ (const uint8_t *)text, len };
}

/* ---- Reading a line ---- */

/* "1,2" or "0..3" or "0xDEADBEEF,7" up to the first other character. */
static const char *read_numbers(const char *text, struct numbers *out_numbers)
{
    *out_numbers = (struct numbers){ 0 };
    for (;;) {
        char *end = NULL;
        const uint64_t first = strtoull(text, &end, 0);
        const uint64_t last = strncmp(end, "..", 2) == 0 ? strtoull(end + 2, &end, 0) : first;

        for (uint64_t value = first; value <= last; value++) {
            assert_true(out_numbers->count < max_numbers);
            out_numbers->values[out_numbers->count++] = value;
        }
        if (*end != ',') {
            return end;
        }
        text = end + 1;
    }
}

/* The text in quotes after `word`, or an empty one. */
static kvb_span quoted(const char *text, const char *word)
{
    const char *at = strstr(text, word);

    if (!at) {
        return (kvb_span){ 0 };
    }
    const char *begin = strchr(at, '"') + 1;
    return span_of(begin, (size_t)(strchr(begin, '"') - begin));
}

static uint64_t seed_in(const char *input)
{
    return kvb_block_seed(quoted(input, "lora "), quoted(input, "salt "));
}

static kvb_tokens_hash
hash_numbers(const struct numbers *tokens, const struct numbers *keys, uint64_t seed)
{
    uint32_t ids[max_numbers];

    for (size_t i = 0; i < tokens->count; i++) {
        ids[i] = (uint32_t)tokens->values[i];
    }
    return kvb_tokens_hash_of(ids, tokens->count, keys->values, keys->count, seed);
}

/* ---- One function a kind of line ---- */

static void check_plain(const char *input, const struct numbers *expected)
{
    const kvb_span text = quoted(input, "xxh3");

    assert_int_equal(kvb_hash64(text, 1337), expected->values[0]);
}

static void check_tokens(const char *input, const struct numbers *expected)
{
    struct numbers tokens;
    struct numbers keys = { 0 };
    const char *mm = strstr(input, "mm {");

    (void)read_numbers(strchr(input, '[') + 1, &tokens);
    if (mm) {
        (void)read_numbers(strchr(mm, '{') + 1, &keys);
    }
    assert_int_equal(hash_numbers(&tokens, &keys, seed_in(input)).value, expected->values[0]);
}

static void check_rolling(const char *input, const struct numbers *expected)
{
    const struct numbers no_keys = { 0 };
    kvb_block_hash rolling = { 0 };
    size_t blocks = 0;

    for (const char *at = strchr(input, '['); at; at = strchr(at, '[')) {
        struct numbers tokens;
        at = read_numbers(at + 1, &tokens);
        const kvb_tokens_hash hash = hash_numbers(&tokens, &no_keys, seed_in(""));
        rolling = blocks == 0 ? kvb_block_hash_root(hash) : kvb_block_hash_next(rolling, hash);
        blocks++;
    }
    assert_true(blocks >= 2);
    assert_int_equal(rolling.value, expected->values[0]);
}

static void check_seed(const char *input, const struct numbers *expected)
{
    assert_int_equal(seed_in(input), expected->values[0]);
}

/* Windows of block_size + 1 tokens, block_size apart. */
static void check_eagle(const char *input, const struct numbers *expected)
{
    struct numbers tokens;
    struct numbers size;
    const struct numbers no_keys = { 0 };

    (void)read_numbers(strstr(input, "block ") + 6, &size);
    (void)read_numbers(strstr(input, "tokens ") + 7, &tokens);
    const size_t block_size = size.values[0];
    assert_int_equal((tokens.count - 1) / block_size, expected->count);
    for (size_t i = 0; i < expected->count; i++) {
        struct numbers window = { .count = block_size + 1 };
        for (size_t j = 0; j < window.count; j++) {
            window.values[j] = tokens.values[i * block_size + j];
        }
        assert_int_equal(hash_numbers(&window, &no_keys, seed_in("")).value, expected->values[i]);
    }
}

static const struct {
    const char *begin;
    void (*check)(const char *input, const struct numbers *expected);
} kinds[] = {
    { "xxh3(", check_plain },
    { "tokens_hash ", check_tokens },
    { "seq hash after ", check_rolling },
    { "seed for ", check_seed },
    { "eagle ", check_eagle },
};

static void check_line(char *line)
{
    struct numbers expected = { 0 };
    char *bar = strstr(line, " | ");

    assert_non_null(bar);
    *bar = '\0';
    (void)read_numbers(bar + 3, &expected);
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        if (strncmp(line, kinds[i].begin, strlen(kinds[i].begin)) == 0) {
            kinds[i].check(line, &expected);
            return;
        }
    }
    fail_msg("no check for: %s", line);
}

static void every_vector_holds(void **state)
{
    (void)state;
    FILE *file = fopen(KVB_DATA "/vectors/hashes.txt", "r");
    char line[512];
    size_t lines = 0;

    assert_non_null(file);
    while (fgets(line, sizeof line, file)) {
        if (line[0] != '#' && line[0] != '\n') {
            check_line(line);
            lines++;
        }
    }
    assert_int_equal(fclose(file), 0);
    assert_true(lines >= vector_lines);
}

/* ---- What the vectors do not cover ---- */

static void empty_names_are_no_names(void **state)
{
    (void)state;
    assert_int_equal(kvb_block_seed(span_of("", 0), span_of("", 0)), 1337);
}

static void a_name_is_not_a_salt(void **state)
{
    (void)state;
    assert_int_not_equal(
        kvb_block_seed(span_of("a", 1), (kvb_span){ 0 }),
        kvb_block_seed((kvb_span){ 0 }, span_of("a", 1)));
}

static void the_order_of_keys_does_not_matter(void **state)
{
    (void)state;
    const uint32_t tokens[] = { 1, 2, 3 };
    const uint64_t one[] = { 9, 1, 5, 5 };
    const uint64_t other[] = { 5, 9, 5, 1 };

    assert_int_equal(
        kvb_tokens_hash_of(tokens, 3, one, 4, 1337).value,
        kvb_tokens_hash_of(tokens, 3, other, 4, 1337).value);
    assert_int_not_equal(
        kvb_tokens_hash_of(tokens, 3, one, 4, 1337).value,
        kvb_tokens_hash_of(tokens, 3, one, 3, 1337).value);
}

static void the_most_keys_a_block_may_have_are_hashed(void **state)
{
    (void)state;
    const uint32_t token = 7;
    uint64_t down[kvb_max_block_keys];
    uint64_t up[kvb_max_block_keys];

    for (size_t i = 0; i < kvb_max_block_keys; i++) {
        up[i] = i;
        down[kvb_max_block_keys - 1 - i] = i;
    }
    assert_int_equal(
        kvb_tokens_hash_of(&token, 1, up, kvb_max_block_keys, 1).value,
        kvb_tokens_hash_of(&token, 1, down, kvb_max_block_keys, 1).value);
}

static void a_prompt_is_hashed_in_complete_blocks(void **state)
{
    (void)state;
    const uint32_t tokens[] = { 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11 };
    kvb_tokens_hash hashes[3] = { { 0 }, { 0 }, { 42 } };

    assert_int_equal(
        kvb_tokens_hash_prompt(tokens, 11, (struct kvb_block_shape){ 4, 0 }, 1337, hashes), 2);
    assert_int_equal(hashes[0].value, UINT64_C(14643705804678351452));
    assert_int_equal(hashes[1].value, UINT64_C(16777012769546811212));
    assert_int_equal(hashes[2].value, 42);
}

static void a_short_prompt_has_no_block(void **state)
{
    (void)state;
    const uint32_t tokens[] = { 1, 2, 3 };
    kvb_tokens_hash hash = { 42 };

    assert_int_equal(
        kvb_tokens_hash_prompt(tokens, 3, (struct kvb_block_shape){ 4, 0 }, 1337, &hash), 0);
    assert_int_equal(
        kvb_tokens_hash_prompt(tokens, 0, (struct kvb_block_shape){ 4, 0 }, 1337, &hash), 0);
    assert_int_equal(
        kvb_tokens_hash_prompt(tokens, 3, (struct kvb_block_shape){ 0, 0 }, 1337, &hash), 0);
    assert_int_equal(hash.value, 42);
}

SUITE(block_hash)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_vector_holds),
        cmocka_unit_test(empty_names_are_no_names),
        cmocka_unit_test(a_name_is_not_a_salt),
        cmocka_unit_test(the_order_of_keys_does_not_matter),
        cmocka_unit_test(the_most_keys_a_block_may_have_are_hashed),
        cmocka_unit_test(a_prompt_is_hashed_in_complete_blocks),
        cmocka_unit_test(a_short_prompt_has_no_block),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
