#pragma once

#include "bus/bus.h"
#include "bus/contract.h"
#include "core/status.h"
#include "kvbridge/rival_table.h"

#include <stdint.h>

/* Other bridges that publish streams of this one. */

struct kvb_bridge;

struct bridge_rivals {
    struct kvb_rival_table table;
    struct kvb_bus_subscription *incoming; /* owned */
    char subject[kvb_subject_bytes];
    uint64_t next_look_ns;
    uint64_t listed_ns;      /* when the own streams were published; 0: at the next look */
    uint64_t listed_changes; /* of membership, at that time */
};

/* After the ranks.  Its subscription and its table are closed with the bridge. */
kvb_status kvb_bridge_open_rivals(struct kvb_bridge *bridge);
/* Called in every turn: logs rivals, and publishes which streams this bridge has. */
void kvb_bridge_watch_rivals(struct kvb_bridge *bridge, uint64_t now_ns);
/* NATS is connected: what was published before may be lost. */
void kvb_bridge_list_streams_soon(struct kvb_bridge *bridge);
