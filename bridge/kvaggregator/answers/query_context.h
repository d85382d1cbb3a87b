#pragma once

#include "core/status.h"
#include "index/block_set.h"
#include "index/index.h"
#include "index/usable.h"
#include "kvaggregator/answers/endpoint.h"
#include "load/audit.h"
#include "load/peers.h"
#include "load/predictions.h"
#include "load/requests.h"
#include "load/route.h"
#include "load/tracker.h"
#include "model/query.h"
#include "replica/follower.h"
#include "wire/query/indexer.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The data behind all answers, and the search that most answers need: how much of a prompt does
 * each stream hold?
 *
 *     query --model--> streams of that model --block shape--> tokens hashes
 *                                                   index --> depth per slot
 *                                               followers --> tokens per tier and stream
 *
 * A query is hashed once per block shape in use among the streams of its model.  A depth n means
 * that one tier holds the blocks 0 .. n-1.  A tier may hold blocks of several shapes; it then
 * counts with the longest prefix, in tokens, in blocks of one shape.  A prefix that continues in
 * another tier counts only up to that point.  The longest prefix of all tiers is the stream's
 * overlap.  A query of hashes is matched with each stream's device shape, and cannot match tiers of
 * other shapes.
 *
 * Where the engine drops blocks while it speculates, the device's prefix ends that much earlier.
 *
 * For a hybrid model, the device's prefix is shortened to what its sliding-window groups can use
 * (kvb_usable_blocks()).
 *
 * Streams of stores are not workers: the same search finds them, but lists them separately.
 *
 * Two lists are cached: all streams sorted by id, until one is added or removed; and the streams of
 * one model that may be listed, until their traits change.  The next query of that model visits
 * only streams that hold part of its prompt.
 *
 * Threads: only the thread that owns index, followers and tracker.
 * Memory:  the scratch grows with the largest query and the number of streams. */

enum { kvb_listing_max_shapes = 16 };

struct kvb_overlap {
    const struct kvb_follower *follower; /* borrowed until the next change */
    struct kvb_stream_key key;           /* key of the follower, by which the books find it */
    uint32_t number;                     /* number of the follower */
    struct kvb_block_shape shape;        /* shape of the device tier's blocks */
    /* Copied from its heartbeat to save a cache miss: the whole fleet may hold a common prompt. */
    bool is_plain; /* all tiers have that shape, and there is no window */
    bool is_paired;
    bool is_store;
    bool is_alone;         /* no group of full attention */
    bool has_facts;        /* any of its worker is known */
    uint32_t drop;         /* the device's speculative_drop, in blocks */
    size_t request_blocks; /* complete blocks of the query in that shape */
    uint64_t tokens[KVB_TIER_COUNT];
    uint64_t max_tokens; /* the longest of them */
    uint64_t hit_tokens; /* device tokens that the engine would use; 0 for queries of hashes */
    uint64_t blocks;     /* max_tokens in blocks of that shape, rounded down */
};

struct kvb_listing_options {
    bool with_down; /* list streams that are DOWN too */
    bool with_none; /* list streams that hold nothing of the prompt too */
    bool by_id;     /* workers by worker, component and rank, not most tokens first */
    size_t ordered; /* how many of the best are sorted, the rest follows unsorted; 0: all */
};

/* The block shape in the head of an answer: that of the best stream, or of the first one searched
 * when no stream holds a block of the query. */
struct kvb_query_head {
    uint32_t block_size; /* 0: no stream was searched */
    size_t blocks;       /* complete blocks of the query */
    bool has_several;    /* the searched workers have several block sizes */
};

