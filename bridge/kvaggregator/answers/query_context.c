#include "kvaggregator/answers/query_context.h"

#include "core/array.h"
#include "core/limits.h"
#include "core/own.h"
#include "core/random.h"
#include "kvaggregator/answers/selection.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void kvb_query_context_done(struct kvb_query_context *ctx)
{
    kvb_match_done(&ctx->match);
    free(ctx->listing.streams);
    free(ctx->listing.places);
    free(ctx->listing.holders);
    free(ctx->overlaps);
    free(ctx->candidates);
    free(ctx->endpoints);
    free(ctx->last_turns);
    free(ctx->order);
    free(ctx->hashes);
    free(ctx->names);
    free((void *)ctx->sorted);
    free(ctx->matches);
    ctx->listing = (struct kvb_listing){ 0 };
    ctx->overlaps = NULL;
    ctx->candidates = NULL;
    ctx->endpoints = NULL;
    ctx->endpoint_capacity = 0;
    ctx->last_turns = NULL;
    ctx->last_turn_capacity = 0;
    ctx->order = NULL;
    ctx->hashes = NULL;
    ctx->names = NULL;
    ctx->sorted = NULL;
    ctx->matches = NULL;
}

double kvb_query_context_draw(struct kvb_query_context *ctx)
{
    return kvb_random_unit(&ctx->random);
}

/* ---- Models ---- */

const char *
kvb_query_context_model(const struct kvb_query_context *ctx, const struct kvb_follower *follower)
{
    return follower->has_heartbeat ? follower->heartbeat.model : ctx->default_model;
}

uint32_t kvb_query_context_block_size(
    const struct kvb_query_context *ctx, const struct kvb_follower *follower)
{
    return follower->has_heartbeat ? follower->heartbeat.block_size : ctx->default_block_size;
}

static struct kvb_block_shape
shape_of(const struct kvb_query_context *ctx, const struct kvb_follower *follower)
{
    return (struct kvb_block_shape){
        .block_size = kvb_query_context_block_size(ctx, follower),
        .lookahead = follower->has_heartbeat ? follower->heartbeat.lookahead : 0,
    };
}

static bool is_known_model(const struct kvb_query_context *ctx, const char *model)
{
    for (size_t i = 0; i < kvb_followers_limit(ctx->followers); i++) {
        const struct kvb_follower *follower = kvb_followers_at(ctx->followers, i);
        if (follower && strcmp(kvb_query_context_model(ctx, follower), model) == 0) {
            return true;
        }
    }
    return *model && strcmp(ctx->default_model, model) == 0;
}

/* The one model that all streams have; NULL: none, or several. */
static const char *find_only_model(const struct kvb_query_context *ctx, bool *out_has_several)
{
    const char *only = NULL;

    /* No list is kept of the models, so each query that names none looks at all streams. */
    *out_has_several = false;
    for (size_t i = 0; i < kvb_followers_limit(ctx->followers); i++) {
        const struct kvb_follower *follower = kvb_followers_at(ctx->followers, i);
        if (!follower || *kvb_query_context_model(ctx, follower) == '\0') {
            continue; /* a stream of unknown model answers no query */
        }
        if (only && strcmp(only, kvb_query_context_model(ctx, follower)) != 0) {
            *out_has_several = true;
            return NULL;
        }
        only = kvb_query_context_model(ctx, follower);
    }
    return !only && *ctx->default_model ? ctx->default_model : only;
}

/* How many bytes must be inserted, removed or replaced to make one text of the other
 * (Levenshtein's distance, one row at a time). */
static size_t distance_of(const char *one, const char *other)
{
    uint8_t row[kvb_model_bytes + 1];
    const size_t columns = strlen(other);

    for (size_t c = 0; c <= columns; c++) {
        row[c] = (uint8_t)c;
    }
    for (size_t r = 1; one[r - 1] != '\0'; r++) {
        uint8_t diagonal = row[0];
        row[0] = (uint8_t)r;
        for (size_t c = 1; c <= columns; c++) {
            const uint8_t above = row[c];
            const uint8_t replaced = (uint8_t)(diagonal + (one[r - 1] != other[c - 1]));
            const uint8_t moved = (uint8_t)((above < row[c - 1] ? above : row[c - 1]) + 1);
            row[c] = replaced < moved ? replaced : moved;
            diagonal = above;
        }
    }
    return row[columns];
}

