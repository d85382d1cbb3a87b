#include "model/event_batch.h"

#include "core/array.h"
#include "core/limits.h"

#include <stdlib.h>
#include <string.h>

const char *kvb_skip_name(enum kvb_skip skip)
{
    static const char *const names[KVB_SKIP_COUNT] = {
        [KVB_SKIP_NONE] = "none",
        [KVB_SKIP_BAD_STORED] = "bad_stored",
        [KVB_SKIP_BAD_REMOVED] = "bad_removed",
        [KVB_SKIP_UNKNOWN_EVENT] = "unknown_event",
        [KVB_SKIP_NO_TOKENS] = "no_tokens",
        [KVB_SKIP_NOT_PREFIX] = "not_prefix",
        [KVB_SKIP_REMOTE] = "remote",
        [KVB_SKIP_UNMATCHABLE] = "unmatchable",
        [KVB_SKIP_NO_BLOCK] = "no_block",
        [KVB_SKIP_OTHER_MODEL] = "other_model",
        [KVB_SKIP_UNKNOWN_KEY] = "unknown_key",
        [KVB_SKIP_BAD_REPLICA] = "bad_replica",
    };
    return (unsigned)skip < KVB_SKIP_COUNT ? names[skip] : "unknown";
}

enum kvb_skip_effect kvb_skip_effect(enum kvb_skip skip)
{
    static const enum kvb_skip_effect effects[KVB_SKIP_COUNT] = {
        [KVB_SKIP_BAD_STORED] = KVB_EFFECT_MISSING,
        [KVB_SKIP_BAD_REMOVED] = KVB_EFFECT_PHANTOM,
        [KVB_SKIP_UNKNOWN_EVENT] = KVB_EFFECT_UNVERIFIED,
        [KVB_SKIP_NO_TOKENS] = KVB_EFFECT_MISSING,
        [KVB_SKIP_NOT_PREFIX] = KVB_EFFECT_NONE,
        [KVB_SKIP_REMOTE] = KVB_EFFECT_NONE,
        [KVB_SKIP_UNMATCHABLE] = KVB_EFFECT_NONE,
        [KVB_SKIP_NO_BLOCK] = KVB_EFFECT_NONE,
        [KVB_SKIP_OTHER_MODEL] = KVB_EFFECT_NONE,
        [KVB_SKIP_UNKNOWN_KEY] = KVB_EFFECT_MISSING,
        [KVB_SKIP_BAD_REPLICA] = KVB_EFFECT_MISSING,
    };
    return (unsigned)skip < KVB_SKIP_COUNT ? effects[skip] : KVB_EFFECT_UNVERIFIED;
}

const char *kvb_group_kind_name(enum kvb_group_kind kind)
{
    static const char *const names[KVB_GROUP_KIND_COUNT] = {
        [KVB_GROUP_FULL] = "full",   [KVB_GROUP_WINDOW] = "window",
        [KVB_GROUP_OTHER] = "other", [KVB_GROUP_CHUNKED] = "chunked",
        [KVB_GROUP_CROSS] = "cross", [KVB_GROUP_ENCODER] = "encoder",
    };
    return (unsigned)kind < KVB_GROUP_KIND_COUNT ? names[kind] : "other";
}

bool kvb_group_kind_has_rule(enum kvb_group_kind kind)
{
    return kind == KVB_GROUP_FULL || kind == KVB_GROUP_WINDOW || kind == KVB_GROUP_CHUNKED;
}

void kvb_event_batch_done(struct kvb_event_batch *batch)
{
    free(batch->events);
    free(batch->hashes);
    free(batch->tokens);
    free(batch->extras);
    free(batch->keys);
    free(batch->text);
    *batch = (struct kvb_event_batch){ 0 };
}

void kvb_event_batch_reset(struct kvb_event_batch *batch)
{
    batch->timestamp_s = 0;
    batch->has_rank = false;
    batch->rank = 0;
    batch->counts_from_one = false;
    batch->has_signed_hashes = false;
    batch->habits = (struct kvb_engine_habits){ 0 };
    batch->unknown_media = 0;
    batch->event_count = 0;
    batch->hash_count = 0;
    batch->token_count = 0;
    batch->extra_count = 0;
    batch->key_count = 0;
    batch->text_len = 0;
}

kvb_status kvb_event_batch_reserve_events(struct kvb_event_batch *batch, size_t more)
{
    return kvb_array_reserve(
        &batch->events, &batch->event_capacity, batch->event_count + more, sizeof *batch->events,
        kvb_max_batch_events);
}

kvb_status kvb_event_batch_reserve_hashes(struct kvb_event_batch *batch, size_t more)
{
    return kvb_array_reserve(
        &batch->hashes, &batch->hash_capacity, batch->hash_count + more, sizeof *batch->hashes,
        kvb_max_batch_hashes);
}

