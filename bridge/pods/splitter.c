#include "pods/splitter.h"

#include <string.h>

void kvb_pod_splitter_init(struct kvb_pod_splitter *splitter, enum kvb_pod_answer answer)
{
    *splitter = (struct kvb_pod_splitter){ .answer = answer };
    kvb_buf_init(&splitter->object, kvb_max_pod_bytes);
    kvb_buf_init(&splitter->envelope, kvb_max_pod_envelope_bytes);
}

void kvb_pod_splitter_done(struct kvb_pod_splitter *splitter)
{
    kvb_buf_done(&splitter->object);
    kvb_buf_done(&splitter->envelope);
}

void kvb_pod_splitter_begin(struct kvb_pod_splitter *splitter, enum kvb_pod_answer answer)
{
    const struct kvb_buf object = splitter->object;
    const struct kvb_buf envelope = splitter->envelope;

    *splitter =
        (struct kvb_pod_splitter){ .answer = answer, .object = object, .envelope = envelope };
    kvb_buf_reset(&splitter->object);
    kvb_buf_reset(&splitter->envelope);
}

/* ---- One byte ---- */

static kvb_status keep_byte(struct kvb_pod_splitter *splitter, uint8_t byte)
{
    if (splitter->answer == KVB_POD_ANSWER_LIST && !splitter->is_in_object) {
        const kvb_status status = kvb_buf_append(&splitter->envelope, &byte, 1);
        /* Told when the list is complete: its objects are passed on all the same. */
        splitter->has_envelope_failed |= status != KVB_OK;
        return status == KVB_TOO_LARGE ? KVB_OK : status;
    }
    if (!splitter->is_in_object || splitter->is_skipped) {
        return KVB_OK; /* white space between lines, or an object that is too large */
    }
    const kvb_status status = kvb_buf_append(&splitter->object, &byte, 1);
    /* Up to its end; those after it are not affected. */
    splitter->is_skipped = status == KVB_TOO_LARGE;
    return status == KVB_TOO_LARGE ? KVB_OK : status;
}

/* Collects the strings at depth 1, which include the keys of the list itself. */
static void take_string_byte(struct kvb_pod_splitter *splitter, uint8_t byte)
{
    if (splitter->is_escaped) {
        splitter->is_escaped = false;
    } else if (byte == '\\') {
        splitter->is_escaped = true;
    } else if (byte == '"') {
        splitter->is_in_string = false;
        return;
    }
    if (!splitter->is_in_object && splitter->depth == 1 && splitter->key_len < kvb_pod_key_bytes) {
        splitter->key[splitter->key_len] = (char)byte;
        splitter->key_len++;
    }
}

static bool is_items_key(const struct kvb_pod_splitter *splitter)
{
    static const char items[] = "items";

    return splitter->key_len == sizeof items - 1 &&
           memcmp(splitter->key, items, sizeof items - 1) == 0;
}

/* True: this bracket begins an object. */
static bool begins_object(const struct kvb_pod_splitter *splitter)
{
    if (splitter->is_in_object) {
        return false;
    }
    return splitter->answer == KVB_POD_ANSWER_WATCH ? splitter->depth == 0
                                                    : splitter->is_in_items && splitter->depth == 2;
}

static void open_bracket(struct kvb_pod_splitter *splitter, uint8_t byte)
{
    if (begins_object(splitter)) {
        splitter->is_in_object = true;
        splitter->is_skipped = false;
        splitter->object_depth = splitter->depth;
        kvb_buf_reset(&splitter->object);
    } else if (splitter->answer == KVB_POD_ANSWER_LIST && splitter->depth == 1 && byte == '[') {
        /* At depth 1 the newest string is the key of this array. */
        splitter->is_in_items = is_items_key(splitter);
    }
    splitter->depth++;
}

/* True: this bracket completes an object. */
static bool close_bracket(struct kvb_pod_splitter *splitter)
{
    /* More brackets may be closed than were opened: whoever reads the parts refuses them. */
    splitter->depth -= splitter->depth > 0;
    if (splitter->is_in_object) {
        return splitter->depth == splitter->object_depth;
    }
    if (splitter->depth <= 1) {
        splitter->is_in_items = false;
    }
    return false;
}

