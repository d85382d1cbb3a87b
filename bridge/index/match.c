#include "core/array.h"
#include "index/inside.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

static_assert(KVB_MATCH_WORDS == kvb_leaf_words, "a bit set of an answer is a leaf");

static const size_t max_levels = (size_t)1 << 24;
static const size_t max_words = (size_t)1 << 28;

/* Up to this many holders of a leaf become single levels of 16 bytes.  More become one bit set of
 * 80 bytes. */
enum { advertised_one_by_one = 5 };

void kvb_match_done(struct kvb_match *match)
{
    free(match->levels);
    free(match->words);
    *match = (struct kvb_match){ 0 };
}

static void forget_levels(struct kvb_match *match, const struct kvb_prefix_index *index)
{
    match->level_count = 0;
    match->word_count = 0;
    match->slot_of = index->slot_of;
}

static kvb_status reserve_levels(struct kvb_match *match, size_t more)
{
    return match->level_count + more <= match->level_capacity
               ? KVB_OK
               : kvb_array_reserve(
                     &match->levels, &match->level_capacity, match->level_count + more,
                     sizeof *match->levels, max_levels);
}

static kvb_status add_slot(struct kvb_match *match, uint32_t slot, uint32_t depth)
{
    KVB_TRY(reserve_levels(match, 1));
    match->levels[match->level_count++] =
        (struct kvb_match_level){ .depth = depth, .slot = slot, .set_at = KVB_MATCH_ONE };
    return KVB_OK;
}

static kvb_status add_holder(
    struct kvb_match *match, const struct kvb_prefix_index *index, uint32_t holder, uint32_t depth)
{
    return add_slot(match, index->slot_of[holder], depth);
}

static kvb_status
add_bits(struct kvb_match *match, uint32_t leaf, const struct kvb_set_leaf *bits, uint32_t depth)
{
    KVB_TRY(kvb_array_reserve(
        &match->words, &match->word_capacity, match->word_count + kvb_leaf_words,
        sizeof *match->words, max_words));
    KVB_TRY(reserve_levels(match, 1));
    match->levels[match->level_count++] = (struct kvb_match_level){ .depth = depth,
                                                                    .slot = leaf * kvb_leaf_bits,
                                                                    .set_at = match->word_count };
    memcpy(match->words + match->word_count, bits->words, sizeof bits->words);
    match->word_count += kvb_leaf_words;
    return KVB_OK;
}

/* Whether `bits` has few enough holders for single levels.  Stops counting early. */
static bool are_few(const struct kvb_set_leaf *bits)
{
    uint32_t count = 0;

    for (uint32_t w = 0; w < kvb_leaf_words; w++) {
        for (uint64_t left = bits->words[w]; left; left &= left - 1) {
            if (++count > advertised_one_by_one) {
                return false;
            }
        }
    }
    return true;
}

/* Adds the holders in `bits` to the answer.  They hold exactly `depth` blocks. */
static kvb_status add_leaf(
    struct kvb_match *match, const struct kvb_prefix_index *index, uint32_t leaf,
    const struct kvb_set_leaf *bits, uint32_t depth)
{
    if (!are_few(bits)) {
        return add_bits(match, leaf, bits, depth);
    }
    for (uint32_t w = 0; w < kvb_leaf_words; w++) {
        for (uint64_t left = bits->words[w]; left; left &= left - 1) {
            const uint32_t bit = w * 64 + (uint32_t)__builtin_ctzll(left);
            KVB_TRY(add_holder(match, index, leaf * kvb_leaf_bits + bit, depth));
        }
    }
    return KVB_OK;
}

/* ---- The remaining holders ----
 *
 * The remaining holders are those that hold every node of the query's path so far.  Their number
 * only shrinks along the path.  They are stored as leaves, like other sets (index/holder_set.h), or
 * as a single holder. */
struct alive {
    struct kvb_prefix_index *index; /* index->alive has the leaves, by leaf number */
    struct kvb_match *match;
    uint64_t mask[2];
    const struct kvb_holder_set *last; /* the previous node's set, when it has several holders */
    bool is_whole;                     /* all holders of `last` remain */
    bool is_late;                      /* is_whole, and index->alive is not written yet */
    bool is_one;
    uint32_t one;
    bool is_none;
};

