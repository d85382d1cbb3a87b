#include "kvb_test.h"

#include "core/own.h"
#include "wire/engine/model_list.h"

#include <stdio.h>
#include <string.h>

static struct kvb_served_names decoded(const char *json, const char *model)
{
    struct kvb_served_names names = { 0 };

    assert_ok(kvb_model_list_decode(kvb_span_of(json), model, &names, NULL));
    return names;
}

/* "chat, +sql-lora": the names in order, adapters with a plus. */
static void assert_names(const char *json, const char *model, const char *want)
{
    const struct kvb_served_names names = decoded(json, model);
    struct kvb_served_name one;
    char text[256] = "";

    assert_true(names.is_listed);
    for (size_t at = 0; kvb_served_names_next(&names, &at, &one);) {
        const size_t len = strlen(text);
        (void)snprintf(
            text + len, sizeof text - len, "%s%s%s", len > 0 ? ", " : "",
            one.kind == KVB_SERVED_ADAPTER ? "+" : "", one.name);
    }
    assert_string_equal(text, want);
}

#define PERMISSION                                                                                 \
    ",\"object\":\"model\",\"created\":1,\"owned_by\":\"vllm\",\"max_model_len\":4096,"            \
    "\"permission\":[{\"id\":\"modelperm-1\",\"allow_view\":true,\"group\":null}]}"

/* What vLLM 0.33 writes. */
static const char of_vllm[] =
    "{\"object\":\"list\",\"data\":["
    "{\"id\":\"qwen\",\"root\":\"Qwen/Qwen3-8B\",\"parent\":null" PERMISSION ","
    "{\"id\":\"chat\",\"root\":\"Qwen/Qwen3-8B\",\"parent\":null" PERMISSION ","
    "{\"id\":\"sql-lora\",\"root\":\"/loras/sql\",\"parent\":\"qwen\"" PERMISSION "]}";

static void vllm_lists_second_names_and_adapters(void **state)
{
    (void)state;

    assert_names(of_vllm, "qwen", "chat, +sql-lora");
    assert_names(of_vllm, "Qwen/Qwen3-8B", "qwen, chat, +sql-lora");
    assert_names(
        of_vllm, "my-qwen", "qwen, chat, +sql-lora"); /* one root: there is no other model */
}

/* SGLang 0.5 and TensorRT-LLM 1.3. */
static void engines_without_adapters_leave_fields_out(void **state)
{
    (void)state;

    assert_names(
        "{\"object\":\"list\",\"data\":[{\"id\":\"m\",\"object\":\"model\",\"root\":\"m\","
        "\"parent\":null,\"max_model_len\":4096}]}",
        "m", "");
    assert_names("{\"data\":[{\"id\":\"other\",\"object\":\"model\"}]}", "m", "other");
    assert_names(
        "{\"data\":[{\"id\":\"m\"},{\"id\":\"x\",\"root\":\"/x\",\"parent\":\"m\"}]}", "m", "+x");
}

/* As a router answers that has several engines behind it. */
static void what_belongs_to_another_model_is_left_out(void **state)
{
    (void)state;
    static const char json[] =
        "{\"data\":[{\"id\":\"a\"},{\"id\":\"b\"},{\"id\":\"b2\",\"root\":\"b\"},"
        "{\"id\":\"la\",\"root\":\"/l\",\"parent\":\"a\"},"
        "{\"id\":\"lb\",\"root\":\"/l\",\"parent\":\"b2\"}]}";

    assert_names(json, "a", "+la");
    assert_names(json, "b", "b2, +lb");
}

static void what_is_no_list_of_the_model_is_refused(void **state)
{
    (void)state;
    static const struct {
        const char *json;
        const char *why;
    } rows[] = {
        { "", "its list of models is no JSON" },
        { "{\"data\":[{\"id\":\"m\"}]", "its list of models is no JSON" },
        { "null", "its list of models has no array `data`" },
        { "[]", "its list of models has no array `data`" },
        { "{\"data\":{}}", "its list of models has no array `data`" },
        { "{\"data\":[]}", "its list of models has no base model, and none of them is m" },
        { "{\"data\":[1,null,{\"id\":7},{\"id\":\"l\",\"parent\":\"m\"}]}",
          "its list of models has no base model, and none of them is m" },
        { "{\"data\":[{\"id\":\"a\"},{\"id\":\"b\"}]}",
          "its list of models has several base models, and none of them is m" },
    };
    struct kvb_served_names names = { .left_out = 7 };

    for (size_t i = 0; i < KVB_COUNT_OF(rows); i++) {
        struct kvb_detail why = { .text = "" };
        assert_int_equal(
            kvb_model_list_decode(kvb_span_of(rows[i].json), "m", &names, &why), KVB_BAD_INPUT);
        assert_string_equal(why.text, rows[i].why);
    }
    assert_int_equal(names.left_out, 7);
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
    names = decoded(json, "m");
    assert_int_equal(names.count, kvb_max_served_names);
    assert_int_equal(names.left_out, 4);
    assert_false(kvb_served_names_are_all(&names));
}

SUITE(model_list)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(vllm_lists_second_names_and_adapters),
        cmocka_unit_test(engines_without_adapters_leave_fields_out),
        cmocka_unit_test(what_belongs_to_another_model_is_left_out),
        cmocka_unit_test(what_is_no_list_of_the_model_is_refused),
        cmocka_unit_test(names_beyond_the_bounds_and_names_that_are_none_are_counted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
