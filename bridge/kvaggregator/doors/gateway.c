#include "kvaggregator/doors/gateway.h"

#include "core/clock.h"
#include "core/hash.h"
#include "core/limits.h"
#include "core/log.h"
#include "core/metric.h"
#include "core/own.h"
#include "core/ring.h"
#include "daemon/http.h"
#include "grpc/server.h"
#include "kvaggregator/answers/answers.h"
#include "kvaggregator/answers/gateway.h"
#include "kvaggregator/books.h"
#include "kvaggregator/config.h"
#include "kvaggregator/doors/exchange.h"
#include "kvaggregator/doors/prompt.h"
#include "kvaggregator/group.h"
#include "kvaggregator/metrics.h"
#include "kvaggregator/parts.h"
#include "kvaggregator/pending.h"
#include "kvaggregator/queries.h"
#include "kvaggregator/report.h"
#include "kvaggregator/service.h"

#include <errno.h>
#include <netinet/in.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum {
    id_buckets = 4096,
    retry_ms = 5,         /* of a pick that found no place in the ring */
    last_resort_ms = 2000 /* beyond deadline_ms: the index thread does not answer */
};

static const char process_path[] = "/envoy.service.ext_proc.v3.ExternalProcessor/Process";
static const char check_path[] = "/grpc.health.v1.Health/Check";

/* How a pick came to be. */
enum pick_by { BY_TOKENS, BY_TEXT, BY_TOKENIZE, BY_PREFIX, BY_LOAD, BY_NONE, BY_COUNT };

/* A pick on its way: made on the control thread, filled in by who has the index, and back. */
struct gateway_call {
    struct gateway *gateway;       /* borrowed */
    struct gateway_stream *stream; /* only for the control thread; NULL: nobody waits */
    atomic_bool is_left;
    bool is_promise; /* the tokens, if all are known, are surely those of the prompt */
    bool is_move;    /* the request went to `served` */
    bool is_given;   /* there is an answer */
    bool is_not_ready;
    struct kvb_endpoint served;
    struct kvb_gateway_found found;
    enum kvb_text_tokens known; /* of the prompt, when it was answered */
    bool is_from_engine;        /* these tokens */
    char reason[64];            /* why it is by load, "" if not */
    kvb_status status;
};

/* A stream of Envoy. */
struct gateway_stream {
    struct kvb_exchange exchange;
    struct gateway *gateway;
    struct kvb_grpc_stream *grpc;
    struct gateway_stream *next, **at;        /* in the list of all */
    struct gateway_stream *same, **same_at;   /* in the bucket of its id; same_at NULL: in none */
    struct gateway_stream *waits, **waits_at; /* in the list of those whose pick is due */
    struct gateway_call *call;                /* that is under way; NULL: none */
    uint64_t due_ns;                          /* when its pick was due */
    uint64_t retry_ns;
    struct kvb_route_decision decision; /* without names; its id is the request's in the books */
    enum pick_by by;
    const char *reason; /* static; why by load */
    bool is_given_up;   /* this side could not go on */
};

struct gateway {
    struct kvb_gateways *all;
    const struct kvb_gateway_config *config; /* borrowed */
    struct kvb_aggregator *aggregator;       /* borrowed */
    struct kvb_exchange_options options;
    struct kvb_grpc *grpc;   /* owned */
    struct kvb_ring *picked; /* owned: calls on their way back */
    struct gateway_stream *streams;
    struct gateway_stream *waiting; /* for their picks */
    struct gateway_stream *by_id[id_buckets];
    size_t stream_count; /* requests, not health checks */
    size_t held_bytes;
    uint64_t made_ids;
    atomic_uint connections;
    atomic_bool is_withdrawn;
};

struct kvb_gateways {
    size_t count;
    uint64_t next_count_ns;
    struct gateway gateways[];
};

static struct kvb_metrics *metrics_of(const struct gateway *gateway)
{
    return gateway->aggregator->metrics;
}

static void count(const struct gateway *gateway, enum kvb_aggregator_metric metric)
{
    kvb_metric_add(metrics_of(gateway), metric, 1);
}

static bool is_ready(const struct gateway *gateway)
{
    struct kvb_detail why;

    return kvb_aggregator_not_ready(gateway->aggregator, &why) == NULL;
}

/* ---- Ids of requests in flight ---- */

static struct gateway_stream **bucket_of(struct gateway *gateway, const char *id)
{
    return &gateway->by_id[kvb_hash64(kvb_span_of(id), 0) % id_buckets];
}

