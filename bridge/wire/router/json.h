#pragma once

#include "core/buf.h"
#include "core/ref.h"
#include "core/span.h"
#include "core/status.h"
#include "model/router_batch.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

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

/* RouterEvents that contain whole prompts instead of hashes of their tokens:
 *
 *     {"worker_id":W,"data":{"Stored":{"request_id":..., "token_ids":[1,2,...],
 *      "block_hashes":[B0,B1],"lora_id":null}}}
 *     {"worker_id":W,"data":{"Removed":{"block_hashes":[B0]}}}
 *
 * The blocks are consecutive from the prompt's beginning.  The last tokens may not fill a block.
 * There are no event ids, no parents and no tiers.  kvbridge does not publish this form: see
 * proto/README.md.
 * Threads: the caller locks.  Memory: reused; ceilings in core/limits.h. */
struct kvb_prompt_event {
    uint64_t worker_id;
    uint32_t dp_rank;
    bool is_removed; /* else stored */
    bool has_lora;
    uint64_t lora_id;
    kvb_block_hash *blocks; /* owned, like tokens */
    uint32_t *tokens;
    size_t block_count, block_capacity;
    size_t token_count, token_capacity;
};

/* {0} is fine. */
void kvb_prompt_event_done(struct kvb_prompt_event *event);

/* Replaces the content of *event; on any error it is empty.  Unknown fields are ignored.
 * KVB_BAD_INPUT  not this form
 * KVB_TOO_LARGE, KVB_NO_MEMORY */
kvb_status kvb_prompt_json_decode(kvb_span json, struct kvb_prompt_event *event);
