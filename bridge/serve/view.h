#pragma once

#include "core/detail.h"
#include "core/status.h"
#include "index/prefix_index.h"
#include "load/route.h"
#include "load/tracker.h"
#include "model/query.h"
#include "stream/follower.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* All that answers are made of, and the one question behind most of them: how
 * much of this prompt does each stream hold?
 *
 *     query --model--> streams of that model --block size--> tokens hashes
 *                                                   index --> depth per slot
 *                                               followers --> overlap per stream
 *
 * A query is hashed once per block size in use among the streams of its model.
 * A depth is the held prefix of one tier: blocks 0 .. n-1 all lie there.  A
 * prefix that begins in one tier and goes on in another counts for what lies in
 * one piece; the longest of the tiers is the stream's overlap.
 *
 * Streams are kept in the order of their ids, which is made anew when one comes or goes:
 * a query sorts only those that hold something of it.
 *
 * Threads: only the thread that owns index, followers and tracker.
 * Memory:  the scratch grows with the largest query and the number of streams. */

/* One (block size, EAGLE or not): what a prompt must be hashed for. */
struct kvb_view_shape {
    uint32_t block_size; /* tokens */
    bool eagle;
};

struct kvb_overlap {
    const struct kvb_follower *follower; /* borrowed until the next change */
    struct kvb_view_shape shape;
    size_t request_blocks;           /* complete blocks of the query */
    uint32_t depths[KVB_TIER_COUNT]; /* blocks, per tier */
    uint32_t blocks;                 /* the longest of them */
};

struct kvb_view {
    struct kvb_prefix_index *index; /* the three: borrowed */
    struct kvb_followers *followers;
    struct kvb_load_tracker *tracker;
    struct kvb_route_options route;
    const char *default_model; /* of streams without heartbeats; borrowed; "" = none */
    uint32_t default_block_size;
    uint64_t turn; /* counts route decisions */
    uint64_t luck; /* state of the random sequence; any seed */
    /* scratch, owned: kvb_view_done() */
    struct kvb_match match;
    struct kvb_overlap *overlaps;
    uint32_t *places;          /* by follower number: 1 + position in overlaps, or 0 */
    uint32_t *order;           /* follower numbers, by id */
    uint64_t order_generation; /* of the followers; 0: none yet */
    kvb_tokens_hash *hashes;
    const struct kvb_follower **sorted;
    size_t overlap_count, overlap_capacity, place_capacity, order_count, order_capacity;
    size_t hash_capacity, sorted_capacity;
};

/* Frees the scratch only. */
void kvb_view_done(struct kvb_view *view);

/* Model and block size of a stream; of one without heartbeats the defaults. */
const char *kvb_view_model(const struct kvb_view *view, const struct kvb_follower *follower);
uint32_t kvb_view_block_size(const struct kvb_view *view, const struct kvb_follower *follower);

/* Which model the query means.
 * KVB_NOT_FOUND  no stream has it; detail says so as Dynamo's indexer does
 * KVB_BAD_INPUT  it names none and there are several: detail names the field */
kvb_status kvb_view_find_model(
    const struct kvb_view *view, const struct kvb_query *query, const char **out_model,
    struct kvb_detail *detail);

struct kvb_view_ask {
    bool with_down; /* list streams that are DOWN too */
    bool with_none; /* list streams that hold nothing of it too */
};

/* Fills view->overlaps, best first: most tokens, then lowest worker and rank.
 * KVB_NOT_FOUND, KVB_BAD_INPUT  as kvb_view_find_model()   KVB_NO_MEMORY */
kvb_status kvb_view_overlaps(
    struct kvb_view *view, const struct kvb_query *query, struct kvb_view_ask ask,
    struct kvb_detail *detail);

/* Fills view->sorted with all streams by worker, component and rank; out_count of
 * them.  KVB_NO_MEMORY. */
kvb_status kvb_view_sort(struct kvb_view *view, size_t *out_count);

/* The next number of the view's random sequence, 0 <= draw < 1. */
double kvb_view_draw(struct kvb_view *view);
