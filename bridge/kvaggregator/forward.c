#include "bus/proof.h"
#include "core/clock.h"
#include "core/limits.h"
#include "core/own.h"
#include "daemon/bearer_token.h"
#include "kvaggregator/inside.h"
#include "wire/json/writer.h"
#include "wire/query/registration.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

/* Forwards POST /register and /unregister to a bridge (wire/query/forward.h).
 *
 *     HTTP thread   body --> P.kv_register.all --> offers --> choice (registrars.h)
 *                        --> P.kv_register.{bridge}, with a proof --> answer --> HTTP
 *     nats.c        offers and answers --> the call that waits for them
 *
 * The HTTP thread waits meanwhile, and with it the other connections of that thread.  Therefore
 * only a few calls may be under way. */

enum { answer_wait_ms = 2000, unregister_ms = 4000, max_message_bytes = kvb_max_forward_bytes };

static const char reply_start[] = "reg"; /* no hex digit, with which other answers begin */

enum forward_awaits { awaits_nothing, awaits_offers, awaits_answer };

struct forward_call {
    uint64_t number; /* at the end of its reply subject; 0: free */
    enum forward_awaits awaits;
    struct kvb_registrars registrars;
    bool is_answered;
    struct kvb_forward_answer answer;
    struct kvb_forward_request request;
};

struct aggregator_forward {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct forward_call calls[kvb_max_forward_calls];
};

/* One request while its HTTP thread works on it. */
struct forwarding {
    struct kvb_aggregator *aggregator;
    struct forward_call *call;
    const struct kvb_http_request *request;
    struct kvb_http_answer *answer;
    char name_space[kvb_name_bytes + 1];
    char component[kvb_name_bytes + 1];
    struct kvb_registration who;
};

/* ---- On nats.c's thread ---- */

static struct forward_call *find_call(struct aggregator_forward *forward, uint64_t number)
{
    for (size_t i = 0; i < kvb_max_forward_calls && number != 0; i++) {
        if (forward->calls[i].number == number) {
            return &forward->calls[i];
        }
    }
    return NULL;
}

static void take_offer(struct forward_call *call, kvb_span payload)
{
    struct kvb_forward_offer offer;

    if (payload.len == 0) { /* nats-server: nobody subscribes */
        call->registrars.has_nobody = true;
    } else if (kvb_forward_offer_decode(payload, &offer) == KVB_OK) {
        kvb_registrars_add(&call->registrars, &offer, kvb_clock_monotonic_ns());
    }
}

static void take_forward_answer(struct forward_call *call, kvb_span payload)
{
    if (call->is_answered) {
        return;
    }
    call->is_answered =
        payload.len > 0 && kvb_forward_answer_decode(payload, &call->answer) == KVB_OK;
}

bool kvb_aggregator_take_forwarded(
    struct kvb_aggregator *aggregator, const char *token, kvb_span payload)
{
    struct aggregator_forward *forward = aggregator->forward;

    if (strncmp(token, reply_start, sizeof reply_start - 1) != 0) {
        return false;
    }
    (void)pthread_mutex_lock(&forward->lock);
    struct forward_call *call =
        find_call(forward, strtoull(token + sizeof reply_start - 1, NULL, 16));
    if (call && call->awaits == awaits_offers) {
        take_offer(call, payload);
    } else if (call && call->awaits == awaits_answer) {
        take_forward_answer(call, payload);
    }
    (void)pthread_cond_broadcast(&forward->changed);
    (void)pthread_mutex_unlock(&forward->lock);
    return true;
}

/* ---- Calls ---- */

/* A number that nobody can guess: a message with another one is ignored. */
static uint64_t draw_call_number(void)
{
    uint64_t number = 0;

    return getrandom(&number, sizeof number, 0) == sizeof number ? number : 0;
}

static bool begin_call(struct forwarding *forwarding)
{
    struct aggregator_forward *forward = forwarding->aggregator->forward;
    const uint64_t number = draw_call_number();

    (void)pthread_mutex_lock(&forward->lock);
    for (size_t i = 0; i < kvb_max_forward_calls && !forwarding->call && number != 0; i++) {
        if (forward->calls[i].number == 0) {
            forwarding->call = &forward->calls[i];
            memset(forwarding->call, 0, sizeof *forwarding->call);
            forwarding->call->number = number;
        }
    }
    (void)pthread_mutex_unlock(&forward->lock);
    return forwarding->call;
}

static void end_call(struct forwarding *forwarding)
{
    struct aggregator_forward *forward = forwarding->aggregator->forward;

    (void)pthread_mutex_lock(&forward->lock);
    forwarding->call->number = 0;
    (void)pthread_mutex_unlock(&forward->lock);
}

