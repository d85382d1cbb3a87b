#include "wire/msgpack/cursor.h"

#include "core/limits.h"
#include "wire/msgpack/small_integers.h"

#include <string.h>

enum {
    code_float32 = 0xca,
    code_float64 = 0xcb,
    code_uint8 = 0xcc,
    code_int8 = 0xd0,
    first_negative_fixint = 0xe0,
    last_positive_fixint = 0x7f
};

/* clang-format off */
const uint8_t kvb_mp_types[256] = {
    [0x00 ... 0x7f] = KVB_MP_INTEGER, [0x80 ... 0x8f] = KVB_MP_MAP,
    [0x90 ... 0x9f] = KVB_MP_ARRAY,   [0xa0 ... 0xbf] = KVB_MP_TEXT,
    [0xc0]          = KVB_MP_NIL,     [0xc1]          = KVB_MP_OTHER,
    [0xc2 ... 0xc3] = KVB_MP_BOOL,    [0xc4 ... 0xc6] = KVB_MP_BYTES,
    [0xc7 ... 0xc9] = KVB_MP_OTHER,   [0xca ... 0xcb] = KVB_MP_FLOAT,
    [0xcc ... 0xd3] = KVB_MP_INTEGER, [0xd4 ... 0xd8] = KVB_MP_OTHER,
    [0xd9 ... 0xdb] = KVB_MP_TEXT,    [0xdc ... 0xdd] = KVB_MP_ARRAY,
    [0xde ... 0xdf] = KVB_MP_MAP,     [0xe0 ... 0xff] = KVB_MP_INTEGER,
};
/* clang-format on */

struct kvb_mp_cursor kvb_mp_cursor_of(kvb_span bytes)
{
    /* arithmetic on NULL is undefined, even adding 0 */
    return (struct kvb_mp_cursor){ .at = bytes.data,
                                   .end = bytes.len > 0 ? bytes.data + bytes.len : bytes.data };
}

static size_t cursor_bytes_left(const struct kvb_mp_cursor *cursor)
{
    return (size_t)(cursor->end - cursor->at);
}

static uint64_t big_endian(const uint8_t *bytes, size_t count)
{
    uint64_t value = 0;

    if (count == sizeof value) { /* fast path: hashes */
        return kvb_load_be64(bytes);
    }
    for (size_t i = 0; i < count; i++) {
        value = value << 8 | bytes[i];
    }
    return value;
}

/* Sign-extends a value of `bytes` bytes. */
static uint64_t extend(uint64_t value, size_t bytes)
{
    const unsigned unused_bits = (unsigned)(64 - 8 * bytes);

    return (uint64_t)((int64_t)(value << unused_bits) >> unused_bits);
}

/* Reads an integer; *out_negative: it is negative, in two's complement. */
static inline kvb_status
take_integer(struct kvb_mp_cursor *cursor, uint64_t *out_bits, bool *out_negative)
{
    if (cursor_bytes_left(cursor) == 0) {
        return KVB_BAD_INPUT;
    }
    const uint8_t code = *cursor->at;
    /* The number is in the byte itself. */
    if (code <= last_positive_fixint || code >= first_negative_fixint) {
        *out_bits = extend(code, 1);
        *out_negative = code >= first_negative_fixint;
        cursor->at++;
        return KVB_OK;
    }
    if (code < code_uint8 || code > kvb_mp_code_int64) {
        return KVB_BAD_INPUT;
    }
    /* The low bits of the code are the width: 1, 2, 4 or 8 bytes. */
    const bool is_signed = code >= code_int8;
    const size_t bytes = (size_t)1 << (code - (is_signed ? code_int8 : code_uint8));
    if (cursor_bytes_left(cursor) < 1 + bytes) {
        return KVB_BAD_INPUT;
    }
    const uint64_t value = big_endian(cursor->at + 1, bytes);
    *out_bits = is_signed ? extend(value, bytes) : value;
    *out_negative = is_signed && (int64_t)*out_bits < 0;
    cursor->at += 1 + bytes;
    return KVB_OK;
}

kvb_status kvb_mp_take_bits(struct kvb_mp_cursor *cursor, uint64_t *out_bits)
{
    bool is_negative = false;

    return kvb_mp_take_word(cursor, out_bits) ? KVB_OK
                                              : take_integer(cursor, out_bits, &is_negative);
}

/* Moves the cursor back to where the item began. */
static kvb_status refuse_msgpack_item(struct kvb_mp_cursor *cursor, const uint8_t *start)
{
    cursor->at = start;
    return KVB_BAD_INPUT;
}

