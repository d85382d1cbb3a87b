#include "stream/mirror/inside.h"

#include "core/array.h"
#include "index/block_hash.h"

#include <string.h>

/* Prefetching distances, in hashes, for the name line, the entry and the block's line; and from how
 * many entries on prefetching pays. */
enum { line_distance = 24, entry_distance = 16, block_distance = 8, worth_looking = 1 << 12 };

/* ---- One entry ---- */

kvb_block_hash kvb_mirror_block(const struct kvb_mirror *mirror, const struct mirror_entry *entry)
{
    if (mirror->hashes == KVB_HASHES_ENGINE) {
        const uint32_t shards = mirror->groups.shard_mask;
        const bool is_shard =
            shards != 0 && (shards >> kvb_mirror_context(mirror, entry)->group & 1);
        /* the engine hash of a shard is the number of its object, which only this entry has */
        return (kvb_block_hash){ is_shard ? entry->tokens.value : entry->engine.value };
    }
    return entry->has_parent ? kvb_block_hash_next((kvb_block_hash){ entry->parent }, entry->tokens)
                             : kvb_block_hash_root(entry->tokens);
}

uint64_t kvb_mirror_key(const struct kvb_mirror *mirror, uint32_t id)
{
    return id < mirror->key_end ? mirror->keys[id] : 0;
}

/* ---- Finding ---- */

static uint64_t hash_engine(const struct kvb_mirror *mirror, uint32_t group, kvb_engine_hash engine)
{
    return kvb_hash_keyed(&mirror->hash_key, engine.value, group);
}

/* Engine hashes are hashed with their group, block hashes with UINT64_MAX.  A block hash may equal
 * its engine hash, and both would otherwise share a line. */
static uint64_t hash_block(const struct kvb_mirror *mirror, kvb_block_hash block)
{
    return kvb_hash_keyed(&mirror->hash_key, block.value, UINT64_MAX);
}

/* The next candidate of this kind, or KVB_NO_ID. */
[[gnu::hot]] static uint32_t
next_named(const struct kvb_mirror *mirror, struct kvb_line_probe *probe, enum name_kind kind)
{
    for (uint32_t ref; (ref = kvb_line_probe_next(&mirror->names, probe)) != KVB_NO_LINE_ID;) {
        if (ref % 2 == (uint32_t)kind) {
            return ref / 2;
        }
    }
    return KVB_NO_ID;
}

[[gnu::hot]] uint32_t
kvb_mirror_find(const struct kvb_mirror *mirror, uint32_t group, kvb_engine_hash engine)
{
    if (mirror->entry_count == 0) {
        return KVB_NO_ID; /* there may be no table yet */
    }
    struct kvb_line_probe probe =
        kvb_line_table_probe(&mirror->names, hash_engine(mirror, group, engine));

    if ((probe.hits | probe.line->next) == 0) {
        return KVB_NO_ID; /* most new blocks */
    }
    for (uint32_t id; (id = next_named(mirror, &probe, name_of_engine)) != KVB_NO_ID;) {
        const struct mirror_entry *entry = &mirror->entries[id];
        if (entry->engine.value == engine.value &&
            kvb_mirror_context(mirror, entry)->group == group) {
            return id;
        }
    }
    return KVB_NO_ID;
}

uint32_t kvb_mirror_find_key(const struct kvb_mirror *mirror, uint64_t key)
{
    const uint32_t hash = kvb_mirror_hash(mirror, key, 0);
    size_t at = kvb_id_table_start(&mirror->by_key, hash);

    for (uint32_t id; (id = kvb_id_table_next(&mirror->by_key, hash, &at)) != KVB_NO_ID;) {
        if (mirror->keys[id] == key) {
            return id;
        }
    }
    return KVB_NO_ID;
}

