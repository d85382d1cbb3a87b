#include "tokenize/tokenizer.h"

#include "control/control.h"
#include "core/clock.h"
#include "core/hash.h"
#include "core/limits.h"
#include "core/log.h"
#include "core/own.h"
#include "core/ring.h"
#include "core/thread.h"
#include "ingest/dns/resolver.h"
#include "ingest/http/fetch.h"
#include "tokenize/cache.h"
#include "tokenize/chain.h"
#include "wire/query/text.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    cooldown_rows = 256,
    other_files = 24 + 2 * kvb_max_lookups, /* of the ring, look-ups, and libcurl's own */
    url_bytes = kvb_worker_address_bytes + sizeof "/tokenize"
};

enum attempt_state {
    attempt_none,
    attempt_under_way,
    attempt_ended, /* its end was not looked at yet */
    attempt_failed
};

/* One engine that is asked. */
struct attempt {
    struct job *job;
    enum attempt_state state;
    struct kvb_fetch *fetch; /* while under way; else NULL */
    struct kvb_buf answer;
    struct kvb_fetch_end end;
};

/* One text that engines are asked for, and the orders that wait for it. */
struct job {
    struct job *next;
    struct kvb_tokenizer *tokenizer; /* borrowed */
    struct kvb_tokenize_text text;   /* owned: that of the first order */
    struct kvb_hash128 hash;         /* of the body */
    char urls[kvb_tokenize_urls][kvb_worker_address_bytes + 1];
    struct attempt attempts[kvb_tokenize_urls];
    uint64_t second_ns; /* when the second engine is asked, if the first has not answered */
    struct kvb_tokenize_order *waiting; /* none: a sample, or they have their answers */
    struct kvb_tokenize_order *first;   /* by which the job began; only compared */
    struct kvb_tokenize_result failure; /* of the attempt that failed last */
};

/* When an engine failed; see the header.  Direct-mapped: of two URLs with one row, one is
 * forgotten. */
struct cooldown {
    uint64_t url_hash;
    uint64_t until_ns;
    uint64_t failures; /* in a row */
};

/* A model whose template rewrites earlier turns of its chats, or whose prompts do not keep the
 * tokens of their beginning. */
struct rewriting {
    char model[kvb_model_bytes + 1];
    bool is_chat;
    uint64_t until_ns; /* 0: the row is free */
};

struct kvb_tokenizer {
    struct kvb_tokenizer_options options;
    struct kvb_ring *orders;       /* owned */
    struct kvb_resolver *resolver; /* owned */
    struct kvb_job *control_job;   /* owned */
    _Atomic size_t count;          /* orders from submit() to done() */
    pthread_mutex_t lock;          /* is_over */
    pthread_cond_t ended;
    bool is_over; /* closed, and no order is left */

    /* The control thread's own. */
    struct kvb_fetcher *fetcher;   /* owned */
    struct kvb_token_cache *cache; /* owned */
    struct job *jobs;              /* owned */
    size_t job_count;
    size_t held_bytes; /* of all answers */
    struct cooldown cooldowns[cooldown_rows];
    struct rewriting rewriting[kvb_tokenize_rewriting_models];
    struct kvb_log_backoff backoff;
};

/* Numbers of the rows, from first_metric on. */
enum {
#define ROW(id, type, name, labels, help)                                                          \
    row_##id, row_##id##_end = row_##id + kvb_metric_slots_##type - 1,
    KVB_TOKENIZE_METRICS(ROW)
#undef ROW
};

const char *kvb_tokenize_outcome_name(enum kvb_tokenize_outcome outcome)
{
    static const char *const names[KVB_TOKENIZE_OUTCOME_COUNT] = {
        [KVB_TOKENIZE_OK] = "tokenize_ok",
        [KVB_TOKENIZE_NOT_ASKED] = "tokenize_not_asked",
        [KVB_TOKENIZE_OFF] = "tokenize_off",
        [KVB_TOKENIZE_NO_ENGINE] = "tokenize_no_engine",
        [KVB_TOKENIZE_BUSY] = "tokenize_busy",
        [KVB_TOKENIZE_TIMEOUT] = "tokenize_timeout",
        [KVB_TOKENIZE_UNAVAILABLE] = "tokenize_unavailable",
        [KVB_TOKENIZE_REFUSED] = "tokenize_refused",
        [KVB_TOKENIZE_INVALID] = "tokenize_invalid",
    };

    return outcome < KVB_TOKENIZE_OUTCOME_COUNT ? names[outcome] : "tokenize_unknown";
}

