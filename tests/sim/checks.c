#include "sim.h"

#include "stream/inside.h"

#include <string.h>

/* The invariants, which must hold in each fault.  Each line compares two lists:
 *
 *     engine, bridge       The bridge publishes a subset of what the engine held after the batch
 *                          that was applied last, or during the next batch if that is half
 *                          applied.  An EXACT list lacks at most `doubtful` blocks.
 *     bridge, aggregator   An EXACT list has exactly the blocks that were published up to the
 *                          event that it names.
 *     engine, aggregator   No listed block was removed more than 2 s ago.  A PARTIAL
 *                          list is a part of what the engine held at one moment of the last 2 s. */

enum { first_counted_step = 400 }; /* 4 s, because the start takes 2 s */

static const uint64_t phantom_ns = 2 * KVB_NS_PER_S;
static const uint64_t full_replay_every_ns = 10 * KVB_NS_PER_S;
static const uint64_t for_ever = UINT64_MAX;

static const struct sim_batch *batch_at(const struct sim_world *world, struct sim_place place)
{
    return &world->engines[place.engine].batches[place.batch];
}

/* ---- Engine and bridge ---- */

static void follow_story(struct sim_rank *rank)
{
    struct kvb_heartbeat beat;

    kvb_stream_heartbeat(rank->served.stream, &beat);
    if (!sim_story_is_of(&rank->story, &beat.epoch)) {
        sim_story_open(&rank->story, &beat.epoch, beat.epoch_first_id);
    }
    sim_story_take(&rank->story, &rank->served.output.events);
}

/* Finds the batch with this fingerprint. Two incarnations may have batches with the same seq. */
static struct sim_place place_of(const struct sim_world *world, struct kvb_hash128 fingerprint)
{
    const uint32_t number = (uint32_t)(fingerprint.high << 1 >> 33); /* also of a corrupt batch */
    const struct sim_engine *engine = &world->engines[number];
    const unsigned life = (unsigned)fingerprint.high - 1;
    uint32_t at = engine->batch_count - 1;

    while (engine->batches[at].life != life || engine->batches[at].seq != fingerprint.low) {
        at--; /* ends, because only existing batches are given */
    }
    return (struct sim_place){ .engine = number, .batch = at };
}

static void follow_place(const struct sim_world *world, struct sim_rank *rank)
{
    const struct kvb_fingerprint_ring *ring = &rank->served.stream->fingerprints;
    const uint64_t applied = kvb_stream_count(rank->served.stream)->batches_applied;
    uint64_t seq = 0;

    if (!kvb_stream_last_seq(rank->served.stream, &seq)) {
        rank->has_place = false;
    } else if (applied != rank->applied_before) {
        rank->has_place = true;
        rank->place = place_of(world, kvb_fingerprints_at(ring, seq % kvb_fingerprints)->hash);
    }
    rank->applied_before = applied;
}

/* A follower repeats the number of doubtful blocks of its last heartbeat. Until the next one there
 * may be more. */
static void follow_doubtful(const struct sim_world *world, struct sim_rank *rank)
{
    const uint64_t doubtful = kvb_stream_mirror_count(rank->served.stream)->doubtful;

    if (doubtful >= rank->doubtful || world->now_ns > rank->doubtful_ns + KVB_NS_PER_S) {
        rank->doubtful = doubtful;
        rank->doubtful_ns = world->now_ns;
    }
}

/* Engines that send undecodable events, and engines whose replays come from another engine, cannot
 * be checked. */
static bool is_beyond_telling(const struct sim_world *world, const struct sim_rank *rank)
{
    return !rank->has_place || rank->place.engine != rank->stream_number ||
           world->engines[rank->stream_number].replay_by != rank->stream_number ||
           batch_at(world, rank->place)->is_unknown;
}

static void check_subset(struct sim_world *world, const struct sim_rank *rank)
{
    const struct sim_batch *batch = batch_at(world, rank->place);

    for (size_t i = 0; i < rank->story.held_count; i++) {
        if (!sim_batch_holds(batch, rank->story.held[i])) {
            sim_fail(
                world, "stream %u tells of block %lx, which its engine does not hold after seq %lu",
                rank->stream_number, rank->story.held[i], batch->seq);
            return;
        }
    }
}

