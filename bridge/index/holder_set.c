#include "index/holder_set.h"

#include <assert.h>
#include <string.h>

/* Makes these hashes differ from those of other tables with the same key. */
static const uint64_t of_holders = UINT64_C(1) << 63;

/* A holder as a member of sets. */
struct member {
    uint32_t holder;
    uint32_t leaf;
    uint32_t word; /* of the leaf */
    uint64_t bit;  /* of the word */
    uint64_t hash;
};

/* Describes the set to find or make: `from` with the bit of the member flipped. */
struct turn {
    kvb_set_id from;
    struct member member;
    uint64_t hash;
    uint64_t mask[2];
    uint32_t count;
};

static uint64_t holder_hash(const struct kvb_holder_sets *sets, uint32_t holder)
{
    return kvb_hash_keyed(&sets->key, holder, of_holders);
}

static struct member member_of(const struct kvb_holder_sets *sets, uint32_t holder)
{
    return (struct member){
        .holder = holder,
        .leaf = holder / kvb_leaf_bits,
        .word = holder % kvb_leaf_bits / 64,
        .bit = UINT64_C(1) << (holder % 64),
        .hash = holder_hash(sets, holder),
    };
}

static uint64_t hash_of_set(const void *context, uint32_t id)
{
    const struct kvb_holder_sets *sets = context;
    return kvb_holder_set_at(sets, id)->hash;
}

static uint32_t count_leaves(const uint64_t mask[2])
{
    return (uint32_t)(__builtin_popcountll(mask[0]) + __builtin_popcountll(mask[1]));
}

/* ---- Creating and destroying ---- */

kvb_status
kvb_holder_sets_open(struct kvb_holder_sets *sets, size_t max, const struct kvb_hash_key *key)
{
    const size_t max_sets = max + 1 < KVB_SET_ONE ? max + 1 : KVB_SET_ONE - 1;

    *sets = (struct kvb_holder_sets){ .key = *key, .header_end = 1 }; /* 0 is the empty set */
    kvb_status status =
        kvb_line_table_open(&sets->interned, max_sets, kvb_line_roomy, hash_of_set, sets);
    if (status == KVB_OK) {
        status = kvb_region_open(&sets->headers, max_sets * sizeof(struct kvb_holder_set));
    }
    if (status == KVB_OK) { /* room for 4 leaves per set on average */
        status = kvb_region_open(&sets->leaves, max_sets * 4 * sizeof(struct kvb_set_leaf));
    }
    if (status != KVB_OK) {
        kvb_holder_sets_close(sets);
    }
    return status;
}

void kvb_holder_sets_close(struct kvb_holder_sets *sets)
{
    kvb_line_table_close(&sets->interned);
    kvb_region_close(&sets->headers);
    kvb_region_close(&sets->leaves);
    *sets = (struct kvb_holder_sets){ 0 };
}

bool kvb_holder_sets_populate(struct kvb_holder_sets *sets, size_t spare, size_t step)
{
    const size_t header = sizeof(struct kvb_holder_set);
    const size_t leaf = sizeof(struct kvb_set_leaf);

    return kvb_region_populate(&sets->headers, sets->header_end * header, spare * header, step) ||
           kvb_region_populate(&sets->leaves, sets->leaf_end * leaf, spare * leaf, step) ||
           kvb_line_table_populate(&sets->interned, spare, step);
}

size_t kvb_holder_sets_bytes(const struct kvb_holder_sets *sets)
{
    return kvb_line_table_bytes(&sets->interned) +
           sets->header_end * sizeof(struct kvb_holder_set) +
           sets->leaf_end * sizeof(struct kvb_set_leaf);
}

/* ---- Memory: single headers, and groups of n leaves ---- */

static struct kvb_set_leaf *leaf_at(const struct kvb_holder_sets *sets, uint32_t at)
{
    return (struct kvb_set_leaf *)(void *)sets->leaves.base + at;
}

