#include "log_pipe.h"

#include "core/clock.h"
#include "kvbridge/inside.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* What is logged about one rank, and when its engine is asked for the address of its events. The
 * linker puts the functions below in the place of those of the source and of the discovery
 * (--wrap). */

static struct kvb_source_counters link_counters;
static size_t asked;

/* The linker prescribes these names. NOLINTBEGIN(bugprone-*,cert-*,readability-*) */
const struct kvb_source_counters *__wrap_kvb_source_count(const struct kvb_source *source);
const struct kvb_source_counters *__wrap_kvb_source_count(const struct kvb_source *source)
{
    (void)source;
    return &link_counters;
}

void __wrap_kvb_discovery_retry(struct kvb_discovery *discovery, uint32_t origin);
void __wrap_kvb_discovery_retry(struct kvb_discovery *discovery, uint32_t origin)
{
    (void)discovery;
    assert_int_equal(origin, KVB_BRIDGE_OF_DISCOVERED);
    asked++;
}

static struct kvb_mirror_counts held;

const struct kvb_mirror_counts *__wrap_kvb_stream_mirror_count(const struct kvb_stream *stream);
const struct kvb_mirror_counts *__wrap_kvb_stream_mirror_count(const struct kvb_stream *stream)
{
    (void)stream;
    return &held;
}

const struct kvb_stream_counters *__wrap_kvb_stream_count(const struct kvb_stream *stream);
const struct kvb_stream_counters *__wrap_kvb_stream_count(const struct kvb_stream *stream)
{
    static const struct kvb_stream_counters none;

    (void)stream;
    return &none;
}

static struct kvb_speculation_finding found;

struct kvb_speculation_finding __wrap_kvb_stream_speculation(const struct kvb_stream *stream);
struct kvb_speculation_finding __wrap_kvb_stream_speculation(const struct kvb_stream *stream)
{
    (void)stream;
    return found;
}
/* NOLINTEND(bugprone-*,cert-*,readability-*) */

/* Rank 0 of worker 7, found by discovery; the log is written into a pipe. */
struct world {
    struct kvb_bridge *bridge;
    struct bridge_rank rank;
    struct kvb_heartbeat beat;
    struct log_pipe log;
};

static void begin(struct world *world)
{
    *world = (struct world){ .rank = { .worker_id = 7, .origin = KVB_BRIDGE_OF_DISCOVERED },
                             .beat = { .state = KVB_STREAM_DOWN, .block_size = 16 } };
    (void)snprintf(
        world->rank.settings.events, sizeof world->rank.settings.events, "tcp://10.0.0.5:5557");
    world->rank.settings.block_size = 16;
    world->log = log_pipe_open();
    world->bridge = calloc(1, sizeof *world->bridge);
    assert_non_null(world->bridge);
    world->bridge->log = &world->log.log;
    link_counters = (struct kvb_source_counters){ 0 };
    asked = 0;
}

static void end(struct world *world)
{
    log_pipe_close(&world->log);
    free(world->bridge);
}

static void watch(struct world *world, uint64_t from_s, uint64_t to_s)
{
    for (uint64_t now_s = from_s; now_s <= to_s; now_s++) {
        kvb_bridge_watch_state(world->bridge, &world->rank, &world->beat, now_s * KVB_NS_PER_S);
    }
}

static void an_absent_engine_is_asked_for_its_address(void **state)
{
    struct world world;

    (void)state;
    begin(&world);
    watch(&world, 1, 100);
    assert_int_equal(asked, 100); /* the discovery paces these requests */
    assert_int_equal(log_lines(&world.log, "cannot be subscribed to"), 0);
    assert_string_equal(world.rank.trouble.why.text, "");
    end(&world);
}

static void an_engine_that_connects_is_logged_once_and_rarely_asked_again(void **state)
{
    struct world world;

    (void)state;
    begin(&world);
    world.rank.settings.may_connect = true;
    watch(&world, 1, 5);
    assert_string_equal(world.rank.trouble.why.text, "");
    watch(&world, 6, 605);
    assert_non_null(strstr(world.rank.trouble.why.text, "tcp://10.0.0.5:5557, but nobody listens"));
    assert_in_range(asked, 5, 5 + 10);
    assert_int_equal(log_lines(&world.log, "cannot be subscribed to"), 1);
    end(&world);
}

/* It was configured with port 0, and reports the port that it got. */
static void an_engine_that_was_connected_does_not_connect_itself(void **state)
{
    struct world world;

    (void)state;
    begin(&world);
    world.rank.settings.may_connect = true;
    world.rank.served.connection.state = KVB_CONNECTION_UP;
    link_counters.connects = 1;
    watch(&world, 1, 10);
    assert_int_equal(asked, 0);
    world.rank.served.connection.state = KVB_CONNECTION_AWAY;
    watch(&world, 11, 110);
    assert_int_equal(asked, 100);
    assert_int_equal(log_lines(&world.log, "cannot be subscribed to"), 0);
    assert_string_equal(world.rank.trouble.why.text, "");
    end(&world);
}

