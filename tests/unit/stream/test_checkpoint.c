#include "fail_alloc.h"
#include "kvb_test.h"

#include "batch_maker.h"
#include "bytes_reader.h"
#include "checkpoint_bytes.h"
#include "core/clock.h"
#include "stream_script.h"
#include "stream_world.h"

#include <string.h>

/* ---- Scenes ---- */

/* A new process replaces the one that was saved and killed. */
static bool restart_from(struct stream_world *world, const struct kvb_buf *bytes)
{
    struct kvb_stream_options options = stream_world_options(true);
    bool needs_epoch = false;
    enum kvb_checkpoint_rejection cause = KVB_CHECKPOINT_FLAW_COUNT;

    options.seed[0] = 'n'; /* random, and never that of the last process */
    kvb_stream_free(world->stream);
    assert_ok(kvb_stream_new(&options, &world->stream));
    assert_ok(restore_from(world->stream, bytes->data, bytes->len, &needs_epoch, &cause));
    return needs_epoch;
}

/* Five batches, saved, and a new process. The router has received all five. */
static void begin_restored(struct stream_world *world)
{
    struct kvb_buf bytes;

    begin_exact(world, 5);
    save_whole(world->stream, &bytes);
    assert_false(restart_from(world, &bytes));
    kvb_buf_done(&bytes);
}

/* ---- What is restored ---- */

static void a_restart_meanwhile_clears_the_list_in_a_new_epoch(void **state)
{
    (void)state;
    struct stream_world world;
    struct kvb_heartbeat beat;

    begin_restored(&world);
    give(&world, KVB_INPUT_UP);
    assert_int_equal(start_wanted_replay(&world), 3);
    replayed(&world, 3, second_incarnation, 50);
    assert_true(world.saw_cleared);
    assert_int_equal(world.held_count, 0);
    kvb_stream_heartbeat(world.stream, &beat);
    assert_true(beat.epoch_first_id > 1 << 24); /* above all ids that may have been published */
    stream_world_end(&world);
}

static void a_withdrawn_stream_is_announced_anew(void **state)
{
    (void)state;
    struct stream_world world;
    struct kvb_buf bytes;

    begin_exact(&world, 2);
    kvb_stream_open_epoch(world.stream, 5000000, true);
    save_whole(world.stream, &bytes);
    assert_true(restart_from(&world, &bytes));
    assert_true(kvb_stream_is_withdrawn(world.stream));
    kvb_buf_done(&bytes);
    stream_world_end(&world);
}

/* ---- The same batches, the same events ---- */

static void remove_one(struct stream_world *world, uint64_t seq, enum kvb_stream_input_kind kind)
{
    add_removed(&world->batch, &(uint64_t){ 900 + seq - 4 }, 1);
    give_batch(world, kind, seq, first_incarnation, false);
}

static void queued_batches_give_the_same_events_as_single_ones(void **state)
{
    (void)state;
    struct stream_world world;
    struct stream_world waiting;
    struct kvb_heartbeat one;
    struct kvb_heartbeat other;

    begin_exact(&world, 5);
    begin_exact(&waiting, 5);
    for (uint64_t seq = 5; seq < 8; seq++) {
        remove_one(&world, seq, KVB_INPUT_LIVE);
    }
    remove_one(&waiting, 6, KVB_INPUT_LIVE); /* a gap */
    remove_one(&waiting, 7, KVB_INPUT_LIVE);
    assert_int_equal(start_wanted_replay(&waiting), 4);
    replayed(&waiting, 4, first_incarnation, 5);
    remove_one(&waiting, 5, KVB_INPUT_REPLAY);
    give(&waiting, KVB_INPUT_REPLAY_END);
    assert_int_equal(waiting.output.events.event_count, 2);
    kvb_stream_heartbeat(world.stream, &one);
    kvb_stream_heartbeat(waiting.stream, &other);
    assert_int_equal(one.last_id, other.last_id);
    stream_world_end(&world);
    stream_world_end(&waiting);
}

/* ---- Saving ---- */

static void there_is_nothing_to_save_before_the_first_batch_or_without_replays(void **state)
{
    (void)state;
    struct stream_world world;
    struct kvb_buf bytes;

    kvb_buf_init(&bytes, 1 << 20);
    stream_world_begin(&world, true);
    assert_int_equal(save_stream(world.stream, &bytes), KVB_NOT_FOUND);
    stream_world_end(&world);
    stream_world_begin(&world, false);
    give(&world, KVB_INPUT_UP);
    live(&world, 0, first_incarnation, 1);
    assert_int_equal(save_stream(world.stream, &bytes), KVB_NOT_FOUND);
    stream_world_end(&world);
    kvb_buf_done(&bytes);
}

