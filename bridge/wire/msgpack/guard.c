#include "wire/msgpack/guard.h"

#include <stdint.h>

enum { deepest = 32 };

enum shape {
    shape_bytes, /* `count` bytes follow */
    shape_sized, /* a length of `count` bytes, then that many bytes */
    shape_items, /* the item count is in the type byte, or in `count` bytes */
    shape_never,
};

/* The MessagePack spec as a table, one row per run of type bytes.  `mask` picks the part of the
 * type byte that is itself the count; `extra` is added to a byte length (ext's tag) and
 * multiplied into items (a map's pairs are two items each).  One table look-up per value. */
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

        while (pending[depth] == 0 && depth > 0) {
            depth--;
        }
        if (pending[depth] == 0) {
            *out_used = w.at;
            return KVB_OK;
        }
        pending[depth]--;
        KVB_TRY(step_over_item(&w, &items));
        if (items > 0) {
            if (depth == max_depth) {
                return KVB_TOO_LARGE;
            }
            pending[++depth] = items;
        }
    }
}
