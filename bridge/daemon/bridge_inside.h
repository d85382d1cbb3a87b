#pragma once

#include "bus/bus.h"
#include "core/metric.h"
#include "core/own.h"
#include "core/url_show.h"
#include "daemon/bridge.h"
#include "daemon/bridge_config.h"
#include "daemon/bridge_metrics.h"
#include "daemon/discovery.h"
#include "daemon/event_publisher.h"
#include "daemon/profile_guard.h"
#include "daemon/rank_metrics.h"
#include "daemon/refresh_desk.h"
#include "daemon/refresh_plan.h"
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

/* Whether the log has said that something is wrong, and what is not said yet. */
struct rank_trouble {
    enum kvb_stream_state said;
    enum kvb_stream_state now; /* since since_ns */
    uint64_t since_ns;
    uint64_t said_ns;
    /* Nobody listens where its engine is said to publish. */
    bool is_unreachable;
    uint64_t next_look_ns; /* the engine is not asked before */
    struct kvb_detail why; /* for /state; "": nothing is to be said */
    bool is_block_size_said;
};

/* The newest heartbeat that went out as JSON too. */
struct rank_beat_json {
    uint64_t sent_ns; /* 0: none did */
    kvb_epoch epoch;
    enum kvb_stream_state state;
    enum kvb_stream_reason reason;
};

/* One rank of one worker: its sockets, its stream, its newest load. */
struct bridge_rank {
    struct kvb_worker_config settings; /* of this rank alone: kvb_members_of() */
    size_t owner;                      /* the waiter's number, and its place in kvb_bridge.owners */
    uint64_t worker_id;
    uint32_t dp_rank;
    uint32_t origin;           /* whose list it stands in: bridge_members.c */
    struct kvb_source *source; /* owned, like the two below */
    struct kvb_stream *stream;
    struct kvb_stream_output output;
    bool is_leaving;
    bool is_beat_wanted; /* an aggregator has just been given what it lacked */
    bool is_beat_due;    /* the state changed since the last heartbeat */
    bool is_up;
    bool is_crowded;       /* two engines on its bound socket */
    uint64_t down_ns;      /* since when its engine is away; 0 = it is not */
    bool is_announced;     /* routers were told all, and everything since */
    bool needs_epoch;      /* going on would hide what is lost: ids do not show it */
    bool is_withdrawn;     /* routers were told that it holds nothing */
    bool is_retelling_due; /* a sibling was cleared: some readers know no ranks */
    bool waits_for_proof;  /* restored: the engine may have restarted meanwhile */
    struct rank_checkpoint checkpoint;
    struct kvb_refresh_turn refresh;
    uint64_t announce_ns;  /* not before: the last try failed, or NATS is just back */
    struct kvb_told *told; /* owned; NULL where a clear is told by `cleared` */
    uint64_t beat_ns;      /* the last heartbeat */
    struct rank_beat_json beat_json;
    uint64_t applied_ns; /* the newest batch or proof */
    enum kvb_tier unknown_medium;
    struct kvb_newest_load load;
    struct kvb_load_fallback known; /* of the configuration */
    struct rank_trouble trouble;    /* what the log says of it */
    struct kvb_log_backoff renewal_log;

    /* Read by HTTP threads. */
    _Atomic uint64_t values[kvb_rank_metric_count];
    struct kvb_metrics metrics;
    char labels[64]; /* pod_key="7",dp_rank="0" */
};

/* Messages of one rank's engine that are taken in one behind the other, and what a turn does
 * to it beside them. */
struct bridge_run {
    uint64_t began_ns;
    uint64_t wall_us;                            /* then */
    uint64_t events;                             /* so far */
    uint64_t live_events[KVB_EVENT_SKIPPED + 1]; /* of these, by kind */
    uint64_t unreadable;                         /* messages */
    bool has_live;
    double timestamp_s; /* the engine's, on the newest live one */
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
    struct kvb_log_backoff backoff;
    struct kvb_log_backoff renewal; /* when its socket is opened anew */
};