static kvb_status
pass_object(struct kvb_pod_splitter *splitter, kvb_pod_take_object *take, void *context)
{
    static const kvb_span too_large = { .data = (const uint8_t *)"", .len = 0 };

    splitter->is_in_object = false;
    return take(context, splitter->is_skipped ? too_large : kvb_buf_span(&splitter->object));
}

static kvb_status split_byte(
    struct kvb_pod_splitter *splitter, uint8_t byte, kvb_pod_take_object *take, void *context)
{
    if (splitter->is_in_string) {
        take_string_byte(splitter, byte);
        return keep_byte(splitter, byte);
    }
    switch (byte) {
    case '"':
        splitter->is_in_string = true;
        splitter->key_len = splitter->depth == 1 ? 0 : splitter->key_len;
        return keep_byte(splitter, byte);
    case '{':
    case '[':
        /* First, so that the bracket is kept as a byte of the object. */
        open_bracket(splitter, byte);
        return keep_byte(splitter, byte);
    case '}':
    case ']': {
        const bool is_complete = close_bracket(splitter);
        /* The last byte of the object, so before the object is passed on. */
        KVB_TRY(keep_byte(splitter, byte));
        return is_complete ? pass_object(splitter, take, context) : KVB_OK;
    }
    case ',': /* a comma between items: the envelope keeps neither items nor their commas */
        return splitter->is_in_items && !splitter->is_in_object && splitter->depth == 2
                   ? KVB_OK
                   : keep_byte(splitter, byte);
    default:
        return keep_byte(splitter, byte);
    }
}

/* ---- Many bytes ---- */

static bool is_structural(uint8_t byte)
{
    return byte == '"' || byte == '{' || byte == '}' || byte == '[' || byte == ']';
}

/* Counts the bytes up to the next one that changes the state.  Most bytes of an object change no
 * state, so they are appended in one call. */
static size_t count_plain(const struct kvb_pod_splitter *splitter, kvb_span bytes)
{
    size_t count = 0;

    /* Outside of objects each byte counts, and so does the one behind a backslash. */
    if (!splitter->is_in_object || splitter->is_escaped) {
        return 0;
    }
    if (splitter->is_in_string) {
        while (count < bytes.len && bytes.data[count] != '"' && bytes.data[count] != '\\') {
            count++;
        }
        return count;
    }
    while (count < bytes.len && !is_structural(bytes.data[count])) {
        count++;
    }
    return count;
}

static kvb_status keep_plain(struct kvb_pod_splitter *splitter, kvb_span bytes)
{
    if (splitter->is_skipped) {
        return KVB_OK;
    }
    const kvb_status status = kvb_buf_append(&splitter->object, bytes.data, bytes.len);
    splitter->is_skipped = status == KVB_TOO_LARGE;
    return status == KVB_TOO_LARGE ? KVB_OK : status;
}

kvb_status kvb_pod_splitter_take(
    struct kvb_pod_splitter *splitter, kvb_span bytes, kvb_pod_take_object *take, void *context)
{
    while (bytes.len > 0) {
        const size_t plain = count_plain(splitter, bytes);
        if (plain > 0) {
            KVB_TRY(keep_plain(splitter, (kvb_span){ bytes.data, plain }));
        } else {
            KVB_TRY(split_byte(splitter, bytes.data[0], take, context));
        }
        const size_t taken = plain > 0 ? plain : 1;
        bytes.data += taken;
        bytes.len -= taken;
    }
    return KVB_OK;
}

kvb_status
kvb_pod_splitter_envelope(const struct kvb_pod_splitter *splitter, kvb_span *out_envelope)
{
    if (splitter->has_envelope_failed) {
        return KVB_TOO_LARGE;
    }
    if (splitter->depth != 0 || splitter->is_in_string || splitter->envelope.len == 0) {
        return KVB_BAD_INPUT;
    }
    *out_envelope = kvb_buf_span(&splitter->envelope);
    return KVB_OK;
}
