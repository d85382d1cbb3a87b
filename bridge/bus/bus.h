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
 * buffered across a loss: a publish without a connection returns KVB_AGAIN, and messages written
 * just before the loss may be lost.  kvb_bus_connects() shows that there was a loss.
 *
 * When a server announces lame duck mode (nats-server --signal ldm), the bus uses it until another
 * configured or announced server accepts a connection, and then changes to that one.  The change
 * counts as a loss.  For two minutes the server that was left is dialed last.
 *
 * All handlers of the process run on one thread of nats.c, one call at a time.  It passes messages
 * on in the order in which they came over the connection, also between subscriptions.  So a handler
 * must not wait: it would delay every other subscription.
 *
 * Threads: publish, request, subscribe from any thread. */
struct kvb_bus;
struct kvb_control;

enum { kvb_login_text_bytes = 256, kvb_inbox_prefix_bytes = 65 };

/* How a connection logs in, and how it verifies the server; "" for an option that is not set.
 * Names are those of the configuration, after "nats.".  The files are read at each dial. */
struct kvb_bus_login {
    char user[kvb_login_text_bytes];
    char password_file[kvb_login_text_bytes];
    char token_file[kvb_login_text_bytes];
    char credentials[kvb_login_text_bytes]; /* .creds: a JWT and the seed of an NKey */
    char nkey_seed_file[kvb_login_text_bytes];
    char ca_file[kvb_login_text_bytes];        /* PEM */
    char server_name[kvb_login_text_bytes];    /* in the server's certificate; "": url's host */
    char cert_file[kvb_login_text_bytes];      /* PEM; our certificate */
    char key_file[kvb_login_text_bytes];       /* PEM; our private key */
    char inbox_prefix[kvb_inbox_prefix_bytes]; /* of reply subjects; "": _INBOX */
};

/* By default OpenSSL frees its tables in exit(), while a thread of nats.c or libcurl may still be
 * ending a connection: that thread then locks a mutex that is gone, and the process crashes at its
 * end.  After this call OpenSSL frees nothing at exit; the end of the process does.
 *
 * Call it first in main(), because the first use of OpenSSL decides.  Threads: no others yet. */
void kvb_openssl_keep_at_exit(void);

/* Checks that the options fit together, that each file can be read and has the right content, and
 * that files with secrets are private (core/secret_file.h).  Starts no thread.
 * KVB_BAD_CONFIG  *out_key is the name of one of them, detail says why
 * KVB_NO_MEMORY */
kvb_status kvb_bus_login_check(
    const struct kvb_bus_login *login, const char *url, const char **out_key,
    struct kvb_detail *detail);

/* The prefix of reply subjects: inbox_prefix, or _INBOX when that is "". */
const char *kvb_bus_login_inbox(const struct kvb_bus_login *login);

