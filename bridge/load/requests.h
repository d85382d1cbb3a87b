#pragma once

#include "core/ref.h"
#include "core/status.h"
#include "model/stream_table.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Requests in flight: what routed requests cost the streams to which they were sent, from the
 * decision until a request is reported as finished or its TTL is over.
 *
 *     decision      first token           finished, or ttl_ms over
 *        |  prefill  |       decode            |
 *        |-- blocks to compute --|             |
 *        |-- all blocks of the prompt ---------|
 *
 * The blocks to compute count until the earliest of these:
 *
 *     its first token, if routers report first tokens (one was reported in the last 60 s)
 *     otherwise the stream's next load report, which contains these blocks
 *     60 s after the decision
 *
 * The blocks of the prompt count until the stream's next load report, which contains them.  If a
 * stream reports no load, they count until the request is finished.  What the newest load report
 * contains of a request that was finished since is known too (ended_blocks): the blocks are held,
 * but no longer in use.
 *
 * A decision whose request id is already in flight replaces the earlier one, because routers repeat
 * a request that was not answered in time.  Messages of two senders may arrive in either order, so
 * a decision may arrive after its request was finished.  It is dropped: up to 256 ids that were
 * finished while unknown are remembered for 5 s.
 *
 * A request also carries a promise: how much of its prompt the list of its stream said to be held.
 * A request whose promised blocks were removed before its end, as the events say, is not held
 * against the stream: its deepest promised block is looked up in each removal.  Where the name of
 * that block is not known, any removal counts.
 *
 * prefill_blocks_per_s is learnt from first tokens, under the assumption that a stream computes
 * prompts first in, first out: a request was computed from its decision, or from the previous first
 * token if that was later, until its own first token.
 *
 *     rate = sum(w * blocks computed) / sum(w * seconds of computing)
 *            w: 1 for the newest first token, 7/8 of that for each older one
 *
 * It is an exponentially weighted ratio of sums, so that the requests of one batch, whose first
 * tokens arrive together, give the rate of the batch.
 *
 * Threads: the caller locks.  No clock: now is an argument, monotonic ns.
 * Memory:  240 bytes a request, 300 a stream with requests in the last 10 minutes; at most
 *          max_requests and max_streams.  When max_requests are in flight, the one
 *          that expires first is dropped. */
struct kvb_requests;

struct kvb_requests_options {
    size_t max_requests; /* 1 .. kvb_max_requests_in_flight */
    size_t max_streams;
    uint64_t hash_key; /* hash key of the tables; random in a daemon */
};

/* On KVB_OK the caller owns *out_requests.  KVB_NO_MEMORY. */
kvb_status
kvb_requests_new(const struct kvb_requests_options *options, struct kvb_requests **out_requests);

/* NULL is fine. */
void kvb_requests_free(struct kvb_requests *requests);

/* How much of a prompt is held by the stream to which the request was routed. */
struct kvb_promise {
    uint64_t tokens;      /* 0: nothing is promised */
    kvb_block_hash block; /* name of the deepest block of these tokens; 0: unknown */
    uint64_t claim;       /* of the stream's follower at the decision */
};

struct kvb_request_decision {
    const char *request_id; /* borrowed, like id; must pass kvb_request_id_is_valid() */
    const struct kvb_stream_id *id;
    uint64_t blocks;         /* blocks of the prompt */
    uint64_t prefill_blocks; /* how many of them must be computed */
    uint64_t ttl_ms;         /* 1 or above */
    struct kvb_promise promise;
    bool is_shared; /* another aggregator decided; false: this one, just now */
};

/* KVB_AGAIN      the request of a shared decision is already finished: the decision is dropped
 * KVB_TOO_LARGE  max_streams streams have requests in flight already
 * KVB_NO_MEMORY */
kvb_status kvb_requests_add(
    struct kvb_requests *requests, const struct kvb_request_decision *decision, uint64_t now_ns);

/* Reports the first token of a request; a second report changes nothing.
 * KVB_NOT_FOUND  no such request is in flight; it is counted */
kvb_status
kvb_requests_first_token(struct kvb_requests *requests, const char *request_id, uint64_t now_ns);

/* Ends a request: its blocks are subtracted from the sums.  KVB_NOT_FOUND as above. */
kvb_status
kvb_requests_finish(struct kvb_requests *requests, const char *request_id, uint64_t now_ns);

enum kvb_promise_state {
    KVB_PROMISE_NONE,    /* nothing was promised */
    KVB_PROMISE_OPEN,    /* still to be kept */
    KVB_PROMISE_EVICTED, /* its deepest block was removed after the decision; or, where that is
                            unknown, any block of the stream */
};

struct kvb_request_promise {
    struct kvb_promise promise;
    struct kvb_stream_id id;
    enum kvb_promise_state state;
};

/* The promise of a request in flight.  KVB_NOT_FOUND. */
kvb_status kvb_requests_promise(
    const struct kvb_requests *requests, const char *request_id,
    struct kvb_request_promise *out_promise);

/* The stream has removed these blocks. */
void kvb_requests_blocks_removed(
    struct kvb_requests *requests, const struct kvb_stream_id *id, const kvb_block_hash *blocks,
    size_t count);

/* Notes a load report of the stream. */
void kvb_requests_load_reported(
    struct kvb_requests *requests, const struct kvb_stream_id *id, uint64_t now_ns);

/* Ends at most `max` requests and periods that are over.  True: there are more. */
bool kvb_requests_expire(struct kvb_requests *requests, uint64_t now_ns, size_t max);

/* What the requests of one stream cost it. */
struct kvb_request_sums {
    size_t in_flight;          /* requests in flight */
    uint64_t routed_requests;  /* since the newest load report */
    uint64_t routed_blocks;    /* since the newest load report */
    uint64_t ended_requests;   /* in the newest load report, but finished since */
    uint64_t ended_blocks;     /* of these */
    uint64_t in_flight_blocks; /* of all requests in flight */
    uint64_t pending_prefill_blocks;
    double prefill_blocks_per_s; /* 0: unknown */
};

/* has_load: the stream reports a load.  All values are 0 if nothing was routed to it. */
void kvb_requests_sums(
    const struct kvb_requests *requests, const struct kvb_stream_key *key, bool has_load,
    uint64_t now_ns, struct kvb_request_sums *out_sums);

struct kvb_request_counters {
    uint64_t in_flight; /* a gauge; the fields from here on are counters */
    uint64_t repeated;  /* decisions that replaced one of the same id */
    uint64_t finished;
    uint64_t finished_unknown; /* reports of requests that were not in flight */
    uint64_t first_tokens;
    uint64_t first_tokens_unknown;
    uint64_t expired;        /* their TTL was over before a report of their end */
    uint64_t evicted;        /* dropped because max_requests was reached */
    uint64_t finished_early; /* shared decisions that arrived after the end of their request */
};

void kvb_requests_count(
    const struct kvb_requests *requests, struct kvb_request_counters *out_counters);
