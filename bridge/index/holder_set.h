#pragma once

#include "index/line_table.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Sets of holders (small numbers), each kept once.
 *
 * The holders of a block are mostly those of the block before it, so a node of the index
 * names its set by a number of 4 bytes, whatever the fleet's size, and what a run of
 * blocks does to a set is computed once.
 *
 *     id 0                  the empty set
 *     id 2^31 | h           {h}: no memory at all
 *     any other id          header | hash | mask of leaves | references |
 *                                        |
 *                       leaves of 512 bits, only those that are not empty, in order:
 *                       | leaf 0 | leaf 7 | leaf 19 |
 *
 * A set's hash is the XOR of its holders' hashes: one holder more or less is one XOR, and
 * tells where an equal set would be found.  Equal hashes are compared bit by bit.
 * A set with one reference is edited in place; other sets do not change.
 * Prompts are asked for again and again, and from one of their sets to the next mostly one
 * holder is lost: who has found that out may note it down in the second (kvb_set_note()),
 * where it stands until that one, or the first, changes.
 *
 * Threads: the caller locks.
 * Memory: 56 bytes and 64 for each leaf, some 16 in the table. */
enum {
    kvb_leaf_bits = 512,
    kvb_leaf_words = kvb_leaf_bits / 64,
    kvb_most_leaves = 128,
    kvb_most_holders = kvb_leaf_bits * kvb_most_leaves
};

typedef uint32_t kvb_set_id;

#define KVB_SET_ONE (UINT32_C(1) << 31)

struct kvb_set_leaf {
    uint64_t words[kvb_leaf_words];
};

struct kvb_holder_set {
    uint64_t hash;
    uint64_t mask[2]; /* bit l: leaf l is there */
    uint64_t stamp;   /* no other set has had it, nor this one before its last change */
    uint64_t before;  /* a note of the reader's, 0: none.  The set of this stamp ... */
    uint32_t lost;    /* ... has no holder that this one has not, but this; or no other */
    uint32_t leaves;  /* number of the first; next free header while it is free */
    uint32_t references;
    uint32_t count; /* holders, 2 or more; 0: free */
};

struct kvb_holder_sets {
    struct kvb_region headers;
    struct kvb_region leaves;
    struct kvb_line_table interned;
    uint32_t header_end, header_free;
    uint64_t last_stamp;
    uint32_t leaf_end;
    uint32_t leaf_free[kvb_most_leaves + 1]; /* groups of n, through their first word */
};

/* {0} before; at most `most` sets are made.  The sets do not move.  KVB_NO_MEMORY. */
kvb_status kvb_holder_sets_open(struct kvb_holder_sets *sets, size_t most);

/* {0} is fine. */
void kvb_holder_sets_close(struct kvb_holder_sets *sets);

/* The caller's reference to `id` becomes one to the set with, or without, the holder, who
 * was not, or was, in it.
 * KVB_TOO_LARGE, KVB_NO_MEMORY  no room for another set: the reference stays as it was */
kvb_status kvb_holder_sets_with(
    struct kvb_holder_sets *sets, kvb_set_id id, uint32_t holder, kvb_set_id *out_id);
kvb_status kvb_holder_sets_without(
    struct kvb_holder_sets *sets, kvb_set_id id, uint32_t holder, kvb_set_id *out_id);

size_t kvb_holder_sets_bytes(const struct kvb_holder_sets *sets);

/* Sets in being, one-holder sets aside. */
size_t kvb_holder_sets_count(const struct kvb_holder_sets *sets);

/* ---- Reading, on the hot path ---- */

static inline kvb_set_id kvb_set_of_one(uint32_t holder)
{
    return KVB_SET_ONE | holder;
}

static inline bool kvb_set_is_one(kvb_set_id id)
{
    return (id & KVB_SET_ONE) != 0;
}

static inline struct kvb_holder_set *
kvb_holder_set_at(const struct kvb_holder_sets *sets, kvb_set_id id)
{
    return (struct kvb_holder_set *)(void *)sets->headers.base + id;
}

static inline struct kvb_set_leaf *
kvb_holder_set_leaves(const struct kvb_holder_sets *sets, const struct kvb_holder_set *set)
{
    return (struct kvb_set_leaf *)(void *)sets->leaves.base + set->leaves;
}

static inline bool kvb_set_has_leaf(const uint64_t mask[2], uint32_t leaf)
{
    return mask[leaf / 64] >> (leaf % 64) & 1;
}

/* Bits among the `most` lowest of `mask`; in a large fleet mostly all of them, and then
 * nothing is counted. */
static inline uint32_t kvb_bits_below(uint64_t mask, uint32_t most)
{
    const uint64_t below = most < 64 ? (UINT64_C(1) << most) - 1 : UINT64_MAX;
    return (mask & below) == below ? most : (uint32_t)__builtin_popcountll(mask & below);
}

/* How many leaves stand before this one. */
static inline uint32_t kvb_set_rank(const uint64_t mask[2], uint32_t leaf)
{
    return leaf < 64 ? kvb_bits_below(mask[0], leaf)
                     : kvb_bits_below(mask[0], 64) + kvb_bits_below(mask[1], leaf - 64);
}

static inline bool kvb_set_has(const struct kvb_holder_sets *sets, kvb_set_id id, uint32_t holder)
{
    if (id == 0 || kvb_set_is_one(id)) {
        return id == kvb_set_of_one(holder);
    }
    const struct kvb_holder_set *set = kvb_holder_set_at(sets, id);
    const uint32_t leaf = holder / kvb_leaf_bits;
    const uint32_t bit = holder % kvb_leaf_bits;

    return kvb_set_has_leaf(set->mask, leaf) &&
           kvb_holder_set_leaves(sets, set)[kvb_set_rank(set->mask, leaf)].words[bit / 64] >>
                   (bit % 64) &
               1;
}

#define KVB_NO_HOLDER UINT32_MAX

/* What `before` has, and `set` has not, is this holder, or none (KVB_NO_HOLDER). */
static inline void
kvb_set_note(struct kvb_holder_set *set, const struct kvb_holder_set *before, uint32_t lost)
{
    set->before = before->stamp;
    set->lost = lost;
}

/* Whether such a note stands, in set->lost. */
static inline bool
kvb_set_is_noted(const struct kvb_holder_set *set, const struct kvb_holder_set *before)
{
    return set->before == before->stamp;
}

/* One reference more: another node has the set. */
static inline void kvb_set_keep(struct kvb_holder_sets *sets, kvb_set_id id)
{
    if (id != 0 && !kvb_set_is_one(id)) {
        kvb_holder_set_at(sets, id)->references++;
    }
}

/* One reference less; the set goes with the last. */
void kvb_set_forget(struct kvb_holder_sets *sets, kvb_set_id id);

static inline void kvb_set_drop(struct kvb_holder_sets *sets, kvb_set_id id)
{
    if (id != 0 && !kvb_set_is_one(id) && --kvb_holder_set_at(sets, id)->references == 0) {
        kvb_set_forget(sets, id);
    }
}
