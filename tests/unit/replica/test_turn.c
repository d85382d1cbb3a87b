#include "kvb_test.h"

#include "replica/follower_scene.h"
#include "replica/turn.h"

#include <string.h>

/* The world of an aggregator's turn. The test sets clock, connection and messages. */
struct world {
    struct scene scene;
    struct kvb_replica_turn turn;
    uint64_t message_ns; /* time that one message takes */
    bool is_connected;
    uint64_t connects;
    bool is_silent;             /* echoes do not come back */
    bool refuses_echoes;        /* they cannot be sent */
    uint64_t echo, echoes_sent; /* the newest that came back; how many were sent */
    bool is_unread;             /* messages before that echo are not applied yet */
    uint64_t dropped;
    size_t messages; /* number that wait */
    uint64_t lag_ns;
    size_t requests;
    char log[64]; /* one letter for each action */
};

static void note(struct world *world, char letter)
{
    const size_t len = strlen(world->log);

    if (len + 1 < sizeof world->log) {
        world->log[len] = letter;
    }
}

static struct kvb_replica_facts facts_of(const struct world *world)
{
    return (struct kvb_replica_facts){ .now_ns = world->scene.now_ns,
                                       .is_connected = world->is_connected,
                                       .connects = world->connects,
                                       .echo_returned = world->echo,
                                       .echo_applied = world->is_unread ? 0 : world->echo,
                                       .lag_ns = world->lag_ns,
                                       .dropped = world->dropped };
}

static void send_echo(
    struct world *world, const struct kvb_replica_action *action,
    const struct kvb_replica_facts *facts)
{
    if (world->refuses_echoes) {
        return;
    }
    world->echoes_sent++;
    world->echo = world->is_silent ? world->echo : action->number;
    kvb_replica_echo_sent(&world->turn, action->number, facts);
}

static void apply_messages(struct world *world, uint64_t until_ns)
{
    do { /* as the daemon does */
        if (world->messages == 0) {
            return;
        }
        world->messages--;
        world->scene.now_ns += world->message_ns;
        note(world, 'm');
    } while (world->scene.now_ns < until_ns);
}

static void take_turn(struct world *world)
{
    struct kvb_replica_action action;
    struct kvb_replica_facts facts = facts_of(world);

    while (kvb_replica_next(&world->turn, &facts, &action)) {
        switch (action.kind) {
        case KVB_REPLICA_SEND_ECHO:
            send_echo(world, &action, &facts);
            break;
        case KVB_REPLICA_APPLY_MESSAGES:
            apply_messages(world, action.until_ns);
            break;
        case KVB_REPLICA_ANSWER_QUERIES:
            note(world, 'q');
            break;
        case KVB_REPLICA_SEND_REQUEST:
            world->requests++;
            note(world, 'r');
            break;
        case KVB_REPLICA_TICK:
            note(world, 't');
            break;
        }
        facts = facts_of(world);
    }
}

/* A connected aggregator with a stream that is EXACT, after a first turn. */
static void begin_world(struct world *world)
{
    *world = (struct world){ .is_connected = true, .connects = 1 };
    world->scene = begin_requests();
    world->turn = (struct kvb_replica_turn){ .followers = world->scene.followers };
    take_turn(world);
    make_exact(&world->scene, 1);
    memset(world->log, 0, sizeof world->log);
}

static void turn_after(struct world *world, uint64_t ns)
{
    world->scene.now_ns += ns;
    take_turn(world);
}

/* ---- Order ---- */

static void queries_wait_for_few_messages_however_many_there_are(void **state)
{
    (void)state;
    struct world world;
    begin_world(&world);

    world.messages = 10;
    world.message_ns = KVB_NS_PER_MS / 10; /* 2 of them take 0.2 ms */
    turn_after(&world, 0);
    assert_int_equal(world.messages, 8);
    assert_string_equal(world.log, "mmq");
    end(&world.scene);
}

/* ---- NATS ---- */

static void a_connection_replaced_between_two_turns_counts_as_a_loss(void **state)
{
    (void)state;
    struct world world;
    begin_world(&world);

    world.connects++;
    turn_after(&world, 0);
    assert_state(&world.scene, KVB_STREAM_STALE, KVB_REASON_NATS_AWAY);
    beat(&world.scene, 1, first_id + 1, 1);
    assert_state(&world.scene, KVB_STREAM_EXACT, KVB_REASON_NONE);
    turn_after(&world, 0); /* the loss is not counted again */
    assert_state(&world.scene, KVB_STREAM_EXACT, KVB_REASON_NONE);
    end(&world.scene);
}

