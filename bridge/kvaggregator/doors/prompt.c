#include "kvaggregator/doors/prompt.h"

#include "core/limits.h"
#include "core/own.h"
#include "kvaggregator/doors/exchange.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static kvb_status copy_value(
    const struct kvb_exchange *exchange, const struct kvb_body_place *place, struct kvb_buf *out)
{
    kvb_buf_init(out, place->len);
    return kvb_exchange_read(exchange, place->at, place->len, out);
}

/* A short string; "" where there is none.  KVB_BAD_INPUT: too long, or no string. */
static kvb_status
read_text(const struct kvb_exchange *exchange, enum kvb_body_key key, char *out, size_t size)
{
    const struct kvb_body_place *place = &exchange->scan.found.values[key];
    KVB_OWN(kvb_buf_done) struct kvb_buf value;

    kvb_buf_init(&value, 0);
    out[0] = '\0';
    if (place->type == KVB_BODY_IS_MISSING || place->type == KVB_BODY_IS_NULL) {
        return KVB_OK;
    }
    /* A byte has at most six in JSON, so a longer one need not be copied. */
    if (place->len > 6 * size) {
        return KVB_BAD_INPUT;
    }
    KVB_TRY(copy_value(exchange, place, &value));
    return kvb_body_text_read(kvb_buf_span(&value), out, size);
}

/* ---- Texts, as an engine is asked for their tokens ---- */

/* A text in the making. */
struct text_maker {
    const struct kvb_exchange *exchange;
    struct kvb_buf members; /* owned, like the next */
    uint32_t *ends;         /* where messages end in the members; NULL: a prompt */
    size_t end_count;
};

static void drop_maker(struct text_maker *maker)
{
    kvb_buf_done(&maker->members);
    free(maker->ends);
}

static kvb_status
append_member(struct text_maker *maker, const char *name, const struct kvb_body_place *place)
{
    if (place->type == KVB_BODY_IS_MISSING) {
        return KVB_OK;
    }
    KVB_TRY(kvb_buf_append_format(
        &maker->members, "%s\"%s\":", maker->members.len > 0 ? "," : "", name));
    return kvb_exchange_read(maker->exchange, place->at, place->len, &maker->members);
}

/* What grows from one turn to the next comes last: the messages. */
static kvb_status append_chat(struct text_maker *maker)
{
    static const enum kvb_body_key keys[] = {
        KVB_BODY_ADD_SPECIAL_TOKENS,
        KVB_BODY_ADD_GENERATION_PROMPT,
        KVB_BODY_CONTINUE_FINAL_MESSAGE,
        KVB_BODY_TOOLS,
        KVB_BODY_CHAT_TEMPLATE,
        KVB_BODY_CHAT_TEMPLATE_KWARGS,
        KVB_BODY_MESSAGES,
    };
    const struct kvb_body_found *found = &maker->exchange->scan.found;
    const struct kvb_body_place *list = &found->values[KVB_BODY_MESSAGES];

    for (size_t i = 0; i < KVB_COUNT_OF(keys); i++) {
        KVB_TRY(append_member(maker, kvb_body_key_name(keys[i]), &found->values[keys[i]]));
    }
    /* Where they end in the body was noted while it came: a long chat is not read once more. */
    const size_t before = maker->members.len - list->len;
    maker->ends = malloc((found->message_count + 1) * sizeof *maker->ends);
    if (!maker->ends) {
        return KVB_NO_MEMORY;
    }
    for (size_t i = 0; i < found->message_count; i++) {
        const struct kvb_body_message *message = &found->messages[i];
        maker->ends[i] = (uint32_t)(before + message->at + message->len - list->at);
    }
    maker->end_count = found->message_count;
    return KVB_OK;
}

static kvb_status
append_message(struct text_maker *maker, const char *role, const struct kvb_body_place *content)
{
    KVB_TRY(kvb_buf_append_format(
        &maker->members, "%s{\"role\":\"%s\",\"content\":", maker->end_count > 0 ? "," : "", role));
    KVB_TRY(kvb_exchange_read(maker->exchange, content->at, content->len, &maker->members));
    KVB_TRY(kvb_buf_append_text(&maker->members, "}"));
    maker->ends[maker->end_count++] = (uint32_t)maker->members.len;
    return KVB_OK;
}

/* vLLM makes these messages of them. */
static kvb_status append_input(struct text_maker *maker)
{
    enum { system_and_user = 2 };
    const struct kvb_body_place *values = maker->exchange->scan.found.values;

    maker->ends = calloc(system_and_user, sizeof *maker->ends);
    if (!maker->ends) {
        return KVB_NO_MEMORY;
    }
    /* The texts are copied as they stand in the body, with their quotes and escapes. */
    KVB_TRY(append_member(maker, "tools", &values[KVB_BODY_TOOLS]));
    KVB_TRY(kvb_buf_append_format(
        &maker->members, "%s\"messages\":[", maker->members.len > 0 ? "," : ""));
    if (values[KVB_BODY_INSTRUCTIONS].type == KVB_BODY_IS_STRING) {
        KVB_TRY(append_message(maker, "system", &values[KVB_BODY_INSTRUCTIONS]));
    }
    KVB_TRY(append_message(maker, "user", &values[KVB_BODY_INPUT]));
    return kvb_buf_append_text(&maker->members, "]");
}

