#include "hostile.h"

#include "core/clock.h"
#include "fleet/dialects/encode.h"
#include "fleet/engine/event_writer.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <time.h>
#include <zmq.h>

enum {
    max_kept_batches = 8,
    max_bytes = 1 << 27,
    run_blocks = 200000, /* of one Stored of tierclear */
    tier_clears = 60000, /* a batch has at most 65,536 events */
    orphans = 300000,    /* in batches of: */
    orphans_a_batch = 60000,
    colliding_blocks = 300000,
    other_tokens = 120,
};

static const char *const names[hostile_kinds] = {
    [hostile_tierclear] = "tierclear",
    [hostile_waiting] = "waiting",
    [hostile_collide] = "collide",
};

const char *hostile_name(enum hostile_kind kind)
{
    return names[kind];
}

/* ---- Writing a scene ---- */

struct writer {
    const struct bench *options;
    struct kvb_event_batch batch;
    kvb_engine_hash *hashes; /* owned, like tokens; as many as the longest run */
    uint32_t *tokens;
    struct script *script;
};

static kvb_status end_batch(struct writer *writer, enum kvb_dialect dialect)
{
    struct script *script = writer->script;

    writer->batch.timestamp_s = 1.7e9;
    writer->batch.has_rank = true;
    KVB_TRY(kvb_engine_batch_encode(&writer->batch, dialect, &script->bytes));
    script->ends[script->count++] = script->bytes.len;
    kvb_event_batch_reset(&writer->batch);
    return KVB_OK;
}

static kvb_status write_clear(struct writer *writer)
{
    KVB_TRY(kvb_event_writer_cleared(&writer->batch));
    return end_batch(writer, KVB_DIALECT_VLLM_0_22);
}

/* One Stored, in a batch of its own, of the blocks in hashes and tokens. */
static kvb_status write_run(struct writer *writer, size_t count)
{
    const struct kvb_stored_run run = { .hashes = writer->hashes,
                                        .tokens = writer->tokens,
                                        .count = (uint32_t)count,
                                        .block_size = 1 };

    KVB_TRY(kvb_event_writer_stored(&writer->batch, &run));
    return end_batch(writer, KVB_DIALECT_VLLM_0_22);
}

static kvb_status write_tier_clears(struct writer *writer)
{
    const size_t count = bench_size(writer->options, tier_clears);

    for (size_t i = 0; i < count; i++) {
        KVB_TRY(kvb_event_writer_cleared(&writer->batch));
        struct kvb_engine_event *event = &writer->batch.events[i];
        event->all_tiers = false;
        event->tier = KVB_TIER_HOST;
    }
    return end_batch(writer, KVB_DIALECT_VLLM_0_31); /* older ones name no tier */
}

static kvb_status write_tierclear(struct writer *writer)
{
    const size_t count = bench_size(writer->options, run_blocks);

    for (size_t run = 0; run < 2; run++) {
        for (size_t i = 0; i < count; i++) {
            writer->hashes[i].value = run * count + i + 1;
            writer->tokens[i] = (uint32_t)(run * count + i);
        }
        KVB_TRY(write_run(writer, count));
    }
    return write_tier_clears(writer);
}

static kvb_status write_waiting(struct writer *writer)
{
    const kvb_engine_hash nobody = { .value = 7 };
    const size_t count = bench_size(writer->options, orphans);
    const size_t batch = bench_size(writer->options, orphans_a_batch);

    for (size_t i = 0; i < count; i++) {
        const kvb_engine_hash hash = { .value = i + 100 };
        const uint32_t token = (uint32_t)i;
        KVB_TRY(kvb_event_writer_stored(
            &writer->batch, &(struct kvb_stored_run){ .parent = &nobody,
                                                      .hashes = &hash,
                                                      .tokens = &token,
                                                      .count = 1,
                                                      .block_size = 1 }));
        if ((i + 1) % batch == 0) {
            KVB_TRY(end_batch(writer, KVB_DIALECT_VLLM_0_22));
        }
    }
    return KVB_OK;
}

/* The number that splitmix64's finaliser turns into `mixed`: its steps inverted, the last one
 * first. */
