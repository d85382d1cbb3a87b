#pragma once

#include "core/span.h"
#include "core/status.h"
#include "kvctl/top/model.h"
#include "model/stream_table.h"

#include <json-c/json.h>

/* All that `kvctl top` has received, put together from four sources:
 *
 *     kv_get.streams, .load, .state  --+
 *     P.bridge_status                  +--> rows by stream id, bridges, hit counts --> model
 *     R.kv-hit-rate                  --+
 *
 * What an aggregator lists it knows best; of a stream that none lists, or while none
 * answers, the bridge's word is shown.  Rates come from two readings of a counter.
 * A row goes when a whole list is without it and its bridge is silent.
 *
 * Threads: the caller locks.  No clock: now is an argument.
 * Memory:  about 700 bytes a stream, at most kvb_max_streams of them; kvb_max_workers
 *          bridges.  What would be more is not shown. */

/* A counter that somebody else counts. */
struct kvctl_top_counter {
    bool is_known;
    uint64_t value;
    uint64_t at_ns;
    struct kvctl_top_figure per_s;
};

struct kvctl_top_stream {
    struct kvctl_top_row row;
    struct kvctl_top_counter events;   /* the bridge's */
    struct kvctl_top_counter event_id; /* the aggregator's, for streams without our bridge */
    uint64_t received_ns;              /* its bridge; 0: never */
    uint64_t lag_ms;                   /* then */
    uint64_t listed_round;             /* the newest that listed it; 0: none */
};

struct kvctl_top_bridge {
    char id[72];
    uint64_t received_ns;
    bool is_listed_twice;
    uint64_t nats_reconnects;
};

/* Sums of the hit-rate events since the beginning. */
struct kvctl_top_hits {
    uint64_t prompt_tokens;
    uint64_t hit_tokens;
    uint64_t routed;
};

enum {
    kvctl_top_hit_rounds = 16, /* the hit rate is that of so many rounds */
    kvctl_top_max_components = 64
};

struct kvctl_top_fleet {
    struct kvb_stream_table table;
    struct kvctl_top_stream *streams; /* owned; by number of the table */
    size_t stream_capacity;
    struct kvb_stream_id components[kvctl_top_max_components]; /* worker and rank aside */
    size_t component_count;
    struct kvctl_top_bridge *bridges; /* owned */
    size_t bridge_count;
    size_t bridge_capacity;
    struct kvctl_top_hits hits;
    struct kvctl_top_hits hit_ring[kvctl_top_hit_rounds]; /* sums after the newest rounds */
    uint64_t round;                                       /* rounds begun */
    struct kvctl_top_figure load_avg;
    struct kvctl_top_figure load_std;
    struct kvctl_top_figure engine_hit_rate;
    struct kvctl_top_link link;
};

void kvctl_top_fleet_init(struct kvctl_top_fleet *fleet);
void kvctl_top_fleet_done(struct kvctl_top_fleet *fleet);

/* ---- From bridges and routers, as it comes ---- */

/* A message of P.bridge_status.  KVB_BAD_INPUT, KVB_TOO_LARGE, KVB_NO_MEMORY: what
 * could be read of it is taken. */
kvb_status kvctl_top_take_status(
    struct kvctl_top_fleet *fleet, const struct kvb_stream_id *component,
    struct json_object *status, uint64_t now_ns);

/* A message of R.kv-hit-rate. */
void kvctl_top_take_hit(struct kvctl_top_fleet *fleet, struct json_object *hit);

/* ---- A round of queries ---- */

void kvctl_top_begin_round(struct kvctl_top_fleet *fleet);

/* One page of kv_get.streams. */
kvb_status
kvctl_top_take_streams(struct kvctl_top_fleet *fleet, struct json_object *answer, uint64_t now_ns);
void kvctl_top_take_load(struct kvctl_top_fleet *fleet, struct json_object *answer);
void kvctl_top_take_state(struct kvctl_top_fleet *fleet, struct json_object *answer);

/* Everything was answered, or trouble says why not (NULL: it was). */
void kvctl_top_end_round(struct kvctl_top_fleet *fleet, const char *trouble, uint64_t now_ns);

/* NATS is there, or not. */
void kvctl_top_set_connected(struct kvctl_top_fleet *fleet, bool is_connected, uint64_t now_ns);

/* ---- Out ---- */

/* Replaces the model's rows, totals and link; none of its rows is shown until
 * kvctl_top_select().  KVB_NO_MEMORY: the model is as it was. */
kvb_status kvctl_top_fleet_show(
    const struct kvctl_top_fleet *fleet, uint64_t now_ns, struct kvctl_top_model *model);