/* The first word of a free group is 1 + the number of the next free group. */
static kvb_status draw_leaves(struct kvb_holder_sets *sets, uint32_t count, uint32_t *out_at)
{
    const uint32_t first = sets->leaf_free[count];

    if (first != 0) {
        sets->leaf_free[count] = (uint32_t)leaf_at(sets, first - 1)->words[0];
        *out_at = first - 1;
        return KVB_OK;
    }
    KVB_TRY(kvb_region_reach(
        &sets->leaves, ((size_t)sets->leaf_end + count) * sizeof(struct kvb_set_leaf)));
    *out_at = sets->leaf_end;
    sets->leaf_end += count;
    return KVB_OK;
}

static void give_back_leaves(struct kvb_holder_sets *sets, uint32_t at, uint32_t count)
{
    leaf_at(sets, at)->words[0] = sets->leaf_free[count];
    sets->leaf_free[count] = at + 1;
}

static kvb_status draw_header(struct kvb_holder_sets *sets, kvb_set_id *out_id)
{
    if (sets->header_free != 0) {
        *out_id = sets->header_free;
        sets->header_free = kvb_holder_set_at(sets, *out_id)->leaves;
        return KVB_OK;
    }
    KVB_TRY(kvb_region_reach(
        &sets->headers, ((size_t)sets->header_end + 1) * sizeof(struct kvb_holder_set)));
    *out_id = sets->header_end++;
    return KVB_OK;
}

static void give_back_header(struct kvb_holder_sets *sets, kvb_set_id id)
{
    *kvb_holder_set_at(sets, id) = (struct kvb_holder_set){ .leaves = sets->header_free };
    sets->header_free = id;
}

void kvb_set_forget(struct kvb_holder_sets *sets, kvb_set_id id)
{
    const struct kvb_holder_set *set = kvb_holder_set_at(sets, id);

    kvb_line_table_remove(&sets->interned, set->hash, id);
    give_back_leaves(sets, set->leaves, count_leaves(set->mask));
    give_back_header(sets, id);
}

/* ---- Flipping a bit ---- */

/* Returns the words of a leaf of the set; all zeros if the set has no such leaf.  The leaf of a set
 * of one holder is built in *scratch. */
static const uint64_t *leaf_words(
    const struct kvb_holder_sets *sets, kvb_set_id id, uint32_t leaf, struct kvb_set_leaf *scratch)
{
    *scratch = (struct kvb_set_leaf){ 0 };
    if (kvb_set_is_one(id)) {
        const uint32_t holder = id & ~KVB_SET_ONE;
        if (holder / kvb_leaf_bits == leaf) {
            scratch->words[holder % kvb_leaf_bits / 64] = UINT64_C(1) << (holder % 64);
        }
        return scratch->words;
    }
    const struct kvb_holder_set *set = kvb_holder_set_at(sets, id);
    return kvb_set_has_leaf(set->mask, leaf)
               ? kvb_holder_set_leaves(sets, set)[kvb_set_rank(set->mask, leaf)].words
               : scratch->words;
}

/* Returns the leaf with the flipped bit. */
static struct kvb_set_leaf turned_leaf(const struct kvb_holder_sets *sets, const struct turn *turn)
{
    struct kvb_set_leaf scratch;
    struct kvb_set_leaf leaf;

    memcpy(
        leaf.words, leaf_words(sets, turn->from, turn->member.leaf, &scratch), sizeof leaf.words);
    leaf.words[turn->member.word] ^= turn->member.bit;
    return leaf;
}

/* Whether the member's leaf contains any other holder. */
static bool has_others(const uint64_t *words, const struct member *member)
{
    uint64_t others = words[member->word] & ~member->bit;

    for (uint32_t w = 0; others == 0 && w < kvb_leaf_words; w++) {
        others = w != member->word ? words[w] : 0;
    }
    return others != 0;
}

/* Whether the member's leaf contains any holder after the flip. */
static bool is_anybody_left(const struct kvb_holder_sets *sets, const struct turn *turn)
{
    struct kvb_set_leaf scratch;
    const uint64_t *words = leaf_words(sets, turn->from, turn->member.leaf, &scratch);

    return has_others(words, &turn->member);
}

static void set_mask(uint64_t mask[2], uint32_t leaf, bool is_there)
{
    const uint64_t bit = UINT64_C(1) << (leaf % 64);
    mask[leaf / 64] = is_there ? mask[leaf / 64] | bit : mask[leaf / 64] & ~bit;
}