uint32_t kvb_mirror_find_known(
    const struct kvb_mirror *mirror, const struct kvb_engine_event *event, uint32_t group,
    kvb_engine_hash engine)
{
    return event->key ? kvb_mirror_find_key(mirror, event->key)
                      : kvb_mirror_find(mirror, group, engine);
}

uint32_t
kvb_mirror_find_named(const struct kvb_mirror *mirror, kvb_block_hash block, uint32_t group)
{
    uint32_t found = KVB_NO_ID;

    if (mirror->entry_count == 0) {
        return KVB_NO_ID;
    }
    struct kvb_line_probe probe = kvb_line_table_probe(&mirror->names, hash_block(mirror, block));
    for (uint32_t id; (id = next_named(mirror, &probe, name_of_block)) != KVB_NO_ID;) {
        const struct mirror_entry *entry = &mirror->entries[id];
        if (kvb_mirror_context(mirror, entry)->group != group ||
            kvb_mirror_block(mirror, entry).value != block.value) {
            continue;
        }
        if (found != KVB_NO_ID) {
            return KVB_NO_ID;
        }
        found = id;
    }
    return found;
}

bool kvb_mirror_is_name_new(const struct kvb_mirror *mirror, kvb_block_hash block)
{
    if (mirror->entry_count == 0) {
        return true;
    }
    const struct kvb_line_probe probe =
        kvb_line_table_probe(&mirror->names, hash_block(mirror, block));
    return (probe.hits | probe.line->next) == 0;
}

/* A line has fewer than kvb_max_of_name cells, so without an overflow line the name cannot be full.
 * This decides most calls at once. */
bool kvb_mirror_is_name_full(const struct kvb_mirror *mirror, kvb_block_hash block, uint32_t group)
{
    static_assert((int)kvb_max_of_name > (int)kvb_line_cells, "else one line decides nothing");
    uint32_t count = 0;

    if (mirror->entry_count == 0) {
        return false;
    }
    const uint64_t hash = hash_block(mirror, block);
    if (kvb_line_at(&mirror->names, hash)->next == 0) {
        return false;
    }
    struct kvb_line_probe probe = kvb_line_table_probe(&mirror->names, hash);
    for (uint32_t id; (id = next_named(mirror, &probe, name_of_block)) != KVB_NO_ID;) {
        const struct mirror_entry *entry = &mirror->entries[id];
        count += kvb_mirror_context(mirror, entry)->group == group &&
                 kvb_mirror_block(mirror, entry).value == block.value;
    }
    return count >= kvb_max_of_name;
}

uint32_t kvb_mirror_find_in_full(const struct kvb_mirror *mirror, kvb_engine_hash engine)
{
    for (uint32_t group = 0; group < mirror->groups.count; group++) {
        const uint32_t id = mirror->groups.list[group].kind == KVB_GROUP_FULL
                                ? kvb_mirror_find(mirror, group, engine)
                                : KVB_NO_ID;
        if (id != KVB_NO_ID) {
            return id;
        }
    }
    return KVB_NO_ID;
}

/* A guess of the entry without reading it: another name may have the same hash. */
static uint32_t guess(const struct kvb_mirror *mirror, uint64_t hash)
{
    struct kvb_line_probe probe = kvb_line_table_probe(&mirror->names, hash);

    return next_named(mirror, &probe, name_of_engine);
}

[[gnu::hot]] void kvb_mirror_look_ahead(
    const struct kvb_mirror *mirror, const struct kvb_event_batch *batch, uint32_t group, size_t at)
{
    if (mirror->entry_count < worth_looking || at + block_distance >= batch->hash_count) {
        return;
    }
    /* Three steps, each of which needs what the one before has fetched: the line of the engine's
     * hash, the entry that it names, the line of that entry's block. */
    if (at + line_distance < batch->hash_count) {
        kvb_line_table_prefetch(
            &mirror->names, hash_engine(mirror, group, batch->hashes[at + line_distance]));
    }
    if (at + entry_distance < batch->hash_count) {
        const uint32_t id =
            guess(mirror, hash_engine(mirror, group, batch->hashes[at + entry_distance]));
        if (id != KVB_NO_ID) {
            __builtin_prefetch(&mirror->entries[id], 1);
        }
    }
    const uint32_t id =
        guess(mirror, hash_engine(mirror, group, batch->hashes[at + block_distance]));
    if (id != KVB_NO_ID && mirror->entries[id].placement == placement_rooted) {
        const kvb_block_hash block = kvb_mirror_block(mirror, &mirror->entries[id]);
        kvb_line_table_prefetch(&mirror->names, hash_block(mirror, block));
    }
}

