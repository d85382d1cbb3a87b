#include "serve/view.h"

#include "core/array.h"
#include "core/limits.h"
#include "index/block_hash.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void kvb_view_done(struct kvb_view *view)
{
    kvb_match_done(&view->match);
    free(view->listing.streams);
    free(view->listing.places);
    free(view->listing.holders);
    free(view->overlaps);
    free(view->order);
    free(view->hashes);
    free((void *)view->sorted);
    view->listing = (struct kvb_view_listing){ 0 };
    view->overlaps = NULL;
    view->order = NULL;
    view->hashes = NULL;
    view->sorted = NULL;
}

/* splitmix64: one addition and a finaliser, any seed. */
double kvb_view_draw(struct kvb_view *view)
{
    view->luck += UINT64_C(0x9e3779b97f4a7c15);
    uint64_t mixed = view->luck;
    mixed = (mixed ^ (mixed >> 30U)) * UINT64_C(0xbf58476d1ce4e5b9);
    mixed = (mixed ^ (mixed >> 27U)) * UINT64_C(0x94d049bb133111eb);
    mixed ^= mixed >> 31U;
    return (double)(mixed >> 11U) * 0x1p-53;
}

/* ---- Models ---- */

const char *kvb_view_model(const struct kvb_view *view, const struct kvb_follower *follower)
{
    return follower->has_heartbeat ? follower->heartbeat.model : view->default_model;
}

uint32_t kvb_view_block_size(const struct kvb_view *view, const struct kvb_follower *follower)
{
    return follower->has_heartbeat ? follower->heartbeat.block_size : view->default_block_size;
}

static struct kvb_block_shape
shape_of(const struct kvb_view *view, const struct kvb_follower *follower)
{
    return (struct kvb_block_shape){
        .block_size = kvb_view_block_size(view, follower),
        .lookahead = follower->has_heartbeat ? follower->heartbeat.lookahead : 0,
    };
}

static bool is_known_model(const struct kvb_view *view, const char *model)
{
    for (size_t i = 0; i < kvb_followers_limit(view->followers); i++) {
        const struct kvb_follower *follower = kvb_followers_at(view->followers, i);
        if (follower && strcmp(kvb_view_model(view, follower), model) == 0) {
            return true;
        }
    }
    return *model && strcmp(view->default_model, model) == 0;
}

/* The model of all streams; NULL when there is none, or several. */
static const char *find_only_model(const struct kvb_view *view, bool *out_has_several)
{
    const char *only = NULL;

    *out_has_several = false;
    for (size_t i = 0; i < kvb_followers_limit(view->followers); i++) {
        const struct kvb_follower *follower = kvb_followers_at(view->followers, i);
        if (!follower || *kvb_view_model(view, follower) == '\0') {
            continue; /* a stream of unknown model answers no query */
        }
        if (only && strcmp(only, kvb_view_model(view, follower)) != 0) {
            *out_has_several = true;
            return NULL;
        }
        only = kvb_view_model(view, follower);
    }
    return !only && *view->default_model ? view->default_model : only;
}

kvb_status kvb_view_find_model(
    const struct kvb_view *view, const struct kvb_query *query, const char **out_model,
    struct kvb_detail *detail)
{
    bool has_several = false;
    const char *model = query->has_model ? query->model : find_only_model(view, &has_several);

    if (has_several) {
        kvb_detail_set(detail, "missing field `model_name`: there are several models");
        return KVB_BAD_INPUT;
    }
    if (!model) {
        kvb_detail_set(detail, "no indexer: no stream with a model is known yet");
        return KVB_NOT_FOUND;
    }
    if (!is_known_model(view, model)) {
        kvb_detail_set(detail, "no indexer for model=%s routing_group=default", model);
        return KVB_NOT_FOUND;
    }
    *out_model = model;
    return KVB_OK;
}

/* ---- The order of streams ---- */

static int compare_ids(const struct kvb_stream_id *a, const struct kvb_stream_id *b)
{
    if (a->worker_id != b->worker_id) {
        return a->worker_id < b->worker_id ? -1 : 1;
    }
    const int names = strcmp(a->name_space, b->name_space);
    const int components = strcmp(a->component, b->component);
    if (names != 0 || components != 0) {
        return names != 0 ? names : components;
    }
    return (a->dp_rank > b->dp_rank) - (a->dp_rank < b->dp_rank);
}

