#include "fleet/serve.h"

#include "core/clock.h"
#include "core/own.h"
#include "fleet/fleet_scene.h"
#include "kvb_test.h"

#include <arpa/inet.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* Two workers (7 and 8) of two ranks each, which compute only requests that arrive over HTTP. The
 * test runs the fleet in its own thread. */
struct scene {
    struct fixture fixture;
    struct kvb_metrics_page *page;
    struct kvb_serve *serve;
};

static const uint64_t patience_ns = 10 * KVB_NS_PER_S;

static void scene_begin(struct scene *scene)
{
    struct kvb_fleet_options fleet = begin_set_up(&scene->fixture);
    const struct kvb_metrics_page_options page = {
        .model = "m", .first_worker = 7, .workers = workers, .ranks = ranks, .block_size = 16
    };

    fleet.requests_per_s = 0;
    assert_ok(kvb_fleet_new(&fleet, NULL, &scene->fixture.fleet));
    assert_ok(kvb_metrics_page_start(&page, NULL, &scene->page));
    const struct kvb_serve_options serve = { .address = "127.0.0.1",
                                             .model = "m",
                                             .page = scene->page,
                                             .workers = workers,
                                             .ranks = ranks };
    assert_ok(kvb_serve_start(&serve, NULL, &scene->serve));
}

static void scene_end(struct scene *scene)
{
    kvb_serve_stop(scene->serve);
    kvb_metrics_page_stop(scene->page);
    tear_down(&scene->fixture);
    kvb_serve_free(scene->serve);
}

static void turn(struct scene *scene)
{
    kvb_serve_admit(scene->serve, scene->fixture.fleet);
    tick(&scene->fixture, 1);
    kvb_serve_pass_on(scene->serve);
}

/* ---- A client ---- */

struct client {
    size_t len;
    int fd;
    bool is_closed;     /* closed by the server */
    char text[1 << 16]; /* of the answer received so far */
};

static void client_open(
    struct scene *scene, uint32_t worker, const char *head, const char *body, struct client *client)
{
    struct sockaddr_in address = { .sin_family = AF_INET,
                                   .sin_port = htons(kvb_serve_port(scene->serve, worker)),
                                   .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    char request[4096];