/* The list goes on with a batch of an incarnation that is over, which was under way while the next
 * one had answered already.  The bridge cannot tell the two: when the living one answers again, it
 * is another publisher, and was asked for nothing yet. */
static void
note_other_publisher(struct sim_world *world, const struct sim_rank *rank, uint64_t applied_before)
{
    struct sim_engine *engine = &world->engines[rank->stream_number];

    if (rank->applied_before != applied_before && rank->has_place &&
        rank->place.engine == rank->stream_number &&
        batch_at(world, rank->place)->life != engine->life) {
        engine->full_ns = 0;
    }
}

void sim_check_rank(struct sim_world *world, struct sim_rank *rank)
{
    const uint64_t applied_before = rank->applied_before;

    follow_story(rank);
    if (rank->story.has_two_truths) {
        sim_fail(world, "stream %u tells an event in other words than before", rank->stream_number);
    }
    follow_place(world, rank);
    follow_doubtful(world, rank);
    if (rank->applied_before != applied_before && kvb_stream_is_replaying(rank->served.stream)) {
        rank->replayed_ns = world->now_ns;
    }
    note_other_publisher(world, rank, applied_before);
    if (rank->applied_before != applied_before && !rank->served.stream->unfinished.is_there &&
        !is_beyond_telling(world, rank)) {
        check_subset(world, rank);
    }
}

/* EXACT refers to the newest applied batch. A batch long after it would have been noticed by a live
 * batch or a probe. */
static void check_tail(struct sim_world *world, const struct sim_rank *rank)
{
    const struct sim_engine *engine = &world->engines[rank->stream_number];
    const struct sim_link *link = &world->links[rank->stream_number];
    const struct sim_batch *next = &engine->batches[rank->place.batch + 1];

    if (!world->is_repairable || rank->place.batch + 1 >= engine->batch_count ||
        next[-1].life != engine->life || world->now_ns < link->hindered_ns + phantom_ns ||
        world->now_ns <= next->at_ns + phantom_ns) {
        return;
    }
    sim_fail(
        world, "stream %u says EXACT as of seq %lu, %.3f s after the next one", rank->stream_number,
        next[-1].seq, (double)(world->now_ns - next->at_ns) / 1e9);
}

/* While the bridge is connected to another incarnation than the listed one, readers must not use
 * the list. */
static void
check_life(struct sim_world *world, const struct sim_rank *rank, const struct kvb_heartbeat *beat)
{
    const struct sim_link *link = &world->links[rank->stream_number];
    const bool is_connected = kvb_stream_is_connected(rank->served.stream) && rank->knows_life &&
                              link->is_open && link->monitor_count == 0 &&
                              link->life == rank->up_life;

    if (is_connected && beat->state != KVB_STREAM_DOWN &&
        world->engines[rank->stream_number].has_replay &&
        batch_at(world, rank->place)->life != link->life &&
        beat->tiers[KVB_TIER_DEVICE].blocks > 0) {
        sim_fail(
            world, "stream %u says %s(%s) of a life that is over, connected to the next",
            rank->stream_number, kvb_stream_state_name(beat->state),
            kvb_stream_reason_name(beat->reason));
    }
}

void sim_check_beat(
    struct sim_world *world, const struct sim_rank *rank, const struct kvb_heartbeat *beat)
{
    const uint64_t advertised = beat->tiers[KVB_TIER_DEVICE].blocks;