static bool is_live(const struct kvb_prefix_index *index, uint32_t holder)
{
    return index->live[holder / 64] >> (holder % 64) & 1;
}

static bool is_empty(const struct kvb_set_leaf *leaf)
{
    uint64_t any = 0;

    for (uint32_t w = 0; w < kvb_leaf_words; w++) {
        any |= leaf->words[w];
    }
    return any == 0;
}

/* Starts with all holders of the first node, without the retired ones. */
static void begin_alive(struct alive *alive, kvb_set_id set)
{
    struct kvb_prefix_index *index = alive->index;

    if (set == 0 || kvb_set_is_one(set)) {
        alive->one = set & ~KVB_SET_ONE;
        alive->is_one = set != 0 && is_live(index, alive->one);
        alive->is_none = !alive->is_one;
        return;
    }
    const struct kvb_holder_set *here = kvb_holder_set_at(&index->sets, set);
    const struct kvb_set_leaf *from = kvb_holder_set_leaves(&index->sets, here);
    uint64_t dead = 0;
    /* Retired holders are left out here, once: the remaining ones are only ever narrowed. */
    memcpy(alive->mask, here->mask, sizeof alive->mask);
    for (uint32_t w = 0; w < 2; w++) {
        for (uint64_t left = here->mask[w]; left; left &= left - 1) {
            const uint32_t leaf = w * 64 + (uint32_t)__builtin_ctzll(left);
            struct kvb_set_leaf *to = &index->alive[leaf];
            for (uint32_t i = 0; i < kvb_leaf_words; i++) {
                to->words[i] = from->words[i] & index->live[leaf * kvb_leaf_words + i];
                dead |= from->words[i] ^ to->words[i];
            }
            from++;
            if (is_empty(to)) {
                alive->mask[w] &= ~(left & -left);
            }
        }
    }
    alive->is_none = (alive->mask[0] | alive->mask[1]) == 0;
    alive->is_whole = dead == 0;
    alive->last = here;
}

/* Adds all remaining holders to the answer.  They hold `depth` blocks. */
static kvb_status report_all_alive(struct alive *alive, uint32_t depth)
{
    if (alive->is_one) {
        return add_holder(alive->match, alive->index, alive->one, depth);
    }
    for (uint32_t w = 0; w < 2; w++) {
        for (uint64_t left = alive->mask[w]; left; left &= left - 1) {
            const uint32_t leaf = w * 64 + (uint32_t)__builtin_ctzll(left);
            KVB_TRY(add_leaf(alive->match, alive->index, leaf, &alive->index->alive[leaf], depth));
        }
    }
    return KVB_OK;
}

static kvb_status narrow_to_one(struct alive *alive, uint32_t holder, uint32_t depth)
{
    struct kvb_set_leaf *leaf = &alive->index->alive[holder / kvb_leaf_bits];
    const uint32_t bit = holder % kvb_leaf_bits;
    const uint64_t word = UINT64_C(1) << (bit % 64);

    if (kvb_set_has_leaf(alive->mask, holder / kvb_leaf_bits) && leaf->words[bit / 64] & word) {
        /* All others end here. */
        leaf->words[bit / 64] &= ~word;
        KVB_TRY(report_all_alive(alive, depth));
        alive->is_one = true;
        alive->one = holder;
        return KVB_OK;
    }
    alive->is_none = true;
    return report_all_alive(alive, depth);
}

/* A leaf that loses holders: they are not in the next node's set. */
struct loser {
    uint32_t leaf;
    uint32_t words; /* bit w: word w lost a holder */
    struct kvb_set_leaf gone;
};

/* Adds the lost holders of a leaf to the answer.  Has a fast path for one lost holder. */
static kvb_status publish_gone(struct alive *alive, const struct loser *loser, uint32_t depth)
{
    const uint32_t w = (uint32_t)__builtin_ctz(loser->words);
    const uint64_t gone = loser->gone.words[w];

    if ((loser->words & (loser->words - 1)) != 0 || (gone & (gone - 1)) != 0) {
        return add_leaf(alive->match, alive->index, loser->leaf, &loser->gone, depth);
    }
    const uint32_t bit = w * 64 + (uint32_t)__builtin_ctzll(gone);
    return add_holder(alive->match, alive->index, loser->leaf * kvb_leaf_bits + bit, depth);
}

