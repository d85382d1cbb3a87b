#pragma once

#include "core/buf.h"
#include "core/limits.h"
#include "core/span.h"
#include "core/status.h"

#include <stdint.h>

/* Registrations that an aggregator forwards to a bridge over NATS, as JSON.
 *
 *     aggregator                                        bridges
 *     P.kv_register.all       {"worker_id":7}       --> each that takes registrations
 *                             <-- offer: {"bridge":"16 hex digits","bridge_id":...,"ranks":12,
 *                                         "held":0,"challenge":"32 hex digits"}
 *     P.kv_register.{bridge}  request: {"path":"/register","challenge":...,"proof":...,
 *                                       "body":"{\"instance_id\":7,...}"}   --> one bridge
 *                             <-- answer: {"status":201,"body":"{\"status\":\"ok\",...}"}
 *
 * `body` is what POST /register takes and returns (wire/query/registration.h).  `proof` is the
 * HMAC-SHA256 (bus/proof.h) of kvb_forward_text() with the token to register as the key.  It shows
 * that the sender knows the token, which is never sent.  A challenge is good for one request.
 *
 * Unknown fields are skipped.  Threads: any thread.
 *
 * decode: KVB_BAD_INPUT  not such a message, or a field is too long
 *         KVB_TOO_LARGE, KVB_NO_MEMORY
 * encode: KVB_TOO_LARGE, KVB_NO_MEMORY */

#define KVB_FORWARD_TO_ALL "all" /* the end of the subject of all bridges */

enum {
    kvb_forward_bridge_bytes = 16 + 1,
    kvb_forward_bridge_id_bytes = 64 + 1,
    kvb_forward_challenge_bytes = 32 + 1,
    kvb_forward_proof_bytes = 64 + 1,
    kvb_forward_path_bytes = 16,
    kvb_max_forward_bytes =
        8 * kvb_max_register_bytes /* a body in quotes may have 6 times as many */
};

struct kvb_forward_offer {
    char bridge[kvb_forward_bridge_bytes]; /* the end of its subject */
    char bridge_id[kvb_forward_bridge_id_bytes];
    char challenge[kvb_forward_challenge_bytes];
    uint64_t ranks; /* that the bridge reads */
    uint64_t held;  /* of them, those of the worker */
};

struct kvb_forward_request {
    char path[kvb_forward_path_bytes];
    char challenge[kvb_forward_challenge_bytes];
    char proof[kvb_forward_proof_bytes];
    char body[kvb_max_register_bytes + 1];
};

struct kvb_forward_answer {
    unsigned status; /* of HTTP */
    char body[kvb_max_register_bytes + 1];
};

kvb_status kvb_forward_offer_encode(const struct kvb_forward_offer *offer, struct kvb_buf *out);
kvb_status kvb_forward_offer_decode(kvb_span json, struct kvb_forward_offer *out_offer);

kvb_status
kvb_forward_request_encode(const struct kvb_forward_request *request, struct kvb_buf *out);
kvb_status kvb_forward_request_decode(kvb_span json, struct kvb_forward_request *out_request);

kvb_status kvb_forward_answer_encode(unsigned status, kvb_span body, struct kvb_buf *out);
kvb_status kvb_forward_answer_decode(kvb_span json, struct kvb_forward_answer *out_answer);

/* Appends what the proof is made of: bridge, challenge, path and body, a line each. */
kvb_status kvb_forward_text(
    const char *bridge, const struct kvb_forward_request *request, struct kvb_buf *out);
