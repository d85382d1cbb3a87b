#include "follower_scene.h"

#include "kvb_test.h"

static struct scene
make_scene(size_t max_streams, size_t max_nodes, size_t max_slots, bool sends_requests)
{
    struct scene scene = { .now_ns = 100 * S };
    const struct kvb_prefix_index_options index = { .max_nodes = max_nodes,
                                                    .max_slots = max_slots };

    assert_ok(kvb_prefix_index_new(&index, &scene.index));
    const struct kvb_followers_options options = {
        .max_streams = max_streams,
        .heartbeat_ms = 1000,
        .forget_ms = 60000,
        .sends_requests = sends_requests,
        .max_window_blocks = max_nodes,
        .index = scene.index,
    };
    assert_ok(kvb_followers_new(&options, &scene.followers));
    return scene;
}

struct scene scene_of(size_t max_streams, size_t max_nodes, size_t max_slots)
{
    return make_scene(max_streams, max_nodes, max_slots, false);
}

struct scene begin_requests_with(size_t max_nodes)
{
    return make_scene(64, max_nodes, 16, true);
}

struct scene begin_requests(void)
{
    return begin_requests_with(1000);
}

struct scene begin(void)
{
    return scene_of(64, 1000, 16);
}

void end(struct scene *scene)
{
    struct kvb_index_counters counters;

    kvb_followers_free(scene->followers);
    kvb_prefix_index_count(scene->index, &counters);
    assert_int_equal(counters.memberships, 0);
    kvb_prefix_index_free(scene->index);
    kvb_router_batch_done(&scene->batch);
}

const struct kvb_stream_id stream = {
    .name_space = "dynamo", .component = "VllmWorker", .worker_id = 7, .dp_rank = 1
};

static kvb_epoch epoch_of(uint8_t n)
{
    kvb_epoch epoch = { { n } };

    return epoch;
}

/* ---- Events and heartbeats ---- */

void say(struct scene *scene)
{
    assert_ok(kvb_followers_apply(scene->followers, &stream, &scene->batch, scene->now_ns));
}

void start_batch(struct scene *scene, int epoch)
{
    kvb_router_batch_reset(&scene->batch);
    scene->batch.worker_id = stream.worker_id;
    scene->batch.dp_rank = stream.dp_rank;
    scene->batch.has_epoch = epoch > 0;
    scene->is_json = epoch == 0;
    scene->batch.epoch = epoch_of((uint8_t)epoch);
}

void add(
    struct scene *scene, enum kvb_router_kind kind, uint64_t event_id, uint64_t block,
    enum kvb_tier tier)
{
    const struct kvb_router_event event = { .kind = kind, .tier = tier, .event_id = event_id };

    assert_ok(kvb_router_batch_add_event(&scene->batch, &event));
    if (kind != KVB_ROUTER_CLEARED) {
        assert_ok(kvb_router_batch_add_block(
            &scene->batch, (kvb_block_hash){ block }, (kvb_tokens_hash){ block }));
    }
}

void cleared(struct scene *scene, int epoch, uint64_t event_id)
{
    start_batch(scene, epoch);
    add(scene, KVB_ROUTER_CLEARED, event_id, 0, KVB_TIER_DEVICE);
    say(scene);
}

void stored(struct scene *scene, int epoch, uint64_t event_id, uint64_t block)
{
    start_batch(scene, epoch);
    add(scene, KVB_ROUTER_STORED, event_id, block, KVB_TIER_DEVICE);
    say(scene);
}

void removed(struct scene *scene, int epoch, uint64_t event_id, uint64_t block)
{
    start_batch(scene, epoch);
    add(scene, KVB_ROUTER_REMOVED, event_id, block, KVB_TIER_DEVICE);
    say(scene);
}

