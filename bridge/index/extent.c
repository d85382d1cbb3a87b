#include "core/array.h"
#include "index/inside.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

static_assert(sizeof(struct prefix_extent) == 384, "six cache lines");

enum {
    overflow_kids = UINT16_MAX,
    full_group = UINT16_MAX,
    spare_groups = 64, /* so many groups may be free in addition to half of all */
};

static const size_t max_words = (size_t)1 << 30;
static const size_t max_child_overflows =
    4096; /* each has 65,535 children, so more would exceed the limit of nodes */

static uint64_t extent_name_at(const struct kvb_prefix_index *index, uint32_t id)
{
    return kvb_prefix_id_is_in_page(id) ? kvb_prefix_page(index, id)->names[kvb_prefix_offset(id)]
                                        : kvb_prefix_name(index, id);
}

static uint64_t hash_of_named(const void *context, uint32_t id)
{
    return kvb_prefix_name_hash(context, extent_name_at(context, id));
}

static uint64_t hash_of_edge(const void *context, uint32_t extent)
{
    const struct prefix_extent *here = kvb_prefix_extent(context, extent);
    return kvb_prefix_edge_hash(context, here->parent, here->tokens[0]);
}

static struct prefix_group *group_at(const struct kvb_prefix_index *index, uint32_t group)
{
    return (struct prefix_group *)(void *)index->groups.base + group;
}

/* ---- Creating and destroying ---- */

static kvb_status reach_group(struct kvb_prefix_index *index, uint32_t group)
{
    const size_t extents = ((size_t)group + 1) * kvb_extent_group;

    KVB_TRY(kvb_region_reach(&index->extents, extents * sizeof(struct prefix_extent)));
    return kvb_region_reach(&index->groups, ((size_t)group + 1) * sizeof(struct prefix_group));
}

/* In the worst case each node has its own extent, and half of all extents plus spare_groups are
 * free.  Node numbers stay below KVB_IN_PAGE, the bit that marks words in pages. */
static size_t max_groups_of(const struct kvb_prefix_index *index)
{
    const size_t wanted = 2 * (index->options.max_nodes / kvb_extent_group + 2) + spare_groups;
    const size_t numbers = KVB_IN_PAGE / (kvb_extent_group * kvb_extent_nodes);
    return wanted < numbers ? wanted : numbers;
}

size_t kvb_prefix_max_words(const struct kvb_prefix_index *index)
{
    const size_t wanted = index->options.max_nodes * kvb_words_a_node;
    return wanted < max_words ? wanted : max_words;
}

kvb_status kvb_prefix_tree_open(struct kvb_prefix_index *index)
{
    const size_t max_groups = max_groups_of(index);
    const size_t group_bytes = kvb_extent_group * sizeof(struct prefix_extent);

    KVB_TRY(kvb_region_open(&index->extents, max_groups * group_bytes));
    KVB_TRY(kvb_region_open(&index->groups, max_groups * sizeof(struct prefix_group)));
    KVB_TRY(kvb_line_table_open(
        &index->names, index->options.max_nodes + kvb_prefix_max_words(index), kvb_line_roomy,
        hash_of_named, index));
    /* Most queries end at an edge that is not there.  The smaller the table is, the more of it is
     * in the cache. */
    KVB_TRY(kvb_line_table_open(
        &index->edges, index->options.max_nodes, kvb_line_dense, hash_of_edge, index));
    KVB_TRY(reach_group(index, 0));
    group_at(index, 0)->used = 1; /* ROOT's extent */
    kvb_prefix_extent(index, 0)->parent = KVB_NONE;
    index->group_end = 1;
    index->open_at = 1;
    return KVB_OK;
}

void kvb_prefix_tree_close(struct kvb_prefix_index *index)
{
    kvb_line_table_close(&index->names);
    kvb_line_table_close(&index->edges);
    kvb_region_close(&index->extents);
    kvb_region_close(&index->groups);
    free(index->child_overflows);
}

