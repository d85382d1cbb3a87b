#pragma once

#include "core/ref.h"
#include "core/status.h"
#include "model/digest.h"
#include "model/event_batch.h"
#include "model/router_batch.h"
#include "model/stream.h"

#include <stddef.h>
#include <stdint.h>

/* The blocks that one engine holds according to its events, under the names that routers know.
 * Token ids are hashed here and dropped, except where the stream is republished
 * (stream/mirror/shown.h).
 *
 * One entry per (cache group, engine hash):
 *
 *     engine hash -> block (published name), tokens_hash, parent, seed
 *                    and for each tier the bounds of its copies, min..max
 *
 * Copies.  An engine repeats a Stored for two reasons that look alike: a second physical copy
 * (which is removed twice) and a re-announcement (which is removed once).  Therefore:
 *
 *     stored:   min = max(min, 1)          max += 1
 *     ... real: min += 1                   max += 1
 *     removed:  min = max(min - 1, 0)      max -= 1; at 0 the entry is dropped
 *
 * stream/mirror/proof.c decides which Stored is certainly a new copy, a real store; with
 * copies = KVB_COPIES_COUNTED each one is.
 *
 * An entry holds its block while min >= 1.  An entry with min = 0 < max is doubtful: it is counted,
 * but not listed.
 *
 * Groups.  A tier's list has a name when every full-attention group that has stored in this tier
 * holds an entry with that name there.  KVB_LIST_WINDOW has a name when every sliding-window group
 * holds it on the device.  A block of a window group has the name that the same engine hash has in
 * a full-attention group; if none has the hash, the block is unplaced.  Groups with windows of
 * different lengths, or with chunks, count separately in that list: kvb_block_hash_in_window().
 *
 * Blocks of different sizes never have the same name: they are hashes of different tokens.  If a
 * child's block size differs from its parent's, no query can compute its name, and the groups count
 * as odd.
 *
 * An engine may give one content several hashes: at most 16 entries of a group have one name.
 *
 * The parent of an unrooted entry is unknown, and therefore its published name too.  The entry
 * waits under the parent's engine hash.  When the parent arrives, the waiting entries are named and
 * published, parents first.  (With hashes = engine, names need no parent.)
 *
 * A pool's object (event.key) has at most one copy in a tier: one removal removes it, however often
 * it was stored.
 *
 * An object that is one shard of a block (event.family) is an entry of its own, under the object's
 * number.  Its group is the shard, and a list has the name when all groups of one family hold it.
 *
 * A Stored without tokens moves a known block to another tier.  For an unknown block only the
 * engine's name is known.  With hashes = engine the block is kept under that name, which also
 * serves as its tokens_hash and matches no query's tokens.  Otherwise the event is skipped.
 *
 * Only transitions are published: a block that becomes held as a stored event, one that is no
 * longer held as a removed event.
 *
 * Threads: the caller locks.
 * Memory:  about 60 bytes for each block and group, at most max_blocks of them; 30 more for each
 *          salt in use, 25 for each key of a pool's object, 20 for each block with two certain
 *          copies. */
struct kvb_mirror;

struct kvb_mirror_options {
    enum kvb_hashes hashes;
    enum kvb_copies copies;
    size_t max_blocks; /* 1 .. kvb_max_stream_blocks */
    unsigned tiers;    /* bit t: tier t is published; other tiers are only tracked */
    /* Block size of a pool's objects, whose events do not give it: no query can name an object with
     * fewer tokens.  0: any size. */
    uint32_t pool_block_size;
    uint32_t chunk_blocks; /* kvb_mirror_chunk_blocks(); 0: as the events show */
    uint32_t chunk_tokens; /* of groups with chunked local attention, whose events do not give it;
                              0: not known */
    uint64_t hash_key;     /* key of its tables; random, see core/hash.h; never published */
    const char *lora_name; /* for events that name none; NULL or "": base model; copied */
};

/* KVB_TOO_LARGE  max_blocks out of range    KVB_NO_MEMORY */
kvb_status kvb_mirror_new(const struct kvb_mirror_options *options, struct kvb_mirror **out_mirror);
void kvb_mirror_free(struct kvb_mirror *mirror);

/* Call it before the first event of a batch that is appended to out.  Events of one batch may share
 * a router event; those of different batches do not, so that the same batches always give the same
 * event ids. */
void kvb_mirror_begin_batch(struct kvb_mirror *mirror, const struct kvb_router_batch *out);

/* Prefetches the memory that the first few dozen hashes of the batch will need. */
void kvb_mirror_expect_batch(const struct kvb_mirror *mirror, const struct kvb_event_batch *batch);

/* Hashing this many tokens takes as long as looking up one block: one unit of work. */
enum { kvb_mirror_tokens_a_unit = 64 };

/* Applies event number `at` of the batch and appends what changed for routers
 * to out (event_ids are left 0).  Skipped events change nothing.
 *
 * *work is the limit of work before the call, and the work done after it.  A block that is stored,
 * removed, named or cleared costs 1, and so do kvb_mirror_tokens_a_unit of its tokens.  A larger
 * event stays unfinished: the caller applies it again, before any other, until
 * kvb_mirror_is_unfinished() returns false.  The parts do not share router events.
 *
 * When max_blocks would be exceeded, a tier beyond the device is dropped first: one of which no
 * removal has come, if there is one.
 *
 * KVB_TOO_LARGE  max_blocks, or out, is full
 * KVB_NO_MEMORY  after either error the mirror may have applied a part whose transitions are
 *                lost: the caller must clear it and begin a new epoch */
kvb_status kvb_mirror_apply(
    struct kvb_mirror *mirror, const struct kvb_event_batch *batch, size_t at, uint64_t *work,
    struct kvb_router_batch *out);

