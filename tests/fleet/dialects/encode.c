#include "fleet/dialects/encode.h"

#include "core/own.h"
#include "fleet/dialects/source.h"
#include "wire/engine/pack.h"

#include <stdio.h>

/* ---- Fields ---- */

typedef void (*field_packer)(msgpack_packer *packer, const struct engine_source *source);

enum { hash_bytes = 32 };

/* 32 bytes, as long as a SHA-256: 24 bytes of filler, which decoders ignore, and the hash. */
static void pack_byte_hash(msgpack_packer *packer, uint64_t hash)
{
    uint8_t bytes[hash_bytes];

    for (size_t i = 0; i < hash_bytes; i++) {
        const uint64_t word = i < hash_bytes - sizeof hash ? ~hash : hash;
        bytes[i] = (uint8_t)(word >> (56 - 8 * (i % sizeof hash)));
    }
    (void)msgpack_pack_bin_with_body(packer, bytes, sizeof bytes);
}

static void pack_hash(msgpack_packer *packer, const struct engine_source *source, uint64_t hash)
{
    switch (source->dialect->hashes) {
    case KVB_HASH_BYTES:
        pack_byte_hash(packer, hash);
        break;
    case KVB_HASH_I64:
        (void)msgpack_pack_int64(packer, (int64_t)hash);
        break;
    default:
        (void)msgpack_pack_uint64(packer, hash);
    }
}

static void pack_hashes(msgpack_packer *packer, const struct engine_source *source)
{
    (void)msgpack_pack_array(packer, source->event->hash_count);
    for (uint32_t i = 0; i < source->event->hash_count; i++) {
        pack_hash(packer, source, source->batch->hashes[source->event->hash_at + i].value);
    }
}

static void pack_parent(msgpack_packer *packer, const struct engine_source *source)
{
    if (source->event->has_parent) {
        pack_hash(packer, source, source->event->parent.value);
    } else {
        (void)msgpack_pack_nil(packer);
    }
}

/* The token after token i: the next one, or at a block's end the block's lookahead token. */
static uint32_t token_behind(const struct engine_source *source, uint32_t i)
{
    const struct kvb_engine_event *event = source->event;
    const uint32_t block = i / event->block_size;

    if ((i + 1) % event->block_size == 0 && block < event->hash_count) {
        return source->batch->tokens[event->lookahead_at + block];
    }
    return i + 1 < event->token_count ? source->batch->tokens[event->token_at + i + 1] : 0;
}

/* The tokens of a sliding-window event that omits blocks.  The batch does not have them, so zeros
 * are written: one more than the blocks cover, because readers detect such an event by its extra
 * tokens. */
static void pack_unknown_tokens(msgpack_packer *packer, const struct kvb_engine_event *event)
{
    const uint32_t count = (event->hash_count * event->block_size) + 1;

    (void)msgpack_pack_array(packer, count);
    for (uint32_t i = 0; i < count; i++) {
        (void)msgpack_pack_uint32(packer, 0);
    }
}

/* SGLang with EAGLE writes pairs: the tokens a b and the lookahead token c become (a,b) (b,c). */
static void pack_tokens(msgpack_packer *packer, const struct engine_source *source)
{
    if (source->event->is_sparse) {
        pack_unknown_tokens(packer, source->event);
        return;
    }
    if (!source->event->is_paired) {
        kvb_pack_tokens(packer, source->batch, source->event);
        return;
    }
    const uint32_t count = source->event->token_count;

    (void)msgpack_pack_array(packer, count);
    for (uint32_t i = 0; i < count; i++) {
        (void)msgpack_pack_array(packer, 2);
        (void)msgpack_pack_uint32(packer, source->batch->tokens[source->event->token_at + i]);
        (void)msgpack_pack_uint32(packer, token_behind(source, i));
    }
}

