#include "control/control.h"
#include "core/clock.h"
#include "core/limits.h"
#include "grpc/server.h"

#include "kvb_test.h"

#include <arpa/inet.h>
#include <nghttp2/nghttp2.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

enum { patience_ms = 10000, max_held = 64 };

/* In the order of KVB_GRPC_METRICS. */
enum {
#define METRIC_ID(id, type, name, labels, help) count_##id,
    KVB_GRPC_METRICS(METRIC_ID)
#undef METRIC_ID
        metric_count
};

static const struct kvb_metric_row rows[] = {
#define METRIC_ROW(id, type, name, labels, help) { name, labels, help, KVB_METRIC_##type },
    KVB_GRPC_METRICS(METRIC_ROW)
#undef METRIC_ROW
};

/* ---- The server under test: its calls are answered by a thread, or kept ---- */

struct scene {
    struct kvb_control *control;
    struct kvb_grpc *grpc;
    _Atomic uint64_t values[metric_count];
    struct kvb_metrics metrics;
    pthread_mutex_t lock;
    struct kvb_grpc_call *held[max_held];
    size_t held_count;
    bool holds; /* calls are kept until release_calls() */
};

static void finish_call(struct kvb_grpc_call *call)
{
    assert_ok(kvb_buf_append_text(kvb_grpc_call_message(call), "pong"));
    kvb_grpc_call_finish(call, KVB_GRPC_OK);
}

static void *answer_call(void *context)
{
    finish_call(context);
    return NULL;
}

static enum kvb_grpc_status
take_call(void *context, struct kvb_grpc_call *call, size_t method, kvb_span message)
{
    struct scene *scene = context;
    pthread_t thread;

    assert_int_equal(method, 0);
    if (message.len != 4) {
        return KVB_GRPC_INVALID_ARGUMENT;
    }
    (void)pthread_mutex_lock(&scene->lock);
    const bool holds = scene->holds;
    if (holds) {
        scene->held[scene->held_count++] = call;
    }
    (void)pthread_mutex_unlock(&scene->lock);
    if (!holds) {
        assert_int_equal(pthread_create(&thread, NULL, answer_call, call), 0);
        assert_int_equal(pthread_detach(thread), 0);
    }
    return KVB_GRPC_LATER;
}

static size_t held_calls(struct scene *scene)
{
    (void)pthread_mutex_lock(&scene->lock);
    const size_t count = scene->held_count;
    (void)pthread_mutex_unlock(&scene->lock);
    return count;
}

static void release_calls(struct scene *scene)
{
    for (size_t i = 0; i < scene->held_count; i++) {
        finish_call(scene->held[i]);
    }
    scene->held_count = 0;
}

static const struct kvb_grpc_method methods[] = {
    { .path = "/x.Y/Z", .kind = KVB_GRPC_UNARY, .max_message_bytes = 1 << 20 },
};

struct limits {
    unsigned max_connections;
    uint64_t grace_ms, idle_ms;
};

