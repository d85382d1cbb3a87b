#include "bus/link.h"
#include "control/control.h"
#include "core/clock.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

/* The socket of an attached link, which is read and written without threads of nats.c:
 *
 *     publish --> nats.c's buffer --> kvb_bus_write(), or 32 KiB wait: send(), by who publishes
 *     nats.c's own PING, PONG, SUB --> buffer --> the control thread: send()
 *     readable --> the control thread: recv(), nats.c reads the messages
 *
 * nats.c calls that an external event loop.  With its own threads a message that no other follows
 * wakes seven times: the flusher of the bus twice, that of nats.c twice, its reading thread, and
 * two of the server for PING and PONG.  Here it is one system call of the thread that published.
 *
 * Not with TLS: there nats.c waits for the rest of a record without a time limit, on the thread
 * that reads.  Nor for a responder: it reads more than the control thread should, and writes each
 * answer on the thread that made it anyway.
 *
 * nats.c reads a socket without its lock.  Whoever closes the connection meanwhile would have it
 * read from a descriptor whose number may belong to another file by then.  So `io` is held for each
 * call that reads, writes or closes.  No callback of nats.c takes it. */

enum {
    write_deadline_ms = 200, /* limit: engines wait meanwhile; as that of links with threads */
    look_again_ms = 5,       /* while the kernel's buffer is full */
    first_tls_record = 20,   /* types of records: 20 to 24; text of NATS begins above */
    last_tls_record = 24
};

/* This thread publishes, and will write. */
static _Thread_local bool writes_itself;

/* ---- What nats.c tells: with its lock held, except for detach() ---- */

/* On the dialing thread, once it is connected.  From here on the job has a use of the link. */
static natsStatus attach(void **out_context, void *loop, natsConnection *nats, natsSock fd)
{
    struct kvb_link *link = loop;
    struct kvb_bus *bus = link->bus;
    /* The watch needs a descriptor that stays open when nats.c closes its own. */
    const int own = fcntl(fd, F_DUPFD_CLOEXEC, 0);

    if (own < 0) {
        return NATS_IO_ERROR;
    }
    pthread_mutex_lock(&bus->lock);
    const bool is_late = bus->is_stopping; /* then nobody would give the use back */
    if (!is_late) {
        link->socket.nats = nats;
        link->socket.fd = own;
        link->socket.next = bus->attached;
        bus->attached = link;
        link->uses++;
        kvb_bus_wake_manager(bus);
    }
    pthread_mutex_unlock(&bus->lock);
    if (is_late) {
        (void)close(own);
        return NATS_CONNECTION_CLOSED;
    }
    *out_context = link;
    return NATS_OK;
}

static natsStatus want_read(void *context, bool is_wanted)
{
    (void)context;
    (void)is_wanted; /* it is read until it ends */
    return NATS_OK;
}

static natsStatus want_write(void *context, bool is_wanted)
{
    struct kvb_link *link = context;

    /* PING, PONG and SUB of nats.c: no publisher writes them. */
    if (is_wanted && !writes_itself) {
        pthread_mutex_lock(&link->bus->lock);
        kvb_bus_wake_manager(link->bus);
        pthread_mutex_unlock(&link->bus->lock);
    }
    return NATS_OK;
}

/* nats.c has closed its own descriptor, but the connection lasts as long as ours. */
static natsStatus detach(void *context)
{
    struct kvb_link *link = context;
    struct kvb_bus *bus = link->bus;

    /* So the server sees the end now, although our duplicate is still open. */
    (void)shutdown(link->socket.fd, SHUT_RDWR);
    pthread_mutex_lock(&bus->lock);
    atomic_store(&link->socket.is_ending, true); /* from here on the job may free the link */
    kvb_bus_wake_manager(bus);
    pthread_mutex_unlock(&bus->lock);
    return NATS_OK;
}

natsStatus kvb_socket_attach(struct kvb_link *link, natsOptions *options)
{
    const natsStatus status =
        natsOptions_SetEventLoop(options, link, attach, want_read, want_write, detach);

    /* Otherwise nats.c starts a thread that has nothing to do. */
    return status == NATS_OK ? natsOptions_SetSendAsap(options, true) : status;
}

