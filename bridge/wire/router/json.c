#include "wire/router/json.h"

#include "core/array.h"
#include "core/decimal.h"
#include "core/limits.h"
#include "core/own.h"
#include "wire/json/scan.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

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

/* An event is written through a pointer, which stays in a register, into memory that was reserved
 * for the longest text that it can have:
 *
 *     {"worker_id":W,"storage_tier":"S","event":{"event_id":I,"data":         event_text_bytes,
 *     {"stored":{"parent_hash":P,"blocks":[                                   with the end
 *     {"block_hash":B,"tokens_hash":T},                                       block_text_bytes each
 *     ]}},"dp_rank":R}} */
enum { event_text_bytes = 256, block_text_bytes = 72 };

size_t kvb_router_json_room(size_t blocks)
{
    return event_text_bytes + blocks * block_text_bytes;
}

[[gnu::always_inline]] static inline char *put_event_text(char *at, const char *text)
{
    const size_t len = strlen(text);

    memcpy(at, text, len); /* NOLINT(bugprone-not-null-terminated-result) */
    return at + len;
}

[[gnu::always_inline]] static inline char *
put_event_number(char *at, const char *before, uint64_t value)
{
    at = put_event_text(at, before);
    return at + kvb_decimal_write(at, value);
}

/* Each item of a list ends with a comma; the last one has none. */
static char *end_items(char *at, uint32_t items)
{
    return put_event_text(at - (items > 0), "]}}");
}

static char *
put_stored(char *at, const struct kvb_router_batch *batch, const struct kvb_router_event *event)
{
    const uint32_t end = event->block_at + event->block_count;

    at = event->has_parent
             ? put_event_number(at, "{\"stored\":{\"parent_hash\":", event->parent.value)
             : put_event_text(at, "{\"stored\":{\"parent_hash\":null");
    at = put_event_text(at, ",\"blocks\":[");
    for (uint32_t i = event->block_at; i < end; i++) {
        at = put_event_number(at, "{\"block_hash\":", batch->blocks[i].value);
        at = put_event_number(at, ",\"tokens_hash\":", batch->tokens[i].value);
        at = put_event_text(at, "},");
    }
    return end_items(at, event->block_count);
}

static char *
put_removed(char *at, const struct kvb_router_batch *batch, const struct kvb_router_event *event)
{
    const uint32_t end = event->block_at + event->block_count;

    at = put_event_text(at, "{\"removed\":{\"block_hashes\":[");
    for (uint32_t i = event->block_at; i < end; i++) {
        at = put_event_number(at, "", batch->blocks[i].value);
        *at++ = ',';
    }
    return end_items(at, event->block_count);
}

static char *
put_event_data(char *at, const struct kvb_router_batch *batch, const struct kvb_router_event *event)
{
    switch (event->kind) {
    case KVB_ROUTER_STORED:
        return put_stored(at, batch, event);
    case KVB_ROUTER_REMOVED:
        return put_removed(at, batch, event);
    case KVB_ROUTER_CLEARED:
        break;
    }
    return put_event_text(at, "\"cleared\"");
}

/* A clear applies to all tiers, so it names none. */
static bool has_tier_text(const struct kvb_router_event *event)
{
    return event->tier != KVB_TIER_DEVICE && event->kind != KVB_ROUTER_CLEARED;
}

[[gnu::hot]] kvb_status
kvb_router_json_encode(const struct kvb_router_batch *batch, size_t at, struct kvb_buf *out)
{
    const struct kvb_router_event *event = &batch->events[at];

    assert(at < batch->event_count);
    /* The only check: what follows writes into this room without looking at its end. */
    KVB_TRY(kvb_buf_reserve(out, kvb_router_json_room(event->block_count)));
    char *end = (char *)out->data + out->len;
    end = put_event_number(end, "{\"worker_id\":", batch->worker_id);
    if (has_tier_text(event)) {
        end = put_event_text(end, ",\"storage_tier\":\"");
        end = put_event_text(end, tier_words[event->tier]);
        *end++ = '"';
    }
    end = put_event_number(end, ",\"event\":{\"event_id\":", event->event_id);
    end = put_event_text(end, ",\"data\":");
    end = put_event_data(end, batch, event);
    end = put_event_number(end, ",\"dp_rank\":", batch->dp_rank);
    end = put_event_text(end, "}}");
    out->len = (size_t)(end - (char *)out->data);
    return KVB_OK;
}

