#include "core/array.h"
#include "core/limits.h"
#include "index/prefix_inside.h"

#include <stdlib.h>

/* A walk shows a slot's blocks as runs.  It begins at each held node whose parent
 * node the slot does not hold, and goes down through held nodes, parents first; a
 * node that is not held ends the way down, what is held below it begins anew:
 *
 *     a - b - (c) - d       a b and d are shown; d names its unheld parent c
 *
 * First the slot's nodes are gathered as stretches, nodes of one extent that it holds one
 * after the other (orphans: one by one), and sorted by the node that each hangs below:
 * those of a node, or of a stretch's nodes, then lie side by side. */
struct stretch {
    uint64_t parent; /* place */
    uint64_t place;  /* of its first node */
    uint32_t count;  /* nodes */
};

/* A node of the tree, or with this bit one of the forest. */
static const uint64_t in_forest = UINT64_C(1) << 32;

/* What the slot calls a node. */
struct word {
    kvb_block_hash block;
    kvb_block_hash parent_block;
    uint32_t next; /* odd word or member; KVB_NONE: the last */
};

struct walk {
    struct kvb_prefix_index *index;
    uint32_t slot;
    uint32_t holder;
    kvb_index_visitor visit;
    void *context;
    struct stretch *stretches; /* owned */
    size_t stretch_count, stretch_capacity;
    size_t *stack; /* owned: stretches to be shown */
    size_t stack_count, stack_capacity;
    kvb_block_hash *blocks;  /* owned: the run being made */
    kvb_tokens_hash *tokens; /* owned, parallel */
    size_t block_capacity;
    size_t token_capacity;
    struct kvb_index_run run;
    uint64_t last; /* place of the run's last block */
};

static const struct forest_node *forest_at(const struct walk *walk, uint64_t place)
{
    return &walk->index->forest.nodes[(uint32_t)place];
}

static uint64_t parent_of(const struct walk *walk, uint64_t place)
{
    return place & in_forest ? forest_at(walk, place)->parent | in_forest
                             : kvb_prefix_parent(walk->index, (uint32_t)place);
}

static bool is_held(const struct walk *walk, uint64_t place)
{
    if (place & in_forest) {
        return forest_at(walk, place)->first_member != KVB_NONE;
    }
    return place != kvb_root_node && walk->holder != KVB_NONE &&
           kvb_prefix_holds(walk->index, walk->holder, (uint32_t)place);
}

/* ---- Words ---- */

static struct word member_word(const struct walk *walk, uint32_t member)
{
    const struct forest_member *here = &walk->index->forest.members[member];
    return (struct word){ .block = here->block,
                          .parent_block = here->parent_block,
                          .next = here->node_next };
}

static struct word odd_word(const struct walk *walk, uint32_t word)
{
    const struct prefix_word *here = kvb_prefix_word(walk->index, word);
    return (struct word){ .block = here->block,
                          .parent_block = here->parent_block,
                          .next = here->next };
}

static struct word paged_word(const struct kvb_prefix_index *index, uint32_t word)
{
    const struct prefix_page *page = kvb_prefix_page(index, word);
    return (struct word){ .block = { page->names[kvb_prefix_offset(word)] },
                          .parent_block = kvb_prefix_paged_parent(index, word),
                          .next = KVB_NONE };
}

static struct word first_word(const struct walk *walk, uint64_t place)
{
    if (place & in_forest) {
        return member_word(walk, forest_at(walk, place)->first_member);
    }
    const uint32_t node = (uint32_t)place;
    const uint32_t paged = kvb_prefix_paged_word(walk->index, walk->holder, node);
    if (paged != KVB_NONE) {
        return paged_word(walk->index, paged);
    }
    const uint32_t odd = kvb_prefix_odd_words(walk->index, walk->holder, node);
    if (odd != KVB_NONE) {
        return odd_word(walk, odd);
    }
    const uint32_t parent = kvb_prefix_parent(walk->index, node);
    const uint64_t parent_name =
        parent == kvb_root_node ? 0 : kvb_prefix_usual_parent(walk->index, node);
    return (struct word){ .block = { kvb_prefix_name(walk->index, node) },
                          .parent_block = { parent_name },
                          .next = KVB_NONE };
}

