#pragma once

#include "model/router_batch.h"

#include <string.h>

/* Whether two batches have the same content; for the fuzz targets of both formats. */

static inline bool
is_same_event(const struct kvb_router_batch *a, const struct kvb_router_batch *b, size_t at)
{
    const struct kvb_router_event *x = &a->events[at];
    const struct kvb_router_event *y = &b->events[at];

    if (x->kind != y->kind || x->tier != y->tier || x->has_parent != y->has_parent ||
        x->event_id != y->event_id || x->parent.value != y->parent.value ||
        x->block_count != y->block_count || x->block_at != y->block_at) {
        return false;
    }
    for (size_t i = x->block_at; i < (size_t)x->block_at + x->block_count; i++) {
        if (a->blocks[i].value != b->blocks[i].value || a->tokens[i].value != b->tokens[i].value) {
            return false;
        }
    }
    return true;
}

static inline bool is_same_batch(const struct kvb_router_batch *a, const struct kvb_router_batch *b)
{
    if (a->worker_id != b->worker_id || a->dp_rank != b->dp_rank || a->has_epoch != b->has_epoch ||
        a->event_count != b->event_count || a->block_count != b->block_count) {
        return false;
    }
    if (a->has_epoch && memcmp(a->epoch.bytes, b->epoch.bytes, sizeof a->epoch.bytes) != 0) {
        return false;
    }
    for (size_t i = 0; i < a->event_count; i++) {
        if (!is_same_event(a, b, i)) {
            return false;
        }
    }
    return true;
}
