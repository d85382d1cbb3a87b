#include "kvaggregator/list_scene.h"

#include "kvb_test.h"

#include "core/clock.h"
#include "index/block_hash.h"

#include <string.h>

static struct kvb_stream_id id_of(const struct lists *lists)
{
    return (struct kvb_stream_id){ .name_space = "dynamo",
                                   .component = "VllmWorker",
                                   .worker_id = lists->worker_id };
}

kvb_block_hash engine_name(uint32_t i)
{
    return (kvb_block_hash){ 7000 + i };
}

static kvb_tokens_hash tokens_hash(struct kvb_block_shape shape, uint32_t i)
{
    uint32_t tokens[512];
    const uint32_t width = shape.block_size + shape.lookahead;

    assert_true(width <= 512);
    for (uint32_t n = 0; n < width; n++) {
        tokens[n] = 100 + (i * shape.block_size) + n;
    }
    return kvb_tokens_hash_of(tokens, width, NULL, 0, 1337);
}

/* One event for each block that the list holds. */
static void add_list(
    struct scene *scene, struct kvb_router_batch *batch, const struct lists *lists,
    enum kvb_tier tier, struct kvb_block_shape shape, const char *held)
{
    kvb_block_hash parent = { 0 };

    for (uint32_t i = 0; held && held[i]; i++) {
        const kvb_tokens_hash tokens = tokens_hash(shape, i);
        const kvb_block_hash canonical =
            i == 0 ? kvb_block_hash_root(tokens) : kvb_block_hash_next(parent, tokens);
        const bool is_engine = lists->hashes == KVB_HASHES_ENGINE;
        struct kvb_router_event event = { .kind = KVB_ROUTER_STORED,
                                          .tier = tier,
                                          .event_id = scene->event_id,
                                          .has_parent = i > 0,
                                          .parent =
                                              is_engine && i > 0 ? engine_name(i - 1) : parent };
        parent = canonical;
        if (held[i] == '1') {
            scene->event_id++;
            assert_ok(kvb_router_batch_add_event(batch, &event));
            assert_ok(
                kvb_router_batch_add_block(batch, is_engine ? engine_name(i) : canonical, tokens));
        }
    }
}

static size_t held_blocks(const char *held)
{
    size_t count = 0;

    for (; held && *held; held++) {
        count += *held == '1';
    }
    return count;
}

static void beat(struct scene *scene, const struct lists *lists)
{
    const struct kvb_stream_id id = id_of(lists);
    struct kvb_heartbeat heartbeat = {
        .worker_id = lists->worker_id,
        .last_id = scene->event_id - 1,
        .state = KVB_STREAM_EXACT,
        .model = "m",
        .hashes = lists->hashes,
        .block_size = lists->shape.block_size,
        .lookahead = lists->shape.lookahead,
        .window_tokens = lists->window_tokens,
        .is_paired = lists->is_paired,
        .speculative_drop = lists->speculative_drop,
        .windows = { { .tokens = lists->window_tokens, .size = 1 } },
        .window_count = lists->is_without_full,
        .is_without_full = lists->is_without_full,
        .is_store = lists->is_store,
        .shapes = { { KVB_TIER_DEVICE, lists->shape }, { KVB_TIER_HOST, lists->host_shape } },
        .shape_count = lists->host ? 2 : 1,
    };

    heartbeat.tiers[KVB_TIER_DEVICE].blocks = held_blocks(lists->device);
    heartbeat.tiers[KVB_TIER_HOST].blocks = held_blocks(lists->host);
    heartbeat.tiers[KVB_LIST_WINDOW].blocks = held_blocks(lists->window);
    assert_ok(
        kvb_followers_heartbeat(scene->followers, &id, &heartbeat, scene_now_s * KVB_NS_PER_S));
}

void hold_lists(struct scene *scene, const struct lists *lists)
{
    struct kvb_router_batch batch = { .worker_id = lists->worker_id };
    const struct kvb_stream_id id = id_of(lists);
    const struct kvb_router_event cleared = { .kind = KVB_ROUTER_CLEARED,
                                              .event_id = scene->event_id++ };

    assert_ok(kvb_router_batch_add_event(&batch, &cleared));
    add_list(scene, &batch, lists, KVB_TIER_DEVICE, lists->shape, lists->device);
    add_list(scene, &batch, lists, KVB_LIST_WINDOW, lists->shape, lists->window);
    add_list(scene, &batch, lists, KVB_TIER_HOST, lists->host_shape, lists->host);
    assert_ok(kvb_followers_apply(scene->followers, &id, &batch, scene_now_s * KVB_NS_PER_S));
    beat(scene, lists);
    kvb_router_batch_done(&batch);
}

static const struct kvb_overlap *
find(const struct kvb_overlap *overlaps, size_t count, uint64_t worker_id)
{
    for (size_t i = 0; i < count; i++) {
        if (overlaps[i].follower->id.worker_id == worker_id) {
            return &overlaps[i];
        }
    }
    return NULL;
}

const struct kvb_overlap *overlap_of(const struct scene *scene, uint64_t worker_id)
{
    return find(scene->ctx.overlaps, scene->ctx.overlap_count, worker_id);
}

const struct kvb_overlap *shared_of(const struct scene *scene, uint64_t worker_id)
{
    return find(scene->ctx.overlaps + scene->ctx.shared_at, scene->ctx.shared_count, worker_id);
}

void query_tokens(struct scene *scene, size_t token_count)
{
    struct kvb_query query = scene_query(token_count, "m");
    struct kvb_detail detail = { { 0 } };

    assert_ok(kvb_query_context_overlaps(
        &scene->ctx, &query, (struct kvb_listing_options){ .with_none = true }, &detail));
    kvb_query_done(&query);
}
