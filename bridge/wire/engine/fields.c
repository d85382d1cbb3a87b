#include "wire/engine/fields.h"

#include "core/limits.h"

#include <ctype.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

void kvb_engine_fields_begin(struct engine_fields *fields, const uint8_t *end)
{
    memset(
        fields, 0, offsetof(struct engine_fields, at)); /* `at` stays undefined for absent fields */
    fields->end = end;
}

/* ---- Hashes ---- */

/* Uses the last 8 bytes, big-endian, of SHA-256 and similar hashes. */
static kvb_status take_byte_hash(struct kvb_mp_cursor *cursor, uint64_t *out_hash)
{
    kvb_span bytes = { 0 };
    uint64_t hash = 0;

    KVB_TRY(kvb_mp_take_bytes(cursor, &bytes));
    if (bytes.len < sizeof hash) {
        return KVB_BAD_INPUT;
    }
    for (size_t i = bytes.len - sizeof hash; i < bytes.len; i++) {
        hash = hash << 8 | bytes.data[i];
    }
    *out_hash = hash;
    return KVB_OK;
}

kvb_status kvb_engine_hash_of_hex(kvb_span digits, uint64_t *out_hash)
{
    uint64_t hash = 0;

    for (size_t i = 0; i < digits.len; i++) {
        const int digit = tolower(digits.data[i]);
        if (!isxdigit(digit)) {
            return KVB_BAD_INPUT;
        }
        hash = hash << 4 | (uint64_t)(isdigit(digit) ? digit - '0' : digit - 'a' + 10);
    }
    *out_hash = hash;
    return digits.len > 0 ? KVB_OK : KVB_BAD_INPUT;
}

static kvb_status hash_of_decimal(kvb_span digits, uint64_t *out_hash)
{
    uint64_t hash = 0;

    for (size_t i = 0; i < digits.len; i++) {
        if (!isdigit(digits.data[i]) || __builtin_mul_overflow(hash, 10, &hash) ||
            __builtin_add_overflow(hash, (uint64_t)(digits.data[i] - '0'), &hash)) {
            return KVB_BAD_INPUT;
        }
    }
    *out_hash = hash;
    return digits.len > 0 ? KVB_OK : KVB_BAD_INPUT;
}

kvb_status kvb_engine_hash_of_digits(kvb_span text, uint64_t *out_hash)
{
    const bool is_hex = text.len > 2 && text.data[0] == '0' && tolower(text.data[1]) == 'x';

    return is_hex ? kvb_engine_hash_of_hex((kvb_span){ text.data + 2, text.len - 2 }, out_hash)
                  : hash_of_decimal(text, out_hash);
}

[[gnu::hot]] kvb_status kvb_engine_take_hash(struct kvb_mp_cursor *cursor, uint64_t *out_hash)
{
    kvb_span text = { 0 };

    switch (kvb_mp_next(cursor)) {
    case KVB_MP_BYTES:
        return take_byte_hash(cursor, out_hash);
    case KVB_MP_TEXT:
        KVB_TRY(kvb_mp_take_text(cursor, &text));
        return kvb_engine_hash_of_digits(text, out_hash);
    default:
        return kvb_mp_take_bits(cursor, out_hash);
    }
}

/* ---- Finding ---- */

/* Takes an array header whose count does not exceed the bytes left. */
static bool take_backed_count(struct kvb_mp_cursor *cursor, uint32_t *out_count)
{
    return kvb_mp_take_array(cursor, out_count) == KVB_OK &&
           *out_count <= (size_t)(cursor->end - cursor->at);
}

/* These functions return false for a list in another form, and for a list that does not fit the
 * batch.  The reader of the field then finds the cause.  On false the cursor may be anywhere in the
 * list. */
