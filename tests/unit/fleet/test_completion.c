#include "fleet/completion.h"

#include "core/own.h"
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

static void fields_that_are_not_given_have_defaults(void **state)
{
    (void)state;
    struct kvb_completion_request request = request_of("{\"prompt\":[1],\"stream\":null}");

    assert_string_equal(request.model, "");
    assert_int_equal(request.max_tokens, 16);
    assert_false(request.is_chat || request.is_stream || request.wants_usage);
    kvb_completion_request_done(&request);
    request = request_of("{\"messages\":[{\"content\":\"x\"}],\"model\":\"m\",\"stream\":true,"
                         "\"max_tokens\":9,\"max_completion_tokens\":4,\"stream_options\":{"
                         "\"include_usage\":true}}");
    assert_string_equal(request.model, "m");
    assert_int_equal(request.max_tokens, 4);
    assert_true(request.is_chat && request.is_stream && request.wants_usage);
    kvb_completion_request_done(&request);
}

static void a_wrong_field_is_named(void **state)
{
    (void)state;
    static const struct {
        const char *json;
        const char *sentence;
    } rows[] = {
        { "{", "the body: expected JSON, not too large" },
        { "[1]", "the body: expected an object" },
        { "{}", "expected either prompt or messages" },
        { "{\"prompt\":\"x\",\"messages\":[]}", "expected either prompt or messages" },
        { "{\"prompt\":\"\"}", "prompt: expected at least one token" },
        { "{\"prompt\":7}", "prompt: expected one text, or one list of token ids" },
        { "{\"prompt\":[null]}", "prompt: expected one text, or one list of token ids" },
        { "{\"prompt\":[1,-1]}", "prompt: expected token ids from 0 to 4294967295" },
        { "{\"prompt\":[\"a\",\"b\"]}", "prompt: expected token ids from 0 to 4294967295" },
        { "{\"messages\":{}}", "messages: expected a list" },
        { "{\"messages\":[{\"content\":[]}]}", "messages: expected a text as content of each" },
        { "{\"prompt\":[1],\"model\":7}", "model: expected a short text" },
        { "{\"prompt\":[1],\"max_tokens\":0}", "max_tokens: expected a number from 1 to 4096" },
        { "{\"prompt\":[1],\"max_tokens\":4097}", "max_tokens: expected a number from 1 to 4096" },
        { "{\"prompt\":[1],\"stream\":1}", "stream: expected true or false" },
        { "{\"prompt\":[1],\"stream_options\":1}", "stream_options: expected an object" },
    };

    for (size_t i = 0; i < KVB_COUNT_OF(rows); i++) {
        struct kvb_completion_request request = { 0 };
        struct kvb_detail detail = { 0 };
        assert_int_equal(read_body(rows[i].json, &request, &detail), KVB_BAD_INPUT);
        assert_string_equal(detail.text, rows[i].sentence);
        assert_null(request.tokens);
    }
}

/* ---- Answers ---- */

static const uint32_t output[] = { 4711, 0 };

static struct kvb_completion completion_for(const struct kvb_completion_request *request)
{
    return (struct kvb_completion){ .request = request,
                                    .model = "m",
                                    .number = 3,
                                    .created_s = 50,
                                    .output = output,
                                    .output_count = 2,
                                    .cached_tokens = 1 };
}

static void assert_written(struct kvb_buf *out, const char *text)
{
    assert_ok(kvb_buf_append(out, "", 1));
    assert_string_equal((const char *)out->data, text);
    kvb_buf_reset(out);
}

#define USAGE                                                                                      \
    "\"usage\":{\"prompt_tokens\":2,\"completion_tokens\":2,\"total_tokens\":4,"                   \
    "\"prompt_tokens_details\":{\"cached_tokens\":1}}}"
#define TEXT_HEAD                                                                                  \
    "{\"id\":\"cmpl-3\",\"object\":\"text_completion\",\"created\":50,\"model\":\"m\","            \
    "\"choices\":["
