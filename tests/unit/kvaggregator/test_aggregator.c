#include "bus/bus.h"
#include "core/limits.h"
#include "core/own.h"
#include "index/block_hash.h"
#include "kvaggregator/aggregator.h"
#include "process.h"
#include "wire/load/json.h"
#include "wire/router/heartbeat.h"
#include "wire/router/json.h"
#include "wire/router/proto.h"

#include "kvb_test.h"

#include <arpa/inet.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* Runs a whole aggregator with a real nats-server, and queries it over NATS and HTTP. */

enum { patience_ms = 15000, text_bytes = 65536, block_size = 16, blocks = 3 };

#define P "namespace.dynamo.component.VllmWorker."
#define R "namespace.dynamo.component.Router."

/* What has arrived on the subjects that the test subscribes to. */
struct inbox {
    pthread_mutex_t lock;
    unsigned load_stats;
    unsigned hit_rates;
    char load_text[text_bytes];
    char hit_text[text_bytes];
};

struct world {
    struct nats_server server;
    struct kvb_aggregator_config config;
    struct kvb_aggregator *aggregator;
    struct kvb_bus *bus; /* the connection of the bridge and the router */
    struct kvb_bus_subscription *received;
    struct inbox inbox;
    uint64_t last_id;
    char answer[text_bytes];
};

/* ---- Building it ---- */

static void set_config(struct world *world, const char *url)
{
    struct kvb_aggregator_config *config = &world->config;

    (void)snprintf(config->nats.url, sizeof config->nats.url, "%s", url);
    memcpy(config->subscribe.name_space, "*", sizeof "*");
    memcpy(config->subscribe.component, "*", sizeof "*");
    memcpy(config->router.name_space, "dynamo", sizeof "dynamo");
    memcpy(config->router.component, "Router", sizeof "Router");
    memcpy(config->http, "127.0.0.1:0", sizeof "127.0.0.1:0");
    config->router.overlap_weight = 1;
    config->load.expire_ms = 3000;
    config->load.publish_ms = 1000;
    config->forget_ms = 60000;
    config->audit.honest_loss = 0.005;
    config->audit.lie = 0.05;
    config->audit.false_alarm_requests = 1e8;
    config->limits.max_index_blocks = 100000;
    config->limits.max_query_body_bytes = 1 << 16;
    config->limits.event_ring = 1024;
    config->limits.query_ring = 64;
}

static void start_aggregator(struct world *world)
{
    struct kvb_detail detail = { { 0 } };

    if (kvb_aggregator_start(&world->config, NULL, &world->aggregator, &detail) != KVB_OK) {
        fail_msg("%s", detail.text);
    }
}

static void keep(unsigned *count, char *text, kvb_span payload)
{
    const size_t len = payload.len < text_bytes - 1 ? payload.len : text_bytes - 1;

    memcpy(text, payload.data, len);
    text[len] = '\0';
    ++*count;
}

static void on_message(void *context, const struct kvb_bus_message *message)
{
    struct inbox *inbox = context;

    pthread_mutex_lock(&inbox->lock);
    if (strcmp(message->subject, R "load_stats") == 0) {
        keep(&inbox->load_stats, inbox->load_text, message->payload);
    } else if (strcmp(message->subject, R "kv-hit-rate") == 0) {
        keep(&inbox->hit_rates, inbox->hit_text, message->payload);
    }
    pthread_mutex_unlock(&inbox->lock);
}

static bool is_connected(void *context)
{
    return kvb_bus_is_connected(context);
}

static void open_client(struct world *world)
{
    const struct kvb_bus_options options = { .url = world->server.url, .name = "test" };
    struct kvb_detail detail = { { 0 } };

    assert_ok(kvb_bus_open(&options, &world->bus, &detail));
    assert_ok(kvb_bus_subscribe(world->bus, R "*", on_message, &world->inbox, &world->received));
    assert_true(wait_until(is_connected, world->bus, patience_ms));
    assert_ok(kvb_bus_flush(world->bus, patience_ms));
}

static void close_world(struct world *world)
{
    int exit_code = 0;

    kvb_aggregator_stop(world->aggregator);
    kvb_bus_unsubscribe(world->received);
    kvb_bus_close(world->bus);
    (void)process_end(world->server.pid, SIGTERM, patience_ms, &exit_code);
    folder_remove(world->server.folder);
    pthread_mutex_destroy(&world->inbox.lock);
}

