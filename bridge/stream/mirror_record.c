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
    at_older = 8,
    at_newer = 12,
    at_standing = 16,
    at_flags = 17,
    at_least = 18,
    at_rest = 19,
    at_most = 20,
    at_engine = 24,
    at_tokens = 32,
    at_parent = 40,
    at_seed = 48,
    at_key = 56
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

static void put_links(const struct kvb_mirror *mirror, uint32_t id, uint8_t *to)
{
    const bool is_doubtful = kvb_mirror_is_doubtful(&mirror->entries[id]);

    kvb_le_put_u32(to + at_older, is_doubtful ? kvb_mirror_link(mirror, id)->older : KVB_NO_ID);
    kvb_le_put_u32(to + at_newer, is_doubtful ? kvb_mirror_link(mirror, id)->newer : KVB_NO_ID);
    to[at_flags] |= is_doubtful ? doubtful_flag : 0;
}

static void put_record(const struct kvb_mirror *mirror, uint32_t id, uint8_t *to)
{
    const struct mirror_entry *entry = &mirror->entries[id];

    memset(to, 0, kvb_mirror_record_bytes);
    kvb_le_put_u32(to + at_id, id);
    if (!entry->is_used) {
        kvb_le_put_u32(to + at_newer, (uint32_t)entry->parent);
        return; /* of a free entry only the next one matters */
    }
    kvb_le_put_u32(to + at_group, kvb_mirror_context(mirror, entry)->group);
    to[at_standing] = entry->standing;
    to[at_flags] = (uint8_t)(used_flag | (entry->has_parent ? has_parent_flag : 0));
    to[at_least] = entry->least;
    memcpy(to + at_most, entry->most, sizeof entry->most);
    kvb_le_put_u64(to + at_engine, entry->engine.value);
    kvb_le_put_u64(to + at_tokens, entry->tokens.value);
    kvb_le_put_u64(to + at_parent, entry->parent);
    kvb_le_put_u64(to + at_seed, kvb_mirror_context(mirror, entry)->seed);
    kvb_le_put_u64(to + at_key, kvb_mirror_key(mirror, id));
    put_links(mirror, id, to);
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
        put_record(mirror, (uint32_t)id, out->data + out->len);
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
        .forgotten_doubtful = mirror->counts.doubtful - mirror->link_count,
        .block_size = mirror->counts.block_size,
        .lookahead = mirror->counts.lookahead,
    };
}

/* ---- Back ---- */

static struct mirror_block block_of(const uint8_t *record)
{
    return (struct mirror_block){
        .engine = { kvb_le_get_u64(record + at_engine) },
        .tokens = { kvb_le_get_u64(record + at_tokens) },
        .parent = kvb_le_get_u64(record + at_parent),
        .seed = kvb_le_get_u64(record + at_seed),
        .key = kvb_le_get_u64(record + at_key),
        .group = kvb_le_get_u32(record + at_group),
        .standing = (enum standing)record[at_standing],
        .has_parent = record[at_flags] & has_parent_flag,
    };
}

/* Whose copies are the record's. */
static struct mirror_entry copies_of(const uint8_t *record)
{
    struct mirror_entry entry = { 0 };

    for (size_t tier = 0; tier < KVB_TIER_COUNT; tier++) {
        const struct copies copies = { .least = record[at_least] >> tier & 1,
                                       .most = record[at_most + tier] };
        kvb_mirror_write_copies(&entry, (enum kvb_tier)tier, copies);
    }
    return entry;
}

static bool is_possible(const uint8_t *record)
{
    const bool is_used = record[at_flags] & used_flag;
    const bool is_doubtful = record[at_flags] & doubtful_flag;
    const struct mirror_entry entry = copies_of(record);

    if ((record[at_flags] & ~all_flags) || record[at_rest] || record[at_least] >> KVB_TIER_COUNT) {
        return false;
    }
    for (size_t tier = 0; tier < KVB_TIER_COUNT; tier++) {
        if (kvb_mirror_holds(&entry, (enum kvb_tier)tier) && entry.most[tier] == 0) {
            return false;
        }
    }
    return !is_used ||
           (record[at_standing] <= standing_unmatchable && kvb_mirror_has_copies(&entry) &&
            is_doubtful == kvb_mirror_is_doubtful(&entry));
}

