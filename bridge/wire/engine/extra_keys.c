#include "wire/engine/fields.h"

#include "core/hash.h"
#include "core/limits.h"

#include <ctype.h>
#include <string.h>

/* Reads what identifies a block besides its tokens.
 *
 * vLLM: extra_keys, one entry per block: nil, or [item...], the items in this order:
 *
 *     "text"        the LoRA name again, always first; only if the event has a lora_name
 *     [id, offset]  a multimodal input
 *     "text"        the salt, only in the prompt's first block; children inherit it.  It may be
 *                   any text, even one of 64 hexadecimal digits
 *     bytes         prompt embeddings, which no query can repeat
 *
 * A text in any other position cannot be part of a query: the block is unmatchable.
 *
 * The first versions with extra_keys (vLLM #33304, January 2026, to #36708, March 2026) wrote a
 * multimodal id as a bare text.  They are older than group_idx (#37688), so an array without an
 * element for group_idx may come from them (fields->has_bare_ids).  In such an array a text of 64
 * hexadecimal digits is an id.  Any other text is the salt in the prompt's first block, and an id
 * in the other blocks.  Once the engine has written a pair [id, offset], it is none of these
 * versions.  The limitation: before that, a salt of 64 hexadecimal digits is not recognised
 * (event->is_salt_unsure), and with these versions an id chosen by the user (a uuid) in a prompt's
 * first block is not.
 *
 * SGLang: cache_salt in every event, also for children; before September 2026 a map {"cache_salt":
 * "text"} in place of the LoRA name.  session_id is not part of the identity and is not read.
 *
 * TensorRT-LLM: mm_keys, one list per block, of {"type": "mm_key", "hash": digits,
 * "start_offset": n, "uuid": text}: hash and offset identify the input, uuid does not.
 *
 * An id becomes a key of 64 bits: the first 16 of 64 hexadecimal digits, else the hash of the
 * text.  A TensorRT-LLM id whose offset is not 0 becomes kvb_hash64() of key and offset, two
 * consecutive u64, with seed 0. */

enum { digits_in_id = 64, digits_in_key = 16 };

struct extras {
    struct kvb_event_batch *batch;
    const struct engine_fields *fields;
    struct kvb_engine_event *event;
    struct kvb_block_extra *block; /* the one being read */
    bool begins_prompt;  /* only such a block has a salt; a block with a parent inherits it */
    bool has_named_salt; /* from cache_salt */
};

static bool has_bare_ids(const struct extras *extras)
{
    return extras->fields->has_bare_ids && !extras->batch->habits.has_pairs;
}

static bool is_hex_id(kvb_span text)
{
    for (size_t i = 0; i < text.len; i++) {
        if (!isxdigit(text.data[i])) {
            return false;
        }
    }
    return text.len == digits_in_id;
}

static uint64_t key_of_id(kvb_span id)
{
    uint64_t key = 0;

    if (!is_hex_id(id)) {
        return kvb_hash64(id, 0);
    }
    (void)kvb_engine_hash_of_hex((kvb_span){ id.data, digits_in_key }, &key);
    return key;
}

static uint64_t key_at_offset(uint64_t key, uint64_t offset)
{
    const uint64_t pair[] = { key, offset };

    return offset == 0 ? key : kvb_hash64((kvb_span){ (const uint8_t *)pair, sizeof pair }, 0);
}

/* The keys of a block are contiguous, from its first key on. */
static kvb_status add_key(struct extras *extras, uint64_t key)
{
    struct kvb_event_batch *batch = extras->batch;

    if (extras->block->key_count == kvb_max_block_keys) {
        extras->block->unmatchable = true;
        return KVB_OK;
    }
    KVB_TRY(kvb_event_batch_reserve_keys(batch, 1));
    batch->keys[batch->key_count++] = key;
    extras->block->key_count++;
    return KVB_OK;
}

static bool is_equal(kvb_span a, kvb_span b)
{
    return a.len == b.len && (a.len == 0 || memcmp(a.data, b.data, a.len) == 0);
}

/* Recognised by its position and the event's lora_name, not by its content: a salt may have the
 * same text. */
static bool is_lora_name(const struct extras *extras, kvb_span text, uint32_t item)
{
    const kvb_span name = kvb_event_batch_text(extras->batch, extras->event->lora_name);

    return item == 0 && extras->fields->has[field_lora_name] && is_equal(name, text);
}

static bool is_salt(const struct extras *extras, kvb_span text)
{
    return is_equal(kvb_event_batch_text(extras->batch, extras->event->salt), text);
}

static kvb_status
add_salt(struct kvb_event_batch *batch, kvb_span salt, struct kvb_engine_event *event)
{
    const struct kvb_text_ref none = { 0 };
    const struct kvb_text_ref known =
        batch->event_count > 0 ? batch->events[batch->event_count - 1].salt : none;

    return kvb_engine_add_text(batch, salt, known, &event->salt);
}

