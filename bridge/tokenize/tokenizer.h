#pragma once

#include "core/buf.h"
#include "core/metric.h"
#include "core/status.h"
#include "model/worker_facts.h"

#include <stddef.h>
#include <stdint.h>

/* Asks engines for the tokens of texts: POST {url}/tokenize.
 *
 *     any thread                       control thread
 *       submit(order) ---ring--->        cache ------------------------------------> done(tokens)
 *                                          | not there
 *                                        the same text is under way: the order waits for it
 *                                          | no
 *                                        engine 0 ---- 200 --------> cache --------> done(tokens)
 *                                          | failed, or half of the deadline is over
 *                                        engine 1, once
 *
 * An order ends at its deadline, whatever the engines do.  An answer that comes later, up to
 * kvb_tokenize_late_ms, still goes into the cache, so that a text which takes longer than the
 * deadline is found when it is asked again.  An engine that failed, or took more than half of the
 * deadline, is asked second for kvb_tokenize_cooldown_ms; one that refused a text (400, 413, 422)
 * is not, because the next text may do.  After kvb_tokenize_rest_failures of them in a row it is
 * not asked at all during that time: orders that no other engine can take are refused at once, so
 * their callers do not wait.
 *
 * Only addresses in `networks` are connected to, no redirect is followed, and an answer has a
 * ceiling.  Neither texts nor tokens are logged.
 *
 * Threads: a job of the control thread; kvb_tokenizer_submit(): any thread.
 * Memory:  the cache; the bodies of orders; answers that arrive, kvb_max_tokenize_held_bytes. */
struct kvb_tokenizer;
struct kvb_control;
struct kvb_networks;
struct kvb_log;

enum {
    kvb_tokenize_late_ms = 1000,
    kvb_tokenize_cooldown_ms = 1000,
    kvb_tokenize_urls = 2,
    kvb_tokenize_rest_failures = 16
};

enum kvb_tokenize_outcome {
    KVB_TOKENIZE_OK,
    KVB_TOKENIZE_OFF,         /* this aggregator may ask no engine */
    KVB_TOKENIZE_NO_ENGINE,   /* no worker of the model says where it can be asked */
    KVB_TOKENIZE_BUSY,        /* too many wait, or too much memory is in use */
    KVB_TOKENIZE_TIMEOUT,     /* no answer within the deadline */
    KVB_TOKENIZE_UNAVAILABLE, /* not connected: nobody listens, the address is not allowed, or the
                                 engine rests */
    KVB_TOKENIZE_REFUSED,     /* another status than 200; redirects too */
    KVB_TOKENIZE_INVALID,     /* the answer has no tokens, or is too large */
    KVB_TOKENIZE_OUTCOME_COUNT
};

/* "tokenize_timeout", ...: the beginning of errors; labels have the rest.  Never NULL. */
const char *kvb_tokenize_outcome_name(enum kvb_tokenize_outcome outcome);

/* A text whose tokens are wanted.  The owner keeps it unchanged from submit() to done(), except
 * that the tokenizer may take the body's memory. */
struct kvb_tokenize_order {
    struct kvb_buf body; /* owned: of POST /tokenize, see wire/query/text.h */
    char urls[kvb_tokenize_urls][kvb_worker_address_bytes + 1]; /* the better first; "": none */
    void *owner;                                                /* the owner's, unused here */
    /* the tokenizer's own */
    uint64_t deadline_ns;
    struct kvb_tokenize_order *next;
};

struct kvb_tokenize_result {
    enum kvb_tokenize_outcome outcome;
    unsigned code;          /* of KVB_TOKENIZE_REFUSED */
    const uint32_t *tokens; /* borrowed for the call, only when OK */
    size_t count;
};

