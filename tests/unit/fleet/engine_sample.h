#pragma once

#include "fleet/engine/engine.h"
#include "fleet/interval_reader.h"

#include <stdint.h>

/* A small engine, and what tests do with any engine. */

enum { block_size = 4 };

extern const struct kvb_engine_options plain_engine; /* 64 usable blocks, seed 7 */

struct kvb_engine *engine_with(const struct kvb_engine_options *options);

/* A prompt of tokens first, first + 1, ...: prompts with the same beginning share a prefix. */
void admit(struct kvb_engine *engine, uint32_t first, uint32_t count, uint32_t output);

/* Steps until the engine has nothing to do. Every batch goes to the reader, if there is one. */
void run_dry(struct kvb_engine *engine, struct kvb_reader *reader);

/* Fails unless an engine without requests has all blocks free: otherwise some path leaks a block.
 */
void assert_no_block_in_use(const struct kvb_engine *engine);

/* The caller frees it with kvb_truth_done(). */
struct kvb_truth truth_of(const struct kvb_engine *engine);
