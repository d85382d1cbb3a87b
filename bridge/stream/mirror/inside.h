#pragma once

#include "core/hash.h"
#include "core/id_table.h"
#include "core/limits.h"
#include "core/line_table.h"
#include "stream/mirror/entry_set.h"
#include "stream/mirror/mirror.h"

#include <assert.h>
#include <stdbool.h>

/* The inside of a mirror, for the files of this room and stream/checkpoint alone.
 *
 *     entries     | engine | tokens | parent | copies, standing, context |      32 bytes
 *                                                                  |
 *     contexts    | seed, group | ...            shared by whole prompts
 *
 *     names       (group, engine hash)          -> entry       a line of the cache each,
 *                 published name                -> entries     in one table
 *
 * Most blocks need no more.  Fields that few blocks need are in tables of their own:
 *
 *     by_parent   (parent's engine hash, context) -> the first entry that waits for it
 *     waiting     its list; by_waiting: entry -> its link
 *     in_tier     of each tier: the entries with copies there
 *     keys        of pools' objects; by_key: key -> entry
 *     links       oldest <-> ... <-> newest, of the doubtful entries
 *     copies      entry -> copies, where a tier has two certain ones or many
 *     free        entry -> entry -> ..., in place of their parents
 *
 * An entry's published name stands nowhere: it is the engine's, or the hash of the
 * parent's and the tokens', which stand there; to hash them again costs less than to
 * fetch 8 bytes more. */

enum placement {
    placement_rooted,      /* has its published name */
    placement_waiting,     /* its parent is unknown */
    placement_unmatchable, /* no query can name it */
    placement_unplaced     /* of a window group: no full-attention group has the hash yet */
};

/* Physical copies: at least, at most. */
struct copies {
    uint32_t min;
    uint32_t max;
};

/* many_copies: an entry's own byte counts those below, its extra copies say how many more.
 * kvb_max_of_name: entries of one published name and group.  Engines have one, and a few where
 * they know a block by several hashes; each further one would make each look-up of the name
 * longer. */
enum { context_bits = 24, many_copies = UINT8_MAX, kvb_max_of_name = 16 };

/* ---- Cache groups ----
 *
 * Entries are filed under the place of their group in this list, not under the engine's
 * number for it. */
enum { kvb_max_groups = 32 };

struct mirror_group {
    uint32_t number; /* the engine's */
    enum kvb_group_kind kind;
    uint32_t window_tokens; /* of KVB_GROUP_WINDOW */
    uint32_t tiers;         /* bit t: has stored there */
};

struct mirror_groups {
    struct mirror_group list[kvb_max_groups];
    uint32_t count;
    bool is_odd; /* something about them that no rule covers */
    bool has_several_sizes;
    uint32_t block_size; /* tokens; of the first Stored on the device; 0: none yet */
    /* Bit g: a name is in this list only if group g holds it. */
    uint32_t wanted[KVB_LIST_COUNT];
    uint32_t window_mask; /* bit g: of KVB_GROUP_WINDOW */
    /* The largest window: of several sizes (which make the groups odd anyway) it requires most. */
    uint32_t window_tokens;
    bool has_full; /* one is of KVB_GROUP_FULL */
};

/* Full-attention groups and sliding-window groups each have a list of doubtful entries and a
 * ceiling of their own: those of windows are many, and cheap to forget. */
enum doubt_kind { doubt_full, doubt_window, doubt_kinds };

struct doubtful_list {
    uint32_t oldest, newest; /* entries; KVB_NO_ID: empty */
    size_t count;
};

enum name_kind { name_of_engine, name_of_block };

struct mirror_entry {
    kvb_engine_hash engine;
    kvb_tokens_hash tokens;      /* rooted or waiting */
    uint64_t parent;             /* rooted: published name; waiting: engine hash; free: next */
    uint8_t max[KVB_TIER_COUNT]; /* copies; many_copies: extra_copies */
    uint32_t context : context_bits;
    uint32_t min : KVB_TIER_COUNT; /* copies; bit t: one in tier t is certain; more: extra_copies */
    uint32_t placement : 2;
    uint32_t has_parent : 1;
    uint32_t is_used : 1;
};

static_assert(sizeof(struct mirror_entry) == 32, "two entries to a line of the cache");
static_assert(
    (size_t)kvb_max_stream_blocks <= (size_t)1 << context_bits, "a context for each block");

/* What a prompt hands on from block to block. */
struct mirror_context {
    uint64_t seed;  /* of tokens; inherited by children */
    uint32_t group; /* place in the list of groups */
    uint32_t size;  /* kvb_mirror_size_of() */
    uint32_t uses;  /* entries; of a free one: the next free */
};

