#include "wire/engine_encode.h"

#include "core/limits.h"

#include <msgpack.h>
#include <stdio.h>
#include <string.h>

/* ---- Packing into a kvb_buf ---- */

struct sink {
    struct kvb_buf *out;
    kvb_status status; /* the first failure; msgpack-c itself has none */
};

static int write_bytes(void *data, const char *bytes, size_t len)
{
    struct sink *sink = data;

    if (sink->status == KVB_OK) {
        sink->status = kvb_buf_append(sink->out, bytes, len);
    }
    return sink->status == KVB_OK ? 0 : -1;
}

static void pack_text(msgpack_packer *packer, const char *text)
{
    (void)msgpack_pack_str_with_body(packer, text, strlen(text)); /* the sink keeps failures */
}

static void pack_span(msgpack_packer *packer, kvb_span text)
{
    if (text.len == 0) {
        (void)msgpack_pack_nil(packer);
    } else {
        (void)msgpack_pack_str_with_body(packer, text.data, text.len);
    }
}

/* ---- Fields ---- */

/* One event on its way out. */
struct source {
    const struct kvb_event_batch *batch;
    const struct kvb_engine_event *event;
};

typedef void (*field_packer)(msgpack_packer *packer, const struct source *source);

static void pack_hashes(msgpack_packer *packer, const struct source *source)
{
    (void)msgpack_pack_array(packer, source->event->hash_count);
    for (uint32_t i = 0; i < source->event->hash_count; i++) {
        (void)msgpack_pack_uint64(packer, source->batch->hashes[source->event->hash_at + i].value);
    }
}

static void pack_parent(msgpack_packer *packer, const struct source *source)
{
    if (source->event->has_parent) {
        (void)msgpack_pack_uint64(packer, source->event->parent.value);
    } else {
        (void)msgpack_pack_nil(packer);
    }
}

/* EAGLE: a b c d is (a,b) (b,c) (c,d). */
static void pack_tokens(msgpack_packer *packer, const struct source *source)
{
    const bool is_eagle = source->event->is_eagle;
    const uint32_t count = source->event->token_count - (is_eagle ? 1 : 0);
    /* of a batch without tokens the array is NULL: nothing may be added to it */
    const uint32_t *tokens = count > 0 ? source->batch->tokens + source->event->token_at : NULL;

    (void)msgpack_pack_array(packer, count);
    for (uint32_t i = 0; i < count; i++) {
        if (is_eagle) {
            (void)msgpack_pack_array(packer, 2);
        }
        (void)msgpack_pack_uint32(packer, tokens[i]);
        if (is_eagle) {
            (void)msgpack_pack_uint32(packer, tokens[i + 1]);
        }
    }
}

static void pack_block_size(msgpack_packer *packer, const struct source *source)
{
    (void)msgpack_pack_uint32(packer, source->event->block_size);
}

static void pack_nil(msgpack_packer *packer, const struct source *source)
{
    (void)source;
    (void)msgpack_pack_nil(packer);
}

static void pack_medium(msgpack_packer *packer, const struct source *source)
{
    static const char *const media[KVB_TIER_COUNT] = {
        [KVB_TIER_DEVICE] = "GPU",
        [KVB_TIER_HOST] = "CPU",
        [KVB_TIER_DISK] = "DISK",
        [KVB_TIER_EXTERNAL] = "EXTERNAL",
    };
    pack_text(packer, media[source->event->tier]);
}

static void pack_lora_name(msgpack_packer *packer, const struct source *source)
{
    pack_span(packer, kvb_event_batch_text(source->batch, source->event->lora_name));
}

/* As vLLM writes it: the LoRA name, then the salt in a prompt's first block (a child
 * inherits it); a multimodal key as the 64 digits whose first 16 it is; what cannot be matched as
 * bytes. */
