#include "bus/link.h"

#include <stdlib.h>

enum { burial_flush_ms = 1000 };

struct kvb_grave {
    struct kvb_grave *next;
    natsSubscription *nats; /* owned */
};

struct kvb_link *kvb_link_use(struct kvb_bus *bus)
{
    struct kvb_link *link = NULL;

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

static bool read_a_pong(struct kvb_link *link)
{
    pthread_mutex_lock(&link->bus->lock);
    const bool is_up = link->is_up;
    pthread_mutex_unlock(&link->bus->lock);
    return is_up && natsConnection_FlushTimeout(link->nats, burial_flush_ms) == NATS_OK;
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
        return; /* rather leak it than read freed memory */
    }
    grave->nats = nats;
    pthread_mutex_lock(&link->bus->lock);
    grave->next = link->graves;
    link->graves = grave;
    pthread_mutex_unlock(&link->bus->lock);
}

/* The connection is destroyed: nobody reads any more. */
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
    natsConnection_Destroy(link->nats);
    free_graves(link);
    free(link);
    pthread_mutex_lock(&bus->lock);
    bus->links--;
    pthread_cond_broadcast(&bus->changed);
    pthread_mutex_unlock(&bus->lock);
}

void kvb_link_break(struct kvb_link *link)
{
    struct kvb_bus *bus = link->bus;

    pthread_mutex_lock(&bus->lock);
    link->is_broken = true;
    link->is_up = false;
    if (bus->link == link) {
        atomic_store_explicit(&bus->is_connected, false, memory_order_release);
        pthread_cond_broadcast(&bus->changed);
    }
    pthread_mutex_unlock(&bus->lock);
}
