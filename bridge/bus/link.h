#pragma once

#include "bus/bus.h"
#include "bus/certificate.h"
#include "bus/denials.h"
#include "bus/watch.h"
#include "core/url_show.h"

#include <nats/nats.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>

/* Inside the room: what bus.c, dial.c and subscription.c share.
 *
 * A connection of nats.c is never reconnected: nats.c would wait for its next attempt, and for
 * the PONGs that reveal a frozen server, on the realtime clock, which may be set back.  nats.c
 * closes it at the first loss, or the connection manager closes it; the manager then dials a new
 * link.  All waits of the connection manager, the flusher and the bus's callers are limited by
 * the monotonic clock.
 *
 *     manager: dial --> bus --> link (current) --> natsConnection
 *               ^              link (retired, while a call or a callback still uses it)
 *               |                |
 *               +---- closed, a failed write, or no PONG (watch.h)
 *
 * A server that announces lame duck mode still serves for a while.  The manager dials another one
 * meanwhile, each second until one answers, and only then retires the link.
 *
 * Dialing and closing may wait long for a name server, a TLS handshake or a PONG, so each runs on
 * a thread of its own, and the connection manager waits for it with a limit.  A dial that waits for
 * a server is interrupted after 2 s.
 *
 * Renewing.  When the login or one of its files has changed, the manager dials a second link, and
 * moves to it without a loss:
 *
 *     1. subscriptions are made on the new link, too; its server confirms them by a PONG, and
 *        denies none unless it denied some on the old link, too
 *     2. publishers wait while the old link's server confirms what it was sent; from then on the
 *        new link is the current one
 *     3. the old link's subscriptions are drained; then the new one's messages are handled, but
 *        for those that came over both
 *
 * What fails before 2 leaves the old link as it was.  A failure later counts as a loss.
 *
 * Three locks; subscribing is taken before sending, and sending before lock:
 *   subscribing  list of subscriptions, and which link they are made on; held
 *                while nats.c is called, so nats.c's threads never take it
 *   sending      shared by who publishes; exclusive while another link becomes the current one
 *   lock         everything else; no call is made under it */

/* One connection of nats.c, reference-counted. */
struct kvb_link {
    struct kvb_bus *bus;      /* borrowed; outlives every link */
    natsConnection *nats;     /* owned */
    unsigned uses;            /* the bus, calls under way, the closed callback to come */
    bool is_broken;           /* closed, its bytes are torn, or no PONG came */
    bool is_closed;           /* the closed callback has run */
    bool is_lame;             /* its server has announced lame duck mode */
    struct kvb_grave *graves; /* owned; subscriptions to be freed after the connection */
    struct kvb_denials denials;
};

struct kvb_bus {
    char shown_url[256]; /* without user and password, for logs */
    char *url;           /* owned, like the next */
    char *name;
    struct kvb_bus_login login; /* the manager's own, like the next two */
    uint64_t login_print;       /* of the login and its files at the newest connection */
    struct kvb_certificate_notice certificate_said;
    struct kvb_bus_login *next_login; /* owned; to be used from the next dial on; lock */
    uint64_t check_login_at_ns;       /* lock */
    bool sends_at_once;
    struct kvb_log *log; /* borrowed */
    void (*on_change)(void *context, bool is_connected);
    void *context;

    pthread_t manager;
    pthread_mutex_t subscribing;
    struct kvb_bus_subscription *subscriptions; /* list; owned by the callers */

    pthread_rwlock_t sending;

    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct kvb_link *link;        /* current; NULL while there is none */
    size_t links;                 /* current and retired */
    size_t dials;                 /* threads under way */
    struct kvb_dialing *dialings; /* those of them that are in nats.c */
    struct kvb_bus_watch watch;   /* of the current link */
    uint64_t denied_publishes;    /* over all links, like the next */
    uint64_t denied_subscriptions;
    unsigned failed_dials; /* since the last connection; the manager's own */
    bool is_stopping;
    bool is_silent; /* the watch closed the link; not logged yet */
    struct kvb_log_limit slow_log;
    struct kvb_log_limit error_log;
    struct kvb_detail dial_failure;  /* of the newest dial; the manager's own, like the two below */
    struct kvb_detail shown_failure; /* the same for others; lock */
    struct kvb_detail said_failure;  /* the failure last logged; "" once connected */
    struct kvb_log_backoff dial_log;
    char left_server[kvb_url_shown_bytes]; /* left for its lame duck mode; the manager's own, too */
    uint64_t left_until_ns;                /* until then it is dialed last */
    uint64_t leave_at_ns;                  /* the next dial while the current server is lame */
    char *discovered; /* owned; servers that a server announced, with commas; the manager's own */

    uint64_t flushes_wanted; /* tickets, like the next; lock */
    uint64_t flushes_done;
    unsigned flush_waiters;
    bool is_flusher_running;
    pthread_t flusher;
    sem_t flush_requested;           /* its number is 0 or 1, and one more at the end */
    _Atomic bool is_flush_requested; /* and not begun */
    _Atomic bool is_flusher_stopping;
    _Atomic bool is_renewing_over; /* no renewal begins, and one under way waits for nobody */
    _Atomic bool has_unwritten;    /* something was published since the last flush request */

