#include "index/reference_index.h"

#include <assert.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

/* ---- (first, second) -> value ----
 *
 * Open addressing. A value of 0 marks a free cell, and is returned for a pair that is not there. */
struct pair {
    uint64_t second;
    uint32_t first;
    uint32_t value;
};

struct pairs {
    struct pair *cells; /* owned */
    size_t mask, count;
};

static uint64_t mix(uint64_t hash)
{
    hash = (hash ^ hash >> 32) * UINT64_C(0x9e3779b97f4a7c15);
    return hash ^ hash >> 29;
}

static size_t home_of(const struct pairs *pairs, uint32_t first, uint64_t second)
{
    return (size_t)mix(mix(second) + first) & pairs->mask;
}

static void pairs_init(struct pairs *pairs, size_t cells)
{
    *pairs = (struct pairs){ .cells = calloc(cells, sizeof *pairs->cells), .mask = cells - 1 };
    assert(pairs->cells);
}

/* The pair's cell, or the free cell where it would be inserted. */
static struct pair *cell_of(const struct pairs *pairs, uint32_t first, uint64_t second)
{
    size_t at = home_of(pairs, first, second);

    while (pairs->cells[at].value != 0 &&
           (pairs->cells[at].second != second || pairs->cells[at].first != first)) {
        at = (at + 1) & pairs->mask;
    }
    return &pairs->cells[at];
}

static uint32_t pairs_get(const struct pairs *pairs, uint32_t first, uint64_t second)
{
    return cell_of(pairs, first, second)->value;
}

static void double_cells(struct pairs *pairs)
{
    const struct pairs old = *pairs;

    pairs_init(pairs, 2 * (old.mask + 1));
    pairs->count = old.count;
    for (size_t i = 0; i <= old.mask; i++) {
        if (old.cells[i].value != 0) {
            *cell_of(pairs, old.cells[i].first, old.cells[i].second) = old.cells[i];
        }
    }
    free(old.cells);
}

static void pairs_put(struct pairs *pairs, uint32_t first, uint64_t second, uint32_t value)
{
    struct pair *cell = cell_of(pairs, first, second);

    pairs->count += cell->value == 0;
    *cell = (struct pair){ .first = first, .second = second, .value = value };
    if (pairs->count > pairs->mask / 2) {
        double_cells(pairs);
    }
}

/* Inserts the cells behind it anew, up to the next free one: some of them may have been displaced
 * by this one. */
static void pairs_remove(struct pairs *pairs, uint32_t first, uint64_t second)
{
    struct pair *cell = cell_of(pairs, first, second);

    assert(cell->value != 0);
    cell->value = 0;
    pairs->count--;
    for (size_t at = ((size_t)(cell - pairs->cells) + 1) & pairs->mask; pairs->cells[at].value != 0;
         at = (at + 1) & pairs->mask) {
        const struct pair moved = pairs->cells[at];
        pairs->cells[at].value = 0;
        *cell_of(pairs, moved.first, moved.second) = moved;
    }
}

/* ---- The parts ---- */

enum { no_place = 0, root_place = 1, no_member = 0 };

struct place {
    uint64_t key;    /* content; for a placeholder the name that is waited for */
    uint32_t above;  /* the parent place; 0 for none; the next one in the free list */
    uint32_t first;  /* with key: what by_path finds the place by */
    uint32_t top;    /* ROOT, or the placeholder that its path begins with */
    uint32_t depth;  /* number of contents from top on */
    uint32_t names;  /* number of names that stand for it */
    uint32_t needed; /* references from names, from places below, and from operations under way */
};

struct member {
    uint64_t name;
    uint32_t place;
    uint32_t next, previous; /* neighbours in the slot's list; next: in the free list too */
};

struct reference_slot {
    uint32_t first_member; /* the newest name */
    size_t blocks;
};

struct reference_index {
    struct reference_slot *slots; /* owned */
    size_t max_nodes;
    size_t orphan_names;
    struct place *places; /* owned */
    size_t place_end, place_capacity;
    uint32_t free_place;
    struct member *members; /* owned */
    size_t member_end, member_capacity;
    uint32_t free_member;
    struct pairs by_path; /* (above, or all ones minus the slot; key) -> place */
    struct pairs by_name; /* (slot, name) -> member */
    struct pairs held;    /* (slot, place) -> names */
    struct kvb_index_counters counters;
};

static void *doubled(void *array, size_t *capacity, size_t size)
{
    *capacity *= 2;
    void *grown = realloc(array, *capacity * size);
    assert(grown);
    return grown;
}

struct reference_index *reference_index_new(uint32_t slots, size_t max_nodes)
{
    struct reference_index *dull = calloc(1, sizeof *dull);

