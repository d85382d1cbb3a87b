#pragma once

#include "core/buf.h"
#include "core/status.h"
#include "model/load.h"

/* Appends a ForwardPassMetrics message (wire/load/engine_message.h) with all seven values: in the
 * nested form if the sample has a rank, else in the flat form.
 * KVB_TOO_LARGE, KVB_NO_MEMORY  as kvb_buf_append(); *out is unchanged */
kvb_status kvb_forward_pass_encode(const struct kvb_load_sample *sample, struct kvb_buf *out);
