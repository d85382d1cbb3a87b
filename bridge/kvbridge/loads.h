#pragma once

#include "core/backoff.h"
#include "core/log.h"
#include "core/url_show.h"
#include "ingest/zmq/load_source.h"
#include "kvbridge/config.h"
#include "model/load.h"
#include "wire/router/bridge_status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The load sources of the workers. */

enum { kvb_load_life_ms = 3000 }; /* how long load figures are published after they arrived */

struct kvb_bridge;
struct bridge_membership;

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
    struct kvb_backoff renewals; /* when its socket is opened again */
};

/* The load sources of one worker; their samples are kept for its ranks. */
struct bridge_load {
    struct kvb_part *part;               /* a reference: which ranks, of which worker */
    size_t at;                           /* its index in bridge_membership.loads */
    uint32_t number;                     /* of its part, in bridge_membership.running */
    char shown_url[kvb_url_shown_bytes]; /* URL of its metrics page, without a password */
    uint32_t source_number;              /* enum kvb_source_number: whose list has it */
    size_t owner;
    struct kvb_load_source *zmq;         /* owned; NULL: none */
    struct kvb_load_source *coordinator; /* owned; NULL: none */
    uint32_t listed;                     /* ranks in the coordinator's list */
    uint64_t list_until_ns; /* the list has changed: its engine is queried until this time */
    struct kvb_log_limit list_limit;
    uint64_t scrape_key; /* key of its metrics page; 0: none */
    uint64_t models_key; /* key of its list of models; 0: none */
    bool were_models_refused;
    uint32_t names_left_out; /* of its newest list */
    struct kvb_log_backoff models_log;
    struct bridge_feed feeds[KVB_LOAD_SOURCE_KIND_COUNT];
};

/* Opens all load sources of a worker; errors as kvb_bridge_open_rank(). */
kvb_status kvb_bridge_open_load(
    struct kvb_bridge *bridge, struct kvb_part *part, uint32_t source, struct kvb_detail *detail);
/* The same part with other facts. */
void kvb_bridge_set_load_part(struct bridge_load *load, struct kvb_part *part);
/* Like kvb_bridge_remove_rank().  The figures of the sources stay until they expire. */
void kvb_bridge_close_load(struct kvb_bridge *bridge, struct bridge_load *load);
void kvb_bridge_close_loads(struct kvb_bridge *bridge);

/* Receives some load messages and keeps their figures. */
void kvb_bridge_take_loads(struct kvb_bridge *bridge, struct bridge_load *load, uint64_t now_ns);
void kvb_bridge_take_pages(struct kvb_bridge *bridge, uint64_t now_ns);

/* Logs load sources that have become silent. */
void kvb_bridge_watch_loads(struct kvb_bridge *bridge, uint64_t now_ns);

/* out has room for KVB_LOAD_SOURCE_KIND_COUNT of each load; returns how many. */
size_t kvb_bridge_report_loads(
    const struct bridge_membership *membership, uint64_t now_ns,
    struct kvb_load_source_report *out);
