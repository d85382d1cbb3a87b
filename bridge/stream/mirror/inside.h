#pragma once

#include "core/hash.h"
#include "core/id_table.h"
#include "core/limits.h"
#include "core/line_table.h"
#include "core/region.h"
#include "stream/mirror/entry_set.h"
#include "stream/mirror/mirror.h"
#include "stream/mirror/picture.h"

#include <assert.h>
#include <stdbool.h>

/* The internal structure of a mirror.  Only for this room and stream/checkpoint.
 *
 *     entries     | engine | tokens | parent | copies, placement, context |     32 bytes
 *                                                                  |
 *     contexts    | seed, group | ...            shared by whole prompts
 *
 *     names       (group, engine hash)          -> entry       one table, one cache line
 *                 published name                -> entries     for each look-up
 *
 * Most blocks need no more than this.  Fields that few blocks need are in separate tables:
 *
 *     by_parent   (parent's engine hash, context) -> the first entry that waits for this parent
 *     waiting     the links of that list
 *     in_tier     for each tier, the set of entries with copies there
 *     keys        keys of pool objects; by_key: key -> entry
 *     links       oldest <-> ... <-> newest doubtful entry
 *     copies      entry -> copies, if a tier has two or more certain copies, or very many
 *     free        list of free entries, linked through their `parent` fields
 *
 * An entry does not store its published name.  The name is the engine's hash, or is computed from
 * `parent` and `tokens`: that costs less than to fetch 8 more bytes of memory. */

struct mirror_change;

enum placement {
    placement_rooted,      /* its published name is known */
    placement_waiting,     /* its parent is unknown */
    placement_unmatchable, /* no query can name it */
    placement_unplaced     /* in a window group: no full-attention group has the hash yet */
};

/* Bounds of the number of physical copies. */
struct copies {
    uint32_t min;
    uint32_t max;
};

/* many_copies: an entry's byte counts fewer copies than this; struct extra_copies has larger
 * counts.  kvb_max_of_name: the most entries with one published name in a group.  An engine has
 * one, or a few when it gives one block several hashes.  Each more would lengthen every look-up of
 * the name. */
enum { context_bits = 24, many_copies = UINT8_MAX, kvb_max_of_name = 16 };

/* ---- Cache groups ----
 *
 * Entries refer to a group by its index in this list, not by the engine's number. */
enum { kvb_max_groups = 32 };

struct mirror_group {
    uint32_t number; /* the engine's number of the group */
    uint32_t family; /* of a store's objects, each group of which is one shard; 0: an engine's */
    enum kvb_group_kind kind;
    uint32_t window_tokens; /* the sliding window or the chunk; 0: it must hold all blocks */
    uint32_t block_size;    /* of a group with a window or chunks; 0: not known */
    uint32_t tiers;         /* bit t: the group has stored in tier t */
    unsigned window;        /* for a group with a window or chunks: its place among the kinds of
                             * them; see struct mirror_window */
};

/* Groups with the same window or chunk, and the same size of block.  The window list has the name
 * of a block once for each of these kinds (kvb_block_hash_in_window()) whose groups all hold it. */
struct mirror_window {
    uint32_t tokens, block_size;
    bool is_chunked;
    uint32_t groups; /* bit g: group g is of this kind */
    uint32_t wanted; /* bit g: a name is listed for this kind only if group g holds it */
};

/* Why the lists may contain blocks that a prompt cannot use.  The first reason stays.
 * Checkpoints contain these numbers. */
enum odd_groups {
    odd_none,
    odd_earlier,        /* an older checkpoint says so without a reason */
    odd_kind,           /* a group of a kind without a rule */
    odd_changed,        /* a group that changed its kind or window */
    odd_window_unknown, /* a window without a length */
    odd_windows_differ, /* more than kvb_max_windows kinds of windows */
    odd_window_names,   /* windows under the engine's own names */
    odd_chunk_unknown,  /* chunks of a size that is not configured */
    odd_too_many,       /* more than kvb_max_groups */
    odd_block_sizes,    /* blocks of several sizes */
    odd_unstated,       /* several groups that do not state their kinds */
    odd_count
};

