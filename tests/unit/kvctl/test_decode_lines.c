#include "core/hash.h"
#include "core/limits.h"
#include "fail_alloc.h"
#include "kvctl/decode_lines.h"
#include "wire/engine/batch.h"
#include "wire/vector_file.h"

#include "kvb_test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- The recorded messages, each with the events that it must become ---- */

/* Advances *at past the line and returns the line without its end. */
static kvb_span next_line(const char **at)
{
    const size_t len = strcspn(*at, "\n");
    const kvb_span line = { (const uint8_t *)*at, len };

    *at += len + ((*at)[len] == '\n');
    return line;
}

static void assert_line(const char **at, kvb_span want)
{
    const kvb_span line = next_line(at);

    if (line.len != want.len || memcmp(line.data, want.data, line.len) != 0) {
        print_error(
            "expected %.*s\ngot      %.*s\n", (int)line.len, (const char *)line.data, (int)want.len,
            (const char *)want.data);
        fail();
    }
}

/* Compares a line "name|...|hex" with the expected text: the name and then one line for each event,
 * or "refused". */
static void check_vector(kvb_span vector, const char **expected, struct kvb_event_batch *batch)
{
    const char *text = (const char *)vector.data;
    const kvb_span name = { vector.data, strcspn(text, "|") };
    const char *hex = memrchr(text, '|', vector.len);
    size_t len = 0;
    uint8_t *bytes = bytes_of_hex(hex + 1, &len);
    struct kvb_buf line;

    kvb_buf_init(&line, 1 << 16);
    assert_line(expected, name);
    if (kvb_engine_batch_decode((kvb_span){ bytes, len }, batch) != KVB_OK) {
        assert_line(expected, kvb_span_of("refused"));
    }
    for (size_t at = 0; at < batch->event_count; at++) {
        kvb_buf_reset(&line);
        assert_ok(kvb_event_write_json(batch, at, &line));
        assert_line(expected, kvb_buf_span(&line));
    }
    kvb_buf_done(&line);
    free(bytes);
}

static void every_vector_becomes_the_events_that_are_written_beside_it(void **state)
{
    (void)state;
    char *vectors = read_text_file("vectors/engine-events.txt");
    char *expected = read_text_file("vectors/engine-events.expected.txt");
    struct kvb_event_batch batch = { 0 };
    const char *want = expected;
    size_t count = 0;

    for (const char *at = vectors; *at; count++) {
        check_vector(next_line(&at), &want, &batch);
    }
    assert_int_equal(count, 28);
    assert_int_equal(*want, '\0'); /* no expected text is left over */
    kvb_event_batch_done(&batch);
    free(expected);
    free(vectors);
}

/* ---- What the vectors do not show ---- */

static void write_first(const char *hex, struct kvb_buf *out)
{
    struct kvb_event_batch batch = { 0 };
    size_t len = 0;
    uint8_t *bytes = bytes_of_hex(hex, &len);

    assert_ok(kvb_engine_batch_decode((kvb_span){ bytes, len }, &batch));
    assert_ok(kvb_event_write_json(&batch, 0, out));
    assert_ok(kvb_buf_append(out, "", 1));
    kvb_event_batch_done(&batch);
    free(bytes);
}

#define STORED "ab426c6f636b53746f726564"

static void a_block_that_no_query_can_name_has_no_tokens_hash(void **state)
{
    (void)state;
    struct kvb_buf out;

    kvb_buf_init(&out, 1 << 12);
    /* one token; extra_keys [[bin]] */
    write_first("92019199" STORED "9101c0910501c0c0c09191c40100", &out);
    assert_non_null(strstr((const char *)out.data, "\"tokens_hashes\":[null],"));
    kvb_buf_done(&out);
}

static void eagle_pairs_count_as_the_engine_counts_them(void **state)
{
    (void)state;
    struct kvb_buf out;

    kvb_buf_init(&out, 1 << 12);
    write_first("92019195" STORED "9101c09292010292020302", &out); /* (1,2) (2,3) */
    assert_non_null(
        strstr((const char *)out.data, "\"token_count\":2,\"block_size\":2,\"lookahead\":1}"));
    kvb_buf_done(&out);
}

