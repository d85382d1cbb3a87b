#include "fleet/engine/prefix_tree.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

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
    tree->nodes = calloc(capacity, sizeof *tree->nodes);
    tree->tokens =
        block_size > 0 ? calloc((size_t)capacity * block_size, sizeof *tree->tokens) : NULL;
    if (!tree->nodes || (block_size > 0 && !tree->tokens)) {
        return KVB_NO_MEMORY;
    }
    tree->capacity = capacity;
    tree->block_size = block_size;
    kvb_prefix_tree_clear(tree);
    return KVB_OK;
}

void kvb_prefix_tree_done(struct kvb_prefix_tree *tree)
{
    free(tree->nodes);
    free(tree->tokens);
    kvb_id_table_done(&tree->table);
    *tree = (struct kvb_prefix_tree){ 0 };
}

void kvb_prefix_tree_clear(struct kvb_prefix_tree *tree)
{
    chain_free_nodes(tree);
    kvb_id_table_clear(&tree->table);
}

/* Engine hashes are XXH3: their low bits are as good as any. */
static uint32_t table_hash(kvb_engine_hash hash)
{
    return (uint32_t)hash.value;
}

uint32_t kvb_prefix_tree_find(const struct kvb_prefix_tree *tree, kvb_engine_hash hash)
{
    if (tree->table.count == 0) {
        return kvb_no_node; /* the table may have no cells */
    }
    size_t at = kvb_id_table_start(&tree->table, table_hash(hash));
    for (uint32_t node;
         (node = kvb_id_table_next(&tree->table, table_hash(hash), &at)) != KVB_NO_ID;) {
        if (tree->nodes[node].hash.value == hash.value) {
            return node;
        }
    }
    return kvb_no_node;
}

kvb_status kvb_prefix_tree_put(
    struct kvb_prefix_tree *tree, uint32_t parent, const struct kvb_block_content *content,
    uint32_t *out_node)
{
    const uint32_t found = kvb_prefix_tree_find(tree, content->hash);
    const uint32_t node = tree->first_free;

    if (found != kvb_no_node) {
        *out_node = found;
        return KVB_OK;
    }
    if (node == kvb_no_node) {
        return KVB_TOO_LARGE;
    }
    KVB_TRY(kvb_id_table_put(&tree->table, table_hash(content->hash), node));
    tree->first_free = tree->nodes[node].parent;
    tree->nodes[node] = (struct kvb_prefix_node){ .hash = content->hash,
                                                  .salt = content->salt,
                                                  .parent = parent,
                                                  .first_copy = kvb_no_block,
                                                  .last_copy = kvb_no_block };
    if (tree->block_size > 0) {
        memcpy(
            tree->tokens + (size_t)node * tree->block_size, content->tokens,
            tree->block_size * sizeof *content->tokens);
    }
    if (parent != kvb_no_node) {
        tree->nodes[parent].children++;
    }
    tree->used++;
    *out_node = node;
    return KVB_OK;
}

void kvb_prefix_tree_drop(struct kvb_prefix_tree *tree, uint32_t node)
{
    while (node != kvb_no_node && tree->nodes[node].copies == 0 &&
           tree->nodes[node].children == 0) {
        const uint32_t parent = tree->nodes[node].parent;

        kvb_id_table_remove(&tree->table, table_hash(tree->nodes[node].hash), node);
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