static int by_id(const void *left, const void *right, void *context)
{
    const struct kvb_followers *followers = context;
    const struct kvb_follower *a = kvb_followers_at(followers, *(const uint32_t *)left);
    const struct kvb_follower *b = kvb_followers_at(followers, *(const uint32_t *)right);

    return compare_ids(&a->id, &b->id);
}

static kvb_status renew_order(struct kvb_view *view)
{
    const size_t limit = kvb_followers_limit(view->followers);
    const uint64_t generation = kvb_followers_generation(view->followers);

    if (view->order_generation == generation) {
        return KVB_OK; /* none ever came: nothing to sort either */
    }
    KVB_TRY(kvb_array_reserve(
        &view->order, &view->order_capacity, limit + 1, sizeof *view->order, kvb_max_streams + 1));
    view->order_count = 0;
    for (size_t i = 0; i < limit; i++) {
        if (kvb_followers_at(view->followers, i)) {
            view->order[view->order_count++] = (uint32_t)i;
        }
    }
    qsort_r(view->order, view->order_count, sizeof *view->order, by_id, view->followers);
    view->order_generation = generation;
    return KVB_OK;
}

/* ---- Who may be the answer ---- */

static bool is_wanted(
    const struct kvb_view *view, const struct kvb_query *query, const char *model,
    struct kvb_view_ask ask, const struct kvb_follower *follower)
{
    return (follower->state != KVB_STREAM_DOWN || ask.with_down) &&
           (!query->has_instance_id || query->instance_id == follower->id.worker_id) &&
           kvb_view_block_size(view, follower) > 0 &&
           strcmp(kvb_view_model(view, follower), model) == 0;
}

static bool is_listed(
    const struct kvb_view *view, const struct kvb_query *query, const char *model,
    struct kvb_view_ask ask)
{
    const struct kvb_view_listing *listing = &view->listing;

    return listing->is_made && !query->has_instance_id &&
           listing->traits == kvb_followers_traits(view->followers) &&
           listing->with_down == ask.with_down && listing->default_model == view->default_model &&
           listing->default_block_size == view->default_block_size &&
           strcmp(listing->model, model) == 0;
}

static kvb_status make_room(struct kvb_view *view)
{
    const size_t limit = kvb_followers_limit(view->followers);
    struct kvb_view_listing *listing = &view->listing;

    KVB_TRY(renew_order(view));
    KVB_TRY(kvb_array_reserve(
        &listing->streams, &listing->capacity, limit + 1, sizeof *listing->streams,
        kvb_max_streams + 1));
    KVB_TRY(kvb_array_reserve(
        &listing->places, &listing->place_capacity, limit + 1, sizeof *listing->places,
        kvb_max_streams + 1));
    KVB_TRY(kvb_array_reserve(
        &listing->holders, &listing->holder_capacity, limit + 1, sizeof *listing->holders,
        kvb_max_streams + 1));
    KVB_TRY(kvb_array_reserve(
        &view->overlaps, &view->overlap_capacity, limit + 1, sizeof *view->overlaps,
        kvb_max_streams + 1));
    memset(listing->places, 0, limit * sizeof *listing->places);
    listing->count = 0;
    listing->holder_count = 0;
    listing->shape_count = 0;
    return KVB_OK;
}

static bool is_same_shape(struct kvb_block_shape a, struct kvb_block_shape b)
{
    return a.block_size == b.block_size && a.lookahead == b.lookahead;
}

/* Its place in the listing; shape_count when it is not there. */
static size_t find_shape(const struct kvb_view_listing *listing, struct kvb_block_shape shape)
{
    size_t at = 0;

    while (at < listing->shape_count && !is_same_shape(listing->shapes[at], shape)) {
        at++;
    }
    return at;
}

/* A bridge may claim any block size; only the first so many shapes are served. */
static void list_stream(struct kvb_view *view, uint32_t number)
{
    struct kvb_view_listing *listing = &view->listing;
    const struct kvb_follower *follower = kvb_followers_at(view->followers, number);
    const struct kvb_block_shape shape = shape_of(view, follower);

    listing->streams[listing->count++] =
        (struct kvb_overlap){ .follower = follower, .shape = shape };
    listing->places[number] = (uint32_t)listing->count;
    if (listing->shape_count < kvb_view_most_shapes &&
        find_shape(listing, shape) == listing->shape_count) {
        listing->shapes[listing->shape_count++] = shape;
    }
}

