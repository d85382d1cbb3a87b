#include "kvb_test.h"

#include "daemon/service.h"
#include "process.h"

#include <nats/nats.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

/* A responder on a real nats-server, and a client that sends it requests. */

enum { patience_ms = 15000, max_workers = 1500, metric_rows = 9 };

struct world {
    struct nats_server server;
    struct kvb_bus *bus; /* the service's connection */
    /* the client's: nats.c itself, because the client receives all answers */
    natsConnection *client;
    natsSubscription *answers;
    natsMsg *answer; /* the newest answer */
    struct kvb_service service;
    struct kvb_service_responder *responder;
    size_t worker_count;
    _Atomic uint64_t values[metric_rows];
    struct kvb_metrics metrics;
};

/* One row precedes those of the service, so that a wrong offset into the metrics shows. */
static const struct kvb_metric_row rows[metric_rows];
enum { first_metric = 1, row_ping = 1, row_stats = 3, row_bad_reply = 5, row_failed = 8 };

static void fill(const void *context, size_t i, struct kvb_service_endpoint *out_endpoint)
{
    const struct world *world = context;

    kvb_service_name_worker(world->service.name, INT64_MAX - i, out_endpoint);
    out_endpoint->worker = (struct kvb_worker_load){
        .worker_id = INT64_MAX - i,
        .has_load = true,
        .load = { .kv_total_blocks = 100000, .gpu_cache_usage_perc = 0.123456F },
    };
}

static kvb_status list(void *context, struct kvb_service_endpoints *out_list)
{
    const struct world *world = context;

    *out_list = (struct kvb_service_endpoints){ .count = world->worker_count,
                                                .fill = fill,
                                                .context = world };
    return KVB_OK;
}

static bool is_connected(void *context)
{
    return kvb_bus_is_connected(context);
}

static kvb_status open_responder(struct world *world)
{
    const struct kvb_service_responder_options options = { .bus = world->bus,
                                                           .service = &world->service,
                                                           .list = list,
                                                           .context = world,
                                                           .metrics = &world->metrics,
                                                           .first_metric = first_metric };

    return kvb_service_responder_open(&options, &world->responder);
}

static void open_client(struct world *world)
{
    assert_int_equal(natsConnection_ConnectTo(&world->client, world->server.url), NATS_OK);
    assert_int_equal(
        natsConnection_SubscribeSync(&world->answers, world->client, "answers"), NATS_OK);
    assert_int_equal(natsConnection_FlushTimeout(world->client, patience_ms), NATS_OK);
}

static void open_world(struct world *world, const char *server_config)
{
    struct kvb_detail detail = { { 0 } };

    *world = (struct world){ .worker_count = 3 };
    world->metrics =
        (struct kvb_metrics){ .rows = rows, .values = world->values, .count = metric_rows };
    assert_ok(nats_server_start(&world->server, 0, server_config));
    const struct kvb_bus_options options = { .url = world->server.url, .name = "test" };
    assert_ok(kvb_bus_open(&options, &world->bus, &detail));
    assert_true(wait_until(is_connected, world->bus, patience_ms));
    assert_ok(kvb_service_identify(&world->service));
    memcpy(world->service.name, "ours", sizeof "ours");
    world->service.description = "";
    assert_ok(open_responder(world));
    assert_ok(kvb_bus_flush(world->bus, patience_ms));
    open_client(world);
}

static void close_world(struct world *world)
{
    int exit_code = 0;

    natsMsg_Destroy(world->answer);
    natsSubscription_Destroy(world->answers);
    natsConnection_Destroy(world->client);
    kvb_service_responder_close(world->responder);
    kvb_bus_close(world->bus);
    (void)process_end(world->server.pid, SIGTERM, patience_ms, &exit_code);
    folder_remove(world->server.folder);
}

/* ---- Requests ---- */

static void ask(struct world *world, const char *subject, const char *reply)
{
    static const char garbage[] = "{\x00\xff\xff not read";

    assert_int_equal(
        natsConnection_PublishRequest(world->client, subject, reply, garbage, sizeof garbage),
        NATS_OK);
}

/* The next answer, NUL-terminated; valid until the following one. */
static const char *next_answer(struct world *world)
{
    natsMsg_Destroy(world->answer);
    world->answer = NULL;
    assert_int_equal(
        natsSubscription_NextMsg(&world->answer, world->answers, patience_ms), NATS_OK);
    return natsMsg_GetData(world->answer);
}

static uint64_t counted(const struct world *world, size_t row)
{
    return kvb_metric_get(&world->metrics, row);
}

struct expected {
    struct world *world;
    size_t row;
    uint64_t count;
};

static bool is_counted(void *context)
{
    const struct expected *expected = context;

    return counted(expected->world, expected->row) == expected->count;
}

static size_t count_word(const char *text, const char *word)
{
    size_t count = 0;

    for (const char *at = text; (at = strstr(at, word)) != NULL; at += strlen(word)) {
        count++;
    }
    return count;
}

/* A router that receives an answer on this subject never recovers. */
static void no_answer_goes_to_the_subjects_of_events(void **state)
{
    (void)state;
    struct world world;
    open_world(&world, NULL);

    struct expected refused = { &world, row_bad_reply, 2 };
    ask(&world, "$SRV.PING", "namespace.dynamo.component.VllmWorker.kv_events");
    ask(&world, "$SRV.STATS.ours", "namespace-dynamo-component-VllmWorker-kv-events.queue");
    assert_true(wait_until(is_counted, &refused, patience_ms));
    assert_int_equal(counted(&world, row_ping), 0);
    assert_int_equal(counted(&world, row_stats), 0);
    close_world(&world);
}

/* ---- Long lists ---- */

/* Expects every worker once; returns how many messages that took. */
static size_t collect(struct world *world)
{
    size_t messages = 0;
    size_t endpoints = 0;

    ask(world, "$SRV.STATS.ours", "answers");
    do {
        const char *text = next_answer(world);
        endpoints += count_word(text, "\"queue_group\"");
        messages++;
        assert_int_equal(strstr(text, "\"more\":") == NULL, endpoints == world->worker_count);
    } while (endpoints < world->worker_count);
    assert_int_equal(endpoints, world->worker_count);
    return messages;
}

static void a_server_with_a_small_max_payload_gets_smaller_parts(void **state)
{
    (void)state;
    struct world world;
    open_world(&world, "max_payload: 65536\n");

    world.worker_count = max_workers;
    assert_true(collect(&world) > 16);
    struct expected answered = { &world, row_stats, 1 };
    assert_true(wait_until(is_counted, &answered, patience_ms));
    assert_int_equal(counted(&world, row_failed), 0);
    close_world(&world);
}

SUITE(service_responder)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_answer_goes_to_the_subjects_of_events),
        cmocka_unit_test(a_server_with_a_small_max_payload_gets_smaller_parts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
