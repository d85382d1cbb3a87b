#include "kvb_test.h"

#include "core/clock.h"
#include "core/random.h"
#include "replica/readiness.h"

#include <string.h>

/* The group membership of an aggregator; the test sets the facts. */

enum { step_ms = 100 };

struct scene {
    struct kvb_readiness readiness;
    struct kvb_readiness_facts facts;
    enum kvb_group_result result; /* result of the action under way, for the next step */
    uint64_t now_ns;
};

static enum kvb_group_action step(struct scene *scene)
{
    const enum kvb_group_result result = scene->result;

    scene->result = KVB_GROUP_UNDECIDED;
    return kvb_readiness_step(&scene->readiness, &scene->facts, result, scene->now_ns);
}

/* Steps for this long, or until the first action, which it returns. */
static enum kvb_group_action pass(struct scene *scene, uint64_t ms)
{
    enum kvb_group_action action = step(scene);

    for (uint64_t passed = 0; action == KVB_GROUP_NOTHING && passed < ms; passed += step_ms) {
        scene->now_ns += step_ms * KVB_NS_PER_MS;
        action = step(scene);
    }
    return action;
}

static void connect(struct scene *scene)
{
    scene->facts.is_connected = true;
    scene->facts.is_subscribed = true;
}

static struct scene begin(double min_exact_share)
{
    return (struct scene){ .readiness = { .min_exact_share = min_exact_share },
                           .now_ns = KVB_NS_PER_S };
}

/* A member of the group; all its streams are EXACT. */
static struct scene begin_member(double min_exact_share, size_t streams)
{
    struct scene scene = begin(min_exact_share);

    connect(&scene);
    scene.facts.streams = scene.facts.exact = streams;
    assert_int_equal(pass(&scene, 5000), KVB_GROUP_JOIN);
    scene.result = KVB_GROUP_DONE;
    assert_int_equal(step(&scene), KVB_GROUP_NOTHING);
    assert_int_equal(scene.readiness.group, KVB_GROUP_MEMBER);
    return scene;
}

static void an_idle_fleet_is_joined_after_a_heartbeat_period(void **state)
{
    struct scene scene = begin(1.0);

    (void)state;
    assert_int_equal(pass(&scene, 60000), KVB_GROUP_NOTHING);
    assert_int_equal(scene.readiness.cause, KVB_UNREADY_NOT_CONNECTED);
    scene.facts.is_connected = true;
    assert_int_equal(pass(&scene, 60000), KVB_GROUP_NOTHING);
    assert_int_equal(scene.readiness.cause, KVB_UNREADY_NOT_SUBSCRIBED);
    scene.facts.is_subscribed = true;
    const uint64_t begin_ns = scene.now_ns;
    assert_int_equal(pass(&scene, kvb_readiness_heartbeats_ms - step_ms), KVB_GROUP_NOTHING);
    assert_int_equal(scene.readiness.cause, KVB_UNREADY_FIRST_HEARTBEATS);
    assert_int_equal(pass(&scene, (uint64_t)2 * step_ms), KVB_GROUP_JOIN);
    assert_true(scene.now_ns - begin_ns <= (kvb_readiness_heartbeats_ms + step_ms) * KVB_NS_PER_MS);
    assert_int_equal(scene.readiness.group, KVB_GROUP_JOINING);
    assert_int_equal(pass(&scene, 5000), KVB_GROUP_NOTHING); /* only once */
    scene.result = KVB_GROUP_DONE;
    assert_int_equal(pass(&scene, 5000), KVB_GROUP_NOTHING);
    assert_int_equal(scene.readiness.group, KVB_GROUP_MEMBER);
}

static void an_aggregator_that_starts_late_waits_for_its_first_lists(void **state)
{
    struct scene scene = begin(0.0);

    (void)state;
    connect(&scene);
    scene.facts.streams = 100;
    scene.facts.incomplete = 1;
    assert_int_equal(pass(&scene, kvb_readiness_heartbeats_ms + 3000), KVB_GROUP_NOTHING);
    assert_int_equal(scene.readiness.cause, KVB_UNREADY_FIRST_LISTS);
    scene.facts.incomplete = 0;
    assert_int_equal(step(&scene), KVB_GROUP_JOIN);
}