static void what_goes_into_a_blocks_identity_is_shown(void **state)
{
    (void)state;
    char media[64];
    struct kvb_buf out;

    kvb_buf_init(&out, 1 << 12);
    /* two tokens for one block of one token; LoRA "ad"; extra_keys [["ad", ["x", 0], "s"]]; group
     * 1, full_attention */
    write_first(
        "9201919c" STORED "9101c092050601c0c0a26164"
        "9193a2616492a17800a173"
        "01ae66756c6c5f617474656e74696f6ec0",
        &out);
    assert_non_null(strstr(
        (const char *)out.data,
        "\"group\":1,\"group_kind\":\"full\",\"window_tokens\":null,"
        "\"is_sparse\":false,\"model\":null,\"lora\":\"ad\",\"salt\":\"s\","));
    (void)snprintf(
        media, sizeof media, "\"media\":[[%llu]],",
        (unsigned long long)kvb_hash64(kvb_span_of("x"), 0));
    assert_non_null(strstr((const char *)out.data, media));
    kvb_buf_reset(&out);
    /* the same with a sliding window of 64, and without one block */
    write_first(
        "9201919c" STORED "9101c092050601c0c0a26164"
        "c0"
        "01ae736c6964696e675f77696e646f7740",
        &out);
    assert_non_null(strstr(
        (const char *)out.data, "\"group_kind\":\"window\",\"window_tokens\":64,"
                                "\"is_sparse\":true,"));
    kvb_buf_done(&out);
}

static void an_invalid_time_is_null(void **state)
{
    (void)state;
    struct kvb_buf out;

    kvb_buf_init(&out, 1 << 12);
    write_first("92cb7ff8000000000000919101", &out);
    assert_non_null(strstr((const char *)out.data, "\"rank\":null,\"ts\":null,\"tier\":null,"));
    kvb_buf_done(&out);
}

static void a_line_for_which_there_is_no_memory_is_reported(void **state)
{
    (void)state;
    const struct kvb_engine_event event = { .kind = KVB_EVENT_CLEARED };
    struct kvb_engine_event events[] = { event };
    const struct kvb_event_batch batch = { .events = events, .event_count = 1 };
    struct kvb_buf out;

    kvb_buf_init(&out, 1 << 12);
    fail_alloc_after(0);
    assert_int_equal(kvb_event_write_json(&batch, 0, &out), KVB_NO_MEMORY);
    fail_alloc_after(-1);
    kvb_buf_done(&out);
}

/* ---- Lines of digits ---- */

struct hex_case {
    const char *line;
    kvb_status status;
    size_t len;
    const char *name;
};

static void lines_of_digits_come_in_three_forms(void **state)
{
    (void)state;
    const struct hex_case cases[] = {
        { "9201\n", KVB_OK, 2, "" },
        { "\n \n92 01 Ff\r\n", KVB_OK, 3, "" },
        { "one|c0", KVB_OK, 1, "one" },
        { "one|1|c0", KVB_OK, 1, "one" },
        { "one|2|c0", KVB_BAD_INPUT, 0, "one" },
        { "one||c0", KVB_BAD_INPUT, 0, "one" },
        { "one|99999999999999999999999|c0", KVB_BAD_INPUT, 0, "one" },
        { "one|1 a|c0", KVB_BAD_INPUT, 0, "one" },
        { "c", KVB_BAD_INPUT, 0, "" },
        { "0x92", KVB_BAD_INPUT, 0, "" },
        { "", KVB_NOT_FOUND, 0, "" },
        { " \n\n", KVB_NOT_FOUND, 0, "" },
    };
    struct kvb_buf out;

    kvb_buf_init(&out, 16);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        kvb_span text = kvb_span_of(cases[i].line);
        struct kvb_hex_line line = { 0 };
        assert_int_equal(kvb_hex_line_take(&text, &line, &out), cases[i].status);
        if (cases[i].status == KVB_OK) {
            assert_int_equal(out.len, cases[i].len);
            assert_int_equal(text.len, 0);
        }
        assert_int_equal(line.name.len, strlen(cases[i].name));
    }
    kvb_buf_done(&out);
}

static void a_line_above_the_ceiling_affects_no_other_line(void **state)
{
    (void)state;
    kvb_span text = kvb_span_of("000102\n0304\n");
    struct kvb_hex_line line = { 0 };
    struct kvb_buf out;

    kvb_buf_init(&out, 2);
    assert_int_equal(kvb_hex_line_take(&text, &line, &out), KVB_TOO_LARGE);
    assert_ok(kvb_hex_line_take(&text, &line, &out));
    assert_int_equal(out.data[1], 4);
    kvb_buf_done(&out);
}

SUITE(decode_lines)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_vector_becomes_the_events_that_are_written_beside_it),
        cmocka_unit_test(a_block_that_no_query_can_name_has_no_tokens_hash),
        cmocka_unit_test(eagle_pairs_count_as_the_engine_counts_them),
        cmocka_unit_test(what_goes_into_a_blocks_identity_is_shown),
        cmocka_unit_test(an_invalid_time_is_null),
        cmocka_unit_test(a_line_for_which_there_is_no_memory_is_reported),
        cmocka_unit_test(lines_of_digits_come_in_three_forms),
        cmocka_unit_test(a_line_above_the_ceiling_affects_no_other_line),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
