#include "core/metric.h"

#include <assert.h>
#include <stdatomic.h>

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
