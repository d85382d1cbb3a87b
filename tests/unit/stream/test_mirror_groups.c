#include "kvb_test.h"

#include "batch_maker.h"
#include "index/block_hash.h"
#include "mirror_scene.h"

/* Cache groups of hybrid models, and shapes of blocks. */

enum { window_tokens = 3 };

static const uint64_t hashes[] = { 901, 902, 903, 904 };
static const uint32_t tokens[] = { 1, 2, 3, 4 };

static void begin(struct mirror_scene *scene)
{
    /* counted mode, so that no store leaves a doubt */
    mirror_scene_begin(scene, &(struct kvb_mirror_options){ .copies = KVB_COPIES_COUNTED });
}

/* Blocks from .. to - 1 of the only prompt. */
static void add_part(struct mirror_scene *scene, size_t from, size_t to)
{
    add_stored(
        &scene->batch, from ? &hashes[from - 1] : NULL, hashes + from, tokens + from, to - from);
}

static void store_full(struct mirror_scene *scene, uint32_t group, size_t from, size_t to)
{
    add_part(scene, from, to);
    of_full_group(scene, group);
    mirror_scene_apply(scene);
}

static void store_window(struct mirror_scene *scene, uint32_t group, size_t from, size_t to)
{
    add_part(scene, from, to);
    of_window_group(scene, group, window_tokens);
    mirror_scene_apply(scene);
}

static void store_sparse(struct mirror_scene *scene, uint32_t group, size_t block)
{
    add_part(scene, block, block + 1);
    of_sparse_window_group(scene, group, window_tokens);
    mirror_scene_apply(scene);
}

static void remove_of(struct mirror_scene *scene, uint32_t group, size_t block)
{
    add_removed(&scene->batch, &hashes[block], 1);
    of_full_group(scene, group); /* removals do not name the kind of the group */
    mirror_scene_apply(scene);
}

static bool lists(const struct mirror_scene *scene, unsigned list, size_t block)
{
    return scene_lists(scene, list, name_of(tokens, block + 1));
}

static size_t count_of(const struct mirror_scene *scene, unsigned list)
{
    return scene->lists[list].count;
}

/* The length of the first kind of windows; 0: there is none. */
static uint32_t first_window(const struct mirror_scene *scene)
{
    struct kvb_window_rule windows[kvb_max_windows];

    return kvb_mirror_windows(scene->mirror, windows) > 0 ? windows[0].tokens : 0;
}

static bool is_odd(const struct mirror_scene *scene)
{
    return kvb_mirror_has_odd_groups(scene->mirror);
}

/* The text for people contains this reason. */
static void assert_odd(const struct mirror_scene *scene, const char *text)
{
    const char *why = kvb_mirror_odd_groups_why(scene->mirror);

    assert_true(is_odd(scene));
    assert_non_null(why);
    assert_non_null(strstr(why, text));
}

/* ---- Full-attention groups ---- */

/* An offload connector stores, in a tier of its own, only blocks of one group. */
static void a_group_counts_only_in_tiers_in_which_it_stores(void **state)
{
    (void)state;
    struct mirror_scene scene;

    begin(&scene);
    store_full(&scene, 0, 0, 1);
    store_full(&scene, 1, 0, 1);
    add_stored(&scene.batch, NULL, hashes, NULL, 1);
    last_event(&scene.batch)->tier = KVB_TIER_HOST;
    mirror_scene_apply(&scene);
    assert_true(lists(&scene, KVB_TIER_HOST, 0));
    assert_shown_as_published(&scene);
    mirror_scene_end(&scene);
}

static void groups_outlive_a_clear_but_no_restart(void **state)
{
    (void)state;
    struct mirror_scene scene;

    begin(&scene);
    store_full(&scene, 0, 0, 1);
    store_full(&scene, 1, 0, 1);
    store_window(&scene, 2, 0, 1);
    add_cleared(&scene.batch);
    mirror_scene_apply(&scene);
    assert_int_equal(first_window(&scene), window_tokens);
    store_full(&scene, 0, 0, 1);
    assert_int_equal(count_of(&scene, KVB_TIER_DEVICE), 0);
    kvb_mirror_restart(scene.mirror);
    assert_int_equal(first_window(&scene), 0);
    store_full(&scene, 0, 0, 1);
    assert_int_equal(count_of(&scene, KVB_TIER_DEVICE), 1);
    mirror_scene_end(&scene);
}

