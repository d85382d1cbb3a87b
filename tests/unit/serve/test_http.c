#include "core/own.h"
#include "process.h"
#include "serve/http.h"

#include "kvb_test.h"

#include <arpa/inet.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { patience_ms = 10000, max_body = 1000, answer_bytes = 8192, many = 200 };

/* ---- The server under test ------------------------------------------------------------ */

struct room {
    struct kvb_http *http;
    _Atomic unsigned calls;
    _Atomic unsigned inside;
    _Atomic bool may_leave;
};

/* Says back what it was asked. */
static void
echo(void *context, const struct kvb_http_request *request, struct kvb_http_answer *answer)
{
    struct room *room = context;

    atomic_fetch_add(&room->calls, 1);
    answer->status = strcmp(request->path, "/nowhere") == 0 ? 404 : 200;
    answer->content_type = "text/plain";
    answer->allow = strcmp(request->path, "/nowhere") == 0 ? "GET" : NULL;
    assert_ok(kvb_buf_append_format(
        &answer->body, "%s %s query=%s type=%s auth=%s body=%.*s", request->method, request->path,
        request->query, request->content_type, request->authorization, (int)request->body.len,
        (const char *)request->body.data));
}

static bool may_leave(void *context)
{
    struct room *room = context;

    return atomic_load(&room->may_leave);
}

static void
wait_inside(void *context, const struct kvb_http_request *request, struct kvb_http_answer *answer)
{
    struct room *room = context;

    (void)request;
    atomic_fetch_add(&room->inside, 1);
    assert_true(wait_until(may_leave, room, patience_ms));
    answer->status = 200;
    atomic_fetch_add(&room->calls, 1);
}

static void start_with(struct room *room, kvb_http_handler handler, unsigned max_connections)
{
    const struct kvb_http_options options = {
        .listen = "127.0.0.1:0",
        .max_connections = max_connections,
        .max_body_bytes = max_body,
        .threads = 4,
        .handler = handler,
        .context = room,
    };
    struct kvb_detail detail = { 0 };

    assert_ok(kvb_http_start(&options, &room->http, &detail));
    assert_int_not_equal(kvb_http_port(room->http), 0);
}

static void start(struct room *room, kvb_http_handler handler)
{
    start_with(room, handler, 0);
}

/* ---- A client that sends exactly what it is told ---------------------------------------- */

static int dial(const struct room *room)
{
    struct sockaddr_in address = { .sin_family = AF_INET,
                                   .sin_port = htons(kvb_http_port(room->http)) };
    const struct timeval patience = { .tv_sec = patience_ms / 1000 };
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    assert_true(fd >= 0);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience), 0);
    assert_int_equal(connect(fd, (const struct sockaddr *)&address, sizeof address), 0);
    return fd;
}

static void send_text(int fd, const char *text, size_t len)
{
    while (len > 0) {
        const ssize_t sent = send(fd, text, len, MSG_NOSIGNAL);
        assert_true(sent > 0);
        text += sent;
        len -= (size_t)sent;
    }
}

/* Until the server hangs up. */
static void read_all(int fd, char out[answer_bytes])
{
    size_t used = 0;
    ssize_t got = 0;

    while (used < answer_bytes - 1 &&
           (got = recv(fd, out + used, answer_bytes - 1 - used, 0)) > 0) {
        used += (size_t)got;
    }
    out[used] = '\0';
    close(fd);
}

static void ask(const struct room *room, const char *request, char out[answer_bytes])
{
    const int fd = dial(room);

    send_text(fd, request, strlen(request));
    read_all(fd, out);
}

static const char *body_of(const char *answer)
{
    const char *gap = strstr(answer, "\r\n\r\n");

    assert_non_null(gap);
    return gap + 4;
}

static void assert_status(const char *answer, const char *status)
{
    assert_int_equal(strncmp(answer, "HTTP/1.1 ", 9), 0);
    assert_int_equal(strncmp(answer + 9, status, 3), 0);
}

/* ---- Tests -------------------------------------------------------------------------------- */

