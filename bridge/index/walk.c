#include "core/array.h"
#include "core/limits.h"
#include "index/inside.h"

#include <stdlib.h>
#include <string.h>

/* A walk visits a slot's blocks as runs, in depth-first order.  It starts a descent at each held
 * node whose parent the slot does not hold.  A descent visits held nodes, parents first, and ends
 * at a node that is not held.  A held node below that starts another descent:
 *
 *     a - b - (c) - d       c is not held.  The runs are a b and d; the parent of d is named c
 *
 * First the walk collects the slot's nodes as stretches.  A stretch is consecutive held nodes of an
 * extent, or one orphan.  The walk sorts them by parent node, so that the stretches below one
 * stretch are adjacent.
 *
 *     EXTENTS -> ORPHANS -> SORT -> ROOTS -> REST -> DONE      each phase takes one or more steps
 *
 * The index may change between two steps.  So a walk stores places, which are numbers of nodes, and
 * looks up each node when it visits it.  REST visits the stretches whose parents were added after
 * the stretches were collected.  The walk copies the holder's list of extents when it begins,
 * because compaction changes the list.  Sorting makes duplicates adjacent. */
struct stretch {
    uint64_t parent; /* place of the first node's parent */
    uint64_t place;  /* place of the first node */
    uint16_t count;  /* number of nodes */
    bool is_shown;
};

/* A place is the number of a node: with this bit of the forest, without it of the tree. */
static const uint64_t in_forest = UINT64_C(1) << 32;

/* A name that the slot uses for a node. */
struct word {
    kvb_block_hash block;
    kvb_block_hash parent_block;
    uint32_t next; /* next alias or member of the node; KVB_NONE: this is the last */
};

enum walk_phase { walk_extents, walk_orphans, walk_sort, walk_roots, walk_rest, walk_done };

/* Costs in units of a step's budget. */
enum { extent_cost = 8, orphan_cost = 8, block_cost = 16 };

/* A bottom-up merge sort that can stop after any item.  It merges runs of `width` pair by pair. */
struct walk_merge {
    struct stretch *into; /* owned */
    size_t width;
    size_t left, middle, right, end; /* bounds of the two runs being merged */
    size_t at;                       /* next index in `into` */
};

struct kvb_index_walk {
    struct kvb_prefix_index *index;
    uint32_t slot;
    uint32_t holder;
    kvb_index_visitor visit; /* set by each step */
    void *context;
    size_t budget;
    enum walk_phase phase;
    uint32_t *extents; /* owned: a copy of the holder's list */
    size_t extent_count, next_extent;
    uint32_t next_member;
    struct stretch *stretches; /* owned */
    size_t stretch_count, stretch_capacity;
    struct walk_merge merge;
    size_t next_root;
    size_t *stack; /* owned: numbers of stretches to visit */
    size_t stack_count, stack_capacity;
    kvb_block_hash *blocks;  /* owned: blocks of the current run */
    kvb_tokens_hash *tokens; /* owned; parallel to blocks */
    size_t block_capacity;
    size_t token_capacity;
    struct kvb_index_run run;
    uint64_t last; /* place of the run's last block */
};

/* Returns false when the budget of this step is used up. */
static bool spend_walk(struct kvb_index_walk *walk, size_t cost)
{
    const bool has_any = walk->budget > 0;

    walk->budget -= walk->budget < cost ? walk->budget : cost;
    return has_any;
}

static const struct forest_node *forest_at(const struct kvb_index_walk *walk, uint64_t place)
{
    return &walk->index->forest.nodes[(uint32_t)place];
}

static uint64_t walked_parent(const struct kvb_index_walk *walk, uint64_t place)
{
    return place & in_forest ? forest_at(walk, place)->parent | in_forest
                             : kvb_prefix_parent(walk->index, (uint32_t)place);
}