/* What is known of a block that is to be an entry. */
struct mirror_block {
    kvb_engine_hash engine;
    kvb_block_hash block; /* rooted only */
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

/* Of an entry with two certain copies or more in some tier, or many: what its own bytes do not
 * say, else 0. */
struct extra_copies {
    uint32_t id;
    uint32_t min[KVB_TIER_COUNT];
    uint32_t max[KVB_TIER_COUNT];
};

/* Of an entry that waits for its parent; see stream/mirror/waiting.c. */
struct waiting_link {
    uint32_t id;
    uint32_t previous, next; /* entries; KVB_NO_ID behind the last */
};

/* Chains known to have no doubtful block, by their last entry; see stream/mirror/proof.c. */
enum { proof_slots = 1024 };

struct proven_chain {
    uint32_t id;    /* KVB_NO_ID: none */
    uint32_t doubt; /* kvb_mirror.doubts then: another one since makes it void */
};

/* What is known of the Stored events just before, of this batch. */
struct stored_run {
    bool is_real;    /* they were real stores: kvb_mirror_is_real() */
    uint32_t number; /* group of the last one; the next of a run has a higher number */
};

/* Entries that a checkpoint under way has yet to write; see stream/mirror/record.h. */
struct changed_entries {
    uint64_t *bits; /* owned; NULL: no checkpoint is under way */
    size_t count;
    bool is_void; /* the mirror was emptied meanwhile */
};

/* A refresh under way; see stream/mirror/refresh.c. */
struct mirror_refresh {
    size_t words;   /* of each of the two below; 0: none is under way */
    uint64_t *sent; /* owned; a bit an entry: whoever received all since the refresh began has it */
    uint64_t *seen; /* owned; a bit an entry: it stood on a path of this round */
    uint32_t *path; /* owned: entries, each the child of the one behind it */
    size_t path_count, path_capacity;
    bool is_path_whole; /* its last entry has no parent, or one that was sent */
    size_t place;       /* the next entry of the round */
    unsigned rounds;
    bool has_sent;   /* in this round, like the next */
    bool is_changed; /* a stored event came */
    bool is_lost;    /* memory is out: what was sent is not known any more */
};

/* Where the next block of a Stored goes. */
struct place {
    enum placement placement;
    bool has_parent;
    uint64_t parent; /* rooted: published name; waiting: engine hash */
    uint64_t seed;
};

/* How far an event is: a large one takes several calls. */
struct event_progress {
    bool is_unfinished;
    bool has_new;            /* it held a block that was not there */
    bool is_judged, is_real; /* see kvb_mirror_is_real() */
    bool is_proven;          /* no block above it is in doubt */
    uint32_t next;           /* its blocks before this one are taken; hash_count: all are */
    uint32_t last;           /* entry of the newest of these; KVB_NO_ID: none */
};

struct kvb_mirror {
    struct kvb_hash_key hash_key; /* of all tables */
    enum kvb_hashes hashes;
    enum kvb_copies copies;
    unsigned tiers;
    size_t max_blocks;
    uint32_t pool_block_size; /* tokens; 0: any */
    kvb_span default_lora;    /* owned bytes; where events name none */

    struct mirror_entry *entries; /* owned */
    size_t entry_capacity;
    size_t entry_end; /* entries ever used since the last clear */
    size_t entry_count;
    uint32_t first_free;

    struct mirror_context *contexts; /* owned */
    size_t context_capacity;
    size_t context_end;
    uint32_t first_free_context;
    uint32_t newest_context; /* a guess at the next one; KVB_NO_ID: none */
    struct kvb_id_table by_context;

    struct kvb_line_table names; /* entry * 2 + enum name_kind; closed before the first */
    struct kvb_id_table by_parent;
    struct waiting_link *waiting; /* owned; in no order */
    size_t waiting_count, waiting_capacity;
    struct kvb_id_table by_waiting; /* entry -> its link */
    struct kvb_entry_set in_tier[KVB_TIER_COUNT];
    struct kvb_id_table by_key;
    uint64_t *keys; /* owned; of the entries below key_end, 0: none */
    size_t key_end, key_capacity;

    struct doubtful_link *links; /* owned; in no order */
    size_t link_count, link_capacity;
    struct kvb_id_table by_doubtful; /* entry -> its link */
    struct doubtful_list doubtful[doubt_kinds];