static void pack_block_size(msgpack_packer *packer, const struct engine_source *source)
{
    (void)msgpack_pack_uint32(packer, source->event->block_size);
}

static void pack_nil(msgpack_packer *packer, const struct engine_source *source)
{
    (void)source;
    (void)msgpack_pack_nil(packer);
}

static void pack_medium(msgpack_packer *packer, const struct engine_source *source)
{
    kvb_pack_text(packer, source->dialect->media[source->event->tier]);
}

static void pack_lora_name(msgpack_packer *packer, const struct engine_source *source)
{
    kvb_pack_span(packer, kvb_event_batch_text(source->batch, source->event->lora_name));
}

/* A multimodal id has 64 hex digits; the key is its first 16. */
static void pack_media_id(msgpack_packer *packer, uint64_t key)
{
    char digits[65];

    (void)snprintf(digits, sizeof digits, "%016llx%048d", (unsigned long long)key, 0);
    kvb_pack_text(packer, digits);
}

/* The extra keys of one block in vLLM's order: the LoRA name, multimodal ids, the salt, and bytes
 * for what no query can match.  Only a prompt's first block has the salt; children inherit it. */
static void pack_block_extra(msgpack_packer *packer, const struct engine_source *source, uint32_t i)
{
    const struct kvb_engine_event *event = source->event;
    const struct kvb_block_extra none = { 0 };
    const struct kvb_block_extra *extra =
        event->extra_count > 0 ? &source->batch->extras[event->extra_at + i] : &none;
    const bool has_lora = event->lora_name.len > 0;
    const bool has_salt = i == 0 && !event->has_parent && event->salt.len > 0;
    const size_t items = extra->key_count + extra->unmatchable + has_lora + has_salt;

    if (items == 0) {
        (void)msgpack_pack_nil(packer);
        return;
    }
    (void)msgpack_pack_array(packer, items);
    if (has_lora) {
        pack_lora_name(packer, source);
    }
    for (uint32_t k = 0; k < extra->key_count; k++) {
        (void)msgpack_pack_array(packer, 2);
        pack_media_id(packer, source->batch->keys[extra->key_at + k]);
        (void)msgpack_pack_uint32(packer, 0);
    }
    if (has_salt) {
        kvb_pack_span(packer, kvb_event_batch_text(source->batch, event->salt));
    }
    if (extra->unmatchable) {
        (void)msgpack_pack_bin_with_body(packer, "?", 1);
    }
}

static bool has_extra_keys(const struct engine_source *source)
{
    return source->event->extra_count > 0 || source->event->salt.len > 0;
}

static void pack_extra_keys(msgpack_packer *packer, const struct engine_source *source)
{
    if (!has_extra_keys(source)) {
        (void)msgpack_pack_nil(packer);
        return;
    }
    (void)msgpack_pack_array(packer, source->event->hash_count);
    for (uint32_t i = 0; i < source->event->hash_count; i++) {
        pack_block_extra(packer, source, i);
    }
}

static bool has_group(const struct engine_source *source)
{
    return source->event->has_group;
}

static void pack_group(msgpack_packer *packer, const struct engine_source *source)
{
    if (has_group(source)) {
        (void)msgpack_pack_uint32(packer, source->event->group);
    } else {
        (void)msgpack_pack_nil(packer);
    }
}

static bool has_kind(const struct engine_source *source)
{
    return has_group(source) || source->event->group_kind != KVB_GROUP_FULL;
}

static void pack_kind(msgpack_packer *packer, const struct engine_source *source)
{
    static const char *const names[] = {
        [KVB_GROUP_FULL] = "full_attention",   [KVB_GROUP_WINDOW] = "sliding_window",
        [KVB_GROUP_OTHER] = "unknown",         [KVB_GROUP_CHUNKED] = "chunked_local_attention",
        [KVB_GROUP_CROSS] = "cross_attention", [KVB_GROUP_ENCODER] = "encoder_only_attention"
    };

    if (has_kind(source)) {
        kvb_pack_text(packer, names[source->event->group_kind]);
    } else {
        (void)msgpack_pack_nil(packer);
    }
}

