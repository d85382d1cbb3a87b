#pragma once

#include "core/status.h"

#include <stddef.h>

/* A bounded queue of pointers between threads.
 *
 *     put -> [ oldest | ... | newest | free ... ] -> take       capacity items
 *
 * The queue owns what lies in it.  An eventfd is readable while it is not empty,
 * for zmq_poll and epoll.
 * Threads: any thread on both ends. */
struct kvb_ring;

typedef void (*kvb_ring_drop)(void *item);

/* drop frees what is left inside at the end; NULL when items need no freeing.
 * KVB_TOO_LARGE capacity is 0 or above 2^20, KVB_NO_MEMORY, KVB_IO no descriptor. */
kvb_status kvb_ring_new(size_t capacity, kvb_ring_drop drop, struct kvb_ring **out_ring);

/* NULL is fine.  Nobody may still use the ring. */
void kvb_ring_free(struct kvb_ring *ring);

/* Takes item on KVB_OK.  KVB_AGAIN: full.  KVB_CLOSED. */
kvb_status kvb_ring_put(struct kvb_ring *ring, void *item);

/* The same, but waits for a place.  KVB_CLOSED: item is still the caller's. */
kvb_status kvb_ring_put_wait(struct kvb_ring *ring, void *item);

/* KVB_AGAIN: empty.  KVB_CLOSED: empty and closed. */
kvb_status kvb_ring_take(struct kvb_ring *ring, void **out_item);

/* What would be taken next, or NULL.  Borrowed until it is taken: for a thread that takes
 * alone. */
const void *kvb_ring_oldest(struct kvb_ring *ring);

/* Wakes all who wait; later puts are refused. */
void kvb_ring_close(struct kvb_ring *ring);

/* Readable while the ring is not empty or closed.  Borrowed. */
int kvb_ring_fd(const struct kvb_ring *ring);

size_t kvb_ring_count(struct kvb_ring *ring);