    assert(dull);
    *dull = (struct reference_index){
        .slots = calloc(slots, sizeof *dull->slots),
        .max_nodes = max_nodes,
        .place_end = root_place + 1,
        .place_capacity = 1024,
        .places = calloc(1024, sizeof *dull->places),
        .member_end = 1,
        .member_capacity = 1024,
        .members = calloc(1024, sizeof *dull->members),
    };
    assert(dull->slots && dull->places && dull->members);
    dull->places[root_place] = (struct place){ .top = root_place, .needed = 1 };
    pairs_init(&dull->by_path, 1024);
    pairs_init(&dull->by_name, 1024);
    pairs_init(&dull->held, 1024);
    return dull;
}

void reference_index_free(struct reference_index *dull)
{
    free(dull->slots);
    free(dull->places);
    free(dull->members);
    free(dull->by_path.cells);
    free(dull->by_name.cells);
    free(dull->held.cells);
    free(dull);
}

/* ---- Places ---- */

static bool is_orphan(const struct reference_index *dull, uint32_t place)
{
    return dull->places[place].top != root_place;
}

static uint32_t draw_place(struct reference_index *dull)
{
    const uint32_t place = dull->free_place;

    if (place != no_place) {
        dull->free_place = dull->places[place].above;
        return place;
    }
    if (dull->place_end == dull->place_capacity) {
        dull->places = doubled(dull->places, &dull->place_capacity, sizeof *dull->places);
    }
    return (uint32_t)dull->place_end++;
}

static uint32_t
make_place(struct reference_index *dull, uint32_t above, uint32_t first, uint64_t key)
{
    const uint32_t made = draw_place(dull);

    dull->places[made] = (struct place){ .key = key, .above = above, .first = first, .top = made };
    if (above != no_place) {
        dull->places[above].needed++;
        dull->places[made].top = dull->places[above].top;
        dull->places[made].depth = dull->places[above].depth + 1;
    }
    pairs_put(&dull->by_path, first, key, made);
    dull->counters.nodes++;
    dull->counters.ghosts++;
    dull->counters.orphans += is_orphan(dull, made);
    return made;
}

/* Finds or makes the place, and counts a reference for the caller, who releases it with
 * leave_place(). */
static uint32_t
take_place(struct reference_index *dull, uint32_t above, uint32_t first, uint64_t key)
{
    uint32_t place = pairs_get(&dull->by_path, first, key);

    if (place == no_place) {
        place = make_place(dull, above, first, key);
    }
    dull->places[place].needed++;
    return place;
}

static void leave_place(struct reference_index *dull, uint32_t place)
{
    while (place != no_place && --dull->places[place].needed == 0) {
        struct place *here = &dull->places[place];
        const uint32_t above = here->above;
        dull->counters.nodes--;
        dull->counters.ghosts--;
        dull->counters.orphans -= is_orphan(dull, place);
        pairs_remove(&dull->by_path, here->first, here->key);
        here->above = dull->free_place;
        dull->free_place = place;
        place = above;
    }
}

static uint32_t waiting_for(uint32_t slot)
{
    return UINT32_MAX - slot; /* no place has such a number */
}

/* ---- Members ---- */

static void add_name(struct reference_index *dull, uint32_t slot, uint32_t place)
{
    dull->counters.ghosts -= dull->places[place].names == 0;
    dull->orphan_names += is_orphan(dull, place);
    dull->places[place].names++;
    dull->places[place].needed++;
    pairs_put(&dull->held, slot, place, pairs_get(&dull->held, slot, place) + 1);
}

static void take_name(struct reference_index *dull, uint32_t slot, uint32_t place)
{
    const uint32_t left = pairs_get(&dull->held, slot, place) - 1;

    if (left > 0) {
        pairs_put(&dull->held, slot, place, left);
    } else {
        pairs_remove(&dull->held, slot, place);
    }
    dull->orphan_names -= is_orphan(dull, place);
    dull->places[place].names--;
    dull->counters.ghosts += dull->places[place].names == 0;
    leave_place(dull, place);
}

static uint32_t draw_member(struct reference_index *dull)
{
    const uint32_t member = dull->free_member;

    if (member != no_member) {
        dull->free_member = dull->members[member].next;
        return member;
    }
    if (dull->member_end == dull->member_capacity) {
        dull->members = doubled(dull->members, &dull->member_capacity, sizeof *dull->members);
    }
    return (uint32_t)dull->member_end++;
}

static void make_member(struct reference_index *dull, uint32_t slot, uint64_t name, uint32_t place)
{
    const uint32_t made = draw_member(dull);
    const uint32_t next = dull->slots[slot].first_member;

    dull->members[made] = (struct member){ .name = name, .place = place, .next = next };
    if (next != no_member) {
        dull->members[next].previous = made;
    }
    dull->slots[slot].first_member = made;
    dull->slots[slot].blocks++;
    dull->counters.memberships++;
    pairs_put(&dull->by_name, slot, name, made);
    add_name(dull, slot, place);
}

