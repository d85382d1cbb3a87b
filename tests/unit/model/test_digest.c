#include "kvb_test.h"

#include "model/digest.h"

#include <stdbool.h>
#include <string.h>

static const struct kvb_digest_key key = { .worker_id = 7, .dp_rank = 1, .seed = 42 };

static kvb_block_hash block(uint64_t value)
{
    return (kvb_block_hash){ value * UINT64_C(0x9e3779b97f4a7c15) };
}

static void adding_and_removing_cancel_in_any_order(void **state)
{
    (void)state;
    struct kvb_digest digest = { 0 };
    const struct kvb_digest empty = { 0 };

    for (uint64_t i = 0; i < 1000; i++) {
        kvb_digest_add(&digest, &key, KVB_TIER_DEVICE, block(i));
    }
    assert_memory_not_equal(&digest, &empty, sizeof empty);
    for (uint64_t i = 1000; i-- > 0;) {
        kvb_digest_subtract(&digest, &key, KVB_TIER_DEVICE, block(i * 7 % 1000));
    }
    assert_memory_equal(&digest, &empty, sizeof empty);
}

static struct kvb_hash128 total_of(struct kvb_digest_key of, enum kvb_tier tier, int times)
{
    struct kvb_digest digest = { 0 };

    for (int i = 0; i < times; i++) {
        kvb_digest_add(&digest, &of, tier, block(5));
    }
    return digest.total;
}

static void worker_rank_tier_seed_and_count_all_change_the_digest(void **state)
{
    (void)state;
    const struct kvb_hash128 totals[] = {
        total_of(key, KVB_TIER_DEVICE, 1),
        total_of(key, KVB_TIER_DEVICE, 2),
        total_of(key, KVB_TIER_HOST, 1),
        total_of((struct kvb_digest_key){ 8, 1, 42 }, KVB_TIER_DEVICE, 1),
        total_of((struct kvb_digest_key){ 7, 2, 42 }, KVB_TIER_DEVICE, 1),
        total_of((struct kvb_digest_key){ 7, 1, 43 }, KVB_TIER_DEVICE, 1),
    };

    for (size_t i = 0; i < sizeof totals / sizeof totals[0]; i++) {
        for (size_t j = 0; j < i; j++) {
            assert_memory_not_equal(&totals[i], &totals[j], sizeof totals[i]);
        }
    }
}

SUITE(digest)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(adding_and_removing_cancel_in_any_order),
        cmocka_unit_test(worker_rank_tier_seed_and_count_all_change_the_digest),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
