#pragma once

#include "core/detail.h"
#include "core/span.h"
#include "core/status.h"
#include "ingest/frames.h"
#include "ingest/zmq_context.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct kvb_waiter;

/* The sockets of one engine rank:
 *
 *     SUB      <- PUB       live batches
 *     PAIR     <- monitor   connected, disconnected (of the SUB)
 *     DEALER  <-> ROUTER    one replay at a time, a fresh socket each
 *
 * The monitor is not ordered with the data: whoever receives a run of batches
 * reads the monitor after it, and judges the run by what the monitor said.
 *
 * A SUB that is bound takes connections from anybody.  It is up while exactly one engine
 * is connected: with two, nobody can tell whose numbers are whose.
 *
 * Limit: libzmq aborts the process (its issue 3937, open in 4.3.5) when such a pipe stays
 * full until heartbeats end its connection, about a second, and is received from, or
 * closed, once another connection has taken its place.  So an ingest thread that stands
 * still while 2,000 messages come, and a second more, may end the bridge.
 *
 * Threads: only the thread that made it.
 * Memory:  at most 2,000 messages wait inside libzmq, each at most 16 MiB; what
 *          overflows is dropped there, shows as a gap, and is repaired.  Of a replay
 *          max_replay_bytes wait; what overflows is asked for again. */
struct kvb_source;

struct kvb_source_options {
    const char *events; /* "tcp://127.0.0.1:5557" */
    const char *replay; /* "" for none */
    const char *topic;  /* prefix; "" for all */
    bool bind;          /* bind the SUB: for engines that connect */
    enum kvb_replay_request replay_request;
    size_t max_replay_bytes;
    struct kvb_waiter *waiter; /* borrowed: told of the sockets as they come and go */
    size_t owner;              /* the waiter's number for this source */
};

/* KVB_BAD_CONFIG  an endpoint that libzmq refuses; detail says which and why
 * KVB_NO_MEMORY, KVB_IO */
kvb_status kvb_source_open(
    struct kvb_zmq *zmq, const struct kvb_source_options *options, struct kvb_source **out_source,
    struct kvb_detail *detail);
void kvb_source_close(struct kvb_source *source);

/* ---- Live ---- */

struct kvb_source_batch {
    uint64_t seq;
    kvb_span payload; /* borrowed until the next kvb_source_receive() of any source */
    int sender;       /* for kvb_source_is_of_engine() */
};

enum { kvb_source_run = 64 };

/* Receives what is there, at most kvb_source_run messages.  Messages that are no
 * batch are dropped and counted in *out_refused. */
size_t kvb_source_receive(
    struct kvb_source *source, struct kvb_source_batch out_batches[kvb_source_run],
    uint64_t *out_refused);

/* What happened to the connection since the last call, in order.  A slip is a
 * loss and a reconnection, both unread until now. */
struct kvb_source_link {
    bool was_lost;
    bool is_up;
    bool is_crowded; /* more than one engine on a bound socket: not up */
};

struct kvb_source_link kvb_source_read_monitor(struct kvb_source *source);

/* Is the batch from the one engine that is connected?  Always, unless the socket is
 * bound.  After the monitor was read. */
bool kvb_source_is_of_engine(struct kvb_source *source, const struct kvb_source_batch *batch);

/* Opens the SUB and its monitor anew when libzmq has given up the connection: after a
 * protocol error (a message above 16 MiB, another protocol or socket type at the port) it
 * never connects again.  Renewals are 1 s .. 30 s apart, doubled each time, until a
 * connection has lasted a minute.  After kvb_source_read_monitor(); a few times a second.
 * A bound SUB needs none: the engine connects again.
 *
 * KVB_OK     opened anew; *out_reason says why, a literal
 * KVB_AGAIN  nothing to do; *out_reason is untouched
 * others     could not be opened, which is tried again; *out_reason as for KVB_OK */
kvb_status kvb_source_renew(struct kvb_source *source, uint64_t now_ns, const char **out_reason);

/* What the monitor told so far. */
struct kvb_source_counters {
    uint64_t connects;        /* handshakes completed */
    uint64_t disconnects;     /* connections lost that had completed one */
    uint64_t retries;         /* attempts to connect after one that failed, or a loss */
    uint64_t failures;        /* attempts that failed */
    uint64_t cuts;            /* replays that were larger than max_replay_bytes */
    uint64_t protocol_errors; /* connections that a protocol error ended */
    uint64_t renewals;        /* times that the SUB was opened anew */
};

/* Borrowed; valid until the source is closed. */
const struct kvb_source_counters *kvb_source_count(const struct kvb_source *source);

/* ---- Replay ---- */

/* Asks with a fresh socket; one that was open is closed.  KVB_IO, KVB_NO_MEMORY. */
kvb_status kvb_source_replay_start(struct kvb_source *source, uint64_t from);
void kvb_source_replay_stop(struct kvb_source *source);

/* Takes what has come off libzmq, into the queue below.  Whenever replies are ready,
 * and before they are received. */
void kvb_source_replay_drain(struct kvb_source *source);

enum kvb_source_reply {
    KVB_REPLY_BATCH,
    KVB_REPLY_END,
    KVB_REPLY_CUT /* more came than max_replay_bytes: this is all of this replay */
};

/* The next reply; batch->payload is borrowed until the next call.
 * KVB_AGAIN      nothing there
 * KVB_BAD_INPUT  a reply that is neither batch nor end: count it */
kvb_status kvb_source_replay_receive(
    struct kvb_source *source, enum kvb_source_reply *out_kind, struct kvb_source_batch *out_batch);