/* Computes hash, count and mask of the set after the flip. */
static void plan_turn(const struct kvb_holder_sets *sets, struct turn *turn, bool is_added)
{
    const bool is_one = kvb_set_is_one(turn->from);
    const struct kvb_holder_set *set = is_one ? NULL : kvb_holder_set_at(sets, turn->from);

    turn->hash =
        (is_one ? holder_hash(sets, turn->from & ~KVB_SET_ONE) : set->hash) ^ turn->member.hash;
    turn->count = (is_one ? 1 : set->count) + (is_added ? 1 : -1U);
    if (is_one) {
        set_mask(turn->mask, (turn->from & ~KVB_SET_ONE) / kvb_leaf_bits, true);
    } else {
        memcpy(turn->mask, set->mask, sizeof turn->mask);
    }
    /* With its last holder a leaf leaves the mask. */
    set_mask(turn->mask, turn->member.leaf, is_added || is_anybody_left(sets, turn));
}

static bool is_leaf(const struct kvb_set_leaf *leaf, const uint64_t *words)
{
    return memcmp(leaf->words, words, sizeof leaf->words) == 0;
}

/* Returns the first leaf of `mask` from `from` on, or kvb_max_leaves. */
static uint32_t next_leaf(const uint64_t mask[2], uint32_t from)
{
    for (uint32_t w = from / 64; w < 2; w++) {
        const uint64_t left = w == from / 64 ? mask[w] >> (from % 64) << (from % 64) : mask[w];
        if (left != 0) {
            return w * 64 + (uint32_t)__builtin_ctzll(left);
        }
    }
    return kvb_max_leaves;
}

static bool is_turned(const struct kvb_holder_sets *sets, const struct turn *turn, kvb_set_id id)
{
    const struct kvb_holder_set *set = kvb_holder_set_at(sets, id);
    const struct kvb_set_leaf *leaves = kvb_holder_set_leaves(sets, set);

    /* Nearly all that are not equal differ in these, and no leaf is read. */
    if (set->hash != turn->hash || set->count != turn->count ||
        memcmp(set->mask, turn->mask, sizeof set->mask) != 0) {
        return false;
    }
    const struct kvb_set_leaf changed = turned_leaf(sets, turn);
    for (uint32_t l = next_leaf(set->mask, 0); l < kvb_max_leaves;
         l = next_leaf(set->mask, l + 1)) {
        struct kvb_set_leaf scratch;
        const uint64_t *expected =
            l == turn->member.leaf ? changed.words : leaf_words(sets, turn->from, l, &scratch);
        if (!is_leaf(leaves++, expected)) {
            return false;
        }
    }
    return true;
}

/* Returns 0 when no such set exists. */
static kvb_set_id find_turned(const struct kvb_holder_sets *sets, const struct turn *turn)
{
    struct kvb_line_probe probe = kvb_line_table_probe(&sets->interned, turn->hash);

    for (uint32_t id; (id = kvb_line_probe_next(&sets->interned, &probe)) != KVB_NO_LINE_ID;) {
        if (is_turned(sets, turn, id)) {
            return id;
        }
    }
    return 0;
}

static kvb_status
make_turned(struct kvb_holder_sets *sets, const struct turn *turn, kvb_set_id *out_id)
{
    const struct kvb_set_leaf changed = turned_leaf(sets, turn);
    const uint32_t leaf_count = count_leaves(turn->mask);
    kvb_set_id id = 0;
    uint32_t at = 0;

    KVB_TRY(draw_leaves(sets, leaf_count, &at));
    kvb_status status = draw_header(sets, &id);
    if (status != KVB_OK) {
        give_back_leaves(sets, at, leaf_count);
        return status;
    }
    /* Of all leaves only the member's differs from that of the set before. */
    struct kvb_set_leaf *leaf = leaf_at(sets, at);
    for (uint32_t l = next_leaf(turn->mask, 0); l < kvb_max_leaves;
         l = next_leaf(turn->mask, l + 1)) {
        struct kvb_set_leaf scratch;
        const uint64_t *words =
            l == turn->member.leaf ? changed.words : leaf_words(sets, turn->from, l, &scratch);
        memcpy((leaf++)->words, words, sizeof leaf->words);
    }
    *kvb_holder_set_at(sets, id) = (struct kvb_holder_set){
        .hash = turn->hash,
        .mask = { turn->mask[0], turn->mask[1] },
        .stamp = ++sets->last_stamp,
        .leaves = at,
        .references = 1,
        .count = turn->count,
    };
    /* Last, because the table reads the hash where it is. */
    status = kvb_line_table_put(&sets->interned, turn->hash, id);
    if (status != KVB_OK) {
        give_back_leaves(sets, at, leaf_count);
        give_back_header(sets, id);
        return status;
    }
    *out_id = id;
    return KVB_OK;
}

