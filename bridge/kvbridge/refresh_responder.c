#include "kvbridge/refresh_responder.h"

#include "bus/subject.h"

#include <stdlib.h>
#include <string.h>

enum { waiting_requests = 64 };

kvb_status kvb_refresh_responder_init(struct kvb_refresh_responder *responder)
{
    return kvb_ring_new(waiting_requests, free, &responder->incoming);
}

void kvb_refresh_responder_done(struct kvb_refresh_responder *responder)
{
    kvb_ring_free(responder->incoming);
}

/* An answer among events would stop some routers for good. */
static bool
read_reply_subject(const struct kvb_bus_message *message, struct kvb_pending_refresh *pending)
{
    const char *reply = message->reply ? message->reply : "";
    const size_t len = strlen(reply);

    if (len >= sizeof pending->reply || kvb_reply_is_refused(reply)) {
        return false;
    }
    memcpy(pending->reply, reply, len + 1);
    return true;
}

static void
queue(struct kvb_refresh_responder *responder, const struct kvb_pending_refresh *pending)
{
    struct kvb_pending_refresh *copy = malloc(sizeof *copy);

    if (copy) {
        *copy = *pending;
    }
    if (!copy || kvb_ring_put(responder->incoming, copy) != KVB_OK) {
        free(copy);
        responder->refused++;
    }
}

void kvb_refresh_responder_receive(void *context, const struct kvb_bus_message *message)
{
    struct kvb_refresh_responder *responder = context;
    struct kvb_pending_refresh pending = { .is_bad = false };

    if (!read_reply_subject(message, &pending)) {
        responder->refused++;
        return;
    }
    pending.is_bad =
        kvb_refresh_json_decode(message->payload, &pending.request, &pending.why) != KVB_OK;
    responder->refused += pending.is_bad;
    queue(responder, &pending);
}

int kvb_refresh_responder_fd(const struct kvb_refresh_responder *responder)
{
    return kvb_ring_fd(responder->incoming);
}

kvb_status kvb_refresh_responder_take(
    struct kvb_refresh_responder *responder, struct kvb_pending_refresh *out_pending)
{
    void *item = NULL;

    KVB_TRY(kvb_ring_take(responder->incoming, &item));
    memcpy(out_pending, item, sizeof *out_pending);
    free(item);
    return KVB_OK;
}
