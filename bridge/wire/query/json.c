#include "wire/query/json.h"

#include "core/array.h"
#include "core/limits.h"
#include "core/own.h"
#include "core/utf8.h"
#include "wire/json/value.h"
#include "wire/query/selection.h"
#include "wire/query/text.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A body is scanned once.  Its list is read on the way, the other members are noted where they
 * stand, and read when it is known that all of it is JSON:
 *
 *     {"model":"m","token_ids":[1,2,3, ... ],"cache_salt":"s"}
 *              ---             ^ read ^                   ---       noted
 *
 * Of a member that is there twice the last one counts. */

enum {
    max_depth = 16,
    max_containers = 1024,
    max_other_values = 1024, /* in addition to the tokens or hashes */
    max_hash_digits = 63,    /* of a text; zeros may come first */
    described_bytes = 64
};

struct list;

/* Reads one item of a list, or several. */
typedef kvb_status
take_item(struct kvb_json_scan *scan, struct kvb_json_budget *budget, struct list *list);
static take_item take_token, take_hash;

/* clang-format off */
enum { list_count = 3, form_count = 5 };
static const struct form {
    const char *name;
    enum kvb_query_form form;
    take_item *take;
    const char *expected; /* of an item; of a text, of itself */
} forms[form_count] = { /* the lists first */
    { "token_ids",    KVB_QUERY_TOKENS,        take_token, "an integer from 0 to 4294967295" },
    { "block_hashes", KVB_QUERY_TOKENS_HASHES, take_hash,
      "an integer of 64 bits or a string of its digits" },
    { "seq_hashes",   KVB_QUERY_BLOCK_HASHES,  take_hash,
      "an integer of 64 bits or a string of its digits" },
    { "text",         KVB_QUERY_TEXT,          NULL,       "a string that is not empty" },
    { "messages",     KVB_QUERY_TEXT,          NULL,       "an array that is not empty" },
};
/* clang-format on */

/* The items of a list, as they are read. */
struct list {
    uint32_t *tokens; /* owned, like the next; the one that its form has */
    uint64_t *hashes;
    size_t capacity;
    size_t count; /* from the first that is wrong, and from the ceiling on, they are only counted */
    kvb_span wrong; /* the first that is no such item; {0}: none */
    size_t wrong_at;
};

/* The members that a body may have, as their values stand in it; {0}: missing, or null. */
struct members {
    kvb_span model_name, model, lora_name, cache_salt, instance_id, dp_rank, request_id, ttl_ms;
    kvb_span cached_tokens;
    kvb_span forms[form_count];
    struct kvb_selection_members selection;
};

/* clang-format off */
#define MEMBER(name, field) { name, sizeof(name) - 1, offsetof(struct members, field) }
static const struct {
    const char *name;
    size_t len;
    size_t at; /* in struct members */
} known[] = { /* the forms first, in their order */
    MEMBER("token_ids", forms[0]),
    MEMBER("block_hashes", forms[1]),
    MEMBER("seq_hashes", forms[2]),
    MEMBER("text", forms[3]),
    MEMBER("messages", forms[4]),
    MEMBER("model_name", model_name),
    MEMBER("model", model),
    MEMBER("lora_name", lora_name),
    MEMBER("cache_salt", cache_salt),
    MEMBER("instance_id", instance_id),
    MEMBER("data_parallel_rank", dp_rank),
    MEMBER("request_id", request_id),
    MEMBER("ttl_ms", ttl_ms),
    MEMBER("cached_tokens", cached_tokens),
    MEMBER("policy", selection.policy),
    MEMBER("labels", selection.labels),
    MEMBER("role", selection.role),
    MEMBER("candidates", selection.candidates),
    MEMBER("dry_run", selection.dry_run),
};
#undef MEMBER
/* clang-format on */

struct body {
    kvb_span other; /* what it is instead of an object */
    struct members members;
    struct list lists[list_count];
    struct kvb_query_parts parts;
    kvb_span numbers;          /* the text of a list, if it has nothing but numbers */
    struct kvb_detail *detail; /* borrowed; may be NULL */
};

static void drop_body(struct body *body)
{
    for (size_t i = 0; i < list_count; i++) {
        free(body->lists[i].tokens);
        free(body->lists[i].hashes);
    }
}

