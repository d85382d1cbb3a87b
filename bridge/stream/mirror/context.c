#include "core/array.h"
#include "stream/mirror/inside.h"

/* What entries of one prompt share: found by seed, group and size, counted, freed with the last. */

static uint32_t
context_hash(const struct kvb_mirror *mirror, uint64_t seed, uint32_t group, uint32_t size)
{
    return kvb_mirror_hash(mirror, seed, (uint64_t)size << 32 | group);
}

static bool
is_context(const struct kvb_mirror *mirror, uint32_t id, const struct mirror_block *block)
{
    const struct mirror_context *context = &mirror->contexts[id];

    return context->seed == block->seed && context->group == block->group &&
           context->size == block->size;
}

static uint32_t find_context(const struct kvb_mirror *mirror, const struct mirror_block *block)
{
    if (mirror->newest_context != KVB_NO_ID && is_context(mirror, mirror->newest_context, block)) {
        return mirror->newest_context;
    }
    const uint32_t hash = context_hash(mirror, block->seed, block->group, block->size);
    size_t at = kvb_id_table_start(&mirror->by_context, hash);
    for (uint32_t id; (id = kvb_id_table_next(&mirror->by_context, hash, &at)) != KVB_NO_ID;) {
        if (is_context(mirror, id, block)) {
            return id;
        }
    }
    return KVB_NO_ID;
}

static kvb_status
new_context(struct kvb_mirror *mirror, const struct mirror_block *block, uint32_t *out_id)
{
    const bool is_free = mirror->first_free_context != KVB_NO_ID;
    const uint32_t id = is_free ? mirror->first_free_context : (uint32_t)mirror->context_end;

    if (!is_free) {
        KVB_TRY(kvb_array_reserve(
            &mirror->contexts, &mirror->context_capacity, mirror->context_end + 1,
            sizeof *mirror->contexts, mirror->max_blocks));
    }
    KVB_TRY(kvb_id_table_put(
        &mirror->by_context, context_hash(mirror, block->seed, block->group, block->size), id));
    if (is_free) {
        mirror->first_free_context = mirror->contexts[id].uses;
    } else {
        mirror->context_end++;
    }
    mirror->contexts[id] =
        (struct mirror_context){ .seed = block->seed, .group = block->group, .size = block->size };
    *out_id = id;
    return KVB_OK;
}

kvb_status kvb_mirror_take_context(
    struct kvb_mirror *mirror, const struct mirror_block *block, uint32_t *out_id)
{
    uint32_t id = find_context(mirror, block);

    if (id == KVB_NO_ID) {
        KVB_TRY(new_context(mirror, block, &id));
    }
    mirror->contexts[id].uses++;
    mirror->newest_context = id;
    *out_id = id;
    return KVB_OK;
}

void kvb_mirror_leave_context(struct kvb_mirror *mirror, uint32_t id)
{
    struct mirror_context *context = &mirror->contexts[id];

    if (--context->uses > 0) {
        return;
    }
    kvb_id_table_remove(
        &mirror->by_context, context_hash(mirror, context->seed, context->group, context->size),
        id);
    if (mirror->newest_context == id) {
        mirror->newest_context = KVB_NO_ID;
    }
    context->uses = mirror->first_free_context;
    mirror->first_free_context = id;
}
