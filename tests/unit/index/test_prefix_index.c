#include "kvb_test.h"

#include "index/prefix_scene.h"

/* Known traps of a prefix index, one test each. */

/* ---- Held prefixes ---- */

static void an_empty_index_matches_nothing(void **state)
{
    struct scene *scene = *state;

    assert_int_equal(scene_depth(scene, 0, "abc"), 0);
    assert_int_equal(scene_depth(scene, 0, ""), 0);
    assert_int_equal(scene_depth_by_names(scene, 0, "ABC"), 0);
    assert_int_equal(scene->match.level_count, 0);
}

static void the_depth_is_the_unbroken_prefix(void **state)
{
    struct scene *scene = *state;

    scene_store(scene, 0, no_parent, "ABC", "abc");
    assert_int_equal(scene_depth(scene, 0, "abc"), 3);
    assert_int_equal(scene_depth(scene, 0, "abcd"), 3);
    assert_int_equal(scene_depth(scene, 0, "ab"), 2);
    assert_int_equal(scene_depth(scene, 0, "axc"), 1);
    assert_int_equal(scene_depth(scene, 0, "xbc"), 0);
    assert_int_equal(scene_depth(scene, 0, "bc"), 0);
    assert_int_equal(scene_depth(scene, 1, "abc"), 0);
}

static void equal_contents_at_different_positions_are_different_blocks(void **state)
{
    struct scene *scene = *state;

    scene_store(scene, 0, no_parent, "ABC", "aaa");
    assert_int_equal(scene_counted(scene).nodes, 3);
    scene_take(scene, 0, "B");
    assert_int_equal(scene_depth(scene, 0, "aaa"), 1);
    scene_store(scene, 0, no_parent, "D", "b");
    assert_int_equal(scene_depth(scene, 0, "baa"), 1);
}

static void tokens_by_level_follow_the_depth(void **state)
{
    struct scene *scene = *state;

    scene_store(scene, 0, no_parent, "ABC", "abc");
    scene_store(scene, 1, no_parent, "A", "a");
    scene_store(scene, 2, no_parent, "AB", "ab");
    scene_store(scene, 3, no_parent, "X", "x");
    assert_int_equal(scene_depth(scene, 0, "abc"), 3);
    assert_int_equal(scene->depth[1], 1);
    assert_int_equal(scene->depth[2], 2);
    assert_int_equal(scene->depth[3], 0);
    for (size_t i = 1; i < scene->match.level_count; i++) {
        assert_true(scene->match.levels[i - 1].depth <= scene->match.levels[i].depth);
    }
}

static void levels_by_names_rise_in_depth(void **state)
{
    struct scene *scene = *state;

    scene_store(scene, 0, no_parent, "ABC", "abc");
    scene_store(scene, 1, no_parent, "A", "a");
    scene_store(scene, 2, no_parent, "AB", "ab");
    scene_store(scene, 3, no_parent, "A", "a");
    assert_int_equal(scene_depth_by_names(scene, 0, "ABC"), 3);
    assert_int_equal(scene->match.level_count, 4);
    assert_int_equal(scene->match.levels[0].slot, scene->slot[1].value);
    assert_int_equal(scene->match.levels[1].slot, scene->slot[3].value);
    assert_int_equal(scene->match.levels[2].slot, scene->slot[2].value);
    assert_int_equal(scene->match.levels[3].slot, scene->slot[0].value);
}

static void a_store_says_which_blocks_came(void **state)
{
    struct scene *scene = *state;

    scene_store(scene, 0, no_parent, "AB", "ab");
    scene_store(scene, 0, no_parent, "ABC", "abc");
    assert_memory_equal(scene->changed, "\0\0\1", 3);
    scene_take(scene, 0, "CXC");
    assert_memory_equal(scene->changed, "\1\0\0", 3);
}

static void an_empty_run_changes_nothing(void **state)
{
    struct scene *scene = *state;

    scene_store(scene, 0, 'P', "", "");
    assert_int_equal(scene_counted(scene).nodes, 0);
    assert_int_equal(scene_counted(scene).unknown_parents, 0);
}

