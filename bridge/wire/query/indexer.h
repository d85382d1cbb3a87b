#pragma once

#include "core/buf.h"
#include "core/span.h"
#include "core/status.h"
#include "model/query.h"

#include <stddef.h>
#include <stdint.h>

/* Reads and writes the two messages of sgl-router's external index (proto/kv_indexer.proto) without
 * protobuf-c.  The request for a long prompt has a million hashes, and protobuf-c allocates 40
 * bytes for each hash that is not packed.
 *
 * Threads: any thread. */

/* Reads a MatchExternalKvPrefixRequest as a query of the first max_blocks block hashes.  Hashes may
 * be packed, or each be a field.  Unknown fields are skipped.  On KVB_OK the caller frees
 * *out_query with kvb_query_done().
 *
 * KVB_BAD_INPUT  not such a message, or one without hashes; detail says what is wrong
 * KVB_TOO_LARGE  above kvb_max_indexer_bytes   KVB_NO_MEMORY */
kvb_status kvb_indexer_request_decode(
    kvb_span message, struct kvb_query *out_query, struct kvb_detail *detail);

/* A worker that holds the first blocks of the prompt. */
struct kvb_indexer_match {
    const char *address; /* borrowed; at most kvb_worker_address_bytes */
    uint64_t worker_id;
    uint32_t dp_rank;
    uint32_t blocks;
};

/* Appends a MatchExternalKvPrefixResponse: the matches, best first, the blocks of the best match,
 * and how many of the `asked` blocks were looked up.  Without matches the message is empty.
 * KVB_TOO_LARGE, KVB_NO_MEMORY: the caller discards what was appended. */
kvb_status kvb_indexer_response_encode(
    const struct kvb_indexer_match *matches, size_t count, size_t asked, struct kvb_buf *out);