void kvb_tokenize_text_done(struct kvb_tokenize_text *text)
{
    kvb_buf_done(&text->body);
    free(text->ends);
    *text = (struct kvb_tokenize_text){ 0 };
}

unsigned kvb_tokenizer_files(void)
{
    return kvb_max_tokenize_connections + other_files;
}

static void count_row(struct kvb_tokenizer *tokenizer, size_t row)
{
    kvb_metric_add(tokenizer->options.metrics, tokenizer->options.first_metric + row, 1);
}

static void set_row(struct kvb_tokenizer *tokenizer, size_t row, uint64_t value)
{
    kvb_metric_set(tokenizer->options.metrics, tokenizer->options.first_metric + row, value);
}

/* ---- Engines that failed ---- */

static struct cooldown *cooldown_of(struct kvb_tokenizer *tokenizer, uint64_t url_hash)
{
    return &tokenizer->cooldowns[url_hash % cooldown_rows];
}

static bool is_cooling(struct kvb_tokenizer *tokenizer, const char *url, uint64_t now_ns)
{
    const uint64_t hash = kvb_hash64(kvb_span_of(url), tokenizer->options.seed);
    const struct cooldown *row = cooldown_of(tokenizer, hash);

    return row->url_hash == hash && now_ns < row->until_ns;
}

static void begin_cooldown(struct kvb_tokenizer *tokenizer, const char *url, uint64_t now_ns)
{
    const uint64_t hash = kvb_hash64(kvb_span_of(url), tokenizer->options.seed);
    struct cooldown *row = cooldown_of(tokenizer, hash);

    *row = (struct cooldown){ .url_hash = hash,
                              .until_ns = now_ns + kvb_tokenize_cooldown_ms * KVB_NS_PER_MS,
                              .failures = row->url_hash == hash ? row->failures + 1 : 1 };
}

static void end_cooldown(struct kvb_tokenizer *tokenizer, const char *url)
{
    const uint64_t hash = kvb_hash64(kvb_span_of(url), tokenizer->options.seed);
    struct cooldown *row = cooldown_of(tokenizer, hash);

    if (row->url_hash == hash) {
        *row = (struct cooldown){ 0 };
    }
}

/* True: there is no such URL, or it is not asked now. */
static bool is_resting(struct kvb_tokenizer *tokenizer, const char *url, uint64_t now_ns)
{
    const uint64_t hash = kvb_hash64(kvb_span_of(url), tokenizer->options.seed);

    return url[0] == '\0' || (is_cooling(tokenizer, url, now_ns) &&
                              cooldown_of(tokenizer, hash)->failures >= kvb_tokenize_rest_failures);
}

/* ---- Earlier texts ---- */

static struct kvb_text_view view_of(const struct kvb_tokenize_text *text)
{
    return (struct kvb_text_view){ .body = kvb_buf_span(&text->body),
                                   .ends = text->ends,
                                   .end_count = text->end_count };
}

/* NULL: earlier texts of this model are used. */
static struct rewriting *
find_rewriting(struct kvb_tokenizer *tokenizer, const struct kvb_tokenize_text *text)
{
    const uint64_t now_ns = kvb_clock_monotonic_ns();

    for (size_t i = 0; i < kvb_tokenize_rewriting_models; i++) {
        struct rewriting *row = &tokenizer->rewriting[i];
        if (now_ns < row->until_ns && row->is_chat == (text->ends != NULL) &&
            strcmp(row->model, text->model) == 0) {
            return row;
        }
    }
    return NULL;
}

