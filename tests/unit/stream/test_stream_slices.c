#include "fail_alloc.h"
#include "kvb_test.h"

#include "batch_maker.h"
#include "core/buf.h"
#include "core/clock.h"
#include "core/own.h"
#include "stream/checkpoint/checkpoint.h"
#include "stream_script.h"
#include "stream_world.h"

#include <stdlib.h>

/* A large batch is applied in slices. The list and the ids at its end must equal those of the whole
 * batch, whatever happens between the slices. */

enum { keys = 200, rounds = 40, huge = 1 << 30 };

/* ---- Batches of one invented engine ---- */

enum { chain_length = 24 };

/* Batches larger than a slice: a long prompt or its removal; the clear of a tier; the parent of
 * many blocks that were stored below an unknown one. */
static void add_large(struct kvb_event_batch *batch, unsigned *seed)
{
    const uint64_t parent = 5000;
    uint64_t hashes[chain_length];
    uint32_t tokens[chain_length];

    for (uint32_t i = 0; i < chain_length; i++) {
        hashes[i] = 6000 + i;
        tokens[i] = 6000 + i;
    }
    switch (rand_r(seed) % 5) {
    case 0:
        add_stored(batch, NULL, hashes, tokens, chain_length);
        last_event(batch)->tier = rand_r(seed) % 2 ? KVB_TIER_DEVICE : KVB_TIER_HOST;
        break;
    case 1:
        add_removed(batch, hashes, chain_length);
        break;
    case 2:
        add_cleared(batch);
        last_event(batch)->all_tiers = false;
        last_event(batch)->tier = KVB_TIER_HOST;
        break;
    case 3:
        for (uint32_t i = 0; i < chain_length; i++) {
            add_stored(batch, &parent, &(uint64_t){ 7000 + i }, &tokens[i], 1);
        }
        break;
    case 4:
        add_removed(batch, &parent, 1);
        add_stored(batch, NULL, &parent, &(uint32_t){ 5 }, 1);
        break;
    }
}

/* Stores and removes prompts of two tokens; rarely a clear or a large event; with is_odd also an
 * undecodable event, which restarts the list within the batch. */
static void fill(struct kvb_event_batch *batch, unsigned *seed, bool is_odd)
{
    const int events = 1 + rand_r(seed) % 40;

    for (int i = 0; i < events; i++) {
        const uint32_t key = 1 + (uint32_t)rand_r(seed) % keys;
        const uint64_t hashes[2] = { key, 1000 + key };
        const uint32_t tokens[2] = { key, 1000 + key };
        const int what = rand_r(seed) % 400;
        if (what == 0) {
            add_cleared(batch);
        } else if (what == 1) {
            add_skipped(batch, is_odd ? KVB_SKIP_BAD_REMOVED : KVB_SKIP_NO_BLOCK);
        } else if (what < 20) {
            add_large(batch, seed);
        } else if (what < 240) {
            add_stored(batch, NULL, hashes, tokens, 2);
        } else {
            add_removed(batch, hashes, 2);
        }
    }
}

static void begin_sliced(struct stream_world *world, size_t slice_work, bool has_replay)
{
    struct kvb_stream_options options = stream_world_options(has_replay);

    options.slice_work = slice_work;
    options.max_buffered_bytes = 1 << 20;
    *world = (struct stream_world){ .now_ns = KVB_NS_PER_S };
    assert_ok(kvb_stream_new(&options, &world->stream));
    give(world, KVB_INPUT_UP);
    if (has_replay) {
        (void)start_wanted_replay(world);
    }
}

/* Finishes the batch under way; returns how many steps that took. */
static int finish(struct stream_world *world)
{
    int steps = 0;

    while (world->output.has_more) {
        give(world, KVB_INPUT_TICK);
        assert_true(++steps < 10000);
    }
    return steps;
}

static uint64_t newest_seq(const struct stream_world *world)
{
    uint64_t seq = UINT64_MAX;

    return kvb_stream_last_seq(world->stream, &seq) ? seq : UINT64_MAX;
}

