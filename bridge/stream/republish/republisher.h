#pragma once

#include "core/buf.h"
#include "core/span.h"
#include "core/status.h"
#include "model/event_batch.h"
#include "stream/mirror/shown.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* What one rank's readers are sent, as an engine would send it: numbered batches to all of them,
 * and answers to those that ask for batches again.
 *
 *     mirror/shown.h --- changes -> batch N --- live, to all
 *                                   |
 *                                 ring of the newest batches
 *     request from S ---------------+---> S .. N as they were published, if the ring has S
 *                    \---> else what is held now, as batches S .. N: cleared, blocks, empty batches
 *
 * Numbers never decrease, so a reader never takes an old batch for a new one.  The first is the
 * wall clock in microseconds, and each batch adds 1.  The caller reserves numbers in advance in a
 * file, so that a later process continues after the reserved ones.
 *
 * A reader that requests from 0 knows nothing; one that requests from too far back cannot be given
 * a batch for each number.  Both are sent the end mark, and then all readers get an announcement:
 * cleared and all that is held, as ordinary batches with new numbers.  (Readers disagree on what
 * an answer from 0 may look like; they all agree on live batches.)
 *
 * What becomes of the changes in each stage:
 *
 *     stage        what it does                              ends
 *     ----------   ---------------------------------------   ----------------------------
 *     LIVE         changes become batches; an empty batch    a snapshot is wanted, or an
 *                  after 1 s without one                      announcement is due
 *     ANNOUNCING   what is shown becomes batches;             all is written, or the list
 *                  changes wait                              was cleared
 *     SNAPSHOT     the same, for one answer                  the same
 *
 * One reader's answer, by the identity of its connection:
 *
 *     state      on                                          next
 *     --------   -----------------------------------------   ---------
 *     FREE       a request: nothing is missing, or all is    ENDING
 *                ... the ring has it                         SENDING
 *                ... the ring has it no more                 WAITING
 *     WAITING    stage SNAPSHOT begins                       BUILDING
 *     BUILDING   all is written                              SENDING
 *                the list was cleared                        WAITING
 *                it does not fit                             ENDING; an announcement is owed
 *     SENDING    the last batch is sent                      ENDING
 *                the ring has the next one no more           WAITING, from that one
 *     ENDING     the end mark is sent                        FREE
 *     any        a newer request of the same reader          ENDING, then as from FREE
 *     any        the process is about to end                 ENDING
 *     any        it is gone, or took nothing for 30 s        FREE
 *
 * Pure: no I/O, no clock.  Threads: the caller locks.
 * Memory:  the ring, at most kvb_max_republish_snapshots answers of max_snapshot_bytes each. */
struct kvb_republisher;

enum kvb_from_zero {
    KVB_FROM_ZERO_ANNOUNCE, /* the end mark, and an announcement to all */
    KVB_FROM_ZERO_SNAPSHOT, /* a snapshot under the newest numbers, to this reader alone */
};

enum {
    kvb_republish_reserve = 16384, /* numbers at a time */
    kvb_max_republish_clients = 64,
    kvb_max_republish_snapshots = 4,
    kvb_max_republish_fill = 1 << 16, /* batches in place of those that are not kept */
    kvb_max_republish_identity = 255  /* ZMQ's own limit */
};

struct kvb_republisher_options {
    struct kvb_shown *shown; /* borrowed */
    /* Writes a batch in the readers' form. */
    kvb_status (*encode)(void *context, const struct kvb_event_batch *batch, struct kvb_buf *out);
    void *encode_context;
    uint32_t dp_rank;    /* written into each batch */
    uint32_t block_size; /* tokens */
    uint64_t first_number;
    uint64_t reserved_end; /* numbers before this one may be used; UINT64_MAX: all */
    enum kvb_from_zero from_zero;
    size_t max_kept_batches; /* of the ring, like the next */
    size_t max_kept_bytes;
    size_t max_snapshot_bytes;
};

