#include "grpc/server.h"

#include "control/control.h"
#include "core/clock.h"
#include "core/limits.h"
#include "core/ring.h"
#include "core/thread.h"
#include "daemon/http_access.h"
#include "grpc/tls.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
    read_bytes = 64 << 10,  /* of one connection, before the next has its turn */
    write_bytes = 64 << 10, /* taken from a session before they are sent */
    frame_bytes = 32 << 10, /* room for the rest of a frame: nghttp2 gives whole frames */
    sweep_ms = 250,
    linger_ms = 1000,    /* for a client to read why its connection ends */
    young_ms = 1000,     /* a connection younger than this does not make room */
    events_a_turn = 512, /* all connections, so that none waits behind the handshakes of others */
    backlog = 128,
    other_files = 3 /* the listening socket, epoll, the ring of finished calls */
};

enum connection_phase {
    CONNECTION_HANDSHAKE, /* of TLS; there is no session yet */
    CONNECTION_OPEN,
    CONNECTION_ENDING,   /* what is left is sent, then our side of the socket is closed */
    CONNECTION_LINGERING /* closed on our side: waits for the client to close its own */
};

enum grpc_end { END_LATE, END_IDLE, END_CROWDED, END_MISBEHAVED, END_MEMORY, END_SILENT };

struct grpc_connection {
    struct kvb_grpc *server; /* NULL: free */
    int fd;
    enum connection_phase phase;
    struct kvb_grpc_tls *tls;         /* owned; NULL: none */
    struct kvb_grpc_session *session; /* owned; NULL: CONNECTION_HANDSHAKE */
    struct kvb_buf out;               /* of which `sent` bytes were sent */
    size_t sent;
    uint32_t events; /* that epoll reports */
    bool is_dirty;   /* its session may have something to send */
    uint64_t opened_ns;
    uint64_t moved_ns; /* when a byte was last read or sent */
    uint64_t ending_ns;
    struct kvb_grpc_call *calls; /* list; those that are under way */
};

struct kvb_grpc_call {
    struct kvb_grpc *server;
    /* Only for the server's thread: */
    struct grpc_connection *connection; /* NULL: gone */
    struct kvb_grpc_call *next;
    int32_t stream;
    /* For all threads: */
    atomic_bool is_gone;
    uint64_t deadline_ns;
    enum kvb_grpc_status status;
    struct kvb_buf message;
};

struct kvb_grpc {
    struct kvb_grpc_options options;
    struct kvb_grpc_gate gate;
    struct kvb_job *job;        /* owned; NULL: not started */
    struct kvb_fd_watch *watch; /* owned; the control thread's: of epoll_fd */
    pthread_mutex_t lock;       /* is_over */
    pthread_cond_t ended;
    bool is_over;               /* it was stopped, and no turn follows */
    atomic_bool is_stop_wanted; /* kvb_grpc_stop() was called */
    uint16_t port;
    int listen_fd; /* owned */
    int epoll_fd;  /* owned: of all sockets, so that a turn reads some of those that are ready */
    struct kvb_http_access *access;  /* owned, like the next; NULL: no TLS */
    struct kvb_grpc_tls_server *tls; /* NULL: no TLS */
    struct kvb_log_limit refusals;   /* of handshakes */
    bool is_listening;               /* epoll looks at listen_fd */
    bool is_stopping;
    uint64_t stop_ns;
    uint64_t next_sweep_ns;
    uint64_t grace_ns;
    uint64_t idle_ns;
    uint64_t now_ns;
    struct kvb_ring *finished;           /* calls, on their way back */
    struct grpc_connection *connections; /* owned; slot_count of them */
    size_t connection_limit;             /* those above get SETTINGS and a GOAWAY only */
    size_t slot_count;
    size_t connection_count;
};

/* Of the room in logs and errors. */
static const char *name_of(const struct kvb_grpc_options *options)
{
    return options->listener == KVB_LISTENER_GATEWAY ? "gateway" : "grpc";
}

/* ---- Metrics ---- */

static void count_grpc(struct kvb_grpc *grpc, size_t row)
{
    if (grpc->options.metrics) {
        kvb_metric_add(grpc->options.metrics, grpc->options.first_metric + row, 1);
    }
}

/* Of the rows of KVB_GRPC_METRICS. */
enum {
#define GRPC_ROW(id, type, name, labels, help) row_##id,
    KVB_GRPC_METRICS(GRPC_ROW)
#undef GRPC_ROW
};

static void note_grpc_gauges(struct kvb_grpc *grpc)
{
    struct kvb_metrics *metrics = grpc->options.metrics;
    const size_t first = grpc->options.first_metric;

    if (!metrics) {
        return;
    }
    kvb_metric_set(metrics, first + row_grpc_connections, grpc->connection_count);
    kvb_metric_set(metrics, first + row_grpc_under_way, grpc->gate.under_way);
    kvb_metric_set(metrics, first + row_grpc_held, grpc->gate.held_bytes);
}

static void note_grpc_status(void *context, enum kvb_grpc_status status)
{
    static const size_t rows[KVB_GRPC_STATUS_COUNT] = {
        [KVB_GRPC_OK] = row_grpc_ok,
        [KVB_GRPC_INVALID_ARGUMENT] = row_grpc_invalid_argument,
        [KVB_GRPC_DEADLINE_EXCEEDED] = row_grpc_deadline_exceeded,
        [KVB_GRPC_NOT_FOUND] = row_grpc_none, /* of health checks, which are not counted */
        [KVB_GRPC_RESOURCE_EXHAUSTED] = row_grpc_resource_exhausted,
        [KVB_GRPC_OUT_OF_RANGE] = row_grpc_out_of_range,
        [KVB_GRPC_UNIMPLEMENTED] = row_grpc_unimplemented,
        [KVB_GRPC_UNAVAILABLE] = row_grpc_unavailable,
    };

    count_grpc(context, status == KVB_GRPC_LATER ? row_grpc_none : rows[status]);
}