struct mirror_groups {
    struct mirror_group list[kvb_max_groups];
    uint32_t count;
    enum odd_groups odd; /* see kvb_mirror_has_odd_groups() */
    bool has_several_sizes;
    bool has_odd_sizes;  /* blocks of windows that the others' sizes do not fit */
    uint32_t block_size; /* of the first Stored of full attention on the device; 0: none yet */
    /* Bit g: a name is in this list only if group g holds it. */
    uint32_t wanted[KVB_LIST_COUNT];
    uint32_t window_mask; /* bit g: group g has a window or chunks */
    struct mirror_window windows[kvb_max_windows];
    size_t window_count;
    /* Bit g: group g is a shard of a store's objects.  A name is in a list if the groups of one
     * family hold it: of all that count in this list, those with this group's bits. */
    uint32_t shard_mask;
    uint32_t family_masks[kvb_max_groups];
    bool has_full; /* some group is of KVB_GROUP_FULL */
};

/* Full-attention groups and sliding-window groups have separate lists of doubtful entries, each
 * with its own ceiling.  Doubtful entries of windows are many and cheap to forget. */
enum doubt_kind { doubt_full, doubt_window, doubt_kinds };

struct doubtful_list {
    uint32_t oldest, newest; /* entries; KVB_NO_ID: empty */
    size_t count;
};

enum name_kind { name_of_engine, name_of_block };

struct mirror_entry {
    kvb_engine_hash engine;
    kvb_tokens_hash tokens; /* set if rooted or waiting */
    uint64_t parent;        /* rooted: parent's name; waiting: its engine hash; free: next free */
    uint8_t max[KVB_TIER_COUNT]; /* max copies; many_copies: see extra_copies */
    uint32_t context : context_bits;
    uint32_t min : KVB_TIER_COUNT; /* bit t: 1 certain copy in tier t; more: extra_copies */
    uint32_t placement : 2;
    uint32_t has_parent : 1;
    uint32_t is_used : 1;
};

static_assert(sizeof(struct mirror_entry) == 32, "two entries in a cache line");
static_assert(
    (size_t)kvb_max_stream_blocks <= (size_t)1 << context_bits, "a context for each block");

/* What all blocks of a prompt share. */
struct mirror_context {
    uint64_t seed;  /* seed of the token hashes; children inherit it */
    uint32_t group; /* index in the list of groups */
    uint32_t size;  /* kvb_mirror_size_of() */
    uint32_t uses;  /* how many entries use it; if free: the next free context */
};

/* The properties of a block that becomes an entry. */
struct mirror_block {
    kvb_engine_hash engine;
    kvb_block_hash block; /* published name; only if rooted */
    kvb_tokens_hash tokens;
    uint64_t parent;
    uint64_t seed;
    uint64_t key;   /* of a pool's object; 0: none */
    uint32_t group; /* place in the list of groups */
    uint32_t size;  /* kvb_mirror_size_of() */
    enum placement placement;
    bool has_parent;
};

struct doubtful_link {
    uint32_t id;
    uint32_t older, newer; /* entries; KVB_NO_ID at the ends */
};

/* Copies of an entry that its own bytes cannot count: two or more certain ones in a tier, or very
 * many.  Counts that the entry's bytes hold are 0 here. */
struct extra_copies {
    uint32_t id;
    uint32_t min[KVB_TIER_COUNT];
    uint32_t max[KVB_TIER_COUNT];
};

/* Records that few entries need, in no order, beside the entries.  Each begins with the number of
 * its entry, a uint32_t. */
struct side_table {
    uint8_t *records; /* owned */
    size_t record_bytes;
    size_t count, capacity;       /* of records */
    struct kvb_id_table by_entry; /* entry -> the place of its record */
};

