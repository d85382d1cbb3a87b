#include "stream/mirror/record.h"

#include "core/little_endian.h"
#include "stream/mirror/inside.h"
#include "stream/mirror/shown.h"

#include <stdlib.h>
#include <string.h>

/* counts_flag: not the record of an entry, but the extra counts that follow one. */
enum { has_parent_flag = 1, doubtful_flag = 2, used_flag = 4, all_flags = 7, counts_flag = 8 };

/* Byte offsets in a record. */
enum {
    at_id = 0,
    at_older = 4,
    at_newer = 8,
    at_placement = 12,
    at_flags = 13,
    at_group = 14, /* index in the list of groups */
    at_size = 15,  /* kvb_mirror_size_of() */
    at_most = 16,
    at_least = 20,
    at_engine = 24,
    at_tokens = 32,
    at_parent = 40,
    at_seed = 48,
    at_key = 56,
    /* offsets in a record of counts, u32 each */
    at_most_counted = 16,
    at_least_counted = 32
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

/* The next changed entry from `from` on, cyclically; there is at least one. */
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

/* ---- Writing records ---- */

static uint8_t in_a_byte(uint32_t copies)
{
    return (uint8_t)(copies < many_copies ? copies : many_copies);
}

/* A record of counts. */
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

/* There is room for two records. */
static void append_record(const struct kvb_mirror *mirror, uint32_t id, struct kvb_buf *out)
{
    const struct mirror_entry *entry = &mirror->entries[id];
    uint8_t *to = out->data + out->len;
    bool needs_counts = false;

    memset(to, 0, kvb_mirror_record_bytes);
    out->len += kvb_mirror_record_bytes;
    kvb_le_put_u32(to + at_id, id);
    if (!entry->is_used) {
        kvb_le_put_u32(to + at_newer, (uint32_t)entry->parent);
        return; /* of a free entry only the link to the next one matters */
    }
    const struct mirror_context *context = kvb_mirror_context(mirror, entry);
    const bool is_doubtful = kvb_mirror_is_doubtful(entry);
    to[at_group] = (uint8_t)context->group;
    to[at_size] = (uint8_t)context->size;
    to[at_placement] = entry->placement;
    to[at_flags] =
        (uint8_t)(used_flag | (entry->has_parent ? has_parent_flag : 0) | (is_doubtful ? doubtful_flag : 0));
    for (size_t tier = 0; tier < KVB_TIER_COUNT; tier++) {
        const struct copies copies = kvb_mirror_copies(mirror, id, (enum kvb_tier)tier);
        to[at_most + tier] = in_a_byte(copies.max);
        to[at_least + tier] = in_a_byte(copies.min);
        needs_counts |= copies.max > many_copies;
    }
    kvb_le_put_u64(to + at_engine, entry->engine.value);
    kvb_le_put_u64(to + at_tokens, entry->tokens.value);
    kvb_le_put_u64(to + at_parent, entry->parent);
    kvb_le_put_u64(to + at_seed, context->seed);
    kvb_le_put_u64(to + at_key, kvb_mirror_key(mirror, id));
    kvb_le_put_u32(to + at_older, is_doubtful ? kvb_mirror_link(mirror, id)->older : KVB_NO_ID);
    kvb_le_put_u32(to + at_newer, is_doubtful ? kvb_mirror_link(mirror, id)->newer : KVB_NO_ID);
    if (needs_counts) {
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
        count < mirror->extra_copies.count ? count : mirror->extra_copies.count;
    const size_t before = out->len;

    KVB_TRY(kvb_buf_reserve(out, (count + with_counts) * kvb_mirror_record_bytes));
    /* Round and round: entries that change again behind the place are met in the next round. */
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

/* ---- Reading records ---- */

static struct copies copies_at(const uint8_t *record, size_t tier)
{
    return (struct copies){ .min = record[at_least + tier], .max = record[at_most + tier] };
}

static kvb_status read_entry(struct kvb_mirror *mirror, uint32_t id, const uint8_t *record)
{
    const struct mirror_block block = {
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

    KVB_TRY(kvb_mirror_write(mirror, id, &block));
    for (size_t tier = 0; tier < KVB_TIER_COUNT; tier++) {
        KVB_TRY(kvb_mirror_write_copies(mirror, id, (enum kvb_tier)tier, copies_at(record, tier)));
    }
    if (!kvb_mirror_is_doubtful(&mirror->entries[id])) {
        return KVB_OK;
    }
    const struct doubtful_link link = { .id = id,
                                        .older = kvb_le_get_u32(record + at_older),
                                        .newer = kvb_le_get_u32(record + at_newer) };
    return kvb_side_table_add(mirror, &mirror->links, &link);
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

static struct copies counted_at(const uint8_t *counts, size_t tier)
{
    return (struct copies){ .min = kvb_le_get_u32(counts + at_least_counted + 4 * tier),
                            .max = kvb_le_get_u32(counts + at_most_counted + 4 * tier) };
}

/* Counts must agree with the preceding record, except where its bytes are saturated. */
static kvb_status read_counts(struct kvb_mirror *mirror, uint32_t id, const uint8_t *counts)
{
    bool are_right = id < mirror->entry_end && mirror->entries[id].is_used;

    for (size_t tier = 0; tier < KVB_TIER_COUNT && are_right; tier++) {
        const struct copies copies = counted_at(counts, tier);
        are_right = copies.min <= copies.max &&
                    in_a_byte(copies.max) == mirror->entries[id].max[tier] &&
                    (copies.min > 0) == kvb_mirror_holds(&mirror->entries[id], (enum kvb_tier)tier);
    }
    if (!are_right) {
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
        return read_counts(mirror, id, record);
    }
    /* Numbers come in their order for the first time, so that none is skipped. */
    if (id > mirror->entry_end || !is_possible(record)) {
        return KVB_BAD_INPUT;
    }
    KVB_TRY(kvb_mirror_reserve(mirror, (size_t)id + 1));
    if (id == mirror->entry_end) {
        mirror->entry_end++;
    } else if (mirror->entries[id].is_used) { /* what an earlier record said about it is void */
        if (kvb_mirror_is_doubtful(&mirror->entries[id])) {
            kvb_side_table_drop(mirror, &mirror->links, id);
        }
        kvb_mirror_forget_copies(mirror, id);
        kvb_mirror_wipe(mirror, id);
    }
    mirror->entries[id] = (struct mirror_entry){ .parent = kvb_le_get_u32(record + at_newer) };
    return record[at_flags] & used_flag ? read_entry(mirror, id, record) : KVB_OK;
}

/* ---- The ends ----
 *
 * The fields of a mirror that belong to no single entry, as bytes of a checkpoint (ends: heads
 * of lists, groups, shapes, counters), and the restoring of a mirror from them and the records of
 * its entries. */

/* Byte offsets of the parts; all numbers are little-endian. */
enum {
    ends_entry_end = 0,
    ends_first_free = 4,
    ends_lists = 8, /* for each doubt_kind: oldest, newest u32 */
    list_bytes = 8,
    ends_forgotten = ends_lists + doubt_kinds * list_bytes, /* u64 */
    ends_flags = ends_forgotten + 8,
    ends_tokenless = ends_flags + 4,
    ends_group_count = ends_tokenless + 4,
    ends_shape_count = ends_group_count + 4,
    ends_groups = ends_shape_count + 4, /* for each: number, kind, window, tiers u32 */
    group_bytes = 16,
    ends_shapes =
        ends_groups + kvb_max_groups * group_bytes, /* for each: tier, size, lookahead u32 */
    shape_bytes = 12,
    ends_most_proven = ends_shapes + kvb_max_tier_shapes * shape_bytes, /* u64 */
    ends_bytes = ends_most_proven + 8
};

static_assert((int)ends_bytes == (int)kvb_mirror_ends_bytes, "the parts fill the ends");

enum {
    forgot_full_flag = 1,
    odd_groups_flag = 2,
    paired_flag = 4,
    extra_keys_flag = 8,
    signed_hashes_flag = 16,
    kept_numbers_flag = 32, /* some entries that are not used are not in the list of free ones */
    all_ends_flags = 63
};
enum {
    reset_shift = 8,
    unsaid_shift = 16,
    dropped_shift = 24
};                         /* the tokenless tiers contain these from these bits on */
enum { family_shift = 8 }; /* the kind of a group is a byte, then comes its family of 24 bits */
enum { chunk_shift = 16 }; /* the count of groups contains chunk_blocks from this bit on */
enum { size_shift = 8 };   /* its tiers are a byte, then comes the size of its blocks */
enum { odd_shift = 8 };    /* the flags contain the enum odd_groups from this bit on */

/* ---- Writing the ends ---- */

void kvb_mirror_put_ends(struct kvb_mirror *mirror, uint8_t to[kvb_mirror_ends_bytes])
{
    const bool keeps_numbers = mirror->shown && kvb_shown_count(mirror->shown)->gone > 0;
    const uint32_t flags = (mirror->forgot_full ? forgot_full_flag : 0U) |
                           (mirror->groups.odd != odd_none ? odd_groups_flag : 0U) |
                           (uint32_t)mirror->groups.odd << odd_shift |
                           (mirror->is_paired ? paired_flag : 0U) |
                           (mirror->has_extra_keys ? extra_keys_flag : 0U) |
                           (mirror->has_signed_hashes ? signed_hashes_flag : 0U) |
                           (keeps_numbers ? kept_numbers_flag : 0U);

    /* Parts that are shorter than their room end with zeros, which the reader checks. */
    memset(to, 0, kvb_mirror_ends_bytes);
    kvb_le_put_u32(to + ends_entry_end, (uint32_t)mirror->entry_end);
    kvb_le_put_u32(to + ends_first_free, mirror->first_free);
    for (size_t kind = 0; kind < doubt_kinds; kind++) {
        kvb_le_put_u32(to + ends_lists + kind * list_bytes, mirror->doubtful[kind].oldest);
        kvb_le_put_u32(to + ends_lists + kind * list_bytes + 4, mirror->doubtful[kind].newest);
    }
    kvb_le_put_u64(to + ends_forgotten, mirror->counts.doubtful - mirror->links.count);
    kvb_le_put_u32(to + ends_flags, flags);
    kvb_le_put_u32(
        to + ends_tokenless, mirror->tokenless_tiers | mirror->reset_tiers << reset_shift |
                                 mirror->unsaid_tiers << unsaid_shift |
                                 mirror->dropped_tiers << dropped_shift);
    kvb_le_put_u32(
        to + ends_group_count, mirror->groups.count | mirror->chunk_blocks << chunk_shift);
    kvb_le_put_u32(to + ends_shape_count, (uint32_t)mirror->counts.shape_count);
    uint8_t *at = to + ends_groups;
    for (uint32_t i = 0; i < mirror->groups.count; i++, at += group_bytes) {
        const struct mirror_group *group = &mirror->groups.list[i];
        kvb_le_put_u32(at, group->number);
        kvb_le_put_u32(at + 4, group->kind | group->family << family_shift);
        kvb_le_put_u32(at + 8, group->window_tokens);
        kvb_le_put_u32(at + 12, group->tiers | group->block_size << size_shift);
    }
    at = to + ends_shapes;
    for (size_t i = 0; i < mirror->counts.shape_count; i++, at += shape_bytes) {
        const struct kvb_tier_shape *shape = &mirror->counts.shapes[i];
        kvb_le_put_u32(at, shape->tier);
        kvb_le_put_u32(at + 4, shape->shape.block_size);
        kvb_le_put_u32(at + 8, shape->shape.lookahead);
    }
    kvb_le_put_u64(to + ends_most_proven, mirror->counts.max_proven);
    kvb_mirror_forget_proofs(mirror);
}

/* ---- Reading the ends ---- */

static bool is_all_zero(const uint8_t *from, const uint8_t *end)
{
    while (from < end && *from == 0) {
        from++;
    }
    return from == end;
}

static kvb_status read_groups(struct kvb_mirror *mirror, const uint8_t *ends)
{
    const uint32_t count = kvb_le_get_u32(ends + ends_group_count) & ((1U << chunk_shift) - 1);
    const uint8_t *from = ends + ends_groups;
    const uint32_t flags = kvb_le_get_u32(ends + ends_flags);
    const enum odd_groups odd = (enum odd_groups)(flags >> odd_shift);

    for (uint32_t i = 0; i < count && count <= kvb_max_groups; i++, from += group_bytes) {
        const uint32_t kind = kvb_le_get_u32(from + 4);
        const struct mirror_group group = { .number = kvb_le_get_u32(from),
                                            .family = kind >> family_shift,
                                            .kind = (enum kvb_group_kind)(uint8_t)kind,
                                            .window_tokens = kvb_le_get_u32(from + 8),
                                            .block_size = kvb_le_get_u32(from + 12) >> size_shift,
                                            .tiers = kvb_le_get_u32(from + 12) &
                                                     ((1U << size_shift) - 1) };
        /* What no event can have made. */
        if ((unsigned)group.kind >= KVB_GROUP_KIND_COUNT || group.tiers >> KVB_TIER_COUNT ||
            group.block_size > kvb_max_block_tokens ||
            (group.window_tokens > 0 && group.kind != KVB_GROUP_WINDOW &&
             group.kind != KVB_GROUP_CHUNKED) ||
            kvb_mirror_group_place(mirror, group.number) != kvb_max_groups) {
            return KVB_BAD_INPUT;
        }
        mirror->groups.list[mirror->groups.count++] = group;
    }
    /* An older checkpoint says that groups are odd, and not why. */
    if (odd >= odd_count || (odd != odd_none && !(flags & odd_groups_flag))) {
        return KVB_BAD_INPUT;
    }
    kvb_mirror_note_odd(&mirror->groups, odd);
    kvb_mirror_note_odd(&mirror->groups, flags & odd_groups_flag ? odd_earlier : odd_none);
    kvb_mirror_settle_groups(&mirror->groups);
    return mirror->groups.count == count && is_all_zero(from, ends + ends_shapes) ? KVB_OK
                                                                                  : KVB_BAD_INPUT;
}

static kvb_status read_shapes(struct kvb_mirror *mirror, const uint8_t *ends)
{
    struct kvb_mirror_counts *counts = &mirror->counts;
    const uint32_t count = kvb_le_get_u32(ends + ends_shape_count);
    const uint8_t *from = ends + ends_shapes;

    for (uint32_t i = 0; i < count && count <= kvb_max_tier_shapes; i++, from += shape_bytes) {
        const uint32_t tier = kvb_le_get_u32(from);
        const struct kvb_block_shape shape = { .block_size = kvb_le_get_u32(from + 4),
                                               .lookahead = kvb_le_get_u32(from + 8) };
        if (tier >= KVB_TIER_COUNT || shape.block_size == 0 ||
            shape.block_size > kvb_max_block_tokens || shape.lookahead > kvb_max_lookahead_tokens) {
            return KVB_BAD_INPUT;
        }
        counts->shapes[counts->shape_count++] =
            (struct kvb_tier_shape){ (enum kvb_tier)tier, shape };
    }
    const uint32_t tiers = kvb_le_get_u32(ends + ends_tokenless);
    mirror->tokenless_tiers = tiers & ((1U << reset_shift) - 1);
    mirror->reset_tiers = tiers >> reset_shift & ((1U << reset_shift) - 1);
    mirror->unsaid_tiers = tiers >> unsaid_shift & ((1U << reset_shift) - 1);
    mirror->dropped_tiers = tiers >> dropped_shift;
    const uint32_t all = mirror->tokenless_tiers | mirror->reset_tiers | mirror->unsaid_tiers |
                         mirror->dropped_tiers;
    return counts->shape_count == count && all >> KVB_TIER_COUNT == 0 &&
                   is_all_zero(from, ends + ends_most_proven)
               ? KVB_OK
               : KVB_BAD_INPUT;
}

static kvb_status read_ends(struct kvb_mirror *mirror, const uint8_t *ends)
{
    const uint32_t flags = kvb_le_get_u32(ends + ends_flags);

    if (kvb_le_get_u32(ends + ends_entry_end) != mirror->entry_end ||
        (flags & ((1U << odd_shift) - 1) & ~(uint32_t)all_ends_flags) ||
        kvb_le_get_u64(ends + ends_forgotten) >= UINT64_MAX / 2) {
        return KVB_BAD_INPUT;
    }
    mirror->first_free = kvb_le_get_u32(ends + ends_first_free);
    for (size_t kind = 0; kind < doubt_kinds; kind++) {
        const uint8_t *from = ends + ends_lists + kind * list_bytes;
        mirror->doubtful[kind] = (struct doubtful_list){ .oldest = kvb_le_get_u32(from),
                                                         .newest = kvb_le_get_u32(from + 4) };
    }
    mirror->forgot_full = flags & forgot_full_flag;
    mirror->is_paired = flags & paired_flag;
    mirror->chunk_blocks = kvb_le_get_u32(ends + ends_group_count) >> chunk_shift;
    mirror->has_extra_keys = flags & extra_keys_flag;
    mirror->has_signed_hashes = flags & signed_hashes_flag;
    mirror->counts.max_proven = kvb_le_get_u64(ends + ends_most_proven);
    KVB_TRY(read_groups(mirror, ends));
    return read_shapes(mirror, ends);
}

/* ---- Adding restored entries to the tables ---- */

/* Counts the entry's block in each list that the block enters with this entry; a block that several
 * groups must hold enters with the last of them. */
static kvb_status count_held(struct kvb_mirror *mirror, uint32_t id)
{
    const struct mirror_entry *entry = &mirror->entries[id];

    for (size_t t = 0; t < KVB_TIER_COUNT; t++) {
        const enum kvb_tier tier = (enum kvb_tier)t;
        const unsigned list = kvb_mirror_holds(entry, tier)
                                  ? kvb_mirror_list_of(mirror, entry, tier)
                                  : KVB_LIST_COUNT;
        if (list == KVB_LIST_COUNT) {
            continue;
        }
        const kvb_block_hash block = kvb_mirror_block(mirror, entry);
        if (kvb_mirror_decides(mirror, id, block, list)) {
            KVB_TRY(kvb_mirror_note_held(
                mirror, kvb_mirror_listed_name(mirror, entry, block, list), list, true));
        }
    }
    return KVB_OK;
}

/* False: the entry has a state that is impossible in its group, so the checkpoint is damaged. */
static bool is_of_its_group(const struct kvb_mirror *mirror, const struct mirror_entry *entry)
{
    const uint32_t place = kvb_mirror_context(mirror, entry)->group;
    const struct mirror_group *group = &mirror->groups.list[place];
    const bool is_window = group->window_tokens > 0;
    uint32_t tiers = 0;

    for (size_t tier = 0; tier < KVB_TIER_COUNT; tier++) {
        tiers |= (uint32_t)(entry->max[tier] > 0) << tier;
    }
    return place < mirror->groups.count && (group->kind == KVB_GROUP_FULL || is_window) &&
           (tiers & ~group->tiers) == 0 &&
           entry->placement != (is_window ? placement_waiting : placement_unplaced) &&
           kvb_mirror_context(mirror, entry)->size <= mirror->counts.shape_count &&
           (!is_window || tiers == 1U << KVB_TIER_DEVICE);
}

static kvb_status file_entry(struct kvb_mirror *mirror, uint32_t id)
{
    const struct mirror_entry *entry = &mirror->entries[id];
    const uint32_t group = kvb_mirror_context(mirror, entry)->group;

    if (!is_of_its_group(mirror, entry) ||
        kvb_mirror_find(mirror, group, entry->engine) != KVB_NO_ID) {
        return KVB_BAD_INPUT;
    }
    KVB_TRY(count_held(mirror, id));
    const kvb_block_hash block = entry->placement == placement_rooted
                                     ? kvb_mirror_block(mirror, entry)
                                     : (kvb_block_hash){ 0 };
    KVB_TRY(kvb_mirror_file(mirror, id, block));
    mirror->entry_count++;
    mirror->counts.unrooted += entry->placement == placement_waiting;
    mirror->counts.unplaced += entry->placement == placement_unplaced;
    mirror->counts.proven_copies += kvb_mirror_copies(mirror, id, KVB_TIER_DEVICE).min;
    mirror->doubtful[kvb_mirror_doubt_kind(mirror, entry)].count += kvb_mirror_is_doubtful(entry);
    return KVB_OK;
}

/* ---- Lists ---- */

/* Checks that the list links all doubtful entries of this kind, and only those, in both
 * directions.  A cycle in a damaged checkpoint does not loop for ever: there are list->count
 * steps. */
static bool is_doubtful_list_whole(const struct kvb_mirror *mirror, enum doubt_kind kind)
{
    const struct doubtful_list *list = &mirror->doubtful[kind];
    uint32_t older = KVB_NO_ID;
    uint32_t id = list->oldest;

    for (size_t i = 0; i < list->count; i++) {
        if (id >= mirror->entry_end || !mirror->entries[id].is_used ||
            !kvb_mirror_is_doubtful(&mirror->entries[id]) ||
            kvb_mirror_doubt_kind(mirror, &mirror->entries[id]) != kind ||
            kvb_mirror_link(mirror, id)->older != older) {
            return false;
        }
        older = id;
        id = kvb_mirror_link(mirror, id)->newer;
    }
    return id == KVB_NO_ID && list->newest == older;
}

/* The same for the list of free entries, which is singly linked: an entry that appears twice makes
 * the list longer than the number of free entries. */
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
    struct kvb_mirror *mirror, const uint8_t ends[kvb_mirror_ends_bytes],
    const struct kvb_digest_key *key, bool *out_is_same)
{
    /* The groups and shapes first: what an entry may be depends on them. */
    *out_is_same = !(kvb_le_get_u32(ends + ends_flags) & kept_numbers_flag);
    mirror->digest_key = *key;
    KVB_TRY(read_ends(mirror, ends));
    for (size_t id = 0; id < mirror->entry_end; id++) {
        if (mirror->entries[id].is_used) {
            KVB_TRY(file_entry(mirror, (uint32_t)id));
        }
    }
    /* Readers of republished events are told anew, so nobody needs the numbers of dropped entries:
     * all that are not used come free. */
    mirror->first_free = *out_is_same ? mirror->first_free : KVB_NO_ID;
    for (size_t id = mirror->entry_end; !*out_is_same && id-- > 0;) {
        if (!mirror->entries[id].is_used) {
            mirror->entries[id].parent = mirror->first_free;
            mirror->first_free = (uint32_t)id;
        }
    }
    if (!is_doubtful_list_whole(mirror, doubt_full) ||
        !is_doubtful_list_whole(mirror, doubt_window) || !is_free_list_whole(mirror)) {
        return KVB_BAD_INPUT;
    }
    if (mirror->counts.max_proven < mirror->counts.proven_copies) {
        return KVB_BAD_INPUT;
    }
    mirror->counts.doubtful = mirror->links.count + kvb_le_get_u64(ends + ends_forgotten);
    return KVB_OK;
}
