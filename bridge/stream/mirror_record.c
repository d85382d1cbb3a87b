#include "stream/mirror_record.h"

#include "core/array.h"
#include "stream/little_endian.h"
#include "stream/mirror_entry.h"

#include <stdlib.h>

enum { has_parent_flag = 1, doubtful_flag = 2, used_flag = 4, all_flags = 7 };

/* Where the parts of a record begin. */
enum {
    at_id = 0,
    at_group = 4,
    at_depth = 8,
    at_older = 12,
    at_newer = 16,
    at_standing = 20,
    at_flags = 21,
    at_rest = 22,
    at_copies = 24,
    at_engine = 32,
    at_block = 40,
    at_tokens = 48,
    at_parent = 56,
    at_seed = 64,
    at_key = 72
};

/* ---- Which entries ---- */

kvb_status kvb_mirror_watch(struct kvb_mirror *mirror)
{
    uint64_t *bits = calloc(mirror->max_blocks / 64 + 1, sizeof *bits);

    if (!bits) {
        return KVB_NO_MEMORY;
    }
    kvb_mirror_unwatch(mirror);
    memset(bits, 0xff, mirror->entry_end / 64 * sizeof *bits);
    bits[mirror->entry_end / 64] = (UINT64_C(1) << (mirror->entry_end % 64)) - 1;
    mirror->changed = (struct changed_entries){ .bits = bits, .count = mirror->entry_end };
    return KVB_OK;
}

void kvb_mirror_unwatch(struct kvb_mirror *mirror)
{
    free(mirror->changed.bits);
    mirror->changed = (struct changed_entries){ 0 };
}

kvb_status kvb_mirror_changed(const struct kvb_mirror *mirror, size_t *out_entries)
{
    if (!mirror->changed.bits || mirror->changed.is_void) {
        return KVB_CLOSED;
    }
    *out_entries = mirror->changed.count;
    return KVB_OK;
}

/* The first changed entry at or behind `from`; there is one, perhaps before it. */
static size_t next_changed(const struct kvb_mirror *mirror, size_t from)
{
    const size_t words = mirror->max_blocks / 64 + 1;
    size_t word = from / 64 % words;
    uint64_t bits = mirror->changed.bits[word] & UINT64_MAX << (from % 64);

    while (bits == 0) {
        word = (word + 1) % words;
        bits = mirror->changed.bits[word];
    }
    return word * 64 + (size_t)__builtin_ctzll(bits);
}

/* ---- Out ---- */

static void put_record(const struct mirror_entry *entry, size_t id, uint8_t *to)
{
    memset(to, 0, kvb_mirror_record_bytes);
    kvb_le_put_u32(to + at_id, (uint32_t)id);
    kvb_le_put_u32(to + at_newer, entry->newer);
    if (!entry->is_used) {
        return; /* of a free entry only the next one matters */
    }
    kvb_le_put_u32(to + at_group, entry->group);
    kvb_le_put_u32(to + at_depth, entry->depth);
    kvb_le_put_u32(to + at_older, entry->older);
    to[at_standing] = entry->standing;
    to[at_flags] =
        (uint8_t)(used_flag | (entry->has_parent ? has_parent_flag : 0) | (entry->is_doubtful ? doubtful_flag : 0));
    for (size_t tier = 0; tier < KVB_TIER_COUNT; tier++) {
        to[at_copies + 2 * tier] = entry->copies[tier].least;
        to[at_copies + 2 * tier + 1] = entry->copies[tier].most;
    }
    kvb_le_put_u64(to + at_engine, entry->engine.value);
    kvb_le_put_u64(to + at_block, entry->block.value);
    kvb_le_put_u64(to + at_tokens, entry->tokens.value);
    kvb_le_put_u64(to + at_parent, entry->parent);
    kvb_le_put_u64(to + at_seed, entry->seed);
    kvb_le_put_u64(to + at_key, entry->key);
}

kvb_status kvb_mirror_put_changed(
    struct kvb_mirror *mirror, size_t max_entries, size_t *place, struct kvb_buf *out,
    size_t *out_entries)
{
    struct changed_entries *changed = &mirror->changed;
    const size_t count = changed->count < max_entries ? changed->count : max_entries;

    KVB_TRY(kvb_buf_reserve(out, count * kvb_mirror_record_bytes));
    for (size_t i = 0; i < count; i++) {
        const size_t id = next_changed(mirror, *place);
        put_record(&mirror->entries[id], id, out->data + out->len);
        out->len += kvb_mirror_record_bytes;
        changed->bits[id / 64] &= ~(UINT64_C(1) << (id % 64));
        *place = id + 1;
    }
    changed->count -= count;
    *out_entries = count;
    return KVB_OK;
}

void kvb_mirror_ends(const struct kvb_mirror *mirror, struct kvb_mirror_ends *out_ends)
{
    *out_ends = (struct kvb_mirror_ends){
        .entry_end = (uint32_t)mirror->entry_end,
        .first_free = mirror->first_free,
        .oldest_doubtful = mirror->oldest_doubtful,
        .newest_doubtful = mirror->newest_doubtful,
        .forgotten_doubtful = mirror->counts.doubtful - mirror->listed_doubtful,
        .block_size = mirror->counts.block_size,
        .is_eagle = mirror->counts.is_eagle,
    };
}

/* ---- Back ---- */

