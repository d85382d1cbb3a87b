#pragma once

#include "core/hash.h"
#include "core/line_table.h"
#include "index/compare.h"
#include "index/extent.h"
#include "index/forest.h"
#include "index/holder_set.h"
#include "index/index.h"

/* The internals of a prefix index.  Only the files of this folder include this header.
 *
 *     node      one block of content: (parent node, tokens_hash)
 *     extent    up to 16 nodes, each the child of the one before (index/extent.h)
 *     holder    the number of a slot from its first block until it is cleared
 *     word      a name that a slot uses for a node
 *
 * A node's number is extent * 16 + offset.  Node 0 is ROOT, and extent 0 is reserved for it.  A
 * node is kept while it has holders or children.  A node without holders is a ghost.  Nodes are
 * added and removed only at the end of an extent.
 *
 * There are three kinds of words:
 *
 *     canonical name   the name that the node's first holder gave it.  It is stored in the extent
 *                      and in the table `names`.  Most slots use it.
 *     word in a page   a name of one slot.  A page has the names of one slot for the nodes of one
 *                      extent (index/pages.c).
 *     overflow alias   every other word, in most cases a slot's second word for a node.
 *
 * For one node a slot has either the canonical name, or one word in a page, or one or more overflow
 * aliases.  A slot that is in the node's set and has no word of another kind for the node uses the
 * canonical names of the node and of its parent.  Such a word takes no memory besides the set.
 *
 * One node of an extent may have a parent override: another name for the node's parent.  It is
 * needed where a slot with its own names continues a prefix that other slots hold too.
 *
 * A holder is retired when its slot is cleared.  Queries leave it out from then on (`live`), and
 * the slot gets another holder.  Incremental reclaim removes the retired holder from the extents
 * (index/reclaim.c).  Each holder has a list of the extents in which it may hold something.  So
 * reclaiming, walking and listing a holder cost time in proportion to what it holds.
 *
 * Orphans are kept in a separate forest (index/forest.h). */

#define KVB_NONE UINT32_MAX

enum {
    kvb_extent_group = 16, /* extents that are allocated and reused together */
    kvb_root_node = 0,
    kvb_words_a_node = 16,  /* limit of words in pages and aliases: average per node */
    kvb_pages_a_node = 4,   /* limit of pages: average per node */
    kvb_swept_a_change = 4, /* extents to reclaim with each change of the index */
    kvb_orphan_nodes = 3,   /* an orphan takes as much memory as so many nodes */
    kvb_prefix_short = 4,   /* a run of at most so many blocks: most are new, one by one */
};

/* Child-count overflow: counts a node's children beyond the 16 bits in its extent. */
struct prefix_child_overflow {
    uint32_t node;
    uint32_t more; /* children beyond 65535 */
};

struct prefix_word {
    kvb_block_hash block;
    kvb_block_hash parent_block; /* the slot's name for it; unused below ROOT */
    uint32_t holder;
    uint32_t node;
    uint32_t next;     /* next alias of this holder and node; or the next free word */
    uint32_t previous; /* KVB_NONE: the first alias; words_by_place contains it */
};

/* A holder's own names for the nodes of an extent.  The number of a word in a page is
 * KVB_IN_PAGE | page * 16 + the node's offset. */
struct prefix_page {
    uint32_t holder;
    uint32_t extent;                  /* in a free page: the next free page */
    uint16_t stand;                   /* bit o: there is a word for node o */
    uint16_t private_names;           /* bit o: words_by_name has that word, `names` has not */
    uint64_t parent_name;             /* name of the parent of node 0, if node 0 has a word */
    uint64_t names[kvb_extent_nodes]; /* the words in `stand`, and the names of their parents */
};

#define KVB_IN_PAGE (UINT32_C(1) << 31)