struct kvb_heartbeat beat_of(int epoch, uint64_t last_id, uint64_t blocks)
{
    struct kvb_heartbeat heartbeat = {
        .worker_id = stream.worker_id,
        .dp_rank = stream.dp_rank,
        .epoch = epoch_of((uint8_t)epoch),
        .epoch_first_id = first_id,
        .last_id = last_id,
        .state = KVB_STREAM_EXACT,
        .model = "m",
        .block_size = 16,
        .doubtful = 2,
    };

    heartbeat.tiers[KVB_TIER_DEVICE].blocks = blocks;
    return heartbeat;
}

void beat_as(struct scene *scene, const struct kvb_heartbeat *heartbeat)
{
    struct kvb_heartbeat named = *heartbeat;

    if (named.formats == 0) {
        named.formats = 1U << (scene->is_json ? KVB_FORMAT_JSON : KVB_FORMAT_PROTOBUF);
    }
    assert_ok(kvb_followers_heartbeat(scene->followers, &stream, &named, scene->now_ns));
}

void beat(struct scene *scene, int epoch, uint64_t last_id, uint64_t blocks)
{
    const struct kvb_heartbeat heartbeat = beat_of(epoch, last_id, blocks);

    beat_as(scene, &heartbeat);
}

void make_exact(struct scene *scene, int epoch)
{
    cleared(scene, epoch, first_id);
    stored(scene, epoch, first_id + 1, 5);
    beat(scene, 1, first_id + 1, 1);
}

/* ---- Queries ---- */

const struct kvb_follower *follower(const struct scene *scene)
{
    for (size_t i = 0; i < kvb_followers_limit(scene->followers); i++) {
        const struct kvb_follower *found = kvb_followers_at(scene->followers, i);
        if (found && found->id.worker_id == stream.worker_id) {
            return found;
        }
    }
    return NULL;
}

void assert_state(
    const struct scene *scene, enum kvb_stream_state state, enum kvb_stream_reason reason)
{
    const struct kvb_follower *found = follower(scene);

    assert_non_null(found);
    assert_string_equal(kvb_stream_state_name(found->state), kvb_stream_state_name(state));
    assert_string_equal(kvb_stream_reason_name(found->reason), kvb_stream_reason_name(reason));
}

size_t count_followed(const struct scene *scene)
{
    size_t count = 0;

    for (size_t i = 0; i < kvb_followers_limit(scene->followers); i++) {
        count += kvb_followers_at(scene->followers, i) != NULL;
    }
    return count;
}

uint64_t blocks_in(const struct scene *scene, enum kvb_tier tier)
{
    return kvb_followers_blocks(scene->followers, follower(scene), tier);
}

void assert_blocks(const struct scene *scene, uint64_t blocks)
{
    assert_int_equal(blocks_in(scene, KVB_TIER_DEVICE), blocks);
}

struct kvb_follower_counters counters_of(const struct scene *scene)
{
    struct kvb_follower_counters counters;

    kvb_followers_counters(scene->followers, &counters);
    return counters;
}

/* ---- Repair ---- */

struct kvb_follower_request asked(struct scene *scene, enum kvb_sync_kind kind)
{
    struct kvb_follower_request ask = { .token = 0 };

    assert_true(kvb_followers_next_request(scene->followers, scene->now_ns, &ask));
    assert_int_equal(ask.request.kind, kind);
    assert_int_equal(ask.id.worker_id, stream.worker_id);
    return ask;
}

struct kvb_sync_reply reply_of(enum kvb_sync_answer answer, uint64_t last_id)
{
    struct kvb_sync_reply reply = { .answer = answer,
                                    .worker_id = stream.worker_id,
                                    .dp_rank = stream.dp_rank,
                                    .is_last = true,
                                    .barrier_id = last_id,
                                    .last_id = last_id };

    reply.epoch.bytes[0] = 1;
    return reply;
}

void answer(
    struct scene *scene, const struct kvb_follower_request *ask, struct kvb_sync_reply *reply)
{
    reply->events = &scene->batch;
    kvb_followers_reply(scene->followers, ask->token, reply, scene->now_ns);
}
