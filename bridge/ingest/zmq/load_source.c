#include "ingest/zmq/load_source.h"

#include "core/clock.h"
#include "core/limits.h"
#include "ingest/dns/named_endpoint.h"
#include "ingest/zmq/connection.h"
#include "ingest/zmq/inside.h"
#include "ingest/zmq/monitor.h"
#include "ingest/zmq/poller.h"
#include "ingest/zmq/socket.h"
#include "wire/load/engine_message.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>

/* No pings: a load value expires when no message arrives, so a dead peer may be detected later, by
 * TCP or when the caller opens the silent socket again.  libzmq connects again by itself, and what
 * an earlier connection has left is read: the newest value counts. */
struct kvb_load_source {
    void *context;    /* borrowed */
    void *sub;        /* owned; NULL: not open */
    void *monitor;    /* owned; NULL when sub is NULL */
    uint64_t lost_ns; /* when the connection ended, if no retry followed; else 0 */
    struct kvb_backlog backlog;
    struct kvb_named_endpoint endpoint;
    struct kvb_poller *poller; /* borrowed, like the next */
    struct kvb_resolver *resolver;
    size_t owner;
};

static kvb_status open_load_sub(struct kvb_load_source *source)
{
    const struct kvb_zmq_socket_options as = { .type = ZMQ_SUB,
                                               .max_bytes = kvb_max_load_payload_bytes,
                                               .is_ipv6 =
                                                   kvb_named_endpoint_is_ipv6(&source->endpoint) };
    char address[kvb_zmq_address_bytes];

    kvb_named_endpoint_write(&source->endpoint, address);
    KVB_TRY(kvb_zmq_socket_open(source->context, &as, &source->sub));
    if (zmq_setsockopt(source->sub, ZMQ_SUBSCRIBE, "", 0) != 0) {
        return KVB_IO;
    }
    /* Before the connection begins, so that no event is missed. */
    KVB_TRY(kvb_zmq_monitor_open(
        source->context, source->sub,
        ZMQ_EVENT_CONNECTED | ZMQ_EVENT_DISCONNECTED | ZMQ_EVENT_CONNECT_RETRIED,
        &source->monitor));
    KVB_TRY(kvb_poller_add_socket(source->poller, source->owner, kvb_ready_live, source->sub));
    return zmq_connect(source->sub, address) == 0 ? KVB_OK : KVB_BAD_CONFIG;
}

static void close_load_sub(struct kvb_load_source *source)
{
    if (source->sub) {
        /* While its socket is open, which ends libzmq's side of it. */
        kvb_zmq_monitor_close(source->sub, &source->monitor);
        kvb_poller_drop_socket(source->poller, source->owner, source->sub);
        kvb_zmq_socket_close(&source->sub);
    }
    source->lost_ns = 0;
    source->backlog.connection = kvb_connection_none();
}

static kvb_status reopen_load_sub(struct kvb_load_source *source)
{
    close_load_sub(source);
    const kvb_status status = open_load_sub(source);
    if (status != KVB_OK) {
        close_load_sub(source); /* without a socket, receiving fails */
    }
    return status;
}

kvb_status
kvb_load_source_connect(struct kvb_load_source *source, uint64_t now_ns, const char **out_why)
{
    bool has_moved = false;

    if (source->sub) {
        return KVB_OK;
    }
    const kvb_status status =
        kvb_named_endpoint_look(&source->endpoint, source->resolver, false, now_ns, &has_moved);
    *out_why = source->endpoint.why.text;
    KVB_TRY(status);
    /* The address is the same: opening the socket for it has failed before. */
    return has_moved ? reopen_load_sub(source) : KVB_IO; /* the next renewal tries again */
}

kvb_status kvb_load_source_renew(struct kvb_load_source *source, uint64_t now_ns)
{
    bool has_moved = false;
    const kvb_status status =
        kvb_named_endpoint_look(&source->endpoint, source->resolver, true, now_ns, &has_moved);

    if (status != KVB_OK) {
        close_load_sub(source); /* the old address may belong to another host now */
        return status;
    }
    return reopen_load_sub(source) == KVB_OK ? KVB_OK : KVB_IO;
}

