#include "kvb_test.h"

#include "core/clock.h"
#include "model/digest.h"
#include "replica/follower.h"

#include <stdlib.h>
#include <string.h>

/* A bridge with one hybrid stream (a device tier and a window list of 48 blocks each) and a
 * follower, and between them a link that loses and damages messages. The bridge's lists are
 * recorded at every event; a follower that says EXACT must have the same. */

enum {
    blocks = 48, /* blocks 1 to 48 */
    seeds = 60,
    lossy_rounds = 300,
    cooldown_rounds = 300,
    max_events = 8192,
    max_queued = 256,
    first_id = 1000
};

static const uint64_t round_ns = 100 * KVB_NS_PER_MS;
static const uint64_t damage_found_ns = 4 * KVB_NS_PER_S;
static const struct kvb_stream_id stream_id = {
    .name_space = "n", .component = "c", .worker_id = 7, .dp_rank = 1
};
static const struct kvb_digest_key key = { .worker_id = 7, .dp_rank = 1, .seed = 42 };
static const enum kvb_tier lists[] = { KVB_TIER_DEVICE, KVB_LIST_WINDOW };

/* One bit for each block of each list. */
struct truth {
    uint64_t held[2];
};

enum what { an_event, a_beat, a_reply };

struct queued {
    enum what what;
    struct kvb_router_batch events; /* owned */
    struct kvb_heartbeat beat;
    uint64_t token;
    struct kvb_sync_reply reply;
    struct kvb_digest digests[2];
};

struct world {
    unsigned seed;
    uint64_t now_ns;
    struct truth now;
    struct truth at[max_events]; /* the lists after event first_id + i */
    struct kvb_router_event events[max_events];
    uint64_t changed[max_events]; /* the block of event first_id + i */
    size_t event_count;
    struct queued *queue; /* owned */
    size_t queue_at, queue_count;
    uint64_t log_events; /* number of events that the bridge keeps for ranges */
    bool is_lossy;
    uint64_t damaged_ns;
    uint64_t exact_rounds;
    struct kvb_prefix_index *index;
    struct kvb_followers *followers;
};

static uint32_t draw(struct world *world, uint32_t below)
{
    return (uint32_t)rand_r(&world->seed) % below;
}

static bool happens(struct world *world, uint32_t in_1000)
{
    return draw(world, 1000) < in_1000;
}

static uint64_t last_id(const struct world *world)
{
    return first_id + world->event_count - 1;
}

/* ---- The link ---- */

/* A place at the end of the queue, or NULL when the message is lost. */
static struct queued *send(struct world *world, enum what what)
{
    if (world->is_lossy && happens(world, 20)) {
        return NULL;
    }
    assert_true(world->queue_count < max_queued);
    struct queued *queued = &world->queue[(world->queue_at + world->queue_count++) % max_queued];
    queued->what = what;
    kvb_router_batch_reset(&queued->events);
    queued->events.worker_id = stream_id.worker_id;
    queued->events.dp_rank = stream_id.dp_rank;
    queued->events.has_epoch = true;
    queued->events.epoch.bytes[0] = 1;
    return queued;
}

static void
add_event(struct kvb_router_batch *batch, const struct kvb_router_event *event, uint64_t block)
{
    assert_ok(kvb_router_batch_add_event(batch, event));
    if (event->kind != KVB_ROUTER_CLEARED) {
        assert_ok(kvb_router_batch_add_block(
            batch, (kvb_block_hash){ block }, (kvb_tokens_hash){ block }));
    }
}

static void publish(struct world *world)
{
    const size_t at = world->event_count - 1;
    struct queued *queued = send(world, an_event);
    uint64_t block = world->changed[at];

    if (!queued) {
        return;
    }
    if (world->is_lossy && happens(world, 5)) {
        block = 1 + draw(world, blocks);
        world->damaged_ns = world->now_ns;
    }
    add_event(&queued->events, &world->events[at], block);
}

/* ---- The bridge ---- */

static void note_event(struct world *world, struct kvb_router_event event, uint64_t block)
{
    assert_true(world->event_count < max_events);
    event.event_id = first_id + world->event_count;
    world->events[world->event_count] = event;
    world->changed[world->event_count] = block;
    world->at[world->event_count++] = world->now;
    publish(world);
}

static void clear(struct world *world)
{
    world->now = (struct truth){ { 0, 0 } };
    note_event(world, (struct kvb_router_event){ .kind = KVB_ROUTER_CLEARED }, 0);
}

static void change(struct world *world)
{
    const size_t list = draw(world, 2);
    const uint64_t block = 1 + draw(world, blocks);
    const bool was_held = world->now.held[list] >> block & 1;
    const struct kvb_router_event event = { .kind =
                                                was_held ? KVB_ROUTER_REMOVED : KVB_ROUTER_STORED,
                                            .tier = lists[list] };

    world->now.held[list] ^= UINT64_C(1) << block;
    note_event(world, event, block);
}

