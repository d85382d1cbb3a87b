#include "core/array.h"
#include "core/limits.h"
#include "replica/inside.h"

#include <stdlib.h>
#include <string.h>

/* What a follower lists: index slots and the window list, each with the digest of its blocks. */

static struct kvb_digest_key key_of(const struct kvb_follow *follow)
{
    return (struct kvb_digest_key){ .worker_id = follow->shown.id.worker_id,
                                    .dp_rank = follow->shown.id.dp_rank,
                                    .seed = follow->digest_seed };
}

enum { max_slot_owners = 1 << 20 };

/* ---- Slots and windows ---- */

static kvb_status make_room_for_owner(struct kvb_followers *followers, uint32_t slot)
{
    const size_t need = (size_t)slot + 1;

    KVB_TRY(kvb_array_reserve(
        &followers->slot_owners, &followers->slot_owner_capacity, need,
        sizeof *followers->slot_owners, max_slot_owners));
    if (need > followers->slot_owner_count) {
        memset(
            followers->slot_owners + followers->slot_owner_count, 0,
            (need - followers->slot_owner_count) * sizeof *followers->slot_owners);
        followers->slot_owner_count = need;
    }
    return KVB_OK;
}

static kvb_status make_digest(struct kvb_digest **digest)
{
    if (!*digest) {
        *digest = calloc(1, sizeof **digest);
    }
    return *digest ? KVB_OK : KVB_NO_MEMORY;
}

/* Allocates a slot of the index.  KVB_TOO_LARGE: the index has none.
 * KVB_NO_MEMORY. */
static kvb_status draw_list_slot(struct kvb_followers *followers, kvb_slot_ref *out_slot)
{
    kvb_slot_ref slot = { 0 };

    KVB_TRY(kvb_prefix_index_slot_new(followers->options.index, &slot));
    const kvb_status status = make_room_for_owner(followers, slot.value);
    if (status != KVB_OK) {
        kvb_prefix_index_slot_free(followers->options.index, slot);
        return status;
    }
    *out_slot = slot;
    return KVB_OK;
}

/* An empty window list.  KVB_NO_MEMORY. */
static kvb_status
new_window(const struct kvb_followers *followers, struct kvb_block_set **out_window)
{
    struct kvb_block_set *window = malloc(sizeof *window);

    if (!window) {
        return KVB_NO_MEMORY;
    }
    kvb_block_set_init(window, kvb_max_stream_blocks, followers->options.hash_key);
    *out_window = window;
    return KVB_OK;
}

/* Empties a window list; frees it too.  NULL is fine. */
static void clear_window(struct kvb_followers *followers, struct kvb_block_set *window)
{
    if (window) {
        followers->window_blocks -= window->count;
        kvb_block_set_clear(window);
    }
}

static void free_window(struct kvb_followers *followers, struct kvb_block_set *window)
{
    clear_window(followers, window);
    free(window);
}

bool kvb_follow_has_list(const struct kvb_follow *follow, enum kvb_tier list)
{
    return list == KVB_LIST_WINDOW ? follow->window != NULL : follow->shown.has_slot[list];
}

/* Gives a slot from draw_list_slot() to a tier that has none. */
static void own_slot(
    struct kvb_followers *followers, struct kvb_follow *follow, enum kvb_tier tier,
    kvb_slot_ref slot)
{
    const uint32_t number = (uint32_t)(follow - followers->follows);

    followers->slot_owners[slot.value] = 1 + (number * KVB_LIST_COUNT) + (uint32_t)tier;
    follow->shown.slots[tier] = slot;
    follow->shown.has_slot[tier] = true;
}

/* Creates a list and its digest unless it exists; the list of a tier is a slot of the index.
 * KVB_TOO_LARGE: the index has no slot.  KVB_NO_MEMORY. */
