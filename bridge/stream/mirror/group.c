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

static uint32_t place_of(const struct mirror_groups *groups, uint32_t number)
{
    for (uint32_t i = 0; i < groups->count; i++) {
        if (groups->list[i].number == number) {
            return i;
        }
    }
    return kvb_max_groups;
}

uint32_t kvb_mirror_group_place(const struct kvb_mirror *mirror, uint32_t number)
{
    return place_of(&mirror->groups, number);
}

/* The place of the group's kind, or kvb_max_windows when there are too many. */
static unsigned find_window(struct mirror_groups *groups, const struct mirror_group *group)
{
    const bool is_chunked = group->kind == KVB_GROUP_CHUNKED;
    unsigned i = 0;

    while (i < groups->window_count && (groups->windows[i].tokens != group->window_tokens ||
                                        groups->windows[i].block_size != group->block_size ||
                                        groups->windows[i].is_chunked != is_chunked)) {
        i++;
    }
    if (i == groups->window_count && i < kvb_max_windows) {
        groups->windows[groups->window_count++] =
            (struct mirror_window){ .tokens = group->window_tokens,
                                    .block_size = group->block_size,
                                    .is_chunked = is_chunked };
    }
    return i;
}

static void settle_window(struct mirror_groups *groups, uint32_t at)
{
    struct mirror_group *group = &groups->list[at];
    const bool is_on_device = group->tiers >> KVB_TIER_DEVICE & 1;

    group->window = find_window(groups, group);
    groups->window_mask |= 1U << at;
    if (group->window == kvb_max_windows) {
        group->window = 0;
        kvb_mirror_note_odd(groups, odd_windows_differ);
    }
    groups->windows[group->window].groups |= 1U << at;
    groups->windows[group->window].wanted |= (uint32_t)is_on_device << at;
}

static void settle_sizes(struct mirror_groups *groups)
{
    /* The size of block that all others must be multiples of: that of full attention, which has a
     * block for each hash.  Without it, all groups must have the same size. */
    const uint32_t size = groups->has_full ? groups->block_size : groups->windows[0].block_size;

    groups->has_odd_sizes = false;
    for (size_t i = 0; i < groups->window_count; i++) {
        const struct mirror_window *window = &groups->windows[i];
        const bool may_be_multiple = groups->has_full && !window->is_chunked;
        groups->has_odd_sizes |= size != 0 && window->block_size != 0 &&
                                 window->block_size != size &&
                                 !(may_be_multiple && window->block_size % size == 0);
    }
}

bool kvb_mirror_holds_all(
    const struct mirror_groups *groups, uint32_t wanted, uint32_t held, int64_t except_family)
{
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
    /* All is computed anew from the list of groups, so that windows keep their places. */
    memset(groups->wanted, 0, sizeof groups->wanted);
    memset(groups->windows, 0, sizeof groups->windows);
    groups->window_mask = 0;
    groups->window_count = 0;
    groups->shard_mask = 0;
    for (uint32_t i = 0; i < groups->count; i++) {
        const struct mirror_group *group = &groups->list[i];
        groups->has_full |= group->kind == KVB_GROUP_FULL;
        groups->shard_mask |= (uint32_t)(group->family != 0) << i;
        groups->family_masks[i] = 0;
        for (uint32_t other = 0; other < groups->count; other++) {
            const bool is_sibling = groups->list[other].family == group->family;
            groups->family_masks[i] |= (uint32_t)is_sibling << other;
        }
        for (size_t tier = 0; tier < KVB_TIER_COUNT && group->kind == KVB_GROUP_FULL; tier++) {
            groups->wanted[tier] |= (group->tiers >> tier & 1) << i;
        }
        if (group->window_tokens > 0) {
            settle_window(groups, i);
        }
    }
    settle_sizes(groups);
}

/* ---- What readers must know of them ---- */

