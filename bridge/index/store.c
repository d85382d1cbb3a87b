#include "index/inside.h"

#include <string.h>

/* Stores a run in the tree.
 *
 * Nearly all blocks take one of three fast paths:
 *
 *     existing node   the run uses its canonical name; the slot's holder is added to its set
 *     new node        it gets the run's name as canonical name, and a set of this one holder
 *     other name      the node exists; the run's name is written into the slot's page, and the
 *                     holder is added to the set
 *
 * The fast paths are for slots without orphans.  In most cases the only table that they look up is
 * `names`, once for each new node or other name.  Every other block takes the slow path through
 * index/words.c. */

/* The latest change of a set.  It is reused for the next node, because in most cases that has the
 * same set. */
struct step {
    kvb_set_id from, to;
};

struct storing {
    struct kvb_prefix_index *index;
    uint32_t slot;
    uint32_t holder;
    const struct kvb_index_run *run;
    struct prefix_names *names; /* names of the run; names->at: number of blocks done */
    uint8_t *changed;           /* may be NULL */
    uint32_t node;              /* the parent of the next block */
    uint32_t noted;             /* an extent that the holder's list contains */
    struct step step;
};

static kvb_block_hash parent_name(const struct storing *storing, size_t at)
{
    return at > 0 ? storing->run->blocks[at - 1] : storing->run->parent;
}

/* Whether the parent is ROOT, or the run names the parent by its canonical name. */
static bool is_below_usual_name(const struct storing *storing)
{
    return storing->node == kvb_root_node || kvb_prefix_name(storing->index, storing->node) ==
                                                 parent_name(storing, storing->names->at).value;
}

/* Whether the canonical name of `child`, which exists, implies the run's name for the parent. */
static bool is_parent_usual_to(const struct storing *storing, uint32_t child)
{
    return storing->node == kvb_root_node || kvb_prefix_usual_parent(storing->index, child) ==
                                                 parent_name(storing, storing->names->at).value;
}

/* Gives the new child a parent override: the run's name for the parent. */
static void sew(const struct storing *storing, uint32_t child)
{
    struct prefix_extent *here = kvb_prefix_extent_of(storing->index, child);

    here->override_at = (uint8_t)kvb_prefix_offset(child);
    here->parent_override_parent = parent_name(storing, storing->names->at).value;
}

static kvb_status note(struct storing *storing, uint32_t extent)
{
    if (storing->noted != extent) {
        KVB_TRY(kvb_prefix_note_extent(storing->index, storing->holder, extent));
        storing->noted = extent;
    }
    return KVB_OK;
}

static void done_with(struct storing *storing, uint32_t node, bool is_new)
{
    if (storing->changed) {
        storing->changed[storing->names->at] = is_new;
    }
    storing->node = node;
    kvb_prefix_names_next(storing->index, storing->names);
}

static void count_new(struct storing *storing, size_t count)
{
    storing->index->slots[storing->slot].blocks += count;
    storing->index->counters.memberships += count;
    storing->index->counters.stored += count;
}

/* ---- Fast paths ---- */

/* Adds the holder to the sets of `count` nodes, which have the same set. */
static kvb_status enter_holder_sets(struct storing *storing, kvb_set_id *sets, uint32_t count)
{
    struct kvb_prefix_index *index = storing->index;
    struct step *step = &storing->step;
    const kvb_set_id from = sets[0];
    uint32_t moved = count;

    /* The first node finds or makes the set with the holder; the others have the same. */
    if (from != step->from || from == 0) {
        KVB_TRY(kvb_holder_sets_with(&index->sets, from, storing->holder, &step->to));
        step->from = step->to == from ? 0 : from; /* edited in place: its only node */
        moved--;
    }
    kvb_set_move(&index->sets, from, step->to, moved);
    for (uint32_t i = 0; i < count; i++) {
        kvb_prefix_put_set(index, &sets[i], step->to);
    }
    return KVB_OK;
}

/* Returns how many of the run's next blocks are the nodes from `child` on of its extent, under
 * their canonical names.  `child` is one of them. */
