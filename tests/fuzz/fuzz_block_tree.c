#include "stream/republish/block_tree.h"

#include <stdlib.h>
#include <string.h>

/* Loads arbitrary records of a checkpoint, then runs an arbitrary program of what a mirror and
 * readers do.  Checked: a strict reader gets no block twice, and none without its parent; a
 * snapshot is equal to what this reader has; saved records can be loaded. */

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { block_size = 2, max_blocks = 64, max_held = 256, names = 32 };

struct known {
    uint64_t hash;
    bool is_here;
};

struct reader {
    struct known held[max_held];
    size_t count;
};

static void check(bool holds)
{
    if (!holds) {
        abort();
    }
}

/* A tree shows at most max_blocks blocks at a time, so the place of a removed block is used again.
 */
static bool *place_of(struct reader *reader, uint64_t hash)
{
    size_t free_place = reader->count;

    for (size_t i = 0; i < reader->count; i++) {
        if (reader->held[i].hash == hash) {
            return &reader->held[i].is_here;
        }
        if (!reader->held[i].is_here) {
            free_place = i;
        }
    }
    check(free_place < max_held);
    reader->count += free_place == reader->count;
    reader->held[free_place] = (struct known){ .hash = hash };
    return &reader->held[free_place].is_here;
}

static void read_hash(
    struct reader *reader, const struct kvb_engine_event *event, uint64_t hash, bool has_parent,
    uint64_t parent)
{
    const bool is_stored = event->kind == KVB_EVENT_STORED;

    check(event->tier == KVB_TIER_DEVICE);
    check(!is_stored || !has_parent || *place_of(reader, parent));
    bool *is_here = place_of(reader, hash);
    check(*is_here != is_stored);
    *is_here = is_stored;
}

static void read_events(struct reader *reader, const struct kvb_event_batch *batch)
{
    for (size_t i = 0; i < batch->event_count; i++) {
        const struct kvb_engine_event *event = &batch->events[i];
        if (event->kind == KVB_EVENT_CLEARED) {
            reader->count = 0;
        }
        for (uint32_t k = 0; k < event->hash_count; k++) {
            const kvb_engine_hash *hashes = batch->hashes + event->hash_at;
            read_hash(
                reader, event, hashes[k].value, k > 0 || event->has_parent,
                k > 0 ? hashes[k - 1].value : event->parent.value);
        }
    }
}

static size_t count_held(const struct reader *reader)
{
    size_t held = 0;

    for (size_t i = 0; i < reader->count; i++) {
        held += reader->held[i].is_here;
    }
    return held;
}

static struct kvb_block_tree *new_tree(void)
{
    const struct kvb_block_tree_options options = { .block_size = block_size,
                                                    .max_blocks = max_blocks,
                                                    .hash_key = 3 };
    struct kvb_block_tree *tree = NULL;

    check(kvb_block_tree_new(&options, &tree) == KVB_OK);
    return tree;
}

static void store(struct kvb_block_tree *tree, uint8_t hash, uint8_t parent, uint8_t token)
{
    kvb_engine_hash hashes[] = { { hash } };
    uint32_t tokens[block_size] = { token, 1 };
    struct kvb_engine_event event = { .kind = KVB_EVENT_STORED,
                                      .has_parent = parent != 0,
                                      .parent = { parent },
                                      .block_size = block_size,
                                      .hash_count = 1,
                                      .token_count = block_size };
    const struct kvb_event_batch batch = { .events = &event, .hashes = hashes, .tokens = tokens };

    kvb_block_tree_store(tree, &batch, &event, 0);
}

static void take_changes(struct kvb_block_tree *tree, struct reader *reader)
{
    struct kvb_event_batch batch = { .has_rank = false };

    while (kvb_block_tree_has_changes(tree)) {
        kvb_event_batch_reset(&batch);
        check(kvb_block_tree_take_changes(tree, 2, 3, &batch) == KVB_OK);
        read_events(reader, &batch);
    }
    kvb_event_batch_done(&batch);
    check(count_held(reader) == kvb_block_tree_count(tree)->shown);
}

static void take_snapshot(struct kvb_block_tree *tree)
{
    struct kvb_event_batch batch = { .has_rank = false };
    struct reader reader = { .count = 0 };
    bool is_done = false;

    kvb_block_tree_walk_begin(tree);
    while (!is_done) {
        check(kvb_block_tree_walk(tree, 2, 3, &batch, &is_done) == KVB_OK);
    }
    kvb_block_tree_walk_end(tree);
    read_events(&reader, &batch);
    kvb_event_batch_done(&batch);
    check(count_held(&reader) == kvb_block_tree_count(tree)->shown);
}

static void save_and_load(const struct kvb_block_tree *tree)
{
    struct kvb_block_tree *other = new_tree();
    struct kvb_buf bytes;

    kvb_buf_init(&bytes, 1 << 20);
    for (size_t place = 0; place != SIZE_MAX;) {
        check(kvb_block_tree_save(tree, 100, 7, &place, &bytes) == KVB_OK);
    }
    check(kvb_block_tree_load(other, kvb_buf_span(&bytes)) == KVB_OK);
    kvb_buf_done(&bytes);
    kvb_block_tree_free(other);
}

static void step(struct kvb_block_tree *tree, struct reader *reader, const uint8_t op[3])
{
    const uint8_t hash = op[1] % names;

    switch (op[0] % 8) {
    case 0:
    case 1:
    case 2:
        store(tree, hash, op[2] % names, op[2] / 64);
        break;
    case 3:
    case 4:
        kvb_block_tree_hold(tree, (kvb_engine_hash){ hash }, op[2] % 16);
        break;
    case 5:
        take_changes(tree, reader);
        take_snapshot(tree);
        break;
    case 6:
        kvb_block_tree_hide(tree, op[1] % 2);
        break;
    default:
        if (op[1] == 0) {
            kvb_block_tree_clear(tree);
        }
        save_and_load(tree);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct kvb_block_tree *tree = new_tree();
    struct reader reader = { .count = 0 };
    const size_t records = size > 0 && data[0] < size - 1 ? data[0] : 0;
    const kvb_status status = kvb_block_tree_load(tree, (kvb_span){ data + (size > 0), records });

    check(status == KVB_OK || status == KVB_BAD_INPUT);
    for (size_t at = 1 + records; at + 3 <= size; at += 3) {
        step(tree, &reader, data + at);
    }
    take_changes(tree, &reader);
    take_snapshot(tree);
    kvb_block_tree_free(tree);
    return 0;
}
