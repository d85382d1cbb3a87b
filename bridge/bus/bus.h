#pragma once

#include "bus/denials.h"
#include "core/log.h"
#include "core/span.h"
#include "core/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The connection to NATS, dialed again after each loss.
 *
 * Opening never waits for a server: when none answers, the bus keeps dialing
 * (with jitter, at most 1 s apart) and kvb_bus_is_connected() returns false.  A server that does
 * not answer a PING for 2 s is given up.  All times are of the monotonic clock.  Nothing is
 * buffered across a loss: a publish while not connected returns KVB_AGAIN, and what was written
 * just before the loss may be lost.  kvb_bus_connects() shows that there was a loss.
 *
 * A server that announces lame duck mode (nats-server --signal ldm) is left as soon as another one
 * of the list, or one that it has announced itself, accepts a connection; until then it is used.
 * The change counts as a loss, and for two minutes the server that was left is dialed last.
 *
 * Threads: publish, request, subscribe from any thread; handlers run on threads
 * of nats.c and must not wait for the bus. */
struct kvb_bus;

enum { kvb_login_text_bytes = 256, kvb_inbox_prefix_bytes = 65, kvb_max_login_files = 7 };

/* How a connection proves who it is, and what it believes of the server; "" for none.  Names are
 * those of the configuration, after "nats.".  The files are read at each dial. */
struct kvb_bus_login {
    char user[kvb_login_text_bytes];
    char password_file[kvb_login_text_bytes];
    char token_file[kvb_login_text_bytes];
    char credentials[kvb_login_text_bytes]; /* .creds: a JWT and the seed of an NKey */
    char nkey_seed_file[kvb_login_text_bytes];
    char ca_file[kvb_login_text_bytes];     /* PEM; with none, TLS only with a tls:// url */
    char server_name[kvb_login_text_bytes]; /* in the server's certificate; else the url's host */
    char cert_file[kvb_login_text_bytes];   /* PEM, ours, like the next */
    char key_file[kvb_login_text_bytes];
    char inbox_prefix[kvb_inbox_prefix_bytes]; /* of subjects for answers; else _INBOX */
};

/* Whether the options fit together, and each file can be read, by nobody else where it holds a
 * secret, and contains what its key says.  Starts no thread, unlike what follows.
 * KVB_BAD_CONFIG  *out_key is the name of one of them, detail says why
 * KVB_NO_MEMORY */
kvb_status kvb_bus_login_check(
    const struct kvb_bus_login *login, const char *url, const char **out_key,
    struct kvb_detail *detail);

/* What subjects for answers begin with: its inbox_prefix, or _INBOX. */
const char *kvb_bus_login_inbox(const struct kvb_bus_login *login);

/* Writes the paths of its files, borrowed from the login, and returns their number. */
size_t kvb_bus_login_files(const struct kvb_bus_login *login, const char *out[kvb_max_login_files]);

struct kvb_bus_options {
    const char *url;                   /* "nats://127.0.0.1:4222", or several with commas */
    const char *name;                  /* shown by the server, e.g. "kvbridge" */
    const struct kvb_bus_login *login; /* copied; NULL for none */
    bool sends_at_once;                /* one write for each publish, for responders: nats.c's own
                                          buffer waits up to 1 ms for more */
    struct kvb_log *log;               /* borrowed; may be NULL */
    /* Called on a thread of the bus, one call at a time; with false, then true, for a short
     * loss.  May be NULL. */
    void (*on_change)(void *context, bool is_connected);
    void *context;
};

/* KVB_BAD_CONFIG  the url or a file is wrong; detail says which
 * KVB_IO, KVB_NO_MEMORY */
kvb_status kvb_bus_open(
    const struct kvb_bus_options *options, struct kvb_bus **out_bus, struct kvb_detail *detail);

/* Flushes for at most 500 ms, then closes.  No handler runs after it returns; the caller
 * still has to unsubscribe the subscriptions that are left.  NULL is fine. */
void kvb_bus_close(struct kvb_bus *bus);

/* The state that nats.c last reported; does not call nats.c and does not block. */
bool kvb_bus_is_connected(const struct kvb_bus *bus);

/* How often a connection was made; a change means that messages may be lost. */
uint64_t kvb_bus_connects(const struct kvb_bus *bus);

/* Uses this login from now on (NULL: the one it has), and when the login or one of its files has
 * changed since the connection was made, makes a second connection with it at once, and moves to
 * that without losing a message: kvb_bus_connects() does not change.  When the server does not
 * accept it, or a file cannot be used, the log says so, the first connection stays, and it is tried
 * again every 10 s.  Files are also compared every 10 s without this call.  The inbox_prefix stays
 * what it was.
 * KVB_BAD_CONFIG  the login cannot be used, and nothing is changed; detail says why
 * KVB_NO_MEMORY */
kvb_status
kvb_bus_renew(struct kvb_bus *bus, const struct kvb_bus_login *login, struct kvb_detail *detail);

/* Ends a renewal under way without waiting for a server, and begins no other.  For the end of a
 * program, before it ends its subscriptions: these wait for a renewal.  kvb_bus_close() does the
 * same.  NULL is fine. */
void kvb_bus_end_renewal(struct kvb_bus *bus);

/* Why the newest attempt to connect failed; "" when it did not. */
void kvb_bus_dial_failure(struct kvb_bus *bus, struct kvb_detail *out);