static void a_bridge_that_never_answers_keeps_nobody_out(void **state)
{
    struct scene scene = begin(0.0);
    const uint64_t begin_ns = scene.now_ns;

    (void)state;
    connect(&scene);
    scene.facts.streams = 2;
    scene.facts.incomplete = 1;
    assert_int_equal(pass(&scene, 60000), KVB_GROUP_JOIN);
    const uint64_t passed_ms = (scene.now_ns - begin_ns) / KVB_NS_PER_MS;
    assert_in_range(
        passed_ms, kvb_readiness_lists_ms + kvb_readiness_heartbeats_ms,
        kvb_readiness_lists_ms + kvb_readiness_heartbeats_ms + 5 * step_ms);
}

static void a_loss_before_the_first_lists_restarts_the_wait(void **state)
{
    struct scene scene = begin(0.0);

    (void)state;
    connect(&scene);
    assert_int_equal(
        pass(&scene, (uint64_t)kvb_readiness_heartbeats_ms - (uint64_t)2 * step_ms),
        KVB_GROUP_NOTHING);
    scene.facts.is_subscribed = false;
    assert_int_equal(pass(&scene, (uint64_t)10 * step_ms), KVB_GROUP_NOTHING);
    scene.facts.is_subscribed = true;
    assert_int_equal(
        pass(&scene, (uint64_t)kvb_readiness_heartbeats_ms - (uint64_t)2 * step_ms),
        KVB_GROUP_NOTHING);
    assert_int_equal(scene.readiness.cause, KVB_UNREADY_FIRST_HEARTBEATS);
}

/* Old lists are better than no member: all aggregators of that server have lost it. */
static void after_a_loss_an_aggregator_joins_as_soon_as_it_is_subscribed(void **state)
{
    struct scene scene = begin_member(0.0, 10);

    (void)state;
    scene.facts.is_connected = scene.facts.is_subscribed = false;
    assert_int_equal(step(&scene), KVB_GROUP_LEAVE);
    assert_int_equal(scene.readiness.group, KVB_GROUP_LEAVING);
    assert_int_equal(pass(&scene, 1000), KVB_GROUP_NOTHING); /* only once */
    scene.facts.is_connected = true;
    scene.result = KVB_GROUP_DONE;
    assert_int_equal(pass(&scene, 1000), KVB_GROUP_NOTHING);
    assert_int_equal(scene.readiness.group, KVB_GROUP_OUTSIDE);
    scene.facts.is_subscribed = true;
    scene.facts.exact = 0; /* all streams are STALE */
    scene.facts.incomplete = 10;
    assert_int_equal(step(&scene), KVB_GROUP_JOIN);
}

static void a_join_that_failed_is_repeated_after_a_second(void **state)
{
    struct scene scene = begin(0.0);

    (void)state;
    connect(&scene);
    assert_int_equal(pass(&scene, 5000), KVB_GROUP_JOIN);
    for (int i = 0; i < 3; i++) {
        const uint64_t failed_ns = scene.now_ns;
        scene.result = KVB_GROUP_FAILED;
        assert_int_equal(pass(&scene, 5000), KVB_GROUP_JOIN);
        assert_int_equal((scene.now_ns - failed_ns) / KVB_NS_PER_MS, kvb_readiness_retry_ms);
    }
    scene.result = KVB_GROUP_DONE;
    assert_int_equal(step(&scene), KVB_GROUP_NOTHING);
    assert_int_equal(scene.readiness.group, KVB_GROUP_MEMBER);
}

