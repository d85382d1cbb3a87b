#include "kvb_test.h"

#include "index/prefix_scene.h"

#include <string.h>

/* What a walk shows, and that storing it gives an equal index. */

/* ---- Walking ---- */

struct shown {
    struct scene *copy; /* the index in which the runs are stored, or NULL */
    size_t runs;
    size_t stop_after;
    char text[256]; /* "A<-BC;" for each run */
};

static kvb_status show(void *context, const struct kvb_index_run *run)
{
    struct shown *shown = context;
    size_t len = strlen(shown->text);

    if (shown->runs++ == shown->stop_after) {
        return KVB_CLOSED;
    }
    assert_true(len + run->count + 4 < sizeof shown->text);
    shown->text[len++] = '/';
    if (run->has_parent) {
        shown->text[len - 1] = (char)run->parent.value;
    }
    for (size_t i = 0; i < run->count; i++) {
        shown->text[len++] = (char)run->blocks[i].value;
    }
    shown->text[len] = ';';
    return shown->copy ? kvb_prefix_index_store(
                             shown->copy->index, shown->copy->slot[0], run, shown->copy->changed)
                       : KVB_OK;
}

static kvb_status walk(struct scene *scene, size_t s, struct shown *shown)
{
    return kvb_prefix_index_walk(scene->index, scene->slot[s], show, shown);
}

/* Slot 1 was the first to store b, and calls its parent P.  Slot 2 stores a and b in one run. */
static void a_run_below_a_hole_names_its_parent_as_its_slot_did(void **state)
{
    struct scene *scene = *state;
    struct shown shown = { .stop_after = SIZE_MAX };

    scene_store(scene, 0, no_parent, "A", "a");
    scene_store(scene, 1, no_parent, "P", "a");
    scene_store(scene, 1, 'P', "B", "b");
    scene_store(scene, 2, no_parent, "AB", "ab");
    scene_take(scene, 2, "A");
    assert_ok(walk(scene, 2, &shown));
    assert_string_equal(shown.text, "AB;");
}

static struct scene copy_of(struct scene *scene, size_t s)
{
    const struct kvb_prefix_index_options options = { .max_nodes = max_nodes, .max_slots = slots };
    struct scene copy = { 0 };

    assert_ok(kvb_prefix_index_new(&options, &copy.index));
    for (size_t i = 0; i < slots; i++) {
        assert_ok(kvb_prefix_index_slot_new(copy.index, &copy.slot[i]));
    }
    struct shown shown = { .copy = &copy, .stop_after = SIZE_MAX };
    assert_ok(walk(scene, s, &shown));
    return copy;
}

static void drop_copy(struct scene *copy)
{
    kvb_match_done(&copy->match);
    kvb_prefix_index_free(copy->index);
}

/* A is stored again, as x. Its child b is below a ghost whose name now stands for another block. A
 * copy that put b below x would list a prefix that nobody holds. */
static void a_walk_does_not_hang_a_block_below_a_name_that_moved(void **state)
{
    struct scene *scene = *state;

    scene_store(scene, 0, no_parent, "AB", "ab");
    scene_store(scene, 0, 'B', "C", "c");
    scene_store(scene, 0, no_parent, "A", "x");
    assert_int_equal(scene_depth(scene, 0, "xbc"), 1);

    struct scene copy = copy_of(scene, 0);
    assert_int_equal(scene_depth(&copy, 0, "xbc"), 1);
    assert_int_equal(scene_depth(&copy, 0, "abc"), 0);
    assert_int_equal(scene_blocks_of(&copy, 0), 3);
    drop_copy(&copy);
}

/* C is below B and B below C. A single run of both would name its own parent. */
static void a_walk_of_a_circle_can_be_stored(void **state)
{
    struct scene *scene = *state;

    scene_store(scene, 0, 'C', "AB", "ab");
    scene_store(scene, 0, 'B', "C", "c");
    struct scene copy = copy_of(scene, 0);
    assert_int_equal(scene_blocks_of(&copy, 0), 3);
    assert_int_equal(scene_depth(&copy, 0, "cab"), 0);
    drop_copy(&copy);
}

#define TRAP(name) cmocka_unit_test_setup_teardown(name, scene_set_up, scene_tear_down)

SUITE(prefix_walk)
{
    const struct CMUnitTest tests[] = {
        TRAP(a_run_below_a_hole_names_its_parent_as_its_slot_did),
        TRAP(a_walk_does_not_hang_a_block_below_a_name_that_moved),
        TRAP(a_walk_of_a_circle_can_be_stored),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