void kvb_mirror_expect_batch(const struct kvb_mirror *mirror, const struct kvb_event_batch *batch)
{
    size_t left = line_distance;

    if (mirror->entry_count < worth_looking) {
        return;
    }
    for (size_t at = 0; at < batch->event_count && left > 0; at++) {
        const struct kvb_engine_event *event = &batch->events[at];
        const size_t count = event->hash_count < left ? event->hash_count : left;
        const uint32_t group = kvb_mirror_group_place(mirror, event->group);
        for (size_t i = 0; i < count; i++) {
            const kvb_engine_hash engine = batch->hashes[event->hash_at + i];
            kvb_line_table_prefetch(&mirror->names, hash_engine(mirror, group, engine));
        }
        left -= count;
    }
}

void kvb_mirror_expect(const struct kvb_mirror *mirror, kvb_block_hash block)
{
    if (mirror->entry_count >= worth_looking) {
        kvb_line_table_prefetch(&mirror->names, hash_block(mirror, block));
    }
}

/* ---- Published lists ---- */

[[gnu::hot]] unsigned kvb_mirror_list_of(
    const struct kvb_mirror *mirror, const struct mirror_entry *entry, enum kvb_tier tier)
{
    if (entry->placement != placement_rooted || !(mirror->tiers >> tier & 1)) {
        return KVB_LIST_COUNT;
    }
    if (mirror->groups.window_mask == 0 ||
        !(mirror->groups.window_mask >> kvb_mirror_context(mirror, entry)->group & 1)) {
        return tier;
    }
    return tier == KVB_TIER_DEVICE ? KVB_LIST_WINDOW : KVB_LIST_COUNT;
}

struct kvb_line_probe kvb_mirror_probe_name(const struct kvb_mirror *mirror, kvb_block_hash block)
{
    return kvb_line_table_probe(&mirror->names, hash_block(mirror, block));
}

/* Like kvb_mirror_next_holder(), but skips the entry `except`. */
static inline uint32_t next_holder(
    const struct kvb_mirror *mirror, struct kvb_line_probe *probe, kvb_block_hash block,
    enum kvb_tier tier, uint32_t except)
{
    for (uint32_t id; (id = next_named(mirror, probe, name_of_block)) != KVB_NO_ID;) {
        const struct mirror_entry *entry = &mirror->entries[id];
        if (id != except && kvb_mirror_holds(entry, tier) &&
            kvb_mirror_block(mirror, entry).value == block.value) {
            return id;
        }
    }
    return KVB_NO_ID;
}

uint32_t kvb_mirror_next_holder(
    const struct kvb_mirror *mirror, struct kvb_line_probe *probe, kvb_block_hash block,
    enum kvb_tier tier)
{
    return next_holder(mirror, probe, block, tier, KVB_NO_ID);
}

uint32_t kvb_mirror_next_of_name(
    const struct kvb_mirror *mirror, struct kvb_line_probe *probe, kvb_block_hash block)
{
    for (uint32_t id; (id = next_named(mirror, probe, name_of_block)) != KVB_NO_ID;) {
        if (kvb_mirror_block(mirror, &mirror->entries[id]).value == block.value) {
            return id;
        }
    }
    return KVB_NO_ID;
}

