#pragma once

#include "bus/bus.h"
#include "bus/denials.h"
#include "bus/watch.h"
#include "core/backoff.h"
#include "core/thread.h"
#include "core/url_show.h"

#include <nats/nats.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>

struct kvb_fd_watch;

/* Private to bus/: the types and functions that its files share.
 *
 * The reconnect of nats.c is switched off.  nats.c measures its waits between attempts, and for
 * PONGs, on the realtime clock, which may be set back.  nats.c closes a connection at the first
 * loss, or the connection manager closes it; the manager then dials a new link.  The monotonic
 * clock limits all waits of the connection manager, the flusher and the bus's callers, but for the
 * answer to a request, which nats.c waits for.
 *
 *     manager: dial --> bus --> link (current) --> natsConnection
 *               ^              link (retired, while a call or a callback still uses it)
 *               |                |
 *               +---- closed, a failed write, or no PONG (watch.h)
 *
 * A server that announces lame duck mode still serves for a while.  Meanwhile the manager dials
 * another server once a second.  It retires the link when one of them accepts a connection.
 *
 * The manager is a job of the control thread, and a thread while it has steps to do.
 *
 * Dialing and closing may wait long for a name server, a TLS handshake or a PONG, so each runs on
 * a thread of its own.  The connection manager limits its wait for a dial, and does not wait for a
 * close.  A dial that waits for a server is interrupted after 2.6 s.
 *
 * When the login or one of its files has changed, the manager dials a second link, and then retires
 * the first: see kvb_bus_renew().
 *
 * Two locks, taken in this order:
 *   subscribing  the list of subscriptions, and the link that each is made on.  It is held while
 *                nats.c is called, so the threads of nats.c never take it.
 *   lock         everything else; nats.c is not called under it */

/* The socket of an attached link: see socket.c. */
struct kvb_link_socket {
    natsConnection *nats; /* borrowed: the link's own, from before its dial has ended */
    int fd; /* owned: a duplicate of nats.c's, so it stays this connection; -1: not attached */
    pthread_mutex_t io;         /* held while nats.c reads, writes or closes */
    struct kvb_fd_watch *watch; /* owned; used by the control thread only */
    bool is_known; /* it was looked at whether TLS arrives; used by the control thread only */
    struct kvb_link *next;  /* in bus->attached; under the bus's lock */
    _Atomic bool is_ending; /* closed, or about to be */
};

/* One connection of nats.c, reference-counted. */
struct kvb_link {
    struct kvb_bus *bus;  /* borrowed; outlives every link */
    natsConnection *nats; /* owned */
    unsigned uses;  /* by the bus, calls under way, the pending closed callback, bus->attached */
    bool is_broken; /* closed by either side, a message half written, or no PONG came */
    bool is_closed; /* the closed callback has run */
    bool is_lame;   /* its server has announced lame duck mode */
    struct kvb_grave *graves; /* owned; subscriptions to be freed after the connection */
    struct kvb_denials denials;
    struct kvb_link_socket socket;
};

/* Announced servers are kept for later dials.  One that has gone for good, such as a pod with
 * another address, costs such a dial up to a second. */
enum { kvb_max_discovered = 16 };

/* What was last passed to on_change. */
struct kvb_bus_reported {
    bool is_connected;
    uint64_t connects;
};

struct kvb_bus {
    char shown_url[256];                       /* without user and password, for logs */
    char *url;                                 /* owned */
    char *name;                                /* owned */
    struct kvb_bus_login login;                /* used by the manager only */
    char inbox_prefix[kvb_inbox_prefix_bytes]; /* of the login; it does not change */
    uint64_t login_print; /* of the login and its files at the newest connection; the manager's */
    struct kvb_bus_login *next_login; /* owned; the next dial takes it; under lock */
    uint64_t check_login_at_ns;       /* under lock */
    bool sends_at_once;
    struct kvb_log *log; /* borrowed */
    void (*on_change)(void *context, bool is_connected);
    void *context;

