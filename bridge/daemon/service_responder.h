#pragma once

#include "bus/bus.h"
#include "core/metric.h"
#include "daemon/service.h"

/* Answers $SRV.PING, $SRV.INFO and $SRV.STATS for one service, whether the request goes to
 * all services ($SRV.PING), to its kind ($SRV.PING.name) or to this process
 * ($SRV.PING.name.id).  Three subscriptions match these subjects only.
 *
 *     $SRV.*            --+
 *     $SRV.*.name       --+--> responder: one request at a time --> answer, on nats.c's thread
 *     $SRV.*.name.id    --+               |
 *                                 list() of the daemon: reads only the values that its
 *                                 owner thread has published for it
 *
 * A flood of requests causes at most kvb_max_service_bytes_a_second of answers (each counts
 * for at least 4 KiB); further requests are dropped and counted.  The payload of a request
 * has no meaning and is not read.  A reply subject below `namespace` is refused: an answer
 * on P.kv_events would stop some routers for good.
 *
 * Threads: any thread for open and close; list() runs on threads of nats.c, one call
 * at a time. */
struct kvb_service_responder;

/* Rows for a daemon's table of metrics; one block, in this order. */
/* clang-format off */
#define KVB_SERVICE_METRICS(X) \
    X(service_ping, COUNTER, "kvb_service_requests_total", "verb=\"ping\"", "Requests of the NATS micro-service protocol answered, by verb") \
    X(service_info, COUNTER, "kvb_service_requests_total", "verb=\"info\"", "Requests of the NATS micro-service protocol answered, by verb") \
    X(service_stats, COUNTER, "kvb_service_requests_total", "verb=\"stats\"", "Requests of the NATS micro-service protocol answered, by verb") \
    X(service_mute, COUNTER, "kvb_service_refused_total", "reason=\"no_reply\"", "Requests of the NATS micro-service protocol not answered, by reason") \
    X(service_bad_reply, COUNTER, "kvb_service_refused_total", "reason=\"bad_reply\"", "Requests of the NATS micro-service protocol not answered, by reason") \
    X(service_unknown, COUNTER, "kvb_service_refused_total", "reason=\"unknown_verb\"", "Requests of the NATS micro-service protocol not answered, by reason") \
    X(service_busy, COUNTER, "kvb_service_refused_total", "reason=\"busy\"", "Requests of the NATS micro-service protocol not answered, by reason") \
    X(service_failed, COUNTER, "kvb_service_refused_total", "reason=\"failed\"", "Requests of the NATS micro-service protocol not answered, by reason")
/* clang-format on */

struct kvb_service_responder_options {
    struct kvb_bus *bus;               /* borrowed, like all below */
    const struct kvb_service *service; /* constant while the responder is open */
    /* The endpoints for INFO and STATS; the list is constant until the next call. */

    kvb_status (*list)(void *context, struct kvb_service_endpoints *out_list);
    void *context;
    struct kvb_metrics *metrics;
    size_t first_metric; /* of the block above */
};

/* On KVB_OK the caller owns *out_responder.  KVB_NO_MEMORY, KVB_IO. */
kvb_status kvb_service_responder_open(
    const struct kvb_service_responder_options *options,
    struct kvb_service_responder **out_responder);

/* No list() runs after it returns.  NULL is fine. */
void kvb_service_responder_close(struct kvb_service_responder *responder);

/* Sets version, id (random) and the time of the start. */
kvb_status kvb_service_identify(struct kvb_service *service);