static kvb_status
make_list(struct kvb_followers *followers, struct kvb_follow *follow, enum kvb_tier list)
{
    kvb_slot_ref slot = { 0 };

    if (kvb_follow_has_list(follow, list)) {
        return KVB_OK;
    }
    KVB_TRY(make_digest(&follow->digests[list]));
    if (list == KVB_LIST_WINDOW) {
        KVB_TRY(new_window(followers, &follow->window));
        follow->shown.window = follow->window;
        return KVB_OK;
    }
    KVB_TRY(draw_list_slot(followers, &slot));
    own_slot(followers, follow, list, slot);
    return KVB_OK;
}

/* Exchanges the slot of the tier with *slot, which is from draw_list_slot(). */
static void swap_slot(
    struct kvb_followers *followers, struct kvb_follow *follow, enum kvb_tier tier,
    kvb_slot_ref *slot)
{
    const kvb_slot_ref old = follow->shown.slots[tier];

    followers->slot_owners[old.value] = 0;
    own_slot(followers, follow, tier, *slot);
    *slot = old;
}

void kvb_follow_free_lists(struct kvb_followers *followers, struct kvb_follow *follow)
{
    for (int tier = 0; tier < KVB_TIER_COUNT; tier++) {
        if (follow->shown.has_slot[tier]) {
            const kvb_slot_ref slot = follow->shown.slots[tier];
            kvb_prefix_index_slot_free(followers->options.index, slot);
            followers->slot_owners[slot.value] = 0;
            follow->shown.has_slot[tier] = false;
        }
    }
    free_window(followers, follow->window);
    follow->window = NULL;
    follow->shown.window = NULL;
    for (int list = 0; list < KVB_LIST_COUNT; list++) {
        free(follow->digests[list]);
        follow->digests[list] = NULL;
    }
}

void kvb_follow_clear(struct kvb_followers *followers, struct kvb_follow *follow)
{
    follow->shown.claim++;
    for (int tier = 0; tier < KVB_TIER_COUNT; tier++) {
        if (follow->shown.has_slot[tier]) {
            kvb_prefix_index_slot_clear(followers->options.index, follow->shown.slots[tier]);
        }
    }
    clear_window(followers, follow->window);
    for (int list = 0; list < KVB_LIST_COUNT; list++) {
        if (kvb_follow_has_list(follow, (enum kvb_tier)list)) {
            *follow->digests[list] = (struct kvb_digest){ 0 };
        }
    }
}

/* ---- Reading ---- */

kvb_status kvb_followers_of_slot(
    const struct kvb_followers *followers, kvb_slot_ref slot, uint32_t *out_number,
    enum kvb_tier *out_tier)
{
    if (slot.value >= followers->slot_owner_count || followers->slot_owners[slot.value] == 0) {
        return KVB_NOT_FOUND;
    }
    const uint32_t owner = followers->slot_owners[slot.value] - 1;
    *out_number = owner / KVB_LIST_COUNT;
    *out_tier = (enum kvb_tier)(owner % KVB_LIST_COUNT);
    return KVB_OK;
}

uint64_t kvb_followers_blocks(
    const struct kvb_followers *followers, const struct kvb_follower *follower, enum kvb_tier tier)
{
    if (tier == KVB_LIST_WINDOW) {
        return follower->window ? follower->window->count : 0;
    }
    return follower->has_slot[tier]
               ? kvb_prefix_index_slot_blocks(followers->options.index, follower->slots[tier])
               : 0;
}

void kvb_followers_each_block(
    const struct kvb_followers *followers, const struct kvb_follower *follower, enum kvb_tier tier,
    void (*visit)(void *context, kvb_block_hash block), void *context)
{
    if (tier == KVB_LIST_WINDOW) {
        if (follower->window) {
            kvb_block_set_each(follower->window, visit, context);
        }
    } else if (follower->has_slot[tier]) {
        kvb_prefix_index_each_block(
            followers->options.index, follower->slots[tier], visit, context);
    }
}

uint64_t kvb_followers_window_blocks(const struct kvb_followers *followers)
{
    return followers->window_blocks;
}

/* ---- Changing ---- */

static kvb_status make_scratch(struct kvb_followers *followers, size_t blocks)
{
    return kvb_array_reserve(
        &followers->changed, &followers->changed_capacity, blocks, sizeof *followers->changed,
        kvb_max_router_blocks);
}

