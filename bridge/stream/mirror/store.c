#include "stream/mirror/change.h"

#include "core/array.h"
#include "index/block_hash.h"

#include <string.h>

enum { max_ahead = 8 };

/* The seed from the event's own adapter and salt. */
static uint64_t seed_of_event(const struct mirror_change *change)
{
    static const char numbered[] = "lora_id:";
    const size_t len = sizeof numbered - 1;
    const kvb_span named = kvb_event_batch_text(change->batch, change->event->lora_name);

    /* The name is kept, by which prompts may ask for the adapter.  One that the event only numbers
     * has a name that was made of the number (wire/engine/fields.c). */
    if (named.len > 0 && (named.len < len || memcmp(named.data, numbered, len) != 0)) {
        (void)kvb_served_names_add(/* which counts those that find no room */
                                   &change->mirror->adapters, KVB_SERVED_ADAPTER, named);
    }
    return kvb_block_seed(
        named.len > 0 ? named : change->mirror->default_lora,
        kvb_event_batch_text(change->batch, change->event->salt));
}

/* The place of a child of this entry. */
[[gnu::hot]] static struct place place_after(const struct mirror_change *change, uint32_t id)
{
    const struct mirror_entry *entry = &change->mirror->entries[id];
    const bool is_rooted = entry->placement == placement_rooted;

    if (id == change->named) {
        return (struct place){ .placement = placement_rooted,
                               .has_parent = true,
                               .parent = change->name.value,
                               .seed = change->seed };
    }
    return (struct place){ .placement = (enum placement)entry->placement,
                           .has_parent = true,
                           .parent = is_rooted ? kvb_mirror_name_of(change, id).value
                                               : entry->engine.value,
                           .seed = kvb_mirror_context(change->mirror, entry)->seed };
}

static struct place first_store_place(struct mirror_change *change)
{
    const struct kvb_engine_event *event = change->event;
    struct kvb_mirror *mirror = change->mirror;

    if (!event->has_parent) {
        return (struct place){ .placement = placement_rooted, .seed = seed_of_event(change) };
    }
    const uint32_t parent = kvb_mirror_find(mirror, change->group, event->parent);
    if (parent != KVB_NO_ID) {
        struct place place = place_after(change, parent);
        const uint32_t size = kvb_mirror_context(mirror, &mirror->entries[parent])->size;
        if (size != 0 && change->size != 0 && size != change->size) {
            /* no query computes a name from blocks of two sizes */
            kvb_mirror_note_odd(&mirror->groups, odd_block_sizes);
        }
        if (event->salt.len > 0) { /* SGLang names it on each event, vLLM on a prompt's first */
            place.seed = seed_of_event(change);
        }
        return place;
    }
    mirror->counts.unknown_parents++;
    return (struct place){ .placement = mirror->hashes == KVB_HASHES_ENGINE ? placement_rooted
                                                                            : placement_waiting,
                           .has_parent = true,
                           .parent = event->parent.value,
                           .seed = seed_of_event(change) };
}

/* True: the event's tokens give no name, because the blocks may also have a salt or media, of which
 * it says nothing.  vLLM's offload connectors do that beside a device that always writes its list
 * of extra keys. */
static bool hides_content(const struct mirror_change *change)
{
    return change->event->is_of_connector && change->mirror->has_extra_keys;
}

/* The tokens_hash of block i with this seed, multimodal ids included. */
static kvb_tokens_hash tokens_hash_at(const struct mirror_change *change, uint32_t i, uint64_t seed)
{
    const struct kvb_engine_event *event = change->event;
    const struct kvb_event_batch *batch = change->batch;

    return event->token_count > 0 && !hides_content(change)
               ? kvb_tokens_hash_of_event(batch, event, i, seed)
               : (kvb_tokens_hash){ batch->hashes[event->hash_at + i].value };
}