/* The list link of an entry that waits for its parent; see stream/mirror/waiting.c. */
struct waiting_link {
    uint32_t id;
    uint32_t previous, next; /* entries; KVB_NO_ID after the last */
};

/* A cache of chains without a doubtful block, by their last entry; see stream/mirror/proof.c. */
enum { proof_slots = 1024 };

struct proven_chain {
    uint32_t id;    /* KVB_NO_ID: none */
    uint32_t doubt; /* kvb_mirror.doubts at that time; the chain is void after another doubt */
};

/* The preceding Stored events of this batch that belong to one prompt. */
struct stored_run {
    bool is_real;    /* they were real stores: kvb_mirror_is_real() */
    uint32_t number; /* group number of the last one; the next of the run has a higher one */
};

/* Entries that the current checkpoint must still write; see stream/mirror/record.h. */
struct changed_entries {
    uint64_t *bits; /* owned; NULL: no checkpoint is being written */
    size_t count;
    bool is_void; /* the mirror was emptied while it was written */
};

/* The position of the next block of a Stored: its parent and seed. */
struct place {
    enum placement placement;
    bool has_parent;
    uint64_t parent; /* rooted: parent's published name; waiting: its engine hash */
    uint64_t seed;
};

/* The progress of an event: a large one takes several calls. */
struct event_progress {
    bool is_unfinished;
    bool is_making_room; /* drops a tier before it begins */
    enum kvb_tier dropped;
    bool has_new;            /* it had a block that the mirror did not have */
    bool is_judged, is_real; /* see kvb_mirror_is_real() */
    bool is_proven;          /* none of its ancestors is doubtful */
    uint32_t next;           /* blocks before this one are applied; hash_count: all are */
    uint32_t last;           /* entry of the last applied block; KVB_NO_ID: none */
};

struct kvb_mirror {
    struct kvb_hash_key hash_key; /* hash key of all tables */
    enum kvb_hashes hashes;
    enum kvb_copies copies;
    unsigned tiers;
    size_t max_blocks;
    uint32_t pool_block_size; /* tokens; 0: any */
    uint32_t chunk_tokens;    /* of chunked local attention; 0: not known */
    char *lora_name;          /* owned; for events that name no adapter; "": the base model */
    kvb_span default_lora;    /* the same; borrowed */

    struct kvb_region entry_memory; /* opened with the first entry */
    struct mirror_entry *entries;   /* there */
    size_t entry_capacity;
    size_t entry_end; /* entries ever used since the last clear */
    size_t entry_count;
    uint32_t first_free;

    struct mirror_context *contexts; /* owned */
    size_t context_capacity;
    size_t context_end;
    uint32_t first_free_context;
    uint32_t newest_context; /* guess for the next block; KVB_NO_ID: none */
    struct kvb_id_table by_context;

    struct kvb_line_table names; /* entry * 2 + enum name_kind; opened with the first */
    struct kvb_id_table by_parent;
    struct side_table waiting; /* struct waiting_link */
    struct kvb_entry_set in_tier[KVB_TIER_COUNT];
    struct kvb_id_table by_key;
    uint64_t *keys; /* owned; keys of the entries below key_end; 0: none */
    size_t key_end, key_capacity;

    struct side_table links; /* struct doubtful_link */
    struct doubtful_list doubtful[doubt_kinds];

    struct side_table extra_copies; /* struct extra_copies */

    struct kvb_shown *shown; /* owned; NULL: nothing is republished */

    struct mirror_groups groups;
    uint32_t tokenless_tiers; /* bit t: blocks were moved to tier t without their shapes */
    bool never_repeats;       /* kvb_mirror_set_repeats() */
    uint32_t chunk_option;    /* options' chunk_blocks */
    uint32_t chunk_blocks;    /* the most blocks in an event that describes a chunk; 0: none yet */
    uint32_t dropped_tiers;   /* kvb_mirror_dropped_tiers() */
    uint32_t reset_tiers;     /* kvb_mirror_reset_tiers() */
    uint32_t removal_tiers;   /* bit t: a removal from tier t has come */
    uint32_t unsaid_tiers;    /* bit t: blocks there were named without a word on salt and media */
    bool has_extra_keys;      /* the engine's events have lists of extra keys */
    bool has_signed_hashes;   /* it writes hashes as signed numbers, as SGLang does */
    bool is_paired;           /* kvb_mirror_is_paired() */

