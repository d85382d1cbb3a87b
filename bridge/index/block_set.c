#include "index/block_set.h"

#include "index/line_table.h"

#include <stdlib.h>

enum { min_cells = 16 };

void kvb_block_set_init(struct kvb_block_set *set, size_t max_blocks, uint64_t key)
{
    *set = (struct kvb_block_set){ .max_blocks = max_blocks, .key = key };
}

void kvb_block_set_clear(struct kvb_block_set *set)
{
    free(set->cells);
    kvb_block_set_init(set, set->max_blocks, set->key);
}

static size_t home_of(const struct kvb_block_set *set, uint64_t hash)
{
    return kvb_line_mix(hash ^ set->key) & (set->cell_count - 1);
}

static size_t next_cell(const struct kvb_block_set *set, size_t cell)
{
    return (cell + 1) & (set->cell_count - 1);
}

/* Its cell, or the free one where it would lie.  The set has cells, and one of them is free. */
static size_t cell_of(const struct kvb_block_set *set, uint64_t hash)
{
    size_t cell = home_of(set, hash);

    while (set->cells[cell] != 0 && set->cells[cell] != hash) {
        cell = next_cell(set, cell);
    }
    return cell;
}

static bool has_room(const struct kvb_block_set *set)
{
    return set->cells && (set->count + 1) * 4 <= set->cell_count * 3;
}

static kvb_status grow(struct kvb_block_set *set)
{
    struct kvb_block_set larger = *set;

    larger.cell_count = set->cells ? set->cell_count * 2 : min_cells;
    larger.cells = calloc(larger.cell_count, sizeof *larger.cells);
    if (!larger.cells) {
        return KVB_NO_MEMORY;
    }
    for (size_t i = 0; i < set->cell_count; i++) {
        if (set->cells[i] != 0) {
            larger.cells[cell_of(&larger, set->cells[i])] = set->cells[i];
        }
    }
    free(set->cells);
    *set = larger;
    return KVB_OK;
}

bool kvb_block_set_has(const struct kvb_block_set *set, kvb_block_hash block)
{
    if (block.value == 0 || !set->cells) {
        return block.value == 0 && set->has_zero;
    }
    return set->cells[cell_of(set, block.value)] == block.value;
}

kvb_status kvb_block_set_add(struct kvb_block_set *set, kvb_block_hash block, bool *out_is_new)
{
    const bool is_new = !kvb_block_set_has(set, block);

    if (is_new) {
        if (set->count >= set->max_blocks) {
            return KVB_TOO_LARGE;
        }
        if (!has_room(set)) {
            KVB_TRY(grow(set));
        }
        if (block.value == 0) {
            set->has_zero = true;
        } else {
            set->cells[cell_of(set, block.value)] = block.value;
        }
        set->count++;
    }
    if (out_is_new) {
        *out_is_new = is_new;
    }
    return KVB_OK;
}

/* Later cells of the run move back, unless that would put one before its home:
 *
 *     home 2: [ a ]  home 2: [ b ]  home 4: [ c ]     a goes:  [ b ][ 0 ][ c ]     */
static void close_gap(struct kvb_block_set *set, size_t gap)
{
    const size_t mask = set->cell_count - 1;

    for (size_t at = next_cell(set, gap); set->cells[at] != 0; at = next_cell(set, at)) {
        const size_t from_home = (at - home_of(set, set->cells[at])) & mask;
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
        close_gap(set, cell_of(set, block.value));
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

size_t kvb_block_set_bytes(const struct kvb_block_set *set)
{
    return set->cell_count * sizeof *set->cells;
}
