#include "stream/mirror/change.h"

/* Appends to the last removed event of the batch: engines send removals one by one. */
static kvb_status
publish_removed_name(struct mirror_change *change, kvb_block_hash block, unsigned list)
{
    struct kvb_router_batch *out = change->out;
    const struct kvb_router_event *last =
        out->event_count > change->mirror->batch_out ? &out->events[out->event_count - 1] : NULL;

    KVB_TRY(kvb_mirror_note_held(change->mirror, block, list, false));
    kvb_mirror_tell_removed(change->mirror, block, list);
    if (!last || last->kind != KVB_ROUTER_REMOVED || (unsigned)last->tier != list ||
        last->block_count >= kvb_max_event_blocks) {
        const struct kvb_router_event event = { .kind = KVB_ROUTER_REMOVED,
                                                .tier = (enum kvb_tier)list };
        KVB_TRY(kvb_router_batch_add_event(out, &event));
    }
    return kvb_router_batch_add_block(out, block, (kvb_tokens_hash){ 0 });
}

/* Publishes that the entry begins or ceases to hold its block in the tier, if that changes the
 * list. */
[[gnu::hot]] static kvb_status
publish_tier(struct mirror_change *change, uint32_t id, enum kvb_tier tier, bool is_held)
{
    struct kvb_mirror *mirror = change->mirror;
    const struct mirror_entry *entry = &mirror->entries[id];
    const unsigned list = kvb_mirror_list_of(mirror, entry, tier);

    /* Readers of engines are shown blocks that are in no list of routers. */
    if (mirror->shown) {
        kvb_shown_note_held(mirror->shown, id);
    }
    if (list == KVB_LIST_COUNT) {
        return KVB_OK;
    }
    /* Where another entry holds the name too, nothing changes.  The usual case needs no look-up: an
     * engine with one group stores a block whose name is new. */
    const kvb_block_hash block = kvb_mirror_name_of(change, id);
    const bool is_alone = id == change->named && change->is_name_new && mirror->groups.count == 1;
    if (!is_alone && !kvb_mirror_decides(mirror, id, block, list)) {
        return KVB_OK;
    }
    const kvb_block_hash listed = kvb_mirror_listed_name(mirror, entry, block, list);
    if (!is_held) {
        return publish_removed_name(change, listed, list);
    }
    KVB_TRY(kvb_mirror_note_held(mirror, listed, list, true));
    kvb_mirror_tell_stored(mirror, entry, listed, list);
    return kvb_mirror_add_stored(change->out, change->first_out, entry, listed, list);
}

[[gnu::hot]] kvb_status kvb_mirror_change_copies(
    struct mirror_change *change, uint32_t id, enum kvb_tier tier, struct copies copies)
{
    struct kvb_mirror *mirror = change->mirror;
    const bool was_held = kvb_mirror_holds(&mirror->entries[id], tier);
    const bool is_held = copies.min > 0;

    KVB_TRY(kvb_mirror_set_copies(mirror, id, tier, copies));
    if (was_held && !is_held) {
        kvb_mirror_tell_left(mirror, id, tier);
    }
    return was_held == is_held ? KVB_OK : publish_tier(change, id, tier, is_held);
}

kvb_status kvb_mirror_publish_named(struct mirror_change *change, uint32_t id)
{
    const struct kvb_mirror *mirror = change->mirror;

    for (size_t t = 0; t < KVB_TIER_COUNT; t++) {
        const enum kvb_tier tier = (enum kvb_tier)t;
        if (kvb_mirror_holds(&mirror->entries[id], tier)) {
            KVB_TRY(publish_tier(change, id, tier, true));
        }
    }
    return KVB_OK;
}

/* ---- An event and its group ----
 *
 * Finds the group of an event, and updates the lists when a new group begins to count in them. */

/* Removes all names from the list, because the group that begins to count in it holds none of
 * them; from the window list those of the group's kind.  A store's names stay that another family
 * of shards holds. */
static kvb_status
empty_list(struct mirror_change *change, const struct mirror_group *group, unsigned list)
{
    struct kvb_mirror *mirror = change->mirror;

    for (size_t id = 0; mirror->counts.held[list] > 0 && id < mirror->entry_end; id++) {
        const struct mirror_entry *entry = &mirror->entries[id];
        if (!kvb_mirror_speaks(mirror, (uint32_t)id, list) ||
            (list == KVB_LIST_WINDOW &&
             mirror->groups.list[kvb_mirror_context(mirror, entry)->group].window !=
                 group->window) ||
            (group->family != 0 &&
             kvb_mirror_is_listed_without(mirror, (uint32_t)id, list, group->family))) {
            continue;
        }
        const kvb_block_hash block = kvb_mirror_block(mirror, entry);
        KVB_TRY(
            publish_removed_name(change, kvb_mirror_listed_name(mirror, entry, block, list), list));
    }
    return KVB_OK;
}

/* Makes the group count in the list of this tier.  It counts only after all removals, because a
 * removal must not change which entry represents another name. */
static kvb_status join_tier(struct mirror_change *change, struct mirror_group *group)
{
    const enum kvb_tier tier = change->event->tier;
    const unsigned list = group->window_tokens > 0 ? KVB_LIST_WINDOW : tier;

    KVB_TRY(empty_list(change, group, list));
    group->tiers |= 1U << tier;
    kvb_mirror_settle_groups(&change->mirror->groups);
    return KVB_OK;
}

static void set_group(struct mirror_change *change, uint32_t place)
{
    change->group = place;
    change->is_window = change->mirror->groups.list[place].window_tokens > 0;
}

void kvb_mirror_find_group(struct mirror_change *change)
{
    set_group(
        change, kvb_mirror_group_place(change->mirror, kvb_mirror_group_number(change->event)));
}

kvb_status kvb_mirror_meet_group(struct mirror_change *change, bool *out_is_taken)
{
    struct kvb_mirror *mirror = change->mirror;
    const struct kvb_engine_event *event = change->event;
    const bool is_stored = event->kind == KVB_EVENT_STORED;
    uint32_t place = kvb_mirror_group_place(mirror, kvb_mirror_group_number(event));

    *out_is_taken = false;
    /* A removal makes no group: what was never stored there is not listed. */
    if (place == kvb_max_groups && is_stored) {
        place = kvb_mirror_add_group(mirror, event);
    }
    if (place == kvb_max_groups) {
        mirror->counts.groups_refused += is_stored;
        mirror->counts.unknown_removed += !is_stored && event->key == 0 ? event->hash_count : 0;
        return KVB_OK;
    }
    struct mirror_group *group = &mirror->groups.list[place];
    if (is_stored && event->has_group &&
        (group->kind != event->group_kind ||
         group->window_tokens != kvb_mirror_window_of(mirror, event))) {
        kvb_mirror_note_odd(&mirror->groups, odd_changed);
    }
    set_group(change, place);
    /* Windows count on the device alone. */
    if (change->is_window && event->tier != KVB_TIER_DEVICE) {
        mirror->counts.window_elsewhere += event->hash_count;
        return KVB_OK;
    }
    *out_is_taken = group->kind == KVB_GROUP_FULL || group->window_tokens > 0;
    return is_stored && *out_is_taken && !(group->tiers >> event->tier & 1)
               ? join_tier(change, group)
               : KVB_OK;
}