static bool has_window(const struct engine_source *source)
{
    return source->event->window_tokens > 0;
}

static void pack_window(msgpack_packer *packer, const struct engine_source *source)
{
    if (has_window(source)) {
        (void)msgpack_pack_uint32(packer, source->event->window_tokens);
    } else {
        (void)msgpack_pack_nil(packer);
    }
}

/* Pairs contain the lookahead token already. */
static bool has_lookahead(const struct engine_source *source)
{
    return source->event->lookahead > 0 && !source->event->is_paired;
}

static void pack_lookahead(msgpack_packer *packer, const struct engine_source *source)
{
    const uint32_t lookahead = source->event->lookahead;
    uint32_t at = source->event->lookahead_at;

    (void)msgpack_pack_array(packer, source->event->hash_count);
    for (uint32_t i = 0; i < source->event->hash_count; i++) {
        (void)msgpack_pack_array(packer, lookahead);
        for (uint32_t k = 0; k < lookahead; k++) {
            (void)msgpack_pack_uint32(packer, source->batch->tokens[at++]);
        }
    }
}

static bool has_salt(const struct engine_source *source)
{
    return source->event->salt.len > 0;
}

static void pack_salt(msgpack_packer *packer, const struct engine_source *source)
{
    kvb_pack_span(packer, kvb_event_batch_text(source->batch, source->event->salt));
}

/* The session whose request caused the event.  Only some events with a salt have one.  It is not
 * part of a block's identity, so readers must ignore it. */
static bool has_session(const struct engine_source *source)
{
    const struct kvb_engine_event *event = source->event;

    return has_salt(source) && event->hash_count > 0 &&
           source->batch->hashes[event->hash_at].value % 2 == 1;
}

static void pack_session(msgpack_packer *packer, const struct engine_source *source)
{
    enum { sessions = 8 };
    char text[32];

    (void)snprintf(
        text, sizeof text, "session-%u",
        (unsigned)(source->batch->hashes[source->event->hash_at].value / 2 % sessions));
    kvb_pack_text(packer, text);
}

static bool has_lora_name(const struct engine_source *source)
{
    return source->event->lora_name.len > 0;
}

static bool has_extras(const struct engine_source *source)
{
    return source->event->extra_count > 0;
}

/* {"type": "mm_key", "hash": 64 digits, "start_offset": 0} for each key of each block. */
static void pack_mm_keys(msgpack_packer *packer, const struct engine_source *source)
{
    const struct kvb_event_batch *batch = source->batch;
    const struct kvb_engine_event *event = source->event;

    (void)msgpack_pack_array(packer, event->extra_count);
    for (uint32_t i = 0; i < event->extra_count; i++) {
        const struct kvb_block_extra *extra = &batch->extras[event->extra_at + i];
        (void)msgpack_pack_array(packer, extra->key_count);
        for (uint32_t k = 0; k < extra->key_count; k++) {
            (void)msgpack_pack_map(packer, 3);
            kvb_pack_text(packer, "type");
            kvb_pack_text(packer, "mm_key");
            kvb_pack_text(packer, "hash");
            pack_media_id(packer, batch->keys[extra->key_at + k]);
            kvb_pack_text(packer, "start_offset");
            (void)msgpack_pack_uint32(packer, 0);
        }
    }
}

static void pack_salt_map(msgpack_packer *packer, const struct engine_source *source)
{
    (void)msgpack_pack_map(packer, 1);
    kvb_pack_text(packer, "cache_salt");
    kvb_pack_span(packer, kvb_event_batch_text(source->batch, source->event->salt));
}

/* ---- Events ---- */

