#include "daemon/http.h"

#include "control/control.h"
#include "core/clock.h"
#include "core/limits.h"
#include "core/own.h"
#include "daemon/http_access.h"
#include "daemon/http_slots.h"
#include "wire/json/writer.h"

#include <arpa/inet.h>
#include <errno.h>
#include <microhttpd.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <time.h>

enum {
    max_threads = 16,
    max_listen_bytes = 80,
    busy_text_bytes = 80,
    plain_answer_bytes = 64 << 10, /* for larger answers the progress of sending is measured */
    send_buffer_bytes = 64 << 10,  /* of a socket; the kernel's default grows to MiB */
    part_bytes = 64 << 10,         /* of a larger answer, passed to libmicrohttpd at once */
    files_a_thread = 4,            /* two to wake the thread, the listening socket, a spare one */
    young_ms = 1000,
    watch_ms = 200,
};

static const char json_type[] = "application/json";

struct kvb_http {
    struct MHD_Daemon *daemon; /* owned */
    uint16_t port;
    size_t max_body_bytes;
    const char *const *vital;
    struct kvb_http_access *access;         /* owned; NULL: no token, no certificate */
    const struct kvb_http_path_rule *rules; /* borrowed; NULL: none */
    struct kvb_metrics *metrics;
    size_t first_metric;
    kvb_http_handler handler;
    void *context;

    uint64_t wait_ns;

    pthread_mutex_t lock; /* slots, unsent, is_settled */
    struct kvb_http_slots slots;
    size_t unsent; /* exchanges whose answers come later */
    pthread_cond_t settled;
    bool is_settled;       /* from now on no connection is suspended */
    struct kvb_job *watch; /* owned */
};

/* In the order of KVB_HTTP_METRICS. */
enum http_metric {
#define HTTP_METRIC_ID(id, type, name, labels, help) count_##id,
    KVB_HTTP_METRICS(HTTP_METRIC_ID)
#undef HTTP_METRIC_ID
};

struct kvb_http_later {
    struct kvb_http *http; /* all borrowed */
    struct MHD_Connection *connection;
    struct kvb_http_slot *slot; /* under the lock; NULL: none was free; has this as `waiting` while
                                   the connection is suspended */
    bool is_woken;              /* under the lock, like the next */
    bool is_unsent;             /* counted in http->unsent */
};

/* One request and its answer, from the request line to the last byte sent. */
struct exchange {
    struct kvb_http *http;      /* borrowed, like slot */
    struct kvb_http_slot *slot; /* under the lock; NULL: none was free */
    struct kvb_http_later later;
    char *parameters; /* owned; "" when there are none */
    bool is_known;    /* on_request() was called for its header */
    bool is_too_large;
    bool is_refused; /* no memory for its body: the rest of it is discarded */
    size_t refused_bytes;
    struct kvb_buf body;
    struct kvb_http_answer answer;
    size_t read_bytes; /* of answer.body */
    bool is_last_part;
};

/* ---- For handlers ---------------------------------------------------------------------- */

kvb_status kvb_http_write_error(const char *sentence, struct kvb_buf *out)
{
    struct kvb_json_writer json = kvb_json_writer_of(out);

    kvb_json_write_begin(&json, '{');
    kvb_json_write_pair_text(&json, "error", sentence);
    kvb_json_write_end(&json, '}');
    return json.status;
}

void kvb_http_refuse(struct kvb_http_answer *answer, unsigned status, const char *sentence)
{
    /* The handler may have written a part of another answer. */
    kvb_buf_reset(&answer->body);
    answer->status = status;
    answer->content_type = json_type;
    answer->allow = NULL;
    if (kvb_http_write_error(sentence, &answer->body) != KVB_OK) {
        kvb_buf_reset(&answer->body); /* out of memory: send the status alone */
    }
}

bool kvb_http_is_json(const char *content_type)
{
    const size_t len = strlen(json_type);

    return strncasecmp(content_type, json_type, len) == 0 &&
           (content_type[len] == '\0' || content_type[len] == ';' || content_type[len] == ' ');
}

bool kvb_http_parameter(const char *parameters, const char *key, char *out, size_t out_bytes)
{
    const size_t key_len = strlen(key);

    for (const char *at = parameters; *at;) {
        const size_t len = strcspn(at, "&");
        if (len > key_len && strncmp(at, key, key_len) == 0 && at[key_len] == '=') {
            const size_t value_len = len - key_len - 1;
            /* Not cut: a part of a value is another value. */
            if (value_len >= out_bytes) {
                return false;
            }
            memcpy(out, at + key_len + 1, value_len);
            out[value_len] = '\0';
            return true;
        }
        at += len + (at[len] == '&');
    }
    return false;
}

/* ---- Connections ---------------------------------------------------------------------- */

static void count_http(struct kvb_http *http, enum http_metric metric)
{
    if (http->metrics) {
        kvb_metric_add(http->metrics, http->first_metric + metric, 1);
    }
}

/* Under the lock. */
static void show_slots(const struct kvb_http *http)
{
    if (http->metrics) {
        kvb_metric_set(
            http->metrics, http->first_metric + count_http_connections, http->slots.open_count);
        kvb_metric_set(http->metrics, http->first_metric + count_http_held, http->slots.held_bytes);
    }
}

/* Called under the lock, so that the socket still belongs to this connection: libmicrohttpd closes
 * the socket only after on_connection() has freed the slot.  libmicrohttpd then reads the end of
 * the stream. */
static void shut_down_victim(struct kvb_http *http, const struct kvb_http_victim *victim)
{
    if (victim->fd >= 0) {
        count_http(
            http,
            victim->why == KVB_HTTP_END_LATE ? count_http_closed_late : count_http_closed_crowded);
        (void)shutdown(victim->fd, SHUT_RDWR);
    }
}

