#pragma once

#include "core/span.h"
#include "core/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Scans JSON text (strictly RFC 8259) without allocating: used by the decoders of router events and
 * of queries, and to check text before json-c parses it.
 *
 *     {"worker_id":7, "event": ... }
 *                  ^ at                  ^ end
 *
 * Every read skips white space first.  KVB_BAD_INPUT: the text is something else; the scan must
 * not be continued.
 * Threads: the caller locks. */
struct kvb_json_scan {
    const uint8_t *at; /* borrowed, like end */
    const uint8_t *end;
};

/* Limits of a scan, and what it found. */
struct kvb_json_budget {
    unsigned depth;        /* nesting of arrays and objects */
    size_t containers;     /* arrays and objects; each is heap memory in json-c */
    size_t values;         /* numbers, strings, true, false, null */
    bool has_wide_integer; /* out: an integer beyond u64 and i64, which json-c would silently
                              replace by the nearest one */
};

/* A budget that limits the depth alone, which is what the stack is needed for. */
static inline struct kvb_json_budget kvb_json_depth(unsigned depth)
{
    return (struct kvb_json_budget){ .depth = depth, .containers = SIZE_MAX, .values = SIZE_MAX };
}

struct kvb_json_scan kvb_json_scan_of(kvb_span text);

/* Moves past c if it comes next; else moves past white space only and returns false. */
bool kvb_json_take(struct kvb_json_scan *scan, char c);
/* The same for a whole word, such as `null`. */
bool kvb_json_take_word(struct kvb_json_scan *scan, const char *word);
/* KVB_BAD_INPUT if anything else than c comes next. */
kvb_status kvb_json_expect(struct kvb_json_scan *scan, char c);

/* Digits only: no sign, no fraction, no exponent, no leading zero, at most
 * 2^64-1. */
kvb_status kvb_json_u64(struct kvb_json_scan *scan, uint64_t *out_value);
/* The same up to 2^32-1. */
kvb_status kvb_json_u32(struct kvb_json_scan *scan, uint32_t *out_value);

/* Reads numbers of a list, as kvb_json_u32() does, together with the comma after each:
 *
 *     17,2048, 91,5]      reads 17, 2048 and 91
 *                 ^ at
 *
 * Returns how many it has read, at most max.  May end anywhere before a number; the caller must
 * then read one with kvb_json_u32(), which also finds what is wrong.  Twice as fast as
 * that: 3 ns a number. */
size_t kvb_json_u32_run(struct kvb_json_scan *scan, uint32_t *out, size_t max);

/* The bytes between the quotes.  Escapes are checked but not decoded. */
kvb_status kvb_json_string(struct kvb_json_scan *scan, kvb_span *out_raw);

/* Skips one value of any type.  KVB_TOO_LARGE: the budget is used up. */
kvb_status kvb_json_skip(struct kvb_json_scan *scan, struct kvb_json_budget *budget);

/* The same, and says where it stands, without the white space before it. */
kvb_status
kvb_json_value(struct kvb_json_scan *scan, struct kvb_json_budget *budget, kvb_span *out_value);

/* KVB_BAD_INPUT when more than white space is left. */
kvb_status kvb_json_finish(struct kvb_json_scan *scan);

/* Checks that the text is one value and nothing else.  KVB_TOO_LARGE as above. */
kvb_status kvb_json_guard(kvb_span text, struct kvb_json_budget *budget);

/* Reads an object by a table.  Known fields may come in any order, each at most once.  Unknown
 * fields are skipped, nested at most 16 deep.  A key with escapes counts as unknown.
 * KVB_BAD_INPUT  not an object, a known field twice, or a required field missing
 * Others as the reader of a field returned them. */
struct kvb_json_field {
    const char *name;
    bool is_required;
    kvb_status (*read)(struct kvb_json_scan *scan, void *context);
};

kvb_status kvb_json_object(
    struct kvb_json_scan *scan, const struct kvb_json_field *fields, size_t count, void *context);

/* Reads an object with one key, which must be in the table: an unknown key is an error here, not
 * a field to skip.  Errors as above. */
kvb_status kvb_json_one_of(
    struct kvb_json_scan *scan, const struct kvb_json_field *kinds, size_t count, void *context);

/* Reads an array; calls `read` for each element. */
kvb_status kvb_json_array(
    struct kvb_json_scan *scan, kvb_status (*read)(struct kvb_json_scan *scan, void *context),
    void *context);
