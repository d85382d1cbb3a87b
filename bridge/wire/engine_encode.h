#pragma once

#include "core/buf.h"
#include "core/status.h"
#include "model/event_batch.h"

/* Writes a batch as an engine of some version would: for the simulated fleet.
 *
 *     KVB_DIALECT_VLLM_0_11  arrays of 7: up to medium
 *     KVB_DIALECT_VLLM_0_22  arrays of 12: lora_name, extra_keys, group_idx, kind, window
 *     KVB_DIALECT_VLLM_0_31  maps with "type", nil defaults left out
 *
 * Appends to out; a failure leaves it as it was.  Skipped events are not written;
 * what a dialect has no field for is left out.
 * KVB_TOO_LARGE, KVB_NO_MEMORY  as kvb_buf_append() */
enum kvb_dialect {
    KVB_DIALECT_VLLM_0_11,
    KVB_DIALECT_VLLM_0_22,
    KVB_DIALECT_VLLM_0_31,
    KVB_DIALECT_COUNT
};

/* "vllm-0.11", ...  Never NULL. */
const char *kvb_dialect_name(enum kvb_dialect dialect);

/* KVB_NOT_FOUND when no dialect is called that. */
kvb_status kvb_dialect_find(const char *name, enum kvb_dialect *out_dialect);

kvb_status kvb_engine_batch_encode(
    const struct kvb_event_batch *batch, enum kvb_dialect dialect, struct kvb_buf *out);
