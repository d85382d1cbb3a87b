#include "ingest/zmq/zap.h"

#include "ingest/zmq/inside.h"
#include "ingest/zmq/socket.h"

#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <zmq.h>

/* The parts of a request: version, id, domain, address, identity, mechanism, key. */
enum { part_id = 1, part_domain = 2, part_mechanism = 5, part_key = 6, max_parts = 7 };

enum { part_bytes = 256, requests_a_turn = 16 };

struct zap_request {
    uint8_t parts[max_parts][part_bytes];
    size_t lens[max_parts];
    size_t count;
};

void kvb_zap_write_domain(char out_domain[kvb_zap_domain_bytes], size_t owner)
{
    (void)snprintf(out_domain, kvb_zap_domain_bytes, "%zu", owner);
}

static kvb_status open_responder(void *context, void **out_socket)
{
    const int none = 0;
    void *socket = zmq_socket(context, ZMQ_REP);

    if (!socket || zmq_setsockopt(socket, ZMQ_LINGER, &none, sizeof none) != 0 ||
        zmq_bind(socket, "inproc://zeromq.zap.01") != 0) {
        kvb_zmq_socket_close(&socket);
        return KVB_IO;
    }
    *out_socket = socket;
    return KVB_OK;
}

kvb_status kvb_zap_add(struct kvb_zmq *zmq, struct kvb_zap_rule *rule)
{
    void **responder = &zmq->responders[kvb_zmq_context_number(rule->owner)];

    if (!*responder) {
        KVB_TRY(open_responder(kvb_zmq_context(zmq, rule->owner), responder));
    }
    rule->next = zmq->rules;
    zmq->rules = rule;
    return KVB_OK;
}

void kvb_zap_remove(struct kvb_zmq *zmq, const struct kvb_zap_rule *rule)
{
    for (struct kvb_zap_rule **at = &zmq->rules; *at; at = &(*at)->next) {
        if (*at == rule) {
            *at = rule->next;
            return;
        }
    }
}

/* Reads a request without waiting.  A longer part is cut at part_bytes; is_allowed() does not
 * accept it as domain, mechanism or key.  Parts above max_parts overwrite the last one;
 * is_allowed() rejects their number. */
static bool read_zap_request(void *responder, struct zap_request *out)
{
    int has_more = 1;
    size_t size = sizeof has_more;

    out->count = 0;
    while (has_more) {
        const size_t at = out->count < max_parts ? out->count : max_parts - 1;
        const int len = zmq_recv(responder, out->parts[at], part_bytes, ZMQ_DONTWAIT);
        if (len < 0) {
            return false;
        }
        out->lens[at] = (size_t)len < part_bytes ? (size_t)len : part_bytes;
        out->count++;
        if (zmq_getsockopt(responder, ZMQ_RCVMORE, &has_more, &size) != 0) {
            return false;
        }
    }
    return true;
}

static bool is_part(const struct zap_request *request, size_t part, const char *text)
{
    const size_t len = strlen(text);

    return request->lens[part] == len && memcmp(request->parts[part], text, len) == 0;
}

static bool is_allowed(const struct kvb_zmq *zmq, const struct zap_request *request)
{
    char domain[kvb_zap_domain_bytes];

    if (request->count != max_parts || !is_part(request, part_mechanism, "CURVE")) {
        return false;
    }
    for (const struct kvb_zap_rule *rule = zmq->rules; rule; rule = rule->next) {
        kvb_zap_write_domain(domain, rule->owner);
        if (is_part(request, part_domain, domain)) {
            return kvb_curve_allows(rule->curve, request->parts[part_key], request->lens[part_key]);
        }
    }
    return false;
}

static void send_zap_reply(void *responder, const struct zap_request *request, bool is_yes)
{
    const char *const status = is_yes ? "200" : "400";
    const kvb_span parts[] = {
        { (const uint8_t *)"1.0", 3 },
        { request->parts[part_id], request->count > part_id ? request->lens[part_id] : 0 },
        { (const uint8_t *)status, 3 },
        { (const uint8_t *)"", 0 }, /* no status text, no user name, no metadata */
        { (const uint8_t *)"", 0 },
        { (const uint8_t *)"", 0 },
    };
    const size_t count = sizeof parts / sizeof parts[0];

    for (size_t i = 0; i < count; i++) {
        const int more = i + 1 < count ? ZMQ_SNDMORE : 0;
        /* Fails only when libzmq no longer waits for the reply. */
        (void)zmq_send(responder, parts[i].data, parts[i].len, ZMQ_DONTWAIT | more);
    }
}

void kvb_zmq_answer_handshakes(struct kvb_zmq *zmq)
{
    struct zap_request request;

    for (size_t i = 0; i < kvb_max_zmq_contexts; i++) {
        for (int turn = 0; zmq->responders[i] && turn < requests_a_turn; turn++) {
            if (!read_zap_request(zmq->responders[i], &request)) {
                break;
            }
            send_zap_reply(zmq->responders[i], &request, is_allowed(zmq, &request));
        }
    }
}
