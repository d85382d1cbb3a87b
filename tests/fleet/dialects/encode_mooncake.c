#include "core/own.h"
#include "fleet/dialects/source.h"
#include "wire/engine/pack.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* The events of a Mooncake store.  It holds objects under keys, each in one or more replicas.
 * Only one of its two dialects carries tokens: those that the engine passed when it stored the
 * object. */

enum { max_key_bytes = 24, bytes_of_a_token = 1024 };

struct block {
    const struct engine_source *source;
    kvb_engine_hash hash;
    uint32_t at; /* its index in the event */
};

/* A key is the block's hash in hex, so an event that has only the key still identifies the
 * block. */
static void write_object_key(char out[max_key_bytes], kvb_engine_hash hash)
{
    (void)snprintf(out, max_key_bytes, "0x%016" PRIx64, hash.value);
}

static void pack_key(msgpack_packer *packer, kvb_engine_hash hash)
{
    char key[max_key_bytes];

    write_object_key(key, hash);
    kvb_pack_text(packer, key);
}

static struct block mooncake_block(const struct engine_source *source, uint32_t at)
{
    return (struct block){ source, source->batch->hashes[source->event->hash_at + at], at };
}

/* The parent of a block is the block before it in the event; the parent of the first block is the
 * event's parent.  False: the block is a root. */
static bool find_block_parent(const struct block *block, kvb_engine_hash *out_parent)
{
    const struct engine_source *source = block->source;

    if (block->at > 0) {
        *out_parent = mooncake_block(source, block->at - 1).hash;
        return true;
    }
    *out_parent = source->event->parent;
    return source->event->has_parent;
}

size_t kvb_pack_mooncake_count(const struct engine_source *source)
{
    return source->event->kind == KVB_EVENT_CLEARED ? 1 : source->event->hash_count;
}

/* ---- [tag, key, replicas, ...] ---- */

static void pack_replica(msgpack_packer *packer, const struct engine_source *source)
{
    const char *medium = source->dialect->media[source->event->tier];

    (void)msgpack_pack_array(packer, 1);
    (void)msgpack_pack_array(packer, 2);
    kvb_pack_text(packer, medium);
    kvb_pack_text(packer, strcmp(medium, "disk") == 0 ? "/data/blocks" : "tcp://127.0.0.1:6000");
}

static void pack_own_tokens(msgpack_packer *packer, const struct block *block)
{
    const struct kvb_event_batch *batch = block->source->batch;
    const struct kvb_engine_event *event = block->source->event;
    const uint32_t count = event->token_count > 0 ? event->block_size : 0;

    (void)msgpack_pack_array(packer, count);
    for (uint32_t i = 0; i < count; i++) {
        const size_t at = event->token_at + (size_t)block->at * event->block_size + i;
        (void)msgpack_pack_uint32(packer, batch->tokens[at]);
    }
}

/* model_name, block_size in bytes, block_hash, parent_block_hash, token_ids */
static void pack_store_info(msgpack_packer *packer, const struct block *block)
{
    kvb_engine_hash parent = { 0 };

    kvb_pack_text(packer, "");
    (void)msgpack_pack_uint32(packer, block->source->event->block_size * bytes_of_a_token);
    pack_key(packer, block->hash);
    if (find_block_parent(block, &parent)) {
        pack_key(packer, parent);
    } else {
        kvb_pack_text(packer, "");
    }
    pack_own_tokens(packer, block);
}

/* An update with an empty list of replicas removes the block. */
static void pack_block(msgpack_packer *packer, const struct block *block)
{
    const struct engine_source *source = block->source;
    const bool is_stored = source->event->kind == KVB_EVENT_STORED;
    const bool is_whole = is_stored && (source->dialect->fields & KVB_FIELD_TOKENS) != 0;

    (void)msgpack_pack_array(packer, is_whole ? 8 : 3);
    kvb_pack_text(packer, is_whole ? "BlockStoreEvent" : "BlockUpdateEvent");
    pack_key(packer, block->hash);
    if (is_stored) {
        pack_replica(packer, source);
    } else {
        (void)msgpack_pack_array(packer, 0);
    }
    if (is_whole) {
        pack_store_info(packer, block);
    }
}

