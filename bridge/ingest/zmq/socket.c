#include "ingest/zmq/socket.h"

#include "ingest/zmq/curve.h"

#include <string.h>
#include <zmq.h>

/* The timeout is of an answer to a ping.  The grace is the peer's: without a ping for the period
 * and so long it ends the connection. */
enum { heartbeat_timeout_ms = 1000, heartbeat_grace_ms = 1800 };

struct option {
    int name;
    int value;
};

/* Without ZMQ_CONNECT_TIMEOUT, a connection that was begun during a network failure waits for the
 * kernel's next SYN, up to 8 s after the network has recovered. */
static const struct option common[] = {
    { ZMQ_LINGER, 0 },          { ZMQ_CONNECT_TIMEOUT, 1000 },   { ZMQ_HANDSHAKE_IVL, 2000 },
    { ZMQ_RECONNECT_IVL, 100 }, { ZMQ_RECONNECT_IVL_MAX, 1000 },
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

static kvb_status set_key(void *socket, int option, const uint8_t key[kvb_curve_key_bytes])
{
    return zmq_setsockopt(socket, option, key, kvb_curve_key_bytes) == 0 ? KVB_OK : KVB_IO;
}

/* After a failure the socket must not be used, because it would not encrypt. */
static kvb_status set_curve(void *socket, const struct kvb_zmq_socket_options *options)
{
    const int yes = 1;
    const struct kvb_curve *curve = options->curve;

    if (!curve) {
        return KVB_OK;
    }
    KVB_TRY(set_key(socket, ZMQ_CURVE_SECRETKEY, curve->secret_key));
    if (!options->domain) {
        KVB_TRY(set_key(socket, ZMQ_CURVE_PUBLICKEY, curve->public_key));
        return set_key(socket, ZMQ_CURVE_SERVERKEY, curve->server_key);
    }
    return zmq_setsockopt(socket, ZMQ_CURVE_SERVER, &yes, sizeof yes) == 0 &&
                   zmq_setsockopt(
                       socket, ZMQ_ZAP_DOMAIN, options->domain, strlen(options->domain)) == 0
               ? KVB_OK
               : KVB_IO;
}

static kvb_status set_options(void *socket, const struct kvb_zmq_socket_options *options)
{
    const bool pings = options->heartbeat_ms > 0;
    const struct option own[] = {
        { ZMQ_IMMEDIATE, options->type == ZMQ_SUB },
        { ZMQ_RCVHWM, options->high_water },
        { ZMQ_HEARTBEAT_IVL, options->heartbeat_ms },
        { ZMQ_HEARTBEAT_TIMEOUT, pings ? heartbeat_timeout_ms : 0 },
        { ZMQ_HEARTBEAT_TTL, pings ? options->heartbeat_ms + heartbeat_grace_ms : 0 },
        { ZMQ_IPV6, options->is_ipv6 },
    };

    const struct option keep_alive[] = {
        { ZMQ_TCP_KEEPALIVE, 1 },
        { ZMQ_TCP_KEEPALIVE_IDLE, 1 },
        { ZMQ_TCP_KEEPALIVE_INTVL, 1 },
        { ZMQ_TCP_KEEPALIVE_CNT, 2 },
    };

    KVB_TRY(set_ints(socket, keep_alive, sizeof keep_alive / sizeof keep_alive[0]));
    KVB_TRY(set_ints(socket, common, sizeof common / sizeof common[0]));
    KVB_TRY(set_ints(socket, own, sizeof own / sizeof own[0]));
    KVB_TRY(set_curve(socket, options));
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
