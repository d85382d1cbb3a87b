#include "daemon/refresh_desk.h"

#include "bus/subject.h"

#include <stdlib.h>
#include <string.h>

enum { waiting_asks = 64 };

kvb_status kvb_refresh_desk_init(struct kvb_refresh_desk *desk)
{
    return kvb_ring_new(waiting_asks, free, &desk->asks);
}

void kvb_refresh_desk_done(struct kvb_refresh_desk *desk)
{
    kvb_ring_free(desk->asks);
}

/* An answer among events would stop some routers for good. */
static bool read_reply(const struct kvb_bus_message *message, struct kvb_refresh_ask *ask)
{
    const char *reply = message->reply ? message->reply : "";
    const size_t len = strlen(reply);

    if (len >= sizeof ask->reply || kvb_subject_is_of_contract(reply)) {
        return false;
    }
    memcpy(ask->reply, reply, len + 1);
    return true;
}

static void queue(struct kvb_refresh_desk *desk, const struct kvb_refresh_ask *ask)
{
    struct kvb_refresh_ask *copy = malloc(sizeof *copy);

    if (copy) {
        *copy = *ask;
    }
    if (!copy || kvb_ring_put(desk->asks, copy) != KVB_OK) {
        free(copy);
        desk->refused++;
    }
}

void kvb_refresh_desk_hear(void *context, const struct kvb_bus_message *message)
{
    struct kvb_refresh_desk *desk = context;
    struct kvb_refresh_ask ask = { .is_bad = false };

    if (!read_reply(message, &ask)) {
        desk->refused++;
        return;
    }
    ask.is_bad = kvb_refresh_json_decode(message->payload, &ask.request, &ask.why) != KVB_OK;
    desk->refused += ask.is_bad;
    queue(desk, &ask);
}

int kvb_refresh_desk_fd(const struct kvb_refresh_desk *desk)
{
    return kvb_ring_fd(desk->asks);
}

kvb_status kvb_refresh_desk_take(struct kvb_refresh_desk *desk, struct kvb_refresh_ask *out_ask)
{
    void *item = NULL;

    KVB_TRY(kvb_ring_take(desk->asks, &item));
    memcpy(out_ask, item, sizeof *out_ask);
    free(item);
    return KVB_OK;
}
