#include "kvaggregator/texts.h"

#include "core/clock.h"
#include "core/limits.h"
#include "core/metric.h"
#include "kvaggregator/answers/query_context.h"
#include "kvaggregator/answers/selection.h"
#include "kvaggregator/config.h"
#include "kvaggregator/metrics.h"
#include "kvaggregator/parts.h"
#include "kvaggregator/pending.h"
#include "kvaggregator/queries.h"
#include "replica/follower.h"
#include "wire/query/text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

/* Queries of text: which engine is asked for the tokens, and what becomes of a query when none
 * gives them.
 *
 *     with the index       request: chooses engines ---> tokenizer
 *     control thread       take_tokens(): a query of the tokens that are known, which is answered
 *                          like any other */

/* ---- Which engines ---- */

/* The lower, the better; above worst_rank it is not asked. */
enum { fresh_rank, usable_rank, worst_rank = usable_rank };

static unsigned rank_of_engine(const struct kvb_follower *follower)
{
    /* It has the tokenizer all the same, and is asked where nobody better is. */
    const bool is_doubtful = follower->state == KVB_STREAM_STALE ||
                             follower->heartbeat.facts.is_draining ||
                             follower->heartbeat.facts.ready == KVB_READY_NO;

    if (follower->heartbeat.facts.tokenize[0] == '\0' || follower->state == KVB_STREAM_DOWN) {
        return worst_rank + 1;
    }
    return is_doubtful ? usable_rank : fresh_rank;
}

struct choice {
    const char *urls[kvb_tokenize_urls]; /* borrowed; the better first; NULL: none */
    unsigned ranks[kvb_tokenize_urls];
    uint32_t block_size; /* the largest that was met among the model's workers */
};

/* Ranks of one worker have the same URL: it counts once. */
static void consider_engine(struct choice *choice, const char *url, unsigned rank)
{
    for (size_t i = 0; i < kvb_tokenize_urls; i++) {
        if (choice->urls[i] && strcmp(choice->urls[i], url) == 0) {
            return;
        }
        if (!choice->urls[i] || rank < choice->ranks[i]) {
            const char *displaced = choice->urls[i];
            const unsigned displaced_rank = choice->ranks[i];
            choice->urls[i] = url;
            choice->ranks[i] = rank;
            if (displaced) { /* one place down, where there is one */
                consider_engine(choice, displaced, displaced_rank);
            }
            return;
        }
    }
}

/* All engines of one model make the same tokens of a text.  The search begins at another follower
 * for each query, so that all of them are asked in turn, and ends with the second fresh one. */
static struct choice
choose_engines(struct kvb_aggregator *aggregator, const struct kvb_query *query, const char *model)
{
    const struct kvb_query_context *ctx = aggregator->ctx;
    const size_t limit = kvb_followers_limit(ctx->followers);
    struct choice choice = { .urls = { NULL } };
    const size_t begin = limit > 0 ? aggregator->queries->next_engine++ % limit : 0;

    for (size_t i = 0; i < limit; i++) {
        const struct kvb_follower *follower = kvb_followers_at(ctx->followers, (begin + i) % limit);
        if (!follower || strcmp(kvb_query_context_model(ctx, follower), model) != 0 ||
            !kvb_selection_serves(query, follower)) {
            continue;
        }
        const unsigned rank = rank_of_engine(follower);
        const uint32_t block_size = kvb_query_context_block_size(ctx, follower);
        choice.block_size = block_size > choice.block_size ? block_size : choice.block_size;
        if (rank <= worst_rank) {
            consider_engine(&choice, follower->heartbeat.facts.tokenize, rank);
        }
        if (choice.urls[kvb_tokenize_urls - 1] &&
            choice.ranks[kvb_tokenize_urls - 1] == fresh_rank) {
            break;
        }
    }
    return choice;
}

/* ---- Asking ---- */

/* What a request adds to the members: {"model":"...",}.  A byte of a name has at most 6 in JSON. */
enum { max_model_bytes = 6 * kvb_model_bytes + 32 };

static kvb_status fill_order(
    const struct choice *choice, const char *model, struct kvb_query *query,
    struct kvb_tokenize_order *order)
{
    struct kvb_tokenize_text *text = &order->text;
    const kvb_span members = { (const uint8_t *)query->text.members, query->text.bytes };

