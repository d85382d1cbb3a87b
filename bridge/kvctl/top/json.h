#pragma once

#include "core/buf.h"
#include "core/span.h"
#include "kvctl/top/model.h"

#include <json-c/json.h>
#include <stdbool.h>
#include <stdint.h>

/* JSON in and out.  Threads: any thread. */

/* ---- Single values out of answers that may hold anything ---- */

/* Parses one message, bounded.  The caller ends *out_root with kvb_json_drop().
 * KVB_BAD_INPUT: no JSON object.  KVB_TOO_LARGE, KVB_NO_MEMORY */
kvb_status kvctl_top_parse(kvb_span text, struct json_object **out_root);

/* The elements of a member that is an array; 0 for anything else. */
size_t kvctl_top_list(struct json_object *object, const char *name, struct json_object **out_list);

/* A whole number from 0; false, and 0, for anything else. */
bool kvctl_top_u64(struct json_object *object, const char *name, uint64_t *out_value);

/* Any finite number; unknown for anything else. */
struct kvctl_top_figure kvctl_top_number(struct json_object *object, const char *name);

/* A text, cut; "" for anything else. */
void kvctl_top_word(struct json_object *object, const char *name, char *out, size_t size);

/* ---- Out ---- */

/* `kvctl top --once --json`: the model as one JSON object, and a line end.  Figures
 * that are not known are null.  Rows must have been selected.
 * KVB_TOO_LARGE, KVB_NO_MEMORY */
kvb_status kvctl_top_json(const struct kvctl_top_model *model, struct kvb_buf *out);