static bool is_held_orphan(const struct kvb_index_walk *walk, uint64_t place)
{
    const struct kvb_forest *forest = &walk->index->forest;
    const uint32_t node = (uint32_t)place;
    const uint32_t member = node < forest->node_end && forest->nodes[node].kind != forest_free
                                ? forest->nodes[node].first_member
                                : KVB_NONE;

    return member != KVB_NONE && forest->members[member].slot == walk->slot;
}

static bool is_held(const struct kvb_index_walk *walk, uint64_t place)
{
    const uint32_t node = (uint32_t)place;

    if (place & in_forest) {
        return is_held_orphan(walk, place);
    }
    return node != kvb_root_node && walk->holder != KVB_NONE &&
           node % kvb_extent_nodes < kvb_prefix_extent(walk->index, node / kvb_extent_nodes)->len &&
           kvb_prefix_holds(walk->index, walk->holder, node);
}

/* ---- Words ---- */

static struct word member_word(const struct kvb_index_walk *walk, uint32_t member)
{
    const struct forest_member *here = &walk->index->forest.members[member];
    return (struct word){ .block = here->block,
                          .parent_block = here->parent_block,
                          .next = here->node_next };
}

static struct word overflow_word(const struct kvb_index_walk *walk, uint32_t word)
{
    const struct prefix_word *here = kvb_prefix_word(walk->index, word);
    return (struct word){ .block = here->block,
                          .parent_block = here->parent_block,
                          .next = here->next };
}

static struct word page_word(const struct kvb_prefix_index *index, uint32_t word)
{
    const struct prefix_page *page = kvb_prefix_page(index, word);
    return (struct word){ .block = { page->names[kvb_prefix_offset(word)] },
                          .parent_block = kvb_prefix_page_parent(index, word),
                          .next = KVB_NONE };
}

static struct word first_word(const struct kvb_index_walk *walk, uint64_t place)
{
    if (place & in_forest) {
        return member_word(walk, forest_at(walk, place)->first_member);
    }
    const uint32_t node = (uint32_t)place;
    const uint32_t in_page = kvb_prefix_page_word(walk->index, walk->holder, node);
    if (in_page != KVB_NONE) {
        return page_word(walk->index, in_page);
    }
    const uint32_t overflow = kvb_prefix_overflow_words(walk->index, walk->holder, node);
    if (overflow != KVB_NONE) {
        return overflow_word(walk, overflow);
    }
    const uint32_t parent = kvb_prefix_parent(walk->index, node);
    const uint64_t parent_name =
        parent == kvb_root_node ? 0 : kvb_prefix_usual_parent(walk->index, node);
    return (struct word){ .block = { kvb_prefix_name(walk->index, node) },
                          .parent_block = { parent_name },
                          .next = KVB_NONE };
}

static struct word
next_word(const struct kvb_index_walk *walk, uint64_t place, const struct word *word)
{
    return place & in_forest ? member_word(walk, word->next) : overflow_word(walk, word->next);
}

/* ---- Gathering ---- */

static kvb_status add_stretch(struct kvb_index_walk *walk, uint64_t place, size_t count)
{
    KVB_TRY(kvb_array_reserve(
        &walk->stretches, &walk->stretch_capacity, walk->stretch_count + 1, sizeof *walk->stretches,
        kvb_max_index_blocks));
    walk->stretches[walk->stretch_count++] = (struct stretch){ .parent = walked_parent(walk, place),
                                                               .place = place,
                                                               .count = (uint16_t)count };
    return KVB_OK;
}

static kvb_status gather_extent(struct kvb_index_walk *walk, uint32_t extent)
{
    const uint32_t first = extent * kvb_extent_nodes;
    const uint32_t end = first + kvb_prefix_extent(walk->index, extent)->len;

    for (uint32_t node = first; node < end;) {
        const uint32_t begin = node;
        while (node < end && is_held(walk, node)) {
            node++;
        }
        if (node > begin) {
            KVB_TRY(add_stretch(walk, begin, node - begin));
        } else {
            node++;
        }
    }
    return KVB_OK;
}

