#pragma once

#include "bus/bus.h"
#include "core/metric.h"
#include "core/own.h"
#include "daemon/bridge.h"
#include "daemon/bridge_config.h"
#include "daemon/bridge_metrics.h"
#include "daemon/event_publisher.h"
#include "daemon/profile_guard.h"
#include "daemon/rank_metrics.h"
#include "daemon/sync_desk.h"
#include "ingest/checkpoint_store.h"
#include "ingest/load_source.h"
#include "ingest/scraper.h"
#include "ingest/waiter.h"
#include "ingest/zmq_context.h"
#include "ingest/zmq_source.h"
#include "load/newest.h"
#include "model/bridge_report.h"
#include "model/load.h"
#include "serve/http.h"
#include "serve/prometheus.h"
#include "stream/stream.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

/* The inside of a running bridge, for the bridge_*.c files alone. */

/* What is known of a rank's checkpoint. */
struct rank_checkpoint {
    struct kvb_checkpoint_name name;
    uint64_t next_ns; /* not before */
    uint64_t seq;     /* the newest batch in it */
    bool is_on_disk;
    kvb_epoch epoch_on_disk;
    bool is_pending; /* made whole, being written */
    kvb_epoch epoch_pending;
};

/* One rank of one worker: its sockets, its stream, its newest load. */
struct bridge_rank {
    uint64_t worker_id;
    uint32_t dp_rank;
    char endpoint[256];
    struct kvb_source *source; /* owned, like the two below */
    struct kvb_stream *stream;
    struct kvb_stream_output output;
    bool is_up;
    bool is_crowded;       /* two engines on its bound socket */
    uint64_t down_ns;      /* since when its engine is away; 0 = it is not */
    bool is_announced;     /* routers were told all, and everything since */
    bool needs_epoch;      /* going on would hide what is lost: ids do not show it */
    bool is_withdrawn;     /* routers were told that it holds nothing */
    bool is_retelling_due; /* a sibling was cleared: some readers know no ranks */
    bool waits_for_proof;  /* restored: the engine may have restarted meanwhile */
    struct rank_checkpoint checkpoint;
    uint64_t announce_ns;  /* not before: the last try failed, or NATS is just back */
    struct kvb_told *told; /* owned; NULL where a clear is told by `cleared` */
    bool is_beat_due;      /* the state changed since the last heartbeat */
    bool is_beat_wanted;   /* an aggregator has just been given what it lacked */
    uint64_t beat_ns;      /* the last heartbeat */
    uint64_t applied_ns;   /* the newest batch or proof */
    enum kvb_tier unknown_medium;
    struct kvb_newest_load load;
    struct kvb_load_fallback known; /* of the configuration */

    /* Read by HTTP threads. */
    _Atomic uint64_t values[kvb_rank_metric_count];
    struct kvb_metrics metrics;
    char labels[64]; /* pod_key="7",dp_rank="0" */
};

/* How one source of a worker's load is doing. */
struct bridge_feed {
    bool is_there;
    enum kvb_load_source_state state;
    uint64_t heard_ns; /* the newest figures; 0: none yet */
    uint64_t until_ns; /* silent for too long from then on */
    uint64_t refused;
    struct kvb_detail why; /* the newest was refused; "": it was not */
    bool was_said;         /* by the log, that something is wrong */
    struct kvb_log_limit limit;
};

/* The sources of one worker's load; samples go to ranks first .. first+count-1. */
struct bridge_load {
    const struct kvb_worker_config *settings; /* borrowed */
    struct kvb_load_source *zmq;              /* owned, like the next; NULL: none */
    struct kvb_load_source *coordinator;
    uint64_t scrape_key; /* of its page of metrics; 0: none */
    size_t first_rank;   /* in kvb_bridge.ranks */
    size_t rank_count;
    struct bridge_feed feeds[KVB_LOAD_SOURCE_KIND_COUNT];
};

/* Descriptors waited for: stop, requests of aggregators, pages of metrics. */
enum { kvb_bridge_fd_stop, kvb_bridge_fd_sync, kvb_bridge_fd_pages, kvb_bridge_fds };

/* Checkpoints are made and written one after the other. */
struct bridge_checkpoints {
    struct kvb_checkpoint_store *store; /* owned; NULL: none are kept */
    struct kvb_checkpoint_save save;
    struct bridge_rank *rank;    /* whose is being made; or NULL */
    struct bridge_rank *written; /* whose is being written, and was made; or NULL */
    bool is_first_part;
    size_t next_rank;
    struct kvb_log_limit limit;
};

