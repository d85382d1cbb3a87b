#include "fleet/engine/event_writer.h"

#include <string.h>

/* The caller has reserved the room.  One cache group: a plain transformer. */
static struct kvb_engine_event *
append_engine_event(struct kvb_event_batch *batch, enum kvb_event_kind kind, uint32_t hash_count)
{
    struct kvb_engine_event *event = &batch->events[batch->event_count++];

    *event = (struct kvb_engine_event){
        .kind = kind,
        .tier = KVB_TIER_DEVICE,
        .has_group = kind != KVB_EVENT_CLEARED,
        .hash_at = (uint32_t)batch->hash_count,
        .hash_count = hash_count,
    };
    return event;
}

kvb_status kvb_event_writer_stored(struct kvb_event_batch *batch, const struct kvb_stored_run *run)
{
    const size_t token_count = (size_t)run->count * run->block_size;
    struct kvb_text_ref salt = { 0 };

    KVB_TRY(kvb_event_batch_reserve_events(batch, 1));
    KVB_TRY(kvb_event_batch_reserve_hashes(batch, run->count));
    KVB_TRY(kvb_event_batch_reserve_tokens(batch, token_count));
    if (run->salt) { /* last: nothing fails behind it */
        const kvb_span text = { (const uint8_t *)run->salt, strlen(run->salt) };
        KVB_TRY(kvb_event_batch_add_text(batch, text, &salt));
    }

    struct kvb_engine_event *event = append_engine_event(batch, KVB_EVENT_STORED, run->count);
    event->has_parent = run->parent != NULL;
    event->parent = run->parent ? *run->parent : (kvb_engine_hash){ 0 };
    event->block_size = run->block_size;
    event->token_at = (uint32_t)batch->token_count;
    event->token_count = (uint32_t)token_count;
    event->salt = salt;

    memcpy(batch->hashes + batch->hash_count, run->hashes, run->count * sizeof *run->hashes);
    memcpy(batch->tokens + batch->token_count, run->tokens, token_count * sizeof *run->tokens);
    batch->hash_count += run->count;
    batch->token_count += token_count;
    return KVB_OK;
}

kvb_status kvb_event_writer_removed(struct kvb_event_batch *batch, kvb_engine_hash hash)
{
    KVB_TRY(kvb_event_batch_reserve_events(batch, 1));
    KVB_TRY(kvb_event_batch_reserve_hashes(batch, 1));
    (void)append_engine_event(batch, KVB_EVENT_REMOVED, 1); /* nothing to add to it */
    batch->hashes[batch->hash_count++] = hash;
    return KVB_OK;
}

kvb_status kvb_event_writer_cleared(struct kvb_event_batch *batch)
{
    KVB_TRY(kvb_event_batch_reserve_events(batch, 1));
    append_engine_event(batch, KVB_EVENT_CLEARED, 0)->all_tiers = true;
    return KVB_OK;
}