static kvb_status gather_extents(struct kvb_index_walk *walk)
{
    while (walk->next_extent < walk->extent_count) {
        if (!spend_walk(walk, extent_cost)) {
            return KVB_AGAIN;
        }
        KVB_TRY(gather_extent(walk, walk->extents[walk->next_extent++]));
    }
    return KVB_OK;
}

static uint32_t first_orphan(const struct kvb_prefix_index *index, uint32_t slot)
{
    const struct kvb_forest_owner *owner = &index->slots[slot].orphans;

    return owner->count > 0 ? owner->first_member : KVB_NONE;
}

/* Returns the orphan at which to continue the list of orphans: `member`, or the first orphan if
 * `member` was removed since the last step. */
static uint32_t same_orphan(const struct kvb_prefix_index *index, uint32_t slot, uint32_t member)
{
    const struct kvb_forest *forest = &index->forest;

    if (member != KVB_NONE && member < forest->member_end && forest->members[member].slot == slot &&
        kvb_forest_member(forest, slot, forest->members[member].block) == member) {
        return member;
    }
    return first_orphan(index, slot);
}

static kvb_status gather_orphans(struct kvb_index_walk *walk)
{
    const struct kvb_forest *forest = &walk->index->forest;

    while (walk->next_member != KVB_NONE) {
        if (!spend_walk(walk, orphan_cost)) {
            return KVB_AGAIN;
        }
        const uint32_t member = same_orphan(walk->index, walk->slot, walk->next_member);
        if (member == KVB_NONE) {
            break;
        }
        const uint32_t node = forest->members[member].node;
        /* A node with several names is gathered once, with the first of them. */
        if (forest->nodes[node].first_member == member) {
            KVB_TRY(add_stretch(walk, node | in_forest, 1));
        }
        walk->next_member = forest->members[member].slot_next;
    }
    return KVB_OK;
}

/* ---- Sorting ---- */

static bool is_stretch_before(const struct stretch *left, const struct stretch *right)
{
    return left->parent != right->parent ? left->parent < right->parent
                                         : left->place < right->place;
}

static size_t smaller_count(size_t left, size_t right)
{
    return left < right ? left : right;
}

static void begin_pair(struct kvb_index_walk *walk)
{
    struct walk_merge *merge = &walk->merge;

    merge->left = merge->at;
    merge->middle = merge->right = smaller_count(merge->at + merge->width, walk->stretch_count);
    merge->end = smaller_count(merge->at + 2 * merge->width, walk->stretch_count);
}

static void merge_one(struct kvb_index_walk *walk)
{
    struct walk_merge *merge = &walk->merge;
    const struct stretch *from = walk->stretches;
    const bool is_left =
        merge->left < merge->middle &&
        (merge->right == merge->end || !is_stretch_before(&from[merge->right], &from[merge->left]));

    merge->into[merge->at++] = is_left ? from[merge->left++] : from[merge->right++];
}

static void end_merge(struct kvb_index_walk *walk)
{
    struct walk_merge *merge = &walk->merge;
    struct stretch *sorted = merge->into;

    merge->into = walk->stretches;
    walk->stretches = sorted;
    walk->stretch_capacity = walk->stretch_count; /* the array does not grow any more */
    merge->width *= 2;
    merge->at = merge->end = 0;
}

static kvb_status sort_stretches(struct kvb_index_walk *walk)
{
    struct walk_merge *merge = &walk->merge;

    if (!merge->into && walk->stretch_count > 1) {
        merge->width = 1;
        merge->into = calloc(walk->stretch_count, sizeof *merge->into);
        if (!merge->into) {
            return KVB_NO_MEMORY;
        }
    }
    while (merge->into && merge->width < walk->stretch_count) {
        if (merge->at == walk->stretch_count) { /* all pairs of this width are merged */
            end_merge(walk);
            continue;
        }
        if (!spend_walk(walk, 1)) {
            return KVB_AGAIN;
        }
        if (merge->at == merge->end) {
            begin_pair(walk);
        }
        merge_one(walk);
    }
    return KVB_OK;
}

