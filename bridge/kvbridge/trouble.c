#include "core/clock.h"
#include "kvbridge/bridge.h"
#include "kvbridge/discovery.h"
#include "kvbridge/membership.h"
#include "kvbridge/parts.h"
#include "kvbridge/rank.h"
#include "stream/stream.h"

static const uint64_t settled_ns = KVB_NS_PER_S; /* shorter changes are not logged */
static const uint64_t again_ns = 10 * KVB_NS_PER_S;

/* If the engine had bound the socket, it did so before its HTTP server named it, so a connection is
 * possible at once. */
static const uint64_t unreachable_after_ns = 5 * KVB_NS_PER_S;
/* The engine may be restarted with other options. */
static const uint64_t unreachable_look_ns = 60 * KVB_NS_PER_S;

static bool is_trouble(enum kvb_stream_state state)
{
    return state == KVB_STREAM_DOWN || state == KVB_STREAM_PARTIAL;
}

/* ---- An engine that connects ---- */

static void say_unreachable(struct kvb_bridge *bridge, struct bridge_rank *rank)
{
    kvb_detail_set(
        &rank->trouble.why,
        "the engine names %.100s, but nobody listens there: without a * in its endpoint the engine "
        "connects. Give the engine tcp://*:PORT, or read it with `events` and bind = true",
        rank->part->events);
    kvb_log_write(
        bridge->log, KVB_LOG_WARNING, "bridge",
        "an engine that connects to its endpoint cannot be subscribed to", "why",
        rank->trouble.why.text, "worker", KVB_LOG_U64(rank->worker_id), "dp_rank",
        KVB_LOG_U64(rank->dp_rank), NULL);
}

/* An address without * in an engine's answer is either bound (it was given port 0, and answers the
 * actual port) or one that it connects to: only an attempt shows which.  If a rank was ever
 * connected, its address was bound. */
static void watch_reach(struct kvb_bridge *bridge, struct bridge_rank *rank, uint64_t now_ns)
{
    struct rank_trouble *trouble = &rank->trouble;

    if (!rank->part->may_connect) {
        return;
    }
    if (kvb_stream_is_connected(rank->served.stream) ||
        kvb_source_count(rank->source)->connects > 0) {
        trouble->is_unreachable = false;
        trouble->why.text[0] = '\0';
        return;
    }
    if (!trouble->is_unreachable && now_ns - trouble->since_ns >= unreachable_after_ns) {
        trouble->is_unreachable = true;
        say_unreachable(bridge, rank);
    }
}

void kvb_bridge_rediscover(
    struct kvb_bridge *bridge, uint32_t source, const struct kvb_worker_spec *spec)
{
    if (spec->discover[0] != '\0') {
        kvb_discovery_retry(bridge->membership->discovery, source, spec);
    }
}

/* Checks whether the engine has new addresses.  An engine that connects to its address has none: it
 * is queried only as often as it may have been restarted. */
static void look_again(struct kvb_bridge *bridge, struct bridge_rank *rank, uint64_t now_ns)
{
    struct rank_trouble *trouble = &rank->trouble;

    if (kvb_stream_is_connected(rank->served.stream) || now_ns < trouble->next_look_ns) {
        return;
    }
    trouble->next_look_ns = trouble->is_unreachable ? now_ns + unreachable_look_ns : 0;
    kvb_bridge_rediscover(bridge, rank->source_number, rank->part->worker);
}

/* ---- A configured block size that is not the engine's ---- */

/* The engine's own size is used: with the configured one, prompts would be hashed in blocks that
 * the engine does not have. */
static void watch_block_size(
    struct kvb_bridge *bridge, struct bridge_rank *rank, const struct kvb_heartbeat *beat)
{
    if (rank->trouble.is_block_size_said || beat->block_size == rank->part->worker->block_size) {
        return;
    }
    rank->trouble.is_block_size_said = true;
    kvb_log_write(
        bridge->log, KVB_LOG_WARNING, "bridge",
        "block_size of a worker differs from its engine's: the engine's is used, correct the "
        "configuration",
        "worker", KVB_LOG_U64(rank->worker_id), "dp_rank", KVB_LOG_U64(rank->dp_rank), "configured",
        KVB_LOG_U64(rank->part->worker->block_size), "engine", KVB_LOG_U64(beat->block_size), NULL);
}

