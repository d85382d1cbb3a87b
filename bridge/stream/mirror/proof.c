#include "stream/mirror/change.h"

#include "core/array.h"

#include <stdlib.h>
#include <string.h>

/* Decides which Stored events report new copies (a real store), and which only repeat what is
 * held.
 *
 * With kv_cache_report_mode "full", vLLM repeats the blocks that a prompt hits: from the root on,
 * and only held ones.  It also stores second copies of blocks that were computed twice.  A Stored
 * is therefore real if
 *
 *     A   it names a parent;
 *     B   it has a block that the mirror did not have, in a full-attention group;
 *     C   it leaves out blocks (window groups);
 *
 * or if the Stored event of another group directly before or after it is real, because both come
 * from one prompt:
 *
 *     Stored group 0, Stored group 1, ...    a run of one prompt: group numbers ascend
 *
 * vLLM numbers groups in the order of the layers: the full-attention group is the first of some
 * models and the last of others.
 *
 * An engine that cannot repeat blocks stores a copy with each Stored.  vLLM can from 0.26 on; it
 * writes events as maps from 0.24 on, and a topic before its replies from 0.26 on.  SGLang cannot.
 *
 * Rule B applies only while the mirror certainly has all that the engine holds.  An engine that
 * stores a block after a parent holds that parent and all its ancestors, so these are no longer
 * doubtful.
 *
 * These rules hold for blocks on the device.  In other tiers a Stored of vLLM's offload connectors
 * is real: one that stores chunks announces a block once for each chunk that has it, and removes it
 * as often.  No other Stored counts as real there. */

enum { max_proof_steps = 1 << 14 }; /* for each batch: a step is the look-up of one block */

/* The most blocks that one decision looks up: a prompt of a million tokens in blocks of 16.  An
 * event that begins with more known blocks does not count as real. */
enum { max_judged_blocks = 1 << 16 };

/* ---- Real or not ---- */

/* Rule B: some block of a Stored without a parent, from index `from` on, is not in the mirror.
 * *left: how many blocks may still be looked up. */
static bool holds_new_block(
    const struct mirror_change *change, const struct kvb_engine_event *event, uint32_t from,
    uint32_t *left)
{
    const struct kvb_mirror *mirror = change->mirror;
    const uint32_t group = kvb_mirror_group_place(mirror, event->group);
    bool is_new = false;

    if (!mirror->is_whole || mirror->forgot_full) {
        return false;
    }
    for (uint32_t i = from; i < event->hash_count && !is_new && *left > 0; i++, (*left)--) {
        const kvb_engine_hash engine = change->batch->hashes[event->hash_at + i];
        const uint32_t id = kvb_mirror_find(mirror, group, engine);
        is_new = id == KVB_NO_ID || mirror->entries[id].max[event->tier] == 0;
    }
    return is_new;
}

/* Rule B or C for the rest of the run after this event.  It visits at most kvb_max_groups events.
 * Events that prove nothing are not visited again for the next event of the run. */
static bool is_before_proof(const struct mirror_change *change, uint32_t *left)
{
    const struct kvb_event_batch *batch = change->batch;
    uint32_t number = change->event->group;
    size_t at = change->at + 1;

    for (size_t i = 0; at < batch->event_count && i < kvb_max_groups; at++, i++) {
        const struct kvb_engine_event *next = &batch->events[at];
        if (next->kind == KVB_EVENT_SKIPPED && !kvb_group_kind_has_rule(next->group_kind)) {
            continue;
        }
        if (next->kind != KVB_EVENT_STORED || next->has_parent || next->group <= number) {
            break;
        }
        const bool may_prove =
            next->group_kind == KVB_GROUP_FULL && next->key == 0 && next->tier == KVB_TIER_DEVICE;
        if (at >= change->mirror->unproven_end &&
            (next->is_sparse || (may_prove && holds_new_block(change, next, 0, left)))) {
            return true;
        }
        number = next->group;
    }
    change->mirror->unproven_end = at;
    return false;
}

/* Rule B where no group of full attention is there: a re-announcement ends where a prompt's hit
 * ended, and the blocks in the window before that end are held. */
static bool ends_with_new_block(const struct mirror_change *change, uint32_t i, uint32_t *left)
{
    const struct kvb_engine_event *event = change->event;
    const uint64_t size = event->block_size > 0 ? event->block_size : 1;
    const uint64_t tokens = change->mirror->groups.list[change->group].window_tokens;
    const uint64_t need = (tokens - 1 + size - 1) / size;
    const uint32_t from = event->hash_count > need ? event->hash_count - (uint32_t)need : 0;

    return !change->mirror->groups.has_full &&
           holds_new_block(change, event, from > i ? from : i, left);
}

/* Rule B or C, for this event, `i` of whose blocks are applied, or for the run. */
static bool is_real_by_blocks(const struct mirror_change *change, uint32_t i)
{
    const struct kvb_mirror *mirror = change->mirror;
    const bool has_new = change->progress->has_new && mirror->is_whole && !mirror->forgot_full;
    uint32_t left = max_judged_blocks;
    const bool is_real_alone =
        change->is_window ? change->event->is_sparse || ends_with_new_block(change, i, &left)
                          : has_new || holds_new_block(change, change->event, i, &left);

    return is_real_alone || is_before_proof(change, &left);
}

[[gnu::hot]] static bool is_real_by_proof(const struct mirror_change *change, uint32_t i)
{
    const struct kvb_mirror *mirror = change->mirror;
    const struct kvb_engine_event *event = change->event;

    /* Engines that cannot repeat blocks, and those that are configured so. */
    if (mirror->copies == KVB_COPIES_COUNTED || mirror->never_repeats ||
        (event->is_array && event->key == 0)) {
        return true;
    }
    if (event->tier != KVB_TIER_DEVICE || event->key) {
        return event->is_of_connector; /* of vLLM's offload connectors */
    }
    /* Rule A, and the event of another group before this one. */
    if (event->has_parent || (mirror->run.is_real && event->group > mirror->run.number)) {
        return true;
    }
    return is_real_by_blocks(change, i);
}

