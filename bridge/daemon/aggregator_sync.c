#include "core/clock.h"
#include "daemon/aggregator_inside.h"

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
 * And what we say to ourselves, on _INBOX.{ours}.echo.0, tells a fault of NATS from one
 * of the bridges: when all of them fall silent, and the echo too, it was not they.  It
 * names the connection: the first one heard there proves that the server has taken our
 * subscriptions, which were sent before it; what is published earlier may pass us by. */

static const uint64_t echo_every_ns = 500 * KVB_NS_PER_MS;
static const uint64_t echo_wait_ns = 1500 * KVB_NS_PER_MS; /* half of what makes a stream DOWN */

static void hear_echo(void *context, const struct kvb_bus_message *message)
{
    struct kvb_aggregator *aggregator = context;
    uint64_t connects = 0;

    if (message->payload.len == sizeof connects) {
        memcpy(&connects, message->payload.data, sizeof connects);
        atomic_store_explicit(&aggregator->connects_subscribed, connects, memory_order_relaxed);
    }
    aggregator->echoes_heard++;
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
        aggregator->bus, aggregator->echo_subject, hear_echo, aggregator, &aggregator->echo));
    return kvb_bus_subscribe(
        aggregator->bus, subject, kvb_aggregator_hear_answer, aggregator, &aggregator->answers);
}

/* Echoes of a connection that is gone will not come. */
static void forget_echoes(struct kvb_aggregator *aggregator)
{
    aggregator->echoes_sent = aggregator->echoes_heard;
    aggregator->next_echo_ns = 0;
}

/* While one is not heard, more are sent: a single one may be lost. */
static void send_echo(struct kvb_aggregator *aggregator, bool is_heard, uint64_t now_ns)
{
    const uint64_t connects = kvb_bus_connects(aggregator->bus);
    const kvb_span payload = { .data = (const uint8_t *)&connects, .len = sizeof connects };

    aggregator->next_echo_ns = now_ns + echo_every_ns;
    if (kvb_bus_publish(aggregator->bus, aggregator->echo_subject, payload) == KVB_OK && is_heard) {
        aggregator->echoes_sent = aggregator->echoes_heard + 1;
        aggregator->echo_sent_ns = now_ns;
    }
}

bool kvb_aggregator_hears_itself(struct kvb_aggregator *aggregator, uint64_t now_ns)
{
    if (kvb_bus_connects(aggregator->bus) != aggregator->connects_seen) {
        forget_echoes(aggregator);
    }
    const bool is_heard = aggregator->echoes_heard >= aggregator->echoes_sent;
    if (now_ns >= aggregator->next_echo_ns) {
        send_echo(aggregator, is_heard, now_ns);
    }
    const bool hears = is_heard || now_ns - aggregator->echo_sent_ns < echo_wait_ns;
    if (!hears && aggregator->was_connected) {
        kvb_metric_add(&aggregator->metrics, kvb_aggregator_echo_silences, 1);
    }
    return hears;
}

static kvb_status send_ask(struct kvb_aggregator *aggregator, const struct kvb_follower_ask *ask)
{
    char tail[64];
    char subject[kvb_subject_bytes];
    char reply[kvb_subject_bytes + 20];

    (void)snprintf(
        tail, sizeof tail, "kv_sync.%" PRIu64 ".%" PRIu32, ask->id.worker_id, ask->id.dp_rank);
    (void)snprintf(reply, sizeof reply, "%s.%016" PRIx64, aggregator->inbox, ask->token);
    KVB_TRY(kvb_subject_make(subject, ask->id.name_space, ask->id.component, tail));
    kvb_buf_reset(&aggregator->buf);
    KVB_TRY(kvb_sync_request_encode(&ask->request, &aggregator->buf));
    return kvb_bus_publish_request(aggregator->bus, subject, reply, kvb_buf_span(&aggregator->buf));
}

void kvb_aggregator_ask_bridges(struct kvb_aggregator *aggregator, uint64_t now_ns)
{
    struct kvb_follower_ask ask;

    while (kvb_bus_is_connected(aggregator->bus) &&
           kvb_followers_next_ask(aggregator->followers, now_ns, &ask)) {
        if (send_ask(aggregator, &ask) != KVB_OK) {
            /* no answer will come, and the follower asks again */
            kvb_metric_add(&aggregator->metrics, kvb_aggregator_publish_failures, 1);
        }
    }
}