static uint32_t count_holders(const struct kvb_set_leaf *bits)
{
    uint32_t count = 0;

    for (uint32_t w = 0; w < kvb_leaf_words; w++) {
        count += (uint32_t)__builtin_popcountll(bits->words[w]);
    }
    return count;
}

static uint32_t first_holder(const struct loser *loser)
{
    const uint32_t w = (uint32_t)__builtin_ctz(loser->words);
    return loser->leaf * kvb_leaf_bits + w * 64 + (uint32_t)__builtin_ctzll(loser->gone.words[w]);
}

/* Returns a leaf of the set, or an empty leaf if the set has none at this number. */
static const struct kvb_set_leaf *
leaf_of(const struct kvb_holder_sets *sets, const struct kvb_holder_set *set, uint32_t leaf)
{
    static const struct kvb_set_leaf nobody = { 0 };

    return kvb_set_has_leaf(set->mask, leaf)
               ? kvb_holder_set_leaves(sets, set) + kvb_set_rank(set->mask, leaf)
               : &nobody;
}

/* Intersects each leaf with the next node's set.  Returns how many leaves lost a holder.
 * Branch-free, because in most cases one unpredictable leaf loses one. */
static uint32_t narrow_leaves(
    const struct alive *alive, const struct kvb_holder_set *next, struct loser *out_losers)
{
    const struct kvb_holder_sets *sets = &alive->index->sets;
    const struct kvb_prefix_compare *compare = alive->index->compare;
    const bool is_aligned = alive->mask[0] == next->mask[0] && alive->mask[1] == next->mask[1];
    const struct kvb_set_leaf *leaves = kvb_holder_set_leaves(sets, next);
    uint32_t count = 0;

    for (uint32_t w = 0; w < 2; w++) {
        for (uint64_t left = alive->mask[w]; left; left &= left - 1) {
            /* Written for each leaf, and kept where it lost somebody: that takes no branch. */
            struct loser *loser = &out_losers[count];
            loser->leaf = w * 64 + (uint32_t)__builtin_ctzll(left);
            const struct kvb_set_leaf *other =
                is_aligned ? leaves++ : leaf_of(sets, next, loser->leaf);
            loser->words = compare->narrow(&alive->index->alive[loser->leaf], other, &loser->gone);
            count += loser->words != 0;
        }
    }
    return count;
}

static void drop_leaf_if_empty(struct alive *alive, uint32_t leaf)
{
    if (is_empty(&alive->index->alive[leaf])) {
        alive->mask[leaf / 64] &= ~(UINT64_C(1) << (leaf % 64));
    }
}

/* Intersects the remaining holders with `next`.  If they were the whole previous set and at most
 * one holder is lost, notes that in `next`. */
static kvb_status narrow_to_set(struct alive *alive, struct kvb_holder_set *next, uint32_t depth)
{
    struct loser losers[kvb_max_leaves];
    const uint32_t count = narrow_leaves(alive, next, losers);
    uint32_t gone = 0;

    for (uint32_t i = 0; i < count; i++) {
        KVB_TRY(publish_gone(alive, &losers[i], depth));
        drop_leaf_if_empty(alive, losers[i].leaf);
        gone += count_holders(&losers[i].gone);
    }
    /* The next query along this path reads in the note what was found out here. */
    if (alive->is_whole && gone <= 1) {
        kvb_set_note(next, alive->last, gone == 1 ? first_holder(&losers[0]) : KVB_NO_HOLDER);
    }
    alive->is_whole = alive->is_whole && next->count + gone == alive->last->count;
    return KVB_OK;
}

/* Removes `holder`, the only one of the previous node's set that is not in the next node's set.
 * Returns whether it was among the remaining holders. */
static inline bool lose(struct alive *alive, uint32_t holder)
{
    const uint32_t leaf = holder / kvb_leaf_bits;
    uint64_t *word = &alive->index->alive[leaf].words[holder / 64 % kvb_leaf_words];
    const uint64_t bit = UINT64_C(1) << (holder % 64);

    if (!kvb_set_has_leaf(alive->mask, leaf) || !(*word & bit)) {
        return false;
    }
    *word ^= bit;
    if (*word == 0) {
        drop_leaf_if_empty(alive, leaf);
    }
    return true;
}

