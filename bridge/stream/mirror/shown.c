#include "stream/mirror/shown.h"

#include "core/array.h"
#include "core/little_endian.h"
#include "stream/mirror/change.h"

#include <stdlib.h>
#include <string.h>

/* The longest way to a root that is followed. */
enum { max_depth = 1 << 16 };

enum content {
    content_unknown,  /* its tokens never came */
    content_showable, /* it has tokens */
    content_left_out  /* known, but readers cannot use it */
};

/* Beside each entry, under the same number.
 *
 *     never changed --- is held, or not; content --> in the list of changes --- taken --> shown?
 *                                                             |
 *     the mirror drops it: is_gone, and stays until it is neither shown nor a parent
 */
struct shown_block {
    uint32_t parent; /* entries, like the next four; KVB_NO_ID: none, or it is an orphan */
    uint32_t first_child;
    uint32_t next, previous; /* children of the same parent */
    uint32_t next_changed;
    uint32_t tokens; /* showable: where its tokens are, in blocks; else the same of a free place */
    uint16_t lora;   /* 0: the base model */
    uint16_t content : 2;
    uint16_t has_parent : 1;
    uint16_t is_shown : 1;
    uint16_t is_changed : 1;   /* in the list of changes */
    uint16_t is_held : 1;      /* counted as held on the device */
    uint16_t is_orphan : 1;    /* in the table of orphans */
    uint16_t is_moved : 1;     /* readers have it below another parent: it is removed first */
    uint16_t is_ambiguous : 1; /* its hash came with other tokens: it is hidden first */
    uint16_t is_gone : 1;      /* the mirror has dropped it */
};

static_assert(sizeof(struct shown_block) == 28, "as the header says");

/* Names of adapters, with the number of blocks that use each; place 0 is the base model. */
struct shown_lora {
    uint8_t *text; /* owned; NULL: free */
    size_t len;
    uint32_t uses;
};

struct kvb_shown {
    struct kvb_mirror *mirror; /* borrowed: it owns this */
    uint32_t block_size;
    bool is_hidden;

    struct kvb_region block_memory;
    struct shown_block *blocks; /* there */
    size_t capacity;            /* of blocks; entries from here on have none */

    struct kvb_region token_memory;
    uint32_t *tokens;     /* there: block_size of each place */
    size_t token_end;     /* places ever used */
    uint32_t first_place; /* free ones are linked by their first token; KVB_NO_ID: none */

    struct kvb_id_table
        orphans; /* published name of the parent -> blocks whose parent has no entry */

    uint32_t first_changed, last_changed; /* first in, first out; KVB_NO_ID: none */
    uint32_t adopting;                    /* was shown just now: its orphans become its children */
    uint32_t passing; /* the children from here on change, too: their parent was shown or removed */
    bool is_cleared;  /* readers have not been sent the Cleared yet */

    struct kvb_picture snapshot; /* owned; while one is taken */
    uint64_t starts;             /* how often readers were to start over */
    uint64_t snapshot_starts;    /* the same when the snapshot began */

    struct shown_lora *loras; /* owned */
    size_t lora_count, lora_capacity;

    struct kvb_shown_counts counts;
};

/* ---- New and free ---- */

static void reset_shown(struct kvb_shown *shown)
{
    shown->token_end = 0;
    shown->first_place = KVB_NO_ID;
    shown->first_changed = KVB_NO_ID;
    shown->last_changed = KVB_NO_ID;
    shown->adopting = KVB_NO_ID;
    shown->passing = KVB_NO_ID;
    shown->is_cleared = true; /* readers may have blocks of an earlier process */
    shown->starts++;
    shown->counts.held = 0;
    shown->counts.shown = 0;
    shown->counts.gone = 0;
}

static void free_loras(struct kvb_shown *shown)
{
    for (size_t i = 0; i < shown->lora_count; i++) {
        free(shown->loras[i].text);
    }
    shown->lora_count = 0;
}

void kvb_mirror_show_no_more(struct kvb_mirror *mirror)
{
    struct kvb_shown *shown = mirror->shown;

    if (!shown) {
        return;
    }
    assert(!shown->snapshot.mirror); /* kvb_shown_end() */
    free_loras(shown);
    free(shown->loras);
    kvb_id_table_done(&shown->orphans);
    kvb_region_close(&shown->block_memory);
    kvb_region_close(&shown->token_memory);
    free(shown);
    mirror->shown = NULL;
}

struct kvb_shown *kvb_mirror_shown(const struct kvb_mirror *mirror)
{
    return mirror->shown;
}

const struct kvb_shown_counts *kvb_shown_count(const struct kvb_shown *shown)
{
    return &shown->counts;
}

bool kvb_shown_has_signed_hashes(const struct kvb_shown *shown)
{
    return shown->mirror->has_signed_hashes;
}

