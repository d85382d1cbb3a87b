#include "kvb_test.h"

#include "core/limits.h"
#include "core/own.h"
#include "kvaggregator/answers/answers.h"
#include "kvaggregator/answers/gateway.h"
#include "kvaggregator/query_scene.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Queries for names that are no base model: second served names and LoRA adapters. */

#define NAMES(...) ((const char *const[]){ __VA_ARGS__, NULL })

static const struct scene_holding one = { 1, 0, "m", scene_block_size, KVB_TIER_DEVICE, 4, false };
static const struct scene_holding two = { 2, 0, "m", scene_block_size, KVB_TIER_DEVICE, 2, false };

/* Worker 1 holds blocks of the base model, worker 2 of the adapter "sql". */
static void begin(struct scene *scene)
{
    scene_empty(scene);
    scene_hold(scene, &one);
    scene->adapter = "sql";
    scene_hold(scene, &two);
    scene->adapter = NULL;
}

/* "1:64 2:32": the workers that hold tokens of the prompt, and how many; or the error. */
static void assert_found(struct scene *scene, const char *model, const char *want)
{
    const struct kvb_listing_options by_id = { .by_id = true };
    struct kvb_query query = scene_query(96, model);
    struct kvb_detail detail = { .text = "" };
    char text[512] = "";

    const kvb_status status = kvb_query_context_overlaps(&scene->ctx, &query, by_id, &detail);
    if (status != KVB_OK) {
        (void)snprintf(text, sizeof text, "%s", detail.text);
    }
    for (size_t i = 0; status == KVB_OK && i < scene->ctx.overlap_count; i++) {
        const size_t len = strlen(text);
        (void)snprintf(
            text + len, sizeof text - len, "%s%d:%d", len > 0 ? " " : "",
            (int)scene->ctx.overlaps[i].follower->id.worker_id,
            (int)scene->ctx.overlaps[i].max_tokens);
    }
    assert_string_equal(text, want);
    kvb_query_done(&query);
}

/* The worker that a request is routed to; or the error. */
static void assert_routed(struct scene *scene, const char *model, const char *want)
{
    struct kvb_query query = scene_query(96, model);
    struct kvb_route_decision decision;
    struct kvb_detail detail = { .text = "" };
    struct kvb_buf out;
    char text[512];

    kvb_buf_init(&out, kvb_max_answer_bytes);
    const kvb_status status =
        kvb_answer_route(&scene->ctx, &query, kvb_max_streams, &out, &decision, &detail);
    if (status == KVB_OK) {
        (void)snprintf(
            text, sizeof text, "%d, %d blocks", (int)decision.id.worker_id,
            (int)decision.overlap_blocks);
    } else {
        (void)snprintf(text, sizeof text, "%s", detail.text);
    }
    assert_string_equal(text, want);
    kvb_buf_done(&out);
    kvb_query_done(&query);
}

static void an_adapter_means_its_own_blocks(void **state)
{
    (void)state;
    struct scene scene;
    begin(&scene);

    scene_serve(&scene, &one, true, NAMES("chat", "+sql"));
    scene_serve(&scene, &two, true, NAMES("chat", "+sql"));
    assert_found(&scene, "sql", "2:32");
    assert_routed(&scene, "sql", "2, 2 blocks");
    assert_found(&scene, "m", "1:64");
    scene_done(&scene);
}

/* It would answer 404; a worker whose list is not known may serve the name. */
static void a_worker_whose_list_lacks_the_name_is_no_candidate(void **state)
{
    (void)state;
    struct scene scene;
    begin(&scene);

    scene_serve(&scene, &one, true, NAMES("chat"));
    scene_serve(&scene, &two, true, NAMES("+sql"));
    assert_routed(&scene, "chat", "1, 4 blocks");
    assert_routed(&scene, "sql", "2, 2 blocks");
    assert_found(&scene, "chat", "1:64");
    scene_label(&scene, &two, NULL, false); /* its list is not known any more */
    assert_found(&scene, "chat", "1:64");
    scene_bye(&scene, &one);
    scene_serve(&scene, &one, true, NAMES("chat"));
    scene_label(&scene, &one, NULL, true);
    scene_serve(&scene, &two, true, NAMES("chat", "+sql"));
    assert_routed(&scene, "chat", "2, 0 blocks"); /* the other one is draining */
    scene_done(&scene);
}

