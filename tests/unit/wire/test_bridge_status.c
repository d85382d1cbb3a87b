#include "kvb_test.h"

#include "wire/router/bridge_status.h"

#include <stdio.h>
#include <string.h>

/* context: an array of them. */
static void copy_stream(void *context, size_t at, struct kvb_stream_report *out)
{
    const struct kvb_stream_report *streams = context;

    *out = streams[at];
}

static void a_status_names_the_bridge_and_its_formats(void **state)
{
    (void)state;
    struct kvb_stream_report stream = { .endpoint = "tcp://127.0.0.1:5557",
                                        .origin = "file",
                                        .why = "",
                                        .has_last_seq = true,
                                        .last_seq = 41,
                                        .events = 1234,
                                        .reconnects = 3 };
    struct kvb_bridge_report report = { .bridge_id = "host-1-2",
                                        .version = "0.1.0",
                                        .name_space = "dynamo",
                                        .component = "backend",
                                        .formats = 1U << KVB_FORMAT_PROTOBUF,
                                        .nats_reconnects = 2,
                                        .fill_stream = copy_stream,
                                        .context = &stream,
                                        .stream_count = 1 };
    struct kvb_buf out;

    (void)snprintf(stream.beat.model, sizeof stream.beat.model, "a \"quoted\" model");
    stream.beat.worker_id = UINT64_C(9223372036854775807);
    stream.beat.state = KVB_STREAM_PARTIAL;
    stream.beat.reason = KVB_REASON_GONE;
    kvb_buf_init(&out, 1 << 16);
    assert_int_equal(kvb_bridge_status_encode(&report, &out), KVB_OK);
    assert_int_equal(kvb_buf_append(&out, "", 1), KVB_OK);
    const char *text = (const char *)out.data;
    assert_non_null(strstr(text, "\"bridge_id\":\"host-1-2\""));
    assert_non_null(strstr(text, "\"formats\":[\"protobuf\"]"));
    assert_non_null(strstr(text, "\"worker_id\":9223372036854775807"));
    assert_non_null(strstr(text, "\"state\":\"PARTIAL\",\"reason\":\"gone\""));
    assert_non_null(strstr(text, "\"model\":\"a \\\"quoted\\\" model\""));
    assert_non_null(strstr(text, "\"last_seq\":41"));
    assert_non_null(strstr(text, "\"events\":1234"));
    assert_non_null(strstr(text, "\"reconnects\":3"));
    assert_non_null(strstr(text, "\"nats_reconnects\":2"));
    assert_null(strstr(text, "block_size_configured"));
    assert_null(strstr(text, "\"why\""));
    kvb_buf_done(&out);
}

static void make_stream(void *context, size_t at, struct kvb_stream_report *out)
{
    (void)context;
    *out = (struct kvb_stream_report){
        .beat = { .worker_id = 100 + at }, .endpoint = "", .origin = "", .why = ""
    };
}

static void a_page_lists_its_streams_alone(void **state)
{
    (void)state;
    const struct kvb_bridge_report report = { .version = "",
                                              .name_space = "",
                                              .component = "",
                                              .fill_stream = make_stream,
                                              .first_stream = 1,
                                              .stream_count = 2,
                                              .streams_left_out = 2 };
    struct kvb_buf out;

    kvb_buf_init(&out, 1 << 16);
    assert_int_equal(kvb_bridge_status_encode(&report, &out), KVB_OK);
    assert_int_equal(kvb_buf_append(&out, "", 1), KVB_OK);
    const char *text = (const char *)out.data;
    assert_null(strstr(text, "\"worker_id\":100"));
    const char *second = strstr(text, "\"worker_id\":101");
    assert_non_null(second);
    assert_non_null(strstr(second, "\"worker_id\":102"));
    assert_null(strstr(text, "\"worker_id\":103"));
    kvb_buf_done(&out);
}

static void a_stream_shows_what_an_operator_should_correct(void **state)
{
    (void)state;
    struct kvb_stream_report stream = { .beat = { .block_size = 32 },
                                        .configured_block_size = 16,
                                        .endpoint = "",
                                        .origin = "",
                                        .why = "nobody listens" };
    const struct kvb_bridge_report report = { .version = "",
                                              .name_space = "",
                                              .component = "",
                                              .fill_stream = copy_stream,
                                              .context = &stream,
                                              .stream_count = 1 };
    struct kvb_buf out;

    kvb_buf_init(&out, 1 << 16);
    assert_int_equal(kvb_bridge_status_encode(&report, &out), KVB_OK);
    assert_int_equal(kvb_buf_append(&out, "", 1), KVB_OK);
    const char *text = (const char *)out.data;
    assert_non_null(strstr(text, "\"block_size\":32,\"block_size_configured\":16,"));
    assert_non_null(strstr(text, "\"why\":\"nobody listens\""));
    kvb_buf_done(&out);
}

