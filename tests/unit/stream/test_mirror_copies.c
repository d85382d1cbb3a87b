#include "fail_alloc.h"
#include "kvb_test.h"

#include "batch_maker.h"
#include "core/status.h"
#include "mirror_scene.h"

/* Which BlockStored events are new copies, and which only repeat blocks that are held. */

enum { window_tokens = 3 };

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

static void a_second_store_behind_a_parent_is_a_second_copy(void **state)
{
    (void)state;
    struct mirror_scene scene;

    begin(&scene, KVB_COPIES_INTERVAL);
    store(&scene, 0, 2);
    store(&scene, 1, 2);
    assert_int_equal(kvb_mirror_count(scene.mirror)->proven_copies, 3);
    remove_block(&scene, 1);
    assert_true(is_held(&scene, 1));
    assert_int_equal(doubtful(&scene), 0);
    remove_block(&scene, 1);
    assert_false(is_held(&scene, 1));
    assert_int_equal(doubtful(&scene), 0);
    mirror_scene_end(&scene);
}

static void a_prompt_stored_again_from_its_root_leaves_doubts(void **state)
{
    (void)state;
    struct mirror_scene scene;

    begin(&scene, KVB_COPIES_INTERVAL);
    store(&scene, 0, 2);
    store(&scene, 0, 2);
    assert_int_equal(kvb_mirror_count(scene.mirror)->proven_copies, 2);
    remove_block(&scene, 1);
    assert_false(is_held(&scene, 1));
    assert_int_equal(doubtful(&scene), 1);
    mirror_scene_end(&scene);
}

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

static void a_root_store_that_holds_a_new_block_is_real(void **state)
{
    (void)state;
    struct mirror_scene scene;

    begin(&scene, KVB_COPIES_INTERVAL);
    store(&scene, 0, 2);
    store(&scene, 0, 3); /* the third block is new */
    remove_block(&scene, 0);
    remove_block(&scene, 1);
    assert_true(is_held(&scene, 0) && is_held(&scene, 1));
    assert_int_equal(doubtful(&scene), 0);
    mirror_scene_end(&scene);
}

static void a_new_block_in_the_middle_makes_those_before_it_real(void **state)
{
    (void)state;
    struct mirror_scene scene;

    begin(&scene, KVB_COPIES_INTERVAL);
    store(&scene, 0, 3);
    remove_block(&scene, 1);
    store(&scene, 0, 3);
    remove_block(&scene, 2);
    remove_block(&scene, 0);
    assert_true(is_held(&scene, 0) && is_held(&scene, 2));
    mirror_scene_end(&scene);
}

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

/* ---- Window groups ---- */

static void add_window_part(struct mirror_scene *scene, size_t from, size_t to)
{
    add_part(scene, from, to);
    of_window_group(scene, 1, window_tokens);
}

static void remove_window_block(struct mirror_scene *scene, size_t block)
{
    add_removed(&scene->batch, &hashes[block], 1);
    of_full_group(scene, 1);
    mirror_scene_apply(scene);
}

static bool is_in_window(const struct mirror_scene *scene, size_t block)
{
    return scene_lists(scene, KVB_LIST_WINDOW, name_of(tokens, block + 1));
}

static void a_window_store_right_behind_a_real_one_is_real(void **state)
{
    (void)state;
    struct mirror_scene scene;

    begin(&scene, KVB_COPIES_INTERVAL);
    for (size_t end = 2; end <= 3; end++) {
        add_part(&scene, 0, end);
        of_full_group(&scene, 0);
        add_window_part(&scene, 0, end);
        mirror_scene_apply(&scene);
    }
    remove_window_block(&scene, 0);
    assert_true(is_in_window(&scene, 0));
    remove_window_block(&scene, 0);
    assert_false(is_in_window(&scene, 0));
    assert_int_equal(doubtful(&scene), 0);
    mirror_scene_end(&scene);
}