/* Notes what is awaited before it can come.  The lock is not held. */
static void await(struct forwarding *forwarding, enum forward_awaits what)
{
    struct aggregator_forward *forward = forwarding->aggregator->forward;
    const uint64_t number = draw_call_number(); /* a late reply has another one */

    (void)pthread_mutex_lock(&forward->lock);
    forwarding->call->awaits = what;
    forwarding->call->is_answered = false;
    forwarding->call->number = number != 0 ? number : forwarding->call->number;
    forwarding->call->registrars.asked_ns = kvb_clock_monotonic_ns();
    (void)pthread_mutex_unlock(&forward->lock);
}

static uint64_t await_until_ns(const struct forward_call *call)
{
    if (call->awaits == awaits_offers) {
        return kvb_registrars_until_ns(&call->registrars);
    }
    return call->is_answered ? 0 : call->registrars.asked_ns + answer_wait_ms * KVB_NS_PER_MS;
}

static void wait_for_it(struct forwarding *forwarding)
{
    struct aggregator_forward *forward = forwarding->aggregator->forward;
    uint64_t until_ns = 0;

    (void)pthread_mutex_lock(&forward->lock);
    while ((until_ns = await_until_ns(forwarding->call)) > kvb_clock_monotonic_ns()) {
        const struct timespec until = { .tv_sec = (time_t)(until_ns / KVB_NS_PER_S),
                                        .tv_nsec = (long)(until_ns % KVB_NS_PER_S) };
        (void)pthread_cond_timedwait(&forward->changed, &forward->lock, &until);
    }
    forwarding->call->awaits = awaits_nothing;
    (void)pthread_mutex_unlock(&forward->lock);
}

/* Publishes to all bridges of the component, or to one. */
static kvb_status
send_to_bridge(const struct forwarding *forwarding, const char *bridge, const struct kvb_buf *buf)
{
    const struct kvb_aggregator *aggregator = forwarding->aggregator;
    struct kvb_subject_names names = aggregator->names;
    char subject[kvb_subject_bytes];
    char reply[kvb_subject_bytes + 24];

    names.workers_namespace = forwarding->name_space;
    names.workers_component = forwarding->component;
    names.id = bridge;
    KVB_TRY(kvb_contract_subject_make(KVB_SUBJECT_REGISTER, &names, subject));
    (void)snprintf(
        reply, sizeof reply, "%s.%s.%s%016" PRIx64, names.inbox_prefix, names.inbox, reply_start,
        forwarding->call->number);
    return kvb_bus_publish_request(aggregator->bus, subject, reply, kvb_buf_span(buf));
}

static void refuse_unsent(struct kvb_http_answer *answer, kvb_status status)
{
    kvb_http_refuse(
        answer, 503,
        status == KVB_AGAIN ? "not connected to NATS: try again later"
                            : "the request could not be sent over NATS; try again later");
}

/* ---- Offers ---- */

static kvb_status write_lookup(uint64_t worker_id, struct kvb_buf *buf)
{
    struct kvb_json_writer json = kvb_json_writer_of(buf);

    kvb_json_write_begin(&json, '{');
    kvb_json_write_pair_u64(&json, "worker_id", worker_id);
    kvb_json_write_end(&json, '}');
    return json.status;
}

/* False: *answer is complete. */
static bool collect_offers(struct forwarding *forwarding)
{
    KVB_OWN(kvb_buf_done) struct kvb_buf buf = { 0 };

    kvb_buf_init(&buf, max_message_bytes);
    await(forwarding, awaits_offers);
    kvb_status status = write_lookup(forwarding->who.worker_id, &buf);
    if (status == KVB_OK) {
        status = send_to_bridge(forwarding, KVB_FORWARD_TO_ALL, &buf);
    }
    if (status != KVB_OK) {
        refuse_unsent(forwarding->answer, status);
        return false;
    }
    wait_for_it(forwarding);
    kvb_metric_add(
        &forwarding->aggregator->metrics, kvb_aggregator_offers_left_out,
        forwarding->call->registrars.left_out);
    if (forwarding->call->registrars.count > 0) {
        return true;
    }
    if (!forwarding->call->registrars.has_nobody) {
        kvb_http_refuse(
            forwarding->answer, 503,
            "no bridge that takes registrations has answered within 500 ms: try again later, or "
            "set register.token_file on the bridges");
        return false;
    }
    struct kvb_detail why;
    kvb_detail_set(
        &why,
        "no bridge of namespace %.64s, component %.64s takes registrations: set "
        "register.token_file there, and let it subscribe to kv_register on nats-server",
        forwarding->name_space, forwarding->component);
    kvb_http_refuse(forwarding->answer, 503, why.text);
    return false;
}

