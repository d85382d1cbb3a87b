#include "wire/engine_fields.h"

#include "core/hash.h"
#include "core/limits.h"

#include <ctype.h>
#include <string.h>

/* What vLLM adds to a block's identity beside its tokens, one entry a block:
 *
 *     nil, or [item...]     item: "text"        the LoRA name again, before all
 *                                               others; the salt, in the first
 *                                               block; or a 64-digit id
 *                                 [id, offset]  a multimodal input
 *                                 bytes         prompt embeddings: no query can
 *                                               repeat them
 *
 * SGLang has no such list; its salted events hold {"cache_salt": "text"} in the
 * place of the LoRA name. */

enum { digits_in_id = 64, digits_in_key = 16 };

struct extras {
    struct kvb_event_batch *batch;
    struct kvb_engine_event *event;
    struct kvb_block_extra *block; /* the one being read */
    bool begins_prompt; /* the only block that a salt is in: one below a parent inherits it */
    bool has_lora;      /* the LoRA name went by in this block */
};

static bool is_hex_id(kvb_span text)
{
    for (size_t i = 0; i < text.len; i++) {
        if (!isxdigit(text.data[i])) {
            return false;
        }
    }
    return text.len == digits_in_id;
}

static uint64_t first_digits(kvb_span text)
{
    uint64_t key = 0;

    for (size_t i = 0; i < digits_in_key; i++) {
        const int digit = tolower(text.data[i]);
        key = key << 4 | (uint64_t)(isdigit(digit) ? digit - '0' : digit - 'a' + 10);
    }
    return key;
}

static kvb_status add_key(struct extras *extras, kvb_span id)
{
    struct kvb_event_batch *batch = extras->batch;

    if (extras->block->key_count == kvb_max_block_keys) {
        extras->block->unmatchable = true;
        return KVB_OK;
    }
    KVB_TRY(kvb_event_batch_reserve_keys(batch, 1));
    batch->keys[batch->key_count++] = is_hex_id(id) ? first_digits(id) : kvb_hash64(id, 0);
    extras->block->key_count++;
    return KVB_OK;
}

static bool is_lora_name(const struct extras *extras, kvb_span text)
{
    const kvb_span name = kvb_event_batch_text(extras->batch, extras->event->lora_name);

    return name.len > 0 && name.len == text.len && memcmp(name.data, text.data, name.len) == 0;
}

/* A salt that is too long for any query is one that no query can name. */
static kvb_status add_salt(struct extras *extras, kvb_span salt)
{
    if (salt.len > kvb_max_string_bytes) {
        extras->block->unmatchable = true;
        return KVB_OK;
    }
    return kvb_engine_add_text(extras->batch, salt, &extras->event->salt);
}

static kvb_status add_salt_or_id(struct extras *extras, kvb_span text)
{
    if (is_hex_id(text)) {
        return add_key(extras, text);
    }
    if (extras->begins_prompt && extras->event->salt.len == 0) {
        return add_salt(extras, text);
    }
    extras->block->unmatchable = true;
    return KVB_OK;
}

static kvb_status take_text_item(struct extras *extras, kvb_span text)
{
    /* once: a salt may be spelt like the LoRA name */
    if (!extras->has_lora && is_lora_name(extras, text)) {
        extras->has_lora = true;
        return KVB_OK; /* part of the event already */
    }
    return add_salt_or_id(extras, text);
}

static kvb_status take_pair_item(struct extras *extras, struct kvb_mp_cursor *cursor)
{
    uint32_t members = 0;
    kvb_span id = { 0 };

    KVB_TRY(kvb_mp_take_array(cursor, &members));
    if (members == 0 || kvb_mp_next(cursor) != KVB_MP_TEXT) {
        extras->block->unmatchable = true;
    } else {
        KVB_TRY(kvb_mp_take_text(cursor, &id));
        KVB_TRY(add_key(extras, id));
        members--;
    }
    for (uint32_t i = 0; i < members; i++) {
        KVB_TRY(kvb_mp_skip(cursor));
    }
    return KVB_OK;
}

