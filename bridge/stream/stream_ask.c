#include "core/clock.h"
#include "stream/stream_inside.h"

/* When the engine is asked, and from where: at most once a second, and for its whole
 * buffer at most once in ten, for a replay stops its publishing. */
static const uint64_t probe_every_ns = KVB_NS_PER_S;
static const uint64_t replay_deadline_ns = 2 * KVB_NS_PER_S;
static const uint64_t full_replay_every_ns = 10 * KVB_NS_PER_S;
static const uint64_t strange_calm_ns = 4 * KVB_NS_PER_S; /* four lives within seconds */
static const uint64_t most_back_off_ns = 30 * KVB_NS_PER_S;

enum { most_fruitless_rounds = 5 };

/* Asks from the last batch applied, or from the beginning when there is none. */
void kvb_stream_want_replay(struct stream_step *step, bool is_probe)
{
    struct kvb_stream *stream = step->stream;
    struct replay *replay = &stream->replay;

    step->out->drops_replay |= replay->is_in_flight;
    replay->is_wanted = true;
    replay->is_in_flight = false;
    replay->is_probe = is_probe;
    replay->keeps_state = is_probe;
    replay->overtakers = 0;
    replay->has_answered = false;
    replay->is_blind = !stream->has_last;
    replay->from = stream->has_last ? stream->last_seq : 0;
    replay->not_before_ns =
        replay->is_blind && stream->full_ns > 0 ? stream->full_ns + full_replay_every_ns : 0;
    /* The round that confirms an END does not wait, for the list stands still until then,
     * unless it was one of many that met another life. */
    const bool is_strange = replay->met_other_life && stream->calm_ns > strange_calm_ns;
    const bool may_wait = replay->is_blind || is_probe || is_strange;
    if (may_wait && stream->calm_ns > 0 &&
        replay->not_before_ns < stream->other_life_ns + stream->calm_ns) {
        replay->not_before_ns = stream->other_life_ns + stream->calm_ns;
    }
}

/* The same round for the state: a probe whose replies may have overtaken their live copies
 * has shown no loss, and an idle engine takes 100 ms to answer. */
void kvb_stream_want_confirmation(struct stream_step *step)
{
    struct replay *replay = &step->stream->replay;
    const bool keeps_state = replay->keeps_state;
    const uint64_t overtakers = replay->overtakers;

    kvb_stream_want_replay(step, false);
    replay->keeps_state = keeps_state;
    replay->overtakers = overtakers;
}

/* As above, because something is missing; gives up after some rounds without a
 * new batch: what is missing is nowhere. */
bool kvb_stream_want_missing(struct stream_step *step)
{
    struct replay *replay = &step->stream->replay;

    replay->fruitless = replay->applied > 0 ? 0 : replay->fruitless + 1;
    replay->applied = 0;
    if (replay->fruitless > most_fruitless_rounds) {
        replay->fruitless = 0;
        return false;
    }
    kvb_stream_want_replay(step, false);
    return true;
}

/* Asks for the whole buffer although something is listed already: what an
 * unanswered replay left out may still be there. */
void kvb_stream_want_everything(struct stream_step *step)
{
    struct kvb_stream *stream = step->stream;

    kvb_stream_want_replay(step, true);
    stream->replay.is_blind = true;
    stream->replay.from = 0;
    stream->replay.not_before_ns = stream->full_ns > 0 ? stream->full_ns + full_replay_every_ns : 0;
}

bool kvb_stream_wants_replay(const struct kvb_stream *stream, uint64_t now_ns, uint64_t *out_from)
{
    *out_from = stream->replay.from;
    return stream->replay.is_wanted && stream->is_connected &&
           now_ns >= stream->replay.not_before_ns;
}

/* Longer than an answer may take: the ration is used up by answers that brought nothing. */
bool kvb_stream_is_put_off(const struct kvb_stream *stream, uint64_t now_ns)
{
    const struct replay *replay = &stream->replay;

    return replay->is_wanted && !replay->is_probe &&
           replay->not_before_ns > now_ns + replay_deadline_ns;
}

void kvb_stream_replay_started(struct kvb_stream *stream, uint64_t now_ns)
{
    struct replay *replay = &stream->replay;

    replay->is_wanted = false;
    replay->is_in_flight = true;
    replay->met_other_life = false;
    replay->applied = 0;
    replay->is_vouched = !replay->is_blind && stream->is_heard_live;
    replay->held_before = kvb_held_count(&stream->held);
    replay->deadline_ns = now_ns + replay_deadline_ns;
    stream->heard_ns = now_ns; /* the next probe is due a second from now */
    stream->asked_ns = now_ns;
    stream->counters.replays_requested++;
    if (replay->is_blind) {
        stream->full_ns = now_ns;
    }
}

bool kvb_stream_is_replaying(const struct kvb_stream *stream)
{
    return stream->replay.is_in_flight;
}

void kvb_stream_back_off(struct stream_step *step)
{
    struct kvb_stream *stream = step->stream;
    const uint64_t doubled = stream->back_off_ns * 2;

    stream->back_off_ns = stream->back_off_ns == 0     ? probe_every_ns
                          : doubled < most_back_off_ns ? doubled
                                                       : most_back_off_ns;
    stream->heard_ns = step->in->now_ns;
    stream->asked_ns = step->in->now_ns;
}

/* A quiet stream may have lost its tail.  One whose last replay was not answered has
 * something to ask for, and a busy engine is never quiet. */
bool kvb_stream_is_probe_due(const struct kvb_stream *stream, uint64_t now_ns)
{
    const bool is_owed =
        stream->is_unproven || (!stream->is_complete && stream->flaw == KVB_REASON_REPLAY_FAILED);
    const uint64_t wait_ns = stream->back_off_ns > 0 ? stream->back_off_ns : probe_every_ns;

    return now_ns >= (is_owed ? stream->asked_ns : stream->heard_ns) + wait_ns;
}
