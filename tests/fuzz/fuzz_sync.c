#include "wire/router/sync.h"

#include "../unit/wire/sync_sample.h"
#include "core/limits.h"
#include "core/own.h"
#include "router_same.h"
#include "target.h"

#include <stdlib.h>

static void check_request(kvb_span bytes)
{
    KVB_OWN(kvb_buf_done) struct kvb_buf out = { 0 };
    struct kvb_sync_request request;
    struct kvb_sync_request again;

    if (kvb_sync_request_decode(bytes, &request) != KVB_OK) {
        return;
    }
    kvb_buf_init(&out, kvb_max_nats_payload_bytes);
    check(
        kvb_sync_request_encode(&request, &out) == KVB_OK &&
        kvb_sync_request_decode(kvb_buf_span(&out), &again) == KVB_OK &&
        is_same_request(&request, &again));
}

static void check_reply(kvb_span bytes)
{
    KVB_OWN(kvb_buf_done) struct kvb_buf out = { 0 };
    static struct kvb_sync_reply_parts parts; /* reused from input to input */
    static struct kvb_sync_reply_parts more;
    struct kvb_sync_reply reply;
    struct kvb_sync_reply again;

    if (kvb_sync_reply_decode(bytes, &parts, &reply) != KVB_OK) {
        return;
    }
    kvb_buf_init(&out, kvb_max_nats_payload_bytes);
    check(
        kvb_sync_reply_encode(&reply, &out) == KVB_OK &&
        kvb_sync_reply_decode(kvb_buf_span(&out), &more, &again) == KVB_OK &&
        is_same_reply(&reply, &again) && is_same_batch(&parts.events, &more.events));
}

/* What our decoders accept is encoded, and decodes to the same. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const kvb_span bytes = { data, size };

    check_request(bytes);
    check_reply(bytes);
    return 0;
}