struct bridge_service;

struct kvb_bridge {
    const struct kvb_bridge_config *config; /* borrowed */
    struct kvb_log *log;                    /* borrowed */
    char bridge_id[kvb_bridge_id_bytes + 1];
    uint64_t started_ns;

    struct kvb_zmq *zmq; /* owned, like all below */
    struct kvb_bus *bus;
    struct kvb_bus_subscription *statuses;
    struct kvb_bus_subscription *syncs;
    struct kvb_sync_desk sync;
    struct kvb_http *http;
    struct bridge_service *service;
    struct kvb_profile_guard guard;
    struct kvb_event_publisher events;
    char heartbeat_subject[kvb_subject_bytes];
    char load_subject[kvb_subject_bytes];
    char status_subject[kvb_subject_bytes];

    struct bridge_rank *ranks;
    size_t rank_count;
    struct bridge_load *loads;
    size_t load_count;
    struct kvb_scraper *scraper;                  /* NULL: no worker has a page of metrics */
    uint64_t scrape_keys;                         /* given out so far */
    struct kvb_coordinator_news coordinator_news; /* decoded into, again and again */
    struct bridge_checkpoints checkpoints;

    /* The ingest thread's own. */
    pthread_t thread;
    bool has_thread;
    int wake_fd; /* eventfd: stop */
    atomic_bool is_stopping;
    struct kvb_event_batch batch; /* decoded into, again and again */
    struct kvb_buf buf;
    struct kvb_waiter *waiter; /* owned; its owners: ranks, then loads, then descriptors */
    size_t first_load_owner;
    size_t first_fd_owner;
    uint64_t began_ns;  /* when the batch at hand was begun */
    size_t next_replay; /* whose turn it is to ask first */
    size_t next_told;   /* whose turn it is to be announced first */
    uint64_t connects_seen;
    uint64_t next_tick_ns;
    uint64_t next_round_ns; /* when all ranks are looked at again */
    bool is_round_due;      /* one of them has changed */
    uint64_t next_load_ns;
    uint64_t next_status_ns;
    uint64_t next_figures_ns;
    uint64_t next_process_ns;
    bool was_allowed;

    /* Read by HTTP threads. */
    _Atomic uint64_t values[kvb_bridge_metric_count];
    struct kvb_metrics metrics;
    struct kvb_prometheus_set *rank_sets; /* owned; of ranks 0 .. rank_set_count-1 */
    size_t rank_set_count;
    pthread_mutex_t text_lock;
    struct kvb_buf state_text;   /* the newest status, under text_lock */
    struct kvb_detail not_ready; /* why not; "" = ready; under text_lock */
};

/* ---- bridge_ranks.c: the ranks of the configuration ---- */
kvb_status kvb_bridge_open_ranks(struct kvb_bridge *bridge, struct kvb_detail *detail);
void kvb_bridge_close_ranks(struct kvb_bridge *bridge);

/* ---- bridge_flow.c: one rank's batches, from socket to NATS ---- */

/* Receives and applies some of what is there. */
void kvb_bridge_take_live(struct kvb_bridge *bridge, struct bridge_rank *rank, uint64_t now_ns);
void kvb_bridge_take_replies(struct kvb_bridge *bridge, struct bridge_rank *rank, uint64_t now_ns);
void kvb_bridge_tick_rank(struct kvb_bridge *bridge, struct bridge_rank *rank, uint64_t now_ns);

/* ---- bridge_load.c: how busy the engines are, from all sources ---- */

/* For ranks first_rank .. of kvb_bridge.ranks, which are there. */
kvb_status kvb_bridge_open_load(
    struct kvb_bridge *bridge, const struct kvb_worker_config *worker, size_t first_rank,
    struct kvb_detail *detail);
void kvb_bridge_close_loads(struct kvb_bridge *bridge);
/* Sockets of a worker's load sources, one each at most at any time. */
size_t kvb_load_sockets_of(const struct kvb_worker_config *worker);

/* Receives and keeps some of what is there. */
void kvb_bridge_take_loads(struct kvb_bridge *bridge, struct bridge_load *load, uint64_t now_ns);
void kvb_bridge_take_pages(struct kvb_bridge *bridge, uint64_t now_ns);

/* Says which sources have fallen silent. */
void kvb_bridge_watch_loads(struct kvb_bridge *bridge, uint64_t now_ns);

