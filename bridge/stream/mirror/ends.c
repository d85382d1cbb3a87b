#include "core/little_endian.h"
#include "stream/mirror/inside.h"
#include "stream/mirror/record.h"

#include <string.h>

/* The fields of a mirror that belong to no single entry, as bytes of a checkpoint (ends: heads
 * of lists, groups, shapes, counters), and the restoring of a mirror from them and the records of
 * its entries. */

/* Byte offsets of the parts; all numbers are little-endian. */
enum {
    at_entry_end = 0,
    at_first_free = 4,
    at_lists = 8, /* for each doubt_kind: oldest, newest u32 */
    list_bytes = 8,
    at_forgotten = at_lists + doubt_kinds * list_bytes, /* u64 */
    at_flags = at_forgotten + 8,
    at_tokenless = at_flags + 4,
    at_group_count = at_tokenless + 4,
    at_shape_count = at_group_count + 4,
    at_groups = at_shape_count + 4, /* for each: number, kind, window, tiers u32 */
    group_bytes = 16,
    at_shapes = at_groups + kvb_max_groups * group_bytes, /* for each: tier, size, lookahead u32 */
    shape_bytes = 12,
    at_most_proven = at_shapes + kvb_max_tier_shapes * shape_bytes, /* u64 */
    all_bytes = at_most_proven + 8
};

static_assert((int)all_bytes == (int)kvb_mirror_ends_bytes, "the parts fill the ends");

enum { forgot_full_flag = 1, odd_groups_flag = 2, paired_flag = 4, all_flags = 7 };

/* ---- Writing ---- */

static void put_groups(const struct mirror_groups *groups, uint8_t *to)
{
    for (uint32_t i = 0; i < groups->count; i++, to += group_bytes) {
        kvb_le_put_u32(to, groups->list[i].number);
        kvb_le_put_u32(to + 4, groups->list[i].kind);
        kvb_le_put_u32(to + 8, groups->list[i].window_tokens);
        kvb_le_put_u32(to + 12, groups->list[i].tiers);
    }
}

static void put_shapes(const struct kvb_mirror_counts *counts, uint8_t *to)
{
    for (size_t i = 0; i < counts->shape_count; i++, to += shape_bytes) {
        kvb_le_put_u32(to, counts->shapes[i].tier);
        kvb_le_put_u32(to + 4, counts->shapes[i].shape.block_size);
        kvb_le_put_u32(to + 8, counts->shapes[i].shape.lookahead);
    }
}

void kvb_mirror_put_ends(struct kvb_mirror *mirror, uint8_t to[kvb_mirror_ends_bytes])
{
    const uint32_t flags = (mirror->forgot_full ? forgot_full_flag : 0U) |
                           (mirror->groups.is_odd ? odd_groups_flag : 0U) |
                           (mirror->is_paired ? paired_flag : 0U);

    memset(to, 0, kvb_mirror_ends_bytes);
    kvb_le_put_u32(to + at_entry_end, (uint32_t)mirror->entry_end);
    kvb_le_put_u32(to + at_first_free, mirror->first_free);
    for (size_t kind = 0; kind < doubt_kinds; kind++) {
        kvb_le_put_u32(to + at_lists + kind * list_bytes, mirror->doubtful[kind].oldest);
        kvb_le_put_u32(to + at_lists + kind * list_bytes + 4, mirror->doubtful[kind].newest);
    }
    kvb_le_put_u64(to + at_forgotten, mirror->counts.doubtful - mirror->link_count);
    kvb_le_put_u32(to + at_flags, flags);
    kvb_le_put_u32(to + at_tokenless, mirror->tokenless_tiers);
    kvb_le_put_u32(to + at_group_count, mirror->groups.count);
    kvb_le_put_u32(to + at_shape_count, (uint32_t)mirror->counts.shape_count);
    put_groups(&mirror->groups, to + at_groups);
    put_shapes(&mirror->counts, to + at_shapes);
    kvb_le_put_u64(to + at_most_proven, mirror->counts.max_proven);
    kvb_mirror_forget_proofs(mirror);
}

/* ---- Reading ---- */

static bool is_all_zero(const uint8_t *from, const uint8_t *end)
{
    while (from < end && *from == 0) {
        from++;
    }
    return from == end;
}

