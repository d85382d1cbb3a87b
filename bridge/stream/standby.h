#pragma once

#include "model/stream.h"

#include <stdbool.h>
#include <stdint.h>

/* Whether a bridge that is configured as standby publishes one stream: a failure detector on the
 * heartbeats of whoever publishes it (a lease of three periods), with a primary that preempts.
 *
 *     state        due         echo       a primary's   its next one,    a later epoch's  its
 * goodbye, heartbeat     half a period    heartbeat        or silence later
 *     ----------   ---------   --------   -----------   --------------   --------------
 * ------------ WATCHING     PROBING:1   -          -             -                - - PROBING -
 * ACTIVE:2   WATCHING      -                WATCHING         - ACTIVE       -           -
 * CHALLENGED    -                WATCHING:3       - CHALLENGED   -           -          -
 * WATCHING:3       WATCHING:3       ACTIVE
 *
 *     :1  KVB_STANDBY_PROBE       :2  KVB_STANDBY_TAKE_OVER      :3  KVB_STANDBY_YIELD
 *
 *     due        every publisher whose heartbeats were received has said goodbye or was silent for
 * three of its periods.  A period later while a standby with a smaller bridge_id is there: that one
 * comes first. echo       a message of this bridge, sent when the stream was due, came back: NATS
 * delivers, so the silence is the other bridge's, not the server's or our own primary    a bridge
 * that is not configured as standby.  One heartbeat of it may have been under way for long; the
 * second one shows that it publishes. later      of two standbys that both publish, the one whose
 * epoch began later stays: readers follow that one.  In WATCHING and PROBING any epoch counts.
 *
 * Nothing is due before three periods (3 s at least) have passed since NATS was connected:
 * another bridge may take as long to connect again.  After this bridge itself stood still, a
 * period passes before anything is due: heartbeats may wait to be read.
 *
 * One machine per stream and not per worker, because heartbeats and epochs are per stream, and the
 * ranks of one worker may stand in several bridges.
 *
 * Pure: time is an argument, monotonic ns.  Threads: the caller locks. */
enum kvb_standby_state {
    KVB_STANDBY_WATCHING,   /* another bridge publishes, or is awaited */
    KVB_STANDBY_PROBING,    /* nobody seems to publish */
    KVB_STANDBY_ACTIVE,     /* this bridge publishes */
    KVB_STANDBY_CHALLENGED, /* this bridge publishes, and so may a primary */
    KVB_STANDBY_STATE_COUNT
};

enum kvb_standby_action {
    KVB_STANDBY_REST,
    KVB_STANDBY_PROBE,     /* send a message that comes back */
    KVB_STANDBY_TAKE_OVER, /* publish from now on, in a new epoch */
    KVB_STANDBY_YIELD      /* publish nothing more, but say goodbye */
};

enum { kvb_standby_publishers = 2 };

struct kvb_standby {
    enum kvb_standby_state state;
    uint64_t publisher; /* our own id, as in our heartbeats */
    uint64_t period_ns; /* of our heartbeats */
    /* Who publishes the stream, the two received last; until_ns: counts as publishing until then.
     */
    struct kvb_standby_publisher {
        uint64_t id;
        uint64_t until_ns;
    } publishers[kvb_standby_publishers];
    uint64_t not_before_ns;     /* nothing is due before */
    uint64_t ahead_until_ns;    /* a standby that comes first is there until then */
    uint64_t looked_ns;         /* the newest call of kvb_standby_next(); 0: none */
    uint64_t probe_ns;          /* PROBING: when the newest probe was sent */
    uint64_t probe_echoes;      /* PROBING: echoes before the first probe */
    uint64_t challenger;        /* CHALLENGED: the primary's id ... */
    uint64_t challenged_ns;     /* ... since when ... */
    uint64_t challenge_ends_ns; /* ... and when it counts as silent */
    uint64_t floor_id;          /* the newest event id that any other bridge has published */
};

/* Begins in WATCHING; nothing is due before the first kvb_standby_connected(). */
void kvb_standby_init(struct kvb_standby *standby, uint64_t publisher, uint64_t heartbeat_ms);

/* NATS is connected (again), or heartbeats may have been lost on the way. */
void kvb_standby_connected(struct kvb_standby *standby, uint64_t now_ns);

/* A heartbeat of the stream came.  first_id: where our own epoch begins.  wall_us: of our clock;
 * event ids a day ahead of it are not believed. */
enum kvb_standby_action kvb_standby_receive(
    struct kvb_standby *standby, const struct kvb_heartbeat *beat, uint64_t first_id,
    uint64_t wall_us, uint64_t now_ns);

/* A standby with a smaller bridge_id has said, now, that it watches the stream too. */
void kvb_standby_is_behind(struct kvb_standby *standby, uint64_t now_ns);

/* Time passes; several times a period, while NATS is connected.  echoes: how many of our own
 * messages came back so far. */
enum kvb_standby_action
kvb_standby_next(struct kvb_standby *standby, uint64_t echoes, uint64_t now_ns);

/* Where the event ids of our next epoch begin: our clock, but above all that others have
 * published, whose clocks may be ahead of ours. */
uint64_t kvb_standby_epoch_us(uint64_t floor_id, uint64_t wall_us);

/* A standby has handed the stream over to us, whose epoch began at first_id: is it to be published
 * in a new epoch?  own: what our heartbeat says.  Readers of JSON hold a mixture of what both have
 * published; those of protobuf follow the later epoch, which ours has to be. */
bool kvb_standby_needs_epoch(const struct kvb_heartbeat *own, uint64_t first_id);

/* The floor after a message that names last_id; unchanged by one that is not believed. */
uint64_t kvb_standby_floor(uint64_t floor_id, uint64_t last_id, uint64_t wall_us);

static inline bool kvb_standby_is_active(const struct kvb_standby *standby)
{
    return standby->state == KVB_STANDBY_ACTIVE || standby->state == KVB_STANDBY_CHALLENGED;
}

/* "standby" or "active".  Never NULL. */
const char *kvb_standby_role_name(bool is_active);