static bool read_hash_list(
    struct kvb_event_batch *batch, struct engine_list *list, struct kvb_mp_cursor *cursor)
{
    if (!take_backed_count(cursor, &list->count) ||
        kvb_event_batch_reserve_hashes(batch, list->count) != KVB_OK) {
        return false;
    }
    kvb_engine_hash *hashes = batch->hashes + batch->hash_count;
    bool is_read = true;
    bool has_signed = false;
    bool has_zero = false;

    for (uint32_t i = 0; i < list->count && is_read; i++) {
        /* A signed integer is an engine's choice for all its hashes, and republishing keeps it.  A
         * hash is large, so no shorter form matters. */
        has_signed |= cursor->at < cursor->end && *cursor->at == kvb_mp_code_int64;
        /* The usual form first. */
        is_read = kvb_mp_take_word(cursor, &hashes[i].value) ||
                  kvb_engine_take_hash(cursor, &hashes[i].value) == KVB_OK;
        has_zero |= is_read && hashes[i].value == 0;
    }
    batch->has_signed_hashes |= has_signed;
    batch->habits.has_zero_hash |= has_zero;
    return is_read;
}

static bool read_token_list(
    struct kvb_event_batch *batch, struct engine_list *list, struct kvb_mp_cursor *cursor)
{
    if (!take_backed_count(cursor, &list->count) ||
        kvb_event_batch_reserve_tokens(batch, list->count) != KVB_OK) {
        return false;
    }
    return list->count == 0 /* the array may be NULL then */ ||
           kvb_mp_take_u32s(cursor, list->count, batch->tokens + batch->token_count) == KVB_OK;
}

static bool read_list_field(
    struct kvb_event_batch *batch, struct engine_fields *fields, enum engine_field field,
    struct kvb_mp_cursor *cursor)
{
    switch (field) {
    case field_block_hashes:
        return fields->hashes.is_read = read_hash_list(batch, &fields->hashes, cursor);
    case field_token_ids:
        return fields->tokens.is_read = read_token_list(batch, &fields->tokens, cursor);
    default:
        return false;
    }
}

[[gnu::hot]] kvb_status kvb_engine_find_field(
    struct kvb_event_batch *batch, struct engine_fields *fields, enum engine_field field,
    struct kvb_mp_cursor *cursor, unsigned max_depth)
{
    fields->at[field] = cursor->at;
    fields->has[field] = !kvb_mp_take_nil(cursor);
    if (!fields->has[field] || read_list_field(batch, fields, field, cursor)) {
        return KVB_OK;
    }
    /* Another form: its reader finds out what it is, later. */
    cursor->at = fields->at[field];
    return kvb_mp_skip_within(cursor, max_depth);
}

/* ---- Reading ---- */

[[gnu::hot]] kvb_status kvb_engine_read_hashes(
    struct kvb_event_batch *batch, const struct engine_fields *fields,
    struct kvb_engine_event *event)
{
    const bool has_block_hashes = fields->has[field_block_hashes];
    struct kvb_mp_cursor cursor =
        kvb_engine_cursor_at(fields, has_block_hashes ? field_block_hashes : field_seq_hashes);
    uint32_t count = 0;

    if (!has_block_hashes && !fields->has[field_seq_hashes]) {
        return KVB_BAD_INPUT;
    }
    event->hash_at = (uint32_t)batch->hash_count;
    /* Counting them accepts what was read when the field was located. */
    if (has_block_hashes && fields->hashes.is_read) {
        event->hash_count = fields->hashes.count;
        batch->hash_count += event->hash_count;
        return KVB_OK;
    }
    /* The rare forms, and the lists that failed: read again, now for their status. */
    KVB_TRY(kvb_mp_take_array(&cursor, &count));
    KVB_TRY(kvb_event_batch_reserve_hashes(batch, count));
    event->hash_count = count;
    for (uint32_t i = 0; i < count; i++) {
        uint64_t *hash = &batch->hashes[batch->hash_count++].value;
        KVB_TRY(kvb_engine_take_hash(&cursor, hash));
        batch->habits.has_zero_hash |= *hash == 0;
    }
    return KVB_OK;
}