/* Whether the set can be edited in place: the caller has the only reference, and no leaf is
 * added or removed. */
static bool may_edit(const struct kvb_holder_sets *sets, const struct turn *turn)
{
    if (kvb_set_is_one(turn->from)) {
        return false;
    }
    const struct kvb_holder_set *set = kvb_holder_set_at(sets, turn->from);
    return set->references == 1 && memcmp(set->mask, turn->mask, sizeof set->mask) == 0;
}

/* Writes everything but the hash, which the table reads. */
static inline void write_turned(
    struct kvb_holder_sets *sets, struct kvb_holder_set *set, uint64_t *words,
    const struct member *member, bool is_added)
{
    set->stamp = ++sets->last_stamp;
    set->before = 0;
    set->count += is_added ? 1 : -1U;
    words[member->word] ^= member->bit;
}

static inline uint64_t *member_words(
    const struct kvb_holder_sets *sets, const struct kvb_holder_set *set,
    const struct member *member)
{
    return kvb_holder_set_leaves(sets, set)[kvb_set_rank(set->mask, member->leaf)].words;
}

static kvb_status edit(struct kvb_holder_sets *sets, const struct turn *turn, bool is_added)
{
    struct kvb_holder_set *set = kvb_holder_set_at(sets, turn->from);

    const uint64_t old_hash = set->hash;

    /* Its number stays, so no node that has it need be written. */
    kvb_line_table_remove(&sets->interned, old_hash, turn->from);
    set->hash = turn->hash;
    kvb_status status = kvb_line_table_put(&sets->interned, turn->hash, turn->from);
    if (status != KVB_OK) {
        set->hash = old_hash;
        const kvb_status back = kvb_line_table_put(&sets->interned, old_hash, turn->from);
        assert(back == KVB_OK); /* cannot fail: the cell that the remove freed is still free */
        (void)back;
        return status;
    }
    write_turned(sets, set, member_words(sets, set, &turn->member), &turn->member, is_added);
    return KVB_OK;
}

/* Fast path, the usual case in a large fleet: edits the set of `nodes` nodes in place.  Requires
 * that no other node has the set, that the result has several holders and the same leaves, and that
 * the table has no candidate for an equal set.  Otherwise, and when nothing is to be changed,
 * returns false and changes nothing. */
[[gnu::always_inline]] static inline bool edit_simply(
    struct kvb_holder_sets *sets, kvb_set_id id, uint32_t nodes, const struct member *member,
    bool is_added)
{
    if (id == 0 || kvb_set_is_one(id)) {
        return false;
    }
    struct kvb_holder_set *set = kvb_holder_set_at(sets, id);
    if (set->references != nodes || !kvb_set_has_leaf(set->mask, member->leaf)) {
        return false;
    }
    uint64_t *words = member_words(sets, set, member);
    /* Nothing to change; or what is left is one holder, or has a leaf less: another kind of set. */
    const bool is_in = (words[member->word] & member->bit) != 0;
    if (is_in == is_added || (!is_added && (set->count == 2 || !has_others(words, member)))) {
        return false;
    }
    const uint64_t hash = set->hash ^ member->hash;
    const struct kvb_line_place place = kvb_line_table_place(&sets->interned, hash);
    if (!kvb_line_place_is_clear(&place)) {
        return false;
    }
    kvb_line_table_remove(&sets->interned, set->hash, id);
    set->hash = hash; /* before the put, because the table reads it */
    kvb_line_table_put_at(&sets->interned, &place, id);
    write_turned(sets, set, words, member, is_added);
    return true;
}

