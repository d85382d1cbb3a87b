#include "kvb_test.h"

#include "batch_maker.h"
#include "core/clock.h"
#include "index/block_hash.h"
#include "stream_world.h"

#include <stdlib.h>
#include <string.h>

/* A simple engine, a bad network and a stream between them, from one seed.
 *
 * The engine keeps a small tree of blocks, publishes what it stores and removes,
 * restarts, and answers replays from a buffer; the network drops live batches,
 * cuts replays, and loses connections.  At the end the faults stop.  Then an EXACT
 * list must equal the engine's, and a PARTIAL one must be a subset of it. */

enum {
    max_blocks = 400,
    buffer_batches = 40,
    seeds = 300,
    rounds = 400,
    alphabet = 3,
    deepest = 6,
};

struct block {
    bool is_held;
    uint32_t path[deepest];
    size_t depth;
};

struct engine_batch {
    uint64_t seq;
    uint64_t fingerprint;
    struct kvb_event_batch batch; /* owned */
};

struct engine {
    struct block blocks[max_blocks]; /* every path that was ever stored */
    size_t block_count;
    uint64_t next_seq;
    struct engine_batch buffer[buffer_batches]; /* seq % buffer_batches */
    unsigned seed;
};

static uint32_t draw(struct engine *engine, uint32_t below)
{
    return (uint32_t)rand_r(&engine->seed) % below;
}

/* A prompt has the same engine hash in every incarnation: its path as a number in base 4. */
static uint64_t engine_hash(const struct block *block)
{
    uint64_t hash = 1;

    for (size_t i = 0; i < block->depth; i++) {
        hash = hash * (alphabet + 1) + block->path[i];
    }
    return hash;
}

static struct block *held_at_random(struct engine *engine)
{
    const size_t first = engine->block_count ? draw(engine, (uint32_t)engine->block_count) : 0;

    for (size_t i = 0; i < engine->block_count; i++) {
        struct block *block = &engine->blocks[(first + i) % engine->block_count];
        if (block->is_held) {
            return block;
        }
    }
    return NULL;
}

static struct block *block_of(struct engine *engine, const struct block *like)
{
    for (size_t i = 0; i < engine->block_count; i++) {
        if (engine_hash(&engine->blocks[i]) == engine_hash(like)) {
            return &engine->blocks[i];
        }
    }
    assert_true(engine->block_count < max_blocks); /* 3 + 9 + ... + 243 paths */
    engine->blocks[engine->block_count] = *like;
    return &engine->blocks[engine->block_count++];
}

static void store_child(struct engine *engine, struct kvb_event_batch *batch)
{
    const struct block *parent = draw(engine, 4) > 0 ? held_at_random(engine) : NULL;
    struct block child = { 0 };

    if (parent) {
        child = *parent;
    }
    child.is_held = false;
    if (child.depth == 5) {
        return;
    }
    child.path[child.depth++] = 1 + draw(engine, alphabet);
    struct block *mine = block_of(engine, &child);
    if (mine->is_held) {
        return;
    }
    mine->is_held = true;
    const uint64_t hash = engine_hash(mine);
    const uint64_t parent_hash = parent ? engine_hash(parent) : 0;
    add_stored(batch, parent ? &parent_hash : NULL, &hash, &mine->path[mine->depth - 1], 1);
}

/* As in a cache with reference counts, a parent outlives its children. */
static bool has_held_child(const struct engine *engine, const struct block *parent)
{
    for (size_t i = 0; i < engine->block_count; i++) {
        const struct block *block = &engine->blocks[i];
        if (block->is_held && block->depth == parent->depth + 1 &&
            memcmp(block->path, parent->path, parent->depth * sizeof block->path[0]) == 0) {
            return true;
        }
    }
    return false;
}

static void remove_leaf(struct engine *engine, struct kvb_event_batch *batch)
{
    struct block *block = held_at_random(engine);

    if (!block || has_held_child(engine, block)) {
        return;
    }
    block->is_held = false;
    add_removed(batch, &(uint64_t){ engine_hash(block) }, 1);
}

static void forget_all(struct engine *engine)
{
    for (size_t i = 0; i < engine->block_count; i++) {
        engine->blocks[i].is_held = false;
    }
}

/* One step of the engine. Its batch is in the buffer afterwards. */
static const struct engine_batch *publish(struct engine *engine)
{
    struct engine_batch *slot = &engine->buffer[engine->next_seq % buffer_batches];

    kvb_event_batch_reset(&slot->batch);
    slot->seq = engine->next_seq++;
    slot->fingerprint = (uint64_t)rand_r(&engine->seed);
    const uint32_t what = draw(engine, 100);
    if (what == 0) {
        forget_all(engine);
        add_cleared(&slot->batch);
    }
    for (uint32_t i = draw(engine, 4); i > 0; i--) {
        if (draw(engine, 3) > 0) {
            store_child(engine, &slot->batch);
        } else {
            remove_leaf(engine, &slot->batch);
        }
    }
    return slot;
}

static void restart(struct engine *engine)
{
    forget_all(engine);
    engine->next_seq = 0;
}

