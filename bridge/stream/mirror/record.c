#include "stream/mirror/record.h"

#include "core/array.h"
#include "core/little_endian.h"
#include "stream/mirror/inside.h"

#include <stdlib.h>

/* counts_flag: it is no entry's record, but the counts behind one. */
enum { has_parent_flag = 1, doubtful_flag = 2, used_flag = 4, all_flags = 7, counts_flag = 8 };

/* Where the parts of a record begin. */
enum {
    at_id = 0,
    at_older = 4,
    at_newer = 8,
    at_placement = 12,
    at_flags = 13,
    at_group = 14, /* place in the list of groups */
    at_size = 15,  /* kvb_mirror_size_of() */
    at_most = 16,
    at_least = 20,
    at_engine = 24,
    at_tokens = 32,
    at_parent = 40,
    at_seed = 48,
    at_key = 56,
    /* of counts, u32 each */
    at_most_counted = 16,
    at_least_counted = 32,
    at_end_counted = 48
};

static_assert((int)kvb_max_tier_shapes < UINT8_MAX, "a size is a byte");

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

static uint8_t in_a_byte(uint32_t copies)
{
    return (uint8_t)(copies < many_copies ? copies : many_copies);
}

static bool needs_counts(const struct kvb_mirror *mirror, uint32_t id)
{
    bool needs = false;

    for (size_t tier = 0; tier < KVB_TIER_COUNT && mirror->entries[id].is_used; tier++) {
        needs |= kvb_mirror_copies(mirror, id, (enum kvb_tier)tier).max > many_copies;
    }
    return needs;
}

static void put_counts(const struct kvb_mirror *mirror, uint32_t id, uint8_t *to)
{
    memset(to, 0, kvb_mirror_record_bytes);
    kvb_le_put_u32(to + at_id, id);
    to[at_flags] = counts_flag;
    for (size_t tier = 0; tier < KVB_TIER_COUNT; tier++) {
        const struct copies copies = kvb_mirror_copies(mirror, id, (enum kvb_tier)tier);
        kvb_le_put_u32(to + at_most_counted + 4 * tier, copies.max);
        kvb_le_put_u32(to + at_least_counted + 4 * tier, copies.min);
    }
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
    to[at_size] = (uint8_t)kvb_mirror_context(mirror, entry)->size;
    to[at_placement] = entry->placement;
    to[at_flags] = (uint8_t)(used_flag | (entry->has_parent ? has_parent_flag : 0));
    for (size_t tier = 0; tier < KVB_TIER_COUNT; tier++) {
        const struct copies copies = kvb_mirror_copies(mirror, id, (enum kvb_tier)tier);
        to[at_most + tier] = in_a_byte(copies.max);
        to[at_least + tier] = in_a_byte(copies.min);
    }
    kvb_le_put_u64(to + at_engine, entry->engine.value);
    kvb_le_put_u64(to + at_tokens, entry->tokens.value);
    kvb_le_put_u64(to + at_parent, entry->parent);
    kvb_le_put_u64(to + at_seed, kvb_mirror_context(mirror, entry)->seed);
    kvb_le_put_u64(to + at_key, kvb_mirror_key(mirror, id));
    put_links(mirror, id, to);
}

static void append_record(const struct kvb_mirror *mirror, uint32_t id, struct kvb_buf *out)
{
    put_record(mirror, id, out->data + out->len);
    out->len += kvb_mirror_record_bytes;
    if (needs_counts(mirror, id)) {
        put_counts(mirror, id, out->data + out->len);
        out->len += kvb_mirror_record_bytes;
    }
}

kvb_status kvb_mirror_put_changed(
    struct kvb_mirror *mirror, size_t max_entries, size_t *place, struct kvb_buf *out,
    size_t *out_records)
{
    struct changed_entries *changed = &mirror->changed;
    const size_t count = changed->count < max_entries ? changed->count : max_entries;

    const size_t with_counts =
        count < mirror->extra_copies_count ? count : mirror->extra_copies_count;
    const size_t before = out->len;

    KVB_TRY(kvb_buf_reserve(out, (count + with_counts) * kvb_mirror_record_bytes));
    for (size_t i = 0; i < count; i++) {
        const size_t id = next_changed(mirror, *place);
        append_record(mirror, (uint32_t)id, out);
        changed->bits[id / 64] &= ~(UINT64_C(1) << (id % 64));
        *place = id + 1;
    }
    changed->count -= count;
    *out_records = (out->len - before) / kvb_mirror_record_bytes;
    return KVB_OK;
}

