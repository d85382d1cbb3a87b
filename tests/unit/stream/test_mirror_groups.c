#include "kvb_test.h"

#include "batch_maker.h"
#include "mirror_scene.h"
#include "mirror_script.h"

/* Cache groups of hybrid models, and shapes of blocks.  Most mirrors are counted, so that no store
 * leaves a doubt. */

static void store_in_group(struct mirror_scene *scene, uint32_t group)
{
    add_stored(&scene->batch, NULL, &(uint64_t){ 901 }, &(uint32_t){ 1 }, 1);
    of_full_group(scene, group);
    mirror_scene_apply(scene);
}

static void more_groups_than_the_maximum_are_unsupported(void **state)
{
    (void)state;
    struct mirror_scene scene;
    const struct kvb_mirror_counts *counts;

    mirror_scene_begin(&scene, &(struct kvb_mirror_options){ .copies = KVB_COPIES_COUNTED });
    counts = kvb_mirror_count(scene.mirror);
    for (uint32_t group = 0; group < 33; group++) {
        assert_false(kvb_mirror_has_odd_groups(scene.mirror));
        store_in_group(&scene, 1000 + group);
    }
    assert_non_null(strstr(kvb_mirror_odd_groups_why(scene.mirror), "more than 32"));
    assert_int_equal(counts->groups_refused, 1);
    assert_int_equal(scene.lists[KVB_TIER_DEVICE].count, 1); /* copies of the other groups */
    add_removed(&scene.batch, &(uint64_t){ 901 }, 1);
    of_full_group(&scene, 1032);
    mirror_scene_apply(&scene);
    assert_int_equal(scene.lists[KVB_TIER_DEVICE].count, 1);
    assert_int_equal(counts->unknown_removed, 1);
    mirror_scene_end(&scene);
}

static void store_of_size(struct mirror_scene *scene, uint64_t hash, uint32_t block_size)
{
    const uint32_t tokens[kvb_max_tier_shapes + 1] = { 0 };
    const uint64_t hashes[kvb_max_tier_shapes + 1] = { hash };

    add_stored(&scene->batch, NULL, hashes, tokens, block_size); /* as many names as tokens */
    last_event(&scene->batch)->hash_count = 1;
    last_event(&scene->batch)->block_size = block_size;
    mirror_scene_apply(scene);
}

static void one_shape_too_many_is_skipped(void **state)
{
    (void)state;
    struct mirror_scene scene;
    const struct kvb_mirror_counts *counts;

    mirror_scene_begin(&scene, &(struct kvb_mirror_options){ .copies = KVB_COPIES_COUNTED });
    counts = kvb_mirror_count(scene.mirror);
    for (uint32_t size = 1; size <= kvb_max_tier_shapes + 1; size++) {
        store_of_size(&scene, 700 + size, size);
    }
    assert_int_equal(scene.lists[KVB_TIER_DEVICE].count, kvb_max_tier_shapes);
    assert_int_equal(counts->shapes_refused, 1);
    store_of_size(&scene, 799, 3); /* a known shape */
    assert_int_equal(counts->proven_copies, kvb_max_tier_shapes + 1);
    assert_int_equal(counts->shapes_refused, 1);
    mirror_scene_end(&scene);
}

