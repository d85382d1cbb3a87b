#include "stream/mirror_entry.h"

/* What a mirror lists, entry by entry: its digest, and walks that let it change. */

static bool is_listed(const struct kvb_mirror *mirror, uint32_t id, enum kvb_tier tier)
{
    const struct mirror_entry *entry = &mirror->entries[id];

    return entry->is_used && (mirror->tiers >> tier & 1) && entry->standing == standing_rooted &&
           kvb_mirror_holds(entry, tier) && kvb_mirror_speaks_for_block(mirror, id, tier);
}

/* ---- Digest ---- */

void kvb_mirror_note_held(
    struct kvb_mirror *mirror, kvb_block_hash block, enum kvb_tier tier, bool is_held)
{
    if (is_held) {
        mirror->counts.held[tier]++;
        kvb_digest_add(&mirror->digests[tier], &mirror->digest_key, tier, block);
    } else {
        mirror->counts.held[tier]--;
        kvb_digest_subtract(&mirror->digests[tier], &mirror->digest_key, tier, block);
    }
}

void kvb_mirror_begin_digest(struct kvb_mirror *mirror, const struct kvb_digest_key *key)
{
    mirror->digest_key = *key;
    for (size_t t = 0; t < KVB_TIER_COUNT; t++) {
        const enum kvb_tier tier = (enum kvb_tier)t;
        mirror->digests[t] = (struct kvb_digest){ 0 };
        for (size_t id = 0; mirror->counts.held[t] > 0 && id < mirror->entry_end; id++) {
            if (is_listed(mirror, (uint32_t)id, tier)) {
                kvb_digest_add(
                    &mirror->digests[t], key, tier, kvb_mirror_block(mirror, &mirror->entries[id]));
            }
        }
    }
}

const struct kvb_digest *kvb_mirror_digest(const struct kvb_mirror *mirror, enum kvb_tier tier)
{
    return &mirror->digests[tier];
}

/* ---- Slices ---- */

static bool is_wanted(
    const struct kvb_mirror *mirror, const struct kvb_bucket_set *buckets, enum kvb_tier tier,
    kvb_block_hash block)
{
    if (!buckets) {
        return true;
    }
    const size_t bucket = kvb_digest_bucket(&mirror->digest_key, tier, block);
    return buckets->words[bucket / 64] >> (bucket % 64) & 1;
}

/* Entries of one Stored stand side by side: their chain comes out as one event. */
static bool
continues(const struct kvb_router_batch *out, const struct mirror_entry *entry, enum kvb_tier tier)
{
    if (out->event_count == 0 || !entry->has_parent) {
        return false;
    }
    const struct kvb_router_event *last = &out->events[out->event_count - 1];
    return last->tier == tier && out->blocks[out->block_count - 1].value == entry->parent;
}

static kvb_status show(
    const struct mirror_entry *entry, kvb_block_hash block, enum kvb_tier tier,
    struct kvb_router_batch *out)
{
    const struct kvb_router_event event = { .kind = KVB_ROUTER_STORED,
                                            .tier = tier,
                                            .has_parent = entry->has_parent,
                                            .parent = { entry->parent } };

    if (!continues(out, entry, tier)) {
        KVB_TRY(kvb_router_batch_add_event(out, &event));
    }
    return kvb_router_batch_add_block(out, block, entry->tokens);
}

static kvb_status show_entry(
    const struct kvb_mirror *mirror, const struct kvb_bucket_set *buckets, uint32_t id,
    struct kvb_router_batch *out)
{
    const struct mirror_entry *entry = &mirror->entries[id];

    for (size_t t = 0; t < KVB_TIER_COUNT; t++) {
        const enum kvb_tier tier = (enum kvb_tier)t;
        if (!is_listed(mirror, id, tier)) {
            continue;
        }
        const kvb_block_hash block = kvb_mirror_block(mirror, entry);
        if (is_wanted(mirror, buckets, tier, block)) {
            KVB_TRY(show(entry, block, tier, out));
        }
    }
    return KVB_OK;
}

kvb_status kvb_mirror_slice(
    const struct kvb_mirror *mirror, const struct kvb_bucket_set *buckets, size_t max_entries,
    size_t *place, struct kvb_router_batch *out)
{
    size_t id = *place;

    for (size_t i = 0; i < max_entries && id < mirror->entry_end; i++, id++) {
        KVB_TRY(show_entry(mirror, buckets, (uint32_t)id, out));
    }
    *place = id < mirror->entry_end ? id : SIZE_MAX;
    return KVB_OK;
}
