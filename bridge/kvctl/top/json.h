#pragma once

#include "core/buf.h"
#include "kvctl/top/model.h"

/* `kvctl top --once --json`: the model as one JSON object, and a line end.  Figures
 * that are not known are null.  Rows must have been selected.
 * KVB_TOO_LARGE, KVB_NO_MEMORY */
kvb_status kvctl_top_json(const struct kvctl_top_model *model, struct kvb_buf *out);