    for (size_t i = 0; i < kvb_tokenize_urls; i++) {
        (void)snprintf(/* fits: a fact of a heartbeat */
                       order->urls[i], sizeof order->urls[i], "%s",
                       choice->urls[i] ? choice->urls[i] : "");
    }
    (void)snprintf(text->model, sizeof text->model, "%s", model); /* fits: a query's name */
    text->block_tokens = choice->block_size;
    kvb_buf_init(&text->body, members.len + max_model_bytes);
    KVB_TRY(kvb_tokenize_request_encode(model, members, &text->body));
    /* The request's brace follows the members. */
    const size_t before = text->body.len - members.len - 1;
    text->ends = query->text.ends; /* taken */
    text->end_count = query->text.end_count;
    query->text.ends = NULL;
    for (size_t i = 0; i < text->end_count; i++) {
        text->ends[i] += (uint32_t)before;
    }
    return KVB_OK;
}

static void take_tokens(struct kvb_tokenize_order *order, const struct kvb_tokenize_result *result);

/* Submits the order.  Anything else than KVB_TOKENIZE_OK: it was not taken. */
static enum kvb_tokenize_outcome submit_order(
    struct kvb_aggregator *aggregator, struct kvb_query *query, const char *model,
    struct kvb_tokenize_order *order)
{
    struct kvb_queries *queries = aggregator->queries;

    if (!queries->tokenizer) {
        return KVB_TOKENIZE_OFF;
    }
    if (queries->texts_waiting >= kvb_max_tokenize_requests) {
        return KVB_TOKENIZE_BUSY;
    }
    /* Where no engine can be asked, the tokenizer may know the text all the same. */
    const struct choice choice = choose_engines(aggregator, query, model);
    const char *name = query->served_name[0] != '\0' ? query->served_name : model;
    if (fill_order(&choice, name, query, order) != KVB_OK) {
        return KVB_TOKENIZE_BUSY;
    }
    /* Once it is submitted, the tokenizer's thread may give it back at any moment. */
    queries->texts_waiting++;
    if (kvb_tokenizer_submit(queries->tokenizer, order) != KVB_OK) {
        queries->texts_waiting--;
        return KVB_TOKENIZE_BUSY;
    }
    return KVB_TOKENIZE_OK;
}

/* ---- What is known ---- */

static void describe_outcome(
    const struct kvb_aggregator *aggregator, const struct kvb_tokenize_result *result, char *text,
    size_t bytes)
{
    static const char *const sentences[KVB_TOKENIZE_OUTCOME_COUNT] = {
        [KVB_TOKENIZE_NOT_ASKED] = "an earlier text is its beginning, and 3/4 of it",
        [KVB_TOKENIZE_OFF] = "this aggregator asks no engine: set tokenize.networks, or send "
                             "token_ids",
        [KVB_TOKENIZE_NO_ENGINE] = "no worker of the model that is up has `tokenize`: set it in "
                                   "the bridge's configuration, or send token_ids",
        [KVB_TOKENIZE_BUSY] = "too many texts wait for engines",
        [KVB_TOKENIZE_UNAVAILABLE] = "no engine can be reached, all have just failed, or "
                                     "tokenize.networks lacks theirs",
        [KVB_TOKENIZE_INVALID] = "the engine's answer has no tokens",
    };

    if (result->outcome == KVB_TOKENIZE_TIMEOUT) {
        (void)snprintf(
            text, bytes, "no engine has answered within %u ms",
            aggregator->config->tokenize.deadline_ms);
    } else if (result->outcome == KVB_TOKENIZE_REFUSED) {
        (void)snprintf(text, bytes, "the engine has answered HTTP %u", result->code);
    } else {
        (void)snprintf(text, bytes, "%s", sentences[result->outcome]);
    }
}

static void
count_outcome(struct kvb_aggregator *aggregator, const struct kvb_tokenize_result *result)
{
    static const enum kvb_aggregator_metric rows[KVB_TOKENIZE_OUTCOME_COUNT] = {
        [KVB_TOKENIZE_OFF] = kvb_aggregator_tokenize_off,
        [KVB_TOKENIZE_NO_ENGINE] = kvb_aggregator_tokenize_no_engine,
        [KVB_TOKENIZE_BUSY] = kvb_aggregator_tokenize_busy,
        [KVB_TOKENIZE_TIMEOUT] = kvb_aggregator_tokenize_timeout,
        [KVB_TOKENIZE_UNAVAILABLE] = kvb_aggregator_tokenize_unavailable,
        [KVB_TOKENIZE_REFUSED] = kvb_aggregator_tokenize_refused,
        [KVB_TOKENIZE_INVALID] = kvb_aggregator_tokenize_invalid,
    };

    if (result->known != KVB_TEXT_TOKENS_WHOLE) { /* the tokenizer has counted the others */
        kvb_metric_add(
            aggregator->metrics,
            result->known == KVB_TEXT_TOKENS_PREFIX ? kvb_aggregator_tokenize_prefix
                                                    : kvb_aggregator_tokenize_none,
            1);
    }
    if (result->outcome >= KVB_TOKENIZE_OFF && result->outcome <= KVB_TOKENIZE_INVALID) {
        kvb_metric_add(aggregator->metrics, rows[result->outcome], 1);
    }
}