static uint64_t unmix(uint64_t mixed)
{
    mixed ^= mixed >> 31 ^ mixed >> 62;
    mixed *= UINT64_C(0x319642b2d24d8ec3); /* times 0x94d049bb133111eb: 1 */
    mixed ^= mixed >> 27 ^ mixed >> 54;
    mixed *= UINT64_C(0x96de1b173f119089); /* times 0xbf58476d1ce4e5b9: 1 */
    mixed ^= mixed >> 30 ^ mixed >> 60;
    return mixed;
}

static kvb_status write_collide(struct writer *writer)
{
    const uint64_t line = 0x12345678;
    const size_t count = bench_size(writer->options, colliding_blocks);

    for (size_t i = 0; i < count; i++) {
        writer->hashes[i].value = unmix((uint64_t)(i + 1) << 32 | line);
        writer->tokens[i] = (uint32_t)(i % other_tokens);
    }
    return write_run(writer, count);
}

static kvb_status write_scene(struct writer *writer, enum hostile_kind kind)
{
    static kvb_status (*const writers[hostile_kinds])(struct writer *) = {
        [hostile_tierclear] = write_tierclear,
        [hostile_waiting] = write_waiting,
        [hostile_collide] = write_collide,
    };

    KVB_TRY(write_clear(writer));
    return writers[kind](writer);
}

kvb_status
hostile_make(enum hostile_kind kind, const struct bench *options, struct script *out_script)
{
    struct script script = { .ends = calloc(max_kept_batches, sizeof *script.ends),
                             .blocks_per_batch = 1 };
    struct writer writer = { .options = options,
                             .hashes = calloc(colliding_blocks, sizeof *writer.hashes),
                             .tokens = calloc(colliding_blocks, sizeof *writer.tokens),
                             .script = &script };
    kvb_status status = KVB_NO_MEMORY;

    kvb_buf_init(&script.bytes, max_bytes);
    if (script.ends && writer.hashes && writer.tokens) {
        status = write_scene(&writer, kind);
    }
    kvb_event_batch_done(&writer.batch);
    free(writer.hashes);
    free(writer.tokens);
    if (status != KVB_OK) {
        script_done(&script);
        return status;
    }
    *out_script = script;
    return KVB_OK;
}

/* ---- Sending ---- */

/* The scene is not copied: copying some megabytes at once would take the cores that the bridge runs
 * on. */
static void send_batch(struct engine *engine, const struct script *script, size_t at)
{
    const kvb_span batch = script_batch(script, at);
    uint8_t *bytes =
        script->bytes.data + (batch.data - script->bytes.data); /* ZeroMQ's are not const */
    zmq_msg_t message;

    engine_send_head(engine);
    /* a message without a function to free it has no memory of its own, and cannot fail */
    (void)zmq_msg_init_data(&message, bytes, batch.len, NULL, NULL);
    (void)zmq_msg_send(&message, engine->socket, 0);
}

static bool is_over_at(struct hostile *hostile, uint64_t at_ns)
{
    const struct timespec at = { .tv_sec = (time_t)(at_ns / KVB_NS_PER_S),
                                 .tv_nsec = (long)(at_ns % KVB_NS_PER_S) };
    int result = 0;

    do {
        result = sem_clockwait(&hostile->is_over, CLOCK_MONOTONIC, &at);
    } while (result != 0 && errno == EINTR);
    return result == 0;
}

static void *run(void *context)
{
    struct hostile *hostile = context;
    const struct script *script = hostile->script;
    const uint64_t began_ns = kvb_clock_monotonic_ns();
    uint64_t after_ns = 0;

    do {
        for (size_t i = 0; i < script->count; i++) {
            send_batch(hostile->engine, script, i);
        }
        hostile->scenes_sent++;
        after_ns += KVB_NS_PER_S;
    } while (after_ns < hostile->duration_ns && !is_over_at(hostile, began_ns + after_ns));
    return NULL;
}

kvb_status hostile_begin(struct hostile *hostile)
{
    hostile->scenes_sent = 0;
    (void)sem_init(&hostile->is_over, 0, 0); /* fails for values that are not these */
    if (pthread_create(&hostile->thread, NULL, run, hostile) != 0) {
        (void)sem_destroy(&hostile->is_over);
        return KVB_IO;
    }
    return KVB_OK;
}

void hostile_end(struct hostile *hostile)
{
    (void)sem_post(&hostile->is_over);
    (void)pthread_join(hostile->thread, NULL);
    (void)sem_destroy(&hostile->is_over);
}
