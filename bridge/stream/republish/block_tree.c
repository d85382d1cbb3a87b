#include "stream/republish/block_tree.h"

#include "core/array.h"
#include "core/hash.h"
#include "core/id_table.h"
#include "core/little_endian.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

enum content {
    content_unknown,  /* a parent that was only named, or a block without tokens */
    content_showable, /* can be shown */
    content_left_out  /* known, but readers cannot use it */
};

struct tree_node {
    kvb_engine_hash hash;
    uint32_t parent; /* nodes, like the next four; KVB_NO_ID: none */
    uint32_t first_child;
    uint32_t next, previous; /* siblings; of a free node: the next free one */
    uint32_t next_changed;
    uint16_t lora; /* 0: the base model */
    uint8_t content;
    uint8_t held; /* bit t: in tier t */
    bool is_shown;
    bool is_changed;  /* in the list of changes */
    bool has_place;   /* among the children of its parent, or among the roots */
    bool is_detached; /* its hash belongs to another node now; it is in no table */
    bool is_used;
};

static_assert(sizeof(struct tree_node) == 40, "as the header says");

/* Names of adapters, with the number of nodes that use each; place 0 is the base model. */
struct tree_lora {
    uint8_t *text; /* owned; NULL: free */
    size_t len;
    uint32_t uses;
};

struct kvb_block_tree {
    struct kvb_hash_key hash_key;
    uint32_t block_size;
    size_t max_blocks;
    uint8_t *default_lora; /* owned */
    size_t default_lora_len;

    struct tree_node *nodes; /* owned */
    size_t node_capacity;
    size_t node_end;
    uint32_t first_free;
    uint32_t *tokens; /* owned: block_size of each node */
    size_t token_capacity;
    struct kvb_id_table by_hash;
    uint32_t first_root; /* of those with a content and no parent */

    uint32_t first_changed, last_changed; /* first in, first out */
    uint32_t passing; /* the children from here on are looked at, too: their parent was shown or
                         removed */
    bool is_cleared;  /* readers have not been sent the Cleared yet */
    bool is_hidden;

    bool is_walking;
    bool is_walk_void; /* the snapshot contains blocks that are no longer held */
    uint32_t walk_at;  /* the next node of the snapshot; KVB_NO_ID: there is none */

    struct tree_lora *loras; /* owned */
    size_t lora_count, lora_capacity;

    struct kvb_block_tree_counts counts;
};

/* ---- New and free ---- */

static void reset_tree(struct kvb_block_tree *tree)
{
    tree->node_end = 0;
    tree->first_free = KVB_NO_ID;
    tree->first_root = KVB_NO_ID;
    tree->first_changed = KVB_NO_ID;
    tree->last_changed = KVB_NO_ID;
    tree->passing = KVB_NO_ID;
    tree->walk_at = KVB_NO_ID;
    tree->counts.held = 0;
    tree->counts.shown = 0;
    tree->counts.nodes = 0;
}

static kvb_status copy_lora_text(kvb_span text, uint8_t **out_copy)
{
    uint8_t *copy = malloc(text.len + 1);

    if (!copy) {
        return KVB_NO_MEMORY;
    }
    if (text.len > 0) {
        memcpy(copy, text.data, text.len);
    }
    *out_copy = copy;
    return KVB_OK;
}

kvb_status
kvb_block_tree_new(const struct kvb_block_tree_options *options, struct kvb_block_tree **out_tree)
{
    size_t bytes = 0;

    if (options->max_blocks == 0 || options->max_blocks >= KVB_NO_ID || options->block_size == 0 ||
        __builtin_mul_overflow(
            options->max_blocks, options->block_size * sizeof(uint32_t), &bytes)) {
        return KVB_TOO_LARGE;
    }
    struct kvb_block_tree *tree = calloc(1, sizeof *tree);
    if (!tree) {
        return KVB_NO_MEMORY;
    }
    if (copy_lora_text(options->lora_name, &tree->default_lora) != KVB_OK) {
        free(tree);
        return KVB_NO_MEMORY;
    }
    tree->default_lora_len = options->lora_name.len;
    tree->hash_key = kvb_hash_key_of(options->hash_key);
    tree->block_size = options->block_size;
    tree->max_blocks = options->max_blocks;
    reset_tree(tree);
    *out_tree = tree;
    return KVB_OK;
}

