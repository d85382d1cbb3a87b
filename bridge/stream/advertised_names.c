#include "stream/advertised_names.h"

#include "core/array.h"
#include "core/hash.h"
#include "core/id_table.h"
#include "core/limits.h"

#include <stdlib.h>

struct advertised_name {
    kvb_block_hash block;
    uint64_t left_ns; /* when its removal was published; 0 = held */
};

struct kvb_advertised_names {
    struct advertised_name *names; /* owned, dense */
    size_t count;
    size_t capacity;
    size_t max_names;
    struct kvb_hash_key key;
    struct kvb_id_table by_block; /* name -> place in names */
    uint64_t swept_ns;
};

kvb_status kvb_advertised_new(
    size_t max_names, uint64_t hash_key, struct kvb_advertised_names **out_advertised)
{
    struct kvb_advertised_names *advertised = calloc(1, sizeof *advertised);

    if (!advertised) {
        return KVB_NO_MEMORY;
    }
    advertised->max_names = max_names;
    advertised->key = kvb_hash_key_of(hash_key);
    *out_advertised = advertised;
    return KVB_OK;
}

void kvb_advertised_free(struct kvb_advertised_names *advertised)
{
    if (!advertised) {
        return;
    }
    kvb_id_table_done(&advertised->by_block);
    free(advertised->names);
    free(advertised);
}

static uint32_t hash_of(const struct kvb_advertised_names *advertised, kvb_block_hash block)
{
    return (uint32_t)kvb_hash_keyed(&advertised->key, block.value, 0);
}

static struct advertised_name *
find(const struct kvb_advertised_names *advertised, kvb_block_hash block)
{
    const uint32_t hash = hash_of(advertised, block);
    size_t at = kvb_id_table_start(&advertised->by_block, hash);

    for (uint32_t id; (id = kvb_id_table_next(&advertised->by_block, hash, &at)) != KVB_NO_ID;) {
        if (advertised->names[id].block.value == block.value) {
            return &advertised->names[id];
        }
    }
    return NULL;
}

static kvb_status add(struct kvb_advertised_names *advertised, kvb_block_hash block)
{
    KVB_TRY(kvb_array_reserve(
        &advertised->names, &advertised->capacity, advertised->count + 1, sizeof *advertised->names,
        advertised->max_names));
    KVB_TRY(kvb_id_table_put(
        &advertised->by_block, hash_of(advertised, block), (uint32_t)advertised->count));
    advertised->names[advertised->count++] = (struct advertised_name){ .block = block };
    return KVB_OK;
}

static kvb_status note_stored(struct kvb_advertised_names *advertised, kvb_block_hash block)
{
    struct advertised_name *name = find(advertised, block);

    if (!name) {
        return add(advertised, block);
    }
    name->left_ns = 0;
    return KVB_OK;
}

kvb_status kvb_advertised_note(
    struct kvb_advertised_names *advertised, const struct kvb_router_batch *events, uint64_t now_ns)
{
    for (size_t i = 0; i < events->event_count; i++) {
        const struct kvb_router_event *event = &events->events[i];
        if (event->tier != KVB_TIER_DEVICE) {
            continue; /* readers of this profile do not receive it */
        }
        for (size_t at = event->block_at; at < event->block_at + event->block_count; at++) {
            if (event->kind == KVB_ROUTER_STORED) {
                KVB_TRY(note_stored(advertised, events->blocks[at]));
                continue;
            }
            struct advertised_name *name = find(advertised, events->blocks[at]);
            if (name) {
                name->left_ns = now_ns ? now_ns : 1;
            }
        }
    }
    return KVB_OK;
}

static void move_name(struct kvb_advertised_names *advertised, size_t from, size_t to)
{
    const uint32_t hash = hash_of(advertised, advertised->names[from].block);

    kvb_id_table_remove(&advertised->by_block, hash, (uint32_t)from);
    (void)kvb_id_table_put(
        &advertised->by_block, hash, (uint32_t)to); /* a cell is free: cannot fail */
    advertised->names[to] = advertised->names[from];
}

/* Swap-remove: the last name moves into the place of the removed one. */
static void drop(struct kvb_advertised_names *advertised, size_t at)
{
    kvb_id_table_remove(
        &advertised->by_block, hash_of(advertised, advertised->names[at].block), (uint32_t)at);
    advertised->count--;
    if (at != advertised->count) {
        move_name(advertised, advertised->count, at);
    }
}

void kvb_advertised_forget(struct kvb_advertised_names *advertised, uint64_t now_ns)
{
    if (now_ns < advertised->swept_ns + kvb_advertised_leave_ns) {
        return;
    }
    advertised->swept_ns = now_ns;
    for (size_t at = 0; at < advertised->count;) {
        const uint64_t left_ns = advertised->names[at].left_ns;
        if (left_ns > 0 && now_ns >= left_ns + kvb_advertised_leave_ns) {
            drop(advertised, at); /* another name is at this place now */
        } else {
            at++;
        }
    }
}

kvb_status kvb_advertised_add(struct kvb_advertised_names *advertised, kvb_block_hash block)
{
    return note_stored(advertised, block);
}

kvb_block_hash kvb_advertised_at(const struct kvb_advertised_names *advertised, size_t at)
{
    return advertised->names[at].block;
}

size_t kvb_advertised_count(const struct kvb_advertised_names *advertised)
{
    return advertised->count;
}

kvb_status kvb_advertised_list(
    const struct kvb_advertised_names *advertised, size_t from, size_t max_blocks,
    struct kvb_router_batch *out, size_t *out_count)
{
    size_t listed = 0;

    for (; listed < max_blocks && from + listed < advertised->count; listed++) {
        if (listed % kvb_max_event_blocks == 0) {
            KVB_TRY(kvb_router_batch_add_event(
                out, &(struct kvb_router_event){ .kind = KVB_ROUTER_REMOVED }));
        }
        KVB_TRY(kvb_router_batch_add_block(
            out, advertised->names[from + listed].block, (kvb_tokens_hash){ 0 }));
    }
    *out_count = listed;
    return KVB_OK;
}