static void drop_member(struct reference_index *dull, uint32_t slot, uint32_t member)
{
    const struct member here = dull->members[member];

    if (here.previous != no_member) {
        dull->members[here.previous].next = here.next;
    } else {
        dull->slots[slot].first_member = here.next;
    }
    if (here.next != no_member) {
        dull->members[here.next].previous = here.previous;
    }
    dull->members[member].next = dull->free_member;
    dull->free_member = member;
    dull->slots[slot].blocks--;
    dull->counters.memberships--;
    dull->counters.removed++;
    pairs_remove(&dull->by_name, slot, here.name);
    take_name(dull, slot, here.place);
}

static void
move_member(struct reference_index *dull, uint32_t slot, uint32_t member, uint32_t place)
{
    const uint32_t old = dull->members[member].place;

    dull->members[member].place = place;
    add_name(dull, slot, place);
    take_name(dull, slot, old);
}

/* ---- Storing ---- */

/* The path from `top` to `from`, taken below `to`. */
static uint32_t take_copy(struct reference_index *dull, uint32_t from, uint32_t top, uint32_t to)
{
    if (from == top) {
        dull->places[to].needed++;
        return to;
    }
    const uint32_t above = take_copy(dull, dull->places[from].above, top, to);
    const uint32_t place = take_place(dull, above, above, dull->places[from].key);
    leave_place(dull, above);
    return place;
}

/* Gives every place that waits for this name its longer path. Names in a circle continue to wait.
 */
static void join(struct reference_index *dull, uint32_t slot, uint64_t name, uint32_t place)
{
    const uint32_t waiting = pairs_get(&dull->by_path, waiting_for(slot), name);

    if (waiting == no_place || dull->places[place].top == waiting) {
        return;
    }
    for (uint32_t m = dull->slots[slot].first_member; m != no_member; m = dull->members[m].next) {
        const uint32_t from = dull->members[m].place;
        if (dull->places[from].top == waiting) {
            const uint32_t longer = take_copy(dull, from, waiting, place);
            move_member(dull, slot, m, longer);
            leave_place(dull, longer);
        }
    }
}

/* Returns whether the slot had no such name before. */
static bool name_place(struct reference_index *dull, uint32_t slot, uint64_t name, uint32_t place)
{
    const uint32_t member = pairs_get(&dull->by_name, slot, name);

    if (member != no_member && dull->members[member].place == place) {
        dull->counters.duplicate_stored++;
        return false;
    }
    if (member == no_member) {
        dull->counters.stored++;
        make_member(dull, slot, name, place);
    } else {
        dull->counters.aliases++;
        move_member(dull, slot, member, place);
    }
    join(dull, slot, name, place);
    return member == no_member;
}

static bool names_its_own_parent(const struct kvb_index_run *run)
{
    for (size_t i = 0; run->has_parent && i < run->count; i++) {
        if (run->blocks[i].value == run->parent.value) {
            return true;
        }
    }
    return false;
}

/* An orphan counts as three nodes, as in the index. */
static bool has_room(const struct reference_index *dull, bool for_orphan)
{
    const size_t nodes = dull->counters.nodes + 2 * dull->counters.orphans;

    return nodes + (for_orphan ? 3 : 1) <= dull->max_nodes;
}

/* At most a third as many names of orphans as there can be nodes, as in the index. */
static bool
has_room_for_name(const struct reference_index *dull, uint32_t slot, uint64_t name, uint32_t place)
{
    const uint32_t member = pairs_get(&dull->by_name, slot, name);

    return !is_orphan(dull, place) || dull->orphan_names < dull->max_nodes / 3 ||
           (member != no_member && is_orphan(dull, dull->members[member].place));
}

/* Takes the place where the run begins, or none when the ceiling leaves no room for it. */
static uint32_t
take_beginning(struct reference_index *dull, uint32_t slot, const struct kvb_index_run *run)
{
    const uint32_t member =
        run->has_parent ? pairs_get(&dull->by_name, slot, run->parent.value) : no_member;

    if (!run->has_parent || member != no_member) {
        const uint32_t place = run->has_parent ? dull->members[member].place : root_place;
        dull->places[place].needed++;
        return place;
    }
    dull->counters.unknown_parents++;
    const uint32_t first = waiting_for(slot);
    const bool is_there = pairs_get(&dull->by_path, first, run->parent.value) != no_place;
    return is_there || has_room(dull, true) ? take_place(dull, no_place, first, run->parent.value)
                                            : no_place;
}

