#include "kvb_test.h"

#include "core/clock.h"
#include "stream/page_watch.h"
#include "stream_script.h"
#include "stream_world.h"

/* What an engine's metrics page, which is read once a second, shows of its stream. */

static unsigned read_page(
    struct kvb_page_watch *watch, const struct stream_world *world,
    const struct kvb_load_sample *page)
{
    const struct kvb_page_reading reading = { .sample = page,
                                              .asked_ns = world->now_ns,
                                              .at_ns = world->now_ns };

    return kvb_page_watch_read(watch, world->stream, &reading);
}

/* Several processes answer in turn, or one after the other. */
static void counters_that_step_back_and_forth_are_one_restart(void **state)
{
    (void)state;
    static const unsigned seconds[] = { 2, 59 };
    struct kvb_load_sample page = { .signs = { .is_counter_reset = false } };
    struct kvb_page_watch watch = { 0 };
    struct stream_world world;
    unsigned restarts = 0;

    begin_exact(&world, 3);
    for (unsigned i = 0; i <= 720; i++) {
        page.signs.is_counter_reset = i == 720 || (i < 600 && i % seconds[i / 300] == 0);
        restarts += read_page(&watch, &world, &page) == KVB_SIGN_RESTART;
        assert_int_equal(restarts, i < 720 ? 1 : 2); /* they grew for a minute */
        pass_ms(&world, 1000);
    }
    stream_world_end(&world);
}

static void another_incarnation_has_to_confirm_its_total_again(void **state)
{
    (void)state;
    const struct kvb_load_sample page = { .signs = { .is_counter_reset = false } };
    struct kvb_page_watch watch = { .full_readings = 3 };
    struct stream_world world;

    begin_exact(&world, 3);
    assert_int_equal(read_page(&watch, &world, &page), 0);
    assert_int_equal(watch.full_readings, 3);
    give(&world, KVB_INPUT_DOWN);
    give(&world, KVB_INPUT_UP);
    (void)start_wanted_replay(&world);
    give(&world, KVB_INPUT_REPLAY_END);
    assert_int_equal(read_page(&watch, &world, &page), 0);
    assert_int_equal(watch.full_readings, 0);
    stream_world_end(&world);
}

