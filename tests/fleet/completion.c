#include "fleet/completion.h"

#include "core/own.h"
#include "wire/json/tree.h"
#include "wire/json/writer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { max_depth = 16, max_containers = 1 << 16, max_values = 1 << 21 };

static const char done_event[] = "data: [DONE]\n\n";

/* ---- Requests ---- */

static kvb_status refuse_completion(struct kvb_detail *detail, const char *sentence)
{
    kvb_detail_set(detail, "%s", sentence);
    return KVB_BAD_INPUT;
}

/* Room for `more` tokens behind those that are there. */
static kvb_status reserve_tokens(struct kvb_completion_request *request, size_t more)
{
    uint32_t *tokens =
        realloc(request->tokens, (request->count + more + 1) * sizeof *request->tokens);

    if (!tokens) {
        return KVB_NO_MEMORY;
    }
    request->tokens = tokens;
    return KVB_OK;
}

static kvb_status add_text(struct json_object *text, struct kvb_completion_request *request)
{
    const uint8_t *bytes = (const uint8_t *)json_object_get_string(text);
    const size_t len = (size_t)json_object_get_string_len(text);

    KVB_TRY(reserve_tokens(request, len));
    for (size_t i = 0; i < len; i++) {
        request->tokens[request->count++] = bytes[i];
    }
    return KVB_OK;
}

static kvb_status add_token_ids(
    struct json_object *ids, struct kvb_completion_request *request, struct kvb_detail *detail)
{
    const size_t len = json_object_array_length(ids);

    KVB_TRY(reserve_tokens(request, len));
    for (size_t i = 0; i < len; i++) {
        uint64_t token = 0;
        if (kvb_json_number(json_object_array_get_idx(ids, i), UINT32_MAX, &token) != KVB_OK) {
            return refuse_completion(detail, "prompt: expected token ids from 0 to 4294967295");
        }
        request->tokens[request->count++] = (uint32_t)token;
    }
    return KVB_OK;
}

/* A text, a list of token ids, or a list with one of these in it. */
static kvb_status read_prompt(
    struct json_object *prompt, struct kvb_completion_request *request, struct kvb_detail *detail)
{
    if (json_object_is_type(prompt, json_type_array) && json_object_array_length(prompt) == 1 &&
        !json_object_is_type(json_object_array_get_idx(prompt, 0), json_type_int)) {
        prompt = json_object_array_get_idx(prompt, 0);
    }
    if (json_object_is_type(prompt, json_type_string)) {
        return add_text(prompt, request);
    }
    if (json_object_is_type(prompt, json_type_array)) {
        return add_token_ids(prompt, request, detail);
    }
    return refuse_completion(detail, "prompt: expected one text, or one list of token ids");
}

static kvb_status read_messages(
    struct json_object *messages, struct kvb_completion_request *request, struct kvb_detail *detail)
{
    request->is_chat = true;
    if (!json_object_is_type(messages, json_type_array)) {
        return refuse_completion(detail, "messages: expected a list");
    }
    for (size_t i = 0; i < json_object_array_length(messages); i++) {
        struct json_object *content =
            kvb_json_member(json_object_array_get_idx(messages, i), "content");
        if (!json_object_is_type(content, json_type_string)) {
            return refuse_completion(detail, "messages: expected a text as content of each");
        }
        KVB_TRY(add_text(content, request));
    }
    return KVB_OK;
}

static kvb_status read_token_ids(
    struct json_object *root, struct kvb_completion_request *request, struct kvb_detail *detail)
{
    struct json_object *prompt = kvb_json_member(root, "prompt");
    struct json_object *messages = kvb_json_member(root, "messages");

    if (!prompt == !messages) {
        return refuse_completion(detail, "expected either prompt or messages");
    }
    KVB_TRY(
        prompt ? read_prompt(prompt, request, detail) : read_messages(messages, request, detail));
    return request->count > 0 ? KVB_OK
                              : refuse_completion(detail, "prompt: expected at least one token");
}

static kvb_status read_max_tokens(
    struct json_object *root, struct kvb_completion_request *request, struct kvb_detail *detail)
{
    struct json_object *newer = kvb_json_member(root, "max_completion_tokens");
    struct json_object *value = newer ? newer : kvb_json_member(root, "max_tokens");
    uint64_t number = kvb_default_completion_tokens;

    if (value &&
        (kvb_json_number(value, kvb_max_completion_tokens, &number) != KVB_OK || number == 0)) {
        kvb_detail_set(
            detail, "max_tokens: expected a number from 1 to %d", kvb_max_completion_tokens);
        return KVB_BAD_INPUT;
    }
    request->max_tokens = (uint32_t)number;
    return KVB_OK;
}

