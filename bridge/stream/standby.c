#include "stream/standby.h"

#include "core/clock.h"

/* The same limits as those of readers: replica/follower.h. */
enum {
    missing_heartbeats = 3,
    fallback_period_ms = 1000,
    min_period_ms = 500,
    max_period_ms = 60000
};

static const uint64_t reconnect_ns = 3 * KVB_NS_PER_S;
static const uint64_t probe_again_ns = KVB_NS_PER_S;
static const uint64_t standstill_ns = 500 * KVB_NS_PER_MS; /* calls are usually 20 ms apart */

/* Standbys say once a second, in their status, which streams they watch. */
static const uint64_t behind_ns = 3500 * KVB_NS_PER_MS;

static const uint64_t max_skew_us = 86400ULL * 1000 * 1000;

/* No bridge publishes as many events of one stream between two heartbeats. */
static const uint64_t ids_unseen = 1000000;

static uint64_t period_ns_of(uint64_t said_ms)
{
    const uint64_t ms = said_ms == 0 ? fallback_period_ms : said_ms;
    const uint64_t min_ms = ms > min_period_ms ? ms : min_period_ms;

    return (min_ms < max_period_ms ? min_ms : max_period_ms) * KVB_NS_PER_MS;
}

static uint64_t later_of(uint64_t one, uint64_t other)
{
    return one > other ? one : other;
}

void kvb_standby_init(struct kvb_standby *standby, uint64_t publisher, uint64_t heartbeat_ms)
{
    *standby = (struct kvb_standby){ .publisher = publisher,
                                     .period_ns = period_ns_of(heartbeat_ms),
                                     .not_before_ns = UINT64_MAX };
}

void kvb_standby_connected(struct kvb_standby *standby, uint64_t now_ns)
{
    standby->not_before_ns =
        now_ns + later_of(missing_heartbeats * standby->period_ns, reconnect_ns);
    if (standby->state == KVB_STANDBY_PROBING) {
        standby->state = KVB_STANDBY_WATCHING;
    }
}

/* ---- Who publishes ---- */

/* The place of this publisher, or else of the publisher that was silent for longest. */
static struct kvb_standby_publisher *find_publisher_place(struct kvb_standby *standby, uint64_t id)
{
    struct kvb_standby_publisher *oldest = &standby->publishers[0];

    for (size_t i = 0; i < kvb_standby_publishers; i++) {
        struct kvb_standby_publisher *place = &standby->publishers[i];
        if (place->until_ns > 0 && place->id == id) {
            return place;
        }
        if (place->until_ns < oldest->until_ns) {
            oldest = place;
        }
    }
    return oldest;
}

/* A goodbye of a bridge without a place must not replace a bridge that publishes. */
static void
note_publisher(struct kvb_standby *standby, const struct kvb_heartbeat *beat, uint64_t until_ns)
{
    struct kvb_standby_publisher *place = find_publisher_place(standby, beat->publisher);
    const bool was_received = place->until_ns > 0 && place->id == beat->publisher;

    if (beat->is_bye && was_received && standby->not_before_ns < UINT64_MAX) {
        standby->not_before_ns = until_ns; /* the bridge that we waited for has stopped */
    }
    if (!beat->is_bye || was_received) {
        *place = (struct kvb_standby_publisher){ .id = beat->publisher, .until_ns = until_ns };
    }
}

static uint64_t due_ns(const struct kvb_standby *standby, uint64_t now_ns)
{
    uint64_t due = standby->not_before_ns;

    for (size_t i = 0; i < kvb_standby_publishers; i++) {
        due = later_of(due, standby->publishers[i].until_ns);
    }
    const uint64_t behind = now_ns < standby->ahead_until_ns ? standby->period_ns : 0;
    return due > UINT64_MAX - behind ? due : due + behind;
}

void kvb_standby_is_behind(struct kvb_standby *standby, uint64_t now_ns)
{
    standby->ahead_until_ns = now_ns + behind_ns;
}

/* ---- Heartbeats ---- */

/* Epochs begin at different ids, unless two clocks agree to the microsecond. */
static bool is_later_epoch(
    const struct kvb_standby *standby, const struct kvb_heartbeat *beat, uint64_t first_id)
{
    return beat->epoch_first_id != first_id ? beat->epoch_first_id > first_id
                                            : beat->publisher > standby->publisher;
}

static enum kvb_standby_action yield(struct kvb_standby *standby)
{
    standby->state = KVB_STANDBY_WATCHING;
    return KVB_STANDBY_YIELD;
}

static enum kvb_standby_action receive_primary(
    struct kvb_standby *standby, const struct kvb_heartbeat *beat, uint64_t until_ns,
    uint64_t now_ns)
{
    const bool is_same =
        standby->state == KVB_STANDBY_CHALLENGED && standby->challenger == beat->publisher;

    if (is_same && now_ns - standby->challenged_ns >= period_ns_of(beat->period_ms) / 2) {
        return yield(standby);
    }
    if (!is_same) {
        standby->state = KVB_STANDBY_CHALLENGED;
        standby->challenger = beat->publisher;
        standby->challenged_ns = now_ns;
    }
    standby->challenge_ends_ns = until_ns;
    return KVB_STANDBY_REST;
}