static void free_loras(struct kvb_block_tree *tree)
{
    for (size_t i = 0; i < tree->lora_count; i++) {
        free(tree->loras[i].text);
    }
    tree->lora_count = 0;
}

void kvb_block_tree_free(struct kvb_block_tree *tree)
{
    if (!tree) {
        return;
    }
    free_loras(tree);
    free(tree->loras);
    free(tree->default_lora);
    free(tree->nodes);
    free(tree->tokens);
    kvb_id_table_done(&tree->by_hash);
    free(tree);
}

void kvb_block_tree_clear(struct kvb_block_tree *tree)
{
    kvb_id_table_clear(&tree->by_hash);
    free_loras(tree);
    reset_tree(tree);
    tree->is_cleared = true;
    tree->is_walk_void = true;
}

const struct kvb_block_tree_counts *kvb_block_tree_count(const struct kvb_block_tree *tree)
{
    return &tree->counts;
}

uint64_t kvb_block_tree_left_out(const struct kvb_block_tree *tree)
{
    const struct kvb_block_tree_counts *counts = &tree->counts;

    return counts->held > counts->shown ? counts->held - counts->shown : 0;
}

/* ---- Adapters ---- */

/* The place of a name that no node uses, or the place after the last one. */
static kvb_status free_lora_place(struct kvb_block_tree *tree, size_t *out_at)
{
    for (size_t i = 0; i < tree->lora_count; i++) {
        if (!tree->loras[i].text) {
            *out_at = i;
            return KVB_OK;
        }
    }
    KVB_TRY(kvb_array_reserve(
        &tree->loras, &tree->lora_capacity, tree->lora_count + 1, sizeof *tree->loras,
        kvb_max_shown_loras));
    tree->loras[tree->lora_count] = (struct tree_lora){ .text = NULL };
    *out_at = tree->lora_count++;
    return KVB_OK;
}

static kvb_status take_lora(struct kvb_block_tree *tree, kvb_span name, uint16_t *out_lora)
{
    size_t at = 0;

    if (name.len == 0) {
        *out_lora = 0;
        return KVB_OK;
    }
    for (size_t i = 0; i < tree->lora_count; i++) {
        const struct tree_lora *lora = &tree->loras[i];
        if (lora->text && lora->len == name.len && memcmp(lora->text, name.data, name.len) == 0) {
            tree->loras[i].uses++;
            *out_lora = (uint16_t)(i + 1);
            return KVB_OK;
        }
    }
    KVB_TRY(free_lora_place(tree, &at));
    KVB_TRY(copy_lora_text(name, &tree->loras[at].text));
    tree->loras[at].len = name.len;
    tree->loras[at].uses = 1;
    *out_lora = (uint16_t)(at + 1);
    return KVB_OK;
}

static void leave_lora(struct kvb_block_tree *tree, uint16_t lora)
{
    if (lora > 0 && --tree->loras[lora - 1].uses == 0) {
        free(tree->loras[lora - 1].text);
        tree->loras[lora - 1].text = NULL;
    }
}

static kvb_span lora_text(const struct kvb_block_tree *tree, uint16_t lora)
{
    return lora > 0 ? (kvb_span){ tree->loras[lora - 1].text, tree->loras[lora - 1].len }
                    : (kvb_span){ .len = 0 };
}

/* ---- Nodes ---- */

static uint32_t hash_of_node(const struct kvb_block_tree *tree, kvb_engine_hash engine)
{
    return (uint32_t)kvb_hash_keyed(&tree->hash_key, engine.value, 0);
}

static uint32_t find_node(const struct kvb_block_tree *tree, kvb_engine_hash engine)
{
    const uint32_t hash = hash_of_node(tree, engine);

    if (tree->by_hash.count == 0) {
        return KVB_NO_ID;
    }
    size_t at = kvb_id_table_start(&tree->by_hash, hash);
    for (uint32_t id; (id = kvb_id_table_next(&tree->by_hash, hash, &at)) != KVB_NO_ID;) {
        if (tree->nodes[id].hash.value == engine.value) {
            return id;
        }
    }
    return KVB_NO_ID;
}

/* The table is larger than a core's caches, and each block is looked up in turn. */
static void expect_node(const struct kvb_block_tree *tree, kvb_engine_hash engine)
{
    if (tree->by_hash.cells) {
        const uint32_t hash = hash_of_node(tree, engine);
        __builtin_prefetch(&tree->by_hash.cells[kvb_id_table_start(&tree->by_hash, hash)]);
    }
}

