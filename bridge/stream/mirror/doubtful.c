#include "stream/mirror/inside.h"

/* Lists of doubtful entries: those that the engine may or may not still hold, because the number of
 * their copies is unknown.  At most 1/8 of the entries may be doubtful (at least 64); beyond that
 * the oldest ones count as removed. */

enum { doubtful_share = 8, doubtful_floor = 64 };

struct doubtful_link *kvb_mirror_link(const struct kvb_mirror *mirror, uint32_t id)
{
    return kvb_side_table_find(mirror, &mirror->links, id);
}

enum doubt_kind
kvb_mirror_doubt_kind(const struct kvb_mirror *mirror, const struct mirror_entry *entry)
{
    return mirror->groups.window_mask >> kvb_mirror_context(mirror, entry)->group & 1 ? doubt_window
                                                                                      : doubt_full;
}

/* Removes the entry from its list, and drops its link. */
static void unlink_doubt(struct kvb_mirror *mirror, uint32_t id)
{
    const enum doubt_kind kind = kvb_mirror_doubt_kind(mirror, &mirror->entries[id]);
    struct doubtful_list *list = &mirror->doubtful[kind];
    const struct doubtful_link link = *kvb_mirror_link(mirror, id);

    if (link.older != KVB_NO_ID) {
        kvb_mirror_link(mirror, link.older)->newer = link.newer;
        kvb_mirror_mark(mirror, link.older);
    } else {
        list->oldest = link.newer;
    }
    if (link.newer != KVB_NO_ID) {
        kvb_mirror_link(mirror, link.newer)->older = link.older;
        kvb_mirror_mark(mirror, link.newer);
    } else {
        list->newest = link.older;
    }
    kvb_side_table_drop(mirror, &mirror->links, id);
    kvb_mirror_mark(mirror, id);
    list->count--;
    mirror->counts.doubtful--;
}

static kvb_status link_newest(struct kvb_mirror *mirror, uint32_t id)
{
    const enum doubt_kind kind = kvb_mirror_doubt_kind(mirror, &mirror->entries[id]);
    struct doubtful_list *list = &mirror->doubtful[kind];
    const uint32_t older = list->newest;
    const struct doubtful_link link = { .id = id, .older = older, .newer = KVB_NO_ID };

    KVB_TRY(kvb_side_table_add(mirror, &mirror->links, &link));
    if (older != KVB_NO_ID) {
        kvb_mirror_link(mirror, older)->newer = id;
        kvb_mirror_mark(mirror, older);
    } else {
        list->oldest = id;
    }
    list->newest = id;
    list->count++;
    mirror->counts.doubtful++;
    return KVB_OK;
}

/* Removes the oldest doubtful entry from the tiers in which it is doubtful.  It stays in
 * counts.doubtful, which routers see, because the engine may still hold it. */
static void forget_oldest_doubt(struct kvb_mirror *mirror, enum doubt_kind kind)
{
    const uint32_t id = mirror->doubtful[kind].oldest;
    struct mirror_entry *entry = &mirror->entries[id];

    /* No tier of it is published, so nothing needs to be said. */
    unlink_doubt(mirror, id);
    for (size_t tier = 0; tier < KVB_TIER_COUNT; tier++) {
        if (!kvb_mirror_holds(entry, (enum kvb_tier)tier)) {
            const kvb_status status =
                kvb_mirror_write_copies(mirror, id, (enum kvb_tier)tier, (struct copies){ 0, 0 });
            assert(status == KVB_OK); /* lower counts need no memory */
            (void)status;
        }
    }
    mirror->forgot_full |= kind == doubt_full;
    mirror->counts.doubtful++; /* stays counted until the next clear */
    if (!kvb_mirror_has_copies(entry)) {
        kvb_mirror_let_go(mirror, id);
    }
}

/* The entry became doubtful in these tiers.  is_new: it was not doubtful in any before. */
static void note_doubt(struct kvb_mirror *mirror, uint32_t id, uint32_t tiers, bool is_new)
{
    const enum doubt_kind kind = kvb_mirror_doubt_kind(mirror, &mirror->entries[id]);
    const struct doubtful_list *list = &mirror->doubtful[kind];
    const size_t share = mirror->entry_count / doubtful_share;
    const size_t max = share > doubtful_floor ? share : doubtful_floor;

    mirror->doubts += kind == doubt_full && (tiers >> KVB_TIER_DEVICE & 1);
    if (is_new && list->count > max && list->oldest != id) {
        forget_oldest_doubt(mirror, kind);
    }
}

kvb_status kvb_mirror_set_copies(
    struct kvb_mirror *mirror, uint32_t id, enum kvb_tier tier, struct copies copies)
{
    const struct mirror_entry *entry = &mirror->entries[id];
    struct kvb_mirror_counts *counts = &mirror->counts;
    const uint32_t bit = 1U << tier;
    const bool is_doubtful_here = copies.max > 0 && copies.min == 0;
    const uint32_t was_doubtful = kvb_mirror_doubtful_tiers(entry);
    const uint32_t is_doubtful = (was_doubtful & ~bit) | (is_doubtful_here ? bit : 0);
    const uint32_t min_before = kvb_mirror_copies(mirror, id, tier).min;

    if (is_doubtful && !was_doubtful) { /* min is 0 here, so the write below cannot fail */
        KVB_TRY(link_newest(mirror, id));
    }
    KVB_TRY(kvb_mirror_write_copies(mirror, id, tier, copies));
    if (tier == KVB_TIER_DEVICE) {
        counts->proven_copies += copies.min;
        counts->proven_copies -= min_before;
        counts->max_proven =
            counts->proven_copies > counts->max_proven ? counts->proven_copies : counts->max_proven;
    }
    kvb_mirror_mark(mirror, id);
    /* The order of the list is that in which entries became doubtful, not in which tiers. */
    if (was_doubtful == is_doubtful) {
        return KVB_OK;
    }
    if (!is_doubtful) {
        unlink_doubt(mirror, id);
    } else {
        note_doubt(mirror, id, is_doubtful & ~was_doubtful, !was_doubtful);
    }
    return KVB_OK;
}

/* ---- Dropping an entry ---- */

void kvb_mirror_let_go(struct kvb_mirror *mirror, uint32_t id)
{
    if (kvb_mirror_is_doubtful(&mirror->entries[id])) {
        unlink_doubt(mirror, id);
    }
    kvb_mirror_drop(mirror, id, mirror->shown && kvb_shown_keeps(mirror->shown, id));
}