/* The streams that answers about one model may list, sorted by id. */
struct kvb_listing {
    char model[kvb_model_bytes + 1];
    bool is_made; /* the list is valid for `model` and the values below */
    bool with_down;
    uint64_t traits;           /* followers' traits when it was made */
    const char *default_model; /* borrowed */
    uint32_t default_block_size;
    struct kvb_overlap *streams; /* owned; results are filled in only while a query is answered */
    uint32_t *places;            /* owned; by follower number: 1 + position in streams, or 0 */
    uint32_t *holders;           /* owned; positions in streams that hold part of this query */
    size_t count, capacity, place_capacity, holder_count, holder_capacity;
    struct kvb_block_shape shapes[kvb_listing_max_shapes];
    size_t request_blocks[kvb_listing_max_shapes]; /* blocks of this query in each shape */
    size_t shape_count;
    bool has_worker;        /* false: only stores */
    bool has_alone;         /* a stream has no group of full attention */
    bool has_several_sizes; /* the workers' device blocks have several sizes */
    size_t first_worker;    /* position in streams */
    size_t down_count;      /* workers that are not in it only because they are DOWN */
};

/* Why the report of a finished request was not audited. */
enum kvb_audit_left_out {
    KVB_LEFT_OUT_NO_PROMISE,   /* nothing of its prompt was held, or the list was not claimed */
    KVB_LEFT_OUT_EVICTED,      /* promised blocks were removed before the report */
    KVB_LEFT_OUT_LIST_CHANGED, /* the list was emptied or doubted before the report */
    KVB_LEFT_OUT_NO_ROOM,
    KVB_LEFT_OUT_COUNT
};

/* What was read from a worker's address, and from which. */
struct kvb_known_endpoint {
    uint64_t address_hash; /* 0: nothing yet */
    bool has_any;
    struct kvb_endpoint endpoint;
};

struct kvb_query_context {
    struct kvb_prefix_index *index; /* the three: borrowed */
    struct kvb_followers *followers;
    struct kvb_load_tracker *tracker;
    /* The books: requests in flight and predicted blocks; borrowed. */
    struct kvb_requests *requests;
    struct kvb_predictions *predictions;
    struct kvb_audit *audit; /* borrowed; NULL: reports are not audited */
    uint64_t audit_left_out[KVB_LEFT_OUT_COUNT];
    uint32_t audit_slack_blocks;   /* blocks of each hit that are not promised */
    const struct kvb_peers *peers; /* borrowed; NULL: none are known */
    bool leads;                    /* this aggregator publishes load_stats */
    uint64_t now_ns;               /* time of the current query, set by the caller */
    const char *aggregator_id;     /* borrowed; prefix of ids made for requests without one */
    uint64_t request_ttl_ms;       /* default for requests that name none */
    struct kvb_route_options route;
    const char *default_model; /* for streams without heartbeats; borrowed; "": none */
    uint32_t default_block_size;
    /* For the answer about the state of this aggregator. */
    const char *grpc_listen; /* borrowed, like the next; NULL or "": off */
    const char *grpc_model;  /* "": the only one */
    uint16_t grpc_port;
    uint64_t decisions;   /* counts route decisions */
    uint64_t *last_turns; /* owned; by follower number, as in struct kvb_route_candidate */
    size_t last_turn_capacity;
    uint64_t random; /* state of the random sequence; any seed */
    /* scratch, owned: kvb_query_context_done() */
    struct kvb_match match;
    struct kvb_listing listing;
    struct kvb_overlap *overlaps; /* of workers, followed by those of stores */
    struct kvb_route_candidate *candidates;
    struct kvb_known_endpoint *endpoints; /* by follower number */
    struct kvb_query_head head;
    uint32_t *order;           /* follower numbers, by id */
    uint64_t order_generation; /* generation of the followers then; 0: none yet */
    kvb_tokens_hash *hashes;
    struct kvb_block_shape hashed_shape; /* shape of `hashes`, for a query of tokens */
    size_t hashed_count;
    kvb_block_hash *names; /* the rolling hashes of `hashes` */
    const struct kvb_follower **sorted;
    struct kvb_indexer_match *matches;
    size_t shared_at, shared_count; /* position and count of the stores in overlaps */
    size_t overlap_count, overlap_capacity, order_count, order_capacity, candidate_capacity;
    size_t endpoint_capacity;
    size_t hash_capacity, name_capacity, sorted_capacity, matches_capacity;
};

