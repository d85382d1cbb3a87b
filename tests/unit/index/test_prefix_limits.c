#include "fail_alloc.h"
#include "kvb_test.h"

#include "core/limits.h"
#include "index/index.h"
#include "index/whole_walk.h"

#include <stdbool.h>
#include <stdlib.h>

/* The index at its limits: a very long prompt, and no memory. */

/* ---- Size ---- */

static void options_out_of_range_are_refused(void **state)
{
    (void)state;
    static const struct kvb_prefix_index_options bad[] = {
        { .max_nodes = 0, .max_slots = 1 },
        { .max_nodes = 1, .max_slots = 0 },
        { .max_nodes = (size_t)kvb_max_index_blocks + 1, .max_slots = 1 },
        { .max_nodes = 1, .max_slots = ((size_t)1 << 20) + 1 },
    };
    struct kvb_prefix_index *index = NULL;

    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        assert_int_equal(kvb_prefix_index_new(&bad[i], &index), KVB_TOO_LARGE);
        assert_null(index);
    }
    kvb_prefix_index_free(NULL);
}

enum { deep = 200000 };

struct long_run {
    struct kvb_index_run run;
    kvb_block_hash *blocks;  /* owned */
    kvb_tokens_hash *tokens; /* owned */
};

/* Blocks with names first_name, first_name + 1 ... and contents 1, 2 ... */
static struct long_run make_long_run(size_t count, uint64_t first_name)
{
    struct long_run made = { .blocks = calloc(count, sizeof *made.blocks),
                             .tokens = calloc(count, sizeof *made.tokens) };

    assert_non_null(made.blocks);
    assert_non_null(made.tokens);
    for (size_t i = 0; i < count; i++) {
        made.blocks[i].value = first_name + i;
        made.tokens[i].value = 1 + i;
    }
    made.run =
        (struct kvb_index_run){ .blocks = made.blocks, .tokens = made.tokens, .count = count };
    return made;
}

static void drop_long_run(struct long_run *made)
{
    free(made->blocks);
    free(made->tokens);
}

static kvb_status count_blocks(void *context, const struct kvb_index_run *run)
{
    *(size_t *)context += run->count;
    return KVB_OK;
}

/* One prompt of 200,000 blocks, in one slot rooted, in another merged from below a placeholder. No
 * function may recurse once for each block. */
static void a_very_deep_prompt_needs_no_deep_stack(void **state)
{
    (void)state;
    const struct kvb_prefix_index_options options = { .max_nodes = 4 * deep + 10, .max_slots = 2 };
    struct long_run rooted = make_long_run(deep, 1);
    struct long_run waiting = make_long_run(deep, deep + 1);
    struct kvb_index_run tail = waiting.run;
    struct kvb_prefix_index *index = NULL;
    kvb_slot_ref slot[2];
    struct kvb_match match = { 0 };
    size_t shown = 0;

    assert_ok(kvb_prefix_index_new(&options, &index));
    assert_ok(kvb_prefix_index_slot_new(index, &slot[0]));
    assert_ok(kvb_prefix_index_slot_new(index, &slot[1]));
    assert_ok(kvb_prefix_index_store(index, slot[0], &rooted.run, NULL));
    tail.has_parent = true;
    tail.parent = *tail.blocks++;
    tail.tokens++;
    tail.count--;
    assert_ok(kvb_prefix_index_store(index, slot[1], &tail, NULL));
    waiting.run.count = 1;
    assert_ok(kvb_prefix_index_store(index, slot[1], &waiting.run, NULL));

    struct kvb_index_counters counters;
    kvb_prefix_index_count(index, &counters);
    assert_int_equal(counters.nodes, deep);
    assert_ok(kvb_prefix_index_match(index, rooted.tokens, deep, &match));
    assert_int_equal(match.level_count, 2);
    assert_int_equal(match.levels[0].depth, deep);
    assert_int_equal(match.levels[1].depth, deep);
    assert_ok(whole_walk(index, slot[1], SIZE_MAX, count_blocks, &shown));
    assert_int_equal(shown, deep);
    kvb_prefix_index_slot_free(index, slot[0]);
    assert_false(kvb_prefix_index_reclaim(index, SIZE_MAX));
    assert_ok(kvb_prefix_index_remove(
        index, slot[1], waiting.blocks, deep - 1, NULL)); /* leaves only the last block */
    kvb_prefix_index_count(index, &counters);
    assert_int_equal(counters.ghosts, deep - 1);
    kvb_prefix_index_slot_clear(index, slot[1]); /* the last block and all its ghosts */
    assert_false(kvb_prefix_index_reclaim(index, SIZE_MAX));
    kvb_prefix_index_count(index, &counters);
    assert_int_equal(counters.nodes, 0);
    kvb_match_done(&match);
    kvb_prefix_index_free(index);
    drop_long_run(&rooted);
    drop_long_run(&waiting);
}

