#include "stream/mirror/mirror.h"

#include "core/limits.h"
#include "stream/mirror/change.h"
#include "stream/mirror/shown.h"

#include <stdlib.h>
#include <string.h>

/* ---- New and free ---- */

static void reset(struct kvb_mirror *mirror)
{
    mirror->changed.is_void = true;
    mirror->entry_end = 0;
    mirror->entry_count = 0;
    mirror->first_free = KVB_NO_ID;
    mirror->context_end = 0;
    mirror->first_free_context = KVB_NO_ID;
    mirror->newest_context = KVB_NO_ID;
    mirror->key_end = 0;
    for (size_t kind = 0; kind < doubt_kinds; kind++) {
        mirror->doubtful[kind] = (struct doubtful_list){ .oldest = KVB_NO_ID, .newest = KVB_NO_ID };
    }
    mirror->forgot_full = false;
    mirror->progress = (struct event_progress){ 0 };
    mirror->pending_count = 0;
    memset(mirror->counts.held, 0, sizeof mirror->counts.held);
    kvb_mirror_zero_digests(mirror);
    mirror->counts.proven_copies = 0;
    mirror->counts.doubtful = 0;
    mirror->counts.unrooted = 0;
    mirror->counts.unplaced = 0;
    mirror->dropped_tiers = 0;
    mirror->reset_tiers = 0;
    mirror->unsaid_tiers = 0;
    kvb_mirror_forget_shapes(mirror);
    kvb_mirror_forget_proofs(mirror);
}

kvb_status kvb_mirror_new(const struct kvb_mirror_options *options, struct kvb_mirror **out_mirror)
{
    if (options->max_blocks == 0 || options->max_blocks > kvb_max_stream_blocks) {
        return KVB_TOO_LARGE;
    }

    struct kvb_mirror *mirror = calloc(1, sizeof *mirror);
    if (!mirror) {
        return KVB_NO_MEMORY;
    }
    mirror->lora_name = strdup(options->lora_name ? options->lora_name : "");
    if (!mirror->lora_name) {
        free(mirror);
        return KVB_NO_MEMORY;
    }
    mirror->default_lora = kvb_span_of(mirror->lora_name);
    if (mirror->default_lora.len > 0) {
        (void)kvb_served_names_add(/* a name that no prompt can have is of no use here */
                                   &mirror->adapters, KVB_SERVED_ADAPTER, mirror->default_lora);
    }
    mirror->hash_key = kvb_hash_key_of(options->hash_key);
    mirror->hashes = options->hashes;
    mirror->copies = options->copies;
    mirror->is_whole = true;
    mirror->tiers = options->tiers;
    mirror->max_blocks = options->max_blocks;
    mirror->pool_block_size = options->pool_block_size;
    mirror->chunk_option = options->chunk_blocks;
    mirror->chunk_tokens = options->chunk_tokens;
    mirror->waiting.record_bytes = sizeof(struct waiting_link);
    mirror->links.record_bytes = sizeof(struct doubtful_link);
    mirror->extra_copies.record_bytes = sizeof(struct extra_copies);
    reset(mirror);
    *out_mirror = mirror;
    return KVB_OK;
}

void kvb_mirror_free(struct kvb_mirror *mirror)
{
    if (!mirror) {
        return;
    }
    if (mirror->shown) {
        kvb_shown_end(mirror->shown);
        kvb_mirror_show_no_more(mirror);
    }
    assert(!mirror->pictures);
    kvb_line_table_close(&mirror->names);
    kvb_id_table_done(&mirror->by_parent);
    kvb_side_table_done(&mirror->waiting);
    kvb_id_table_done(&mirror->by_key);
    kvb_id_table_done(&mirror->by_context);
    kvb_side_table_done(&mirror->links);
    kvb_side_table_done(&mirror->extra_copies);
    free(mirror->lora_name);
    kvb_region_close(&mirror->entry_memory);
    free(mirror->contexts);
    free(mirror->keys);
    for (size_t tier = 0; tier < KVB_TIER_COUNT; tier++) {
        kvb_entry_set_done(&mirror->in_tier[tier]);
    }
    free(mirror->proven);
    free(mirror->pending);
    free(mirror->changed.bits);
    for (size_t list = 0; list < KVB_LIST_COUNT; list++) {
        free(mirror->digests[list]);
    }
    free(mirror);
}

