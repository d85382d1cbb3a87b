#pragma once

#include "core/status.h"
#include "index/block_set.h"
#include "index/index.h"
#include "load/peers.h"
#include "load/predictions.h"
#include "load/requests.h"
#include "load/route.h"
#include "load/tracker.h"
#include "model/query.h"
#include "replica/follower.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The data from which answers are made, and the query that most of them need: how much of this
 * prompt does each stream hold?
 *
 *     query --model--> streams of that model --block shape--> tokens hashes
 *                                                   index --> depth per slot
 *                                               followers --> tokens per tier and stream
 *
 * A query is hashed once per block shape in use among the streams of its model.
 * A depth is the held prefix of one tier: blocks 0 .. n-1 all lie there.  A tier may
 * hold blocks of several shapes: what it holds is the longest prefix, in tokens, that
 * lies there in blocks of one shape.  A prefix that begins in one tier and goes on in
 * another counts for what lies in one piece; the longest of the tiers is the stream's
 * overlap.  A query of hashes is of each stream's device shape, and says nothing about
 * tiers of other shapes.
 *
 * Of a hybrid model, the device's prefix is cut to what its sliding-window groups can use
 * (kvb_usable_blocks()).
 *
 * Streams of stores are no workers: they are found by the same query, and kept apart.
 *
 * Streams are kept in the order of their ids, which is made anew when one comes or goes, and
 * those that a query may be answered with until their traits change: another query of that
 * model looks only at those that hold something of it.
 *
 * Threads: only the thread that owns index, followers and tracker.
 * Memory:  the scratch grows with the largest query and the number of streams. */

enum { kvb_listing_max_shapes = 16 };

struct kvb_overlap {
    const struct kvb_follower *follower; /* borrowed until the next change */
    struct kvb_stream_key key;           /* of the follower; the books find it by that */
    uint32_t number;                     /* of the follower */
    struct kvb_block_shape shape;        /* of the device tier's blocks */
    /* Of its heartbeat, which lies elsewhere: a common prompt is held by all of the fleet. */
    bool is_plain; /* all tiers have that shape, and there is no window */
    bool is_paired;
    bool is_store;
    size_t request_blocks; /* complete blocks of the query, of that shape */
    uint64_t tokens[KVB_TIER_COUNT];
    uint64_t max_tokens; /* the longest of them */
    uint64_t hit_tokens; /* the device's that a request is given; 0 for queries of hashes */
    uint64_t blocks;     /* max_tokens in blocks of that shape, rounded down */
};

struct kvb_listing_options {
    bool with_down; /* list streams that are DOWN too */
    bool with_none; /* list streams that hold nothing of it too */
    size_t ordered; /* so many of the best are in order, the others behind them in any; 0: all */
};

/* The block shape in the head of an answer: of the best stream, or, when no stream holds any block
 * of the query, of the first one searched. */
struct kvb_query_head {
    uint32_t block_size; /* 0: no stream was searched */
    size_t blocks;       /* complete ones of the query */
    bool has_several;    /* block sizes among the workers asked */
};

/* The streams that queries of one model may be answered with, by id. */
struct kvb_listing {
    char model[kvb_model_bytes + 1];
    bool is_made; /* for that model, all its workers, and what stands below */
    bool with_down;
    uint64_t traits;           /* of the followers */
    const char *default_model; /* borrowed */
    uint32_t default_block_size;
    struct kvb_overlap *streams; /* owned; holding nothing, but while a query is answered */
    uint32_t *places;            /* owned; by follower number: 1 + position in streams, or 0 */
    uint32_t *holders;           /* owned; positions in streams: of this query */
    size_t count, capacity, place_capacity, holder_count, holder_capacity;
    struct kvb_block_shape shapes[kvb_listing_max_shapes];
    size_t request_blocks[kvb_listing_max_shapes]; /* of this query, for each shape */
    size_t shape_count;
    bool has_worker;        /* or else: stores alone */
    bool has_several_sizes; /* of the workers' device blocks */
    size_t first_worker;    /* position in streams */
};

