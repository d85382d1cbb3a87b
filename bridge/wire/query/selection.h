#pragma once

#include "core/span.h"
#include "core/status.h"
#include "model/query.h"

/* Reads the fields by which a query or a route request selects workers:
 *
 *     policy      text: the name of a route policy; it is not looked up here
 *     labels      object of texts: the labels that a worker must have; the labels address and role
 *                 mean the worker's address and role
 *     role        text: the same as the label role
 *     candidates  array of worker ids and of addresses as text: a worker must be one of these
 *     dry_run     boolean: answer only; do not record the request
 *
 * Each may be absent or null. */
struct kvb_selection_members {
    kvb_span policy, labels, role, candidates, dry_run; /* values, see wire/json/value.h */
};

/* KVB_NOT_FOUND  a field is wrong; detail names it      KVB_NO_MEMORY
 * On failure the query owns what was read so far, and the caller still frees it. */
kvb_status kvb_selection_json_read(
    const struct kvb_selection_members *members, struct kvb_selection *selection,
    struct kvb_detail *detail);

/* Reads {name:value,...} and adds the pairs to *labels; errors as above. */
kvb_status
kvb_labels_json_read(kvb_span object, struct kvb_labels *labels, struct kvb_detail *detail);
