#pragma once

#include "core/span.h"
#include "core/status.h"
#include "model/query.h"

/* The body of a query to the aggregator, HTTP and NATS alike:
 *
 *     {"token_ids":[...]                     or "block_hashes": tokens_hash values,
 *                                            or "seq_hashes": rolling hashes
 *                                            or "text", or "messages": see text.h
 *      ,"model"|"model_name":"m", "lora_name", "cache_salt", "tenant_id", "instance_id",
 *      "request_id", "ttl_ms", and the fields of selection.h, which select workers}
 *
 * Hashes may be u64, i64 (cast) or decimal strings.  Unknown fields are ignored.  On KVB_OK the
 * caller owns *out_query and frees it with kvb_query_done().
 *
 * KVB_BAD_INPUT  not JSON at all                                  (HTTP 400)
 * KVB_NOT_FOUND  JSON, but a field is missing or wrong; detail names it
 *                ("token_ids[3]: expected an integer from 0 to 4294967295, got -1") (HTTP 422)
 * KVB_TOO_LARGE  more tokens or hashes than kvb_max_query_tokens   (HTTP 413)
 * KVB_NO_MEMORY */
kvb_status
kvb_query_json_decode(kvb_span json, struct kvb_query *out_query, struct kvb_detail *detail);

/* A router's report about a request: {"request_id":"...","cached_tokens":n}, the body of
 * POST /finished, and of POST /first_token, which ignores cached_tokens.  Errors as above. */
kvb_status
kvb_request_json_decode(kvb_span json, struct kvb_query *out_query, struct kvb_detail *detail);