struct prefix_holder {
    uint32_t next_free;
    uint32_t *extents; /* owned: those in which it may hold something; may have duplicates */
    size_t extent_count, extent_capacity;
    uint64_t pass; /* number of the active pass over the list; 0: none */
    size_t kept, checked;
    size_t kept_before;   /* length of the list after the last pass */
    size_t private_words; /* words that are in words_by_name */
};

struct prefix_slot {
    bool is_used;
    uint32_t holder; /* KVB_NONE: the slot holds nothing in the tree */
    uint32_t next_free;
    size_t blocks;         /* number of words, orphans included */
    size_t own_words;      /* words in pages, and aliases */
    uint32_t last_stored;  /* hint: the node of the last block stored */
    uint32_t next_removed; /* hint: the parent of the node removed last */
    struct kvb_forest_owner orphans;
};

struct kvb_prefix_index {
    struct kvb_prefix_index_options options;
    struct kvb_hash_key key; /* for all tables */
    const struct kvb_prefix_compare *compare;

    struct kvb_region extents;
    struct kvb_region groups; /* struct prefix_group, one for each 16 extents */
    uint32_t group_end;
    uint32_t group_free;         /* 1 + number of the first free group; 0: none */
    uint32_t group_open;         /* the group that extents are allocated from */
    uint32_t open_at;            /* the next extent to allocate in it; 16: none is left */
    uint32_t hole_at;            /* where the search for holes continues */
    size_t extent_count;         /* in use */
    struct kvb_line_table names; /* block hash -> node, and words in pages of that name */
    struct kvb_line_table edges; /* (parent node, tokens_hash) -> extent */
    struct prefix_child_overflow *child_overflows; /* owned */
    size_t child_overflow_count, child_overflow_capacity;

    struct kvb_holder_sets sets;
    struct prefix_holder *holders; /* owned */
    size_t holder_capacity;
    uint32_t *slot_of; /* owned: the slot of each holder; answers borrow this compact array */
    size_t slot_of_capacity;
    uint32_t holder_end, holder_free, dying; /* holder_free, dying: 1 + first of a list; 0: none */
    uint64_t pass_count;
    uint32_t passing;                    /* 1 + the holder with the active pass; 0: none */
    uint64_t live[kvb_max_holders / 64]; /* bit h: holder h is not retired */

    struct kvb_region words;
    uint32_t word_end, word_free;
    size_t word_count;                    /* aliases and words in pages */
    struct kvb_line_table words_by_name;  /* (holder, block hash) -> word not in `names` */
    struct kvb_line_table words_by_place; /* (holder, node) -> its first alias;
                                             (holder, extent) -> page */
    struct kvb_region pages;
    uint32_t page_end, page_free;
    uint32_t page_last; /* hint: the page of the next word; 0: none */

    struct prefix_slot *slots; /* owned */
    size_t slot_capacity;
    size_t slot_end;
    uint32_t free_slot;

    struct kvb_forest forest;

    struct kvb_set_leaf alive[kvb_max_leaves]; /* scratch memory of queries */

    struct kvb_index_counters counters;
};

struct prefix_group {
    uint16_t used; /* bit i: extent i of the group is in use */
    uint16_t unused;
    uint32_t next_free;
};

static inline struct prefix_extent *
kvb_prefix_extent(const struct kvb_prefix_index *index, uint32_t extent)
{
    return (struct prefix_extent *)(void *)index->extents.base + extent;
}

static inline struct prefix_extent *
kvb_prefix_extent_of(const struct kvb_prefix_index *index, uint32_t node)
{
    return kvb_prefix_extent(index, node / kvb_extent_nodes);
}

static inline uint32_t kvb_prefix_offset(uint32_t node)
{
    return node % kvb_extent_nodes;
}

static inline kvb_set_id *kvb_prefix_set(const struct kvb_prefix_index *index, uint32_t node)
{
    return &kvb_prefix_extent_of(index, node)->sets[kvb_prefix_offset(node)];
}