/* Takes the salt from a prompt's first block. */
static kvb_status take_salt(struct extras *extras, kvb_span text)
{
    /* Salt or id? Of an engine that never wrote a pair, both look like this. */
    if (has_bare_ids(extras) && is_hex_id(text)) {
        extras->event->is_salt_unsure = true;
        return add_key(extras, key_of_id(text));
    }
    if (extras->has_named_salt) {
        return KVB_BAD_INPUT; /* it differs from cache_salt */
    }
    /* no query can contain a salt of this length */
    if (extras->event->salt.len > 0 || text.len > kvb_max_string_bytes) {
        extras->block->unmatchable = true;
        return KVB_OK;
    }
    return add_salt(extras->batch, text, extras->event);
}

static kvb_status take_text_item(struct extras *extras, kvb_span text, uint32_t item)
{
    if (is_lora_name(extras, text, item) || (extras->has_named_salt && is_salt(extras, text))) {
        return KVB_OK; /* part of the event already */
    }
    if (extras->begins_prompt) {
        return take_salt(extras, text);
    }
    /* Behind the first block there is no salt, so the versions with bare ids mean one. */
    if (has_bare_ids(extras)) {
        return add_key(extras, key_of_id(text));
    }
    extras->block->unmatchable = true;
    return KVB_OK;
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
        KVB_TRY(add_key(extras, key_of_id(id)));
        members--;
    }
    /* The offset in the prompt is not used: the tokens before it say where it is. */
    for (uint32_t i = 0; i < members; i++) {
        KVB_TRY(kvb_mp_skip(cursor));
    }
    return KVB_OK;
}

static kvb_status take_item(struct extras *extras, struct kvb_mp_cursor *cursor, uint32_t item)
{
    kvb_span text = { 0 };

    switch (kvb_mp_next(cursor)) {
    case KVB_MP_TEXT:
        KVB_TRY(kvb_mp_take_text(cursor, &text));
        return take_text_item(extras, text, item);
    case KVB_MP_ARRAY:
        return take_pair_item(extras, cursor);
    case KVB_MP_NIL:
        return kvb_mp_skip(cursor);
    default:
        /* Bytes of an embedding, or what a later version adds: no query can say it. */
        extras->block->unmatchable = true;
        return kvb_mp_skip(cursor);
    }
}

static kvb_status take_extra_keys(struct extras *extras, struct kvb_mp_cursor *cursor)
{
    uint32_t items = 0;

    if (kvb_mp_take_nil(cursor)) {
        return KVB_OK;
    }
    KVB_TRY(kvb_mp_take_array(cursor, &items));
    for (uint32_t item = 0; item < items; item++) {
        KVB_TRY(take_item(extras, cursor, item));
    }
    return KVB_OK;
}

/* Looks for a pair among the keys, before they are read: the salt may stand before it. */
static kvb_status find_pair(struct kvb_event_batch *batch, struct kvb_mp_cursor cursor)
{
    uint32_t count = 0;
    uint32_t items = 0;

    KVB_TRY(kvb_mp_take_array(&cursor, &count));
    for (uint32_t i = 0; i < count && !batch->habits.has_pairs; i++) {
        if (kvb_mp_next(&cursor) == KVB_MP_ARRAY) {
            KVB_TRY(kvb_mp_take_array(&cursor, &items));
        } else {
            items = 1;
        }
        for (; items > 0; items--) {
            batch->habits.has_pairs |= kvb_mp_next(&cursor) == KVB_MP_ARRAY;
            KVB_TRY(kvb_mp_skip(&cursor));
        }
    }
    return KVB_OK;
}

/* ---- mm_keys ---- */

/* {"type": "mm_key", "hash": digits, "start_offset": n, ...}; no query can contain a key of
 * another type. */
static kvb_status take_mm_key(struct extras *extras, struct kvb_mp_cursor *cursor)
{
    uint64_t offset = 0;
    kvb_span hash = { 0 };
    kvb_span type = { 0 };
    uint32_t pairs = 0;

    KVB_TRY(kvb_mp_take_map(cursor, &pairs));
    for (uint32_t i = 0; i < pairs; i++) {
        kvb_span key = { 0 };
        KVB_TRY(kvb_mp_take_text(cursor, &key));
        if (kvb_span_is(key, "hash")) {
            KVB_TRY(kvb_mp_take_text(cursor, &hash));
        } else if (kvb_span_is(key, "type")) {
            KVB_TRY(kvb_mp_take_text(cursor, &type));
        } else if (kvb_span_is(key, "start_offset")) {
            KVB_TRY(kvb_mp_take_u64(cursor, &offset));
        } else {
            KVB_TRY(kvb_mp_skip(cursor));
        }
    }
    if (type.len > 0 && !kvb_span_is(type, "mm_key")) {
        extras->block->unmatchable = true;
        return KVB_OK;
    }
    return hash.len > 0 ? add_key(extras, key_at_offset(key_of_id(hash), offset)) : KVB_BAD_INPUT;
}

