#include "stream/mirror_change.h"

#include "core/array.h"
#include "index/block_hash.h"

enum { most_ahead = 8 };

uint64_t kvb_mirror_seed_of(const struct mirror_change *change)
{
    const kvb_span named = kvb_event_batch_text(change->batch, change->event->lora_name);

    return kvb_block_seed(
        named.len > 0 ? named : change->mirror->default_lora,
        kvb_event_batch_text(change->batch, change->event->salt));
}

struct place kvb_mirror_place_after(const struct mirror_change *change, uint32_t id)
{
    const struct mirror_entry *entry = &change->mirror->entries[id];
    const bool is_rooted = entry->standing == standing_rooted;

    return (struct place){ .standing = (enum standing)entry->standing,
                           .has_parent = true,
                           .parent = is_rooted ? kvb_mirror_name_of(change, id).value
                                               : entry->engine.value,
                           .seed = kvb_mirror_context(change->mirror, entry)->seed };
}

static struct place first_place(struct mirror_change *change)
{
    const struct kvb_engine_event *event = change->event;
    struct kvb_mirror *mirror = change->mirror;

    if (!event->has_parent) {
        return (struct place){ .standing = standing_rooted, .seed = kvb_mirror_seed_of(change) };
    }
    const uint32_t parent = kvb_mirror_find(mirror, change->group, event->parent);
    if (parent != KVB_NO_ID) {
        struct place place = kvb_mirror_place_after(change, parent);
        if (event->salt.len > 0) { /* SGLang names it on each event, vLLM on a prompt's first */
            place.seed = kvb_mirror_seed_of(change);
        }
        return place;
    }
    mirror->counts.unknown_parents++;
    return (struct place){ .standing = mirror->hashes == KVB_HASHES_ENGINE ? standing_rooted
                                                                           : standing_waiting,
                           .has_parent = true,
                           .parent = event->parent.value,
                           .seed = kvb_mirror_seed_of(change) };
}

/* Block i's tokens_hash under a seed, its multimodal ids included. */
static kvb_tokens_hash tokens_hash_at(const struct mirror_change *change, uint32_t i, uint64_t seed)
{
    const struct kvb_engine_event *event = change->event;
    const struct kvb_event_batch *batch = change->batch;

    return event->token_count > 0 ? kvb_tokens_hash_of_event(batch, event, i, seed)
                                  : (kvb_tokens_hash){ batch->hashes[event->hash_at + i].value };
}

static bool is_unmatchable(const struct mirror_change *change, uint32_t i)
{
    const struct kvb_engine_event *event = change->event;
    const uint32_t whole = change->mirror->pool_block_size;
    const bool is_part =
        event->key && event->token_count > 0 && whole > 0 && event->block_size != whole;

    return is_part ||
           (event->extra_count > 0 && change->batch->extras[event->extra_at + i].unmatchable);
}

static kvb_block_hash name_at(
    const struct kvb_mirror *mirror, const struct place *place, kvb_engine_hash engine,
    kvb_tokens_hash tokens)
{
    if (mirror->hashes == KVB_HASHES_ENGINE) {
        return (kvb_block_hash){ engine.value };
    }
    return place->has_parent ? kvb_block_hash_next((kvb_block_hash){ place->parent }, tokens)
                             : kvb_block_hash_root(tokens);
}

void kvb_mirror_read_block(
    const struct mirror_change *change, uint32_t i, const struct place *place,
    struct mirror_block *block)
{
    const kvb_engine_hash engine = change->batch->hashes[change->event->hash_at + i];

    *block = (struct mirror_block){ .engine = engine,
                                    .group = change->group,
                                    .standing = place->standing,
                                    .has_parent = place->has_parent,
                                    .parent = place->parent,
                                    .seed = place->seed,
                                    .key = change->event->key };
    if (is_unmatchable(change, i)) {
        block->standing = standing_unmatchable;
    }
    if (block->standing == standing_rooted || block->standing == standing_waiting) {
        block->tokens = tokens_hash_at(change, i, place->seed);
    }
    if (block->standing == standing_rooted) {
        block->block = name_at(change->mirror, place, engine, block->tokens);
    }
}