/* ---- Hashes that collide ---- */

/* The tables keep 32 bits of a key's hash. Among 200,000 keys several pairs agree in them, so the
 * index must compare the full key. */

static void repeated_content_along_a_prompt_is_not_confused(void **state)
{
    (void)state;
    const struct kvb_prefix_index_options options = { .max_nodes = deep, .max_slots = 1 };
    struct long_run made = make_long_run(deep, 1);
    struct kvb_prefix_index *index = NULL;
    kvb_slot_ref slot;
    struct kvb_match match = { 0 };
    struct kvb_index_counters counters;

    for (size_t i = 0; i < deep; i++) {
        made.tokens[i].value = 7;
    }
    assert_ok(kvb_prefix_index_new(&options, &index));
    assert_ok(kvb_prefix_index_slot_new(index, &slot));
    assert_ok(kvb_prefix_index_store(index, slot, &made.run, NULL));
    kvb_prefix_index_count(index, &counters);
    assert_int_equal(counters.nodes, deep);
    assert_ok(kvb_prefix_index_match(index, made.tokens, deep, &match));
    assert_int_equal(match.level_count, 1);
    assert_int_equal(match.levels[0].depth, deep);
    kvb_match_done(&match);
    kvb_prefix_index_free(index);
    drop_long_run(&made);
}

static void one_name_in_very_many_slots_is_not_confused(void **state)
{
    (void)state;
    const struct kvb_prefix_index_options options = { .max_nodes = (size_t)6 * deep,
                                                      .max_slots = deep };
    struct long_run made = make_long_run(1, 1);
    struct kvb_prefix_index *index = NULL;
    struct kvb_index_counters counters;

    made.run.has_parent = true;
    made.run.parent.value = 9;
    assert_ok(kvb_prefix_index_new(&options, &index));
    for (size_t s = 0; s < deep; s++) {
        kvb_slot_ref slot;
        assert_ok(kvb_prefix_index_slot_new(index, &slot));
        assert_ok(kvb_prefix_index_store(index, slot, &made.run, NULL));
    }
    kvb_prefix_index_count(index, &counters);
    assert_int_equal(counters.memberships, deep);
    assert_int_equal(counters.duplicate_stored, 0);
    assert_int_equal(counters.nodes, (size_t)2 * deep); /* one placeholder and one block each */
    for (uint32_t s = 0; s < deep; s++) {
        assert_int_equal(kvb_prefix_index_slot_blocks(index, (kvb_slot_ref){ s }), 1);
        kvb_prefix_index_slot_free(index, (kvb_slot_ref){ s });
    }
    assert_false(kvb_prefix_index_reclaim(index, SIZE_MAX));
    kvb_prefix_index_count(index, &counters);
    assert_int_equal(counters.nodes, 0);
    kvb_prefix_index_free(index);
    drop_long_run(&made);
}

/* ---- The ceiling of names ---- */

/* max_nodes bounds contents. Further names of a node are limited to an average of sixteen a node,
 * so an engine that always gives one block new names is refused. */