/* ---- Calls ---- */

bool kvb_grpc_call_is_over(const struct kvb_grpc_call *call, uint64_t now_ns)
{
    return atomic_load_explicit(&call->is_gone, memory_order_relaxed) ||
           now_ns >= call->deadline_ns;
}

struct kvb_buf *kvb_grpc_call_message(struct kvb_grpc_call *call)
{
    return &call->message;
}

static void free_call(void *item)
{
    struct kvb_grpc_call *call = item;

    kvb_buf_done(&call->message);
    free(call);
}

void kvb_grpc_call_finish(struct kvb_grpc_call *call, enum kvb_grpc_status status)
{
    call->status = status;
    /* The ring has a place for each call that may be under way. */
    if (kvb_ring_put(call->server->finished, call) != KVB_OK) {
        free_call(call);
    }
}

static void unlink_call(struct grpc_connection *connection, const struct kvb_grpc_call *call)
{
    struct kvb_grpc_call **at = &connection->calls;

    while (*at != call) {
        at = &(*at)->next;
    }
    *at = call->next;
}

static enum kvb_grpc_status take_grpc_request(
    void *context, void *from, int32_t stream, size_t method, kvb_span message,
    uint64_t deadline_ns)
{
    struct kvb_grpc *grpc = context;
    struct grpc_connection *connection = from;
    struct kvb_grpc_call *call = calloc(1, sizeof *call);

    if (!call) {
        return KVB_GRPC_RESOURCE_EXHAUSTED;
    }
    call->server = grpc;
    call->connection = connection;
    call->stream = stream;
    call->deadline_ns = deadline_ns;
    kvb_buf_init(&call->message, kvb_max_answer_bytes);
    /* Linked before the handler runs, which may finish the call on another thread. */
    call->next = connection->calls;
    connection->calls = call;
    const enum kvb_grpc_status status =
        grpc->options.handler(grpc->options.context, call, method, message);
    /* It is answered already: the session has the status, and no call remains. */
    if (status != KVB_GRPC_LATER) {
        unlink_call(connection, call);
        free_call(call);
    }
    return status;
}

static void note_gone_request(void *context, void *from, int32_t stream)
{
    struct grpc_connection *connection = from;

    (void)context;
    for (struct kvb_grpc_call *call = connection->calls; call; call = call->next) {
        if (call->stream == stream) {
            unlink_call(connection, call);
            call->connection = NULL;
            atomic_store_explicit(&call->is_gone, true, memory_order_relaxed);
            return;
        }
    }
}

static void answer_finished_call(struct kvb_grpc *grpc, struct kvb_grpc_call *call)
{
    struct grpc_connection *connection = call->connection;

    grpc->gate.under_way--;
    /* The client may have gone while the call was worked on. */
    if (connection) {
        unlink_call(connection, call);
        kvb_grpc_session_answer(
            connection->session, call->stream, call->status, kvb_buf_span(&call->message),
            grpc->now_ns);
        connection->is_dirty = true;
    }
    free_call(call);
}

static void answer_finished_calls(struct kvb_grpc *grpc)
{
    void *item = NULL;

    while (kvb_ring_take(grpc->finished, &item) == KVB_OK) { /* ends: calls are limited */
        answer_finished_call(grpc, item);
    }
}

/* ---- Connections: ending ---- */

static void close_connection(struct grpc_connection *connection)
{
    struct kvb_grpc *grpc = connection->server;

    kvb_grpc_session_free(connection->session); /* its calls are gone */
    kvb_grpc_tls_free(connection->tls);
    kvb_buf_done(&connection->out);
    (void)close(connection->fd); /* leaves epoll, too */
    *connection = (struct grpc_connection){ .fd = -1 };
    grpc->connection_count--;
}

static void count_grpc_end(struct kvb_grpc *grpc, enum grpc_end end)
{
    if (end != END_SILENT) {
        count_grpc(grpc, row_grpc_closed_late + (size_t)end);
    }
}

/* Sends what is left first. */
static void end_connection(struct grpc_connection *connection, enum grpc_end end)
{
    if (connection->phase == CONNECTION_OPEN) {
        connection->phase = CONNECTION_ENDING;
        connection->ending_ns = connection->server->now_ns;
        connection->is_dirty = true;
        count_grpc_end(connection->server, end);
    }
}

static void drop_connection(struct grpc_connection *connection, enum grpc_end end)
{
    if (connection->phase <= CONNECTION_OPEN) {
        count_grpc_end(connection->server, end);
    }
    close_connection(connection);
}

/* ---- Connections: bytes ---- */

static void watch_connection(struct grpc_connection *connection, uint32_t events)
{
    struct epoll_event event = { .events = events, .data.ptr = connection };

    if (connection->events != events) {
        connection->events = events;
        (void)epoll_ctl(
            connection->server->epoll_fd, EPOLL_CTL_MOD, connection->fd, &event); /* it is there */
    }
}

static kvb_status status_of_socket(int error)
{
    return error == EAGAIN || error == EWOULDBLOCK || error == EINTR ? KVB_AGAIN : KVB_IO;
}