static void give_slot(
    struct stream_world *world, enum kvb_stream_input_kind kind, const struct engine_batch *slot)
{
    assert_ok(kvb_event_batch_copy(&slot->batch, &world->batch)); /* the step empties the batch */
    give_batch(world, kind, slot->seq, slot->fingerprint, false);
    kvb_event_batch_done(&world->batch);
}

/* Answers a wanted replay; the network may cut the answer. */
static void serve_replay(struct engine *engine, struct stream_world *world, bool is_cooldown)
{
    uint64_t from = 0;

    if (!kvb_stream_wants_replay(world->stream, world->now_ns, &from)) {
        return;
    }
    kvb_stream_replay_started(world->stream, world->now_ns);
    if (!is_cooldown && draw(engine, 8) == 0) {
        return; /* no answer */
    }
    const uint64_t oldest =
        engine->next_seq > buffer_batches ? engine->next_seq - buffer_batches : 0;
    const uint64_t end = engine->next_seq;
    for (uint64_t seq = from > oldest ? from : oldest; seq < end; seq++) {
        if (!is_cooldown && draw(engine, 20) == 0) {
            seq += draw(engine, 4); /* a reply dropped by the ROUTER socket */
            if (seq >= end) {
                break;
            }
        }
        give_slot(world, KVB_INPUT_REPLAY, &engine->buffer[seq % buffer_batches]);
        if (!kvb_stream_is_replaying(world->stream)) {
            return;
        }
    }
    give(world, KVB_INPUT_REPLAY_END);
}

static void check_against_engine(const struct engine *engine, const struct stream_world *world)
{
    struct kvb_heartbeat beat;
    size_t held = 0;

    kvb_stream_heartbeat(world->stream, &beat);
    for (size_t i = 0; i < engine->block_count; i++) {
        const struct block *block = &engine->blocks[i];
        const bool is_listed = router_holds(world, name_of(block->path, block->depth));
        assert_true(block->is_held || !is_listed); /* no phantom */
        assert_true(
            !block->is_held || is_listed || beat.state != KVB_STREAM_EXACT); /* no unnoticed loss */
        held += block->is_held;
    }
    assert_true(world->held_count <= held);
    assert_int_equal(beat.tiers[KVB_TIER_DEVICE].blocks, world->held_count);
    assert_true(beat.state == KVB_STREAM_EXACT || beat.state == KVB_STREAM_PARTIAL);
}

static void one_fault(struct engine *engine, struct stream_world *world, bool *is_connected)
{
    const uint32_t what = draw(engine, 300);

    if (what == 0) {
        restart(engine);
        give(world, KVB_INPUT_DOWN);
        *is_connected = false;
    } else if (what < 5 && *is_connected) {
        give(world, KVB_INPUT_DOWN);
        *is_connected = false;
    } else if (!*is_connected && what < 60) {
        give(world, KVB_INPUT_UP);
        *is_connected = true;
    }
}

static void let_cool_down(struct engine *engine, struct stream_world *world, bool is_connected)
{
    if (!is_connected) {
        give(world, KVB_INPUT_UP);
    }
    for (int i = 0; i < 1500; i++) { /* 75 s: the longest back-off is over */
        pass_ms(world, 50);
        serve_replay(engine, world, true);
    }
    give_slot(world, KVB_INPUT_LIVE, publish(engine)); /* and is looked for in the replay */
    for (int i = 0; i < 700; i++) {
        pass_ms(world, 50);
        serve_replay(engine, world, true);
    }
}

static bool one_incarnation(unsigned seed)
{
    static struct engine engine;
    static struct stream_world world;
    bool is_connected = true;
    struct kvb_heartbeat beat;

    engine = (struct engine){ .seed = seed };
    stream_world_begin(&world, true);
    give(&world, KVB_INPUT_UP);
    for (int i = 0; i < rounds; i++) {
        one_fault(&engine, &world, &is_connected);
        if (draw(&engine, 3) > 0) {
            const struct engine_batch *slot = publish(&engine);
            if (is_connected && draw(&engine, 10) > 0) {
                give_slot(&world, KVB_INPUT_LIVE, slot);
            }
        }
        pass_ms(&world, draw(&engine, 10) == 0 ? 1100 : 50);
        serve_replay(&engine, &world, false);
    }
    let_cool_down(&engine, &world, is_connected);
    check_against_engine(&engine, &world);
    kvb_stream_heartbeat(world.stream, &beat);
    stream_world_end(&world);
    for (size_t i = 0; i < buffer_batches; i++) {
        kvb_event_batch_done(&engine.buffer[i].batch);
    }
    return beat.state == KVB_STREAM_EXACT;
}

static void the_list_is_correct_or_not_exact(void **state)
{
    (void)state;
    int exact = 0;

    for (unsigned seed = 1; seed <= seeds; seed++) {
        exact += one_incarnation(seed);
    }
    print_message("%d of %d streams ended EXACT\n", exact, seeds);
    assert_true(exact > seeds / 10); /* a stream that is always PARTIAL would be useless */
}

SUITE(stream_random)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_list_is_correct_or_not_exact),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
