#include "wire/router/json.h"

#include "core/decimal.h"
#include "core/limits.h"
#include "core/own.h"
#include "wire/json/scan.h"

#include <assert.h>
#include <string.h>

/* Writes straight into the memory of a buffer: each text and number costs one comparison and no
 * second copy.  Between two calls of make_piece_room() at most the head of a stored event (160
 * bytes) or one block is written. */
struct piece {
    char *at, *end;    /* in the buffer's memory */
    bool is_too_large; /* it does not fit below the buffer's ceiling; nothing is written any more */
};

enum { max_put_at_once = 192, room_at_once = 1024 };

static const uint64_t max_worker_id = INT64_MAX; /* readers store it as an i64 */

/* Dynamo's names of the tiers; its name for the host differs from ours. */
static const char *const tier_words[KVB_LIST_COUNT] = {
    [KVB_TIER_DEVICE] = "device",     [KVB_TIER_HOST] = "host_pinned", [KVB_TIER_DISK] = "disk",
    [KVB_TIER_EXTERNAL] = "external", [KVB_LIST_WINDOW] = "window", /* on P.kv_window_events alone:
                                                                       Dynamo knows no such list */
};

const char *kvb_router_json_tier(enum kvb_tier tier)
{
    return tier_words[tier];
}

/* ---- encode ------------------------------------------------------------------ */

[[gnu::cold, gnu::noinline]] static void cut_piece(struct piece *piece)
{
    piece->is_too_large = true;
    piece->end = piece->at;
}

static inline void put_piece_bytes(struct piece *piece, const char *bytes, size_t len)
{
    if ((size_t)(piece->end - piece->at) < len) {
        cut_piece(piece);
        return;
    }
    memcpy(piece->at, bytes, len);
    piece->at += len;
}

static inline void put_piece_text(struct piece *piece, const char *text)
{
    put_piece_bytes(piece, text, strlen(text));
}

/* Writes a comma before all items but the first. */
static void put_piece_comma(struct piece *piece, uint32_t number)
{
    put_piece_bytes(piece, ",", number > 0);
}

[[gnu::hot]] static void put_u64(struct piece *piece, uint64_t value)
{
    char digits[kvb_decimal_bytes];

    if (piece->end - piece->at >= kvb_decimal_bytes) {
        piece->at += kvb_decimal_write(piece->at, value);
    } else { /* just below the ceiling */
        put_piece_bytes(piece, digits, kvb_decimal_write(digits, value));
    }
}

/* What was written becomes part of the buffer.  False: it does not fit. */
static bool flush_piece(const struct piece *piece, struct kvb_buf *out)
{
    out->len = (size_t)(piece->at - (char *)out->data);
    return !piece->is_too_large;
}

/* Takes the free memory at the buffer's end, as much as its ceiling allows. */
static kvb_status begin_piece(struct piece *piece, struct kvb_buf *out)
{
    const size_t left = out->ceiling - out->len;

    KVB_TRY(kvb_buf_reserve(out, left < room_at_once ? left : room_at_once));
    piece->at = (char *)out->data + out->len;
    piece->end = (char *)out->data + out->capacity;
    return KVB_OK;
}

[[gnu::cold, gnu::noinline]] static kvb_status grow_piece(struct piece *piece, struct kvb_buf *out)
{
    return flush_piece(piece, out) ? begin_piece(piece, out) : KVB_TOO_LARGE;
}

static inline kvb_status make_piece_room(struct piece *piece, struct kvb_buf *out)
{
    return piece->end - piece->at < max_put_at_once ? grow_piece(piece, out) : KVB_OK;
}

static void put_event_head(
    struct piece *piece, const struct kvb_router_batch *batch, const struct kvb_router_event *event)
{
    put_piece_text(piece, "{\"worker_id\":");
    put_u64(piece, batch->worker_id);
    /* A clear applies to all tiers, so it names none. */
    if (event->tier != KVB_TIER_DEVICE && event->kind != KVB_ROUTER_CLEARED) {
        put_piece_text(piece, ",\"storage_tier\":\"");
        put_piece_text(piece, tier_words[event->tier]);
        put_piece_text(piece, "\"");
    }
    put_piece_text(piece, ",\"event\":{\"event_id\":");
    put_u64(piece, event->event_id);
    put_piece_text(piece, ",\"data\":");
}

