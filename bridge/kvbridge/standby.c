#include "core/clock.h"
#include "kvbridge/inside.h"
#include "wire/router/bridge_status.h"
#include "wire/router/heartbeat.h"

#include <stdlib.h>
#include <string.h>

/* Carries out what stream/standby.h decides, for each stream of a bridge with publish.standby:
 *
 *     P.kv_heartbeat    who publishes our streams        -+
 *     P.bridge_status   which standbys take precedence   -+--> ring --> the ingest thread
 *     P.kv_handover     a standby has yielded a stream   -+             takes over, yields
 *
 * A bridge that is not a standby reads only P.kv_handover: it publishes such a stream again, in an
 * epoch above the standby's, because some readers hold a mixture of what both have published. */

enum { ring_notes = 8192, notes_a_round = 4096 };

static const uint64_t probe_gap_ns = 100 * KVB_NS_PER_MS;
static const uint64_t log_gap_ns = KVB_NS_PER_S;

struct standby_note {
    enum { note_heartbeat, note_handover, note_ahead } kind;
    struct kvb_heartbeat beat; /* for note_ahead only the stream's numbers */
};

/* ---- On nats.c's threads ---- */

static void put_note(struct bridge_standby *standby, const struct standby_note *note)
{
    struct standby_note *copy = malloc(sizeof *copy);

    if (copy) {
        *copy = *note;
    }
    if (!copy || kvb_ring_put(standby->incoming, copy) != KVB_OK) {
        free(copy);
        standby->lost++;
    }
}

static void receive_heartbeat(void *context, const struct kvb_bus_message *message)
{
    struct kvb_bridge *bridge = context;
    struct standby_note note = { .kind = note_heartbeat };

    if (kvb_heartbeat_decode(message->payload, &note.beat) == KVB_OK &&
        note.beat.publisher != bridge->standby.publisher) {
        put_note(&bridge->standby, &note);
    }
}

static void receive_handover(void *context, const struct kvb_bus_message *message)
{
    struct kvb_bridge *bridge = context;
    struct standby_note note = { .kind = note_handover };

    if (kvb_heartbeat_decode(message->payload, &note.beat) == KVB_OK &&
        note.beat.publisher != bridge->standby.publisher) {
        put_note(&bridge->standby, &note);
    }
}

static void put_ahead(void *context, uint64_t worker_id, uint32_t dp_rank)
{
    const struct standby_note note = { .kind = note_ahead,
                                       .beat = { .worker_id = worker_id, .dp_rank = dp_rank } };

    put_note(context, &note);
}

static void receive_status(void *context, const struct kvb_bus_message *message)
{
    struct kvb_bridge *bridge = context;

    /* on failure it is no status of ours to read */
    (void)!kvb_bridge_status_watched(
        message->payload, bridge->bridge_id, put_ahead, &bridge->standby);
}

/* ---- On the ingest thread ---- */

void kvb_bridge_standby_connected(struct kvb_bridge *bridge, uint64_t now_ns)
{
    for (size_t i = 0; i < bridge->membership.rank_count; i++) {
        kvb_standby_connected(&bridge->membership.ranks[i]->standby, now_ns);
    }
}

static void stop_publishing(struct kvb_bridge *bridge, struct bridge_rank *rank)
{
    kvb_bridge_hand_over(bridge, rank);
    bridge->standby.yielded++;
    kvb_metric_add(&bridge->shown.metrics, kvb_bridge_standby_yields, 1);
    bridge->publisher.next_status_ns = 0;
}

static void carry_out(
    struct kvb_bridge *bridge, struct bridge_rank *rank, enum kvb_standby_action action,
    uint64_t now_ns)
{
    struct bridge_standby *standby = &bridge->standby;

    switch (action) {
    case KVB_STANDBY_REST:
        break;
    case KVB_STANDBY_PROBE: /* one status in this turn is enough for all streams */
        if (now_ns >= standby->probed_ns + probe_gap_ns) {
            standby->probed_ns = now_ns;
            bridge->publisher.next_status_ns = now_ns;
        }
        break;
    case KVB_STANDBY_TAKE_OVER:
        standby->taken_over++;
        kvb_serve_wake(&bridge->ingest.server, &rank->served);
        kvb_metric_add(&bridge->shown.metrics, kvb_bridge_standby_take_overs, 1);
        bridge->publisher.next_status_ns = now_ns;
        break;
    case KVB_STANDBY_YIELD:
        stop_publishing(bridge, rank);
        break;
    }
}

/* Readers of JSON hold a mixture of both bridges' events.  Readers of protobuf keep the epochs
 * apart, but follow the one that began later. */
static void
take_handover(struct kvb_bridge *bridge, struct bridge_rank *rank, const struct kvb_heartbeat *beat)
{
    struct kvb_heartbeat own;

    rank->standby.floor_id =
        kvb_standby_floor(rank->standby.floor_id, beat->last_id, kvb_clock_wall_us());
    kvb_stream_heartbeat(rank->served.stream, &own);
    if (kvb_bridge_publishes(bridge, rank) && kvb_standby_needs_epoch(&own, beat->epoch_first_id)) {
        kvb_advertiser_void(&rank->served.advertiser);
        kvb_serve_wake(&bridge->ingest.server, &rank->served);
        kvb_metric_add(&bridge->shown.metrics, kvb_bridge_handovers, 1);
    }
}

static void take_heartbeat(
    struct kvb_bridge *bridge, struct bridge_rank *rank, const struct kvb_heartbeat *beat)
{
    const uint64_t now_ns = kvb_clock_monotonic_ns();
    struct kvb_heartbeat own;

