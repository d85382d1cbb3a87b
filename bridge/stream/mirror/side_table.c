#include "core/array.h"
#include "stream/mirror/inside.h"

#include <stdlib.h>
#include <string.h>

/* Records that few entries of a mirror need. */

static uint32_t entry_of(const struct side_table *table, size_t place)
{
    uint32_t id = KVB_NO_ID;

    memcpy(&id, table->records + place * table->record_bytes, sizeof id);
    return id;
}

static uint32_t hash_of(const struct kvb_mirror *mirror, uint32_t id)
{
    return (uint32_t)kvb_hash_keyed(&mirror->hash_key, id, 0);
}

static uint32_t
place_of(const struct kvb_mirror *mirror, const struct side_table *table, uint32_t id)
{
    const uint32_t hash = hash_of(mirror, id);
    size_t at = kvb_id_table_start(&table->by_entry, hash);
    uint32_t place = KVB_NO_ID;

    do {
        place = kvb_id_table_next(&table->by_entry, hash, &at);
    } while (place != KVB_NO_ID && entry_of(table, place) != id);
    return place;
}

void *
kvb_side_table_find(const struct kvb_mirror *mirror, const struct side_table *table, uint32_t id)
{
    const uint32_t place = table->count > 0 ? place_of(mirror, table, id) : KVB_NO_ID;

    return place != KVB_NO_ID ? table->records + place * table->record_bytes : NULL;
}

kvb_status
kvb_side_table_add(const struct kvb_mirror *mirror, struct side_table *table, const void *record)
{
    uint32_t id = KVB_NO_ID;

    memcpy(&id, record, sizeof id);
    KVB_TRY(kvb_array_reserve(
        &table->records, &table->capacity, table->count + 1, table->record_bytes,
        mirror->max_blocks));
    KVB_TRY(kvb_id_table_put(&table->by_entry, hash_of(mirror, id), (uint32_t)table->count));
    memcpy(table->records + table->count * table->record_bytes, record, table->record_bytes);
    table->count++;
    return KVB_OK;
}

void kvb_side_table_drop(const struct kvb_mirror *mirror, struct side_table *table, uint32_t id)
{
    const uint32_t place = place_of(mirror, table, id);
    const uint32_t last = (uint32_t)--table->count;
    const uint32_t moved = entry_of(table, last);

    kvb_id_table_remove(&table->by_entry, hash_of(mirror, id), place);
    if (place == last) {
        return;
    }
    /* The last record moves into the place that has come free. */
    kvb_id_table_remove(&table->by_entry, hash_of(mirror, moved), last);
    const kvb_status status = kvb_id_table_put(&table->by_entry, hash_of(mirror, moved), place);
    assert(status == KVB_OK); /* two cells have just come free */
    (void)status;
    memcpy(
        table->records + place * table->record_bytes, table->records + last * table->record_bytes,
        table->record_bytes);
}

void kvb_side_table_clear(struct side_table *table)
{
    kvb_id_table_clear(&table->by_entry);
    table->count = 0;
}

void kvb_side_table_done(struct side_table *table)
{
    kvb_id_table_done(&table->by_entry);
    free(table->records);
}
