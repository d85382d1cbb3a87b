#include "stream/mirror_entry.h"

#include "core/array.h"

#include <assert.h>
#include <string.h>

enum { doubtful_share = 8, doubtful_floor = 64 };

uint32_t kvb_mirror_hash_engine(uint32_t group, uint64_t engine)
{
    return kvb_id_hash(engine + group * UINT64_C(0x9e3779b97f4a7c15));
}

uint32_t kvb_mirror_find(const struct kvb_mirror *mirror, uint32_t group, kvb_engine_hash engine)
{
    const uint32_t hash = kvb_mirror_hash_engine(group, engine.value);
    size_t at = kvb_id_table_start(&mirror->by_engine, hash);

    for (uint32_t id; (id = kvb_id_table_next(&mirror->by_engine, hash, &at)) != KVB_NO_ID;) {
        const struct mirror_entry *entry = &mirror->entries[id];
        if (entry->engine.value == engine.value && entry->group == group) {
            return id;
        }
    }
    return KVB_NO_ID;
}

uint32_t kvb_mirror_find_key(const struct kvb_mirror *mirror, uint64_t key)
{
    const uint32_t hash = kvb_id_hash(key);
    size_t at = kvb_id_table_start(&mirror->by_key, hash);

    for (uint32_t id; (id = kvb_id_table_next(&mirror->by_key, hash, &at)) != KVB_NO_ID;) {
        if (mirror->entries[id].key == key) {
            return id;
        }
    }
    return KVB_NO_ID;
}

uint32_t kvb_mirror_find_known(
    const struct kvb_mirror *mirror, const struct kvb_engine_event *event, kvb_engine_hash engine)
{
    return event->key ? kvb_mirror_find_key(mirror, event->key)
                      : kvb_mirror_find(mirror, event->group, engine);
}

bool kvb_mirror_is_held_elsewhere(
    const struct kvb_mirror *mirror, kvb_block_hash block, enum kvb_tier tier, uint32_t except)
{
    const uint32_t hash = kvb_id_hash(block.value);
    size_t at = kvb_id_table_start(&mirror->by_block, hash);

    for (uint32_t id; (id = kvb_id_table_next(&mirror->by_block, hash, &at)) != KVB_NO_ID;) {
        const struct mirror_entry *entry = &mirror->entries[id];
        if (id != except && entry->block.value == block.value && entry->copies[tier].least > 0) {
            return true;
        }
    }
    return false;
}

/* The table and key under which an entry is filed besides its engine hash. */
static struct kvb_id_table *
second_table(struct kvb_mirror *mirror, const struct mirror_entry *entry, uint32_t *out_hash)
{
    switch ((enum standing)entry->standing) {
    case standing_rooted:
        *out_hash = kvb_id_hash(entry->block.value);
        return &mirror->by_block;
    case standing_waiting:
        *out_hash = kvb_mirror_hash_engine(entry->group, entry->parent);
        return &mirror->by_parent;
    case standing_unmatchable:
        break;
    }
    return NULL;
}

static kvb_status file_second(struct kvb_mirror *mirror, uint32_t id)
{
    uint32_t hash = 0;
    struct kvb_id_table *table = second_table(mirror, &mirror->entries[id], &hash);

    return table ? kvb_id_table_put(table, hash, id) : KVB_OK;
}

static void unfile_second(struct kvb_mirror *mirror, uint32_t id)
{
    uint32_t hash = 0;
    struct kvb_id_table *table = second_table(mirror, &mirror->entries[id], &hash);

    if (table) {
        kvb_id_table_remove(table, hash, id);
    }
}

static kvb_status file_key_and_second(struct kvb_mirror *mirror, uint32_t id)
{
    const struct mirror_entry *entry = &mirror->entries[id];

    if (entry->key == 0) {
        return file_second(mirror, id);
    }
    KVB_TRY(kvb_id_table_put(&mirror->by_key, kvb_id_hash(entry->key), id));
    const kvb_status status = file_second(mirror, id);
    if (status != KVB_OK) {
        kvb_id_table_remove(&mirror->by_key, kvb_id_hash(entry->key), id);
    }
    return status;
}

