#pragma once

#include "core/limits.h"

#include <stddef.h>
#include <stdint.h>

/* The sockets on which an engine publishes the events of one rank, as it reports them. */

enum { kvb_event_source_address_bytes = 256, kvb_event_source_topic_bytes = 128 };

struct kvb_event_source {
    uint32_t dp_rank;
    char endpoint[kvb_event_source_address_bytes];
    char replay_endpoint[kvb_event_source_address_bytes]; /* "": it has none */
    char topic[kvb_event_source_topic_bytes];
    uint64_t buffer_steps; /* batches that it can replay; 0: not given */
};

/* Sorted by rank, each once. */
struct kvb_event_sources {
    struct kvb_event_source sources[kvb_max_ranks];
    size_t count;
};
