#pragma once

#include "core/hash.h"
#include "core/ref.h"
#include "model/served_names.h"
#include "model/tier.h"
#include "model/worker_facts.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A stream is one data-parallel rank of one worker of one component.  Its state says how far its
 * list of blocks may be trusted. */

enum { kvb_name_bytes = 64, kvb_model_bytes = 128 };

struct kvb_stream_id {
    char name_space[kvb_name_bytes + 1];
    char component[kvb_name_bytes + 1];
    uint64_t worker_id;
    uint32_t dp_rank;
};

enum kvb_stream_state {
    KVB_STREAM_SYNCING,    /* history is being fetched */
    KVB_STREAM_EXACT,      /* lists what the engine holds, except for `doubtful` blocks */
    KVB_STREAM_PARTIAL,    /* lists a subset of what the engine holds */
    KVB_STREAM_UNVERIFIED, /* nothing proves the list right */
    KVB_STREAM_STALE,      /* NATS is disconnected: the last known list */
    KVB_STREAM_DOWN,       /* the worker or its bridge is unreachable, or just back */
    KVB_STREAM_STATE_COUNT
};

enum kvb_stream_reason {
    KVB_REASON_NONE,
    KVB_REASON_CONNECTING,     /* nothing from the engine yet that identifies its incarnation */
    KVB_REASON_REPLAYING,      /* a replay is under way */
    KVB_REASON_GONE,           /* the engine's buffer no longer had the beginning */
    KVB_REASON_HOLE,           /* a batch that no replay contains */
    KVB_REASON_POISON,         /* a batch that cannot be decoded */
    KVB_REASON_SKIPPED,        /* a Stored that was not understood */
    KVB_REASON_UNROOTED,       /* blocks whose parents are unknown */
    KVB_REASON_NO_REPLAY,      /* no replay endpoint is configured */
    KVB_REASON_REPLAY_FAILED,  /* the replay timed out or its answer was invalid */
    KVB_REASON_UNKNOWN_EVENT,  /* an event of an unknown type */
    KVB_REASON_NO_HEARTBEAT,   /* the publisher sends no heartbeats: it is not kvbridge */
    KVB_REASON_MISSED_EVENTS,  /* events between bridge and aggregator are missing */
    KVB_REASON_JOINED_LATE,    /* the aggregator joined after the epoch began */
    KVB_REASON_DIFFERS,        /* at the same event, the content differs from the bridge's digest */
    KVB_REASON_SILENT,         /* three heartbeats are missing */
    KVB_REASON_ENGINE_AWAY,    /* the engine's socket is disconnected, or it is in quarantine */
    KVB_REASON_BRIDGE_STOPPED, /* the bridge announced that it stops */
    KVB_REASON_NATS_AWAY,      /* NATS is disconnected */
    KVB_REASON_MEMORY,         /* a ceiling was reached */
    KVB_REASON_TWO_BRIDGES,    /* another bridge publishes the same stream */
    KVB_REASON_GROUPS,         /* a cache group of an unknown kind */
    KVB_REASON_NO_BASE,        /* nothing shows that the replay is this engine's and goes back to
                                * its beginning */
    KVB_REASON_LAGGING,        /* the aggregator is behind, or messages were dropped */
    KVB_REASON_AUDIT,          /* the engine delivers fewer cache hits than the list promises */
    KVB_REASON_ASLEEP,         /* the engine sleeps: its cache is discarded, without an event yet */
    KVB_REASON_OCCUPANCY,      /* the engine's memory cannot hold what is listed, or holds more */
    KVB_REASON_NO_REMOVALS,    /* of a tier or a store: nothing shows that all removals come */
    KVB_REASON_SALTS,          /* its events do not name salts, adapters and media */
    KVB_REASON_AMBIGUOUS,      /* its hashes do not name contents one to one */
    KVB_REASON_RESET,          /* a reset of an idle engine's cache, without an event yet */
    KVB_REASON_UNANNOUNCED,    /* the engine takes blocks into its device without an event */
    KVB_REASON_NO_NUMBER,      /* the engine's messages have no sequence number: they are dropped */
    KVB_REASON_OTHER_TOPIC,    /* the engine publishes under another topic than the configured */
    KVB_REASON_CACHING_OFF,    /* prefix caching is off: the engine keeps no blocks */
    KVB_REASON_NOT_FED,        /* the engine works, and publishes nothing */
    KVB_REASON_SPECULATION,    /* nobody says whether it gives a block less than it holds */
    KVB_REASON_COUNT
};

bool kvb_epoch_is_same(const kvb_epoch *one, const kvb_epoch *other);

/* "EXACT", ...: the name in answers and on screens.  Never NULL. */
const char *kvb_stream_state_name(enum kvb_stream_state state);
/* False: the stream does not count for the share of streams that are EXACT.  Its engine is absent,
 * sleeps or keeps no blocks, or only the engine's next batch can prove the list, and that takes a
 * request: an aggregator that waited for it would keep the requests away for which the engine
 * waits.  Nor does a store count that evicts without an event: it is never EXACT; nor an engine of
 * which only its operator can say how it speculates. */
bool kvb_stream_is_counted(enum kvb_stream_state state, enum kvb_stream_reason reason);

/* "gone", ...; "" for none.  Never NULL. */
const char *kvb_stream_reason_name(enum kvb_stream_reason reason);

/* How events are written on NATS: JSON on P.kv_events, protobuf on P.kv_events_pb.  A set of them
 * is an unsigned with bit 1 << format. */
enum kvb_format { KVB_FORMAT_JSON, KVB_FORMAT_PROTOBUF, KVB_FORMAT_COUNT };
enum kvb_hashes { KVB_HASHES_CANONICAL, KVB_HASHES_ENGINE, KVB_HASHES_COUNT };

