#include "sim.h"

#include "index/block_hash.h"

#include <stdlib.h>
#include <string.h>

/* Engines: those of kvfleet with a small cache, and every batch that they ever made. */

enum { block_tokens = 4, step_tokens = 48, prompt_blocks = 6, alphabet = 3 };

static const uint64_t for_ever = UINT64_MAX;

void sim_engine_begin(struct sim_world *world, size_t number)
{
    struct sim_engine *engine = &world->engines[number];
    const struct kvb_engine_options options = {
        .rank = sim_rank_of(world, number),
        .blocks = engine->blocks,
        .block_size = block_tokens,
        .max_running = 4,
        .max_waiting = 16,
        .step_tokens = step_tokens,
        .report_probability = 0.05,
        .bypass_probability = 0.05,
        .seed = kvb_random_next(&engine->rng),
    };

    engine->batches = calloc(sim_batches, sizeof *engine->batches);
    engine->names = calloc(sim_names, sizeof *engine->names);
    if (!engine->batches || !engine->names || kvb_engine_new(&options, &engine->engine) != KVB_OK) {
        abort();
    }
    engine->is_up = true;
    engine->last_cleared = UINT32_MAX;
}

void sim_engine_end(struct sim_engine *engine)
{
    for (uint32_t i = 0; i < engine->batch_count; i++) {
        kvb_event_batch_done(&engine->batches[i].batch);
        free(engine->batches[i].held);
    }
    free(engine->batches);
    free(engine->names);
    kvb_engine_free(engine->engine);
}

/* ---- Content of the cache ---- */

struct sim_name *sim_engine_name(const struct sim_engine *engine, uint64_t block)
{
    size_t at = sim_spread(block) % sim_names;

    while (engine->names[at].block != 0 && engine->names[at].block != block) {
        at = (at + 1) % sim_names;
    }
    return &engine->names[at];
}

static int compare(const void *a, const void *b)
{
    const uint64_t one = *(const uint64_t *)a;
    const uint64_t other = *(const uint64_t *)b;
    return one < other ? -1 : one > other;
}

bool sim_batch_holds(const struct sim_batch *batch, uint64_t block)
{
    return bsearch(&block, batch->held, batch->held_count, sizeof block, compare) != NULL;
}

/* The sorted names of the held blocks. */
static void read_truth(struct sim_engine *engine, struct sim_batch *batch)
{
    kvb_block_hash chain[1024];
    struct kvb_truth truth;
    const uint64_t seed = kvb_block_seed((kvb_span){ 0 }, (kvb_span){ 0 });

    if (kvb_engine_truth(engine->engine, &truth) != KVB_OK || truth.count > 1024) {
        abort();
    }
    batch->held = calloc(truth.count + 1, sizeof *batch->held);
    for (uint32_t i = 0; i < truth.count; i++) {
        const struct kvb_truth_block *block = &truth.blocks[i];
        const kvb_tokens_hash tokens =
            kvb_tokens_hash_of(block->tokens, block_tokens, NULL, 0, seed);
        chain[i] = block->parent == kvb_no_parent
                       ? kvb_block_hash_root(tokens)
                       : kvb_block_hash_next(chain[block->parent], tokens);
        if (block->copies > 0) {
            batch->held[batch->held_count++] = chain[i].value;
        }
    }
    kvb_truth_done(&truth);
    qsort(batch->held, batch->held_count, sizeof *batch->held, compare);
}

static void note_names(struct sim_engine *engine, const struct sim_batch *batch, uint64_t now_ns)
{
    for (size_t i = 0; i < batch->held_count; i++) {
        struct sim_name *name = sim_engine_name(engine, batch->held[i]);
        if (name->block == 0 && ++engine->name_count > sim_names / 2) {
            abort();
        }
        if (name->last_held_ns != for_ever) {
            name->since_ns = now_ns;
        }
        name->block = batch->held[i];
        name->last_held_ns = for_ever;
    }
    if (engine->batch_count == engine->life_first) {
        return;
    }
    const struct sim_batch *before = &engine->batches[engine->batch_count - 1];
    for (size_t i = 0; i < before->held_count; i++) {
        if (!sim_batch_holds(batch, before->held[i])) {
            sim_engine_name(engine, before->held[i])->last_held_ns = now_ns;
        }
    }
}

/* ---- Published batches ---- */

static bool has_cleared(const struct kvb_event_batch *batch)
{
    for (size_t i = 0; i < batch->event_count; i++) {
        if (batch->events[i].kind == KVB_EVENT_CLEARED && batch->events[i].all_tiers) {
            return true;
        }
    }
    return false;
}

static void forgive(struct sim_engine *engine)
{
    engine->may_be_gone = false;
    engine->may_be_hole = false;
    engine->may_be_poison = false;
    engine->may_be_skipped = false;
    engine->may_be_unknown = false;
    engine->was_replay_bad = false;
    engine->was_corrupt = false;
}