static uint32_t *tokens_of_node(const struct kvb_block_tree *tree, uint32_t id)
{
    return tree->tokens + (size_t)id * tree->block_size;
}

static kvb_status draw_tree_node(struct kvb_block_tree *tree, uint32_t *out_id)
{
    if (tree->first_free != KVB_NO_ID) {
        *out_id = tree->first_free;
        return KVB_OK;
    }
    const size_t need = tree->node_end + 1;
    KVB_TRY(kvb_array_reserve(
        &tree->nodes, &tree->node_capacity, need, sizeof *tree->nodes, tree->max_blocks));
    KVB_TRY(kvb_array_reserve(
        &tree->tokens, &tree->token_capacity, need * tree->block_size, sizeof *tree->tokens,
        tree->max_blocks * tree->block_size));
    tree->counts.bytes =
        tree->node_capacity * sizeof *tree->nodes + tree->token_capacity * sizeof *tree->tokens;
    *out_id = (uint32_t)tree->node_end;
    return KVB_OK;
}

/* KVB_NO_ID: there is no room; it is counted. */
static uint32_t new_node(struct kvb_block_tree *tree, kvb_engine_hash engine)
{
    uint32_t id = KVB_NO_ID;

    if (draw_tree_node(tree, &id) != KVB_OK ||
        kvb_id_table_put(&tree->by_hash, hash_of_node(tree, engine), id) != KVB_OK) {
        tree->counts.no_room++;
        return KVB_NO_ID;
    }
    if (id == tree->first_free) {
        tree->first_free = tree->nodes[id].next;
    } else {
        tree->node_end++;
    }
    tree->nodes[id] = (struct tree_node){ .hash = engine,
                                          .parent = KVB_NO_ID,
                                          .first_child = KVB_NO_ID,
                                          .next = KVB_NO_ID,
                                          .previous = KVB_NO_ID,
                                          .next_changed = KVB_NO_ID,
                                          .is_used = true };
    tree->counts.nodes++;
    return id;
}

static uint32_t find_or_make_node(struct kvb_block_tree *tree, kvb_engine_hash engine)
{
    const uint32_t id = find_node(tree, engine);

    return id != KVB_NO_ID ? id : new_node(tree, engine);
}

static void queue_node(struct kvb_block_tree *tree, uint32_t id)
{
    if (tree->nodes[id].is_changed) {
        return;
    }
    tree->nodes[id].is_changed = true;
    tree->nodes[id].next_changed = KVB_NO_ID;
    if (tree->last_changed != KVB_NO_ID) {
        tree->nodes[tree->last_changed].next_changed = id;
    } else {
        tree->first_changed = id;
    }
    tree->last_changed = id;
}

static uint32_t *first_sibling(struct kvb_block_tree *tree, uint32_t parent)
{
    return parent != KVB_NO_ID ? &tree->nodes[parent].first_child : &tree->first_root;
}

/* Gives the node its place in the tree. */
static void link_node(struct kvb_block_tree *tree, uint32_t id, uint32_t parent)
{
    struct tree_node *node = &tree->nodes[id];
    uint32_t *first = first_sibling(tree, parent);

    node->parent = parent;
    node->previous = KVB_NO_ID;
    node->next = *first;
    node->has_place = true;
    if (*first != KVB_NO_ID) {
        tree->nodes[*first].previous = id;
    }
    *first = id;
}

/* The node that follows this one and everything below it, in the order "parent, then children". */
static uint32_t skip_subtree(const struct kvb_block_tree *tree, uint32_t id)
{
    const struct tree_node *node = &tree->nodes[id];

    while (node->next == KVB_NO_ID && node->parent != KVB_NO_ID) {
        node = &tree->nodes[node->parent];
    }
    return node->next;
}

/* The parent is queued too: without this child it may be needed no longer. */
static void unlink_node(struct kvb_block_tree *tree, uint32_t id)
{
    struct tree_node *node = &tree->nodes[id];

    if (!node->has_place) {
        return;
    }
    if (tree->passing == id) {
        tree->passing = node->next;
    }
    if (tree->walk_at == id) {
        tree->walk_at = skip_subtree(tree, id); /* neither it nor anything below it is shown */
    }
    if (node->next != KVB_NO_ID) {
        tree->nodes[node->next].previous = node->previous;
    }
    if (node->previous != KVB_NO_ID) {
        tree->nodes[node->previous].next = node->next;
    } else {
        *first_sibling(tree, node->parent) = node->next;
    }
    if (node->parent != KVB_NO_ID) {
        queue_node(tree, node->parent);
    }
    node->has_place = false;
    node->parent = KVB_NO_ID;
}

