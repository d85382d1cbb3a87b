#pragma once

#include "core/span.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Finds in an engine's answer how many tokens of the prompt it had cached, as the answer's chunks
 * pass:
 *
 *     "usage":{"prompt_tokens":48,"prompt_tokens_details":{"cached_tokens":32}, ...
 *                                                          ^^^^^^^^^^^^^^^^^
 *
 * The last such number counts, if its name begins within the last kvb_max_gateway_usage_bytes:
 * usage stands at the end of an answer.  In generated text a quote is written \" and matches
 * nothing. The name and the number may be cut anywhere by the ends of chunks; nothing is kept of
 * the answer.  Of no use with a content-encoding.
 *
 * The bytes that matched so far are the state:
 *
 *     matched   0 .. name_len - 1      the next byte that is expected
 *               name_len               blanks, then digits
 *
 * Threads: the caller locks. */

/* Starts as {0}.  Read it by kvb_usage_cached_tokens(). */
struct kvb_usage_finder {
    uint64_t at;       /* bytes so far */
    uint64_t found;    /* the last number */
    uint64_t found_at; /* where its name begins */
    uint64_t number;   /* of the digits so far */
    uint64_t name_at;  /* where their name begins */
    unsigned matched;
    unsigned digits;
    bool has_found;
    bool was_backslash; /* the byte before */
};

void kvb_usage_feed(struct kvb_usage_finder *finder, kvb_span chunk);

/* The answer is complete.  False: it says no number. */
bool kvb_usage_cached_tokens(const struct kvb_usage_finder *finder, uint64_t *out_tokens);