static void names_have_a_ceiling_of_their_own(void **state)
{
    (void)state;
    enum { names = 32 };
    const struct kvb_prefix_index_options options = { .max_nodes = 2, .max_slots = 1 };
    const kvb_tokens_hash content = { 7 };
    struct kvb_prefix_index *index = NULL;
    kvb_slot_ref slot;
    struct kvb_index_counters counters;
    uint8_t changed = 2;

    assert_ok(kvb_prefix_index_new(&options, &index));
    assert_ok(kvb_prefix_index_slot_new(index, &slot));
    /* with the second name the first becomes an overflow alias */
    for (uint64_t name = 1; name <= names; name++) {
        const kvb_block_hash block = { name };
        const struct kvb_index_run run = { .blocks = &block, .tokens = &content, .count = 1 };
        assert_ok(kvb_prefix_index_store(index, slot, &run, NULL));
    }
    const kvb_block_hash late = { names + 1 };
    const struct kvb_index_run run = { .blocks = &late, .tokens = &content, .count = 1 };
    assert_int_equal(kvb_prefix_index_store(index, slot, &run, &changed), KVB_TOO_LARGE);
    assert_int_equal(changed, 0);
    kvb_prefix_index_count(index, &counters);
    assert_int_equal(counters.refused, 1);
    assert_int_equal(counters.nodes, 1);
    assert_int_equal(counters.memberships, names);
    assert_ok(kvb_prefix_index_remove(index, slot, &(kvb_block_hash){ 1 }, 1, NULL));
    assert_ok(kvb_prefix_index_store(index, slot, &run, &changed));
    assert_int_equal(changed, 1);
    kvb_prefix_index_free(index);
}

/* ---- Every allocation fails once ---- */

/* A call that failed for lack of memory is repeated. It must then succeed, as if it had not failed.
 */
static size_t failures;

static bool must_retry(kvb_status status)
{
    if (status == KVB_NO_MEMORY) {
        failures++;
        return true;
    }
    assert_ok(status);
    return false;
}

static kvb_status run_into(void *context, const struct kvb_index_run *run)
{
    return count_blocks(context, run);
}

static struct kvb_prefix_index *torture_index(kvb_slot_ref slot[2])
{
    const struct kvb_prefix_index_options options = { .max_nodes = 1000, .max_slots = 2 };
    struct kvb_prefix_index *index = NULL;

    while (must_retry(kvb_prefix_index_new(&options, &index))) {
        assert_null(index);
    }
    for (size_t s = 0; s < 2; s++) {
        while (must_retry(kvb_prefix_index_slot_new(index, &slot[s]))) {
        }
    }
    return index;
}

/* Everything that a failed store reports as changed must be held, and nothing else. */
static void
torture_store(struct kvb_prefix_index *index, kvb_slot_ref slot, const struct kvb_index_run *run)
{
    uint8_t changed[200];
    kvb_status status = KVB_OK;

    do {
        size_t came = 0;
        const size_t before = kvb_prefix_index_slot_blocks(index, slot);
        status = kvb_prefix_index_store(index, slot, run, changed);
        for (size_t i = 0; i < run->count; i++) {
            came += changed[i];
        }
        assert_int_equal(kvb_prefix_index_slot_blocks(index, slot), before + came);
    } while (must_retry(status));
}

static void
torture_answers(struct kvb_prefix_index *index, kvb_slot_ref slot, const struct long_run *all)
{
    struct kvb_match match = { 0 };
    size_t shown = 0;

    while (must_retry(kvb_prefix_index_match(index, all->tokens, 150, &match))) {
        assert_int_equal(match.level_count, 0);
    }
    assert_int_equal(match.level_count, 2);
    assert_int_equal(match.levels[0].depth, 100);
    assert_int_equal(match.levels[1].depth, 150);
    kvb_match_done(&match);
    while (must_retry(kvb_prefix_index_match_blocks(index, all->blocks, 150, &match))) {
        assert_int_equal(match.level_count, 0);
    }
    assert_int_equal(match.level_count, 2);
    kvb_match_done(&match);
    while (must_retry(whole_walk(index, slot, SIZE_MAX, run_into, &shown))) {
        shown = 0;
    }
    assert_int_equal(shown, 150);
}

/* Slot 0 gets the beginning of the prompt last, slot 1 gets its first part in order. Slot 0's
 * orphan is the first store of all, so that failures meet empty tables. */