void kvb_pack_mooncake_replicas(msgpack_packer *packer, const struct engine_source *source)
{
    if (source->event->kind == KVB_EVENT_CLEARED) {
        (void)msgpack_pack_array(packer, 1);
        kvb_pack_text(packer, "RemoveAllEvent");
        return;
    }
    for (uint32_t i = 0; i < source->event->hash_count; i++) {
        const struct block block = mooncake_block(source, i);
        pack_block(packer, &block);
    }
}

/* ---- {"event_type": ...} ---- */

/* The values of `event_type`, and of `type`, which repeats it under vLLM's names. */
static const struct {
    const char *event_type;
    const char *type;
} object_tags[] = {
    [KVB_EVENT_STORED] = { "stored", "BlockStored" },
    [KVB_EVENT_REMOVED] = { "removed", "BlockRemoved" },
    [KVB_EVENT_CLEARED] = { "cleared", "AllBlocksCleared" },
};

static void pack_pair(msgpack_packer *packer, const char *key, const char *text)
{
    kvb_pack_text(packer, key);
    if (text) {
        kvb_pack_text(packer, text);
    } else {
        (void)msgpack_pack_nil(packer);
    }
}

/* Keys that a store of this dialect always writes with the same value. */
static const struct {
    const char *key;
    const char *text; /* NULL: nil */
} object_texts[] = {
    { "model_name", NULL },        { "block_size", NULL },     { "additional_salt", NULL },
    { "lora_name", NULL },         { "group_id", NULL },       { "dp_rank", NULL },
    { "tenant_id", "default" },    { "parent_hash", NULL },    { "token_ids", NULL },
    { "parent_block_hash", NULL }, { "base_block_idx", NULL }, { "backend_id", "store-node-1" },
};

enum { object_times_and_tags = 4, object_block_keys = 4 };

/* block: NULL for a Cleared */
static void
pack_object(msgpack_packer *packer, const struct engine_source *source, const struct block *block)
{
    const uint64_t now_ms = kvb_pack_milliseconds(source->batch);
    const size_t keys = KVB_COUNT_OF(object_texts) + object_times_and_tags;

    (void)msgpack_pack_map(packer, keys + (block ? object_block_keys : 0));
    kvb_pack_text(packer, "event_id");
    (void)msgpack_pack_uint64(packer, (uint64_t)(source->event - source->batch->events) + 1);
    kvb_pack_text(packer, "timestamp");
    (void)msgpack_pack_uint64(packer, now_ms);
    pack_pair(packer, "event_type", object_tags[source->event->kind].event_type);
    pack_pair(packer, "type", object_tags[source->event->kind].type);
    for (size_t i = 0; i < KVB_COUNT_OF(object_texts); i++) {
        pack_pair(packer, object_texts[i].key, object_texts[i].text);
    }
    if (!block) {
        return;
    }
    pack_pair(packer, "medium", source->dialect->media[source->event->tier]);
    kvb_pack_text(packer, "object_key");
    pack_key(packer, block->hash);
    kvb_pack_text(packer, "seq_hashes");
    (void)msgpack_pack_array(packer, 1);
    (void)msgpack_pack_uint64(packer, block->hash.value);
    kvb_pack_text(packer, "block_hashes");
    (void)msgpack_pack_array(packer, 1);
    (void)msgpack_pack_int64(packer, (int64_t)block->hash.value);
}

void kvb_pack_mooncake_objects(msgpack_packer *packer, const struct engine_source *source)
{
    if (source->event->kind == KVB_EVENT_CLEARED) {
        pack_object(packer, source, NULL);
        return;
    }
    for (uint32_t i = 0; i < source->event->hash_count; i++) {
        const struct block block = mooncake_block(source, i);
        pack_object(packer, source, &block);
    }
}
