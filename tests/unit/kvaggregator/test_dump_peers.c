#include "kvb_test.h"

#include "core/own.h"
#include "kvaggregator/answers/answers.h"
#include "kvaggregator/query_scene.h"

#include <stdio.h>
#include <string.h>

/* What a dump contains for a peer that recovers from it, and what is left out. */

static const struct scene_holding held = { 1, 0, "m", 16, KVB_TIER_DEVICE, 2, false };

static const struct kvb_dump_options everything = {
    .model = "", .name_space = "", .component = "", .max_blocks = UINT64_MAX
};

struct dumped {
    char text[4096];
    uint32_t left_out[KVB_DUMP_REASON_COUNT]; /* streams, by reason */
};

/* The whole dump. */
static struct dumped dump_of(struct scene *scene, const struct kvb_dump_options *options)
{
    struct dumped dumped = { .text = "" };
    struct kvb_dump dump = { 0 };
    struct kvb_detail detail = { { 0 } };
    struct kvb_buf buf = { 0 };

    kvb_buf_init(&buf, sizeof dumped.text - 1);
    assert_ok(kvb_dump_begin(&dump, &scene->ctx, options, &detail));
    memcpy(dumped.left_out, dump.left_out, sizeof dump.left_out);
    while (kvb_dump_step(&dump, &scene->ctx, &buf) == KVB_AGAIN) {
    }
    memcpy(dumped.text, buf.data, buf.len);
    kvb_dump_done(&dump);
    kvb_buf_done(&buf);
    return dumped;
}

static void assert_refused(
    struct scene *scene, const struct kvb_dump_options *options, kvb_status expected,
    const char *sentence)
{
    struct kvb_dump dump = { 0 };
    struct kvb_detail detail = { { 0 } };

    assert_int_equal(kvb_dump_begin(&dump, &scene->ctx, options, &detail), expected);
    assert_non_null(strstr(detail.text, sentence));
    kvb_dump_done(&dump);
}

static bool has_worker(const struct dumped *dumped, unsigned worker)
{
    char key[40];

    (void)snprintf(key, sizeof key, "\"worker_id\":%u,", worker);
    return strstr(dumped->text, key) != NULL;
}

/* A worker of another component with one block, under the engine's name or the canonical one. */
static void hold_elsewhere(
    struct scene *scene, const char *component, uint64_t worker_id, enum kvb_hashes hashes)
{
    struct kvb_stream_id id = { .name_space = "dynamo", .worker_id = worker_id };
    struct kvb_router_batch batch = { .worker_id = worker_id };
    const uint64_t first = scene->event_id;
    scene->event_id += 2;
    const struct kvb_router_event events[] = {
        { .kind = KVB_ROUTER_CLEARED, .event_id = first },
        { .kind = KVB_ROUTER_STORED, .tier = KVB_TIER_DEVICE, .event_id = first + 1 },
    };
    struct kvb_heartbeat heartbeat = {
        .worker_id = worker_id,
        .epoch_first_id = first,
        .last_id = first + 1,
        .state = KVB_STREAM_EXACT,
        .hashes = hashes,
        .model = "m",
        .block_size = 16,
        .tiers[KVB_TIER_DEVICE].blocks = 1,
    };

    (void)snprintf(id.component, sizeof id.component, "%s", component);
    assert_ok(kvb_router_batch_add_event(&batch, &events[0]));
    assert_ok(kvb_router_batch_add_event(&batch, &events[1]));
    assert_ok(kvb_router_batch_add_block(
        &batch, (kvb_block_hash){ 77 + worker_id }, (kvb_tokens_hash){ 5 }));
    const uint64_t now_ns = scene_now_s * UINT64_C(1000000000);
    assert_ok(kvb_followers_apply(scene->followers, &id, &batch, now_ns));
    assert_ok(kvb_followers_heartbeat(scene->followers, &id, &heartbeat, now_ns));
    kvb_router_batch_done(&batch);
}

static void leaves_out_what_a_peer_would_misread(void **state)
{
    static const struct {
        struct scene_holding holding;
        bool is_gone;
        size_t reason;
    } rows[] = {
        { { 2, 0, "m", 16, KVB_TIER_DEVICE, 2, false }, true, KVB_DUMP_STATE },
        /* no heartbeats, so UNVERIFIED */
        { { 2, 0, NULL, 16, KVB_TIER_DEVICE, 2, false }, false, KVB_DUMP_STATE },
        /* Dynamo would parse model "a" and group "b:default" */
        { { 2, 0, "a:b", 16, KVB_TIER_DEVICE, 2, false }, false, KVB_DUMP_MODEL_NAME },
        { { 2, 0, "m", 32, KVB_TIER_DEVICE, 2, false }, false, KVB_DUMP_BLOCK_SIZE },
    };

    (void)state;
    for (size_t i = 0; i < KVB_COUNT_OF(rows); i++) {
        struct scene scene;
        scene_empty(&scene);
        scene_hold(&scene, &held);
        scene_hold(&scene, &rows[i].holding);
        if (rows[i].is_gone) {
            scene_bye(&scene, &rows[i].holding);
        }
        const struct dumped dumped = dump_of(&scene, &everything);
        assert_true(has_worker(&dumped, 1));
        assert_false(has_worker(&dumped, 2));
        assert_null(strstr(dumped.text, "a:b"));
        assert_int_equal(dumped.left_out[rows[i].reason], 1);
        scene_done(&scene);
    }
}

