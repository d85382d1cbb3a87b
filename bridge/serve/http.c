#include "serve/http.h"

#include "core/limits.h"
#include "core/own.h"

#include <arpa/inet.h>
#include <errno.h>
#include <microhttpd.h>
#include <netdb.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

enum {
    connection_timeout_s = 10,
    max_threads = 16,
    max_listen_bytes = 80,
    busy_text_bytes = 80,
    most_surplus = 64,
};

struct kvb_http {
    struct MHD_Daemon *daemon; /* owned */
    uint16_t port;
    size_t max_body_bytes;
    unsigned max_connections;
    _Atomic unsigned connections; /* open now */
    kvb_http_handler handler;
    void *context;
};

/* One request and its answer, from the request line to the last byte sent. */
struct exchange {
    char *query;   /* owned; "" when there is none */
    bool is_known; /* its headers were looked at */
    bool is_too_large;
    size_t refused_bytes;
    struct kvb_buf body;
    struct kvb_http_answer answer;
};

/* ---- Callbacks of libmicrohttpd, on its threads ------------------------------------- */

static char surplus; /* its address marks a connection above the ceiling */

/* Counts the open ones.  The surplus is let in to be told so. */
static void on_connection(
    void *context, struct MHD_Connection *connection, void **mark,
    enum MHD_ConnectionNotificationCode code)
{
    struct kvb_http *http = context;

    (void)connection;
    if (code == MHD_CONNECTION_NOTIFY_CLOSED) {
        (void)atomic_fetch_sub(&http->connections, 1);
    } else if (atomic_fetch_add(&http->connections, 1) >= http->max_connections) {
        *mark = &surplus;
    }
}

static bool is_surplus(struct MHD_Connection *connection)
{
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(connection, MHD_CONNECTION_INFO_SOCKET_CONTEXT);

    return info && info->socket_context == &surplus;
}

/* The first to be called, and the only one that sees the query as sent. */
static void *begin_exchange(void *context, const char *uri, struct MHD_Connection *connection)
{
    const struct kvb_http *http = context;
    const char *mark = strchr(uri, '?');
    struct exchange *exchange = calloc(1, sizeof *exchange);

    (void)connection;
    if (!exchange) {
        return NULL; /* answered with 503 */
    }
    exchange->query = strdup(mark ? mark + 1 : "");
    if (!exchange->query) {
        free(exchange);
        return NULL;
    }
    kvb_buf_init(&exchange->body, http->max_body_bytes);
    kvb_buf_init(&exchange->answer.body, kvb_max_answer_bytes);
    return exchange;
}

static void end_exchange(
    void *context, struct MHD_Connection *connection, void **at,
    enum MHD_RequestTerminationCode code)
{
    struct exchange *exchange = *at;

    (void)context;
    (void)connection;
    (void)code;
    if (exchange) {
        kvb_buf_done(&exchange->body);
        kvb_buf_done(&exchange->answer.body);
        free(exchange->query);
        free(exchange);
        *at = NULL;
    }
}

static void drop_response(struct MHD_Response **response)
{
    if (*response) {
        MHD_destroy_response(*response);
    }
}

static enum MHD_Result
add_header(struct MHD_Response *response, const char *name, const char *value)
{
    return value ? MHD_add_response_header(response, name, value) : MHD_YES;
}

static enum MHD_Result
add_headers(struct MHD_Response *response, const struct kvb_http_header *headers)
{
    for (; headers && headers->name; headers++) {
        if (!add_header(response, headers->name, headers->value)) {
            return MHD_NO;
        }
    }
    return MHD_YES;
}

/* The body stays where it is: in the exchange, which outlives the sending. */
static enum MHD_Result
send_answer(struct MHD_Connection *connection, const struct kvb_http_answer *answer)
{
    KVB_OWN(drop_response)
    struct MHD_Response *response = MHD_create_response_from_buffer(
        answer->body.len, answer->body.data, MHD_RESPMEM_PERSISTENT);

    if (!response || !add_header(response, MHD_HTTP_HEADER_CONTENT_TYPE, answer->content_type) ||
        !add_header(response, MHD_HTTP_HEADER_ALLOW, answer->allow) ||
        !add_headers(response, answer->headers)) {
        return MHD_NO;
    }
    return MHD_queue_response(connection, answer->status ? answer->status : 500, response);
}

/* 503, and then the connection goes. */
static enum MHD_Result send_busy(struct MHD_Connection *connection, const char *text)
{
    char copy[busy_text_bytes];
    KVB_OWN(drop_response) struct MHD_Response *response = NULL;

