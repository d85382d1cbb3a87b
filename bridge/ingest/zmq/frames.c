#include "ingest/zmq/frames.h"

enum { seq_bytes = 8 };

static const uint64_t end_seq = UINT64_MAX;

static bool read_frame_seq(kvb_span frame, uint64_t *out_seq)
{
    uint64_t seq = 0;

    if (frame.len != seq_bytes) {
        return false;
    }
    for (size_t i = 0; i < seq_bytes; i++) {
        seq = seq << 8 | frame.data[i];
    }
    *out_seq = seq;
    return true;
}

void kvb_frames_write_seq(uint64_t seq, uint8_t out_bytes[8])
{
    for (size_t i = 0; i < seq_bytes; i++) {
        out_bytes[i] = (uint8_t)(seq >> (8 * (seq_bytes - 1 - i)));
    }
}

kvb_status
kvb_frames_read_live(const struct kvb_frames *frames, uint64_t *out_seq, kvb_span *out_payload)
{
    if (frames->count != 3 || !read_frame_seq(frames->frame[1], out_seq)) {
        return KVB_BAD_INPUT;
    }
    *out_payload = frames->frame[2];
    return KVB_OK;
}

void kvb_frames_of_request(
    enum kvb_replay_request request, uint64_t seq, uint8_t seq_frame[8],
    struct kvb_frames *out_frames)
{
    static const uint8_t id[] = "kvbridge";
    struct kvb_frames frames = { .count = 0 };

    if (request == KVB_REQUEST_MOONCAKE) {
        frames.frame[frames.count++] = (kvb_span){ id, sizeof id - 1 };
    }
    /* The bytes are the caller's: the frames point to them until they are sent. */
    kvb_frames_write_seq(seq, seq_frame);
    frames.frame[frames.count++] = (kvb_span){ NULL, 0 };
    frames.frame[frames.count++] = (kvb_span){ seq_frame, seq_bytes };
    *out_frames = frames;
}

kvb_status kvb_frames_read_replay(
    const struct kvb_frames *frames, enum kvb_replay_frame *out_kind, uint64_t *out_seq,
    kvb_span *out_payload)
{
    const size_t first = frames->count > 0 && frames->frame[0].len == 0 ? 1 : 0;
    uint64_t seq = 0;

    if (frames->count > kvb_max_frames || frames->count < first + 2) {
        return KVB_BAD_INPUT;
    }
    const kvb_span payload = frames->frame[frames->count - 1];
    const kvb_span before = frames->frame[frames->count - 2];
    const bool has_seq = read_frame_seq(before, &seq);
    uint64_t payload_seq = 0;
    /* No batch is eight bytes of 0xff.  Mooncake ends so, under any number or none. */
    const bool ends_by_payload = read_frame_seq(payload, &payload_seq) && payload_seq == end_seq;

    /* The end is looked for first: one of its forms has no number. */
    if (ends_by_payload || payload.len == 0 || (has_seq && seq == end_seq)) {
        *out_kind = KVB_REPLAY_END;
        return KVB_OK;
    }
    if (!has_seq) {
        return KVB_BAD_INPUT;
    }
    *out_kind = KVB_REPLAY_BATCH;
    *out_seq = seq;
    *out_payload = payload;
    return KVB_OK;
}

bool kvb_frames_has_topic(const struct kvb_frames *frames)
{
    const size_t first = frames->count > 0 && frames->frame[0].len == 0 ? 1 : 0;

    return frames->count == first + 3;
}

kvb_status
kvb_frames_read_request(const struct kvb_frames *frames, kvb_span *out_identity, uint64_t *out_seq)
{
    uint64_t seq = 0;

    if (frames->count != 3 || frames->frame[0].len == 0 || frames->frame[1].len != 0 ||
        !read_frame_seq(frames->frame[2], &seq)) {
        return KVB_BAD_INPUT;
    }
    *out_identity = frames->frame[0];
    *out_seq = seq;
    return KVB_OK;
}
