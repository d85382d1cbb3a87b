#pragma once

#include "kvctl/kvctl.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A copy of everything that an aggregator lists, for `verify`.
 *
 * Threads: the caller locks.
 * Memory:  8 bytes a block. */

/* One stream. */
struct kvctl_listed {
    uint64_t worker_id;
    uint32_t dp_rank;
    bool is_exact;
    uint64_t doubtful;
    uint64_t *names; /* owned; of its blocks, in no order */
    size_t count;
    size_t capacity;
};

struct kvctl_picture {
    struct kvctl_listed *streams; /* owned */
    size_t count;
    size_t capacity;
};

/* Reads kv_get.streams and kv_get.dump, page by page.  *picture is {0} before; the caller
 * ends it with kvctl_picture_done(), also after a failure, which is printed on stderr. */
enum kvctl_exit kvctl_picture_read(const struct kvctl_line *line, struct kvctl_picture *picture);

void kvctl_picture_done(struct kvctl_picture *picture);

/* NULL when no such stream is listed. */
struct kvctl_listed *
kvctl_picture_find(const struct kvctl_picture *picture, uint64_t worker_id, uint32_t dp_rank);
