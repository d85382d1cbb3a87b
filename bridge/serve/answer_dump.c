#include "core/limits.h"
#include "core/own.h"
#include "serve/answers.h"
#include "wire/json_writer.h"
#include "wire/router_json.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    max_models = 64,
    step_bytes = 64 << 10, /* of one turn: well under 1 ms */
    step_streams = 512     /* without a block, in one turn */
};

/* ---- RouterEvents ---- */

/* What one stored event says beside its blocks. */
struct dumping {
    struct kvb_json_writer *json;
    const struct kvb_follower *follower;
    enum kvb_tier tier;
    uint64_t event_id; /* counts through the whole dump of a model */
};

static void write_parent(struct kvb_json_writer *json, const struct kvb_index_run *run)
{
    kvb_json_write_key(json, "parent_hash");
    if (run->has_parent) {
        kvb_json_write_u64(json, run->parent.value);
    } else {
        kvb_json_write_null(json);
    }
    kvb_json_write_key(json, "start_position");
    kvb_json_write_null(json);
}

static void write_stored(struct kvb_json_writer *json, const struct kvb_index_run *run)
{
    kvb_json_write_begin(json, '{');
    write_parent(json, run);
    kvb_json_write_key(json, "blocks");
    kvb_json_write_begin(json, '[');
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
}

static kvb_status write_event(void *context, const struct kvb_index_run *run)
{
    struct dumping *dumping = context;
    struct kvb_json_writer *json = dumping->json;

    kvb_json_write_begin(json, '{');
    kvb_json_write_pair_u64(json, "worker_id", dumping->follower->id.worker_id);
    kvb_json_write_pair_text(json, "storage_tier", kvb_router_json_tier(dumping->tier));
    kvb_json_write_pair_text(json, "residency_domain", "worker");
    kvb_json_write_key(json, "event");
    kvb_json_write_begin(json, '{');
    kvb_json_write_pair_u64(json, "event_id", dumping->event_id++);
    kvb_json_write_key(json, "data");
    kvb_json_write_begin(json, '{');
    kvb_json_write_key(json, "stored");
    write_stored(json, run);
    kvb_json_write_end(json, '}');
    kvb_json_write_pair_u64(json, "dp_rank", dumping->follower->id.dp_rank);
    kvb_json_write_end(json, '}');
    kvb_json_write_end(json, '}');
    return json->status;
}

/* The window list is left out: Dynamo's readers know no such tier, and it holds no prefixes. */
static kvb_status write_events(const struct kvb_view *view, struct dumping *dumping)
{
    for (int tier = 0; tier < KVB_TIER_COUNT; tier++) {
        dumping->tier = (enum kvb_tier)tier;
        if (dumping->follower->has_slot[tier]) {
            KVB_TRY(kvb_prefix_index_walk(
                view->index, dumping->follower->slots[tier], write_event, dumping));
        }
    }
    return KVB_OK;
}

/* ---- Rows ---- */

struct row_dump {
    struct kvb_buf *out;
    size_t max_len; /* of out: no row begins beyond */
    const struct kvb_follower *follower;
    char head[64];
    size_t head_len;
    size_t skip;       /* rows of this stream that were shown before */
    size_t row;        /* rows of this stream passed by so far */
    kvb_status status; /* of those of the window list */
};

/* KVB_AGAIN: the page is full. */
static kvb_status write_row(struct row_dump *dump, kvb_block_hash block)
{
    if (dump->row >= dump->skip) {
        if (dump->out->len >= dump->max_len) {
            return KVB_AGAIN;
        }
        KVB_TRY(kvb_buf_append(dump->out, dump->head, dump->head_len));
        KVB_TRY(kvb_buf_append_u64(dump->out, block.value));
        KVB_TRY(kvb_buf_append(dump->out, "\n", 1));
    }
    dump->row++;
    return KVB_OK;
}

static kvb_status write_rows(void *context, const struct kvb_index_run *run)
{
    for (size_t i = 0; i < run->count; i++) {
        KVB_TRY(write_row(context, run->blocks[i]));
    }
    return KVB_OK;
}