static void a_name_of_several_models_is_refused(void **state)
{
    (void)state;
    static const struct scene_holding other = { 3, 0,    "n", scene_block_size, KVB_TIER_DEVICE,
                                                1, false };
    struct scene scene;
    begin(&scene);

    scene_hold(&scene, &other);
    scene_serve(&scene, &one, true, NAMES("+sql"));
    scene_serve(&scene, &other, true, NAMES("+sql"));
    assert_found(
        &scene, "sql",
        "model: \"sql\" is an adapter of m and an adapter of n: ask for one of these models, and "
        "for an adapter by lora_name");
    scene_serve(&scene, &other, true, NAMES("+x"));
    scene_serve(&scene, &two, true, NAMES("sql"));
    assert_found(
        &scene, "sql",
        "model: \"sql\" is an adapter of m and a name of m: ask for one of these models, and for "
        "an adapter by lora_name");
    scene_done(&scene);
}

/* Hashes that were made before the name was known are those of the base model. */
static void hashes_made_ahead_are_made_again_for_an_adapter(void **state)
{
    (void)state;
    const struct kvb_listing_options by_id = { .by_id = true };
    const struct kvb_block_shape shape = { .block_size = scene_block_size };
    struct kvb_query query = scene_query(96, "sql");
    struct kvb_detail detail = { .text = "" };
    struct scene scene;
    begin(&scene);

    scene_serve(&scene, &two, true, NAMES("+sql"));
    assert_ok(kvb_query_hash_ahead(&query, shape));
    for (int again = 0; again < 2; again++) { /* as after a wait for tokens */
        assert_ok(kvb_query_context_overlaps(&scene.ctx, &query, by_id, &detail));
        assert_int_equal(scene.ctx.overlap_count, 1);
        assert_int_equal(scene.ctx.overlaps[0].max_tokens, 32);
    }
    kvb_query_done(&query);
    scene_done(&scene);
}

/* Whose engine answers 404.  The first worker of the fleet is not one of this gateway's pool. */
static void a_gateways_unknown_model_goes_to_an_engine_of_its_pool(void **state)
{
    (void)state;
    static const struct scene_holding other = { 3, 0,    "n", scene_block_size, KVB_TIER_DEVICE,
                                                1, false };
    const struct kvb_gateway_wish wish = { .endpoints = 1 };
    struct kvb_worker_facts facts[2] = { { .address = "http://10.0.0.1:8000" },
                                         { .address = "http://10.0.0.3:8000" } };
    struct scene scene;
    begin(&scene);

    assert_ok(kvb_labels_add_pair(&facts[0].labels, "pool=a", NULL));
    assert_ok(kvb_labels_add_pair(&facts[1].labels, "pool=b", NULL));
    scene_hold(&scene, &other);
    scene_tell(&scene, &one, &facts[0]);
    scene_tell(&scene, &other, &facts[1]);
    for (size_t i = 0; i < 2; i++) {
        struct kvb_query query = scene_query(96, "unheard-of");
        struct kvb_gateway_found found;
        query.selection.labels = facts[i].labels;
        assert_ok(kvb_answer_gateway(&scene.ctx, &query, &wish, &found));
        assert_true(found.is_model_unknown);
        assert_string_equal(found.endpoints, i == 0 ? "10.0.0.1:8000" : "10.0.0.3:8000");
        kvb_query_done(&query);
    }
    scene_done(&scene);
}

SUITE(model_names)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_adapter_means_its_own_blocks),
        cmocka_unit_test(a_worker_whose_list_lacks_the_name_is_no_candidate),
        cmocka_unit_test(a_name_of_several_models_is_refused),
        cmocka_unit_test(hashes_made_ahead_are_made_again_for_an_adapter),
        cmocka_unit_test(a_gateways_unknown_model_goes_to_an_engine_of_its_pool),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