/* ---- Holes and ghosts ---- */

static void a_hole_ends_the_prefix_until_it_is_filled(void **state)
{
    struct scene *scene = *state;

    scene_store(scene, 0, no_parent, "ABCD", "abcd");
    scene_take(scene, 0, "B");
    assert_int_equal(scene_depth(scene, 0, "abcd"), 1);
    assert_int_equal(scene_blocks_of(scene, 0), 3);
    scene_store(scene, 0, 'A', "B", "b");
    assert_int_equal(scene_depth(scene, 0, "abcd"), 4);
}

static void a_removed_first_block_hides_all(void **state)
{
    struct scene *scene = *state;

    scene_store(scene, 0, no_parent, "ABC", "abc");
    scene_take(scene, 0, "A");
    assert_int_equal(scene_depth(scene, 0, "abc"), 0);
    scene_store(scene, 0, no_parent, "A", "a");
    assert_int_equal(scene_depth(scene, 0, "abc"), 3);
}

static void a_ghost_stays_until_nothing_below_is_held(void **state)
{
    struct scene *scene = *state;

    scene_store(scene, 0, no_parent, "ABC", "abc");
    scene_take(scene, 0, "AB");
    assert_int_equal(scene_counted(scene).nodes, 3);
    assert_int_equal(scene_counted(scene).ghosts, 2);
    scene_take(scene, 0, "C");
    assert_int_equal(scene_counted(scene).nodes, 0);
    assert_int_equal(scene_counted(scene).ghosts, 0);
}

static void a_ghost_with_two_branches_waits_for_both(void **state)
{
    struct scene *scene = *state;

    scene_store(scene, 0, no_parent, "ABC", "abc");
    scene_store(scene, 1, no_parent, "ABD", "abd");
    scene_take(scene, 0, "AB");
    scene_take(scene, 1, "AB");
    assert_int_equal(scene_counted(scene).ghosts, 2);
    scene_take(scene, 0, "C");
    assert_int_equal(scene_counted(scene).nodes, 3);
    scene_take(scene, 1, "D");
    assert_int_equal(scene_counted(scene).nodes, 0);
}

/* The hole must be counted for its own slot only. */
static void a_hole_of_one_slot_is_not_one_of_another(void **state)
{
    struct scene *scene = *state;

    scene_store(scene, 0, no_parent, "ABC", "abc");
    scene_store(scene, 1, no_parent, "ABC", "abc");
    scene_take(scene, 0, "B");
    assert_int_equal(scene_depth(scene, 0, "abc"), 1);
    assert_int_equal(scene->depth[1], 3);
    assert_int_equal(scene_counted(scene).ghosts, 0);
}

/* ---- Names ---- */

static void equal_contents_share_nodes_whatever_their_names(void **state)
{
    struct scene *scene = *state;

    scene_store(scene, 0, no_parent, "ABC", "abc");
    scene_store(scene, 1, no_parent, "XYZ", "abc");
    assert_int_equal(scene_counted(scene).nodes, 3);
    assert_int_equal(scene_counted(scene).memberships, 6);
    assert_int_equal(scene_depth(scene, 0, "abc"), 3);
    assert_int_equal(scene->depth[1], 3);
    assert_int_equal(scene_depth_by_names(scene, 0, "ABC"), 3);
    assert_int_equal(scene->depth[1], 0);
    assert_int_equal(scene_depth_by_names(scene, 1, "XYZ"), 3);
    assert_int_equal(scene_counted(scene).aliases, 0);
}

static void a_slot_removes_by_its_own_names_alone(void **state)
{
    struct scene *scene = *state;

    scene_store(scene, 0, no_parent, "ABC", "abc");
    scene_store(scene, 1, no_parent, "XYZ", "abc");
    scene_take(scene, 1, "ABC");
    assert_memory_equal(scene->changed, "\0\0\0", 3);
    assert_int_equal(scene_counted(scene).unknown_removed, 3);
    scene_take(scene, 1, "Y");
    assert_int_equal(scene_depth(scene, 1, "abc"), 1);
    assert_int_equal(scene->depth[0], 3);
}

