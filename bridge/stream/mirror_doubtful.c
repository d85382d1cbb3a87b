#include "core/array.h"
#include "stream/mirror_entry.h"

/* How many copies an entry has, and the list of those of which it is not known. */

enum { doubtful_share = 8, doubtful_floor = 64 };

/* Bit t: there may be some in tier t. */
static uint32_t tiers_with_copies(const struct mirror_entry *entry)
{
    uint32_t tiers = 0;

#pragma GCC unroll 4
    for (size_t tier = 0; tier < KVB_TIER_COUNT; tier++) {
        tiers |= (uint32_t)(entry->most[tier] > 0) << tier;
    }
    return tiers;
}

/* The same: it is not known. */
static uint32_t doubtful_tiers(const struct mirror_entry *entry)
{
    return tiers_with_copies(entry) & ~(uint32_t)entry->least;
}

bool kvb_mirror_is_doubtful(const struct mirror_entry *entry)
{
    return doubtful_tiers(entry) != 0;
}

bool kvb_mirror_has_copies(const struct mirror_entry *entry)
{
    return tiers_with_copies(entry) != 0;
}

/* ---- Surplus: certain copies, where there are two and more ---- */

/* KVB_NO_ID: the entry has none. */
static uint32_t surplus_of(const struct kvb_mirror *mirror, uint32_t id)
{
    const uint32_t hash = kvb_id_hash(id);
    size_t at = kvb_id_table_start(&mirror->by_surplus, hash);
    uint32_t place = KVB_NO_ID;

    do {
        place = kvb_id_table_next(&mirror->by_surplus, hash, &at);
    } while (place != KVB_NO_ID && mirror->surplus[place].id != id);
    return place;
}

/* The same, where it may count copies in this tier. */
static uint32_t surplus_in(const struct kvb_mirror *mirror, uint32_t id, enum kvb_tier tier)
{
    const struct mirror_entry *entry = &mirror->entries[id];

    return entry->most[tier] > 1 && kvb_mirror_holds(entry, tier) ? surplus_of(mirror, id)
                                                                  : KVB_NO_ID;
}

struct copies
kvb_mirror_copies_aside(const struct kvb_mirror *mirror, uint32_t id, enum kvb_tier tier)
{
    const struct mirror_entry *entry = &mirror->entries[id];
    const uint32_t place = surplus_in(mirror, id, tier);
    const bool has_more = place != KVB_NO_ID && mirror->surplus[place].least[tier] > 1;

    return (struct copies){ .least = has_more ? mirror->surplus[place].least[tier]
                                              : (uint8_t)kvb_mirror_holds(entry, tier),
                            .most = entry->most[tier] };
}

static kvb_status new_surplus(struct kvb_mirror *mirror, uint32_t id, uint32_t *out_place)
{
    const uint32_t place = (uint32_t)mirror->surplus_count;

    KVB_TRY(kvb_array_reserve(
        &mirror->surplus, &mirror->surplus_capacity, mirror->surplus_count + 1,
        sizeof *mirror->surplus, mirror->max_blocks));
    KVB_TRY(kvb_id_table_put(&mirror->by_surplus, kvb_id_hash(id), place));
    mirror->surplus[place] = (struct surplus){ .id = id };
    mirror->surplus_count++;
    *out_place = place;
    return KVB_OK;
}

/* The last one takes the place of the one that goes. */
static void drop_surplus_at(struct kvb_mirror *mirror, uint32_t place)
{
    const uint32_t last = (uint32_t)--mirror->surplus_count;
    const uint32_t moved = mirror->surplus[last].id;

    kvb_id_table_remove(&mirror->by_surplus, kvb_id_hash(mirror->surplus[place].id), place);
    if (place != last) {
        kvb_id_table_remove(&mirror->by_surplus, kvb_id_hash(moved), last);
        const kvb_status status = kvb_id_table_put(&mirror->by_surplus, kvb_id_hash(moved), place);
        assert(status == KVB_OK); /* two cells have just come free */
        (void)status;
        mirror->surplus[place] = mirror->surplus[last];
    }
}

void kvb_mirror_drop_surplus(struct kvb_mirror *mirror, uint32_t id)
{
    const uint32_t place = mirror->surplus_count > 0 ? surplus_of(mirror, id) : KVB_NO_ID;

    if (place != KVB_NO_ID) {
        drop_surplus_at(mirror, place);
    }
}

/* 0 and 1 are told by the entry's bit. */
static kvb_status
write_surplus(struct kvb_mirror *mirror, uint32_t id, enum kvb_tier tier, uint8_t least)
{
    uint32_t place = least > 1 ? surplus_of(mirror, id) : surplus_in(mirror, id, tier);
    uint8_t others = 0;

    if (place == KVB_NO_ID && least <= 1) {
        return KVB_OK;
    }
    if (place == KVB_NO_ID) {
        KVB_TRY(new_surplus(mirror, id, &place));
    }
    mirror->surplus[place].least[tier] = least > 1 ? least : 0;
    for (size_t t = 0; t < KVB_TIER_COUNT; t++) {
        others |= mirror->surplus[place].least[t];
    }
    if (others == 0) {
        drop_surplus_at(mirror, place);
    }
    return KVB_OK;
}

