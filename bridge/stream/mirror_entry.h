#pragma once

#include "index/id_table.h"
#include "stream/mirror.h"

#include <stdbool.h>

/* The inside of a mirror, for the mirror_*.c files alone.
 *
 *     by_engine   (group, engine hash)         -> entry
 *     by_block    published name               -> entries (rooted ones)
 *     by_parent   (group, parent's engine hash) -> entries that wait for it
 *     by_key      key of a pool's object       -> entry (those that have one)
 *
 *     doubtful    oldest <-> ... <-> newest, through the entries
 *     free        entry -> entry -> ...                                       */

enum standing {
    standing_rooted,     /* has its published name */
    standing_waiting,    /* its parent is unknown */
    standing_unmatchable /* no query can name it */
};

/* Physical copies: at least, at most. */
struct copies {
    uint8_t least;
    uint8_t most;
};

struct mirror_entry {
    kvb_engine_hash engine;
    kvb_block_hash block;   /* rooted only */
    kvb_tokens_hash tokens; /* rooted or waiting */
    uint64_t parent;        /* rooted: published name; waiting: engine hash */
    uint64_t seed;          /* of tokens; inherited by children */
    uint64_t key;           /* of a pool's object; 0: none */
    uint32_t group;
    uint32_t depth; /* blocks before this one, as far as known: orders the walk */
    uint32_t older; /* doubtful list; KVB_NO_ID at the ends */
    uint32_t newer; /* doubtful list, or free list */
    uint8_t standing;
    bool has_parent;
    bool is_doubtful;
    bool is_used;
    struct copies copies[KVB_TIER_COUNT];
};

/* Entries that a checkpoint under way has yet to write; see mirror_record.h. */
struct changed_entries {
    uint64_t *bits; /* owned; NULL: nobody asks */
    size_t count;
    bool is_void; /* the mirror was emptied meanwhile */
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

    struct kvb_id_table by_engine;
    struct kvb_id_table by_block;
    struct kvb_id_table by_parent;
    struct kvb_id_table by_key;

    uint32_t oldest_doubtful;
    uint32_t newest_doubtful;
    size_t listed_doubtful; /* without the forgotten ones */

    size_t batch_out; /* router events before this one are of earlier batches */
    struct changed_entries changed;

    uint32_t *pending; /* owned: entries whose waiting children are to be named */
    size_t pending_count;
    size_t pending_capacity;

    struct kvb_mirror_counts counts;
    struct kvb_digest_key digest_key;
    struct kvb_digest digests[KVB_TIER_COUNT];
};

uint32_t kvb_mirror_hash_engine(uint32_t group, uint64_t engine);

/* KVB_NO_ID when there is none. */
uint32_t kvb_mirror_find(const struct kvb_mirror *mirror, uint32_t group, kvb_engine_hash engine);

uint32_t kvb_mirror_find_key(const struct kvb_mirror *mirror, uint64_t key);

/* The entry that the event means by this hash: of a pool's object by its key, else by
 * the engine's name. */
uint32_t kvb_mirror_find_known(
    const struct kvb_mirror *mirror, const struct kvb_engine_event *event, kvb_engine_hash engine);

/* Draws an entry, copies *entry into it, and files it under its keys.
 * KVB_TOO_LARGE at max_blocks, KVB_NO_MEMORY. */
kvb_status
kvb_mirror_insert(struct kvb_mirror *mirror, const struct mirror_entry *entry, uint32_t *out_id);

/* Unfiles and frees it; its copies must be 0 or of no more interest. */
void kvb_mirror_drop(struct kvb_mirror *mirror, uint32_t id);

/* Gives a waiting entry its name; the caller filled block, parent, depth in
 * *named.  KVB_NO_MEMORY: it still waits. */
kvb_status
kvb_mirror_name(struct kvb_mirror *mirror, uint32_t id, const struct mirror_entry *named);

/* True when some rooted entry other than `except` holds the name in the tier. */
bool kvb_mirror_is_held_elsewhere(
    const struct kvb_mirror *mirror, kvb_block_hash block, enum kvb_tier tier, uint32_t except);

/* Sets one tier's copies, keeps the sums and the doubtful list right; may forget
 * the oldest doubtful entries, but never `id`. */
void kvb_mirror_set_copies(
    struct kvb_mirror *mirror, uint32_t id, enum kvb_tier tier, struct copies copies);

/* Of all entries of one name that are held in the tier, one speaks for the name: is
 * it this one? */
bool kvb_mirror_speaks_for_block(const struct kvb_mirror *mirror, uint32_t id, enum kvb_tier tier);

/* A published name came to be held in the tier, or ceased to be: counts and digest. */
void kvb_mirror_note_held(
    struct kvb_mirror *mirror, kvb_block_hash block, enum kvb_tier tier, bool is_held);

/* The entry was written to. */
void kvb_mirror_mark(struct kvb_mirror *mirror, uint32_t id);

/* As `is_doubtful` is to be. */
bool kvb_mirror_is_doubtful(const struct mirror_entry *entry);

/* Files the entry under its engine hash, its key, and its published name or its
 * parent's; under none of them after KVB_NO_MEMORY. */
kvb_status kvb_mirror_file(struct kvb_mirror *mirror, uint32_t id);

/* Has the entry a copy in any tier? */
bool kvb_mirror_has_copies(const struct mirror_entry *entry);