static kvb_status take_groups(struct kvb_mirror *mirror, const uint8_t *ends)
{
    const uint32_t count = kvb_le_get_u32(ends + at_group_count);
    const uint8_t *from = ends + at_groups;

    for (uint32_t i = 0; i < count && count <= kvb_max_groups; i++, from += group_bytes) {
        const struct mirror_group group = { .number = kvb_le_get_u32(from),
                                            .kind = (enum kvb_group_kind)kvb_le_get_u32(from + 4),
                                            .window_tokens = kvb_le_get_u32(from + 8),
                                            .tiers = kvb_le_get_u32(from + 12) };
        if ((unsigned)group.kind > KVB_GROUP_OTHER || group.tiers >> KVB_TIER_COUNT ||
            kvb_mirror_group_place(mirror, group.number) != kvb_max_groups) {
            return KVB_BAD_INPUT;
        }
        mirror->groups.list[mirror->groups.count++] = group;
    }
    mirror->groups.is_odd = kvb_le_get_u32(ends + at_flags) & odd_groups_flag;
    kvb_mirror_settle_groups(&mirror->groups);
    return mirror->groups.count == count && is_all_zero(from, ends + at_shapes) ? KVB_OK
                                                                                : KVB_BAD_INPUT;
}

static kvb_status take_shapes(struct kvb_mirror *mirror, const uint8_t *ends)
{
    struct kvb_mirror_counts *counts = &mirror->counts;
    const uint32_t count = kvb_le_get_u32(ends + at_shape_count);
    const uint8_t *from = ends + at_shapes;

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
    mirror->tokenless_tiers = kvb_le_get_u32(ends + at_tokenless);
    return counts->shape_count == count && mirror->tokenless_tiers >> KVB_TIER_COUNT == 0 &&
                   is_all_zero(from, ends + at_most_proven)
               ? KVB_OK
               : KVB_BAD_INPUT;
}

static kvb_status take_ends(struct kvb_mirror *mirror, const uint8_t *ends)
{
    const uint32_t flags = kvb_le_get_u32(ends + at_flags);

    if (kvb_le_get_u32(ends + at_entry_end) != mirror->entry_end ||
        (flags & ~(uint32_t)all_flags) || kvb_le_get_u64(ends + at_forgotten) >= UINT64_MAX / 2) {
        return KVB_BAD_INPUT;
    }
    mirror->first_free = kvb_le_get_u32(ends + at_first_free);
    for (size_t kind = 0; kind < doubt_kinds; kind++) {
        const uint8_t *from = ends + at_lists + kind * list_bytes;
        mirror->doubtful[kind] = (struct doubtful_list){ .oldest = kvb_le_get_u32(from),
                                                         .newest = kvb_le_get_u32(from + 4) };
    }
    mirror->forgot_full = flags & forgot_full_flag;
    mirror->is_paired = flags & paired_flag;
    mirror->counts.max_proven = kvb_le_get_u64(ends + at_most_proven);
    KVB_TRY(take_groups(mirror, ends));
    return take_shapes(mirror, ends);
}

/* ---- Filing ---- */

/* Counts the entry's block in each list that the block enters with this entry; a block that several
 * groups must hold enters with the last of them. */
static void count_held(struct kvb_mirror *mirror, uint32_t id)
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
            kvb_mirror_note_held(mirror, block, list, true);
        }
    }
}

/* False: the entry is in a state that its group cannot cause, so the checkpoint is damaged. */
static bool is_of_its_group(const struct kvb_mirror *mirror, const struct mirror_entry *entry)
{
    const uint32_t place = kvb_mirror_context(mirror, entry)->group;
    const struct mirror_group *group = &mirror->groups.list[place];
    const bool is_window = group->kind == KVB_GROUP_WINDOW;
    uint32_t tiers = 0;

    for (size_t tier = 0; tier < KVB_TIER_COUNT; tier++) {
        tiers |= (uint32_t)(entry->max[tier] > 0) << tier;
    }
    return place < mirror->groups.count && group->kind != KVB_GROUP_OTHER &&
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
    count_held(mirror, id);
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

/* The same for the list of free entries, which is linked in one direction only: an entry that
 * comes twice makes the list longer than the number of free entries. */
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
    const struct kvb_digest_key *key)
{
    mirror->digest_key = *key;
    KVB_TRY(take_ends(mirror, ends));
    for (size_t id = 0; id < mirror->entry_end; id++) {
        if (mirror->entries[id].is_used) {
            KVB_TRY(file_entry(mirror, (uint32_t)id));
        }
    }
    if (!is_doubtful_list_whole(mirror, doubt_full) ||
        !is_doubtful_list_whole(mirror, doubt_window) || !is_free_list_whole(mirror)) {
        return KVB_BAD_INPUT;
    }
    if (mirror->counts.max_proven < mirror->counts.proven_copies) {
        return KVB_BAD_INPUT;
    }
    mirror->counts.doubtful = mirror->link_count + kvb_le_get_u64(ends + at_forgotten);
    return KVB_OK;
}
