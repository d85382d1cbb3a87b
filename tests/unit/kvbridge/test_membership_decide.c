#include "ingest/zmq/context.h"
#include "kvb_test.h"
#include "kvbridge/commands.h"
#include "kvbridge/ingest.h"
#include "kvbridge/parts.h"
#include "kvbridge/rank.h"

#include <stdio.h>
#include <stdlib.h>

/* For how many sockets a bridge asks before ranks come.  The linker puts this in the place of the
 * function that raises the limits (--wrap). */

static struct {
    struct kvb_zmq_size size; /* the newest that was asked for */
    size_t max_readers;       /* more are refused; 0: none is */
} limits;

/* The linker's names. NOLINTBEGIN(bugprone-*,cert-*,readability-*) */
kvb_status
__wrap_kvb_zmq_raise_limits(const struct kvb_zmq_size *size, struct kvb_detail *out_detail);
kvb_status
__wrap_kvb_zmq_raise_limits(const struct kvb_zmq_size *size, struct kvb_detail *out_detail)
{
    limits.size = *size;
    if (limits.max_readers > 0 && size->readers > limits.max_readers) {
        kvb_detail_set(out_detail, "too few files");
        return KVB_BAD_CONFIG;
    }
    return KVB_OK;
}
/* NOLINTEND(bugprone-*,cert-*,readability-*) */

enum { max_ranks = 8 };

/* A bridge that reads some ranks, and the list of those that it is to read. */
struct world {
    struct kvb_bridge *bridge;
    struct bridge_membership membership;
    struct bridge_ingest ingest;
    struct kvb_bridge_config config;
    struct membership_work work;
    struct bridge_rank open[max_ranks];
    struct bridge_rank *ranks[max_ranks];
    struct kvb_worker_config wanted_ranks[max_ranks];
    size_t worker_of_rank[max_ranks];
    struct kvb_members wanted;
    struct bridge_command command;
};

static struct kvb_worker_config rank_of(uint64_t id, bool is_republished)
{
    struct kvb_worker_config rank = { .id = id, .ranks = 1, .block_size = 16 };

    (void)snprintf(rank.events, sizeof rank.events, "tcp://10.0.0.1:%u", 5000 + (unsigned)id);
    if (is_republished) {
        (void)snprintf(rank.republish.events, sizeof rank.republish.events, "tcp://*:6000");
    }
    return rank;
}

static void begin(struct world *world)
{
    *world = (struct world){ .command = { .wish = { .origin = KVB_BRIDGE_OF_KUBERNETES } } };
    world->bridge = calloc(1, sizeof *world->bridge);
    assert_non_null(world->bridge);
    world->bridge->config = &world->config;
    world->bridge->membership = &world->membership;
    world->bridge->ingest = &world->ingest;
    world->membership.ranks = world->ranks;
    world->membership.work = &world->work;
    assert_ok(kvb_zmq_new(NULL, &world->ingest.zmq));
    world->wanted = (struct kvb_members){ .ranks = world->wanted_ranks,
                                          .worker_of_rank = world->worker_of_rank };
    world->command.wanted = &world->wanted;
    limits.max_readers = 0;
}

static void end(struct world *world)
{
    kvb_zmq_free(world->ingest.zmq);
    free(world->work.ranks_come);
    free(world->work.loads_come);
    free(world->work.are_draining);
    free(world->bridge);
}

static void add_open(struct world *world, uint64_t id, bool is_republished)
{
    static char sockets; /* only whether there are any matters */
    const size_t at = world->membership.rank_count++;

    world->open[at] = (struct bridge_rank){
        .settings = rank_of(id, is_republished),
        .worker_id = id,
        .origin = KVB_BRIDGE_OF_KUBERNETES,
        .republish = is_republished ? (struct bridge_republish *)&sockets : NULL,
    };
    world->ranks[at] = &world->open[at];
}

static void add_wanted(struct world *world, uint64_t id, bool is_republished)
{
    const size_t at = world->wanted.rank_count++;

    world->wanted_ranks[at] = rank_of(id, is_republished);
    world->worker_of_rank[at] = at;
}

static void readers_of_ranks_that_stay_or_come_have_sockets(void **state)
{
    struct world world;

    (void)state;
    begin(&world);
    add_open(&world, 1, true); /* it stays */
    add_open(&world, 2, false);
    add_open(&world, 3, true); /* it leaves */
    add_wanted(&world, 1, true);
    add_wanted(&world, 2, false);
    add_wanted(&world, 4, true);
    add_wanted(&world, 5, true);
    add_wanted(&world, 6, false);
    assert_ok(kvb_bridge_decide(world.bridge, &world.command));
    assert_int_equal(world.command.answer.added, 3);
    assert_int_equal(world.command.answer.gone, 1);
    assert_int_equal(limits.size.publishers, 5);
    assert_int_equal(limits.size.readers, 3);
    end(&world);
}

/* A list of which a part may be left out: of pods, for example. */
static void ranks_without_room_for_their_readers_are_left_out(void **state)
{
    enum kvb_bridge_taken taken[max_ranks] = { KVB_BRIDGE_TAKEN };
    struct world world;

    (void)state;
    begin(&world);
    for (uint64_t id = 1; id <= 4; id++) {
        add_wanted(&world, id, true);
    }
    world.command.wish.out_taken = taken;
    limits.max_readers = 2;
    assert_ok(kvb_bridge_decide(world.bridge, &world.command));
    assert_int_equal(limits.size.readers, 2);
    assert_int_equal(world.command.answer.left_out, 2);
    assert_int_equal(taken[1], KVB_BRIDGE_TAKEN);
    assert_int_equal(taken[2], KVB_BRIDGE_FULL);
    end(&world);
}

SUITE(membership_decide)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(readers_of_ranks_that_stay_or_come_have_sockets),
        cmocka_unit_test(ranks_without_room_for_their_readers_are_left_out),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
