#include "log_pipe.h"

#include "core/clock.h"
#include "kvbridge/inside.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* When the sockets for readers of one rank are opened.  The linker puts these in the place of the
 * sockets and the clock (--wrap). */

static struct {
    uint64_t now_ns;
    bool is_in_use; /* the address, by another process */
    size_t tries;
    size_t closes;
} script;

/* The linker's names. NOLINTBEGIN(bugprone-*,cert-*,readability-*) */
uint64_t __wrap_kvb_clock_monotonic_ns(void);
uint64_t __wrap_kvb_clock_monotonic_ns(void)
{
    return script.now_ns;
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
    script.tries++;
    if (script.is_in_use) {
        kvb_detail_set(detail, "cannot listen at %s", options->events);
        return KVB_AGAIN;
    }
    *out_server = (struct kvb_event_server *)&server;
    return KVB_OK;
}

void __wrap_kvb_event_server_close(struct kvb_event_server *server, int linger_ms);
void __wrap_kvb_event_server_close(struct kvb_event_server *server, int linger_ms)
{
    (void)linger_ms;
    script.closes += server != NULL;
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

static void begin(struct world *world)
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
    bridge->log = &world->log.log;
    bridge->config = &world->config;
    bridge->membership.ranks = world->ranks;
    bridge->membership.rank_count = 1;
    bridge->shown.metrics = (struct kvb_metrics){ .rows = kvb_bridge_metric_rows,
                                                  .values = bridge->shown.values,
                                                  .count = kvb_bridge_metric_count };
    memset(&script, 0, sizeof script);
    script.now_ns = KVB_NS_PER_S;
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

static void an_address_in_use_is_tried_each_second(void **state)
{
    struct world world;

    (void)state;
    begin(&world);
    script.is_in_use = true;
    turn_after(&world, 0);
    assert_int_equal(script.tries, 1);
    assert_string_equal(
        kvb_bridge_republish_trouble(&world.rank), "cannot listen at tcp://127.0.0.1:6000");
    assert_int_equal(log_lines(&world.log, "are not republished; trying again"), 1);
    script.is_in_use = false;
    turn_after(&world, 999);
    assert_int_equal(script.tries, 1);
    turn_after(&world, 21);
    assert_int_equal(script.tries, 2);
    assert_string_equal(kvb_bridge_republish_trouble(&world.rank), "");
    turn_after(&world, 2000);
    assert_int_equal(script.tries, 2);
    end(&world);
    assert_int_equal(script.closes, 1);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_address_in_use_is_tried_each_second),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
