#include "core/array.h"
#include "core/limits.h"
#include "core/sort_first.h"
#include "index/block_hash.h"
#include "kvaggregator/answers/query_context.h"
#include "kvaggregator/answers/selection.h"

#include <stdlib.h>
#include <string.h>

/* ---- Hashing ---- */

static kvb_span name_span(const char *text)
{
    return (kvb_span){ .data = (const uint8_t *)text, .len = strlen(text) };
}

static size_t
hash_query(const struct kvb_query *query, struct kvb_block_shape shape, kvb_tokens_hash *out)
{
    const uint64_t seed = kvb_block_seed(name_span(query->lora_name), name_span(query->cache_salt));

    return kvb_tokens_hash_prompt(query->tokens, query->count, shape, seed, out);
}

kvb_status kvb_query_hash_ahead(struct kvb_query *query, struct kvb_block_shape shape)
{
    kvb_tokens_hash *hashes = malloc((query->count / shape.block_size + 1) * sizeof *hashes);

    if (!hashes) {
        return KVB_NO_MEMORY;
    }
    free(query->hashes_ahead);
    query->hashes_ahead = hashes;
    query->hashes_ahead_shape = shape;
    query->hashes_ahead_count = hash_query(query, shape, hashes);
    return KVB_OK;
}

static kvb_status hash_tokens(
    struct kvb_query_context *ctx, const struct kvb_query *query, struct kvb_block_shape shape,
    size_t *out_count)
{
    KVB_TRY(kvb_array_reserve(
        &ctx->hashes, &ctx->hash_capacity, (query->count / shape.block_size) + 1,
        sizeof *ctx->hashes, kvb_max_query_tokens + 1));
    /* The thread that has received a long prompt has hashed it, before the index was ours. */
    if (query->hashes_ahead && kvb_block_shape_is_same(query->hashes_ahead_shape, shape)) {
        *out_count = query->hashes_ahead_count;
        memcpy(ctx->hashes, query->hashes_ahead, *out_count * sizeof *ctx->hashes);
    } else {
        *out_count = hash_query(query, shape, ctx->hashes);
    }
    ctx->hashed_shape = shape;
    ctx->hashed_count = *out_count;
    return KVB_OK;
}

static kvb_status take_hashes(struct kvb_query_context *ctx, const struct kvb_query *query)
{
    KVB_TRY(kvb_array_reserve(
        &ctx->hashes, &ctx->hash_capacity, query->count + 1, sizeof *ctx->hashes,
        kvb_max_query_tokens + 1));
    for (size_t i = 0; i < query->count; i++) {
        ctx->hashes[i] = (kvb_tokens_hash){ query->hashes[i] };
    }
    return KVB_OK;
}

/* Computes the canonical names of the first `count` blocks from ctx->hashes. */
static kvb_status make_names(struct kvb_query_context *ctx, size_t count)
{
    KVB_TRY(kvb_array_reserve(
        &ctx->names, &ctx->name_capacity, count + 1, sizeof *ctx->names, kvb_max_query_tokens + 1));
    for (size_t i = 0; i < count; i++) {
        ctx->names[i] = i == 0 ? kvb_block_hash_root(ctx->hashes[0])
                               : kvb_block_hash_next(ctx->names[i - 1], ctx->hashes[i]);
    }
    return KVB_OK;
}

static size_t hashed_blocks(const struct kvb_query_context *ctx, const struct kvb_query *query)
{
    return query->form == KVB_QUERY_TOKENS ? ctx->hashed_count : query->count;
}

/* When the fleet has one block shape, the hashes of the match are reused. */
kvb_status kvb_query_context_names(
    struct kvb_query_context *ctx, const struct kvb_query *query, struct kvb_block_shape shape,
    const kvb_block_hash **out_names, size_t *out_count)
{
    size_t count = 0;

    if (query->form == KVB_QUERY_BLOCK_HASHES) {
        *out_names = (const kvb_block_hash *)query->hashes; /* as in match_hashes() */
        *out_count = query->count;
        return KVB_OK;
    }
    if (query->form == KVB_QUERY_TOKENS && !kvb_block_shape_is_same(ctx->hashed_shape, shape)) {
        KVB_TRY(hash_tokens(ctx, query, shape, &count));
    }
    count = hashed_blocks(ctx, query);
    KVB_TRY(make_names(ctx, count));
    *out_names = ctx->names;
    *out_count = count;
    return KVB_OK;
}

