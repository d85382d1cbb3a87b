#pragma once

#include "core/buf.h"
#include "core/span.h"
#include "core/status.h"
#include "model/query.h"

/* Reads the long list of a query without json-c, which would allocate an object for each number:
 *
 *     {"model":"m","token_ids":[1,2,3, ... ],"cache_salt":"s"}
 *                              ^ numbers ^
 *     {"model":"m","token_ids":[],"cache_salt":"s"}              what is left for json-c
 *
 * Cost: some 1 ns per digit.  Threads: any thread. */

/* KVB_OK: *query contains the list, which the caller owns, and *rest all other text.
 * KVB_NOT_FOUND  no list of this form, or any mistake in it: *query is unchanged, and
 *                json-c must parse the whole text
 * KVB_NO_MEMORY */
kvb_status kvb_query_list_read(kvb_span json, struct kvb_query *query, struct kvb_buf *rest);
