#include "wire/query/json.h"

#include "core/array.h"
#include "core/buf.h"
#include "core/limits.h"
#include "core/own.h"
#include "wire/json/scan.h"
#include "wire/json/tree.h"
#include "wire/query/selection.h"
#include "wire/query/text.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    max_depth = 16,
    max_containers = 1024,
    max_other_values = 1024, /* in addition to the tokens or hashes */
    max_replaced_bytes = 64, /* by which `true` may be longer than the values that it replaces */
    described_bytes = 64
};

/* The state while a body is read. */
struct reading {
    struct json_object *root;  /* borrowed */
    bool has_wide_integer;     /* json-c has replaced a wider number by the nearest 64-bit one */
    struct kvb_detail *detail; /* borrowed; may be NULL */
};

/* ---- one number -------------------------------------------------------------- */

/* An integer of the text, before its range is checked. */
struct integer {
    bool is_negative;
    uint64_t bits; /* two's complement when negative */
};

static bool
read_json_integer(const struct reading *reading, struct json_object *value, struct integer *out)
{
    if (!json_object_is_type(value, json_type_int)) {
        return false;
    }
    /* get_int64 of a u64 above INT64_MAX returns INT64_MAX, not a negative number */
    const int64_t as_signed = json_object_get_int64(value);
    *out = (struct integer){
        .is_negative = as_signed < 0,
        .bits = as_signed < 0 ? (uint64_t)as_signed : json_object_get_uint64(value),
    };
    /* These are the two values that json-c substitutes for wider ones.  If the text has a wider
     * number anywhere, a genuine value of these two is refused as well. */
    return !(reading->has_wide_integer && (out->bits == UINT64_MAX || as_signed == INT64_MIN));
}

/* Parses a text "[-]digits" of 64 bits, without white space. */
static bool parse_decimal(struct json_object *value, struct integer *out)
{
    const char *text = json_object_get_string(value);
    const char *past = text + json_object_get_string_len(value);
    const bool is_negative = text[0] == '-';
    const char first = text[is_negative];
    char *end = NULL;

    /* strtoull() would accept blanks and a second sign. */
    if (first < '0' || first > '9') {
        return false;
    }
    errno = 0;
    *out = (struct integer){
        .is_negative = is_negative,
        .bits = is_negative ? (uint64_t)strtoll(text, &end, 10) : strtoull(text, &end, 10),
    };
    return errno == 0 && end == past; /* also false for a NUL inside */
}

static const char *describe(const struct reading *reading, struct json_object *value, char *text)
{
    static const char *const names[] = {
        [json_type_null] = "null",
        [json_type_boolean] = "true or false",
        [json_type_double] = "a number with a fraction or an exponent",
        [json_type_int] = "a number beyond 64 bits",
        [json_type_object] = "an object",
        [json_type_array] = "an array",
        [json_type_string] = "a string",
    };
    struct integer integer = { 0 };

    if (!read_json_integer(reading, value, &integer)) {
        return names[json_object_get_type(value)];
    }
    if (integer.is_negative) {
        (void)snprintf(text, described_bytes, "%" PRId64, (int64_t)integer.bits);
    } else {
        (void)snprintf(text, described_bytes, "%" PRIu64, integer.bits);
    }
    return text;
}

/* Returns KVB_NOT_FOUND with "what: expected ..., got ...". */
static kvb_status refuse_query(
    const struct reading *reading, const char *what, const char *expected,
    struct json_object *value)
{
    char text[described_bytes];

    kvb_detail_set(
        reading->detail, "%s: expected %s, got %s", what, expected, describe(reading, value, text));
    return KVB_NOT_FOUND;
}

static kvb_status refuse_item(
    const struct reading *reading, const char *name, size_t at, const char *expected,
    struct json_object *value)
{
    char what[described_bytes];

    (void)snprintf(what, sizeof what, "%s[%zu]", name, at);
    return refuse_query(reading, what, expected, value);
}

/* ---- the list without json-c ------------------------------------------------- */

/* json-c would allocate an object for each number, so a list in its usual form is read first:
 *
 *     {"model":"m","token_ids":[1,2,3, ... ],"cache_salt":"s"}
 *                              ^ numbers ^
 *     {"model":"m","token_ids":[],"cache_salt":"s"}              what is left for json-c */

struct listing {
    bool is_found;
    struct kvb_query query; /* owned until it is handed to the caller */
    size_t capacity;
    const uint8_t *begin; /* the list's text, from bracket to bracket */
    const uint8_t *end;
};

static void drop_listing(struct listing *listing)
{
    kvb_query_done(&listing->query);
}

