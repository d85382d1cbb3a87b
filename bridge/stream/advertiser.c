#include "stream/advertiser.h"

#include "core/clock.h"

static const uint64_t announce_again_ns = 500 * KVB_NS_PER_MS;

/* Requests of aggregators cause at most five heartbeats a second of a stream. */
static const uint64_t wanted_beat_ns = 200 * KVB_NS_PER_MS;

void kvb_advertiser_init(
    struct kvb_advertiser *advertiser, const struct kvb_advertiser_options *options,
    struct kvb_stream *stream)
{
    *advertiser = (struct kvb_advertiser){ .options = *options, .stream = stream };
}

void kvb_advertiser_restored(struct kvb_advertiser *advertiser, bool needs_epoch)
{
    advertiser->told = needs_epoch ? KVB_TOLD_NOTHING : KVB_TOLD_WITH_GAP;
    advertiser->waits_for_proof = true;
}

void kvb_advertiser_lost(struct kvb_advertiser *advertiser, uint64_t not_before_ns)
{
    advertiser->told = advertiser->told == KVB_TOLD_ALL ? KVB_TOLD_WITH_GAP : advertiser->told;
    if (not_before_ns > advertiser->not_before_ns) {
        advertiser->not_before_ns = not_before_ns;
    }
}

void kvb_advertiser_void(struct kvb_advertiser *advertiser)
{
    advertiser->told = KVB_TOLD_NOTHING;
}

void kvb_advertiser_sibling_cleared(struct kvb_advertiser *advertiser)
{
    if (kvb_advertiser_is_current(advertiser)) {
        advertiser->is_republish_due = advertiser->options.publishes_json;
    }
}

bool kvb_advertiser_takes_step(
    const struct kvb_advertiser *advertiser, const struct kvb_router_batch *events)
{
    return events->event_count > 0 && kvb_advertiser_lists(advertiser);
}

bool kvb_advertiser_lists(const struct kvb_advertiser *advertiser)
{
    return advertiser->told == KVB_TOLD_ALL && !kvb_stream_is_withdrawn(advertiser->stream);
}

/* ---- What is to be published ---- */

/* The list is to be empty. */
static bool is_away(const struct kvb_advertiser *advertiser, uint64_t now_ns)
{
    const uint64_t limit_ns = advertiser->options.down_clear_ns;
    const uint64_t away_ns = kvb_stream_away_ns(advertiser->stream);

    return (limit_ns > 0 && away_ns > 0 && now_ns - away_ns >= limit_ns) ||
           kvb_stream_is_cache_discarded(advertiser->stream);
}

/* Readers know all of the right list. */
static bool is_told(const struct kvb_advertiser *advertiser, bool withdraws)
{
    return advertiser->told == KVB_TOLD_ALL &&
           kvb_stream_is_withdrawn(advertiser->stream) == withdraws;
}

bool kvb_advertiser_is_proven(struct kvb_advertiser *advertiser)
{
    advertiser->waits_for_proof =
        advertiser->waits_for_proof && !kvb_stream_is_settled(advertiser->stream);
    return !advertiser->waits_for_proof;
}

enum kvb_advertiser_action kvb_advertiser_next(struct kvb_advertiser *advertiser, uint64_t now_ns)
{
    const struct kvb_advertiser_options *options = &advertiser->options;
    const bool withdraws = is_away(advertiser, now_ns);
    /* Its readers request what they lack. */
    const bool never_announces =
        options->reannounce == KVB_REANNOUNCE_NEVER ||
        (options->reannounce == KVB_REANNOUNCE_AUTO && !options->publishes_json);

