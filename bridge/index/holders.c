#include "core/array.h"
#include "index/inside.h"

#include <stdlib.h>

static const size_t max_noted = (size_t)1 << 31;

void kvb_prefix_holders_close(struct kvb_prefix_index *index)
{
    for (uint32_t h = 0; h < index->holder_end; h++) {
        free(index->holders[h].extents);
    }
    free(index->holders);
    free(index->slot_of);
}

size_t kvb_prefix_holders_bytes(const struct kvb_prefix_index *index)
{
    size_t bytes = index->holder_capacity * sizeof *index->holders +
                   index->slot_of_capacity * sizeof *index->slot_of;

    for (uint32_t h = 0; h < index->holder_end; h++) {
        bytes += index->holders[h].extent_capacity * sizeof *index->holders[h].extents;
    }
    return bytes;
}

/* ---- The extents of a holder ----
 *
 * An extent is appended to the list when the holder first holds a node in it.  It stays in the list
 * when the holder holds nothing in it any more.  So the list collects duplicates and stale extents.
 * A pass of incremental compaction removes them, a few with each append.  A pass is due when the
 * list is twice as long as after the last pass:
 *
 *     extents  |= kept =|... gap ...|-- to be checked --|
 *              0       kept       checked          extent_count
 *
 * Each pass has its own number and writes it into the extents that it keeps.  An extent that has
 * the number already is a duplicate.  An extent has room for one number, and different holders have
 * most extents in common.  If two passes were active, each would overwrite the numbers of the other
 * and miss duplicates.  So one pass is active at a time, and each append of any holder advances it.
 *
 * Cost: each append checks 2 to 4 extents, whatever the length of the lists.  A pass over n extents
 * is due after some n / 2 appends, and done n / 4 appends later. */

enum {
    checked_a_note = 4,
    shortest_checked = 64,
    checked_ahead = 8, /* how far ahead extents are prefetched */
};

static bool holds_in(const struct kvb_prefix_index *index, uint32_t holder, uint32_t extent)
{
    const struct prefix_extent *here = kvb_prefix_extent(index, extent);
    kvb_set_id last = 0;

    for (uint32_t i = 0; i < here->len; i++) {
        if (here->sets[i] != last && kvb_set_has(&index->sets, here->sets[i], holder)) {
            return true;
        }
        last = here->sets[i];
    }
    return false;
}

static void begin_pass(struct kvb_prefix_index *index, struct prefix_holder *holder)
{
    holder->pass = ++index->pass_count;
    holder->kept = holder->checked = 0;
}

static bool is_in_pass(const struct prefix_holder *holder)
{
    return holder->pass != 0;
}

static void end_pass(struct prefix_holder *holder)
{
    holder->extent_count = holder->kept_before = holder->kept;
    holder->pass = 0;
}

static void check_one(struct kvb_prefix_index *index, uint32_t number)
{
    struct prefix_holder *holder = &index->holders[number];
    const size_t at = holder->checked++;
    struct prefix_extent *extent = kvb_prefix_extent(index, holder->extents[at]);

    if (at + checked_ahead < holder->extent_count) {
        const struct prefix_extent *soon =
            kvb_prefix_extent(index, holder->extents[at + checked_ahead]);
        __builtin_prefetch(soon);
        __builtin_prefetch(soon->sets);
    }
    /* One that has the pass's number was kept before: this is its duplicate. */
    if (extent->pass != holder->pass && holds_in(index, number, holder->extents[at])) {
        extent->pass = holder->pass;
        holder->extents[holder->kept++] = holder->extents[at];
    }
}

/* Checks at most `max` extents of the holder's pass.  Ends the pass when all are checked. */
static void check_some(struct kvb_prefix_index *index, uint32_t number, size_t max)
{
    struct prefix_holder *holder = &index->holders[number];

    while (max-- > 0 && holder->checked < holder->extent_count) {
        check_one(index, number);
    }
    if (holder->checked == holder->extent_count) {
        end_pass(holder);
        kvb_prefix_pass_leave(index, number);
    }
}

static bool is_due(const struct prefix_holder *holder)
{
    return holder->extent_count >= 2 * holder->kept_before + shortest_checked;
}

/* Begins the pass that is due for this holder, or advances another holder's pass. */
static void pass_on(struct kvb_prefix_index *index, uint32_t number)
{
    struct prefix_holder *holder = &index->holders[number];

    if (index->passing == 0 && is_due(holder)) {
        begin_pass(index, holder);
        index->passing = number + 1;
    }
    if (index->passing != 0) {
        check_some(index, index->passing - 1, checked_a_note);
    }
}

void kvb_prefix_pass_leave(struct kvb_prefix_index *index, uint32_t number)
{
    if (index->passing == number + 1) {
        index->passing = 0;
    }
}

/* Does a whole pass at once.  An active pass of another holder may miss duplicates because of it.
 * The next pass of that holder finds them. */
void kvb_prefix_tidy_extents(struct kvb_prefix_index *index, uint32_t number)
{
    struct prefix_holder *holder = &index->holders[number];

    if (is_in_pass(holder)) {
        check_some(index, number, SIZE_MAX);
    }
    begin_pass(index, holder);
    check_some(index, number, SIZE_MAX);
}

kvb_status kvb_prefix_note_extent(struct kvb_prefix_index *index, uint32_t number, uint32_t extent)
{
    struct prefix_holder *holder = &index->holders[number];

    /* Each append pays for a part of a pass, whosever it is, so that no append pays for a whole. */
    pass_on(index, number);
    if (holder->extent_count == holder->extent_capacity) {
        KVB_TRY(kvb_array_reserve(
            &holder->extents, &holder->extent_capacity, holder->extent_count + 1,
            sizeof *holder->extents, max_noted));
    }
    holder->extents[holder->extent_count++] = extent;
    return KVB_OK;
}

bool kvb_prefix_last_extent(struct prefix_holder *holder, uint32_t *out_extent)
{
    if (is_in_pass(holder) && holder->checked == holder->extent_count) {
        end_pass(holder); /* leaves out the gap */
    }
    if (holder->extent_count == 0) {
        return false;
    }
    *out_extent = holder->extents[holder->extent_count - 1];
    return true;
}