/* For how many tokens there is room at first: most texts have 4 to 8 bytes for each. */
static size_t first_tokens(const struct kvb_json_scan *scan)
{
    const size_t tokens = (size_t)(scan->end - scan->at) / 8 + 1;

    return tokens < kvb_max_query_tokens ? tokens : kvb_max_query_tokens;
}

/* Reads one token, and those of a run before it. */
static kvb_status take_listed_token(struct kvb_json_scan *scan, void *context)
{
    struct listing *listing = context;
    struct kvb_query *query = &listing->query;
    /* The first reservation is a guess by the length of the text; it seldom grows. */
    const size_t need = query->count > 0 ? query->count + 1 : first_tokens(scan);

    KVB_TRY(kvb_array_reserve(
        &query->tokens, &listing->capacity, need, sizeof *query->tokens, kvb_max_query_tokens));
    /* The run leaves room for one more. */
    query->count +=
        kvb_json_u32_run(scan, query->tokens + query->count, listing->capacity - query->count - 1);
    KVB_TRY(kvb_json_u32(scan, &query->tokens[query->count]));
    query->count++;
    return KVB_OK;
}

static kvb_status take_listed_hash(struct kvb_json_scan *scan, void *context)
{
    struct listing *listing = context;
    struct kvb_query *query = &listing->query;
    uint64_t hash = 0;

    KVB_TRY(kvb_json_u64(scan, &hash));
    KVB_TRY(kvb_array_reserve(
        &query->hashes, &listing->capacity, query->count + 1, sizeof *query->hashes,
        kvb_max_query_tokens));
    query->hashes[query->count++] = hash;
    return KVB_OK;
}

/* ---- the list ---------------------------------------------------------------- */

/* Allocates at least one item, so that an empty list is not NULL.  Fails: KVB_NO_MEMORY only. */
static kvb_status take_query_list(size_t count, size_t item_bytes, void **out_list)
{
    *out_list = calloc(count > 0 ? count : 1, item_bytes);
    return *out_list ? KVB_OK : KVB_NO_MEMORY;
}

static kvb_status read_query_tokens(
    const struct reading *reading, const char *name, struct json_object *list,
    struct kvb_query *query)
{
    void *tokens = NULL;

    KVB_TRY(take_query_list(query->count, sizeof *query->tokens, &tokens));
    query->tokens = tokens;
    for (size_t i = 0; i < query->count; i++) {
        struct json_object *value = json_object_array_get_idx(list, i);
        struct integer token = { 0 };
        if (!read_json_integer(reading, value, &token) || token.is_negative ||
            token.bits > UINT32_MAX) {
            return refuse_item(reading, name, i, "an integer from 0 to 4294967295", value);
        }
        query->tokens[i] = (uint32_t)token.bits;
    }
    return KVB_OK;
}

static bool
read_query_hash(const struct reading *reading, struct json_object *value, struct integer *out)
{
    if (json_object_is_type(value, json_type_string)) {
        return parse_decimal(value, out);
    }
    return read_json_integer(reading, value, out);
}

static kvb_status read_hashes(
    const struct reading *reading, const char *name, struct json_object *list,
    struct kvb_query *query)
{
    void *hashes = NULL;

    KVB_TRY(take_query_list(query->count, sizeof *query->hashes, &hashes));
    query->hashes = hashes;
    for (size_t i = 0; i < query->count; i++) {
        struct json_object *value = json_object_array_get_idx(list, i);
        struct integer hash = { 0 };
        if (!read_query_hash(reading, value, &hash)) {
            return refuse_item(
                reading, name, i, "an integer of 64 bits or a string of its digits", value);
        }
        query->hashes[i] = hash.bits;
    }
    return KVB_OK;
}

/* The text was cut out of the body before json-c has read it. */
static kvb_status read_query_text(
    const struct reading *reading, const char *name, struct json_object *value,
    struct kvb_query *query)
{
    const bool is_text = strcmp(name, "text") == 0;
    const enum json_type type = is_text ? json_type_string : json_type_array;

    if (query->text.members) {
        return KVB_OK;
    }
    if (json_object_is_type(value, type) &&
        (is_text ? json_object_get_string_len(value) > 0 : json_object_array_length(value) > 0)) {
        kvb_detail_set(
            reading->detail,
            "%s: it, or what belongs to it, is given twice or has escapes in its "
            "name",
            name);
        return KVB_NOT_FOUND;
    }
    return refuse_query(
        reading, name, is_text ? "a string that is not empty" : "an array that is not empty",
        value);
}

