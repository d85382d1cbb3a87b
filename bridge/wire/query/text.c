#include "wire/query/text.h"

#include "core/array.h"
#include "core/limits.h"
#include "core/own.h"
#include "wire/json/scan.h"
#include "wire/json/writer.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

enum { max_text_depth = 32 /* of a member: schemas of tools are nested */ };

/* ---- The parts of a prompt in a query ---- */

/* The members of a prompt, in the order of the engine's request, so that their order in the query
 * does not matter. */
enum part_number {
    add_special_tokens_part,
    add_generation_prompt_part,
    continue_final_message_part,
    tools_part,
    chat_template_part,
    chat_template_kwargs_part,
    messages_part,
    prompt_part,
    part_count
};

_Static_assert((int)part_count == (int)kvb_query_part_count, "a place for each");

/* clang-format off */
static const struct part {
    const char *name;
    const char *sent_as;
    char first;       /* byte of its value; 0: any */
    bool is_of_chats; /* only of messages */
} parts[part_count] = {
    [add_special_tokens_part] =
        { "add_special_tokens",     "add_special_tokens",     0,   false },
    [add_generation_prompt_part] =
        { "add_generation_prompt",  "add_generation_prompt",  0,   true },
    [continue_final_message_part] =
        { "continue_final_message", "continue_final_message", 0,   true },
    [tools_part] =
        { "tools",                  "tools",                  0,   true },
    [chat_template_part] =
        { "chat_template",          "chat_template",          0,   true },
    [chat_template_kwargs_part] =
        { "chat_template_kwargs",   "chat_template_kwargs",   0,   true },
    [messages_part] =
        { "messages",               "messages",               '[', true },
    [prompt_part] =
        { "text",                   "prompt",                 '"', false },
};
/* clang-format on */

static size_t find_part(kvb_span key)
{
    size_t i = 0;

    while (i < part_count && !kvb_span_is(key, parts[i].name)) {
        i++;
    }
    return i;
}

static bool is_empty_value(kvb_span value)
{
    return value.len == 2 && (value.data[0] == '"' || value.data[0] == '[');
}

/* A null is a missing member.  "text" and "messages" of another type are left to the reader of the
 * query, who says what is wrong with them. */
static bool is_part_taken(const struct part *part, kvb_span value)
{
    if (part->first) {
        return value.data[0] == (uint8_t)part->first && !is_empty_value(value);
    }
    return value.data[0] != 'n';
}

kvb_status kvb_query_text_part(
    struct kvb_query_parts *found, kvb_span key, struct kvb_json_scan *scan,
    struct kvb_json_budget *budget, kvb_span *out_value)
{
    const struct kvb_json_scan before = *scan;
    struct kvb_json_budget deeper = kvb_json_depth(max_text_depth);
    struct kvb_json_budget spent = *budget;
    const size_t at = find_part(key);

    if (at == part_count) {
        return kvb_json_value(scan, budget, out_value);
    }
    kvb_status status = kvb_json_value(scan, &spent, out_value);
    const bool is_large = status == KVB_TOO_LARGE;
    if (is_large) {
        *scan = before;
        status = kvb_json_value(scan, &deeper, out_value);
    }
    if (status == KVB_OK && is_part_taken(&parts[at], *out_value)) {
        found->is_large |= is_large;
        found->is_twice |= found->values[at].data != NULL;
        found->values[at] = *out_value;
        return KVB_OK;
    }
    /* It is none, so it has no other limits than the rest of the query. */
    *budget = spent;
    return status == KVB_OK && is_large ? KVB_TOO_LARGE : status;
}

static kvb_status append_part(const struct part *part, kvb_span value, struct kvb_buf *members)
{
    KVB_TRY(
        kvb_buf_append_format(members, "%s\"%s\":", members->len > 0 ? "," : "", part->sent_as));
    return kvb_buf_append(members, value.data, value.len);
}

/* Where messages end in the members of a text. */
struct ends {
    kvb_span members;
    uint32_t *at; /* owned */
    size_t count, capacity;
};

static void drop_ends(struct ends *ends)
{
    free(ends->at);
}

static kvb_status take_end(struct kvb_json_scan *scan, void *context)
{
    struct ends *ends = context;
    struct kvb_json_budget budget = kvb_json_depth(max_text_depth);

    KVB_TRY(kvb_json_skip(scan, &budget));
    if (ends->count >= kvb_max_text_messages) {
        return KVB_OK; /* what follows has no place of its own in the chain */
    }
    KVB_TRY(kvb_array_reserve(
        &ends->at, &ends->capacity, ends->count + 1, sizeof *ends->at, kvb_max_text_messages));
    ends->at[ends->count++] = (uint32_t)(scan->at - ends->members.data);
    return KVB_OK;
}

static kvb_status read_messages(struct kvb_json_scan *scan, void *context)
{
    return kvb_json_array(scan, take_end, context);
}