/* The set's visitor cannot stop the walk: after a failure the rest is passed over. */
static void write_window_row(void *context, kvb_block_hash block)
{
    struct row_dump *dump = context;

    if (dump->status == KVB_OK) {
        dump->status = write_row(dump, block);
    }
}

/* What all rows of a tier begin with: printed once, for there are many of them. */
static void set_head(struct row_dump *dump, enum kvb_tier tier)
{
    const struct kvb_stream_id *id = &dump->follower->id;

    dump->head_len = (size_t)snprintf(
        dump->head, sizeof dump->head, "%" PRIu64 " %" PRIu32 " %s ", id->worker_id, id->dp_rank,
        kvb_tier_name(tier)); /* fits */
}

static kvb_status dump_stream(const struct kvb_view *view, struct row_dump *dump)
{
    for (int tier = 0; tier < KVB_TIER_COUNT; tier++) {
        if (dump->follower->has_slot[tier]) {
            set_head(dump, (enum kvb_tier)tier);
            KVB_TRY(
                kvb_prefix_index_walk(view->index, dump->follower->slots[tier], write_rows, dump));
        }
    }
    set_head(dump, KVB_LIST_WINDOW);
    dump->status = KVB_OK;
    kvb_followers_each_block(
        view->followers, dump->follower, KVB_LIST_WINDOW, write_window_row, dump);
    return dump->status;
}

kvb_status kvb_answer_dump_rows(
    struct kvb_view *view, size_t max_bytes, struct kvb_dump_place *place, struct kvb_buf *out)
{
    struct row_dump dump = {
        .out = out,
        .max_len = out->len + max_bytes,
        .skip = place->row,
    };

    for (size_t i = place->stream; i < kvb_followers_limit(view->followers); i++) {
        dump.follower = kvb_followers_at(view->followers, i);
        dump.row = 0;
        const kvb_status status = dump.follower ? dump_stream(view, &dump) : KVB_OK;
        if (status == KVB_AGAIN) {
            *place = (struct kvb_dump_place){ .stream = i, .row = dump.row };
            return KVB_OK;
        }
        KVB_TRY(status);
        dump.skip = 0;
    }
    *place = (struct kvb_dump_place){ .is_end = true };
    return KVB_OK;
}

kvb_status kvb_answer_dump_page(
    struct kvb_view *view, size_t max_bytes, struct kvb_dump_place place, struct kvb_buf *out)
{
    KVB_OWN(kvb_buf_done) struct kvb_buf rows = { 0 };
    struct kvb_json_writer json = kvb_json_writer_of(out);

    kvb_buf_init(&rows, kvb_max_answer_bytes);
    KVB_TRY(kvb_answer_dump_rows(view, max_bytes, &place, &rows));
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

/* ---- A few streams at a time ---- */

void kvb_dump_done(struct kvb_dump *dump)
{
    free(dump->numbers);
    free(dump->models);
    *dump = (struct kvb_dump){ 0 };
}

kvb_status kvb_dump_begin_rows(struct kvb_dump *dump, struct kvb_view *view)
{
    size_t count = 0;

    KVB_TRY(kvb_view_sort(view, &count));
    dump->numbers = calloc(count + 1, sizeof *dump->numbers); /* not NULL for none */
    if (!dump->numbers) {
        return KVB_NO_MEMORY;
    }
    if (count > 0) {
        memcpy(dump->numbers, view->order, count * sizeof *dump->numbers);
    }
    dump->count = count;
    return KVB_OK;
}

static void note_model(struct kvb_dump *dump, const struct kvb_view *view, size_t at)
{
    const char *name = kvb_view_model(view, view->sorted[at]);

    for (size_t i = 0; i < dump->model_count; i++) {
        if (strcmp(dump->models[i].name, name) == 0) {
            return;
        }
    }
    if (dump->model_count < max_models) {
        struct kvb_dump_model *model = &dump->models[dump->model_count++];
        (void)snprintf(model->name, sizeof model->name, "%s", name); /* fits */
        model->block_size = kvb_view_block_size(view, view->sorted[at]);
    }
}

kvb_status kvb_dump_begin(struct kvb_dump *dump, struct kvb_view *view, const char *model)
{
    KVB_TRY(kvb_dump_begin_rows(dump, view));
    dump->models = calloc(max_models, sizeof *dump->models);
    if (!dump->models) {
        return KVB_NO_MEMORY;
    }
    for (size_t i = 0; i < dump->count; i++) {
        if (!*model || strcmp(kvb_view_model(view, view->sorted[i]), model) == 0) {
            note_model(dump, view, i);
        }
    }
    return KVB_OK;
}

/* Calls write() for streams until the turn is over.  KVB_AGAIN: it is. */
static kvb_status go_on(
    struct kvb_dump *dump, const struct kvb_view *view, struct kvb_json_writer *json,
    kvb_status (*write)(
        struct kvb_dump *dump, const struct kvb_view *view, const struct kvb_follower *follower,
        struct kvb_json_writer *json))
{
    const size_t end = json->out->len + step_bytes;

