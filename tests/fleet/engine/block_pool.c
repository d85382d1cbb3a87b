#include "fleet/engine/block_pool.h"

#include "core/limits.h"
#include "fleet/engine/event_writer.h"

#include <assert.h>
#include <stdlib.h>

struct block {
    uint32_t users;
    uint32_t node; /* kvb_no_node: holds nothing that could be found */
    uint32_t next_free;
    uint32_t previous_free;
    uint32_t next_copy;
    uint32_t previous_copy;
};

struct kvb_block_pool {
    struct block *blocks; /* owned */
    uint32_t first_free;
    uint32_t last_free;
    uint32_t free_count;
    uint32_t filled_count;
    struct kvb_prefix_tree tree;
    struct kvb_content_log *log; /* borrowed; NULL: none */
};

static void append_free(struct kvb_block_pool *pool, uint32_t block)
{
    pool->blocks[block].previous_free = pool->last_free;
    pool->blocks[block].next_free = kvb_no_block;
    if (pool->last_free == kvb_no_block) {
        pool->first_free = block;
    } else {
        pool->blocks[pool->last_free].next_free = block;
    }
    pool->last_free = block;
    pool->free_count++;
}

static void remove_free(struct kvb_block_pool *pool, uint32_t block)
{
    const struct block *gone = &pool->blocks[block];

    if (gone->previous_free == kvb_no_block) {
        pool->first_free = gone->next_free;
    } else {
        pool->blocks[gone->previous_free].next_free = gone->next_free;
    }
    if (gone->next_free == kvb_no_block) {
        pool->last_free = gone->previous_free;
    } else {
        pool->blocks[gone->next_free].previous_free = gone->previous_free;
    }
    pool->free_count--;
}

kvb_status
kvb_block_pool_new(uint32_t blocks, uint32_t block_size, struct kvb_block_pool **out_pool)
{
    if (blocks < 2 || blocks > kvb_max_stream_blocks || block_size > kvb_max_block_tokens) {
        return KVB_BAD_INPUT;
    }
    struct kvb_block_pool *pool = calloc(1, sizeof *pool);
    if (!pool) {
        return KVB_NO_MEMORY;
    }
    pool->first_free = pool->last_free = kvb_no_block;
    pool->blocks = calloc(blocks, sizeof *pool->blocks);
    if (!pool->blocks || kvb_prefix_tree_init(&pool->tree, blocks, block_size) != KVB_OK) {
        kvb_block_pool_free(pool);
        return KVB_NO_MEMORY;
    }
    /* Block 0 is vLLM's null block: never in the queue. */
    for (uint32_t block = 1; block < blocks; block++) {
        pool->blocks[block].node = kvb_no_node;
        append_free(pool, block);
    }
    *out_pool = pool;
    return KVB_OK;
}

void kvb_block_pool_log(struct kvb_block_pool *pool, struct kvb_content_log *log)
{
    pool->log = log;
}

void kvb_block_pool_free(struct kvb_block_pool *pool)
{
    if (!pool) {
        return;
    }
    kvb_prefix_tree_done(&pool->tree);
    free(pool->blocks);
    free(pool);
}

static void unlink_copy(struct kvb_block_pool *pool, struct kvb_prefix_node *node, uint32_t block)
{
    const struct block *gone = &pool->blocks[block];

    if (gone->previous_copy == kvb_no_block) {
        node->first_copy = gone->next_copy;
    } else {
        pool->blocks[gone->previous_copy].next_copy = gone->next_copy;
    }
    if (gone->next_copy == kvb_no_block) {
        node->last_copy = gone->previous_copy;
    } else {
        pool->blocks[gone->next_copy].previous_copy = gone->previous_copy;
    }
    node->copies--;
}

