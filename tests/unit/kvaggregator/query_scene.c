#include "kvaggregator/query_scene.h"

#include "kvb_test.h"

#include "core/clock.h"
#include "index/block_hash.h"
#include "model/router_batch.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { max_tokens = 1024 };

static const uint64_t now_ns = scene_now_s * KVB_NS_PER_S;

void scene_empty(struct scene *scene)
{
    const struct kvb_prefix_index_options index = { .max_nodes = 10000, .max_slots = 256 };
    const struct kvb_load_options load = { .max_endpoints = 64,
                                           .expire_ms = 3000,
                                           .forget_ms = 60000 };

    *scene = (struct scene){ .event_id = 1000, .component = "VllmWorker" };
    assert_ok(kvb_prefix_index_new(&index, &scene->index));
    const struct kvb_followers_options followers = {
        .max_streams = 1024,
        .heartbeat_ms = 1000,
        .forget_ms = 60000,
        .max_window_blocks = 10000,
        .index = scene->index,
    };
    assert_ok(kvb_followers_new(&followers, &scene->followers));
    assert_ok(kvb_load_tracker_new(&load, &scene->tracker));
    const struct kvb_requests_options requests = { .max_requests = 256, .max_streams = 64 };
    const struct kvb_predictions_options predictions = { .max_blocks = 4096,
                                                         .max_streams = 64,
                                                         .ttl_ns = 0 };
    assert_ok(kvb_requests_new(&requests, &scene->requests));
    assert_ok(kvb_predictions_new(&predictions, &scene->predictions));
    scene->ctx = (struct kvb_query_context){
        .index = scene->index,
        .followers = scene->followers,
        .tracker = scene->tracker,
        .requests = scene->requests,
        .predictions = scene->predictions,
        .now_ns = now_ns,
        .aggregator_id = "A",
        .request_ttl_ms = 120000,
        .route = { .policy = KVB_ROUTE_KV, .overlap_weight = 1 },
        .default_model = "",
    };
}

void scene_predict(struct scene *scene)
{
    const struct kvb_predictions_options options = { .max_blocks = 4096,
                                                     .max_streams = 64,
                                                     .ttl_ns = 3 * KVB_NS_PER_S };

    kvb_predictions_free(scene->predictions);
    assert_ok(kvb_predictions_new(&options, &scene->predictions));
    scene->ctx.predictions = scene->predictions;
}

void scene_done(struct scene *scene)
{
    kvb_query_context_done(&scene->ctx);
    kvb_predictions_free(scene->predictions);
    kvb_requests_free(scene->requests);
    kvb_load_tracker_free(scene->tracker);
    kvb_followers_free(scene->followers);
    kvb_prefix_index_free(scene->index);
}

static struct kvb_stream_id id_of(const struct scene *scene, uint64_t worker_id, uint32_t dp_rank)
{
    struct kvb_stream_id id = { .name_space = "dynamo",
                                .worker_id = worker_id,
                                .dp_rank = dp_rank };

    (void)snprintf(id.component, sizeof id.component, "%s", scene->component);
    return id;
}

static uint64_t next_id(struct scene *scene)
{
    return scene->event_id++;
}

static void
add_blocks(struct scene *scene, struct kvb_router_batch *batch, const struct scene_holding *holding)
{
    const struct kvb_router_event stored = {
        .kind = KVB_ROUTER_STORED,
        .tier = holding->tier,
        .event_id = next_id(scene),
    };
    const uint32_t width = holding->block_size + holding->is_eagle;
    uint32_t tokens[max_tokens];
    kvb_block_hash block = { 0 };
    const uint64_t seed =
        kvb_block_seed(kvb_span_of(scene->adapter ? scene->adapter : ""), kvb_span_of(""));

    assert_ok(kvb_router_batch_add_event(batch, &stored));
    for (uint32_t i = 0; i < holding->count; i++) {
        for (uint32_t n = 0; n < width; n++) {
            tokens[n] = 100 + (i * holding->block_size) + n;
        }
        const kvb_tokens_hash hash = kvb_tokens_hash_of(tokens, width, NULL, 0, seed);
        block = i == 0 ? kvb_block_hash_root(hash) : kvb_block_hash_next(block, hash);
        assert_ok(kvb_router_batch_add_block(batch, block, hash));
    }
}

static struct kvb_heartbeat
heartbeat_of(const struct scene *scene, const struct scene_holding *holding, bool is_bye)
{
    struct kvb_heartbeat heartbeat = {
        .worker_id = holding->worker_id,
        .dp_rank = holding->dp_rank,
        .last_id = scene->event_id - 1,
        .state = KVB_STREAM_EXACT,
        .block_size = holding->block_size,
        .lookahead = holding->is_eagle,
        .is_bye = is_bye,
    };

    (void)snprintf(heartbeat.model, sizeof heartbeat.model, "%s", holding->model);
    heartbeat.tiers[holding->tier].blocks = holding->count;
    return heartbeat;
}

static void beat(struct scene *scene, const struct scene_holding *holding, bool is_bye)
{
    const struct kvb_stream_id id = id_of(scene, holding->worker_id, holding->dp_rank);
    const struct kvb_heartbeat heartbeat = heartbeat_of(scene, holding, is_bye);

    assert_ok(kvb_followers_heartbeat(scene->followers, &id, &heartbeat, now_ns));
}

