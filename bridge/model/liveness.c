#include "model/liveness.h"

#include "core/clock.h"

#include <stddef.h>

const char *kvb_liveness_cause(uint64_t turned_ns, uint64_t now_ns)
{
    return now_ns > turned_ns + kvb_liveness_stuck_s * KVB_NS_PER_S
               ? "the working thread has made no turn for 10 s"
               : NULL;
}