static void trouble_ends_when_the_engine_is_connected(void **state)
{
    struct world world;

    (void)state;
    begin(&world);
    world.rank.settings.may_connect = true;
    watch(&world, 1, 20);
    assert_string_not_equal(world.rank.trouble.why.text, "");
    world.rank.served.connection.state = KVB_CONNECTION_UP;
    link_counters.connects = 1;
    watch(&world, 21, 21);
    assert_string_equal(world.rank.trouble.why.text, "");
    end(&world);
}

static void another_block_size_than_configured_is_logged_once(void **state)
{
    struct world world;

    (void)state;
    begin(&world);
    world.rank.served.connection.state = KVB_CONNECTION_UP;
    world.beat.state = KVB_STREAM_EXACT;
    watch(&world, 1, 10);
    assert_int_equal(log_lines(&world.log, "block_size"), 0);
    world.beat.block_size = 32;
    watch(&world, 11, 30);
    assert_int_equal(log_lines(&world.log, " worker=7 dp_rank=0 configured=16 engine=32\n"), 1);
    end(&world);
}

static void a_total_that_the_engine_exceeded_is_logged_once(void **state)
{
    struct world world;

    (void)state;
    begin(&world);
    world.rank.served.connection.state = KVB_CONNECTION_UP;
    world.beat.state = KVB_STREAM_EXACT;
    held.max_proven = 17;
    watch(&world, 1, 10); /* none is configured */
    world.rank.settings.total_blocks = 17;
    watch(&world, 11, 20);
    assert_int_equal(log_lines(&world.log, "total_blocks"), 0);
    held.max_proven = 18;
    watch(&world, 21, 30);
    assert_int_equal(log_lines(&world.log, " worker=7 dp_rank=0 configured=17 engine=18\n"), 1);
    end(&world);
}

static void find(enum kvb_speculation speculation, const char *why)
{
    found = (struct kvb_speculation_finding){ .speculation = speculation,
                                              .source = KVB_SPECULATION_OF_PAGE,
                                              .why = why };
}

/* One line for a worker, whose ranks are one engine, and one more for each change. */
static void what_is_known_of_speculation_is_logged_once(void **state)
{
    struct world world;
    struct bridge_rank other;
    struct bridge_rank *ranks[] = { &world.rank, &other };

    (void)state;
    begin(&world);
    other = world.rank;
    other.dp_rank = 1;
    world.bridge->membership.ranks = ranks;
    world.bridge->membership.rank_count = 2;
    find(KVB_SPECULATION_UNDECIDED, "unnamed");
    watch(&world, 1, 10); /* no block yet: its hashes may have lookahead */
    assert_int_equal(log_lines(&world.log, "why="), 0);
    held.shape_count = 1;
    find(KVB_SPECULATION_KEEPS, "none");
    watch(&world, 11, 20); /* as most engines do */
    assert_int_equal(log_lines(&world.log, "why="), 0);
    find(KVB_SPECULATION_UNDECIDED, "unnamed");
    watch(&world, 21, 30);
    kvb_bridge_watch_state(world.bridge, &other, &world.beat, 31 * KVB_NS_PER_S);
    assert_int_equal(log_lines(&world.log, "why=unnamed source=page worker=7 dp_rank=0\n"), 1);
    find(KVB_SPECULATION_DROPS, "eagle");
    watch(&world, 32, 40);
    kvb_bridge_watch_state(world.bridge, &other, &world.beat, 41 * KVB_NS_PER_S);
    assert_int_equal(log_lines(&world.log, "a block less than it holds: hits"), 1);
    find(KVB_SPECULATION_KEEPS, "none");
    watch(&world, 42, 50);
    assert_int_equal(log_lines(&world.log, "all blocks that it holds"), 1);
    find(KVB_SPECULATION_DROPS, "said"); /* the operator knows what the operator said */
    found.source = KVB_SPECULATION_OF_CONFIG;
    watch(&world, 51, 60);
    assert_int_equal(log_lines(&world.log, "why="), 0);
    held.shape_count = 0;
    end(&world);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_absent_engine_is_asked_for_its_address),
        cmocka_unit_test(an_engine_that_connects_is_logged_once_and_rarely_asked_again),
        cmocka_unit_test(an_engine_that_was_connected_does_not_connect_itself),
        cmocka_unit_test(trouble_ends_when_the_engine_is_connected),
        cmocka_unit_test(another_block_size_than_configured_is_logged_once),
        cmocka_unit_test(a_total_that_the_engine_exceeded_is_logged_once),
        cmocka_unit_test(what_is_known_of_speculation_is_logged_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
