#include "model/stream_table.h"

#include "core/array.h"
#include "core/limits.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

enum { first_cells = 32 };

void kvb_stream_table_init(struct kvb_stream_table *table, size_t max_streams, uint64_t hash_key)
{
    *table = (struct kvb_stream_table){
        .max_streams = max_streams < kvb_max_streams ? max_streams : kvb_max_streams,
        .hash_key = hash_key,
    };
}

void kvb_stream_table_done(struct kvb_stream_table *table)
{
    free(table->entries);
    free(table->cells);
    *table = (struct kvb_stream_table){ 0 };
}

bool kvb_stream_id_equal(const struct kvb_stream_id *a, const struct kvb_stream_id *b)
{
    return a->worker_id == b->worker_id && a->dp_rank == b->dp_rank &&
           strcmp(a->component, b->component) == 0 && strcmp(a->name_space, b->name_space) == 0;
}

static uint64_t hash_text(const char *text, uint64_t seed)
{
    return kvb_hash64((kvb_span){ .data = (const uint8_t *)text, .len = strlen(text) }, seed);
}

static uint32_t stream_hash(const struct kvb_stream_table *table, const struct kvb_stream_id *id)
{
    const uint64_t numbers[2] = { id->worker_id, id->dp_rank };
    const kvb_span bytes = { .data = (const uint8_t *)numbers, .len = sizeof numbers };
    const uint64_t names = hash_text(id->component, hash_text(id->name_space, table->hash_key));

    return (uint32_t)kvb_hash64(bytes, names);
}

static bool holds(
    const struct kvb_stream_table *table, uint32_t number, uint32_t hash,
    const struct kvb_stream_id *id)
{
    const struct kvb_stream_entry *entry = &table->entries[number];

    return entry->hash == hash && kvb_stream_id_equal(&entry->id, id);
}

/* Terminates because at most half of the cells are taken. */
static kvb_status find_hashed(
    const struct kvb_stream_table *table, uint32_t hash, const struct kvb_stream_id *id,
    uint32_t *out_number)
{
    if (table->cell_count == 0) {
        return KVB_NOT_FOUND;
    }
    const size_t mask = table->cell_count - 1;
    for (size_t at = hash & mask; table->cells[at]; at = (at + 1) & mask) {
        const uint32_t number = table->cells[at] - 1;
        if (holds(table, number, hash, id)) {
            *out_number = number;
            return KVB_OK;
        }
    }
    return KVB_NOT_FOUND;
}

kvb_status kvb_stream_table_find(
    const struct kvb_stream_table *table, const struct kvb_stream_id *id, uint32_t *out_number)
{
    return find_hashed(table, stream_hash(table, id), id, out_number);
}

static void put_stream_cell(uint32_t *cells, size_t cell_count, uint32_t hash, uint32_t number)
{
    const size_t mask = cell_count - 1;
    size_t at = hash & mask;

    while (cells[at]) {
        at = (at + 1) & mask;
    }
    cells[at] = number + 1;
}

static kvb_status make_room_in_cells(struct kvb_stream_table *table)
{
    if (2 * (table->count + 1) <= table->cell_count) {
        return KVB_OK;
    }
    const size_t cell_count = table->cell_count ? 2 * table->cell_count : first_cells;
    uint32_t *cells = calloc(cell_count, sizeof *cells);
    if (!cells) {
        return KVB_NO_MEMORY;
    }
    for (size_t i = 0; i < table->limit; i++) {
        if (table->entries[i].is_used) {
            put_stream_cell(cells, cell_count, table->entries[i].hash, (uint32_t)i);
        }
    }
    free(table->cells);
    table->cells = cells;
    table->cell_count = cell_count;
    return KVB_OK;
}

static uint32_t draw_number(struct kvb_stream_table *table)
{
    if (table->first_free == 0) {
        return (uint32_t)table->limit++;
    }
    const uint32_t number = table->first_free - 1;
    table->first_free = table->entries[number].next_free;
    return number;
}

kvb_status kvb_stream_table_add(
    struct kvb_stream_table *table, const struct kvb_stream_id *id, uint32_t *out_number)
{
    const uint32_t hash = stream_hash(table, id);

    if (find_hashed(table, hash, id, out_number) == KVB_OK) {
        return KVB_OK;
    }
    if (table->count >= table->max_streams) {
        return KVB_TOO_LARGE;
    }
    KVB_TRY(make_room_in_cells(table));
    if (table->first_free == 0) {
        KVB_TRY(kvb_array_reserve(
            &table->entries, &table->capacity, table->limit + 1, sizeof *table->entries,
            table->max_streams));
    }
    const uint32_t number = draw_number(table);
    table->entries[number] = (struct kvb_stream_entry){ .id = *id, .hash = hash, .is_used = true };
    put_stream_cell(table->cells, table->cell_count, hash, number);
    table->count++;
    *out_number = number;
    return KVB_OK;
}

/* Backward-shift deletion at `at`: later cells of the run move back where their home allows it,
 * so that no look-up stops too early. */
static void shift_back(struct kvb_stream_table *table, size_t at)
{
    const size_t mask = table->cell_count - 1;

    for (size_t next = (at + 1) & mask; table->cells[next]; next = (next + 1) & mask) {
        const size_t home = table->entries[table->cells[next] - 1].hash & mask;
        if (((next - home) & mask) >= ((next - at) & mask)) {
            table->cells[at] = table->cells[next];
            at = next;
        }
    }
    table->cells[at] = 0;
}

void kvb_stream_table_remove(struct kvb_stream_table *table, uint32_t number)
{
    assert(kvb_stream_table_id(table, number));
    struct kvb_stream_entry *entry = &table->entries[number];
    const size_t mask = table->cell_count - 1;
    size_t at = entry->hash & mask;

    while (table->cells[at] != number + 1) {
        at = (at + 1) & mask;
    }
    shift_back(table, at);
    *entry = (struct kvb_stream_entry){ .next_free = table->first_free };
    table->first_free = number + 1;
    table->count--;
}

const struct kvb_stream_id *
kvb_stream_table_id(const struct kvb_stream_table *table, uint32_t number)
{
    const bool is_used = number < table->limit && table->entries[number].is_used;

    return is_used ? &table->entries[number].id : NULL;
}
