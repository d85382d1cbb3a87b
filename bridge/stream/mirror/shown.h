#pragma once

#include "core/buf.h"
#include "core/span.h"
#include "core/status.h"
#include "model/event_batch.h"
#include "stream/mirror/mirror.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Where a stream is republished: the tokens of the blocks that a mirror holds, and which of them
 * readers of engines have been shown.
 *
 *     entries of the mirror    | 0 | 1 | 2 | 3 | ...
 *     beside each              | parent, children, content, is it shown |
 *     tokens, of those whose content can be shown
 *
 * Readers hash tokens themselves and skip a block whose parent they do not know.  So
 *
 *     wanted = held on the device, its content can be shown, and it has no parent or its parent
 *              is shown
 *
 * Each call for changes makes `shown` equal to `wanted` for some more blocks, parents first, and
 * writes the difference as events: each block is stored once and removed once.  A block is removed
 * together with its parent, and is stored again when the parent is.  So readers that followed the
 * changes have exactly what a snapshot contains.
 *
 * While a snapshot is taken, no changes are taken: they gather in a list of entries, each entry at
 * most once, and `shown` stays as it is.  An entry that the mirror drops keeps its number until
 * readers have been told, and until nothing hangs below it.
 *
 * Only blocks of the main group are shown, the first of full attention that stored: others would
 * list its hashes twice.  Left out, with everything below them: blocks with a salt or multimodal
 * identifiers, without tokens, of another block size, keyed by something that no query contains;
 * and blocks for which there is no memory.
 *
 * Threads: the caller locks.
 * Memory:  28 bytes for each entry of the mirror, 4 for each token of a block that can be shown. */
struct kvb_shown;

enum { kvb_max_shown_loras = 1024, kvb_max_shown_event_blocks = 1 << 16 };

/* From here on the mirror keeps tokens of blocks with this many.  What it holds already has none
 * until kvb_shown_load() or a Stored brings them.  The mirror owns it.
 * KVB_TOO_LARGE  block_size is 0, or its tokens cannot be addressed
 * KVB_NO_MEMORY */
kvb_status kvb_mirror_show(struct kvb_mirror *mirror, uint32_t block_size);

/* NULL: nothing is republished.  Borrowed. */
struct kvb_shown *kvb_mirror_shown(const struct kvb_mirror *mirror);

/* While the list is hidden, readers are sent an empty one.  A list that was restored is hidden
 * until the engine has proven that it is right.  Looks at all entries. */
void kvb_shown_hide(struct kvb_shown *shown, bool is_hidden);

/* ---- For a checkpoint ---- */

/* Appends records of the tokens that are known.  The first call has *place 0; each call goes on
 * where the one before stopped, because max_bytes were written or max_looks entries were looked at;
 * *place is SIZE_MAX when there are no more.  The mirror may change between two calls: each record
 * is true by itself.  KVB_TOO_LARGE, KVB_NO_MEMORY of out */
kvb_status kvb_shown_save(
    const struct kvb_shown *shown, size_t max_bytes, size_t max_looks, size_t *place,
    struct kvb_buf *out);

/* The mirror was filled from a checkpoint. */
void kvb_shown_note_restored(struct kvb_shown *shown);

/* Takes records that were saved with the same block size, after the mirror was restored; those of
 * blocks that it does not have are dropped.
 * KVB_BAD_INPUT: the last record is not complete; those before it were taken */
kvb_status kvb_shown_load(struct kvb_shown *shown, kvb_span records);

/* ---- For readers ---- */

bool kvb_shown_has_changes(const struct kvb_shown *shown);

/* Appends events to `out` until they have max_blocks blocks, looking at max_looks entries at most.
 * KVB_TOO_LARGE, KVB_NO_MEMORY of out: some change is lost; readers need a snapshot. */
kvb_status kvb_shown_take_changes(
    struct kvb_shown *shown, size_t max_blocks, size_t max_looks, struct kvb_event_batch *out);

/* ---- A snapshot: all that is shown, parents first.  One at a time. ----
 *
 *     begin    step, step, ...    end       between them the mirror may change, but
 *                                           kvb_shown_take_changes() must not be called
 */
/* KVB_NO_MEMORY */
kvb_status kvb_shown_begin(struct kvb_shown *shown);
void kvb_shown_end(struct kvb_shown *shown);

/* Appends the next blocks, max_blocks at most, looking at max_looks entries at most.  *out_is_done:
 * there are no more.
 * KVB_CLOSED  all was cleared since the beginning
 * KVB_TOO_LARGE, KVB_NO_MEMORY of out */
kvb_status kvb_shown_step(
    struct kvb_shown *shown, size_t max_blocks, size_t max_looks, struct kvb_event_batch *out,
    bool *out_is_done);

struct kvb_shown_counts {
    uint64_t held;     /* blocks of the main group on the device; the first four are gauges */
    uint64_t shown;    /* of them, those that readers have */
    uint64_t bytes;    /* memory of tokens, and beside the entries */
    uint64_t gone;     /* entries that the mirror has dropped and readers still have, or had */
    uint64_t contents; /* counts up from here: records that a newer kvb_shown_save() may write and
                          an older one did not */
    uint64_t no_room;  /* tokens or names of adapters that found no room */
};

/* Borrowed. */
const struct kvb_shown_counts *kvb_shown_count(const struct kvb_shown *shown);

/* The engine's hashes come as signed numbers. */
bool kvb_shown_has_signed_hashes(const struct kvb_shown *shown);

/* Blocks that are held and not shown.  It includes blocks whose changes were not taken yet, and is
 * 0 while more removals than stores wait to be taken. */
uint64_t kvb_shown_left_out(const struct kvb_shown *shown);
