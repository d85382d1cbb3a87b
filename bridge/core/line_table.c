#include "core/line_table.h"

#include <assert.h>
#include <string.h>

static_assert(sizeof(struct kvb_table_line) == 64, "a line of the table is a line of the cache");

/* Emptying a table with less than one item per sparse_lines lines shrinks it to first_lines. */
enum { first_lines = 16, max_kept_lines = 1 << 16, sparse_lines = 16 };

/* One in so many lines has a spill line, averaged over a round. */
enum { spilled_roomy = 32, spilled_dense = 8 };

static size_t max_things(enum kvb_line_room room, size_t lines)
{
    return lines * room / 10;
}

/* Returns the largest number of spill lines.  Each spill line follows a full line of ten items.
 * During a split the spill lines of a chain exist twice. */
static size_t max_spilled(size_t max)
{
    return 2 * (max / kvb_line_cells) + 1;
}

static kvb_status reach_lines(struct kvb_line_table *table, size_t count)
{
    return kvb_region_reach(&table->lines, count * sizeof(struct kvb_table_line));
}

kvb_status kvb_line_table_open(
    struct kvb_line_table *table, size_t max, enum kvb_line_room room, kvb_line_hash hash_of,
    const void *context)
{
    const size_t max_lines = max * 10 / room + first_lines + 1;

    *table = (struct kvb_line_table){
        .line_count = first_lines,
        .mask = first_lines - 1,
        .room = room,
        .split_above = max_things(room, first_lines),
        .hash_of = hash_of,
        .context = context,
    };
    /* Both regions only reserve addresses for the most items. */
    kvb_status status = kvb_region_open(&table->lines, max_lines * sizeof(struct kvb_table_line));
    if (status == KVB_OK) {
        status = kvb_region_open(&table->spill, max_spilled(max) * sizeof(struct kvb_table_line));
    }
    if (status == KVB_OK) {
        status = reach_lines(table, first_lines);
    }
    if (status != KVB_OK) {
        kvb_line_table_close(table);
    }
    return status;
}

void kvb_line_table_close(struct kvb_line_table *table)
{
    kvb_region_close(&table->lines);
    kvb_region_close(&table->spill);
    *table = (struct kvb_line_table){ 0 };
}

/* Lines from line_count on may have stale cells.  That is harmless, because a split zeroes its new
 * line. */
static void begin_small(struct kvb_line_table *table)
{
    table->line_count = first_lines;
    table->mask = first_lines - 1;
    table->split_above = max_things(table->room, first_lines);
}

/* Skips an empty table without spill lines, because none of its lines has a tag or `next`. */
void kvb_line_table_empty(struct kvb_line_table *table)
{
    if (table->line_count > max_kept_lines) {
        kvb_line_table_close(table);
    } else if (table->count > 0 || table->spill_end > 0) {
        if (table->count < table->line_count / sparse_lines) {
            begin_small(table);
        }
        memset(table->lines.base, 0, table->line_count * sizeof(struct kvb_table_line));
        table->count = 0;
        table->spill_end = 0; /* draw_spill() zeroes each spill line */
        table->spill_free = 0;
    }
}

size_t kvb_line_table_bytes(const struct kvb_line_table *table)
{
    return (table->line_count + table->spill_end) * sizeof(struct kvb_table_line);
}

bool kvb_line_table_populate(struct kvb_line_table *table, size_t spare, size_t step)
{
    const size_t line = sizeof(struct kvb_table_line);
    const size_t lines = (table->count + spare) * 10 / table->room + 1;
    const size_t more = lines > table->line_count ? lines - table->line_count : 0;
    const size_t spilled = more / (table->room == kvb_line_dense ? spilled_dense : spilled_roomy);

    return kvb_region_populate(&table->lines, table->line_count * line, more * line, step) ||
           kvb_region_populate(&table->spill, table->spill_end * line, spilled * line, step);
}

/* ---- Spill lines ---- */