uint64_t kvb_shown_left_out(const struct kvb_shown *shown)
{
    const struct kvb_shown_counts *counts = &shown->counts;

    return counts->held > counts->shown ? counts->held - counts->shown : 0;
}

static void count_bytes(struct kvb_shown *shown)
{
    shown->counts.bytes = shown->block_memory.bytes + shown->token_memory.bytes;
}

/* ---- Adapters ---- */

/* One more block uses the name. */
static kvb_status use_lora(struct kvb_shown *shown, kvb_span name, uint16_t *out_lora)
{
    size_t at = shown->lora_count; /* a place that is free, or the one after the last */

    if (name.len == 0) {
        *out_lora = 0;
        return KVB_OK;
    }
    for (size_t i = 0; i < shown->lora_count; i++) {
        const struct shown_lora *lora = &shown->loras[i];
        if (lora->text && lora->len == name.len && memcmp(lora->text, name.data, name.len) == 0) {
            shown->loras[i].uses++;
            *out_lora = (uint16_t)(i + 1);
            return KVB_OK;
        }
        at = lora->text ? at : i;
    }
    KVB_TRY(kvb_array_reserve(
        &shown->loras, &shown->lora_capacity, at + 1, sizeof *shown->loras, kvb_max_shown_loras));
    uint8_t *text = malloc(name.len);
    if (!text) {
        return KVB_NO_MEMORY;
    }
    memcpy(text, name.data, name.len);
    shown->lora_count += at == shown->lora_count;
    shown->loras[at] = (struct shown_lora){ .text = text, .len = name.len, .uses = 1 };
    *out_lora = (uint16_t)(at + 1);
    return KVB_OK;
}

static kvb_span lora_text(const struct kvb_shown *shown, uint16_t lora)
{
    return lora > 0 ? (kvb_span){ shown->loras[lora - 1].text, shown->loras[lora - 1].len }
                    : (kvb_span){ .len = 0 };
}

/* ---- Tokens ---- */

static uint32_t *tokens_at(const struct kvb_shown *shown, uint32_t place)
{
    return shown->tokens + (size_t)place * shown->block_size;
}

static kvb_status draw_place(struct kvb_shown *shown, uint32_t *out_place)
{
    if (shown->first_place != KVB_NO_ID) {
        *out_place = shown->first_place;
        shown->first_place = *tokens_at(shown, *out_place);
        return KVB_OK;
    }
    const size_t bytes = (shown->token_end + 1) * shown->block_size * sizeof *shown->tokens;
    if (bytes > shown->token_memory.bytes) {
        KVB_TRY(kvb_region_reach(&shown->token_memory, bytes));
        count_bytes(shown);
    }
    *out_place = (uint32_t)shown->token_end++;
    return KVB_OK;
}

static void free_place(struct kvb_shown *shown, uint32_t place)
{
    *tokens_at(shown, place) = shown->first_place;
    shown->first_place = place;
}

/* ---- The list of changes ---- */

static void queue_block(struct kvb_shown *shown, uint32_t id)
{
    if (shown->blocks[id].is_changed) {
        return;
    }
    shown->blocks[id].is_changed = true;
    shown->blocks[id].next_changed = KVB_NO_ID;
    if (shown->last_changed != KVB_NO_ID) {
        shown->blocks[shown->last_changed].next_changed = id;
    } else {
        shown->first_changed = id;
    }
    shown->last_changed = id;
}

/* Takes the first one out. */
static void unqueue_first(struct kvb_shown *shown)
{
    struct shown_block *block = &shown->blocks[shown->first_changed];

    block->is_changed = false;
    shown->first_changed = block->next_changed;
    if (shown->first_changed == KVB_NO_ID) {
        shown->last_changed = KVB_NO_ID;
    }
}

/* ---- Parents and children ----
 *
 * A block whose parent has no entry is an orphan: it is found again under the parent's name when a
 * block of that name is shown. */

static uint32_t hash_of_orphan(const struct kvb_shown *shown, uint64_t parent)
{
    return kvb_mirror_hash(shown->mirror, parent, 0);
}

static void leave_parent(struct kvb_shown *shown, uint32_t id)
{
    struct shown_block *block = &shown->blocks[id];

    if (block->is_orphan) {
        kvb_id_table_remove(
            &shown->orphans, hash_of_orphan(shown, shown->mirror->entries[id].parent), id);
        block->is_orphan = false;
    }
    if (block->parent == KVB_NO_ID) {
        return;
    }
    if (shown->passing == id) {
        shown->passing = block->next;
    }
    if (block->next != KVB_NO_ID) {
        shown->blocks[block->next].previous = block->previous;
    }
    if (block->previous != KVB_NO_ID) {
        shown->blocks[block->previous].next = block->next;
    } else {
        shown->blocks[block->parent].first_child = block->next;
    }
    block->parent = KVB_NO_ID;
    block->next = KVB_NO_ID;
    block->previous = KVB_NO_ID;
}