bool kvb_mirror_is_real(struct mirror_change *change, uint32_t i)
{
    struct event_progress *progress = change->progress;

    if (!progress->is_judged) {
        progress->is_real = is_real_by_proof(change, i);
        progress->is_judged = true;
    }
    return progress->is_real;
}

/* ---- Chains without doubt ----
 *
 * A cache of chains without doubtful blocks, by their last entry.  A new doubt anywhere makes it
 * void.  Without it, a prompt that grows block by block would be walked again for each block. */

static bool is_proven(const struct kvb_mirror *mirror, uint32_t id)
{
    const struct proven_chain *chain = mirror->proven ? &mirror->proven[id % proof_slots] : NULL;

    return chain && chain->id == id && chain->doubt == mirror->doubts;
}

static void remember_proven(struct kvb_mirror *mirror, uint32_t id)
{
    if (!mirror->proven) {
        mirror->proven = malloc(proof_slots * sizeof *mirror->proven);
        kvb_mirror_forget_proofs(mirror);
    }
    if (mirror->proven) { /* without memory the chain is walked again */
        mirror->proven[id % proof_slots] =
            (struct proven_chain){ .id = id, .doubt = mirror->doubts };
    }
}

void kvb_mirror_forget_proofs(struct kvb_mirror *mirror)
{
    if (mirror->proven) {
        memset(mirror->proven, 0xff, proof_slots * sizeof *mirror->proven);
    }
}

void kvb_mirror_begin_proofs(struct kvb_mirror *mirror)
{
    mirror->proof_steps = max_proof_steps;
    mirror->unproven_end = 0;
    mirror->run = (struct stored_run){ 0 };
}

/* ---- Ancestors ---- */

uint32_t kvb_mirror_parent(const struct kvb_mirror *mirror, uint32_t id, uint32_t group)
{
    const struct mirror_entry *entry = &mirror->entries[id];
    const uint32_t named =
        entry->placement == placement_waiting
            ? KVB_NO_ID
            : kvb_mirror_find_named(mirror, (kvb_block_hash){ entry->parent }, group);

    return named != KVB_NO_ID || entry->placement == placement_rooted
               ? named
               : kvb_mirror_find(mirror, group, (kvb_engine_hash){ entry->parent });
}

/* Notes doubtful ancestors in mirror->pending, from the parent upwards.  *out_is_whole: all
 * ancestors were visited. */
static kvb_status
note_doubtful_ancestors(struct mirror_change *change, uint32_t id, bool *out_is_whole)
{
    struct kvb_mirror *mirror = change->mirror;

    *out_is_whole = false;
    /* Upwards until a chain that is known to be without doubt, a root, or the end of the budget. */
    while (id != KVB_NO_ID && mirror->entries[id].max[KVB_TIER_DEVICE] > 0 &&
           mirror->proof_steps > 0) {
        const struct mirror_entry *entry = &mirror->entries[id];
        mirror->proof_steps--;
        *out_is_whole = is_proven(mirror, id);
        if (*out_is_whole) {
            return KVB_OK;
        }
        if (!kvb_mirror_holds(entry, KVB_TIER_DEVICE)) {
            KVB_TRY(kvb_array_reserve(
                &mirror->pending, &mirror->pending_capacity, mirror->pending_count + 1,
                sizeof *mirror->pending, max_proof_steps));
            mirror->pending[mirror->pending_count++] = id;
        }
        *out_is_whole = !entry->has_parent;
        if (*out_is_whole) {
            return KVB_OK;
        }
        id = kvb_mirror_parent(mirror, id, change->group);
    }
    return KVB_OK;
}

kvb_status kvb_mirror_prove_ancestors(struct mirror_change *change)
{
    struct kvb_mirror *mirror = change->mirror;
    const struct kvb_engine_event *event = change->event;
    bool *is_proven = &change->progress->is_proven;

    *is_proven = !event->has_parent;
    if (event->tier != KVB_TIER_DEVICE || event->key || change->is_window ||
        mirror->copies == KVB_COPIES_COUNTED || mirror->doubtful[doubt_full].count == 0 ||
        !event->has_parent) {
        return KVB_OK;
    }
    const uint32_t parent = kvb_mirror_find(mirror, change->group, event->parent);
    KVB_TRY(note_doubtful_ancestors(change, parent, is_proven));
    /* From the root downwards, because parents are published first. */
    while (mirror->pending_count > 0) {
        const uint32_t id = mirror->pending[--mirror->pending_count];
        const struct copies copies = { .min = 1, .max = mirror->entries[id].max[KVB_TIER_DEVICE] };
        KVB_TRY(kvb_mirror_change_copies(change, id, KVB_TIER_DEVICE, copies));
    }
    if (*is_proven) {
        remember_proven(mirror, parent);
    }
    return KVB_OK;
}

void kvb_mirror_end_stored(struct mirror_change *change)
{
    struct kvb_mirror *mirror = change->mirror;
    const struct kvb_engine_event *event = change->event;

    mirror->run = (struct stored_run){ .is_real = kvb_mirror_is_real(change, event->hash_count),
                                       .number = event->group };
    const struct event_progress *progress = change->progress;
    if (progress->is_proven && mirror->doubtful[doubt_full].count > 0 && !change->is_window &&
        event->tier == KVB_TIER_DEVICE && event->token_count > 0 && progress->last != KVB_NO_ID) {
        remember_proven(mirror, progress->last);
    }
}