/* ---- A configured total that the engine exceeded ---- */

static void watch_total(struct kvb_bridge *bridge, struct bridge_rank *rank)
{
    if (rank->trouble.is_total_said || rank->part->worker->total_blocks == 0) {
        return;
    }
    const uint64_t held = kvb_stream_mirror_count(rank->served.stream)->max_proven;
    if (held <= rank->part->worker->total_blocks) {
        return;
    }
    rank->trouble.is_total_said = true;
    kvb_log_write(
        bridge->log, KVB_LOG_WARNING, "bridge",
        "an engine held more than its worker's total_blocks: the value is ignored, correct "
        "the configuration",
        "worker", KVB_LOG_U64(rank->worker_id), "dp_rank", KVB_LOG_U64(rank->dp_rank), "configured",
        KVB_LOG_U64(rank->part->worker->total_blocks), "engine", KVB_LOG_U64(held), NULL);
}

/* ---- Objects of a store that are not listed ---- */

const char *
kvb_bridge_store_trouble(const struct bridge_rank *rank, const struct kvb_heartbeat *beat)
{
    const struct kvb_stream_counters *counters = kvb_stream_count(rank->served.stream);
    const uint64_t no_tokens = kvb_stream_mirror_count(rank->served.stream)->no_tokens;

    if (!beat->is_store) {
        return NULL;
    }
    if (beat->hashes == KVB_HASHES_CANONICAL && no_tokens > 0) {
        return "the store's events have no tokens: set hashes = \"engine\" for this worker";
    }
    if (counters->skipped[KVB_SKIP_OTHER_MODEL] > 0 && counters->events_applied == 0) {
        return "all objects of the store are of other models: compare the worker's model with the "
               "one in their keys";
    }
    return counters->skipped[KVB_SKIP_UNKNOWN_KEY] > 0
               ? "some keys of the store name no block: their objects are counted as unknown_key "
                 "and not listed"
               : NULL;
}

static void
watch_store(struct kvb_bridge *bridge, struct bridge_rank *rank, const struct kvb_heartbeat *beat)
{
    const char *why = kvb_bridge_store_trouble(rank, beat);

    /* Its sentences are constants: the same one has the same address. */
    if (!why || why == rank->trouble.said_of_store) {
        return;
    }
    rank->trouble.said_of_store = why;
    kvb_log_write(
        bridge->log, KVB_LOG_WARNING, "bridge", why, "worker", KVB_LOG_U64(rank->worker_id),
        "dp_rank", KVB_LOG_U64(rank->dp_rank), "events", rank->part->events, NULL);
}

/* ---- Speculation ---- */

/* The ranks of a worker are one engine: one line is enough. */
static bool
was_said_of_worker(const struct kvb_bridge *bridge, const struct bridge_rank *rank, const char *why)
{
    const struct kvb_part_table *running = &bridge->membership->running;
    size_t at = kvb_part_table_start(running, rank->worker_id);

    for (uint32_t number;
         (number = kvb_part_table_next(running, rank->worker_id, &at)) != KVB_NO_ID;) {
        const struct bridge_rank *other = running->slots[number].owner;
        if (other != rank && other->trouble.said_of_speculation == why) {
            return true;
        }
    }
    return false;
}