/* The node's parent.  `node` is not ROOT. */
static inline uint32_t kvb_prefix_parent(const struct kvb_prefix_index *index, uint32_t node)
{
    return kvb_prefix_offset(node) > 0 ? node - 1 : kvb_prefix_extent_of(index, node)->parent;
}

static inline uint64_t kvb_prefix_name(const struct kvb_prefix_index *index, uint32_t node)
{
    return kvb_prefix_extent_of(index, node)->names[kvb_prefix_offset(node)];
}

/* Returns the parent's name that the canonical name of the node implies: the parent override if
 * the node has one, else the canonical name of the parent.  The parent must not be ROOT. */
static inline uint64_t kvb_prefix_usual_parent(const struct kvb_prefix_index *index, uint32_t node)
{
    const struct prefix_extent *here = kvb_prefix_extent_of(index, node);

    return here->override_at == kvb_prefix_offset(node)
               ? here->parent_override_parent
               : kvb_prefix_name(index, kvb_prefix_parent(index, node));
}

static inline uint64_t kvb_prefix_tokens(const struct kvb_prefix_index *index, uint32_t node)
{
    return kvb_prefix_extent_of(index, node)->tokens[kvb_prefix_offset(node)];
}

static inline bool
kvb_prefix_holds(const struct kvb_prefix_index *index, uint32_t holder, uint32_t node)
{
    return kvb_set_has(&index->sets, *kvb_prefix_set(index, node), holder);
}

static inline uint64_t kvb_prefix_name_hash(const struct kvb_prefix_index *index, uint64_t name)
{
    return kvb_hash_keyed(&index->key, name, 0);
}

/* Prefetches the cache lines of the extent that storing a child of this node needs. */
[[gnu::always_inline]] static inline void
kvb_prefix_fetch_stored(const struct kvb_prefix_index *index, uint32_t node)
{
    const struct prefix_extent *extent = kvb_prefix_extent_of(index, node);
    const uint32_t at = kvb_prefix_offset(node);

    __builtin_prefetch(extent, 1);
    __builtin_prefetch(&extent->tokens[at], 1);
    __builtin_prefetch(&extent->sets[at], 1);
    __builtin_prefetch(&extent->names[at], 1);
}

/* Returns how many new nodes max_nodes still allows. */
static inline size_t kvb_prefix_room(const struct kvb_prefix_index *index)
{
    const size_t nodes = index->counters.nodes + kvb_orphan_nodes * index->forest.node_count;
    return nodes < index->options.max_nodes ? index->options.max_nodes - nodes : 0;
}

/* Prefetches the cache lines of the extent that removing this node needs.  With is_whole, also
 * those for removing the nodes before it. */
[[gnu::always_inline]] static inline void
kvb_prefix_fetch_removed(const struct kvb_prefix_index *index, uint32_t node, bool is_whole)
{
    const struct prefix_extent *extent = kvb_prefix_extent_of(index, node);
    const uint32_t at = kvb_prefix_offset(node);

    __builtin_prefetch(extent, 1);
    __builtin_prefetch(&extent->sets[at], 1);
    __builtin_prefetch(&extent->names[at]);
    if (is_whole) {
        __builtin_prefetch(extent->names);
        __builtin_prefetch(extent->tokens); /* tokens[0] is part of the key in `edges` */
    }
}

static inline uint64_t
kvb_prefix_word_hash(const struct kvb_prefix_index *index, uint32_t holder, kvb_block_hash block)
{
    return kvb_hash_keyed(&index->key, block.value, holder + UINT64_C(1));
}

/* A cursor over the names of a run.  It prefetches the table line of each name kvb_prefix_ahead
 * blocks before the name is looked up: with 16, removals of a large fleet waited for memory, and
 * 64 were no faster than 32.  It prefetches one line for each block done, because a core allows
 * only a few outstanding cache misses.  It keeps the hashes until the look-up.
 *
 *     blocks   0 .. at-1 | at .. ready-1               | ready .. count-1
 *              done      | hashed, line prefetched     | not yet
 *
 * Blocks that no table is looked up for are skipped: they cost neither a hash nor a line. */
