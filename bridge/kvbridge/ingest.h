#pragma once

#include "core/limits.h"
#include "core/log.h"
#include "ingest/dns/resolver.h"
#include "ingest/http/scraper.h"
#include "ingest/zmq/context.h"
#include "ingest/zmq/poller.h"
#include "ingest/zmq/source.h"
#include "kvbridge/rank.h"
#include "model/event_batch.h"
#include "model/load.h"
#include "stream/serve.h"
#include "wire/load/coordinator.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The ingest thread: the sockets of engines, and the steps of their streams. */

struct kvb_bridge;

/* A run of messages of one engine, or the other work of a turn on its rank. */
struct bridge_run {
    uint64_t began_ns;
    uint64_t wall_us;                            /* the wall clock at its beginning */
    uint64_t events;                             /* so far */
    uint64_t live_events[KVB_EVENT_SKIPPED + 1]; /* live events of the run, by kind */
    uint64_t unreadable;                         /* undecodable messages */
    bool has_live;
    double timestamp_s; /* the engine's time stamp on the newest live message */
};

/* Live batches that kvb_bridge_receive() received and that are not applied yet. */
struct bridge_received {
    struct kvb_source_batch batches[kvb_source_run]; /* borrowed from their source */
    size_t count;
};

/* The poller's numbers: ranks take the lowest free one, then loads, then descriptors. */
enum {
    kvb_first_load_owner = kvb_max_streams,
    kvb_first_fd_owner = kvb_first_load_owner + kvb_max_workers,
    kvb_stop_owner = kvb_first_fd_owner, /* stop and commands */
    kvb_sync_owner,                      /* requests of aggregators */
    kvb_refresh_owner,                   /* requests of routers that started late */
    kvb_pages_owner,                     /* metrics pages */
    kvb_first_republish_owner,           /* readers of republished events */
    kvb_bridge_owners = kvb_first_republish_owner + kvb_max_republished_ranks
};

/* From the engines' sockets to the steps of their streams.  Only the ingest thread uses it. */
struct bridge_ingest {
    struct kvb_resolver *resolver; /* owned; the next four too */
    struct kvb_zmq *zmq;
    struct kvb_poller *poller;
    struct kvb_scraper *scraper; /* NULL: no worker has a metrics page */
    void **owners;               /* for each number its rank or load, borrowed; NULL: free */
    uint64_t page_keys;          /* keys of pages that were given so far */
    struct kvb_coordinator_update coordinator_update; /* scratch space for decoding; the next too */
    struct kvb_event_batch batches[2];
    struct bridge_run run; /* the current run */
    struct bridge_received received;
    uint64_t replies_until_ns;      /* deadline for the replies of a rank in this turn ... */
    bool has_reply;                 /* ... which takes at least one reply */
    struct bridge_rank *first_busy; /* queue of ranks with a slice to apply; NULL: none */
    struct bridge_rank *last_busy;
    struct kvb_server server;
    struct kvb_log_backoff files_log;
};

/* ---- kvbridge/loop.c ---- */

/* The functions that stream/serve.h calls; their context is the bridge. */
extern const struct kvb_serve_world kvb_bridge_world;

/* The ingest thread. */
void *kvb_bridge_run(void *context);

/* ---- kvbridge/flow.c: one rank's batches, from socket to NATS ---- */

/* Receives and applies some live batches. */
void kvb_bridge_take_live(struct kvb_bridge *bridge, struct bridge_rank *rank, uint64_t now_ns);
void kvb_bridge_take_replies(struct kvb_bridge *bridge, struct bridge_rank *rank, uint64_t now_ns);
void kvb_bridge_tick_rank(struct kvb_bridge *bridge, struct bridge_rank *rank, uint64_t now_ns);

/* Removes the rank from the queue of ranks with slices left. */
void kvb_bridge_drop_work(struct bridge_ingest *ingest, struct bridge_rank *rank);

/* The functions of kvb_serve_world for flow.c. */
size_t kvb_bridge_receive(void *context, struct kvb_served *served);
void kvb_bridge_apply_received(void *context, struct kvb_served *served, uint64_t now_ns);
void kvb_bridge_pass_over_received(void *context, struct kvb_served *served);
struct kvb_connection_update kvb_bridge_read_monitor(void *context, struct kvb_served *served);
enum kvb_serve_reply
kvb_bridge_take_reply(void *context, struct kvb_served *served, uint64_t now_ns);
void kvb_bridge_stop_replay(void *context, struct kvb_served *served);
void kvb_bridge_publish_output(void *context, struct kvb_served *served);
void kvb_bridge_connection_changed(void *context, struct kvb_served *served, bool is_up);
void kvb_bridge_share_changed(
    void *context, struct kvb_served *served, enum kvb_turn_verdict verdict);
bool kvb_bridge_work_slices(void *context, uint64_t now_ns);
