#include "wire/json/value.h"

#include "core/own.h"
#include "core/utf8.h"
#include "wire/json/tree.h"

#include <string.h>

enum kvb_json_kind kvb_json_kind_of(kvb_span value)
{
    switch (value.data ? value.data[0] : 'n') {
    case 'n':
        return KVB_JSON_NULL;
    case 't':
    case 'f':
        return KVB_JSON_BOOL;
    case '"':
        return KVB_JSON_TEXT;
    case '{':
        return KVB_JSON_OBJECT;
    case '[':
        return KVB_JSON_ARRAY;
    default:
        return KVB_JSON_NUMBER;
    }
}

kvb_status kvb_json_text_of(kvb_span value, char *out, size_t size, size_t *out_len)
{
    struct kvb_json_budget budget = { .depth = 1, .values = 1 };
    KVB_OWN(kvb_json_drop) struct json_object *decoded = NULL;
    kvb_span text = { value.data + 1, value.len - 2 };

    out[0] = '\0';
    *out_len = 0;
    if (kvb_json_kind_of(value) != KVB_JSON_TEXT) {
        return KVB_BAD_INPUT;
    }
    if (memchr(text.data, '\\', text.len)) {
        KVB_TRY(kvb_json_parse(value, &budget, &decoded));
        text.data = (const uint8_t *)json_object_get_string(decoded);
        text.len = (size_t)json_object_get_string_len(decoded);
    }
    const size_t len = text.len < size ? text.len : size - 1;
    memcpy(out, text.data, len);
    out[len] = '\0';
    *out_len = text.len;
    return text.len < size && !memchr(out, '\0', len) && kvb_utf8_is_whole(text) ? KVB_OK
                                                                                 : KVB_BAD_INPUT;
}

bool kvb_json_integer_of(kvb_span value, struct kvb_json_integer *out)
{
    const bool is_negative = value.len > 0 && value.data[0] == '-';
    struct kvb_json_scan scan =
        kvb_json_scan_of(is_negative ? (kvb_span){ value.data + 1, value.len - 1 } : value);
    uint64_t number = 0;

    if (kvb_json_u64(&scan, &number) != KVB_OK || (is_negative && number > UINT64_C(1) << 63U)) {
        return false;
    }
    *out = (struct kvb_json_integer){ .is_negative = is_negative && number > 0,
                                      .bits = is_negative ? -number : number };
    return true;
}
