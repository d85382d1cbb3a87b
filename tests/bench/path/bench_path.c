/* What a bridge does to one batch between its two sockets, in one thread:
 *
 *     payload --decode--> events --step: mirror, digest, log--> router events --encode--> payload
 *
 *     path.decode.*         bytes to events
 *     path.whole.*          all of it
 *
 * Each time is the best of as many rounds as fit, because other load only makes a round longer. */
#include "parts/bench.h"
#include "parts/script.h"

#include "core/clock.h"
#include "core/own.h"
#include "stream/stream.h"
#include "wire/engine/batch.h"
#include "wire/router/json.h"
#include "wire/router/proto.h"

enum { batches = 1 << 14, message_bytes_max = 1 << 20 };

static void must(kvb_status status)
{
    bench_must(status, "the path");
}

/* ---- The path ---- */

struct path {
    struct script script; /* sent again and again */
    struct kvb_event_batch batch;
    struct kvb_stream *stream; /* owned */
    struct kvb_stream_output output;
    struct kvb_buf message;
    uint64_t seq;
};

static void step(struct path *path, struct kvb_stream_input *input)
{
    input->now_ns = 1;
    input->wall_us = 1;
    must(kvb_stream_step(path->stream, input, &path->output));
}

/* A connected stream with a complete history. */
static void begin_stream(struct path *path)
{
    const struct kvb_stream_options options = {
        .worker_id = 7,
        .block_size = 16,
        .has_replay = true,
        .formats = 1U << KVB_FORMAT_PROTOBUF,
        .max_buffered_bytes = 1 << 20,
        .max_log_blocks = 1 << 14,
        .mirror = { .max_blocks = 1 << 20, .tiers = 1U << KVB_TIER_DEVICE },
    };
    uint64_t from = 0;

    must(kvb_stream_new(&options, &path->stream));
    step(path, &(struct kvb_stream_input){ .kind = KVB_INPUT_UP });
    if (kvb_stream_wants_replay(path->stream, 1, &from)) {
        kvb_stream_replay_started(path->stream, 1);
    }
    step(path, &(struct kvb_stream_input){ .kind = KVB_INPUT_REPLAY_END });
}

static void begin(struct path *path, size_t batch_blocks)
{
    *path = (struct path){ .seq = 0 };
    must(script_make(
        &(struct script_options){ .dialect = KVB_DIALECT_SGLANG_MID,
                                  .blocks_per_batch = batch_blocks,
                                  .pool_blocks = (batches - 1) * batch_blocks,
                                  .seed = 1,
                                  .is_skewed = true },
        &path->script));
    kvb_buf_init(&path->message, message_bytes_max);
    begin_stream(path);
}

static void end(struct path *path)
{
    script_done(&path->script);
    kvb_event_batch_done(&path->batch);
    kvb_stream_output_done(&path->output);
    kvb_stream_free(path->stream);
    kvb_buf_done(&path->message);
}

static void decode(struct path *path, size_t at)
{
    must(kvb_engine_batch_decode(script_batch(&path->script, at), &path->batch));
}

static void step_batch(struct path *path, size_t at)
{
    const kvb_span payload = script_batch(&path->script, at);

    kvb_stream_expect(path->stream, &path->batch);
    step(
        path, &(struct kvb_stream_input){ .kind = KVB_INPUT_LIVE,
                                          .seq = path->seq++,
                                          .fingerprint = kvb_hash128(payload, 0),
                                          .batch = &path->batch });
}

static void encode_protobuf(struct path *path)
{
    kvb_buf_reset(&path->message);
    must(kvb_router_proto_encode(
        &path->output.events, 0, path->output.events.event_count, &path->message));
}

static void encode_json(struct path *path)
{
    for (size_t i = 0; i < path->output.events.event_count; i++) {
        kvb_buf_reset(&path->message);
        must(kvb_router_json_encode(&path->output.events, i, &path->message));
    }
}

/* ---- Rounds: each processes the whole feed once; returns what is timed, in ns ---- */

static uint64_t round_of_decoding(struct path *path)
{
    const uint64_t began_ns = kvb_clock_monotonic_ns();

    for (size_t i = 0; i < batches; i++) {
        decode(path, i);
    }
    return kvb_clock_monotonic_ns() - began_ns;
}

static uint64_t round_of_all(struct path *path, void (*encode)(struct path *))
{
    const uint64_t began_ns = kvb_clock_monotonic_ns();

    for (size_t i = 0; i < batches; i++) {
        decode(path, i);
        step_batch(path, i);
        encode(path);
    }
    return kvb_clock_monotonic_ns() - began_ns;
}

static uint64_t round_with_protobuf(struct path *path)
{
    return round_of_all(path, encode_protobuf);
}

static uint64_t round_with_json(struct path *path)
{
    return round_of_all(path, encode_json);
}

/* ---- Rows ---- */

struct row {
    const char *name;
    size_t batch_blocks;
    uint64_t (*round)(struct path *path);
};

static const struct row timed[] = {
    { "path.decode.1block", 1, round_of_decoding },
    { "path.decode.8block", 8, round_of_decoding },
    { "path.whole.protobuf.1block", 1, round_with_protobuf },
    { "path.whole.protobuf.8block", 8, round_with_protobuf },
    { "path.whole.json.1block", 1, round_with_json },
    { "path.whole.json.8block", 8, round_with_json },
};

static void time_row(const struct row *row, double seconds)
{
    struct path path;
    uint64_t best_ns = UINT64_MAX;

    begin(&path, row->batch_blocks);
    bench_measure();
    const uint64_t until_ns = kvb_clock_monotonic_ns() + (uint64_t)(seconds * 1e9);
    do {
        const uint64_t took_ns = row->round(&path);
        best_ns = took_ns < best_ns ? took_ns : best_ns;
    } while (kvb_clock_monotonic_ns() < until_ns);
    bench_figure(row->name, (double)best_ns / batches, "ns/batch");
    end(&path);
}

int main(int argc, char **argv)
{
    const struct bench bench = bench_begin(argc, argv, "What a bridge does to one batch.");
    const size_t timed_rows = KVB_COUNT_OF(timed);

    for (size_t i = 0; i < timed_rows; i++) {
        if (bench_wants(&bench, timed[i].name)) {
            bench_progress("%s", timed[i].name);
            time_row(&timed[i], bench.seconds / (double)timed_rows); /* rounds take 3 to 40 ms */
        }
    }
    return 0;
}