/* The sources of one worker's load; their samples go to the ranks that settings name. */
struct bridge_load {
    struct kvb_worker_config settings;
    char shown_url[kvb_url_shown_bytes]; /* of its page of metrics, without a password */
    uint32_t origin;
    bool is_leaving;
    size_t owner;
    struct kvb_load_source *zmq; /* owned, like the next; NULL: none */
    struct kvb_load_source *coordinator;
    uint32_t listed;        /* ranks in the coordinator's list */
    uint64_t list_until_ns; /* the list has changed: until then its engine is asked too */
    struct kvb_log_limit list_limit;
    uint64_t scrape_key; /* of its page of metrics; 0: none */
    struct bridge_feed feeds[KVB_LOAD_SOURCE_KIND_COUNT];
};

/* The waiter's numbers: ranks take the lowest free one, then loads, then descriptors. */
enum {
    kvb_first_load_owner = kvb_max_streams,
    kvb_first_fd_owner = kvb_first_load_owner + kvb_max_workers,
    kvb_stop_owner = kvb_first_fd_owner, /* stop, and commands */
    kvb_sync_owner,                      /* requests of aggregators */
    kvb_refresh_owner,                   /* of routers that came late */
    kvb_pages_owner,                     /* pages of metrics */
    kvb_bridge_owners
};

/* Checkpoints are made and written one after the other. */
struct bridge_checkpoints {
    struct kvb_checkpoint_store *store; /* owned; NULL: none are kept */
    struct kvb_checkpoint_save save;
    struct bridge_rank *rank;    /* whose is being made; or NULL */
    bool is_writing;             /* one was made, and is being written */
    struct bridge_rank *written; /* whose it is; NULL: it has left meanwhile */
    bool is_first_part;
    size_t next_rank;
    struct kvb_log_limit limit;
};

/* What is held is stored again, one stream after the other. */
struct bridge_refresh {
    struct kvb_refresh_desk desk;
    struct kvb_bus_subscription *asks; /* owned */
    struct kvb_refresh_plan plan;
    struct bridge_rank *rank; /* at work; NULL: none */
    bool is_wished;           /* it was asked for */
    size_t asked;             /* ranks that were, and wait */
    size_t next_asked;        /* looked at next for one of these */
    size_t next_rank;         /* ... for one that had no turn in this round */
    uint64_t next_look_ns;    /* no rank was due: not before */
    uint64_t next_measure_ns;
    struct kvb_router_batch events; /* owned: the part being told */
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
    struct bridge_refresh refresh;
    struct kvb_http *http;
    struct bridge_service *service;
    struct kvb_profile_guard guard;
    struct kvb_event_publisher events;
    char heartbeat_subject[kvb_subject_bytes];
    char heartbeat_json_subject[kvb_subject_bytes];
    char load_subject[kvb_subject_bytes];
    char status_subject[kvb_subject_bytes];

    struct bridge_rank **ranks; /* kvb_max_streams places, the first rank_count in use */
    size_t rank_count;
    struct bridge_load **loads; /* kvb_max_workers places */
    size_t load_count;
    void **owners; /* borrowed: the rank or load of each number; NULL: free */
    struct bridge_members *members;
    struct kvb_discovery *discovery;
    struct kvb_scraper *scraper;                  /* NULL: no worker has a page of metrics */
    uint64_t scrape_keys;                         /* given out so far */
    struct kvb_coordinator_news coordinator_news; /* decoded into, again and again */
    struct bridge_checkpoints checkpoints;

    /* The ingest thread's own. */
    pthread_t thread;
    bool has_thread;
    int wake_fd;            /* eventfd: stop */
    atomic_bool is_running; /* commands are answered */
    atomic_bool is_stopping;
    struct kvb_event_batch batches[2]; /* decoded into, again and again */
    struct kvb_buf buf;
    struct kvb_waiter *waiter; /* owned */
    struct bridge_run run;     /* the one at hand */
    size_t next_replay;        /* whose turn it is to ask first */
    size_t next_told;          /* whose turn it is to be announced first */
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
    atomic_size_t stream_count;
    pthread_rwlock_t sets_lock;           /* the two below, and the values that they borrow */
    struct kvb_prometheus_set *rank_sets; /* owned; of ranks 0 .. rank_set_count-1 */
    size_t rank_set_count;
    pthread_mutex_t text_lock;
    struct kvb_buf state_text;   /* the newest status, under text_lock */
    struct kvb_detail not_ready; /* why not; "" = ready; under text_lock */
};

/* ---- bridge_ranks.c: one rank ---- */
kvb_status kvb_bridge_open_rooms(struct kvb_bridge *bridge, struct kvb_detail *detail);
void kvb_bridge_close_ranks(struct kvb_bridge *bridge);

