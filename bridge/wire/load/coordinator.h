#pragma once

#include "core/limits.h"
#include "core/span.h"
#include "core/status.h"
#include "model/load.h"

#include <stddef.h>

/* The message that vLLM's data-parallel coordinator sends to its front ends every 100 ms:
 *
 *     [[[waiting, running, kv_usage], ...], wave, is_running]     one entry for each rank, from 0
 *     [[[waiting, running], ...], wave, is_running]               before 0.32
 *     [nil, wave, is_running]                                     no entries
 *
 * An entry or a value may also be nil, which means unknown.  The number of entries changes when
 * ranks are added or removed.  Source: vllm/v1/engine/coordinator.py. */
struct kvb_coordinator_update {
    struct kvb_load_sample samples[kvb_max_ranks]; /* one for each rank with an entry */
    size_t count;
    bool has_ranks;      /* else the message has no entries */
    uint32_t rank_count; /* the ranks are 0 .. rank_count - 1 */
    size_t refused;      /* values out of range: NaN, negative, a share above 1 */
};

/* KVB_BAD_INPUT  not such a message, or more bytes after it
 * KVB_TOO_LARGE  nested too deep, above kvb_max_load_payload_bytes or kvb_max_ranks
 * On failure *out_update is undefined, because it is too large to be copied. */
kvb_status kvb_coordinator_decode(kvb_span frame, struct kvb_coordinator_update *out_update);