/* The unit of the limits per client: an IPv4 address, or a /64 network of IPv6. */
static uint64_t client_of(const struct sockaddr *address)
{
    struct sockaddr_in6 six;
    struct sockaddr_in four;
    uint64_t client = 0;

    if (address && address->sa_family == AF_INET) {
        memcpy(&four, address, sizeof four);
        return four.sin_addr.s_addr;
    }
    if (address && address->sa_family == AF_INET6) {
        memcpy(&six, address, sizeof six);
        /* An IPv4 client on a socket of IPv6 counts by its four bytes: else all of them would be
         * one. */
        const bool is_four = IN6_IS_ADDR_V4MAPPED(&six.sin6_addr);
        memcpy(&client, six.sin6_addr.s6_addr + (is_four ? 12 : 0), is_four ? 4 : 8);
    }
    return client;
}

static struct kvb_http_slot *open_slot(struct kvb_http *http, struct MHD_Connection *connection)
{
    const union MHD_ConnectionInfo *socket =
        MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD);
    const int fd = socket ? socket->connect_fd : -1;
    const union MHD_ConnectionInfo *address =
        MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CLIENT_ADDRESS);
    const int buffer_bytes = send_buffer_bytes;
    struct kvb_http_victim victim = { .fd = -1 };

    /* Else the kernel takes MiB of an answer at once, and its progress cannot be measured. */
    (void)setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &buffer_bytes, sizeof buffer_bytes);
    (void)pthread_mutex_lock(&http->lock);
    struct kvb_http_slot *slot = kvb_http_slots_open(
        &http->slots, client_of(address ? address->client_addr : NULL), fd,
        kvb_clock_monotonic_ns(), &victim);
    shut_down_victim(http, &victim);
    /* libmicrohttpd has accepted it already: it reads the end of the stream, as of a victim. */
    if (!slot && fd >= 0) {
        (void)shutdown(fd, SHUT_RDWR);
        count_http(http, count_http_closed_crowded);
    }
    show_slots(http);
    const bool is_first = http->slots.open_count == 1;
    (void)pthread_mutex_unlock(&http->lock);
    if (is_first) { /* the watch rests while there is none */
        kvb_job_wake(http->watch);
    }
    return slot;
}

static void on_connection(
    void *context, struct MHD_Connection *connection, void **mark,
    enum MHD_ConnectionNotificationCode code)
{
    struct kvb_http *http = context;

    if (code == MHD_CONNECTION_NOTIFY_STARTED) {
        *mark = open_slot(http, connection);
    } else if (*mark) {
        struct kvb_http_tls *tls = ((struct kvb_http_slot *)*mark)->tls; /* this thread's own */
        /* libmicrohttpd closes the socket next, and its number may be another connection's then. */
        (void)pthread_mutex_lock(&http->lock);
        kvb_http_slots_close(&http->slots, *mark);
        show_slots(http);
        (void)pthread_mutex_unlock(&http->lock);
        kvb_http_tls_drop(tls); /* the session signs and shows nothing any more */
        *mark = NULL;
    }
}

static struct kvb_http_slot *slot_of(struct MHD_Connection *connection)
{
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(connection, MHD_CONNECTION_INFO_SOCKET_CONTEXT);

    return info ? info->socket_context : NULL;
}

static void enter_phase(const struct exchange *exchange, enum kvb_http_phase phase)
{
    if (exchange->slot) {
        (void)pthread_mutex_lock(&exchange->http->lock);
        kvb_http_slots_enter(exchange->slot, phase, kvb_clock_monotonic_ns());
        (void)pthread_mutex_unlock(&exchange->http->lock);
    }
}

/* Stores the bytes transferred in this phase so far. */
static void note_moved(const struct exchange *exchange, uint64_t bytes)
{
    if (exchange->slot) {
        (void)pthread_mutex_lock(&exchange->http->lock);
        exchange->slot->moved_bytes = bytes;
        (void)pthread_mutex_unlock(&exchange->http->lock);
    }
}

/* Charges the bytes to the memory budget.  KVB_AGAIN: the budget does not suffice. */
static kvb_status hold_body_bytes(const struct exchange *exchange, size_t bytes)
{
    kvb_status status = KVB_AGAIN;

    if (exchange->slot) {
        (void)pthread_mutex_lock(&exchange->http->lock);
        status = kvb_http_slots_hold(&exchange->http->slots, exchange->slot, bytes);
        show_slots(exchange->http);
        (void)pthread_mutex_unlock(&exchange->http->lock);
    }
    return status;
}

/* ---- Answers that come later ----
 *
 * The connection is suspended: libmicrohttpd calls nothing for it until it is resumed, and then
 * on_request() again.  Both are done under the lock, so that a wake-up is either seen before the
 * connection is suspended, or resumes it. */

/* Under the lock. */
static void resume_slot(struct kvb_http_slot *slot)
{
    const struct kvb_http_later *later = slot->waiting;

    if (later) {
        slot->waiting = NULL;
        MHD_resume_connection(later->connection);
    }
}

void kvb_http_wake(struct kvb_http_later *later)
{
    (void)pthread_mutex_lock(&later->http->lock);
    later->is_woken = true;
    if (later->slot) {
        resume_slot(later->slot);
    }
    (void)pthread_mutex_unlock(&later->http->lock);
}

/* On the thread of the connection.  False: the answer can be made now. */
static bool suspend_connection(struct kvb_http_later *later)
{
    struct kvb_http *http = later->http;

    (void)pthread_mutex_lock(&http->lock);
    /* Without a slot the watch could not find it, and nobody would end its wait. */
    const bool must_wait = later->slot && !later->is_woken && !http->is_settled;
    if (must_wait) {
        later->slot->waiting = later;
        later->is_unsent = true;
        http->unsent++;
        MHD_suspend_connection(later->connection);
    }
    (void)pthread_mutex_unlock(&http->lock);
    return must_wait;
}

