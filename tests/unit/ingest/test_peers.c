#include "kvb_test.h"

#include "ingest/zmq/peers.h"

/* Sequences of events as the monitor of a listening socket reports them. */

enum { engine_fd = 9, other_fd = 40, stray_fd = 17 };

static void stray_connections_are_no_engines(void **state)
{
    (void)state;
    struct kvb_peers peers;

    kvb_peers_init(&peers);
    kvb_peers_accepted(&peers, stray_fd);
    assert_int_equal(kvb_peers_count(&peers), 0);
    kvb_peers_failed(&peers);
    assert_false(kvb_peers_left(&peers, stray_fd));

    kvb_peers_accepted(&peers, engine_fd);
    kvb_peers_shook_hands(&peers);
    assert_int_equal(kvb_peers_count(&peers), 1);
    assert_int_equal(peers.only, engine_fd);

    /* Bytes that are no ZMTP handshake: libzmq reports only the end of the connection. */
    kvb_peers_accepted(&peers, stray_fd);
    assert_false(kvb_peers_left(&peers, stray_fd));
    kvb_peers_accepted(&peers, stray_fd);
    kvb_peers_failed(&peers);
    assert_false(kvb_peers_left(&peers, stray_fd));
    assert_int_equal(kvb_peers_count(&peers), 1);
    assert_int_equal(peers.only, engine_fd);

    assert_true(kvb_peers_left(&peers, engine_fd));
    assert_int_equal(kvb_peers_count(&peers), 0);
    assert_int_equal(peers.only, kvb_no_peer);
    kvb_peers_done(&peers);
}

static void two_engines_are_counted_and_the_one_that_stays_is_known(void **state)
{
    (void)state;
    struct kvb_peers peers;

    kvb_peers_init(&peers);
    kvb_peers_accepted(&peers, engine_fd);
    kvb_peers_shook_hands(&peers);
    kvb_peers_accepted(&peers, other_fd);
    kvb_peers_shook_hands(&peers);
    assert_int_equal(kvb_peers_count(&peers), 2);
    assert_int_equal(peers.only, kvb_no_peer);
    assert_true(kvb_peers_left(&peers, engine_fd));
    assert_int_equal(kvb_peers_count(&peers), 1);
    assert_int_equal(peers.only, other_fd);
    kvb_peers_done(&peers);
}

/* The event of a handshake does not say whose it was. With a half-open connection beside it, the
 * next message tells. */
static void a_message_names_the_engine_among_half_open_connections(void **state)
{
    (void)state;
    struct kvb_peers peers;

    kvb_peers_init(&peers);
    kvb_peers_accepted(&peers, stray_fd);
    kvb_peers_accepted(&peers, engine_fd);
    kvb_peers_shook_hands(&peers);
    assert_int_equal(kvb_peers_count(&peers), 1);
    assert_int_equal(peers.only, kvb_no_peer);
    kvb_peers_received(&peers, engine_fd);
    assert_int_equal(peers.only, engine_fd);
    assert_false(kvb_peers_left(&peers, stray_fd));
    assert_int_equal(kvb_peers_count(&peers), 1);
    kvb_peers_done(&peers);
}

static void the_end_of_a_failed_handshake_names_the_engine(void **state)
{
    (void)state;
    struct kvb_peers peers;

    kvb_peers_init(&peers);
    kvb_peers_accepted(&peers, stray_fd);
    kvb_peers_accepted(&peers, engine_fd);
    kvb_peers_shook_hands(&peers);
    kvb_peers_failed(&peers);
    assert_false(kvb_peers_left(&peers, stray_fd));
    assert_int_equal(peers.only, engine_fd);
    kvb_peers_done(&peers);
}

/* One of two connections ends, and it is unknown which: this is reported as a loss of the engine.
 * When the other turns out to have been the stray one, no engine is connected. */
static void an_ambiguous_end_is_a_loss_until_the_stray_connection_ends(void **state)
{
    (void)state;
    struct kvb_peers peers;

    kvb_peers_init(&peers);
    kvb_peers_accepted(&peers, stray_fd);
    kvb_peers_accepted(&peers, engine_fd);
    kvb_peers_shook_hands(&peers);
    assert_true(kvb_peers_left(&peers, engine_fd));
    kvb_peers_failed(&peers); /* the handshake was abandoned */
    assert_true(kvb_peers_left(&peers, stray_fd));
    assert_int_equal(kvb_peers_count(&peers), 0);
    kvb_peers_done(&peers);
}

static void a_descriptor_number_may_be_reused(void **state)
{
    (void)state;
    struct kvb_peers peers;

    kvb_peers_init(&peers);
    for (int i = 0; i < 1000; i++) {
        kvb_peers_accepted(&peers, engine_fd + i % 3);
        kvb_peers_shook_hands(&peers);
        assert_int_equal(peers.only, engine_fd + i % 3);
        assert_true(kvb_peers_left(&peers, engine_fd + i % 3));
        assert_int_equal(kvb_peers_count(&peers), 0);
    }
    kvb_peers_received(&peers, 1 << 30); /* no such connection */
    kvb_peers_accepted(&peers, -1);
    assert_false(kvb_peers_left(&peers, -1));
    assert_int_equal(kvb_peers_count(&peers), 0);
    kvb_peers_done(&peers);
}

SUITE(peers)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(stray_connections_are_no_engines),
        cmocka_unit_test(two_engines_are_counted_and_the_one_that_stays_is_known),
        cmocka_unit_test(a_message_names_the_engine_among_half_open_connections),
        cmocka_unit_test(the_end_of_a_failed_handshake_names_the_engine),
        cmocka_unit_test(an_ambiguous_end_is_a_loss_until_the_stray_connection_ends),
        cmocka_unit_test(a_descriptor_number_may_be_reused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
