#include "fleet/completion.h"

#include "fail_alloc.h"
#include "kvb_test.h"

#include <string.h>

static kvb_status
read_body(const char *json, struct kvb_completion_request *request, struct kvb_detail *detail)
{
    return kvb_completion_request_read(
        (kvb_span){ (const uint8_t *)json, strlen(json) }, request, detail);
}

static struct kvb_completion_request request_of(const char *json)
{
    struct kvb_completion_request request = { 0 };
    struct kvb_detail detail = { 0 };

    if (read_body(json, &request, &detail) != KVB_OK) {
        fail_msg("%s: %s", json, detail.text);
    }
    return request;
}

static void assert_tokens(const char *json, const uint32_t *tokens, uint32_t count)
{
    struct kvb_completion_request request = request_of(json);

    assert_int_equal(request.count, count);
    assert_memory_equal(request.tokens, tokens, count * sizeof *tokens);
    kvb_completion_request_done(&request);
}

static void a_prompt_is_a_text_or_token_ids_or_one_of_these_in_a_list(void **state)
{
    (void)state;
    static const uint32_t text[] = { 'h', 0xc3, 0xa9, '\n' };
    static const uint32_t ids[] = { 7, 0, UINT32_MAX };
    static const uint32_t one[] = { 5 };

    assert_tokens("{\"prompt\":\"h\\u00e9\\n\"}", text, 4);
    assert_tokens("{\"prompt\":[\"h\\u00e9\\n\"],\"n\":1}", text, 4);
    assert_tokens("{\"prompt\":[7,0,4294967295]}", ids, 3);
    assert_tokens("{\"prompt\":[[7,0,4294967295]]}", ids, 3);
    assert_tokens("{\"prompt\":[5]}", one, 1);
    assert_tokens(
        "{\"messages\":[{\"role\":\"system\",\"content\":\"h\"},{\"content\":\"\\u00e9\\n\"}]}",
        text, 4);
}

static void a_request_without_memory_is_refused_whole(void **state)
{
    (void)state;
    struct kvb_completion_request request = { 0 };
    kvb_status status = KVB_NO_MEMORY;

    for (long n = 0; status == KVB_NO_MEMORY; n++) {
        fail_alloc_after(n);
        status = read_body("{\"prompt\":[1,2]}", &request, NULL);
        fail_alloc_after(-1);
    }
    assert_ok(status);
    kvb_completion_request_done(&request);
}

SUITE(completion)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_prompt_is_a_text_or_token_ids_or_one_of_these_in_a_list),
        cmocka_unit_test(a_request_without_memory_is_refused_whole),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
