#include "load/predictions.h"

#include "core/array.h"
#include "core/hash.h"
#include "core/id_table.h"
#include "core/limits.h"
#include "model/stream_table.h"

#include <stdlib.h>

/* A predicted block of one stream, in a list by age. */
struct prediction {
    uint64_t block;
    uint64_t until_ns;
    uint64_t round;  /* valid only while the stream has the same round */
    uint32_t stream; /* number */
    uint32_t older;  /* 1 + number; 0: the end; the next field too */
    uint32_t newer;  /* while free: the next free one */
};

struct predicted_stream {
    size_t count;   /* its predictions, including retired ones */
    uint64_t round; /* ends when the stream is retired */
    bool has_epoch;
    kvb_epoch epoch; /* the newest one seen while there were predictions */
};

struct kvb_predictions {
    struct kvb_predictions_options options;
    struct kvb_hash_key key;
    struct kvb_id_table places;
    struct prediction *items; /* owned */
    size_t item_count, item_capacity;
    uint32_t first_free;
    uint32_t oldest;
    uint32_t newest;
    struct kvb_stream_table names;
    struct predicted_stream *streams; /* owned; by the number of the name */
    size_t stream_capacity;
    struct kvb_prediction_counters counters;
};

kvb_status kvb_predictions_new(
    const struct kvb_predictions_options *options, struct kvb_predictions **out_predictions)
{
    struct kvb_predictions *predictions = calloc(1, sizeof *predictions);

    if (!predictions) {
        return KVB_NO_MEMORY;
    }
    predictions->options = *options;
    predictions->key = kvb_hash_key_of(options->hash_key);
    kvb_stream_table_init(&predictions->names, options->max_streams, options->hash_key);
    *out_predictions = predictions;
    return KVB_OK;
}

void kvb_predictions_free(struct kvb_predictions *predictions)
{
    if (!predictions) {
        return;
    }
    kvb_id_table_done(&predictions->places);
    kvb_stream_table_done(&predictions->names);
    free(predictions->items);
    free(predictions->streams);
    free(predictions);
}

/* ---- One block ---- */

static uint32_t
prediction_hash(const struct kvb_predictions *predictions, kvb_block_hash block, uint32_t stream)
{
    return (uint32_t)kvb_hash_keyed(&predictions->key, block.value, stream);
}

static struct prediction *
find_prediction(const struct kvb_predictions *predictions, kvb_block_hash block, uint32_t stream)
{
    const uint32_t hash = prediction_hash(predictions, block, stream);
    size_t at = kvb_id_table_start(&predictions->places, hash);

    for (uint32_t i; (i = kvb_id_table_next(&predictions->places, hash, &at)) != KVB_NO_ID;) {
        struct prediction *item = &predictions->items[i];
        if (item->block == block.value && item->stream == stream) {
            return item;
        }
    }
    return NULL;
}

static bool
is_valid(const struct kvb_predictions *predictions, const struct prediction *item, uint64_t now_ns)
{
    return item->round == predictions->streams[item->stream].round && item->until_ns > now_ns;
}

static void link_as_newest(struct kvb_predictions *predictions, uint32_t number)
{
    struct prediction *item = &predictions->items[number];

    item->older = predictions->newest;
    item->newer = 0;
    if (item->older) {
        predictions->items[item->older - 1].newer = number + 1;
    } else {
        predictions->oldest = number + 1;
    }
    predictions->newest = number + 1;
}

static void unlink_prediction(struct kvb_predictions *predictions, const struct prediction *item)
{
    if (item->older) {
        predictions->items[item->older - 1].newer = item->newer;
    } else {
        predictions->oldest = item->newer;
    }
    if (item->newer) {
        predictions->items[item->newer - 1].older = item->older;
    } else {
        predictions->newest = item->older;
    }
}

static void remove_prediction(struct kvb_predictions *predictions, struct prediction *item)
{
    const uint32_t number = (uint32_t)(item - predictions->items);
    const kvb_block_hash block = { item->block };
    struct predicted_stream *stream = &predictions->streams[item->stream];

    unlink_prediction(predictions, item);
    kvb_id_table_remove(
        &predictions->places, prediction_hash(predictions, block, item->stream), number);
    if (--stream->count == 0) {
        kvb_stream_table_remove(&predictions->names, item->stream);
    }
    item->newer = predictions->first_free;
    predictions->first_free = number + 1;
    predictions->counters.blocks--;
}