    if (beat->state == KVB_STREAM_EXACT && sim_engine_is_baseless(world, rank->stream_number)) {
        sim_fail(
            world, "stream %u says EXACT, and no replay of its engine's is there to prove it",
            rank->stream_number);
    }
    if (is_beyond_telling(world, rank)) {
        return;
    }
    check_life(world, rank, beat);
    if (beat->state != KVB_STREAM_EXACT) {
        return;
    }
    if (world->bridges[sim_bridge_of(world, rank->stream_number)].has_unread &&
        sim_link_waits_since(world, rank->stream_number, world->now_ns - KVB_NS_PER_S)) {
        sim_fail(
            world, "stream %u says EXACT after a pause, before its socket is read",
            rank->stream_number);
    }
    const struct sim_batch *batch = batch_at(world, rank->place);
    if (batch->held_count > advertised + beat->doubtful) {
        sim_fail(
            world, "stream %u says EXACT with %lu blocks and %lu doubtful, but its engine held %zu",
            rank->stream_number, advertised, beat->doubtful, batch->held_count);
    }
    check_tail(world, rank);
    if (!world->engines[rank->stream_number].has_replay) {
        sim_fail(world, "stream %u says EXACT without a replay endpoint", rank->stream_number);
    }
}

/* ---- Engines ---- */

/* A full replay is one from 0 that took several batches; an engine that repeats its only batch
 * costs nothing. */
void sim_check_ration(struct sim_world *world, size_t number)
{
    struct sim_engine *engine = &world->engines[number];
    const struct sim_link *link = &world->links[number];
    const uint32_t oldest = sim_engine_find(engine, 0);
    const bool is_first = engine->full_ns == 0 || engine->full_life != engine->life;

    uint64_t last = 0;
    /* With at most two batches in the list, the proof begins with the first one. */
    const struct kvb_stream *asking = world->ranks[number].served.stream;
    const bool is_proof = asking && kvb_stream_last_seq(asking, &last) && last <= 1;

    /* A batch that came corrupt, and whose good copy did not come: when that copy comes later, its
     * bytes are not those that are known of this number, so it may be another publisher's. */
    const bool is_strange = engine->was_corrupt && asking && kvb_stream_count(asking)->poison > 0;

    if (link->request_from > 0 || engine->batch_count - oldest < 2 || engine->may_be_hole ||
        is_proof || is_strange) {
        return;
    }
    if (!is_first && link->asked_ns < engine->full_ns + full_replay_every_ns) {
        sim_cost(
            world, "engine %zu is asked for all that it keeps twice within %.3f s", number,
            (double)(link->asked_ns - engine->full_ns) / 1e9);
    }
    engine->full_ns = link->asked_ns;
    engine->full_life = engine->life;
}

/* ---- Aggregators ---- */

struct list {
    uint64_t blocks[sim_advertised];
    size_t count;
    uint64_t sum;
};

static void add_block(void *context, kvb_block_hash block)
{
    struct list *list = context;

    if (list->count < sim_advertised) {
        list->blocks[list->count++] = block.value;
    }
    list->sum += sim_spread(block.value);
}

static void read_list(
    const struct sim_aggregator *aggregator, const struct kvb_follower *follower, struct list *list)
{
    list->count = 0;
    list->sum = 0;
    for (int tier = 0; tier < KVB_LIST_COUNT; tier++) {
        kvb_followers_each_block(
            aggregator->followers, follower, (enum kvb_tier)tier, add_block, list);
    }
}

struct view {
    struct sim_world *world;
    size_t aggregator;
    size_t stream;
    const struct kvb_follower *follower;
    const struct list *list;
};

static void check_exact(const struct view *view)
{
    const struct kvb_follower *follower = view->follower;
    const uint64_t quiet_ns = sim_quiet_since(view->world, view->stream, view->aggregator);
    uint64_t sum = 0;

    if (view->world->aggregators[view->aggregator].was_lied_to[view->stream] &&
        (quiet_ns == for_ever || view->world->now_ns < quiet_ns + phantom_ns)) {
        return; /* the next heartbeats will say it */
    }
    if (!sim_story_sum(
            &view->world->ranks[view->stream].story, &follower->heartbeat.epoch, follower->last_id,
            &sum)) {
        sim_fail(
            view->world, "aggregator %zu stream %zu: EXACT at event %lu, which never was",
            view->aggregator, view->stream, follower->last_id);
    } else if (sum != view->list->sum) {
        sim_fail(
            view->world,
            "aggregator %zu stream %zu: EXACT at event %lu, but lists %zu other blocks",
            view->aggregator, view->stream, follower->last_id, view->list->count);
    }
}

