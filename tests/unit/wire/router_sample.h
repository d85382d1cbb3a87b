#pragma once

#include "kvb_test.h"
#include "model/router_batch.h"

#include <string.h>

/* Random router batches, and their comparison, for the tests of the JSON and the protobuf encoding,
 * which check each other. */

static inline uint64_t sample_next(uint64_t *seed)
{
    *seed ^= *seed << 13;
    *seed ^= *seed >> 7;
    *seed ^= *seed << 17;
    return *seed;
}

/* Small and very large numbers. */
static inline uint64_t sample_number(uint64_t *seed)
{
    const uint64_t value = sample_next(seed);

    return value >> (sample_next(seed) % 64);
}

static inline struct kvb_router_event sample_event(uint64_t *seed, uint64_t event_id)
{
    struct kvb_router_event event = {
        .kind = (enum kvb_router_kind)(sample_next(seed) % 3),
        .event_id = event_id,
    };

    if (event.kind != KVB_ROUTER_CLEARED) {
        event.tier = (enum kvb_tier)(sample_next(seed) % KVB_LIST_COUNT);
    }
    if (event.kind == KVB_ROUTER_STORED && sample_next(seed) % 2 == 0) {
        event.has_parent = true;
        event.parent.value = sample_number(seed);
    }
    return event;
}

static inline void sample_batch(uint64_t *seed, struct kvb_router_batch *batch)
{
    const size_t events = 1 + sample_next(seed) % 6;
    const uint64_t first_id = sample_number(seed) / 2;

    kvb_router_batch_reset(batch);
    batch->worker_id = sample_number(seed) >> 1;
    batch->dp_rank = (uint32_t)sample_number(seed);
    batch->has_epoch = true;
    for (size_t i = 0; i < sizeof batch->epoch.bytes; i++) {
        batch->epoch.bytes[i] = (uint8_t)sample_next(seed);
    }
    for (size_t i = 0; i < events; i++) {
        const struct kvb_router_event event = sample_event(seed, first_id + i);
        assert_ok(kvb_router_batch_add_event(batch, &event));
        const size_t blocks = event.kind == KVB_ROUTER_CLEARED ? 0 : sample_next(seed) % 5;
        for (size_t j = 0; j < blocks; j++) {
            const kvb_block_hash block = { sample_number(seed) };
            const kvb_tokens_hash tokens = { event.kind == KVB_ROUTER_STORED ? sample_number(seed)
                                                                             : 0 };
            assert_ok(kvb_router_batch_add_block(batch, block, tokens));
        }
    }
}

static inline void assert_same_event(
    const struct kvb_router_batch *a, size_t at, const struct kvb_router_batch *b, size_t bt)
{
    const struct kvb_router_event *x = &a->events[at];
    const struct kvb_router_event *y = &b->events[bt];

    assert_int_equal(x->kind, y->kind);
    assert_int_equal(x->tier, y->tier);
    assert_int_equal(x->has_parent, y->has_parent);
    assert_true(x->event_id == y->event_id);
    assert_true(x->parent.value == y->parent.value);
    assert_int_equal(x->block_count, y->block_count);
    for (uint32_t i = 0; i < x->block_count; i++) {
        assert_true(a->blocks[x->block_at + i].value == b->blocks[y->block_at + i].value);
        assert_true(a->tokens[x->block_at + i].value == b->tokens[y->block_at + i].value);
    }
    assert_true(a->worker_id == b->worker_id);
    assert_int_equal(a->dp_rank, b->dp_rank);
}

static inline void
assert_same_batch(const struct kvb_router_batch *a, const struct kvb_router_batch *b)
{
    assert_int_equal(a->event_count, b->event_count);
    assert_int_equal(a->block_count, b->block_count);
    assert_int_equal(a->has_epoch, b->has_epoch);
    assert_memory_equal(a->epoch.bytes, b->epoch.bytes, sizeof a->epoch.bytes);
    for (size_t i = 0; i < a->event_count; i++) {
        assert_same_event(a, i, b, i);
    }
}
