#pragma once

#include <stdbool.h>
#include <stdint.h>

/* Signs that a daemon is working, which any thread may read. */
struct kvb_liveness {
    uint64_t turns;    /* iterations of the working thread; grows while the thread works */
    uint64_t streams;  /* streams that the daemon serves or follows */
    uint64_t exact;    /* of these, streams in state EXACT */
    bool is_connected; /* to NATS */
};

/* An iteration takes milliseconds, and the thread never sleeps this long. */
enum { kvb_liveness_stuck_s = 10 };

/* Why a daemon is considered hung; NULL: it is not.  turned_ns: when its working thread began the
 * newest iteration.  Returns a string literal. */
const char *kvb_liveness_cause(uint64_t turned_ns, uint64_t now_ns);
