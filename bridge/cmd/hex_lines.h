#pragma once

#include "core/buf.h"
#include "core/span.h"
#include "core/status.h"

/* Lines of bytes as digits: "c0ffee", "name|c0ffee" or "name|3|c0ffee", blanks between
 * digits allowed. */
struct kvb_hex_line {
    kvb_span name; /* borrowed from the text; empty where there is none */
};

/* Takes the next line off the text, whatever comes of it, and replaces what out holds
 * by its bytes.
 *
 * KVB_NOT_FOUND  no line is left but empty ones
 * KVB_BAD_INPUT  no digits, half a byte, or another length than the line says
 * KVB_TOO_LARGE, KVB_NO_MEMORY  of out */
kvb_status kvb_hex_line_take(kvb_span *text, struct kvb_hex_line *out_line, struct kvb_buf *out);