/* True: no query can name block i of the event. */
static bool is_unmatchable(const struct mirror_change *change, uint32_t i)
{
    const struct kvb_engine_event *event = change->event;
    const uint32_t whole = change->mirror->pool_block_size;
    const bool is_part =
        event->key && event->token_count > 0 && whole > 0 && event->block_size != whole;
    const bool is_hidden = hides_content(change) && change->mirror->hashes != KVB_HASHES_ENGINE;

    return is_part || is_hidden ||
           (event->extra_count > 0 && change->batch->extras[event->extra_at + i].unmatchable);
}

static kvb_block_hash stored_name_at(
    const struct kvb_mirror *mirror, const struct place *place, kvb_engine_hash engine,
    kvb_tokens_hash tokens)
{
    if (mirror->hashes == KVB_HASHES_ENGINE) {
        return (kvb_block_hash){ engine.value };
    }
    return place->has_parent ? kvb_block_hash_next((kvb_block_hash){ place->parent }, tokens)
                             : kvb_block_hash_root(tokens);
}

/* Fills in block i of the event, given its place. */
[[gnu::hot]] static void read_mirror_block(
    const struct mirror_change *change, uint32_t i, const struct place *place,
    struct mirror_block *block)
{
    const bool is_shard = change->event->family != 0;
    const kvb_engine_hash hash = change->batch->hashes[change->event->hash_at + i];
    /* Several objects may be the same shard of one block, those of two tenants for example: each
     * has an entry of its own. */
    const kvb_engine_hash engine = is_shard ? (kvb_engine_hash){ change->event->key } : hash;

    *block = (struct mirror_block){ .engine = engine,
                                    .group = change->group,
                                    .placement = place->placement,
                                    .has_parent = place->has_parent,
                                    .parent = place->parent,
                                    .seed = place->seed,
                                    .size = change->size,
                                    .key = change->event->key };
    if (is_unmatchable(change, i)) {
        block->placement = placement_unmatchable;
    }
    if (block->placement == placement_rooted || block->placement == placement_waiting) {
        block->tokens = tokens_hash_at(change, i, place->seed);
    }
    if (block->placement == placement_rooted) {
        block->block = is_shard ? (kvb_block_hash){ hash.value }
                                : stored_name_at(change->mirror, place, engine, block->tokens);
    }
}

/* Computes the next blocks of a Stored ahead, block i at least, assuming that no known block comes
 * between, to prefetch the memory of their names while earlier blocks are applied. */
static void look_up_ahead(
    const struct mirror_change *change, uint32_t i, struct place place,
    struct mirror_block ahead[max_ahead])
{
    size_t at = 0;

    do {
        struct mirror_block *block = &ahead[at];
        read_mirror_block(change, i, &place, block);
        if (block->placement == placement_rooted) {
            kvb_mirror_expect(change->mirror, block->block);
        }
        place.placement = block->placement;
        place.has_parent = true;
        place.parent =
            block->placement == placement_rooted ? block->block.value : block->engine.value;
    } while (++at < max_ahead && ++i < change->event->hash_count);
}

/* True: the prepared block is valid for this place. */
static bool is_of_place(const struct mirror_block *block, const struct place *place)
{
    return block->placement == place->placement && block->has_parent == place->has_parent &&
           block->parent == place->parent && block->seed == place->seed;
}

/* Same content as far as both sides know it: a parent that was forgotten or became known
 * meanwhile makes no difference. */
static bool is_same_content(
    const struct mirror_change *change, uint32_t i, const struct mirror_entry *known,
    const struct mirror_block *stored)
{
    const struct kvb_mirror *mirror = change->mirror;
    const bool is_elsewhere = change->event->tier != KVB_TIER_DEVICE && change->event->key == 0;

    /* Such an event adds a copy, and cannot say what the block is: one engine hash is one content,
     * and the device's events have given it. */
    if (hides_content(change) || (is_elsewhere && known->max[KVB_TIER_DEVICE] > 0)) {
        return true;
    }
    if (known->placement == placement_unmatchable || stored->placement == placement_unmatchable) {
        return known->placement == (uint32_t)stored->placement;
    }
    if (known->placement == placement_unplaced || stored->placement == placement_unplaced) {
        return true;
    }
    if (known->placement == placement_rooted && stored->placement == placement_rooted) {
        return kvb_mirror_block(mirror, known).value == stored->block.value &&
               known->tokens.value == stored->tokens.value;
    }
    const uint64_t seed = kvb_mirror_context(mirror, known)->seed;
    return known->tokens.value == tokens_hash_at(change, i, seed).value;
}

