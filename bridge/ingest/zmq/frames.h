#pragma once

#include "core/span.h"
#include "core/status.h"

#include <stdbool.h>
#include <stdint.h>

/* Parses and makes the frames of messages, without a socket.
 * Formats: the ZMQ publishers of vLLM 0.9 to 0.32, SGLang, TensorRT-LLM, and Mooncake's
 * subscriber guide. */

enum { kvb_max_frames = 8 };

struct kvb_frames {
    kvb_span frame[kvb_max_frames]; /* borrowed from the message */
    size_t count;                   /* above kvb_max_frames: the others were dropped */
};

/* Parses a live message: topic | seq, 8 bytes big-endian | payload.
 * KVB_BAD_INPUT  not three frames, or a seq that is not 8 bytes long */
kvb_status
kvb_frames_read_live(const struct kvb_frames *frames, uint64_t *out_seq, kvb_span *out_payload);

/* The frames of a replay request that a publisher expects from a DEALER:
 *
 *     KVB_REQUEST_PLAIN     ["", seq8]       all engines; they ignore anything else
 *     KVB_REQUEST_MOONCAKE  [id, "", seq8]   as in Mooncake's subscriber guide */
enum kvb_replay_request { KVB_REQUEST_PLAIN, KVB_REQUEST_MOONCAKE };

/* Makes the frames of a request for batches from seq on; the last frame points to seq_frame. */
void kvb_frames_of_request(
    enum kvb_replay_request request, uint64_t seq, uint8_t seq_frame[8],
    struct kvb_frames *out_frames);

enum kvb_replay_frame { KVB_REPLAY_BATCH, KVB_REPLAY_END };

/* Parses a reply to a replay request, in any of the layouts in use:
 *
 *     ["", seq8, payload]  ["", topic, seq8, payload]      a batch
 *     ["", ff*8, ""]  ["", "", ff*8, ""]  ["", "", ff*8]   the end
 *
 * One rule covers all: one empty frame at the start is skipped.  The last frame is the payload. The
 * frame before it is the seq if it has 8 bytes.  The reply is the end when the payload is empty,
 * when seq is ff*8, or when the payload is ff*8 after an empty frame.
 * KVB_BAD_INPUT  neither a batch nor the end */
kvb_status kvb_frames_read_replay(
    const struct kvb_frames *frames, enum kvb_replay_frame *out_kind, uint64_t *out_seq,
    kvb_span *out_payload);

/* True: a topic stands before the seq of such a reply. */
bool kvb_frames_has_topic(const struct kvb_frames *frames);

/* Parses a replay request as a ROUTER receives it: identity | "" | seq, 8 bytes.
 * KVB_BAD_INPUT: it has another form, which engines ignore. */
kvb_status
kvb_frames_read_request(const struct kvb_frames *frames, kvb_span *out_identity, uint64_t *out_seq);

/* Writes seq as 8 bytes, big-endian. */
void kvb_frames_write_seq(uint64_t seq, uint8_t out_bytes[8]);