static void forget_content(struct kvb_block_tree *tree, uint32_t id)
{
    unlink_node(tree, id);
    leave_lora(tree, tree->nodes[id].lora);
    tree->nodes[id].lora = 0;
    tree->nodes[id].content = content_unknown;
}

static void drop_node(struct kvb_block_tree *tree, uint32_t id)
{
    forget_content(tree, id);
    if (!tree->nodes[id].is_detached) {
        kvb_id_table_remove(&tree->by_hash, hash_of_node(tree, tree->nodes[id].hash), id);
    }
    tree->nodes[id] = (struct tree_node){ .next = tree->first_free };
    tree->first_free = id;
    tree->counts.nodes--;
}

/* ---- What the mirror says ---- */

static bool is_on_device(const struct tree_node *node)
{
    return node->held >> KVB_TIER_DEVICE & 1;
}

static void set_held(struct kvb_block_tree *tree, uint32_t id, unsigned tiers)
{
    struct tree_node *node = &tree->nodes[id];

    tree->counts.held -= is_on_device(node);
    tree->counts.contents += !node->held && tiers && node->content == content_showable;
    node->held = (uint8_t)tiers;
    tree->counts.held += is_on_device(node);
    queue_node(tree, id);
}

void kvb_block_tree_hold(struct kvb_block_tree *tree, kvb_engine_hash engine, unsigned tiers)
{
    const uint32_t id = tiers ? find_or_make_node(tree, engine) : find_node(tree, engine);

    if (id != KVB_NO_ID && tree->nodes[id].held != tiers) {
        set_held(tree, id, tiers);
    }
}

/* What a block is, beside its hash. */
struct block_content {
    bool has_parent;
    kvb_engine_hash parent;
    kvb_span lora;
    const void *tokens; /* block_size of them, perhaps not aligned; NULL: the block is left out */
};

static bool can_be_shown(
    const struct kvb_block_tree *tree, const struct kvb_event_batch *batch,
    const struct kvb_engine_event *event, uint32_t i)
{
    const struct kvb_block_extra none = { .key_count = 0 };
    const struct kvb_block_extra *extra =
        event->extra_count > 0 ? &batch->extras[event->extra_at + i] : &none;

    return event->block_size == tree->block_size && event->salt.len == 0 && event->key == 0 &&
           extra->key_count == 0 && !extra->unmatchable;
}

static struct block_content content_of_event(
    const struct kvb_block_tree *tree, const struct kvb_event_batch *batch,
    const struct kvb_engine_event *event, uint32_t i)
{
    const kvb_span named = kvb_event_batch_text(batch, event->lora_name);
    const kvb_span by_default = { tree->default_lora, tree->default_lora_len };

    if (!can_be_shown(tree, batch, event, i)) {
        return (struct block_content){ .tokens = NULL };
    }
    return (struct block_content){
        .has_parent = i > 0 || event->has_parent,
        .parent = i > 0 ? batch->hashes[event->hash_at + i - 1] : event->parent,
        .lora = named.len > 0 ? named : by_default,
        .tokens = batch->tokens + event->token_at + (size_t)i * tree->block_size,
    };
}

/* True when the node has this content already. */
static bool
is_content(const struct kvb_block_tree *tree, uint32_t id, const struct block_content *content)
{
    const struct tree_node *node = &tree->nodes[id];
    const kvb_span own = lora_text(tree, node->lora);

    if (node->content != content_showable || !content->tokens) {
        return node->content == content_left_out && !content->tokens;
    }
    const uint32_t parent = content->has_parent ? find_node(tree, content->parent) : KVB_NO_ID;
    return node->parent == parent && content->has_parent == (parent != KVB_NO_ID) &&
           content->lora.len == own.len &&
           (own.len == 0 || memcmp(content->lora.data, own.data, own.len) == 0) &&
           memcmp(
               tokens_of_node(tree, id), content->tokens,
               tree->block_size * sizeof *tree->tokens) == 0;
}