/* B is the name of b in one slot and of c in the other, and is a parent in both. */
static void one_name_may_mean_two_things_in_two_slots(void **state)
{
    struct scene *scene = *state;

    scene_store(scene, 0, no_parent, "AB", "ab");
    scene_store(scene, 1, no_parent, "AB", "ac");
    scene_store(scene, 0, 'B', "D", "d");
    scene_store(scene, 1, 'B', "E", "d");
    assert_int_equal(scene_depth(scene, 0, "abd"), 3);
    assert_int_equal(scene->depth[1], 1);
    assert_int_equal(scene_depth(scene, 1, "acd"), 3);
    assert_int_equal(scene->depth[0], 1);
    scene_take(scene, 0, "B");
    assert_int_equal(scene_depth(scene, 1, "acd"), 3);
    assert_int_equal(scene_depth(scene, 0, "abd"), 1);
}

/* Another slot's name for a block does not identify a parent for this slot. */
static void a_parent_is_looked_for_among_the_slots_own_names(void **state)
{
    struct scene *scene = *state;

    scene_store(scene, 0, no_parent, "AB", "ab");
    scene_store(scene, 1, 'B', "C", "c");
    assert_int_equal(scene_counted(scene).unknown_parents, 1);
    assert_int_equal(scene_depth(scene, 1, "abc"), 0);
    scene_store(scene, 1, no_parent, "AB", "ab");
    assert_int_equal(scene_depth(scene, 1, "abc"), 3);
    assert_int_equal(scene->depth[0], 2);
}

static void an_alias_is_placed_by_content_and_counted(void **state)
{
    struct scene *scene = *state;

    scene_store(scene, 0, no_parent, "AB", "ab");
    scene_store(scene, 0, no_parent, "B", "x"); /* B was the name of b below a */
    assert_int_equal(scene_counted(scene).aliases, 1);
    assert_memory_equal(scene->changed, "\0", 1);
    assert_int_equal(scene_depth(scene, 0, "ab"), 1);
    assert_int_equal(scene_depth(scene, 0, "x"), 1);
    assert_int_equal(scene_blocks_of(scene, 0), 2);
    assert_int_equal(scene_counted(scene).nodes, 2);
    scene_take(scene, 0, "B");
    assert_int_equal(scene_depth(scene, 0, "x"), 0);
    assert_int_equal(scene_depth(scene, 0, "a"), 1);
}

static void an_alias_touches_no_other_slot(void **state)
{
    struct scene *scene = *state;

    scene_store(scene, 0, no_parent, "AB", "ab");
    scene_store(scene, 1, no_parent, "AB", "ab");
    scene_store(scene, 0, no_parent, "B", "x");
    assert_int_equal(scene_depth(scene, 1, "ab"), 2);
    scene_take(scene, 0, "B");
    assert_int_equal(scene_depth(scene, 1, "ab"), 2);
    assert_int_equal(scene_depth_by_names(scene, 1, "AB"), 2);
}

static void a_block_of_two_names_is_held_until_both_go(void **state)
{
    struct scene *scene = *state;

    scene_store(scene, 0, no_parent, "A", "a");
    scene_store(scene, 0, no_parent, "B", "a");
    assert_int_equal(scene_blocks_of(scene, 0), 2); /* both names count */
    assert_int_equal(scene_counted(scene).nodes, 1);
    scene_store(scene, 0, 'B', "C", "c");
    scene_take(scene, 0, "A");
    assert_int_equal(scene_depth(scene, 0, "ac"), 2);
    scene_take(scene, 0, "B");
    assert_int_equal(scene_depth(scene, 0, "ac"), 0);
}

static void a_name_twice_in_a_run_stands_for_the_later_block(void **state)
{
    struct scene *scene = *state;

    scene_store(scene, 0, no_parent, "AA", "ab");
    assert_memory_equal(scene->changed, "\1\0", 2);
    assert_int_equal(scene_blocks_of(scene, 0), 1);
    assert_int_equal(scene_counted(scene).aliases, 1);
    assert_int_equal(scene_depth(scene, 0, "ab"), 0); /* a has become a ghost */
    assert_int_equal(scene_counted(scene).ghosts, 1);
}