static void one_tier_is_cleared_in_all_groups(void **state)
{
    (void)state;
    struct mirror_scene scene;

    begin(&scene);
    store_full(&scene, 0, 0, 2);
    store_full(&scene, 1, 0, 2);
    store_window(&scene, 2, 0, 2);
    add_cleared(&scene.batch);
    last_event(&scene.batch)->all_tiers = false;
    mirror_scene_apply(&scene);
    assert_int_equal(count_of(&scene, KVB_TIER_DEVICE), 0);
    assert_int_equal(count_of(&scene, KVB_LIST_WINDOW), 0);
    mirror_scene_end(&scene);
}

/* ---- Window groups ---- */

/* A block that no full group has is in no list, but its removal is recognised. */
static void a_window_block_is_unplaced_until_a_full_group_has_it(void **state)
{
    (void)state;
    struct mirror_scene scene;

    begin(&scene);
    store_full(&scene, 0, 0, 1);
    store_sparse(&scene, 1, 2);
    store_sparse(&scene, 1, 3);
    store_window(&scene, 1, 3, 4); /* its parent is unplaced too */
    assert_int_equal(count_of(&scene, KVB_LIST_WINDOW), 0);
    assert_int_equal(kvb_mirror_count(scene.mirror)->unplaced, 2);
    assert_shown_as_published(&scene);

    remove_of(&scene, 1, 2);
    assert_int_equal(kvb_mirror_count(scene.mirror)->unplaced, 1);
    assert_int_equal(kvb_mirror_count(scene.mirror)->unknown_removed, 0);
    store_full(&scene, 0, 1, 4);
    assert_int_equal(kvb_mirror_count(scene.mirror)->unplaced, 0);
    assert_int_equal(count_of(&scene, KVB_LIST_WINDOW), 1);
    assert_true(lists(&scene, KVB_LIST_WINDOW, 3));
    mirror_scene_end(&scene);
}

/* The full group's block waits for its parent, and so does the window's. */
static void a_window_block_is_named_when_the_full_groups_block_is(void **state)
{
    (void)state;
    struct mirror_scene scene;

    begin(&scene);
    store_full(&scene, 0, 1, 3);
    store_window(&scene, 1, 1, 3);
    assert_int_equal(kvb_mirror_count(scene.mirror)->unplaced, 2);
    store_full(&scene, 0, 0, 1);
    assert_int_equal(kvb_mirror_count(scene.mirror)->unplaced, 0);
    assert_int_equal(count_of(&scene, KVB_LIST_WINDOW), 2);
    assert_true(lists(&scene, KVB_LIST_WINDOW, 2));
    mirror_scene_end(&scene);
}

/* For a connector that offloads windows: no list contains such blocks. */
static void in_other_tiers_window_blocks_are_ignored(void **state)
{
    (void)state;
    struct mirror_scene scene;

    begin(&scene);
    store_full(&scene, 0, 0, 2);
    add_part(&scene, 0, 2);
    of_window_group(&scene, 1, window_tokens);
    last_event(&scene.batch)->tier = KVB_TIER_HOST;
    mirror_scene_apply(&scene);
    add_removed(&scene.batch, hashes, 1);
    of_full_group(&scene, 1);
    last_event(&scene.batch)->tier = KVB_TIER_HOST;
    mirror_scene_apply(&scene);
    assert_int_equal(count_of(&scene, KVB_TIER_HOST), 0);
    assert_int_equal(kvb_mirror_count(scene.mirror)->window_elsewhere, 3);
    assert_int_equal(kvb_mirror_count(scene.mirror)->unknown_removed, 0);
    mirror_scene_end(&scene);
}