[[gnu::hot]] static kvb_status remember_to_name_children(struct kvb_mirror *mirror, uint32_t id)
{
    if (mirror->counts.unrooted == 0 && mirror->counts.unplaced == 0) {
        return KVB_OK;
    }
    KVB_TRY(kvb_array_reserve(
        &mirror->pending, &mirror->pending_capacity, mirror->pending_count + 1,
        sizeof *mirror->pending, mirror->max_blocks));
    mirror->pending[mirror->pending_count++] = id;
    return KVB_OK;
}

static kvb_status remove_all_copies(struct mirror_change *change, uint32_t id)
{
    for (size_t tier = 0; tier < KVB_TIER_COUNT; tier++) {
        KVB_TRY(kvb_mirror_change_copies(change, id, (enum kvb_tier)tier, (struct copies){ 0, 0 }));
    }
    kvb_mirror_let_go(change->mirror, id);
    return KVB_OK;
}

/* *out_is_new: no entry has the block's name. */
[[gnu::hot]] static bool
is_refused(const struct mirror_change *change, const struct mirror_block *block, bool *out_is_new)
{
    *out_is_new = block->placement == placement_rooted &&
                  kvb_mirror_is_name_new(change->mirror, block->block);
    return block->placement == placement_rooted && !*out_is_new &&
           kvb_mirror_is_name_full(change->mirror, block->block, block->group);
}

/* An engine's hash and a content belong together one to one.  Where another hash of the group holds
 * the same name on the device, something that the events do not say tells the two apart. */
static void
look_for_other_hash(const struct mirror_change *change, const struct mirror_block *block)
{
    struct kvb_mirror *mirror = change->mirror;
    struct kvb_line_probe probe = kvb_mirror_probe_name(mirror, block->block);

    for (uint32_t id; (id = kvb_mirror_next_holder(
                           mirror, &probe, block->block, KVB_TIER_DEVICE)) != KVB_NO_ID;) {
        const struct mirror_entry *entry = &mirror->entries[id];
        if (entry->engine.value != block->engine.value &&
            kvb_mirror_context(mirror, entry)->group == block->group &&
            kvb_mirror_key(mirror, id) == 0) {
            mirror->counts.ambiguous++;
            return;
        }
    }
}

/* Gives a waiting or unplaced entry its name, and publishes the tiers that hold it.  The entry is
 * removed when its name has the maximum number of entries already. */
static kvb_status
name_entry(struct mirror_change *change, uint32_t id, const struct mirror_block *named)
{
    bool is_name_new = false;

    if (is_refused(change, named, &is_name_new)) {
        change->mirror->counts.names_refused++;
        return remove_all_copies(change, id);
    }
    if (!is_name_new && kvb_mirror_holds(&change->mirror->entries[id], KVB_TIER_DEVICE)) {
        look_for_other_hash(change, named);
    }
    KVB_TRY(kvb_mirror_name(change->mirror, id, named));
    if (change->mirror->shown) {
        kvb_shown_note_named(change->mirror->shown, id);
    }
    KVB_TRY(kvb_mirror_publish_named(change, id));
    return remember_to_name_children(change->mirror, id);
}

/* True: of the block, which is copied to other tiers, only the engine's hash is known. */
static bool is_nameless(const struct mirror_change *change, const struct mirror_entry *entry)
{
    const bool is_hidden =
        entry->placement == placement_unmatchable && entry->max[KVB_TIER_DEVICE] == 0;

    return is_hidden || (change->mirror->hashes == KVB_HASHES_ENGINE &&
                         entry->tokens.value == entry->engine.value);
}

