#include "../unit/stream/bytes_reader.h"
#include "core/own.h"
#include "stream/checkpoint/checkpoint.h"
#include "stream/inside.h" /* fingerprints */
#include "target.h"

#include <stdlib.h>
#include <string.h>

/* Checkpoints with arbitrary content and correct hashes.  The fuzzer cannot guess a hash, so this
 * target writes them, and makes the first section that of our stream.
 *
 * Those of an odd length are of a stream that is republished, with tokens.
 *
 * An accepted checkpoint is saved, restored and saved again as the same bytes, and the restored
 * stream works on without a crash. */
enum { header_bytes = 16, hash_bytes = 16, key_bytes = 17 * 8, max_bytes = 4 << 20 };
enum { head_bytes = header_bytes + key_bytes + hash_bytes };

static void drop_stream(struct kvb_stream **stream)
{
    kvb_stream_free(*stream);
}

static struct kvb_stream *new_stream(bool is_republished)
{
    const struct kvb_stream_options options = {
        .worker_id = 7,
        .dp_rank = 1,
        .has_replay = true,
        .block_size = 1,
        .max_buffered_bytes = 1 << 16,
        .max_log_blocks = 64,
        .mirror = { .max_blocks = 1024, .tiers = 3 },
    };
    struct kvb_stream *stream = NULL;

    check(kvb_stream_new(&options, &stream) == KVB_OK);
    check(!is_republished || kvb_stream_show(stream, 1) == KVB_OK);
    return stream;
}

static void step(
    struct kvb_stream *stream, enum kvb_stream_input_kind kind, uint64_t seq,
    const struct kvb_event_batch *batch)
{
    struct kvb_stream_output output = { 0 };
    const struct kvb_stream_input input = {
        .kind = kind, .now_ns = 1000000000, .wall_us = 5, .seq = seq, .batch = batch
    };

    check(kvb_stream_step(stream, &input, &output) == KVB_OK);
    kvb_stream_output_done(&output);
}

/* The head of a real one, with its hash. */
static void put_head(uint8_t head[head_bytes])
{
    KVB_OWN(drop_stream) struct kvb_stream *stream = new_stream(false);
    KVB_OWN(kvb_buf_done) struct kvb_buf bytes = { 0 };
    const struct kvb_event_batch batch = { 0 };

    kvb_buf_init(&bytes, max_bytes);
    step(stream, KVB_INPUT_UP, 0, NULL);
    kvb_stream_replay_started(stream, 0);
    step(stream, KVB_INPUT_REPLAY, 0, &batch);
    check(save_stream(stream, &bytes) == KVB_OK);
    if (memcmp(bytes.data + 12, &(uint32_t){ key_bytes }, 4) != 0) {
        abort(); /* the keys in the head have changed: adapt this target */
    }
    memcpy(head, bytes.data, head_bytes);
}

/* Writes the correct hash after each section, as far as the lengths are valid. */
static void seal(uint8_t *bytes, size_t len)
{
    uint64_t chain = 0;

    memcpy(&chain, bytes + head_bytes - hash_bytes, sizeof chain);
    for (size_t at = head_bytes; at + header_bytes + hash_bytes <= len;) {
        uint32_t payload = 0;
        memcpy(&payload, bytes + at + 12, sizeof payload);
        const size_t end = at + header_bytes + (size_t)payload;
        if (end + hash_bytes > len) {
            return;
        }
        const struct kvb_hash128 hash =
            kvb_hash128((kvb_span){ .data = bytes + at, .len = end - at }, chain);
        memcpy(bytes + end, &hash, sizeof hash);
        chain = hash.low;
        at = end + hash_bytes;
    }
}

static kvb_status restore(struct kvb_stream *stream, const uint8_t *bytes, size_t len)
{
    struct reader reader = { .bytes = bytes, .len = len };
    const struct kvb_checkpoint_source source = { .read = read_bytes, .context = &reader };
    bool needs_epoch = false;
    struct kvb_checkpoint_refusal refusal = { .cause = KVB_CHECKPOINT_FLAW_COUNT };

    const kvb_status status = kvb_stream_restore(stream, &source, &needs_epoch, &refusal);
    check(
        status == KVB_OK || (status == KVB_BAD_INPUT && refusal.cause < KVB_CHECKPOINT_FLAW_COUNT));
    return status;
}

static void replay(
    struct kvb_stream *stream, uint64_t seq, struct kvb_hash128 fingerprint,
    const struct kvb_event_batch *batch)
{
    struct kvb_stream_output output = { 0 };
    const struct kvb_stream_input input = { .kind = KVB_INPUT_REPLAY,
                                            .now_ns = 1000000000,
                                            .wall_us = 5,
                                            .seq = seq,
                                            .fingerprint = fingerprint,
                                            .batch = batch };

    check(kvb_stream_step(stream, &input, &output) == KVB_OK);
    kvb_stream_output_done(&output);
}

/* The engine proves that it is the same.  Its next batch clears tier by tier, which goes through
 * every entry and all lists. */
static void go_on(struct kvb_stream *stream)
{
    struct kvb_engine_event events[] = {
        { .kind = KVB_EVENT_CLEARED, .tier = KVB_TIER_DEVICE },
        { .kind = KVB_EVENT_CLEARED, .tier = KVB_TIER_HOST },
        { .kind = KVB_EVENT_CLEARED, .tier = KVB_TIER_DISK },
        { .kind = KVB_EVENT_CLEARED, .tier = KVB_TIER_EXTERNAL },
    };
    const struct kvb_event_batch batch = { .events = events, .event_count = 4 };
    const struct kvb_event_batch empty = { 0 };
    const struct kvb_mirror_counts *counts = kvb_stream_mirror_count(stream);
    uint64_t seq = 0;

    check(kvb_stream_last_seq(stream, &seq));
    const struct kvb_fingerprint newest =
        *kvb_fingerprints_at(&stream->fingerprints, seq % kvb_fingerprints);
    step(stream, KVB_INPUT_UP, 0, NULL);
    kvb_stream_replay_started(stream, 1000000000);
    replay(stream, seq, newest.hash, &empty);
    replay(stream, seq + 1, newest.hash, &batch);
    check(counts->unrooted == 0 && counts->unplaced == 0 && counts->proven_copies == 0);
    check(kvb_stream_count(stream)->clears == 0); /* each tier was cleared on its own */
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    KVB_OWN(drop_stream) struct kvb_stream *one = new_stream(size % 2);
    KVB_OWN(drop_stream) struct kvb_stream *other = new_stream(size % 2);
    KVB_OWN(kvb_buf_done) struct kvb_buf first = { 0 };
    KVB_OWN(kvb_buf_done) struct kvb_buf second = { 0 };
    KVB_OWN(kvb_buf_done) struct kvb_buf input = { 0 };

    kvb_buf_init(&input, max_bytes);
    kvb_buf_init(&first, max_bytes);
    kvb_buf_init(&second, max_bytes);
    if (kvb_buf_reserve(&input, head_bytes + size) != KVB_OK) {
        return 0;
    }
    put_head(input.data);
    memcpy(input.data + head_bytes, data, size);
    seal(input.data, head_bytes + size);
    if (restore(one, input.data, head_bytes + size) != KVB_OK) {
        return 0;
    }
    check(save_stream(one, &first) == KVB_OK);
    check(restore(other, first.data, first.len) == KVB_OK);
    check(save_stream(other, &second) == KVB_OK);
    check(first.len == second.len && memcmp(first.data, second.data, first.len) == 0);
    go_on(one);
    go_on(other);
    return 0;
}
