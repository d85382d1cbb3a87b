#pragma once

#include "core/limits.h"
#include "index/id_table.h"
#include "index/line_table.h"
#include "stream/mirror.h"

#include <assert.h>
#include <stdbool.h>

/* The inside of a mirror, for the mirror_*.c files alone.
 *
 *     entries     | engine | tokens | parent | copies, standing, context |      32 bytes
 *                                                                  |
 *     contexts    | seed, group | ...            shared by whole prompts
 *
 *     names       (group, engine hash)          -> entry       a line of the cache each,
 *                 published name                -> entries     in one table
 *
 * That is all that most blocks take.  What few of them need lies apart:
 *
 *     by_parent   (group, parent's engine hash) -> entries that wait for it
 *     keys        of pools' objects; by_key: key -> entry
 *     links       oldest <-> ... <-> newest, of the doubtful entries
 *     free        entry -> entry -> ..., in place of their parents
 *
 * An entry's published name stands nowhere: it is the engine's, or the hash of the
 * parent's and the tokens', which stand there; to hash them again costs less than to
 * fetch 8 bytes more. */

enum standing {
    standing_rooted,     /* has its published name */
    standing_waiting,    /* its parent is unknown */
    standing_unmatchable /* no query can name it */
};

/* Physical copies: at least, at most. */
struct copies {
    uint8_t least; /* 0 or 1: a second one is never certain */
    uint8_t most;
};

enum { context_bits = 24 };

enum name_kind { name_of_engine, name_of_block };

struct mirror_entry {
    kvb_engine_hash engine;
    kvb_tokens_hash tokens;       /* rooted or waiting */
    uint64_t parent;              /* rooted: published name; waiting: engine hash; free: next */
    uint8_t most[KVB_TIER_COUNT]; /* copies */
    uint32_t context : context_bits;
    uint32_t least : KVB_TIER_COUNT; /* copies; bit t: of tier t */
    uint32_t standing : 2;
    uint32_t has_parent : 1;
    uint32_t is_used : 1;
};

static_assert(sizeof(struct mirror_entry) == 32, "two entries to a line of the cache");
static_assert(
    (size_t)kvb_max_stream_blocks <= (size_t)1 << context_bits, "a context for each block");

/* What a prompt hands on from block to block. */
struct mirror_context {
    uint64_t seed; /* of tokens; inherited by children */
    uint32_t group;
    uint32_t uses; /* entries; of a free one: the next free */
};

/* What is known of a block that is to be an entry. */
struct mirror_block {
    kvb_engine_hash engine;
    kvb_block_hash block; /* rooted only */
    kvb_tokens_hash tokens;
    uint64_t parent;
    uint64_t seed;
    uint64_t key; /* of a pool's object; 0: none */
    uint32_t group;
    enum standing standing;
    bool has_parent;
};

struct doubtful_link {
    uint32_t id;
    uint32_t older, newer; /* entries; KVB_NO_ID at the ends */
};

/* Entries that a checkpoint under way has yet to write; see mirror_record.h. */
struct changed_entries {
    uint64_t *bits; /* owned; NULL: nobody asks */
    size_t count;
    bool is_void; /* the mirror was emptied meanwhile */
};

/* A refresh under way; see mirror_refresh.c. */
struct mirror_refresh {
    size_t words;   /* of each of the two below; 0: none is under way */
    uint64_t *told; /* owned; a bit an entry: whoever heard all since the refresh began has it */
    uint64_t *seen; /* owned; a bit an entry: it stood on a path of this round */
    uint32_t *path; /* owned: entries, each the child of the one behind it */
    size_t path_count, path_capacity;
    bool is_path_whole; /* its last entry has no parent, or one that was told */
    size_t place;       /* the next entry of the round */
    unsigned rounds;
    bool has_told;   /* in this round, like the next */
    bool is_changed; /* a stored event came */
    bool is_lost;    /* memory is out: what was told is not known any more */
};

struct kvb_mirror {
    enum kvb_hashes hashes;
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
    struct kvb_id_table by_key;
    uint64_t *keys; /* owned; of the entries below key_end, 0: none */
    size_t key_end, key_capacity;

    struct doubtful_link *links; /* owned; in no order */
    size_t link_count, link_capacity;
    struct kvb_id_table by_doubtful; /* entry -> its link */
    uint32_t oldest_doubtful;
    uint32_t newest_doubtful;

    size_t batch_out; /* router events before this one are of earlier batches */
    struct changed_entries changed;
    struct mirror_refresh refresh;

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
    return entry->least >> tier & 1;
}