/* clang-format off */
static const struct form {
    const char *name;
    enum kvb_query_form form;
    /* `read` reads a whole array of json-c; `take` reads one number of a simple list; NULL: no
     * list */
    kvb_status (*read)(
        const struct reading *, const char *, struct json_object *, struct kvb_query *);
    kvb_status (*take)(struct kvb_json_scan *scan, void *listing);
} forms[] = {
    { "token_ids",    KVB_QUERY_TOKENS,        read_query_tokens, take_listed_token },
    { "block_hashes", KVB_QUERY_TOKENS_HASHES, read_hashes,       take_listed_hash },
    { "seq_hashes",   KVB_QUERY_BLOCK_HASHES,  read_hashes,       take_listed_hash },
    { "text",         KVB_QUERY_TEXT,          read_query_text,         NULL },
    { "messages",     KVB_QUERY_TEXT,          read_query_text,         NULL },
};
/* clang-format on */

/* Finds the form of the body's list; there must be exactly one. */
static kvb_status find_query_form(const struct reading *reading, const struct form **out_form)
{
    const struct form *found = NULL;

    for (size_t i = 0; i < KVB_COUNT_OF(forms); i++) {
        if (!kvb_json_member(reading->root, forms[i].name)) {
            continue;
        }
        if (found) {
            kvb_detail_set(
                reading->detail,
                "%s: only one of token_ids, block_hashes, seq_hashes, text and messages, not %s "
                "too",
                forms[i].name, found->name);
            return KVB_NOT_FOUND;
        }
        found = &forms[i];
    }
    if (!found) {
        kvb_detail_set(
            reading->detail,
            "token_ids: missing, and so are block_hashes, seq_hashes, text and messages");
        return KVB_NOT_FOUND;
    }
    *out_form = found;
    return KVB_OK;
}

static kvb_status read_query_list(const struct reading *reading, struct kvb_query *query)
{
    const struct form *form = NULL;

    KVB_TRY(find_query_form(reading, &form));
    if (query->count > 0) {
        return KVB_OK; /* read_simple_list() has read it already */
    }
    struct json_object *list = kvb_json_member(reading->root, form->name);
    query->form = form->form;
    /* A text, which was cut out before; here only what is wrong with it is found. */
    if (!form->take) {
        return form->read(reading, form->name, list, query);
    }
    if (!json_object_is_type(list, json_type_array)) {
        return refuse_query(reading, form->name, "an array", list);
    }
    query->count = json_object_array_length(list);
    if (query->count > kvb_max_query_tokens) {
        kvb_detail_set(
            reading->detail, "%s: at most %d, got %zu", form->name, kvb_max_query_tokens,
            query->count);
        return KVB_TOO_LARGE;
    }
    return form->read(reading, form->name, list, query);
}

/* ---- the names --------------------------------------------------------------- */

/* out is unchanged when the field is missing or null. */
static kvb_status
read_query_name(const struct reading *reading, const char *name, char out[kvb_model_bytes + 1])
{
    struct json_object *value = kvb_json_member(reading->root, name);

    if (!value) {
        return KVB_OK;
    }
    if (!json_object_is_type(value, json_type_string)) {
        return refuse_query(reading, name, "a string", value);
    }
    if (kvb_json_text(value, out, kvb_model_bytes + 1) != KVB_OK) {
        kvb_detail_set(
            reading->detail, "%s: expected at most %d bytes and no NUL, got %d bytes", name,
            kvb_model_bytes, json_object_get_string_len(value));
        return KVB_NOT_FOUND;
    }
    return KVB_OK;
}