SUITE(page_watch)
{
    const struct CMUnitTest tests[] = {
        SCRIPT(
            "only a process that began later is another one",
            "exact 3, page started 1000, signs none, page started 1000, signs none,"
            "page started 1001, signs none, no-ask, page started 1010, signs restart, need probe,"
            "answer, EXACT,"
            /* another process behind a load balancer */
            "page started 1000, signs none, page started 1010, signs none, page started 0,"
            "signs none, no-ask, page started 2000, signs restart"),
        cmocka_unit_test(counters_that_step_back_and_forth_are_one_restart),
        cmocka_unit_test(another_incarnation_has_to_confirm_its_total_again),

        /* ---- Occupancy: 64 blocks, and a margin of 16 ---- */

        /* It is full when an eviction precedes each reading. */
        SCRIPT(
            "more blocks than fit show lost removals",
            "exact 3, shows total 64 waiting 0 used 0 counts-running yes, clear 3,"
            "next stored 1 64, next removed 64 ; stored 101, watch 1,"
            "next removed 63 ; stored 102, watch 1, next removed 62 ; stored 103, watch 1,"
            "next stored 200 17, watch 6, EXACT, watch 1 occupancy, UNVERIFIED(occupancy),"
            /* reported once */
            "watch 5, next removed 216, watch 20,"
            /* still unknown */
            "UNVERIFIED(occupancy), next cleared, EXACT"),
        SCRIPT(
            "as many blocks as fit are no evidence",
            "exact 3, shows total 64 waiting 0 used 0 counts-running yes, clear 3,"
            "next stored 1 64, next removed 64 ; stored 101, watch 1,"
            "next removed 63 ; stored 102, watch 1, next removed 62 ; stored 103, watch 1,"
            "next stored 200 16, watch 30, EXACT"),
        SCRIPT(
            "a total that was never confirmed by evictions proves nothing",
            "exact 3, shows total 64 waiting 0 used 0 counts-running yes, clear 3,"
            "next stored 1 64, watch 5, next stored 200 128, watch 30, EXACT"),
        SCRIPT(
            "a total of the rank itself needs no full engine",
            "exact 3, shows total 64 waiting 0 used 0 counts-running yes, clear 3, shows sure yes,"
            "next stored 1 80, watch 10, next stored 200, watch 7 occupancy"),
        SCRIPT(
            "a short contradiction is no evidence",
            "exact 3, shows total 64 waiting 0 used 0 counts-running yes, clear 3,"
            "next stored 1 64, next removed 64 ; stored 101, watch 1,"
            "next removed 63 ; stored 102, watch 1, next removed 62 ; stored 103, watch 1,"
            "next stored 200 17, watch 5, next removed 216, watch 1, next stored 216 parent 215,"
            "watch 5, next removed 216, watch 1, next stored 216 parent 215, watch 5, EXACT"),
        SCRIPT(
            "a contradiction is not reported again by another process",
            "exact 3, shows total 64 waiting 0 used 0 counts-running yes, clear 3, shows sure yes,"
            "next stored 1 81, watch 7 occupancy, restart, up, watch 20"),
        /* Twice the listed blocks, partial blocks at the ends of requests, and the margin. */
        SCRIPT(
            "more blocks in use than listed show lost stores",
            "exact 3, shows total 64 waiting 0 used 0 counts-running yes, clear 3,"
            "next stored 1 5, shows running 2 used 34, watch 30, shows used 35, watch 6,"
            "watch 1 occupancy, UNVERIFIED(occupancy)"),

        /* ---- A stock vLLM shows each of these while its list is correct ---- */

        SCRIPT(
            "a transfer has yet to fill blocks in use",
            "exact 3, shows total 64 waiting 0 used 0 counts-running yes, clear 3,"
            "shows running 1 used 64 waiting 1, watch 30, EXACT"),
        SCRIPT(
            "without prefix caching there are no events",
            "exact 3, shows total 64 waiting 0 used 0 counts-running yes, clear 3,"
            "shows running 1 used 64 caching no, watch 30, EXACT"),
        /* SGLang: tokens of a decode are cached when it ends. */
        SCRIPT(
            "requests that are not counted prove nothing",
            "exact 3, shows total 64 waiting 0 used 0 counts-running yes, clear 3,"
            "shows running 1 used 64 counts-running no, watch 30, EXACT"),
        SCRIPT(
            "many short requests have no whole blocks",
            "exact 3, shows total 64 waiting 0 used 0 counts-running yes, clear 3,"
            "shows running 60 used 64, watch 30, EXACT"),
        SCRIPT(
            "an idle engine has a full cache",
            "exact 3, shows total 64 waiting 0 used 0 counts-running yes, clear 3,"
            "shows running 0 used 0, next stored 1 64, watch 30, EXACT"),

        /* ---- SGLang's cache must be as large as the list; its gauges may be 30 s old ---- */

        SCRIPT(
            "as many tokens are evictable",
            "exact 3, shows total 64 waiting 0 used 0 counts-running yes, clear 3,"
            "shows locked 0 evictable 40 counts-running no, next stored 1 40, watch 46"),
        SCRIPT(
            "a running request uses them",
            "exact 3, shows total 64 waiting 0 used 0 counts-running yes, clear 3,"
            "shows locked 24 evictable 0 counts-running no, next stored 1 40, watch 46"),
        SCRIPT(
            "fewer show a reset without an event",
            "exact 3, shows total 64 waiting 0 used 0 counts-running yes, clear 3,"
            "shows locked 0 evictable 23 counts-running no, next stored 1 40, watch 45,"
            "watch 1 occupancy"),
        SCRIPT(
            "fewer by the margin prove nothing",
            "exact 3, shows total 64 waiting 0 used 0 counts-running yes, clear 3,"
            "shows locked 0 evictable 24 counts-running no, next stored 1 40, watch 46"),
        SCRIPT(
            "more show stores without an event",
            "exact 3, shows total 64 waiting 0 used 0 counts-running yes, clear 3,"
            "shows locked 0 evictable 27 counts-running no, next stored 1 10, watch 45,"
            "watch 1 occupancy"),
        SCRIPT(
            "more by the margin prove nothing",
            "exact 3, shows total 64 waiting 0 used 0 counts-running yes, clear 3,"
            "shows locked 0 evictable 26 counts-running no, next stored 1 10, watch 46"),
        SCRIPT(
            "a long decode is in use",
            "exact 3, shows total 64 waiting 0 used 0 counts-running yes, clear 3,"
            "shows locked 64 evictable 0 counts-running no, next stored 1 10, watch 46"),

        /* ---- Checkpoints ---- */

        SCRIPT(
            "a checkpoint keeps the findings",
            "begin removals detect, up, ask, reply 0, confirm, live 0, batch 1 removed 60 disk,"
            "batch 2 stored 60 disk, batch 3 stored 61 host, tier host no_removals,"
            "page resets 1 hidden yes sleep discarded speculation undecided, discarded, restart,"
            "discarded, tier disk fine, tier host no_removals, page, signs asleep"),
        SCRIPT(
            "and the drafts of an unknown method",
            "exact 5, page speculation undecided, restart, up, ask 3, reply 3-4, confirm, live 5,"
            "UNVERIFIED(speculation)"),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