/* One field of an event; the tables below list fields in the order of the arrays.
 * needs: KVB_FIELD_* bits that the dialect must have; 0 = every dialect has the field.
 * is_sent: maps leave the field out when it returns false; NULL = always written.
 * is_tail: arrays leave it out too, because it is their last field. */
struct field {
    const char *key;
    field_packer pack;
    bool (*is_sent)(const struct engine_source *source);
    unsigned needs;
    bool is_tail;
};

/* A Cleared of one tier names its medium; a Cleared of all tiers names none. */
static bool has_medium(const struct engine_source *source)
{
    return !source->event->all_tiers;
}

/* clang-format off */
static const struct field stored_fields[] = {
    { "block_hashes",                 pack_hashes,     NULL, 0, false },
    { "parent_block_hash",            pack_parent,     NULL, KVB_FIELD_TOKENS, false },
    { "token_ids",                    pack_tokens,     NULL, KVB_FIELD_TOKENS, false },
    { "block_size",                   pack_block_size, NULL, KVB_FIELD_TOKENS, false },
    { "lora_id",                      pack_nil,        NULL, KVB_FIELD_TOKENS, false },
    { "medium",                       pack_medium,     NULL, KVB_FIELD_MEDIUM, false },
    { "lora_name",                    pack_lora_name,  NULL, KVB_FIELD_LORA_NAME, false },
    { "cache_salt",                   pack_salt_map,   has_salt, KVB_FIELD_SALT_MAP, true },
    { "cache_salt",                   pack_salt,       has_salt, KVB_FIELD_NAMESPACE, false },
    { "session_id",                   pack_session,    has_session, KVB_FIELD_NAMESPACE, false },
    { "lora_name",                    pack_lora_name,  has_lora_name, KVB_FIELD_NAMESPACE, false },
    { "extra_keys",                   pack_extra_keys, has_extra_keys, KVB_FIELD_EXTRA_KEYS, false },
    { "group_idx",                    pack_group,      has_group, KVB_FIELD_GROUP, false },
    { "kv_cache_spec_kind",           pack_kind,       has_kind, KVB_FIELD_GROUP, false },
    { "kv_cache_spec_sliding_window", pack_window,     has_window, KVB_FIELD_GROUP, false },
    { "lookahead_token_ids",          pack_lookahead,  has_lookahead, KVB_FIELD_LOOKAHEAD, false },
    { "mm_keys",                      pack_mm_keys,    has_extras, KVB_FIELD_MM_KEYS, false },
};

static const struct field removed_fields[] = {
    { "block_hashes", pack_hashes, NULL, 0, false },
    { "medium",       pack_medium, NULL, KVB_FIELD_MEDIUM, false },
    { "group_idx",    pack_group,  has_group, KVB_FIELD_GROUP, false },
};

static const struct field cleared_fields[] = {
    { "medium", pack_medium, has_medium, KVB_FIELD_CLEARED_MEDIUM, false },
};

static const struct event_form {
    const char *tag;
    const struct field *fields;
    size_t field_count;
} forms[] = {
    [KVB_EVENT_STORED] = { "BlockStored", stored_fields, KVB_COUNT_OF(stored_fields) },
    [KVB_EVENT_REMOVED] = { "BlockRemoved", removed_fields, KVB_COUNT_OF(removed_fields) },
    [KVB_EVENT_CLEARED] = { "AllBlocksCleared", cleared_fields, KVB_COUNT_OF(cleared_fields) },
};
/* clang-format on */

static bool is_field_sent(const struct field *field, const struct engine_source *source)
{
    const bool may_lack = field->is_tail || source->dialect->events == KVB_EVENTS_MAPS;
    const bool has_place = (source->dialect->fields & field->needs) == field->needs;

    return has_place && (!may_lack || !field->is_sent || field->is_sent(source));
}