static void torture_life(const struct long_run *all)
{
    kvb_slot_ref slot[2];
    struct kvb_prefix_index *index = torture_index(slot);
    struct kvb_index_run head = all->run;
    struct kvb_index_run tail = all->run;
    struct kvb_index_counters counters;

    head.count = 60;
    tail.has_parent = true;
    tail.parent = all->blocks[59];
    tail.blocks += 60;
    tail.tokens += 60;
    tail.count = 90;
    torture_store(index, slot[0], &tail);
    torture_store(index, slot[0], &head);
    head.count = 100;
    torture_store(index, slot[1], &head);
    torture_answers(index, slot[0], all);
    fail_alloc_after(-1);
    kvb_prefix_index_slot_clear(index, slot[0]);
    kvb_prefix_index_slot_clear(index, slot[1]);
    assert_false(kvb_prefix_index_reclaim(index, SIZE_MAX));
    kvb_prefix_index_count(index, &counters);
    assert_int_equal(counters.nodes, 0);
    assert_int_equal(counters.ghosts, 0);
    assert_int_equal(counters.orphans, 0);
    assert_int_equal(counters.memberships, 0);
    assert_int_equal(counters.stored, counters.removed);
    kvb_prefix_index_free(index);
}

static void every_allocation_may_fail_once(void **state)
{
    (void)state;
    struct long_run all = make_long_run(150, 1000);
    long n = 0;

    do {
        failures = 0;
        fail_alloc_after(n++);
        torture_life(&all);
    } while (failures > 0);
    assert_true(n > 20);
    drop_long_run(&all);
}

static void count_slot(void *context, kvb_slot_ref slot, uint32_t depth)
{
    (void)slot;
    assert_int_equal(depth, 1);
    ++*(size_t *)context;
}

static size_t slots_in(const struct kvb_match *match)
{
    size_t count = 0;

    kvb_match_each(match, count_slot, &count);
    return count;
}

/* So many slots that the answer allocates more than once, and fails half-way. */
static void an_answer_that_ran_out_of_memory_is_empty(void **state)
{
    (void)state;
    enum { many = 100 };
    const struct kvb_prefix_index_options options = { .max_nodes = 10, .max_slots = many };
    struct long_run one = make_long_run(1, 1);
    struct kvb_prefix_index *index = NULL;

    assert_ok(kvb_prefix_index_new(&options, &index));
    for (size_t s = 0; s < many; s++) {
        kvb_slot_ref slot;
        assert_ok(kvb_prefix_index_slot_new(index, &slot));
        assert_ok(kvb_prefix_index_store(index, slot, &one.run, NULL));
    }
    for (long n = 0; n < 2; n++) {
        struct kvb_match match = { 0 };
        fail_alloc_after(n);
        assert_int_equal(kvb_prefix_index_match(index, one.tokens, 1, &match), KVB_NO_MEMORY);
        assert_int_equal(match.level_count, 0);
        fail_alloc_after(n);
        kvb_match_done(&match);
        assert_int_equal(
            kvb_prefix_index_match_blocks(index, one.blocks, 1, &match), KVB_NO_MEMORY);
        assert_int_equal(match.level_count, 0);
        fail_alloc_after(-1);
        /* nothing of the failed query remains */
        assert_ok(kvb_prefix_index_match(index, one.tokens, 1, &match));
        assert_int_equal(slots_in(&match), many);
        assert_ok(kvb_prefix_index_match_blocks(index, one.blocks, 1, &match));
        assert_int_equal(slots_in(&match), many);
        kvb_match_done(&match);
    }
    kvb_prefix_index_free(index);
    drop_long_run(&one);
}

/* Each growth fails once. The index may hide the failure of a table to grow; five failures in a row
 * that it hides mean that all have been tried. */
