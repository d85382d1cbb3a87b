#include "core/array.h"
#include "index/prefix_inside.h"

#include <stdlib.h>

static const size_t most_noted = (size_t)1 << 31;

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

static kvb_status draw_holder(struct kvb_prefix_index *index, uint32_t *out_holder)
{
    if (index->holder_free != 0) {
        *out_holder = index->holder_free - 1;
        index->holder_free = index->holders[*out_holder].next_free;
        return KVB_OK;
    }
    const size_t needed = (size_t)index->holder_end + 1;
    KVB_TRY(kvb_array_reserve(
        &index->slot_of, &index->slot_of_capacity, needed, sizeof *index->slot_of,
        kvb_most_holders));
    KVB_TRY(kvb_array_reserve(
        &index->holders, &index->holder_capacity, needed, sizeof *index->holders,
        kvb_most_holders));
    *out_holder = index->holder_end++;
    index->holders[*out_holder] = (struct prefix_holder){ 0 };
    return KVB_OK;
}

kvb_status kvb_prefix_holder_of(struct kvb_prefix_index *index, uint32_t slot)
{
    uint32_t holder = index->slots[slot].holder;

    if (holder != KVB_NONE) {
        return KVB_OK;
    }
    kvb_status status = draw_holder(index, &holder);
    if (status == KVB_TOO_LARGE && index->dying != 0) {
        (void)kvb_prefix_index_tend(index, SIZE_MAX); /* numbers come back */
        status = draw_holder(index, &holder);
    }
    KVB_TRY(status);
    struct prefix_holder *here = &index->holders[holder];
    index->slot_of[holder] = slot;
    here->extent_count = 0;
    here->kept_before = 0;
    here->pass = 0;
    index->live[holder / 64] |= UINT64_C(1) << (holder % 64);
    index->slots[slot].holder = holder;
    return KVB_OK;
}

/* ---- Where a holder holds something ----
 *
 * An extent is noted when the holder comes to it, and not struck out when it leaves, so the
 * list gathers repeats and extents that it has left.  A pass takes them out, a few with
 * each note, and is due when the list is twice as long as the last pass left it:
 *
 *     extents  |= kept =|... gap ...|-- to be checked --|
 *              0       kept       checked          extent_count
 *
 * Each pass has a number of its own, which it leaves in the extents that it keeps: one that
 * has it already is a repeat.  An extent has room for one number, and the holders' lists
 * have most extents in common: so one list is passed through at a time, and each note,
 * whoever's, goes on with it.  Else the passes would hide each other's repeats, and lists
 * would grow with each extent that is left and come to again.
 * Cost: 2 to 4 extents looked at for each one noted, whatever the lists' length: a pass of
 * n is due after some n / 2 notes, and done n / 4 notes later. */

enum {
    checked_a_note = 4,
    shortest_checked = 64,
    checked_ahead = 8, /* extents that are fetched beforehand */
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
    if (extent->pass != holder->pass && holds_in(index, number, holder->extents[at])) {
        extent->pass = holder->pass;
        holder->extents[holder->kept++] = holder->extents[at];
    }
}

/* Goes on with the holder's pass, at most so far; ends it when all is checked. */
static void check_some(struct kvb_prefix_index *index, uint32_t number, size_t most)
{
    struct prefix_holder *holder = &index->holders[number];

    while (most-- > 0 && holder->checked < holder->extent_count) {
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

/* Begins the pass that this holder is due for, or goes on with another's. */
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

/* All at once.  It hides repeats from a pass through another's list, which the next one
 * finds. */
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

    pass_on(index, number);
    if (holder->extent_count == holder->extent_capacity) {
        KVB_TRY(kvb_array_reserve(
            &holder->extents, &holder->extent_capacity, holder->extent_count + 1,
            sizeof *holder->extents, most_noted));
    }
    holder->extents[holder->extent_count++] = extent;
    return KVB_OK;
}

bool kvb_prefix_last_extent(struct prefix_holder *holder, uint32_t *out_extent)
{
    if (is_in_pass(holder) && holder->checked == holder->extent_count) {
        end_pass(holder); /* the gap is not looked at */
    }
    if (holder->extent_count == 0) {
        return false;
    }
    *out_extent = holder->extents[holder->extent_count - 1];
    return true;
}
