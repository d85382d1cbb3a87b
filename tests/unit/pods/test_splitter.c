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
        cmocka_unit_test(an_object_that_is_too_large_is_skipped),
        cmocka_unit_test(an_envelope_that_is_too_large_is_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