/* What the next blocks of a Stored are, if nothing known gets between: so the memory for
 * their names is on its way while those before them are dealt with. */
static void look_ahead(
    const struct mirror_change *change, uint32_t i, struct place place,
    struct mirror_block ahead[most_ahead])
{
    for (size_t at = 0; at < most_ahead && i < change->event->hash_count; at++, i++) {
        struct mirror_block *block = &ahead[at];
        kvb_mirror_read_block(change, i, &place, block);
        if (block->standing == standing_rooted) {
            kvb_mirror_expect(change->mirror, block->block);
        }
        place.standing = block->standing;
        place.has_parent = true;
        place.parent =
            block->standing == standing_rooted ? block->block.value : block->engine.value;
    }
}

/* Is it what a block at this place is?  False in doubt. */
static bool is_of_place(const struct mirror_block *block, const struct place *place)
{
    return block->standing == place->standing && block->has_parent == place->has_parent &&
           block->parent == place->parent && block->seed == place->seed;
}

/* Same content as far as both sides know: a parent that was forgotten since, or
 * that came since, is no difference. */
static bool is_same_content(
    const struct mirror_change *change, uint32_t i, const struct mirror_entry *known,
    const struct mirror_block *stored)
{
    const struct kvb_mirror *mirror = change->mirror;

    if (known->standing == standing_unmatchable || stored->standing == standing_unmatchable) {
        return known->standing == (uint32_t)stored->standing;
    }
    if (known->standing == standing_unplaced || stored->standing == standing_unplaced) {
        return true;
    }
    if (known->standing == standing_rooted && stored->standing == standing_rooted) {
        return kvb_mirror_block(mirror, known).value == stored->block.value &&
               known->tokens.value == stored->tokens.value;
    }
    const uint64_t seed = kvb_mirror_context(mirror, known)->seed;
    return known->tokens.value == tokens_hash_at(change, i, seed).value;
}

static kvb_status remember_to_name_children(struct kvb_mirror *mirror, uint32_t id)
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

kvb_status
kvb_mirror_name_entry(struct mirror_change *change, uint32_t id, const struct mirror_block *named)
{
    KVB_TRY(kvb_mirror_name(change->mirror, id, named));
    KVB_TRY(kvb_mirror_tell_named(change, id));
    return remember_to_name_children(change->mirror, id);
}

static kvb_status remove_all_copies(struct mirror_change *change, uint32_t id)
{
    for (size_t tier = 0; tier < KVB_TIER_COUNT; tier++) {
        KVB_TRY(kvb_mirror_change_copies(change, id, (enum kvb_tier)tier, (struct copies){ 0, 0 }));
    }
    kvb_mirror_drop(change->mirror, id);
    return KVB_OK;
}

/* Held under the engine's name alone: see store_in_chain(). */
static bool is_nameless(const struct kvb_mirror *mirror, const struct mirror_entry *entry)
{
    return mirror->hashes == KVB_HASHES_ENGINE && entry->tokens.value == entry->engine.value;
}

/* A new entry, whose name is remembered: the hash of its parent's and its tokens'. */
static kvb_status
insert(struct mirror_change *change, const struct mirror_block *stored, uint32_t *out_id)
{
    change->named = KVB_NO_ID;
    KVB_TRY(kvb_mirror_insert(change->mirror, stored, out_id));
    if (stored->standing == standing_rooted) {
        change->named = *out_id;
        change->name = stored->block;
    }
    return KVB_OK;
}

/* An engine hash that comes with other content than before: its copies are gone, unless
 * no content was known of it. */
static kvb_status
replace(struct mirror_change *change, uint32_t *id, const struct mirror_block *stored)
{
    struct kvb_mirror *mirror = change->mirror;
    const bool is_new_name = is_nameless(mirror, &mirror->entries[*id]);
    struct copies known[KVB_TIER_COUNT];

    for (size_t tier = 0; tier < KVB_TIER_COUNT; tier++) {
        known[tier] = kvb_mirror_copies(mirror, *id, (enum kvb_tier)tier);
    }
    mirror->counts.aliases += !is_new_name;
    KVB_TRY(remove_all_copies(change, *id));
    KVB_TRY(insert(change, stored, id));
    for (size_t tier = 0; tier < KVB_TIER_COUNT && is_new_name; tier++) {
        KVB_TRY(kvb_mirror_change_copies(change, *id, (enum kvb_tier)tier, known[tier]));
    }
    return KVB_OK;
}