/* The model gets the row of the one that was noted first: that one is found out once more. */
static void note_rewriting(struct kvb_tokenizer *tokenizer, const struct kvb_tokenize_text *text)
{
    const uint64_t now_ns = kvb_clock_monotonic_ns();
    const uint64_t age_ns = tokenizer->options.cache_age_ns;
    struct rewriting *row = &tokenizer->rewriting[0];

    /* A free row ended at 0, so it comes before all others. */
    for (size_t i = 1; i < kvb_tokenize_rewriting_models; i++) {
        if (tokenizer->rewriting[i].until_ns < row->until_ns) {
            row = &tokenizer->rewriting[i];
        }
    }
    row->is_chat = text->ends != NULL;
    row->until_ns = age_ns < UINT64_MAX - now_ns ? now_ns + age_ns : UINT64_MAX;
    memcpy(row->model, text->model, sizeof row->model);
    kvb_log_write(
        tokenizer->options.log, KVB_LOG_WARNING, "tokenize",
        row->is_chat ? "the model's template rewrites earlier turns of a chat: each turn is "
                       "tokenized as a whole"
                     : "the model's tokens of a prompt are not those of its beginning: each "
                       "prompt is tokenized as a whole",
        "model", text->model, NULL);
}

static void count_rewriting(struct kvb_tokenizer *tokenizer, uint64_t now_ns)
{
    uint64_t count = 0;

    for (size_t i = 0; i < kvb_tokenize_rewriting_models; i++) {
        count += now_ns < tokenizer->rewriting[i].until_ns;
    }
    set_row(tokenizer, row_tokenize_rewriting, count);
}

/* Fills *result with the tokens of the longest earlier text.  Returns how many bytes of the body
 * that is; 0: there is none. */
static size_t find_prefix(
    struct kvb_tokenizer *tokenizer, const struct kvb_tokenize_text *text,
    struct kvb_tokenize_result *result)
{
    const struct kvb_text_view view = view_of(text);
    const uint32_t *tokens = NULL;
    size_t count = 0;
    size_t bytes = 0;

    result->is_rewriting = find_rewriting(tokenizer, text) != NULL;
    if (result->is_rewriting ||
        kvb_token_cache_find_beginning(
            tokenizer->cache, &view, kvb_clock_monotonic_ns(), &tokens, &count, &bytes) != KVB_OK ||
        count <= text->block_tokens) {
        return 0;
    }
    result->known = KVB_TEXT_TOKENS_PREFIX;
    result->tokens = tokens;
    result->count = count - text->block_tokens;
    /* As many tokens a byte in the rest as in what is known. */
    result->unknown = (size_t)((double)count / (double)bytes * (double)view.body.len);
    result->unknown -= result->unknown < result->count ? result->unknown : result->count;
    return bytes;
}

/* An engine has said the tokens of a text: do they begin with those of the earlier one? */
static void compare_with_prefix(
    struct kvb_tokenizer *tokenizer, const struct kvb_tokenize_text *text, const uint32_t *tokens,
    size_t count)
{
    struct kvb_tokenize_result before = { .count = 0 };

    if (find_prefix(tokenizer, text, &before) == 0) {
        return;
    }
    if (before.count <= count &&
        memcmp(before.tokens, tokens, before.count * sizeof *tokens) == 0) {
        count_row(tokenizer, row_tokenize_same);
        return;
    }
    count_row(tokenizer, row_tokenize_rewritten);
    note_rewriting(tokenizer, text);
}

/* ---- The end of orders ---- */

static void end_order(
    struct kvb_tokenizer *tokenizer, struct kvb_tokenize_order *order,
    const struct kvb_tokenize_result *result)
{
    tokenizer->count--;
    order->done(order, result);
}

/* No engine says its tokens: an earlier text of any length is better than nothing. */
static void end_order_without(
    struct kvb_tokenizer *tokenizer, struct kvb_tokenize_order *order,
    const struct kvb_tokenize_text *text, enum kvb_tokenize_outcome outcome, unsigned code)
{
    struct kvb_tokenize_result result = { .outcome = outcome, .code = code };

    if (find_prefix(tokenizer, text, &result) == 0) {
        result.unknown = text->body.len / kvb_tokenize_text_bytes;
    }
    end_order(tokenizer, order, &result);
}

static void end_waiting(struct job *job, const struct kvb_tokenize_result *result)
{
    while (job->waiting) {
        struct kvb_tokenize_order *order = job->waiting;
        job->waiting = order->next;
        /* One request served them all: it is counted once, the others joined it. */
        if (result->outcome == KVB_TOKENIZE_OK) {
            count_row(
                job->tokenizer, order == job->first ? row_tokenize_engine : row_tokenize_joined);
            end_order(job->tokenizer, order, result);
        } else {
            end_order_without(job->tokenizer, order, &job->text, result->outcome, result->code);
        }
    }
}

