#include "kvb_test.h"

#include "control/control.h"
#include "core/clock.h"
#include "core/log.h"
#include "fail_alloc.h"
#include "kvbridge/discovery.h"
#include "web_server.h"

#include <poll.h>
#include <stdatomic.h>
#include <unistd.h>

enum { patience_ms = 20000, source = 0, settled_turns = 20 };

/* Neither page is there, so the answer is the worker's own addresses. */
static const struct web_page pages[] = { { .path = NULL } };

/* One engine.  The control thread is the test's own, so that it says what comes when. */
struct world {
    struct web_server *server;
    struct kvb_control *control;
    struct kvb_log log;
    struct kvb_worker_list list;
    struct kvb_discovery *discovery;
    atomic_uint takes;      /* answers that the bridge was given */
    atomic_bool may_return; /* false: the bridge keeps an answer, which stays GIVEN */
};

static kvb_status take_answer(
    void *context, uint32_t of_source, struct kvb_worker_spec *spec, struct kvb_parts *parts,
    struct kvb_detail *why)
{
    struct world *world = context;

    (void)of_source;
    (void)spec;
    (void)parts;
    (void)why;
    atomic_fetch_add(&world->takes, 1);
    while (!atomic_load(&world->may_return)) {
        (void)poll(NULL, 0, 1);
    }
    return KVB_OK;
}

static void open_world(struct world *world)
{
    struct kvb_worker_list targets = { 0 };
    struct kvb_worker_spec spec;
    char url[128];

    *world = (struct world){ .server = web_server_start(pages),
                             .log = { .level = KVB_LOG_ERROR, .fd = STDERR_FILENO } };
    assert_ok(kvb_control_new(&world->control));
    const struct kvb_discovery_options options = { .control = world->control,
                                                   .log = &world->log,
                                                   .take = take_answer,
                                                   .context = world,
                                                   .sources = 1 };
    assert_ok(kvb_discovery_start(&options, &world->discovery));
    kvb_worker_spec_init(&spec);
    spec.id = 7;
    spec.discover = web_server_url(world->server, "", url);
    spec.events = "tcp://127.0.0.1:5557";
    spec.ranks = 1;
    assert_ok(kvb_worker_list_add(&world->list, &spec));
    assert_ok(kvb_discovery_choose(&world->list, &targets));
    kvb_discovery_set(world->discovery, source, &targets);
    assert_int_equal(targets.count, 0); /* there was no list before */
}

static void close_world(struct world *world)
{
    kvb_discovery_free(world->discovery);
    kvb_worker_list_done(&world->list);
    kvb_control_free(world->control);
    web_server_stop(world->server);
}

/* Turns until the engine was asked, or the bridge given its answer, so many times. */
static void turn_until(struct world *world, unsigned requests, unsigned takes)
{
    const uint64_t deadline_ns = kvb_clock_monotonic_ns() + patience_ms * KVB_NS_PER_MS;

    while (web_server_requests(world->server) < requests || atomic_load(&world->takes) < takes) {
        assert_true(kvb_clock_monotonic_ns() < deadline_ns);
        kvb_control_run_once(world->control, 1);
    }
}

static void hint(struct world *world)
{
    kvb_discovery_retry(world->discovery, source, world->list.items[0].spec);
    for (int i = 0; i < settled_turns; i++) {
        kvb_control_run_once(world->control, 1);
    }
}

/* The answer may be that of the process before. */
static void a_connection_that_changes_during_the_request_has_the_engine_asked_again(void **state)
{
    struct world world;

    (void)state;
    open_world(&world);
    turn_until(&world, 1, 0);
    hint(&world);
    atomic_store(&world.may_return, true);
    turn_until(&world, 0, 2);
    close_world(&world);
}

static void so_does_one_that_changes_while_the_bridge_takes_the_answer(void **state)
{
    struct world world;

    (void)state;
    open_world(&world);
    turn_until(&world, 0, 1);
    hint(&world);
    atomic_store(&world.may_return, true);
    turn_until(&world, 0, 2);
    close_world(&world);
}

/* Either a list is there as a whole, or nothing has changed yet. */
static void without_memory_nobody_is_chosen(void **state)
{
    struct world world;
    kvb_status status = KVB_NO_MEMORY;

    (void)state;
    open_world(&world);
    for (long n = 0; status != KVB_OK; n++) {
        struct kvb_worker_list targets = { 0 };
        fail_alloc_after(n);
        status = kvb_discovery_choose(&world.list, &targets);
        fail_alloc_after(-1);
        assert_true(status == KVB_OK || status == KVB_NO_MEMORY);
        assert_int_equal(targets.count, status == KVB_OK);
        assert_true(n < 50);
        kvb_worker_list_done(&targets);
    }
    close_world(&world);
}

SUITE(discovery)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_connection_that_changes_during_the_request_has_the_engine_asked_again),
        cmocka_unit_test(so_does_one_that_changes_while_the_bridge_takes_the_answer),
        cmocka_unit_test(without_memory_nobody_is_chosen),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