static kvb_status find_ends(struct ends *ends)
{
    struct kvb_json_scan scan = kvb_json_scan_of(ends->members);
    struct kvb_json_budget budget = kvb_json_depth(max_text_depth);
    kvb_span key = { 0 };

    do {
        KVB_TRY(kvb_json_string(&scan, &key));
        KVB_TRY(kvb_json_expect(&scan, ':'));
        KVB_TRY(
            kvb_span_is(key, "messages") ? read_messages(&scan, ends)
                                         : kvb_json_skip(&scan, &budget));
    } while (kvb_json_take(&scan, ',')); /* ends: the members do */
    /* The prompt is the last member: what follows it would change the tokens. */
    KVB_TRY(kvb_json_finish(&scan));
    return kvb_span_is(key, "messages") || kvb_span_is(key, "prompt") ? KVB_OK : KVB_BAD_INPUT;
}

/* Makes a text of its members, with the prompt or the messages as the last one; takes them. */
static kvb_status take_members(struct kvb_buf *members, struct kvb_query_text *out_text)
{
    KVB_OWN(drop_ends) struct ends ends = { .members = kvb_buf_span(members) };

    KVB_TRY(find_ends(&ends));
    *out_text = (struct kvb_query_text){ .members = (char *)members->data,
                                         .bytes = members->len,
                                         .ends = ends.at,
                                         .end_count = ends.count };
    *members = (struct kvb_buf){ 0 }; /* now the text's, like the ends */
    ends.at = NULL;
    return KVB_OK;
}

kvb_status kvb_query_text_join(
    const struct kvb_query_parts *found, size_t max_bytes, struct kvb_query_text *out_text)
{
    KVB_OWN(kvb_buf_done) struct kvb_buf members = { 0 };
    /* A query with both is refused later. */
    const bool is_chat = found->values[prompt_part].data == NULL;

    if (found->is_twice || (is_chat && !found->values[messages_part].data)) {
        return KVB_NOT_FOUND;
    }
    kvb_buf_init(&members, max_bytes + 64); /* "prompt" is longer than "text" */
    for (size_t i = 0; i < part_count; i++) {
        if (found->values[i].data && (is_chat || !parts[i].is_of_chats)) {
            KVB_TRY(append_part(&parts[i], found->values[i], &members));
        }
    }
    return take_members(&members, out_text);
}

/* ---- Asking an engine ---- */

kvb_status kvb_tokenize_request_encode(const char *model, kvb_span members, struct kvb_buf *out)
{
    struct kvb_json_writer json = kvb_json_writer_of(out);

    kvb_json_write_begin(&json, '{');
    kvb_json_write_pair_text(&json, "model", model);
    KVB_TRY(json.status);
    KVB_TRY(kvb_buf_append_text(out, ","));
    KVB_TRY(kvb_buf_append(out, members.data, members.len));
    return kvb_buf_append_text(out, "}");
}

void kvb_text_tokens_write(const struct kvb_query *query, struct kvb_json_writer *json)
{
    if (!query->was_text) {
        return;
    }
    kvb_json_write_pair_u64(json, "prompt_tokens", query->count);
    kvb_json_write_pair_text(json, "tokens", kvb_text_tokens_name(query->known));
    if (query->known != KVB_TEXT_TOKENS_WHOLE) {
        kvb_json_write_pair_text(json, "tokens_reason", query->tokens_reason);
    }
}

struct answer {
    uint32_t *tokens; /* owned */
    size_t count, capacity;
    uint64_t said; /* the member `count` */
    bool has_said;
};

static void drop_answer(struct answer *answer)
{
    free(answer->tokens);
}

static kvb_status take_token(struct kvb_json_scan *scan, void *context)
{
    struct answer *answer = context;
    uint32_t token = 0;

    KVB_TRY(kvb_json_u32(scan, &token));
    KVB_TRY(kvb_array_reserve(
        &answer->tokens, &answer->capacity, answer->count + 1, sizeof *answer->tokens,
        kvb_max_query_tokens));
    answer->tokens[answer->count++] = token;
    return KVB_OK;
}

static kvb_status read_tokens(struct kvb_json_scan *scan, void *context)
{
    return kvb_json_array(scan, take_token, context);
}

static kvb_status read_count(struct kvb_json_scan *scan, void *context)
{
    struct answer *answer = context;

    answer->has_said = true;
    return kvb_json_u64(scan, &answer->said);
}

kvb_status kvb_tokenize_answer_decode(kvb_span answer, uint32_t **out_tokens, size_t *out_count)
{
    /* clang-format off */
    static const struct kvb_json_field fields[] = {
        { .name = "tokens", .is_required = true, .read = read_tokens },
        { .name = "count",                       .read = read_count },
    };
    /* clang-format on */
    KVB_OWN(drop_answer) struct answer read = { 0 };
    struct kvb_json_scan scan = kvb_json_scan_of(answer);

    KVB_TRY(kvb_json_object(&scan, fields, KVB_COUNT_OF(fields), &read));
    KVB_TRY(kvb_json_finish(&scan));
    /* A count that differs means an answer that was cut or mixed up on its way. */
    if (read.count == 0 || (read.has_said && read.said != read.count)) {
        return KVB_BAD_INPUT;
    }
    *out_tokens = read.tokens;
    *out_count = read.count;
    read.tokens = NULL; /* now the caller's */
    return KVB_OK;
}
