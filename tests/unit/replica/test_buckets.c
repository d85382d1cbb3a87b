#include "kvb_test.h"

#include "follower_scene.h"
#include "model/digest.h"

/* A list differs from its bridge's although no event is missing. The bridge's answers are made by
 * hand. */

static const struct kvb_digest_key key = { .worker_id = 7, .dp_rank = 1, .seed = 42 };

/* The digest of the one block that the bridge holds. */
static struct kvb_digest its_digest(void)
{
    struct kvb_digest digest = { .total = { 0 } };

    kvb_digest_add(&digest, &key, KVB_TIER_DEVICE, (kvb_block_hash){ 6 });
    return digest;
}

static void beat_with_digest(struct scene *scene)
{
    struct kvb_heartbeat beat = beat_of(1, first_id + 1, 1);

    beat.digest_seed = key.seed;
    beat.tiers[KVB_TIER_DEVICE].digest = its_digest().total;
    beat_as(scene, &beat);
}

/* The list is {5}, the bridge's {6}, at the same event. The counts are equal, so only the digest
 * shows it. */
static struct scene begin_differing(void)
{
    struct scene scene = begin_requests();

    make_exact(&scene, 1);
    beat_with_digest(&scene);
    assert_state(&scene, KVB_STREAM_SYNCING, KVB_REASON_DIFFERS);
    return scene;
}

static void send_sums(struct scene *scene, uint64_t seed)
{
    const struct kvb_follower_request ask = asked(scene, KVB_SYNC_DIGEST);
    const struct kvb_digest digest = its_digest();
    struct kvb_sync_reply reply = reply_of(KVB_SYNC_SUMS, first_id + 1);

    reply.digest_seed = seed;
    reply.sums[KVB_TIER_DEVICE] = digest.buckets;
    start_batch(scene, 1);
    answer(scene, &ask, &reply);
}

static bool is_asked_for(const struct kvb_follower_request *ask, uint64_t block)
{
    const size_t bucket = kvb_digest_bucket(&key, KVB_TIER_DEVICE, (kvb_block_hash){ block });

    return ask->request.buckets.words[bucket / 64] >> (bucket % 64) & 1;
}

static void differing_blocks_are_replaced(void **state)
{
    (void)state;
    struct scene scene = begin_differing();

    send_sums(&scene, key.seed);
    assert_int_equal(counters_of(&scene).buckets_differ, 2);
    const struct kvb_follower_request ask = asked(&scene, KVB_SYNC_SNAPSHOT);
    assert_true(ask.request.has_buckets && is_asked_for(&ask, 5) && is_asked_for(&ask, 6));
    assert_false(is_asked_for(&ask, 7));
    start_batch(&scene, 1);
    add(&scene, KVB_ROUTER_STORED, 0, 6, KVB_TIER_DEVICE);
    struct kvb_sync_reply reply = reply_of(KVB_SYNC_BLOCKS, first_id + 1);
    answer(&scene, &ask, &reply);
    assert_blocks(&scene, 1); /* 6, and not 5 */
    assert_int_equal(counters_of(&scene).digests_repaired, 1);
    beat_with_digest(&scene);
    assert_state(&scene, KVB_STREAM_EXACT, KVB_REASON_NONE);
    end(&scene);
}

/* With the seed of another epoch, every bucket has a different sum. */
static void sums_of_another_seed_are_no_answer(void **state)
{
    (void)state;
    struct scene scene = begin_differing();

    send_sums(&scene, key.seed + 1);
    assert_int_equal(counters_of(&scene).buckets_differ, 0);
    assert_int_equal(counters_of(&scene).requests_failed, 1);
    assert_state(&scene, KVB_STREAM_SYNCING, KVB_REASON_DIFFERS);
    end(&scene);
}

/* ---- The digest of a snapshot is computed while it arrives ---- */

SUITE(buckets)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(differing_blocks_are_replaced),
        cmocka_unit_test(sums_of_another_seed_are_no_answer),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