/* Readers that have the block have it below another parent. */
static void join_parent(struct kvb_shown *shown, uint32_t id, uint32_t parent)
{
    struct shown_block *block = &shown->blocks[id];
    const uint32_t first = shown->blocks[parent].first_child;

    block->parent = parent;
    block->next = first;
    block->previous = KVB_NO_ID;
    block->is_moved |= block->is_shown;
    if (first != KVB_NO_ID) {
        shown->blocks[first].previous = id;
    }
    shown->blocks[parent].first_child = id;
}

/* An entry of the main group with the name of this block's parent.  hint: one that may have it. */
static uint32_t find_parent(const struct kvb_shown *shown, uint32_t id, uint32_t hint)
{
    const struct kvb_mirror *mirror = shown->mirror;
    const struct mirror_entry *entry = &mirror->entries[id];
    const uint32_t group = kvb_mirror_context(mirror, entry)->group;
    const kvb_block_hash name = { entry->parent };

    if (hint != KVB_NO_ID && mirror->entries[hint].placement == placement_rooted &&
        kvb_mirror_block(mirror, &mirror->entries[hint]).value == name.value) {
        return hint;
    }
    struct kvb_line_probe probe = kvb_mirror_probe_name(mirror, name);
    for (uint32_t other; (other = kvb_mirror_next_of_name(mirror, &probe, name)) != KVB_NO_ID;) {
        if (other != id && kvb_mirror_context(mirror, &mirror->entries[other])->group == group) {
            return other;
        }
    }
    return KVB_NO_ID;
}

static void release_content(struct kvb_shown *shown, uint32_t id)
{
    struct shown_block *block = &shown->blocks[id];

    leave_parent(shown, id);
    if (block->lora > 0 && --shown->loras[block->lora - 1].uses == 0) {
        free(shown->loras[block->lora - 1].text);
        shown->loras[block->lora - 1].text = NULL;
    }
    if (block->content == content_showable) {
        free_place(shown, block->tokens);
    }
    block->lora = 0;
    block->content = content_unknown;
}

/* A block that can be shown has its name now, or has lost its parent's entry. */
static void find_place(struct kvb_shown *shown, uint32_t id, uint32_t hint)
{
    struct shown_block *block = &shown->blocks[id];
    const struct mirror_entry *entry = &shown->mirror->entries[id];

    block->has_parent = entry->has_parent;
    if (!entry->has_parent) {
        return;
    }
    /* Below its parent's entry, whether that is shown yet or not; else among the orphans. */
    const uint32_t parent = find_parent(shown, id, hint);
    if (parent != KVB_NO_ID) {
        join_parent(shown, id, parent);
    } else if (
        kvb_id_table_put(&shown->orphans, hash_of_orphan(shown, entry->parent), id) == KVB_OK) {
        block->is_orphan = true;
    } else {
        shown->counts.no_room++; /* left out until its parent is stored, and then itself */
    }
}

/* ---- What the mirror says ---- */

/* Readers of engines know one group of full attention. */
static bool is_main_group(const struct kvb_mirror *mirror, uint32_t place)
{
    for (uint32_t before = 0; before < place; before++) {
        if (mirror->groups.list[before].kind == KVB_GROUP_FULL) {
            return false;
        }
    }
    return mirror->groups.list[place].kind == KVB_GROUP_FULL;
}

[[gnu::cold, gnu::noinline]] static bool grow_blocks(struct kvb_shown *shown, size_t count)
{
    if (kvb_region_reach(&shown->block_memory, count * sizeof *shown->blocks) != KVB_OK) {
        shown->counts.no_room++;
        return false;
    }
    shown->capacity = shown->block_memory.bytes / sizeof *shown->blocks;
    count_bytes(shown);
    return true;
}

/* Entries for which there was no memory are beyond the capacity, and are left out. */
void kvb_shown_note_inserted(struct kvb_shown *shown, uint32_t id)
{
    if (id >= shown->capacity && !grow_blocks(shown, (size_t)id + 1)) {
        return;
    }
    shown->blocks[id] = (struct shown_block){ .parent = KVB_NO_ID,
                                              .first_child = KVB_NO_ID,
                                              .next = KVB_NO_ID,
                                              .previous = KVB_NO_ID,
                                              .next_changed = KVB_NO_ID };
}

void kvb_shown_note_named(struct kvb_shown *shown, uint32_t id)
{
    if (id < shown->capacity && shown->blocks[id].content == content_showable) {
        find_place(shown, id, KVB_NO_ID);
        queue_block(shown, id);
    }
}

