#pragma once

#include "bus/bus.h"
#include "core/metric.h"
#include "core/own.h"
#include "daemon/bridge.h"
#include "daemon/bridge_metrics.h"
#include "daemon/event_publisher.h"
#include "daemon/profile_guard.h"
#include "ingest/load_source.h"
#include "ingest/waiter.h"
#include "ingest/zmq_context.h"
#include "ingest/zmq_source.h"
#include "model/bridge_report.h"
#include "model/load.h"
#include "serve/http.h"
#include "stream/stream.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

/* The inside of a running bridge, for the bridge_*.c files alone. */

/* One rank of one worker: its sockets, its stream, its newest load. */
struct bridge_rank {
    uint64_t worker_id;
    uint32_t dp_rank;
    char endpoint[256];
    struct kvb_source *source; /* owned, like the two below */
    struct kvb_stream *stream;
    struct kvb_stream_output output;
    bool is_up;
    bool is_announced;    /* routers were told all, and everything since */
    uint64_t announce_ns; /* not before: the last try failed, or NATS is just back */
    bool is_beat_due;     /* the state changed since the last heartbeat */
    uint64_t next_beat_ns;
    uint64_t applied_ns; /* the newest batch or proof */
    bool has_load;
    uint64_t load_ns;
    uint64_t total_slots; /* of the configuration; 0 = the engine says */
    struct kvb_load load;
};

/* The load socket of one worker; its samples go to ranks first .. first+count-1. */
struct bridge_load {
    struct kvb_load_source *source; /* owned */
    size_t first_rank;              /* in kvb_bridge.ranks */
    size_t rank_count;
};

struct kvb_bridge {
    const struct kvb_bridge_config *config; /* borrowed */
    struct kvb_log *log;                    /* borrowed */
    char bridge_id[kvb_bridge_id_bytes + 1];
    uint64_t started_ns;

    struct kvb_zmq *zmq; /* owned, like all below */
    struct kvb_bus *bus;
    struct kvb_bus_subscription *statuses;
    struct kvb_http *http;
    struct kvb_profile_guard guard;
    struct kvb_event_publisher events;
    char heartbeat_subject[kvb_subject_bytes];
    char load_subject[kvb_subject_bytes];
    char status_subject[kvb_subject_bytes];

    struct bridge_rank *ranks;
    size_t rank_count;
    struct bridge_load *loads;
    size_t load_count;

    /* The ingest thread's own. */
    pthread_t thread;
    bool has_thread;
    int wake_fd; /* eventfd: stop */
    atomic_bool is_stopping;
    struct kvb_event_batch batch; /* decoded into, again and again */
    struct kvb_buf buf;
    struct kvb_waiter *waiter; /* owned */
    size_t next_replay;        /* whose turn it is to ask first */
    uint64_t connects_seen;
    uint64_t next_tick_ns;
    uint64_t next_load_ns;
    uint64_t next_status_ns;
    bool was_allowed;

    /* Read by HTTP threads. */
    _Atomic uint64_t values[kvb_bridge_metric_count];
    struct kvb_metrics metrics;
    pthread_mutex_t text_lock;
    struct kvb_buf state_text;   /* the newest status, under text_lock */
    struct kvb_detail not_ready; /* why not; "" = ready; under text_lock */
};

/* ---- bridge_ranks.c: the ranks of the configuration ---- */
kvb_status kvb_bridge_open_ranks(struct kvb_bridge *bridge, struct kvb_detail *detail);
void kvb_bridge_close_ranks(struct kvb_bridge *bridge);

/* ---- bridge_flow.c: one rank's batches, from socket to NATS ---- */

/* Receives and applies what is there; true when there may be more. */
bool kvb_bridge_take_live(struct kvb_bridge *bridge, struct bridge_rank *rank, uint64_t now_ns);
bool kvb_bridge_take_replies(struct kvb_bridge *bridge, struct bridge_rank *rank, uint64_t now_ns);
void kvb_bridge_tick_rank(struct kvb_bridge *bridge, struct bridge_rank *rank, uint64_t now_ns);
void kvb_bridge_take_loads(struct kvb_bridge *bridge, struct bridge_load *load, uint64_t now_ns);

/* Tells routers all that the rank holds, in a new epoch. */
void kvb_bridge_announce(struct kvb_bridge *bridge, struct bridge_rank *rank, uint64_t now_ns);

/* ---- bridge_report.c: what is said every so often ---- */
void kvb_bridge_beat(struct kvb_bridge *bridge, struct bridge_rank *rank, bool is_bye);
void kvb_bridge_publish_loads(struct kvb_bridge *bridge, uint64_t now_ns);
void kvb_bridge_publish_status(struct kvb_bridge *bridge, uint64_t now_ns);
void kvb_bridge_update_metrics(struct kvb_bridge *bridge);

/* ---- bridge_loop.c: the ingest thread ---- */
void *kvb_bridge_run(void *context);

/* ---- bridge_http.c ---- */
void kvb_bridge_answer(
    void *context, const struct kvb_http_request *request, struct kvb_http_answer *answer);