/* The models that streams have, and the names that workers serve, sorted by their distance from the
 * name that is asked for. */
struct known_models {
    struct known_model {
        const char *name; /* borrowed from a follower */
        size_t distance;
    } models[8];
    size_t count;
    size_t seen; /* compared so far; max_compared_models at most */
};

enum { max_compared_models = 256 };

/* Keeps it if it is among the nearest. */
static void know_model(struct known_models *known, const char *asked, const char *name)
{
    const struct known_model new = { name, distance_of(asked, name) };
    size_t at = known->count;

    known->seen++;
    for (size_t i = 0; i < known->count; i++) {
        if (strcmp(known->models[i].name, name) == 0) {
            return;
        }
    }
    while (at > 0 && known->models[at - 1].distance > new.distance) {
        at--;
    }
    if (at == KVB_COUNT_OF(known->models)) {
        return;
    }
    /* All behind it move one place down; of a full table the last one leaves. */
    known->count += known->count < KVB_COUNT_OF(known->models);
    memmove(
        &known->models[at + 1], &known->models[at],
        (known->count - 1 - at) * sizeof known->models[0]);
    known->models[at] = new;
}

/* The first sentence is Dynamo's. */
static void explain_unknown_model(
    const struct kvb_query_context *ctx, const char *asked, struct kvb_detail *detail)
{
    struct known_models known = { .count = 0 };
    static const struct kvb_served_names no_names = { 0 };
    const struct kvb_served_names *names_before = &no_names;
    struct kvb_served_name served;
    const char *before = asked;
    char names[sizeof detail->text] = "";

    for (size_t i = 0; i < kvb_followers_limit(ctx->followers) && known.seen < max_compared_models;
         i++) {
        const struct kvb_follower *follower = kvb_followers_at(ctx->followers, i);
        const char *name = follower ? kvb_query_context_model(ctx, follower) : "";
        if (name[0] == '\0') {
            continue;
        }
        /* Neighbours mostly serve the same: a distance is computed once for many of them. */
        if (strcmp(name, before) != 0) {
            know_model(&known, asked, name);
            before = name;
        }
        if (kvb_served_names_are_same(names_before, &follower->heartbeat.names)) {
            continue;
        }
        names_before = &follower->heartbeat.names;
        for (size_t at = 0; known.seen < max_compared_models &&
                            kvb_served_names_next(names_before, &at, &served);) {
            know_model(&known, asked, served.name);
        }
    }
    for (size_t i = 0; i < known.count; i++) {
        const size_t len = strlen(names);
        (void)snprintf(
            names + len, sizeof names - len, "%s%s",
            i > 0 ? ", " : "; known are: ", known.models[i].name);
    }
    kvb_detail_set(detail, "no indexer for model=%s routing_group=default%s", asked, names);
}

/* What workers serve under a name that no model has. */
struct served_model {
    const char *model; /* borrowed from a follower; NULL: nothing */
    enum kvb_served_kind kind;
};

static const char *const kind_names[KVB_SERVED_KIND_COUNT] = {
    [KVB_SERVED_NAME] = "a name",
    [KVB_SERVED_ADAPTER] = "an adapter",
};

/* KVB_BAD_INPUT: workers of several models serve it, or as different things. */
static kvb_status find_served_model(
    const struct kvb_query_context *ctx, const char *asked, struct served_model *out_found,
    struct kvb_detail *detail)
{
    struct served_model found = { .model = NULL };

    for (size_t i = 0; i < kvb_followers_limit(ctx->followers); i++) {
        const struct kvb_follower *follower = kvb_followers_at(ctx->followers, i);
        struct served_model here = { .model = NULL };
        if (!follower || follower->heartbeat.model[0] == '\0' ||
            !kvb_served_names_find(&follower->heartbeat.names, kvb_span_of(asked), &here.kind)) {
            continue;
        }
        here.model = follower->heartbeat.model;
        /* All that serve the name have to mean the same by it. */
        if (found.model && (found.kind != here.kind || strcmp(found.model, here.model) != 0)) {
            kvb_detail_set(
                detail,
                "model: \"%.40s\" is %s of %.40s and %s of %.40s: ask for one of these models, and "
                "for an adapter by lora_name",
                asked, kind_names[found.kind], found.model, kind_names[here.kind], here.model);
            return KVB_BAD_INPUT;
        }
        found = here;
    }
    *out_found = found;
    return KVB_OK;
}

