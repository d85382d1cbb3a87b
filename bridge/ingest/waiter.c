#include "ingest/waiter.h"

#include <errno.h>
#include <poll.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <unistd.h>
#include <zmq.h>

enum { sockets_an_owner = 3, events_a_wait = 256 };

struct watched {
    void *socket;
    unsigned kind;
};

struct owner {
    struct watched sockets[sockets_an_owner];
    size_t socket_count;
    unsigned pending; /* ready, whatever the sockets say */
    unsigned ready;   /* what the last look found */
    bool is_hot;      /* is in the list below */
};

struct kvb_waiter {
    int epoll_fd;
    struct owner *owners; /* owned */
    size_t owner_count;
    size_t *hot; /* owned: owners to be looked at before the next wait */
    size_t hot_count;
    size_t next; /* in hot: the next to be told */
};

kvb_status kvb_waiter_new(size_t owners, struct kvb_waiter **out_waiter)
{
    struct kvb_waiter *waiter = calloc(1, sizeof *waiter);

    if (!waiter) {
        return KVB_NO_MEMORY;
    }
    waiter->owners = calloc(owners, sizeof *waiter->owners);
    waiter->hot = calloc(owners, sizeof *waiter->hot);
    waiter->owner_count = owners;
    waiter->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    if (!waiter->owners || !waiter->hot || waiter->epoll_fd < 0) {
        const kvb_status status = waiter->epoll_fd < 0 ? KVB_IO : KVB_NO_MEMORY;
        kvb_waiter_free(waiter);
        return status;
    }
    *out_waiter = waiter;
    return KVB_OK;
}

void kvb_waiter_free(struct kvb_waiter *waiter)
{
    if (!waiter) {
        return;
    }
    if (waiter->epoll_fd >= 0) {
        (void)close(waiter->epoll_fd);
    }
    free(waiter->owners);
    free(waiter->hot);
    free(waiter);
}

static void heat(struct kvb_waiter *waiter, size_t at)
{
    if (!waiter->owners[at].is_hot) {
        waiter->owners[at].is_hot = true;
        waiter->hot[waiter->hot_count++] = at;
    }
}

static int fd_of(void *socket)
{
    int fd = -1;
    size_t size = sizeof fd;

    return zmq_getsockopt(socket, ZMQ_FD, &fd, &size) == 0 ? fd : -1;
}

static kvb_status watch(struct kvb_waiter *waiter, size_t owner, int fd, uint32_t events)
{
    struct epoll_event event = { .events = events, .data = { .u64 = owner } };

    return epoll_ctl(waiter->epoll_fd, EPOLL_CTL_ADD, fd, &event) == 0 ? KVB_OK : KVB_IO;
}

kvb_status
kvb_waiter_add_socket(struct kvb_waiter *waiter, size_t owner, unsigned kind, void *socket)
{
    struct owner *at = &waiter->owners[owner];

    if (at->socket_count == sockets_an_owner) {
        return KVB_TOO_LARGE;
    }
    KVB_TRY(watch(waiter, owner, fd_of(socket), EPOLLIN | EPOLLET));
    at->sockets[at->socket_count++] = (struct watched){ .socket = socket, .kind = kind };
    heat(waiter, owner); /* what it has already, no edge will tell */
    return KVB_OK;
}

void kvb_waiter_drop_socket(struct kvb_waiter *waiter, size_t owner, void *socket)
{
    struct owner *at = &waiter->owners[owner];

    for (size_t i = 0; i < at->socket_count; i++) {
        if (at->sockets[i].socket == socket) {
            /* else: it is closed already, and the kernel has forgotten it */
            (void)epoll_ctl(waiter->epoll_fd, EPOLL_CTL_DEL, fd_of(socket), NULL);
            at->sockets[i] = at->sockets[--at->socket_count];
            return;
        }
    }
}

kvb_status kvb_waiter_add_fd(struct kvb_waiter *waiter, size_t owner, int fd)
{
    return watch(waiter, owner, fd, EPOLLIN);
}

void kvb_waiter_set_pending(struct kvb_waiter *waiter, size_t owner, unsigned kinds)
{
    waiter->owners[owner].pending = kinds;
    heat(waiter, owner);
}

/* ---- Waiting ---- */

static bool has_input(void *socket)
{
    int events = 0;
    size_t size = sizeof events;

    if (zmq_getsockopt(socket, ZMQ_EVENTS, &events, &size) != 0) {
        return errno == EINTR; /* not known: let it be tried */
    }
    return events & ZMQ_POLLIN;
}

static unsigned look(const struct owner *owner)
{
    unsigned ready = owner->pending;

    for (size_t i = 0; i < owner->socket_count; i++) {
        if (has_input(owner->sockets[i].socket)) {
            ready |= owner->sockets[i].kind;
        }
    }
    return ready;
}

/* Whoever has nothing more leaves the list: its descriptors will tell. */
static void look_at_hot(struct kvb_waiter *waiter)
{
    size_t kept = 0;

    for (size_t i = 0; i < waiter->hot_count; i++) {
        const size_t at = waiter->hot[i];
        struct owner *owner = &waiter->owners[at];
        owner->ready = look(owner);
        owner->is_hot = owner->ready != 0;
        if (owner->is_hot) {
            waiter->hot[kept++] = at;
        }
    }
    waiter->hot_count = kept;
    waiter->next = 0;
}

static void take_event(struct kvb_waiter *waiter, size_t at)
{
    struct owner *owner = &waiter->owners[at];

    if (owner->is_hot) {
        return; /* looked at already; the rest of it before the next wait */
    }
    owner->ready = owner->socket_count > 0 ? look(owner) : kvb_ready_live;
    if (owner->ready) {
        heat(waiter, at);
    }
}

/* The kernel does not wait for us: never spin, never stand still. */
static kvb_status wait_blindly(struct kvb_waiter *waiter, int timeout_ms)
{
    (void)poll(NULL, 0, timeout_ms);
    for (size_t at = 0; at < waiter->owner_count; at++) {
        heat(waiter, at);
    }
    look_at_hot(waiter);
    return KVB_IO;
}

kvb_status kvb_waiter_wait(struct kvb_waiter *waiter, int timeout_ms)
{
    struct epoll_event events[events_a_wait];

    look_at_hot(waiter);
    const int count =
        epoll_wait(waiter->epoll_fd, events, events_a_wait, waiter->hot_count > 0 ? 0 : timeout_ms);
    if (count < 0 && errno != EINTR) {
        return wait_blindly(waiter, timeout_ms);
    }
    for (int i = 0; i < count; i++) {
        take_event(waiter, events[i].data.u64);
    }
    return KVB_OK;
}

bool kvb_waiter_is_idle(const struct kvb_waiter *waiter)
{
    return waiter->hot_count == 0;
}

bool kvb_waiter_next(struct kvb_waiter *waiter, size_t *out_owner, unsigned *out_kinds)
{
    while (waiter->next < waiter->hot_count) {
        const size_t at = waiter->hot[waiter->next++];
        if (waiter->owners[at].ready) {
            *out_owner = at;
            *out_kinds = waiter->owners[at].ready;
            waiter->owners[at].ready = 0; /* told */
            return true;
        }
    }
    return false;
}
