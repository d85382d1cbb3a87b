#include "wire/load/engine_message.h"

#include "core/limits.h"
#include "core/own.h"
#include "fleet/dialects/forward_pass.h"
#include "target.h"

#include <stdlib.h>

/* What the decoder accepts is in range, and the encoder writes it again with all values, in its own
 * form. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct kvb_load_sample sample = { 0 };
    struct kvb_load_sample again = { 0 };
    KVB_OWN(kvb_buf_done) struct kvb_buf bytes = { 0 };

    if (kvb_forward_pass_decode((kvb_span){ data, size }, &sample) != KVB_OK) {
        return 0;
    }
    kvb_buf_init(&bytes, kvb_max_load_payload_bytes);
    check(
        kvb_load_can_be(true, (double)sample.load.gpu_cache_usage_perc) &&
        kvb_load_can_be(true, (double)sample.load.gpu_prefix_cache_hit_rate) &&
        kvb_forward_pass_encode(&sample, &bytes) == KVB_OK &&
        kvb_forward_pass_decode(kvb_buf_span(&bytes), &again) == KVB_OK &&
        kvb_load_equal(&sample.load, &again.load) && sample.has_rank == again.has_rank &&
        sample.dp_rank == again.dp_rank && sample.stats != 0 && !again.is_of_scheduler &&
        again.stats == (1U << KVB_FIGURE_COUNT) - 1);
    return 0;
}