    struct extra_copies *extra_copies; /* owned; in no order */
    size_t extra_copies_count, extra_copies_capacity;
    struct kvb_id_table by_extra_copies; /* entry -> its extra copies */

    struct mirror_groups groups;
    uint32_t tokenless_tiers; /* bit t: blocks were moved there, whose shapes are not said */
    bool is_paired;           /* kvb_mirror_is_paired() */

    /* Which stores are real. */
    bool is_whole;    /* all that the engine holds is here: kvb_mirror_set_whole() */
    bool forgot_full; /* but a doubtful entry of a full-attention group */
    struct stored_run run;
    size_t unproven_end;         /* the batch's events before this one prove no run */
    uint32_t doubts;             /* so many came up in full-attention groups */
    size_t proof_steps;          /* left for this batch */
    struct proven_chain *proven; /* owned, proof_slots of them; NULL: none yet */

    size_t batch_out; /* router events before this one are of earlier batches */
    struct changed_entries changed;
    struct mirror_refresh refresh;

    struct event_progress progress;
    uint32_t *pending; /* owned: entries whose waiting children are to be named */
    size_t pending_count;
    size_t pending_capacity;

    struct kvb_mirror_counts counts;
    struct kvb_digest_key digest_key;
    struct kvb_digest digests[KVB_LIST_COUNT];
};

/* ---- Of one entry ---- */

/* Of a rooted one. */
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

/* For a tier that may have extra copies. */
struct copies
kvb_mirror_copies_aside(const struct kvb_mirror *mirror, uint32_t id, enum kvb_tier tier);

/* Inline because every event checks each of its blocks.  Most blocks have one copy, and most
 * streams no block with more. */
static inline struct copies
kvb_mirror_copies(const struct kvb_mirror *mirror, uint32_t id, enum kvb_tier tier)
{
    const struct mirror_entry *entry = &mirror->entries[id];

    return mirror->extra_copies_count > 0 && entry->max[tier] > 1
               ? kvb_mirror_copies_aside(mirror, id, tier)
               : (struct copies){ .min = kvb_mirror_holds(entry, tier), .max = entry->max[tier] };
}

/* Has the entry a copy in any tier? */
bool kvb_mirror_has_copies(const struct mirror_entry *entry);

/* Bit t: in tier t it has at least none and at most some. */
uint32_t kvb_mirror_doubtful_tiers(const struct mirror_entry *entry);

/* Is it so in any tier? */
bool kvb_mirror_is_doubtful(const struct mirror_entry *entry);

/* 0: none. */
uint64_t kvb_mirror_key(const struct kvb_mirror *mirror, uint32_t id);

/* For a table of ids: of a number, and of what it is a number of. */
static inline uint32_t kvb_mirror_hash(const struct kvb_mirror *mirror, uint64_t value, uint64_t of)
{
    return (uint32_t)kvb_hash_keyed(&mirror->hash_key, value, of);
}

/* ---- Finding; KVB_NO_ID when there is none ---- */

uint32_t kvb_mirror_find(const struct kvb_mirror *mirror, uint32_t group, kvb_engine_hash engine);

uint32_t kvb_mirror_find_key(const struct kvb_mirror *mirror, uint64_t key);

/* The entry that the event means by this hash: of a pool's object by its key, else by
 * the engine's name. */
uint32_t kvb_mirror_find_known(
    const struct kvb_mirror *mirror, const struct kvb_engine_event *event, uint32_t group,
    kvb_engine_hash engine);

/* The only entry of the published name in the group; KVB_NO_ID also when there are several. */
uint32_t
kvb_mirror_find_named(const struct kvb_mirror *mirror, kvb_block_hash block, uint32_t group);

/* Has the group as many entries of the published name as it may? */
bool kvb_mirror_is_name_full(const struct kvb_mirror *mirror, kvb_block_hash block, uint32_t group);

/* An entry of this hash in a full-attention group. */
uint32_t kvb_mirror_find_in_full(const struct kvb_mirror *mirror, kvb_engine_hash engine);

/* Asks for the memory that some of the batch's hashes behind number `at` will need, whatever
 * events they belong to: to wait for it is most of what a block costs. */
void kvb_mirror_look_ahead(
    const struct kvb_mirror *mirror, const struct kvb_event_batch *batch, uint32_t group,
    size_t at);

/* The same for a published name. */
void kvb_mirror_expect(const struct kvb_mirror *mirror, kvb_block_hash block);

/* ---- What is listed; see struct mirror_groups ---- */

/* The list in which the entry's copies in this tier count; KVB_LIST_COUNT: none that is
 * published. */
unsigned kvb_mirror_list_of(
    const struct kvb_mirror *mirror, const struct mirror_entry *entry, enum kvb_tier tier);

/* The entry comes to hold its name `block` in the tier, or ceases to: does that change whether the
 * list has the name? */
bool kvb_mirror_decides(
    const struct kvb_mirror *mirror, uint32_t id, kvb_block_hash block, unsigned list);

/* Does the list have this name? */
bool kvb_mirror_lists(const struct kvb_mirror *mirror, kvb_block_hash block, unsigned list);

/* The entry that speaks for the name; KVB_NO_ID: the list does not have it. */
uint32_t kvb_mirror_speaker(const struct kvb_mirror *mirror, kvb_block_hash block, unsigned list);

/* Goes through the entries of any group that hold the name in the tier; KVB_NO_ID: no more.
 * Not of a mirror without entries; the probe is good until the mirror changes. */
struct kvb_line_probe kvb_mirror_probe_name(const struct kvb_mirror *mirror, kvb_block_hash block);
uint32_t kvb_mirror_next_holder(
    const struct kvb_mirror *mirror, struct kvb_line_probe *probe, kvb_block_hash block,
    enum kvb_tier tier);

/* Is the entry's name in the list, and does the entry, of all of that name, speak for it? */
bool kvb_mirror_speaks(const struct kvb_mirror *mirror, uint32_t id, unsigned list);

/* ---- Coming and going ---- */

/* Draws an entry for the block and files it under its keys.
 * KVB_TOO_LARGE at max_blocks, KVB_NO_MEMORY. */
kvb_status
kvb_mirror_insert(struct kvb_mirror *mirror, const struct mirror_block *block, uint32_t *out_id);

/* Writes the block into the entry, which keeps no context, no copies and no key.
 * KVB_TOO_LARGE, KVB_NO_MEMORY: nothing changed. */
kvb_status
kvb_mirror_write(struct kvb_mirror *mirror, uint32_t id, const struct mirror_block *block);

/* What was written into the entry is of no more use. */
void kvb_mirror_wipe(struct kvb_mirror *mirror, uint32_t id);

/* Unfiles and frees it; its copies must be 0 or of no more interest. */
void kvb_mirror_drop(struct kvb_mirror *mirror, uint32_t id);

/* Gives a waiting or unplaced entry its name and all that stands in *named.
 * KVB_TOO_LARGE, KVB_NO_MEMORY: it still waits. */
kvb_status
kvb_mirror_name(struct kvb_mirror *mirror, uint32_t id, const struct mirror_block *named);

/* Files the entry under its engine hash, its key, and its published name (`block`, of a
 * rooted one) or its parent's; under none of them after KVB_NO_MEMORY. */
kvb_status kvb_mirror_file(struct kvb_mirror *mirror, uint32_t id, kvb_block_hash block);

/* The entry was written to. */
void kvb_mirror_mark(struct kvb_mirror *mirror, uint32_t id);

/* A published name came into the list, or left it: counts and digest. */
void kvb_mirror_note_held(
    struct kvb_mirror *mirror, kvb_block_hash block, unsigned list, bool is_held);

/* A stored event of the list that begins with this entry's block.  Parents in the window list say
 * nothing: its blocks are whatever is held. */
static inline struct kvb_router_event
kvb_mirror_stored_event(const struct mirror_entry *entry, unsigned list)
{
    const bool has_parent = entry->has_parent && list != KVB_LIST_WINDOW;

    return (struct kvb_router_event){ .kind = KVB_ROUTER_STORED,
                                      .tier = (enum kvb_tier)list,
                                      .has_parent = has_parent,
                                      .parent = { has_parent ? entry->parent : 0 } };
}

/* ---- stream/mirror/waiting.c ---- */

/* Files a waiting entry under its parent's engine hash.  KVB_NO_MEMORY, KVB_TOO_LARGE: it is
 * not filed. */
kvb_status kvb_mirror_wait(struct kvb_mirror *mirror, uint32_t id);

/* Undoes that; was: the entry as it was filed. */
void kvb_mirror_wait_no_more(
    struct kvb_mirror *mirror, uint32_t id, const struct mirror_entry *was);

/* The first of those that wait for this entry and can be named after it, or KVB_NO_ID. */
uint32_t kvb_mirror_first_waiting(const struct kvb_mirror *mirror, uint32_t parent);

/* ---- stream/mirror/group.c ---- */

/* The place of the engine's group; kvb_max_groups: not met. */
uint32_t kvb_mirror_group_place(const struct kvb_mirror *mirror, uint32_t number);

/* The engine's number of the event's group.  A pool's objects are found by their key alone: they
 * are all of one group. */
uint32_t kvb_mirror_group_number(const struct kvb_engine_event *event);

/* Adds the event's group, which was not met.  Returns its place; kvb_max_groups: there is no
 * room. */
uint32_t kvb_mirror_add_group(struct kvb_mirror *mirror, const struct kvb_engine_event *event);

/* Works out what follows from the list of groups. */
void kvb_mirror_settle_groups(struct mirror_groups *groups);

/* What stands for the tokens of the event's blocks: 1 + the place of the first shape of that
 * size, 0 where blocks are of no known size, or of a sliding-window group. */
uint32_t kvb_mirror_size_of(const struct kvb_mirror *mirror, const struct kvb_engine_event *event);

void kvb_mirror_forget_groups(struct kvb_mirror *mirror);
void kvb_mirror_forget_shapes(struct kvb_mirror *mirror);

/* Learns the shape of the event's blocks, and whether its tokens are pairs; false: the table is
 * full, the event is to be passed over. */
bool kvb_mirror_learn_shape(struct kvb_mirror *mirror, const struct kvb_engine_event *event);

/* ---- stream/mirror/proof.c ---- */

/* Of a batch, and of what a checkpoint does not tell the next process. */
void kvb_mirror_begin_proofs(struct kvb_mirror *mirror);
void kvb_mirror_forget_proofs(struct kvb_mirror *mirror);

/* ---- stream/mirror/copies.c ---- */

/* Do the entry's own bytes hold the counts completely? */
static inline bool kvb_mirror_fits_entry(struct copies copies)
{
    return copies.min <= 1 && copies.max < many_copies;
}

/* Sets what the entry's own bytes do not hold, or forgets it. */
kvb_status kvb_mirror_write_extra_copies(
    struct kvb_mirror *mirror, uint32_t id, enum kvb_tier tier, struct copies copies);

/* Sets one tier's copies and nothing else.  KVB_TOO_LARGE, KVB_NO_MEMORY: nothing changed.
 * Inline as kvb_mirror_copies(). */
static inline kvb_status kvb_mirror_write_copies(
    struct kvb_mirror *mirror, uint32_t id, enum kvb_tier tier, struct copies copies)
{
    struct mirror_entry *entry = &mirror->entries[id];
    const bool was_there = entry->max[tier] > 0;