static void note_sent(struct kvb_http_later *later)
{
    struct kvb_http *http = later->http;

    if (later->is_unsent) {
        (void)pthread_mutex_lock(&http->lock);
        http->unsent--;
        (void)pthread_cond_signal(&http->settled);
        (void)pthread_mutex_unlock(&http->lock);
    }
}

/* Under the lock: resumes the connections that have waited for `wait_ns`. */
static void resume_late(struct kvb_http *http, uint64_t wait_ns, uint64_t now_ns)
{
    for (size_t i = 0; i < http->slots.slot_count; i++) {
        struct kvb_http_slot *slot = &http->slots.slots[i];
        if (slot->waiting && now_ns - slot->since_ns >= wait_ns) {
            resume_slot(slot);
        }
    }
}

static struct timespec timespec_of(uint64_t ns)
{
    return (struct timespec){ .tv_sec = (time_t)(ns / KVB_NS_PER_S),
                              .tv_nsec = (long)(ns % KVB_NS_PER_S) };
}

/* Waits until all answers that come later are sent, and then suspends no other connection, because
 * libmicrohttpd stops only when none is suspended.  The watch ends the longest wait. */
static void settle_answers(struct kvb_http *http)
{
    const struct timespec until = timespec_of(
        kvb_clock_monotonic_ns() + http->wait_ns + UINT64_C(2) * watch_ms * KVB_NS_PER_MS);
    bool is_late = false;

    (void)pthread_mutex_lock(&http->lock);
    while (http->unsent > 0 && !is_late) {
        is_late = pthread_cond_timedwait(&http->settled, &http->lock, &until) != 0;
    }
    /* Who still waits is resumed without its answer, which finish() has to cope with. */
    http->is_settled = true;
    resume_late(http, 0, kvb_clock_monotonic_ns());
    (void)pthread_mutex_unlock(&http->lock);
}

/* A turn of the watch: closes connections whose deadline has passed, and resumes those whose answer
 * does not come. */
static uint64_t watch_connections(void *context, uint64_t turn_ns)
{
    struct kvb_http *http = context;
    struct kvb_http_victim victim;

    (void)turn_ns;
    (void)pthread_mutex_lock(&http->lock);
    /* read under the lock: no connection may be younger than it */
    const uint64_t now_ns = kvb_clock_monotonic_ns();
    resume_late(http, http->wait_ns, now_ns);
    while (kvb_http_slots_next_late(&http->slots, now_ns, &victim)) {
        shut_down_victim(http, &victim);
    }
    const bool is_empty = http->slots.open_count == 0;
    (void)pthread_mutex_unlock(&http->lock);
    /* The next connection that is opened wakes it. */
    return is_empty ? UINT64_MAX : now_ns + watch_ms * KVB_NS_PER_MS;
}

/* ---- Callbacks of libmicrohttpd, on its threads ------------------------------------- */

/* Counts the requests that libmicrohttpd itself refuses.  It calls no other callback for these. */
static void on_message(void *context, const char *format, va_list values)
{
    static const char refused[] = "Error processing request";

    (void)values;
    if (strncmp(format, refused, sizeof refused - 1) == 0) {
        count_http(context, count_http_refused_malformed);
    }
}