/* Frees what is owned. */
void kvb_query_context_done(struct kvb_query_context *ctx);

/* Model and block size of a stream; the defaults for a stream without heartbeats. */
const char *
kvb_query_context_model(const struct kvb_query_context *ctx, const struct kvb_follower *follower);
uint32_t kvb_query_context_block_size(
    const struct kvb_query_context *ctx, const struct kvb_follower *follower);

/* Finds the model that the query means: the one that it names, or that workers serve under that
 * name (model/served_names.h).  In the second case it becomes a query for that model: served_name
 * is the name that it had, and for an adapter lora_name too. KVB_NOT_FOUND  no stream has it;
 * detail has the text of Dynamo's indexer KVB_BAD_INPUT  it names none and there are several, the
 * name means several, or lora_name is not the adapter that it names: detail names the field */
kvb_status kvb_query_context_find_model(
    const struct kvb_query_context *ctx, struct kvb_query *query, const char **out_model,
    struct kvb_detail *detail);

/* Fills ctx->head and ctx->overlaps: the overlap_count workers, most tokens first, then lowest id,
 * or only by id; after them the stores that hold something.  Stores are searched whatever
 * instance_id says.
 * KVB_NOT_FOUND, KVB_BAD_INPUT  as kvb_query_context_find_model()   KVB_NO_MEMORY */
kvb_status kvb_query_context_overlaps(
    struct kvb_query_context *ctx, struct kvb_query *query, struct kvb_listing_options options,
    struct kvb_detail *detail);

/* Where no worker that the query selects is up: those that are DOWN, at most `max`, sorted by id.
 * Returns how many it has written; 0: some worker is up, or none is known.  After
 * kvb_query_context_overlaps() of the same query.  Borrowed until the next change. */
size_t kvb_query_context_down(
    const struct kvb_query_context *ctx, const struct kvb_query *query,
    const struct kvb_follower **out_down, size_t max);

/* The canonical names of the query's blocks of this shape; borrowed until the next call or query.
 * After kvb_query_context_overlaps() of the same query.  KVB_NO_MEMORY. */
kvb_status kvb_query_context_names(
    struct kvb_query_context *ctx, const struct kvb_query *query, struct kvb_block_shape shape,
    const kvb_block_hash **out_names, size_t *out_count);

/* Hashes the tokens of a query before a context is there for it, in the shape that its model had
 * lately: ctx->hashed_shape after an earlier query.  The answer is the same with any shape, but the
 * context then hashes again.  Any thread.  KVB_NO_MEMORY: nothing has changed. */
kvb_status kvb_query_hash_ahead(struct kvb_query *query, struct kvb_block_shape shape);

/* Fills ctx->sorted with all streams, sorted by worker, component and rank.  KVB_NO_MEMORY */
kvb_status kvb_query_context_sort(struct kvb_query_context *ctx, size_t *out_count);

/* The next random number of the query context, at least 0 and below 1. */
double kvb_query_context_draw(struct kvb_query_context *ctx);

/* ---- Internal to query_context.c, overlaps.c and route.c ---- */

/* Lists the streams that the answer may list, sorted by id, unless the cached list is valid.
 * KVB_NO_MEMORY */
kvb_status kvb_query_context_list(
    struct kvb_query_context *ctx, const struct kvb_query *query, const char *model,
    struct kvb_listing_options options);

bool kvb_block_shape_is_same(struct kvb_block_shape a, struct kvb_block_shape b);

/* The index of the shape in the listing; shape_count when it is absent. */
size_t kvb_listing_find_shape(const struct kvb_listing *listing, struct kvb_block_shape shape);
