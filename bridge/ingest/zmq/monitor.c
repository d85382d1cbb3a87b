#include "ingest/zmq/monitor.h"

#include "core/span.h"
#include "ingest/zmq/message.h"
#include "ingest/zmq/socket.h"

#include <stdio.h>
#include <string.h>

kvb_status kvb_zmq_monitor_open(void *context, void *watched, int events, void **out_monitor)
{
    const int none = 0;
    char address[64];

    (void)snprintf(address, sizeof address, "inproc://monitor-%p", watched);
    if (zmq_socket_monitor(watched, address, events) != 0) {
        return KVB_IO;
    }
    /* Its queue has no limit: the thread of libzmq that reports must never find it full. */
    void *monitor = zmq_socket(context, ZMQ_PAIR);
    if (!monitor || zmq_setsockopt(monitor, ZMQ_LINGER, &none, sizeof none) != 0 ||
        zmq_setsockopt(monitor, ZMQ_RCVHWM, &none, sizeof none) != 0 ||
        zmq_connect(monitor, address) != 0) {
        kvb_zmq_monitor_close(watched, &monitor);
        return KVB_IO;
    }
    *out_monitor = monitor;
    return KVB_OK;
}

void kvb_zmq_monitor_close(void *watched, void **monitor)
{
    if (watched) {
        (void)zmq_socket_monitor(watched, NULL, 0); /* closes libzmq's end of the PAIR */
    }
    kvb_zmq_socket_close(monitor);
}

/* The first frame has the event (16 bits) and its value (32 bits) in native byte order. */
kvb_status kvb_zmq_monitor_next(void *monitor, uint16_t *out_event, int *out_value)
{
    struct kvb_zmq_message message;

    KVB_TRY(kvb_zmq_message_receive(monitor, &message));
    const kvb_span frame = message.frames.frame[0];
    /* A frame that is too short is event 0, which nobody follows. */
    *out_event = 0;
    *out_value = -1;
    if (frame.len >= sizeof *out_event + sizeof *out_value) {
        memcpy(out_event, frame.data, sizeof *out_event);
        memcpy(out_value, frame.data + sizeof *out_event, sizeof *out_value);
    }
    kvb_zmq_message_close(&message);
    return KVB_OK;
}