/* ---- What is refused ---- */

static const char *describe(kvb_span value, char text[described_bytes])
{
    static const char *const names[] = {
        [KVB_JSON_NULL] = "null",      [KVB_JSON_BOOL] = "true or false",
        [KVB_JSON_TEXT] = "a string",  [KVB_JSON_OBJECT] = "an object",
        [KVB_JSON_ARRAY] = "an array", [KVB_JSON_NUMBER] = "a number beyond 64 bits",
    };
    const enum kvb_json_kind kind = kvb_json_kind_of(value);
    struct kvb_json_integer integer = { 0 };

    if (kvb_json_integer_of(value, &integer)) {
        (void)snprintf(
            text, described_bytes, integer.is_negative ? "%" PRId64 : "%" PRIu64, integer.bits);
        return text;
    }
    for (size_t i = 0; kind == KVB_JSON_NUMBER && i < value.len; i++) {
        if (strchr(".eE", value.data[i])) {
            return "a number with a fraction or an exponent";
        }
    }
    return names[kind];
}

/* Returns KVB_NOT_FOUND with "what: expected ..., got ...". */
static kvb_status
refuse_query(const struct body *body, const char *what, const char *expected, kvb_span value)
{
    char text[described_bytes];

    kvb_detail_set(body->detail, "%s: expected %s, got %s", what, expected, describe(value, text));
    return KVB_NOT_FOUND;
}

/* ---- Scanning: the list ---- */

/* For how many tokens there is room at first: most texts have 4 to 8 bytes for each. */
static size_t first_tokens(const struct kvb_json_scan *scan)
{
    const size_t tokens = (size_t)(scan->end - scan->at) / 8 + 1;

    return tokens < kvb_max_query_tokens ? tokens : kvb_max_query_tokens;
}

/* As most numbers are.  False: nothing was read. */
static bool take_plain_number(struct kvb_json_scan *scan, uint64_t max, uint64_t *out)
{
    const struct kvb_json_scan before = *scan;

    if (kvb_json_u64(scan, out) != KVB_OK || *out > max) {
        *scan = before;
        return false;
    }
    return true;
}

/* Reads one token, and those of a run before it. */
static kvb_status
take_token(struct kvb_json_scan *scan, struct kvb_json_budget *budget, struct list *list)
{
    /* The first reservation is a guess by the length of the text; it seldom grows. */
    const size_t need = list->count > 0 ? list->count + 1 : first_tokens(scan);
    struct kvb_json_integer token = { 0 };
    kvb_span value = { 0 };

    KVB_TRY(kvb_array_reserve(
        &list->tokens, &list->capacity, need, sizeof *list->tokens, kvb_max_query_tokens));
    /* The run leaves room for one more. */
    list->count +=
        kvb_json_u32_run(scan, list->tokens + list->count, list->capacity - list->count - 1);
    if (!take_plain_number(scan, UINT32_MAX, &token.bits)) {
        KVB_TRY(kvb_json_value(scan, budget, &value));
        /* It may be -0. */
        if (!kvb_json_integer_of(value, &token) || token.is_negative || token.bits > UINT32_MAX) {
            list->wrong = value;
            return KVB_OK;
        }
    }
    list->tokens[list->count++] = (uint32_t)token.bits;
    return KVB_OK;
}

/* Parses a text "[-]digits" of 64 bits, without white space. */
static bool parse_decimal(const char *text, uint64_t *out)
{
    const bool is_negative = text[0] == '-';
    const char first = text[is_negative];
    char *end = NULL;

    /* strtoull() would accept blanks and a second sign. */
    if (first < '0' || first > '9') {
        return false;
    }
    errno = 0;
    *out = is_negative ? (uint64_t)strtoll(text, &end, 10) : strtoull(text, &end, 10);
    return errno == 0 && *end == '\0';
}

/* KVB_BAD_INPUT: neither an integer nor a text of one. */
static kvb_status read_hash(kvb_span value, uint64_t *out)
{
    char text[1 + max_hash_digits + 1];
    struct kvb_json_integer hash = { 0 };
    size_t len = 0;

    if (kvb_json_integer_of(value, &hash)) {
        *out = hash.bits;
        return KVB_OK;
    }
    KVB_TRY(kvb_json_text_of(value, text, sizeof text, &len));
    return parse_decimal(text, out) ? KVB_OK : KVB_BAD_INPUT;
}

