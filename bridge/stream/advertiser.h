#pragma once

#include "core/status.h"
#include "model/router_batch.h"
#include "model/stream.h"
#include "stream/stream.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* What was published about one stream, and what is to be published next.
 *
 *     state            lost            void          resumed     announced   withdrawn
 *     --------------   -------------   -----------   ----------  ----------  ----------
 *     UNADVERTISED     -               -             -           ADVERTISED  WITHDRAWN
 *     ADVERTISED       ADVERTISED_GAP  UNADVERTISED  -           -           WITHDRAWN
 *     WITHDRAWN        WITHDRAWN_GAP   UNADVERTISED  -           ADVERTISED  -
 *     ADVERTISED_GAP   -               UNADVERTISED  ADVERTISED  ADVERTISED  WITHDRAWN
 *     WITHDRAWN_GAP    -               UNADVERTISED  WITHDRAWN   ADVERTISED  WITHDRAWN
 *
 *     lost       NATS may have lost some events; their ids show the gap
 *     void       event ids do not show what is missing: only a new epoch helps
 *     resumed    readers request what they lack (`reannounce`): go on in the same epoch
 *     announced  a new epoch was opened, and all that is held was published in it
 *     withdrawn  a new epoch was opened, in which nothing is held
 *
 * A stream is withdrawn when its engine was unreachable for down_clear_ns, and while its engine has
 * discarded its cache without an event.  It is announced when its engine has proven that it is
 * still the incarnation whose blocks are listed: nothing may be published of an earlier
 * incarnation.
 *
 * A restored stream (stream/checkpoint/) begins in ADVERTISED_GAP: the same epoch, the next
 * id.  Where readers request what they lack, nothing needs to be published.  Where they do not,
 * events of the last process may have been lost with it, and at a clean stop it withdrew the
 * stream; then it is announced again.
 *
 * Pure: no clock, no I/O; what is published goes to a port of the caller's.
 * Threads: the caller locks. */
enum kvb_advertiser_state {
    KVB_UNADVERTISED, /* also: the last announcement failed half way */
    KVB_ADVERTISED,   /* everything was published to readers */
    KVB_WITHDRAWN,    /* an empty list was published, and nothing since */
    KVB_ADVERTISED_GAP,
    KVB_WITHDRAWN_GAP,
    KVB_ADVERTISER_STATE_COUNT
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
    enum kvb_advertiser_state state;
    bool is_republish_due;  /* another rank was cleared, and some readers know no ranks */
    uint64_t not_before_ns; /* earliest time of the next announcement */
    bool is_beat_due;       /* the state changed since the last heartbeat */
    bool is_beat_wanted;    /* an aggregator has just received an answer to its request */
    uint64_t beat_ns;       /* when the last heartbeat was due */
};

/* The functions that publish; borrowed for one call. */
struct kvb_advertiser_port {
    /* Publishes events, in order; they may be collected until the next flush. */
    kvb_status (*publish)(void *context, const struct kvb_router_batch *events);
    kvb_status (*flush)(void *context);
    void *context;
};

void kvb_advertiser_init(
    struct kvb_advertiser *advertiser, const struct kvb_advertiser_options *options,
    struct kvb_stream *stream);

/* The stream was restored from a checkpoint.  needs_epoch: it needs a new epoch. */
void kvb_advertiser_restored(struct kvb_advertiser *advertiser, bool needs_epoch);

/* ---- Events ---- */

/* Publishes the events that a step of the stream made, if readers have all earlier events.
 * True: the step has cleared the stream, so kvb_advertiser_sibling_cleared() is to be called
 * for the worker's other ranks. */
bool kvb_advertiser_step(
    struct kvb_advertiser *advertiser, const struct kvb_router_batch *events,
    const struct kvb_advertiser_port *port);

/* Publishes events that do not come from a step (a refresh).  After an error, events may be
 * lost. */
void kvb_advertiser_publish(
    struct kvb_advertiser *advertiser, const struct kvb_router_batch *events,
    const struct kvb_advertiser_port *port);

void kvb_advertiser_flush(
    struct kvb_advertiser *advertiser, const struct kvb_advertiser_port *port);

/* ---- Losses ---- */

/* Published events may not have arrived.  The next announcement waits until not_before_ns, so that
 * readers are connected again. */
void kvb_advertiser_lost(struct kvb_advertiser *advertiser, uint64_t not_before_ns);

/* Memory ran out in a step: its events are lost, and no gap of ids shows it. */
void kvb_advertiser_void(struct kvb_advertiser *advertiser);

/* Readers of JSON that know no ranks have cleared all ranks of the worker. */
void kvb_advertiser_sibling_cleared(struct kvb_advertiser *advertiser);

/* ---- Actions ---- */

enum kvb_advertiser_action {
    KVB_ADVERTISER_REST,
    KVB_ADVERTISER_ANNOUNCE,
    KVB_ADVERTISER_WITHDRAW,
    KVB_ADVERTISER_REPUBLISH /* publish all blocks once more, in the same epoch */
};

struct kvb_advertiser_input {
    uint64_t now_ns;
    uint64_t down_ns; /* since when the engine has been unreachable; 0: it is reachable */
    bool is_proven;   /* not restored, or proven after that (stream/checkpoint/) */
};

/* Returns the next action; the caller carries it out with kvb_advertiser_do(). */
enum kvb_advertiser_action
kvb_advertiser_next(struct kvb_advertiser *advertiser, const struct kvb_advertiser_input *input);

/* When kvb_advertiser_next() or kvb_advertiser_takes_beat() may have something to do, if no step,
 * no loss and no other call comes before; 0: at once, or when something else allows it.  Of the
 * input only now_ns and down_ns are used. */
uint64_t kvb_advertiser_due_ns(
    const struct kvb_advertiser *advertiser, const struct kvb_advertiser_input *input);

/* Carries out an action.  wall_us: where the event ids of a new epoch begin.  Before
 * KVB_ADVERTISER_REPUBLISH the caller makes the checkpoint invalid, because its event ids do not
 * come from batches.  True: as for kvb_advertiser_step(). */
bool kvb_advertiser_do(
    struct kvb_advertiser *advertiser, enum kvb_advertiser_action action,
    const struct kvb_advertiser_port *port, uint64_t now_ns, uint64_t wall_us);

/* The bridge stops, or the rank leaves: returns the action to carry out before the goodbye.
 * Readers of JSON may know no heartbeats, and so no goodbye. */
enum kvb_advertiser_action kvb_advertiser_last(const struct kvb_advertiser *advertiser);

/* ---- Heartbeats ---- */

/* True when a heartbeat is to be sent now.  This counts as an attempt: the next one is due a period
 * later. */
bool kvb_advertiser_takes_beat(struct kvb_advertiser *advertiser, uint64_t now_ns);
void kvb_advertiser_beat_sent(struct kvb_advertiser *advertiser);

/* ---- State of readers ---- */

/* True when everything was published to readers. */
static inline bool kvb_advertiser_is_current(const struct kvb_advertiser *advertiser)
{
    return advertiser->state == KVB_ADVERTISED || advertiser->state == KVB_WITHDRAWN;
}
