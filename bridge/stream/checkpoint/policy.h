#pragma once

#include "core/buf.h"
#include "core/status.h"
#include "model/stream.h"
#include "stream/checkpoint/checkpoint.h"
#include "stream/stream.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Decides when a stream's checkpoint is made, and whether the one on the disk may still be
 * restored.
 *
 *                       made    written                 failed    void
 *     is on disk        -       yes, if it was not      -         no
 *                               void meanwhile
 *     is being written  yes     no                      no        no
 *
 * A restored stream continues in its epoch.  The next process publishes again what this process
 * publishes after the checkpoint.  It uses the same event ids, if only batches made the events.  So
 * a checkpoint becomes void before anything of another epoch is published, and before a list is
 * republished.
 *
 * A process makes one checkpoint at a time, a part in each turn.  It is written while the streams
 * continue:
 *
 *     IDLE --- due, and changed ---> MAKING --- last part ---> STORING --- outcome ---> IDLE
 *       ^                              |
 *       +-- the stream was cleared ----+   again in a second
 *
 * Pure: no I/O, no clock.  The caller removes void checkpoints and reports outcomes.
 * Threads: the caller locks. */

/* The checkpoint policy of one stream.  {0} at first. */
struct kvb_checkpoint_policy {
    bool is_on_disk;         /* one that may be restored */
    bool is_being_written;   /* a newer one */
    uint64_t next_ns;        /* the next one is not made before this time */
    uint64_t seq;            /* newest batch in the latest checkpoint */
    bool has_base;           /* kvb_stream_has_base() at that checkpoint */
    kvb_epoch epoch_on_disk; /* of the one that is on the disk */
    kvb_epoch epoch_written; /* of the one that is being written */
};

/* Call this when the stream was restored from the checkpoint on the disk. */
void kvb_checkpoint_restored(struct kvb_checkpoint_policy *policy, const struct kvb_stream *stream);

/* Call this before publishing events that no batch made.  True: the checkpoint is void, and the
 * caller removes it before it publishes. */
bool kvb_checkpoint_becomes_void(struct kvb_checkpoint_policy *policy);

/* Call this before publishing anything of this epoch.  True: as above. */
bool kvb_checkpoint_enters_epoch(struct kvb_checkpoint_policy *policy, const kvb_epoch *epoch);

/* ---- Making ---- */

enum kvb_checkpoint_stage { KVB_CHECKPOINT_IDLE, KVB_CHECKPOINT_MAKING, KVB_CHECKPOINT_STORING };

/* Makes the checkpoints of one process.  {0} at first. */
struct kvb_checkpoint_maker {
    enum kvb_checkpoint_stage stage;
    struct kvb_checkpoint_save save;
    struct kvb_checkpoint_policy *policy; /* of the stream being saved; NULL: the stream has left */
    bool is_first_part;
};

/* Its time has come, something has changed, and there is something to be saved. */
bool kvb_checkpoint_is_due(
    const struct kvb_checkpoint_policy *policy, const struct kvb_stream *stream, uint64_t now_ns);

/* Begins a checkpoint.  The maker must be IDLE.
 * KVB_NOT_FOUND  it is not due
 * KVB_NO_MEMORY */
kvb_status kvb_checkpoint_begin(
    struct kvb_checkpoint_maker *maker, struct kvb_checkpoint_policy *policy,
    struct kvb_stream *stream, uint64_t now_ns, uint64_t period_ns);

struct kvb_checkpoint_progress {
    bool is_first;
    bool is_last; /* the checkpoint is complete */
};

/* Appends the next part, see kvb_checkpoint_save_step().  After an error the checkpoint is given
 * up, and the next one is due in a second. */
kvb_status kvb_checkpoint_step(
    struct kvb_checkpoint_maker *maker, size_t max_items, struct kvb_buf *out, uint64_t now_ns,
    struct kvb_checkpoint_progress *out_progress);

/* Reports the outcome of writing: KVB_OK, KVB_CLOSED (it became void), or another error. */
void kvb_checkpoint_written(struct kvb_checkpoint_maker *maker, kvb_status outcome);

/* Gives up the checkpoint that is being made, for example because the process ends. */
void kvb_checkpoint_give_up(struct kvb_checkpoint_maker *maker, uint64_t now_ns);

/* Makes the stream's next checkpoint due at once, because the process ends. */
void kvb_checkpoint_hurry(struct kvb_checkpoint_policy *policy, uint64_t now_ns);

/* Call this before the stream is removed. */
void kvb_checkpoint_forget(
    struct kvb_checkpoint_maker *maker, const struct kvb_checkpoint_policy *policy);
