#include "kvb_test.h"

#include "core/own.h"
#include "pods/splitter.h"

#include <stdlib.h>
#include <string.h>

enum { max_objects = 8, object_bytes = 256 };

struct taken {
    size_t count;
    size_t too_large;
    char objects[max_objects][object_bytes];
};

static kvb_status take_object(void *context, kvb_span object)
{
    struct taken *taken = context;

    if (object.len == 0) {
        taken->too_large++;
    } else {
        assert_true(taken->count < max_objects && object.len < object_bytes);
        memcpy(taken->objects[taken->count++], object.data, object.len);
    }
    return KVB_OK;
}

static kvb_span span_of(const char *text)
{
    return (kvb_span){ (const uint8_t *)text, strlen(text) };
}

/* Feeds the text in parts of this many bytes. */
static void split(
    struct kvb_pod_splitter *splitter, enum kvb_pod_answer answer, const char *text, size_t part,
    struct taken *out)
{
    kvb_span left = span_of(text);

    memset(out, 0, sizeof *out);
    kvb_pod_splitter_begin(splitter, answer);
    while (left.len > 0) {
        const size_t len = left.len < part ? left.len : part;
        assert_ok(kvb_pod_splitter_take(splitter, (kvb_span){ left.data, len }, take_object, out));
        left.data += len;
        left.len -= len;
    }
}

static void finds_the_items_of_a_list_and_its_envelope_however_it_is_split(void **state)
{
    static const char list[] =
        "{\"kind\":\"PodList\",\"metadata\":{\"resourceVersion\":\"7\",\"items\":[{\"a\":1}]},\n"
        " \"items\" : [ {\"a\":\"]}\\\"{\"}, {\"b\":{\"items\":[{}]}} ,{}] , \"z\":\"items\"}";
    static const char rest[] =
        "{\"kind\":\"PodList\",\"metadata\":{\"resourceVersion\":\"7\",\"items\":[{\"a\":1}]},\n"
        " \"items\" : [   ] , \"z\":\"items\"}";
    KVB_OWN(kvb_pod_splitter_done) struct kvb_pod_splitter splitter;
    struct taken taken;
    kvb_span envelope;

    (void)state;
    kvb_pod_splitter_init(&splitter, KVB_POD_ANSWER_LIST);
    for (size_t part = 1; part <= sizeof list; part++) {
        split(&splitter, KVB_POD_ANSWER_LIST, list, part, &taken);
        assert_int_equal(taken.count, 3);
        assert_string_equal(taken.objects[0], "{\"a\":\"]}\\\"{\"}");
        assert_string_equal(taken.objects[1], "{\"b\":{\"items\":[{}]}}");
        assert_string_equal(taken.objects[2], "{}");
        assert_ok(kvb_pod_splitter_envelope(&splitter, &envelope));
        assert_int_equal(envelope.len, strlen(rest));
        assert_memory_equal(envelope.data, rest, envelope.len);
    }
}

static void finds_the_lines_of_a_watch_however_they_are_split(void **state)
{
    static const char lines[] = "{\"type\":\"ADDED\",\"object\":{\"a\":[1,2]}}\n"
                                "{\"type\":\"\\\\\"}\n\n{\"type\":\"}\"}\n{\"type\":";
    KVB_OWN(kvb_pod_splitter_done) struct kvb_pod_splitter splitter;
    struct taken taken;

    (void)state;
    kvb_pod_splitter_init(&splitter, KVB_POD_ANSWER_WATCH);
    for (size_t part = 1; part <= sizeof lines; part++) {
        split(&splitter, KVB_POD_ANSWER_WATCH, lines, part, &taken);
        assert_int_equal(taken.count, 3); /* the fourth line is incomplete */
        assert_string_equal(taken.objects[0], "{\"type\":\"ADDED\",\"object\":{\"a\":[1,2]}}");
        assert_string_equal(taken.objects[1], "{\"type\":\"\\\\\"}");
        assert_string_equal(taken.objects[2], "{\"type\":\"}\"}");
    }
}