static void pack_block_extra(msgpack_packer *packer, const struct source *source, uint32_t i)
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
    if (has_salt) {
        pack_span(packer, kvb_event_batch_text(source->batch, event->salt));
    }
    for (uint32_t k = 0; k < extra->key_count; k++) {
        char digits[65];
        (void)snprintf(
            digits, sizeof digits, "%016llx%048d",
            (unsigned long long)source->batch->keys[extra->key_at + k], 0);
        (void)msgpack_pack_array(packer, 2);
        pack_text(packer, digits);
        (void)msgpack_pack_uint32(packer, 0);
    }
    if (extra->unmatchable) {
        (void)msgpack_pack_bin_with_body(packer, "?", 1);
    }
}

static bool has_extra_keys(const struct source *source)
{
    return source->event->extra_count > 0 || source->event->salt.len > 0;
}

static void pack_extra_keys(msgpack_packer *packer, const struct source *source)
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

static bool has_group(const struct source *source)
{
    return source->event->has_group;
}

static void pack_group(msgpack_packer *packer, const struct source *source)
{
    if (has_group(source)) {
        (void)msgpack_pack_uint32(packer, source->event->group);
    } else {
        (void)msgpack_pack_nil(packer);
    }
}

static void pack_kind(msgpack_packer *packer, const struct source *source)
{
    if (has_group(source)) {
        pack_text(packer, "full_attention");
    } else {
        (void)msgpack_pack_nil(packer);
    }
}

/* ---- Events, by dialect ---- */

/* In the order of the arrays.  `since`: the first dialect whose arrays have it.
 * is_sent: maps leave the field out when it says no; NULL = always there. */
struct field {
    const char *key;
    field_packer pack;
    enum kvb_dialect since;
    bool (*is_sent)(const struct source *source);
};

/* A Cleared of one tier; of all tiers it names none. */
static bool has_medium(const struct source *source)
{
    return !source->event->all_tiers;
}

static bool never(const struct source *source)
{
    (void)source;
    return false;
}

/* clang-format off */
static const struct field stored_fields[] = {
    { "block_hashes",                   pack_hashes,     KVB_DIALECT_VLLM_0_11, NULL },
    { "parent_block_hash",              pack_parent,     KVB_DIALECT_VLLM_0_11, NULL },
    { "token_ids",                      pack_tokens,     KVB_DIALECT_VLLM_0_11, NULL },
    { "block_size",                     pack_block_size, KVB_DIALECT_VLLM_0_11, NULL },
    { "lora_id",                        pack_nil,        KVB_DIALECT_VLLM_0_11, NULL },
    { "medium",                         pack_medium,     KVB_DIALECT_VLLM_0_11, NULL },
    { "lora_name",                      pack_lora_name,  KVB_DIALECT_VLLM_0_22, NULL },
    { "extra_keys",                     pack_extra_keys, KVB_DIALECT_VLLM_0_22, has_extra_keys },
    { "group_idx",                      pack_group,      KVB_DIALECT_VLLM_0_22, has_group },
    { "kv_cache_spec_kind",             pack_kind,       KVB_DIALECT_VLLM_0_22, has_group },
    { "kv_cache_spec_sliding_window",   pack_nil,        KVB_DIALECT_VLLM_0_22, never },
};

static const struct field removed_fields[] = {
    { "block_hashes", pack_hashes, KVB_DIALECT_VLLM_0_11, NULL },
    { "medium",       pack_medium, KVB_DIALECT_VLLM_0_11, NULL },
    { "group_idx",    pack_group,  KVB_DIALECT_VLLM_0_22, has_group },
};

static const struct field cleared_fields[] = {
    { "medium", pack_medium, KVB_DIALECT_VLLM_0_31, has_medium },
};

static const struct event_form {
    const char *tag;
    const struct field *fields;
    size_t field_count;
} forms[] = {
    [KVB_EVENT_STORED] = { "BlockStored", stored_fields, sizeof stored_fields / sizeof stored_fields[0] },
    [KVB_EVENT_REMOVED] = { "BlockRemoved", removed_fields, sizeof removed_fields / sizeof removed_fields[0] },
    [KVB_EVENT_CLEARED] = { "AllBlocksCleared", cleared_fields, sizeof cleared_fields / sizeof cleared_fields[0] },
};
/* clang-format on */

