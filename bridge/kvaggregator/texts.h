#pragma once

#include "core/status.h"

struct kvb_aggregator;
struct kvb_pending_query;

/* Queries of text: their tokens are asked of an engine, then they are answered like any other.
 *
 * Threads: the index thread. */

enum kvb_text_step {
    KVB_TEXT_NOT_NEEDED, /* it has tokens or hashes, or no model that we know */
    KVB_TEXT_REQUESTED,  /* the tokenizer owns it, until it comes back through the ring */
    KVB_TEXT_FAILED      /* detail says why: "tokenize_timeout: ..." */
};

/* Chooses engines of the query's model, and has the tokenizer ask them.  Of a text that came back
 * without tokens: says why. */
enum kvb_text_step kvb_texts_request(struct kvb_pending_query *pending);

/* Of a text that came back: makes it a query of its tokens.  Others are left alone. */
void kvb_texts_settle(struct kvb_pending_query *pending);

/* Starts the tokenizer, if the configuration permits networks.  KVB_IO, KVB_NO_MEMORY. */
kvb_status kvb_texts_open(struct kvb_aggregator *aggregator);
