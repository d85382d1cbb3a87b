#pragma once

#include "index/holder_set.h"
#include "index/line_table.h"
#include "index/prefix_compare.h"
#include "index/prefix_extent.h"
#include "index/prefix_forest.h"
#include "index/prefix_index.h"

/* The inside of a prefix index, for the prefix_*.c files alone.
 *
 *     node      one block of content: (parent node, tokens_hash)
 *     extent    up to 16 nodes, each the child of the one before (prefix_extent.h)
 *     holder    a number for one life of a slot: from its first block to its clearing
 *     word      what a slot calls a node
 *
 * A node's number is extent * 16 + offset; node 0 is ROOT, and extent 0 is kept for it.
 * A node lives while somebody holds it or something hangs below it; one that nobody holds
 * is a ghost.  Nodes come and go at an extent's end only.
 *
 * Words are plain, paged or odd.  Most slots call a node what its first holder called it: the
 * name that stands in the extent, and by which `names` finds it.  A slot that is in the
 * node's set holds it by that name, below a parent that it calls by that parent's own
 * name, and this plain word takes no memory beside the set.  One node of an extent may say
 * what its parent is called instead: where a slot with names of its own went on from what
 * others hold too, a seam.  Slots that have names of their
 * own write them down extent by extent, in pages (prefix_pages.c); every other word, a
 * second one for a node before all, is odd.  On one node a slot has one plain word, or one
 * paged one, or one or more odd ones.
 *
 * A holder that is cleared is struck from the answers at once (`live`), and from the
 * extents step by step (prefix_sweep.c); its slot goes on with another number.  Each
 * holder remembers the extents in which it may hold something, so that clearing it,
 * walking it and listing it cost what it holds, whatever the others do.
 *
 * Orphans wait in a forest of their own (prefix_forest.h). */

#define KVB_NONE UINT32_MAX

enum {
    kvb_extent_group = 16, /* extents that are drawn and given back together */
    kvb_root_node = 0,
    kvb_words_a_node = 16,  /* paged and odd words that there may be, on average */
    kvb_pages_a_node = 4,   /* pages */
    kvb_swept_a_change = 4, /* extents, while cleared holders are left in them */
};

/* The rest of a node's children where 16 bits do not count them. */
struct prefix_crowd {
    uint32_t node;
    uint32_t more; /* than 65535 */
};

struct prefix_word {
    kvb_block_hash block;
    kvb_block_hash parent_block; /* as the slot called it; not of prompts' beginnings */
    uint32_t holder;
    uint32_t node;
    uint32_t next; /* of the same holder on the same node; free list */
    uint32_t unused;
};

/* All of a holder's paged words for an extent.  A paged word's number is KVB_PAGED, page *
 * 16 and its node's offset. */
struct prefix_page {
    uint32_t holder;
    uint32_t extent;                  /* free list too */
    uint16_t stand;                   /* bit o: a word for node o */
    uint16_t aside;                   /* bit o: which words_by_name finds, not `names` */
    uint64_t parent_name;             /* of the first node's parent, if that word stands */
    uint64_t names[kvb_extent_nodes]; /* of words that stand, and of their parents */
};

#define KVB_PAGED (UINT32_C(1) << 31)

struct prefix_holder {
    uint32_t next_free;
    uint32_t *extents; /* owned: where it may hold something, repeats allowed */
    size_t extent_count, extent_capacity;
    uint64_t pass; /* that takes repeats out of them; 0: none has come half way */
    size_t kept, checked;
    size_t kept_before; /* by the last pass */
    size_t aside_words; /* that words_by_name finds */
};

struct prefix_slot {
    bool is_used;
    uint32_t holder; /* KVB_NONE: it holds nothing in the tree */
    uint32_t next_free;
    size_t blocks;         /* words, orphans among them */
    size_t odd_words;      /* of them, and paged ones */
    uint32_t last_stored;  /* guess: the node of the last block that was stored */
    uint32_t next_removed; /* guess: the one before the last that was removed */
    struct kvb_forest_owner orphans;
};

struct kvb_prefix_index {
    struct kvb_prefix_index_options options;
    const struct kvb_prefix_compare *compare;