static void assert_same_list(const struct stream_world *one, const struct stream_world *other)
{
    struct kvb_heartbeat a;
    struct kvb_heartbeat b;

    kvb_stream_heartbeat(one->stream, &a);
    kvb_stream_heartbeat(other->stream, &b);
    assert_int_equal(a.state, b.state);
    assert_int_equal(a.reason, b.reason);
    assert_memory_equal(&a.epoch, &b.epoch, sizeof a.epoch);
    assert_memory_equal(a.tiers, b.tiers, sizeof a.tiers); /* equal counts and digests */
    assert_int_equal(one->held_count, other->held_count);
    assert_int_equal(newest_seq(one), newest_seq(other));
}

/* ---- Compared with the batch applied at once ---- */

static void slices_of_any_size_give_the_list_of_the_whole_batch(void **state)
{
    (void)state;
    static const size_t sizes[] = { 1, 2, 3, 7, 20, 100 };

    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        static struct stream_world sliced;
        static struct stream_world whole;
        unsigned seeds[2] = { 7, 7 };
        int steps = 0;
        begin_sliced(&sliced, sizes[i], true);
        begin_sliced(&whole, huge, true);
        give(&sliced, KVB_INPUT_REPLAY_END);
        give(&whole, KVB_INPUT_REPLAY_END);
        for (uint64_t seq = 0; seq < rounds; seq++) {
            fill(&sliced.batch, &seeds[0], true);
            fill(&whole.batch, &seeds[1], true);
            give_batch(&sliced, KVB_INPUT_LIVE, seq, first_incarnation, false);
            give_batch(&whole, KVB_INPUT_LIVE, seq, first_incarnation, false);
            assert_false(whole.output.has_more);
            steps += finish(&sliced);
            assert_same_list(&sliced, &whole);
        }
        assert_true(steps > 0);
        stream_world_end(&sliced);
        stream_world_end(&whole);
    }
}

/* A restarted bridge must give the same ids to batches from a replay as to the live ones before. */
static void slices_give_the_same_ids_however_the_steps_come(void **state)
{
    (void)state;
    static struct stream_world live_one;
    static struct stream_world replayed_one;
    unsigned seeds[2] = { 9, 9 };

    begin_sliced(&live_one, 10, true);
    begin_sliced(&replayed_one, 10, true);
    give(&live_one, KVB_INPUT_REPLAY_END);
    for (uint64_t seq = 0; seq < rounds; seq++) {
        fill(&live_one.batch, &seeds[0], false);
        fill(&replayed_one.batch, &seeds[1], false);
        give_batch(
            &live_one, KVB_INPUT_LIVE, seq, first_incarnation,
            false); /* queued after the first one */
        give_batch(&replayed_one, KVB_INPUT_REPLAY, seq, first_incarnation, false);
        if (seq % 3 == 0) {
            (void)finish(&live_one);
        }
    }
    (void)finish(&live_one);
    (void)finish(&replayed_one);
    assert_int_equal(live_one.last_id, replayed_one.last_id);
    assert_int_equal(live_one.held_count, replayed_one.held_count);
    assert_int_equal(newest_seq(&live_one), newest_seq(&replayed_one));
    stream_world_end(&live_one);
    stream_world_end(&replayed_one);
}

static void slices_are_of_bounded_work(void **state)
{
    (void)state;
    static struct stream_world world;
    const uint32_t token = 5;

    begin_sliced(&world, 30, true);
    give(&world, KVB_INPUT_REPLAY_END);
    for (uint64_t hash = 1; hash <= 300; hash++) { /* each is 2 units of work */
        add_stored(&world.batch, NULL, &hash, &token, 1);
        add_removed(&world.batch, &hash, 1);
    }
    give_batch(&world, KVB_INPUT_LIVE, 0, first_incarnation, false);
    assert_true(world.output.events.event_count <= 15);
    int steps = 1;
    for (; world.output.has_more; steps++) {
        give(&world, KVB_INPUT_TICK);
        assert_in_range(world.output.events.event_count, 1, 15);
    }
    assert_int_equal(steps, 600 / 15);
    stream_world_end(&world);
}