/* The tier whose copies count in the list. */
static enum kvb_tier tier_of_list(unsigned list)
{
    return list == KVB_LIST_WINDOW ? KVB_TIER_DEVICE : (enum kvb_tier)list;
}

/* The entries with one published name that hold it in one tier. */
struct holders {
    uint32_t groups; /* bit g: an entry of group g holds it */
    uint32_t lowest; /* the lowest id in groups that the list needs; KVB_NO_ID: none */
};

static struct holders holders_of(
    const struct kvb_mirror *mirror, kvb_block_hash block, enum kvb_tier tier, uint32_t wanted,
    uint32_t except)
{
    struct holders holders = { .lowest = KVB_NO_ID };

    if (mirror->entry_count == 0) {
        return holders;
    }
    struct kvb_line_probe probe = kvb_mirror_probe_name(mirror, block);
    for (uint32_t id; (id = next_holder(mirror, &probe, block, tier, except)) != KVB_NO_ID;) {
        const uint32_t group = 1U << kvb_mirror_context(mirror, &mirror->entries[id])->group;
        holders.groups |= group;
        if ((group & wanted) && id < holders.lowest) {
            holders.lowest = id;
        }
    }
    return holders;
}

/* The groups that must all hold a name so that the list has it for this group. */
static uint32_t
wanted_with(const struct kvb_mirror *mirror, const struct mirror_entry *entry, unsigned list)
{
    const struct mirror_groups *groups = &mirror->groups;

    return list == KVB_LIST_WINDOW
               ? groups->windows[groups->list[kvb_mirror_context(mirror, entry)->group].window]
                     .wanted
               : groups->wanted[list];
}

bool kvb_mirror_decides(
    const struct kvb_mirror *mirror, uint32_t id, kvb_block_hash block, unsigned list)
{
    if (mirror->groups.count == 1 && mirror->entry_count > 0) { /* most engines have one group */
        struct kvb_line_probe probe = kvb_mirror_probe_name(mirror, block);
        return next_holder(mirror, &probe, block, tier_of_list(list), id) == KVB_NO_ID;
    }
    /* With several groups all that count must hold the name; of a store, those of some family. */
    const uint32_t wanted = wanted_with(mirror, &mirror->entries[id], list);
    const uint32_t group = 1U << kvb_mirror_context(mirror, &mirror->entries[id])->group;
    const uint32_t others = holders_of(mirror, block, tier_of_list(list), wanted, id).groups;

    if (mirror->groups.shard_mask != 0) {
        return !kvb_mirror_holds_all(&mirror->groups, wanted, others, no_family) &&
               kvb_mirror_holds_all(&mirror->groups, wanted, others | group, no_family);
    }
    return !(others & group) && ((others | group) & wanted) == wanted;
}

static bool is_whole(const struct kvb_mirror *mirror, uint32_t wanted, struct holders holders)
{
    if (holders.lowest != KVB_NO_ID && mirror->groups.shard_mask != 0) {
        return kvb_mirror_holds_all(&mirror->groups, wanted, holders.groups, no_family);
    }
    return holders.lowest != KVB_NO_ID && (holders.groups & wanted) == wanted;
}

/* For the lists of the tiers. */
uint32_t kvb_mirror_speaker(const struct kvb_mirror *mirror, kvb_block_hash block, unsigned list)
{
    const uint32_t wanted = mirror->groups.wanted[list];
    const struct holders holders = holders_of(mirror, block, tier_of_list(list), wanted, KVB_NO_ID);

    return is_whole(mirror, wanted, holders) ? holders.lowest : KVB_NO_ID;
}