/* ---- Extents ----
 *
 * A group allocator: extents are allocated in order from an open group of 16, and a group is reused
 * only when all of it is free.  So the extents of a prompt are adjacent, which halves the time of
 * the slowest queries.  When more than half of all extents are free but no group is, single free
 * extents ("holes") are allocated too. */

static bool wastes_too_much(const struct kvb_prefix_index *index)
{
    const size_t drawn = (size_t)index->group_end * kvb_extent_group;
    return drawn > 2 * index->extent_count + (size_t)spare_groups * kvb_extent_group ||
           index->group_end == max_groups_of(index);
}

static kvb_status open_group(struct kvb_prefix_index *index)
{
    if (index->group_free != 0) {
        index->group_open = index->group_free - 1;
        index->group_free = group_at(index, index->group_open)->next_free;
    } else {
        KVB_TRY(reach_group(index, index->group_end));
        index->group_open = index->group_end++;
        *group_at(index, index->group_open) = (struct prefix_group){ 0 };
    }
    index->open_at = 0;
    return KVB_OK;
}

/* Allocates a hole.  Terminates: at least half of all extents are free, so there is a hole. */
static uint32_t take_extent_hole(struct kvb_prefix_index *index)
{
    while (group_at(index, index->hole_at)->used == full_group) {
        index->hole_at = (index->hole_at + 1) % index->group_end;
    }
    struct prefix_group *group = group_at(index, index->hole_at);
    const uint32_t at = (uint32_t)__builtin_ctz(~(unsigned)group->used);
    group->used |= (uint16_t)(1U << at);
    return index->hole_at * kvb_extent_group + at;
}

/* Holes are allocated only while no group is on the free list.  So each hole is in a group that has
 * used extents. */
static bool may_take_hole(const struct kvb_prefix_index *index)
{
    return index->group_free == 0 && wastes_too_much(index);
}

static kvb_status draw_extent(struct kvb_prefix_index *index, uint32_t *out_extent)
{
    /* The open group is used up: a hole, where too much lies idle, before another group. */
    if (index->open_at == kvb_extent_group && may_take_hole(index)) {
        *out_extent = take_extent_hole(index);
        index->extent_count++;
        return KVB_OK;
    }
    if (index->open_at == kvb_extent_group) {
        KVB_TRY(open_group(index));
    }
    group_at(index, index->group_open)->used |= (uint16_t)(1U << index->open_at);
    *out_extent = index->group_open * kvb_extent_group + index->open_at++;
    index->extent_count++;
    return KVB_OK;
}

static void give_back_extent(struct kvb_prefix_index *index, uint32_t extent)
{
    const uint32_t number = extent / kvb_extent_group;
    struct prefix_group *group = group_at(index, number);

    kvb_prefix_extent(index, extent)->parent = KVB_NONE;
    kvb_prefix_extent(index, extent)->len = 0;
    group->used &= (uint16_t) ~(1U << (extent % kvb_extent_group));
    index->extent_count--;
    if (group->used != 0) {
        return;
    }
    /* All 16 are free: a group that is open begins anew, any other one waits in the free list. */
    if (number == index->group_open) {
        index->open_at = 0;
    } else {
        group->next_free = index->group_free;
        index->group_free = number + 1;
    }
}

/* ---- Counting children ---- */

static struct prefix_child_overflow *
child_overflow_of(const struct kvb_prefix_index *index, uint32_t node)
{
    for (size_t i = 0; i < index->child_overflow_count; i++) {
        if (index->child_overflows[i].node == node) {
            return &index->child_overflows[i];
        }
    }
    return NULL;
}

static kvb_status begin_child_overflow(struct kvb_prefix_index *index, uint32_t node)
{
    KVB_TRY(kvb_array_reserve(
        &index->child_overflows, &index->child_overflow_capacity, index->child_overflow_count + 1,
        sizeof *index->child_overflows, max_child_overflows));
    index->child_overflows[index->child_overflow_count++] =
        (struct prefix_child_overflow){ .node = node };
    return KVB_OK;
}

