#include "bus/link.h"
#include "control/control.h"
#include "core/clock.h"

#include <stdlib.h>
#include <time.h>
#include <unistd.h>

enum { burial_flush_ms = 1000 };

struct kvb_grave {
    struct kvb_grave *next;
    natsSubscription *nats; /* owned */
};

bool kvb_bus_is_connected(const struct kvb_bus *bus)
{
    return atomic_load_explicit(&bus->is_connected, memory_order_acquire);
}

uint64_t kvb_bus_connects(const struct kvb_bus *bus)
{
    return atomic_load_explicit(&bus->connects, memory_order_relaxed);
}

uint64_t kvb_bus_lame_ducks(const struct kvb_bus *bus)
{
    return atomic_load_explicit(&bus->lame_ducks, memory_order_relaxed);
}

struct timespec kvb_bus_deadline(uint32_t wait_ms)
{
    const uint64_t at_ns = kvb_clock_monotonic_ns() + wait_ms * KVB_NS_PER_MS;

    return (struct timespec){ .tv_sec = (time_t)(at_ns / KVB_NS_PER_S),
                              .tv_nsec = (long)(at_ns % KVB_NS_PER_S) };
}

void kvb_bus_wake_manager(struct kvb_bus *bus)
{
    if (!bus->is_stopping) {
        kvb_job_wake(bus->job);
    }
}

struct kvb_link *kvb_link_new(struct kvb_bus *bus)
{
    struct kvb_link *link = calloc(1, sizeof *link);

    if (link) {
        link->bus = bus;
        /* Of the caller, and of the closed callback. */
        link->uses = 2;
        link->socket.fd = -1;
        pthread_mutex_init(&link->socket.io, NULL);
    }
    return link;
}

void kvb_link_free(struct kvb_link *link)
{
    if (link) {
        if (link->socket.fd >= 0) {
            (void)close(link->socket.fd);
        }
        pthread_mutex_destroy(&link->socket.io);
        free(link);
    }
}

struct kvb_link *kvb_link_use(struct kvb_bus *bus)
{
    struct kvb_link *link = NULL;

    /* Without the lock: during an outage publishers need not queue for it. */
    if (!kvb_bus_is_connected(bus)) {
        return NULL;
    }
    pthread_mutex_lock(&bus->lock);
    if (bus->link && !bus->link->is_broken) {
        link = bus->link;
        link->uses++;
    }
    pthread_mutex_unlock(&bus->lock);
    return link;
}

void kvb_link_retain(struct kvb_link *link)
{
    pthread_mutex_lock(&link->bus->lock);
    link->uses++;
    pthread_mutex_unlock(&link->bus->lock);
}

static bool is_current(struct kvb_link *link)
{
    pthread_mutex_lock(&link->bus->lock);
    const bool is_so = link->bus->link == link;
    pthread_mutex_unlock(&link->bus->lock);
    return is_so;
}

/* True when a PONG came over this link.  A link that is current before and after the wait was
 * current throughout. */
static bool read_a_pong(struct kvb_link *link)
{
    return is_current(link) && kvb_bus_flush(link->bus, burial_flush_ms) == KVB_OK &&
           is_current(link);
}

void kvb_link_bury(struct kvb_link *link, natsSubscription *nats)
{
    if (!nats) {
        return;
    }
    if (read_a_pong(link)) {
        natsSubscription_Destroy(nats);
        return;
    }
    struct kvb_grave *grave = malloc(sizeof *grave);
    if (!grave) {
        return; /* leak it: nats.c might still read it */
    }
    grave->nats = nats;
    pthread_mutex_lock(&link->bus->lock);
    grave->next = link->graves;
    link->graves = grave;
    pthread_mutex_unlock(&link->bus->lock);
}

/* Called after the connection is destroyed, when nats.c has no reading thread for it any more. */
static void free_graves(struct kvb_link *link)
{
    while (link->graves) {
        struct kvb_grave *grave = link->graves;
        link->graves = grave->next;
        natsSubscription_Destroy(grave->nats);
        free(grave);
    }
}

void kvb_link_release(struct kvb_link *link)
{
    struct kvb_bus *bus = link->bus;

    pthread_mutex_lock(&bus->lock);
    const bool is_last = --link->uses == 0;
    pthread_mutex_unlock(&bus->lock);
    if (!is_last) {
        return;
    }
    /* Not under the lock: nats.c takes locks of its own, and calls back under them. */
    natsConnection_Destroy(link->nats);
    free_graves(link);
    kvb_link_free(link);
    pthread_mutex_lock(&bus->lock);
    /* Last: a closer that finds no link frees the bus. */
    bus->links--;
    pthread_cond_broadcast(&bus->changed);
    pthread_mutex_unlock(&bus->lock);
}

void kvb_link_break(struct kvb_link *link)
{
    struct kvb_bus *bus = link->bus;

    pthread_mutex_lock(&bus->lock);
    link->is_broken = true;
    /* Another link that breaks takes nothing from the current one. */
    if (bus->link == link) {
        atomic_store_explicit(&bus->is_connected, false, memory_order_release);
        pthread_cond_broadcast(&bus->changed);
        kvb_bus_wake_manager(bus);
    }
    pthread_mutex_unlock(&bus->lock);
}