/* The text becomes a query of the tokens that are known, maybe of none. */
static void become_tokens(struct kvb_pending_query *pending)
{
    struct kvb_query *query = &pending->query;
    const struct kvb_tokenize_result *result = &pending->tokenized;
    char why[kvb_tokens_reason_bytes / 2];

    /* Also of none: such a query is answered by load alone. */
    query->form = KVB_QUERY_TOKENS;
    query->was_text = true;
    query->known = result->known;
    query->tokens = pending->tokens;
    query->count = pending->tokens ? result->count : 0;
    query->unknown_tokens = result->unknown;
    pending->tokens = NULL;
    if (result->outcome != KVB_TOKENIZE_OK) {
        describe_outcome(pending->aggregator, result, why, sizeof why);
        (void)snprintf(/* cut at worst */
                       query->tokens_reason, sizeof query->tokens_reason, "%s: %s%s",
                       kvb_tokenize_outcome_name(result->outcome), why,
                       result->is_rewriting ? "; the model rewrites earlier turns, so earlier "
                                              "texts do not help"
                                            : "");
    }
    kvb_query_text_done(&query->text);
    count_outcome(pending->aggregator, result);
}

/* ---- A query of text, with the index ---- */

bool kvb_texts_request(struct kvb_pending_query *pending)
{
    struct kvb_query *query = &pending->query;
    const char *model = NULL;

    if (query->form != KVB_QUERY_TEXT) {
        return false;
    }
    if (kvb_query_context_find_model(pending->aggregator->ctx, query, &model, NULL) != KVB_OK) {
        return false; /* the answer says that its model is not known */
    }
    const size_t bytes = query->text.bytes;
    enum kvb_tokenize_outcome outcome = KVB_TOKENIZE_BUSY;
    pending->order = calloc(1, sizeof *pending->order);
    if (pending->order) {
        /* Owned by the query, so that it is freed with it wherever that ends. */
        pending->order->owner = pending;
        pending->order->done = take_tokens;
        pending->order->deadline_ns = pending->deadline_ns;
        outcome = submit_order(pending->aggregator, query, model, pending->order);
    }
    if (outcome == KVB_TOKENIZE_OK) {
        return true; /* and another thread may have it already */
    }
    pending->tokenized = (struct kvb_tokenize_result){ .outcome = outcome,
                                                       .unknown = bytes / kvb_tokenize_text_bytes };
    become_tokens(pending);
    return false;
}

/* On the control thread. */
static void take_tokens(struct kvb_tokenize_order *order, const struct kvb_tokenize_result *result)
{
    struct kvb_pending_query *pending = order->owner;
    const size_t bytes = result->count * sizeof *pending->tokens;

    pending->tokenized = *result;
    pending->tokenized.tokens = NULL; /* borrowed for this call */
    if (result->count > 0) {
        /* A copy, in the memory of those that wait: the tokenizer's cache may let go of its own. */
        const bool has_room = kvb_pending_take_bytes(pending, bytes) == KVB_OK;
        pending->tokens = has_room ? malloc(bytes) : NULL;
        if (pending->tokens) {
            memcpy(pending->tokens, result->tokens, bytes);
        } else {
            pending->tokenized =
                (struct kvb_tokenize_result){ .outcome = KVB_TOKENIZE_BUSY,
                                              .unknown = result->count + result->unknown };
        }
    }
    pending->aggregator->queries->texts_waiting--;
    become_tokens(pending);
    kvb_queries_resume(pending);
}

/* ---- Opening ---- */

kvb_status kvb_texts_open(struct kvb_aggregator *aggregator)
{
    const struct kvb_aggregator_config *config = aggregator->config;
    struct kvb_tokenizer_options options = {
        .control = aggregator->control,
        .deadline_ms = config->tokenize.deadline_ms,
        .cache_bytes = config->tokenize.cache_bytes,
        .cache_age_ns = config->tokenize.cache_s * KVB_NS_PER_S,
        .networks = &config->tokenize.networks,
        .log = aggregator->log,
        .metrics = aggregator->metrics,
        .first_metric = kvb_aggregator_tokenize_cache,
    };

    if (config->tokenize.networks.count == 0) {
        return KVB_OK;
    }
    if (getrandom(&options.seed, sizeof options.seed, 0) != sizeof options.seed) {
        return KVB_IO;
    }
    return kvb_tokenizer_start(&options, &aggregator->queries->tokenizer);
}