static kvb_status count_kid(struct kvb_prefix_index *index, uint32_t node)
{
    uint16_t *kids = &kvb_prefix_extent_of(index, node)->kids[kvb_prefix_offset(node)];

    /* ROOT is never freed, so nobody asks how many children it has. */
    if (node == kvb_root_node) {
        return KVB_OK;
    }
    if (*kids == overflow_kids) {
        child_overflow_of(index, node)->more++;
        return KVB_OK;
    }
    if (*kids == overflow_kids - 1) {
        KVB_TRY(begin_child_overflow(index, node));
    }
    ++*kids;
    return KVB_OK;
}

static void uncount_kid(struct kvb_prefix_index *index, uint32_t node)
{
    uint16_t *kids = &kvb_prefix_extent_of(index, node)->kids[kvb_prefix_offset(node)];

    if (node == kvb_root_node) {
        return;
    }
    if (*kids == overflow_kids) {
        struct prefix_child_overflow *overflow = child_overflow_of(index, node);
        if (overflow->more > 0) {
            overflow->more--;
            return;
        }
        /* The count fits into the extent again: the last row takes the place of this one. */
        *overflow = index->child_overflows[--index->child_overflow_count];
    }
    --*kids;
}

/* ---- Finding ---- */

static bool begins_with(const struct prefix_extent *extent, uint32_t parent, uint64_t tokens)
{
    return extent->parent == parent && extent->tokens[0] == tokens;
}

/* In most cases the child is the next node of the same extent, or the first node of the extent in
 * the hint `next`. */
uint32_t kvb_prefix_child(const struct kvb_prefix_index *index, uint32_t node, uint64_t tokens)
{
    const struct prefix_extent *here = kvb_prefix_extent_of(index, node);
    const uint32_t next = kvb_prefix_offset(node) + 1;

    if (next < here->len && here->tokens[next] == tokens) { /* ROOT's extent has length 0 */
        return node + 1;
    }
    /* No extent hangs below it, which costs no look-up to know. */
    if (here->kids[next - 1] == 0 && node != kvb_root_node) {
        return KVB_NONE;
    }
    if (here->next != 0 && begins_with(kvb_prefix_extent(index, here->next), node, tokens)) {
        return here->next * kvb_extent_nodes;
    }
    struct kvb_line_probe probe =
        kvb_line_table_probe(&index->edges, kvb_prefix_edge_hash(index, node, tokens));
    for (uint32_t id; (id = kvb_line_probe_next(&index->edges, &probe)) != KVB_NO_LINE_ID;) {
        if (begins_with(kvb_prefix_extent(index, id), node, tokens)) {
            return id * kvb_extent_nodes;
        }
    }
    return KVB_NONE;
}

uint32_t kvb_prefix_named(const struct kvb_prefix_index *index, uint64_t name)
{
    struct kvb_line_probe probe =
        kvb_line_table_probe(&index->names, kvb_prefix_name_hash(index, name));

    for (uint32_t id; (id = kvb_line_probe_next(&index->names, &probe)) != KVB_NO_LINE_ID;) {
        if (!kvb_prefix_id_is_in_page(id) && kvb_prefix_name(index, id) == name) {
            return id;
        }
    }
    return KVB_NONE;
}

struct prefix_called
kvb_prefix_called(const struct kvb_prefix_index *index, uint32_t holder, uint64_t name)
{
    struct prefix_called called = { .node = KVB_NONE, .word = KVB_NONE };
    struct kvb_line_probe probe =
        kvb_line_table_probe(&index->names, kvb_prefix_name_hash(index, name));

    for (uint32_t id; (id = kvb_line_probe_next(&index->names, &probe)) != KVB_NO_LINE_ID;) {
        if (extent_name_at(index, id) != name) {
            continue;
        }
        if (!kvb_prefix_id_is_in_page(id)) {
            called.node = id;
        } else if (kvb_prefix_page(index, id)->holder == holder) {
            called.word = id;
        } else {
            called.others++;
        }
    }
    return called;
}