kvb_status kvb_mirror_write_copies(
    struct kvb_mirror *mirror, uint32_t id, enum kvb_tier tier, struct copies copies)
{
    struct mirror_entry *entry = &mirror->entries[id];
    const uint32_t bit = 1U << tier;

    if (copies.least > 1 || mirror->surplus_count > 0) {
        KVB_TRY(write_surplus(mirror, id, tier, copies.least));
    }
    const uint32_t least = copies.least ? entry->least | bit : entry->least & ~bit;
    entry->least = least & ((1U << KVB_TIER_COUNT) - 1);
    entry->most[tier] = copies.most;
    return KVB_OK;
}

/* ---- Links: found by their entry ---- */

static uint32_t place_of(const struct kvb_mirror *mirror, uint32_t id)
{
    const uint32_t hash = kvb_id_hash(id);
    size_t at = kvb_id_table_start(&mirror->by_doubtful, hash);
    uint32_t place = kvb_id_table_next(&mirror->by_doubtful, hash, &at);

    while (mirror->links[place].id != id) { /* ends: the entry has one */
        place = kvb_id_table_next(&mirror->by_doubtful, hash, &at);
    }
    return place;
}

struct doubtful_link *kvb_mirror_link(const struct kvb_mirror *mirror, uint32_t id)
{
    return &mirror->links[place_of(mirror, id)];
}

kvb_status kvb_mirror_link_new(struct kvb_mirror *mirror, struct doubtful_link link)
{
    KVB_TRY(kvb_array_reserve(
        &mirror->links, &mirror->link_capacity, mirror->link_count + 1, sizeof *mirror->links,
        mirror->max_blocks));
    KVB_TRY(
        kvb_id_table_put(&mirror->by_doubtful, kvb_id_hash(link.id), (uint32_t)mirror->link_count));
    mirror->links[mirror->link_count++] = link;
    return KVB_OK;
}

/* The last link takes the place of the one that goes. */
void kvb_mirror_link_drop(struct kvb_mirror *mirror, uint32_t id)
{
    const uint32_t place = place_of(mirror, id);
    const uint32_t last = (uint32_t)--mirror->link_count;
    const uint32_t moved = mirror->links[last].id;

    kvb_id_table_remove(&mirror->by_doubtful, kvb_id_hash(id), place);
    if (place != last) {
        kvb_id_table_remove(&mirror->by_doubtful, kvb_id_hash(moved), last);
        const kvb_status status = kvb_id_table_put(&mirror->by_doubtful, kvb_id_hash(moved), place);
        assert(status == KVB_OK); /* two cells have just come free */
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

/* A doubtful entry is taken as gone where it is doubtful.  It still counts as
 * doubtful for the router: it may be held. */
static void forget_oldest(struct kvb_mirror *mirror, enum doubt_kind kind)
{
    const uint32_t id = mirror->doubtful[kind].oldest;
    struct mirror_entry *entry = &mirror->entries[id];

    kvb_mirror_unlink(mirror, id);
    for (size_t tier = 0; tier < KVB_TIER_COUNT; tier++) {
        if (!kvb_mirror_holds(entry, (enum kvb_tier)tier)) {
            entry->most[tier] = 0;
        }
    }
    mirror->forgot_full |= kind == doubt_full;
    mirror->counts.doubtful++; /* stays in the sum until the next clear */
    mirror->counts.forgotten_doubtful++;
    if (!kvb_mirror_has_copies(entry)) {
        kvb_mirror_drop(mirror, id);
    }
}

static size_t most_doubtful(const struct kvb_mirror *mirror)
{
    const size_t share = mirror->entry_count / doubtful_share;
    return share > doubtful_floor ? share : doubtful_floor;
}

/* The entry came to be doubtful in these tiers; is_new: it was in none. */
static void note_doubt(struct kvb_mirror *mirror, uint32_t id, uint32_t tiers, bool is_new)
{
    const enum doubt_kind kind = kvb_mirror_doubt_kind(mirror, &mirror->entries[id]);
    const struct doubtful_list *list = &mirror->doubtful[kind];

    mirror->doubts += kind == doubt_full && (tiers >> KVB_TIER_DEVICE & 1);
    if (is_new && list->count > most_doubtful(mirror) && list->oldest != id) {
        forget_oldest(mirror, kind);
    }
}

kvb_status kvb_mirror_set_copies(
    struct kvb_mirror *mirror, uint32_t id, enum kvb_tier tier, struct copies copies)
{
    const struct mirror_entry *entry = &mirror->entries[id];
    const uint32_t bit = 1U << tier;
    const bool is_doubtful_here = copies.most > 0 && copies.least == 0;
    const uint32_t was_doubtful = doubtful_tiers(entry);
    const uint32_t is_doubtful = (was_doubtful & ~bit) | (is_doubtful_here ? bit : 0);
    const uint8_t least_before = kvb_mirror_copies(mirror, id, tier).least;

    if (is_doubtful && !was_doubtful) { /* none certain: what is written below cannot fail */
        KVB_TRY(link_newest(mirror, id));
    }
    KVB_TRY(kvb_mirror_write_copies(mirror, id, tier, copies));
    if (tier == KVB_TIER_DEVICE) {
        mirror->counts.proven_copies += copies.least;
        mirror->counts.proven_copies -= least_before;
    }
    kvb_mirror_mark(mirror, id);
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