static void start_scene(struct scene *scene, struct limits limits)
{
    struct kvb_detail detail = { "" };
    struct sockaddr_storage address = { 0 };
    const struct sockaddr_in loopback = { .sin_family = AF_INET,
                                          .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    assert_ok(kvb_control_new(&scene->control));
    assert_ok(kvb_control_start(scene->control));
    const struct kvb_grpc_options options = {
        .control = scene->control,
        .address = &address,
        .listen = "127.0.0.1:0",
        .listener = KVB_LISTENER_GRPC,
        .methods = methods,
        .method_count = 1,
        .max_under_way = 4,
        .max_connections = limits.max_connections,
        .grace_ms = limits.grace_ms,
        .idle_ms = limits.idle_ms,
        .handler = take_call,
        .context = scene,
        .metrics = &scene->metrics,
    };

    scene->metrics = (struct kvb_metrics){ rows, scene->values, metric_count };
    (void)pthread_mutex_init(&scene->lock, NULL);
    memcpy(&address, &loopback, sizeof loopback);
    assert_ok(kvb_grpc_start(&options, &scene->grpc, &detail));
}

static void stop_scene(struct scene *scene)
{
    kvb_grpc_stop(scene->grpc);
    kvb_grpc_free(scene->grpc);
    kvb_control_free(scene->control);
    assert_int_equal(kvb_metric_get(&scene->metrics, count_grpc_connections), 0);
    assert_int_equal(kvb_metric_get(&scene->metrics, count_grpc_held), 0);
}

/* ---- A client of nghttp2 on a socket ---- */

struct client {
    int fd;
    nghttp2_session *http2;
    size_t closed; /* streams */
    int grpc_status;
    uint32_t goaway_code;
    bool is_over; /* the server has closed the connection */
    char answer[16];
    size_t answer_len;
};

static int on_client_header(
    nghttp2_session *http2, const nghttp2_frame *frame, const uint8_t *name, size_t name_len,
    const uint8_t *value, size_t value_len, uint8_t flags, void *context)
{
    struct client *client = context;

    (void)http2;
    (void)frame;
    (void)flags;
    if (name_len == 11 && memcmp(name, "grpc-status", 11) == 0) {
        client->grpc_status = value_len == 1 ? value[0] - '0' : 10 + value[1] - '0';
    }
    return 0;
}

static int on_client_data(
    nghttp2_session *http2, uint8_t flags, int32_t id, const uint8_t *bytes, size_t len,
    void *context)
{
    struct client *client = context;

    (void)http2;
    (void)flags;
    (void)id;
    assert_true(client->answer_len + len <= sizeof client->answer);
    memcpy(client->answer + client->answer_len, bytes, len);
    client->answer_len += len;
    return 0;
}

static int on_client_close(nghttp2_session *http2, int32_t id, uint32_t code, void *context)
{
    struct client *client = context;

    (void)http2;
    (void)id;
    (void)code;
    client->closed++;
    return 0;
}

static int on_client_frame(nghttp2_session *http2, const nghttp2_frame *frame, void *context)
{
    struct client *client = context;

    (void)http2;
    if (frame->hd.type == NGHTTP2_GOAWAY) {
        client->goaway_code = frame->goaway.error_code;
    }
    return 0;
}

static void open_socket(struct client *client, const struct scene *scene)
{
    struct sockaddr_in address = { .sin_family = AF_INET,
                                   .sin_addr.s_addr = htonl(INADDR_LOOPBACK),
                                   .sin_port = htons(kvb_grpc_port(scene->grpc)) };

    *client = (struct client){ .fd = socket(AF_INET, SOCK_STREAM, 0), .grpc_status = -1 };
    assert_true(client->fd >= 0);
    assert_int_equal(connect(client->fd, (const struct sockaddr *)&address, sizeof address), 0);
}

static void open_client(struct client *client, const struct scene *scene)
{
    nghttp2_session_callbacks *callbacks = NULL;

    open_socket(client, scene);
    assert_int_equal(nghttp2_session_callbacks_new(&callbacks), 0);
    nghttp2_session_callbacks_set_on_header_callback(callbacks, on_client_header);
    nghttp2_session_callbacks_set_on_data_chunk_recv_callback(callbacks, on_client_data);
    nghttp2_session_callbacks_set_on_stream_close_callback(callbacks, on_client_close);
    nghttp2_session_callbacks_set_on_frame_recv_callback(callbacks, on_client_frame);
    assert_int_equal(nghttp2_session_client_new(&client->http2, callbacks, client), 0);
    assert_int_equal(nghttp2_submit_settings(client->http2, NGHTTP2_FLAG_NONE, NULL, 0), 0);
    nghttp2_session_callbacks_del(callbacks);
}

static void close_client(struct client *client)
{
    nghttp2_session_del(client->http2);
    (void)close(client->fd);
}

static void flush_client(struct client *client)
{
    const uint8_t *bytes = NULL;
    ssize_t len = 0;

    while ((len = nghttp2_session_mem_send(client->http2, &bytes)) > 0) {
        (void)send(client->fd, bytes, (size_t)len, MSG_NOSIGNAL); /* it may be closed */
    }
}

static void read_client(struct client *client)
{
    uint8_t bytes[4096];
    struct pollfd readable = { .fd = client->fd, .events = POLLIN };

    if (poll(&readable, 1, 10) == 1) {
        const ssize_t len = recv(client->fd, bytes, sizeof bytes, 0);
        client->is_over = len <= 0;
        if (len > 0) {
            assert_int_equal(nghttp2_session_mem_recv(client->http2, bytes, (size_t)len), len);
        }
    }
}

static bool is_turn_true(struct client *client, bool (*is_true)(const struct client *client))
{
    flush_client(client);
    if (!is_true(client)) {
        read_client(client);
    }
    return is_true(client);
}

static void run_client(struct client *client, bool (*is_true)(const struct client *client))
{
    const uint64_t end_ns = kvb_clock_monotonic_ns() + patience_ms * KVB_NS_PER_MS;

    while (!is_turn_true(client, is_true)) {
        assert_true(kvb_clock_monotonic_ns() < end_ns);
    }
}

static bool is_one_closed(const struct client *client)
{
    return client->closed == 1;
}

static bool is_connection_over(const struct client *client)
{
    return client->is_over;
}

static ssize_t read_ping(
    nghttp2_session *http2, int32_t id, uint8_t *out, size_t len, uint32_t *flags,
    nghttp2_data_source *source, void *context)
{
    static const uint8_t ping[] = { 0, 0, 0, 0, 4, 'p', 'i', 'n', 'g' };

    (void)http2;
    (void)id;
    (void)source;
    (void)context;
    assert_true(len >= sizeof ping);
    memcpy(out, ping, sizeof ping);
    *flags = NGHTTP2_DATA_FLAG_EOF;
    return sizeof ping;
}

static void send_ping(struct client *client)
{
    char texts[][2][20] = { { ":method", "POST" },
                            { ":scheme", "http" },
                            { ":path", "/x.Y/Z" },
                            { ":authority", "a" },
                            { "content-type", "application/grpc" } };
    nghttp2_nv headers[5];
    const nghttp2_data_provider body = { .read_callback = read_ping };

    for (size_t i = 0; i < 5; i++) {
        headers[i] = (nghttp2_nv){ (uint8_t *)texts[i][0], (uint8_t *)texts[i][1],
                                   strlen(texts[i][0]), strlen(texts[i][1]), NGHTTP2_NV_FLAG_NONE };
    }
    assert_true(nghttp2_submit_request(client->http2, NULL, headers, 5, &body, NULL) > 0);
    flush_client(client);
}

static void check_ping(struct client *client)
{
    client->closed = 0;
    client->answer_len = 0;
    send_ping(client);
    run_client(client, is_one_closed);
    assert_int_equal(client->grpc_status, 0);
    assert_int_equal(client->answer_len, 9);
    assert_memory_equal(client->answer, "\0\0\0\0\4pong", 9);
}

/* ---- The tests ---- */

static void answers_from_another_thread(void **state)
{
    struct scene scene = { 0 };
    struct client client;

    (void)state;
    start_scene(&scene, (struct limits){ 0 });
    open_client(&client, &scene);
    for (size_t i = 0; i < 100; i++) {
        check_ping(&client);
    }
    assert_int_equal(kvb_metric_get(&scene.metrics, count_grpc_ok), 100);
    close_client(&client);
    stop_scene(&scene);
}

/* Requests under way are answered, and a GOAWAY tells clients to connect elsewhere. */
static void stops_after_its_answers(void **state)
{
    struct scene scene = { .holds = true };
    struct client client;
    pthread_t stopper;

    (void)state;
    start_scene(&scene, (struct limits){ 0 });
    open_client(&client, &scene);
    send_ping(&client);
    while (held_calls(&scene) == 0) {
        read_client(&client);
        flush_client(&client);
    }
    union {
        void (*stop)(struct kvb_grpc *grpc);
        void *(*run)(void *context);
    } as_thread = { .stop = kvb_grpc_stop }; /* the result of the thread is not used */
    assert_int_equal(pthread_create(&stopper, NULL, as_thread.run, scene.grpc), 0);
    release_calls(&scene);
    run_client(&client, is_connection_over);
    assert_int_equal(client.closed, 1);
    assert_int_equal(client.grpc_status, 0);
    assert_int_equal(client.goaway_code, NGHTTP2_REFUSED_STREAM);
    close_client(&client);
    assert_int_equal(pthread_join(stopper, NULL), 0);
    kvb_grpc_free(scene.grpc);
}

/* Calls may be finished after the server has stopped. */
static void ends_although_calls_are_not_finished(void **state)
{
    struct scene scene = { .holds = true };
    struct client client;

    (void)state;
    start_scene(&scene, (struct limits){ 0 });
    open_client(&client, &scene);
    send_ping(&client);
    while (held_calls(&scene) == 0) {
        read_client(&client);
        flush_client(&client);
    }
    kvb_grpc_stop(scene.grpc);
    assert_true(kvb_grpc_call_is_over(scene.held[0], 0));
    release_calls(&scene);
    kvb_grpc_free(scene.grpc);
    close_client(&client);
}

static void knows_that_a_client_is_gone(void **state)
{
    struct scene scene = { .holds = true };
    struct client client;

    (void)state;
    start_scene(&scene, (struct limits){ 0 });
    open_client(&client, &scene);
    send_ping(&client);
    while (held_calls(&scene) == 0) {
        read_client(&client);
        flush_client(&client);
    }
    assert_false(kvb_grpc_call_is_over(scene.held[0], 0));
    close_client(&client);
    const uint64_t end_ns = kvb_clock_monotonic_ns() + patience_ms * KVB_NS_PER_MS;
    while (!kvb_grpc_call_is_over(scene.held[0], 0)) {
        assert_true(kvb_clock_monotonic_ns() < end_ns);
    }
    release_calls(&scene);
    /* its place is free again */
    scene.holds = false;
    open_client(&client, &scene);
    check_ping(&client);
    close_client(&client);
    stop_scene(&scene);
}

static void closes_who_sends_no_request(void **state)
{
    struct scene scene = { 0 };
    struct client silent;
    struct client greeting;

    (void)state;
    start_scene(&scene, (struct limits){ .grace_ms = 300 });
    open_client(&silent, &scene); /* sends nothing at all */
    open_client(&greeting, &scene);
    run_client(&greeting, is_connection_over);
    while (!silent.is_over) {
        read_client(&silent);
    }
    assert_int_equal(kvb_metric_get(&scene.metrics, count_grpc_closed_late), 2);
    close_client(&silent);
    close_client(&greeting);
    stop_scene(&scene);
}

static void closes_an_idle_connection(void **state)
{
    struct scene scene = { 0 };
    struct client client;

    (void)state;
    start_scene(&scene, (struct limits){ .idle_ms = 200 });
    open_client(&client, &scene);
    check_ping(&client);
    run_client(&client, is_connection_over);
    assert_int_equal(client.goaway_code, NGHTTP2_REFUSED_STREAM);
    assert_int_equal(kvb_metric_get(&scene.metrics, count_grpc_closed_idle), 1);
    close_client(&client);
    stop_scene(&scene);
}

/* SETTINGS come before GOAWAY: else clients take it for an error of the protocol. */
static void check_refusal(const struct client *client)
{
    assert_int_equal(client->goaway_code, NGHTTP2_REFUSED_STREAM);
    assert_int_equal(
        nghttp2_session_get_remote_settings(client->http2, NGHTTP2_SETTINGS_MAX_CONCURRENT_STREAMS),
        kvb_grpc_max_streams);
}

/* The router that is idle keeps its own, though it is older. */
static void a_new_connection_gets_the_place_of_an_unproven_one(void **state)
{
    struct scene scene = { 0 };
    struct client proven;
    struct client unproven;
    struct client newest;
    size_t refusals = 0;

    (void)state;
    start_scene(&scene, (struct limits){ .max_connections = 2 });
    open_client(&proven, &scene);
    check_ping(&proven);
    open_client(&unproven, &scene);
    flush_client(&unproven);
    bool is_refused = false;
    do { /* a young connection does not make room: the new one is refused */
        open_client(&newest, &scene);
        send_ping(&newest);
        run_client(&newest, is_one_closed);
        is_refused = newest.grpc_status != 0;
        if (is_refused) {
            run_client(&newest, is_connection_over);
            check_refusal(&newest);
            refusals++;
            close_client(&newest);
        }
    } while (is_refused);
    assert_true(refusals > 0);
    check_ping(&proven);
    run_client(&unproven, is_connection_over);
    assert_int_equal(kvb_metric_get(&scene.metrics, count_grpc_closed_crowded), refusals + 1);
    close_client(&proven);
    close_client(&unproven);
    close_client(&newest);
    stop_scene(&scene);
}

SUITE(server)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(answers_from_another_thread),
        cmocka_unit_test(stops_after_its_answers),
        cmocka_unit_test(ends_although_calls_are_not_finished),
        cmocka_unit_test(knows_that_a_client_is_gone),
        cmocka_unit_test(closes_who_sends_no_request),
        cmocka_unit_test(closes_an_idle_connection),
        cmocka_unit_test(a_new_connection_gets_the_place_of_an_unproven_one),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
