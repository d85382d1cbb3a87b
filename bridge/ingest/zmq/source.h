#pragma once

#include "core/span.h"
#include "core/status.h"
#include "ingest/zmq/context.h"
#include "ingest/zmq/frames.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct kvb_curve;
struct kvb_networks;
struct kvb_resolver;
struct kvb_poller;

/* The sockets of one engine rank:
 *
 *     SUB      <- PUB       live batches
 *     PAIR     <- monitor   connected, disconnected (of the SUB)
 *     DEALER  <-> ROUTER    one replay at a time, each with a new socket
 *
 * Monitor events are not ordered with the data: receive a run of batches first, then
 * read the monitor, and treat the run by what the monitor reported.
 *
 * A SUB that is bound accepts connections from anybody.  It is up while exactly one engine
 * is connected: with two, sequence numbers could not be assigned to an engine.
 *
 * Host names are looked up by the resolver; libzmq gets addresses, one at a time.  A working
 * connection stays, even if its name changes.  Without one, each failed attempt looks the name
 * up again and takes the next address, or the new one.  When events and replay have the same
 * host, both are read from one address.
 *
 * Threads: only the thread that made it.
 * Memory:  at most 2,000 messages wait inside libzmq, each at most 16 MiB; further ones
 *          are dropped there, appear as a gap, and are repaired.  At most max_replay_bytes
 *          of a replay wait; the rest is requested again. */
struct kvb_source;

struct kvb_source_options {
    const char *events; /* "tcp://127.0.0.1:5557" */
    const char *replay; /* "" for none */
    const char *topic;  /* prefix; "" for all */
    bool bind;          /* bind the SUB: for engines that connect */
    enum kvb_replay_request replay_request;
    size_t max_replay_bytes;
    struct kvb_poller *poller;           /* borrowed; watches the sockets */
    size_t owner;                        /* the poller's number for this source */
    struct kvb_resolver *resolver;       /* borrowed; NULL: all hosts are numeric */
    const struct kvb_networks *networks; /* where it may connect to; borrowed; NULL: anywhere */
    const struct kvb_curve *curve;       /* copied; NULL: in clear, with anybody */
};

/* A host that is not resolved yet is no error: kvb_source_renew() connects later.
 * KVB_BAD_CONFIG  an endpoint that libzmq refuses; detail says which and why
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

enum { kvb_source_run = 64, kvb_source_run_bytes = 256 << 10 };

/* Receives what is there, but stops after kvb_source_run messages or kvb_source_run_bytes,
 * because other engines wait.  Messages that are not batches are dropped and counted in
 * *out_refused. */
size_t kvb_source_receive(
    struct kvb_source *source, struct kvb_source_batch out_batches[kvb_source_run],
    uint64_t *out_refused);

/* What happened to the connection since the last call.  Both was_lost and is_up: it was lost
 * and made again. */
struct kvb_source_link {
    bool was_lost;
    bool is_up;
    bool is_crowded; /* more than one engine on a bound socket: not up */
};

struct kvb_source_link kvb_source_read_monitor(struct kvb_source *source);

/* True when the batch is from the one engine that is connected; always true unless the socket
 * is bound.  Call it after the monitor was read. */
bool kvb_source_is_of_engine(struct kvb_source *source, const struct kvb_source_batch *batch);

/* Connects once the host is resolved, and again when an address has failed and there is
 * another.
 * Opens the SUB and its monitor again when libzmq has given up the connection: after a
 * protocol error (a message above 16 MiB, another protocol or socket type at the port) it
 * never reconnects.  Renewals are 1 s .. 30 s apart, doubled each time, until a connection
 * has lasted a minute.  Call it after kvb_source_read_monitor(), a few times a second.  A
 * bound SUB needs no renewal: the engine connects again.
 *
 * KVB_OK         opened again; *out_reason says why; borrowed until the source is closed
 * KVB_AGAIN      nothing to do or to report; *out_reason is untouched
 * KVB_NOT_FOUND  the host cannot be resolved; it will be tried again; *out_reason as for KVB_OK
 * KVB_BAD_INPUT  the networks allow none of its addresses; as before
 * others         it could not be opened; it will be tried again; *out_reason as for KVB_OK */
kvb_status kvb_source_renew(struct kvb_source *source, uint64_t now_ns, const char **out_reason);

/* Counts of what the monitor reported so far. */
struct kvb_source_counters {
    uint64_t connects;        /* handshakes completed */
    uint64_t disconnects;     /* connections lost after a completed handshake */
    uint64_t retries;         /* attempts to connect after a failed one or a loss */
    uint64_t failures;        /* attempts that failed */
    uint64_t cuts;            /* replays that were larger than max_replay_bytes */
    uint64_t protocol_errors; /* connections that a protocol error ended */
    uint64_t renewals;        /* times that the SUB was opened again */
    uint64_t refusals;        /* handshakes that failed because of keys, or may have */
};

/* Why the newest handshake failed, where keys are the likely reason; "" since one succeeded.  Of
 * a socket that listens, "" while an engine is connected.  Static. */
const char *kvb_source_refusal(const struct kvb_source *source);

/* Borrowed; valid until the source is closed. */
const struct kvb_source_counters *kvb_source_count(const struct kvb_source *source);

/* ---- Replay ---- */

/* Sends a replay request on a new socket; closes one that was open.
 * KVB_AGAIN      its host is being looked up   KVB_NOT_FOUND  it cannot be resolved
 * KVB_TOO_LARGE  the limit of open files is reached: libzmq would try to connect for ever
 *                without reporting it
 * KVB_IO, KVB_NO_MEMORY */
kvb_status kvb_source_replay_start(struct kvb_source *source, uint64_t from);
void kvb_source_replay_stop(struct kvb_source *source);

/* Moves received replies from libzmq into a bounded queue.  Call it whenever replies are
 * ready, before kvb_source_replay_receive(). */
void kvb_source_replay_drain(struct kvb_source *source);

enum kvb_source_reply {
    KVB_REPLY_BATCH,
    KVB_REPLY_END,
    KVB_REPLY_CUT /* the replay exceeded max_replay_bytes: the rest was dropped */
};

/* The next reply; batch->payload is borrowed until the next call.
 * KVB_AGAIN      there is none
 * KVB_BAD_INPUT  a reply that is neither batch nor end: count it */

kvb_status kvb_source_replay_receive(
    struct kvb_source *source, enum kvb_source_reply *out_kind, struct kvb_source_batch *out_batch);
