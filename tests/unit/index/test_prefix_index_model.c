#include "kvb_test.h"

#include "index/prefix_index.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

/* The index beside the dullest thing that could work: every slot has a list of
 * names, each with the whole path of contents that it was stored under.  A path
 * begins at ROOT, or at a name that the slot has not stored yet; when it does, the
 * paths that wait for it are made longer in front. */

enum { slots = 5, names = 20, alphabet = 3, longest = 240, longest_stored = 10, no_name = 0 };

struct path {
    uint32_t base; /* no_name: ROOT; else the name it waits for */
    size_t len;
    uint8_t tokens[longest];
};

struct entry {
    bool is_held;
    struct path path;
};

struct world {
    struct kvb_prefix_index *index;
    kvb_slot_ref slot[slots];
    struct entry model[slots][names + 1]; /* by name, 1 .. names */
    struct kvb_match match;
    uint32_t depth[slots]; /* of the last query, by the index */
    unsigned seed;
};

static uint32_t draw(struct world *world, uint32_t below)
{
    return (uint32_t)rand_r(&world->seed) % below;
}

static kvb_tokens_hash tokens_of(uint8_t token)
{
    return (kvb_tokens_hash){ 1000U + token };
}

/* ---- The dull side ---- */

static void model_joins(struct world *world, size_t s, uint32_t name)
{
    const struct path above = world->model[s][name].path;

    if (above.base == name) {
        return; /* a circle */
    }
    for (uint32_t n = 1; n <= names; n++) {
        struct path *path = &world->model[s][n].path;
        if (world->model[s][n].is_held && path->base == name) {
            struct path longer = above;
            assert_true(longer.len + path->len <= longest);
            memcpy(longer.tokens + longer.len, path->tokens, path->len);
            longer.len += path->len;
            *path = longer;
        }
    }
}

static bool model_holds(const struct world *world, size_t s, const uint8_t *query, size_t len)
{
    for (uint32_t n = 1; n <= names; n++) {
        const struct entry *entry = &world->model[s][n];
        if (entry->is_held && entry->path.base == no_name && entry->path.len == len &&
            memcmp(entry->path.tokens, query, len) == 0) {
            return true;
        }
    }
    return false;
}

static uint32_t model_depth(const struct world *world, size_t s, const uint8_t *query, size_t len)
{
    uint32_t depth = 0;

    while (depth < len && model_holds(world, s, query, depth + 1)) {
        depth++;
    }
    return depth;
}

static size_t model_blocks(const struct world *world, size_t s)
{
    size_t blocks = 0;

    for (uint32_t n = 1; n <= names; n++) {
        blocks += world->model[s][n].is_held;
    }
    return blocks;
}

/* ---- Operations on both ---- */

static struct path parent_path(const struct world *world, size_t s, uint32_t parent)
{
    if (parent == no_name) {
        return (struct path){ .base = no_name };
    }
    return world->model[s][parent].is_held ? world->model[s][parent].path
                                           : (struct path){ .base = parent };
}

static void store(struct world *world, size_t s)
{
    kvb_block_hash blocks[4];
    kvb_tokens_hash tokens[4];
    uint8_t changed[4];
    bool was_held[4];
    const uint32_t parent = draw(world, 3) == 0 ? no_name : 1 + draw(world, names);
    const size_t count = 1 + draw(world, 4);
    struct path place = parent_path(world, s, parent);
    bool is_self_parent = false;

    if (place.len + count > longest_stored) {
        return;
    }
    for (size_t i = 0; i < count; i++) {
        blocks[i].value = 1 + draw(world, names);
        tokens[i] = tokens_of((uint8_t)draw(world, alphabet));
        is_self_parent |= blocks[i].value == parent;
    }
    const struct kvb_index_run run = { .has_parent = parent != no_name,
                                       .parent = { parent },
                                       .blocks = blocks,
                                       .tokens = tokens,
                                       .count = count };
    for (size_t i = 0; i < count && !is_self_parent; i++) {
        struct entry *entry = &world->model[s][blocks[i].value];
        place.tokens[place.len++] = (uint8_t)(tokens[i].value - 1000);
        was_held[i] = entry->is_held;
        *entry = (struct entry){ .is_held = true, .path = place };
        model_joins(world, s, (uint32_t)blocks[i].value);
    }
    assert_int_equal(
        kvb_prefix_index_store(world->index, world->slot[s], &run, changed),
        is_self_parent ? KVB_BAD_INPUT : KVB_OK);
    for (size_t i = 0; i < count && !is_self_parent; i++) {
        assert_int_equal(changed[i], !was_held[i]);
    }
}