static void write_stream(struct kvb_stream_report *stream, struct kvb_buf *out)
{
    const struct kvb_bridge_report report = { .version = "",
                                              .name_space = "",
                                              .component = "",
                                              .fill_stream = copy_stream,
                                              .context = stream,
                                              .stream_count = 1 };

    kvb_buf_init(out, 1 << 16);
    assert_int_equal(kvb_bridge_status_encode(&report, out), KVB_OK);
    assert_int_equal(kvb_buf_append(out, "", 1), KVB_OK);
}

static void a_stream_shows_what_its_engine_drops_and_who_said_so(void **state)
{
    (void)state;
    struct kvb_stream_report stream = { .endpoint = "", .origin = "", .why = "" };
    struct kvb_buf out;

    write_stream(&stream, &out);
    assert_null(strstr((const char *)out.data, "speculative_drop"));
    kvb_buf_done(&out);
    stream.speculation = (struct kvb_speculation_report){
        .is_shown = true, .drop = 1, .source = "page", .why = "x"
    };
    write_stream(&stream, &out);
    assert_non_null(strstr(
        (const char *)out.data,
        "\"speculative_drop\":{\"blocks\":1,\"source\":\"page\",\"why\":\"x\"}"));
    kvb_buf_done(&out);
    stream.speculation.is_undecided = true;
    write_stream(&stream, &out);
    assert_non_null(
        strstr((const char *)out.data, "\"speculative_drop\":{\"source\":\"page\",\"why\":\"x\"}"));
    kvb_buf_done(&out);
}

static void a_load_source_shows_what_is_known_of_it(void **state)
{
    (void)state;
    struct kvb_load_source_report loads[] = {
        { .worker_id = 7,
          .kind = KVB_LOAD_OF_PROMETHEUS,
          .state = KVB_LOAD_SOURCE_STALE,
          .was_received = true,
          .age_ms = 4100,
          .refused = 5,
          .address = "http://h/metrics",
          .why = "answered HTTP 404" },
        { .kind = KVB_LOAD_OF_COORDINATOR, .age_ms = 99, .address = "tcp://h:1", .why = "" },
        { .kind = KVB_LOAD_OF_COORDINATOR,
          .state = KVB_LOAD_SOURCE_FRESH,
          .was_received = true,
          .ranks = 3,
          .address = "tcp://h:2",
          .why = "" },
    };
    const struct kvb_bridge_report report = { .bridge_id = "b",
                                              .version = "",
                                              .name_space = "",
                                              .component = "",
                                              .loads = loads,
                                              .load_count = sizeof loads / sizeof loads[0] };
    struct kvb_buf out;

    kvb_buf_init(&out, 1 << 16);
    assert_int_equal(kvb_bridge_status_encode(&report, &out), KVB_OK);
    assert_int_equal(kvb_buf_append(&out, "", 1), KVB_OK);
    const char *text = (const char *)out.data;
    assert_non_null(strstr(
        text, "{\"worker_id\":7,\"kind\":\"prometheus\",\"address\":\"http://h/metrics\","
              "\"state\":\"stale\",\"age_ms\":4100,\"refused\":5,\"why\":\"answered HTTP 404\"}"));
    assert_non_null(strstr(
        text, "{\"worker_id\":0,\"kind\":\"coordinator\",\"address\":\"tcp://h:1\","
              "\"state\":\"waiting\",\"refused\":0,\"why\":\"\"}"));
    assert_non_null(
        strstr(text, "\"address\":\"tcp://h:2\",\"state\":\"fresh\",\"age_ms\":0,\"ranks\":3,"));
    kvb_buf_done(&out);
}

SUITE(bridge_status)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_status_names_the_bridge_and_its_formats),
        cmocka_unit_test(a_page_lists_its_streams_alone),
        cmocka_unit_test(a_stream_shows_what_an_operator_should_correct),
        cmocka_unit_test(a_stream_shows_what_its_engine_drops_and_who_said_so),
        cmocka_unit_test(a_load_source_shows_what_is_known_of_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
