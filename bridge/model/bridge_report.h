#pragma once

#include "model/stream.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* What a bridge says of itself every second, for people, dashboards, and the
 * other bridges of its component (which must speak the same profile). */

enum { kvb_bridge_id_bytes = 64 };

struct kvb_stream_report {
    struct kvb_heartbeat beat;
    bool has_last_seq;
    uint64_t last_seq; /* of the engine */
    uint64_t lag_ms;   /* how long ago a batch was applied or the tail was proven */
    uint64_t batches;
    uint64_t events; /* of the engine, applied since the bridge began */
    uint64_t gaps;
    uint64_t replays;
    uint64_t restarts;
    uint64_t reconnects; /* of the socket to the engine, after a loss */
    uint64_t unrooted;
    const char *endpoint; /* borrowed */
};

struct kvb_bridge_report {
    char bridge_id[kvb_bridge_id_bytes + 1];
    const char *version; /* borrowed, like the two below */
    const char *name_space;
    const char *component;
    enum kvb_profile profile;
    bool is_publishing;
    uint64_t uptime_s;
    uint64_t events_published;
    uint64_t batches_received;
    uint64_t nats_reconnects;
    struct kvb_stream_report *streams; /* borrowed */
    size_t stream_count;
};

/* What one bridge wants to know of another. */
struct kvb_bridge_identity {
    char bridge_id[kvb_bridge_id_bytes + 1];
    bool is_publishing;
    bool has_profile; /* a profile that we know */
    enum kvb_profile profile;
    char profile_name[kvb_name_bytes + 1];
};
