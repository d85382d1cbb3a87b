#pragma once

#include "core/status.h"
#include "model/router_batch.h"
#include "model/stream.h"
#include "stream/stream.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* What readers know of one stream, and what is to be published next.
 *
 *     told      lost       void      resumed   published
 *     -------   --------   -------   -------   ---------
 *     NOTHING   -          -         -         ALL
 *     ALL       WITH_GAP   NOTHING   -         -
 *     WITH_GAP  -          NOTHING   ALL       ALL
 *
 *     lost       NATS may have lost some events; their ids show the gap
 *     void       event ids do not show what is missing: only a new epoch helps
 *     resumed    readers request what they lack (`reannounce`): go on in the same epoch
 *     published  a new epoch was opened, and all of its list was published
 *
 * The list of an epoch is either what is held, or empty: then the stream is withdrawn
 * (kvb_stream_is_withdrawn()).  It is withdrawn when its engine was unreachable for down_clear_ns,
 * and while its engine has discarded its cache without an event.  It is announced when its engine
 * has proven that it is still the incarnation whose blocks are listed: nothing may be published of
 * an earlier incarnation.
 *
 * A restored stream (stream/checkpoint/) begins WITH_GAP: the same epoch, the next id.  Where
 * readers request what they lack, nothing needs to be published.  Where they do not, events of the
 * last process may have been lost with it, and at a clean stop it withdrew the stream; then it is
 * announced again.  It publishes once more what the last process published after the checkpoint,
 * with the same ids.  So nothing is announced before its engine has proven itself and the stream
 * has caught up: an event that no batch made would take one of these ids.
 *
 * Pure: no clock, no I/O; the caller publishes, and says what came of it.
 * Threads: the caller locks. */
enum kvb_told {
    KVB_TOLD_NOTHING, /* also: the last list failed half way */
    KVB_TOLD_ALL,
    KVB_TOLD_WITH_GAP
};

/* When the next heartbeat is due. */
enum kvb_beat_need {
    KVB_BEAT_BY_PERIOD,
    KVB_BEAT_SOON, /* an aggregator has just received an answer to its request */
    KVB_BEAT_NOW   /* the state has changed since the last one */
};

struct kvb_advertiser_options {
    bool publishes_json; /* to readers that cannot request what they missed */
    enum kvb_reannounce reannounce;
    uint64_t down_clear_ns;  /* 0: an unreachable engine's stream is never withdrawn */
    uint64_t heartbeat_ns;   /* period */
    size_t max_chunk_blocks; /* blocks of a chunk of an announcement */
};

struct kvb_advertiser {
    struct kvb_advertiser_options options;
    struct kvb_stream *stream; /* borrowed */
    enum kvb_told told;
    bool waits_for_proof;   /* restored, and not settled since */
    bool is_republish_due;  /* another rank was cleared, and some readers know no ranks */
    uint64_t not_before_ns; /* earliest time of the next announcement */
    enum kvb_beat_need beat;
    uint64_t beat_ns; /* when the last heartbeat was due */
};

void kvb_advertiser_init(
    struct kvb_advertiser *advertiser, const struct kvb_advertiser_options *options,
    struct kvb_stream *stream);

/* The stream was restored from a checkpoint.  needs_epoch: it needs a new epoch. */
void kvb_advertiser_restored(struct kvb_advertiser *advertiser, bool needs_epoch);

/* True: the stream was not restored, or its engine has proven since that it is still the
 * incarnation whose blocks are listed. */
bool kvb_advertiser_is_proven(struct kvb_advertiser *advertiser);

/* ---- Events ---- */

/* True: readers have all earlier events, so those of a step are to be published.  Else they are in
 * the next announcement. */
bool kvb_advertiser_takes_step(
    const struct kvb_advertiser *advertiser, const struct kvb_router_batch *events);

/* ---- Losses ---- */

/* Published events may not have arrived.  The next announcement waits until not_before_ns, so that
 * readers are connected again. */
void kvb_advertiser_lost(struct kvb_advertiser *advertiser, uint64_t not_before_ns);

/* Memory ran out in a step: its events are lost, and no gap of ids shows it. */
void kvb_advertiser_void(struct kvb_advertiser *advertiser);

/* Readers of JSON that know no ranks have cleared all ranks of the worker. */
void kvb_advertiser_sibling_cleared(struct kvb_advertiser *advertiser);

/* ---- Whole lists ---- */

enum kvb_advertiser_action {
    KVB_ADVERTISER_REST,
    KVB_ADVERTISER_ANNOUNCE,
    KVB_ADVERTISER_WITHDRAW,
    KVB_ADVERTISER_REPUBLISH /* publish all blocks once more, in the same epoch */
};

/* Returns what is to be published now:
 *
 *     begin    chunk, chunk, ... until there is none, or one was not published    end */
enum kvb_advertiser_action kvb_advertiser_next(struct kvb_advertiser *advertiser, uint64_t now_ns);

/* When kvb_advertiser_next() or kvb_advertiser_takes_beat() may have something to do, if no step,
 * no loss and no other call comes before; 0: at once, or when something else allows it. */
uint64_t kvb_advertiser_due_ns(const struct kvb_advertiser *advertiser, uint64_t now_ns);

/* wall_us: where the event ids of a new epoch begin.  Before KVB_ADVERTISER_REPUBLISH the caller
 * makes the checkpoint invalid, because its event ids do not come from batches. */
kvb_status kvb_advertiser_begin(
    struct kvb_advertiser *advertiser, enum kvb_advertiser_action action, uint64_t wall_us);

/* Replaces *out by the next chunk; no events: there is none.  KVB_NO_MEMORY */
kvb_status kvb_advertiser_chunk(struct kvb_advertiser *advertiser, struct kvb_router_batch *out);

/* status: KVB_OK when all was published.  True: the list was cleared, so
 * kvb_advertiser_sibling_cleared() is to be called for the worker's other ranks. */
bool kvb_advertiser_end(
    struct kvb_advertiser *advertiser, enum kvb_advertiser_action action, kvb_status status,
    uint64_t now_ns);

/* The bridge stops, or the rank leaves: returns what is to be published before the goodbye.
 * Readers of JSON may know no heartbeats, and so no goodbye. */
enum kvb_advertiser_action kvb_advertiser_last(const struct kvb_advertiser *advertiser);

/* ---- Heartbeats ---- */

/* A more urgent need stays. */
void kvb_advertiser_want_beat(struct kvb_advertiser *advertiser, enum kvb_beat_need need);

/* True when a heartbeat is to be sent now.  This counts as an attempt: the next one is due a period
 * later. */
bool kvb_advertiser_takes_beat(struct kvb_advertiser *advertiser, uint64_t now_ns);
void kvb_advertiser_beat_sent(struct kvb_advertiser *advertiser);

/* ---- State of readers ---- */

/* True when everything was published to readers. */
static inline bool kvb_advertiser_is_current(const struct kvb_advertiser *advertiser)
{
    return advertiser->told == KVB_TOLD_ALL;
}

/* ... and that is a list, so that events may follow. */
bool kvb_advertiser_lists(const struct kvb_advertiser *advertiser);
