#pragma once

#include "model/stream.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* How much of a prompt's held prefix an engine uses for a request.
 *
 * Each kind of cache group accepts some lengths of a prefix: one of full attention the lengths that
 * it holds from the beginning on; one with a sliding window those whose last `need` blocks it
 * holds, or all of them; one with chunked attention those whose last chunk it holds from its
 * beginning on.  The longest length that all of them accept is used.
 *
 *     window, need 2:        0 1 . . 4 5 . 7      accepts 6 and 2, 1, 0
 *     chunks of 4 blocks:    . . . . 4 5 . .      accepts 6, 5, 4 and 0; 7, 3, 2 and 1 not
 *
 * Where blocks have several sizes, lengths are multiples of all of them.  A group that drops blocks
 * (EAGLE, MTP) accepts a length only if it also holds that many blocks behind it.
 *
 * Source: the lookups of vLLM 0.33 and of SGLang 0.5.23, as recorded in tests/data/probes.
 * Threads: any thread; nothing is kept. */

/* A prompt's blocks of one shape, as one stream holds them. */
struct kvb_usable_prompt {
    size_t count; /* blocks that have a name */
    size_t held;  /* from the beginning on, that all full-attention groups hold */
    /* Whether the groups of this window (its place in the heartbeat) hold block `at`. */
    bool (*has)(const void *context, size_t at, unsigned window);
    const void *context;
};

/* How many blocks may be used, when a request takes `most` at most; SIZE_MAX: any number. */
size_t kvb_usable_blocks(
    const struct kvb_heartbeat *heartbeat, const struct kvb_usable_prompt *prompt, size_t most);

/* How many blocks the sliding-window groups must hold at the end of a usable prefix: the blocks in
 * the window of the next token.  0: none. */
size_t kvb_window_need(uint32_t window_tokens, uint32_t block_size);

/* The most cached blocks that an engine uses for a prompt of this many tokens: it always computes
 * the last token itself, or, if is_paired (EAGLE), the last two. */
size_t kvb_hit_blocks_max(size_t tokens, uint32_t block_size, bool is_paired);