static kvb_status
take_hash(struct kvb_json_scan *scan, struct kvb_json_budget *budget, struct list *list)
{
    kvb_span value = { 0 };
    uint64_t hash = 0;

    if (!take_plain_number(scan, UINT64_MAX, &hash)) {
        KVB_TRY(kvb_json_value(scan, budget, &value));
        const kvb_status status = read_hash(value, &hash);
        if (status != KVB_OK) {
            list->wrong = value;
            return status == KVB_NO_MEMORY ? status : KVB_OK;
        }
    }
    KVB_TRY(kvb_array_reserve(
        &list->hashes, &list->capacity, list->count + 1, sizeof *list->hashes,
        kvb_max_query_tokens));
    list->hashes[list->count++] = hash;
    return KVB_OK;
}

/* Behind the bracket.  From the first wrong item, and from the ceiling on, they are only counted:
 * what is wrong is said when all of the body is known to be JSON. */
static kvb_status read_items(
    struct kvb_json_scan *scan, struct kvb_json_budget *budget, const struct form *form,
    struct list *list)
{
    if (kvb_json_take(scan, ']')) {
        return KVB_OK;
    }
    do {
        if (list->wrong.data || list->count >= kvb_max_query_tokens) {
            KVB_TRY(kvb_json_skip(scan, budget));
            list->count++;
        } else {
            KVB_TRY(form->take(scan, budget, list));
            list->wrong_at = list->count;
            list->count += list->wrong.data != NULL;
        }
    } while (kvb_json_take(scan, ','));
    return kvb_json_expect(scan, ']');
}

static kvb_status
read_list(struct kvb_json_scan *scan, struct kvb_json_budget *budget, size_t at, struct body *body)
{
    struct list *list = &body->lists[at];
    const uint8_t *first = scan->at - 1;

    list->count = 0; /* of one before it, which does not count */
    list->wrong = (kvb_span){ 0 };
    /* A level, as for any other array. */
    budget->depth--;
    KVB_TRY(read_items(scan, budget, &forms[at], list));
    budget->depth++;
    body->members.forms[at] = (kvb_span){ first, (size_t)(scan->at - first) };
    /* Behind the ceiling, too, there may be anything. */
    if (list->tokens && !list->wrong.data && list->count <= kvb_max_query_tokens) {
        body->numbers = body->members.forms[at];
    }
    return KVB_OK;
}

/* ---- Scanning: the body ---- */

static kvb_status find_known(kvb_span key, size_t *out_at)
{
    char name[described_bytes];
    const kvb_span quoted = { key.data - 1, key.len + 2 };
    size_t at = 0;

    /* With escapes it may be any of them. */
    if (memchr(key.data, '\\', key.len)) {
        const kvb_status status = kvb_json_text_of(quoted, name, sizeof name, &key.len);
        KVB_TRY(status == KVB_NO_MEMORY ? status : KVB_OK);
        key.data = (const uint8_t *)name; /* one that is cut is longer than any that is known */
    }
    while (at < KVB_COUNT_OF(known) &&
           (known[at].len != key.len || memcmp(known[at].name, key.data, key.len) != 0)) {
        at++;
    }
    *out_at = at;
    return KVB_OK;
}

static kvb_status
read_member(struct kvb_json_scan *scan, struct kvb_json_budget *budget, struct body *body)
{
    kvb_span key = { 0 };
    kvb_span value = { 0 };
    size_t at = 0;

    KVB_TRY(kvb_json_string(scan, &key));
    KVB_TRY(kvb_json_expect(scan, ':'));
    KVB_TRY(find_known(key, &at));
    if (at < list_count && kvb_json_take(scan, '[')) {
        return read_list(scan, budget, at, body);
    }
    KVB_TRY(kvb_query_text_part(&body->parts, key, scan, budget, &value));
    if (at < KVB_COUNT_OF(known)) {
        const bool is_there = kvb_json_kind_of(value) != KVB_JSON_NULL;
        kvb_span *place = (kvb_span *)(void *)((char *)&body->members + known[at].at);
        *place = is_there ? value : (kvb_span){ 0 };
    }
    return KVB_OK;
}