/* Ends the orders whose deadline is over; the earliest deadline of the others, or *next_ns. */
static void expire_waiting(struct job *job, uint64_t now_ns, uint64_t *next_ns)
{
    struct kvb_tokenize_order **at = &job->waiting;

    while (*at) {
        struct kvb_tokenize_order *order = *at;
        if (now_ns >= order->deadline_ns) {
            *at = order->next;
            end_order_without(job->tokenizer, order, &job->text, KVB_TOKENIZE_TIMEOUT, 0);
            continue;
        }
        *next_ns = order->deadline_ns < *next_ns ? order->deadline_ns : *next_ns;
        at = &order->next;
    }
}

/* ---- One engine that is asked ---- */

static kvb_status take_tokenize_bytes(void *context, kvb_span bytes)
{
    struct attempt *attempt = context;
    struct kvb_tokenizer *tokenizer = attempt->job->tokenizer;

    /* All answers together have a ceiling, because engines decide how long each is. */
    if (bytes.len > kvb_max_tokenize_held_bytes - tokenizer->held_bytes) {
        return KVB_TOO_LARGE;
    }
    KVB_TRY(kvb_buf_append(&attempt->answer, bytes.data, bytes.len));
    tokenizer->held_bytes += bytes.len;
    return KVB_OK;
}

static void take_tokenize_end(void *context, const struct kvb_fetch_end *end)
{
    struct attempt *attempt = context;

    attempt->fetch = NULL; /* freed by the fetcher */
    attempt->state = attempt_ended;
    attempt->end = *end;
}

static void drop_attempt(struct attempt *attempt)
{
    kvb_fetch_cancel(attempt->fetch);
    attempt->fetch = NULL;
    attempt->job->tokenizer->held_bytes -= attempt->answer.len;
    kvb_buf_done(&attempt->answer);
}

/* On failure the attempt has ended. */
static void start_attempt(struct job *job, size_t number)
{
    struct attempt *attempt = &job->attempts[number];
    struct kvb_tokenizer *tokenizer = job->tokenizer;
    const uint32_t deadline_ms = tokenizer->options.deadline_ms;
    char url[url_bytes];
    const struct kvb_fetch_options options = {
        .url = url,
        .timeout_ms = deadline_ms > kvb_tokenize_late_ms ? deadline_ms : kvb_tokenize_late_ms,
        .max_bytes = kvb_max_tokenize_answer_bytes,
        .json = kvb_buf_span(&job->text.body),
        .networks = tokenizer->options.networks,
        .on_bytes = take_tokenize_bytes,
        .on_end = take_tokenize_end,
        .context = attempt,
    };

    (void)snprintf(url, sizeof url, "%s/tokenize", job->urls[number]); /* fits */
    attempt->job = job;
    attempt->state = attempt_under_way;
    kvb_buf_init(&attempt->answer, kvb_max_tokenize_answer_bytes);
    count_row(tokenizer, row_tokenize_requests);
    if (kvb_fetch_start(tokenizer->fetcher, &options, &attempt->fetch) != KVB_OK) {
        attempt->state = attempt_ended;
        attempt->end = (struct kvb_fetch_end){ .outcome = KVB_FETCH_UNREACHABLE };
        kvb_detail_set(&attempt->end.why, "not a valid URL, or no memory");
    }
}

static enum kvb_tokenize_outcome outcome_of_fetch(const struct kvb_fetch_end *end)
{
    static const enum kvb_tokenize_outcome outcomes[KVB_FETCH_OUTCOME_COUNT] = {
        [KVB_FETCH_OK] = KVB_TOKENIZE_OK,
        [KVB_FETCH_UNREACHABLE] = KVB_TOKENIZE_UNAVAILABLE,
        [KVB_FETCH_LATE] = KVB_TOKENIZE_TIMEOUT,
        [KVB_FETCH_CODE] = KVB_TOKENIZE_REFUSED,
        [KVB_FETCH_TOO_LARGE] = KVB_TOKENIZE_INVALID,
        [KVB_FETCH_STOPPED] = KVB_TOKENIZE_BUSY, /* answers take all memory for them */
    };

