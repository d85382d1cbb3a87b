#pragma once

#include "core/status.h"

#include <stddef.h>

/* The ZMQ contexts of a bridge: one for each 256 owners of the poller (publishers and load
 * sources), at most 16.  Each context is opened with its first socket.
 *
 * One context would be too slow: libzmq scans all timers of an I/O thread whenever it stops one,
 * and each connection has a heartbeat timer.  A thousand connections on one thread would spend a
 * fifth of a core on that.  Each context has one I/O thread, so that the monitor's events of one
 * socket arrive in the order in which they happened.  Each context is made large enough for its
 * share of kvb_max_streams, because publishers are added at run time and a context cannot grow.
 *
 * Threads: only the thread that uses the sockets. */
struct kvb_control;
struct kvb_zmq;

struct kvb_zmq_size {
    size_t publishers; /* event sockets, one for each rank */
    size_t loads;      /* load sockets */
    size_t readers;    /* ranks with sockets for readers of their events */
    size_t others;     /* other open files of the process */
};

/* Raises the process's soft limit of open files to the number needed.
 * KVB_BAD_CONFIG  the hard limit is too low; detail says how many are needed, and the remedy */
kvb_status kvb_zmq_raise_limits(const struct kvb_zmq_size *size, struct kvb_detail *detail);

/* control: watches the readers of event servers; borrowed until the end; NULL: there are none.
 * KVB_NO_MEMORY */
kvb_status kvb_zmq_new(struct kvb_control *control, struct kvb_zmq **out_zmq);

/* How many publishers there will be soon: the more, the more rarely each of them is pinged.  Call
 * it before their sockets are opened; sockets that are open keep their period. */
void kvb_zmq_expect(struct kvb_zmq *zmq, size_t publishers);

/* The period of a publisher's pings: 250 pings a second altogether, so one ping every 0.5 s to each
 * of up to 125 publishers, and every 4 s to each of 1,000 or more.  A ping wakes the thread of
 * libzmq twice, like two batches.  A peer that does not answer for a second is dead.  So a frozen
 * engine is found after this period and a second.  A lost link is found within 4 s: TCP's own
 * probes find it in 3 s, unless a ping was sent meanwhile. */
int kvb_zmq_ping_ms(size_t publishers);

/* All sockets must be closed.  NULL is fine. */
void kvb_zmq_free(struct kvb_zmq *zmq);
