#pragma once

#include "core/buf.h"
#include "core/metric.h"
#include "core/status.h"
#include "model/query.h"
#include "model/worker_facts.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The tokens of a text: from the cache, from an earlier text, or from an engine (POST
 * {url}/tokenize).  Nobody waits longer than the order's deadline, and every order is answered.
 *
 *     any thread                  control thread
 *       submit(order) --ring-->     cache ---------------------------------> WHOLE
 *                                     | not there
 *                                   an earlier text is the beginning of this one, and at
 *                                   least 3/4 of it ----------------------------> PREFIX
 *                                     | none, or a shorter one
 *                                   the same text is under way: the order waits for it
 *                                     | no
 *                                   engine 0 ---- 200 ----> cache ---------> WHOLE
 *                                     | failed, or half of the deadline is over
 *                                   engine 1, once
 *                                     | failed, or the deadline is over
 *                                   an earlier text, of any length --------> PREFIX
 *                                     | none
 *                                   NONE
 *
 * PREFIX has the tokens of the earlier text less those of a block, because a chat's end with the
 * beginning of an answer, and a prompt's last token may become another one.
 *
 * That holds only where a model's template leaves earlier turns as they were.  So one in
 * kvb_tokenize_sample_texts of those that were not asked is asked all the same, for nobody who
 * waits, and whatever engines say of longer texts is compared with the earlier ones.  A difference
 * means that the template rewrites earlier turns: it is logged and counted, and for as long as the
 * cache keeps a text, no earlier one is used for that model's chats.  Prompts are judged apart.
 *
 * An engine that answers after the deadline, up to kvb_tokenize_late_ms, still fills the cache, so
 * the next turn finds the text.  An engine that failed, or took more than half of the deadline, is
 * asked second for kvb_tokenize_cooldown_ms; one that refused a text (400, 413, 422) is not,
 * because the next text may do.  After kvb_tokenize_rest_failures of them in a row it is not asked
 * at all during that time.
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
    kvb_tokenize_late_ms = 10000,
    kvb_tokenize_cooldown_ms = 1000,
    kvb_tokenize_urls = 2,
    kvb_tokenize_rest_failures = 16,
    kvb_tokenize_sample_texts = 16, /* a power of two */
    kvb_tokenize_rewriting_models = 64,
    kvb_tokenize_text_bytes = 4 /* of a token of English text, about */
};

/* Why not all tokens are known. */

