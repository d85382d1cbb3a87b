#include "core/id_table.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* Clearing a table frees it when it has less than one id per sparse_cells cells. */
enum { first_cells = 64, sparse_cells = 16 };

void kvb_id_table_done(struct kvb_id_table *table)
{
    free(table->cells);
    *table = (struct kvb_id_table){ 0 };
}

static void set_all_free(struct kvb_id_cell *cells, size_t count)
{
    memset(cells, 0xff, count * sizeof *cells); /* every id is KVB_NO_ID */
}

void kvb_id_table_clear(struct kvb_id_table *table)
{
    if (!table->cells) {
        return;
    }
    const size_t cells = table->mask + 1;
    /* A large table with few ids costs more to clear than to fill again. */
    if (cells > first_cells && table->count < cells / sparse_cells) {
        kvb_id_table_done(table);
    } else if (table->count > 0) {
        set_all_free(table->cells, cells);
    }
    table->count = 0;
}

/* Terminates because a quarter of the cells is free. */
static void put_in_free_cell(struct kvb_id_table *table, uint32_t hash, uint32_t id)
{
    size_t i = hash & table->mask;

    while (table->cells[i].id != KVB_NO_ID) {
        i = (i + 1) & table->mask;
    }
    table->cells[i] = (struct kvb_id_cell){ .hash = hash, .id = id };
}

/* Returns a free cell.  A walk from there visits each probe sequence as a whole. */
static size_t free_cell(const struct kvb_id_table *table)
{
    size_t i = 0;

    while (table->cells[i].id != KVB_NO_ID) {
        i++;
    }
    return i;
}

static kvb_status grow_id_table(struct kvb_id_table *table)
{
    const size_t old_cells = table->cells ? table->mask + 1 : 0;
    const size_t cells = old_cells ? old_cells * 2 : first_cells;
    struct kvb_id_table bigger = { .mask = cells - 1, .count = table->count };

    bigger.cells = malloc(cells * sizeof *bigger.cells);
    if (!bigger.cells) {
        return KVB_NO_MEMORY;
    }
    set_all_free(bigger.cells, cells);
    /* Cells keep their order within a probe sequence, which may wrap at the end. */
    const size_t first = old_cells ? free_cell(table) : 0;
    for (size_t i = 0; i < old_cells; i++) {
        const struct kvb_id_cell *cell = &table->cells[(first + i) & table->mask];
        if (cell->id != KVB_NO_ID) {
            put_in_free_cell(&bigger, cell->hash, cell->id);
        }
    }
    free(table->cells);
    *table = bigger;
    return KVB_OK;
}

kvb_status kvb_id_table_put(struct kvb_id_table *table, uint32_t hash, uint32_t id)
{
    /* Three quarters full at most, so that a search soon meets a free cell. */
    if (!table->cells || (table->count + 1) * 4 > (table->mask + 1) * 3) {
        KVB_TRY(grow_id_table(table));
    }
    put_in_free_cell(table, hash, id);
    table->count++;
    return KVB_OK;
}

size_t kvb_id_table_start(const struct kvb_id_table *table, uint32_t hash)
{
    return hash & table->mask;
}

uint32_t kvb_id_table_next(const struct kvb_id_table *table, uint32_t hash, size_t *at)
{
    if (!table->cells) {
        return KVB_NO_ID;
    }
    for (;;) {
        const struct kvb_id_cell cell = table->cells[*at];
        if (cell.id == KVB_NO_ID) {
            return KVB_NO_ID;
        }
        *at = (*at + 1) & table->mask;
        /* Equal hashes may still be of different things: the caller compares. */
        if (cell.hash == hash) {
            return cell.id;
        }
    }
}

static size_t id_cell(const struct kvb_id_table *table, uint32_t hash, uint32_t id)
{
    size_t i = hash & table->mask;

    while (table->cells[i].id != id || table->cells[i].hash != hash) {
        assert(table->cells[i].id != KVB_NO_ID);
        i = (i + 1) & table->mask;
    }
    return i;
}

void kvb_id_table_remove(struct kvb_id_table *table, uint32_t hash, uint32_t id)
{
    size_t hole = id_cell(table, hash, id);

    /* Backward-shift deletion: each later cell of the run moves back into the hole, unless the hole
     * is before its home. */
    for (size_t i = (hole + 1) & table->mask; table->cells[i].id != KVB_NO_ID;
         i = (i + 1) & table->mask) {
        const size_t from_home = (i - table->cells[i].hash) & table->mask;
        const size_t from_hole = (i - hole) & table->mask;
        if (from_home >= from_hole) {
            table->cells[hole] = table->cells[i];
            hole = i;
        }
    }
    table->cells[hole].id = KVB_NO_ID;
    table->count--;
}