/* Inserts a new entry and caches its published name in `change`. */
static kvb_status insert_entry(
    struct mirror_change *change, const struct mirror_block *stored, bool is_name_new,
    uint32_t *out_id)
{
    struct kvb_mirror *mirror = change->mirror;

    change->named = KVB_NO_ID;
    if (stored->placement == placement_rooted && !is_name_new && stored->key == 0 &&
        change->event->tier == KVB_TIER_DEVICE) {
        look_for_other_hash(change, stored);
    }
    /* All numbers may be in use by entries that only readers still have: then those start over. */
    kvb_status status = kvb_mirror_insert(mirror, stored, out_id);
    if (status == KVB_TOO_LARGE && mirror->shown && kvb_shown_free_gone(mirror->shown)) {
        status = kvb_mirror_insert(mirror, stored, out_id);
    }
    KVB_TRY(status);
    if (mirror->shown) {
        kvb_shown_note_inserted(mirror->shown, *out_id);
    }
    if (stored->placement == placement_rooted) {
        change->named = *out_id;
        change->name = stored->block;
        change->seed = stored->seed;
        change->is_name_new = is_name_new;
    }
    return KVB_OK;
}

/* Replaces the entry of an engine hash that now has other content.  Its copies are removed, but
 * kept if only its name was known before. */
static kvb_status replace(
    struct mirror_change *change, uint32_t *id, const struct mirror_block *stored, bool is_name_new)
{
    struct kvb_mirror *mirror = change->mirror;
    const bool is_new_name = is_nameless(change, &mirror->entries[*id]);
    struct copies known[KVB_TIER_COUNT];

    for (size_t tier = 0; tier < KVB_TIER_COUNT; tier++) {
        known[tier] = kvb_mirror_copies(mirror, *id, (enum kvb_tier)tier);
    }
    mirror->counts.aliases += !is_new_name;
    mirror->counts.ambiguous += !is_new_name && stored->key == 0 &&
                                change->event->tier == KVB_TIER_DEVICE &&
                                known[KVB_TIER_DEVICE].max > 0;
    /* First the removal of the former block: readers must not see both under one hash. */
    KVB_TRY(remove_all_copies(change, *id));
    KVB_TRY(insert_entry(change, stored, is_name_new, id));
    for (size_t tier = 0; tier < KVB_TIER_COUNT && is_new_name; tier++) {
        KVB_TRY(kvb_mirror_change_copies(change, *id, (enum kvb_tier)tier, known[tier]));
    }
    return KVB_OK;
}

/* A block beyond the device is named without a word on salt and media. */
static void note_unsaid(struct mirror_change *change, enum placement placement)
{
    const struct kvb_engine_event *event = change->event;

    if (event->tier != KVB_TIER_DEVICE && event->key == 0 && event->token_count > 0 &&
        !event->has_extra_keys && placement != placement_unmatchable) {
        change->mirror->unsaid_tiers |= 1U << event->tier;
    }
}

/* Finds or inserts the entry of block i.  *out_id: KVB_NO_ID when the block is skipped, because its
 * name has the most entries allowed. */
[[gnu::hot]] static kvb_status find_or_insert(
    struct mirror_change *change, uint32_t i, const struct mirror_block *stored, uint32_t *out_id)
{
    struct kvb_mirror *mirror = change->mirror;
    uint32_t id = kvb_mirror_find(mirror, stored->group, stored->engine);
    const bool is_other =
        id != KVB_NO_ID && !is_same_content(change, i, &mirror->entries[id], stored);
    const bool is_nameless =
        id != KVB_NO_ID && (mirror->entries[id].placement == placement_waiting ||
                            mirror->entries[id].placement == placement_unplaced);
    bool is_name_new = false;