    /* Whether Stored events are real: see stream/mirror/proof.c. */
    bool is_whole;    /* the mirror has all blocks of the engine: kvb_mirror_set_whole() */
    bool forgot_full; /* except forgotten doubtful entries of full-attention groups */
    struct stored_run run;
    size_t unproven_end;         /* events of the batch before this one prove nothing */
    uint32_t doubts;             /* counts the doubts that arose in full-attention groups */
    size_t proof_steps;          /* budget left for this batch */
    struct proven_chain *proven; /* owned, proof_slots of them; NULL: none yet */

    size_t batch_out; /* router events before this one come from earlier batches */
    struct changed_entries changed;
    struct kvb_picture *pictures; /* those under way that it must tell; borrowed, linked */

    struct event_progress progress;
    uint32_t *pending; /* owned: entries whose waiting children are to be named */
    size_t pending_count;
    size_t pending_capacity;

    struct kvb_mirror_counts counts;
    struct kvb_served_names adapters; /* that events have named, and the configured one */
    struct kvb_digest_key digest_key;
    struct kvb_digest *digests[KVB_LIST_COUNT]; /* owned; NULL: the list was empty so far */
};

/* ---- One entry ---- */

/* The published name of a rooted entry. */
kvb_block_hash kvb_mirror_block(const struct kvb_mirror *mirror, const struct mirror_entry *entry);

static inline const struct mirror_context *
kvb_mirror_context(const struct kvb_mirror *mirror, const struct mirror_entry *entry)
{
    return &mirror->contexts[entry->context];
}

static inline bool kvb_mirror_holds(const struct mirror_entry *entry, enum kvb_tier tier)
{
    return entry->min >> tier & 1;
}

/* The copies of an entry in a tier, when extra copies may exist. */
struct copies
kvb_mirror_copies_aside(const struct kvb_mirror *mirror, uint32_t id, enum kvb_tier tier);

/* The copies of an entry in a tier.  Inline because every event checks each of its blocks.  Most
 * blocks have one copy, and most streams have no block with more. */
static inline struct copies
kvb_mirror_copies(const struct kvb_mirror *mirror, uint32_t id, enum kvb_tier tier)
{
    const struct mirror_entry *entry = &mirror->entries[id];

    return mirror->extra_copies.count > 0 && entry->max[tier] > 1
               ? kvb_mirror_copies_aside(mirror, id, tier)
               : (struct copies){ .min = kvb_mirror_holds(entry, tier), .max = entry->max[tier] };
}

/* True: the entry has or may have a copy in some tier. */
bool kvb_mirror_has_copies(const struct mirror_entry *entry);

/* Bit t: in tier t its min is 0 and its max is not. */
uint32_t kvb_mirror_doubtful_tiers(const struct mirror_entry *entry);

/* True: the entry is doubtful in some tier. */
bool kvb_mirror_is_doubtful(const struct mirror_entry *entry);

/* The key of a pool's object; 0: none. */
uint64_t kvb_mirror_key(const struct kvb_mirror *mirror, uint32_t id);

/* The hash of a value in a table of ids; `of` keeps apart values of different kinds. */
static inline uint32_t kvb_mirror_hash(const struct kvb_mirror *mirror, uint64_t value, uint64_t of)
{
    return (uint32_t)kvb_hash_keyed(&mirror->hash_key, value, of);
}

/* ---- Finding an entry; KVB_NO_ID: there is none ---- */

uint32_t kvb_mirror_find(const struct kvb_mirror *mirror, uint32_t group, kvb_engine_hash engine);