/* Sets the remaining holders to those of the set. */
static void take_whole_set(struct alive *alive, const struct kvb_holder_set *set)
{
    const struct kvb_set_leaf *leaves = kvb_holder_set_leaves(&alive->index->sets, set);

    memcpy(alive->mask, set->mask, sizeof alive->mask);
    for (uint32_t w = 0; w < 2; w++) {
        for (uint64_t left = set->mask[w]; left; left &= left - 1) {
            alive->index->alive[w * 64 + (uint32_t)__builtin_ctzll(left)] = *leaves++;
        }
    }
}

static void catch_up(struct alive *alive)
{
    if (alive->is_late) {
        take_whole_set(alive, alive->last);
        alive->is_late = false;
    }
}

/* Returns the node's set if it has several holders and a valid note, else NULL. */
static const struct kvb_holder_set *
noted_set(const struct kvb_holder_sets *sets, kvb_set_id id, const struct kvb_holder_set *before)
{
    if (id == 0 || kvb_set_is_one(id)) {
        return NULL;
    }
    const struct kvb_holder_set *set = kvb_holder_set_at(sets, id);
    return kvb_set_is_noted(set, before) ? set : NULL;
}

/* Handles the set changes within an extent as long as each new set has a note of the lost holder.
 * Returns the changes that are left.  The caller has checked that several holders remain, and has
 * reserved one level per change.  This loop dominates queries for prompts that many slots hold to
 * different depths.  So it writes no leaves as long as all holders of a set remain.  Terminates:
 * each iteration handles one change. */
static uint32_t follow_notes(
    struct alive *alive, const struct prefix_extent *extent, uint32_t changes, uint32_t depth)
{
    const struct kvb_prefix_index *index = alive->index;
    const struct kvb_holder_set *last = alive->last;
    struct kvb_match_level *level = alive->match->levels + alive->match->level_count;
    bool is_whole = alive->is_whole;

    for (; changes != 0; changes &= changes - 1) {
        const uint32_t i = (uint32_t)__builtin_ctz(changes);
        const struct kvb_holder_set *next = noted_set(&index->sets, extent->sets[i], last);
        if (!next) {
            break;
        }
        const bool is_lost = next->lost != KVB_NO_HOLDER;
        /* The next set has others, too, who lack an earlier block.  So what remains is less than
         * that set, and has leaves of its own from here on. */
        if (is_whole && next->count + is_lost != last->count) {
            is_whole = false;
            take_whole_set(alive, last);
        }
        if (is_lost && (is_whole || lose(alive, next->lost))) {
            *level++ = (struct kvb_match_level){ .depth = depth + i,
                                                 .slot = index->slot_of[next->lost],
                                                 .set_at = KVB_MATCH_ONE };
        }
        last = next;
    }
    alive->is_late = is_whole && (alive->is_late || last != alive->last);
    alive->is_whole = is_whole;
    alive->last = last;
    alive->match->level_count = (size_t)(level - alive->match->levels);
    alive->is_none = (alive->mask[0] | alive->mask[1]) == 0;
    return changes;
}

/* Handles the cases in which one holder remains, or the next node has at most one holder. */
static kvb_status narrow_far(struct alive *alive, kvb_set_id set, uint32_t depth)
{
    if (!alive->is_one && kvb_set_is_one(set)) {
        return narrow_to_one(alive, set & ~KVB_SET_ONE, depth);
    }
    if (alive->is_one && kvb_set_has(&alive->index->sets, set, alive->one)) {
        return KVB_OK;
    }
    alive->is_none = true;
    return report_all_alive(alive, depth);
}

/* Intersects the remaining holders with `set`, the next node's set.  The lost ones hold `depth`
 * blocks. */
static kvb_status narrow(struct alive *alive, kvb_set_id set, uint32_t depth)
{
    catch_up(alive);
    if (alive->is_one || set == 0 || kvb_set_is_one(set)) {
        return narrow_far(alive, set, depth);
    }
    struct kvb_holder_set *next = kvb_holder_set_at(&alive->index->sets, set);
    assert(alive->last); /* several holders remain, so the previous node has several */
    KVB_TRY(narrow_to_set(alive, next, depth));
    alive->last = next;
    alive->is_none = (alive->mask[0] | alive->mask[1]) == 0;
    return KVB_OK;
}

