#include "kvctl/top/read.h"

#include "core/own.h"
#include "wire/json/tree.h"

#include <math.h>
#include <stdio.h>

enum { answer_depth = 16, answer_values = 1 << 23 };

kvb_status kvctl_top_parse(kvb_span text, struct json_object **out_root)
{
    struct kvb_json_budget budget = { .depth = answer_depth,
                                      .containers = answer_values,
                                      .values = answer_values };
    KVB_OWN(kvb_json_drop) struct json_object *root = NULL;

    KVB_TRY(kvb_json_parse(text, &budget, &root));
    if (!json_object_is_type(root, json_type_object)) {
        return KVB_BAD_INPUT;
    }
    *out_root = root;
    root = NULL;
    return KVB_OK;
}

size_t kvctl_top_list(struct json_object *object, const char *name, struct json_object **out_list)
{
    struct json_object *list = kvb_json_member(object, name);

    *out_list = list;
    return json_object_is_type(list, json_type_array) ? json_object_array_length(list) : 0;
}

bool kvctl_top_u64(struct json_object *object, const char *name, uint64_t *out_value)
{
    struct json_object *value = kvb_json_member(object, name);

    *out_value = 0;
    if (!json_object_is_type(value, json_type_int) || json_object_get_int64(value) < 0) {
        return false;
    }
    *out_value = json_object_get_uint64(value);
    return true;
}

struct kvctl_top_figure kvctl_top_number(struct json_object *object, const char *name)
{
    struct json_object *value = kvb_json_member(object, name);
    const bool is_number =
        json_object_is_type(value, json_type_int) || json_object_is_type(value, json_type_double);
    const double number = is_number ? json_object_get_double(value) : NAN;

    return (struct kvctl_top_figure){ .is_known = isfinite(number),
                                      .value = isfinite(number) ? number : 0 };
}

void kvctl_top_word(struct json_object *object, const char *name, char *out, size_t size)
{
    struct json_object *value = kvb_json_member(object, name);
    const bool is_text = json_object_is_type(value, json_type_string);

    (void)snprintf(out, size, "%s", is_text ? json_object_get_string(value) : ""); /* cut */
}