/* Unlinks the children: they follow the old content of the hash, and the hash has other content
 * from here on. */
static void forget_children(struct kvb_block_tree *tree, uint32_t id)
{
    for (uint32_t child; (child = tree->nodes[id].first_child) != KVB_NO_ID;) {
        forget_content(tree, child);
        queue_node(tree, child);
    }
}

/* A hash came with other content, for example after a collision of hashes.  Readers are sent a
 * removal of the old node, and the hash gets a new node.  A snapshot under way is void. */
static uint32_t replace_node(struct kvb_block_tree *tree, uint32_t id)
{
    const kvb_engine_hash engine = tree->nodes[id].hash;
    const unsigned held = tree->nodes[id].held;

    tree->is_walk_void = true;
    forget_children(tree, id);
    kvb_id_table_remove(&tree->by_hash, hash_of_node(tree, engine), id);
    tree->nodes[id].is_detached = true;
    set_held(tree, id, 0);
    const uint32_t other = new_node(tree, engine);
    if (other != KVB_NO_ID) {
        set_held(tree, other, held);
    }
    return other;
}

/* Is `above` the node itself, or one that it hangs below?  A node without children is above none,
 * so only a block that comes after its children has its ancestors looked at. */
static bool is_at_or_above(const struct kvb_block_tree *tree, uint32_t above, uint32_t id)
{
    const bool has_children = tree->nodes[above].first_child != KVB_NO_ID;

    while (has_children && id != above && id != KVB_NO_ID) {
        id = tree->nodes[id].parent;
    }
    return id == above;
}

/* Without room the node stays without content. */
static void fill_node(struct kvb_block_tree *tree, uint32_t id, const struct block_content *content)
{
    uint32_t parent = KVB_NO_ID;

    forget_content(tree, id);
    queue_node(tree, id); /* before a parent is made, which may move the nodes */
    if (!content->tokens) {
        tree->nodes[id].content = content_left_out;
        return;
    }
    if (content->has_parent) {
        parent = find_or_make_node(tree, content->parent);
        if (parent == KVB_NO_ID || is_at_or_above(tree, id, parent)) {
            return; /* nodes in a circle would never be dropped */
        }
    }
    link_node(tree, id, parent);
    if (take_lora(tree, content->lora, &tree->nodes[id].lora) != KVB_OK) {
        tree->counts.no_room++;
        unlink_node(tree, id);
        return;
    }
    memcpy(tokens_of_node(tree, id), content->tokens, tree->block_size * sizeof *tree->tokens);
    tree->nodes[id].content = content_showable;
    tree->counts.contents++;
}

static void store_content(
    struct kvb_block_tree *tree, kvb_engine_hash hash, const struct block_content *content)
{
    uint32_t id = find_or_make_node(tree, hash);

    if (id == KVB_NO_ID || is_content(tree, id, content)) {
        return;
    }
    const struct tree_node *node = &tree->nodes[id];
    if (node->is_shown || (node->content != content_unknown && node->first_child != KVB_NO_ID)) {
        id = replace_node(tree, id);
    }
    if (id != KVB_NO_ID) {
        fill_node(tree, id, content);
    }
}

void kvb_block_tree_store(
    struct kvb_block_tree *tree, const struct kvb_event_batch *batch,
    const struct kvb_engine_event *event, uint32_t i)
{
    const struct block_content content = content_of_event(tree, batch, event, i);

    tree->counts.has_signed_hashes |= batch->has_signed_hashes;
    if (i + 1 < event->hash_count) {
        expect_node(tree, batch->hashes[event->hash_at + i + 1]);
    }
    store_content(tree, batch->hashes[event->hash_at + i], &content);
}

/* ---- As bytes ----
 *
 * One record for each block whose content is known and held:
 *
 *     hash u64 | parent u64 | flags u8 | length of the adapter's name u16 | name | tokens u32 ...
 */

enum { record_fixed_bytes = 8 + 8 + 1 + 2, record_has_parent = 1, record_is_signed = 2 };