enum kvb_tokenize_outcome {
    KVB_TOKENIZE_OK,          /* they are */
    KVB_TOKENIZE_NOT_ASKED,   /* an earlier text is at least 3/4 of this one */
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

/* "tokenize_timeout", ...: the beginning of reasons; labels have the rest.  Never NULL. */
const char *kvb_tokenize_outcome_name(enum kvb_tokenize_outcome outcome);

/* A text, as an engine is asked for it. */
struct kvb_tokenize_text {
    struct kvb_buf body; /* owned: of POST /tokenize, see wire/query/text.h */
    uint32_t *ends;      /* owned: where each message ends in the body; NULL: a prompt */
    size_t end_count;
    char model[kvb_model_bytes + 1]; /* as in the body */
    uint32_t block_tokens;           /* of PREFIX, so many are left out at the end */
};

/* Frees what it owns; {0} is fine. */
void kvb_tokenize_text_done(struct kvb_tokenize_text *text);

struct kvb_tokenize_result {
    enum kvb_text_tokens known; /* NONE, PREFIX or WHOLE */
    enum kvb_tokenize_outcome outcome;
    unsigned code;          /* of KVB_TOKENIZE_REFUSED */
    bool is_rewriting;      /* earlier texts are not used for this model's chats, or prompts */
    bool is_from_engine;    /* which has just said them */
    const uint32_t *tokens; /* borrowed for the call; NULL: none */
    size_t count;
    size_t unknown; /* an estimate of how many follow them */
};

/* A text whose tokens are wanted.  From submit() to done() its owner keeps it, and does not look at
 * it; the tokenizer may take the text's memory. */
struct kvb_tokenize_order {
    struct kvb_tokenize_text text;
    char urls[kvb_tokenize_urls][kvb_worker_address_bytes + 1]; /* the better first; "": none */
    uint64_t deadline_ns; /* on the monotonic clock; 0: deadline_ms after submit() */
    /* Called exactly once, on the control thread. */
    void (*done)(struct kvb_tokenize_order *order, const struct kvb_tokenize_result *result);
    void *owner; /* the owner's, unused here */
    /* the tokenizer's own */
    struct kvb_tokenize_order *next;
};

/* Rows for a daemon's table of metrics; one block, in this order. */
/* clang-format off */
#define KVB_TOKENIZE_METRICS(X) \
    X(tokenize_cache, COUNTER, "kvb_tokenize_texts_total", "source=\"cache\"", "Texts by where their tokens come from: cache, an engine, joined = an engine that was being asked for the same text, prefix = an earlier text which is the beginning, none = picked by load. Few from the cache: raise tokenize.cache_bytes. Many of none: see kvb_tokenize_failures_total") \
    X(tokenize_engine, COUNTER, "kvb_tokenize_texts_total", "source=\"engine\"", "Texts by where their tokens come from: cache, an engine, joined = an engine that was being asked for the same text, prefix = an earlier text which is the beginning, none = picked by load. Few from the cache: raise tokenize.cache_bytes. Many of none: see kvb_tokenize_failures_total") \
    X(tokenize_joined, COUNTER, "kvb_tokenize_texts_total", "source=\"joined\"", "Texts by where their tokens come from: cache, an engine, joined = an engine that was being asked for the same text, prefix = an earlier text which is the beginning, none = picked by load. Few from the cache: raise tokenize.cache_bytes. Many of none: see kvb_tokenize_failures_total") \
    X(tokenize_prefix, COUNTER, "kvb_tokenize_texts_total", "source=\"prefix\"", "Texts by where their tokens come from: cache, an engine, joined = an engine that was being asked for the same text, prefix = an earlier text which is the beginning, none = picked by load. Few from the cache: raise tokenize.cache_bytes. Many of none: see kvb_tokenize_failures_total") \
    X(tokenize_none, COUNTER, "kvb_tokenize_texts_total", "source=\"none\"", "Texts by where their tokens come from: cache, an engine, joined = an engine that was being asked for the same text, prefix = an earlier text which is the beginning, none = picked by load. Few from the cache: raise tokenize.cache_bytes. Many of none: see kvb_tokenize_failures_total") \
    X(tokenize_off, COUNTER, "kvb_tokenize_failures_total", "reason=\"off\"", "Texts whose tokens no engine gave in time, by reason; they count as prefix or none in kvb_tokenize_texts_total. A rise of timeout or unavailable means that engines are overloaded, away, or not in tokenize.networks") \
    X(tokenize_no_engine, COUNTER, "kvb_tokenize_failures_total", "reason=\"no_engine\"", "Texts whose tokens no engine gave in time, by reason; they count as prefix or none in kvb_tokenize_texts_total. A rise of timeout or unavailable means that engines are overloaded, away, or not in tokenize.networks") \
    X(tokenize_busy, COUNTER, "kvb_tokenize_failures_total", "reason=\"busy\"", "Texts whose tokens no engine gave in time, by reason; they count as prefix or none in kvb_tokenize_texts_total. A rise of timeout or unavailable means that engines are overloaded, away, or not in tokenize.networks") \
    X(tokenize_timeout, COUNTER, "kvb_tokenize_failures_total", "reason=\"timeout\"", "Texts whose tokens no engine gave in time, by reason; they count as prefix or none in kvb_tokenize_texts_total. A rise of timeout or unavailable means that engines are overloaded, away, or not in tokenize.networks") \
    X(tokenize_unavailable, COUNTER, "kvb_tokenize_failures_total", "reason=\"unavailable\"", "Texts whose tokens no engine gave in time, by reason; they count as prefix or none in kvb_tokenize_texts_total. A rise of timeout or unavailable means that engines are overloaded, away, or not in tokenize.networks") \
    X(tokenize_refused, COUNTER, "kvb_tokenize_failures_total", "reason=\"refused\"", "Texts whose tokens no engine gave in time, by reason; they count as prefix or none in kvb_tokenize_texts_total. A rise of timeout or unavailable means that engines are overloaded, away, or not in tokenize.networks") \
    X(tokenize_invalid, COUNTER, "kvb_tokenize_failures_total", "reason=\"invalid\"", "Texts whose tokens no engine gave in time, by reason; they count as prefix or none in kvb_tokenize_texts_total. A rise of timeout or unavailable means that engines are overloaded, away, or not in tokenize.networks") \
    X(tokenize_same, COUNTER, "kvb_tokenize_beginnings_total", "result=\"same\"", "Texts of which an engine has said all tokens, and an earlier text is the beginning, by result: same, or rewritten = they do not begin with the tokens of the earlier one") \
    X(tokenize_rewritten, COUNTER, "kvb_tokenize_beginnings_total", "result=\"rewritten\"", "Texts of which an engine has said all tokens, and an earlier text is the beginning, by result: same, or rewritten = they do not begin with the tokens of the earlier one") \
    X(tokenize_rewriting, GAUGE, "kvb_tokenize_rewriting_models", "", "Models whose templates rewrite earlier turns of a chat, so that earlier texts are not used for them; the log names them") \
    X(tokenize_requests, COUNTER, "kvb_tokenize_requests_total", "", "Requests to engines for the tokens of a text. More than kvb_tokenize_texts_total of source engine: engines fail, or answer late") \
    X(tokenize_duration, HISTOGRAM, "kvb_tokenize_duration_seconds", "", "Seconds until an engine gave the tokens of a text. Above half of tokenize.deadline_ms a second engine is asked") \
    X(tokenize_waiting, GAUGE, "kvb_tokenize_waiting", "", "Queries of text that wait for an engine; at most 1024") \
    X(tokenize_cache_bytes, GAUGE, "kvb_tokenize_cache_bytes", "", "Memory of the cache of tokens, in bytes; at most tokenize.cache_bytes") \
    X(tokenize_cache_evicted, COUNTER, "kvb_tokenize_cache_evicted_total", "", "Texts removed from the cache to make room for others. A steady rise means that tokenize.cache_bytes is small")
/* clang-format on */

struct kvb_tokenizer_options {
    struct kvb_control *control;         /* borrowed; its thread runs */
    uint32_t deadline_ms;                /* of an order that has no other, from submit() on */
    uint64_t cache_bytes;                /* 0: no cache */
    uint64_t cache_age_ns;               /* an answer is not used for longer */
    uint64_t seed;                       /* random */
    const struct kvb_networks *networks; /* borrowed: permitted addresses */
    struct kvb_log *log;                 /* borrowed; may be NULL */
    struct kvb_metrics *metrics;         /* borrowed, with KVB_TOKENIZE_METRICS ... */
    size_t first_metric;                 /* ... from here on */
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
