#include "model/served_names.h"

#include "core/utf8.h"
#include "model/stream.h"

#include <string.h>

_Static_assert((int)kvb_served_name_bytes == (int)kvb_model_bytes, "requests name both");
_Static_assert(kvb_served_name_bytes <= UINT8_MAX, "its length is one byte");

enum { head_bytes = 2, record_bytes = head_bytes + 1 }; /* kind and length, and the NUL */

bool kvb_served_names_next(
    const struct kvb_served_names *names, size_t *at, struct kvb_served_name *out_name)
{
    if (*at >= names->bytes) {
        return false;
    }
    const char *record = names->text + *at;
    *out_name = (struct kvb_served_name){ .kind = (enum kvb_served_kind)record[0],
                                          .name = record + head_bytes,
                                          .len = (uint8_t)record[1] };
    *at += record_bytes + out_name->len;
    return true;
}

bool kvb_served_names_find(
    const struct kvb_served_names *names, kvb_span name, enum kvb_served_kind *out_kind)
{
    struct kvb_served_name one;

    for (size_t at = 0; kvb_served_names_next(names, &at, &one);) {
        if (one.len == name.len && memcmp(one.name, name.data, name.len) == 0) {
            *out_kind = one.kind;
            return true;
        }
    }
    return false;
}

kvb_status
kvb_served_names_add(struct kvb_served_names *names, enum kvb_served_kind kind, kvb_span name)
{
    char text[kvb_served_name_bytes + 1] = "";
    enum kvb_served_kind known = KVB_SERVED_NAME;

    if (name.len == 0 || name.len > kvb_served_name_bytes ||
        memchr(name.data, '\0', name.len) != NULL) {
        return KVB_BAD_INPUT;
    }
    memcpy(text, name.data, name.len);
    if (!kvb_utf8_is_plain(text)) {
        return KVB_BAD_INPUT;
    }
    if (kvb_served_names_find(names, name, &known)) {
        return KVB_OK;
    }
    if (names->count == kvb_max_served_names ||
        names->bytes + record_bytes + name.len > sizeof names->text) {
        /* The count makes the list incomplete, so that no name is refused for not being in it. */
        names->left_out += names->left_out < UINT32_MAX;
        return KVB_TOO_LARGE;
    }
    char *record = names->text + names->bytes;
    record[0] = (char)kind;
    record[1] = (char)name.len;
    memcpy(record + head_bytes, text, name.len + 1);
    names->bytes = (uint16_t)(names->bytes + record_bytes + name.len);
    names->count++;
    return KVB_OK;
}

bool kvb_served_names_are_all(const struct kvb_served_names *names)
{
    return names->is_listed && names->left_out == 0;
}

bool kvb_served_names_are_same(
    const struct kvb_served_names *one, const struct kvb_served_names *other)
{
    return one->is_listed == other->is_listed && (one->left_out == 0) == (other->left_out == 0) &&
           one->bytes == other->bytes && memcmp(one->text, other->text, one->bytes) == 0;
}
