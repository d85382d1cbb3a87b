#include "fail_alloc.h"
#include "kvb_test.h"

#include "core/clock.h"
#include "core/limits.h"
#include "index/block_hash.h"
#include "kvaggregator/answers/answers.h"
#include "kvaggregator/list_scene.h"

#include <stdlib.h>
#include <string.h>

/* Queries against streams with blocks of several shapes, of hybrid models, and of stores. */

static const struct kvb_block_shape plain = { 16, 0 };

static void assert_device(struct scene *scene, uint64_t worker_id, uint64_t held, uint64_t hit)
{
    const struct kvb_overlap *overlap = overlap_of(scene, worker_id);

    assert_non_null(overlap);
    assert_int_equal(overlap->tokens[KVB_TIER_DEVICE], held);
    assert_int_equal(overlap->hit_tokens, hit);
}

/* ---- Hybrid models ---- */

static const struct lists hybrid = {
    .worker_id = 5,
    .shape = { 16, 0 },
    .device = "111111",
    .window = "110110",
    .window_tokens = 33, /* the window reaches 2 blocks back from the next token */
};

static uint64_t
hybrid_by_hashes(struct scene *scene, enum kvb_query_form form, const uint64_t *hashes)
{
    uint64_t own[6];
    struct kvb_query query = {
        .form = form, .has_model = true, .model = "m", .hashes = own, .count = 6
    };
    struct kvb_detail detail = { { 0 } };

    memcpy(own, hashes, sizeof own);
    assert_ok(kvb_query_context_overlaps(
        &scene->ctx, &query, (struct kvb_listing_options){ 0 }, &detail));
    const struct kvb_overlap *overlap = overlap_of(scene, 5);
    assert_true(!overlap || overlap->hit_tokens == 0);
    return overlap ? overlap->tokens[KVB_TIER_DEVICE] : 0;
}

static void a_query_by_hashes_finds_the_same_of_a_hybrid_model(void **state)
{
    (void)state;
    uint64_t own[6];
    uint64_t rolling[6];
    struct scene scene;
    scene_empty(&scene);

    hold_lists(&scene, &hybrid);
    query_tokens(&scene, 96);
    for (size_t i = 0; i < 6; i++) {
        own[i] = scene.ctx.hashes[i].value;
        rolling[i] = scene.ctx.names[i].value;
    }
    assert_int_equal(hybrid_by_hashes(&scene, KVB_QUERY_TOKENS_HASHES, own), 80);
    assert_int_equal(hybrid_by_hashes(&scene, KVB_QUERY_BLOCK_HASHES, rolling), 80);
    scene_done(&scene);
}

static void engine_names_are_found_only_by_engine_names(void **state)
{
    (void)state;
    struct lists lists = hybrid;
    uint64_t own[6];
    uint64_t names[6];
    struct scene scene;
    scene_empty(&scene);

    lists.hashes = KVB_HASHES_ENGINE;
    hold_lists(&scene, &lists);
    query_tokens(&scene, 96);
    assert_device(&scene, 5, 0, 0);
    for (uint32_t i = 0; i < 6; i++) {
        own[i] = scene.ctx.hashes[i].value;
        names[i] = engine_name(i).value;
    }
    assert_int_equal(hybrid_by_hashes(&scene, KVB_QUERY_TOKENS_HASHES, own), 0);
    assert_int_equal(hybrid_by_hashes(&scene, KVB_QUERY_BLOCK_HASHES, names), 80);
    scene_done(&scene);
}

static void every_failing_allocation_of_a_query_is_reported(void **state)
{
    (void)state;

    for (long n = 0;; n++) {
        struct kvb_query query = scene_query(200, "m");
        struct kvb_detail detail = { { 0 } };
        struct scene scene;
        scene_empty(&scene);
        hold_lists(&scene, &hybrid);
        fail_alloc_after(n);
        const kvb_status status = kvb_query_context_overlaps(
            &scene.ctx, &query, (struct kvb_listing_options){ 0 }, &detail);
        fail_alloc_after(-1);
        assert_true(status == KVB_OK || status == KVB_NO_MEMORY);
        query_tokens(&scene, 200); /* nothing of the failed query is left */
        assert_device(&scene, 5, 80, 80);
        kvb_query_done(&query);
        scene_done(&scene);
        if (status == KVB_OK) {
            assert_true(n > 2);
            return;
        }
    }
}

/* ---- Random lists, against the rule ---- */

enum { rounds = 2000, max_blocks = 12 };

static void draw_list(unsigned *seed, char *out, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        out[i] = rand_r(seed) % 3 ? '1' : '0';
    }
    out[count] = '\0';
}

/* The rule: the longest prefix of at most n blocks of which the last `need` blocks, or all of a
 * shorter one, are held. */