bool kvb_mirror_speaks(const struct kvb_mirror *mirror, uint32_t id, unsigned list)
{
    const struct mirror_entry *entry = &mirror->entries[id];
    const enum kvb_tier tier = tier_of_list(list);

    if (!entry->is_used || !kvb_mirror_holds(entry, tier) ||
        kvb_mirror_list_of(mirror, entry, tier) != list) {
        return false;
    }
    const uint32_t wanted = wanted_with(mirror, entry, list);
    const struct holders holders =
        holders_of(mirror, kvb_mirror_block(mirror, entry), tier, wanted, KVB_NO_ID);
    return holders.lowest == id && is_whole(mirror, wanted, holders);
}

kvb_block_hash kvb_mirror_listed_name(
    const struct kvb_mirror *mirror, const struct mirror_entry *entry, kvb_block_hash block,
    unsigned list)
{
    return list == KVB_LIST_WINDOW
               ? kvb_block_hash_in_window(
                     block, mirror->groups.list[kvb_mirror_context(mirror, entry)->group].window)
               : block;
}

bool kvb_mirror_is_listed_without(
    const struct kvb_mirror *mirror, uint32_t id, unsigned list, uint32_t family)
{
    const struct mirror_entry *entry = &mirror->entries[id];
    const uint32_t wanted = wanted_with(mirror, entry, list);
    const struct holders holders =
        holders_of(mirror, kvb_mirror_block(mirror, entry), tier_of_list(list), wanted, KVB_NO_ID);

    return kvb_mirror_holds_all(&mirror->groups, wanted, holders.groups, family);
}

/* ---- Contexts ----
 *
 * A context is what entries of one prompt share.  Contexts are found by seed, group and size,
 * reference-counted, and freed with the last entry. */

static uint32_t
context_hash(const struct kvb_mirror *mirror, uint64_t seed, uint32_t group, uint32_t size)
{
    return kvb_mirror_hash(mirror, seed, (uint64_t)size << 32 | group);
}

static bool
is_context(const struct kvb_mirror *mirror, uint32_t id, const struct mirror_block *block)
{
    const struct mirror_context *context = &mirror->contexts[id];

    return context->seed == block->seed && context->group == block->group &&
           context->size == block->size;
}

static kvb_status
new_context(struct kvb_mirror *mirror, const struct mirror_block *block, uint32_t *out_id)
{
    const bool is_free = mirror->first_free_context != KVB_NO_ID;
    const uint32_t id = is_free ? mirror->first_free_context : (uint32_t)mirror->context_end;

    if (!is_free) {
        KVB_TRY(kvb_array_reserve(
            &mirror->contexts, &mirror->context_capacity, mirror->context_end + 1,
            sizeof *mirror->contexts, mirror->max_blocks));
    }
    KVB_TRY(kvb_id_table_put(
        &mirror->by_context, context_hash(mirror, block->seed, block->group, block->size), id));
    if (is_free) {
        mirror->first_free_context = mirror->contexts[id].uses;
    } else {
        mirror->context_end++;
    }
    mirror->contexts[id] =
        (struct mirror_context){ .seed = block->seed, .group = block->group, .size = block->size };
    *out_id = id;
    return KVB_OK;
}

/* Adds an entry to the block's context, which is made if there is none.  KVB_TOO_LARGE,
 * KVB_NO_MEMORY: nothing changed. */
[[gnu::hot]] static kvb_status
join_context(struct kvb_mirror *mirror, const struct mirror_block *block, uint32_t *out_id)
{
    if (mirror->newest_context != KVB_NO_ID && is_context(mirror, mirror->newest_context, block)) {
        *out_id = mirror->newest_context; /* the same prompt, as a rule */
        mirror->contexts[*out_id].uses++;
        return KVB_OK;
    }
    const uint32_t hash = context_hash(mirror, block->seed, block->group, block->size);
    size_t at = kvb_id_table_start(&mirror->by_context, hash);
    uint32_t id = KVB_NO_ID;
    do {
        id = kvb_id_table_next(&mirror->by_context, hash, &at);
    } while (id != KVB_NO_ID && !is_context(mirror, id, block));
    if (id == KVB_NO_ID) {
        KVB_TRY(new_context(mirror, block, &id));
    }
    mirror->contexts[id].uses++;
    mirror->newest_context = id;
    *out_id = id;
    return KVB_OK;
}