kvb_status kvb_engine_read_parent(
    const struct kvb_event_batch *batch, const struct engine_fields *fields,
    struct kvb_engine_event *event)
{
    const bool is_new = !fields->has[field_parent_block_hash] && fields->has[field_parent_hash];
    const enum engine_field field = is_new ? field_parent_hash : field_parent_block_hash;
    struct kvb_mp_cursor cursor = kvb_engine_cursor_at(fields, field);

    if (!fields->has[field]) {
        return KVB_OK;
    }
    KVB_TRY(kvb_engine_take_hash(&cursor, &event->parent.value));
    /* publishers of the llm-d family write 0 for no parent; a chance hash of 64 bits is never 0,
     * but an engine may count its blocks from 0 */
    event->has_parent =
        event->parent.value != 0 || (batch->habits.has_zero_hash && event->token_count > 0);
    return KVB_OK;
}

/* ---- Texts, extras ---- */

kvb_status kvb_engine_add_text(
    struct kvb_event_batch *batch, kvb_span text, struct kvb_text_ref known,
    struct kvb_text_ref *out_ref)
{
    if (text.len == 0) {
        *out_ref = (struct kvb_text_ref){ 0 };
        return KVB_OK;
    }
    const bool has_room = text.len <= kvb_max_batch_text_bytes - batch->text_len;
    const kvb_span before = kvb_event_batch_text(batch, known);

    /* A batch of one adapter names it in each event. */
    if (before.len == text.len && memcmp(before.data, text.data, text.len) == 0) {
        *out_ref = known;
        return KVB_OK;
    }
    /* checked here, because KVB_TOO_LARGE from the batch would refuse all events */
    return text.len > kvb_max_string_bytes || !has_room
               ? KVB_BAD_INPUT
               : kvb_event_batch_add_text(batch, text, out_ref);
}

kvb_status kvb_engine_need_extras(struct kvb_event_batch *batch, struct kvb_engine_event *event)
{
    if (event->extra_count > 0 || event->hash_count == 0) {
        return KVB_OK;
    }
    KVB_TRY(kvb_event_batch_reserve_extras(batch, event->hash_count));
    event->extra_at = (uint32_t)batch->extra_count;
    event->extra_count = event->hash_count;
    batch->extra_count += event->hash_count;
    memset(batch->extras + event->extra_at, 0, event->extra_count * sizeof *batch->extras);
    return KVB_OK;
}

/* ---- LoRA, model, group, tier ---- */

static const struct kvb_engine_event *event_before(const struct kvb_event_batch *batch)
{
    static const struct kvb_engine_event none = { .kind = KVB_EVENT_SKIPPED };

    return batch->event_count > 0 ? &batch->events[batch->event_count - 1] : &none;
}

kvb_status kvb_engine_read_lora(
    struct kvb_event_batch *batch, const struct engine_fields *fields,
    struct kvb_engine_event *event)
{
    struct kvb_mp_cursor id_at = kvb_engine_cursor_at(fields, field_lora_id);
    struct kvb_mp_cursor name_at = kvb_engine_cursor_at(fields, field_lora_name);
    kvb_span name = { 0 };
    char numbered[40];
    uint64_t id = 0;

    /* SGLang's salted form has a map in place of the name: see wire/engine/extra_keys.c */
    if (fields->has[field_lora_name] && kvb_mp_next(&name_at) != KVB_MP_MAP) {
        KVB_TRY(kvb_mp_take_text(&name_at, &name));
    }
    /* Engines before lora_name number their adapters only: the number becomes a name. */
    if (name.len == 0 && fields->has[field_lora_id]) {
        KVB_TRY(kvb_mp_take_bits(&id_at, &id));
        const int len = snprintf(numbered, sizeof numbered, "lora_id:%lld", (long long)id);
        name = (kvb_span){ .data = (const uint8_t *)numbered, .len = (size_t)len };
    }
    return kvb_engine_add_text(batch, name, event_before(batch)->lora_name, &event->lora_name);
}

