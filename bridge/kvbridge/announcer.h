#pragma once

#include "core/clock.h"
#include "wire/query/dynamo_worker.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Keeps the ranks that one Dynamo service has registered equal to those that are wanted: decides
 * what is sent next, and sends nothing.
 *
 *     LIST every 10 s ---> each rank against the list:
 *
 *     wanted      the service lists             state          next request
 *     yes         nothing of this id            ABSENT         ADD
 *     yes         it at other sockets, or with  OTHER          select_service: ADD replaces it
 *                 settings of before                           indexer: REMOVE, then ADD
 *     yes         it, as wanted                 PRESENT        none
 *     no          it at our sockets             LEAVING        REMOVE
 *     no          nothing, or other sockets     forgotten      none: another bridge has it
 *     yes         (refused an ADD: 4xx)         REFUSED        none until the next LIST
 *
 * Nothing is added before the first LIST, so a bridge that was killed finds its registrations
 * again.  If it comes back with another replay socket, address or limit, a select_service lists
 * those of before, and is sent an ADD; an indexer does not list them and keeps them.  A service
 * that has restarted gets its ranks within 10 s.  Which of the two APIs the service has is seen in
 * its list; an empty list shows nothing, so select_service is tried, and the other one when its
 * path does not exist.  When the service cannot be reached, or answers 5xx, everything waits, 0.5 s
 * at first and twice as long each time, at most 30 s; then the list is read again.
 *
 * One request is under way at a time.
 * Threads: the caller locks.  Times are of the monotonic clock, in ns. */

enum kvb_announced_state {
    KVB_ANNOUNCED_UNKNOWN, /* no list was read yet, or none since an ADD without an answer */
    KVB_ANNOUNCED_ABSENT,
    KVB_ANNOUNCED_OTHER,
    KVB_ANNOUNCED_PRESENT,
    KVB_ANNOUNCED_REFUSED,
    KVB_ANNOUNCED_LEAVING
};

struct kvb_announced {
    struct kvb_dynamo_worker worker;
    enum kvb_announced_state state;
    bool is_wanted;
    bool is_changed;       /* since the newest ADD, so the service may have older settings */
    bool is_seen;          /* in the list that is being read */
    struct kvb_detail why; /* why it was refused, or is not used; "": it was not, or it is */
};

enum kvb_announce_step {
    KVB_ANNOUNCE_NOTHING,
    KVB_ANNOUNCE_LIST,
    KVB_ANNOUNCE_ADD,
    KVB_ANNOUNCE_REMOVE
};

struct kvb_announcer {
    struct kvb_announced *items; /* owned */
    size_t count;
    enum kvb_dynamo_api api;
    bool has_flipped;          /* the API was changed since the last list */
    bool is_failing;           /* the newest request had no useful answer */
    struct kvb_detail failure; /* why */
    uint64_t next_ns;          /* nothing is sent before */
    uint64_t next_list_ns;
    uint64_t pause_ns;           /* after the next failure */
    enum kvb_announce_step step; /* under way */
    size_t at;                   /* the item that it is about */
    bool was_changed;            /* the item's is_changed, before it was sent */
};

/* {0} is an announcer that wants nothing. */
void kvb_announcer_done(struct kvb_announcer *announcer);

/* Replaces what is wanted.  A pair of worker_id and dp_rank must be unique in the list.
 * KVB_NO_MEMORY: nothing has changed. */
kvb_status kvb_announcer_want(
    struct kvb_announcer *announcer, const struct kvb_dynamo_worker *workers, size_t count);

/* What is to be sent now; with ADD and REMOVE *out_worker is what it is about, borrowed until the
 * next call, and announcer->api says how, UNKNOWN as select_service.  The caller then calls
 * kvb_announcer_answered(), after kvb_announcer_listed() for each rank of a list. */
enum kvb_announce_step kvb_announcer_next(
    struct kvb_announcer *announcer, uint64_t now_ns, const struct kvb_dynamo_worker **out_worker);

/* Takes a kvb_dynamo_visitor's rank; context is the announcer. */
void kvb_announcer_listed(void *context, const struct kvb_dynamo_listed *listed);

struct kvb_announce_answer {
    unsigned code;      /* of HTTP; 0: none came */
    bool is_unreadable; /* a list that is none */
    const char *why;    /* borrowed; the reason in the answer, or why none came; "": none */
};

void kvb_announcer_answered(
    struct kvb_announcer *announcer, const struct kvb_announce_answer *answer, uint64_t now_ns);

/* True: nothing is left to remove, or the service cannot be reached.  At the end of a program. */
bool kvb_announcer_is_gone(const struct kvb_announcer *announcer);

/* True: nothing is to be sent before the next list. */
bool kvb_announcer_is_settled(const struct kvb_announcer *announcer);

/* Of the wanted ranks, those that the service has. */
size_t kvb_announcer_count_present(const struct kvb_announcer *announcer);
size_t kvb_announcer_count_wanted(const struct kvb_announcer *announcer);

/* The reason of a failure, or of the first rank that was refused or is not used; "": none. */
const char *kvb_announcer_why(const struct kvb_announcer *announcer);