    struct kvb_control *own_control; /* owned; NULL: the options named one */
    struct kvb_job *job;             /* owned; its turns are kvb_bus_look() */
    struct kvb_thread manager;       /* started and joined by the job, and at last by the closer */
    pthread_mutex_t subscribing;
    struct kvb_bus_subscription *subscriptions; /* linked list; the callers own its items */

    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct kvb_link *link;         /* current; NULL while there is none */
    size_t links;                  /* current and retired */
    size_t dials;                  /* dialing threads that have not ended */
    struct kvb_dialing *dialings;  /* list of the dials that call nats.c now */
    struct kvb_link *attached;     /* list of the links whose sockets are ours; each has a use */
    bool has_met_tls;              /* at a server whose URL does not say so */
    struct kvb_bus_watch watch;    /* of the current link */
    uint64_t denied_publishes;     /* over all links */
    uint64_t denied_subscriptions; /* over all links */
    struct kvb_backoff pauses; /* of dials since a connection lasted; used by the manager only */
    uint64_t connected_ns;     /* when the newest link became current; 0: another is dialed */
    struct kvb_bus_reported reported; /* changed by the manager only */
    bool is_manager_running;
    bool is_stopping;
    bool is_silent; /* the watch gave the link up, and this is not logged yet */
    struct kvb_log_limit slow_log;
    struct kvb_log_limit error_log;
    struct kvb_detail dial_failure;  /* of the newest dial; used by the manager only */
    struct kvb_detail shown_failure; /* a copy for other threads; under lock */
    struct kvb_detail said_failure;  /* the failure last logged; "" once connected */
    struct kvb_log_backoff dial_log;
    char left_server[kvb_url_shown_bytes]; /* left because of lame duck mode; manager only */
    uint64_t left_until_ns;                /* until then, left_server is dialed last */
    uint64_t leave_at_ns;                  /* when to dial another server in lame duck mode */
    char *discovered[kvb_max_discovered];  /* owned; URLs that servers announced, newest first */
    size_t discovered_count;               /* used by the manager only, like the list */

    uint64_t flushes_wanted; /* the newest ticket drawn; under lock, like the next three */
    uint64_t flushes_done;   /* tickets up to this one are done */
    unsigned flush_waiters;
    bool is_flusher_running;
    pthread_t flusher;
    sem_t flush_requested;           /* value 0 or 1; one more to stop the thread */
    _Atomic bool is_flush_requested; /* requested but not begun */
    _Atomic bool is_flusher_stopping;
    _Atomic bool has_unwritten; /* something was published since the last kvb_bus_write() */

    _Atomic bool is_connected;
    _Atomic uint64_t connects;
    _Atomic uint64_t lame_ducks;
    _Atomic size_t max_payload; /* of the newest connection, and at most our own limit */
};

/* ---- Threads of the bus ---- */

/* A turn of the bus's job: looks whether the server answers, and starts the connection manager when
 * it has something to do. */
uint64_t kvb_bus_look(void *context, uint64_t now_ns);

/* Brings such a turn soon, unless the bus is closing.  lock is held. */
void kvb_bus_wake_manager(struct kvb_bus *bus);

/* Detaches the current link and closes it.  Returns after its subscriptions have ended, so that no
 * handler runs on two links at once.  Called by the connection manager, or after joining it. */
void kvb_bus_retire_link(struct kvb_bus *bus);

/* KVB_IO: no thread.  kvb_flusher_stop() does not wait; is_flusher_running becomes false when the
 * thread ends. */
kvb_status kvb_flusher_start(struct kvb_bus *bus);
void kvb_flusher_stop(struct kvb_bus *bus);

/* Makes the flusher write out what was published, and wait for the PONG. */
void kvb_flusher_request(struct kvb_bus *bus);

/* ---- Sockets of attached links ---- */

/* Makes the link that these options connect an attached one. */
natsStatus kvb_socket_attach(struct kvb_link *link, natsOptions *options);
bool kvb_socket_is_attached(const struct kvb_link *link);

/* Publishes over an attached link; the caller writes.  At most INT_MAX bytes. */
natsStatus
kvb_socket_publish(struct kvb_link *link, const char *subject, const char *reply, kvb_span payload);
/* Writes all that is buffered.  KVB_IO: the server has not read for 200 ms. */
kvb_status kvb_socket_write(struct kvb_link *link);