/* ---- By content ---- */

[[gnu::always_inline]] static inline void
prefetch_extent(const struct kvb_prefix_index *index, uint32_t extent)
{
    const char *line = (const char *)kvb_prefix_extent(index, extent);

    for (size_t at = 0; at < 4; at++) {
        __builtin_prefetch(line + at * 64);
    }
}

/* Follows the first `count` nodes of the extent.  `depth` blocks are before them.  Holders are lost
 * only where the set changes.  Terminates: each iteration handles one change. */
static kvb_status follow_extent(
    struct alive *alive, const struct prefix_extent *extent, uint32_t count, kvb_set_id last,
    uint32_t depth)
{
    uint32_t changes = alive->index->compare->changes(extent->sets, count, last);

    KVB_TRY(changes != 0 ? reserve_levels(alive->match, kvb_extent_nodes) : KVB_OK);
    for (; changes != 0 && !alive->is_none; changes &= changes - 1) {
        if (alive->last && !alive->is_one) {
            changes = follow_notes(alive, extent, changes, depth);
            if (changes == 0 || alive->is_none) {
                break;
            }
        }
        const uint32_t i = (uint32_t)__builtin_ctz(changes);
        /* At the first block of the prompt nobody can be lost yet. */
        if (depth + i == 0) {
            begin_alive(alive, extent->sets[i]);
        } else {
            KVB_TRY(narrow(alive, extent->sets[i], depth + i));
        }
    }
    return KVB_OK;
}

/* The position of the query.  Its first `depth` blocks lead to `node`, which has the set `set`. */
struct path {
    const uint64_t *query;
    size_t count, depth;
    uint32_t node;
    kvb_set_id set;
};

/* Prefetches the line of `edges` that tells where the query goes on below the extent's last node,
 * before its blocks are compared.  In most queries that line is the only memory that is not in the
 * cache: the prompts of a fleet have few beginnings and many continuations. */
[[gnu::always_inline]] static inline void expect_edge(
    const struct kvb_prefix_index *index, const struct path *path,
    const struct prefix_extent *extent, size_t left)
{
    const uint32_t last = extent->len - 1U;

    if (extent->len < left && extent->kids[last] != 0) {
        const uint32_t node = path->node + last;
        const uint64_t tokens = path->query[path->depth + extent->len];
        kvb_line_table_prefetch(&index->edges, kvb_prefix_edge_hash(index, node, tokens));
    }
}

/* Follows the query through one extent, from its first node on. */
static kvb_status follow_to_branch(struct alive *alive, struct path *path)
{
    const struct kvb_prefix_index *index = alive->index;
    const size_t left = path->count - path->depth;
    const uint32_t number = path->node / kvb_extent_nodes;
    const struct prefix_extent *extent = kvb_prefix_extent(index, number);

    expect_edge(index, path, extent, left);
    prefetch_extent(index, extent->next != 0 ? extent->next : number + 1);
    const uint32_t common = index->compare->common(
        extent->tokens, path->query + path->depth,
        left < extent->len ? (uint32_t)left : extent->len);
    KVB_TRY(follow_extent(alive, extent, common, path->set, (uint32_t)path->depth));
    path->set = extent->sets[common - 1];
    path->node = number * kvb_extent_nodes + common - 1;
    path->depth += common;
    return KVB_OK;
}

/* Skips whole extents in which no holder is lost.  Stops at an extent if the query does not
 * continue below its last node. */
static void follow_whole_extents(const struct kvb_prefix_index *index, struct path *path)
{
    uint32_t number = path->node / kvb_extent_nodes;
    const size_t whole = index->compare->whole(
        kvb_prefix_extent(index, 0), &number, path->query + path->depth, path->count - path->depth,
        path->set);

    path->depth += whole * kvb_extent_nodes;
    path->node = number * kvb_extent_nodes;
}

static kvb_status follow_query(struct alive *alive, const kvb_tokens_hash *query, size_t count)
{
    struct path path = {
        .query = &query->value, .count = count, .node = kvb_root_node, .set = KVB_NONE
    }; /* no set has this number */

    while (path.depth < count && !alive->is_none) { /* terminates: each iteration goes deeper */
        path.node = kvb_prefix_child(alive->index, path.node, path.query[path.depth]);
        if (path.node == KVB_NONE) {
            break;
        }
        /* What all have in common is passed in whole extents, then one is looked at by node. */
        follow_whole_extents(alive->index, &path);
        KVB_TRY(follow_to_branch(alive, &path));
    }
    /* Those that remain hold all that the path has of the prompt. */
    catch_up(alive);
    return path.depth > 0 && !alive->is_none ? report_all_alive(alive, (uint32_t)path.depth)
                                             : KVB_OK;
}

