#pragma once

#include "model/event_batch.h"

#include <math.h>
#include <string.h>

/* Whether two batches of an engine have the same content; for the fuzz target and the test of the
 * encoder.  Positions in the arrays do not matter, and extras that are all empty count as none.
 * Names of models are not compared, because engines write none. */

static inline bool is_same_text(
    const struct kvb_event_batch *a, struct kvb_text_ref x, const struct kvb_event_batch *b,
    struct kvb_text_ref y)
{
    const kvb_span left = kvb_event_batch_text(a, x);
    const kvb_span right = kvb_event_batch_text(b, y);

    return left.len == right.len && (left.len == 0 || memcmp(left.data, right.data, left.len) == 0);
}

static inline struct kvb_block_extra
extra_of(const struct kvb_event_batch *batch, const struct kvb_engine_event *event, uint32_t block)
{
    const struct kvb_block_extra none = { 0 };

    return event->extra_count > 0 ? batch->extras[event->extra_at + block] : none;
}

static inline bool is_same_extra(
    const struct kvb_event_batch *a, struct kvb_block_extra x, const struct kvb_event_batch *b,
    struct kvb_block_extra y)
{
    if (x.key_count != y.key_count || x.unmatchable != y.unmatchable) {
        return false;
    }
    for (uint32_t i = 0; i < x.key_count; i++) {
        if (a->keys[x.key_at + i] != b->keys[y.key_at + i]) {
            return false;
        }
    }
    return true;
}

static inline bool is_same_head(const struct kvb_engine_event *x, const struct kvb_engine_event *y)
{
    return x->kind == y->kind && x->skip == y->skip && x->tier == y->tier &&
           x->all_tiers == y->all_tiers && x->has_parent == y->has_parent &&
           x->parent.value == y->parent.value && x->has_group == y->has_group &&
           x->group == y->group && x->is_paired == y->is_paired && x->lookahead == y->lookahead &&
           x->block_size == y->block_size && x->hash_count == y->hash_count &&
           x->token_count == y->token_count && x->group_kind == y->group_kind &&
           x->window_tokens == y->window_tokens && x->is_sparse == y->is_sparse;
}

static inline bool is_same_engine_event(
    const struct kvb_event_batch *a, const struct kvb_engine_event *x,
    const struct kvb_event_batch *b, const struct kvb_engine_event *y)
{
    if (!is_same_head(x, y) || !is_same_text(a, x->lora_name, b, y->lora_name) ||
        !is_same_text(a, x->salt, b, y->salt)) {
        return false;
    }
    for (uint32_t i = 0; i < x->hash_count; i++) {
        if (a->hashes[x->hash_at + i].value != b->hashes[y->hash_at + i].value ||
            !is_same_extra(a, extra_of(a, x, i), b, extra_of(b, y, i))) {
            return false;
        }
    }
    for (uint32_t i = 0; i < x->token_count; i++) {
        if (a->tokens[x->token_at + i] != b->tokens[y->token_at + i]) {
            return false;
        }
    }
    for (uint32_t i = 0; i < x->lookahead * x->hash_count; i++) {
        if (a->tokens[x->lookahead_at + i] != b->tokens[y->lookahead_at + i]) {
            return false;
        }
    }
    return true;
}

static inline bool
is_same_engine_batch(const struct kvb_event_batch *a, const struct kvb_event_batch *b)
{
    const bool is_same_time =
        a->timestamp_s == b->timestamp_s || (isnan(a->timestamp_s) && isnan(b->timestamp_s));

    if (!is_same_time || a->has_rank != b->has_rank || a->rank != b->rank ||
        a->event_count != b->event_count) {
        return false;
    }
    for (size_t i = 0; i < a->event_count; i++) {
        if (!is_same_engine_event(a, &a->events[i], b, &b->events[i])) {
            return false;
        }
    }
    return true;
}