/* Makes a query for a model of one for a name that workers serve.  KVB_NOT_FOUND: nobody does. */
static kvb_status take_served_name(
    const struct kvb_query_context *ctx, struct kvb_query *query, struct kvb_detail *detail)
{
    struct served_model found;

    KVB_TRY(find_served_model(ctx, query->model, &found, detail));
    if (!found.model) {
        explain_unknown_model(ctx, query->model, detail);
        return KVB_NOT_FOUND;
    }
    if (found.kind == KVB_SERVED_ADAPTER && strcmp(query->lora_name, query->model) != 0) {
        if (query->lora_name[0] != '\0') {
            kvb_detail_set(
                detail, "lora_name: \"%.40s\", but model names the adapter \"%.40s\": give one",
                query->lora_name, query->model);
            return KVB_BAD_INPUT;
        }
        memcpy(query->lora_name, query->model, sizeof query->lora_name);
        free(query->hashes_ahead); /* they are those of another adapter */
        query->hashes_ahead = NULL;
    }
    memcpy(query->served_name, query->model, sizeof query->served_name);
    (void)snprintf(query->model, sizeof query->model, "%s", found.model); /* fits */
    return KVB_OK;
}

kvb_status kvb_query_context_find_model(
    const struct kvb_query_context *ctx, struct kvb_query *query, const char **out_model,
    struct kvb_detail *detail)
{
    bool has_several = false;
    const char *model = query->has_model ? query->model : find_only_model(ctx, &has_several);

    if (has_several) {
        kvb_detail_set(detail, "missing field `model_name`: there are several models");
        return KVB_BAD_INPUT;
    }
    if (!model) {
        kvb_detail_set(detail, "no indexer: no stream with a model is known yet");
        return KVB_NOT_FOUND;
    }
    /* Models first: a name that somebody serves cannot hide a model of the same name. */
    if (query->has_model && !is_known_model(ctx, model)) {
        KVB_TRY(take_served_name(ctx, query, detail)); /* query->model, to which model points */
    }
    *out_model = model;
    return KVB_OK;
}

/* ---- The order of streams ---- */

static int by_id(const void *left, const void *right, void *context)
{
    const struct kvb_followers *followers = context;
    const struct kvb_stream_id *a = &kvb_followers_at(followers, *(const uint32_t *)left)->id;
    const struct kvb_stream_id *b = &kvb_followers_at(followers, *(const uint32_t *)right)->id;

    if (a->worker_id != b->worker_id) {
        return a->worker_id < b->worker_id ? -1 : 1;
    }
    /* Ranks last: a worker's ranks are neighbours, those of another component do not part them. */
    const int names = strcmp(a->name_space, b->name_space);
    const int components = strcmp(a->component, b->component);
    if (names != 0 || components != 0) {
        return names != 0 ? names : components;
    }
    return (a->dp_rank > b->dp_rank) - (a->dp_rank < b->dp_rank);
}

static kvb_status renew_order(struct kvb_query_context *ctx)
{
    const size_t limit = kvb_followers_limit(ctx->followers);
    const uint64_t generation = kvb_followers_generation(ctx->followers);

    if (ctx->order_generation == generation) {
        return KVB_OK; /* there was never a stream to sort */
    }
    KVB_TRY(kvb_array_reserve(
        &ctx->order, &ctx->order_capacity, limit + 1, sizeof *ctx->order, kvb_max_streams + 1));
    ctx->order_count = 0;
    for (size_t i = 0; i < limit; i++) {
        if (kvb_followers_at(ctx->followers, i)) {
            ctx->order[ctx->order_count++] = (uint32_t)i;
        }
    }
    qsort_r(ctx->order, ctx->order_count, sizeof *ctx->order, by_id, ctx->followers);
    ctx->order_generation = generation;
    return KVB_OK;
}

