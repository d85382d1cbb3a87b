#include "wire/router_json.h"

#include "core/decimal.h"
#include "core/limits.h"
#include "core/own.h"
#include "wire/json_scan.h"

#include <assert.h>
#include <string.h>

/* Bytes on their way to the buffer, so that several blocks cost one append and not five
 * each.  Between two looks at its room at most the head of a stored event is put, 160 bytes,
 * or a block. */
struct piece {
    char bytes[1024];
    size_t len;
};

enum { most_put_at_once = 192 };

static const uint64_t max_worker_id = INT64_MAX; /* real readers hold an i64 */

/* What Dynamo's readers call the tiers; theirs is no name of ours for the host. */
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

static inline void put_text(struct piece *piece, const char *text)
{
    const size_t len = strlen(text);

    assert(len <= sizeof piece->bytes - piece->len);
    memcpy(piece->bytes + piece->len, text, len);
    piece->len += len;
}

/* Before all but the first. */
static void put_comma(struct piece *piece, uint32_t number)
{
    piece->bytes[piece->len] = ',';
    piece->len += number > 0;
}

static void put_u64(struct piece *piece, uint64_t value)
{
    assert(kvb_decimal_bytes <= sizeof piece->bytes - piece->len);
    piece->len += kvb_decimal_write(piece->bytes + piece->len, value);
}

static kvb_status flush(struct piece *piece, struct kvb_buf *out)
{
    const size_t len = piece->len;

    piece->len = 0;
    return kvb_buf_append(out, piece->bytes, len);
}

static kvb_status make_room(struct piece *piece, struct kvb_buf *out)
{
    return sizeof piece->bytes - piece->len < most_put_at_once ? flush(piece, out) : KVB_OK;
}

static void put_head(
    struct piece *piece, const struct kvb_router_batch *batch, const struct kvb_router_event *event)
{
    put_text(piece, "{\"worker_id\":");
    put_u64(piece, batch->worker_id);
    /* A clear is of all tiers: it names none. */
    if (event->tier != KVB_TIER_DEVICE && event->kind != KVB_ROUTER_CLEARED) {
        put_text(piece, ",\"storage_tier\":\"");
        put_text(piece, tier_words[event->tier]);
        put_text(piece, "\"");
    }
    put_text(piece, ",\"event\":{\"event_id\":");
    put_u64(piece, event->event_id);
    put_text(piece, ",\"data\":");
}

static kvb_status put_stored(
    struct piece *piece, const struct kvb_router_batch *batch, const struct kvb_router_event *event,
    struct kvb_buf *out)
{
    put_text(piece, "{\"stored\":{\"parent_hash\":");
    if (event->has_parent) {
        put_u64(piece, event->parent.value);
    } else {
        put_text(piece, "null");
    }
    put_text(piece, ",\"blocks\":[");
    for (uint32_t i = 0; i < event->block_count; i++) {
        KVB_TRY(make_room(piece, out));
        put_comma(piece, i);
        put_text(piece, "{\"block_hash\":");
        put_u64(piece, batch->blocks[event->block_at + i].value);
        put_text(piece, ",\"tokens_hash\":");
        put_u64(piece, batch->tokens[event->block_at + i].value);
        put_text(piece, "}");
    }
    KVB_TRY(make_room(piece, out));
    put_text(piece, "]}}");
    return KVB_OK;
}

static kvb_status put_removed(
    struct piece *piece, const struct kvb_router_batch *batch, const struct kvb_router_event *event,
    struct kvb_buf *out)
{
    put_text(piece, "{\"removed\":{\"block_hashes\":[");
    for (uint32_t i = 0; i < event->block_count; i++) {
        KVB_TRY(make_room(piece, out));
        put_comma(piece, i);
        put_u64(piece, batch->blocks[event->block_at + i].value);
    }
    KVB_TRY(make_room(piece, out));
    put_text(piece, "]}}");
    return KVB_OK;
}

static kvb_status put_cleared(
    struct piece *piece, [[maybe_unused]] const struct kvb_router_batch *batch,
    [[maybe_unused]] const struct kvb_router_event *event, [[maybe_unused]] struct kvb_buf *out)
{
    put_text(piece, "\"cleared\"");
    return KVB_OK;
}

static kvb_status put_event(const struct kvb_router_batch *batch, size_t at, struct kvb_buf *out)
{
    static kvb_status (*const put_data[])(
        struct piece *, const struct kvb_router_batch *, const struct kvb_router_event *,
        struct kvb_buf *) = {
        [KVB_ROUTER_STORED] = put_stored,
        [KVB_ROUTER_REMOVED] = put_removed,
        [KVB_ROUTER_CLEARED] = put_cleared,
    };
    const struct kvb_router_event *event = &batch->events[at];
    struct piece piece;

    piece.len = 0; /* and not {0}: a KiB a message for nothing */
    put_head(&piece, batch, event);
    KVB_TRY(put_data[event->kind](&piece, batch, event, out));
    KVB_TRY(make_room(&piece, out));
    put_text(&piece, ",\"dp_rank\":");
    put_u64(&piece, batch->dp_rank);
    put_text(&piece, "}}");
    return flush(&piece, out);
}