static void a_server_that_delivers_nothing_is_away_after_one_and_a_half_seconds(void **state)
{
    (void)state;
    struct world world;
    begin_world(&world);

    world.is_silent = true;
    turn_after(&world, S / 2); /* the first echo that is lost */
    for (int i = 0; i < 14; i++) {
        turn_after(&world, S / 10);
        assert_state(&world.scene, KVB_STREAM_EXACT, KVB_REASON_NONE);
    }
    turn_after(&world, S / 10);
    assert_state(&world.scene, KVB_STREAM_STALE, KVB_REASON_NATS_AWAY);
    turn_after(&world, S / 10);
    assert_int_equal(world.turn.echo_silences, 1);
    world.is_silent = false;
    turn_after(&world, S / 2); /* one that comes back is enough */
    turn_after(&world, 0);
    assert_true(world.turn.was_connected);
    end(&world.scene);
}

static void echoes_of_a_lost_connection_are_not_awaited(void **state)
{
    (void)state;
    struct world world;
    begin_world(&world);

    world.is_silent = true;
    turn_after(&world, S / 2); /* an echo that is lost with its connection */
    turn_after(&world, 14 * S / 10);
    world.connects++;
    turn_after(&world, 0);
    turn_after(&world, S / 5); /* the echo of the new connection is under way */
    assert_true(world.turn.was_connected);
    assert_int_equal(world.turn.echo_silences, 0);
    end(&world.scene);
}

static void an_echo_that_cannot_be_sent_is_not_awaited_and_tried_again(void **state)
{
    (void)state;
    struct world world;
    begin_world(&world);
    const uint64_t before = world.echoes_sent;

    world.refuses_echoes = true;
    for (int i = 0; i < 40; i++) { /* 4 s */
        turn_after(&world, S / 10);
    }
    assert_true(world.turn.was_connected);
    assert_int_equal(world.echoes_sent, before);
    world.refuses_echoes = false;
    turn_after(&world, S / 2);
    assert_int_equal(world.echoes_sent, before + 1);
    end(&world.scene);
}

/* ---- Between two turns ---- */

static bool is_current_after(struct world *world, uint64_t ns)
{
    world->scene.now_ns += ns;
    const struct kvb_replica_facts facts = facts_of(world);
    return kvb_replica_turn_is_current(&world->turn, &facts);
}

static void a_turn_is_current_until_its_tick_is_a_period_late(void **state)
{
    (void)state;
    struct world world;
    begin_world(&world);

    turn_after(&world, S);
    assert_true(is_current_after(&world, 0));
    assert_true(is_current_after(&world, S / 5 - 1));
    assert_false(
        is_current_after(&world, 1)); /* the thread was asleep: anything may have happened */
    turn_after(&world, 0);
    assert_true(is_current_after(&world, 0));
    end(&world.scene);
}

static void a_turn_is_not_current_when_the_connection_has_changed(void **state)
{
    (void)state;
    struct world world;
    begin_world(&world);

    world.is_connected = false;
    assert_false(is_current_after(&world, 0));
    turn_after(&world, 0);
    assert_false(is_current_after(&world, 0));
    world.is_connected = true;
    assert_false(is_current_after(&world, 0));
    turn_after(&world, 0);
    assert_true(is_current_after(&world, 0));
    world.connects++;
    assert_false(is_current_after(&world, 0));
    end(&world.scene);
}

/* ---- Lag and drops ---- */

static void lag_begins_at_a_second_and_ends_below_a_quarter(void **state)
{
    (void)state;
    struct world world;
    begin_world(&world);

    world.lag_ns = S - 1;
    turn_after(&world, 0);
    assert_state(&world.scene, KVB_STREAM_EXACT, KVB_REASON_NONE);
    world.lag_ns = S;
    turn_after(&world, 0);
    assert_state(&world.scene, KVB_STREAM_STALE, KVB_REASON_LAGGING);
    world.lag_ns = S / 4;
    turn_after(&world, 0);
    assert_true(world.turn.is_lagging);
    world.lag_ns = S / 4 - 1;
    turn_after(&world, 0);
    assert_false(world.turn.is_lagging);
    end(&world.scene);
}

/* ---- Pauses of the process ---- */