static uint64_t longest_usable(const char *held, size_t n, size_t need)
{
    for (; n > 0; n--) {
        size_t run = 0;
        while (run < n && run < need && n - 1 - run < strlen(held) && held[n - 1 - run] == '1') {
            run++;
        }
        if (run == need || run == n) {
            return n;
        }
    }
    return 0;
}

static void random_lists_agree_with_the_rule(void **state)
{
    (void)state;
    unsigned seed = 7;
    size_t cut = 0;

    for (int round = 0; round < rounds; round++) {
        char device[max_blocks + 1] = "";
        char window[max_blocks + 1];
        const size_t held = 1 + (size_t)rand_r(&seed) % max_blocks;
        const size_t need = 1 + (size_t)rand_r(&seed) % 4;
        const size_t tokens = 1 + (size_t)rand_r(&seed) % (max_blocks * 4 + 8);
        memset(device, '1', held);
        draw_list(&seed, window, held);
        const struct lists lists = { .worker_id = 5,
                                     .shape = { 4, 0 },
                                     .device = device,
                                     .window = window,
                                     .window_tokens = (uint32_t)(4 * need) };
        struct scene scene;
        scene_empty(&scene);
        hold_lists(&scene, &lists);
        query_tokens(&scene, tokens);
        const size_t asked = tokens / 4 < held ? tokens / 4 : held;
        const size_t given = (tokens - 1) / 4 < held ? (tokens - 1) / 4 : held;
        assert_device(
            &scene, 5, 4 * longest_usable(window, asked, need),
            4 * longest_usable(window, given, need));
        cut += longest_usable(window, asked, need) < asked;
        scene_done(&scene);
    }
    assert_true(cut > rounds / 4 && cut < rounds * 3 / 4);
}

/* ---- Reported hits of a request ---- */

/* The same shape of block gives another hit: with SGLang's pairs one token more is computed. */
static void pairs_leave_out_one_token_more_than_lookahead_does(void **state)
{
    (void)state;
    const struct lists vllm = { .worker_id = 5, .shape = { 16, 1 }, .device = "1111" };
    const struct lists sglang = {
        .worker_id = 6, .shape = { 16, 1 }, .device = "1111", .is_paired = true
    };
    struct scene scene;
    scene_empty(&scene);

    hold_lists(&scene, &vllm);
    hold_lists(&scene, &sglang);
    query_tokens(&scene, 65);
    assert_device(&scene, 5, 64, 64);
    assert_device(&scene, 6, 64, 48);
    query_tokens(&scene, 66);
    assert_device(&scene, 6, 64, 64);
    query_tokens(&scene, 64); /* the name of the fourth block depends on the token behind it */
    assert_device(&scene, 5, 48, 48);
    assert_device(&scene, 6, 48, 48);
    scene_done(&scene);
}

static void windows_alone_are_found_without_a_device_list(void **state)
{
    (void)state;
    const struct lists alone = { .worker_id = 5,
                                 .shape = { 16, 0 },
                                 .window = "00110",
                                 .window_tokens = 33,
                                 .is_without_full = true };
    const struct lists other = { .worker_id = 6, .shape = { 16, 0 }, .device = "11111" };
    struct scene scene;
    scene_empty(&scene);

    hold_lists(&scene, &alone);
    hold_lists(&scene, &other);
    query_tokens(&scene, 200);
    assert_device(&scene, 5, 64, 64);
    assert_device(&scene, 6, 80, 80);
    query_tokens(&scene, 64);
    assert_device(&scene, 5, 64, 0);
    scene_done(&scene);
}

/* ---- Speculation ---- */

static void an_engine_that_speculates_gives_one_block_less(void **state)
{
    (void)state;
    const struct lists eagle = {
        .worker_id = 5, .shape = { 16, 0 }, .device = "1111", .speculative_drop = 1
    };
    struct scene scene;
    scene_empty(&scene);

    hold_lists(&scene, &eagle);
    query_tokens(&scene, 200);
    assert_device(&scene, 5, 48, 48);
    query_tokens(&scene, 64); /* 3 blocks may be taken, and one of them is dropped */
    assert_device(&scene, 5, 48, 32);
    query_tokens(&scene, 17); /* one block may be taken */
    assert_int_equal(overlap_of(&scene, 5)->hit_tokens, 0);
    scene_done(&scene);
}