/* ---- Recording the results of a match ---- */

struct noting {
    struct kvb_query_context *ctx;
    const struct kvb_query *query;
    const struct kvb_block_shape *shape; /* NULL: a query of hashes, in any device shape */
    size_t count;                        /* blocks of the query */
    size_t hit_blocks_max;               /* 0 for queries of hashes */
    size_t paired_hit_blocks_max;
    const kvb_block_hash *names; /* names of those blocks; NULL: not computed yet */
    kvb_status status;           /* result of computing them */
};

/* True: the tier holds blocks of this shape.  A tier without shapes in the heartbeat has the
 * device's. */
static bool
has_shape(const struct kvb_overlap *overlap, enum kvb_tier tier, struct kvb_block_shape shape)
{
    const struct kvb_heartbeat *heartbeat = &overlap->follower->heartbeat;
    bool has_rows = false;

    for (size_t i = 0; i < heartbeat->shape_count; i++) {
        if (heartbeat->shapes[i].tier != tier) {
            continue;
        }
        if (kvb_block_shape_is_same(heartbeat->shapes[i].shape, shape)) {
            return true;
        }
        has_rows = true;
    }
    return !has_rows && kvb_block_shape_is_same(overlap->shape, shape);
}

static void
note_tokens(struct kvb_listing *listing, uint32_t at, enum kvb_tier tier, uint64_t tokens)
{
    struct kvb_overlap *overlap = &listing->streams[at];

    if (tokens <= overlap->tokens[tier]) {
        return; /* nothing held, or another shape matched more */
    }
    if (overlap->max_tokens == 0) {
        listing->holders[listing->holder_count++] = at;
    }
    overlap->tokens[tier] = tokens;
    overlap->max_tokens = tokens > overlap->max_tokens ? tokens : overlap->max_tokens;
}

static void note_hit(struct kvb_overlap *overlap, uint64_t tokens)
{
    overlap->hit_tokens = tokens > overlap->hit_tokens ? tokens : overlap->hit_tokens;
}

static size_t hit_blocks_max(const struct noting *noting, const struct kvb_overlap *overlap)
{
    return overlap->is_paired ? noting->paired_hit_blocks_max : noting->hit_blocks_max;
}

