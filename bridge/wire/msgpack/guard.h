#pragma once

#include "core/span.h"
#include "core/status.h"

/* Checks a MessagePack value before a decoder allocates memory for it.
 *
 * msgpack-c sizes an array from its header alone: five bytes claiming 10^8
 * items make it map 4 GiB.  This walk allocates nothing and checks that the
 * value is whole, that no container claims more items than there are bytes
 * left, and that nesting stays within max_depth (1 .. 32).
 *
 * On KVB_OK *out_used is the value's length in bytes.
 * KVB_BAD_INPUT  cut short, an unassigned type byte, or a header that claims too many items
 * KVB_TOO_LARGE  nested deeper than max_depth */
kvb_status kvb_mp_guard(kvb_span in, unsigned max_depth, size_t *out_used);