static struct kvb_digest digest_of(const struct world *world, size_t list)
{
    struct kvb_digest digest = { .total = { 0 } };

    for (uint64_t block = 1; block <= blocks; block++) {
        if (world->now.held[list] >> block & 1) {
            kvb_digest_add(&digest, &key, lists[list], (kvb_block_hash){ block });
        }
    }
    return digest;
}

static void beat(struct world *world)
{
    struct queued *queued = send(world, a_beat);

    if (!queued) {
        return;
    }
    queued->beat = (struct kvb_heartbeat){
        .worker_id = stream_id.worker_id,
        .dp_rank = stream_id.dp_rank,
        .epoch_first_id = first_id,
        .last_id = last_id(world),
        .state = KVB_STREAM_EXACT,
        .formats = 1U << KVB_FORMAT_PROTOBUF,
        .model = "m",
        .block_size = 16,
        .window_tokens = 64,
        .digest_seed = key.seed,
    };
    queued->beat.epoch.bytes[0] = 1;
    for (size_t list = 0; list < 2; list++) {
        queued->beat.tiers[lists[list]] = (struct kvb_tier_count){
            .blocks = (uint64_t)__builtin_popcountll(world->now.held[list]),
            .digest = digest_of(world, list).total,
        };
    }
}

/* ---- Answers ---- */

static struct queued *begin_reply(
    struct world *world, const struct kvb_follower_request *ask, enum kvb_sync_answer answer)
{
    struct queued *queued = send(world, a_reply);

    if (queued) {
        queued->token = ask->token;
        queued->reply = (struct kvb_sync_reply){ .answer = answer,
                                                 .worker_id = stream_id.worker_id,
                                                 .dp_rank = stream_id.dp_rank,
                                                 .is_last = true,
                                                 .barrier_id = last_id(world),
                                                 .last_id = last_id(world),
                                                 .digest_seed = key.seed };
        queued->reply.epoch.bytes[0] = 1;
    }
    return queued;
}

static void answer_range(struct world *world, const struct kvb_follower_request *ask)
{
    const uint64_t from = ask->request.from_id;
    const bool is_there = from >= first_id && from + world->log_events > last_id(world);
    struct queued *queued = begin_reply(world, ask, is_there ? KVB_SYNC_EVENTS : KVB_SYNC_GONE);

    for (uint64_t id = from; queued && is_there && id <= ask->request.to_id && id <= last_id(world);
         id++) {
        add_event(&queued->events, &world->events[id - first_id], world->changed[id - first_id]);
    }
}

static bool is_wanted(const struct kvb_follower_request *ask, enum kvb_tier list, uint64_t block)
{
    const size_t bucket = kvb_digest_bucket(&key, list, (kvb_block_hash){ block });

    return !ask->request.has_buckets ||
           (ask->request.buckets.words[bucket / 64] >> (bucket % 64) & 1);
}

/* One chunk for each list. */
static void answer_blocks(struct world *world, const struct kvb_follower_request *ask)
{
    for (uint32_t list = 0; list < 2; list++) {
        struct queued *queued = begin_reply(world, ask, KVB_SYNC_BLOCKS);
        if (!queued) {
            continue;
        }
        queued->reply.chunk = list;
        queued->reply.is_last = list == 1;
        for (uint64_t block = 1; block <= blocks; block++) {
            const struct kvb_router_event event = { .kind = KVB_ROUTER_STORED,
                                                    .tier = lists[list] };
            if ((world->now.held[list] >> block & 1) && is_wanted(ask, lists[list], block)) {
                add_event(&queued->events, &event, block);
            }
        }
    }
}

static void answer_sums(struct world *world, const struct kvb_follower_request *ask)
{
    struct queued *queued = begin_reply(world, ask, KVB_SYNC_SUMS);

    for (size_t list = 0; queued && list < 2; list++) {
        queued->digests[list] = digest_of(world, list);
    }
}

static void answer_asks(struct world *world)
{
    struct kvb_follower_request ask;

    while (kvb_followers_next_request(world->followers, world->now_ns, &ask)) {
        switch (ask.request.kind) {
        case KVB_SYNC_RANGE:
            answer_range(world, &ask);
            break;
        case KVB_SYNC_SNAPSHOT:
            answer_blocks(world, &ask);
            break;
        default:
            answer_sums(world, &ask);
        }
    }
}

/* ---- The follower ---- */

static void note_listed(void *context, kvb_block_hash block)
{
    *(uint64_t *)context |= UINT64_C(1) << (block.value % 64);
}

static void check(struct world *world)
{
    const struct kvb_follower *follower = kvb_followers_at(world->followers, 0);

    if (!follower || follower->state != KVB_STREAM_EXACT) {
        return;
    }
    world->exact_rounds++;
    for (size_t list = 0; list < 2; list++) {
        uint64_t listed = 0;
        kvb_followers_each_block(world->followers, follower, lists[list], note_listed, &listed);
        if (listed != world->at[follower->last_id - first_id].held[list] &&
            world->now_ns > world->damaged_ns + damage_found_ns) {
            fail_msg(
                "EXACT at %lu, but the %s list is another", follower->last_id,
                kvb_tier_name(lists[list]));
        }
    }
}