static void watch_speculation(struct kvb_bridge *bridge, struct bridge_rank *rank)
{
    const struct kvb_speculation_finding finding = kvb_stream_speculation(rank->served.stream);
    const bool keeps = finding.speculation == KVB_SPECULATION_KEEPS ||
                       finding.speculation == KVB_SPECULATION_UNKNOWN;
    const bool is_undecided = finding.speculation == KVB_SPECULATION_UNDECIDED;
    const char *said = rank->trouble.said_of_speculation;

    /* An engine that does not speculate is worth a line only after one that said otherwise.
     * Before the first block its hashes may still turn out to have lookahead. */
    if (finding.why == said || finding.source == KVB_SPECULATION_OF_CONFIG || (keeps && !said) ||
        kvb_stream_mirror_count(rank->served.stream)->shape_count == 0) {
        return;
    }
    /* Noted even if another rank has said it, so that the question is not asked each time. */
    rank->trouble.said_of_speculation = finding.why;
    if (was_said_of_worker(bridge, rank, finding.why)) {
        return;
    }
    kvb_log_write(
        bridge->log, is_undecided ? KVB_LOG_WARNING : KVB_LOG_INFO, "bridge",
        is_undecided ? "it is not known whether an engine gives requests a block less than it "
                       "holds: its list is unverified"
        : keeps      ? "an engine gives requests all blocks that it holds"
                     : "an engine gives requests a block less than it holds: hits are answered so",
        "why", finding.why, "source", kvb_speculation_source_name(finding.source), "worker",
        KVB_LOG_U64(rank->worker_id), "dp_rank", KVB_LOG_U64(rank->dp_rank), NULL);
}

/* ---- An engine from which nothing comes: stream/silence.h finds why ---- */

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
    /* A name without an address and the like is said where it is met. */
    const enum kvb_silence silence =
        trouble->why.text[0] ? KVB_SILENCE_NONE : kvb_silence_find(&facts, now_ns);
    const struct kvb_silence_names names = { .events = rank->part->events,
                                             .replay = rank->part->replay,
                                             .topic = rank->part->topic,
                                             .other_topic = kvb_source_strays(rank->source)->topic,
                                             .frames = kvb_source_strays(rank->source)->frames,
                                             .tokens = facts.page.grown };

    /* Nothing else shows that the topic is wrong, and one message of another topic is enough. */
    kvb_source_listen_to_all(
        rank->source, facts.is_connected && !facts.has_live && facts.other_topics == 0);
    kvb_silence_explain(silence, &names, &trouble->silence_why);
    if (kvb_stream_note_silence(rank->served.stream, kvb_silence_reason(silence))) {
        kvb_serve_wake(&rank->served); /* the state has changed */
    }
    trouble->silence = silence;
    say_silence(bridge, rank, facts.has_live);
}

/* ---- Streams ---- */

void kvb_bridge_watch_state(
    struct kvb_bridge *bridge, struct bridge_rank *rank, const struct kvb_heartbeat *beat,
    uint64_t now_ns)
{
    struct rank_trouble *trouble = &rank->trouble;

    if (trouble->now != beat->state || trouble->since_ns == 0) {
        trouble->now = beat->state;
        trouble->since_ns = now_ns;
    }
    /* First: an engine that connects to its address is asked more rarely. */
    watch_reach(bridge, rank, now_ns);
    look_again(bridge, rank, now_ns);
    watch_block_size(bridge, rank, beat);
    watch_total(bridge, rank);
    watch_store(bridge, rank, beat);
    watch_speculation(bridge, rank);
    const bool is_settled = now_ns - trouble->since_ns >= settled_ns;
    const bool may_speak = trouble->said_ns == 0 || now_ns - trouble->said_ns >= again_ns;
    const bool is_bad = is_trouble(beat->state);
    /* A change between two states without an error is not logged. */
    if (is_settled && may_speak && beat->state != trouble->said &&
        (is_bad || is_trouble(trouble->said))) {
        kvb_log_write(
            bridge->log, is_bad ? KVB_LOG_WARNING : KVB_LOG_INFO, "bridge",
            is_bad ? "a stream is DOWN or PARTIAL" : "a stream has recovered", "state",
            kvb_stream_state_name(beat->state), "reason", kvb_stream_reason_name(beat->reason),
            "worker", KVB_LOG_U64(rank->worker_id), "dp_rank", KVB_LOG_U64(rank->dp_rank), "events",
            rank->part->events, NULL);
        trouble->said = beat->state;
        trouble->said_ns = now_ns;
    }
}