    _Atomic bool is_connected;
    _Atomic uint64_t connects;
    _Atomic uint64_t lame_ducks;
    _Atomic uint64_t renewals;
    _Atomic uint64_t certificate_end_s; /* since 1970; 0: no certificate */
    _Atomic size_t max_payload;         /* of the newest connection, and at most our own limit */
};

/* ---- Threads of the bus ---- */

/* The main function of the connection manager; its argument is the bus. */
void *kvb_bus_keep(void *argument);

/* Detaches the current link and has it closed.  Its subscriptions end before new ones begin, so
 * that no handler runs twice at once.  Called by the connection manager, or after joining it. */
void kvb_bus_retire_link(struct kvb_bus *bus);

/* KVB_IO.  kvb_flusher_stop() does not wait; is_flusher_running shows when the thread ended. */
kvb_status kvb_flusher_start(struct kvb_bus *bus);
void kvb_flusher_stop(struct kvb_bus *bus);

/* Makes it write out what was published, and wait for the PONG. */
void kvb_flusher_request(struct kvb_bus *bus);

/* ---- Links ---- */

/* The monotonic time in wait_ms. */
struct timespec kvb_bus_deadline(uint32_t wait_ms);

/* The one place that knows nats.c's codes.
 * KVB_AGAIN: no connection just now; KVB_IO: bytes may be lost or torn. */
kvb_status kvb_bus_from_nats(natsStatus status);

/* The last error of nats.c on this thread, for people; never NULL. */
const char *kvb_nats_error_words(void);

/* Checks that the options can be dialed at all.  KVB_BAD_CONFIG. */
kvb_status kvb_bus_check_options(const struct kvb_bus_options *options, struct kvb_detail *detail);

/* Milliseconds to wait before attempt number `attempt` (from 1): half fixed,
 * half random, at most 1,000. */
uint32_t kvb_bus_retry_ms(const struct kvb_bus *bus, unsigned attempt);

/* Makes a link that is connected but not yet current.  The caller owns one use of *out_link.
 * Gives up after a time limit, and at once when the bus stops; the dial then ends on its own
 * thread.  A failure leaves its reason in bus->dial_failure. */
kvb_status kvb_link_dial(struct kvb_bus *bus, struct kvb_link **out_link);

/* Ends the waits of dials that have lasted too long, or of all when the bus stops.  Repeated each
 * kvb_bus_look_ms: a dial that waits nowhere just then goes on.  lock is held. */
void kvb_dials_interrupt(struct kvb_bus *bus);

/* Closes it, on another thread where that may wait, and releases one use. */
void kvb_link_close(struct kvb_link *link);

/* Remembers the servers that its server has announced, for later dials. */
void kvb_link_note_servers(struct kvb_link *link);

/* The current link for one call, or NULL when not connected.  Never blocks on
 * nats.c.  Ended with kvb_link_release(). */
struct kvb_link *kvb_link_use(struct kvb_bus *bus);
void kvb_link_retain(struct kvb_link *link); /* one use more */
bool kvb_link_is_current(struct kvb_link *link);
void kvb_link_release(struct kvb_link *link);

/* Frees a subscription that was unsubscribed, once that is safe.  In nats.c before 3.6.0 (its
 * issue 637) the reading thread finds a subscription and locks it in two steps; freed in
 * between, the thread reads freed memory.  So it is freed after that thread has read the PONG
 * of a later PING; when none comes, together with the link.  May wait for a second.  Not under
 * a lock. */
void kvb_link_bury(struct kvb_link *link, natsSubscription *nats);

/* A message may be half written: no further calls on it; the connection manager dials again. */
void kvb_link_break(struct kvb_link *link);

/* Makes every subscription on a new link; ends them on the old one, waiting for
 * their handlers.  subscribing is held. */
kvb_status kvb_subscriptions_make(struct kvb_bus *bus, struct kvb_link *link);
void kvb_subscriptions_retire(struct kvb_bus *bus);

/* The steps of renewing; subscribing is held.  After a failure of join(), or instead of move(),
 * comes abandon(), which leaves everything on the old link.  move() ends the subscriptions on the
 * old link when the server has sent their last message; false: not in time, and some are lost.
 * release(), after a PONG on the new link, has its messages handled. */
kvb_status kvb_subscriptions_join(struct kvb_bus *bus, struct kvb_link *link);
void kvb_subscriptions_abandon(struct kvb_bus *bus);
bool kvb_subscriptions_move(struct kvb_bus *bus, uint32_t timeout_ms);
void kvb_subscriptions_release(struct kvb_bus *bus);

/* Detaches the remaining subscriptions from a bus that is closed. */
void kvb_subscriptions_orphan(struct kvb_bus *bus);
