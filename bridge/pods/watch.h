#pragma once

#include "core/backoff.h"
#include "core/buf.h"
#include "core/status.h"
#include "pods/pod.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Decides which request to the Kubernetes API is due, and when.  It lists the pods once, then
 * watches for changes, and lists again only when the server no longer has the version that was seen
 * last.
 *
 *               started   page       listed     ended   gone    refused  failed   away
 *   list due    listing
 *   listing               list due   watch due  list+   list+   list+    list+    list-
 *   watch due   watching
 *   watching                                    watch*  list*   list+    watch+   watch-
 *
 *     list, watch   the request that becomes due
 *     page      a page of the list that is not the last: the next page is requested at once
 *     listed    the last page: the watch begins at its version
 *     ended     the answer has ended; the server ends a watch after timeoutSeconds
 *     gone      410, as a status or as an ERROR event: the version, or the token of the next page,
 *               has expired
 *     refused   any other error status; a server that was restored from older data says 504 to a
 *               version that it has not reached yet
 *     failed    401, 403, 429 or 503, no answer in time, or an answer that cannot be read
 *     away      the connection failed or broke
 *     +         after a pause that doubles up to 30 s and is at least Retry-After; a list begins
 *               again with its first page.  Refused watches have a count of their own, because the
 *               lists between them may succeed
 *     -         after 1 s each time: this costs an absent server nothing, and its pods are read
 *               soon after it returns
 *     *         at once, but after a pause when the previous watch brought no line either
 *
 * The timeoutSeconds of a watch are random, so that a fleet of bridges does not reconnect at once.
 * A watch that is still open 30 s later is lost: it is closed, and the next one continues from the
 * last version.  A watch that brought no line up to its end, not even a bookmark, counts as gone,
 * because a server may wait in silence for a version that it has not reached yet.
 *
 * Pure.  Threads: the caller locks.  Times are monotonic. */
enum kvb_watch_state {
    KVB_WATCH_LIST_DUE,
    KVB_WATCH_LISTING,
    KVB_WATCH_WATCH_DUE,
    KVB_WATCH_WATCHING,
    KVB_WATCH_STATE_COUNT
};

enum kvb_watch_input {
    KVB_WATCH_PAGE,
    KVB_WATCH_LISTED,
    KVB_WATCH_ENDED,
    KVB_WATCH_GONE,
    KVB_WATCH_REFUSED,
    KVB_WATCH_FAILED,
    KVB_WATCH_AWAY,
    KVB_WATCH_INPUT_COUNT
};

struct kvb_watch {
    enum kvb_watch_state state;
    uint64_t due_ns;     /* in the two due states: when the request is due */
    uint64_t started_ns; /* in the other two: when the request was sent */
    uint64_t silent_ns;  /* when an open watch counts as lost */
    uint32_t mean_s;     /* mean of the random timeoutSeconds */
    uint32_t timeout_s;  /* timeoutSeconds of the newest watch */
    /* Their pauses grow apart; {0}: none since a line came, or as kvb_watch_step() says. */
    struct kvb_backoff failures;
    struct kvb_backoff gones;
    struct kvb_backoff refusals; /* of watches */
    bool is_gone;                /* the newest one was: the first is followed at once */
    bool has_lines;              /* the watch has brought a line */
    size_t pages;                /* pages of the current list, so far */
    size_t items;                /* pods of the current list, so far */
    uint64_t away_ns;            /* since when the server has not answered; 0: it answers */
    uint64_t random;
    struct kvb_pod_page page; /* the version seen last, and the token of the next page */
};

/* The first list is due at now_ns.  mean_s is at least 10; seed is any number. */
void kvb_watch_init(struct kvb_watch *watch, uint32_t mean_s, uint64_t seed, uint64_t now_ns);

/* True: a request is due, and the caller sends it now. */
bool kvb_watch_start(struct kvb_watch *watch, uint64_t now_ns);

/* The server has answered 200. */
void kvb_watch_opened(struct kvb_watch *watch);

/* Counts an item of the current list.  KVB_TOO_LARGE: the list has more items than a list may
 * have. */
kvb_status kvb_watch_item(struct kvb_watch *watch);

/* A line of the watch has arrived.  version: "" when the line has none. */
void kvb_watch_line(struct kvb_watch *watch, const char *version);

/* Takes the outcome of the request.  page: for KVB_WATCH_PAGE and KVB_WATCH_LISTED, else NULL.
 * retry_after_s: the Retry-After header of the answer, or 0.  Ignores an input that the current
 * state does not expect. */
void kvb_watch_step(
    struct kvb_watch *watch, enum kvb_watch_input input, const struct kvb_pod_page *page,
    uint32_t retry_after_s, uint64_t now_ns);

/* The input for an answer with this status other than 200, or for the code of an ERROR event. */
enum kvb_watch_input kvb_watch_input_of_code(unsigned code);

/* The watch has been open for too long, and counts as lost. */
bool kvb_watch_is_silent(const struct kvb_watch *watch, uint64_t now_ns);

/* Writes the path and query of the current request.  name_space "": all namespaces.  KVB_TOO_LARGE,
 * KVB_NO_MEMORY */
kvb_status kvb_watch_path(
    const struct kvb_watch *watch, const char *name_space, const char *selector,
    const char *field_selector, struct kvb_buf *out);