/* ---- Several kinds of windows ---- */

static void
store_window_of(struct mirror_scene *scene, uint32_t group, uint32_t length, size_t from, size_t to)
{
    add_part(scene, from, to);
    of_window_group(scene, group, length);
    mirror_scene_apply(scene);
}

static bool lists_in_window(const struct mirror_scene *scene, size_t block, unsigned window)
{
    const kvb_block_hash name = name_of(tokens, block + 1);

    return scene_lists(scene, KVB_LIST_WINDOW, kvb_block_hash_in_window(name, window));
}

static void windows_of_several_lengths_are_listed_apart(void **state)
{
    (void)state;
    struct mirror_scene scene;
    struct kvb_window_rule windows[kvb_max_windows];

    begin(&scene);
    store_full(&scene, 0, 0, 3);
    store_window_of(&scene, 1, 3, 0, 3);
    store_window_of(&scene, 2, 5, 0, 2);
    store_window_of(&scene, 3, 3, 1, 3); /* of the kind of group 1 */
    assert_false(is_odd(&scene));
    assert_int_equal(kvb_mirror_windows(scene.mirror, windows), 2);
    assert_true(windows[0].tokens == 3 && windows[0].size == 1);
    assert_true(windows[1].tokens == 5 && windows[1].size == 1);
    assert_true(!lists_in_window(&scene, 0, 0) && lists_in_window(&scene, 0, 1));
    assert_true(lists_in_window(&scene, 1, 0) && lists_in_window(&scene, 1, 1));
    assert_true(lists_in_window(&scene, 2, 0) && !lists_in_window(&scene, 2, 1));
    assert_shown_as_published(&scene);
    remove_of(&scene, 3, 1);
    assert_true(!lists_in_window(&scene, 1, 0) && lists_in_window(&scene, 1, 1));
    remove_of(&scene, 2, 1);
    assert_false(lists_in_window(&scene, 1, 1));
    assert_shown_as_published(&scene);
    assert_int_equal(kvb_mirror_window_groups(scene.mirror, 0), 1U << 1 | 1U << 3);
    assert_int_equal(kvb_mirror_window_groups(scene.mirror, 1), 1U << 2);
    assert_int_equal(kvb_mirror_full_groups(scene.mirror), 1U << 0);
    mirror_scene_end(&scene);
}

/* Its first Stored takes out of the list only what the groups of its kind must hold together. */
static void a_new_window_group_leaves_the_other_kinds_alone(void **state)
{
    (void)state;
    struct mirror_scene scene;

    begin(&scene);
    store_full(&scene, 0, 0, 3);
    store_window_of(&scene, 1, 3, 0, 3);
    store_window_of(&scene, 2, 5, 0, 3);
    store_window_of(&scene, 3, 5, 2, 3);
    assert_true(lists_in_window(&scene, 0, 0) && !lists_in_window(&scene, 0, 1));
    assert_true(lists_in_window(&scene, 2, 0) && lists_in_window(&scene, 2, 1));
    assert_shown_as_published(&scene);
    mirror_scene_end(&scene);
}

/* Without full attention to tell a copy from a re-announcement: that one ends where a hit ended,
 * and a hit ends with held blocks, as many as the window reaches over. */
static void windows_alone_are_certain_when_their_last_blocks_are_new(void **state)
{
    (void)state;
    struct mirror_scene scene;

    mirror_scene_begin(&scene, &(struct kvb_mirror_options){ 0 });
    store_window(&scene, 0, 0, 3);
    assert_int_equal(count_of(&scene, KVB_LIST_WINDOW), 3);
    remove_of(&scene, 0, 0);
    store_window(&scene, 0, 0, 3); /* the last two are held: perhaps announced again */
    assert_int_equal(count_of(&scene, KVB_LIST_WINDOW), 2);
    remove_of(&scene, 0, 2);
    remove_of(&scene, 0, 2);
    store_window(&scene, 0, 0, 3);
    assert_int_equal(count_of(&scene, KVB_LIST_WINDOW), 3);
    assert_shown_as_published(&scene);
    mirror_scene_end(&scene);
}

