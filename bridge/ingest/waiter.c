#include "ingest/waiter.h"

#include <assert.h>
#include <stdlib.h>
#include <zmq.h>

struct kvb_waiter {
    zmq_pollitem_t *items; /* owned */
    size_t count;
    size_t capacity;
};

kvb_status kvb_waiter_new(size_t most_handles, struct kvb_waiter **out_waiter)
{
    struct kvb_waiter *waiter = calloc(1, sizeof *waiter);

    if (!waiter) {
        return KVB_NO_MEMORY;
    }
    waiter->items = calloc(most_handles, sizeof *waiter->items);
    if (!waiter->items) {
        free(waiter);
        return KVB_NO_MEMORY;
    }
    waiter->capacity = most_handles;
    *out_waiter = waiter;
    return KVB_OK;
}

void kvb_waiter_free(struct kvb_waiter *waiter)
{
    if (!waiter) {
        return;
    }
    free(waiter->items);
    free(waiter);
}

void kvb_waiter_begin(struct kvb_waiter *waiter)
{
    waiter->count = 0;
}

static size_t add(struct kvb_waiter *waiter, void *handle, int fd)
{
    assert(waiter->count < waiter->capacity);
    waiter->items[waiter->count] =
        (zmq_pollitem_t){ .socket = handle, .fd = fd, .events = ZMQ_POLLIN };
    return waiter->count++;
}

/* Always kvb_source_sockets places, so that the position tells which is which; a
 * missing replay socket repeats the monitor. */
size_t kvb_waiter_add_source(struct kvb_waiter *waiter, const struct kvb_source *source)
{
    void *handles[kvb_source_sockets] = { 0 };
    const size_t count = kvb_source_handles(source, handles);
    const size_t at = waiter->count;

    for (size_t i = 0; i < kvb_source_sockets; i++) {
        (void)add(waiter, handles[i < count ? i : 1], 0);
    }
    return at;
}

size_t kvb_waiter_add_load(struct kvb_waiter *waiter, const struct kvb_load_source *load)
{
    return add(waiter, kvb_load_source_handle(load), 0);
}

size_t kvb_waiter_add_fd(struct kvb_waiter *waiter, int fd)
{
    return add(waiter, NULL, fd);
}

void kvb_waiter_wait(struct kvb_waiter *waiter, int timeout_ms)
{
    if (zmq_poll(waiter->items, (int)waiter->count, timeout_ms) < 0) {
        for (size_t i = 0; i < waiter->count; i++) {
            waiter->items[i].revents = 0; /* a signal: nothing is known to be ready */
        }
    }
}

int kvb_waiter_is_ready(const struct kvb_waiter *waiter, size_t at)
{
    return waiter->items[at].revents & ZMQ_POLLIN;
}

unsigned kvb_waiter_source_ready(const struct kvb_waiter *waiter, size_t at)
{
    unsigned ready = 0;

    if (kvb_waiter_is_ready(waiter, at) || kvb_waiter_is_ready(waiter, at + 1)) {
        ready |= kvb_ready_live;
    }
    if (waiter->items[at + 2].socket != waiter->items[at + 1].socket &&
        kvb_waiter_is_ready(waiter, at + 2)) {
        ready |= kvb_ready_reply;
    }
    return ready;
}
