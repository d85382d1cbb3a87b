#include "kvb_test.h"

#include "batch_maker.h"
#include "checkpoint_bytes.h"
#include "core/clock.h"
#include "core/own.h"
#include "stream/page_watch.h"
#include "stream_world.h"

/* A stream, and its engine's metrics page, which is read once a second. */
struct scene {
    struct stream_world world;
    struct kvb_page_watch watch;
    struct kvb_load_sample page;
    uint64_t seq; /* sequence number of the next live batch */
};

static void begin(struct scene *scene)
{
    *scene = (struct scene){ .seq = 3 };
    begin_exact(&scene->world, 3);
    scene->page.signs.sleep = KVB_SLEEP_AWAKE;
}

static void end(struct scene *scene)
{
    stream_world_end(&scene->world);
}

static void give_live(struct scene *scene)
{
    give_batch(&scene->world, KVB_INPUT_LIVE, scene->seq++, first_incarnation, false);
}

/* The page is requested now and arrives 10 ms later. */
static unsigned read_page(struct scene *scene)
{
    const uint64_t asked_ns = scene->world.now_ns;
    const struct kvb_page_reading reading = { .sample = &scene->page,
                                              .asked_ns = asked_ns,
                                              .at_ns = asked_ns + 10 * KVB_NS_PER_MS };

    return kvb_page_watch_read(&scene->watch, scene->world.stream, &reading);
}

/* The probe of a quiet stream is answered with its newest batch. */
static void answer_probe(struct scene *scene)
{
    uint64_t from = 0;

    if (kvb_stream_wants_replay(scene->world.stream, scene->world.now_ns, &from)) {
        kvb_stream_replay_started(scene->world.stream, scene->world.now_ns);
        give_batch(&scene->world, KVB_INPUT_REPLAY, scene->seq - 1, first_incarnation, false);
        end_replay(&scene->world, first_incarnation);
    }
}

static void pass_second(struct scene *scene)
{
    pass_ms(&scene->world, 1000);
    answer_probe(scene);
}

static unsigned read_for(struct scene *scene, unsigned seconds)
{
    unsigned signs = 0;

    for (unsigned i = 0; i < seconds; i++) {
        signs |= read_page(scene);
        pass_second(scene);
    }
    return signs;
}

static unsigned read_sleep(struct scene *scene, enum kvb_engine_sleep sleep)
{
    scene->page.signs.sleep = sleep;
    const unsigned signs = read_page(scene);
    give(&scene->world, KVB_INPUT_TICK);
    return signs;
}

/* ---- Restarts ---- */

static bool is_probe_wanted(struct scene *scene)
{
    uint64_t from = 0;

    give(&scene->world, KVB_INPUT_TICK);
    return kvb_stream_wants_replay(scene->world.stream, scene->world.now_ns, &from);
}

static void only_a_process_that_began_later_is_another_one(void **state)
{
    (void)state;
    static const struct {
        double started_s;
        unsigned signs;
    } pages[] = { { 1000, 0 },
                  { 1000, 0 },
                  { 1000.9, 0 },
                  { 1010, KVB_SIGN_RESTART },
                  { 1000, 0 }, /* another process behind a load balancer */
                  { 1010, 0 },
                  { 0, 0 },
                  { 2000, KVB_SIGN_RESTART } };
    struct scene scene;

    begin(&scene);
    for (size_t i = 0; i < sizeof pages / sizeof pages[0]; i++) {
        scene.page.signs.started_s = pages[i].started_s;
        assert_int_equal(read_page(&scene), pages[i].signs);
        assert_int_equal(is_probe_wanted(&scene), pages[i].signs != 0);
        answer_probe(&scene);
        /* proven: nothing was lost */
        assert_state(&scene.world, KVB_STREAM_EXACT, KVB_REASON_NONE);
    }
    end(&scene);
}

/* Several processes answer in turn, or one after the other. */
static void counters_that_step_back_and_forth_are_one_restart(void **state)
{
    (void)state;
    static const unsigned seconds[] = { 2, 59 };
    struct scene scene;
    unsigned restarts = 0;

    begin(&scene);
    for (unsigned i = 0; i < 600; i++) {
        scene.page.signs.is_counter_reset = i % seconds[i / 300] == 0;
        restarts += read_page(&scene) == KVB_SIGN_RESTART;
        pass_second(&scene);
    }
    assert_int_equal(restarts, 1);
    scene.page.signs.is_counter_reset = false;
    assert_int_equal(read_for(&scene, 60), 0);
    scene.page.signs.is_counter_reset = true;
    assert_int_equal(read_page(&scene), KVB_SIGN_RESTART); /* they grew for a minute */
    end(&scene);
}