/* ---- Streams that may be listed ---- */

static bool is_stream_wanted(
    const struct kvb_query_context *ctx, const struct kvb_query *query, const char *model,
    struct kvb_listing_options options, const struct kvb_follower *follower)
{
    return (follower->state != KVB_STREAM_DOWN || options.with_down) &&
           (!query->has_instance_id || query->instance_id == follower->id.worker_id ||
            follower->heartbeat.is_store) &&
           (!query->has_dp_rank || query->dp_rank == follower->id.dp_rank ||
            follower->heartbeat.is_store) &&
           kvb_query_context_block_size(ctx, follower) > 0 &&
           strcmp(kvb_query_context_model(ctx, follower), model) == 0;
}

/* True: the worker would be listed if it were up. */
static bool is_worker_down(
    const struct kvb_query_context *ctx, const struct kvb_query *query, const char *model,
    const struct kvb_follower *follower)
{
    static const struct kvb_listing_options with_down = { .with_down = true };

    return follower->state == KVB_STREAM_DOWN && !follower->heartbeat.is_store &&
           is_stream_wanted(ctx, query, model, with_down, follower);
}

static bool is_model_listed(
    const struct kvb_query_context *ctx, const struct kvb_query *query, const char *model,
    struct kvb_listing_options options)
{
    const struct kvb_listing *listing = &ctx->listing;

    /* Defaults are compared too: they are the model of streams that have no heartbeat. */
    return listing->is_made && !query->has_instance_id && !query->has_dp_rank &&
           listing->traits == kvb_followers_traits(ctx->followers) &&
           listing->with_down == options.with_down &&
           listing->default_model == ctx->default_model &&
           listing->default_block_size == ctx->default_block_size &&
           strcmp(listing->model, model) == 0;
}

static kvb_status make_room(struct kvb_query_context *ctx)
{
    const size_t limit = kvb_followers_limit(ctx->followers);
    struct kvb_listing *listing = &ctx->listing;

    KVB_TRY(renew_order(ctx));
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
        &ctx->overlaps, &ctx->overlap_capacity, limit + 1, sizeof *ctx->overlaps,
        kvb_max_streams + 1));
    memset(listing->places, 0, limit * sizeof *listing->places);
    listing->count = 0;
    listing->holder_count = 0;
    listing->shape_count = 0;
    listing->has_worker = false;
    listing->has_alone = false;
    listing->has_several_sizes = false;
    listing->down_count = 0;
    return KVB_OK;
}

bool kvb_block_shape_is_same(struct kvb_block_shape a, struct kvb_block_shape b)
{
    return a.block_size == b.block_size && a.lookahead == b.lookahead;
}

size_t kvb_listing_find_shape(const struct kvb_listing *listing, struct kvb_block_shape shape)
{
    size_t at = 0;

    while (at < listing->shape_count && !kvb_block_shape_is_same(listing->shapes[at], shape)) {
        at++;
    }
    return at;
}

/* Adds a shape.  A bridge may claim any block size, so only the first kvb_listing_max_shapes are
 * served. */
static void list_shape(struct kvb_listing *listing, struct kvb_block_shape shape)
{
    if (shape.block_size > 0 && listing->shape_count < kvb_listing_max_shapes &&
        kvb_listing_find_shape(listing, shape) == listing->shape_count) {
        listing->shapes[listing->shape_count++] = shape;
    }
}