static bool is_nameless_yet(const struct mirror_entry *entry)
{
    return entry->standing == standing_waiting || entry->standing == standing_unplaced;
}

kvb_status kvb_mirror_take_block(
    struct mirror_change *change, uint32_t i, const struct mirror_block *stored, uint32_t *out_id)
{
    struct kvb_mirror *mirror = change->mirror;
    uint32_t id = kvb_mirror_find(mirror, stored->group, stored->engine);

    const bool is_other =
        id != KVB_NO_ID && !is_same_content(change, i, &mirror->entries[id], stored);
    if (id == KVB_NO_ID || is_other) {
        mirror->counts.unmatchable += stored->standing == standing_unmatchable;
        KVB_TRY(is_other ? replace(change, &id, stored) : insert(change, stored, &id));
        if (stored->standing == standing_rooted) {
            KVB_TRY(remember_to_name_children(mirror, id));
        }
    } else if (is_nameless_yet(&mirror->entries[id]) && stored->standing == standing_rooted) {
        KVB_TRY(kvb_mirror_name_entry(change, id, stored));
    }
    *out_id = id;
    return KVB_OK;
}

static uint8_t one_more(uint8_t copies)
{
    return copies < kvb_most_copies ? copies + 1 : kvb_most_copies;
}

/* A block that was not there has one certain copy, whatever the Stored was: but in a window
 * group vLLM repeats also what it does not hold. */
kvb_status kvb_mirror_add_copy(struct mirror_change *change, uint32_t i, uint32_t id)
{
    const enum kvb_tier tier = change->event->tier;
    struct kvb_mirror *mirror = change->mirror;
    struct copies copies = kvb_mirror_copies(mirror, id, tier);
    const bool is_again = copies.most > 0;

    mirror->counts.duplicate_stored += is_again;
    if ((is_again || change->is_window) && kvb_mirror_is_real(change, i)) {
        copies.least = one_more(copies.least);
    } else if (!change->is_window && copies.least == 0) {
        copies.least = 1;
    }
    change->has_new |= !is_again;
    copies.most = one_more(copies.most);
    return kvb_mirror_change_copies(change, id, tier, copies);
}

/* Child `id` of `parent`, which has its name now. */
static kvb_status name_child(struct mirror_change *change, uint32_t parent, uint32_t id)
{
    const struct kvb_mirror *mirror = change->mirror;
    const struct mirror_entry *entry = &mirror->entries[id];
    const struct mirror_context *context = kvb_mirror_context(mirror, entry);
    const struct place place = kvb_mirror_place_after(change, parent);
    const struct mirror_block named = {
        .engine = entry->engine,
        .block = name_at(mirror, &place, entry->engine, entry->tokens),
        .tokens = entry->tokens,
        .parent = place.parent,
        .seed = context->seed,
        .group = context->group,
        .standing = standing_rooted,
        .has_parent = true,
    };

    return kvb_mirror_name_entry(change, id, &named);
}

/* The next child that waits for `parent` and can be named, or KVB_NO_ID.  A child hashed
 * under another seed (its salt was in a block we never saw) cannot be named and waits on. */
static uint32_t waiting_child(const struct kvb_mirror *mirror, uint32_t parent)
{
    const struct mirror_entry *entry = &mirror->entries[parent];

    if (!entry->is_used || entry->standing != standing_rooted) {
        return KVB_NO_ID; /* forgotten since it was remembered */
    }
    const uint32_t group = kvb_mirror_context(mirror, entry)->group;
    const uint32_t hash = kvb_mirror_hash_parent(group, entry->engine.value);
    size_t at = kvb_id_table_start(&mirror->by_parent, hash);

    for (uint32_t id; (id = kvb_id_table_next(&mirror->by_parent, hash, &at)) != KVB_NO_ID;) {
        const struct mirror_entry *child = &mirror->entries[id];
        if (child->context == entry->context && child->parent == entry->engine.value) {
            return id;
        }
    }
    return KVB_NO_ID;
}

