#include "stream/mirror/entry_set.h"

#include <stdlib.h>
#include <string.h>

enum { bits = 64, shift = 6, first_capacity = 4096 };

static const size_t max_numbers = (size_t)1 << (shift * kvb_entry_set_levels);

void kvb_entry_set_done(struct kvb_entry_set *set)
{
    for (size_t level = 0; level < kvb_entry_set_levels; level++) {
        free(set->levels[level]);
    }
    *set = (struct kvb_entry_set){ 0 };
}

/* How many words of this level hold the numbers below `end`. */
static size_t words_for(size_t end, size_t level)
{
    const size_t a_word = (size_t)1 << (shift * (level + 1));

    return (end + a_word - 1) / a_word;
}

/* When one level cannot grow, the levels that have grown are only longer than needed. */
static kvb_status grow_entry_set(struct kvb_entry_set *set, uint32_t number)
{
    size_t capacity = set->capacity ? set->capacity : first_capacity;

    if (number >= max_numbers) {
        return KVB_TOO_LARGE;
    }
    while (capacity <= number) {
        capacity *= 2;
    }
    for (size_t level = 0; level < kvb_entry_set_levels; level++) {
        const size_t old = set->capacity ? words_for(set->capacity, level) : 0;
        const size_t words = words_for(capacity, level);
        uint64_t *more = realloc(set->levels[level], words * sizeof *more);
        if (!more) {
            return KVB_NO_MEMORY;
        }
        memset(more + old, 0, (words - old) * sizeof *more);
        set->levels[level] = more;
    }
    set->capacity = capacity;
    return KVB_OK;
}

kvb_status kvb_entry_set_add(struct kvb_entry_set *set, uint32_t number)
{
    if (number >= set->capacity) {
        KVB_TRY(grow_entry_set(set, number));
    }
    for (size_t level = 0, at = number; level < kvb_entry_set_levels; level++, at /= bits) {
        uint64_t *word = &set->levels[level][at / bits];
        const uint64_t before = *word;
        *word |= UINT64_C(1) << (at % bits);
        if (before != 0) {
            break; /* the levels above have its bit already */
        }
    }
    return KVB_OK;
}

void kvb_entry_set_remove(struct kvb_entry_set *set, uint32_t number)
{
    if (number >= set->capacity) {
        return;
    }
    for (size_t level = 0, at = number; level < kvb_entry_set_levels; level++, at /= bits) {
        uint64_t *word = &set->levels[level][at / bits];
        *word &= ~(UINT64_C(1) << (at % bits));
        if (*word != 0) {
            break;
        }
    }
}

/* The lowest member below bit `at` of a level. */
static uint32_t descend(const struct kvb_entry_set *set, size_t level, size_t at)
{
    while (level-- > 0) {
        at = at * bits + (size_t)__builtin_ctzll(set->levels[level][at]);
    }
    return (uint32_t)at;
}

uint32_t kvb_entry_set_next(const struct kvb_entry_set *set, uint32_t from)
{
    size_t at = from;

    for (size_t level = 0; level < kvb_entry_set_levels && set->capacity > 0; level++) {
        const size_t word = at / bits;
        const uint64_t rest = word < words_for(set->capacity, level)
                                  ? set->levels[level][word] & UINT64_MAX << (at % bits)
                                  : 0;
        if (rest != 0) {
            return descend(set, level, word * bits + (size_t)__builtin_ctzll(rest));
        }
        /* Nothing is left in this word: one level up, to the words after it. */
        at = word + 1;
    }
    return UINT32_MAX;
}

void kvb_entry_set_clear(struct kvb_entry_set *set, size_t end)
{
    const size_t known = end < set->capacity ? end : set->capacity;

    for (size_t level = 0; level < kvb_entry_set_levels && known > 0; level++) {
        memset(set->levels[level], 0, words_for(known, level) * sizeof *set->levels[level]);
    }
}