[[gnu::hot]] void kvb_shown_note_held(struct kvb_shown *shown, uint32_t id)
{
    const struct kvb_mirror *mirror = shown->mirror;
    const struct mirror_entry *entry = &mirror->entries[id];
    const bool is_held = kvb_mirror_holds(entry, KVB_TIER_DEVICE);

    if (id >= shown->capacity || shown->blocks[id].is_held == is_held ||
        !is_main_group(mirror, kvb_mirror_context(mirror, entry)->group)) {
        return;
    }
    shown->blocks[id].is_held = is_held;
    shown->counts.held += is_held;
    shown->counts.held -= !is_held;
    queue_block(shown, id);
}

bool kvb_shown_keeps(struct kvb_shown *shown, uint32_t id)
{
    if (id >= shown->capacity) {
        return false;
    }
    struct shown_block *block = &shown->blocks[id];
    shown->counts.held -= block->is_held;
    block->is_held = false;
    /* Nobody needs the number: readers do not have the block, and nothing hangs below it. */
    if (!block->is_shown && !block->is_changed && block->first_child == KVB_NO_ID) {
        release_content(shown, id);
        return false;
    }
    if (block->is_orphan) {
        leave_parent(shown, id); /* the entry names its parent no longer */
    }
    block->is_gone = true;
    shown->counts.gone++;
    queue_block(shown, id);
    return true;
}

void kvb_shown_note_cleared(struct kvb_shown *shown)
{
    kvb_id_table_clear(&shown->orphans);
    free_loras(shown);
    reset_shown(shown);
}

/* What a block is, beside its name. */
struct block_content {
    kvb_span lora;
    const void *tokens; /* block_size of them, perhaps not aligned; NULL: the block is left out */
};

static struct block_content
content_of_event(const struct kvb_shown *shown, const struct mirror_change *change, uint32_t i)
{
    const struct kvb_engine_event *event = change->event;
    const kvb_span named = kvb_event_batch_text(change->batch, event->lora_name);
    const struct kvb_block_extra none = { .key_count = 0 };
    const struct kvb_block_extra *extra =
        event->extra_count > 0 ? &change->batch->extras[event->extra_at + i] : &none;

    /* Its name must follow from its tokens, its parent and its adapter alone. */
    if (event->block_size != shown->block_size || event->salt.len > 0 || event->key != 0 ||
        extra->key_count > 0 || extra->unmatchable) {
        return (struct block_content){ .tokens = NULL };
    }
    return (struct block_content){
        .lora = named.len > 0 ? named : shown->mirror->default_lora,
        .tokens = change->batch->tokens + event->token_at + (size_t)i * shown->block_size,
    };
}

/* True when the block has this content already. */
static bool
is_content(const struct kvb_shown *shown, uint32_t id, const struct block_content *content)
{
    const struct shown_block *block = &shown->blocks[id];
    const kvb_span own = lora_text(shown, block->lora);

    return content->tokens && content->lora.len == own.len &&
           (own.len == 0 || memcmp(content->lora.data, own.data, own.len) == 0) &&
           memcmp(
               tokens_at(shown, block->tokens), content->tokens,
               shown->block_size * sizeof *shown->tokens) == 0;
}

/* Without room the block stays without content. */
static void
fill_block(struct kvb_shown *shown, uint32_t id, uint32_t hint, const struct block_content *content)
{
    struct shown_block *block = &shown->blocks[id];
    uint32_t place = KVB_NO_ID;
    uint16_t lora = 0;

    if (!content->tokens) {
        block->content = content_left_out;
        return;
    }
    if (draw_place(shown, &place) != KVB_OK) {
        shown->counts.no_room++;
        return;
    }
    if (use_lora(shown, content->lora, &lora) != KVB_OK) {
        free_place(shown, place);
        shown->counts.no_room++;
        return;
    }
    memcpy(tokens_at(shown, place), content->tokens, shown->block_size * sizeof *shown->tokens);
    block->tokens = place;
    block->lora = lora;
    block->content = content_showable;
    shown->counts.contents++;
    /* One that waits for its name gets its place with it. */
    if (shown->mirror->entries[id].placement == placement_rooted) {
        find_place(shown, id, hint);
    }
    queue_block(shown, id);
}

/* The mirror makes another entry of another content that it can tell apart.  Where it cannot, with
 * the engine's own names, the newest content is shown once readers have lost the former one. */
static void store_content(
    struct kvb_shown *shown, uint32_t id, uint32_t hint, const struct block_content *content)
{
    struct shown_block *block = &shown->blocks[id];

    if (block->content != content_showable) {
        fill_block(shown, id, hint, content);
    } else if (block->is_ambiguous || !is_content(shown, id, content)) {
        block->is_ambiguous = block->is_shown;
        queue_block(shown, id);
        if (!block->is_shown) {
            release_content(shown, id);
            fill_block(shown, id, hint, content);
        }
    }
}

