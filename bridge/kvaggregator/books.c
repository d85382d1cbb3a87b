#include "kvaggregator/books.h"

#include "bus/bus.h"
#include "core/buf.h"
#include "core/clock.h"
#include "core/log.h"
#include "core/metric.h"
#include "core/own.h"
#include "kvaggregator/answers/query_context.h"
#include "kvaggregator/config.h"
#include "kvaggregator/intake.h"
#include "kvaggregator/metrics.h"
#include "kvaggregator/parts.h"
#include "kvaggregator/report.h"
#include "kvaggregator/service.h"
#include "load/predictions.h"
#include "load/requests.h"
#include "wire/router/books.h"

#include <string.h>
#include <sys/random.h>

/* Replicates the books (requests in flight, predictions) among all aggregators of a router
 * component:
 *
 *     own decision      --R.kv_routed-->                      entered by all others
 *     router's report   --R.kv_finished, R.kv_first_token-->  entered by all
 *     every second      --R.aggregator_status-->              decides who publishes load_stats
 *
 * An aggregator that gets a report over HTTP, or from a gateway, publishes it for the others.
 *
 * Received messages pass through the event ring, like events.  A decision is published before its
 * answer.  NATS keeps the order of one connection, so the other aggregators have the decision when
 * the router's report of that request arrives.  No message is sent again: after a lost decision the
 * load is wrong until the worker's next load report, after a lost report until ttl_ms. */

static const uint64_t status_every_ns = KVB_NS_PER_S;

enum {
    decision_bytes = 1024, /* most bytes of a decision without its names */
    report_bytes = 1024
};

kvb_status kvb_aggregator_name_self(struct kvb_aggregator *aggregator)
{
    struct kvb_books_sender *self = &aggregator->books->peers.self;
    uint64_t random = 0;

    if (getrandom(&random, sizeof random, 0) != sizeof random) {
        return KVB_IO;
    }
    /* Both fit: a service's id has 32 bytes. */
    _Static_assert(kvb_service_id_bytes <= sizeof self->id, "a sender's id");
    memcpy(self->id, aggregator->service->identity.id, kvb_service_id_bytes);
    self->start = random >> 11; /* 53 bits: every JSON parser keeps them */
    return KVB_OK;
}

/* ---- Received messages; on the index thread ---- */

/* Counts a message of another version, which is not an error. */
static kvb_status note_unread(struct kvb_aggregator *aggregator, kvb_status status)
{
    if (status == KVB_NOT_FOUND) {
        kvb_metric_add(aggregator->metrics, kvb_aggregator_books_version, 1);
        return KVB_OK;
    }
    return status;
}

kvb_status
kvb_aggregator_take_decision(struct kvb_aggregator *aggregator, kvb_span payload, uint64_t now_ns)
{
    KVB_OWN(kvb_shared_decision_done) struct kvb_shared_decision shared = { .sequence = 0 };
    const kvb_status status = kvb_books_decision_decode(payload, &shared);

    if (status != KVB_OK) {
        return note_unread(aggregator, status);
    }
    /* Our own was entered when it was made; one of another aggregator must not be entered twice. */
    if (kvb_peers_classify(&aggregator->books->peers, &shared.sender, now_ns) == KVB_PEER_SELF ||
        !kvb_peers_take_sequence(
            &aggregator->books->peers, &shared.sender, shared.sequence, now_ns)) {
        return KVB_OK;
    }
    struct kvb_route_decision decision = { .id = shared.stream,
                                           .blocks = shared.blocks,
                                           .prefill_blocks = shared.prefill_blocks,
                                           .ttl_ms = shared.ttl_ms,
                                           .isl_blocks = shared.isl_blocks,
                                           .overlap_blocks = shared.overlap_blocks,
                                           .promised_tokens = shared.promised_tokens,
                                           .promised_block = shared.promised_block,
                                           .names = shared.names,
                                           .name_count = shared.name_count };
    memcpy(decision.request_id, shared.request_id, sizeof decision.request_id);
    aggregator->ctx->now_ns = now_ns;
    kvb_answer_enter_decision(aggregator->ctx, &decision, true);
    kvb_metric_add(aggregator->metrics, kvb_aggregator_decisions_shared, 1);
    return KVB_OK;
}

kvb_status kvb_aggregator_take_request_report(
    struct kvb_aggregator *aggregator, enum kvb_request_report_kind kind, kvb_span payload,
    uint64_t now_ns)
{
    struct kvb_shared_report report;
    const kvb_status status = kvb_books_report_decode(payload, &report);

    if (status != KVB_OK) {
        return note_unread(aggregator, status);
    }
    if (report.sender.id[0] &&
        kvb_peers_classify(&aggregator->books->peers, &report.sender, now_ns) == KVB_PEER_SELF) {
        return KVB_OK; /* already entered when it came over HTTP */
    }
    aggregator->ctx->now_ns = now_ns;
    (void)kvb_answer_take_report(aggregator->ctx, &report, kind); /* unknown: counted */
    return KVB_OK;
}

static void log_same_id(struct kvb_aggregator *aggregator)
{
    kvb_log_write(
        aggregator->log, KVB_LOG_WARNING, "aggregator",
        "another aggregator has the id of this one; restart one of them", "id",
        aggregator->books->peers.self.id, NULL);
}