static void
count_end(struct kvb_predictions *predictions, const struct prediction *item, uint64_t *counter)
{
    if (item->round == predictions->streams[item->stream].round) {
        ++*counter;
    } else {
        predictions->counters.retired++;
    }
}

static void make_prediction_place(struct kvb_predictions *predictions)
{
    if (predictions->counters.blocks >= predictions->options.max_blocks) {
        struct prediction *item = &predictions->items[predictions->oldest - 1];
        /* One that was retired before is counted as that. */
        count_end(predictions, item, &predictions->counters.evicted);
        remove_prediction(predictions, item);
    }
}

static kvb_status predict_block(
    struct kvb_predictions *predictions, kvb_block_hash block, uint32_t stream, uint64_t now_ns)
{
    struct prediction *known = find_prediction(predictions, block, stream);
    const struct prediction added = {
        .block = block.value,
        .until_ns = now_ns + predictions->options.ttl_ns,
        .round = predictions->streams[stream].round,
        .stream = stream,
    };

    if (known && is_valid(predictions, known, now_ns)) {
        return KVB_OK; /* with its deadline, which a repetition must not move */
    }
    if (known) { /* retired or expired: it is replaced */
        const uint32_t number = (uint32_t)(known - predictions->items);
        count_end(predictions, known, &predictions->counters.expired);
        unlink_prediction(predictions, known);
        *known = added;
        link_as_newest(predictions, number);
        predictions->counters.predicted++;
        return KVB_OK;
    }
    if (!predictions->first_free) {
        KVB_TRY(kvb_array_reserve(
            &predictions->items, &predictions->item_capacity, predictions->item_count + 1,
            sizeof *predictions->items, kvb_max_predicted_blocks));
    }
    /* The number is taken only when the table has it: a failure leaves nothing behind. */
    const uint32_t number =
        predictions->first_free ? predictions->first_free - 1 : (uint32_t)predictions->item_count;
    KVB_TRY(kvb_id_table_put(
        &predictions->places, prediction_hash(predictions, block, stream), number));
    if (predictions->first_free) {
        predictions->first_free = predictions->items[number].newer;
    } else {
        predictions->item_count++;
    }
    predictions->items[number] = added;
    link_as_newest(predictions, number);
    predictions->streams[stream].count++;
    predictions->counters.blocks++;
    predictions->counters.predicted++;
    return KVB_OK;
}

/* ---- Decisions ---- */

/* Finds or adds the stream.  Its count is one too high until kvb_predictions_add() ends, so that
 * the stream is not removed. */
static kvb_status
hold_stream(struct kvb_predictions *predictions, const struct kvb_stream_id *id, uint32_t *out)
{
    const size_t before = predictions->names.count;

    KVB_TRY(kvb_array_reserve(
        &predictions->streams, &predictions->stream_capacity, predictions->names.limit + 1,
        sizeof *predictions->streams, kvb_max_streams + 1));
    KVB_TRY(kvb_stream_table_add(&predictions->names, id, out));
    if (predictions->names.count > before) {
        predictions->streams[*out] = (struct predicted_stream){ 0 };
    }
    predictions->streams[*out].count++;
    return KVB_OK;
}

static void release_stream(struct kvb_predictions *predictions, uint32_t number)
{
    if (--predictions->streams[number].count == 0) {
        kvb_stream_table_remove(&predictions->names, number);
    }
}

kvb_status kvb_predictions_add(
    struct kvb_predictions *predictions, const struct kvb_stream_id *id,
    const kvb_block_hash *blocks, size_t count, uint64_t now_ns)
{
    kvb_status status = KVB_OK;
    uint32_t stream = 0;

    if (predictions->options.ttl_ns == 0 || count == 0) {
        return KVB_OK;
    }
    KVB_TRY(hold_stream(predictions, id, &stream));
    for (size_t i = 0; i < count && status == KVB_OK; i++) {
        make_prediction_place(predictions);
        status = predict_block(predictions, blocks[i], stream, now_ns);
    }
    release_stream(predictions, stream);
    return status;
}