void kvb_shown_note_content(const struct mirror_change *change, uint32_t i, uint32_t id)
{
    struct kvb_shown *shown = change->mirror->shown;
    const struct kvb_engine_event *event = change->event;
    uint32_t hint = change->progress->last;

    if (id >= shown->capacity || event->token_count == 0 ||
        !is_main_group(change->mirror, change->group)) {
        return;
    }
    /* The parent is, as a rule, the block before it in the event, or the event's own. */
    if (hint == KVB_NO_ID && event->has_parent) {
        hint = kvb_mirror_find(change->mirror, change->group, event->parent);
    }
    const struct block_content content = content_of_event(shown, change, i);
    /* An event of another tier adds a copy, and cannot say what the block is. */
    if (event->tier == KVB_TIER_DEVICE || shown->blocks[id].content == content_unknown) {
        store_content(shown, id, hint, &content);
    }
}

void kvb_shown_note_restored(struct kvb_shown *shown)
{
    const struct kvb_mirror *mirror = shown->mirror;

    for (uint32_t id = 0; id < mirror->entry_end; id++) {
        kvb_shown_note_inserted(shown, id);
        if (mirror->entries[id].is_used) {
            kvb_shown_note_held(shown, id);
        }
    }
}

kvb_status kvb_mirror_show(struct kvb_mirror *mirror, uint32_t block_size)
{
    size_t token_bytes = 0;

    if (block_size == 0 ||
        __builtin_mul_overflow(mirror->max_blocks, block_size * sizeof(uint32_t), &token_bytes)) {
        return KVB_TOO_LARGE;
    }
    kvb_mirror_show_no_more(mirror);
    struct kvb_shown *shown = calloc(1, sizeof *shown);
    if (!shown) {
        return KVB_NO_MEMORY;
    }
    shown->mirror = mirror;
    shown->block_size = block_size;
    reset_shown(shown);
    mirror->shown = shown;
    kvb_status status =
        kvb_region_open(&shown->block_memory, mirror->max_blocks * sizeof *shown->blocks);
    if (status == KVB_OK) {
        status = kvb_region_open(&shown->token_memory, token_bytes);
    }
    if (status != KVB_OK) {
        kvb_mirror_show_no_more(mirror);
        return status;
    }
    shown->blocks = (struct shown_block *)(void *)shown->block_memory.base;
    shown->tokens = (uint32_t *)(void *)shown->token_memory.base;
    kvb_shown_note_restored(shown);
    return KVB_OK;
}

/* ---- As bytes ----
 *
 * One record for each block whose tokens are known:
 *
 *     hash u64 | length of the adapter's name u16 | name | tokens u32 ...
 */

enum { record_fixed_bytes = 8 + 2 };

static kvb_status save_block(const struct kvb_shown *shown, uint32_t id, struct kvb_buf *out)
{
    const struct shown_block *block = &shown->blocks[id];
    const kvb_span lora = lora_text(shown, block->lora);
    const size_t token_bytes = shown->block_size * sizeof *shown->tokens;

    KVB_TRY(kvb_buf_reserve(out, record_fixed_bytes + lora.len + token_bytes));
    uint8_t *at = out->data + out->len;
    kvb_le_put_u64(at, shown->mirror->entries[id].engine.value);
    at[8] = (uint8_t)lora.len;
    at[9] = (uint8_t)(lora.len >> 8);
    if (lora.len > 0) {
        memcpy(at + record_fixed_bytes, lora.data, lora.len);
    }
    static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "tokens are copied as they are");
    memcpy(at + record_fixed_bytes + lora.len, tokens_at(shown, block->tokens), token_bytes);
    out->len += record_fixed_bytes + lora.len + token_bytes;
    return KVB_OK;
}

kvb_status kvb_shown_save(
    const struct kvb_shown *shown, size_t max_bytes, size_t max_looks, size_t *place,
    struct kvb_buf *out)
{
    const size_t known =
        shown->mirror->entry_end < shown->capacity ? shown->mirror->entry_end : shown->capacity;
    const size_t end = out->len + max_bytes;

    for (; *place < known && out->len < end && max_looks > 0; max_looks--, (*place)++) {
        const struct shown_block *block = &shown->blocks[*place];
        if (block->content == content_showable && !block->is_gone) {
            KVB_TRY(save_block(shown, (uint32_t)*place, out));
        }
    }
    if (*place >= known) {
        *place = SIZE_MAX;
    }
    return KVB_OK;
}