[[gnu::hot]] static kvb_status put_stored(
    struct piece *piece, const struct kvb_router_batch *batch, const struct kvb_router_event *event,
    struct kvb_buf *out)
{
    put_piece_text(piece, "{\"stored\":{\"parent_hash\":");
    if (event->has_parent) {
        put_u64(piece, event->parent.value);
    } else {
        put_piece_text(piece, "null");
    }
    put_piece_text(piece, ",\"blocks\":[");
    for (uint32_t i = 0; i < event->block_count; i++) {
        KVB_TRY(make_piece_room(piece, out));
        put_piece_comma(piece, i);
        put_piece_text(piece, "{\"block_hash\":");
        put_u64(piece, batch->blocks[event->block_at + i].value);
        put_piece_text(piece, ",\"tokens_hash\":");
        put_u64(piece, batch->tokens[event->block_at + i].value);
        put_piece_text(piece, "}");
    }
    KVB_TRY(make_piece_room(piece, out));
    put_piece_text(piece, "]}}");
    return KVB_OK;
}

static kvb_status put_removed(
    struct piece *piece, const struct kvb_router_batch *batch, const struct kvb_router_event *event,
    struct kvb_buf *out)
{
    put_piece_text(piece, "{\"removed\":{\"block_hashes\":[");
    for (uint32_t i = 0; i < event->block_count; i++) {
        KVB_TRY(make_piece_room(piece, out));
        put_piece_comma(piece, i);
        put_u64(piece, batch->blocks[event->block_at + i].value);
    }
    KVB_TRY(make_piece_room(piece, out));
    put_piece_text(piece, "]}}");
    return KVB_OK;
}

static kvb_status put_cleared(
    struct piece *piece, [[maybe_unused]] const struct kvb_router_batch *batch,
    [[maybe_unused]] const struct kvb_router_event *event, [[maybe_unused]] struct kvb_buf *out)
{
    put_piece_text(piece, "\"cleared\"");
    return KVB_OK;
}

[[gnu::hot]] static kvb_status
put_event_json(const struct kvb_router_batch *batch, size_t at, struct kvb_buf *out)
{
    static kvb_status (*const put_data[])(
        struct piece *, const struct kvb_router_batch *, const struct kvb_router_event *,
        struct kvb_buf *) = {
        [KVB_ROUTER_STORED] = put_stored,
        [KVB_ROUTER_REMOVED] = put_removed,
        [KVB_ROUTER_CLEARED] = put_cleared,
    };
    const struct kvb_router_event *event = &batch->events[at];
    struct piece piece = { .is_too_large = false };

    KVB_TRY(begin_piece(&piece, out));
    put_event_head(&piece, batch, event);
    KVB_TRY(put_data[event->kind](&piece, batch, event, out));
    KVB_TRY(make_piece_room(&piece, out));
    put_piece_text(&piece, ",\"dp_rank\":");
    put_u64(&piece, batch->dp_rank);
    put_piece_text(&piece, "}}");
    return flush_piece(&piece, out) ? KVB_OK : KVB_TOO_LARGE;
}

[[gnu::hot]] kvb_status
kvb_router_json_encode(const struct kvb_router_batch *batch, size_t at, struct kvb_buf *out)
{
    const size_t before = out->len;

    assert(at < batch->event_count);
    const kvb_status status = put_event_json(batch, at, out);
    if (status != KVB_OK) {
        out->len = before;
    }
    return status;
}

/* ---- decode ------------------------------------------------------------------ */

/* The keys of an object may have any order, so an event is added first, and completed as its
 * fields are read. */
struct reading {
    struct kvb_router_batch *batch;
    enum kvb_tier tier;
    /* of the block being read */
    kvb_block_hash block;
    kvb_tokens_hash tokens;
};

static struct kvb_router_event *event_of(struct reading *reading)
{
    return &reading->batch->events[0];
}

static kvb_status read_block_hash(struct kvb_json_scan *scan, void *context)
{
    struct reading *reading = context;

    return kvb_json_u64(scan, &reading->block.value);
}

static kvb_status read_tokens_hash(struct kvb_json_scan *scan, void *context)
{
    struct reading *reading = context;

    return kvb_json_u64(scan, &reading->tokens.value);
}

static kvb_status read_event_block(struct kvb_json_scan *scan, void *context)
{
    static const struct kvb_json_field fields[] = {
        { .name = "block_hash", .is_required = true, .read = read_block_hash },
        { .name = "tokens_hash", .is_required = true, .read = read_tokens_hash },
    };
    struct reading *reading = context;

    KVB_TRY(kvb_json_object(scan, fields, KVB_COUNT_OF(fields), reading));
    return kvb_router_batch_add_block(reading->batch, reading->block, reading->tokens);
}

static kvb_status read_event_blocks(struct kvb_json_scan *scan, void *context)
{
    return kvb_json_array(scan, read_event_block, context);
}

static kvb_status read_parent(struct kvb_json_scan *scan, void *context)
{
    struct kvb_router_event *event = event_of(context);

    if (kvb_json_take_word(scan, "null")) {
        return KVB_OK;
    }
    event->has_parent = true;
    return kvb_json_u64(scan, &event->parent.value);
}

