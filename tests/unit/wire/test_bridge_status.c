#include "kvb_test.h"

#include "core/own.h"
#include "wire/router/bridge_status.h"

#include <stdio.h>
#include <string.h>

/* The status page as text; good until the next call. */
static const char *status_of(const struct kvb_bridge_report *report)
{
    static char text[1 << 14];
    KVB_OWN(kvb_buf_done) struct kvb_buf out = { 0 };

    kvb_buf_init(&out, sizeof text - 1);
    assert_ok(kvb_bridge_status_encode(report, &out));
    (void)snprintf(text, sizeof text, "%.*s", (int)out.len, (const char *)out.data);
    return text;
}

static void assert_has(const char *text, const char *const parts[])
{
    for (; *parts; parts++) {
        if (!strstr(text, *parts)) {
            fail_msg("no %s in %s", *parts, text);
        }
    }
}

static void copy_stream(void *stream, size_t at, struct kvb_stream_report *out)
{
    (void)at;
    *out = *(const struct kvb_stream_report *)stream;
}

static const char *status_of_stream(struct kvb_stream_report *stream)
{
    return status_of(&(struct kvb_bridge_report){ .version = "",
                                                  .name_space = "",
                                                  .component = "",
                                                  .fill_stream = copy_stream,
                                                  .context = stream,
                                                  .stream_count = 1 });
}

static void a_status_names_the_bridge_and_its_formats(void **state)
{
    static const char *const parts[] = {
        "\"bridge_id\":\"host-1-2\"",
        "\"formats\":[\"protobuf\"]",
        "\"worker_id\":9223372036854775807",
        "\"state\":\"PARTIAL\",\"reason\":\"gone\"",
        "\"model\":\"a \\\"quoted\\\" model\"",
        "\"last_seq\":41",
        "\"events\":1234",
        "\"reconnects\":3",
        "\"nats_reconnects\":2",
        NULL,
    };
    struct kvb_stream_report stream = { .beat = { .worker_id = INT64_MAX,
                                                  .state = KVB_STREAM_PARTIAL,
                                                  .reason = KVB_REASON_GONE,
                                                  .model = "a \"quoted\" model" },
                                        .endpoint = "tcp://127.0.0.1:5557",
                                        .origin = "file",
                                        .why = "",
                                        .has_last_seq = true,
                                        .last_seq = 41,
                                        .events = 1234,
                                        .reconnects = 3 };
    const char *text = status_of(&(struct kvb_bridge_report){ .bridge_id = "host-1-2",
                                                              .version = "0.1.0",
                                                              .name_space = "dynamo",
                                                              .component = "backend",
                                                              .formats = 1U << KVB_FORMAT_PROTOBUF,
                                                              .nats_reconnects = 2,
                                                              .fill_stream = copy_stream,
                                                              .context = &stream,
                                                              .stream_count = 1 });

    (void)state;
    assert_has(text, parts);
    assert_null(strstr(text, "block_size_configured"));
    assert_null(strstr(text, "\"why\""));
    assert_null(strstr(text, "speculative_drop"));
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
    const char *text = status_of(&(struct kvb_bridge_report){ .version = "",
                                                              .name_space = "",
                                                              .component = "",
                                                              .fill_stream = make_stream,
                                                              .first_stream = 1,
                                                              .stream_count = 2,
                                                              .streams_left_out = 2 });
    const char *second = strstr(text, "\"worker_id\":101");

    (void)state;
    assert_null(strstr(text, "\"worker_id\":100"));
    assert_non_null(second);
    assert_non_null(strstr(second, "\"worker_id\":102"));
    assert_null(strstr(text, "\"worker_id\":103"));
}

static void a_stream_shows_what_an_operator_should_know(void **state)
{
    static const char *const sizes[] = { "\"block_size\":32,\"block_size_configured\":16,",
                                         "\"why\":\"nobody listens\"", NULL };
    static const char *const dropped[] = {
        "\"speculative_drop\":{\"blocks\":1,\"source\":\"page\",\"why\":\"x\"}", NULL
    };
    static const char *const undecided[] = {
        "\"speculative_drop\":{\"source\":\"page\",\"why\":\"x\"}", NULL
    };
    struct kvb_stream_report stream = {
        .beat = { .block_size = 32 },
        .configured_block_size = 16,
        .endpoint = "",
        .origin = "",
        .why = "nobody listens",
        .speculation = { .is_shown = true, .drop = 1, .source = "page", .why = "x" }
    };

    (void)state;
    assert_has(status_of_stream(&stream), sizes);
    assert_has(status_of_stream(&stream), dropped);
    stream.speculation.is_undecided = true;
    assert_has(status_of_stream(&stream), undecided);
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
    static const char *const parts[] = {
        "{\"worker_id\":7,\"kind\":\"prometheus\",\"address\":\"http://h/metrics\","
        "\"state\":\"stale\",\"age_ms\":4100,\"refused\":5,\"why\":\"answered HTTP 404\"}",
        "{\"worker_id\":0,\"kind\":\"coordinator\",\"address\":\"tcp://h:1\","
        "\"state\":\"waiting\",\"refused\":0,\"why\":\"\"}",
        "\"address\":\"tcp://h:2\",\"state\":\"fresh\",\"age_ms\":0,\"ranks\":3,",
        NULL,
    };
    assert_has(status_of(&report), parts);
}

SUITE(bridge_status)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_status_names_the_bridge_and_its_formats),
        cmocka_unit_test(a_page_lists_its_streams_alone),
        cmocka_unit_test(a_stream_shows_what_an_operator_should_know),
        cmocka_unit_test(a_load_source_shows_what_is_known_of_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
