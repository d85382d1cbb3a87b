#pragma once

#include "core/buf.h"
#include "core/span.h"
#include "core/status.h"
#include "model/stream.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The status that a bridge publishes every second, for people and dashboards. */

enum { kvb_bridge_id_bytes = 64 };

/* The events of a stream that are republished for readers of engine events. */
struct kvb_republish_report {
    const char *events;   /* address; borrowed, like the other texts; NULL: not republished */
    const char *replay;   /* address; "": none */
    uint64_t blocks;      /* blocks that readers know */
    uint64_t left_out;    /* blocks that the engine holds and that are not sent to readers */
    uint64_t next_number; /* sequence number of the next batch */
    uint64_t answers;     /* replay answers in progress */
    const char *why;      /* why readers cannot connect; "": they can */
};

/* Whether the engine gives a request less than it holds; see model/speculation.h. */
struct kvb_speculation_report {
    bool is_shown;      /* false: nothing is known of it */
    bool is_undecided;  /* then there is no drop */
    uint32_t drop;      /* blocks */
    const char *source; /* borrowed, like the next one */
    const char *why;
};

struct kvb_stream_report {
    struct kvb_heartbeat beat;
    struct kvb_speculation_report speculation;
    bool has_last_seq;
    uint64_t last_seq; /* the engine's newest sequence number */
    uint64_t lag_ms;   /* time since a batch was applied or the end of the stream was verified */
    uint64_t batches;
    uint64_t events; /* events of the engine, applied since the bridge started */
    uint64_t gaps;
    uint64_t replays;
    uint64_t restarts;
    uint64_t reconnects; /* of the socket to the engine, after a loss */
    uint64_t unrooted;
    const char *endpoint;           /* borrowed */
    const char *origin;             /* borrowed: "file", "registered", "discovered" */
    const char *model_rule;         /* borrowed: what named a pod's model; "" or NULL: no pod */
    bool is_id_made;                /* worker_id is derived from the address: none is configured */
    uint32_t configured_block_size; /* beat has the engine's, once it is known */
    const char *why;                /* borrowed; what an operator should know; "": nothing */
    struct kvb_republish_report republish;
};

/* Where the load values of a worker come from. */
enum kvb_load_source_kind {
    KVB_LOAD_OF_ZMQ,
    KVB_LOAD_OF_PROMETHEUS,
    KVB_LOAD_OF_COORDINATOR,
    KVB_LOAD_SOURCE_KIND_COUNT
};

enum kvb_load_source_state {
    KVB_LOAD_SOURCE_WAITING, /* nothing received yet, and the wait is still short */
    KVB_LOAD_SOURCE_FRESH,
    KVB_LOAD_SOURCE_STALE, /* nothing received for too long */
    KVB_LOAD_SOURCE_STATE_COUNT
};

/* "zmq", ...  Never NULL. */
const char *kvb_load_source_kind_name(enum kvb_load_source_kind kind);

struct kvb_load_source_report {
    uint64_t worker_id;
    enum kvb_load_source_kind kind;
    enum kvb_load_source_state state;
    bool was_received;
    uint64_t age_ms;     /* of the newest values */
    uint64_t refused;    /* messages or pages without usable values */
    uint32_t ranks;      /* in the list of a coordinator */
    const char *address; /* borrowed, like `why` */
    const char *why;     /* why the newest message or page was refused; "": it was not */
};

struct kvb_named_count {
    const char *name; /* borrowed, like all texts below */
    uint64_t count;
};

/* A pod that is not read as a worker. */
struct kvb_pod_report {
    const char *pod;
    const char *name_space;
    const char *reason;
    const char *remedy;
};

/* The watch of pods: see kvbridge/kubernetes.h. */
struct kvb_kubernetes_report {
    const char *state;
    uint64_t away_s; /* seconds since the API server stopped answering */
    const char *why;
    const struct kvb_named_count *pods; /* by state; borrowed, like the next two */
    size_t pod_count;
    const struct kvb_named_count *refused; /* objects, by reason */
    size_t refused_count;
    const char *refused_why;
    const struct kvb_pod_report *not_taken;
    size_t not_taken_count;
};

struct kvb_bridge_report {
    char bridge_id[kvb_bridge_id_bytes + 1];
    const char *version; /* borrowed, like the two below */
    const char *name_space;
    const char *component;
    unsigned formats; /* of P.kv_events and P.kv_events_pb */
    bool is_publishing;
    uint64_t uptime_s;
    uint64_t events_published;
    uint64_t batches_received;
    uint64_t nats_reconnects;
    /* Fills the reports first_stream .. first_stream + stream_count - 1 one after the other, so
     * that a thousand need no memory.  Their texts are borrowed until the next call. */
    void (*fill_stream)(void *context, size_t at, struct kvb_stream_report *out);
    void *context;
    size_t first_stream;
    size_t stream_count;
    size_t streams_left_out; /* streams omitted, because they would not fit a message */
    struct kvb_load_source_report *loads; /* borrowed */
    size_t load_count;
    const struct kvb_kubernetes_report *kubernetes; /* borrowed; NULL: no pods are watched */
};

/* The JSON of P.bridge_status and of the bridge's GET /state.  KVB_TOO_LARGE, KVB_NO_MEMORY. */
kvb_status kvb_bridge_status_encode(const struct kvb_bridge_report *report, struct kvb_buf *out);

/* P.bridge_streams: which streams a bridge publishes.  Other bridges read it, to notice that they
 * publish one of these too.
 *
 *     {"bridge_id":"host-4711-0a1b2c3d","streams":[[7,0],[7,1]]}      [worker_id,dp_rank]
 *
 * A bridge with more streams than fit a message sends several. */

/* 48 KiB as the longest text: kvb_min_nats_payload_bytes. */
enum { kvb_bridge_streams_most = 1024 };

struct kvb_bridge_stream {
    uint64_t worker_id;
    uint32_t dp_rank;
};

struct kvb_bridge_streams {
    char bridge_id[kvb_bridge_id_bytes + 1];
    size_t count;
    struct kvb_bridge_stream streams[kvb_bridge_streams_most];
};

/* count: at most kvb_bridge_streams_most.  KVB_TOO_LARGE, KVB_NO_MEMORY. */
kvb_status kvb_bridge_streams_encode(
    const char *bridge_id, const struct kvb_bridge_stream *streams, size_t count,
    struct kvb_buf *out);

/* On failure *out has no meaning.
 * KVB_BAD_INPUT  not such a message
 * KVB_TOO_LARGE  more streams */
kvb_status kvb_bridge_streams_decode(kvb_span json, struct kvb_bridge_streams *out);
