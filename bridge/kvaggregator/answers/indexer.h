#pragma once

#include "core/buf.h"
#include "core/status.h"
#include "kvaggregator/answers/query_context.h"
#include "model/query.h"

#include <stdbool.h>
#include <stddef.h>

/* What sgl-router asks over gRPC (proto/kv_indexer.proto): which workers, by their addresses, hold
 * how many of the prompt's first blocks.
 *
 * The blocks are named as the engine names them, so only streams with hashes = "engine" are
 * matched.  A rank holds the longer of what lies in one piece on the device and on the host; a
 * worker as much as its best rank.  Threads: only the thread that owns the query context. */

/* What an answer leaves out. */
struct kvb_indexer_gaps {
    size_t without_address;  /* ranks that hold something, whose worker's address is not known */
    bool has_several_models; /* and the query names none: nothing is matched */
};

/* Appends a MatchExternalKvPrefixResponse, most blocks first.  It is empty where nobody holds the
 * first block, or the model is not known.
 * KVB_TOO_LARGE, KVB_NO_MEMORY: what was appended is to be thrown away */
kvb_status kvb_answer_indexer(
    struct kvb_query_context *ctx, struct kvb_query *query, struct kvb_buf *out,
    struct kvb_indexer_gaps *out_gaps);