/* ---- Visiting ---- */

static kvb_status flush_walked_run(struct kvb_index_walk *walk)
{
    kvb_status status = KVB_OK;

    if (walk->run.count > 0) {
        walk->run.blocks = walk->blocks;
        walk->run.tokens = walk->tokens;
        status = walk->visit(walk->context, &walk->run);
    }
    walk->run.count = 0;
    return status;
}

/* Returns a name for a parent that is not held: the slot's former name for it, unless the slot now
 * uses that name for another block.  A reader would attach the run to that block and see a prefix
 * that nobody holds.  In that case returns a name that the slot does not use. */
static kvb_block_hash
unheld_name(const struct kvb_index_walk *walk, uint64_t parent, kvb_block_hash name)
{
    const bool is_waited_for =
        parent & in_forest && forest_at(walk, parent)->kind == forest_placeholder;

    while (!is_waited_for && kvb_prefix_find(walk->index, walk->slot, name).kind != found_none) {
        name.value++;
    }
    return name;
}

/* Begins a run.  Names a parent that is held by its current name, any other by unheld_name(). */
static void begin_walked_run(struct kvb_index_walk *walk, uint64_t place, const struct word *word)
{
    const uint64_t parent = walked_parent(walk, place);

    walk->run.has_parent = parent != kvb_root_node;
    if (walk->run.has_parent) {
        walk->run.parent = is_held(walk, parent) ? first_word(walk, parent).block
                                                 : unheld_name(walk, parent, word->parent_block);
    }
}

static uint64_t tokens_at(const struct kvb_index_walk *walk, uint64_t place)
{
    return place & in_forest ? forest_at(walk, place)->key
                             : kvb_prefix_tokens(walk->index, (uint32_t)place);
}

static kvb_status add_block(struct kvb_index_walk *walk, uint64_t place, kvb_block_hash block)
{
    const size_t need = walk->run.count + 1;

    KVB_TRY(kvb_array_reserve(
        &walk->blocks, &walk->block_capacity, need, sizeof *walk->blocks, kvb_max_index_blocks));
    KVB_TRY(kvb_array_reserve(
        &walk->tokens, &walk->token_capacity, need, sizeof *walk->tokens, kvb_max_index_blocks));
    walk->blocks[walk->run.count] = block;
    walk->tokens[walk->run.count].value = tokens_at(walk, place);
    walk->run.count = need;
    return KVB_OK;
}

/* Whether `block` is the name of the run's parent.  Such a block must not be in the run, because
 * readers refuse a run that contains its own parent. */
static bool is_parent_of_run(const struct kvb_index_walk *walk, kvb_block_hash block)
{
    return walk->run.has_parent && walk->run.parent.value == block.value;
}

/* Adds the node to the run.  A node with two names is added twice, the second time to a new run. */
static kvb_status show_node(struct kvb_index_walk *walk, uint64_t place)
{
    bool continues = walk->run.count > 0 && walked_parent(walk, place) == walk->last;
    struct word word = first_word(walk, place);

    for (;;) {
        if (!continues || is_parent_of_run(walk, word.block)) {
            KVB_TRY(flush_walked_run(walk));
            begin_walked_run(walk, place, &word);
        }
        KVB_TRY(add_block(walk, place, word.block));
        if (word.next == KVB_NONE) {
            break;
        }
        /* Its further names begin runs of their own below the same parent. */
        continues = false;
        word = next_word(walk, place, &word);
    }
    walk->last = place;
    return KVB_OK;
}

static kvb_status push_stretch(struct kvb_index_walk *walk, size_t stretch)
{
    KVB_TRY(kvb_array_reserve(
        &walk->stack, &walk->stack_capacity, walk->stack_count + 1, sizeof *walk->stack,
        kvb_max_index_blocks));
    walk->stack[walk->stack_count++] = stretch;
    return KVB_OK;
}

