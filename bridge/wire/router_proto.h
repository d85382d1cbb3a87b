#pragma once

#include "core/buf.h"
#include "core/span.h"
#include "core/status.h"
#include "model/router_batch.h"

/* RouterEvents of one stream as a protobuf KvEventBatch (proto/kvbridge.proto):
 * many events a message, hashes in packed fixed64 columns, field 1 the epoch, so
 * that the first byte is 0x0a and tells the profile. */

/* Appends one message with events at .. at + count - 1 of the batch, whose
 * event_ids must follow each other.  KVB_TOO_LARGE, KVB_NO_MEMORY. */
kvb_status kvb_router_proto_encode(
    const struct kvb_router_batch *batch, size_t at, size_t count, struct kvb_buf *out);

/* Reads one message; replaces what *batch held.
 * KVB_BAD_INPUT  no protobuf, columns whose lengths disagree, a wrong epoch size
 * KVB_TOO_LARGE, KVB_NO_MEMORY  (the batch is empty on each of these) */
kvb_status kvb_router_proto_decode(kvb_span bytes, struct kvb_router_batch *batch);

/* Either profile, told by the first byte: '{' JSON, 0x0a protobuf.
 * KVB_BAD_INPUT  neither */
kvb_status kvb_router_payload_decode(kvb_span bytes, struct kvb_router_batch *batch);
