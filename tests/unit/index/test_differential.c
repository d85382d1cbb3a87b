#include "kvb_test.h"

#include "core/own.h"
#include "index/index.h"
#include "index/reference_index.h"
#include "index/whole_walk.h"

#include <argp.h>
#include <assert.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The index and the reference model (reference_index.h), through the same random operations.
 *
 *     test_differential [--operations N] [--seed S]
 *
 * After each operation all counters, what it said of each block, and how many blocks the
 * slot holds must be the same; after some, what queries by content and by names find for
 * some slots or for all of them; now and then what lists and pages show, and what a second
 * index that was made of a walk answers.  When all slots are empty, nothing may be left.
 *
 * A life is 50,000 operations in a world of one kind, drawn from one seed.  The seeds
 * follow each other, and each says which kind its world is of: a life that fails is lived
 * again alone by its own seed, which stands in the last line before the failure.
 *
 * An operation stores a run, removes some blocks or empties slots; what is asked in
 * between is not counted. */

enum { operations_a_life = 50000, max_slots = 5000, max_path = 512, max_run = 20 };

/* How names of blocks are chosen. */
enum naming {
    by_nothing, /* any of a few names for any block: aliases, circles, orphans, holes */
    by_path,    /* all slots use the same names: the usual case */
    by_slot,    /* each slot has its own names: overflow aliases everywhere */
};

static const struct kind {
    const char *name;
    enum naming naming;
    uint32_t slots;
    uint32_t names; /* by_nothing: the number of different names */
    uint32_t letters;
    uint32_t longest_path; /* longest path that is stored; orphans that join make longer ones */
    uint32_t longest_run;
    /* one operation in this many empties a slot, or in 100 times as many all of them */
    uint32_t emptied_in;
    uint32_t asked_in; /* one operation in this many is followed by a query */
    uint32_t all_in;   /* one in so many queries is compared for all slots */
    size_t max_nodes;
} kinds[] = {
    /* clang-format off */
    { "maze",        by_nothing,    5,  20,    3,  10,  4,  200,  2,   1, 100000 },
    { "crowd",       by_path,    5000,   0,    2,   6,  6,  400, 16, 200, 100000 },
    { "tight",       by_nothing,    8,  30,    3,  10,  4,  300,  2,   1,     60 },
    { "deep",        by_path,      40,   0,    2, 300, 20, 1000,  4,  16, 400000 },
    { "crowd maze",  by_nothing, 5000,  12,    3,   8,  4,  400, 16, 200, 100000 },
    { "broad",       by_path,     300,   0, 5000,   5,  5, 2000,  4,  64, 400000 },
    { "own names",   by_slot,      40,   0,    2,  40,  8,  500,  4,  16, 100000 },
    { "tight paths", by_path,      30,   0,    2,  30,  8,  300,  4,   8,    200 },
    /* clang-format on */
};

static struct {
    uint64_t operations;
    uint64_t seed;
} asked = { 400000, 1 };

struct world {
    const struct kind *kind;
    struct kvb_prefix_index *index;
    struct kvb_prefix_index *copy; /* a copy of one slot at a time */
    struct reference_index *dull;
    kvb_slot_ref slot[max_slots];
    uint32_t slot_of[max_slots]; /* the slot with this number in the index; max_slots: none */
    struct kvb_match match;
    uint32_t depth[max_slots];       /* position of the last query's answer in `answered` */
    uint64_t answered_at[max_slots]; /* the query that the answer belongs to */
    uint64_t query_number;
    uint32_t last_depth, query_length;
    uint64_t random;
    uint64_t names_sum;
    size_t names_seen;
};

/* ---- Random names and paths ---- */

static uint32_t draw(struct world *world, uint32_t below)
{
    assert(below > 0);
    world->random ^= world->random >> 12;
    world->random ^= world->random << 25;
    world->random ^= world->random >> 27;
    return (uint32_t)((world->random * UINT64_C(0x2545f4914f6cdd1d)) >> 32) % below;
}

static kvb_tokens_hash draw_letter(struct world *world)
{
    return (kvb_tokens_hash){ 1000 + draw(world, world->kind->letters) };
}

/* The name that slot s gives to the block at the end of the path. */
static kvb_block_hash
name_of(const struct world *world, size_t s, const kvb_tokens_hash *path, size_t len)
{
    uint64_t name = world->kind->naming == by_slot ? s + 1 : 0;

    for (size_t i = 0; i < len; i++) {
        name = (name ^ path[i].value) * UINT64_C(0x9e3779b97f4a7c15);
        name ^= name >> 29;
    }
    return (kvb_block_hash){ name };
}

