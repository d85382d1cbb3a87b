#include "kvaggregator/metrics.h"

const struct kvb_metric_row kvb_aggregator_metric_rows[kvb_aggregator_metric_count] = {
#define KVB_AGGREGATOR_METRIC_ROW(id, kind, title, label, text)                                    \
    [kvb_aggregator_##                                                                             \
        id] = { .name = (title), .labels = (label), .help = (text), .type = KVB_METRIC_##kind },
    KVB_AGGREGATOR_METRICS(KVB_AGGREGATOR_METRIC_ROW)
#undef KVB_AGGREGATOR_METRIC_ROW
};