static uint32_t count_there(const struct storing *storing, uint32_t child)
{
    const struct prefix_extent *here = kvb_prefix_extent_of(storing->index, child);
    const struct kvb_prefix_compare *compare = storing->index->compare;
    const uint32_t at = kvb_prefix_offset(child);
    const size_t done = storing->names->at;
    const size_t left = storing->run->count - done;
    const uint32_t rest = here->len - at;
    const uint32_t named = (uint32_t)__builtin_ctz(~((uint32_t)here->named >> at));
    uint32_t count = left < rest ? (uint32_t)left : rest;

    count = named < count ? named : count;
    count = compare->common(here->tokens + at, &storing->run->tokens[done].value, count);
    count = compare->common(here->names + at, &storing->run->blocks[done].value, count);
    /* Where the extent has another name for a parent, the run's has to be compared with that. */
    return here->override_at > at && here->override_at < at + count ? here->override_at - at
                                                                    : count;
}

/* Prefetches what the run needs after `count` nodes of the extent: the next extent, or the names of
 * the blocks that the extent does not have. */
[[gnu::always_inline]] static inline void
expect_rest(struct storing *storing, uint32_t child, uint32_t count)
{
    const struct prefix_extent *here = kvb_prefix_extent_of(storing->index, child);

    if (storing->names->at + count == storing->run->count) {
        return;
    }
    if (kvb_prefix_offset(child) + count < kvb_extent_nodes) {
        kvb_prefix_names_begin(storing->index, storing->names, count);
        return;
    }
    const uint32_t next = here->next != 0 ? here->next : child / kvb_extent_nodes + 1;
    const char *line = (const char *)kvb_prefix_extent(storing->index, next);
    for (size_t at = 0; at < sizeof(struct prefix_extent); at += 64) {
        __builtin_prefetch(line + at, 1);
    }
}

/* Returns how many of the first `max` sets are the same. */
static uint32_t count_alike_sets(const kvb_set_id *sets, uint32_t max)
{
    uint32_t count = 1;

    while (count < max && sets[count] == sets[0]) {
        count++;
    }
    return count;
}

/* Adds the holder to the sets of as many of `max` nodes, from `child` on, as can be done at once.
 * It is not in the first of them.  Returns their number in *out_count. */
static kvb_status
enter_some(struct storing *storing, uint32_t child, uint32_t max, uint32_t *out_count)
{
    kvb_set_id *sets = kvb_prefix_set(storing->index, child);

    KVB_TRY(note(storing, child / kvb_extent_nodes));
    *out_count = kvb_holder_sets_edit_with(&storing->index->sets, sets, max, storing->holder);
    if (*out_count == 0) {
        *out_count = count_alike_sets(sets, max);
        KVB_TRY(enter_holder_sets(storing, sets, *out_count));
    }
    count_new(storing, *out_count);
    return KVB_OK;
}

/* Stores some of `max` blocks whose nodes exist, from `child` on, and whose names are the canonical
 * names of the nodes.  Returns their number in *out_count, one at least. */
static kvb_status
store_some(struct storing *storing, uint32_t child, uint32_t max, uint32_t *out_count)
{
    struct kvb_prefix_index *index = storing->index;
    const kvb_set_id *sets = kvb_prefix_set(index, child);
    const bool is_new = !kvb_set_has(&index->sets, *sets, storing->holder);

    if (is_new) {
        KVB_TRY(enter_some(storing, child, max, out_count));
    } else { /* held before, so its extent is in the holder's list */
        *out_count = count_alike_sets(sets, max);
        storing->noted = child / kvb_extent_nodes;
        index->counters.duplicate_stored += *out_count;
    }
    if (storing->changed) {
        memset(storing->changed + storing->names->at, is_new, *out_count);
    }
    storing->node = child + *out_count - 1;
    kvb_prefix_names_skip(storing->names, *out_count);
    return KVB_OK;
}

