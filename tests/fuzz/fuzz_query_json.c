#include "wire/json/scan.h"
#include "wire/query/json.h"

#include "core/buf.h"
#include "core/own.h"
#include "target.h"

#include <inttypes.h>
#include <json-c/json.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void drop_object(struct json_object **object)
{
    (void)json_object_put(*object);
}

static void add(struct json_object *object, const char *name, struct json_object *value)
{
    check(object && json_object_object_add(object, name, value) == 0);
}

/* The list with hashes as strings, a form that few inputs have. */
static struct json_object *list_of(const struct kvb_query *query)
{
    struct json_object *list = json_object_new_array();

    for (size_t i = 0; i < query->count; i++) {
        char digits[32] = "";
        struct json_object *item = NULL;
        if (query->tokens) {
            item = json_object_new_int64(query->tokens[i]);
        } else {
            (void)snprintf(digits, sizeof digits, "%" PRIu64, query->hashes[i]);
            item = json_object_new_string(digits);
        }
        check(json_object_array_add(list, item) == 0);
    }
    return list;
}

/* Candidates that are addresses are left out: only their hashes are kept. */
static void add_selection(struct json_object *object, const struct kvb_selection *selection)
{
    struct json_object *labels = json_object_new_object();
    char name[kvb_label_name_bytes + 1];
    struct kvb_label label;

    for (size_t at = 0; kvb_labels_next(&selection->labels, &at, &label);) {
        (void)snprintf(name, sizeof name, "%.*s", (int)label.name_len, label.pair);
        add(labels, name, json_object_new_string(label.value));
    }
    add(object, "labels", labels);
    add(object, "policy", json_object_new_string(selection->policy));
    add(object, "dry_run", json_object_new_boolean(selection->is_dry_run));
    struct json_object *ids = selection->worker_id_count > 0 ? json_object_new_array() : NULL;
    for (size_t i = 0; i < selection->worker_id_count; i++) {
        check(json_object_array_add(ids, json_object_new_uint64(selection->worker_ids[i])) == 0);
    }
    add(object, "candidates", ids);
}

static bool is_same_selection(const struct kvb_selection *a, const struct kvb_selection *b)
{
    return strcmp(a->policy, b->policy) == 0 && a->is_dry_run == b->is_dry_run &&
           kvb_labels_are_same(&a->labels, &b->labels) &&
           a->worker_id_count == b->worker_id_count &&
           (a->worker_id_count == 0 ||
            memcmp(a->worker_ids, b->worker_ids, a->worker_id_count * sizeof *a->worker_ids) == 0);
}

static struct json_object *object_of(const struct kvb_query *query)
{
    static const char *const names[] = {
        [KVB_QUERY_TOKENS] = "token_ids",
        [KVB_QUERY_TOKENS_HASHES] = "block_hashes",
        [KVB_QUERY_BLOCK_HASHES] = "seq_hashes",
    };
    struct json_object *object = json_object_new_object();

    if (query->form != KVB_QUERY_TEXT) {
        add(object, names[query->form], list_of(query));
    }
    if (query->has_model) {
        add(object, "model", json_object_new_string(query->model));
    }
    if (query->has_instance_id) {
        add(object, "instance_id", json_object_new_uint64(query->instance_id));
    }
    add(object, "lora_name", json_object_new_string(query->lora_name));
    add(object, "cache_salt", json_object_new_string(query->cache_salt));
    add_selection(object, &query->selection);
    return object;
}

/* Where the name of the prompt begins in the members of a text; it is the last one. */
static size_t prompt_at(kvb_span members)
{
    struct kvb_json_scan scan = kvb_json_scan_of(members);
    struct kvb_json_budget budget = { .depth = 32, .containers = SIZE_MAX, .values = SIZE_MAX };
    kvb_span key = { 0 };
    size_t at = 0;

    do {
        at = (size_t)(scan.at - members.data);
        check(
            kvb_json_string(&scan, &key) == KVB_OK && kvb_json_expect(&scan, ':') == KVB_OK &&
            kvb_json_skip(&scan, &budget) == KVB_OK);
    } while (kvb_json_take(&scan, ','));
    return at;
}

/* The text is put before the other members, as it is; a prompt has another name in a query. */
static void
write_query(const struct kvb_query *query, struct json_object *object, struct kvb_buf *out)
{
    const struct kvb_query_text *text = &query->text;
    const bool is_prompt = text->members && !text->ends;
    size_t from = 0;
    size_t len = 0;
    const char *rest = json_object_to_json_string_length(object, JSON_C_TO_STRING_PLAIN, &len);

    kvb_buf_init(out, 64 << 20);
    if (kvb_buf_append_text(out, "{") != KVB_OK) {
        abort();
    }
    if (is_prompt) {
        from = prompt_at((kvb_span){ (const uint8_t *)text->members, text->bytes });
        check(
            kvb_buf_append(out, text->members, from) == KVB_OK &&
            kvb_buf_append_text(out, "\"text\":") == KVB_OK);
        from += sizeof "\"prompt\":" - 1;
    }
    if (text->members) {
        check(kvb_buf_append(out, text->members + from, text->bytes - from) == KVB_OK);
        check(kvb_buf_append_text(out, ",") == KVB_OK);
    }
    check(kvb_buf_append(out, rest + 1, len - 1) == KVB_OK);
}

static bool is_same_text(const struct kvb_query *a, const struct kvb_query *b)
{
    const struct kvb_query_text *x = &a->text;
    const struct kvb_query_text *y = &b->text;

    return x->bytes == y->bytes && x->end_count == y->end_count &&
           (x->bytes == 0 || memcmp(x->members, y->members, x->bytes) == 0) &&
           (x->end_count == 0 || memcmp(x->ends, y->ends, x->end_count * sizeof *x->ends) == 0);
}

static bool is_same_list(const struct kvb_query *a, const struct kvb_query *b)
{
    return a->count == 0 ||
           (a->tokens ? memcmp(a->tokens, b->tokens, a->count * sizeof *a->tokens)
                      : memcmp(a->hashes, b->hashes, a->count * sizeof *a->hashes)) == 0;
}

static bool is_same(const struct kvb_query *a, const struct kvb_query *b)
{
    const bool is_same_head = a->form == b->form && a->has_model == b->has_model &&
                              a->has_instance_id == b->has_instance_id &&
                              a->instance_id == b->instance_id && a->count == b->count;

    return is_same_head && is_same_selection(&a->selection, &b->selection) &&
           strcmp(a->model, b->model) == 0 && strcmp(a->lora_name, b->lora_name) == 0 &&
           strcmp(a->cache_salt, b->cache_salt) == 0 && is_same_list(a, b) && is_same_text(a, b);
}

/* An accepted query is written by json-c and reads as the same query; for a refused one there is a
 * sentence. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    KVB_OWN(kvb_query_done) struct kvb_query query = { 0 };
    KVB_OWN(kvb_query_done) struct kvb_query again = { 0 };
    KVB_OWN(drop_object) struct json_object *object = NULL;
    KVB_OWN(kvb_buf_done) struct kvb_buf json = { 0 };
    struct kvb_detail detail = { "" };

    if (kvb_query_json_decode((kvb_span){ data, size }, &query, &detail) != KVB_OK) {
        check(detail.text[0] != '\0' && !query.tokens && !query.hashes && !query.text.members);
        return 0;
    }
    object = object_of(&query);
    write_query(&query, object, &json);
    check(
        kvb_query_json_decode(kvb_buf_span(&json), &again, &detail) == KVB_OK &&
        is_same(&query, &again));
    return 0;
}
