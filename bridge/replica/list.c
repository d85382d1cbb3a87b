#include "core/array.h"
#include "core/limits.h"
#include "replica/inside.h"

#include <stdlib.h>
#include <string.h>

/* What a follower lists: index slots and the window list, each with the digest of its blocks. */

enum { max_slot_owners = 1 << 20 };

static struct kvb_digest_key key_of(const struct kvb_follow *follow, uint64_t seed)
{
    return (struct kvb_digest_key){ .worker_id = follow->shown.id.worker_id,
                                    .dp_rank = follow->shown.id.dp_rank,
                                    .seed = seed };
}

/* ---- One list, shown or hidden ---- */

/* A slot of the index, with room to note its owner.  KVB_TOO_LARGE: the index has none.
 * KVB_NO_MEMORY. */
static kvb_status new_slot(struct kvb_followers *followers, kvb_slot_ref *out_slot)
{
    KVB_TRY(kvb_prefix_index_slot_new(followers->options.index, out_slot));
    const size_t need = (size_t)out_slot->value + 1;
    const kvb_status status = kvb_array_reserve(
        &followers->slot_owners, &followers->slot_owner_capacity, need,
        sizeof *followers->slot_owners, max_slot_owners);
    if (status != KVB_OK) {
        kvb_prefix_index_slot_free(followers->options.index, *out_slot);
        return status;
    }
    if (need > followers->slot_owner_count) {
        memset(
            followers->slot_owners + followers->slot_owner_count, 0,
            (need - followers->slot_owner_count) * sizeof *followers->slot_owners);
        followers->slot_owner_count = need;
    }
    return KVB_OK;
}

/* Makes the list of this tier, unless it is there.  Errors as above. */
static kvb_status
make_list(struct kvb_followers *followers, struct follow_list *list, enum kvb_tier tier)
{
    struct follow_list made = { .digest = NULL };

    if (list->digest) {
        return KVB_OK;
    }
    made.digest = calloc(1, sizeof *made.digest);
    kvb_status status = made.digest ? KVB_OK : KVB_NO_MEMORY;
    if (status == KVB_OK && tier == KVB_LIST_WINDOW) {
        made.window = malloc(sizeof *made.window);
        status = made.window ? KVB_OK : KVB_NO_MEMORY;
    } else if (status == KVB_OK) {
        status = new_slot(followers, &made.slot);
    }
    if (status != KVB_OK) {
        free(made.digest);
        return status;
    }
    if (made.window) {
        kvb_block_set_init(made.window, kvb_max_stream_blocks, followers->options.hash_key);
    }
    *list = made;
    return KVB_OK;
}

static void clear_list(struct kvb_followers *followers, struct follow_list *list)
{
    if (!list->digest) {
        return;
    }
    *list->digest = (struct kvb_digest){ 0 };
    if (list->window) {
        followers->window_blocks -= list->window->count;
        kvb_block_set_clear(list->window);
    } else {
        kvb_prefix_index_slot_clear(followers->options.index, list->slot);
    }
}

static void free_list(struct kvb_followers *followers, struct follow_list *list)
{
    if (list->window) {
        clear_list(followers, list); /* its blocks count no longer */
    } else if (list->digest) {
        kvb_prefix_index_slot_free(followers->options.index, list->slot);
        followers->slot_owners[list->slot.value] = 0;
    }
    free(list->window);
    free(list->digest);
    *list = (struct follow_list){ .digest = NULL };
}

/* ---- The lists that are shown ---- */

bool kvb_follow_has_list(const struct kvb_follow *follow, enum kvb_tier list)
{
    return follow->lists[list].digest != NULL;
}

/* The list was made, freed or exchanged: queries find it, or no longer do. */
static void
note_list(struct kvb_followers *followers, struct kvb_follow *follow, enum kvb_tier tier)
{
    const uint32_t number = (uint32_t)(follow - followers->follows);
    const struct follow_list *list = &follow->lists[tier];

    if (tier == KVB_LIST_WINDOW) {
        follow->shown.window = list->window;
        return;
    }
    follow->shown.has_slot[tier] = list->digest != NULL;
    follow->shown.slots[tier] = list->slot;
    if (list->digest) {
        followers->slot_owners[list->slot.value] = 1 + (number * KVB_LIST_COUNT) + (uint32_t)tier;
    }
}

