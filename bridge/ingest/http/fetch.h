#pragma once

#include "core/span.h"
#include "core/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* GET over HTTP(S), many at once and independent of each other: libcurl's multi interface.
 *
 *     kvb_fetch_start(a) --+                         +--> a: on_bytes, on_bytes, on_end
 *     kvb_fetch_start(b) --+--> kvb_fetcher_work() --+--> b: on_end, no answer in time
 *
 * Redirects are not followed and proxies of the environment are not used, so that only the
 * engine that the operator configured is contacted.  Connections are kept for reuse.
 *
 * Names are looked up by the resolver: libcurl's own look-ups delay all fetches, and the end
 * of the process, while a name server does not answer.
 *
 * Threads: only the thread that calls kvb_fetcher_work(); kvb_fetcher_wake(): any thread.
 * Memory:  about 20 KiB for each fetch under way; bodies are the caller's. */
struct kvb_fetcher;
struct kvb_fetch;
struct kvb_networks;
struct kvb_resolver;

enum kvb_fetch_outcome {
    KVB_FETCH_OK,          /* 200, and all of the body was passed on */
    KVB_FETCH_UNREACHABLE, /* name not resolved, no connection, or it broke */
    KVB_FETCH_LATE,        /* timeout_ms have passed; of a stream: without a connection */
    KVB_FETCH_CODE,        /* a status code other than 200 */
    KVB_FETCH_TOO_LARGE,   /* a body of more than max_bytes */
    KVB_FETCH_STOPPED,     /* on_bytes returned an error */
    KVB_FETCH_OUTCOME_COUNT
};

/* "unreachable", ...: for logs and labels.  Never NULL. */
const char *kvb_fetch_outcome_name(enum kvb_fetch_outcome outcome);

struct kvb_fetch_end {
    enum kvb_fetch_outcome outcome;
    unsigned code;          /* of the answer; 0: none came */
    uint32_t retry_after_s; /* of its Retry-After; 0: it has none */
    uint64_t took_ns;       /* from the start to the last byte */
    struct kvb_detail why;  /* "" when OK */
};

/* A certificate or a key in PEM, from a file that is read at each dial, or as text; without both:
 * none.  Borrowed for the call. */
struct kvb_fetch_pem {
    const char *file; /* NULL or "": none */
    char *text;       /* NULL: none; is not changed */
};

struct kvb_fetch_options {
    const char *url;     /* http:// or https://; borrowed for the call */
    uint32_t timeout_ms; /* for the whole fetch, including the name look-up */
    size_t max_bytes;    /* of the body */
    bool is_stream;      /* timeout_ms is for the connection alone: the body goes on */
    const char *token;   /* a bearer token; NULL or "": none; borrowed for the call */
    /* Where it may connect to: checked for each address that is dialled, whatever the name led to;
     * redirects are not followed.  Borrowed until the end; NULL: anywhere. */
    const struct kvb_networks *networks;
    struct kvb_fetch_pem authority;   /* of the server's certificate; none: the system's */
    struct kvb_fetch_pem certificate; /* of the client, like the next */
    struct kvb_fetch_pem key;

    /* A 200 begins; may be NULL. */
    void (*on_open)(void *context);
    /* Gets each part of the body of a 200 as it arrives; anything but KVB_OK ends the fetch. */
    kvb_status (*on_bytes)(void *context, kvb_span bytes);
    /* Called once, unless the fetch is cancelled; the fetch is already freed.  New ones may
     * be started here. */
    void (*on_end)(void *context, const struct kvb_fetch_end *end);
    void *context;
};

/* resolver: borrowed; NULL: all hosts are numeric.
 * KVB_NO_MEMORY, KVB_IO  libcurl could not be set up */
kvb_status kvb_fetcher_new(struct kvb_resolver *resolver, struct kvb_fetcher **out_fetcher);
/* Cancels what is under way.  NULL is fine. */
void kvb_fetcher_free(struct kvb_fetcher *fetcher);

/* On KVB_OK *out_fetch may be cancelled until on_end was called.  Nothing is called back
 * before the next kvb_fetcher_work().
 * KVB_BAD_CONFIG  no URL of these schemes   KVB_NO_MEMORY */
kvb_status kvb_fetch_start(
    struct kvb_fetcher *fetcher, const struct kvb_fetch_options *options,
    struct kvb_fetch **out_fetch);

/* Not inside a callback.  NULL is fine. */
void kvb_fetch_cancel(struct kvb_fetch *fetch);

/* Sends, receives and calls back; waits up to wait_ms for something to do, and returns at once
 * when a fetch has ended.  KVB_IO */
kvb_status kvb_fetcher_work(struct kvb_fetcher *fetcher, int wait_ms);

/* Ends the wait, or the next one. */
void kvb_fetcher_wake(struct kvb_fetcher *fetcher);

/* Checks the form of the URL.  KVB_BAD_CONFIG: it cannot be fetched, detail says why. */
kvb_status kvb_fetch_check_url(const char *url, struct kvb_detail *detail);