/* In a window group vLLM repeats as many blocks as the hit is long, whether they are held or not.
 */
static void blocks_repeated_in_a_window_group_need_not_be_held(void **state)
{
    (void)state;
    struct mirror_scene scene;

    begin(&scene, KVB_COPIES_INTERVAL);
    add_part(&scene, 0, 3);
    add_window_part(&scene, 0, 3);
    mirror_scene_apply(&scene);
    remove_window_block(&scene, 0);
    assert_false(is_in_window(&scene, 0));
    add_part(&scene, 0, 3);
    add_window_part(&scene, 0, 3);
    mirror_scene_apply(&scene);
    assert_false(is_in_window(&scene, 0));
    assert_true(is_in_window(&scene, 1));
    assert_int_equal(doubtful(&scene), 1);
    remove_window_block(&scene, 1);
    assert_false(is_in_window(&scene, 1));
    mirror_scene_end(&scene);
}

/* Rule C: a store with blocks left out is never a repetition. */
static void a_store_with_blocks_left_out_is_real_and_so_is_the_one_before_it(void **state)
{
    (void)state;
    struct mirror_scene scene;

    begin(&scene, KVB_COPIES_INTERVAL);
    for (int i = 0; i < 2; i++) {
        add_part(&scene, 0, 3);
        add_stored(&scene.batch, NULL, &hashes[2], &tokens[2], 1);
        of_sparse_window_group(&scene, 1, window_tokens);
        mirror_scene_apply(&scene);
    }
    remove_block(&scene, 0);
    remove_window_block(&scene, 2);
    assert_true(is_held(&scene, 0));
    assert_true(is_in_window(&scene, 2));
    assert_int_equal(doubtful(&scene), 0);
    mirror_scene_end(&scene);
}

/* A run ends where the group numbers do not increase: the next event belongs to another request. */
static void a_store_of_a_later_request_is_not_real_for_the_one_before_it(void **state)
{
    (void)state;
    struct mirror_scene scene;

    begin(&scene, KVB_COPIES_INTERVAL);
    add_part(&scene, 0, 3);
    add_window_part(&scene, 0, 3);
    mirror_scene_apply(&scene);
    add_part(&scene, 0, 3);
    add_window_part(&scene, 0, 3);
    add_part(&scene, 3, 4); /* a real store, of this or another prompt */
    add_window_part(&scene, 0, 3);
    mirror_scene_apply(&scene);
    remove_window_block(&scene, 1); /* of two copies: the last store was behind a real one */
    assert_true(is_in_window(&scene, 1));
    remove_block(&scene, 0); /* of one or two copies */
    assert_false(is_held(&scene, 0));
    mirror_scene_end(&scene);
}

/* ---- Models whose first layers have a window: the full-attention group comes last ---- */

static void add_full_part(struct mirror_scene *scene, size_t from, size_t to)
{
    add_part(scene, from, to);
    of_full_group(scene, 2);
}

static void a_window_store_right_before_a_real_one_is_real(void **state)
{
    (void)state;
    struct mirror_scene scene;

    begin(&scene, KVB_COPIES_INTERVAL);
    add_window_part(&scene, 0, 3);
    add_full_part(&scene, 0, 3);
    mirror_scene_apply(&scene);
    assert_true(is_in_window(&scene, 0) && is_held(&scene, 0));
    assert_int_equal(doubtful(&scene), 0);
    remove_window_block(&scene, 0);
    assert_false(is_in_window(&scene, 0));
    assert_int_equal(doubtful(&scene), 0);
    mirror_scene_end(&scene);
}

