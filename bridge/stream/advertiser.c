#include "stream/advertiser.h"

#include "core/clock.h"

static const uint64_t announce_again_ns = 500 * KVB_NS_PER_MS;

/* Requests of aggregators cause at most five heartbeats a second of a stream. */
static const uint64_t wanted_beat_ns = 200 * KVB_NS_PER_MS;

/* ---- States ---- */

enum transition { lost, made_void, resumed, announced, withdrawn, transition_count };

/* The table of the header. */
static const enum kvb_advertiser_state table[KVB_ADVERTISER_STATE_COUNT][transition_count] = {
    [KVB_UNADVERTISED] = { KVB_UNADVERTISED, KVB_UNADVERTISED, KVB_UNADVERTISED, KVB_ADVERTISED,
                           KVB_WITHDRAWN },
    [KVB_ADVERTISED] = { KVB_ADVERTISED_GAP, KVB_UNADVERTISED, KVB_ADVERTISED, KVB_ADVERTISED,
                         KVB_WITHDRAWN },
    [KVB_WITHDRAWN] = { KVB_WITHDRAWN_GAP, KVB_UNADVERTISED, KVB_WITHDRAWN, KVB_ADVERTISED,
                        KVB_WITHDRAWN },
    [KVB_ADVERTISED_GAP] = { KVB_ADVERTISED_GAP, KVB_UNADVERTISED, KVB_ADVERTISED, KVB_ADVERTISED,
                             KVB_WITHDRAWN },
    [KVB_WITHDRAWN_GAP] = { KVB_WITHDRAWN_GAP, KVB_UNADVERTISED, KVB_WITHDRAWN, KVB_ADVERTISED,
                            KVB_WITHDRAWN },
};

static void move(struct kvb_advertiser *advertiser, enum transition transition)
{
    advertiser->state = table[advertiser->state][transition];
}

static bool is_gap(const struct kvb_advertiser *advertiser)
{
    return advertiser->state == KVB_ADVERTISED_GAP || advertiser->state == KVB_WITHDRAWN_GAP;
}

void kvb_advertiser_init(
    struct kvb_advertiser *advertiser, const struct kvb_advertiser_options *options,
    struct kvb_stream *stream)
{
    *advertiser = (struct kvb_advertiser){ .options = *options, .stream = stream };
}

void kvb_advertiser_restored(struct kvb_advertiser *advertiser, bool needs_epoch)
{
    advertiser->state = needs_epoch ? KVB_UNADVERTISED : KVB_ADVERTISED_GAP;
}

void kvb_advertiser_lost(struct kvb_advertiser *advertiser, uint64_t not_before_ns)
{
    move(advertiser, lost);
    if (not_before_ns > advertiser->not_before_ns) {
        advertiser->not_before_ns = not_before_ns;
    }
}

void kvb_advertiser_void(struct kvb_advertiser *advertiser)
{
    move(advertiser, made_void);
}

void kvb_advertiser_sibling_cleared(struct kvb_advertiser *advertiser)
{
    if (kvb_advertiser_is_current(advertiser)) {
        advertiser->is_republish_due = advertiser->options.publishes_json;
    }
}

/* ---- Events ---- */

static bool has_cleared(const struct kvb_router_batch *events)
{
    for (size_t i = 0; i < events->event_count; i++) {
        if (events->events[i].kind == KVB_ROUTER_CLEARED) {
            return true;
        }
    }
    return false;
}

bool kvb_advertiser_step(
    struct kvb_advertiser *advertiser, const struct kvb_router_batch *events,
    const struct kvb_advertiser_port *port)
{
    if (advertiser->state != KVB_ADVERTISED || events->event_count == 0) {
        return false; /* the next announcement contains it */
    }
    if (port->publish(port->context, events) != KVB_OK) {
        move(advertiser, lost);
        return false;
    }
    return has_cleared(events);
}

void kvb_advertiser_publish(
    struct kvb_advertiser *advertiser, const struct kvb_router_batch *events,
    const struct kvb_advertiser_port *port)
{
    if (port->publish(port->context, events) != KVB_OK) {
        move(advertiser, lost);
    }
}

void kvb_advertiser_flush(struct kvb_advertiser *advertiser, const struct kvb_advertiser_port *port)
{
    if (port->flush(port->context) != KVB_OK) {
        move(advertiser, lost);
    }
}

/* ---- Actions ---- */

static bool is_announcing_never(const struct kvb_advertiser_options *options)
{
    return options->reannounce == KVB_REANNOUNCE_NEVER ||
           (options->reannounce == KVB_REANNOUNCE_AUTO && !options->publishes_json);
}

static bool
is_away(const struct kvb_advertiser *advertiser, const struct kvb_advertiser_input *input)
{
    const uint64_t limit_ns = advertiser->options.down_clear_ns;

    return (limit_ns > 0 && input->down_ns > 0 && input->now_ns - input->down_ns >= limit_ns) ||
           kvb_stream_is_cache_discarded(advertiser->stream);
}

/* A restored stream publishes once more what the last process published after the checkpoint, with
 * the same ids.  Until it has caught up, an event that no batch made would take one of them. */
static bool
may_republish(const struct kvb_advertiser *advertiser, const struct kvb_advertiser_input *input)
{
    return advertiser->is_republish_due && input->is_proven;
}

