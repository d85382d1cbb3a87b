#include "core/array.h"
#include "index/prefix_inside.h"

#include <stdlib.h>
#include <string.h>

static const size_t most_levels = (size_t)1 << 24;

void kvb_match_done(struct kvb_match *match)
{
    free(match->levels);
    free(match->words);
    *match = (struct kvb_match){ 0 };
}

static void forget_levels(struct kvb_match *match)
{
    match->level_count = 0;
    match->word_count = 0;
}

static kvb_status add_level(struct kvb_match *match, uint32_t slot, uint32_t depth)
{
    KVB_TRY(kvb_array_reserve(
        &match->levels, &match->level_capacity, match->level_count + 1, sizeof *match->levels,
        most_levels));
    match->levels[match->level_count++] =
        (struct kvb_match_level){ .depth = depth, .slot = slot, .set_at = KVB_MATCH_ONE };
    return KVB_OK;
}

/* ---- By content ---- */

/* Every slot that held all of the `depth` blocks before, and holds this node,
 * holds depth + 1.  A slot with two names for a node counts once. */
static size_t deepen(struct kvb_prefix_index *index, uint32_t node, uint32_t depth)
{
    size_t deepened = 0;

    for (uint32_t id = index->nodes[node].first_member; id != KVB_NONE;
         id = index->members[id].node_next) {
        uint32_t *mine = &index->depths[index->members[id].slot];
        if (*mine == depth) {
            *mine = depth + 1;
            deepened++;
        }
    }
    return deepened;
}

/* The slots that hold the first block are all that can be in the answer. */
static kvb_status
collect(struct kvb_prefix_index *index, uint32_t first_node, struct kvb_match *match)
{
    kvb_status status = KVB_OK;

    for (uint32_t id = index->nodes[first_node].first_member; id != KVB_NONE;
         id = index->members[id].node_next) {
        const uint32_t slot = index->members[id].slot;
        if (index->depths[slot] > 0 && status == KVB_OK) {
            status = add_level(match, slot, index->depths[slot]);
        }
        index->depths[slot] = 0; /* clean for the next query, in any case */
    }
    return status;
}

static int by_depth(const void *left, const void *right)
{
    const struct kvb_match_level *a = left;
    const struct kvb_match_level *b = right;

    return a->depth != b->depth ? (a->depth > b->depth) - (a->depth < b->depth)
                                : (a->slot > b->slot) - (a->slot < b->slot);
}

static void sort_levels(struct kvb_match *match)
{
    if (match->level_count > 0) { /* qsort() wants an array even for nothing */
        qsort(match->levels, match->level_count, sizeof *match->levels, by_depth);
    }
}

/* Cost: the members of the nodes on the query's path. */
kvb_status kvb_prefix_index_match(
    struct kvb_prefix_index *index, const kvb_tokens_hash *query, size_t count,
    struct kvb_match *match)
{
    uint32_t node = kvb_root_node;
    uint32_t first = KVB_NONE;

    forget_levels(match);
    for (size_t i = 0; i < count; i++) {
        node = kvb_prefix_child(index, node, query[i].value);
        if (node == KVB_NONE || deepen(index, node, (uint32_t)i) == 0) {
            break;
        }
        first = i == 0 ? node : first;
    }
    if (first == KVB_NONE) {
        return KVB_OK;
    }
    const kvb_status status = collect(index, first, match);
    if (status != KVB_OK) {
        forget_levels(match);
        return status;
    }
    sort_levels(match);
    return KVB_OK;
}

/* ---- By name ---- */

/* How far the slot's own names lead from a prompt's beginning. */
static uint32_t depth_by_names(
    const struct kvb_prefix_index *index, uint32_t slot, const kvb_block_hash *query, size_t count)
{
    uint32_t place = kvb_root_node;

    for (size_t i = 0; i < count; i++) {
        const uint32_t member = kvb_prefix_member(index, slot, query[i]);
        if (member == KVB_NONE || index->nodes[index->members[member].node].parent != place) {
            return (uint32_t)i;
        }
        place = index->members[member].node;
    }
    return (uint32_t)count;
}

/* Cost: a look-up for every slot, and one for every block held. */
kvb_status kvb_prefix_index_match_blocks(
    struct kvb_prefix_index *index, const kvb_block_hash *query, size_t count,
    struct kvb_match *match)
{
    forget_levels(match);
    for (uint32_t slot = 0; slot < index->slot_end; slot++) {
        const uint32_t depth =
            index->slots[slot].is_used ? depth_by_names(index, slot, query, count) : 0;
        const kvb_status status = depth > 0 ? add_level(match, slot, depth) : KVB_OK;
        if (status != KVB_OK) {
            forget_levels(match);
            return status;
        }
    }
    sort_levels(match);
    return KVB_OK;
}

/* ---- Reading the answer ---- */

static void each_of_set(
    const uint64_t *words, size_t word_count, uint32_t depth,
    void (*visit)(void *context, kvb_slot_ref slot, uint32_t depth), void *context)
{
    for (size_t w = 0; w < word_count; w++) {
        for (uint64_t left = words[w]; left; left &= left - 1) {
            const uint32_t slot = (uint32_t)(w * 64 + (size_t)__builtin_ctzll(left));
            visit(context, (kvb_slot_ref){ slot }, depth);
        }
    }
}

void kvb_match_each(
    const struct kvb_match *match, void (*visit)(void *context, kvb_slot_ref slot, uint32_t depth),
    void *context)
{
    for (size_t i = 0; i < match->level_count; i++) {
        const struct kvb_match_level *level = &match->levels[i];
        if (level->set_at == KVB_MATCH_ONE) {
            visit(context, (kvb_slot_ref){ level->slot }, level->depth);
        } else {
            each_of_set(
                match->words + level->set_at, match->words_per_set, level->depth, visit, context);
        }
    }
}
