#pragma once

#include <stddef.h>
#include <stdint.h>

/* Counters and gauges, as a table: the enum of ids and the rows are made from
 * one X-macro by whoever owns the table, so they cannot disagree.
 *
 *     #define BRIDGE_METRICS(X) \
 *         X(batches_received, COUNTER, "kvb_batches_received_total", "", "Batches read ...") \
 *         X(skip_bad_stored, COUNTER, "kvb_events_skipped_total", "reason=\"bad_stored\"", "...")
 *
 * Rows of one name stand together; they differ in labels.
 * Threads: any thread; values are relaxed atomics. */

enum kvb_metric_type { KVB_METRIC_COUNTER, KVB_METRIC_GAUGE };

struct kvb_metric_row {
    const char *name;   /* kvb_<noun>_<unit>[_total] */
    const char *labels; /* inside the braces; "" for none */
    const char *help;
    enum kvb_metric_type type;
};

struct kvb_metrics {
    const struct kvb_metric_row *rows; /* borrowed, static */
    _Atomic uint64_t *values;          /* borrowed, parallel to rows */
    size_t count;
};

void kvb_metric_add(struct kvb_metrics *metrics, size_t id, uint64_t more);
void kvb_metric_set(struct kvb_metrics *metrics, size_t id, uint64_t value);
uint64_t kvb_metric_get(const struct kvb_metrics *metrics, size_t id);
