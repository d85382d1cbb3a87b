#pragma once

#include "index/index.h"

/* A whole walk, in steps of this budget; SIZE_MAX: at once. */
static inline kvb_status whole_walk(
    struct kvb_prefix_index *index, kvb_slot_ref slot, size_t budget, kvb_index_visitor visit,
    void *context)
{
    struct kvb_index_walk *walk = NULL;
    kvb_status status = KVB_AGAIN;

    KVB_TRY(kvb_index_walk_new(index, slot, &walk));
    while (status == KVB_AGAIN) { /* ends: the index does not change meanwhile */
        status = kvb_index_walk_step(walk, budget, visit, context);
    }
    kvb_index_walk_free(walk);
    return status;
}
