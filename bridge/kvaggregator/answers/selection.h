#pragma once

#include "core/status.h"
#include "kvaggregator/answers/query_context.h"
#include "model/query.h"

#include <stdbool.h>

/* What a request selects (struct kvb_selection): workers, and to route it a policy; and why none
 * of them is left.  Threads: only the thread that owns the query context. */

/* By labels and candidates; it may still be DOWN or draining. */
bool kvb_selection_takes(const struct kvb_query *query, const struct kvb_follower *follower);

/* The configured options, with the policy that the query names.
 * KVB_BAD_INPUT  unknown policy; detail lists those that exist */
kvb_status kvb_route_options_for(
    const struct kvb_query_context *ctx, const struct kvb_query *query,
    struct kvb_route_options *out_options, struct kvb_detail *detail);

/* No worker could be chosen: fills detail, and returns what the request is answered with.
 * KVB_NOT_FOUND  no worker of the model has such a label, or is one of the candidates
 * KVB_AGAIN      there are some; detail counts what is wrong with each */
kvb_status kvb_route_explain_none(
    const struct kvb_query_context *ctx, const struct kvb_query *query, struct kvb_detail *detail);
