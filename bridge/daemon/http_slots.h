#pragma once

#include "core/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The connections of an HTTP server: the phase, deadline and memory of each, and which one is
 * closed when there are too many.
 *
 *              opened
 *                | header whole       body whole        answer made
 *     HEADER ----+------------> BODY ----------> WORK -------------> ANSWER
 *        ^                                                              | sent
 *        +--------------------------------------------------------------+
 *
 * Each phase that waits for the client has a deadline: a grace period, and one more second for each
 * kvb_http_slots_options.bytes_a_second that the client has sent or read in that phase.  So a slow
 * trickle of bytes does not keep a connection open (the slowloris attack).
 *
 * Above the limit of all connections, or of one client's, the connection that waits longest for its
 * header is closed; when none does, the one that waits longest for its body.  When there is
 * neither, the new connection is `extra`: it only gets 503, or the answer of a vital path.  When
 * half of the extra places are taken, an extra connection makes room that waits longest, of the new
 * one's client if that has one.
 *
 * A connection is unproven until the caller has granted one of its requests.  Unproven connections
 * are closed first.  They have their own limit.  When it is reached, a new connection is extra
 * until one of its requests is granted.
 *
 * Pure: no socket, no clock.  Threads: the caller locks.
 * Memory: a slot is 80 bytes. */

enum kvb_http_phase {
    KVB_HTTP_FREE,
    KVB_HTTP_HEADER, /* idle, or its header is incomplete */
    KVB_HTTP_BODY,
    KVB_HTTP_WORK,
    KVB_HTTP_ANSWER,
    KVB_HTTP_CLOSING /* shut down; its socket is not closed yet */
};

/* Why a connection is closed. */
enum kvb_http_end {
    KVB_HTTP_END_LATE,
    KVB_HTTP_END_CROWDED /* closed to make room for a new connection */
};

struct kvb_http_slots_options {
    size_t max_connections;
    size_t max_extra;      /* in addition to max_connections */
    size_t max_per_client; /* at most max_connections */
    size_t max_unproven;   /* 0: max_connections */
    size_t max_held_bytes; /* of bodies and answers together */
    size_t max_client_bytes;
    size_t own_bytes; /* the first bytes of each connection, not counted */
    uint64_t grace_ns;
    uint64_t young_ns; /* younger connections are not closed for new ones, unless extra */
    uint64_t bytes_a_second;
    void *owner; /* the caller's; copied to each slot */
};

struct kvb_http_slot {
    enum kvb_http_phase phase;
    bool is_extra;
    bool is_proven;
    void *tls;         /* the caller's; NULL at first */
    void *waiting;     /* likewise */
    int fd;            /* the caller's; -1 when free */
    uint64_t client;   /* equal for connections of one host */
    uint64_t since_ns; /* when the phase began */
    uint64_t moved_bytes;
    size_t held_bytes; /* charged to the budget, without own_bytes */
    void *owner;
};

struct kvb_http_slots {
    struct kvb_http_slots_options options;
    struct kvb_http_slot *slots; /* owned; max_connections + max_extra */
    size_t slot_count;
    size_t open_count; /* not free, CLOSING included */
    size_t held_bytes;
};

/* KVB_NO_MEMORY */
kvb_status
kvb_http_slots_init(struct kvb_http_slots *slots, const struct kvb_http_slots_options *options);

/* {0} is fine. */
void kvb_http_slots_done(struct kvb_http_slots *slots);

/* A connection to be closed, and why.  It is CLOSING already; the caller shuts its socket down. */
struct kvb_http_victim {
    int fd; /* -1: none */
    enum kvb_http_end why;
};

/* Adds a connection.  NULL: every slot is taken; close it at once. */
struct kvb_http_slot *kvb_http_slots_open(
    struct kvb_http_slots *slots, uint64_t client, int fd, uint64_t now_ns,
    struct kvb_http_victim *out_victim);

/* Frees the slot and its bytes, when the socket is closed. */
void kvb_http_slots_close(struct kvb_http_slots *slots, struct kvb_http_slot *slot);

/* Marks the connection as proven: the caller has granted a request of it.  An extra connection
 * becomes an ordinary one when max_connections and max_per_client permit it. */
void kvb_http_slots_prove(struct kvb_http_slots *slots, struct kvb_http_slot *slot);

/* Begins the next phase.  A connection that is CLOSING stays so. */
void kvb_http_slots_enter(struct kvb_http_slot *slot, enum kvb_http_phase phase, uint64_t now_ns);

/* Sets the number of bytes that the connection holds in total.
 * KVB_AGAIN  above the budget of all, or of one client; nothing is changed.  While no other
 *            connection holds bytes, any number is granted. */
kvb_status
kvb_http_slots_hold(struct kvb_http_slots *slots, struct kvb_http_slot *slot, size_t bytes);

/* The next connection whose deadline has passed; false: none. */
bool kvb_http_slots_next_late(
    struct kvb_http_slots *slots, uint64_t now_ns, struct kvb_http_victim *out_victim);