/* On failure nothing is there that was not before.  KVB_TOO_LARGE: the bridge is full. */
kvb_status kvb_bridge_open_rank(
    struct kvb_bridge *bridge, const struct kvb_worker_config *settings, uint32_t origin,
    struct kvb_detail *detail);

/* Number `at` leaves: its place is the last one's from then on. */
void kvb_bridge_close_rank(struct kvb_bridge *bridge, size_t at);

/* The lowest free number of first .. first + most - 1 is whose from then on.  KVB_TOO_LARGE */
kvb_status kvb_bridge_take_owner(
    struct kvb_bridge *bridge, size_t first, size_t most, void *whose, size_t *out_owner);

/* Open files for what is open already, and for as many more.  KVB_BAD_CONFIG */
kvb_status kvb_bridge_make_room(
    const struct kvb_bridge *bridge, size_t ranks, size_t load_sources, struct kvb_detail *detail);

/* NULL: there is none. */
struct bridge_rank *
kvb_bridge_find_rank(const struct kvb_bridge *bridge, uint64_t worker_id, uint32_t dp_rank);

/* ---- bridge_members.c: ranks come and go ---- */

/* The ranks of the file; before the ingest thread runs. */
kvb_status kvb_bridge_open_members(struct kvb_bridge *bridge, struct kvb_detail *detail);
void kvb_bridge_close_members(struct kvb_bridge *bridge);

/* After the ingest thread runs; ended before it ends. */
kvb_status kvb_bridge_open_discovery(struct kvb_bridge *bridge);

/* Something happened to an engine of this origin, or to its ranks: if it was discovered, it
 * is asked where its events are. */
void kvb_bridge_look_again(struct kvb_bridge *bridge, uint32_t origin);

/* What was asked for, a part of it a turn; true: there is more to do. */
bool kvb_bridge_work_members(struct kvb_bridge *bridge, uint64_t now_ns);

/* ---- bridge_flow.c: one rank's batches, from socket to NATS ---- */

/* Receives and applies some of what is there. */
void kvb_bridge_take_live(struct kvb_bridge *bridge, struct bridge_rank *rank, uint64_t now_ns);
void kvb_bridge_take_replies(struct kvb_bridge *bridge, struct bridge_rank *rank, uint64_t now_ns);
void kvb_bridge_tick_rank(struct kvb_bridge *bridge, struct bridge_rank *rank, uint64_t now_ns);

/* ---- bridge_load.c: how busy the engines are, from all sources ---- */

/* All sources of a worker; as kvb_bridge_open_rank(). */
kvb_status kvb_bridge_open_load(
    struct kvb_bridge *bridge, const struct kvb_worker_config *settings, uint32_t origin,
    struct kvb_detail *detail);
/* As kvb_bridge_close_rank(); what it has told lives as long as it would have. */
void kvb_bridge_close_load(struct kvb_bridge *bridge, size_t at);
void kvb_bridge_close_loads(struct kvb_bridge *bridge);
/* Of all workers, each source one. */
size_t kvb_bridge_load_sources(const struct kvb_bridge *bridge);

/* Receives and keeps some of what is there. */
void kvb_bridge_take_loads(struct kvb_bridge *bridge, struct bridge_load *load, uint64_t now_ns);
void kvb_bridge_take_pages(struct kvb_bridge *bridge, uint64_t now_ns);

/* Says which sources have fallen silent. */
void kvb_bridge_watch_loads(struct kvb_bridge *bridge, uint64_t now_ns);

/* out has room for KVB_LOAD_SOURCE_KIND_COUNT of each load; returns how many. */
size_t kvb_bridge_report_loads(
    const struct kvb_bridge *bridge, uint64_t now_ns, struct kvb_load_source_report *out);

/* ---- bridge_tell.c: what routers are told ---- */

/* Takes what the last step brought to be published, if routers know what was before. */
void kvb_bridge_tell_step(struct kvb_bridge *bridge, struct bridge_rank *rank, uint64_t now_ns);

/* Publishes what steps of this rank brought, after the last of them in a turn. */
void kvb_bridge_tell_rest(struct kvb_bridge *bridge, struct bridge_rank *rank);

/* The same for events of the stream's that no step brought. */
kvb_status kvb_bridge_tell_events(
    struct kvb_bridge *bridge, struct bridge_rank *rank, const struct kvb_router_batch *events,
    uint64_t now_ns);