    if (!kvb_mirror_fits_entry(copies) || mirror->extra_copies_count > 0) {
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

/* The entry has no copies from here on, in any tier: forgets where it had. */
void kvb_mirror_forget_copies(struct kvb_mirror *mirror, uint32_t id);

/* ---- stream/mirror/doubtful.c ---- */

/* Sets one tier's copies, keeps the sums and the doubtful lists right; may forget
 * the oldest doubtful entries, but never `id`.  KVB_NO_MEMORY: nothing changed. */
kvb_status kvb_mirror_set_copies(
    struct kvb_mirror *mirror, uint32_t id, enum kvb_tier tier, struct copies copies);

enum doubt_kind
kvb_mirror_doubt_kind(const struct kvb_mirror *mirror, const struct mirror_entry *entry);

/* Of a doubtful entry; borrowed until the list changes. */
struct doubtful_link *kvb_mirror_link(const struct kvb_mirror *mirror, uint32_t id);

/* KVB_TOO_LARGE, KVB_NO_MEMORY: nothing changed. */
kvb_status kvb_mirror_link_new(struct kvb_mirror *mirror, struct doubtful_link link);

void kvb_mirror_link_drop(struct kvb_mirror *mirror, uint32_t id);

/* Takes it from between its neighbours, drops its link. */
void kvb_mirror_unlink(struct kvb_mirror *mirror, uint32_t id);

/* ---- stream/mirror/refresh.c: what a refresh under way must know; else nothing happens ---- */

/* A stored event of the entry goes out. */
void kvb_mirror_refresh_note_stored(
    struct kvb_mirror *mirror, const struct mirror_entry *entry, kvb_block_hash block,
    unsigned list);

/* The entry holds its block no more in the tier. */
void kvb_mirror_refresh_note_left(struct kvb_mirror *mirror, uint32_t id, enum kvb_tier tier);

/* A removal of the name from the list goes out. */
void kvb_mirror_refresh_note_removed(
    struct kvb_mirror *mirror, kvb_block_hash block, unsigned list);

/* All entries are dropped. */
void kvb_mirror_refresh_clear(struct kvb_mirror *mirror);
