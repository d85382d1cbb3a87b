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
#include "kvbridge/event_publisher.h"
#include "kvbridge/kubernetes.h"
#include "kvbridge/metrics.h"
#include "kvbridge/permissions.h"
#include "kvbridge/rank_metrics.h"
#include "kvbridge/refresh_plan.h"
#include "kvbridge/refresh_responder.h"
#include "kvbridge/rival_table.h"
#include "kvbridge/sync_responder.h"
#include "load/newest.h"
#include "model/load.h"
#include "stream/checkpoint/policy.h"
#include "stream/page_watch.h"
#include "stream/serve.h"
#include "stream/silence.h"
#include "wire/router/bridge_status.h"

#include <stdatomic.h>
#include <stdbool.h>

/* The internal structure of a running bridge, only for files of kvbridge/. */

/* What the log has reported about a stream, and what it has not reported yet. */
struct rank_trouble {
    enum kvb_stream_state said;
    enum kvb_stream_state now; /* since since_ns */
    uint64_t since_ns;
    uint64_t said_ns;
    /* The engine has named an address at which nobody listens. */
    bool is_unreachable;
    uint64_t next_look_ns; /* no request to the engine before this time */
    struct kvb_detail why; /* shown in /state; "": nothing */
    bool is_block_size_said;
    bool is_total_said;
    const char *said_of_speculation; /* the newest sentence in the log; NULL: none */
    const char *said_of_store; /* the newest sentence of kvb_bridge_store_trouble() in the log */
    /* Why nothing comes from the engine. */
    struct kvb_silence_page page;
    enum kvb_silence silence;
    enum kvb_silence silence_said; /* in the log */
    struct kvb_detail silence_why; /* shown in /state where why has nothing */
};

/* The newest heartbeat that was also published as JSON. */
struct rank_beat_json {
    uint64_t sent_ns; /* 0: none was */
    kvb_epoch epoch;
    enum kvb_stream_state state;
    enum kvb_stream_reason reason;
};

struct bridge_republish;

/* One rank of one worker: its sockets, its stream, its newest load. */
struct bridge_rank {
    struct kvb_served served;          /* must be first: kvb_serve_world passes a pointer to it */
    struct kvb_worker_config settings; /* the settings of this rank: see kvb_members_of() */
    size_t owner; /* the poller's number, and the index in bridge_ingest.owners */
    uint64_t worker_id;
    uint32_t dp_rank;
    uint32_t origin;                    /* the list that it belongs to: kvbridge/membership.c */
    struct kvb_source *source;          /* owned */
    struct bridge_republish *republish; /* owned; NULL: its events are not republished */
    size_t readers;                     /* the poller's number of its readers, where they are */
    bool is_leaving;
    bool is_draining;                /* POST /drain: takes no new requests */
    bool is_crowded;                 /* two engines are connected to its bound socket */
    struct kvb_engine_habits habits; /* of its messages so far */
    struct kvb_checkpoint_policy checkpoint;
    struct kvb_checkpoint_name checkpoint_name;
    bool is_tokens_due;      /* the checkpoint is on the disk, its tokens perhaps not */
    uint64_t contents_saved; /* of the tree, with the newest tokens on the disk */
    struct kvb_refresh_turn refresh;
    struct rank_beat_json beat_json;
    uint64_t applied_ns; /* when the newest batch was applied or proven */
    enum kvb_tier unknown_medium;
    struct kvb_newest_load load;
    struct kvb_page_watch page_watch; /* what its metrics page says about its cache */
    uint32_t page_block_size;         /* of the newest metrics page; 0: it does not say */
    struct kvb_served_names names;    /* the engine's own list; {0}: not known */
    struct kvb_load_fallback known;   /* from the configuration */
    struct rank_trouble trouble;      /* what the log has reported about it */
    bool is_busy;                     /* in the queue of ranks with slices left */
    struct bridge_rank *next_busy;    /* the next one in that queue */
    struct kvb_log_backoff renewal_log;

