#include "index/block_set.h"

#include <stdlib.h>

enum { min_cells = 16 };

void kvb_block_set_init(struct kvb_block_set *set, size_t max_blocks, uint64_t key)
{
    *set = (struct kvb_block_set){ .max_blocks = max_blocks, .key = kvb_hash_key_of(key) };
}

void kvb_block_set_clear(struct kvb_block_set *set)
{
    free(set->cells);
    *set = (struct kvb_block_set){ .max_blocks = set->max_blocks, .key = set->key };
}

static size_t home_cell(const struct kvb_block_set *set, uint64_t hash)
{
    return kvb_hash_keyed(&set->key, hash, 0) & (set->cell_count - 1);
}

static size_t next_cell(const struct kvb_block_set *set, size_t cell)
{
    return (cell + 1) & (set->cell_count - 1);
}

/* Returns the cell of the hash, or the free cell for it.  The set must have a free cell. */
static size_t block_cell(const struct kvb_block_set *set, uint64_t hash)
{
    size_t cell = home_cell(set, hash);

    while (set->cells[cell] != 0 && set->cells[cell] != hash) {
        cell = next_cell(set, cell);
    }
    return cell;
}

static bool set_has_room(const struct kvb_block_set *set)
{
    return set->cells && (set->count + 1) * 4 <= set->cell_count * 3;
}

static kvb_status grow_block_set(struct kvb_block_set *set)
{
    struct kvb_block_set larger = *set;

    larger.cell_count = set->cells ? set->cell_count * 2 : min_cells;
    larger.cells = calloc(larger.cell_count, sizeof *larger.cells);
    if (!larger.cells) {
        return KVB_NO_MEMORY;
    }
    /* A home depends on the number of cells, so each hash gets a new one. */
    for (size_t i = 0; i < set->cell_count; i++) {
        if (set->cells[i] != 0) {
            larger.cells[block_cell(&larger, set->cells[i])] = set->cells[i];
        }
    }
    free(set->cells);
    *set = larger;
    return KVB_OK;
}

bool kvb_block_set_has(const struct kvb_block_set *set, kvb_block_hash block)
{
    /* 0 marks a free cell, so the hash 0 has a flag of its own. */
    if (block.value == 0 || !set->cells) {
        return block.value == 0 && set->has_zero;
    }
    return set->cells[block_cell(set, block.value)] == block.value;
}

kvb_status kvb_block_set_add(struct kvb_block_set *set, kvb_block_hash block, bool *out_is_new)
{
    const bool is_new = !kvb_block_set_has(set, block);

    if (is_new) {
        if (set->count >= set->max_blocks) {
            return KVB_TOO_LARGE;
        }
        if (!set_has_room(set)) {
            KVB_TRY(grow_block_set(set));
        }
        if (block.value == 0) {
            set->has_zero = true;
        } else {
            set->cells[block_cell(set, block.value)] = block.value;
        }
        set->count++;
    }
    if (out_is_new) {
        *out_is_new = is_new;
    }
    return KVB_OK;
}

/* Backward-shift deletion: each later cell of the run moves back into the gap, unless the gap is
 * before its home.  Here a is removed from cell 2:
 *
 *     cell     2           3           4
 *     before [ a, home 2 ][ b, home 2 ][ c, home 4 ]
 *     after  [ b         ][ 0         ][ c         ] */
static void close_cell_gap(struct kvb_block_set *set, size_t gap)
{
    const size_t mask = set->cell_count - 1;

    for (size_t at = next_cell(set, gap); set->cells[at] != 0; at = next_cell(set, at)) {
        const size_t from_home = (at - home_cell(set, set->cells[at])) & mask;
        if (from_home >= ((at - gap) & mask)) {
            set->cells[gap] = set->cells[at];
            gap = at;
        }
    }
    set->cells[gap] = 0;
}

bool kvb_block_set_remove(struct kvb_block_set *set, kvb_block_hash block)
{
    if (!kvb_block_set_has(set, block)) {
        return false;
    }
    if (block.value == 0) {
        set->has_zero = false;
    } else {
        close_cell_gap(set, block_cell(set, block.value));
    }
    set->count--;
    return true;
}

void kvb_block_set_each(
    const struct kvb_block_set *set, void (*visit)(void *context, kvb_block_hash block),
    void *context)
{
    if (set->has_zero) {
        visit(context, (kvb_block_hash){ 0 });
    }
    for (size_t i = 0; i < set->cell_count; i++) {
        if (set->cells[i] != 0) {
            visit(context, (kvb_block_hash){ set->cells[i] });
        }
    }
}

bool kvb_block_set_page(
    const struct kvb_block_set *set, uint64_t *cell, size_t cells,
    void (*visit)(void *context, kvb_block_hash block), void *context)
{
    /* It has no cell, so it belongs to the first page. */
    if (*cell == 0 && set->has_zero) {
        visit(context, (kvb_block_hash){ 0 });
    }
    for (; *cell < set->cell_count && cells > 0; (*cell)++, cells--) {
        if (set->cells[*cell] != 0) {
            visit(context, (kvb_block_hash){ set->cells[*cell] });
        }
    }
    return *cell < set->cell_count;
}
