#pragma once

#include "model/router_batch.h"
#include "model/stream.h"

#include <stdint.h>

struct kvb_aggregator;
struct kvb_heartbeat;

/* Streams whose engines deliver less than the lists promise: the verdicts of load/audit.h, carried
 * over to the followers.  Threads: the index thread. */

struct kvb_audit_marks {
    uint64_t next_mark_ns; /* when the verdicts are compared with all streams next */
    uint64_t said_short;   /* the audit's block_short, as logged last */
    uint64_t marked;       /* its alarms, returns and doubted streams, as marked last */
};

/* On received messages, before they are applied: removed blocks and emptied lists. */
void kvb_aggregator_audit_events(
    struct kvb_aggregator *aggregator, const struct kvb_router_batch *slice);
void kvb_aggregator_audit_heartbeat(
    struct kvb_aggregator *aggregator, const struct kvb_stream_id *id,
    const struct kvb_heartbeat *heartbeat);

/* Once a tick: marks streams as UNVERIFIED(audit) or no longer, and updates the metrics. */
void kvb_aggregator_update_audit(struct kvb_aggregator *aggregator, uint64_t now_ns);
