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

static void add_other(struct stream_world *world)
{
    add_skipped(&world->batch, KVB_SKIP_NOT_PREFIX);
    last_event(&world->batch)->has_group = true;
    last_event(&world->batch)->group = 2;
    last_event(&world->batch)->group_kind = KVB_GROUP_OTHER;
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

static void a_group_of_no_known_kind_makes_the_stream_unverified_until_a_rebuild(void **state)
{
    (void)state;
    struct stream_world world;

    begin_exact(&world, 3);
    add_other(&world);
    give_live(&world, 3);
    assert_state(&world, KVB_STREAM_UNVERIFIED, KVB_REASON_GROUPS);
    assert_int_equal(world.held_count, 3);
    add_cleared(&world.batch);
    give_live(&world, 4);
    assert_state(&world, KVB_STREAM_UNVERIFIED, KVB_REASON_GROUPS);

    /* a gap, and the replay comes from another incarnation */
    live(&world, 9, first_incarnation, 10);
    (void)start_wanted_replay(&world);
    replayed(&world, 4, second_incarnation, 5);
    give(&world, KVB_INPUT_REPLAY_END);
    (void)start_wanted_replay(&world);
    for (uint64_t seq = 0; seq <= 9; seq++) {
        replayed(&world, seq, second_incarnation, (uint32_t)seq + 1);
    }
    end_replay(&world, second_incarnation);
    live(&world, 9, second_incarnation, 10);
    assert_state(&world, KVB_STREAM_EXACT, KVB_REASON_NONE);
    stream_world_end(&world);
}

static void a_heartbeat_contains_windows_and_shapes(void **state)
{
    (void)state;
    struct stream_world world;

    begin_exact(&world, 3);
    assert_int_equal(beat_of(&world).window_tokens, 0);
    add_window(&world, 901, true); /* batch 0 stored it in the full-attention group */
    give_live(&world, 3);
    assert_true(world.output.is_changed);
    const struct kvb_heartbeat beat = beat_of(&world);
    assert_int_equal(beat.state, KVB_STREAM_EXACT);
    assert_int_equal(beat.window_tokens, window_tokens);
    assert_int_equal(beat.tiers[KVB_LIST_WINDOW].blocks, 1);
    assert_int_equal(beat.tiers[KVB_TIER_DEVICE].blocks, 3);
    assert_int_equal(beat.shape_count, 1);
    assert_int_equal(beat.shapes[0].tier, KVB_TIER_DEVICE);
    assert_int_equal(beat.shapes[0].shape.block_size, 1);
    stream_world_end(&world);
}

/* Until a heartbeat says it, readers count blocks that the window makes unusable, or find none. */
static void a_new_window_or_shape_causes_a_heartbeat_at_once(void **state)
{
    (void)state;
    struct stream_world world;
    const uint64_t hash = 555;
    const uint32_t token = 8;

    begin_exact(&world, 3);
    add_window(&world, 901, true);
    give_live(&world, 3);
    assert_true(world.output.is_changed);
    add_window(&world, 902, true);
    give_live(&world, 4);
    assert_false(world.output.is_changed);
    add_stored(&world.batch, NULL, &hash, &token, 1);
    last_event(&world.batch)->lookahead = 1;
    last_event(&world.batch)->lookahead_at = last_event(&world.batch)->token_at;
    give_live(&world, 5);
    assert_state(&world, KVB_STREAM_EXACT, KVB_REASON_NONE);
    assert_true(world.output.is_changed);
    add_cleared(&world.batch);
    give_live(&world, 6);
    assert_true(world.output.is_changed); /* no shapes */
    stream_world_end(&world);
}

static void a_heartbeat_names_the_devices_first_shape(void **state)
{
    (void)state;
    struct stream_world world;
    const uint64_t hashes[] = { 555, 556 };
    const uint32_t tokens[] = { 8, 9 };

    begin_exact(&world, 0);
    assert_int_equal(beat_of(&world).block_size, 1); /* the configured shape */
    add_stored(&world.batch, NULL, hashes, tokens, 2);
    last_event(&world.batch)->hash_count = 1;
    last_event(&world.batch)->block_size = 2;
    last_event(&world.batch)->tier = KVB_TIER_HOST;
    give_live(&world, 0);
    assert_int_equal(beat_of(&world).block_size, 2);
    add_stored(&world.batch, NULL, hashes, tokens, 1);
    last_event(&world.batch)->lookahead = 1;
    last_event(&world.batch)->lookahead_at = last_event(&world.batch)->token_at;
    give_live(&world, 1);
    assert_int_equal(beat_of(&world).block_size, 1);
    assert_int_equal(beat_of(&world).lookahead, 1);
    assert_int_equal(beat_of(&world).shape_count, 2);
    stream_world_end(&world);
}

static void one_shape_too_many_is_skipped(void **state)
{
    (void)state;
    struct stream_world world;
    uint64_t hashes[16] = { 0 };
    const uint32_t tokens[16] = { 0 };

    begin_exact(&world, 1);
    for (uint32_t size = 2; size <= kvb_max_tier_shapes + 1; size++) {
        assert_state(&world, KVB_STREAM_EXACT, KVB_REASON_NONE);
        hashes[0] = 1000 + size;
        add_stored(&world.batch, NULL, hashes, tokens, size);
        last_event(&world.batch)->hash_count = 1;
        last_event(&world.batch)->block_size = size;
        give_live(&world, size - 1);
    }
    assert_state(&world, KVB_STREAM_PARTIAL, KVB_REASON_SKIPPED);
    assert_int_equal(world.held_count, kvb_max_tier_shapes);
    stream_world_end(&world);
}

/* One block of two tokens, below `parent`. */
static void add_double(struct stream_world *world, uint64_t parent, uint64_t hash)
{
    const uint32_t tokens[2] = { 8, 9 };
    const uint64_t hashes[2] = { hash };

    add_stored(&world->batch, &parent, hashes, tokens, 2);
    last_event(&world->batch)->hash_count = 1;
    last_event(&world->batch)->block_size = 2;
}

static void a_child_of_another_size_than_its_parent_is_found_by_no_query(void **state)
{
    (void)state;
    struct stream_world world;

    begin_exact(&world, 1);
    add_stored(&world.batch, NULL, &(uint64_t){ 700 }, &(uint32_t){ 7 }, 1);
    give_live(&world, 1);
    assert_state(&world, KVB_STREAM_EXACT, KVB_REASON_NONE);
    add_double(&world, 700, 701);
    give_live(&world, 2);
    assert_state(&world, KVB_STREAM_UNVERIFIED, KVB_REASON_GROUPS);
    stream_world_end(&world);
}

/* The same when the parent arrives last. */
static void a_child_of_another_size_is_not_named_after_its_parent(void **state)
{
    (void)state;
    struct stream_world world;

    begin_exact(&world, 1);
    add_double(&world, 700, 701);
    give_live(&world, 1);
    add_stored(&world.batch, NULL, &(uint64_t){ 700 }, &(uint32_t){ 7 }, 1);
    give_live(&world, 2);
    assert_int_equal(world.held_count, 2);
    assert_state(&world, KVB_STREAM_PARTIAL, KVB_REASON_UNROOTED);
    stream_world_end(&world);
}

/* More hashes for one content than one name may have entries. */
static void a_name_with_too_many_hashes_is_skipped(void **state)
{
    (void)state;
    struct stream_world world;

    begin_exact(&world, 1);
    for (uint64_t i = 0; i < 16; i++) {
        add_stored(&world.batch, NULL, &(uint64_t){ 700 + i }, &(uint32_t){ 7 }, 1);
    }
    give_live(&world, 1);
    assert_state(&world, KVB_STREAM_UNVERIFIED, KVB_REASON_AMBIGUOUS);
    assert_int_equal(kvb_stream_mirror_count(world.stream)->names_refused, 0);
    add_stored(&world.batch, NULL, &(uint64_t){ 800 }, &(uint32_t){ 7 }, 1);
    give_live(&world, 2);
    assert_int_equal(kvb_stream_mirror_count(world.stream)->names_refused, 1);
    assert_int_equal(world.held_count, 2);
    stream_world_end(&world);
}

static void an_unplaced_block_counts_as_missing(void **state)
{
    (void)state;
    struct stream_world world;

    begin_exact(&world, 1);
    add_window(&world, 777, true);
    give_live(&world, 1);
    assert_state(&world, KVB_STREAM_PARTIAL, KVB_REASON_UNROOTED);
    assert_int_equal(kvb_stream_mirror_count(world.stream)->unplaced, 1);
    add_removed(&world.batch, &(uint64_t){ 777 }, 1);
    last_event(&world.batch)->group = 1;
    give_live(&world, 2);
    assert_state(&world, KVB_STREAM_EXACT, KVB_REASON_NONE);
    stream_world_end(&world);
}

/* ---- Facts about the engine ---- */

static void add_paired(struct stream_world *world, uint64_t hash, bool is_paired)
{
    add_stored(&world->batch, NULL, &hash, &(uint32_t){ (uint32_t)hash }, 1);
    last_event(&world->batch)->is_paired = is_paired;
}

static void the_newest_tokens_say_whether_they_are_pairs(void **state)
{
    (void)state;
    struct stream_world world;

    begin_exact(&world, 3);
    assert_false(beat_of(&world).is_paired);
    add_paired(&world, 900, true);
    give_live(&world, 3);
    assert_true(beat_of(&world).is_paired && world.output.is_changed);
    add_cleared(&world.batch);
    give_live(&world, 4); /* this batch proves nothing: it is the same engine */
    assert_true(beat_of(&world).is_paired);
    add_paired(&world, 901, false);
    give_live(&world, 5);
    assert_true(!beat_of(&world).is_paired && world.output.is_changed);
    stream_world_end(&world);
}

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

/* vLLM 0.33 drops nothing with hashes that have lookahead. */
static void blocks_with_lookahead_are_not_dropped(void **state)
{
    (void)state;
    struct kvb_stream_options options = stream_world_options(true);
    struct kvb_stream *stream = NULL;
    struct kvb_heartbeat beat;
    struct stream_world world = { 0 };

    options.speculative_drop = 1;
    assert_ok(kvb_stream_new(&options, &stream));
    kvb_stream_heartbeat(stream, &beat);
    assert_int_equal(beat.speculative_drop, 1);
    world.stream = stream;
    give(&world, KVB_INPUT_UP);
    (void)start_wanted_replay(&world);
    give(&world, KVB_INPUT_REPLAY_END);
    add_stored(&world.batch, NULL, &(uint64_t){ 900 }, &(uint32_t){ 900 }, 1);
    last_event(&world.batch)->lookahead = 1;
    give_live(&world, 0);
    assert_int_equal(beat_of(&world).speculative_drop, 0);
    stream_world_end(&world);
}

/* What is configured comes first, then the first source that decides. */
static void the_first_source_that_decides_counts(void **state)
{
    (void)state;
    const enum kvb_speculation none = KVB_SPECULATION_UNKNOWN, keeps = KVB_SPECULATION_KEEPS,
                               drops = KVB_SPECULATION_DROPS, open = KVB_SPECULATION_UNDECIDED;
    const enum kvb_speculation_source config = KVB_SPECULATION_OF_CONFIG,
                                      server = KVB_SPECULATION_OF_SERVER_INFO,
                                      arguments = KVB_SPECULATION_OF_ARGUMENTS,
                                      page = KVB_SPECULATION_OF_PAGE;
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

static void another_incarnation_may_have_other_tokens(void **state)
{
    (void)state;
    struct stream_world world;

    begin_exact(&world, 3);
    add_paired(&world, 900, true);
    give_live(&world, 3);
    give(&world, KVB_INPUT_DOWN);
    give(&world, KVB_INPUT_UP);
    assert_int_equal(start_wanted_replay(&world), 2);
    replayed(&world, 2, second_incarnation, 50);
    assert_true(world.saw_cleared);
    assert_false(beat_of(&world).is_paired);
    stream_world_end(&world);
}

/* Also an object of another model: the other workers share the store all the same. */
static void an_object_of_a_pool_makes_the_stream_a_store_for_good(void **state)
{
    (void)state;
    struct stream_world world;

    begin_exact(&world, 3);
    assert_false(beat_of(&world).is_store);
    add_removed(&world.batch, &(uint64_t){ 5 }, 1);
    last_event(&world.batch)->key = 5;
    give_live(&world, 3);
    assert_true(beat_of(&world).is_store && world.output.is_changed);
    live(&world, 4, first_incarnation, 5);
    assert_true(beat_of(&world).is_store && !world.output.is_changed);
    stream_world_end(&world);
}

static void a_worker_configured_as_a_store_is_one(void **state)
{
    (void)state;
    struct kvb_stream_options options = stream_world_options(true);
    struct kvb_heartbeat beat;
    struct kvb_stream *stream = NULL;

    options.is_store = true;
    assert_ok(kvb_stream_new(&options, &stream));
    kvb_stream_heartbeat(stream, &beat);
    assert_true(beat.is_store);
    kvb_stream_free(stream);
}

/* ---- Copies ---- */

/* Prompt a-b is stored again after the list has lost b: a has not become a second copy. */
static void an_incomplete_list_takes_no_store_as_proof_of_a_copy(void **state)
{
    (void)state;
    struct stream_world world;
    const uint64_t hashes[] = { 555, 556 };
    const uint32_t tokens[] = { 8, 9 };

    stream_world_begin(&world, true);
    give(&world, KVB_INPUT_UP);
    (void)start_wanted_replay(&world);
    add_stored(&world.batch, NULL, hashes, tokens, 1);
    give_batch(&world, KVB_INPUT_REPLAY, 41, first_incarnation, false);
    end_replay(&world, first_incarnation);
    live(&world, 41, first_incarnation, 8);
    assert_state(&world, KVB_STREAM_PARTIAL, KVB_REASON_GONE);
    add_stored(&world.batch, NULL, hashes, tokens, 2);
    give_live(&world, 42);
    add_removed(&world.batch, hashes, 1);
    give_live(&world, 43);
    assert_false(router_holds(&world, name_of(tokens, 1)));
    stream_world_end(&world);
}

static void a_list_that_skipped_a_store_takes_no_store_as_proof_either(void **state)
{
    (void)state;
    struct stream_world world;
    const uint64_t hashes[] = { 555, 556 };
    const uint32_t tokens[] = { 8, 9 };

    for (int is_skipped = 0; is_skipped < 2; is_skipped++) {
        begin_exact(&world, 1);
        if (is_skipped) {
            add_skipped(&world.batch, KVB_SKIP_BAD_STORED);
        }
        add_stored(&world.batch, NULL, hashes, tokens, 1);
        add_stored(&world.batch, NULL, hashes, tokens, 2);
        add_removed(&world.batch, hashes, 1);
        give_live(&world, 1);
        assert_int_equal(router_holds(&world, name_of(tokens, 1)), !is_skipped);
        stream_world_end(&world);
    }
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
        cmocka_unit_test(a_group_of_no_known_kind_makes_the_stream_unverified_until_a_rebuild),
        cmocka_unit_test(a_heartbeat_contains_windows_and_shapes),
        cmocka_unit_test(a_new_window_or_shape_causes_a_heartbeat_at_once),
        cmocka_unit_test(a_heartbeat_names_the_devices_first_shape),
        cmocka_unit_test(one_shape_too_many_is_skipped),
        cmocka_unit_test(a_child_of_another_size_than_its_parent_is_found_by_no_query),
        cmocka_unit_test(a_child_of_another_size_is_not_named_after_its_parent),
        cmocka_unit_test(a_name_with_too_many_hashes_is_skipped),
        cmocka_unit_test(an_unplaced_block_counts_as_missing),
        cmocka_unit_test(the_newest_tokens_say_whether_they_are_pairs),
        cmocka_unit_test(another_incarnation_may_have_other_tokens),
        cmocka_unit_test(groups_drop_as_configured),
        cmocka_unit_test(blocks_with_lookahead_are_not_dropped),
        cmocka_unit_test(the_first_source_that_decides_counts),
        cmocka_unit_test(lookahead_decides_what_no_source_does),
        cmocka_unit_test(an_object_of_a_pool_makes_the_stream_a_store_for_good),
        cmocka_unit_test(a_worker_configured_as_a_store_is_one),
        cmocka_unit_test(an_incomplete_list_takes_no_store_as_proof_of_a_copy),
        cmocka_unit_test(a_list_that_skipped_a_store_takes_no_store_as_proof_either),
        cmocka_unit_test(a_repair_includes_the_window_list),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
