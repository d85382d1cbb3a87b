#pragma once

#include "core/buf.h"
#include "core/status.h"
#include "stream/advertised_names.h"
#include "stream/stream.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* One stream as bytes, so that a restarted bridge goes on where the last one was.
 *
 *     head      which stream, of which configuration: a hash for each key
 *     names     what readers that do not know `cleared` may hold (where that is kept)
 *     entries   of the mirror; an entry that comes again replaces itself
 *     state     how far we are, fingerprints, epoch, newest event id, sums
 *
 *     section   kind format count bytes u32 | payload | XXH3-128 of all that, whose
 *               seed is the low half of the section's before: none can be cut, missing,
 *               twice or in another place
 *
 * A save takes many steps, between which the stream goes on: the last step writes what
 * changed since it was written first, and the state; what was saved is the stream at
 * that moment, between two batches.
 *
 * The next process continues in the same epoch.  Only batches make events, and the same
 * batches make the same ids, so an event that is published twice is published identically.
 * Therefore a checkpoint must be made void before events are published that no batch made:
 * another epoch, or the whole list again.
 *
 * Until the engine has proven the two newest batches, what was restored is DOWN(connecting)
 * or SYNCING: another incarnation of the engine clears it like any other list.
 *
 * Pure: no I/O.  Threads: the caller locks. */
enum { kvb_checkpoint_format = 6, kvb_checkpoint_step_items = 16384 };

/* ---- Saving ---- */

/* In place; {0} is one that was ended. */
struct kvb_checkpoint_save {
    struct kvb_stream *stream; /* borrowed; NULL: not begun */
    const struct kvb_advertised_names
        *advertised; /* borrowed, or NULL; must forget nothing meanwhile */
    size_t next_name;
    size_t place;
    uint64_t chain; /* the seed of the next section's hash */
};

/* KVB_NOT_FOUND  nothing was applied yet, nothing could prove it, or a batch is half applied:
 *                there is nothing to save
 * KVB_NO_MEMORY */
kvb_status kvb_checkpoint_save_begin(
    struct kvb_checkpoint_save *save, struct kvb_stream *stream,
    const struct kvb_advertised_names *advertised);

/* Appends the next sections: at most max_items (1 .. kvb_checkpoint_step_items) names and
 * entries.  *out_is_done: the checkpoint is whole, as the stream is now.
 * KVB_CLOSED     the stream was cleared meanwhile, or is within a batch: give it up, begin again
 * KVB_TOO_LARGE, KVB_NO_MEMORY of out */
kvb_status kvb_checkpoint_save_step(
    struct kvb_checkpoint_save *save, size_t max_items, struct kvb_buf *out, bool *out_is_done);

/* In any case.  {0} is fine. */
void kvb_checkpoint_save_end(struct kvb_checkpoint_save *save);

/* All of it at once. */
kvb_status kvb_stream_save(
    struct kvb_stream *stream, const struct kvb_advertised_names *advertised, struct kvb_buf *out);

/* ---- Restoring ---- */

struct kvb_checkpoint_source {
    /* Fills all the bytes.  KVB_NOT_FOUND: it ends before; KVB_IO. */
    kvb_status (*read)(void *context, void *to, size_t bytes);
    void *context;
};

/* Why a checkpoint is of no use. */
enum kvb_checkpoint_rejection {
    KVB_CHECKPOINT_UNREADABLE,   /* the medium fails */
    KVB_CHECKPOINT_TORN,         /* it ends too early, or goes on behind its end */
    KVB_CHECKPOINT_CORRUPT,      /* the bytes are not those that were written */
    KVB_CHECKPOINT_FORMAT,       /* of another version of the program */
    KVB_CHECKPOINT_FOREIGN,      /* of another stream or configuration */
    KVB_CHECKPOINT_INCONSISTENT, /* no stream can look like that */
    KVB_CHECKPOINT_TOO_LARGE,    /* more blocks than this stream may hold */
    KVB_CHECKPOINT_NO_MEMORY,
    KVB_CHECKPOINT_FLAW_COUNT
};

/* "torn", ...  Never NULL. */
const char *kvb_checkpoint_rejection_name(enum kvb_checkpoint_rejection cause);

struct kvb_checkpoint_refusal {
    enum kvb_checkpoint_rejection cause;
    /* Of a foreign one, the configuration's keys that differ: "workers.events, hashes"; of
     * any other, "". */
    struct kvb_detail keys;
};

/* Restores into a stream just made with the options of the saved one.  told may be NULL.
 * *out_needs_epoch: going on in the old epoch would not be proven right; open another.
 * KVB_BAD_INPUT  refused: *out_refusal says why, the stream is as it was; told may
 *                hold more than before, which does no harm */
kvb_status kvb_stream_restore(
    struct kvb_stream *stream, struct kvb_advertised_names *advertised,
    const struct kvb_checkpoint_source *source, bool *out_needs_epoch,
    struct kvb_checkpoint_refusal *out_refusal);
