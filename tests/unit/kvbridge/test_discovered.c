#include "kvb_test.h"

#include "kvbridge/discovery.h"
#include "kvbridge/endpoint.h"

#include <stdio.h>
#include <string.h>

static struct kvb_worker_config advertised[kvb_max_ranks + 1];

static struct kvb_worker_config worker_at(const char *url)
{
    struct kvb_worker_config worker = { .id = 7, .block_size = 16, .ranks = 1 };

    (void)snprintf(worker.model, sizeof worker.model, "m");
    (void)snprintf(worker.discover, sizeof worker.discover, "%s", url);
    (void)snprintf(worker.load.zmq, sizeof worker.load.zmq, "tcp://engine:7557");
    (void)snprintf(worker.load.prometheus, sizeof worker.load.prometheus, "http://engine/metrics");
    return worker;
}

static const struct kvb_event_sources two = {
    .sources = { { .dp_rank = 0,
                   .endpoint = "tcp://*:41001",
                   .replay_endpoint = "tcp://0.0.0.0:41003",
                   .topic = "kv" },
                 { .dp_rank = 3, .endpoint = "tcp://10.0.0.9:41002" } },
    .count = 2,
};

static void there_is_one_id_for_each_rank_or_one_for_all(void **state)
{
    struct kvb_worker_config worker = worker_at("http://engine:8000");
    struct kvb_detail why = { "" };
    size_t count = 0;

    (void)state;
    worker.ids[0] = 5;
    worker.id_count = 1;
    assert_int_equal(
        kvb_discovery_workers_of(&worker, &two, advertised, &count, &why), KVB_BAD_CONFIG);
    assert_non_null(strstr(why.text, "the engine has rank 3, but `ids` has only 1 ids"));
    worker.ids[3] = 8;
    worker.id_count = 4;
    assert_ok(kvb_discovery_workers_of(&worker, &two, advertised, &count, &why));
    assert_int_equal(advertised[0].id, 5);
    assert_int_equal(advertised[1].id, 8);
}

static void an_invalid_address_is_refused(void **state)
{
    const struct kvb_worker_config worker = worker_at("http://engine:8000");
    const struct kvb_event_sources bad = { .sources = { { .endpoint = "nonsense" } }, .count = 1 };
    struct kvb_detail why = { "" };
    size_t count = 0;

    (void)state;
    assert_int_equal(
        kvb_discovery_workers_of(&worker, &bad, advertised, &count, &why), KVB_BAD_CONFIG);
    assert_non_null(strstr(why.text, "nonsense is not a socket address"));
}

static bool is_taken_to_connect(const char *endpoint)
{
    const struct kvb_worker_config worker = worker_at("http://engine:8000");
    struct kvb_event_sources sources = { .count = 1 };
    size_t count = 0;

    (void)snprintf(sources.sources[0].endpoint, sizeof sources.sources[0].endpoint, "%s", endpoint);
    assert_ok(kvb_discovery_workers_of(&worker, &sources, advertised, &count, NULL));
    return advertised[0].may_connect;
}

/* As vLLM's and SGLang's publishers decide it. */
static void without_a_star_the_engine_may_connect_instead_of_listening(void **state)
{
    (void)state;
    assert_false(is_taken_to_connect("tcp://*:5557"));
    assert_false(is_taken_to_connect("tcp://[::]:5557"));
    assert_false(is_taken_to_connect("ipc:///tmp/kv"));
    assert_true(is_taken_to_connect("tcp://127.0.0.1:5557"));
    assert_true(is_taken_to_connect("tcp://bridge:5557"));
    assert_true(is_taken_to_connect("tcp://0.0.0.0:5557"));
}

static void addresses_that_other_processes_cannot_reach_are_refused(void **state)
{
    const struct kvb_worker_config worker = worker_at("http://engine:8000");
    const struct kvb_event_sources inside = { .sources = { { .endpoint = "inproc://kv" } },
                                              .count = 1 };
    struct kvb_detail why = { "" };
    size_t count = 0;

    (void)state;
    assert_int_equal(
        kvb_discovery_workers_of(&worker, &inside, advertised, &count, &why), KVB_BAD_CONFIG);
    assert_non_null(strstr(why.text, "inproc://kv is reachable only inside the engine's process"));
}

static void the_host_is_extracted_from_a_url(void **state)
{
    static const char *const rows[][2] = {
        { "http://engine:8000", "engine" },
        { "http://engine", "engine" },
        { "https://engine/a:b@c", "engine" },
        { "http://me:word@engine:8000/x", "engine" },
        { "http://[::1]:8000/", "[::1]" },
        { "http://10.0.0.1:8000?x=http://y", "10.0.0.1" },
        { "nonsense", "" },
    };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const kvb_span host = kvb_endpoint_host_of_url(rows[i][0]);
        assert_int_equal(host.len, strlen(rows[i][1]));
        assert_memory_equal(host.data, rows[i][1], host.len);
    }
}

SUITE(discovered)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(there_is_one_id_for_each_rank_or_one_for_all),
        cmocka_unit_test(an_invalid_address_is_refused),
        cmocka_unit_test(without_a_star_the_engine_may_connect_instead_of_listening),
        cmocka_unit_test(addresses_that_other_processes_cannot_reach_are_refused),
        cmocka_unit_test(the_host_is_extracted_from_a_url),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
