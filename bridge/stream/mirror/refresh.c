#include "core/array.h"
#include "stream/mirror/inside.h"

#include <stdlib.h>
#include <string.h>

/* A refresh visits one entry after another.  From an entry that was not sent yet it climbs to the
 * nearest ancestor that has no parent or whose parent was sent.  Then it sends the path downwards:
 *
 *     root - a - b - c - d       sent: root, a.  The visit of d climbs d, c, b;
 *            ^ sent      ^ place     it sends b, c, d as one event with parent a
 *
 * A refresh keeps only two bits per entry and the current path, and checks each block again before
 * it is sent.  Therefore only blocks that are held at that moment are sent, whatever has changed
 * since the climb began.
 *
 * A live stored event counts as sent if a reader that started with the refresh accepts it: if it
 * has no parent or its parent was sent.  Otherwise a later round finds the block.  The last round
 * is one that finds nothing and during which nothing changes.  A path is skipped if it ends at a
 * parent that is not held, or in a cycle of an engine's own names.  `seen` stops the next climb
 * where it joins such a path, so that a round costs only a few visits per entry. */

/* Ends a refresh during which every round sees a change.  The next refresh sends the rest. */
enum { max_rounds = 16, words_a_look = 64 };

enum step { step_on, step_full, step_done };

static bool is_set(const uint64_t *bits, size_t id)
{
    return bits[id / 64] >> (id % 64) & 1;
}

static void set_bit(uint64_t *bits, size_t id)
{
    bits[id / 64] |= UINT64_C(1) << (id % 64);
}

static void unset(uint64_t *bits, size_t id)
{
    bits[id / 64] &= ~(UINT64_C(1) << (id % 64));
}

/* ---- Begin and end ---- */

static kvb_status grow_bits(uint64_t **bits, size_t old_words, size_t words)
{
    uint64_t *more = realloc(*bits, words * sizeof *more);

    if (!more) {
        return KVB_NO_MEMORY;
    }
    memset(more + old_words, 0, (words - old_words) * sizeof *more);
    *bits = more;
    return KVB_OK;
}

/* Grows both bit sets to the entry capacity of the mirror. */
static kvb_status grow_refresh(struct kvb_mirror *mirror)
{
    struct mirror_refresh *refresh = &mirror->refresh;
    const size_t words = mirror->entry_capacity / 64 + 1;

    if (words <= refresh->words) {
        return KVB_OK;
    }
    KVB_TRY(grow_bits(&refresh->sent, refresh->words, words));
    KVB_TRY(grow_bits(&refresh->seen, refresh->words, words));
    refresh->words = words;
    return KVB_OK;
}

kvb_status kvb_mirror_refresh_begin(struct kvb_mirror *mirror)
{
    kvb_mirror_refresh_end(mirror);
    const kvb_status status = grow_refresh(mirror);
    if (status != KVB_OK) {
        kvb_mirror_refresh_end(mirror);
    }
    return status;
}

void kvb_mirror_refresh_end(struct kvb_mirror *mirror)
{
    free(mirror->refresh.sent);
    free(mirror->refresh.seen);
    free(mirror->refresh.path);
    mirror->refresh = (struct mirror_refresh){ 0 };
}

bool kvb_mirror_is_refreshing(const struct kvb_mirror *mirror)
{
    return mirror->refresh.words > 0;
}

/* ---- Changes during a refresh ---- */

void kvb_mirror_refresh_clear(struct kvb_mirror *mirror)
{
    struct mirror_refresh *refresh = &mirror->refresh;

    if (refresh->words > 0) {
        const size_t used = mirror->entry_end / 64 + 1; /* later words were never set */
        const size_t words = used < refresh->words ? used : refresh->words;
        memset(refresh->sent, 0, words * sizeof *refresh->sent);
        memset(refresh->seen, 0, words * sizeof *refresh->seen);
        refresh->path_count = 0;
        refresh->place = 0;
    }
}

static bool is_entry_sent(const struct kvb_mirror *mirror, uint32_t id)
{
    return id / 64 < mirror->refresh.words && is_set(mirror->refresh.sent, id);
}

static uint32_t find_entry_parent(const struct kvb_mirror *mirror, const struct mirror_entry *entry)
{
    return kvb_mirror_speaker(mirror, (kvb_block_hash){ entry->parent }, KVB_TIER_DEVICE);
}

