#pragma once

#include "core/buf.h"
#include "core/span.h"
#include "core/status.h"
#include "model/event_batch.h"

#include <msgpack.h>

/* What writers of engine events share: that of republished events here, and those of the dialects
 * of simulated engines (tests/fleet/dialects).
 *
 * They return no status, and the results of msgpack-c are ignored: the sink keeps the first
 * failure, after which nothing is written. */
struct kvb_pack_sink {
    struct kvb_buf *out; /* borrowed */
    kvb_status status;
};

/* The packer appends to sink->out from now on. */
void kvb_pack_begin(msgpack_packer *packer, struct kvb_pack_sink *sink);

void kvb_pack_text(msgpack_packer *packer, const char *text);

/* nil if it is empty. */
void kvb_pack_span(msgpack_packer *packer, kvb_span text);

/* The tokens of a Stored, each in its shortest form. */
void kvb_pack_tokens(
    msgpack_packer *packer, const struct kvb_event_batch *batch,
    const struct kvb_engine_event *event);