static void a_get_reaches_the_handler_with_path_and_query_apart(void **state)
{
    struct room room = { 0 };
    char answer[answer_bytes];

    (void)state;
    start(&room, echo);
    ask(&room,
        "GET /dump?format=rows&x=%20y HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer t\r\n"
        "Connection: close\r\n\r\n",
        answer);
    assert_status(answer, "200");
    assert_non_null(strstr(answer, "Content-Type: text/plain\r\n"));
    assert_string_equal(
        body_of(answer), "GET /dump query=format=rows&x=%20y type= auth=Bearer t body=");
    assert_int_equal(atomic_load(&room.calls), 1);
    kvb_http_stop(room.http);
}

static void a_post_reaches_the_handler_once_with_its_whole_body(void **state)
{
    struct room room = { 0 };
    char answer[answer_bytes];

    (void)state;
    start(&room, echo);
    const int fd = dial(&room);
    static const char head[] =
        "POST /query HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\n"
        "Content-Length: 10\r\nConnection: close\r\n\r\n";
    send_text(fd, head, sizeof head - 1);
    for (const char *c = "0123456789"; *c; c++) {
        send_text(fd, c, 1);
    }
    read_all(fd, answer);
    assert_status(answer, "200");
    assert_string_equal(
        body_of(answer), "POST /query query= type=application/json auth= body=0123456789");
    assert_int_equal(atomic_load(&room.calls), 1);
    kvb_http_stop(room.http);
}

static void a_head_is_a_get_without_the_body(void **state)
{
    struct room room = { 0 };
    char answer[answer_bytes];

    (void)state;
    start(&room, echo);
    ask(&room, "HEAD /livez HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n", answer);
    assert_status(answer, "200");
    assert_non_null(strstr(answer, "Content-Length: 35\r\n"));
    assert_string_equal(body_of(answer), "");
    kvb_http_stop(room.http);
}

static void status_and_allow_are_the_handlers(void **state)
{
    struct room room = { 0 };
    char answer[answer_bytes];

    (void)state;
    start(&room, echo);
    ask(&room, "GET /nowhere HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n", answer);
    assert_status(answer, "404");
    assert_non_null(strstr(answer, "Allow: GET\r\n"));
    kvb_http_stop(room.http);
}

static void post_zeros(const struct room *room, size_t len, char answer[answer_bytes])
{
    char head[128];
    static const char zeros[4 * max_body];
    const int fd = dial(room);

    assert_true(len <= sizeof zeros);
    (void)snprintf(
        head, sizeof head,
        "POST /query HTTP/1.1\r\nHost: h\r\nContent-Length: %zu\r\nConnection: close\r\n\r\n", len);
    send_text(fd, head, strlen(head));
    (void)send(fd, zeros, len, MSG_NOSIGNAL); /* the server may have hung up already */
    read_all(fd, answer);
}

static void a_body_above_the_ceiling_gets_413_and_a_sentence(void **state)
{
    struct room room = { 0 };
    char answer[answer_bytes];

    (void)state;
    start(&room, echo);
    post_zeros(&room, max_body, answer);
    assert_status(answer, "200");
    assert_int_equal(atomic_load(&room.calls), 1);
    post_zeros(&room, max_body + 1, answer);
    assert_status(answer, "413");
    assert_string_equal(body_of(answer), "{\"error\":\"the body is larger than 1000 bytes\"}\n");
    assert_int_equal(atomic_load(&room.calls), 1);
    kvb_http_stop(room.http);
}

/* Answered from its headers alone, before a byte of it is sent. */
static void a_body_far_above_the_ceiling_is_not_waited_for(void **state)
{
    struct room room = { 0 };
    char answer[answer_bytes];

    (void)state;
    start(&room, echo);
    ask(&room,
        "POST /query HTTP/1.1\r\nHost: h\r\nContent-Length: 99999999999\r\n"
        "Connection: close\r\n\r\n",
        answer);
    assert_status(answer, "413");
    assert_int_equal(atomic_load(&room.calls), 0);
    kvb_http_stop(room.http);
}

static void an_endless_body_is_hung_up_on(void **state)
{
    static const char head[] =
        "POST /query HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n";
    static const char chunk[] = "10\r\n0123456789abcdef\r\n";
    struct room room = { 0 };

    (void)state;
    start(&room, echo);
    const int fd = dial(&room);
    send_text(fd, head, sizeof head - 1);
    size_t sent = 0;
    while (sent < (size_t)100 << 20 && send(fd, chunk, sizeof chunk - 1, MSG_NOSIGNAL) > 0) {
        sent += sizeof chunk - 1;
    }
    assert_true(sent < (size_t)100 << 20);
    close(fd);
    assert_int_equal(atomic_load(&room.calls), 0);
    kvb_http_stop(room.http);
}