static void store_chunk(struct mirror_scene *scene, uint32_t group, size_t from, size_t to)
{
    add_part(scene, from, to);
    of_full_group(scene, group);
    last_event(&scene->batch)->group_kind = KVB_GROUP_CHUNKED;
    mirror_scene_apply(scene);
}

static void chunks_are_listed_where_their_size_is_configured(void **state)
{
    (void)state;
    struct mirror_scene scene;
    struct kvb_window_rule windows[kvb_max_windows];

    mirror_scene_begin(
        &scene, &(struct kvb_mirror_options){ .copies = KVB_COPIES_COUNTED, .chunk_tokens = 2 });
    store_full(&scene, 0, 0, 3);
    store_chunk(&scene, 1, 1, 3);
    assert_false(is_odd(&scene));
    assert_int_equal(kvb_mirror_windows(scene.mirror, windows), 1);
    assert_true(windows[0].is_chunked && windows[0].tokens == 2);
    assert_int_equal(count_of(&scene, KVB_LIST_WINDOW), 2);
    assert_shown_as_published(&scene);
    mirror_scene_end(&scene);

    begin(&scene);
    store_full(&scene, 0, 0, 3);
    store_chunk(&scene, 1, 1, 3);
    assert_odd(&scene, "attention_chunk");
    assert_int_equal(count_of(&scene, KVB_LIST_WINDOW), 0);
    assert_int_equal(count_of(&scene, KVB_TIER_DEVICE), 3);
    mirror_scene_end(&scene);
}

/* A block of two has the hash of its second half, and its name. */
static void store_double(struct mirror_scene *scene, uint32_t group, size_t last)
{
    add_stored(&scene->batch, NULL, hashes + last, tokens, 1);
    of_window_group(scene, group, window_tokens);
    last_event(&scene->batch)->block_size = 2;
    last_event(&scene->batch)->token_count = 2;
    mirror_scene_apply(scene);
}

static void larger_blocks_of_a_window_have_the_name_of_their_last_part(void **state)
{
    (void)state;
    struct mirror_scene scene;
    struct kvb_window_rule windows[kvb_max_windows];

    begin(&scene);
    store_full(&scene, 0, 0, 2);
    store_double(&scene, 1, 1);
    assert_int_equal(kvb_mirror_windows(scene.mirror, windows), 1);
    assert_int_equal(windows[0].size, 2);
    assert_true(lists_in_window(&scene, 1, 0));
    store_double(&scene, 1, 3); /* not yet in the full group */
    assert_int_equal(count_of(&scene, KVB_LIST_WINDOW), 1);
    assert_int_equal(kvb_mirror_count(scene.mirror)->unplaced, 1);
    store_full(&scene, 0, 2, 4);
    assert_true(lists_in_window(&scene, 3, 0));
    assert_false(is_odd(&scene));
    assert_shown_as_published(&scene);
    mirror_scene_end(&scene);
}

/* ---- Combinations of groups without a rule (unsupported) ---- */

static void a_window_of_no_length_is_unsupported(void **state)
{
    (void)state;
    struct mirror_scene scene;

    begin(&scene);
    store_full(&scene, 0, 0, 1);
    add_part(&scene, 0, 1);
    of_window_group(&scene, 2, 0);
    mirror_scene_apply(&scene);
    assert_odd(&scene, "does not state its window");
    add_cleared(&scene.batch);
    mirror_scene_apply(&scene);
    assert_true(is_odd(&scene));
    kvb_mirror_restart(scene.mirror);
    assert_false(is_odd(&scene));
    mirror_scene_end(&scene);
}

static void more_kinds_of_windows_than_the_maximum_are_unsupported(void **state)
{
    (void)state;
    struct mirror_scene scene;

    begin(&scene);
    store_full(&scene, 0, 0, 1);
    for (uint32_t group = 1; group <= kvb_max_windows + 1; group++) {
        assert_false(is_odd(&scene));
        add_part(&scene, 0, 1);
        of_window_group(&scene, group, window_tokens + group);
        mirror_scene_apply(&scene);
    }
    assert_odd(&scene, "more than 8 sizes");
    assert_shown_as_published(&scene);
    mirror_scene_end(&scene);
}