/* Stores `count` such blocks. */
static kvb_status store_there(struct storing *storing, uint32_t child, uint32_t count)
{
    for (uint32_t i = 0; i < count;) { /* terminates: each iteration stores one at least */
        uint32_t stored = 0;
        KVB_TRY(store_some(storing, child + i, count - i, &stored));
        i += stored;
    }
    return KVB_OK;
}

/* Whether the slot has neither an alias nor a word in a page of this name. */
static bool is_unused(const struct storing *storing, kvb_block_hash block)
{
    const struct kvb_prefix_index *index = storing->index;
    return index->slots[storing->slot].own_words == 0 ||
           (kvb_prefix_called(index, storing->holder, block.value).word == KVB_NONE &&
            kvb_prefix_private_word(index, storing->holder, block) == KVB_NONE);
}

/* Returns how many of the run's next `count` names may be appended: those before the first one that
 * words_by_name has for the holder.  May stop at kvb_extent_nodes, because an append never takes
 * more. */
static size_t names_not_private(const struct storing *storing, size_t count)
{
    const kvb_block_hash *blocks = storing->run->blocks + storing->names->at;
    size_t unused = 0;

    if (storing->index->holders[storing->holder].private_words == 0) {
        return count;
    }
    while (unused < count && unused < kvb_extent_nodes &&
           kvb_prefix_private_word(storing->index, storing->holder, blocks[unused]) == KVB_NONE) {
        unused++;
    }
    return unused;
}

/* Appends the next blocks of the run to the extent.  A new node has no children, so all are new. */
static void append_rest(struct storing *storing)
{
    struct kvb_prefix_index *index = storing->index;
    const struct kvb_index_run *run = storing->run;
    const size_t room = kvb_prefix_room(index);
    const size_t at = storing->names->at;
    const size_t left = names_not_private(storing, run->count - at);

    const uint32_t put = kvb_prefix_append(
        index, storing->node, storing->names, run->tokens + at, left < room ? left : room,
        kvb_set_of_one(storing->holder));
    if (storing->changed) {
        memset(storing->changed + at, 1, put);
    }
    count_new(storing, put);
    storing->node += put;
}

/* Stores a block that has no node and whose name no node has.  Adds the node. */
static kvb_status store_new(struct storing *storing)
{
    struct kvb_prefix_index *index = storing->index;
    const size_t at = storing->names->at;
    uint32_t child = KVB_NONE;

    if (kvb_prefix_room(index) == 0) {
        return KVB_TOO_LARGE;
    }
    KVB_TRY(kvb_prefix_child_new(
        index, storing->node, storing->run->tokens[at].value, storing->run->blocks[at].value, true,
        &child));
    /* Into the holder's list before it holds the node: what is not there is never reclaimed. */
    const kvb_status status = note(storing, child / kvb_extent_nodes);
    if (status != KVB_OK) {
        kvb_prefix_trim(index, child);
        return status;
    }
    if (!is_below_usual_name(storing)) {
        sew(storing, child);
    }
    kvb_prefix_put_set(index, kvb_prefix_set(index, child), kvb_set_of_one(storing->holder));
    count_new(storing, 1);
    done_with(storing, child, true);
    append_rest(storing);
    return KVB_OK;
}

/* Stores a block whose node exists under another name, and which the slot does not hold yet.
 * KVB_NOT_FOUND: the name contradicts the slot's page. */
static kvb_status store_in_page(struct storing *storing, uint32_t child)
{
    struct kvb_prefix_index *index = storing->index;
    const kvb_block_hash block = storing->run->blocks[storing->names->at];
    const kvb_block_hash parent = parent_name(storing, storing->names->at);

    KVB_TRY(note(storing, child / kvb_extent_nodes));
    /* The word first, then the set: a holder in the set without a word would have the canonical
     * name. */
    KVB_TRY(kvb_prefix_page_put(index, storing->holder, block, child, parent));
    const kvb_status status = enter_holder_sets(storing, kvb_prefix_set(index, child), 1);
    if (status != KVB_OK) {
        kvb_prefix_page_take(index, kvb_prefix_page_word(index, storing->holder, child));
        return status;
    }
    index->slots[storing->slot].own_words++;
    count_new(storing, 1);
    done_with(storing, child, true);
    return KVB_OK;
}

