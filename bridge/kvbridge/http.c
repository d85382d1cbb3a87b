#include "core/clock.h"
#include "core/own.h"
#include "daemon/prometheus.h"
#include "kvbridge/bridge.h"
#include "kvbridge/membership.h"
#include "kvbridge/parts.h"
#include "kvbridge/shown.h"
#include "model/liveness.h"
#include "wire/json/writer.h"
#include "wire/query/registration.h"

#include <inttypes.h>
#include <string.h>

/* What the HTTP threads answer.  The server has checked the token (daemon/http_access.h).
 *
 * GET reads atomics, and a text that the ingest thread has made.  POST is parsed here, and then
 * waits while the ingest thread accepts or rejects it.  A registered rank stays until it is
 * unregistered or the bridge ends; it is not written to the configuration file. */

/* ---- GET ---- */

static void answer_text(struct kvb_http_answer *answer, unsigned status, const char *text)
{
    answer->status = status;
    answer->content_type = "text/plain; charset=utf-8";
    (void)kvb_buf_append_text(&answer->body, text); /* without memory the status alone is sent */
}

/* Does not wait for the ingest thread, because that may be the thread that hangs. */
static const char *cause_of(struct bridge_shown *shown)
{
    const uint64_t turned_ns = atomic_load_explicit(&shown->turned_ns, memory_order_relaxed);

    return kvb_liveness_cause(turned_ns, kvb_clock_monotonic_ns());
}

static void answer_live(
    struct kvb_bridge *bridge, const struct kvb_http_request *request,
    struct kvb_http_answer *answer)
{
    const char *cause = cause_of(bridge->shown);

    (void)request;
    answer_text(answer, cause ? 503 : 200, cause ? cause : "ok");
    answer_text(answer, answer->status, "\n");
}

static void answer_ready(
    struct kvb_bridge *bridge, const struct kvb_http_request *request,
    struct kvb_http_answer *answer)
{
    (void)pthread_mutex_lock(&bridge->shown->text_lock);
    struct kvb_detail why = bridge->shown->not_ready;
    (void)pthread_mutex_unlock(&bridge->shown->text_lock);
    const char *cause = cause_of(bridge->shown);
    if (cause) {
        kvb_detail_set(&why, "%s", cause);
    }
    /* Only a bridge that is ready at all is asked for its share. */
    if (!why.text[0] &&
        kvb_exact_share_refuses(&bridge->shown->share, request->parameters, answer)) {
        return;
    }
    answer_text(answer, why.text[0] ? 503 : 200, why.text[0] ? why.text : "ready");
    answer_text(answer, answer->status, "\n");
}

static void answer_metrics(
    struct kvb_bridge *bridge, const struct kvb_http_request *request,
    struct kvb_http_answer *answer)
{
    (void)request;
    answer->status = kvb_bridge_metrics_page(bridge->shown, &answer->body) == KVB_OK ? 200 : 500;
    answer->content_type = KVB_PROMETHEUS_TYPE;
}

static void answer_state_page(
    struct kvb_bridge *bridge, const struct kvb_http_request *request,
    struct kvb_http_answer *answer)
{
    (void)request;
    (void)pthread_mutex_lock(&bridge->shown->text_lock);
    const kvb_span text = kvb_buf_span(&bridge->shown->state_text);
    const kvb_status status = kvb_buf_append(&answer->body, text.data, text.len);
    (void)pthread_mutex_unlock(&bridge->shown->text_lock);
    answer->status = status == KVB_OK && text.len > 0 ? 200 : 503;
    answer->content_type = "application/json";
}

/* ---- POST ---- */

/* False: *answer is complete. */
static bool is_registration(const struct kvb_http_request *request, struct kvb_http_answer *answer)
{
    if (!kvb_http_is_json(request->content_type)) {
        kvb_http_refuse(answer, 415, "expected Content-Type: application/json");
        return false;
    }
    return true;
}

/* ---- Answers ---- */

/* Answers with the HTTP status for `status`.  is_body: the body is invalid; else the ingest thread
 * has rejected the request. */
static void refuse_registration(
    struct kvb_http_answer *answer, kvb_status status, bool is_body, const struct kvb_detail *why)
{
    /* clang-format off */
    static const struct {
        kvb_status status;
        unsigned of_body;
        unsigned of_wish;
    } rows[] = {
        { KVB_BAD_INPUT,  400, 400 },
        { KVB_NOT_FOUND,  422, 404 },
        { KVB_TOO_LARGE,  413, 503 },
        { KVB_BAD_CONFIG, 400, 409 },
        { KVB_IO,         400, 400 }, /* libzmq refuses the address */
        { KVB_AGAIN,      503, 503 },
        { KVB_NO_MEMORY,  503, 503 },
    };
    /* clang-format on */
    unsigned http = 500;

