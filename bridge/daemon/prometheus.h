#pragma once

#include "core/buf.h"
#include "core/metric.h"
#include "core/status.h"

#include <stddef.h>

/* Writes the page that Prometheus reads, in text format 0.0.4:
 *
 *     # HELP kvb_events_skipped_total Events not applied, by reason.
 *     # TYPE kvb_events_skipped_total counter
 *     kvb_events_skipped_total{reason="bad_stored"} 3
 *
 *     # TYPE kvb_question_duration_seconds histogram
 *     kvb_question_duration_seconds_bucket{le="1e-06"} 0
 *     ... one line for each bound, with the count of all values up to it ...
 *     kvb_question_duration_seconds_bucket{le="+Inf"} 7
 *     kvb_question_duration_seconds_sum 0.00021
 *     kvb_question_duration_seconds_count 7
 *
 * Threads: any thread (values are relaxed atomics); the caller locks `out`.
 * Every append fails with KVB_TOO_LARGE or KVB_NO_MEMORY as kvb_buf does.  Text
 * appended before stays. */

#define KVB_PROMETHEUS_TYPE "text/plain; version=0.0.4; charset=utf-8"

/* Appends the whole table.  Adjacent rows with the same name share one HELP and TYPE. */
kvb_status kvb_prometheus_table(const struct kvb_metrics *metrics, struct kvb_buf *out);

/* The values of one of several objects with the same metrics, such as the streams of a bridge. */
struct kvb_prometheus_set {
    const char *labels; /* a="1",b="2", escaped; "" for none; borrowed, like its values */
    struct kvb_metrics metrics;
};

/* Appends all sets, which share one table of rows.  Each name stands once, followed by the values
 * of all sets. */
kvb_status
kvb_prometheus_sets(const struct kvb_prometheus_set *sets, size_t count, struct kvb_buf *out);