/* The memory is kept: after a clear an engine usually stores as many blocks again. */
static void clear_mirror(struct kvb_mirror *mirror)
{
    if (mirror->shown) {
        kvb_shown_note_cleared(mirror->shown);
    }
    kvb_line_table_empty(&mirror->names);
    kvb_id_table_clear(&mirror->by_parent);
    kvb_side_table_clear(&mirror->waiting);
    kvb_id_table_clear(&mirror->by_key);
    kvb_id_table_clear(&mirror->by_context);
    kvb_side_table_clear(&mirror->links);
    kvb_side_table_clear(&mirror->extra_copies);
    for (size_t tier = 0; tier < KVB_TIER_COUNT; tier++) {
        kvb_entry_set_clear(&mirror->in_tier[tier], mirror->entry_end);
    }
    kvb_mirror_tell_cleared(mirror);
    reset(mirror);
}

/* Groups are forgotten too, because a restarted engine may have others: an old group that never
 * stores again would keep every name out of the lists.  The new groups appear with their first
 * Stored events, all in one batch, so nothing is listed in between that is not held. */
void kvb_mirror_restart(struct kvb_mirror *mirror)
{
    clear_mirror(mirror);
    kvb_mirror_forget_groups(mirror);
    mirror->is_paired = false;
    mirror->chunk_blocks = 0;
    mirror->removal_tiers = 0;
    mirror->has_extra_keys = false;
    mirror->has_signed_hashes = false;
}

void kvb_mirror_set_whole(struct kvb_mirror *mirror, bool is_whole)
{
    mirror->is_whole = is_whole;
}

void kvb_mirror_set_repeats(struct kvb_mirror *mirror, bool may_repeat)
{
    mirror->never_repeats = !may_repeat;
}

bool kvb_mirror_is_paired(const struct kvb_mirror *mirror)
{
    return mirror->is_paired;
}

bool kvb_mirror_has_unannounced(const struct kvb_mirror *mirror)
{
    uint32_t tiers = 0;

    for (uint32_t i = 0; i < mirror->groups.count; i++) {
        tiers |= mirror->groups.list[i].tiers;
    }
    return mirror->has_signed_hashes && (tiers & ~(1U << KVB_TIER_DEVICE)) != 0;
}

uint32_t kvb_mirror_reset_tiers(const struct kvb_mirror *mirror)
{
    return mirror->reset_tiers;
}

uint32_t kvb_mirror_chunk_blocks(const struct kvb_mirror *mirror)
{
    const uint32_t blocks = mirror->chunk_option > 0 ? mirror->chunk_option : mirror->chunk_blocks;

    return blocks > 0 ? blocks : 1;
}

uint32_t kvb_mirror_dropped_tiers(const struct kvb_mirror *mirror)
{
    return mirror->dropped_tiers;
}

uint32_t kvb_mirror_unsaid_tiers(const struct kvb_mirror *mirror)
{
    return mirror->has_extra_keys ? mirror->unsaid_tiers : 0;
}

const struct kvb_served_names *kvb_mirror_adapters(const struct kvb_mirror *mirror)
{
    return &mirror->adapters;
}

const struct kvb_mirror_counts *kvb_mirror_count(const struct kvb_mirror *mirror)
{
    return &mirror->counts;
}

/* ---- Removed, Cleared ---- */

static kvb_status
set_or_drop(struct mirror_change *change, uint32_t id, enum kvb_tier tier, struct copies copies)
{
    KVB_TRY(kvb_mirror_change_copies(change, id, tier, copies));
    if (!kvb_mirror_has_copies(&change->mirror->entries[id])) {
        kvb_mirror_let_go(change->mirror, id);
    }
    return KVB_OK;
}

static kvb_status remove_copy(struct mirror_change *change, uint32_t id)
{
    const enum kvb_tier tier = change->event->tier;
    struct copies copies = kvb_mirror_copies(change->mirror, id, tier);

    copies.min -= copies.min > 0;
    copies.max--;
    return set_or_drop(
        change, id, tier, change->event->key != 0 ? (struct copies){ 0, 0 } : copies);
}

