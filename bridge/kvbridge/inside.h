#pragma once

#include "bus/bus.h"
#include "core/metric.h"
#include "core/own.h"
#include "core/thread.h"
#include "core/url_show.h"
#include "daemon/exact_share.h"
#include "daemon/http.h"
#include "daemon/prometheus.h"
#include "ingest/dns/resolver.h"
#include "ingest/http/scraper.h"
#include "ingest/zmq/context.h"
#include "ingest/zmq/load_source.h"
#include "ingest/zmq/poller.h"
#include "ingest/zmq/source.h"
#include "kvbridge/bridge.h"
#include "kvbridge/checkpoint_store.h"
#include "kvbridge/config.h"
#include "kvbridge/discovery.h"
#include "kvbridge/dns_list.h"
#include "kvbridge/echo.h"
#include "kvbridge/event_publisher.h"
#include "kvbridge/kubernetes.h"
#include "kvbridge/metrics.h"
#include "kvbridge/permissions.h"
#include "kvbridge/profile_guard.h"
#include "kvbridge/rank_metrics.h"
#include "kvbridge/refresh_plan.h"
#include "kvbridge/refresh_responder.h"
#include "kvbridge/sync_responder.h"
#include "load/newest.h"
#include "model/load.h"
#include "stream/checkpoint/policy.h"
#include "stream/serve.h"
#include "stream/standby.h"
#include "wire/router/bridge_status.h"

#include <stdatomic.h>
#include <stdbool.h>

/* The inside of a running bridge, for the bridge_*.c files alone. */

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
    bool is_total_said;
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
    struct kvb_served served;          /* first: kvb_serve_world passes this one */
    struct kvb_worker_config settings; /* of this rank alone: kvb_members_of() */
    size_t owner;                      /* the poller's number, and its place in kvb_bridge.owners */
    uint64_t worker_id;
    uint32_t dp_rank;
    uint32_t origin;           /* whose list it stands in: kvbridge/membership.c */
    struct kvb_source *source; /* owned */
    bool is_leaving;
    bool is_draining; /* POST /drain: takes no new requests */
    bool is_crowded;  /* two engines on its bound socket */
    struct kvb_checkpoint_policy checkpoint;
    struct kvb_checkpoint_name checkpoint_name;
    struct kvb_refresh_turn refresh;
    struct kvb_standby standby; /* of a bridge that is none: its floor_id alone */
    struct rank_beat_json beat_json;
    uint64_t applied_ns; /* the newest batch or proof */
    enum kvb_tier unknown_medium;
    struct kvb_newest_load load;
    struct kvb_load_fallback known; /* of the configuration */
    struct rank_trouble trouble;    /* what the log says of it */
    bool is_busy;                   /* in the line of kvb_bridge_work_ranks() */
    struct bridge_rank *next_busy;  /* behind it */
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

/* Live batches between kvb_bridge_receive() and what becomes of them. */
struct bridge_received {
    struct kvb_source_batch batches[kvb_source_run]; /* borrowed from their source */
    size_t count;
};

/* How one source of a worker's load is doing. */
struct bridge_feed {
    bool is_there;
    enum kvb_load_source_state state;
    uint64_t received_ns; /* the newest figures; 0: none yet */
    uint64_t until_ns;    /* silent for too long from then on */
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

/* The poller's numbers: ranks take the lowest free one, then loads, then descriptors. */
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
    struct kvb_checkpoint_maker maker;
    struct bridge_rank *rank; /* whose is being made */
    size_t next_rank;
    struct kvb_log_limit limit;
};

/* What is held is stored again, one stream after the other. */
struct bridge_refresh {
    struct kvb_refresh_responder responder;
    struct kvb_bus_subscription *incoming; /* owned */
    struct kvb_refresh_plan plan;
    struct bridge_rank *rank; /* at work; NULL: none */
    bool is_wished;           /* it was asked for */
    size_t asked;             /* ranks that were, and wait */
    size_t next_requested;    /* looked at next for one of these */
    size_t next_rank;         /* ... for one that had no turn in this round */
    uint64_t next_look_ns;    /* no rank was due: not before */
    uint64_t next_measure_ns;
    struct kvb_router_batch events; /* owned: the part being announced */
};