/* ---- decode ------------------------------------------------------------------ */

/* Reads the digits at `at`, at most up to `end`.  NULL: there is none, or the number is too large.
 */
static const char *read_digits(const char *at, const char *end, uint64_t max, uint64_t *out)
{
    const char *const begin = at;
    uint64_t value = 0;

    for (; at < end && *at >= '0' && *at <= '9'; at++) {
        if (__builtin_mul_overflow(value, 10, &value) ||
            __builtin_add_overflow(value, (uint64_t)(*at - '0'), &value)) {
            return NULL;
        }
    }
    *out = value;
    return at > begin && value <= max ? at : NULL;
}

bool kvb_router_json_peek(kvb_span json, uint64_t *out_worker_id, uint32_t *out_dp_rank)
{
    static const char head[] = "{\"worker_id\":";
    static const char tail[] = ",\"dp_rank\":";
    enum { head_bytes = sizeof head - 1, tail_bytes = sizeof tail - 1, end_bytes = 2 };
    const char *const text = (const char *)json.data;
    uint64_t worker_id = 0;
    uint64_t dp_rank = 0;

    /* Both numbers have at least a digit, so that what is read below lies within the text. */
    if (json.len < head_bytes + tail_bytes + end_bytes + 2 || memcmp(text, head, head_bytes) != 0) {
        return false;
    }
    const char *const end = text + json.len - end_bytes; /* of the digits of the rank */
    const char *digits = end;
    /* The rank stands last: its digits are found from the end, past blocks that are not read. */
    while (digits > text + head_bytes + tail_bytes && digits[-1] >= '0' && digits[-1] <= '9') {
        digits--;
    }
    if (memcmp(end, "}}", end_bytes) != 0 || memcmp(digits - tail_bytes, tail, tail_bytes) != 0 ||
        !read_digits(text + head_bytes, end, max_worker_id, &worker_id) ||
        !read_digits(digits, end, UINT32_MAX, &dp_rank)) {
        return false;
    }
    *out_worker_id = worker_id;
    *out_dp_rank = (uint32_t)dp_rank;
    return true;
}

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

    /* The arrays of a batch are parallel, so that a removed block has a place for its tokens. */
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

    /* A clear is a text; the other kinds are objects with one key. */
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
    /* Only now, because the tier may stand before the event or after it.  A clear has none. */
    if (batch->events[0].kind != KVB_ROUTER_CLEARED) {
        batch->events[0].tier = reading.tier;
    }
    return KVB_OK;
}

kvb_status kvb_router_json_decode(kvb_span json, struct kvb_router_batch *batch)
{
    kvb_router_batch_reset(batch);
    /* A message without a rank means rank 0, not that of the message before. */
    batch->worker_id = 0;
    batch->dp_rank = 0;
    if (json.len > kvb_max_payload_bytes) {
        return KVB_TOO_LARGE;
    }
    const kvb_status status = read_event_message(json, batch);
    /* The event was added before it was read, and may have blocks by now. */
    if (status != KVB_OK) {
        kvb_router_batch_reset(batch);
    }
    return status;
}

/* ---- events with whole prompts ----------------------------------------------- */

void kvb_prompt_event_done(struct kvb_prompt_event *event)
{
    free(event->blocks);
    free(event->tokens);
    *event = (struct kvb_prompt_event){ 0 };
}

static kvb_status read_prompt_token(struct kvb_json_scan *scan, void *context)
{
    struct kvb_prompt_event *event = context;
    uint32_t token = 0;

    KVB_TRY(kvb_json_u32(scan, &token));
    KVB_TRY(kvb_array_reserve(
        &event->tokens, &event->token_capacity, event->token_count + 1, sizeof *event->tokens,
        kvb_max_batch_tokens));
    event->tokens[event->token_count++] = token;
    return KVB_OK;
}

