#pragma once

#include <stddef.h>
#include <stdint.h>

/* Counters, gauges and histograms in a table.  The owner of the table makes the enum of ids and the
 * rows from one X-macro, so they cannot disagree.
 *
 *     #define BRIDGE_METRICS(X) \
 *         X(batches_received, COUNTER, "kvb_batches_received_total", "", "Batches read ...") \
 *         X(skipped_stored, COUNTER, "kvb_events_skipped_total", "reason=\"bad_stored\"", "...")
 *
 * Rows of the same name are adjacent and differ in labels.
 *
 * A histogram takes kvb_metric_slots_HISTOGRAM consecutive values.  Only the first of its rows
 * is filled in, and the next id follows the last of them:
 *
 *     values  [ <= 1 us ][ <= 4 us ] ... [ above 262 ms ][ sum, ns ]
 *
 * Threads: any thread; values are relaxed atomics. */

enum kvb_metric_type {
    KVB_METRIC_COUNTER,
    KVB_METRIC_GAUGE,
    KVB_METRIC_REAL_COUNTER, /* the value is a double: kvb_metric_set_real() */
    KVB_METRIC_REAL_GAUGE,
    KVB_METRIC_HISTOGRAM /* of durations; the page shows seconds */
};

enum { kvb_metric_buckets = 11 };

/* How many values a row of each type takes. */
enum {
    kvb_metric_slots_COUNTER = 1,
    kvb_metric_slots_GAUGE = 1,
    kvb_metric_slots_REAL_COUNTER = 1,
    kvb_metric_slots_REAL_GAUGE = 1,
    kvb_metric_slots_HISTOGRAM = kvb_metric_buckets + 1
};

struct kvb_metric_row {
    const char *name;   /* kvb_<noun>_<unit>[_total]; NULL: a further value of a histogram */
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

void kvb_metric_set_real(struct kvb_metrics *metrics, size_t id, double value);
double kvb_metric_get_real(const struct kvb_metrics *metrics, size_t id);

/* Adds `times` durations with the sum total_ns to a histogram.  Each counts as the average.  Does
 * nothing when times is 0. */
void kvb_metric_observe(struct kvb_metrics *metrics, size_t id, uint64_t total_ns, uint64_t times);

/* Returns the largest duration of the bucket; UINT64_MAX for the last bucket. */
uint64_t kvb_metric_bound_ns(size_t bucket);