static kvb_status load_record(struct kvb_shown *shown, kvb_span *records)
{
    const struct kvb_mirror *mirror = shown->mirror;
    const size_t token_bytes = shown->block_size * sizeof *shown->tokens;
    const uint8_t *at = records->data;

    if (records->len < record_fixed_bytes) {
        return KVB_BAD_INPUT;
    }
    const size_t lora_len = at[8] | (size_t)at[9] << 8;
    if (records->len < record_fixed_bytes + lora_len + token_bytes) {
        return KVB_BAD_INPUT;
    }
    const struct block_content content = { .lora = { at + record_fixed_bytes, lora_len },
                                           .tokens = at + record_fixed_bytes + lora_len };
    uint32_t group = 0;
    while (group < mirror->groups.count && !is_main_group(mirror, group)) {
        group++;
    }
    const uint32_t id = kvb_mirror_find(mirror, group, (kvb_engine_hash){ kvb_le_get_u64(at) });
    if (id != KVB_NO_ID && id < shown->capacity && shown->blocks[id].content == content_unknown) {
        fill_block(shown, id, KVB_NO_ID, &content);
    }
    records->data += record_fixed_bytes + lora_len + token_bytes;
    records->len -= record_fixed_bytes + lora_len + token_bytes;
    return KVB_OK;
}

kvb_status kvb_shown_load(struct kvb_shown *shown, kvb_span records)
{
    while (records.len > 0) {
        KVB_TRY(load_record(shown, &records));
    }
    return KVB_OK;
}

/* ---- Events ---- */

static struct kvb_engine_event *last_event(const struct kvb_event_batch *out)
{
    return out->event_count > 0 ? &out->events[out->event_count - 1] : NULL;
}

static kvb_status add_shown_event(struct kvb_event_batch *out, const struct kvb_engine_event *event)
{
    KVB_TRY(kvb_event_batch_reserve_events(out, 1));
    out->events[out->event_count++] = *event;
    return KVB_OK;
}

static kvb_engine_hash hash_of(const struct kvb_shown *shown, uint32_t id)
{
    return shown->mirror->entries[id].engine;
}

static void add_shown_hash(struct kvb_event_batch *out, kvb_engine_hash hash)
{
    out->hashes[out->hash_count++] = hash;
    out->events[out->event_count - 1].hash_count++;
}

/* True when the last event is a Stored that ends with the parent of this block. */
static bool continues_shown_event(
    const struct kvb_shown *shown, const struct kvb_event_batch *out,
    const struct shown_block *block)
{
    const struct kvb_engine_event *last = last_event(out);

    return last && last->kind == KVB_EVENT_STORED && block->parent != KVB_NO_ID &&
           last->hash_count < kvb_max_shown_event_blocks &&
           out->hashes[out->hash_count - 1].value == hash_of(shown, block->parent).value &&
           shown->blocks[block->parent].lora == block->lora;
}

static kvb_status begin_shown_event(
    const struct kvb_shown *shown, const struct shown_block *block, struct kvb_event_batch *out)
{
    const bool has_parent = block->parent != KVB_NO_ID;
    struct kvb_engine_event event = {
        .kind = KVB_EVENT_STORED,
        .tier = KVB_TIER_DEVICE,
        .has_group = true,
        .has_parent = has_parent,
        .parent = { has_parent ? hash_of(shown, block->parent).value : 0 },
        .block_size = shown->block_size,
        .hash_at = (uint32_t)out->hash_count,
        .token_at = (uint32_t)out->token_count,
    };

    if (block->lora > 0) {
        KVB_TRY(kvb_event_batch_add_text(out, lora_text(shown, block->lora), &event.lora_name));
    }
    return add_shown_event(out, &event);
}

static kvb_status
write_stored(const struct kvb_shown *shown, uint32_t id, struct kvb_event_batch *out)
{
    const struct shown_block *block = &shown->blocks[id];

    KVB_TRY(kvb_event_batch_reserve_hashes(out, 1));
    KVB_TRY(kvb_event_batch_reserve_tokens(out, shown->block_size));
    if (!continues_shown_event(shown, out, block)) {
        KVB_TRY(begin_shown_event(shown, block, out));
    }
    memcpy(
        out->tokens + out->token_count, tokens_at(shown, block->tokens),
        shown->block_size * sizeof *shown->tokens);
    out->token_count += shown->block_size;
    last_event(out)->token_count += shown->block_size;
    add_shown_hash(out, hash_of(shown, id));
    return KVB_OK;
}

static kvb_status
write_removed(const struct kvb_shown *shown, uint32_t id, struct kvb_event_batch *out)
{
    const struct kvb_engine_event *last = last_event(out);

    KVB_TRY(kvb_event_batch_reserve_hashes(out, 1));
    if (!last || last->kind != KVB_EVENT_REMOVED ||
        last->hash_count >= kvb_max_shown_event_blocks) {
        const struct kvb_engine_event event = { .kind = KVB_EVENT_REMOVED,
                                                .tier = KVB_TIER_DEVICE,
                                                .has_group = true,
                                                .hash_at = (uint32_t)out->hash_count };
        KVB_TRY(add_shown_event(out, &event));
    }
    add_shown_hash(out, hash_of(shown, id));
    return KVB_OK;
}