static void list_query_stream(struct kvb_query_context *ctx, uint32_t number)
{
    struct kvb_listing *listing = &ctx->listing;
    const struct kvb_follower *follower = kvb_followers_at(ctx->followers, number);
    const struct kvb_heartbeat *heartbeat = &follower->heartbeat; /* all zero without a heartbeat */
    const struct kvb_block_shape shape = shape_of(ctx, follower);
    bool is_plain = heartbeat->window_tokens == 0;

    list_shape(listing, shape);
    /* A stream whose tiers have other shapes, or window blocks, is looked at more closely later. */
    for (size_t i = 0; i < heartbeat->shape_count; i++) {
        list_shape(listing, heartbeat->shapes[i].shape);
        is_plain = is_plain && kvb_block_shape_is_same(shape, heartbeat->shapes[i].shape);
    }
    listing->streams[listing->count] =
        (struct kvb_overlap){ .follower = follower,
                              .key = kvb_followers_key(ctx->followers, number),
                              .number = number,
                              .shape = shape,
                              .is_plain = is_plain,
                              .is_paired = heartbeat->is_paired,
                              .is_alone = heartbeat->is_without_full,
                              .drop = heartbeat->speculative_drop,
                              .is_store = heartbeat->is_store,
                              .has_facts = kvb_worker_facts_are_known(&heartbeat->facts) };
    listing->has_alone = listing->has_alone || heartbeat->is_without_full;
    /* For the head of an answer, which speaks of workers: stores do not count. */
    if (!heartbeat->is_store && !listing->has_worker) {
        listing->has_worker = true;
        listing->first_worker = listing->count;
    }
    if (!heartbeat->is_store) {
        listing->has_several_sizes |=
            shape.block_size != listing->streams[listing->first_worker].shape.block_size;
    }
    listing->places[number] = (uint32_t)++listing->count; /* + 1: 0 is "not listed" */
}

kvb_status kvb_query_context_list(
    struct kvb_query_context *ctx, const struct kvb_query *query, const char *model,
    struct kvb_listing_options options)
{
    struct kvb_listing *listing = &ctx->listing;

    if (is_model_listed(ctx, query, model, options)) {
        return KVB_OK;
    }
    listing->is_made = false; /* memory may run out half way */
    KVB_TRY(make_room(ctx));
    for (size_t i = 0; i < ctx->order_count; i++) {
        const uint32_t number = ctx->order[i];
        const struct kvb_follower *follower = kvb_followers_at(ctx->followers, number);
        if (is_stream_wanted(ctx, query, model, options, follower)) {
            list_query_stream(ctx, number);
        } else {
            listing->down_count += is_worker_down(ctx, query, model, follower);
        }
    }
    (void)snprintf(listing->model, sizeof listing->model, "%s", model); /* cut: never matches */
    listing->with_down = options.with_down;
    listing->traits = kvb_followers_traits(ctx->followers);
    listing->default_model = ctx->default_model;
    listing->default_block_size = ctx->default_block_size;
    /* A list of one worker or rank is of no use to the next query. */
    listing->is_made = !query->has_instance_id && !query->has_dp_rank;
    return KVB_OK;
}

size_t kvb_query_context_down(
    const struct kvb_query_context *ctx, const struct kvb_query *query,
    const struct kvb_follower **out_down, size_t max)
{
    const struct kvb_listing *listing = &ctx->listing;
    size_t count = 0;

    if (listing->down_count == 0) {
        return 0; /* as nearly always, so that an answer without holders costs no search */
    }
    /* A worker that is up and selected, but holds nothing, is an answer. */
    for (size_t i = 0; i < listing->count; i++) {
        const struct kvb_overlap *stream = &listing->streams[i];
        if (!stream->is_store && kvb_selection_takes(query, stream->follower)) {
            return 0;
        }
    }
    for (size_t i = 0; i < ctx->order_count && count < max; i++) {
        const struct kvb_follower *follower = kvb_followers_at(ctx->followers, ctx->order[i]);
        if (is_worker_down(ctx, query, listing->model, follower) &&
            kvb_selection_takes(query, follower)) {
            out_down[count++] = follower;
        }
    }
    return count;
}

/* ---- All streams ---- */

kvb_status kvb_query_context_sort(struct kvb_query_context *ctx, size_t *out_count)
{
    KVB_TRY(renew_order(ctx));
    KVB_TRY(kvb_array_reserve(
        (void *)&ctx->sorted, &ctx->sorted_capacity, ctx->order_count + 1, sizeof(void *),
        kvb_max_streams + 1));
    for (size_t i = 0; i < ctx->order_count; i++) {
        ctx->sorted[i] = kvb_followers_at(ctx->followers, ctx->order[i]);
    }
    *out_count = ctx->order_count;
    return KVB_OK;
}