    kvb_stream_heartbeat(rank->served.stream, &own);
    carry_out(
        bridge, rank,
        kvb_standby_receive(&rank->standby, beat, own.epoch_first_id, kvb_clock_wall_us(), now_ns),
        now_ns);
}

static void take_note(struct kvb_bridge *bridge, const struct standby_note *note, uint64_t now_ns)
{
    struct bridge_rank *rank =
        kvb_bridge_find_rank(bridge, note->beat.worker_id, note->beat.dp_rank);

    if (!rank) {
        return; /* another bridge's stream */
    }
    switch (note->kind) {
    case note_heartbeat:
        take_heartbeat(bridge, rank, &note->beat);
        break;
    case note_handover:
        take_handover(bridge, rank, &note->beat);
        break;
    case note_ahead:
        kvb_standby_is_behind(&rank->standby, now_ns);
        break;
    }
}

/* Lost messages may have been heartbeats, so after a loss the absence of heartbeats proves
 * nothing. */
static void take_notes(struct kvb_bridge *bridge, uint64_t now_ns)
{
    struct bridge_standby *standby = &bridge->standby;
    const uint64_t lost = standby->lost;
    void *note = NULL;

    for (int i = 0; i < notes_a_round && kvb_ring_take(standby->incoming, &note) == KVB_OK; i++) {
        take_note(bridge, note, now_ns);
        free(note);
    }
    if (lost != standby->lost_seen) {
        standby->lost_seen = lost;
        kvb_bridge_standby_connected(bridge, now_ns);
    }
}

static void
look_at_rank(struct kvb_bridge *bridge, struct bridge_rank *rank, uint64_t echoes, uint64_t now_ns)
{
    if (rank->standby.not_before_ns == UINT64_MAX) {
        kvb_standby_connected(&rank->standby, now_ns); /* the rank is new */
    }
    carry_out(bridge, rank, kvb_standby_next(&rank->standby, echoes, now_ns), now_ns);
    if (!kvb_bridge_publishes(bridge, rank)) {
        kvb_advertiser_mute(
            &rank->served.advertiser, kvb_bridge_is_saving(&bridge->checkpoints, rank), now_ns);
    }
}

static void log_changes(struct kvb_bridge *bridge, uint64_t now_ns)
{
    struct bridge_standby *standby = &bridge->standby;

    if (now_ns < standby->next_log_ns || standby->taken_over + standby->yielded == 0) {
        return;
    }
    kvb_log_write(
        bridge->log, KVB_LOG_WARNING, "bridge", "standby: the publisher of streams has changed",
        "taken_over", KVB_LOG_U64(standby->taken_over), "yielded", KVB_LOG_U64(standby->yielded),
        "active", KVB_LOG_U64(kvb_bridge_count_published(bridge)), "streams",
        KVB_LOG_U64(bridge->membership.rank_count), NULL);
    standby->taken_over = 0;
    standby->yielded = 0;
    standby->next_log_ns = now_ns + log_gap_ns;
}

void kvb_bridge_work_standby(struct kvb_bridge *bridge, uint64_t now_ns)
{
    /* read before the notes, so that every heartbeat that arrived before the echo is known */
    const uint64_t echoes = kvb_profile_guard_echoes(&bridge->publisher.guard);

    take_notes(bridge, now_ns);
    if (!bridge->config->publish.standby) {
        return;
    }
    for (size_t i = 0; i < bridge->membership.rank_count; i++) {
        look_at_rank(bridge, bridge->membership.ranks[i], echoes, now_ns);
    }
    log_changes(bridge, now_ns);
}

/* ---- Opening and closing ---- */

static kvb_status subscribe_standby(
    struct kvb_bridge *bridge, const char *subject, kvb_bus_handler handler,
    struct kvb_bus_subscription **out_subscription)
{
    return kvb_bus_subscribe(bridge->publisher.bus, subject, handler, bridge, out_subscription);
}

kvb_status kvb_bridge_open_standby(struct kvb_bridge *bridge)
{
    struct bridge_standby *standby = &bridge->standby;
    const struct kvb_bridge_config *config = bridge->config;

    KVB_TRY(kvb_ring_new(ring_notes, free, &standby->incoming));
    KVB_TRY(kvb_contract_subject_make(
        KVB_SUBJECT_HANDOVER, &bridge->publisher.names, standby->handover_subject));
    KVB_TRY(subscribe_standby(
        bridge, standby->handover_subject, receive_handover, &standby->handovers));
    if (!config->publish.standby) {
        return KVB_OK;
    }
    KVB_TRY(subscribe_standby(
        bridge, bridge->publisher.heartbeat_subject, receive_heartbeat, &standby->heartbeats));
    return subscribe_standby(
        bridge, bridge->publisher.status_subject, receive_status, &standby->statuses);
}

void kvb_bridge_name_publisher(struct kvb_bridge *bridge)
{
    const char *id = bridge->bridge_id;

    bridge->standby.publisher =
        kvb_hash64((kvb_span){ .data = (const uint8_t *)id, .len = strlen(id) }, 0);
}

/* Called before the bus is closed. */
void kvb_bridge_unsubscribe_standby(struct bridge_standby *standby)
{
    kvb_bus_unsubscribe(standby->handovers);
    kvb_bus_unsubscribe(standby->heartbeats);
    kvb_bus_unsubscribe(standby->statuses);
}

void kvb_bridge_close_standby(struct bridge_standby *standby)
{
    kvb_ring_free(standby->incoming);
}