/* ---- Occupancy ---- */

enum { total = 64, slack = total / 8 + 8 };

static void begin_cache(struct scene *scene)
{
    begin(scene);
    kvb_load_sample_set(&scene->page, KVB_FIGURE_TOTAL_BLOCKS, total);
    kvb_load_sample_set(&scene->page, KVB_FIGURE_WAITING, 0);
    kvb_load_sample_set(&scene->page, KVB_FIGURE_USAGE, 0);
    kvb_load_sample_set(&scene->page, KVB_FIGURE_ACTIVE_BLOCKS, 0);
    scene->page.signs.counts_running = true;
    add_cleared(&scene->world.batch);
    give_live(scene);
}

static void store(struct scene *scene, uint32_t first, uint32_t count)
{
    for (uint32_t i = first; i < first + count; i++) {
        add_stored(&scene->world.batch, NULL, &(uint64_t){ 5000 + i }, &i, 1);
    }
    give_live(scene);
}

static void drop(struct scene *scene, uint32_t block)
{
    add_removed(&scene->world.batch, &(uint64_t){ 5000 + block }, 1);
    give_live(scene);
}

/* A full engine: an eviction precedes each reading. */
static void read_while_it_evicts(struct scene *scene, uint32_t from, unsigned readings)
{
    for (uint32_t i = from; i < from + readings; i++) {
        drop(scene, i);
        store(scene, 1000 + i, 1);
        assert_int_equal(read_page(scene), 0);
        pass_second(scene);
    }
}

static void more_blocks_than_fit_show_lost_removals(void **state)
{
    (void)state;
    struct scene scene;

    begin_cache(&scene);
    store(&scene, 0, total);
    read_while_it_evicts(&scene, 0, 3);
    store(&scene, 200, slack + 1);
    assert_int_equal(read_for(&scene, 6), 0);
    assert_state(&scene.world, KVB_STREAM_EXACT, KVB_REASON_NONE);
    assert_int_equal(read_for(&scene, 1), KVB_SIGN_OCCUPANCY);
    assert_state(&scene.world, KVB_STREAM_UNVERIFIED, KVB_REASON_OCCUPANCY);
    assert_int_equal(read_for(&scene, 5), 0); /* reported once */
    drop(&scene, 201);
    assert_int_equal(read_for(&scene, 20), 0);
    assert_state(&scene.world, KVB_STREAM_UNVERIFIED, KVB_REASON_OCCUPANCY); /* still unknown */
    add_cleared(&scene.world.batch);
    give_live(&scene);
    assert_state(&scene.world, KVB_STREAM_EXACT, KVB_REASON_NONE);
    end(&scene);
}

static void as_many_blocks_as_fit_are_no_evidence(void **state)
{
    (void)state;
    struct scene scene;

    begin_cache(&scene);
    store(&scene, 0, total);
    read_while_it_evicts(&scene, 0, 3);
    store(&scene, 200, slack);
    assert_int_equal(read_for(&scene, 30), 0);
    assert_state(&scene.world, KVB_STREAM_EXACT, KVB_REASON_NONE);
    end(&scene);
}

/* The cache was never full by this total, or nothing was evicted when it seemed full. */
static void a_total_that_was_never_confirmed_proves_nothing(void **state)
{
    (void)state;
    struct scene scene;

    begin_cache(&scene);
    store(&scene, 0, total);
    assert_int_equal(read_for(&scene, 5), 0);
    store(&scene, 200, 2 * total);
    assert_int_equal(read_for(&scene, 30), 0);
    assert_state(&scene.world, KVB_STREAM_EXACT, KVB_REASON_NONE);
    end(&scene);
}

static void a_total_of_the_rank_itself_needs_no_full_engine(void **state)
{
    (void)state;
    struct scene scene;

    begin_cache(&scene);
    scene.page.signs.is_total_sure = true;
    store(&scene, 0, total + slack);
    assert_int_equal(read_for(&scene, 10), 0);
    store(&scene, 200, 1);
    assert_int_equal(read_for(&scene, 7), KVB_SIGN_OCCUPANCY);
    end(&scene);
}

static void a_short_contradiction_is_no_evidence(void **state)
{
    (void)state;
    struct scene scene;

    begin_cache(&scene);
    store(&scene, 0, total);
    read_while_it_evicts(&scene, 0, 3);
    for (int i = 0; i < 4; i++) {
        store(&scene, 200, slack + 1);
        assert_int_equal(read_for(&scene, 5), 0);
        for (uint32_t block = 200; block < 200 + slack + 1; block++) {
            drop(&scene, block);
        }
        assert_int_equal(read_for(&scene, 1), 0);
    }
    end(&scene);
}

