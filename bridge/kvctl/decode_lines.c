#include "kvctl/decode_lines.h"

#include "index/block_hash.h"
#include "wire/json/writer.h"

#include <ctype.h>
#include <stdbool.h>
#include <string.h>

/* ---- Hexadecimal lines in ---- */

static kvb_span first_part(kvb_span text, char end)
{
    const uint8_t *at = text.len > 0 ? memchr(text.data, end, text.len) : NULL;

    return (kvb_span){ text.data, at ? (size_t)(at - text.data) : text.len };
}

/* Removes the text that was taken and the character that ended it. */
static void drop_taken_text(kvb_span *text, size_t len)
{
    const size_t gone = len < text->len ? len + 1 : len;

    *text = (kvb_span){ text->data + gone, text->len - gone };
}

static bool is_blank_line(kvb_span text)
{
    for (size_t i = 0; i < text.len; i++) {
        if (!isspace(text.data[i])) {
            return false;
        }
    }
    return true;
}

static kvb_status read_length(kvb_span text, size_t *out_length)
{
    size_t length = 0;

    for (size_t i = 0; i < text.len; i++) {
        /* A length that does not fit is no length of this line. */
        if (!isdigit(text.data[i]) || __builtin_mul_overflow(length, 10, &length) ||
            __builtin_add_overflow(length, (size_t)(text.data[i] - '0'), &length)) {
            return KVB_BAD_INPUT;
        }
    }
    *out_length = length;
    return text.len > 0 ? KVB_OK : KVB_BAD_INPUT;
}

static kvb_status read_hex_digits(kvb_span text, struct kvb_buf *out)
{
    unsigned value = 1; /* a one before the digits of the byte */

    for (size_t i = 0; i < text.len; i++) {
        const int digit = tolower(text.data[i]);
        if (isspace(digit)) {
            continue;
        }
        if (!isxdigit(digit)) {
            return KVB_BAD_INPUT;
        }
        value = value << 4 | (unsigned)(isdigit(digit) ? digit - '0' : digit - 'a' + 10);
        /* Both digits came: the one has moved past the byte. */
        if (value >= 0x100) {
            const uint8_t byte = (uint8_t)value;
            KVB_TRY(kvb_buf_append(out, &byte, 1));
            value = 1;
        }
    }
    return value == 1 ? KVB_OK : KVB_BAD_INPUT;
}

static kvb_status read_line(kvb_span line, struct kvb_hex_line *out_line, struct kvb_buf *out)
{
    const kvb_span first = first_part(line, '|');
    size_t length = 0;

    *out_line = (struct kvb_hex_line){ .name = { 0 } };
    /* No bar at all: hex digits alone. */
    if (first.len == line.len) {
        return read_hex_digits(line, out);
    }
    out_line->name = first;
    drop_taken_text(&line, first.len);
    const kvb_span second = first_part(line, '|');
    /* One bar: NAME|HEX. */
    if (second.len == line.len) {
        return read_hex_digits(line, out);
    }
    drop_taken_text(&line, second.len);
    /* Two bars: NAME|LENGTH|HEX, the form of the captures. */
    KVB_TRY(read_length(second, &length));
    KVB_TRY(read_hex_digits(line, out));
    return out->len == length ? KVB_OK : KVB_BAD_INPUT;
}

kvb_status kvb_hex_line_take(kvb_span *text, struct kvb_hex_line *out_line, struct kvb_buf *out)
{
    kvb_buf_reset(out);
    while (text->len > 0) {
        const kvb_span line = first_part(*text, '\n');
        drop_taken_text(text, line.len);
        if (!is_blank_line(line)) {
            return read_line(line, out_line, out);
        }
    }
    return KVB_NOT_FOUND;
}

/* ---- JSON lines out ---- */

static const char *engine_kind_name(enum kvb_event_kind kind)
{
    static const char *const names[] = {
        [KVB_EVENT_STORED] = "stored",
        [KVB_EVENT_REMOVED] = "removed",
        [KVB_EVENT_CLEARED] = "cleared",
        [KVB_EVENT_SKIPPED] = "skipped",
    };
    return names[kind];
}

/* Writes NULL as null. */
static void write_text_or_null(struct kvb_json_writer *json, const char *key, const char *text)
{
    kvb_json_write_key(json, key);
    if (text) {
        kvb_json_write_text(json, text);
    } else {
        kvb_json_write_null(json);
    }
}

static void write_u64(struct kvb_json_writer *json, const char *key, bool is_there, uint64_t value)
{
    kvb_json_write_key(json, key);
    if (is_there) {
        kvb_json_write_u64(json, value);
    } else {
        kvb_json_write_null(json);
    }
}