/* What a Stored means for a block that is held already. */
enum kvb_copies {
    KVB_COPIES_INTERVAL, /* another copy, or the same copy again, depending on the context */
    KVB_COPIES_COUNTED,  /* another copy: correct if an engine announces each copy once */
    KVB_COPIES_COUNT
};

/* When a stream is republished for readers that cannot request it. */
enum kvb_reannounce {
    KVB_REANNOUNCE_AUTO, /* on a loss if json is published: readers of protobuf alone send requests
                          */
    KVB_REANNOUNCE_ON_LOSS,
    KVB_REANNOUNCE_NEVER,
    KVB_REANNOUNCE_COUNT
};

/* "json", "protobuf". */
const char *kvb_format_name(enum kvb_format format);
bool kvb_formats_have(unsigned formats, enum kvb_format format);

const char *kvb_hashes_name(enum kvb_hashes hashes);
const char *kvb_copies_name(enum kvb_copies copies);
const char *kvb_reannounce_name(enum kvb_reannounce reannounce);

/* Whether an engine publishes which blocks leave the host, disk and external tiers.  Some offload
 * connectors publish only what they store (LMCache); their tiers list blocks that are gone. */
enum kvb_offload_removals {
    KVB_OFFLOAD_DETECT,     /* not known: a tier counts as complete from its first removal on */
    KVB_OFFLOAD_COMPLETE,   /* all removals are published */
    KVB_OFFLOAD_INCOMPLETE, /* some removals are not published */
    KVB_OFFLOAD_COUNT
};

/* "detect", "complete", "incomplete".  Never NULL. */
const char *kvb_offload_removals_name(enum kvb_offload_removals removals);

/* How many blocks of a stream are in one tier, and their digest. */
struct kvb_tier_count {
    uint64_t blocks;
    struct kvb_hash128 digest; /* sum mod 2^128; zero while digests are not kept */
};

/* How a prompt is split into blocks, for the engine and for queries.  Block i covers the tokens
 * i * block_size .. (i + 1) * block_size - 1.  Its hash also covers the `lookahead` tokens after
 * them; speculative decoding with EAGLE uses 1. */
struct kvb_block_shape {
    uint32_t block_size; /* tokens */
    uint32_t lookahead;  /* tokens */
};

/* A tier may hold blocks of several shapes: an offload connector's chunks are larger than the
 * engine's blocks. */
struct kvb_tier_shape {
    enum kvb_tier tier;
    struct kvb_block_shape shape;
};

enum { kvb_max_tier_shapes = 8 }; /* of one stream */

/* Cache groups of one kind that hold only a part of a prefix: index/usable.h. */
struct kvb_window_rule {
    uint32_t tokens; /* the sliding window, 2 for Mamba states; or the chunk; never 0 */
    uint32_t size;   /* a block of the group, in blocks of the device's size */
    uint32_t drop;   /* as speculative_drop, in blocks of the group */
    bool is_chunked; /* chunked local attention */
};

enum { kvb_max_windows = 8 }; /* of one stream */

/* What a bridge publishes about each of its streams, every period_ms and when it changes. */
struct kvb_heartbeat {
    uint64_t worker_id;
    kvb_epoch epoch;
    uint64_t epoch_first_id; /* the `cleared` that opened the epoch */
    uint64_t last_id;        /* the newest event published; before the first: epoch_first_id - 1 */
    uint32_t dp_rank;
    enum kvb_stream_state state;
    enum kvb_stream_reason reason;
    enum kvb_hashes hashes;
    unsigned formats; /* that the bridge publishes; never empty */
    char model[kvb_model_bytes + 1];
    uint32_t block_size; /* tokens per block on the device */
    uint32_t lookahead;  /* lookahead tokens of those blocks */
    /* Every shape in use, by tier.  It is empty before the first Stored, and in heartbeats of old
     * bridges; then all tiers have block_size and lookahead. */
    struct kvb_tier_shape shapes[kvb_max_tier_shapes];
    size_t shape_count;
    /* The largest sliding window or chunk; 0: the model has none.  `windows` is empty where this is
     * the whole rule: one window beside full attention, in blocks of the same size. */
    uint32_t window_tokens;
    struct kvb_window_rule windows[kvb_max_windows];
    size_t window_count;
    bool is_without_full; /* no group of full attention: the device's list is empty */
    /* Blocks at the end of a held prefix that the full-attention groups do not use: EAGLE and MTP
     * without lookahead hashes. */
    uint32_t speculative_drop;
    uint32_t chunk_blocks; /* a hit beyond the device ends at a multiple of so many blocks; 0: 1 */
    uint32_t period_ms;    /* between heartbeats without a change; 0, from old bridges: 1000 */
    bool is_paired;        /* the engine hashes pairs of tokens: see proto/states.md */
    bool is_store;         /* a store that all workers share; it takes no requests */
    bool is_bye;           /* the bridge is stopping */
    bool has_missing_at_most;
    uint64_t publisher; /* identifies the publishing process; 0: an old bridge */
    uint64_t digest_seed;
    uint64_t doubtful;        /* blocks that may or may not be held */
    uint64_t missing_at_most; /* blocks that are held but not listed: an upper bound */
    struct kvb_tier_count tiers[KVB_LIST_COUNT];
    /* Why nothing proves the list of a tier right, whatever the state of the stream, which is that
     * of the device tier; NONE: nothing is wrong with the tier alone. */
    enum kvb_stream_reason tier_reasons[KVB_TIER_COUNT];
    struct kvb_worker_facts facts; /* of the worker */
    struct kvb_served_names names; /* by which requests may ask for the model */
};
