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

/* The entry's extra copies; NULL also when they cannot count this tier. */
static struct extra_copies *
extra_copies_in(const struct kvb_mirror *mirror, uint32_t id, enum kvb_tier tier)
{
    const struct mirror_entry *entry = &mirror->entries[id];
    const bool may_count =
        entry->max[tier] == many_copies || (entry->max[tier] > 1 && kvb_mirror_holds(entry, tier));

    return may_count ? kvb_side_table_find(mirror, &mirror->extra_copies, id) : NULL;
}

struct copies
kvb_mirror_copies_aside(const struct kvb_mirror *mirror, uint32_t id, enum kvb_tier tier)
{
    const struct mirror_entry *entry = &mirror->entries[id];
    const struct extra_copies *extra = extra_copies_in(mirror, id, tier);
    struct copies copies = { .min = kvb_mirror_holds(entry, tier), .max = entry->max[tier] };

    if (extra && extra->min[tier] > 1) {
        copies.min = extra->min[tier];
    }
    if (extra && copies.max == many_copies) {
        copies.max = extra->max[tier];
    }
    return copies;
}

void kvb_mirror_forget_copies(struct kvb_mirror *mirror, uint32_t id)
{
    if (kvb_side_table_find(mirror, &mirror->extra_copies, id)) {
        kvb_side_table_drop(mirror, &mirror->extra_copies, id);
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
    struct extra_copies *extra = fits ? extra_copies_in(mirror, id, tier)
                                      : kvb_side_table_find(mirror, &mirror->extra_copies, id);
    uint32_t others = 0;

    if (!extra && fits) {
        return KVB_OK;
    }
    if (!extra) {
        const struct extra_copies none = { .id = id };
        KVB_TRY(kvb_side_table_add(mirror, &mirror->extra_copies, &none));
        extra = kvb_side_table_find(mirror, &mirror->extra_copies, id);
    }
    /* What the entry's own bytes can count is 0 here; a record that counts nothing goes. */
    extra->min[tier] = copies.min > 1 ? copies.min : 0;
    extra->max[tier] = copies.max >= many_copies ? copies.max : 0;
    for (size_t t = 0; t < KVB_TIER_COUNT; t++) {
        others |= extra->min[t] | extra->max[t];
    }
    if (others == 0) {
        kvb_side_table_drop(mirror, &mirror->extra_copies, id);
    }
    return KVB_OK;
}