/* Announces the streams that routers do not know, or that were cleared or are away,
 * within a budget of time: the sockets wait meanwhile. */
void kvb_bridge_tell_streams(struct kvb_bridge *bridge, uint64_t now_ns);

/* Every rank will be told anew, not before from_ns: something may be lost. */
void kvb_bridge_lose_touch(struct kvb_bridge *bridge, uint64_t from_ns);

/* Nothing that was told of the rank holds any more: it leaves, or the bridge stops. */
void kvb_bridge_tell_goodbye(struct kvb_bridge *bridge, struct bridge_rank *rank, uint64_t now_ns);

/* ---- bridge_refresh.c: what is held is stored again, for routers that came late ---- */
kvb_status kvb_bridge_open_refresh(struct kvb_bridge *bridge);
void kvb_bridge_close_refresh(struct kvb_bridge *bridge);

/* Every turn: takes requests, and tells a part of some streams when that is due. */
void kvb_bridge_refresh(struct kvb_bridge *bridge, uint64_t now_ns);

/* The rank leaves. */
void kvb_bridge_drop_refresh(struct kvb_bridge *bridge, struct bridge_rank *rank);

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

/* The rank leaves: nothing of it is on the disk any more. */
void kvb_bridge_drop_checkpoint(struct kvb_bridge *bridge, struct bridge_rank *rank);

/* Before anything is told that no batch made, and before anything of an epoch is told. */
void kvb_bridge_void_checkpoint(struct kvb_bridge *bridge, struct bridge_rank *rank);
void kvb_bridge_telling_epoch(
    struct kvb_bridge *bridge, struct bridge_rank *rank, const kvb_epoch *epoch);

/* The stream was not restored, or its engine has proven it, or speaks against it. */
bool kvb_bridge_is_proven(struct bridge_rank *rank);

/* ---- bridge_figures.c: what /metrics says ---- */

/* Before a rank is opened, and before HTTP threads are.  KVB_NO_MEMORY. */
kvb_status kvb_bridge_open_figures(struct kvb_bridge *bridge);
/* A rank's own values, from zero. */
void kvb_bridge_begin_figures(struct bridge_rank *rank);
/* After ranks came or went.  Under sets_lock, for writing. */
void kvb_bridge_list_figures(struct kvb_bridge *bridge);
void kvb_bridge_close_figures(struct kvb_bridge *bridge);

/* The run is over, steps, publishing and all. */
void kvb_bridge_count_run(struct bridge_rank *rank, const struct bridge_run *run, uint64_t took_ns);

/* Copies what streams, sources and the bus have counted, when that is due. */
void kvb_bridge_update_metrics(struct kvb_bridge *bridge, uint64_t now_ns);

/* The whole page.  Any thread. */
kvb_status kvb_bridge_metrics_page(struct kvb_bridge *bridge, struct kvb_buf *out);

/* ---- bridge_service.c: the NATS micro-service protocol ---- */
kvb_status kvb_bridge_open_service(struct kvb_bridge *bridge);
void kvb_bridge_close_service(struct kvb_bridge *bridge);
void kvb_bridge_show_loads(struct kvb_bridge *bridge); /* what STATS will say */

/* ---- bridge_trouble.c ---- */

/* Says when a stream becomes DOWN or PARTIAL, and when it is no more: once it has been so
 * for a second, and of one rank every ten seconds at most.  Says once when a discovered engine
 * seems to connect to the address that it names, for then nobody can be connected to,
 * and once when the engine's blocks have another size than the configuration says. */
void kvb_bridge_watch_state(
    struct kvb_bridge *bridge, struct bridge_rank *rank, const struct kvb_heartbeat *beat,
    uint64_t now_ns);

/* ---- bridge_loop.c: the ingest thread ---- */
void *kvb_bridge_run(void *context);

/* ---- bridge_register.c: on HTTP threads ---- */
void kvb_bridge_answer_register(
    struct kvb_bridge *bridge, const struct kvb_http_request *request,
    struct kvb_http_answer *answer);
void kvb_bridge_answer_unregister(
    struct kvb_bridge *bridge, const struct kvb_http_request *request,
    struct kvb_http_answer *answer);

/* ---- bridge_http.c ---- */
void kvb_bridge_answer(
    void *context, const struct kvb_http_request *request, struct kvb_http_answer *answer);