    for (size_t i = 0; i < KVB_COUNT_OF(rows); i++) {
        if (rows[i].status == status) {
            http = is_body ? rows[i].of_body : rows[i].of_wish;
        }
    }
    kvb_http_refuse(answer, http, why->text[0] ? why->text : kvb_status_name(status));
}

static void
begin_answer(struct kvb_json_writer *json, struct kvb_http_answer *answer, unsigned status)
{
    answer->status = status;
    answer->content_type = "application/json";
    *json = kvb_json_writer_of(&answer->body);
    kvb_json_write_begin(json, '{');
    kvb_json_write_pair_text(json, "status", "ok");
}

static void end_answer(struct kvb_json_writer *json, struct kvb_http_answer *answer)
{
    kvb_json_write_end(json, '}');
    if (json->status != KVB_OK) {
        kvb_buf_reset(&answer->body); /* out of memory: the status alone */
    }
}

/* ---- Register ---- */

static kvb_status check_address(const char *key, const char *address, struct kvb_detail *detail)
{
    struct kvb_endpoint endpoint;
    struct kvb_detail why = { .text = "" };

    if (address[0] == '\0' || kvb_endpoint_parse(address, &endpoint, &why) == KVB_OK) {
        return KVB_OK;
    }
    kvb_detail_set(detail, "%s: %s", key, why.text);
    return KVB_BAD_CONFIG;
}

/* One rank at the registered addresses; the rank is not added to their ports, as it is to those
 * of a configured worker.  What the body does not say is in the defaults.  *out borrows from both,
 * and from *out_facts. */
static kvb_status make_worker(
    const struct kvb_bridge_config *config, const struct kvb_registration *who,
    struct kvb_worker_facts *out_facts, struct kvb_worker_spec *out, struct kvb_detail *detail)
{
    const struct kvb_worker_spec *defaults = config->defaults.spec;

    KVB_TRY(check_address("endpoint", who->endpoint, detail));
    KVB_TRY(check_address("replay_endpoint", who->replay_endpoint, detail));
    if (strcmp(who->endpoint, who->replay_endpoint) == 0) {
        kvb_detail_set(detail, "replay_endpoint: must differ from endpoint");
        return KVB_BAD_CONFIG;
    }
    *out = *defaults;
    out->id = who->worker_id;
    out->is_id_made = !who->has_worker_id;
    out->model = who->model;
    out->block_size = who->block_size;
    out->lora = who->lora[0] != '\0' ? who->lora : defaults->lora;
    out->topic = who->topic[0] != '\0' ? who->topic : defaults->topic;
    if (who->speculative_drop != KVB_DROP_DETECT) {
        out->speculative_drop = who->speculative_drop;
    }
    out->first_rank = who->dp_rank;
    out->ranks = 1;
    out->has_own_addresses = true;
    /* No operator has named them: metadata services of clouds are refused there. */
    out->has_foreign_addresses = true;
    out->discover = ""; /* the body has named the addresses */
    out->events = who->endpoint;
    out->replay = who->replay_endpoint;
    *out_facts = who->facts;
    if (config->publish.labels.count > 0) {
        kvb_labels_keep(&out_facts->labels, &config->publish.labels);
    }
    out->facts = kvb_spec_facts_of(out_facts);
    if (out->facts.role == KVB_ROLE_NONE) {
        out->facts.role = defaults->facts.role;
    }
    if (out->facts.tokenize[0] == '\0') {
        out->facts.tokenize = strcmp(defaults->facts.tokenize, KVB_AT_ADDRESS) == 0
                                  ? out->facts.address
                                  : defaults->facts.tokenize;
    }
    /* Last: it is a hash of the addresses that were settled above. */
    if (out->is_id_made) {
        out->id = kvb_worker_id_of_address(out);
    }
    return KVB_OK;
}

/* ---- The list of registrations ---- */

/* All registered ranks of one model must have one block size, and each rank registers once. */
static kvb_status check_beside(
    const struct kvb_worker_list *list, const struct kvb_worker_spec *worker,
    struct kvb_detail *detail)
{
    for (size_t i = 0; i < list->count; i++) {
        const struct kvb_worker_spec *other = list->items[i].spec;
        if (other->block_size != worker->block_size && strcmp(other->model, worker->model) == 0) {
            kvb_detail_set(
                detail, "block_size mismatch for model=%.80s: existing=%u, requested=%u",
                worker->model, other->block_size, worker->block_size);
            return KVB_BAD_CONFIG;
        }
    }
    if (kvb_worker_list_find(list, worker)) {
        kvb_detail_set(
            detail, "instance %" PRIu64 " dp_rank %u already registered", worker->id,
            worker->first_rank);
        return KVB_BAD_CONFIG;
    }
    return KVB_OK;
}

/* Gives the bridge the new list, which is the list then.  What cannot be opened is not registered:
 * the bridge is given the former list again. */