bool kvb_socket_is_attached(const struct kvb_link *link)
{
    return link->socket.fd >= 0;
}

/* ---- Writing ---- */

/* Returns the bytes that are left.  io is held. */
static int write_once(struct kvb_link *link)
{
    /* nats.c takes a write of nothing for the end of the connection. */
    if (natsConnection_Buffered(link->socket.nats) > 0) {
        natsConnection_ProcessWriteEvent(link->socket.nats);
    }
    const int left = natsConnection_Buffered(link->socket.nats);
    return left > 0 ? left : 0; /* below 0: it is closed */
}

kvb_status kvb_socket_write(struct kvb_link *link)
{
    uint64_t until_ns = 0;

    for (;;) {
        pthread_mutex_lock(&link->socket.io);
        const int left = write_once(link);
        pthread_mutex_unlock(&link->socket.io);
        /* Between two tries `io` is free, so that the control thread reads. */
        if (left == 0) {
            return KVB_OK;
        }
        /* The clock is read only when the kernel's buffer is full. */
        const uint64_t now_ns = kvb_clock_monotonic_ns();
        until_ns = until_ns > 0 ? until_ns : now_ns + write_deadline_ms * KVB_NS_PER_MS;
        if (now_ns >= until_ns) {
            return KVB_IO;
        }
        struct pollfd full = { .fd = link->socket.fd, .events = POLLOUT };
        (void)poll(&full, 1, (int)((until_ns - now_ns) / KVB_NS_PER_MS) + 1);
    }
}

natsStatus
kvb_socket_publish(struct kvb_link *link, const char *subject, const char *reply, kvb_span payload)
{
    const int len = (int)payload.len;

    writes_itself = true;
    const natsStatus answer =
        reply ? natsConnection_PublishRequest(link->nats, subject, reply, payload.data, len)
              : natsConnection_Publish(link->nats, subject, payload.data, len);
    writes_itself = false;
    return answer;
}

void kvb_bus_write(struct kvb_bus *bus)
{
    if (!atomic_load_explicit(&bus->has_unwritten, memory_order_relaxed)) {
        return;
    }
    /* First: what is published during the write is written by the next call. */
    atomic_store_explicit(&bus->has_unwritten, false, memory_order_relaxed);
    struct kvb_link *link = kvb_link_use(bus);
    if (!link) {
        return;
    }
    if (!kvb_socket_is_attached(link)) {
        kvb_flusher_request(bus);
    } else if (kvb_socket_write(link) != KVB_OK) {
        kvb_link_break(link);
    }
    kvb_link_release(link);
}

/* ---- Closing ---- */

void kvb_socket_close(struct kvb_link *link)
{
    pthread_mutex_lock(&link->bus->lock);
    link->is_broken = true; /* so that on_closed() does not take it for a loss */
    pthread_mutex_unlock(&link->bus->lock);
    if (!kvb_socket_is_attached(link)) {
        natsConnection_Close(link->nats);
        return;
    }
    atomic_store(&link->socket.is_ending, true); /* the control thread reads no more */
    pthread_mutex_lock(&link->socket.io);
    /* With bytes left nats.c would wait half a second for a PONG that nobody reads. */
    (void)write_once(link);
    natsConnection_Close(link->nats);
    pthread_mutex_unlock(&link->socket.io);
}

static void *close_link(void *argument)
{
    struct kvb_link *link = argument;

    kvb_socket_close(link);
    kvb_link_release(link);
    return NULL;
}

/* Closes on a thread of its own, because nats.c waits half a second for the last PONG, on the
 * realtime clock. */
void kvb_link_close(struct kvb_link *link)
{
    pthread_t thread;

    pthread_mutex_lock(&link->bus->lock);
    const bool is_closed = link->is_closed;
    pthread_mutex_unlock(&link->bus->lock);
    /* A closed connection has no PONG to wait for; without a thread the caller waits. */
    if (is_closed || pthread_create(&thread, NULL, close_link, link) != 0) {
        (void)close_link(link);
    } else {
        pthread_detach(thread);
    }
}

/* ---- On the control thread ---- */