static kvb_block_hash draw_name(struct world *world)
{
    return (kvb_block_hash){ 1 + draw(world, world->kind->names) };
}

/* A path that some slot holds, sometimes truncated, mostly extended by a few letters. */
static size_t draw_path(struct world *world, size_t s, kvb_tokens_hash *out_path)
{
    const struct kind *kind = world->kind;
    const uint32_t whose = draw(world, 2) == 0 ? (uint32_t)s : draw(world, kind->slots);
    size_t len =
        reference_index_path(world->dull, whose, draw(world, 16), out_path, kind->longest_path);

    if (draw(world, 3) == 0) {
        len = draw(world, (uint32_t)len + 1);
    }
    const size_t more =
        len == 0 ? 1 + draw(world, kind->longest_run) : draw(world, kind->longest_run);
    const size_t end = len + more < kind->longest_path ? len + more : kind->longest_path;
    while (len < end) {
        out_path[len++] = draw_letter(world);
    }
    return len;
}

/* ---- Comparing ---- */

static void compare_counters(struct world *world)
{
    const bool is_swept = !kvb_prefix_index_reclaim(world->index, 0);
    const struct kvb_index_counters *right = reference_index_counters(world->dull);
    struct kvb_index_counters counters;

    kvb_prefix_index_count(world->index, &counters);
    if (!is_swept) { /* memory of cleared slots that is not reclaimed yet */
        assert_true(counters.nodes >= right->nodes && counters.ghosts <= counters.nodes);
        counters.nodes = right->nodes;
        counters.ghosts = right->ghosts;
    }
    assert_memory_equal(&counters, right, sizeof counters);
}

static void compare_slot(const struct world *world, size_t s)
{
    assert_int_equal(
        kvb_prefix_index_slot_blocks(world->index, world->slot[s]),
        reference_index_blocks(world->dull, (uint32_t)s));
}

static void note_depth(void *context, kvb_slot_ref slot, uint32_t depth)
{
    struct world *world = context;

    assert_true(slot.value < max_slots);
    const uint32_t s = world->slot_of[slot.value];
    assert_true(s < max_slots);
    /* a slot holds a block in one level only */
    assert_int_not_equal(world->answered_at[s], world->query_number);
    assert_true(depth >= world->last_depth && depth > 0 && depth <= world->query_length);
    world->last_depth = depth;
    world->answered_at[s] = world->query_number;
    world->depth[s] = depth;
}

static void note_answers(struct world *world, size_t query_length)
{
    world->query_number++;
    world->last_depth = 0;
    world->query_length = (uint32_t)query_length;
    kvb_match_each(&world->match, note_depth, world);
}

static uint32_t answered(const struct world *world, size_t s)
{
    return world->answered_at[s] == world->query_number ? world->depth[s] : 0;
}

/* Compares slot s and some others, or all. */
static void compare_query(
    struct world *world, size_t s, bool is_for_all, const kvb_tokens_hash *query, size_t len)
{
    const size_t slots = is_for_all ? world->kind->slots : 4;

    assert_ok(kvb_prefix_index_match(world->index, query, len, &world->match));
    note_answers(world, len);
    for (size_t i = 0; i < slots; i++) {
        const size_t other = is_for_all ? i : i == 0 ? s : draw(world, world->kind->slots);
        assert_int_equal(
            answered(world, other),
            reference_index_depth(world->dull, (uint32_t)other, query, len));
    }
}

/* Queries by the names that slot s would use, or by random names. */
static void compare_names(struct world *world, size_t s, const kvb_tokens_hash *path, size_t len)
{
    kvb_block_hash query[max_path];

    for (size_t i = 0; i < len; i++) {
        query[i] =
            world->kind->naming == by_nothing ? draw_name(world) : name_of(world, s, path, i + 1);
    }
    assert_ok(kvb_prefix_index_match_blocks(world->index, query, len, &world->match));
    note_answers(world, len);
    for (size_t other = 0; other < world->kind->slots; other++) {
        assert_int_equal(
            answered(world, other),
            reference_index_depth_by_names(world->dull, (uint32_t)other, query, len));
    }
}

