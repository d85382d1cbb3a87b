#pragma once

#include "core/detail.h"
#include "core/log.h"
#include "core/span.h"
#include "core/status.h"

#include <stdbool.h>
#include <stdint.h>

/* Our way to NATS: one connection that is kept for ever.
 *
 * Opening never waits for a server: when none answers, the bus goes on trying
 * (jittered, at most 1 s apart) and is_connected() says no.  Nothing is buffered
 * across a loss: a publish while away returns KVB_AGAIN, and what was written
 * just before the loss may be gone.  Whoever needs more counts `connects`.
 *
 * Threads: publish, request, subscribe from any thread; handlers run on threads
 * of nats.c and must not wait for the bus. */
struct kvb_bus;

struct kvb_bus_options {
    const char *url;         /* "nats://127.0.0.1:4222", or several with commas */
    const char *name;        /* shown by the server, e.g. "kvbridge" */
    const char *credentials; /* path of a .creds file; NULL or "" for none */
    const char *ca_file;     /* PEM; NULL or "" for no TLS of our own */
    bool sends_at_once;      /* a write a publish, for those who answer: nats.c's own
                                buffer waits up to 1 ms for more */
    struct kvb_log *log;     /* borrowed; may be NULL */
    /* On a thread of the bus, one call at a time; false, true for a loss that was
     * over at once.  May be NULL. */
    void (*on_change)(void *context, bool is_connected);
    void *context;
};

/* KVB_BAD_CONFIG  the url or a file is wrong; detail says which
 * KVB_IO, KVB_NO_MEMORY */
kvb_status kvb_bus_open(
    const struct kvb_bus_options *options, struct kvb_bus **out_bus, struct kvb_detail *detail);

/* Flushes for at most 500 ms, then closes.  No handler runs after it returns;
 * subscriptions that are left are still to be ended.  NULL is fine. */
void kvb_bus_close(struct kvb_bus *bus);

/* From callbacks of nats.c, never asks it: does not block. */
bool kvb_bus_is_connected(const struct kvb_bus *bus);

/* How often a connection was made; a change means that something may be lost. */
uint64_t kvb_bus_connects(const struct kvb_bus *bus);

/* KVB_OK only says that the bytes are on their way.
 * KVB_AGAIN      not connected: nothing was done
 * KVB_BAD_INPUT  a subject that is no subject (space, line end, empty token)
 * KVB_TOO_LARGE  above the server's max_payload
 * KVB_IO */
kvb_status kvb_bus_publish(struct kvb_bus *bus, const char *subject, kvb_span payload);

/* The same for several messages to one subject, in order.  Stops at the first that is not
 * taken; *out_sent is how many were, on failure too. */
kvb_status kvb_bus_publish_many(
    struct kvb_bus *bus, const char *subject, const kvb_span *payloads, size_t count,
    size_t *out_sent);

/* The same, with the subject to which answers go. */
kvb_status kvb_bus_publish_request(
    struct kvb_bus *bus, const char *subject, const char *reply, kvb_span payload);

/* Writes out what publish has buffered.  Waits for the server's PONG, at most
 * timeout_ms.  KVB_AGAIN not connected, KVB_IO. */
kvb_status kvb_bus_flush(struct kvb_bus *bus, uint32_t timeout_ms);

/* Has what publish has buffered written out at once, by a thread of the bus: the caller waits
 * for nothing.  Whoever publishes and then waits for something else calls this before; else
 * it lies there for a millisecond.  Costs nothing while nothing was published. */
void kvb_bus_flush_soon(struct kvb_bus *bus);

struct kvb_bus_message {
    const char *subject; /* all borrowed for the call */
    const char *reply;   /* NULL when nobody waits for an answer */
    kvb_span payload;
};

typedef void (*kvb_bus_handler)(void *context, const struct kvb_bus_message *message);

struct kvb_bus_subscription;

/* Wildcards allowed.  The subscription is made again after each reconnect, and
 * holds back at most 1,048,576 messages and 256 MiB.  While nobody is connected it
 * is made when the connection is; the call may then wait for a second.
 * Not from a handler.  The caller owns *out_subscription.  KVB_BAD_INPUT, KVB_IO,
 * KVB_NO_MEMORY */
kvb_status kvb_bus_subscribe(
    struct kvb_bus *bus, const char *subject, kvb_bus_handler handler, void *context,
    struct kvb_bus_subscription **out_subscription);

/* No handler runs after it returns, which may take a second.  Not from a handler.
 * NULL is fine. */
void kvb_bus_unsubscribe(struct kvb_bus_subscription *subscription);

/* Messages that nats.c dropped because the handler was too slow. */
uint64_t kvb_bus_dropped(struct kvb_bus_subscription *subscription);

/* Asks and gives the first answer to handler.
 * KVB_AGAIN      not connected       KVB_NOT_FOUND  nobody answers that subject
 * KVB_IO         no answer in time   (detail says so in words) */
kvb_status kvb_bus_request(
    struct kvb_bus *bus, const char *subject, kvb_span payload, uint32_t timeout_ms,
    kvb_bus_handler handler, void *context, struct kvb_detail *detail);