static bool is_in_flight(struct gateway *gateway, const char *id)
{
    for (const struct gateway_stream *one = *bucket_of(gateway, id); one; one = one->same) {
        if (strcmp(one->decision.request_id, id) == 0) {
            return true;
        }
    }
    return false;
}

static void enter_id(struct gateway_stream *stream)
{
    struct gateway_stream **bucket = bucket_of(stream->gateway, stream->decision.request_id);

    stream->same = *bucket;
    stream->same_at = bucket;
    if (stream->same) {
        stream->same->same_at = &stream->same;
    }
    *bucket = stream;
}

static void leave_id(struct gateway_stream *stream)
{
    if (stream->same_at) {
        *stream->same_at = stream->same;
        if (stream->same) {
            stream->same->same_at = stream->same_at;
        }
        stream->same_at = NULL;
    }
}

/* The client's own id only once at a time: it must not end another's request. */
static void name_request(struct gateway_stream *stream)
{
    struct gateway *gateway = stream->gateway;
    const char *id = stream->exchange.request_id;
    char *name = stream->decision.request_id;

    /* A second try keeps the name: the first may have entered it in the books. */
    if (name[0] != '\0') {
        return;
    }
    if (id[0] != '\0' && !is_in_flight(gateway, id)) {
        (void)snprintf(name, sizeof stream->decision.request_id, "%s", id); /* fits: 64 bytes */
    } else {
        (void)snprintf(/* fits: a service's id has 32 bytes */
                       name, sizeof stream->decision.request_id, "%s-g%zu-%llu",
                       gateway->aggregator->service->identity.id,
                       (size_t)(gateway - gateway->all->gateways),
                       (unsigned long long)++gateway->made_ids);
    }
    enter_id(stream);
}

/* ---- Picks: sent ---- */

static void stop_waiting(struct gateway_stream *stream)
{
    if (stream->waits_at) {
        *stream->waits_at = stream->waits;
        if (stream->waits) {
            stream->waits->waits_at = stream->waits_at;
        }
        stream->waits_at = NULL;
    }
}

static void wait_for_pick(struct gateway_stream *stream)
{
    struct gateway *gateway = stream->gateway;

    stream->waits = gateway->waiting;
    stream->waits_at = &gateway->waiting;
    if (stream->waits) {
        stream->waits->waits_at = &stream->waits;
    }
    gateway->waiting = stream;
}

static void leave_call(struct gateway_stream *stream)
{
    /* The index thread may have it at this moment: it comes back, and is freed then. */
    if (stream->call) {
        stream->call->stream = NULL;
        atomic_store_explicit(&stream->call->is_left, true, memory_order_relaxed);
        stream->call = NULL;
    }
}

static void fill_selection(struct gateway_stream *stream, struct kvb_query *query)
{
    const struct kvb_gateway_config *config = stream->gateway->config;
    struct kvb_exchange *exchange = &stream->exchange;
    struct kvb_selection *selection = &query->selection;

    memcpy(selection->policy, config->policy, sizeof selection->policy);
    selection->labels = config->labels;
    selection->needs_endpoint = true;
    selection->affinity = exchange->affinity;
    /* A copy: the stream may be gone before the query is answered. */
    if (exchange->has_hint && exchange->hint_count > 0) {
        const size_t bytes = exchange->hint_count * sizeof *exchange->hint;
        selection->endpoints = malloc(bytes);
        if (selection->endpoints) {
            memcpy(selection->endpoints, exchange->hint, bytes);
            selection->endpoint_count = exchange->hint_count;
        }
    }
    selection->has_endpoints = exchange->has_hint; /* without memory: none is allowed */
    memcpy(query->request_id, stream->decision.request_id, sizeof query->request_id);
}

static void ask_for_pick(struct gateway_stream *stream, uint64_t now_ns)
{
    struct gateway *gateway = stream->gateway;
    struct gateway_call *call = calloc(1, sizeof *call);
    struct kvb_pending_query here = { .aggregator = gateway->aggregator,
                                      .door = KVB_DOOR_GATEWAY,
                                      .received_ns = now_ns,
                                      .deadline_ns = stream->due_ns +
                                                     gateway->config->deadline_ms * KVB_NS_PER_MS,
                                      .gateway_call = call };

    /* Set first: whatever fails from here on is tried again then. */
    stream->retry_ns = now_ns + retry_ms * KVB_NS_PER_MS;
    if (!call) {
        return;
    }
    atomic_init(&call->is_left, false);
    call->gateway = gateway;
    call->stream = stream;
    stream->call = call;
    name_request(stream);
    /* The prompt is read here, where the body is: the index is needed for the pick alone. */
    stream->reason = stream->exchange.by_load;
    if (!stream->reason) {
        stream->reason = kvb_prompt_read(&stream->exchange, &here.query);
    }
    if (stream->reason) {
        here.query.form = KVB_QUERY_TOKENS; /* of none */
    }
    stream->by = stream->reason                        ? BY_LOAD
                 : here.query.form == KVB_QUERY_TOKENS ? BY_TOKENS
                                                       : BY_TEXT;
    /* How an engine makes tokens of /responses is not said anywhere. */
    call->is_promise = stream->exchange.path != KVB_PATH_RESPONSES;
    call->is_not_ready = !is_ready(gateway);
    fill_selection(stream, &here.query);
    (void)kvb_queries_submit(&here); /* queued or not: it comes back as a call */
}