    struct kvb_region extents;
    struct kvb_region groups; /* of struct prefix_group, 16 extents each */
    uint32_t group_end;
    uint32_t group_free;         /* 1 + number; 0: none */
    uint32_t group_open;         /* which extents are drawn from */
    uint32_t open_at;            /* the next one in it, 16: none is left */
    uint32_t hole_at;            /* where the search for holes goes on */
    size_t extent_count;         /* in use */
    struct kvb_line_table names; /* block hash -> node, paged words of that name */
    struct kvb_line_table edges; /* (parent node, tokens_hash) -> extent */
    struct prefix_crowd *crowds; /* owned */
    size_t crowd_count, crowd_capacity;

    struct kvb_holder_sets sets;
    struct prefix_holder *holders; /* owned */
    size_t holder_capacity;
    uint32_t *slot_of; /* owned: each holder's slot, close together for answers */
    size_t slot_of_capacity;
    uint32_t holder_end, holder_free, dying; /* 1 + number of the last; 0: none */
    uint64_t pass_count;
    uint32_t passing;                     /* 1 + the holder whose list is passed through; 0: none */
    uint64_t live[kvb_most_holders / 64]; /* bit h: h is not dying */

    struct kvb_region words;
    uint32_t word_end, word_free;
    size_t word_count;                    /* odd and paged */
    struct kvb_line_table words_by_name;  /* (holder, block hash) -> word that `names` has not */
    struct kvb_line_table words_by_place; /* (holder, node) -> its first odd word;
                                             (holder, extent) -> page */
    struct kvb_region pages;
    uint32_t page_end, page_free;
    uint32_t page_last; /* guess: the page of the next word; 0: none */

    struct prefix_slot *slots; /* owned */
    size_t slot_capacity;
    size_t slot_end;
    uint32_t free_slot;

    struct kvb_forest forest;

    struct kvb_set_leaf alive[kvb_most_leaves]; /* scratch of a query */

    struct kvb_index_counters counters;
};

struct prefix_group {
    uint16_t used; /* bit i: extent i of it is in use */
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

/* Not of ROOT. */
static inline uint32_t kvb_prefix_parent(const struct kvb_prefix_index *index, uint32_t node)
{
    return kvb_prefix_offset(node) > 0 ? node - 1 : kvb_prefix_extent_of(index, node)->parent;
}

static inline uint64_t kvb_prefix_name(const struct kvb_prefix_index *index, uint32_t node)
{
    return kvb_prefix_extent_of(index, node)->names[kvb_prefix_offset(node)];
}

/* What a slot that calls the node by its own name calls its parent, which is not ROOT. */
static inline uint64_t kvb_prefix_usual_parent(const struct kvb_prefix_index *index, uint32_t node)
{
    const struct prefix_extent *here = kvb_prefix_extent_of(index, node);

    return here->seam == kvb_prefix_offset(node)
               ? here->seam_parent
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
    return kvb_line_mix(name ^ index->options.hash_key);
}

/* Asks for those lines of the extent that a store behind this node needs. */
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

/* That a removal of this node needs, and of those before it up to the extent's begin. */
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
        __builtin_prefetch(extent->tokens); /* the first names its edge */
    }
}

static inline uint64_t
kvb_prefix_word_hash(const struct kvb_prefix_index *index, uint32_t holder, kvb_block_hash block)
{
    const uint64_t of_holder = (holder + UINT64_C(1)) * UINT64_C(0x9e3779b97f4a7c15);
    return kvb_line_mix((block.value ^ index->options.hash_key) + of_holder);
}

/* The names of a run, one after the other.  Their lines of the table are fetched so many
 * blocks before they are needed, one with each block that is done: more at once than the
 * core can have under way would wait.  What was computed for it is kept until then. */
enum { kvb_prefix_ahead = 16 };

struct prefix_names {
    const kvb_block_hash *blocks; /* borrowed */
    size_t count, at;
    uint32_t holder;                   /* KVB_NONE: all words of the slot are plain */
    bool has_aside;                    /* some are found by words_by_name */
    uint64_t hashes[kvb_prefix_ahead]; /* of blocks[at] and those behind it, in a ring */
};

[[gnu::always_inline]] static inline void
kvb_prefix_names_fetch(const struct kvb_prefix_index *index, struct prefix_names *names, size_t i)
{
    if (i < names->count) {
        const uint64_t hash = kvb_prefix_name_hash(index, names->blocks[i].value);
        names->hashes[i % kvb_prefix_ahead] = hash;
        kvb_line_table_prefetch(&index->names, hash);
        if (names->has_aside) {
            kvb_line_table_prefetch(
                &index->words_by_name,
                kvb_prefix_word_hash(index, names->holder, names->blocks[i]));
        }
    }
}