/* ---- Slow path ---- */

/* Adds the slot's word for `node`.  A name that the slot used for another node is moved.  *out_old
 * is the node of the tree that lost the name, or KVB_NONE; the caller trims it. */
static kvb_status
name_node(struct storing *storing, uint32_t node, uint32_t *out_old, bool *out_is_new)
{
    struct kvb_prefix_index *index = storing->index;
    const kvb_block_hash block = storing->run->blocks[storing->names->at];
    const kvb_block_hash parent = parent_name(storing, storing->names->at);
    const struct prefix_found found = kvb_prefix_find(index, storing->slot, block);

    *out_is_new = found.kind == found_none;
    if (found.kind != found_none && found.kind != found_orphan && found.node == node) {
        KVB_TRY(kvb_prefix_word_again(index, storing->slot, &found, parent));
        index->counters.duplicate_stored++;
        return KVB_OK;
    }
    /* In a slot a name stands for one block: the one that was stored later. */
    if (found.kind != found_none) {
        KVB_TRY(kvb_prefix_word_drop(index, storing->slot, &found));
        *out_old = found.kind == found_orphan ? KVB_NONE : found.node;
    }
    const kvb_status status = kvb_prefix_word_make(index, storing->slot, block, node, parent);
    if (status == KVB_OK) {
        index->counters.stored += *out_is_new;
        index->counters.aliases += !*out_is_new;
    } else {
        index->counters.removed += !*out_is_new; /* the name was removed from its old node */
    }
    return status;
}

static kvb_status make_child(struct storing *storing, uint32_t *out_child)
{
    struct kvb_prefix_index *index = storing->index;
    const uint64_t tokens = storing->run->tokens[storing->names->at].value;
    const uint64_t name = storing->run->blocks[storing->names->at].value;

    *out_child = kvb_prefix_child(index, storing->node, tokens);
    if (*out_child != KVB_NONE) {
        return KVB_OK;
    }
    if (kvb_prefix_room(index) == 0) {
        return KVB_TOO_LARGE;
    }
    return kvb_prefix_child_new(
        index, storing->node, tokens, name, kvb_prefix_named(index, name) == KVB_NONE, out_child);
}

static kvb_status store_long(struct storing *storing)
{
    struct kvb_prefix_index *index = storing->index;
    const kvb_block_hash block = storing->run->blocks[storing->names->at];
    uint32_t child = KVB_NONE;
    uint32_t old = KVB_NONE;
    bool is_new = false;

    KVB_TRY(make_child(storing, &child));
    const kvb_status status = name_node(storing, child, &old, &is_new);
    if (old != KVB_NONE) {
        kvb_prefix_trim(index, old);
    }
    if (status != KVB_OK) {
        kvb_prefix_trim(index, child); /* a new node may be unused, because its word was refused */
        return status;
    }
    storing->step = (struct step){ 0 }; /* sets may have been freed and their numbers reused */
    storing->noted = 0;
    done_with(storing, child, is_new);
    return kvb_prefix_join(index, storing->slot, block, child);
}

/* ---- Choosing the path ---- */

static bool is_own_name(const struct kvb_prefix_index *index, uint32_t node, kvb_block_hash block)
{
    const struct prefix_extent *here = kvb_prefix_extent_of(index, node);
    const uint32_t at = kvb_prefix_offset(node);

    return here->names[at] == block.value && here->named >> at & 1;
}

/* Whether the run uses the canonical names of the node and of its parent. */
static bool may_store_there(const struct storing *storing, uint32_t child)
{
    const struct kvb_prefix_index *index = storing->index;
    const kvb_block_hash block = storing->run->blocks[storing->names->at];

    if (!is_own_name(index, child, block) || !is_parent_usual_to(storing, child)) {
        return false;
    }
    return index->slots[storing->slot].own_words == 0 ||
           (kvb_prefix_holds(index, storing->holder, child)
                ? !kvb_prefix_is_unusual(index, storing->holder, child)
                : is_unused(storing, block));
}

