#pragma once

#include "core/ref.h"
#include "core/status.h"
#include "model/digest.h"
#include "model/event_batch.h"
#include "model/router_batch.h"
#include "model/stream.h"
#include "model/sync.h"

#include <stddef.h>
#include <stdint.h>

/* What one stream's engine holds, as far as its events tell, under the names
 * that routers know.  Token ids end here: they are hashed and dropped.
 *
 * One entry per (cache group, engine hash):
 *
 *     engine hash -> block (published name), tokens_hash, parent, seed
 *                    and per tier an interval of physical copies, least..most
 *
 * Copies.  An engine repeats a Stored for two reasons that look alike: a second
 * physical copy (removed twice) and a re-announcement (removed once).  So
 *
 *     stored:   least = max(least, 1)          most += 1
 *     ... real: least += 1                     most += 1
 *     removed:  least = max(least - 1, 0)      most -= 1; the entry goes at 0
 *
 * stream/mirror/proof.c decides which Stored is real, as far as events show it; with copies =
 * KVB_COPIES_COUNTED each is.
 *
 * An entry holds its block while least >= 1.  One with least = 0 < most is doubtful: not
 * listed, but counted.
 *
 * Groups.  A name is in a tier's list when every full-attention group that stored in this tier
 * holds it there, by some entry of that name; and in KVB_LIST_WINDOW when every sliding-window
 * group holds it on the device.  A window group's block has the name that the same hash has in
 * a full-attention group; where none has it, the block is unplaced.
 *
 * Blocks of different sizes never have the same name: they are hashes of different tokens.  If a
 * child's size differs from its parent's, no query computes its name, and the groups are odd.
 *
 * One content under several engine hashes: at most 16 entries of a group have one name.
 *
 * Unrooted entries: their parent is not known, so their published name is not
 * either.  They wait under the parent's engine hash and are named, and published,
 * parents first, when it comes.  (With hashes = engine names need no parent.)
 *
 * A pool's object (event.key) lies in a tier once or not at all: one removal ends it,
 * however often it was stored.
 *
 * A Stored without tokens moves a known block to another tier.  If the block is unknown, only the
 * engine's name for it is known.  With hashes = engine it is held under that name, which is also
 * its tokens_hash: no query's tokens have that hash.  Otherwise it is skipped.
 *
 * Only transitions come out: held -> stored event, no longer held -> removed.
 *
 * Threads: the caller locks.
 * Memory:  some 60 bytes a block and group, in whatever chains, max_blocks of them at most; 30
 *          more for each salt in use, 25 for each key of a pool's object, 20 for each block of
 *          which two copies are certain. */
struct kvb_mirror;

struct kvb_mirror_options {
    enum kvb_hashes hashes;
    enum kvb_copies copies;
    size_t max_blocks; /* 1 .. kvb_max_stream_blocks */
    unsigned tiers;    /* bit t: tier t is published; others are kept, not shown */
    /* Of a pool's objects, which do not say it themselves: one of fewer tokens is no
     * block that a query can name.  0: any. */
    uint32_t pool_block_size;
    uint64_t hash_key;     /* of its tables; random, see core/hash.h; goes into no answer */
    const char *lora_name; /* where the events name none; NULL or "": base model; copied */
};

/* KVB_TOO_LARGE  max_blocks out of range    KVB_NO_MEMORY */
kvb_status kvb_mirror_new(const struct kvb_mirror_options *options, struct kvb_mirror **out_mirror);
void kvb_mirror_free(struct kvb_mirror *mirror);

/* Events of a batch share router events; those of different batches do not, so that
 * the same batches make the same ids however they come.  Before the first event of a
 * batch that is appended to out. */
void kvb_mirror_begin_batch(struct kvb_mirror *mirror, const struct kvb_router_batch *out);

/* Asks for the memory that the first of the batch's hashes will need, some dozens. */
void kvb_mirror_expect_batch(const struct kvb_mirror *mirror, const struct kvb_event_batch *batch);

/* Hashing so many tokens takes as long as looking one block up: one unit of work. */
enum { kvb_mirror_tokens_a_unit = 64 };

/* Applies event number `at` of the batch and appends what changed for routers
 * to out (event_ids are left 0).  Skipped events change nothing.
 *
 * *work is how much may be done: a block stored, removed, named or cleared is 1, and so
 * are kvb_mirror_tokens_a_unit of its tokens; on return, how much was done.  An event that is more
 * stays unfinished: it is given again, before anything else, until kvb_mirror_is_unfinished() says
 * otherwise.  The parts share no router event.
 *
 * KVB_TOO_LARGE  max_blocks, or out, is full
 * KVB_NO_MEMORY  on both the mirror may have taken a part whose transitions are
 *                lost: the caller must clear it and begin a new epoch */
kvb_status kvb_mirror_apply(
    struct kvb_mirror *mirror, const struct kvb_event_batch *batch, size_t at, uint64_t *work,
    struct kvb_router_batch *out);

bool kvb_mirror_is_unfinished(const struct kvb_mirror *mirror);

/* The same; what stores from here on may be another engine: forgets the groups too, and whether
 * its tokens are pairs. */
void kvb_mirror_restart(struct kvb_mirror *mirror);

/* Does the mirror contain every block that the engine holds, except doubtful ones?  Initially
 * true.  While it is false, a Stored of unknown blocks proves nothing. */
void kvb_mirror_set_whole(struct kvb_mirror *mirror, bool is_whole);

/* A Stored of KVB_GROUP_OTHER, which was skipped. */
void kvb_mirror_meet_other_group(struct kvb_mirror *mirror, const struct kvb_engine_event *event);

