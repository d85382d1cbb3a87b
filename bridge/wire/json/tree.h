#pragma once

#include "core/span.h"
#include "core/status.h"
#include "wire/json/scan.h"

#include <json-c/json.h>
#include <stddef.h>
#include <stdint.h>

/* Parses JSON with json-c, after kvb_json_guard() has checked the text.  json-c alone takes up
 * to 800 bytes of heap for the two bytes "{}", accepts text that is not JSON, and replaces
 * numbers beyond 64 bits by the nearest one; the guard bounds the memory, refuses such text, and
 * reports such numbers.
 *
 * On KVB_OK the caller owns *out_root and frees it with kvb_json_drop(); it is NULL for the text
 * `null`, like every null inside.  budget->depth is at most 31, json-c's own limit.
 * Threads: the caller locks.
 *
 * KVB_BAD_INPUT  not JSON, more bytes after it, or not UTF-8
 * KVB_TOO_LARGE  the budget is used up
 * KVB_NO_MEMORY */
kvb_status
kvb_json_parse(kvb_span text, struct kvb_json_budget *budget, struct json_object **out_root);

/* For KVB_OWN; NULL inside is fine. */
void kvb_json_drop(struct json_object **root);

/* The member if it is present and not null; else NULL. */
struct json_object *kvb_json_member(struct json_object *object, const char *name);

/* The member if it is a string; else "".  The object keeps it. */
const char *kvb_json_member_text(struct json_object *object, const char *name);

/* The member as an integer; 0 if it is none, or negative. */
uint64_t kvb_json_member_u64(struct json_object *object, const char *name);

/* The elements of an array; 0 for anything else. */
size_t kvb_json_list_len(struct json_object *list);

/* Copies a string without NULs inside into out (size bytes with the NUL).
 * KVB_BAD_INPUT  not a string, or a longer one */
kvb_status kvb_json_text(struct json_object *value, char *out, size_t size);

/* Reads an integer from 0 to max.  KVB_BAD_INPUT: another value, or NULL. */
kvb_status kvb_json_number(struct json_object *value, uint64_t max, uint64_t *out_number);