static void a_list_that_breaks_off_has_no_envelope(void **state)
{
    static const char *const parts[] = { "", "{\"items\":[{}", "{\"items\":[{}]", "{\"kind\":\"" };
    KVB_OWN(kvb_pod_splitter_done) struct kvb_pod_splitter splitter;
    struct taken taken;
    kvb_span envelope;

    (void)state;
    kvb_pod_splitter_init(&splitter, KVB_POD_ANSWER_LIST);
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        split(&splitter, KVB_POD_ANSWER_LIST, parts[i], 3, &taken);
        assert_int_equal(kvb_pod_splitter_envelope(&splitter, &envelope), KVB_BAD_INPUT);
    }
}

/* An object of twice the limit between two others: it is reported, and the others are not affected.
 */
static void an_object_that_is_too_large_is_skipped(void **state)
{
    static const enum kvb_pod_answer answers[] = { KVB_POD_ANSWER_LIST, KVB_POD_ANSWER_WATCH };
    KVB_OWN(kvb_pod_splitter_done) struct kvb_pod_splitter splitter;
    const size_t len = 2 * (size_t)kvb_max_pod_bytes;
    char *large = malloc(len);
    struct taken taken = { 0 };
    kvb_span envelope;

    (void)state;
    assert_non_null(large);
    memset(large, 'x', len);
    kvb_pod_splitter_init(&splitter, KVB_POD_ANSWER_LIST);
    for (size_t i = 0; i < 2; i++) {
        const bool is_list = answers[i] == KVB_POD_ANSWER_LIST;
        taken = (struct taken){ 0 };
        kvb_pod_splitter_begin(&splitter, answers[i]);
        const kvb_span parts[] = {
            span_of(is_list ? "{\"items\":[{\"a\":1},{\"b\":\"" : "{\"a\":1}\n{\"b\":\""),
            { (const uint8_t *)large, len },
            span_of(is_list ? "\"},{\"c\":1}]}" : "\"}\n{\"c\":1}\n"),
        };
        for (size_t at = 0; at < 3; at++) {
            assert_ok(kvb_pod_splitter_take(&splitter, parts[at], take_object, &taken));
        }
        assert_int_equal(taken.count, 2);
        assert_int_equal(taken.too_large, 1);
        assert_string_equal(taken.objects[1], "{\"c\":1}");
        if (is_list) {
            assert_ok(kvb_pod_splitter_envelope(&splitter, &envelope));
        }
    }
    free(large);
}

static void an_envelope_that_is_too_large_is_refused(void **state)
{
    KVB_OWN(kvb_pod_splitter_done) struct kvb_pod_splitter splitter;
    struct taken taken = { 0 };
    kvb_span envelope;

    (void)state;
    kvb_pod_splitter_init(&splitter, KVB_POD_ANSWER_LIST);
    assert_ok(kvb_pod_splitter_take(&splitter, span_of("{\"kind\":\""), take_object, &taken));
    for (size_t i = 0; i < kvb_max_pod_envelope_bytes; i++) {
        assert_ok(kvb_pod_splitter_take(&splitter, span_of("y"), take_object, &taken));
    }
    assert_ok(kvb_pod_splitter_take(&splitter, span_of("\"}"), take_object, &taken));
    assert_int_equal(kvb_pod_splitter_envelope(&splitter, &envelope), KVB_TOO_LARGE);
}

SUITE(splitter)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(finds_the_items_of_a_list_and_its_envelope_however_it_is_split),
        cmocka_unit_test(finds_the_lines_of_a_watch_however_they_are_split),
        cmocka_unit_test(a_list_that_breaks_off_has_no_envelope),
        cmocka_unit_test(an_object_that_is_too_large_is_skipped),
        cmocka_unit_test(an_envelope_that_is_too_large_is_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