    return outcomes[end->outcome];
}

/* ---- One text ---- */

static void free_job(struct job *job)
{
    for (size_t i = 0; i < kvb_tokenize_urls; i++) {
        if (job->attempts[i].state != attempt_none) {
            drop_attempt(&job->attempts[i]);
        }
    }
    kvb_tokenize_text_done(&job->text);
    job->tokenizer->job_count--;
    free(job);
}

/* A failure to keep it costs a later request. */
static void keep_in_cache(const struct job *job, const uint32_t *tokens, size_t count)
{
    struct kvb_tokenizer *tokenizer = job->tokenizer;
    const struct kvb_text_view view = view_of(&job->text);

    compare_with_prefix(tokenizer, &job->text, tokens, count);
    (void)kvb_token_cache_put(tokenizer->cache, &view, tokens, count, kvb_clock_monotonic_ns());
    const struct kvb_token_cache_stats stats = kvb_token_cache_count(tokenizer->cache);
    set_row(tokenizer, row_tokenize_cache_bytes, stats.bytes);
    set_row(tokenizer, row_tokenize_cache_evicted, stats.evicted);
}

/* Reads the answer of an attempt that has ended well.  True: the job is complete. */
static bool read_attempt(struct job *job, struct attempt *attempt)
{
    KVB_OWN(kvb_own_free) uint32_t *tokens = NULL;
    struct kvb_tokenize_result result = { .outcome = KVB_TOKENIZE_OK,
                                          .known = KVB_TEXT_TOKENS_WHOLE,
                                          .is_from_engine = true };

    if (kvb_tokenize_answer_decode(kvb_buf_span(&attempt->answer), &tokens, &result.count) !=
        KVB_OK) {
        return false;
    }
    result.tokens = tokens;
    kvb_metric_observe(
        job->tokenizer->options.metrics,
        job->tokenizer->options.first_metric + row_tokenize_duration, attempt->end.took_ns, 1);
    keep_in_cache(job, tokens, result.count);
    end_waiting(job, &result);
    return true;
}

/* Says that an engine fails, without its answer and without the text. */
static void log_failure(struct job *job, size_t number)
{
    struct kvb_tokenizer *tokenizer = job->tokenizer;

    if (kvb_log_backoff_due(&tokenizer->backoff, kvb_clock_monotonic_ns())) {
        kvb_log_write(
            tokenizer->options.log, KVB_LOG_WARNING, "tokenize",
            "an engine gave no tokens of a text", "url", job->urls[number], "reason",
            kvb_tokenize_outcome_name(job->failure.outcome), "why",
            job->attempts[number].end.why.text, NULL);
    }
}

/* True: the engine refuses this text, so other texts may do.  Another engine may take it: SGLang
 * takes no messages. */
static bool is_text_refused(const struct kvb_fetch_end *end)
{
    return end->outcome == KVB_FETCH_CODE &&
           (end->code == 400 || end->code == 413 || end->code == 422);
}

/* Looks at an attempt that has ended.  True: the job is complete. */
static bool settle_attempt(struct job *job, size_t number, uint64_t now_ns)
{
    struct attempt *attempt = &job->attempts[number];
    enum kvb_tokenize_outcome outcome = outcome_of_fetch(&attempt->end);

    if (outcome == KVB_TOKENIZE_OK) {
        if (read_attempt(job, attempt)) {
            end_cooldown(job->tokenizer, job->urls[number]);
            return true;
        }
        outcome = KVB_TOKENIZE_INVALID;
        kvb_detail_set(&attempt->end.why, "its answer has no tokens");
    }
    attempt->state = attempt_failed;
    job->failure = (struct kvb_tokenize_result){ .outcome = outcome, .code = attempt->end.code };
    if (!is_text_refused(&attempt->end)) {
        begin_cooldown(job->tokenizer, job->urls[number], now_ns);
        log_failure(job, number);
    }
    return false;
}