/* ---- Adding ---- */

/* Writes a node at the end of its extent.  The name is written before the table `names` gets the
 * node, because the table reads names from extents when it splits a line.  `len` is raised last. */
static kvb_status write_node(
    struct kvb_prefix_index *index, uint32_t node, uint64_t tokens, uint64_t name, bool is_named)
{
    struct prefix_extent *here = kvb_prefix_extent_of(index, node);
    const uint32_t at = kvb_prefix_offset(node);

    here->tokens[at] = tokens;
    here->names[at] = name;
    here->sets[at] = 0;
    here->kids[at] = 0;
    if (is_named) {
        KVB_TRY(kvb_line_table_put(&index->names, kvb_prefix_name_hash(index, name), node));
    }
    here->named = (uint16_t)((here->named & ~(1U << at)) | (unsigned)is_named << at);
    here->overflow &= (uint16_t) ~(1U << at);
    here->in_page &= (uint16_t) ~(1U << at);
    here->override_at = here->override_at >= at ? kvb_no_parent_override : here->override_at;
    here->len = (uint8_t)(at + 1);
    index->counters.nodes++;
    index->counters.ghosts++;
    return KVB_OK;
}

static kvb_status
begin_extent(struct kvb_prefix_index *index, uint32_t parent, uint64_t tokens, uint32_t *out_extent)
{
    uint32_t extent = 0;

    KVB_TRY(draw_extent(index, &extent));
    struct prefix_extent *here = kvb_prefix_extent(index, extent);
    here->parent = parent;
    here->next = 0;
    here->named = 0;
    here->overflow = 0;
    here->in_page = 0;
    here->override_at = kvb_no_parent_override;
    here->len = 0;
    here->tokens[0] = tokens;
    kvb_status status = count_kid(index, parent);
    if (status == KVB_OK) {
        status =
            kvb_line_table_put(&index->edges, kvb_prefix_edge_hash(index, parent, tokens), extent);
        if (status != KVB_OK) {
            uncount_kid(index, parent);
        }
    }
    if (status != KVB_OK) {
        give_back_extent(index, extent);
        return status;
    }
    kvb_prefix_extent_of(index, parent)->next = extent;
    *out_extent = extent;
    return KVB_OK;
}

static void end_extent(struct kvb_prefix_index *index, uint32_t extent)
{
    struct prefix_extent *here = kvb_prefix_extent(index, extent);

    kvb_line_table_remove(
        &index->edges, kvb_prefix_edge_hash(index, here->parent, here->tokens[0]), extent);
    uncount_kid(index, here->parent);
    if (kvb_prefix_extent_of(index, here->parent)->next == extent) {
        kvb_prefix_extent_of(index, here->parent)->next = 0;
    }
    give_back_extent(index, extent);
}

static bool can_append(const struct kvb_prefix_index *index, uint32_t node)
{
    const uint32_t at = kvb_prefix_offset(node) + 1;
    return node != kvb_root_node && at < kvb_extent_nodes &&
           at == kvb_prefix_extent_of(index, node)->len;
}

/* override_at may still be that of a freed node.  Such a value is ignored. */
bool kvb_prefix_may_parent_override(const struct kvb_prefix_index *index, uint32_t node)
{
    const struct prefix_extent *here = kvb_prefix_extent_of(index, node);
    return !can_append(index, node) || here->override_at >= here->len;
}