static void an_aggregator_with_too_small_a_share_does_not_join(void **state)
{
    struct scene scene = begin(0.9);

    (void)state;
    connect(&scene);
    scene.facts.streams = 10;
    scene.facts.exact = 8;
    assert_int_equal(pass(&scene, 60000), KVB_GROUP_NOTHING);
    assert_int_equal(scene.readiness.cause, KVB_UNREADY_SHARE);
    scene.facts.exact = 9;
    assert_int_equal(step(&scene), KVB_GROUP_JOIN);
}

/* If all of them left, no request would reach the engines and make them EXACT again. */
static void a_share_that_was_reached_is_not_asked_for_again(void **state)
{
    struct scene scene = begin_member(0.9, 10);

    (void)state;
    scene.facts.exact = 0;
    assert_int_equal(pass(&scene, 60000), KVB_GROUP_NOTHING);
    assert_int_equal(scene.readiness.group, KVB_GROUP_MEMBER);
    scene.facts.is_connected = scene.facts.is_subscribed = false;
    assert_int_equal(step(&scene), KVB_GROUP_LEAVE);
    scene.result = KVB_GROUP_DONE;
    assert_int_equal(pass(&scene, 1000), KVB_GROUP_NOTHING);
    connect(&scene);
    assert_int_equal(step(&scene), KVB_GROUP_JOIN);
}

/* An aggregator that starts before its engines has no streams, and is ready; then they come. */
static void a_fleet_that_starts_after_its_aggregator_takes_it_nothing(void **state)
{
    struct scene scene = begin_member(0.95, 0);

    (void)state;
    for (size_t i = 0; i < 12; i++) {
        scene.facts.streams++;
        assert_int_equal(pass(&scene, 5000), KVB_GROUP_NOTHING);
        assert_int_equal(scene.readiness.group, KVB_GROUP_MEMBER);
    }
}

static void a_stopping_aggregator_leaves_and_does_not_join_again(void **state)
{
    struct scene scene = begin_member(0.0, 1);

    (void)state;
    scene.facts.is_stopping = true;
    assert_int_equal(step(&scene), KVB_GROUP_LEAVE);
    assert_int_equal(scene.readiness.cause, KVB_UNREADY_STOPPING);
    scene.result = KVB_GROUP_DONE;
    assert_int_equal(pass(&scene, 60000), KVB_GROUP_NOTHING);
    assert_int_equal(scene.readiness.group, KVB_GROUP_OUTSIDE);
}

static void an_aggregator_that_stops_while_it_joins_leaves_afterwards(void **state)
{
    struct scene scene = begin(0.0);

    (void)state;
    connect(&scene);
    assert_int_equal(pass(&scene, 5000), KVB_GROUP_JOIN);
    scene.facts.is_stopping = true;
    assert_int_equal(pass(&scene, 5000), KVB_GROUP_NOTHING); /* the action is under way */
    scene.result = KVB_GROUP_DONE;
    assert_int_equal(step(&scene), KVB_GROUP_LEAVE);
}

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
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_idle_fleet_is_joined_after_a_heartbeat_period),
        cmocka_unit_test(an_aggregator_that_starts_late_waits_for_its_first_lists),
        cmocka_unit_test(a_bridge_that_never_answers_keeps_nobody_out),
        cmocka_unit_test(a_loss_before_the_first_lists_restarts_the_wait),
        cmocka_unit_test(after_a_loss_an_aggregator_joins_as_soon_as_it_is_subscribed),
        cmocka_unit_test(a_join_that_failed_is_repeated_after_a_second),
        cmocka_unit_test(an_aggregator_with_too_small_a_share_does_not_join),
        cmocka_unit_test(a_share_that_was_reached_is_not_asked_for_again),
        cmocka_unit_test(a_fleet_that_starts_after_its_aggregator_takes_it_nothing),
        cmocka_unit_test(a_stopping_aggregator_leaves_and_does_not_join_again),
        cmocka_unit_test(an_aggregator_that_stops_while_it_joins_leaves_afterwards),
        cmocka_unit_test(random_facts_never_break_the_order),
        cmocka_unit_test(each_cause_has_a_text),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