static void check_phantoms(const struct view *view, uint64_t quiet_ns)
{
    const struct sim_engine *engine = &view->world->engines[view->stream];

    for (size_t i = 0; i < view->list->count; i++) {
        const uint64_t held_ns = sim_engine_name(engine, view->list->blocks[i])->last_held_ns;
        const uint64_t since_ns = held_ns > quiet_ns ? held_ns : quiet_ns;
        if (held_ns != for_ever && view->world->now_ns > since_ns + phantom_ns) {
            sim_fail(
                view->world, "aggregator %zu stream %zu: %s lists block %lx, which went %.3f s ago",
                view->aggregator, view->stream, kvb_stream_state_name(view->follower->state),
                view->list->blocks[i], (double)(view->world->now_ns - held_ns) / 1e9);
            return;
        }
    }
}

static bool is_listed(const struct list *list, uint64_t block)
{
    for (size_t i = 0; i < list->count; i++) {
        if (list->blocks[i] == block) {
            return true;
        }
    }
    return false;
}

/* What was stored that long ago must have arrived.  A block removed and stored again in one batch
 * may still be in flight: three checks. */
static void check_misses(const struct view *view, uint64_t quiet_ns)
{
    const struct sim_engine *engine = &view->world->engines[view->stream];
    const uint64_t now_ns = view->world->now_ns;
    size_t missing = 0;

    if (engine->batch_count == engine->life_first || now_ns < quiet_ns + phantom_ns) {
        return;
    }
    const struct sim_batch *newest = &engine->batches[engine->batch_count - 1];
    for (size_t i = 0; i < newest->held_count; i++) {
        missing += sim_engine_name(engine, newest->held[i])->since_ns + phantom_ns < now_ns &&
                   !is_listed(view->list, newest->held[i]);
    }
    const uint64_t advertised = view->follower->heartbeat.doubtful;
    const uint64_t doubtful = view->world->ranks[view->stream].doubtful;
    unsigned *misses = &view->world->aggregators[view->aggregator].misses[view->stream];
    *misses = missing > (advertised > doubtful ? advertised : doubtful) ? *misses + 1 : 0;
    if (*misses > 2) {
        sim_fail(
            view->world, "aggregator %zu stream %zu: EXACT misses %zu old blocks, %lu doubtful",
            view->aggregator, view->stream, missing, advertised);
    }
}

static bool
is_part_of(const struct list *list, const struct sim_batch *one, const struct sim_batch *other)
{
    for (size_t i = 0; i < list->count; i++) {
        if (!sim_batch_holds(one, list->blocks[i]) && !sim_batch_holds(other, list->blocks[i])) {
            return false;
        }
    }
    return true;
}

/* Events of a batch are applied one by one, so one moment may include two batches. */
static void check_partial(const struct view *view, uint64_t quiet_ns)
{
    const struct sim_engine *engine = &view->world->engines[view->stream];
    const uint64_t now_ns = view->world->now_ns;

    if (view->list->count == 0 || now_ns < quiet_ns + phantom_ns) {
        return;
    }
    for (uint32_t at = engine->batch_count; at-- > 0;) {
        const struct sim_batch *batch = &engine->batches[at];
        const bool is_last = at + 1 == engine->batch_count;
        if (!is_last && engine->batches[at + 1].at_ns + phantom_ns < now_ns) {
            break;
        }
        if (is_part_of(view->list, batch, at > 0 ? batch - 1 : batch)) {
            return;
        }
    }
    sim_fail(
        view->world,
        "aggregator %zu stream %zu: PARTIAL lists %zu blocks that were never held at once",
        view->aggregator, view->stream, view->list->count);
}

/* A partial list cannot be compared with the counts of the whole, so a reader that cannot request
 * the whole never detects a difference. */
static bool is_fooled(const struct view *view)
{
    const struct sim_aggregator *aggregator = &view->world->aggregators[view->aggregator];

    return aggregator->was_lied_to[view->stream] && !aggregator->sends_requests;
}

