#include "kvb_test.h"

#include "core/limits.h"
#include "core/own.h"
#include "wire/engine/server_info.h"

#include <stdlib.h>
#include <string.h>

/* vLLM 0.33, config_format=json, with what is not read left out. */
#define JSON(speculative)                                                                          \
    "{\"vllm_config\": {\"model_config\": {\"model\": \"m\", \"method\": \"ngram\"}, "             \
    "\"speculative_config\": " speculative ", \"instance_id\": \"a\"}, \"vllm_env\": {}}"
/* The same as text, and the answer of versions that know no other. */
#define TEXT(speculative)                                                                          \
    "{\"vllm_config\":\"model='m', speculative_config=" speculative                                \
    ", tokenizer='m', dtype=torch.bfloat16\"}"

static void the_method_that_the_engine_uses_is_read(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        enum kvb_speculation found;
    } rows[] = {
        { JSON("null"), KVB_SPECULATION_KEEPS },
        { JSON("{\"method\": \"eagle3\", \"model\": \"x\"}"), KVB_SPECULATION_DROPS },
        { JSON("{\"method\":\"mtp\",\"disable_eagle_block_drop\":false}"), KVB_SPECULATION_DROPS },
        { JSON("{\"method\":\"mtp\",\"disable_eagle_block_drop\": true}"), KVB_SPECULATION_KEEPS },
        { JSON("{\"method\":\"draft_model\",\"draft_model_config\":{\"method\":\"mtp\"}}"),
          KVB_SPECULATION_KEEPS },
        { JSON("{\"method\":\"dflash\"}"), KVB_SPECULATION_UNDECIDED }, /* before 0.33 */
        { JSON("{\"method\":\"dflash\",\"disable_lookahead_block_hashes\":false}"),
          KVB_SPECULATION_KEEPS },
        { JSON("{\"method\":\"tomorrow\"}"), KVB_SPECULATION_UNDECIDED },
        { JSON("{\"method\":null}"), KVB_SPECULATION_UNDECIDED },
        { JSON("{\"method\":[\"eagle\"]}"), KVB_SPECULATION_UNDECIDED },
        { JSON("{\"method\":\""
               "0123456789012345678901234567890123456789012345678901234567890123456789"
               "\"}"),
          KVB_SPECULATION_UNDECIDED },
        { JSON("{}"), KVB_SPECULATION_UNDECIDED },
        { "{\"vllm_config\":{}}", KVB_SPECULATION_UNKNOWN },
        { TEXT("None"), KVB_SPECULATION_KEEPS },
        { TEXT("SpeculativeConfig(method='eagle', model='x', num_spec_tokens=3)"),
          KVB_SPECULATION_DROPS },
        { TEXT("SpeculativeConfig(method='ngram', model=None, num_spec_tokens=3)"),
          KVB_SPECULATION_KEEPS },
        { TEXT("SpeculativeConfig(draft='x')"), KVB_SPECULATION_UNDECIDED },
        { "{\"vllm_config\":\"speculative_config=SpeculativeConfig(method='eagle\"}",
          KVB_SPECULATION_UNDECIDED },
        { "{\"vllm_config\":\"speculative_config=\"}", KVB_SPECULATION_UNKNOWN },
        { "{\"vllm_config\":\"model='m'\"}", KVB_SPECULATION_UNKNOWN },
        { "{\"vllm_config\":\"\"}", KVB_SPECULATION_UNKNOWN },
    };

    for (size_t i = 0; i < KVB_COUNT_OF(rows); i++) {
        enum kvb_speculation found = KVB_SPECULATION_COUNT;
        assert_ok(kvb_server_info_decode(kvb_span_of(rows[i].text), &found));
        if (found != rows[i].found) {
            fail_msg("%s: %d", rows[i].text, (int)found);
        }
    }
}

static void other_answers_are_refused(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        kvb_status status;
    } rows[] = {
        { "{\"kv_events\":null}", KVB_NOT_FOUND },
        { "{}", KVB_NOT_FOUND },
        { "", KVB_BAD_INPUT },
        { "[]", KVB_BAD_INPUT },
        { "{\"vllm_config\":7}", KVB_BAD_INPUT },
        { "{\"vllm_config\":null}", KVB_BAD_INPUT },
        { "{\"vllm_config\":{\"speculative_config\":\"eagle\"}}", KVB_BAD_INPUT },
        { "{\"vllm_config\":{\"speculative_config\":[]}}", KVB_BAD_INPUT },
        { "{\"vllm_config\":{}} x", KVB_BAD_INPUT },
        { "{\"vllm_config\":{}", KVB_BAD_INPUT },
        { "{\"vllm_config\":{},\"vllm_config\":{}}", KVB_BAD_INPUT },
    };

    for (size_t i = 0; i < KVB_COUNT_OF(rows); i++) {
        enum kvb_speculation found = KVB_SPECULATION_COUNT;
        assert_int_equal(kvb_server_info_decode(kvb_span_of(rows[i].text), &found), rows[i].status);
        assert_int_equal(found, KVB_SPECULATION_COUNT);
    }
    enum kvb_speculation found = KVB_SPECULATION_COUNT;
    char *large = calloc(1, kvb_max_event_sources_bytes + 1U);
    assert_non_null(large);
    assert_int_equal(
        kvb_server_info_decode(
            (kvb_span){ (const uint8_t *)large, kvb_max_event_sources_bytes + 1U }, &found),
        KVB_TOO_LARGE);
    free(large);
}

SUITE(server_info)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_method_that_the_engine_uses_is_read),
        cmocka_unit_test(other_answers_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