uint32_t kvb_mirror_find_key(const struct kvb_mirror *mirror, uint64_t key);

/* The entry to which the event's hash refers.  Pool objects are found by their key, other blocks by
 * the engine's hash. */
uint32_t kvb_mirror_find_known(
    const struct kvb_mirror *mirror, const struct kvb_engine_event *event, uint32_t group,
    kvb_engine_hash engine);

/* The only entry with the published name in the group; KVB_NO_ID also when there are several. */
uint32_t
kvb_mirror_find_named(const struct kvb_mirror *mirror, kvb_block_hash block, uint32_t group);

/* True: no entry has the published name.  False: one may have it. */
bool kvb_mirror_is_name_new(const struct kvb_mirror *mirror, kvb_block_hash block);

/* True: the group has kvb_max_of_name entries with the published name. */
bool kvb_mirror_is_name_full(const struct kvb_mirror *mirror, kvb_block_hash block, uint32_t group);

/* An entry with this hash in a full-attention group. */
uint32_t kvb_mirror_find_in_full(const struct kvb_mirror *mirror, kvb_engine_hash engine);

/* Prefetches the memory that hashes after number `at` of the batch will need, across events.  Cache
 * misses are most of the cost of a block. */
void kvb_mirror_look_ahead(
    const struct kvb_mirror *mirror, const struct kvb_event_batch *batch, uint32_t group,
    size_t at);

/* Prefetches the memory of a published name. */
void kvb_mirror_expect(const struct kvb_mirror *mirror, kvb_block_hash block);

/* ---- Published lists; see struct mirror_groups ---- */

/* The name under which the list has the entry's block. */
kvb_block_hash kvb_mirror_listed_name(
    const struct kvb_mirror *mirror, const struct mirror_entry *entry, kvb_block_hash block,
    unsigned list);

/* The list in which the entry's copies in this tier count; KVB_LIST_COUNT: no published list. */
unsigned kvb_mirror_list_of(
    const struct kvb_mirror *mirror, const struct mirror_entry *entry, enum kvb_tier tier);

/* True: whether this entry holds its name `block` in the tier decides whether the list has the
 * name. */
bool kvb_mirror_decides(
    const struct kvb_mirror *mirror, uint32_t id, kvb_block_hash block, unsigned list);

/* The entry that represents the name in the list; KVB_NO_ID: the list does not have it. */
uint32_t kvb_mirror_speaker(const struct kvb_mirror *mirror, kvb_block_hash block, unsigned list);

/* Iterates over the entries of all groups that hold the name in the tier; KVB_NO_ID: no more.  The
 * mirror must have entries.  The probe is valid until the mirror changes. */
struct kvb_line_probe kvb_mirror_probe_name(const struct kvb_mirror *mirror, kvb_block_hash block);
uint32_t kvb_mirror_next_holder(
    const struct kvb_mirror *mirror, struct kvb_line_probe *probe, kvb_block_hash block,
    enum kvb_tier tier);

/* The same over all entries with the name, whatever they hold. */
uint32_t kvb_mirror_next_of_name(
    const struct kvb_mirror *mirror, struct kvb_line_probe *probe, kvb_block_hash block);

/* True: the list has the entry's name, and this entry represents the name. */
bool kvb_mirror_speaks(const struct kvb_mirror *mirror, uint32_t id, unsigned list);

/* True: the list would have the entry's name without this family of shards, too. */
bool kvb_mirror_is_listed_without(
    const struct kvb_mirror *mirror, uint32_t id, unsigned list, uint32_t family);

/* ---- stream/mirror/shown.c: where the stream is republished ---- */

/* Block i of the event, a Stored, has come; the mirror has it as this entry. */
void kvb_shown_note_content(const struct mirror_change *change, uint32_t i, uint32_t id);

/* An entry has been inserted. */
void kvb_shown_note_inserted(struct kvb_shown *shown, uint32_t id);