/* ---- Orphans ---- */

static void an_orphan_is_not_matched_until_its_parent_is_stored(void **state)
{
    struct scene *scene = *state;

    scene_store(scene, 0, 'A', "BC", "bc");
    assert_int_equal(scene_depth(scene, 0, "abc"), 0);
    assert_int_equal(scene_depth(scene, 0, "bc"), 0);
    assert_int_equal(scene_depth_by_names(scene, 0, "BC"), 0);
    assert_int_equal(scene_blocks_of(scene, 0), 2);
    assert_int_equal(scene_counted(scene).orphans, 3); /* counts the placeholder too */
    assert_int_equal(scene_counted(scene).unknown_parents, 1);
    scene_store(scene, 0, no_parent, "A", "a");
    assert_int_equal(scene_depth(scene, 0, "abc"), 3);
    assert_int_equal(scene_depth_by_names(scene, 0, "ABC"), 3);
    assert_int_equal(scene_counted(scene).orphans, 0);
    assert_int_equal(scene_counted(scene).nodes, 3);
}

static void orphans_below_orphans_join_in_any_order(void **state)
{
    struct scene *scene = *state;

    scene_store(scene, 0, 'C', "D", "d");
    scene_store(scene, 0, 'A', "B", "b");
    scene_store(scene, 0, 'B', "C", "c"); /* still below A, which is not stored */
    assert_int_equal(scene_depth(scene, 0, "abcd"), 0);
    assert_int_equal(scene_counted(scene).orphans, 4);
    scene_store(scene, 0, no_parent, "A", "a");
    assert_int_equal(scene_depth(scene, 0, "abcd"), 4);
    assert_int_equal(scene_counted(scene).orphans, 0);
}

static void an_orphan_merges_with_content_that_is_there(void **state)
{
    struct scene *scene = *state;

    scene_store(scene, 1, no_parent, "ABCD", "abcd");
    scene_store(scene, 0, 'A', "BC", "bc");
    scene_store(scene, 0, 'B', "X", "x");
    assert_int_equal(scene_counted(scene).nodes, 8);
    scene_store(scene, 0, no_parent, "A", "a");
    assert_int_equal(scene_counted(scene).nodes, 5); /* blocks a b c d x */
    assert_int_equal(scene_depth(scene, 0, "abcd"), 3);
    assert_int_equal(scene->depth[1], 4);
    assert_int_equal(scene_depth(scene, 0, "abx"), 3);
    assert_int_equal(scene->depth[1], 2);
    scene_take(scene, 0, "B");
    assert_int_equal(scene_depth(scene, 0, "abcd"), 1);
    assert_int_equal(scene->depth[1], 4);
}

static void orphans_of_several_slots_join_each_by_itself(void **state)
{
    struct scene *scene = *state;

    scene_store(scene, 0, 'A', "B", "b");
    scene_store(scene, 1, 'A', "B", "b");
    scene_store(scene, 2, 'Z', "B", "b"); /* this slot's name for it is Z */
    scene_store(scene, 0, no_parent, "A", "a");
    assert_int_equal(scene_depth(scene, 0, "ab"), 2);
    assert_int_equal(scene->depth[1], 0);
    assert_int_equal(scene->depth[2], 0);
    scene_store(scene, 1, no_parent, "A", "q"); /* the same name, other content */
    scene_store(scene, 2, no_parent, "Z", "a");
    assert_int_equal(scene_depth(scene, 1, "qb"), 2);
    assert_int_equal(scene_depth(scene, 0, "ab"), 2);
    assert_int_equal(scene->depth[1], 0);
    assert_int_equal(scene->depth[2], 2);
    assert_int_equal(scene_counted(scene).orphans, 0);
}

