#include "wire/gateway/usage.h"

#include "core/limits.h"
#include "core/own.h"
#include "kvb_test.h"

#include <stdlib.h>
#include <string.h>

enum { none = -1 };

static int64_t answer_of(const struct kvb_usage_finder *finder)
{
    uint64_t tokens = 0;

    return kvb_usage_cached_tokens(finder, &tokens) ? (int64_t)tokens : none;
}

/* In one piece, byte by byte, and cut into two at each place. */
static void expect(const char *answer, int64_t tokens)
{
    const size_t len = strlen(answer);
    struct kvb_usage_finder bytewise = { 0 };

    for (size_t cut = 0; cut <= len; cut++) {
        struct kvb_usage_finder finder = { 0 };
        kvb_usage_feed(&finder, (kvb_span){ (const uint8_t *)answer, cut });
        kvb_usage_feed(&finder, (kvb_span){ (const uint8_t *)answer + cut, len - cut });
        if (answer_of(&finder) != tokens) {
            fail_msg("%s, cut at %zu: %lld", answer, cut, (long long)answer_of(&finder));
        }
    }
    for (size_t i = 0; i < len; i++) {
        kvb_usage_feed(&bytewise, (kvb_span){ (const uint8_t *)answer + i, 1 });
    }
    assert_int_equal(answer_of(&bytewise), tokens);
}

static void finds_the_number(void **state)
{
    (void)state;
    expect("{\"usage\":{\"prompt_tokens_details\":{\"cached_tokens\":32}}}", 32);
    expect("{\"cached_tokens\": 0, \"x\":1}", 0);
    expect("data: {\"a\":{\"cached_tokens\":\n 17 }}\n\ndata: [DONE]\n\n", 17);
    expect("\"cached_tokens\":4294967295,", 4294967295);
    expect("\"cached_tokens\":1 2}", 1); /* no JSON: a number ends at a blank */
    expect("", none);
    expect("{\"usage\":{\"prompt_tokens\":32}}", none);
}

static void the_last_number_counts(void **state)
{
    (void)state;
    expect("\"cached_tokens\":1,\"cached_tokens\":22}", 22);
    expect(
        "\"cached_tokens\":1,\"cached_tokens\":null}", 1); /* no number: SGLang's empty details */
}

static void generated_text_does_not_count(void **state)
{
    (void)state;
    expect("{\"content\":\"{\\\"cached_tokens\\\":9}\",\"cached_tokens\":3}", 3);
    expect("{\"content\":\"{\\\"cached_tokens\\\":9}\"}", none);
    expect("{\"content\":\"x\\\"cached_tokens\":9}", none); /* no JSON, and escaped all the same */
    expect("{\"content\":\"cached_tokens\",\"n\":9}", none);
    expect("{\"\"cached_tokens\":8}", 8);
    expect("\"cached_tokens\"cached_tokens\":8}", 8); /* the quote may be the beginning */
    expect("\"cached_token\"cached_tokens\":8}", 8);
}

static void only_whole_numbers_count(void **state)
{
    (void)state;
    expect("{\"cached_tokens\":32", none); /* broken off: it may have been 320 */
    expect("{\"cached_tokens\":3.5}", none);
    expect("{\"cached_tokens\":-3}", none);
    expect("{\"cached_tokens\":3e2}", none);
    expect("{\"cached_tokens\":\"3\"}", none);
    expect("{\"cached_tokens\":99999999999}", none);
    expect("{\"cached_tokens\":\"cached_tokens\":5}", 5);
}

/* A name that begins `before` bytes before the end. */
static int64_t at_distance(size_t before, size_t chunk)
{
    static const char start[] = "\"cached_tokens\":";
    static const char number[] = "7,";
    const size_t head = 100;
    const size_t len = head + before;
    char *answer = malloc(len);
    struct kvb_usage_finder finder = { 0 };

    assert_non_null(answer);
    memset(answer, 'x', len);
    memcpy(answer + head, start, sizeof start - 1);
    memcpy(answer + head + sizeof start - 1, number, sizeof number - 1);
    for (size_t at = 0; at < len; at += chunk) {
        const size_t left = len - at;
        kvb_usage_feed(
            &finder, (kvb_span){ (const uint8_t *)answer + at, left < chunk ? left : chunk });
    }
    free(answer);
    return answer_of(&finder);
}

static void only_the_end_of_an_answer_counts(void **state)
{
    static const size_t chunks[] = { 1, 1000, 65536, 65537, 65600, 100000 };

    (void)state;
    for (size_t i = 0; i < KVB_COUNT_OF(chunks); i++) {
        assert_int_equal(at_distance(kvb_max_gateway_usage_bytes, chunks[i]), 7);
        assert_int_equal(at_distance(kvb_max_gateway_usage_bytes + 1, chunks[i]), none);
    }
}

/* A backslash just before the part of a large chunk that is read. */
static void a_quote_may_be_escaped_before_what_is_read(void **state)
{
    static const char text[] = "\"cached_tokens\":7}";
    const size_t len = kvb_max_gateway_usage_bytes + 1;
    char *answer = malloc(len);
    struct kvb_usage_finder finder = { 0 };

    (void)state;
    assert_non_null(answer);
    memset(answer, ' ', len);
    answer[0] = '\\';
    memcpy(answer + 1, text, sizeof text - 1);
    kvb_usage_feed(&finder, (kvb_span){ (const uint8_t *)answer, len });
    assert_int_equal(answer_of(&finder), none);
    answer[0] = ' ';
    finder = (struct kvb_usage_finder){ 0 };
    kvb_usage_feed(&finder, (kvb_span){ (const uint8_t *)answer, len });
    assert_int_equal(answer_of(&finder), 7);
    free(answer);
}

SUITE(usage)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(finds_the_number),
        cmocka_unit_test(the_last_number_counts),
        cmocka_unit_test(generated_text_does_not_count),
        cmocka_unit_test(only_whole_numbers_count),
        cmocka_unit_test(only_the_end_of_an_answer_counts),
        cmocka_unit_test(a_quote_may_be_escaped_before_what_is_read),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
