#include "kvb_test.h"

#include "index/usable.h"

#include <stdlib.h>
#include <string.h>

enum { max_blocks = 24, block_size = 16 };

/* What the groups of a stream hold of a prompt: held[w][i] for block i and window w. */
struct world {
    struct kvb_heartbeat beat;
    bool held[kvb_max_windows][max_blocks];
    size_t count, full; /* blocks, and those that full attention holds */
};

static bool world_has(const void *context, size_t at, unsigned window)
{
    const struct world *world = context;

    assert_true(at < world->count);
    return world->held[window][at];
}

static size_t usable_of_world(const struct world *world, size_t most)
{
    const struct kvb_usable_prompt prompt = {
        .count = world->count, .held = world->full, .has = world_has, .context = world
    };

    return kvb_usable_blocks(&world->beat, &prompt, most);
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

/* ---- All lengths, one by one ----
 *
 * Each group accepts a length or not; the longest that all accept counts. */

static size_t step_of(const struct world *world)
{
    size_t step = 1; /* sizes are 1, 2 and 3 */

    for (size_t i = 0; i < world->beat.window_count; i++) {
        step = step % world->beat.windows[i].size == 0 ? step : step * world->beat.windows[i].size;
    }
    return step;
}

static bool has_all(const struct world *world, unsigned window, size_t from, size_t to)
{
    bool has = true;

    for (size_t at = from; at < to; at++) { /* in blocks of the group */
        const size_t last = (at + 1) * world->beat.windows[window].size - 1;
        has = has && last < world->count && world->held[window][last];
    }
    return has;
}

static bool window_accepts(const struct world *world, unsigned i, size_t length, size_t most)
{
    const struct kvb_window_rule *rule = &world->beat.windows[i];
    const bool is_alone = world->beat.window_count == 1 && world->beat.is_without_full;
    const size_t end = length / rule->size;

    if (rule->is_chunked) {
        const size_t chunk = rule->tokens / block_size;
        return has_all(world, i, length / chunk * chunk, length);
    }
    const size_t need = kvb_window_need(rule->tokens, block_size * rule->size);
    return (!is_alone || end + rule->drop <= most / rule->size) &&
           has_all(world, i, end > need ? end - need : 0, end + rule->drop);
}

static bool accepts(const struct world *world, size_t length, size_t most)
{
    const size_t drop = world->beat.speculative_drop;
    const size_t margin = world->beat.window_count > 0 ? drop : 0;
    const bool is_within =
        length + drop <= world->full && (most == SIZE_MAX || length + drop <= most + margin);
    bool is_accepted = world->beat.is_without_full || is_within;

    for (unsigned i = 0; i < world->beat.window_count; i++) {
        is_accepted = is_accepted && window_accepts(world, i, length, most);
    }
    return is_accepted;
}

static size_t try_all(const struct world *world, size_t most)
{
    for (size_t length = most < world->count ? most : world->count; length > 0; length--) {
        if (length % step_of(world) == 0 && accepts(world, length, most)) {
            return length;
        }
    }
    return 0;
}

static unsigned pick(unsigned *seed, unsigned count)
{
    return (unsigned)rand_r(seed) % count;
}

/* One window at most drops, and only where all sizes are equal: what vLLM does to others depends on
 * the order of its groups. */
static struct world random_world(unsigned *seed)
{
    struct world world = { .beat = { .block_size = block_size,
                                     .window_count = pick(seed, 4),
                                     .speculative_drop = pick(seed, 3) } };
    const bool has_sizes = pick(seed, 3) == 0;
    const unsigned percent = pick(seed, 101);

    world.count = pick(seed, max_blocks + 1);
    for (unsigned i = 0; i < world.beat.window_count; i++) {
        struct kvb_window_rule *rule = &world.beat.windows[i];
        rule->size = has_sizes ? 1 + pick(seed, 3) : 1;
        rule->is_chunked = !has_sizes && pick(seed, 3) == 0;
        rule->tokens = rule->is_chunked ? block_size * (1 + pick(seed, 5)) : 2 + pick(seed, 100);
        rule->drop = i == 0 && !has_sizes && !rule->is_chunked ? pick(seed, 3) : 0;
        world.beat.window_tokens = rule->tokens;
        for (size_t at = 0; at < world.count; at++) {
            world.held[i][at] = pick(seed, 100) < percent;
        }
    }
    world.beat.is_without_full = world.beat.window_count > 0 && pick(seed, 3) == 0;
    world.full = world.beat.is_without_full ? 0 : pick(seed, (unsigned)world.count + 1);
    world.beat.speculative_drop *= !world.beat.is_without_full;
    return world;
}

static void agrees_with_trying_all_lengths(void **state)
{
    (void)state;
    unsigned seed = 20261128;

    for (int round = 0; round < 200000; round++) {
        const struct world world = random_world(&seed);
        const size_t most = pick(&seed, 3) == 0 ? SIZE_MAX : pick(&seed, max_blocks + 2);
        const size_t got = usable_of_world(&world, most);
        const size_t want = try_all(&world, most);
        if (got != want) {
            fail_msg("round %d: %zu, not %zu", round, got, want);
        }
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

SUITE(usable)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_window_reaches_back_from_the_next_token),
        cmocka_unit_test(agrees_with_trying_all_lengths),
        cmocka_unit_test(a_request_computes_its_last_token),
        cmocka_unit_test(a_request_of_pairs_computes_its_last_pair),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
