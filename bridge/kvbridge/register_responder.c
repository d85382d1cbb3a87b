#include "bus/proof.h"
#include "core/clock.h"
#include "core/own.h"
#include "daemon/bearer_token.h"
#include "kvbridge/inside.h"
#include "wire/query/registration.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

/* Registrations that aggregators forward (wire/query/forward.h).
 *
 *     P.kv_register.all       --> an offer, with a challenge
 *     P.kv_register.{bridge}  --> challenge, proof --> what POST /register does --> an answer
 *
 * There are no subscriptions without register.token_file.  Each subscription has a thread of
 * nats.c, which waits here for the ingest thread. */

enum { max_answer_bytes = kvb_max_forward_bytes };

/* False: nobody may be answered on that subject. */
static bool is_answerable(struct kvb_bridge *bridge, const struct kvb_bus_message *message)
{
    if (message->reply && !kvb_reply_is_refused(message->reply)) {
        return true;
    }
    kvb_bridge_count(&bridge->shown, kvb_bridge_forwarded_malformed, 1);
    return false;
}

/* If it is lost, the aggregator says that there was no answer. */
static void
send_forward_answer(struct kvb_bridge *bridge, const char *reply, const struct kvb_buf *buf)
{
    (void)kvb_bus_publish(bridge->publisher.bus, reply, kvb_buf_span(buf));
    kvb_bus_flush_soon(bridge->publisher.bus);
}

/* ---- Offers ---- */

static kvb_status
give_challenge(struct bridge_forwarded *forwarded, char out_challenge[kvb_forward_challenge_bytes])
{
    uint8_t random[16];

    if (getrandom(random, sizeof random, 0) != sizeof random) {
        return KVB_IO;
    }
    (void)pthread_mutex_lock(&forwarded->lock);
    kvb_challenges_give(&forwarded->challenges, random, kvb_clock_monotonic_ns(), out_challenge);
    (void)pthread_mutex_unlock(&forwarded->lock);
    return KVB_OK;
}

static kvb_status make_offer(
    struct kvb_bridge *bridge, const struct kvb_registration *who, struct kvb_forward_offer *offer)
{
    const struct kvb_membership_request wish = { .kind = KVB_BRIDGE_LOOK_UP,
                                                 .worker_id = who->worker_id };
    struct kvb_membership_result result = { 0 };

    KVB_TRY(kvb_bridge_request_membership(bridge, &wish, NULL, 0, &result));
    offer->ranks = result.same;
    offer->held = result.marked;
    memcpy(offer->bridge, bridge->forwarded.name, sizeof offer->bridge);
    (void)snprintf(offer->bridge_id, sizeof offer->bridge_id, "%s", bridge->bridge_id);
    return give_challenge(&bridge->forwarded, offer->challenge);
}

static void receive_lookup(void *context, const struct kvb_bus_message *message)
{
    struct kvb_bridge *bridge = context;
    KVB_OWN(kvb_buf_done) struct kvb_buf buf = { 0 };
    struct kvb_registration who;
    struct kvb_forward_offer offer;

    if (!is_answerable(bridge, message)) {
        return;
    }
    if (kvb_drain_json_decode(message->payload, &who, NULL) != KVB_OK) {
        kvb_bridge_count(&bridge->shown, kvb_bridge_forwarded_malformed, 1);
        return;
    }
    kvb_buf_init(&buf, max_answer_bytes);
    if (make_offer(bridge, &who, &offer) == KVB_OK &&
        kvb_forward_offer_encode(&offer, &buf) == KVB_OK) {
        send_forward_answer(bridge, message->reply, &buf);
    }
}

/* ---- Requests ---- */

static bool use_challenge(struct bridge_forwarded *forwarded, const char *challenge)
{
    (void)pthread_mutex_lock(&forwarded->lock);
    const bool is_good =
        kvb_challenges_use(&forwarded->challenges, challenge, kvb_clock_monotonic_ns());
    (void)pthread_mutex_unlock(&forwarded->lock);
    return is_good;
}

static bool has_right_proof(
    const struct kvb_bridge *bridge, const struct kvb_forward_request *request, const char *token)
{
    KVB_OWN(kvb_buf_done) struct kvb_buf text = { 0 };

    kvb_buf_init(&text, max_answer_bytes);
    return kvb_forward_text(bridge->forwarded.name, request, &text) == KVB_OK &&
           kvb_proof_is_right(token, kvb_buf_span(&text), request->proof);
}

/* False: *answer is complete. */
static bool is_forward_granted(
    struct kvb_bridge *bridge, const struct kvb_forward_request *request,
    struct kvb_http_answer *answer)
{
    char token[kvb_bearer_token_bytes];
    struct kvb_detail why = { .text = "" };