SUITE(mirror_groups)
{
    const struct CMUnitTest tests[] = {
        /* ---- Groups of full attention ---- */

        /* An offload connector stores, in a tier of its own, only blocks of one group. */
        MIRROR(
            "a group counts only in tiers in which it stores",
            "mirror counted, stored 1 group 0, stored 1 group 1, stored 1 no-tokens host,"
            "has host 1"),
        MIRROR(
            "groups outlive a clear but no restart",
            "mirror counted, stored 1 group 0, stored 1 group 1, stored 1 group 2 window 3,"
            "cleared, windows 3/1, stored 1 group 0, device 0, restart, windows none,"
            "stored 1 group 0, device 1"),
        MIRROR(
            "one tier is cleared in all groups",
            "mirror counted, stored 1 2 group 0, stored 1 2 group 1, stored 1 2 group 2 window 3,"
            "cleared device, device 0, window 0"),

        /* ---- Windows ---- */

        /* It is in no list, but its removal is recognised. */
        MIRROR(
            "a block of a window is unplaced until a group of full attention has it",
            "mirror counted, stored 1 group 0, stored 3 parent 2 sparse group 1 window 3,"
            "stored 4 parent 3 sparse group 1 window 3,"
            /* its parent is unplaced too */
            "stored 4 parent 3 group 1 window 3, window 0, unplaced 2, removed 3 group 1,"
            "unplaced 1, unknown-removed 0, stored 2 3 parent 1 group 0, unplaced 0, window 1,"
            "has window 1.2.3.4"),
        /* Both blocks wait for their parent. */
        MIRROR(
            "a block of a window is named when that of full attention is",
            "mirror counted, stored 2 2 parent 1 group 0, stored 2 2 parent 1 group 1 window 3,"
            "unplaced 2, stored 1 group 0, unplaced 0, window 2, has window 1.2.3"),
        /* A connector that offloads windows: no list contains such blocks. */
        MIRROR(
            "in other tiers blocks of windows are ignored",
            "mirror counted, stored 1 2 group 0, stored 1 2 group 1 window 3 host,"
            "removed 1 group 1 host, host 0, window-elsewhere 3, unknown-removed 0"),
        MIRROR(
            "windows of several lengths are listed apart",
            "mirror counted, stored 1 3 group 0, stored 1 3 group 1 window 3,"
            "stored 1 2 group 2 window 5,"
            /* of the kind of group 1 */
            "stored 2 2 parent 1 group 3 window 3, even, windows 3/1 5/1, has window 1.2 1.2.3,"
            "lacks window 1, has window1 1 1.2, lacks window1 1.2.3, removed 2 group 3,"
            "lacks window 1.2, has window1 1.2, removed 2 group 2, lacks window1 1.2,"
            "full-groups 0, window-groups 0 1 3, window-groups 1 2"),
        /* Its first Stored takes out of the list only what the groups of its kind must hold
         * together. */
        MIRROR(
            "a new group leaves windows of other lengths alone",
            "mirror counted, stored 1 3 group 0, stored 1 3 group 1 window 3,"
            "stored 1 3 group 2 window 5, stored 3 parent 2 group 3 window 5, has window 1 1.2.3,"
            "lacks window1 1, has window1 1.2.3"),
        /* Without full attention to tell a copy from a re-announcement: that one ends where a hit
         * ended, and a hit ends with held blocks, as many as the window reaches over. */
        MIRROR(
            "windows alone are certain when their last blocks are new",
            "mirror, stored 1 3 group 0 window 3, window 3, removed 1 group 0,"
            /* the last two are held: perhaps announced again */
            "stored 1 3 group 0 window 3, window 2, removed 3 group 0, removed 3 group 0,"
            "stored 1 3 group 0 window 3, window 3"),
        MIRROR(
            "chunks are listed where their size is configured",
            "mirror counted chunk-tokens 2, stored 1 3 group 0,"
            "stored 2 2 parent 1 group 1 chunked, even, windows c2/1, window 2"),
        MIRROR(
            "chunks of an unknown size are odd",
            "mirror counted, stored 1 3 group 0, stored 2 2 parent 1 group 1 chunked,"
            "odd attention_chunk, window 0, device 3"),
        /* A block of two has the hash of its second half, and its name. */
        MIRROR(
            "larger blocks of a window have the name of their last part",
            "mirror counted, stored 1 2 group 0, stored 2 size 2 tokens 1 group 1 window 3,"
            "windows 3/2, has window 1.2,"
            /* not yet in the full group */
            "stored 4 size 2 tokens 1 group 1 window 3, window 1, unplaced 1,"
            "stored 3 2 parent 2 group 0, has window 1.2.3.4, even"),

        /* ---- Combinations without a rule ---- */

        MIRROR(
            "a window of no length is odd until a restart",
            "mirror counted, stored 1 group 0, stored 1 group 2 window 0,"
            "odd does not state its window, cleared, odd, restart, even"),
        MIRROR(
            "windows of more than eight lengths are odd",
            "mirror counted, stored 1 group 0, stored 1 group 1 window 4,"
            "stored 1 group 2 window 5, stored 1 group 3 window 6, stored 1 group 4 window 7,"
            "stored 1 group 5 window 8, stored 1 group 6 window 9, stored 1 group 7 window 10,"
            "stored 1 group 8 window 11, even, stored 1 group 9 window 12, odd more than 8 sizes"),
        MIRROR(
            "a group that changes its kind is odd",
            "mirror counted, stored 1 group 0,"
            /* this event names no kind */
            "stored 1, even, stored 2 parent 1 group 0 window 3, odd changed its kind"),
        MIRROR(
            "windows with the engine's names are odd",
            "mirror names, stored 1 group 0, even, stored 3 parent 2 sparse group 1 window 3,"
            "odd hashes = engine, has window 3"),
        MIRROR(
            "blocks of windows may be whole multiples",
            "mirror counted, stored 3 parent 2 sized 2 group 0,"
            "stored 3 parent 2 sparse sized 4 group 1 window 3, even,"
            "stored 3 parent 2 sparse sized 2 group 1 window 3, odd blocks of different sizes"),
        MIRROR(
            "blocks of windows that are no whole multiple are odd",
            "mirror counted, stored 3 parent 2 sized 2 group 0,"
            "stored 3 parent 2 sparse sized 3 group 1 window 3, odd blocks of different sizes"),
        MIRROR(
            "blocks of windows that are smaller are odd",
            "mirror counted, stored 3 parent 2 sized 4 group 0,"
            "stored 3 parent 2 sparse sized 2 group 1 window 3, odd blocks of different sizes"),
        MIRROR(
            "windows alone with blocks of different sizes are odd",
            "mirror counted, stored 3 parent 2 sparse sized 2 group 0 window 3, even,"
            "stored 3 parent 2 sparse sized 4 group 1 window 3, odd blocks of different sizes"),
        MIRROR(
            "so are those that came before full attention",
            "mirror counted, stored 3 parent 2 sparse sized 4 group 0 window 3,"
            "stored 3 parent 2 sized 2 group 1, odd blocks of different sizes"),
        MIRROR(
            "a group of an unknown kind is odd",
            "mirror counted, stored 1 group 0, meet other 3, odd unknown kind, removed 1 group 3,"
            "has device 1, unknown-removed 0,"
            /* the first reason is kept */
            "stored 2 parent 1 group 3 window 3, odd unknown kind"),
        MIRROR(
            "cross attention is odd",
            "mirror counted, stored 1 group 0, meet cross 3, odd cross attention"),
        MIRROR(
            "an encoder is odd", "mirror counted, stored 1 group 0, meet encoder 3, odd encoder"),

        /* ---- Shapes ---- */

        /* In vLLM a full-attention group of larger blocks also stores parts of them, in the size
         * of the window group's blocks. Only both sizes together show that the groups differ. */
        MIRROR(
            "several sizes in one of several groups are odd",
            /* a single group may have several sizes */
            "mirror counted, stored 50, stored 60 size 2, even,"
            "stored 3 parent 2 sparse group 1 window 3, odd"),
        MIRROR(
            "so are several sizes of which the larger came first",
            "mirror counted, stored 50 size 2, stored 60, even,"
            "stored 3 parent 2 sparse group 1 window 3, odd"),
        MIRROR(
            "larger blocks behind those of a window are odd",
            "mirror counted, stored 3 parent 2 sparse group 1 window 3, stored 50,"
            /* a chunk of an offload connector */
            "stored 60 size 4 host, even, stored 70 size 2, odd"),
        MIRROR(
            "the shapes that were stored are counted until a clear",
            "mirror counted, stored 1 2 group 0, stored 3 parent 2 group 0, shapes 1,"
            "stored 70 size 4 host, shapes 2, shape 1 host 4, cleared, shapes 0"),
        /* It moves blocks of a known shape. */
        MIRROR(
            "a store without tokens adds the known shapes to its tier",
            "mirror counted, stored 1 group 0, stored 1 no-tokens disk, shapes 2, shape 1 disk 1,"
            "stored 70 size 4, shapes 4, shape 3 disk 4"),

        cmocka_unit_test(more_groups_than_the_maximum_are_unsupported),
        cmocka_unit_test(one_shape_too_many_is_skipped),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