static size_t min_of(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* What is left of these blocks where the engine speculates. */
static size_t drop_of(const struct kvb_overlap *overlap, size_t blocks)
{
    return blocks > overlap->drop ? blocks - overlap->drop : 0;
}

/* The names of the query's blocks, in the naming of the stream's window list.  NULL: unknown,
 * because the list uses the engine's names and the query has only tokens. */
static const kvb_block_hash *names_for(struct noting *noting, const struct kvb_overlap *overlap)
{
    if (noting->query->form != KVB_QUERY_BLOCK_HASHES &&
        overlap->follower->heartbeat.hashes == KVB_HASHES_ENGINE) {
        return NULL;
    }
    if (!noting->names && noting->status == KVB_OK) {
        noting->status = make_names(noting->ctx, noting->count);
        noting->names = noting->status == KVB_OK ? noting->ctx->names : NULL;
    }
    return noting->names;
}

/* The window list of a stream and the names of the query's blocks. */
struct window_look {
    const struct kvb_block_set *list; /* NULL: empty */
    const kvb_block_hash *names;
};

static bool is_in_window(const void *context, size_t at, unsigned window)
{
    const struct window_look *look = context;

    return look->list &&
           kvb_block_set_has(look->list, kvb_block_hash_in_window(look->names[at], window));
}

/* Of a hybrid model, whose full-attention groups hold the first `depth` blocks. */
static void
note_hybrid(struct noting *noting, uint32_t at, struct kvb_block_shape shape, uint32_t depth)
{
    struct kvb_overlap *overlap = &noting->ctx->listing.streams[at];
    const struct kvb_follower *follower = overlap->follower;
    const struct window_look look = { .list = follower->window,
                                      .names = names_for(noting, overlap) };
    const struct kvb_usable_prompt prompt = {
        .count = noting->count, .held = depth, .has = is_in_window, .context = &look
    };

    if (!look.names) {
        return;
    }
    const size_t usable = kvb_usable_blocks(&follower->heartbeat, &prompt, SIZE_MAX);
    const size_t hit =
        kvb_usable_blocks(&follower->heartbeat, &prompt, hit_blocks_max(noting, overlap));
    note_tokens(&noting->ctx->listing, at, KVB_TIER_DEVICE, (uint64_t)usable * shape.block_size);
    note_hit(overlap, (uint64_t)hit * shape.block_size);
}

static void note_plain(
    struct noting *noting, uint32_t at, enum kvb_tier tier, struct kvb_block_shape shape,
    uint32_t depth)
{
    struct kvb_overlap *overlap = &noting->ctx->listing.streams[at];

    if (tier == KVB_TIER_DEVICE) {
        const size_t hit = drop_of(overlap, min_of(depth, hit_blocks_max(noting, overlap)));
        note_hit(overlap, (uint64_t)hit * shape.block_size);
        depth = (uint32_t)drop_of(overlap, depth);
    }
    const uint32_t chunk = overlap->follower->heartbeat.chunk_blocks;
    if (tier != KVB_TIER_DEVICE && chunk > 1 && kvb_block_shape_is_same(shape, overlap->shape)) {
        depth -=
            depth % chunk; /* a chunk is loaded whole; the prompt may leave it before its end */
    }
    note_tokens(&noting->ctx->listing, at, tier, (uint64_t)depth * shape.block_size);
}

static void note_depth(void *context, kvb_slot_ref slot, uint32_t depth)
{
    struct noting *noting = context;
    const struct kvb_listing *listing = &noting->ctx->listing;
    enum kvb_tier tier = KVB_TIER_DEVICE;
    uint32_t number = 0;

    /* The index knows no models: the slot may be of a stream that this answer does not list. */
    if (kvb_followers_of_slot(noting->ctx->followers, slot, &number, &tier) != KVB_OK ||
        listing->places[number] == 0 || depth == 0) {
        return;
    }
    const uint32_t at = listing->places[number] - 1;
    const struct kvb_overlap *overlap = &listing->streams[at];
    const struct kvb_block_shape shape = noting->shape ? *noting->shape : overlap->shape;
    /* Equal hashes of blocks of another shape mean other tokens. */
    if (overlap->is_plain ? !kvb_block_shape_is_same(shape, overlap->shape)
                          : !has_shape(overlap, tier, shape)) {
        return;
    }
    if (!overlap->is_plain && tier == KVB_TIER_DEVICE &&
        overlap->follower->heartbeat.window_tokens > 0) {
        note_hybrid(noting, at, shape, depth);
    } else {
        note_plain(noting, at, tier, shape, depth);
    }
}

/* Streams without full attention have no list that a match would find. */
static void note_alone(struct noting *noting)
{
    const struct kvb_listing *listing = &noting->ctx->listing;

    for (size_t at = 0; listing->has_alone && at < listing->count; at++) {
        const struct kvb_overlap *overlap = &listing->streams[at];
        if (overlap->is_alone && overlap->follower->window &&
            (!noting->shape || kvb_block_shape_is_same(*noting->shape, overlap->shape))) {
            note_hybrid(noting, (uint32_t)at, overlap->shape, 0);
        }
    }
}

/* ---- Matching ---- */

static kvb_status match_tokens(struct kvb_query_context *ctx, const struct kvb_query *query)
{
    struct kvb_listing *listing = &ctx->listing;

    /* Once a shape: a tier may hold blocks of several, and its longest prefix counts. */
    for (size_t i = 0; i < listing->shape_count; i++) {
        const uint32_t block_size = listing->shapes[i].block_size;
        struct noting noting = {
            .ctx = ctx,
            .query = query,
            .shape = &listing->shapes[i],
            .hit_blocks_max = kvb_hit_blocks_max(query->count, block_size, false),
            .paired_hit_blocks_max = kvb_hit_blocks_max(query->count, block_size, true),
        };
        KVB_TRY(hash_tokens(ctx, query, listing->shapes[i], &noting.count));
        KVB_TRY(kvb_prefix_index_match(ctx->index, ctx->hashes, noting.count, &ctx->match));
        listing->request_blocks[i] = noting.count;
        kvb_match_each(&ctx->match, note_depth, &noting);
        note_alone(&noting);
        KVB_TRY(noting.status);
    }
    return KVB_OK;
}

static kvb_status match_hashes(struct kvb_query_context *ctx, const struct kvb_query *query)
{
    struct noting noting = { .ctx = ctx, .query = query, .count = query->count };

    if (query->form == KVB_QUERY_TOKENS_HASHES) {
        KVB_TRY(take_hashes(ctx, query));
        KVB_TRY(kvb_prefix_index_match(ctx->index, ctx->hashes, query->count, &ctx->match));
    } else {
        /* kvb_block_hash only wraps a u64; the array is read here and not kept. */
        _Static_assert(sizeof(kvb_block_hash) == sizeof(uint64_t), "one u64");
        noting.names = (const kvb_block_hash *)query->hashes;
        KVB_TRY(kvb_prefix_index_match_blocks(ctx->index, noting.names, query->count, &ctx->match));
    }
    kvb_match_each(&ctx->match, note_depth, &noting);
    note_alone(&noting);
    return noting.status;
}

/* ---- Selecting and ordering the answer ---- */

/* How many blocks the query has in this shape.  A shape beyond the maximum was not searched: 0. */
static size_t request_blocks_of(
    const struct kvb_query_context *ctx, const struct kvb_query *query,
    struct kvb_block_shape shape)
{
    const size_t at = kvb_listing_find_shape(&ctx->listing, shape);

    if (query->form != KVB_QUERY_TOKENS) {
        return query->count;
    }
    return at < ctx->listing.shape_count ? ctx->listing.request_blocks[at] : 0;
}

/* Compares positions in the listing: most tokens first, then by id, the order of the listing. */
static int best_first(const void *left, const void *right, void *context)
{
    const struct kvb_overlap *streams = context;
    const uint32_t a = *(const uint32_t *)left;
    const uint32_t b = *(const uint32_t *)right;

    if (streams[a].max_tokens != streams[b].max_tokens) {
        return streams[a].max_tokens > streams[b].max_tokens ? -1 : 1;
    }
    return (a > b) - (a < b);
}

/* The positions themselves: the listing is sorted by id. */
static int lower_first(const void *left, const void *right, void *context)
{
    const uint32_t a = *(const uint32_t *)left;
    const uint32_t b = *(const uint32_t *)right;

    (void)context;
    return (a > b) - (a < b);
}

/* Copies one result.  `blocks` is rounded down and capped, because blocks of other tiers may end
 * inside a device block or beyond the query's last one. */
static void take_overlap(
    struct kvb_query_context *ctx, const struct kvb_query *query, size_t at,
    struct kvb_overlap *out)
{
    *out = ctx->listing.streams[at];
    out->request_blocks = request_blocks_of(ctx, query, out->shape);
    out->blocks = min_of(out->max_tokens / out->shape.block_size, out->request_blocks);
}

/* A store is always selected, because it serves every worker. */
static bool is_selected(const struct kvb_query *query, const struct kvb_overlap *overlap)
{
    return overlap->is_store || kvb_selection_takes(query, overlap->follower);
}

/* Partitions the holders: those that the query selects first.  Returns how many it selects. */
static size_t put_selected_first(struct kvb_listing *listing, const struct kvb_query *query)
{
    size_t count = 0;

    if (kvb_selection_takes_all(query)) {
        return listing->holder_count; /* facts of a whole fleet are many cache misses */
    }
    for (size_t i = 0; i < listing->holder_count; i++) {
        const uint32_t at = listing->holders[i];
        if (is_selected(query, &listing->streams[at])) {
            listing->holders[i] = listing->holders[count];
            listing->holders[count++] = at;
        }
    }
    return count;
}

/* Partitions the first `count` holders: workers first, then stores.  Returns the number of
 * workers. */
static size_t put_stores_last(struct kvb_listing *listing, size_t count)
{
    size_t workers = 0;

    for (size_t i = 0; i < count; i++) {
        const uint32_t at = listing->holders[i];
        if (!listing->streams[at].is_store) {
            listing->holders[i] = listing->holders[workers];
            listing->holders[workers++] = at;
        }
    }
    return workers;
}

/* Copies the holders from..to - 1, sorted as the options say.  Positions are sorted instead of
 * overlaps, which are large: the whole fleet may hold a common prompt. */
static void take_holders(
    struct kvb_query_context *ctx, const struct kvb_query *query, size_t from, size_t to,
    struct kvb_listing_options options, struct kvb_overlap *out)
{
    struct kvb_listing *listing = &ctx->listing;

    kvb_sort_first(
        listing->holders + from, to - from, sizeof *listing->holders,
        options.ordered > 0 ? options.ordered : to - from, options.by_id ? lower_first : best_first,
        listing->streams);
    for (size_t i = from; i < to; i++) {
        take_overlap(ctx, query, listing->holders[i], out++);
    }
}

/* Copies the selected streams: workers that hold something; then, if wanted, workers
 * that hold nothing, by id; then stores that hold something:
 *
 *     [ a: 0 ][ b: 3 ][ s: 4 ][ c: 0 ][ d: 5 ]   ->   [ d: 5 ][ b: 3 ] [ a: 0 ][ c: 0 ] [ s: 4 ] */
static void take_overlaps(
    struct kvb_query_context *ctx, const struct kvb_query *query,
    struct kvb_listing_options options)
{
    struct kvb_listing *listing = &ctx->listing;
    const size_t selected = put_selected_first(listing, query);
    const size_t workers = put_stores_last(listing, selected);
    size_t count = workers;

    take_holders(ctx, query, 0, workers, options, ctx->overlaps);
    for (size_t i = 0; options.with_none && i < listing->count; i++) {
        const struct kvb_overlap *stream = &listing->streams[i];
        if (stream->max_tokens == 0 && !stream->is_store && is_selected(query, stream)) {
            take_overlap(ctx, query, i, &ctx->overlaps[count++]);
        }
    }
    ctx->overlap_count = count;
    ctx->shared_at = count;
    ctx->shared_count = selected - workers;
    take_holders(
        ctx, query, workers, selected, (struct kvb_listing_options){ 0 }, ctx->overlaps + count);
}

/* Resets what the query wrote into the listing. */
static void forget_holders(struct kvb_listing *listing)
{
    for (size_t i = 0; i < listing->holder_count; i++) {
        struct kvb_overlap *overlap = &listing->streams[listing->holders[i]];
        memset(overlap->tokens, 0, sizeof overlap->tokens);
        overlap->max_tokens = 0;
        overlap->hit_tokens = 0;
    }
    listing->holder_count = 0;
}

static void note_head(struct kvb_query_context *ctx, const struct kvb_query *query)
{
    const struct kvb_listing *listing = &ctx->listing;

    ctx->head = (struct kvb_query_head){ .has_several = listing->has_several_sizes };
    if (listing->has_worker) {
        const struct kvb_overlap *first = ctx->overlap_count > 0
                                              ? ctx->overlaps /* the first one listed */
                                              : &listing->streams[listing->first_worker];
        ctx->head.block_size = first->shape.block_size;
        ctx->head.blocks = request_blocks_of(ctx, query, first->shape);
    }
}

kvb_status kvb_query_context_overlaps(
    struct kvb_query_context *ctx, struct kvb_query *query, struct kvb_listing_options options,
    struct kvb_detail *detail)
{
    const char *model = NULL;

    ctx->overlap_count = 0;
    ctx->shared_count = 0;
    /* The model first: its name may turn out to be that of an adapter, which is part of the hashes.
     */
    KVB_TRY(kvb_query_context_find_model(ctx, query, &model, detail));
    KVB_TRY(kvb_query_context_list(ctx, query, model, options));
    const kvb_status status =
        query->form == KVB_QUERY_TOKENS ? match_tokens(ctx, query) : match_hashes(ctx, query);
    if (status == KVB_OK) {
        take_overlaps(ctx, query, options);
        note_head(ctx, query);
    }
    /* After a failure too: the list stays for the next query. */
    forget_holders(&ctx->listing);
    return status;
}
