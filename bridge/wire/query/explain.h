#pragma once

#include "core/buf.h"
#include "core/span.h"
#include "core/status.h"
#include "model/explain.h"
#include "model/query.h"

#include <stddef.h>
#include <stdint.h>

/* The request on P.kv_explain.{worker_id}.{dp_rank} and its answer (proto/README.md, "Explaining a
 * list").
 *
 *     {"from":0,"token_ids":[...],"lora_name":"a","cache_salt":"s"}
 *
 * The prompt is given as in queries of routers: see wire/query/json.h.
 * Threads: any thread. */
struct kvb_explain_request {
    uint64_t from;          /* the first block of the answer; 0 when it is missing */
    struct kvb_query query; /* owned */
};

/* {0} is fine. */
void kvb_explain_request_done(struct kvb_explain_request *request);

/* On KVB_OK the caller owns *out and frees it with kvb_explain_request_done().  detail names the
 * wrong field.
 *
 * KVB_BAD_INPUT  no JSON object, a field missing or wrong, a prompt as text
 * KVB_TOO_LARGE, KVB_NO_MEMORY  as kvb_query_json_decode() */
kvb_status kvb_explain_json_decode(
    kvb_span json, struct kvb_explain_request *out_request, struct kvb_detail *detail);

/* Appends the answer, with as many of its rows as fit max_bytes, at least one; "next" is the first
 * block that is left out.  KVB_TOO_LARGE, KVB_NO_MEMORY of out. */
kvb_status kvb_explain_json_encode(
    const struct kvb_explanation *explanation, const char *bridge_id, size_t max_bytes,
    struct kvb_buf *out);