static kvb_status
read_flag(struct json_object *object, const char *name, bool *out_flag, struct kvb_detail *detail)
{
    struct json_object *value = kvb_json_member(object, name);

    if (value && !json_object_is_type(value, json_type_boolean)) {
        kvb_detail_set(detail, "%s: expected true or false", name);
        return KVB_BAD_INPUT;
    }
    *out_flag = value && json_object_get_boolean(value);
    return KVB_OK;
}

static kvb_status read_completion_object(
    struct json_object *root, struct kvb_completion_request *request, struct kvb_detail *detail)
{
    if (!json_object_is_type(root, json_type_object)) {
        return refuse_completion(detail, "the body: expected an object");
    }
    struct json_object *model = kvb_json_member(root, "model");
    if (model && kvb_json_text(model, request->model, sizeof request->model) != KVB_OK) {
        return refuse_completion(detail, "model: expected a short text");
    }
    KVB_TRY(read_token_ids(root, request, detail));
    KVB_TRY(read_max_tokens(root, request, detail));
    KVB_TRY(read_flag(root, "stream", &request->is_stream, detail));
    struct json_object *options = kvb_json_member(root, "stream_options");
    if (options && !json_object_is_type(options, json_type_object)) {
        return refuse_completion(detail, "stream_options: expected an object");
    }
    return read_flag(options, "include_usage", &request->wants_usage, detail);
}

kvb_status kvb_completion_request_read(
    kvb_span json, struct kvb_completion_request *out_request, struct kvb_detail *detail)
{
    KVB_OWN(kvb_json_drop) struct json_object *root = NULL;
    struct kvb_json_budget budget = { .depth = max_depth,
                                      .containers = max_containers,
                                      .values = max_values };
    struct kvb_completion_request request = { 0 };

    kvb_status status = kvb_json_parse(json, &budget, &root);
    if (status == KVB_OK) {
        status = read_completion_object(root, &request, detail);
    } else if (status != KVB_NO_MEMORY) {
        status = refuse_completion(detail, "the body: expected JSON, not too large");
    }
    if (status != KVB_OK) {
        kvb_completion_request_done(&request);
        return status;
    }
    *out_request = request;
    return KVB_OK;
}

void kvb_completion_request_done(struct kvb_completion_request *request)
{
    free(request->tokens);
    *request = (struct kvb_completion_request){ 0 };
}

/* ---- Answers ---- */

/* The words in which the two kinds of answers differ; by is_chat. */
static const struct answer_words {
    const char *id_prefix;
    const char *object;
    const char *object_of_token;
} words_by_chat[] = {
    { "cmpl-", "text_completion", "text_completion" },
    { "chatcmpl-", "chat.completion", "chat.completion.chunk" },
};

static const struct answer_words *answer_words_of(const struct kvb_completion *completion)
{
    return &words_by_chat[completion->request->is_chat];
}

static void write_head(
    struct kvb_json_writer *json, const struct kvb_completion *completion, const char *object)
{
    char id[48];

    (void)snprintf(
        id, sizeof id, "%s%llu", answer_words_of(completion)->id_prefix,
        (unsigned long long)completion->number);
    kvb_json_write_begin(json, '{');
    kvb_json_write_pair_text(json, "id", id);
    kvb_json_write_pair_text(json, "object", object);
    kvb_json_write_pair_u64(json, "created", completion->created_s);
    kvb_json_write_pair_text(json, "model", completion->model);
    kvb_json_write_pair_begin(json, "choices", '[');
}

static void write_usage(struct kvb_json_writer *json, const struct kvb_completion *completion)
{
    const uint64_t prompt = completion->request->count;

    kvb_json_write_pair_begin(json, "usage", '{');
    kvb_json_write_pair_u64(json, "prompt_tokens", prompt);
    kvb_json_write_pair_u64(json, "completion_tokens", completion->output_count);
    kvb_json_write_pair_u64(json, "total_tokens", prompt + completion->output_count);
    kvb_json_write_pair_begin(json, "prompt_tokens_details", '{');
    kvb_json_write_pair_u64(json, "cached_tokens", completion->cached_tokens);
    kvb_json_write_end(json, '}');
    kvb_json_write_end(json, '}');
}

static void write_finish(struct kvb_json_writer *json, bool is_last)
{
    if (is_last) {
        kvb_json_write_pair_text(json, "finish_reason", "length");
    } else {
        kvb_json_write_key(json, "finish_reason");
        kvb_json_write_null(json);
    }
}

/* Tokens from .. to - 1 as a text in `key`. */
static void write_token_text(
    struct kvb_json_writer *json, const char *key, const uint32_t *tokens, uint32_t count)
{
    KVB_OWN(kvb_buf_done) struct kvb_buf text = { 0 };

