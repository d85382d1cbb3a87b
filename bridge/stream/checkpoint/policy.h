#pragma once

#include "core/buf.h"
#include "core/status.h"
#include "model/stream.h"
#include "stream/advertised_names.h"
#include "stream/checkpoint/checkpoint.h"
#include "stream/stream.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* When a stream's checkpoint is made, and whether the one on the disk may still be restored.
 *
 *     state        made        written    failed     void
 *     ---------    ---------   --------   --------   ----
 *     NONE         WRITING     -          -          -
 *     WRITING      -           ON_DISK    NONE       NONE
 *     ON_DISK      REPLACING   -          -          NONE
 *     REPLACING    -           ON_DISK    ON_DISK    NONE
 *
 * A restored stream goes on in its epoch.  What is published between a checkpoint and the end
 * of the process is published again by the next one, with the same event ids, as long as
 * batches alone make it.  So a checkpoint is void before anything of another epoch is
 * published, and before a list is republished.
 *
 * One checkpoint of a process is made at a time, a part in each turn, and written while the
 * streams go on:
 *
 *     IDLE --- due, and changed ---> MAKING --- last part ---> STORING --- outcome ---> IDLE
 *       ^                              |
 *       +-- the stream was cleared ----+   again in a second
 *
 * Pure: no I/O, no clock; void and outcomes are the caller's to carry out and to tell.
 * Threads: the caller locks. */
enum kvb_checkpoint_state {
    KVB_CHECKPOINT_NONE,
    KVB_CHECKPOINT_WRITING, /* the first */
    KVB_CHECKPOINT_ON_DISK,
    KVB_CHECKPOINT_REPLACING, /* one is on the disk, a newer one is being written */
    KVB_CHECKPOINT_STATE_COUNT
};

/* Of one stream; {0} to begin with. */
struct kvb_checkpoint_policy {
    enum kvb_checkpoint_state state;
    bool waits_for_proof;    /* restored: the engine may have restarted meanwhile */
    uint64_t next_ns;        /* the next is not made before */
    uint64_t seq;            /* the newest batch in the last one that was made */
    bool has_base;           /* of the stream, then */
    kvb_epoch epoch_on_disk; /* ON_DISK, REPLACING */
    kvb_epoch epoch_written; /* WRITING, REPLACING */
};

/* The stream goes on from the checkpoint on the disk. */
void kvb_checkpoint_restored(struct kvb_checkpoint_policy *policy, const struct kvb_stream *stream);

/* True when the stream was not restored, or its engine has proven or disproven it: before that
 * nothing may be announced. */
bool kvb_checkpoint_is_proven(
    struct kvb_checkpoint_policy *policy, const struct kvb_stream *stream);

/* Events that no batch made are published next.  True: the checkpoint is void, and the caller
 * removes it before. */
bool kvb_checkpoint_becomes_void(struct kvb_checkpoint_policy *policy);

/* Something of this epoch is published next.  True: as above. */
bool kvb_checkpoint_enters_epoch(struct kvb_checkpoint_policy *policy, const kvb_epoch *epoch);

/* ---- Making ---- */

enum kvb_checkpoint_stage { KVB_CHECKPOINT_IDLE, KVB_CHECKPOINT_MAKING, KVB_CHECKPOINT_STORING };

/* Of one process; {0} to begin with. */
struct kvb_checkpoint_maker {
    enum kvb_checkpoint_stage stage;
    struct kvb_checkpoint_save save;
    struct kvb_checkpoint_policy *policy; /* whose it is; NULL: it has left meanwhile */
    bool is_first_part;
};

/* KVB_NOT_FOUND: it is not due, nothing has changed, or nothing can be saved yet.
 * KVB_NO_MEMORY.  Not unless the maker is IDLE. */
kvb_status kvb_checkpoint_begin(
    struct kvb_checkpoint_maker *maker, struct kvb_checkpoint_policy *policy,
    struct kvb_stream *stream, const struct kvb_advertised_names *advertised, uint64_t now_ns,
    uint64_t period_ns);

struct kvb_checkpoint_progress {
    bool is_first;
    bool is_last; /* the checkpoint is whole, as the stream is now */
};

/* Appends the next part, see kvb_checkpoint_save_step().  After an error it is given up, and
 * begun again in a second. */
kvb_status kvb_checkpoint_step(
    struct kvb_checkpoint_maker *maker, size_t max_items, struct kvb_buf *out, uint64_t now_ns,
    struct kvb_checkpoint_progress *out_progress);

/* What became of the one that was written: KVB_OK, KVB_CLOSED (void meanwhile), or why not. */
void kvb_checkpoint_written(struct kvb_checkpoint_maker *maker, kvb_status outcome);

/* The process ends: the one that is being made is given up, and ... */
void kvb_checkpoint_give_up(struct kvb_checkpoint_maker *maker, uint64_t now_ns);
/* ... one of each stream that has changed is due at once. */
void kvb_checkpoint_hurry(struct kvb_checkpoint_policy *policy, uint64_t now_ns);

/* The stream leaves. */
void kvb_checkpoint_forget(
    struct kvb_checkpoint_maker *maker, const struct kvb_checkpoint_policy *policy);

static inline bool kvb_checkpoint_is_making(
    const struct kvb_checkpoint_maker *maker, const struct kvb_checkpoint_policy *policy)
{
    return maker->stage == KVB_CHECKPOINT_MAKING && maker->policy == policy;
}
