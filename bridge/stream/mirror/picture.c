#include "stream/mirror/picture.h"

#include "core/array.h"
#include "stream/mirror/inside.h"
#include "stream/mirror/shown.h"

#include <stdlib.h>
#include <string.h>

/* A picture visits one entry after another.  From an entry that was not sent yet it climbs to the
 * nearest ancestor whose parent was sent, or that has none.  Then it sends the path downwards:
 *
 *     root - a - b - c - d       sent: root, a.  The visit of d climbs d, c, b;
 *            ^ sent      ^ place     it sends b, c, d as one event with parent a
 *
 * It keeps two bits per entry and the current path, and checks each block again before it is sent.
 * Therefore only blocks that are listed at that moment are sent, whatever has changed since the
 * climb began.
 *
 * A live stored event counts as sent if a reader that began with the picture accepts it.  With
 * KVB_PICTURE_FROM_ROOTS it does not accept a block whose parent it lacks; a later round finds that
 * block.  The last round is one that finds nothing and during which nothing changes.  A path is
 * skipped if it ends at a parent that is not listed, or in a circle of an engine's own names.
 * `seen` stops the next climb where it joins such a path, so that a round costs only a few visits
 * per entry.
 *
 * With KVB_PICTURE_PARENTS_FIRST every path can be sent, so one round is enough. */

/* Ends a picture during which every round sees a change.  The next one sends the rest. */
enum { max_rounds = 16, words_a_look = 64 };

/* The list of kvb_picture_shown. */
enum { shown_list = KVB_LIST_COUNT };

/* What stands between a block and its being sent. */
enum obstacle {
    obstacle_none,
    obstacle_parent, /* its parent is listed and was not sent */
    obstacle_orphan  /* its parent is not listed, and readers would ignore it */
};

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

/* The list that is being shown; there is one. */
static unsigned list_of(const struct kvb_picture *picture)
{
    return (unsigned)__builtin_ctz(picture->lists);
}

/* The tier whose copies count in it. */
static enum kvb_tier tier_of(const struct kvb_picture *picture)
{
    const unsigned list = list_of(picture);