static void a_repeated_window_store_before_a_repeated_full_one_is_not_real(void **state)
{
    (void)state;
    struct mirror_scene scene;

    begin(&scene, KVB_COPIES_INTERVAL);
    add_window_part(&scene, 0, 3);
    add_full_part(&scene, 0, 3);
    mirror_scene_apply(&scene);
    remove_window_block(&scene, 0);
    add_window_part(&scene, 0, 3);
    add_full_part(&scene, 0, 3);
    add_full_part(&scene, 3, 4); /* it belongs to another request */
    mirror_scene_apply(&scene);
    assert_false(is_in_window(&scene, 0));
    assert_true(is_in_window(&scene, 1));
    remove_window_block(&scene, 1);
    assert_false(is_in_window(&scene, 1));
    mirror_scene_end(&scene);
}

/* The look ahead ends with the run. What proves nothing for the first event of a run proves nothing
 * for the second, and the next run is examined separately. */
static void a_run_that_proves_nothing_does_not_hide_the_next_one(void **state)
{
    (void)state;
    struct mirror_scene scene;

    begin(&scene, KVB_COPIES_INTERVAL);
    add_window_part(&scene, 0, 2);
    add_full_part(&scene, 0, 2);
    mirror_scene_apply(&scene);
    add_window_part(&scene, 0, 2);
    add_full_part(&scene, 0, 2);
    add_window_part(&scene, 0, 3);
    add_full_part(&scene, 0, 3);
    mirror_scene_apply(&scene);
    assert_true(is_in_window(&scene, 2));
    remove_window_block(&scene, 0);
    assert_true(is_in_window(&scene, 0)); /* the store of the second run was a copy */
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

static void a_store_behind_a_parent_proves_all_its_ancestors(void **state)
{
    (void)state;
    struct mirror_scene scene;

    begin(&scene, KVB_COPIES_INTERVAL);
    make_doubtful(&scene, 3);
    store(&scene, 3, 4);
    assert_int_equal(doubtful(&scene), 0);
    assert_int_equal(scene.lists[KVB_TIER_DEVICE].count, 4);
    for (size_t i = 0; i < 4; i++) { /* parents first */
        assert_true(scene.out.blocks[i].value == name_of(tokens, i + 1).value);
    }
    mirror_scene_end(&scene);
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

/* After new doubts a proven chain must be proven again. */
static void a_new_doubt_in_a_proven_chain_is_noticed(void **state)
{
    (void)state;
    struct mirror_scene scene;
    const uint64_t others[] = { 911, 912 };
    const uint32_t other_tokens[] = { 11, 12 };

    begin(&scene, KVB_COPIES_INTERVAL);
    add_stored(&scene.batch, NULL, others, other_tokens, 1); /* this block stays doubtful */
    add_stored(&scene.batch, NULL, others, other_tokens, 1);
    add_removed(&scene.batch, others, 1);
    store(&scene, 0, 3);
    store(&scene, 0, 3);
    store(&scene, 3, 4); /* proves the chain */
    remove_block(&scene, 0);
    assert_false(is_held(&scene, 0));
    store(&scene, 3, 4);
    assert_true(is_held(&scene, 0));
    assert_int_equal(doubtful(&scene), 1);
    mirror_scene_end(&scene);
}

/* ---- Counters ---- */

enum { many = 300 }; /* more copies than a byte can count */

static void many_doubtful_copies_end_with_the_last(void **state)
{
    (void)state;
    struct mirror_scene scene;

    begin(&scene, KVB_COPIES_INTERVAL);
    for (int i = 0; i < many; i++) {
        store(&scene, 0, 1);
    }
    for (int i = 0; i < many - 1; i++) {
        remove_block(&scene, 0);
    }
    assert_false(is_held(&scene, 0));
    assert_int_equal(doubtful(&scene), 1); /* one copy may be left */
    store(&scene, 1, 2);
    assert_true(is_held(&scene, 0)); /* one copy is certain */
    remove_block(&scene, 0);
    assert_false(is_held(&scene, 0));
    assert_int_equal(doubtful(&scene), 0);
    mirror_scene_end(&scene);
}

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

static void in_counted_mode_all_copies_are_certain(void **state)
{
    (void)state;
    struct mirror_scene scene;

    begin(&scene, KVB_COPIES_COUNTED);
    for (int i = 0; i < 3; i++) {
        add_part(&scene, 0, 2);
        add_window_part(&scene, 0, 2);
        mirror_scene_apply(&scene);
    }
    for (int i = 0; i < 2; i++) {
        remove_block(&scene, 0);
        remove_window_block(&scene, 0);
        assert_true(is_held(&scene, 0) && is_in_window(&scene, 0));
        assert_int_equal(doubtful(&scene), 0);
    }
    remove_block(&scene, 0);
    remove_window_block(&scene, 0);
    assert_false(is_held(&scene, 0) || is_in_window(&scene, 0));
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

static kvb_status run_once(struct mirror_scene *scene)
{
    kvb_status status = KVB_OK;

    for (size_t at = 0; status == KVB_OK && at < scene->batch.event_count; at++) {
        status = apply_event(scene->mirror, &scene->batch, at, UINT64_MAX, &scene->out);
    }
    return status;
}

static void survives_every_allocation_failing(void **state)
{
    (void)state;
    const struct kvb_mirror_options options = { .max_blocks = 100, .tiers = 15 };
    kvb_status status = KVB_NO_MEMORY;

    for (long n = 0; status == KVB_NO_MEMORY; n++) {
        struct mirror_scene scene = { 0 };
        add_part(&scene, 0, 3);
        add_window_part(&scene, 0, 3);
        add_part(&scene, 1, 3); /* second copies */
        add_part(&scene, 0, 3);
        add_removed(&scene.batch, hashes, 3);
        add_removed(&scene.batch, hashes, 3);
        add_part(&scene, 3, 4); /* proves the others */
        fail_alloc_after(n);
        status = kvb_mirror_new(&options, &scene.mirror);
        if (status == KVB_OK) {
            status = run_once(&scene);
        }
        fail_alloc_after(-1);
        mirror_scene_end(&scene);
        assert_true(n < 200);
    }
    assert_ok(status);
}

SUITE(mirror_copies)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_second_store_behind_a_parent_is_a_second_copy),
        cmocka_unit_test(a_prompt_stored_again_from_its_root_leaves_doubts),
        cmocka_unit_test(in_another_tier_a_second_store_is_never_certain),
        cmocka_unit_test(a_root_store_that_holds_a_new_block_is_real),
        cmocka_unit_test(a_new_block_in_the_middle_makes_those_before_it_real),
        cmocka_unit_test(a_new_block_proves_nothing_while_blocks_may_be_missing),
        cmocka_unit_test(a_new_block_before_known_ones_proves_nothing_either),
        cmocka_unit_test(a_new_block_proves_nothing_when_doubtful_ones_were_forgotten),
        cmocka_unit_test(a_window_store_right_behind_a_real_one_is_real),
        cmocka_unit_test(blocks_repeated_in_a_window_group_need_not_be_held),
        cmocka_unit_test(a_store_with_blocks_left_out_is_real_and_so_is_the_one_before_it),
        cmocka_unit_test(a_store_of_a_later_request_is_not_real_for_the_one_before_it),
        cmocka_unit_test(a_window_store_right_before_a_real_one_is_real),
        cmocka_unit_test(a_repeated_window_store_before_a_repeated_full_one_is_not_real),
        cmocka_unit_test(a_run_that_proves_nothing_does_not_hide_the_next_one),
        cmocka_unit_test(a_store_behind_a_parent_proves_all_its_ancestors),
        cmocka_unit_test(with_engine_names_the_ancestors_are_proven_too),
        cmocka_unit_test(a_new_doubt_in_a_proven_chain_is_noticed),
        cmocka_unit_test(many_doubtful_copies_end_with_the_last),
        cmocka_unit_test(many_certain_copies_are_listed_until_the_last_one_is_removed),
        cmocka_unit_test(in_counted_mode_all_copies_are_certain),
        cmocka_unit_test(copies_are_counted_by_block_and_tier),
        cmocka_unit_test(survives_every_allocation_failing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