kvb_status kvb_event_batch_reserve_tokens(struct kvb_event_batch *batch, size_t more)
{
    return kvb_array_reserve(
        &batch->tokens, &batch->token_capacity, batch->token_count + more, sizeof *batch->tokens,
        kvb_max_batch_tokens);
}

kvb_status kvb_event_batch_reserve_extras(struct kvb_event_batch *batch, size_t more)
{
    return kvb_array_reserve(
        &batch->extras, &batch->extra_capacity, batch->extra_count + more, sizeof *batch->extras,
        kvb_max_batch_hashes);
}

kvb_status kvb_event_batch_reserve_keys(struct kvb_event_batch *batch, size_t more)
{
    return kvb_array_reserve(
        &batch->keys, &batch->key_capacity, batch->key_count + more, sizeof *batch->keys,
        kvb_max_batch_keys);
}

kvb_status
kvb_event_batch_add_text(struct kvb_event_batch *batch, kvb_span text, struct kvb_text_ref *out_ref)
{
    if (text.len > kvb_max_string_bytes) {
        return KVB_TOO_LARGE;
    }
    KVB_TRY(kvb_array_reserve(
        &batch->text, &batch->text_capacity, batch->text_len + text.len, 1,
        kvb_max_batch_text_bytes));
    /* An empty text may have no data at all. */
    if (text.len > 0) {
        memcpy(batch->text + batch->text_len, text.data, text.len);
    }
    *out_ref = (struct kvb_text_ref){ (uint32_t)batch->text_len, (uint32_t)text.len };
    batch->text_len += text.len;
    return KVB_OK;
}

kvb_span kvb_event_batch_text(const struct kvb_event_batch *batch, struct kvb_text_ref ref)
{
    return (kvb_span){ .data = ref.len ? batch->text + ref.at : NULL, .len = ref.len };
}

static kvb_status copy_items(void *out_array, const void *items, size_t count, size_t item_bytes)
{
    if (count == 0) {
        return KVB_OK;
    }
    void *copy = malloc(count * item_bytes); /* no overflow: an array of this size exists already */
    if (!copy) {
        return KVB_NO_MEMORY;
    }
    memcpy(copy, items, count * item_bytes);
    /* The pointer is stored as bytes, because out_array points to a pointer of any type. */
    memcpy(out_array, &copy, sizeof copy);
    return KVB_OK;
}

static kvb_status copy_arrays(const struct kvb_event_batch *from, struct kvb_event_batch *to)
{
    KVB_TRY(copy_items(&to->events, from->events, from->event_count, sizeof *from->events));
    KVB_TRY(copy_items(&to->hashes, from->hashes, from->hash_count, sizeof *from->hashes));
    KVB_TRY(copy_items(&to->tokens, from->tokens, from->token_count, sizeof *from->tokens));
    KVB_TRY(copy_items(&to->extras, from->extras, from->extra_count, sizeof *from->extras));
    KVB_TRY(copy_items(&to->keys, from->keys, from->key_count, sizeof *from->keys));
    return copy_items(&to->text, from->text, from->text_len, 1);
}

kvb_status
kvb_event_batch_copy(const struct kvb_event_batch *batch, struct kvb_event_batch *out_copy)
{
    struct kvb_event_batch copy = { .timestamp_s = batch->timestamp_s,
                                    .has_rank = batch->has_rank,
                                    .rank = batch->rank,
                                    .counts_from_one = batch->counts_from_one,
                                    .habits = batch->habits,
                                    .has_signed_hashes = batch->has_signed_hashes,
                                    .unknown_media = batch->unknown_media };
    const kvb_status status = copy_arrays(batch, &copy);

    if (status != KVB_OK) {
        kvb_event_batch_done(&copy);
        return status;
    }
    /* A copy has no spare room. */
    copy.event_count = copy.event_capacity = batch->event_count;
    copy.hash_count = copy.hash_capacity = batch->hash_count;
    copy.token_count = copy.token_capacity = batch->token_count;
    copy.extra_count = copy.extra_capacity = batch->extra_count;
    copy.key_count = copy.key_capacity = batch->key_count;
    copy.text_len = copy.text_capacity = batch->text_len;
    *out_copy = copy;
    return KVB_OK;
}

void kvb_event_batch_place_unknown(struct kvb_event_batch *batch, enum kvb_tier tier)
{
    for (size_t i = 0; i < batch->event_count; i++) {
        if (batch->events[i].is_medium_unknown) {
            batch->events[i].tier = tier;
        }
    }
}

size_t kvb_event_batch_bytes(const struct kvb_event_batch *batch)
{
    return sizeof *batch + batch->event_count * sizeof *batch->events +
           batch->hash_count * sizeof *batch->hashes + batch->token_count * sizeof *batch->tokens +
           batch->extra_count * sizeof *batch->extras + batch->key_count * sizeof *batch->keys +
           batch->text_len;
}
