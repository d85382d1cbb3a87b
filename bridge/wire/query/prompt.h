#pragma once

#include "core/ref.h"
#include "core/span.h"
#include "core/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

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
