#pragma once

#include "core/status.h"

#include <stdbool.h>
#include <stddef.h>

/* Waits for any of a bridge's sockets and descriptors.
 *
 *     owner 0  [ SUB: live | monitor: live | DEALER: reply ]     a source
 *     owner 1  [ SUB: live ]                                     a load source
 *     owner 2  [ descriptor: live ]
 *
 * The descriptor of a libzmq socket is edge-triggered: it only reports that the state has changed
 * since ZMQ_EVENTS was last read, and every send and receive reads it.  So an owner that was
 * ready stays on the ready list and is checked again before each wait until it has nothing more;
 * after that its descriptor is enough.
 *
 * Therefore receive from a watched socket only between kvb_poller_next() and the next wait, or
 * after kvb_poller_set_pending().
 *
 * Threads: only the thread that made it.
 * Cost:    of a wait: proportional to the owners that are ready, not to all. */
struct kvb_poller;

enum { kvb_ready_live = 1, kvb_ready_reply = 2 };

/* owners: the number of owners, which are numbered from 0.  KVB_NO_MEMORY, KVB_IO no descriptor */
kvb_status kvb_poller_new(size_t owners, struct kvb_poller **out_poller);
void kvb_poller_free(struct kvb_poller *poller);

/* Watches a socket of libzmq; kind is a kvb_ready_* bit.  At most three an owner.
 * KVB_TOO_LARGE, KVB_IO */
kvb_status
kvb_poller_add_socket(struct kvb_poller *poller, size_t owner, unsigned kind, void *socket);
/* Before the socket is closed. */
void kvb_poller_drop_socket(struct kvb_poller *poller, size_t owner, void *socket);

/* Watches a descriptor, kvb_ready_live while it is readable. */
kvb_status kvb_poller_add_fd(struct kvb_poller *poller, size_t owner, int fd);

/* These kinds count as ready whatever the sockets report, until the next call for this owner. */
void kvb_poller_set_pending(struct kvb_poller *poller, size_t owner, unsigned kinds);

/* Returns when something is ready, or after timeout_ms, or on a signal.
 * KVB_IO  epoll_wait() failed: it has slept for timeout_ms instead and checked every owner */
kvb_status kvb_poller_wait(struct kvb_poller *poller, int timeout_ms);

/* True when the last wait found nothing ready. */
bool kvb_poller_is_idle(const struct kvb_poller *poller);

/* Returns the owners that the last wait found ready, one by one; false after the last. */
bool kvb_poller_next(struct kvb_poller *poller, size_t *out_owner, unsigned *out_kinds);
