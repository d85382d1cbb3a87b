#include "kvfleet/engine/prefix_tree.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

/* At most half full, so that runs stay short. */
static uint32_t table_size_for(uint32_t capacity)
{
    uint32_t size = 4;

    while (size < 2 * capacity) {
        size *= 2;
    }
    return size;
}

static void chain_free_nodes(struct kvb_prefix_tree *tree)
{
    for (uint32_t node = 0; node < tree->capacity; node++) {
        const uint32_t next = node + 1 < tree->capacity ? node + 1 : kvb_no_node;
        tree->nodes[node] = (struct kvb_prefix_node){ .parent = next };
    }
    tree->first_free = 0;
    tree->used = 0;
}

kvb_status
kvb_prefix_tree_init(struct kvb_prefix_tree *tree, uint32_t capacity, uint32_t block_size)
{
    const uint32_t table_size = table_size_for(capacity);

    tree->nodes = calloc(capacity, sizeof *tree->nodes);
    tree->tokens = calloc((size_t)capacity * block_size, sizeof *tree->tokens);
    tree->table = calloc(table_size, sizeof *tree->table);
    if (!tree->nodes || !tree->tokens || !tree->table) {
        return KVB_NO_MEMORY;
    }
    tree->table_mask = table_size - 1;
    tree->capacity = capacity;
    tree->block_size = block_size;
    kvb_prefix_tree_clear(tree);
    return KVB_OK;
}

void kvb_prefix_tree_done(struct kvb_prefix_tree *tree)
{
    free(tree->nodes);
    free(tree->tokens);
    free(tree->table);
    *tree = (struct kvb_prefix_tree){ 0 };
}

void kvb_prefix_tree_clear(struct kvb_prefix_tree *tree)
{
    chain_free_nodes(tree);
    for (uint32_t at = 0; at <= tree->table_mask; at++) {
        tree->table[at] = kvb_no_node;
    }
}

/* Engine hashes are XXH3: their low bits are as good as any. */
static uint32_t home_place(const struct kvb_prefix_tree *tree, kvb_engine_hash hash)
{
    return (uint32_t)hash.value & tree->table_mask;
}

/* Where the hash lies, or the free place where its run ends. */
static uint32_t hash_place(const struct kvb_prefix_tree *tree, kvb_engine_hash hash)
{
    uint32_t at = home_place(tree, hash);

    while (tree->table[at] != kvb_no_node &&
           tree->nodes[tree->table[at]].hash.value != hash.value) {
        at = (at + 1) & tree->table_mask;
    }
    return at;
}

uint32_t kvb_prefix_tree_find(const struct kvb_prefix_tree *tree, kvb_engine_hash hash)
{
    return tree->table[hash_place(tree, hash)];
}

kvb_status kvb_prefix_tree_put(
    struct kvb_prefix_tree *tree, uint32_t parent, const struct kvb_block_content *content,
    uint32_t *out_node)
{
    const uint32_t at = hash_place(tree, content->hash);

    if (tree->table[at] != kvb_no_node) {
        *out_node = tree->table[at];
        return KVB_OK;
    }
    if (tree->first_free == kvb_no_node) {
        return KVB_TOO_LARGE;
    }

    const uint32_t node = tree->first_free;
    tree->first_free = tree->nodes[node].parent;
    tree->nodes[node] = (struct kvb_prefix_node){ .hash = content->hash,
                                                  .salt = content->salt,
                                                  .parent = parent,
                                                  .first_copy = kvb_no_block,
                                                  .last_copy = kvb_no_block };
    memcpy(
        tree->tokens + (size_t)node * tree->block_size, content->tokens,
        tree->block_size * sizeof *content->tokens);
    if (parent != kvb_no_node) {
        tree->nodes[parent].children++;
    }
    tree->table[at] = node;
    tree->used++;
    *out_node = node;
    return KVB_OK;
}

/* True when the entry at `from` may move back to the hole without landing before
 * its home. */
static bool may_fill(const struct kvb_prefix_tree *tree, uint32_t hole, uint32_t from)
{
    const uint32_t home = home_place(tree, tree->nodes[tree->table[from]].hash);
    const uint32_t distance_from_home = (from - home) & tree->table_mask;
    const uint32_t distance_from_hole = (from - hole) & tree->table_mask;

    return distance_from_home >= distance_from_hole;
}

/* Shifts later entries of the run back, so that there are no tombstones. */
static void unlink_hash(struct kvb_prefix_tree *tree, kvb_engine_hash hash)
{
    uint32_t hole = hash_place(tree, hash);

    for (uint32_t at = (hole + 1) & tree->table_mask; tree->table[at] != kvb_no_node;
         at = (at + 1) & tree->table_mask) {
        if (may_fill(tree, hole, at)) {
            tree->table[hole] = tree->table[at];
            hole = at;
        }
    }
    tree->table[hole] = kvb_no_node;
}

void kvb_prefix_tree_drop(struct kvb_prefix_tree *tree, uint32_t node)
{
    while (node != kvb_no_node && tree->nodes[node].copies == 0 &&
           tree->nodes[node].children == 0) {
        const uint32_t parent = tree->nodes[node].parent;

        unlink_hash(tree, tree->nodes[node].hash);
        tree->nodes[node].parent = tree->first_free;
        tree->first_free = node;
        tree->used--;
        if (parent != kvb_no_node) {
            tree->nodes[parent].children--;
        }
        node = parent;
    }
}

const uint32_t *kvb_prefix_tree_tokens(const struct kvb_prefix_tree *tree, uint32_t node)
{
    return tree->tokens + (size_t)node * tree->block_size;
}
