#include "kvbridge/explain_responder.h"

#include "bus/subject.h"

#include <stdlib.h>
#include <string.h>

enum { waiting_explains = 8 };

void kvb_pending_explain_free(struct kvb_pending_explain *pending)
{
    if (pending) {
        kvb_explain_request_done(&pending->request);
        free(pending);
    }
}

static void drop_pending_explain(void *item)
{
    kvb_pending_explain_free(item);
}

kvb_status kvb_explain_responder_init(struct kvb_explain_responder *responder)
{
    return kvb_ring_new(waiting_explains, drop_pending_explain, &responder->incoming);
}

void kvb_explain_responder_done(struct kvb_explain_responder *responder)
{
    kvb_ring_free(responder->incoming);
}

/* An answer among events would stop some routers for good. */
static bool
read_explain_subjects(const struct kvb_bus_message *message, struct kvb_pending_explain *pending)
{
    const char *reply = message->reply ? message->reply : "";
    const size_t len = strlen(reply);

    if (len == 0 || len >= sizeof pending->reply || kvb_reply_is_refused(reply) ||
        kvb_subject_read_stream(
            message->subject, "kv_explain", &pending->worker_id, &pending->dp_rank) != KVB_OK) {
        return false;
    }
    memcpy(pending->reply, reply, len + 1);
    return true;
}

void kvb_explain_responder_receive(void *context, const struct kvb_bus_message *message)
{
    struct kvb_explain_responder *responder = context;
    struct kvb_pending_explain *pending = NULL;

    if (kvb_ring_count(responder->incoming) < waiting_explains) {
        pending = calloc(1, sizeof *pending);
    }
    if (!pending || !read_explain_subjects(message, pending)) {
        kvb_pending_explain_free(pending);
        responder->refused++;
        return;
    }
    if (responder->has_stream &&
        !responder->has_stream(responder->context, pending->worker_id, pending->dp_rank)) {
        kvb_pending_explain_free(pending);
        return;
    }
    const kvb_status status =
        kvb_explain_json_decode(message->payload, &pending->request, &pending->why);
    pending->is_bad = status != KVB_OK;
    if (pending->is_bad && pending->why.text[0] == '\0') {
        kvb_detail_set(&pending->why, "the request cannot be read: %s", kvb_status_name(status));
    }
    responder->refused += pending->is_bad;
    if (kvb_ring_put(responder->incoming, pending) != KVB_OK) {
        kvb_pending_explain_free(pending);
        responder->refused++;
    }
}

struct kvb_pending_explain *kvb_explain_responder_take(struct kvb_explain_responder *responder)
{
    void *item = NULL;

    return kvb_ring_take(responder->incoming, &item) == KVB_OK ? item : NULL;
}