kvb_status
kvb_aggregator_take_status(struct kvb_aggregator *aggregator, kvb_span payload, uint64_t now_ns)
{
    const bool had_same_id = kvb_peers_has_same_id(&aggregator->books->peers, now_ns);
    struct kvb_aggregator_status peer;
    const kvb_status status = kvb_books_status_decode(payload, &peer);

    if (status != KVB_OK) {
        return note_unread(aggregator, status);
    }
    if (kvb_peers_take_status(&aggregator->books->peers, &peer, now_ns) == KVB_PEER_SAME_ID &&
        !had_same_id) {
        log_same_id(aggregator);
    }
    return KVB_OK;
}

/* ---- Published messages ---- */

void kvb_aggregator_share_decision(
    struct kvb_aggregator *aggregator, const struct kvb_route_decision *decision)
{
    const size_t max_bytes = kvb_bus_max_payload(aggregator->bus);
    const size_t max_names = max_bytes > decision_bytes ? (max_bytes - decision_bytes) / 16 : 0;
    struct kvb_shared_decision shared = {
        .sender = aggregator->books->peers.self,
        .sequence = ++aggregator->books->decisions,
        .stream = decision->id,
        .isl_blocks = decision->isl_blocks,
        .overlap_blocks = decision->overlap_blocks,
        .blocks = decision->blocks,
        .prefill_blocks = decision->prefill_blocks,
        .ttl_ms = decision->ttl_ms,
        .promised_tokens = decision->promised_tokens,
        .promised_block = decision->promised_block,
        .names = decision->names,
        .name_count = decision->name_count < max_names ? decision->name_count : max_names,
    };

    if (aggregator->config->router.predict_ms == 0) {
        shared.name_count = 0; /* predictions are off */
    }
    memcpy(shared.request_id, decision->request_id, sizeof shared.request_id);
    kvb_buf_reset(aggregator->buf);
    if (kvb_books_decision_encode(&shared, aggregator->buf) == KVB_OK) {
        kvb_aggregator_publish(
            aggregator, aggregator->intake->subscriptions[KVB_INTAKE_ROUTED].subject,
            kvb_buf_span(aggregator->buf));
    }
}

void kvb_aggregator_share_report(
    struct kvb_aggregator *aggregator, enum kvb_request_report_kind kind,
    const struct kvb_query *query, const struct kvb_books_sender *sender)
{
    const enum kvb_intake_kind subject =
        kind == KVB_REQUEST_FINISHED ? KVB_INTAKE_FINISHED : KVB_INTAKE_FIRST_TOKEN;
    struct kvb_shared_report report = kvb_answer_report_of(query);
    KVB_OWN(kvb_buf_done) struct kvb_buf message;

    kvb_buf_init(&message, report_bytes);
    if (sender) {
        report.sender = *sender;
    }
    if (kvb_books_report_encode(&report, &message) == KVB_OK) {
        kvb_aggregator_publish(
            aggregator, aggregator->intake->subscriptions[subject].subject, kvb_buf_span(&message));
    }
}

static void publish_books_status(struct kvb_aggregator *aggregator, bool is_ready, bool is_bye)
{
    struct kvb_aggregator_status status = { .sender = aggregator->books->peers.self,
                                            .sequence = aggregator->books->decisions,
                                            .is_ready = is_ready,
                                            .is_bye = is_bye };
    struct kvb_request_counters requests;
    struct kvb_prediction_counters predictions;

    kvb_requests_count(aggregator->requests, &requests);
    kvb_predictions_count(aggregator->predictions, &predictions);
    status.requests_in_flight = requests.in_flight;
    status.predicted_blocks = predictions.blocks;
    kvb_buf_reset(aggregator->buf);
    if (kvb_books_status_encode(&status, aggregator->buf) == KVB_OK) {
        kvb_aggregator_publish(
            aggregator, aggregator->intake->subscriptions[KVB_INTAKE_STATUS].subject,
            kvb_buf_span(aggregator->buf));
    }
}

void kvb_aggregator_say_bye(struct kvb_aggregator *aggregator)
{
    if (kvb_bus_is_connected(aggregator->bus)) {
        publish_books_status(aggregator, false, true);
    }
}

static void count_peers(struct kvb_aggregator *aggregator, uint64_t now_ns)
{
    struct kvb_metrics *metrics = aggregator->metrics;
    const struct kvb_peers *peers = &aggregator->books->peers;

    kvb_metric_set(metrics, kvb_aggregator_other_aggregators, peers->count);
    kvb_metric_set(metrics, kvb_aggregator_leads, aggregator->ctx->leads);
    kvb_metric_set(metrics, kvb_aggregator_same_id, kvb_peers_has_same_id(peers, now_ns));
    kvb_metric_set(metrics, kvb_aggregator_decisions_missing, peers->missing);
    kvb_metric_set(metrics, kvb_aggregator_peers_refused, peers->refused);
}

void kvb_aggregator_update_peers(struct kvb_aggregator *aggregator, bool is_ready, uint64_t now_ns)
{
    const bool is_connected = kvb_bus_is_connected(aggregator->bus);
    const uint64_t connects = kvb_bus_connects(aggregator->bus);

    /* Over a new connection: others may have come unheard, so it leads only after it has listened.
     */
    if (connects != aggregator->books->connects_listened) {
        aggregator->books->connects_listened = connects;
        aggregator->books->status_ns = 0;
        kvb_peers_listen(&aggregator->books->peers, now_ns);
    }
    kvb_peers_expire(&aggregator->books->peers, now_ns);
    aggregator->ctx->leads =
        is_connected && kvb_peers_leads(&aggregator->books->peers, is_ready, now_ns);
    if (is_connected && now_ns >= aggregator->books->status_ns + status_every_ns) {
        aggregator->books->status_ns = now_ns;
        publish_books_status(aggregator, is_ready, false);
    }
    count_peers(aggregator, now_ns);
}