    *out_id = KVB_NO_ID;
    /* A name that has the most entries allowed: an engine that gives one content hash after hash.
     */
    if ((id == KVB_NO_ID || is_other || is_nameless) && is_refused(change, stored, &is_name_new)) {
        mirror->counts.names_refused++;
        return id != KVB_NO_ID ? remove_all_copies(change, id) : KVB_OK;
    }
    if (id == KVB_NO_ID || is_other) {
        mirror->counts.unmatchable += stored->placement == placement_unmatchable;
        note_unsaid(change, stored->placement);
        KVB_TRY(
            is_other ? replace(change, &id, stored, is_name_new)
                     : insert_entry(change, stored, is_name_new, &id));
        if (stored->placement == placement_rooted) {
            KVB_TRY(remember_to_name_children(mirror, id));
        }
    } else if (is_nameless && stored->placement == placement_rooted) {
        KVB_TRY(name_entry(change, id, stored));
    }
    *out_id = id;
    return KVB_OK;
}

/* A block without copies gets one certain copy, whether the Stored is real or not.  Window groups
 * are different: vLLM also repeats blocks there that it does not hold. */
[[gnu::hot]] static kvb_status add_copy(struct mirror_change *change, uint32_t i, uint32_t id)
{
    const enum kvb_tier tier = change->event->tier;
    struct kvb_mirror *mirror = change->mirror;
    struct copies copies = kvb_mirror_copies(mirror, id, tier);
    const bool is_again = copies.max > 0;

    if (copies.max == UINT32_MAX) {
        return KVB_TOO_LARGE;
    }
    mirror->counts.duplicate_stored += is_again;
    if ((is_again || change->is_window) && kvb_mirror_is_real(change, i)) {
        copies.min++;
    } else if (!change->is_window && copies.min == 0) {
        copies.min = 1;
    }
    change->progress->has_new |= !is_again;
    copies.max++;
    return kvb_mirror_change_copies(change, id, tier, copies);
}

size_t kvb_mirror_rest_of_chunk(
    const struct mirror_change *change, uint32_t id, uint32_t out_ids[kvb_max_chunk_blocks])
{
    const struct kvb_mirror *mirror = change->mirror;
    const struct kvb_engine_event *event = change->event;
    /* a connector that has described a chunk names all blocks of each */
    const bool names_last = event->tier != KVB_TIER_DEVICE && event->key == 0 &&
                            event->token_count == 0 && mirror->chunk_blocks == 0;
    size_t count = 0;

    while (names_last && count + 1 < mirror->chunk_option && mirror->entries[id].has_parent) {
        id = kvb_mirror_parent(mirror, id, change->group);
        if (id == KVB_NO_ID) {
            break;
        }
        out_ids[count++] = id;
    }
    return count;
}

/* Adds the copies of such a chunk, parents first. */
static kvb_status add_chunk(struct mirror_change *change, uint32_t i, uint32_t id)
{
    uint32_t before[kvb_max_chunk_blocks];

    for (size_t count = kvb_mirror_rest_of_chunk(change, id, before); count > 0; count--) {
        KVB_TRY(add_copy(change, i, before[count - 1]));
    }
    return add_copy(change, i, id);
}

/* The end of the blocks that this call applies, at least one from progress->next on. */
[[gnu::hot]] static uint32_t part_end(struct mirror_change *change)
{
    const struct kvb_engine_event *event = change->event;
    const uint32_t next = change->progress->next;
    const uint32_t work = 1 + event->block_size / kvb_mirror_tokens_a_unit; /* work for one block */
    const uint32_t left = event->hash_count - next;
    const bool fits =
        (uint64_t)left * work <= change->max_work; /* the usual case, without a division */
    const uint64_t room = fits ? left : change->max_work > work ? change->max_work / work : 1;
    const uint32_t count = left < room ? left : (uint32_t)room;

    change->work += (uint64_t)count * work;
    return next + count;
}

