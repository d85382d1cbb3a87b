#include "bus/link.h"
#include "bus/subject.h"
#include "core/own.h"

#include <limits.h>

static void drop_message(natsMsg **message)
{
    natsMsg_Destroy(*message); /* NULL is fine */
}

static void explain_request(
    struct kvb_detail *detail, const char *subject, uint32_t timeout_ms, natsStatus status)
{
    switch (status) {
    case NATS_NO_RESPONDERS:
        kvb_detail_set(detail, "nobody answers %s", subject);
        break;
    case NATS_TIMEOUT:
        kvb_detail_set(detail, "no answer to %s within %u ms", subject, timeout_ms);
        break;
    default:
        kvb_detail_set(detail, "%s: %s", subject, natsStatus_GetText(status));
        break;
    }
}

/* A timeout means that the answer is late, not that the write failed: the link stays. */
static kvb_status send_bus_request(
    struct kvb_link *link, const char *subject, kvb_span payload, uint32_t timeout_ms,
    natsMsg **out_answer, struct kvb_detail *detail)
{
    const natsStatus status = natsConnection_Request(
        out_answer, link->nats, subject, payload.data, (int)payload.len, timeout_ms);

    if (status != NATS_OK) {
        explain_request(detail, subject, timeout_ms, status);
    }
    return kvb_bus_from_nats(status);
}

kvb_status kvb_bus_request(
    struct kvb_bus *bus, const char *subject, kvb_span payload, uint32_t timeout_ms,
    kvb_bus_handler handler, void *context, struct kvb_detail *detail)
{
    KVB_OWN(drop_message) natsMsg *answer = NULL;

    if (!kvb_subject_is_valid(subject, false)) {
        kvb_detail_set(detail, "invalid subject");
        return KVB_BAD_INPUT;
    }
    if (payload.len > INT_MAX) {
        kvb_detail_set(detail, "the request is too large");
        return KVB_TOO_LARGE;
    }
    struct kvb_link *link = kvb_link_use(bus);
    if (!link) {
        kvb_detail_set(detail, "not connected to %s", bus->shown_url);
        return KVB_AGAIN;
    }
    const kvb_status status = send_bus_request(link, subject, payload, timeout_ms, &answer, detail);
    kvb_link_release(link);
    KVB_TRY(status);

    const int len = natsMsg_GetDataLength(answer);
    const struct kvb_bus_message message = {
        .subject = natsMsg_GetSubject(answer),
        .payload = { (const uint8_t *)natsMsg_GetData(answer), len > 0 ? (size_t)len : 0 },
    };
    handler(context, &message);
    return KVB_OK;
}
