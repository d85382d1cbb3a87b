#pragma once

#include "core/buf.h"
#include "core/span.h"
#include "core/status.h"

/* Lines of hexadecimal bytes: "c0ffee", "name|c0ffee" or "name|3|c0ffee" (3: the number of
 * bytes); blanks between digits are allowed. */
struct kvb_hex_line {
    kvb_span name; /* borrowed from the text; empty where there is none */
};

/* Takes the next line off the text, on failure too, and replaces the content of out by its
 * bytes.
 *
 * KVB_NOT_FOUND  only empty lines are left
 * KVB_BAD_INPUT  not hexadecimal, half a byte, or a wrong length
 * KVB_TOO_LARGE, KVB_NO_MEMORY  of out */
kvb_status kvb_hex_line_take(kvb_span *text, struct kvb_hex_line *out_line, struct kvb_buf *out);