static void a_group_that_changes_its_kind_is_unsupported(void **state)
{
    (void)state;
    struct mirror_scene scene;

    begin(&scene);
    store_full(&scene, 0, 0, 1);
    add_part(&scene, 0, 1);
    last_event(&scene.batch)->group = 0; /* this event names no kind */
    mirror_scene_apply(&scene);
    assert_false(is_odd(&scene));
    store_window(&scene, 0, 1, 2);
    assert_odd(&scene, "changed its kind");
    mirror_scene_end(&scene);
}

static void windows_with_engine_names_are_unsupported(void **state)
{
    (void)state;
    struct mirror_scene scene;

    mirror_scene_begin(&scene, &(struct kvb_mirror_options){ .hashes = KVB_HASHES_ENGINE });
    store_full(&scene, 0, 0, 1);
    assert_false(is_odd(&scene));
    store_sparse(&scene, 1, 2);
    assert_odd(&scene, "hashes = engine");
    assert_true(scene_lists(&scene, KVB_LIST_WINDOW, (kvb_block_hash){ hashes[2] }));
    assert_shown_as_published(&scene);
    mirror_scene_end(&scene);
}

static void
store_sized(struct mirror_scene *scene, uint32_t group, uint32_t window, uint32_t block_size)
{
    add_part(scene, 2, 3);
    if (window > 0) {
        of_sparse_window_group(scene, group, window);
    } else {
        of_full_group(scene, group);
    }
    last_event(&scene->batch)->block_size = block_size;
    last_event(&scene->batch)->token_count = 0;
    mirror_scene_apply(scene);
}

static void windows_whose_blocks_are_no_whole_multiples_are_unsupported(void **state)
{
    (void)state;
    static const struct {
        uint32_t full, window, again; /* sizes of blocks */
        bool is_odd;
    } cases[] = { { 2, 4, 4, false }, { 2, 3, 3, true }, { 4, 2, 2, true }, { 2, 4, 2, true } };
    struct mirror_scene scene;

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        begin(&scene);
        store_sized(&scene, 0, 0, cases[i].full);
        store_sized(&scene, 1, window_tokens, cases[i].window);
        store_sized(&scene, 1, window_tokens, cases[i].again);
        assert_int_equal(is_odd(&scene), cases[i].is_odd);
        mirror_scene_end(&scene);
    }
    begin(&scene); /* alone */
    store_sized(&scene, 0, window_tokens, 2);
    assert_false(is_odd(&scene));
    store_sized(&scene, 1, window_tokens, 4);
    assert_odd(&scene, "blocks of different sizes");
    mirror_scene_end(&scene);
    begin(&scene); /* named before the full attention's blocks were there */
    store_sized(&scene, 0, window_tokens, 4);
    store_sized(&scene, 1, 0, 2);
    assert_odd(&scene, "blocks of different sizes");
    mirror_scene_end(&scene);
}

static void a_group_of_an_unknown_kind_is_unsupported(void **state)
{
    (void)state;
    static const struct {
        enum kvb_group_kind kind;
        const char *text;
    } cases[] = {
        { KVB_GROUP_OTHER, "unknown kind" },
        { KVB_GROUP_CROSS, "cross attention" },
        { KVB_GROUP_ENCODER, "encoder" },
    };
    struct mirror_scene scene;

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const struct kvb_engine_event skipped = { .group = 3, .group_kind = cases[i].kind };
        begin(&scene);
        store_full(&scene, 0, 0, 1);
        kvb_mirror_meet_other_group(scene.mirror, &skipped);
        assert_odd(&scene, cases[i].text);
        remove_of(&scene, 3, 0);
        assert_true(lists(&scene, KVB_TIER_DEVICE, 0));
        assert_int_equal(kvb_mirror_count(scene.mirror)->unknown_removed, 0);
        store_window(&scene, 3, 1, 2); /* the first reason is kept */
        assert_odd(&scene, cases[i].text);
        mirror_scene_end(&scene);
    }
}

