#include "kvfleet/trace_json.h"

#include "core/own.h"
#include "kvb_test.h"

#include <string.h>

static struct kvb_trace_line line;

static kvb_status decode(const char *text)
{
    return kvb_trace_line_decode((kvb_span){ (const uint8_t *)text, strlen(text) }, &line);
}

static void reads_a_line(void **state)
{
    (void)state;
    assert_ok(decode("{\"timestamp\": 27482, \"input_length\": 1030, \"output_length\": 3, "
                     "\"hash_ids\": [46, 47, 2305]}\n"));
    assert_int_equal(line.timestamp_ms, 27482);
    assert_int_equal(line.input_length, 1030);
    assert_int_equal(line.output_length, 3);
    assert_int_equal(line.id_count, 3);
    assert_int_equal(line.ids[2], 2305);
}

static void the_length_must_fit_the_ids(void **state)
{
    (void)state;
    assert_ok(
        decode("{\"timestamp\":0,\"input_length\":512,\"output_length\":0,\"hash_ids\":[1]}"));
    assert_ok(decode("{\"timestamp\":0,\"input_length\":1,\"output_length\":0,\"hash_ids\":[1]}"));
    assert_ok(
        decode("{\"timestamp\":0,\"input_length\":513,\"output_length\":0,\"hash_ids\":[1,2]}"));
    assert_int_equal(
        decode("{\"timestamp\":0,\"input_length\":513,\"output_length\":0,\"hash_ids\":[1]}"),
        KVB_BAD_INPUT);
    assert_int_equal(
        decode("{\"timestamp\":0,\"input_length\":512,\"output_length\":0,\"hash_ids\":[1,2]}"),
        KVB_BAD_INPUT);
    assert_int_equal(
        decode("{\"timestamp\":0,\"input_length\":0,\"output_length\":0,\"hash_ids\":[]}"),
        KVB_BAD_INPUT);
}

static void refuses_what_is_no_trace_line(void **state)
{
    (void)state;
    const char *const bad[] = {
        "",
        "[]",
        "{}",
        "{\"timestamp\":0,\"input_length\":5,\"output_length\":1}",
        "{\"timestamp\":0,\"input_length\":5,\"output_length\":1,\"hash_ids\":[1]",
        "{\"timestamp\":0,\"input_length\":5,\"output_length\":1,\"hash_ids\":[1]} x",
        "{\"timestamp\":0,\"input_length\":5.5,\"output_length\":1,\"hash_ids\":[1]}",
        "{\"timestamp\":0,\"input_length\":4294967301,\"output_length\":1,\"hash_ids\":[1]}",
        "{\"timestamp\":0,\"input_length\":5,\"output_length\":1,\"hash_ids\":[\"1\"]}",
        "{\"timestamp\":0,\"input_length\":5,\"output_length\":1,\"hash_ids\":[1],\"hash_ids\":[]}",
    };

    for (size_t i = 0; i < KVB_COUNT_OF(bad); i++) {
        assert_int_equal(decode(bad[i]), KVB_BAD_INPUT);
    }
}

static void refuses_more_ids_than_it_holds(void **state)
{
    (void)state;
    static char text[3 * kvb_trace_max_ids + 200] =
        "{\"timestamp\":0,\"input_length\":5,\"output_length\":1,\"hash_ids\":[";
    size_t len = strlen(text);

    for (int i = 0; i <= kvb_trace_max_ids; i++) {
        text[len++] = '1';
        text[len++] = ',';
    }
    text[len - 1] = ']';
    text[len] = '}';
    assert_int_equal(decode(text), KVB_BAD_INPUT);
    assert_int_equal(line.id_count, kvb_trace_max_ids);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reads_a_line),
        cmocka_unit_test(the_length_must_fit_the_ids),
        cmocka_unit_test(refuses_what_is_no_trace_line),
        cmocka_unit_test(refuses_more_ids_than_it_holds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
