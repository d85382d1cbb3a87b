#pragma once

#include "core/status.h"

#include <stdbool.h>

struct kvb_aggregator;
struct kvb_pending_query;

/* Queries of text: their tokens, as many as are known in time, are asked of the tokenizer; then
 * they are answered like any other.
 *
 * Threads: who has the index. */

/* Chooses engines of the query's model, and has the tokenizer ask them.  True: the tokenizer owns
 * it, until it comes back by kvb_queries_resume().  False: it has tokens or hashes, maybe none
 * because nobody could be asked, or no model that we know. */
bool kvb_texts_request(struct kvb_pending_query *pending);

/* Starts the tokenizer, if the configuration permits networks.  KVB_IO, KVB_NO_MEMORY. */
kvb_status kvb_texts_open(struct kvb_aggregator *aggregator);