/* ---- Picks: with the index ---- */

bool kvb_gateway_is_left(const struct kvb_pending_query *pending)
{
    return pending->gateway_call &&
           atomic_load_explicit(&pending->gateway_call->is_left, memory_order_relaxed);
}

void kvb_gateway_answer(struct kvb_pending_query *pending)
{
    struct gateway_call *call = pending->gateway_call;
    struct kvb_aggregator *aggregator = pending->aggregator;
    struct kvb_query *query = &pending->query;

    if (!call) { /* a report; who answers shares it with the other aggregators */
        const struct kvb_shared_report report = kvb_answer_report_of(query);
        /* unknown: counted */
        (void)kvb_answer_take_report(aggregator->ctx, &report, pending->context.request_report);
        return;
    }
    const struct kvb_gateway_config *config = call->gateway->config;
    call->is_given = true;
    if (call->is_move) {
        /* Told as a new decision: the other aggregators replace theirs of the same id. */
        call->status = kvb_answer_gateway_moved(
            aggregator->ctx, &call->served, config->rank_ports, &call->found.decision);
        if (call->status == KVB_OK) {
            kvb_aggregator_share_decision(aggregator, &call->found.decision);
        }
        return;
    }
    kvb_prompt_settle(query, call->reason, sizeof call->reason, &call->known);
    call->is_from_engine = pending->tokenized.is_from_engine;
    const struct kvb_gateway_wish wish = {
        .endpoints = config->endpoints,
        .rank_ports = config->rank_ports,
        .is_promise = call->known == KVB_TEXT_TOKENS_WHOLE && call->is_promise,
    };
    call->status = kvb_answer_gateway(aggregator->ctx, query, &wish, &call->found);
    if (call->status == KVB_OK) {
        kvb_aggregator_share_decision(aggregator, &call->found.decision);
        kvb_aggregator_publish_decision(aggregator, &call->found.decision);
    }
    /* The names are the context's, and the next query overwrites them. */
    call->found.decision.names = NULL;
    call->found.decision.name_count = 0;
}

void kvb_gateway_give_back(struct kvb_pending_query *pending)
{
    struct gateway_call *call = pending->gateway_call;

    if (call) {
        /* It has room for more calls than queries can wait.  The server looks at its descriptor. */
        (void)kvb_ring_put(call->gateway->picked, call);
    } else if (pending->is_refused) { /* without a sender it comes back over NATS, and is entered */
        kvb_aggregator_share_report(
            pending->aggregator, pending->context.request_report, &pending->query, NULL);
    }
}

/* ---- Answers ---- */

static void give_up(struct gateway_stream *stream)
{
    stream->is_given_up = true;
    kvb_grpc_stream_finish(stream->grpc, KVB_GRPC_RESOURCE_EXHAUSTED);
}

static void send_answers(struct gateway_stream *stream)
{
    struct kvb_exchange_answer answer;

    while (kvb_exchange_next(&stream->exchange, &answer)) { /* ends: what is due is finite */
        const kvb_span head = { answer.head, answer.head_len };
        kvb_status status = KVB_OK;
        /* Bytes of a body go out from the message in which they came. */
        if (answer.is_copied) {
            status = kvb_grpc_stream_send_copy(stream->grpc, answer.bytes);
            if (answer.memory) {
                kvb_grpc_stream_drop(stream->grpc, answer.memory);
            }
        } else {
            status = kvb_grpc_stream_send(stream->grpc, head, answer.bytes, answer.memory);
        }
        /* An answer is lost, so what follows would be taken for it. */
        if (status != KVB_OK) {
            give_up(stream);
            return;
        }
    }
}

/* ---- Reports ---- */

/* What became of a request: entered in the books at once, because the next request may follow
 * within a millisecond, and then told to the other aggregators.  exchange: NULL without cached
 * tokens. */