/* Strings are the only place of bytes that are no ASCII. */
static bool is_whole_utf8(kvb_span json, kvb_span numbers)
{
    const uint8_t *end = json.data + json.len;
    const uint8_t *until = numbers.data ? numbers.data : end;
    const uint8_t *from = until + numbers.len;

    return kvb_utf8_is_whole((kvb_span){ json.data, (size_t)(until - json.data) }) &&
           kvb_utf8_is_whole((kvb_span){ from, (size_t)(end - from) });
}

static kvb_status scan_members(struct kvb_json_scan *scan, size_t max_values, struct body *body)
{
    /* The object itself is a level and a container. */
    struct kvb_json_budget budget = { .depth = max_depth - 1,
                                      .containers = max_containers - 1,
                                      .values = max_values };

    if (kvb_json_take(scan, '}')) {
        return KVB_OK;
    }
    do {
        KVB_TRY(read_member(scan, &budget, body));
    } while (kvb_json_take(scan, ','));
    return kvb_json_expect(scan, '}');
}

/* Fills *body, which the caller drops, with what stands in the JSON.  Errors as of the decoders. */
static kvb_status scan_body(kvb_span json, size_t max_values, struct body *body)
{
    struct kvb_json_budget budget = { .depth = max_depth,
                                      .containers = max_containers,
                                      .values = max_values };
    struct kvb_json_scan scan = kvb_json_scan_of(json);

    KVB_TRY(
        kvb_json_take(&scan, '{') ? scan_members(&scan, max_values, body)
                                  : kvb_json_value(&scan, &budget, &body->other));
    KVB_TRY(kvb_json_finish(&scan));
    return is_whole_utf8(json, body->numbers) ? KVB_OK : KVB_BAD_INPUT;
}

/* ---- Reading the members ---- */

/* out is unchanged when the field is missing or null. */
static kvb_status
read_name(const struct body *body, const char *name, kvb_span value, char out[kvb_model_bytes + 1])
{
    size_t len = 0;

    if (!value.data) {
        return KVB_OK;
    }
    if (kvb_json_kind_of(value) != KVB_JSON_TEXT) {
        return refuse_query(body, name, "a string", value);
    }
    const kvb_status status = kvb_json_text_of(value, out, kvb_model_bytes + 1, &len);
    if (status == KVB_BAD_INPUT) {
        kvb_detail_set(
            body->detail, "%s: expected at most %d bytes and no NUL, got %zu bytes", name,
            kvb_model_bytes, len);
        return KVB_NOT_FOUND;
    }
    return status;
}

static kvb_status read_model(const struct body *body, struct kvb_query *query)
{
    const struct members *members = &body->members;
    char alias[kvb_model_bytes + 1] = "";

    query->has_model = members->model_name.data || members->model.data;
    KVB_TRY(read_name(body, "model_name", members->model_name, alias));
    memcpy(query->model, alias, sizeof alias);
    KVB_TRY(read_name(body, "model", members->model, query->model));
    /* Both names are fine if they say the same. */
    if (members->model_name.data && strcmp(alias, query->model) != 0) {
        kvb_detail_set(body->detail, "model: differs from model_name; give one of them");
        return KVB_NOT_FOUND;
    }
    return KVB_OK;
}

static const struct number_field {
    const char *name;
    uint64_t min, max;
    const char *expected;
} instance_field = { "instance_id", 0, UINT64_MAX, "an integer from 0 to 2^64-1" },
  dp_rank_field = { "data_parallel_rank", 0, UINT32_MAX, "an integer from 0 to 4294967295" },
  ttl_field = { "ttl_ms", 1, kvb_max_request_ttl_ms, "an integer from 1 to 3600000" },
  cached_field = { "cached_tokens", 0, kvb_max_query_tokens,
                   "the number of tokens of the prompt that the engine took from its cache" };

