#include "model/stream_table.h"

#include "core/array.h"
#include "core/limits.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

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
    kvb_id_table_done(&table->numbers);
    *table = (struct kvb_stream_table){ 0 };
}

static bool is_same_stream_id(const struct kvb_stream_id *a, const struct kvb_stream_id *b)
{
    return a->worker_id == b->worker_id && a->dp_rank == b->dp_rank &&
           strcmp(a->component, b->component) == 0 && strcmp(a->name_space, b->name_space) == 0;
}

static uint32_t stream_hash(const struct kvb_stream_id *id, uint64_t hash_key)
{
    const uint64_t numbers[2] = { id->worker_id, id->dp_rank };
    const kvb_span bytes = { .data = (const uint8_t *)numbers, .len = sizeof numbers };
    const uint64_t names =
        kvb_hash64(kvb_span_of(id->component), kvb_hash64(kvb_span_of(id->name_space), hash_key));

    return (uint32_t)kvb_hash64(bytes, names);
}

static kvb_status find_hashed(
    const struct kvb_stream_table *table, uint32_t hash, const struct kvb_stream_id *id,
    uint32_t *out_number)
{
    size_t at = kvb_id_table_start(&table->numbers, hash);

    for (uint32_t number; (number = kvb_id_table_next(&table->numbers, hash, &at)) != KVB_NO_ID;) {
        if (is_same_stream_id(&table->entries[number].id, id)) {
            *out_number = number;
            return KVB_OK;
        }
    }
    return KVB_NOT_FOUND;
}

kvb_status kvb_stream_table_find(
    const struct kvb_stream_table *table, const struct kvb_stream_id *id, uint32_t *out_number)
{
    return find_hashed(table, stream_hash(id, table->hash_key), id, out_number);
}

struct kvb_stream_key kvb_stream_key_of(const struct kvb_stream_id *id, uint64_t hash_key)
{
    return (struct kvb_stream_key){ id, hash_key, stream_hash(id, hash_key) };
}

struct kvb_stream_key kvb_stream_table_key(const struct kvb_stream_table *table, uint32_t number)
{
    assert(kvb_stream_table_id(table, number));
    const struct kvb_stream_entry *entry = &table->entries[number];

    return (struct kvb_stream_key){ &entry->id, table->hash_key, entry->hash };
}

kvb_status kvb_stream_table_find_key(
    const struct kvb_stream_table *table, const struct kvb_stream_key *key, uint32_t *out_number)
{
    /* Tables with the same key share the hash of an id. */
    return key->hash_key == table->hash_key ? find_hashed(table, key->hash, key->id, out_number)
                                            : kvb_stream_table_find(table, key->id, out_number);
}

static uint32_t next_number(const struct kvb_stream_table *table)
{
    return table->first_free ? table->first_free - 1 : (uint32_t)table->limit;
}

static uint32_t draw_number(struct kvb_stream_table *table)
{
    const uint32_t number = next_number(table);

    if (table->first_free) {
        table->first_free = table->entries[number].next_free;
    } else {
        table->limit++;
    }
    return number;
}

kvb_status kvb_stream_table_add(
    struct kvb_stream_table *table, const struct kvb_stream_id *id, uint32_t *out_number)
{
    const uint32_t hash = stream_hash(id, table->hash_key);

    if (find_hashed(table, hash, id, out_number) == KVB_OK) {
        return KVB_OK;
    }
    if (table->count >= table->max_streams) {
        return KVB_TOO_LARGE;
    }
    /* Only a number that was never used needs another entry. */
    if (table->first_free == 0) {
        KVB_TRY(kvb_array_reserve(
            &table->entries, &table->capacity, table->limit + 1, sizeof *table->entries,
            table->max_streams));
    }
    /* The last step that can fail comes before the number is drawn. */
    KVB_TRY(kvb_id_table_put(&table->numbers, hash, next_number(table)));
    const uint32_t number = draw_number(table);
    table->entries[number] = (struct kvb_stream_entry){ .id = *id, .hash = hash, .is_used = true };
    table->count++;
    *out_number = number;
    return KVB_OK;
}

void kvb_stream_table_remove(struct kvb_stream_table *table, uint32_t number)
{
    assert(kvb_stream_table_id(table, number));
    struct kvb_stream_entry *entry = &table->entries[number];

    kvb_id_table_remove(&table->numbers, entry->hash, number);
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
