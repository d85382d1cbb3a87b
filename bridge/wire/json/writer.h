#pragma once

#include "core/buf.h"
#include "core/span.h"
#include "core/status.h"

#include <stdbool.h>
#include <stdint.h>

/* Writes compact JSON; adds commas and escapes itself:
 *
 *     kvb_json_write_begin(&json, '{');
 *     kvb_json_write_pair_u64(&json, "worker_id", 7);
 *     kvb_json_write_pair_begin(&json, "tokens", '[');  ...  kvb_json_write_end(&json, ']');
 *     kvb_json_write_end(&json, '}');
 *     return json.status;
 *
 * The first failure stays in `status`, and later calls do nothing, so the caller checks once at
 * the end.  Text appended before the failure stays in `out`.  The caller closes each bracket,
 * and writes a key before each value of an object.
 *
 * Threads: the caller locks. */
struct kvb_json_writer {
    struct kvb_buf *out; /* borrowed */
    kvb_status status;   /* KVB_OK, KVB_TOO_LARGE, KVB_NO_MEMORY */
    bool is_after_value; /* the next value needs a comma before it */
};

struct kvb_json_writer kvb_json_writer_of(struct kvb_buf *out);

void kvb_json_write_begin(struct kvb_json_writer *json, char bracket);
void kvb_json_write_end(struct kvb_json_writer *json, char bracket);

void kvb_json_write_key(struct kvb_json_writer *json, const char *key);
void kvb_json_write_key_u64(struct kvb_json_writer *json, uint64_t key); /* "7": */

/* Control characters, quotes and backslashes are escaped; bytes that are not UTF-8 become
 * U+FFFD, because text may come from peers. */
void kvb_json_write_text(struct kvb_json_writer *json, const char *text);

void kvb_json_write_span(struct kvb_json_writer *json, kvb_span text);
void kvb_json_write_u64(struct kvb_json_writer *json, uint64_t value);
/* Writes up to 9 digits; NaN and infinity become null. */
void kvb_json_write_number(struct kvb_json_writer *json, double value);
/* Writes the fewest digits that read back as the same float.  The text always has a point or an
 * exponent, so that a typed reader does not read an integer.  NaN and infinity become 0.0. */
void kvb_json_write_float(struct kvb_json_writer *json, float value);
/* Writes up to 16 digits, which represent a wall-clock time to the microsecond. */
void kvb_json_write_time(struct kvb_json_writer *json, double value);
void kvb_json_write_bool(struct kvb_json_writer *json, bool value);
void kvb_json_write_null(struct kvb_json_writer *json);

/* For rows of which an answer has many: room for at most max_bytes of JSON text, which the caller
 * writes itself.  The comma before it is written.  NULL: the failure is in `status`.
 *
 *     char *at = kvb_json_write_open(&json, 64);
 *     if (at) {
 *         at = ... ;  the next value or member, or several
 *         kvb_json_write_close(&json, at);
 *     } */
char *kvb_json_write_open(struct kvb_json_writer *json, size_t max_bytes);
void kvb_json_write_close(struct kvb_json_writer *json, const char *end);

/* A key and its value. */
void kvb_json_write_pair_text(struct kvb_json_writer *json, const char *key, const char *text);
void kvb_json_write_pair_u64(struct kvb_json_writer *json, const char *key, uint64_t value);
void kvb_json_write_pair_bool(struct kvb_json_writer *json, const char *key, bool value);
void kvb_json_write_pair_number(struct kvb_json_writer *json, const char *key, double value);
void kvb_json_write_pair_begin(struct kvb_json_writer *json, const char *key, char bracket);

/* Numbers of 64 bits that readers with doubles must not round are texts of hexadecimal digits. */
enum { kvb_hex_digits = 16 };

/* Writes the digits without a NUL. */
void kvb_hex_write(char out[kvb_hex_digits], uint64_t value);