/* Edits the sets ids[0], ids[step], ids[2 * step] ..., as far as possible and at most `count`. */
[[gnu::always_inline]] static inline uint32_t edit_each(
    struct kvb_holder_sets *sets, const kvb_set_id *ids, ptrdiff_t step, uint32_t count,
    const struct member *member, bool is_added)
{
    uint32_t edited = 0;

    while (edited < count) {
        /* Neighbours with the same set have to be all that have it. */
        uint32_t alike = 1;
        while (edited + alike < count && ids[step * alike] == *ids) {
            alike++;
        }
        if (!edit_simply(sets, *ids, alike, member, is_added)) {
            break;
        }
        edited += alike;
        ids += step * alike;
    }
    return edited;
}

uint32_t kvb_holder_sets_edit_with(
    struct kvb_holder_sets *sets, const kvb_set_id *ids, uint32_t count, uint32_t holder)
{
    const struct member member = member_of(sets, holder);
    return edit_each(sets, ids, 1, count, &member, true);
}

uint32_t kvb_holder_sets_edit_without(
    struct kvb_holder_sets *sets, const kvb_set_id *ids, uint32_t count, uint32_t holder)
{
    const struct member member = member_of(sets, holder);
    return edit_each(sets, ids, -1, count, &member, false);
}

static kvb_status
turn_bit(struct kvb_holder_sets *sets, struct turn *turn, bool is_added, kvb_set_id *out_id)
{
    if (edit_simply(sets, turn->from, 1, &turn->member, is_added)) {
        *out_id = turn->from;
        return KVB_OK;
    }
    /* Where an equal set exists, the nodes get that one: each set is stored once. */
    plan_turn(sets, turn, is_added);
    const kvb_set_id same = find_turned(sets, turn);
    if (same != 0) {
        kvb_set_keep(sets, same);
        kvb_set_drop(sets, turn->from);
        *out_id = same;
        return KVB_OK;
    }
    if (may_edit(sets, turn)) {
        KVB_TRY(edit(sets, turn, is_added));
        *out_id = turn->from;
        return KVB_OK;
    }
    KVB_TRY(make_turned(sets, turn, out_id));
    kvb_set_drop(sets, turn->from);
    return KVB_OK;
}

kvb_status kvb_holder_sets_with(
    struct kvb_holder_sets *sets, kvb_set_id id, uint32_t holder, kvb_set_id *out_id)
{
    if (id == 0) {
        *out_id = kvb_set_of_one(holder);
        return KVB_OK;
    }
    struct turn turn = { .from = id, .member = member_of(sets, holder) };
    return turn_bit(sets, &turn, true, out_id);
}

/* Returns the other holder of a set of two. */
static uint32_t
other_of_two(const struct kvb_holder_sets *sets, const struct kvb_holder_set *set, uint32_t holder)
{
    const struct kvb_set_leaf *leaves = kvb_holder_set_leaves(sets, set);

    for (uint32_t l = next_leaf(set->mask, 0); l < kvb_max_leaves;
         l = next_leaf(set->mask, l + 1), leaves++) {
        for (uint32_t w = 0; w < kvb_leaf_words; w++) {
            for (uint64_t left = leaves->words[w]; left != 0; left &= left - 1) {
                const uint32_t found = l * kvb_leaf_bits + w * 64 + (uint32_t)__builtin_ctzll(left);
                if (found != holder) {
                    return found;
                }
            }
        }
    }
    assert(false); /* a set of two has another holder */
    return holder;
}

kvb_status kvb_holder_sets_without(
    struct kvb_holder_sets *sets, kvb_set_id id, uint32_t holder, kvb_set_id *out_id)
{
    if (kvb_set_is_one(id)) {
        *out_id = 0;
        return KVB_OK;
    }
    const struct kvb_holder_set *set = kvb_holder_set_at(sets, id);
    /* One holder alone is no set of its own: its number says who it is. */
    if (set->count == 2) {
        *out_id = kvb_set_of_one(other_of_two(sets, set, holder));
        kvb_set_drop(sets, id);
        return KVB_OK;
    }
    struct turn turn = { .from = id, .member = member_of(sets, holder) };
    return turn_bit(sets, &turn, false, out_id);
}
