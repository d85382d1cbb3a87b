#pragma once

#include "core/span.h"
#include "core/status.h"

#include <stdbool.h>
#include <stdint.h>

/* What the frames of one message mean; pure, so that it can be tested without a
 * socket.  Source: the publishers named in proto/README.md's table of engines. */

enum { kvb_most_frames = 8 };

struct kvb_frames {
    kvb_span frame[kvb_most_frames]; /* borrowed from the message */
    size_t count;                    /* may be above kvb_most_frames: the rest was dropped */
};

/* A live message: topic | seq, 8 bytes big-endian | payload.
 * KVB_BAD_INPUT  not three frames, or a seq that has not 8 bytes */
kvb_status
kvb_frames_read_live(const struct kvb_frames *frames, uint64_t *out_seq, kvb_span *out_payload);

enum kvb_replay_frame { KVB_REPLAY_BATCH, KVB_REPLAY_END };

/* A reply to a replay request, in any of the layouts in use:
 *
 *     ["", seq8, payload]  ["", topic, seq8, payload]      a batch
 *     ["", ff*8, ""]  ["", "", ff*8, ""]  ["", "", ff*8]   the end
 *
 * One rule reads them all: drop one leading empty frame; the last frame is the
 * payload, the one before it the seq.
 * KVB_BAD_INPUT  neither */
kvb_status kvb_frames_read_replay(
    const struct kvb_frames *frames, enum kvb_replay_frame *out_kind, uint64_t *out_seq,
    kvb_span *out_payload);

/* 8 bytes, big-endian. */
void kvb_frames_write_seq(uint64_t seq, uint8_t out_bytes[8]);
