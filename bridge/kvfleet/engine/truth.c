#include "kvfleet/engine/inside.h"

#include <stdlib.h>

/* Numbers the nodes parents first, while it walks them in any order. */
struct lister {
    const struct kvb_prefix_tree *tree;
    uint32_t *position; /* of each node; kvb_no_parent: not listed yet */
    uint32_t *path;     /* a node and its unlisted ancestors, upwards */
    struct kvb_truth_block *blocks;
    uint32_t count;
};

static void list_one(struct lister *lister, uint32_t at)
{
    const struct kvb_prefix_node *node = &lister->tree->nodes[at];
    const bool is_root = node->parent == kvb_no_node;

    lister->position[at] = lister->count;
    lister->blocks[lister->count++] = (struct kvb_truth_block){
        .hash = node->hash,
        .tokens = kvb_prefix_tree_tokens(lister->tree, at),
        .salt = node->salt,
        .parent = is_root ? kvb_no_parent : lister->position[node->parent],
        .copies = node->copies,
    };
}

/* Every node is on one path once, so the walk is linear. */
static void list_path(struct lister *lister, uint32_t at)
{
    uint32_t length = 0;

    while (at != kvb_no_node && lister->position[at] == kvb_no_parent) {
        lister->path[length++] = at;
        at = lister->tree->nodes[at].parent;
    }
    while (length > 0) {
        list_one(lister, lister->path[--length]);
    }
}

static void list_all(struct lister *lister)
{
    for (uint32_t at = 0; at < lister->tree->capacity; at++) {
        lister->position[at] = kvb_no_parent;
    }
    for (uint32_t at = 0; at < lister->tree->capacity; at++) {
        if (lister->tree->nodes[at].copies > 0) {
            list_path(lister, at);
        }
    }
}

kvb_status kvb_engine_truth(const struct kvb_engine *engine, struct kvb_truth *out_truth)
{
    const struct kvb_prefix_tree *tree = kvb_block_pool_tree(engine->pool);
    struct lister lister = {
        .tree = tree,
        .position = calloc(tree->capacity, sizeof *lister.position),
        .path = calloc(tree->capacity, sizeof *lister.path),
        .blocks = calloc(tree->used + 1, sizeof *lister.blocks),
    };
    const bool has_memory = lister.position && lister.path && lister.blocks;

    if (has_memory) {
        list_all(&lister);
        *out_truth = (struct kvb_truth){
            .rank = engine->options.rank,
            .has_seq = engine->next_seq > engine->first_seq,
            .seq = engine->next_seq - (engine->next_seq > engine->first_seq),
            .unsent = engine->is_handed ? 0 : engine->pending.event_count,
            .block_size = engine->options.block_size,
            .count = lister.count,
            .blocks = lister.blocks,
        };
    } else {
        free(lister.blocks);
    }
    free(lister.position);
    free(lister.path);
    return has_memory ? KVB_OK : KVB_NO_MEMORY;
}

void kvb_truth_done(struct kvb_truth *truth)
{
    free(truth->blocks);
    *truth = (struct kvb_truth){ 0 };
}