/* Like vLLM, publishes a removal for each lost copy, also while other copies are left. */
static kvb_status evict(struct kvb_block_pool *pool, uint32_t block, struct kvb_event_batch *events)
{
    const uint32_t at = pool->blocks[block].node;

    if (at == kvb_no_node) {
        return KVB_OK;
    }
    struct kvb_prefix_node *node = &pool->tree.nodes[at];
    KVB_TRY(kvb_event_writer_removed(events, node->hash));
    unlink_copy(pool, node, block);
    pool->blocks[block].node = kvb_no_node;
    pool->filled_count--;
    if (pool->log && node->copies == 0) {
        kvb_content_log_removed(pool->log, node->hash);
    }
    kvb_prefix_tree_drop(&pool->tree, at);
    return KVB_OK;
}

kvb_status kvb_block_pool_take(
    struct kvb_block_pool *pool, struct kvb_event_batch *events, uint32_t *out_block)
{
    const uint32_t block = pool->first_free;

    if (block == kvb_no_block) {
        return KVB_AGAIN;
    }
    KVB_TRY(evict(pool, block, events));
    remove_free(pool, block);
    pool->blocks[block].users = 1;
    *out_block = block;
    return KVB_OK;
}

void kvb_block_pool_hold(struct kvb_block_pool *pool, uint32_t block)
{
    if (pool->blocks[block].users == 0) {
        remove_free(pool, block);
    }
    pool->blocks[block].users++;
}

void kvb_block_pool_release(struct kvb_block_pool *pool, uint32_t block)
{
    assert(pool->blocks[block].users > 0);
    pool->blocks[block].users--;
    if (pool->blocks[block].users == 0) {
        append_free(pool, block);
    }
}

kvb_status kvb_block_pool_fill(
    struct kvb_block_pool *pool, uint32_t block, uint32_t before,
    const struct kvb_block_content *content)
{
    const uint32_t parent = before == kvb_no_block ? kvb_no_node : pool->blocks[before].node;
    uint32_t at = 0;

    assert(pool->blocks[block].node == kvb_no_node);
    KVB_TRY(kvb_prefix_tree_put(&pool->tree, parent, content, &at));

    struct kvb_prefix_node *node = &pool->tree.nodes[at];
    pool->blocks[block].node = at;
    pool->blocks[block].previous_copy = node->last_copy;
    pool->blocks[block].next_copy = kvb_no_block;
    if (node->last_copy == kvb_no_block) {
        node->first_copy = block;
    } else {
        pool->blocks[node->last_copy].next_copy = block;
    }
    node->last_copy = block;
    node->copies++;
    pool->filled_count++;
    if (pool->log && node->copies == 1) {
        kvb_content_log_stored(
            pool->log, content,
            node->parent == kvb_no_node ? node->hash : pool->tree.nodes[node->parent].hash);
    }
    return KVB_OK;
}

uint32_t kvb_block_pool_find(const struct kvb_block_pool *pool, kvb_engine_hash hash)
{
    const uint32_t node = kvb_prefix_tree_find(&pool->tree, hash);

    return node == kvb_no_node ? kvb_no_block : pool->tree.nodes[node].first_copy;
}

void kvb_block_pool_clear(struct kvb_block_pool *pool)
{
    for (uint32_t block = 1; block < pool->tree.capacity; block++) {
        pool->blocks[block].node = kvb_no_node;
    }
    pool->filled_count = 0;
    kvb_prefix_tree_clear(&pool->tree);
    if (pool->log) {
        kvb_content_log_cleared(pool->log);
    }
}

bool kvb_block_pool_is_free(const struct kvb_block_pool *pool, uint32_t block)
{
    return pool->blocks[block].users == 0;
}

uint32_t kvb_block_pool_free_count(const struct kvb_block_pool *pool)
{
    return pool->free_count;
}

uint32_t kvb_block_pool_filled_count(const struct kvb_block_pool *pool)
{
    return pool->filled_count;
}

const struct kvb_prefix_tree *kvb_block_pool_tree(const struct kvb_block_pool *pool)
{
    return &pool->tree;
}