/* The same as a sentence of /readyz, with the URL; for while it is not connected. */
void kvb_bus_explain_absence(struct kvb_bus *bus, struct kvb_detail *out);

/* How often a connection was replaced without a loss. */
uint64_t kvb_bus_renewals(const struct kvb_bus *bus);

/* When our certificate ends, in seconds since 1970; 0 for none. */
uint64_t kvb_bus_certificate_end(const struct kvb_bus *bus);

/* How often the server of a connection announced lame duck mode: it will stop. */
uint64_t kvb_bus_lame_ducks(const struct kvb_bus *bus);

/* The largest payload of a message: the max_payload of the newest connection's server, and at
 * most kvb_max_nats_payload_bytes, which is the value before the first connection. */
size_t kvb_bus_max_payload(const struct kvb_bus *bus);

/* True when the server of this connection has denied a permission that is_vital returns true for;
 * *out_why then names it.  See denials.h. */
bool kvb_bus_is_denied(
    struct kvb_bus *bus, kvb_denial_is_vital is_vital, const void *context,
    struct kvb_detail *out_why);

/* How often servers denied a publish or a subscription; for metrics. */
void kvb_bus_denials(struct kvb_bus *bus, uint64_t *out_publishes, uint64_t *out_subscriptions);

/* KVB_OK does not mean that the message has arrived.
 * KVB_AGAIN      not connected: nothing was done
 * KVB_BAD_INPUT  invalid subject (space, line end, empty token)
 * KVB_TOO_LARGE  above the server's max_payload
 * KVB_IO */
kvb_status kvb_bus_publish(struct kvb_bus *bus, const char *subject, kvb_span payload);

/* The same for several messages to one subject, in order.  Stops at the first that fails;
 * *out_sent is the number of messages before it. */
kvb_status kvb_bus_publish_many(
    struct kvb_bus *bus, const char *subject, const kvb_span *payloads, size_t count,
    size_t *out_sent);

/* Publishes with a reply subject, to which answers go. */
kvb_status kvb_bus_publish_request(
    struct kvb_bus *bus, const char *subject, const char *reply, kvb_span payload);

/* Writes out what publish has buffered.  Waits for the server's PONG, at most
 * timeout_ms.  KVB_AGAIN not connected, KVB_IO. */
kvb_status kvb_bus_flush(struct kvb_bus *bus, uint32_t timeout_ms);

/* Has a thread of the bus write out what publish has buffered; the caller does not wait.  Call
 * it after publishing and before waiting for something else; otherwise the bytes stay in the
 * buffer for up to a millisecond.  Costs nothing while nothing was published. */
void kvb_bus_flush_soon(struct kvb_bus *bus);

struct kvb_bus_subscription;

struct kvb_bus_message {
    const char *subject; /* all borrowed for the call */
    const char *reply;   /* NULL when the sender expects no answer */
    kvb_span payload;
    struct kvb_bus_subscription *subscription; /* NULL for the answer to a request */
};

typedef void (*kvb_bus_handler)(void *context, const struct kvb_bus_message *message);

/* Wildcards allowed.  The subscription is made again after each reconnect, and its queue
 * holds at most 1,048,576 messages and 256 MiB.  While there is no connection, it is made
 * as soon as there is one.
 * Not from a handler.  The caller owns *out_subscription.  KVB_BAD_INPUT, KVB_IO,
 * KVB_NO_MEMORY */
kvb_status kvb_bus_subscribe(
    struct kvb_bus *bus, const char *subject, kvb_bus_handler handler, void *context,
    struct kvb_bus_subscription **out_subscription);

/* The same as one of a queue group: of all subscriptions to the subject that name the group, the
 * server picks one for each message.  group: as a subject without wildcards; NULL or "": none. */
kvb_status kvb_bus_subscribe_queue(
    struct kvb_bus *bus, const char *subject, const char *group, kvb_bus_handler handler,
    void *context, struct kvb_bus_subscription **out_subscription);

/* Ends the interest in the subject without losing a message: the server sends no more of them,
 * and the handler is given those that were sent.  The subscription is not made again after a
 * reconnect; the caller still unsubscribes it.  Not from a handler.
 * KVB_OK     the handler had the last one
 * KVB_AGAIN  not connected: the server has ended it
 * KVB_IO     not within timeout_ms */
kvb_status kvb_bus_drain(struct kvb_bus_subscription *subscription, uint32_t timeout_ms);

/* No handler runs after it returns, which may take a second.  Not from a handler.
 * NULL is fine. */
void kvb_bus_unsubscribe(struct kvb_bus_subscription *subscription);

/* Messages that nats.c dropped because the handler was too slow. */
uint64_t kvb_bus_dropped(struct kvb_bus_subscription *subscription);

/* The number of received messages that wait behind this one; for use inside a handler. */
uint64_t kvb_bus_waiting(const struct kvb_bus_message *message);

/* Sends a request and passes the first answer to handler.  On failure detail says why.
 * KVB_AGAIN      not connected       KVB_NOT_FOUND  no responder on that subject
 * KVB_IO         no answer in time */
kvb_status kvb_bus_request(
    struct kvb_bus *bus, const char *subject, kvb_span payload, uint32_t timeout_ms,
    kvb_bus_handler handler, void *context, struct kvb_detail *detail);
