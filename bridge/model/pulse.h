#pragma once

#include <stdbool.h>
#include <stdint.h>

/* How a running daemon is, in a few numbers that any thread may read. */
struct kvb_pulse {
    uint64_t turns;    /* of the thread that does the work: equal twice = it made none */
    uint64_t streams;  /* served or followed */
    uint64_t exact;    /* of them EXACT */
    bool is_connected; /* to NATS */
};