typedef void (*digest_change)(
    struct kvb_digest *digest, const struct kvb_digest_key *key, enum kvb_tier tier,
    kvb_block_hash block);

/* Adds the changed blocks to the digest, or subtracts them.  Seed 0: the bridge keeps no digest. */
static void note_changed(
    const struct kvb_followers *followers, struct kvb_digest *digest,
    const struct kvb_digest_key *key, const struct kvb_router_batch *batch,
    const struct kvb_router_event *event, digest_change change)
{
    for (size_t i = 0; key->seed != 0 && i < event->block_count; i++) {
        if (followers->changed[i]) {
            change(digest, key, event->tier, batch->blocks[event->block_at + i]);
        }
    }
}

/* A batch without blocks has NULL arrays, and C forbids adding even 0 to NULL. */
static struct kvb_index_run
run_of(const struct kvb_router_batch *batch, const struct kvb_router_event *event)
{
    const bool has_blocks = event->block_count > 0;

    return (struct kvb_index_run){
        .has_parent = event->has_parent,
        .parent = event->parent,
        .blocks = has_blocks ? batch->blocks + event->block_at : NULL,
        .tokens = has_blocks ? batch->tokens + event->block_at : NULL,
        .count = event->block_count,
    };
}

void kvb_follow_expect(
    const struct kvb_followers *followers, const struct kvb_follow *follow,
    const struct kvb_router_batch *batch, const struct kvb_router_event *event)
{
    const struct kvb_prefix_index *index = followers->options.index;

    if (event->tier == KVB_LIST_WINDOW || !follow->shown.has_slot[event->tier]) {
        return;
    }
    const kvb_slot_ref slot = follow->shown.slots[event->tier];
    const struct kvb_index_run run = run_of(batch, event);
    if (event->kind == KVB_ROUTER_STORED) {
        kvb_prefix_index_expect_store(index, slot, &run);
    } else if (event->kind == KVB_ROUTER_REMOVED) {
        kvb_prefix_index_expect_remove(index, slot, run.blocks, run.count);
    }
}

/* A list of the stream, shown or hidden. */
struct list {
    struct kvb_block_set *window; /* borrowed; NULL: the slot */
    kvb_slot_ref slot;
};

static struct list shown_list(const struct kvb_follow *follow, enum kvb_tier tier)
{
    return tier == KVB_LIST_WINDOW ? (struct list){ .window = follow->window }
                                   : (struct list){ .slot = follow->shown.slots[tier] };
}

static struct list hidden_list(const struct follow_repair *repair, enum kvb_tier tier)
{
    return tier == KVB_LIST_WINDOW ? (struct list){ .window = repair->hidden_window }
                                   : (struct list){ .slot = repair->hidden[tier] };
}

/* Blocks for which there is no room are not marked as changed. */
static kvb_status store_in_window(
    struct kvb_followers *followers, struct kvb_block_set *window, const struct kvb_index_run *run)
{
    kvb_status first = KVB_OK;

    for (size_t i = 0; i < run->count; i++) {
        const bool is_full = followers->window_blocks >= followers->options.max_window_blocks &&
                             !kvb_block_set_has(window, run->blocks[i]);
        bool is_new = false;
        const kvb_status status =
            is_full ? KVB_TOO_LARGE : kvb_block_set_add(window, run->blocks[i], &is_new);
        followers->changed[i] = is_new;
        followers->window_blocks += is_new;
        first = first == KVB_OK ? status : first;
    }
    return first;
}

/* changed: a byte for each block; NULL: not needed. */
static void remove_from_window(
    struct kvb_followers *followers, struct kvb_block_set *window, const struct kvb_index_run *run,
    uint8_t *changed)
{
    for (size_t i = 0; i < run->count; i++) {
        const bool was_there = kvb_block_set_remove(window, run->blocks[i]);
        followers->window_blocks -= was_there;
        if (changed) {
            changed[i] = was_there;
        }
    }
}