/* KVB_TOO_LARGE  max_kept_batches is out of range, or a first number of 0
 * KVB_NO_MEMORY */
kvb_status kvb_republisher_new(
    const struct kvb_republisher_options *options, struct kvb_republisher **out_republisher);
/* NULL is fine. */
void kvb_republisher_free(struct kvb_republisher *republisher);

struct kvb_republish_time {
    uint64_t now_ns;
    double wall_s; /* written into batches */
};

/* ---- What readers do ---- */

/* A reader has subscribed that may know nothing, so an announcement becomes due. */
void kvb_republisher_subscribed(struct kvb_republisher *republisher, uint64_t now_ns);

/* A reader wants batches from this number on.
 * KVB_TOO_LARGE  there are too many readers; this one gets no answer
 * KVB_BAD_INPUT  no identity, or one that is too long */
kvb_status kvb_republisher_request(
    struct kvb_republisher *republisher, kvb_span identity, uint64_t from, uint64_t now_ns);

/* The process is about to end: all answers under way end with their next message, which is the end
 * mark.  A reader that has no time limit would wait for it for good. */
void kvb_republisher_end_answers(struct kvb_republisher *republisher);

/* ---- What is to be sent ---- */

enum kvb_republish_kind {
    KVB_REPUBLISH_NOTHING, /* for now; call again if it is busy */
    KVB_REPUBLISH_LIVE,    /* to all */
    KVB_REPUBLISH_REPLY,
    KVB_REPUBLISH_END /* of a reply */
};

struct kvb_republish_action {
    enum kvb_republish_kind kind;
    uint64_t number;
    kvb_span payload;  /* borrowed until the next call, like the next */
    kvb_span identity; /* of the reader: REPLY, END */
    size_t client;     /* for kvb_republisher_sent() */
};

/* The next live batch; does one slice of work, of some 0.3 ms. */
void kvb_republisher_live(
    struct kvb_republisher *republisher, const struct kvb_republish_time *time,
    struct kvb_republish_action *out_action);

/* The next message of an answer; kvb_republisher_sent() must follow. */
void kvb_republisher_reply(
    struct kvb_republisher *republisher, uint64_t now_ns, struct kvb_republish_action *out_action);

enum kvb_republish_outcome {
    KVB_REPUBLISH_SENT,
    KVB_REPUBLISH_FULL, /* the reader's queue is full: tried again some ms later */
    KVB_REPUBLISH_GONE
};

void kvb_republisher_sent(
    struct kvb_republisher *republisher, size_t at, enum kvb_republish_outcome outcome,
    uint64_t now_ns);

/* True when there is work that waits neither for time nor for a reader. */
bool kvb_republisher_is_busy(const struct kvb_republisher *republisher, uint64_t now_ns);

/* ---- Numbers ---- */

/* True: numbers before *out_end should be reserved.  When all reserved numbers are used, no batch
 * is made until kvb_republisher_reserved(). */
bool kvb_republisher_wants_numbers(const struct kvb_republisher *republisher, uint64_t *out_end);
void kvb_republisher_reserved(struct kvb_republisher *republisher, uint64_t end);

/* The number of the next batch.  A process that ends normally stores it for the next process. */
uint64_t kvb_republisher_next_number(const struct kvb_republisher *republisher);

struct kvb_republish_counts {
    uint64_t clients;        /* answers under way; a gauge, like the next two */
    uint64_t kept;           /* batches in the ring */
    uint64_t snapshot_bytes; /* of answers under way */
    uint64_t batches;
    uint64_t bytes; /* of their payloads */
    uint64_t announcements;
    uint64_t announced_bytes;
    uint64_t requests;
    uint64_t snapshots;
    uint64_t replies;
    uint64_t refused; /* requests refused because there were too many readers */
    uint64_t dropped; /* answers to readers that are gone or take nothing */
    uint64_t lost;    /* batches that could not be written */
};

/* Borrowed. */
const struct kvb_republish_counts *kvb_republisher_count(const struct kvb_republisher *republisher);
