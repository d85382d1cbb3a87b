#pragma once

#include "core/buf.h"
#include "core/span.h"
#include "core/status.h"
#include "model/router_batch.h"

/* RouterEvents of one stream as a protobuf KvEventBatch (proto/kvbridge.proto): many events per
 * message, hashes in packed fixed64 columns.  Field 1 is the epoch, so the first byte is 0x0a,
 * which no JSON has. */

/* Appends one message with events at .. at + count - 1 of the batch, whose
 * event_ids must be consecutive.  On failure *out is unchanged.
 * KVB_TOO_LARGE  the message may not fit below the buffer's ceiling: up to 128 bytes more than it
 *                has are required, as kvb_router_proto_room() counts
 * KVB_NO_MEMORY */
kvb_status kvb_router_proto_encode(
    const struct kvb_router_batch *batch, size_t at, size_t count, struct kvb_buf *out);

/* The number of blocks that always fit a message of max_bytes, where each event counts as one more
 * block.  max_bytes is at least 1 KiB. */
size_t kvb_router_proto_room(size_t max_bytes);

/* Reads one message; replaces the content of *batch.
 * KVB_BAD_INPUT  not protobuf, columns whose lengths disagree, a wrong epoch size
 * KVB_TOO_LARGE, KVB_NO_MEMORY  (the batch is empty on each of these) */
kvb_status kvb_router_proto_decode(kvb_span bytes, struct kvb_router_batch *batch);

/* Decodes either format, by the first byte: '{' is JSON, 0x0a protobuf.  The batch has an epoch
 * only in protobuf. KVB_BAD_INPUT  neither */
kvb_status kvb_router_payload_decode(kvb_span bytes, struct kvb_router_batch *batch);