kvb_status
kvb_router_json_encode(const struct kvb_router_batch *batch, size_t at, struct kvb_buf *out)
{
    const size_t before = out->len;

    assert(at < batch->event_count);
    const kvb_status status = put_event(batch, at, out);
    if (status != KVB_OK) {
        out->len = before;
    }
    return status;
}

/* ---- decode ------------------------------------------------------------------ */

/* The keys of an object come in any order, so an event is begun first and then
 * filled in as its parts turn up. */
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

static kvb_status read_block(struct kvb_json_scan *scan, void *context)
{
    static const struct kvb_json_field fields[] = {
        { .name = "block_hash", .is_required = true, .read = read_block_hash },
        { .name = "tokens_hash", .is_required = true, .read = read_tokens_hash },
    };
    struct reading *reading = context;

    KVB_TRY(kvb_json_object(scan, fields, KVB_COUNT_OF(fields), reading));
    return kvb_router_batch_add_block(reading->batch, reading->block, reading->tokens);
}

static kvb_status read_blocks(struct kvb_json_scan *scan, void *context)
{
    return kvb_json_array(scan, read_block, context);
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

static kvb_status read_stored(struct kvb_json_scan *scan, void *context)
{
    static const struct kvb_json_field fields[] = {
        { .name = "parent_hash", .read = read_parent },
        { .name = "blocks", .is_required = true, .read = read_blocks },
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

static kvb_status read_removed(struct kvb_json_scan *scan, void *context)
{
    static const struct kvb_json_field fields[] = {
        { .name = "block_hashes", .is_required = true, .read = read_removed_hashes },
    };

    event_of(context)->kind = KVB_ROUTER_REMOVED;
    return kvb_json_object(scan, fields, KVB_COUNT_OF(fields), context);
}

static kvb_status read_data(struct kvb_json_scan *scan, void *context)
{
    static const struct kvb_json_field kinds[] = {
        { .name = "stored", .read = read_stored },
        { .name = "removed", .read = read_removed },
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

static kvb_status read_rank(struct kvb_json_scan *scan, void *context)
{
    struct reading *reading = context;
    uint64_t rank = 0;

    KVB_TRY(kvb_json_u64(scan, &rank));
    if (rank > UINT32_MAX) {
        return KVB_BAD_INPUT;
    }
    reading->batch->dp_rank = (uint32_t)rank;
    return KVB_OK;
}

static kvb_status read_event(struct kvb_json_scan *scan, void *context)
{
    static const struct kvb_json_field fields[] = {
        { .name = "event_id", .is_required = true, .read = read_event_id },
        { .name = "data", .is_required = true, .read = read_data },
        { .name = "dp_rank", .read = read_rank },
    };

    return kvb_json_object(scan, fields, KVB_COUNT_OF(fields), context);
}

static kvb_status read_worker_id(struct kvb_json_scan *scan, void *context)
{
    struct reading *reading = context;

    KVB_TRY(kvb_json_u64(scan, &reading->batch->worker_id));
    return reading->batch->worker_id <= max_worker_id ? KVB_OK : KVB_BAD_INPUT;
}

static kvb_status read_tier(struct kvb_json_scan *scan, void *context)
{
    /* Our own name for the host beside Dynamo's: a script will write it. */
    static const struct {
        const char *word;
        enum kvb_tier tier;
    } words[] = {
        { "device", KVB_TIER_DEVICE },     { "host_pinned", KVB_TIER_HOST },
        { "host", KVB_TIER_HOST },         { "disk", KVB_TIER_DISK },
        { "external", KVB_TIER_EXTERNAL }, { "window", KVB_LIST_WINDOW },
    };
    struct reading *reading = context;
    kvb_span word = { 0 };

    KVB_TRY(kvb_json_string(scan, &word));
    for (size_t i = 0; i < KVB_COUNT_OF(words); i++) {
        if (strlen(words[i].word) == word.len && memcmp(words[i].word, word.data, word.len) == 0) {
            reading->tier = words[i].tier;
            return KVB_OK;
        }
    }
    return KVB_BAD_INPUT;
}

static kvb_status read_message(kvb_span json, struct kvb_router_batch *batch)
{
    static const struct kvb_json_field fields[] = {
        { .name = "worker_id", .is_required = true, .read = read_worker_id },
        { .name = "event", .is_required = true, .read = read_event },
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
    const kvb_status status = read_message(json, batch);
    if (status != KVB_OK) {
        kvb_router_batch_reset(batch);
    }
    return status;
}
