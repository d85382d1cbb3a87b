#pragma once

#include "core/region.h"
#include "core/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

/* A hash table of numbered items that grows by linear hashing.  Its buckets are cache lines with
 * tags.
 *
 *     line, 64 bytes   | tag x 10 | next | id x 10 |      tag 0: free
 *                                    |
 *                                    +--> a spill line, when there are more than ten items
 *
 * The low bits of an item's hash select a line.  The item is in that line or in its chain of spill
 * lines.  Its tag is bits 16 to 31 of the hash.  The table stores neither keys nor whole hashes.
 * The caller compares the key of each candidate.  Several ids may share a hash.
 *
 * When there are more items than `room` allows, the next unsplit line of this round is split in
 * two.  So no insertion rehashes the whole table.
 *
 *     lines  0 1 2 3 | 4 5            lines 0 and 1 are split into 0, 4 and 1, 5; 2 and 3 not yet.
 *            ^-^     ^-^             hash & 7 is the line; if that is above 5, hash & 3
 *
 * One bit of the hash decides to which of the two lines an item goes.  From 65,536 lines on the tag
 * contains that bit.  In smaller tables hash_of() computes the hash again.
 *
 * Threads: the caller locks.
 * Memory:  some 18 bytes per item with kvb_line_roomy, where few lines have spill lines; 12 with
 *          kvb_line_dense, where many have. */
enum { kvb_line_cells = 10, kvb_line_tag_shift = 16 };

/* The load factor: items per ten lines.  With kvb_line_roomy, one line in nine has a spill line
 * just before its split.  With one in five, frequent look-ups would be 5 % slower. */
enum kvb_line_room { kvb_line_roomy = 36, kvb_line_dense = 65 };

struct kvb_table_line {
    uint16_t tags[kvb_line_cells];
    uint32_t next; /* 1 + a spill line's number; 0: none */
    uint32_t ids[kvb_line_cells];
};

typedef uint64_t (*kvb_line_hash)(const void *context, uint32_t id);

struct kvb_line_table {
    struct kvb_region lines;
    struct kvb_region spill;
    size_t line_count;
    uint64_t mask; /* of this round: the least 2^k - 1 that is not below line_count - 1 */
    size_t count;
    enum kvb_line_room room;
    size_t split_above; /* a line is split when there are more items than this */
    size_t spill_end;
    uint32_t spill_free; /* 1 + number of the first free one; linked by `next` */
    kvb_line_hash hash_of;
    const void *context;
};

#define KVB_NO_LINE_ID UINT32_MAX

/* *table must be {0}.  It has room for `max` items.  hash_of() returns the hash of an item that is
 * in the table.  KVB_NO_MEMORY. */
kvb_status kvb_line_table_open(
    struct kvb_line_table *table, size_t max, enum kvb_line_room room, kvb_line_hash hash_of,
    const void *context);

/* {0} is fine. */
void kvb_line_table_close(struct kvb_line_table *table);

/* Removes all items.  A table of up to 4 MiB keeps its size, so that it need not grow again.  A
 * sparse table shrinks, so that the cost is proportional to the removed items.  A larger table is
 * closed.  A table that was never opened stays closed. */
void kvb_line_table_empty(struct kvb_line_table *table);

/* Slow paths of kvb_line_table_put() and _remove() below, for items in spill lines. */
kvb_status kvb_line_table_put_spilled(struct kvb_line_table *table, uint64_t hash, uint32_t id);
void kvb_line_table_split(struct kvb_line_table *table);
void kvb_line_table_remove_spilled(struct kvb_line_table *table, uint64_t hash, uint32_t id);

/* Makes the memory for `spare` items more resident, as kvb_region_populate() does. */
bool kvb_line_table_populate(struct kvb_line_table *table, size_t spare, size_t step);

/* Returns the memory that the table uses, in bytes. */
size_t kvb_line_table_bytes(const struct kvb_line_table *table);

/* ---- Looking up ----
 *
 *     struct kvb_line_probe probe = kvb_line_table_probe(table, hash);
 *     for (uint32_t id; (id = kvb_line_probe_next(table, &probe)) != KVB_NO_LINE_ID;) { ... }
 *
 * The table must not change during the loop.  Inline, because each block of each event is looked
 * up. */
struct kvb_line_probe {
    const struct kvb_table_line *line;
    uint32_t hits; /* cells with this tag */
    uint16_t tag;
};

static inline uint16_t kvb_line_tag(uint64_t hash)
{
    const uint16_t tag = (uint16_t)(hash >> kvb_line_tag_shift);
    return tag ? tag : 1;
}

/* Branch-free: a branch that depends on a hash is mispredicted often. */
static inline size_t kvb_line_home(const struct kvb_line_table *table, uint64_t hash)
{
    const size_t line = hash & table->mask;
    const size_t is_there = -(size_t)(line < table->line_count); /* all bits or none */
    return line & (is_there | table->mask >> 1);
}

static inline struct kvb_table_line *kvb_line_at(const struct kvb_line_table *table, uint64_t hash)
{
    return (struct kvb_table_line *)(void *)table->lines.base + kvb_line_home(table, hash);
}

static inline struct kvb_table_line *
kvb_line_spilled(const struct kvb_line_table *table, uint32_t next)
{
    return (struct kvb_table_line *)(void *)table->spill.base + (next - 1);
}

/* Cells, one bit each: bits 0 to 7 are cells 0 to 7, and bits 14 and 15 are cells 8 and 9. */
enum { kvb_line_all = 0xc0ff };