/* Of the HTTP server. */
enum { http_threads = 2, max_http_connections = 128 };

struct bridge_service;

/* From the engines' sockets to the steps of their streams.  The ingest thread's own. */
struct bridge_ingest {
    struct kvb_resolver *resolver; /* owned, like the next four */
    struct kvb_zmq *zmq;
    struct kvb_poller *poller;
    struct kvb_scraper *scraper; /* NULL: no worker has a page of metrics */
    void **owners;               /* of each number the rank or load, borrowed; NULL: free */
    uint64_t scrape_keys;        /* given out so far */
    struct kvb_coordinator_update coordinator_update; /* decoded into, like the next */
    struct kvb_event_batch batches[2];
    struct bridge_run run; /* the one at hand */
    struct bridge_received received;
    uint64_t replies_until_ns;      /* no more replies are taken of a rank in this turn ... */
    bool has_reply;                 /* ... but one at least */
    struct bridge_rank *first_busy; /* the line of ranks with a slice to apply; NULL: none */
    struct bridge_rank *last_busy;
    struct kvb_server server;
    struct kvb_log_backoff files_log;
};

/* From streams to NATS.  The ingest thread's own, but for what the bus locks itself. */
struct bridge_publisher {
    struct kvb_bus *bus; /* owned, like the next two */
    struct kvb_bus_subscription *statuses;
    struct kvb_bus_subscription *syncs;
    struct kvb_sync_responder sync;
    struct kvb_profile_guard guard;
    struct kvb_event_publisher events;
    struct kvb_subject_names names;
    struct kvb_permissions permissions; /* that this bridge needs of nats-server */
    char heartbeat_subject[kvb_subject_bytes];
    char heartbeat_json_subject[kvb_subject_bytes];
    char load_subject[kvb_subject_bytes];
    char status_subject[kvb_subject_bytes];
    struct kvb_buf buf;    /* encoded into */
    struct kvb_buf status; /* the newest */
    size_t page_end; /* where the streams of the next one begin, where they need several messages */
    size_t next_advertised; /* whose turn it is to be announced first */
    struct kvb_echo echo;   /* of our status */
    uint64_t echoes_seen;
    uint64_t next_load_ns;
    uint64_t next_status_ns;
    bool was_allowed;
};

/* Which ranks and which sources of load there are, and where changes of that come from. */
struct bridge_membership {
    struct bridge_rank **ranks; /* owned: kvb_max_streams places, the first rank_count in use */
    size_t rank_count;
    struct bridge_load **loads; /* owned: kvb_max_workers places */
    size_t load_count;
    struct membership_work *work;      /* owned: kvbridge/membership.c */
    struct kvb_discovery *discovery;   /* owned */
    struct kvb_dns_list *dns_list;     /* owned; NULL: none is configured */
    struct kvb_kubernetes *kubernetes; /* owned; NULL: no pods are watched */
};

/* What HTTP threads and $SRV requests read. */
struct bridge_shown {
    struct kvb_http *http; /* owned, like the next */
    struct bridge_service *service;
    _Atomic uint64_t turned_ns; /* when the newest turn began */
    _Atomic uint64_t values[kvb_bridge_metric_count];
    struct kvb_metrics metrics;
    uint64_t next_stats_ns;
    uint64_t next_process_ns;
    atomic_size_t stream_count;
    struct kvb_exact_share share;
    pthread_rwlock_t sets_lock;           /* the two below, and the values that they borrow */
    struct kvb_prometheus_set *rank_sets; /* owned; of ranks 0 .. rank_set_count-1 */
    size_t rank_set_count;
    pthread_mutex_t text_lock;
    struct kvb_buf state_text;   /* the newest status, under text_lock */
    struct kvb_detail not_ready; /* why not; "" = ready; under text_lock */
    struct kvb_detail standing;  /* what a standby does; "": no standby; under text_lock */
};

