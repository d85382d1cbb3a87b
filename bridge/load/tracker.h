#pragma once

#include "core/status.h"
#include "model/load.h"
#include "model/stream_table.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The newest load of every endpoint (one rank of one worker), and its mean and deviation over the
 * fleet.
 *
 *     load of an endpoint = kv_active_blocks / kv_total_blocks   (0 without a total)
 *     load_avg            = mean over the endpoints that are not stale
 *     load_std            = sample standard deviation, 0 for fewer than two endpoints
 *
 * An endpoint that was silent for expire_ms is stale: it no longer counts in
 * load_avg and load_std, but is still listed.  After forget_ms it is removed.
 *
 * Threads: the caller locks.  Memory: about 350 bytes an endpoint, at most
 * max_endpoints. */
struct kvb_load_tracker;

enum kvb_load_statistic {
    KVB_LOAD_USAGE,        /* kv_active_blocks / kv_total_blocks, sample deviation */
    KVB_LOAD_ACTIVE_BLOCKS /* Dynamo's: kv_active_blocks, population deviation */
};

/* "ratio" or "active_blocks", as in the configuration. */
const char *kvb_load_statistic_name(enum kvb_load_statistic statistic);

struct kvb_load_options {
    size_t max_endpoints; /* at most kvb_max_streams */
    uint64_t expire_ms;
    uint64_t forget_ms; /* a value below expire_ms counts as expire_ms */
    enum kvb_load_statistic statistic;
    uint64_t hash_key; /* hash key of endpoint names; see kvb_stream_table_init() */
};

struct kvb_load_endpoint {
    struct kvb_stream_id id;
    char endpoint_name[kvb_name_bytes + 1];
    struct kvb_load load;
    uint32_t block_size; /* tokens in its blocks; 0: not known, as those of the events */
    uint64_t seen_ns;    /* when the newest load arrived */
    bool is_stale;
};

struct kvb_load_stats {
    double avg;
    double std;
    size_t endpoint_count; /* endpoints that are not stale */
    size_t stale_count;
};

/* On KVB_OK the caller owns *out_tracker.  KVB_NO_MEMORY. */
kvb_status
kvb_load_tracker_new(const struct kvb_load_options *options, struct kvb_load_tracker **out_tracker);

/* NULL is fine. */
void kvb_load_tracker_free(struct kvb_load_tracker *tracker);

/* Records the newest load.  name_space and component are those of the subject.
 * KVB_TOO_LARGE  max_endpoints are known already   KVB_NO_MEMORY */
kvb_status kvb_load_tracker_report(
    struct kvb_load_tracker *tracker, const struct kvb_stream_id *id,
    const struct kvb_load_report *report, uint64_t now_ns);

/* Marks endpoints stale after expire_ms and removes them after forget_ms; true when
 * either happened. */
bool kvb_load_tracker_expire(struct kvb_load_tracker *tracker, uint64_t now_ns);

void kvb_load_tracker_stats(
    const struct kvb_load_tracker *tracker, struct kvb_load_stats *out_stats);

/* The load of one endpoint by the tracker's statistic. */
double
kvb_load_value(const struct kvb_load_tracker *tracker, const struct kvb_load_endpoint *endpoint);

/* Endpoints are numbered 0 .. limit - 1; unused numbers give NULL.  Borrowed until the next report
 * or expire. */
size_t kvb_load_tracker_limit(const struct kvb_load_tracker *tracker);
const struct kvb_load_endpoint *
kvb_load_tracker_at(const struct kvb_load_tracker *tracker, size_t number);

/* NULL: there is no load of this stream. */
const struct kvb_load_endpoint *
kvb_load_tracker_find(const struct kvb_load_tracker *tracker, const struct kvb_stream_id *id);
const struct kvb_load_endpoint *
kvb_load_tracker_find_key(const struct kvb_load_tracker *tracker, const struct kvb_stream_key *key);