/* ---- Changes ---- */

/* The parent's entry will be used by another block. */
static void orphan(struct kvb_shown *shown, uint32_t id)
{
    leave_parent(shown, id);
    if (!shown->blocks[id].is_gone) {
        find_place(shown, id, KVB_NO_ID); /* another entry may have the parent's name */
        queue_block(shown, id);
    }
}

/* Readers are sent a Cleared, and then everything again that they are to have. */
static void start_over(struct kvb_shown *shown)
{
    shown->is_cleared = true;
    shown->starts++;
    shown->adopting = KVB_NO_ID;
    shown->passing = KVB_NO_ID;
    shown->counts.shown = 0;
    for (uint32_t id = 0; id < shown->mirror->entry_end && id < shown->capacity; id++) {
        struct shown_block *block = &shown->blocks[id];
        block->is_shown = false;
        block->is_moved = false;
        if (block->content == content_showable) {
            queue_block(shown, id);
        }
    }
}

void kvb_shown_hide(struct kvb_shown *shown, bool is_hidden)
{
    if (shown->is_hidden != is_hidden) {
        shown->is_hidden = is_hidden;
        start_over(shown);
    }
}

/* Engines' own names may form a circle.  A block that was moved below one of its descendants must
 * not be shown again before that is hidden: until then an ancestor is hidden, or it is its own. */
static bool hangs_from_root(const struct kvb_shown *shown, uint32_t id)
{
    const uint32_t first = id;

    for (int i = 0; i < max_depth && shown->blocks[id].has_parent; i++) {
        id = shown->blocks[id].parent;
        if (id == KVB_NO_ID || id == first || !shown->blocks[id].is_shown) {
            return false;
        }
    }
    return true;
}

static bool is_wanted(const struct kvb_shown *shown, uint32_t id)
{
    const struct shown_block *block = &shown->blocks[id];
    const struct mirror_entry *entry = &shown->mirror->entries[id];

    return block->content == content_showable && block->is_held && !shown->is_hidden &&
           entry->placement == placement_rooted && !block->is_ambiguous &&
           (!block->has_parent ||
            (block->parent != KVB_NO_ID && shown->blocks[block->parent].is_shown));
}

static kvb_status
write_difference(struct kvb_shown *shown, uint32_t id, struct kvb_event_batch *out)
{
    struct shown_block *block = &shown->blocks[id];
    bool shows = is_wanted(shown, id);

    /* Readers have it below another parent: it is removed there, and shown again. */
    if (block->is_moved && shows) {
        if (!block->is_shown && !hangs_from_root(shown, id)) {
            queue_block(shown, id); /* after those that are about to be hidden */
            return KVB_OK;
        }
        if (block->is_shown) {
            shows = false;
            queue_block(shown, id); /* to be shown below its new parent */
        }
    }
    if (shows == block->is_shown) {
        return KVB_OK;
    }
    /* Its children change with it, and orphans that waited for its name become children. */
    block->is_moved = block->is_moved && !shows;
    block->is_shown = shows;
    shown->passing = block->first_child;
    shown->adopting = shows && shown->orphans.count > 0 ? id : KVB_NO_ID;
    if (!shows) {
        shown->counts.shown--;
        return write_removed(shown, id, out);
    }
    shown->counts.shown++;
    return write_stored(shown, id, out);
}

static void free_gone(struct kvb_shown *shown, uint32_t id)
{
    release_content(shown, id);
    shown->blocks[id].is_gone = false;
    shown->counts.gone--;
    kvb_mirror_free_entry(shown->mirror, id);
}

/* Tells readers of an entry that the mirror has dropped, frees its children, then its number. */
static kvb_status tell_gone(struct kvb_shown *shown, uint32_t id, struct kvb_event_batch *out)
{
    struct shown_block *block = &shown->blocks[id];

    if (block->is_shown) {
        block->is_shown = false;
        shown->counts.shown--;
        return write_removed(shown, id, out);
    }
    if (block->first_child != KVB_NO_ID) {
        orphan(shown, block->first_child);
        return KVB_OK;
    }
    unqueue_first(shown);
    free_gone(shown, id);
    return KVB_OK;
}

/* Makes the next orphan of the block that was shown its child. */
static void adopt_next(struct kvb_shown *shown)
{
    const struct kvb_mirror *mirror = shown->mirror;
    const uint32_t id = shown->adopting;
    const uint64_t name =
        shown->blocks[id].is_gone ? 0 : kvb_mirror_block(mirror, &mirror->entries[id]).value;
    const uint32_t hash = hash_of_orphan(shown, name);
    size_t at = kvb_id_table_start(&shown->orphans, hash);

    for (uint32_t child; !shown->blocks[id].is_gone &&
                         (child = kvb_id_table_next(&shown->orphans, hash, &at)) != KVB_NO_ID;) {
        if (child != id && mirror->entries[child].parent == name) {
            leave_parent(shown, child);
            join_parent(shown, child, id);
            queue_block(shown, child);
            return;
        }
    }
    shown->adopting = KVB_NO_ID;
}

