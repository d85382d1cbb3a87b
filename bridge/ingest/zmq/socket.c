#include "ingest/zmq/socket.h"

#include <zmq.h>

/* The timeout is of an answer to a ping.  The grace is the peer's: without a ping for the period
 * and so long it ends the connection. */
enum { heartbeat_timeout_ms = 1000, heartbeat_grace_ms = 1800 };

struct option {
    int name;
    int value;
};

/* Each option is justified here, since an option is a way of libzmq that a peer may lead into. */
static const struct option common[] = {
    /* Closing never waits for a peer. */
    { ZMQ_LINGER, 0 },
    /* A full queue would stop input, and two assertions of libzmq fail on connections whose input
     * is stopped.  1000 if it is not set. */
    { ZMQ_RCVHWM, 0 },
    /* Otherwise a connection that was begun during a network failure waits for the kernel's next
     * SYN, up to 8 s after the network has recovered. */
    { ZMQ_CONNECT_TIMEOUT, 1000 },
    /* A peer that accepts and says nothing would hold the socket for 30 s. */
    { ZMQ_HANDSHAKE_IVL, 2000 },
    /* An engine that is back is read again within a second.  Never -1: then libzmq ends the queue
     * at a loss, which is the abort of ZMQ_IMMEDIATE. */
    { ZMQ_RECONNECT_IVL, 100 },
    { ZMQ_RECONNECT_IVL_MAX, 1000 },
    /* The kernel finds a lost host in 3 s, and ends the connection as if the peer had. */
    { ZMQ_TCP_KEEPALIVE, 1 },
    { ZMQ_TCP_KEEPALIVE_IDLE, 1 },
    { ZMQ_TCP_KEEPALIVE_INTVL, 1 },
    { ZMQ_TCP_KEEPALIVE_CNT, 2 },
};

static kvb_status set_ints(void *socket, const struct option *options, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (zmq_setsockopt(socket, options[i].name, &options[i].value, sizeof(int)) != 0) {
            return KVB_IO;
        }
    }
    return KVB_OK;
}

static kvb_status set_options(void *socket, const struct kvb_zmq_socket_options *options)
{
    const bool pings = options->heartbeat_ms > 0;
    const struct option own[] = {
        /* Only an answer shows that a process is not frozen: its kernel keeps the connection.  Safe
         * only because input never stops. */
        { ZMQ_HEARTBEAT_IVL, options->heartbeat_ms },
        { ZMQ_HEARTBEAT_TIMEOUT, pings ? heartbeat_timeout_ms : 0 },
        /* An engine drops the connection of a bridge that is frozen, so that its events do not
         * gather there. */
        { ZMQ_HEARTBEAT_TTL, pings ? options->heartbeat_ms + heartbeat_grace_ms : 0 },
        /* Without it IPv6 addresses are refused. */
        { ZMQ_IPV6, options->is_ipv6 },
    };

    KVB_TRY(set_ints(socket, common, sizeof common / sizeof common[0]));
    KVB_TRY(set_ints(socket, own, sizeof own / sizeof own[0]));
    /* Otherwise one frame may announce any length, and its memory is allocated. */
    if (zmq_setsockopt(socket, ZMQ_MAXMSGSIZE, &options->max_bytes, sizeof options->max_bytes) !=
        0) {
        return KVB_IO;
    }
    return KVB_OK;
}

kvb_status
kvb_zmq_socket_open(void *context, const struct kvb_zmq_socket_options *options, void **out_socket)
{
    void *socket = zmq_socket(context, options->type);

    if (!socket) {
        return KVB_IO;
    }
    /* Options hold for connections that begin later, so all are set before the first. */
    const kvb_status status = set_options(socket, options);
    if (status != KVB_OK) {
        kvb_zmq_socket_close(&socket);
        return status;
    }
    *out_socket = socket;
    return KVB_OK;
}

void kvb_zmq_socket_close(void **socket)
{
    if (*socket) {
        (void)zmq_close(*socket);
        *socket = NULL;
    }
}
