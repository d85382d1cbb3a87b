#include "ingest/load_source.h"

#include "core/limits.h"
#include "ingest/waiter.h"
#include "ingest/zmq_inside.h"
#include "ingest/zmq_socket.h"
#include "wire/forward_pass.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

/* Figures that are 3 s old are no longer told: sooner nobody needs to know that the peer
 * is gone, so TCP looks.  (Heartbeats beside a high-water mark: see zmq_source.c.) */
enum { load_high_water = 1000, heartbeat_ms = 0, endpoint_bytes = 256 };

struct kvb_load_source {
    void *context; /* borrowed */
    void *sub;     /* owned; NULL: it could not be opened */
    char endpoint[endpoint_bytes];
    struct kvb_waiter *waiter; /* borrowed */
    size_t owner;
};

static kvb_status open_sub(struct kvb_load_source *source)
{
    const struct kvb_zmq_socket_options as = { .type = ZMQ_SUB,
                                               .high_water = load_high_water,
                                               .heartbeat_ms = heartbeat_ms,
                                               .most_bytes = kvb_max_load_payload_bytes };

    KVB_TRY(kvb_zmq_socket_open(source->context, &as, &source->sub));
    if (zmq_setsockopt(source->sub, ZMQ_SUBSCRIBE, "", 0) != 0) {
        return KVB_IO;
    }
    KVB_TRY(kvb_waiter_add_socket(source->waiter, source->owner, kvb_ready_live, source->sub));
    return zmq_connect(source->sub, source->endpoint) == 0 ? KVB_OK : KVB_BAD_CONFIG;
}

static void close_sub(struct kvb_load_source *source)
{
    if (source->sub) {
        kvb_waiter_drop_socket(source->waiter, source->owner, source->sub);
        kvb_zmq_socket_close(&source->sub);
    }
}

kvb_status kvb_load_source_renew(struct kvb_load_source *source)
{
    close_sub(source);
    const kvb_status status = open_sub(source);
    if (status != KVB_OK) {
        close_sub(source); /* receiving from no socket fails without harm */
    }
    return status == KVB_OK ? KVB_OK : KVB_IO;
}

static bool set_endpoint(struct kvb_load_source *source, const char *endpoint)
{
    const int len = snprintf(source->endpoint, sizeof source->endpoint, "%s", endpoint);

    errno = len < endpoint_bytes ? 0 : ENAMETOOLONG;
    return len >= 0 && len < endpoint_bytes;
}

kvb_status kvb_load_source_open(
    struct kvb_zmq *zmq, const struct kvb_load_source_options *options,
    struct kvb_load_source **out_source, struct kvb_detail *detail)
{
    struct kvb_load_source *source = calloc(1, sizeof *source);

    if (!source) {
        return KVB_NO_MEMORY;
    }
    source->waiter = options->waiter;
    source->owner = options->owner;
    source->context = kvb_zmq_context(zmq, options->owner);
    const kvb_status status =
        set_endpoint(source, options->endpoint) ? open_sub(source) : KVB_BAD_CONFIG;
    if (status != KVB_OK) {
        kvb_detail_set(detail, "connect %s: %s", options->endpoint, zmq_strerror(errno));
        kvb_load_source_close(source);
        return status;
    }
    *out_source = source;
    return KVB_OK;
}

void kvb_load_source_close(struct kvb_load_source *source)
{
    if (!source) {
        return;
    }
    close_sub(source);
    free(source);
}

kvb_status
kvb_load_source_receive(struct kvb_load_source *source, struct kvb_load_sample *out_sample)
{
    struct kvb_zmq_message message;

    KVB_TRY(kvb_zmq_message_receive(source->sub, &message));
    const kvb_span payload = message.frames.frame[message.part_count - 1];
    const kvb_status status = message.frames.count > kvb_most_frames
                                  ? KVB_BAD_INPUT
                                  : kvb_forward_pass_decode(payload, out_sample);
    kvb_zmq_message_close(&message);
    return status == KVB_OK ? KVB_OK : KVB_BAD_INPUT;
}

kvb_status kvb_load_source_receive_coordinator(
    struct kvb_load_source *source, struct kvb_coordinator_news *out_news)
{
    struct kvb_zmq_message message;

    KVB_TRY(kvb_zmq_message_receive(source->sub, &message));
    const kvb_status status = message.frames.count != 1
                                  ? KVB_BAD_INPUT
                                  : kvb_coordinator_decode(message.frames.frame[0], out_news);
    kvb_zmq_message_close(&message);
    return status == KVB_OK ? KVB_OK : KVB_BAD_INPUT;
}