static void a_clear_in_the_middle_ends_the_save(void **state)
{
    (void)state;
    struct stream_world world;
    struct kvb_checkpoint_save save = { 0 };
    struct kvb_buf bytes;
    bool is_done = false;

    kvb_buf_init(&bytes, 1 << 20);
    begin_exact(&world, 50);
    assert_ok(kvb_checkpoint_save_begin(&save, world.stream));
    assert_ok(kvb_checkpoint_save_step(&save, 10, &bytes, &is_done));
    assert_false(is_done);
    add_cleared(&world.batch);
    give_batch(&world, KVB_INPUT_LIVE, 50, first_incarnation, false);
    assert_int_equal(kvb_checkpoint_save_step(&save, 10, &bytes, &is_done), KVB_CLOSED);
    kvb_checkpoint_save_end(&save);
    kvb_buf_done(&bytes);
    stream_world_end(&world);
}

static void no_step_exceeds_its_limit(void **state)
{
    (void)state;
    struct stream_world world;
    struct kvb_checkpoint_save save = { 0 };
    struct kvb_buf bytes;
    bool is_done = false;
    size_t steps = 0;

    kvb_buf_init(&bytes, 1 << 20);
    begin_exact(&world, 100);
    assert_ok(kvb_checkpoint_save_begin(&save, world.stream));
    for (; !is_done; steps++) {
        kvb_buf_reset(&bytes);
        assert_ok(kvb_checkpoint_save_step(&save, 10, &bytes, &is_done));
        assert_true(is_done || bytes.len <= 10 * 80 + 100);
    }
    assert_int_equal(steps, 10);
    kvb_checkpoint_save_end(&save);
    kvb_buf_done(&bytes);
    stream_world_end(&world);
}

static void survives_every_failed_allocation(void **state)
{
    (void)state;
    struct stream_world world;
    struct kvb_buf bytes;
    kvb_status status = KVB_NO_MEMORY;
    bool needs_epoch = false;
    enum kvb_checkpoint_rejection cause = KVB_CHECKPOINT_FLAW_COUNT;

    begin_exact(&world, 40);
    for (long n = 0; status != KVB_OK; n++) {
        assert_true(n < 100);
        kvb_buf_init(&bytes, 1 << 20);
        fail_alloc_after(n);
        status = save_stream(world.stream, &bytes);
        fail_alloc_after(-1);
        assert_true(status == KVB_OK || status == KVB_NO_MEMORY);
        if (status != KVB_OK) {
            kvb_buf_done(&bytes);
        }
    }
    const struct kvb_stream_options options = stream_world_options(true);
    kvb_stream_free(world.stream);
    assert_ok(kvb_stream_new(&options, &world.stream));
    status = KVB_NO_MEMORY;
    for (long n = 0; status != KVB_OK; n++) {
        assert_true(n < 100);
        fail_alloc_after(n);
        status = restore_from(world.stream, bytes.data, bytes.len, &needs_epoch, &cause);
        fail_alloc_after(-1);
        assert_true(status == KVB_OK || cause == KVB_CHECKPOINT_NO_MEMORY);
    }
    kvb_buf_done(&bytes);
    stream_world_end(&world);
}

/* ---- Tokens, where the stream is republished ---- */

/* The newest content that readers of engines would be sent; one token a block. */
static size_t count_shown(struct stream_world *world)
{
    struct kvb_event_batch batch = { 0 };
    struct kvb_shown *shown = kvb_stream_shown(world->stream);

    while (kvb_shown_has_changes(shown)) {
        kvb_event_batch_reset(&batch);
        assert_ok(kvb_shown_take_changes(shown, 100, 100, &batch));
        for (size_t i = 0; i < batch.event_count; i++) {
            assert_int_equal(batch.events[i].token_count, batch.events[i].hash_count);
        }
    }
    kvb_event_batch_done(&batch);
    return kvb_shown_count(shown)->shown;
}

static void begin_republished(struct stream_world *world, struct kvb_buf *bytes)
{
    begin_exact(world, 5);
    assert_ok(kvb_stream_show(world->stream, 1));
    for (uint64_t seq = 5; seq < 8; seq++) { /* their tokens come with them */
        live(world, seq, first_incarnation, (uint32_t)seq + 1);
    }
    assert_int_equal(count_shown(world), 3);
    save_whole(world->stream, bytes);
}

