#pragma once

#include "core/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Fair queueing of sync requests: chooses which aggregator's request is answered next.
 *
 * Streams take turns, and so do the requesters within a stream.  A requester has at most one
 * request for each stream: a newer one replaces it.  When the queue is full, the requester gets
 * BUSY and requests again.
 *
 * Only its inbox identifies a requester, and any client can invent inboxes.  To receive answers at
 * an inbox costs more: a requester that sends another request some time after its first is
 * `returning`.  It is served before all others, and may replace a request of a requester that is
 * not returning.  A flood from ever new inboxes gets only the remaining capacity.
 *
 * Pure: no clock, no I/O.  Threads: the caller locks. */

enum {
    kvb_sync_entries = 128,
    kvb_sync_stream_entries = 16,    /* for one stream: each gets a part within a second */
    kvb_sync_requester_entries = 32, /* for one requester, while others wait too */
    kvb_sync_requesters = 8192,
};

/* ---- Requesters ---- */

struct kvb_sync_requester {
    uint64_t key;
    uint64_t first_ns;
    uint64_t newest_ns;
    uint64_t filled_ns;
    uint64_t tokens;
};

/* A direct-mapped table: one slot by the requester's key; a later requester replaces an earlier
 * one in the same slot. */
struct kvb_sync_requesters {
    struct kvb_sync_requester places[kvb_sync_requesters];
};

enum kvb_requester_kind {
    KVB_SYNC_TOO_OFTEN, /* it sent more requests than allowed */
    KVB_SYNC_NEW,
    KVB_SYNC_RETURNING
};

/* Notes a request.  key: a keyed hash of the inbox. */
enum kvb_requester_kind
kvb_sync_requesters_note(struct kvb_sync_requesters *requesters, uint64_t key, uint64_t now_ns);

/* ---- Requests ---- */

struct kvb_sync_entry {
    void *pending; /* owned by the caller; NULL: the entry is free */
    bool is_returning;
    uint64_t requester; /* key of the requester */
    uint64_t worker_id; /* the stream */
    uint32_t dp_rank;
    uint64_t turn;        /* turn in which it was last served */
    uint64_t stream_turn; /* turn in which its stream was last served */
};

struct kvb_sync_queue {
    struct kvb_sync_entry entries[kvb_sync_entries];
    size_t count;
    uint64_t turns;
};

/* The request that was dropped for a new one. */
struct kvb_sync_displaced {
    void *pending;    /* now owned by the caller; NULL: none */
    bool is_replaced; /* replaced by a newer request of the same requester: no answer is sent */
};

/* Takes ownership of entry->pending on KVB_OK.  KVB_AGAIN: the queue has no room. */
kvb_status kvb_sync_queue_put(
    struct kvb_sync_queue *queue, const struct kvb_sync_entry *entry,
    struct kvb_sync_displaced *out_displaced);

/* The entry to serve next; NULL: none waits. */
struct kvb_sync_entry *kvb_sync_queue_next(struct kvb_sync_queue *queue);

/* The request was answered: the caller owns entry->pending again. */
void *kvb_sync_queue_drop(struct kvb_sync_queue *queue, struct kvb_sync_entry *entry);
