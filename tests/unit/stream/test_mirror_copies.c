#include "kvb_test.h"

#include "batch_maker.h"
#include "mirror_scene.h"

/* Which BlockStored events are new copies, and which only repeat blocks that are held. */

static const uint64_t hashes[] = { 901, 902, 903, 904 };
static const uint32_t tokens[] = { 1, 2, 3, 4 };

static void begin(struct mirror_scene *scene, enum kvb_copies copies)
{
    mirror_scene_begin(scene, &(struct kvb_mirror_options){ .copies = copies });
}

/* Blocks from .. to - 1 of the only prompt. */
static void add_part(struct mirror_scene *scene, size_t from, size_t to)
{
    add_stored(
        &scene->batch, from ? &hashes[from - 1] : NULL, hashes + from, tokens + from, to - from);
}

static void store(struct mirror_scene *scene, size_t from, size_t to)
{
    add_part(scene, from, to);
    mirror_scene_apply(scene);
}

static void remove_block(struct mirror_scene *scene, size_t block)
{
    add_removed(&scene->batch, &hashes[block], 1);
    mirror_scene_apply(scene);
}

static bool is_held(const struct mirror_scene *scene, size_t block)
{
    return scene_lists(scene, KVB_TIER_DEVICE, name_of(tokens, block + 1));
}

static uint64_t doubtful(const struct mirror_scene *scene)
{
    return kvb_mirror_count(scene->mirror)->doubtful;
}

/* ---- Rule A ---- */

/* Other rules apply to the objects of a pool and to other tiers. */
static void in_another_tier_a_second_store_is_never_certain(void **state)
{
    (void)state;
    struct mirror_scene scene;

    begin(&scene, KVB_COPIES_INTERVAL);
    for (int i = 0; i < 2; i++) {
        add_part(&scene, 0, 1);
        add_part(&scene, 1, 2);
        last_event(&scene.batch)->tier = KVB_TIER_HOST;
        mirror_scene_apply(&scene);
    }
    add_removed(&scene.batch, &hashes[1], 1);
    last_event(&scene.batch)->tier = KVB_TIER_HOST;
    mirror_scene_apply(&scene);
    assert_int_equal(scene.lists[KVB_TIER_HOST].count, 0);
    assert_int_equal(doubtful(&scene), 1);
    mirror_scene_end(&scene);
}

/* ---- Rule B ---- */

/* A block that is not in the mirror may be held by the engine, and stored again. */
static void a_new_block_proves_nothing_while_blocks_may_be_missing(void **state)
{
    (void)state;
    struct mirror_scene scene;

    begin(&scene, KVB_COPIES_INTERVAL);
    kvb_mirror_set_whole(scene.mirror, false);
    store(&scene, 0, 2);
    store(&scene, 0, 3);
    remove_block(&scene, 0);
    assert_false(is_held(&scene, 0));
    assert_int_equal(doubtful(&scene), 1);
    mirror_scene_end(&scene);
}

/* The same when the block that is new to the mirror comes first. */
static void a_new_block_before_known_ones_proves_nothing_either(void **state)
{
    (void)state;
    struct mirror_scene scene;

    begin(&scene, KVB_COPIES_INTERVAL);
    kvb_mirror_set_whole(scene.mirror, false);
    store(&scene, 1, 3);
    store(&scene, 0, 3);
    assert_true(is_held(&scene, 1));
    remove_block(&scene, 1);
    assert_false(is_held(&scene, 1));
    mirror_scene_end(&scene);
}

/* The ceiling is below 200 doubtful blocks: the oldest are forgotten, but the engine may hold them.
 */
static void a_new_block_proves_nothing_when_doubtful_ones_were_forgotten(void **state)
{
    (void)state;
    struct mirror_scene scene;

    begin(&scene, KVB_COPIES_INTERVAL);
    store(&scene, 0, 2);
    for (uint32_t i = 0; i < 200; i++) {
        const uint64_t hash = 5000 + i;
        const uint32_t token = 5000 + i;
        add_stored(&scene.batch, NULL, &hash, &token, 1);
        add_stored(&scene.batch, NULL, &hash, &token, 1);
        add_removed(&scene.batch, &hash, 1);
        mirror_scene_apply(&scene);
    }
    assert_true(kvb_mirror_count(scene.mirror)->forgotten_doubtful > 0);
    store(&scene, 0, 3);
    remove_block(&scene, 0);
    assert_false(is_held(&scene, 0));

    add_cleared(&scene.batch); /* after a clear nothing is doubtful */
    store(&scene, 0, 2);
    store(&scene, 0, 3);
    remove_block(&scene, 0);
    assert_true(is_held(&scene, 0));
    mirror_scene_end(&scene);
}

/* ---- Ancestors ---- */

static void make_doubtful(struct mirror_scene *scene, size_t blocks)
{
    store(scene, 0, blocks);
    store(scene, 0, blocks);
    add_removed(&scene->batch, hashes, blocks);
    mirror_scene_apply(scene);
    assert_int_equal(doubtful(scene), blocks);
    assert_false(is_held(scene, 0));
}

