#include "core/limits.h"
#include "core/own.h"
#include "kvaggregator/answers/answers.h"
#include "wire/json/writer.h"
#include "wire/router/json.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    max_models = 64,
    step_streams = 512,   /* streams without a block that are skipped in one turn */
    step_walk = 512 * 16, /* work for kvb_index_walk_step(): 512 blocks */
    usual_row_bytes = 40,
    list_shift = 40, /* a row number is the list << list_shift, plus the position in that list */
};

/* ---- RouterEvents ---- */

/* What a stored event has beside its blocks. */
struct dumping {
    struct kvb_json_writer *json;
    const struct kvb_follower *follower;
    enum kvb_tier tier;
    uint64_t event_id; /* numbers the events in the dump of a model */
};

static kvb_status write_event(void *context, const struct kvb_index_run *run)
{
    struct dumping *dumping = context;
    struct kvb_json_writer *json = dumping->json;

    kvb_json_write_begin(json, '{');
    kvb_json_write_pair_u64(json, "worker_id", dumping->follower->id.worker_id);
    kvb_json_write_pair_text(json, "storage_tier", kvb_router_json_tier(dumping->tier));
    kvb_json_write_pair_text(json, "residency_domain", "worker");
    kvb_json_write_pair_begin(json, "event", '{');
    kvb_json_write_pair_u64(json, "event_id", dumping->event_id++);
    kvb_json_write_pair_begin(json, "data", '{');
    kvb_json_write_pair_begin(json, "stored", '{');
    kvb_json_write_key(json, "parent_hash");
    if (run->has_parent) {
        kvb_json_write_u64(json, run->parent.value);
    } else {
        kvb_json_write_null(json);
    }
    /* Dynamo's readers want each key, also those that nobody here fills. */
    kvb_json_write_key(json, "start_position");
    kvb_json_write_null(json);
    kvb_json_write_pair_begin(json, "blocks", '[');
    for (size_t i = 0; i < run->count; i++) {
        kvb_json_write_begin(json, '{');
        kvb_json_write_pair_u64(json, "block_hash", run->blocks[i].value);
        kvb_json_write_pair_u64(json, "tokens_hash", run->tokens[i].value);
        kvb_json_write_key(json, "mm_extra_info");
        kvb_json_write_null(json);
        kvb_json_write_end(json, '}');
    }
    kvb_json_write_end(json, ']');
    kvb_json_write_end(json, '}');
    kvb_json_write_end(json, '}');
    kvb_json_write_pair_u64(json, "dp_rank", dumping->follower->id.dp_rank);
    kvb_json_write_end(json, '}');
    kvb_json_write_end(json, '}');
    return json->status;
}

/* ---- Rows ---- */

struct row_dump {
    struct kvb_buf *out;
    char head[64];
    size_t head_len;
    kvb_status status;
};

/* A visitor cannot end the walk, so after a failure it skips the remaining blocks. */
static void write_block_row(void *context, kvb_block_hash block)
{
    struct row_dump *dump = context;

    if (dump->status == KVB_OK) {
        dump->status = kvb_buf_append(dump->out, dump->head, dump->head_len);
    }
    if (dump->status == KVB_OK) {
        dump->status = kvb_buf_append_u64(dump->out, block.value);
    }
    if (dump->status == KVB_OK) {
        dump->status = kvb_buf_append(dump->out, "\n", 1);
    }
}

/* Writes some rows of one list.  False: the list has ended. */
static bool write_list_rows(
    const struct kvb_query_context *ctx, const struct kvb_follower *follower, enum kvb_tier list,
    uint64_t *place, struct row_dump *dump, size_t max_rows)
{
    /* What all rows of a list begin with, made once for the many rows. */
    dump->head_len = (size_t)snprintf(
        dump->head, sizeof dump->head, "%" PRIu64 " %" PRIu32 " %s ", follower->id.worker_id,
        follower->id.dp_rank, kvb_tier_name(list)); /* fits */
    if (list == KVB_LIST_WINDOW) {
        return follower->window &&
               kvb_block_set_page(follower->window, place, max_rows, write_block_row, dump);
    }
    if (!follower->has_slot[list]) {
        return false;
    }
    kvb_prefix_index_page(
        ctx->index, follower->slots[list], place, max_rows, write_block_row, dump);
    return *place != KVB_INDEX_PLACE_END;
}

