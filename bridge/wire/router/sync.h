#pragma once

#include "core/buf.h"
#include "core/span.h"
#include "core/status.h"
#include "model/sync.h"

/* SyncRequest and SyncReply (proto/kvbridge.proto) on P.kv_sync.
 *
 * decode: KVB_BAD_INPUT  not such a message, or an invalid value
 * both:   KVB_TOO_LARGE, KVB_NO_MEMORY */
kvb_status kvb_sync_request_encode(const struct kvb_sync_request *request, struct kvb_buf *out);
kvb_status kvb_sync_request_decode(kvb_span bytes, struct kvb_sync_request *out_request);

kvb_status kvb_sync_reply_encode(const struct kvb_sync_reply *reply, struct kvb_buf *out);

/* The number of blocks that always fit a reply of max_bytes in addition to the blocks of one entry
 * of a mirror, even if each block is a separate event.  max_bytes is at least 1 KiB. */
size_t kvb_sync_reply_room(size_t max_bytes);

/* Memory that a decoded reply borrows from; {0} at first, reused. */
struct kvb_sync_reply_parts {
    struct kvb_router_batch events;
    struct kvb_hash128 sums[KVB_LIST_COUNT][kvb_sync_buckets];
};

void kvb_sync_reply_parts_done(struct kvb_sync_reply_parts *parts);

/* *out_reply borrows from parts until the next call. */
kvb_status kvb_sync_reply_decode(
    kvb_span bytes, struct kvb_sync_reply_parts *parts, struct kvb_sync_reply *out_reply);