static void survives_the_failure_of_each_growth(void **state)
{
    (void)state;
    enum { many = 30000 };
    struct long_run all = make_long_run(many, 1);
    const struct kvb_prefix_index_options options = { .max_nodes = many, .max_slots = 2 };
    long n = 0;

    for (long told = 0; n < told + 5;) {
        struct kvb_index_counters counters;
        struct kvb_prefix_index *index = NULL;
        kvb_slot_ref slot[2];
        failures = 0;
        fail_alloc_after(-1);
        assert_ok(kvb_prefix_index_new(&options, &index));
        assert_ok(kvb_prefix_index_slot_new(index, &slot[0]));
        assert_ok(kvb_prefix_index_slot_new(index, &slot[1]));
        fail_alloc_after(n++);
        for (int s = 0; s < 2; s++) {
            while (must_retry(kvb_prefix_index_store(index, slot[s], &all.run, NULL))) {
            }
        }
        fail_alloc_after(-1);
        for (int s = 0; s < 2; s++) {
            assert_int_equal(kvb_prefix_index_slot_blocks(index, slot[s]), many);
            assert_ok(kvb_prefix_index_remove(index, slot[s], all.blocks, many, NULL));
        }
        kvb_prefix_index_count(index, &counters);
        assert_int_equal(counters.nodes, 0);
        assert_int_equal(counters.memberships, 0);
        kvb_prefix_index_free(index);
        told = failures > 0 ? n : told;
    }
    assert_true(n > 15);
    drop_long_run(&all);
}

/* A chain of ghosts moves into the tree before the one name at its end, and allocates several times
 * meanwhile. When an allocation fails, the moved part must be removed again. */
static void a_join_that_fails_leaves_no_ghosts(void **state)
{
    (void)state;
    enum { many = 30000 };
    struct long_run all = make_long_run(many, 1);
    const struct kvb_prefix_index_options options = { .max_nodes = (size_t)3 * (many + 1),
                                                      .max_slots = 1 };
    struct kvb_index_run tail = all.run;
    struct kvb_index_run head = all.run;
    kvb_status status = KVB_NO_MEMORY;

    head.count = 1;
    tail.has_parent = true;
    tail.parent = *tail.blocks++;
    tail.tokens++;
    tail.count--;
    for (long n = 0; status != KVB_OK; n++) {
        struct kvb_prefix_index *index = NULL;
        struct kvb_index_counters counters;
        kvb_slot_ref slot;
        assert_ok(kvb_prefix_index_new(&options, &index));
        assert_ok(kvb_prefix_index_slot_new(index, &slot));
        assert_ok(kvb_prefix_index_store(index, slot, &tail, NULL));
        assert_ok(kvb_prefix_index_remove(index, slot, tail.blocks, tail.count - 1, NULL));
        fail_alloc_after(n);
        status = kvb_prefix_index_store(index, slot, &head, NULL);
        fail_alloc_after(-1);
        kvb_prefix_index_slot_clear(index, slot);
        assert_false(kvb_prefix_index_reclaim(index, SIZE_MAX));
        kvb_prefix_index_count(index, &counters);
        assert_int_equal(counters.nodes, 0);
        assert_int_equal(counters.ghosts, 0);
        kvb_prefix_index_free(index);
        assert_true(status == KVB_NO_MEMORY || (status == KVB_OK && n > 5));
    }
    drop_long_run(&all);
}

/* ---- Memory in use ---- */

static size_t store_orphans(
    struct kvb_prefix_index *index, kvb_slot_ref slot, struct kvb_index_run run, uint64_t parent)
{
    const size_t before = kvb_prefix_index_slot_blocks(index, slot);

    run.has_parent = true;
    run.parent.value = parent;
    assert_int_equal(kvb_prefix_index_store(index, slot, &run, NULL), KVB_TOO_LARGE);
    return kvb_prefix_index_slot_blocks(index, slot) - before;
}