static void compare_answers(struct world *world, size_t s)
{
    kvb_tokens_hash path[max_path];
    const size_t len = draw_path(world, s, path);
    const bool is_for_all = draw(world, world->kind->all_in) == 0;

    compare_query(world, s, is_for_all, path, len);
    if (is_for_all) {
        compare_names(world, s, path, len < 8 ? len : 1 + draw(world, (uint32_t)len));
    }
}

/* ---- Walks, lists and copies ---- */

static void note_name(void *context, kvb_block_hash block)
{
    struct world *world = context;

    world->names_sum += reference_name_sum(block);
    world->names_seen++;
}

static void compare_seen(struct world *world, size_t s)
{
    assert_int_equal(world->names_seen, reference_index_blocks(world->dull, (uint32_t)s));
    assert_int_equal(world->names_sum, reference_index_names_sum(world->dull, (uint32_t)s));
    world->names_sum = 0;
    world->names_seen = 0;
}

/* Pages first: the list at once removes repeats from the slot's extents. */
static void compare_list(struct world *world, size_t s)
{
    const size_t page = 1 + draw(world, 40);
    uint64_t place = 0;

    while (place != KVB_INDEX_PLACE_END) {
        const size_t before = world->names_seen;
        kvb_prefix_index_page(world->index, world->slot[s], &place, page, note_name, world);
        /* a page may exceed its budget by the rest of an extent, with several names a block */
        assert_true(world->kind->naming == by_nothing || world->names_seen - before < page + 100);
    }
    compare_seen(world, s);
    kvb_prefix_index_each_block(world->index, world->slot[s], note_name, world);
    compare_seen(world, s);
}

struct copier {
    struct kvb_prefix_index *index;
    kvb_slot_ref slot;
};

static kvb_status copy_run(void *context, const struct kvb_index_run *run)
{
    const struct copier *copier = context;
    return kvb_prefix_index_store(copier->index, copier->slot, run, NULL);
}

static void assert_empty(struct kvb_prefix_index *index)
{
    struct kvb_index_counters counters;

    kvb_prefix_index_count(index, &counters);
    assert_int_equal(counters.nodes, 0);
    assert_int_equal(counters.ghosts, 0);
    assert_int_equal(counters.orphans, 0);
    assert_int_equal(counters.memberships, 0);
    assert_int_equal(counters.stored, counters.removed);
}

static void compare_copy(struct world *world, size_t s)
{
    static const size_t budgets[] = { SIZE_MAX, 1, 7, 50, 300 };
    const size_t budget = budgets[draw(world, KVB_COUNT_OF(budgets))];
    struct copier copier = { .index = world->copy };

    assert_ok(kvb_prefix_index_slot_new(copier.index, &copier.slot));
    assert_ok(whole_walk(world->index, world->slot[s], budget, copy_run, &copier));
    assert_int_equal(
        kvb_prefix_index_slot_blocks(copier.index, copier.slot),
        reference_index_blocks(world->dull, (uint32_t)s));
    for (int i = 0; i < 16; i++) {
        kvb_tokens_hash query[max_path];
        const size_t len = draw_path(world, s, query);
        assert_ok(kvb_prefix_index_match(copier.index, query, len, &world->match));
        const uint32_t depth = world->match.level_count > 0 ? world->match.levels[0].depth : 0;
        assert_int_equal(depth, reference_index_depth(world->dull, (uint32_t)s, query, len));
    }
    kvb_prefix_index_slot_free(copier.index, copier.slot);
    assert_false(kvb_prefix_index_reclaim(copier.index, SIZE_MAX));
    assert_empty(copier.index);
}

/* ---- Operations on both ---- */

struct blocks {
    kvb_block_hash names[max_run];
    size_t count;
};

static void store(struct world *world, size_t s, const struct kvb_index_run *run)
{
    uint8_t changed[max_run];
    uint8_t right[max_run];

    memset(changed, 2, sizeof changed);
    memset(right, 0, sizeof right);
    const kvb_status status = kvb_prefix_index_store(world->index, world->slot[s], run, changed);
    assert_int_equal(reference_index_store(world->dull, (uint32_t)s, run, right), status);
    if (status != KVB_BAD_INPUT) {
        assert_memory_equal(changed, right, run->count);
    }
}

/* Names by the scheme of this kind; one in 64 is arbitrary. */
static kvb_block_hash
mostly_name_of(struct world *world, size_t s, const kvb_tokens_hash *path, size_t len)
{
    const bool is_wrong = draw(world, 64) == 0;
    return name_of(world, s, path, is_wrong ? 1 + draw(world, (uint32_t)len) : len);
}