static kvb_status save_node(const struct kvb_block_tree *tree, uint32_t id, struct kvb_buf *out)
{
    const struct tree_node *node = &tree->nodes[id];
    const bool has_parent = node->parent != KVB_NO_ID;
    const kvb_span lora = lora_text(tree, node->lora);
    const size_t token_bytes = tree->block_size * sizeof *tree->tokens;
    const uint32_t *tokens = tokens_of_node(tree, id);

    KVB_TRY(kvb_buf_reserve(out, record_fixed_bytes + lora.len + token_bytes));
    uint8_t *at = out->data + out->len;
    kvb_le_put_u64(at, node->hash.value);
    kvb_le_put_u64(at + 8, has_parent ? tree->nodes[node->parent].hash.value : 0);
    at[16] =
        (uint8_t)((has_parent ? record_has_parent : 0) | (tree->counts.has_signed_hashes ? record_is_signed : 0));
    at[17] = (uint8_t)lora.len;
    at[18] = (uint8_t)(lora.len >> 8);
    if (lora.len > 0) {
        memcpy(at + record_fixed_bytes, lora.data, lora.len);
    }
    for (uint32_t i = 0; i < tree->block_size; i++) {
        kvb_le_put_u32(at + record_fixed_bytes + lora.len + 4 * (size_t)i, tokens[i]);
    }
    out->len += record_fixed_bytes + lora.len + token_bytes;
    return KVB_OK;
}

kvb_status kvb_block_tree_save(
    const struct kvb_block_tree *tree, size_t max_bytes, size_t max_looks, size_t *place,
    struct kvb_buf *out)
{
    const size_t end = out->len + max_bytes;

    for (; *place < tree->node_end && out->len < end && max_looks > 0; max_looks--, (*place)++) {
        const struct tree_node *node = &tree->nodes[*place];
        if (node->is_used && !node->is_detached && node->content == content_showable &&
            node->held) {
            KVB_TRY(save_node(tree, (uint32_t)*place, out));
        }
    }
    if (*place >= tree->node_end) {
        *place = SIZE_MAX;
    }
    return KVB_OK;
}

/* Tokens are little-endian, as this host is. */
static kvb_status load_record(struct kvb_block_tree *tree, kvb_span *records)
{
    const size_t token_bytes = tree->block_size * sizeof *tree->tokens;
    const uint8_t *at = records->data;

    static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "tokens are copied as they are");
    if (records->len < record_fixed_bytes) {
        return KVB_BAD_INPUT;
    }
    const size_t lora_len = at[17] | (size_t)at[18] << 8;
    if (records->len < record_fixed_bytes + lora_len + token_bytes) {
        return KVB_BAD_INPUT;
    }
    const struct block_content content = { .has_parent = (at[16] & record_has_parent) != 0,
                                           .parent = { kvb_le_get_u64(at + 8) },
                                           .lora = { at + record_fixed_bytes, lora_len },
                                           .tokens = at + record_fixed_bytes + lora_len };
    tree->counts.has_signed_hashes |= (at[16] & record_is_signed) != 0;
    store_content(tree, (kvb_engine_hash){ kvb_le_get_u64(at) }, &content);
    records->data += record_fixed_bytes + lora_len + token_bytes;
    records->len -= record_fixed_bytes + lora_len + token_bytes;
    return KVB_OK;
}

kvb_status kvb_block_tree_load(struct kvb_block_tree *tree, kvb_span records)
{
    while (records.len > 0) {
        KVB_TRY(load_record(tree, &records));
    }
    return KVB_OK;
}

/* ---- Events ---- */

static struct kvb_engine_event *last_shown_event(const struct kvb_event_batch *out)
{
    return out->event_count > 0 ? &out->events[out->event_count - 1] : NULL;
}

static kvb_status add_shown_event(struct kvb_event_batch *out, const struct kvb_engine_event *event)
{
    KVB_TRY(kvb_event_batch_reserve_events(out, 1));
    out->events[out->event_count++] = *event;
    return KVB_OK;
}

static void add_shown_hash(struct kvb_event_batch *out, kvb_engine_hash hash)
{
    out->hashes[out->hash_count++] = hash;
    out->events[out->event_count - 1].hash_count++;
}

/* True when the last event is a Stored that ends with the parent of this block. */
static bool continues_shown_event(
    const struct kvb_block_tree *tree, const struct kvb_event_batch *out,
    const struct tree_node *node)
{
    const struct kvb_engine_event *last = last_shown_event(out);

    if (!last || last->kind != KVB_EVENT_STORED || node->parent == KVB_NO_ID ||
        last->hash_count >= kvb_max_shown_event_blocks) {
        return false;
    }
    const struct tree_node *parent = &tree->nodes[node->parent];
    return out->hashes[out->hash_count - 1].value == parent->hash.value &&
           parent->lora == node->lora;
}