/* out has room for KVB_LOAD_SOURCE_KIND_COUNT of each load; returns how many. */
size_t kvb_bridge_report_loads(
    const struct kvb_bridge *bridge, uint64_t now_ns, struct kvb_load_source_report *out);

/* ---- bridge_tell.c: what routers are told ---- */

/* Publishes what the last step brought, if routers know what was before. */
void kvb_bridge_tell_step(struct kvb_bridge *bridge, struct bridge_rank *rank, uint64_t now_ns);

/* Announces the streams that routers do not know, or that were cleared or are away,
 * within a budget of time: the sockets wait meanwhile. */
void kvb_bridge_tell_streams(struct kvb_bridge *bridge, uint64_t now_ns);

/* Every rank will be told anew, not before from_ns: something may be lost. */
void kvb_bridge_lose_touch(struct kvb_bridge *bridge, uint64_t from_ns);

/* Nothing that was told holds any more: the bridge stops. */
void kvb_bridge_tell_goodbye(struct kvb_bridge *bridge, uint64_t now_ns);

/* ---- bridge_report.c: what is said every so often ---- */
void kvb_bridge_beat(struct kvb_bridge *bridge, struct bridge_rank *rank, bool is_bye);
/* Nothing of the epoch that has just begun was told yet. */
void kvb_bridge_beat_opening(struct kvb_bridge *bridge, struct bridge_rank *rank);
void kvb_bridge_publish_loads(struct kvb_bridge *bridge, uint64_t now_ns);
void kvb_bridge_publish_status(struct kvb_bridge *bridge, uint64_t now_ns);

/* ---- bridge_checkpoint.c: so that a restart goes on where the last process was ---- */
kvb_status kvb_bridge_open_checkpoints(struct kvb_bridge *bridge, struct kvb_detail *detail);
void kvb_bridge_close_checkpoints(struct kvb_bridge *bridge);

/* The stream of a rank just opened goes on from its checkpoint, if there is one. */
void kvb_bridge_restore_rank(struct kvb_bridge *bridge, struct bridge_rank *rank, uint64_t home);
/* After the ranks are open: not all at the same time. */
void kvb_bridge_spread_checkpoints(struct kvb_bridge *bridge);

/* Every turn: a part of a checkpoint, if one is due. */
void kvb_bridge_save(struct kvb_bridge *bridge);
/* At the end: of all that changed. */
void kvb_bridge_save_all(struct kvb_bridge *bridge);
bool kvb_bridge_is_saving(const struct kvb_bridge *bridge, const struct bridge_rank *rank);

/* Before anything is told that no batch made, and before anything of an epoch is told. */
void kvb_bridge_void_checkpoint(struct kvb_bridge *bridge, struct bridge_rank *rank);
void kvb_bridge_telling_epoch(
    struct kvb_bridge *bridge, struct bridge_rank *rank, const kvb_epoch *epoch);

/* The stream was not restored, or its engine has proven it, or speaks against it. */
bool kvb_bridge_is_proven(struct bridge_rank *rank);

/* ---- bridge_figures.c: what /metrics says ---- */

/* After the ranks are open, before HTTP threads are.  KVB_NO_MEMORY. */
kvb_status kvb_bridge_open_figures(struct kvb_bridge *bridge);
void kvb_bridge_close_figures(struct kvb_bridge *bridge);

/* A message of the rank's engine was taken in: live or replayed, step and all. */
void kvb_bridge_count_batch(
    struct bridge_rank *rank, const struct kvb_stream_input *input, uint64_t took_ns);

/* Copies what streams, sources and the bus have counted, when that is due. */
void kvb_bridge_update_metrics(struct kvb_bridge *bridge, uint64_t now_ns);

/* The whole page.  Any thread. */
kvb_status kvb_bridge_metrics_page(const struct kvb_bridge *bridge, struct kvb_buf *out);

/* ---- bridge_service.c: the NATS micro-service protocol ---- */
kvb_status kvb_bridge_open_service(struct kvb_bridge *bridge);
void kvb_bridge_close_service(struct kvb_bridge *bridge);
void kvb_bridge_show_loads(struct kvb_bridge *bridge); /* what STATS will say */

/* ---- bridge_loop.c: the ingest thread ---- */
void *kvb_bridge_run(void *context);

/* ---- bridge_http.c ---- */
void kvb_bridge_answer(
    void *context, const struct kvb_http_request *request, struct kvb_http_answer *answer);
