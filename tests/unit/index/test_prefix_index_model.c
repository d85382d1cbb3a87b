#include "kvb_test.h"

#include "index/prefix_index.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

/* The index beside the dullest thing that could work: every slot has a list of
 * names, each with the whole path of contents that it was stored under.  A path
 * begins at ROOT, or at a name that the slot has not stored yet; when it does, the
 * paths that wait for it are made longer in front.
 *
 * So a path that waits matches nothing; a name that is stored again with another
 * path means the later one; and the nodes in being are the beginnings of all held
 * paths, plus one for each name that is waited for. */

enum { slots = 5, names = 20, alphabet = 3, longest = 240, longest_stored = 10, no_name = 0 };
enum { most_path_nodes = slots * names * longest };

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
    struct kvb_index_counters expected;
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

/* By names: each must be held, at the end of a path one longer than the last. */
static uint32_t
model_depth_by_names(const struct world *world, size_t s, const kvb_block_hash *query, size_t len)
{
    const struct path *before = NULL;
    uint32_t depth = 0;

    for (; depth < len; depth++) {
        const struct entry *entry = &world->model[s][query[depth].value];
        const struct path *path = &entry->path;
        if (!entry->is_held || path->base != no_name || path->len != depth + 1 ||
            (before && memcmp(path->tokens, before->tokens, depth) != 0)) {
            break;
        }
        before = path;
    }
    return depth;
}

static bool same_path(const struct path *a, const struct path *b)
{
    return a->base == b->base && a->len == b->len && memcmp(a->tokens, b->tokens, a->len) == 0;
}

/* ---- What must be in being ---- */

/* Every beginning of every held path, as a number of its own. */
struct path_nodes {
    uint64_t all[most_path_nodes];
    uint64_t held[slots * names];
    uint64_t orphans[most_path_nodes];
    size_t all_count, held_count, orphan_count;
};

/* Far from small numbers: mix() begins with XOR. */
static const uint64_t root_number = UINT64_C(0x243f6a8885a308d3);

static uint64_t mix(uint64_t hash, uint64_t value)
{
    hash = (hash ^ value) * UINT64_C(0x9e3779b97f4a7c15);
    return hash ^ hash >> 29;
}

static void add_path(struct path_nodes *nodes, size_t s, const struct path *path)
{
    uint64_t node = root_number;

    if (path->base != no_name) {
        node = mix(mix(node, alphabet + 1 + s), path->base); /* the placeholder: this slot's */
        nodes->all[nodes->all_count++] = node;
        nodes->orphans[nodes->orphan_count++] = node;
    }
    for (size_t i = 0; i < path->len; i++) {
        node = mix(node, path->tokens[i] + 1U);
        nodes->all[nodes->all_count++] = node;
        if (path->base != no_name) {
            nodes->orphans[nodes->orphan_count++] = node;
        }
    }
    nodes->held[nodes->held_count++] = node;
}

static int by_value(const void *left, const void *right)
{
    const uint64_t a = *(const uint64_t *)left;
    const uint64_t b = *(const uint64_t *)right;

    return (a > b) - (a < b);
}

static size_t distinct(uint64_t *values, size_t count)
{
    size_t found = 0;

    qsort(values, count, sizeof *values, by_value);
    for (size_t i = 0; i < count; i++) {
        found += i == 0 || values[i] != values[i - 1];
    }
    return found;
}

static void compare_gauges(const struct world *world, const struct kvb_index_counters *counters)
{
    static struct path_nodes nodes;
    size_t memberships = 0;

    nodes.all_count = nodes.held_count = nodes.orphan_count = 0;
    for (size_t s = 0; s < slots; s++) {
        for (uint32_t n = 1; n <= names; n++) {
            if (world->model[s][n].is_held) {
                add_path(&nodes, s, &world->model[s][n].path);
                memberships++;
            }
        }
    }
    const size_t all = distinct(nodes.all, nodes.all_count);
    assert_int_equal(counters->memberships, memberships);
    assert_int_equal(counters->nodes, all);
    assert_int_equal(counters->ghosts, all - distinct(nodes.held, nodes.held_count));
    assert_int_equal(counters->orphans, distinct(nodes.orphans, nodes.orphan_count));
}

