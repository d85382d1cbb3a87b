#include "ingest/zmq/frames.h"
#include "target.h"

#include <stdlib.h>

/* [length, bytes...] a frame, until the bytes end. */
static struct kvb_frames frames_of(const uint8_t *data, size_t size)
{
    struct kvb_frames frames = { .count = 0 };

    for (size_t at = 0; at < size; frames.count++) {
        const size_t left = size - at - 1;
        const size_t len = data[at] < left ? data[at] : left;
        if (frames.count < kvb_max_frames) {
            frames.frame[frames.count] = (kvb_span){ len ? data + at + 1 : NULL, len };
        }
        at += 1 + len;
    }
    return frames;
}

static uint64_t number_of(kvb_span frame)
{
    uint64_t number = 0;

    check(frame.len == 8);
    for (size_t i = 0; i < frame.len; i++) {
        number = number << 8 | frame.data[i];
    }
    return number;
}

/* A batch is the last frame, after its sequence number; the end mark has no batch. */
static void check_reply(const struct kvb_frames *frames)
{
    enum kvb_replay_frame kind = KVB_REPLAY_END;
    uint64_t seq = 0;
    kvb_span payload = { 0 };

    if (kvb_frames_read_replay(frames, &kind, &seq, &payload) != KVB_OK) {
        return;
    }
    check(frames->count >= 2 && frames->count <= kvb_max_frames);
    if (kind == KVB_REPLAY_END) {
        return;
    }
    check(payload.data == frames->frame[frames->count - 1].data && payload.len > 0);
    check(number_of(frames->frame[frames->count - 2]) == seq && seq != UINT64_MAX);
}

static void check_live(const struct kvb_frames *frames)
{
    uint64_t seq = 0;
    kvb_span payload = { 0 };

    if (kvb_frames_read_live(frames, &seq, &payload) == KVB_OK) {
        check(frames->count == 3 && number_of(frames->frame[1]) == seq);
        check(payload.data == frames->frame[2].data);
    }
}

/* Engines accept the same request, and our own writer would write it so. */
static void check_request(const struct kvb_frames *frames)
{
    uint8_t seq_frame[8];
    struct kvb_frames ours;
    kvb_span identity = { 0 };
    uint64_t seq = 0;

    if (kvb_frames_read_request(frames, &identity, &seq) != KVB_OK) {
        return;
    }
    check(frames->count == 3 && identity.len > 0 && identity.data == frames->frame[0].data);
    kvb_frames_of_request(KVB_REQUEST_PLAIN, seq, seq_frame, &ours);
    check(ours.count == 2 && ours.frame[0].len == frames->frame[1].len);
    check(number_of(ours.frame[1]) == number_of(frames->frame[2]));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const struct kvb_frames frames = frames_of(data, size);

    check_reply(&frames);
    check_live(&frames);
    check_request(&frames);
    return 0;
}