static void set_used(struct scene *scene, unsigned running, unsigned used)
{
    kvb_load_sample_set(&scene->page, KVB_FIGURE_ACTIVE_SLOTS, running);
    kvb_load_sample_set(&scene->page, KVB_FIGURE_ACTIVE_BLOCKS, used);
}

static void more_blocks_in_use_than_listed_show_lost_stores(void **state)
{
    (void)state;
    struct scene scene;

    begin_cache(&scene);
    store(&scene, 0, 5);
    /* twice the listed blocks, partial blocks at the ends of requests, and a margin */
    set_used(&scene, 2, 2 * 5 + 2 * 4 + slack);
    assert_int_equal(read_for(&scene, 30), 0);
    set_used(&scene, 2, 2 * 5 + 2 * 4 + slack + 1);
    assert_int_equal(read_for(&scene, 6), 0);
    assert_int_equal(read_for(&scene, 1), KVB_SIGN_OCCUPANCY);
    assert_state(&scene.world, KVB_STREAM_UNVERIFIED, KVB_REASON_OCCUPANCY);
    end(&scene);
}

/* A stock vLLM shows each of these while its list is correct. */
static void blocks_without_events_are_no_evidence(void **state)
{
    (void)state;

    for (int i = 0; i < 5; i++) {
        struct scene scene;
        begin_cache(&scene);
        set_used(&scene, 1, total);
        switch (i) {
        case 0: /* a transfer has yet to fill these blocks */
            kvb_load_sample_set(&scene.page, KVB_FIGURE_WAITING, 1);
            break;
        case 1: /* without prefix caching the engine publishes no events */
            scene.page.signs.is_prefix_caching_off = true;
            break;
        case 2: /* SGLang: tokens of a decode are cached when it ends */
            scene.page.signs.counts_running = false;
            break;
        case 3:
            set_used(&scene, 60, total); /* many short requests */
            break;
        default: /* idle, with a full cache */
            set_used(&scene, 0, 0);
            store(&scene, 0, total);
            break;
        }
        assert_int_equal(read_for(&scene, 30), 0);
        assert_state(&scene.world, KVB_STREAM_EXACT, KVB_REASON_NONE);
        end(&scene);
    }
}

static void set_cached(struct scene *scene, uint64_t used, uint64_t evictable)
{
    scene->page.signs.counts_running = false;
    scene->page.signs.has_occupancy = true;
    scene->page.signs.used_tokens = used;
    scene->page.signs.evictable_tokens = evictable;
}

static void sglangs_cache_must_be_as_large_as_the_list(void **state)
{
    (void)state;
    static const struct {
        uint64_t used, evictable;
        uint32_t listed;
        unsigned signs;
    } rows[] = { { 0, 40, 40, 0 },
                 { 24, 0, 40, 0 },                              /* a running request uses them */
                 { 0, 40 - slack - 1, 40, KVB_SIGN_OCCUPANCY }, /* a reset without an event */
                 { 0, 40 - slack, 40, 0 },
                 { 0, 10 + slack + 1, 10, KVB_SIGN_OCCUPANCY }, /* stores without an event */
                 { 0, 10 + slack, 10, 0 },
                 { 64, 0, 10, 0 } }; /* a long decode */

    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct scene scene;
        begin_cache(&scene);
        store(&scene, 0, rows[i].listed);
        set_cached(&scene, rows[i].used, rows[i].evictable);
        assert_int_equal(read_for(&scene, 45), 0); /* its gauges may be 30 s old */
        assert_int_equal(read_for(&scene, 1), rows[i].signs);
        end(&scene);
    }
}

static void another_incarnation_has_to_confirm_its_total_again(void **state)
{
    (void)state;
    struct scene scene;

    begin_cache(&scene);
    store(&scene, 0, total);
    read_while_it_evicts(&scene, 0, 3);
    assert_int_equal(scene.watch.full_readings, 3);
    give(&scene.world, KVB_INPUT_DOWN);
    give(&scene.world, KVB_INPUT_UP);
    (void)start_wanted_replay(&scene.world);
    give(&scene.world, KVB_INPUT_REPLAY_END);
    (void)read_page(&scene);
    assert_int_equal(scene.watch.full_readings, 0);
    end(&scene);
}

/* ---- Tiers ---- */