/* The full-attention group looks one block past the most that a request takes, and drops that. */
static void a_hybrid_model_drops_before_its_windows_are_asked(void **state)
{
    (void)state;
    const struct lists eagle = { .worker_id = 5,
                                 .shape = { 16, 0 },
                                 .device = "11111",
                                 .window = "01110",
                                 .window_tokens = 33,
                                 .speculative_drop = 1 };
    struct scene scene;
    scene_empty(&scene);

    hold_lists(&scene, &eagle);
    query_tokens(&scene, 200);
    assert_device(&scene, 5, 64, 64);
    query_tokens(&scene, 64); /* 3 blocks may be taken, the fourth is dropped */
    assert_device(&scene, 5, 48, 48);
    scene_done(&scene);
}

/* ---- Shapes ---- */

static const struct lists chunked = {
    .worker_id = 5,
    .shape = { 16, 0 },
    .device = "111",
    .host_shape = { 64, 0 },
    .host = "11",
};

static void a_tier_of_larger_blocks_counts_in_tokens(void **state)
{
    (void)state;
    struct scene scene;
    scene_empty(&scene);

    hold_lists(&scene, &chunked);
    query_tokens(&scene, 200);
    const struct kvb_overlap *overlap = overlap_of(&scene, 5);
    assert_int_equal(overlap->tokens[KVB_TIER_DEVICE], 48);
    assert_int_equal(overlap->tokens[KVB_TIER_HOST], 128); /* 2 blocks are not less than 3 */
    assert_int_equal(overlap->max_tokens, 128);
    assert_int_equal(overlap->blocks, 8); /* of the device's size */
    assert_int_equal(overlap->request_blocks, 12);
    assert_int_equal(overlap->hit_tokens, 48);
    assert_false(scene.ctx.head.has_several); /* workers have one size on the device */
    assert_int_equal(scene.ctx.head.block_size, 16);
    scene_done(&scene);
}

static void blocks_of_a_shape_that_the_tier_does_not_have_are_not_found(void **state)
{
    (void)state;
    /* A block of 17 tokens has the same hash as one of 16 with one token of lookahead. */
    const struct lists odd = { .worker_id = 5, .shape = { 17, 0 }, .device = "1" };
    const struct lists eagle = { .worker_id = 6, .shape = { 16, 1 }, .device = "1" };
    struct scene scene;
    scene_empty(&scene);

    hold_lists(&scene, &odd);
    hold_lists(&scene, &eagle);
    query_tokens(&scene, 40);
    assert_device(&scene, 5, 17, 17);
    assert_device(&scene, 6, 16, 16);
    scene_done(&scene);
}

static void hashes_say_nothing_about_tiers_of_another_shape(void **state)
{
    (void)state;
    const struct lists same = {
        .worker_id = 6, .shape = { 16, 0 }, .host_shape = { 16, 0 }, .host = "11"
    };
    uint64_t large[2];
    struct scene scene;
    scene_empty(&scene);

    hold_lists(&scene, &chunked);
    hold_lists(&scene, &same);
    struct kvb_query query = { .form = KVB_QUERY_TOKENS_HASHES,
                               .has_model = true,
                               .model = "m",
                               .hashes = large,
                               .count = 2 };
    struct kvb_detail detail = { { 0 } };
    uint32_t tokens[64];
    for (uint32_t i = 0; i < 128; i++) {
        tokens[i % 64] = 100 + i;
        if (i % 64 == 63) {
            large[i / 64] = kvb_tokens_hash_of(tokens, 64, NULL, 0, 1337).value;
        }
    }
    assert_ok(
        kvb_query_context_overlaps(&scene.ctx, &query, (struct kvb_listing_options){ 0 }, &detail));
    assert_int_equal(scene.ctx.overlap_count, 0); /* the host tier was not requested */
    query_tokens(&scene, 32);
    uint64_t small[2] = { scene.ctx.hashes[0].value, scene.ctx.hashes[1].value };
    query.hashes = small;
    assert_ok(
        kvb_query_context_overlaps(&scene.ctx, &query, (struct kvb_listing_options){ 0 }, &detail));
    assert_int_equal(overlap_of(&scene, 5)->max_tokens, 32);
    assert_int_equal(overlap_of(&scene, 6)->tokens[KVB_TIER_HOST], 32);
    scene_done(&scene);
}

/* ---- Stores ---- */

static const struct lists store = {
    .worker_id = 90,
    .shape = { 16, 0 },
    .host_shape = { 16, 0 },
    .host = "1111",
    .is_store = true,
};