/* A ghost is not found by name: a block that is stored below it waits for its parent. */
static void a_removed_parent_is_an_unknown_parent(void **state)
{
    struct scene *scene = *state;

    scene_store(scene, 0, no_parent, "AB", "ab");
    scene_take(scene, 0, "A");
    scene_store(scene, 0, 'A', "C", "c");
    assert_int_equal(scene_counted(scene).unknown_parents, 1);
    scene_store(scene, 0, no_parent, "A", "a");
    assert_int_equal(scene_depth(scene, 0, "ab"), 2);
    assert_int_equal(scene_depth(scene, 0, "ac"), 2);
}

static void a_removed_orphan_takes_its_placeholder_along(void **state)
{
    struct scene *scene = *state;

    scene_store(scene, 0, 'A', "BC", "bc");
    scene_take(scene, 0, "BC");
    assert_int_equal(scene_counted(scene).nodes, 0);
    scene_store(scene, 0, no_parent, "A", "a");
    assert_int_equal(scene_depth(scene, 0, "abc"), 1);
}

static void names_in_a_circle_stay_unreachable(void **state)
{
    struct scene *scene = *state;

    scene_store(scene, 0, 'B', "A", "a");
    scene_store(scene, 0, 'A', "B", "b"); /* B waits for A, which is below B */
    assert_int_equal(scene_depth(scene, 0, "ab"), 0);
    assert_int_equal(scene_depth(scene, 0, "ba"), 0);
    assert_int_equal(scene_blocks_of(scene, 0), 2);
    scene_store(scene, 0, no_parent, "B", "b"); /* now A begins a prompt */
    assert_int_equal(scene_depth(scene, 0, "ba"), 2);
}

/* ---- Refusals and mistakes ---- */

static void a_duplicate_store_changes_nothing(void **state)
{
    struct scene *scene = *state;

    scene_store(scene, 0, no_parent, "AB", "ab");
    scene_store(scene, 0, no_parent, "AB", "ab");
    assert_memory_equal(scene->changed, "\0\0", 2);
    assert_int_equal(scene_counted(scene).duplicate_stored, 2);
    assert_int_equal(scene_counted(scene).memberships, 2);
    scene_take(scene, 0, "B"); /* one removal is enough */
    assert_int_equal(scene_depth(scene, 0, "ab"), 1);
}

static void an_unknown_remove_is_counted(void **state)
{
    struct scene *scene = *state;

    scene_store(scene, 0, no_parent, "A", "a");
    scene_take(scene, 0, "XAA");
    assert_memory_equal(scene->changed, "\0\1\0", 3);
    assert_int_equal(scene_counted(scene).unknown_removed, 2);
    assert_int_equal(scene_counted(scene).removed, 1);
}

static void a_run_that_names_its_own_parent_is_refused_whole(void **state)
{
    struct scene *scene = *state;

    scene_store(scene, 0, no_parent, "A", "a");
    assert_int_equal(scene_try_store(scene, 0, 'A', "BAC", "bac"), KVB_BAD_INPUT);
    assert_memory_equal(scene->changed, "\0\0\0", 3);
    assert_int_equal(scene_counted(scene).self_parents, 1);
    assert_int_equal(scene_counted(scene).nodes, 1);
    assert_int_equal(scene_try_store(scene, 0, 'X', "X", "x"), KVB_BAD_INPUT);
    assert_int_equal(scene_counted(scene).nodes, 1);
    assert_int_equal(scene_counted(scene).unknown_parents, 0);
}

static void the_ceiling_refuses_the_rest_of_a_run(void **state)
{
    struct scene *scene = *state;
    const char *names = "ABCDEFGHIJKLMNOPQRST";

    scene_store(scene, 0, no_parent, names, "abcdefghijklmnopqrst");              /* 20 of 40 */
    scene_store(scene, 1, no_parent, "ABCDEFGHIJKLMNOPQR", "zbcdefghijklmnopqr"); /* nodes in use */
    assert_int_equal(scene_try_store(scene, 0, 'T', "UVW", "uvw"), KVB_TOO_LARGE);
    assert_memory_equal(scene->changed, "\1\1\0", 3);
    assert_int_equal(scene_counted(scene).refused, 1);
    assert_int_equal(scene_counted(scene).nodes, max_nodes);
    assert_int_equal(scene_depth(scene, 0, "abcdefghijklmnopqrstuvw"), 22);
    scene_store(scene, 2, no_parent, "AB", "ab"); /* content that is already there needs no room */
    assert_int_equal(scene_try_store(scene, 2, 'B', "C", "x"), KVB_TOO_LARGE);
    scene_take(scene, 0, "V");
    scene_store(scene, 2, 'B', "C", "x");
    assert_int_equal(scene_depth(scene, 2, "abx"), 3);
}

