#pragma once

#include "core/ref.h"
#include "model/query.h"
#include "model/stream.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* What the aggregators of one router component tell each other, so that they decide from one set
 * of books. */

/* Of the messages.  A message of another version is skipped: its sender keeps books of its own. */
enum { kvb_books_version = 1, kvb_aggregator_id_bytes = 64 };

/* Who sent it.  An id belongs to one process; `start` is drawn at its start, so that two processes
 * with one id are noticed. */
struct kvb_books_sender {
    char id[kvb_aggregator_id_bytes + 1]; /* "" = a router */
    uint64_t start;
};

/* R.kv_routed: a decision. */
struct kvb_shared_decision {
    struct kvb_books_sender sender;
    uint64_t sequence; /* counts the decisions of the sender, from 1 */
    char request_id[kvb_request_id_bytes + 1];
    struct kvb_stream_id stream; /* that was chosen */
    uint64_t isl_blocks;         /* of the prompt */
    uint64_t overlap_blocks;     /* of them held there */
    uint64_t blocks;             /* that the request adds to those in use there */
    uint64_t prefill_blocks;     /* to be computed */
    uint64_t ttl_ms;
    const kvb_block_hash *names; /* of the blocks behind those held: predicted; borrowed */
    size_t name_count;
    kvb_block_hash *storage; /* owned: of the names, once decoded */
};

/* R.kv_finished, R.kv_first_token: of a router, or passed on by an aggregator. */
struct kvb_shared_report {
    struct kvb_books_sender sender;
    char request_id[kvb_request_id_bytes + 1];
};

/* R.aggregator_status: a heartbeat, once a second. */
struct kvb_aggregator_status {
    struct kvb_books_sender sender;
    uint64_t sequence; /* of its newest decision */
    bool is_ready;
    bool is_bye; /* it stops */
    uint64_t requests_in_flight;
    uint64_t predicted_blocks;
};