/* ---- Within an event ---- */

enum { many = 100, slice = 10 };

/* Gives the batch and the steps that it needs. Each step must change something, and at most a
 * slice. */
static void assert_given_in_slices(struct stream_world *world, uint64_t seq)
{
    int steps = 1;

    give_batch(world, KVB_INPUT_LIVE, seq, first_incarnation, false);
    for (; world->output.has_more; steps++) {
        assert_in_range(world->output.events.block_count, 1, slice);
        assert_in_range(newest_seq(world) + 1, 0, seq);
        give(world, KVB_INPUT_TICK);
    }
    assert_in_range(steps, many / slice, many / slice + 1);
    assert_int_equal(newest_seq(world), seq);
}

static void children_are_named_in_parts(void **state)
{
    (void)state;
    static struct stream_world world;
    const uint64_t parent = 1000;
    const uint32_t token = 1000;

    begin_sliced(&world, slice, true);
    give(&world, KVB_INPUT_REPLAY_END);
    for (uint32_t i = 1; i < many; i++) {
        add_stored(&world.batch, &parent, &(uint64_t){ i }, &i, 1);
    }
    give_batch(&world, KVB_INPUT_LIVE, 0, first_incarnation, false);
    (void)finish(&world);
    assert_int_equal(world.held_count, 0);
    add_stored(&world.batch, NULL, &parent, &token, 1);
    assert_given_in_slices(&world, 1);
    assert_int_equal(world.held_count, many);
    assert_true(router_holds(&world, name_of((uint32_t[]){ token, 5 }, 2)));
    stream_world_end(&world);
}

/* ---- Within a batch ---- */

/* Root blocks with tokens 1 .. count. */
static void add_roots(struct stream_world *world, uint32_t count)
{
    for (uint32_t token = 1; token <= count; token++) {
        add_stored(&world->batch, NULL, &(uint64_t){ 900 + token }, &token, 1);
    }
}

/* One small batch is applied; the larger one after it is half applied. */
static void begin_within(struct stream_world *world, bool has_replay)
{
    begin_sliced(world, 10, has_replay);
    if (has_replay) {
        give(world, KVB_INPUT_REPLAY_END);
    }
    live(world, 0, first_incarnation, 100);
    assert_false(world->output.has_more);
    add_roots(world, 20);
    give_batch(world, KVB_INPUT_LIVE, 1, first_incarnation, false);
    assert_true(world->output.has_more);
    assert_int_equal(world->held_count, 1 + 5);
}

static void a_save_contains_no_half_of_a_batch(void **state)
{
    (void)state;
    static struct stream_world world;
    struct kvb_checkpoint_save save = { 0 };
    KVB_OWN(kvb_buf_done) struct kvb_buf out = { 0 };
    bool is_done = false;

    kvb_buf_init(&out, 1 << 20);
    begin_sliced(&world, 10, true);
    give(&world, KVB_INPUT_REPLAY_END);
    live(&world, 0, first_incarnation, 100);
    assert_ok(kvb_checkpoint_save_begin(&save, world.stream));
    add_roots(&world, 20);
    give_batch(&world, KVB_INPUT_LIVE, 1, first_incarnation, false);
    assert_int_equal(kvb_checkpoint_save_step(&save, 100, &out, &is_done), KVB_CLOSED);
    kvb_checkpoint_save_end(&save);
    assert_int_equal(kvb_checkpoint_save_begin(&save, world.stream), KVB_NOT_FOUND);
    (void)finish(&world);
    assert_ok(kvb_checkpoint_save_begin(&save, world.stream));
    kvb_checkpoint_save_end(&save);
    stream_world_end(&world);
}