struct copies kvb_mirror_copies(const struct mirror_entry *entry, enum kvb_tier tier);

/* Has the entry a copy in any tier? */
bool kvb_mirror_has_copies(const struct mirror_entry *entry);

/* Has it, in any tier, at least none and at most some? */
bool kvb_mirror_is_doubtful(const struct mirror_entry *entry);

/* 0: none. */
uint64_t kvb_mirror_key(const struct kvb_mirror *mirror, uint32_t id);

/* ---- Finding; KVB_NO_ID when there is none ---- */

uint32_t kvb_mirror_hash_parent(uint32_t group, uint64_t engine);

uint32_t kvb_mirror_find(const struct kvb_mirror *mirror, uint32_t group, kvb_engine_hash engine);

uint32_t kvb_mirror_find_key(const struct kvb_mirror *mirror, uint64_t key);

/* The entry that the event means by this hash: of a pool's object by its key, else by
 * the engine's name. */
uint32_t kvb_mirror_find_known(
    const struct kvb_mirror *mirror, const struct kvb_engine_event *event, kvb_engine_hash engine);

/* Asks for the memory that some of the batch's hashes behind number `at` will need, whatever
 * events they belong to: to wait for it is most of what a block costs. */
void kvb_mirror_look_ahead(
    const struct kvb_mirror *mirror, const struct kvb_event_batch *batch, uint32_t group,
    size_t at);

/* The same for a published name. */
void kvb_mirror_expect(const struct kvb_mirror *mirror, kvb_block_hash block);

/* True when some rooted entry other than `except` holds the name in the tier. */
bool kvb_mirror_is_held_elsewhere(
    const struct kvb_mirror *mirror, kvb_block_hash block, enum kvb_tier tier, uint32_t except);

/* Of all entries of one name that are held in the tier, one speaks for the name. */
uint32_t
kvb_mirror_speaker(const struct kvb_mirror *mirror, kvb_block_hash block, enum kvb_tier tier);

/* Is it this one? */
bool kvb_mirror_speaks_for_block(const struct kvb_mirror *mirror, uint32_t id, enum kvb_tier tier);

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

/* Gives a waiting entry its name and all that stands in *named.
 * KVB_TOO_LARGE, KVB_NO_MEMORY: it still waits. */
kvb_status
kvb_mirror_name(struct kvb_mirror *mirror, uint32_t id, const struct mirror_block *named);

/* Files the entry under its engine hash, its key, and its published name (`block`, of a
 * rooted one) or its parent's; under none of them after KVB_NO_MEMORY. */
kvb_status kvb_mirror_file(struct kvb_mirror *mirror, uint32_t id, kvb_block_hash block);

/* The entry was written to. */
void kvb_mirror_mark(struct kvb_mirror *mirror, uint32_t id);

/* A published name came to be held in the tier, or ceased to be: counts and digest. */
void kvb_mirror_note_held(
    struct kvb_mirror *mirror, kvb_block_hash block, enum kvb_tier tier, bool is_held);

/* ---- mirror_doubtful.c: copies ---- */

/* Sets one tier's copies, keeps the sums and the doubtful list right; may forget
 * the oldest doubtful entries, but never `id`.  KVB_NO_MEMORY: nothing changed. */
kvb_status kvb_mirror_set_copies(
    struct kvb_mirror *mirror, uint32_t id, enum kvb_tier tier, struct copies copies);

/* The same and nothing else. */
void kvb_mirror_write_copies(struct mirror_entry *entry, enum kvb_tier tier, struct copies copies);

/* Of a doubtful entry; borrowed until the list changes. */
struct doubtful_link *kvb_mirror_link(const struct kvb_mirror *mirror, uint32_t id);

/* KVB_TOO_LARGE, KVB_NO_MEMORY: nothing changed. */
kvb_status kvb_mirror_link_new(struct kvb_mirror *mirror, struct doubtful_link link);

void kvb_mirror_link_drop(struct kvb_mirror *mirror, uint32_t id);

/* Takes it from between its neighbours, drops its link. */
void kvb_mirror_unlink(struct kvb_mirror *mirror, uint32_t id);

/* ---- mirror_refresh.c: what a refresh under way must know; else nothing happens ---- */

/* A stored event of the entry goes out. */
void kvb_mirror_refresh_note_stored(struct kvb_mirror *mirror, uint32_t id, enum kvb_tier tier);

/* The entry holds its block no more in the tier. */
void kvb_mirror_refresh_note_left(struct kvb_mirror *mirror, uint32_t id, enum kvb_tier tier);

/* All entries are dropped. */
void kvb_mirror_refresh_clear(struct kvb_mirror *mirror);