/* As kvb_grpc_tls_write(), which the next does not know. */
static kvb_status
send_bytes(const struct grpc_connection *connection, kvb_span bytes, size_t *out_sent)
{
    if (connection->tls) {
        return kvb_grpc_tls_write(connection->tls, bytes, out_sent);
    }
    const ssize_t sent = send(connection->fd, bytes.data, bytes.len, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0) {
        return status_of_socket(errno);
    }
    *out_sent = (size_t)sent;
    return KVB_OK;
}

/* As kvb_grpc_tls_read().  While a connection lingers, what arrives is not even decrypted. */
static kvb_status receive_bytes(
    const struct grpc_connection *connection, uint8_t *bytes, size_t size, size_t *out_len)
{
    if (connection->tls && connection->phase == CONNECTION_OPEN) {
        return kvb_grpc_tls_read(connection->tls, bytes, size, out_len);
    }
    const ssize_t len = recv(connection->fd, bytes, size, MSG_DONTWAIT);
    if (len <= 0) {
        return len == 0 ? KVB_CLOSED : status_of_socket(errno);
    }
    *out_len = (size_t)len;
    return KVB_OK;
}

/* KVB_AGAIN: the client must read first.  KVB_IO: it is gone. */
static kvb_status send_out(struct grpc_connection *connection)
{
    struct kvb_buf *out = &connection->out;
    size_t sent = 0;

    while (connection->sent < out->len) {
        const kvb_span rest = { out->data + connection->sent, out->len - connection->sent };
        KVB_TRY(send_bytes(connection, rest, &sent));
        connection->sent += sent;
        connection->moved_ns = connection->server->now_ns;
    }
    kvb_buf_reset(out);
    connection->sent = 0;
    return KVB_OK;
}

/* Sends what there is.  KVB_AGAIN, KVB_IO: as above.  Other: the session cannot go on. */
static kvb_status send_session(struct grpc_connection *connection)
{
    /* What the socket did not take last time precedes what the session says now. */
    KVB_TRY(send_out(connection));
    do {
        KVB_TRY(kvb_grpc_session_write(
            connection->session, &connection->out, write_bytes, connection->server->now_ns));
        if (connection->out.len == 0) {
            return KVB_OK;
        }
        KVB_TRY(send_out(connection));
    } while (true); /* ends: the windows of HTTP/2 and the socket's buffer fill up */
}

static void linger(struct grpc_connection *connection)
{
    if (connection->tls) {
        kvb_grpc_tls_close(connection->tls);
    }
    (void)shutdown(connection->fd, SHUT_WR); /* the client sees what was sent, and the end */
    connection->phase = CONNECTION_LINGERING;
    watch_connection(connection, EPOLLIN);
}

/* While a client does not read, nothing more is read from it. */
static void flush_connection(struct grpc_connection *connection)
{
    connection->is_dirty = false;
    if (connection->phase == CONNECTION_LINGERING) {
        return;
    }
    const kvb_status status = send_session(connection);
    if (status == KVB_AGAIN) {
        /* EPOLLOUT without EPOLLIN: not to read is what slows the client down. */
        watch_connection(connection, EPOLLOUT);
        return;
    }
    if (status == KVB_IO) {
        drop_connection(connection, END_SILENT);
    } else if (status != KVB_OK) {
        drop_connection(connection, status == KVB_NO_MEMORY ? END_MEMORY : END_MISBEHAVED);
    } else if (connection->phase == CONNECTION_ENDING) {
        linger(connection);
    } else if (kvb_grpc_session_is_finished(connection->session)) {
        const bool has_failed = kvb_grpc_session_has_failed(connection->session);
        end_connection(connection, has_failed ? END_MISBEHAVED : END_SILENT);
        linger(connection);
    } else {
        watch_connection(connection, EPOLLIN);
    }
}

static void take_received(struct grpc_connection *connection, kvb_span bytes)
{
    const kvb_status status =
        kvb_grpc_session_receive(connection->session, bytes, connection->server->now_ns);

    connection->is_dirty = true;
    connection->moved_ns = connection->server->now_ns;
    /* When the session has finished, for example by a GOAWAY of the client, flush_connection() ends
     * the connection. */
    if (status != KVB_OK && !kvb_grpc_session_is_finished(connection->session)) {
        end_connection(connection, status == KVB_NO_MEMORY ? END_MEMORY : END_MISBEHAVED);
    }
}

static void read_connection(struct grpc_connection *connection)
{
    uint8_t bytes[read_bytes];
    size_t len = 0;

    do {
        const kvb_status status = receive_bytes(connection, bytes, sizeof bytes, &len);
        if (status != KVB_OK) {
            if (status != KVB_AGAIN) {
                drop_connection(connection, END_SILENT);
            }
            return;
        }
        if (connection->phase == CONNECTION_OPEN) {
            take_received(connection, (kvb_span){ bytes, len });
        }
    } while (connection->tls && connection->phase == CONNECTION_OPEN &&
             kvb_grpc_tls_has_pending(connection->tls)); /* ends: within one record */
}

static void serve_connection(struct grpc_connection *connection, uint32_t events)
{
    if (!connection->server || connection->phase == CONNECTION_HANDSHAKE) {
        return; /* closed, and perhaps another one, since epoll returned */
    }
    if (events & EPOLLOUT) {
        connection->is_dirty = true;
    } else {
        read_connection(connection);
    }
}

static void flush_dirty(struct kvb_grpc *grpc)
{
    for (size_t i = 0; i < grpc->slot_count; i++) {
        struct grpc_connection *connection = &grpc->connections[i];
        if (connection->server &&
            (connection->is_dirty ||
             (connection->session && kvb_grpc_session_has_news(connection->session)))) {
            flush_connection(connection);
        }
    }
}