/* A batch that found no room is requested again. */
static void a_batch_that_does_not_fit_behind_it_is_a_gap(void **state)
{
    (void)state;
    static struct stream_world world;
    uint64_t seq = 2;

    begin_within(&world, true);
    for (; kvb_stream_count(world.stream)->buffer_refused == 0; seq++) {
        live(&world, seq, first_incarnation, (uint32_t)seq + 200);
        assert_true(seq < 100000);
    }
    (void)finish(&world);
    assert_int_equal(newest_seq(&world), seq - 2);
    assert_int_equal(kvb_stream_count(world.stream)->clears, 0);
    live(&world, seq, first_incarnation, (uint32_t)seq + 200);
    assert_int_equal(start_wanted_replay(&world), seq - 2);
    stream_world_end(&world);
}

/* ---- Memory ---- */

/* Without memory for a copy the batch is applied at once. Whatever fails, the list is that of the
 * batch, or restarts. */
static void slices_survive_each_allocation_failing(void **state)
{
    (void)state;
    static struct stream_world world;
    bool was_cleared = true;

    for (int n = 0; was_cleared || n < 20; n++) {
        begin_sliced(&world, 10, true);
        give(&world, KVB_INPUT_REPLAY_END);
        live(&world, 0, first_incarnation, 100);
        add_roots(&world, 40);
        struct kvb_stream_input input = { .kind = KVB_INPUT_LIVE,
                                          .now_ns = world.now_ns,
                                          .wall_us = 2000,
                                          .seq = 1,
                                          .fingerprint = { .low = 1, .high = first_incarnation },
                                          .batch = &world.batch };
        fail_alloc_after(n);
        /* NO_MEMORY is a permitted result */
        (void)kvb_stream_step(world.stream, &input, &world.output);
        input.kind = KVB_INPUT_TICK;
        while (world.output.has_more) {
            (void)kvb_stream_step(world.stream, &input, &world.output);
        }
        fail_alloc_after(-1);
        struct kvb_heartbeat beat;
        kvb_stream_heartbeat(world.stream, &beat);
        was_cleared = kvb_stream_count(world.stream)->clears > 0;
        assert_true(was_cleared || beat.tiers[KVB_TIER_DEVICE].blocks == 41);
        assert_true(was_cleared || beat.reason == KVB_REASON_NO_BASE); /* no other status */
        assert_true(n < 1000);
        stream_world_end(&world);
    }
}

SUITE(stream_slices)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(slices_of_any_size_give_the_list_of_the_whole_batch),
        cmocka_unit_test(slices_give_the_same_ids_however_the_steps_come),
        cmocka_unit_test(slices_are_of_bounded_work),
        SCRIPT(
            "a large event is applied in parts",
            "sliced, end, batch 0 stored 1 100, parts 10, lists 100, holds 1 2 3 4,"
            "batch 1 removed 1-100, parts 10, lists 0"),
        SCRIPT(
            "the clear of a tier is applied in parts",
            "sliced, end, batch 0 stored 1 100, parts 10, batch 1 cleared device, parts 10,"
            "lists 0"),
        cmocka_unit_test(children_are_named_in_parts),
        /* It must not be checked again for each of its parts. */
        SCRIPT(
            "an event that is refused is refused once",
            "sliced, end, batch 0 stored 1 100 parent 100, no-more, self-parents 1"),
        SCRIPT(
            "a restarted list drops the rest of an event",
            "sliced alone, batch 0 stored 1 100, more, down, up, live 7', finish, lists 1, has 7'"),
        SCRIPT(
            "half a batch is not applied",
            "sliced, end, live 0, no-more, large 1, more, lists 6, SYNCING(replaying), newest 0,"
            "finish, newest 1, find 1, EXACT, lists 21"),
        cmocka_unit_test(a_save_contains_no_half_of_a_batch),
        cmocka_unit_test(a_batch_that_does_not_fit_behind_it_is_a_gap),
        cmocka_unit_test(slices_survive_each_allocation_failing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