/* The same with the engine's names. */
static void with_engine_names_the_ancestors_are_proven_too(void **state)
{
    (void)state;
    struct mirror_scene scene;

    mirror_scene_begin(&scene, &(struct kvb_mirror_options){ .hashes = KVB_HASHES_ENGINE });
    make_doubtful(&scene, 3);
    store(&scene, 3, 4);
    assert_int_equal(scene.lists[KVB_TIER_DEVICE].count, 4);
    mirror_scene_end(&scene);
}

/* ---- Counters ---- */

enum { many = 300 }; /* more copies than a byte can count */

/* In two tiers, so that the last copy of one tier leaves that of the other. */
static void many_certain_copies_are_listed_until_the_last_one_is_removed(void **state)
{
    (void)state;
    struct mirror_scene scene;

    begin(&scene, KVB_COPIES_COUNTED);
    for (int i = 0; i < many; i++) {
        add_part(&scene, 0, 1);
        add_part(&scene, 0, 1);
        last_event(&scene.batch)->tier = KVB_TIER_HOST;
        mirror_scene_apply(&scene);
    }
    assert_int_equal(kvb_mirror_count(scene.mirror)->proven_copies, many);
    for (int i = 0; i < many; i++) {
        assert_true(is_held(&scene, 0));
        remove_block(&scene, 0);
    }
    assert_false(is_held(&scene, 0));
    for (int i = 0; i < many; i++) {
        assert_int_equal(scene.lists[KVB_TIER_HOST].count, 1);
        add_removed(&scene.batch, hashes, 1);
        last_event(&scene.batch)->tier = KVB_TIER_HOST;
        mirror_scene_apply(&scene);
    }
    assert_int_equal(scene.lists[KVB_TIER_HOST].count, 0);
    assert_int_equal(doubtful(&scene), 0);
    assert_int_equal(kvb_mirror_count(scene.mirror)->proven_copies, 0);
    mirror_scene_end(&scene);
}

static void change_copies(
    struct mirror_scene *scene, enum kvb_event_kind kind, size_t block, size_t times,
    enum kvb_tier tier)
{
    for (size_t i = 0; i < times; i++) {
        if (kind == KVB_EVENT_STORED) {
            add_stored(&scene->batch, NULL, &hashes[block], &tokens[block], 1);
        } else {
            add_removed(&scene->batch, &hashes[block], 1);
        }
        last_event(&scene->batch)->tier = tier;
    }
    mirror_scene_apply(scene);
}

/* Block b has b + 1 copies on the device and 4 - b on the host. */
static void copies_are_counted_by_block_and_tier(void **state)
{
    (void)state;
    struct mirror_scene scene;

    begin(&scene, KVB_COPIES_COUNTED);
    for (size_t b = 0; b < 4; b++) {
        change_copies(&scene, KVB_EVENT_STORED, b, b + 1, KVB_TIER_DEVICE);
        change_copies(&scene, KVB_EVENT_STORED, b, 4 - b, KVB_TIER_HOST);
    }
    assert_int_equal(kvb_mirror_count(scene.mirror)->proven_copies, 1 + 2 + 3 + 4);
    for (size_t b = 0; b < 4; b++) {
        change_copies(&scene, KVB_EVENT_REMOVED, b, b, KVB_TIER_DEVICE);
        assert_int_equal(scene.lists[KVB_TIER_DEVICE].count, 4 - b);
        change_copies(&scene, KVB_EVENT_REMOVED, b, 1, KVB_TIER_DEVICE);
        assert_int_equal(scene.lists[KVB_TIER_DEVICE].count, 3 - b);
    }
    assert_int_equal(scene.lists[KVB_TIER_HOST].count, 4);
    for (size_t b = 4; b > 0; b--) {
        change_copies(&scene, KVB_EVENT_REMOVED, b - 1, 4 - b, KVB_TIER_HOST);
        assert_int_equal(scene.lists[KVB_TIER_HOST].count, b);
        change_copies(&scene, KVB_EVENT_REMOVED, b - 1, 1, KVB_TIER_HOST);
        assert_int_equal(scene.lists[KVB_TIER_HOST].count, b - 1);
    }
    mirror_scene_end(&scene);
}

/* ---- Memory ---- */

SUITE(mirror_copies)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(in_another_tier_a_second_store_is_never_certain),
        cmocka_unit_test(a_new_block_proves_nothing_while_blocks_may_be_missing),
        cmocka_unit_test(a_new_block_before_known_ones_proves_nothing_either),
        cmocka_unit_test(a_new_block_proves_nothing_when_doubtful_ones_were_forgotten),
        cmocka_unit_test(with_engine_names_the_ancestors_are_proven_too),
        cmocka_unit_test(many_certain_copies_are_listed_until_the_last_one_is_removed),
        cmocka_unit_test(copies_are_counted_by_block_and_tier),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