static enum kvb_standby_action receive_while_active(
    struct kvb_standby *standby, const struct kvb_heartbeat *beat, uint64_t first_id,
    uint64_t until_ns, uint64_t now_ns)
{
    if (beat->is_bye) {
        if (standby->state == KVB_STANDBY_CHALLENGED && standby->challenger == beat->publisher) {
            standby->state = KVB_STANDBY_ACTIVE;
        }
        return KVB_STANDBY_REST;
    }
    if (!beat->is_standby) {
        return receive_primary(standby, beat, until_ns, now_ns);
    }
    return is_later_epoch(standby, beat, first_id) ? yield(standby) : KVB_STANDBY_REST;
}

enum kvb_standby_action kvb_standby_receive(
    struct kvb_standby *standby, const struct kvb_heartbeat *beat, uint64_t first_id,
    uint64_t wall_us, uint64_t now_ns)
{
    const uint64_t silent_ns = missing_heartbeats * period_ns_of(beat->period_ms);
    const uint64_t until_ns = beat->is_bye ? now_ns : now_ns + silent_ns;

    if (beat->publisher == standby->publisher) {
        return KVB_STANDBY_REST; /* our own */
    }
    standby->floor_id = kvb_standby_floor(standby->floor_id, beat->last_id, wall_us);
    note_publisher(standby, beat, until_ns);
    if (kvb_standby_is_active(standby)) {
        return receive_while_active(standby, beat, first_id, until_ns, now_ns);
    }
    if (!beat->is_bye) {
        standby->state = KVB_STANDBY_WATCHING;
    }
    return KVB_STANDBY_REST;
}

/* ---- Time ---- */

static enum kvb_standby_action probe(struct kvb_standby *standby, uint64_t now_ns)
{
    standby->probe_ns = now_ns;
    return KVB_STANDBY_PROBE;
}

static enum kvb_standby_action
work_probe(struct kvb_standby *standby, uint64_t echoes, uint64_t now_ns)
{
    if (echoes != standby->probe_echoes) {
        standby->state = KVB_STANDBY_ACTIVE;
        return KVB_STANDBY_TAKE_OVER;
    }
    return now_ns - standby->probe_ns >= probe_again_ns ? probe(standby, now_ns) : KVB_STANDBY_REST;
}

static void note_standstill(struct kvb_standby *standby, uint64_t now_ns)
{
    if (standby->looked_ns > 0 && now_ns - standby->looked_ns >= standstill_ns &&
        standby->not_before_ns < UINT64_MAX) {
        standby->not_before_ns = later_of(standby->not_before_ns, now_ns + standby->period_ns);
        if (standby->state == KVB_STANDBY_PROBING) {
            standby->state = KVB_STANDBY_WATCHING;
        }
    }
    standby->looked_ns = now_ns;
}

enum kvb_standby_action
kvb_standby_next(struct kvb_standby *standby, uint64_t echoes, uint64_t now_ns)
{
    note_standstill(standby, now_ns);
    switch (standby->state) {
    case KVB_STANDBY_WATCHING:
        if (now_ns < due_ns(standby, now_ns)) {
            return KVB_STANDBY_REST;
        }
        standby->state = KVB_STANDBY_PROBING;
        standby->probe_echoes = echoes;
        return probe(standby, now_ns);
    case KVB_STANDBY_PROBING:
        return work_probe(standby, echoes, now_ns);
    case KVB_STANDBY_CHALLENGED:
        if (now_ns >= standby->challenge_ends_ns) {
            standby->state = KVB_STANDBY_ACTIVE;
        }
        return KVB_STANDBY_REST;
    case KVB_STANDBY_ACTIVE:
    case KVB_STANDBY_STATE_COUNT:
        break;
    }
    return KVB_STANDBY_REST;
}

/* ---- Epochs ---- */

uint64_t kvb_standby_floor(uint64_t floor_id, uint64_t last_id, uint64_t wall_us)
{
    return last_id < wall_us + max_skew_us ? later_of(floor_id, last_id) : floor_id;
}

uint64_t kvb_standby_epoch_us(uint64_t floor_id, uint64_t wall_us)
{
    return floor_id == 0 ? wall_us : later_of(wall_us, floor_id + ids_unseen);
}

bool kvb_standby_needs_epoch(const struct kvb_heartbeat *own, uint64_t first_id)
{
    return own->profile == KVB_PROFILE_JSON || own->epoch_first_id <= first_id;
}

const char *kvb_standby_role_name(bool is_active)
{
    return is_active ? "active" : "standby";
}
