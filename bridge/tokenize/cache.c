#include "tokenize/cache.h"

#include "core/array.h"
#include "core/hash.h"
#include "core/id_table.h"

#include <stdlib.h>
#include <string.h>

enum { max_entries = 1 << 24, entry_overhead_bytes = 24 /* of the table and of malloc() */ };

/* Links are 1 + an entry's number; 0: none. */
struct entry {
    uint32_t *tokens; /* owned; the body lies behind the tokens; NULL: the entry is free */
    size_t count;
    size_t body_bytes;
    struct kvb_hash128 hash;
    uint64_t put_ns;
    uint32_t newer;
    uint32_t older; /* of free entries: the next free one */
};

struct kvb_token_cache {
    uint64_t max_bytes;
    uint64_t max_age_ns;
    uint64_t seed;
    struct kvb_id_table table;
    struct entry *entries; /* owned */
    size_t entry_count, entry_capacity;
    uint32_t newest, oldest, free;
    struct kvb_token_cache_stats stats;
};

kvb_status kvb_token_cache_new(
    uint64_t max_bytes, uint64_t max_age_ns, uint64_t seed, struct kvb_token_cache **out_cache)
{
    struct kvb_token_cache *cache = calloc(1, sizeof *cache);

    if (!cache) {
        return KVB_NO_MEMORY;
    }
    cache->max_bytes = max_bytes;
    cache->max_age_ns = max_age_ns;
    cache->seed = seed;
    *out_cache = cache;
    return KVB_OK;
}

void kvb_token_cache_free(struct kvb_token_cache *cache)
{
    if (!cache) {
        return;
    }
    for (size_t i = 0; i < cache->entry_count; i++) {
        free(cache->entries[i].tokens);
    }
    free(cache->entries);
    kvb_id_table_done(&cache->table);
    free(cache);
}

struct kvb_token_cache_stats kvb_token_cache_count(const struct kvb_token_cache *cache)
{
    return cache->stats;
}

/* ---- The list from newest to oldest ---- */

static struct entry *entry_at(struct kvb_token_cache *cache, uint32_t link)
{
    return &cache->entries[link - 1];
}

static void unlink_entry(struct kvb_token_cache *cache, struct entry *entry)
{
    *(entry->newer ? &entry_at(cache, entry->newer)->older : &cache->newest) = entry->older;
    *(entry->older ? &entry_at(cache, entry->older)->newer : &cache->oldest) = entry->newer;
}

static void put_newest(struct kvb_token_cache *cache, struct entry *entry)
{
    const uint32_t link = (uint32_t)(entry - cache->entries) + 1;

    entry->newer = 0;
    entry->older = cache->newest;
    *(entry->older ? &entry_at(cache, entry->older)->newer : &cache->oldest) = link;
    cache->newest = link;
}

/* ---- Entries ---- */

static uint64_t entry_bytes(size_t body_bytes, size_t count)
{
    return sizeof(struct entry) + entry_overhead_bytes + body_bytes + count * sizeof(uint32_t);
}

static bool has_body(const struct entry *entry, struct kvb_hash128 hash, kvb_span body)
{
    return entry->hash.low == hash.low && entry->hash.high == hash.high &&
           entry->body_bytes == body.len &&
           memcmp(entry->tokens + entry->count, body.data, body.len) == 0;
}

static struct entry *
find_entry(struct kvb_token_cache *cache, struct kvb_hash128 hash, kvb_span body)
{
    size_t at = 0;

    if (cache->stats.entries == 0) {
        return NULL; /* the table may have no cells */
    }
    at = kvb_id_table_start(&cache->table, (uint32_t)hash.low);
    for (uint32_t id;
         (id = kvb_id_table_next(&cache->table, (uint32_t)hash.low, &at)) != KVB_NO_ID;) {
        if (has_body(&cache->entries[id], hash, body)) {
            return &cache->entries[id];
        }
    }
    return NULL;
}

static void remove_entry(struct kvb_token_cache *cache, struct entry *entry)
{
    const uint32_t id = (uint32_t)(entry - cache->entries);

    kvb_id_table_remove(&cache->table, (uint32_t)entry->hash.low, id);
    unlink_entry(cache, entry);
    cache->stats.bytes -= entry_bytes(entry->body_bytes, entry->count);
    cache->stats.entries--;
    free(entry->tokens);
    entry->tokens = NULL;
    entry->older = cache->free;
    cache->free = id + 1;
}

/* A free entry that is not linked yet. */
static kvb_status take_free(struct kvb_token_cache *cache, struct entry **out_entry)
{
    if (cache->free) {
        *out_entry = entry_at(cache, cache->free);
        return KVB_OK;
    }
    KVB_TRY(kvb_array_reserve(
        &cache->entries, &cache->entry_capacity, cache->entry_count + 1, sizeof *cache->entries,
        max_entries));
    *out_entry = &cache->entries[cache->entry_count];
    return KVB_OK;
}

/* The entry is in use now. */
static void claim_free(struct kvb_token_cache *cache, const struct entry *entry)
{
    if (cache->free) {
        cache->free = entry->older;
    } else {
        cache->entry_count++;
    }
}

static kvb_status copy_entry(
    struct kvb_token_cache *cache, const struct entry *content, kvb_span body,
    const uint32_t *tokens)
{
    struct entry *entry = NULL;

    KVB_TRY(take_free(cache, &entry));
    uint32_t *block = malloc(content->count * sizeof *block + body.len);
    if (!block) {
        return KVB_NO_MEMORY;
    }
    const kvb_status status = kvb_id_table_put(
        &cache->table, (uint32_t)content->hash.low, (uint32_t)(entry - cache->entries));
    if (status != KVB_OK) {
        free(block);
        return status;
    }
    memcpy(block, tokens, content->count * sizeof *block);
    memcpy(block + content->count, body.data, body.len);
    claim_free(cache, entry);
    *entry = *content;
    entry->tokens = block;
    put_newest(cache, entry);
    cache->stats.bytes += entry_bytes(body.len, entry->count);
    cache->stats.entries++;
    return KVB_OK;
}

/* ---- The two calls ---- */

kvb_status kvb_token_cache_find(
    struct kvb_token_cache *cache, kvb_span body, uint64_t now_ns, const uint32_t **out_tokens,
    size_t *out_count)
{
    struct entry *entry = find_entry(cache, kvb_hash128(body, cache->seed), body);

    if (entry && now_ns - entry->put_ns >= cache->max_age_ns) {
        remove_entry(cache, entry);
        entry = NULL;
    }
    if (!entry) {
        return KVB_NOT_FOUND;
    }
    unlink_entry(cache, entry);
    put_newest(cache, entry);
    *out_tokens = entry->tokens;
    *out_count = entry->count;
    return KVB_OK;
}

kvb_status kvb_token_cache_put(
    struct kvb_token_cache *cache, kvb_span body, const uint32_t *tokens, size_t count,
    uint64_t now_ns)
{
    const struct entry content = { .count = count,
                                   .body_bytes = body.len,
                                   .hash = kvb_hash128(body, cache->seed),
                                   .put_ns = now_ns };
    const uint64_t bytes = entry_bytes(body.len, count);
    struct entry *before = find_entry(cache, content.hash, body);

    if (before) {
        remove_entry(cache, before);
    }
    if (bytes > cache->max_bytes) {
        return KVB_TOO_LARGE;
    }
    while (cache->stats.bytes + bytes > cache->max_bytes) { /* ends: an empty cache has room */
        remove_entry(cache, entry_at(cache, cache->oldest));
        cache->stats.evicted++;
    }
    return copy_entry(cache, &content, body, tokens);
}
