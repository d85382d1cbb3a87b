#include "kvb_test.h"

#include "index/prefix_scene.h"

#include <string.h>

int scene_set_up(void **state)
{
    static struct scene scene;
    const struct kvb_prefix_index_options options = { .max_nodes = max_nodes, .max_slots = slots };

    scene = (struct scene){ 0 };
    assert_ok(kvb_prefix_index_new(&options, &scene.index));
    for (size_t s = 0; s < slots; s++) {
        assert_ok(kvb_prefix_index_slot_new(scene.index, &scene.slot[s]));
    }
    *state = &scene;
    return 0;
}

struct kvb_index_counters scene_counted(const struct scene *scene)
{
    struct kvb_index_counters counters;

    (void)kvb_prefix_index_reclaim(scene->index, SIZE_MAX);
    kvb_prefix_index_count(scene->index, &counters);
    return counters;
}

/* Every test ends with this check: with every slot cleared, the index is empty. */
int scene_tear_down(void **state)
{
    struct scene *scene = *state;

    for (size_t s = 0; s < slots; s++) {
        kvb_prefix_index_slot_clear(scene->index, scene->slot[s]);
    }
    const struct kvb_index_counters counters = scene_counted(scene);
    assert_int_equal(counters.nodes, 0);
    assert_int_equal(counters.ghosts, 0);
    assert_int_equal(counters.orphans, 0);
    assert_int_equal(counters.memberships, 0);
    assert_int_equal(counters.stored, counters.removed);
    kvb_match_done(&scene->match);
    kvb_prefix_index_free(scene->index);
    return 0;
}

void scene_store(
    struct scene *scene, size_t s, char parent, const char *names, const char *contents)
{
    kvb_block_hash blocks[longest];
    kvb_tokens_hash tokens[longest];
    const size_t count = strlen(names);

    assert_int_equal(count, strlen(contents));
    assert_true(count <= longest);
    for (size_t i = 0; i < count; i++) {
        blocks[i].value = (uint64_t)names[i];
        tokens[i].value = (uint64_t)contents[i];
    }
    const struct kvb_index_run run = { .has_parent = parent != no_parent,
                                       .parent = { (uint64_t)parent },
                                       .blocks = blocks,
                                       .tokens = tokens,
                                       .count = count };
    memset(scene->changed, 2, sizeof scene->changed);
    assert_ok(kvb_prefix_index_store(scene->index, scene->slot[s], &run, scene->changed));
}

void scene_take(struct scene *scene, size_t s, const char *names)
{
    kvb_block_hash blocks[longest];
    const size_t count = strlen(names);

    for (size_t i = 0; i < count; i++) {
        blocks[i].value = (uint64_t)names[i];
    }
    memset(scene->changed, 2, sizeof scene->changed);
    assert_ok(kvb_prefix_index_remove(scene->index, scene->slot[s], blocks, count, scene->changed));
}

static void note_depth(void *context, kvb_slot_ref slot, uint32_t depth)
{
    struct scene *scene = context;

    for (size_t s = 0; s < slots; s++) {
        if (scene->slot[s].value == slot.value) {
            assert_int_equal(scene->depth[s], 0); /* a slot holds a block in one level only */
            scene->depth[s] = depth;
        }
    }
}

uint32_t scene_depth(struct scene *scene, size_t s, const char *contents)
{
    kvb_tokens_hash query[longest];
    const size_t count = strlen(contents);

    for (size_t i = 0; i < count; i++) {
        query[i].value = (uint64_t)contents[i];
    }
    memset(scene->depth, 0, sizeof scene->depth);
    assert_ok(kvb_prefix_index_match(scene->index, query, count, &scene->match));
    kvb_match_each(&scene->match, note_depth, scene);
    return scene->depth[s];
}

uint32_t scene_depth_by_names(struct scene *scene, size_t s, const char *names)
{
    kvb_block_hash query[longest];
    const size_t count = strlen(names);

    for (size_t i = 0; i < count; i++) {
        query[i].value = (uint64_t)names[i];
    }
    memset(scene->depth, 0, sizeof scene->depth);
    assert_ok(kvb_prefix_index_match_blocks(scene->index, query, count, &scene->match));
    kvb_match_each(&scene->match, note_depth, scene);
    return scene->depth[s];
}

size_t scene_blocks_of(const struct scene *scene, size_t s)
{
    return kvb_prefix_index_slot_blocks(scene->index, scene->slot[s]);
}
