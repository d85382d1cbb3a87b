#include "fleet/serve.h"

#include "core/buf.h"
#include "core/clock.h"
#include "core/decimal.h"
#include "core/own.h"
#include "fleet/completion.h"
#include "fleet/listen.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum {
    max_calls = 4096,
    max_call_body_bytes = 4 << 20,
    max_call_answer_bytes = 64 << 20, /* the token ids of the largest body */
    stream_block_bytes = 4096,
};

static const char json_type[] = "application/json";

/* A request from its header to the last byte of its answer:
 *
 *     READING --parsed--> QUEUED --admitted--> RUNNING --finished--> OVER
 *        |                   +------refused---------------------------^
 *        +--answered at once, never listed
 *
 * Listed calls belong to the list, which is the fleet's; others to their connection. */
enum call_state { CALL_READING, CALL_QUEUED, CALL_RUNNING, CALL_OVER };

struct call {
    struct worker_port *port; /* borrowed */
    struct kvb_buf body;
    bool is_body_refused;
    bool is_begun; /* its body is complete */
    struct kvb_completion_request request;
    uint64_t number;
    uint64_t created_s;
    uint32_t rank; /* UINT32_MAX: any */
    /* Of the fleet's thread, once it is listed. */
    struct kvb_request_progress progress;
    uint32_t passed_on; /* tokens that are in out */
    /* Under the lock, once it is listed. */
    enum call_state state;
    struct MHD_Connection *connection; /* NULL: the client has left */
    bool is_listed;
    bool is_suspended;
    bool is_cut; /* OVER without an end that the client could take for one */
    unsigned status;
    struct kvb_buf out;
    size_t sent;
    struct call *next;
};

struct worker_port {
    struct kvb_serve *serve;   /* borrowed */
    struct MHD_Daemon *daemon; /* owned */
    uint32_t worker;
    uint16_t port;
};

struct kvb_serve {
    struct kvb_serve_options options;
    struct worker_port *ports; /* owned; by worker */
    pthread_mutex_t lock;
    struct call *calls; /* owned; oldest first */
    struct call **end;  /* where the next one is linked */
    size_t call_count;
    uint64_t next_number;
    bool is_stopping;
};

/* ---- Calls ---- */

static struct call *new_call(struct worker_port *port)
{
    struct call *call = calloc(1, sizeof *call);

    if (call) {
        call->port = port;
        call->rank = UINT32_MAX;
        call->status = MHD_HTTP_OK;
        kvb_buf_init(&call->body, max_call_body_bytes);
        kvb_buf_init(&call->out, max_call_answer_bytes);
    }
    return call;
}

static void drop_call(struct call *call)
{
    kvb_completion_request_done(&call->request);
    kvb_buf_done(&call->body);
    kvb_buf_done(&call->out);
    free(call->progress.output);
    free(call);
}

static struct kvb_completion completion_of(const struct call *call)
{
    return (struct kvb_completion){
        .request = &call->request,
        .model = call->port->serve->options.model,
        .number = call->number,
        .created_s = call->created_s,
        .output = call->progress.output,
        .output_count = call->progress.output_count,
        .cached_tokens = call->progress.cached_tokens,
    };
}

/* The answer is an error.  Without memory it is the status alone. */
static void refuse_call(struct call *call, unsigned status, const char *sentence)
{
    kvb_buf_reset(&call->out);
    call->status = status;
    call->state = CALL_OVER;
    if (kvb_completion_write_error(status, sentence, &call->out) != KVB_OK) {
        kvb_buf_reset(&call->out);
    }
}

/* Under the lock. */
static void resume_call(struct call *call)
{
    if (call->is_suspended) {
        call->is_suspended = false;
        MHD_resume_connection(call->connection);
    }
}

/* Under the lock, in a callback of the connection.  False: the server is stopping. */
static bool suspend_call(struct call *call)
{
    if (call->port->serve->is_stopping) {
        return false;
    }
    call->is_suspended = true;
    MHD_suspend_connection(call->connection);
    return true;
}

/* ---- Answers, on the threads of libmicrohttpd ---- */