/* Removes an entry from its context. */
static void leave_context(struct kvb_mirror *mirror, uint32_t id)
{
    struct mirror_context *context = &mirror->contexts[id];

    if (--context->uses > 0) {
        return;
    }
    kvb_id_table_remove(
        &mirror->by_context, context_hash(mirror, context->seed, context->group, context->size),
        id);
    if (mirror->newest_context == id) {
        mirror->newest_context = KVB_NO_ID;
    }
    context->uses = mirror->first_free_context;
    mirror->first_free_context = id;
}

/* ---- Filing ---- */

static uint64_t entry_name_hash(const struct kvb_mirror *mirror, uint32_t id, enum name_kind kind)
{
    const struct mirror_entry *entry = &mirror->entries[id];

    return kind == name_of_engine
               ? hash_engine(mirror, kvb_mirror_context(mirror, entry)->group, entry->engine)
               : hash_block(mirror, kvb_mirror_block(mirror, entry));
}

[[gnu::hot]] static uint64_t hash_of_ref(const void *context, uint32_t ref)
{
    return entry_name_hash(context, ref / 2, (enum name_kind)(ref % 2));
}

static kvb_status
put_name(struct kvb_mirror *mirror, uint64_t hash, uint32_t id, enum name_kind kind)
{
    return kvb_line_table_put(&mirror->names, hash, 2 * id + (uint32_t)kind);
}

static void remove_name(struct kvb_mirror *mirror, uint32_t id, enum name_kind kind)
{
    kvb_line_table_remove(
        &mirror->names, entry_name_hash(mirror, id, kind), 2 * id + (uint32_t)kind);
}

/* Adds a rooted entry under its published name, a waiting one under its parent's engine hash. */
[[gnu::hot]] static kvb_status
file_second(struct kvb_mirror *mirror, uint32_t id, kvb_block_hash block)
{
    const struct mirror_entry *entry = &mirror->entries[id];

    switch ((enum placement)entry->placement) {
    case placement_rooted:
        return put_name(mirror, hash_block(mirror, block), id, name_of_block);
    case placement_waiting:
        return kvb_mirror_wait(mirror, id);
    case placement_unmatchable:
    case placement_unplaced:
        break;
    }
    return KVB_OK;
}

/* engine: the hash of the entry's engine hash. */
static kvb_status
file_names(struct kvb_mirror *mirror, uint32_t id, uint64_t engine, kvb_block_hash block)
{
    const uint64_t key = kvb_mirror_key(mirror, id);

    if (mirror->names.line_count == 0) { /* an empty stream reserves no address space */
        KVB_TRY(kvb_line_table_open(
            &mirror->names, 2 * mirror->max_blocks, kvb_line_dense, hash_of_ref, mirror));
    }
    KVB_TRY(put_name(mirror, engine, id, name_of_engine));
    kvb_status status =
        key != 0 ? kvb_id_table_put(&mirror->by_key, kvb_mirror_hash(mirror, key, 0), id) : KVB_OK;
    if (status == KVB_OK) {
        status = file_second(mirror, id, block);
        if (status != KVB_OK && key != 0) {
            kvb_id_table_remove(&mirror->by_key, kvb_mirror_hash(mirror, key, 0), id);
        }
    }
    if (status != KVB_OK) {
        remove_name(mirror, id, name_of_engine);
    }
    return status;
}

kvb_status kvb_mirror_file(struct kvb_mirror *mirror, uint32_t id, kvb_block_hash block)
{
    return file_names(mirror, id, entry_name_hash(mirror, id, name_of_engine), block);
}

