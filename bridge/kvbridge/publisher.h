#pragma once

#include "bus/bus.h"
#include "bus/contract.h"
#include "bus/permissions.h"
#include "core/buf.h"
#include "kvbridge/event_publisher.h"
#include "kvbridge/sync_responder.h"
#include "model/router_batch.h"
#include "stream/serve.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* From streams to NATS.  Only the ingest thread uses it, except for what the bus locks itself. */

struct kvb_bridge;
struct bridge_rank;

struct bridge_publisher {
    struct kvb_bus *bus;                /* owned */
    struct kvb_bus_subscription *syncs; /* owned */
    struct kvb_sync_responder sync;
    struct kvb_event_publisher events;
    struct kvb_subject_names names;
    struct kvb_permissions permissions; /* the permissions that this bridge needs on nats-server */
    uint64_t id;                        /* ours in heartbeats: a hash of the bridge_id */
    char heartbeat_subject[kvb_subject_bytes];
    char heartbeat_json_subject[kvb_subject_bytes];
    char load_subject[kvb_subject_bytes];
    char status_subject[kvb_subject_bytes];
    struct kvb_buf buf;    /* scratch space for encoding */
    struct kvb_buf status; /* the newest status */
    size_t page_end; /* the first stream of the next status, if a status needs several messages */
    uint64_t next_load_ns;
    uint64_t load_until_ns; /* no figure of any rank is fresh after it */
    uint64_t next_status_ns;
    bool was_allowed;
};

/* ---- kvbridge/report.c: periodic messages ---- */

kvb_status kvb_bridge_beat(struct kvb_bridge *bridge, struct bridge_rank *rank, bool is_bye);
void kvb_bridge_publish_loads(struct kvb_bridge *bridge, uint64_t now_ns);
void kvb_bridge_publish_status(struct kvb_bridge *bridge, uint64_t now_ns);
