#include "fail_alloc.h"
#include "kvb_test.h"

#include "core/limits.h"
#include "core/own.h"
#include "sync_sample.h"

#include <stdlib.h>

static struct kvb_buf fresh(void)
{
    struct kvb_buf buf;

    kvb_buf_init(&buf, kvb_max_nats_payload_bytes);
    return buf;
}

static void requests_come_back_as_they_were(void **state)
{
    (void)state;
    const struct kvb_sync_request requests[] = {
        { .kind = KVB_SYNC_RANGE, .epoch = { { 1, 2, 3 } }, .from_id = 7, .to_id = UINT64_MAX },
        { .kind = KVB_SYNC_SNAPSHOT },
        { .kind = KVB_SYNC_SNAPSHOT, .has_buckets = true, .buckets = { { 1, 0, 0, 1ULL << 63 } } },
        { .kind = KVB_SYNC_DIGEST, .epoch = { { 9 } } },
    };

    for (size_t i = 0; i < sizeof requests / sizeof requests[0]; i++) {
        struct kvb_buf buf = fresh();
        struct kvb_sync_request got;
        assert_ok(kvb_sync_request_encode(&requests[i], &buf));
        assert_ok(kvb_sync_request_decode(kvb_buf_span(&buf), &got));
        assert_true(is_same_request(&got, &requests[i]));
        kvb_buf_done(&buf);
    }
}

/* ---- Replies ---- */

struct sample {
    struct kvb_router_batch events; /* owned */
    struct kvb_hash128 sums[2][kvb_sync_buckets];
    struct kvb_sync_reply reply;
};

static void make_sample(struct sample *sample, enum kvb_sync_answer answer)
{
    *sample = (struct sample){ .events = { .worker_id = 7, .dp_rank = 2, .has_epoch = true } };
    sample->events.epoch.bytes[3] = 5;
    assert_ok(kvb_router_batch_add_event(
        &sample->events, &(struct kvb_router_event){ .tier = KVB_TIER_HOST, .event_id = 40 }));
    assert_ok(kvb_router_batch_add_block(
        &sample->events, (kvb_block_hash){ UINT64_MAX }, (kvb_tokens_hash){ 12 }));
    for (uint64_t i = 0; i < kvb_sync_buckets; i++) {
        sample->sums[0][i] = (struct kvb_hash128){ i, UINT64_MAX - i };
        sample->sums[1][i] = (struct kvb_hash128){ i * i, i };
    }
    sample->reply = (struct kvb_sync_reply){ .answer = answer,
                                             .worker_id = 7,
                                             .dp_rank = 2,
                                             .epoch = sample->events.epoch,
                                             .chunk = 3,
                                             .is_last = true,
                                             .barrier_id = 40,
                                             .last_id = 44,
                                             .retry_ms = 250,
                                             .digest_seed = 99,
                                             .events = &sample->events };
    if (answer == KVB_SYNC_SUMS) {
        sample->reply.sums[KVB_TIER_HOST] = sample->sums[0];
        sample->reply.sums[KVB_TIER_DISK] = sample->sums[1];
    }
}

static void replies_come_back_as_they_were(void **state)
{
    (void)state;
    struct kvb_sync_reply_parts *parts = calloc(1, sizeof *parts);

    assert_non_null(parts);
    for (int answer = 0; answer < KVB_SYNC_ANSWER_COUNT; answer++) {
        struct sample sample;
        struct kvb_sync_reply got;
        struct kvb_buf buf = fresh();
        make_sample(&sample, (enum kvb_sync_answer)answer);
        assert_ok(kvb_sync_reply_encode(&sample.reply, &buf));
        assert_ok(kvb_sync_reply_decode(kvb_buf_span(&buf), parts, &got));
        assert_true(is_same_reply(&got, &sample.reply));
        assert_int_equal(got.events->event_count, 1);
        assert_int_equal(got.events->events[0].tier, KVB_TIER_HOST);
        assert_true(got.events->events[0].event_id == 40);
        assert_true(got.events->blocks[0].value == UINT64_MAX);
        kvb_buf_done(&buf);
        kvb_router_batch_done(&sample.events);
    }
    kvb_sync_reply_parts_done(parts);
    free(parts);
}

