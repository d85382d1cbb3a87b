#include "kvb_test.h"

#include "core/clock.h"
#include "stream_world.h"

/* A bridge's answers to a reader that missed events, one request at a time. */

enum { log_blocks = 4 };

/* An EXACT stream with batches 0 to 2 applied, and a log of its newest events. */
static void begin(struct stream_world *world)
{
    struct kvb_stream_options options = stream_world_options(true);

    options.max_log_blocks = log_blocks;
    *world = (struct stream_world){ .now_ns = KVB_NS_PER_S };
    assert_ok(kvb_stream_new(&options, &world->stream));
    give(world, KVB_INPUT_UP);
    (void)start_wanted_replay(world);
    for (uint32_t seq = 0; seq < 3; seq++) {
        replayed(world, seq, first_incarnation, seq + 1);
    }
    end_replay(world, first_incarnation);
}

static struct kvb_sync_job
job_of(const struct stream_world *world, const struct kvb_sync_request *request)
{
    struct kvb_sync_job job = { .chunk = 0 };

    kvb_sync_job_begin(&job, world->stream, request);
    return job;
}

/* Makes the next chunk. Its events must be read before the next call. */
static struct kvb_sync_reply
next_chunk(const struct stream_world *world, struct kvb_sync_job *job, size_t max_blocks)
{
    static struct kvb_router_batch events;
    struct kvb_sync_reply reply = { .chunk = 99 };

    assert_ok(kvb_sync_job_step(job, world->stream, max_blocks, &events, &reply));
    reply.events = NULL;
    kvb_router_batch_done(&events);
    return reply;
}

static enum kvb_sync_answer
answer_to_range(const struct stream_world *world, kvb_epoch epoch, uint64_t from_id)
{
    const struct kvb_sync_request request = {
        .kind = KVB_SYNC_RANGE, .epoch = epoch, .from_id = from_id, .to_id = UINT64_MAX
    };
    struct kvb_sync_job job = job_of(world, &request);

    return next_chunk(world, &job, 1000).answer;
}

/* The part of the list that was already shown does not contain later changes. */
static void a_snapshot_names_the_event_at_which_it_began(void **state)
{
    (void)state;
    const struct kvb_sync_request request = { .kind = KVB_SYNC_SNAPSHOT };
    struct stream_world world;

    begin(&world);
    const uint64_t began_id = world.last_id;
    struct kvb_sync_job job = job_of(&world, &request);
    const struct kvb_sync_reply first = next_chunk(&world, &job, 2);
    assert_false(first.is_last);
    assert_int_equal(first.barrier_id, began_id);
    live(&world, 3, first_incarnation, 4);
    const struct kvb_sync_reply last = next_chunk(&world, &job, 2);
    assert_true(last.is_last);
    assert_int_equal(last.chunk, 1);
    assert_int_equal(last.barrier_id, began_id);
    assert_int_equal(last.last_id, began_id + 1);
    stream_world_end(&world);
}

static void a_new_epoch_ends_the_snapshot_of_the_old_one(void **state)
{
    (void)state;
    const struct kvb_sync_request request = { .kind = KVB_SYNC_SNAPSHOT };
    struct stream_world world;

    begin(&world);
    struct kvb_sync_job job = job_of(&world, &request);
    assert_int_equal(next_chunk(&world, &job, 2).answer, KVB_SYNC_BLOCKS);
    kvb_stream_open_epoch(world.stream, 1, false);
    const struct kvb_sync_reply reply = next_chunk(&world, &job, 2);
    assert_int_equal(reply.answer, KVB_SYNC_GONE);
    assert_true(reply.is_last);
    stream_world_end(&world);
}

static void only_events_of_the_requested_epoch_are_sent(void **state)
{
    (void)state;
    struct stream_world world;

    begin(&world);
    kvb_epoch epoch = kvb_stream_epoch(world.stream);
    assert_int_equal(answer_to_range(&world, epoch, world.last_id), KVB_SYNC_EVENTS);
    epoch.bytes[0] ^= 1;
    assert_int_equal(answer_to_range(&world, epoch, world.last_id), KVB_SYNC_GONE);
    stream_world_end(&world);
}

static void forgotten_and_future_events_are_not_sent(void **state)
{
    (void)state;
    struct stream_world world;

    begin(&world);
    live(&world, 3, first_incarnation, 4);
    live(&world, 4, first_incarnation, 5);
    const kvb_epoch epoch = kvb_stream_epoch(world.stream);
    const uint64_t oldest_id = world.last_id - log_blocks + 1;
    assert_int_equal(answer_to_range(&world, epoch, oldest_id), KVB_SYNC_EVENTS);
    assert_int_equal(answer_to_range(&world, epoch, oldest_id - 1), KVB_SYNC_GONE);
    assert_int_equal(answer_to_range(&world, epoch, world.last_id + 1), KVB_SYNC_TOO_NEW);
    stream_world_end(&world);
}

SUITE(stream_sync)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_snapshot_names_the_event_at_which_it_began),
        cmocka_unit_test(a_new_epoch_ends_the_snapshot_of_the_old_one),
        cmocka_unit_test(only_events_of_the_requested_epoch_are_sent),
        cmocka_unit_test(forgotten_and_future_events_are_not_sent),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
