#pragma once

#include "core/buf.h"
#include "core/status.h"
#include "fleet/dialects/dialect.h"
#include "model/event_batch.h"

/* Writes a batch as an engine with this dialect would.
 *
 * Appends to out, which is unchanged on failure.  Skipped events and data for which the dialect has
 * no field are left out.
 * KVB_TOO_LARGE, KVB_NO_MEMORY  as kvb_buf_append() */
kvb_status kvb_engine_batch_encode(
    const struct kvb_event_batch *batch, enum kvb_dialect dialect, struct kvb_buf *out);