/* Of all streams together; kvbridge/standby.c. */
struct bridge_standby {
    struct kvb_ring *incoming; /* owned, like the subscriptions */
    struct kvb_bus_subscription *handovers;
    struct kvb_bus_subscription *heartbeats; /* NULL: this bridge is no standby; like the next */
    struct kvb_bus_subscription *statuses;
    char handover_subject[kvb_subject_bytes];
    uint64_t publisher;    /* our id in heartbeats */
    _Atomic uint64_t lost; /* messages that found no room */
    uint64_t lost_seen;
    uint64_t probed_ns;
    uint64_t taken_over; /* since the log's last line, like the next */
    uint64_t yielded;
    uint64_t next_log_ns;
};

struct kvb_bridge {
    const struct kvb_bridge_config *config; /* borrowed, like log */
    struct kvb_log *log;
    char bridge_id[kvb_bridge_id_bytes + 1];
    uint64_t started_ns;

    struct bridge_ingest ingest;
    struct bridge_publisher publisher;
    struct bridge_membership membership;
    struct bridge_shown shown;
    struct bridge_checkpoints checkpoints;
    struct bridge_refresh refresh;
    struct bridge_standby standby;

    struct kvb_thread thread; /* ingest */
    int wake_fd;              /* eventfd: stop, and commands */
    atomic_bool is_running;   /* commands are answered */
    atomic_bool is_stopping;
};

/* ---- kvbridge/ranks.c: one rank ---- */
kvb_status kvb_bridge_open_rooms(struct kvb_bridge *bridge, struct kvb_detail *detail);
void kvb_bridge_close_ranks(struct kvb_bridge *bridge);

/* On failure nothing is there that was not before.  KVB_TOO_LARGE: the bridge is full. */
kvb_status kvb_bridge_open_rank(
    struct kvb_bridge *bridge, const struct kvb_worker_config *settings, uint32_t origin,
    struct kvb_detail *detail);

/* Number `at` leaves, and nothing knows of it any more: its place is the last one's from then
 * on. */
void kvb_bridge_remove_rank(struct kvb_bridge *bridge, size_t at);

/* The lowest free number of first .. first + most - 1 is whose from then on.  KVB_TOO_LARGE */
kvb_status kvb_bridge_take_owner(
    struct bridge_ingest *ingest, size_t first, size_t max, void *whose, size_t *out_owner);

/* Open files for what is open already, and for as many more.  KVB_BAD_CONFIG */
kvb_status kvb_bridge_make_room(
    const struct kvb_bridge *bridge, size_t ranks, size_t load_sources, struct kvb_detail *detail);

/* Open files of the bridge that are no sockets of engines: HTTP's. */
size_t kvb_bridge_other_files(const struct kvb_bridge_config *config);

/* NULL: there is none. */
struct bridge_rank *
kvb_bridge_find_rank(const struct kvb_bridge *bridge, uint64_t worker_id, uint32_t dp_rank);

/* ---- kvbridge/membership.c: ranks come and go ---- */

/* The ranks of the file; before the ingest thread runs. */
kvb_status kvb_bridge_open_membership(struct kvb_bridge *bridge, struct kvb_detail *detail);
void kvb_bridge_close_membership(struct bridge_membership *membership);

/* After the ingest thread runs; ended before it ends. */
kvb_status kvb_bridge_open_discovery(struct kvb_bridge *bridge);

/* What was asked for, a part of it a turn; true: there is more to do. */
bool kvb_bridge_work_membership(struct kvb_bridge *bridge, uint64_t now_ns);

/* ---- kvbridge/loop.c ---- */