struct kvb_bus_options {
    struct kvb_control *control;       /* borrowed; NULL: the bus starts one of its own */
    const char *url;                   /* "nats://127.0.0.1:4222", or several with commas */
    const char *name;                  /* shown by the server, e.g. "kvbridge" */
    const struct kvb_bus_login *login; /* copied; NULL for none */
    bool sends_at_once;                /* write out each publish at once, for responders; else
                                          it is buffered until kvb_bus_write() */
    struct kvb_log *log;               /* borrowed; may be NULL */
    /* Called on a thread of the bus, one call at a time.  A short loss is reported as false, then
     * true.  May be NULL. */
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

/* True while there is a working connection.  Does not block, and does not call nats.c. */
bool kvb_bus_is_connected(const struct kvb_bus *bus);

/* The number of connections made so far.  A change means that messages may be lost. */
uint64_t kvb_bus_connects(const struct kvb_bus *bus);

/* Uses this login from now on; NULL keeps the login and only checks its files.  When the login or
 * one of its files has changed since the connection was made, the bus makes a second connection at
 * once, and leaves the first for it: kvb_bus_connects() rises, and messages may be lost.  When the
 * server rejects the login, or a file cannot be used, this is logged, the first connection stays,
 * and the bus tries again every 10 s.  The bus also checks the files every 10 s without this call.
 * The inbox_prefix does not change.
 * KVB_BAD_CONFIG  the login cannot be used, and nothing is changed; detail says why
 * KVB_NO_MEMORY */
kvb_status
kvb_bus_renew(struct kvb_bus *bus, const struct kvb_bus_login *login, struct kvb_detail *detail);

/* Why the newest attempt to connect failed; "" when it succeeded. */
void kvb_bus_dial_failure(struct kvb_bus *bus, struct kvb_detail *out);

/* Writes the sentence for /readyz: that the bus is not connected, to which URL, and why. */
void kvb_bus_explain_absence(struct kvb_bus *bus, struct kvb_detail *out);

/* The number of times that a server announced lame duck mode, which means that it will stop. */
uint64_t kvb_bus_lame_ducks(const struct kvb_bus *bus);

/* The largest payload of a message: the max_payload of the newest connection's server, and at
 * most kvb_max_nats_payload_bytes, which is the value before the first connection. */
size_t kvb_bus_max_payload(const struct kvb_bus *bus);

/* True when the server of this connection has denied a permission for which is_vital returns true.
 * *out_why then names that permission.  See denials.h. */
bool kvb_bus_is_denied(
    struct kvb_bus *bus, kvb_denial_is_vital is_vital, const void *context,
    struct kvb_detail *out_why);

/* The numbers of publishes and subscriptions that servers denied; for metrics. */
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

/* Publishes with a reply subject.  Responders publish their answers on it. */
kvb_status kvb_bus_publish_request(
    struct kvb_bus *bus, const char *subject, const char *reply, kvb_span payload);

/* Writes out what publish has buffered, and waits for the server's PONG, at most
 * timeout_ms.  KVB_AGAIN not connected, KVB_IO. */
kvb_status kvb_bus_flush(struct kvb_bus *bus, uint32_t timeout_ms);

/* Writes out what publish has buffered.  Call it after publishing and before waiting for something
 * else; otherwise the bytes stay in the buffer for up to half a second.  Does nothing when nothing
 * was published since the last call.  While the server does not read, it waits for at most 200 ms;
 * the connection is then given up.  With TLS a thread of the bus writes, and the caller does not
 * wait. */
void kvb_bus_write(struct kvb_bus *bus);

struct kvb_bus_subscription;

struct kvb_bus_message {
    const char *subject; /* all borrowed for the call */
    const char *reply;   /* NULL when the sender expects no answer */
    kvb_span payload;
    struct kvb_bus_subscription *subscription; /* NULL for the answer to a request */
    void **native; /* the bus's own; NULL: kvb_bus_message_keep() copies */
};

/* A message that outlives its handler. */
struct kvb_bus_kept {
    void *native; /* one of these two is owned: kvb_bus_kept_drop() */
    void *copy;
    kvb_span payload; /* into it */
};

/* Inside a handler, once for each message: moves the payload out of the bus without a copy.  A
 * message that the bus did not deliver, a test's or an answer to a request, is copied.
 * KVB_NO_MEMORY, only for those. */
kvb_status
kvb_bus_message_keep(const struct kvb_bus_message *message, struct kvb_bus_kept *out_kept);

/* Frees a kept message.  Any thread, also after kvb_bus_close().  nats.c frees messages on a thread
 * of its own and wakes it for the first one: free many at a time. */
void kvb_bus_kept_drop(struct kvb_bus_kept *kept);

typedef void (*kvb_bus_handler)(void *context, const struct kvb_bus_message *message);

/* Wildcards allowed.  The subscription is made again after each reconnect, and its queue
 * holds at most 1,048,576 messages and 256 MiB.  While there is no connection, it is made
 * as soon as there is one.  Not from a handler.  The caller owns *out_subscription.  KVB_BAD_INPUT,
 * KVB_IO, KVB_NO_MEMORY */
kvb_status kvb_bus_subscribe(
    struct kvb_bus *bus, const char *subject, kvb_bus_handler handler, void *context,
    struct kvb_bus_subscription **out_subscription);

/* The same as a member of a queue group: the server delivers each message to one member only.
 * group: a valid subject without wildcards; NULL or "": none. */
kvb_status kvb_bus_subscribe_queue(
    struct kvb_bus *bus, const char *subject, const char *group, kvb_bus_handler handler,
    void *context, struct kvb_bus_subscription **out_subscription);

/* Ends the subscription on the server without losing a message: the server sends no more, and the
 * handler gets those that were already sent.  The subscription is not made again after a reconnect.
 * The caller still has to unsubscribe it.  Not from a handler.
 * KVB_OK     the handler has returned from the last message
 * KVB_AGAIN  not connected, or not until the end: the server has no such subscription any more, and
 *            messages that it had sent may be lost
 * KVB_IO     not done within timeout_ms */
kvb_status kvb_bus_drain(struct kvb_bus_subscription *subscription, uint32_t timeout_ms);

/* No handler runs after it returns, which may take a second.  Not from a handler.
 * NULL is fine. */
void kvb_bus_unsubscribe(struct kvb_bus_subscription *subscription);

/* Messages that nats.c dropped because the handler was too slow.  Those between the last call and
 * the end of a connection are not counted. */
uint64_t kvb_bus_dropped(struct kvb_bus_subscription *subscription);

/* The number of received messages of its subscription that wait behind this one; for use inside a
 * handler. */
uint64_t kvb_bus_waiting(const struct kvb_bus_message *message);

/* Sends a request and passes the first answer to handler; what JetStream acknowledges is no answer.
 * On failure detail says why.
 * KVB_AGAIN      not connected       KVB_NOT_FOUND  no responder on that subject
 * KVB_IO         no answer in time */
kvb_status kvb_bus_request(
    struct kvb_bus *bus, const char *subject, kvb_span payload, uint32_t timeout_ms,
    kvb_bus_handler handler, void *context, struct kvb_detail *detail);
