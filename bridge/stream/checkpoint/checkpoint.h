#pragma once

#include "core/buf.h"
#include "core/status.h"
#include "stream/stream.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A checkpoint: one stream as bytes.  A restarted bridge continues the stream from it.
 *
 *     head      identifies the stream and its configuration by a hash for each key
 *     entries   of the mirror; a later entry replaces an earlier one of the same block
 *     state     newest sequence number, fingerprints, epoch, newest event id, sums
 *     tokens    only where the stream is republished: of the blocks, as they were found after the
 *     end       state was written; each record is true by itself
 *
 *     section   kind format count bytes u32 | payload | XXH3-128 of all that
 *
 * The seed of a section's hash is the low half of the hash of the section before.  So a section
 * that is cut, missing, repeated or misplaced is detected.
 *
 * A fuzzy checkpoint: a save takes many steps, and the stream continues between them.  The step
 * that writes the state also writes the entries that have changed since they were written.  So the
 * checkpoint is the stream at the time of that step, between two batches.
 *
 * The next process continues in the same epoch.  Only batches make events, and the same batches
 * make the same ids.  So an event that is published twice is published identically.  Events that no
 * batch made are those of another epoch, or of publishing the whole list again.  A checkpoint must
 * become void before such events are published.
 *
 * A restored stream is DOWN(connecting) or SYNCING until the engine has proven the two newest
 * batches.  Another incarnation of the engine clears it like any other list.
 *
 * Pure: no I/O.  Threads: the caller locks. */
enum { kvb_checkpoint_format = 7, kvb_checkpoint_step_items = 16384 };

/* ---- Saving ---- */

/* A save in progress.  {0} is a save that has ended. */
struct kvb_checkpoint_save {
    struct kvb_stream *stream; /* borrowed; NULL: no save in progress */
    size_t place;
    uint64_t chain; /* the seed of the next section's hash */
    bool has_state; /* the checkpoint is of that moment; only tokens follow */
    size_t tokens_place;
};

/* Begins a save.
 * KVB_NOT_FOUND  there is nothing to save: no batch was applied yet, the engine has no replay that
 *                could prove the list, or a batch is half applied
 * KVB_NO_MEMORY */
kvb_status kvb_checkpoint_save_begin(struct kvb_checkpoint_save *save, struct kvb_stream *stream);

/* Appends the next sections, with at most max_items (1 .. kvb_checkpoint_step_items) entries.
 * *out_is_done: the checkpoint is complete, and equals the stream when save->has_state became true.
 * KVB_CLOSED     the stream was cleared since the save began, or a batch is half applied: end this
 *                save and begin another
 * KVB_TOO_LARGE, KVB_NO_MEMORY  no room in out */
kvb_status kvb_checkpoint_save_step(
    struct kvb_checkpoint_save *save, size_t max_items, struct kvb_buf *out, bool *out_is_done);

/* Ends a save, after success and failure.  {0} is fine. */
void kvb_checkpoint_save_end(struct kvb_checkpoint_save *save);

/* ---- Restoring ---- */

struct kvb_checkpoint_source {
    /* Reads exactly `bytes` bytes.  KVB_NOT_FOUND: fewer are left.  KVB_IO. */
    kvb_status (*read)(void *context, void *to, size_t bytes);
    void *context;
};

/* Why a checkpoint is refused. */
enum kvb_checkpoint_rejection {
    KVB_CHECKPOINT_UNREADABLE,   /* it cannot be read */
    KVB_CHECKPOINT_TORN,         /* it ends too early, or bytes follow its end */
    KVB_CHECKPOINT_CORRUPT,      /* the bytes differ from those that were written */
    KVB_CHECKPOINT_FORMAT,       /* of another version of the program */
    KVB_CHECKPOINT_FOREIGN,      /* of another stream or configuration */
    KVB_CHECKPOINT_INCONSISTENT, /* no stream can have this state */
    KVB_CHECKPOINT_TOO_LARGE,    /* more blocks than this stream may hold */
    KVB_CHECKPOINT_NO_MEMORY,
    KVB_CHECKPOINT_FLAW_COUNT
};

/* Returns the name of the cause, such as "torn".  Never NULL. */
const char *kvb_checkpoint_rejection_name(enum kvb_checkpoint_rejection cause);

struct kvb_checkpoint_refusal {
    enum kvb_checkpoint_rejection cause;
    /* For KVB_CHECKPOINT_FOREIGN, the keys of the configuration that differ: "workers.events,
     * hashes".  Else "". */
    struct kvb_detail keys;
};

/* Restores into a stream that was just made with the options of the saved one.  *out_needs_epoch:
 * the stream must not continue the old epoch; the caller opens another one. KVB_BAD_INPUT  the
 * checkpoint is refused.  *out_refusal says why.  The stream is as it was. */
kvb_status kvb_stream_restore(
    struct kvb_stream *stream, const struct kvb_checkpoint_source *source, bool *out_needs_epoch,
    struct kvb_checkpoint_refusal *out_refusal);
