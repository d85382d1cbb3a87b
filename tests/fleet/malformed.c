#include "fleet/malformed.h"

#include <assert.h>
#include <string.h>

/* A payload is a part of a good payload, in copies, and then a run of bytes, repeated. */
struct kind {
    const char *name;
    const char *bytes;
    size_t len;
    size_t times;
    size_t (*cut)(size_t whole); /* length of the kept head; NULL: 0 */
    size_t skipped;              /* bytes skipped at the front */
    size_t copies;               /* copies of the kept part */
};

static size_t all(size_t whole)
{
    return whole;
}

static size_t all_but_one(size_t whole)
{
    return whole > 0 ? whole - 1 : 0;
}

static size_t half(size_t whole)
{
    return whole / 2;
}

/* Cuts a good payload right after its number of events. */
static size_t head(size_t whole)
{
    const size_t before_events = 10;

    return whole > before_events ? before_events : all_but_one(whole);
}

#define BYTES(text) (text), sizeof(text) - 1, 1
#define REPEATED(text, times) (text), sizeof(text) - 1, (times)

/* [ts, ...] with the ts of a batch; the next bytes declare a false length. */
#define HEAD "\x93\xcb\x41\xd9\x54\xfc\x40\x20\x00\x00"

/* clang-format off */
static const struct kind kinds[kvb_malformed_kinds] = {
    { "unused_byte",       BYTES("\xc1"), NULL, 0, 0 },
    { "unused_bytes",      BYTES("\xc1\xc1\xc1"), NULL, 0, 0 },
    { "zero",              BYTES("\x00"), NULL, 0, 0 },
    { "minus_one",         BYTES("\xff"), NULL, 0, 0 },
    { "nil",               BYTES("\xc0"), NULL, 0, 0 },
    { "json",              BYTES("{}"), NULL, 0, 0 },
    { "plain_text",        BYTES("plain text"), NULL, 0, 0 },
    { "empty_array",       BYTES("\x90"), NULL, 0, 0 },
    { "lying_array",       BYTES("\xdd\x05\xf5\xe1\x00"), NULL, 0, 0 },
    { "lying_map",         BYTES("\xdf\xff\xff\xff\xff"), NULL, 0, 0 },
    { "lying_small_map",   BYTES("\xdf\x7f\xff\xff\xff"), NULL, 0, 0 },
    { "lying_events",      BYTES(HEAD "\xdd\x05\xf5\xe1\x00\x00"), NULL, 0, 0 },
    { "lying_string",      BYTES(HEAD "\xdb\x7f\xff\xff\xff"), NULL, 0, 0 },
    { "lying_bytes",       BYTES(HEAD "\xc6\x7f\xff\xff\xff"), NULL, 0, 0 },
    { "lying_extension",   BYTES(HEAD "\xc9\x7f\xff\xff\xff\x01"), NULL, 0, 0 },
    { "deep_arrays",       REPEATED("\x91", 100000), NULL, 0, 0 },
    { "deep_pairs",        REPEATED("\x92", 60000), NULL, 0, 0 },
    { "deep_maps",         REPEATED("\x81\xa1""a", 50000), NULL, 0, 0 },
    { "without_last_byte", NULL, 0, 0, all_but_one, 0, 1 },
    { "first_half",        NULL, 0, 0, half, 0, 1 },
    { "head_only",         NULL, 0, 0, head, 0, 1 },
    { "without_first_byte", NULL, 0, 0, all, 1, 1 },
    { "twice",             NULL, 0, 0, all, 0, 2 },
    { "byte_after",        BYTES("\x00"), all, 0, 1 },
};
/* clang-format on */

const char *kvb_malformed_name(size_t kind)
{
    assert(kind < kvb_malformed_kinds);
    return kinds[kind].name;
}

kvb_status kvb_malformed_find(const char *name, size_t *out_kind)
{
    for (size_t kind = 0; kind < kvb_malformed_kinds; kind++) {
        if (strcmp(name, kinds[kind].name) == 0) {
            *out_kind = kind;
            return KVB_OK;
        }
    }
    return KVB_NOT_FOUND;
}

static kvb_status make(const struct kind *kind, kvb_span good, struct kvb_buf *out)
{
    const size_t end = kind->cut ? kind->cut(good.len) : 0;

    for (size_t i = 0; i < kind->copies && end > kind->skipped; i++) {
        KVB_TRY(kvb_buf_append(out, good.data + kind->skipped, end - kind->skipped));
    }
    for (size_t i = 0; i < kind->times; i++) {
        KVB_TRY(kvb_buf_append(out, kind->bytes, kind->len));
    }
    return KVB_OK;
}

kvb_status kvb_malformed_make(size_t kind, kvb_span good, struct kvb_buf *out)
{
    const size_t before = out->len;

    assert(kind < kvb_malformed_kinds);
    const kvb_status status = make(&kinds[kind], good, out);
    if (status != KVB_OK) {
        out->len = before;
    }
    return status;
}