enum { kvb_prefix_ahead = 32 };

struct prefix_names {
    const kvb_block_hash *blocks; /* borrowed */
    size_t count, at, ready;
    uint32_t holder;                   /* KVB_NONE: all words of the slot are canonical names */
    bool has_private;                  /* some of the holder's words are in words_by_name */
    uint64_t hashes[kvb_prefix_ahead]; /* ring: hashes of blocks[at] and those after it */
};

[[gnu::always_inline]] static inline void
kvb_prefix_names_fetch(const struct kvb_prefix_index *index, struct prefix_names *names, size_t i)
{
    if (i < names->count) {
        const uint64_t hash = kvb_prefix_name_hash(index, names->blocks[i].value);
        names->hashes[i % kvb_prefix_ahead] = hash;
        kvb_line_table_prefetch(&index->names, hash);
        if (names->has_private) {
            kvb_line_table_prefetch(
                &index->words_by_name,
                kvb_prefix_word_hash(index, names->holder, names->blocks[i]));
        }
    }
}

/* Sets the fields one by one to leave the large ring uninitialised. */
static inline void kvb_prefix_names_init(
    struct prefix_names *names, const struct kvb_prefix_index *index, uint32_t slot,
    const kvb_block_hash *blocks, size_t count)
{
    const struct prefix_slot *here = &index->slots[slot];
    const bool is_canonical = here->own_words == 0;

    names->blocks = blocks;
    names->count = count;
    names->at = 0;
    names->ready = 0;
    names->holder = is_canonical ? KVB_NONE : here->holder;
    names->has_private = !is_canonical && index->holders[here->holder].private_words > 0;
}

/* Prefetches the lines of kvb_prefix_ahead blocks, after the next `skipped` ones, which will be
 * skipped.  It is called before the first look-up, and before the next one after a skip. */
[[gnu::always_inline]] static inline void kvb_prefix_names_begin(
    const struct kvb_prefix_index *index, struct prefix_names *names, size_t skipped)
{
    const size_t from = names->at + skipped;
    const size_t end = from + kvb_prefix_ahead;

    for (size_t i = names->ready > from ? names->ready : from; i < end && i < names->count; i++) {
        kvb_prefix_names_fetch(index, names, i);
    }
    names->ready = end;
}

/* Returns the hash of the next block's name. */
static inline uint64_t kvb_prefix_names_hash(const struct prefix_names *names)
{
    return names->hashes[names->at % kvb_prefix_ahead];
}

/* Advances to the next block, after a look-up of this one. */
[[gnu::always_inline]] static inline void
kvb_prefix_names_next(const struct kvb_prefix_index *index, struct prefix_names *names)
{
    kvb_prefix_names_fetch(index, names, names->ready++);
    names->at++;
}

static inline void kvb_prefix_names_skip(struct prefix_names *names, size_t count)
{
    names->at += count;
}

static inline uint64_t
kvb_prefix_edge_hash(const struct kvb_prefix_index *index, uint32_t parent, uint64_t tokens)
{
    return kvb_hash_keyed(&index->key, tokens, parent + UINT64_C(1));
}

/* ---- index/extent.c: nodes ---- */

kvb_status kvb_prefix_tree_open(struct kvb_prefix_index *index);
void kvb_prefix_tree_close(struct kvb_prefix_index *index);

/* Returns the limit of aliases and words in pages. */
size_t kvb_prefix_max_words(const struct kvb_prefix_index *index);

/* Returns the child of `node` with this content, or KVB_NONE. */
uint32_t kvb_prefix_child(const struct kvb_prefix_index *index, uint32_t node, uint64_t tokens);

