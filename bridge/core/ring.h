#pragma once

#include "core/status.h"

#include <stddef.h>

/* A bounded queue of pointers between threads.
 *
 *     put -> [ oldest | ... | newest | free ... ] -> take       capacity items
 *
 * The queue owns the items in it.  An eventfd for zmq_poll and epoll is readable while the queue is
 * not empty.
 * Threads: any thread may put and take. */
struct kvb_ring;

typedef void (*kvb_ring_drop)(void *item);

/* kvb_ring_free() calls drop for each item in the ring.  drop is NULL when items need no freeing.
 * KVB_TOO_LARGE  capacity is 0 or above 2^20
 * KVB_NO_MEMORY
 * KVB_IO         no descriptor is free */
kvb_status kvb_ring_new(size_t capacity, kvb_ring_drop drop, struct kvb_ring **out_ring);

/* No thread may use the ring any more.  NULL is fine. */
void kvb_ring_free(struct kvb_ring *ring);

/* Puts item.  On KVB_OK the ring owns it, else the caller.  KVB_AGAIN: full.  KVB_CLOSED. */
kvb_status kvb_ring_put(struct kvb_ring *ring, void *item);

/* The same, but waits while the ring is full: for kvfleet, whose engines may be slowed down.
 * KVB_CLOSED */
kvb_status kvb_ring_put_wait(struct kvb_ring *ring, void *item);

/* Takes the oldest item.  KVB_AGAIN: empty.  KVB_CLOSED: empty and closed. */
kvb_status kvb_ring_take(struct kvb_ring *ring, void **out_item);

/* Returns the oldest item, or NULL.  Borrowed until it is taken.  Only for a thread that alone
 * takes items. */
const void *kvb_ring_oldest(struct kvb_ring *ring);

/* Wakes all threads that wait.  Later puts are refused. */
void kvb_ring_close(struct kvb_ring *ring);

/* Returns the eventfd, borrowed.  It is readable while the ring has items or is closed. */
int kvb_ring_fd(const struct kvb_ring *ring);

size_t kvb_ring_count(struct kvb_ring *ring);