    if (!use_challenge(&bridge->forwarded, request->challenge)) {
        kvb_http_refuse(answer, 403, "the challenge is unknown, used or too old: try again");
        return false;
    }
    if (kvb_bearer_token_read(bridge->config->registering.token_file, token, &why) != KVB_OK) {
        kvb_http_refuse(
            answer, 503, "register.token_file of the bridge cannot be used: its log says why");
        kvb_log_write(
            bridge->log, KVB_LOG_ERROR, "bridge", "a forwarded registration was refused", "why",
            why.text, NULL);
        return false;
    }
    const bool is_right = has_right_proof(bridge, request, token);
    explicit_bzero(token, sizeof token);
    if (!is_right) {
        kvb_http_refuse(
            answer, 403,
            "the proof is wrong: register.token_file of the aggregator and of the bridge must "
            "hold the same token");
    }
    return is_right;
}

static void answer_forwarded(
    struct kvb_bridge *bridge, const struct kvb_forward_request *request,
    struct kvb_http_answer *answer)
{
    const struct kvb_http_request http = { .method = "POST",
                                           .path = request->path,
                                           .query = "",
                                           .content_type = "application/json",
                                           .authorization = "",
                                           .if_none_match = "",
                                           .body = kvb_span_of(request->body) };

    if (!is_forward_granted(bridge, request, answer)) {
        kvb_bridge_count(&bridge->shown, kvb_bridge_forwarded_denied, 1);
        return;
    }
    kvb_bridge_count(&bridge->shown, kvb_bridge_forwarded_taken, 1);
    if (strcmp(request->path, "/register") == 0) {
        kvb_bridge_answer_register(bridge, &http, answer);
    } else if (strcmp(request->path, "/unregister") == 0) {
        kvb_bridge_answer_unregister(bridge, &http, answer);
    } else {
        kvb_http_refuse(answer, 404, "only /register and /unregister are forwarded");
    }
}

static void receive_forwarded(void *context, const struct kvb_bus_message *message)
{
    struct kvb_bridge *bridge = context;
    KVB_OWN(kvb_buf_done) struct kvb_buf buf = { 0 };
    struct kvb_forward_request *request = NULL;
    struct kvb_http_answer answer = { 0 };

    if (!is_answerable(bridge, message)) {
        return;
    }
    request = calloc(1, sizeof *request); /* 16 KiB: no place for it on a thread of nats.c */
    kvb_buf_init(&buf, max_answer_bytes);
    kvb_buf_init(&answer.body, max_answer_bytes);
    if (request && kvb_forward_request_decode(message->payload, request) == KVB_OK) {
        answer_forwarded(bridge, request, &answer);
    } else {
        kvb_bridge_count(&bridge->shown, kvb_bridge_forwarded_malformed, 1);
        kvb_http_refuse(&answer, 400, "the bridge cannot read the forwarded request");
    }
    if (kvb_forward_answer_encode(answer.status, kvb_buf_span(&answer.body), &buf) == KVB_OK) {
        send_forward_answer(bridge, message->reply, &buf);
    }
    kvb_buf_done(&answer.body);
    free(request);
}

/* ---- Subscriptions ---- */

static kvb_status subscribe_forwarded(
    struct kvb_bridge *bridge, const char *id, kvb_bus_handler handler,
    struct kvb_bus_subscription **out_subscription)
{
    struct kvb_subject_names names = bridge->publisher.names;
    char subject[kvb_subject_bytes];

    names.id = id;
    KVB_TRY(kvb_contract_subject_make(KVB_SUBJECT_REGISTER, &names, subject));
    return kvb_bus_subscribe(bridge->publisher.bus, subject, handler, bridge, out_subscription);
}

kvb_status kvb_bridge_open_forwarded(struct kvb_bridge *bridge)
{
    struct bridge_forwarded *forwarded = &bridge->forwarded;

    if (bridge->config->registering.token_file[0] == '\0') {
        return KVB_OK;
    }
    (void)snprintf(
        forwarded->name, sizeof forwarded->name, "%016" PRIx64, bridge->standby.publisher);
    KVB_TRY(subscribe_forwarded(bridge, KVB_FORWARD_TO_ALL, receive_lookup, &forwarded->lookups));
    return subscribe_forwarded(bridge, forwarded->name, receive_forwarded, &forwarded->requests);
}

void kvb_bridge_close_forwarded(struct bridge_forwarded *forwarded)
{
    kvb_bus_unsubscribe(forwarded->lookups);
    kvb_bus_unsubscribe(forwarded->requests);
}
