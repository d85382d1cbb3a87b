#include "ingest/zmq/poller.h"

#include "core/clock.h"

#include <errno.h>
#include <poll.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <time.h>
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
    unsigned pending; /* ready, independent of the sockets */
    unsigned drained; /* these kinds have no input before the next edge of their descriptors */
    unsigned ready;   /* as found by the last check */
    bool is_hot;      /* is on the ready list */
};

struct kvb_poller {
    int epoll_fd;
    struct owner *owners; /* owned */
    size_t owner_count;
    size_t *hot; /* owned; the ready list: owners to check before the next wait */
    size_t hot_count;
    size_t next; /* index in hot of the next that kvb_poller_next() returns */
};

kvb_status kvb_poller_new(size_t owners, struct kvb_poller **out_poller)
{
    struct kvb_poller *poller = calloc(1, sizeof *poller);

    if (!poller) {
        return KVB_NO_MEMORY;
    }
    poller->owners = calloc(owners, sizeof *poller->owners);
    poller->hot = calloc(owners, sizeof *poller->hot);
    poller->owner_count = owners;
    poller->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    if (!poller->owners || !poller->hot || poller->epoll_fd < 0) {
        const kvb_status status = poller->epoll_fd < 0 ? KVB_IO : KVB_NO_MEMORY;
        kvb_poller_free(poller);
        return status;
    }
    *out_poller = poller;
    return KVB_OK;
}

void kvb_poller_free(struct kvb_poller *poller)
{
    if (!poller) {
        return;
    }
    if (poller->epoll_fd >= 0) {
        (void)close(poller->epoll_fd);
    }
    free(poller->owners);
    free(poller->hot);
    free(poller);
}

static void heat(struct kvb_poller *poller, size_t at)
{
    if (!poller->owners[at].is_hot) {
        poller->owners[at].is_hot = true;
        poller->hot[poller->hot_count++] = at;
    }
}

static int fd_of(void *socket)
{
    int fd = -1;
    size_t size = sizeof fd;

    return zmq_getsockopt(socket, ZMQ_FD, &fd, &size) == 0 ? fd : -1;
}

/* What epoll stores for a descriptor. */
static uint64_t descriptor_tag(size_t owner, unsigned kind)
{
    return (uint64_t)kind << 32U | owner;
}

static kvb_status watch_descriptor(struct kvb_poller *poller, uint64_t tag, int fd, uint32_t events)
{
    struct epoll_event event = { .events = events, .data = { .u64 = tag } };

    return epoll_ctl(poller->epoll_fd, EPOLL_CTL_ADD, fd, &event) == 0 ? KVB_OK : KVB_IO;
}

kvb_status
kvb_poller_add_socket(struct kvb_poller *poller, size_t owner, unsigned kind, void *socket)
{
    struct owner *at = &poller->owners[owner];

    if (at->socket_count == sockets_an_owner) {
        return KVB_TOO_LARGE;
    }
    KVB_TRY(
        watch_descriptor(poller, descriptor_tag(owner, kind), fd_of(socket), EPOLLIN | EPOLLET));
    at->sockets[at->socket_count++] = (struct watched){ .socket = socket, .kind = kind };
    at->drained &= ~kind; /* no edge reports earlier input */
    heat(poller, owner);
    return KVB_OK;
}

void kvb_poller_drop_socket(struct kvb_poller *poller, size_t owner, void *socket)
{
    struct owner *at = &poller->owners[owner];

    for (size_t i = 0; i < at->socket_count; i++) {
        if (at->sockets[i].socket == socket) {
            /* fails when the descriptor is closed; epoll has then removed it */
            (void)epoll_ctl(poller->epoll_fd, EPOLL_CTL_DEL, fd_of(socket), NULL);
            /* The order of the sockets does not matter. */
            at->sockets[i] = at->sockets[--at->socket_count];
            return;
        }
    }
}

kvb_status kvb_poller_add_fd(struct kvb_poller *poller, size_t owner, int fd)
{
    return watch_descriptor(poller, descriptor_tag(owner, kvb_ready_live), fd, EPOLLIN);
}

void kvb_poller_set_pending(struct kvb_poller *poller, size_t owner, unsigned kinds)
{
    poller->owners[owner].pending = kinds;
    /* For none, too: the next check then takes the owner from the list. */
    heat(poller, owner);
}