/* ---- Sliding-window groups ----
 *
 * All groups of a model use the same hash for the same prefix.  A window group leaves out blocks
 * without saying which.  Therefore a block takes its name and parent from the entry of a
 * full-attention group with the same hash.  If no such group has the hash, and the event leaves out
 * no block, the event's own parent and tokens give the name.  Any other block is unplaced: it is in
 * no list, its removal is recognized, and it gets its name when a full-attention group stores
 * it. */

/* The block of an entry in a full-attention group, as a block of window group `group`. */
static struct mirror_block
block_like(const struct mirror_change *change, uint32_t full, uint32_t group)
{
    const struct kvb_mirror *mirror = change->mirror;
    const struct mirror_entry *entry = &mirror->entries[full];
    const bool is_rooted = entry->placement == placement_rooted;

    return (struct mirror_block){
        .engine = entry->engine,
        .block = is_rooted ? kvb_mirror_name_of(change, full) : (kvb_block_hash){ 0 },
        .tokens = entry->tokens,
        .parent = entry->parent,
        .seed = kvb_mirror_context(mirror, entry)->seed,
        .group = group,
        .placement = (enum placement)entry->placement,
        .has_parent = entry->has_parent,
    };
}

/* The place of a child of the event's parent, which is in a full-attention group or in the event's
 * own group. */
static struct place place_by_parent(const struct mirror_change *change)
{
    const struct kvb_mirror *mirror = change->mirror;
    const struct kvb_engine_event *event = change->event;
    uint32_t parent = kvb_mirror_find_in_full(mirror, event->parent);

    if (parent == KVB_NO_ID) {
        parent = kvb_mirror_find(mirror, change->group, event->parent);
    }
    if (parent == KVB_NO_ID) {
        return (struct place){ .placement = placement_unplaced };
    }
    struct place place = place_after(change, parent);
    if (place.placement == placement_waiting) {
        place.placement = placement_unplaced;
    }
    if (event->salt.len > 0) {
        place.seed = seed_of_event(change);
    }
    return place;
}

/* True: the group has a block only for every few hashes, so its own tokens give no name. */
static bool is_coarse(const struct mirror_change *change)
{
    const struct mirror_groups *groups = &change->mirror->groups;
    const uint32_t size = groups->list[change->group].block_size;

    return size != 0 && groups->block_size != 0 && size != groups->block_size;
}

static struct place first_window_place(const struct mirror_change *change)
{
    const struct kvb_engine_event *event = change->event;

    if (change->mirror->hashes == KVB_HASHES_ENGINE) { /* the hash is the name */
        return (struct place){ .placement = placement_rooted, .seed = seed_of_event(change) };
    }
    if (event->token_count == 0 || is_coarse(change)) {
        return (struct place){ .placement = placement_unplaced };
    }
    return event->has_parent
               ? place_by_parent(change)
               : (struct place){ .placement = placement_rooted, .seed = seed_of_event(change) };
}

static struct mirror_block
block_at(const struct mirror_change *change, uint32_t i, const struct place *place)
{
    const struct kvb_mirror *mirror = change->mirror;
    const kvb_engine_hash engine = change->batch->hashes[change->event->hash_at + i];
    const uint32_t full = kvb_mirror_find_in_full(mirror, engine);
    struct mirror_block block;

    if (full != KVB_NO_ID && mirror->entries[full].placement != placement_waiting) {
        return block_like(change, full, change->group);
    }
    read_mirror_block(change, i, place, &block);
    return block;
}

static kvb_status store_window_part(struct mirror_change *change)
{
    const struct kvb_engine_event *event = change->event;
    struct event_progress *progress = change->progress;
    const uint32_t end = part_end(change);
    struct place place = first_window_place(change);

    for (uint32_t i = progress->next; i < end; i++) {
        uint32_t id = KVB_NO_ID;
        kvb_mirror_look_ahead(change->mirror, change->batch, change->group, event->hash_at + i);
        if (event->token_count > 0 && progress->last != KVB_NO_ID &&
            !is_coarse(change)) { /* otherwise the blocks form no chain */
            place = place_after(change, progress->last);
        }
        const struct mirror_block block = block_at(change, i, &place);
        KVB_TRY(find_or_insert(change, i, &block, &id));
        if (id == KVB_NO_ID) {
            progress->next = event->hash_count; /* blocks below it have no parent either */
            return KVB_OK;
        }
        KVB_TRY(add_copy(change, i, id));
        progress->last = id;
    }
    progress->next = end;
    return KVB_OK;
}

