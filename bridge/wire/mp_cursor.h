#pragma once

#include "core/span.h"
#include "core/status.h"

#include <stdbool.h>
#include <stdint.h>

/* Reads MessagePack values one after the other, without allocating.
 *
 *     [ read ][ next value ][ ... ]
 *             ^ at                 ^ end
 *
 * No read goes beyond end, whatever the bytes.  What an array or a map says of its
 * count is checked by whoever skips it, or by kvb_mp_guard(): until then nothing is to
 * be allocated by it.
 *
 * Each take reads one value and moves on.  KVB_BAD_INPUT: the value is of another
 * type; the cursor stands where it stood.  Threads: the caller locks. */
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

/* What comes next. */
enum kvb_mp_type kvb_mp_next(const struct kvb_mp_cursor *cursor);

/* Takes a nil when one comes next. */
bool kvb_mp_take_nil(struct kvb_mp_cursor *cursor);

/* Any integer as 64 bits: negative ones as two's complement. */
kvb_status kvb_mp_take_bits(struct kvb_mp_cursor *cursor, uint64_t *out_bits);
/* An integer that is not negative. */
kvb_status kvb_mp_take_u64(struct kvb_mp_cursor *cursor, uint64_t *out_value);
/* The same up to 2^32-1. */
kvb_status kvb_mp_take_u32(struct kvb_mp_cursor *cursor, uint32_t *out_value);
/* A float of either width, or an integer. */
kvb_status kvb_mp_take_number(struct kvb_mp_cursor *cursor, double *out_value);
kvb_status kvb_mp_take_text(struct kvb_mp_cursor *cursor, kvb_span *out_text);
kvb_status kvb_mp_take_bytes(struct kvb_mp_cursor *cursor, kvb_span *out_bytes);

/* So many integers, one behind the other, as kvb_mp_take_u32() and kvb_mp_take_bits()
 * take them: the long lists of an engine, in one pass.  out has room for them.
 * KVB_BAD_INPUT: one of them is something else; out is undefined. */
kvb_status kvb_mp_take_u32s(struct kvb_mp_cursor *cursor, uint32_t count, uint32_t *out);
kvb_status kvb_mp_take_all_bits(struct kvb_mp_cursor *cursor, uint32_t count, uint64_t *out);

/* The header; that many values (pairs for a map) follow. */
kvb_status kvb_mp_take_array(struct kvb_mp_cursor *cursor, uint32_t *out_count);
kvb_status kvb_mp_take_map(struct kvb_mp_cursor *cursor, uint32_t *out_pairs);

/* Moves past one value, whatever is in it, to kvb_max_depth.  KVB_TOO_LARGE: deeper. */
kvb_status kvb_mp_skip(struct kvb_mp_cursor *cursor);
/* The same, to another depth: for what already stands inside others. */
kvb_status kvb_mp_skip_within(struct kvb_mp_cursor *cursor, unsigned max_depth);
