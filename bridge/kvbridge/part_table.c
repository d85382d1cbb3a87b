#include "kvbridge/part_table.h"

#include "core/array.h"
#include "core/hash.h"
#include "core/own.h"
#include "kvbridge/endpoint.h"

#include <stdlib.h>

void kvb_part_table_done(struct kvb_part_table *table)
{
    for (size_t i = 0; i < table->slot_count; i++) {
        kvb_part_unref(table->slots[i].part);
    }
    free(table->slots);
    kvb_id_table_done(&table->by_key);
    kvb_id_table_done(&table->by_worker);
    kvb_id_table_done(&table->by_address);
    *table = (struct kvb_part_table){ 0 };
}

/* ---- Keys ---- */

static uint32_t hash_of_key(enum kvb_part_kind kind, uint64_t id, uint32_t dp_rank)
{
    const uint64_t key[2] = { id, (uint64_t)kind << 32 | dp_rank };

    return (uint32_t)kvb_hash64((kvb_span){ (const uint8_t *)key, sizeof key }, 0);
}

static uint32_t hash_of_worker(uint64_t id)
{
    return (uint32_t)kvb_hash64((kvb_span){ (const uint8_t *)&id, sizeof id }, 0);
}

/* False: no address, as of a load. */
static bool hash_of_address(const char *events, uint32_t *out_hash)
{
    struct kvb_endpoint_range range;

    if (kvb_endpoint_range_of(events, 0, 1, &range, NULL) != KVB_OK) {
        return false;
    }
    *out_hash = (uint32_t)kvb_endpoint_range_hash(&range);
    return true;
}

/* ---- Changes ---- */

/* On failure those that were added are taken out again. */
static kvb_status put_keys(struct kvb_part_table *table, uint32_t number, struct kvb_part *part)
{
    const uint32_t key = hash_of_key(part->kind, part->id, part->dp_rank);
    const uint32_t worker = hash_of_worker(part->id);
    uint32_t address = 0;

    KVB_TRY(kvb_id_table_put(&table->by_key, key, number));
    /* Of a load nothing but its key is looked up. */
    if (part->kind != KVB_PART_RANK) {
        return KVB_OK;
    }
    kvb_status status = kvb_id_table_put(&table->by_worker, worker, number);
    if (status != KVB_OK) {
        kvb_id_table_remove(&table->by_key, key, number);
        return status;
    }
    if (hash_of_address(part->events, &address)) {
        status = kvb_id_table_put(&table->by_address, address, number);
    }
    if (status != KVB_OK) {
        kvb_id_table_remove(&table->by_worker, worker, number);
        kvb_id_table_remove(&table->by_key, key, number);
    }
    return status;
}

/* sign: 1 for a part that comes, SIZE_MAX, which is -1, for one that goes. */
static void count_part(struct kvb_part_table *table, const struct kvb_part *part, size_t sign)
{
    table->count += sign;
    if (part->kind == KVB_PART_RANK) {
        table->ranks += sign;
        table->republished_ranks += kvb_part_is_republished(part) ? sign : 0;
    } else {
        table->load_sources += sign * kvb_worker_load_sources(part->worker);
    }
}

kvb_status kvb_part_table_put(
    struct kvb_part_table *table, struct kvb_part *part, uint32_t source, void *owner,
    uint32_t *out_number)
{
    const bool is_reused = table->count < table->slot_count;
    const uint32_t number = is_reused ? table->next_free : (uint32_t)table->slot_count;

    /* What can fail comes before the first change: after an error the number is still free. */
    KVB_TRY(kvb_array_reserve(
        &table->slots, &table->capacity, (size_t)number + 1, sizeof *table->slots, UINT32_MAX));
    KVB_TRY(put_keys(table, number, part));
    if (is_reused) {
        table->next_free = table->slots[number].next_free;
    } else {
        table->slot_count++;
    }
    table->slots[number] =
        (struct kvb_running){ .part = kvb_part_ref(part), .owner = owner, .source = source };
    count_part(table, part, 1);
    *out_number = number;
    return KVB_OK;
}