static inline uint32_t kvb_line_first(uint32_t cells)
{
    const uint32_t bit = (uint32_t)__builtin_ctz(cells);
    return bit < 8 ? bit : bit - 6;
}

/* Returns the cells whose tag has these bits where `mask` has ones. */
static inline uint32_t
kvb_line_matches(const struct kvb_table_line *line, uint16_t tag, uint16_t mask)
{
#if defined(__SSE2__)
    /* Broadcasts a pair of 16-bit tags.  For a single tag gcc 12 emits a store of two bytes and a
     * load of four, which prevents store forwarding. */
    const __m128i wanted = _mm_set1_epi32((int)(tag * UINT32_C(0x10001)));
    const __m128i masks = _mm_set1_epi32((int)(mask * UINT32_C(0x10001)));
    const __m128i low = _mm_loadu_si128((const __m128i *)(const void *)line->tags);
    const __m128i high = _mm_loadu_si128((const __m128i *)(const void *)(line->tags + 2));
    const __m128i both = _mm_packs_epi16(
        _mm_cmpeq_epi16(_mm_and_si128(low, masks), wanted),
        _mm_cmpeq_epi16(_mm_and_si128(high, masks), wanted));

    return (uint32_t)_mm_movemask_epi8(both) & kvb_line_all; /* tags 0 to 7, then 2 to 9 */
#else
    uint32_t matches = 0;

    for (uint32_t i = 0; i < kvb_line_cells; i++) {
        matches |= (uint32_t)((line->tags[i] & mask) == tag) << (i < 8 ? i : i + 6);
    }
    return matches;
#endif
}

/* Returns the cells that have this tag. */
static inline uint32_t kvb_line_hits(const struct kvb_table_line *line, uint16_t tag)
{
    return kvb_line_matches(line, tag, UINT16_MAX);
}

static inline struct kvb_line_probe
kvb_line_table_probe(const struct kvb_line_table *table, uint64_t hash)
{
    const struct kvb_table_line *line = kvb_line_at(table, hash);
    const uint16_t tag = kvb_line_tag(hash);

    return (struct kvb_line_probe){ .line = line, .hits = kvb_line_hits(line, tag), .tag = tag };
}

static inline uint32_t
kvb_line_probe_next(const struct kvb_line_table *table, struct kvb_line_probe *probe)
{
    while (probe->hits == 0) {
        if (probe->line->next == 0) {
            return KVB_NO_LINE_ID;
        }
        probe->line = kvb_line_spilled(table, probe->line->next);
        probe->hits = kvb_line_hits(probe->line, probe->tag);
    }
    const uint32_t cell = kvb_line_first(probe->hits);
    probe->hits &= probe->hits - 1;
    return probe->line->ids[cell];
}

/* ---- Changing ---- */

/* The home line of a hash.  It is read once for a look-up and an insertion. */
struct kvb_line_place {
    struct kvb_table_line *line;
    uint32_t hits, free_cells;
    uint16_t tag;
};

static inline struct kvb_line_place
kvb_line_table_place(const struct kvb_line_table *table, uint64_t hash)
{
    struct kvb_table_line *line = kvb_line_at(table, hash);
    const uint16_t tag = kvb_line_tag(hash);

    return (struct kvb_line_place){ .line = line,
                                    .hits = kvb_line_hits(line, tag),
                                    .free_cells = kvb_line_hits(line, 0),
                                    .tag = tag };
}

/* Whether no item of this hash is in the table and the home line has a free cell. */
static inline bool kvb_line_place_is_clear(const struct kvb_line_place *place)
{
    return (place->hits | place->line->next) == 0 && place->free_cells != 0;
}

/* Inserts into a place that has a free cell.  The table must not have changed since it was read. */
static inline void
kvb_line_table_put_at(struct kvb_line_table *table, const struct kvb_line_place *place, uint32_t id)
{
    const uint32_t cell = kvb_line_first(place->free_cells);

    place->line->tags[cell] = place->tag;
    place->line->ids[cell] = id;
    if (++table->count > table->split_above) {
        kvb_line_table_split(table);
    }
}

/* KVB_NO_MEMORY: nothing changed. */
static inline kvb_status
kvb_line_table_put(struct kvb_line_table *table, uint64_t hash, uint32_t id)
{
    const struct kvb_line_place place = kvb_line_table_place(table, hash);

    if (place.free_cells == 0) {
        return kvb_line_table_put_spilled(table, hash, id);
    }
    kvb_line_table_put_at(table, &place, id);
    return KVB_OK;
}

/* Removes the pair, which must be in the table. */
static inline void kvb_line_table_remove(struct kvb_line_table *table, uint64_t hash, uint32_t id)
{
    struct kvb_table_line *line = kvb_line_at(table, hash);
    uint32_t hits = line->next == 0 ? kvb_line_hits(line, kvb_line_tag(hash)) : 0;

    for (; hits != 0; hits &= hits - 1) { /* terminates: each iteration clears a hit */
        const uint32_t cell = kvb_line_first(hits);
        if (line->ids[cell] == id) {
            line->tags[cell] = 0;
            table->count--;
            return;
        }
    }
    kvb_line_table_remove_spilled(table, hash, id);
}

/* always_inline, because gcc 12 regards a function that only prefetches as one without effects, and
 * drops calls that it does not inline early. */
[[gnu::always_inline]] static inline void
kvb_line_table_prefetch(const struct kvb_line_table *table, uint64_t hash)
{
    __builtin_prefetch(kvb_line_at(table, hash), 1);
}