static kvb_status read_event_stored(struct kvb_json_scan *scan, void *context)
{
    static const struct kvb_json_field fields[] = {
        { .name = "parent_hash", .read = read_parent },
        { .name = "blocks", .is_required = true, .read = read_event_blocks },
    };

    event_of(context)->kind = KVB_ROUTER_STORED;
    return kvb_json_object(scan, fields, KVB_COUNT_OF(fields), context);
}

static kvb_status read_removed_hash(struct kvb_json_scan *scan, void *context)
{
    struct reading *reading = context;
    kvb_block_hash block = { 0 };

    KVB_TRY(kvb_json_u64(scan, &block.value));
    return kvb_router_batch_add_block(reading->batch, block, (kvb_tokens_hash){ 0 });
}

static kvb_status read_removed_hashes(struct kvb_json_scan *scan, void *context)
{
    return kvb_json_array(scan, read_removed_hash, context);
}

static kvb_status read_event_removed(struct kvb_json_scan *scan, void *context)
{
    static const struct kvb_json_field fields[] = {
        { .name = "block_hashes", .is_required = true, .read = read_removed_hashes },
    };

    event_of(context)->kind = KVB_ROUTER_REMOVED;
    return kvb_json_object(scan, fields, KVB_COUNT_OF(fields), context);
}

static kvb_status read_event_data(struct kvb_json_scan *scan, void *context)
{
    static const struct kvb_json_field kinds[] = {
        { .name = "stored", .read = read_event_stored },
        { .name = "removed", .read = read_event_removed },
    };

    if (kvb_json_take_word(scan, "\"cleared\"")) {
        event_of(context)->kind = KVB_ROUTER_CLEARED;
        return KVB_OK;
    }
    return kvb_json_one_of(scan, kinds, KVB_COUNT_OF(kinds), context);
}

static kvb_status read_event_id(struct kvb_json_scan *scan, void *context)
{
    return kvb_json_u64(scan, &event_of(context)->event_id);
}

static kvb_status read_event_rank(struct kvb_json_scan *scan, void *context)
{
    return kvb_json_u32(scan, &((struct reading *)context)->batch->dp_rank);
}

static kvb_status read_router_event(struct kvb_json_scan *scan, void *context)
{
    static const struct kvb_json_field fields[] = {
        { .name = "event_id", .is_required = true, .read = read_event_id },
        { .name = "data", .is_required = true, .read = read_event_data },
        { .name = "dp_rank", .read = read_event_rank },
    };

    return kvb_json_object(scan, fields, KVB_COUNT_OF(fields), context);
}

static kvb_status read_event_worker(struct kvb_json_scan *scan, void *context)
{
    struct reading *reading = context;

    KVB_TRY(kvb_json_u64(scan, &reading->batch->worker_id));
    return reading->batch->worker_id <= max_worker_id ? KVB_OK : KVB_BAD_INPUT;
}

static kvb_status read_tier(struct kvb_json_scan *scan, void *context)
{
    struct reading *reading = context;
    kvb_span word = { 0 };

    KVB_TRY(kvb_json_string(scan, &word));
    /* accepts our name for the host as well as Dynamo's, because scripts use it */
    for (enum kvb_tier tier = 0; tier < KVB_LIST_COUNT; tier++) {
        if (kvb_span_is(word, tier_words[tier]) || kvb_span_is(word, kvb_tier_name(tier))) {
            reading->tier = tier;
            return KVB_OK;
        }
    }
    return KVB_BAD_INPUT;
}

static kvb_status read_event_message(kvb_span json, struct kvb_router_batch *batch)
{
    static const struct kvb_json_field fields[] = {
        { .name = "worker_id", .is_required = true, .read = read_event_worker },
        { .name = "event", .is_required = true, .read = read_router_event },
        { .name = "storage_tier", .read = read_tier },
    };
    struct reading reading = { .batch = batch };
    struct kvb_json_scan scan = kvb_json_scan_of(json);

    KVB_TRY(kvb_router_batch_add_event(batch, &(struct kvb_router_event){ 0 }));
    KVB_TRY(kvb_json_object(&scan, fields, KVB_COUNT_OF(fields), &reading));
    KVB_TRY(kvb_json_finish(&scan));
    if (batch->events[0].kind != KVB_ROUTER_CLEARED) {
        batch->events[0].tier = reading.tier;
    }
    return KVB_OK;
}

kvb_status kvb_router_json_decode(kvb_span json, struct kvb_router_batch *batch)
{
    kvb_router_batch_reset(batch);
    batch->worker_id = 0;
    batch->dp_rank = 0;
    if (json.len > kvb_max_payload_bytes) {
        return KVB_TOO_LARGE;
    }
    const kvb_status status = read_event_message(json, batch);
    if (status != KVB_OK) {
        kvb_router_batch_reset(batch);
    }
    return status;
}
