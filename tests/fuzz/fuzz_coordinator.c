#include "target.h"
#include "wire/load/engine_message.h"

#include <stdlib.h>

/* What the decoder accepts is in range; its ranks exist, each once, in ascending order. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct kvb_coordinator_update update;

    if (kvb_coordinator_decode((kvb_span){ data, size }, &update) != KVB_OK) {
        return 0;
    }
    check(
        update.count <= update.rank_count && update.rank_count <= kvb_max_ranks &&
        (update.has_ranks || update.rank_count == 0));
    for (size_t i = 0; i < update.count; i++) {
        const struct kvb_load_sample *sample = &update.samples[i];
        const float usage = sample->load.gpu_cache_usage_perc;
        check(
            sample->stats != 0 && sample->has_rank && sample->dp_rank < update.rank_count &&
            (i == 0 || sample->dp_rank > update.samples[i - 1].dp_rank) &&
            (usage >= 0 && usage <= 1));
    }
    return 0;
}
