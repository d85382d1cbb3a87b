#include "core/array.h"
#include "stream/mirror/inside.h"

/* The number of copies of an entry. */

/* Bit t: the entry has or may have copies in tier t. */
static uint32_t tiers_with_copies(const struct mirror_entry *entry)
{
    uint32_t tiers = 0;

#pragma GCC unroll 4
    for (size_t tier = 0; tier < KVB_TIER_COUNT; tier++) {
        tiers |= (uint32_t)(entry->max[tier] > 0) << tier;
    }
    return tiers;
}

uint32_t kvb_mirror_doubtful_tiers(const struct mirror_entry *entry)
{
    return tiers_with_copies(entry) & ~(uint32_t)entry->min;
}

bool kvb_mirror_is_doubtful(const struct mirror_entry *entry)
{
    return kvb_mirror_doubtful_tiers(entry) != 0;
}

bool kvb_mirror_has_copies(const struct mirror_entry *entry)
{
    return tiers_with_copies(entry) != 0;
}

/* ---- Extra copies, which the entry's own bytes do not count ---- */

/* The index of the entry's extra copies; KVB_NO_ID: it has none. */
static uint32_t extra_copies_of(const struct kvb_mirror *mirror, uint32_t id)
{
    const uint32_t hash = kvb_mirror_hash(mirror, id, 0);
    size_t at = kvb_id_table_start(&mirror->by_extra_copies, hash);
    uint32_t place = KVB_NO_ID;

    do {
        place = kvb_id_table_next(&mirror->by_extra_copies, hash, &at);
    } while (place != KVB_NO_ID && mirror->extra_copies[place].id != id);
    return place;
}

/* The same, but KVB_NO_ID also when they cannot count this tier. */
static uint32_t extra_copies_in(const struct kvb_mirror *mirror, uint32_t id, enum kvb_tier tier)
{
    const struct mirror_entry *entry = &mirror->entries[id];
    const bool may_count =
        entry->max[tier] == many_copies || (entry->max[tier] > 1 && kvb_mirror_holds(entry, tier));

    return may_count ? extra_copies_of(mirror, id) : KVB_NO_ID;
}

struct copies
kvb_mirror_copies_aside(const struct kvb_mirror *mirror, uint32_t id, enum kvb_tier tier)
{
    const struct mirror_entry *entry = &mirror->entries[id];
    const uint32_t place = extra_copies_in(mirror, id, tier);
    struct copies copies = { .min = kvb_mirror_holds(entry, tier), .max = entry->max[tier] };

    if (place != KVB_NO_ID && mirror->extra_copies[place].min[tier] > 1) {
        copies.min = mirror->extra_copies[place].min[tier];
    }
    if (copies.max == many_copies) {
        copies.max = mirror->extra_copies[place].max[tier];
    }
    return copies;
}

static kvb_status new_extra_copies(struct kvb_mirror *mirror, uint32_t id, uint32_t *out_place)
{
    const uint32_t place = (uint32_t)mirror->extra_copies_count;

    KVB_TRY(kvb_array_reserve(
        &mirror->extra_copies, &mirror->extra_copies_capacity, mirror->extra_copies_count + 1,
        sizeof *mirror->extra_copies, mirror->max_blocks));
    KVB_TRY(kvb_id_table_put(&mirror->by_extra_copies, kvb_mirror_hash(mirror, id, 0), place));
    mirror->extra_copies[place] = (struct extra_copies){ .id = id };
    mirror->extra_copies_count++;
    *out_place = place;
    return KVB_OK;
}

/* The last element replaces the removed one. */
static void drop_extra_copies_at(struct kvb_mirror *mirror, uint32_t place)
{
    const uint32_t last = (uint32_t)--mirror->extra_copies_count;
    const uint32_t moved = mirror->extra_copies[last].id;

    kvb_id_table_remove(
        &mirror->by_extra_copies, kvb_mirror_hash(mirror, mirror->extra_copies[place].id, 0),
        place);
    if (place != last) {
        kvb_id_table_remove(&mirror->by_extra_copies, kvb_mirror_hash(mirror, moved, 0), last);
        const kvb_status status =
            kvb_id_table_put(&mirror->by_extra_copies, kvb_mirror_hash(mirror, moved, 0), place);
        assert(status == KVB_OK); /* two cells have just come free */
        (void)status;
        mirror->extra_copies[place] = mirror->extra_copies[last];
    }
}

void kvb_mirror_forget_copies(struct kvb_mirror *mirror, uint32_t id)
{
    const uint32_t place = mirror->extra_copies_count > 0 ? extra_copies_of(mirror, id) : KVB_NO_ID;

    if (place != KVB_NO_ID) {
        drop_extra_copies_at(mirror, place);
    }
    for (size_t tier = 0; tier < KVB_TIER_COUNT; tier++) {
        if (mirror->entries[id].max[tier] > 0) {
            kvb_entry_set_remove(&mirror->in_tier[tier], id);
        }
    }
}

kvb_status kvb_mirror_write_extra_copies(
    struct kvb_mirror *mirror, uint32_t id, enum kvb_tier tier, struct copies copies)
{
    const bool fits = kvb_mirror_fits_entry(copies);
    uint32_t place = fits ? extra_copies_in(mirror, id, tier) : extra_copies_of(mirror, id);
    uint32_t others = 0;

    if (place == KVB_NO_ID && fits) {
        return KVB_OK;
    }
    if (place == KVB_NO_ID) {
        KVB_TRY(new_extra_copies(mirror, id, &place));
    }
    /* What the entry's own bytes can count is 0 here; a record that counts nothing goes. */
    struct extra_copies *extra_copies = &mirror->extra_copies[place];
    extra_copies->min[tier] = copies.min > 1 ? copies.min : 0;
    extra_copies->max[tier] = copies.max >= many_copies ? copies.max : 0;
    for (size_t t = 0; t < KVB_TIER_COUNT; t++) {
        others |= extra_copies->min[t] | extra_copies->max[t];
    }
    if (others == 0) {
        drop_extra_copies_at(mirror, place);
    }
    return KVB_OK;
}
