#include "kvb_test.h"

#include "fail_alloc.h"
#include "wire/event_sources.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct kvb_event_sources found;

static kvb_span span_of(const char *text)
{
    return (kvb_span){ (const uint8_t *)text, strlen(text) };
}

static void read_bad(const char *text, kvb_status expected, const char *sentence)
{
    struct kvb_detail why = { "" };

    found.count = 77;
    assert_int_equal(kvb_event_sources_decode(span_of(text), &found, &why), expected);
    assert_non_null(strstr(why.text, sentence));
    assert_int_equal(found.count, 77); /* untouched */
}

static void reads_an_array_and_sorts_it(void **state)
{
    (void)state;
    assert_ok(kvb_event_sources_decode(
        span_of("[{\"data_parallel_rank\":1,\"endpoint\":\"tcp://0.0.0.0:41002\","
                "\"replay_endpoint\":null,\"topic\":\"kv-events\",\"new\":[1]},"
                "{\"data_parallel_rank\":0,\"endpoint\":\"tcp://0.0.0.0:41001\","
                "\"replay_endpoint\":\"tcp://0.0.0.0:41003\",\"topic\":\"kv\","
                "\"buffer_steps\":10000}]"),
        &found, NULL));
    assert_int_equal(found.count, 2);
    assert_int_equal(found.sources[0].dp_rank, 0);
    assert_string_equal(found.sources[0].endpoint, "tcp://0.0.0.0:41001");
    assert_string_equal(found.sources[0].replay_endpoint, "tcp://0.0.0.0:41003");
    assert_string_equal(found.sources[0].topic, "kv");
    assert_int_equal(found.sources[0].buffer_steps, 10000);
    assert_int_equal(found.sources[1].dp_rank, 1);
    assert_string_equal(found.sources[1].replay_endpoint, "");
}

static void reads_an_object_around_it_and_no_rank_as_rank_0(void **state)
{
    (void)state;
    assert_ok(kvb_event_sources_decode(
        span_of("{\"sources\":[{\"endpoint\":\"tcp://h:1\"}]}"), &found, NULL));
    assert_int_equal(found.count, 1);
    assert_int_equal(found.sources[0].dp_rank, 0);
    assert_ok(kvb_event_sources_decode(span_of("[]"), &found, NULL));
    assert_int_equal(found.count, 0);
}

static void refuses_what_is_no_list_of_sources(void **state)
{
    char many[16384] = "[";

    (void)state;
    read_bad("", KVB_BAD_INPUT, "no JSON");
    read_bad("{\"detail\":\"Not Found\"}", KVB_BAD_INPUT, "expected an array");
    read_bad("[1]", KVB_BAD_INPUT, "source 0: expected an object");
    read_bad("[{}]", KVB_BAD_INPUT, "source 0: endpoint");
    read_bad("[{\"endpoint\":\"\"}]", KVB_BAD_INPUT, "source 0: endpoint");
    read_bad("[{\"endpoint\":\"a\\u0000\"}]", KVB_BAD_INPUT, "source 0: endpoint");
    read_bad("[{\"endpoint\":\"x\",\"topic\":5}]", KVB_BAD_INPUT, "source 0: endpoint");
    read_bad(
        "[{\"endpoint\":\"x\",\"data_parallel_rank\":128}]", KVB_BAD_INPUT,
        "source 0: data_parallel_rank");
    read_bad(
        "[{\"endpoint\":\"x\",\"data_parallel_rank\":-1}]", KVB_BAD_INPUT,
        "source 0: data_parallel_rank");
    read_bad("[{\"endpoint\":\"x\"},{\"endpoint\":\"y\"}]", KVB_BAD_INPUT, "its rank stands twice");
    for (int i = 0; i <= kvb_max_ranks; i++) {
        (void)snprintf(many + strlen(many), 32, "%s{\"endpoint\":\"x\"}", i ? "," : "");
    }
    (void)snprintf(many + strlen(many), 4, "]");
    read_bad(many, KVB_TOO_LARGE, "at most 128");
}

static void survives_every_allocation_that_fails(void **state)
{
    kvb_status status = KVB_NO_MEMORY;

    (void)state;
    for (long n = 0; status != KVB_OK; n++) {
        fail_alloc_after(n);
        status = kvb_event_sources_decode(span_of("[{\"endpoint\":\"x\"}]"), &found, NULL);
        fail_alloc_after(-1);
        assert_true(status == KVB_OK || status == KVB_NO_MEMORY);
        assert_true(n < 100);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reads_an_array_and_sorts_it),
        cmocka_unit_test(reads_an_object_around_it_and_no_rank_as_rank_0),
        cmocka_unit_test(refuses_what_is_no_list_of_sources),
        cmocka_unit_test(survives_every_allocation_that_fails),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