    kvb_buf_init(&text, (size_t)kvb_max_completion_tokens * 16);
    for (uint32_t i = 0; i < count && json->status == KVB_OK; i++) {
        json->status = kvb_buf_append_format(&text, " %u", tokens[i]);
    }
    kvb_json_write_key(json, key);
    kvb_json_write_span(json, kvb_buf_span(&text));
}

static void
write_whole_choice(struct kvb_json_writer *json, const struct kvb_completion *completion)
{
    kvb_json_write_begin(json, '{');
    kvb_json_write_pair_u64(json, "index", 0);
    if (completion->request->is_chat) {
        kvb_json_write_pair_begin(json, "message", '{');
        kvb_json_write_pair_text(json, "role", "assistant");
        write_token_text(json, "content", completion->output, completion->output_count);
        kvb_json_write_end(json, '}');
    } else {
        write_token_text(json, "text", completion->output, completion->output_count);
    }
    write_finish(json, true);
    kvb_json_write_end(json, '}');
}

kvb_status kvb_completion_write(const struct kvb_completion *completion, struct kvb_buf *out)
{
    struct kvb_json_writer json = kvb_json_writer_of(out);

    write_head(&json, completion, answer_words_of(completion)->object);
    write_whole_choice(&json, completion);
    kvb_json_write_end(&json, ']');
    write_usage(&json, completion);
    kvb_json_write_end(&json, '}');
    return json.status;
}

static void write_token_choice(
    struct kvb_json_writer *json, const struct kvb_completion *completion, uint32_t at)
{
    kvb_json_write_begin(json, '{');
    kvb_json_write_pair_u64(json, "index", 0);
    if (completion->request->is_chat) {
        kvb_json_write_pair_begin(json, "delta", '{');
        if (at == 0) {
            kvb_json_write_pair_text(json, "role", "assistant");
        }
        write_token_text(json, "content", completion->output + at, 1);
        kvb_json_write_end(json, '}');
    } else {
        write_token_text(json, "text", completion->output + at, 1);
    }
    write_finish(json, at + 1 == completion->request->max_tokens);
    kvb_json_write_end(json, '}');
}

kvb_status kvb_completion_write_tokens(
    const struct kvb_completion *completion, uint32_t from, struct kvb_buf *out)
{
    for (uint32_t at = from; at < completion->output_count; at++) {
        KVB_TRY(kvb_buf_append_text(out, "data: "));
        struct kvb_json_writer json = kvb_json_writer_of(out);
        write_head(&json, completion, answer_words_of(completion)->object_of_token);
        write_token_choice(&json, completion, at);
        kvb_json_write_end(&json, ']');
        kvb_json_write_end(&json, '}');
        KVB_TRY(json.status);
        KVB_TRY(kvb_buf_append_text(out, "\n\n"));
    }
    return KVB_OK;
}

kvb_status kvb_completion_write_end(const struct kvb_completion *completion, struct kvb_buf *out)
{
    if (completion->request->wants_usage) {
        KVB_TRY(kvb_buf_append_text(out, "data: "));
        struct kvb_json_writer json = kvb_json_writer_of(out);
        write_head(&json, completion, answer_words_of(completion)->object_of_token);
        kvb_json_write_end(&json, ']'); /* no choice */
        write_usage(&json, completion);
        kvb_json_write_end(&json, '}');
        KVB_TRY(json.status);
        KVB_TRY(kvb_buf_append_text(out, "\n\n"));
    }
    return kvb_buf_append_text(out, done_event);
}

kvb_status
kvb_completion_write_tokenized(const struct kvb_completion_request *request, struct kvb_buf *out)
{
    struct kvb_json_writer json = kvb_json_writer_of(out);

    kvb_json_write_begin(&json, '{');
    kvb_json_write_pair_u64(&json, "count", request->count);
    kvb_json_write_pair_begin(&json, "tokens", '[');
    for (uint32_t i = 0; i < request->count; i++) {
        kvb_json_write_u64(&json, request->tokens[i]);
    }
    kvb_json_write_end(&json, ']');
    kvb_json_write_end(&json, '}');
    return json.status;
}

kvb_status kvb_completion_write_error(unsigned status, const char *sentence, struct kvb_buf *out)
{
    struct kvb_json_writer json = kvb_json_writer_of(out);

    kvb_json_write_begin(&json, '{');
    kvb_json_write_pair_begin(&json, "error", '{');
    kvb_json_write_pair_text(&json, "message", sentence);
    kvb_json_write_pair_u64(&json, "code", status);
    kvb_json_write_end(&json, '}');
    kvb_json_write_end(&json, '}');
    return json.status;
}