/* Writes rows from *row on until `out` has max_len bytes.  KVB_AGAIN: there is more. */
static kvb_status write_follower_rows(
    const struct kvb_query_context *ctx, const struct kvb_follower *follower, uint64_t *row,
    size_t max_len, struct kvb_buf *out)
{
    struct row_dump dump = { .out = out };

    while (*row >> list_shift < KVB_LIST_COUNT) {
        uint64_t list = *row >> list_shift;
        uint64_t place = *row & ((UINT64_C(1) << list_shift) - 1);
        if (out->len >= max_len) {
            return KVB_AGAIN;
        }
        /* A guess: rows that are longer than usual end the part a little later. */
        const size_t max_rows = (max_len - out->len) / usual_row_bytes + 1;
        if (!write_list_rows(ctx, follower, (enum kvb_tier)list, &place, &dump, max_rows)) {
            list++;
            place = 0;
        }
        KVB_TRY(dump.status);
        *row = list << list_shift | place;
    }
    return KVB_OK;
}

kvb_status kvb_answer_dump_rows(
    struct kvb_query_context *ctx, size_t max_bytes, struct kvb_dump_place *place,
    struct kvb_buf *out)
{
    const size_t max_len = out->len + max_bytes;
    const size_t limit = kvb_followers_limit(ctx->followers);

    for (size_t streams = 0; place->stream < limit && streams < step_streams; streams++) {
        const struct kvb_follower *follower = kvb_followers_at(ctx->followers, place->stream);
        const kvb_status status =
            follower ? write_follower_rows(ctx, follower, &place->row, max_len, out) : KVB_OK;
        if (status == KVB_AGAIN) {
            return KVB_OK;
        }
        KVB_TRY(status);
        place->stream++;
        place->row = 0;
    }
    place->is_end = place->stream >= limit;
    return KVB_OK;
}

kvb_status kvb_answer_dump_page(
    struct kvb_query_context *ctx, size_t max_bytes, struct kvb_dump_place place,
    struct kvb_buf *out)
{
    KVB_OWN(kvb_buf_done) struct kvb_buf rows = { 0 };
    struct kvb_json_writer json = kvb_json_writer_of(out);

    kvb_buf_init(&rows, kvb_max_answer_bytes);
    KVB_TRY(kvb_answer_dump_rows(ctx, max_bytes, &place, &rows));
    kvb_json_write_begin(&json, '{');
    kvb_json_write_key(&json, "rows");
    kvb_json_write_span(&json, kvb_buf_span(&rows));
    if (!place.is_end) {
        kvb_json_write_pair_u64(&json, "stream", place.stream);
        kvb_json_write_pair_u64(&json, "row", place.row);
    }
    kvb_json_write_end(&json, '}');
    return json.status;
}

/* ---- Its life ---- */

void kvb_dump_done(struct kvb_dump *dump)
{
    kvb_index_walk_free(dump->walk);
    free(dump->numbers);
    free(dump->models);
    *dump = (struct kvb_dump){ 0 };
}

/* ---- Which streams a dump as RouterEvents has ---- */

static bool is_dump_selected(
    const struct kvb_query_context *ctx, const struct kvb_dump_options *options,
    const struct kvb_follower *follower)
{
    const struct {
        const char *wanted, *given;
    } pairs[] = {
        { options->model, kvb_query_context_model(ctx, follower) },
        { options->name_space, follower->id.name_space },
        { options->component, follower->id.component },
    };

    for (size_t i = 0; i < KVB_COUNT_OF(pairs); i++) {
        if (*pairs[i].wanted && strcmp(pairs[i].wanted, pairs[i].given) != 0) {
            return false;
        }
    }
    return true;
}

/* KVB_DUMP_REASON_COUNT: nothing about the stream alone keeps it out. */
static enum kvb_dump_reason
reason_to_leave_out(const struct kvb_query_context *ctx, const struct kvb_follower *follower)
{
    const char *model = kvb_query_context_model(ctx, follower);

    if (follower->state != KVB_STREAM_EXACT && follower->state != KVB_STREAM_PARTIAL) {
        return KVB_DUMP_STATE;
    }
    if (follower->heartbeat.is_store) {
        return KVB_DUMP_STORE;
    }
    return !*model || strchr(model, ':') ? KVB_DUMP_MODEL_NAME : KVB_DUMP_REASON_COUNT;
}

static bool is_in_model(
    const struct kvb_query_context *ctx, const struct kvb_follower *follower,
    const struct kvb_dump_model *model)
{
    return strcmp(kvb_query_context_model(ctx, follower), model->name) == 0 &&
           kvb_query_context_block_size(ctx, follower) == model->block_size;
}

/* What is known of a dump while its streams are chosen, one after the other by worker. */
struct choosing {
    struct kvb_dump *dump;
    const struct kvb_query_context *ctx;
    const struct kvb_dump_options *options;
    struct kvb_detail *detail;
    const struct kvb_follower *last[max_models]; /* the stream chosen last, of each model */
    uint64_t blocks;
};

