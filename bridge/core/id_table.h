#pragma once

#include "core/status.h"

#include <stddef.h>
#include <stdint.h>

/* A hash index: finds numbered items by a key that is stored in the items themselves.
 *
 *     cell [ hash | id ][ hash | id ][ free ] ...     open addressing, linear probing
 *
 * The table stores only the key's hash and the id; the caller compares the key of each
 * candidate.  Several ids may share a key.  Deletion shifts later cells of the run back, without
 * tombstones.
 *
 * Threads: the caller locks.
 * Memory:  8 bytes a cell, at most 3/4 full, doubling, never shrinking. */
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

/* Removes all ids.  Keeps the memory unless the table was sparse, so the cost is proportional to
 * the number of ids, not to the table's size. */
void kvb_id_table_clear(struct kvb_id_table *table);

/* KVB_NO_MEMORY: nothing changed. */
kvb_status kvb_id_table_put(struct kvb_id_table *table, uint32_t hash, uint32_t id);

/* The pair must be there. */
void kvb_id_table_remove(struct kvb_id_table *table, uint32_t hash, uint32_t id);

/* Walks the candidates of a hash:
 *
 *     size_t at = kvb_id_table_start(table, hash);
 *     for (uint32_t id; (id = kvb_id_table_next(table, hash, &at)) != KVB_NO_ID;) { ... }
 *
 * in the order in which they were put.  The table must not change meanwhile. */
size_t kvb_id_table_start(const struct kvb_id_table *table, uint32_t hash);
uint32_t kvb_id_table_next(const struct kvb_id_table *table, uint32_t hash, size_t *at);