static kvb_status draw_spill(struct kvb_line_table *table, uint32_t *out_next)
{
    /* Spill lines are numbered from 1 on, because 0 ends a chain. */
    if (table->spill_free != 0) {
        *out_next = table->spill_free;
        table->spill_free = kvb_line_spilled(table, *out_next)->next;
    } else {
        KVB_TRY(kvb_region_reach(
            &table->spill, (table->spill_end + 1) * sizeof(struct kvb_table_line)));
        *out_next = (uint32_t)++table->spill_end;
    }
    *kvb_line_spilled(table, *out_next) = (struct kvb_table_line){ 0 };
    return KVB_OK;
}

static void give_back_spill(struct kvb_line_table *table, uint32_t next)
{
    kvb_line_spilled(table, next)->next = table->spill_free;
    table->spill_free = next;
}

/* ---- Cells ---- */

static void set_cell(struct kvb_table_line *line, uint32_t cell, uint16_t tag, uint32_t id)
{
    line->tags[cell] = tag;
    line->ids[cell] = id;
}

[[gnu::hot]] static kvb_status
put_in_chain(struct kvb_line_table *table, struct kvb_table_line *line, uint16_t tag, uint32_t id)
{
    uint32_t free_cells = kvb_line_hits(line, 0);

    while (free_cells == 0 && line->next != 0) {
        line = kvb_line_spilled(table, line->next);
        free_cells = kvb_line_hits(line, 0);
    }
    /* All lines of the chain are full: one more. */
    if (free_cells == 0) {
        uint32_t next = 0;
        KVB_TRY(draw_spill(table, &next));
        line->next = next;
        line = kvb_line_spilled(table, next);
        free_cells = 1;
    }
    set_cell(line, kvb_line_first(free_cells), tag, id);
    return KVB_OK;
}

static uint32_t taken_cells(const struct kvb_table_line *line)
{
    return kvb_line_hits(line, 0) ^ kvb_line_all;
}

/* Fills one free cell of `line` with an item of the chain's last line, to keep chains short.  Frees
 * the last line when it becomes empty. */
[[gnu::hot]] static void
close_line_gap(struct kvb_line_table *table, struct kvb_table_line *line, uint32_t cell)
{
    struct kvb_table_line *before = line;
    struct kvb_table_line *last = line;

    while (last->next != 0) {
        before = last;
        last = kvb_line_spilled(table, last->next);
    }
    /* The gap is in the chain's last line, where gaps may be. */
    if (last == line) {
        return;
    }
    uint32_t taken = taken_cells(last);
    if (taken != 0) {
        const uint32_t moved = kvb_line_first(taken);
        set_cell(line, cell, last->tags[moved], last->ids[moved]);
        last->tags[moved] = 0;
        taken &= taken - 1;
    }
    /* The line before points to no line now. */
    if (taken == 0) {
        give_back_spill(table, before->next);
        before->next = 0;
    }
}

void kvb_line_table_remove_spilled(struct kvb_line_table *table, uint64_t hash, uint32_t id)
{
    const uint16_t tag = kvb_line_tag(hash);
    struct kvb_table_line *line = kvb_line_at(table, hash);

    for (;;) {
        for (uint32_t hits = kvb_line_hits(line, tag); hits != 0; hits &= hits - 1) {
            const uint32_t cell = kvb_line_first(hits);
            if (line->ids[cell] == id) {
                line->tags[cell] = 0;
                table->count--;
                close_line_gap(table, line, cell);
                return;
            }
        }
        assert(line->next != 0); /* fails when the pair is not in the table */
        line = kvb_line_spilled(table, line->next);
    }
}

/* ---- Growing ---- */

/* Makes room for as many new spill lines as the chain has, so that moving its cells cannot fail. */
static bool has_spill_for(struct kvb_line_table *table, const struct kvb_table_line *line)
{
    size_t need = table->spill_end;

    for (; line->next != 0; line = kvb_line_spilled(table, line->next)) {
        need++;
    }
    return kvb_region_reach(&table->spill, need * sizeof(struct kvb_table_line)) == KVB_OK;
}

