#include "kvbridge/ingest.h"
#include "kvbridge/parts.h"
#include "kvbridge/rank.h"
#include "stream/stream.h"

/* An engine from which nothing comes: stream/silence.h finds why. */

static struct kvb_silence_facts
silence_facts(const struct bridge_rank *rank, const struct kvb_heartbeat *beat, uint64_t now_ns)
{
    const struct kvb_source_counters *counters = kvb_source_count(rank->source);
    const struct kvb_source_strays *strays = kvb_source_strays(rank->source);
    uint64_t last_seq = 0;

    return (struct kvb_silence_facts){
        .is_bound = rank->part->worker->bind,
        .is_connected = beat->state != KVB_STREAM_DOWN,
        .was_connected = counters->connects + counters->protocol_errors > 0,
        .waited_ns = now_ns - rank->trouble.since_ns,
        .has_live = kvb_stream_has_live(rank->served.stream) ||
                    kvb_stream_has_base(rank->served.stream), /* restored from a checkpoint */
        .is_unproven = beat->reason == KVB_REASON_NO_BASE,
        .has_list = kvb_stream_last_seq(rank->served.stream, &last_seq),
        .is_replay_foreign = kvb_stream_is_replay_foreign(rank->served.stream),
        .unnumbered = strays->unnumbered,
        .other_topics = strays->other_topics,
        .page = rank->trouble.page,
    };
}

/* The log says a fault once, until a batch comes. */
static void say_silence(struct kvb_bridge *bridge, struct bridge_rank *rank, bool has_live)
{
    const enum kvb_silence silence = rank->trouble.silence;

    if (has_live && silence == KVB_SILENCE_NONE) {
        rank->trouble.silence_said = KVB_SILENCE_NONE;
    }
    if (!kvb_silence_is_fault(silence) || silence == rank->trouble.silence_said) {
        return;
    }
    rank->trouble.silence_said = silence;
    kvb_log_write(
        bridge->log, KVB_LOG_WARNING, "bridge", "the events of an engine do not arrive", "why",
        rank->trouble.silence_why.text, "worker", KVB_LOG_U64(rank->worker_id), "dp_rank",
        KVB_LOG_U64(rank->dp_rank), NULL);
}

void kvb_bridge_watch_silence(
    struct kvb_bridge *bridge, struct bridge_rank *rank, const struct kvb_heartbeat *beat,
    uint64_t now_ns)
{
    struct rank_trouble *trouble = &rank->trouble;
    if (beat->state == KVB_STREAM_SYNCING) {
        return; /* its replay may be the first that is known of it */
    }
    const struct kvb_silence_facts facts = silence_facts(rank, beat, now_ns);
    /* A name without an address, refused keys and the like are said where they are met. */
    const enum kvb_silence silence =
        trouble->why.text[0] ? KVB_SILENCE_NONE : kvb_silence_find(&facts, now_ns);
    const struct kvb_silence_names names = { .events = rank->part->events,
                                             .replay = rank->part->replay,
                                             .topic = rank->part->topic,
                                             .other_topic = kvb_source_strays(rank->source)->topic,
                                             .frames = kvb_source_strays(rank->source)->frames,
                                             .tokens = facts.page.grown };

    kvb_source_listen_to_all(
        rank->source, facts.is_connected && !facts.has_live && facts.other_topics == 0);
    kvb_silence_explain(silence, &names, &trouble->silence_why);
    if (kvb_stream_note_silence(rank->served.stream, kvb_silence_reason(silence))) {
        kvb_serve_wake(&rank->served); /* the state has changed */
    }
    trouble->silence = silence;
    say_silence(bridge, rank, facts.has_live);
}