/* What stream/serve.h calls; its context is the bridge. */
extern const struct kvb_serve_world kvb_bridge_world;

static inline struct bridge_rank *kvb_bridge_rank_of(struct kvb_served *served)
{
    return (struct bridge_rank *)(void *)served; /* its first member */
}

/* ---- kvbridge/flow.c: one rank's batches, from socket to NATS ---- */

/* Receives and applies some of what is there. */
void kvb_bridge_take_live(struct kvb_bridge *bridge, struct bridge_rank *rank, uint64_t now_ns);
void kvb_bridge_take_replies(struct kvb_bridge *bridge, struct bridge_rank *rank, uint64_t now_ns);
void kvb_bridge_tick_rank(struct kvb_bridge *bridge, struct bridge_rank *rank, uint64_t now_ns);

/* The rank leaves the line of those that have slices left. */
void kvb_bridge_drop_work(struct bridge_ingest *ingest, struct bridge_rank *rank);

/* As kvb_serve_world calls them. */
size_t kvb_bridge_receive(void *context, struct kvb_served *served);
void kvb_bridge_apply_received(void *context, struct kvb_served *served, uint64_t now_ns);
void kvb_bridge_pass_over_received(void *context, struct kvb_served *served);
struct kvb_connection_update kvb_bridge_read_monitor(void *context, struct kvb_served *served);
enum kvb_serve_reply
kvb_bridge_take_reply(void *context, struct kvb_served *served, uint64_t now_ns);
void kvb_bridge_stop_replay(void *context, struct kvb_served *served);
void kvb_bridge_publish_output(void *context, struct kvb_served *served, uint64_t now_ns);
void kvb_bridge_connection_changed(void *context, struct kvb_served *served, bool is_up);
void kvb_bridge_share_changed(
    void *context, struct kvb_served *served, enum kvb_turn_verdict verdict);
bool kvb_bridge_work_slices(void *context, uint64_t now_ns);

/* ---- kvbridge/load.c: how busy the engines are, from all sources ---- */

/* All sources of a worker; as kvb_bridge_open_rank(). */
kvb_status kvb_bridge_open_load(
    struct kvb_bridge *bridge, const struct kvb_worker_config *settings, uint32_t origin,
    struct kvb_detail *detail);
/* As kvb_bridge_remove_rank(); what it has told lives as long as it would have. */
void kvb_bridge_close_load(struct kvb_bridge *bridge, size_t at);
void kvb_bridge_close_loads(struct kvb_bridge *bridge);
/* Of all workers, each source one. */
size_t kvb_bridge_load_sources(const struct bridge_membership *membership);

/* Receives and keeps some of what is there. */
void kvb_bridge_take_loads(struct kvb_bridge *bridge, struct bridge_load *load, uint64_t now_ns);
void kvb_bridge_take_pages(struct kvb_bridge *bridge, uint64_t now_ns);

/* Says which sources have fallen silent. */
void kvb_bridge_watch_loads(struct kvb_bridge *bridge, uint64_t now_ns);

/* out has room for KVB_LOAD_SOURCE_KIND_COUNT of each load; returns how many. */
size_t kvb_bridge_report_loads(
    const struct bridge_membership *membership, uint64_t now_ns,
    struct kvb_load_source_report *out);

/* ---- kvbridge/advertise.c: what routers are sent of each stream ---- */

/* Publishes what the last step brought, if routers know what was before. */
void kvb_bridge_publish_step(struct kvb_bridge *bridge, struct bridge_rank *rank, uint64_t now_ns);

/* After the last step of this rank in a turn. */
void kvb_bridge_flush_events(struct kvb_bridge *bridge, struct bridge_rank *rank);

/* Publishes events of the stream that no step brought. */
void kvb_bridge_publish_events(
    struct kvb_bridge *bridge, struct bridge_rank *rank, const struct kvb_router_batch *events,
    uint64_t now_ns);