void sim_engine_note_ruin(struct sim_engine *engine, enum sim_fault_kind kind)
{
    engine->may_be_hole |= kind == SIM_HOLE;
    engine->may_be_poison |= kind == SIM_POISON || kind == SIM_SKIP_REMOVED;
    engine->may_be_skipped |= kind == SIM_SKIP_STORED;
    engine->may_be_unknown |= kind == SIM_UNKNOWN_EVENT;
}

static bool
change_event(struct sim_batch *made, enum kvb_event_kind from, bool any, enum kvb_skip skip)
{
    for (size_t i = 0; i < made->batch.event_count; i++) {
        struct kvb_engine_event *event = &made->batch.events[i];
        if (event->kind == from || (any && event->kind != KVB_EVENT_CLEARED)) {
            event->kind = KVB_EVENT_SKIPPED;
            event->skip = skip;
            return true;
        }
    }
    return false;
}

/* Corrupts a batch at the engine, so that a replay contains the same bytes. */
static void ruin(struct sim_world *world, size_t number, struct sim_batch *made)
{
    struct sim_engine *engine = &world->engines[number];

    for (enum sim_fault_kind kind = SIM_POISON; kind < SIM_FAULT_KINDS; kind++) {
        struct sim_fault *fault = sim_active(world, kind, (unsigned)number);
        if (!fault || fault->count == 0) {
            continue;
        }
        bool is_done = true;
        if (kind == SIM_POISON) {
            made->is_poison = true;
        } else if (kind == SIM_HOLE) {
            made->is_kept = false;
        } else if (kind == SIM_SKIP_STORED) {
            is_done = change_event(made, KVB_EVENT_STORED, false, KVB_SKIP_BAD_STORED);
        } else if (kind == SIM_SKIP_REMOVED) {
            is_done = change_event(made, KVB_EVENT_REMOVED, false, KVB_SKIP_BAD_REMOVED);
        } else {
            is_done = change_event(made, KVB_EVENT_STORED, true, KVB_SKIP_UNKNOWN_EVENT);
            made->is_unknown |= is_done;
        }
        fault->count -= is_done;
        if (is_done) {
            made->has_cleared &= kind != SIM_POISON && kind != SIM_HOLE;
            sim_engine_note_ruin(engine, kind);
            sim_note(world, "engine %zu ruins seq %lu", number, made->seq);
        }
    }
}

/* Records the batches of one step. */
static uint32_t
keep(struct sim_world *world, size_t number, const struct kvb_event_batch *batch, uint64_t seq)
{
    struct sim_engine *engine = &world->engines[number];

    if (engine->batch_count == sim_batches) {
        abort();
    }
    struct sim_batch *made = &engine->batches[engine->batch_count];
    *made = (struct sim_batch){ .life = engine->life,
                                .seq = seq,
                                .fingerprint = { .low = seq,
                                                 .high = number << 32 | (engine->life + 1) },
                                .is_kept = true,
                                .at_ns = world->now_ns };
    if (kvb_event_batch_copy(batch, &made->batch) != KVB_OK) {
        abort();
    }
    made->has_cleared = has_cleared(&made->batch);
    read_truth(engine, made);
    note_names(engine, made, world->now_ns);
    if (made->has_cleared) {
        forgive(engine);
    }
    made->is_unknown =
        !made->has_cleared && engine->batch_count > engine->life_first && made[-1].is_unknown;
    ruin(world, number, made);
    engine->last_cleared = made->has_cleared ? engine->batch_count : engine->last_cleared;
    return engine->batch_count++;
}

uint64_t sim_engine_next_seq(const struct sim_engine *engine)
{
    return engine->batch_count - engine->life_first;
}

/* ---- Work ---- */

static void admit(struct sim_engine *engine)
{
    uint32_t tokens[prompt_blocks * block_tokens + block_tokens];
    const uint32_t blocks = 1 + (uint32_t)kvb_random_below(&engine->rng, prompt_blocks);
    const uint32_t odd = kvb_random_below(&engine->rng, 4) == 0 ? 0 : 1;
    uint32_t count = 0;

    for (uint32_t i = 0; i < blocks; i++) {
        const uint32_t letter = 1 + (uint32_t)kvb_random_below(&engine->rng, alphabet);
        for (uint32_t j = 0; j < block_tokens; j++) {
            tokens[count++] = letter;
        }
    }
    for (uint32_t j = 0; j < odd; j++) {
        tokens[count++] = 9; /* otherwise a prompt of whole blocks, which causes second copies */
    }
    (void)kvb_engine_admit(
        engine->engine, tokens, count, 1 + (uint32_t)kvb_random_below(&engine->rng, 6));
    /* a full queue refuses the request, which is fine */
}

/* After some losses the engine says nothing for so long that the bridge has to ask for its newest
 * batches; what it was working on ends within the loss.  An engine whose replays bring nothing goes
 * on: nobody could know what was lost before it speaks again. */
static const uint64_t ends_within_ns = 300 * KVB_NS_PER_MS;
static const uint64_t silent_ns = 2600 * KVB_NS_PER_MS;

