#pragma once

#include "serve/view.h"

/* What view.c (models, order, listing) and view_overlaps.c (hashing, matching) share.  Nobody
 * else includes it. */

/* Lists the streams that the query may be answered with, by id, unless they are listed
 * already.  KVB_NO_MEMORY. */
kvb_status kvb_view_list(
    struct kvb_view *view, const struct kvb_query *query, const char *model,
    struct kvb_view_ask ask);

bool kvb_view_is_same_shape(struct kvb_block_shape a, struct kvb_block_shape b);

/* Its place in the listing; shape_count when it is not there. */
size_t kvb_view_find_shape(const struct kvb_view_listing *listing, struct kvb_block_shape shape);

int kvb_view_compare_ids(const struct kvb_stream_id *a, const struct kvb_stream_id *b);