static kvb_status replace_list(
    struct kvb_bridge *bridge, struct kvb_worker_list *list, struct kvb_membership_result *result)
{
    struct bridge_registered *registered = &bridge->membership->registered;
    struct kvb_membership_result of_former = { 0 };
    const kvb_status status =
        kvb_bridge_take_list(bridge, KVB_SOURCE_REGISTERED, list, NULL, result);

    if (status == KVB_OK) {
        const struct kvb_worker_list former = registered->list;
        registered->list = *list;
        *list = former; /* the caller frees it */
    } else if (status == KVB_IO) {
        (void)kvb_bridge_take_list(
            bridge, KVB_SOURCE_REGISTERED, &registered->list, NULL, &of_former);
    }
    return status;
}

static kvb_status add_worker(
    struct kvb_bridge *bridge, const struct kvb_worker_spec *worker,
    struct kvb_membership_result *result)
{
    const struct kvb_worker_list *former = &bridge->membership->registered.list;
    KVB_OWN(kvb_worker_list_done) struct kvb_worker_list list = { 0 };

    KVB_TRY(check_beside(former, worker, &result->why));
    KVB_TRY(kvb_worker_list_share(former, &list));
    KVB_TRY(kvb_worker_list_add(&list, worker));
    return replace_list(bridge, &list, result);
}

static bool is_chosen(const struct kvb_rank_choice *choice, const struct kvb_worker_spec *worker)
{
    return worker->id == choice->worker_id &&
           (!choice->has_rank || worker->first_rank == choice->dp_rank) &&
           (choice->model[0] == '\0' || strcmp(worker->model, choice->model) == 0);
}

static kvb_status remove_workers(
    struct kvb_bridge *bridge, const struct kvb_rank_choice *choice,
    struct kvb_membership_result *result)
{
    const struct kvb_worker_list *former = &bridge->membership->registered.list;
    KVB_OWN(kvb_worker_list_done) struct kvb_worker_list list = { 0 };

    for (size_t i = 0; i < former->count; i++) {
        if (!is_chosen(choice, former->items[i].spec)) {
            KVB_TRY(kvb_worker_list_add_listed(&list, &former->items[i]));
        }
    }
    /* Nothing was registered under this id: the answer says whether another source has it. */
    return list.count < former->count ? replace_list(bridge, &list, result)
                                      : kvb_bridge_find_source(bridge, choice, result);
}

static void log_wish(struct kvb_bridge *bridge, const char *what, uint64_t id, uint32_t dp_rank)
{
    kvb_log_write(
        bridge->log, KVB_LOG_INFO, "bridge", what, "worker", KVB_LOG_U64(id), "dp_rank",
        KVB_LOG_U64(dp_rank), NULL);
}

static void answer_registered(
    struct kvb_http_answer *answer, const struct kvb_registration *who, uint64_t worker_id)
{
    struct kvb_json_writer json;

    begin_answer(&json, answer, 201);
    if (who->has_worker_id && who->is_instance_text) { /* in the form in which it came */
        kvb_json_write_pair_text(&json, "instance_id", who->instance);
    } else if (who->has_worker_id) {
        kvb_json_write_pair_u64(&json, "instance_id", who->worker_id);
    }
    kvb_json_write_pair_u64(&json, "worker_id", worker_id);
    kvb_json_write_pair_u64(&json, "dp_rank", who->dp_rank);
    end_answer(&json, answer);
}

static void answer_register_request(
    struct kvb_bridge *bridge, const struct kvb_http_request *request,
    struct kvb_http_answer *answer)
{
    struct bridge_registered *registered = &bridge->membership->registered;
    struct kvb_registration who;
    struct kvb_worker_facts facts;
    struct kvb_worker_spec worker;
    struct kvb_membership_result result = { 0 };

    if (!is_registration(request, answer)) {
        return;
    }
    kvb_status status = kvb_register_json_decode(request->body, &who, &result.why);
    if (status == KVB_OK) {
        status = make_worker(bridge->config, &who, &facts, &worker, &result.why);
    }
    if (status != KVB_OK) {
        refuse_registration(answer, status, true, &result.why);
        return;
    }
    /* Held until the ingest thread has answered: a second request changes the list that the first
     * has made. */
    (void)pthread_mutex_lock(&registered->lock);
    status = add_worker(bridge, &worker, &result);
    (void)pthread_mutex_unlock(&registered->lock);
    if (status != KVB_OK) {
        refuse_registration(answer, status, false, &result.why);
        return;
    }
    log_wish(bridge, "a rank has registered", worker.id, worker.first_rank);
    answer_registered(answer, &who, worker.id);
}

/* ---- Unregister ---- */

static void answer_unregistered(
    struct kvb_http_answer *answer, const struct kvb_registration *who, size_t ranks)
{
    struct kvb_json_writer json;