kvb_status kvb_prefix_child_new(
    struct kvb_prefix_index *index, uint32_t node, uint64_t tokens, uint64_t name, bool is_named,
    uint32_t *out_child)
{
    uint32_t extent = 0;

    if (can_append(index, node)) {
        KVB_TRY(write_node(index, node + 1, tokens, name, is_named));
        *out_child = node + 1;
        return KVB_OK;
    }
    KVB_TRY(begin_extent(index, node, tokens, &extent));
    const kvb_status status = write_node(index, extent * kvb_extent_nodes, tokens, name, is_named);
    if (status != KVB_OK) {
        end_extent(index, extent);
        return status;
    }
    *out_child = extent * kvb_extent_nodes;
    return KVB_OK;
}

[[gnu::always_inline]] static inline void prefetch_next_extent(const struct kvb_prefix_index *index)
{
    const uint32_t next = index->group_open * kvb_extent_group + index->open_at;
    const char *line = (const char *)kvb_prefix_extent(index, next);

    for (size_t at = 0; at < sizeof(struct prefix_extent); at += 64) {
        __builtin_prefetch(line + at, 1);
    }
}

/* Adds the node to the table `names`.  Returns false when the table has another node of this name,
 * or a word of this holder of this name, or no memory. */
static inline bool name_new_node(
    struct kvb_prefix_index *index, uint32_t holder, uint64_t hash, uint64_t name, uint32_t node)
{
    const struct kvb_line_place place = kvb_line_table_place(&index->names, hash);

    if (kvb_line_place_is_clear(&place)) {
        kvb_line_table_put_at(&index->names, &place, node);
        return true;
    }
    const struct prefix_called called = kvb_prefix_called(index, holder, name);
    return called.node == KVB_NONE && called.word == KVB_NONE &&
           kvb_line_table_put(&index->names, hash, node) == KVB_OK;
}

/* Adds the nodes at .. end-1 of the extent to the table `names`.  The extent must contain their
 * names already, because the table reads them there.  Returns the first node that could not be
 * added, or `end`. */
static uint32_t name_new_nodes(
    struct kvb_prefix_index *index, struct prefix_names *names, uint32_t extent, uint32_t at,
    uint32_t end)
{
    const uint64_t *here = kvb_prefix_extent(index, extent)->names;

    while (at < end && name_new_node(
                           index, names->holder, kvb_prefix_names_hash(names), here[at],
                           extent * kvb_extent_nodes + at)) {
        kvb_prefix_names_next(index, names);
        at++;
    }
    return at;
}

uint32_t kvb_prefix_append(
    struct kvb_prefix_index *index, uint32_t node, struct prefix_names *names,
    const kvb_tokens_hash *tokens, size_t max, kvb_set_id set)
{
    const uint32_t extent = node / kvb_extent_nodes;
    struct prefix_extent *here = kvb_prefix_extent(index, extent);
    const uint32_t first = here->len;
    const size_t room = kvb_extent_nodes - first;
    const size_t count = max < room ? max : room;

    if (max > room) { /* the rest of the run needs another extent */
        const uint32_t last = extent * kvb_extent_nodes + kvb_extent_nodes - 1;
        kvb_line_table_prefetch(
            &index->edges, kvb_prefix_edge_hash(index, last, tokens[room].value));
        prefetch_next_extent(index);
    }
    if (count == 0) {
        return 0;
    }
    /* Written before the table of names gets them, which reads names here.  They are no nodes
     * before `len` is raised. */
    memcpy(here->names + first, names->blocks + names->at, count * sizeof here->names[0]);
    memcpy(here->tokens + first, tokens, count * sizeof here->tokens[0]);
    memset(here->kids + first, 0, count * sizeof here->kids[0]);
    for (size_t i = 0; i < count; i++) {
        here->sets[first + i] = set;
    }
    const uint32_t end = name_new_nodes(index, names, extent, first, first + (uint32_t)count);
    const uint16_t bits = (uint16_t)(((1U << (end - first)) - 1) << first);
    here->named |= bits;
    here->overflow &= (uint16_t)~bits;
    here->in_page &= (uint16_t)~bits;
    here->override_at = here->override_at >= first ? kvb_no_parent_override : here->override_at;
    here->len = (uint8_t)end;
    index->counters.nodes += end - first;
    return end - first;
}

