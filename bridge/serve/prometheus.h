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
 * Threads: any thread (values are relaxed atomics); the caller locks out.
 * Every append fails with KVB_TOO_LARGE or KVB_NO_MEMORY as kvb_buf does; what
 * was appended before stays. */

#define KVB_PROMETHEUS_TYPE "text/plain; version=0.0.4; charset=utf-8"

/* The whole table; HELP and TYPE once for rows of one name that stand together. */
kvb_status kvb_prometheus_table(const struct kvb_metrics *metrics, struct kvb_buf *out);

/* A family that no table holds, such as one gauge per stream: its head once, then
 * its samples.  A family name must not be in a table of the same page. */
kvb_status kvb_prometheus_head(
    struct kvb_buf *out, const char *name, enum kvb_metric_type type, const char *help);

struct kvb_prometheus_label {
    const char *name;  /* ours: not escaped */
    const char *value; /* anyone's: escaped */
};

/* value is written as short as reads back equal; NaN, +Inf, -Inf where it is so. */
kvb_status kvb_prometheus_sample(
    struct kvb_buf *out, const char *name, const struct kvb_prometheus_label *labels,
    size_t label_count, double value);