/* ---- Publishing as a bridge ---- */

static void publish(struct world *world, const char *subject, const struct kvb_buf *buf)
{
    assert_ok(kvb_bus_publish(world->bus, subject, kvb_buf_span(buf)));
}

/* Blocks of tokens 100, 101, ...; the first three of them are cached. */
static void fill_batch(struct world *world, struct kvb_router_batch *batch, uint64_t worker_id)
{
    const struct kvb_router_event cleared = { .kind = KVB_ROUTER_CLEARED, .event_id = 1000 };
    const struct kvb_router_event stored = { .kind = KVB_ROUTER_STORED, .event_id = 1001 };
    kvb_block_hash block = { 0 };

    batch->worker_id = worker_id;
    batch->has_epoch = true;
    memset(batch->epoch.bytes, 7, sizeof batch->epoch.bytes);
    assert_ok(kvb_router_batch_add_event(batch, &cleared));
    assert_ok(kvb_router_batch_add_event(batch, &stored));
    for (uint32_t i = 0; i < blocks; i++) {
        uint32_t tokens[block_size];
        for (uint32_t n = 0; n < block_size; n++) {
            tokens[n] = 100 + (i * block_size) + n;
        }
        const kvb_tokens_hash hash = kvb_tokens_hash_of(tokens, block_size, NULL, 0, 1337);
        block = i == 0 ? kvb_block_hash_root(hash) : kvb_block_hash_next(block, hash);
        assert_ok(kvb_router_batch_add_block(batch, block, hash));
    }
    world->last_id = 1001;
}

static void beat(struct world *world, uint64_t worker_id)
{
    KVB_OWN(kvb_buf_done) struct kvb_buf buf = { 0 };
    struct kvb_heartbeat heartbeat = {
        .worker_id = worker_id,
        .epoch_first_id = 1000,
        .last_id = world->last_id,
        .state = KVB_STREAM_EXACT,
        .formats = 1U << KVB_FORMAT_PROTOBUF,
        .model = "m",
        .block_size = block_size,
    };

    memset(heartbeat.epoch.bytes, 7, sizeof heartbeat.epoch.bytes);
    heartbeat.tiers[KVB_TIER_DEVICE].blocks = blocks;
    kvb_buf_init(&buf, 4096);
    assert_ok(kvb_heartbeat_encode(&heartbeat, &buf));
    publish(world, P "kv_heartbeat", &buf);
}

static void hold(struct world *world, uint64_t worker_id)
{
    KVB_OWN(kvb_router_batch_done) struct kvb_router_batch batch = { 0 };
    KVB_OWN(kvb_buf_done) struct kvb_buf buf = { 0 };

    fill_batch(world, &batch, worker_id);
    kvb_buf_init(&buf, 4096);
    assert_ok(kvb_router_proto_encode(&batch, 0, batch.event_count, &buf));
    publish(world, P "kv_events_pb", &buf);
    beat(world, worker_id);
}

static void say_load(struct world *world, uint64_t worker_id, uint64_t active_blocks)
{
    KVB_OWN(kvb_buf_done) struct kvb_buf buf = { 0 };
    const struct kvb_load_report report = {
        .worker_id = worker_id,
        .endpoint_name = "generate",
        .load = { .kv_active_blocks = active_blocks, .kv_total_blocks = 100 },
    };

    kvb_buf_init(&buf, 4096);
    assert_ok(kvb_load_json_encode(&report, &buf));
    publish(world, P "load_metrics", &buf);
}

/* ---- Requests ---- */

static void keep_answer(void *context, const struct kvb_bus_message *message)
{
    struct world *world = context;
    unsigned count = 0;

    keep(&count, world->answer, message->payload);
}

static const char *ask(struct world *world, const char *subject, const char *question)
{
    struct kvb_detail detail = { { 0 } };
    const kvb_span payload = { .data = (const uint8_t *)question, .len = strlen(question) };

    assert_ok(
        kvb_bus_request(world->bus, subject, payload, patience_ms, keep_answer, world, &detail));
    return world->answer;
}

static void read_all(int fd, char out[text_bytes])
{
    size_t used = 0;
    ssize_t got = 0;

    while (used < text_bytes - 1 && (got = recv(fd, out + used, text_bytes - 1 - used, 0)) > 0) {
        used += (size_t)got;
    }
    out[used] = '\0';
    close(fd);
}

