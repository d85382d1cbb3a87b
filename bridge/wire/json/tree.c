#include "wire/json/tree.h"

#include "core/own.h"

#include <limits.h>
#include <string.h>

static void drop_tokener(struct json_tokener **tokener)
{
    if (*tokener) {
        json_tokener_free(*tokener);
    }
}

void kvb_json_drop(struct json_object **root)
{
    (void)json_object_put(*root); /* it was the last reference */
}

kvb_status
kvb_json_parse(kvb_span text, struct kvb_json_budget *budget, struct json_object **out_root)
{
    KVB_OWN(drop_tokener) struct json_tokener *tokener = NULL;

    if (text.len >= INT_MAX) {
        return KVB_TOO_LARGE;
    }
    KVB_TRY(kvb_json_guard(text, budget));
    tokener = json_tokener_new();
    if (!tokener) {
        return KVB_NO_MEMORY;
    }
    json_tokener_set_flags(tokener, JSON_TOKENER_VALIDATE_UTF8);
    struct json_object *root =
        json_tokener_parse_ex(tokener, (const char *)text.data, (int)text.len);
    enum json_tokener_error error = json_tokener_get_error(tokener);
    if (error == json_tokener_continue) {
        /* A number alone has no end mark, so a NUL tells json-c that it is complete. */
        root = json_tokener_parse_ex(tokener, "", 1);
        error = json_tokener_get_error(tokener);
    }
    if (error != json_tokener_success) {
        return KVB_BAD_INPUT; /* kvb_json_guard() checks everything except UTF-8 */
    }
    *out_root = root;
    return KVB_OK;
}

struct json_object *kvb_json_member(struct json_object *object, const char *name)
{
    struct json_object *value = NULL;

    if (!json_object_is_type(object, json_type_object)) {
        return NULL;
    }
    (void)json_object_object_get_ex(object, name, &value); /* false: value stays NULL */
    return value;
}

const char *kvb_json_member_text(struct json_object *object, const char *name)
{
    struct json_object *value = kvb_json_member(object, name);

    return json_object_is_type(value, json_type_string) ? json_object_get_string(value) : "";
}

uint64_t kvb_json_member_u64(struct json_object *object, const char *name)
{
    return json_object_get_uint64(kvb_json_member(object, name));
}

size_t kvb_json_list_len(struct json_object *list)
{
    return json_object_is_type(list, json_type_array) ? json_object_array_length(list) : 0;
}

kvb_status kvb_json_text(struct json_object *value, char *out, size_t size)
{
    if (!json_object_is_type(value, json_type_string)) {
        return KVB_BAD_INPUT;
    }
    const char *text = json_object_get_string(value);
    const size_t len = (size_t)json_object_get_string_len(value);
    if (!text || len >= size || memchr(text, '\0', len)) {
        return KVB_BAD_INPUT;
    }
    memcpy(out, text, len);
    out[len] = '\0';
    return KVB_OK;
}

kvb_status kvb_json_number(struct json_object *value, uint64_t max, uint64_t *out_number)
{
    /* get_int64 of a u64 above INT64_MAX returns INT64_MAX, not a negative number */
    if (!json_object_is_type(value, json_type_int) || json_object_get_int64(value) < 0 ||
        json_object_get_uint64(value) > max) {
        return KVB_BAD_INPUT;
    }
    *out_number = json_object_get_uint64(value);
    return KVB_OK;
}