    client->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    client->len = 0;
    client->text[0] = '\0';
    client->is_closed = false;
    assert_int_equal(connect(client->fd, (struct sockaddr *)&address, sizeof address), 0);
    const int len = snprintf(
        request, sizeof request,
        "%s\r\nHost: x\r\nConnection: close\r\nContent-Length: %zu\r\n\r\n%s", head, strlen(body),
        body);
    assert_true(len > 0 && (size_t)len < sizeof request);
    assert_int_equal(send(client->fd, request, (size_t)len, 0), len);
}

/* Reads what has arrived; waits at most 10 ms. */
static void client_read(struct client *client)
{
    struct pollfd poll_fd = { .fd = client->fd, .events = POLLIN };

    if (client->is_closed || poll(&poll_fd, 1, 10) <= 0) {
        return;
    }
    const ssize_t more =
        recv(client->fd, client->text + client->len, sizeof client->text - 1 - client->len, 0);
    client->is_closed = more <= 0;
    client->len += more > 0 ? (size_t)more : 0;
    client->text[client->len] = '\0';
}

/* Runs the fleet until the answer contains this part; NULL: until the answer ends. */
static void turn_until(struct scene *scene, struct client *client, const char *part)
{
    const uint64_t until_ns = kvb_clock_monotonic_ns() + patience_ns;

    while (part ? !strstr(client->text, part) : !client->is_closed) {
        turn(scene);
        client_read(client);
        if (kvb_clock_monotonic_ns() > until_ns || (part && client->is_closed)) {
            client_read(client);
            assert_non_null(strstr(client->text, part ? part : "the end of the answer"));
            return;
        }
    }
}

static void client_close(struct client *client)
{
    (void)close(client->fd);
}

/* The whole answer, valid until the next one. */
static const char *ask(struct scene *scene, uint32_t worker, const char *head, const char *body)
{
    static struct client client;

    client_open(scene, worker, head, body, &client);
    turn_until(scene, &client, NULL);
    client_close(&client);
    return client.text;
}

#define COMPLETIONS "POST /v1/completions HTTP/1.1"
#define RANK_1 "\r\nX-data-parallel-rank: 1"
#define PROMPT "\"prompt\":\"0123456789abcdef0123456789abcdef.\""

static uint64_t active_on(const struct scene *scene, size_t at)
{
    return state_of(&scene->fixture, at).stats.load.request_active_slots;
}

static uint64_t waiting_on(const struct scene *scene, size_t at)
{
    return state_of(&scene->fixture, at).stats.load.num_requests_waiting;
}

/* Admits requests until so many wait on the rank.  The engines do no step meanwhile, so no request
 * ends, however long the server's thread takes. */
static void admit_until(struct scene *scene, size_t at, uint64_t count)
{
    const uint64_t until_ns = kvb_clock_monotonic_ns() + patience_ns;

    while (waiting_on(scene, at) < count) {
        kvb_serve_admit(scene->serve, scene->fixture.fleet);
        (void)poll(NULL, 0, 1);
        assert_true(kvb_clock_monotonic_ns() < until_ns);
    }
}

/* ---- The tests ---- */

static void the_second_request_finds_the_blocks_of_the_first(void **state)
{
    (void)state;
    struct scene scene;
    scene_begin(&scene);

    const char *answer =
        ask(&scene, 1, COMPLETIONS RANK_1, "{\"model\":\"m\"," PROMPT ",\"max_tokens\":2}");
    assert_ptr_equal(strstr(answer, "HTTP/1.1 200 "), answer);
    assert_non_null(strstr(answer, "\"cached_tokens\":0}"));
    answer = ask(&scene, 1, COMPLETIONS RANK_1, "{" PROMPT ",\"max_tokens\":2}");
    assert_non_null(strstr(answer, "\"prompt_tokens\":33,"));
    assert_non_null(strstr(answer, "\"cached_tokens\":32}"));
    assert_non_null(strstr(say(&scene.fixture, "truth 8 1"), "[48,49,50,"));
    assert_null(strstr(say(&scene.fixture, "truth 8 0"), "[48,49,50,"));
    scene_end(&scene);
}

static void tokens_are_sent_as_they_are_made(void **state)
{
    (void)state;
    struct scene scene;
    static struct client client;
    scene_begin(&scene);

    client_open(
        &scene, 0, COMPLETIONS,
        "{" PROMPT
        ",\"max_tokens\":100,\"stream\":true,\"stream_options\":{\"include_usage\":true}}",
        &client);
    turn_until(&scene, &client, "data: ");
    assert_non_null(strstr(client.text, "text/event-stream"));
    assert_null(strstr(client.text, "\"length\""));
    turn_until(&scene, &client, NULL);
    const char *last = strstr(client.text, "\"finish_reason\":\"length\"");
    const char *usage = strstr(client.text, "\"completion_tokens\":100,");
    const char *done = strstr(client.text, "data: [DONE]\n\n");
    assert_true(last && usage && done && last < usage && usage < done);
    client_close(&client);
    scene_end(&scene);
}

static void a_request_without_a_rank_goes_to_the_idlest(void **state)
{
    (void)state;
    struct scene scene;
    static struct client clients[2];
    scene_begin(&scene);

    for (size_t i = 0; i < 2; i++) {
        client_open(
            &scene, 0, COMPLETIONS, "{" PROMPT ",\"max_tokens\":2000,\"stream\":true}",
            &clients[i]);
        admit_until(&scene, i, 1);
    }
    assert_int_equal(waiting_on(&scene, 0), 1);
    client_close(&clients[0]);
    client_close(&clients[1]);
    scene_end(&scene);
}

static void a_request_whose_client_has_left_ends(void **state)
{
    (void)state;
    struct scene scene;
    static struct client client;
    scene_begin(&scene);

    client_open(
        &scene, 0, COMPLETIONS, "{" PROMPT ",\"max_tokens\":3900,\"stream\":true}", &client);
    turn_until(&scene, &client, "data: ");
    client_close(&client);
    const uint64_t until_ns = kvb_clock_monotonic_ns() + patience_ns;
    while (active_on(&scene, 0) > 0) {
        turn(&scene);
        /* Until the server's thread notices the closed connection.  All tokens would take longer
         * than the patience. */
        (void)poll(NULL, 0, 5);
        assert_true(kvb_clock_monotonic_ns() < until_ns);
    }
    scene_end(&scene);
}

static void a_restart_leaves_no_answer_that_looks_complete(void **state)
{
    (void)state;
    struct scene scene;
    static struct client stream;
    static struct client whole;
    scene_begin(&scene);

    client_open(
        &scene, 0, COMPLETIONS RANK_1, "{" PROMPT ",\"max_tokens\":3000,\"stream\":true}", &stream);
    client_open(&scene, 0, COMPLETIONS RANK_1, "{" PROMPT ",\"max_tokens\":3000}", &whole);
    admit_until(&scene, 1, 2);
    turn_until(&scene, &stream, "data: ");
    assert_int_equal(active_on(&scene, 1), 2);
    (void)say(&scene.fixture, "restart 7 1");
    turn_until(&scene, &whole, NULL);
    assert_ptr_equal(strstr(whole.text, "HTTP/1.1 500 "), whole.text);
    assert_non_null(strstr(whole.text, "the engine was restarted"));
    turn_until(&scene, &stream, NULL);
    assert_null(strstr(stream.text, "[DONE]"));
    /* the last chunk of a complete body is missing */
    assert_null(strstr(stream.text, "\r\n0\r\n"));
    client_close(&stream);
    client_close(&whole);
    scene_end(&scene);
}

static void each_refusal_gives_the_reason(void **state)
{
    (void)state;
    static const struct {
        const char *head;
        const char *body;
        const char *status;
        const char *part;
    } rows[] = {
        { "GET /v1/completions HTTP/1.1", "", "404", "there are POST /v1/completions, " },
        { "POST /v1/models HTTP/1.1", "{}", "404", "there are POST /v1/completions, " },
        { COMPLETIONS, "{\"model\":\"x\"," PROMPT "}", "404", "The model `x` does not exist." },
        { COMPLETIONS, "{", "400", "the body: expected JSON" },
        { COMPLETIONS, "{\"messages\":[{\"content\":\"x\"}]}", "400", "prompt: expected here" },
        { "POST /v1/chat/completions HTTP/1.1", "{" PROMPT "}", "400", "messages: expected here" },
        { COMPLETIONS "\r\nX-data-parallel-rank: 2", "{" PROMPT "}", "400", "no such rank" },
        { COMPLETIONS "\r\nX-data-parallel-rank: x", "{" PROMPT "}", "400", "no such rank" },
        { COMPLETIONS, "{" PROMPT ",\"max_tokens\":4096}", "400", "prompt: too long" },
        { "POST /tokenize HTTP/1.1", "{\"prompt\":7}", "400", "prompt: expected one text" },
        { "POST /tokenize HTTP/1.1", "{\"prompt\":\"ab\"}", "200", "\"tokens\":[97,98]}" },
    };
    struct scene scene;
    scene_begin(&scene);

    for (size_t i = 0; i < KVB_COUNT_OF(rows); i++) {
        const char *answer = ask(&scene, 0, rows[i].head, rows[i].body);
        assert_non_null(strstr(answer, rows[i].part));
        assert_memory_equal(answer + strlen("HTTP/1.1 "), rows[i].status, 3);
    }
    scene_end(&scene);
}

/* Eight requests wait on one rank. */
static void a_full_queue_refuses(void **state)
{
    (void)state;
    enum { count = 8 };
    struct scene scene;
    static struct client clients[count + 1];
    scene_begin(&scene);

    for (size_t i = 0; i < count; i++) {
        client_open(&scene, 0, COMPLETIONS RANK_1, "{" PROMPT "}", &clients[i]);
    }
    admit_until(&scene, 1, count);
    client_open(&scene, 0, COMPLETIONS RANK_1, "{" PROMPT "}", &clients[count]);
    const uint64_t until_ns = kvb_clock_monotonic_ns() + patience_ns;
    while (!clients[count].is_closed) {
        kvb_serve_admit(scene.serve, scene.fixture.fleet);
        client_read(&clients[count]);
        assert_true(kvb_clock_monotonic_ns() < until_ns);
    }
    assert_non_null(strstr(clients[count].text, "the queue of the rank is full"));
    for (size_t i = 0; i < count; i++) {
        turn_until(&scene, &clients[i], "\"length\"");
        client_close(&clients[i]);
    }
    client_close(&clients[count]);
    scene_end(&scene);
}

static void the_metrics_are_those_of_the_worker(void **state)
{
    (void)state;
    const struct kvb_engine_stats stats = { .load.request_active_slots = 12 };
    struct scene scene;
    scene_begin(&scene);

    kvb_metrics_page_set(scene.page, 1, 0, &stats);
    assert_non_null(strstr(
        ask(&scene, 1, "GET /metrics HTTP/1.1", ""),
        "\nvllm:num_requests_running{engine=\"0\",model_name=\"m\"} 12\n"));
    assert_non_null(strstr(
        ask(&scene, 0, "GET /metrics HTTP/1.1", ""),
        "\nvllm:num_requests_running{engine=\"0\",model_name=\"m\"} 0\n"));
    scene_end(&scene);
}

/* The server's thread reads its connections in turns: after two answers it has read what came
 * before. */
static void let_the_server_read(struct scene *scene)
{
    static struct client client;

    for (int i = 0; i < 2; i++) {
        client_open(scene, 0, "GET /metrics HTTP/1.1", "", &client);
        while (!client.is_closed) {
            client_read(&client);
        }
        client_close(&client);
    }
}

/* One request is in the engine and one waits for admission. libmicrohttpd cannot stop while
 * connections are suspended. */
static void it_stops_with_requests_under_way(void **state)
{
    (void)state;
    struct scene scene;
    static struct client running;
    static struct client queued;
    scene_begin(&scene);

    client_open(
        &scene, 0, COMPLETIONS, "{" PROMPT ",\"max_tokens\":3000,\"stream\":true}", &running);
    turn_until(&scene, &running, "data: ");
    client_open(&scene, 0, COMPLETIONS, "{" PROMPT "}", &queued);
    let_the_server_read(&scene);
    scene_end(&scene);
    while (!running.is_closed || !queued.is_closed) {
        client_read(&running);
        client_read(&queued);
    }
    assert_null(strstr(running.text, "[DONE]"));
    client_close(&running);
    client_close(&queued);
}

static void reports_which_port_it_cannot_use(void **state)
{
    (void)state;
    struct scene scene;
    struct kvb_serve *second = NULL;
    struct kvb_detail detail = { 0 };
    char expected[80];
    scene_begin(&scene);

    const uint16_t taken = kvb_serve_port(scene.serve, 0);
    const struct kvb_serve_options serve = { .address = "127.0.0.1",
                                             .base_port = taken,
                                             .model = "m",
                                             .page = scene.page,
                                             .workers = 1,
                                             .ranks = ranks };
    assert_int_equal(kvb_serve_start(&serve, &detail, &second), KVB_BAD_CONFIG);
    (void)snprintf(
        expected, sizeof expected, "127.0.0.1:%u: cannot be listened on (in use?)", taken);
    assert_string_equal(detail.text, expected);
    scene_end(&scene);
}

SUITE(serve)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_second_request_finds_the_blocks_of_the_first),
        cmocka_unit_test(tokens_are_sent_as_they_are_made),
        cmocka_unit_test(a_request_without_a_rank_goes_to_the_idlest),
        cmocka_unit_test(a_request_whose_client_has_left_ends),
        cmocka_unit_test(a_restart_leaves_no_answer_that_looks_complete),
        cmocka_unit_test(each_refusal_gives_the_reason),
        cmocka_unit_test(a_full_queue_refuses),
        cmocka_unit_test(the_metrics_are_those_of_the_worker),
        cmocka_unit_test(it_stops_with_requests_under_way),
        cmocka_unit_test(reports_which_port_it_cannot_use),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
