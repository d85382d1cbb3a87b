#pragma once

#include "core/status.h"
#include "model/stream_table.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Requests in flight: what the routed requests cost the streams that they were sent to, from the
 * decision until somebody says that a request is finished, or its time is over.
 *
 *     decision      first token           finished, or ttl_ms over
 *        |  prefill  |       decode            |
 *        |-- blocks to compute --|             |
 *        |-- all blocks of the prompt ---------|
 *
 * The blocks to compute of a request count until the first of these:
 *
 *     its first token, where routers report first tokens: one was reported in the last 60 s
 *     the stream's next load report, where they do not: the engine counts the blocks itself then
 *     60 s after the decision
 *
 * The blocks of the prompt count until the stream's next load report, which contains them.  Where
 * a stream reports no load they count until the request is finished.
 *
 * A request id that is in flight already replaces the earlier decision, because routers repeat a
 * request that was not answered in time.  A decision that arrives after its request was finished
 * is dropped: messages of two senders may change places, so ids that were finished while unknown
 * are remembered for 5 s (256 of them).
 *
 * prefill_blocks_per_s is learnt from first tokens.  The queue of a stream is taken for first in,
 * first out: a request was computed from its decision, or from the first token before it where
 * that was later, until its own first token.
 *
 *     rate = sum(w * blocks computed) / sum(w * seconds of that)    w: 7/8 for each first token
 * since
 *
 * It is a ratio of sums, so that requests of one batch, whose first tokens come together, give
 * the rate of the batch.
 *
 * Threads: the caller locks.  No clock: now is an argument, monotonic ns.
 * Memory:  200 bytes a request, 300 a stream with requests in the last 10 minutes; at most
 *          max_requests and max_streams.  When max_requests are in flight, the one whose time is
 *          over first leaves. */
struct kvb_requests;

struct kvb_requests_options {
    size_t max_requests; /* 1 .. kvb_max_requests_in_flight */
    size_t max_streams;
    uint64_t hash_key; /* of the tables of ids and streams: random in a daemon */
};

/* On KVB_OK the caller owns *out_requests.  KVB_NO_MEMORY. */
kvb_status
kvb_requests_new(const struct kvb_requests_options *options, struct kvb_requests **out_requests);

/* NULL is fine. */
void kvb_requests_free(struct kvb_requests *requests);

struct kvb_request_decision {
    const char *request_id; /* borrowed, like id; kvb_request_id_is_valid() */
    const struct kvb_stream_id *id;
    uint64_t blocks;         /* of the prompt */
    uint64_t prefill_blocks; /* of them to be computed */
    uint64_t ttl_ms;         /* 1 or above */
    bool is_shared;          /* another aggregator decided; else this one just now */
};

/* KVB_AGAIN      a shared decision whose request is finished already: dropped
 * KVB_TOO_LARGE  requests of max_streams streams are in flight
 * KVB_NO_MEMORY */
kvb_status kvb_requests_add(
    struct kvb_requests *requests, const struct kvb_request_decision *decision, uint64_t now_ns);

/* The request's first token came; a second report of it changes nothing.
 * KVB_NOT_FOUND  no such request is in flight: counted */
kvb_status
kvb_requests_first_token(struct kvb_requests *requests, const char *request_id, uint64_t now_ns);

/* The request is over: its blocks leave the sums.  KVB_NOT_FOUND as above. */
kvb_status
kvb_requests_finish(struct kvb_requests *requests, const char *request_id, uint64_t now_ns);

/* The stream reported its load. */
void kvb_requests_load_reported(
    struct kvb_requests *requests, const struct kvb_stream_id *id, uint64_t now_ns);

/* Ends what is over by now, at most `max` of it.  True: more is over. */
bool kvb_requests_expire(struct kvb_requests *requests, uint64_t now_ns, size_t max);

/* What the requests of one stream cost it. */
struct kvb_request_sums {
    size_t in_flight;          /* requests */
    uint64_t routed_requests;  /* since the newest load report */
    uint64_t routed_blocks;    /* since the newest load report */
    uint64_t in_flight_blocks; /* of all requests in flight */
    uint64_t pending_prefill_blocks;
    double prefill_blocks_per_s; /* 0: unknown */
};

/* has_load: the stream reports a load.  All 0 where nothing was routed. */
void kvb_requests_sums(
    const struct kvb_requests *requests, const struct kvb_stream_key *key, bool has_load,
    uint64_t now_ns, struct kvb_request_sums *out_sums);

struct kvb_request_counters {
    uint64_t in_flight; /* gauge; counters from here on */
    uint64_t repeated;  /* decisions that replaced one of the same id */
    uint64_t finished;
    uint64_t finished_unknown; /* reports of requests that were not in flight */
    uint64_t first_tokens;
    uint64_t first_tokens_unknown;
    uint64_t expired;        /* nobody said that they were finished */
    uint64_t evicted;        /* left for want of room */
    uint64_t finished_early; /* shared decisions that came after the end of their request */
};

void kvb_requests_count(
    const struct kvb_requests *requests, struct kvb_request_counters *out_counters);