/* Writes an empty text as null. */
static void write_ref(
    struct kvb_json_writer *json, const char *key, const struct kvb_event_batch *batch,
    struct kvb_text_ref ref)
{
    kvb_json_write_key(json, key);
    if (ref.len > 0) {
        kvb_json_write_span(json, kvb_event_batch_text(batch, ref));
    } else {
        kvb_json_write_null(json);
    }
}

/* Events of models with one kind of attention have no group; a removal lacks its group's kind. */
static void write_group(struct kvb_json_writer *json, const struct kvb_engine_event *event)
{
    const bool is_stored = event->kind == KVB_EVENT_STORED;
    /* A removal names a group, whose kind the reader would have to remember. */
    const bool is_said = (is_stored && event->has_group) || event->group_kind != KVB_GROUP_FULL;

    write_u64(json, "group", event->has_group, event->group);
    write_text_or_null(json, "group_kind", is_said ? kvb_group_kind_name(event->group_kind) : NULL);
    write_u64(json, "window_tokens", event->window_tokens > 0, event->window_tokens);
    kvb_json_write_pair_bool(json, "is_sparse", event->is_sparse);
}

/* Writes the media keys of each block; [] when no block has any. */
static void write_media(
    struct kvb_json_writer *json, const struct kvb_event_batch *batch,
    const struct kvb_engine_event *event)
{
    uint64_t keys = 0;

    for (uint32_t i = 0; i < event->extra_count; i++) {
        keys += batch->extras[event->extra_at + i].key_count;
    }
    kvb_json_write_pair_begin(json, "media", '[');
    /* One list for each block, so that a place in it says which block. */
    for (uint32_t i = 0; keys > 0 && i < event->extra_count; i++) {
        const struct kvb_block_extra *extra = &batch->extras[event->extra_at + i];
        kvb_json_write_begin(json, '[');
        for (uint32_t k = 0; k < extra->key_count; k++) {
            kvb_json_write_u64(json, batch->keys[extra->key_at + k]);
        }
        kvb_json_write_end(json, ']');
    }
    kvb_json_write_end(json, ']');
}

static void write_block_hashes(
    struct kvb_json_writer *json, const struct kvb_event_batch *batch,
    const struct kvb_engine_event *event)
{
    kvb_json_write_pair_begin(json, "block_hashes", '[');
    for (uint32_t i = 0; i < event->hash_count; i++) {
        kvb_json_write_u64(json, batch->hashes[event->hash_at + i].value);
    }
    kvb_json_write_end(json, ']');
}

static void write_tokens_hashes(
    struct kvb_json_writer *json, const struct kvb_event_batch *batch,
    const struct kvb_engine_event *event)
{
    const uint64_t seed = kvb_block_seed(
        kvb_event_batch_text(batch, event->lora_name), kvb_event_batch_text(batch, event->salt));

    kvb_json_write_pair_begin(json, "tokens_hashes", '[');
    for (uint32_t i = 0; event->token_count > 0 && i < event->hash_count; i++) {
        /* No router can compute the name of such a block. */
        if (event->extra_count > 0 && batch->extras[event->extra_at + i].unmatchable) {
            kvb_json_write_null(json);
        } else {
            kvb_json_write_u64(json, kvb_tokens_hash_of_event(batch, event, i, seed).value);
        }
    }
    kvb_json_write_end(json, ']');
}

kvb_status kvb_event_write_json(const struct kvb_event_batch *batch, size_t at, struct kvb_buf *out)
{
    const struct kvb_engine_event *event = &batch->events[at];
    const bool is_skipped = event->kind == KVB_EVENT_SKIPPED;
    struct kvb_json_writer json = kvb_json_writer_of(out);

    kvb_json_write_begin(&json, '{');
    kvb_json_write_pair_text(&json, "kind", engine_kind_name(event->kind));
    write_text_or_null(&json, "reason", is_skipped ? kvb_skip_name(event->skip) : NULL);
    write_u64(&json, "rank", batch->has_rank, batch->rank);
    kvb_json_write_key(&json, "ts");
    kvb_json_write_time(&json, batch->timestamp_s);
    write_text_or_null(
        &json, "tier", is_skipped || event->all_tiers ? NULL : kvb_tier_name(event->tier));
    write_group(&json, event);
    write_ref(&json, "model", batch, event->model_name);
    write_ref(&json, "lora", batch, event->lora_name);
    write_ref(&json, "salt", batch, event->salt);
    write_u64(&json, "parent", event->has_parent, event->parent.value);
    write_block_hashes(&json, batch, event);
    write_tokens_hashes(&json, batch, event);
    write_media(&json, batch, event);
    kvb_json_write_pair_u64(&json, "token_count", event->token_count);
    kvb_json_write_pair_u64(&json, "block_size", event->block_size);
    kvb_json_write_pair_u64(&json, "lookahead", event->lookahead);
    kvb_json_write_end(&json, '}');
    return json.status;
}
