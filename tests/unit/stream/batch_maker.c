#include "kvb_test.h"

#include "batch_maker.h"
#include "index/block_hash.h"

kvb_status apply_event(
    struct kvb_mirror *mirror, const struct kvb_event_batch *batch, size_t at, uint64_t part_work,
    struct kvb_router_batch *out)
{
    do {
        uint64_t work = part_work;
        KVB_TRY(kvb_mirror_apply(mirror, batch, at, &work, out));
    } while (kvb_mirror_is_unfinished(mirror));
    return KVB_OK;
}

void apply_batch(
    struct kvb_mirror *mirror, struct kvb_event_batch *batch, struct kvb_router_batch *out)
{
    kvb_router_batch_reset(out);
    for (size_t at = 0; at < batch->event_count; at++) {
        assert_ok(apply_event(mirror, batch, at, UINT64_MAX, out));
    }
    kvb_event_batch_reset(batch);
}

struct kvb_engine_event *last_event(struct kvb_event_batch *batch)
{
    return &batch->events[batch->event_count - 1];
}

static struct kvb_engine_event *add_event(struct kvb_event_batch *batch, enum kvb_event_kind kind)
{
    assert_int_equal(kvb_event_batch_reserve_events(batch, 1), KVB_OK);
    batch->events[batch->event_count++] = (struct kvb_engine_event){ .kind = kind };
    return last_event(batch);
}

static void add_hashes(struct kvb_event_batch *batch, const uint64_t *hashes, size_t count)
{
    struct kvb_engine_event *event = last_event(batch);

    event->hash_at = (uint32_t)batch->hash_count;
    event->hash_count = (uint32_t)count;
    assert_int_equal(kvb_event_batch_reserve_hashes(batch, count), KVB_OK);
    for (size_t i = 0; i < count; i++) {
        batch->hashes[batch->hash_count++].value = hashes[i];
    }
}

void add_stored(
    struct kvb_event_batch *batch, const uint64_t *parent, const uint64_t *hashes,
    const uint32_t *tokens, size_t count)
{
    struct kvb_engine_event *event = add_event(batch, KVB_EVENT_STORED);

    event->has_parent = parent != NULL;
    event->parent.value = parent ? *parent : 0;
    event->block_size = 1;
    event->token_at = (uint32_t)batch->token_count;
    event->token_count = tokens ? (uint32_t)count : 0;
    assert_int_equal(kvb_event_batch_reserve_tokens(batch, count), KVB_OK);
    for (size_t i = 0; tokens && i < count; i++) {
        batch->tokens[batch->token_count++] = tokens[i];
    }
    add_hashes(batch, hashes, count);
}

void add_removed(struct kvb_event_batch *batch, const uint64_t *hashes, size_t count)
{
    (void)add_event(batch, KVB_EVENT_REMOVED);
    add_hashes(batch, hashes, count);
}

void add_cleared(struct kvb_event_batch *batch)
{
    add_event(batch, KVB_EVENT_CLEARED)->all_tiers = true;
}

void add_skipped(struct kvb_event_batch *batch, enum kvb_skip skip)
{
    add_event(batch, KVB_EVENT_SKIPPED)->skip = skip;
}

kvb_block_hash name_of(const uint32_t *path, size_t depth)
{
    const uint64_t seed = kvb_block_seed((kvb_span){ 0 }, (kvb_span){ 0 });
    kvb_block_hash name = { 0 };

    for (size_t i = 0; i < depth; i++) {
        const kvb_tokens_hash tokens = kvb_tokens_hash_of(&path[i], 1, NULL, 0, seed);
        name = i ? kvb_block_hash_next(name, tokens) : kvb_block_hash_root(tokens);
    }
    return name;
}

kvb_status
show_all(struct kvb_mirror *mirror, size_t max_chunk_blocks, visit_chunk visit, void *context)
{
    const struct kvb_picture_part part = { .max_blocks = max_chunk_blocks, .max_looks = SIZE_MAX };
    struct kvb_picture picture = { 0 };
    struct kvb_router_batch chunk = { 0 };
    bool is_done = false;

    kvb_status status =
        kvb_picture_begin(&picture, mirror, KVB_PICTURE_PARENTS_FIRST, kvb_picture_all_lists);
    while (status == KVB_OK && !is_done) {
        kvb_router_batch_reset(&chunk);
        status = kvb_picture_step(&picture, mirror, &part, &chunk, &is_done);
        if (status == KVB_OK) {
            status = visit(context, &chunk);
        }
    }
    kvb_picture_end(&picture);
    kvb_router_batch_done(&chunk);
    return status;
}
