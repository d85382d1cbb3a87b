#pragma once

#include "core/span.h"
#include "core/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Many requests at once over HTTP(S), with libcurl's multi interface, for a job of the control
 * thread, whose turns call kvb_fetcher_work():
 *
 *     kvb_fetch_start(a) --+                         +--> a: on_bytes, on_bytes, on_end
 *     kvb_fetch_start(b) --+--> kvb_fetcher_work() --+--> b: on_end, no answer in time
 *                                  |      ^
 *                   its next time  v      | a turn of the job
 *                          libcurl's sockets, libcurl's timer
 *
 * Redirects are not followed, and proxies of the environment are not used, so that only the host
 * in the URL is contacted.  Connections are kept for reuse.
 *
 * The resolver looks up names.  libcurl's own look-ups would delay all fetches, and the end of the
 * process, while a name server does not answer.
 *
 * Threads: the control thread; making one: any.
 * Memory:  about 20 KiB for each fetch under way; the caller stores bodies. */
struct kvb_fetcher;
struct kvb_fetch;
struct kvb_job;
struct kvb_networks;
struct kvb_resolver;

enum kvb_fetch_outcome {
    KVB_FETCH_OK,          /* 200, and all of the body was passed on */
    KVB_FETCH_UNREACHABLE, /* name not resolved, no connection, or it broke */
    KVB_FETCH_LATE,        /* not done in timeout_ms; a stream: not connected in it */
    KVB_FETCH_CODE,        /* a status code other than 200 */
    KVB_FETCH_TOO_LARGE,   /* a body of more than max_bytes */
    KVB_FETCH_STOPPED,     /* on_bytes returned an error */
    KVB_FETCH_OUTCOME_COUNT
};

/* "unreachable", ...: for logs and labels.  Never NULL. */
const char *kvb_fetch_outcome_name(enum kvb_fetch_outcome outcome);

struct kvb_fetch_end {
    enum kvb_fetch_outcome outcome;
    unsigned code;          /* of the answer; 0: no answer */
    uint32_t retry_after_s; /* of its Retry-After header; 0: none */
    uint64_t took_ns;       /* from the start to the last byte */
    struct kvb_detail why;  /* "" when OK */
};

/* A certificate or key in PEM: from a file, which is read at each dial, or as text; or none.
 * Borrowed for the call. */
struct kvb_fetch_pem {
    const char *file; /* NULL or "": none */
    char *text;       /* NULL: none; not changed */
};

struct kvb_fetch_options {
    const char *url;     /* http:// or https://; borrowed for the call */
    uint32_t timeout_ms; /* for the whole fetch, including the name look-up */
    size_t max_bytes;    /* of the body */
    bool is_stream;      /* timeout_ms limits only connecting, not the body */
    const char *method;  /* "DELETE"; NULL: POST with a body, else GET; borrowed for the call */
    kvb_span json;       /* the body of the request; without bytes: none; borrowed for the call */
    bool takes_errors;   /* on_bytes is called for other codes than 200, too */
    const char *token;   /* a bearer token; NULL or "": none; borrowed for the call */
    /* For URLs that others give: metadata addresses (core/networks.h) are refused, and with a list
     * all that are not in it.  Each address is checked before it is dialed.  networks: borrowed
     * until the end; NULL: no list. */
    bool refuses_metadata;
    const struct kvb_networks *networks;
    struct kvb_fetch_pem authority;   /* that signs the server's certificate; none: the system's */
    struct kvb_fetch_pem certificate; /* of the client, like the next */
    struct kvb_fetch_pem key;

    /* Called at the end of the header of a 200; may be NULL. */
    void (*on_open)(void *context);
    /* Called with each part of the body of a 200, see takes_errors.  Any status except KVB_OK ends
     * the fetch. */
    kvb_status (*on_bytes)(void *context, kvb_span bytes);
    /* Called once at the end, unless the fetch is cancelled.  The fetch is already freed.  New
     * fetches may be started here. */
    void (*on_end)(void *context, const struct kvb_fetch_end *end);
    void *context;
};

/* job: borrowed, and not woken before this returns; NULL: the fetcher has a loop of its own, which
 * kvb_fetcher_run() runs.  resolver: borrowed; NULL: all hosts are numeric.
 * KVB_NO_MEMORY, KVB_IO  libcurl could not be set up */
kvb_status kvb_fetcher_new(
    struct kvb_job *job, struct kvb_resolver *resolver, struct kvb_fetcher **out_fetcher);
/* Limits the connections, those that wait for reuse included; further fetches wait.  Before the
 * first fetch.  KVB_IO. */
kvb_status kvb_fetcher_limit(struct kvb_fetcher *fetcher, unsigned max_connections);
/* Cancels all fetches.  At the end of its job.  NULL is fine. */
void kvb_fetcher_free(struct kvb_fetcher *fetcher);

/* On KVB_OK *out_fetch may be cancelled until on_end was called.  No callback is called before the
 * next turn, for which the job is woken.
 * KVB_BAD_CONFIG  not a valid URL with http or https   KVB_NO_MEMORY */
kvb_status kvb_fetch_start(
    struct kvb_fetcher *fetcher, const struct kvb_fetch_options *options,
    struct kvb_fetch **out_fetch);

/* Must not be called from a callback.  NULL is fine. */
void kvb_fetch_cancel(struct kvb_fetch *fetch);

/* In each turn: goes on with what has waited for its time or its host, and calls on_end of those
 * that have ended.  Returns when the next turn is due for it, as a turn does. */
uint64_t kvb_fetcher_work(struct kvb_fetcher *fetcher, uint64_t now_ns);

/* Of a fetcher without a job, on a thread that may also wait for other things: works until a fetch
 * has ended or it is woken, at most wait_ms. */
void kvb_fetcher_run(struct kvb_fetcher *fetcher, int wait_ms);
/* Ends kvb_fetcher_run(), or its next call.  Any thread. */
void kvb_fetcher_wake(struct kvb_fetcher *fetcher);

/* Checks the form of the URL.  KVB_BAD_CONFIG: it cannot be fetched, detail says why. */
kvb_status kvb_fetch_check_url(const char *url, struct kvb_detail *detail);