static enum MHD_Result
queue_response(struct call *call, struct MHD_Response *response, const char *content_type)
{
    if (!response) {
        return MHD_NO;
    }
    (void)MHD_add_response_header(response, "Content-Type", content_type);
    const enum MHD_Result result = MHD_queue_response(call->connection, call->status, response);
    MHD_destroy_response(response);
    return result;
}

/* The call lives longer than its response, so nothing is copied. */
static enum MHD_Result answer_with_out(struct call *call, const char *content_type)
{
    return queue_response(
        call,
        MHD_create_response_from_buffer(call->out.len, call->out.data, MHD_RESPMEM_PERSISTENT),
        content_type);
}

static enum MHD_Result refuse_at_once(struct call *call, unsigned status, const char *sentence)
{
    refuse_call(call, status, sentence);
    return answer_with_out(call, json_type);
}

/* Gives libmicrohttpd the next bytes of a stream, or suspends it until there are some. */
static ssize_t read_token_stream(void *context, uint64_t position, char *to, size_t max)
{
    struct call *call = context;
    struct kvb_serve *serve = call->port->serve;
    ssize_t result = 0;

    (void)position;
    pthread_mutex_lock(&serve->lock);
    const size_t left = call->out.len - call->sent;
    if (left > 0) {
        result = (ssize_t)(left < max ? left : max);
        memcpy(to, call->out.data + call->sent, (size_t)result);
        call->sent += (size_t)result;
    } else if (call->is_cut) {
        result = MHD_CONTENT_READER_END_WITH_ERROR;
    } else if (call->state == CALL_OVER || !suspend_call(call)) {
        result = MHD_CONTENT_READER_END_OF_STREAM;
    }
    pthread_mutex_unlock(&serve->lock);
    return result;
}

/* The connection was resumed: a stream has its first bytes, another answer is complete. */
static enum MHD_Result continue_call(struct call *call)
{
    struct kvb_serve *serve = call->port->serve;

    pthread_mutex_lock(&serve->lock);
    const bool is_stream = call->request.is_stream && call->status == MHD_HTTP_OK;
    const bool is_over = call->state == CALL_OVER;
    pthread_mutex_unlock(&serve->lock);
    if (is_stream) {
        return queue_response(
            call,
            MHD_create_response_from_callback(
                MHD_SIZE_UNKNOWN, stream_block_bytes, read_token_stream, call, NULL),
            "text/event-stream; charset=utf-8");
    }
    return is_over ? answer_with_out(call, json_type) : MHD_NO;
}

static enum MHD_Result answer_engine_page(struct call *call)
{
    const struct worker_port *port = call->port;
    const kvb_status status =
        kvb_metrics_page_write(port->serve->options.page, port->worker, &call->out);

    return status == KVB_OK ? answer_with_out(call, "text/plain; version=0.0.4; charset=utf-8")
                            : MHD_NO;
}

/* KVB_OK: the request is one for this worker.  Otherwise the refusal is in the call. */
static kvb_status read_call(struct call *call)
{
    const char *model = call->port->serve->options.model;
    struct kvb_detail detail = { { 0 } };

    if (call->is_body_refused) {
        refuse_call(call, MHD_HTTP_CONTENT_TOO_LARGE, "the body is larger than 4 MiB");
        return KVB_TOO_LARGE;
    }
    const kvb_status status =
        kvb_completion_request_read(kvb_buf_span(&call->body), &call->request, &detail);
    if (status != KVB_OK) {
        refuse_call(
            call, status == KVB_BAD_INPUT ? MHD_HTTP_BAD_REQUEST : MHD_HTTP_SERVICE_UNAVAILABLE,
            status == KVB_BAD_INPUT ? detail.text : "no memory");
        return status;
    }
    if (call->request.model[0] && strcmp(call->request.model, model) != 0) {
        kvb_detail_set(&detail, "The model `%s` does not exist.", call->request.model);
        refuse_call(call, MHD_HTTP_NOT_FOUND, detail.text);
        return KVB_NOT_FOUND;
    }
    return KVB_OK;
}