static void compare_counters(const struct world *world)
{
    struct kvb_index_counters counters;

    (void)kvb_prefix_index_tend(world->index, SIZE_MAX);
    kvb_prefix_index_count(world->index, &counters);
    assert_int_equal(counters.stored, world->expected.stored);
    assert_int_equal(counters.removed, world->expected.removed);
    assert_int_equal(counters.duplicate_stored, world->expected.duplicate_stored);
    assert_int_equal(counters.unknown_removed, world->expected.unknown_removed);
    assert_int_equal(counters.unknown_parents, world->expected.unknown_parents);
    assert_int_equal(counters.self_parents, world->expected.self_parents);
    assert_int_equal(counters.aliases, world->expected.aliases);
    assert_int_equal(counters.refused, 0);
    compare_gauges(world, &counters);
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

static void model_stores(struct world *world, size_t s, uint32_t name, const struct path *path)
{
    struct entry *entry = &world->model[s][name];

    if (!entry->is_held) {
        world->expected.stored++;
    } else if (same_path(&entry->path, path)) {
        world->expected.duplicate_stored++;
    } else {
        world->expected.aliases++;
    }
    *entry = (struct entry){ .is_held = true, .path = *path };
    model_joins(world, s, name);
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
    world->expected.self_parents += is_self_parent;
    world->expected.unknown_parents +=
        !is_self_parent && place.base == parent && place.len == 0 && parent != no_name;
    for (size_t i = 0; i < count && !is_self_parent; i++) {
        place.tokens[place.len++] = (uint8_t)(tokens[i].value - 1000);
        was_held[i] = world->model[s][blocks[i].value].is_held;
        model_stores(world, s, (uint32_t)blocks[i].value, &place);
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
    assert_ok(kvb_prefix_index_remove(world->index, world->slot[s], blocks, 3, changed));
    for (size_t i = 0; i < 3; i++) {
        struct entry *entry = &world->model[s][blocks[i].value];
        assert_int_equal(changed[i], entry->is_held);
        world->expected.removed += entry->is_held;
        world->expected.unknown_removed += !entry->is_held;
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
    world->expected.removed += model_blocks(world, s);
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

/* Half of the queries begin as something that was stored: drawn letters alone
 * seldom go deep. */
static size_t draw_query(struct world *world, uint8_t *out_query, kvb_tokens_hash *out_hashes)
{
    const size_t len = 1 + draw(world, longest_stored);
    const struct path *path = &world->model[draw(world, slots)][1 + draw(world, names)].path;
    const size_t copied = draw(world, 2) * (path->len < len ? path->len : len);

    memcpy(out_query, path->tokens, copied);
    for (size_t i = copied; i < len; i++) {
        out_query[i] = (uint8_t)draw(world, alphabet);
    }
    for (size_t i = 0; i < len; i++) {
        out_hashes[i] = tokens_of(out_query[i]);
    }
    return len;
}

static void compare_query_by_names(struct world *world)
{
    kvb_block_hash query[3];

    for (size_t i = 0; i < 3; i++) {
        query[i].value = 1 + draw(world, names);
    }
    memset(world->depth, 0, sizeof world->depth);
    assert_int_equal(kvb_prefix_index_match_blocks(world->index, query, 3, &world->match), KVB_OK);
    kvb_match_each(&world->match, note_depth, world);
    for (size_t s = 0; s < slots; s++) {
        assert_int_equal(world->depth[s], model_depth_by_names(world, s, query, 3));
    }
}

static void compare_query(struct world *world)
{
    uint8_t query[longest_stored];
    kvb_tokens_hash hashes[longest_stored];
    const size_t len = draw_query(world, query, hashes);

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
    assert_false(kvb_prefix_index_tend(world->index, SIZE_MAX));
    kvb_prefix_index_count(world->index, &counters);
    assert_int_equal(counters.nodes, 0);
    assert_int_equal(counters.ghosts, 0);
    assert_int_equal(counters.orphans, 0);
    assert_int_equal(counters.memberships, 0);
    assert_int_equal(counters.stored, counters.removed);
    kvb_match_done(&world->match);
    kvb_prefix_index_free(world->index);
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

static struct copier copy_slot(struct world *world, size_t s)
{
    const struct kvb_prefix_index_options options = { .max_nodes = 100000, .max_slots = 1 };
    struct copier copier = { 0 };

    assert_int_equal(kvb_prefix_index_new(&options, &copier.index), KVB_OK);
    assert_int_equal(kvb_prefix_index_slot_new(copier.index, &copier.slot), KVB_OK);
    assert_int_equal(
        kvb_prefix_index_walk(world->index, world->slot[s], copy_run, &copier), KVB_OK);
    assert_int_equal(
        kvb_prefix_index_slot_blocks(copier.index, copier.slot),
        kvb_prefix_index_slot_blocks(world->index, world->slot[s]));
    return copier;
}

/* Names that moved, orphans and circles included: the copy answers alike. */
static void compare_wild_copy(struct world *world, size_t s)
{
    const struct copier copier = copy_slot(world, s);

    for (int q = 0; q < 40; q++) {
        uint8_t query[longest_stored];
        kvb_tokens_hash hashes[longest_stored];
        const size_t len = draw_query(world, query, hashes);
        assert_int_equal(kvb_prefix_index_match(copier.index, hashes, len, &world->match), KVB_OK);
        assert_int_equal(
            world->match.level_count > 0 ? world->match.levels[0].depth : 0,
            model_depth(world, s, query, len));
    }
    kvb_prefix_index_free(copier.index);
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
        compare_query_by_names(&world);
        if (i % 50 == 0) {
            compare_counters(&world);
        }
        if (i % 500 == 0) {
            compare_wild_copy(&world, s);
        }
    }
    end(&world);
}

/* Names say nothing about content: aliases, circles, orphans and holes abound. */
static void agrees_with_a_list_of_paths(void **state)
{
    (void)state;
    for (unsigned seed = 1; seed <= 3; seed++) {
        one_life(seed, 200000);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(agrees_with_a_list_of_paths),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
