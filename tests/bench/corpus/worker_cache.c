#include "corpus/worker_cache.h"

#include "parts/bench.h"

#include <stdlib.h>

void worker_cache_init(struct worker_cache *cache, uint32_t capacity)
{
    *cache = (struct worker_cache){ .capacity = capacity };
    cache->places = bench_memory((size_t)capacity + 1, sizeof *cache->places);
    for (uint32_t i = 0; i < capacity; i++) {
        cache->places[i].newer = i + 1 < capacity ? i + 1 : WORKER_NO_PLACE;
    }
    cache->places[capacity].older = capacity;
    cache->places[capacity].newer = capacity;
}

void worker_cache_done(struct worker_cache *cache)
{
    free(cache->places);
    kvb_id_table_done(&cache->table);
}

static uint32_t hash_of(uint64_t block)
{
    return (uint32_t)(block * UINT64_C(0x9e3779b97f4a7c15) >> 32);
}

uint32_t worker_cache_find(const struct worker_cache *cache, kvb_block_hash block)
{
    const uint32_t hash = hash_of(block.value);
    size_t at = kvb_id_table_start(&cache->table, hash);

    if (cache->table.count == 0) { /* there may be no cell yet */
        return WORKER_NO_PLACE;
    }
    for (uint32_t id; (id = kvb_id_table_next(&cache->table, hash, &at)) != KVB_NO_ID;) {
        if (cache->places[id].block == block.value) {
            return id;
        }
    }
    return WORKER_NO_PLACE;
}

void worker_cache_use(struct worker_cache *cache, uint32_t place)
{
    const struct worker_place *at = &cache->places[place];

    cache->places[at->older].newer = at->newer;
    cache->places[at->newer].older = at->older;
}

void worker_cache_release(struct worker_cache *cache, uint32_t place)
{
    struct worker_place *head = &cache->places[cache->capacity];

    cache->places[place].older = head->older;
    cache->places[place].newer = cache->capacity;
    cache->places[head->older].newer = place;
    head->older = place;
}

/* Empties the idle place that is evicted first; WORKER_NO_PLACE when all are in use. */
static uint32_t evict(struct worker_cache *cache, kvb_block_hash *evicted, size_t *evicted_count)
{
    const uint32_t place = cache->places[cache->capacity].newer;

    if (place == cache->capacity) {
        return WORKER_NO_PLACE;
    }
    worker_cache_use(cache, place);
    const uint64_t block = cache->places[place].block;
    kvb_id_table_remove(&cache->table, hash_of(block), place);
    evicted[(*evicted_count)++] = (kvb_block_hash){ block };
    return place;
}

uint32_t worker_cache_take(
    struct worker_cache *cache, kvb_block_hash block, kvb_block_hash *evicted,
    size_t *evicted_count)
{
    uint32_t place = cache->free;

    if (place != WORKER_NO_PLACE) {
        cache->free = cache->places[place].newer;
    } else {
        place = evict(cache, evicted, evicted_count);
    }
    if (place != WORKER_NO_PLACE) {
        cache->places[place].block = block.value;
        bench_must(
            kvb_id_table_put(&cache->table, hash_of(block.value), place), "a worker's cache");
    }
    return place;
}

void worker_cache_rename(struct worker_cache *cache, uint32_t place, kvb_block_hash block)
{
    struct worker_place *at = &cache->places[place];

    kvb_id_table_remove(&cache->table, hash_of(at->block), place);
    at->block = block.value;
    bench_must(kvb_id_table_put(&cache->table, hash_of(block.value), place), "a worker's cache");
}
