#include "stream/mirror/inside.h"

#include <string.h>

/* Cache groups of a stream, and the shapes of its blocks.
 *
 *     device list   names that every full-attention group holds on the device
 *     window list   names that every sliding-window group holds there
 *
 * The lists of the other tiers work alike, with the full-attention groups that have stored there.
 * A group counts in a tier from its first Stored there on.
 *
 * A store's objects are shards of blocks.  Each kind of shard is a group, and the shards that one
 * engine writes are a family: a list has a name when all groups of some family hold it. */

uint32_t kvb_mirror_group_place(const struct kvb_mirror *mirror, uint32_t number)
{
    const struct mirror_groups *groups = &mirror->groups;

    for (uint32_t i = 0; i < groups->count; i++) {
        if (groups->list[i].number == number) {
            return i;
        }
    }
    return kvb_max_groups;
}

static void note_kind(struct mirror_groups *groups, const struct mirror_group *group)
{
    groups->has_full |= group->kind == KVB_GROUP_FULL;
    if (group->kind == KVB_GROUP_WINDOW && group->window_tokens > groups->window_tokens) {
        groups->window_tokens = group->window_tokens;
    }
}

static uint32_t mask_of_family(const struct mirror_groups *groups, uint32_t family)
{
    uint32_t mask = 0;

    for (uint32_t i = 0; i < groups->count; i++) {
        mask |= (uint32_t)(groups->list[i].family == family) << i;
    }
    return mask;
}

bool kvb_mirror_holds_all(
    const struct mirror_groups *groups, unsigned list, uint32_t held, int64_t except_family)
{
    const uint32_t wanted = groups->wanted[list];
    uint32_t left = wanted;

    while (left != 0) {
        const uint32_t first = (uint32_t)__builtin_ctz(left);
        const uint32_t family = wanted & groups->family_masks[first];
        if ((held & family) == family && groups->list[first].family != except_family) {
            return true;
        }
        left &= ~family;
    }
    return false;
}

void kvb_mirror_settle_groups(struct mirror_groups *groups)
{
    memset(groups->wanted, 0, sizeof groups->wanted);
    groups->window_mask = 0;
    groups->shard_mask = 0;
    for (uint32_t i = 0; i < groups->count; i++) {
        const struct mirror_group *group = &groups->list[i];
        const bool is_on_device = group->tiers >> KVB_TIER_DEVICE & 1;
        note_kind(groups, group);
        groups->shard_mask |= (uint32_t)(group->family != 0) << i;
        groups->family_masks[i] = mask_of_family(groups, group->family);
        for (size_t tier = 0; tier < KVB_TIER_COUNT && group->kind == KVB_GROUP_FULL; tier++) {
            groups->wanted[tier] |= (group->tiers >> tier & 1) << i;
        }
        if (group->kind == KVB_GROUP_WINDOW) {
            groups->window_mask |= 1U << i;
            groups->wanted[KVB_LIST_WINDOW] |= (uint32_t)is_on_device << i;
        }
    }
}

uint32_t kvb_mirror_window_tokens(const struct kvb_mirror *mirror)
{
    return mirror->groups.window_tokens;
}

static enum odd_groups why_odd(const struct mirror_groups *groups)
{
    const bool is_alone = groups->window_mask != 0 && !groups->has_full;

    return groups->odd != odd_none ? groups->odd : is_alone ? odd_window_alone : odd_none;
}

bool kvb_mirror_has_odd_groups(const struct kvb_mirror *mirror)
{
    return why_odd(&mirror->groups) != odd_none;
}

/* The kind of the first group without a rule. */
static enum kvb_group_kind odd_group_kind(const struct mirror_groups *groups)
{
    for (uint32_t i = 0; i < groups->count; i++) {
        if (!kvb_group_kind_has_rule(groups->list[i].kind)) {
            return groups->list[i].kind;
        }
    }
    return KVB_GROUP_OTHER;
}