    /* Read by HTTP threads. */
    _Atomic uint64_t values[kvb_rank_metric_count];
    struct kvb_metrics metrics;
    /* pod_key="7",dp_rank="0"; of a pod pod_key="namespace/name" */
    char labels[kvb_pod_name_bytes + kvb_pod_namespace_bytes + 64];
};

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

/* The state of one load source of a worker. */
struct bridge_feed {
    bool is_there;
    enum kvb_load_source_state state;
    uint64_t received_ns; /* when the newest figures arrived; 0: none yet */
    uint64_t until_ns;    /* after this time the source is stale */
    uint64_t refused;
    struct kvb_detail why; /* why the newest message was refused; "": it was not */
    bool was_said;         /* the log has reported the error */
    struct kvb_log_backoff backoff;
    struct kvb_log_backoff renewal; /* when its socket is opened again */
};

/* The load sources of one worker; their samples are kept for the ranks in settings. */
struct bridge_load {
    struct kvb_worker_config settings;
    char shown_url[kvb_url_shown_bytes]; /* URL of its metrics page, without a password */
    uint32_t origin;
    bool is_leaving;
    size_t owner;
    struct kvb_load_source *zmq; /* owned; NULL: none; the next too */
    struct kvb_load_source *coordinator;
    uint32_t listed;        /* ranks in the coordinator's list */
    uint64_t list_until_ns; /* the list has changed: its engine is queried until this time */
    struct kvb_log_limit list_limit;
    uint64_t scrape_key; /* key of its metrics page; 0: none */
    uint64_t models_key; /* key of its list of models; 0: none */
    bool were_models_refused;
    uint32_t names_left_out; /* of its newest list */
    struct kvb_log_backoff models_log;
    struct bridge_feed feeds[KVB_LOAD_SOURCE_KIND_COUNT];
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

/* The tokens of one republished rank, being written. */
enum bridge_tokens_stage { BRIDGE_TOKENS_IDLE, BRIDGE_TOKENS_MAKING, BRIDGE_TOKENS_STORING };

struct bridge_tokens {
    enum bridge_tokens_stage stage;
    struct bridge_rank *rank; /* NULL: it has left */
    size_t place;             /* of the tree; SIZE_MAX: only the end is missing */
    uint64_t chunks;
    bool has_head;
    uint64_t contents; /* of the tree, when it was begun */
};

/* Checkpoints are written one after another. */
struct bridge_checkpoints {
    struct kvb_checkpoint_store *store; /* owned; NULL: no checkpoints */
    struct kvb_checkpoint_maker maker;
    struct bridge_rank *rank; /* the rank whose checkpoint is being written */
    struct bridge_tokens tokens;
    bool is_due;      /* a rank may need one */
    bool is_stopping; /* checkpoints of all ranks come before tokens of any */
    size_t next_rank;
    struct kvb_log_limit limit;
};

/* Refreshes: all held blocks are stored again, one stream after another. */
struct bridge_refresh {
    struct kvb_refresh_responder responder;
    struct kvb_bus_subscription *incoming; /* owned */
    struct kvb_refresh_plan plan;
    struct bridge_rank *rank; /* the rank that is being refreshed; NULL: none */
    bool is_wished;           /* the refresh was requested */
    size_t asked;             /* requested ranks that still wait */
    size_t next_requested;    /* where the search for a requested rank continues */
    size_t next_rank;      /* where the search for a rank without a turn in this round continues */
    uint64_t next_look_ns; /* no search before this time */
    uint64_t next_measure_ns;
    struct kvb_router_batch events; /* owned: the part that is being published */
};

/* Other bridges that publish streams of this one. */
struct bridge_rivals {
    struct kvb_rival_table table;
    struct kvb_bus_subscription *incoming; /* owned */
    char subject[kvb_subject_bytes];
    uint64_t next_look_ns;
    uint64_t listed_ns;      /* when the own streams were published; 0: at the next look */
    uint64_t listed_changes; /* of membership, at that time */
};

/* Limits of the HTTP server. */
enum { http_threads = 2, max_http_connections = 128 };

struct bridge_service;

/* From the engines' sockets to the steps of their streams.  Only the ingest thread uses it. */
struct bridge_ingest {
    struct kvb_resolver *resolver; /* owned; the next four too */
    struct kvb_zmq *zmq;
    struct kvb_poller *poller;
    struct kvb_scraper *scraper; /* NULL: no worker has a metrics page */
    void **owners;               /* for each number its rank or load, borrowed; NULL: free */
    uint64_t scrape_keys;        /* how many keys were given so far */
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

/* All ranks and load sources, and the sources of their changes. */
struct bridge_membership {
    struct bridge_rank **ranks; /* owned: room for kvb_max_streams, rank_count in use */
    size_t rank_count;
    uint64_t changes;           /* ranks added or removed so far */
    size_t republished_count;   /* ranks whose events are republished */
    size_t next_republished;    /* whose turn is first */
    struct bridge_load **loads; /* owned: room for kvb_max_workers */
    size_t load_count;
    struct membership_work *work;      /* owned: kvbridge/membership.c */
    struct kvb_discovery *discovery;   /* owned */
    struct kvb_dns_list *dns_list;     /* owned; NULL: none is configured */
    struct kvb_kubernetes *kubernetes; /* owned; NULL: no pods are watched */
};

/* Sums over all ranks, for /metrics. */
struct bridge_totals {
    uint64_t of[kvb_bridge_metric_count];
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
    pthread_rwlock_t sets_lock; /* protects the next two, what they borrow, and the list of ranks */
    struct kvb_prometheus_set *rank_sets; /* owned; of ranks 0 .. rank_set_count-1 */
    size_t rank_set_count;
    pthread_mutex_t text_lock;
    struct kvb_buf state_text;   /* the newest status, under text_lock */
    struct kvb_detail not_ready; /* why not; "": ready; protected by text_lock */
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
    struct bridge_rivals rivals;