static void unfile_entry(struct kvb_mirror *mirror, uint32_t id)
{
    const struct mirror_entry *entry = &mirror->entries[id];
    const uint64_t key = kvb_mirror_key(mirror, id);

    remove_name(mirror, id, name_of_engine);
    if (key) {
        kvb_id_table_remove(&mirror->by_key, kvb_mirror_hash(mirror, key, 0), id);
    }
    if (entry->placement == placement_rooted) {
        remove_name(mirror, id, name_of_block);
    } else if (entry->placement == placement_waiting) {
        kvb_mirror_wait_no_more(mirror, id, entry);
    }
}

/* ---- Inserting and dropping ---- */

/* The array of keys grows with the first key at or beyond its end; entries without a key get 0. */
static kvb_status write_entry_key(struct kvb_mirror *mirror, uint32_t id, uint64_t key)
{
    if (key == 0 && id >= mirror->key_end) {
        return KVB_OK;
    }
    KVB_TRY(kvb_array_reserve(
        &mirror->keys, &mirror->key_capacity, (size_t)id + 1, sizeof *mirror->keys,
        mirror->max_blocks));
    for (; mirror->key_end <= id; mirror->key_end++) {
        mirror->keys[mirror->key_end] = 0;
    }
    mirror->keys[id] = key;
    return KVB_OK;
}

kvb_status
kvb_mirror_write(struct kvb_mirror *mirror, uint32_t id, const struct mirror_block *block)
{
    uint32_t context = KVB_NO_ID;

    KVB_TRY(join_context(mirror, block, &context));
    const kvb_status status = write_entry_key(mirror, id, block->key);
    if (status != KVB_OK) {
        leave_context(mirror, context);
        return status;
    }
    mirror->entries[id] = (struct mirror_entry){
        .engine = block->engine,
        .tokens = block->tokens,
        .parent = block->parent,
        .context = context & ((1U << context_bits) - 1),
        .placement = (uint32_t)block->placement & 3,
        .has_parent = block->has_parent,
        .is_used = true,
    };
    return KVB_OK;
}

void kvb_mirror_wipe(struct kvb_mirror *mirror, uint32_t id)
{
    leave_context(mirror, mirror->entries[id].context);
}

[[gnu::cold, gnu::noinline]] static kvb_status grow_entries(struct kvb_mirror *mirror, size_t count)
{
    const size_t entry_bytes = sizeof *mirror->entries;

    if (count > mirror->max_blocks) {
        return KVB_TOO_LARGE;
    }
    if (!mirror->entry_memory.base) {
        KVB_TRY(kvb_region_open(&mirror->entry_memory, mirror->max_blocks * entry_bytes));
    }
    KVB_TRY(kvb_region_reach(&mirror->entry_memory, count * entry_bytes));
    const size_t capacity = mirror->entry_memory.bytes / entry_bytes;
    mirror->entries = (struct mirror_entry *)(void *)mirror->entry_memory.base;
    mirror->entry_capacity = capacity < mirror->max_blocks ? capacity : mirror->max_blocks;
    return KVB_OK;
}

kvb_status kvb_mirror_reserve(struct kvb_mirror *mirror, size_t count)
{
    return count <= mirror->entry_capacity ? KVB_OK : grow_entries(mirror, count);
}

