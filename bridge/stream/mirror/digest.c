#include "stream/mirror/inside.h"

#include <stdlib.h>

/* The published lists: their counts and digests, and the events that fill them. */

/* All zero. */
static const struct kvb_digest empty_digest;

void kvb_mirror_zero_digests(struct kvb_mirror *mirror)
{
    for (size_t list = 0; list < KVB_LIST_COUNT; list++) {
        if (mirror->digests[list]) {
            *mirror->digests[list] = empty_digest;
        }
    }
}

kvb_status
kvb_mirror_note_held(struct kvb_mirror *mirror, kvb_block_hash block, unsigned list, bool is_held)
{
    /* Most streams use one list of five, so a digest is allocated with the first name of its list.
     */
    if (!mirror->digests[list]) {
        mirror->digests[list] = calloc(1, sizeof *mirror->digests[list]);
    }
    struct kvb_digest *digest = mirror->digests[list];
    if (!digest) {
        return KVB_NO_MEMORY;
    }
    if (is_held) {
        mirror->counts.held[list]++;
        kvb_digest_add(digest, &mirror->digest_key, (enum kvb_tier)list, block);
    } else {
        mirror->counts.held[list]--;
        kvb_digest_subtract(digest, &mirror->digest_key, (enum kvb_tier)list, block);
    }
    return KVB_OK;
}

void kvb_mirror_begin_digest(struct kvb_mirror *mirror, const struct kvb_digest_key *key)
{
    mirror->digest_key = *key;
    kvb_mirror_zero_digests(mirror);
    for (unsigned list = 0; list < KVB_LIST_COUNT; list++) {
        for (size_t id = 0; mirror->counts.held[list] > 0 && id < mirror->entry_end; id++) {
            const struct mirror_entry *entry = &mirror->entries[id];
            if (kvb_mirror_speaks(mirror, (uint32_t)id, list)) {
                kvb_digest_add(
                    mirror->digests[list], key, (enum kvb_tier)list,
                    kvb_mirror_listed_name(mirror, entry, kvb_mirror_block(mirror, entry), list));
            }
        }
    }
}

const struct kvb_digest *kvb_mirror_digest(const struct kvb_mirror *mirror, enum kvb_tier tier)
{
    return mirror->digests[tier] ? mirror->digests[tier] : &empty_digest;
}

/* ---- Events ---- */

/* The window list is a set: there no block has a parent, and any follows any. */
[[gnu::hot]] kvb_status kvb_mirror_add_stored(
    struct kvb_router_batch *out, size_t first_event, const struct mirror_entry *entry,
    kvb_block_hash block, unsigned list)
{
    const bool has_parent = entry->has_parent && list != KVB_LIST_WINDOW;
    const struct kvb_router_event *last =
        out->event_count > first_event ? &out->events[out->event_count - 1] : NULL;
    const bool continues =
        last && last->kind == KVB_ROUTER_STORED && (unsigned)last->tier == list &&
        last->block_count < kvb_max_event_blocks &&
        (list == KVB_LIST_WINDOW || (has_parent && last->block_count > 0 &&
                                     out->blocks[out->block_count - 1].value == entry->parent));

    if (!continues) {
        const struct kvb_router_event event = { .kind = KVB_ROUTER_STORED,
                                                .tier = (enum kvb_tier)list,
                                                .has_parent = has_parent,
                                                .parent = { has_parent ? entry->parent : 0 } };
        KVB_TRY(kvb_router_batch_add_event(out, &event));
    }
    return kvb_router_batch_add_block(out, block, entry->tokens);
}