/* An entry that waited for its name has it. */
void kvb_shown_note_named(struct kvb_shown *shown, uint32_t id);

/* The tiers in which the entry is held are others, or may be. */
void kvb_shown_note_held(struct kvb_shown *shown, uint32_t id);

/* An entry is about to be dropped.  True: its number is needed until readers have been told. */
bool kvb_shown_keeps(struct kvb_shown *shown, uint32_t id);

/* All entries are dropped at once. */
void kvb_shown_note_cleared(struct kvb_shown *shown);

/* True: numbers of dropped entries came free, because all were in use.  Readers start over. */
bool kvb_shown_free_gone(struct kvb_shown *shown);

/* For pictures: whether readers have the block, and its parent; KVB_NO_ID: they do not have the
 * parent, if there is one. */
bool kvb_shown_has(const struct kvb_shown *shown, uint32_t id);
uint32_t kvb_shown_parent(const struct kvb_shown *shown, uint32_t id, bool *out_has_parent);

/* Nothing is republished any more. */
void kvb_mirror_show_no_more(struct kvb_mirror *mirror);

/* ---- Inserting and removing entries ---- */

/* Makes room for this many entries.  They never move: copies of an array that grows would stay in
 * the heap.
 * KVB_TOO_LARGE above max_blocks, KVB_NO_MEMORY. */
kvb_status kvb_mirror_reserve(struct kvb_mirror *mirror, size_t count);

/* Allocates an entry for the block and adds it to the tables.
 * KVB_TOO_LARGE at max_blocks, KVB_NO_MEMORY. */
kvb_status
kvb_mirror_insert(struct kvb_mirror *mirror, const struct mirror_block *block, uint32_t *out_id);

/* Writes the block into the entry, which then has no context, no copies and no key.  KVB_TOO_LARGE,
 * KVB_NO_MEMORY: nothing changed. */
kvb_status
kvb_mirror_write(struct kvb_mirror *mirror, uint32_t id, const struct mirror_block *block);

/* Discards what was written into the entry. */
void kvb_mirror_wipe(struct kvb_mirror *mirror, uint32_t id);

/* Removes the entry from the tables and frees it.  Its copies are not published as removed.
 * keeps_number: the number stays in use, with the engine's hash, until kvb_mirror_free_entry().
 * Called by kvb_mirror_let_go() alone. */
void kvb_mirror_drop(struct kvb_mirror *mirror, uint32_t id, bool keeps_number);

/* Makes the number of a dropped entry free. */
void kvb_mirror_free_entry(struct kvb_mirror *mirror, uint32_t id);

/* Gives a waiting or unplaced entry its name and the other properties in *named.  KVB_TOO_LARGE,
 * KVB_NO_MEMORY: the entry is unchanged. */
kvb_status
kvb_mirror_name(struct kvb_mirror *mirror, uint32_t id, const struct mirror_block *named);

/* Adds the entry to the tables under its engine hash, its key, and its published name (`block`, if
 * rooted) or its parent's hash.  After KVB_NO_MEMORY it is in none of them. */
kvb_status kvb_mirror_file(struct kvb_mirror *mirror, uint32_t id, kvb_block_hash block);

/* Marks the entry as changed, for the current checkpoint. */
void kvb_mirror_mark(struct kvb_mirror *mirror, uint32_t id);

/* Updates counts and digest when a published name enters or leaves the list.  KVB_NO_MEMORY only
 * for the first name of a list. */
kvb_status
kvb_mirror_note_held(struct kvb_mirror *mirror, kvb_block_hash block, unsigned list, bool is_held);

/* Makes the digests those of empty lists. */
void kvb_mirror_zero_digests(struct kvb_mirror *mirror);

/* ---- stream/mirror/side_table.c ---- */

/* The entry's record; NULL: it has none.  Borrowed until the table changes. */
void *
kvb_side_table_find(const struct kvb_mirror *mirror, const struct side_table *table, uint32_t id);