struct kvb_query_context {
    struct kvb_prefix_index *index; /* the three: borrowed */
    struct kvb_followers *followers;
    struct kvb_load_tracker *tracker;
    /* The books of decisions; borrowed. */
    struct kvb_requests *requests;
    struct kvb_predictions *predictions;
    const struct kvb_peers *peers; /* borrowed; NULL: none are known */
    bool leads;                    /* this aggregator publishes load_stats */
    uint64_t now_ns;               /* of the query at hand, for the books; the caller sets it */
    const char *aggregator_id;     /* borrowed; begins the ids of requests that come without one */
    uint64_t request_ttl_ms;       /* of requests that name none */
    struct kvb_route_options route;
    const char *default_model; /* of streams without heartbeats; borrowed; "" = none */
    uint32_t default_block_size;
    uint64_t turn;       /* counts route decisions */
    uint32_t next_place; /* behind the follower that was chosen last */
    uint64_t random;     /* state of the random sequence; any seed */
    /* scratch, owned: kvb_query_context_done() */
    struct kvb_match match;
    struct kvb_listing listing;
    struct kvb_overlap *overlaps; /* of workers, and behind them of stores */
    struct kvb_route_candidate *candidates;
    struct kvb_query_head head;
    uint32_t *order;           /* follower numbers, by id */
    uint64_t order_generation; /* of the followers; 0: none yet */
    kvb_tokens_hash *hashes;
    struct kvb_block_shape hashed_shape; /* of those, where the query has tokens */
    size_t hashed_count;
    kvb_block_hash *names; /* the rolling hashes of those */
    const struct kvb_follower **sorted;
    size_t shared_at, shared_count; /* of the stores, in overlaps */
    size_t overlap_count, overlap_capacity, order_count, order_capacity, candidate_capacity;
    size_t hash_capacity, name_capacity, sorted_capacity;
};

/* Frees the scratch only. */
void kvb_query_context_done(struct kvb_query_context *ctx);

/* Model and block size of a stream; of one without heartbeats the defaults. */
const char *
kvb_query_context_model(const struct kvb_query_context *ctx, const struct kvb_follower *follower);
uint32_t kvb_query_context_block_size(
    const struct kvb_query_context *ctx, const struct kvb_follower *follower);

/* Which model the query means.
 * KVB_NOT_FOUND  no stream has it; detail says so as Dynamo's indexer does
 * KVB_BAD_INPUT  it names none and there are several: detail names the field */
kvb_status kvb_query_context_find_model(
    const struct kvb_query_context *ctx, const struct kvb_query *query, const char **out_model,
    struct kvb_detail *detail);

/* Fills ctx->overlaps, best first: most tokens, then lowest worker and rank, those of stores
 * behind the overlap_count of workers; and ctx->head.  Stores are asked whatever instance_id
 * says, and listed only where they hold something.
 * KVB_NOT_FOUND, KVB_BAD_INPUT  as kvb_query_context_find_model()   KVB_NO_MEMORY */
kvb_status kvb_query_context_overlaps(
    struct kvb_query_context *ctx, const struct kvb_query *query,
    struct kvb_listing_options options, struct kvb_detail *detail);

/* The canonical names of the query's blocks of this shape; borrowed until the next call or query.
 * After kvb_query_context_overlaps() of the same query.  KVB_NO_MEMORY. */
kvb_status kvb_query_context_names(
    struct kvb_query_context *ctx, const struct kvb_query *query, struct kvb_block_shape shape,
    const kvb_block_hash **out_names, size_t *out_count);

/* Fills ctx->sorted with all streams by worker, component and rank; out_count of
 * them.  KVB_NO_MEMORY. */
kvb_status kvb_query_context_sort(struct kvb_query_context *ctx, size_t *out_count);

/* The next number of the query context's random sequence, 0 <= draw < 1. */
double kvb_query_context_draw(struct kvb_query_context *ctx);

/* ---- What query_context.c (models, order, listing), overlaps.c (hashing, matching) and route.c
 * share; for nobody else ---- */

/* Lists the streams that the query may be answered with, by id, unless they are listed
 * already.  KVB_NO_MEMORY. */
kvb_status kvb_query_context_list(
    struct kvb_query_context *ctx, const struct kvb_query *query, const char *model,
    struct kvb_listing_options options);

bool kvb_block_shape_is_same(struct kvb_block_shape a, struct kvb_block_shape b);

/* Its place in the listing; shape_count when it is not there. */
size_t kvb_listing_find_shape(const struct kvb_listing *listing, struct kvb_block_shape shape);

/* ---- How much of a held prefix a request is given ----
 *
 * Source: the lookups of vLLM 0.33 and of SGLang 0.5.23, as recorded in tests/data/probes.
 * Threads: any thread; nothing is kept. */

/* Blocks that the sliding-window groups must hold at the end of a usable prefix: those that
 * the window of the next token reaches back into.  0: none. */
size_t kvb_window_need(uint32_t window_tokens, uint32_t block_size);

/* Of a hybrid model, how many of the blocks names[0 .. count - 1], all held by the
 * full-attention groups, can be used: the prefix ends with the last run of `need` blocks that
 * the window list holds, and without such a run with the run at the prompt's beginning.
 *
 *     need 2, window list:   0 1 . . 4 5 . 7      usable: 6 blocks
 *                            0 . . . 4 . . 7      usable: 1 block
 *
 * window NULL: an empty list.  Cost: at most one look into the set for each block. */
size_t kvb_usable_blocks(
    const struct kvb_block_set *window, const kvb_block_hash *names, size_t count, size_t need);

/* The most blocks that a request of so many tokens is given: it computes its last token
 * itself, and an engine whose tokens are pairs its last pair. */
size_t kvb_hit_blocks_max(size_t tokens, uint32_t block_size, bool is_paired);