static kvb_status read_prompt_tokens(struct kvb_json_scan *scan, void *context)
{
    return kvb_json_array(scan, read_prompt_token, context);
}

static kvb_status read_prompt_block(struct kvb_json_scan *scan, void *context)
{
    struct kvb_prompt_event *event = context;
    kvb_block_hash block = { 0 };

    KVB_TRY(kvb_json_u64(scan, &block.value));
    KVB_TRY(kvb_array_reserve(
        &event->blocks, &event->block_capacity, event->block_count + 1, sizeof *event->blocks,
        kvb_max_router_blocks));
    event->blocks[event->block_count++] = block;
    return KVB_OK;
}

static kvb_status read_prompt_blocks(struct kvb_json_scan *scan, void *context)
{
    return kvb_json_array(scan, read_prompt_block, context);
}

static kvb_status read_lora(struct kvb_json_scan *scan, void *context)
{
    struct kvb_prompt_event *event = context;

    event->has_lora = !kvb_json_take_word(scan, "null");
    return event->has_lora ? kvb_json_u64(scan, &event->lora_id) : KVB_OK;
}

static kvb_status read_prompt_stored(struct kvb_json_scan *scan, void *context)
{
    static const struct kvb_json_field fields[] = {
        { .name = "token_ids", .is_required = true, .read = read_prompt_tokens },
        { .name = "block_hashes", .is_required = true, .read = read_prompt_blocks },
        { .name = "lora_id", .read = read_lora },
    };

    return kvb_json_object(scan, fields, KVB_COUNT_OF(fields), context);
}

static kvb_status read_prompt_removed(struct kvb_json_scan *scan, void *context)
{
    static const struct kvb_json_field fields[] = {
        { .name = "block_hashes", .is_required = true, .read = read_prompt_blocks },
    };

    ((struct kvb_prompt_event *)context)->is_removed = true;
    return kvb_json_object(scan, fields, KVB_COUNT_OF(fields), context);
}

static kvb_status read_prompt_data(struct kvb_json_scan *scan, void *context)
{
    static const struct kvb_json_field kinds[] = {
        { .name = "Stored", .read = read_prompt_stored },
        { .name = "Removed", .read = read_prompt_removed },
    };

    return kvb_json_one_of(scan, kinds, KVB_COUNT_OF(kinds), context);
}

static kvb_status read_prompt_worker(struct kvb_json_scan *scan, void *context)
{
    struct kvb_prompt_event *event = context;

    KVB_TRY(kvb_json_u64(scan, &event->worker_id));
    return event->worker_id <= INT64_MAX ? KVB_OK : KVB_BAD_INPUT;
}

static kvb_status read_prompt_rank(struct kvb_json_scan *scan, void *context)
{
    return kvb_json_u32(scan, &((struct kvb_prompt_event *)context)->dp_rank);
}

static void forget_prompt(struct kvb_prompt_event *event)
{
    struct kvb_prompt_event empty = { .blocks = event->blocks,
                                      .tokens = event->tokens,
                                      .block_capacity = event->block_capacity,
                                      .token_capacity = event->token_capacity };
    *event = empty;
}

kvb_status kvb_prompt_json_decode(kvb_span json, struct kvb_prompt_event *event)
{
    static const struct kvb_json_field fields[] = {
        { .name = "worker_id", .is_required = true, .read = read_prompt_worker },
        { .name = "data", .is_required = true, .read = read_prompt_data },
        { .name = "dp_rank", .read = read_prompt_rank },
    };
    struct kvb_json_scan scan = kvb_json_scan_of(json);

    /* The arrays stay for the next prompt; what is in them is over. */
    forget_prompt(event);
    if (json.len > kvb_max_payload_bytes) {
        return KVB_TOO_LARGE;
    }
    kvb_status status = kvb_json_object(&scan, fields, KVB_COUNT_OF(fields), event);
    status = status == KVB_OK ? kvb_json_finish(&scan) : status;
    if (status != KVB_OK) {
        forget_prompt(event);
    }
    return status;
}