/* Adds a child without holders.  `node` must not have a child with this content.  is_named: adds
 * the child to `names`; no other node may have this name (kvb_prefix_named()).
 * KVB_TOO_LARGE, KVB_NO_MEMORY */
kvb_status kvb_prefix_child_new(
    struct kvb_prefix_index *index, uint32_t node, uint64_t tokens, uint64_t name, bool is_named,
    uint32_t *out_child);

/* Whether the next new child of `node` may have a parent override. */
bool kvb_prefix_may_parent_override(const struct kvb_prefix_index *index, uint32_t node);

/* Appends at most `max` new nodes below `node`, which must be the last one of its extent.  Each is
 * the child of the one before.  They get the run's next names and `set`, a set of one holder.
 * Returns how many were appended.  Stops at the end of the extent, at a name that another node or a
 * word of the holder has already, or when memory is out. */
uint32_t kvb_prefix_append(
    struct kvb_prefix_index *index, uint32_t node, struct prefix_names *names,
    const kvb_tokens_hash *tokens, size_t max, kvb_set_id set);

/* The result of a look-up in `names`. */
struct prefix_called {
    uint32_t node;   /* the node with this canonical name, or KVB_NONE */
    uint32_t word;   /* the holder's word in a page, or KVB_NONE */
    uint32_t others; /* number of words in pages of other holders */
};

struct prefix_called
kvb_prefix_called(const struct kvb_prefix_index *index, uint32_t holder, uint64_t name);

/* Returns the node with this canonical name, or KVB_NONE. */
uint32_t kvb_prefix_named(const struct kvb_prefix_index *index, uint64_t name);

/* The inverse of kvb_prefix_append(): removes `node` if it is the last one of its extent, then the
 * nodes before it in the extent.  Stops at a node that has not the run's next name or not this set
 * of one holder, and at one that has children.  Returns how many were removed.  Also frees
 * ancestors that nothing needs any more.  *out_above: the parent of the uppermost removed node;
 * unchanged when none was removed. */
uint32_t kvb_prefix_pop(
    struct kvb_prefix_index *index, uint32_t node, struct prefix_names *names, kvb_set_id set,
    uint32_t *out_above);

/* Frees the node if it has neither holders nor children, then its parent likewise, and so on. */
void kvb_prefix_trim(struct kvb_prefix_index *index, uint32_t node);

/* ---- index/holders.c: the extents of holders ---- */

void kvb_prefix_holders_close(struct kvb_prefix_index *index);
size_t kvb_prefix_holders_bytes(const struct kvb_prefix_index *index);

/* Adds the extent to the holder's list before the holder gets a node in it.  KVB_NO_MEMORY. */
kvb_status kvb_prefix_note_extent(struct kvb_prefix_index *index, uint32_t number, uint32_t extent);

/* Abandons an active pass over the holder's list. */
void kvb_prefix_pass_leave(struct kvb_prefix_index *index, uint32_t number);

/* Removes duplicates from the holder's list, and extents in which it holds nothing.  The cost is
 * proportional to the length of the list. */
void kvb_prefix_tidy_extents(struct kvb_prefix_index *index, uint32_t number);

/* Reads the last extent of the holder's list.  Returns false when the list is empty.  The caller
 * decrements extent_count to remove that extent. */
bool kvb_prefix_last_extent(struct prefix_holder *holder, uint32_t *out_extent);

/* ---- index/words.c: who holds what ---- */

struct prefix_found {
    enum { found_none, found_orphan, found_canonical, found_in_page, found_overflow } kind;
    uint32_t node; /* a node of the tree; for found_orphan, of the forest */
    uint32_t id;   /* found_in_page, found_overflow: a word; found_orphan: a member */
};

static inline bool kvb_prefix_is_in_tree(const struct prefix_found *found)
{
    return found->kind >= found_canonical;
}