#define CHAT_HEAD(object)                                                                          \
    "{\"id\":\"chatcmpl-3\",\"object\":\"" object "\",\"created\":50,\"model\":\"m\",\"choices\":" \
    "["

static void a_whole_answer_has_the_texts_of_its_tokens_and_the_usage(void **state)
{
    (void)state;
    KVB_OWN(kvb_buf_done) struct kvb_buf out = { 0 };
    struct kvb_completion_request request = { .count = 2, .max_tokens = 2 };
    const struct kvb_completion completion = completion_for(&request);

    kvb_buf_init(&out, 1 << 16);
    assert_ok(kvb_completion_write(&completion, &out));
    assert_written(
        &out, TEXT_HEAD "{\"index\":0,\"text\":\" 4711 0\",\"finish_reason\":\"length\"}]," USAGE);
    request.is_chat = true;
    assert_ok(kvb_completion_write(&completion, &out));
    assert_written(
        &out,
        CHAT_HEAD("chat.completion") "{\"index\":0,\"message\":{\"role\":\"assistant\",\"content\":"
                                     "\" 4711 0\"},\"finish_reason\":\"length\"}]," USAGE);
}

static void a_stream_has_an_event_for_each_token_and_an_end(void **state)
{
    (void)state;
    KVB_OWN(kvb_buf_done) struct kvb_buf out = { 0 };
    struct kvb_completion_request request = { .count = 2, .max_tokens = 2, .is_chat = true };
    const struct kvb_completion completion = completion_for(&request);

    kvb_buf_init(&out, 1 << 16);
    assert_ok(kvb_completion_write_tokens(&completion, 0, &out));
    assert_written(
        &out, "data: " CHAT_HEAD(
                  "chat.completion.chunk") "{\"index\":0,\"delta\":{\"role\":"
                                           "\"assistant\",\"content\":\" "
                                           "4711\"},\"finish_reason\":null}]}\n\n"
                                           "data: " CHAT_HEAD(
                                               "chat.completion.chunk") "{\"index\":0,\"delta\":{"
                                                                        "\"content\":\" "
                                                                        "0\"},\"finish_reason\":"
                                                                        "\"length\"}]}\n\n");
    request.is_chat = false;
    assert_ok(kvb_completion_write_tokens(&completion, 1, &out));
    assert_written(
        &out,
        "data: " TEXT_HEAD "{\"index\":0,\"text\":\" 0\",\"finish_reason\":\"length\"}]}\n\n");
    assert_ok(kvb_completion_write_end(&completion, &out));
    assert_written(&out, "data: [DONE]\n\n");
    request.wants_usage = true;
    assert_ok(kvb_completion_write_end(&completion, &out));
    assert_written(&out, "data: " TEXT_HEAD "]," USAGE "\n\ndata: [DONE]\n\n");
}

static void token_ids_and_errors_are_objects(void **state)
{
    (void)state;
    KVB_OWN(kvb_buf_done) struct kvb_buf out = { 0 };
    struct kvb_completion_request request = request_of("{\"prompt\":[7,8]}");

    kvb_buf_init(&out, 1 << 16);
    assert_ok(kvb_completion_write_tokenized(&request, &out));
    assert_written(&out, "{\"count\":2,\"tokens\":[7,8]}");
    assert_ok(kvb_completion_write_error(404, "no \"x\"", &out));
    assert_written(&out, "{\"error\":{\"message\":\"no \\\"x\\\"\",\"code\":404}}");
    kvb_completion_request_done(&request);
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
        cmocka_unit_test(fields_that_are_not_given_have_defaults),
        cmocka_unit_test(a_wrong_field_is_named),
        cmocka_unit_test(a_whole_answer_has_the_texts_of_its_tokens_and_the_usage),
        cmocka_unit_test(a_stream_has_an_event_for_each_token_and_an_end),
        cmocka_unit_test(token_ids_and_errors_are_objects),
        cmocka_unit_test(a_request_without_memory_is_refused_whole),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
