#pragma once

#include "core/status.h"
#include "model/router_batch.h"
#include "stream/mirror/mirror.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* One pass over what a mirror lists, a part at a time, while the mirror goes on changing.
 *
 *     begin    step, step, ... with kvb_mirror_apply() between them    is_done    end
 *
 *     who reads      lists    order                        a block without a listed parent
 *     ------------   ------   --------------------------   ------------------------------------
 *     announcement   all      KVB_PICTURE_PARENTS_FIRST    is shown
 *     refresh        device   KVB_PICTURE_FROM_ROOTS       is left out, with all below it
 *     sync           all      KVB_PICTURE_ANY              is shown
 *     republishing   shown    KVB_PICTURE_FROM_ROOTS       is left out, and about to be removed
 *
 * Each block that a step shows is listed at that moment, whatever has changed since the beginning.
 * A reader that applies all steps, and in their places all events that were published between
 * them, has in the end what is listed.
 *
 *   - KVB_PICTURE_ANY goes from entry to entry.  It remembers nothing but its place.
 *   - KVB_PICTURE_PARENTS_FIRST shows a block after its parent, if that is listed.
 *   - KVB_PICTURE_FROM_ROOTS is for readers that ignore a stored event with an unknown parent, as
 *     those of Dynamo do.  They have everything in the end, except blocks below a parent that is
 *     not held; no query finds those.  It takes one list.
 *
 * The window list is a set: its blocks have no parents, in any order.
 *
 * Threads: the caller locks.
 * Memory:  KVB_PICTURE_ANY: none.  Else 2 bits for each entry, and 4 bytes for each block of the
 *          current chain. */
enum kvb_picture_order { KVB_PICTURE_ANY, KVB_PICTURE_PARENTS_FIRST, KVB_PICTURE_FROM_ROOTS };

/* All lists of a mirror, as bits; and as one more what readers of engines have been shown
 * (stream/mirror/shown.h), which is read by kvb_shown_step(). */
enum {
    kvb_picture_all_lists = (1U << KVB_LIST_COUNT) - 1,
    kvb_picture_shown = 1U << KVB_LIST_COUNT
};

/* { .lists = ... } is a whole picture of KVB_PICTURE_ANY, which needs neither begin nor end and may
 * be copied.  The others are known to their mirror by their address. */
struct kvb_picture {
    enum kvb_picture_order order;
    unsigned lists; /* bit l: list l is still to be shown; the lowest one is being shown */
    size_t place;   /* the next entry to be looked at */

    /* From here on: empty for KVB_PICTURE_ANY.  See picture.c. */
    struct kvb_mirror *mirror; /* borrowed; NULL: the mirror does not know this picture */
    struct kvb_picture *next;  /* of the same mirror; borrowed */
    uint64_t *sent; /* owned; bit per entry: whoever read since the beginning has its block */
    uint64_t *seen; /* owned; bit per entry: it was on a path of this round */
    size_t words;   /* the length of `sent`, and of `seen` */
    uint32_t *path; /* owned: entries, each the child of the next one */
    size_t path_count, path_capacity;
    bool is_path_whole; /* its last entry may be sent */
    bool is_circle;     /* ... although its parent was not: the parents form a circle */
    unsigned rounds;
    bool has_sent;   /* a block was sent in this round */
    bool is_changed; /* a stored event of this list was published in this round */
    bool is_lost;    /* out of memory: `sent` is not complete */
};

/* Begins a picture of KVB_PICTURE_PARENTS_FIRST or KVB_PICTURE_FROM_ROOTS, which must be {0} or
 * ended. It must end before the mirror is freed.  KVB_NO_MEMORY. */
kvb_status kvb_picture_begin(
    struct kvb_picture *picture, struct kvb_mirror *mirror, enum kvb_picture_order order,
    unsigned lists);

/* {0} is fine. */
void kvb_picture_end(struct kvb_picture *picture);

/* What one step may do. */
struct kvb_picture_part {
    size_t max_blocks; /* of the step; >= 1 */
    size_t max_looks;  /* entries visited, about 0.1 us each; SIZE_MAX: as many as needed */
    const struct kvb_bucket_set *buckets; /* only blocks of these; NULL: all.  With
                                           * KVB_PICTURE_ANY alone */
};

/* Appends the next blocks to `out`, as stored events.  Every event that kvb_mirror_apply() made
 * between two steps must be published between them.  KVB_TOO_LARGE, KVB_NO_MEMORY: the caller
 * discards `out` and ends the picture. */
kvb_status kvb_picture_step(
    struct kvb_picture *picture, const struct kvb_mirror *mirror,
    const struct kvb_picture_part *part, struct kvb_router_batch *out, bool *out_is_done);
