#include "log_pipe.h"

#include "core/clock.h"
#include "ingest/zmq/curve.h"
#include "kvbridge/inside.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* When the sockets for readers of one rank are opened and closed, and with which keys.  The linker
 * puts these in the place of the sockets, the key files and the clock (--wrap). */

static struct {
    uint64_t now_ns;
    uint8_t key;        /* in the key files; 0: they cannot be read */
    bool keeps_readers; /* whoever is connected is allowed by the new keys */
    size_t opens, closes, takes;
    bool is_encrypted; /* of the newest that was opened, and with which key */
    uint8_t opened_key;
} script;

/* The linker's names. NOLINTBEGIN(bugprone-*,cert-*,readability-*) */
uint64_t __wrap_kvb_clock_monotonic_ns(void);
uint64_t __wrap_kvb_clock_monotonic_ns(void)
{
    return script.now_ns;
}

kvb_status __wrap_kvb_curve_config_read(
    const struct kvb_curve_config *config, struct kvb_curve *out_curve, struct kvb_detail *detail);
kvb_status __wrap_kvb_curve_config_read(
    const struct kvb_curve_config *config, struct kvb_curve *out_curve, struct kvb_detail *detail)
{
    if (script.key == 0) {
        kvb_detail_set(detail, "%s cannot be read", config->secret_key_file);
        return KVB_BAD_CONFIG;
    }
    *out_curve = (struct kvb_curve){ .secret_key = { script.key } };
    return KVB_OK;
}

kvb_status __wrap_kvb_event_server_open(
    struct kvb_zmq *zmq, const struct kvb_event_server_options *options,
    struct kvb_event_server **out_server, struct kvb_detail *detail);
kvb_status __wrap_kvb_event_server_open(
    struct kvb_zmq *zmq, const struct kvb_event_server_options *options,
    struct kvb_event_server **out_server, struct kvb_detail *detail)
{
    static char server; /* none of its functions is called */

    (void)zmq;
    (void)detail;
    script.opens++;
    script.is_encrypted = options->curve != NULL;
    script.opened_key = options->curve ? options->curve->secret_key[0] : 0;
    *out_server = (struct kvb_event_server *)&server;
    return KVB_OK;
}

void __wrap_kvb_event_server_close(struct kvb_event_server *server, int linger_ms);
void __wrap_kvb_event_server_close(struct kvb_event_server *server, int linger_ms)
{
    (void)linger_ms;
    script.closes += server != NULL;
}

bool __wrap_kvb_event_server_take_keys(
    struct kvb_event_server *server, const struct kvb_curve *curve);
bool __wrap_kvb_event_server_take_keys(
    struct kvb_event_server *server, const struct kvb_curve *curve)
{
    (void)server;
    assert_int_equal(curve->secret_key[0], script.key);
    script.takes++;
    return script.keeps_readers;
}

uint64_t __wrap_kvb_event_server_take_refused(struct kvb_event_server *server);
uint64_t __wrap_kvb_event_server_take_refused(struct kvb_event_server *server)
{
    (void)server;
    return 0;
}

uint64_t __wrap_kvb_event_server_take_ended(struct kvb_event_server *server);
uint64_t __wrap_kvb_event_server_take_ended(struct kvb_event_server *server)
{
    (void)server;
    return 0;
}

bool __wrap_kvb_event_server_receive(
    struct kvb_event_server *server, struct kvb_event_server_received *out_received);
bool __wrap_kvb_event_server_receive(
    struct kvb_event_server *server, struct kvb_event_server_received *out_received)
{
    (void)server;
    (void)out_received;
    return false;
}

kvb_status
__wrap_kvb_event_server_publish(struct kvb_event_server *server, uint64_t seq, kvb_span payload);
kvb_status
__wrap_kvb_event_server_publish(struct kvb_event_server *server, uint64_t seq, kvb_span payload)
{
    (void)server;
    (void)seq;
    (void)payload;
    return KVB_OK;
}
/* NOLINTEND(bugprone-*,cert-*,readability-*) */

/* A bridge that republishes its only rank. */
struct world {
    struct kvb_bridge *bridge;
    struct kvb_bridge_config config;
    struct bridge_rank rank;
    struct bridge_rank *ranks[1];
    struct log_pipe log;
};