size_t kvb_mirror_windows(
    const struct kvb_mirror *mirror, struct kvb_window_rule out_windows[kvb_max_windows])
{
    const struct mirror_groups *groups = &mirror->groups;

    for (size_t i = 0; i < groups->window_count; i++) {
        const struct mirror_window *window = &groups->windows[i];
        const uint32_t times = groups->block_size > 0 ? window->block_size / groups->block_size : 0;
        out_windows[i] = (struct kvb_window_rule){ .tokens = window->tokens,
                                                   .size = times > 0 ? times : 1,
                                                   .is_chunked = window->is_chunked };
    }
    return groups->window_count;
}

bool kvb_mirror_has_full(const struct kvb_mirror *mirror)
{
    return mirror->groups.has_full;
}

static uint32_t numbers_of(const struct mirror_groups *groups, uint32_t mask)
{
    uint32_t numbers = 0;

    for (uint32_t i = 0; i < groups->count; i++) {
        const uint32_t number = groups->list[i].number;
        numbers |= mask >> i & 1 && number < 32 ? 1U << number : 0;
    }
    return numbers;
}

uint32_t kvb_mirror_window_groups(const struct kvb_mirror *mirror, unsigned window)
{
    return numbers_of(&mirror->groups, mirror->groups.windows[window].groups);
}

uint32_t kvb_mirror_full_groups(const struct kvb_mirror *mirror)
{
    const struct mirror_groups *groups = &mirror->groups;
    uint32_t mask = 0;

    for (uint32_t i = 0; i < groups->count; i++) {
        mask |= (uint32_t)(groups->list[i].kind == KVB_GROUP_FULL) << i;
    }
    return numbers_of(groups, mask);
}

bool kvb_mirror_has_odd_groups(const struct kvb_mirror *mirror)
{
    return mirror->groups.odd != odd_none || mirror->groups.has_odd_sizes;
}