/* Whether the run uses another name for the node, which the slot does not use yet. */
static bool may_store_in_page(const struct storing *storing, uint32_t child)
{
    const struct kvb_prefix_index *index = storing->index;
    const kvb_block_hash block = storing->run->blocks[storing->names->at];

    if (kvb_prefix_name(index, child) == block.value ||
        kvb_prefix_holds(index, storing->holder, child)) {
        return false;
    }
    const struct prefix_called called = kvb_prefix_called(index, storing->holder, block.value);
    return called.word == KVB_NONE &&
           kvb_prefix_private_word(index, storing->holder, block) == KVB_NONE &&
           (called.node == KVB_NONE || !kvb_prefix_holds(index, storing->holder, called.node));
}

static bool may_store_new(const struct storing *storing)
{
    const struct kvb_prefix_index *index = storing->index;
    const kvb_block_hash block = storing->run->blocks[storing->names->at];

    if (!is_below_usual_name(storing) && !kvb_prefix_may_parent_override(index, storing->node)) {
        return false;
    }
    if (index->slots[storing->slot].own_words == 0) {
        return kvb_prefix_named(index, block.value) == KVB_NONE;
    }
    const struct prefix_called called = kvb_prefix_called(index, storing->holder, block.value);
    return called.node == KVB_NONE && called.word == KVB_NONE &&
           kvb_prefix_private_word(index, storing->holder, block) == KVB_NONE;
}

/* Stores `child`, and the nodes after it that the run has too.  A slot with words of its own is
 * checked block by block. */
static kvb_status store_there_from(struct storing *storing, uint32_t child)
{
    if (storing->index->slots[storing->slot].own_words > 0) {
        kvb_prefix_names_begin(storing->index, storing->names, 0);
        KVB_TRY(store_there(storing, child, 1));
        return KVB_OK;
    }
    const uint32_t count = count_there(storing, child);
    expect_rest(storing, child, count);
    return store_there(storing, child, count);
}

/* Stores the next block, or several of them. */
static kvb_status store_one(struct storing *storing)
{
    struct kvb_prefix_index *index = storing->index;
    const uint64_t tokens = storing->run->tokens[storing->names->at].value;

    /* Any block may be the one that orphans wait for, so each is looked at. */
    if (index->slots[storing->slot].orphans.count > 0) {
        kvb_prefix_names_begin(index, storing->names, 0);
        return store_long(storing);
    }
    const uint32_t child = kvb_prefix_child(index, storing->node, tokens);
    if (child != KVB_NONE && may_store_there(storing, child)) {
        return store_there_from(storing, child);
    }
    /* From here on tables of names are looked up: no node, or one under another name. */
    kvb_prefix_names_begin(index, storing->names, 0);
    if (child == KVB_NONE) {
        return may_store_new(storing) ? store_new(storing) : store_long(storing);
    }
    if (may_store_in_page(storing, child)) {
        const kvb_status status = store_in_page(storing, child);
        if (status != KVB_NOT_FOUND && status != KVB_TOO_LARGE) {
            return status;
        }
    }
    return store_long(storing);
}

kvb_status kvb_prefix_store_in_tree(
    struct kvb_prefix_index *index, uint32_t slot, uint32_t node, const struct kvb_index_run *run,
    struct prefix_names *names, uint8_t *out_changed)
{
    struct storing storing = {
        .index = index, .slot = slot, .run = run, .names = names, .node = node
    };
    kvb_status status = kvb_prefix_holder_of(index, slot);

    storing.changed = out_changed;
    storing.holder = index->slots[slot].holder;
    names->holder = storing.holder; /* storing may give the slot its first own words */
    if (node != kvb_root_node) {
        storing.noted = node / kvb_extent_nodes; /* because the slot holds the parent */
    }
    while (status == KVB_OK && names->at < run->count) {
        status = store_one(&storing);
    }
    /* The next run of the slot mostly continues here. */
    index->slots[slot].last_stored = storing.node;
    index->counters.refused += run->count - names->at;
    return status;
}