static const char *http(struct world *world, const char *method, const char *path, const char *body)
{
    struct sockaddr_in address = {
        .sin_family = AF_INET,
        .sin_port = htons(kvb_aggregator_http_port(world->aggregator)),
    };
    char request[1024];
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const int len = snprintf(
        request, sizeof request,
        "%s %s HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: application/json\r\n"
        "Content-Length: %zu\r\n\r\n%s",
        method, path, strlen(body), body);

    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    assert_int_equal(connect(fd, (const struct sockaddr *)&address, sizeof address), 0);
    assert_int_equal(send(fd, request, (size_t)len, MSG_NOSIGNAL), len);
    read_all(fd, world->answer);
    return world->answer;
}

/* ---- Waiting ---- */

struct wish {
    struct world *world;
    const char *path;
    const char *words; /* in the answer to GET path */
};

static bool is_answered(void *context)
{
    const struct wish *wish = context;

    return strstr(http(wish->world, "GET", wish->path, ""), wish->words) != NULL;
}

static void wait_for(struct world *world, const char *path, const char *words)
{
    struct wish wish = { .world = world, .path = path, .words = words };

    if (!wait_until(is_answered, &wish, patience_ms)) {
        fail_msg("%s: no %s in %s", path, words, world->answer);
    }
}

static void open_world(struct world *world)
{
    *world = (struct world){ 0 };
    pthread_mutex_init(&world->inbox.lock, NULL);
    assert_ok(nats_server_start(&world->server, 0, NULL));
    set_config(world, world->server.url);
    start_aggregator(world);
    open_client(world);
    wait_for(world, "/readyz", "ready\n");
}

#define PROMPT                                                                                     \
    "{\"token_ids\":[100,101,102,103,104,105,106,107,108,109,110,111,112,113,114,115,"             \
    "116,117,118,119,120,121,122,123,124,125,126,127,128,129,130,131,7]}"

/* ---- Tests ---- */

/* One message with so many events that it takes several turns, with a removal at its end. */
static void a_long_message_is_applied_whole_and_in_order(void **state)
{
    enum { runs = 100, run_blocks = 64 };
    (void)state;
    struct world world;
    open_world(&world);
    KVB_OWN(kvb_router_batch_done) struct kvb_router_batch batch = { 0 };
    KVB_OWN(kvb_buf_done) struct kvb_buf buf = { 0 };
    struct kvb_router_event event = { .kind = KVB_ROUTER_STORED };

    fill_batch(&world, &batch, 7);
    for (uint64_t run = 0; run < runs; run++) {
        event.event_id = ++world.last_id;
        assert_ok(kvb_router_batch_add_event(&batch, &event));
        for (uint64_t i = 0; i < run_blocks; i++) {
            const uint64_t block = (1 + run) * 1000 + i;
            assert_ok(kvb_router_batch_add_block(
                &batch, (kvb_block_hash){ block }, (kvb_tokens_hash){ block }));
        }
    }
    event.kind = KVB_ROUTER_REMOVED;
    for (uint64_t run = 0; run < runs; run++) {
        event.event_id = ++world.last_id;
        assert_ok(kvb_router_batch_add_event(&batch, &event));
        for (uint64_t i = run_blocks; i-- > 0;) {
            assert_ok(kvb_router_batch_add_block(
                &batch, (kvb_block_hash){ (1 + run) * 1000 + i }, (kvb_tokens_hash){ 0 }));
        }
    }
    kvb_buf_init(&buf, 1U << 20U);
    assert_ok(kvb_router_proto_encode(&batch, 0, batch.event_count, &buf));
    publish(&world, P "kv_events_pb", &buf);
    beat(&world, 7); /* proves that three blocks are left, and that every event was applied */
    wait_for(&world, "/streams", "\"state\":\"EXACT\"");
    close_world(&world);
}

/* ---- Queries beside events ---- */

/* Queries on a thread of its own, over HTTP or NATS, until it is told to stop. */
struct querier {
    struct world world; /* its own: aggregator and bus are shared, the answer is not */
    atomic_bool *is_over;
    pthread_t thread;
    unsigned whole, none; /* answers with all blocks of the prompt, with none */
    bool is_nats;
    bool has_half;
};