/* ---- Back ---- */

static struct mirror_block record_block(const uint8_t *record)
{
    return (struct mirror_block){
        .engine = { kvb_le_get_u64(record + at_engine) },
        .tokens = { kvb_le_get_u64(record + at_tokens) },
        .parent = kvb_le_get_u64(record + at_parent),
        .seed = kvb_le_get_u64(record + at_seed),
        .key = kvb_le_get_u64(record + at_key),
        .group = record[at_group],
        .size = record[at_size],
        .placement = (enum placement)record[at_placement],
        .has_parent = record[at_flags] & has_parent_flag,
    };
}

static struct copies copies_at(const uint8_t *record, size_t tier)
{
    return (struct copies){ .min = record[at_least + tier], .max = record[at_most + tier] };
}

static bool is_possible(const uint8_t *record)
{
    const bool is_used = record[at_flags] & used_flag;
    const bool says_doubtful = record[at_flags] & doubtful_flag;
    bool is_doubtful = false;
    bool has_copies = false;

    if ((record[at_flags] & ~all_flags) || record[at_size] > kvb_max_tier_shapes ||
        record[at_group] >= kvb_max_groups) {
        return false;
    }
    for (size_t tier = 0; tier < KVB_TIER_COUNT; tier++) {
        const struct copies copies = copies_at(record, tier);
        if (copies.min > copies.max) {
            return false;
        }
        is_doubtful |= copies.max > 0 && copies.min == 0;
        has_copies |= copies.max > 0;
    }
    return !is_used || (record[at_placement] <= placement_unplaced && has_copies &&
                        is_doubtful == says_doubtful);
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
    kvb_mirror_forget_copies(mirror, id);
    kvb_mirror_wipe(mirror, id);
}

static kvb_status take_entry(struct kvb_mirror *mirror, uint32_t id, const uint8_t *record)
{
    const struct mirror_block block = record_block(record);

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

static struct copies counted_at(const uint8_t *counts, size_t tier)
{
    return (struct copies){ .min = kvb_le_get_u32(counts + at_least_counted + 4 * tier),
                            .max = kvb_le_get_u32(counts + at_most_counted + 4 * tier) };
}

/* Counts must agree with the preceding record, where its own bytes are not saturated. */
static bool are_counts_of(const struct kvb_mirror *mirror, uint32_t id, const uint8_t *counts)
{
    bool are_right = id < mirror->entry_end && mirror->entries[id].is_used;

    for (size_t tier = 0; tier < KVB_TIER_COUNT && are_right; tier++) {
        const struct copies copies = counted_at(counts, tier);
        are_right = copies.min <= copies.max &&
                    in_a_byte(copies.max) == mirror->entries[id].max[tier] &&
                    (copies.min > 0) == kvb_mirror_holds(&mirror->entries[id], (enum kvb_tier)tier);
    }
    return are_right;
}

static kvb_status take_counts(struct kvb_mirror *mirror, uint32_t id, const uint8_t *counts)
{
    if (!are_counts_of(mirror, id, counts)) {
        return KVB_BAD_INPUT;
    }
    for (size_t tier = 0; tier < KVB_TIER_COUNT; tier++) {
        const struct copies copies = counted_at(counts, tier);
        KVB_TRY(kvb_mirror_write_copies(mirror, id, (enum kvb_tier)tier, copies));
    }
    return KVB_OK;
}

kvb_status
kvb_mirror_take_record(struct kvb_mirror *mirror, const uint8_t record[kvb_mirror_record_bytes])
{
    const uint32_t id = kvb_le_get_u32(record + at_id);

    if (record[at_flags] == counts_flag) {
        return take_counts(mirror, id, record);
    }
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
