#include "tokenize/cache.h"

#include "core/array.h"
#include "core/hash.h"
#include "core/id_table.h"

#include <stdlib.h>
#include <string.h>

enum { max_entries = 1 << 24, entry_overhead_bytes = 36 /* of the tables and of malloc() */ };

/* Links are 1 + an entry's number; 0: none. */
struct entry {
    uint32_t *tokens; /* owned; the body lies behind the tokens; NULL: the entry is free */
    size_t count;
    size_t body_bytes;
    size_t open_bytes; /* kvb_text_open_bytes() of the body */
    struct kvb_hash128 hash;
    uint64_t put_ns;
    uint32_t newer;
    uint32_t older; /* of free entries: the next free one */
    uint32_t key;   /* in the chain */
    bool is_chained;
};

struct kvb_token_cache {
    uint64_t max_bytes;
    uint64_t max_age_ns;
    uint64_t seed;
    struct kvb_id_table table;
    struct kvb_text_chain chain;
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
    cache->chain.seed = seed;
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
    kvb_text_chain_done(&cache->chain);
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
    if (entry->is_chained) {
        kvb_text_chain_remove(&cache->chain, entry->key, id);
    }
    unlink_entry(cache, entry);
    cache->stats.bytes -= entry_bytes(entry->body_bytes, entry->count);
    cache->stats.entries--;
    free(entry->tokens);
    entry->tokens = NULL;
    /* The entry is now the first of the free ones, which share the link. */
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
    struct kvb_token_cache *cache, const struct entry *content, const struct kvb_text_view *text,
    const uint32_t *tokens)
{
    struct entry *entry = NULL;

    KVB_TRY(take_free(cache, &entry));
    const uint32_t id = (uint32_t)(entry - cache->entries);
    /* One allocation for both: tokens first, because they are aligned. */
    uint32_t *block = malloc(content->count * sizeof *block + text->body.len);
    if (!block) {
        return KVB_NO_MEMORY;
    }
    const kvb_status status = kvb_id_table_put(&cache->table, (uint32_t)content->hash.low, id);
    if (status != KVB_OK) {
        free(block);
        return status;
    }
    memcpy(block, tokens, content->count * sizeof *block);
    memcpy(block + content->count, text->body.data, text->body.len);
    /* Nothing can fail any more. */
    claim_free(cache, entry);
    *entry = *content;
    entry->tokens = block;
    /* One that cannot be filed is still found by those who ask for the same text. */
    entry->is_chained = kvb_text_chain_put(&cache->chain, text, id, &entry->key) == KVB_OK;
    put_newest(cache, entry);
    cache->stats.bytes += entry_bytes(text->body.len, entry->count);
    cache->stats.entries++;
    return KVB_OK;
}

/* ---- The three calls ---- */

static bool
is_expired(const struct kvb_token_cache *cache, const struct entry *entry, uint64_t now_ns)
{
    return now_ns - entry->put_ns >= cache->max_age_ns;
}

static void use_entry(
    struct kvb_token_cache *cache, struct entry *entry, const uint32_t **out_tokens,
    size_t *out_count)
{
    unlink_entry(cache, entry);
    put_newest(cache, entry);
    *out_tokens = entry->tokens;
    *out_count = entry->count;
}

kvb_status kvb_token_cache_find(
    struct kvb_token_cache *cache, kvb_span body, uint64_t now_ns, const uint32_t **out_tokens,
    size_t *out_count)
{
    struct entry *entry = find_entry(cache, kvb_hash128(body, cache->seed), body);

    if (entry && is_expired(cache, entry, now_ns)) {
        remove_entry(cache, entry);
        entry = NULL;
    }
    if (!entry) {
        return KVB_NOT_FOUND;
    }
    use_entry(cache, entry, out_tokens, out_count);
    return KVB_OK;
}

kvb_status kvb_token_cache_find_beginning(
    struct kvb_token_cache *cache, const struct kvb_text_view *text, uint64_t now_ns,
    const uint32_t **out_tokens, size_t *out_count, size_t *out_bytes)
{
    const size_t open_bytes = kvb_text_open_bytes(text->body);
    uint32_t ids[kvb_text_candidates];
    const size_t count = kvb_text_chain_find(&cache->chain, text, ids);
    struct entry *longest = NULL;

    for (size_t i = 0; i < count; i++) {
        struct entry *entry = &cache->entries[ids[i]];
        /* The lengths first: the bytes of a shorter one need not be compared. */
        if (entry->open_bytes <= open_bytes && !is_expired(cache, entry, now_ns) &&
            (!longest || entry->open_bytes > longest->open_bytes) &&
            memcmp(entry->tokens + entry->count, text->body.data, entry->open_bytes) == 0) {
            longest = entry;
        }
    }
    if (!longest) {
        return KVB_NOT_FOUND;
    }
    use_entry(cache, longest, out_tokens, out_count);
    *out_bytes = longest->open_bytes;
    return KVB_OK;
}

kvb_status kvb_token_cache_put(
    struct kvb_token_cache *cache, const struct kvb_text_view *text, const uint32_t *tokens,
    size_t count, uint64_t now_ns)
{
    const kvb_span body = text->body;
    const struct entry content = { .count = count,
                                   .body_bytes = body.len,
                                   .open_bytes = kvb_text_open_bytes(body),
                                   .hash = kvb_hash128(body, cache->seed),
                                   .put_ns = now_ns };
    const uint64_t bytes = entry_bytes(body.len, count);
    struct entry *before = find_entry(cache, content.hash, body);

    /* The same text again: its tokens may differ, for an engine may have been updated. */
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
    return copy_entry(cache, &content, text, tokens);
}
