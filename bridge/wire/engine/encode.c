#include "wire/engine/encode.h"

#include "model/tier.h"
#include "wire/engine/pack.h"

struct writer {
    msgpack_packer packer;
    const struct kvb_event_batch *batch;
    bool is_map;
    bool has_signed_hashes;
};

/* Begins {"type": tag, ...} of so many pairs, or [tag, ...] of so many elements. */
static void begin_event(struct writer *writer, const char *tag, size_t pairs, size_t elements)
{
    if (writer->is_map) {
        (void)msgpack_pack_map(&writer->packer, pairs);
        kvb_pack_text(&writer->packer, "type");
    } else {
        (void)msgpack_pack_array(&writer->packer, elements);
    }
    kvb_pack_text(&writer->packer, tag);
}

/* The key in front of a value: only maps have keys. */
static void pack_key(struct writer *writer, const char *key)
{
    if (writer->is_map) {
        kvb_pack_text(&writer->packer, key);
    }
}

/* Always 9 bytes: some readers accept no shorter form. */
static void pack_hash(struct writer *writer, uint64_t hash)
{
    if (writer->has_signed_hashes) {
        (void)msgpack_pack_fix_int64(&writer->packer, (int64_t)hash);
    } else {
        (void)msgpack_pack_fix_uint64(&writer->packer, hash);
    }
}

static void pack_hashes(struct writer *writer, const struct kvb_engine_event *event)
{
    pack_key(writer, "block_hashes");
    (void)msgpack_pack_array(&writer->packer, event->hash_count);
    for (uint32_t i = 0; i < event->hash_count; i++) {
        pack_hash(writer, writer->batch->hashes[event->hash_at + i].value);
    }
}

static void pack_medium(struct writer *writer, const struct kvb_engine_event *event)
{
    static const char *const media[KVB_TIER_COUNT] = {
        [KVB_TIER_DEVICE] = "GPU",
        [KVB_TIER_HOST] = "CPU",
        [KVB_TIER_DISK] = "DISK",
        [KVB_TIER_EXTERNAL] = "EXTERNAL",
    };

    pack_key(writer, "medium");
    kvb_pack_text(&writer->packer, media[event->tier]);
}

static void pack_group(struct writer *writer, const struct kvb_engine_event *event)
{
    pack_key(writer, "group_idx");
    (void)msgpack_pack_uint32(&writer->packer, event->group);
}

static void pack_stored(struct writer *writer, const struct kvb_engine_event *event)
{
    msgpack_packer *packer = &writer->packer;

    begin_event(writer, "BlockStored", 10, 12);
    pack_hashes(writer, event);
    pack_key(writer, "parent_block_hash");
    if (event->has_parent) {
        pack_hash(writer, event->parent.value);
    } else {
        (void)msgpack_pack_nil(packer);
    }
    pack_key(writer, "token_ids");
    kvb_pack_tokens(packer, writer->batch, event);
    pack_key(writer, "block_size");
    (void)msgpack_pack_uint32(packer, event->block_size);
    pack_key(writer, "lora_id");
    (void)msgpack_pack_nil(packer);
    pack_medium(writer, event);
    pack_key(writer, "lora_name");
    kvb_pack_span(packer, kvb_event_batch_text(writer->batch, event->lora_name));
    if (!writer->is_map) {
        (void)msgpack_pack_nil(packer); /* extra_keys: a map leaves unset fields out */
    }
    pack_group(writer, event);
    pack_key(writer, "kv_cache_spec_kind");
    /* Readers that know groups want the kind; others skip it, in a map and in an array. */
    kvb_pack_text(packer, "full_attention");
    if (!writer->is_map) {
        (void)msgpack_pack_nil(packer); /* kv_cache_spec_sliding_window */
    }
}

static void pack_event(struct writer *writer, const struct kvb_engine_event *event)
{
    switch (event->kind) {
    case KVB_EVENT_STORED:
        pack_stored(writer, event);
        break;
    case KVB_EVENT_REMOVED:
        begin_event(writer, "BlockRemoved", 4, 4);
        pack_hashes(writer, event);
        pack_medium(writer, event);
        pack_group(writer, event);
        break;
    default:
        begin_event(writer, "AllBlocksCleared", 1, 1);
    }
}

kvb_status kvb_republished_batch_encode(
    const struct kvb_event_batch *batch, enum kvb_republish_form form, bool has_signed_hashes,
    struct kvb_buf *out)
{
    struct kvb_pack_sink sink = { .out = out };
    struct writer writer = { .batch = batch,
                             .is_map = form == KVB_REPUBLISH_MAP,
                             .has_signed_hashes = has_signed_hashes };
    const size_t len_before = out->len;

    kvb_pack_begin(&writer.packer, &sink);
    /* [ts, events, rank], as vLLM writes a batch in both forms of its events. */
    (void)msgpack_pack_array(&writer.packer, 3);
    (void)msgpack_pack_double(&writer.packer, batch->timestamp_s);
    (void)msgpack_pack_array(&writer.packer, batch->event_count);
    for (size_t i = 0; i < batch->event_count; i++) {
        pack_event(&writer, &batch->events[i]);
    }
    if (batch->has_rank) {
        (void)msgpack_pack_uint32(&writer.packer, batch->rank);
    } else {
        (void)msgpack_pack_nil(&writer.packer);
    }
    /* The packer goes on after a failure; only the sink knows of it. */
    if (sink.status != KVB_OK) {
        out->len = len_before;
    }
    return sink.status;
}
