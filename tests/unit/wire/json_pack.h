#pragma once

#include "core/buf.h"

/* Encodes JSON text as MessagePack, so that test cases are readable:
 *
 *     [1, [{"type": "BlockStored", "block_hashes": [1, -2], "parent_block_hash": null}]]
 *
 * Numbers, nan, texts without escapes, null, true, false, arrays and maps; 'text' and x'0a0b'
 * are bytes.  Anything else fails the test.  Appends to out. */
void pack_json(const char *json, struct kvb_buf *out);

/* The same with each value in its shortest form; pack_json() takes the longest of most. */
void pack_json_short(const char *json, struct kvb_buf *out);