static void what_is_no_http_leaves_nothing_behind(void **state)
{
    static const struct {
        const char *text;
        bool is_answered; /* else the server waits for more of it */
    } bad[] = {
        { "\r\n\r\n\r\n", false },
        { "\x16\x03\x01\x02", false },
        { "GET /half?of=it HTTP/1.1\r\nHost", false },
        { "GET\r\n\r\n", true },
        { "GET /a?b\r\n\r\n", true },
        { "GET / HTTP/9.9\r\n\r\n", true },
        { "GET /x?y HTTP/1.1\r\nContent-Length: -1\r\n\r\n", true },
    };
    struct room room = { 0 };
    char answer[answer_bytes];

    (void)state;
    start(&room, echo);
    for (size_t i = 0; i < KVB_COUNT_OF(bad); i++) {
        const int fd = dial(&room);
        send_text(fd, bad[i].text, strlen(bad[i].text));
        if (bad[i].is_answered) {
            read_all(fd, answer);
        } else {
            close(fd);
        }
    }
    ask(&room, "GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n", answer);
    assert_status(answer, "200");
    kvb_http_stop(room.http);
}

/* All are open before the first asks. */
static void two_hundred_connections_are_served_at_once(void **state)
{
    static const char request[] = "GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n";
    struct room room = { 0 };
    char answer[answer_bytes];
    int fds[many];

    (void)state;
    start(&room, echo);
    for (int i = 0; i < many; i++) {
        fds[i] = dial(&room);
    }
    for (int i = 0; i < many; i++) {
        send_text(fds[i], request, sizeof request - 1);
    }
    for (int i = 0; i < many; i++) {
        read_all(fds[i], answer);
        assert_status(answer, "200");
    }
    assert_int_equal(atomic_load(&room.calls), many);
    kvb_http_stop(room.http);
}

static const char get_and_stay[] = "GET / HTTP/1.1\r\nHost: h\r\n\r\n";

/* One answer of a connection that stays open. */
static void read_some(int fd, char out[answer_bytes])
{
    const ssize_t got = recv(fd, out, answer_bytes - 1, 0);

    assert_true(got > 0);
    out[got] = '\0';
}

static bool is_served(void *context)
{
    char answer[answer_bytes];

    ask(context, "GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n", answer);
    return strncmp(answer, "HTTP/1.1 200", 12) == 0;
}

static void a_connection_above_the_ceiling_is_told_so(void **state)
{
    enum { ceiling = 8 };
    struct room room = { 0 };
    char answer[answer_bytes];
    int fds[ceiling];

    (void)state;
    start_with(&room, echo, ceiling);
    for (int i = 0; i < ceiling; i++) {
        fds[i] = dial(&room);
        send_text(fds[i], get_and_stay, sizeof get_and_stay - 1);
        read_some(fds[i], answer);
        assert_status(answer, "200");
    }
    ask(&room, get_and_stay, answer); /* to its end: the server hangs up */
    assert_status(answer, "503");
    assert_string_equal(body_of(answer), "{\"error\":\"too many connections, try again later\"}\n");
    assert_int_equal(atomic_load(&room.calls), ceiling);
    send_text(fds[0], get_and_stay, sizeof get_and_stay - 1); /* who was there first stays */
    read_some(fds[0], answer);
    assert_status(answer, "200");
    for (int i = 0; i < ceiling; i++) {
        close(fds[i]);
    }
    assert_true(wait_until(is_served, &room, patience_ms));
    kvb_http_stop(room.http);
}

static void
large(void *context, const struct kvb_http_request *request, struct kvb_http_answer *answer)
{
    static const char zeros[1 << 20];
    struct room *room = context;

    (void)request;
    answer->status = 200;
    for (int i = 0; i < 32; i++) {
        assert_ok(kvb_buf_append(&answer->body, zeros, sizeof zeros));
    }
    atomic_fetch_add(&room->calls, 1);
}

