#include "core/own.h"
#include "kvbridge/bridge.h"
#include "kvbridge/parts.h"
#include "kvbridge/shown.h"
#include "wire/json/writer.h"
#include "wire/query/registration.h"

#include <string.h>

/* POST /register, /unregister, /drain and /undrain; the HTTP server has checked the token
 * (daemon/http_access.h).  The body is parsed on an HTTP thread, which
 * then waits while the ingest thread accepts or rejects the request.  A registered rank stays until
 * it is unregistered or the bridge ends; it is not written to the configuration file. */

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
write_registered_instance(struct kvb_json_writer *json, const struct kvb_registration *who)
{
    if (who->is_instance_text) {
        kvb_json_write_text(json, who->instance);
    } else {
        kvb_json_write_u64(json, who->worker_id);
    }
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
 * of a configured worker.  What the body does not say is in the defaults. */
static kvb_status make_worker(
    const struct kvb_worker_config *defaults, const struct kvb_registration *who,
    struct kvb_worker_config *out, struct kvb_detail *detail)
{
    struct kvb_worker_config worker = *defaults;

    KVB_TRY(check_address("endpoint", who->endpoint, detail));
    KVB_TRY(check_address("replay_endpoint", who->replay_endpoint, detail));
    if (strcmp(who->endpoint, who->replay_endpoint) == 0) {
        kvb_detail_set(detail, "replay_endpoint: must differ from endpoint");
        return KVB_BAD_CONFIG;
    }
    worker.id = who->worker_id;
    worker.is_id_made = !who->has_worker_id;
    worker.block_size = who->block_size;
    if (who->speculative_drop != KVB_DROP_DETECT) {
        worker.speculative_drop = who->speculative_drop;
    }
    worker.first_rank = who->dp_rank;
    worker.ranks = 1;
    worker.has_own_addresses = true;
    worker.has_foreign_addresses = true;
    worker.discover[0] = '\0'; /* the body has named the addresses */
    memcpy(worker.events, who->endpoint, sizeof worker.events);
    memcpy(worker.replay, who->replay_endpoint, sizeof worker.replay);
    if (who->topic[0] != '\0') {
        memcpy(worker.topic, who->topic, sizeof worker.topic);
    }
    memcpy(worker.model, who->model, sizeof worker.model);
    if (who->lora[0] != '\0') {
        memcpy(worker.lora, who->lora, sizeof worker.lora);
    }
    worker.facts = who->facts;
    if (worker.facts.role == KVB_ROLE_NONE) {
        worker.facts.role = defaults->facts.role;
    }
    if (worker.facts.tokenize[0] == '\0') {
        const bool is_at_address = strcmp(defaults->facts.tokenize, KVB_AT_ADDRESS) == 0;
        memcpy(
            worker.facts.tokenize, is_at_address ? who->facts.address : defaults->facts.tokenize,
            sizeof worker.facts.tokenize);
    }
    if (worker.is_id_made) {
        worker.id = kvb_worker_id_of_address(&worker);
    }
    *out = worker;
    return KVB_OK;
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
    if (who->has_worker_id) {
        kvb_json_write_key(&json, "instance_id");
        write_registered_instance(&json, who);
    }
    kvb_json_write_pair_u64(&json, "worker_id", worker_id);
    kvb_json_write_pair_u64(&json, "dp_rank", who->dp_rank);
    end_answer(&json, answer);
}

void kvb_bridge_answer_register(
    struct kvb_bridge *bridge, const struct kvb_http_request *request,
    struct kvb_http_answer *answer)
{
    static const struct kvb_membership_request wish = { .kind = KVB_BRIDGE_REGISTER,
                                                        .origin = KVB_BRIDGE_OF_REGISTERED };
    struct kvb_registration who;
    struct kvb_worker_config worker;
    struct kvb_membership_result result = { 0 };

    if (!is_registration(request, answer)) {
        return;
    }
    kvb_status status = kvb_register_json_decode(request->body, &who, &result.why);
    if (status == KVB_OK) {
        status = make_worker(&bridge->config->defaults, &who, &worker, &result.why);
    }
    if (status != KVB_OK) {
        refuse_registration(answer, status, true, &result.why);
        return;
    }
    status = kvb_bridge_request_membership(bridge, &wish, &worker, 1, &result);
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

void kvb_bridge_answer_unregister(
    struct kvb_bridge *bridge, const struct kvb_http_request *request,
    struct kvb_http_answer *answer)
{
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
    struct kvb_membership_request wish = { .kind = KVB_BRIDGE_FORGET,
                                           .worker_id = who.worker_id,
                                           .has_rank = who.has_rank,
                                           .dp_rank = who.dp_rank };
    memcpy(wish.model, who.model, sizeof wish.model);
    status = kvb_bridge_request_membership(bridge, &wish, NULL, 0, &result);
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
    struct kvb_http_answer *answer, enum kvb_bridge_wish kind)
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
    const struct kvb_membership_request wish = {
        .kind = kind, .worker_id = who.worker_id, .has_rank = who.has_rank, .dp_rank = who.dp_rank
    };
    status = kvb_bridge_request_membership(bridge, &wish, NULL, 0, &result);
    if (status != KVB_OK) {
        refuse_registration(answer, status, false, &result.why);
        return;
    }
    const bool is_draining = kind == KVB_BRIDGE_DRAIN;
    log_wish(
        bridge, is_draining ? "a worker is draining" : "a worker takes requests again",
        who.worker_id, who.dp_rank);
    begin_answer(&json, answer, 200);
    kvb_json_write_pair_u64(&json, "worker_id", who.worker_id);
    kvb_json_write_pair_bool(&json, "draining", is_draining);
    kvb_json_write_pair_u64(&json, "ranks", result.marked);
    end_answer(&json, answer);
}

void kvb_bridge_answer_drain(
    struct kvb_bridge *bridge, const struct kvb_http_request *request,
    struct kvb_http_answer *answer)
{
    answer_drain(bridge, request, answer, KVB_BRIDGE_DRAIN);
}

void kvb_bridge_answer_undrain(
    struct kvb_bridge *bridge, const struct kvb_http_request *request,
    struct kvb_http_answer *answer)
{
    answer_drain(bridge, request, answer, KVB_BRIDGE_UNDRAIN);
}