/* True: a reader that received all events since the refresh began accepts a stored event of this
 * entry. */
static bool is_taken(const struct kvb_mirror *mirror, const struct mirror_entry *entry)
{
    if (!entry->has_parent) {
        return true;
    }
    const uint32_t parent = find_entry_parent(mirror, entry);
    return parent != KVB_NO_ID && is_entry_sent(mirror, parent);
}

void kvb_mirror_refresh_note_stored(
    struct kvb_mirror *mirror, const struct mirror_entry *entry, kvb_block_hash block,
    unsigned list)
{
    struct mirror_refresh *refresh = &mirror->refresh;

    if (refresh->words == 0 || list != KVB_TIER_DEVICE) {
        return;
    }
    refresh->is_changed = true;
    if (grow_refresh(mirror) != KVB_OK) {
        refresh->is_lost = true;
    } else if (is_taken(mirror, entry)) {
        set_bit(refresh->sent, kvb_mirror_speaker(mirror, block, list));
    }
}

void kvb_mirror_refresh_note_left(struct kvb_mirror *mirror, uint32_t id, enum kvb_tier tier)
{
    if (tier == KVB_TIER_DEVICE && id / 64 < mirror->refresh.words) {
        unset(mirror->refresh.sent, id);
    }
}

/* In a model with several groups a name may leave the list while some entries still hold it.  All
 * of them count as not sent: another entry may represent the name by now. */
void kvb_mirror_refresh_note_removed(struct kvb_mirror *mirror, kvb_block_hash block, unsigned list)
{
    if (list != KVB_TIER_DEVICE || mirror->refresh.words == 0 || mirror->entry_count == 0) {
        return;
    }
    struct kvb_line_probe probe = kvb_mirror_probe_name(mirror, block);
    for (uint32_t id;
         (id = kvb_mirror_next_holder(mirror, &probe, block, KVB_TIER_DEVICE)) != KVB_NO_ID;) {
        kvb_mirror_refresh_note_left(mirror, id, KVB_TIER_DEVICE);
    }
}

/* ---- Steps ---- */

static bool is_entry_listed(const struct kvb_mirror *mirror, uint32_t id)
{
    return kvb_mirror_speaks(mirror, id, KVB_TIER_DEVICE);
}

static kvb_status push_entry(struct kvb_mirror *mirror, uint32_t id)
{
    struct mirror_refresh *refresh = &mirror->refresh;

    KVB_TRY(kvb_array_reserve(
        &refresh->path, &refresh->path_capacity, refresh->path_count + 1, sizeof *refresh->path,
        mirror->max_blocks));
    refresh->path[refresh->path_count++] = id;
    set_bit(refresh->seen, id);
    return KVB_OK;
}

/* Drops the path, because the mirror has changed: its first entry is visited again. */
static void leave_path(struct mirror_refresh *refresh)
{
    if (refresh->path[0] < refresh->place) {
        refresh->place = refresh->path[0];
    }
    while (refresh->path_count > 0) {
        unset(refresh->seen, refresh->path[--refresh->path_count]);
    }
}

static enum step end_mirror_round(struct mirror_refresh *refresh)
{
    if ((!refresh->has_sent && !refresh->is_changed) || ++refresh->rounds >= max_rounds) {
        return step_done;
    }
    memset(refresh->seen, 0, refresh->words * sizeof *refresh->seen);
    refresh->place = 0;
    refresh->has_sent = false;
    refresh->is_changed = false;
    return step_on;
}

/* Moves on to the next entry, at most words_a_look * 64, that was neither sent nor seen. */
static void skip_known(struct mirror_refresh *refresh, size_t entry_end)
{
    for (int i = 0; i < words_a_look && refresh->place < entry_end; i++) {
        const size_t word = refresh->place / 64;
        const uint64_t known = refresh->sent[word] | refresh->seen[word];
        const uint64_t rest = ~known & UINT64_MAX << (refresh->place % 64);
        if (rest != 0) {
            refresh->place = word * 64 + (size_t)__builtin_ctzll(rest);
            return;
        }
        refresh->place = (word + 1) * 64;
    }
}

