#include "control/control.h"
#include "core/limits.h"
#include "core/own.h"
#include "daemon/http.h"
#include "process.h"

#include "kvb_test.h"

#include <arpa/inet.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { patience_ms = 10000, late_ms = 30000, max_body = 1000, answer_bytes = 8192, many = 200 };

/* In the order of KVB_HTTP_METRICS. */
enum {
#define METRIC_ID(id, type, name, labels, help) count_##id,
    KVB_HTTP_METRICS(METRIC_ID)
#undef METRIC_ID
        metric_count
};

static const struct kvb_metric_row rows[] = {
#define METRIC_ROW(id, type, name, labels, help) { name, labels, help, KVB_METRIC_##type },
    KVB_HTTP_METRICS(METRIC_ROW)
#undef METRIC_ROW
};

/* ---- The server under test ------------------------------------------------------------ */

struct room {
    struct kvb_http *http;
    _Atomic unsigned calls;
    _Atomic unsigned inside;
    _Atomic bool may_leave;
    int fail_at; /* the number of the answer's part that fails; -1: none */
    _Atomic uint64_t values[metric_count];
    struct kvb_metrics metrics;
};

/* Answers with a description of the request. */
static void
echo(void *context, const struct kvb_http_request *request, struct kvb_http_answer *answer)
{
    struct room *room = context;

    atomic_fetch_add(&room->calls, 1);
    answer->status = strcmp(request->path, "/nowhere") == 0  ? 404
                     : strcmp(request->path, "/secret") == 0 ? 401
                                                             : 200;
    answer->content_type = "text/plain";
    answer->allow = strcmp(request->path, "/nowhere") == 0 ? "GET" : NULL;
    assert_ok(kvb_buf_append_format(
        &answer->body, "%s %s query=%s type=%s auth=%s body=%.*s", request->method, request->path,
        request->parameters, request->content_type, request->authorization, (int)request->body.len,
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

/* Of all servers here. */
static struct kvb_control *control;

static int start_control(void **state)
{
    (void)state;
    return kvb_control_new(&control) == KVB_OK && kvb_control_start(control) == KVB_OK ? 0 : -1;
}

static int stop_control(void **state)
{
    (void)state;
    kvb_control_free(control);
    return 0;
}

static void start_as(struct room *room, struct kvb_http_options options)
{
    struct kvb_detail detail = { 0 };

    room->metrics =
        (struct kvb_metrics){ .rows = rows, .values = room->values, .count = metric_count };
    options.control = control;
    options.listen = "127.0.0.1:0";
    options.max_body_bytes = options.max_body_bytes ? options.max_body_bytes : max_body;
    options.threads = 4;
    options.metrics = &room->metrics;
    options.context = room;
    assert_ok(kvb_http_start(&options, &room->http, &detail));
    assert_int_not_equal(kvb_http_port(room->http), 0);
}

static void start_with(struct room *room, kvb_http_handler handler, unsigned max_connections)
{
    start_as(
        room, (struct kvb_http_options){ .handler = handler, .max_connections = max_connections });
}

static void start(struct room *room, kvb_http_handler handler)
{
    start_with(room, handler, 0);
}

/* ---- A client that sends exactly the given bytes --------------------------------------- */

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

/* Reads until the server closes the connection. */
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

static void refusals_of_a_handler_are_counted_by_reason(void **state)
{
    struct room room = { 0 };
    char answer[answer_bytes];

    (void)state;
    start(&room, echo);
    ask(&room, "GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n", answer);
    assert_int_equal(kvb_metric_get(&room.metrics, count_http_refused_request), 0);
    ask(&room, "GET /nowhere HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n", answer);
    assert_int_equal(kvb_metric_get(&room.metrics, count_http_refused_request), 1);
    assert_int_equal(kvb_metric_get(&room.metrics, count_http_refused_denied), 0);
    ask(&room, "GET /secret HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n", answer);
    assert_status(answer, "401");
    assert_int_equal(kvb_metric_get(&room.metrics, count_http_refused_request), 1);
    assert_int_equal(kvb_metric_get(&room.metrics, count_http_refused_denied), 1);
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
    /* the server may have closed the connection already */
    (void)send(fd, zeros, len, MSG_NOSIGNAL);
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
    assert_int_equal(kvb_metric_get(&room.metrics, count_http_refused_request), 1);
    assert_int_equal(atomic_load(&room.calls), 1);
    kvb_http_stop(room.http);
}

static void an_endless_body_is_disconnected(void **state)
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
    assert_int_equal(kvb_metric_get(&room.metrics, count_http_refused_request), 1);
    kvb_http_stop(room.http);
}

/* libmicrohttpd answers these itself, before or after the server has read the headers. */
static void refusals_of_libmicrohttpd_are_counted(void **state)
{
    static const struct {
        const char *text;
        const char *status;
    } bad[] = {
        { "GET /livez HTTP/9.9\r\n\r\n", "505" },
        { "GET /livez\r\n\r\n", "400" },
        { "no request\r\n\r\n", "400" },
        { "GET / HTTP/1.1\r\nHost: h\r\nno header\r\n\r\n", "400" },
        { "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: -1\r\n\r\n", "400" },
        { "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 18446744073709551616\r\n\r\n", "413" },
        { "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\ng\r\n", "400" },
        /* on a connection that has served another */
        { "GET / HTTP/1.1\r\nHost: h\r\n\r\nGET / HTTP/9.9\r\n\r\n", "200" },
    };
    struct room room = { 0 };
    char answer[answer_bytes];

    (void)state;
    start(&room, echo);
    for (size_t i = 0; i < KVB_COUNT_OF(bad); i++) {
        ask(&room, bad[i].text, answer);
        assert_status(answer, bad[i].status);
        assert_int_equal(kvb_metric_get(&room.metrics, count_http_refused_malformed), i + 1);
    }
    assert_int_equal(kvb_metric_get(&room.metrics, count_http_refused_request), 0);
    kvb_http_stop(room.http);
}

static void bytes_that_are_no_http_leave_nothing_behind(void **state)
{
    static const struct {
        const char *text;
        bool is_answered; /* false: the server waits for more bytes */
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

static void
swallow(void *context, const struct kvb_http_request *request, struct kvb_http_answer *answer)
{
    struct room *room = context;

    (void)request;
    answer->status = 200;
    atomic_fetch_add(&room->calls, 1);
}

static const char get_and_stay[] = "GET / HTTP/1.1\r\nHost: h\r\n\r\n";

/* Reads one answer of a connection that stays open. */
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

static const char *const vital[] = { "/livez", NULL };

/* Opens as many connections as one client may have; each has had an answer and stays open. */
static void open_share(struct room *room, int *fds, int share)
{
    char answer[answer_bytes];

    for (int i = 0; i < share; i++) {
        fds[i] = dial(room);
        send_text(fds[i], get_and_stay, sizeof get_and_stay - 1);
        read_some(fds[i], answer);
        assert_status(answer, "200");
    }
}

static void a_connection_above_the_share_gets_503_except_on_vital_paths(void **state)
{
    enum { ceiling = 8, share = 6 };
    struct room room = { 0 };
    char answer[answer_bytes];
    int fds[share];

    (void)state;
    start_as(
        &room,
        (struct kvb_http_options){ .handler = echo, .max_connections = ceiling, .vital = vital });
    open_share(&room, fds, share);
    ask(&room, get_and_stay, answer); /* until the server closes the connection */
    assert_status(answer, "503");
    assert_non_null(strstr(answer, "Retry-After: 1\r\n"));
    assert_string_equal(body_of(answer), "{\"error\":\"too many connections, try again later\"}\n");
    assert_int_equal(atomic_load(&room.calls), share);
    ask(&room, "GET /livez HTTP/1.1\r\nHost: h\r\n\r\n", answer);
    assert_status(answer, "200");
    ask(&room, "POST /livez HTTP/1.1\r\nHost: h\r\nContent-Length: 9\r\n\r\n", answer);
    assert_status(answer, "503"); /* the body may arrive later */
    for (int i = 0; i < share; i++) {
        close(fds[i]);
    }
    assert_true(wait_until(is_served, &room, patience_ms));
    kvb_http_stop(room.http);
}

/* Idle connections of the share make room as soon as they are no longer young. */
static void the_longest_idle_connection_makes_room(void **state)
{
    enum { ceiling = 8, share = 6 };
    struct room room = { 0 };
    char answer[answer_bytes];
    int fds[share];

    (void)state;
    start_with(&room, echo, ceiling);
    open_share(&room, fds, share);
    assert_true(wait_until(is_served, &room, patience_ms));
    assert_int_equal(recv(fds[0], answer, sizeof answer, 0), 0); /* disconnected */
    for (int i = 0; i < share; i++) {
        close(fds[i]);
    }
    kvb_http_stop(room.http);
}

/* ---- Deadlines: connections that send nothing, or read nothing, are closed -------------- */

enum { short_ms = 300 };

static uint64_t closed_count(const struct room *room, size_t id)
{
    return kvb_metric_get(&room->metrics, id);
}

static void a_header_sent_too_slowly_is_disconnected(void **state)
{
    struct room room = { 0 };
    char answer[answer_bytes];

    (void)state;
    start_as(&room, (struct kvb_http_options){ .handler = echo, .grace_ms = short_ms });
    const int fd = dial(&room);
    send_text(fd, "GET / HTTP/1.1\r\n", 16);
    for (int i = 0; i < patience_ms; i++) { /* returns when the server closes the connection */
        if (send(fd, "X: y\r\n", 6, MSG_NOSIGNAL) < 0) {
            break;
        }
        (void)poll(NULL, 0, 10);
    }
    (void)!recv(fd, answer, sizeof answer, 0);
    close(fd);
    assert_int_equal(closed_count(&room, count_http_closed_late), 1);
    assert_int_equal(atomic_load(&room.calls), 0);
    kvb_http_stop(room.http);
}

static void a_body_that_stops_is_disconnected(void **state)
{
    struct room room = { 0 };
    char answer[answer_bytes];

    (void)state;
    start_as(&room, (struct kvb_http_options){ .handler = echo, .grace_ms = short_ms });
    ask(&room, "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 900\r\n\r\nhalf", answer);
    assert_string_equal(answer, "");
    assert_int_equal(closed_count(&room, count_http_closed_late), 1);
    kvb_http_stop(room.http);
}

static bool is_nothing_held(void *context)
{
    struct room *room = context;

    return kvb_metric_get(&room->metrics, count_http_held) == 0;
}

static void a_client_that_reads_too_slowly_is_disconnected(void **state)
{
    struct room room = { 0 };
    char byte = 0;

    (void)state;
    start_as(&room, (struct kvb_http_options){ .handler = large, .grace_ms = short_ms });
    const int fd = dial(&room);
    send_text(fd, get_and_stay, sizeof get_and_stay - 1);
    for (int i = 0; i < patience_ms && closed_count(&room, count_http_closed_late) == 0; i++) {
        assert_int_equal(recv(fd, &byte, 1, 0), 1);
        (void)poll(NULL, 0, 10);
    }
    assert_int_equal(closed_count(&room, count_http_closed_late), 1);
    assert_true(wait_until(is_nothing_held, &room, patience_ms));
    close(fd);
    kvb_http_stop(room.http);
}

/* ---- Memory: one budget for bodies and answers ------------------------------------------- */

static const char half_a_megabyte[] =
    "POST / HTTP/1.1\r\nHost: h\r\nConnection: close\r\nContent-Length: 524288\r\n\r\n";

static bool is_one_held(void *context)
{
    struct room *room = context;

    return kvb_metric_get(&room->metrics, count_http_held) >= (512 << 10) - kvb_http_own_bytes;
}

static void a_body_above_the_budget_gets_503_and_small_ones_pass(void **state)
{
    static const char zeros[512 << 10];
    struct room room = { 0 };
    char answer[answer_bytes];

    (void)state;
    start_as(
        &room, (struct kvb_http_options){
                   .handler = swallow, .max_body_bytes = 1 << 20, .max_held_bytes = 700 << 10 });
    const int first = dial(&room);
    send_text(first, half_a_megabyte, sizeof half_a_megabyte - 1);
    send_text(first, zeros, sizeof zeros - 1); /* one byte of it is missing */
    assert_true(wait_until(is_one_held, &room, patience_ms));
    ask(&room, half_a_megabyte, answer); /* refused because of its Content-Length */
    assert_status(answer, "503");
    assert_non_null(strstr(answer, "Retry-After: 1\r\n"));
    assert_int_equal(kvb_metric_get(&room.metrics, count_http_refused_memory), 1);
    ask(&room, "POST / HTTP/1.1\r\nHost: h\r\nConnection: close\r\nContent-Length: 5\r\n\r\nsmall",
        answer);
    assert_status(answer, "200");
    send_text(first, zeros, 1);
    read_all(first, answer);
    assert_status(answer, "200");
    assert_int_equal(atomic_load(&room.calls), 2);
    assert_true(wait_until(is_nothing_held, &room, patience_ms));
    kvb_http_stop(room.http);
}

/* A body of unknown length is read to its end and then refused. */
static void a_chunked_body_above_the_budget_gets_503(void **state)
{
    static const char head[] = "POST / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n"
                               "Transfer-Encoding: chunked\r\n\r\n80000\r\n";
    static const char zeros[512 << 10];
    struct room room = { 0 };
    char answer[answer_bytes];

    (void)state;
    start_as(
        &room, (struct kvb_http_options){
                   .handler = swallow, .max_body_bytes = 1 << 20, .max_held_bytes = 700 << 10 });
    const int first = dial(&room);
    send_text(first, half_a_megabyte, sizeof half_a_megabyte - 1);
    send_text(first, zeros, sizeof zeros - 1);
    assert_true(wait_until(is_one_held, &room, patience_ms));
    const int second = dial(&room);
    send_text(second, head, sizeof head - 1);
    send_text(second, zeros, sizeof zeros);
    send_text(second, "\r\n0\r\n\r\n", 7);
    read_all(second, answer);
    assert_status(answer, "503");
    assert_int_equal(atomic_load(&room.calls), 0);
    close(first);
    /* at its end, or at the latest when the time for the body is over */
    assert_true(wait_until(is_nothing_held, &room, late_ms));
    kvb_http_stop(room.http);
}

static void an_answer_above_the_budget_gets_503(void **state)
{
    struct room room = { 0 };
    char answer[answer_bytes];

    (void)state;
    start_as(&room, (struct kvb_http_options){ .handler = large, .max_held_bytes = 40 << 20 });
    const int first = dial(&room);
    send_text(first, get_and_stay, sizeof get_and_stay - 1);
    read_some(first, answer); /* the rest is not read */
    assert_status(answer, "200");
    ask(&room, get_and_stay, answer);
    assert_status(answer, "503");
    close(first);
    assert_true(wait_until(is_nothing_held, &room, patience_ms));
    kvb_http_stop(room.http);
}

/* ---- Answers in parts -------------------------------------------------------------------- */

enum { all_parts = 300, a_part = 100 << 10 };

/* Counts the parts made; the room counts the answers dropped. */
struct parts {
    struct room *room;
    int made;
    int fail_at;
};

static kvb_status next_part(void *context, struct kvb_buf *body)
{
    static const char zeros[a_part];
    struct parts *parts = context;

    assert_int_equal(body->len, 0);
    if (parts->made == parts->fail_at) {
        return KVB_CLOSED;
    }
    assert_ok(kvb_buf_append(body, zeros, sizeof zeros));
    parts->made++;
    atomic_store(&parts->room->inside, (unsigned)parts->made);
    return parts->made == all_parts ? KVB_OK : KVB_AGAIN;
}

static void drop_parts(void *context)
{
    struct parts *parts = context;

    atomic_fetch_add(&parts->room->calls, 1);
}

static void
in_parts(void *context, const struct kvb_http_request *request, struct kvb_http_answer *answer)
{
    static struct parts parts;
    struct room *room = context;

    parts = (struct parts){ .room = room, .fail_at = room->fail_at };
    (void)request;
    answer->status = 200;
    assert_int_equal(next_part(&parts, &answer->body), KVB_AGAIN);
    answer->next = next_part;
    answer->drop = drop_parts;
    answer->parts = &parts;
}

/* Reads to the end; returns the number of bytes, and the last ones in `tail`. */
static size_t read_through(int fd, char tail[6])
{
    static char bytes[64 << 10];
    size_t all = 0;
    ssize_t got = 0;

    while ((got = recv(fd, bytes, sizeof bytes, 0)) > 0) {
        all += (size_t)got;
        memcpy(tail, bytes + (got > 5 ? got - 5 : 0), 5);
    }
    close(fd);
    return all;
}

static bool is_dropped(void *context)
{
    struct room *room = context;

    return atomic_load(&room->calls) == 1;
}

static void a_long_answer_is_made_while_it_is_read(void **state)
{
    static const char request[] = "GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n";
    struct room room = { .fail_at = -1 };
    char answer[answer_bytes];
    char tail[6] = "";

    (void)state;
    start_with(&room, in_parts, 0);
    const int fd = dial(&room);
    send_text(fd, request, sizeof request - 1);
    read_some(fd, answer);
    assert_status(answer, "200");
    assert_true(kvb_metric_get(&room.metrics, count_http_held) <= UINT64_C(2) * a_part);
    /* only as much as the sockets' buffers hold */
    assert_true(atomic_load(&room.inside) < all_parts);
    assert_true(read_through(fd, tail) > (size_t)all_parts * a_part - answer_bytes);
    assert_string_equal(tail, "0\r\n\r\n"); /* the end of a whole answer */
    assert_true(wait_until(is_dropped, &room, patience_ms));
    kvb_http_stop(room.http);
}

static void a_part_that_fails_cuts_the_answer(void **state)
{
    struct room room = { .fail_at = 3 };
    char tail[6] = "";

    (void)state;
    start_with(&room, in_parts, 0);
    const int fd = dial(&room);
    send_text(fd, get_and_stay, sizeof get_and_stay - 1);
    (void)read_through(fd, tail);
    assert_string_not_equal(tail, "0\r\n\r\n");
    assert_true(wait_until(is_dropped, &room, patience_ms));
    kvb_http_stop(room.http);
}

/* The client closes with a reset, in the middle of an answer that is larger than the socket
 * buffers. */
static void a_client_that_leaves_during_an_answer_leaves_nothing_behind(void **state)
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
    /* All requests have ended, and the server accepts no new one. */
    assert_int_equal(atomic_load(&room.calls), atomic_load(&room.inside));
    for (size_t i = 0; i < KVB_COUNT_OF(fds); i++) {
        close(fds[i]);
    }
}

/* ---- Answers that come later --------------------------------------------------------------- */

enum { more_than_threads = 12 };

/* Requests that wait, in the order of their arrival. */
struct waiters {
    struct room room;
    pthread_mutex_t lock;
    struct kvb_http_later *laters[more_than_threads];
    size_t count;
    bool is_woken_at_once;
    _Atomic unsigned finished;
    _Atomic unsigned dropped;
    _Atomic bool has_answer;
};

static void finish_waiting(void *parts, struct kvb_http_answer *answer)
{
    struct waiters *waiters = parts;

    atomic_fetch_add(&waiters->finished, 1);
    *answer = (struct kvb_http_answer){ .body = answer->body };
    answer->status = atomic_load(&waiters->has_answer) ? 200 : 503;
    assert_ok(kvb_buf_append_text(&answer->body, "at last"));
}

static void drop_waiting(void *parts)
{
    struct waiters *waiters = parts;

    atomic_fetch_add(&waiters->dropped, 1);
}

static void
answer_later(void *context, const struct kvb_http_request *request, struct kvb_http_answer *answer)
{
    struct waiters *waiters = context;

    if (strcmp(request->path, "/now") == 0) {
        answer->status = 200;
        return;
    }
    answer->finish = finish_waiting;
    answer->drop = drop_waiting;
    answer->parts = waiters;
    pthread_mutex_lock(&waiters->lock);
    if (waiters->is_woken_at_once) {
        kvb_http_wake(request->later);
    } else {
        waiters->laters[waiters->count++] = request->later;
    }
    pthread_mutex_unlock(&waiters->lock);
}

static bool all_wait(void *context)
{
    struct waiters *waiters = context;

    pthread_mutex_lock(&waiters->lock);
    const size_t count = waiters->count;
    pthread_mutex_unlock(&waiters->lock);
    return count == more_than_threads;
}

static void open_waiters(struct waiters *waiters, struct kvb_http_options options)
{
    struct kvb_detail detail = { 0 };

    options.control = control;
    options.listen = "127.0.0.1:0";
    options.max_body_bytes = max_body;
    options.threads = 4;
    options.handler = answer_later;
    options.context = waiters;
    *waiters = (struct waiters){ .has_answer = true };
    pthread_mutex_init(&waiters->lock, NULL);
    assert_ok(kvb_http_start(&options, &waiters->room.http, &detail));
}

static void send_all_that_wait(const struct waiters *waiters, int fds[more_than_threads])
{
    static const char request[] =
        "POST /later HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\nConnection: close\r\n\r\nhi";

    for (int i = 0; i < more_than_threads; i++) {
        fds[i] = dial(&waiters->room);
        send_text(fds[i], request, sizeof request - 1);
    }
}

static void read_all_that_waited(int fds[more_than_threads], const char *status)
{
    char answer[answer_bytes];

    for (int i = 0; i < more_than_threads; i++) {
        read_all(fds[i], answer);
        assert_status(answer, status);
        assert_non_null(strstr(answer, "at last"));
    }
}

static void wake_all(struct waiters *waiters)
{
    for (size_t i = 0; i < waiters->count; i++) {
        kvb_http_wake(waiters->laters[i]);
    }
}

static void more_requests_wait_than_there_are_threads(void **state)
{
    struct waiters waiters;
    char answer[answer_bytes];
    int fds[more_than_threads];

    (void)state;
    open_waiters(&waiters, (struct kvb_http_options){ .wait_ms = late_ms });
    send_all_that_wait(&waiters, fds);
    assert_true(wait_until(all_wait, &waiters, patience_ms));
    for (int i = 0; i < more_than_threads; i++) { /* each thread, probably */
        ask(&waiters.room, "GET /now HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n", answer);
        assert_status(answer, "200");
    }
    assert_int_equal(atomic_load(&waiters.finished), 0);
    wake_all(&waiters);
    read_all_that_waited(fds, "200");
    kvb_http_stop(waiters.room.http);
    assert_int_equal(atomic_load(&waiters.finished), more_than_threads);
    assert_int_equal(atomic_load(&waiters.dropped), 0);
}

static void a_request_that_is_not_woken_is_finished_in_time(void **state)
{
    struct waiters waiters;
    int fds[more_than_threads];

    (void)state;
    open_waiters(&waiters, (struct kvb_http_options){ .wait_ms = 1 });
    atomic_store(&waiters.has_answer, false);
    send_all_that_wait(&waiters, fds);
    read_all_that_waited(fds, "503");
    kvb_http_stop(waiters.room.http);
    assert_int_equal(atomic_load(&waiters.finished), more_than_threads);
}

static void a_request_woken_by_its_handler_does_not_wait(void **state)
{
    struct waiters waiters;
    int fds[more_than_threads];

    (void)state;
    open_waiters(&waiters, (struct kvb_http_options){ .wait_ms = late_ms });
    waiters.is_woken_at_once = true;
    send_all_that_wait(&waiters, fds);
    read_all_that_waited(fds, "200");
    kvb_http_stop(waiters.room.http);
}

static void *wake_waiters(void *context)
{
    wake_all(context);
    return NULL;
}

static void a_server_that_stops_answers_who_waits(void **state)
{
    struct waiters waiters;
    pthread_t other;
    int fds[more_than_threads];

    (void)state;
    open_waiters(&waiters, (struct kvb_http_options){ .wait_ms = late_ms });
    send_all_that_wait(&waiters, fds);
    assert_true(wait_until(all_wait, &waiters, patience_ms));
    assert_int_equal(pthread_create(&other, NULL, wake_waiters, &waiters), 0);
    kvb_http_stop(waiters.room.http);
    assert_int_equal(pthread_join(other, NULL), 0);
    read_all_that_waited(fds, "200");
}

static void a_client_that_leaves_while_it_waits_is_finished_with_the_others(void **state)
{
    struct waiters waiters;
    int fds[more_than_threads];

    (void)state;
    open_waiters(&waiters, (struct kvb_http_options){ .wait_ms = late_ms });
    send_all_that_wait(&waiters, fds);
    assert_true(wait_until(all_wait, &waiters, patience_ms));
    for (int i = 0; i < more_than_threads; i++) {
        close(fds[i]);
    }
    wake_all(&waiters);
    kvb_http_stop(waiters.room.http);
    assert_int_equal(
        atomic_load(&waiters.finished) + atomic_load(&waiters.dropped), more_than_threads);
}

static void a_wrong_or_used_address_is_refused_with_a_reason(void **state)
{
    static const char *const bad[] = { "",           "9402",   "127.0.0.1",       "127.0.0.1:",
                                       ":9402",      "host:1", "127.0.0.1:70000", "[::1:80",
                                       "127.0.0.1:x" };
    struct kvb_http_options options = {
        .control = control, .max_body_bytes = 1, .threads = 1, .handler = echo
    };
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

SUITE(http)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_post_reaches_the_handler_once_with_its_whole_body),
        cmocka_unit_test(a_head_is_a_get_without_the_body),
        cmocka_unit_test(status_and_allow_are_the_handlers),
        cmocka_unit_test(refusals_of_a_handler_are_counted_by_reason),
        cmocka_unit_test(a_body_above_the_ceiling_gets_413_and_a_sentence),
        cmocka_unit_test(an_endless_body_is_disconnected),
        cmocka_unit_test(refusals_of_libmicrohttpd_are_counted),
        cmocka_unit_test(bytes_that_are_no_http_leave_nothing_behind),
        cmocka_unit_test(a_connection_above_the_share_gets_503_except_on_vital_paths),
        cmocka_unit_test(the_longest_idle_connection_makes_room),
        cmocka_unit_test(a_header_sent_too_slowly_is_disconnected),
        cmocka_unit_test(a_body_that_stops_is_disconnected),
        cmocka_unit_test(a_client_that_reads_too_slowly_is_disconnected),
        cmocka_unit_test(a_body_above_the_budget_gets_503_and_small_ones_pass),
        cmocka_unit_test(a_chunked_body_above_the_budget_gets_503),
        cmocka_unit_test(an_answer_above_the_budget_gets_503),
        cmocka_unit_test(a_long_answer_is_made_while_it_is_read),
        cmocka_unit_test(a_part_that_fails_cuts_the_answer),
        cmocka_unit_test(a_client_that_leaves_during_an_answer_leaves_nothing_behind),
        cmocka_unit_test(stops_while_requests_are_in_flight),
        cmocka_unit_test(more_requests_wait_than_there_are_threads),
        cmocka_unit_test(a_request_that_is_not_woken_is_finished_in_time),
        cmocka_unit_test(a_request_woken_by_its_handler_does_not_wait),
        cmocka_unit_test(a_server_that_stops_answers_who_waits),
        cmocka_unit_test(a_client_that_leaves_while_it_waits_is_finished_with_the_others),
        cmocka_unit_test(a_wrong_or_used_address_is_refused_with_a_reason),
    };

    return cmocka_run_group_tests(tests, start_control, stop_control);
}