/* Lists the streams that the query may be answered with, by id, unless they are. */
static kvb_status list_streams(
    struct kvb_view *view, const struct kvb_query *query, const char *model,
    struct kvb_view_ask ask)
{
    struct kvb_view_listing *listing = &view->listing;

    if (is_listed(view, query, model, ask)) {
        return KVB_OK;
    }
    listing->is_made = false;
    KVB_TRY(make_room(view));
    for (size_t i = 0; i < view->order_count; i++) {
        const uint32_t number = view->order[i];
        if (is_wanted(view, query, model, ask, kvb_followers_at(view->followers, number))) {
            list_stream(view, number);
        }
    }
    (void)snprintf(listing->model, sizeof listing->model, "%s", model); /* cut: never found */
    listing->with_down = ask.with_down;
    listing->traits = kvb_followers_traits(view->followers);
    listing->default_model = view->default_model;
    listing->default_block_size = view->default_block_size;
    listing->is_made = !query->has_instance_id;
    return KVB_OK;
}

/* ---- Overlaps ---- */

static kvb_span span_of(const char *text)
{
    return (kvb_span){ .data = (const uint8_t *)text, .len = strlen(text) };
}

static kvb_status hash_tokens(
    struct kvb_view *view, const struct kvb_query *query, struct kvb_block_shape shape,
    size_t *out_count)
{
    const uint64_t seed = kvb_block_seed(span_of(query->lora_name), span_of(query->cache_salt));

    KVB_TRY(kvb_array_reserve(
        &view->hashes, &view->hash_capacity, (query->count / shape.block_size) + 1,
        sizeof *view->hashes, kvb_max_query_tokens + 1));
    *out_count = kvb_tokens_hash_prompt(query->tokens, query->count, shape, seed, view->hashes);
    return KVB_OK;
}

static kvb_status take_hashes(struct kvb_view *view, const struct kvb_query *query)
{
    KVB_TRY(kvb_array_reserve(
        &view->hashes, &view->hash_capacity, query->count + 1, sizeof *view->hashes,
        kvb_max_query_tokens + 1));
    for (size_t i = 0; i < query->count; i++) {
        view->hashes[i] = (kvb_tokens_hash){ query->hashes[i] };
    }
    return KVB_OK;
}

struct noting {
    struct kvb_view *view;
    const struct kvb_block_shape *shape; /* NULL: any, the query came hashed */
};

static void note_depth(void *context, kvb_slot_ref slot, uint32_t depth)
{
    const struct noting *noting = context;
    struct kvb_view_listing *listing = &noting->view->listing;
    enum kvb_tier tier = KVB_TIER_DEVICE;
    uint32_t number = 0;

    if (kvb_followers_of_slot(noting->view->followers, slot, &number, &tier) != KVB_OK ||
        listing->places[number] == 0 || depth == 0) {
        return;
    }
    const uint32_t at = listing->places[number] - 1;
    struct kvb_overlap *overlap = &listing->streams[at];
    if (!noting->shape || is_same_shape(*noting->shape, overlap->shape)) {
        if (overlap->blocks == 0) {
            listing->holders[listing->holder_count++] = at;
        }
        overlap->depths[tier] = depth;
        overlap->blocks = depth > overlap->blocks ? depth : overlap->blocks;
    }
}

static kvb_status match_tokens(struct kvb_view *view, const struct kvb_query *query)
{
    struct kvb_view_listing *listing = &view->listing;

    for (size_t i = 0; i < listing->shape_count; i++) {
        struct noting noting = { .view = view, .shape = &listing->shapes[i] };
        size_t count = 0;
        KVB_TRY(hash_tokens(view, query, listing->shapes[i], &count));
        KVB_TRY(kvb_prefix_index_match(view->index, view->hashes, count, &view->match));
        listing->request_blocks[i] = count;
        kvb_match_each(&view->match, note_depth, &noting);
    }
    return KVB_OK;
}

static kvb_status match_hashes(struct kvb_view *view, const struct kvb_query *query)
{
    struct noting noting = { .view = view };

    KVB_TRY(take_hashes(view, query));
    if (query->form == KVB_QUERY_TOKENS_HASHES) {
        KVB_TRY(kvb_prefix_index_match(view->index, view->hashes, query->count, &view->match));
    } else {
        /* Both are one u64 by name only; the array is read, not kept. */
        _Static_assert(sizeof(kvb_block_hash) == sizeof(uint64_t), "one u64");
        KVB_TRY(kvb_prefix_index_match_blocks(
            view->index, (const kvb_block_hash *)query->hashes, query->count, &view->match));
    }
    kvb_match_each(&view->match, note_depth, &noting);
    return KVB_OK;
}