static void refuses_engine_names_if_a_stream_has_canonical_ones(void **state)
{
    (void)state;
    struct scene scene;
    struct dumped dumped;
    struct kvb_dump_options options = everything;
    options.engine_names = true;

    scene_empty(&scene);
    hold_elsewhere(&scene, "Own", 4, KVB_HASHES_ENGINE);
    dumped = dump_of(&scene, &options);
    assert_non_null(strstr(dumped.text, "\"block_hash\":81,"));
    scene_hold(&scene, &held);
    assert_refused(&scene, &options, KVB_BAD_INPUT, "worker 1 rank 0 has canonical names");
    options.component = "Own";
    dumped = dump_of(&scene, &options);
    assert_true(has_worker(&dumped, 4));
    scene_done(&scene);
}

static void refuses_one_worker_of_two_components_until_one_is_chosen(void **state)
{
    (void)state;
    struct scene scene;
    struct dumped dumped;
    struct kvb_dump_options options = everything;

    scene_empty(&scene);
    hold_elsewhere(&scene, "A", 4, KVB_HASHES_CANONICAL);
    hold_elsewhere(&scene, "B", 5, KVB_HASHES_CANONICAL);
    /* two different workers: not ambiguous */
    dumped = dump_of(&scene, &options);
    assert_true(has_worker(&dumped, 4) && has_worker(&dumped, 5));
    hold_elsewhere(&scene, "B", 4, KVB_HASHES_CANONICAL);
    assert_refused(&scene, &options, KVB_BAD_INPUT, "is in dynamo/A and in dynamo/B");
    options.component = "A";
    options.name_space = "dynamo";
    dumped = dump_of(&scene, &options);
    assert_true(has_worker(&dumped, 4));
    assert_false(has_worker(&dumped, 5));
    options.name_space = "other";
    dumped = dump_of(&scene, &options);
    assert_string_equal(dumped.text, "{}");
    scene_done(&scene);
}

static void refuses_more_blocks_than_a_peer_reads(void **state)
{
    (void)state;
    struct scene scene;
    struct kvb_dump_options options = everything;
    options.max_blocks = 2;

    scene_empty(&scene);
    scene_hold(&scene, &held);
    (void)dump_of(&scene, &options);
    options.max_blocks = 1;
    assert_refused(&scene, &options, KVB_TOO_LARGE, "2 blocks, above the 1 that a peer reads");
    scene_done(&scene);
}

static void refuses_more_models_than_it_can_show(void **state)
{
    (void)state;
    enum { models = 65 };
    struct scene scene;
    struct dumped dumped;
    struct kvb_dump_options options = everything;

    scene_empty(&scene);
    for (unsigned i = 0; i < models; i++) {
        char name[16];
        struct scene_holding holding = held;
        holding.worker_id = i;
        (void)snprintf(name, sizeof name, "m%u", i);
        holding.model = name;
        scene_hold(&scene, &holding);
    }
    assert_refused(&scene, &options, KVB_TOO_LARGE, "more than 64 models");
    options.model = "m64";
    dumped = dump_of(&scene, &options);
    assert_true(has_worker(&dumped, 64));
    scene_done(&scene);
}

/* A stream that becomes untrusted during the dump is left out of the rest. */
static void leaves_out_a_stream_that_went_down_meanwhile(void **state)
{
    (void)state;
    struct kvb_dump dump = { 0 };
    struct kvb_buf buf = { 0 };
    struct scene scene;

    scene_empty(&scene);
    scene_hold(&scene, &held);
    kvb_buf_init(&buf, 1U << 20U);
    assert_ok(kvb_dump_begin(&dump, &scene.ctx, &everything, NULL));
    scene_bye(&scene, &held);
    assert_ok(kvb_dump_step(&dump, &scene.ctx, &buf));
    assert_ok(kvb_buf_append(&buf, "", 1));
    assert_string_equal(
        (const char *)buf.data, "{\"m:default\":{\"block_size\":16,\"events\":[]}}");
    kvb_dump_done(&dump);
    kvb_buf_done(&buf);
    scene_done(&scene);
}

SUITE(dump_peers)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(leaves_out_what_a_peer_would_misread),
        cmocka_unit_test(refuses_engine_names_if_a_stream_has_canonical_ones),
        cmocka_unit_test(refuses_one_worker_of_two_components_until_one_is_chosen),
        cmocka_unit_test(refuses_more_blocks_than_a_peer_reads),
        cmocka_unit_test(refuses_more_models_than_it_can_show),
        cmocka_unit_test(leaves_out_a_stream_that_went_down_meanwhile),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