/* Closes the connection of any link.  May wait for half a second. */
void kvb_socket_close(struct kvb_link *link);

/* A part of each turn of the bus's job: reads links that were attached, writes what nats.c wants
 * to, and releases those that have ended.  Returns when it must be called again. */
uint64_t kvb_sockets_tend(struct kvb_bus *bus, uint64_t now_ns);
/* The end of the job: releases them all.  context: the bus. */
void kvb_sockets_end(void *context);

/* ---- Links ---- */

/* The monotonic time wait_ms from now. */
struct timespec kvb_bus_deadline(uint32_t wait_ms);

/* Translates a status code of nats.c.
 * KVB_AGAIN: not connected; KVB_IO: bytes may be lost, or a message half written. */
kvb_status kvb_bus_from_nats(natsStatus status);

/* The last error of nats.c on this thread, for people; never NULL. */
const char *kvb_nats_error_words(void);

/* What an operator can do about a failure that nats-server, nats.c or OpenSSL names; "" for others.
 * Static. */
const char *kvb_nats_remedy(const char *failure);

/* Checks the URL and the login without dialing.  KVB_BAD_CONFIG: detail says why. */
kvb_status kvb_bus_check_options(const struct kvb_bus_options *options, struct kvb_detail *detail);

/* Milliseconds to wait before the next dial: half of its pause, and a random part of the other. */
uint32_t kvb_bus_retry_ms(const struct kvb_bus *bus);

/* Makes a link that is connected but not yet current.  The caller owns one use of *out_link.
 * Gives up after a time limit, and at once when the bus stops; the dial then ends on its own
 * thread.  A failure leaves its reason in bus->dial_failure. */
kvb_status kvb_link_dial(struct kvb_bus *bus, struct kvb_link **out_link);

/* Interrupts the system calls of dials that wait too long, or of all dials when the bus stops.
 * Called repeatedly, because a dial that is in no system call just then does not notice.
 * lock is held. */
void kvb_dials_interrupt(struct kvb_bus *bus);

/* A link that is not connected yet, with two uses: of the caller, and of the closed callback.
 * NULL: no memory. */
struct kvb_link *kvb_link_new(struct kvb_bus *bus);
/* For one that was never connected, whatever its uses. */
void kvb_link_free(struct kvb_link *link);

/* Closes the link and releases one use.  A close that may wait runs on a thread of its own. */
void kvb_link_close(struct kvb_link *link);

/* Adds the servers that the link's server has announced to those of earlier links, for later dials.
 * When there are too many, those announced first are forgotten. */
void kvb_link_note_servers(struct kvb_link *link);

/* The current link for one call, or NULL when not connected.  Never blocks on
 * nats.c.  The caller calls kvb_link_release() afterwards. */
struct kvb_link *kvb_link_use(struct kvb_bus *bus);
void kvb_link_retain(struct kvb_link *link); /* adds one use */
void kvb_link_release(struct kvb_link *link);

/* Frees an unsubscribed subscription when that is safe.  In nats.c before 3.6.0 (its issue 637)
 * the reading thread first finds a subscription and then locks it; a free between these two steps
 * makes it read freed memory.  So the subscription is freed after that thread has read the PONG of
 * a later PING.  When no PONG comes, it is freed together with the link.  May wait for a second.
 * Not under a lock. */
void kvb_link_bury(struct kvb_link *link, natsSubscription *nats);

/* Marks the link as unusable, e.g. because a message may be half written.  The connection manager
 * then dials again. */
void kvb_link_break(struct kvb_link *link);

/* make() makes every subscription on a new link.  retire() ends them on the current link, and waits
 * for their handlers.  subscribing is held. */
kvb_status kvb_subscriptions_make(struct kvb_bus *bus, struct kvb_link *link);
void kvb_subscriptions_retire(struct kvb_bus *bus);

/* Detaches the remaining subscriptions from a bus that is being closed. */
void kvb_subscriptions_orphan(struct kvb_bus *bus);