static struct word next_word(const struct walk *walk, uint64_t place, const struct word *word)
{
    return place & in_forest ? member_word(walk, word->next) : odd_word(walk, word->next);
}

/* ---- Gathering ---- */

static kvb_status add_stretch(struct walk *walk, uint64_t place, uint32_t count)
{
    KVB_TRY(kvb_array_reserve(
        &walk->stretches, &walk->stretch_capacity, walk->stretch_count + 1, sizeof *walk->stretches,
        kvb_max_index_blocks));
    walk->stretches[walk->stretch_count++] =
        (struct stretch){ .parent = parent_of(walk, place), .place = place, .count = count };
    return KVB_OK;
}

static kvb_status gather_extent(struct walk *walk, uint32_t extent)
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

static kvb_status gather_orphans(struct walk *walk)
{
    const struct kvb_forest *forest = &walk->index->forest;
    const struct kvb_forest_owner *owner = &walk->index->slots[walk->slot].orphans;
    uint32_t member = owner->count > 0 ? owner->first_member : KVB_NONE;

    for (; member != KVB_NONE; member = forest->members[member].slot_next) {
        const uint32_t node = forest->members[member].node;
        if (forest->nodes[node].first_member == member) {
            KVB_TRY(add_stretch(walk, node | in_forest, 1));
        }
    }
    return KVB_OK;
}

static int by_parent(const void *left, const void *right)
{
    const struct stretch *a = left;
    const struct stretch *b = right;

    return (a->parent > b->parent) - (a->parent < b->parent);
}

static kvb_status gather(struct walk *walk)
{
    if (walk->holder != KVB_NONE) {
        const struct prefix_holder *holder = &walk->index->holders[walk->holder];
        kvb_prefix_tidy_extents(walk->index, walk->holder);
        for (size_t i = 0; i < holder->extent_count; i++) {
            KVB_TRY(gather_extent(walk, holder->extents[i]));
        }
    }
    KVB_TRY(gather_orphans(walk));
    if (walk->stretch_count > 0) { /* qsort() wants an array even for nothing */
        qsort(walk->stretches, walk->stretch_count, sizeof *walk->stretches, by_parent);
    }
    return KVB_OK;
}

/* ---- Showing ---- */

static kvb_status flush(struct walk *walk)
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

/* What to call an unheld parent: as the slot called it.  When that name means
 * another block by now, who reads the walk would hang the run below that one and
 * see a prefix that nobody holds: then a name that the slot does not use. */
static kvb_block_hash unheld_name(const struct walk *walk, uint64_t parent, kvb_block_hash name)
{
    const bool is_waited_for =
        parent & in_forest && forest_at(walk, parent)->kind == forest_placeholder;

    while (!is_waited_for && kvb_prefix_find(walk->index, walk->slot, name).kind != found_none) {
        name.value++;
    }
    return name;
}

/* The parent by the name it has now, or had when it was held. */
static void begin_run(struct walk *walk, uint64_t place, const struct word *word)
{
    const uint64_t parent = parent_of(walk, place);

    walk->run.has_parent = parent != kvb_root_node;
    if (walk->run.has_parent) {
        walk->run.parent = is_held(walk, parent) ? first_word(walk, parent).block
                                                 : unheld_name(walk, parent, word->parent_block);
    }
}

static uint64_t tokens_at(const struct walk *walk, uint64_t place)
{
    return place & in_forest ? forest_at(walk, place)->key
                             : kvb_prefix_tokens(walk->index, (uint32_t)place);
}

static kvb_status add_block(struct walk *walk, uint64_t place, kvb_block_hash block)
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

/* Names may form a circle; a run that contained its own parent would be refused. */
static bool is_parent_of_run(const struct walk *walk, kvb_block_hash block)
{
    return walk->run.has_parent && walk->run.parent.value == block.value;
}

