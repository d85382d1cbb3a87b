#pragma once

#include "core/buf.h"
#include "core/span.h"
#include "core/status.h"
#include "model/bridge_report.h"

/* The JSON of P.bridge_status and of the bridge's GET /state.
 *
 * decode: KVB_BAD_INPUT  not JSON, or without bridge_id and profile
 * both:   KVB_TOO_LARGE, KVB_NO_MEMORY */
kvb_status kvb_bridge_status_encode(const struct kvb_bridge_report *report, struct kvb_buf *out);
kvb_status kvb_bridge_status_decode(kvb_span json, struct kvb_bridge_identity *out_identity);

typedef void (*kvb_watched_visitor)(void *context, uint64_t worker_id, uint32_t dp_rank);

/* Visits the streams of the status if it is that of a standby whose bridge_id is smaller than
 * ours.  A status too large for NATS lists none.  Errors as of decode. */
kvb_status kvb_bridge_status_watched(
    kvb_span json, const char *bridge_id, kvb_watched_visitor visit, void *context);