/* Begins a path at the next entry that needs one. */
static kvb_status scan(struct kvb_mirror *mirror, enum step *out_step)
{
    struct mirror_refresh *refresh = &mirror->refresh;

    skip_known(refresh, mirror->entry_end);
    if (refresh->place >= mirror->entry_end) {
        *out_step = end_mirror_round(refresh);
        return KVB_OK;
    }
    const uint32_t id = (uint32_t)refresh->place;
    if (!is_set(refresh->sent, id) && !is_set(refresh->seen, id) && is_entry_listed(mirror, id)) {
        refresh->is_path_whole = false;
        KVB_TRY(push_entry(mirror, id));
    }
    refresh->place++;
    return KVB_OK;
}

/* Extends the path by one entry, or finds that it is complete or has no usable end. */
static kvb_status climb(struct kvb_mirror *mirror)
{
    struct mirror_refresh *refresh = &mirror->refresh;
    const uint32_t top = refresh->path[refresh->path_count - 1];
    const struct mirror_entry *entry = &mirror->entries[top];

    if (!is_entry_listed(mirror, top)) {
        leave_path(refresh);
        return KVB_OK;
    }
    if (is_taken(mirror, entry)) {
        refresh->is_path_whole = true;
        return KVB_OK;
    }
    const uint32_t parent = find_entry_parent(mirror, entry);
    if (parent == KVB_NO_ID || is_set(refresh->seen, parent)) {
        refresh->path_count = 0; /* no root above it, or a cycle; its entries stay seen */
        return KVB_OK;
    }
    return push_entry(mirror, parent);
}

static bool
continues_refresh_event(const struct kvb_router_batch *out, const struct mirror_entry *entry)
{
    if (out->event_count == 0 || !entry->has_parent) {
        return false;
    }
    const struct kvb_router_event *last = &out->events[out->event_count - 1];
    return last->block_count < kvb_max_event_blocks &&
           out->blocks[out->block_count - 1].value == entry->parent;
}

static kvb_status show_refreshed(
    const struct kvb_mirror *mirror, const struct mirror_entry *entry, struct kvb_router_batch *out)
{
    const struct kvb_router_event event = { .kind = KVB_ROUTER_STORED,
                                            .tier = KVB_TIER_DEVICE,
                                            .has_parent = entry->has_parent,
                                            .parent = { entry->parent } };

    if (!continues_refresh_event(out, entry)) {
        KVB_TRY(kvb_router_batch_add_event(out, &event));
    }
    return kvb_router_batch_add_block(out, kvb_mirror_block(mirror, entry), entry->tokens);
}

/* Sends the last entry of the path. */
static kvb_status send_top(
    struct kvb_mirror *mirror, size_t max_blocks, struct kvb_router_batch *out, enum step *out_step)
{
    struct mirror_refresh *refresh = &mirror->refresh;
    const uint32_t top = refresh->path[refresh->path_count - 1];
    const struct mirror_entry *entry = &mirror->entries[top];

    if (!is_entry_listed(mirror, top) || !is_taken(mirror, entry)) {
        leave_path(refresh);
        return KVB_OK;
    }
    if (out->block_count >= max_blocks) {
        *out_step = step_full;
        return KVB_OK;
    }
    KVB_TRY(show_refreshed(mirror, entry, out));
    set_bit(refresh->sent, top);
    refresh->has_sent = true;
    refresh->path_count--;
    return KVB_OK;
}

kvb_status kvb_mirror_refresh_step(
    struct kvb_mirror *mirror, size_t max_blocks, size_t max_looks, struct kvb_router_batch *out,
    bool *out_is_done)
{
    struct mirror_refresh *refresh = &mirror->refresh;
    enum step step = step_on;

    if (refresh->is_lost || refresh->words == 0) {
        return KVB_NO_MEMORY;
    }
    KVB_TRY(grow_refresh(mirror)); /* the mirror may have grown */
    for (size_t i = 0; i < max_looks && step == step_on; i++) {
        if (refresh->path_count == 0) {
            KVB_TRY(scan(mirror, &step));
        } else if (!refresh->is_path_whole) {
            KVB_TRY(climb(mirror));
        } else {
            KVB_TRY(send_top(mirror, max_blocks, out, &step));
        }
    }
    *out_is_done = step == step_done;
    return KVB_OK;
}
