#include "core/metric.h"

#include <assert.h>
#include <stdatomic.h>
#include <string.h>

/* The bounds are powers of 4 from 1 us on.  They cover an event, which takes some microseconds, and
 * a publish to a server that does not read, which takes 200 ms. */
static const uint64_t first_bound_ns = 1000;

void kvb_metric_add(struct kvb_metrics *metrics, size_t id, uint64_t more)
{
    assert(id < metrics->count);
    atomic_fetch_add_explicit(&metrics->values[id], more, memory_order_relaxed);
}

void kvb_metric_set(struct kvb_metrics *metrics, size_t id, uint64_t value)
{
    assert(id < metrics->count);
    atomic_store_explicit(&metrics->values[id], value, memory_order_relaxed);
}

uint64_t kvb_metric_get(const struct kvb_metrics *metrics, size_t id)
{
    assert(id < metrics->count);
    return atomic_load_explicit(&metrics->values[id], memory_order_relaxed);
}

/* Stores a double as its bit pattern. */
void kvb_metric_set_real(struct kvb_metrics *metrics, size_t id, double value)
{
    uint64_t bits = 0;

    _Static_assert(sizeof bits == sizeof value, "a double has 64 bits");
    memcpy(&bits, &value, sizeof bits);
    kvb_metric_set(metrics, id, bits);
}

double kvb_metric_get_real(const struct kvb_metrics *metrics, size_t id)
{
    const uint64_t bits = kvb_metric_get(metrics, id);
    double value = 0;

    memcpy(&value, &bits, sizeof value);
    return value;
}

uint64_t kvb_metric_bound_ns(size_t bucket)
{
    return bucket + 1 < kvb_metric_buckets ? first_bound_ns << (2 * bucket) : UINT64_MAX;
}

void kvb_metric_observe(struct kvb_metrics *metrics, size_t id, uint64_t total_ns, uint64_t times)
{
    size_t bucket = 0;

    if (times == 0) {
        return;
    }
    const uint64_t each_ns = total_ns / times;
    while (each_ns > kvb_metric_bound_ns(bucket)) {
        bucket++; /* terminates: the last bound is UINT64_MAX */
    }
    kvb_metric_add(metrics, id + bucket, times);
    kvb_metric_add(metrics, id + kvb_metric_buckets, total_ns);
}