/* An entry of a full-attention group has been named: names the entries of window groups with the
 * same hash. */
static kvb_status place_in_windows(struct mirror_change *change, uint32_t id)
{
    struct kvb_mirror *mirror = change->mirror;
    const kvb_engine_hash engine = mirror->entries[id].engine;

    for (uint32_t group = 0; group < mirror->groups.count; group++) {
        const bool is_window = mirror->groups.window_mask >> group & 1;
        const uint32_t other = is_window ? kvb_mirror_find(mirror, group, engine) : KVB_NO_ID;
        if (other == KVB_NO_ID || mirror->entries[other].placement != placement_unplaced) {
            continue;
        }
        const struct mirror_block named = block_like(change, id, group);
        KVB_TRY(name_entry(change, other, &named));
    }
    return KVB_OK;
}

/* ---- Naming waiting entries ---- */

/* Names child `id` of `parent`, which now has its name. */
static kvb_status name_child(struct mirror_change *change, uint32_t parent, uint32_t id)
{
    const struct kvb_mirror *mirror = change->mirror;
    const struct mirror_entry *entry = &mirror->entries[id];
    const struct mirror_context *context = kvb_mirror_context(mirror, entry);
    const struct place place = place_after(change, parent);
    const struct mirror_block named = {
        .engine = entry->engine,
        .block = stored_name_at(mirror, &place, entry->engine, entry->tokens),
        .tokens = entry->tokens,
        .parent = place.parent,
        .seed = context->seed,
        .group = context->group,
        .size = context->size,
        .placement = placement_rooted,
        .has_parent = true,
    };

    return name_entry(change, id, &named);
}

/* Names the entries that waited for newly named ones, within the work limit of this call.  It ends
 * because each round roots one waiting entry. */
static kvb_status name_waiting_children(struct mirror_change *change)
{
    struct kvb_mirror *mirror = change->mirror;

    while (mirror->pending_count > 0) {
        const uint32_t parent = mirror->pending[mirror->pending_count - 1];
        const struct mirror_entry *entry = &mirror->entries[parent];
        const bool has_name = entry->is_used && entry->placement == placement_rooted;
        /* None of an entry that was dropped meanwhile.  A child with another seed (its salt was in
         * a block that was never received) or another size cannot be named and keeps waiting. */
        const uint32_t child = has_name ? kvb_mirror_first_waiting(mirror, parent) : KVB_NO_ID;
        if (child == KVB_NO_ID) {
            const uint32_t group = has_name ? kvb_mirror_context(mirror, entry)->group : 0;
            mirror->pending_count--;
            if (mirror->counts.unplaced > 0 && has_name &&
                mirror->groups.list[group].kind == KVB_GROUP_FULL) {
                KVB_TRY(place_in_windows(change, parent));
            }
            continue;
        }
        if (!kvb_mirror_may_do(change, 1)) {
            return KVB_OK;
        }
        KVB_TRY(name_child(change, parent, child));
    }
    return KVB_OK;
}

/* ---- A Stored ---- */

/* Drops the former block of a key that is stored again with another block. */
static kvb_status forget_former(struct mirror_change *change)
{
    const struct kvb_engine_event *event = change->event;
    struct kvb_mirror *mirror = change->mirror;
    const uint32_t id = event->key ? kvb_mirror_find_key(mirror, event->key) : KVB_NO_ID;

    if (id == KVB_NO_ID || event->token_count == 0 ||
        mirror->entries[id].engine.value == change->batch->hashes[event->hash_at].value) {
        return KVB_OK;
    }
    mirror->counts.aliases++;
    return remove_all_copies(change, id);
}

