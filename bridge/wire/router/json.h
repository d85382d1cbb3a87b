#pragma once

#include "core/buf.h"
#include "core/span.h"
#include "core/status.h"
#include "model/router_batch.h"

/* RouterEvents as Dynamo's routers read them: one compact JSON object per message.
 *
 *     {"worker_id":W,"event":{"event_id":1,"data":{"stored":{"parent_hash":null,
 *      "blocks":[{"block_hash":B,"tokens_hash":T}]}},"dp_rank":0}}
 *
 * Hashes are u64 at full precision.  proto/README.md specifies the format to the byte.  Readers
 * assume the device tier: other tiers are written as "storage_tier". */

/* Dynamo's name of the tier: "host_pinned" is the host.  Dynamo does not know "window", which is
 * the window list. */
const char *kvb_router_json_tier(enum kvb_tier tier);

/* Returns the length that the text of an event of so many blocks does not exceed. */
size_t kvb_router_json_room(size_t blocks);

/* Appends event number `at` of the batch.  Reserves kvb_router_json_room() bytes for it.
 * KVB_TOO_LARGE, KVB_NO_MEMORY: as kvb_buf_reserve(); *out is unchanged. */
kvb_status
kvb_router_json_encode(const struct kvb_router_batch *batch, size_t at, struct kvb_buf *out);

/* Reads the stream of a message that kvb_router_json_encode() has written, without its blocks.
 * False: it is written otherwise, which does not make it invalid. */
bool kvb_router_json_peek(kvb_span json, uint64_t *out_worker_id, uint32_t *out_dp_rank);

/* Reads one message; replaces the content of *batch, which has no epoch then.  Unknown fields
 * are ignored.  A missing dp_rank is 0, a missing storage_tier is the device.
 * KVB_BAD_INPUT  not one RouterEvent: not JSON, a wrong type, more bytes after it,
 *                a worker_id above 2^63-1, a hash that is not a u64
 * KVB_TOO_LARGE, KVB_NO_MEMORY  (the batch is empty on each of these) */
kvb_status kvb_router_json_decode(kvb_span json, struct kvb_router_batch *batch);