kvb_status kvb_prefix_index_match(
    struct kvb_prefix_index *index, const kvb_tokens_hash *query, size_t count,
    struct kvb_match *match)
{
    struct alive alive = { .index = index, .match = match };

    forget_levels(match, index);
    const kvb_status status = follow_query(&alive, query, count);
    if (status != KVB_OK) {
        forget_levels(match, index);
    }
    return status;
}

/* ---- By name ---- */

/* Whether no look-up for this slot is needed to know that it lacks the first queried name.  first:
 * the node with that canonical name, or KVB_NONE.  A slot without words of its own has nothing in
 * the tree under any other name. */
static bool lacks_first(const struct kvb_prefix_index *index, uint32_t slot, uint32_t first)
{
    const struct prefix_slot *here = &index->slots[slot];

    if (!here->is_used || here->holder == KVB_NONE) {
        return true;
    }
    return here->own_words == 0 &&
           (first == KVB_NONE || !kvb_prefix_holds(index, here->holder, first));
}

/* Blocks of a prompt were stored one after the other, and lie so in an extent.  Where that is so,
 * the table of names is not looked up. */
static struct prefix_found find_below(
    const struct kvb_prefix_index *index, uint32_t slot, uint32_t place, kvb_block_hash block)
{
    struct prefix_found found = { .kind = found_none };

    if (place != kvb_root_node && kvb_prefix_offset(place) + 1 < kvb_extent_nodes) {
        found = kvb_prefix_guess(index, slot, place + 1, block);
    }
    return found.kind == found_none ? kvb_prefix_find(index, slot, block) : found;
}

/* Returns how many of the queried names, from the prompt's beginning on, the slot holds. */
static uint32_t depth_by_names(
    const struct kvb_prefix_index *index, uint32_t slot, const kvb_block_hash *query, size_t count)
{
    uint32_t place = kvb_root_node;

    for (size_t i = 0; i < count; i++) {
        const struct prefix_found found = find_below(index, slot, place, query[i]);
        /* The name alone is not enough: the block may be another one, elsewhere in the tree. */
        if (!kvb_prefix_is_in_tree(&found) || kvb_prefix_parent(index, found.node) != place) {
            return (uint32_t)i;
        }
        place = found.node;
    }
    return (uint32_t)count;
}

static int by_depth(const void *left, const void *right)
{
    const struct kvb_match_level *a = left;
    const struct kvb_match_level *b = right;

    return a->depth != b->depth ? (a->depth > b->depth) - (a->depth < b->depth)
                                : (a->slot > b->slot) - (a->slot < b->slot);
}

static kvb_status query_each_slot(
    const struct kvb_prefix_index *index, const kvb_block_hash *query, size_t count,
    struct kvb_match *match)
{
    const uint32_t first = count > 0 ? kvb_prefix_named(index, query[0].value) : KVB_NONE;

    for (uint32_t slot = 0; slot < index->slot_end; slot++) {
        const uint32_t depth =
            lacks_first(index, slot, first) ? 0 : depth_by_names(index, slot, query, count);
        if (depth > 0) {
            KVB_TRY(add_slot(match, slot, depth));
        }
    }
    return KVB_OK;
}

/* Cost: one look-up for every slot with words of its own, and, for each slot that matches, one for
 * each extent of the prompt. */
kvb_status kvb_prefix_index_match_blocks(
    struct kvb_prefix_index *index, const kvb_block_hash *query, size_t count,
    struct kvb_match *match)
{
    forget_levels(match, index);
    const kvb_status status = query_each_slot(index, query, count, match);
    if (status != KVB_OK) {
        forget_levels(match, index);
        return status;
    }
    if (match->level_count > 0) { /* qsort() must not get NULL, even for 0 items */
        qsort(match->levels, match->level_count, sizeof *match->levels, by_depth);
    }
    return KVB_OK;
}