kvb_status kvb_mp_take_u64(struct kvb_mp_cursor *cursor, uint64_t *out_value)
{
    const uint8_t *start = cursor->at;
    uint64_t bits = 0;
    bool is_negative = false;

    KVB_TRY(take_integer(cursor, &bits, &is_negative));
    if (is_negative) {
        return refuse_msgpack_item(cursor, start);
    }
    *out_value = bits;
    return KVB_OK;
}

[[gnu::hot]] kvb_status kvb_mp_take_u32(struct kvb_mp_cursor *cursor, uint32_t *out_value)
{
    const uint8_t *start = cursor->at;
    uint64_t bits = 0;
    bool is_negative = false;

    KVB_TRY(take_integer(cursor, &bits, &is_negative));
    if (is_negative || bits > UINT32_MAX) {
        return refuse_msgpack_item(cursor, start);
    }
    *out_value = (uint32_t)bits;
    return KVB_OK;
}

/* ---- Lists of integers ---- */

kvb_status kvb_mp_take_u32s(struct kvb_mp_cursor *cursor, uint32_t count, uint32_t *out)
{
    const uint8_t *start = cursor->at;
    kvb_small_integers *take_small = kvb_small_integers_best();

    for (uint32_t taken = 0; taken < count; taken++) {
        size_t len = 0;
        /* The run ends some bytes early, and before other forms: the loop reads one, and goes
         * on. */
        taken +=
            take_small(cursor->at, cursor_bytes_left(cursor), count - taken, out + taken, &len);
        cursor->at += len;
        /* the last integers, and those in other forms */
        if (taken < count && kvb_mp_take_u32(cursor, &out[taken]) != KVB_OK) {
            return refuse_msgpack_item(cursor, start);
        }
    }
    return KVB_OK;
}

/* ---- The rest ---- */

static kvb_status take_float(struct kvb_mp_cursor *cursor, double *out_value)
{
    const size_t bytes = *cursor->at == code_float32 ? sizeof(float) : sizeof(double);

    if (cursor_bytes_left(cursor) < 1 + bytes) {
        return KVB_BAD_INPUT;
    }
    const uint64_t bits = big_endian(cursor->at + 1, bytes);
    if (bytes == sizeof(float)) {
        const uint32_t half = (uint32_t)bits;
        float value = 0;
        memcpy(&value, &half, sizeof value);
        *out_value = (double)value;
    } else {
        memcpy(out_value, &bits, sizeof *out_value);
    }
    cursor->at += 1 + bytes;
    return KVB_OK;
}

kvb_status kvb_mp_take_number(struct kvb_mp_cursor *cursor, double *out_value)
{
    uint64_t bits = 0;
    bool is_negative = false;

    if (kvb_mp_next(cursor) == KVB_MP_FLOAT) {
        return take_float(cursor, out_value);
    }
    KVB_TRY(take_integer(cursor, &bits, &is_negative));
    *out_value = is_negative ? (double)(int64_t)bits : (double)bits;
    return KVB_OK;
}

/* A family of types whose count is in the type byte (small counts) or in the 1 << width bytes after
 * it. */
struct family {
    uint8_t small; /* first small code; mask 0 = none */
    uint8_t mask;
    uint8_t sized; /* first sized code */
    uint8_t count; /* of sized codes */
    uint8_t width; /* of the first one: 0 = one byte, 1 = two bytes */
};

static const struct family texts = { 0xa0, 0x1f, 0xd9, 3, 0 };
static const struct family byte_strings = { 0, 0, 0xc4, 3, 0 };
static const struct family arrays = { 0x90, 0x0f, 0xdc, 2, 1 };
static const struct family maps = { 0x80, 0x0f, 0xde, 2, 1 };

static inline kvb_status
take_count(struct kvb_mp_cursor *cursor, const struct family *family, uint32_t *out_count)
{
    if (cursor_bytes_left(cursor) == 0) {
        return KVB_BAD_INPUT;
    }
    const uint8_t code = *cursor->at;
    if (family->mask && (code & ~family->mask) == family->small) {
        *out_count = code & family->mask;
        cursor->at++;
        return KVB_OK;
    }
    if (code < family->sized || code >= family->sized + family->count) {
        return KVB_BAD_INPUT;
    }
    /* Each further code of a family doubles the width of its count. */
    const size_t bytes = (size_t)1 << (code - family->sized + family->width);
    if (cursor_bytes_left(cursor) < 1 + bytes) {
        return KVB_BAD_INPUT;
    }
    *out_count = (uint32_t)big_endian(cursor->at + 1, bytes);
    cursor->at += 1 + bytes;
    return KVB_OK;
}

