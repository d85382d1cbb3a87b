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
#include "wire/load/engine_message.h"

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
    double timestamp_s;        /* the engine's time stamp on the newest live message */
    uint64_t replies_until_ns; /* no reply is taken after this time; 0: none was asked for */
};

/* Live batches that kvb_bridge_receive() received and that are not applied yet. */
struct bridge_received {
    struct kvb_source_batch batches[kvb_source_run]; /* borrowed from their source */
    size_t count;
    size_t next; /* the next to be applied */
    /* Of that one and the one after it, decoded: even numbers in the first. */
    struct kvb_stream_input inputs[2];
};

/* The poller's numbers: of ranks, loads, descriptors, and readers of republished events. */
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

/* Those that are given out and come back. */
enum bridge_owner_kind {
    bridge_owner_rank,
    bridge_owner_load,
    bridge_owner_readers,
    bridge_owner_kinds
};

/* From the engines' sockets to the steps of their streams.  Only the ingest thread uses it. */
struct bridge_ingest {
    struct kvb_resolver *resolver; /* owned */
    struct kvb_zmq *zmq;           /* owned */
    struct kvb_poller *poller;     /* owned */
    struct kvb_scraper *scraper;   /* owned; NULL: no worker has a metrics page */
    void **owners; /* owned; for each number its rank or load, borrowed; NULL: free */
    size_t maybe_free[bridge_owner_kinds];            /* of each kind: no lower number is free */
    uint64_t page_keys;                               /* keys of pages that were given so far */
    struct kvb_coordinator_update coordinator_update; /* scratch space for decoding */
    struct kvb_event_batch batches[2];                /* scratch space for decoding */
    struct bridge_run run;                            /* the current run */
    struct bridge_received received;
    struct kvb_server server;
    struct kvb_log_backoff files_log;
};

/* ---- kvbridge/ranks.c: numbers of the poller ---- */

/* Gives the owner the lowest free number of this kind.  KVB_TOO_LARGE: all are taken. */
kvb_status kvb_bridge_take_owner(
    struct bridge_ingest *ingest, enum bridge_owner_kind kind, void *whose, size_t *out_owner);
void kvb_bridge_give_back_owner(
    struct bridge_ingest *ingest, enum bridge_owner_kind kind, size_t owner);

/* ---- kvbridge/loop.c ---- */

/* The ingest thread. */
void *kvb_bridge_run(void *context);

/* Publishes that all published blocks of the rank are void, between two turns: the rank is removed,
 * or the bridge stops. */
void kvb_bridge_say_goodbye(struct kvb_bridge *bridge, struct bridge_rank *rank);

/* ---- kvbridge/flow.c: one rank's sockets; see stream/serve.h for the order ---- */

void kvb_bridge_begin_run(struct bridge_ingest *ingest);
void kvb_bridge_end_run(
    struct bridge_ingest *ingest, struct bridge_rank *rank, uint64_t *out_took_ns);

/* Receives some live batches, and keeps them until the run ends; returns how many. */
size_t kvb_bridge_receive(struct kvb_bridge *bridge, struct bridge_rank *rank);
struct kvb_link_report kvb_bridge_read_monitor(struct kvb_bridge *bridge, struct bridge_rank *rank);

/* The next of the received batches, borrowed until the next call; false: there is none. */
bool kvb_bridge_next_batch(
    struct kvb_bridge *bridge, struct bridge_rank *rank, struct kvb_stream_input *out_input);

/* Sets *out_input for KVB_SERVE_BATCH, borrowed until the next call. */
enum kvb_serve_reply kvb_bridge_next_reply(
    struct kvb_bridge *bridge, struct bridge_rank *rank, struct kvb_stream_input *out_input);

/* Publishes events of the rank; they may wait for kvb_event_publisher_send(). */
kvb_status kvb_bridge_publish_events(
    struct kvb_bridge *bridge, struct bridge_rank *rank, const struct kvb_router_batch *events);

void kvb_bridge_tend_link(struct kvb_bridge *bridge, struct bridge_rank *rank, uint64_t now_ns);
