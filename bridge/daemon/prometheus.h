#pragma once

#include "core/buf.h"
#include "core/metric.h"
#include "core/status.h"

#include <stddef.h>

/* The page that Prometheus reads, text format 0.0.4:
 *
 *     # HELP kvb_events_skipped_total Events not applied, by reason.
 *     # TYPE kvb_events_skipped_total counter
 *     kvb_events_skipped_total{reason="bad_stored"} 3
 *
 *     # TYPE kvb_question_duration_seconds histogram
 *     kvb_question_duration_seconds_bucket{le="1e-06"} 0
 *     ... one line a bound, each counting all below it ...
 *     kvb_question_duration_seconds_bucket{le="+Inf"} 7
 *     kvb_question_duration_seconds_sum 0.00021
 *     kvb_question_duration_seconds_count 7
 *
 * Threads: any thread (values are relaxed atomics); the caller locks `out`.
 * Every append fails with KVB_TOO_LARGE or KVB_NO_MEMORY as kvb_buf does; what
 * was appended before stays. */

#define KVB_PROMETHEUS_TYPE "text/plain; version=0.0.4; charset=utf-8"

/* Appends the whole table; HELP and TYPE once for adjacent rows of one name. */
kvb_status kvb_prometheus_table(const struct kvb_metrics *metrics, struct kvb_buf *out);

/* One of many that count the same things, such as the streams of a bridge. */
struct kvb_prometheus_set {
    const char *labels; /* a="1",b="2", escaped; "" for none; borrowed, like its values */
    struct kvb_metrics metrics;
};

/* Appends all sets, which share one table of rows: each name once, below it each set. */
kvb_status
kvb_prometheus_sets(const struct kvb_prometheus_set *sets, size_t count, struct kvb_buf *out);