bool kvb_mirror_is_unfinished(const struct kvb_mirror *mirror);

/* Clears the mirror for a restarted engine, which may be another one: also forgets the groups, and
 * whether tokens are pairs. */
void kvb_mirror_restart(struct kvb_mirror *mirror);

/* Says whether the mirror has every block that the engine holds, except doubtful ones.  Initially
 * true.  While false, a Stored of unknown blocks proves nothing. */
void kvb_mirror_set_whole(struct kvb_mirror *mirror, bool is_whole);

/* Says whether the engine may announce once more what it holds.  Initially true. */
void kvb_mirror_set_repeats(struct kvb_mirror *mirror, bool may_repeat);

/* Notes a Stored of a group without a rule, which was skipped. */
void kvb_mirror_meet_other_group(struct kvb_mirror *mirror, const struct kvb_engine_event *event);

/* The kinds of groups with a window or chunks, with sizes and without drops.  Each keeps its place
 * until a restart.  Returns how many there are. */
size_t kvb_mirror_windows(
    const struct kvb_mirror *mirror, struct kvb_window_rule out_windows[kvb_max_windows]);

/* Whether there is a group of full attention: false also before the first group. */
bool kvb_mirror_has_full(const struct kvb_mirror *mirror);

/* The engine's numbers, as bits, of the groups of this kind, or of those of full attention. Numbers
 * above 31 are left out. */
uint32_t kvb_mirror_window_groups(const struct kvb_mirror *mirror, unsigned window);
uint32_t kvb_mirror_full_groups(const struct kvb_mirror *mirror);

/* True, until a restart: the lists may contain blocks that a prompt cannot use, because of the
 * groups: one of a kind without a rule, windows or chunks of unknown sizes or under the engine's
 * names, a group that changed its kind, more than 32 groups or 8 kinds of windows, a block of
 * another size than its parent, or blocks of windows that are not whole multiples of the others. */
bool kvb_mirror_has_odd_groups(const struct kvb_mirror *mirror);

/* Why, for people: "a cache group of cross attention has no rule".  NULL: the groups are not odd.
 */
const char *kvb_mirror_odd_groups_why(const struct kvb_mirror *mirror);

/* True: the engine's newest tokens were pairs (a,b) (b,c).  False before the first tokens, and
 * after a restart. */
bool kvb_mirror_is_paired(const struct kvb_mirror *mirror);

/* Bit t, never the device's: since the engine cleared its device, nothing has shown whether what
 * tier t held before is still there.  The entries are kept. */
uint32_t kvb_mirror_reset_tiers(const struct kvb_mirror *mirror);

/* Bit t: the engine names salts and media, but not on events of tier t that named its blocks. */
uint32_t kvb_mirror_unsaid_tiers(const struct kvb_mirror *mirror);

/* Bit t: tier t was dropped, to make room for the device's blocks within max_blocks. */
uint32_t kvb_mirror_dropped_tiers(const struct kvb_mirror *mirror);

/* The device's blocks in a chunk of the engine's offload connector, which are loaded together only.
 * A connector that describes its chunks names all their blocks in one event.  One that does not
 * names the last block alone; if the options say how many there are, those before it count as
 * stored and removed with it.  1: each block by itself. */
uint32_t kvb_mirror_chunk_blocks(const struct kvb_mirror *mirror);

/* True: SGLang with a host tier (HiCache).  A page that is computed again while its node is on the
 * host is on the device again without an event, and stores on the host are left out too. */
bool kvb_mirror_has_unannounced(const struct kvb_mirror *mirror);

/* The LoRA adapters that events have named since the mirror was made, and options.lora_name.  An
 * engine that only numbers its adapters has none here. */
const struct kvb_served_names *kvb_mirror_adapters(const struct kvb_mirror *mirror);

struct kvb_mirror_counts {
    uint64_t held[KVB_LIST_COUNT]; /* published names in each list; the fields up to `shapes` are
                                      gauges */
    /* Sum of `min` over the device tier and all groups, because groups share the engine's
     * blocks. */
    uint64_t proven_copies;
    uint64_t max_proven; /* the largest value ever, earlier incarnations included */
    uint64_t doubtful;   /* doubtful entries, forgotten ones included */
    uint64_t unrooted;
    uint64_t unplaced; /* entries of window groups without a name */
    /* The block shapes of each tier, in order of arrival; without pool objects. */
    struct kvb_tier_shape shapes[kvb_max_tier_shapes];
    size_t shape_count;
    uint64_t duplicate_stored; /* the fields from here on are counters */
    uint64_t shapes_refused;   /* events skipped because the table of shapes was full */
    uint64_t groups_refused;   /* events skipped because the list of groups was full */
    uint64_t names_refused;    /* blocks skipped because their name had 16 entries in the group */
    uint64_t window_elsewhere; /* blocks of window groups in other tiers, which no list has */
    uint64_t unknown_removed;
    uint64_t unknown_parents;
    uint64_t self_parents;
    uint64_t aliases;
    /* On the device: one hash with another content than before, or another hash of a content that
     * is held. */
    uint64_t ambiguous;
    uint64_t no_tokens;
    uint64_t unmatchable;
};

/* Borrowed; valid until the mirror is freed. */
const struct kvb_mirror_counts *kvb_mirror_count(const struct kvb_mirror *mirror);

/* Begins digests with this key, which cover what is held now.  Cost: one pass over all entries. */
void kvb_mirror_begin_digest(struct kvb_mirror *mirror, const struct kvb_digest_key *key);

/* The digest of the published part of the tier's list, or of KVB_LIST_WINDOW.  Borrowed; the next
 * change of the mirror changes it. */
const struct kvb_digest *kvb_mirror_digest(const struct kvb_mirror *mirror, enum kvb_tier tier);