/* Where a run begins: mostly behind what the slot holds of the path, otherwise at the beginning of
 * a prompt. */
static uint32_t draw_first(struct world *world, size_t s, const kvb_tokens_hash *path, size_t len)
{
    const uint32_t how = draw(world, 8);
    const uint32_t held = reference_index_depth(world->dull, (uint32_t)s, path, len);

    if (how == 0) {
        return draw(world, (uint32_t)len);
    }
    return how < 5 && held < len ? held : 0;
}

/* False when paths would become too long. */
static bool store_some(struct world *world, size_t s)
{
    const struct kind *kind = world->kind;
    kvb_tokens_hash path[max_path];
    struct blocks blocks = { 0 };
    const size_t len = draw_path(world, s, path);
    const size_t first = draw_first(world, s, path, len);
    struct kvb_index_run run = { .has_parent = first > 0, .tokens = path + first };

    run.count = len - first < kind->longest_run ? len - first : 1 + draw(world, kind->longest_run);
    for (size_t i = 0; i < run.count; i++) {
        blocks.names[i] = kind->naming == by_nothing
                              ? draw_name(world)
                              : mostly_name_of(world, s, path, first + i + 1);
    }
    run.blocks = blocks.names;
    if (run.has_parent) {
        run.parent =
            kind->naming == by_nothing ? draw_name(world) : mostly_name_of(world, s, path, first);
        if (reference_index_path_length(world->dull, (uint32_t)s, run.parent) + run.count >
            kind->longest_path) {
            return false;
        }
    }
    store(world, s, &run);
    return true;
}

/* Removes random names, or some names of a path: mostly its end, last block first, as engines do.
 */
static void draw_removal(struct world *world, size_t s, struct blocks *out_blocks)
{
    kvb_tokens_hash path[max_path];
    const size_t len = draw_path(world, s, path);
    const uint32_t max = world->kind->longest_run < len ? world->kind->longest_run : (uint32_t)len;
    const bool is_end = draw(world, 4) != 0;

    out_blocks->count = 1 + draw(world, max);
    for (size_t i = 0; i < out_blocks->count; i++) {
        const size_t at = is_end ? len - i : 1 + draw(world, (uint32_t)len);
        out_blocks->names[i] = world->kind->naming == by_nothing
                                   ? draw_name(world)
                                   : mostly_name_of(world, s, path, at);
    }
}

static void remove_some(struct world *world, size_t s)
{
    struct blocks blocks = { 0 };
    uint8_t changed[max_run];
    uint8_t right[max_run];

    draw_removal(world, s, &blocks);
    memset(changed, 2, sizeof changed);
    assert_ok(
        kvb_prefix_index_remove(world->index, world->slot[s], blocks.names, blocks.count, changed));
    reference_index_remove(world->dull, (uint32_t)s, blocks.names, blocks.count, right);
    assert_memory_equal(changed, right, blocks.count);
}

/* Clears the slot, or frees it and takes another one at once, or swaps two slots. */
static void empty_slot(struct world *world, size_t s)
{
    reference_index_clear(world->dull, (uint32_t)s);
    if (draw(world, 2) == 0) {
        kvb_prefix_index_slot_clear(world->index, world->slot[s]);
        return;
    }
    const size_t other = draw(world, world->kind->slots);
    kvb_prefix_index_slot_free(world->index, world->slot[s]);
    world->slot_of[world->slot[s].value] = max_slots;
    if (other != s) {
        reference_index_clear(world->dull, (uint32_t)other);
        kvb_prefix_index_slot_free(world->index, world->slot[other]);
        world->slot_of[world->slot[other].value] = max_slots;
        assert_ok(kvb_prefix_index_slot_new(world->index, &world->slot[other]));
        world->slot_of[world->slot[other].value] = (uint32_t)other;
    }
    assert_ok(kvb_prefix_index_slot_new(world->index, &world->slot[s]));
    world->slot_of[world->slot[s].value] = (uint32_t)s;
}

/* The index must be empty when no slot holds a block, however slowly memory is reclaimed. */
static void empty_all(struct world *world)
{
    const size_t slice = 1 + draw(world, 500);

    for (size_t s = 0; s < world->kind->slots; s++) {
        reference_index_clear(world->dull, (uint32_t)s);
        kvb_prefix_index_slot_clear(world->index, world->slot[s]);
    }
    compare_counters(world);
    while (kvb_prefix_index_reclaim(world->index, slice)) {
    }
    assert_empty(world->index);
    compare_counters(world);
}