static kvb_status take_item(struct extras *extras, struct kvb_mp_cursor *cursor)
{
    kvb_span text = { 0 };

    switch (kvb_mp_next(cursor)) {
    case KVB_MP_TEXT:
        KVB_TRY(kvb_mp_take_text(cursor, &text));
        return take_text_item(extras, text);
    case KVB_MP_ARRAY:
        return take_pair_item(extras, cursor);
    case KVB_MP_NIL:
        return kvb_mp_skip(cursor);
    default:
        extras->block->unmatchable = true;
        return kvb_mp_skip(cursor);
    }
}

static kvb_status take_block(struct extras *extras, struct kvb_mp_cursor *cursor)
{
    uint32_t items = 0;

    if (kvb_mp_take_nil(cursor)) {
        return KVB_OK;
    }
    KVB_TRY(kvb_mp_take_array(cursor, &items));
    for (uint32_t i = 0; i < items; i++) {
        KVB_TRY(take_item(extras, cursor));
    }
    return KVB_OK;
}

/* Finds {"cache_salt": text}; *out_salt stays empty when there is none. */
static kvb_status find_salt(const struct engine_fields *fields, kvb_span *out_salt)
{
    struct kvb_mp_cursor cursor = kvb_engine_cursor_at(fields, field_lora_name);
    uint32_t pairs = 0;

    if (!fields->has[field_lora_name] || kvb_mp_take_map(&cursor, &pairs) != KVB_OK) {
        return KVB_OK;
    }
    for (uint32_t i = 0; i < pairs; i++) {
        const char *const wanted = "cache_salt";
        kvb_span key = { 0 };
        KVB_TRY(kvb_mp_take_text(&cursor, &key));
        if (key.len == strlen(wanted) && memcmp(key.data, wanted, key.len) == 0 &&
            kvb_mp_next(&cursor) != KVB_MP_NIL) {
            struct kvb_mp_cursor value = cursor;
            KVB_TRY(kvb_mp_take_text(&value, out_salt));
        }
        KVB_TRY(kvb_mp_skip(&cursor));
    }
    return KVB_OK;
}

/* The list may be shorter or longer than the blocks: what is missing is nil, what
 * is too much belongs to no block. */
static kvb_status read_blocks(
    struct kvb_event_batch *batch, struct kvb_engine_event *event, struct kvb_mp_cursor cursor,
    uint32_t count, kvb_span salt)
{
    KVB_TRY(kvb_event_batch_reserve_extras(batch, event->hash_count));
    event->extra_at = (uint32_t)batch->extra_count;
    event->extra_count = event->hash_count;
    batch->extra_count += event->hash_count;
    for (uint32_t i = 0; i < event->hash_count; i++) {
        struct extras extras = { .batch = batch,
                                 .event = event,
                                 .block = &batch->extras[event->extra_at + i],
                                 .begins_prompt = i == 0 && !event->has_parent };
        *extras.block = (struct kvb_block_extra){ .key_at = (uint32_t)batch->key_count };
        if (i == 0 && salt.len > 0) {
            KVB_TRY(add_salt(&extras, salt)); /* named as such: 64 digits are one too */
        }
        if (i < count) {
            KVB_TRY(take_block(&extras, &cursor));
        }
    }
    return KVB_OK;
}

kvb_status kvb_engine_read_extra_keys(
    struct kvb_event_batch *batch, const struct engine_fields *fields,
    struct kvb_engine_event *event)
{
    struct kvb_mp_cursor cursor = kvb_engine_cursor_at(fields, field_extra_keys);
    kvb_span salt = { 0 };
    uint32_t count = 0;

    KVB_TRY(find_salt(fields, &salt));
    if (fields->has[field_extra_keys]) {
        KVB_TRY(kvb_mp_take_array(&cursor, &count));
    }
    if (event->hash_count == 0 || (!fields->has[field_extra_keys] && salt.len == 0)) {
        return KVB_OK;
    }
    return read_blocks(batch, event, cursor, count, salt);
}
