#include "stream/mirror/inside.h"

/* Looking up, for people who ask why a block is not listed.  The limits keep the time of one
 * request at some milliseconds, whatever the mirror holds. */

enum { max_waiting_visits = 1 << 16, max_context_visits = 1 << 16, max_entry_visits = 1 << 16 };

static void add_copies(
    const struct kvb_mirror *mirror, const struct mirror_entry *entry, struct kvb_mirror_look *look)
{
    const uint32_t id = (uint32_t)(entry - mirror->entries);

    for (unsigned tier = 0; tier < KVB_TIER_COUNT; tier++) {
        const struct copies copies = kvb_mirror_copies(mirror, id, (enum kvb_tier)tier);
        look->min[tier] += copies.min;
        look->max[tier] += copies.max;
    }
    look->is_partly_held |=
        kvb_mirror_holds(entry, KVB_TIER_DEVICE) &&
        kvb_mirror_list_of(mirror, entry, KVB_TIER_DEVICE) == (unsigned)KVB_TIER_DEVICE;
}

struct kvb_mirror_look kvb_mirror_look_up(const struct kvb_mirror *mirror, kvb_block_hash block)
{
    struct kvb_mirror_look look = { 0 };

    if (mirror->entry_count == 0) {
        return look; /* there may be no table yet */
    }
    struct kvb_line_probe probe = kvb_mirror_probe_name(mirror, block);
    for (uint32_t id; (id = kvb_mirror_next_of_name(mirror, &probe, block)) != KVB_NO_ID;) {
        add_copies(mirror, &mirror->entries[id], &look);
    }
    for (unsigned list = 0; list < KVB_LIST_COUNT; list++) {
        look.lists |= (unsigned)kvb_mirror_lists(mirror, block, list) << list;
    }
    return look;
}

static bool has_seed(const uint64_t *seeds, size_t count, uint64_t seed)
{
    for (size_t i = 0; i < count; i++) {
        if (seeds[i] == seed) {
            return true;
        }
    }
    return false;
}

size_t kvb_mirror_seeds(const struct kvb_mirror *mirror, uint64_t *out_seeds, size_t max)
{
    const size_t end =
        mirror->context_end < max_context_visits ? mirror->context_end : max_context_visits;
    const uint64_t *newest = NULL;
    size_t count = 0;

    for (size_t i = 0; i < end && count < max; i++) {
        const struct mirror_context *context = &mirror->contexts[i];
        const bool is_again = newest && *newest == context->seed; /* neighbours often are equal */
        if (!is_again && !has_seed(out_seeds, count, context->seed)) {
            newest = &context->seed;
            out_seeds[count++] = context->seed;
        }
    }
    return count;
}

bool kvb_mirror_next_waiting(
    const struct kvb_mirror *mirror, size_t *place, kvb_tokens_hash *out_tokens,
    kvb_engine_hash *out_parent)
{
    if (*place >= mirror->waiting_count || *place >= max_waiting_visits) {
        return false;
    }
    const struct mirror_entry *entry = &mirror->entries[mirror->waiting[(*place)++].id];
    *out_tokens = entry->tokens;
    *out_parent = (kvb_engine_hash){ entry->parent };
    return true;
}

/* The next used entry with this placement. */
static const struct mirror_entry *
next_placed(const struct kvb_mirror *mirror, size_t *place, enum placement placement)
{
    const size_t end = mirror->entry_end < max_entry_visits ? mirror->entry_end : max_entry_visits;

    while (*place < end) {
        const struct mirror_entry *entry = &mirror->entries[(*place)++];
        if (entry->is_used && entry->placement == (uint32_t)placement) {
            return entry;
        }
    }
    return NULL;
}

bool kvb_mirror_next_named(
    const struct kvb_mirror *mirror, size_t *place, struct kvb_mirror_named *out_named)
{
    const struct mirror_entry *entry = next_placed(mirror, place, placement_rooted);

    if (!entry) {
        return false;
    }
    *out_named = (struct kvb_mirror_named){ .block = kvb_mirror_block(mirror, entry),
                                            .tokens = entry->tokens,
                                            .has_parent = entry->has_parent,
                                            .parent = { entry->parent } };
    return true;
}

bool kvb_mirror_is_named_in_part(const struct kvb_mirror *mirror)
{
    return mirror->entry_end > max_entry_visits;
}

enum kvb_mirror_unmatchable
kvb_mirror_find_unmatchable(const struct kvb_mirror *mirror, bool has_parent, kvb_block_hash parent)
{
    const struct mirror_entry *entry = NULL;
    size_t place = 0;

    if (mirror->counts.unmatchable == 0) {
        return KVB_UNMATCHABLE_NONE; /* none was ever stored */
    }
    while ((entry = next_placed(mirror, &place, placement_unmatchable))) {
        if (entry->has_parent == has_parent && (!has_parent || entry->parent == parent.value)) {
            return KVB_UNMATCHABLE_FOUND;
        }
    }
    return place < mirror->entry_end ? KVB_UNMATCHABLE_UNKNOWN : KVB_UNMATCHABLE_NONE;
}
