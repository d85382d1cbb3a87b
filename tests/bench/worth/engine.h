#pragma once

#include "core/ref.h"
#include "fleet/engine/block_pool.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The model of one engine: a scheduler with a pool of blocks, chunked prefill and continuous
 * batching, in virtual time.
 *
 *     send -> [ waiting ] -> step: prefill, chunk by chunk -> first token -> decode -> finished
 *                 admitted in order of arrival; reuses the longest prefix that the pool holds
 *
 * A step takes step_us, the time of its prefill tokens and decode_us for each token that it
 * decodes.  A step computes at most step_tokens: decoding requests first, then prefills in the
 * order of admission.  Blocks of prompt and answer are reserved at admission, so no request is
 * preempted.  A block can be reused from the step on that completes it.  The last token of a
 * prompt is always computed.  The least recently used block without a user is evicted first.
 *
 * Threads: the caller locks.  Memory: some 90 bytes a block of the pool.  No memory ends the
 * program. */
enum { worth_block_tokens = 512 };

struct worth_rates {
    uint32_t pool_blocks;
    uint32_t slots;       /* requests that run at once */
    uint32_t step_tokens; /* computed in one step at most */
    uint32_t prefill_tokens_per_s;
    uint32_t step_us;   /* of a step that computes nothing */
    uint32_t decode_us; /* for each token decoded in a step */
};

/* One request.  The caller fills in the first part and keeps it until the request is finished. */
struct worth_request {
    const kvb_tokens_hash *tokens; /* borrowed; of prompt and answer, as blocks */
    const kvb_block_hash *blocks;
    uint32_t input_tokens;  /* 1 .. */
    uint32_t output_tokens; /* 1 .. */
    uint64_t sent_us;

    /* written by the engine */
    uint32_t hit_blocks;      /* reused */
    uint32_t computed_tokens; /* of prompt and answer, the reused ones too */
    uint32_t produced_tokens;
    uint32_t full_blocks;
    uint32_t *places; /* while it runs */
    uint64_t first_token_us;
    struct worth_request *next;
};

/* Complete blocks of the prompt: those that can be reused. */
uint32_t worth_prompt_blocks(const struct worth_request *request);
/* Blocks that prompt and answer need. */
uint32_t worth_all_blocks(const struct worth_request *request);

struct worth_stored {
    const struct worth_request *request;
    uint32_t first, count; /* blocks of the request */
};

/* The effects of one step, known to others at its end. */
struct worth_step {
    uint64_t end_us;
    struct worth_stored *stored;
    size_t stored_count;
    kvb_block_hash *removed;
    size_t removed_count;
    struct worth_request **first_tokens;
    size_t first_token_count;
    struct worth_request **finished;
    size_t finished_count;
};

struct worth_engine {
    struct worth_rates rates;
    struct kvb_block_pool *pool;      /* owned; blocks are named by the names that routers know */
    struct kvb_event_batch evictions; /* of the block being taken */
    struct worth_request **running;   /* in order of admission */
    uint32_t running_count;
    struct worth_request *waiting, **waiting_end;
    uint32_t waiting_count;
    struct worth_step step;
    bool is_stepping;
    uint64_t busy_us;
};

void worth_engine_init(struct worth_engine *engine, const struct worth_rates *rates);
void worth_engine_done(struct worth_engine *engine);

uint32_t worth_engine_blocks_in_use(const struct worth_engine *engine);
bool worth_engine_holds(const struct worth_engine *engine, kvb_block_hash block);

/* False when the pool could never hold it. */
bool worth_engine_send(struct worth_engine *engine, struct worth_request *request);

/* Begins a step. False when one is under way or there is nothing to do. */
bool worth_engine_begin_step(struct worth_engine *engine, uint64_t now_us);

/* Ends the step.  Its effects are borrowed until the next one begins. */
const struct worth_step *worth_engine_end_step(struct worth_engine *engine);