static void *query_again_and_again(void *context)
{
    struct querier *querier = context;

    while (!atomic_load(querier->is_over)) {
        const char *answer = querier->is_nats ? ask(&querier->world, R "kv_match", PROMPT)
                                              : http(&querier->world, "POST", "/query", PROMPT);
        const bool is_whole = strstr(answer, "\"gpu\":32") || strstr(answer, "\"device\":32");
        const bool is_half = strstr(answer, "\"gpu\":16") || strstr(answer, "\"device\":16");
        querier->whole += is_whole;
        querier->none += !is_whole && !is_half;
        querier->has_half |= is_half;
    }
    return NULL;
}

static void begin_querier(
    struct querier *querier, const struct world *world, bool is_nats, atomic_bool *is_over)
{
    *querier = (struct querier){ .is_nats = is_nats, .is_over = is_over };
    querier->world.aggregator = world->aggregator;
    querier->world.bus = world->bus;
    assert_int_equal(pthread_create(&querier->thread, NULL, query_again_and_again, querier), 0);
}

/* A worker stores three blocks in one event and clears them, over and over, among other messages.
 * Each answer has both full blocks of the prompt, or none: also those that other threads than the
 * index thread give. */
static void no_query_sees_a_part_of_an_event(void **state)
{
    enum { rounds = 300, queriers = 4 };
    (void)state;
    static struct world world;
    static struct querier group[queriers];
    atomic_bool is_over = false;
    open_world(&world);

    hold(&world, 7);
    wait_for(&world, "/streams", "EXACT");
    for (size_t i = 0; i < queriers; i++) {
        begin_querier(&group[i], &world, i % 2 == 1, &is_over);
    }
    for (int round = 0; round < rounds; round++) {
        KVB_OWN(kvb_router_batch_done) struct kvb_router_batch batch = { 0 };
        KVB_OWN(kvb_buf_done) struct kvb_buf buf = { 0 };
        const uint64_t first_id = world.last_id + 1;
        fill_batch(&world, &batch, 7);
        batch.events[0].event_id = first_id;
        batch.events[1].event_id = first_id + 1;
        world.last_id = first_id + 1;
        kvb_buf_init(&buf, 4096);
        assert_ok(kvb_router_proto_encode(&batch, 0, batch.event_count, &buf));
        publish(&world, P "kv_events_pb", &buf);
        say_load(&world, 7, (uint64_t)round);
        assert_ok(kvb_bus_flush(world.bus, patience_ms));
    }
    beat(&world, 7);
    atomic_store(&is_over, true);
    for (size_t i = 0; i < queriers; i++) {
        (void)pthread_join(group[i].thread, NULL);
        assert_false(group[i].has_half);
        assert_true(group[i].whole > 0);
    }
    wait_for(&world, "/streams", "\"state\":\"EXACT\"");
    close_world(&world);
}

struct hope {
    struct world *world;
    const char *kind; /* "kv_match" or "http" */
};

static bool is_answered_at_once(void *context)
{
    const struct hope *hope = context;
    const char *words = "\nkvb_questions_at_once_total 0\n";

    if (strcmp(hope->kind, "http") == 0) {
        (void)http(hope->world, "POST", "/query", PROMPT);
    } else {
        (void)ask(hope->world, R "kv_match", PROMPT);
    }
    return !strstr(http(hope->world, "GET", "/metrics", ""), words);
}

static void an_idle_index_is_queried_without_waking_its_thread(void **state)
{
    (void)state;
    static const char *const kinds[] = { "http", "kv_match" };

    for (size_t i = 0; i < KVB_COUNT_OF(kinds); i++) {
        struct world world;
        open_world(&world);
        struct hope hope = { .world = &world, .kind = kinds[i] };
        hold(&world, 7);
        wait_for(&world, "/streams", "EXACT");
        assert_true(wait_until(is_answered_at_once, &hope, patience_ms));
        close_world(&world);
    }
}

static void stops_while_it_is_being_flooded(void **state)
{
    (void)state;
    struct world world;
    open_world(&world);

    for (size_t i = 0; i < 20000; i++) {
        say_load(&world, i % 50, i);
    }
    close_world(&world);
}

SUITE(aggregator)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_long_message_is_applied_whole_and_in_order),
        cmocka_unit_test(no_query_sees_a_part_of_an_event),
        cmocka_unit_test(an_idle_index_is_queried_without_waking_its_thread),
        cmocka_unit_test(stops_while_it_is_being_flooded),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