/* The model of that name, which may be new.  KVB_TOO_LARGE. */
static kvb_status
find_dump_model(struct choosing *choosing, const struct kvb_follower *follower, size_t *out_model)
{
    struct kvb_dump *dump = choosing->dump;
    const char *name = kvb_query_context_model(choosing->ctx, follower);
    size_t at = 0;

    while (at < dump->model_count && strcmp(dump->models[at].name, name) != 0) {
        at++;
    }
    if (at == max_models) {
        kvb_detail_set(
            choosing->detail, "more than %d models: name one, GET /dump?model_name=NAME",
            max_models);
        return KVB_TOO_LARGE;
    }
    if (at == dump->model_count) {
        struct kvb_dump_model *model = &dump->models[dump->model_count++];
        (void)snprintf(model->name, sizeof model->name, "%s", name); /* fits */
        model->block_size = kvb_query_context_block_size(choosing->ctx, follower);
    }
    *out_model = at;
    return KVB_OK;
}

/* Streams are sorted by worker, and of a worker by component. */
static kvb_status check_one_component(
    const struct choosing *choosing, const struct kvb_follower *last,
    const struct kvb_follower *follower)
{
    const struct kvb_stream_id *a = &last->id;
    const struct kvb_stream_id *b = &follower->id;

    if (a->worker_id != b->worker_id ||
        (strcmp(a->name_space, b->name_space) == 0 && strcmp(a->component, b->component) == 0)) {
        return KVB_OK;
    }
    kvb_detail_set(
        choosing->detail,
        "worker %" PRIu64 " of this model is in %s/%s and in %s/%s: choose by "
        "?namespace=NAME&component=NAME",
        a->worker_id, a->name_space, a->component, b->name_space, b->component);
    return KVB_BAD_INPUT;
}

static kvb_status check_names(const struct choosing *choosing, const struct kvb_follower *follower)
{
    if (!choosing->options->engine_names || follower->heartbeat.hashes == KVB_HASHES_ENGINE) {
        return KVB_OK;
    }
    kvb_detail_set(
        choosing->detail,
        "worker %" PRIu64 " rank %" PRIu32 " has canonical names: its engine's are published with "
        "defaults.hashes = \"engine\" in its bridge",
        follower->id.worker_id, follower->id.dp_rank);
    return KVB_BAD_INPUT;
}

static kvb_status choose_stream(struct choosing *choosing, uint32_t number)
{
    struct kvb_dump *dump = choosing->dump;
    const struct kvb_follower *follower = kvb_followers_at(choosing->ctx->followers, number);
    size_t at = 0;

    if (!is_dump_selected(choosing->ctx, choosing->options, follower)) {
        return KVB_OK;
    }
    const enum kvb_dump_reason reason = reason_to_leave_out(choosing->ctx, follower);
    if (reason != KVB_DUMP_REASON_COUNT) {
        dump->left_out[reason]++;
        return KVB_OK;
    }
    KVB_TRY(find_dump_model(choosing, follower, &at));
    /* The first stream of a model decides: Dynamo's reader has one block size for each. */
    if (!is_in_model(choosing->ctx, follower, &dump->models[at])) {
        dump->left_out[KVB_DUMP_BLOCK_SIZE]++;
        return KVB_OK;
    }
    KVB_TRY(check_names(choosing, follower));
    if (choosing->last[at]) {
        KVB_TRY(check_one_component(choosing, choosing->last[at], follower));
    }
    choosing->last[at] = follower;
    for (size_t tier = 0; tier < KVB_TIER_COUNT; tier++) {
        if (follower->has_slot[tier]) {
            choosing->blocks +=
                kvb_prefix_index_slot_blocks(choosing->ctx->index, follower->slots[tier]);
        }
    }
    dump->numbers[dump->count++] = number;
    return KVB_OK;
}

kvb_status kvb_dump_begin(
    struct kvb_dump *dump, struct kvb_query_context *ctx, const struct kvb_dump_options *options,
    struct kvb_detail *detail)
{
    struct choosing choosing = { .dump = dump, .ctx = ctx, .options = options, .detail = detail };
    size_t count = 0;

    KVB_TRY(kvb_query_context_sort(ctx, &count));
    dump->models = calloc(max_models, sizeof *dump->models);
    dump->numbers = calloc(count + 1, sizeof *dump->numbers); /* + 1: not NULL for 0 streams */
    if (!dump->models || !dump->numbers) {
        return KVB_NO_MEMORY;
    }
    for (size_t i = 0; i < count; i++) {
        KVB_TRY(choose_stream(&choosing, ctx->order[i]));
    }
    /* Before the first byte: a peer that gives up half way would begin again, and again. */
    if (choosing.blocks > options->max_blocks) {
        kvb_detail_set(
            detail,
            "%" PRIu64 " blocks, above the %" PRIu64
            " that a peer reads within its 10 s: choose by "
            "?model_name=NAME, or read /dump?format=rows",
            choosing.blocks, options->max_blocks);
        return KVB_TOO_LARGE;
    }
    return KVB_OK;
}