/* Moves from a taken place to one below it. False: there is no room, and none is taken. */
static bool step_down(struct reference_index *dull, uint32_t *place, uint64_t tokens)
{
    const uint32_t above = *place;
    const bool is_there = pairs_get(&dull->by_path, above, tokens) != no_place;

    *place = is_there || has_room(dull, is_orphan(dull, above))
                 ? take_place(dull, above, above, tokens)
                 : no_place;
    leave_place(dull, above);
    return *place != no_place;
}

kvb_status reference_index_store(
    struct reference_index *dull, uint32_t slot, const struct kvb_index_run *run,
    uint8_t *out_changed)
{
    memset(out_changed, 0, run->count);
    if (names_its_own_parent(run)) {
        dull->counters.self_parents++;
        return KVB_BAD_INPUT;
    }
    uint32_t place = take_beginning(dull, slot, run);
    for (size_t i = 0; i < run->count; i++) {
        if (place == no_place || !step_down(dull, &place, run->tokens[i].value) ||
            !has_room_for_name(dull, slot, run->blocks[i].value, place)) {
            dull->counters.refused += run->count - i;
            if (place != no_place) {
                leave_place(dull, place);
            }
            return KVB_TOO_LARGE;
        }
        out_changed[i] = name_place(dull, slot, run->blocks[i].value, place);
    }
    leave_place(dull, place);
    return KVB_OK;
}

/* ---- Removing ---- */

void reference_index_remove(
    struct reference_index *dull, uint32_t slot, const kvb_block_hash *blocks, size_t count,
    uint8_t *out_changed)
{
    for (size_t i = 0; i < count; i++) {
        const uint32_t member = pairs_get(&dull->by_name, slot, blocks[i].value);
        out_changed[i] = member != no_member;
        if (member != no_member) {
            drop_member(dull, slot, member);
        } else {
            dull->counters.unknown_removed++;
        }
    }
}

void reference_index_clear(struct reference_index *dull, uint32_t slot)
{
    while (dull->slots[slot].first_member != no_member) {
        drop_member(dull, slot, dull->slots[slot].first_member);
    }
}

/* ---- Queries ---- */

uint32_t reference_index_depth(
    const struct reference_index *dull, uint32_t slot, const kvb_tokens_hash *query, size_t count)
{
    uint32_t place = root_place;
    uint32_t depth = 0;

    for (; depth < count; depth++) {
        place = pairs_get(&dull->by_path, place, query[depth].value);
        if (place == no_place || pairs_get(&dull->held, slot, place) == 0) {
            break;
        }
    }
    return depth;
}

uint32_t reference_index_depth_by_names(
    const struct reference_index *dull, uint32_t slot, const kvb_block_hash *query, size_t count)
{
    uint32_t above = root_place;
    uint32_t depth = 0;

    for (; depth < count; depth++) {
        const uint32_t member = pairs_get(&dull->by_name, slot, query[depth].value);
        if (member == no_member || dull->places[dull->members[member].place].above != above) {
            break;
        }
        above = dull->members[member].place;
    }
    return depth;
}

const struct kvb_index_counters *reference_index_counters(const struct reference_index *dull)
{
    return &dull->counters;
}

size_t reference_index_blocks(const struct reference_index *dull, uint32_t slot)
{
    return dull->slots[slot].blocks;
}

uint64_t reference_name_sum(kvb_block_hash name)
{
    return mix(name.value + 1);
}

uint64_t reference_index_names_sum(const struct reference_index *dull, uint32_t slot)
{
    uint64_t sum = 0;

    for (uint32_t m = dull->slots[slot].first_member; m != no_member; m = dull->members[m].next) {
        sum += reference_name_sum((kvb_block_hash){ dull->members[m].name });
    }
    return sum;
}

uint32_t
reference_index_path_length(const struct reference_index *dull, uint32_t slot, kvb_block_hash name)
{
    const uint32_t member = pairs_get(&dull->by_name, slot, name.value);
    return member != no_member ? dull->places[dull->members[member].place].depth : 0;
}

size_t reference_index_path(
    const struct reference_index *dull, uint32_t slot, uint32_t back, kvb_tokens_hash *out_tokens,
    size_t max)
{
    uint32_t member = dull->slots[slot].first_member;

    if (member == no_member) {
        return 0;
    }
    while (back-- > 0 && dull->members[member].next != no_member) {
        member = dull->members[member].next;
    }
    uint32_t place = dull->members[member].place;
    const size_t len = dull->places[place].depth;
    for (size_t i = len; i-- > 0; place = dull->places[place].above) {
        if (i < max) {
            out_tokens[i].value = dull->places[place].key;
        }
    }
    return len < max ? len : max;
}
