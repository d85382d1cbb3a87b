#pragma once

#include "core/span.h"
#include "core/status.h"

#include <stdbool.h>
#include <stdint.h>

/* The body of a request on P.kv_refresh: the streams whose blocks are to be published again.
 *
 *     (nothing)  {}                      all streams of the component
 *     {"worker_id":W}                    all ranks of a worker
 *     {"worker_id":W,"dp_rank":R}        one rank
 *
 * A null counts as a missing field; unknown fields are skipped.
 * Threads: any thread. */
struct kvb_refresh_request {
    bool has_worker_id;
    bool has_rank; /* only with a worker_id */
    uint64_t worker_id;
    uint32_t dp_rank;
};

/* KVB_BAD_INPUT  not such a body; detail says what is expected
 * KVB_TOO_LARGE  more than kvb_max_refresh_request_bytes */
kvb_status kvb_refresh_json_decode(
    kvb_span json, struct kvb_refresh_request *out_request, struct kvb_detail *detail);