kvb_status kvb_mirror_file(struct kvb_mirror *mirror, uint32_t id)
{
    const struct mirror_entry *entry = &mirror->entries[id];
    const uint32_t hash = kvb_mirror_hash_engine(entry->group, entry->engine.value);

    KVB_TRY(kvb_id_table_put(&mirror->by_engine, hash, id));
    const kvb_status status = file_key_and_second(mirror, id);
    if (status != KVB_OK) {
        kvb_id_table_remove(&mirror->by_engine, hash, id);
    }
    return status;
}

static void unfile(struct kvb_mirror *mirror, uint32_t id)
{
    const struct mirror_entry *entry = &mirror->entries[id];

    kvb_id_table_remove(
        &mirror->by_engine, kvb_mirror_hash_engine(entry->group, entry->engine.value), id);
    if (entry->key) {
        kvb_id_table_remove(&mirror->by_key, kvb_id_hash(entry->key), id);
    }
    unfile_second(mirror, id);
}

static kvb_status draw_id(struct kvb_mirror *mirror, uint32_t *out_id)
{
    if (mirror->first_free != KVB_NO_ID) {
        *out_id = mirror->first_free;
        return KVB_OK;
    }
    KVB_TRY(kvb_array_reserve(
        &mirror->entries, &mirror->entry_capacity, mirror->entry_end + 1, sizeof *mirror->entries,
        mirror->max_blocks));
    mirror->entries[mirror->entry_end].newer = KVB_NO_ID;
    *out_id = (uint32_t)mirror->entry_end;
    return KVB_OK;
}

static void take_id(struct kvb_mirror *mirror, uint32_t id)
{
    if (id == mirror->first_free) {
        mirror->first_free = mirror->entries[id].newer;
    } else {
        mirror->entry_end++;
    }
    mirror->entry_count++;
}

