#pragma once

#include "core/buf.h"
#include "core/span.h"
#include "core/status.h"
#include "model/query.h"

/* The long part of a question, read without json-c, which would make an object of each
 * number:
 *
 *     {"model":"m","token_ids":[1,2,3, ... ],"cache_salt":"s"}
 *                              ^ numbers ^
 *     {"model":"m","token_ids":[],"cache_salt":"s"}              what is left for json-c
 *
 * Cost: some 1 ns a digit.  Threads: any thread. */

/* KVB_OK: *query holds the list, which is its caller's then, and rest all else.
 * KVB_NOT_FOUND  nothing that can be read so, whatever may be wrong with it: *query is as
 *                it was, and the whole text is json-c's
 * KVB_NO_MEMORY */
kvb_status kvb_query_list_read(kvb_span json, struct kvb_query *query, struct kvb_buf *rest);
