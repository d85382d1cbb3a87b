#pragma once

#include "core/id_table.h"
#include "core/status.h"
#include "model/stream.h"

#include <stddef.h>
#include <stdint.h>

/* Gives every stream a small number, so that the caller can keep its data in arrays.
 *
 *     id  --hash-->  numbers [ 2 | free | 0 | free ... ]
 *                              |          |
 *     entries  [ 0: id ][ 1: free ][ 2: id ] ...           number = position
 *
 * A stream keeps its number until it is removed; then another stream may get the number.
 *
 * Threads: the caller locks.
 * Memory:  168 bytes a stream and 11 to 22 for its number; never shrinks. */
struct kvb_stream_entry {
    struct kvb_stream_id id;
    uint32_t next_free; /* number + 1 of the next free entry; 0 ends the list */
    uint32_t hash;
    bool is_used;
};

struct kvb_stream_table {
    struct kvb_stream_entry *entries; /* owned */
    size_t limit;                     /* numbers assigned so far: 0 .. limit - 1 */
    size_t capacity;
    size_t count; /* in use */
    size_t max_streams;
    struct kvb_id_table numbers; /* owned */
    uint32_t first_free;
    uint64_t hash_key;
};

/* Allocates nothing.  max_streams is limited to kvb_max_streams.  hash_key must be random and
 * secret if untrusted peers choose the names of streams. */
void kvb_stream_table_init(struct kvb_stream_table *table, size_t max_streams, uint64_t hash_key);
void kvb_stream_table_done(struct kvb_stream_table *table);

/* KVB_NOT_FOUND: the stream is not in the table, which is not an error. */
kvb_status kvb_stream_table_find(
    const struct kvb_stream_table *table, const struct kvb_stream_id *id, uint32_t *out_number);

/* An id with its hash, so that a stream is hashed once for lookups in several tables with the same
 * hash_key. */
struct kvb_stream_key {
    const struct kvb_stream_id *id; /* borrowed */
    uint64_t hash_key;
    uint32_t hash; /* under hash_key */
};

struct kvb_stream_key kvb_stream_key_of(const struct kvb_stream_id *id, uint64_t hash_key);

/* The number must be in use.  Borrowed until the next add. */
struct kvb_stream_key kvb_stream_table_key(const struct kvb_stream_table *table, uint32_t number);

/* As kvb_stream_table_find().  If the key has another hash_key, its id is hashed again. */
kvb_status kvb_stream_table_find_key(
    const struct kvb_stream_table *table, const struct kvb_stream_key *key, uint32_t *out_number);

/* Finds the stream, or adds it.  KVB_TOO_LARGE: the table has max_streams.  KVB_NO_MEMORY.
 * Nothing changed on failure. */
kvb_status kvb_stream_table_add(
    struct kvb_stream_table *table, const struct kvb_stream_id *id, uint32_t *out_number);

/* The number must be in use. */
void kvb_stream_table_remove(struct kvb_stream_table *table, uint32_t number);

/* NULL when the number is not in use.  Borrowed until the next add. */
const struct kvb_stream_id *
kvb_stream_table_id(const struct kvb_stream_table *table, uint32_t number);
