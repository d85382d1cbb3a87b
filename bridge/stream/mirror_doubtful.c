#include "core/array.h"
#include "stream/mirror_entry.h"

/* How many copies an entry has, and the list of those of which it is not known. */

enum { doubtful_share = 8, doubtful_floor = 64 };

struct copies kvb_mirror_copies(const struct mirror_entry *entry, enum kvb_tier tier)
{
    return (struct copies){ .least = kvb_mirror_holds(entry, tier), .most = entry->most[tier] };
}

void kvb_mirror_write_copies(struct mirror_entry *entry, enum kvb_tier tier, struct copies copies)
{
    const uint32_t bit = 1U << tier;
    const uint32_t least = copies.least ? entry->least | bit : entry->least & ~bit;

    entry->least = least & ((1U << KVB_TIER_COUNT) - 1);
    entry->most[tier] = copies.most;
}

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

bool kvb_mirror_is_doubtful(const struct mirror_entry *entry)
{
    return tiers_with_copies(entry) & ~(uint32_t)entry->least;
}

bool kvb_mirror_has_copies(const struct mirror_entry *entry)
{
    return tiers_with_copies(entry) != 0;
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

/* ---- The list ---- */

void kvb_mirror_unlink(struct kvb_mirror *mirror, uint32_t id)
{
    const struct doubtful_link link = *kvb_mirror_link(mirror, id);

    if (link.older != KVB_NO_ID) {
        kvb_mirror_link(mirror, link.older)->newer = link.newer;
        kvb_mirror_mark(mirror, link.older);
    } else {
        mirror->oldest_doubtful = link.newer;
    }
    if (link.newer != KVB_NO_ID) {
        kvb_mirror_link(mirror, link.newer)->older = link.older;
        kvb_mirror_mark(mirror, link.newer);
    } else {
        mirror->newest_doubtful = link.older;
    }
    kvb_mirror_link_drop(mirror, id);
    kvb_mirror_mark(mirror, id);
    mirror->counts.doubtful--;
}

static kvb_status link_newest(struct kvb_mirror *mirror, uint32_t id)
{
    const uint32_t older = mirror->newest_doubtful;

    KVB_TRY(kvb_mirror_link_new(
        mirror, (struct doubtful_link){ .id = id, .older = older, .newer = KVB_NO_ID }));
    if (older != KVB_NO_ID) {
        kvb_mirror_link(mirror, older)->newer = id;
        kvb_mirror_mark(mirror, older);
    } else {
        mirror->oldest_doubtful = id;
    }
    mirror->newest_doubtful = id;
    mirror->counts.doubtful++;
    return KVB_OK;
}

/* A doubtful entry is taken as gone where it is doubtful.  It still counts as
 * doubtful for the router: it may be held. */
static void forget_oldest(struct kvb_mirror *mirror)
{
    const uint32_t id = mirror->oldest_doubtful;
    struct mirror_entry *entry = &mirror->entries[id];

    kvb_mirror_unlink(mirror, id);
    for (size_t tier = 0; tier < KVB_TIER_COUNT; tier++) {
        if (!kvb_mirror_holds(entry, (enum kvb_tier)tier)) {
            entry->most[tier] = 0;
        }
    }
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

kvb_status kvb_mirror_set_copies(
    struct kvb_mirror *mirror, uint32_t id, enum kvb_tier tier, struct copies copies)
{
    struct mirror_entry *entry = &mirror->entries[id];
    struct mirror_entry changed = *entry;
    const bool was_doubtful = kvb_mirror_is_doubtful(entry);

    kvb_mirror_write_copies(&changed, tier, copies);
    const bool is_doubtful = kvb_mirror_is_doubtful(&changed);
    if (is_doubtful && !was_doubtful) {
        KVB_TRY(link_newest(mirror, id));
    }
    if (tier == KVB_TIER_DEVICE) {
        mirror->counts.proven_copies += copies.least;
        mirror->counts.proven_copies -= kvb_mirror_holds(entry, tier);
    }
    *entry = changed;
    kvb_mirror_mark(mirror, id);
    if (was_doubtful && !is_doubtful) {
        kvb_mirror_unlink(mirror, id);
    }
    if (is_doubtful && !was_doubtful && mirror->link_count > most_doubtful(mirror) &&
        mirror->oldest_doubtful != id) {
        forget_oldest(mirror);
    }
    return KVB_OK;
}
