#include "fleet/metrics_page.h"

#include "core/own.h"
#include "kvb_test.h"

#include <string.h>

static void names_each_rank_as_vllm_does(void **state)
{
    (void)state;
    KVB_OWN(kvb_buf_done) struct kvb_buf out = { 0 };
    const struct kvb_engine_stats stats[2] = {
        { .load = { .request_active_slots = 4,
                    .num_requests_waiting = 10,
                    .kv_active_blocks = 56,
                    .kv_total_blocks = 64 },
          .queried_tokens = 3982,
          .hit_tokens = 1376 },
        { .load = { .kv_total_blocks = 64 }, .is_asleep = true },
    };
    const struct kvb_metrics_source source = {
        .model = "tiny", .block_size = 32, .stats = stats, .ranks = 2
    };
    /* The values of a real vLLM 0.32 under load. */
    const char *const lines[] = {
        "# TYPE vllm:num_requests_running gauge\n",
        "vllm:num_requests_running{engine=\"0\",model_name=\"tiny\"} 4\n",
        "vllm:num_requests_waiting{engine=\"0\",model_name=\"tiny\"} 10\n",
        "vllm:num_requests_waiting{engine=\"1\",model_name=\"tiny\"} 0\n",
        ",model_name=\"tiny\",reason=\"capacity\"} 10\n",
        "vllm:kv_cache_usage_perc{engine=\"0\",model_name=\"tiny\"} 0.88888888888888884\n",
        "vllm:kv_cache_usage_perc{engine=\"1\",model_name=\"tiny\"} 0\n",
        "vllm:engine_sleep_state{engine=\"0\",model_name=\"tiny\",sleep_state=\"awake\"} 1\n",
        "vllm:engine_sleep_state{engine=\"1\",model_name=\"tiny\",sleep_state=\"awake\"} 0\n",
        ",model_name=\"tiny\",sleep_state=\"weights_offloaded\"} 1\n",
        "vllm:prefix_cache_queries_total{engine=\"0\",model_name=\"tiny\"} 3982\n",
        "vllm:prefix_cache_hits_total{engine=\"0\",model_name=\"tiny\"} 1376\n",
        "kv_cache_size_tokens=\"2048\",num_cpu_blocks=\"None\",num_gpu_blocks=\"128\"} 1.0\n",
    };

    kvb_buf_init(&out, 1 << 16);
    assert_ok(kvb_metrics_text(&source, &out));
    assert_ok(kvb_buf_append(&out, "", 1));
    for (size_t i = 0; i < KVB_COUNT_OF(lines); i++) {
        assert_non_null(strstr((const char *)out.data, lines[i]));
    }
}

SUITE(metrics_page)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_each_rank_as_vllm_does),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