static kvb_status append_prompt(struct text_maker *maker)
{
    const struct kvb_body_found *found = &maker->exchange->scan.found;
    const struct kvb_body_place *prompt = &found->values[KVB_BODY_PROMPT];

    KVB_TRY(
        append_member(maker, "add_special_tokens", &found->values[KVB_BODY_ADD_SPECIAL_TOKENS]));
    return append_member(
        maker, "prompt", prompt->type == KVB_BODY_IS_STRING ? prompt : &found->first_prompt);
}

/* ---- By the path ---- */

static const char *take_tokens(
    const struct kvb_exchange *exchange, const struct kvb_body_place *place,
    struct kvb_query *query)
{
    KVB_OWN(kvb_buf_done) struct kvb_buf value;

    if (copy_value(exchange, place, &value) != KVB_OK ||
        kvb_body_tokens_read(kvb_buf_span(&value), &query->tokens, &query->count) != KVB_OK) {
        return "no_prompt";
    }
    query->form = KVB_QUERY_TOKENS;
    return NULL;
}

static const char *take_text(
    const struct kvb_exchange *exchange, kvb_status (*append)(struct text_maker *maker),
    struct kvb_query *query)
{
    enum { around = 512 }; /* names of members, roles */
    KVB_OWN(drop_maker) struct text_maker maker = { .exchange = exchange };

    kvb_buf_init(&maker.members, exchange->body_bytes + around);
    const kvb_status status = append(&maker);
    if (status != KVB_OK) {
        return status == KVB_NO_MEMORY ? "busy" : "no_prompt";
    }
    query->text = (struct kvb_query_text){ .members = (char *)maker.members.data,
                                           .bytes = maker.members.len,
                                           .ends = maker.ends,
                                           .end_count = maker.end_count };
    query->form = KVB_QUERY_TEXT;
    /* Now the query's. */
    maker.members = (struct kvb_buf){ 0 };
    maker.ends = NULL;
    return NULL;
}

static const char *take_prompt(const struct kvb_exchange *exchange, struct kvb_query *query)
{
    const struct kvb_body_found *found = &exchange->scan.found;
    const struct kvb_body_place *prompt = &found->values[KVB_BODY_PROMPT];

    switch (exchange->path) {
    case KVB_PATH_CHAT:
        if (found->has_media) {
            return "media";
        }
        return found->values[KVB_BODY_MESSAGES].type == KVB_BODY_IS_LIST
                   ? take_text(exchange, append_chat, query)
                   : "no_prompt";
    case KVB_PATH_COMPLETIONS:
        if (found->values[KVB_BODY_PROMPT_EMBEDS].type > KVB_BODY_IS_NULL) {
            return "media";
        }
        /* Of several prompts the first decides: an engine computes all of them. */
        if (prompt->type == KVB_BODY_IS_STRING ||
            (prompt->type == KVB_BODY_IS_LIST && found->first_prompt.type == KVB_BODY_IS_STRING)) {
            return take_text(exchange, append_prompt, query);
        }
        if (prompt->type == KVB_BODY_IS_LIST && found->first_prompt.type == KVB_BODY_IS_NUMBER) {
            return take_tokens(exchange, prompt, query);
        }
        if (prompt->type == KVB_BODY_IS_LIST && found->first_prompt.type == KVB_BODY_IS_LIST) {
            return take_tokens(exchange, &found->first_prompt, query);
        }
        return "no_prompt";
    case KVB_PATH_RESPONSES:
        /* What came before a previous response is only at the engine. */
        return found->values[KVB_BODY_INPUT].type == KVB_BODY_IS_STRING &&
                       found->values[KVB_BODY_PREVIOUS_RESPONSE_ID].type <= KVB_BODY_IS_NULL
                   ? take_text(exchange, append_input, query)
                   : "no_prompt";
    case KVB_PATH_OTHER:
        break;
    }
    return "other_path";
}

const char *kvb_prompt_read(const struct kvb_exchange *exchange, struct kvb_query *query)
{
    if (exchange->body_bytes == 0) {
        return "no_body";
    }
    const kvb_status status = kvb_body_scan_end(&exchange->scan);
    if (status != KVB_OK) {
        return exchange->path == KVB_PATH_OTHER ? "other_path"
               : status == KVB_TOO_LARGE        ? "too_large"
                                                : "not_json";
    }
    /* The model counts for a pick by load, too. */
    query->has_model =
        read_text(exchange, KVB_BODY_MODEL, query->model, sizeof query->model) == KVB_OK &&
        query->model[0] != '\0';
    if (read_text(exchange, KVB_BODY_CACHE_SALT, query->cache_salt, sizeof query->cache_salt) !=
        KVB_OK) {
        query->cache_salt[0] = '\0';
        return "cache_salt";
    }
    return take_prompt(exchange, query);
}

/* ---- With the index ---- */

void kvb_prompt_settle(
    struct kvb_query *query, char *reason, size_t bytes, enum kvb_text_tokens *out_known)
{
    const size_t len = strcspn(query->tokens_reason, ":");

    (void)snprintf(/* the longest is "tokenize_unavailable" */
                   reason, bytes, "%.*s", (int)len, query->tokens_reason);
    *out_known = query->was_text ? query->known : KVB_TEXT_TOKENS_WHOLE;
    if (query->form == KVB_QUERY_TEXT) { /* of no model that we know */
        query->form = KVB_QUERY_TOKENS;
        query->count = 0;
        *out_known = KVB_TEXT_TOKENS_NONE;
    }
}