/* Asks the second engine once the first has failed, or has taken half of the deadline. */
static void request_second(struct job *job, uint64_t now_ns, uint64_t *next_ns)
{
    const struct attempt *first = &job->attempts[0];

    if (job->attempts[1].state != attempt_none || job->urls[1][0] == '\0' || !job->waiting) {
        return;
    }
    if (first->state == attempt_under_way && now_ns < job->second_ns) {
        *next_ns = job->second_ns < *next_ns ? job->second_ns : *next_ns;
        return;
    }
    if (first->state == attempt_under_way) {
        begin_cooldown(job->tokenizer, job->urls[0], now_ns);
    }
    start_attempt(job, 1);
}

/* Does what is due.  *next_ns: when the next step is due at the latest.  True: the job is over, and
 * nobody waits for it. */
static bool step_job(struct job *job, uint64_t now_ns, uint64_t *next_ns)
{
    bool is_under_way = false;

    for (size_t i = 0; i < kvb_tokenize_urls; i++) {
        if (job->attempts[i].state == attempt_ended && settle_attempt(job, i, now_ns)) {
            return true;
        }
    }
    request_second(job, now_ns, next_ns);
    for (size_t i = 0; i < kvb_tokenize_urls; i++) {
        const enum attempt_state state = job->attempts[i].state;
        is_under_way |= state == attempt_under_way || state == attempt_ended;
        *next_ns = state == attempt_ended ? now_ns : *next_ns; /* it could not be started */
    }
    if (!is_under_way) {
        end_waiting(job, &job->failure);
        return true;
    }
    expire_waiting(job, now_ns, next_ns);
    return false;
}

static void step_jobs(struct kvb_tokenizer *tokenizer, uint64_t now_ns, uint64_t *next_ns)
{
    struct job **at = &tokenizer->jobs;

    while (*at) {
        struct job *job = *at;
        if (step_job(job, now_ns, next_ns)) {
            *at = job->next;
            free_job(job);
        } else {
            at = &job->next;
        }
    }
}

/* ---- Orders that arrive ---- */

static struct job *
find_job(const struct kvb_tokenizer *tokenizer, struct kvb_hash128 hash, kvb_span body)
{
    struct job *job = tokenizer->jobs;

    while (job && (job->hash.low != hash.low || job->hash.high != hash.high ||
                   job->text.body.len != body.len ||
                   memcmp(job->text.body.data, body.data, body.len) != 0)) {
        job = job->next;
    }
    return job;
}

/* Makes room by giving up a job for which nobody waits any more. */
static bool has_room_for_job(struct kvb_tokenizer *tokenizer)
{
    struct job **at = &tokenizer->jobs;

    while (tokenizer->job_count >= kvb_max_tokenize_texts && *at) {
        struct job *job = *at;
        if (!job->waiting) {
            *at = job->next;
            free_job(job);
        } else {
            at = &job->next;
        }
    }
    return tokenizer->job_count < kvb_max_tokenize_texts;
}

/* Asks for the order's text.  is_sample: the order does not wait for it.  False: there is no room,
 * and the order is as it was. */
static bool start_job(
    struct kvb_tokenizer *tokenizer, struct kvb_tokenize_order *order, struct kvb_hash128 hash,
    bool is_sample)
{
    const uint64_t now_ns = kvb_clock_monotonic_ns();
    struct job *job = has_room_for_job(tokenizer) ? calloc(1, sizeof *job) : NULL;

    if (!job) {
        return false;
    }
    job->tokenizer = tokenizer;
    job->text = order->text;
    order->text = (struct kvb_tokenize_text){ 0 }; /* now the job's */
    job->hash = hash;
    memcpy(job->urls, order->urls, sizeof job->urls);
    /* The engine that failed lately is asked second. */
    if (job->urls[1][0] != '\0' && is_cooling(tokenizer, job->urls[0], now_ns) &&
        !is_cooling(tokenizer, job->urls[1], now_ns)) {
        memcpy(job->urls[0], order->urls[1], sizeof job->urls[0]);
        memcpy(job->urls[1], order->urls[0], sizeof job->urls[1]);
    }
    job->second_ns = now_ns + (order->deadline_ns > now_ns ? (order->deadline_ns - now_ns) / 2 : 0);
    job->waiting = job->first = is_sample ? NULL : order;
    job->next = tokenizer->jobs;
    tokenizer->jobs = job;
    tokenizer->job_count++;
    start_attempt(job, 0);
    return true;
}

