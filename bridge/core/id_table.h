#pragma once

#include "core/status.h"

#include <stddef.h>
#include <stdint.h>

/* A hash index.  It finds numbered items by a key that the items themselves store.
 *
 *     cell [ hash | id ][ hash | id ][ free ] ...     open addressing, linear probing
 *
 * The table stores only the key's hash and the id.  The caller compares the key of each candidate.
 * Several ids may share a key.  Backward-shift deletion needs no tombstones.
 *
 * Threads: the caller locks.
 * Memory:  8 bytes per cell.  At most 3/4 of the cells are full; then their number doubles.  Only
 *          clearing a sparse table frees cells. */
struct kvb_id_cell {
    uint32_t hash;
    uint32_t id; /* KVB_NO_ID: free */
};

struct kvb_id_table {
    struct kvb_id_cell *cells; /* owned */
    size_t mask;               /* cells - 1 */
    size_t count;
};

#define KVB_NO_ID UINT32_MAX

/* {0} is an empty table. */
void kvb_id_table_done(struct kvb_id_table *table);

/* Removes all ids.  Frees the cells of a sparse table and keeps those of any other, so the cost is
 * proportional to the number of ids. */
void kvb_id_table_clear(struct kvb_id_table *table);

/* KVB_NO_MEMORY: nothing changed. */
kvb_status kvb_id_table_put(struct kvb_id_table *table, uint32_t hash, uint32_t id);

/* Removes the pair, which must be in the table. */
void kvb_id_table_remove(struct kvb_id_table *table, uint32_t hash, uint32_t id);

/* Walks the candidates for a hash, in the order in which they were put:
 *
 *     size_t at = kvb_id_table_start(table, hash);
 *     for (uint32_t id; (id = kvb_id_table_next(table, hash, &at)) != KVB_NO_ID;) { ... }
 *
 * The table must not change during the walk. */
size_t kvb_id_table_start(const struct kvb_id_table *table, uint32_t hash);
uint32_t kvb_id_table_next(const struct kvb_id_table *table, uint32_t hash, size_t *at);