const char *kvb_mirror_odd_groups_why(const struct kvb_mirror *mirror)
{
    static const char *const kinds[KVB_GROUP_KIND_COUNT] = {
        [KVB_GROUP_OTHER] = "a cache group of an unknown kind has no rule",
        [KVB_GROUP_CHUNKED] = "a cache group of chunked local attention has no rule",
        [KVB_GROUP_CROSS] = "a cache group of cross attention has no rule",
        [KVB_GROUP_ENCODER] = "a cache group of encoder attention has no rule",
    };
    static const char *const reasons[odd_count] = {
        [odd_earlier] = "a cache group without a rule was there before the restart",
        [odd_changed] = "a cache group has changed its kind or its window",
        [odd_window_unknown] = "a sliding-window group does not state its window",
        [odd_windows_differ] =
            "windows of different sizes, or Mamba states beside windows, have no common rule",
        [odd_window_names] = "sliding windows have no rule with hashes = engine",
        [odd_window_alone] = "sliding-window groups have no full-attention group beside them",
        [odd_too_many] = "the model has more than 32 cache groups",
        [odd_block_sizes] = "the cache groups have blocks of different sizes",
        [odd_unstated] = "a cache group does not say of which kind it is (vLLM 0.20 and 0.21)",
    };
    const enum odd_groups why = why_odd(&mirror->groups);

    return why == odd_kind ? kinds[odd_group_kind(&mirror->groups)] : reasons[why];
}

/* ---- Adding a group ---- */

uint32_t kvb_mirror_group_number(const struct kvb_engine_event *event)
{
    return event->key && !event->family ? 0 : event->group;
}

void kvb_mirror_note_odd(struct mirror_groups *groups, enum odd_groups why)
{
    groups->odd = groups->odd == odd_none ? why : groups->odd;
}

static enum odd_groups
odd_window(const struct kvb_mirror *mirror, const struct kvb_engine_event *event)
{
    const uint32_t known = kvb_mirror_window_tokens(mirror);

    return event->window_tokens == 0                    ? odd_window_unknown
           : mirror->hashes == KVB_HASHES_ENGINE        ? odd_window_names
           : known > 0 && known != event->window_tokens ? odd_windows_differ
                                                        : odd_none;
}

static enum odd_groups
odd_group(const struct kvb_mirror *mirror, const struct kvb_engine_event *event)
{
    return !kvb_group_kind_has_rule(event->group_kind) ? odd_kind
           : event->is_kind_unstated                   ? odd_unstated
           : mirror->groups.count == kvb_max_groups    ? odd_too_many
           : event->group_kind == KVB_GROUP_WINDOW     ? odd_window(mirror, event)
                                                       : odd_none;
}

uint32_t kvb_mirror_add_group(struct kvb_mirror *mirror, const struct kvb_engine_event *event)
{
    struct mirror_groups *groups = &mirror->groups;
    const bool is_window = event->group_kind == KVB_GROUP_WINDOW;

    kvb_mirror_note_odd(groups, odd_group(mirror, event));
    if (groups->count == kvb_max_groups) {
        return kvb_max_groups;
    }
    groups->list[groups->count] =
        (struct mirror_group){ .number = kvb_mirror_group_number(event),
                               .family = event->family,
                               .kind = event->group_kind,
                               .window_tokens = is_window ? event->window_tokens : 0 };
    kvb_mirror_settle_groups(&mirror->groups);
    note_kind(groups, &groups->list[groups->count]);
    return groups->count++;
}

void kvb_mirror_meet_other_group(struct kvb_mirror *mirror, const struct kvb_engine_event *event)
{
    kvb_mirror_note_odd(&mirror->groups, odd_kind);
    if (kvb_mirror_group_place(mirror, event->group) == kvb_max_groups) {
        (void)kvb_mirror_add_group(mirror, event);
    }
}

/* ---- Shapes ---- */