/* There is room for one orphan, which counts as three nodes. The placeholder takes it, the block is
 * refused, and the placeholder is then not needed. */
static void a_refused_orphan_leaves_no_placeholder(void **state)
{
    struct scene *scene = *state;

    scene_store(scene, 0, no_parent, "ABCDEFGHIJKLMNOPQRST", "abcdefghijklmnopqrst");
    scene_store(scene, 1, no_parent, "ABCDEFGHIJKLMNO", "zbcdefghijklmno");
    assert_int_equal(scene_try_store(scene, 2, 'P', "XY", "xy"), KVB_TOO_LARGE);
    assert_memory_equal(scene->changed, "\0\0", 2);
    assert_int_equal(scene_counted(scene).refused, 2);
    assert_int_equal(scene_counted(scene).nodes, max_nodes - 5);
    assert_int_equal(scene_counted(scene).orphans, 0);
    scene_store(scene, 3, no_parent, "XYZ", "xyz");
    assert_int_equal(scene_try_store(scene, 2, 'P', "XY", "xy"), KVB_TOO_LARGE);
    assert_int_equal(scene_counted(scene).nodes, max_nodes - 2);
    assert_int_equal(scene_blocks_of(scene, 2), 0);
}

/* ---- Slots ---- */

static void slots_run_out_and_come_back(void **state)
{
    struct scene *scene = *state;
    kvb_slot_ref slot = { 99 };

    assert_int_equal(kvb_prefix_index_slot_new(scene->index, &slot), KVB_TOO_LARGE);
    assert_int_equal(slot.value, 99);
    kvb_prefix_index_slot_free(scene->index, scene->slot[2]);
    assert_ok(kvb_prefix_index_slot_new(scene->index, &slot));
    assert_int_equal(slot.value, scene->slot[2].value);

    kvb_prefix_index_slot_free(scene->index, scene->slot[1]);
    kvb_prefix_index_slot_free(scene->index, scene->slot[3]);
    assert_ok(kvb_prefix_index_slot_new(scene->index, &slot));
    assert_int_equal(slot.value, scene->slot[3].value);
    assert_ok(kvb_prefix_index_slot_new(scene->index, &slot));
    assert_int_equal(slot.value, scene->slot[1].value);
    assert_int_equal(kvb_prefix_index_slot_new(scene->index, &slot), KVB_TOO_LARGE);
}

static void a_cleared_slot_holds_nothing_and_affects_no_other(void **state)
{
    struct scene *scene = *state;

    scene_store(scene, 0, no_parent, "ABC", "abc");
    scene_store(scene, 0, 'P', "Q", "q");
    scene_store(scene, 1, no_parent, "AB", "ab");
    scene_take(scene, 1, "A"); /* its b is below an a that only slot 0 holds */
    kvb_prefix_index_slot_clear(scene->index, scene->slot[0]);
    assert_int_equal(scene_blocks_of(scene, 0), 0);
    assert_int_equal(scene_depth(scene, 0, "abc"), 0);
    assert_int_equal(scene_counted(scene).nodes, 2);
    assert_int_equal(scene_counted(scene).ghosts, 1);
    assert_int_equal(scene_counted(scene).orphans, 0);
    scene_store(scene, 1, no_parent, "A", "a");
    assert_int_equal(scene_depth(scene, 1, "ab"), 2);
    scene_store(scene, 0, no_parent, "A", "a"); /* still in use */
    assert_int_equal(scene_depth(scene, 0, "abc"), 1);
}

