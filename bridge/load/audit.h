#pragma once

#include "core/status.h"
#include "model/stream_table.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The audit of streams: do engines deliver the cache hits that their streams promise?  A stream is
 * EXACT when every event that its engine published was applied.  Events that the engine never
 * published are not missed by anybody, but the requests show it: the engine computes blocks that
 * the stream lists as held.
 *
 *     decision: stream 7 holds 640 tokens of the prompt     engine: "cached_tokens": 592
 *     promised 640                        -->   loss of this request: 48 / 640 = 0.075
 *
 * The loss of a request is the share of its promise that was not delivered, between 0 and 1.  More
 * than was promised is a loss of 0: blocks may be stored between decision and execution.
 *
 * The test is CUSUM (Page 1954) on bets against the stream, an e-detector (Shin, Ramdas, Rinaldo,
 * "E-detectors", 2023), instead of a likelihood ratio, because losses are no coin tosses:
 *
 *     p0 = honest_loss,  p1 = honest_loss + lie
 *     factor   = 1 + (p1 - p0) / (p0 * (1 - p0)) * (loss - p0)       loss 0: (1 - p1) / (1 - p0)
 *     evidence = max(evidence, 1) * factor                           loss 1: p1 / p0
 *     alarm when evidence >= false_alarm_requests
 *
 * At 0 and 1 the factor is the likelihood ratio of a Bernoulli loss; between them it is linear.
 * Its mean is at most 1 for every distribution with a mean of at most p0.  Therefore:
 *
 *     False alarms: if, given all earlier requests, each request loses p0 or less on average, the
 *     mean number of requests until a false alarm is at least false_alarm_requests, and the
 *     probability of one within n requests is at most n / false_alarm_requests.  Neither the
 *     distribution of the losses nor their independence is assumed.
 *     Detection: tests/unit/load/test_audit.c states and checks how soon.
 *
 * A clear of the stream's list ends its evidence: what was tested is gone.
 *
 *     KEPT --alarm--> BROKEN --cleared--> KEPT
 *
 * Threads: the caller locks.  No clock: now is an argument, monotonic ns.
 * Memory:  200 bytes a stream, for at most max_streams. */
struct kvb_audit;

struct kvb_audit_options {
    size_t max_streams;
    double honest_loss;          /* p0; above 0 */
    double lie;                  /* p1 - p0; above 0; p1 is below 1 */
    double false_alarm_requests; /* above 1 */
    uint64_t hash_key;           /* hash key of the table; random in a daemon */
};

/* On KVB_OK the caller owns *out_audit.
 * KVB_BAD_CONFIG  an option is out of its range   KVB_NO_MEMORY */
kvb_status kvb_audit_new(const struct kvb_audit_options *options, struct kvb_audit **out_audit);

/* NULL is fine. */
void kvb_audit_free(struct kvb_audit *audit);

enum kvb_audit_verdict {
    KVB_AUDIT_KEPT,   /* nothing contradicts the stream */
    KVB_AUDIT_BROKEN, /* its requests were given less than promised */
    KVB_AUDIT_VERDICT_COUNT
};

/* "kept", ...  Never NULL. */
const char *kvb_audit_verdict_name(enum kvb_audit_verdict verdict);

/* So many reports in a row that are short by exactly one block are the sign of an engine that gives
 * a block less than it holds, as vLLM with EAGLE or MTP does: 4, because the alarm comes after 5.
 */
enum { kvb_audit_block_reports = 4 };

/* Tests one request that was executed: what the stream promised, and what the engine says it took
 * from its cache, in tokens.  A promise of 0 tokens tests nothing.  block_tokens: of the stream's
 * blocks on the device; 0: the stream says itself that its engine drops blocks, or that it need
 * not. KVB_TOO_LARGE  max_streams streams are audited already KVB_NO_MEMORY */
kvb_status kvb_audit_add(
    struct kvb_audit *audit, const struct kvb_stream_id *id, uint64_t promised_tokens,
    uint64_t cached_tokens, uint32_t block_tokens, uint64_t now_ns);

/* The stream has cleared its list: earlier requests say nothing about the new one. */
void kvb_audit_cleared(struct kvb_audit *audit, const struct kvb_stream_id *id);

/* Removes streams that had no request for 600 s, except broken ones; a few in each call. */
void kvb_audit_expire(struct kvb_audit *audit, uint64_t now_ns);

struct kvb_audit_stats {
    enum kvb_audit_verdict verdict;
    uint64_t requests;         /* tested */
    uint64_t short_requests;   /* those with a loss */
    uint64_t promised_tokens;  /* of the requests tested */
    uint64_t delivered_tokens; /* of each request at most what was promised */
    uint64_t extra_tokens;     /* delivered beyond the promise */
    uint64_t block_short;      /* the newest requests in a row, each short by exactly one block */
    double evidence;           /* logarithm, as a share of the alarm's: 1 is the alarm */
};

/* What an operator should do about kvb_audit_block_reports; NULL: there were not so many. */
const char *kvb_audit_why(const struct kvb_audit_stats *stats);

/* False: the stream was not audited.  */
bool kvb_audit_find(
    const struct kvb_audit *audit, const struct kvb_stream_id *id,
    struct kvb_audit_stats *out_stats);

/* Audited streams have numbers from 0 to limit - 1.  NULL: the number is not in use.  Borrowed
 * until the next change. */
size_t kvb_audit_limit(const struct kvb_audit *audit);
const struct kvb_stream_id *
kvb_audit_at(const struct kvb_audit *audit, size_t number, enum kvb_audit_verdict *out_verdict);

/* True once for each run of reports that has reached kvb_audit_block_reports. */
bool kvb_audit_take_block_short(struct kvb_audit *audit, size_t number);

/* Of all streams. */
struct kvb_audit_counters {
    uint64_t requests; /* each tested */
    uint64_t short_requests;
    uint64_t promised_tokens;
    uint64_t delivered_tokens;
    uint64_t extra_tokens;
    uint64_t alarms;      /* streams found broken */
    uint64_t block_short; /* times that kvb_audit_block_reports was reached */
    uint64_t returns;     /* broken streams that cleared their lists */
    uint64_t streams;     /* audited now; a gauge, like the next */
    uint64_t broken;
};

void kvb_audit_count(const struct kvb_audit *audit, struct kvb_audit_counters *out_counters);
