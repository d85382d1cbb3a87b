#include "stream/mirror_change.h"

/* So that any event fits a NATS message in any profile. */
enum { most_stored_in_an_event = 4096, most_removed_in_an_event = 512 };

/* The block continues the last stored event when it is the child of that
 * event's last block. */
static bool continues_last(
    const struct mirror_change *change, const struct mirror_entry *entry, enum kvb_tier tier)
{
    const struct kvb_router_batch *out = change->out;

    if (out->event_count == change->first_out || !entry->has_parent) {
        return false;
    }
    const struct kvb_router_event *last = &out->events[out->event_count - 1];
    return last->kind == KVB_ROUTER_STORED && last->tier == tier && last->block_count > 0 &&
           last->block_count < most_stored_in_an_event &&
           out->blocks[out->block_count - 1].value == entry->parent;
}

static kvb_status tell_stored(
    struct mirror_change *change, const struct mirror_entry *entry, kvb_block_hash block,
    enum kvb_tier tier)
{
    if (!continues_last(change, entry, tier)) {
        const struct kvb_router_event event = { .kind = KVB_ROUTER_STORED,
                                                .tier = tier,
                                                .has_parent = entry->has_parent,
                                                .parent = { entry->parent } };
        KVB_TRY(kvb_router_batch_add_event(change->out, &event));
    }
    return kvb_router_batch_add_block(change->out, block, entry->tokens);
}

/* Removals of a batch share events: engines send them one by one. */
static kvb_status
tell_removed(struct mirror_change *change, kvb_block_hash block, enum kvb_tier tier)
{
    struct kvb_router_batch *out = change->out;
    const struct kvb_router_event *last =
        out->event_count > change->mirror->batch_out ? &out->events[out->event_count - 1] : NULL;

    if (!last || last->kind != KVB_ROUTER_REMOVED || last->tier != tier ||
        last->block_count >= most_removed_in_an_event) {
        const struct kvb_router_event event = { .kind = KVB_ROUTER_REMOVED, .tier = tier };
        KVB_TRY(kvb_router_batch_add_event(out, &event));
    }
    return kvb_router_batch_add_block(out, block, (kvb_tokens_hash){ 0 });
}

static bool is_shown(const struct kvb_mirror *mirror, uint32_t id, enum kvb_tier tier)
{
    return (mirror->tiers >> tier & 1) && mirror->entries[id].standing == standing_rooted;
}

/* The entry comes to hold its block in the tier, or ceases to: says so, unless another of
 * the same name holds it there. */
static kvb_status
tell_of(struct mirror_change *change, uint32_t id, enum kvb_tier tier, bool is_held)
{
    struct kvb_mirror *mirror = change->mirror;
    const struct mirror_entry *entry = &mirror->entries[id];
    const kvb_block_hash block = kvb_mirror_name_of(change, id);

    if (kvb_mirror_is_held_elsewhere(mirror, block, tier, id)) {
        return KVB_OK;
    }
    kvb_mirror_note_held(mirror, block, tier, is_held);
    if (is_held) {
        kvb_mirror_refresh_note_stored(mirror, id, tier);
    }
    return is_held ? tell_stored(change, entry, block, tier) : tell_removed(change, block, tier);
}

kvb_status kvb_mirror_change_copies(
    struct mirror_change *change, uint32_t id, enum kvb_tier tier, struct copies copies)
{
    struct kvb_mirror *mirror = change->mirror;
    const bool was_held = kvb_mirror_holds(&mirror->entries[id], tier);
    const bool is_held = copies.least > 0;

    KVB_TRY(kvb_mirror_set_copies(mirror, id, tier, copies));
    if (was_held && !is_held) {
        kvb_mirror_refresh_note_left(mirror, id, tier);
    }
    if (was_held == is_held || !is_shown(mirror, id, tier)) {
        return KVB_OK;
    }
    return tell_of(change, id, tier, is_held);
}

kvb_status kvb_mirror_tell_named(struct mirror_change *change, uint32_t id)
{
    struct kvb_mirror *mirror = change->mirror;

    for (size_t t = 0; t < KVB_TIER_COUNT; t++) {
        const enum kvb_tier tier = (enum kvb_tier)t;
        if (kvb_mirror_holds(&mirror->entries[id], tier) && is_shown(mirror, id, tier)) {
            KVB_TRY(tell_of(change, id, tier, true));
        }
    }
    return KVB_OK;
}
