#pragma once

#include "core/span.h"
#include "core/status.h"
#include "wire/json/scan.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Values that are read where they stand in a text.  A value is the span of its bytes, from the
 * first to the last one, as kvb_json_value() has found it:
 *
 *     {"model": "m" ,"ttl_ms":5}
 *               ---           -
 *
 * {0}: there is none.
 * Threads: any thread.  Memory: borrowed from the text. */

enum kvb_json_kind {
    KVB_JSON_NULL, /* or none */
    KVB_JSON_BOOL,
    KVB_JSON_NUMBER,
    KVB_JSON_TEXT,
    KVB_JSON_OBJECT,
    KVB_JSON_ARRAY
};

/* By its first byte. */
enum kvb_json_kind kvb_json_kind_of(kvb_span value);

/* Copies the text of a string, of which *out_len is the length, and a NUL; size is at least 1.
 * json-c decodes escapes, which few texts have.
 * KVB_BAD_INPUT  no string, or one that is longer, has a NUL inside, or is not UTF-8; of these out
 *                has as much as there is room for, or nothing
 * KVB_NO_MEMORY */
kvb_status kvb_json_text_of(kvb_span value, char *out, size_t size, size_t *out_len);

struct kvb_json_integer {
    bool is_negative;
    uint64_t bits; /* two's complement when negative */
};

/* False: no integer, or one beyond 64 bits. */
bool kvb_json_integer_of(kvb_span value, struct kvb_json_integer *out);
