#pragma once

#include "model/stream.h"

#include <stdbool.h>
#include <stdint.h>

/* Decides whether a bridge that is configured as standby publishes one stream.  It is a failure
 * detector with a lease: a publisher that was silent for three of its periods counts as stopped.
 * A primary preempts a standby.
 *
 *     state        due         echo       primary      primary again   later epoch   end
 *     ----------   ---------   --------   ----------   -------------   -----------   ------
 *     WATCHING     PROBING:1   -          -            -               -             -
 *     PROBING      -           ACTIVE:2   WATCHING     -               WATCHING      -
 *     ACTIVE       -           -          CHALLENGED   -               WATCHING:3    -
 *     CHALLENGED   -           -          -            WATCHING:3      WATCHING:3    ACTIVE
 *
 *     :1  KVB_STANDBY_PROBE       :2  KVB_STANDBY_TAKE_OVER      :3  KVB_STANDBY_YIELD
 *
 *     due            Each publisher whose heartbeats were received has said goodbye or was silent
 *                    for three of its periods.  The stream is due one period later while a
 *                    standby with a smaller bridge_id watches it: that standby comes first.
 *     echo           A message that this bridge sent when the stream was due has come back.  So
 *                    NATS delivers messages, and the other bridge really is silent.
 *     primary        A heartbeat of a bridge that is not configured as standby.
 *     primary again  Another heartbeat of the same primary, at least half a period later.  The
 *                    first one may have been delayed; this one shows that the primary publishes.
 *     later epoch    A heartbeat of another standby, whose epoch began after ours.  Readers
 *                    follow the later epoch, so that standby goes on.  In WATCHING and PROBING
 *                    each epoch counts as later.
 *     end            The primary said goodbye, or was silent for three of its periods.
 *
 * Nothing is due in the first three periods (at least 3 s) after NATS was connected: another
 * bridge may need as long to connect again.  When this bridge has made no progress for a while,
 * nothing is due for one period: heartbeats may wait to be read.
 *
 * There is one state machine for each stream, not for each worker: heartbeats and epochs belong
 * to streams, and two bridges may serve different ranks of one worker.
 *
 * Pure: time is an argument, monotonic ns.  Threads: the caller locks. */
enum kvb_standby_state {
    KVB_STANDBY_WATCHING,   /* another bridge publishes, or may soon do so */
    KVB_STANDBY_PROBING,    /* nobody seems to publish */
    KVB_STANDBY_ACTIVE,     /* this bridge publishes */
    KVB_STANDBY_CHALLENGED, /* this bridge publishes; a primary may publish too */
    KVB_STANDBY_STATE_COUNT
};

enum kvb_standby_action {
    KVB_STANDBY_REST,
    KVB_STANDBY_PROBE,     /* send a message to ourselves */
    KVB_STANDBY_TAKE_OVER, /* publish from now on, in a new epoch */
    KVB_STANDBY_YIELD      /* stop publishing and say goodbye */
};

enum { kvb_standby_publishers = 2 };

struct kvb_standby {
    enum kvb_standby_state state;
    uint64_t publisher; /* our own id, as in our heartbeats */
    uint64_t period_ns; /* of our heartbeats */
    /* The two publishers that were heard last; each counts as publishing until until_ns. */
    struct kvb_standby_publisher {
        uint64_t id;
        uint64_t until_ns;
    } publishers[kvb_standby_publishers];
    uint64_t not_before_ns;     /* nothing is due before this time */
    uint64_t ahead_until_ns;    /* a standby that comes first watches until then */
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

/* A heartbeat of the stream was received.  first_id: the first event id of our own epoch.  wall_us:
 * our clock; event ids a day ahead of it are ignored. */
enum kvb_standby_action kvb_standby_receive(
    struct kvb_standby *standby, const struct kvb_heartbeat *beat, uint64_t first_id,
    uint64_t wall_us, uint64_t now_ns);

/* A standby with a smaller bridge_id has just said that it watches the stream too. */
void kvb_standby_is_behind(struct kvb_standby *standby, uint64_t now_ns);

/* Called several times a period while NATS is connected.  echoes: how many of our own messages
 * have come back so far. */
enum kvb_standby_action
kvb_standby_next(struct kvb_standby *standby, uint64_t echoes, uint64_t now_ns);

/* The first event id of our next epoch.  It is our clock, but above all event ids that other
 * bridges have published: their clocks may be ahead of ours. */
uint64_t kvb_standby_epoch_us(uint64_t floor_id, uint64_t wall_us);

/* A standby whose epoch began at first_id has handed the stream over to us.  True: we must open a
 * new epoch.  own: our heartbeat.  Readers of JSON hold a mixture of what both bridges have
 * published.  Readers of protobuf follow the later epoch, so ours must be the later one. */
bool kvb_standby_needs_epoch(const struct kvb_heartbeat *own, uint64_t first_id);

/* The new floor after a message with last_id.  A message with an id too far ahead does not change
 * it. */
uint64_t kvb_standby_floor(uint64_t floor_id, uint64_t last_id, uint64_t wall_us);

static inline bool kvb_standby_is_active(const struct kvb_standby *standby)
{
    return standby->state == KVB_STANDBY_ACTIVE || standby->state == KVB_STANDBY_CHALLENGED;
}

/* "standby" or "active".  Never NULL. */
const char *kvb_standby_role_name(bool is_active);
