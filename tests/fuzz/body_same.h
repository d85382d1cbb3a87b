#pragma once

#include "core/buf.h"
#include "core/limits.h"
#include "core/own.h"
#include "wire/gateway/body_scan.h"
#include "wire/json/scan.h"

#include <json-c/json.h>
#include <string.h>

/* Whether a scan of a body says what json-c says; for the unit suite and the fuzz target. */

static inline void drop_json(struct json_object **object)
{
    (void)json_object_put(*object);
}

static inline struct json_object *parse_whole(kvb_span text)
{
    json_tokener *tokener = json_tokener_new_ex(kvb_max_gateway_body_depth + 8);

    json_tokener_set_flags(tokener, JSON_TOKENER_STRICT | JSON_TOKENER_VALIDATE_UTF8);
    struct json_object *object =
        json_tokener_parse_ex(tokener, (const char *)text.data, (int)text.len);
    const bool is_whole = json_tokener_get_error(tokener) == json_tokener_success;
    json_tokener_free(tokener);
    if (!is_whole) {
        (void)json_object_put(object);
        return NULL;
    }
    return object;
}

static inline kvb_span bytes_at(kvb_span body, uint32_t at, uint32_t len)
{
    return (kvb_span){ body.data + at, len };
}

/* A value alone: as the only member of an object, because json-c waits for more digits. */
static inline bool
is_same_value(kvb_span body, uint32_t at, uint32_t len, struct json_object *expected)
{
    KVB_OWN(kvb_buf_done) struct kvb_buf text = { 0 };

    kvb_buf_init(&text, 4 << 20);
    (void)!kvb_buf_append_text(&text, "{\"v\":");
    (void)!kvb_buf_append(&text, body.data + at, len);
    (void)!kvb_buf_append_text(&text, "}");
    KVB_OWN(drop_json) struct json_object *object = parse_whole(kvb_buf_span(&text));
    struct json_object *value = NULL;
    return object && json_object_object_length(object) == 1 &&
           json_object_object_get_ex(object, "v", &value) && json_object_equal(value, expected);
}

static inline enum kvb_body_type type_in_json(struct json_object *value)
{
    switch (json_object_get_type(value)) {
    case json_type_null:
        return KVB_BODY_IS_NULL;
    case json_type_boolean:
        return KVB_BODY_IS_BOOLEAN;
    case json_type_int:
    case json_type_double:
        return KVB_BODY_IS_NUMBER;
    case json_type_string:
        return KVB_BODY_IS_STRING;
    case json_type_array:
        return KVB_BODY_IS_LIST;
    default:
        return KVB_BODY_IS_OBJECT;
    }
}

static inline bool is_media_name(const char *name)
{
    return strstr(name, "image") || strstr(name, "audio") || strstr(name, "video") ||
           strcmp(name, "file") == 0;
}

/* Whether an object that lies in a list, or member, of a message has such a member. */
static inline bool has_media_part(struct json_object *container)
{
    if (json_object_is_type(container, json_type_array)) {
        for (size_t i = 0; i < json_object_array_length(container); i++) {
            struct json_object *part = json_object_array_get_idx(container, i);
            if (json_object_is_type(part, json_type_object)) {
                json_object_object_foreach(part, key, value)
                {
                    (void)value;
                    if (is_media_name(key)) {
                        return true;
                    }
                }
            }
        }
    } else if (json_object_is_type(container, json_type_object)) {
        json_object_object_foreach(container, name, part)
        {
            (void)name;
            if (json_object_is_type(part, json_type_object)) {
                json_object_object_foreach(part, key, value)
                {
                    (void)value;
                    if (is_media_name(key)) {
                        return true;
                    }
                }
            }
        }
    }
    return false;
}

static inline bool has_media_message(struct json_object *message)
{
    if (json_object_is_type(message, json_type_object)) {
        json_object_object_foreach(message, key, value)
        {
            (void)key;
            if (has_media_part(value)) {
                return true;
            }
        }
    } else if (json_object_is_type(message, json_type_array)) {
        for (size_t i = 0; i < json_object_array_length(message); i++) {
            if (has_media_part(json_object_array_get_idx(message, i))) {
                return true;
            }
        }
    }
    return false;
}

static inline bool is_container(struct json_object *value)
{
    return json_object_is_type(value, json_type_object) ||
           json_object_is_type(value, json_type_array);
}

static inline bool
are_same_messages(kvb_span body, const struct kvb_body_found *found, struct json_object *root)
{
    struct json_object *messages = json_object_object_get(root, "messages");
    const bool is_list = json_object_is_type(messages, json_type_array);
    bool has_media = false;
    size_t count = 0;

    for (size_t i = 0; is_list && i < json_object_array_length(messages); i++) {
        struct json_object *message = json_object_array_get_idx(messages, i);
        if (!is_container(message)) {
            continue;
        }
        if (count < found->message_count &&
            !is_same_value(body, found->messages[count].at, found->messages[count].len, message)) {
            return false;
        }
        has_media |= has_media_message(message);
        count++;
    }
    return count == found->message_count + found->messages_left_out &&
           /* More than json-c may be seen: of a part that a second key replaces. */
           (!is_list || found->has_media || !has_media);
}

static inline bool
is_same_prompt(kvb_span body, const struct kvb_body_place *first, struct json_object *root)
{
    struct json_object *prompt = json_object_object_get(root, "prompt");

    if (!json_object_is_type(prompt, json_type_array) || json_object_array_length(prompt) == 0) {
        return first->type == KVB_BODY_IS_MISSING;
    }
    struct json_object *expected = json_object_array_get_idx(prompt, 0);
    return first->type == type_in_json(expected) &&
           (first->len == 0 || is_same_value(body, first->at, first->len, expected)) &&
           (first->len > 0 || (!is_container(expected) && first->type != KVB_BODY_IS_STRING));
}

/* The scan of a body that json-c reads as `root`. */
static inline bool
is_same_body(kvb_span body, const struct kvb_body_found *found, struct json_object *root)
{
    for (unsigned key = 0; key < KVB_BODY_KEY_COUNT; key++) {
        const struct kvb_body_place *place = &found->values[key];
        struct json_object *expected = NULL;
        const bool is_there =
            json_object_object_get_ex(root, kvb_body_key_name((enum kvb_body_key)key), &expected);
        if (is_there != (place->type != KVB_BODY_IS_MISSING) ||
            (is_there && (place->type != type_in_json(expected) ||
                          !is_same_value(body, place->at, place->len, expected)))) {
            return false;
        }
    }
    return are_same_messages(body, found, root) && is_same_prompt(body, &found->first_prompt, root);
}

/* Two scans of one body, cut at different places. */
static inline bool are_same_scans(const struct kvb_body_scan *a, const struct kvb_body_scan *b)
{
    return a->state == b->state && a->at == b->at &&
           memcmp(a->found.values, b->found.values, sizeof a->found.values) == 0 &&
           memcmp(&a->found.first_prompt, &b->found.first_prompt, sizeof a->found.first_prompt) ==
               0 &&
           a->found.message_count == b->found.message_count &&
           a->found.messages_left_out == b->found.messages_left_out &&
           a->found.has_media == b->found.has_media &&
           (a->found.message_count == 0 ||
            memcmp(
                a->found.messages, b->found.messages,
                a->found.message_count * sizeof *a->found.messages) == 0);
}
