#pragma once

#include "core/ref.h"
#include "core/status.h"
#include "model/event_batch.h"

#include <stdint.h>

/* Adds what a block cache does to a batch, in vLLM's shapes.
 *
 * Each call adds one event or, on failure, nothing.
 * Threads: the caller locks.
 *
 * KVB_TOO_LARGE  a ceiling of the batch is reached
 * KVB_NO_MEMORY */

/* Blocks that follow each other in one prompt. */
struct kvb_stored_run {
    const kvb_engine_hash *parent; /* borrowed; NULL at the root */
    const kvb_engine_hash *hashes; /* borrowed, like tokens */
    const uint32_t *tokens;        /* count * block_size of them */
    uint32_t count;
    uint32_t block_size;
    const char *salt; /* borrowed; NULL: none */
};

kvb_status kvb_event_writer_stored(struct kvb_event_batch *batch, const struct kvb_stored_run *run);

/* vLLM names one block in each Removed. */
kvb_status kvb_event_writer_removed(struct kvb_event_batch *batch, kvb_engine_hash hash);

kvb_status kvb_event_writer_cleared(struct kvb_event_batch *batch);