/* Adds the shape.  True: the table has it now. */
[[gnu::hot]] static bool
add_shape(struct kvb_mirror_counts *counts, enum kvb_tier tier, struct kvb_block_shape shape)
{
    for (size_t i = 0; i < counts->shape_count; i++) {
        const struct kvb_tier_shape *known = &counts->shapes[i];
        if (known->tier == tier && known->shape.block_size == shape.block_size &&
            known->shape.lookahead == shape.lookahead) {
            return true;
        }
    }
    if (counts->shape_count == kvb_max_tier_shapes) {
        return false;
    }
    counts->shapes[counts->shape_count++] = (struct kvb_tier_shape){ tier, shape };
    return true;
}

/* Copies all known shapes to a tier, because blocks were moved there without their shapes. */
static bool copy_shapes(struct kvb_mirror *mirror, enum kvb_tier tier)
{
    const size_t count = mirror->counts.shape_count;
    bool has_all = true;

    if (mirror->tokenless_tiers >> tier & 1) {
        return true;
    }
    for (size_t i = 0; i < count; i++) {
        has_all &= add_shape(&mirror->counts, tier, mirror->counts.shapes[i].shape);
    }
    mirror->tokenless_tiers |= (uint32_t)has_all << tier;
    return has_all;
}

static bool add_shape_everywhere(struct kvb_mirror *mirror, const struct kvb_engine_event *event)
{
    const struct kvb_block_shape shape = { .block_size = event->block_size,
                                           .lookahead = event->lookahead };
    bool has_all = add_shape(&mirror->counts, event->tier, shape);

    for (size_t tier = 0; mirror->tokenless_tiers >> tier; tier++) {
        if (mirror->tokenless_tiers >> tier & 1) {
            has_all &= add_shape(&mirror->counts, (enum kvb_tier)tier, shape);
        }
    }
    return has_all;
}

/* Several block sizes make the groups odd: a list needs names that all its groups hold, and a
 * window shortens the device's list, so all groups must have one size.  vLLM also stores partial
 * blocks when the groups' sizes differ.  A single group may have several sizes. */
static void compare_sizes(struct mirror_groups *groups, const struct kvb_engine_event *event)
{
    if (event->tier != KVB_TIER_DEVICE || event->block_size == 0) {
        return;
    }
    if (groups->block_size == 0) {
        groups->block_size = event->block_size;
    }
    groups->has_several_sizes |= event->block_size != groups->block_size;
    if (groups->has_several_sizes && groups->count > 1) {
        kvb_mirror_note_odd(groups, odd_block_sizes);
    }
}

bool kvb_mirror_learn_shape(struct kvb_mirror *mirror, const struct kvb_engine_event *event)
{
    if (event->token_count > 0) {
        mirror->is_paired = event->is_paired;
    }
    if (event->key) { /* a pool's block size is configured */
        return true;
    }
    compare_sizes(&mirror->groups, event);
    if (event->group_kind == KVB_GROUP_WINDOW) {
        return true;
    }
    return event->token_count > 0 ? add_shape_everywhere(mirror, event)
                                  : copy_shapes(mirror, event->tier);
}

uint32_t kvb_mirror_size_of(const struct kvb_mirror *mirror, const struct kvb_engine_event *event)
{
    const struct kvb_mirror_counts *counts = &mirror->counts;

    if (event->token_count == 0 || event->key || event->group_kind == KVB_GROUP_WINDOW) {
        return 0;
    }
    for (uint32_t i = 0; i < counts->shape_count; i++) {
        if (counts->shapes[i].shape.block_size == event->block_size) {
            return i + 1;
        }
    }
    return 0;
}

/* ---- Forgetting ---- */

void kvb_mirror_forget_shapes(struct kvb_mirror *mirror)
{
    mirror->counts.shape_count = 0;
    memset(mirror->counts.shapes, 0, sizeof mirror->counts.shapes);
    mirror->tokenless_tiers = 0;
}

void kvb_mirror_forget_groups(struct kvb_mirror *mirror)
{
    mirror->groups = (struct mirror_groups){ 0 };
}
