#pragma once

#include "core/limits.h"
#include "core/span.h"
#include "core/status.h"
#include "model/load.h"

#include <stddef.h>

/* What vLLM's data-parallel coordinator tells its front ends, every 100 ms:
 *
 *     [[[waiting, running, kv_usage], ...], wave, is_running]     one entry a rank, from 0
 *     [[[waiting, running], ...], wave, is_running]               before 0.32
 *     [nil, wave, is_running]                                     no news of the ranks
 *
 * Entries and counts may be nil too: that rank, or that figure, is not told.  The number
 * of entries changes when ranks are added or taken away.
 * Source: vllm/v1/engine/coordinator.py. */
struct kvb_coordinator_news {
    struct kvb_load_sample samples[kvb_max_ranks]; /* of the ranks that are told of */
    size_t count;
    bool has_ranks;      /* else: no news of them */
    uint32_t rank_count; /* there are ranks 0 .. rank_count - 1, and no others */
    size_t refused;      /* figures that cannot be: NaN, negative, a share above 1 */
};

/* KVB_BAD_INPUT  something else, or bytes after it
 * KVB_TOO_LARGE  nested too deep, above kvb_max_load_payload_bytes or kvb_max_ranks
 * On failure what *out_news holds is undefined: it is too large to be written twice. */
kvb_status kvb_coordinator_decode(kvb_span frame, struct kvb_coordinator_news *out_news);