static void check_against_engine(const struct view *view)
{
    const struct sim_engine *engine = &view->world->engines[view->stream];
    const enum kvb_stream_state state = view->follower->state;
    const uint64_t replayed_ns = view->world->ranks[view->stream].replayed_ns;
    uint64_t quiet_ns = sim_quiet_since(view->world, view->stream, view->aggregator);

    quiet_ns = quiet_ns > replayed_ns ? quiet_ns : replayed_ns;
    const bool is_unproven =
        state == KVB_STREAM_UNVERIFIED && sim_engine_is_baseless(view->world, view->stream);
    if (state == KVB_STREAM_DOWN || state == KVB_STREAM_STALE || quiet_ns == for_ever ||
        is_unproven || !view->follower->has_heartbeat || !engine->has_replay ||
        engine->may_be_unknown || is_fooled(view)) {
        return; /* a reader without a heartbeat of the stream cannot know what it missed */
    }
    check_phantoms(view, quiet_ns);
    if (state == KVB_STREAM_PARTIAL) {
        check_partial(view, quiet_ns);
    } else if (state == KVB_STREAM_EXACT) {
        check_misses(view, quiet_ns);
    }
}

void sim_check_lists(struct sim_world *world, size_t number, bool all)
{
    struct sim_aggregator *aggregator = &world->aggregators[number];

    for (size_t i = 0; i < kvb_followers_limit(aggregator->followers); i++) {
        const struct kvb_follower *follower = kvb_followers_at(aggregator->followers, i);
        struct list list;
        if (!follower) {
            continue;
        }
        const size_t stream = sim_stream_of(world, follower->id.worker_id, follower->id.dp_rank);
        if (!all && !(aggregator->dirty >> stream & 1)) {
            continue;
        }
        read_list(aggregator, follower, &list);
        const struct view view = { world, number, stream, follower, &list };
        if (follower->state == KVB_STREAM_EXACT) {
            check_exact(&view);
        }
        if (all) {
            check_against_engine(&view);
        }
    }
    aggregator->dirty = 0;
}

/* ---- The end ---- */

static const struct kvb_follower *
follower_of(const struct sim_aggregator *aggregator, const struct sim_world *world, size_t stream)
{
    for (size_t i = 0; i < kvb_followers_limit(aggregator->followers); i++) {
        const struct kvb_follower *follower = kvb_followers_at(aggregator->followers, i);
        if (follower &&
            sim_stream_of(world, follower->id.worker_id, follower->id.dp_rank) == stream) {
            return follower;
        }
    }
    return NULL;
}

/* Whether this state is permitted at the end, after what was done to its engine. */
static bool is_legal_end(const struct sim_engine *engine, const struct kvb_follower *follower)
{
    const enum kvb_stream_reason reason = follower->reason;

    switch (follower->state) {
    case KVB_STREAM_EXACT:
        return true;
    case KVB_STREAM_UNVERIFIED:
        return (reason == KVB_REASON_NO_REPLAY && !engine->has_replay) ||
               (reason == KVB_REASON_UNKNOWN_EVENT && engine->may_be_unknown);
    case KVB_STREAM_PARTIAL:
        return (reason == KVB_REASON_GONE && engine->may_be_gone) ||
               (reason == KVB_REASON_HOLE && (engine->may_be_hole || engine->may_be_gone)) ||
               (reason == KVB_REASON_POISON &&
                (engine->may_be_poison || (engine->was_corrupt && engine->was_replay_bad))) ||
               (reason == KVB_REASON_SKIPPED && engine->may_be_skipped);
    default:
        return false;
    }
}

