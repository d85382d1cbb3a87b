#include "wire/gateway/body_scan.h"

#include "core/array.h"
#include "core/limits.h"
#include "core/own.h"
#include "wire/json/scan.h"
#include "wire/json/tree.h"

#include <stdlib.h>
#include <string.h>

static const char *const names[KVB_BODY_KEY_COUNT] = {
    [KVB_BODY_ADD_GENERATION_PROMPT] = "add_generation_prompt",
    [KVB_BODY_ADD_SPECIAL_TOKENS] = "add_special_tokens",
    [KVB_BODY_CACHE_SALT] = "cache_salt",
    [KVB_BODY_CHAT_TEMPLATE] = "chat_template",
    [KVB_BODY_CHAT_TEMPLATE_KWARGS] = "chat_template_kwargs",
    [KVB_BODY_CONTINUE_FINAL_MESSAGE] = "continue_final_message",
    [KVB_BODY_INPUT] = "input",
    [KVB_BODY_INSTRUCTIONS] = "instructions",
    [KVB_BODY_MESSAGES] = "messages",
    [KVB_BODY_MODEL] = "model",
    [KVB_BODY_PREVIOUS_RESPONSE_ID] = "previous_response_id",
    [KVB_BODY_PROMPT] = "prompt",
    [KVB_BODY_PROMPT_EMBEDS] = "prompt_embeds",
    [KVB_BODY_STREAM] = "stream",
    [KVB_BODY_TOOLS] = "tools",
};

/* Open brackets around what is looked for below the top level:
 *
 *     {"messages":[{"content":[{"type":"image_url", ...
 *     1           2 3         4 5                       */
enum { top_depth = 1, element_depth = 2, part_depth = 5 };

const char *kvb_body_key_name(enum kvb_body_key key)
{
    return names[key];
}