/* Copies the record of an entry that has none.  KVB_TOO_LARGE, KVB_NO_MEMORY: nothing changed. */
kvb_status
kvb_side_table_add(const struct kvb_mirror *mirror, struct side_table *table, const void *record);

/* Drops the entry's record, which must exist. */
void kvb_side_table_drop(const struct kvb_mirror *mirror, struct side_table *table, uint32_t id);

/* Drops all of them, and keeps the memory. */
void kvb_side_table_clear(struct side_table *table);
void kvb_side_table_done(struct side_table *table);

/* ---- stream/mirror/waiting.c ---- */

/* Adds a waiting entry to the list of its parent's engine hash.  KVB_NO_MEMORY, KVB_TOO_LARGE: it
 * is not added. */
kvb_status kvb_mirror_wait(struct kvb_mirror *mirror, uint32_t id);

/* Removes an entry from that list; was: the entry as it was when added. */
void kvb_mirror_wait_no_more(
    struct kvb_mirror *mirror, uint32_t id, const struct mirror_entry *was);

/* The first entry that waits for this parent and can now be named, or KVB_NO_ID. */
uint32_t kvb_mirror_first_waiting(const struct kvb_mirror *mirror, uint32_t parent);

/* ---- stream/mirror/group.c ---- */

/* The index of the engine's group; kvb_max_groups: it is not known. */
uint32_t kvb_mirror_group_place(const struct kvb_mirror *mirror, uint32_t number);

/* The window or chunk of the event's group; 0: it has neither, or its length is not known. */
uint32_t
kvb_mirror_window_of(const struct kvb_mirror *mirror, const struct kvb_engine_event *event);

/* The engine's number of the event's group.  All pool objects are in one group, because they are
 * found by their key alone. */
uint32_t kvb_mirror_group_number(const struct kvb_engine_event *event);

/* Adds the event's group, which is new.  Returns its index; kvb_max_groups: the list is full. */
uint32_t kvb_mirror_add_group(struct kvb_mirror *mirror, const struct kvb_engine_event *event);

/* Computes the fields that depend on the list of groups. */
void kvb_mirror_settle_groups(struct mirror_groups *groups);

enum { no_family = -1 };

/* True: of some family other than except_family, all its groups among the `wanted` are in `held`
 * (bit g: group g). */
bool kvb_mirror_holds_all(
    const struct mirror_groups *groups, uint32_t wanted, uint32_t held, int64_t except_family);

/* The groups are odd, for this reason unless one is known. */
void kvb_mirror_note_odd(struct mirror_groups *groups, enum odd_groups why);

/* A small number for the event's block size: 1 + the index of the first shape with that size; 0 if
 * the size is unknown or the group is a sliding-window group. */
uint32_t kvb_mirror_size_of(const struct kvb_mirror *mirror, const struct kvb_engine_event *event);

void kvb_mirror_forget_groups(struct kvb_mirror *mirror);
void kvb_mirror_forget_shapes(struct kvb_mirror *mirror);

/* Records the shape of the event's blocks, and whether its tokens are pairs.  False: the table of
 * shapes is full, and the event is skipped. */
bool kvb_mirror_learn_shape(struct kvb_mirror *mirror, const struct kvb_engine_event *event);

/* ---- stream/mirror/proof.c ---- */

/* Resets the proofs at the beginning of a batch, and after a restore from a checkpoint. */
void kvb_mirror_begin_proofs(struct kvb_mirror *mirror);
void kvb_mirror_forget_proofs(struct kvb_mirror *mirror);

/* ---- stream/mirror/copies.c ---- */

/* True: the entry's own bytes hold these counts completely. */
static inline bool kvb_mirror_fits_entry(struct copies copies)
{
    return copies.min <= 1 && copies.max < many_copies;
}

/* Sets or removes the counts that the entry's own bytes cannot hold. */
kvb_status kvb_mirror_write_extra_copies(
    struct kvb_mirror *mirror, uint32_t id, enum kvb_tier tier, struct copies copies);