static kvb_status take_mm_keys(struct extras *extras, struct kvb_mp_cursor *cursor)
{
    uint32_t items = 0;

    if (kvb_mp_take_nil(cursor)) {
        return KVB_OK;
    }
    KVB_TRY(kvb_mp_take_array(cursor, &items));
    for (uint32_t i = 0; i < items; i++) {
        KVB_TRY(take_mm_key(extras, cursor));
    }
    return KVB_OK;
}

/* ---- One list for each block ---- */

typedef kvb_status (*block_taker)(struct extras *extras, struct kvb_mp_cursor *cursor);

/* The list may be shorter or longer than the list of blocks: missing entries are nil, extra
 * entries are ignored. */
static kvb_status read_extra_blocks(
    struct kvb_event_batch *batch, const struct engine_fields *fields,
    struct kvb_engine_event *event, enum engine_field field, block_taker take)
{
    struct kvb_mp_cursor cursor = kvb_engine_cursor_at(fields, field);
    const bool has_named_salt = event->salt.len > 0;
    uint32_t count = 0;

    if (!fields->has[field]) {
        return KVB_OK;
    }
    KVB_TRY(kvb_mp_take_array(&cursor, &count));
    KVB_TRY(kvb_engine_need_extras(batch, event));
    for (uint32_t i = 0; i < event->hash_count && i < count; i++) {
        struct extras extras = { .batch = batch,
                                 .fields = fields,
                                 .event = event,
                                 .block = &batch->extras[event->extra_at + i],
                                 .begins_prompt = i == 0 && !event->has_parent,
                                 .has_named_salt = has_named_salt };
        /* Keys of another list may stand here already. */
        if (extras.block->key_count == 0) {
            extras.block->key_at = (uint32_t)batch->key_count;
        }
        KVB_TRY(take(&extras, &cursor));
    }
    return KVB_OK;
}

kvb_status kvb_engine_read_extra_keys(
    struct kvb_event_batch *batch, const struct engine_fields *fields,
    struct kvb_engine_event *event)
{
    if (fields->has_bare_ids && !batch->habits.has_pairs) {
        KVB_TRY(find_pair(batch, kvb_engine_cursor_at(fields, field_extra_keys)));
    }
    return read_extra_blocks(batch, fields, event, field_extra_keys, take_extra_keys);
}

/* No engine sends both extra_keys and mm_keys: the keys of a block would not be contiguous. */
kvb_status kvb_engine_read_mm_keys(
    struct kvb_event_batch *batch, const struct engine_fields *fields,
    struct kvb_engine_event *event)
{
    return fields->has[field_mm_keys] && fields->has[field_extra_keys]
               ? KVB_BAD_INPUT
               : read_extra_blocks(batch, fields, event, field_mm_keys, take_mm_keys);
}

/* ---- Salts by name ---- */

/* Finds {"cache_salt": text}; *out_salt stays empty when there is none. */
static kvb_status find_salt_in_map(const struct engine_fields *fields, kvb_span *out_salt)
{
    struct kvb_mp_cursor cursor = kvb_engine_cursor_at(fields, field_lora_name);
    uint32_t pairs = 0;

    if (!fields->has[field_lora_name] || kvb_mp_take_map(&cursor, &pairs) != KVB_OK) {
        return KVB_OK;
    }
    for (uint32_t i = 0; i < pairs; i++) {
        kvb_span key = { 0 };
        KVB_TRY(kvb_mp_take_text(&cursor, &key));
        if (kvb_span_is(key, "cache_salt") && kvb_mp_next(&cursor) != KVB_MP_NIL) {
            struct kvb_mp_cursor value = cursor;
            KVB_TRY(kvb_mp_take_text(&value, out_salt));
        }
        KVB_TRY(kvb_mp_skip(&cursor));
    }
    return KVB_OK;
}

kvb_status kvb_engine_read_salt(
    struct kvb_event_batch *batch, const struct engine_fields *fields,
    struct kvb_engine_event *event)
{
    struct kvb_mp_cursor cursor = kvb_engine_cursor_at(fields, field_cache_salt);
    kvb_span salt = { 0 };
    kvb_span mapped = { 0 };

    if (fields->has[field_cache_salt]) {
        KVB_TRY(kvb_mp_take_text(&cursor, &salt));
    }
    KVB_TRY(find_salt_in_map(fields, &mapped));
    /* Both forms in one event are no harm as long as they agree. */
    if (salt.len > 0 && mapped.len > 0 && !is_equal(salt, mapped)) {
        return KVB_BAD_INPUT;
    }
    salt = salt.len > 0 ? salt : mapped;
    if (salt.len > kvb_max_string_bytes) {
        event->skip = KVB_SKIP_UNMATCHABLE; /* no query can contain a salt of this length */
        return KVB_OK;
    }
    return add_salt(batch, salt, event);
}
