#pragma once

#include "bus/bus.h"
#include "core/metric.h"
#include "serve/service.h"

/* Answers $SRV.PING, $SRV.INFO and $SRV.STATS for one service, asked of all services
 * ($SRV.PING), of its kind ($SRV.PING.name) or of this process ($SRV.PING.name.id).
 * What is asked of others does not reach us: three subscriptions name ours alone.
 *
 *     $SRV.*            --+
 *     $SRV.*.name       --+--> desk: one request at a time --> answer, on nats.c's thread
 *     $SRV.*.name.id    --+               |
 *                                 list() of the daemon: copies what its owner thread
 *                                 has put aside for it, never touches more
 *
 * A flood costs at most kvb_max_service_bytes_a_second of answers (each counts for
 * 4 KiB at least); requests above that are dropped and counted.  The payload of a
 * request means nothing and is not read.  A reply subject below `namespace` is
 * refused: an answer on P.kv_events would stop some routers for good.
 *
 * Threads: any thread for open and close; list() runs on threads of nats.c, one call
 * at a time. */
struct kvb_service_desk;

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

struct kvb_service_desk_options {
    struct kvb_bus *bus;               /* borrowed, like all below */
    const struct kvb_service *service; /* constant while the desk is open */
    /* What to list for INFO and STATS.  It stays as it is until the next call. */
    kvb_status (*list)(void *context, struct kvb_service_endpoints *out_list);
    void *context;
    struct kvb_metrics *metrics;
    size_t first_metric; /* of the block above */
};

/* On KVB_OK the caller owns *out_desk.  KVB_NO_MEMORY, KVB_IO. */
kvb_status kvb_service_desk_open(
    const struct kvb_service_desk_options *options, struct kvb_service_desk **out_desk);

/* No list() runs after it returns.  NULL is fine. */
void kvb_service_desk_close(struct kvb_service_desk *desk);

/* Sets version, id (random) and the time of the start. */
kvb_status kvb_service_identify(struct kvb_service *service);
