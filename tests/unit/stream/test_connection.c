#include "kvb_test.h"

#include "stream/connection.h"

static const enum kvb_connection_state new = KVB_CONNECTION_NEW;
static const enum kvb_connection_state up = KVB_CONNECTION_UP;
static const enum kvb_connection_state away = KVB_CONNECTION_AWAY;

enum { now_ns = 700, no_input = -1 };

/* What the monitor reports once; the inputs that follow, in order, up to no_input. */
static void
report(struct kvb_connection *connection, bool was_lost, bool is_up, const int inputs[3])
{
    struct kvb_connection_update update = { .was_lost = was_lost, .is_up = is_up };
    enum kvb_stream_input_kind kind = KVB_INPUT_TICK;
    size_t count = 0;

    for (; count < 2 && kvb_connection_next(connection, &update, now_ns, &kind); count++) {
        assert_int_equal(kind, inputs[count]);
    }
    assert_int_equal(inputs[count], no_input);
    assert_false(kvb_connection_next(connection, &update, now_ns, &kind));
}

static void each_state_goes_where_the_table_says(void **state)
{
    (void)state;
    static const struct {
        enum kvb_connection_state from;
        bool was_lost, is_up;
        enum kvb_connection_state to;
        int inputs[3];
    } rows[] = {
        { KVB_CONNECTION_NEW, false, false, KVB_CONNECTION_NEW, { no_input } },
        { KVB_CONNECTION_NEW, true, false, KVB_CONNECTION_NEW, { no_input } },
        { KVB_CONNECTION_NEW, false, true, KVB_CONNECTION_UP, { KVB_INPUT_UP, no_input } },
        { KVB_CONNECTION_NEW, true, true, KVB_CONNECTION_UP, { KVB_INPUT_UP, no_input } },
        { KVB_CONNECTION_UP, false, true, KVB_CONNECTION_UP, { no_input } },
        { KVB_CONNECTION_UP, false, false, KVB_CONNECTION_AWAY, { KVB_INPUT_DOWN, no_input } },
        { KVB_CONNECTION_UP, true, false, KVB_CONNECTION_AWAY, { KVB_INPUT_DOWN, no_input } },
        { KVB_CONNECTION_UP,
          true,
          true,
          KVB_CONNECTION_UP,
          { KVB_INPUT_DOWN, KVB_INPUT_UP, no_input } },
        { KVB_CONNECTION_AWAY, false, false, KVB_CONNECTION_AWAY, { no_input } },
        { KVB_CONNECTION_AWAY, true, false, KVB_CONNECTION_AWAY, { no_input } },
        { KVB_CONNECTION_AWAY, false, true, KVB_CONNECTION_UP, { KVB_INPUT_UP, no_input } },
        { KVB_CONNECTION_AWAY, true, true, KVB_CONNECTION_UP, { KVB_INPUT_UP, no_input } },
    };

    for (size_t row = 0; row < sizeof rows / sizeof *rows; row++) {
        struct kvb_connection connection = { .state = rows[row].from };
        report(&connection, rows[row].was_lost, rows[row].is_up, rows[row].inputs);
        assert_int_equal(connection.state, rows[row].to);
        assert_int_equal(kvb_connection_is_up(&connection), rows[row].to == up);
    }
}

static void an_engine_is_away_since_its_connection_was_lost(void **state)
{
    (void)state;
    static const int goes[] = { KVB_INPUT_DOWN, no_input, no_input };
    static const int comes[] = { KVB_INPUT_UP, no_input, no_input };
    static const int none[] = { no_input, no_input, no_input };
    struct kvb_connection connection = { .state = new };

    assert_int_equal(kvb_connection_away_ns(&connection), 0);
    report(&connection, false, true, comes);
    assert_int_equal(kvb_connection_away_ns(&connection), 0);
    report(&connection, true, false, goes);
    assert_int_equal(kvb_connection_away_ns(&connection), now_ns);
    connection.away_ns = 5;
    report(&connection, true, false, none); /* still the same absence */
    assert_int_equal(kvb_connection_away_ns(&connection), 5);
    report(&connection, false, true, comes);
    assert_int_equal(kvb_connection_away_ns(&connection), 0);
}

/* Readers may hold what it lists. */
static void a_restored_stream_is_away_until_its_engine_connects(void **state)
{
    (void)state;
    static const int comes[] = { KVB_INPUT_UP, no_input, no_input };
    struct kvb_connection connection = { .state = new };

    kvb_connection_restored(&connection, 9);
    assert_int_equal(connection.state, away);
    assert_int_equal(kvb_connection_away_ns(&connection), 9);
    report(&connection, false, true, comes);
    assert_int_equal(kvb_connection_away_ns(&connection), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_state_goes_where_the_table_says),
        cmocka_unit_test(an_engine_is_away_since_its_connection_was_lost),
        cmocka_unit_test(a_restored_stream_is_away_until_its_engine_connects),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