static void check_end_of(struct sim_world *world, size_t number, size_t stream)
{
    const struct sim_aggregator *aggregator = &world->aggregators[number];
    const struct kvb_follower *follower = follower_of(aggregator, world, stream);
    const struct sim_engine *engine = &world->engines[stream];

    if (!follower) {
        sim_fail(world, "aggregator %zu does not know stream %zu at the end", number, stream);
        return;
    }
    const bool is_baseless_end =
        sim_engine_is_baseless(world, stream) &&
        (follower->state == KVB_STREAM_UNVERIFIED || follower->state == KVB_STREAM_PARTIAL ||
         follower->state == KVB_STREAM_SYNCING); /* it is looked for again and again */
    if (!is_baseless_end && !is_legal_end(engine, follower)) {
        sim_fail(
            world, "aggregator %zu stream %zu ends as %s(%s)", number, stream,
            kvb_stream_state_name(follower->state), kvb_stream_reason_name(follower->reason));
        return;
    }
    struct list list;
    read_list(aggregator, follower, &list);
    const size_t held = engine->batch_count > engine->life_first
                            ? engine->batches[engine->batch_count - 1].held_count
                            : 0;
    if (follower->state == KVB_STREAM_EXACT && !engine->may_be_unknown &&
        (list.count > held || list.count + follower->heartbeat.doubtful < held)) {
        sim_fail(
            world, "aggregator %zu stream %zu ends EXACT with %zu of %zu blocks, %lu doubtful",
            number, stream, list.count, held, follower->heartbeat.doubtful);
    }
}

/* Digests exist for unforeseen differences. No fault of this simulator may need them. */
void sim_check_digests(struct sim_world *world, size_t number)
{
    const struct sim_aggregator *aggregator = &world->aggregators[number];
    struct kvb_follower_counters counters;

    kvb_followers_counters(aggregator->followers, &counters);
    for (size_t stream = 0; stream < world->stream_count; stream++) {
        if (aggregator->was_lied_to[stream]) {
            return;
        }
    }
    if (counters.differs > 0) {
        sim_fail(
            world, "aggregator %zu listed other blocks than a bridge, %lu times", number,
            counters.differs);
    }
}

void sim_check_end(struct sim_world *world)
{
    for (size_t i = 0; i < world->aggregator_count; i++) {
        if (world->aggregators[i].is_up && !world->has_failed) {
            sim_check_digests(world, i);
        }
        for (size_t stream = 0; stream < world->stream_count; stream++) {
            if (world->aggregators[i].sends_requests && !world->has_failed) {
                check_end_of(world, i, stream);
            }
        }
    }
}

/* ---- Checks after every step ---- */

/* Whether the bridge fell so far behind that no replay reaches back to a complete history. */
static void note_what_is_gone(struct sim_world *world, size_t stream)
{
    struct sim_engine *engine = &world->engines[stream];
    const struct sim_rank *rank = &world->ranks[stream];
    const bool is_here = rank->has_place && rank->place.engine == stream &&
                         batch_at(world, rank->place)->life == engine->life;
    const uint32_t oldest = sim_engine_find(engine, 0);
    const bool is_behind = !is_here || rank->place.batch < oldest;
    /* After an answer from 0 on that was lost with its connection the bridge asks again 10 s after
     * that request: the engine may have received it, and does not publish while it answers. */
    const uint64_t lost_ns = world->links[stream].lost_full_ns;
    const bool may_not_ask = lost_ns > 0 && world->now_ns < lost_ns + full_replay_every_ns;
    const bool must_begin_again = engine->was_replay_bad || engine->may_be_hole ||
                                  engine->may_be_poison || is_behind || may_not_ask;

    if (must_begin_again && !sim_engine_has_base(engine)) {
        engine->may_be_gone = true;
    }
}

/* For how much of the time the streams were EXACT, as this reader saw them. */
static void count_exact(struct sim_world *world, const struct sim_aggregator *aggregator)
{
    const uint64_t step_ms = sim_step_ns / KVB_NS_PER_MS;

    for (size_t stream = 0; stream < world->stream_count; stream++) {
        const struct kvb_follower *follower =
            aggregator->is_up ? follower_of(aggregator, world, stream) : NULL;
        if (world->engines[stream].has_replay) {
            world->stream_ms += step_ms;
            world->exact_ms += follower && follower->state == KVB_STREAM_EXACT ? step_ms : 0;
        }
    }
}

void sim_note_progress(struct sim_world *world)
{
    for (size_t stream = 0; stream < world->stream_count; stream++) {
        note_what_is_gone(world, stream);
    }
    for (size_t i = 0; i < world->aggregator_count && world->steps >= first_counted_step; i++) {
        if (world->aggregators[i].sends_requests) {
            count_exact(world, &world->aggregators[i]);
        }
    }
}
