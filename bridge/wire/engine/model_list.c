#include "wire/engine/model_list.h"

#include "core/limits.h"
#include "core/own.h"
#include "wire/json/tree.h"

#include <string.h>

/* An entry of vLLM has a list of permissions with 12 values. */
enum { max_depth = 8, max_containers = 4096, max_values = 65536 };

/* One entry; borrowed from the list. */
struct entry {
    const char *id;     /* "": none, like the next */
    const char *root;   /* the id where it is missing */
    const char *parent; /* "": a base model */
};

/* "" for a text that a NUL would cut. */
static const char *text_of(struct json_object *object, const char *name)
{
    const char *text = kvb_json_member_text(object, name);
    const int len = json_object_get_string_len(kvb_json_member(object, name));

    return strlen(text) == (size_t)len ? text : "";
}

static struct entry entry_at(struct json_object *data, size_t at)
{
    struct json_object *object = json_object_array_get_idx(data, at);
    struct entry entry = { .id = "", .root = "", .parent = "" };

    if (json_object_is_type(object, json_type_object)) {
        entry.id = text_of(object, "id");
        entry.root = text_of(object, "root");
        entry.parent = text_of(object, "parent");
    }
    if (entry.root[0] == '\0') {
        entry.root = entry.id;
    }
    return entry;
}

static bool is_base(const struct entry *entry)
{
    return entry->id[0] != '\0' && entry->parent[0] == '\0';
}

/* The root of the entry whose id or root is the model; else of all base models.  NULL: there is
 * none, or several. */
static const char *
find_root(struct json_object *data, size_t count, const char *model, bool *out_has_several)
{
    const char *only = NULL;
    bool has_several = false;

    for (size_t i = 0; i < count; i++) {
        const struct entry entry = entry_at(data, i);
        if (!is_base(&entry)) {
            continue;
        }
        if (strcmp(entry.id, model) == 0 || strcmp(entry.root, model) == 0) {
            return entry.root;
        }
        has_several = has_several || (only && strcmp(only, entry.root) != 0);
        only = entry.root;
    }
    *out_has_several = has_several;
    return has_several ? NULL : only;
}

/* True: its parent is a name of the base model, which are in `names` already. */
static bool is_adapter(
    const struct entry *entry, const char *root, const char *model,
    const struct kvb_served_names *names)
{
    enum kvb_served_kind kind = KVB_SERVED_ADAPTER;

    return entry->id[0] != '\0' && entry->parent[0] != '\0' &&
           (strcmp(entry->parent, model) == 0 || strcmp(entry->parent, root) == 0 ||
            (kvb_served_names_find(names, kvb_span_of(entry->parent), &kind) &&
             kind == KVB_SERVED_NAME));
}

static void
add(struct kvb_served_names *names, enum kvb_served_kind kind, const char *id, const char *model)
{
    if (strcmp(id, model) != 0 &&
        kvb_served_names_add(names, kind, kvb_span_of(id)) == KVB_BAD_INPUT) {
        names->left_out++; /* no request can name it, so it takes no place */
    }
}

static kvb_status read_list(
    struct json_object *root, const char *model, struct kvb_served_names *out_names,
    struct kvb_detail *detail)
{
    struct json_object *data = kvb_json_member(root, "data");
    const size_t count = kvb_json_list_len(data);
    struct kvb_served_names names = { .is_listed = true };
    bool has_several = false;

    if (!json_object_is_type(data, json_type_array)) {
        kvb_detail_set(detail, "its list of models has no array `data`");
        return KVB_BAD_INPUT;
    }
    const char *base = find_root(data, count, model, &has_several);
    if (!base) {
        kvb_detail_set(
            detail, "its list of models has %s, and none of them is %.100s",
            has_several ? "several base models" : "no base model", model);
        return KVB_BAD_INPUT;
    }
    for (size_t i = 0; i < count; i++) {
        const struct entry entry = entry_at(data, i);
        if (is_base(&entry) && strcmp(entry.root, base) == 0) {
            add(&names, KVB_SERVED_NAME, entry.id, model);
        }
    }
    for (size_t i = 0; i < count; i++) {
        const struct entry entry = entry_at(data, i);
        if (is_adapter(&entry, base, model, &names)) {
            add(&names, KVB_SERVED_ADAPTER, entry.id, model);
        }
    }
    *out_names = names;
    return KVB_OK;
}

kvb_status kvb_model_list_decode(
    kvb_span json, const char *model, struct kvb_served_names *out_names, struct kvb_detail *detail)
{
    KVB_OWN(kvb_json_drop) struct json_object *root = NULL;
    struct kvb_json_budget budget = { .depth = max_depth,
                                      .containers = max_containers,
                                      .values = max_values };
    kvb_status status = KVB_TOO_LARGE;

    if (json.len <= kvb_max_model_list_bytes) {
        status = kvb_json_parse(json, &budget, &root);
    }
    if (status != KVB_OK) {
        kvb_detail_set(
            detail, status == KVB_TOO_LARGE ? "its list of models is too large"
                                            : "its list of models is no JSON");
        return status;
    }
    return read_list(root, model, out_names, detail);
}