kvb_status kvb_prefix_words_open(struct kvb_prefix_index *index);
void kvb_prefix_words_close(struct kvb_prefix_index *index);

/* As kvb_prefix_find(), but checks only `node`, a guess, and looks up no table of names.  Returns
 * found_none when the slot does not use this name for the node. */
struct prefix_found kvb_prefix_guess(
    const struct kvb_prefix_index *index, uint32_t slot, uint32_t node, kvb_block_hash block);

/* Finds the node for which the slot uses this name. */
struct prefix_found
kvb_prefix_find(const struct kvb_prefix_index *index, uint32_t slot, kvb_block_hash block);

/* Adds a word for `node` to the slot.  The slot must not use this name yet.  parent_block is the
 * slot's name for the parent.  KVB_TOO_LARGE, KVB_NO_MEMORY: the slot's word was not added. */
kvb_status kvb_prefix_word_make(
    struct kvb_prefix_index *index, uint32_t slot, kvb_block_hash block, uint32_t node,
    kvb_block_hash parent_block);

/* Call this when the slot stores a block again.  parent_block is the parent's name this time. */
kvb_status kvb_prefix_word_again(
    struct kvb_prefix_index *index, uint32_t slot, const struct prefix_found *found,
    kvb_block_hash parent_block);

/* Removes the word.  The caller trims the node.  KVB_NO_MEMORY, KVB_TOO_LARGE: no room for the
 * changed set; nothing changed. */
kvb_status kvb_prefix_word_drop(
    struct kvb_prefix_index *index, uint32_t slot, const struct prefix_found *found);

bool kvb_prefix_has_room_for_word(const struct kvb_prefix_index *index);

/* Returns the holder's word of this name in words_by_name, or KVB_NONE.  It is an alias, or a word
 * in a page whose name too many slots use. */
uint32_t kvb_prefix_private_word(
    const struct kvb_prefix_index *index, uint32_t holder, kvb_block_hash block);

/* Whether the holder has aliases or a word in a page for the node.  A holder of the node that has
 * neither uses the canonical name. */
bool kvb_prefix_is_unusual(const struct kvb_prefix_index *index, uint32_t holder, uint32_t node);

/* Returns the holder's first alias for the node, or KVB_NONE. */
uint32_t
kvb_prefix_overflow_words(const struct kvb_prefix_index *index, uint32_t holder, uint32_t node);

static inline struct prefix_word *
kvb_prefix_word(const struct kvb_prefix_index *index, uint32_t word)
{
    return (struct prefix_word *)(void *)index->words.base + word;
}

/* Removes all aliases of the holder for the node. */
void kvb_prefix_overflow_words_drop(struct kvb_prefix_index *index, uint32_t holder, uint32_t node);

/* Replaces a node's set at *at, and updates the count of ghosts. */
static inline void
kvb_prefix_put_set(struct kvb_prefix_index *index, kvb_set_id *at, kvb_set_id set)
{
    index->counters.ghosts += (uint64_t)(set == 0) - (uint64_t)(*at == 0);
    *at = set;
}

/* Whether the slot holds something, has canonical names only, and has no orphans. */
static inline bool kvb_prefix_is_simple(const struct kvb_prefix_index *index, uint32_t slot)
{
    const struct prefix_slot *here = &index->slots[slot];
    return here->own_words == 0 && here->orphans.count == 0 && here->holder != KVB_NONE;
}

/* Whether the holder uses this name for `node`, a guess.  The holder must have only canonical
 * names. */
static inline bool kvb_prefix_is_canonical(
    const struct kvb_prefix_index *index, uint32_t holder, uint32_t node, kvb_block_hash block)
{
    const struct prefix_extent *here = kvb_prefix_extent_of(index, node);
    const uint32_t at = kvb_prefix_offset(node);

    return at < here->len && here->names[at] == block.value && here->named >> at & 1 &&
           kvb_set_has(&index->sets, here->sets[at], holder);
}

