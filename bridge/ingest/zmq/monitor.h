#pragma once

#include "core/status.h"

#include <stdint.h>
#include <zmq.h>

/* The events that libzmq reports about one socket's connections; private to ingest/zmq/.
 *
 *     a connection ends   ZMQ_EVENT_DISCONNECTED; within milliseconds ZMQ_EVENT_CONNECT_RETRIED
 *     a protocol error    only ZMQ_EVENT_DISCONNECTED: libzmq never connects again
 *
 * The monitor is a PAIR socket that a poller can watch; close it before the socket that it
 * reports on.
 * Threads: only the thread that made it. */

/* When ZMQ_EVENT_CONNECT_RETRIED does not follow within this time, libzmq has given up the
 * connection. */
enum { kvb_retry_report_ms = 1000 };

/* One of these is reported for each handshake that fails. */
enum {
    kvb_failed_handshake_events = ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL |
                                  ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL |
                                  ZMQ_EVENT_HANDSHAKE_FAILED_AUTH
};

/* events: a mask of ZMQ_EVENT_*.  On KVB_OK the caller closes *out_monitor.
 * KVB_IO: errno says why */
kvb_status kvb_zmq_monitor_open(void *context, void *watched, int events, void **out_monitor);

/* Ends the reports, closes the monitor and sets *monitor to NULL.  watched may be NULL. */
void kvb_zmq_monitor_close(void *watched, void **monitor);

/* Receives the next event and its value, which is a file descriptor for most events.  KVB_AGAIN:
 * there is none. */
kvb_status kvb_zmq_monitor_next(void *monitor, uint16_t *out_event, int *out_value);