/* Whatever the order in which they are found. */
static void stores_and_workers_take_nobodys_place(void **state)
{
    (void)state;
    static const char *const blocks[] = { "1", "11", "111", "1111", "11111", "111111" };
    enum { all = 6, stores = 3 };
    struct scene scene;
    scene_empty(&scene);

    for (uint64_t i = 0; i < all; i++) {
        struct lists lists = { .worker_id = i + 1, .shape = plain, .device = blocks[i] };
        if (i % 2 == 1) {
            lists = store;
            lists.worker_id = i + 1;
            lists.host = blocks[i];
        }
        hold_lists(&scene, &lists);
    }
    query_tokens(&scene, 96);
    assert_int_equal(scene.ctx.overlap_count, all - stores);
    assert_int_equal(scene.ctx.shared_count, stores);
    for (uint64_t i = 0; i < all; i++) {
        const struct kvb_overlap *overlap =
            i % 2 == 1 ? shared_of(&scene, i + 1) : overlap_of(&scene, i + 1);
        assert_non_null(overlap);
        assert_int_equal(overlap->max_tokens, 16 * (i + 1));
    }
    scene_done(&scene);
}

static void a_store_is_no_candidate_of_a_route(void **state)
{
    (void)state;
    struct kvb_query asked = scene_query(96, "m");
    struct kvb_detail detail = { { 0 } };
    struct kvb_route_decision decision;
    struct kvb_buf buf;
    struct scene scene;
    scene_empty(&scene);

    kvb_buf_init(&buf, kvb_max_answer_bytes);
    hold_lists(&scene, &store);
    assert_int_equal(kvb_answer_route(&scene.ctx, &asked, 10, &buf, &decision, &detail), KVB_AGAIN);
    hold_lists(&scene, &(struct lists){ .worker_id = 5, .shape = plain, .device = "1" });
    assert_ok(kvb_answer_route(&scene.ctx, &asked, 10, &buf, &decision, &detail));
    assert_int_equal(decision.id.worker_id, 5);
    assert_ok(kvb_buf_append(&buf, "", 1));
    assert_null(strstr((const char *)buf.data, "\"worker_id\":90"));
    kvb_buf_done(&buf);
    kvb_query_done(&asked);
    scene_done(&scene);
}

static void one_worker_can_load_from_every_store(void **state)
{
    (void)state;
    struct kvb_query asked = scene_query(96, "m");
    struct kvb_detail detail = { { 0 } };
    struct scene scene;
    scene_empty(&scene);

    hold_lists(&scene, &store);
    hold_lists(&scene, &(struct lists){ .worker_id = 5, .shape = plain, .device = "1" });
    hold_lists(&scene, &(struct lists){ .worker_id = 6, .shape = plain, .device = "1" });
    asked.has_instance_id = true;
    asked.instance_id = 5;
    assert_ok(
        kvb_query_context_overlaps(&scene.ctx, &asked, (struct kvb_listing_options){ 0 }, &detail));
    assert_int_equal(scene.ctx.overlap_count, 1);
    assert_non_null(shared_of(&scene, 90));
    kvb_query_done(&asked);
    scene_done(&scene);
}

/* Its blocks are of its own size; the head speaks of workers. */
static void a_store_has_no_part_in_the_head(void **state)
{
    (void)state;
    struct lists large = store;
    struct scene scene;
    scene_empty(&scene);

    large.worker_id = 3; /* the first by id */
    large.shape = (struct kvb_block_shape){ 64, 0 };
    large.host_shape = large.shape;
    hold_lists(&scene, &large);
    hold_lists(&scene, &(struct lists){ .worker_id = 5, .shape = plain });
    query_tokens(&scene, 96);
    assert_int_equal(scene.ctx.head.block_size, 16);
    assert_int_equal(scene.ctx.head.blocks, 6);
    assert_false(scene.ctx.head.has_several);
    assert_int_equal(shared_of(&scene, 3)->tokens[KVB_TIER_HOST], 64);
    scene_done(&scene);
}

SUITE(lists)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_query_by_hashes_finds_the_same_of_a_hybrid_model),
        cmocka_unit_test(engine_names_are_found_only_by_engine_names),
        cmocka_unit_test(every_failing_allocation_of_a_query_is_reported),
        cmocka_unit_test(random_lists_agree_with_the_rule),
        cmocka_unit_test(pairs_leave_out_one_token_more_than_lookahead_does),
        cmocka_unit_test(windows_alone_are_found_without_a_device_list),
        cmocka_unit_test(an_engine_that_speculates_gives_one_block_less),
        cmocka_unit_test(a_hybrid_model_drops_before_its_windows_are_asked),
        cmocka_unit_test(a_tier_of_larger_blocks_counts_in_tokens),
        cmocka_unit_test(blocks_of_a_shape_that_the_tier_does_not_have_are_not_found),
        cmocka_unit_test(hashes_say_nothing_about_tiers_of_another_shape),
        cmocka_unit_test(stores_and_workers_take_nobodys_place),
        cmocka_unit_test(a_store_is_no_candidate_of_a_route),
        cmocka_unit_test(one_worker_can_load_from_every_store),
        cmocka_unit_test(a_store_has_no_part_in_the_head),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