static bool is_blank(uint8_t c)
{
    return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

static enum kvb_body_type type_of(uint8_t first)
{
    switch (first) {
    case '"':
        return KVB_BODY_IS_STRING;
    case '[':
        return KVB_BODY_IS_LIST;
    case '{':
        return KVB_BODY_IS_OBJECT;
    case 't':
    case 'f':
        return KVB_BODY_IS_BOOLEAN;
    case 'n':
        return KVB_BODY_IS_NULL;
    default:
        return first == '-' || (first >= '0' && first <= '9') ? KVB_BODY_IS_NUMBER
                                                              : KVB_BODY_IS_NO_JSON;
    }
}

/* ---- Keys ---- */

static void keep_key_byte(struct kvb_body_scan *scan, uint8_t c)
{
    if (scan->key_len < sizeof scan->key) {
        scan->key[scan->key_len] = c;
    }
    if (scan->key_len <= sizeof scan->key) {
        scan->key_len++;
    }
}

/* The key that was read last, as text; empty if it is longer than any that we know. */
static void read_key(const struct kvb_body_scan *scan, char out[kvb_body_key_bytes])
{
    const kvb_span quoted = { scan->key, scan->key_len };

    out[0] = '\0';
    if (quoted.len > sizeof scan->key) {
        return;
    }
    if (memchr(quoted.data, '\\', quoted.len)) {
        (void)kvb_body_text_read(quoted, out, kvb_body_key_bytes); /* else it is no key of ours */
        return;
    }
    memcpy(out, quoted.data + 1, quoted.len - 2);
    out[quoted.len - 2] = '\0';
}

static enum kvb_body_key find_key(const struct kvb_body_scan *scan)
{
    char name[kvb_body_key_bytes];
    unsigned key = 0;

    read_key(scan, name);
    while (key < KVB_BODY_KEY_COUNT && strcmp(names[key], name) != 0) {
        key++;
    }
    return (enum kvb_body_key)key;
}

/* Parts of a message that are not text are named by their member: image_url, image_embeds,
 * input_audio, video_url, file. */
static bool is_media_key(const struct kvb_body_scan *scan)
{
    char name[kvb_body_key_bytes];

    read_key(scan, name);
    return strstr(name, "image") || strstr(name, "audio") || strstr(name, "video") ||
           strcmp(name, "file") == 0;
}

/* ---- Values ---- */

static void begin_value(struct kvb_body_scan *scan, uint8_t first)
{
    struct kvb_body_found *found = &scan->found;

    scan->value = (struct kvb_body_place){ .type = type_of(first), .at = scan->at };
    if (scan->current == KVB_BODY_MESSAGES) { /* a key that comes again replaces the first */
        found->message_count = 0;
        found->messages_left_out = 0;
        found->has_media = false;
    } else if (scan->current == KVB_BODY_PROMPT) {
        found->first_prompt = (struct kvb_body_place){ 0 };
    }
    /* What the value is decides how its end is found. */
    switch (first) {
    case '"':
        scan->state = KVB_BODY_IN_STRING;
        break;
    case '{':
    case '[':
        scan->state = KVB_BODY_IN_CONTAINER;
        scan->depth = element_depth;
        break;
    case ',':
    case ':':
    case '}':
    case ']':
        scan->state = KVB_BODY_BROKEN;
        break;
    default:
        scan->state = KVB_BODY_IN_SCALAR;
    }
}

/* The value ends before the byte `end`. */
static void end_value(struct kvb_body_scan *scan, uint32_t end)
{
    scan->value.len = end - scan->value.at;
    if (scan->current != KVB_BODY_KEY_COUNT) {
        scan->found.values[scan->current] = scan->value;
    }
    scan->state = KVB_BODY_AFTER_VALUE;
}

static void note_message(struct kvb_body_scan *scan, uint32_t end)
{
    struct kvb_body_found *found = &scan->found;

    /* What is noted is a beginning of the list without holes, also if memory is there again. */
    if (found->messages_left_out > 0 ||
        kvb_array_reserve(
            &found->messages, &scan->message_capacity, found->message_count + 1,
            sizeof *found->messages, kvb_max_gateway_messages) != KVB_OK) {
        found->messages_left_out++;
        return;
    }
    found->messages[found->message_count++] =
        (struct kvb_body_message){ .at = scan->message_at, .len = end - scan->message_at };
}

static bool is_list_of(const struct kvb_body_scan *scan, enum kvb_body_key key)
{
    return scan->current == key && scan->value.type == KVB_BODY_IS_LIST;
}

/* The next byte that is not blank is the first element of the prompt. */
static bool awaits_first_prompt(const struct kvb_body_scan *scan)
{
    return scan->depth == element_depth && is_list_of(scan, KVB_BODY_PROMPT) &&
           scan->found.first_prompt.type == KVB_BODY_IS_MISSING;
}

static void end_first_prompt(struct kvb_body_scan *scan)
{
    if (scan->is_first_open) {
        scan->found.first_prompt.len = scan->at + 1 - scan->found.first_prompt.at;
        scan->is_first_open = false;
    }
}

/* ---- Byte by byte ---- */

/* Strings in containers matter as keys of message parts only. */
static bool keeps_strings(const struct kvb_body_scan *scan)
{
    return scan->depth == part_depth && scan->current == KVB_BODY_MESSAGES;
}

/* Whether the byte inside a string ends it. */
static bool ends_string(struct kvb_body_scan *scan, uint8_t c)
{
    const bool was_escaped = scan->is_escaped;

    scan->is_escaped = !was_escaped && c == '\\';
    return !was_escaped && c == '"';
}

static void read_quoted(struct kvb_body_scan *scan, uint8_t c)
{
    if (keeps_strings(scan)) {
        keep_key_byte(scan, c);
    }
    if (ends_string(scan, c)) {
        scan->is_quoted = false;
        if (scan->depth == element_depth) {
            end_first_prompt(scan);
        }
    }
}

static void open_bracket(struct kvb_body_scan *scan)
{
    if (scan->depth == element_depth && is_list_of(scan, KVB_BODY_MESSAGES)) {
        scan->message_at = scan->at;
    }
    scan->depth++;
    if (scan->depth > kvb_max_gateway_body_depth) {
        scan->state = KVB_BODY_TOO_DEEP;
    }
}

static void close_bracket(struct kvb_body_scan *scan)
{
    scan->depth--;
    /* Brackets are counted, not paired: the engine refuses what pairs wrongly. */
    if (scan->depth == top_depth) {
        end_value(scan, scan->at + 1);
    } else if (scan->depth == element_depth) {
        end_first_prompt(scan);
        if (is_list_of(scan, KVB_BODY_MESSAGES)) {
            note_message(scan, scan->at + 1);
        }
    }
}

static void read_in_container(struct kvb_body_scan *scan, uint8_t c)
{
    if (scan->is_quoted) {
        read_quoted(scan, c);
        return;
    }
    /* The list of prompts has begun, and its first element has not been seen. */
    if (c != ']' && !is_blank(c) && awaits_first_prompt(scan)) {
        const enum kvb_body_type type = type_of(c);
        scan->found.first_prompt = (struct kvb_body_place){ .type = type, .at = scan->at };
        scan->is_first_open =
            type == KVB_BODY_IS_STRING || type == KVB_BODY_IS_LIST || type == KVB_BODY_IS_OBJECT;
    }
    switch (c) {
    case '"':
        /* Whether the string is a key is known at the colon behind it. */
        scan->is_quoted = true;
        if (keeps_strings(scan)) {
            scan->key_len = 0;
            keep_key_byte(scan, c);
        }
        break;
    case '{':
    case '[':
        open_bracket(scan);
        break;
    case '}':
    case ']':
        close_bracket(scan);
        break;
    case ':': /* the last string was a key */
        scan->found.has_media |= keeps_strings(scan) && is_media_key(scan);
        break;
    default:
        break;
    }
}

static void read_key_byte(struct kvb_body_scan *scan, uint8_t c)
{
    keep_key_byte(scan, c);
    if (ends_string(scan, c)) {
        scan->current = find_key(scan);
        scan->state = KVB_BODY_AT_COLON;
    }
}

/* The only bytes that may come here beside blanks, and the states that they lead to; anything else
 * is no JSON. */
static void expect(
    struct kvb_body_scan *scan, uint8_t c, uint8_t first, enum kvb_body_state after_first,
    uint8_t second, enum kvb_body_state after_second)
{
    if (c == first) {
        scan->state = after_first;
    } else if (c == second) {
        scan->state = after_second;
    } else if (!is_blank(c)) {
        scan->state = KVB_BODY_BROKEN;
    }
}

static void read_byte(struct kvb_body_scan *scan, uint8_t c)
{
    switch (scan->state) {
    case KVB_BODY_AT_START:
        expect(scan, c, '{', KVB_BODY_AT_FIRST_KEY, '{', KVB_BODY_AT_FIRST_KEY);
        break;
    case KVB_BODY_AT_FIRST_KEY:
        expect(scan, c, '"', KVB_BODY_IN_KEY, '}', KVB_BODY_FINISHED);
        scan->key_len = 0;
        keep_key_byte(scan, '"');
        break;
    case KVB_BODY_AT_KEY:
        expect(scan, c, '"', KVB_BODY_IN_KEY, '"', KVB_BODY_IN_KEY);
        scan->key_len = 0;
        keep_key_byte(scan, '"');
        break;
    case KVB_BODY_IN_KEY:
        read_key_byte(scan, c);
        break;
    case KVB_BODY_AT_COLON:
        expect(scan, c, ':', KVB_BODY_AT_VALUE, ':', KVB_BODY_AT_VALUE);
        break;
    case KVB_BODY_AT_VALUE:
        if (!is_blank(c)) {
            begin_value(scan, c);
        }
        break;
    case KVB_BODY_IN_STRING:
        if (ends_string(scan, c)) {
            end_value(scan, scan->at + 1);
        }
        break;
    case KVB_BODY_IN_SCALAR:
        if (is_blank(c) || c == ',' || c == '}') {
            end_value(scan, scan->at);
            read_byte(scan, c); /* once: the state is AFTER_VALUE */
        } else if (c == '"' || c == '[' || c == ']' || c == '{' || c == ':') {
            scan->state = KVB_BODY_BROKEN;
        }
        break;
    case KVB_BODY_IN_CONTAINER:
        read_in_container(scan, c);
        break;
    case KVB_BODY_AFTER_VALUE:
        expect(scan, c, ',', KVB_BODY_AT_KEY, '}', KVB_BODY_FINISHED);
        break;
    case KVB_BODY_FINISHED:
        if (!is_blank(c)) {
            scan->state = KVB_BODY_BROKEN;
        }
        break;
    case KVB_BODY_BROKEN:
    case KVB_BODY_TOO_DEEP:
        break;
    }
}

/* How many of the next bytes change nothing but the place: most of a body is the inside of strings,
 * or numbers in lists. */
static size_t count_plain(const struct kvb_body_scan *scan, const uint8_t *bytes, size_t len)
{
    const bool is_in_container = scan->state == KVB_BODY_IN_CONTAINER;
    size_t i = 0;

    /* The next byte belongs to the escape, in which nothing is plain. */
    if (scan->is_escaped) {
        return 0;
    }
    if (scan->state == KVB_BODY_IN_STRING ||
        (is_in_container && scan->is_quoted &&
         !(keeps_strings(scan) && scan->key_len <= sizeof scan->key))) {
        /* Inside a string only its end and a backslash matter. */
        while (i < len && bytes[i] != '"' && bytes[i] != '\\') {
            i++;
        }
    } else if (is_in_container && !scan->is_quoted && !awaits_first_prompt(scan)) {
        while (i < len && (bytes[i] < '"' || (bytes[i] > '"' && bytes[i] < ':'))) {
            i++; /* digits, commas, points, blanks */
        }
    }
    return i;
}

void kvb_body_scan_feed(struct kvb_body_scan *scan, kvb_span chunk)
{
    /* Places are 32-bit numbers: a longer body could not be described. */
    if (chunk.len > kvb_max_gateway_body_bytes - scan->at) {
        scan->state = KVB_BODY_TOO_DEEP;
        return;
    }
    for (size_t i = 0; i < chunk.len; i++) {
        const size_t plain = count_plain(scan, chunk.data + i, chunk.len - i);
        scan->at += (uint32_t)plain;
        i += plain;
        if (i < chunk.len) {
            read_byte(scan, chunk.data[i]);
            scan->at++;
        }
    }
}

kvb_status kvb_body_scan_end(const struct kvb_body_scan *scan)
{
    if (scan->state == KVB_BODY_TOO_DEEP) {
        return KVB_TOO_LARGE;
    }
    return scan->state == KVB_BODY_FINISHED ? KVB_OK : KVB_BAD_INPUT;
}

void kvb_body_scan_done(struct kvb_body_scan *scan)
{
    free(scan->found.messages);
    *scan = (struct kvb_body_scan){ 0 };
}

/* ---- Values, by their bytes ---- */

kvb_status kvb_body_text_read(kvb_span value, char *out, size_t size)
{
    struct kvb_json_budget budget = { .depth = 1, .values = 1 };
    KVB_OWN(kvb_json_drop) struct json_object *text = NULL;

    if (value.len == 0 || value.data[0] != '"') {
        return KVB_BAD_INPUT;
    }
    KVB_TRY(kvb_json_parse(value, &budget, &text));
    return kvb_json_text(text, out, size);
}

static void drop_tokens(uint32_t **tokens)
{
    free(*tokens);
}

kvb_status kvb_body_tokens_read(kvb_span value, uint32_t **out_tokens, size_t *out_count)
{
    /* Each takes a digit and a comma or bracket at least. */
    const size_t capacity =
        value.len / 2 < kvb_max_query_tokens ? value.len / 2 : kvb_max_query_tokens;
    struct kvb_json_scan scan = kvb_json_scan_of(value);
    KVB_OWN(drop_tokens) uint32_t *tokens = NULL;
    size_t count = 0;

    KVB_TRY(kvb_json_expect(&scan, '['));
    if (capacity == 0) {
        return KVB_BAD_INPUT;
    }
    tokens = malloc(capacity * sizeof *tokens);
    if (!tokens) {
        return KVB_NO_MEMORY;
    }
    do {
        if (count == capacity) {
            return KVB_TOO_LARGE;
        }
        /* A run stops before a number in another form, which the slow reader takes. */
        count += kvb_json_u32_run(&scan, tokens + count, capacity - count - 1);
        KVB_TRY(kvb_json_u32(&scan, &tokens[count]));
        count++;
    } while (kvb_json_take(&scan, ','));
    KVB_TRY(kvb_json_expect(&scan, ']'));
    KVB_TRY(kvb_json_finish(&scan));
    *out_tokens = tokens;
    *out_count = count;
    tokens = NULL; /* now the caller's */
    return KVB_OK;
}
