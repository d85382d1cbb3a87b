#include "kvaggregator/doors/prompt.h"

#include "core/limits.h"
#include "core/own.h"
#include "kvaggregator/doors/exchange.h"
#include "wire/query/text.h"

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

static kvb_status append_member(
    const struct kvb_exchange *exchange, const char *name, const struct kvb_body_place *place,
    struct kvb_buf *out)
{
    if (place->type == KVB_BODY_IS_MISSING) {
        return KVB_OK;
    }
    KVB_TRY(kvb_buf_append_format(out, "%s\"%s\":", out->len > 0 ? "," : "", name));
    return kvb_exchange_read(exchange, place->at, place->len, out);
}

/* What grows from one turn to the next comes last: the messages. */
static kvb_status append_chat(const struct kvb_exchange *exchange, struct kvb_buf *out)
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

    for (size_t i = 0; i < KVB_COUNT_OF(keys); i++) {
        KVB_TRY(append_member(
            exchange, kvb_body_key_name(keys[i]), &exchange->scan.found.values[keys[i]], out));
    }
    return KVB_OK;
}

/* vLLM makes these messages of them. */
static kvb_status append_input(const struct kvb_exchange *exchange, struct kvb_buf *out)
{
    const struct kvb_body_place *values = exchange->scan.found.values;
    const struct kvb_body_place *instructions = &values[KVB_BODY_INSTRUCTIONS];
    const struct kvb_body_place *input = &values[KVB_BODY_INPUT];

    /* The texts are copied as they stand in the body, with their quotes and escapes. */
    KVB_TRY(append_member(exchange, "tools", &values[KVB_BODY_TOOLS], out));
    KVB_TRY(kvb_buf_append_format(out, "%s\"messages\":[", out->len > 0 ? "," : ""));
    if (instructions->type == KVB_BODY_IS_STRING) {
        KVB_TRY(kvb_buf_append_text(out, "{\"role\":\"system\",\"content\":"));
        KVB_TRY(kvb_exchange_read(exchange, instructions->at, instructions->len, out));
        KVB_TRY(kvb_buf_append_text(out, "},"));
    }
    KVB_TRY(kvb_buf_append_text(out, "{\"role\":\"user\",\"content\":"));
    KVB_TRY(kvb_exchange_read(exchange, input->at, input->len, out));
    return kvb_buf_append_text(out, "}]");
}

static kvb_status append_prompt(const struct kvb_exchange *exchange, struct kvb_buf *out)
{
    const struct kvb_body_found *found = &exchange->scan.found;
    const struct kvb_body_place *prompt = &found->values[KVB_BODY_PROMPT];

    KVB_TRY(append_member(
        exchange, "add_special_tokens", &found->values[KVB_BODY_ADD_SPECIAL_TOKENS], out));
    return append_member(
        exchange, "prompt", prompt->type == KVB_BODY_IS_STRING ? prompt : &found->first_prompt,
        out);
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
    const struct kvb_exchange *exchange,
    kvb_status (*append)(const struct kvb_exchange *exchange, struct kvb_buf *out),
    struct kvb_query *query)
{
    enum { around = 512 }; /* names of members, roles */
    struct kvb_buf members;

    kvb_buf_init(&members, exchange->body_bytes + around);
    kvb_status status = append(exchange, &members);
    /* From here on the query owns the members. */
    if (status == KVB_OK) {
        status = kvb_query_text_take(&members, &query->text);
    }
    if (status != KVB_OK) {
        kvb_buf_done(&members);
        return status == KVB_NO_MEMORY ? "busy" : "no_prompt";
    }
    query->form = KVB_QUERY_TEXT;
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