    struct kvb_thread thread; /* ingest */
    int wake_fd;              /* eventfd: stop, and commands */
    atomic_bool is_running;   /* commands are answered */
    atomic_bool is_stopping;
};

/* ---- kvbridge/ranks.c: one rank ---- */
kvb_status kvb_bridge_open_rooms(struct kvb_bridge *bridge, struct kvb_detail *detail);
void kvb_bridge_close_ranks(struct kvb_bridge *bridge);

/* On failure nothing has changed.  KVB_TOO_LARGE: the bridge is full. */
kvb_status kvb_bridge_open_rank(
    struct kvb_bridge *bridge, const struct kvb_worker_config *settings, uint32_t origin,
    struct kvb_detail *detail);

/* Tells the stream what the rank's facts say about its engine's speculation. */
void kvb_bridge_note_speculation(struct bridge_rank *rank);

/* Removes rank `at` and all references to it.  The last rank takes its index. */
void kvb_bridge_remove_rank(struct kvb_bridge *bridge, size_t at);

/* Gives the owner the lowest free number of first .. first + most - 1.  KVB_TOO_LARGE */
kvb_status kvb_bridge_take_owner(
    struct bridge_ingest *ingest, size_t first, size_t max, void *whose, size_t *out_owner);

/* Raises the limit of open files for these sockets beside those of all ranks.  KVB_BAD_CONFIG */
kvb_status kvb_bridge_make_room(
    const struct kvb_bridge *bridge, const struct kvb_zmq_size *more, struct kvb_detail *detail);

/* The open files of the bridge that are not sockets of ZMQ: those of HTTP. */
size_t kvb_bridge_other_files(const struct kvb_bridge_config *config);

/* Makes a heartbeat due in this turn, so that new facts and names are published at once. */
void kvb_bridge_beat_at_once(struct kvb_bridge *bridge, struct bridge_rank *rank);

/* NULL: there is none. */
struct bridge_rank *
kvb_bridge_find_rank(const struct kvb_bridge *bridge, uint64_t worker_id, uint32_t dp_rank);

/* ---- kvbridge/republish.c: a rank's events once more, for readers of engines ---- */

/* After the rank's checkpoint was restored.  Does nothing where that is not configured.  What it
 * has opened is closed with the rank, also on failure. */
kvb_status kvb_bridge_open_republish(struct kvb_bridge *bridge, struct bridge_rank *rank);

enum bridge_republish_end { BRIDGE_REPUBLISH_STOP, BRIDGE_REPUBLISH_WORKER_GONE };
void kvb_bridge_close_republish(
    struct kvb_bridge *bridge, struct bridge_rank *rank, enum bridge_republish_end end);

/* One turn of all of them, of max_ns at most.  True: there is more to do. */
bool kvb_bridge_republish(struct kvb_bridge *bridge, uint64_t max_ns);

/* A reader has sent something. */
void kvb_bridge_republish_input(struct bridge_rank *rank);

/* The bridge stops, and uses no more numbers. */
void kvb_bridge_save_numbers(struct kvb_bridge *bridge);

/* Borrowed; rank->republish is not NULL. */
const struct kvb_republish_counts *kvb_bridge_count_republish(const struct bridge_rank *rank);
const struct kvb_block_tree_counts *kvb_bridge_count_tree(const struct bridge_rank *rank);
/* Borrowed texts. */
void kvb_bridge_report_republish(const struct bridge_rank *rank, struct kvb_republish_report *out);
/* Why it does not listen; "": it does. */
const char *kvb_bridge_republish_trouble(const struct bridge_rank *rank);

/* Of a rank that is republished. */
struct kvb_block_tree *kvb_bridge_tree(const struct bridge_rank *rank);

/* ---- kvbridge/republish_tokens.c: tokens beside a checkpoint ---- */

void kvb_bridge_want_tokens(struct bridge_rank *rank);
/* True: those of some rank are being written. */
bool kvb_bridge_begin_tokens(struct kvb_bridge *bridge);
void kvb_bridge_save_tokens(struct kvb_bridge *bridge); /* the next part */
/* False: they could not be written, *out_why says why. */
bool kvb_bridge_take_tokens_outcome(struct kvb_bridge *bridge, struct kvb_detail *out_why);
/* What is not written to its end is given up, and due again. */
void kvb_bridge_postpone_tokens(struct bridge_tokens *tokens);
/* The rank leaves. */
void kvb_bridge_drop_tokens(struct bridge_checkpoints *checkpoints, const struct bridge_rank *rank);
void kvb_bridge_void_tokens(struct bridge_checkpoints *checkpoints, const struct bridge_rank *rank);

bool kvb_bridge_has_tokens(const struct kvb_bridge *bridge, const struct bridge_rank *rank);
/* Into the rank's tree, before the mirror says what is held. */
void kvb_bridge_restore_tokens(struct kvb_bridge *bridge, struct bridge_rank *rank);

/* ---- kvbridge/membership.c: adding and removing ranks ---- */

/* Opens the ranks of the file, before the ingest thread runs. */
kvb_status kvb_bridge_open_membership(struct kvb_bridge *bridge, struct kvb_detail *detail);
void kvb_bridge_close_membership(struct bridge_membership *membership);

/* Starts discovery after the ingest thread; it ends before that thread. */
kvb_status kvb_bridge_open_discovery(struct kvb_bridge *bridge);

/* Works on requests, a part in each turn.  True: there is more to do. */
bool kvb_bridge_work_membership(struct kvb_bridge *bridge, uint64_t now_ns);

/* ---- kvbridge/loop.c ---- */

/* The functions that stream/serve.h calls; their context is the bridge. */
extern const struct kvb_serve_world kvb_bridge_world;

static inline struct bridge_rank *kvb_bridge_rank_of(struct kvb_served *served)
{
    return (struct bridge_rank *)(void *)served; /* `served` is its first member */
}

static inline void
kvb_bridge_count(struct bridge_shown *shown, enum kvb_bridge_metric metric, uint64_t more)
{
    kvb_metric_add(&shown->metrics, metric, more);
}

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

/* ---- kvbridge/load.c: load of the engines, from all sources ---- */

/* Opens all load sources of a worker; errors as kvb_bridge_open_rank(). */
kvb_status kvb_bridge_open_load(
    struct kvb_bridge *bridge, const struct kvb_worker_config *settings, uint32_t origin,
    struct kvb_detail *detail);
/* Like kvb_bridge_remove_rank().  The figures of the sources stay until they expire. */
void kvb_bridge_close_load(struct kvb_bridge *bridge, size_t at);
void kvb_bridge_close_loads(struct kvb_bridge *bridge);
/* The number of load sources of all workers. */
size_t kvb_bridge_load_sources(const struct bridge_membership *membership);

/* Receives some load messages and keeps their figures. */
void kvb_bridge_take_loads(struct kvb_bridge *bridge, struct bridge_load *load, uint64_t now_ns);
void kvb_bridge_take_pages(struct kvb_bridge *bridge, uint64_t now_ns);

/* Logs load sources that have become silent. */
void kvb_bridge_watch_loads(struct kvb_bridge *bridge, uint64_t now_ns);

/* out has room for KVB_LOAD_SOURCE_KIND_COUNT of each load; returns how many. */
size_t kvb_bridge_report_loads(
    const struct bridge_membership *membership, uint64_t now_ns,
    struct kvb_load_source_report *out);

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

/* ---- kvbridge/refresh.c: all held blocks are stored again, for routers that start late ---- */
kvb_status kvb_bridge_open_refresh(struct kvb_bridge *bridge);
void kvb_bridge_close_refresh(struct bridge_refresh *refresh);

/* Called in every turn: takes requests, and stores a part of a stream again when that is due. */
void kvb_bridge_refresh(struct kvb_bridge *bridge, uint64_t now_ns);

/* The rank leaves. */
void kvb_bridge_drop_refresh(struct kvb_bridge *bridge, struct bridge_rank *rank);

/* ---- kvbridge/rivals.c: other bridges that publish streams of this one ---- */
/* After the ranks.  Its subscription and its table are closed with the bridge. */
kvb_status kvb_bridge_open_rivals(struct kvb_bridge *bridge);
/* Called in every turn: logs rivals, and publishes which streams this bridge has. */
void kvb_bridge_watch_rivals(struct kvb_bridge *bridge, uint64_t now_ns);
/* NATS is connected: what was published before may be lost. */
void kvb_bridge_list_streams_soon(struct kvb_bridge *bridge);

/* ---- kvbridge/report.c: periodic messages ---- */

void kvb_bridge_beat(struct kvb_bridge *bridge, struct bridge_rank *rank, bool is_bye);
void kvb_bridge_publish_loads(struct kvb_bridge *bridge, uint64_t now_ns);
void kvb_bridge_publish_status(struct kvb_bridge *bridge, uint64_t now_ns);

/* ---- kvbridge/checkpoint.c: restarts continue from checkpoints ---- */
kvb_status kvb_bridge_open_checkpoints(struct kvb_bridge *bridge, struct kvb_detail *detail);
void kvb_bridge_close_checkpoints(struct bridge_checkpoints *checkpoints);

/* Restores the stream of a newly opened rank from its checkpoint, if there is one. */
void kvb_bridge_restore_rank(struct kvb_bridge *bridge, struct bridge_rank *rank, uint64_t home);
/* Called after the ranks are open: spreads their checkpoints over time. */
void kvb_bridge_spread_checkpoints(struct kvb_bridge *bridge);

/* Called for each rank once a second: is its checkpoint due? */
void kvb_bridge_look_for_checkpoint(
    struct kvb_bridge *bridge, const struct bridge_rank *rank, uint64_t now_ns);

/* Called in every turn: writes a part of a checkpoint, if one is due. */
void kvb_bridge_save(struct kvb_bridge *bridge);
/* Called at the end: writes checkpoints of all changed streams. */
void kvb_bridge_save_all(struct kvb_bridge *bridge);

/* Removes the checkpoint of a rank that is removed. */
void kvb_bridge_drop_checkpoint(struct bridge_checkpoints *checkpoints, struct bridge_rank *rank);

/* Called before events are published that do not come from a batch, and before the first event of
 * an epoch. */
void kvb_bridge_void_checkpoint(struct kvb_bridge *bridge, struct bridge_rank *rank);
void kvb_bridge_telling_epoch(
    struct kvb_bridge *bridge, struct bridge_rank *rank, const kvb_epoch *epoch);

/* ---- kvbridge/stats.c: the values on /metrics ---- */

/* Called before ranks are opened and HTTP threads are started.  KVB_NO_MEMORY */
kvb_status kvb_bridge_open_stats(struct kvb_bridge *bridge);
/* Sets the values of a rank to zero. */
void kvb_bridge_begin_stats(struct bridge_rank *rank);
/* Called after ranks were added or removed, with sets_lock held for writing. */
void kvb_bridge_list_stats(struct kvb_bridge *bridge);
void kvb_bridge_close_stats(struct bridge_shown *shown);

/* Counts a run after its steps and their publishing. */
void kvb_bridge_count_run(struct bridge_rank *rank, const struct bridge_run *run, uint64_t took_ns);

/* Updates the values of one rank, adds them to the sums, and logs what is wrong with it. */
void kvb_bridge_update_rank(
    struct kvb_bridge *bridge, struct bridge_rank *rank, const struct kvb_heartbeat *beat,
    uint64_t now_ns, struct bridge_totals *totals);
void kvb_bridge_show_totals(struct kvb_bridge *bridge, const struct bridge_totals *sums);
/* True: there are so many ranks that each status calls these two. */
bool kvb_bridge_updates_with_status(const struct kvb_bridge *bridge);

/* Copies the counters of streams, sources and the bus, when that is due. */
void kvb_bridge_update_metrics(struct kvb_bridge *bridge, uint64_t now_ns);

/* The whole page.  Any thread. */
kvb_status kvb_bridge_metrics_page(struct bridge_shown *shown, struct kvb_buf *out);

/* ---- kvbridge/service.c: the NATS micro-service protocol ---- */
kvb_status kvb_bridge_open_service(struct kvb_bridge *bridge);
void kvb_bridge_close_service(struct bridge_shown *shown);
void kvb_bridge_show_loads(struct kvb_bridge *bridge); /* the data of $SRV.STATS */

/* ---- kvbridge/trouble.c ---- */

/* Why objects of a store are not listed, for people; NULL: all of them are. */
const char *
kvb_bridge_store_trouble(const struct bridge_rank *rank, const struct kvb_heartbeat *beat);

/* An engine of this origin or one of its ranks has changed: queries the engine again, if it was
 * discovered. */
void kvb_bridge_rediscover(struct kvb_bridge *bridge, uint32_t origin);

/* Logs when a stream becomes DOWN or PARTIAL, and when it recovers, after a second in that state,
 * and for one rank at most every ten seconds.  Logs once when a discovered engine seems to connect
 * to the address that it names, because then nobody listens there, and once when the engine's block
 * size differs from the configured one. */
void kvb_bridge_watch_state(
    struct kvb_bridge *bridge, struct bridge_rank *rank, const struct kvb_heartbeat *beat,
    uint64_t now_ns);

/* ---- kvbridge/silence.c ---- */

/* Finds why nothing comes from the engine (stream/silence.h), notes it in the stream, and logs a
 * fault once. */
void kvb_bridge_watch_silence(
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
