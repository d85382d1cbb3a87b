#pragma once

#include "core/log.h"
#include "core/metric.h"
#include "ingest/zmq/source.h"
#include "kvbridge/checkpoint_store.h"
#include "kvbridge/config.h"
#include "kvbridge/rank_metrics.h"
#include "kvbridge/refresh_plan.h"
#include "load/newest.h"
#include "model/stream.h"
#include "stream/checkpoint/policy.h"
#include "stream/page_watch.h"
#include "stream/serve.h"
#include "stream/silence.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* One rank of one worker: its sockets, its stream, its newest load.  Only the ingest thread uses
 * it, except where a field says otherwise. */

struct kvb_bridge;
struct bridge_ingest;
struct bridge_republish;

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

struct bridge_rank {
    struct kvb_served served;      /* must be first: kvb_bridge_rank_of() */
    struct kvb_part *part;         /* a reference: what this rank is */
    struct kvb_worker_facts facts; /* what heartbeats say of it; of `part` */
    size_t at;                     /* its index in bridge_membership.ranks */
    uint32_t number;               /* of its part, in bridge_membership.running */
    size_t owner;                  /* the poller's number, and the index in bridge_ingest.owners */
    uint64_t worker_id;
    uint32_t dp_rank;
    uint32_t source_number;             /* enum kvb_source_number: whose list has it */
    struct kvb_source *source;          /* owned */
    struct bridge_republish *republish; /* owned; NULL: its events are not republished */
    size_t republished_at;              /* else its index in bridge_membership.republished */
    size_t readers;                     /* the poller's number of its readers, where they are */
    bool is_draining;                   /* POST /drain: takes no new requests */
    bool is_crowded;                    /* two engines are connected to its bound socket */
    struct kvb_engine_habits habits;    /* of its messages so far */
    struct kvb_checkpoint_policy checkpoint;
    struct kvb_checkpoint_name checkpoint_name;
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
    struct kvb_log_backoff renewal_log;

    /* Read by HTTP threads. */
    _Atomic uint64_t values[kvb_rank_metric_count];
    struct kvb_metrics metrics;
    /* pod_key="7",dp_rank="0"; of a pod pod_key="namespace/name" */
    char labels[kvb_pod_name_bytes + kvb_pod_namespace_bytes + 64];
};

static inline struct bridge_rank *kvb_bridge_rank_of(struct kvb_served *served)
{
    return (struct bridge_rank *)(void *)served; /* `served` is its first member */
}

/* ---- kvbridge/ranks.c: one rank ---- */
kvb_status kvb_bridge_open_rooms(struct kvb_bridge *bridge, struct kvb_detail *detail);
void kvb_bridge_close_ranks(struct kvb_bridge *bridge);

/* Keeps a reference to the part.  On failure nothing has changed.  KVB_TOO_LARGE: the bridge is
 * full. */
kvb_status kvb_bridge_open_rank(
    struct kvb_bridge *bridge, struct kvb_part *part, uint32_t source,
    struct bridge_rank **out_rank, struct kvb_detail *detail);

/* The same part with other facts. */
void kvb_bridge_set_part(struct bridge_rank *rank, struct kvb_part *part);

/* Tells the stream what the rank's facts say about its engine's speculation. */
void kvb_bridge_note_speculation(struct bridge_rank *rank);

/* Removes the rank and all references to it.  The last rank takes its index. */
void kvb_bridge_remove_rank(struct kvb_bridge *bridge, struct bridge_rank *rank);

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

/* ---- kvbridge/trouble.c ---- */

/* Why objects of a store are not listed, for people; NULL: all of them are. */
const char *
kvb_bridge_store_trouble(const struct bridge_rank *rank, const struct kvb_heartbeat *beat);

/* An engine or one of its ranks has changed: asks the engine again, if it is discovered. */
void kvb_bridge_rediscover(
    struct kvb_bridge *bridge, uint32_t source, const struct kvb_worker_spec *spec);

/* Logs when a stream becomes DOWN or PARTIAL, and when it recovers, after a second in that state,
 * and for one rank at most every ten seconds.  Logs once when a discovered engine seems to connect
 * to the address that it names, because then nobody listens there, and once when the engine's block
 * size differs from the configured one. */
void kvb_bridge_watch_state(
    struct kvb_bridge *bridge, struct bridge_rank *rank, const struct kvb_heartbeat *beat,
    uint64_t now_ns);

/* Finds why nothing comes from the engine (stream/silence.h), notes it in the stream, and logs a
 * fault once. */
void kvb_bridge_watch_silence(
    struct kvb_bridge *bridge, struct bridge_rank *rank, const struct kvb_heartbeat *beat,
    uint64_t now_ns);