/* Removes a copy of the block; of a chunk that is named by its last block, those before it too. */
static kvb_status remove_block(struct mirror_change *change, kvb_engine_hash engine)
{
    uint32_t before[kvb_max_chunk_blocks];
    struct kvb_mirror *mirror = change->mirror;
    const enum kvb_tier tier = change->event->tier;
    const bool is_object = change->event->key != 0;
    const uint32_t id = kvb_mirror_find_known(mirror, change->event, change->group, engine);

    if (id == KVB_NO_ID || mirror->entries[id].max[tier] == 0) {
        mirror->counts.unknown_removed += !is_object; /* stores report all tiers */
        return KVB_OK;
    }
    /* Read before the removal, which may drop the entry that knows its parent. */
    const size_t count = kvb_mirror_rest_of_chunk(change, id, before);
    KVB_TRY(remove_copy(change, id));
    for (size_t i = 0; i < count; i++) {
        if (mirror->entries[before[i]].max[tier] > 0) {
            KVB_TRY(remove_copy(change, before[i]));
        }
    }
    return KVB_OK;
}

static kvb_status remove_blocks(struct mirror_change *change)
{
    const struct kvb_engine_event *event = change->event;
    struct event_progress *progress = change->progress;

    change->mirror->removal_tiers |= 1U << event->tier;
    for (; progress->next < event->hash_count && kvb_mirror_may_do(change, 1); progress->next++) {
        const uint32_t at = event->hash_at + progress->next;
        kvb_mirror_look_ahead(change->mirror, change->batch, change->group, at);
        KVB_TRY(remove_block(change, change->batch->hashes[at]));
    }
    progress->is_unfinished = progress->next < event->hash_count;
    return KVB_OK;
}

static kvb_status clear_tier(struct mirror_change *change, enum kvb_tier tier)
{
    const struct kvb_entry_set *set = &change->mirror->in_tier[tier];

    change->progress->is_unfinished = false;
    for (uint32_t id = 0; (id = kvb_entry_set_next(set, id)) != KVB_NO_ID;) {
        if (!kvb_mirror_may_do(change, 1)) {
            change->progress->is_unfinished = true;
            return KVB_OK;
        }
        KVB_TRY(set_or_drop(change, id, tier, (struct copies){ 0, 0 }));
    }
    return KVB_OK;
}

enum { offload_tiers = ((1U << KVB_TIER_COUNT) - 1) & ~(1U << KVB_TIER_DEVICE) };

static kvb_status clear_all(struct mirror_change *change)
{
    struct kvb_mirror *mirror = change->mirror;
    /* These may keep their blocks through this clear.  SGLang's flush empties its host pool with
     * the device. */
    const uint32_t left =
        change->event->leaves_tiers && !mirror->has_signed_hashes ? offload_tiers : 0;
    bool is_offloaded = false;

    for (size_t tier = KVB_TIER_DEVICE + 1; tier < KVB_TIER_COUNT; tier++) {
        is_offloaded |= kvb_entry_set_next(&mirror->in_tier[tier], 0) != KVB_NO_ID;
    }
    /* Where something may be left, the device is cleared block by block. */
    if (change->progress->is_unfinished || (left != 0 && is_offloaded)) {
        KVB_TRY(clear_tier(change, KVB_TIER_DEVICE));
        mirror->reset_tiers = offload_tiers;
        if (!change->progress->is_unfinished) {
            mirror->forgot_full = false; /* the device holds none of the forgotten ones any more */
        }
        return KVB_OK;
    }
    clear_mirror(mirror);
    /* a list that lacks blocks does not know what these tiers held */
    mirror->reset_tiers = mirror->is_whole ? 0 : left;
    return kvb_router_batch_add_event(
        change->out, &(struct kvb_router_event){ .kind = KVB_ROUTER_CLEARED });
}

static kvb_status clear_one_tier(struct mirror_change *change)
{
    KVB_TRY(clear_tier(change, change->event->tier));
    change->mirror->dropped_tiers &= ~(1U << change->event->tier);
    change->mirror->reset_tiers &= ~(1U << change->event->tier);
    change->mirror->unsaid_tiers &= ~(1U << change->event->tier);
    return KVB_OK;
}

/* ---- Room ----
 *
 * Blocks of an offload tier whose removals nobody publishes pile up until max_blocks is reached,
 * and would take the device's list with them.  So that tier is dropped first. */

