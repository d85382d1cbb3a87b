#include "kvb_test.h"

#include "core/own.h"
#include "kvbridge/endpoint.h"

#include <stdio.h>
#include <string.h>

static void assert_rank(const char *base, uint32_t rank, const char *expected)
{
    char text[kvb_endpoint_bytes] = "untouched";
    const kvb_status status = kvb_endpoint_for_rank(base, rank, text);

    if (!expected) {
        assert_int_equal(status, KVB_BAD_CONFIG);
        assert_string_equal(text, "untouched");
    } else {
        assert_ok(status);
        assert_string_equal(text, expected);
    }
}

static void adds_the_rank_to_a_tcp_port(void **state)
{
    (void)state;
    assert_rank("tcp://127.0.0.1:5557", 0, "tcp://127.0.0.1:5557");
    assert_rank("tcp://127.0.0.1:5557", 3, "tcp://127.0.0.1:5560");
    assert_rank("tcp://*:5557", 1, "tcp://*:5558");
    assert_rank("tcp://[::1]:5557", 1, "tcp://[::1]:5558");
    assert_rank("tcp://engine.example:65534", 1, "tcp://engine.example:65535");
    assert_rank("tcp://engine.example:65534", 2, NULL);
    assert_rank("tcp://engine.example:5557", UINT32_MAX, NULL);
}

static void appends_the_rank_to_an_inproc_name(void **state)
{
    (void)state;
    assert_rank("inproc://cache", 0, "inproc://cache");
    assert_rank("inproc://cache", 12, "inproc://cache_dp12");
}

static void allows_ipc_for_rank_0_only(void **state)
{
    (void)state;
    assert_rank("ipc:///tmp/kv", 0, "ipc:///tmp/kv");
    assert_rank("ipc:///tmp/kv", 1, NULL);
}

static void refuses_invalid_endpoints(void **state)
{
    (void)state;
    static const char *const bad[] = {
        "",           "127.0.0.1:5557", "udp://a:1",      "TCP://a:1",
        "tcp://",     "tcp://a",        "tcp://a:",       "tcp://:1",
        "tcp://a:0",  "tcp://a:65536",  "tcp://a:-1",     "tcp://a:+1",
        "tcp://a: 1", "tcp://a:1x",     "tcp://a:*",      "tcp://a:5557/x",
        "ipc://",     "inproc://",      "tcp://a:000001",
    };

    for (size_t i = 0; i < KVB_COUNT_OF(bad); i++) {
        struct kvb_endpoint endpoint;
        struct kvb_detail detail = { "" };
        assert_int_equal(kvb_endpoint_parse(bad[i], &endpoint, &detail), KVB_BAD_CONFIG);
        assert_non_null(strstr(detail.text, "tcp://host:port"));
        assert_rank(bad[i], 0, NULL);
    }
}

static void refuses_a_name_that_becomes_too_long(void **state)
{
    (void)state;
    char base[kvb_endpoint_bytes];

    memset(base, 'x', sizeof base);
    memcpy(base, "inproc://", strlen("inproc://"));
    base[sizeof base - 1] = '\0';
    assert_rank(base, 0, base);
    assert_rank(base, 1, NULL);
    base[sizeof base - 5] = '\0'; /* room for four more: "_dp1" */
    char text[kvb_endpoint_bytes];
    assert_ok(kvb_endpoint_for_rank(base, 1, text));
    assert_int_equal(strlen(text), kvb_endpoint_bytes - 1);
    assert_int_equal(kvb_endpoint_for_rank(base, 10, text), KVB_BAD_CONFIG);
}

static bool clash(const char *one, uint32_t ranks, const char *other, uint32_t first)
{
    struct kvb_endpoint_range a;
    struct kvb_endpoint_range b;

    assert_ok(kvb_endpoint_range_of(one, 0, ranks, &a, NULL));
    assert_ok(kvb_endpoint_range_of(other, first, 1, &b, NULL));
    assert_int_equal(kvb_endpoint_range_clashes(&a, &b), kvb_endpoint_range_clashes(&b, &a));
    return kvb_endpoint_range_clashes(&a, &b);
}