/* out is unchanged when the field is missing or null. */
static kvb_status read_number(
    const struct body *body, const struct number_field *field, kvb_span value, uint64_t *out)
{
    struct kvb_json_integer number = { 0 };

    if (!value.data) {
        return KVB_OK;
    }
    if (!kvb_json_integer_of(value, &number) || number.is_negative || number.bits < field->min ||
        number.bits > field->max) {
        return refuse_query(body, field->name, field->expected, value);
    }
    *out = number.bits;
    return KVB_OK;
}

static kvb_status read_request_id(const struct body *body, struct kvb_query *query)
{
    const kvb_span value = body->members.request_id;
    size_t len = 0;

    if (!value.data) {
        return KVB_OK;
    }
    if (kvb_json_kind_of(value) != KVB_JSON_TEXT) {
        return refuse_query(body, "request_id", "a string", value);
    }
    const kvb_status status =
        kvb_json_text_of(value, query->request_id, sizeof query->request_id, &len);
    if (status == KVB_BAD_INPUT ||
        (status == KVB_OK && !kvb_request_id_is_valid(query->request_id))) {
        kvb_detail_set(
            body->detail, "request_id: expected 1 to %d bytes without control characters",
            kvb_request_id_bytes);
        return KVB_NOT_FOUND;
    }
    return status;
}

/* Finds the form of the body's list; there must be exactly one. */
static kvb_status find_form(const struct body *body, size_t *out_at)
{
    size_t found = form_count;

    for (size_t i = 0; i < form_count; i++) {
        if (!body->members.forms[i].data) {
            continue;
        }
        if (found < form_count) {
            kvb_detail_set(
                body->detail,
                "%s: only one of token_ids, block_hashes, seq_hashes, text and messages, not %s "
                "too",
                forms[i].name, forms[found].name);
            return KVB_NOT_FOUND;
        }
        found = i;
    }
    if (found == form_count) {
        kvb_detail_set(
            body->detail,
            "token_ids: missing, and so are block_hashes, seq_hashes, text and messages");
        return KVB_NOT_FOUND;
    }
    *out_at = found;
    return KVB_OK;
}

/* A text that could not be copied out of the body. */
static kvb_status refuse_text(const struct body *body, const struct form *form, kvb_span value)
{
    const enum kvb_json_kind kind = kvb_json_kind_of(value);
    const bool is_of_type =
        kind == (strcmp(form->name, "text") == 0 ? KVB_JSON_TEXT : KVB_JSON_ARRAY);

    if (is_of_type && value.len > 2) {
        kvb_detail_set(
            body->detail,
            "%s: it, or what belongs to it, is given twice or has escapes in its "
            "name",
            form->name);
        return KVB_NOT_FOUND;
    }
    return refuse_query(body, form->name, form->expected, value);
}

static kvb_status take_list(struct body *body, const struct form *form, struct kvb_query *query)
{
    struct list *list = &body->lists[form - forms];
    char what[described_bytes];

    if (list->count > kvb_max_query_tokens) {
        kvb_detail_set(
            body->detail, "%s: at most %d, got %zu", form->name, kvb_max_query_tokens, list->count);
        return KVB_TOO_LARGE;
    }
    if (list->wrong.data) {
        (void)snprintf(what, sizeof what, "%s[%zu]", form->name, list->wrong_at);
        return refuse_query(body, what, form->expected, list->wrong);
    }
    /* At least one, so that an empty list is not NULL. */
    if (form->form == KVB_QUERY_TOKENS) {
        KVB_TRY(kvb_array_reserve(
            &list->tokens, &list->capacity, 1, sizeof *list->tokens, kvb_max_query_tokens));
    } else {
        KVB_TRY(kvb_array_reserve(
            &list->hashes, &list->capacity, 1, sizeof *list->hashes, kvb_max_query_tokens));
    }
    query->tokens = list->tokens;
    query->hashes = list->hashes;
    query->count = list->count;
    *list = (struct list){ 0 }; /* now the query's */
    return KVB_OK;
}

static kvb_status read_form(struct body *body, struct kvb_query *query)
{
    size_t at = 0;

    KVB_TRY(find_form(body, &at));
    const kvb_span value = body->members.forms[at];
    query->form = forms[at].form;
    if (query->form == KVB_QUERY_TEXT) {
        return query->text.members ? KVB_OK : refuse_text(body, &forms[at], value);
    }
    /* Its text, if it has one, was followed by a null, which counts. */
    kvb_query_text_done(&query->text);
    if (kvb_json_kind_of(value) != KVB_JSON_ARRAY) {
        return refuse_query(body, forms[at].name, "an array", value);
    }
    return take_list(body, &forms[at], query);
}

