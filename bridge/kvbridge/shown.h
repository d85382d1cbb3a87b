#pragma once

#include "core/buf.h"
#include "core/metric.h"
#include "daemon/exact_share.h"
#include "daemon/http.h"
#include "daemon/prometheus.h"
#include "kvbridge/metrics.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* What HTTP threads and $SRV requests read. */

struct kvb_bridge;
struct bridge_rank;
struct bridge_run;
struct bridge_service;
struct kvb_heartbeat;

/* Limits of the HTTP server. */
enum { http_threads = 2, max_http_connections = 128 };

/* Sums over all ranks, for /metrics. */
struct bridge_totals {
    uint64_t of[kvb_bridge_metric_count];
};

struct bridge_shown {
    struct kvb_http *http;          /* owned; NULL: off */
    struct bridge_service *service; /* owned */
    _Atomic uint64_t turned_ns;     /* when the newest turn began */
    _Atomic uint64_t values[kvb_bridge_metric_count];
    struct kvb_metrics metrics;
    uint64_t next_stats_ns;
    uint64_t next_process_ns;
    atomic_size_t stream_count;
    struct kvb_exact_share share;
    /* Protects rank_sets, what they borrow, and the list of ranks.  Readers that come while the
     * ingest thread waits for it wait, too. */
    pthread_rwlock_t sets_lock;
    struct kvb_prometheus_set *rank_sets; /* owned; of ranks 0 .. rank_set_count-1 */
    size_t rank_set_count;
    pthread_mutex_t text_lock;
    struct kvb_buf state_text;   /* the newest status; under text_lock */
    struct kvb_detail not_ready; /* why not; "": ready; under text_lock */
};

static inline void
kvb_bridge_count(struct bridge_shown *shown, enum kvb_bridge_metric metric, uint64_t more)
{
    kvb_metric_add(&shown->metrics, metric, more);
}

/* ---- kvbridge/stats.c: the values on /metrics ---- */

/* Called before ranks are opened and HTTP threads are started.  KVB_NO_MEMORY */
kvb_status kvb_bridge_open_stats(struct kvb_bridge *bridge);
/* Sets the values of a rank to zero. */
void kvb_bridge_begin_stats(struct bridge_rank *rank);
/* Another rank has the index `at` of membership.ranks, or none any more.  sets_lock is held for
 * writing. */
void kvb_bridge_list_stats(struct kvb_bridge *bridge, size_t at);
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

/* ---- kvbridge/http.c ---- */
void kvb_bridge_answer(
    void *context, const struct kvb_http_request *request, struct kvb_http_answer *answer);