static void report(
    struct gateway *gateway, const char *request_id, enum kvb_request_report_kind kind,
    const struct kvb_exchange *exchange)
{
    const bool has_cached = exchange && kind == KVB_REQUEST_FINISHED && exchange->has_cached;
    struct kvb_pending_query here = {
        .aggregator = gateway->aggregator,
        .door = KVB_DOOR_GATEWAY,
        .received_ns = kvb_clock_monotonic_ns(),
        .query = { .form = KVB_QUERY_TOKENS, .has_cached_tokens = has_cached },
        .context = { .has_request_report = true, .request_report = kind },
    };

    if (has_cached) {
        here.query.cached_tokens = exchange->cached_tokens;
        kvb_metric_add(
            metrics_of(gateway), kvb_aggregator_gateway_cached_tokens, exchange->cached_tokens);
    }
    (void)snprintf(
        here.query.request_id, sizeof here.query.request_id, "%s", request_id); /* fits */
    (void)kvb_queries_submit(&here);
}

static void report_stream(struct gateway_stream *stream, enum kvb_request_report_kind kind)
{
    const struct kvb_exchange *exchange = &stream->exchange;
    /* A stream that only watches has made no pick: the request has the name that Envoy gave it. */
    const bool is_watched =
        exchange->state == KVB_EXCHANGE_WATCH || stream->decision.request_id[0] == '\0';

    report(
        stream->gateway, is_watched ? exchange->request_id : stream->decision.request_id, kind,
        exchange);
}

/* The request went elsewhere, after a retry. */
static void move_request(struct gateway_stream *stream)
{
    struct gateway *gateway = stream->gateway;
    struct gateway_call *call = calloc(1, sizeof *call);
    struct kvb_endpoint served;

    count(gateway, kvb_aggregator_gateway_served_other);
    if (!call || kvb_endpoint_read(kvb_span_of(stream->exchange.served), &served) != KVB_OK) {
        free(call);
        return;
    }
    struct kvb_pending_query here = { .aggregator = gateway->aggregator,
                                      .door = KVB_DOOR_GATEWAY,
                                      .received_ns = kvb_clock_monotonic_ns(),
                                      .query = { .form = KVB_QUERY_TOKENS },
                                      .gateway_call = call };
    *call = (struct gateway_call){ .gateway = gateway, .is_move = true, .served = served };
    atomic_init(&call->is_left, false);
    call->found.decision = stream->decision;
    (void)kvb_queries_submit(&here);
}

/* ---- What follows from a message ---- */

static void end_pick(struct gateway_stream *stream)
{
    stop_waiting(stream);
    leave_call(stream);
}

static void carry_out(struct gateway_stream *stream, uint64_t now_ns)
{
    struct gateway *gateway = stream->gateway;
    const unsigned events = stream->exchange.events;

    /* Cleared first: what follows may be the cause of new ones. */
    stream->exchange.events = 0;
    if (events & KVB_EXCHANGE_BROKEN) {
        end_pick(stream);
        stream->is_given_up = true;
        kvb_grpc_stream_finish(stream->grpc, KVB_GRPC_INVALID_ARGUMENT);
        return;
    }
    if (events & KVB_EXCHANGE_AFTER_END) {
        count(gateway, kvb_aggregator_gateway_after_end);
    }
    if (events & KVB_EXCHANGE_WANTS_PICK) {
        stream->due_ns = now_ns;
        wait_for_pick(stream);
        ask_for_pick(stream, now_ns);
    }
    if (events & KVB_EXCHANGE_LOST_PICK) {
        end_pick(stream);
    }
    /* The books before the answers: these let the client send its next request.  A request that
     * went elsewhere moves before it ends there. */
    if (events & KVB_EXCHANGE_MOVED) {
        move_request(stream);
    }
    if (events & KVB_EXCHANGE_FIRST_TOKEN) {
        report_stream(stream, KVB_REQUEST_FIRST_TOKEN);
    }
    if (events & KVB_EXCHANGE_FINISHED) {
        report_stream(stream, KVB_REQUEST_FINISHED);
        leave_id(stream);
    }
    send_answers(stream);
    /* Only behind them: a stream that ends before its request is answered sends that on empty. */
    if (events & KVB_EXCHANGE_ENDS) {
        kvb_grpc_stream_finish(stream->grpc, KVB_GRPC_OK);
    }
}

/* ---- Picks: back ---- */

