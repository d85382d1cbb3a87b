#pragma once

#include "core/status.h"
#include "model/query.h"
#include "wire/json/tree.h"

/* What a query says of the workers that it is about, and a route request of those that it may go
 * to:
 *
 *     policy      text: the name of a route policy; read, but not looked up
 *     labels      object of texts: the labels that a worker must have; address and role among them
 *                 are those of the worker
 *     role        text: the same as a label of that name
 *     candidates  array of worker ids and of addresses as text: the worker is one of these
 *     dry_run     boolean
 *
 * Each may be absent or null.
 *
 * KVB_NOT_FOUND  one of them is wrong; detail names it      KVB_NO_MEMORY
 * On failure the caller still ends the query, which owns what was read so far. */
kvb_status kvb_selection_json_read(
    struct json_object *root, struct kvb_selection *selection, struct kvb_detail *detail);

/* {name:value,...}, added to *labels; errors as above. */
kvb_status kvb_labels_json_read(
    struct json_object *object, struct kvb_labels *labels, struct kvb_detail *detail);
