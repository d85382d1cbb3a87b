#pragma once

#include "core/id_table.h"
#include "core/status.h"
#include "kvbridge/worker_spec.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The parts of workers that run: each has a number, and is found by whichever of its keys a caller
 * has.
 *
 *     number   part      source   found by
 *     0        7/0       file     (7, 0), worker 7, tcp://h:5557
 *     1        7/1       file     (7, 1), worker 7, tcp://h:5558
 *     2        7 load    file     (7, load)
 *
 * Threads: the caller locks.
 * Memory:  40 bytes for each number, and three hash indexes. */
struct kvb_running {
    struct kvb_part *part; /* a reference; NULL: the number is free */
    void *owner;           /* what the caller has opened for it; borrowed */
    uint32_t source;       /* whose list has it; a number of the caller */
    uint32_t next_free;    /* of a free number: the next one; KVB_NO_ID: it is the last */
    uint64_t round;        /* scratch space of kvbridge/reconcile.c */
    bool is_draining;      /* takes no new requests */
};

struct kvb_part_table {
    struct kvb_running *slots; /* owned; by number */
    size_t slot_count;         /* numbers below it are in use or free */
    size_t capacity;
    size_t count;       /* in use */
    uint32_t next_free; /* the first free number below slot_count, if count is less */
    /* Sums over the parts in use. */
    size_t ranks;
    size_t republished_ranks;
    size_t load_sources;
    uint64_t round;
    struct kvb_id_table by_key;     /* kind, id, rank */
    struct kvb_id_table by_worker;  /* ranks by worker id */
    struct kvb_id_table by_address; /* ranks by the socket that they read */
};

/* {0} is an empty table. */
void kvb_part_table_done(struct kvb_part_table *table);

/* KVB_NO_MEMORY: nothing has changed. */
kvb_status kvb_part_table_put(
    struct kvb_part_table *table, struct kvb_part *part, uint32_t source, void *owner,
    uint32_t *out_number);

/* The number must be in use. */
void kvb_part_table_remove(struct kvb_part_table *table, uint32_t number);

/* The same part with other facts. */
void kvb_part_table_renew(struct kvb_part_table *table, uint32_t number, struct kvb_part *part);

#define KVB_ANY_SOURCE UINT32_MAX /* a macro, because an enum constant must fit an int */

/* KVB_NO_ID: there is none.  Two sources never have one rank, but may have load sources of one id
 * while a rank of theirs is left out. */
uint32_t kvb_part_table_find(
    const struct kvb_part_table *table, enum kvb_part_kind kind, uint64_t id, uint32_t dp_rank,
    uint32_t source);

/* Walks the ranks of a worker:
 *
 *     size_t at = kvb_part_table_start(table, id);
 *     for (uint32_t number; (number = kvb_part_table_next(table, id, &at)) != KVB_NO_ID;) { ... }
 *
 * The table must not change during the walk. */
size_t kvb_part_table_start(const struct kvb_part_table *table, uint64_t worker_id);
uint32_t kvb_part_table_next(const struct kvb_part_table *table, uint64_t worker_id, size_t *at);

/* A rank that reads a socket of this address, of another round than `not_of`.  KVB_NO_ID: none. */
uint32_t
kvb_part_table_find_reader(const struct kvb_part_table *table, const char *events, uint64_t not_of);