/* The tier to drop; KVB_TIER_DEVICE: none holds anything. */
static enum kvb_tier tier_to_drop(const struct kvb_mirror *mirror)
{
    enum kvb_tier chosen = KVB_TIER_DEVICE;

    for (unsigned tier = KVB_TIER_DEVICE + 1; tier < KVB_TIER_COUNT; tier++) {
        const bool has_some = kvb_entry_set_next(&mirror->in_tier[tier], 0) != KVB_NO_ID;
        const bool is_first = chosen == KVB_TIER_DEVICE;
        const bool is_stuck = !(mirror->removal_tiers >> tier & 1);
        if (has_some && (is_first || (is_stuck && mirror->removal_tiers >> chosen & 1))) {
            chosen = (enum kvb_tier)tier;
        }
    }
    return chosen;
}

/* Drops tiers until the event's blocks fit, or none is left.  *out_is_done: the event may begin. */
static kvb_status make_room(struct mirror_change *change, bool *out_is_done)
{
    struct kvb_mirror *mirror = change->mirror;
    struct event_progress *progress = change->progress;

    while (progress->is_making_room ||
           mirror->entry_count + change->event->hash_count > mirror->max_blocks) {
        if (!progress->is_making_room) {
            progress->dropped = tier_to_drop(mirror);
            if (progress->dropped == KVB_TIER_DEVICE) {
                break;
            }
            progress->is_making_room = true;
        }
        KVB_TRY(clear_tier(change, progress->dropped));
        if (progress->is_unfinished) {
            *out_is_done = false;
            return KVB_OK;
        }
        progress->is_making_room = false;
        mirror->dropped_tiers |= 1U << progress->dropped;
    }
    *out_is_done = true;
    return KVB_OK;
}

/* ---- Any event ---- */

void kvb_mirror_begin_batch(struct kvb_mirror *mirror, const struct kvb_router_batch *out)
{
    mirror->batch_out = out->event_count;
}

bool kvb_mirror_is_unfinished(const struct kvb_mirror *mirror)
{
    return mirror->progress.is_unfinished;
}

static kvb_status apply_part(struct mirror_change *change)
{
    bool has_room = true;

    switch (change->event->kind) {
    case KVB_EVENT_STORED:
        /* One that has begun goes on: it was checked as a whole. */
        if (!change->progress->is_unfinished || change->progress->is_making_room) {
            KVB_TRY(make_room(change, &has_room));
        }
        return has_room ? kvb_mirror_store(change) : KVB_OK;
    case KVB_EVENT_REMOVED:
        return remove_blocks(change);
    case KVB_EVENT_CLEARED:
        return change->event->all_tiers ? clear_all(change) : clear_one_tier(change);
    case KVB_EVENT_SKIPPED:
        break;
    }
    return KVB_OK;
}

static kvb_status apply_change(struct mirror_change *change)
{
    struct kvb_mirror *mirror = change->mirror;
    const enum kvb_event_kind kind = change->event->kind;
    const bool has_group = kind == KVB_EVENT_STORED || kind == KVB_EVENT_REMOVED;
    bool is_applied = true;

    if (change->progress->is_unfinished) { /* it goes on, in the group that it has met */
        if (has_group) {
            kvb_mirror_find_group(change);
        }
        return apply_part(change);
    }
    *change->progress = (struct event_progress){ .last = KVB_NO_ID };
    mirror->pending_count = 0;
    if (change->at == 0) {
        kvb_mirror_begin_proofs(mirror);
    }
    if (change->batch->has_signed_hashes) {
        mirror->has_signed_hashes = true;
        mirror->reset_tiers = 0;
    }
    if (has_group) {
        KVB_TRY(kvb_mirror_meet_group(change, &is_applied));
    }
    return is_applied ? apply_part(change) : KVB_OK;
}

kvb_status kvb_mirror_apply(
    struct kvb_mirror *mirror, const struct kvb_event_batch *batch, size_t at, uint64_t *work,
    struct kvb_router_batch *out)
{
    struct mirror_change change = { .mirror = mirror,
                                    .batch = batch,
                                    .event = &batch->events[at],
                                    .at = at,
                                    .progress = &mirror->progress,
                                    .max_work = *work,
                                    .out = out,
                                    .first_out = out->event_count,
                                    .named = KVB_NO_ID };
    const kvb_status status = apply_change(&change);

    *work = change.work;
    return status;
}
