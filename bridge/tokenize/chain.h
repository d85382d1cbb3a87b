#pragma once

#include "core/id_table.h"
#include "core/span.h"
#include "core/status.h"

#include <stddef.h>
#include <stdint.h>

/* Which known texts may be the beginning of this one?
 *
 * A conversation grows by whole messages, a prompt by bytes.  The body of a request for tokens has
 * what grows last, so an earlier turn without the bytes that close it is the beginning of a later
 * one, byte for byte:
 *
 *     earlier   {"model":"m","tools":[..],"messages":[{one},{two}
 *     now       {"model":"m","tools":[..],"messages":[{one},{two},{three}]}
 *     places                                             ^     ^       ^
 *
 * At each place where an earlier text may end, the hash of all bytes before it is made from the
 * hash at the place before, so all of them cost one reading.  A text is filed under the hash at its
 * last place.  Places of a chat are the ends of its messages; those of a prompt are multiples of
 * kvb_text_chunk_bytes, so several prompts may be filed under one hash, and a shorter prompt is not
 * filed.
 *
 * What is found are candidates: 32 bits of a hash agree.  The caller compares the bytes.
 *
 * Threads: the caller locks.  Memory: 8 bytes a cell, core/id_table.h. */
struct kvb_text_chain {
    struct kvb_id_table table;
    uint64_t seed; /* random: requesters choose the texts */
};

enum { kvb_text_chunk_bytes = 256, kvb_text_candidates = 8 };

/* The body of a request for the tokens of a text; all borrowed. */
struct kvb_text_view {
    kvb_span body;        /* with "messages" or "prompt" as its last member */
    const uint32_t *ends; /* where each message ends in the body, ascending; NULL: a prompt */
    size_t end_count;
};

/* How many bytes of the body come before those that close it: "]}" and the white space before
 * them, or the prompt's quote and "}". */
size_t kvb_text_open_bytes(kvb_span body);

void kvb_text_chain_done(struct kvb_text_chain *chain);

/* Files the text under *out_key, by which it is removed again.
 * KVB_NOT_FOUND  it has no place: not filed
 * KVB_NO_MEMORY  not filed */
kvb_status kvb_text_chain_put(
    struct kvb_text_chain *chain, const struct kvb_text_view *text, uint32_t id, uint32_t *out_key);
void kvb_text_chain_remove(struct kvb_text_chain *chain, uint32_t key, uint32_t id);

/* Writes the ids of texts that may be the beginning, those with the most bytes first, and returns
 * how many there are.  If there are more, those with the fewest are left out. */
size_t kvb_text_chain_find(
    const struct kvb_text_chain *chain, const struct kvb_text_view *text,
    uint32_t out_ids[kvb_text_candidates]);