enum kvb_advertiser_action
kvb_advertiser_next(struct kvb_advertiser *advertiser, const struct kvb_advertiser_input *input)
{
    const bool withdraws = is_away(advertiser, input);

    if (is_gap(advertiser) && is_announcing_never(&advertiser->options)) {
        move(advertiser, resumed);
        advertiser->is_beat_due = true; /* its last id shows readers the gap */
    }
    const enum kvb_advertiser_state wanted = withdraws ? KVB_WITHDRAWN : KVB_ADVERTISED;
    if (advertiser->state != wanted) {
        const bool is_proven =
            input->is_proven && kvb_stream_replay_need(advertiser->stream) != KVB_REPLAY_PROOF;
        if ((!withdraws && !is_proven) || input->now_ns < advertiser->not_before_ns) {
            return KVB_ADVERTISER_REST;
        }
        return withdraws ? KVB_ADVERTISER_WITHDRAW : KVB_ADVERTISER_ANNOUNCE;
    }
    return may_republish(advertiser, input) ? KVB_ADVERTISER_REPUBLISH : KVB_ADVERTISER_REST;
}

enum kvb_advertiser_action kvb_advertiser_last(const struct kvb_advertiser *advertiser)
{
    return advertiser->options.publishes_json && advertiser->state != KVB_UNADVERTISED
               ? KVB_ADVERTISER_WITHDRAW
               : KVB_ADVERTISER_REST;
}

/* ---- Publishing a whole stream ---- */

static kvb_status publish_chunk(void *context, const struct kvb_router_batch *chunk)
{
    const struct kvb_advertiser_port *port = context;

    KVB_TRY(port->publish(port->context, chunk));
    return port->flush(port->context);
}

static kvb_status publish_all(
    struct kvb_advertiser *advertiser, bool opens_epoch, const struct kvb_advertiser_port *port)
{
    struct kvb_advertiser_port context = *port;
    const struct kvb_stream_telling telling = { .opens_epoch = opens_epoch,
                                                .max_chunk_blocks =
                                                    advertiser->options.max_chunk_blocks,
                                                .visit = publish_chunk,
                                                .context = &context };

    return kvb_stream_publish(advertiser->stream, &telling);
}

static void announce(
    struct kvb_advertiser *advertiser, bool withdraws, const struct kvb_advertiser_port *port,
    uint64_t now_ns, uint64_t wall_us)
{
    kvb_stream_open_epoch(advertiser->stream, wall_us, withdraws);
    if (publish_all(advertiser, true, port) == KVB_OK) {
        move(advertiser, withdraws ? withdrawn : announced);
    } else {
        move(advertiser, made_void);
    }
    advertiser->is_republish_due = false;
    advertiser->is_beat_due = true;
    advertiser->not_before_ns = now_ns + announce_again_ns;
}

bool kvb_advertiser_do(
    struct kvb_advertiser *advertiser, enum kvb_advertiser_action action,
    const struct kvb_advertiser_port *port, uint64_t now_ns, uint64_t wall_us)
{
    switch (action) {
    case KVB_ADVERTISER_REST:
        return false;
    case KVB_ADVERTISER_ANNOUNCE:
    case KVB_ADVERTISER_WITHDRAW:
        announce(advertiser, action == KVB_ADVERTISER_WITHDRAW, port, now_ns, wall_us);
        return true;
    case KVB_ADVERTISER_REPUBLISH:
        advertiser->is_republish_due = false;
        if (publish_all(advertiser, false, port) != KVB_OK) {
            move(advertiser, lost); /* readers that already hold the blocks see only the gap */
        }
        return false;
    }
    return false;
}

/* ---- Heartbeats ---- */

static uint64_t next_beat_ns(const struct kvb_advertiser *advertiser)
{
    const uint64_t period_ns = advertiser->options.heartbeat_ns;
    const bool is_early = advertiser->is_beat_wanted && wanted_beat_ns < period_ns;

    return advertiser->is_beat_due ? 0
                                   : advertiser->beat_ns + (is_early ? wanted_beat_ns : period_ns);
}

bool kvb_advertiser_takes_beat(struct kvb_advertiser *advertiser, uint64_t now_ns)
{
    if (!kvb_advertiser_is_current(advertiser) || now_ns < next_beat_ns(advertiser)) {
        return false;
    }
    advertiser->beat_ns = now_ns;
    return true;
}

uint64_t kvb_advertiser_due_ns(
    const struct kvb_advertiser *advertiser, const struct kvb_advertiser_input *input)
{
    const bool withdraws = is_away(advertiser, input);
    const uint64_t beat_ns = next_beat_ns(advertiser);
    const uint64_t away_ns = input->down_ns + advertiser->options.down_clear_ns;

    if (advertiser->state != (withdraws ? KVB_WITHDRAWN : KVB_ADVERTISED) ||
        may_republish(advertiser, input)) {
        return 0;
    }
    return input->down_ns > 0 && !withdraws && away_ns > input->now_ns && away_ns < beat_ns
               ? away_ns
               : beat_ns;
}

void kvb_advertiser_beat_sent(struct kvb_advertiser *advertiser)
{
    advertiser->is_beat_due = false;
    advertiser->is_beat_wanted = false;
}
