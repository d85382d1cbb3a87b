#include "core/array.h"
#include "stream/mirror/inside.h"

/* Lists of doubtful entries: those that the engine may or may not still hold, because the number of
 * their copies is unknown.  At most 1/8 of the entries may be doubtful (at least 64); beyond that
 * the oldest ones count as removed. */

enum { doubtful_share = 8, doubtful_floor = 64 };

/* ---- Links, in a table by entry ---- */

static uint32_t doubt_place(const struct kvb_mirror *mirror, uint32_t id)
{
    const uint32_t hash = kvb_mirror_hash(mirror, id, 0);
    size_t at = kvb_id_table_start(&mirror->by_doubtful, hash);
    uint32_t place = kvb_id_table_next(&mirror->by_doubtful, hash, &at);

    while (mirror->links[place].id != id) { /* terminates, because the entry has a link */
        place = kvb_id_table_next(&mirror->by_doubtful, hash, &at);
    }
    return place;
}

struct doubtful_link *kvb_mirror_link(const struct kvb_mirror *mirror, uint32_t id)
{
    return &mirror->links[doubt_place(mirror, id)];
}

kvb_status kvb_mirror_link_new(struct kvb_mirror *mirror, struct doubtful_link link)
{
    KVB_TRY(kvb_array_reserve(
        &mirror->links, &mirror->link_capacity, mirror->link_count + 1, sizeof *mirror->links,
        mirror->max_blocks));
    KVB_TRY(kvb_id_table_put(
        &mirror->by_doubtful, kvb_mirror_hash(mirror, link.id, 0), (uint32_t)mirror->link_count));
    mirror->links[mirror->link_count++] = link;
    return KVB_OK;
}

/* The last link moves into the place of the removed one. */
void kvb_mirror_link_drop(struct kvb_mirror *mirror, uint32_t id)
{
    const uint32_t place = doubt_place(mirror, id);
    const uint32_t last = (uint32_t)--mirror->link_count;
    const uint32_t moved = mirror->links[last].id;

    kvb_id_table_remove(&mirror->by_doubtful, kvb_mirror_hash(mirror, id, 0), place);
    if (place != last) {
        kvb_id_table_remove(&mirror->by_doubtful, kvb_mirror_hash(mirror, moved, 0), last);
        const kvb_status status =
            kvb_id_table_put(&mirror->by_doubtful, kvb_mirror_hash(mirror, moved, 0), place);
        assert(status == KVB_OK); /* two cells of the table have just been freed */
        (void)status;
        mirror->links[place] = mirror->links[last];
    }
}

/* ---- The lists ---- */

enum doubt_kind
kvb_mirror_doubt_kind(const struct kvb_mirror *mirror, const struct mirror_entry *entry)
{
    return mirror->groups.window_mask >> kvb_mirror_context(mirror, entry)->group & 1 ? doubt_window
                                                                                      : doubt_full;
}

void kvb_mirror_unlink(struct kvb_mirror *mirror, uint32_t id)
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
    kvb_mirror_link_drop(mirror, id);
    kvb_mirror_mark(mirror, id);
    list->count--;
    mirror->counts.doubtful--;
}

static kvb_status link_newest(struct kvb_mirror *mirror, uint32_t id)
{
    const enum doubt_kind kind = kvb_mirror_doubt_kind(mirror, &mirror->entries[id]);
    struct doubtful_list *list = &mirror->doubtful[kind];
    const uint32_t older = list->newest;

    KVB_TRY(kvb_mirror_link_new(
        mirror, (struct doubtful_link){ .id = id, .older = older, .newer = KVB_NO_ID }));
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
    kvb_mirror_unlink(mirror, id);
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
    mirror->counts.forgotten_doubtful++;
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
        kvb_mirror_unlink(mirror, id);
    } else {
        note_doubt(mirror, id, is_doubtful & ~was_doubtful, !was_doubtful);
    }
    return KVB_OK;
}

/* ---- Dropping an entry ---- */

void kvb_mirror_let_go(struct kvb_mirror *mirror, uint32_t id)
{
    if (kvb_mirror_is_doubtful(&mirror->entries[id])) {
        kvb_mirror_unlink(mirror, id);
    }
    kvb_mirror_drop(mirror, id, mirror->shown && kvb_shown_keeps(mirror->shown, id));
}
