#pragma once

#include "kvaggregator/answers/query_context.h"

/* What query_context.c (models, order, listing), overlaps.c (hashing, matching) and route.c share.
 * Nobody else includes it. */

/* Lists the streams that the query may be answered with, by id, unless they are listed
 * already.  KVB_NO_MEMORY. */
kvb_status kvb_query_context_list(
    struct kvb_query_context *ctx, const struct kvb_query *query, const char *model,
    struct kvb_listing_options options);

bool kvb_block_shape_is_same(struct kvb_block_shape a, struct kvb_block_shape b);

/* Its place in the listing; shape_count when it is not there. */
size_t kvb_listing_find_shape(const struct kvb_listing *listing, struct kvb_block_shape shape);
