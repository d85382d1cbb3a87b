#include "serve/view.h"

#include "core/array.h"
#include "core/limits.h"
#include "serve/view_inside.h"

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
    free(view->names);
    free((void *)view->sorted);
    view->listing = (struct kvb_view_listing){ 0 };
    view->overlaps = NULL;
    view->order = NULL;
    view->hashes = NULL;
    view->names = NULL;
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

int kvb_view_compare_ids(const struct kvb_stream_id *a, const struct kvb_stream_id *b)
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

    return kvb_view_compare_ids(&a->id, &b->id);
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
           (!query->has_instance_id || query->instance_id == follower->id.worker_id ||
            follower->heartbeat.is_store) &&
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
    listing->has_worker = false;
    listing->has_several_sizes = false;
    return KVB_OK;
}

bool kvb_view_is_same_shape(struct kvb_block_shape a, struct kvb_block_shape b)
{
    return a.block_size == b.block_size && a.lookahead == b.lookahead;
}

size_t kvb_view_find_shape(const struct kvb_view_listing *listing, struct kvb_block_shape shape)
{
    size_t at = 0;

    while (at < listing->shape_count && !kvb_view_is_same_shape(listing->shapes[at], shape)) {
        at++;
    }
    return at;
}

/* A bridge may claim any block size; only the first so many shapes are served. */
static void list_shape(struct kvb_view_listing *listing, struct kvb_block_shape shape)
{
    if (shape.block_size > 0 && listing->shape_count < kvb_view_most_shapes &&
        kvb_view_find_shape(listing, shape) == listing->shape_count) {
        listing->shapes[listing->shape_count++] = shape;
    }
}

/* What the head of an answer needs to know of the workers; stores have no part in it. */
static void note_worker(struct kvb_view_listing *listing, size_t at)
{
    if (!listing->has_worker) {
        listing->has_worker = true;
        listing->first_worker = at;
    }
    listing->has_several_sizes =
        listing->has_several_sizes || listing->streams[at].shape.block_size !=
                                          listing->streams[listing->first_worker].shape.block_size;
}

static void list_stream(struct kvb_view *view, uint32_t number)
{
    struct kvb_view_listing *listing = &view->listing;
    const struct kvb_follower *follower = kvb_followers_at(view->followers, number);
    const struct kvb_heartbeat *heartbeat = &follower->heartbeat; /* zero where there is none */
    const struct kvb_block_shape shape = shape_of(view, follower);
    bool is_plain = heartbeat->window_tokens == 0;

    list_shape(listing, shape);
    for (size_t i = 0; i < heartbeat->shape_count; i++) {
        list_shape(listing, heartbeat->shapes[i].shape);
        is_plain = is_plain && kvb_view_is_same_shape(shape, heartbeat->shapes[i].shape);
    }
    listing->streams[listing->count] = (struct kvb_overlap){ .follower = follower,
                                                             .shape = shape,
                                                             .is_plain = is_plain,
                                                             .is_paired = heartbeat->is_paired,
                                                             .is_store = heartbeat->is_store };
    if (!heartbeat->is_store) {
        note_worker(listing, listing->count);
    }
    listing->places[number] = (uint32_t)++listing->count;
}

kvb_status kvb_view_list(
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
