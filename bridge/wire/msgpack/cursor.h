#pragma once

#include "core/span.h"
#include "core/status.h"
#include "wire/msgpack/small_integers.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Reads MessagePack values one after the other, without allocating.
 *
 *     [ read ][ next value ][ ... ]
 *             ^ at                 ^ end
 *
 * No function reads beyond end.  The count of an array or map is not verified until its items were
 * skipped or kvb_mp_guard() has checked it: do not allocate memory by it before.
 *
 * Each take function reads one value and moves past it.  KVB_BAD_INPUT: the value has another type;
 * the cursor does not move.  Threads: the caller locks. */
struct kvb_mp_cursor {
    const uint8_t *at; /* borrowed, like end */
    const uint8_t *end;
};

enum kvb_mp_type {
    KVB_MP_NIL,
    KVB_MP_BOOL,
    KVB_MP_INTEGER,
    KVB_MP_FLOAT,
    KVB_MP_TEXT,
    KVB_MP_BYTES,
    KVB_MP_ARRAY,
    KVB_MP_MAP,
    KVB_MP_OTHER /* extensions, and the end */
};

struct kvb_mp_cursor kvb_mp_cursor_of(kvb_span bytes);

/* enum kvb_mp_type of a value, by its first byte. */
extern const uint8_t kvb_mp_types[256];

/* The type of the next value. */
static inline enum kvb_mp_type kvb_mp_next(const struct kvb_mp_cursor *cursor)
{
    return cursor->at < cursor->end ? (enum kvb_mp_type)kvb_mp_types[*cursor->at] : KVB_MP_OTHER;
}

/* Takes a nil if one comes next. */
static inline bool kvb_mp_take_nil(struct kvb_mp_cursor *cursor)
{
    const bool is_nil = kvb_mp_next(cursor) == KVB_MP_NIL;

    cursor->at += is_nil;
    return is_nil;
}

/* Any integer as 64 bits: negative ones as two's complement. */
kvb_status kvb_mp_take_bits(struct kvb_mp_cursor *cursor, uint64_t *out_bits);
/* An integer that is not negative. */
kvb_status kvb_mp_take_u64(struct kvb_mp_cursor *cursor, uint64_t *out_value);
/* The same up to 2^32-1. */
kvb_status kvb_mp_take_u32(struct kvb_mp_cursor *cursor, uint32_t *out_value);
/* A float of either width, or an integer. */
kvb_status kvb_mp_take_number(struct kvb_mp_cursor *cursor, double *out_value);
kvb_status kvb_mp_take_bytes(struct kvb_mp_cursor *cursor, kvb_span *out_bytes);

/* Takes `count` consecutive integers like kvb_mp_take_u32(), for an engine's tokens.  out has
 * room for them.  KVB_BAD_INPUT: one of them is another value; out is undefined. */
kvb_status kvb_mp_take_u32s(struct kvb_mp_cursor *cursor, uint32_t count, uint32_t *out);

/* Takes the header of a map; that many pairs follow. */
kvb_status kvb_mp_take_map(struct kvb_mp_cursor *cursor, uint32_t *out_pairs);

/* Skips one value, nested up to kvb_max_depth.  KVB_TOO_LARGE: nested deeper. */
kvb_status kvb_mp_skip(struct kvb_mp_cursor *cursor);

/* ---- Used dozens of times per batch: short forms inline, the rest by a call ---- */

kvb_status kvb_mp_take_sized_array(struct kvb_mp_cursor *cursor, uint32_t *out_count);
kvb_status kvb_mp_take_sized_text(struct kvb_mp_cursor *cursor, kvb_span *out_text);
kvb_status kvb_mp_skip_any(struct kvb_mp_cursor *cursor, unsigned max_depth);

/* The size of a value by its first byte.  0: the first byte does not determine the size, or the
 * value contains other values. */
extern const uint8_t kvb_mp_sizes[256];

/* The first byte of an integer of 8 bytes. */
enum { kvb_mp_code_uint64 = 0xcf, kvb_mp_code_int64 = 0xd3 };

/* Takes an integer that is written with 8 bytes, as hashes are: a negative one as two's complement.
 * False: something else comes next.  No branch depends on the sign, because that of a hash is
 * random. */
static inline bool kvb_mp_take_word(struct kvb_mp_cursor *cursor, uint64_t *out_bits)
{
    if ((size_t)(cursor->end - cursor->at) <= sizeof *out_bits ||
        !((*cursor->at == kvb_mp_code_uint64) | (*cursor->at == kvb_mp_code_int64))) {
        return false;
    }
    *out_bits = kvb_load_be64(cursor->at + 1);
    cursor->at += 1 + sizeof *out_bits;
    return true;
}

/* Takes the header of an array; that many values follow. */
static inline kvb_status kvb_mp_take_array(struct kvb_mp_cursor *cursor, uint32_t *out_count)
{
    if (cursor->at < cursor->end && (*cursor->at & 0xf0U) == 0x90) {
        *out_count = *cursor->at++ & 0x0fU;
        return KVB_OK;
    }
    return kvb_mp_take_sized_array(cursor, out_count);
}

static inline kvb_status kvb_mp_take_text(struct kvb_mp_cursor *cursor, kvb_span *out_text)
{
    if (cursor->at < cursor->end && (*cursor->at & 0xe0U) == 0xa0) {
        const size_t len = *cursor->at & 0x1fU;
        if (len < (size_t)(cursor->end - cursor->at)) {
            *out_text = (kvb_span){ .data = cursor->at + 1, .len = len };
            cursor->at += 1 + len;
            return KVB_OK;
        }
    }
    return kvb_mp_take_sized_text(cursor, out_text);
}

/* As kvb_mp_skip(), with another maximum depth, for values inside other values. */
static inline kvb_status kvb_mp_skip_within(struct kvb_mp_cursor *cursor, unsigned max_depth)
{
    const size_t size = cursor->at < cursor->end ? kvb_mp_sizes[*cursor->at] : 0;

    if (size > 0 && size <= (size_t)(cursor->end - cursor->at)) {
        cursor->at += size;
        return KVB_OK;
    }
    return kvb_mp_skip_any(cursor, max_depth);
}

/* ---- Checking ---- */

/* Checks a MessagePack value before a decoder allocates memory for it.
 *
 * msgpack-c sizes an array by its header: five bytes that claim 10^8 items make it map 4 GiB.  This
 * function allocates nothing.  It checks that the value is complete, that no container claims more
 * items than there are bytes left, and that the nesting is at most max_depth (1 .. 32).
 *
 * On KVB_OK *out_used is the value's length in bytes.
 * KVB_BAD_INPUT  truncated, an unassigned type byte, or a header that claims too many items
 * KVB_TOO_LARGE  nested deeper than max_depth */
kvb_status kvb_mp_guard(kvb_span in, unsigned max_depth, size_t *out_used);