    (void)snprintf(copy, sizeof copy, "{\"error\":\"%s, try again later\"}\n", text);
    response = MHD_create_response_from_buffer(strlen(copy), copy, MHD_RESPMEM_MUST_COPY);
    if (!response || !add_header(response, MHD_HTTP_HEADER_CONTENT_TYPE, "application/json") ||
        !add_header(response, MHD_HTTP_HEADER_CONNECTION, "close")) {
        return MHD_NO;
    }
    return MHD_queue_response(connection, MHD_HTTP_SERVICE_UNAVAILABLE, response);
}

static enum MHD_Result send_too_large(
    const struct kvb_http *http, struct MHD_Connection *connection, struct exchange *exchange)
{
    struct kvb_http_answer *answer = &exchange->answer;

    answer->status = MHD_HTTP_CONTENT_TOO_LARGE;
    answer->content_type = "application/json";
    if (kvb_buf_append_format(
            &answer->body, "{\"error\":\"the body is larger than %zu bytes\"}\n",
            http->max_body_bytes) != KVB_OK) {
        return MHD_NO;
    }
    return send_answer(connection, answer);
}

static const char *header_of(struct MHD_Connection *connection, const char *name)
{
    const char *value = MHD_lookup_connection_value(connection, MHD_HEADER_KIND, name);

    return value ? value : "";
}

/* So much that reading it to the end, to answer politely, costs too much. */
static bool is_hopeless(const struct kvb_http *http, size_t bytes)
{
    return bytes / 2 > http->max_body_bytes;
}

static bool declares_too_much(const struct kvb_http *http, struct MHD_Connection *connection)
{
    const char *length = header_of(connection, MHD_HTTP_HEADER_CONTENT_LENGTH);

    return is_hopeless(http, strtoull(length, NULL, 10));
}

/* MHD_NO hangs up. */
static enum MHD_Result
take_body(const struct kvb_http *http, struct exchange *exchange, const char *bytes, size_t *len)
{
    if (!exchange->is_too_large) {
        switch (kvb_buf_append(&exchange->body, bytes, *len)) {
        case KVB_OK:
            break;
        case KVB_TOO_LARGE:
            exchange->is_too_large = true;
            break;
        default:
            return MHD_NO;
        }
    }
    if (exchange->is_too_large) {
        exchange->refused_bytes += *len;
    }
    *len = 0;
    return is_hopeless(http, exchange->refused_bytes) ? MHD_NO : MHD_YES;
}

static enum MHD_Result answer_whole(
    const struct kvb_http *http, struct MHD_Connection *connection, struct exchange *exchange,
    const char *path, const char *method)
{
    const bool is_head = strcmp(method, MHD_HTTP_METHOD_HEAD) == 0;
    const struct kvb_http_request request = {
        .method = is_head ? MHD_HTTP_METHOD_GET : method, /* the body is left out below us */
        .path = path,
        .query = exchange->query,
        .content_type = header_of(connection, MHD_HTTP_HEADER_CONTENT_TYPE),
        .authorization = header_of(connection, MHD_HTTP_HEADER_AUTHORIZATION),
        .if_none_match = header_of(connection, MHD_HTTP_HEADER_IF_NONE_MATCH),
        .body = kvb_buf_span(&exchange->body),
    };

    http->handler(http->context, &request, &exchange->answer);
    return send_answer(connection, &exchange->answer);
}

/* Called once for the headers, then for each piece of the body, then at its end. */
static enum MHD_Result on_request(
    void *context, struct MHD_Connection *connection, const char *path, const char *method,
    const char *version, const char *upload, size_t *upload_len, void **at)
{
    const struct kvb_http *http = context;
    struct exchange *exchange = *at;

    (void)version;
    if (!exchange) {
        return send_busy(connection, "out of memory");
    }
    if (is_surplus(connection)) {
        return send_busy(connection, "too many connections");
    }
    if (!exchange->is_known) {
        exchange->is_known = true;
        return declares_too_much(http, connection) ? send_too_large(http, connection, exchange)
                                                   : MHD_YES;
    }
    if (*upload_len > 0) {
        return take_body(http, exchange, upload, upload_len);
    }
    if (exchange->is_too_large) {
        return send_too_large(http, connection, exchange);
    }
    return answer_whole(http, connection, exchange, path, method);
}

/* ---- Starting and stopping ------------------------------------------------------------ */

static kvb_status bad_listen(const char *listen, const char *why, struct kvb_detail *detail)
{
    kvb_detail_set(detail, "http: cannot listen on \"%s\": %s", listen ? listen : "", why);
    return KVB_BAD_CONFIG;
}

static bool is_port(const char *text)
{
    char *end = NULL;
    const unsigned long port = strtoul(text, &end, 10);

    return text[0] >= '0' && text[0] <= '9' && *end == '\0' && port <= UINT16_MAX;
}

