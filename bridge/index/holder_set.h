#pragma once

#include "core/hash.h"
#include "core/line_table.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Interned (hash-consed) sets of holders: equal sets are stored once.  Holders are small numbers.
 *
 * Most blocks have the same holders as the block before them.  So a node of the index refers to its
 * set by a number of 4 bytes, whatever the size of the fleet.  A change to the equal sets of a run
 * of blocks is computed once.
 *
 *     id 0                  the empty set
 *     id 2^31 | h           {h}; takes no memory
 *     any other id          header | hash | mask of leaves | references |
 *                                        |
 *                       leaves of 512 bits, only those that are not empty, in order:
 *                       | leaf 0 | leaf 7 | leaf 19 |
 *
 * A set's hash is the XOR of its holders' hashes (Zobrist hashing).  One XOR adds or removes a
 * holder, and the result finds an equal set in the table.  Sets of equal hash are compared bit by
 * bit.  A set is edited in place if all nodes that have it change alike, and is immutable
 * otherwise.
 *
 * Queries repeat the same prompts.  In most cases the next set of a prompt lacks one holder of the
 * set before.  A reader may cache that holder in the next set (kvb_set_note()).  The note is valid
 * until one of the two sets changes.
 *
 * Threads: the caller locks.
 * Memory: 56 bytes per set and 64 per leaf, and some 16 in the table. */
enum {
    kvb_leaf_bits = 512,
    kvb_leaf_words = kvb_leaf_bits / 64,
    kvb_max_leaves = 128,
    kvb_max_holders = kvb_leaf_bits * kvb_max_leaves
};

typedef uint32_t kvb_set_id;

#define KVB_SET_ONE (UINT32_C(1) << 31)

struct kvb_set_leaf {
    uint64_t words[kvb_leaf_words];
};

struct kvb_holder_set {
    uint64_t hash;
    uint64_t mask[2]; /* bit l: leaf l is there */
    uint64_t stamp;   /* unique number; each change of the set gives it a new one */
    uint64_t before;  /* stamp of the set that `lost` refers to; 0: none */
    uint32_t lost;    /* the only holder that is in that set and not here, or KVB_NO_HOLDER */
    uint32_t leaves;  /* number of the first leaf; in a free header: the next free header */
    uint32_t references;
    uint32_t count; /* number of holders, 2 or more; 0: free header */
};

struct kvb_holder_sets {
    struct kvb_hash_key key;
    struct kvb_region headers;
    struct kvb_region leaves;
    struct kvb_line_table interned;
    uint32_t header_end, header_free;
    uint64_t last_stamp;
    uint32_t leaf_end;
    uint32_t leaf_free[kvb_max_leaves + 1]; /* free groups of n leaves, linked through their first
                                               word */
};

/* *sets must be {0}.  There are at most `max` sets.  Sets do not move.  KVB_NO_MEMORY. */
kvb_status
kvb_holder_sets_open(struct kvb_holder_sets *sets, size_t max, const struct kvb_hash_key *key);

/* {0} is fine. */
void kvb_holder_sets_close(struct kvb_holder_sets *sets);

/* Replace the caller's reference to `id` by one to the set with the holder added or removed.  For
 * _with() the holder must not be in `id`; for _without() it must be.
 * KVB_TOO_LARGE, KVB_NO_MEMORY  no room for another set: the reference is unchanged */
kvb_status kvb_holder_sets_with(
    struct kvb_holder_sets *sets, kvb_set_id id, uint32_t holder, kvb_set_id *out_id);
kvb_status kvb_holder_sets_without(
    struct kvb_holder_sets *sets, kvb_set_id id, uint32_t holder, kvb_set_id *out_id);

/* Fast path for the next `count` nodes of a chain: edit their sets in place, which keeps their ids.
 * _edit_with() adds the holder to the sets ids[0], ids[1] ..., and _edit_without() removes it from
 * ids[0], ids[-1] ...  Both stop at a set that is not changed, that any other node has too, or that
 * needs _with() or _without().  Return for how many nodes they have done it. */
uint32_t kvb_holder_sets_edit_with(
    struct kvb_holder_sets *sets, const kvb_set_id *ids, uint32_t count, uint32_t holder);
uint32_t kvb_holder_sets_edit_without(
    struct kvb_holder_sets *sets, const kvb_set_id *ids, uint32_t count, uint32_t holder);

/* Makes the memory for `spare` sets more, of a leaf each, resident, as kvb_region_populate()
 * does. */
bool kvb_holder_sets_populate(struct kvb_holder_sets *sets, size_t spare, size_t step);

size_t kvb_holder_sets_bytes(const struct kvb_holder_sets *sets);

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

/* Returns the population count of the `max` lowest bits of `mask`.  In a large fleet all of them
 * are set in most cases; that case needs no counting. */
static inline uint32_t kvb_bits_below(uint64_t mask, uint32_t max)
{
    const uint64_t below = max < 64 ? (UINT64_C(1) << max) - 1 : UINT64_MAX;
    return (mask & below) == below ? max : (uint32_t)__builtin_popcountll(mask & below);
}

/* Returns how many leaves of the set are before this one. */
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

/* Notes in `set` the only holder that `before` has and `set` lacks.  KVB_NO_HOLDER means that `set`
 * lacks none. */
static inline void
kvb_set_note(struct kvb_holder_set *set, const struct kvb_holder_set *before, uint32_t lost)
{
    set->before = before->stamp;
    set->lost = lost;
}

/* Whether set->lost refers to `before` and is still valid. */
static inline bool
kvb_set_is_noted(const struct kvb_holder_set *set, const struct kvb_holder_set *before)
{
    return set->before == before->stamp;
}

/* Adds a reference, for one more node that has the set. */
static inline void kvb_set_keep(struct kvb_holder_sets *sets, kvb_set_id id)
{
    if (id != 0 && !kvb_set_is_one(id)) {
        kvb_holder_set_at(sets, id)->references++;
    }
}

/* Frees a set that has no reference.  kvb_set_drop() removes a reference, and frees the set with
 * the last one. */
void kvb_set_forget(struct kvb_holder_sets *sets, kvb_set_id id);

static inline void kvb_set_drop(struct kvb_holder_sets *sets, kvb_set_id id)
{
    if (id != 0 && !kvb_set_is_one(id) && --kvb_holder_set_at(sets, id)->references == 0) {
        kvb_set_forget(sets, id);
    }
}

/* Moves `count` references from one set to another. */
static inline void
kvb_set_move(struct kvb_holder_sets *sets, kvb_set_id from, kvb_set_id to, uint32_t count)
{
    if (count == 0) {
        return;
    }
    if (to != 0 && !kvb_set_is_one(to)) {
        kvb_holder_set_at(sets, to)->references += count;
    }
    if (from != 0 && !kvb_set_is_one(from) &&
        (kvb_holder_set_at(sets, from)->references -= count) == 0) {
        kvb_set_forget(sets, from);
    }
}
