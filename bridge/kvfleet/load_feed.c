#include "kvfleet/load_feed.h"

#include "core/buf.h"
#include "wire/load/forward_pass.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zmq.h>

enum { max_message_bytes = 4096 };

struct kvb_load_feed {
    void *pub;
    struct kvb_buf message;
    uint16_t port;
};

/* "tcp://127.0.0.1:5557" -> 5557 */
static kvb_status read_port(struct kvb_load_feed *feed)
{
    char endpoint[256] = { 0 };
    size_t len = sizeof endpoint;

    if (zmq_getsockopt(feed->pub, ZMQ_LAST_ENDPOINT, endpoint, &len) != 0) {
        return KVB_IO;
    }
    const char *colon = strrchr(endpoint, ':');
    feed->port = colon ? (uint16_t)strtoul(colon + 1, NULL, 10) : 0;
    return feed->port > 0 ? KVB_OK : KVB_IO;
}

static kvb_status
bind_feed(struct kvb_load_feed *feed, const char *address, uint16_t port, struct kvb_detail *detail)
{
    char endpoint[128];
    const int linger_ms = 0;

    (void)snprintf(endpoint, sizeof endpoint, port ? "tcp://%s:%u" : "tcp://%s:*", address, port);
    if (zmq_setsockopt(feed->pub, ZMQ_LINGER, &linger_ms, sizeof linger_ms) != 0) {
        return KVB_IO;
    }
    if (zmq_bind(feed->pub, endpoint) != 0) {
        const int error = zmq_errno();
        kvb_detail_set(detail, "%s: %s", endpoint, zmq_strerror(error));
        return error == EADDRINUSE ? KVB_AGAIN : KVB_BAD_CONFIG;
    }
    return read_port(feed);
}

kvb_status kvb_load_feed_new(
    void *zmq_context, const char *address, uint16_t port, struct kvb_detail *detail,
    struct kvb_load_feed **out_feed)
{
    struct kvb_load_feed *feed = calloc(1, sizeof *feed);
    if (!feed) {
        return KVB_NO_MEMORY;
    }
    kvb_buf_init(&feed->message, max_message_bytes);
    feed->pub = zmq_socket(zmq_context, ZMQ_PUB);
    const kvb_status status = feed->pub ? bind_feed(feed, address, port, detail) : KVB_IO;
    if (status != KVB_OK) {
        kvb_load_feed_free(feed);
        return status;
    }
    *out_feed = feed;
    return KVB_OK;
}

void kvb_load_feed_free(struct kvb_load_feed *feed)
{
    if (!feed) {
        return;
    }
    if (feed->pub) {
        (void)zmq_close(feed->pub);
    }
    kvb_buf_done(&feed->message);
    free(feed);
}

uint16_t kvb_load_feed_port(const struct kvb_load_feed *feed)
{
    return feed->port;
}

kvb_status
kvb_load_feed_send(struct kvb_load_feed *feed, uint32_t rank, const struct kvb_load *load)
{
    const struct kvb_load_sample sample = { .load = *load, .has_rank = true, .dp_rank = rank };

    kvb_buf_reset(&feed->message);
    KVB_TRY(kvb_forward_pass_encode(&sample, &feed->message));
    return zmq_send(feed->pub, feed->message.data, feed->message.len, 0) >= 0 ? KVB_OK : KVB_IO;
}