kvb_status kvb_engine_read_model(
    struct kvb_event_batch *batch, const struct engine_fields *fields,
    struct kvb_engine_event *event)
{
    const enum engine_field field = fields->has[field_model_name] ? field_model_name : field_model;
    struct kvb_mp_cursor cursor = kvb_engine_cursor_at(fields, field);
    kvb_span name = { 0 };

    if (!fields->has[field]) {
        return KVB_OK;
    }
    KVB_TRY(kvb_mp_take_text(&cursor, &name));
    return kvb_engine_add_text(batch, name, event_before(batch)->model_name, &event->model_name);
}

struct word {
    const char *text;
    uint8_t len;
    uint8_t value;
};

static uint8_t lower_case(uint8_t letter)
{
    return letter >= 'A' && letter <= 'Z' ? (uint8_t)(letter + ('a' - 'A')) : letter;
}

/* The usual medium has three letters: a library's function would cost more than they do. */
static bool is_same_word(const struct word *word, kvb_span text)
{
    size_t same = 0;

    if (word->len != text.len) {
        return false;
    }
    while (same < text.len &&
           lower_case((uint8_t)word->text[same]) == lower_case(text.data[same])) {
        same++;
    }
    return same == text.len;
}

/* Finds the text among the words, ignoring case; NULL: it is none of them. */
static const struct word *find_word(const struct word *words, size_t count, kvb_span text)
{
    for (size_t i = 0; i < count; i++) {
        if (is_same_word(&words[i], text)) {
            return &words[i];
        }
    }
    return NULL;
}

/* clang-format off */
#define WORD(text, value) { (text), sizeof(text) - 1, (value) }
static const struct word media[] = {
    WORD("GPU",        KVB_TIER_DEVICE),
    WORD("DEVICE",     KVB_TIER_DEVICE),
    WORD("CPU",        KVB_TIER_HOST),
    WORD("CPU_PINNED", KVB_TIER_HOST),
    WORD("MEMORY",     KVB_TIER_HOST),
    WORD("CPU_TIER1",  KVB_TIER_HOST),
    WORD("CPU_TIER2",  KVB_TIER_DISK),
    WORD("DISK",       KVB_TIER_DISK),
    WORD("NVME",       KVB_TIER_DISK),
    WORD("STORAGE",    KVB_TIER_DISK),
    WORD("LOCAL_DISK", KVB_TIER_EXTERNAL), /* Mooncake: the disk of one client, read through it */
    WORD("EXTERNAL",   KVB_TIER_EXTERNAL),
    WORD("NETWORK",    KVB_TIER_EXTERNAL),
    WORD("REMOTE",     KVB_TIER_EXTERNAL),
    WORD("SHARED",     KVB_TIER_EXTERNAL),
};

/* vLLM's kinds of cache groups; a kind that is not here is KVB_GROUP_OTHER. */
static const struct word group_kinds[] = {
    WORD("full_attention",          KVB_GROUP_FULL),
    WORD("mla_attention",           KVB_GROUP_FULL),
    WORD("sink_full_attention",     KVB_GROUP_FULL),
    WORD("sliding_window",          KVB_GROUP_WINDOW),
    WORD("sliding_window_mla",      KVB_GROUP_WINDOW),
    WORD("mamba",                   KVB_GROUP_WINDOW),
    WORD("chunked_local_attention", KVB_GROUP_CHUNKED),
    WORD("cross_attention",         KVB_GROUP_CROSS),
    WORD("encoder_only_attention",  KVB_GROUP_ENCODER),
};
/* clang-format on */

static enum kvb_group_kind kind_of_group(const struct engine_fields *fields)
{
    struct kvb_mp_cursor cursor = kvb_engine_cursor_at(fields, field_spec_kind);
    kvb_span text = { 0 };

