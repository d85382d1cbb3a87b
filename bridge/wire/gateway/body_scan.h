#pragma once

#include "core/span.h"
#include "core/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Reads the body of an OpenAI request as its chunks arrive, and notes where the values lie that a
 * pick needs:
 *
 *     {"model":"m", "messages":[{"role":"user", ...}, ...], "stream":true, ...}
 *              ^ at, len        ^ each message
 *
 * It keeps places, not bytes, and builds no tree.  Only the top level is taken apart; below it,
 * brackets and quotes are counted.  A body of 32 MiB costs its reading, a chunk at a time.
 *
 * The states say what the next byte may be:
 *
 *     start --{--> first_key --"--> in_key --"--> colon --:--> value
 *                                     ^                          |
 *                                     "                          v
 *                                    key <--,-- after_value <-- in_string, in_scalar, in_container
 *                                                    |
 *     broken: no JSON object                         +--}--> finished
 *
 * It does not check that the text is JSON; the engine does.  What it says of JSON is right.  Of
 * any other text, each place lies inside the body, and each value, copied to where a value stands
 * in another JSON text, gives either no JSON or exactly one value.
 *
 * If a key comes twice, the last counts, as in Python.  A key may be written with escapes.
 * Threads: the caller locks.
 * Memory:  none but the list of messages: 8 bytes each, at most kvb_max_gateway_messages. */

/* The keys of the top level that are noted; all others are skipped. */
enum kvb_body_key {
    KVB_BODY_ADD_GENERATION_PROMPT,
    KVB_BODY_ADD_SPECIAL_TOKENS,
    KVB_BODY_CACHE_SALT,
    KVB_BODY_CHAT_TEMPLATE,
    KVB_BODY_CHAT_TEMPLATE_KWARGS,
    KVB_BODY_CONTINUE_FINAL_MESSAGE,
    KVB_BODY_INPUT,
    KVB_BODY_INSTRUCTIONS,
    KVB_BODY_MESSAGES,
    KVB_BODY_MODEL,
    KVB_BODY_PREVIOUS_RESPONSE_ID,
    KVB_BODY_PROMPT,
    KVB_BODY_PROMPT_EMBEDS,
    KVB_BODY_STREAM,
    KVB_BODY_TOOLS,
    KVB_BODY_KEY_COUNT
};

/* The key's name, for example "model".  In static memory. */
const char *kvb_body_key_name(enum kvb_body_key key);

/* The type of a value, by its first byte. */
enum kvb_body_type {
    KVB_BODY_IS_MISSING,
    KVB_BODY_IS_NULL,
    KVB_BODY_IS_BOOLEAN,
    KVB_BODY_IS_NUMBER,
    KVB_BODY_IS_STRING,
    KVB_BODY_IS_LIST,
    KVB_BODY_IS_OBJECT,
    KVB_BODY_IS_NO_JSON
};

/* Where a value lies in the body: with its quotes or brackets, without blanks around it. */
struct kvb_body_place {
    enum kvb_body_type type;
    uint32_t at;
    uint32_t len; /* bytes */
};

/* Where one of the messages lies, with its brackets. */
struct kvb_body_message {
    uint32_t at;
    uint32_t len; /* bytes */
};

struct kvb_body_found {
    struct kvb_body_place values[KVB_BODY_KEY_COUNT];
    struct kvb_body_place first_prompt; /* the first element, if "prompt" is a list: a string, a
                                           list of tokens, or a token (then without its length) */
    struct kvb_body_message *messages;  /* owned by the scan; in their order */
    size_t message_count;
    size_t messages_left_out; /* the last ones: above the limit, or no memory */
    bool has_media;           /* a part of a message is an image, sound, video or a file */
};

enum kvb_body_state {
    KVB_BODY_AT_START,
    KVB_BODY_AT_FIRST_KEY,
    KVB_BODY_AT_KEY,
    KVB_BODY_IN_KEY,
    KVB_BODY_AT_COLON,
    KVB_BODY_AT_VALUE,
    KVB_BODY_IN_STRING,
    KVB_BODY_IN_SCALAR,
    KVB_BODY_IN_CONTAINER,
    KVB_BODY_AFTER_VALUE,
    KVB_BODY_FINISHED,
    KVB_BODY_BROKEN,  /* not a JSON object */
    KVB_BODY_TOO_DEEP /* above kvb_max_gateway_body_depth, or kvb_max_gateway_body_bytes */
};

enum { kvb_body_key_bytes = 136 }; /* the longest name with quotes, each letter as \u0061 */

/* Starts as {0}.  All but `found` is the scan's own. */
struct kvb_body_scan {
    struct kvb_body_found found; /* complete after kvb_body_scan_end() */
    enum kvb_body_state state;
    enum kvb_body_key current;   /* whose value is read; KVB_BODY_KEY_COUNT: of no known key */
    struct kvb_body_place value; /* that is read; its length is not known yet */
    uint32_t at;                 /* bytes so far */
    unsigned depth;              /* open brackets; 1: the top level */
    bool is_quoted;              /* inside a string of a container */
    bool is_escaped;             /* a backslash was the last byte */
    bool is_first_open;          /* found.first_prompt has begun and not ended */
    uint32_t message_at;
    size_t message_capacity;
    size_t key_len; /* of the last string that may be a key, with quotes; above: no known key */
    uint8_t key[kvb_body_key_bytes];
};

/* Reads the next chunk.  It never fails: what ends a scan is told by kvb_body_scan_end(). */
void kvb_body_scan_feed(struct kvb_body_scan *scan, kvb_span chunk);

/* The body is complete.
 * KVB_BAD_INPUT  not a JSON object: `found` must not be used
 * KVB_TOO_LARGE  nested too deep, or too long: likewise */
kvb_status kvb_body_scan_end(const struct kvb_body_scan *scan);

void kvb_body_scan_done(struct kvb_body_scan *scan);

/* ---- Values, by their bytes ---- */

/* Copies a short string without its quotes and escapes into out (size bytes with the NUL).
 * KVB_BAD_INPUT  not a string, not UTF-8, a NUL inside, or a longer one
 * KVB_NO_MEMORY */
kvb_status kvb_body_text_read(kvb_span value, char *out, size_t size);

/* Reads a list of tokens.  On KVB_OK the caller owns *out_tokens; there is at least one.
 * KVB_BAD_INPUT  not a list of numbers from 0 to 2^32-1
 * KVB_TOO_LARGE  more than kvb_max_query_tokens
 * KVB_NO_MEMORY */
kvb_status kvb_body_tokens_read(kvb_span value, uint32_t **out_tokens, size_t *out_count);
