#include "kvb_test.h"

#include "core/clock.h"
#include "core/own.h"
#include "core/random.h"
#include "replica/readiness.h"
#include "stream/script.h"

#include <string.h>

/* The group membership of an aggregator, as scripts: what it learns, and what must hold then.
 *
 *     begin SHARE        an aggregator that needs this percentage of exact streams
 *     joined SHARE N     the same, and it is a member; its N streams are exact
 *     connect (only), subscribe (too), away, stop; streams N, exact N, incomplete N
 *     done, failed       the action under way
 *     idle MS            no action within so many ms
 *     joins MIN MAX      the next action, after so many ms
 *     leaves             the next action, at once
 *     outside, joining, member, leaving; the cause why it is not ready */

enum { step_ms = 100 };

struct scene {
    struct kvb_readiness readiness;
    struct kvb_readiness_facts facts;
    enum kvb_group_result result; /* result of the action under way, for the next step */
    uint64_t now_ns;
};

static struct scene play;

static enum kvb_group_action step(struct scene *scene)
{
    const enum kvb_group_result result = scene->result;

    scene->result = KVB_GROUP_UNDECIDED;
    return kvb_readiness_step(&scene->readiness, &scene->facts, result, scene->now_ns);
}

/* Steps for this long, or until the first action, which it returns. */
static enum kvb_group_action pass(uint64_t ms)
{
    enum kvb_group_action action = step(&play);

    for (uint64_t passed = 0; action == KVB_GROUP_NOTHING && passed < ms; passed += step_ms) {
        play.now_ns += step_ms * KVB_NS_PER_MS;
        action = step(&play);
    }
    return action;
}

static struct scene begin(double min_exact_share)
{
    return (struct scene){ .readiness = { .min_exact_share = min_exact_share },
                           .now_ns = KVB_NS_PER_S };
}

static void do_begin(void)
{
    play = begin((double)script_number(1) / 100);
}

static void do_joined(void)
{
    do_begin();
    play.facts.is_connected = play.facts.is_subscribed = true;
    play.facts.streams = play.facts.exact = script_number(2);
    assert_int_equal(pass(5000), KVB_GROUP_JOIN);
    play.result = KVB_GROUP_DONE;
    assert_int_equal(step(&play), KVB_GROUP_NOTHING);
}

static void do_connection(void)
{
    const bool is_away = script_says(0, "away");

    play.facts.is_connected = !is_away;
    play.facts.is_subscribed = script_says(0, "subscribe");
}

static void do_stop(void)
{
    play.facts.is_stopping = true;
}

static void do_streams(void)
{
    size_t *facts[] = { &play.facts.streams, &play.facts.exact, &play.facts.incomplete };
    static const char *const names[] = { "streams", "exact", "incomplete" };

    *facts[script_index(0, names, KVB_COUNT_OF(names))] = script_number(1);
}

static void do_result(void)
{
    play.result = script_says(0, "done") ? KVB_GROUP_DONE : KVB_GROUP_FAILED;
}

static void do_idle(void)
{
    assert_int_equal(pass(script_number(1)), KVB_GROUP_NOTHING);
}

static void do_joins(void)
{
    const uint64_t begin_ns = play.now_ns;

    assert_int_equal(pass(script_number(2)), KVB_GROUP_JOIN);
    assert_in_range((play.now_ns - begin_ns) / KVB_NS_PER_MS, script_number(1), script_number(2));
}

static void do_leaves(void)
{
    assert_int_equal(step(&play), KVB_GROUP_LEAVE);
}

static void do_check(void)
{
    static const char *const states[] = { "outside", "joining", "member", "leaving" };
    static const char *const causes[] = { "ready",          "stopping",    "not-connected",
                                          "not-subscribed", "first-beats", "first-lists",
                                          "share" };

    for (size_t i = 0; i < KVB_COUNT_OF(states); i++) {
        if (script_says(0, states[i])) {
            assert_int_equal(play.readiness.group, i);
            return;
        }
    }
    assert_int_equal(play.readiness.cause, script_index(0, causes, KVB_COUNT_OF(causes)));
}

static void play_readiness_script(void **state)
{
    /* clang-format off */
    static const struct script_verb verbs[] = {
        { "begin", do_begin },        { "joined", do_joined },
        { "connect", do_connection }, { "subscribe", do_connection },
        { "away", do_connection },    { "stop", do_stop },
        { "streams", do_streams },    { "exact", do_streams },        { "incomplete", do_streams },
        { "done", do_result },        { "failed", do_result },
        { "idle", do_idle },          { "joins", do_joins },          { "leaves", do_leaves },
    };
    /* clang-format on */

    script_play(*state, verbs, KVB_COUNT_OF(verbs), do_check);
}

static int end_readiness_script(void **state)
{
    (void)state;
    script_tell_failure();
    return 0;
}

#define SCRIPT(name, text) SCRIPT_OF(name, play_readiness_script, end_readiness_script, text)