/* ---- Connections: handshakes ---- */

static kvb_status begin_session(struct grpc_connection *connection)
{
    struct kvb_grpc *grpc = connection->server;

    KVB_TRY(kvb_grpc_session_new(&grpc->gate, connection, grpc->now_ns, &connection->session));
    connection->phase = CONNECTION_OPEN;
    connection->is_dirty = true; /* our settings */
    return KVB_OK;
}

static void count_handshake(struct kvb_grpc *grpc, const struct kvb_grpc_tls *tls)
{
    static const size_t rows[] = {
        [KVB_GRPC_HANDSHAKE_OK] = row_grpc_handshakes_ok,
        [KVB_GRPC_HANDSHAKE_ALPN] = row_grpc_handshakes_alpn,
        [KVB_GRPC_HANDSHAKE_OTHER] = row_grpc_handshakes_other,
    };

    count_grpc(grpc, rows[kvb_grpc_tls_handshake(tls)]);
}

/* The client gets the time to read the alert. */
static void refuse_handshake(struct grpc_connection *connection)
{
    struct kvb_grpc *grpc = connection->server;
    uint64_t count = 0;

    count_handshake(grpc, connection->tls);
    if (kvb_log_limit_due(&grpc->refusals, grpc->now_ns, &count)) {
        kvb_log_write(
            grpc->options.log, KVB_LOG_WARNING, name_of(&grpc->options), "TLS handshakes refused",
            "count", KVB_LOG_U64(count), "why", kvb_grpc_tls_reason(connection->tls), NULL);
    }
    connection->ending_ns = grpc->now_ns;
    (void)shutdown(connection->fd, SHUT_WR);
    connection->phase = CONNECTION_LINGERING;
    watch_connection(connection, EPOLLIN);
}

static void shake_hands(struct grpc_connection *connection)
{
    const kvb_status status = kvb_grpc_tls_shake(connection->tls);

    if (status == KVB_AGAIN) {
        watch_connection(
            connection, kvb_grpc_tls_wants_write(connection->tls) ? EPOLLOUT : EPOLLIN);
    } else if (status == KVB_BAD_INPUT) {
        refuse_handshake(connection);
    } else if (status != KVB_OK) {
        drop_connection(connection, END_SILENT);
    } else if (begin_session(connection) != KVB_OK) {
        drop_connection(connection, END_MEMORY);
    } else {
        count_handshake(connection->server, connection->tls);
        watch_connection(connection, EPOLLIN);
    }
}

/* ---- Connections: beginning ---- */

/* Those with a lower standing make room first. */
enum connection_standing { STANDING_HANDSHAKE, STANDING_SILENT, STANDING_REQUESTED };

static enum connection_standing standing_of(const struct grpc_connection *connection)
{
    if (!connection->session) {
        return STANDING_HANDSHAKE;
    }
    return kvb_grpc_session_requested_ns(connection->session) > 0 ? STANDING_REQUESTED
                                                                  : STANDING_SILENT;
}

/* True when `one` should make room before `other`, which may be NULL. */
static bool goes_first(const struct grpc_connection *one, const struct grpc_connection *other)
{
    if (!other) {
        return true;
    }
    const enum connection_standing standing = standing_of(one);
    if (standing != standing_of(other)) {
        return standing < standing_of(other);
    }
    /* Of routers the one that was silent longest; of others the one that came first. */
    return standing == STANDING_REQUESTED ? one->moved_ns < other->moved_ns
                                          : one->opened_ns < other->opened_ns;
}

static bool may_be_closed(const struct grpc_connection *connection)
{
    return standing_of(connection) != STANDING_REQUESTED ||
           kvb_grpc_session_streams(connection->session) == 0;
}

/* As far as it goes at once. */
static void say_end(struct grpc_connection *connection)
{
    if (connection->session) {
        kvb_grpc_session_end(connection->session);
        (void)send_session(connection); /* the socket's end follows */
    }
}

/* As long as some connection has never completed a request, such a one makes room, and not that of
 * an idle router. */
static void make_room_for_connection(struct kvb_grpc *grpc)
{
    struct grpc_connection *victim = NULL;

    for (size_t i = 0; i < grpc->connection_limit; i++) {
        struct grpc_connection *connection = &grpc->connections[i];
        if (may_be_closed(connection) && goes_first(connection, victim)) {
            victim = connection;
        }
    }
    /* A young one may just be about to ask: the new one is refused instead. */
    if (victim && grpc->now_ns - victim->opened_ns >= young_ms * KVB_NS_PER_MS) {
        say_end(victim);
        drop_connection(victim, END_CROWDED);
    }
}

/* Among those from first on, up to end. */
static struct grpc_connection *find_free_slot(const struct kvb_grpc *grpc, size_t first, size_t end)
{
    for (size_t i = first; i < end; i++) {
        if (!grpc->connections[i].server) {
            return &grpc->connections[i];
        }
    }
    return NULL;
}

static struct grpc_connection *find_free_connection(struct kvb_grpc *grpc)
{
    struct grpc_connection *free_slot = find_free_slot(grpc, 0, grpc->connection_limit);

    if (!free_slot) {
        make_room_for_connection(grpc);
        free_slot = find_free_slot(grpc, 0, grpc->connection_limit);
    }
    return free_slot;
}