/* One block after another, case by case. */
static kvb_status store_in_chain(struct mirror_change *change)
{
    const struct kvb_engine_event *event = change->event;
    struct event_progress *progress = change->progress;
    const bool takes_names = event->token_count > 0 || change->mirror->hashes == KVB_HASHES_ENGINE;
    const uint32_t first = progress->next;
    const uint32_t end = part_end(change);
    struct place place = { 0 };
    struct mirror_block ahead[max_ahead];

    /* Each block is the child of the one before it.  Their names are computed some blocks ahead, so
     * that their memory is there when it is their turn. */
    for (uint32_t i = first; i < end; i++) {
        uint32_t id = KVB_NO_ID;
        kvb_mirror_look_ahead(change->mirror, change->batch, change->group, event->hash_at + i);
        if (takes_names) {
            place = progress->last == KVB_NO_ID ? first_store_place(change)
                                                : place_after(change, progress->last);
            if ((i - first) % max_ahead == 0) {
                look_up_ahead(change, i, place, ahead);
            }
        }
        if (event->token_count == 0) { /* it moves blocks that are known */
            id = kvb_mirror_find_known(
                change->mirror, event, change->group, change->batch->hashes[event->hash_at + i]);
        }
        if (id == KVB_NO_ID) {
            if (!takes_names) {
                change->mirror->counts.no_tokens++;
                continue;
            }
            struct mirror_block *block = &ahead[(i - first) % max_ahead];
            if (!is_of_place(block, &place)) { /* a known block came between */
                read_mirror_block(change, i, &place, block);
            }
            KVB_TRY(find_or_insert(change, i, block, &id));
            if (id == KVB_NO_ID) {
                progress->next = event->hash_count; /* later blocks have no parent either */
                return KVB_OK;
            }
        }
        if (change->mirror->shown && !hides_content(change)) {
            kvb_shown_note_content(change, i, id);
        }
        KVB_TRY(add_chunk(change, i, id));
        progress->last = id;
    }
    progress->next = end;
    return KVB_OK;
}

/* False: the event is skipped. */
static bool is_acceptable(struct mirror_change *change)
{
    struct kvb_mirror *mirror = change->mirror;
    const struct kvb_engine_event *event = change->event;
    const bool describes_chunk =
        event->is_of_connector && event->tier != KVB_TIER_DEVICE && event->token_count > 0;

    for (uint32_t i = 0; event->has_parent && i < event->hash_count; i++) {
        if (change->batch->hashes[event->hash_at + i].value == event->parent.value) {
            mirror->counts.self_parents++;
            return false;
        }
    }
    mirror->has_extra_keys |= event->has_extra_keys;
    if (describes_chunk && event->hash_count > mirror->chunk_blocks) {
        mirror->chunk_blocks =
            event->hash_count < kvb_max_chunk_blocks ? event->hash_count : kvb_max_chunk_blocks;
    }
    if (!kvb_mirror_learn_shape(mirror, event)) {
        mirror->counts.shapes_refused++;
        return false;
    }
    return true;
}

kvb_status kvb_mirror_store(struct mirror_change *change)
{
    struct event_progress *progress = change->progress;

    if (!progress->is_unfinished) {
        if (!is_acceptable(change)) {
            return KVB_OK;
        }
        KVB_TRY(forget_former(change));
        KVB_TRY(kvb_mirror_prove_ancestors(change));
    }
    change->size = kvb_mirror_size_of(change->mirror, change->event);
    KVB_TRY(change->is_window ? store_window_part(change) : store_in_chain(change));
    progress->is_unfinished = progress->next < change->event->hash_count;
    /* Then the children of other events that waited for its blocks. */
    if (!progress->is_unfinished) {
        KVB_TRY(name_waiting_children(change));
        progress->is_unfinished = change->mirror->pending_count > 0;
    }
    if (!progress->is_unfinished) {
        kvb_mirror_end_stored(change);
    }
    return KVB_OK;
}