static void more_groups_than_the_maximum_are_unsupported(void **state)
{
    (void)state;
    struct mirror_scene scene;

    begin(&scene);
    for (uint32_t group = 0; group < 33; group++) {
        assert_false(is_odd(&scene));
        store_full(&scene, 1000 + group, 0, 1);
    }
    assert_odd(&scene, "more than 32");
    assert_int_equal(kvb_mirror_count(scene.mirror)->groups_refused, 1);
    assert_int_equal(count_of(&scene, KVB_TIER_DEVICE), 1); /* copies of the other groups */
    remove_of(&scene, 1032, 0);
    assert_int_equal(count_of(&scene, KVB_TIER_DEVICE), 1);
    assert_int_equal(kvb_mirror_count(scene.mirror)->unknown_removed, 1);
    mirror_scene_end(&scene);
}

/* ---- Shapes ---- */

static void
store_shaped(struct mirror_scene *scene, uint64_t hash, uint32_t block_size, enum kvb_tier tier)
{
    const uint32_t many[16] = { 0 };
    const uint64_t names[16] = { hash };

    add_stored(&scene->batch, NULL, names, many, block_size); /* as many names as tokens */
    last_event(&scene->batch)->hash_count = 1;
    last_event(&scene->batch)->block_size = block_size;
    last_event(&scene->batch)->tier = tier;
    mirror_scene_apply(scene);
}

static const struct kvb_tier_shape *shape_at(const struct mirror_scene *scene, size_t i)
{
    return &kvb_mirror_count(scene->mirror)->shapes[i];
}

/* In vLLM a full-attention group of larger blocks also stores parts of them, in the size of the
 * window group's blocks. Only both sizes together show that the groups differ. */
static void several_sizes_in_one_of_several_groups_are_unsupported(void **state)
{
    (void)state;

    for (uint32_t first = 1; first <= 2; first++) {
        struct mirror_scene scene;
        begin(&scene);
        store_shaped(&scene, 950, first, KVB_TIER_DEVICE);
        store_shaped(&scene, 960, 3 - first, KVB_TIER_DEVICE);
        assert_false(is_odd(&scene)); /* a single group may have several sizes */
        store_sparse(&scene, 1, 2);
        assert_true(is_odd(&scene));
        mirror_scene_end(&scene);
    }
}

static void larger_blocks_behind_those_of_a_window_are_unsupported(void **state)
{
    (void)state;
    struct mirror_scene scene;

    begin(&scene);
    store_sparse(&scene, 1, 2);
    store_shaped(&scene, 950, 1, KVB_TIER_DEVICE);
    store_shaped(&scene, 960, 4, KVB_TIER_HOST); /* an offload connector's chunk */
    assert_false(is_odd(&scene));
    store_shaped(&scene, 970, 2, KVB_TIER_DEVICE);
    assert_true(is_odd(&scene));
    mirror_scene_end(&scene);
}

static void a_stream_reports_the_shapes_that_were_stored(void **state)
{
    (void)state;
    struct mirror_scene scene;

    begin(&scene);
    store_full(&scene, 0, 0, 2);
    store_full(&scene, 0, 2, 3);
    assert_int_equal(kvb_mirror_count(scene.mirror)->shape_count, 1);
    store_shaped(&scene, 777, 4, KVB_TIER_HOST);
    assert_int_equal(kvb_mirror_count(scene.mirror)->shape_count, 2);
    assert_int_equal(shape_at(&scene, 1)->tier, KVB_TIER_HOST);
    assert_int_equal(shape_at(&scene, 1)->shape.block_size, 4);
    add_cleared(&scene.batch);
    mirror_scene_apply(&scene);
    assert_int_equal(kvb_mirror_count(scene.mirror)->shape_count, 0);
    mirror_scene_end(&scene);
}