/* An answer is many small frames; a peer that vanished is found in a minute. */
static void set_socket_options(int fd)
{
    const int on = 1;
    const int idle_s = 30;
    const int interval_s = 10;
    const int probes = 3;

    /* the server also works without these options */
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    (void)setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
    (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, sizeof idle_s);
    (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval_s, sizeof interval_s);
    (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof probes);
}

/* The layer that speaks first. */
static kvb_status begin_connection(struct grpc_connection *connection)
{
    struct kvb_grpc *grpc = connection->server;

    return grpc->tls ? kvb_grpc_tls_new(grpc->tls, connection->fd, &connection->tls)
                     : begin_session(connection);
}

/* Takes fd.  KVB_NO_MEMORY: it is closed, and counted. */
static kvb_status open_connection(struct kvb_grpc *grpc, struct grpc_connection *connection, int fd)
{
    struct epoll_event event = { .events = EPOLLIN, .data.ptr = connection };

    *connection = (struct grpc_connection){ .server = grpc,
                                            .fd = fd,
                                            .events = EPOLLIN,
                                            .opened_ns = grpc->now_ns,
                                            .moved_ns = grpc->now_ns };
    kvb_buf_init(&connection->out, write_bytes + frame_bytes);
    /* Counted before the steps that can fail, because drop_connection() counts down. */
    grpc->connection_count++;
    if (begin_connection(connection) != KVB_OK ||
        epoll_ctl(grpc->epoll_fd, EPOLL_CTL_ADD, fd, &event) != 0) {
        drop_connection(connection, END_MEMORY);
        return KVB_NO_MEMORY;
    }
    set_socket_options(fd);
    return KVB_OK;
}

/* There is no place for it.  A connection that ended without a word is INTERNAL or UNKNOWN in
 * sgl-router, which fails its user's request for these; so it gets SETTINGS and a GOAWAY, which is
 * UNAVAILABLE.  With TLS there is nothing that could be said before the handshake, and a handshake
 * that fails is UNAVAILABLE, too. */
static void refuse_connection(struct kvb_grpc *grpc, int fd)
{
    struct grpc_connection *connection =
        grpc->tls ? NULL : find_free_slot(grpc, grpc->connection_limit, grpc->slot_count);

    if (!connection) {
        count_grpc_end(grpc, END_CROWDED);
        (void)close(fd);
    } else if (open_connection(grpc, connection, fd) == KVB_OK) {
        kvb_grpc_session_end(connection->session);
        end_connection(connection, END_CROWDED);
    }
}

static void watch_listener(struct kvb_grpc *grpc)
{
    struct epoll_event event = { .events = EPOLLIN, .data.ptr = &grpc->listen_fd };

    if (!grpc->is_listening && !grpc->is_stopping &&
        epoll_ctl(grpc->epoll_fd, EPOLL_CTL_ADD, grpc->listen_fd, &event) == 0) {
        grpc->is_listening = true;
    }
}

/* Ignores the listener until the next sweep: without free descriptors it would stay readable. */
static void ignore_listener(struct kvb_grpc *grpc)
{
    if (grpc->is_listening) {
        (void)epoll_ctl(grpc->epoll_fd, EPOLL_CTL_DEL, grpc->listen_fd, NULL); /* it is there */
        grpc->is_listening = false;
    }
}

static void accept_connection(struct kvb_grpc *grpc)
{
    const int fd = accept4(grpc->listen_fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);

    if (fd < 0) {
        if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
            ignore_listener(grpc);
        }
        return;
    }
    struct grpc_connection *connection = find_free_connection(grpc);
    if (connection) {
        (void)open_connection(grpc, connection, fd); /* counted */
    } else {
        refuse_connection(grpc, fd);
    }
}

/* ---- Time ---- */

static bool has_passed(const struct kvb_grpc *grpc, uint64_t since_ns, uint64_t time_ns)
{
    return grpc->now_ns - since_ns >= time_ns;
}

static bool is_blocked(const struct grpc_connection *connection)
{
    return connection->sent < connection->out.len;
}

static void expire_open(struct grpc_connection *connection)
{
    const struct kvb_grpc *grpc = connection->server;

    if (kvb_grpc_session_expire(connection->session, grpc->now_ns) != KVB_OK ||
        (is_blocked(connection) && has_passed(grpc, connection->moved_ns, grpc->grace_ns))) {
        drop_connection(connection, END_LATE);
        return;
    }
    connection->is_dirty = true; /* resets */
    if (kvb_grpc_session_streams(connection->session) > 0) {
        return;
    }
    /* No stream is open: who never asked has the grace, who asked once the longer time for idle
     * routers. */
    if (standing_of(connection) != STANDING_REQUESTED) {
        if (has_passed(grpc, connection->opened_ns, grpc->grace_ns)) {
            kvb_grpc_session_end(connection->session);
            end_connection(connection, END_LATE);
        }
    } else if (has_passed(grpc, connection->moved_ns, grpc->idle_ns)) {
        kvb_grpc_session_end(connection->session);
        end_connection(connection, END_IDLE);
    }
}

static void expire_connection(struct grpc_connection *connection)
{
    const struct kvb_grpc *grpc = connection->server;

    if (connection->phase == CONNECTION_OPEN) {
        expire_open(connection);
    } else if (connection->phase == CONNECTION_HANDSHAKE) {
        /* Half of the time is left for the first request. */
        if (has_passed(grpc, connection->opened_ns, grpc->grace_ns / 2)) {
            drop_connection(connection, END_LATE);
        }
    } else if (has_passed(grpc, connection->ending_ns, linger_ms * KVB_NS_PER_MS)) {
        close_connection(connection);
    }
}

