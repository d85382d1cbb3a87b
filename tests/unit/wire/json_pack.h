#pragma once

#include "core/buf.h"

/* Encodes JSON text as MessagePack, so that test cases are readable:
 *
 *     [1, [{"type": "BlockStored", "block_hashes": [1, -2], "parent_block_hash": null}]]
 *
 * Integers, texts without escapes, null, true, false, arrays and maps; 'text' in single quotes
 * is bytes.  Anything else fails the test.  Appends to out. */
void pack_json(const char *json, struct kvb_buf *out);
