#include "kvb_test.h"

#include "index/prefix_scene.h"
#include "index/whole_walk.h"

#include <string.h>

/* Slots that give the same content different names. */

static kvb_status show(void *context, const struct kvb_index_run *run)
{
    char *text = context;
    size_t len = strlen(text);

    text[len++] = (char)(run->has_parent ? run->parent.value : '/');
    for (size_t i = 0; i < run->count; i++) {
        text[len++] = (char)run->blocks[i].value;
    }
    text[len] = ';';
    return KVB_OK;
}

static void assert_walk(struct scene *scene, size_t s, const char *expected)
{
    char text[128] = "";

    assert_ok(whole_walk(scene->index, scene->slot[s], SIZE_MAX, show, text));
    assert_string_equal(text, expected);
}

/* A block below a removed one keeps the name that its slot gave its parent, whatever is stored
 * later. */
static void a_block_below_a_hole_remembers_its_parents_name(void **state)
{
    struct scene *scene = *state;

    scene_store(scene, 0, no_parent, "ABC", "abc");
    scene_store(scene, 1, no_parent, "WXY", "abc");
    scene_take(scene, 1, "X");
    assert_walk(scene, 1, "/W;XY;");
    scene_store(scene, 1, 'W', "Q", "b");
    assert_walk(scene, 1, "/WQY;");
    assert_int_equal(scene_depth_by_names(scene, 1, "WQY"), 3);
    scene_take(scene, 1, "Q");
    assert_walk(scene, 1, "/W;XY;");
    assert_int_equal(scene_depth(scene, 1, "abc"), 1);
}

/* Slot 1 was the first to store b, and calls its parent P.  Slot 2 stores a and b in one run. */
static void a_run_below_a_hole_names_its_parent_as_its_slot_did(void **state)
{
    struct scene *scene = *state;

    scene_store(scene, 0, no_parent, "A", "a");
    scene_store(scene, 1, no_parent, "P", "a");
    scene_store(scene, 1, 'P', "B", "b");
    scene_store(scene, 2, no_parent, "AB", "ab");
    scene_take(scene, 2, "A");
    assert_walk(scene, 2, "AB;");
}

/* The slot continues where no other slot has been. There its names become the canonical ones,
 * except that the first block's parent has another name in this slot. */
static void names_of_its_own_continue_as_canonical_ones(void **state)
{
    struct scene *scene = *state;

    scene_store(scene, 0, no_parent, "AB", "ab");
    scene_store(scene, 1, no_parent, "WXYZVU", "abcdef");
    assert_walk(scene, 1, "/WXYZVU;");
    scene_take(scene, 1, "X");
    assert_walk(scene, 1, "/W;XYZVU;");
    scene_take(scene, 1, "UVZYW");
    assert_int_equal(scene_blocks_of(scene, 1), 0);
    assert_walk(scene, 0, "/AB;");
    assert_int_equal(scene_counted(scene).nodes, 2);
}

/* Slot 1 once had its own name for a. One removal takes slot 0's last own name and then its
 * canonical name for a, after which no slot needs a. */
static void canonical_names_are_removed_after_the_last_own_name(void **state)
{
    struct scene *scene = *state;

    scene_store(scene, 0, no_parent, "A", "a");
    scene_store(scene, 1, no_parent, "X", "a");
    scene_take(scene, 1, "X");
    scene_store(scene, 1, no_parent, "B", "b");
    scene_store(scene, 0, no_parent, "Y", "b");
    scene_take(scene, 0, "YA");
    assert_int_equal(scene_blocks_of(scene, 0), 0);
    assert_int_equal(scene_counted(scene).nodes, 1);
    assert_int_equal(scene_counted(scene).ghosts, 0);
}

/* Two slots continue from the same block, which neither calls by its canonical name. Slot 1 goes
 * first, and slot 2 continues where slot 1 stopped, in the same extent. */
static void each_slot_keeps_its_name_of_the_parent_it_continued_from(void **state)
{
    struct scene *scene = *state;

    scene_store(scene, 0, no_parent, "AB", "ab");
    scene_store(scene, 1, no_parent, "WXY", "abc");
    scene_store(scene, 2, no_parent, "KLMN", "abcd");
    scene_store(scene, 3, no_parent, "AB", "ab");
    scene_store(scene, 3, 'B', "YN", "cd");
    scene_take(scene, 1, "X");
    scene_take(scene, 2, "LM");
    scene_take(scene, 3, "BY");
    assert_walk(scene, 1, "/W;XY;");
    assert_walk(scene, 2, "/K;MN;");
    assert_walk(scene, 3, "/A;YN;");
    scene_take(scene, 1, "YW");
    scene_take(scene, 2, "NK");
    scene_take(scene, 3, "N");
    scene_store(scene, 1, no_parent, "WX", "ab");
    scene_store(scene, 1, 'X', "Y", "c");
    scene_take(scene, 1, "X");
    assert_walk(scene, 1, "/W;XY;");
}

#define TEST(test) cmocka_unit_test_setup_teardown(test, scene_set_up, scene_tear_down)

SUITE(prefix_pages)
{
    const struct CMUnitTest tests[] = {
        TEST(a_block_below_a_hole_remembers_its_parents_name),
        TEST(a_run_below_a_hole_names_its_parent_as_its_slot_did),
        TEST(names_of_its_own_continue_as_canonical_ones),
        TEST(canonical_names_are_removed_after_the_last_own_name),
        TEST(each_slot_keeps_its_name_of_the_parent_it_continued_from),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
