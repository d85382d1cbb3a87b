#pragma once

#include "core/ref.h"
#include "core/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* A corpus: queries, Stored and Removed events of a fleet, in the order in which
 * they happened, so that every contender replays the same bytes.
 *
 * All little-endian, all in words of 8 bytes:
 *
 *     header   "KVBCORP1" | u32 workers, u32 0 | u64 records | u64 block operations | 32 x 0
 *     record   u32 kind (bits 0-1) and has_parent (bit 8), u32 worker | u64 count | u64 parent
 *              query:  count x tokens hash
 *              store:  count x block hash, then count x tokens hash
 *              remove: count x block hash
 *     record ...
 *
 * A block operation is one hash of a query, a Stored or a Removed: a block stored counts
 * once.  All workers have the same names for equal blocks.
 *
 * Threads: the caller locks.
 * Memory:  the whole file, in huge pages where there are any: a page fault or a page walk
 *          while it is replayed would be measured too. */
enum bench_kind { bench_query, bench_store, bench_remove, bench_kind_count };

struct bench_corpus {
    uint32_t workers;
    uint64_t records;
    uint64_t block_operations;
    const uint64_t *begin; /* of the first record */
    const uint64_t *end;
    void *memory; /* owned */
    size_t memory_bytes;
};

/* Reads and checks the whole file; an error in it ends the program. */
struct bench_corpus bench_corpus_load(const char *path);
void bench_corpus_done(struct bench_corpus *corpus);

/* The content of a record; arrays are borrowed from the corpus. */
struct bench_record {
    enum bench_kind kind;
    bool has_parent;
    uint32_t worker;
    size_t count;
    kvb_block_hash parent;
    const kvb_block_hash *blocks;  /* store, remove */
    const kvb_tokens_hash *tokens; /* query, store */
};

/* at: the begin of a record, not the end of the corpus. Returns the begin of the next one. */
const uint64_t *bench_corpus_next(const uint64_t *at, struct bench_record *out_record);

/* ---- Writing ---- */

struct bench_corpus_writer {
    FILE *file; /* owned */
    const char *path;
    uint32_t workers;
    uint64_t records;
    uint64_t block_operations;
};

/* Each ends the program where the disk is full or the like. */
void bench_corpus_open(struct bench_corpus_writer *writer, const char *path, uint32_t workers);
void bench_corpus_write(struct bench_corpus_writer *writer, const struct bench_record *record);
void bench_corpus_close(struct bench_corpus_writer *writer);
