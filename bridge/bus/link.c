#include "bus/link.h"

#include <stdlib.h>

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