void kvb_follow_free_lists(struct kvb_followers *followers, struct kvb_follow *follow)
{
    for (size_t list = 0; list < KVB_LIST_COUNT; list++) {
        free_list(followers, &follow->lists[list]);
        note_list(followers, follow, (enum kvb_tier)list);
    }
}

void kvb_follow_clear(struct kvb_followers *followers, struct kvb_follow *follow)
{
    follow->shown.claim++;
    for (size_t list = 0; list < KVB_LIST_COUNT; list++) {
        clear_list(followers, &follow->lists[list]);
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

/* Adds the changed blocks of a stored event to the digest, or subtracts those of a removed one.
 * Seed 0: the bridge keeps no digest. */
static void note_changed(
    const struct kvb_followers *followers, struct kvb_digest *digest,
    const struct kvb_digest_key *key, const struct kvb_router_batch *batch,
    const struct kvb_router_event *event)
{
    for (size_t i = 0; key->seed != 0 && i < event->block_count; i++) {
        const kvb_block_hash block = batch->blocks[event->block_at + i];
        if (followers->changed[i] && event->kind == KVB_ROUTER_STORED) {
            kvb_digest_add(digest, key, event->tier, block);
        } else if (followers->changed[i]) {
            kvb_digest_subtract(digest, key, event->tier, block);
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

/* Blocks for which there is no room are not marked as changed. */
static kvb_status store_in_window(
    struct kvb_followers *followers, struct kvb_block_set *window, const struct kvb_index_run *run)
{
    kvb_status first = KVB_OK;

    /* Goes on after a block that found no room: the list stays a subset, and is as full as it can.
     */
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

static kvb_status store_in(
    struct kvb_followers *followers, const struct follow_list *list,
    const struct kvb_router_batch *batch, const struct kvb_router_event *event)
{
    const struct kvb_index_run run = run_of(batch, event);

    return list->window ? store_in_window(followers, list->window, &run)
                        : kvb_prefix_index_store(
                              followers->options.index, list->slot, &run, followers->changed);
}

/* changed: a byte for each block; NULL: not needed. */
static kvb_status remove_from(
    struct kvb_followers *followers, const struct follow_list *list,
    const struct kvb_router_batch *batch, const struct kvb_router_event *event, uint8_t *changed)
{
    const struct kvb_index_run run = run_of(batch, event);

    if (!list->window) {
        return kvb_prefix_index_remove(
            followers->options.index, list->slot, run.blocks, run.count, changed);
    }
    for (size_t i = 0; i < run.count; i++) {
        const bool was_there = kvb_block_set_remove(list->window, run.blocks[i]);
        followers->window_blocks -= was_there;
        if (changed) {
            changed[i] = was_there;
        }
    }
    return KVB_OK;
}

kvb_status kvb_follow_store(
    struct kvb_followers *followers, struct kvb_follow *follow,
    const struct kvb_router_batch *batch, const struct kvb_router_event *event)
{
    const struct kvb_digest_key key = key_of(follow, follow->digest_seed);
    struct follow_list *list = &follow->lists[event->tier];

    KVB_TRY(make_scratch(followers, event->block_count));
    if (!list->digest) {
        KVB_TRY(make_list(followers, list, event->tier));
        note_list(followers, follow, event->tier);
    }
    const kvb_status status = store_in(followers, list, batch, event);
    note_changed(followers, list->digest, &key, batch, event);
    return status;
}

/* Without scratch memory the changes are unknown, so the digest is computed anew. */
kvb_status kvb_follow_remove(
    struct kvb_followers *followers, struct kvb_follow *follow,
    const struct kvb_router_batch *batch, const struct kvb_router_event *event)
{
    const struct follow_list *list = &follow->lists[event->tier];

    if (!list->digest) {
        return KVB_OK;
    }
    /* A removal must not fail for want of memory: the block would stay listed. */
    const bool has_scratch = make_scratch(followers, event->block_count) == KVB_OK;
    const kvb_status status =
        remove_from(followers, list, batch, event, has_scratch ? followers->changed : NULL);
    if (has_scratch && status == KVB_OK) {
        const struct kvb_digest_key key = key_of(follow, follow->digest_seed);
        note_changed(followers, list->digest, &key, batch, event);
    } else {
        kvb_follow_begin_digest(followers, follow, follow->digest_seed);
    }
    return status;
}

/* ---- Hidden lists, for a snapshot under way ---- */

kvb_status kvb_follow_hide(
    struct kvb_followers *followers, struct kvb_follow *follow,
    const struct kvb_router_batch *batch, const struct kvb_router_event *event)
{
    const struct kvb_digest_key key = key_of(follow, follow->repair.hidden_seed);
    struct follow_list *list = &follow->repair.hidden[event->tier];

    if (event->kind != KVB_ROUTER_STORED) {
        return KVB_BAD_INPUT;
    }
    KVB_TRY(make_scratch(followers, event->block_count));
    KVB_TRY(make_list(followers, list, event->tier));
    const kvb_status status = store_in(followers, list, batch, event);
    note_changed(followers, list->digest, &key, batch, event);
    return status;
}

void kvb_follow_show_hidden(struct kvb_followers *followers, struct kvb_follow *follow)
{
    struct follow_repair *repair = &follow->repair;

    /* Lists that the snapshot does not have are empty at the bridge. */
    kvb_follow_clear(followers, follow);
    for (size_t t = 0; t < KVB_LIST_COUNT; t++) {
        const struct follow_list old = follow->lists[t];
        if (!repair->hidden[t].digest) {
            continue;
        }
        if (old.digest && t != KVB_LIST_WINDOW) {
            followers->slot_owners[old.slot.value] = 0;
        }
        follow->lists[t] = repair->hidden[t];
        repair->hidden[t] = old;
        note_list(followers, follow, (enum kvb_tier)t);
    }
    /* The digests were computed while the snapshot arrived, because walking a large list now would
     * delay all other streams.  They are computed anew only if the bridge changed the seed. */
    if (repair->hidden_seed != follow->digest_seed) {
        kvb_follow_begin_digest(followers, follow, follow->digest_seed);
    }
}

void kvb_follow_drop_hidden(struct kvb_followers *followers, struct follow_repair *repair)
{
    for (size_t list = 0; list < KVB_LIST_COUNT; list++) {
        free_list(followers, &repair->hidden[list]);
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
        struct counting counting = { .digest = follow->lists[t].digest,
                                     .key = key_of(follow, seed),
                                     .tier = (enum kvb_tier)t };
        *counting.digest = (struct kvb_digest){ 0 };
        if (seed != 0) {
            kvb_followers_each_block(
                followers, &follow->shown, (enum kvb_tier)t, count_block, &counting);
        }
    }
}

bool kvb_follow_has_counts(
    const struct kvb_followers *followers, const struct kvb_follow *follow,
    const struct kvb_heartbeat *heartbeat)
{
    for (size_t t = 0; t < KVB_LIST_COUNT; t++) {
        const enum kvb_tier tier = (enum kvb_tier)t;
        const struct kvb_hash128 expected = heartbeat->tiers[t].digest;
        const struct kvb_hash128 own = kvb_follow_has_list(follow, tier)
                                           ? follow->lists[t].digest->total
                                           : (struct kvb_hash128){ 0 };
        const bool is_same = own.low == expected.low && own.high == expected.high;
        if (kvb_followers_blocks(followers, &follow->shown, tier) != heartbeat->tiers[t].blocks ||
            (follow->digest_seed != 0 && !is_same)) {
            return false;
        }
    }
    return true;
}
