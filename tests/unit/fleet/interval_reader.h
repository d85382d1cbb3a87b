#pragma once

#include "core/ref.h"
#include "fleet/engine/engine.h"
#include "model/event_batch.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A simple reader of one stream: an interval least .. most of physical copies for
 * each hash, in a plain list.
 *
 *     stored   least = max(least, 1), most += 1; a duplicate that names a parent is
 *              a real copy: least += 1
 *     removed  least = max(least - 1, 0), most -= 1; gone at most = 0
 */
enum { kvb_reader_max_entries = 4096 };

struct kvb_reader_entry {
    kvb_engine_hash hash;
    unsigned min;
    unsigned max;
};

struct kvb_reader {
    struct kvb_reader_entry entries[kvb_reader_max_entries];
    size_t count;
    size_t unknown_removals; /* removals of hashes that were not there; 0 if no batch was missed */
};

void kvb_reader_apply(struct kvb_reader *reader, const struct kvb_event_batch *batch);

struct kvb_reader_difference {
    size_t phantoms; /* listed, not held */
    size_t misses;   /* held, not listed */
    size_t doubtful; /* least = 0 */
    size_t inexact;  /* listed with bounds that exclude the true number of copies */
};

struct kvb_reader_difference
kvb_reader_compare(const struct kvb_reader *reader, const struct kvb_truth *truth);