/* With a reset, in the middle of an answer that fits no socket buffer. */
static void who_leaves_in_mid_answer_leaves_nothing_behind(void **state)
{
    enum { ceiling = 4 };
    static const struct linger at_once = { .l_onoff = 1 };
    struct room room = { 0 };
    char answer[answer_bytes];

    (void)state;
    start_with(&room, large, ceiling);
    for (int i = 0; i < 4 * ceiling; i++) {
        const int fd = dial(&room);
        send_text(fd, get_and_stay, sizeof get_and_stay - 1);
        read_some(fd, answer);
        assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once), 0);
        close(fd);
        assert_true(wait_until(is_served, &room, patience_ms));
    }
    kvb_http_stop(room.http);
}

static bool is_one_inside(void *context)
{
    struct room *room = context;

    return atomic_load(&room->inside) >= 1;
}

static void *let_leave(void *context)
{
    struct room *room = context;

    atomic_store(&room->may_leave, true);
    return NULL;
}

static void stops_while_requests_are_in_flight(void **state)
{
    static const char request[] = "GET / HTTP/1.1\r\nHost: h\r\n\r\n";
    struct room room = { 0 };
    pthread_t other;
    int fds[3];

    (void)state;
    start(&room, wait_inside);
    for (size_t i = 0; i < KVB_COUNT_OF(fds); i++) {
        fds[i] = dial(&room);
        send_text(fds[i], request, sizeof request - 1);
    }
    assert_true(wait_until(is_one_inside, &room, patience_ms));
    assert_int_equal(pthread_create(&other, NULL, let_leave, &room), 0);
    kvb_http_stop(room.http);
    assert_int_equal(pthread_join(other, NULL), 0);
    /* Whoever was inside has left, and nobody comes in any more. */
    assert_int_equal(atomic_load(&room.calls), atomic_load(&room.inside));
    for (size_t i = 0; i < KVB_COUNT_OF(fds); i++) {
        close(fds[i]);
    }
}

static void a_wrong_or_taken_address_is_a_sentence(void **state)
{
    static const char *const bad[] = { "",           "9402",   "127.0.0.1",       "127.0.0.1:",
                                       ":9402",      "host:1", "127.0.0.1:70000", "[::1:80",
                                       "127.0.0.1:x" };
    struct kvb_http_options options = { .max_body_bytes = 1, .threads = 1, .handler = echo };
    struct kvb_detail detail = { 0 };
    struct kvb_http *http = NULL;
    struct room room = { 0 };
    char taken[32];

    (void)state;
    for (size_t i = 0; i < KVB_COUNT_OF(bad); i++) {
        options.listen = bad[i];
        detail.text[0] = '\0';
        assert_int_equal(kvb_http_start(&options, &http, &detail), KVB_BAD_CONFIG);
        assert_non_null(strstr(detail.text, "http: cannot listen on"));
    }
    start(&room, echo);
    (void)snprintf(taken, sizeof taken, "127.0.0.1:%u", kvb_http_port(room.http));
    options.listen = taken;
    assert_int_equal(kvb_http_start(&options, &http, &detail), KVB_IO);
    assert_non_null(strstr(detail.text, "Address already in use"));
    options.listen = "127.0.0.1:0";
    options.threads = 17;
    assert_int_equal(kvb_http_start(&options, &http, &detail), KVB_BAD_CONFIG);
    assert_null(http);
    kvb_http_stop(room.http);
    kvb_http_stop(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_get_reaches_the_handler_with_path_and_query_apart),
        cmocka_unit_test(a_post_reaches_the_handler_once_with_its_whole_body),
        cmocka_unit_test(a_head_is_a_get_without_the_body),
        cmocka_unit_test(status_and_allow_are_the_handlers),
        cmocka_unit_test(a_body_above_the_ceiling_gets_413_and_a_sentence),
        cmocka_unit_test(a_body_far_above_the_ceiling_is_not_waited_for),
        cmocka_unit_test(an_endless_body_is_hung_up_on),
        cmocka_unit_test(what_is_no_http_leaves_nothing_behind),
        cmocka_unit_test(two_hundred_connections_are_served_at_once),
        cmocka_unit_test(a_connection_above_the_ceiling_is_told_so),
        cmocka_unit_test(who_leaves_in_mid_answer_leaves_nothing_behind),
        cmocka_unit_test(stops_while_requests_are_in_flight),
        cmocka_unit_test(a_wrong_or_taken_address_is_a_sentence),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
