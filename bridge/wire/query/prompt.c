#include "wire/query/prompt.h"

#include "core/array.h"
#include "core/limits.h"
#include "core/own.h"
#include "wire/json/scan.h"

#include <stdlib.h>

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
