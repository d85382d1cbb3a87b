#pragma once

#include "core/status.h"

#include <stddef.h>
#include <stdint.h>
#include <zmq.h>

/* The events that libzmq reports about one socket's connections; for the files of this room.
 *
 *     a connection ends   ZMQ_EVENT_DISCONNECTED; within milliseconds ZMQ_EVENT_CONNECT_RETRIED
 *     a protocol error    ZMQ_EVENT_DISCONNECTED and nothing more: libzmq never connects again
 *
 * The socket is a PAIR that a poller can watch; it must be closed before the socket it watches.
 * Threads: only the thread that made it. */

/* Without such a report libzmq has given the connection up. */
enum { kvb_retry_report_ms = 1000 };

/* events: a mask of ZMQ_EVENT_*.  On KVB_OK the caller closes *out_monitor.
 * KVB_IO: errno says why */
kvb_status kvb_zmq_monitor_open(void *context, void *watched, int events, void **out_monitor);

/* Ends the reports and closes the PAIR; *monitor becomes NULL; NULL is fine. */
void kvb_zmq_monitor_close(void *watched, void **monitor);

/* The next event, and its value: a descriptor for most of them.  KVB_AGAIN: there is none. */
kvb_status kvb_zmq_monitor_next(void *monitor, uint16_t *out_event, int *out_value);