static void count_pick(struct gateway_stream *stream, const char *reason)
{
    static const enum kvb_aggregator_metric rows[BY_COUNT] = {
        [BY_TOKENS] = kvb_aggregator_gateway_by_tokens,
        [BY_TEXT] = kvb_aggregator_gateway_by_text,
        [BY_TOKENIZE] = kvb_aggregator_gateway_by_tokenize,
        [BY_PREFIX] = kvb_aggregator_gateway_by_prefix,
        [BY_LOAD] = kvb_aggregator_gateway_by_load,
        [BY_NONE] = kvb_aggregator_gateway_by_none,
    };
    static const struct {
        const char *reason;
        enum kvb_aggregator_metric row;
    } reasons[] = {
        { "no_body", kvb_aggregator_gateway_no_body },
        { "headers_only", kvb_aggregator_gateway_headers_only },
        { "other_path", kvb_aggregator_gateway_other_path },
        { "not_json", kvb_aggregator_gateway_not_json },
        { "media", kvb_aggregator_gateway_media },
        { "too_large", kvb_aggregator_gateway_too_large },
        { "busy", kvb_aggregator_gateway_busy },
        { "no_prompt", kvb_aggregator_gateway_no_prompt },
        { "cache_salt", kvb_aggregator_gateway_cache_salt },
        { "unknown_model", kvb_aggregator_gateway_unknown_model },
        { "not_ready", kvb_aggregator_gateway_not_ready },
        { "no_endpoint", kvb_aggregator_gateway_no_endpoint },
    };
    const struct gateway *gateway = stream->gateway;
    enum kvb_aggregator_metric row = kvb_aggregator_gateway_tokenize;

    count(gateway, rows[stream->by]);
    /* Not the turn's time, which is before that of messages that came in it. */
    kvb_metric_observe(
        metrics_of(gateway), kvb_aggregator_gateway_pick, kvb_clock_monotonic_ns() - stream->due_ns,
        1);
    if (reason[0] == '\0') {
        return;
    }
    for (size_t i = 0; i < KVB_COUNT_OF(reasons); i++) {
        row = strcmp(reason, reasons[i].reason) == 0 ? reasons[i].row : row;
    }
    count(gateway, row);
}

static void refuse(struct gateway_stream *stream, const char *reason)
{
    stream->by = BY_NONE;
    count_pick(stream, reason);
    if (kvb_exchange_refused(
            &stream->exchange, 503, reason,
            strcmp(reason, "busy") == 0 ? "the endpoint picker is busy; try again later"
                                        : "no engine is there for this request") != KVB_OK) {
        give_up(stream);
    }
}

static void take_found(struct gateway_stream *stream, struct gateway_call *call)
{
    const struct kvb_gateway_found *found = &call->found;
    char rank[24];
    const struct kvb_gateway_header more[] = {
        { .name = "x-data-parallel-rank", .value = rank },
    };

    /* Of what a text's pick was made is known only now. */
    if (stream->by == BY_TEXT) {
        stream->by = call->known == KVB_TEXT_TOKENS_NONE     ? BY_LOAD
                     : call->known == KVB_TEXT_TOKENS_PREFIX ? BY_PREFIX
                     : call->is_from_engine                  ? BY_TOKENIZE
                                                             : BY_TEXT;
    }
    /* What the request itself is comes before what was not known, or was not ready. */
    const char *reason = stream->reason            ? stream->reason
                         : found->is_model_unknown ? "unknown_model"
                         : call->reason[0] != '\0' ? call->reason
                         : call->is_not_ready      ? "not_ready"
                                                   : "";
    if (found->is_model_unknown) {
        stream->by = BY_LOAD;
    }
    count_pick(stream, reason);
    (void)snprintf(rank, sizeof rank, "%llu", (unsigned long long)found->decision.id.dp_rank);
    struct kvb_gateway_pick pick = {
        .endpoints = found->endpoints,
        .more = more,
        .more_count = found->has_ranks ? 1 : 0,
        .worker_id = found->decision.id.worker_id,
        .dp_rank = found->decision.id.dp_rank,
        .prompt_tokens = found->prompt_tokens,
        .overlap_tokens = found->overlap_tokens,
        .reason = reason[0] != '\0' ? reason : "tokens",
    };
    stream->decision = found->decision;
    kvb_metric_add(
        metrics_of(stream->gateway), kvb_aggregator_gateway_prompt_tokens, found->prompt_tokens);
    if (stream->exchange.is_passed_on) {
        count(stream->gateway, kvb_aggregator_gateway_passed_on);
    }
    if (kvb_exchange_picked(&stream->exchange, &pick) != KVB_OK) {
        give_up(stream);
    }
}