/* Splits "127.0.0.1:9402" or "[::1]:9402". */
static bool split_listen(const char *listen, char host[max_listen_bytes], const char **out_port)
{
    const char *colon = listen ? strrchr(listen, ':') : NULL;

    if (!colon || colon == listen || !is_port(colon + 1) || colon - listen >= max_listen_bytes) {
        return false;
    }
    const bool is_v6 = listen[0] == '[' && colon[-1] == ']';
    const size_t len = (size_t)(colon - listen) - (is_v6 ? 2 : 0);
    memcpy(host, listen + is_v6, len);
    host[len] = '\0';
    *out_port = colon + 1;
    return true;
}

/* Numbers only: no name look-up can hang us. */
static kvb_status
read_listen(const char *listen, struct sockaddr_storage *out_address, struct kvb_detail *detail)
{
    const struct addrinfo hints = {
        .ai_flags = AI_NUMERICHOST | AI_NUMERICSERV | AI_PASSIVE,
        .ai_socktype = SOCK_STREAM,
    };
    struct addrinfo *found = NULL;
    char host[max_listen_bytes];
    const char *port = NULL;

    if (!split_listen(listen, host, &port) || getaddrinfo(host, port, &hints, &found) != 0) {
        return bad_listen(listen, "expected address:port, such as 127.0.0.1:9402", detail);
    }
    memcpy(out_address, found->ai_addr, found->ai_addrlen);
    freeaddrinfo(found);
    return KVB_OK;
}

static kvb_status check_options(const struct kvb_http_options *options, struct kvb_detail *detail)
{
    if (options->threads < 1 || options->threads > max_threads) {
        kvb_detail_set(
            detail, "http: %u threads; 1 to %d are possible", options->threads, max_threads);
        return KVB_BAD_CONFIG;
    }
    return KVB_OK;
}

static struct MHD_Daemon *start_daemon(
    struct kvb_http *http, const struct kvb_http_options *options,
    const struct sockaddr_storage *address)
{
    const unsigned flags =
        MHD_USE_AUTO_INTERNAL_THREAD | (address->ss_family == AF_INET6 ? MHD_USE_IPv6 : 0);
    /* A pool of one is a mistake to libmicrohttpd; none means one thread. */
    const unsigned pool = options->threads > 1 ? options->threads : 0;

    /* libmicrohttpd divides the limit among the pool, and a thread whose share is used
     * up accepts nobody, however idle the others are: each gets the whole, and some more
     * for those who are told that they are too many. */
    const unsigned most_connections = options->threads * (http->max_connections + most_surplus);

    /* clang-format off */
    return MHD_start_daemon(
        flags, 0, NULL, NULL, on_request, http,
        MHD_OPTION_SOCK_ADDR, address,
        MHD_OPTION_THREAD_POOL_SIZE, pool,
        MHD_OPTION_CONNECTION_LIMIT, most_connections,
        MHD_OPTION_CONNECTION_TIMEOUT, (unsigned)connection_timeout_s,
        MHD_OPTION_NOTIFY_CONNECTION, on_connection, http,
        MHD_OPTION_URI_LOG_CALLBACK, begin_exchange, http,
        MHD_OPTION_NOTIFY_COMPLETED, end_exchange, NULL,
        MHD_OPTION_END);
    /* clang-format on */
}

kvb_status kvb_http_start(
    const struct kvb_http_options *options, struct kvb_http **out_http, struct kvb_detail *detail)
{
    struct sockaddr_storage address = { 0 };
    char port[24];

    KVB_TRY(check_options(options, detail));
    KVB_TRY(read_listen(options->listen, &address, detail));
    struct kvb_http *http = calloc(1, sizeof *http);
    if (!http) {
        return KVB_NO_MEMORY;
    }
    http->max_body_bytes = options->max_body_bytes;
    http->max_connections =
        options->max_connections ? options->max_connections : kvb_max_http_connections;
    http->handler = options->handler;
    http->context = options->context;
    errno = 0;
    http->daemon = start_daemon(http, options, &address);
    if (!http->daemon) {
        /* A port may become free, an address come with its network. */
        const bool may_pass = errno == EADDRINUSE || errno == EADDRNOTAVAIL;
        const char *why = errno ? strerrordesc_np(errno) : "libmicrohttpd did not start";
        free(http);
        (void)bad_listen(options->listen, why, detail);
        return may_pass ? KVB_IO : KVB_BAD_CONFIG;
    }
    http->port = MHD_get_daemon_info(http->daemon, MHD_DAEMON_INFO_BIND_PORT)->port;
    kvb_log_write(
        options->log, KVB_LOG_INFO, "http", "listening", "address", options->listen, "port",
        kvb_log_u64(port, http->port), NULL);
    *out_http = http;
    return KVB_OK;
}

uint16_t kvb_http_port(const struct kvb_http *http)
{
    return http->port;
}

void kvb_http_stop(struct kvb_http *http)
{
    if (http) {
        MHD_stop_daemon(http->daemon);
        free(http);
    }
}
