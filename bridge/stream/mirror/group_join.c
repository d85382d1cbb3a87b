#include "stream/mirror/change.h"

/* The group of an event on its way through the mirror, and what changes in the lists when it
 * begins to count in them. */

/* Whatever is in the list, the group that is about to count in it does not hold it. */
static kvb_status empty_list(struct mirror_change *change, unsigned list)
{
    struct kvb_mirror *mirror = change->mirror;

    for (size_t id = 0; mirror->counts.held[list] > 0 && id < mirror->entry_end; id++) {
        if (!kvb_mirror_speaks(mirror, (uint32_t)id, list)) {
            continue;
        }
        const kvb_block_hash block = kvb_mirror_block(mirror, &mirror->entries[id]);
        KVB_TRY(kvb_mirror_publish_removed(change, block, list));
    }
    return KVB_OK;
}

/* A removal that is published must not change which entry represents another name: so the group
 * counts only after all removals. */
static kvb_status join_tier(struct mirror_change *change, struct mirror_group *group)
{
    const enum kvb_tier tier = change->event->tier;
    const unsigned list = group->kind == KVB_GROUP_WINDOW ? KVB_LIST_WINDOW : tier;

    KVB_TRY(empty_list(change, list));
    group->tiers |= 1U << tier;
    kvb_mirror_settle_groups(&change->mirror->groups);
    return KVB_OK;
}

static bool is_as_known(const struct mirror_group *group, const struct kvb_engine_event *event)
{
    return !event->has_group ||
           (group->kind == event->group_kind &&
            (group->kind != KVB_GROUP_WINDOW || group->window_tokens == event->window_tokens));
}

static void count_unmet(struct mirror_change *change)
{
    const struct kvb_engine_event *event = change->event;
    struct kvb_mirror_counts *counts = &change->mirror->counts;

    if (event->kind == KVB_EVENT_STORED) {
        counts->groups_refused++;
    } else if (event->key == 0) {
        counts->unknown_removed += event->hash_count;
    }
}

void kvb_mirror_find_group(struct mirror_change *change)
{
    const struct kvb_mirror *mirror = change->mirror;

    change->group = kvb_mirror_group_place(mirror, kvb_mirror_group_number(change->event));
    change->is_window = mirror->groups.list[change->group].kind == KVB_GROUP_WINDOW;
}

kvb_status kvb_mirror_meet_group(struct mirror_change *change, bool *out_is_taken)
{
    struct kvb_mirror *mirror = change->mirror;
    const struct kvb_engine_event *event = change->event;
    const bool is_stored = event->kind == KVB_EVENT_STORED;
    uint32_t place = kvb_mirror_group_place(mirror, kvb_mirror_group_number(event));

    *out_is_taken = false;
    if (place == kvb_max_groups && is_stored) {
        place = kvb_mirror_add_group(mirror, event);
    }
    if (place == kvb_max_groups) {
        count_unmet(change);
        return KVB_OK;
    }
    struct mirror_group *group = &mirror->groups.list[place];
    mirror->groups.is_odd |= is_stored && !is_as_known(group, event);
    kvb_mirror_find_group(change);
    if (change->is_window && event->tier != KVB_TIER_DEVICE) {
        mirror->counts.window_elsewhere += event->hash_count;
        return KVB_OK;
    }
    *out_is_taken = group->kind != KVB_GROUP_OTHER;
    return is_stored && *out_is_taken && !(group->tiers >> event->tier & 1)
               ? join_tier(change, group)
               : KVB_OK;
}
