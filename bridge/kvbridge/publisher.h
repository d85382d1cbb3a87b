#pragma once

#include "bus/bus.h"
#include "bus/contract.h"
#include "core/buf.h"
#include "kvbridge/event_publisher.h"
#include "kvbridge/permissions.h"
#include "kvbridge/sync_responder.h"
#include "model/router_batch.h"
#include "stream/serve.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* From streams to NATS.  Only the ingest thread uses it, except for what the bus locks itself. */

struct kvb_bridge;
struct bridge_rank;

/* From streams to NATS.  Only the ingest thread uses it, except for what the bus locks itself. */
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

/* ---- kvbridge/advertise.c: publishing streams ---- */

/* Publishes the events of the last step, if the stream is announced. */
void kvb_bridge_publish_step(struct kvb_bridge *bridge, struct bridge_rank *rank);

/* After the last step of this rank in a turn. */
void kvb_bridge_flush_events(struct kvb_bridge *bridge, struct bridge_rank *rank);

/* Publishes events of the stream that do not come from a step. */
void kvb_bridge_publish_events(
    struct kvb_bridge *bridge, struct bridge_rank *rank, const struct kvb_router_batch *events);

/* Announces, withdraws or republishes the stream as due.  False: the time for that is over in this
 * turn, because the sockets wait meanwhile. */
bool kvb_bridge_advertise_stream(void *context, struct kvb_served *served, uint64_t now_ns);

/* Publishes that all published blocks of the rank are void: the rank is removed, or the bridge
 * stops. */
void kvb_bridge_say_goodbye(struct kvb_bridge *bridge, struct bridge_rank *rank, uint64_t now_ns);

/* ---- kvbridge/report.c: periodic messages ---- */

void kvb_bridge_beat(struct kvb_bridge *bridge, struct bridge_rank *rank, bool is_bye);
void kvb_bridge_publish_loads(struct kvb_bridge *bridge, uint64_t now_ns);
void kvb_bridge_publish_status(struct kvb_bridge *bridge, uint64_t now_ns);