/* A server may require TLS although nats.url does not say so, and nats.c then changes to it. */
static bool has_come_tls(struct kvb_link *link)
{
    uint8_t first = 0;

    if (link->socket.is_known || recv(link->socket.fd, &first, 1, MSG_PEEK | MSG_DONTWAIT) != 1) {
        return false;
    }
    /* A connection does not change from text to records later, so one look is enough. */
    link->socket.is_known = true;
    return first >= first_tls_record && first <= last_tls_record;
}

/* The next link has threads. */
static void leave_to_threads(struct kvb_link *link)
{
    pthread_mutex_lock(&link->bus->lock);
    link->bus->has_met_tls = true;
    pthread_mutex_unlock(&link->bus->lock);
    /* The record stays unread, and would bring this call again at once. */
    kvb_fd_watch_set(link->socket.watch, false, false);
    kvb_link_break(link);
}

static void on_ready(void *context, int fd, bool is_readable, bool is_writable)
{
    struct kvb_link *link = context;

    (void)fd;
    (void)is_readable;
    (void)is_writable;
    if (atomic_load(&link->socket.is_ending)) {
        kvb_fd_watch_set(link->socket.watch, false, false); /* the turn that follows frees it */
    } else if (has_come_tls(link)) {
        leave_to_threads(link);
    } else if (pthread_mutex_trylock(&link->socket.io) == 0) { /* else it is being written */
        natsConnection_ProcessReadEvent(link->socket.nats);
        pthread_mutex_unlock(&link->socket.io);
    }
}

/* Returns when to look again. */
static uint64_t write_without_waiting(struct kvb_link *link, uint64_t now_ns)
{
    /* Somebody writes, and waits for the server: this thread must not wait with them. */
    if (pthread_mutex_trylock(&link->socket.io) != 0) {
        return now_ns + look_again_ms * KVB_NS_PER_MS;
    }
    const int left = write_once(link);
    pthread_mutex_unlock(&link->socket.io);
    return left > 0 ? now_ns + look_again_ms * KVB_NS_PER_MS : UINT64_MAX;
}

static void begin_to_read(struct kvb_link *link)
{
    const struct kvb_fd_watch_options options = { .fd = link->socket.fd,
                                                  .on_ready = on_ready,
                                                  .context = link };

    if (kvb_fd_watch_new(link->bus->job, &options, &link->socket.watch) == KVB_OK) {
        kvb_fd_watch_set(link->socket.watch, true, false);
    } else {
        kvb_link_break(link); /* another dial follows */
    }
}

/* Takes the link from the list and gives the job's use back. */
static void leave(struct kvb_link *link)
{
    struct kvb_bus *bus = link->bus;

    kvb_fd_watch_free(link->socket.watch);
    link->socket.watch = NULL;
    pthread_mutex_lock(&bus->lock);
    struct kvb_link **at = &bus->attached;
    while (*at != link) {
        at = &(*at)->socket.next;
    }
    *at = link->socket.next;
    pthread_mutex_unlock(&bus->lock);
    kvb_link_release(link);
}

/* Others only add links in front, so the list is walked without the lock. */
static struct kvb_link *first_attached(struct kvb_bus *bus)
{
    pthread_mutex_lock(&bus->lock);
    struct kvb_link *first = bus->attached;
    pthread_mutex_unlock(&bus->lock);
    return first;
}

uint64_t kvb_sockets_tend(struct kvb_bus *bus, uint64_t now_ns)
{
    uint64_t due_ns = UINT64_MAX;

    for (struct kvb_link *link = first_attached(bus), *next = NULL; link; link = next) {
        /* First: leave() may free the link. */
        next = link->socket.next;
        if (atomic_load(&link->socket.is_ending)) {
            leave(link);
            continue;
        }
        if (!link->socket.watch) {
            begin_to_read(link);
        }
        /* What somebody published and did not have written is written here, too. */
        const uint64_t again_ns = write_without_waiting(link, now_ns);
        due_ns = again_ns < due_ns ? again_ns : due_ns;
    }
    return due_ns;
}

void kvb_sockets_end(void *context)
{
    struct kvb_bus *bus = context;

    for (struct kvb_link *link = first_attached(bus), *next = NULL; link; link = next) {
        next = link->socket.next;
        leave(link);
    }
}
