#include "kvb_test.h"

#include "core/buf.h"
#include "core/own.h"
#include "wire/engine/answers.h"

#include <stdio.h>
#include <string.h>

/* Large answers of engines; small ones are cases of test_decoders.c. */

/* It repeats the settings of each scheduler. */
static void a_large_answer_is_read(void **state)
{
    static const char rest[] = "0],\"kv_events\":{\"publisher\":\"zmq\",\"endpoint_host\":\"*\","
                               "\"endpoint_port_base\":5557}}";
    KVB_OWN(kvb_buf_done) struct kvb_buf json = { 0 };
    struct kvb_event_sources found;

    (void)state;
    kvb_buf_init(&json, kvb_max_event_sources_bytes);
    assert_ok(kvb_buf_append_text(&json, "{\"internal_states\":["));
    for (int i = 0; i < 100000; i++) {
        assert_ok(kvb_buf_append_text(&json, "{\"setting\":[1,\"b\"]},"));
    }
    assert_ok(kvb_buf_append_text(&json, rest));
    assert_ok(kvb_event_sources_decode_server_info(kvb_buf_span(&json), &found, NULL));
    assert_int_equal(found.count, 1);
    assert_string_equal(found.sources[0].endpoint, "tcp://*:5557");
}

static void names_beyond_the_bounds_and_names_that_are_none_are_counted(void **state)
{
    (void)state;
    static char json[16384] = "{\"data\":[{\"id\":\"m\"},{\"id\":\"a\\nb\",\"parent\":\"m\"}";
    struct kvb_served_names names = { 0 };

    for (int i = 0; i < kvb_max_served_names + 3; i++) {
        const size_t len = strlen(json);
        (void)snprintf(json + len, sizeof json - len, ",{\"id\":\"l%d\",\"parent\":\"m\"}", i);
    }
    (void)snprintf(json + strlen(json), sizeof json - strlen(json), "]}");
    assert_ok(kvb_model_list_decode(kvb_span_of(json), "m", &names, NULL));
    assert_int_equal(names.count, kvb_max_served_names);
    assert_int_equal(names.left_out, 4);
    assert_false(kvb_served_names_are_all(&names));
}

SUITE(engine_answers)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_large_answer_is_read),
        cmocka_unit_test(names_beyond_the_bounds_and_names_that_are_none_are_counted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