static void remove_some(struct world *world, size_t s)
{
    kvb_block_hash blocks[3];
    uint8_t changed[3];

    for (size_t i = 0; i < 3; i++) {
        blocks[i].value = 1 + draw(world, names);
    }
    kvb_prefix_index_remove(world->index, world->slot[s], blocks, 3, changed);
    for (size_t i = 0; i < 3; i++) {
        struct entry *entry = &world->model[s][blocks[i].value];
        assert_int_equal(changed[i], entry->is_held);
        entry->is_held = false;
    }
}

static void empty_slot(struct world *world, size_t s)
{
    if (draw(world, 2) == 0) {
        kvb_prefix_index_slot_clear(world->index, world->slot[s]);
    } else {
        kvb_prefix_index_slot_free(world->index, world->slot[s]);
        assert_int_equal(kvb_prefix_index_slot_new(world->index, &world->slot[s]), KVB_OK);
    }
    memset(world->model[s], 0, sizeof world->model[s]);
}

static void note_depth(void *context, kvb_slot_ref slot, uint32_t depth)
{
    struct world *world = context;

    for (size_t s = 0; s < slots; s++) {
        if (world->slot[s].value == slot.value) {
            assert_int_equal(world->depth[s], 0);
            world->depth[s] = depth;
        }
    }
}

static void compare_query(struct world *world)
{
    uint8_t query[longest_stored];
    kvb_tokens_hash hashes[longest_stored];
    const size_t len = 1 + draw(world, longest_stored);

    for (size_t i = 0; i < len; i++) {
        query[i] = (uint8_t)draw(world, alphabet);
        hashes[i] = tokens_of(query[i]);
    }
    memset(world->depth, 0, sizeof world->depth);
    assert_int_equal(kvb_prefix_index_match(world->index, hashes, len, &world->match), KVB_OK);
    kvb_match_each(&world->match, note_depth, world);
    for (size_t s = 0; s < slots; s++) {
        assert_int_equal(world->depth[s], model_depth(world, s, query, len));
        assert_int_equal(
            kvb_prefix_index_slot_blocks(world->index, world->slot[s]), model_blocks(world, s));
    }
}

static void begin(struct world *world, unsigned seed)
{
    const struct kvb_prefix_index_options options = { .max_nodes = 100000, .max_slots = slots };

    *world = (struct world){ .seed = seed };
    assert_int_equal(kvb_prefix_index_new(&options, &world->index), KVB_OK);
    for (size_t s = 0; s < slots; s++) {
        assert_int_equal(kvb_prefix_index_slot_new(world->index, &world->slot[s]), KVB_OK);
    }
}

/* Nothing may be left when nobody holds anything. */
static void end(struct world *world)
{
    struct kvb_index_counters counters;

    for (size_t s = 0; s < slots; s++) {
        kvb_prefix_index_slot_free(world->index, world->slot[s]);
    }
    kvb_prefix_index_count(world->index, &counters);
    assert_int_equal(counters.nodes, 0);
    assert_int_equal(counters.ghosts, 0);
    assert_int_equal(counters.orphans, 0);
    assert_int_equal(counters.memberships, 0);
    assert_int_equal(counters.stored, counters.removed);
    kvb_match_done(&world->match);
    kvb_prefix_index_free(world->index);
}

static void one_life(unsigned seed, int operations)
{
    static struct world world;

    begin(&world, seed);
    for (int i = 0; i < operations; i++) {
        const size_t s = draw(&world, slots);
        const uint32_t what = draw(&world, 200);
        if (what == 0) {
            empty_slot(&world, s);
        } else if (what < 90) {
            remove_some(&world, s);
        } else {
            store(&world, s);
        }
        compare_query(&world);
    }
    end(&world);
}

/* Names say nothing about content: aliases, circles, orphans and holes abound. */
static void agrees_with_a_list_of_paths(void **state)
{
    (void)state;
    for (unsigned seed = 1; seed <= 5; seed++) {
        one_life(seed, 50000);
    }
}

/* ---- Walking ---- */

enum { deepest = 5 };

/* With names that are made of the whole path, as bridges make them. */
static uint64_t canonical(const uint8_t *path, size_t len)
{
    uint64_t name = 1;

    for (size_t i = 0; i < len; i++) {
        name = name * (alphabet + 1) + path[i] + 1;
    }
    return name;
}