static void after_a_pause_no_query_is_answered_from_what_was_known_before(void **state)
{
    (void)state;
    struct world world;
    begin_world(&world);

    world.is_silent = true;
    turn_after(&world, 4 * S); /* it was stopped: nothing was read, so nothing waits here */
    assert_state(&world.scene, KVB_STREAM_STALE, KVB_REASON_LAGGING);
    assert_false(is_current_after(&world, 0));
    turn_after(&world, S / 2 - 1);
    assert_string_equal(world.log, "tt"); /* no query was answered */
    turn_after(&world, 1);
    assert_string_equal(world.log, "ttq"); /* they wait no longer, and the answer says STALE */

    world.is_silent = false;
    world.is_unread = true;
    turn_after(&world, S / 2); /* the echo is back, and all before it waits here */
    turn_after(&world, 0);
    assert_state(&world.scene, KVB_STREAM_STALE, KVB_REASON_LAGGING);

    beat(&world.scene, 1, first_id + 1, 1); /* one that waited */
    turn_after(&world, S / 20);
    assert_state(&world.scene, KVB_STREAM_STALE, KVB_REASON_LAGGING);
    world.is_unread = false;
    turn_after(&world, 0);
    assert_state(&world.scene, KVB_STREAM_EXACT, KVB_REASON_NONE);
    end(&world.scene);
}

/* Too short to be a pause, but meanwhile the echo should have returned.  NATS may have gone on in
 * it: what it brought is not read yet. */
static void an_echo_that_became_late_in_a_short_pause_is_noticed_before_any_answer(void **state)
{
    (void)state;
    struct world world;
    begin_world(&world);

    world.is_silent = true;
    turn_after(&world, S / 2); /* the echo that does not come back */
    turn_after(&world, S - 1);
    assert_state(&world.scene, KVB_STREAM_EXACT, KVB_REASON_NONE);
    memset(world.log, 0, sizeof world.log);
    turn_after(&world, S - 1);
    assert_int_equal(world.turn.behind_echo, 0);
    assert_state(&world.scene, KVB_STREAM_STALE, KVB_REASON_NATS_AWAY);
    assert_string_equal(world.log, "qt");
    assert_int_equal(world.turn.echo_silences, 1);
    end(&world.scene);
}

/* A thread that gets hardly any time, or messages that take seconds. */
static void pauses_in_each_turn_do_not_hold_queries_for_ever(void **state)
{
    (void)state;
    struct world world;
    begin_world(&world);

    world.is_unread = true;
    turn_after(&world, S);
    assert_string_equal(world.log, "t");
    turn_after(&world, S);
    turn_after(&world, S);
    assert_string_equal(world.log, "tqtqt");
    end(&world.scene);
}

static void dropped_messages_make_lists_stale_until_they_are_proven(void **state)
{
    (void)state;
    struct world world;
    begin_world(&world);

    world.dropped = 3;
    turn_after(&world, S / 10);
    assert_state(&world.scene, KVB_STREAM_STALE, KVB_REASON_LAGGING);
    beat(&world.scene, 1, first_id + 1, 1);
    turn_after(&world, S / 10);
    assert_state(&world.scene, KVB_STREAM_EXACT, KVB_REASON_NONE);
    end(&world.scene);
}

SUITE(turn)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(queries_wait_for_few_messages_however_many_there_are),
        cmocka_unit_test(a_turn_is_current_until_its_tick_is_a_period_late),
        cmocka_unit_test(a_turn_is_not_current_when_the_connection_has_changed),
        cmocka_unit_test(a_connection_replaced_between_two_turns_counts_as_a_loss),
        cmocka_unit_test(a_server_that_delivers_nothing_is_away_after_one_and_a_half_seconds),
        cmocka_unit_test(echoes_of_a_lost_connection_are_not_awaited),
        cmocka_unit_test(an_echo_that_cannot_be_sent_is_not_awaited_and_tried_again),
        cmocka_unit_test(lag_begins_at_a_second_and_ends_below_a_quarter),
        cmocka_unit_test(dropped_messages_make_lists_stale_until_they_are_proven),
        cmocka_unit_test(after_a_pause_no_query_is_answered_from_what_was_known_before),
        cmocka_unit_test(an_echo_that_became_late_in_a_short_pause_is_noticed_before_any_answer),
        cmocka_unit_test(pauses_in_each_turn_do_not_hold_queries_for_ever),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