void kvb_part_table_remove(struct kvb_part_table *table, uint32_t number)
{
    struct kvb_part *part = table->slots[number].part;
    uint32_t address = 0;

    /* The keys are computed from the part, so they go before the reference to it. */
    kvb_id_table_remove(&table->by_key, hash_of_key(part->kind, part->id, part->dp_rank), number);
    if (part->kind == KVB_PART_RANK) {
        kvb_id_table_remove(&table->by_worker, hash_of_worker(part->id), number);
        if (hash_of_address(part->events, &address)) {
            kvb_id_table_remove(&table->by_address, address, number);
        }
    }
    count_part(table, part, SIZE_MAX);
    kvb_part_unref(part);
    table->slots[number] = (struct kvb_running){ .next_free = table->next_free };
    table->next_free = number;
}

void kvb_part_table_renew(struct kvb_part_table *table, uint32_t number, struct kvb_part *part)
{
    struct kvb_part *old = table->slots[number].part;

    table->slots[number].part = kvb_part_ref(part); /* its keys are those of the old one */
    kvb_part_unref(old);
}

/* ---- Look-ups ---- */

uint32_t kvb_part_table_find(
    const struct kvb_part_table *table, enum kvb_part_kind kind, uint64_t id, uint32_t dp_rank,
    uint32_t source)
{
    const uint32_t hash = hash_of_key(kind, id, dp_rank);
    size_t at = kvb_id_table_start(&table->by_key, hash);

    for (uint32_t number; (number = kvb_id_table_next(&table->by_key, hash, &at)) != KVB_NO_ID;) {
        /* An equal hash is no proof, and two sources may have loads of one id: each is compared. */
        const struct kvb_running *running = &table->slots[number];
        const struct kvb_part *part = running->part;
        if (part->kind == kind && part->id == id && part->dp_rank == dp_rank &&
            (source == KVB_ANY_SOURCE || running->source == source)) {
            return number;
        }
    }
    return KVB_NO_ID;
}

size_t kvb_part_table_start(const struct kvb_part_table *table, uint64_t worker_id)
{
    return kvb_id_table_start(&table->by_worker, hash_of_worker(worker_id));
}

uint32_t kvb_part_table_next(const struct kvb_part_table *table, uint64_t worker_id, size_t *at)
{
    for (uint32_t number; (number = kvb_id_table_next(
                               &table->by_worker, hash_of_worker(worker_id), at)) != KVB_NO_ID;) {
        if (table->slots[number].part->id == worker_id) {
            return number;
        }
    }
    return KVB_NO_ID;
}

/* Two hosts can have one hash: the addresses themselves decide. */
static bool is_one_socket(const char *one, const char *other)
{
    struct kvb_endpoint_range a;
    struct kvb_endpoint_range b;

    return kvb_endpoint_range_of(one, 0, 1, &a, NULL) == KVB_OK &&
           kvb_endpoint_range_of(other, 0, 1, &b, NULL) == KVB_OK &&
           kvb_endpoint_range_clashes(&a, &b);
}

uint32_t
kvb_part_table_find_reader(const struct kvb_part_table *table, const char *events, uint64_t not_of)
{
    uint32_t hash = 0;

    if (!hash_of_address(events, &hash)) {
        return KVB_NO_ID;
    }
    size_t at = kvb_id_table_start(&table->by_address, hash);
    for (uint32_t number;
         (number = kvb_id_table_next(&table->by_address, hash, &at)) != KVB_NO_ID;) {
        const struct kvb_running *running = &table->slots[number];
        /* Ranks of that round are about to be closed: they give their address up. */
        if (running->round != not_of && is_one_socket(events, running->part->events)) {
            return number;
        }
    }
    return KVB_NO_ID;
}