static void store_path(struct world *world, size_t s)
{
    uint8_t path[deepest];
    kvb_block_hash blocks[deepest];
    kvb_tokens_hash tokens[deepest];
    const size_t len = 1 + draw(world, deepest);
    const size_t first = draw(world, (uint32_t)len);

    for (size_t i = 0; i < len; i++) {
        path[i] = (uint8_t)draw(world, alphabet);
        blocks[i].value = canonical(path, i + 1);
        tokens[i] = tokens_of(path[i]);
    }
    const struct kvb_index_run run = { .has_parent = first > 0,
                                       .parent = { canonical(path, first) },
                                       .blocks = blocks + first,
                                       .tokens = tokens + first,
                                       .count = len - first };
    assert_int_equal(kvb_prefix_index_store(world->index, world->slot[s], &run, NULL), KVB_OK);
}

struct copier {
    struct kvb_prefix_index *index;
    kvb_slot_ref slot;
};

static kvb_status copy_run(void *context, const struct kvb_index_run *run)
{
    struct copier *copier = context;
    return kvb_prefix_index_store(copier->index, copier->slot, run, NULL);
}

static uint32_t depth_of(struct kvb_prefix_index *index, kvb_slot_ref slot, const uint8_t *query)
{
    struct kvb_match match = { 0 };
    kvb_tokens_hash hashes[deepest];
    kvb_block_hash blocks[deepest];
    uint32_t depth = 0;
    uint32_t depth_by_name = 0;

    for (size_t i = 0; i < deepest; i++) {
        hashes[i] = tokens_of(query[i]);
        blocks[i].value = canonical(query, i + 1);
    }
    assert_int_equal(kvb_prefix_index_match(index, hashes, deepest, &match), KVB_OK);
    for (size_t i = 0; i < match.level_count; i++) {
        depth = match.levels[i].slot == slot.value ? match.levels[i].depth : depth;
    }
    assert_int_equal(kvb_prefix_index_match_blocks(index, blocks, deepest, &match), KVB_OK);
    for (size_t i = 0; i < match.level_count; i++) {
        depth_by_name = match.levels[i].slot == slot.value ? match.levels[i].depth : depth_by_name;
    }
    assert_int_equal(depth, depth_by_name);
    kvb_match_done(&match);
    return depth;
}

static void compare_copy(struct world *world, size_t s)
{
    const struct kvb_prefix_index_options options = { .max_nodes = 100000, .max_slots = 1 };
    struct copier copier = { 0 };
    uint8_t query[deepest];

    assert_int_equal(kvb_prefix_index_new(&options, &copier.index), KVB_OK);
    assert_int_equal(kvb_prefix_index_slot_new(copier.index, &copier.slot), KVB_OK);
    assert_int_equal(
        kvb_prefix_index_walk(world->index, world->slot[s], copy_run, &copier), KVB_OK);
    assert_int_equal(
        kvb_prefix_index_slot_blocks(copier.index, copier.slot),
        kvb_prefix_index_slot_blocks(world->index, world->slot[s]));
    for (int i = 0; i < 20; i++) {
        for (size_t j = 0; j < deepest; j++) {
            query[j] = (uint8_t)draw(world, alphabet);
        }
        assert_int_equal(
            depth_of(copier.index, copier.slot, query),
            depth_of(world->index, world->slot[s], query));
    }
    kvb_prefix_index_free(copier.index);
}

static void remove_path(struct world *world, size_t s)
{
    uint8_t path[deepest];
    const size_t len = 1 + draw(world, deepest);

    for (size_t i = 0; i < len; i++) {
        path[i] = (uint8_t)draw(world, alphabet);
    }
    const kvb_block_hash block = { canonical(path, len) };
    kvb_prefix_index_remove(world->index, world->slot[s], &block, 1, NULL);
}

static void a_walk_makes_an_equal_index(void **state)
{
    (void)state;
    static struct world world;

    begin(&world, 77);
    for (int i = 0; i < 4000; i++) {
        const size_t s = draw(&world, slots);
        if (draw(&world, 3) == 0) {
            store_path(&world, s);
        } else {
            remove_path(&world, s);
        }
        if (i % 10 == 0) {
            compare_copy(&world, s);
        }
    }
    end(&world);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(agrees_with_a_list_of_paths),
        cmocka_unit_test(a_walk_makes_an_equal_index),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