static inline kvb_status
take_string(struct kvb_mp_cursor *cursor, const struct family *family, kvb_span *out_bytes)
{
    const uint8_t *start = cursor->at;
    uint32_t len = 0;

    KVB_TRY(take_count(cursor, family, &len));
    if (len > cursor_bytes_left(cursor)) {
        return refuse_msgpack_item(cursor, start);
    }
    *out_bytes = (kvb_span){ .data = cursor->at, .len = len };
    cursor->at += len;
    return KVB_OK;
}

kvb_status kvb_mp_take_sized_text(struct kvb_mp_cursor *cursor, kvb_span *out_text)
{
    return take_string(cursor, &texts, out_text);
}

kvb_status kvb_mp_take_bytes(struct kvb_mp_cursor *cursor, kvb_span *out_bytes)
{
    return take_string(cursor, &byte_strings, out_bytes);
}

[[gnu::hot]] kvb_status kvb_mp_take_sized_array(struct kvb_mp_cursor *cursor, uint32_t *out_count)
{
    return take_count(cursor, &arrays, out_count);
}

kvb_status kvb_mp_take_map(struct kvb_mp_cursor *cursor, uint32_t *out_pairs)
{
    return take_count(cursor, &maps, out_pairs);
}

kvb_status kvb_mp_skip(struct kvb_mp_cursor *cursor)
{
    return kvb_mp_skip_within(cursor, kvb_max_depth);
}

/* clang-format off */
const uint8_t kvb_mp_sizes[256] = {
    [0xa0] = 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24,
    25, 26, 27, 28, 29, 30, 31, 32, /* 0xbf: a text of 31 bytes */
    [0x00 ... 0x7f] = 1, [0xc0] = 1, [0xc2 ... 0xc3] = 1, [0xca] = 5, [0xcb] = 9,
    [0xcc] = 2, [0xcd] = 3, [0xce] = 5, [0xcf] = 9, [0xd0] = 2, [0xd1] = 3, [0xd2] = 5, [0xd3] = 9,
    [0xe0 ... 0xff] = 1,
};
/* clang-format on */

kvb_status kvb_mp_skip_any(struct kvb_mp_cursor *cursor, unsigned max_depth)
{
    size_t used = 0;

    KVB_TRY(kvb_mp_guard(
        (kvb_span){ .data = cursor->at, .len = cursor_bytes_left(cursor) }, max_depth, &used));
    cursor->at += used;
    return KVB_OK;
}

/* ---- Checking ---- */

enum { deepest = 32 };

enum shape {
    shape_bytes, /* `count` bytes follow */
    shape_sized, /* a length of `count` bytes, then that many bytes */
    shape_items, /* the item count is in the type byte, or in `count` bytes */
    shape_never,
};

/* The MessagePack spec as a table, one row for each range of type bytes.  `mask` selects the part
 * of the type byte that is a count.  `extra` is added to a byte length (for the tag of an ext), or
 * multiplies a count of items (a pair of a map is two items).  One table look-up per value. */
