#include "core/clock.h"
#include "kvaggregator/inside.h"

#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>

/* What streams lack is asked of their bridges:
 *
 *     P.kv_sync.{worker_id}.{dp_rank}   reply to  _INBOX.{ours}.{token}
 *
 * The answers go the way of the events, through the event ring.
 *
 * And what this aggregator sends to itself, on _INBOX.{ours}.echo.0, distinguishes a
 * fault of NATS from one of the bridges: when all bridges fall silent and the echo does not
 * arrive either, it is NATS.  Its payload names the connection: the first one received proves
 * that the server has processed the subscriptions, which were sent before it; messages published
 * earlier may be missed. */

static void receive_echo(void *context, const struct kvb_bus_message *message)
{
    struct kvb_aggregator *aggregator = context;
    uint64_t connects = 0;

    if (message->payload.len == sizeof connects) {
        memcpy(&connects, message->payload.data, sizeof connects);
        atomic_store_explicit(&aggregator->connects_subscribed, connects, memory_order_relaxed);
    }
    aggregator->echoes_received++;
}

kvb_status kvb_aggregator_open_sync(struct kvb_aggregator *aggregator)
{
    char subject[kvb_subject_bytes + 2];
    uint64_t random[2];

    if (getrandom(random, sizeof random, 0) != sizeof random) {
        return KVB_IO;
    }
    (void)snprintf(
        aggregator->inbox, sizeof aggregator->inbox, "_INBOX.%016" PRIx64 "%016" PRIx64, random[0],
        random[1]);
    (void)snprintf(subject, sizeof subject, "%s.*", aggregator->inbox);
    (void)snprintf(
        aggregator->echo_subject, sizeof aggregator->echo_subject, "%s.echo.0", aggregator->inbox);
    KVB_TRY(kvb_bus_subscribe(
        aggregator->bus, aggregator->echo_subject, receive_echo, aggregator, &aggregator->echo));
    return kvb_bus_subscribe(
        aggregator->bus, subject, kvb_aggregator_receive_answer, aggregator, &aggregator->answers);
}

bool kvb_aggregator_send_echo(void *context)
{
    const struct kvb_aggregator *aggregator = context;
    const uint64_t connects = kvb_bus_connects(aggregator->bus);
    const kvb_span payload = { .data = (const uint8_t *)&connects, .len = sizeof connects };

    return kvb_bus_publish(aggregator->bus, aggregator->echo_subject, payload) == KVB_OK;
}

uint64_t kvb_aggregator_echoes(void *context)
{
    struct kvb_aggregator *aggregator = context;

    return aggregator->echoes_received;
}

static kvb_status
send_sync_request(struct kvb_aggregator *aggregator, const struct kvb_follower_request *due)
{
    char tail[64];
    char subject[kvb_subject_bytes];
    char reply[kvb_subject_bytes + 20];

    (void)snprintf(
        tail, sizeof tail, "kv_sync.%" PRIu64 ".%" PRIu32, due->id.worker_id, due->id.dp_rank);
    (void)snprintf(reply, sizeof reply, "%s.%016" PRIx64, aggregator->inbox, due->token);
    KVB_TRY(kvb_subject_make(subject, due->id.name_space, due->id.component, tail));
    kvb_buf_reset(&aggregator->buf);
    KVB_TRY(kvb_sync_request_encode(&due->request, &aggregator->buf));
    return kvb_bus_publish_request(aggregator->bus, subject, reply, kvb_buf_span(&aggregator->buf));
}

/* One that was not sent gets no answer, and the follower sends another. */
void kvb_aggregator_send_request(void *context, const struct kvb_follower_request *request)
{
    struct kvb_aggregator *aggregator = context;

    if (send_sync_request(aggregator, request) != KVB_OK) {
        kvb_metric_add(&aggregator->metrics, kvb_aggregator_publish_failures, 1);
    }
}