static void pace(struct sim_world *world, size_t number)
{
    struct sim_engine *engine = &world->engines[number];
    const bool is_idle = sim_active(world, SIM_IDLE, (unsigned)number) != NULL;
    const struct sim_fault *loss = sim_active(world, SIM_DROP_LIVE, (unsigned)number);

    if (loss && loss->count % 3 == 0 && !sim_engine_is_baseless(world, number) &&
        world->now_ns + ends_within_ns >= loss->to_ns) {
        engine->next_prompt_ns = loss->to_ns + silent_ns;
    }
    if (world->now_ns < engine->next_prompt_ns || is_idle ||
        world->now_ns + 3 * KVB_NS_PER_S >= world->end_ns) {
        return;
    }
    admit(engine);
    const bool pauses = kvb_random_below(&engine->rng, 40) == 0;
    engine->next_prompt_ns = world->now_ns + kvb_random_below(&engine->rng, 2 * engine->pace_ns) +
                             (pauses ? kvb_random_below(&engine->rng, 2 * KVB_NS_PER_S) : 0);
}

/* An engine that waited for its link publishes at once. */
static bool may_speak(struct sim_world *world, size_t number)
{
    struct sim_engine *engine = &world->engines[number];
    const struct sim_link *link = &world->links[number];

    if (!engine->waits_for_link) {
        return true;
    }
    engine->waits_for_link =
        !(link->is_open && link->life == engine->life && world->now_ns >= link->subscribed_ns) &&
        !world->is_cooldown;
    engine->next_prompt_ns = 0;
    return !engine->waits_for_link;
}

void sim_engine_step(struct sim_world *world, size_t number)
{
    struct sim_engine *engine = &world->engines[number];
    const struct kvb_event_batch *batch = NULL;
    uint64_t seq = 0;

    if (!engine->is_up && world->now_ns >= engine->up_ns) {
        engine->is_up = true;
        sim_note(world, "engine %zu is up, life %u", number, engine->life);
    }
    if (!engine->is_up || world->now_ns < engine->next_step_ns || !may_speak(world, number)) {
        return;
    }
    pace(world, number);
    engine->next_step_ns = world->now_ns + 20 * KVB_NS_PER_MS;
    if (kvb_engine_step(engine->engine, 0, &batch, &seq) == KVB_OK) {
        const uint32_t made = keep(world, number, batch, seq);
        sim_note(
            world, "engine %zu says seq %lu, holds %zu", number, seq,
            engine->batches[made].held_count);
        if (engine->batches[made].is_kept) {
            sim_link_send(world, number, made);
        }
    }
}

void sim_engine_burst(struct sim_world *world, size_t number, uint64_t to_seq)
{
    struct sim_engine *engine = &world->engines[number];

    for (int tries = 0; tries < 4000 && sim_engine_next_seq(engine) < to_seq; tries++) {
        const struct kvb_event_batch *batch = NULL;
        uint64_t seq = 0;
        if (tries % 3 == 0) {
            admit(engine);
        }
        if (kvb_engine_step(engine->engine, 0, &batch, &seq) == KVB_OK) {
            const uint32_t made = keep(world, number, batch, seq);
            if (engine->batches[made].is_kept) {
                sim_link_send(world, number, made);
            }
        }
    }
}

void sim_engine_restart(struct sim_world *world, size_t number, uint64_t pause_ns)
{
    struct sim_engine *engine = &world->engines[number];

    if (engine->batch_count > engine->life_first) {
        const struct sim_batch *last = &engine->batches[engine->batch_count - 1];
        for (size_t i = 0; i < last->held_count; i++) {
            sim_engine_name(engine, last->held[i])->last_held_ns = world->now_ns;
        }
    }
    kvb_engine_restart(engine->engine, kvb_random_next(&engine->rng));
    engine->life++;
    engine->waits_for_link = false;
    engine->life_first = engine->batch_count;
    engine->last_cleared = UINT32_MAX;
    engine->is_up = false;
    engine->up_ns = world->now_ns + pause_ns;
    forgive(engine);
    sim_note(world, "engine %zu restarts", number);
    sim_link_engine_gone(world, number);
}

/* ---- Its replay buffer ---- */

static uint32_t oldest(const struct sim_engine *engine)
{
    const uint32_t count = engine->batch_count - engine->life_first;

    return count > engine->buffer_batches ? engine->batch_count - (uint32_t)engine->buffer_batches
                                          : engine->life_first;
}

uint32_t sim_engine_find(const struct sim_engine *engine, uint64_t from)
{
    uint32_t at = oldest(engine);

    while (at < engine->batch_count && engine->batches[at].seq < from) {
        at++;
    }
    return at;
}

bool sim_engine_is_baseless(const struct sim_world *world, size_t number)
{
    const struct sim_engine *engine = &world->engines[number];

    return engine->buffer_batches == 0 || engine->replay_by != number;
}

bool sim_engine_has_base(const struct sim_engine *engine)
{
    const uint32_t first = oldest(engine);

    if (engine->last_cleared != UINT32_MAX && engine->last_cleared >= first) {
        return true;
    }
    return first == engine->life_first &&
           (first == engine->batch_count || engine->batches[first].is_kept);
}