/* Whatever happens: one action at a time; JOIN only for a non-member, LEAVE only for a member; and
 * a member that is not ready leaves. */
static void random_facts_never_break_the_order(void **state)
{
    struct scene scene = begin(0.5);
    uint64_t random = 7;
    bool is_inside = false;
    enum kvb_group_action under_way = KVB_GROUP_NOTHING;

    (void)state;
    for (int i = 0; i < 200000; i++) {
        scene.now_ns += kvb_random_below(&random, 200) * KVB_NS_PER_MS;
        scene.facts =
            (struct kvb_readiness_facts){ .is_connected = kvb_random_below(&random, 50) != 0,
                                          .is_subscribed = kvb_random_below(&random, 50) != 0,
                                          .streams = 10,
                                          .exact = kvb_random_below(&random, 20) != 0 ? 10 : 4,
                                          .incomplete = kvb_random_below(&random, 3) == 0 };
        if (under_way != KVB_GROUP_NOTHING && kvb_random_below(&random, 3) == 0) {
            scene.result = under_way == KVB_GROUP_JOIN && kvb_random_below(&random, 4) == 0
                               ? KVB_GROUP_FAILED
                               : KVB_GROUP_DONE;
            is_inside = under_way == KVB_GROUP_JOIN && scene.result == KVB_GROUP_DONE;
            under_way = KVB_GROUP_NOTHING;
        }
        const enum kvb_group_action action = step(&scene);
        if (action != KVB_GROUP_NOTHING) {
            assert_int_equal(under_way, KVB_GROUP_NOTHING);
            assert_int_equal(action, is_inside ? KVB_GROUP_LEAVE : KVB_GROUP_JOIN);
            assert_int_equal(scene.readiness.cause == KVB_READY, action == KVB_GROUP_JOIN);
            under_way = action;
        } else if (under_way == KVB_GROUP_NOTHING && is_inside) {
            assert_int_equal(scene.readiness.cause, KVB_READY);
        }
    }
}

static void each_cause_has_a_text(void **state)
{
    (void)state;
    assert_string_equal(kvb_readiness_cause_text(KVB_READY), "");
    for (unsigned i = KVB_READY + 1; i < KVB_READINESS_CAUSE_COUNT; i++) {
        assert_true(strlen(kvb_readiness_cause_text((enum kvb_readiness_cause)i)) > 0);
    }
}

SUITE(readiness)
{
    const struct CMUnitTest tests[] = {
        SCRIPT(
            "an idle fleet is joined after a heartbeat period",
            "begin 100, idle 60000, not-connected, connect, idle 60000, not-subscribed, subscribe,"
            "idle 1100, first-beats, joins 0 200, joining, idle 5000, done, idle 5000, member"),
        SCRIPT(
            "an aggregator that starts late waits for its first lists",
            "begin 0, subscribe, streams 100, incomplete 1, idle 4200, first-lists, incomplete 0,"
            "joins 0 0"),
        SCRIPT(
            "a bridge that never answers keeps nobody out",
            "begin 0, subscribe, streams 2, incomplete 1, joins 11200 11700"),
        SCRIPT(
            "a loss before the first lists restarts the wait",
            "begin 0, subscribe, idle 1000, connect, idle 1000, subscribe, idle 1000, first-beats"),
        /* Old lists are better than no member: all aggregators of that server have lost it. */
        SCRIPT(
            "after a loss an aggregator joins as soon as it is subscribed",
            "joined 0 10, away, leaves, leaving, idle 1000, connect, done, idle 1000, outside,"
            "subscribe, exact 0, incomplete 10, joins 0 0"),
        SCRIPT(
            "a join that failed is repeated after a second",
            "begin 0, subscribe, joins 0 5000, failed, joins 1000 1000, failed, joins 1000 1000,"
            "done, idle 0, member"),
        SCRIPT(
            "an aggregator with too small a share does not join",
            "begin 90, subscribe, streams 10, exact 8, idle 60000, share, exact 9, joins 0 0"),
        /* If all of them left, no request would reach the engines and make them EXACT again. */
        SCRIPT(
            "a share that was reached is not asked for again",
            "joined 90 10, exact 0, idle 60000, member, away, leaves, done, idle 1000, subscribe,"
            "joins 0 0"),
        /* An aggregator that starts before its engines has no streams, and is ready; then they
         * come. */
        SCRIPT(
            "a fleet that starts after its aggregator takes it nothing",
            "joined 95 0, streams 1, idle 5000, streams 2, idle 5000, streams 12, idle 5000,"
            "member"),
        SCRIPT(
            "a stopping aggregator leaves and does not join again",
            "joined 0 1, stop, leaves, stopping, done, idle 60000, outside"),
        /* The action is under way. */
        SCRIPT(
            "an aggregator that stops while it joins leaves afterwards",
            "begin 0, subscribe, joins 0 5000, stop, idle 5000, done, leaves"),
        cmocka_unit_test(random_facts_never_break_the_order),
        cmocka_unit_test(each_cause_has_a_text),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
