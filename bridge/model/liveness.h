#pragma once

#include <stdbool.h>
#include <stdint.h>

/* Signs that a daemon is working, which any thread may read. */
struct kvb_liveness {
    uint64_t turns;    /* iterations of the working thread; the same value twice: it made none */
    uint64_t streams;  /* served or followed */
    uint64_t exact;    /* of them EXACT */
    bool is_connected; /* to NATS */
};

/* An iteration takes milliseconds, and the thread never sleeps this long. */
enum { kvb_liveness_stuck_s = 10 };

/* Why a daemon is considered hung, by when its working thread began its newest iteration; NULL: it
 * is alive.  Returns a literal. */
const char *kvb_liveness_cause(uint64_t turned_ns, uint64_t now_ns);