static struct mirror_entry entry_of(const uint8_t *record)
{
    struct mirror_entry entry = {
        .engine = { kvb_le_get_u64(record + at_engine) },
        .block = { kvb_le_get_u64(record + at_block) },
        .tokens = { kvb_le_get_u64(record + at_tokens) },
        .parent = kvb_le_get_u64(record + at_parent),
        .seed = kvb_le_get_u64(record + at_seed),
        .key = kvb_le_get_u64(record + at_key),
        .group = kvb_le_get_u32(record + at_group),
        .depth = kvb_le_get_u32(record + at_depth),
        .older = kvb_le_get_u32(record + at_older),
        .newer = kvb_le_get_u32(record + at_newer),
        .standing = record[at_standing],
        .has_parent = record[at_flags] & has_parent_flag,
        .is_doubtful = record[at_flags] & doubtful_flag,
        .is_used = record[at_flags] & used_flag,
    };

    for (size_t tier = 0; tier < KVB_TIER_COUNT; tier++) {
        entry.copies[tier].least = record[at_copies + 2 * tier];
        entry.copies[tier].most = record[at_copies + 2 * tier + 1];
    }
    return entry;
}

static bool is_possible(const struct mirror_entry *entry)
{
    for (size_t tier = 0; tier < KVB_TIER_COUNT; tier++) {
        if (entry->copies[tier].least > entry->copies[tier].most) {
            return false;
        }
    }
    return !entry->is_used ||
           (entry->standing <= standing_unmatchable && kvb_mirror_has_copies(entry) &&
            entry->is_doubtful == kvb_mirror_is_doubtful(entry));
}

kvb_status
kvb_mirror_take_record(struct kvb_mirror *mirror, const uint8_t record[kvb_mirror_record_bytes])
{
    const struct mirror_entry entry = entry_of(record);
    const size_t id = kvb_le_get_u32(record + at_id);

    if (id > mirror->entry_end || (record[at_flags] & ~all_flags) || record[at_rest] ||
        record[at_rest + 1] || !is_possible(&entry)) {
        return KVB_BAD_INPUT;
    }
    KVB_TRY(kvb_array_reserve(
        &mirror->entries, &mirror->entry_capacity, id + 1, sizeof *mirror->entries,
        mirror->max_blocks));
    mirror->entries[id] = entry;
    mirror->entry_end += id == mirror->entry_end;
    return KVB_OK;
}

/* One speaks for all entries of a name; none of them is filed by name yet but those
 * that were counted. */
static void count_held(struct kvb_mirror *mirror, uint32_t id)
{
    const struct mirror_entry *entry = &mirror->entries[id];

    for (size_t t = 0; t < KVB_TIER_COUNT; t++) {
        const enum kvb_tier tier = (enum kvb_tier)t;
        if ((mirror->tiers >> tier & 1) && entry->standing == standing_rooted &&
            entry->copies[tier].least > 0 &&
            !kvb_mirror_is_held_elsewhere(mirror, entry->block, tier, id)) {
            kvb_mirror_note_held(mirror, entry->block, tier, true);
        }
    }
}

static kvb_status file_entry(struct kvb_mirror *mirror, uint32_t id)
{
    const struct mirror_entry *entry = &mirror->entries[id];

    if (kvb_mirror_find(mirror, entry->group, entry->engine) != KVB_NO_ID) {
        return KVB_BAD_INPUT;
    }
    count_held(mirror, id);
    KVB_TRY(kvb_mirror_file(mirror, id));
    mirror->entry_count++;
    mirror->counts.unrooted += entry->standing == standing_waiting;
    mirror->counts.proven_copies += entry->copies[KVB_TIER_DEVICE].least;
    mirror->listed_doubtful += entry->is_doubtful;
    return KVB_OK;
}

/* Oldest to newest, all of them and nothing else.  Ends: at most as many steps as there
 * are doubtful entries. */
static bool is_doubtful_list_whole(const struct kvb_mirror *mirror)
{
    uint32_t older = KVB_NO_ID;
    uint32_t id = mirror->oldest_doubtful;

    for (size_t i = 0; i < mirror->listed_doubtful; i++) {
        if (id >= mirror->entry_end || !mirror->entries[id].is_used ||
            !mirror->entries[id].is_doubtful || mirror->entries[id].older != older) {
            return false;
        }
        older = id;
        id = mirror->entries[id].newer;
    }
    return id == KVB_NO_ID && mirror->newest_doubtful == older;
}

/* The same of the free entries, whose list has one direction: one that comes twice
 * makes it longer than it may be. */
static bool is_free_list_whole(const struct kvb_mirror *mirror)
{
    uint32_t id = mirror->first_free;

    for (size_t i = mirror->entry_count; i < mirror->entry_end; i++) {
        if (id >= mirror->entry_end || mirror->entries[id].is_used) {
            return false;
        }
        id = mirror->entries[id].newer;
    }
    return id == KVB_NO_ID;
}

kvb_status kvb_mirror_settle(
    struct kvb_mirror *mirror, const struct kvb_mirror_ends *ends, const struct kvb_digest_key *key)
{
    if (ends->entry_end != mirror->entry_end) {
        return KVB_BAD_INPUT;
    }
    mirror->digest_key = *key;
    mirror->first_free = ends->first_free;
    mirror->oldest_doubtful = ends->oldest_doubtful;
    mirror->newest_doubtful = ends->newest_doubtful;
    for (size_t id = 0; id < mirror->entry_end; id++) {
        if (mirror->entries[id].is_used) {
            KVB_TRY(file_entry(mirror, (uint32_t)id));
        }
    }
    if (!is_doubtful_list_whole(mirror) || !is_free_list_whole(mirror)) {
        return KVB_BAD_INPUT;
    }
    mirror->counts.doubtful = mirror->listed_doubtful + ends->forgotten_doubtful;
    mirror->counts.block_size = ends->block_size;
    mirror->counts.is_eagle = ends->is_eagle;
    return KVB_OK;
}
