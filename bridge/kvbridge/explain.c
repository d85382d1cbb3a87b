#include "stream/explain.h"
#include "core/clock.h"
#include "core/limits.h"
#include "core/own.h"
#include "kvbridge/inside.h"

/* Answers people who ask why a stream lists the blocks of a prompt, or does not.  One request a
 * turn, and then a pause: an answer takes up to some milliseconds, and engines come first. */

enum { max_explain_rows = 2048, explain_pauses = 9, max_error_bytes = 1024 };

static void publish_explain_error(
    struct bridge_publisher *publisher, const struct kvb_pending_explain *pending, const char *why)
{
    KVB_OWN(kvb_buf_done) struct kvb_buf buf = { 0 };

    kvb_buf_init(&buf, max_error_bytes);
    if (kvb_http_write_error(why, &buf) == KVB_OK) {
        (void)kvb_bus_publish(publisher->bus, pending->reply, kvb_buf_span(&buf));
    }
}

static const char *why_unexplained(kvb_status status)
{
    return status == KVB_TOO_LARGE   ? "token_ids: the prompt has more than 65536 blocks"
           : status == KVB_BAD_INPUT ? "the stream has no block size yet"
                                     : "out of memory";
}

static kvb_status answer_explained(
    struct kvb_bridge *bridge, const struct kvb_stream *stream,
    const struct kvb_pending_explain *pending)
{
    KVB_OWN(kvb_explanation_done) struct kvb_explanation said = { 0 };
    KVB_OWN(kvb_buf_done) struct kvb_buf buf = { 0 };
    struct kvb_bus *bus = bridge->publisher.bus;
    const size_t max_bytes = kvb_bus_max_payload(bus);

    KVB_TRY(kvb_stream_explain(
        stream, &pending->request.query, pending->request.from, max_explain_rows, &said));
    kvb_buf_init(&buf, kvb_max_nats_payload_bytes);
    KVB_TRY(kvb_explain_json_encode(
        &said, bridge->bridge_id,
        max_bytes < kvb_max_nats_payload_bytes ? max_bytes : kvb_max_nats_payload_bytes, &buf));
    (void)kvb_bus_publish(bus, pending->reply, kvb_buf_span(&buf)); /* if lost: ask again */
    return KVB_OK;
}

/* A stream of another bridge, or that another bridge publishes, is left to that bridge. */
static void answer_explain(struct kvb_bridge *bridge, const struct kvb_pending_explain *pending)
{
    const struct bridge_rank *rank =
        kvb_bridge_find_rank(bridge, pending->worker_id, pending->dp_rank);

    if (!rank || !kvb_bridge_publishes(bridge, rank)) {
        return;
    }
    if (pending->is_bad) {
        publish_explain_error(&bridge->publisher, pending, pending->why.text);
        return;
    }
    const kvb_status status = answer_explained(bridge, rank->served.stream, pending);
    if (status != KVB_OK) {
        publish_explain_error(&bridge->publisher, pending, why_unexplained(status));
    }
    kvb_metric_add(&bridge->shown.metrics, kvb_bridge_explain_answered, status == KVB_OK);
    bridge->explain.responder.refused += status != KVB_OK;
}

void kvb_bridge_explain(struct kvb_bridge *bridge, uint64_t now_ns)
{
    struct kvb_pending_explain *pending = NULL;

    if (now_ns >= bridge->explain.not_before_ns) {
        pending = kvb_explain_responder_take(&bridge->explain.responder);
    }
    if (!pending) {
        return;
    }
    answer_explain(bridge, pending);
    kvb_pending_explain_free(pending);
    const uint64_t end_ns = kvb_clock_monotonic_ns();
    bridge->explain.not_before_ns = end_ns + explain_pauses * (end_ns - now_ns);
}

/* On nats.c's thread.  While a rank is added or removed, it is left to the ingest thread. */
static bool has_explained_stream(void *context, uint64_t worker_id, uint32_t dp_rank)
{
    struct kvb_bridge *bridge = context;

    if (pthread_rwlock_tryrdlock(&bridge->shown.sets_lock) != 0) {
        return true;
    }
    const bool is_found = kvb_bridge_find_rank(bridge, worker_id, dp_rank) != NULL;
    (void)pthread_rwlock_unlock(&bridge->shown.sets_lock);
    return is_found;
}

kvb_status kvb_bridge_open_explain(struct kvb_bridge *bridge)
{
    char subject[kvb_subject_bytes];

    bridge->explain.responder.has_stream = has_explained_stream;
    bridge->explain.responder.context = bridge;
    KVB_TRY(kvb_explain_responder_init(&bridge->explain.responder));
    KVB_TRY(kvb_contract_subject_make(KVB_SUBJECT_EXPLAIN, &bridge->publisher.names, subject));
    return kvb_bus_subscribe(
        bridge->publisher.bus, subject, kvb_explain_responder_receive, &bridge->explain.responder,
        &bridge->explain.incoming);
}

void kvb_bridge_close_explain(struct bridge_explain *explain)
{
    kvb_explain_responder_done(&explain->responder);
}
