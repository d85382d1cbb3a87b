#pragma once

#include "core/buf.h"
#include "core/span.h"
#include "core/status.h"
#include "model/event_batch.h"

/* The lines that `decode` reads, and those that it prints. */

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

/* One event of an engine as a JSON line, to show what the engine sends:
 *
 *     {"kind":"stored","reason":null,"rank":0,"ts":1700000000.5,"tier":"device","group":null,
 *      "lora":null,"parent":null,"block_hashes":[7],"tokens_hashes":[123],"token_count":16,
 *      "block_size":16}
 *
 * reason   why it was skipped
 * tier     null for a skipped event and for a clear of all tiers
 * tokens_hashes  computed as in the contract, from the LoRA name and the salt of this
 *          event; the salt that a child of a salted block inherits is not known here.
 *          null for a block that no query can name.
 *
 * Appends to out; batch->events[at] is the event.  KVB_TOO_LARGE, KVB_NO_MEMORY. */
kvb_status
kvb_event_write_json(const struct kvb_event_batch *batch, size_t at, struct kvb_buf *out);