static void sweep_connections(struct kvb_grpc *grpc)
{
    for (size_t i = 0; i < grpc->slot_count; i++) {
        if (grpc->connections[i].server) {
            expire_connection(&grpc->connections[i]);
        }
    }
    watch_listener(grpc);
    note_grpc_gauges(grpc);
    grpc->next_sweep_ns = grpc->now_ns + sweep_ms * KVB_NS_PER_MS;
}

/* ---- The thread ---- */

/* Closed first, so that no client connects that would not be answered. */
static void close_listener(struct kvb_grpc *grpc)
{
    (void)close(grpc->listen_fd); /* leaves epoll, too */
    grpc->listen_fd = -1;
    grpc->is_listening = false;
}

static uint64_t drain_ms_of(const struct kvb_grpc *grpc)
{
    return grpc->options.drain_ms ? grpc->options.drain_ms : kvb_grpc_stop_ms;
}

static void begin_to_stop(struct kvb_grpc *grpc)
{
    if (grpc->is_stopping) {
        return;
    }
    grpc->is_stopping = true;
    grpc->stop_ns = grpc->now_ns + drain_ms_of(grpc) * KVB_NS_PER_MS;
    close_listener(grpc);
    if (!grpc->options.talk) {
        return;
    }
    /* No client may lose what it has begun: its streams go on to their end. */
    for (size_t i = 0; i < grpc->slot_count; i++) {
        if (grpc->connections[i].server && grpc->connections[i].phase == CONNECTION_OPEN) {
            kvb_grpc_session_drain(grpc->connections[i].session);
        }
    }
    grpc->options.talk->on_drain(grpc->options.context);
}

/* When what was under way is answered, and that was sent. */
static void end_answered_connections(struct kvb_grpc *grpc)
{
    for (size_t i = 0; i < grpc->slot_count; i++) {
        struct grpc_connection *connection = &grpc->connections[i];
        if (connection->server && connection->phase == CONNECTION_HANDSHAKE) {
            drop_connection(connection, END_SILENT);
        } else if (
            connection->server && connection->phase == CONNECTION_OPEN && !connection->calls &&
            !is_blocked(connection) &&
            !(grpc->options.talk && kvb_grpc_session_streams(connection->session) > 0)) {
            kvb_grpc_session_end(connection->session);
            end_connection(connection, END_SILENT);
        }
    }
}

/* NULL: it is of something else. */
static struct grpc_connection *
connection_of(const struct kvb_grpc *grpc, const struct epoll_event *event)
{
    const void *what = event->data.ptr;

    /* the ring, too, is looked at anyway */
    return what == &grpc->listen_fd || what == grpc ? NULL : event->data.ptr;
}

static void take_epoll_event(struct kvb_grpc *grpc, const struct epoll_event *event)
{
    if (event->data.ptr == &grpc->listen_fd) {
        accept_connection(grpc);
    } else if (connection_of(grpc, event)) {
        serve_connection(connection_of(grpc, event), event->events);
    }
}

/* Those that are not reached have their turn next time: epoll reports them again, behind others. */
static void take_handshakes(struct kvb_grpc *grpc, const struct epoll_event *events, int count)
{
    const uint64_t end_ns = kvb_clock_monotonic_ns() + kvb_grpc_handshakes_us * UINT64_C(1000);

    for (int i = 0; i < count; i++) {
        struct grpc_connection *connection = connection_of(grpc, &events[i]);
        if (connection && connection->server && connection->phase == CONNECTION_HANDSHAKE) {
            shake_hands(connection);
            if (kvb_clock_monotonic_ns() >= end_ns) {
                return;
            }
        }
    }
}

static bool is_grpc_over(const struct kvb_grpc *grpc)
{
    return grpc->is_stopping && (grpc->connection_count == 0 || grpc->now_ns >= grpc->stop_ns);
}

static bool has_deadlines(const struct kvb_grpc *grpc)
{
    return grpc->connection_count > 0 || !grpc->is_listening;
}

static void close_connections(struct kvb_grpc *grpc)
{
    for (size_t i = 0; i < grpc->slot_count; i++) {
        if (grpc->connections[i].server) {
            say_end(&grpc->connections[i]);
            close_connection(&grpc->connections[i]);
        }
    }
    note_grpc_gauges(grpc);
}

/* Its turn follows, and looks at all that is ready. */
static void note_ready(void *context, int fd, bool is_readable, bool is_writable)
{
    (void)context;
    (void)fd;
    (void)is_readable;
    (void)is_writable;
}

/* False: there is no memory for it yet, so the sockets are looked at from time to time. */
static bool watch_sockets(struct kvb_grpc *grpc)
{
    const struct kvb_fd_watch_options options = {
        .fd = grpc->epoll_fd,
        .on_ready = note_ready,
        .context = grpc,
    };

    if (!grpc->watch && kvb_fd_watch_new(grpc->job, &options, &grpc->watch) == KVB_OK) {
        kvb_fd_watch_set(grpc->watch, true, false);
    }
    return grpc->watch != NULL;
}

/* On the control thread; it serves a limited number of connections, so that other jobs have their
 * turns.  Those that are left keep epoll_fd readable. */