static kvb_status store_in(
    struct kvb_followers *followers, struct list list, const struct kvb_router_batch *batch,
    const struct kvb_router_event *event)
{
    const struct kvb_index_run run = run_of(batch, event);

    return list.window ? store_in_window(followers, list.window, &run)
                       : kvb_prefix_index_store(
                             followers->options.index, list.slot, &run, followers->changed);
}

static kvb_status remove_from(
    struct kvb_followers *followers, struct list list, const struct kvb_router_batch *batch,
    const struct kvb_router_event *event, uint8_t *changed)
{
    const struct kvb_index_run run = run_of(batch, event);

    if (list.window) {
        remove_from_window(followers, list.window, &run, changed);
        return KVB_OK;
    }
    return kvb_prefix_index_remove(
        followers->options.index, list.slot, run.blocks, run.count, changed);
}

kvb_status kvb_follow_store(
    struct kvb_followers *followers, struct kvb_follow *follow,
    const struct kvb_router_batch *batch, const struct kvb_router_event *event)
{
    const struct kvb_digest_key key = key_of(follow);

    KVB_TRY(make_scratch(followers, event->block_count));
    KVB_TRY(make_list(followers, follow, event->tier));
    const kvb_status status = store_in(followers, shown_list(follow, event->tier), batch, event);
    note_changed(followers, follow->digests[event->tier], &key, batch, event, kvb_digest_add);
    return status;
}

/* Without scratch memory the changes are unknown, so the digest is computed anew. */
kvb_status kvb_follow_remove(
    struct kvb_followers *followers, struct kvb_follow *follow,
    const struct kvb_router_batch *batch, const struct kvb_router_event *event)
{
    if (!kvb_follow_has_list(follow, event->tier)) {
        return KVB_OK;
    }
    const bool has_scratch = make_scratch(followers, event->block_count) == KVB_OK;
    const kvb_status status = remove_from(
        followers, shown_list(follow, event->tier), batch, event,
        has_scratch ? followers->changed : NULL);
    if (has_scratch && status == KVB_OK) {
        const struct kvb_digest_key key = key_of(follow);
        note_changed(
            followers, follow->digests[event->tier], &key, batch, event, kvb_digest_subtract);
    } else {
        kvb_follow_begin_digest(followers, follow, follow->digest_seed);
    }
    return status;
}

/* ---- Hidden lists, for a snapshot under way ---- */

static kvb_status
make_hidden(struct kvb_followers *followers, struct follow_repair *repair, enum kvb_tier tier)
{
    if (repair->has_hidden[tier]) {
        return KVB_OK;
    }
    struct kvb_digest *digest = calloc(1, sizeof *digest);
    if (!digest) {
        return KVB_NO_MEMORY;
    }
    const kvb_status status = tier == KVB_LIST_WINDOW
                                  ? new_window(followers, &repair->hidden_window)
                                  : draw_list_slot(followers, &repair->hidden[tier]);
    if (status != KVB_OK) {
        free(digest);
        return status;
    }
    repair->hidden_digests[tier] = digest;
    repair->has_hidden[tier] = true;
    return KVB_OK;
}

kvb_status kvb_follow_hide(
    struct kvb_followers *followers, struct kvb_follow *follow,
    const struct kvb_router_batch *batch, const struct kvb_router_event *event)
{
    struct follow_repair *repair = &follow->repair;
    struct kvb_digest_key key = key_of(follow);

    if (event->kind != KVB_ROUTER_STORED) {
        return KVB_BAD_INPUT;
    }
    KVB_TRY(make_scratch(followers, event->block_count));
    KVB_TRY(make_hidden(followers, repair, event->tier));
    key.seed = repair->hidden_seed;
    const kvb_status status = store_in(followers, hidden_list(repair, event->tier), batch, event);
    note_changed(
        followers, repair->hidden_digests[event->tier], &key, batch, event, kvb_digest_add);
    return status;
}