const char *kvb_mirror_odd_groups_why(const struct kvb_mirror *mirror)
{
    static const char *const kinds[KVB_GROUP_KIND_COUNT] = {
        [KVB_GROUP_OTHER] = "a cache group of an unknown kind has no rule",
        [KVB_GROUP_CROSS] = "a cache group of cross attention has no rule",
        [KVB_GROUP_ENCODER] = "a cache group of encoder attention has no rule",
    };
    static const char *const reasons[odd_count] = {
        [odd_earlier] = "a cache group without a rule was there before the restart",
        [odd_changed] = "a cache group has changed its kind or its window",
        [odd_window_unknown] = "a sliding-window group does not state its window",
        [odd_windows_differ] = "the model has windows of more than 8 sizes",
        [odd_window_names] = "sliding windows have no rule with hashes = engine",
        [odd_chunk_unknown] =
            "chunked local attention does not state its chunk: set attention_chunk",
        [odd_too_many] = "the model has more than 32 cache groups",
        [odd_block_sizes] = "the cache groups have blocks of different sizes",
        [odd_unstated] = "a cache group does not say of which kind it is (vLLM 0.20 and 0.21)",
    };
    const struct mirror_groups *groups = &mirror->groups;
    enum kvb_group_kind kind = KVB_GROUP_OTHER;

    if (groups->odd == odd_none && groups->has_odd_sizes) {
        return reasons[odd_block_sizes];
    }
    if (groups->odd != odd_kind) {
        return reasons[groups->odd];
    }
    for (uint32_t i = groups->count; i-- > 0;) { /* the first group without a rule */
        kind = kvb_group_kind_has_rule(groups->list[i].kind) ? kind : groups->list[i].kind;
    }
    return kinds[kind];
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

uint32_t kvb_mirror_window_of(const struct kvb_mirror *mirror, const struct kvb_engine_event *event)
{
    return event->group_kind == KVB_GROUP_WINDOW    ? event->window_tokens
           : event->group_kind == KVB_GROUP_CHUNKED ? mirror->chunk_tokens
                                                    : 0;
}

/* A table: the first row that holds. */
static enum odd_groups
odd_group(const struct kvb_mirror *mirror, const struct kvb_engine_event *event)
{
    const uint32_t tokens = kvb_mirror_window_of(mirror, event);

    return !kvb_group_kind_has_rule(event->group_kind)             ? odd_kind
           : event->is_kind_unstated                               ? odd_unstated
           : mirror->groups.count == kvb_max_groups                ? odd_too_many
           : event->group_kind == KVB_GROUP_WINDOW && tokens == 0  ? odd_window_unknown
           : event->group_kind == KVB_GROUP_CHUNKED && tokens == 0 ? odd_chunk_unknown
           : tokens > 0 && mirror->hashes == KVB_HASHES_ENGINE     ? odd_window_names
                                                                   : odd_none;
}

uint32_t kvb_mirror_add_group(struct kvb_mirror *mirror, const struct kvb_engine_event *event)
{
    struct mirror_groups *groups = &mirror->groups;
    const uint32_t tokens = kvb_mirror_window_of(mirror, event);

    kvb_mirror_note_odd(groups, odd_group(mirror, event));
    if (groups->count == kvb_max_groups) {
        return kvb_max_groups;
    }
    if (event->group_kind == KVB_GROUP_FULL && !groups->has_full && groups->count > 0) {
        kvb_mirror_forget_shapes(mirror); /* those of windows alone */
    }
    groups->list[groups->count++] =
        (struct mirror_group){ .number = kvb_mirror_group_number(event),
                               .family = event->family,
                               .kind = event->group_kind,
                               .window_tokens = tokens,
                               .block_size = tokens > 0 ? event->block_size : 0 };
    kvb_mirror_settle_groups(groups);
    return groups->count - 1;
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

/* A size of blocks of full attention. */
static void note_full_size(struct mirror_groups *groups, uint32_t size)
{
    if (groups->block_size != 0) {
        groups->has_several_sizes |= size != groups->block_size;
        return;
    }
    groups->block_size = size;
    settle_sizes(groups);
    for (size_t i = 0; i < groups->window_count; i++) {
        const uint32_t other = groups->windows[i].block_size;
        if (other != 0 && other != size) { /* named before by their own tokens */
            kvb_mirror_note_odd(groups, odd_block_sizes);
        }
    }
}

/* Compares the size of the event's blocks with those of its group, and of the other groups. */
static void
compare_sizes(struct mirror_groups *groups, const struct kvb_engine_event *event, bool is_window)
{
    const uint32_t place = place_of(groups, event->group);

    if (event->tier != KVB_TIER_DEVICE || event->block_size == 0) {
        return;
    }
    if (!is_window) {
        note_full_size(groups, event->block_size);
    } else if (place < kvb_max_groups && event->block_size != groups->list[place].block_size) {
        /* Blocks of windows may be whole multiples of the others: they have the hash of their last
         * part.  They are named by it, so the full attention's must have come first. */
        kvb_mirror_note_odd(groups, odd_block_sizes);
    }
    /* A list needs names that all its groups hold.  vLLM also stores partial blocks where Mamba
     * states are matched at a finer unit.  A single group may have several sizes. */
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
    const bool is_window = kvb_mirror_window_of(mirror, event) > 0;
    compare_sizes(&mirror->groups, event, is_window);
    if (is_window && mirror->groups.has_full) {
        return true; /* its blocks have the names of the others */
    }
    return event->token_count > 0 ? add_shape_everywhere(mirror, event)
                                  : copy_shapes(mirror, event->tier);
}

uint32_t kvb_mirror_size_of(const struct kvb_mirror *mirror, const struct kvb_engine_event *event)
{
    const struct kvb_mirror_counts *counts = &mirror->counts;

    if (event->token_count == 0 || event->key || kvb_mirror_window_of(mirror, event) > 0) {
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
