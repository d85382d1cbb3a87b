#include "fleet/metrics_page.h"

#include "core/own.h"
#include "kvb_test.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

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

static const struct kvb_metrics_page_options options = {
    .address = "127.0.0.1",
    .model = "tiny",
    .first_worker = 5,
    .workers = 2,
    .ranks = 2,
    .block_size = 16,
};

/* The whole answer to one request, read until the server closes. */
static void ask(const struct kvb_metrics_page *page, const char *target, char *out, size_t size)
{
    struct sockaddr_in address = { .sin_family = AF_INET,
                                   .sin_port = htons(kvb_metrics_page_port(page)),
                                   .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    char request[256];
    size_t len = 0;
    ssize_t more = 1;

    assert_int_equal(connect(fd, (struct sockaddr *)&address, sizeof address), 0);
    const int request_len = snprintf(
        request, sizeof request, "%s HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", target);
    assert_int_equal(send(fd, request, (size_t)request_len, 0), request_len);
    while (more > 0 && len < size - 1) {
        more = recv(fd, out + len, size - 1 - len, 0);
        len += more > 0 ? (size_t)more : 0;
    }
    out[len] = '\0';
    (void)close(fd);
}

static void serves_the_metrics_of_one_worker(void **state)
{
    (void)state;
    struct kvb_metrics_page *page = NULL;
    struct kvb_detail detail = { 0 };
    const struct kvb_engine_stats stats = { .load.request_active_slots = 12 };
    char text[8192];

    assert_ok(kvb_metrics_page_start(&options, &detail, &page));
    kvb_metrics_page_set(page, 1, 1, &stats);
    ask(page, "GET /workers/6/metrics", text, sizeof text);
    assert_ptr_equal(strstr(text, "HTTP/1.1 200 "), text);
    assert_non_null(strstr(text, "text/plain; version=0.0.4"));
    assert_non_null(
        strstr(text, "\nvllm:num_requests_running{engine=\"1\",model_name=\"tiny\"} 12\n"));
    ask(page, "GET /workers/5/metrics", text, sizeof text);
    assert_non_null(
        strstr(text, "\nvllm:num_requests_running{engine=\"1\",model_name=\"tiny\"} 0\n"));
    kvb_metrics_page_stop(page);
}

static void answers_404_to_anything_else(void **state)
{
    (void)state;
    struct kvb_metrics_page *page = NULL;
    struct kvb_detail detail = { 0 };
    char text[1024];
    const char *const bad[] = {
        "GET /",
        "GET /metrics",
        "GET /workers/4/metrics",
        "GET /workers/7/metrics",
        "GET /workers/-5/metrics",
        "GET /workers//metrics",
        "GET /workers/5/metrics/",
        "POST /workers/5/metrics",
    };

    assert_ok(kvb_metrics_page_start(&options, &detail, &page));
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        ask(page, bad[i], text, sizeof text);
        assert_ptr_equal(strstr(text, "HTTP/1.1 404 "), text);
    }
    kvb_metrics_page_stop(page);
}

static void reports_which_address_it_cannot_use(void **state)
{
    (void)state;
    struct kvb_metrics_page *page = NULL;
    struct kvb_metrics_page *second = NULL;
    struct kvb_detail detail = { 0 };
    struct kvb_metrics_page_options other = options;

    other.address = "here";
    assert_int_equal(kvb_metrics_page_start(&other, &detail, &page), KVB_BAD_CONFIG);
    assert_string_equal(detail.text, "here: expected an IPv4 address");

    assert_ok(kvb_metrics_page_start(&options, &detail, &page));
    other = options;
    other.port = kvb_metrics_page_port(page);
    assert_int_equal(kvb_metrics_page_start(&other, &detail, &second), KVB_BAD_CONFIG);
    assert_non_null(strstr(detail.text, "cannot be listened on"));
    kvb_metrics_page_stop(page);
}

SUITE(metrics_page)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_each_rank_as_vllm_does),
        cmocka_unit_test(serves_the_metrics_of_one_worker),
        cmocka_unit_test(answers_404_to_anything_else),
        cmocka_unit_test(reports_which_address_it_cannot_use),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