static kvb_status begin_shown_event(
    const struct kvb_block_tree *tree, const struct tree_node *node, struct kvb_event_batch *out)
{
    const bool has_parent = node->parent != KVB_NO_ID;
    struct kvb_engine_event event = {
        .kind = KVB_EVENT_STORED,
        .tier = KVB_TIER_DEVICE,
        .has_group = true,
        .has_parent = has_parent,
        .parent = { has_parent ? tree->nodes[node->parent].hash.value : 0 },
        .block_size = tree->block_size,
        .hash_at = (uint32_t)out->hash_count,
        .token_at = (uint32_t)out->token_count,
    };

    if (node->lora > 0) {
        KVB_TRY(kvb_event_batch_add_text(out, lora_text(tree, node->lora), &event.lora_name));
    }
    return add_shown_event(out, &event);
}

static kvb_status
write_shown_stored(const struct kvb_block_tree *tree, uint32_t id, struct kvb_event_batch *out)
{
    const struct tree_node *node = &tree->nodes[id];

    KVB_TRY(kvb_event_batch_reserve_hashes(out, 1));
    KVB_TRY(kvb_event_batch_reserve_tokens(out, tree->block_size));
    if (!continues_shown_event(tree, out, node)) {
        KVB_TRY(begin_shown_event(tree, node, out));
    }
    memcpy(
        out->tokens + out->token_count, tokens_of_node(tree, id),
        tree->block_size * sizeof *tree->tokens);
    out->token_count += tree->block_size;
    last_shown_event(out)->token_count += tree->block_size;
    add_shown_hash(out, node->hash);
    return KVB_OK;
}

static kvb_status write_shown_removed(const struct tree_node *node, struct kvb_event_batch *out)
{
    const struct kvb_engine_event *last = last_shown_event(out);

    KVB_TRY(kvb_event_batch_reserve_hashes(out, 1));
    if (!last || last->kind != KVB_EVENT_REMOVED ||
        last->hash_count >= kvb_max_shown_event_blocks) {
        const struct kvb_engine_event event = { .kind = KVB_EVENT_REMOVED,
                                                .tier = KVB_TIER_DEVICE,
                                                .has_group = true,
                                                .hash_at = (uint32_t)out->hash_count };
        KVB_TRY(add_shown_event(out, &event));
    }
    add_shown_hash(out, node->hash);
    return KVB_OK;
}

/* ---- Changes ---- */

void kvb_block_tree_hide(struct kvb_block_tree *tree, bool is_hidden)
{
    if (tree->is_hidden == is_hidden) {
        return;
    }
    tree->is_hidden = is_hidden;
    for (size_t id = 0; id < tree->node_end; id++) {
        if (tree->nodes[id].is_used) {
            queue_node(tree, (uint32_t)id);
        }
    }
}

static bool is_wanted(const struct kvb_block_tree *tree, const struct tree_node *node)
{
    return node->content == content_showable && !tree->is_hidden && is_on_device(node) &&
           (node->parent == KVB_NO_ID || tree->nodes[node->parent].is_shown);
}

static kvb_status
write_difference(struct kvb_block_tree *tree, uint32_t id, struct kvb_event_batch *out)
{
    struct tree_node *node = &tree->nodes[id];
    const bool shows = is_wanted(tree, node);

    if (shows == node->is_shown) {
        return KVB_OK;
    }
    node->is_shown = shows;
    tree->passing = node->first_child;
    if (!shows) {
        tree->counts.shown--;
        return write_shown_removed(node, out);
    }
    tree->counts.shown++;
    return write_shown_stored(tree, id, out);
}

static kvb_status take_change(struct kvb_block_tree *tree, struct kvb_event_batch *out)
{
    const uint32_t id = tree->first_changed;
    struct tree_node *node = &tree->nodes[id];

    tree->first_changed = node->next_changed;
    if (tree->first_changed == KVB_NO_ID) {
        tree->last_changed = KVB_NO_ID;
    }
    node->is_changed = false;
    const kvb_status status = write_difference(tree, id, out);
    if (!node->held && !node->is_shown && node->first_child == KVB_NO_ID) {
        drop_node(tree, id);
    }
    return status;
}

