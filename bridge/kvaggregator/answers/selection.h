#pragma once

#include "core/status.h"
#include "kvaggregator/answers/query_context.h"
#include "model/query.h"

#include <stdbool.h>

/* Applies what a request selects (struct kvb_selection): workers and a route policy.  Explains why
 * no worker is left.  Threads: only the thread that owns the query context. */

/* True: the worker serves the name by which the query asks for its model.  A worker whose list of
 * names is not known, or not whole, may serve it. */
bool kvb_selection_serves(const struct kvb_query *query, const struct kvb_follower *follower);

/* True: it does, and the labels and candidates of the query select the worker, which may still be
 * DOWN or draining. */
bool kvb_selection_takes(const struct kvb_query *query, const struct kvb_follower *follower);

/* True: it takes each worker of the model, so none need be looked at. */
bool kvb_selection_takes_all(const struct kvb_query *query);

/* The configured options, with the policy that the query names.  KVB_BAD_INPUT: the policy is
 * unknown, and detail lists the known ones; or it is gone, and detail names what serves in its
 * place. */
kvb_status kvb_route_options_for(
    const struct kvb_query_context *ctx, const struct kvb_query *query,
    struct kvb_route_options *out_options, struct kvb_detail *detail);

/* Explains in detail why no worker could be chosen, and returns the status of the answer.
 * KVB_NOT_FOUND  no worker of the model has the label, or is among the candidates
 * KVB_AGAIN      such workers exist; detail counts for which reasons they are excluded */
kvb_status kvb_route_explain_none(
    const struct kvb_query_context *ctx, struct kvb_query *query, struct kvb_detail *detail);