/* Field by field: the ring is large, and begins empty. */
static inline void kvb_prefix_names_init(
    struct prefix_names *names, const struct kvb_prefix_index *index, uint32_t slot,
    const kvb_block_hash *blocks, size_t count)
{
    const struct prefix_slot *here = &index->slots[slot];
    const bool is_plain = here->odd_words == 0;

    names->blocks = blocks;
    names->count = count;
    names->at = 0;
    names->holder = is_plain ? KVB_NONE : here->holder;
    names->has_aside = !is_plain && index->holders[here->holder].aside_words > 0;
}

[[gnu::always_inline]] static inline void
kvb_prefix_names_begin(const struct kvb_prefix_index *index, struct prefix_names *names)
{
    for (size_t i = 0; i < kvb_prefix_ahead && i < names->count; i++) {
        kvb_prefix_names_fetch(index, names, i);
    }
}

/* Of the next block. */
static inline uint64_t kvb_prefix_names_hash(const struct prefix_names *names)
{
    return names->hashes[names->at % kvb_prefix_ahead];
}

/* On to the one behind it. */
[[gnu::always_inline]] static inline void
kvb_prefix_names_next(const struct kvb_prefix_index *index, struct prefix_names *names)
{
    kvb_prefix_names_fetch(index, names, names->at + kvb_prefix_ahead);
    names->at++;
}

static inline uint64_t
kvb_prefix_edge_hash(const struct kvb_prefix_index *index, uint32_t parent, uint64_t tokens)
{
    const uint64_t of_parent = (parent + UINT64_C(1)) * UINT64_C(0x9e3779b97f4a7c15);
    return kvb_line_mix((tokens ^ index->options.hash_key) + of_parent);
}

/* ---- prefix_extent.c: nodes ---- */

kvb_status kvb_prefix_tree_open(struct kvb_prefix_index *index);
void kvb_prefix_tree_close(struct kvb_prefix_index *index);

/* The child of `node` with this content, or KVB_NONE. */
uint32_t kvb_prefix_child(const struct kvb_prefix_index *index, uint32_t node, uint64_t tokens);

/* A new child, a ghost as yet; there was none with this content.  is_named: no other node
 * is found by this name (kvb_prefix_named()), so this one will be.
 * KVB_TOO_LARGE, KVB_NO_MEMORY */
kvb_status kvb_prefix_child_new(
    struct kvb_prefix_index *index, uint32_t node, uint64_t tokens, uint64_t name, bool is_named,
    uint32_t *out_child);

/* The next child that is made of `node` may be a seam. */
bool kvb_prefix_may_seam(const struct kvb_prefix_index *index, uint32_t node);

/* At most `most` new nodes behind `node`, the last of its extent, each the child of the one
 * before, with the run's next names and this set of one holder.  Returns how many: fewer
 * where the extent ends, where a name leads to another node already, or for want of
 * memory. */
uint32_t kvb_prefix_append(
    struct kvb_prefix_index *index, uint32_t node, struct prefix_names *names,
    const kvb_tokens_hash *tokens, size_t most, kvb_set_id set);

/* What `names` finds by a name. */
struct prefix_called {
    uint32_t node;   /* that has this name, or KVB_NONE */
    uint32_t word;   /* the holder's paged one, or KVB_NONE */
    uint32_t others; /* paged words of other holders' */
};

struct prefix_called
kvb_prefix_called(const struct kvb_prefix_index *index, uint32_t holder, uint64_t name);

/* The node that has this name, or KVB_NONE. */
uint32_t kvb_prefix_named(const struct kvb_prefix_index *index, uint64_t name);

/* The other way round: from `node` up, if it is the last of its extent, as long as the nodes
 * have the run's next names, this set of one holder, and nothing below them.  Returns how
 * many went, and with them what nobody needed any more.  *out_above: what the uppermost was
 * a child of; unchanged where none went. */
uint32_t kvb_prefix_pop(
    struct kvb_prefix_index *index, uint32_t node, struct prefix_names *names, kvb_set_id set,
    uint32_t *out_above);

/* Frees the node if nothing needs it any more, and so on up. */
void kvb_prefix_trim(struct kvb_prefix_index *index, uint32_t node);