static void take_call(struct gateway *gateway, struct gateway_call *call, uint64_t now_ns)
{
    struct gateway_stream *stream = call->stream;

    if (!stream) {
        /* The decision is in the books, and nobody else will take it out. */
        if (call->is_given && !call->is_move && call->status == KVB_OK) {
            report(gateway, call->found.decision.request_id, KVB_REQUEST_FINISHED, NULL);
        }
        free(call);
        return;
    }
    stream->call = NULL;
    /* The ring was full, or memory was short: the stream still waits, and tries again. */
    if (!call->is_given || call->status == KVB_NO_MEMORY) {
        free(call);
        return;
    }
    stop_waiting(stream);
    if (call->status == KVB_OK) {
        take_found(stream, call);
    } else {
        refuse(stream, "no_endpoint");
    }
    free(call);
    carry_out(stream, now_ns);
}

/* Those that found no place, and those that nobody answers. */
static uint64_t look_at_waiting(struct gateway *gateway, uint64_t now_ns)
{
    uint64_t due_ns = UINT64_MAX;
    struct gateway_stream *next = NULL;

    for (struct gateway_stream *stream = gateway->waiting; stream; stream = next) {
        const uint64_t end_ns =
            stream->due_ns + (gateway->config->deadline_ms + last_resort_ms) * KVB_NS_PER_MS;
        next = stream->waits;
        /* Envoy has no deadline of its own: an error is better than a request that hangs. */
        if (now_ns >= end_ns) {
            end_pick(stream);
            refuse(stream, "busy");
            carry_out(stream, now_ns);
            continue;
        }
        if (!stream->call && now_ns >= stream->retry_ns) {
            ask_for_pick(stream, now_ns);
        }
        const uint64_t wanted_ns = stream->call ? end_ns : stream->retry_ns;
        due_ns = wanted_ns < due_ns ? wanted_ns : due_ns;
    }
    return due_ns;
}

/* ---- What the server calls ---- */

static void on_open(void *context, struct kvb_grpc_stream *grpc)
{
    struct gateway *gateway = context;
    struct gateway_stream *stream = calloc(1, sizeof *stream);

    kvb_grpc_stream_set_owner(grpc, stream);
    if (!stream) {
        kvb_grpc_stream_finish(grpc, KVB_GRPC_RESOURCE_EXHAUSTED);
        return;
    }
    stream->exchange.options = &gateway->options;
    stream->gateway = gateway;
    stream->grpc = grpc;
    stream->next = gateway->streams;
    stream->at = &gateway->streams;
    if (stream->next) {
        stream->next->at = &stream->next;
    }
    gateway->streams = stream;
    gateway->stream_count++;
}

static void on_message(void *context, struct kvb_grpc_stream *grpc, struct kvb_buf *message)
{
    struct gateway_stream *stream = kvb_grpc_stream_owner(grpc);

    (void)context;
    if (stream) {
        kvb_exchange_take(&stream->exchange, message, kvb_grpc_stream_is_crowded(grpc));
        carry_out(stream, kvb_clock_monotonic_ns());
    }
}

/* Envoy ends its side when its client has gone: nothing follows that anybody waits for. */
static void on_end(void *context, struct kvb_grpc_stream *grpc)
{
    struct gateway_stream *stream = kvb_grpc_stream_owner(grpc);

    (void)context;
    if (stream) {
        kvb_exchange_left(&stream->exchange);
        carry_out(stream, kvb_clock_monotonic_ns());
        kvb_grpc_stream_finish(grpc, KVB_GRPC_OK);
    }
}

static void count_end(const struct gateway_stream *stream)
{
    const struct kvb_exchange *exchange = &stream->exchange;
    const bool is_answered = exchange->is_booked && stream->decision.request_id[0] != '\0';
    const bool is_complete =
        exchange->has_response_end || (is_answered && (exchange->response_mode == KVB_MODE_NONE ||
                                                       exchange->options->skips_response));

    count(
        stream->gateway, is_complete             ? kvb_aggregator_gateway_complete
                         : stream->by == BY_NONE ? kvb_aggregator_gateway_picker
                         : stream->is_given_up   ? kvb_aggregator_gateway_early
                                                 : kvb_aggregator_gateway_client);
}

static void on_close(void *context, struct kvb_grpc_stream *grpc)
{
    struct gateway_stream *stream = kvb_grpc_stream_owner(grpc);

    (void)context;
    if (!stream) {
        return;
    }
    /* Counted as it was before the stream's end closes what is open. */
    count_end(stream);
    kvb_exchange_left(&stream->exchange);
    if (stream->exchange.events & KVB_EXCHANGE_FINISHED) {
        report_stream(stream, KVB_REQUEST_FINISHED);
    }
    end_pick(stream);
    leave_id(stream);
    stream->gateway->stream_count--;
    *stream->at = stream->next;
    if (stream->next) {
        stream->next->at = stream->at;
    }
    kvb_exchange_done(&stream->exchange);
    free(stream);
}