/* The same hash in window groups. */
static kvb_status place_windows_of(struct mirror_change *change, uint32_t id)
{
    const struct kvb_mirror *mirror = change->mirror;
    const struct mirror_entry *entry = &mirror->entries[id];
    const bool may_place = mirror->counts.unplaced > 0 && entry->is_used &&
                           entry->standing == standing_rooted &&
                           kvb_mirror_group_of(mirror, entry)->kind == KVB_GROUP_FULL;

    return may_place ? kvb_mirror_place_in_windows(change, id) : KVB_OK;
}

/* Names all that waited for the entries just named.  Ends because each round
 * makes one waiting entry a rooted one. */
static kvb_status name_waiting_children(struct mirror_change *change)
{
    struct kvb_mirror *mirror = change->mirror;

    while (mirror->pending_count > 0) {
        const uint32_t parent = mirror->pending[mirror->pending_count - 1];
        const uint32_t child = waiting_child(mirror, parent);
        if (child == KVB_NO_ID) {
            mirror->pending_count--;
            KVB_TRY(place_windows_of(change, parent));
            continue;
        }
        KVB_TRY(name_child(change, parent, child));
    }
    return KVB_OK;
}

static bool names_its_own_parent(const struct mirror_change *change)
{
    const struct kvb_engine_event *event = change->event;

    for (uint32_t i = 0; event->has_parent && i < event->hash_count; i++) {
        if (change->batch->hashes[event->hash_at + i].value == event->parent.value) {
            return true;
        }
    }
    return false;
}

/* A tokenless Stored of block i: true when it moves a block that is known. */
static bool is_known(const struct mirror_change *change, uint32_t i, uint32_t *out_id)
{
    const struct kvb_engine_event *event = change->event;

    if (event->token_count > 0) {
        return false;
    }
    *out_id = kvb_mirror_find_known(
        change->mirror, event, change->group, change->batch->hashes[event->hash_at + i]);
    return *out_id != KVB_NO_ID;
}

/* A key that is put again with another block has left the one it was. */
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

static kvb_status store_in_chain(struct mirror_change *change)
{
    struct kvb_mirror *mirror = change->mirror;
    const struct kvb_engine_event *event = change->event;
    const bool takes_names = event->token_count > 0 || mirror->hashes == KVB_HASHES_ENGINE;
    struct place place = takes_names ? first_place(change) : (struct place){ 0 };
    struct mirror_block ahead[most_ahead];

    for (uint32_t i = 0; i < event->hash_count; i++) {
        uint32_t id = KVB_NO_ID;
        kvb_mirror_look_ahead(mirror, change->batch, change->group, event->hash_at + i);
        if (takes_names && i % most_ahead == 0) {
            look_ahead(change, i, place, ahead);
        }
        if (!is_known(change, i, &id)) {
            if (!takes_names) {
                mirror->counts.no_tokens++;
                continue;
            }
            struct mirror_block *next = &ahead[i % most_ahead];
            if (!is_of_place(next, &place)) {
                kvb_mirror_read_block(change, i, &place, next);
            }
            KVB_TRY(kvb_mirror_take_block(change, i, next, &id));
        }
        KVB_TRY(kvb_mirror_add_copy(change, i, id));
        place = kvb_mirror_place_after(change, id);
        change->last = id;
    }
    return KVB_OK;
}

static kvb_status store_blocks(struct mirror_change *change)
{
    bool is_proven = false;

    KVB_TRY(kvb_mirror_prove_ancestors(change, &is_proven));
    KVB_TRY(change->is_window ? kvb_mirror_store_in_window(change) : store_in_chain(change));
    KVB_TRY(name_waiting_children(change));
    kvb_mirror_end_stored(change, is_proven);
    return KVB_OK;
}

kvb_status kvb_mirror_store(struct mirror_change *change)
{
    struct kvb_mirror *mirror = change->mirror;
    const struct kvb_engine_event *event = change->event;

    if (names_its_own_parent(change)) {
        mirror->counts.self_parents++;
        return KVB_OK;
    }
    if (!kvb_mirror_learn_shape(mirror, event)) {
        mirror->counts.shapes_refused++;
        return KVB_OK;
    }
    KVB_TRY(forget_former(change));
    return store_blocks(change);
}
