#include "core/ring.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

enum { max_capacity = 1 << 20 };

struct kvb_ring {
    pthread_mutex_t lock;
    pthread_cond_t has_place; /* also signalled by close */
    void **items;             /* owned, with the items in it */
    size_t capacity;
    size_t head; /* position of the oldest item */
    size_t count;
    kvb_ring_drop drop;
    int fd; /* owned; its counter is 1 while count > 0 or is_closed, else 0 */
    bool is_closed;
};

kvb_status kvb_ring_new(size_t capacity, kvb_ring_drop drop, struct kvb_ring **out_ring)
{
    if (capacity == 0 || capacity > max_capacity) {
        return KVB_TOO_LARGE;
    }
    struct kvb_ring *ring = calloc(1, sizeof *ring);
    if (!ring) {
        return KVB_NO_MEMORY;
    }
    ring->items = calloc(capacity, sizeof *ring->items);
    if (!ring->items) {
        free(ring);
        return KVB_NO_MEMORY;
    }
    ring->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (ring->fd < 0) {
        free(ring->items);
        free(ring);
        return KVB_IO;
    }
    ring->capacity = capacity;
    ring->drop = drop;
    (void)pthread_mutex_init(&ring->lock, NULL);     /* cannot fail with glibc */
    (void)pthread_cond_init(&ring->has_place, NULL); /* cannot fail with glibc */
    *out_ring = ring;
    return KVB_OK;
}

static void *take_oldest(struct kvb_ring *ring)
{
    void *item = ring->items[ring->head];

    ring->head = (ring->head + 1) % ring->capacity;
    ring->count--;
    return item;
}

void kvb_ring_free(struct kvb_ring *ring)
{
    if (!ring) {
        return;
    }
    while (ring->count > 0) {
        void *item = take_oldest(ring);
        if (ring->drop) {
            ring->drop(item);
        }
    }
    close(ring->fd);
    pthread_cond_destroy(&ring->has_place);
    pthread_mutex_destroy(&ring->lock);
    free(ring->items);
    free(ring);
}

/* This and make_unreadable() cannot fail, because the counter is only 0 or 1. */
static void make_readable(const struct kvb_ring *ring)
{
    (void)eventfd_write(ring->fd, 1);
}

static void make_unreadable(const struct kvb_ring *ring)
{
    eventfd_t ignored = 0;

    (void)eventfd_read(ring->fd, &ignored);
}

/* The caller holds the lock. */
static kvb_status put_locked(struct kvb_ring *ring, void *item)
{
    if (ring->is_closed) {
        return KVB_CLOSED;
    }
    if (ring->count == ring->capacity) {
        return KVB_AGAIN;
    }
    ring->items[(ring->head + ring->count) % ring->capacity] = item;
    ring->count++;
    /* The reader sleeps only on an empty ring, so it needs one wake per run. */
    if (ring->count == 1) {
        make_readable(ring);
    }
    return KVB_OK;
}

kvb_status kvb_ring_put(struct kvb_ring *ring, void *item)
{
    pthread_mutex_lock(&ring->lock);
    const kvb_status status = put_locked(ring, item);
    pthread_mutex_unlock(&ring->lock);
    return status;
}

kvb_status kvb_ring_put_wait(struct kvb_ring *ring, void *item)
{
    pthread_mutex_lock(&ring->lock);
    kvb_status status = put_locked(ring, item);
    while (status == KVB_AGAIN) {
        pthread_cond_wait(&ring->has_place, &ring->lock);
        status = put_locked(ring, item);
    }
    pthread_mutex_unlock(&ring->lock);
    return status;
}

kvb_status kvb_ring_take(struct kvb_ring *ring, void **out_item)
{
    kvb_status status = KVB_AGAIN;

    pthread_mutex_lock(&ring->lock);
    if (ring->count > 0) {
        *out_item = take_oldest(ring);
        pthread_cond_signal(&ring->has_place);
        /* A closed ring stays readable, so that the reader learns of it. */
        if (ring->count == 0 && !ring->is_closed) {
            make_unreadable(ring);
        }
        status = KVB_OK;
    } else if (ring->is_closed) {
        status = KVB_CLOSED;
    }
    pthread_mutex_unlock(&ring->lock);
    return status;
}

const void *kvb_ring_oldest(struct kvb_ring *ring)
{
    pthread_mutex_lock(&ring->lock);
    const void *oldest = ring->count > 0 ? ring->items[ring->head] : NULL;
    pthread_mutex_unlock(&ring->lock);
    return oldest;
}

void kvb_ring_close(struct kvb_ring *ring)
{
    pthread_mutex_lock(&ring->lock);
    if (!ring->is_closed && ring->count == 0) {
        make_readable(ring);
    }
    ring->is_closed = true;
    pthread_cond_broadcast(&ring->has_place);
    pthread_mutex_unlock(&ring->lock);
}

int kvb_ring_fd(const struct kvb_ring *ring)
{
    return ring->fd;
}

size_t kvb_ring_count(struct kvb_ring *ring)
{
    pthread_mutex_lock(&ring->lock);
    const size_t count = ring->count;
    pthread_mutex_unlock(&ring->lock);
    return count;
}
