#include "kvb_test.h"

#include "batch_maker.h"
#include "core/clock.h"
#include "stream_world.h"

/* What cache groups, copies and shapes do to the state of a stream, its heartbeats and its
 * answers. */

enum { window_tokens = 3 };

static void add_window(struct stream_world *world, uint64_t hash, bool is_sparse)
{
    add_stored(&world->batch, NULL, &hash, is_sparse ? NULL : &(uint32_t){ 7 }, 1);
    last_event(&world->batch)->has_group = true;
    last_event(&world->batch)->group = 1;
    last_event(&world->batch)->group_kind = KVB_GROUP_WINDOW;
    last_event(&world->batch)->window_tokens = window_tokens;
    last_event(&world->batch)->is_sparse = is_sparse;
}

static void give_live(struct stream_world *world, uint64_t seq)
{
    give_batch(world, KVB_INPUT_LIVE, seq, first_incarnation, false);
}

static struct kvb_heartbeat beat_of(const struct stream_world *world)
{
    struct kvb_heartbeat beat;

    kvb_stream_heartbeat(world->stream, &beat);
    return beat;
}

/* ---- Facts about the engine ---- */

/* Windows of 3 tokens in group 1 (and full attention in group 0) of an engine that speculates. */
static struct kvb_heartbeat beat_with_drop(uint32_t drop_groups, bool has_full)
{
    struct kvb_stream_options options = stream_world_options(true);
    struct stream_world world = { .now_ns = KVB_NS_PER_S };
    const uint64_t hash = 900;

    options.speculative_drop = 1;
    options.speculative_drop_groups = drop_groups;
    assert_ok(kvb_stream_new(&options, &world.stream));
    give(&world, KVB_INPUT_UP);
    (void)start_wanted_replay(&world);
    give(&world, KVB_INPUT_REPLAY_END);
    if (has_full) {
        add_stored(&world.batch, NULL, &hash, &(uint32_t){ 7 }, 1);
    }
    add_window(&world, hash, false);
    give_live(&world, 0);
    const struct kvb_heartbeat beat = beat_of(&world);
    stream_world_end(&world);
    return beat;
}

static void groups_drop_as_configured(void **state)
{
    (void)state;
    static const struct {
        uint32_t groups;
        bool has_full;
        uint32_t full_drop, window_drop;
    } rows[] = {
        { 0, true, 1, 0 },        { 0, false, 0, 1 },       { 1U << 0, true, 1, 0 },
        { 1U << 1, true, 0, 1 },  { 3, true, 1, 1 },        { 1U << 4, true, 0, 0 },
        { 1U << 1, false, 0, 1 }, { 1U << 4, false, 0, 0 },
    };

    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const struct kvb_heartbeat beat = beat_with_drop(rows[i].groups, rows[i].has_full);
        assert_int_equal(beat.speculative_drop, rows[i].full_drop);
        assert_int_equal(beat.windows[0].drop, rows[i].window_drop);
        assert_int_equal(beat.is_without_full, !rows[i].has_full);
        assert_int_equal(beat.window_tokens, window_tokens);
        /* one window beside full attention that drops nothing needs no rules */
        assert_int_equal(beat.window_count, !rows[i].has_full || rows[i].window_drop > 0);
    }
}

