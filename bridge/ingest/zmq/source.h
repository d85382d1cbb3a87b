#pragma once

#include "core/span.h"
#include "core/status.h"
#include "ingest/zmq/context.h"
#include "ingest/zmq/frames.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct kvb_resolver;
struct kvb_poller;

/* The sockets of one engine rank:
 *
 *     SUB      <- PUB       live batches
 *     PAIR     <- monitor   connected, disconnected (of the SUB)
 *     DEALER  <-> ROUTER    one replay at a time, each on a new socket
 *
 * Monitor events and data are not ordered with each other.  So receive a run of batches first, then
 * read the monitor, and judge the run by the monitor's report.
 *
 * A SUB that is bound accepts connections from anybody.  It is up while exactly one engine
 * is connected: with two engines, sequence numbers could not be assigned to one of them.
 *
 * The resolver looks up host names; libzmq gets one address at a time.  A working connection stays
 * even when the address of the name changes.  Without a connection, each failed attempt looks the
 * name up again, and the next attempt uses the next address.  When events and replay have the same
 * host, both use the same address.
 *
 * Each connection of a SUB that connects has a SUB of its own.  When a connection is lost, what it
 * brought and nobody has received is dropped, and kvb_source_renew() opens the next SUB.
 *
 * Threads: only the thread that made it.
 * Memory:  when more than 32 MiB wait inside libzmq over TCP, the connection is ended, and the list
 *          is rebuilt on the next.  Over ipc:// there is no such limit: the other end is a process
 *          of this host.  At most max_replay_bytes of a replay wait; the rest is requested again.
 */
struct kvb_source;

struct kvb_source_options {
    const char *events; /* "tcp://127.0.0.1:5557" */
    const char *replay; /* "" for none */
    const char *topic;  /* prefix; "" for all */
    bool bind;          /* bind the SUB: for engines that connect */
    enum kvb_replay_request replay_request;
    size_t max_replay_bytes;
    struct kvb_poller *poller;     /* borrowed; watches the sockets */
    size_t owner;                  /* number of this source in the poller */
    struct kvb_resolver *resolver; /* borrowed; NULL: all hosts are numeric */
    bool refuses_metadata;         /* others gave the addresses: kvb_named_endpoint_restrict() */
};

/* Succeeds even when a host is not resolved yet: kvb_source_renew() connects later.
 * KVB_BAD_CONFIG  libzmq rejects an endpoint; detail says which and why
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
    bool has_topic;   /* of a reply, or an END: a topic stands before its seq */
};

enum { kvb_source_run = 64, kvb_source_run_bytes = 256 << 10 };

/* Receives the messages that have arrived.  Stops after kvb_source_run messages or
 * kvb_source_run_bytes, because other engines wait.  Messages that are not batches are dropped, and
 * counted in *out_refused. */
size_t kvb_source_receive(
    struct kvb_source *source, struct kvb_source_batch out_batches[kvb_source_run],
    uint64_t *out_refused);

/* Ends a connection that has brought more than 32 MiB that were not received, messages or one that
 * never ends.  Call it a few times a second. */
void kvb_source_end_floods(struct kvb_source *source, uint64_t now_ns);

/* What happened to the connection since the last call.  was_lost together with is_up: it was lost
 * and made again. */
struct kvb_source_link {
    bool was_lost;
    bool is_up;
    bool is_crowded; /* more than one engine on a bound socket; is_up is false */
};

struct kvb_source_link kvb_source_read_monitor(struct kvb_source *source);

/* True when the batch is from the only engine that is connected.  Always true for a socket that is
 * not bound.  Call it after the monitor was read. */
bool kvb_source_is_of_engine(struct kvb_source *source, const struct kvb_source_batch *batch);

/* Connects when the host is resolved, connects to another address of the host when one has failed,
 * and connects again after a loss.
 *
 * Opens the SUB and its monitor again when libzmq has given up the connection.  After a protocol
 * error (a message above 16 MiB, another protocol or socket type at the port) libzmq never
 * reconnects.  Renewals are 1 s apart at first, doubled each time up to 30 s, until a connection
 * has lasted a minute.  A bound SUB needs no renewal, because the engine connects again.
 *
 * Call it a few times a second, after kvb_source_read_monitor().  *out_reason is borrowed until the
 * next call.
 *
 * KVB_OK         opened again; *out_reason says why
 * KVB_AGAIN      nothing to do; *out_reason is "", or why a bound SUB cannot listen
 * KVB_NOT_FOUND  the host cannot be resolved; a later call tries again
 * KVB_BAD_INPUT  none of its addresses is allowed; a later call tries again
 * others         the SUB could not be opened; a later call tries again */
kvb_status kvb_source_renew(struct kvb_source *source, uint64_t now_ns, const char **out_reason);

/* Counters since the source was opened. */
struct kvb_source_counters {
    uint64_t connects;        /* handshakes completed */
    uint64_t disconnects;     /* connections lost after a completed handshake */
    uint64_t retries;         /* attempts to connect after a failed one or a loss */
    uint64_t failures;        /* attempts that failed */
    uint64_t cuts;            /* replays that were larger than max_replay_bytes */
    uint64_t protocol_errors; /* connections that a protocol error ended */
    uint64_t renewals;        /* times that the SUB was opened again */
    uint64_t floods;          /* connections that were ended because too much waited */
};

/* What came on the present connection instead of batches. */
struct kvb_source_strays {
    uint64_t unnumbered;   /* messages that are no numbered batches: kvb_frames_read_live() */
    size_t frames;         /* of the newest of them */
    uint64_t other_topics; /* messages of other topics: kvb_source_listen_to_all() */
    char topic[64];        /* of the newest of them; printable, "" for none */
};

/* Borrowed; valid until the source is closed. */
const struct kvb_source_strays *kvb_source_strays(const struct kvb_source *source);

/* Subscribes to all topics, or to the configured one alone again.  A publisher sends only what is
 * subscribed to, so nothing else shows that the topic is wrong.  Messages of other topics are
 * counted and dropped. */
void kvb_source_listen_to_all(struct kvb_source *source, bool listens);

/* Borrowed; valid until the source is closed. */
const struct kvb_source_counters *kvb_source_count(const struct kvb_source *source);

/* ---- Replay ---- */

/* Sends a replay request on a new socket, after closing that of an earlier replay.
 * KVB_AGAIN      the host is being looked up
 * KVB_NOT_FOUND  the host cannot be resolved
 * KVB_TOO_LARGE  the limit of open files is reached.  libzmq would try to connect for ever, and
 *                would not report it.
 * KVB_IO, KVB_NO_MEMORY */
kvb_status kvb_source_replay_start(struct kvb_source *source, uint64_t from);
void kvb_source_replay_stop(struct kvb_source *source);

/* Moves received replies from libzmq into a bounded queue.  Call it when replies are ready, before
 * kvb_source_replay_receive(). */
void kvb_source_replay_drain(struct kvb_source *source);

enum kvb_source_reply {
    KVB_REPLY_BATCH,
    KVB_REPLY_END,
    KVB_REPLY_CUT /* the replay exceeded max_replay_bytes: the rest was dropped */
};

/* Takes the next reply; out_batch->payload is borrowed until the next call.
 * KVB_AGAIN      there is none
 * KVB_BAD_INPUT  the reply is neither a batch nor the end; the caller counts it */
kvb_status kvb_source_replay_receive(
    struct kvb_source *source, enum kvb_source_reply *out_kind, struct kvb_source_batch *out_batch);
