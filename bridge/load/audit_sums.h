#pragma once

#include "core/status.h"
#include "load/audit.h"
#include "load/requests.h"
#include "model/load.h"

#include <stdbool.h>
#include <stdint.h>

/* Promised and delivered tokens in sum: the decisions for a stream against the counters on its
 * engine's metrics page, for routers that report no cached tokens of single requests.
 *
 *     decisions       a  b  c        d  e      f         tokens of their prompts, and promises
 *     page            ^       ^            ^             prompt tokens looked up, and found cached
 *     period          |--abc--|----de------|
 *
 * A page is balanced when the engine has looked up exactly as many tokens since the last balanced
 * page as the decisions since then have: a, b and c were executed, and nothing else.  Then their
 * promises are compared with what was found cached.  Decisions of the last 250 ms before the page
 * may be on their way to the engine, so a page may be balanced without the newest of them.
 *
 *     the page shows                            then
 *     ----------------------------------------  ------------------------------------------------
 *     as many tokens as decisions have          the period ends, and waits to be confirmed
 *     fewer: requests wait or are on their way  the next page
 *     more: the engine executes requests that   nothing is known; all periods that wait are
 *     no decision was made for                  dropped, and a new one begins with this page
 *     less than the page before: a restart      the same
 *     fewer for 60 s: a request never arrived   the same
 *
 * A request that passed us by hides behind one of ours that waits, if both have the same length. It
 * shows as soon as no request waits, because it is there for good.  So a period is tested only when
 * two more pages are balanced.
 *
 * Where other requests reach the engine all the time, no page is balanced and nothing is tested.
 *
 * A comparison may begin while decided requests wait in the engine.  They are executed after that
 * page, and hide behind later ones of the same length for as long as some request waits.  So the
 * decisions before it are kept, and of all sequences that have the lengths of what was executed,
 * the one with the smallest promise is tested.  A decision waits for 60 s at most, and where the
 * page says that no request waits, it is on its way for 250 ms at most.  Nothing begins while
 * requests that are not known may wait: decided before the first page, without a length, or
 * more than 62.
 *
 * A promise that the stream itself takes back before the page is left out, as in answers/audit.c.
 *
 * Threads: the caller locks.  No clock: now is an argument, monotonic ns.
 * Memory:  400 bytes a stream whose engine has such counters, and 40 a decision: 63 and those since
 *          its last balanced page, at most 64. */
struct kvb_audit_sums;

/* On KVB_OK the caller owns *out_sums.  KVB_NO_MEMORY. */
kvb_status
kvb_audit_sums_new(size_t max_streams, uint64_t hash_key, struct kvb_audit_sums **out_sums);

/* NULL is fine. */
void kvb_audit_sums_free(struct kvb_audit_sums *sums);

/* A request was routed to the stream.  prompt_tokens 0: unknown.  Streams without a page are passed
 * over. */
void kvb_audit_sums_decided(
    struct kvb_audit_sums *sums, const struct kvb_stream_id *id, uint64_t prompt_tokens,
    const struct kvb_promise *promise, uint64_t now_ns);

/* The stream has removed these blocks: what they were promised for is left out. */
void kvb_audit_sums_removed(
    struct kvb_audit_sums *sums, const struct kvb_stream_id *id, const kvb_block_hash *blocks,
    size_t count);

/* The stream has cleared its list: what was promised before says nothing about the new one. */
void kvb_audit_sums_cleared(struct kvb_audit_sums *sums, const struct kvb_stream_id *id);

struct kvb_audit_page {
    struct kvb_prefix_counters counters;
    uint64_t asked_ns;   /* when it was requested */
    bool is_queue_empty; /* no request waits in the engine */
    uint64_t claim;      /* of the stream's follower; promises under another claim are left out */
};

/* Takes a metrics page.
 * KVB_OK         *out_period is confirmed, and has a promise
 * KVB_AGAIN      there is nothing to test
 * KVB_TOO_LARGE  max_streams streams have pages already   KVB_NO_MEMORY */
kvb_status kvb_audit_sums_page(
    struct kvb_audit_sums *sums, const struct kvb_stream_id *id, const struct kvb_audit_page *page,
    uint64_t now_ns, struct kvb_audit_period *out_period);

/* Removes streams that had no page for 60 s; a few in each call. */
void kvb_audit_sums_expire(struct kvb_audit_sums *sums, uint64_t now_ns);

/* Why the decisions of a stream up to now cannot be compared. */
enum kvb_audit_sums_reset {
    KVB_SUMS_OTHER_REQUESTS, /* the engine executed more than was routed */
    KVB_SUMS_NOT_EXECUTED,   /* a decision is older than 60 s, and no page was balanced */
    KVB_SUMS_TOO_MANY,       /* 64 decisions without a balanced page */
    KVB_SUMS_NO_LENGTH,      /* the prompt's tokens are unknown */
    KVB_SUMS_RESTARTED,      /* the engine's counters are smaller than before */
    KVB_SUMS_RESET_COUNT
};

struct kvb_audit_sums_counters {
    uint64_t resets[KVB_SUMS_RESET_COUNT];
    uint64_t balanced; /* pages */
    uint64_t streams;  /* a gauge */
};

void kvb_audit_sums_count(
    const struct kvb_audit_sums *sums, struct kvb_audit_sums_counters *out_counters);