static uint64_t on_turn(void *context, uint64_t now_ns)
{
    struct gateway *gateway = context;
    void *item = NULL;

    while (kvb_ring_take(gateway->picked, &item) == KVB_OK) { /* ends: streams are limited */
        take_call(gateway, item, now_ns);
    }
    return look_at_waiting(gateway, now_ns);
}

static void on_sent(void *context, const struct kvb_grpc_counts *counts)
{
    struct gateway *gateway = context;
    uint64_t streams = 0;
    uint64_t held_bytes = 0;

    atomic_store_explicit(
        &gateway->connections, (unsigned)counts->connections, memory_order_relaxed);
    gateway->held_bytes = counts->held_bytes;
    /* The rows are of all listeners. */
    for (size_t i = 0; i < gateway->all->count; i++) {
        streams += gateway->all->gateways[i].stream_count;
        held_bytes += gateway->all->gateways[i].held_bytes;
    }
    kvb_metric_set(metrics_of(gateway), kvb_aggregator_gateway_streams, streams);
    kvb_metric_set(metrics_of(gateway), kvb_aggregator_gateway_held, held_bytes);
}

static void on_drain(void *context)
{
    struct gateway *gateway = context;
    const uint64_t now_ns = kvb_clock_monotonic_ns();

    for (struct gateway_stream *stream = gateway->streams; stream; stream = stream->next) {
        kvb_exchange_drain(&stream->exchange);
        carry_out(stream, now_ns);
    }
}

/* grpc.health.v1: the names by which gateways ask, and kubelet. */
static enum kvb_grpc_status
check_health(void *context, struct kvb_grpc_call *call, size_t method, kvb_span message)
{
    static const char *const services[] = { "", "envoy.service.ext_proc.v3.ExternalProcessor",
                                            "readiness", "inference-extension", "liveness" };
    enum { liveness = KVB_COUNT_OF(services) - 1 };
    struct gateway *gateway = context;
    kvb_span asked;
    size_t at = 0;

    (void)method; /* the other one is no unary call */
    if (kvb_health_request_decode(message, &asked) != KVB_OK) {
        return KVB_GRPC_INVALID_ARGUMENT;
    }
    while (at < KVB_COUNT_OF(services) && !kvb_span_is(asked, services[at])) {
        at++;
    }
    if (at == KVB_COUNT_OF(services)) {
        return KVB_GRPC_NOT_FOUND;
    }
    /* One that is not ready lives all the same, and need not be started again. */
    const bool is_serving =
        at == liveness || (!atomic_load(&gateway->is_withdrawn) && is_ready(gateway));
    const kvb_span answer = kvb_health_answer(is_serving);
    const kvb_status status = kvb_buf_append(kvb_grpc_call_message(call), answer.data, answer.len);
    kvb_grpc_call_finish(call, status == KVB_OK ? KVB_GRPC_OK : KVB_GRPC_RESOURCE_EXHAUSTED);
    return KVB_GRPC_LATER;
}

/* ---- Starting and stopping ---- */

static const struct kvb_grpc_method methods[] = {
    { .path = process_path,
      .kind = KVB_GRPC_STREAM,
      .max_message_bytes = kvb_max_gateway_body + (64U << 10) },
    { .path = check_path, .kind = KVB_GRPC_UNARY, .max_message_bytes = 4096 },
};

static const struct kvb_grpc_talk talk = {
    .on_open = on_open,
    .on_message = on_message,
    .on_end = on_end,
    .on_close = on_close,
    .on_turn = on_turn,
    .on_sent = on_sent,
    .on_drain = on_drain,
    .max_streams = kvb_max_gateway_connection_streams,
    .max_all_streams = kvb_max_gateway_streams,
    .max_held_bytes = kvb_max_gateway_held_bytes,
};

