#pragma once

#include "core/ref.h"
#include "model/query.h"
#include "model/stream.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The messages with which the aggregators of one router component share their books: the requests
 * in flight and the predicted blocks. */

/* The version of the messages.  A message of another version is skipped: its sender keeps separate
 * books. */
enum { kvb_books_version = 1, kvb_aggregator_id_bytes = 64 };

/* The sender of a message.  Each process has its own id.  `start` is a random number from its
 * start, so that two processes with the same id are detected. */
struct kvb_books_sender {
    char id[kvb_aggregator_id_bytes + 1]; /* "": the sender is a router */
    uint64_t start;
};

/* R.kv_routed: one routing decision. */
struct kvb_shared_decision {
    struct kvb_books_sender sender;
    uint64_t sequence; /* counts the decisions of the sender, from 1 */
    char request_id[kvb_request_id_bytes + 1];
    struct kvb_stream_id stream; /* the chosen stream */
    uint64_t isl_blocks;         /* blocks of the prompt */
    uint64_t overlap_blocks;     /* blocks of the prompt that the stream holds */
    uint64_t blocks;             /* blocks in use that the request adds */
    uint64_t prefill_blocks;     /* blocks to be computed */
    uint64_t ttl_ms;
    uint64_t promised_tokens;      /* cached tokens that the engine should report; 0: unknown */
    kvb_block_hash promised_block; /* the deepest block of these */
    const kvb_block_hash *names;   /* the predicted blocks: those after the held ones; borrowed */
    size_t name_count;
    kvb_block_hash *storage; /* owned; memory of `names` in a decoded message, else NULL */
};

/* R.kv_finished, R.kv_first_token: from a router, or passed on by an aggregator. */
struct kvb_shared_report {
    struct kvb_books_sender sender;
    char request_id[kvb_request_id_bytes + 1];
    bool has_cached_tokens;
    uint64_t cached_tokens; /* tokens of the prompt that the engine took from its cache */
};

/* R.aggregator_status: a heartbeat, once a second. */
struct kvb_aggregator_status {
    struct kvb_books_sender sender;
    uint64_t sequence; /* number of its newest decision */
    bool is_ready;
    bool is_bye; /* the aggregator is stopping */
    uint64_t requests_in_flight;
    uint64_t predicted_blocks;
};