static void
swap_list(struct kvb_followers *followers, struct kvb_follow *follow, enum kvb_tier tier)
{
    struct follow_repair *repair = &follow->repair;
    struct kvb_digest *old = follow->digests[tier];

    if (tier == KVB_LIST_WINDOW) {
        struct kvb_block_set *old_window = follow->window;
        follow->window = repair->hidden_window;
        follow->shown.window = follow->window;
        repair->hidden_window = old_window;
    } else {
        swap_slot(followers, follow, tier, &repair->hidden[tier]);
    }
    follow->digests[tier] = repair->hidden_digests[tier];
    repair->hidden_digests[tier] = old;
}

/* The digests were computed while the snapshot arrived, because walking a large list now would
 * delay all other streams.  They are computed anew only if the bridge changed the seed. */
kvb_status kvb_follow_show_hidden(struct kvb_followers *followers, struct kvb_follow *follow)
{
    const struct follow_repair *repair = &follow->repair;

    for (size_t t = 0; t < KVB_LIST_COUNT; t++) {
        if (repair->has_hidden[t]) {
            KVB_TRY(make_list(followers, follow, (enum kvb_tier)t));
        }
    }
    kvb_follow_clear(followers, follow);
    for (size_t t = 0; t < KVB_LIST_COUNT; t++) {
        if (repair->has_hidden[t]) {
            swap_list(followers, follow, (enum kvb_tier)t);
        }
    }
    if (repair->hidden_seed != follow->digest_seed) {
        kvb_follow_begin_digest(followers, follow, follow->digest_seed);
    }
    return KVB_OK;
}

void kvb_follow_drop_hidden(struct kvb_followers *followers, struct follow_repair *repair)
{
    for (size_t t = 0; t < KVB_LIST_COUNT; t++) {
        if (!repair->has_hidden[t]) {
            continue;
        }
        if (t == KVB_LIST_WINDOW) {
            free_window(followers, repair->hidden_window);
            repair->hidden_window = NULL;
        } else {
            kvb_prefix_index_slot_free(followers->options.index, repair->hidden[t]);
        }
        free(repair->hidden_digests[t]);
        repair->hidden_digests[t] = NULL;
        repair->has_hidden[t] = false;
    }
}

/* ---- Digests ---- */

struct counting {
    struct kvb_digest *digest;
    struct kvb_digest_key key;
    enum kvb_tier tier;
};

static void count_block(void *context, kvb_block_hash block)
{
    struct counting *counting = context;
    kvb_digest_add(counting->digest, &counting->key, counting->tier, block);
}

void kvb_follow_begin_digest(
    struct kvb_followers *followers, struct kvb_follow *follow, uint64_t seed)
{
    follow->digest_seed = seed;
    for (size_t t = 0; t < KVB_LIST_COUNT; t++) {
        if (!kvb_follow_has_list(follow, (enum kvb_tier)t)) {
            continue;
        }
        struct counting counting = { .digest = follow->digests[t],
                                     .key = key_of(follow),
                                     .tier = (enum kvb_tier)t };
        *counting.digest = (struct kvb_digest){ 0 };
        if (seed != 0) {
            kvb_followers_each_block(
                followers, &follow->shown, (enum kvb_tier)t, count_block, &counting);
        }
    }
}

static bool has_digest(const struct kvb_follow *follow, size_t tier, struct kvb_hash128 expected)
{
    static const struct kvb_hash128 nothing = { 0 };
    const struct kvb_hash128 *own =
        kvb_follow_has_list(follow, (enum kvb_tier)tier) ? &follow->digests[tier]->total : &nothing;

    return own->low == expected.low && own->high == expected.high;
}

bool kvb_follow_has_counts(
    const struct kvb_followers *followers, const struct kvb_follow *follow,
    const struct kvb_heartbeat *heartbeat)
{
    for (size_t tier = 0; tier < KVB_LIST_COUNT; tier++) {
        const uint64_t blocks =
            kvb_followers_blocks(followers, &follow->shown, (enum kvb_tier)tier);
        if (blocks != heartbeat->tiers[tier].blocks) {
            return false;
        }
        if (follow->digest_seed != 0 && !has_digest(follow, tier, heartbeat->tiers[tier].digest)) {
            return false;
        }
    }
    return true;
}
