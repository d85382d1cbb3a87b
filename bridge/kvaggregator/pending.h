#pragma once

#include "bus/bus.h"
#include "core/status.h"
#include "daemon/http.h"
#include "grpc/session.h"
#include "kvaggregator/answers/routes.h"
#include "model/query.h"
#include "tokenize/tokenizer.h"

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct kvb_aggregator;
struct gateway_call;
struct kvb_grpc_call;
struct kvb_query_kind;

/* A query on its way, from the door at which it arrives to its one end, kvb_pending_settle():
 *
 *     the thread that receives it                       the index thread
 *     of HTTP, NATS or gRPC
 *
 *     READ, on the stack
 *      | refused: not readable, a limit, no memory .................................... end
 *      | the index is idle: answered here, sent ....................................... end
 *      |
 *      +-- moved to the heap --> QUEUED, in the ring
 *                                  | a text: to the tokenizer, and QUEUED again
 *                                  | a part of a long answer: QUEUED again
 *                                  | NATS, gRPC: answered, sent ....................... end
 *                                  | the aggregator stops: refused .................... end
 *                                  v
 *          ANSWERED <-- HTTP: answered, the connection is woken
 *           | sent, or the connection is closed ....................................... end
 *           +-- sent, and more follows: QUEUED again
 *
 *     LEFT: while an HTTP query is QUEUED, its connection is closed or has waited too
 *           long.  It ends unanswered when its turn comes ............................. end
 *
 * It has one owner at a time: the thread that reads it; from QUEUED on the ring and whoever has
 * taken it from there; once ANSWERED the connection.  Only the connection of a query over HTTP
 * knows it meanwhile, and says by LEFT that it does not.
 *
 * Threads: the owner's; kvb_pending_leave() the connection's.  Memory: a waiting query is counted
 * in the byte budget of queries. */

enum kvb_door { KVB_DOOR_HTTP, KVB_DOOR_NATS, KVB_DOOR_GRPC, KVB_DOOR_GATEWAY };

enum kvb_pending_state {
    KVB_PENDING_READ,
    KVB_PENDING_QUEUED,
    KVB_PENDING_ANSWERED,
    KVB_PENDING_LEFT
};

/* Why a query ends. */
enum kvb_pending_end {
    KVB_END_SENT,      /* its answer, which may be an error, was made */
    KVB_END_LEFT,      /* nobody waits for an answer */
    KVB_END_UNKNOWN,   /* a subject that is none of ours */
    KVB_END_BUSY,      /* the ring, or another limit of queries, is full */
    KVB_END_BYTES,     /* the queries that wait have all the memory for queries */
    KVB_END_NO_MEMORY, /* of the system */
    KVB_END_LATE,      /* its client's deadline is over */
    KVB_END_BEHIND,    /* the lists are not up to date, and its kind of answer cannot say so */
    KVB_END_STOPPING,  /* this aggregator ends */
    KVB_END_COUNT
};

struct kvb_pending_query {
    struct kvb_aggregator *aggregator; /* borrowed */
    enum kvb_door door;
    enum kvb_pending_state state;  /* under the lock, once it is kept */
    bool is_kept;                  /* on the heap: it owns the copies, lock and condition */
    bool is_refused;               /* so `answer` says why, and it was counted as refused */
    uint64_t received_ns;          /* of a long answer: when the part at hand was wanted */
    struct kvb_query query;        /* owned: where it has a prompt, read by the door's thread */
    struct kvb_detail detail;      /* why it cannot be answered */
    struct kvb_http_answer answer; /* its body is owned; over NATS only the body is used */

    /* HTTP */
    const struct kvb_http_route *route;
    struct kvb_http_route_context context; /* its dump is owned */
    const char *parameters;                /* behind the '?' of the path; borrowed, or in copies */
    struct kvb_http_answer *to;   /* borrowed: takes the answer when the query ends; NULL: nobody */
    struct kvb_http_later *later; /* borrowed: the connection to wake; NULL: it waits for a part */
    unsigned turns;               /* that the part at hand has taken */
    bool is_large;                /* one of kvb_max_large_dumps */

    /* NATS */
    const struct kvb_query_kind *kind; /* NULL: none that we know */
    const char *reply;                 /* borrowed, or in copies */
    kvb_span payload;                  /* borrowed, or in copies; of a kind without a prompt */
    struct kvb_bus_kept unread;        /* owned: a long prompt, until it is read */

    /* gRPC */
    struct kvb_grpc_call *call; /* ours until it is finished */
    enum kvb_grpc_status status;

    /* gateways */
    struct gateway_call *gateway_call; /* ours until it is given back */
    uint64_t deadline_ns;              /* for the tokens of a text; 0: tokenize.deadline_ms */

    /* of a text */
    struct kvb_tokenize_order *order;     /* owned; NULL: its tokens were not requested */
    struct kvb_tokenize_result tokenized; /* its tokens are in `tokens` */
    uint32_t *tokens;                     /* owned */

    /* once it is kept */
    size_t bytes; /* taken from the byte budget */
    pthread_mutex_t lock;
    pthread_cond_t answered; /* a part of it */
    char copies[];
};

/* Makes a copy on the heap that owns all that *here owns, and copies what that borrows; *here must
 * not be used any more.  KVB_NO_MEMORY: nothing has changed. */
kvb_status kvb_pending_keep(struct kvb_pending_query *here, struct kvb_pending_query **out_kept);

/* Makes it one that can wait: counted in the byte budget, and kept.  Anything else than
 * KVB_END_SENT: why it cannot, and *here is to be ended with that. */
enum kvb_pending_end
kvb_pending_hold(struct kvb_pending_query *here, struct kvb_pending_query **out_kept);

/* Moves a query that was read into the ring, or ends it where that is not possible.  NULL: it has
 * ended.  Else only the thread of an HTTP connection may use what is returned. */
struct kvb_pending_query *kvb_pending_queue(struct kvb_pending_query *here);

/* Puts a kept query into the ring once more; there is room for all that were in it before.
 * KVB_CLOSED, KVB_AGAIN: not done, and its owner is the same as before. */
kvb_status kvb_pending_queue_again(struct kvb_pending_query *pending);

/* Takes bytes for a query that waits, in addition to what it has.  KVB_AGAIN: there are none. */
kvb_status kvb_pending_take_bytes(struct kvb_pending_query *pending, size_t bytes);

/* The connection waits no longer.  True: the query was not answered, and is not the connection's.
 * False: it was, and the connection has to end it. */
bool kvb_pending_leave(struct kvb_pending_query *pending);

/* True: its connection has left. */
bool kvb_pending_is_left(struct kvb_pending_query *pending);

/* Makes the sentence in `detail` the answer: the query cannot be read. */
void kvb_pending_fail(struct kvb_pending_query *pending);

/* Moves the answer out of it, and counts it. */
void kvb_pending_take_answer(struct kvb_pending_query *pending, struct kvb_http_answer *out_answer);

/* The one end: says and counts why it was refused, if it was, sends the answer through its door,
 * and frees the query.  One over HTTP that is QUEUED becomes its connection's. */
void kvb_pending_settle(struct kvb_pending_query *pending, enum kvb_pending_end why);

/* The drop function of its rings: the aggregator stops. */
void kvb_pending_drop(void *item);