void kvb_poller_set_drained(struct kvb_poller *poller, size_t owner, unsigned kinds)
{
    poller->owners[owner].drained |= kinds;
}

/* ---- Waiting ---- */

static bool has_input(void *socket)
{
    int events = 0;
    size_t size = sizeof events;

    if (zmq_getsockopt(socket, ZMQ_EVENTS, &events, &size) != 0) {
        return errno == EINTR; /* unknown: let the caller try to receive */
    }
    return events & ZMQ_POLLIN;
}

/* Two sockets of one kind are one answer: the second is checked only when the first has no input.
 */
static unsigned look(struct owner *owner)
{
    unsigned with_input = 0;

    for (size_t i = 0; i < owner->socket_count; i++) {
        const struct watched *watched = &owner->sockets[i];
        /* A socket costs two system calls: a kind is asked only while its answer is open. */
        if ((watched->kind & (owner->drained | with_input)) == 0 && has_input(watched->socket)) {
            with_input |= watched->kind;
        }
    }
    /* Asking has re-armed the edges of those without input. */
    owner->drained = ~with_input;
    return owner->pending | with_input;
}

/* Checks the owners on the ready list, and removes those without input.  Edges of their descriptors
 * report new input. */
static void look_at_hot(struct kvb_poller *poller)
{
    size_t kept = 0;

    for (size_t i = 0; i < poller->hot_count; i++) {
        const size_t at = poller->hot[i];
        struct owner *owner = &poller->owners[at];
        owner->ready = look(owner);
        owner->is_hot = owner->ready != 0;
        if (owner->is_hot) {
            poller->hot[kept++] = at;
        }
    }
    poller->hot_count = kept;
    poller->next = 0;
}

static void take_poll_event(struct kvb_poller *poller, uint64_t tag)
{
    const size_t at = tag & UINT32_MAX;
    struct owner *owner = &poller->owners[at];

    owner->drained &= ~(unsigned)(tag >> 32U);
    if (owner->is_hot) {
        return; /* on the ready list already; checked again before the next wait */
    }
    /* An owner of plain descriptors has none to ask: it is ready while epoll says so. */
    owner->ready = owner->socket_count > 0 ? look(owner) : kvb_ready_live;
    if (owner->ready) {
        heat(poller, at);
    }
}

/* Fallback when epoll_wait() fails: sleeps instead of spinning, then checks every owner. */
static kvb_status wait_blindly(struct kvb_poller *poller, int timeout_ms)
{
    (void)poll(NULL, 0, timeout_ms);
    for (size_t at = 0; at < poller->owner_count; at++) {
        poller->owners[at].drained = 0; /* no edge is reported */
        heat(poller, at);
    }
    look_at_hot(poller);
    return KVB_IO;
}

kvb_status kvb_poller_wait(struct kvb_poller *poller, int timeout_ms)
{
    struct epoll_event events[events_a_wait];

    /* Before the wait: no edge tells of input that a run has left in a socket. */
    look_at_hot(poller);
    const int count =
        epoll_wait(poller->epoll_fd, events, events_a_wait, poller->hot_count > 0 ? 0 : timeout_ms);
    if (count < 0 && errno != EINTR) {
        return wait_blindly(poller, timeout_ms);
    }
    for (int i = 0; i < count; i++) {
        take_poll_event(poller, events[i].data.u64);
    }
    return KVB_OK;
}

void kvb_poller_pause(uint64_t pause_ns)
{
    const struct timespec pause = { .tv_sec = (time_t)(pause_ns / KVB_NS_PER_S),
                                    .tv_nsec = (long)(pause_ns % KVB_NS_PER_S) };

    (void)clock_nanosleep(CLOCK_MONOTONIC, 0, &pause, NULL); /* a signal makes it shorter */
}

bool kvb_poller_is_idle(const struct kvb_poller *poller)
{
    return poller->hot_count == 0;
}

bool kvb_poller_next(struct kvb_poller *poller, size_t *out_owner, unsigned *out_kinds)
{
    while (poller->next < poller->hot_count) {
        const size_t at = poller->hot[poller->next++];
        if (poller->owners[at].ready) {
            *out_owner = at;
            *out_kinds = poller->owners[at].ready;
            poller->owners[at].ready = 0; /* returned once */
            return true;
        }
    }
    return false;
}
