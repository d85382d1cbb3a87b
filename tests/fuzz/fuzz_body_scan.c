#include "body_same.h"
#include "target.h"

#include <stdlib.h>

static bool is_inside(const struct kvb_body_place *place, size_t size)
{
    return place->at <= size && place->len <= size - place->at;
}

/* Copied into another JSON text, a value gives no JSON, or one member. */
static bool adds_no_member(kvb_span body, const struct kvb_body_place *place)
{
    KVB_OWN(kvb_buf_done) struct kvb_buf text = { 0 };

    kvb_buf_init(&text, 4 << 20);
    (void)!kvb_buf_append_text(&text, "{\"v\":");
    (void)!kvb_buf_append(&text, body.data + place->at, place->len);
    (void)!kvb_buf_append_text(&text, ",\"w\":1}");
    KVB_OWN(drop_json) struct json_object *object = parse_whole(kvb_buf_span(&text));
    return !object || json_object_object_length(object) == 2;
}

/* The first byte says where the rest is cut into chunks. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0) {
        return 0;
    }
    const kvb_span body = { data + 1, size - 1 };
    const size_t step = data[0] + 1U;
    KVB_OWN(kvb_body_scan_done) struct kvb_body_scan whole = { 0 };
    KVB_OWN(kvb_body_scan_done) struct kvb_body_scan cut = { 0 };

    kvb_body_scan_feed(&whole, body);
    for (size_t at = 0; at < body.len; at += step) {
        const size_t left = body.len - at;
        kvb_body_scan_feed(&cut, (kvb_span){ body.data + at, left < step ? left : step });
    }
    check(are_same_scans(&whole, &cut));

    struct kvb_json_budget budget = { .depth = kvb_max_gateway_body_depth,
                                      .containers = SIZE_MAX,
                                      .values = SIZE_MAX };
    const bool is_json = kvb_json_guard(body, &budget) == KVB_OK;
    if (kvb_body_scan_end(&whole) == KVB_OK) {
        for (unsigned key = 0; key < KVB_BODY_KEY_COUNT; key++) {
            const struct kvb_body_place *place = &whole.found.values[key];
            check(
                is_inside(place, body.len) &&
                (place->type == KVB_BODY_IS_MISSING || adds_no_member(body, place)));
        }
        for (size_t i = 0; i < whole.found.message_count; i++) {
            const struct kvb_body_message *message = &whole.found.messages[i];
            check(message->at <= body.len && message->len <= body.len - message->at);
        }
        check(is_inside(&whole.found.first_prompt, body.len));
    }
    /* json-c ends a key at \u0000, which is none of ours. */
    if (is_json && !memmem(body.data, body.len, "\\u0000", 6)) {
        KVB_OWN(drop_json) struct json_object *root = parse_whole(body);
        check(
            !json_object_is_type(root, json_type_object) ||
            (kvb_body_scan_end(&whole) == KVB_OK && is_same_body(body, &whole.found, root)));
    }
    return 0;
}
