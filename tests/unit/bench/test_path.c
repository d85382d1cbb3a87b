#include "fail_alloc.h"
#include "kvb_test.h"

#include "core/hash.h"
#include "parts/script.h"
#include "stream/stream.h"
#include "wire/engine/batch.h"
#include "wire/router/json.h"
#include "wire/router/proto.h"

/* What a bridge does to a batch between its sockets (tests/bench/path) allocates nothing, once what
 * grows is grown: else its speed would depend on the allocator. */

enum { laps = 3, max_message = 1 << 20 };

struct path {
    struct script script;
    struct kvb_event_batch batch;
    struct kvb_stream *stream;
    struct kvb_stream_output output;
    struct kvb_buf message;
    uint64_t seq;
};

static void begin(struct path *path)
{
    const struct kvb_stream_options options = {
        .worker_id = 7,
        .block_size = 16,
        .formats = 1U << KVB_FORMAT_PROTOBUF | 1U << KVB_FORMAT_JSON,
        .max_buffered_bytes = 1 << 20,
        .max_log_blocks = 1 << 12,
        .mirror = { .max_blocks = 1 << 16, .tiers = 1U << KVB_TIER_DEVICE },
    };
    const struct script_options script = {
        .dialect = KVB_DIALECT_VLLM_0_22, .blocks_per_batch = 4, .pool_blocks = 1 << 13, .seed = 1
    };
    const struct kvb_stream_input up = { .kind = KVB_INPUT_UP, .now_ns = 1 };

    *path = (struct path){ .seq = 0 };
    assert_int_equal(script_make(&script, &path->script), KVB_OK);
    kvb_buf_init(&path->message, max_message);
    assert_int_equal(kvb_stream_new(&options, &path->stream), KVB_OK);
    assert_int_equal(kvb_stream_step(path->stream, &up, &path->output), KVB_OK);
}

static void end(struct path *path)
{
    script_done(&path->script);
    kvb_event_batch_done(&path->batch);
    kvb_stream_output_done(&path->output);
    kvb_stream_free(path->stream);
    kvb_buf_done(&path->message);
}

static kvb_status encode(struct path *path)
{
    const struct kvb_router_batch *events = &path->output.events;

    kvb_buf_reset(&path->message);
    KVB_TRY(kvb_router_proto_encode(events, 0, events->event_count, &path->message));
    for (size_t i = 0; i < events->event_count; i++) {
        kvb_buf_reset(&path->message);
        KVB_TRY(kvb_router_json_encode(events, i, &path->message));
    }
    return KVB_OK;
}

static kvb_status run_lap(struct path *path, size_t *events)
{
    for (size_t at = 0; at < path->script.count; at++) {
        const kvb_span payload = script_batch(&path->script, at);
        const struct kvb_stream_input input = { .kind = KVB_INPUT_LIVE,
                                                .now_ns = 1,
                                                .wall_us = 1,
                                                .seq = path->seq++,
                                                .fingerprint = kvb_hash128(payload, 0),
                                                .batch = &path->batch };
        KVB_TRY(kvb_engine_batch_decode(payload, &path->batch));
        KVB_TRY(kvb_stream_step(path->stream, &input, &path->output));
        KVB_TRY(encode(path));
        *events += path->output.events.event_count;
    }
    return KVB_OK;
}

static void a_batch_allocates_nothing_once_what_grows_is_grown(void **state)
{
    struct path path;
    size_t events = 0;

    (void)state;
    begin(&path);
    for (int i = 0; i < laps; i++) {
        assert_int_equal(run_lap(&path, &events), KVB_OK);
    }
    events = 0;
    fail_alloc_after(0);
    const kvb_status status = run_lap(&path, &events);
    fail_alloc_after(-1);
    assert_int_equal(status, KVB_OK);
    assert_int_equal(events, path.script.count);
    end(&path);
}

SUITE(path)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_batch_allocates_nothing_once_what_grows_is_grown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
