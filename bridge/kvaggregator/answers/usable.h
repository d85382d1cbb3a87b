#pragma once

#include "core/ref.h"
#include "index/block_set.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* How much of a held prefix a request is given.  Source: the lookups of vLLM 0.33 and of
 * SGLang 0.5.23, as recorded in tests/data/probes.
 *
 * Threads: any thread; nothing is kept. */

/* Blocks that the sliding-window groups must hold at the end of a usable prefix: those that
 * the window of the next token reaches back into.  0: none. */
size_t kvb_window_need(uint32_t window_tokens, uint32_t block_size);

/* Of a hybrid model, how many of the blocks names[0 .. count - 1], all held by the
 * full-attention groups, can be used: the prefix ends with the last run of `need` blocks that
 * the window list holds, and without such a run with the run at the prompt's beginning.
 *
 *     need 2, window list:   0 1 . . 4 5 . 7      usable: 6 blocks
 *                            0 . . . 4 . . 7      usable: 1 block
 *
 * window NULL: an empty list.  Cost: at most one look into the set for each block. */
size_t kvb_usable_blocks(
    const struct kvb_block_set *window, const kvb_block_hash *names, size_t count, size_t need);

/* The most blocks that a request of so many tokens is given: it computes its last token
 * itself, and an engine whose tokens are pairs its last pair. */
size_t kvb_hit_blocks_max(size_t tokens, uint32_t block_size, bool is_paired);