/* Called first for each request; the only callback that gets the parameters undecoded. */
static void *begin_exchange(void *context, const char *uri, struct MHD_Connection *connection)
{
    struct kvb_http *http = context;
    const char *mark = strchr(uri, '?');
    struct exchange *exchange = calloc(1, sizeof *exchange);

    if (!exchange) {
        return NULL; /* answered with 503 */
    }
    exchange->parameters = strdup(mark ? mark + 1 : "");
    if (!exchange->parameters) {
        free(exchange);
        return NULL;
    }
    exchange->http = http;
    exchange->slot = slot_of(connection);
    exchange->later =
        (struct kvb_http_later){ .http = http, .connection = connection, .slot = exchange->slot };
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
    if (exchange) {
        if (code == MHD_REQUEST_TERMINATED_TIMEOUT_REACHED) {
            count_http(exchange->http, count_http_closed_late);
        }
        if (exchange->answer.parts) {
            exchange->answer.drop(exchange->answer.parts);
        }
        note_sent(&exchange->later);
        kvb_buf_done(&exchange->body);
        kvb_buf_done(&exchange->answer.body);
        (void)hold_body_bytes(exchange, 0);
        /* The connection may stay: from now on its next request has a deadline. */
        enter_phase(exchange, KVB_HTTP_HEADER);
        free(exchange->parameters);
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

/* Called by libmicrohttpd for more bytes.  Those before `position` are sent or in the socket's
 * buffer. */
static ssize_t read_answer_body(void *context, uint64_t position, char *out, size_t max_bytes)
{
    struct exchange *exchange = context;
    struct kvb_http_answer *answer = &exchange->answer;

    note_moved(exchange, position);
    /* A loop, because a part may have no bytes. */
    while (exchange->read_bytes == answer->body.len) {
        if (!answer->next || exchange->is_last_part) {
            return MHD_CONTENT_READER_END_OF_STREAM;
        }
        kvb_buf_reset(&answer->body);
        exchange->read_bytes = 0;
        const kvb_status status = answer->next(answer->parts, &answer->body);
        /* The status has been sent: only a broken connection shows that the answer is not whole. */
        if ((status != KVB_OK && status != KVB_AGAIN) ||
            hold_body_bytes(exchange, answer->body.capacity) != KVB_OK) {
            return MHD_CONTENT_READER_END_WITH_ERROR;
        }
        exchange->is_last_part = status == KVB_OK;
    }
    const size_t left = answer->body.len - exchange->read_bytes;
    const size_t bytes = left < max_bytes ? left : max_bytes;
    memcpy(out, answer->body.data + exchange->read_bytes, bytes);
    exchange->read_bytes += bytes;
    return (ssize_t)bytes;
}

/* The body is not copied, because the exchange lives until the answer is sent. */
static struct MHD_Response *make_response(struct exchange *exchange)
{
    struct kvb_http_answer *answer = &exchange->answer;

    if (!answer->next && answer->body.len <= plain_answer_bytes) {
        return MHD_create_response_from_buffer(
            answer->body.len, answer->body.data, MHD_RESPMEM_PERSISTENT);
    }
    return MHD_create_response_from_callback(
        answer->next ? MHD_SIZE_UNKNOWN : answer->body.len, part_bytes, read_answer_body, exchange,
        NULL);
}

static void count_refusal(struct kvb_http *http, unsigned status)
{
    if (status == MHD_HTTP_UNAUTHORIZED || status == MHD_HTTP_FORBIDDEN) {
        count_http(http, count_http_refused_denied);
    } else if (status >= 400 && status < 500) {
        count_http(http, count_http_refused_request);
    }
}

static enum MHD_Result
send_http_answer(struct MHD_Connection *connection, struct exchange *exchange)
{
    const struct kvb_http_answer *answer = &exchange->answer;
    const bool is_extra = exchange->slot && exchange->slot->is_extra;
    KVB_OWN(drop_response) struct MHD_Response *response = make_response(exchange);

    /* An extra connection gets one answer, and gives its place back. */
    if (!response || !add_header(response, MHD_HTTP_HEADER_CONTENT_TYPE, answer->content_type) ||
        !add_header(response, MHD_HTTP_HEADER_ALLOW, answer->allow) ||
        !add_header(response, MHD_HTTP_HEADER_CONNECTION, is_extra ? "close" : NULL) ||
        !add_headers(response, answer->headers)) {
        return MHD_NO;
    }
    enter_phase(exchange, KVB_HTTP_ANSWER);
    count_refusal(exchange->http, answer->status);
    return MHD_queue_response(connection, answer->status ? answer->status : 500, response);
}

/* Answers 503 and closes the connection. */
static enum MHD_Result send_busy(struct MHD_Connection *connection, const char *text)
{
    char copy[busy_text_bytes];
    KVB_OWN(drop_response) struct MHD_Response *response = NULL;

    (void)snprintf(copy, sizeof copy, "{\"error\":\"%s, try again later\"}\n", text);
    response = MHD_create_response_from_buffer(strlen(copy), copy, MHD_RESPMEM_MUST_COPY);
    if (!response || !add_header(response, MHD_HTTP_HEADER_CONTENT_TYPE, json_type) ||
        !add_header(response, MHD_HTTP_HEADER_RETRY_AFTER, "1") ||
        !add_header(response, MHD_HTTP_HEADER_CONNECTION, "close")) {
        return MHD_NO;
    }
    return MHD_queue_response(connection, MHD_HTTP_SERVICE_UNAVAILABLE, response);
}

static enum MHD_Result
refuse_memory(struct MHD_Connection *connection, const struct exchange *exchange)
{
    count_http(exchange->http, count_http_refused_memory);
    enter_phase(exchange, KVB_HTTP_ANSWER);
    return send_busy(connection, "no memory left for the body or the answer");
}

static enum MHD_Result send_too_large(struct MHD_Connection *connection, struct exchange *exchange)
{
    struct kvb_http_answer *answer = &exchange->answer;

    answer->status = MHD_HTTP_CONTENT_TOO_LARGE;
    answer->content_type = json_type;
    if (kvb_buf_append_format(
            &answer->body, "{\"error\":\"the body is larger than %zu bytes\"}\n",
            exchange->http->max_body_bytes) != KVB_OK) {
        return MHD_NO;
    }
    return send_http_answer(connection, exchange);
}

static const char *header_of(struct MHD_Connection *connection, const char *name)
{
    const char *value = MHD_lookup_connection_value(connection, MHD_HEADER_KIND, name);

    return value ? value : "";
}

/* True when the body is so large that it is not read to its end only to send an error. */
static bool is_hopeless(const struct kvb_http *http, size_t bytes)
{
    return bytes / 2 > http->max_body_bytes;
}

static uint64_t declared_bytes(struct MHD_Connection *connection)
{
    return strtoull(header_of(connection, MHD_HTTP_HEADER_CONTENT_LENGTH), NULL, 10);
}

/* Makes room for more bytes of the body by doubling its buffer, after charging the memory budget.
 * KVB_AGAIN: the budget is used up.  KVB_TOO_LARGE, KVB_NO_MEMORY. */
static kvb_status make_body_room(struct exchange *exchange, size_t more_bytes)
{
    struct kvb_buf *body = &exchange->body;
    const size_t need = body->len + more_bytes;
    size_t capacity = body->capacity ? body->capacity : kvb_http_own_bytes;

    if (need > body->ceiling) {
        return KVB_TOO_LARGE;
    }
    if (need <= body->capacity) {
        return KVB_OK;
    }
    while (capacity < need) {
        capacity *= 2; /* need is bounded */
    }
    capacity = capacity < body->ceiling ? capacity : body->ceiling;
    KVB_TRY(hold_body_bytes(exchange, capacity));
    return kvb_buf_reserve(body, capacity - body->len);
}

/* Frees the body, and marks the exchange so that its rest is discarded and an error is answered. */
static void give_up_body(struct exchange *exchange, kvb_status why)
{
    exchange->is_too_large = why == KVB_TOO_LARGE;
    exchange->is_refused = why == KVB_AGAIN;
    exchange->refused_bytes = exchange->body.len;
    kvb_buf_done(&exchange->body);
    (void)hold_body_bytes(exchange, 0);
}

/* Appends a piece of the body.  MHD_NO closes the connection. */
static enum MHD_Result take_body(struct exchange *exchange, const char *bytes, size_t *len)
{
    if (!exchange->is_too_large && !exchange->is_refused) {
        const kvb_status status = make_body_room(exchange, *len);
        if (status == KVB_NO_MEMORY) {
            count_http(exchange->http, count_http_refused_memory);
            return MHD_NO;
        }
        if (status == KVB_OK) {
            (void)kvb_buf_append(&exchange->body, bytes, *len); /* there is room */
            note_moved(exchange, exchange->body.len);
        } else {
            give_up_body(exchange, status);
        }
    }
    /* The rest is read and dropped, because clients may read no answer before they have sent
     * all. */
    if (exchange->is_too_large || exchange->is_refused) {
        exchange->refused_bytes += *len;
        note_moved(exchange, exchange->refused_bytes);
    }
    *len = 0;
    /* But not without end. */
    if (is_hopeless(exchange->http, exchange->refused_bytes)) {
        count_http(exchange->http, count_http_refused_request);
        return MHD_NO;
    }
    return MHD_YES;
}

static enum MHD_Result send_whole(struct MHD_Connection *connection, struct exchange *exchange)
{
    if (hold_body_bytes(exchange, exchange->answer.body.capacity) != KVB_OK) {
        kvb_buf_done(&exchange->answer.body);
        return refuse_memory(connection, exchange);
    }
    return send_http_answer(connection, exchange);
}

static enum MHD_Result finish_later(struct MHD_Connection *connection, struct exchange *exchange)
{
    struct kvb_http_answer *answer = &exchange->answer;
    void (*const finish)(void *parts, struct kvb_http_answer *answer) = answer->finish;

    /* Else on_request() would take it for an answer that is still to come. */
    answer->finish = NULL;
    finish(answer->parts, answer);
    return send_whole(connection, exchange);
}

static enum MHD_Result answer_whole(
    struct MHD_Connection *connection, struct exchange *exchange, const char *path,
    const char *method)
{
    const struct kvb_http *http = exchange->http;
    const bool is_head = strcmp(method, MHD_HTTP_METHOD_HEAD) == 0;
    const struct kvb_http_request request = {
        .method = is_head ? MHD_HTTP_METHOD_GET : method, /* libmicrohttpd omits the body */
        .path = path,
        .parameters = exchange->parameters,
        .content_type = header_of(connection, MHD_HTTP_HEADER_CONTENT_TYPE),
        .authorization = header_of(connection, MHD_HTTP_HEADER_AUTHORIZATION),
        .if_none_match = header_of(connection, MHD_HTTP_HEADER_IF_NONE_MATCH),
        .body = kvb_buf_span(&exchange->body),
        .later = &exchange->later,
    };

    enter_phase(exchange, KVB_HTTP_WORK);
    http->handler(http->context, &request, &exchange->answer);
    /* The handler has borrowed it for the call: others may have its bytes while this one waits. */
    kvb_buf_done(&exchange->body);
    (void)hold_body_bytes(exchange, 0);
    if (!exchange->answer.finish) {
        return send_whole(connection, exchange);
    }
    /* Woken meanwhile, or nobody may wait any more: then it is finished now. */
    return suspend_connection(&exchange->later) ? MHD_YES : finish_later(connection, exchange);
}

static bool is_vital_path(const struct kvb_http *http, const char *path)
{
    for (const char *const *vital = http->vital; vital && *vital; vital++) {
        if (strcmp(*vital, path) == 0) {
            return true;
        }
    }
    return false;
}

/* ---- Who may send the request ---- */

static enum kvb_http_rule rule_of(const struct kvb_http *http, const char *path)
{
    for (const struct kvb_http_path_rule *rule = http->rules; rule && rule->path; rule++) {
        if (strcmp(rule->path, path) == 0) {
            return rule->rule;
        }
    }
    return KVB_HTTP_GUARDED;
}

static enum kvb_http_verdict check_access(
    struct MHD_Connection *connection, const struct exchange *exchange, enum kvb_http_rule rule)
{
    struct kvb_http_access *access = exchange->http->access;

    return access ? kvb_http_access_check(
                        access, rule, header_of(connection, MHD_HTTP_HEADER_AUTHORIZATION))
                  : KVB_HTTP_GRANTED;
}

static void prove_connection(const struct exchange *exchange, enum kvb_http_rule rule)
{
    const struct kvb_http_access *access = exchange->http->access;

    /* Where a token is needed, a request to an open path proves nothing.  These two fields need no
     * lock: after the opening only this thread changes them. */
    if (exchange->slot && (!exchange->slot->is_proven || exchange->slot->is_extra) &&
        (rule == KVB_HTTP_GUARDED || rule == KVB_HTTP_OF_REGISTER || !access ||
         !kvb_http_access_is_guarded(access))) {
        (void)pthread_mutex_lock(&exchange->http->lock);
        kvb_http_slots_prove(&exchange->http->slots, exchange->slot);
        (void)pthread_mutex_unlock(&exchange->http->lock);
    }
}

static const struct kvb_http_header wants_token[] = {
    { MHD_HTTP_HEADER_WWW_AUTHENTICATE, "Bearer" },
    { NULL, NULL },
};

/* Answers before the body; libmicrohttpd then closes the connection without reading it. */
static enum MHD_Result refuse_access(
    struct MHD_Connection *connection, struct exchange *exchange, enum kvb_http_verdict verdict)
{
    static const struct {
        unsigned status;
        const char *sentence;
    } rows[KVB_HTTP_VERDICT_COUNT] = {
        [KVB_HTTP_NO_TOKEN] = { MHD_HTTP_UNAUTHORIZED, "the token is missing or wrong: send "
                                                       "Authorization: Bearer TOKEN" },
        [KVB_HTTP_REGISTER_DISABLED] = { MHD_HTTP_FORBIDDEN,
                                         "registration is disabled: register.token_file is not "
                                         "configured" },
        [KVB_HTTP_REGISTER_UNREADABLE] = { MHD_HTTP_SERVICE_UNAVAILABLE,
                                           "register.token_file cannot be used: the log of this "
                                           "program says why" },
    };

    kvb_http_refuse(&exchange->answer, rows[verdict].status, rows[verdict].sentence);
    exchange->answer.headers = verdict == KVB_HTTP_NO_TOKEN ? wants_token : NULL;
    return send_http_answer(connection, exchange);
}

/* True for a body to a path that needs no token, while others do.  Only proven
 * requesters may use memory for bodies. */
static bool has_stray_body(
    struct MHD_Connection *connection, const struct exchange *exchange, enum kvb_http_rule rule)
{
    const struct kvb_http_access *access = exchange->http->access;
    const bool has_body = declared_bytes(connection) > 0 ||
                          header_of(connection, MHD_HTTP_HEADER_TRANSFER_ENCODING)[0] != '\0';

    return has_body && access && kvb_http_access_is_guarded(access) &&
           (rule == KVB_HTTP_OPEN || rule == KVB_HTTP_OF_METRICS);
}

/* Called when the header is complete.  Answers at once if the body does not matter. */
static enum MHD_Result
begin_body(struct MHD_Connection *connection, struct exchange *exchange, const char *path)
{
    const uint64_t bytes = declared_bytes(connection);
    const enum kvb_http_rule rule = rule_of(exchange->http, path);

    exchange->is_known = true;
    enter_phase(exchange, KVB_HTTP_BODY);
    const enum kvb_http_verdict verdict = check_access(connection, exchange, rule);
    if (verdict == KVB_HTTP_GRANTED) {
        prove_connection(exchange, rule);
    }
    /* After the proof: a connection that is permitted now may not be extra any more. */
    if ((!exchange->slot || exchange->slot->is_extra) &&
        (bytes > 0 || !is_vital_path(exchange->http, path))) {
        count_http(exchange->http, count_http_refused_crowded);
        enter_phase(exchange, KVB_HTTP_ANSWER);
        return send_busy(connection, "too many connections");
    }
    if (verdict != KVB_HTTP_GRANTED) {
        return refuse_access(connection, exchange, verdict);
    }
    if (has_stray_body(connection, exchange, rule)) {
        kvb_http_refuse(&exchange->answer, 413, "a request to this path has no body");
        return send_http_answer(connection, exchange);
    }
    if (is_hopeless(exchange->http, bytes)) {
        return send_too_large(connection, exchange);
    }
    /* Asks whether there is memory for all of it before any of it is read.  A body somewhat above
     * the limit is read to its end, so that its client reads the 413. */
    if (bytes <= exchange->http->max_body_bytes && hold_body_bytes(exchange, bytes) != KVB_OK) {
        return refuse_memory(connection, exchange);
    }
    (void)hold_body_bytes(exchange, 0); /* the body is counted as it arrives */
    return MHD_YES;
}

/* Called once for the headers, then for each piece of the body, then at its end, and again when the
 * connection was suspended there. */
static enum MHD_Result on_request(
    void *context, struct MHD_Connection *connection, const char *path, const char *method,
    const char *version, const char *upload, size_t *upload_len, void **at)
{
    struct exchange *exchange = *at;

    (void)version;
    /* begin_exchange() had no memory. */
    if (!exchange) {
        count_http(context, count_http_refused_memory);
        return send_busy(connection, "out of memory");
    }
    if (!exchange->is_known) {
        return begin_body(connection, exchange, path);
    }
    if (*upload_len > 0) {
        return take_body(exchange, upload, upload_len);
    }
    if (exchange->answer.finish) {
        return finish_later(connection, exchange);
    }
    if (exchange->is_refused) {
        return refuse_memory(connection, exchange);
    }
    if (exchange->is_too_large) {
        return send_too_large(connection, exchange);
    }
    return answer_whole(connection, exchange, path, method);
}

/* ---- Starting and stopping ------------------------------------------------------------ */

static kvb_status bad_listen(const char *listen, const char *why, struct kvb_detail *detail)
{
    kvb_detail_set(detail, "http: cannot listen on \"%s\": %s", listen ? listen : "", why);
    return KVB_BAD_CONFIG;
}

static bool is_http_port(const char *text)
{
    char *end = NULL;
    const unsigned long port = strtoul(text, &end, 10);

    return text[0] >= '0' && text[0] <= '9' && *end == '\0' && port <= UINT16_MAX;
}

bool kvb_http_listen_read(const char *listen, struct sockaddr_storage *out_address)
{
    struct sockaddr_in four = { .sin_family = AF_INET };
    struct sockaddr_in6 six = { .sin6_family = AF_INET6 };
    const char *colon = listen ? strrchr(listen, ':') : NULL;
    char host[max_listen_bytes];

    if (!colon || !is_http_port(colon + 1) || colon - listen >= max_listen_bytes) {
        return false;
    }
    const bool is_six = listen[0] == '[' && colon[-1] == ']';
    const size_t len = (size_t)(colon - listen) - (is_six ? 2 : 0);
    memcpy(host, listen + is_six, len);
    host[len] = '\0';
    four.sin_port = six.sin6_port = htons((uint16_t)strtoul(colon + 1, NULL, 10));
    if (inet_pton(
            is_six ? AF_INET6 : AF_INET, host,
            is_six ? (void *)&six.sin6_addr : (void *)&four.sin_addr) != 1) {
        return false;
    }
    memcpy(out_address, is_six ? (void *)&six : (void *)&four, is_six ? sizeof six : sizeof four);
    return true;
}

bool kvb_http_listen_is_valid(const char *listen)
{
    struct sockaddr_storage ignored;

    return kvb_http_listen_read(listen, &ignored);
}

bool kvb_http_listen_is_loopback(const char *listen)
{
    struct sockaddr_storage address;
    struct sockaddr_in6 six;
    struct sockaddr_in four;

    if (!kvb_http_listen_read(listen, &address)) {
        return false;
    }
    if (address.ss_family == AF_INET) {
        memcpy(&four, &address, sizeof four);
        return ntohl(four.sin_addr.s_addr) >> 24 == IN_LOOPBACKNET;
    }
    memcpy(&six, &address, sizeof six);
    return IN6_IS_ADDR_LOOPBACK(&six.sin6_addr) ||
           (IN6_IS_ADDR_V4MAPPED(&six.sin6_addr) && six.sin6_addr.s6_addr[12] == IN_LOOPBACKNET);
}

static kvb_status
check_http_options(const struct kvb_http_options *options, struct kvb_detail *detail)
{
    if (options->threads < 1 || options->threads > max_threads) {
        kvb_detail_set(
            detail, "http: %u threads; 1 to %d are possible", options->threads, max_threads);
        return KVB_BAD_CONFIG;
    }
    return KVB_OK;
}

/* Gives GnuTLS the newest certificate for a handshake.  libmicrohttpd stores its connection as the
 * session's pointer; the connection has its slot, and the slot has the server. */
static int on_handshake(
    gnutls_session_t session, const struct gnutls_cert_retr_st *info, gnutls_pcert_st **chain,
    unsigned *chain_count, gnutls_ocsp_data_st **ocsp, unsigned *ocsp_count, gnutls_privkey_t *key,
    unsigned *flags)
{
    struct MHD_Connection *connection = gnutls_session_get_ptr(session);
    struct kvb_http_slot *slot = connection ? slot_of(connection) : NULL;

    (void)info;
    if (!slot) {
        return -1; /* no slot was free: the connection is being closed */
    }
    const struct kvb_http *http = slot->owner;
    *ocsp = NULL;
    *ocsp_count = 0;
    *flags = 0; /* nothing is GnuTLS's to free */
    kvb_http_tls_drop(slot->tls);
    slot->tls = kvb_http_access_tls(http->access);
    kvb_http_tls_show(slot->tls, chain, chain_count, key);
    return 0;
}

static struct MHD_Daemon *start_daemon(
    struct kvb_http *http, const struct kvb_http_options *options,
    const struct sockaddr_storage *address)
{
    const bool is_tls = http->access && kvb_http_access_is_tls(http->access);
    /* poll, not epoll: with epoll, libmicrohttpd 0.9.75 loses the wake-up of one connection in
     * 100,000 on a busy machine, and never reads its request. */
    const unsigned flags = MHD_USE_POLL_INTERNAL_THREAD | MHD_USE_ERROR_LOG |
                           MHD_ALLOW_SUSPEND_RESUME | (is_tls ? MHD_USE_TLS : 0) |
                           (address->ss_family == AF_INET6 ? MHD_USE_IPv6 : 0);
    /* libmicrohttpd rejects a pool of one thread; without a pool it has one thread. */
    const unsigned pool = options->threads > 1 ? options->threads : 0;

    /* libmicrohttpd divides the limit by the number of threads.  A thread that has reached its
     * share accepts no connection even when the others are idle.  So each thread gets the whole
     * limit, and the slots limit the total.  One more for each thread may be closing. */
    const unsigned max = options->threads * (unsigned)(http->slots.slot_count + 1);
    /* The watch thread closes sooner, also who sends or reads a byte now and then, which this does
     * not notice. */
    const unsigned idle_s = 2 * (unsigned)(http->slots.options.grace_ns / KVB_NS_PER_S) + 1;

    char versions[] = "NORMAL:-VERS-ALL:+VERS-TLS1.3:+VERS-TLS1.2";
    const union {
        gnutls_certificate_retrieve_function3 *call;
        void *value; /* the type that an array of options holds */
    } handshake = { .call = on_handshake };
    const struct MHD_OptionItem tls_options[] = {
        { MHD_OPTION_HTTPS_CERT_CALLBACK2, 0, handshake.value },
        { MHD_OPTION_HTTPS_PRIORITIES, 0, versions },
        { MHD_OPTION_END, 0, NULL },
    };
    const struct MHD_OptionItem no_options[] = { { MHD_OPTION_END, 0, NULL } };

    /* clang-format off */
    return MHD_start_daemon(
        flags, 0, NULL, NULL, on_request, http,
        MHD_OPTION_EXTERNAL_LOGGER, on_message, http, /* first: it gets errors of later options */
        MHD_OPTION_SOCK_ADDR, address,
        MHD_OPTION_THREAD_POOL_SIZE, pool,
        MHD_OPTION_CONNECTION_LIMIT, max,
        MHD_OPTION_CONNECTION_TIMEOUT, idle_s,
        MHD_OPTION_NOTIFY_CONNECTION, on_connection, http,
        MHD_OPTION_URI_LOG_CALLBACK, begin_exchange, http,
        MHD_OPTION_NOTIFY_COMPLETED, end_exchange, NULL,
        MHD_OPTION_ARRAY, is_tls ? tls_options : no_options,
        MHD_OPTION_END);
    /* clang-format on */
}

static kvb_status init_slots(struct kvb_http *http, const struct kvb_http_options *options)
{
    const size_t connections =
        options->max_connections ? options->max_connections : kvb_max_http_connections;
    const size_t held_bytes =
        options->max_held_bytes ? options->max_held_bytes : kvb_max_http_held_bytes;
    const uint64_t grace_ms =
        options->grace_ms ? options->grace_ms : kvb_http_grace_s * UINT64_C(1000);

    return kvb_http_slots_init(
        &http->slots, &(struct kvb_http_slots_options){
                          .max_connections = connections,
                          .max_extra = kvb_max_http_extra,
                          .max_per_client = connections - connections / 4,
                          .max_unproven = connections - connections / 2,
                          .owner = http,
                          .max_held_bytes = held_bytes,
                          .max_client_bytes = held_bytes - held_bytes / 4,
                          .own_bytes = kvb_http_own_bytes,
                          .grace_ns = grace_ms * KVB_NS_PER_MS,
                          .young_ns = young_ms * KVB_NS_PER_MS,
                          .bytes_a_second = kvb_http_bytes_a_second,
                      });
}

static void init_locks(struct kvb_http *http)
{
    pthread_condattr_t monotonic;

    (void)pthread_mutex_init(&http->lock, NULL); /* none of these can fail with glibc */
    (void)pthread_condattr_init(&monotonic);
    (void)pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    (void)pthread_cond_init(&http->settled, &monotonic);
    (void)pthread_condattr_destroy(&monotonic);
}

/* The status of a failed bind.  KVB_IO when the cause may disappear: a taken port, a missing
 * address.  Else KVB_BAD_CONFIG. */
static kvb_status listen_failed(const char *listen, int error, struct kvb_detail *detail)
{
    const bool may_pass = error == EADDRINUSE || error == EADDRNOTAVAIL;

    (void)bad_listen(
        listen, error ? strerrordesc_np(error) : "libmicrohttpd did not start", detail);
    return may_pass ? KVB_IO : KVB_BAD_CONFIG;
}

static kvb_status open_access(
    struct kvb_http *http, const struct kvb_http_options *options, struct kvb_detail *detail)
{
    const struct kvb_http_access_options access = {
        .listener = KVB_LISTENER_HTTP,
        .security = options->security,
        .register_token_file = options->register_token_file,
        .log = options->log,
    };
    struct kvb_detail why = { .text = "" };
    const char *key = "";

    if (!options->security) {
        return KVB_OK;
    }
    const kvb_status status = kvb_http_access_new(&access, &http->access, &key, &why);
    if (status != KVB_OK) {
        kvb_detail_set(detail, "%s: %s", key, why.text);
    }
    return status;
}

static kvb_status start_threads(
    struct kvb_http *http, const struct kvb_http_options *options,
    const struct sockaddr_storage *address, struct kvb_detail *detail)
{
    const struct kvb_job_options watch = { .turn = watch_connections, .context = http };

    /* Before the server: its first connection wakes the watch. */
    KVB_TRY(kvb_job_add(options->control, &watch, &http->watch));
    errno = 0;
    http->daemon = start_daemon(http, options, address);
    return http->daemon ? KVB_OK : listen_failed(options->listen, errno, detail);
}

kvb_status kvb_http_start(
    const struct kvb_http_options *options, struct kvb_http **out_http, struct kvb_detail *detail)
{
    struct sockaddr_storage address = { 0 };
    char port[24];

    KVB_TRY(check_http_options(options, detail));
    if (!kvb_http_listen_read(options->listen, &address)) {
        return bad_listen(options->listen, "expected address:port, such as 127.0.0.1:9402", detail);
    }
    struct kvb_http *http = calloc(1, sizeof *http);
    if (!http) {
        return KVB_NO_MEMORY;
    }
    http->max_body_bytes = options->max_body_bytes;
    http->vital = options->vital;
    http->rules = options->rules;
    http->metrics = options->metrics;
    http->first_metric = options->first_metric;
    http->handler = options->handler;
    http->context = options->context;
    http->wait_ns = options->wait_ms ? options->wait_ms * KVB_NS_PER_MS
                                     : (uint64_t)kvb_http_wait_s * KVB_NS_PER_S;
    init_locks(http);
    kvb_status status = open_access(http, options, detail);
    if (status == KVB_OK) {
        status = init_slots(http, options);
    }
    if (status == KVB_OK) {
        status = start_threads(http, options, &address, detail);
    }
    if (status != KVB_OK) {
        kvb_http_stop(http);
        return status;
    }
    /* The system has chosen it where the configuration says port 0. */
    http->port = MHD_get_daemon_info(http->daemon, MHD_DAEMON_INFO_BIND_PORT)->port;
    kvb_log_write(
        options->log, KVB_LOG_INFO, "http", "listening", "address", options->listen, "port",
        kvb_log_number(port, http->port), NULL);
    *out_http = http;
    return KVB_OK;
}

uint16_t kvb_http_port(const struct kvb_http *http)
{
    return http->port;
}

size_t kvb_http_files(unsigned max_connections, unsigned threads)
{
    const size_t connections = max_connections ? max_connections : kvb_max_http_connections;

    return connections + kvb_max_http_extra + threads * (size_t)files_a_thread;
}

void kvb_http_reload(struct kvb_http *http)
{
    if (http->access) {
        kvb_http_access_reload(http->access);
    }
}

void kvb_http_stop(struct kvb_http *http)
{
    if (!http) {
        return;
    }
    if (http->daemon) {
        settle_answers(http);
        MHD_stop_daemon(http->daemon);
    }
    /* Only now: it ends the longest of the waits that were settled above. */
    kvb_job_remove(http->watch);
    kvb_http_slots_done(&http->slots);
    kvb_http_access_free(http->access);
    (void)pthread_cond_destroy(&http->settled);
    (void)pthread_mutex_destroy(&http->lock);
    free(http);
}