static enum MHD_Result answer_tokenize(struct call *call)
{
    if (read_call(call) == KVB_OK &&
        kvb_completion_write_tokenized(&call->request, &call->out) != KVB_OK) {
        refuse_call(call, MHD_HTTP_SERVICE_UNAVAILABLE, "no memory");
    }
    return answer_with_out(call, json_type);
}

static bool read_rank_header(struct call *call)
{
    const char *text =
        MHD_lookup_connection_value(call->connection, MHD_HEADER_KIND, "X-data-parallel-rank");
    uint64_t rank = 0;

    if (!text) {
        return true;
    }
    if (!kvb_decimal_read(text, &rank) || rank >= call->port->serve->options.ranks) {
        return false;
    }
    call->rank = (uint32_t)rank;
    return true;
}

/* Under the lock.  False: there are too many. */
static bool list_call(struct kvb_serve *serve, struct call *call)
{
    if (serve->call_count == max_calls || !suspend_call(call)) {
        return false;
    }
    call->state = CALL_QUEUED;
    call->number = serve->next_number++;
    call->created_s = kvb_clock_wall_us() / 1000000;
    call->is_listed = true;
    *serve->end = call;
    serve->end = &call->next;
    serve->call_count++;
    return true;
}

static enum MHD_Result begin_completion(struct call *call, bool is_chat)
{
    struct kvb_serve *serve = call->port->serve;

    if (read_call(call) != KVB_OK) {
        return answer_with_out(call, json_type);
    }
    if (call->request.is_chat != is_chat) {
        return refuse_at_once(
            call, MHD_HTTP_BAD_REQUEST,
            is_chat ? "messages: expected here" : "prompt: expected here");
    }
    if (!read_rank_header(call)) {
        return refuse_at_once(
            call, MHD_HTTP_BAD_REQUEST, "X-data-parallel-rank: the worker has no such rank");
    }
    call->progress.output = calloc(call->request.max_tokens, sizeof *call->progress.output);
    pthread_mutex_lock(&serve->lock);
    const bool is_listed = call->progress.output && list_call(serve, call);
    pthread_mutex_unlock(&serve->lock);
    return is_listed ? MHD_YES
                     : refuse_at_once(call, MHD_HTTP_SERVICE_UNAVAILABLE, "too many requests");
}

static enum MHD_Result answer_completion(struct call *call)
{
    return begin_completion(call, false);
}

static enum MHD_Result answer_chat(struct call *call)
{
    return begin_completion(call, true);
}

static const struct {
    const char *method;
    const char *path;
    enum MHD_Result (*answer)(struct call *call);
} serve_routes[] = {
    { "GET", "/metrics", answer_engine_page },
    { "POST", "/tokenize", answer_tokenize },
    { "POST", "/v1/completions", answer_completion },
    { "POST", "/v1/chat/completions", answer_chat },
};

static enum MHD_Result answer_by_path(struct call *call, const char *method, const char *path)
{
    for (size_t i = 0; i < KVB_COUNT_OF(serve_routes); i++) {
        if (strcmp(method, serve_routes[i].method) == 0 &&
            strcmp(path, serve_routes[i].path) == 0) {
            return serve_routes[i].answer(call);
        }
    }
    return refuse_at_once(
        call, MHD_HTTP_NOT_FOUND,
        "there are POST /v1/completions, /v1/chat/completions and /tokenize, and GET /metrics");
}

/* Called with the header, then with each part of the body, then with its end, and again each time
 * that the connection was resumed without an answer.  libmicrohttpd fixes the parameters. */
static enum MHD_Result handle_serve_request(
    void *context, struct MHD_Connection *connection, const char *path, const char *method,
    const char *version, const char *upload, size_t *upload_len, void **at)
{
    struct call *call = *at;

    (void)version;
    if (!call) {
        call = new_call(context);
        *at = call;
        return call ? MHD_YES : MHD_NO;
    }
    if (*upload_len > 0) {
        call->is_body_refused |= kvb_buf_append(&call->body, upload, *upload_len) != KVB_OK;
        *upload_len = 0;
        return MHD_YES;
    }
    if (call->is_begun) {
        return continue_call(call);
    }
    call->is_begun = true;
    call->connection = connection;
    return answer_by_path(call, method, path);
}