/* ---- index/pages.c: a slot's own names ---- */

kvb_status kvb_prefix_pages_open(struct kvb_prefix_index *index);

static inline bool kvb_prefix_id_is_in_page(uint32_t word)
{
    return (word & KVB_IN_PAGE) != 0;
}

static inline struct prefix_page *
kvb_prefix_page_at(const struct kvb_prefix_index *index, uint32_t page)
{
    return (struct prefix_page *)(void *)index->pages.base + page;
}

/* Returns the page that contains the word. */
static inline struct prefix_page *
kvb_prefix_page(const struct kvb_prefix_index *index, uint32_t word)
{
    return kvb_prefix_page_at(index, (word & ~KVB_IN_PAGE) / kvb_extent_nodes);
}

static inline uint64_t
kvb_prefix_page_hash(const struct kvb_prefix_index *index, uint32_t holder, uint32_t extent)
{
    return kvb_hash_keyed(&index->key, extent, ~(uint64_t)holder);
}

/* Returns the number of the first word in the holder's page for the extent, or KVB_NONE. */
uint32_t kvb_prefix_page_of(const struct kvb_prefix_index *index, uint32_t holder, uint32_t extent);

/* Returns the holder's word in a page for the node, or KVB_NONE. */
uint32_t kvb_prefix_page_word(const struct kvb_prefix_index *index, uint32_t holder, uint32_t node);

/* Returns the slot's name for the parent of the node of this word in a page. */
kvb_block_hash kvb_prefix_page_parent(const struct kvb_prefix_index *index, uint32_t id);

/* Adds a word in a page, for a node for which the holder has none.
 * KVB_NOT_FOUND   the word contradicts the words in the page; the caller makes it an alias
 * KVB_TOO_LARGE, KVB_NO_MEMORY   the word was not added */
kvb_status kvb_prefix_page_put(
    struct kvb_prefix_index *index, uint32_t holder, kvb_block_hash block, uint32_t node,
    kvb_block_hash parent_block);

/* Removes a word from its page; the node's set does not change. */
void kvb_prefix_page_take(struct kvb_prefix_index *index, uint32_t id);

/* Removes all words in the holder's page for the extent. */
void kvb_prefix_page_drop(struct kvb_prefix_index *index, uint32_t holder, uint32_t extent);

/* ---- index/reclaim.c: numbers of holders, allocated and freed ---- */

/* Allocates a holder for the slot when it has none.  KVB_TOO_LARGE, KVB_NO_MEMORY. */
kvb_status kvb_prefix_holder_of(struct kvb_prefix_index *index, uint32_t slot);

/* Retires the slot's holder.  Queries leave it out from then on, and the slot has no holder. */
void kvb_prefix_holder_retire(struct kvb_prefix_index *index, uint32_t slot);

/* ---- index/store.c, index/orphans.c ---- */

/* Stores a run below `node`, which is ROOT or a node that the slot holds.  The caller has called
 * kvb_prefix_names_init() and filled out_changed with 0.  Otherwise as
 * kvb_prefix_index_store(). */
kvb_status kvb_prefix_store_in_tree(
    struct kvb_prefix_index *index, uint32_t slot, uint32_t node, const struct kvb_index_run *run,
    struct prefix_names *names, uint8_t *out_changed);

/* Stores a run below an orphan, or below a name that the slot does not use. */
kvb_status kvb_prefix_store_orphans(
    struct kvb_prefix_index *index, uint32_t slot, const struct prefix_found *parent,
    const struct kvb_index_run *run, uint8_t *out_changed);

/* Moves the orphans below the slot's placeholder of this name into the tree, below `node`.  Orphans
 * for which there is no room stay where they are.  KVB_TOO_LARGE, KVB_NO_MEMORY. */
kvb_status
kvb_prefix_join(struct kvb_prefix_index *index, uint32_t slot, kvb_block_hash block, uint32_t node);
