#include "bus_publish.h"
#include "core/clock.h"
#include "core/own.h"
#include "kvbridge/membership.h"
#include "kvbridge/parts.h"
#include "kvbridge/publisher.h"
#include "kvbridge/rank.h"
#include "kvbridge/rivals.h"
#include "kvbridge/shown.h"
#include "log_pipe.h"
#include "wire/router/bridge_status.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A bridge finds others that publish its worker.  Their messages are handed to it, and its own are
 * caught. */

static bool is_connected = true;
static size_t published;
static char newest[1 << 16]; /* message */

static kvb_status take_message(const char *subject, kvb_span payload)
{
    assert_string_equal(subject, "s");
    if (!is_connected) {
        return KVB_AGAIN;
    }
    assert_true(payload.len < sizeof newest);
    memcpy(newest, payload.data, payload.len);
    newest[payload.len] = '\0';
    published++;
    return KVB_OK;
}

struct world {
    struct kvb_bridge *bridge;
    struct bridge_membership membership;
    struct bridge_publisher publisher;
    struct bridge_rivals rivals;
    struct bridge_shown shown;
    struct bridge_rank *ranks; /* owned */
    struct bridge_rank **list; /* owned */
    struct log_pipe log;
    uint64_t now_s;
};

/* Worker 1, of so many ranks. */
static void set_ranks(struct world *world, size_t count)
{
    free(world->ranks);
    free(world->list);
    world->ranks = calloc(count + 1, sizeof *world->ranks);
    world->list = calloc(count + 1, sizeof(struct bridge_rank *));
    assert_non_null(world->ranks);
    assert_non_null(world->list);
    for (size_t i = 0; i < count; i++) {
        world->ranks[i].worker_id = 1;
        world->ranks[i].dp_rank = (uint32_t)(count - 1 - i);
        world->list[i] = &world->ranks[i];
    }
    world->bridge->membership->ranks = world->list;
    world->bridge->membership->rank_count = count;
    world->bridge->membership->changes++;
}

static void begin(struct world *world)
{
    *world = (struct world){ .log = log_pipe_open(), .now_s = 100 };
    world->bridge = calloc(1, sizeof *world->bridge);
    assert_non_null(world->bridge);
    struct kvb_bridge *bridge = world->bridge;
    bridge->log = &world->log.log;
    bridge->membership = &world->membership;
    bridge->publisher = &world->publisher;
    bridge->rivals = &world->rivals;
    bridge->shown = &world->shown;
    bridge->shown->metrics = (struct kvb_metrics){ .rows = kvb_bridge_metric_rows,
                                                   .values = bridge->shown->values,
                                                   .count = kvb_bridge_metric_count };
    (void)snprintf(bridge->bridge_id, sizeof bridge->bridge_id, "me-1-ab");
    (void)snprintf(bridge->rivals->subject, sizeof bridge->rivals->subject, "s");
    bridge->rivals->listed_changes = UINT64_MAX;
    kvb_rival_table_init(&bridge->rivals->table, bridge->bridge_id);
    kvb_buf_init(&bridge->publisher->buf, 1 << 16);
    on_bus_publish = take_message;
    is_connected = true;
    published = 0;
    newest[0] = '\0';
    set_ranks(world, 2);
}

static void end(struct world *world)
{
    kvb_rival_table_done(&world->bridge->rivals->table);
    kvb_buf_done(&world->bridge->publisher->buf);
    log_pipe_close(&world->log);
    free(world->ranks);
    free(world->list);
    free(world->bridge);
}

static void hear(struct world *world, const char *json)
{
    kvb_rival_table_hear(
        &world->bridge->rivals->table, kvb_span_of(json), world->now_s * KVB_NS_PER_S);
}

/* So many seconds pass.  In each of them `json` is heard, unless it is NULL.  Returns how many
 * messages were published. */
static size_t pass(struct world *world, uint64_t seconds, const char *json)
{
    const size_t before = published;

    for (uint64_t i = 0; i < seconds; i++) {
        world->now_s++;
        if (json) {
            hear(world, json);
        }
        kvb_bridge_watch_rivals(world->bridge, world->now_s * KVB_NS_PER_S);
    }
    return published - before;
}

static uint64_t rivals(const struct world *world)
{
    return kvb_metric_get(&world->bridge->shown->metrics, kvb_bridge_rivals);
}

static const char *const shared = "{\"bridge_id\":\"other-2-cd\",\"streams\":[[5,0],[1,1],[1,0]]}";
static const char *const foreign = "{\"bridge_id\":\"other-2-cd\",\"streams\":[[5,0],[1,2],[2,1]]}";

static void the_streams_are_published_at_once_and_then_seldom(void **state)
{
    struct world world;

    (void)state;
    begin(&world);
    assert_int_equal(pass(&world, 1, NULL), 1);
    assert_string_equal(newest, "{\"bridge_id\":\"me-1-ab\",\"streams\":[[1,0],[1,1]]}");
    assert_int_equal(pass(&world, 29, NULL), 0);
    assert_int_equal(pass(&world, 1, NULL), 1);
    assert_int_equal(pass(&world, 300, NULL), 10);
    end(&world);
}

/* The second bridge of a thousand that lost the same server. */
static void bridges_that_begin_at_once_do_not_stay_together(void **state)
{
    struct world world;

    (void)state;
    begin(&world);
    world.bridge->publisher->id = 7;
    assert_int_equal(pass(&world, 1, NULL), 1);
    assert_int_equal(pass(&world, 36, NULL), 0);
    assert_int_equal(pass(&world, 1, NULL), 1);
    end(&world);
}