/* What is configured comes first, then the first source that decides. */
static void the_first_source_that_decides_counts(void **state)
{
    (void)state;
    const enum kvb_speculation none = KVB_SPECULATION_UNKNOWN;
    const enum kvb_speculation keeps = KVB_SPECULATION_KEEPS;
    const enum kvb_speculation drops = KVB_SPECULATION_DROPS;
    const enum kvb_speculation open = KVB_SPECULATION_UNDECIDED;
    const enum kvb_speculation_source config = KVB_SPECULATION_OF_CONFIG;
    const enum kvb_speculation_source server = KVB_SPECULATION_OF_SERVER_INFO;
    const enum kvb_speculation_source arguments = KVB_SPECULATION_OF_ARGUMENTS;
    const enum kvb_speculation_source page = KVB_SPECULATION_OF_PAGE;
    const struct {
        uint32_t given;
        enum kvb_speculation server, arguments, page; /* as each shows it */
        uint32_t drop;
        enum kvb_speculation_source source;
        bool is_open;
    } rows[] = {
        { KVB_DROP_DETECT, none, none, none, 0, KVB_SPECULATION_OF_NOTHING, false },
        { KVB_DROP_DETECT, none, none, keeps, 0, page, false },
        { KVB_DROP_DETECT, none, none, open, 0, page, true },
        { KVB_DROP_DETECT, none, open, open, 0, arguments, true },
        { KVB_DROP_DETECT, none, open, keeps, 0, page, false },
        { KVB_DROP_DETECT, none, drops, open, 1, arguments, false },
        { KVB_DROP_DETECT, none, drops, keeps, 1, arguments, false },
        { KVB_DROP_DETECT, keeps, drops, open, 0, server, false },
        { KVB_DROP_DETECT, open, drops, open, 1, arguments, false },
        { KVB_DROP_DETECT, drops, keeps, keeps, 1, server, false },
        { 0, drops, drops, open, 0, config, false },
        { 2, keeps, keeps, keeps, 2, config, false },
    };

    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct kvb_stream_options options = stream_world_options(true);
        struct stream_world world = { .now_ns = KVB_NS_PER_S };
        options.speculative_drop = rows[i].given;
        assert_ok(kvb_stream_new(&options, &world.stream));
        kvb_stream_note_speculation(world.stream, server, rows[i].server);
        kvb_stream_note_speculation(world.stream, arguments, rows[i].arguments);
        kvb_stream_note_speculation(world.stream, page, rows[i].page);
        give(&world, KVB_INPUT_UP);
        (void)start_wanted_replay(&world);
        give(&world, KVB_INPUT_REPLAY_END);
        assert_int_not_equal(
            beat_of(&world).reason, KVB_REASON_SPECULATION); /* nothing is listed */
        add_stored(&world.batch, NULL, &(uint64_t){ 900 }, &(uint32_t){ 900 }, 1);
        give_live(&world, 0);
        const struct kvb_speculation_finding finding = kvb_stream_speculation(world.stream);
        assert_int_equal(finding.source, rows[i].source);
        assert_int_equal(finding.drop, rows[i].drop);
        assert_int_equal(beat_of(&world).speculative_drop, rows[i].drop);
        assert_int_equal(beat_of(&world).reason == KVB_REASON_SPECULATION, rows[i].is_open);
        assert_true(strlen(finding.why) > 0);
        stream_world_end(&world);
    }
}

/* Hashes with lookahead make the method irrelevant. */
static void lookahead_decides_what_no_source_does(void **state)
{
    (void)state;
    struct kvb_stream_options options = stream_world_options(true);
    struct stream_world world = { .now_ns = KVB_NS_PER_S };

    assert_ok(kvb_stream_new(&options, &world.stream));
    kvb_stream_note_speculation(world.stream, KVB_SPECULATION_OF_PAGE, KVB_SPECULATION_UNDECIDED);
    give(&world, KVB_INPUT_UP);
    (void)start_wanted_replay(&world);
    give(&world, KVB_INPUT_REPLAY_END);
    add_stored(&world.batch, NULL, &(uint64_t){ 900 }, &(uint32_t){ 900 }, 1);
    last_event(&world.batch)->lookahead = 1;
    give_live(&world, 0);
    assert_int_not_equal(beat_of(&world).reason, KVB_REASON_SPECULATION);
    assert_int_equal(kvb_stream_speculation(world.stream).speculation, KVB_SPECULATION_KEEPS);
    assert_non_null(strstr(kvb_stream_speculation(world.stream).why, "lookahead"));
    stream_world_end(&world);
}

/* ---- Answers ---- */

static void a_repair_includes_the_window_list(void **state)
{
    (void)state;
    struct stream_world world;
    struct kvb_sync_request request = { .kind = KVB_SYNC_SNAPSHOT };
    struct kvb_router_batch events = { 0 };
    struct kvb_sync_job job = { 0 };
    struct kvb_sync_reply reply;
    size_t count = 0;

    begin_exact(&world, 3);
    add_window(&world, 901, true);
    give_live(&world, 3);
    kvb_sync_job_begin(&job, world.stream, &request);
    assert_ok(kvb_sync_job_step(&job, world.stream, 100, &events, &reply));
    for (size_t i = 0; i < events.event_count; i++) {
        const bool is_window = events.events[i].tier == KVB_LIST_WINDOW;
        count += is_window ? events.events[i].block_count : 0;
        assert_false(is_window && events.events[i].has_parent);
    }
    assert_int_equal(count, 1);
    request.kind = KVB_SYNC_DIGEST;
    request.epoch = kvb_stream_epoch(world.stream);
    kvb_sync_job_begin(&job, world.stream, &request);
    assert_ok(kvb_sync_job_step(&job, world.stream, 100, &events, &reply));
    assert_non_null(reply.sums[KVB_LIST_WINDOW]);
    kvb_router_batch_done(&events);
    stream_world_end(&world);
}

SUITE(stream_groups)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(groups_drop_as_configured),
        cmocka_unit_test(the_first_source_that_decides_counts),
        cmocka_unit_test(lookahead_decides_what_no_source_does),
        cmocka_unit_test(a_repair_includes_the_window_list),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
