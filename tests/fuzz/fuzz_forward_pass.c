#include "wire/forward_pass.h"

#include "core/limits.h"
#include "core/own.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static bool is_same_load(const struct kvb_load *a, const struct kvb_load *b)
{
    return a->request_active_slots == b->request_active_slots &&
           a->request_total_slots == b->request_total_slots &&
           a->kv_active_blocks == b->kv_active_blocks && a->kv_total_blocks == b->kv_total_blocks &&
           a->num_requests_waiting == b->num_requests_waiting &&
           a->gpu_cache_usage_perc == b->gpu_cache_usage_perc &&
           a->gpu_prefix_cache_hit_rate == b->gpu_prefix_cache_hit_rate;
}

static bool is_ratio(float value)
{
    return value >= 0 && value <= 1; /* NaN is neither */
}

/* What the decoder takes is in range, and the encoder says it again. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct kvb_load_sample sample = { 0 };
    struct kvb_load_sample again = { 0 };
    KVB_OWN(kvb_buf_done) struct kvb_buf bytes = { 0 };

    if (kvb_forward_pass_decode((kvb_span){ data, size }, &sample) != KVB_OK) {
        return 0;
    }
    kvb_buf_init(&bytes, kvb_max_load_payload_bytes);
    if (!is_ratio(sample.load.gpu_cache_usage_perc) ||
        !is_ratio(sample.load.gpu_prefix_cache_hit_rate) ||
        kvb_forward_pass_encode(&sample, &bytes) != KVB_OK ||
        kvb_forward_pass_decode(kvb_buf_span(&bytes), &again) != KVB_OK ||
        !is_same_load(&sample.load, &again.load) || sample.has_rank != again.has_rank ||
        sample.dp_rank != again.dp_rank) {
        abort();
    }
    return 0;
}