    if (!fields->has[field_spec_kind]) {
        return KVB_GROUP_FULL;
    }
    (void)kvb_mp_take_text(&cursor, &text); /* text stays empty if it is another type */
    const struct word *word =
        find_word(group_kinds, sizeof group_kinds / sizeof group_kinds[0], text);
    return word ? (enum kvb_group_kind)word->value : KVB_GROUP_OTHER;
}

[[gnu::hot]] kvb_status
kvb_engine_read_group(const struct engine_fields *fields, struct kvb_engine_event *event)
{
    struct kvb_mp_cursor cursor = kvb_engine_cursor_at(fields, field_group_idx);

    event->group_kind = kind_of_group(fields);
    if (!fields->has[field_group_idx]) {
        return KVB_OK;
    }
    KVB_TRY(kvb_mp_take_u32(&cursor, &event->group));
    event->has_group = true; /* set last, because a skipped event keeps it too */
    return KVB_OK;
}

/* A Mamba state is that of the whole prefix before it: a request can go on at any block whose state
 * is held, so the last block is all that it needs.  That is a window that reaches back over one
 * token (vLLM 0.33, MambaManager.find_longest_cache_hit; tests/data/probes has captures). */
static const uint32_t mamba_window_tokens = 2;

static bool is_mamba(const struct engine_fields *fields)
{
    struct kvb_mp_cursor cursor = kvb_engine_cursor_at(fields, field_spec_kind);
    kvb_span text = { 0 };
    static const struct word mamba = WORD("mamba", 0);

    return fields->has[field_spec_kind] && kvb_mp_take_text(&cursor, &text) == KVB_OK &&
           find_word(&mamba, 1, text);
}

kvb_status
kvb_engine_read_window(const struct engine_fields *fields, struct kvb_engine_event *event)
{
    struct kvb_mp_cursor cursor = kvb_engine_cursor_at(fields, field_spec_window);

    if (event->group_kind != KVB_GROUP_WINDOW) {
        return KVB_OK; /* full attention may state a window too, but holds all blocks */
    }
    if (is_mamba(fields)) {
        event->window_tokens = mamba_window_tokens;
    } else if (fields->has[field_spec_window]) {
        KVB_TRY(kvb_mp_take_u32(&cursor, &event->window_tokens));
    }
    if (event->window_tokens == 0) {
        event->group_kind = KVB_GROUP_OTHER;
    }
    return KVB_OK;
}

bool kvb_engine_find_tier(kvb_span medium, enum kvb_tier *out_tier)
{
    const struct word *word = find_word(media, sizeof media / sizeof media[0], medium);

    /* an unknown medium is not the device, so its blocks are listed separately */
    *out_tier = word ? (enum kvb_tier)word->value : KVB_TIER_EXTERNAL;
    return word;
}

[[gnu::hot]] kvb_status
kvb_engine_read_medium(const struct engine_fields *fields, struct kvb_engine_event *event)
{
    struct kvb_mp_cursor cursor = kvb_engine_cursor_at(fields, field_medium);
    kvb_span text = { 0 };

    event->tier = KVB_TIER_DEVICE;
    if (!fields->has[field_medium]) {
        return KVB_OK;
    }
    KVB_TRY(kvb_mp_take_text(&cursor, &text));
    event->is_medium_unknown = !kvb_engine_find_tier(text, &event->tier);
    return KVB_OK;
}

[[gnu::hot]] enum kvb_skip
kvb_engine_scope(const struct engine_fields *fields, const struct kvb_engine_event *event)
{
    struct kvb_mp_cursor locality_at = kvb_engine_cursor_at(fields, field_locality);
    kvb_span text = { 0 };
    static const struct word remote = WORD("REMOTE", 0);

    if (fields->has[field_locality] && kvb_mp_take_text(&locality_at, &text) == KVB_OK &&
        find_word(&remote, 1, text)) {
        return KVB_SKIP_REMOTE;
    }
    return kvb_group_kind_has_rule(event->group_kind) ? KVB_SKIP_NONE : KVB_SKIP_NOT_PREFIX;
}