/* A stream of a shape too many was not asked: it has no blocks of the query. */
static size_t request_blocks_of(
    const struct kvb_view *view, const struct kvb_query *query, struct kvb_block_shape shape)
{
    const size_t at = find_shape(&view->listing, shape);

    if (query->form != KVB_QUERY_TOKENS) {
        return query->count;
    }
    return at < view->listing.shape_count ? view->listing.request_blocks[at] : 0;
}

static uint64_t tokens_of(const struct kvb_overlap *overlap)
{
    return (uint64_t)overlap->blocks * overlap->shape.block_size;
}

static int best_first(const void *left, const void *right)
{
    const struct kvb_overlap *a = left;
    const struct kvb_overlap *b = right;

    if (tokens_of(a) != tokens_of(b)) {
        return tokens_of(a) > tokens_of(b) ? -1 : 1;
    }
    return compare_ids(&a->follower->id, &b->follower->id);
}

static void take(struct kvb_view *view, const struct kvb_query *query, size_t at)
{
    struct kvb_overlap *overlap = &view->overlaps[view->overlap_count++];

    *overlap = view->listing.streams[at];
    overlap->request_blocks = request_blocks_of(view, query, overlap->shape);
}

/* Those that hold something, best first; and the others in their order, where they are wanted:
 *
 *     [ a: 0 ][ b: 3 ][ c: 0 ][ d: 5 ]      ->      [ d: 5 ][ b: 3 ] [ a: 0 ][ c: 0 ]   */
static void
take_overlaps(struct kvb_view *view, const struct kvb_query *query, struct kvb_view_ask ask)
{
    const struct kvb_view_listing *listing = &view->listing;

    for (size_t i = 0; i < listing->holder_count; i++) {
        take(view, query, listing->holders[i]);
    }
    qsort(view->overlaps, view->overlap_count, sizeof *view->overlaps, best_first);
    for (size_t i = 0; ask.with_none && i < listing->count; i++) {
        if (listing->streams[i].blocks == 0) {
            take(view, query, i);
        }
    }
}

/* What the query left in the listing. */
static void forget_holders(struct kvb_view_listing *listing)
{
    for (size_t i = 0; i < listing->holder_count; i++) {
        struct kvb_overlap *overlap = &listing->streams[listing->holders[i]];
        memset(overlap->depths, 0, sizeof overlap->depths);
        overlap->blocks = 0;
    }
    listing->holder_count = 0;
}

static void note_head(struct kvb_view *view, const struct kvb_query *query)
{
    const struct kvb_view_listing *listing = &view->listing;
    const struct kvb_overlap *first =
        view->overlap_count > 0 ? view->overlaps : listing->streams; /* the best, or any */

    view->head = (struct kvb_view_head){ 0 };
    if (listing->count > 0) {
        view->head.block_size = first->shape.block_size;
        view->head.blocks = request_blocks_of(view, query, first->shape);
    }
    for (size_t i = 1; i < listing->shape_count; i++) { /* a size has two shapes at most */
        view->head.has_several = view->head.has_several ||
                                 listing->shapes[i].block_size != listing->shapes[0].block_size;
    }
}

kvb_status kvb_view_overlaps(
    struct kvb_view *view, const struct kvb_query *query, struct kvb_view_ask ask,
    struct kvb_detail *detail)
{
    const char *model = NULL;

    view->overlap_count = 0;
    KVB_TRY(kvb_view_find_model(view, query, &model, detail));
    KVB_TRY(list_streams(view, query, model, ask));
    const kvb_status status =
        query->form == KVB_QUERY_TOKENS ? match_tokens(view, query) : match_hashes(view, query);
    if (status == KVB_OK) {
        take_overlaps(view, query, ask);
        note_head(view, query);
    }
    forget_holders(&view->listing);
    return status;
}

/* ---- All streams ---- */

kvb_status kvb_view_sort(struct kvb_view *view, size_t *out_count)
{
    KVB_TRY(renew_order(view));
    KVB_TRY(kvb_array_reserve(
        (void *)&view->sorted, &view->sorted_capacity, view->order_count + 1, sizeof(void *),
        kvb_max_streams + 1));
    for (size_t i = 0; i < view->order_count; i++) {
        view->sorted[i] = kvb_followers_at(view->followers, view->order[i]);
    }
    *out_count = view->order_count;
    return KVB_OK;
}