/* Has an engine asked, for this order or as a sample.  KVB_TOKENIZE_OK: one is. */
static enum kvb_tokenize_outcome request_tokens(
    struct kvb_tokenizer *tokenizer, struct kvb_tokenize_order *order, struct kvb_hash128 hash,
    bool is_sample)
{
    const uint64_t now_ns = kvb_clock_monotonic_ns();

    if (order->urls[0][0] == '\0') {
        return KVB_TOKENIZE_NO_ENGINE;
    }
    /* Callers would wait for engines that fail for everybody. */
    if (is_resting(tokenizer, order->urls[0], now_ns) &&
        is_resting(tokenizer, order->urls[1], now_ns)) {
        return KVB_TOKENIZE_UNAVAILABLE;
    }
    return start_job(tokenizer, order, hash, is_sample) ? KVB_TOKENIZE_OK : KVB_TOKENIZE_BUSY;
}

/* Which texts are samples depends on the text: whoever repeats one adds no further request, and
 * requests that alternate between two models are no pattern.  Samples leave half of the room. */
static bool is_sample(const struct kvb_tokenizer *tokenizer, struct kvb_hash128 hash)
{
    return hash.high % kvb_tokenize_sample_texts == 0 &&
           tokenizer->job_count < kvb_max_tokenize_texts / 2;
}

static void take_order(struct kvb_tokenizer *tokenizer, struct kvb_tokenize_order *order)
{
    const kvb_span body = kvb_buf_span(&order->text.body);
    const struct kvb_hash128 hash = kvb_hash128(body, tokenizer->options.seed);
    struct kvb_tokenize_result result = { .outcome = KVB_TOKENIZE_OK };

    if (kvb_token_cache_find(
            tokenizer->cache, body, kvb_clock_monotonic_ns(), &result.tokens, &result.count) ==
        KVB_OK) {
        result.known = KVB_TEXT_TOKENS_WHOLE;
        count_row(tokenizer, row_tokenize_cache);
        end_order(tokenizer, order, &result);
        return;
    }
    struct job *job = find_job(tokenizer, hash, body);
    /* What was said since the earlier text, hardly any other engine holds. */
    const size_t known_bytes = find_prefix(tokenizer, &order->text, &result);
    if (known_bytes >= body.len - body.len / 4) {
        result.outcome = KVB_TOKENIZE_NOT_ASKED;
        if (!job && is_sample(tokenizer, hash)) {
            (void)request_tokens(tokenizer, order, hash, true);
        }
        end_order(tokenizer, order, &result);
        return;
    }
    /* The same text is asked for already. */
    if (job) {
        order->next = job->waiting;
        job->waiting = order;
        return;
    }
    const enum kvb_tokenize_outcome outcome = request_tokens(tokenizer, order, hash, false);
    if (outcome != KVB_TOKENIZE_OK) {
        end_order_without(tokenizer, order, &order->text, outcome, 0);
    }
}

/* True: it is closed, so no other order comes. */
static bool take_orders(struct kvb_tokenizer *tokenizer)
{
    void *item = NULL;
    kvb_status status = kvb_ring_take(tokenizer->orders, &item);

    for (; status == KVB_OK; status = kvb_ring_take(tokenizer->orders, &item)) {
        struct kvb_tokenize_order *order = item;
        order->next = NULL;
        take_order(tokenizer, order);
    }
    return status == KVB_CLOSED;
}

/* ---- On the control thread ---- */

static uint64_t take_turn(void *context, uint64_t now_ns)
{
    struct kvb_tokenizer *tokenizer = context;
    uint64_t next_ns = UINT64_MAX;

    /* Answers first: an order may want the same text. */
    const uint64_t fetch_ns = kvb_fetcher_work(tokenizer->fetcher, now_ns);
    const bool is_closed = take_orders(tokenizer);
    step_jobs(tokenizer, now_ns, &next_ns);
    set_row(tokenizer, row_tokenize_waiting, tokenizer->count);
    count_rewriting(tokenizer, now_ns);
    if (is_closed && tokenizer->count == 0) {
        (void)pthread_mutex_lock(&tokenizer->lock);
        tokenizer->is_over = true;
        (void)pthread_cond_signal(&tokenizer->ended);
        (void)pthread_mutex_unlock(&tokenizer->lock);
    }
    return fetch_ns < next_ns ? fetch_ns : next_ns;
}