/* Of the sliding-window groups; 0: there is none. */
uint32_t kvb_mirror_window_tokens(const struct kvb_mirror *mirror);

/* True, until a restart, when the lists may contain blocks that a request cannot use, because of
 * the groups: one of KVB_GROUP_OTHER, windows of different or unknown sizes, windows without a
 * full-attention group or under the engine's names, a group that changed its kind, more than 32
 * groups, or a block of another size than its parent. */
bool kvb_mirror_has_odd_groups(const struct kvb_mirror *mirror);

/* True when the engine's newest tokens came as pairs (a,b) (b,c).  False before the first tokens,
 * and after a restart. */
bool kvb_mirror_is_paired(const struct kvb_mirror *mirror);

struct kvb_mirror_counts {
    uint64_t held[KVB_LIST_COUNT]; /* published names, per list; gauges up to here ... */
    /* Sum of `least` over the device tier and all groups: groups share the engine's blocks. */
    uint64_t proven_copies;
    uint64_t max_proven; /* the largest that it ever was, also of incarnations before */
    uint64_t doubtful;   /* entries that may or may not be held, forgotten ones too */
    uint64_t unrooted;
    uint64_t unplaced; /* of window groups */
    /* In the order in which they came, those of each tier; of pools' objects none. */
    struct kvb_tier_shape shapes[kvb_max_tier_shapes];
    size_t shape_count;
    uint64_t duplicate_stored; /* ... counters from here */
    uint64_t shapes_refused;   /* events passed over: one shape too many */
    uint64_t groups_refused;   /* the same: one group too many */
    uint64_t names_refused;    /* blocks passed over: their name had 16 entries in the group */
    uint64_t window_elsewhere; /* blocks of window groups in other tiers: no list has them */
    uint64_t unknown_removed;
    uint64_t unknown_parents;
    uint64_t self_parents;
    uint64_t aliases;
    uint64_t no_tokens;
    uint64_t unmatchable;
    uint64_t forgotten_doubtful;
};

/* Borrowed; valid until the mirror is freed. */
const struct kvb_mirror_counts *kvb_mirror_count(const struct kvb_mirror *mirror);

/* From here on digests have this key; what is held now is counted at once.
 * Cost: goes through all entries. */
void kvb_mirror_begin_digest(struct kvb_mirror *mirror, const struct kvb_digest_key *key);

/* Of what is in the tier's list, or in KVB_LIST_WINDOW, as far as it is published.  Borrowed;
 * the next change changes it. */
const struct kvb_digest *kvb_mirror_digest(const struct kvb_mirror *mirror, enum kvb_tier tier);

typedef kvb_status (*kvb_mirror_visitor)(void *context, const struct kvb_router_batch *chunk);

/* Shows all that is published as stored events, parents before children, in
 * chunks of at most max_chunk_blocks (>= 1) blocks; the window list without parents, in any
 * order.  The mirror must not change meanwhile.  Stops with what visit returns when that is not
 * KVB_OK. Cost: O(n), some 24 bytes a block for the time of the walk.  KVB_NO_MEMORY. */
kvb_status kvb_mirror_walk(
    const struct kvb_mirror *mirror, size_t max_chunk_blocks, kvb_mirror_visitor visit,
    void *context);

/* Goes on with a walk that lets the mirror change meanwhile: looks at the next
 * max_entries entries from *place on (0 to begin with) and appends to out what is
 * held there now, max_blocks blocks (>= 1) and those of one entry at most, as stored events in
 * no particular order; only of the buckets, when they are not NULL.  *place is SIZE_MAX when all
 * were looked at.
 *
 * Whoever applies what it gives, and then every event published since the walk
 * began, in order, has what the mirror held at the last of them.
 * KVB_TOO_LARGE, KVB_NO_MEMORY of out: *place has not moved. */
kvb_status kvb_mirror_slice(
    const struct kvb_mirror *mirror, const struct kvb_bucket_set *buckets, size_t max_entries,
    size_t max_blocks, size_t *place, struct kvb_router_batch *out);

/* ---- Storing all again ----
 *
 * For readers that came late and know stored, removed and cleared alone: all that is held in
 * the device tier once more as stored events, a part at a time, while the mirror changes.
 *
 *     begin    step, step, ... with kvb_mirror_apply() between them    is_done    end
 *
 * Each block that is sent is held at that moment, and its parent (if it has one) was sent before
 * it since the refresh began.  Consider a reader that begins empty, ignores stored events with an
 * unknown parent, and receives the events of kvb_mirror_apply() and of the steps in their order.
 * At the end it has every block that is held, except blocks below a parent that is not held: such
 * readers ignore those, and no query finds them.  A reader that had all blocks before still does.
 *
 * Memory: 2 bits an entry, and 4 bytes for each block of the chain at hand. */

/* Ends one that is under way.  KVB_NO_MEMORY. */
kvb_status kvb_mirror_refresh_begin(struct kvb_mirror *mirror);
void kvb_mirror_refresh_end(struct kvb_mirror *mirror);
bool kvb_mirror_is_refreshing(const struct kvb_mirror *mirror);

/* Appends to out until it has max_blocks blocks, after max_looks looks at entries at the
 * latest, some 0.1 us each.  Every event appended to out between steps must be published.
 * KVB_NO_MEMORY, KVB_TOO_LARGE of out: end it; what is in out is of no use. */
kvb_status kvb_mirror_refresh_step(
    struct kvb_mirror *mirror, size_t max_blocks, size_t max_looks, struct kvb_router_batch *out,
    bool *out_is_done);