/* ---- prefix_holders.c ---- */

void kvb_prefix_holders_close(struct kvb_prefix_index *index);
size_t kvb_prefix_holders_bytes(const struct kvb_prefix_index *index);

/* The slot's holder number, drawn when it has none.  KVB_TOO_LARGE, KVB_NO_MEMORY. */
kvb_status kvb_prefix_holder_of(struct kvb_prefix_index *index, uint32_t slot);

/* The holder of this number may hold something in this extent from now on.  KVB_NO_MEMORY. */
kvb_status kvb_prefix_note_extent(struct kvb_prefix_index *index, uint32_t number, uint32_t extent);

/* No pass goes on through the holder's list. */
void kvb_prefix_pass_leave(struct kvb_prefix_index *index, uint32_t number);

/* Leaves each extent in which it holds something in its list once.  Cost: the list. */
void kvb_prefix_tidy_extents(struct kvb_prefix_index *index, uint32_t number);

/* The last of its extents; false: there are none.  To take it out, count one less. */
bool kvb_prefix_last_extent(struct prefix_holder *holder, uint32_t *out_extent);

/* ---- prefix_words.c: who holds what ---- */

struct prefix_found {
    enum { found_none, found_orphan, found_plain, found_paged, found_odd } kind;
    uint32_t node; /* of the tree or of the forest */
    uint32_t id;   /* paged, odd: word; orphan: member */
};

static inline bool kvb_prefix_is_in_tree(const struct prefix_found *found)
{
    return found->kind >= found_plain;
}

kvb_status kvb_prefix_words_open(struct kvb_prefix_index *index);

/* Odd and paged ones that there may be. */
size_t kvb_prefix_most_words(const struct kvb_prefix_index *index);
void kvb_prefix_words_close(struct kvb_prefix_index *index);

/* The same where a node is guessed: no look-up in a table of names.  found_none when the
 * slot does not call it so. */
struct prefix_found kvb_prefix_guess(
    const struct kvb_prefix_index *index, uint32_t slot, uint32_t node, kvb_block_hash block);

/* What the slot calls so. */
struct prefix_found
kvb_prefix_find(const struct kvb_prefix_index *index, uint32_t slot, kvb_block_hash block);

/* The slot, which has no word of this name, gets one for `node`, below the parent of that
 * name.  KVB_TOO_LARGE, KVB_NO_MEMORY: nothing changed. */
kvb_status kvb_prefix_word_make(
    struct kvb_prefix_index *index, uint32_t slot, kvb_block_hash block, uint32_t node,
    kvb_block_hash parent_block);

/* The slot's word for the node it already stands for was stored again, below the parent of
 * that name. */
kvb_status kvb_prefix_word_again(
    struct kvb_prefix_index *index, uint32_t slot, const struct prefix_found *found,
    kvb_block_hash parent_block);

/* Forgets the word; its node is not trimmed.  KVB_NO_MEMORY, KVB_TOO_LARGE: no room for
 * what would be left, nothing changed. */
kvb_status kvb_prefix_word_drop(
    struct kvb_prefix_index *index, uint32_t slot, const struct prefix_found *found);

bool kvb_prefix_has_room_for_word(const struct kvb_prefix_index *index);

/* The holder's word of this name in words_by_name, or KVB_NONE: odd, or one of many paged
 * words of the same name. */
uint32_t
kvb_prefix_aside_word(const struct kvb_prefix_index *index, uint32_t holder, kvb_block_hash block);

/* The holder has odd or paged words for the node; if it holds it, the word is plain else. */
bool kvb_prefix_is_unusual(const struct kvb_prefix_index *index, uint32_t holder, uint32_t node);

/* The holder's first odd word for the node, or KVB_NONE. */
uint32_t kvb_prefix_odd_words(const struct kvb_prefix_index *index, uint32_t holder, uint32_t node);

static inline struct prefix_word *
kvb_prefix_word(const struct kvb_prefix_index *index, uint32_t word)
{
    return (struct prefix_word *)(void *)index->words.base + word;
}

/* Forgets all odd words of the holder for the node. */
void kvb_prefix_odd_words_drop(struct kvb_prefix_index *index, uint32_t holder, uint32_t node);