/* Also after a reply about another stream, whose batch used the same memory. */
static void a_reply_without_events_has_an_empty_batch_of_its_stream(void **state)
{
    (void)state;
    struct kvb_sync_reply_parts *parts = calloc(1, sizeof *parts);
    const struct kvb_sync_reply gone = {
        .answer = KVB_SYNC_GONE, .worker_id = 9, .dp_rank = 1, .epoch.bytes = { 5 }, .is_last = true
    };
    struct kvb_sync_reply got;
    struct sample sample;
    struct kvb_buf buf = fresh();

    assert_non_null(parts);
    make_sample(&sample, KVB_SYNC_EVENTS);
    assert_ok(kvb_sync_reply_encode(&sample.reply, &buf));
    assert_ok(kvb_sync_reply_decode(kvb_buf_span(&buf), parts, &got));
    buf.len = 0;
    assert_ok(kvb_sync_reply_encode(&gone, &buf));
    assert_ok(kvb_sync_reply_decode(kvb_buf_span(&buf), parts, &got));
    assert_int_equal(got.events->event_count, 0);
    assert_int_equal(got.events->worker_id, 9);
    assert_int_equal(got.events->dp_rank, 1);
    assert_true(got.events->has_epoch);
    assert_memory_equal(&got.events->epoch, &gone.epoch, sizeof gone.epoch);
    kvb_buf_done(&buf);
    kvb_router_batch_done(&sample.events);
    kvb_sync_reply_parts_done(parts);
    free(parts);
}

static void refuses_events_of_another_stream(void **state)
{
    (void)state;
    struct kvb_sync_reply_parts *parts = calloc(1, sizeof *parts);
    struct kvb_sync_reply got;

    assert_non_null(parts);
    for (int field = 0; field < 3; field++) {
        struct sample sample;
        struct kvb_buf buf = fresh();
        make_sample(&sample, KVB_SYNC_EVENTS);
        sample.reply.worker_id += field == 0;
        sample.reply.dp_rank += field == 1;
        sample.reply.epoch.bytes[0] ^= field == 2;
        assert_ok(kvb_sync_reply_encode(&sample.reply, &buf));
        assert_int_equal(kvb_sync_reply_decode(kvb_buf_span(&buf), parts, &got), KVB_BAD_INPUT);
        kvb_buf_done(&buf);
        kvb_router_batch_done(&sample.events);
    }
    kvb_sync_reply_parts_done(parts);
    free(parts);
}

#define BYTES(text) ((kvb_span){ .data = (const uint8_t *)(text), .len = sizeof(text) - 1 })
#define EPOCH                                                                                      \
    "\x12\x10"                                                                                     \
    "0123456789abcdef"

/* The largest possible part of a snapshot. */
static void a_reply_with_the_maximum_of_blocks_fits(void **state)
{
    static const size_t ceilings[] = { kvb_min_nats_payload_bytes, 65536, 1 << 17 };

    (void)state;
    for (size_t i = 0; i < KVB_COUNT_OF(ceilings); i++) {
        struct kvb_router_batch events = { .worker_id = INT64_MAX,
                                           .dp_rank = UINT32_MAX,
                                           .has_epoch = true };
        struct kvb_buf buf = fresh();
        const size_t room = kvb_sync_reply_room(ceilings[i]) + KVB_LIST_COUNT;
        for (size_t at = 0; at < room; at++) {
            const struct kvb_router_event event = {
                .tier = KVB_TIER_DISK, .has_parent = true, .event_id = at, .parent = { UINT64_MAX }
            };
            assert_ok(kvb_router_batch_add_event(&events, &event));
            assert_ok(kvb_router_batch_add_block(
                &events, (kvb_block_hash){ UINT64_MAX }, (kvb_tokens_hash){ UINT64_MAX }));
        }
        const struct kvb_sync_reply reply = { .answer = KVB_SYNC_BLOCKS,
                                              .worker_id = INT64_MAX,
                                              .dp_rank = UINT32_MAX,
                                              .chunk = UINT32_MAX,
                                              .barrier_id = UINT64_MAX,
                                              .last_id = UINT64_MAX,
                                              .digest_seed = UINT64_MAX,
                                              .events = &events };
        assert_ok(kvb_sync_reply_encode(&reply, &buf));
        assert_in_range(buf.len, ceilings[i] / 2, ceilings[i]);
        kvb_buf_done(&buf);
        kvb_router_batch_done(&events);
    }
}

/* The message is largest with all lists and all buckets. */
static void sums_of_all_lists_fit_the_smallest_ceiling(void **state)
{
    static struct kvb_hash128 sums[kvb_sync_buckets];
    struct kvb_sync_reply reply = { .answer = KVB_SYNC_SUMS, .worker_id = INT64_MAX };
    struct kvb_buf buf = fresh();

    (void)state;
    memset(sums, 0xff, sizeof sums);
    for (size_t list = 0; list < KVB_LIST_COUNT; list++) {
        reply.sums[list] = sums;
    }
    assert_ok(kvb_sync_reply_encode(&reply, &buf));
    assert_in_range(buf.len, 1, kvb_min_nats_payload_bytes);
    kvb_buf_done(&buf);
}

SUITE(sync)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_reply_with_the_maximum_of_blocks_fits),
        cmocka_unit_test(sums_of_all_lists_fit_the_smallest_ceiling),
        cmocka_unit_test(requests_come_back_as_they_were),
        cmocka_unit_test(replies_come_back_as_they_were),
        cmocka_unit_test(a_reply_without_events_has_an_empty_batch_of_its_stream),
        cmocka_unit_test(refuses_events_of_another_stream),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