/* Binary search for the first stretch whose parent is this place or a later one. */
static size_t first_below(const struct kvb_index_walk *walk, uint64_t place)
{
    size_t low = 0;
    size_t high = walk->stretch_count;

    while (low < high) {
        const size_t middle = (low + high) / 2;
        if (walk->stretches[middle].parent < place) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

/* Whether the stretch is a duplicate because the holder's list had its extent twice. */
static bool is_repeat(const struct kvb_index_walk *walk, size_t at)
{
    return at > 0 && walk->stretches[at - 1].place == walk->stretches[at].place;
}

/* Visits the stretch and pushes the stretches below it.  Those below its last node are pushed last,
 * so that one of them is visited next and continues the run. */
static kvb_status show_stretch(struct kvb_index_walk *walk, struct stretch *stretch)
{
    const uint64_t end = stretch->place + stretch->count;

    stretch->is_shown = true;
    for (uint64_t place = stretch->place; place < end; place++) {
        /* Since it was gathered it may have been removed. */
        if (is_held(walk, place)) {
            (void)spend_walk(walk, block_cost);
            KVB_TRY(show_node(walk, place));
        }
    }
    for (size_t i = first_below(walk, stretch->place);
         i < walk->stretch_count && walk->stretches[i].parent < end; i++) {
        if (!walk->stretches[i].is_shown && !is_repeat(walk, i)) {
            KVB_TRY(push_stretch(walk, i));
        }
    }
    return KVB_OK;
}

/* Whether a descent starts at this stretch.  A stretch below a held block is visited with that
 * block.  If it was not, the last phase starts a descent at it. */
static bool is_root(const struct kvb_index_walk *walk, size_t at)
{
    const struct stretch *stretch = &walk->stretches[at];

    return !stretch->is_shown && !is_repeat(walk, at) &&
           (walk->phase == walk_rest || !is_held(walk, stretch->parent));
}

static kvb_status show_roots(struct kvb_index_walk *walk)
{
    for (;;) {
        if (!spend_walk(walk, 1)) {
            return KVB_AGAIN;
        }
        /* Depth first: what was pushed last continues the run of its parent. */
        if (walk->stack_count > 0) {
            KVB_TRY(show_stretch(walk, &walk->stretches[walk->stack[--walk->stack_count]]));
            continue;
        }
        /* The descent is over; the next one begins at a block whose parent is not held. */
        KVB_TRY(flush_walked_run(walk));
        if (walk->next_root == walk->stretch_count) {
            walk->next_root = 0;
            return KVB_OK;
        }
        const size_t at = walk->next_root++;
        if (is_root(walk, at)) {
            KVB_TRY(push_stretch(walk, at));
        }
    }
}

/* ---- In steps ---- */

static kvb_status copy_extents(struct kvb_index_walk *walk)
{
    const struct prefix_holder *holder =
        walk->holder != KVB_NONE ? &walk->index->holders[walk->holder] : NULL;

    if (!holder || holder->extent_count == 0) {
        return KVB_OK;
    }
    walk->extents = calloc(holder->extent_count, sizeof *walk->extents);
    if (!walk->extents) {
        return KVB_NO_MEMORY;
    }
    memcpy(walk->extents, holder->extents, holder->extent_count * sizeof *walk->extents);
    walk->extent_count = holder->extent_count;
    return KVB_OK;
}

kvb_status kvb_index_walk_new(
    struct kvb_prefix_index *index, kvb_slot_ref slot, struct kvb_index_walk **out_walk)
{
    struct kvb_index_walk *walk = calloc(1, sizeof *walk);

    if (!walk) {
        return KVB_NO_MEMORY;
    }
    walk->index = index;
    walk->slot = slot.value;
    walk->holder = index->slots[slot.value].holder;
    walk->next_member = first_orphan(index, slot.value);
    const kvb_status status = copy_extents(walk);
    if (status != KVB_OK) {
        kvb_index_walk_free(walk);
        return status;
    }
    *out_walk = walk;
    return KVB_OK;
}

void kvb_index_walk_free(struct kvb_index_walk *walk)
{
    if (walk) {
        free(walk->extents);
        free(walk->stretches);
        free(walk->merge.into);
        free(walk->stack);
        free(walk->blocks);
        free(walk->tokens);
        free(walk);
    }
}

/* Whether the slot was cleared or freed since the walk began.  The walk then ends. */
static bool has_left(const struct kvb_index_walk *walk)
{
    const struct prefix_slot *slot = &walk->index->slots[walk->slot];

    return !slot->is_used || slot->holder != walk->holder;
}

kvb_status kvb_index_walk_step(
    struct kvb_index_walk *walk, size_t budget, kvb_index_visitor visit, void *context)
{
    static kvb_status (*const phases[])(struct kvb_index_walk * walk) = {
        [walk_extents] = gather_extents, [walk_orphans] = gather_orphans,
        [walk_sort] = sort_stretches,    [walk_roots] = show_roots,
        [walk_rest] = show_roots,
    };

    walk->visit = visit;
    walk->context = context;
    walk->budget = budget;
    while (walk->phase != walk_done && !has_left(walk)) {
        const kvb_status status = phases[walk->phase](walk);
        if (status == KVB_AGAIN) {
            KVB_TRY(flush_walked_run(walk)); /* the index may change before the next step */
            return KVB_AGAIN;
        }
        /* A phase that has failed is not gone on with: the walk has ended. */
        KVB_TRY(status);
        walk->phase++;
    }
    return KVB_OK;
}

/* ---- Each block ---- */

/* Visits each word of a node.  Returns the number of words. */
static size_t each_of_node(
    const struct kvb_index_walk *walk, uint64_t place, void (*visit)(void *, kvb_block_hash))
{
    struct word word = first_word(walk, place);
    size_t count = 1;

    visit(walk->context, word.block);
    for (; word.next != KVB_NONE; count++) {
        word = next_word(walk, place, &word);
        visit(walk->context, word.block);
    }
    return count;
}

static size_t each_of_extent(
    const struct kvb_index_walk *walk, uint32_t extent, void (*visit)(void *, kvb_block_hash))
{
    const uint32_t first = extent * kvb_extent_nodes;
    const uint32_t end = first + kvb_prefix_extent(walk->index, extent)->len;

    size_t count = 0;

    for (uint32_t node = first; node < end; node++) {
        if (is_held(walk, node)) {
            count += each_of_node(walk, node, visit);
        }
    }
    return count;
}

void kvb_prefix_index_each_block(
    struct kvb_prefix_index *index, kvb_slot_ref slot,
    void (*visit)(void *context, kvb_block_hash block), void *context)
{
    const struct kvb_index_walk walk = { .index = index,
                                         .slot = slot.value,
                                         .holder = index->slots[slot.value].holder,
                                         .context = context };
    uint32_t member = first_orphan(index, slot.value);

    if (walk.holder != KVB_NONE) {
        const struct prefix_holder *holder = &index->holders[walk.holder];
        /* Without duplicates, of which each would show its blocks again. */
        kvb_prefix_tidy_extents(index, walk.holder);
        for (size_t i = 0; i < holder->extent_count; i++) {
            (void)each_of_extent(&walk, holder->extents[i], visit);
        }
    }
    for (; member != KVB_NONE; member = index->forest.members[member].slot_next) {
        visit(context, index->forest.members[member].block);
    }
}

/* ---- Pages ----
 *
 * The position in a slot is the number of the next extent or, after the last extent, of the next
 * orphan.  Extents are visited in the order of their numbers, because these do not change when the
 * holder's list does.  Finding the next extents reads the whole list, 4 bytes per extent. */

enum { page_extents = 512 };

static const uint64_t orphans_begin = UINT64_C(1) << 32;

static void sift_down(uint32_t *heap, size_t count, size_t at)
{
    for (size_t child = 2 * at + 1; child < count; child = 2 * at + 1) {
        child += child + 1 < count && heap[child + 1] > heap[child];
        if (heap[at] >= heap[child]) {
            return;
        }
        const uint32_t moved = heap[at];
        heap[at] = heap[child];
        heap[child] = moved;
        at = child;
    }
}

static int by_number(const void *left, const void *right)
{
    const uint32_t a = *(const uint32_t *)left;
    const uint32_t b = *(const uint32_t *)right;

    return (a > b) - (a < b);
}

/* Partial heapsort: writes the lowest extents of the list that are not below `from`, sorted and
 * with duplicates.  A bounded max-heap keeps the lowest ones seen. */
static size_t
lowest_extents(const struct prefix_holder *holder, uint32_t from, uint32_t out[page_extents])
{
    size_t count = 0;

    for (size_t i = 0; i < holder->extent_count; i++) {
        const uint32_t extent = holder->extents[i];
        if (extent < from || (count == page_extents && extent >= out[0])) {
            continue;
        }
        /* Full: the largest of those kept makes room for a smaller one. */
        if (count == page_extents) {
            out[0] = extent;
            sift_down(out, count, 0);
            continue;
        }
        /* Just filled, the array is made a heap; before that its order does not matter. */
        out[count++] = extent;
        for (size_t at = count == page_extents ? page_extents / 2 : 0; at-- > 0;) {
            sift_down(out, count, at);
        }
    }
    qsort(out, count, sizeof *out, by_number);
    return count;
}

/* Returns the position from which to continue. */
static uint64_t show_extents(
    const struct kvb_index_walk *walk, uint64_t place, size_t *blocks,
    void (*visit)(void *, kvb_block_hash))
{
    uint32_t extents[page_extents];
    const size_t count =
        walk->holder == KVB_NONE
            ? 0
            : lowest_extents(&walk->index->holders[walk->holder], (uint32_t)place, extents);

    for (size_t i = 0; i < count; i++) {
        if (i > 0 && extents[i] == extents[i - 1]) {
            continue;
        }
        /* Between extents only: a page is exceeded by the rest of one. */
        if (*blocks == 0) {
            return extents[i];
        }
        const size_t shown = each_of_extent(walk, extents[i], visit);
        *blocks -= shown < *blocks ? shown : *blocks;
    }
    return count == page_extents ? (uint64_t)extents[count - 1] + 1 : orphans_begin;
}

static uint64_t show_orphans(
    const struct kvb_index_walk *walk, uint64_t place, size_t *blocks,
    void (*visit)(void *, kvb_block_hash))
{
    const struct kvb_forest_owner *owner = &walk->index->slots[walk->slot].orphans;
    uint32_t member = place == orphans_begin
                          ? first_orphan(walk->index, walk->slot)
                          : same_orphan(walk->index, walk->slot, (uint32_t)(place - 1));

    for (; owner->count > 0 && member != KVB_NONE; (*blocks)--) {
        const struct forest_member *here = &walk->index->forest.members[member];
        if (*blocks == 0) {
            return orphans_begin + member + 1;
        }
        visit(walk->context, here->block);
        member = here->slot_next;
    }
    return KVB_INDEX_PLACE_END;
}

void kvb_prefix_index_page(
    struct kvb_prefix_index *index, kvb_slot_ref slot, uint64_t *place, size_t max_blocks,
    void (*visit)(void *context, kvb_block_hash block), void *context)
{
    const struct kvb_index_walk walk = { .index = index,
                                         .slot = slot.value,
                                         .holder = index->slots[slot.value].holder,
                                         .context = context };
    size_t blocks = max_blocks;

    /* Extents, then orphans; a page may end the one and begin the other. */
    if (*place < orphans_begin) {
        *place = show_extents(&walk, *place, &blocks, visit);
    }
    if (*place >= orphans_begin && *place != KVB_INDEX_PLACE_END && blocks > 0) {
        *place = show_orphans(&walk, *place, &blocks, visit);
    }
}