[[gnu::hot]] kvb_status
kvb_mirror_insert(struct kvb_mirror *mirror, const struct mirror_block *block, uint32_t *out_id)
{
    /* The first free number, or a new one at the end. */
    const bool is_free = mirror->first_free != KVB_NO_ID;
    const uint32_t id = is_free ? mirror->first_free : (uint32_t)mirror->entry_end;

    if (!is_free) {
        KVB_TRY(kvb_mirror_reserve(mirror, mirror->entry_end + 1));
    }
    const uint64_t next = is_free ? mirror->entries[id].parent : KVB_NO_ID;
    kvb_status status = kvb_mirror_write(mirror, id, block);
    if (status == KVB_OK) {
        /* The hash is computed from the block, because the entry's bit fields have just been
         * written byte by byte: to read them as a word, the processor would wait until they are in
         * the cache. */
        const uint64_t engine = hash_engine(mirror, block->group, block->engine);
        status = file_names(mirror, id, engine, block->block);
        if (status != KVB_OK) {
            kvb_mirror_wipe(mirror, id);
        }
    }
    if (status != KVB_OK) {
        mirror->entries[id] = (struct mirror_entry){ .parent = next };
        return status;
    }
    if (is_free) {
        mirror->first_free = (uint32_t)next;
    } else {
        mirror->entry_end++;
    }
    mirror->entry_count++;
    kvb_mirror_mark(mirror, id);
    if (mirror->proven && mirror->proven[id % proof_slots].id == id) {
        mirror->proven[id % proof_slots].id =
            KVB_NO_ID; /* of the entry that had this number before */
    }
    mirror->counts.unrooted += block->placement == placement_waiting;
    mirror->counts.unplaced += block->placement == placement_unplaced;
    *out_id = id;
    return KVB_OK;
}

void kvb_mirror_mark(struct kvb_mirror *mirror, uint32_t id)
{
    const uint64_t bit = UINT64_C(1) << (id % 64);

    if (mirror->changed.bits && !(mirror->changed.bits[id / 64] & bit)) {
        mirror->changed.bits[id / 64] |= bit;
        mirror->changed.count++;
    }
}

void kvb_mirror_free_entry(struct kvb_mirror *mirror, uint32_t id)
{
    mirror->entries[id] = (struct mirror_entry){ .parent = mirror->first_free };
    kvb_mirror_mark(mirror, id);
    mirror->first_free = id;
}

void kvb_mirror_drop(struct kvb_mirror *mirror, uint32_t id, bool keeps_number)
{
    struct mirror_entry *entry = &mirror->entries[id];
    const kvb_engine_hash engine = entry->engine;

    /* From the outside inwards: the tables find the entry by what it still says. */
    mirror->counts.proven_copies -= kvb_mirror_copies(mirror, id, KVB_TIER_DEVICE).min;
    kvb_mirror_forget_copies(mirror, id);
    unfile_entry(mirror, id);
    kvb_mirror_wipe(mirror, id);
    mirror->counts.unrooted -= entry->placement == placement_waiting;
    mirror->counts.unplaced -= entry->placement == placement_unplaced;
    mirror->entry_count--;
    if (keeps_number) {
        *entry = (struct mirror_entry){ .engine = engine };
        kvb_mirror_mark(mirror, id);
    } else {
        kvb_mirror_free_entry(mirror, id);
    }
}

/* The entry keeps its key and its copies. */
kvb_status kvb_mirror_name(struct kvb_mirror *mirror, uint32_t id, const struct mirror_block *named)
{
    struct mirror_entry *entry = &mirror->entries[id];
    const struct mirror_entry waiting = *entry;
    const bool was_waiting = waiting.placement == placement_waiting;
    uint32_t context = KVB_NO_ID;

    assert(was_waiting || waiting.placement == placement_unplaced);
    assert(named->placement == placement_rooted);
    /* The entry stands as the other tables know it until it is filed. */
    KVB_TRY(join_context(mirror, named, &context));
    entry->placement = placement_rooted;
    entry->tokens = named->tokens;
    entry->parent = named->parent;
    entry->has_parent = named->has_parent;
    entry->context = context & ((1U << context_bits) - 1);
    const kvb_status status = file_second(mirror, id, named->block);
    if (status != KVB_OK) {
        *entry = waiting;
        leave_context(mirror, context);
        return status;
    }
    if (was_waiting) {
        kvb_mirror_wait_no_more(mirror, id, &waiting);
    }
    leave_context(mirror, waiting.context);
    kvb_mirror_mark(mirror, id);
    mirror->counts.unrooted -= was_waiting;
    mirror->counts.unplaced -= !was_waiting;
    return KVB_OK;
}
