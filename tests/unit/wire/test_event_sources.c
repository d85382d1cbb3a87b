#include "kvb_test.h"

#include "core/buf.h"
#include "core/own.h"
#include "fail_alloc.h"
#include "wire/engine/event_sources.h"
#include "wire/json/tree.h"
#include "wire/vector_file.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct kvb_event_sources found;

static void read_bad(const char *text, kvb_status expected, const char *sentence)
{
    struct kvb_detail why = { "" };

    found.count = 77;
    assert_int_equal(kvb_event_sources_decode(kvb_span_of(text), &found, &why), expected);
    assert_non_null(strstr(why.text, sentence));
    assert_int_equal(found.count, 77); /* untouched */
}

static void reads_an_array_and_sorts_it(void **state)
{
    (void)state;
    assert_ok(kvb_event_sources_decode(
        kvb_span_of("[{\"data_parallel_rank\":1,\"endpoint\":\"tcp://0.0.0.0:41002\","
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

static void reads_an_object_around_the_array_and_a_missing_rank_as_0(void **state)
{
    (void)state;
    assert_ok(kvb_event_sources_decode(
        kvb_span_of("{\"sources\":[{\"endpoint\":\"tcp://h:1\"}]}"), &found, NULL));
    assert_int_equal(found.count, 1);
    assert_int_equal(found.sources[0].dp_rank, 0);
    assert_ok(kvb_event_sources_decode(kvb_span_of("[]"), &found, NULL));
    assert_int_equal(found.count, 0);
}

static void refuses_invalid_lists_of_sources(void **state)
{
    char many[16384] = "[";

    (void)state;
    read_bad("", KVB_BAD_INPUT, "no JSON");
    read_bad("{\"detail\":\"Not Found\"}", KVB_BAD_INPUT, "expected an array");
    read_bad("null", KVB_BAD_INPUT, "expected an array");
    read_bad("{\"sources\":{\"0\":{\"endpoint\":\"x\"}}}", KVB_BAD_INPUT, "expected an array");
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
    read_bad(
        "[{\"endpoint\":\"x\"},{\"endpoint\":\"y\"}]", KVB_BAD_INPUT, "rank 0 is listed twice");
    for (int i = 0; i <= kvb_max_ranks; i++) {
        (void)snprintf(many + strlen(many), 32, "%s{\"endpoint\":\"x\"}", i ? "," : "");
    }
    (void)snprintf(many + strlen(many), 4, "]");
    read_bad(many, KVB_TOO_LARGE, "at most 128");
}

/* ---- Keyed by rank: vLLM 0.32 ---- */

static void refuses_an_object_whose_keys_are_not_ranks(void **state)
{
    static const char *const keys[] = {
        "x", "", "-1", "+1", " 1", "01", "128", "4294967296", "0x1"
    };
    char text[128];

    (void)state;
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        (void)snprintf(text, sizeof text, "{\"%s\":{\"endpoint\":\"x\"}}", keys[i]);
        read_bad(text, KVB_BAD_INPUT, "an object whose keys are ranks");
    }
    read_bad("{\"1\":[]}", KVB_BAD_INPUT, "rank 1: expected an object");
    read_bad("{\"1\":{}}", KVB_BAD_INPUT, "rank 1: endpoint");
    read_bad(
        "{\"1\":{\"endpoint\":\"x\",\"data_parallel_rank\":2}}", KVB_BAD_INPUT,
        "rank 1: data_parallel_rank is not its key");
}

static void a_rank_that_publishes_nothing_is_left_out(void **state)
{
    (void)state;
    assert_ok(kvb_event_sources_decode(
        kvb_span_of("{\"2\":{\"publisher\":\"zmq\",\"endpoint\":\"tcp://*:3\"},"
                    "\"0\":{\"publisher\":\"null\",\"endpoint\":null},"
                    "\"1\":{\"enable_kv_cache_events\":false,\"endpoint\":\"tcp://*:1\"}}"),
        &found, NULL));
    assert_int_equal(found.count, 1);
    assert_int_equal(found.sources[0].dp_rank, 2);
    read_bad(
        "{\"0\":{\"publisher\":\"kafka\",\"endpoint\":\"x\"}}", KVB_BAD_INPUT,
        "rank 0: its publisher is not zmq");
}

/* ---- Recorded answers of engines ---- */

static struct json_object *recorded(void)
{
    char *text = read_text_file("kv_event_sources.json");
    struct kvb_json_budget budget = { .depth = 16, .containers = 1000, .values = 1000 };
    struct json_object *root = NULL;

    assert_ok(kvb_json_parse(kvb_span_of(text), &budget, &root));
    free(text);
    return root;
}

static void assert_source(
    size_t at, uint32_t dp_rank, const char *endpoint, const char *replay, const char *topic)
{
    assert_true(at < found.count);
    assert_int_equal(found.sources[at].dp_rank, dp_rank);
    assert_string_equal(found.sources[at].endpoint, endpoint);
    assert_string_equal(found.sources[at].replay_endpoint, replay);
    assert_string_equal(found.sources[at].topic, topic);
}

static void decode_vllm(struct json_object *root, const char *name)
{
    struct json_object *bodies = kvb_json_member(kvb_json_member(root, "vllm"), "bodies");
    struct json_object *body = kvb_json_member(bodies, name);

    assert_non_null(body);
    assert_ok(kvb_event_sources_decode(kvb_span_of(json_object_get_string(body)), &found, NULL));
}

static void reads_what_vllm_answered(void **state)
{
    KVB_OWN(kvb_json_drop) struct json_object *root = recorded();

    (void)state;
    decode_vllm(root, "1 rank");
    assert_int_equal(found.count, 1);
    assert_source(0, 0, "tcp://*:25557", "tcp://*:26557", "kv-events");
    assert_int_equal(found.sources[0].buffer_steps, 10000);
    decode_vllm(root, "2 ranks");
    assert_int_equal(found.count, 2);
    assert_source(0, 0, "tcp://*:25557", "tcp://*:26557", "kv-events");
    assert_source(1, 1, "tcp://*:25558", "tcp://*:26558", "kv-events");
    decode_vllm(root, "1 rank, endpoint tcp://*:0, no replay, no topic");
    assert_int_equal(found.count, 1);
    assert_source(0, 0, "tcp://127.0.0.1:37477", "", "");
    decode_vllm(root, "events off");
    assert_int_equal(found.count, 0);
}

/* The recorded part, inside a larger answer. */
static void decode_sglang(struct json_object *root, const char *name)
{
    struct json_object *parts = kvb_json_member(kvb_json_member(root, "sglang"), "kv_events");
    struct json_object *part = NULL;
    char text[1024];

    assert_true(json_object_object_get_ex(parts, name, &part));
    (void)snprintf(
        text, sizeof text,
        "{\"model_path\":\"m\",\"page_size\":16,\"kv_events\":%s,\"internal_states\":[{\"a\":{}}]}",
        json_object_to_json_string(part));
    assert_ok(kvb_event_sources_decode_server_info(kvb_span_of(text), &found, NULL));
}

static void reads_what_sglang_answered(void **state)
{
    KVB_OWN(kvb_json_drop) struct json_object *root = recorded();

    (void)state;
    decode_sglang(root, "1 rank");
    assert_int_equal(found.count, 1);
    assert_source(0, 0, "tcp://*:5557", "", "kv-events");
    decode_sglang(root, "1 rank, replay");
    assert_int_equal(found.count, 1);
    assert_source(0, 0, "tcp://*:5557", "tcp://*:5657", "kv-events");
    decode_sglang(root, "2 ranks, replay, load");
    assert_int_equal(found.count, 2);
    assert_source(0, 0, "tcp://*:5557", "tcp://*:5657", "kv-events");
    assert_source(1, 1, "tcp://*:5558", "tcp://*:5658", "kv-events");
    decode_sglang(root, "2 ranks, DCP 2, concrete host, no topic");
    assert_int_equal(found.count, 2);
    assert_source(0, 0, "tcp://10.0.0.5:5557", "", "");
    assert_source(1, 1, "tcp://10.0.0.5:5558", "", "");
    decode_sglang(root, "off");
    assert_int_equal(found.count, 0);
    decode_sglang(root, "ipc");
    assert_int_equal(found.count, 0);
}

/* ---- SGLang's other answers ---- */

static void read_bad_info(const char *text, const char *sentence)
{
    struct kvb_detail why = { "" };

    found.count = 77;
    assert_int_equal(
        kvb_event_sources_decode_server_info(kvb_span_of(text), &found, &why), KVB_BAD_INPUT);
    assert_non_null(strstr(why.text, sentence));
    assert_int_equal(found.count, 77); /* untouched */
}

static void a_port_above_the_last_one_is_refused(void **state)
{
    (void)state;
    assert_ok(kvb_event_sources_decode_server_info(
        kvb_span_of("{\"kv_events\":{\"publisher\":\"zmq\",\"endpoint_host\":\"::\",\"dp_size\":2,"
                    "\"endpoint_port_base\":65534}}"),
        &found, NULL));
    assert_source(1, 1, "tcp://[::]:65535", "", "");
    read_bad_info(
        "{\"kv_events\":{\"publisher\":\"zmq\",\"endpoint_host\":\"*\",\"dp_size\":2,"
        "\"endpoint_port_base\":65535}}",
        "kv_events.endpoint_port_base");
    read_bad_info(
        "{\"kv_events\":{\"publisher\":\"zmq\",\"endpoint_host\":\"*\",\"dp_size\":2,"
        "\"endpoint_port_base\":5557,\"replay_endpoint_port_base\":65535}}",
        "kv_events.replay_endpoint_port_base");
}

#define THREE_RANKS                                                                                \
    "{\"kv_events\":{\"publisher\":\"zmq\",\"endpoint_host\":\"*\",\"dp_size\":3,"                 \
    "\"endpoint_port_base\":5557,\"replay_endpoint_port_base\":6557,\"publishers\":"

static void ranks_of_other_hosts_have_their_addresses(void **state)
{
    (void)state;
    assert_ok(kvb_event_sources_decode_server_info(
        kvb_span_of(THREE_RANKS "[{\"dp_rank\":2,\"endpoint\":\"tcp://10.0.0.2:5600\"},"
                                "{\"dp_rank\":1,\"endpoint\":\"tcp://[fd00::1]:5558\"}]}}"),
        &found, NULL));
    assert_int_equal(found.count, 3);
    assert_source(0, 0, "tcp://*:5557", "tcp://*:6557", "");
    assert_source(1, 1, "tcp://[fd00::1]:5558", "tcp://[fd00::1]:6558", "");
    assert_source(2, 2, "tcp://10.0.0.2:5600", "tcp://10.0.0.2:6559", "");
    assert_ok(
        kvb_event_sources_decode_server_info(kvb_span_of(THREE_RANKS "null}}"), &found, NULL));
    assert_source(2, 2, "tcp://*:5559", "tcp://*:6559", "");
    read_bad_info(THREE_RANKS "{}}}", "kv_events.publishers is");
    read_bad_info(
        THREE_RANKS "[{\"dp_rank\":3,\"endpoint\":\"tcp://h:1\"}]}}", "kv_events.publishers[0]");
    read_bad_info(THREE_RANKS "[{\"dp_rank\":1}]}}", "kv_events.publishers[0]");
    read_bad_info(THREE_RANKS "[{\"endpoint\":\"tcp://h:1\"}]}}", "kv_events.publishers[0]");
    read_bad_info(
        THREE_RANKS "[{\"dp_rank\":0,\"endpoint\":\"tcp://h\"}]}}", "kv_events.publishers[0]");
    read_bad_info(
        THREE_RANKS "[{\"dp_rank\":1,\"endpoint\":\"tcp://h:1\"},{\"dp_rank\":1,"
                    "\"endpoint\":\"tcp://h:2\"}]}}",
        "rank 1 is listed twice");
}

/* It repeats the settings of each scheduler. */
static void a_large_answer_is_read(void **state)
{
    static const char rest[] = "0],\"kv_events\":{\"publisher\":\"zmq\",\"endpoint_host\":\"*\","
                               "\"endpoint_port_base\":5557}}";
    KVB_OWN(kvb_buf_done) struct kvb_buf json = { 0 };

    (void)state;
    kvb_buf_init(&json, kvb_max_event_sources_bytes);
    assert_ok(kvb_buf_append_text(&json, "{\"internal_states\":["));
    for (int i = 0; i < 100000; i++) {
        assert_ok(kvb_buf_append_text(&json, "{\"setting\":[1,\"b\"]},"));
    }
    assert_ok(kvb_buf_append_text(&json, rest));
    assert_ok(kvb_event_sources_decode_server_info(kvb_buf_span(&json), &found, NULL));
    assert_int_equal(found.count, 1);
    assert_source(0, 0, "tcp://*:5557", "", "");
}

static void an_answer_without_the_sources_is_refused_with_the_missing_key(void **state)
{
    (void)state;
    read_bad_info("", "no JSON");
    read_bad_info("[]", "no JSON object");
    read_bad_info("null", "no JSON object");
    read_bad_info("{\"kv_events\":null}x", "no JSON object");
    read_bad_info("{\"model_path\":\"m\"}", "kv_events is missing");
    read_bad_info("{\"kv_events\":[]}", "kv_events: expected an object");
    read_bad_info("{\"kv_events\":{}}", "kv_events.publisher");
    read_bad_info("{\"kv_events\":{\"publisher\":\"zmq\"}}", "kv_events.endpoint_host");
    read_bad_info(
        "{\"kv_events\":{\"publisher\":\"zmq\",\"endpoint_host\":\"*\",\"topic\":1}}",
        "kv_events.topic");
    read_bad_info(
        "{\"kv_events\":{\"publisher\":\"zmq\",\"endpoint_host\":\"*\",\"dp_size\":0}}",
        "kv_events.dp_size");
    read_bad_info(
        "{\"kv_events\":{\"publisher\":\"zmq\",\"endpoint_host\":\"*\",\"dp_size\":129}}",
        "kv_events.dp_size");
    read_bad_info(
        "{\"kv_events\":{\"publisher\":\"zmq\",\"endpoint_host\":\"*\"}}",
        "kv_events.endpoint_port_base");
}

static void survives_every_allocation_that_fails(void **state)
{
    kvb_status status = KVB_NO_MEMORY;

    (void)state;
    for (long n = 0; status != KVB_OK; n++) {
        fail_alloc_after(n);
        status = kvb_event_sources_decode(kvb_span_of("[{\"endpoint\":\"x\"}]"), &found, NULL);
        fail_alloc_after(-1);
        assert_true(status == KVB_OK || status == KVB_NO_MEMORY);
        assert_true(n < 100);
    }
}

SUITE(event_sources)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reads_an_array_and_sorts_it),
        cmocka_unit_test(reads_an_object_around_the_array_and_a_missing_rank_as_0),
        cmocka_unit_test(refuses_invalid_lists_of_sources),
        cmocka_unit_test(refuses_an_object_whose_keys_are_not_ranks),
        cmocka_unit_test(a_rank_that_publishes_nothing_is_left_out),
        cmocka_unit_test(reads_what_vllm_answered),
        cmocka_unit_test(reads_what_sglang_answered),
        cmocka_unit_test(a_port_above_the_last_one_is_refused),
        cmocka_unit_test(ranks_of_other_hosts_have_their_addresses),
        cmocka_unit_test(a_large_answer_is_read),
        cmocka_unit_test(an_answer_without_the_sources_is_refused_with_the_missing_key),
        cmocka_unit_test(survives_every_allocation_that_fails),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
