#include "fleet/interval_reader.h"

#include <stdlib.h>

static struct kvb_reader_entry *entry_of(struct kvb_reader *reader, kvb_engine_hash hash)
{
    for (size_t i = 0; i < reader->count; i++) {
        if (reader->entries[i].hash.value == hash.value) {
            return &reader->entries[i];
        }
    }
    return NULL;
}

static void store(struct kvb_reader *reader, kvb_engine_hash hash, bool has_parent)
{
    struct kvb_reader_entry *entry = entry_of(reader, hash);

    if (!entry) {
        if (reader->count == kvb_reader_max_entries) {
            abort();
        }
        reader->entries[reader->count++] = (struct kvb_reader_entry){ hash, 1, 1 };
        return;
    }
    entry->max++;
    entry->min = has_parent || entry->min == 0 ? entry->min + 1 : entry->min;
}

static void drop(struct kvb_reader *reader, kvb_engine_hash hash)
{
    struct kvb_reader_entry *entry = entry_of(reader, hash);

    if (!entry) {
        reader->unknown_removals++;
        return;
    }
    entry->max--;
    entry->min -= entry->min > 0;
    if (entry->max == 0) {
        *entry = reader->entries[--reader->count];
    }
}

static void apply_event(
    struct kvb_reader *reader, const struct kvb_event_batch *batch,
    const struct kvb_engine_event *event)
{
    if (event->kind == KVB_EVENT_CLEARED) {
        reader->count = 0;
        return;
    }
    for (uint32_t i = 0; i < event->hash_count; i++) {
        const kvb_engine_hash hash = batch->hashes[event->hash_at + i];
        if (event->kind == KVB_EVENT_STORED) {
            store(reader, hash, event->has_parent);
        } else {
            drop(reader, hash);
        }
    }
}

void kvb_reader_apply(struct kvb_reader *reader, const struct kvb_event_batch *batch)
{
    for (size_t i = 0; i < batch->event_count; i++) {
        apply_event(reader, batch, &batch->events[i]);
    }
}

static const struct kvb_truth_block *held(const struct kvb_truth *truth, kvb_engine_hash hash)
{
    for (uint32_t i = 0; i < truth->count; i++) {
        if (truth->blocks[i].hash.value == hash.value && truth->blocks[i].copies > 0) {
            return &truth->blocks[i];
        }
    }
    return NULL;
}

static size_t count_held(const struct kvb_truth *truth)
{
    size_t count = 0;

    for (uint32_t i = 0; i < truth->count; i++) {
        count += truth->blocks[i].copies > 0;
    }
    return count;
}

struct kvb_reader_difference
kvb_reader_compare(const struct kvb_reader *reader, const struct kvb_truth *truth)
{
    struct kvb_reader_difference difference = { 0 };
    size_t listed_and_held = 0;

    for (size_t i = 0; i < reader->count; i++) {
        const struct kvb_reader_entry *entry = &reader->entries[i];
        const struct kvb_truth_block *block = held(truth, entry->hash);
        const unsigned copies = block ? block->copies : 0;

        difference.doubtful += entry->min == 0;
        difference.phantoms += entry->min > 0 && !block;
        listed_and_held += entry->min > 0 && block;
        difference.inexact += copies < entry->min || copies > entry->max;
    }
    difference.misses = count_held(truth) - listed_and_held;
    return difference;
}