/* Node `node` gets the set; ghosts are counted. */
static inline void
kvb_prefix_put_set(struct kvb_prefix_index *index, kvb_set_id *at, kvb_set_id set)
{
    index->counters.ghosts += (uint64_t)(set == 0) - (uint64_t)(*at == 0);
    *at = set;
}

/* All its words are plain. */
static inline bool kvb_prefix_is_simple(const struct kvb_prefix_index *index, uint32_t slot)
{
    const struct prefix_slot *here = &index->slots[slot];
    return here->odd_words == 0 && here->orphans.count == 0 && here->holder != KVB_NONE;
}

/* Whether the block is `node`, a guess, to a holder that is simple. */
static inline bool kvb_prefix_is_plain(
    const struct kvb_prefix_index *index, uint32_t holder, uint32_t node, kvb_block_hash block)
{
    const struct prefix_extent *here = kvb_prefix_extent_of(index, node);
    const uint32_t at = kvb_prefix_offset(node);

    return at < here->len && here->names[at] == block.value && here->named >> at & 1 &&
           kvb_set_has(&index->sets, here->sets[at], holder);
}

/* ---- prefix_pages.c: names of a slot's own ---- */

kvb_status kvb_prefix_pages_open(struct kvb_prefix_index *index);

static inline bool kvb_prefix_id_is_paged(uint32_t word)
{
    return (word & KVB_PAGED) != 0;
}

static inline struct prefix_page *
kvb_prefix_page_at(const struct kvb_prefix_index *index, uint32_t page)
{
    return (struct prefix_page *)(void *)index->pages.base + page;
}

/* Of a paged word. */
static inline struct prefix_page *
kvb_prefix_page(const struct kvb_prefix_index *index, uint32_t word)
{
    return kvb_prefix_page_at(index, (word & ~KVB_PAGED) / kvb_extent_nodes);
}

static inline uint64_t kvb_prefix_page_hash(uint32_t holder, uint32_t extent)
{
    return kvb_line_mix(~((uint64_t)holder << 32 | extent));
}

/* The holder's page for the extent, by its first word's number, or KVB_NONE. */
uint32_t kvb_prefix_page_of(const struct kvb_prefix_index *index, uint32_t holder, uint32_t extent);

/* The holder's paged word for the node, or KVB_NONE. */
uint32_t
kvb_prefix_paged_word(const struct kvb_prefix_index *index, uint32_t holder, uint32_t node);

/* What the slot called the parent of a paged word's node. */
kvb_block_hash kvb_prefix_paged_parent(const struct kvb_prefix_index *index, uint32_t id);

/* A paged word for a node of which the holder has none.
 * KVB_NOT_FOUND   it does not fit beside those that stand: make it an odd one
 * KVB_TOO_LARGE, KVB_NO_MEMORY   nothing changed on either */
kvb_status kvb_prefix_page_put(
    struct kvb_prefix_index *index, uint32_t holder, kvb_block_hash block, uint32_t node,
    kvb_block_hash parent_block);

/* Its node is still in the set, or was not yet. */
void kvb_prefix_page_take(struct kvb_prefix_index *index, uint32_t id);

/* All paged words of the holder for the extent. */
void kvb_prefix_page_drop(struct kvb_prefix_index *index, uint32_t holder, uint32_t extent);

/* ---- prefix_sweep.c ---- */

/* The slot's holder is struck from all answers; the slot has none any more. */
void kvb_prefix_holder_strike(struct kvb_prefix_index *index, uint32_t slot);

/* ---- prefix_store.c, prefix_orphans.c ---- */

/* A run, whose names have begun, below a node that the slot holds, or ROOT.  As
 * kvb_prefix_index_store(), which has set out_changed to 0. */
kvb_status kvb_prefix_store_in_tree(
    struct kvb_prefix_index *index, uint32_t slot, uint32_t node, const struct kvb_index_run *run,
    struct prefix_names *names, uint8_t *out_changed);

/* A run below an orphan, or below a name that the slot does not use. */
kvb_status kvb_prefix_store_orphans(
    struct kvb_prefix_index *index, uint32_t slot, const struct prefix_found *parent,
    const struct kvb_index_run *run, uint8_t *out_changed);

/* The runs that waited for this name of the slot's move below `node`.  What finds no room
 * waits on.  KVB_TOO_LARGE, KVB_NO_MEMORY. */
kvb_status
kvb_prefix_join(struct kvb_prefix_index *index, uint32_t slot, kvb_block_hash block, uint32_t node);