/* A slot that has two names for a node shows it twice, the second time alone. */
static kvb_status show_node(struct walk *walk, uint64_t place)
{
    bool continues = walk->run.count > 0 && parent_of(walk, place) == walk->last;
    struct word word = first_word(walk, place);

    for (;;) {
        if (!continues || is_parent_of_run(walk, word.block)) {
            KVB_TRY(flush(walk));
            begin_run(walk, place, &word);
        }
        KVB_TRY(add_block(walk, place, word.block));
        if (word.next == KVB_NONE) {
            break;
        }
        continues = false;
        word = next_word(walk, place, &word);
    }
    walk->last = place;
    return KVB_OK;
}

static kvb_status push(struct walk *walk, size_t stretch)
{
    KVB_TRY(kvb_array_reserve(
        &walk->stack, &walk->stack_capacity, walk->stack_count + 1, sizeof *walk->stack,
        kvb_max_index_blocks));
    walk->stack[walk->stack_count++] = stretch;
    return KVB_OK;
}

/* The first stretch that hangs below this place or a later one. */
static size_t first_below(const struct walk *walk, uint64_t place)
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

/* The stretch, and what hangs below it: below its last node last, so that it comes next
 * and goes on with the run. */
static kvb_status show_stretch(struct walk *walk, const struct stretch *stretch)
{
    const uint64_t end = stretch->place + stretch->count;

    for (uint64_t place = stretch->place; place < end; place++) {
        KVB_TRY(show_node(walk, place));
    }
    for (size_t i = first_below(walk, stretch->place);
         i < walk->stretch_count && walk->stretches[i].parent < end; i++) {
        KVB_TRY(push(walk, i));
    }
    return KVB_OK;
}

static kvb_status show_all(struct walk *walk)
{
    for (size_t i = 0; i < walk->stretch_count; i++) {
        if (is_held(walk, walk->stretches[i].parent)) {
            continue; /* comes with what it hangs below */
        }
        KVB_TRY(push(walk, i));
        while (walk->stack_count > 0) {
            KVB_TRY(show_stretch(walk, &walk->stretches[walk->stack[--walk->stack_count]]));
        }
        KVB_TRY(flush(walk));
    }
    return KVB_OK;
}

kvb_status kvb_prefix_index_walk(
    struct kvb_prefix_index *index, kvb_slot_ref slot, kvb_index_visitor visit, void *context)
{
    struct walk walk = { .index = index,
                         .slot = slot.value,
                         .holder = index->slots[slot.value].holder,
                         .visit = visit,
                         .context = context };
    kvb_status status = gather(&walk);

    if (status == KVB_OK) {
        status = show_all(&walk);
    }
    free(walk.stretches);
    free(walk.stack);
    free(walk.blocks);
    free(walk.tokens);
    return status;
}

/* ---- Each block ---- */

static void
each_of_node(const struct walk *walk, uint64_t place, void (*visit)(void *, kvb_block_hash))
{
    struct word word = first_word(walk, place);

    visit(walk->context, word.block);
    while (word.next != KVB_NONE) {
        word = next_word(walk, place, &word);
        visit(walk->context, word.block);
    }
}

static void
each_of_extent(const struct walk *walk, uint32_t extent, void (*visit)(void *, kvb_block_hash))
{
    const uint32_t first = extent * kvb_extent_nodes;
    const uint32_t end = first + kvb_prefix_extent(walk->index, extent)->len;

    for (uint32_t node = first; node < end; node++) {
        if (is_held(walk, node)) {
            each_of_node(walk, node, visit);
        }
    }
}

void kvb_prefix_index_each_block(
    struct kvb_prefix_index *index, kvb_slot_ref slot,
    void (*visit)(void *context, kvb_block_hash block), void *context)
{
    const struct walk walk = { .index = index,
                               .slot = slot.value,
                               .holder = index->slots[slot.value].holder,
                               .context = context };
    const struct kvb_forest_owner *owner = &index->slots[slot.value].orphans;
    uint32_t member = owner->count > 0 ? owner->first_member : KVB_NONE;

    if (walk.holder != KVB_NONE) {
        const struct prefix_holder *holder = &index->holders[walk.holder];
        kvb_prefix_tidy_extents(index, walk.holder);
        for (size_t i = 0; i < holder->extent_count; i++) {
            each_of_extent(&walk, holder->extents[i], visit);
        }
    }
    for (; member != KVB_NONE; member = index->forest.members[member].slot_next) {
        visit(context, index->forest.members[member].block);
    }
}