static void deliver(struct world *world)
{
    struct queued *queued = &world->queue[world->queue_at];

    world->queue_at = (world->queue_at + 1) % max_queued;
    world->queue_count--;
    switch (queued->what) {
    case an_event:
        assert_ok(
            kvb_followers_apply(world->followers, &stream_id, &queued->events, world->now_ns));
        break;
    case a_beat:
        assert_ok(
            kvb_followers_heartbeat(world->followers, &stream_id, &queued->beat, world->now_ns));
        break;
    case a_reply:
        queued->reply.events = queued->events.event_count > 0 ? &queued->events : NULL;
        for (size_t list = 0; queued->reply.answer == KVB_SYNC_SUMS && list < 2; list++) {
            queued->reply.sums[lists[list]] = queued->digests[list].buckets;
        }
        kvb_followers_reply(world->followers, queued->token, &queued->reply, world->now_ns);
    }
    check(world);
}

static void run_round(struct world *world, int round)
{
    world->now_ns += round_ns;
    for (uint32_t changes = draw(world, 5); changes > 0; changes--) {
        change(world);
    }
    if (world->is_lossy && happens(world, 5)) {
        clear(world);
    }
    if (round % 10 == 0) {
        beat(world);
    }
    answer_asks(world);
    for (size_t n = world->queue_count; n > 0; n--) {
        /* otherwise the rest waits for the next round */
        if (!world->is_lossy || happens(world, 900)) {
            deliver(world);
        }
    }
    kvb_followers_tick(world->followers, world->now_ns);
    check(world);
}

static struct world *begin(unsigned seed)
{
    const struct kvb_prefix_index_options index = { .max_nodes = 10000, .max_slots = 16 };
    struct world *world = calloc(1, sizeof *world);

    assert_non_null(world);
    world->seed = seed;
    world->log_events = seed % 3 ? 40 : 4; /* short logs forget events, which causes snapshots */
    world->now_ns = 1000 * KVB_NS_PER_S;
    world->queue = calloc(max_queued, sizeof *world->queue);
    assert_non_null(world->queue);
    assert_ok(kvb_prefix_index_new(&index, &world->index));
    const struct kvb_followers_options followers = { .max_streams = 4,
                                                     .heartbeat_ms = 1000,
                                                     .forget_ms = 600000,
                                                     .sends_requests = true,
                                                     .max_window_blocks = 1000,
                                                     .hash_key = seed,
                                                     .index = world->index };
    assert_ok(kvb_followers_new(&followers, &world->followers));
    return world;
}

static void end(struct world *world)
{
    kvb_followers_free(world->followers);
    kvb_prefix_index_free(world->index);
    for (size_t i = 0; i < max_queued; i++) {
        kvb_router_batch_done(&world->queue[i].events);
    }
    free(world->queue);
    free(world);
}

static bool is_exact(const struct world *world)
{
    const struct kvb_follower *follower = kvb_followers_at(world->followers, 0);

    return follower && follower->state == KVB_STREAM_EXACT;
}

static void run_seed(unsigned seed, uint64_t *exact_rounds, struct kvb_follower_counters *done)
{
    struct world *world = begin(seed);
    struct kvb_follower_counters counters;

    clear(world);
    world->is_lossy = true;
    for (int round = 0; round < lossy_rounds; round++) {
        run_round(world, round);
    }
    world->is_lossy = false;
    for (int round = 0; round < cooldown_rounds && (round < 100 || !is_exact(world)); round++) {
        run_round(world, round);
    }
    assert_true(is_exact(world));
    kvb_followers_counters(world->followers, &counters);
    done->ranges_filled += counters.ranges_filled;
    done->snapshots_taken += counters.snapshots_taken;
    done->digests_repaired += counters.digests_repaired;
    *exact_rounds += world->exact_rounds;
    end(world);
}

static void an_exact_window_list_is_correct_through_losses_and_recovers(void **state)
{
    (void)state;
    struct kvb_follower_counters done = { 0 };
    uint64_t exact_rounds = 0;

    for (unsigned seed = 1; seed <= seeds; seed++) {
        run_seed(seed, &exact_rounds, &done);
    }
    print_message(
        "%lu ranges filled, %lu snapshots taken, %lu digests repaired, EXACT at %lu checks\n",
        done.ranges_filled, done.snapshots_taken, done.digests_repaired, exact_rounds);
    assert_true(done.ranges_filled > seeds);
    assert_true(done.snapshots_taken > seeds / 4);
    assert_true(done.digests_repaired > seeds / 8);
    assert_true(exact_rounds / seeds > lossy_rounds / 4);
}

SUITE(window_random)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_exact_window_list_is_correct_through_losses_and_recovers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