static void ranges_clash_if_they_share_a_socket(void **state)
{
    (void)state;
    assert_false(clash("tcp://h:5557", 1, "tcp://h:5558", 0));
    assert_true(clash("tcp://h:5557", 2, "tcp://h:5558", 0));
    assert_true(clash("tcp://h:5557", 4, "tcp://h:5557", 3));
    assert_false(clash("tcp://h:5557", 4, "tcp://h:5557", 4));
    assert_false(clash("tcp://h:5557", 4, "tcp://g:5557", 0));
    assert_true(clash("tcp://Engine.Cluster.local:5557", 1, "tcp://engine.cluster.local:5557", 0));
    assert_true(clash("inproc://a", 2, "inproc://a", 1));
    assert_false(clash("inproc://a", 1, "inproc://A", 0));
    assert_false(clash("inproc://a", 2, "inproc://b", 1));
    assert_true(clash("ipc://a", 1, "ipc://a", 0));
    assert_false(clash("ipc://a", 1, "inproc://a", 0));
}

static void all_names_of_this_host_are_one_host(void **state)
{
    (void)state;
    static const char *const ours[] = { "*", "0.0.0.0", "127.0.0.1", "LocalHost", "[::]", "[::1]" };

    for (size_t i = 0; i < KVB_COUNT_OF(ours); i++) {
        char text[kvb_endpoint_bytes];
        (void)snprintf(text, sizeof text, "tcp://%s:5557", ours[i]);
        assert_true(clash(text, 1, "tcp://127.0.0.1:5557", 0));
        assert_false(clash(text, 1, "tcp://10.0.0.1:5557", 0));
    }
}

static void a_range_reports_which_limit_its_last_rank_exceeds(void **state)
{
    (void)state;
    struct kvb_endpoint_range range;
    struct kvb_detail detail = { "" };

    assert_ok(kvb_endpoint_range_of("tcp://h:65530", 2, 4, &range, NULL));
    assert_int_equal(range.first, 65532);
    assert_int_equal(range.last, 65535);
    assert_int_equal(kvb_endpoint_range_of("tcp://h:65530", 2, 5, &range, &detail), KVB_BAD_CONFIG);
    assert_non_null(strstr(detail.text, "beyond 65535"));
    assert_int_equal(kvb_endpoint_range_of("ipc://x", 0, 2, &range, &detail), KVB_BAD_CONFIG);
    assert_non_null(strstr(detail.text, "rank 0 only"));
}

static uint64_t hash_of(const char *text)
{
    struct kvb_endpoint_range range;

    assert_ok(kvb_endpoint_range_of(text, 0, 1, &range, NULL));
    return kvb_endpoint_range_hash(&range);
}

static void sockets_that_clash_have_one_hash(void **state)
{
    (void)state;
    assert_true(hash_of("tcp://127.0.0.1:5557") == hash_of("tcp://*:5557"));
    assert_true(hash_of("tcp://Engine:5557") == hash_of("tcp://engine:5557"));
    assert_true(hash_of("tcp://10.0.0.7:5557") != hash_of("tcp://10.0.0.7:5558"));
    assert_true(hash_of("tcp://10.0.0.7:5557") != hash_of("tcp://10.0.0.8:5557"));
    assert_true(hash_of("ipc:///tmp/kv") != hash_of("inproc:///tmp/kv"));
}

SUITE(endpoint)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(adds_the_rank_to_a_tcp_port),
        cmocka_unit_test(appends_the_rank_to_an_inproc_name),
        cmocka_unit_test(allows_ipc_for_rank_0_only),
        cmocka_unit_test(refuses_invalid_endpoints),
        cmocka_unit_test(refuses_a_name_that_becomes_too_long),
        cmocka_unit_test(ranges_clash_if_they_share_a_socket),
        cmocka_unit_test(all_names_of_this_host_are_one_host),
        cmocka_unit_test(sockets_that_clash_have_one_hash),
        cmocka_unit_test(a_range_reports_which_limit_its_last_rank_exceeds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
