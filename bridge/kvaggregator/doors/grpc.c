#include "core/clock.h"
#include "grpc/server.h"
#include "kvaggregator/config.h"
#include "kvaggregator/doors/doors.h"
#include "kvaggregator/group.h"
#include "kvaggregator/parts.h"
#include "kvaggregator/pending.h"
#include "kvaggregator/queries.h"
#include "wire/query/indexer.h"

#include <string.h>

/* Calls of sgl-routers over gRPC. */

enum kvb_grpc_status
kvb_door_receive_grpc(void *context, struct kvb_grpc_call *call, size_t method, kvb_span message)
{
    struct kvb_aggregator *aggregator = context;
    const char *model = aggregator->config->grpc.model;
    struct kvb_detail why;

    (void)method; /* there is one */
    /* These answers have no states that could say what is missing.  To UNAVAILABLE sgl-router does
     * not fail its user's request, but routes without us. */
    if (kvb_aggregator_not_ready(aggregator, &why)) {
        return KVB_GRPC_UNAVAILABLE;
    }
    struct kvb_pending_query here = { .aggregator = aggregator,
                                      .door = KVB_DOOR_GRPC,
                                      .received_ns = kvb_clock_monotonic_ns(),
                                      .call = call };
    const kvb_status status = kvb_indexer_request_decode(message, &here.query, NULL);
    if (status == KVB_NO_MEMORY || status == KVB_TOO_LARGE) {
        kvb_pending_settle(&here, KVB_END_NO_MEMORY);
    } else if (status != KVB_OK) {
        kvb_pending_fail(&here);
        kvb_pending_settle(&here, KVB_END_SENT);
    } else {
        here.query.has_model = model[0] != '\0';
        memcpy(here.query.model, model, sizeof here.query.model);
        (void)kvb_queries_submit(&here); /* queued or not: it is not ours any more */
    }
    return KVB_GRPC_LATER;
}
