#include "core/limits.h"
#include "core/own.h"
#include "serve/answers.h"
#include "wire/json_writer.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { max_models = 64 };

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
    kvb_json_write_pair_text(json, "storage_tier", kvb_tier_name(dumping->tier));
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

static kvb_status write_stream(const struct kvb_view *view, struct dumping *dumping)
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

static void write_model_name(struct kvb_json_writer *json, const char *model)
{
    char text[kvb_model_bytes + sizeof ":default"];

    (void)snprintf(text, sizeof text, "%s:default", model);
    kvb_json_write_key(json, text);
}

/* All streams of the model of view->sorted[at]. */
static kvb_status
write_model(struct kvb_json_writer *json, const struct kvb_view *view, size_t at, size_t count)
{
    const char *model = kvb_view_model(view, view->sorted[at]);
    struct dumping dumping = { .json = json };

    write_model_name(json, model);
    kvb_json_write_begin(json, '{');
    kvb_json_write_pair_u64(json, "block_size", kvb_view_block_size(view, view->sorted[at]));
    kvb_json_write_key(json, "events");
    kvb_json_write_begin(json, '[');
    for (size_t i = at; i < count; i++) {
        dumping.follower = view->sorted[i];
        if (strcmp(kvb_view_model(view, dumping.follower), model) == 0) {
            KVB_TRY(write_stream(view, &dumping));
        }
    }
    kvb_json_write_end(json, ']');
    kvb_json_write_end(json, '}');
    return json->status;
}

/* The first stream of each model; only that many models are shown. */
static size_t list_models(
    const struct kvb_view *view, size_t count, const char *wanted, size_t out_first[max_models])
{
    size_t models = 0;

    for (size_t i = 0; i < count && models < max_models; i++) {
        const char *model = kvb_view_model(view, view->sorted[i]);
        bool is_new = !wanted || !*wanted || strcmp(wanted, model) == 0;
        for (size_t n = 0; n < models && is_new; n++) {
            is_new = strcmp(kvb_view_model(view, view->sorted[out_first[n]]), model) != 0;
        }
        if (is_new) {
            out_first[models++] = i;
        }
    }
    return models;
}

kvb_status kvb_answer_dump(struct kvb_view *view, const char *model, struct kvb_buf *out)
{
    struct kvb_json_writer json = kvb_json_writer_of(out);
    size_t first[max_models];
    size_t count = 0;

    KVB_TRY(kvb_view_sort(view, &count));
    const size_t models = list_models(view, count, model, first);
    kvb_json_write_begin(&json, '{');
    for (size_t i = 0; i < models; i++) {
        KVB_TRY(write_model(&json, view, first[i], count));
    }
    kvb_json_write_end(&json, '}');
    return json.status;
}

/* ---- Rows ---- */

struct row_dump {
    struct kvb_buf *out;
    size_t max_len; /* of out: no row begins beyond */
    const struct kvb_follower *follower;
    enum kvb_tier tier;
    size_t skip; /* rows of this stream that were shown before */
    size_t row;  /* rows of this stream passed by so far */
};

/* KVB_AGAIN: the page is full. */
static kvb_status write_rows(void *context, const struct kvb_index_run *run)
{
    struct row_dump *dump = context;
    const struct kvb_stream_id *id = &dump->follower->id;

    for (size_t i = 0; i < run->count; i++, dump->row++) {
        if (dump->row < dump->skip) {
            continue;
        }
        if (dump->out->len >= dump->max_len) {
            return KVB_AGAIN;
        }
        KVB_TRY(kvb_buf_append_format(
            dump->out, "%" PRIu64 " %" PRIu32 " %s %" PRIu64 "\n", id->worker_id, id->dp_rank,
            kvb_tier_name(dump->tier), run->blocks[i].value));
    }
    return KVB_OK;
}

static kvb_status dump_stream(const struct kvb_view *view, struct row_dump *dump)
{
    for (int tier = 0; tier < KVB_TIER_COUNT; tier++) {
        dump->tier = (enum kvb_tier)tier;
        if (dump->follower->has_slot[tier]) {
            KVB_TRY(
                kvb_prefix_index_walk(view->index, dump->follower->slots[tier], write_rows, dump));
        }
    }
    return KVB_OK;
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