static void end_turns(void *context)
{
    struct kvb_tokenizer *tokenizer = context;

    while (tokenizer->jobs) {
        struct job *job = tokenizer->jobs;
        tokenizer->jobs = job->next;
        free_job(job);
    }
    kvb_fetcher_free(tokenizer->fetcher);
    tokenizer->fetcher = NULL;
}

/* ---- The owner ---- */

static kvb_status open_tokenizer(struct kvb_tokenizer *tokenizer)
{
    const struct kvb_tokenizer_options *options = &tokenizer->options;
    const struct kvb_job_options job = {
        .turn = take_turn,
        .end = end_turns,
        .context = tokenizer,
    };

    KVB_TRY(kvb_token_cache_new(
        options->cache_bytes, options->cache_age_ns, options->seed, &tokenizer->cache));
    KVB_TRY(kvb_ring_new(kvb_max_tokenize_requests, NULL, &tokenizer->orders));
    KVB_TRY(kvb_resolver_new(&tokenizer->resolver));
    KVB_TRY(kvb_job_add(options->control, &job, &tokenizer->control_job));
    KVB_TRY(kvb_fetcher_new(tokenizer->control_job, tokenizer->resolver, &tokenizer->fetcher));
    return kvb_fetcher_limit(tokenizer->fetcher, kvb_max_tokenize_connections);
}

kvb_status kvb_tokenizer_start(
    const struct kvb_tokenizer_options *options, struct kvb_tokenizer **out_tokenizer)
{
    struct kvb_tokenizer *tokenizer = calloc(1, sizeof *tokenizer);

    if (!tokenizer) {
        return KVB_NO_MEMORY;
    }
    tokenizer->options = *options;
    (void)pthread_mutex_init(&tokenizer->lock, NULL); /* cannot fail without attributes */
    kvb_cond_init_monotonic(&tokenizer->ended);
    const kvb_status status = open_tokenizer(tokenizer);
    if (status != KVB_OK) {
        kvb_tokenizer_free(tokenizer);
        return status;
    }
    *out_tokenizer = tokenizer;
    return KVB_OK;
}

void kvb_tokenizer_close(struct kvb_tokenizer *tokenizer)
{
    if (!tokenizer || !tokenizer->orders || !tokenizer->fetcher) {
        return; /* it was never complete */
    }
    kvb_ring_close(tokenizer->orders);
    kvb_job_wake(tokenizer->control_job);
    (void)pthread_mutex_lock(&tokenizer->lock);
    while (!tokenizer->is_over) { /* ends: each order has a deadline */
        (void)pthread_cond_wait(&tokenizer->ended, &tokenizer->lock);
    }
    (void)pthread_mutex_unlock(&tokenizer->lock);
}

void kvb_tokenizer_free(struct kvb_tokenizer *tokenizer)
{
    if (!tokenizer) {
        return;
    }
    if (tokenizer->control_job) {
        kvb_tokenizer_close(tokenizer);
        kvb_job_remove(tokenizer->control_job);
    }
    kvb_resolver_free(tokenizer->resolver);
    kvb_ring_free(tokenizer->orders);
    kvb_token_cache_free(tokenizer->cache);
    (void)pthread_cond_destroy(&tokenizer->ended);
    (void)pthread_mutex_destroy(&tokenizer->lock);
    free(tokenizer);
}

kvb_status kvb_tokenizer_submit(struct kvb_tokenizer *tokenizer, struct kvb_tokenize_order *order)
{
    if (order->deadline_ns == 0) {
        order->deadline_ns =
            kvb_clock_monotonic_ns() + tokenizer->options.deadline_ms * KVB_NS_PER_MS;
    }
    tokenizer->count++; /* before it may be done */
    /* The ring is full: the caller is told at once, and nothing waits. */
    const kvb_status status = kvb_ring_put(tokenizer->orders, order);
    if (status != KVB_OK) {
        tokenizer->count--;
        return status;
    }
    kvb_job_wake(tokenizer->control_job);
    return KVB_OK;
}