/* What an earlier record said of the entry. */
static void forget_entry(struct kvb_mirror *mirror, uint32_t id)
{
    if (!mirror->entries[id].is_used) {
        return;
    }
    if (kvb_mirror_is_doubtful(&mirror->entries[id])) {
        kvb_mirror_link_drop(mirror, id);
    }
    kvb_mirror_wipe(mirror, id);
}

static kvb_status take_entry(struct kvb_mirror *mirror, uint32_t id, const uint8_t *record)
{
    const struct mirror_block block = block_of(record);
    const struct mirror_entry copies = copies_of(record);
    struct mirror_entry *entry = &mirror->entries[id];

    KVB_TRY(kvb_mirror_write(mirror, id, &block));
    entry->least = copies.least;
    memcpy(entry->most, copies.most, sizeof entry->most);
    if (!kvb_mirror_is_doubtful(entry)) {
        return KVB_OK;
    }
    return kvb_mirror_link_new(
        mirror, (struct doubtful_link){ .id = id,
                                        .older = kvb_le_get_u32(record + at_older),
                                        .newer = kvb_le_get_u32(record + at_newer) });
}

kvb_status
kvb_mirror_take_record(struct kvb_mirror *mirror, const uint8_t record[kvb_mirror_record_bytes])
{
    const uint32_t id = kvb_le_get_u32(record + at_id);

    if (id > mirror->entry_end || !is_possible(record)) {
        return KVB_BAD_INPUT;
    }
    KVB_TRY(kvb_array_reserve(
        &mirror->entries, &mirror->entry_capacity, (size_t)id + 1, sizeof *mirror->entries,
        mirror->max_blocks));
    if (id < mirror->entry_end) {
        forget_entry(mirror, id);
    } else {
        mirror->entry_end++;
    }
    mirror->entries[id] = (struct mirror_entry){ .parent = kvb_le_get_u32(record + at_newer) };
    return record[at_flags] & used_flag ? take_entry(mirror, id, record) : KVB_OK;
}

/* One speaks for all entries of a name; none of them is filed by name yet but those
 * that were counted. */
static void count_held(struct kvb_mirror *mirror, uint32_t id)
{
    const struct mirror_entry *entry = &mirror->entries[id];

    for (size_t t = 0; t < KVB_TIER_COUNT; t++) {
        const enum kvb_tier tier = (enum kvb_tier)t;
        if (!(mirror->tiers >> tier & 1) || entry->standing != standing_rooted ||
            !kvb_mirror_holds(entry, tier)) {
            continue;
        }
        const kvb_block_hash block = kvb_mirror_block(mirror, entry);
        if (!kvb_mirror_is_held_elsewhere(mirror, block, tier, id)) {
            kvb_mirror_note_held(mirror, block, tier, true);
        }
    }
}

static kvb_status file_entry(struct kvb_mirror *mirror, uint32_t id)
{
    const struct mirror_entry *entry = &mirror->entries[id];
    const uint32_t group = kvb_mirror_context(mirror, entry)->group;

    if (kvb_mirror_find(mirror, group, entry->engine) != KVB_NO_ID) {
        return KVB_BAD_INPUT;
    }
    count_held(mirror, id);
    const kvb_block_hash block = entry->standing == standing_rooted
                                     ? kvb_mirror_block(mirror, entry)
                                     : (kvb_block_hash){ 0 };
    KVB_TRY(kvb_mirror_file(mirror, id, block));
    mirror->entry_count++;
    mirror->counts.unrooted += entry->standing == standing_waiting;
    mirror->counts.proven_copies += kvb_mirror_holds(entry, KVB_TIER_DEVICE);
    return KVB_OK;
}

/* Oldest to newest, all of them and nothing else.  Ends: at most as many steps as there
 * are doubtful entries. */
static bool is_doubtful_list_whole(const struct kvb_mirror *mirror)
{
    uint32_t older = KVB_NO_ID;
    uint32_t id = mirror->oldest_doubtful;

    for (size_t i = 0; i < mirror->link_count; i++) {
        if (id >= mirror->entry_end || !mirror->entries[id].is_used ||
            !kvb_mirror_is_doubtful(&mirror->entries[id]) ||
            kvb_mirror_link(mirror, id)->older != older) {
            return false;
        }
        older = id;
        id = kvb_mirror_link(mirror, id)->newer;
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
        id = (uint32_t)mirror->entries[id].parent;
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
    mirror->counts.doubtful = mirror->link_count + ends->forgotten_doubtful;
    mirror->counts.block_size = ends->block_size;
    mirror->counts.lookahead = ends->lookahead;
    return KVB_OK;
}
