#pragma once

#include "core/buf.h"
#include "core/status.h"
#include "pods/pod.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Which request to the Kubernetes API is due, and when: lists the pods once, then watches for what
 * changes, and lists again only when the server does not know the version that was seen last.
 *
 *               started   page       listed     ended   gone    refused  failed   away
 *   list due    listing
 *   listing               list due   watch due  list+   list+   list+    list+    list-
 *   watch due   watching
 *   watching                                    watch*  list*   list+    watch+   watch-
 *
 *     list, watch   is due: again
 *     page      a page of the list, and there is another one: it is requested at once
 *     listed    the last page: watched from its version on
 *     ended     the answer is over: of a watch after its timeoutSeconds
 *     gone      410, as a status or as an ERROR event: the version is too old, or the token of
 *               the next page is
 *     refused   another status that is about the request itself: a server that was set up again
 *               from older data says 504 to a version that it has yet to reach
 *     failed    a status that is about load or rights, no answer in time, an answer that is none
 *     away      no connection, or it broke
 *     +         after a pause that doubles up to 30 s, with Retry-After at least so long; a list
 *               begins with its first page again.  Refused watches are counted apart, because the
 *               lists between them may be answered
 *     -         after 1 s, however often: it costs a server that is away nothing, and one that is
 *               back finds its pods taken soon
 *     *         at once; after a pause where the one before brought nothing either
 *
 * A watch ends after its timeoutSeconds, which is drawn anew each time so that a fleet of bridges
 * does not come back at once.  One that is open 30 s later is lost: it is closed, and goes on from
 * the last version.  One that brings nothing up to its end, not even a bookmark, is as good as
 * gone: a server may wait without a word for a version that it has yet to reach.
 *
 * Pure.  Threads: the caller locks.  Times are of a clock that only goes forward. */
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
    uint64_t due_ns;     /* of the states that are due */
    uint64_t started_ns; /* of the others */
    uint64_t silent_ns;  /* of a watch: then it is lost */
    uint32_t mean_s;     /* of a watch's timeoutSeconds */
    uint32_t timeout_s;  /* of the watch that is due or open */
    unsigned failures;   /* in a row */
    unsigned gones;      /* in a row */
    unsigned refusals;   /* of watches, since one brought a line or lasted to its end */
    bool has_lines;      /* the watch has brought a line */
    size_t pages;        /* of the list under way, like the next */
    size_t items;
    uint64_t away_ns; /* since then nothing came from the server; 0: it is there */
    uint64_t random;
    struct kvb_pod_page page; /* the version seen last, and the token of the next page */
};

/* seed: any number; mean_s: 10 at least.  A list is due at now_ns. */
void kvb_watch_init(struct kvb_watch *watch, uint32_t mean_s, uint64_t seed, uint64_t now_ns);

/* True: its request is due; it is started with this. */
bool kvb_watch_start(struct kvb_watch *watch, uint64_t now_ns);

/* The server has answered 200: it is there. */
void kvb_watch_opened(struct kvb_watch *watch);

/* Of a list that is under way: one item more.  KVB_TOO_LARGE: such a list has no end. */
kvb_status kvb_watch_item(struct kvb_watch *watch);

/* Of a watch: a line has come.  version: "" for none. */
void kvb_watch_line(struct kvb_watch *watch, const char *version);

/* What came of the request.  page: of KVB_WATCH_PAGE and KVB_WATCH_LISTED, else NULL.
 * retry_after_s: of the answer, or 0.  Of inputs that do not fit the state nothing comes. */
void kvb_watch_step(
    struct kvb_watch *watch, enum kvb_watch_input input, const struct kvb_pod_page *page,
    uint32_t retry_after_s, uint64_t now_ns);

/* What an answer with this status means, which is not 200; also the code of an ERROR event. */
enum kvb_watch_input kvb_watch_input_of_code(unsigned code);

/* The watch is open for longer than it may be. */
bool kvb_watch_is_silent(const struct kvb_watch *watch, uint64_t now_ns);

/* "list_due", ...: never NULL. */
const char *kvb_watch_state_name(enum kvb_watch_state state);

/* The path and the query of the request that was started.  Namespace "": all of them.
 * KVB_TOO_LARGE, KVB_NO_MEMORY */
kvb_status kvb_watch_path(
    const struct kvb_watch *watch, const char *name_space, const char *selector,
    const char *field_selector, struct kvb_buf *out);