static kvb_status read_query(struct body *body, struct kvb_query *query)
{
    const struct members *members = &body->members;

    KVB_TRY(read_model(body, query));
    KVB_TRY(read_name(body, "lora_name", members->lora_name, query->lora_name));
    KVB_TRY(read_name(body, "cache_salt", members->cache_salt, query->cache_salt));
    query->has_instance_id = members->instance_id.data != NULL;
    KVB_TRY(read_number(body, &instance_field, members->instance_id, &query->instance_id));
    query->has_dp_rank = members->dp_rank.data != NULL;
    KVB_TRY(read_number(body, &dp_rank_field, members->dp_rank, &query->dp_rank));
    KVB_TRY(read_request_id(body, query));
    KVB_TRY(read_number(body, &ttl_field, members->ttl_ms, &query->ttl_ms));
    KVB_TRY(kvb_selection_json_read(&members->selection, &query->selection, body->detail));
    return read_form(body, query);
}

/* ---- The two bodies ---- */

static kvb_status scan_query(kvb_span json, struct body *body, struct kvb_query_text *text)
{
    if (json.len > kvb_max_query_body_bytes) {
        return KVB_TOO_LARGE;
    }
    KVB_TRY(scan_body(json, kvb_max_query_tokens + max_other_values, body));
    const kvb_status status = kvb_query_text_join(&body->parts, json.len, text);
    if (status != KVB_NOT_FOUND) {
        return status;
    }
    /* Of no text, so its members are not any engine's. */
    return body->parts.is_large ? KVB_TOO_LARGE : KVB_OK;
}

/* Says why the scan has failed, and refuses what is no object. */
static kvb_status check_scan(const struct body *body, kvb_status status)
{
    if (status == KVB_BAD_INPUT) {
        kvb_detail_set(body->detail, "body: no JSON");
    }
    KVB_TRY(status);
    return body->other.data ? refuse_query(body, "body", "an object", body->other) : KVB_OK;
}

kvb_status
kvb_query_json_decode(kvb_span json, struct kvb_query *out_query, struct kvb_detail *detail)
{
    KVB_OWN(drop_body) struct body body = { .detail = detail };
    KVB_OWN(kvb_query_done) struct kvb_query query = { 0 };
    const kvb_status status = scan_query(json, &body, &query.text);

    if (status == KVB_TOO_LARGE) {
        kvb_detail_set(
            detail, "body: at most %d bytes, %d tokens or hashes, %d levels",
            kvb_max_query_body_bytes, kvb_max_query_tokens, max_depth);
    }
    KVB_TRY(check_scan(&body, status));
    KVB_TRY(read_query(&body, &query));
    *out_query = query;
    query = (struct kvb_query){ 0 }; /* now the caller's */
    return KVB_OK;
}

kvb_status
kvb_request_json_decode(kvb_span json, struct kvb_query *out_query, struct kvb_detail *detail)
{
    KVB_OWN(drop_body) struct body body = { .detail = detail };
    struct kvb_query query = { 0 };
    kvb_status status = json.len > kvb_max_request_report_bytes
                            ? KVB_TOO_LARGE
                            : scan_body(json, max_other_values, &body);

    if (status == KVB_TOO_LARGE || (status == KVB_OK && body.parts.is_large)) {
        status = KVB_TOO_LARGE;
        kvb_detail_set(
            detail, "body: at most %d bytes, %d levels", kvb_max_request_report_bytes, max_depth);
    }
    KVB_TRY(check_scan(&body, status));
    KVB_TRY(read_request_id(&body, &query));
    /* A report without an id is about no request. */
    if (!query.request_id[0]) {
        kvb_detail_set(detail, "missing field `request_id`");
        return KVB_NOT_FOUND;
    }
    query.has_cached_tokens = body.members.cached_tokens.data != NULL;
    KVB_TRY(read_number(&body, &cached_field, body.members.cached_tokens, &query.cached_tokens));
    *out_query = query;
    return KVB_OK;
}
