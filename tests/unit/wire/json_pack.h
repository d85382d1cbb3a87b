#pragma once

#include "core/buf.h"

/* MessagePack from JSON as a test writes it, so that a case can be read:
 *
 *     [1, [{"type": "BlockStored", "block_hashes": [1, -2], "parent_block_hash": null}]]
 *
 * Integers, texts without escapes, null, true, false, arrays and maps; 'text' in single quotes
 * is bytes.  Anything else fails the test.  Appends to out. */
void pack_json(const char *json, struct kvb_buf *out);