/* It moves blocks of a known shape. */
static void a_tokenless_store_adds_the_known_shapes_to_its_tier(void **state)
{
    (void)state;
    struct mirror_scene scene;

    begin(&scene);
    store_full(&scene, 0, 0, 1);
    add_stored(&scene.batch, NULL, hashes, NULL, 1);
    last_event(&scene.batch)->tier = KVB_TIER_DISK;
    mirror_scene_apply(&scene);
    assert_int_equal(kvb_mirror_count(scene.mirror)->shape_count, 2);
    assert_int_equal(shape_at(&scene, 1)->tier, KVB_TIER_DISK);
    assert_int_equal(shape_at(&scene, 1)->shape.block_size, 1);
    store_shaped(&scene, 777, 4, KVB_TIER_DEVICE);
    assert_int_equal(kvb_mirror_count(scene.mirror)->shape_count, 4);
    assert_int_equal(shape_at(&scene, 3)->tier, KVB_TIER_DISK);
    assert_int_equal(shape_at(&scene, 3)->shape.block_size, 4);
    mirror_scene_end(&scene);
}

static void one_shape_too_many_is_skipped(void **state)
{
    (void)state;
    struct mirror_scene scene;

    begin(&scene);
    for (uint32_t size = 1; size <= kvb_max_tier_shapes + 1; size++) {
        store_shaped(&scene, 700 + size, size, KVB_TIER_DEVICE);
    }
    assert_int_equal(count_of(&scene, KVB_TIER_DEVICE), kvb_max_tier_shapes);
    assert_int_equal(kvb_mirror_count(scene.mirror)->shapes_refused, 1);
    store_shaped(&scene, 799, 3, KVB_TIER_DEVICE); /* a known shape */
    assert_int_equal(kvb_mirror_count(scene.mirror)->proven_copies, kvb_max_tier_shapes + 1);
    assert_int_equal(kvb_mirror_count(scene.mirror)->shapes_refused, 1);
    mirror_scene_end(&scene);
}

SUITE(mirror_groups)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_group_counts_only_in_tiers_in_which_it_stores),
        cmocka_unit_test(groups_outlive_a_clear_but_no_restart),
        cmocka_unit_test(one_tier_is_cleared_in_all_groups),
        cmocka_unit_test(a_window_block_is_unplaced_until_a_full_group_has_it),
        cmocka_unit_test(a_window_block_is_named_when_the_full_groups_block_is),
        cmocka_unit_test(in_other_tiers_window_blocks_are_ignored),
        cmocka_unit_test(windows_of_several_lengths_are_listed_apart),
        cmocka_unit_test(a_new_window_group_leaves_the_other_kinds_alone),
        cmocka_unit_test(windows_alone_are_certain_when_their_last_blocks_are_new),
        cmocka_unit_test(chunks_are_listed_where_their_size_is_configured),
        cmocka_unit_test(larger_blocks_of_a_window_have_the_name_of_their_last_part),
        cmocka_unit_test(a_window_of_no_length_is_unsupported),
        cmocka_unit_test(more_kinds_of_windows_than_the_maximum_are_unsupported),
        cmocka_unit_test(a_group_that_changes_its_kind_is_unsupported),
        cmocka_unit_test(windows_with_engine_names_are_unsupported),
        cmocka_unit_test(windows_whose_blocks_are_no_whole_multiples_are_unsupported),
        cmocka_unit_test(several_sizes_in_one_of_several_groups_are_unsupported),
        cmocka_unit_test(larger_blocks_behind_those_of_a_window_are_unsupported),
        cmocka_unit_test(a_group_of_an_unknown_kind_is_unsupported),
        cmocka_unit_test(more_groups_than_the_maximum_are_unsupported),
        cmocka_unit_test(a_stream_reports_the_shapes_that_were_stored),
        cmocka_unit_test(a_tokenless_store_adds_the_known_shapes_to_its_tier),
        cmocka_unit_test(one_shape_too_many_is_skipped),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