static void pack_as_array(
    msgpack_packer *packer, const struct event_form *form, enum kvb_dialect dialect,
    const struct source *source)
{
    size_t count = 0;

    while (count < form->field_count && form->fields[count].since <= dialect) {
        count++; /* later fields stand behind earlier ones */
    }
    (void)msgpack_pack_array(packer, count + 1);
    pack_text(packer, form->tag);
    for (size_t i = 0; i < count; i++) {
        form->fields[i].pack(packer, source);
    }
}

static bool is_sent(const struct field *field, const struct source *source)
{
    return !field->is_sent || field->is_sent(source);
}

static void
pack_as_map(msgpack_packer *packer, const struct event_form *form, const struct source *source)
{
    size_t count = 0;

    for (size_t i = 0; i < form->field_count; i++) {
        count += is_sent(&form->fields[i], source);
    }
    (void)msgpack_pack_map(packer, count + 1);
    pack_text(packer, "type");
    pack_text(packer, form->tag);
    for (size_t i = 0; i < form->field_count; i++) {
        if (is_sent(&form->fields[i], source)) {
            pack_text(packer, form->fields[i].key);
            form->fields[i].pack(packer, source);
        }
    }
}

static void
pack_event(msgpack_packer *packer, enum kvb_dialect dialect, const struct source *source)
{
    const struct event_form *form = &forms[source->event->kind];

    if (dialect == KVB_DIALECT_VLLM_0_31) {
        pack_as_map(packer, form, source);
    } else {
        pack_as_array(packer, form, dialect, source);
    }
}

static size_t events_to_write(const struct kvb_event_batch *batch)
{
    size_t count = 0;

    for (size_t i = 0; i < batch->event_count; i++) {
        count += batch->events[i].kind != KVB_EVENT_SKIPPED;
    }
    return count;
}

kvb_status kvb_engine_batch_encode(
    const struct kvb_event_batch *batch, enum kvb_dialect dialect, struct kvb_buf *out)
{
    struct sink sink = { .out = out, .status = KVB_OK };
    const size_t len_before = out->len;
    msgpack_packer packer;

    msgpack_packer_init(&packer, &sink, write_bytes);
    (void)msgpack_pack_array(&packer, 3);
    (void)msgpack_pack_double(&packer, batch->timestamp_s);
    (void)msgpack_pack_array(&packer, events_to_write(batch));
    for (size_t i = 0; i < batch->event_count; i++) {
        if (batch->events[i].kind != KVB_EVENT_SKIPPED) {
            pack_event(
                &packer, dialect, &(struct source){ .batch = batch, .event = &batch->events[i] });
        }
    }
    if (batch->has_rank) {
        (void)msgpack_pack_uint32(&packer, batch->rank);
    } else {
        (void)msgpack_pack_nil(&packer);
    }
    if (sink.status != KVB_OK) {
        out->len = len_before;
    }
    return sink.status;
}

/* ---- Names ---- */

const char *kvb_dialect_name(enum kvb_dialect dialect)
{
    static const char *const names[KVB_DIALECT_COUNT] = {
        [KVB_DIALECT_VLLM_0_11] = "vllm-0.11",
        [KVB_DIALECT_VLLM_0_22] = "vllm-0.22",
        [KVB_DIALECT_VLLM_0_31] = "vllm-0.31",
    };
    return (unsigned)dialect < KVB_DIALECT_COUNT ? names[dialect] : "unknown";
}

kvb_status kvb_dialect_find(const char *name, enum kvb_dialect *out_dialect)
{
    for (int dialect = 0; dialect < KVB_DIALECT_COUNT; dialect++) {
        if (strcmp(name, kvb_dialect_name((enum kvb_dialect)dialect)) == 0) {
            *out_dialect = (enum kvb_dialect)dialect;
            return KVB_OK;
        }
    }
    return KVB_NOT_FOUND;
}