/* [tag, fields...] or {"type": tag, key: field, ...} */
static void pack_vllm(msgpack_packer *packer, const struct engine_source *source)
{
    const struct event_form *form = &forms[source->event->kind];
    const bool is_map = source->dialect->events == KVB_EVENTS_MAPS;
    size_t count = 1;

    for (size_t i = 0; i < form->field_count; i++) {
        count += is_field_sent(&form->fields[i], source);
    }
    if (is_map) {
        (void)msgpack_pack_map(packer, count);
        kvb_pack_text(packer, "type");
    } else {
        (void)msgpack_pack_array(packer, count);
    }
    kvb_pack_text(packer, form->tag);
    for (size_t i = 0; i < form->field_count; i++) {
        if (!is_field_sent(&form->fields[i], source)) {
            continue;
        }
        if (is_map) {
            kvb_pack_text(packer, form->fields[i].key);
        }
        form->fields[i].pack(packer, source);
    }
}

static size_t count_one(const struct engine_source *source)
{
    (void)source;
    return 1;
}

/* clang-format off */
static const struct {
    size_t (*count)(const struct engine_source *source);
    field_packer pack;
} packers[] = {
    [KVB_EVENTS_ARRAYS] = { count_one, pack_vllm },
    [KVB_EVENTS_MAPS] = { count_one, pack_vllm },
    [KVB_EVENTS_REPLICAS] = { kvb_pack_mooncake_count, kvb_pack_mooncake_replicas },
    [KVB_EVENTS_OBJECTS] = { kvb_pack_mooncake_count, kvb_pack_mooncake_objects },
};
/* clang-format on */

/* ---- The batch ---- */

uint64_t kvb_pack_milliseconds(const struct kvb_event_batch *batch)
{
    const double max_s = 1e15; /* beyond any clock; in ms it still fits 64 bits */

    return batch->timestamp_s > 0 && batch->timestamp_s < max_s
               ? (uint64_t)(batch->timestamp_s * 1000)
               : 0;
}

static void pack_time(msgpack_packer *packer, const struct engine_source *source)
{
    if (source->dialect->has_integer_time) {
        (void)msgpack_pack_uint64(packer, kvb_pack_milliseconds(source->batch));
    } else {
        (void)msgpack_pack_double(packer, source->batch->timestamp_s);
    }
}

static void pack_rank(msgpack_packer *packer, const struct kvb_event_batch *batch)
{
    if (batch->has_rank) {
        (void)msgpack_pack_uint32(packer, batch->rank);
    } else {
        (void)msgpack_pack_nil(packer);
    }
}

static void pack_events(msgpack_packer *packer, struct engine_source *source)
{
    const struct kvb_event_batch *batch = source->batch;
    const enum kvb_event_form form = source->dialect->events;
    size_t count = 0;

    for (size_t i = 0; i < batch->event_count; i++) {
        source->event = &batch->events[i];
        count += source->event->kind == KVB_EVENT_SKIPPED ? 0 : packers[form].count(source);
    }
    (void)msgpack_pack_array(packer, count);
    for (size_t i = 0; i < batch->event_count; i++) {
        source->event = &batch->events[i];
        if (source->event->kind != KVB_EVENT_SKIPPED) {
            packers[form].pack(packer, source);
        }
    }
}

kvb_status kvb_engine_batch_encode(
    const struct kvb_event_batch *batch, enum kvb_dialect dialect, struct kvb_buf *out)
{
    struct kvb_pack_sink sink = { .out = out };
    struct engine_source source = { .dialect = kvb_dialect_row_of(dialect), .batch = batch };
    const size_t len_before = out->len;
    msgpack_packer packer;

    kvb_pack_begin(&packer, &sink);
    (void)msgpack_pack_array(&packer, source.dialect->has_rank ? 3 : 2);
    pack_time(&packer, &source);
    pack_events(&packer, &source);
    if (source.dialect->has_rank) {
        pack_rank(&packer, batch);
    }
    if (sink.status != KVB_OK) {
        out->len = len_before;
    }
    return sink.status;
}
