#include "bus/link.h"
#include "core/clock.h"

#include <time.h>

/* The flusher: a thread that waits for PONGs in place of its callers.
 *
 * It waits for those that want to know that bytes arrived, and for the watch.  Where nats.c has
 * threads of its own (socket.c), it also waits for those that want bytes written out: there nats.c
 * has no call that writes its buffer without waiting for a PONG, and its own flusher sleeps for a
 * millisecond first.  nats.c waits on the realtime clock.  The watch measures the wait on the
 * monotonic clock.  When it takes too long, the watch closes the link, which ends the wait here.
 *
 * nats.c treats a PING that it cannot write as answered.  The kernel's buffer is full then, and
 * the write that filled it has failed or will fail, which breaks the link. */

/* The watch ends a wait earlier.  This limit is reached only when the realtime clock is set
 * forward. */
enum { longest_wait_ms = 60000 };

static void note_answer(struct kvb_bus *bus, const struct kvb_link *link, uint64_t ticket)
{
    pthread_mutex_lock(&bus->lock);
    /* The PONG of a link that was replaced says nothing about the new one, nor about a ticket that
     * was drawn there.  Whoever drew it has requested another flush. */
    if (bus->link == link) {
        kvb_bus_watch_answered(&bus->watch);
        bus->flushes_done = ticket;
    }
    /* Most PONGs are for the watch alone, and need wake nobody. */
    if (bus->flush_waiters > 0) {
        pthread_cond_broadcast(&bus->changed);
    }
    pthread_mutex_unlock(&bus->lock);
}

/* Returns the newest ticket.  What was published before a caller drew it is written out before the
 * PING of this flush. */
static uint64_t begin_flush(struct kvb_bus *bus, const struct kvb_link *link)
{
    pthread_mutex_lock(&bus->lock);
    if (bus->link == link) {
        kvb_bus_watch_pinged(&bus->watch, kvb_clock_monotonic_ns());
    }
    const uint64_t ticket = bus->flushes_wanted;
    /* For the PING alone nats.c would have the control thread write, but not behind what somebody
     * has published: that its publisher writes, who may be waiting for this flush. */
    if (atomic_load_explicit(&bus->has_unwritten, memory_order_relaxed)) {
        kvb_bus_wake_manager(bus);
    }
    pthread_mutex_unlock(&bus->lock);
    return ticket;
}

static void flush_once(struct kvb_bus *bus)
{
    struct kvb_link *link = kvb_link_use(bus);
    natsStatus answer = NATS_TIMEOUT;

    if (!link) {
        return; /* waiting callers see the loss */
    }
    const uint64_t ticket = begin_flush(bus, link);
    while (answer == NATS_TIMEOUT) { /* the watch closes the link, which ends this loop */
        answer = natsConnection_FlushTimeout(link->nats, longest_wait_ms);
    }
    if (answer == NATS_OK) {
        note_answer(bus, link, ticket);
    } /* else the link has ended: who waits for the PONG of another one has requested a flush */
    kvb_link_release(link);
}

static void *flush_on_request(void *argument)
{
    struct kvb_bus *bus = argument;

    for (;;) {
        while (sem_wait(&bus->flush_requested) != 0) { /* interrupted by a signal: wait again */
        }
        if (atomic_load(&bus->is_flusher_stopping)) {
            break;
        }
        atomic_store(&bus->is_flush_requested, false); /* first: later publishes need a flush */
        flush_once(bus);
    }
    pthread_mutex_lock(&bus->lock);
    bus->is_flusher_running = false;
    pthread_cond_broadcast(&bus->changed);
    pthread_mutex_unlock(&bus->lock);
    return NULL;
}

void kvb_flusher_request(struct kvb_bus *bus)
{
    if (!atomic_exchange(&bus->is_flush_requested, true)) {
        (void)sem_post(&bus->flush_requested); /* cannot overflow: at most one request is pending */
    }
}

/* Waits until the flusher has done this ticket.  lock is held. */
static kvb_status wait_for_flush(struct kvb_bus *bus, uint64_t ticket, uint32_t timeout_ms)
{
    const struct timespec deadline = kvb_bus_deadline(timeout_ms);
    const uint64_t connects = kvb_bus_connects(bus);
    bool is_late = false;

    /* A reconnect ends the wait, too: what was published before may be lost with the old link. */
    bus->flush_waiters++;
    while (bus->flushes_done < ticket && kvb_bus_connects(bus) == connects &&
           kvb_bus_is_connected(bus) && !is_late) {
        is_late = pthread_cond_timedwait(&bus->changed, &bus->lock, &deadline) != 0;
    }
    bus->flush_waiters--;
    if (kvb_bus_connects(bus) != connects || !kvb_bus_is_connected(bus)) {
        return KVB_AGAIN;
    }
    return bus->flushes_done >= ticket ? KVB_OK : KVB_IO;
}

kvb_status kvb_bus_flush(struct kvb_bus *bus, uint32_t timeout_ms)
{
    pthread_mutex_lock(&bus->lock);
    if (!kvb_bus_is_connected(bus)) {
        pthread_mutex_unlock(&bus->lock);
        return KVB_AGAIN;
    }
    const uint64_t ticket = ++bus->flushes_wanted;
    kvb_flusher_request(bus);
    const kvb_status status = wait_for_flush(bus, ticket, timeout_ms);
    pthread_mutex_unlock(&bus->lock);
    return status;
}

kvb_status kvb_flusher_start(struct kvb_bus *bus)
{
    bus->is_flusher_running = true;
    if (pthread_create(&bus->flusher, NULL, flush_on_request, bus) != 0) {
        bus->is_flusher_running = false;
        return KVB_IO;
    }
    return KVB_OK;
}

void kvb_flusher_stop(struct kvb_bus *bus)
{
    atomic_store(&bus->is_flusher_stopping, true);
    /* Not kvb_flusher_request(): one that is pending may swallow this one. */
    (void)sem_post(&bus->flush_requested);
}