static void a_reused_slot_starts_empty(void **state)
{
    struct scene *scene = *state;

    scene_store(scene, 0, no_parent, "AB", "ab");
    scene_store(scene, 0, 'P', "Q", "q"); /* an orphan that waits for P */
    scene_store(scene, 1, no_parent, "AB", "ab");
    kvb_prefix_index_slot_free(scene->index, scene->slot[0]);
    assert_ok(kvb_prefix_index_slot_new(scene->index, &scene->slot[0]));
    assert_int_equal(scene_depth(scene, 0, "ab"), 0);
    assert_int_equal(scene_depth_by_names(scene, 0, "AB"), 0);
    scene_store(scene, 0, no_parent, "P", "p");
    assert_int_equal(scene_depth(scene, 0, "pq"), 1);
    scene_take(scene, 0, "A");
    assert_memory_equal(scene->changed, "\0", 1);
    assert_int_equal(scene_depth(scene, 1, "ab"), 2);
}

/* ---- Queries by names ---- */

static void a_query_by_names_follows_parents(void **state)
{
    struct scene *scene = *state;

    scene_store(scene, 0, no_parent, "ABC", "abc");
    scene_store(scene, 0, 'A', "D", "d");
    assert_int_equal(scene_depth_by_names(scene, 0, "ABC"), 3);
    assert_int_equal(scene_depth_by_names(scene, 0, "ABD"), 2); /* D is not a child of B */
    assert_int_equal(scene_depth_by_names(scene, 0, "AD"), 2);
    assert_int_equal(scene_depth_by_names(scene, 0, "BC"), 0); /* B does not begin a prompt */
    scene_take(scene, 0, "B");
    assert_int_equal(scene_depth_by_names(scene, 0, "ABC"), 1);
}

#define TRAP(name) cmocka_unit_test_setup_teardown(name, scene_set_up, scene_tear_down)

SUITE(prefix_index)
{
    const struct CMUnitTest tests[] = {
        TRAP(an_empty_index_matches_nothing),
        TRAP(the_depth_is_the_unbroken_prefix),
        TRAP(equal_contents_at_different_positions_are_different_blocks),
        TRAP(tokens_by_level_follow_the_depth),
        TRAP(levels_by_names_rise_in_depth),
        TRAP(a_store_says_which_blocks_came),
        TRAP(an_empty_run_changes_nothing),
        TRAP(a_hole_ends_the_prefix_until_it_is_filled),
        TRAP(a_removed_first_block_hides_all),
        TRAP(a_ghost_stays_until_nothing_below_is_held),
        TRAP(a_ghost_with_two_branches_waits_for_both),
        TRAP(a_hole_of_one_slot_is_not_one_of_another),
        TRAP(equal_contents_share_nodes_whatever_their_names),
        TRAP(a_slot_removes_by_its_own_names_alone),
        TRAP(one_name_may_mean_two_things_in_two_slots),
        TRAP(a_parent_is_looked_for_among_the_slots_own_names),
        TRAP(an_alias_is_placed_by_content_and_counted),
        TRAP(an_alias_touches_no_other_slot),
        TRAP(a_block_of_two_names_is_held_until_both_go),
        TRAP(a_name_twice_in_a_run_stands_for_the_later_block),
        TRAP(an_orphan_is_not_matched_until_its_parent_is_stored),
        TRAP(orphans_below_orphans_join_in_any_order),
        TRAP(an_orphan_merges_with_content_that_is_there),
        TRAP(orphans_of_several_slots_join_each_by_itself),
        TRAP(a_removed_parent_is_an_unknown_parent),
        TRAP(a_removed_orphan_takes_its_placeholder_along),
        TRAP(names_in_a_circle_stay_unreachable),
        TRAP(a_duplicate_store_changes_nothing),
        TRAP(an_unknown_remove_is_counted),
        TRAP(a_run_that_names_its_own_parent_is_refused_whole),
        TRAP(the_ceiling_refuses_the_rest_of_a_run),
        TRAP(a_refused_orphan_leaves_no_placeholder),
        TRAP(slots_run_out_and_come_back),
        TRAP(a_cleared_slot_holds_nothing_and_affects_no_other),
        TRAP(a_reused_slot_starts_empty),
        TRAP(a_query_by_names_follows_parents),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