/* ---- Removing ---- */

/* Frees the last node of its extent.  Returns its parent, which may be the next node to free. */
static uint32_t pop_node(struct kvb_prefix_index *index, uint32_t node)
{
    struct prefix_extent *here = kvb_prefix_extent_of(index, node);
    const uint32_t at = kvb_prefix_offset(node);
    const uint32_t parent = at > 0 ? node - 1 : here->parent;

    if (here->named >> at & 1) {
        kvb_line_table_remove(&index->names, kvb_prefix_name_hash(index, here->names[at]), node);
    }
    here->len = (uint8_t)at;
    /* Its first node was its last one: the edge to it goes, too. */
    if (at == 0) {
        end_extent(index, node / kvb_extent_nodes);
    }
    index->counters.nodes--;
    index->counters.ghosts--;
    return parent;
}

/* Stops at ROOT, or at a node that is held or has children. */
void kvb_prefix_trim(struct kvb_prefix_index *index, uint32_t node)
{
    while (node != kvb_root_node) {
        const struct prefix_extent *here = kvb_prefix_extent_of(index, node);
        const uint32_t at = kvb_prefix_offset(node);
        if (here->sets[at] != 0 || here->kids[at] != 0 || here->len != at + 1U) {
            return;
        }
        node = pop_node(index, node);
    }
}

static bool may_pop(const struct prefix_extent *here, uint32_t at, uint64_t name, kvb_set_id set)
{
    return here->names[at] == name && here->sets[at] == set && here->kids[at] == 0;
}

/* Returns how many of the extent's first `len` nodes may be freed, from the last one up. */
static uint32_t count_popped(
    const struct prefix_extent *here, uint32_t len, const struct prefix_names *names,
    kvb_set_id set)
{
    /* The slot may use a word in a page or an alias for these nodes. */
    const uint32_t unusual =
        names->holder != KVB_NONE ? (uint32_t)(here->overflow | here->in_page) : 0;
    const uint32_t usual = (here->named & ~unusual) << (32 - len);
    const size_t left = names->count - names->at;
    const uint32_t max = (uint32_t)__builtin_clz(~usual); /* usual nodes at the end; <= 16 */
    const kvb_block_hash *name = names->blocks + names->at;
    uint32_t count = 0;

    while (count < max && count < left && may_pop(here, len - 1 - count, name[count].value, set)) {
        count++;
    }
    return count;
}

uint32_t kvb_prefix_pop(
    struct kvb_prefix_index *index, uint32_t node, struct prefix_names *names, kvb_set_id set,
    uint32_t *out_above)
{
    struct prefix_extent *here = kvb_prefix_extent_of(index, node);
    const uint32_t base = node - kvb_prefix_offset(node);
    const uint32_t end = here->len;

    if (base + end != node + 1) {
        return 0;
    }
    if (names->count - names->at >= end) { /* the whole extent may be freed */
        kvb_line_table_prefetch(
            &index->edges, kvb_prefix_edge_hash(index, here->parent, here->tokens[0]));
        kvb_prefix_fetch_removed(index, here->parent, true);
    }
    const uint32_t len = end - count_popped(here, end, names, set);
    if (len == end) {
        return 0;
    }
    kvb_prefix_names_begin(index, names, 0);
    for (uint32_t at = end; at > len; at--) {
        const uint64_t hash = kvb_prefix_names_hash(names);
        kvb_prefix_names_next(index, names);
        kvb_line_table_remove(&index->names, hash, base + at - 1);
    }
    here->len = (uint8_t)len;
    index->counters.nodes -= end - len;
    /* The node above may have been kept for these alone. */
    *out_above = len > 0 ? base + len - 1 : here->parent;
    if (len == 0) {
        end_extent(index, base / kvb_extent_nodes);
    }
    kvb_prefix_trim(index, *out_above);
    return end - len;
}