    if (advertiser->told == KVB_TOLD_WITH_GAP && never_announces) {
        advertiser->told = KVB_TOLD_ALL;
        kvb_advertiser_want_beat(advertiser, KVB_BEAT_NOW); /* its last id shows the gap */
    }
    const bool is_proven = kvb_advertiser_is_proven(advertiser);
    /* Readers have the right list, and at most those that know no ranks lack it. */
    if (is_told(advertiser, withdraws)) {
        return advertiser->is_republish_due && is_proven ? KVB_ADVERTISER_REPUBLISH
                                                         : KVB_ADVERTISER_REST;
    }
    if (now_ns < advertiser->not_before_ns) {
        return KVB_ADVERTISER_REST;
    }
    if (withdraws) {
        return KVB_ADVERTISER_WITHDRAW;
    }
    /* Nothing is published of an incarnation that may be over. */
    return is_proven && kvb_stream_replay_need(advertiser->stream) != KVB_REPLAY_PROOF
               ? KVB_ADVERTISER_ANNOUNCE
               : KVB_ADVERTISER_REST;
}

enum kvb_advertiser_action kvb_advertiser_last(const struct kvb_advertiser *advertiser)
{
    return advertiser->options.publishes_json && advertiser->told != KVB_TOLD_NOTHING
               ? KVB_ADVERTISER_WITHDRAW
               : KVB_ADVERTISER_REST;
}

/* ---- Publishing a whole list ---- */

kvb_status kvb_advertiser_begin(
    struct kvb_advertiser *advertiser, enum kvb_advertiser_action action, uint64_t wall_us)
{
    const bool opens_epoch = action != KVB_ADVERTISER_REPUBLISH;

    advertiser->is_republish_due = false;
    if (opens_epoch) {
        kvb_stream_open_epoch(advertiser->stream, wall_us, action == KVB_ADVERTISER_WITHDRAW);
    }
    return kvb_stream_list_begin(advertiser->stream, opens_epoch);
}

kvb_status kvb_advertiser_chunk(struct kvb_advertiser *advertiser, struct kvb_router_batch *out)
{
    return kvb_stream_list_next(advertiser->stream, advertiser->options.max_chunk_blocks, out);
}

bool kvb_advertiser_end(
    struct kvb_advertiser *advertiser, enum kvb_advertiser_action action, kvb_status status,
    uint64_t now_ns)
{
    kvb_stream_list_end(advertiser->stream);
    if (action == KVB_ADVERTISER_REPUBLISH) {
        if (status != KVB_OK) { /* readers that already hold the blocks see only the gap */
            kvb_advertiser_lost(advertiser, 0);
        }
        return false;
    }
    /* Without the rest of the new epoch its ids do not show what is missing. */
    advertiser->told = status == KVB_OK ? KVB_TOLD_ALL : KVB_TOLD_NOTHING;
    kvb_advertiser_want_beat(advertiser, KVB_BEAT_NOW);
    advertiser->not_before_ns = now_ns + announce_again_ns;
    return true;
}

/* ---- Heartbeats ---- */

void kvb_advertiser_want_beat(struct kvb_advertiser *advertiser, enum kvb_beat_need need)
{
    advertiser->beat = need > advertiser->beat ? need : advertiser->beat;
}

static uint64_t next_beat_ns(const struct kvb_advertiser *advertiser)
{
    const uint64_t period_ns = advertiser->options.heartbeat_ns;
    const bool is_early = advertiser->beat == KVB_BEAT_SOON && wanted_beat_ns < period_ns;

    return advertiser->beat == KVB_BEAT_NOW
               ? 0
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

uint64_t kvb_advertiser_due_ns(const struct kvb_advertiser *advertiser, uint64_t now_ns)
{
    const bool withdraws = is_away(advertiser, now_ns);
    const uint64_t beat_ns = next_beat_ns(advertiser);
    const uint64_t away_ns = kvb_stream_away_ns(advertiser->stream);
    const uint64_t withdrawn_ns = away_ns + advertiser->options.down_clear_ns;

    if (!is_told(advertiser, withdraws) ||
        (advertiser->is_republish_due && !advertiser->waits_for_proof)) {
        return 0;
    }
    return away_ns > 0 && !withdraws && withdrawn_ns > now_ns && withdrawn_ns < beat_ns
               ? withdrawn_ns
               : beat_ns;
}

void kvb_advertiser_beat_sent(struct kvb_advertiser *advertiser)
{
    advertiser->beat = KVB_BEAT_BY_PERIOD;
}