/* Queues the next child of a block that was shown or removed. */
static void queue_next_child(struct kvb_block_tree *tree)
{
    const uint32_t child = tree->passing;

    tree->passing = tree->nodes[child].next;
    queue_node(tree, child);
}

bool kvb_block_tree_has_changes(const struct kvb_block_tree *tree)
{
    return tree->is_cleared || tree->first_changed != KVB_NO_ID || tree->passing != KVB_NO_ID;
}

kvb_status kvb_block_tree_take_changes(
    struct kvb_block_tree *tree, size_t max_blocks, size_t max_looks, struct kvb_event_batch *out)
{
    assert(!tree->is_walking);
    if (tree->is_cleared) {
        KVB_TRY(add_shown_event(
            out, &(struct kvb_engine_event){ .kind = KVB_EVENT_CLEARED, .all_tiers = true }));
        tree->is_cleared = false;
    }
    for (size_t i = 0; i < max_looks && out->hash_count < max_blocks; i++) {
        if (tree->passing != KVB_NO_ID) {
            queue_next_child(tree);
        } else if (tree->first_changed != KVB_NO_ID) {
            KVB_TRY(take_change(tree, out));
        } else {
            break;
        }
    }
    return KVB_OK;
}

/* ---- Snapshots ---- */

/* Writes the nodes from `first` up to but without `end`; each is the first child of the one before.
 */
static kvb_status write_run(
    const struct kvb_block_tree *tree, uint32_t first, uint32_t end, struct kvb_event_batch *out)
{
    for (uint32_t id = first; id != end; id = tree->nodes[id].first_child) {
        KVB_TRY(write_shown_stored(tree, id, out));
    }
    return KVB_OK;
}

/* Finds the end of the run that begins at `first`, of max_blocks at most; *out_end is the node
 * after it. */
static void measure_run(
    const struct kvb_block_tree *tree, uint32_t first, size_t max_blocks, size_t *out_blocks,
    uint32_t *out_end)
{
    uint32_t id = first;

    *out_blocks = 0;
    do {
        ++*out_blocks;
        id = tree->nodes[id].first_child;
    } while (id != KVB_NO_ID && tree->nodes[id].is_shown && *out_blocks < max_blocks);
    *out_end = id;
}

/* The last node of a run. */
static uint32_t last_of_run(const struct kvb_block_tree *tree, uint32_t first, size_t looks)
{
    for (; looks > 1; looks--) {
        first = tree->nodes[first].first_child;
    }
    return first;
}

/* Writes the run that begins at walk_at; *out_looks: how many nodes were looked at. */
static kvb_status show_run(
    struct kvb_block_tree *tree, size_t max_blocks, size_t max_looks, struct kvb_event_batch *out,
    size_t *out_looks)
{
    const uint32_t first = tree->walk_at;
    uint32_t end = KVB_NO_ID;

    *out_looks = 1;
    if (!tree->nodes[first].is_shown) {
        tree->walk_at = skip_subtree(tree, first);
        return KVB_OK;
    }
    measure_run(tree, first, max_blocks < max_looks ? max_blocks : max_looks, out_looks, &end);
    KVB_TRY(write_run(tree, first, end, out));
    tree->walk_at =
        end != KVB_NO_ID ? end : skip_subtree(tree, last_of_run(tree, first, *out_looks));
    return KVB_OK;
}

void kvb_block_tree_walk_begin(struct kvb_block_tree *tree)
{
    tree->is_walking = true;
    tree->is_walk_void = false;
    tree->walk_at = tree->first_root;
}

void kvb_block_tree_walk_end(struct kvb_block_tree *tree)
{
    tree->is_walking = false;
    tree->walk_at = KVB_NO_ID;
}

kvb_status kvb_block_tree_walk(
    struct kvb_block_tree *tree, size_t max_blocks, size_t max_looks, struct kvb_event_batch *out,
    bool *out_is_done)
{
    const size_t end = out->hash_count + max_blocks;
    size_t looks = 0;

    if (tree->is_walk_void) {
        return KVB_CLOSED;
    }
    for (; tree->walk_at != KVB_NO_ID && out->hash_count < end && max_looks > 0;
         max_looks -= looks) {
        KVB_TRY(show_run(tree, end - out->hash_count, max_looks, out, &looks));
    }
    *out_is_done = tree->walk_at == KVB_NO_ID;
    return KVB_OK;
}