static uint64_t take_turn(void *context, uint64_t now_ns)
{
    struct kvb_grpc *grpc = context;
    struct epoll_event events[events_a_turn];

    if (grpc->is_over) {
        return UINT64_MAX;
    }
    const int count = epoll_wait(grpc->epoll_fd, events, events_a_turn, 0);
    grpc->now_ns = now_ns;
    if (atomic_load(&grpc->is_stop_wanted)) {
        begin_to_stop(grpc);
    }
    for (int i = 0; i < count; i++) {
        take_epoll_event(grpc, &events[i]);
    }
    /* After the requests: one that was answered where it was received goes out in this turn. */
    answer_finished_calls(grpc);
    if (grpc->tls) {
        flush_dirty(grpc); /* answers do not wait for handshakes */
        take_handshakes(grpc, events, count);
    }
    if (grpc->now_ns >= grpc->next_sweep_ns) {
        sweep_connections(grpc);
    }
    const uint64_t due_ns = grpc->options.talk
                                ? grpc->options.talk->on_turn(grpc->options.context, now_ns)
                                : UINT64_MAX;
    flush_dirty(grpc);
    if (grpc->is_stopping) {
        end_answered_connections(grpc);
        flush_dirty(grpc);
    }
    note_grpc_gauges(grpc);
    if (grpc->options.talk) {
        const struct kvb_grpc_counts counts = { .connections = grpc->connection_count,
                                                .held_bytes = grpc->gate.held_bytes };
        grpc->options.talk->on_sent(grpc->options.context, &counts);
    }
    if (is_grpc_over(grpc)) {
        close_connections(grpc);
        (void)pthread_mutex_lock(&grpc->lock);
        grpc->is_over = true;
        (void)pthread_cond_signal(&grpc->ended);
        (void)pthread_mutex_unlock(&grpc->lock);
        return UINT64_MAX;
    }
    /* Without the watch nobody would wake this job, so it wakes itself for each sweep. */
    const bool is_watching = watch_sockets(grpc);
    const uint64_t sweep_ns = now_ns + sweep_ms * KVB_NS_PER_MS;
    return (has_deadlines(grpc) || !is_watching) && sweep_ns < due_ns ? sweep_ns : due_ns;
}

static void end_turns(void *context)
{
    struct kvb_grpc *grpc = context;

    kvb_fd_watch_free(grpc->watch);
    grpc->watch = NULL;
}

/* ---- Starting and stopping ---- */

/* Like the HTTP server: both errors may go away, because a port may become free and an address may
 * appear. */
static kvb_status
grpc_listen_failed(const struct kvb_grpc_options *options, int error, struct kvb_detail *detail)
{
    kvb_detail_set(
        detail, "%s: cannot listen on \"%s\": %s", name_of(options), options->listen,
        strerrordesc_np(error));
    return error == EADDRINUSE || error == EADDRNOTAVAIL ? KVB_IO : KVB_BAD_CONFIG;
}

static int bind_grpc(int fd, const struct sockaddr_storage *address)
{
    const bool is_six = address->ss_family == AF_INET6;
    const int on = 1;

    if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) != 0 ||
        (is_six && setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &on, sizeof on) != 0)) {
        return -1;
    }
    const socklen_t len = is_six ? sizeof(struct sockaddr_in6) : sizeof(struct sockaddr_in);
    return bind(fd, (const struct sockaddr *)address, len) == 0 ? listen(fd, backlog) : -1;
}

static uint16_t read_port(int fd)
{
    struct sockaddr_storage address = { 0 };
    socklen_t len = sizeof address;
    struct sockaddr_in6 six;
    struct sockaddr_in four;

    (void)getsockname(fd, (struct sockaddr *)&address, &len); /* it is bound */
    memcpy(&six, &address, sizeof six);
    memcpy(&four, &address, sizeof four);
    return ntohs(address.ss_family == AF_INET6 ? six.sin6_port : four.sin_port);
}

