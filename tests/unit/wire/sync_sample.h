#pragma once

#include "model/router_batch.h"
#include "wire/router/sync.h"

#include <stdbool.h>
#include <string.h>

/* Equality of messages, for the unit test and the fuzz target of wire/router/sync.c. */

static inline bool
is_same_request(const struct kvb_sync_request *one, const struct kvb_sync_request *other)
{
    return one->kind == other->kind && one->from_id == other->from_id &&
           one->to_id == other->to_id && one->has_buckets == other->has_buckets &&
           memcmp(&one->epoch, &other->epoch, sizeof one->epoch) == 0 &&
           (!one->has_buckets || memcmp(&one->buckets, &other->buckets, sizeof one->buckets) == 0);
}

static inline bool is_same_sums(const struct kvb_hash128 *one, const struct kvb_hash128 *other)
{
    return !one || !other ? one == other : memcmp(one, other, kvb_sync_buckets * sizeof *one) == 0;
}

/* Compares everything but the events. */
static inline bool
is_same_reply(const struct kvb_sync_reply *one, const struct kvb_sync_reply *other)
{
    bool is_same = one->answer == other->answer && one->worker_id == other->worker_id &&
                   one->dp_rank == other->dp_rank && one->chunk == other->chunk &&
                   one->is_last == other->is_last && one->barrier_id == other->barrier_id &&
                   one->last_id == other->last_id && one->retry_ms == other->retry_ms &&
                   one->digest_seed == other->digest_seed &&
                   memcmp(&one->epoch, &other->epoch, sizeof one->epoch) == 0;

    for (size_t tier = 0; tier < KVB_LIST_COUNT; tier++) {
        is_same = is_same && is_same_sums(one->sums[tier], other->sums[tier]);
    }
    return is_same;
}