/* ---- A few streams at a time ---- */

static void leave_tier(struct kvb_dump *dump)
{
    kvb_index_walk_free(dump->walk);
    dump->walk = NULL;
}

/* Writes the events of the next blocks of one tier. */
static kvb_status add_tier(
    struct kvb_dump *dump, const struct kvb_query_context *ctx, const struct kvb_follower *follower,
    struct kvb_json_writer *json)
{
    const enum kvb_tier tier = (enum kvb_tier)dump->tier;
    struct dumping dumping = {
        .json = json, .follower = follower, .tier = tier, .event_id = dump->event_id
    };

    if (!follower->has_slot[tier]) {
        return KVB_OK;
    }
    if (!dump->walk) {
        dump->walked = follower->slots[tier];
        KVB_TRY(kvb_index_walk_new(ctx->index, dump->walked, &dump->walk));
    }
    /* Between two parts the stream may have got another list, or its place another stream.  Its
     * rest is left out: what has come since is not of the moment that the dump began. */
    if (dump->walked.value != follower->slots[tier].value) {
        return KVB_OK;
    }
    const kvb_status status = kvb_index_walk_step(dump->walk, step_walk, write_event, &dumping);
    dump->event_id = dumping.event_id;
    return status;
}

/* The list of sliding-window blocks is left out: Dynamo's readers do not know that tier, and it
 * holds no prefixes. */
static kvb_status add_stream(
    struct kvb_dump *dump, const struct kvb_query_context *ctx, const struct kvb_follower *follower,
    struct kvb_json_writer *json)
{
    if (reason_to_leave_out(ctx, follower) != KVB_DUMP_REASON_COUNT ||
        !is_in_model(ctx, follower, &dump->models[dump->model])) {
        return KVB_OK; /* of another model, or not to be trusted any more */
    }
    for (; dump->tier < KVB_TIER_COUNT; dump->tier++) {
        KVB_TRY(add_tier(dump, ctx, follower, json));
        leave_tier(dump);
    }
    return KVB_OK;
}

/* All streams are visited for each model, and those of others passed over: models are few, and the
 * answer needs them one after the other.  KVB_AGAIN: the turn is over. */
static kvb_status add_streams(
    struct kvb_dump *dump, const struct kvb_query_context *ctx, struct kvb_json_writer *json)
{
    const size_t end = json->out->len + kvb_dump_part_bytes;

    for (size_t streams = 0; dump->at < dump->count; streams++) {
        if (json->out->len >= end || streams == step_streams) {
            return KVB_AGAIN;
        }
        const struct kvb_follower *follower =
            kvb_followers_at(ctx->followers, dump->numbers[dump->at]);
        if (follower) { /* the stream may have been removed since */
            KVB_TRY(add_stream(dump, ctx, follower, json));
        }
        leave_tier(dump);
        dump->tier = 0;
        dump->at++;
    }
    return KVB_OK;
}

static kvb_status
add_models(struct kvb_dump *dump, const struct kvb_query_context *ctx, struct kvb_json_writer *json)
{
    for (; dump->model < dump->model_count; dump->model++) {
        if (!dump->is_in_model) {
            const struct kvb_dump_model *model = &dump->models[dump->model];
            char text[kvb_model_bytes + sizeof ":default"];
            (void)snprintf(text, sizeof text, "%s:default", model->name);
            kvb_json_write_pair_begin(json, text, '{');
            kvb_json_write_pair_u64(json, "block_size", model->block_size);
            kvb_json_write_pair_begin(json, "events", '[');
            dump->is_in_model = true;
        }
        KVB_TRY(add_streams(dump, ctx, json));
        dump->is_in_model = false;
        dump->at = 0;
        dump->event_id = 0;
        kvb_json_write_end(json, ']');
        kvb_json_write_end(json, '}');
    }
    kvb_json_write_end(json, '}');
    return json->status;
}

kvb_status kvb_dump_step(struct kvb_dump *dump, struct kvb_query_context *ctx, struct kvb_buf *out)
{
    struct kvb_json_writer json = kvb_json_writer_of(out);

    json.is_after_value = dump->is_after_value;
    if (!dump->is_begun) {
        dump->is_begun = true;
        kvb_json_write_begin(&json, '{');
    }
    const kvb_status status = add_models(dump, ctx, &json);
    dump->is_after_value = json.is_after_value;
    return json.status != KVB_OK ? json.status : status; /* a failed part ends the dump */
}