/* Memory bounds orphans: 100,000 blocks would fit as prompts. */
static void orphans_take_no_more_memory_than_blocks_could(void **state)
{
    (void)state;
    enum { many = 100000, bytes_a_block = 45 };
    const struct kvb_prefix_index_options options = { .max_nodes = many, .max_slots = 1 };
    struct long_run all = make_long_run(many, 1);
    struct kvb_prefix_index *index = NULL;
    kvb_slot_ref slot;

    assert_ok(kvb_prefix_index_new(&options, &index));
    assert_ok(kvb_prefix_index_slot_new(index, &slot));
    const size_t empty = kvb_prefix_index_bytes(index);
    const size_t held = store_orphans(index, slot, all.run, UINT64_MAX);
    assert_int_equal(held, many / 3 - 1); /* and its placeholder */
    /* Arrays double their capacity, so half of it may be unused. */
    assert_in_range(kvb_prefix_index_bytes(index) - empty, 0, 2 * bytes_a_block * many);
    assert_in_range(kvb_prefix_index_room(index), 0, 2);
    kvb_prefix_index_slot_clear(index, slot);
    assert_int_equal(kvb_prefix_index_room(index), many);
    assert_ok(kvb_prefix_index_store(index, slot, &all.run, NULL));
    assert_int_equal(kvb_prefix_index_room(index), 0);
    kvb_prefix_index_free(index);
    drop_long_run(&all);
}

/* All orphans have the same content, so one node has all the names. */
static void names_of_one_orphan_have_a_ceiling_too(void **state)
{
    (void)state;
    enum { many = 3000 };
    const struct kvb_prefix_index_options options = { .max_nodes = many, .max_slots = 1 };
    struct long_run all = make_long_run(many, 1);
    struct kvb_index_run one = all.run;
    struct kvb_prefix_index *index = NULL;
    size_t held = 0;
    kvb_slot_ref slot;

    one.has_parent = true;
    one.parent.value = UINT64_MAX;
    one.count = 1;
    assert_ok(kvb_prefix_index_new(&options, &index));
    assert_ok(kvb_prefix_index_slot_new(index, &slot));
    while (held < many && kvb_prefix_index_store(index, slot, &one, NULL) == KVB_OK) {
        one.blocks++;
        held++;
    }
    assert_int_equal(held, many / 3);
    assert_ok(kvb_prefix_index_remove(index, slot, all.blocks, 1, NULL));
    assert_ok(kvb_prefix_index_store(index, slot, &one, NULL));
    kvb_prefix_index_free(index);
    drop_long_run(&all);
}

/* A restarted engine fills the index again before the memory of its cleared blocks is reclaimed. */
static void cleared_blocks_make_room_at_once(void **state)
{
    (void)state;
    enum { many = 5000 };
    const struct kvb_prefix_index_options options = { .max_nodes = many, .max_slots = 1 };
    struct long_run before = make_long_run(many, 1);
    struct long_run after = make_long_run(many, many + 1);
    struct kvb_prefix_index *index = NULL;
    kvb_slot_ref slot;

    after.tokens[0].value = many + 1; /* a different prompt */
    assert_ok(kvb_prefix_index_new(&options, &index));
    assert_ok(kvb_prefix_index_slot_new(index, &slot));
    assert_ok(kvb_prefix_index_store(index, slot, &before.run, NULL));
    kvb_prefix_index_slot_clear(index, slot);
    assert_ok(kvb_prefix_index_store(index, slot, &after.run, NULL));
    kvb_prefix_index_slot_clear(index, slot);
    before.run.has_parent = true; /* orphans and their placeholder */
    before.run.parent.value = UINT64_MAX;
    before.run.count = many / 3 - 1;
    assert_ok(kvb_prefix_index_store(index, slot, &before.run, NULL));
    kvb_prefix_index_free(index);
    drop_long_run(&before);
    drop_long_run(&after);
}

/* Slots with names of their own use up all names (16 * 450) and are then cleared. */
static void cleared_names_make_room_at_once(void **state)
{
    (void)state;
    enum { many = 200, others = 36 };
    const struct kvb_prefix_index_options options = { .max_nodes = 450, .max_slots = 1 + others };
    struct kvb_prefix_index *index = NULL;
    kvb_slot_ref slot;

    assert_ok(kvb_prefix_index_new(&options, &index));
    for (size_t i = 0; i < 1 + 2 * others; i++) {
        struct long_run own = make_long_run(many, 1 + i * many);
        assert_true(i > others || kvb_prefix_index_slot_new(index, &slot) == KVB_OK);
        for (uint32_t s = 1; i == 1 + others && s <= others; s++) {
            kvb_prefix_index_slot_clear(index, (kvb_slot_ref){ s });
        }
        slot.value = (uint32_t)(i > others ? i - others : i);
        assert_ok(kvb_prefix_index_store(index, slot, &own.run, NULL));
        drop_long_run(&own);
    }
    kvb_prefix_index_free(index);
}