bool kvb_shown_has_changes(const struct kvb_shown *shown)
{
    return shown->is_cleared || shown->first_changed != KVB_NO_ID || shown->passing != KVB_NO_ID ||
           shown->adopting != KVB_NO_ID;
}

kvb_status kvb_shown_take_changes(
    struct kvb_shown *shown, size_t max_blocks, size_t max_looks, struct kvb_event_batch *out)
{
    assert(!shown->snapshot.mirror);
    if (shown->is_cleared) {
        KVB_TRY(add_shown_event(
            out, &(struct kvb_engine_event){ .kind = KVB_EVENT_CLEARED, .all_tiers = true }));
        shown->is_cleared = false;
    }
    /* What hangs on the newest change comes first, so that children are queued behind their parent
     * before another change is told. */
    for (size_t i = 0; i < max_looks && out->hash_count < max_blocks; i++) {
        const uint32_t child = shown->passing;
        const uint32_t id = shown->first_changed;
        if (shown->adopting != KVB_NO_ID) {
            adopt_next(shown);
        } else if (child != KVB_NO_ID) { /* of a block that was shown or removed */
            shown->passing = shown->blocks[child].next;
            queue_block(shown, child);
        } else if (id != KVB_NO_ID && shown->blocks[id].is_gone) {
            KVB_TRY(tell_gone(shown, id, out));
        } else if (id != KVB_NO_ID) {
            unqueue_first(shown);
            KVB_TRY(write_difference(shown, id, out));
        } else {
            break;
        }
    }
    return KVB_OK;
}

bool kvb_shown_free_gone(struct kvb_shown *shown)
{
    if (shown->counts.gone == 0 || shown->mirror->entry_count >= shown->mirror->max_blocks) {
        return false;
    }
    /* Nobody has anything now, so nothing of what is gone must be told. */
    start_over(shown);
    for (uint32_t id = shown->first_changed; id != KVB_NO_ID; id = shown->blocks[id].next_changed) {
        while (shown->blocks[id].is_gone && shown->blocks[id].first_child != KVB_NO_ID) {
            orphan(shown, shown->blocks[id].first_child);
        }
    }
    /* What is queued now is of the mirror, or has nothing below it. */
    for (uint32_t id = shown->first_changed, next; id != KVB_NO_ID; id = next) {
        next = shown->blocks[id].next_changed;
        shown->blocks[id].is_changed = false;
        if (shown->blocks[id].is_gone) {
            free_gone(shown, id);
        }
    }
    shown->first_changed = KVB_NO_ID;
    shown->last_changed = KVB_NO_ID;
    start_over(shown);
    return true;
}

/* ---- A snapshot: a picture of what is shown, as events of an engine ---- */

bool kvb_shown_has(const struct kvb_shown *shown, uint32_t id)
{
    return id < shown->capacity && shown->blocks[id].is_shown;
}

uint32_t kvb_shown_parent(const struct kvb_shown *shown, uint32_t id, bool *out_has_parent)
{
    const uint32_t parent = shown->blocks[id].parent;

    *out_has_parent = shown->blocks[id].has_parent;
    return parent != KVB_NO_ID && shown->blocks[parent].is_shown ? parent : KVB_NO_ID;
}

kvb_status kvb_shown_begin(struct kvb_shown *shown)
{
    shown->snapshot_starts = shown->starts;
    return kvb_picture_begin(
        &shown->snapshot, shown->mirror, KVB_PICTURE_FROM_ROOTS, kvb_picture_shown);
}

void kvb_shown_end(struct kvb_shown *shown)
{
    kvb_picture_end(&shown->snapshot);
}

kvb_status kvb_shown_step(
    struct kvb_shown *shown, size_t max_blocks, size_t max_looks, struct kvb_event_batch *out,
    bool *out_is_done)
{
    const size_t begun = out->hash_count;
    size_t looks = max_looks;
    uint32_t id = KVB_NO_ID;

    if (shown->snapshot_starts != shown->starts) { /* it has what readers no longer have */
        return KVB_CLOSED;
    }
    while (out->hash_count - begun < max_blocks) {
        KVB_TRY(kvb_picture_next(&shown->snapshot, shown->mirror, &looks, &id));
        if (id == KVB_NO_ID) {
            break;
        }
        KVB_TRY(write_stored(shown, id, out));
    }
    *out_is_done = kvb_picture_is_done(&shown->snapshot, shown->mirror);
    return KVB_OK;
}
