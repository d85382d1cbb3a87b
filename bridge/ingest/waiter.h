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
 * libzmq's descriptor of a socket tells only that its state changed since it was last
 * looked at, and every send and receive looks.  So whoever was ready is looked at again
 * before each wait, until it has nothing more; after that its descriptor is enough.
 *
 * So a watched socket is received from between being told ready and the next wait, or
 * after kvb_waiter_set_pending(), and at no other time.
 *
 * Threads: only the thread that made it.
 * Cost:    a wait costs what is ready, not what is there. */
struct kvb_waiter;

enum { kvb_ready_live = 1, kvb_ready_reply = 2 };

/* owners: how many numbers there are, from 0.  KVB_NO_MEMORY, KVB_IO no descriptor */
kvb_status kvb_waiter_new(size_t owners, struct kvb_waiter **out_waiter);
void kvb_waiter_free(struct kvb_waiter *waiter);

/* Watches a socket of libzmq; kind is a kvb_ready_* bit.  At most three an owner.
 * KVB_TOO_LARGE, KVB_IO */
kvb_status
kvb_waiter_add_socket(struct kvb_waiter *waiter, size_t owner, unsigned kind, void *socket);
/* Before the socket is closed. */
void kvb_waiter_drop_socket(struct kvb_waiter *waiter, size_t owner, void *socket);

/* Watches a descriptor, kvb_ready_live while it is readable. */
kvb_status kvb_waiter_add_fd(struct kvb_waiter *waiter, size_t owner, int fd);

/* These kinds are ready whatever the sockets say, until it is said otherwise. */
void kvb_waiter_set_pending(struct kvb_waiter *waiter, size_t owner, unsigned kinds);

/* Returns when something is ready, or after timeout_ms, or on a signal.
 * KVB_IO  the kernel refuses to wait: timeout_ms were slept through, and everything was
 *         looked at */
kvb_status kvb_waiter_wait(struct kvb_waiter *waiter, int timeout_ms);

/* Did the last wait find nothing? */
bool kvb_waiter_is_idle(const struct kvb_waiter *waiter);

/* Who is ready since the last wait, one by one; false when that was all. */
bool kvb_waiter_next(struct kvb_waiter *waiter, size_t *out_owner, unsigned *out_kinds);