static void store_in(struct scene *scene, enum kvb_tier tier)
{
    add_stored(&scene->world.batch, NULL, &(uint64_t){ 6000 + tier }, &(uint32_t){ 60 + tier }, 1);
    last_event(&scene->world.batch)->tier = tier;
    give_live(scene);
}

static void remove_from(struct scene *scene, enum kvb_tier tier)
{
    add_removed(&scene->world.batch, &(uint64_t){ 6000 + tier }, 1);
    last_event(&scene->world.batch)->tier = tier;
    give_live(scene);
}

static struct kvb_stream_options options_of_tiers(enum kvb_offload_removals removals)
{
    struct kvb_stream_options options = stream_world_options(true);

    options.offload_removals = removals;
    options.mirror.tiers = (1U << KVB_LIST_COUNT) - 1;
    return options;
}

/* As begin(), with all tiers published. */
static void begin_tiers(struct scene *scene, enum kvb_offload_removals removals)
{
    const struct kvb_stream_options options = options_of_tiers(removals);

    *scene = (struct scene){ .seq = 1 };
    scene->world.now_ns = KVB_NS_PER_S;
    assert_ok(kvb_stream_new(&options, &scene->world.stream));
    give(&scene->world, KVB_INPUT_UP);
    assert_int_equal(start_wanted_replay(&scene->world), 0);
    replayed(&scene->world, 0, first_incarnation, 1);
    end_replay(&scene->world, first_incarnation);
    live(&scene->world, 0, first_incarnation, 1);
}

/* ---- Checkpoints ---- */

static void a_checkpoint_keeps_the_findings(void **state)
{
    (void)state;
    const struct kvb_stream_options options = options_of_tiers(KVB_OFFLOAD_DETECT);
    struct kvb_stream *restored = NULL;
    struct scene scene;

    begin_tiers(&scene, KVB_OFFLOAD_DETECT);
    remove_from(&scene, KVB_TIER_DISK);
    store_in(&scene, KVB_TIER_DISK);
    store_in(&scene, KVB_TIER_HOST);
    assert_true(kvb_stream_note_misfit(scene.world.stream));
    assert_true(kvb_stream_note_hidden_pools(scene.world.stream));
    assert_true(kvb_stream_note_resets(scene.world.stream, 1, scene.world.now_ns));
    scene.page.signs.speculation = KVB_SPECULATION_UNDECIDED;
    (void)read_sleep(&scene, KVB_SLEEP_DISCARDED);
    KVB_OWN(kvb_buf_done) struct kvb_buf bytes = { 0 };
    kvb_buf_init(&bytes, 1 << 20);
    save_whole(scene.world.stream, &bytes);
    end(&scene);

    bool needs_epoch = false;
    enum kvb_checkpoint_rejection cause;
    struct kvb_heartbeat beat;
    assert_ok(kvb_stream_new(&options, &restored));
    assert_ok(restore_from(restored, bytes.data, bytes.len, &needs_epoch, &cause));
    assert_true(kvb_stream_is_cache_discarded(restored));
    assert_false(kvb_stream_note_misfit(restored));
    assert_false(kvb_stream_note_hidden_pools(restored));
    assert_false(kvb_stream_note_resets(restored, 1, scene.world.now_ns)); /* not new */
    assert_int_equal(kvb_stream_speculation(restored).speculation, KVB_SPECULATION_UNDECIDED);
    kvb_stream_heartbeat(restored, &beat);
    assert_int_equal(beat.tier_reasons[KVB_TIER_DISK], KVB_REASON_NONE);
    assert_int_equal(beat.tier_reasons[KVB_TIER_HOST], KVB_REASON_NO_REMOVALS);
    kvb_stream_free(restored);
}

SUITE(page_watch)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(only_a_process_that_began_later_is_another_one),
        cmocka_unit_test(counters_that_step_back_and_forth_are_one_restart),
        cmocka_unit_test(more_blocks_than_fit_show_lost_removals),
        cmocka_unit_test(as_many_blocks_as_fit_are_no_evidence),
        cmocka_unit_test(a_total_that_was_never_confirmed_proves_nothing),
        cmocka_unit_test(a_total_of_the_rank_itself_needs_no_full_engine),
        cmocka_unit_test(a_short_contradiction_is_no_evidence),
        cmocka_unit_test(more_blocks_in_use_than_listed_show_lost_stores),
        cmocka_unit_test(blocks_without_events_are_no_evidence),
        cmocka_unit_test(sglangs_cache_must_be_as_large_as_the_list),
        cmocka_unit_test(another_incarnation_has_to_confirm_its_total_again),
        cmocka_unit_test(a_checkpoint_keeps_the_findings),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