bool kvb_load_source_is_cut(struct kvb_load_source *source, uint64_t now_ns)
{
    uint16_t event = 0;
    int value = 0;

    while (source->sub && kvb_zmq_monitor_next(source->monitor, &event, &value) == KVB_OK) {
        /* Any later event is a new attempt, so libzmq goes on by itself. */
        source->lost_ns = event == ZMQ_EVENT_DISCONNECTED ? now_ns : 0;
        source->backlog = kvb_backlog_of(event == ZMQ_EVENT_CONNECTED ? value : -1, now_ns);
    }
    if (kvb_backlog_is_above(&source->backlog, kvb_max_load_backlog_bytes, now_ns)) {
        (void)kvb_connection_end(&source->backlog.connection);
        source->backlog.connection = kvb_connection_none();
        return true;
    }
    /* Without a report for so long libzmq has given the connection up. */
    if (source->lost_ns == 0 || now_ns - source->lost_ns < kvb_retry_report_ms * KVB_NS_PER_MS) {
        return false;
    }
    source->lost_ns = 0; /* true only once */
    return true;
}

static kvb_status open_first(struct kvb_load_source *source, const char *endpoint)
{
    bool has_moved = false;

    if (kvb_named_endpoint_set(&source->endpoint, endpoint, false) != KVB_OK) {
        errno = ENAMETOOLONG;
        return KVB_BAD_CONFIG;
    }
    const kvb_status status = kvb_named_endpoint_look(
        &source->endpoint, source->resolver, false, kvb_clock_monotonic_ns(), &has_moved);
    return status == KVB_OK ? open_load_sub(source) : KVB_OK; /* else it is opened later */
}

kvb_status kvb_load_source_open(
    struct kvb_zmq *zmq, const struct kvb_load_source_options *options,
    struct kvb_load_source **out_source, struct kvb_detail *detail)
{
    struct kvb_load_source *source = calloc(1, sizeof *source);

    if (!source) {
        return KVB_NO_MEMORY;
    }
    source->poller = options->poller;
    source->backlog.connection = kvb_connection_none();
    source->owner = options->owner;
    source->context = kvb_zmq_context(zmq, options->owner);
    source->resolver = options->resolver;
    const kvb_status status = open_first(source, options->endpoint);
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
    close_load_sub(source);
    free(source);
}

static kvb_status receive_load(struct kvb_load_source *source, struct kvb_zmq_message *out_message)
{
    const kvb_status status = kvb_zmq_message_receive(source->sub, out_message);

    if (status == KVB_OK) {
        kvb_backlog_take(&source->backlog, kvb_zmq_message_wire_bytes(out_message));
    } else if (status == KVB_AGAIN) {
        kvb_backlog_found_empty(&source->backlog);
    }
    return status;
}

kvb_status
kvb_load_source_receive(struct kvb_load_source *source, struct kvb_load_sample *out_sample)
{
    struct kvb_zmq_message message;

    KVB_TRY(receive_load(source, &message));
    /* The last frame, whether or not a topic and a number stand before it. */
    const kvb_span payload = message.frames.frame[message.part_count - 1];
    const kvb_status status = message.frames.count > kvb_max_frames
                                  ? KVB_BAD_INPUT
                                  : kvb_forward_pass_decode(payload, out_sample);
    kvb_zmq_message_close(&message);
    return status == KVB_OK ? KVB_OK : KVB_BAD_INPUT;
}

kvb_status kvb_load_source_receive_coordinator(
    struct kvb_load_source *source, struct kvb_coordinator_update *out_update)
{
    struct kvb_zmq_message message;

    KVB_TRY(receive_load(source, &message));
    const kvb_status status = message.frames.count != 1
                                  ? KVB_BAD_INPUT
                                  : kvb_coordinator_decode(message.frames.frame[0], out_update);
    kvb_zmq_message_close(&message);
    return status == KVB_OK ? KVB_OK : KVB_BAD_INPUT;
}