static kvb_status start_one(struct gateway *gateway, struct kvb_detail *detail)
{
    const struct kvb_gateway_config *config = gateway->config;
    struct sockaddr_storage address = { 0 };

    /* Of each stream a pick and a move may be on their way back, and as many of one that is gone.
     */
    KVB_TRY(kvb_ring_new(4 * (size_t)kvb_max_gateway_streams, free, &gateway->picked));
    const struct kvb_grpc_options options = {
        .listener = KVB_LISTENER_GATEWAY,
        .control = gateway->aggregator->control,
        .address = &address,
        .listen = config->listen,
        .security = &config->security,
        .methods = methods,
        .method_count = KVB_COUNT_OF(methods),
        .talk = &talk,
        .max_under_way = kvb_max_grpc_under_way,
        .grace_ms = kvb_gateway_grace_ms,
        .idle_ms = kvb_gateway_idle_ms,
        .drain_ms = config->drain_s * 1000ULL,
        .handler = check_health,
        .work_fd = kvb_ring_fd(gateway->picked),
        .context = gateway,
        .log = gateway->aggregator->log,
    };

    if (!kvb_http_listen_read(config->listen, &address)) {
        kvb_detail_set(detail, "gateway: \"%s\" is not address:port", config->listen);
        return KVB_BAD_CONFIG;
    }
    gateway->options = (struct kvb_exchange_options){
        .assume = kvb_gateway_assumed_mode(config->assume),
        .skips_response = config->response == KVB_GATEWAY_SKIP,
        .affinity_header = config->affinity_header,
        .max_body_bytes = kvb_max_gateway_body,
    };
    return kvb_grpc_start(&options, &gateway->grpc, detail);
}

kvb_status kvb_gateways_start(struct kvb_aggregator *aggregator, struct kvb_detail *detail)
{
    const size_t wanted = aggregator->config->gateway_count;
    struct kvb_gateways *gateways = NULL;

    if (wanted == 0) {
        return KVB_OK;
    }
    gateways = calloc(1, sizeof *gateways + wanted * sizeof *gateways->gateways);
    if (!gateways) {
        return KVB_NO_MEMORY;
    }
    aggregator->gateways = gateways;
    for (size_t i = 0; i < wanted; i++) {
        struct gateway *gateway = &gateways->gateways[i];
        gateway->all = gateways;
        gateway->aggregator = aggregator;
        gateway->config = &aggregator->config->gateways[i];
        gateways->count = i + 1; /* so that one that fails to start is freed */
        KVB_TRY(start_one(gateway, detail));
    }
    return KVB_OK;
}

/* So long Envoy may take to see NOT_SERVING, and to ask another picker. */
static void wait_for_withdrawal(struct kvb_gateways *gateways)
{
    struct timespec until;
    unsigned longest_s = 0;

    /* All say it at the same time, and where nobody is connected nobody needs to see it. */
    for (size_t i = 0; i < gateways->count; i++) {
        struct gateway *gateway = &gateways->gateways[i];
        atomic_store(&gateway->is_withdrawn, true);
        if (atomic_load(&gateway->connections) > 0 && gateway->config->withdraw_s > longest_s) {
            longest_s = gateway->config->withdraw_s;
        }
    }
    (void)clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += longest_s;
    while (longest_s > 0 &&
           clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL) == EINTR) {
        /* A signal does not shorten it. */
    }
}

void kvb_gateways_stop(struct kvb_aggregator *aggregator)
{
    struct kvb_gateways *gateways = aggregator->gateways;

    if (!gateways) {
        return;
    }
    wait_for_withdrawal(gateways);
    for (size_t i = 0; i < gateways->count; i++) {
        kvb_grpc_begin_stop(gateways->gateways[i].grpc); /* all at the same time */
    }
    for (size_t i = 0; i < gateways->count; i++) {
        kvb_grpc_stop(gateways->gateways[i].grpc);
    }
}

void kvb_gateways_free(struct kvb_gateways *gateways)
{
    if (!gateways) {
        return;
    }
    for (size_t i = 0; i < gateways->count; i++) {
        kvb_grpc_free(gateways->gateways[i].grpc);
        kvb_ring_free(gateways->gateways[i].picked);
    }
    free(gateways);
}

void kvb_gateways_reload(struct kvb_gateways *gateways)
{
    for (size_t i = 0; gateways && i < gateways->count; i++) {
        kvb_grpc_reload(gateways->gateways[i].grpc);
    }
}

size_t kvb_gateways_files(const struct kvb_aggregator *aggregator)
{
    return aggregator->config->gateway_count * (kvb_grpc_files() + 1);
}

void kvb_gateways_count(struct kvb_aggregator *aggregator, uint64_t now_ns)
{
    struct kvb_gateways *gateways = aggregator->gateways;
    size_t endpoints = 0;
    size_t without = 0;

    if (!gateways || now_ns < gateways->next_count_ns) {
        return;
    }
    gateways->next_count_ns = now_ns + KVB_NS_PER_S / 4;
    kvb_answer_gateway_count(aggregator->ctx, &endpoints, &without);
    kvb_metric_set(aggregator->metrics, kvb_aggregator_gateway_endpoints, endpoints);
    kvb_metric_set(aggregator->metrics, kvb_aggregator_gateway_without_endpoint, without);
}
