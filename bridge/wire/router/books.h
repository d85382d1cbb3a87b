#pragma once

#include "core/buf.h"
#include "core/span.h"
#include "core/status.h"
#include "model/books.h"

/* The JSON of the books that aggregators share (proto/asking.md, "One set of books"):
 *
 *     R.kv_routed {"version":1,"aggregator":"...","start":n,"sequence":n,"request_id":"...",
 *                           "namespace","component","worker_id","dp_rank",
 *                           "isl_blocks","overlap_blocks","blocks","prefill_blocks","ttl_ms",
 *                           "promised_tokens":n,"promised_block":"16 hex digits",
 *                           "first_hash","last_hash","names":"16 hex digits a block"}
 *     R.kv_finished,       {"request_id":"..."} of a router, and "cached_tokens":n in
 *     R.kv_first_token     kv_finished; with "version", "aggregator" and "start" where an
 *                          aggregator passes it on
 *     R.aggregator_status  {"version":1,"aggregator":"...","start":n,"sequence":n,"ready":b,
 *                           "bye":b,"requests_in_flight":n,"predicted_blocks":n}
 *
 * Names are block hashes, 16 hexadecimal digits each.  As JSON numbers they would take up to 21
 * bytes with their commas, and readers in languages without 64-bit integers would round them.
 *
 * Encoding: KVB_TOO_LARGE, KVB_NO_MEMORY.  Decoding, with *out untouched on failure:
 * KVB_NOT_FOUND  another version of the books
 * KVB_BAD_INPUT  not JSON, or a field is missing or wrong
 * KVB_TOO_LARGE  above a limit      KVB_NO_MEMORY
 * Threads: any thread. */
kvb_status
kvb_books_decision_encode(const struct kvb_shared_decision *decision, struct kvb_buf *out);

/* On KVB_OK the caller frees *out_decision with kvb_shared_decision_done(). */
kvb_status kvb_books_decision_decode(kvb_span json, struct kvb_shared_decision *out_decision);

/* {0} is fine. */
void kvb_shared_decision_done(struct kvb_shared_decision *decision);

kvb_status kvb_books_report_encode(const struct kvb_shared_report *report, struct kvb_buf *out);
kvb_status kvb_books_report_decode(kvb_span json, struct kvb_shared_report *out_report);

kvb_status kvb_books_status_encode(const struct kvb_aggregator_status *status, struct kvb_buf *out);
kvb_status kvb_books_status_decode(kvb_span json, struct kvb_aggregator_status *out_status);
