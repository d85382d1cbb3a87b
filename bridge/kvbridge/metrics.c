#include "kvbridge/metrics.h"

const struct kvb_metric_row kvb_bridge_metric_rows[kvb_bridge_metric_count] = {
#define KVB_BRIDGE_METRIC_ROW(id, kind, title, label, text)                                        \
    [kvb_bridge_##                                                                                 \
        id] = { .name = (title), .labels = (label), .help = (text), .type = KVB_METRIC_##kind },
    KVB_BRIDGE_METRICS(KVB_BRIDGE_METRIC_ROW)
#undef KVB_BRIDGE_METRIC_ROW
};