    for (size_t streams = 0; dump->at < dump->count; streams++) {
        if (json->out->len >= end || streams == step_streams) {
            return KVB_AGAIN;
        }
        const struct kvb_follower *follower =
            kvb_followers_at(view->followers, dump->numbers[dump->at++]);
        if (follower) { /* it may have gone meanwhile */
            KVB_TRY(write(dump, view, follower, json));
        }
    }
    return KVB_OK;
}

static kvb_status add_rows(
    struct kvb_dump *dump, const struct kvb_view *view, const struct kvb_follower *follower,
    struct kvb_json_writer *json)
{
    struct row_dump rows = { .out = json->out, .max_len = SIZE_MAX, .follower = follower };

    (void)dump;
    return dump_stream(view, &rows);
}

static kvb_status add_events(
    struct kvb_dump *dump, const struct kvb_view *view, const struct kvb_follower *follower,
    struct kvb_json_writer *json)
{
    struct dumping dumping = { .json = json, .follower = follower, .event_id = dump->event_id };

    if (strcmp(kvb_view_model(view, follower), dump->models[dump->model].name) != 0) {
        return KVB_OK;
    }
    const kvb_status status = write_events(view, &dumping);
    dump->event_id = dumping.event_id;
    return status;
}

static void begin_model(struct kvb_json_writer *json, const struct kvb_dump_model *model)
{
    char text[kvb_model_bytes + sizeof ":default"];

    (void)snprintf(text, sizeof text, "%s:default", model->name);
    kvb_json_write_key(json, text);
    kvb_json_write_begin(json, '{');
    kvb_json_write_pair_u64(json, "block_size", model->block_size);
    kvb_json_write_key(json, "events");
    kvb_json_write_begin(json, '[');
}

static kvb_status
add_models(struct kvb_dump *dump, const struct kvb_view *view, struct kvb_json_writer *json)
{
    for (; dump->model < dump->model_count; dump->model++) {
        if (dump->at == 0) {
            begin_model(json, &dump->models[dump->model]);
        }
        KVB_TRY(go_on(dump, view, json, add_events));
        dump->at = 0;
        dump->event_id = 0;
        kvb_json_write_end(json, ']');
        kvb_json_write_end(json, '}');
    }
    kvb_json_write_end(json, '}');
    return json->status;
}

kvb_status kvb_dump_step(struct kvb_dump *dump, struct kvb_view *view, struct kvb_buf *out)
{
    struct kvb_json_writer json = kvb_json_writer_of(out);

    if (!dump->models) {
        return go_on(dump, view, &json, add_rows);
    }
    json.is_after_value = dump->is_after_value;
    if (dump->model == 0 && dump->at == 0) {
        kvb_json_write_begin(&json, '{');
    }
    const kvb_status status = add_models(dump, view, &json);
    dump->is_after_value = json.is_after_value;
    return json.status != KVB_OK ? json.status : status; /* a part is missing: no next turn */
}