/* Announces the streams that routers do not know, or that were cleared or are away,
 * within a budget of time: the sockets wait meanwhile. */
void kvb_bridge_advertise_streams(struct kvb_bridge *bridge, uint64_t now_ns);

/* Nothing that was published of the rank holds any more: it leaves, or the bridge stops. */
void kvb_bridge_say_goodbye(struct kvb_bridge *bridge, struct bridge_rank *rank, uint64_t now_ns);

/* ---- kvbridge/refresh.c: what is held is stored again, for routers that came late ---- */
kvb_status kvb_bridge_open_refresh(struct kvb_bridge *bridge);
void kvb_bridge_close_refresh(struct bridge_refresh *refresh);

/* Every turn: takes requests, and tells a part of some streams when that is due. */
void kvb_bridge_refresh(struct kvb_bridge *bridge, uint64_t now_ns);

/* The rank leaves. */
void kvb_bridge_drop_refresh(struct kvb_bridge *bridge, struct bridge_rank *rank);

/* ---- kvbridge/standby.c: streams that are published only while no other bridge does ---- */

/* Before the first heartbeat: a hash of the bridge_id. */
void kvb_bridge_name_publisher(struct kvb_bridge *bridge);

kvb_status kvb_bridge_open_standby(struct kvb_bridge *bridge);
void kvb_bridge_unsubscribe_standby(struct bridge_standby *standby);
void kvb_bridge_close_standby(struct bridge_standby *standby); /* no subscription is left */

/* True unless this bridge is a standby and another bridge publishes the stream. */
static inline bool
kvb_bridge_publishes(const struct kvb_bridge *bridge, const struct bridge_rank *rank)
{
    return !bridge->config->publish.standby || kvb_standby_is_active(&rank->standby);
}

/* How many streams this bridge publishes: all, unless it is a standby. */
static inline size_t kvb_bridge_count_published(const struct kvb_bridge *bridge)
{
    size_t count = 0;

    for (size_t i = 0; i < bridge->membership.rank_count; i++) {
        count += kvb_bridge_publishes(bridge, bridge->membership.ranks[i]);
    }
    return count;
}

/* NATS is connected again. */
void kvb_bridge_standby_connected(struct kvb_bridge *bridge, uint64_t now_ns);

/* Every round in which this bridge may publish: takes streams over, and yields them. */
void kvb_bridge_work_standby(struct kvb_bridge *bridge, uint64_t now_ns);

/* ---- report.c: what is said every so often ---- */

/* The goodbye of a stream that another bridge publishes from now on: to readers, and to that
 * bridge. */
void kvb_bridge_hand_over(struct kvb_bridge *bridge, struct bridge_rank *rank);
void kvb_bridge_beat(struct kvb_bridge *bridge, struct bridge_rank *rank, bool is_bye);
/* Nothing of the epoch that has just begun was published yet. */
void kvb_bridge_beat_opening(
    struct kvb_bridge *bridge, struct bridge_rank *rank, const struct kvb_heartbeat *opening);
void kvb_bridge_publish_loads(struct kvb_bridge *bridge, uint64_t now_ns);
void kvb_bridge_publish_status(struct kvb_bridge *bridge, uint64_t now_ns);

/* ---- kvbridge/checkpoint.c: so that a restart goes on where the last process was ---- */
kvb_status kvb_bridge_open_checkpoints(struct kvb_bridge *bridge, struct kvb_detail *detail);
void kvb_bridge_close_checkpoints(struct bridge_checkpoints *checkpoints);

/* The stream of a rank just opened goes on from its checkpoint, if there is one. */
void kvb_bridge_restore_rank(struct kvb_bridge *bridge, struct bridge_rank *rank, uint64_t home);
/* After the ranks are open: not all at the same time. */
void kvb_bridge_spread_checkpoints(struct kvb_bridge *bridge);

