#pragma once

#include "stream/checkpoint/checkpoint.h"

/* Checkpoints in memory, for the tests of this room. */

/* Saves the whole stream into bytes, which the caller frees. */
void save_whole(struct kvb_stream *stream, struct kvb_buf *bytes);

/* Restores a stream from the first len bytes. */
kvb_status restore_from(
    struct kvb_stream *stream, const uint8_t *bytes, size_t len, bool *out_needs_epoch,
    enum kvb_checkpoint_rejection *out_cause);
kvb_status restore_or_say_why(
    struct kvb_stream *stream, const uint8_t *bytes, size_t len, bool *out_needs_epoch,
    struct kvb_checkpoint_refusal *out_refusal);
