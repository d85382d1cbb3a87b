#include "kvb_test.h"

#include "follower_scene.h"
#include "stream/digest.h"

/* A list that is another than its bridge's, though no event is missing, and the bridge's
 * answers, made by hand. */

static const struct kvb_digest_key key = { .worker_id = 7, .dp_rank = 1, .seed = 42 };

/* What the bridge holds on the device. */
static struct kvb_digest digest_of(const uint64_t *blocks, size_t count)
{
    struct kvb_digest digest = { .total = { 0 } };

    for (size_t i = 0; i < count; i++) {
        kvb_digest_add(&digest, &key, KVB_TIER_DEVICE, (kvb_block_hash){ blocks[i] });
    }
    return digest;
}

static void beat_with(struct scene *scene, uint64_t last_id, const uint64_t *blocks, size_t count)
{
    struct kvb_heartbeat beat = beat_of(1, last_id, count);

    beat.digest_seed = key.seed;
    beat.tiers[KVB_TIER_DEVICE].digest = digest_of(blocks, count).total;
    beat_as(scene, &beat);
}

static struct kvb_follower_ask asked(struct scene *scene, enum kvb_sync_kind kind)
{
    struct kvb_follower_ask ask = { .token = 0 };

    assert_true(kvb_followers_next_ask(scene->followers, scene->now_ns, &ask));
    assert_int_equal(ask.request.kind, kind);
    return ask;
}

static struct kvb_sync_reply reply_of(enum kvb_sync_answer answer, uint64_t last_id)
{
    return (struct kvb_sync_reply){ .answer = answer,
                                    .worker_id = stream.worker_id,
                                    .dp_rank = stream.dp_rank,
                                    .epoch = { { 1 } },
                                    .is_last = true,
                                    .barrier_id = last_id,
                                    .last_id = last_id,
                                    .digest_seed = key.seed };
}

/* The list is {5}, the bridge's {6}, at the same event: as many, so only the digest knows. */
static struct scene begin_differing(void)
{
    struct scene scene = begin_asking();

    make_exact(&scene, 1);
    beat_with(&scene, first_id + 1, (uint64_t[]){ 6 }, 1);
    assert_state(&scene, KVB_STREAM_SYNCING, KVB_REASON_DIFFERS);
    return scene;
}

static void tell_sums(struct scene *scene, uint64_t seed)
{
    const struct kvb_follower_ask ask = asked(scene, KVB_SYNC_DIGEST);
    const struct kvb_digest digest = digest_of((uint64_t[]){ 6 }, 1);
    struct kvb_sync_reply reply = reply_of(KVB_SYNC_SUMS, first_id + 1);

    reply.digest_seed = seed;
    reply.sums[KVB_TIER_DEVICE] = digest.buckets;
    kvb_followers_reply(scene->followers, ask.token, &reply, scene->now_ns);
}

static bool is_asked_for(const struct kvb_follower_ask *ask, uint64_t block)
{
    const size_t bucket = kvb_digest_bucket(&key, KVB_TIER_DEVICE, (kvb_block_hash){ block });

    return ask->request.buckets.words[bucket / 64] >> (bucket % 64) & 1;
}

static void what_differs_takes_the_place_of_what_is_listed(void **state)
{
    (void)state;
    struct scene scene = begin_differing();

    tell_sums(&scene, key.seed);
    assert_int_equal(counters_of(&scene).buckets_differ, 2);
    const struct kvb_follower_ask ask = asked(&scene, KVB_SYNC_SNAPSHOT);
    assert_true(ask.request.has_buckets && is_asked_for(&ask, 5) && is_asked_for(&ask, 6));
    assert_false(is_asked_for(&ask, 7));
    start_batch(&scene, 1);
    add(&scene, KVB_ROUTER_STORED, 0, 6, KVB_TIER_DEVICE);
    struct kvb_sync_reply reply = reply_of(KVB_SYNC_BLOCKS, first_id + 1);
    reply.events = &scene.batch;
    kvb_followers_reply(scene.followers, ask.token, &reply, scene.now_ns);
    assert_blocks(&scene, 1); /* 6 without 5 */
    assert_int_equal(counters_of(&scene).digests_repaired, 1);
    beat_with(&scene, first_id + 1, (uint64_t[]){ 6 }, 1);
    assert_state(&scene, KVB_STREAM_EXACT, KVB_REASON_NONE);
    end(&scene);
}

/* Sums of another epoch's seed differ in every bucket. */
static void sums_of_another_seed_are_no_answer(void **state)
{
    (void)state;
    struct scene scene = begin_differing();

    tell_sums(&scene, key.seed + 1);
    assert_int_equal(counters_of(&scene).buckets_differ, 0);
    assert_int_equal(counters_of(&scene).asks_failed, 1);
    assert_state(&scene, KVB_STREAM_SYNCING, KVB_REASON_DIFFERS);
    end(&scene);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_differs_takes_the_place_of_what_is_listed),
        cmocka_unit_test(sums_of_another_seed_are_no_answer),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