static kvb_status read_query_model(const struct reading *reading, struct kvb_query *query)
{
    char alias[kvb_model_bytes + 1] = "";
    const bool has_alias = kvb_json_member(reading->root, "model_name") != NULL;

    query->has_model = has_alias || kvb_json_member(reading->root, "model") != NULL;
    KVB_TRY(read_query_name(reading, "model_name", alias));
    memcpy(query->model, alias, sizeof alias);
    KVB_TRY(read_query_name(reading, "model", query->model));
    /* Both names are fine if they say the same. */
    if (has_alias && strcmp(alias, query->model) != 0) {
        kvb_detail_set(reading->detail, "model: differs from model_name; give one of them");
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
static kvb_status
read_query_number(const struct reading *reading, const struct number_field *field, uint64_t *out)
{
    struct json_object *value = kvb_json_member(reading->root, field->name);
    struct integer number = { 0 };

    if (!value) {
        return KVB_OK;
    }
    if (!read_json_integer(reading, value, &number) || number.is_negative ||
        number.bits < field->min || number.bits > field->max) {
        return refuse_query(reading, field->name, field->expected, value);
    }
    *out = number.bits;
    return KVB_OK;
}

static kvb_status read_query_request_id(const struct reading *reading, struct kvb_query *query)
{
    struct json_object *value = kvb_json_member(reading->root, "request_id");

    if (!value) {
        return KVB_OK;
    }
    if (!json_object_is_type(value, json_type_string)) {
        return refuse_query(reading, "request_id", "a string", value);
    }
    if (kvb_json_text(value, query->request_id, sizeof query->request_id) != KVB_OK ||
        !kvb_request_id_is_valid(query->request_id)) {
        kvb_detail_set(
            reading->detail, "request_id: expected 1 to %d bytes without control characters",
            kvb_request_id_bytes);
        return KVB_NOT_FOUND;
    }
    return KVB_OK;
}

static kvb_status read_query_object(const struct reading *reading, struct kvb_query *query)
{
    if (!json_object_is_type(reading->root, json_type_object)) {
        return refuse_query(reading, "body", "an object", reading->root);
    }
    /* The list is read last: it is the longest, and an error in it costs the most to find. */
    KVB_TRY(read_query_model(reading, query));
    KVB_TRY(read_query_name(reading, "lora_name", query->lora_name));
    KVB_TRY(read_query_name(reading, "cache_salt", query->cache_salt));
    query->has_instance_id = kvb_json_member(reading->root, instance_field.name) != NULL;
    KVB_TRY(read_query_number(reading, &instance_field, &query->instance_id));
    query->has_dp_rank = kvb_json_member(reading->root, dp_rank_field.name) != NULL;
    KVB_TRY(read_query_number(reading, &dp_rank_field, &query->dp_rank));
    KVB_TRY(read_query_request_id(reading, query));
    KVB_TRY(read_query_number(reading, &ttl_field, &query->ttl_ms));
    KVB_TRY(kvb_selection_json_read(reading->root, &query->selection, reading->detail));
    return read_query_list(reading, query);
}

static const struct form *find_list_form(kvb_span key)
{
    for (size_t i = 0; i < KVB_COUNT_OF(forms); i++) {
        if (forms[i].take && kvb_span_is(key, forms[i].name)) {
            return &forms[i];
        }
    }
    return NULL;
}

/* A second list and a key with escapes are left to json-c: a key with escapes may be any key. */
static kvb_status read_list_member(struct kvb_json_scan *scan, struct listing *listing)
{
    struct kvb_json_budget budget = { .depth = max_depth,
                                      .containers = SIZE_MAX,
                                      .values = SIZE_MAX };
    kvb_span key = { 0 };

    KVB_TRY(kvb_json_string(scan, &key));
    KVB_TRY(kvb_json_expect(scan, ':'));
    const struct form *form = find_list_form(key);
    if (memchr(key.data, '\\', key.len) || (form && listing->is_found)) {
        return KVB_BAD_INPUT;
    }
    /* Any other member stays in the text for json-c, but must be whole. */
    if (!form) {
        return kvb_json_skip(scan, &budget);
    }
    listing->is_found = true;
    listing->query.form = form->form;
    listing->begin = scan->at;
    const kvb_status status = kvb_json_array(scan, form->take, listing);
    listing->end = scan->at;
    return status;
}

static kvb_status read_listed_object(struct kvb_json_scan *scan, struct listing *listing)
{
    KVB_TRY(kvb_json_expect(scan, '{'));
    do {
        KVB_TRY(read_list_member(scan, listing));
    } while (kvb_json_take(scan, ','));
    KVB_TRY(kvb_json_expect(scan, '}'));
    KVB_TRY(kvb_json_finish(scan));
    return listing->is_found && listing->query.count > 0 ? KVB_OK : KVB_BAD_INPUT;
}

static kvb_status copy_rest(kvb_span json, const struct listing *listing, struct kvb_buf *rest)
{
    const uint8_t *past = json.data + json.len;

    KVB_TRY(kvb_buf_append(rest, json.data, (size_t)(listing->begin - json.data)));
    KVB_TRY(kvb_buf_append_text(rest, "[]"));
    return kvb_buf_append(rest, listing->end, (size_t)(past - listing->end));
}

/* KVB_OK: *query contains the list, which the caller owns, and *rest all other text.
 * KVB_NOT_FOUND  no list of this form, or an error in it: *query is unchanged, and
 *                json-c must parse the whole text
 * KVB_NO_MEMORY */
static kvb_status read_simple_list(kvb_span json, struct kvb_query *query, struct kvb_buf *rest)
{
    KVB_OWN(drop_listing) struct listing listing = { 0 };
    struct kvb_json_scan scan = kvb_json_scan_of(json);
    const kvb_status status = read_listed_object(&scan, &listing);

    if (status != KVB_OK) {
        return status == KVB_NO_MEMORY ? status : KVB_NOT_FOUND;
    }
    KVB_TRY(copy_rest(json, &listing, rest));
    query->form = listing.query.form;
    query->tokens = listing.query.tokens;
    query->hashes = listing.query.hashes;
    query->count = listing.query.count;
    listing.query = (struct kvb_query){ 0 }; /* now the caller's */
    return KVB_OK;
}

/* Reads a simple list, or a text, without json-c, and the rest with json-c. */
static kvb_status parse_parts(
    kvb_span json, struct kvb_query *query, struct kvb_json_budget *budget,
    struct json_object **out_root)
{
    KVB_OWN(kvb_buf_done) struct kvb_buf rest = { 0 };

    if (json.len > kvb_max_query_body_bytes) {
        return KVB_TOO_LARGE;
    }
    kvb_buf_init(&rest, kvb_max_query_body_bytes + max_replaced_bytes);
    kvb_status status = read_simple_list(json, query, &rest);
    /* No simple list: it may be a text, which json-c would unescape. */
    if (status == KVB_NOT_FOUND) {
        status = kvb_query_text_cut(json, &query->text, &rest);
    }
    if (status == KVB_NOT_FOUND) {
        return kvb_json_parse(json, budget, out_root);
    }
    KVB_TRY(status);
    return kvb_json_parse(kvb_buf_span(&rest), budget, out_root);
}

static kvb_status parse_query(
    kvb_span json, struct kvb_query *query, struct kvb_json_budget *budget,
    struct json_object **out_root, struct kvb_detail *detail)
{
    const kvb_status status = parse_parts(json, query, budget, out_root);

    if (status == KVB_TOO_LARGE) {
        kvb_detail_set(
            detail, "body: at most %d bytes, %d tokens or hashes, %d levels",
            kvb_max_query_body_bytes, kvb_max_query_tokens, max_depth);
    } else if (status == KVB_BAD_INPUT) {
        kvb_detail_set(detail, "body: no JSON");
    }
    return status;
}

kvb_status
kvb_query_json_decode(kvb_span json, struct kvb_query *out_query, struct kvb_detail *detail)
{
    KVB_OWN(kvb_json_drop) struct json_object *root = NULL;
    KVB_OWN(kvb_query_done) struct kvb_query query = { 0 };
    struct kvb_json_budget budget = { .depth = max_depth,
                                      .containers = max_containers,
                                      .values = kvb_max_query_tokens + max_other_values };

    KVB_TRY(parse_query(json, &query, &budget, &root, detail));
    const struct reading reading = {
        .root = root,
        .has_wide_integer = budget.has_wide_integer,
        .detail = detail,
    };
    KVB_TRY(read_query_object(&reading, &query));
    *out_query = query;
    query = (struct kvb_query){ 0 }; /* now the caller's */
    return KVB_OK;
}

kvb_status
kvb_request_json_decode(kvb_span json, struct kvb_query *out_query, struct kvb_detail *detail)
{
    KVB_OWN(kvb_json_drop) struct json_object *root = NULL;
    struct kvb_query query = { 0 };
    struct kvb_json_budget budget = { .depth = max_depth,
                                      .containers = max_containers,
                                      .values = max_other_values };

    const kvb_status status = json.len > kvb_max_request_report_bytes
                                  ? KVB_TOO_LARGE
                                  : kvb_json_parse(json, &budget, &root);
    if (status == KVB_TOO_LARGE) {
        kvb_detail_set(
            detail, "body: at most %d bytes, %d levels", kvb_max_request_report_bytes, max_depth);
    } else if (status == KVB_BAD_INPUT) {
        kvb_detail_set(detail, "body: no JSON");
    }
    KVB_TRY(status);
    const struct reading reading = { .root = root, .detail = detail };
    if (!json_object_is_type(root, json_type_object)) {
        return refuse_query(&reading, "body", "an object", root);
    }
    KVB_TRY(read_query_request_id(&reading, &query));
    /* A report without an id is about no request. */
    if (!query.request_id[0]) {
        kvb_detail_set(detail, "missing field `request_id`");
        return KVB_NOT_FOUND;
    }
    query.has_cached_tokens = kvb_json_member(root, cached_field.name) != NULL;
    KVB_TRY(read_query_number(&reading, &cached_field, &query.cached_tokens));
    *out_query = query;
    return KVB_OK;
}
