#pragma once

#include "core/buf.h"
#include "core/status.h"
#include "fleet/engine.h"

/* The truth of one rank as one line of JSON, with a newline at its end:
 *
 *     {"worker_id":7,"dp_rank":0,"seq":41,"unsent":0,"block_size":2,"blocks":[
 *      {"tokens":[5,6],"parent":-1,"copies":1},{"tokens":[7,8],"parent":0,"copies":2}]}
 *
 * tokens: the block's own; parent: an earlier position in the list, -1 at the root;
 * copies: physical ones, 0 for an ancestor that is no longer held; seq: the last
 * batch that was numbered, -1 before the first; unsent: events that no batch
 * carries yet.  So a reader computes any hash from the tokens alone.
 *
 * KVB_TOO_LARGE, KVB_NO_MEMORY  as kvb_buf_append(); out holds a part of it */
kvb_status kvb_truth_format(const struct kvb_truth *truth, struct kvb_buf *out);