/* Rows for a daemon's table of metrics; one block, in this order. */
/* clang-format off */
#define KVB_TOKENIZE_METRICS(X) \
    X(tokenize_cache, COUNTER, "kvb_tokenize_texts_total", "source=\"cache\"", "Queries of text whose tokens were found, by source: cache, an engine, or joined = an engine that was being asked for the same text. Few from the cache: raise tokenize.cache_bytes") \
    X(tokenize_engine, COUNTER, "kvb_tokenize_texts_total", "source=\"engine\"", "Queries of text whose tokens were found, by source: cache, an engine, or joined = an engine that was being asked for the same text. Few from the cache: raise tokenize.cache_bytes") \
    X(tokenize_joined, COUNTER, "kvb_tokenize_texts_total", "source=\"joined\"", "Queries of text whose tokens were found, by source: cache, an engine, or joined = an engine that was being asked for the same text. Few from the cache: raise tokenize.cache_bytes") \
    X(tokenize_off, COUNTER, "kvb_tokenize_failures_total", "reason=\"off\"", "Queries of text answered with 503, by reason. A rise of timeout or unavailable means that engines are overloaded, away, or not in tokenize.networks") \
    X(tokenize_no_engine, COUNTER, "kvb_tokenize_failures_total", "reason=\"no_engine\"", "Queries of text answered with 503, by reason. A rise of timeout or unavailable means that engines are overloaded, away, or not in tokenize.networks") \
    X(tokenize_busy, COUNTER, "kvb_tokenize_failures_total", "reason=\"busy\"", "Queries of text answered with 503, by reason. A rise of timeout or unavailable means that engines are overloaded, away, or not in tokenize.networks") \
    X(tokenize_timeout, COUNTER, "kvb_tokenize_failures_total", "reason=\"timeout\"", "Queries of text answered with 503, by reason. A rise of timeout or unavailable means that engines are overloaded, away, or not in tokenize.networks") \
    X(tokenize_unavailable, COUNTER, "kvb_tokenize_failures_total", "reason=\"unavailable\"", "Queries of text answered with 503, by reason. A rise of timeout or unavailable means that engines are overloaded, away, or not in tokenize.networks") \
    X(tokenize_refused, COUNTER, "kvb_tokenize_failures_total", "reason=\"refused\"", "Queries of text answered with 503, by reason. A rise of timeout or unavailable means that engines are overloaded, away, or not in tokenize.networks") \
    X(tokenize_invalid, COUNTER, "kvb_tokenize_failures_total", "reason=\"invalid\"", "Queries of text answered with 503, by reason. A rise of timeout or unavailable means that engines are overloaded, away, or not in tokenize.networks") \
    X(tokenize_requests, COUNTER, "kvb_tokenize_requests_total", "", "Requests to engines for the tokens of a text. More than kvb_tokenize_texts_total of source engine: engines fail, or answer late") \
    X(tokenize_duration, HISTOGRAM, "kvb_tokenize_duration_seconds", "", "Seconds until an engine gave the tokens of a text. Above half of tokenize.deadline_ms a second engine is asked") \
    X(tokenize_waiting, GAUGE, "kvb_tokenize_waiting", "", "Queries of text that wait for an engine; at most 1024") \
    X(tokenize_cache_bytes, GAUGE, "kvb_tokenize_cache_bytes", "", "Memory of the cache of tokens, in bytes; at most tokenize.cache_bytes") \
    X(tokenize_cache_evicted, COUNTER, "kvb_tokenize_cache_evicted_total", "", "Texts removed from the cache to make room for others. A steady rise means that tokenize.cache_bytes is small")
/* clang-format on */

struct kvb_tokenizer_options {
    struct kvb_control *control;         /* borrowed; its thread runs */
    uint32_t deadline_ms;                /* of an order, from submit() on */
    uint64_t cache_bytes;                /* 0: no cache */
    uint64_t cache_age_ns;               /* an answer is not used for longer */
    uint64_t seed;                       /* random */
    const struct kvb_networks *networks; /* borrowed: permitted addresses */
    struct kvb_log *log;                 /* borrowed; may be NULL */
    struct kvb_metrics *metrics;         /* borrowed, with KVB_TOKENIZE_METRICS ... */
    size_t first_metric;                 /* ... from here on */
    /* Called once for each order, on the control thread. */
    void (*done)(
        void *context, struct kvb_tokenize_order *order, const struct kvb_tokenize_result *result);
    void *context;
};

/* KVB_NO_MEMORY, KVB_IO */
kvb_status kvb_tokenizer_start(
    const struct kvb_tokenizer_options *options, struct kvb_tokenizer **out_tokenizer);

/* Returns when all orders have ended, at their deadlines at the latest.  Later ones are refused.
 * NULL is fine. */
void kvb_tokenizer_close(struct kvb_tokenizer *tokenizer);
/* The same, and frees it.  Nobody may use it any more. */
void kvb_tokenizer_free(struct kvb_tokenizer *tokenizer);

/* KVB_OK: done() will be called, or was already.
 * KVB_AGAIN   kvb_max_tokenize_requests orders are not taken yet
 * KVB_CLOSED  it stops */
kvb_status kvb_tokenizer_submit(struct kvb_tokenizer *tokenizer, struct kvb_tokenize_order *order);

/* How many open files the tokenizer may have. */
unsigned kvb_tokenizer_files(void);
