#include "stream/mirror_record.h"

#include "core/array.h"
#include "stream/little_endian.h"
#include "stream/mirror_entry.h"

#include <stdlib.h>

enum { has_parent_flag = 1, doubtful_flag = 2, used_flag = 4, all_flags = 7 };

/* Where the parts of a record begin. */
enum {
    at_id = 0,
    at_older = 4,
    at_newer = 8,
    at_standing = 12,
    at_flags = 13,
    at_group = 14, /* place in the list of groups */
    at_rest = 15,
    at_most = 16,
    at_least = 20,
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
    to[at_group] = (uint8_t)kvb_mirror_context(mirror, entry)->group;
    to[at_standing] = entry->standing;
    to[at_flags] = (uint8_t)(used_flag | (entry->has_parent ? has_parent_flag : 0));
    for (size_t tier = 0; tier < KVB_TIER_COUNT; tier++) {
        const struct copies copies = kvb_mirror_copies(mirror, id, (enum kvb_tier)tier);
        to[at_most + tier] = copies.most;
        to[at_least + tier] = copies.least;
    }
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

/* ---- Back ---- */

static struct mirror_block block_of(const uint8_t *record)
{
    return (struct mirror_block){
        .engine = { kvb_le_get_u64(record + at_engine) },
        .tokens = { kvb_le_get_u64(record + at_tokens) },
        .parent = kvb_le_get_u64(record + at_parent),
        .seed = kvb_le_get_u64(record + at_seed),
        .key = kvb_le_get_u64(record + at_key),
        .group = record[at_group],
        .standing = (enum standing)record[at_standing],
        .has_parent = record[at_flags] & has_parent_flag,
    };
}

static struct copies copies_at(const uint8_t *record, size_t tier)
{
    return (struct copies){ .least = record[at_least + tier], .most = record[at_most + tier] };
}

static bool is_possible(const uint8_t *record)
{
    const bool is_used = record[at_flags] & used_flag;
    const bool says_doubtful = record[at_flags] & doubtful_flag;
    bool is_doubtful = false;
    bool has_copies = false;

    if ((record[at_flags] & ~all_flags) || record[at_rest] || record[at_group] >= kvb_most_groups) {
        return false;
    }
    for (size_t tier = 0; tier < KVB_TIER_COUNT; tier++) {
        const struct copies copies = copies_at(record, tier);
        if (copies.least > copies.most) {
            return false;
        }
        is_doubtful |= copies.most > 0 && copies.least == 0;
        has_copies |= copies.most > 0;
    }
    return !is_used ||
           (record[at_standing] <= standing_unplaced && has_copies && is_doubtful == says_doubtful);
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
    kvb_mirror_drop_surplus(mirror, id);
    kvb_mirror_wipe(mirror, id);
}

static kvb_status take_entry(struct kvb_mirror *mirror, uint32_t id, const uint8_t *record)
{
    const struct mirror_block block = block_of(record);

    KVB_TRY(kvb_mirror_write(mirror, id, &block));
    for (size_t tier = 0; tier < KVB_TIER_COUNT; tier++) {
        KVB_TRY(kvb_mirror_write_copies(mirror, id, (enum kvb_tier)tier, copies_at(record, tier)));
    }
    if (!kvb_mirror_is_doubtful(&mirror->entries[id])) {
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
