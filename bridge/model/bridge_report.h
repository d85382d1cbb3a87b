#pragma once

#include "model/stream.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The status that a bridge publishes every second, for people, dashboards, and the other bridges
 * of its component (which must use the same profile). */

enum { kvb_bridge_id_bytes = 64 };

struct kvb_stream_report {
    struct kvb_heartbeat beat;
    bool has_last_seq;
    uint64_t last_seq; /* the engine's newest */
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
    bool is_id_made;                /* derived from the address: none was configured */
    uint32_t configured_block_size; /* beat has the engine's, once it is known */
    const char *role;               /* borrowed: "standby", "active"; NULL: not of a standby */
    const char *why;                /* borrowed; what an operator should do; "": nothing */
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

/* "zmq", ...; "waiting", ...  Never NULL. */
const char *kvb_load_source_kind_name(enum kvb_load_source_kind kind);
const char *kvb_load_source_state_name(enum kvb_load_source_state state);

struct kvb_load_source_report {
    uint64_t worker_id;
    enum kvb_load_source_kind kind;
    enum kvb_load_source_state state;
    bool was_received;
    uint64_t age_ms;     /* of the newest values */
    uint64_t refused;    /* messages or page readings without usable values */
    uint32_t ranks;      /* in the list of a coordinator */
    const char *address; /* borrowed, like `why` */
    const char *why;     /* why the newest one was refused; "": it was not */
};

struct kvb_bridge_report {
    char bridge_id[kvb_bridge_id_bytes + 1];
    const char *version; /* borrowed, like the two below */
    const char *name_space;
    const char *component;
    enum kvb_profile profile;
    bool is_publishing;
    bool is_standby; /* publish.standby */
    uint64_t uptime_s;
    uint64_t events_published;
    uint64_t batches_received;
    uint64_t nats_reconnects;
    struct kvb_stream_report *streams; /* borrowed */
    size_t stream_count;
    struct kvb_load_source_report *loads; /* borrowed */
    size_t load_count;
};

/* The part of a bridge's status that the other bridges compare with their own. */
struct kvb_bridge_identity {
    char bridge_id[kvb_bridge_id_bytes + 1];
    bool is_publishing;
    bool has_profile; /* its profile is one that we know */
    enum kvb_profile profile;
    char profile_name[kvb_name_bytes + 1];
};
