#include "kvbridge/rank_metrics.h"

const struct kvb_metric_row kvb_rank_metric_rows[kvb_rank_metric_count] = {
#define KVB_RANK_METRIC_ROW(id, kind, title, label, text)                                          \
    [kvb_rank_##                                                                                   \
        id] = { .name = (title), .labels = (label), .help = (text), .type = KVB_METRIC_##kind },
    KVB_RANK_METRICS(KVB_RANK_METRIC_ROW)
#undef KVB_RANK_METRIC_ROW
};