/* ---- Lives ---- */

static void begin(struct world *world, uint64_t seed)
{
    const struct kind *kind = &kinds[seed % KVB_COUNT_OF(kinds)];
    const struct kvb_prefix_index_options options = { .max_nodes = kind->max_nodes,
                                                      .max_slots = kind->slots,
                                                      .hash_key = seed * seed };
    const struct kvb_prefix_index_options room = { .max_nodes = 2 * kind->max_nodes + 1000,
                                                   .max_slots = 1 };

    memset(world, 0, sizeof *world);
    world->kind = kind;
    world->random = (seed + 1) * UINT64_C(0x9e3779b97f4a7c15);
    world->dull = reference_index_new(kind->slots, kind->max_nodes);
    assert_ok(kvb_prefix_index_new(&options, &world->index));
    assert_ok(kvb_prefix_index_new(&room, &world->copy));
    for (size_t s = 0; s < kind->slots; s++) {
        assert_ok(kvb_prefix_index_slot_new(world->index, &world->slot[s]));
        world->slot_of[world->slot[s].value] = (uint32_t)s;
    }
}

static void end(struct world *world)
{
    empty_all(world);
    kvb_match_done(&world->match);
    kvb_prefix_index_free(world->index);
    kvb_prefix_index_free(world->copy);
    reference_index_free(world->dull);
}

/* Phases in which more is stored than removed, and the reverse. */
static void operate(struct world *world, size_t s, uint64_t number)
{
    const uint32_t stored_percent = number % 25000 < 18000 ? 75 : 30;

    if (draw(world, world->kind->emptied_in * 100) == 0) {
        empty_all(world);
    } else if (draw(world, world->kind->emptied_in) == 0) {
        empty_slot(world, s);
    } else if (draw(world, 100) >= stored_percent || !store_some(world, s)) {
        remove_some(world, s);
    }
}

static void live(uint64_t seed, uint64_t operations)
{
    static struct world world;

    begin(&world, seed);
    for (uint64_t i = 0; i < operations; i++) {
        const size_t s = draw(&world, world.kind->slots);
        operate(&world, s, i);
        compare_counters(&world);
        compare_slot(&world, s);
        if (draw(&world, world.kind->asked_in) == 0) {
            compare_answers(&world, s);
        }
        if (draw(&world, 8) == 0) {
            (void)kvb_prefix_index_reclaim(world.index, draw(&world, 6));
        }
        if (draw(&world, 500) == 0) {
            compare_list(&world, s);
            compare_copy(&world, s);
        }
    }
    end(&world);
}

static void agrees_with_the_reference_index(void **state)
{
    uint64_t done = 0;

    (void)state;
    for (uint64_t seed = asked.seed; done < asked.operations; seed++) {
        const uint64_t left = asked.operations - done;
        const uint64_t now = left < operations_a_life ? left : operations_a_life;
        (void)fprintf(
            stderr, "%10llu of %llu operations; next: %s, --seed %llu --operations %llu\n",
            (unsigned long long)done, (unsigned long long)asked.operations,
            kinds[seed % KVB_COUNT_OF(kinds)].name, (unsigned long long)seed,
            (unsigned long long)now);
        live(seed, now);
        done += now;
    }
}

/* ---- Options ----
 *
 * argp reads the command line before any thread starts.
 * NOLINTBEGIN(concurrency-mt-unsafe) */

static const struct argp_option options[] = {
    { "operations", 'n', "N", 0, "number of operations in all (400000)", 0 },
    { "seed", 's', "S", 0, "seed of the first life (1)", 0 },
    { 0 },
};

static error_t take_option(int key, char *text, struct argp_state *state)
{
    char *rest = NULL;

    if (key != 'n' && key != 's') {
        return ARGP_ERR_UNKNOWN;
    }
    const unsigned long long value = strtoull(text, &rest, 10);
    if (rest == text || *rest != '\0') {
        argp_error(state, "not a number: %s", text);
    }
    *(key == 'n' ? &asked.operations : &asked.seed) = value;
    return 0;
}

SUITE(differential)
{
    static const struct argp argp = { options, take_option, NULL, NULL, NULL, NULL, NULL };
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(agrees_with_the_reference_index),
    };

    argp_parse(&argp, argc, argv, 0, NULL, NULL);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
/* NOLINTEND(concurrency-mt-unsafe) */