/* ---- The request ---- */

static kvb_status
prove(struct kvb_forward_request *request, const char *bridge, const char *token_file)
{
    char token[kvb_bearer_token_bytes];
    KVB_OWN(kvb_buf_done) struct kvb_buf text = { 0 };

    kvb_buf_init(&text, max_message_bytes);
    KVB_TRY(kvb_forward_text(bridge, request, &text));
    KVB_TRY(kvb_bearer_token_read(token_file, token, NULL));
    const kvb_status status = kvb_proof_make(token, kvb_buf_span(&text), request->proof);
    explicit_bzero(token, sizeof token);
    return status;
}

static kvb_status write_forwarded(
    const struct forwarding *forwarding, const struct kvb_forward_offer *to, struct kvb_buf *buf)
{
    struct kvb_forward_request *request = &forwarding->call->request;
    const kvb_span body = forwarding->request->body;

    memset(request, 0, sizeof *request);
    (void)snprintf(request->path, sizeof request->path, "%s", forwarding->request->path);
    memcpy(request->challenge, to->challenge, sizeof request->challenge);
    memcpy(request->body, body.data, body.len); /* kvb_max_register_bytes were checked */
    KVB_TRY(prove(request, to->bridge, forwarding->aggregator->config->registering.token_file));
    return kvb_forward_request_encode(request, buf);
}

/* The HTTP status of the bridge's answer; 0: none came, or it could not be sent.  *answer is
 * complete in any case. */
static unsigned forward_to(struct forwarding *forwarding, const struct kvb_forward_offer *to)
{
    KVB_OWN(kvb_buf_done) struct kvb_buf buf = { 0 };
    struct kvb_http_answer *answer = forwarding->answer;

    kvb_buf_init(&buf, max_message_bytes);
    await(forwarding, awaits_answer);
    kvb_status status = write_forwarded(forwarding, to, &buf);
    if (status == KVB_OK) {
        status = send_to_bridge(forwarding, to->bridge, &buf);
    }
    if (status != KVB_OK) {
        refuse_unsent(answer, status);
        return 0;
    }
    wait_for_it(forwarding);
    kvb_buf_reset(&answer->body);
    if (forwarding->call->is_answered) {
        answer->status = forwarding->call->answer.status;
        answer->content_type = "application/json";
        (void)kvb_buf_append_text(&answer->body, forwarding->call->answer.body); /* else: empty */
        return answer->status;
    }
    struct kvb_detail why;
    kvb_detail_set(
        &why,
        "bridge %.64s did not answer within %d ms and may have done it: see GET /workers before "
        "another try",
        to->bridge_id, answer_wait_ms);
    kvb_http_refuse(answer, 504, why.text);
    return 0;
}

static void forward_register(struct forwarding *forwarding)
{
    (void)forward_to(forwarding, kvb_registrars_choose(&forwarding->call->registrars));
}

/* More than one bridge reads a worker only after a mistake: each is asked, and one that has done it
 * counts. */
static void forward_unregister(struct forwarding *forwarding)
{
    KVB_OWN(kvb_buf_done) struct kvb_buf done = { 0 };
    const struct kvb_forward_offer *to = NULL;
    size_t asked = 0;
    bool is_done = false;

    const uint64_t last_ns = kvb_clock_monotonic_ns() + unregister_ms * KVB_NS_PER_MS;

    for (size_t at = 0; kvb_clock_monotonic_ns() < last_ns &&
                        (to = kvb_registrars_next_holder(&forwarding->call->registrars, &at));) {
        asked++;
        if (forward_to(forwarding, to) == 200 && !is_done) {
            is_done = true;
            kvb_buf_init(&done, max_message_bytes);
            (void)kvb_buf_append_text(&done, forwarding->call->answer.body); /* else: empty */
        }
    }
    if (asked == 0) {
        struct kvb_detail why;
        kvb_detail_set(&why, "instance %.80s not found", forwarding->who.instance);
        kvb_http_refuse(forwarding->answer, 404, why.text);
    } else if (is_done && asked > 1) {
        forwarding->answer->status = 200;
        kvb_buf_reset(&forwarding->answer->body);
        (void)kvb_buf_append(&forwarding->answer->body, done.data, done.len); /* else: empty */
    }
}

/* ---- On HTTP threads ---- */