/* clang-format off */
static const struct form {
    uint8_t mask;
    uint8_t count;
    uint8_t extra;
    uint8_t shape; /* enum shape */
} forms[256] = {
    [0x00 ... 0x7f] = {    0,  0, 0, shape_bytes }, /* positive fixint */
    [0x80 ... 0x8f] = { 0x0f,  0, 2, shape_items }, /* fixmap */
    [0x90 ... 0x9f] = { 0x0f,  0, 1, shape_items }, /* fixarray */
    [0xa0 ... 0xbf] = { 0x1f,  0, 0, shape_bytes }, /* fixstr */
    [0xc0]          = {    0,  0, 0, shape_bytes }, /* nil */
    [0xc1]          = {    0,  0, 0, shape_never }, /* never used */
    [0xc2 ... 0xc3] = {    0,  0, 0, shape_bytes }, /* false, true */
    [0xc4]          = {    0,  1, 0, shape_sized }, /* bin 8 */
    [0xc5]          = {    0,  2, 0, shape_sized }, /* bin 16 */
    [0xc6]          = {    0,  4, 0, shape_sized }, /* bin 32 */
    [0xc7]          = {    0,  1, 1, shape_sized }, /* ext 8 */
    [0xc8]          = {    0,  2, 1, shape_sized }, /* ext 16 */
    [0xc9]          = {    0,  4, 1, shape_sized }, /* ext 32 */
    [0xca]          = {    0,  4, 0, shape_bytes }, /* float 32 */
    [0xcb]          = {    0,  8, 0, shape_bytes }, /* float 64 */
    [0xcc]          = {    0,  1, 0, shape_bytes }, /* uint 8 */
    [0xcd]          = {    0,  2, 0, shape_bytes }, /* uint 16 */
    [0xce]          = {    0,  4, 0, shape_bytes }, /* uint 32 */
    [0xcf]          = {    0,  8, 0, shape_bytes }, /* uint 64 */
    [0xd0]          = {    0,  1, 0, shape_bytes }, /* int 8 */
    [0xd1]          = {    0,  2, 0, shape_bytes }, /* int 16 */
    [0xd2]          = {    0,  4, 0, shape_bytes }, /* int 32 */
    [0xd3]          = {    0,  8, 0, shape_bytes }, /* int 64 */
    [0xd4]          = {    0,  1, 1, shape_bytes }, /* fixext 1 */
    [0xd5]          = {    0,  2, 1, shape_bytes }, /* fixext 2 */
    [0xd6]          = {    0,  4, 1, shape_bytes }, /* fixext 4 */
    [0xd7]          = {    0,  8, 1, shape_bytes }, /* fixext 8 */
    [0xd8]          = {    0, 16, 1, shape_bytes }, /* fixext 16 */
    [0xd9]          = {    0,  1, 0, shape_sized }, /* str 8 */
    [0xda]          = {    0,  2, 0, shape_sized }, /* str 16 */
    [0xdb]          = {    0,  4, 0, shape_sized }, /* str 32 */
    [0xdc]          = {    0,  2, 1, shape_items }, /* array 16 */
    [0xdd]          = {    0,  4, 1, shape_items }, /* array 32 */
    [0xde]          = {    0,  2, 2, shape_items }, /* map 16 */
    [0xdf]          = {    0,  4, 2, shape_items }, /* map 32 */
    [0xe0 ... 0xff] = {    0,  0, 0, shape_bytes }, /* negative fixint */
};
/* clang-format on */

struct walk {
    kvb_span in;
    size_t at; /* offset of the next unread byte */
};

static size_t guard_bytes_left(const struct walk *w)
{
    return w->in.len - w->at;
}

static kvb_status skip(struct walk *w, uint64_t bytes)
{
    if (bytes > guard_bytes_left(w)) {
        return KVB_BAD_INPUT;
    }
    w->at += (size_t)bytes;
    return KVB_OK;
}

static kvb_status read_be(struct walk *w, unsigned bytes, uint64_t *out_value)
{
    uint64_t value = 0;

    if (bytes > guard_bytes_left(w)) {
        return KVB_BAD_INPUT;
    }
    for (unsigned i = 0; i < bytes; i++) {
        value = (value << 8) | w->in.data[w->at++];
    }
    *out_value = value;
    return KVB_OK;
}

/* Reads one type byte with its length and bytes; *out_items is how many values it contains (0
 * for a scalar). */
static kvb_status step_over_item(struct walk *w, uint64_t *out_items)
{
    uint64_t type = 0;
    uint64_t count = 0;

    KVB_TRY(read_be(w, 1, &type));
    const struct form *form = &forms[type];
    count = type & form->mask;
    switch ((enum shape)form->shape) {
    case shape_bytes:
        KVB_TRY(skip(w, count + form->count + form->extra));
        *out_items = 0;
        return KVB_OK;
    case shape_sized:
        KVB_TRY(read_be(w, form->count, &count));
        KVB_TRY(skip(w, count + form->extra));
        *out_items = 0;
        return KVB_OK;
    case shape_items:
        if (form->count > 0) {
            KVB_TRY(read_be(w, form->count, &count));
        }
        /* Each item takes a byte at least, so a count above the bytes left is a lie. */
        *out_items = count * form->extra;
        return *out_items <= guard_bytes_left(w) ? KVB_OK : KVB_BAD_INPUT;
    case shape_never:
        break;
    }
    return KVB_BAD_INPUT;
}

kvb_status kvb_mp_guard(kvb_span in, unsigned max_depth, size_t *out_used)
{
    struct walk w = { .in = in };
    uint64_t pending[deepest + 1]; /* values still to read, by depth; set on the way down */
    unsigned depth = 0;

    if (max_depth > deepest) {
        return KVB_TOO_LARGE;
    }
    pending[0] = 1;
    for (;;) {
        uint64_t items = 0;

        /* All values of this level are read: back to the one around it. */
        while (pending[depth] == 0 && depth > 0) {
            depth--;
        }
        if (pending[depth] == 0) {
            *out_used = w.at;
            return KVB_OK;
        }
        pending[depth]--;
        KVB_TRY(step_over_item(&w, &items));
        /* An empty container is no level. */
        if (items > 0) {
            if (depth == max_depth) {
                return KVB_TOO_LARGE;
            }
            pending[++depth] = items;
        }
    }
}
