#include "core/own.h"
#include "wire/query/forward.h"

#include <stdlib.h>
#include <string.h>

/* What is read is written, and read again, as the same. */

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_offer(kvb_span json)
{
    KVB_OWN(kvb_buf_done) struct kvb_buf buf = { 0 };
    struct kvb_forward_offer offer = { .ranks = 0 };
    struct kvb_forward_offer again = { .ranks = 0 };

    kvb_buf_init(&buf, kvb_max_forward_bytes);
    if (kvb_forward_offer_decode(json, &offer) == KVB_OK &&
        (kvb_forward_offer_encode(&offer, &buf) != KVB_OK ||
         kvb_forward_offer_decode(kvb_buf_span(&buf), &again) != KVB_OK ||
         strcmp(offer.bridge, again.bridge) != 0 || offer.ranks != again.ranks)) {
        abort();
    }
}

static void check_request(kvb_span json)
{
    static struct kvb_forward_request request;
    static struct kvb_forward_request again;
    KVB_OWN(kvb_buf_done) struct kvb_buf buf = { 0 };

    kvb_buf_init(&buf, kvb_max_forward_bytes);
    if (kvb_forward_request_decode(json, &request) == KVB_OK &&
        (kvb_forward_request_encode(&request, &buf) != KVB_OK ||
         kvb_forward_request_decode(kvb_buf_span(&buf), &again) != KVB_OK ||
         strcmp(request.path, again.path) != 0)) {
        abort();
    }
}

static void check_answer(kvb_span json)
{
    static struct kvb_forward_answer answer;

    if (kvb_forward_answer_decode(json, &answer) == KVB_OK &&
        (answer.status < 200 || answer.status > 599 ||
         strlen(answer.body) > kvb_max_register_bytes)) {
        abort();
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const kvb_span json = { .data = data, .len = size };

    check_offer(json);
    check_request(json);
    check_answer(json);
    return 0;
}