static kvb_status open_grpc_listener(struct kvb_grpc *grpc, struct kvb_detail *detail)
{
    const struct kvb_grpc_options *options = &grpc->options;

    grpc->listen_fd =
        socket(options->address->ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (bind_grpc(grpc->listen_fd, options->address) != 0) {
        return grpc_listen_failed(options, errno, detail);
    }
    grpc->port = read_port(grpc->listen_fd);
    return KVB_OK;
}

static bool watch_fd(const struct kvb_grpc *grpc, int fd, void *what)
{
    struct epoll_event event = { .events = EPOLLIN, .data.ptr = what };

    return epoll_ctl(grpc->epoll_fd, EPOLL_CTL_ADD, fd, &event) == 0;
}

static kvb_status make_grpc(struct kvb_grpc *grpc)
{
    grpc->connections = calloc(grpc->slot_count, sizeof *grpc->connections);
    if (!grpc->connections) {
        return KVB_NO_MEMORY;
    }
    KVB_TRY(kvb_ring_new(grpc->options.max_under_way, free_call, &grpc->finished));
    grpc->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    if (grpc->epoll_fd < 0 || !watch_fd(grpc, kvb_ring_fd(grpc->finished), grpc) ||
        (grpc->options.work_fd > 0 && !watch_fd(grpc, grpc->options.work_fd, grpc))) {
        return KVB_IO;
    }
    return KVB_OK;
}

static kvb_status open_grpc_tls(struct kvb_grpc *grpc, struct kvb_detail *detail)
{
    const struct kvb_http_access_options options = { .listener = grpc->options.listener,
                                                     .security = grpc->options.security,
                                                     .log = grpc->options.log };
    struct kvb_detail why = { .text = "" };
    const char *key = "";

    if (!options.security || !kvb_http_security_is_tls(options.security)) {
        return KVB_OK;
    }
    const kvb_status status = kvb_http_access_new(&options, &grpc->access, &key, &why);
    if (status != KVB_OK) {
        kvb_detail_set(detail, "%s: %s", key, why.text);
        return status;
    }
    return kvb_grpc_tls_server_new(grpc->access, &grpc->tls);
}

static kvb_status join_control(struct kvb_grpc *grpc)
{
    const struct kvb_job_options job = {
        .turn = take_turn,
        .end = end_turns,
        .context = grpc,
    };

    KVB_TRY(kvb_job_add(grpc->options.control, &job, &grpc->job));
    kvb_job_wake(grpc->job); /* the first turn watches the sockets */
    return KVB_OK;
}

static kvb_status start_grpc(struct kvb_grpc *grpc, struct kvb_detail *detail)
{
    KVB_TRY(make_grpc(grpc));
    KVB_TRY(open_grpc_tls(grpc, detail));
    KVB_TRY(open_grpc_listener(grpc, detail));
    watch_listener(grpc);
    return grpc->is_listening ? join_control(grpc) : KVB_IO;
}

static struct kvb_grpc_gate make_gate(struct kvb_grpc *grpc)
{
    const struct kvb_grpc_talk *talk = grpc->options.talk;
    struct kvb_grpc_gate gate = {
        .methods = grpc->options.methods,
        .method_count = grpc->options.method_count,
        .max_under_way = grpc->options.max_under_way,
        .max_streams = kvb_grpc_max_streams,
        .max_all_streams = SIZE_MAX,
        .max_held_bytes = kvb_max_grpc_held_bytes,
        .on_request = take_grpc_request,
        .on_gone = note_gone_request,
        .on_status = note_grpc_status,
        .context = grpc,
    };

    if (talk) {
        gate.max_streams = talk->max_streams;
        gate.max_all_streams = talk->max_all_streams;
        gate.max_held_bytes = talk->max_held_bytes;
        gate.expects_resets = true;
        gate.on_open = talk->on_open;
        gate.on_message = talk->on_message;
        gate.on_end = talk->on_end;
        gate.on_close = talk->on_close;
        gate.stream_context = grpc->options.context;
    }
    return gate;
}

kvb_status kvb_grpc_start(
    const struct kvb_grpc_options *options, struct kvb_grpc **out_grpc, struct kvb_detail *detail)
{
    struct kvb_grpc *grpc = calloc(1, sizeof *grpc);
    char port[24];

    if (!grpc) {
        return KVB_NO_MEMORY;
    }
    grpc->options = *options;
    /* kvb_grpc_free() takes it in any state from here on. */
    grpc->listen_fd = grpc->epoll_fd = -1;
    (void)pthread_mutex_init(&grpc->lock, NULL); /* cannot fail without attributes */
    kvb_cond_init_monotonic(&grpc->ended);
    grpc->connection_limit =
        options->max_connections ? options->max_connections : kvb_max_grpc_connections;
    grpc->slot_count = grpc->connection_limit + kvb_max_grpc_extra;
    grpc->grace_ns =
        options->grace_ms ? options->grace_ms * KVB_NS_PER_MS : kvb_grpc_grace_s * KVB_NS_PER_S;
    grpc->idle_ns =
        options->idle_ms ? options->idle_ms * KVB_NS_PER_MS : kvb_grpc_idle_s * KVB_NS_PER_S;
    grpc->gate = make_gate(grpc);
    const kvb_status status = start_grpc(grpc, detail);
    grpc->options.address = NULL; /* the caller's */
    if (status != KVB_OK) {
        kvb_grpc_free(grpc);
        return status;
    }
    kvb_log_write(
        options->log, KVB_LOG_INFO, name_of(options), "listening", "address", options->listen,
        "port", kvb_log_number(port, grpc->port), "tls", grpc->tls ? "yes" : "no", NULL);
    *out_grpc = grpc;
    return KVB_OK;
}

uint16_t kvb_grpc_port(const struct kvb_grpc *grpc)
{
    return grpc->port;
}

size_t kvb_grpc_files(void)
{
    return kvb_max_grpc_connections + kvb_max_grpc_extra + other_files;
}

void kvb_grpc_reload(struct kvb_grpc *grpc)
{
    if (grpc->access) {
        kvb_http_access_reload(grpc->access);
    }
}

void kvb_grpc_begin_stop(struct kvb_grpc *grpc)
{
    if (grpc && grpc->job) {
        atomic_store(&grpc->is_stop_wanted, true);
        kvb_job_wake(grpc->job);
    }
}

void kvb_grpc_stop(struct kvb_grpc *grpc)
{
    if (!grpc || !grpc->job) {
        return;
    }
    kvb_grpc_begin_stop(grpc);
    (void)pthread_mutex_lock(&grpc->lock);
    while (!grpc->is_over) { /* ends: after drain_ms at the latest */
        (void)pthread_cond_wait(&grpc->ended, &grpc->lock);
    }
    (void)pthread_mutex_unlock(&grpc->lock);
    kvb_job_remove(grpc->job);
    grpc->job = NULL;
}

static void close_fd(int fd)
{
    if (fd >= 0) {
        (void)close(fd); /* nothing to lose */
    }
}

void kvb_grpc_free(struct kvb_grpc *grpc)
{
    if (!grpc) {
        return;
    }
    kvb_job_remove(grpc->job); /* it was stopped before, or has had no turn */
    kvb_ring_free(grpc->finished);
    close_fd(grpc->listen_fd);
    close_fd(grpc->epoll_fd);
    kvb_grpc_tls_server_free(grpc->tls);
    kvb_http_access_free(grpc->access);
    (void)pthread_cond_destroy(&grpc->ended);
    (void)pthread_mutex_destroy(&grpc->lock);
    free(grpc->connections);
    free(grpc);
}
