#pragma once

#include "core/span.h"
#include "core/status.h"
#include "wire/json_scan.h"

#include <json-c/json.h>

/* A parsed JSON text: json-c behind our guard.  json-c takes up to 800 bytes of
 * heap for the two of "{}", reads looser text than JSON and replaces numbers
 * beyond 64 bits by the nearest one; the guard refuses, bounds and notices.
 *
 * On KVB_OK the caller owns *out_root and ends it with kvb_json_drop(); it is
 * NULL for a text that is `null`, like every null inside.  budget->depth is at
 * most 31, json-c's own limit.
 * Threads: the caller locks.
 *
 * KVB_BAD_INPUT  no JSON, bytes after it, no UTF-8
 * KVB_TOO_LARGE  the budget is used up
 * KVB_NO_MEMORY */
kvb_status
kvb_json_parse(kvb_span text, struct kvb_json_budget *budget, struct json_object **out_root);

/* For KVB_OWN; NULL inside is fine. */
void kvb_json_drop(struct json_object **root);

/* A member that is there and not null; else NULL. */
struct json_object *kvb_json_member(struct json_object *object, const char *name);

/* Copies a string without NULs inside into out (size bytes with the NUL).
 * KVB_BAD_INPUT  no string, or longer */
kvb_status kvb_json_text(struct json_object *value, char *out, size_t size);