/* Each prompt of one block takes an extent. Removals leave holes everywhere, and new blocks must
 * find room up to the last node, every time. */
static void holes_everywhere_leave_room_for_every_node(void **state)
{
    (void)state;
    /* the ceiling of 2 * (many / 16 + 2) groups is 6 MiB exactly */
    enum { many = 8160, rounds = 20 };
    const struct kvb_prefix_index_options options = { .max_nodes = many, .max_slots = 1 };
    struct kvb_prefix_index *index = NULL;
    kvb_block_hash held[many];
    kvb_slot_ref slot;
    size_t count = 0;
    uint64_t name = 0;

    assert_ok(kvb_prefix_index_new(&options, &index));
    assert_ok(kvb_prefix_index_slot_new(index, &slot));
    for (size_t round = 0; round < rounds; round++) {
        while (count < many) {
            const kvb_tokens_hash content = { ++name };
            const struct kvb_index_run run = { false, { 0 }, &held[count], &content, 1 };
            held[count++].value = name;
            assert_ok(kvb_prefix_index_store(index, slot, &run, NULL));
        }
        for (size_t i = many; i-- > 0;) {
            if ((i ^ round) % 5 != 0) {
                assert_ok(kvb_prefix_index_remove(index, slot, &held[i], 1, NULL));
                held[i] = held[--count];
            }
        }
    }
    kvb_prefix_index_free(index);
}

/* 24 bytes a node in full extents, 18 in the table of names, none for a second holder. */
static void the_reported_memory_is_that_of_extents_and_tables(void **state)
{
    (void)state;
    const struct kvb_prefix_index_options options = { .max_nodes = deep, .max_slots = 2 };
    struct long_run made = make_long_run(deep, 1);
    struct kvb_prefix_index *index = NULL;
    kvb_slot_ref slot[2] = { { 0 }, { 0 } };

    assert_ok(kvb_prefix_index_new(&options, &index));
    const size_t empty_bytes = kvb_prefix_index_bytes(index);
    assert_ok(kvb_prefix_index_slot_new(index, &slot[0]));
    assert_ok(kvb_prefix_index_slot_new(index, &slot[1]));
    assert_ok(kvb_prefix_index_store(index, slot[0], &made.run, NULL));
    const size_t full_bytes = kvb_prefix_index_bytes(index);
    assert_true(empty_bytes < 65536);
    assert_true(full_bytes >= (size_t)deep * (24 + 10));
    assert_true(full_bytes <= (size_t)deep * (24 + 20) + 65536);
    assert_ok(kvb_prefix_index_store(index, slot[1], &made.run, NULL));
    assert_true(kvb_prefix_index_bytes(index) <= full_bytes + (size_t)deep);
    kvb_prefix_index_free(index);
    drop_long_run(&made);
}

SUITE(prefix_limits)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(options_out_of_range_are_refused),
        cmocka_unit_test(a_very_deep_prompt_needs_no_deep_stack),
        cmocka_unit_test(repeated_content_along_a_prompt_is_not_confused),
        cmocka_unit_test(one_name_in_very_many_slots_is_not_confused),
        cmocka_unit_test(names_have_a_ceiling_of_their_own),
        cmocka_unit_test(every_allocation_may_fail_once),
        cmocka_unit_test(survives_the_failure_of_each_growth),
        cmocka_unit_test(a_join_that_fails_leaves_no_ghosts),
        cmocka_unit_test(orphans_take_no_more_memory_than_blocks_could),
        cmocka_unit_test(names_of_one_orphan_have_a_ceiling_too),
        cmocka_unit_test(cleared_blocks_make_room_at_once),
        cmocka_unit_test(cleared_names_make_room_at_once),
        cmocka_unit_test(holes_everywhere_leave_room_for_every_node),
        cmocka_unit_test(an_answer_that_ran_out_of_memory_is_empty),
        cmocka_unit_test(the_reported_memory_is_that_of_extents_and_tables),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
