#pragma once

#include "core/status.h"

#include <stddef.h>
#include <stdint.h>

/* What the engines of a kvfleet really hold, read from its truth socket
 * (tests/fleet/truth.h); names of blocks are computed from their tokens.
 *
 * Threads: the caller locks.
 * Memory:  8 bytes a block, and the tokens of one prompt a rank. */

enum { kvctl_salt_bytes = 128 + 1 }; /* as long as a query's, with a NUL */

struct kvctl_truth_rank {
    uint64_t worker_id;
    uint32_t dp_rank;
    uint32_t block_size;
    uint64_t *held; /* owned; names, in ascending order, without duplicates */
    size_t held_count;
    uint32_t *prompt; /* owned; the longest prompt whose blocks are all held */
    size_t prompt_tokens;
    char salt[kvctl_salt_bytes]; /* of that prompt; empty: none */
};

struct kvctl_truth {
    struct kvctl_truth_rank *ranks; /* owned */
    size_t count;
    size_t capacity;
    uint64_t held_blocks; /* of all ranks */
    uint64_t requests;    /* started since the fleet started */
    uint64_t hit_tokens;  /* tokens of those requests that were found in the cache */
};

/* Pauses the fleet, waits until all its events are published, and reads the truth.
 * The fleet stays paused.  On KVB_OK the caller ends it with kvctl_truth_done().
 *
 * KVB_IO         no process listens at the path, or the connection broke
 * KVB_BAD_INPUT  the answer is invalid, or the fleet's error, which detail repeats
 * KVB_TOO_LARGE, KVB_NO_MEMORY */
kvb_status
kvctl_truth_read(const char *path, struct kvb_detail *detail, struct kvctl_truth *out_truth);

/* Resumes the fleet.  Errors as above. */
kvb_status kvctl_truth_resume(const char *path, struct kvb_detail *detail);

/* {0} is fine. */
void kvctl_truth_done(struct kvctl_truth *truth);

/* For qsort() of names. */
int kvctl_compare_names(const void *a, const void *b);
