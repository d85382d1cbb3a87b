#include "kvb_test.h"

#include "core/status.h"
#include "kvaggregator/answers/query_context.h"

#include <stdlib.h>

enum { max_blocks = 40 };

/* A window list with the marked blocks, of a prompt whose block i has the name 100 + i. */
struct prompt {
    kvb_block_hash names[max_blocks];
    struct kvb_block_set window;
};

static struct prompt prompt_of(const bool *is_held, size_t count)
{
    struct prompt prompt;

    kvb_block_set_init(&prompt.window, max_blocks, 0);
    for (size_t i = 0; i < count; i++) {
        prompt.names[i].value = 100 + i;
        if (is_held[i]) {
            assert_ok(kvb_block_set_add(&prompt.window, prompt.names[i], NULL));
        }
    }
    return prompt;
}

/* held: '1' for a block in the window list, '0' for one that is not. */
static size_t usable(const char *held, size_t need)
{
    bool is_held[max_blocks];
    size_t count = 0;

    for (; held[count]; count++) {
        is_held[count] = held[count] == '1';
    }
    struct prompt prompt = prompt_of(is_held, count);
    const size_t blocks = kvb_usable_blocks(&prompt.window, prompt.names, count, need);
    kvb_block_set_clear(&prompt.window);
    return blocks;
}

static void the_window_reaches_back_from_the_next_token(void **state)
{
    (void)state;
    assert_int_equal(kvb_window_need(64, 16), 4); /* the 63 tokens before it */
    assert_int_equal(kvb_window_need(65, 16), 4);
    assert_int_equal(kvb_window_need(66, 16), 5);
    assert_int_equal(kvb_window_need(49, 16), 3);
    assert_int_equal(kvb_window_need(17, 16), 1);
    assert_int_equal(kvb_window_need(2, 16), 1);
    assert_int_equal(kvb_window_need(1, 16), 0); /* only the token itself */
    assert_int_equal(kvb_window_need(0, 16), 0);
    assert_int_equal(kvb_window_need(UINT32_MAX, 1), UINT32_MAX - 1);
}

static void a_prefix_ends_with_the_last_run_that_is_long_enough(void **state)
{
    (void)state;
    assert_int_equal(usable("11001101", 2), 6);
    assert_int_equal(usable("00000111", 2), 8);
    assert_int_equal(usable("00110000", 2), 4);
    assert_int_equal(usable("00000001", 1), 8);
    assert_int_equal(usable("11111111", 3), 8);
}

static void without_such_a_run_it_ends_with_the_run_at_the_beginning(void **state)
{
    (void)state;
    assert_int_equal(usable("10001001", 2), 1);
    assert_int_equal(usable("11011011", 3), 2);
    assert_int_equal(usable("01000000", 2), 0);
    assert_int_equal(usable("111", 4), 3); /* the prompt is shorter than the window */
    assert_int_equal(usable("", 4), 0);
    assert_int_equal(usable("0000", 1), 0);
}

static void a_window_of_one_token_needs_nothing(void **state)
{
    (void)state;
    assert_int_equal(usable("000", 0), 3);
}

static void a_missing_list_counts_as_empty(void **state)
{
    (void)state;
    const kvb_block_hash names[] = { { 1 }, { 2 } };

    assert_int_equal(kvb_usable_blocks(NULL, names, 2, 1), 0);
    assert_int_equal(kvb_usable_blocks(NULL, names, 2, 0), 2);
}

/* The definition, by trying all prefixes: a prefix can be used if the blocks that its window
 * reaches back to are held, as far as the prompt goes. The longest such prefix counts. */
static size_t brute_force(const bool *is_held, size_t count, size_t need)
{
    for (size_t end = count; end > 0; end--) {
        bool is_usable = true;
        for (size_t at = end > need ? end - need : 0; at < end; at++) {
            is_usable = is_usable && is_held[at];
        }
        if (is_usable) {
            return end;
        }
    }
    return 0;
}

static void agrees_with_brute_force(void **state)
{
    (void)state;
    unsigned seed = 20261122;

    for (int round = 0; round < 100000; round++) {
        bool is_held[max_blocks];
        const size_t count = (size_t)rand_r(&seed) % max_blocks;
        const size_t need = (size_t)rand_r(&seed) % 6;
        const unsigned percent = (unsigned)rand_r(&seed) % 101;
        for (size_t i = 0; i < count; i++) {
            is_held[i] = (unsigned)rand_r(&seed) % 100 < percent;
        }
        struct prompt prompt = prompt_of(is_held, count);
        assert_int_equal(
            kvb_usable_blocks(&prompt.window, prompt.names, count, need),
            brute_force(is_held, count, need));
        kvb_block_set_clear(&prompt.window);
    }
}

static void a_request_computes_its_last_token(void **state)
{
    (void)state;
    assert_int_equal(kvb_hit_blocks_max(0, 16, false), 0);
    assert_int_equal(kvb_hit_blocks_max(16, 16, false), 0);
    assert_int_equal(kvb_hit_blocks_max(17, 16, false), 1);
    assert_int_equal(kvb_hit_blocks_max(32, 16, false), 1);
    assert_int_equal(kvb_hit_blocks_max(33, 16, false), 2);
}

/* n tokens make n - 1 pairs, and the last pair is computed. */
static void a_request_of_pairs_computes_its_last_pair(void **state)
{
    (void)state;
    assert_int_equal(kvb_hit_blocks_max(1, 16, true), 0);
    assert_int_equal(kvb_hit_blocks_max(17, 16, true), 0);
    assert_int_equal(kvb_hit_blocks_max(18, 16, true), 1);
    assert_int_equal(kvb_hit_blocks_max(33, 16, true), 1);
    assert_int_equal(kvb_hit_blocks_max(34, 16, true), 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_window_reaches_back_from_the_next_token),
        cmocka_unit_test(a_prefix_ends_with_the_last_run_that_is_long_enough),
        cmocka_unit_test(without_such_a_run_it_ends_with_the_run_at_the_beginning),
        cmocka_unit_test(a_window_of_one_token_needs_nothing),
        cmocka_unit_test(a_missing_list_counts_as_empty),
        cmocka_unit_test(agrees_with_brute_force),
        cmocka_unit_test(a_request_computes_its_last_token),
        cmocka_unit_test(a_request_of_pairs_computes_its_last_pair),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
