#pragma once

#include "bus/bus.h"

#include <nats/nats.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>

/* Inside the room: what bus.c, dial.c, subscription.c and request.c share.
 *
 * nats.c keeps a connection over ordinary losses by itself.  But it closes one
 * for good when the server refuses the credentials twice or sends an error that
 * it does not know, and a write that ran into its deadline leaves half a message
 * on the wire, at which the server hangs up in just that way.  Then the bus
 * dials a new link:
 *
 *     bus --> link (current) --> natsConnection
 *             link (retired, while a call or a callback still uses it)
 *
 * Two locks; where both are held, subscribing was taken first:
 *   subscribing  list of subscriptions, and which link they are made on; held
 *                while nats.c is called, so nats.c's threads never take it
 *   lock         everything else; no call is made under it */

/* One connection of nats.c, counted. */
struct kvb_link {
    struct kvb_bus *bus;  /* borrowed; outlives every link */
    natsConnection *nats; /* owned */
    unsigned uses;        /* the bus, calls under way, the closed callback to come */
    bool is_up;
    bool saw_loss;
    bool is_broken;           /* closed for good, or its bytes are torn */
    struct kvb_grave *graves; /* owned; subscriptions that may not be freed before it */
};

struct kvb_bus {
    char shown_url[256]; /* without user and password, for logs */
    char *url;           /* owned, like the three below */
    char *name;
    char *credentials; /* NULL for none */
    char *ca_file;     /* NULL for none */
    bool sends_at_once;
    struct kvb_log *log; /* borrowed */
    void (*on_change)(void *context, bool is_connected);
    void *context;

    pthread_t keeper;
    pthread_mutex_t subscribing;
    struct kvb_bus_subscription *subscriptions; /* list; owned by the callers */

    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct kvb_link *link; /* current; NULL while there is none */
    size_t links;          /* current and retired */
    unsigned failed_dials; /* since it was up, the one before counted; the keeper's own */
    bool is_stopping;
    struct kvb_log_limit slow_log;
    struct kvb_log_limit error_log;
    struct kvb_detail dial_failure; /* of the newest dial; the keeper's own, like the two below */
    struct kvb_detail said_failure; /* what the log has said; "" since it was up */
    struct kvb_log_backoff dial_log;

    pthread_t flusher;
    sem_t flush_asked;           /* its number is 0 or 1, and one more at the end */
    _Atomic bool is_flush_asked; /* and not begun */
    _Atomic bool is_flusher_stopping;
    _Atomic bool has_unwritten; /* published since it was asked */

    _Atomic bool is_connected;
    _Atomic uint64_t connects;
};

/* The one place that knows nats.c's codes.
 * KVB_AGAIN: no connection just now; KVB_IO: bytes may be lost or torn. */
kvb_status kvb_bus_from_nats(natsStatus status);

/* Checks that the options can be dialed at all.  KVB_BAD_CONFIG. */
kvb_status kvb_bus_check_options(const struct kvb_bus_options *options, struct kvb_detail *detail);

/* Milliseconds to wait before attempt number `attempt` (from 1): half fixed,
 * half random, at most 1,000. */
uint32_t kvb_bus_retry_ms(const struct kvb_bus *bus, unsigned attempt);

/* Makes a link that is connected.  Not yet current.  The caller owns one use of *out_link.
 * A failure leaves its reason in bus->dial_failure. */
kvb_status kvb_link_dial(struct kvb_bus *bus, struct kvb_link **out_link);

/* The current link for one call, or NULL when not connected.  Never blocks on
 * nats.c.  Ended with kvb_link_release(). */
struct kvb_link *kvb_link_use(struct kvb_bus *bus);
void kvb_link_retain(struct kvb_link *link); /* one use more */
void kvb_link_release(struct kvb_link *link);

/* Frees a subscription that was unsubscribed.  nats.c 3.4.1 (until 3.6.0, its issue
 * 637) lets go of a subscription between finding and locking it when a message
 * comes: freed then, its reading thread reads freed memory.  So it is freed once
 * that thread has read a PONG that was asked for later; where none comes, together
 * with the link.  May wait for a second. */
void kvb_link_bury(struct kvb_link *link, natsSubscription *nats);

/* Its bytes are torn: no more calls; the keeper dials anew. */
void kvb_link_break(struct kvb_link *link);

/* Makes every subscription on a new link; ends them on the old one, waiting for
 * their handlers.  subscribing is held. */
kvb_status kvb_subscriptions_make(struct kvb_bus *bus, struct kvb_link *link);
void kvb_subscriptions_retire(struct kvb_bus *bus);

/* The bus goes: what is left of its subscriptions no longer knows it. */
void kvb_subscriptions_orphan(struct kvb_bus *bus);