/* Returns those of the cells whose items' hashes have the bit. */
static uint32_t with_hash_bit(
    const struct kvb_line_table *table, const struct kvb_table_line *line, uint32_t cells,
    uint64_t bit)
{
    uint32_t with = 0;

    for (; cells != 0; cells &= cells - 1) {
        const uint32_t id = line->ids[kvb_line_first(cells)];
        with |= table->hash_of(table->context, id) & bit ? cells & -cells : 0;
    }
    return with;
}

/* The same of all cells.  Reads the tags, where they have the bit: branches that depend on a hash
 * are mispredicted often.  Computes the hash when the tag is 1, because a tag of 1 may stand for 0.
 */
static uint32_t
cells_with_bit(const struct kvb_line_table *table, const struct kvb_table_line *line, uint64_t bit)
{
    const uint16_t in_tag = (uint16_t)(bit >> kvb_line_tag_shift);

    if (in_tag == 0) {
        return with_hash_bit(table, line, taken_cells(line), bit);
    }
    const uint32_t cells = kvb_line_matches(line, in_tag, in_tag);
    const uint32_t unsure = in_tag == 1 ? kvb_line_hits(line, 1) : 0;
    return (cells & ~unsure) | with_hash_bit(table, line, unsure, bit);
}

/* Moves the items that belong to the new line `to` out of this line.  *moved counts them. */
static void move_cells(
    struct kvb_line_table *table, struct kvb_table_line *line, struct kvb_table_line *to,
    uint64_t bit, uint32_t *moved)
{
    for (uint32_t left = cells_with_bit(table, line, bit); left != 0; left &= left - 1) {
        const uint32_t cell = kvb_line_first(left);
        /* The first ten fill the new line itself, from its first cell on. */
        if (*moved < kvb_line_cells) {
            set_cell(to, *moved, line->tags[cell], line->ids[cell]);
        } else {
            const kvb_status status = put_in_chain(table, to, line->tags[cell], line->ids[cell]);
            assert(status == KVB_OK);
            (void)status;
        }
        line->tags[cell] = 0;
        ++*moved;
    }
}

static void close_gaps(struct kvb_line_table *table, struct kvb_table_line *line)
{
    for (;;) {
        for (uint32_t gaps = kvb_line_hits(line, 0); gaps != 0 && line->next != 0;
             gaps = kvb_line_hits(line, 0)) {
            close_line_gap(table, line, kvb_line_first(gaps));
        }
        if (line->next == 0) {
            return;
        }
        line = kvb_line_spilled(table, line->next);
    }
}

/* Splits the next line of this round.  Without memory it splits nothing.  Then lines get fuller,
 * and a later put tries again. */
[[gnu::hot]] void kvb_line_table_split(struct kvb_line_table *table)
{
    if (reach_lines(table, table->line_count + 1) != KVB_OK) {
        return;
    }
    /* At the end of a round the table has doubled, and one more bit of the hash counts. */
    const uint64_t mask = table->line_count > table->mask ? 2 * table->mask + 1 : table->mask;
    const uint64_t bit = (mask + 1) / 2;
    struct kvb_table_line *lines = (struct kvb_table_line *)(void *)table->lines.base;
    struct kvb_table_line *to = lines + table->line_count;
    struct kvb_table_line *from = lines + (table->line_count - bit);

    if (!has_spill_for(table, from)) {
        return;
    }
    uint32_t moved = 0;
    *to = (struct kvb_table_line){ 0 };
    __builtin_prefetch(from + 1, 1); /* the next line to split */
    __builtin_prefetch(to + 1, 1);
    for (struct kvb_table_line *line = from;; line = kvb_line_spilled(table, line->next)) {
        move_cells(table, line, to, bit, &moved);
        if (line->next == 0) {
            break;
        }
    }
    close_gaps(table, from);
    table->mask = mask;
    table->line_count++;
    table->split_above = max_things(table->room, table->line_count);
}

[[gnu::hot]] kvb_status
kvb_line_table_put_spilled(struct kvb_line_table *table, uint64_t hash, uint32_t id)
{
    KVB_TRY(put_in_chain(table, kvb_line_at(table, hash), kvb_line_tag(hash), id));
    if (++table->count > table->split_above) {
        kvb_line_table_split(table);
    }
    return KVB_OK;
}