void scene_hold(struct scene *scene, const struct scene_holding *holding)
{
    struct kvb_router_batch batch = { .worker_id = holding->worker_id,
                                      .dp_rank = holding->dp_rank };
    const struct kvb_stream_id id = id_of(scene, holding->worker_id, holding->dp_rank);
    const struct kvb_router_event cleared = { .kind = KVB_ROUTER_CLEARED,
                                              .event_id = next_id(scene) };

    assert_ok(kvb_router_batch_add_event(&batch, &cleared));
    add_blocks(scene, &batch, holding);
    assert_ok(kvb_followers_apply(scene->followers, &id, &batch, now_ns));
    if (holding->model) {
        beat(scene, holding, false);
    }
    kvb_router_batch_done(&batch);
}

void scene_tell(
    struct scene *scene, const struct scene_holding *holding, const struct kvb_worker_facts *facts)
{
    const struct kvb_stream_id id = id_of(scene, holding->worker_id, holding->dp_rank);
    struct kvb_heartbeat heartbeat = heartbeat_of(scene, holding, false);

    heartbeat.facts = *facts;
    assert_ok(kvb_followers_heartbeat(scene->followers, &id, &heartbeat, now_ns));
}

void scene_serve(
    struct scene *scene, const struct scene_holding *holding, bool is_listed,
    const char *const names[])
{
    const struct kvb_stream_id id = id_of(scene, holding->worker_id, holding->dp_rank);
    struct kvb_heartbeat heartbeat = heartbeat_of(scene, holding, false);

    heartbeat.names.is_listed = is_listed;
    for (size_t i = 0; names[i]; i++) {
        const bool is_adapter = names[i][0] == '+';
        assert_ok(kvb_served_names_add(
            &heartbeat.names, is_adapter ? KVB_SERVED_ADAPTER : KVB_SERVED_NAME,
            kvb_span_of(names[i] + is_adapter)));
    }
    assert_ok(kvb_followers_heartbeat(scene->followers, &id, &heartbeat, now_ns));
}

void scene_unverify_tier(
    struct scene *scene, const struct scene_holding *holding, enum kvb_tier tier)
{
    const struct kvb_stream_id id = id_of(scene, holding->worker_id, holding->dp_rank);
    struct kvb_heartbeat heartbeat = heartbeat_of(scene, holding, false);

    heartbeat.tier_reasons[tier] = KVB_REASON_NO_REMOVALS;
    assert_ok(kvb_followers_heartbeat(scene->followers, &id, &heartbeat, now_ns));
}

void scene_chunk(struct scene *scene, const struct scene_holding *holding, uint32_t blocks)
{
    const struct kvb_stream_id id = id_of(scene, holding->worker_id, holding->dp_rank);
    struct kvb_heartbeat heartbeat = heartbeat_of(scene, holding, false);

    heartbeat.chunk_blocks = blocks;
    assert_ok(kvb_followers_heartbeat(scene->followers, &id, &heartbeat, now_ns));
}

void scene_name_by_engine(
    struct scene *scene, const struct scene_holding *holding, const char *address)
{
    const struct kvb_stream_id id = id_of(scene, holding->worker_id, holding->dp_rank);
    struct kvb_heartbeat heartbeat = heartbeat_of(scene, holding, false);

    heartbeat.hashes = KVB_HASHES_ENGINE;
    (void)snprintf(heartbeat.facts.address, sizeof heartbeat.facts.address, "%s", address);
    assert_ok(kvb_followers_heartbeat(scene->followers, &id, &heartbeat, now_ns));
}

void scene_label(
    struct scene *scene, const struct scene_holding *holding, const char *label, bool is_draining)
{
    struct kvb_worker_facts facts = { .is_draining = is_draining };

    if (label) {
        assert_ok(kvb_labels_add_pair(&facts.labels, label, NULL));
        assert_ok(kvb_worker_facts_settle(&facts, NULL));
    }
    scene_tell(scene, holding, &facts);
}

void scene_bye(struct scene *scene, const struct scene_holding *holding)
{
    beat(scene, holding, true);
}

void scene_load(struct scene *scene, uint64_t worker_id, uint32_t dp_rank, uint64_t active_blocks)
{
    const struct kvb_stream_id id = id_of(scene, worker_id, dp_rank);
    const struct kvb_load_report report = {
        .worker_id = worker_id,
        .dp_rank = dp_rank,
        .endpoint_name = "generate",
        .load = { .kv_active_blocks = active_blocks,
                  .kv_total_blocks = 100,
                  .request_total_slots = 8,
                  .num_requests_waiting = 2 },
    };

    assert_ok(kvb_load_tracker_report(scene->tracker, &id, &report, now_ns));
    kvb_requests_load_reported(scene->requests, &id, now_ns);
}

void scene_recorded(struct scene *scene)
{
    /* clang-format off */
    static const struct scene_holding holdings[] = {
        { 1, 0, "m", scene_block_size, KVB_TIER_DEVICE, 4, false },
        { 2, 0, "m", scene_block_size, KVB_TIER_DEVICE, 1, false },
        { 2, 1, "m", scene_block_size, KVB_TIER_DEVICE, 2, false },
    };
    /* clang-format on */

    scene_empty(scene);
    for (size_t i = 0; i < sizeof holdings / sizeof holdings[0]; i++) {
        scene_hold(scene, &holdings[i]);
    }
}

struct kvb_query scene_query(size_t token_count, const char *model)
{
    struct kvb_query query = { .form = KVB_QUERY_TOKENS,
                               .has_model = model != NULL,
                               .count = token_count };

    if (model) {
        (void)snprintf(query.model, sizeof query.model, "%s", model);
    }
    query.tokens = calloc(token_count + 1, sizeof *query.tokens);
    assert_non_null(query.tokens);
    for (size_t i = 0; i < token_count; i++) {
        query.tokens[i] = (uint32_t)(100 + i);
    }
    return query;
}