static void changed_streams_are_published_within_five_seconds(void **state)
{
    struct world world;

    (void)state;
    begin(&world);
    assert_int_equal(pass(&world, 1, NULL), 1);
    set_ranks(&world, 1);
    assert_int_equal(pass(&world, 4, NULL), 0);
    set_ranks(&world, 3);
    assert_int_equal(pass(&world, 1, NULL), 1);
    assert_string_equal(newest, "{\"bridge_id\":\"me-1-ab\",\"streams\":[[1,0],[1,1],[1,2]]}");
    assert_int_equal(pass(&world, 20, NULL), 0);
    end(&world);
}

static void after_a_loss_of_nats_they_are_published_again(void **state)
{
    struct world world;

    (void)state;
    begin(&world);
    is_connected = false;
    assert_int_equal(pass(&world, 10, NULL), 0);
    is_connected = true;
    assert_int_equal(pass(&world, 1, NULL), 1);
    kvb_bridge_list_streams_soon(world.bridge);
    kvb_bridge_watch_rivals(world.bridge, world.now_s * KVB_NS_PER_S);
    assert_int_equal(published, 2); /* in the same second */
    end(&world);
}

static void many_streams_need_several_messages(void **state)
{
    struct world world;

    (void)state;
    begin(&world);
    set_ranks(&world, kvb_bridge_streams_most + 1);
    assert_int_equal(pass(&world, 1, NULL), 2);
    assert_string_equal(newest, "{\"bridge_id\":\"me-1-ab\",\"streams\":[[1,1024]]}");
    set_ranks(&world, 0);
    assert_int_equal(pass(&world, 100, NULL), 0);
    end(&world);
}

static void a_lasting_rival_is_logged_once_with_both_names(void **state)
{
    struct world world;

    (void)state;
    begin(&world);
    (void)pass(&world, 1, NULL);
    assert_int_equal(pass(&world, 5, shared), 5); /* the other has to hear this one, too */
    assert_int_equal(log_lines(&world.log, "another bridge"), 0);
    assert_int_equal(rivals(&world), 0);
    (void)pass(&world, 1, shared);
    assert_int_equal(
        log_lines(&world.log, "bridge=me-1-ab other=other-2-cd streams=2 worker=1 dp_rank=1"), 1);
    assert_int_equal(rivals(&world), 1);
    (void)pass(&world, 1000, shared);
    assert_int_equal(log_lines(&world.log, "other"), 0);
    end(&world);
}

static void it_is_gone_when_either_of_the_two_removes_the_workers(void **state)
{
    struct world world;

    (void)state;
    begin(&world);
    (void)pass(&world, 20, shared);
    (void)pass(&world, 20, foreign);
    assert_int_equal(log_lines(&world.log, "no more"), 1);
    (void)pass(&world, 20, shared);
    assert_int_equal(log_lines(&world.log, "another bridge"), 1);
    set_ranks(&world, 0);
    (void)pass(&world, 20, shared);
    assert_int_equal(log_lines(&world.log, "no more"), 1);
    end(&world);
}

/* It ends while this one begins, or was killed before. */
static void a_predecessor_is_no_rival(void **state)
{
    struct world world;

    (void)state;
    begin(&world);
    (void)pass(&world, 5, shared);
    (void)pass(&world, 100, NULL);
    for (int i = 0; i < 10; i++) { /* and again, each with a name of its own */
        char json[80];
        (void)snprintf(json, sizeof json, "{\"bridge_id\":\"host-%d-ef\",\"streams\":[[1,0]]}", i);
        (void)pass(&world, 4, json);
    }
    assert_int_equal(log_lines(&world.log, "other"), 0);
    assert_int_equal(rivals(&world), 0);
    end(&world);
}

/* Whoever may publish can invent names. */
static void more_rivals_than_places_are_counted(void **state)
{
    struct world world;

    (void)state;
    begin(&world);
    (void)pass(&world, 1, NULL);
    for (int round = 0; round < 20; round++) {
        for (int i = 0; i < kvb_rivals_most + 3; i++) {
            char json[80];
            (void)snprintf(json, sizeof json, "{\"bridge_id\":\"x-%d\",\"streams\":[[1,0]]}", i);
            hear(&world, json);
        }
        (void)pass(&world, 1, NULL);
    }
    assert_int_equal(world.bridge->rivals->table.refused, 20 * 3);
    assert_int_equal(rivals(&world), kvb_rivals_most);
    (void)pass(&world, 30, NULL);
    assert_int_equal(rivals(&world), 0);
    end(&world);
}

SUITE(rivals)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_streams_are_published_at_once_and_then_seldom),
        cmocka_unit_test(bridges_that_begin_at_once_do_not_stay_together),
        cmocka_unit_test(changed_streams_are_published_within_five_seconds),
        cmocka_unit_test(after_a_loss_of_nats_they_are_published_again),
        cmocka_unit_test(many_streams_need_several_messages),
        cmocka_unit_test(a_lasting_rival_is_logged_once_with_both_names),
        cmocka_unit_test(it_is_gone_when_either_of_the_two_removes_the_workers),
        cmocka_unit_test(a_predecessor_is_no_rival),
        cmocka_unit_test(more_rivals_than_places_are_counted),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