    begin_answer(&json, answer, 200);
    kvb_json_write_pair_begin(&json, "removed_instances", '[');
    kvb_json_write_text(&json, who->instance);
    kvb_json_write_end(&json, ']');
    kvb_json_write_pair_u64(&json, "ranks", ranks);
    end_answer(&json, answer);
}

static void answer_unregister_request(
    struct kvb_bridge *bridge, const struct kvb_http_request *request,
    struct kvb_http_answer *answer)
{
    struct bridge_registered *registered = &bridge->membership->registered;
    struct kvb_registration who;
    struct kvb_membership_result result = { 0 };

    if (!is_registration(request, answer)) {
        return;
    }
    kvb_status status = kvb_unregister_json_decode(request->body, &who, &result.why);
    if (status != KVB_OK) {
        refuse_registration(answer, status, true, &result.why);
        return;
    }
    const struct kvb_rank_choice choice = { .worker_id = who.worker_id,
                                            .has_rank = who.has_rank,
                                            .dp_rank = who.dp_rank,
                                            .model = who.model };
    (void)pthread_mutex_lock(&registered->lock);
    status = remove_workers(bridge, &choice, &result);
    (void)pthread_mutex_unlock(&registered->lock);
    if (status != KVB_OK) {
        refuse_registration(answer, status, false, &result.why);
        return;
    }
    log_wish(bridge, "a worker has unregistered", who.worker_id, who.dp_rank);
    answer_unregistered(answer, &who, result.gone);
}

/* ---- Drain ---- */

static void answer_drain(
    struct kvb_bridge *bridge, const struct kvb_http_request *request,
    struct kvb_http_answer *answer, bool is_draining)
{
    struct kvb_registration who;
    struct kvb_membership_result result = { 0 };
    struct kvb_json_writer json;

    if (!is_registration(request, answer)) {
        return;
    }
    kvb_status status = kvb_drain_json_decode(request->body, &who, &result.why);
    if (status != KVB_OK) {
        refuse_registration(answer, status, true, &result.why);
        return;
    }
    const struct kvb_rank_choice choice = {
        .worker_id = who.worker_id, .has_rank = who.has_rank, .dp_rank = who.dp_rank, .model = ""
    };
    status = kvb_bridge_drain(bridge, &choice, is_draining, &result);
    if (status != KVB_OK) {
        refuse_registration(answer, status, false, &result.why);
        return;
    }
    log_wish(
        bridge, is_draining ? "a worker is draining" : "a worker takes requests again",
        who.worker_id, who.dp_rank);
    begin_answer(&json, answer, 200);
    kvb_json_write_pair_u64(&json, "worker_id", who.worker_id);
    kvb_json_write_pair_bool(&json, "draining", is_draining);
    kvb_json_write_pair_u64(&json, "ranks", result.marked);
    end_answer(&json, answer);
}

static void answer_drain_request(
    struct kvb_bridge *bridge, const struct kvb_http_request *request,
    struct kvb_http_answer *answer)
{
    answer_drain(bridge, request, answer, true);
}

static void answer_undrain_request(
    struct kvb_bridge *bridge, const struct kvb_http_request *request,
    struct kvb_http_answer *answer)
{
    answer_drain(bridge, request, answer, false);
}

/* ---- Paths ---- */

/* clang-format off */
static const struct route {
    const char *method;
    const char *path;
    void (*answer)(
        struct kvb_bridge *bridge, const struct kvb_http_request *request,
        struct kvb_http_answer *answer);
} routes[] = {
    { "GET",  "/livez",      answer_live },
    { "GET",  "/readyz",     answer_ready },
    { "GET",  "/metrics",    answer_metrics },
    { "GET",  "/state",      answer_state_page },
    { "POST", "/register",   answer_register_request },
    { "POST", "/unregister", answer_unregister_request },
    { "POST", "/drain",      answer_drain_request },
    { "POST", "/undrain",    answer_undrain_request },
};
/* clang-format on */

void kvb_bridge_answer(
    void *context, const struct kvb_http_request *request, struct kvb_http_answer *answer)
{
    for (size_t i = 0; i < KVB_COUNT_OF(routes); i++) {
        if (strcmp(request->path, routes[i].path) != 0) {
            continue;
        }
        if (strcmp(request->method, routes[i].method) != 0) { /* HEAD arrives as GET */
            answer->allow = routes[i].method;
            answer_text(answer, 405, "this path requires ");
            answer_text(answer, 405, routes[i].method);
            answer_text(answer, 405, "\n");
        } else {
            routes[i].answer(context, request, answer);
        }
        return;
    }
    answer_text(
        answer, 404,
        "no such path; there are /livez /readyz /metrics /state, and POST /register /unregister "
        "/drain "
        "/undrain\n");
}
