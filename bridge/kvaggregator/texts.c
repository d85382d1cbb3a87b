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

/* Queries of text: which engine is asked for the tokens, and what is answered when none gives
 * them.
 *
 *     index thread         request: chooses engines ---> tokenizer
 *     control thread       take_tokens(), or why there are none --> the ring of queries
 *     index thread         settle: a query of tokens, which is answered like any other */

/* ---- Which engines ---- */

/* The lower, the better; above worst_rank it is not asked. */
enum { fresh_rank, usable_rank, worst_rank = usable_rank };

static unsigned rank_of_engine(const struct kvb_follower *follower)
{
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
        const unsigned rank = follower ? rank_of_engine(follower) : worst_rank + 1;
        if (rank <= worst_rank && strcmp(kvb_query_context_model(ctx, follower), model) == 0 &&
            kvb_selection_serves(query, follower)) {
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

static enum kvb_tokenize_outcome fill_order(
    const struct choice *choice, const char *model, const struct kvb_query *query,
    struct kvb_tokenize_order *order)
{
    const kvb_span members = { (const uint8_t *)query->text, query->text_bytes };

    for (size_t i = 0; i < kvb_tokenize_urls; i++) {
        (void)snprintf(/* fits: a fact of a heartbeat */
                       order->urls[i], sizeof order->urls[i], "%s",
                       choice->urls[i] ? choice->urls[i] : "");
    }
    kvb_buf_init(&order->body, query->text_bytes + max_model_bytes);
    return kvb_tokenize_request_encode(model, members, &order->body) == KVB_OK ? KVB_TOKENIZE_OK
                                                                               : KVB_TOKENIZE_BUSY;
}

/* Submits the order.  Anything else than KVB_TOKENIZE_OK: it was not taken. */
static enum kvb_tokenize_outcome submit_order(
    struct kvb_aggregator *aggregator, const struct kvb_query *query, const char *model,
    struct kvb_tokenize_order *order)
{
    struct kvb_queries *queries = aggregator->queries;

    if (!queries->tokenizer) {
        return KVB_TOKENIZE_OFF;
    }
    if (queries->texts_waiting >= kvb_max_tokenize_requests) {
        return KVB_TOKENIZE_BUSY;
    }
    const struct choice choice = choose_engines(aggregator, query, model);
    if (!choice.urls[0]) {
        return KVB_TOKENIZE_NO_ENGINE;
    }
    const char *name = query->served_name[0] != '\0' ? query->served_name : model;
    const enum kvb_tokenize_outcome outcome = fill_order(&choice, name, query, order);
    if (outcome != KVB_TOKENIZE_OK) {
        return outcome;
    }
    /* Once it is submitted, the tokenizer's thread may give it back at any moment. */
    queries->texts_waiting++;
    if (kvb_tokenizer_submit(queries->tokenizer, order) != KVB_OK) {
        queries->texts_waiting--;
        return KVB_TOKENIZE_BUSY;
    }
    return KVB_TOKENIZE_OK;
}

/* ---- Failing ---- */

static void describe_failure(
    const struct kvb_aggregator *aggregator, const struct kvb_tokenize_result *result, char *text,
    size_t bytes)
{
    static const char *const sentences[KVB_TOKENIZE_OUTCOME_COUNT] = {
        [KVB_TOKENIZE_OFF] = "this aggregator asks no engine: set tokenize.networks, or send "
                             "token_ids",
        [KVB_TOKENIZE_NO_ENGINE] = "no worker of the model that is up has `tokenize`: set it in "
                                   "the bridge's configuration, or send token_ids",
        [KVB_TOKENIZE_BUSY] = "too many texts wait for engines; try again later",
        [KVB_TOKENIZE_UNAVAILABLE] = "no engine can be reached, all have just failed, or "
                                     "tokenize.networks lacks theirs; try again later",
        [KVB_TOKENIZE_INVALID] = "the engine's answer has no tokens",
    };

    if (result->outcome == KVB_TOKENIZE_TIMEOUT) {
        (void)snprintf(
            text, bytes, "no engine has answered within %u ms; try again later",
            aggregator->config->tokenize.deadline_ms);
    } else if (result->outcome == KVB_TOKENIZE_REFUSED) {
        (void)snprintf(text, bytes, "the engine has answered HTTP %u", result->code);
    } else {
        (void)snprintf(text, bytes, "%s", sentences[result->outcome]);
    }
}

/* Counts the failure, and says in detail what is answered: "tokenize_timeout: ...". */
static enum kvb_text_step fail_text(struct kvb_pending_query *pending)
{
    struct kvb_aggregator *aggregator = pending->aggregator;
    const struct kvb_tokenize_result *result = &pending->tokenized;
    static const enum kvb_aggregator_metric rows[KVB_TOKENIZE_OUTCOME_COUNT] = {
        [KVB_TOKENIZE_OFF] = kvb_aggregator_tokenize_off,
        [KVB_TOKENIZE_NO_ENGINE] = kvb_aggregator_tokenize_no_engine,
        [KVB_TOKENIZE_BUSY] = kvb_aggregator_tokenize_busy,
        [KVB_TOKENIZE_TIMEOUT] = kvb_aggregator_tokenize_timeout,
        [KVB_TOKENIZE_UNAVAILABLE] = kvb_aggregator_tokenize_unavailable,
        [KVB_TOKENIZE_REFUSED] = kvb_aggregator_tokenize_refused,
        [KVB_TOKENIZE_INVALID] = kvb_aggregator_tokenize_invalid,
    };
    char text[160];

    describe_failure(aggregator, result, text, sizeof text);
    kvb_detail_set(&pending->detail, "%s: %s", kvb_tokenize_outcome_name(result->outcome), text);
    kvb_metric_add(aggregator->metrics, rows[result->outcome], 1);
    return KVB_TEXT_FAILED;
}

/* ---- A query of text on the index thread ---- */

enum kvb_text_step kvb_texts_request(struct kvb_pending_query *pending)
{
    const char *model = NULL;

    if (pending->query.form != KVB_QUERY_TEXT) {
        return KVB_TEXT_NOT_NEEDED;
    }
    if (pending->tokenized.outcome != KVB_TOKENIZE_OK) { /* as it was settled */
        return fail_text(pending);
    }
    if (kvb_query_context_find_model(pending->aggregator->ctx, &pending->query, &model, NULL) !=
        KVB_OK) {
        return KVB_TEXT_NOT_NEEDED; /* the answer says that its model is not known */
    }
    pending->order = calloc(1, sizeof *pending->order);
    if (!pending->order) {
        pending->tokenized.outcome = KVB_TOKENIZE_BUSY;
        return fail_text(pending);
    }
    pending->order->owner = pending;
    const enum kvb_tokenize_outcome outcome =
        submit_order(pending->aggregator, &pending->query, model, pending->order);
    if (outcome == KVB_TOKENIZE_OK) {
        return KVB_TEXT_REQUESTED; /* and another thread may have it already */
    }
    pending->tokenized.outcome = outcome;
    return fail_text(pending);
}

void kvb_texts_settle(struct kvb_pending_query *pending)
{
    struct kvb_query *query = &pending->query;

    if (!pending->order || query->form != KVB_QUERY_TEXT) {
        return; /* it does not come from the tokenizer */
    }
    pending->aggregator->queries->texts_waiting--;
    if (pending->tokenized.outcome == KVB_TOKENIZE_OK) {
        free(query->text);
        query->text = NULL;
        query->form = KVB_QUERY_TOKENS;
        query->tokens = pending->tokens;
        query->count = pending->tokenized.count;
        query->was_text = true;
        pending->tokens = NULL;
    }
}

/* On the control thread. */
static void take_tokens(
    void *context, struct kvb_tokenize_order *order, const struct kvb_tokenize_result *result)
{
    struct kvb_pending_query *pending = order->owner;
    const size_t bytes = result->count * sizeof *pending->tokens;

    (void)context;
    pending->tokenized = *result;
    if (result->outcome == KVB_TOKENIZE_OK) {
        const bool has_room = kvb_pending_take_bytes(pending, bytes) == KVB_OK;
        pending->tokens = has_room ? malloc(bytes) : NULL;
        if (pending->tokens) {
            memcpy(pending->tokens, result->tokens, bytes);
        } else {
            pending->tokenized.outcome = KVB_TOKENIZE_BUSY;
        }
    }
    if (kvb_pending_queue_again(pending) != KVB_OK) { /* only at the end of the aggregator */
        kvb_pending_settle(pending, KVB_END_STOPPING);
    }
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
        .done = take_tokens,
        .context = aggregator,
    };

    if (config->tokenize.networks.count == 0) {
        return KVB_OK;
    }
    if (getrandom(&options.seed, sizeof options.seed, 0) != sizeof options.seed) {
        return KVB_IO;
    }
    return kvb_tokenizer_start(&options, &aggregator->queries->tokenizer);
}