    return list == KVB_LIST_WINDOW ? KVB_TIER_DEVICE : (enum kvb_tier)list;
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
static kvb_status grow_picture(struct kvb_picture *picture, const struct kvb_mirror *mirror)
{
    const size_t words = mirror->entry_capacity / 64 + 1;

    if (words <= picture->words) {
        return KVB_OK;
    }
    KVB_TRY(grow_bits(&picture->sent, picture->words, words));
    KVB_TRY(grow_bits(&picture->seen, picture->words, words));
    picture->words = words;
    return KVB_OK;
}

kvb_status kvb_picture_begin(
    struct kvb_picture *picture, struct kvb_mirror *mirror, enum kvb_picture_order order,
    unsigned lists)
{
    assert(!picture->mirror);
    *picture = (struct kvb_picture){
        .order = order, .lists = lists, .mirror = mirror, .next = mirror->pictures
    };
    mirror->pictures = picture;
    const kvb_status status = grow_picture(picture, mirror);
    if (status != KVB_OK) {
        kvb_picture_end(picture);
    }
    return status;
}

void kvb_picture_end(struct kvb_picture *picture)
{
    if (picture->mirror) {
        struct kvb_picture **link = &picture->mirror->pictures;
        while (*link != picture) {
            link = &(*link)->next;
        }
        *link = picture->next;
    }
    free(picture->sent);
    free(picture->seen);
    free(picture->path);
    *picture = (struct kvb_picture){ 0 };
}

/* ---- What was sent ---- */

static bool is_of_list(const struct kvb_mirror *mirror, uint32_t id, unsigned list)
{
    return list == shown_list ? kvb_shown_has(mirror->shown, id)
                              : kvb_mirror_speaks(mirror, id, list);
}

/* *out_parent: the entry of the parent, where that is the obstacle. */
static enum obstacle obstacle_of(
    const struct kvb_picture *picture, const struct kvb_mirror *mirror, uint32_t id,
    uint32_t *out_parent)
{
    const struct mirror_entry *entry = &mirror->entries[id];
    const unsigned list = list_of(picture);
    bool has_parent = entry->has_parent && list != KVB_LIST_WINDOW;

    if (list == shown_list) {
        *out_parent = kvb_shown_parent(mirror->shown, id, &has_parent);
    } else if (has_parent) {
        *out_parent = kvb_mirror_speaker(mirror, (kvb_block_hash){ entry->parent }, list);
    }
    if (!has_parent) {
        return obstacle_none;
    }
    if (*out_parent == KVB_NO_ID) {
        return picture->order == KVB_PICTURE_FROM_ROOTS ? obstacle_orphan : obstacle_none;
    }
    const bool is_sent = *out_parent / 64 < picture->words && is_set(picture->sent, *out_parent);
    return is_sent ? obstacle_none : obstacle_parent;
}

/* ---- What the mirror says while pictures are taken of it ---- */

void kvb_mirror_tell_cleared(struct kvb_mirror *mirror)
{
    for (struct kvb_picture *picture = mirror->pictures; picture; picture = picture->next) {
        const size_t used = mirror->entry_end / 64 + 1; /* later words were never set */
        const size_t words = used < picture->words ? used : picture->words;
        memset(picture->sent, 0, words * sizeof *picture->sent);
        memset(picture->seen, 0, words * sizeof *picture->seen);
        picture->path_count = 0;
        picture->place = 0;
    }
}

void kvb_mirror_tell_stored(
    struct kvb_mirror *mirror, const struct mirror_entry *entry, kvb_block_hash block,
    unsigned list)
{
    for (struct kvb_picture *picture = mirror->pictures; picture; picture = picture->next) {
        uint32_t parent = KVB_NO_ID;
        /* Lists that are over or still to come are not watched: the latter are read later. */
        if (picture->lists == 0 || list != list_of(picture)) {
            continue;
        }
        picture->is_changed = true;
        if (grow_picture(picture, mirror) != KVB_OK) {
            picture->is_lost = true;
        } else if (
            list != KVB_LIST_WINDOW && /* a set: there a block may come twice */
            obstacle_of(picture, mirror, (uint32_t)(entry - mirror->entries), &parent) ==
                obstacle_none) {
            set_bit(picture->sent, kvb_mirror_speaker(mirror, block, list));
        }
    }
}

void kvb_mirror_tell_left(struct kvb_mirror *mirror, uint32_t id, enum kvb_tier tier)
{
    for (struct kvb_picture *picture = mirror->pictures; picture; picture = picture->next) {
        if (id / 64 < picture->words && picture->lists != 0 && tier_of(picture) == tier) {
            unset(picture->sent, id);
        }
    }
}

/* In a model with several groups a name may leave the list while some entries still hold it.  All
 * of them count as not sent: another entry may represent the name by now. */
void kvb_mirror_tell_removed(struct kvb_mirror *mirror, kvb_block_hash block, unsigned list)
{
    if (!mirror->pictures || mirror->entry_count == 0 || list == KVB_LIST_WINDOW) {
        return;
    }
    struct kvb_line_probe probe = kvb_mirror_probe_name(mirror, block);
    for (uint32_t id;
         (id = kvb_mirror_next_holder(mirror, &probe, block, (enum kvb_tier)list)) != KVB_NO_ID;) {
        kvb_mirror_tell_left(mirror, id, (enum kvb_tier)list);
    }
}

/* ---- Steps ---- */

/* Drops the path, because the mirror has changed: its first entry is visited again. */
static void leave_path(struct kvb_picture *picture)
{
    if (picture->path[0] < picture->place) {
        picture->place = picture->path[0];
    }
    while (picture->path_count > 0) {
        unset(picture->seen, picture->path[--picture->path_count]);
    }
}

static kvb_status
push_entry(struct kvb_picture *picture, const struct kvb_mirror *mirror, uint32_t id)
{
    KVB_TRY(kvb_array_reserve(
        &picture->path, &picture->path_capacity, picture->path_count + 1, sizeof *picture->path,
        mirror->max_blocks));
    picture->path[picture->path_count++] = id;
    set_bit(picture->seen, id);
    return KVB_OK;
}

/* Moves `place` on to the next entry that may have to be shown, or to the end. */
static void move_on(struct kvb_picture *picture, const struct kvb_mirror *mirror)
{
    const bool has_set = list_of(picture) != shown_list;

    /* A word of entries that are known is passed over at once; so many of them are one look. */
    for (int i = 0; i < words_a_look && picture->place < mirror->entry_end; i++) {
        if (has_set) { /* of the entries with copies in the tier */
            picture->place =
                kvb_entry_set_next(&mirror->in_tier[tier_of(picture)], (uint32_t)picture->place);
        }
        const size_t word = picture->place / 64;
        if (picture->place >= mirror->entry_end || word >= picture->words) {
            return;
        }
        const uint64_t known = picture->sent[word] | picture->seen[word];
        const uint64_t rest = ~known & UINT64_MAX << (picture->place % 64);
        if (rest >> (picture->place % 64) & 1) {
            return;
        }
        picture->place = rest ? word * 64 + (size_t)__builtin_ctzll(rest) : (word + 1) * 64;
    }
}

/* Visits the next entry.  A listed one is next at once, or begins a path. */
static kvb_status
visit(struct kvb_picture *picture, const struct kvb_mirror *mirror, uint32_t *out_id)
{
    move_on(picture, mirror);
    if (picture->place >= mirror->entry_end) {
        return KVB_OK;
    }
    const uint32_t id = (uint32_t)picture->place;
    const bool is_known =
        picture->words > 0 && (is_set(picture->sent, id) || is_set(picture->seen, id));
    if (!is_known && is_of_list(mirror, id, list_of(picture))) {
        if (picture->order == KVB_PICTURE_ANY) {
            *out_id = id;
        } else {
            picture->is_path_whole = false;
            picture->is_circle = false;
            KVB_TRY(push_entry(picture, mirror, id));
        }
    }
    picture->place++;
    return KVB_OK;
}

/* Extends the path by one entry, or finds that it is complete or has no usable end. */
static kvb_status climb(struct kvb_picture *picture, const struct kvb_mirror *mirror)
{
    const uint32_t top = picture->path[picture->path_count - 1];
    uint32_t parent = KVB_NO_ID;

    if (!is_of_list(mirror, top, list_of(picture))) {
        leave_path(picture);
        return KVB_OK;
    }
    switch (obstacle_of(picture, mirror, top, &parent)) {
    case obstacle_none:
        picture->is_path_whole = true;
        return KVB_OK;
    case obstacle_orphan:
        picture->path_count = 0; /* its entries stay seen */
        return KVB_OK;
    case obstacle_parent:
        break;
    }
    if (!is_set(picture->seen, parent)) {
        return push_entry(picture, mirror, parent);
    }
    if (picture->order == KVB_PICTURE_FROM_ROOTS) {
        picture->path_count = 0; /* it joins a path without a root, or is a circle */
    } else {
        picture->is_path_whole = true; /* a circle: it begins anywhere */
        picture->is_circle = true;
    }
    return KVB_OK;
}

/* The last entry of the path is next. */
static void send_top(struct kvb_picture *picture, const struct kvb_mirror *mirror, uint32_t *out_id)
{
    const uint32_t top = picture->path[picture->path_count - 1];
    uint32_t parent = KVB_NO_ID;

    /* The mirror may have changed since the climb. */
    if (!is_of_list(mirror, top, list_of(picture)) ||
        (!picture->is_circle && obstacle_of(picture, mirror, top, &parent) != obstacle_none)) {
        leave_path(picture);
        return;
    }
    set_bit(picture->sent, top);
    picture->has_sent = true;
    picture->is_circle = false;
    picture->path_count--;
    *out_id = top;
}

/* A round is over: another one, or the next list. */
static void end_round(struct kvb_picture *picture)
{
    const bool goes_on = picture->order == KVB_PICTURE_FROM_ROOTS &&
                         (picture->has_sent || picture->is_changed) &&
                         ++picture->rounds < max_rounds;

    /* What the round has left out may hang below what it has sent, or below what came meanwhile. */
    picture->place = 0;
    picture->has_sent = false;
    picture->is_changed = false;
    if (picture->words > 0) {
        memset(picture->seen, 0, picture->words * sizeof *picture->seen);
    }
    if (!goes_on) {
        picture->lists &= picture->lists - 1;
        picture->rounds = 0;
        if (picture->words > 0) {
            memset(picture->sent, 0, picture->words * sizeof *picture->sent);
        }
    }
}

/* Rounds and lists that are over cost no look. */
bool kvb_picture_is_done(struct kvb_picture *picture, const struct kvb_mirror *mirror)
{
    while (picture->lists != 0 && picture->path_count == 0) {
        const unsigned list = list_of(picture);
        const uint64_t listed =
            list == shown_list ? kvb_shown_count(mirror->shown)->shown : mirror->counts.held[list];
        if (picture->place < mirror->entry_end && listed > 0) {
            break;
        }
        end_round(picture);
    }
    return picture->lists == 0;
}

kvb_status kvb_picture_next(
    struct kvb_picture *picture, const struct kvb_mirror *mirror, size_t *looks, uint32_t *out_id)
{
    if (picture->is_lost) {
        return KVB_NO_MEMORY;
    }
    /* The mirror may have grown. */
    if (picture->mirror) {
        KVB_TRY(grow_picture(picture, mirror));
    }
    *out_id = KVB_NO_ID;
    for (; *out_id == KVB_NO_ID && !kvb_picture_is_done(picture, mirror) && *looks > 0; --*looks) {
        if (picture->path_count == 0) {
            KVB_TRY(visit(picture, mirror, out_id));
        } else if (!picture->is_path_whole) {
            KVB_TRY(climb(picture, mirror));
        } else {
            send_top(picture, mirror, out_id);
        }
    }
    return KVB_OK;
}

/* ---- For routers ---- */

static kvb_status show_entry(
    const struct kvb_mirror *mirror, uint32_t id, unsigned list,
    const struct kvb_bucket_set *buckets, struct kvb_router_batch *out)
{
    const struct mirror_entry *entry = &mirror->entries[id];
    const kvb_block_hash block =
        kvb_mirror_listed_name(mirror, entry, kvb_mirror_block(mirror, entry), list);

    if (buckets) {
        const size_t bucket = kvb_digest_bucket(&mirror->digest_key, (enum kvb_tier)list, block);
        if (!(buckets->words[bucket / 64] >> (bucket % 64) & 1)) {
            return KVB_OK;
        }
    }
    return kvb_mirror_add_stored(out, 0, entry, block, list);
}

kvb_status kvb_picture_step(
    struct kvb_picture *picture, const struct kvb_mirror *mirror,
    const struct kvb_picture_part *part, struct kvb_router_batch *out, bool *out_is_done)
{
    const size_t begun = out->block_count;
    size_t looks = part->max_looks;
    uint32_t id = KVB_NO_ID;

    while (out->block_count - begun < part->max_blocks) {
        KVB_TRY(kvb_picture_next(picture, mirror, &looks, &id));
        if (id == KVB_NO_ID) {
            break;
        }
        KVB_TRY(show_entry(mirror, id, list_of(picture), part->buckets, out));
    }
    *out_is_done = kvb_picture_is_done(picture, mirror);
    return KVB_OK;
}