/* Sets one tier's copies and nothing else.  KVB_TOO_LARGE, KVB_NO_MEMORY: nothing changed.  Inline
 * like kvb_mirror_copies(). */
static inline kvb_status kvb_mirror_write_copies(
    struct kvb_mirror *mirror, uint32_t id, enum kvb_tier tier, struct copies copies)
{
    struct mirror_entry *entry = &mirror->entries[id];
    const bool was_there = entry->max[tier] > 0;

    if (!kvb_mirror_fits_entry(copies) || mirror->extra_copies.count > 0) {
        KVB_TRY(kvb_mirror_write_extra_copies(mirror, id, tier, copies));
    }
    if (copies.max > 0 && !was_there) {
        KVB_TRY(kvb_entry_set_add(&mirror->in_tier[tier], id));
    } else if (copies.max == 0 && was_there) {
        kvb_entry_set_remove(&mirror->in_tier[tier], id);
    }
    const uint32_t others = entry->min & ~(1U << tier);
    entry->min = (others | (uint32_t)(copies.min > 0) << tier) & ((1U << KVB_TIER_COUNT) - 1);
    entry->max[tier] = (uint8_t)(copies.max < many_copies ? copies.max : many_copies);
    return KVB_OK;
}

/* Removes all copies of the entry from the tables. */
void kvb_mirror_forget_copies(struct kvb_mirror *mirror, uint32_t id);

/* ---- stream/mirror/doubtful.c ---- */

/* Sets one tier's copies and updates the sums and the doubtful lists.  It may forget the oldest
 * doubtful entries, but never `id`.  KVB_NO_MEMORY: nothing changed. */
kvb_status kvb_mirror_set_copies(
    struct kvb_mirror *mirror, uint32_t id, enum kvb_tier tier, struct copies copies);

enum doubt_kind
kvb_mirror_doubt_kind(const struct kvb_mirror *mirror, const struct mirror_entry *entry);

/* The link of a doubtful entry; borrowed until the list changes. */
struct doubtful_link *kvb_mirror_link(const struct kvb_mirror *mirror, uint32_t id);

/* Drops an entry, as kvb_mirror_drop().  Where the stream is republished, its number stays in use
 * until readers have been told. */
void kvb_mirror_let_go(struct kvb_mirror *mirror, uint32_t id);

/* ---- stream/mirror/digest.c ---- */

/* Appends the block to the last event of `out`, if that is one of the list's, from number
 * first_event on, and ends with the block's parent; else to a new one. */
kvb_status kvb_mirror_add_stored(
    struct kvb_router_batch *out, size_t first_event, const struct mirror_entry *entry,
    kvb_block_hash block, unsigned list);

/* ---- stream/mirror/picture.c ---- */

/* The next entry of a picture; KVB_NO_ID: all was shown, or *looks is 0.  Each entry that is looked
 * at costs one.  KVB_NO_MEMORY. */
kvb_status kvb_picture_next(
    struct kvb_picture *picture, const struct kvb_mirror *mirror, size_t *looks, uint32_t *out_id);

/* True: everything was shown. */
bool kvb_picture_is_done(struct kvb_picture *picture, const struct kvb_mirror *mirror);

/* What pictures under way must know; no effect without one: */

/* A stored event of the entry is published. */
void kvb_mirror_tell_stored(
    struct kvb_mirror *mirror, const struct mirror_entry *entry, kvb_block_hash block,
    unsigned list);

/* The entry no longer holds its block in the tier. */
void kvb_mirror_tell_left(struct kvb_mirror *mirror, uint32_t id, enum kvb_tier tier);

/* A removal of the name from the list is published. */
void kvb_mirror_tell_removed(struct kvb_mirror *mirror, kvb_block_hash block, unsigned list);

/* All entries are dropped. */
void kvb_mirror_tell_cleared(struct kvb_mirror *mirror);