bool kvb_predictions_any(const struct kvb_predictions *predictions)
{
    return predictions->counters.blocks > 0;
}

bool kvb_predictions_has_stream(
    const struct kvb_predictions *predictions, const struct kvb_stream_key *key)
{
    uint32_t stream = 0;

    return kvb_predictions_any(predictions) &&
           kvb_stream_table_find_key(&predictions->names, key, &stream) == KVB_OK;
}

size_t kvb_predictions_beyond(
    const struct kvb_predictions *predictions, const struct kvb_stream_key *key,
    const kvb_block_hash *prompt, size_t count, size_t held, uint64_t now_ns)
{
    uint32_t stream = 0;

    if (predictions->counters.blocks == 0 ||
        kvb_stream_table_find_key(&predictions->names, key, &stream) != KVB_OK) {
        return 0;
    }
    /* Steps double while blocks are found; from the first that is not, they halve (binary search).
     */
    size_t known = held; /* the blocks before this one are held or predicted */
    size_t step = 1;
    size_t end = count; /* the run of predicted blocks ends here or before */
    while (known < end) {
        const size_t probe = known + step <= end ? known + step : end;
        const struct prediction *item = find_prediction(predictions, prompt[probe - 1], stream);
        if (item && is_valid(predictions, item, now_ns)) {
            known = probe;
            step = end == count ? step * 2 : (end - known + 1) / 2;
        } else {
            end = probe - 1;
            step = (end - known + 1) / 2;
        }
    }
    return known - held;
}

/* ---- The end of predictions ---- */

void kvb_predictions_stored(
    struct kvb_predictions *predictions, const struct kvb_stream_id *id,
    const kvb_block_hash *blocks, size_t count)
{
    uint32_t stream = 0;

    if (predictions->counters.blocks == 0 ||
        kvb_stream_table_find(&predictions->names, id, &stream) != KVB_OK) {
        return;
    }
    /* With the last one the stream's number is gone, so it is counted here. */
    size_t left = predictions->streams[stream].count;
    for (size_t i = 0; i < count && left > 0; i++) {
        struct prediction *item = find_prediction(predictions, blocks[i], stream);
        if (item) {
            count_end(predictions, item, &predictions->counters.confirmed);
            remove_prediction(predictions, item);
            left--;
        }
    }
}

void kvb_predictions_retire(struct kvb_predictions *predictions, const struct kvb_stream_id *id)
{
    uint32_t stream = 0;

    if (predictions->counters.blocks > 0 &&
        kvb_stream_table_find(&predictions->names, id, &stream) == KVB_OK) {
        /* In constant time: those of an earlier round count as gone wherever they are met. */
        predictions->streams[stream].round++;
        predictions->streams[stream].has_epoch = false;
    }
}

void kvb_predictions_note_epoch(
    struct kvb_predictions *predictions, const struct kvb_stream_id *id, const kvb_epoch *epoch)
{
    uint32_t number = 0;

    if (predictions->counters.blocks == 0 ||
        kvb_stream_table_find(&predictions->names, id, &number) != KVB_OK) {
        return;
    }
    struct predicted_stream *stream = &predictions->streams[number];
    /* The first epoch that is heard of ends nothing: it may be that of the decision. */
    stream->round += stream->has_epoch && !kvb_epoch_is_same(&stream->epoch, epoch);
    stream->has_epoch = true;
    stream->epoch = *epoch;
}

bool kvb_predictions_expire(struct kvb_predictions *predictions, uint64_t now_ns, size_t max)
{
    /* All live equally long, so the oldest ends first. */
    while (predictions->oldest) {
        struct prediction *item = &predictions->items[predictions->oldest - 1];
        if (item->until_ns > now_ns) {
            return false;
        }
        if (max-- == 0) {
            return true;
        }
        count_end(predictions, item, &predictions->counters.expired);
        remove_prediction(predictions, item);
    }
    return false;
}

void kvb_predictions_count(
    const struct kvb_predictions *predictions, struct kvb_prediction_counters *out_counters)
{
    *out_counters = predictions->counters;
}