/* Every turn: a part of a checkpoint, if one is due. */
void kvb_bridge_save(struct kvb_bridge *bridge);
/* At the end: of all that changed. */
void kvb_bridge_save_all(struct kvb_bridge *bridge);
bool kvb_bridge_is_saving(
    const struct bridge_checkpoints *checkpoints, const struct bridge_rank *rank);

/* The rank leaves: nothing of it is on the disk any more. */
void kvb_bridge_drop_checkpoint(struct bridge_checkpoints *checkpoints, struct bridge_rank *rank);

/* Before anything is published that no batch made, and before anything of an epoch is. */
void kvb_bridge_void_checkpoint(struct kvb_bridge *bridge, struct bridge_rank *rank);
void kvb_bridge_telling_epoch(
    struct kvb_bridge *bridge, struct bridge_rank *rank, const kvb_epoch *epoch);

/* ---- kvbridge/figures.c: what /metrics says ---- */

/* Before a rank is opened, and before HTTP threads are.  KVB_NO_MEMORY. */
kvb_status kvb_bridge_open_stats(struct kvb_bridge *bridge);
/* A rank's own values, from zero. */
void kvb_bridge_begin_stats(struct bridge_rank *rank);
/* After ranks came or went.  Under sets_lock, for writing. */
void kvb_bridge_list_stats(struct kvb_bridge *bridge);
void kvb_bridge_close_stats(struct bridge_shown *shown);

/* The run is over, steps, publishing and all. */
void kvb_bridge_count_run(struct bridge_rank *rank, const struct bridge_run *run, uint64_t took_ns);

/* Copies what streams, sources and the bus have counted, when that is due. */
void kvb_bridge_update_metrics(struct kvb_bridge *bridge, uint64_t now_ns);

/* The whole page.  Any thread. */
kvb_status kvb_bridge_metrics_page(struct bridge_shown *shown, struct kvb_buf *out);

/* ---- kvbridge/service.c: the NATS micro-service protocol ---- */
kvb_status kvb_bridge_open_service(struct kvb_bridge *bridge);
void kvb_bridge_close_service(struct bridge_shown *shown);
void kvb_bridge_show_loads(struct kvb_bridge *bridge); /* what STATS will say */

/* ---- kvbridge/trouble.c ---- */

/* Something happened to an engine of this origin, or to its ranks: if it was discovered, it
 * is asked where its events are. */
void kvb_bridge_rediscover(struct kvb_bridge *bridge, uint32_t origin);

/* Says when a stream becomes DOWN or PARTIAL, and when it is no more: once it has been so
 * for a second, and of one rank every ten seconds at most.  Says once when a discovered engine
 * seems to connect to the address that it names, for then nobody can be connected to,
 * and once when the engine's blocks have another size than the configuration says. */
void kvb_bridge_watch_state(
    struct kvb_bridge *bridge, struct bridge_rank *rank, const struct kvb_heartbeat *beat,
    uint64_t now_ns);

/* ---- kvbridge/loop.c: the ingest thread ---- */
void *kvb_bridge_run(void *context);

/* ---- kvbridge/register.c: on HTTP threads ---- */
void kvb_bridge_answer_register(
    struct kvb_bridge *bridge, const struct kvb_http_request *request,
    struct kvb_http_answer *answer);
void kvb_bridge_answer_unregister(
    struct kvb_bridge *bridge, const struct kvb_http_request *request,
    struct kvb_http_answer *answer);
void kvb_bridge_answer_drain(
    struct kvb_bridge *bridge, const struct kvb_http_request *request,
    struct kvb_http_answer *answer);
void kvb_bridge_answer_undrain(
    struct kvb_bridge *bridge, const struct kvb_http_request *request,
    struct kvb_http_answer *answer);

/* ---- kvbridge/http.c ---- */
void kvb_bridge_answer(
    void *context, const struct kvb_http_request *request, struct kvb_http_answer *answer);