kvb_status
kvb_mirror_insert(struct kvb_mirror *mirror, const struct mirror_entry *entry, uint32_t *out_id)
{
    uint32_t id = KVB_NO_ID;

    KVB_TRY(draw_id(mirror, &id));
    const uint32_t next_free = mirror->entries[id].newer;
    mirror->entries[id] = *entry;
    mirror->entries[id].newer = next_free;
    const kvb_status status = kvb_mirror_file(mirror, id);
    if (status != KVB_OK) {
        mirror->entries[id].is_used = false;
        return status;
    }
    take_id(mirror, id);
    struct mirror_entry *mine = &mirror->entries[id];
    mine->older = mine->newer = KVB_NO_ID;
    mine->is_doubtful = false;
    mine->is_used = true;
    memset(mine->copies, 0, sizeof mine->copies);
    kvb_mirror_mark(mirror, id);
    mirror->counts.unrooted += mine->standing == standing_waiting;
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

/* ---- The doubtful list ---- */

static void unlink_doubtful(struct kvb_mirror *mirror, struct mirror_entry *entry)
{
    if (entry->older != KVB_NO_ID) {
        mirror->entries[entry->older].newer = entry->newer;
        kvb_mirror_mark(mirror, entry->older);
    } else {
        mirror->oldest_doubtful = entry->newer;
    }
    if (entry->newer != KVB_NO_ID) {
        mirror->entries[entry->newer].older = entry->older;
        kvb_mirror_mark(mirror, entry->newer);
    } else {
        mirror->newest_doubtful = entry->older;
    }
    entry->older = entry->newer = KVB_NO_ID;
    entry->is_doubtful = false;
    kvb_mirror_mark(mirror, (uint32_t)(entry - mirror->entries));
    mirror->listed_doubtful--;
    mirror->counts.doubtful--;
}

static void link_newest_doubtful(struct kvb_mirror *mirror, uint32_t id)
{
    struct mirror_entry *entry = &mirror->entries[id];

    entry->older = mirror->newest_doubtful;
    entry->newer = KVB_NO_ID;
    if (entry->older != KVB_NO_ID) {
        mirror->entries[entry->older].newer = id;
        kvb_mirror_mark(mirror, entry->older);
    } else {
        mirror->oldest_doubtful = id;
    }
    mirror->newest_doubtful = id;
    entry->is_doubtful = true;
    mirror->listed_doubtful++;
    mirror->counts.doubtful++;
}

bool kvb_mirror_is_doubtful(const struct mirror_entry *entry)
{
    for (size_t tier = 0; tier < KVB_TIER_COUNT; tier++) {
        if (entry->copies[tier].least == 0 && entry->copies[tier].most > 0) {
            return true;
        }
    }
    return false;
}

bool kvb_mirror_has_copies(const struct mirror_entry *entry)
{
    for (size_t tier = 0; tier < KVB_TIER_COUNT; tier++) {
        if (entry->copies[tier].most > 0) {
            return true;
        }
    }
    return false;
}

/* A doubtful entry is taken as gone where it is doubtful.  It still counts as
 * doubtful for the router: it may be held. */
static void forget_oldest_doubtful(struct kvb_mirror *mirror)
{
    const uint32_t id = mirror->oldest_doubtful;
    struct mirror_entry *entry = &mirror->entries[id];

    for (size_t tier = 0; tier < KVB_TIER_COUNT; tier++) {
        if (entry->copies[tier].least == 0) {
            entry->copies[tier].most = 0;
        }
    }
    unlink_doubtful(mirror, entry);
    mirror->counts.doubtful++; /* stays in the sum until the next clear */
    mirror->counts.forgotten_doubtful++;
    if (!kvb_mirror_has_copies(entry)) {
        kvb_mirror_drop(mirror, id);
    }
}

static size_t most_doubtful(const struct kvb_mirror *mirror)
{
    const size_t share = mirror->entry_count / doubtful_share;
    return share > doubtful_floor ? share : doubtful_floor;
}

void kvb_mirror_set_copies(
    struct kvb_mirror *mirror, uint32_t id, enum kvb_tier tier, struct copies copies)
{
    struct mirror_entry *entry = &mirror->entries[id];

    if (tier == KVB_TIER_DEVICE) {
        mirror->counts.proven_copies += copies.least;
        mirror->counts.proven_copies -= entry->copies[tier].least;
    }
    entry->copies[tier] = copies;
    kvb_mirror_mark(mirror, id);
    const bool doubtful = kvb_mirror_is_doubtful(entry);
    if (doubtful == entry->is_doubtful) {
        return;
    }
    if (!doubtful) {
        unlink_doubtful(mirror, entry);
        return;
    }
    link_newest_doubtful(mirror, id);
    if (mirror->listed_doubtful > most_doubtful(mirror) && mirror->oldest_doubtful != id) {
        forget_oldest_doubtful(mirror);
    }
}

/* ---- Leaving and naming ---- */

void kvb_mirror_drop(struct kvb_mirror *mirror, uint32_t id)
{
    struct mirror_entry *entry = &mirror->entries[id];

    if (entry->is_doubtful) {
        unlink_doubtful(mirror, entry);
    }
    unfile(mirror, id);
    mirror->counts.unrooted -= entry->standing == standing_waiting;
    mirror->counts.proven_copies -= entry->copies[KVB_TIER_DEVICE].least;
    entry->is_used = false;
    entry->newer = mirror->first_free;
    kvb_mirror_mark(mirror, id);
    mirror->first_free = id;
    mirror->entry_count--;
}

kvb_status kvb_mirror_name(struct kvb_mirror *mirror, uint32_t id, const struct mirror_entry *named)
{
    struct mirror_entry *entry = &mirror->entries[id];

    assert(entry->standing == standing_waiting && named->standing == standing_rooted);
    KVB_TRY(kvb_id_table_put(&mirror->by_block, kvb_id_hash(named->block.value), id));
    unfile_second(mirror, id); /* still under its old standing */
    entry->standing = standing_rooted;
    entry->block = named->block;
    entry->tokens = named->tokens;
    entry->seed = named->seed;
    entry->parent = named->parent;
    entry->has_parent = named->has_parent;
    entry->depth = named->depth;
    kvb_mirror_mark(mirror, id);
    mirror->counts.unrooted--;
    return KVB_OK;
}
