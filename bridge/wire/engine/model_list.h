#pragma once

#include "core/span.h"
#include "core/status.h"
#include "model/served_names.h"

/* Decodes an engine's answer to GET /v1/models, the names by which requests may ask it.
 *
 *     {"object":"list","data":[
 *         {"id":"qwen",     "root":"Qwen/Qwen3-8B","parent":null},    the base model
 *         {"id":"chat",     "root":"Qwen/Qwen3-8B","parent":null},    a second name of it
 *         {"id":"sql-lora", "root":"/loras/sql",   "parent":"qwen"}]}  an adapter of it
 *
 * The base model is the entry without a parent whose id or root is `model`; where there is none,
 * the entries without a parent if all have one root.  vLLM and SGLang write these fields; an engine
 * without LoRA may leave out `root` and `parent`.  Unknown fields are skipped.
 *
 * names: `model` itself is not among them.  Those beyond the bounds of kvb_served_names, and those
 * that are no names there, are counted in left_out.
 * Threads: any thread.
 *
 * KVB_BAD_INPUT  not such a list, or one of several models of which none is `model`, as of a
 * router; detail says which KVB_TOO_LARGE  more than kvb_max_model_list_bytes KVB_NO_MEMORY On
 * failure *out_names is unchanged. */
kvb_status kvb_model_list_decode(
    kvb_span json, const char *model, struct kvb_served_names *out_names,
    struct kvb_detail *detail);