static void begin(struct world *world, bool has_keys)
{
    const struct kvb_stream_options options = {
        .worker_id = 7,
        .max_held_bytes = 1 << 20,
        .mirror = { .max_blocks = 64, .tiers = 1U << KVB_TIER_DEVICE },
    };
    struct kvb_bridge *bridge = calloc(1, sizeof *bridge);
    struct kvb_worker_config *settings = &world->rank.settings;

    assert_non_null(bridge);
    *world = (struct world){ .bridge = bridge, .log = log_pipe_open() };
    world->ranks[0] = &world->rank;
    world->config.limits.max_stream_blocks = 64;
    settings->block_size = 16;
    (void)snprintf(
        settings->republish.events, sizeof settings->republish.events, "tcp://127.0.0.1:6000");
    if (has_keys) {
        (void)snprintf(
            settings->republish.curve.secret_key_file,
            sizeof settings->republish.curve.secret_key_file, "/our.key");
    }
    bridge->log = &world->log.log;
    bridge->config = &world->config;
    bridge->membership.ranks = world->ranks;
    bridge->membership.rank_count = 1;
    bridge->shown.metrics = (struct kvb_metrics){ .rows = kvb_bridge_metric_rows,
                                                  .values = bridge->shown.values,
                                                  .count = kvb_bridge_metric_count };
    memset(&script, 0, sizeof script);
    script.now_ns = KVB_NS_PER_S;
    script.key = 1;
    assert_ok(kvb_stream_new(&options, &world->rank.served.stream));
    assert_ok(kvb_bridge_open_republish(bridge, &world->rank));
}

static void end(struct world *world)
{
    kvb_bridge_close_republish(world->bridge, &world->rank, BRIDGE_REPUBLISH_STOP);
    kvb_stream_free(world->rank.served.stream);
    kvb_stream_output_done(&world->rank.served.output);
    log_pipe_close(&world->log);
    free(world->bridge);
}

/* One turn, this much later. */
static void turn_after(struct world *world, uint64_t ms)
{
    script.now_ns += ms * KVB_NS_PER_MS;
    (void)kvb_bridge_republish(world->bridge, KVB_NS_PER_MS);
}

static void the_sockets_have_the_keys_of_their_readers(void **state)
{
    struct world world;

    (void)state;
    begin(&world, true);
    turn_after(&world, 0);
    assert_int_equal(script.opens, 1);
    assert_true(script.is_encrypted);
    assert_int_equal(script.opened_key, 1);
    end(&world);
}

static void without_keys_anybody_may_read(void **state)
{
    struct world world;

    (void)state;
    begin(&world, false);
    script.key = 0; /* no file is read */
    turn_after(&world, 0);
    assert_int_equal(script.opens, 1);
    assert_false(script.is_encrypted);
    end(&world);
}

static void while_keys_cannot_be_read_nobody_may_read(void **state)
{
    struct world world;

    (void)state;
    begin(&world, true);
    script.key = 0;
    turn_after(&world, 0);
    assert_int_equal(script.opens, 0);
    assert_string_equal(kvb_bridge_republish_trouble(&world.rank), "/our.key cannot be read");
    assert_int_equal(log_lines(&world.log, "are not republished; trying again"), 1);
    script.key = 2;
    turn_after(&world, 999);
    assert_int_equal(script.opens, 0);
    turn_after(&world, 21);
    assert_int_equal(script.opens, 1);
    assert_int_equal(script.opened_key, 2);
    assert_string_equal(kvb_bridge_republish_trouble(&world.rank), "");
    end(&world);
}

static void new_keys_disconnect_readers_only_where_one_is_no_longer_allowed(void **state)
{
    struct world world;

    (void)state;
    begin(&world, true);
    turn_after(&world, 0);
    script.key = 2;
    script.keeps_readers = true;
    kvb_bridge_renew_reader_keys(&world.rank);
    turn_after(&world, 20);
    assert_int_equal(script.takes, 1);
    assert_int_equal(script.closes, 0);
    script.key = 3;
    script.keeps_readers = false;
    kvb_bridge_renew_reader_keys(&world.rank);
    turn_after(&world, 20);
    assert_int_equal(script.closes, 1);
    assert_int_equal(script.opens, 1);
    turn_after(&world, 100);
    assert_int_equal(script.opens, 2);
    assert_int_equal(script.opened_key, 3);
    assert_true(script.is_encrypted);
    end(&world);
}

static void readers_stay_while_new_keys_cannot_be_read(void **state)
{
    struct world world;

    (void)state;
    begin(&world, true);
    turn_after(&world, 0);
    script.key = 0;
    kvb_bridge_renew_reader_keys(&world.rank);
    turn_after(&world, 20);
    assert_int_equal(log_lines(&world.log, "the former ones stay"), 1);
    assert_int_equal(script.takes, 0);
    assert_int_equal(script.closes, 0);
    end(&world);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_sockets_have_the_keys_of_their_readers),
        cmocka_unit_test(without_keys_anybody_may_read),
        cmocka_unit_test(while_keys_cannot_be_read_nobody_may_read),
        cmocka_unit_test(new_keys_disconnect_readers_only_where_one_is_no_longer_allowed),
        cmocka_unit_test(readers_stay_while_new_keys_cannot_be_read),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