static kvb_status restore_republished(
    struct stream_world *world, const uint8_t *bytes, size_t len, bool is_shown,
    struct kvb_checkpoint_refusal *refusal)
{
    const struct kvb_stream_options options = stream_world_options(true);
    bool needs_epoch = false;

    kvb_stream_free(world->stream);
    assert_ok(kvb_stream_new(&options, &world->stream));
    if (is_shown) {
        assert_ok(kvb_stream_show(world->stream, 1));
    }
    return restore_or_say_why(world->stream, bytes, len, &needs_epoch, refusal);
}

static void tokens_are_in_the_checkpoint_of_a_republished_stream(void **state)
{
    (void)state;
    struct kvb_checkpoint_refusal refusal = { .cause = KVB_CHECKPOINT_FLAW_COUNT };
    struct stream_world world;
    struct kvb_buf bytes;

    begin_republished(&world, &bytes);
    assert_ok(restore_republished(&world, bytes.data, bytes.len, true, &refusal));
    assert_int_equal(kvb_stream_mirror_count(world.stream)->held[KVB_TIER_DEVICE], 8);
    assert_int_equal(count_shown(&world), 3);
    /* Nobody needs them where the stream is not republished any more. */
    assert_ok(restore_republished(&world, bytes.data, bytes.len, false, &refusal));
    kvb_buf_done(&bytes);
    stream_world_end(&world);
}

static void a_checkpoint_that_ends_within_its_tokens_is_torn(void **state)
{
    (void)state;
    struct kvb_checkpoint_refusal refusal = { .cause = KVB_CHECKPOINT_FLAW_COUNT };
    struct stream_world world;
    struct kvb_buf bytes;

    begin_republished(&world, &bytes);
    for (size_t cut = 1; cut < 60; cut += 7) {
        assert_int_equal(
            restore_republished(&world, bytes.data, bytes.len - cut, true, &refusal),
            KVB_BAD_INPUT);
        assert_int_equal(refusal.cause, KVB_CHECKPOINT_TORN);
        assert_int_equal(kvb_stream_mirror_count(world.stream)->held[KVB_TIER_DEVICE], 0);
        assert_int_equal(count_shown(&world), 0);
    }
    kvb_buf_done(&bytes);
    stream_world_end(&world);
}

static void a_checkpoint_without_tokens_is_refused_where_they_are_needed(void **state)
{
    (void)state;
    struct kvb_checkpoint_refusal refusal = { .cause = KVB_CHECKPOINT_FLAW_COUNT };
    struct stream_world world;
    struct kvb_buf bytes;

    begin_exact(&world, 5);
    save_whole(world.stream, &bytes);
    assert_int_equal(
        restore_republished(&world, bytes.data, bytes.len, true, &refusal), KVB_BAD_INPUT);
    assert_int_equal(refusal.cause, KVB_CHECKPOINT_FOREIGN);
    assert_string_equal(refusal.keys.text, "workers.republish");
    kvb_buf_done(&bytes);
    stream_world_end(&world);
}

SUITE(checkpoint)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tokens_are_in_the_checkpoint_of_a_republished_stream),
        cmocka_unit_test(a_checkpoint_that_ends_within_its_tokens_is_torn),
        cmocka_unit_test(a_checkpoint_without_tokens_is_refused_where_they_are_needed),
        /* Without these facts routers would misread the stream meanwhile. */
        SCRIPT(
            "pairs of drafts are restored",
            "exact 5, batch 5 stored 900 paired, restart, beat paired 1, beat store 0"),
        SCRIPT(
            "a store is restored",
            "exact 5, batch 5 stored 900 key 900, restart, beat paired 0, beat store 1"),
        cmocka_unit_test(a_restart_meanwhile_clears_the_list_in_a_new_epoch),
        cmocka_unit_test(a_withdrawn_stream_is_announced_anew),
        cmocka_unit_test(queued_batches_give_the_same_events_as_single_ones),
        cmocka_unit_test(there_is_nothing_to_save_before_the_first_batch_or_without_replays),
        cmocka_unit_test(a_clear_in_the_middle_ends_the_save),
        cmocka_unit_test(no_step_exceeds_its_limit),
        cmocka_unit_test(survives_every_failed_allocation),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
