#include "stream/told.h"

#include "core/array.h"
#include "index/id_table.h"

#include <stdlib.h>

/* As in mirror_change.c: so that an event fits a message of any reader. */
enum { most_removed_in_an_event = 512 };

struct told_name {
    kvb_block_hash block;
    uint64_t left_ns; /* when its removal was published; 0 = held */
};

struct kvb_told {
    struct told_name *names; /* owned, dense */
    size_t count;
    size_t capacity;
    size_t max_names;
    struct kvb_id_table by_block; /* name -> place in names */
    uint64_t swept_ns;
};

kvb_status kvb_told_new(size_t max_names, struct kvb_told **out_told)
{
    struct kvb_told *told = calloc(1, sizeof *told);

    if (!told) {
        return KVB_NO_MEMORY;
    }
    told->max_names = max_names;
    *out_told = told;
    return KVB_OK;
}

void kvb_told_free(struct kvb_told *told)
{
    if (!told) {
        return;
    }
    kvb_id_table_done(&told->by_block);
    free(told->names);
    free(told);
}

static struct told_name *find(const struct kvb_told *told, kvb_block_hash block)
{
    const uint32_t hash = kvb_id_hash(block.value);
    size_t at = kvb_id_table_start(&told->by_block, hash);

    for (uint32_t id; (id = kvb_id_table_next(&told->by_block, hash, &at)) != KVB_NO_ID;) {
        if (told->names[id].block.value == block.value) {
            return &told->names[id];
        }
    }
    return NULL;
}

static kvb_status add(struct kvb_told *told, kvb_block_hash block)
{
    KVB_TRY(kvb_array_reserve(
        &told->names, &told->capacity, told->count + 1, sizeof *told->names, told->max_names));
    KVB_TRY(kvb_id_table_put(&told->by_block, kvb_id_hash(block.value), (uint32_t)told->count));
    told->names[told->count++] = (struct told_name){ .block = block };
    return KVB_OK;
}

static kvb_status note_stored(struct kvb_told *told, kvb_block_hash block)
{
    struct told_name *name = find(told, block);

    if (!name) {
        return add(told, block);
    }
    name->left_ns = 0;
    return KVB_OK;
}

kvb_status
kvb_told_note(struct kvb_told *told, const struct kvb_router_batch *events, uint64_t now_ns)
{
    for (size_t i = 0; i < events->event_count; i++) {
        const struct kvb_router_event *event = &events->events[i];
        if (event->tier == KVB_LIST_WINDOW) {
            continue; /* readers who know no `cleared` are not told of it */
        }
        for (size_t at = event->block_at; at < event->block_at + event->block_count; at++) {
            if (event->kind == KVB_ROUTER_STORED) {
                KVB_TRY(note_stored(told, events->blocks[at]));
                continue;
            }
            struct told_name *name = find(told, events->blocks[at]);
            if (name) {
                name->left_ns = now_ns ? now_ns : 1;
            }
        }
    }
    return KVB_OK;
}

static void move_name(struct kvb_told *told, size_t from, size_t to)
{
    const uint32_t hash = kvb_id_hash(told->names[from].block.value);

    kvb_id_table_remove(&told->by_block, hash, (uint32_t)from);
    (void)kvb_id_table_put(&told->by_block, hash, (uint32_t)to); /* a cell is free: cannot fail */
    told->names[to] = told->names[from];
}

/* The last name takes the place of the one that goes. */
static void drop(struct kvb_told *told, size_t at)
{
    kvb_id_table_remove(&told->by_block, kvb_id_hash(told->names[at].block.value), (uint32_t)at);
    told->count--;
    if (at != told->count) {
        move_name(told, told->count, at);
    }
}

void kvb_told_forget(struct kvb_told *told, uint64_t now_ns)
{
    if (now_ns < told->swept_ns + kvb_told_leave_ns) {
        return;
    }
    told->swept_ns = now_ns;
    for (size_t at = 0; at < told->count;) {
        const uint64_t left_ns = told->names[at].left_ns;
        if (left_ns > 0 && now_ns >= left_ns + kvb_told_leave_ns) {
            drop(told, at); /* another name stands here now */
        } else {
            at++;
        }
    }
}

kvb_status kvb_told_add(struct kvb_told *told, kvb_block_hash block)
{
    return note_stored(told, block);
}

kvb_block_hash kvb_told_at(const struct kvb_told *told, size_t at)
{
    return told->names[at].block;
}

size_t kvb_told_count(const struct kvb_told *told)
{
    return told->count;
}

kvb_status kvb_told_list(
    const struct kvb_told *told, size_t from, size_t max_blocks, struct kvb_router_batch *out,
    size_t *out_count)
{
    size_t listed = 0;

    for (; listed < max_blocks && from + listed < told->count; listed++) {
        if (listed % most_removed_in_an_event == 0) {
            KVB_TRY(kvb_router_batch_add_event(
                out, &(struct kvb_router_event){ .kind = KVB_ROUTER_REMOVED }));
        }
        KVB_TRY(kvb_router_batch_add_block(
            out, told->names[from + listed].block, (kvb_tokens_hash){ 0 }));
    }
    *out_count = listed;
    return KVB_OK;
}