static bool read_forward_name(
    const struct forwarding *forwarding, const char *key, const char *followed,
    char out_name[kvb_name_bytes + 1])
{
    const bool is_any = strcmp(followed, "*") == 0;
    const bool is_long = strlen(forwarding->request->query) >= kvb_max_filter_bytes;
    char given[kvb_max_filter_bytes];
    struct kvb_detail why;

    if (!kvb_http_parameter(forwarding->request->query, key, given, sizeof given)) {
        (void)snprintf(given, sizeof given, "%s", followed); /* absent, unless is_long */
    }
    if (!is_long && kvb_name_is_valid(given) && (is_any || strcmp(given, followed) == 0)) {
        (void)snprintf(out_name, kvb_name_bytes + 1, "%.64s", given);
        return true;
    }
    kvb_detail_set(
        &why,
        "%s: name that of the bridges, as in /register?namespace=dynamo&component=VllmWorker, or "
        "set register.%s; this aggregator forwards to \"%.64s\"",
        key, key, followed);
    kvb_http_refuse(forwarding->answer, 400, why.text);
    return false;
}

/* Which component: the request's, the configured one, or the one that is followed. */
static bool read_forward_place(struct forwarding *forwarding)
{
    const struct kvb_aggregator_config *config = forwarding->aggregator->config;
    const char *name_space = config->registering.name_space;
    const char *component = config->registering.component;

    return read_forward_name(
               forwarding, "namespace", name_space[0] ? name_space : config->subscribe.name_space,
               forwarding->name_space) &&
           read_forward_name(
               forwarding, "component", component[0] ? component : config->subscribe.component,
               forwarding->component);
}

/* False: *answer is complete.  The bridge reads the body once more. */
static bool read_forward_body(struct forwarding *forwarding, bool is_register)
{
    /* clang-format off */
    static const struct {
        kvb_status status;
        unsigned http;
    } rows[] = {
        { KVB_BAD_INPUT, 400 },
        { KVB_NOT_FOUND, 422 },
        { KVB_TOO_LARGE, 413 },
    };
    /* clang-format on */
    struct kvb_detail why = { .text = "" };
    unsigned http = 503;
    kvb_status status =
        is_register ? kvb_register_json_decode(forwarding->request->body, &forwarding->who, &why)
                    : kvb_unregister_json_decode(forwarding->request->body, &forwarding->who, &why);

    if (status == KVB_OK && !forwarding->who.has_worker_id) {
        kvb_detail_set(&why, "missing field `instance_id`");
        status = KVB_NOT_FOUND;
    }
    if (status == KVB_OK) {
        return true;
    }
    for (size_t i = 0; i < KVB_COUNT_OF(rows); i++) {
        http = rows[i].status == status ? rows[i].http : http;
    }
    kvb_http_refuse(forwarding->answer, http, why.text[0] ? why.text : kvb_status_name(status));
    return false;
}

static void forward_body(struct forwarding *forwarding, bool is_register)
{
    if (!begin_call(forwarding)) {
        kvb_http_refuse(
            forwarding->answer, 503, "busy: other registrations are under way; try again later");
        return;
    }
    if (collect_offers(forwarding)) {
        if (is_register) {
            forward_register(forwarding);
        } else {
            forward_unregister(forwarding);
        }
    }
    end_call(forwarding);
}

void kvb_aggregator_forward(
    void *context, const struct kvb_http_request *request, struct kvb_http_answer *answer)
{
    struct kvb_aggregator *aggregator = context;
    struct forwarding forwarding = { .aggregator = aggregator,
                                     .request = request,
                                     .answer = answer };
    const bool is_register = strcmp(request->path, "/register") == 0;

    if (read_forward_body(&forwarding, is_register) && read_forward_place(&forwarding)) {
        forward_body(&forwarding, is_register);
    }
    kvb_metric_add(
        &aggregator->metrics,
        answer->status < 300   ? kvb_aggregator_forwarded_done
        : answer->status < 500 ? kvb_aggregator_forwarded_refused
                               : kvb_aggregator_forwarded_failed,
        1);
}

/* ---- Life ---- */

kvb_status kvb_aggregator_open_forward(struct kvb_aggregator *aggregator)
{
    aggregator->forward = calloc(1, sizeof *aggregator->forward);
    if (!aggregator->forward) {
        return KVB_NO_MEMORY;
    }
    (void)pthread_mutex_init(&aggregator->forward->lock, NULL); /* cannot fail without attributes */
    kvb_cond_init_monotonic(&aggregator->forward->changed);
    return KVB_OK;
}

void kvb_aggregator_close_forward(struct kvb_aggregator *aggregator)
{
    if (aggregator->forward) {
        (void)pthread_cond_destroy(&aggregator->forward->changed);
        (void)pthread_mutex_destroy(&aggregator->forward->lock);
        free(aggregator->forward);
    }
}
