#pragma once

#include "core/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Waits for input on any of a bridge's sockets and descriptors.
 *
 *     owner 0  [ SUB: live | monitor: live | DEALER: reply ]     a source
 *     owner 1  [ SUB: live ]                                     a load source
 *     owner 2  [ descriptor: live ]
 *
 * The descriptor of a libzmq socket is edge-triggered: it only reports that the state has changed
 * since ZMQ_EVENTS was last read, and each send and receive reads ZMQ_EVENTS.  So an owner that was
 * ready stays on the ready list.  Its sockets are checked before each wait until they have no more
 * input, or until the caller says that they have none: each check costs two system calls.  From
 * then on its descriptors suffice.
 *
 * Therefore receive from a watched socket only between kvb_poller_next() and the next wait, or
 * after kvb_poller_set_pending().
 *
 * Threads: only the thread that made it.
 * Cost:    a wait costs time in proportion to the owners that are ready, not to all. */
struct kvb_poller;

enum { kvb_ready_live = 1, kvb_ready_reply = 2 };

/* owners: the number of owners, which are numbered from 0.
 * KVB_NO_MEMORY, KVB_IO: no descriptor */
kvb_status kvb_poller_new(size_t owners, struct kvb_poller **out_poller);
void kvb_poller_free(struct kvb_poller *poller);

/* Watches a socket of libzmq; kind is a kvb_ready_* bit.  At most three for each owner.
 * KVB_TOO_LARGE, KVB_IO */
kvb_status
kvb_poller_add_socket(struct kvb_poller *poller, size_t owner, unsigned kind, void *socket);
/* Stops watching a socket.  Call it before the socket is closed. */
void kvb_poller_drop_socket(struct kvb_poller *poller, size_t owner, void *socket);

/* Watches a descriptor.  Its owner is kvb_ready_live while it is readable. */
kvb_status kvb_poller_add_fd(struct kvb_poller *poller, size_t owner, int fd);

/* These kinds count as ready, independent of the sockets, until the next call for this owner. */
void kvb_poller_set_pending(struct kvb_poller *poller, size_t owner, unsigned kinds);

/* A receive from each of the owner's sockets of these kinds has found nothing, and nothing else was
 * done with them since: they are not checked before the next edge. */
void kvb_poller_set_drained(struct kvb_poller *poller, size_t owner, unsigned kinds);

/* Returns when an owner is ready, after timeout_ms, or on a signal.
 * KVB_IO  epoll_wait() failed; this call has waited timeout_ms instead, and checked every owner */
kvb_status kvb_poller_wait(struct kvb_poller *poller, int timeout_ms);

/* Sleeps; what comes meanwhile is found by the next wait. */
void kvb_poller_pause(uint64_t pause_ns);

/* True when the last wait found nothing ready. */
bool kvb_poller_is_idle(const struct kvb_poller *poller);

/* Returns the owners that the last wait found ready, one by one; false after the last. */
bool kvb_poller_next(struct kvb_poller *poller, size_t *out_owner, unsigned *out_kinds);