static void end_serve_request(
    void *context, struct MHD_Connection *connection, void **at,
    enum MHD_RequestTerminationCode code)
{
    const struct worker_port *port = context;
    struct call *call = *at;

    (void)connection;
    (void)code;
    if (!call) {
        return;
    }
    pthread_mutex_lock(&port->serve->lock);
    const bool is_listed = call->is_listed;
    call->connection = NULL;
    call->is_suspended = false;
    pthread_mutex_unlock(&port->serve->lock);
    if (!is_listed) {
        drop_call(call);
    }
    *at = NULL;
}

/* ---- On the fleet's thread ---- */

static uint64_t requests_on_rank(const struct kvb_fleet *fleet, size_t at)
{
    struct kvb_fleet_rank_state state = { 0 };

    kvb_fleet_rank_state(fleet, at, &state);
    return 4 * state.stats.load.num_requests_waiting + state.stats.load.request_active_slots;
}

/* The number in the fleet of the rank that gets the request. */
static size_t pick_rank_of(const struct kvb_fleet *fleet, const struct call *call)
{
    const uint32_t ranks = call->port->serve->options.ranks;
    const size_t first = (size_t)call->port->worker * ranks;
    size_t idlest = first;

    if (call->rank != UINT32_MAX) {
        return first + call->rank;
    }
    for (size_t at = first + 1; at < first + ranks; at++) {
        if (requests_on_rank(fleet, at) < requests_on_rank(fleet, idlest)) {
            idlest = at;
        }
    }
    return idlest;
}

static void admit_call(struct kvb_fleet *fleet, struct call *call)
{
    const struct kvb_completion_request *request = &call->request;
    const kvb_status status = kvb_fleet_admit(
        fleet, pick_rank_of(fleet, call), request->tokens, request->count, request->max_tokens,
        &call->progress);

    switch (status) {
    case KVB_OK:
        call->state = CALL_RUNNING;
        return;
    case KVB_TOO_LARGE:
        refuse_call(
            call, MHD_HTTP_BAD_REQUEST,
            "prompt: too long, with max_tokens, for the cache of a rank");
        return;
    case KVB_AGAIN:
        refuse_call(call, MHD_HTTP_SERVICE_UNAVAILABLE, "the queue of the rank is full");
        return;
    default:
        refuse_call(call, MHD_HTTP_SERVICE_UNAVAILABLE, "no memory");
    }
}

/* Takes calls that are over from the list; those whose client has left are freed. */
static void unlist_ended_calls(struct kvb_serve *serve)
{
    struct call **link = &serve->calls;

    while (*link) {
        struct call *call = *link;
        if (call->state != CALL_OVER) {
            link = &call->next;
            continue;
        }
        *link = call->next;
        serve->call_count--;
        call->is_listed = false;
        if (!call->connection) {
            drop_call(call);
        }
    }
    serve->end = link;
}

void kvb_serve_admit(struct kvb_serve *serve, struct kvb_fleet *fleet)
{
    pthread_mutex_lock(&serve->lock);
    for (struct call *call = serve->calls; call; call = call->next) {
        if (call->state != CALL_QUEUED) {
            continue;
        }
        if (call->connection) {
            admit_call(fleet, call);
        } else {
            call->state = CALL_OVER;
        }
        if (call->state == CALL_OVER) {
            resume_call(call);
        }
    }
    pthread_mutex_unlock(&serve->lock);
}

/* The engine has forgotten the request. */
static kvb_status finish_call(struct call *call)
{
    const struct kvb_completion completion = completion_of(call);
    const bool is_complete = completion.output_count == call->request.max_tokens;

    call->state = CALL_OVER;
    if (!is_complete && call->request.is_stream) {
        call->is_cut = true;
        return KVB_OK;
    }
    if (!is_complete) {
        refuse_call(call, MHD_HTTP_INTERNAL_SERVER_ERROR, "the engine was restarted");
        return KVB_OK;
    }
    return call->request.is_stream ? kvb_completion_write_end(&completion, &call->out)
                                   : kvb_completion_write(&completion, &call->out);
}

