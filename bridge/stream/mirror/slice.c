#include "stream/mirror/inside.h"

/* What a mirror lists, entry by entry: its digest, and walks that let it change. */

/* ---- Digest ---- */

void kvb_mirror_note_held(
    struct kvb_mirror *mirror, kvb_block_hash block, unsigned list, bool is_held)
{
    struct kvb_digest *digest = &mirror->digests[list];

    if (is_held) {
        mirror->counts.held[list]++;
        kvb_digest_add(digest, &mirror->digest_key, (enum kvb_tier)list, block);
    } else {
        mirror->counts.held[list]--;
        kvb_digest_subtract(digest, &mirror->digest_key, (enum kvb_tier)list, block);
    }
}

void kvb_mirror_begin_digest(struct kvb_mirror *mirror, const struct kvb_digest_key *key)
{
    mirror->digest_key = *key;
    for (unsigned list = 0; list < KVB_LIST_COUNT; list++) {
        struct kvb_digest *digest = &mirror->digests[list];
        *digest = (struct kvb_digest){ 0 };
        for (size_t id = 0; mirror->counts.held[list] > 0 && id < mirror->entry_end; id++) {
            if (kvb_mirror_speaks(mirror, (uint32_t)id, list)) {
                kvb_digest_add(
                    digest, key, (enum kvb_tier)list,
                    kvb_mirror_block(mirror, &mirror->entries[id]));
            }
        }
    }
}

const struct kvb_digest *kvb_mirror_digest(const struct kvb_mirror *mirror, enum kvb_tier tier)
{
    return &mirror->digests[tier];
}

/* ---- Slices ---- */

static bool is_bucket_wanted(
    const struct kvb_mirror *mirror, const struct kvb_bucket_set *buckets, unsigned list,
    kvb_block_hash block)
{
    if (!buckets) {
        return true;
    }
    const size_t bucket = kvb_digest_bucket(&mirror->digest_key, (enum kvb_tier)list, block);
    return buckets->words[bucket / 64] >> (bucket % 64) & 1;
}

/* Entries of one Stored stand side by side: their chain comes out as one event. */
static bool continues_slice_event(
    const struct kvb_router_batch *out, const struct mirror_entry *entry, unsigned list)
{
    if (out->event_count == 0) {
        return false;
    }
    const struct kvb_router_event *last = &out->events[out->event_count - 1];
    return (unsigned)last->tier == list &&
           (list == KVB_LIST_WINDOW ||
            (entry->has_parent && out->blocks[out->block_count - 1].value == entry->parent));
}

static kvb_status show_sliced(
    const struct mirror_entry *entry, kvb_block_hash block, unsigned list,
    struct kvb_router_batch *out)
{
    if (!continues_slice_event(out, entry, list)) {
        const struct kvb_router_event event = kvb_mirror_stored_event(entry, list);
        KVB_TRY(kvb_router_batch_add_event(out, &event));
    }
    return kvb_router_batch_add_block(out, block, entry->tokens);
}

static kvb_status show_entry(
    const struct kvb_mirror *mirror, const struct kvb_bucket_set *buckets, uint32_t id,
    struct kvb_router_batch *out)
{
    const struct mirror_entry *entry = &mirror->entries[id];

    for (unsigned list = 0; list < KVB_LIST_COUNT; list++) {
        if (!kvb_mirror_speaks(mirror, id, list)) {
            continue;
        }
        const kvb_block_hash block = kvb_mirror_block(mirror, entry);
        if (is_bucket_wanted(mirror, buckets, list, block)) {
            KVB_TRY(show_sliced(entry, block, list, out));
        }
    }
    return KVB_OK;
}

kvb_status kvb_mirror_slice(
    const struct kvb_mirror *mirror, const struct kvb_bucket_set *buckets, size_t max_entries,
    size_t max_blocks, size_t *place, struct kvb_router_batch *out)
{
    const size_t begun = out->block_count;
    size_t id = *place;

    for (size_t i = 0;
         i < max_entries && id < mirror->entry_end && out->block_count - begun < max_blocks;
         i++, id++) {
        KVB_TRY(show_entry(mirror, buckets, (uint32_t)id, out));
    }
    *place = id < mirror->entry_end ? id : SIZE_MAX;
    return KVB_OK;
}