static kvb_status pass_call_on(struct call *call)
{
    const struct kvb_completion completion = completion_of(call);
    const uint32_t from = call->passed_on;

    call->passed_on = completion.output_count;
    if (call->request.is_stream) {
        KVB_TRY(kvb_completion_write_tokens(&completion, from, &call->out));
    }
    return call->progress.is_over ? finish_call(call) : KVB_OK;
}

/* Under the lock. */
static void advance_call(struct call *call)
{
    const size_t before = call->out.len;

    if (!call->connection) {
        call->progress.is_abandoned = true;
        call->state = call->progress.is_over ? CALL_OVER : CALL_RUNNING;
        return;
    }
    if (pass_call_on(call) != KVB_OK) {
        call->is_cut = true; /* no memory for the answer */
    }
    const bool has_bytes = call->request.is_stream && call->out.len > before;
    if (call->state == CALL_OVER || has_bytes || call->is_cut) {
        resume_call(call);
    }
}

void kvb_serve_pass_on(struct kvb_serve *serve)
{
    pthread_mutex_lock(&serve->lock);
    for (struct call *call = serve->calls; call; call = call->next) {
        if (call->state == CALL_RUNNING) {
            advance_call(call);
        }
    }
    unlist_ended_calls(serve);
    pthread_mutex_unlock(&serve->lock);
}

/* ---- From start to end ---- */

static kvb_status open_ports(struct kvb_serve *serve, struct kvb_detail *detail)
{
    const struct kvb_serve_options *options = &serve->options;

    for (uint32_t worker = 0; worker < options->workers; worker++) {
        struct worker_port *port = &serve->ports[worker];
        const struct kvb_listen_options listen = {
            .address = options->address,
            .port = options->base_port ? (uint16_t)(options->base_port + worker) : 0,
            .on_request = handle_serve_request,
            .on_completed = end_serve_request,
            .context = port,
        };
        *port = (struct worker_port){ .serve = serve, .worker = worker };
        KVB_TRY(kvb_listen(&listen, detail, &port->daemon, &port->port));
    }
    return KVB_OK;
}

kvb_status kvb_serve_start(
    const struct kvb_serve_options *options, struct kvb_detail *detail,
    struct kvb_serve **out_serve)
{
    struct kvb_serve *serve = calloc(1, sizeof *serve);
    if (!serve) {
        return KVB_NO_MEMORY;
    }
    serve->options = *options;
    serve->end = &serve->calls;
    (void)pthread_mutex_init(&serve->lock, NULL); /* cannot fail with default attributes */
    serve->ports = calloc(options->workers, sizeof *serve->ports);

    const kvb_status status = serve->ports ? open_ports(serve, detail) : KVB_NO_MEMORY;
    if (status != KVB_OK) {
        kvb_serve_stop(serve);
        kvb_serve_free(serve);
        return status;
    }
    serve->options.address = NULL; /* was only borrowed for the call */
    *out_serve = serve;
    return KVB_OK;
}

/* libmicrohttpd stops only when no connection is suspended. */
static void resume_all_calls(struct kvb_serve *serve)
{
    pthread_mutex_lock(&serve->lock);
    serve->is_stopping = true;
    for (struct call *call = serve->calls; call; call = call->next) {
        call->is_cut = true;
        resume_call(call);
    }
    pthread_mutex_unlock(&serve->lock);
}

void kvb_serve_stop(struct kvb_serve *serve)
{
    if (!serve) {
        return;
    }
    resume_all_calls(serve);
    for (uint32_t worker = 0; serve->ports && worker < serve->options.workers; worker++) {
        if (serve->ports[worker].daemon) {
            MHD_stop_daemon(serve->ports[worker].daemon);
            serve->ports[worker].daemon = NULL;
        }
    }
}

void kvb_serve_free(struct kvb_serve *serve)
{
    if (!serve) {
        return;
    }
    while (serve->calls) {
        struct call *call = serve->calls;
        serve->calls = call->next;
        drop_call(call);
    }
    pthread_mutex_destroy(&serve->lock);
    free(serve->ports);
    free(serve);
}

uint16_t kvb_serve_port(const struct kvb_serve *serve, uint32_t worker)
{
    return serve->ports[worker].port;
}
