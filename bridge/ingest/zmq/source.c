#include "ingest/zmq/source.h"

#include "core/backoff.h"
#include "core/clock.h"
#include "core/limits.h"
#include "ingest/dns/named_endpoint.h"
#include "ingest/zmq/connection.h"
#include "ingest/zmq/inside.h"
#include "ingest/zmq/monitor.h"
#include "ingest/zmq/peers.h"
#include "ingest/zmq/poller.h"
#include "ingest/zmq/reply_queue.h"
#include "ingest/zmq/socket.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { topic_bytes = 256 };

/* max_backlogs: connections of a bound SUB whose backlog is known; one is an engine's, and further
 * ones are strangers.  drops_a_turn: messages of a lost connection that one receive drops. */
enum { max_backlogs = 8, drops_a_turn = 4096 };

static const struct kvb_backoff_range between_renewals = { .first_ns =
                                                               kvb_retry_report_ms * KVB_NS_PER_MS,
                                                           .longest_ns = 30 * KVB_NS_PER_S };

/* While libzmq tries to connect, it reports an event at least every 5 s. */
static const uint64_t max_silence_ns = 30 * KVB_NS_PER_S;

/* After a connection has lasted so long, the next renewal begins with the shortest pause. */
static const uint64_t steady_ns = 60 * KVB_NS_PER_S;

/* The connection of a SUB that connects.  A SUB serves one connection: what waits in it after a
 * loss may be another incarnation's than what comes next, and nothing tells the two apart.
 *
 *     CLOSED ---- the host has an address: a SUB is opened ----------> TRYING
 *     TRYING ---- handshake -----> UP ---- disconnected ---> LOST ---- libzmq tries again --> STALE
 *     TRYING ---- libzmq tries again ----> FAILED ---- the host is looked up ---> TRYING
 *     STALE, FAILED with another address, or given up by libzmq: a new SUB -----> TRYING
 *     no address, or the SUB cannot be opened ----------------------------------> CLOSED
 *
 * A bound SUB is TRYING from when it listens: struct kvb_peers has its connections. */
enum link {
    LINK_CLOSED, /* there is no SUB */
    LINK_TRYING,
    LINK_FAILED, /* the newest attempt: another address of the host may be better */
    LINK_UP,
    LINK_LOST, /* what it has brought and nobody has received is dropped; in STALE too */
    LINK_STALE /* libzmq connects the old SUB again, and a new one is to take its place */
};

/* Whether a report of libzmq that it connects again is still expected:
 *
 *     NOT_OWED -- the connection ends --> OWED -- a second without a report --> MISSED
 *        ^                                 |                                      |
 *        +---- libzmq reports a new attempt, or the SUB is opened again <---------+ */
enum retry {
    RETRY_NOT_OWED,
    RETRY_OWED,
    RETRY_MISSED, /* counted as a protocol error */
};

/* When to open a connecting SUB again.  Times are the now_ns of kvb_source_renew(). */
struct renewal {
    enum retry retry;
    bool is_received;          /* the monitor sent an event since the last check */
    uint64_t quiet_ns;         /* since when the monitor is silent; 0: not checked yet */
    uint64_t up_ns;            /* since when it is connected; 0: it is not */
    struct kvb_backoff pauses; /* counted from quiet_ns, not from the renewal before */
};

struct kvb_source {
    struct kvb_zmq *zmq;           /* borrowed */
    void *context;                 /* borrowed from zmq */
    struct kvb_poller *poller;     /* borrowed */
    struct kvb_resolver *resolver; /* borrowed; NULL: all hosts are numeric */
    size_t owner;
    void *sub;     /* owned; NULL: LINK_CLOSED */
    void *monitor; /* owned; of sub */
    void *dealer;  /* owned; NULL while no replay runs */
    bool is_bound;
    enum link link;
    struct kvb_detail open_why;                /* why it cannot listen; "": nothing is known */
    bool is_drained;                           /* a receive from the SUB has just found nothing */
    struct kvb_peers peers;                    /* of a bound SUB */
    struct renewal renewal;                    /* of a connecting SUB */
    struct kvb_backlog backlogs[max_backlogs]; /* a connecting SUB uses the first */
    size_t next_backlog;                       /* the place that the next connection takes */
    struct kvb_source_counters counters;
    struct kvb_named_endpoint events;
    struct kvb_named_endpoint replay;
    bool is_unanswered; /* the newest replay request has no reply yet */
    char topic[topic_bytes];
    bool listens_to_all; /* the SUB is also subscribed to "" */
    struct kvb_source_strays strays;
    enum kvb_replay_request replay_request;
    struct kvb_reply_queue replies;
    bool is_cut; /* the queue was full: the rest of the replay was dropped */
    struct kvb_reply reply;
};

/* ---- Opening, closing ---- */

enum {
    followed = ZMQ_EVENT_CONNECTED | ZMQ_EVENT_HANDSHAKE_SUCCEEDED | ZMQ_EVENT_DISCONNECTED |
               ZMQ_EVENT_CONNECT_RETRIED | kvb_failed_handshake_events,
    followed_when_bound = followed | ZMQ_EVENT_ACCEPTED,
};

/* The monitor reports completed handshakes, not TCP connections: a port that accepts connections
 * but completes no handshake is no engine. */
static kvb_status open_monitor(struct kvb_source *source)
{
    return kvb_zmq_monitor_open(
        source->context, source->sub, source->is_bound ? followed_when_bound : followed,
        &source->monitor);
}

static kvb_status open_event_sub(struct kvb_source *source)
{
    const struct kvb_zmq_socket_options as = { .type = ZMQ_SUB,
                                               .heartbeat_ms =
                                                   kvb_zmq_ping_ms(source->zmq->publishers),
                                               .max_bytes = kvb_max_payload_bytes,
                                               .is_ipv6 =
                                                   kvb_named_endpoint_is_ipv6(&source->events) };
    char address[kvb_zmq_address_bytes];

    source->link = LINK_TRYING;
    /* Those known so far were connections of the socket before. */
    for (size_t i = 0; i < max_backlogs; i++) {
        source->backlogs[i].connection = kvb_connection_none();
    }
    kvb_named_endpoint_write(&source->events, address);
    KVB_TRY(kvb_zmq_socket_open(source->context, &as, &source->sub));
    source->listens_to_all = false;
    if (zmq_setsockopt(source->sub, ZMQ_SUBSCRIBE, source->topic, strlen(source->topic)) != 0) {
        return KVB_IO;
    }
    /* Before the connection begins, so that none of its events is missed. */
    KVB_TRY(open_monitor(source));
    KVB_TRY(kvb_poller_add_socket(source->poller, source->owner, kvb_ready_live, source->sub));
    KVB_TRY(kvb_poller_add_socket(source->poller, source->owner, kvb_ready_live, source->monitor));
    source->open_why.text[0] = '\0';
    /* A name was resolved before: libzmq gets a number and never waits for a name server. */
    const int failed =
        source->is_bound ? zmq_bind(source->sub, address) : zmq_connect(source->sub, address);
    if (failed && source->is_bound) {
        kvb_detail_set(
            &source->open_why,
            "cannot listen at %.200s: %s; with bind = true, events has to be an address or a "
            "network interface of this host, or *",
            address, zmq_strerror(errno));
    }
    return failed ? KVB_BAD_CONFIG : KVB_OK;
}

static void close_watched(struct kvb_source *source, void **socket)
{
    if (*socket) {
        kvb_poller_drop_socket(source->poller, source->owner, *socket);
        kvb_zmq_socket_close(socket);
    }
}

static void close_event_sub(struct kvb_source *source)
{
    if (source->monitor) {
        /* Before it is closed: the poller takes its descriptor from epoll. */
        kvb_poller_drop_socket(source->poller, source->owner, source->monitor);
        kvb_zmq_monitor_close(source->sub, &source->monitor);
    }
    close_watched(source, &source->sub);
    source->link = LINK_CLOSED;
}

static bool copy_endpoint_text(char *out, size_t size, const char *text)
{
    const int len = snprintf(out, size, "%s", text);

    return len >= 0 && (size_t)len < size;
}

static kvb_status
set_source_addresses(struct kvb_source *source, const struct kvb_source_options *options)
{
    const bool fits =
        kvb_named_endpoint_set(&source->events, options->events, options->bind) == KVB_OK &&
        kvb_named_endpoint_set(&source->replay, options->replay, false) == KVB_OK &&
        copy_endpoint_text(source->topic, sizeof source->topic, options->topic);

    if (options->refuses_metadata) {
        /* A bound address is one of this host, and reaches nobody. */
        if (!options->bind) {
            kvb_named_endpoint_restrict(&source->events);
        }
        kvb_named_endpoint_restrict(&source->replay);
    }
    /* The caller's sentence ends with the text of errno. */
    errno = fits ? 0 : ENAMETOOLONG;
    return fits ? KVB_OK : KVB_BAD_CONFIG;
}

/* Starts both name look-ups at once.  A host that is not resolved yet is no error. */
static kvb_status connect_first(struct kvb_source *source)
{
    const uint64_t now_ns = kvb_clock_monotonic_ns();
    bool has_moved = false;

    if (source->replay.text[0] != '\0') {
        (void)kvb_named_endpoint_look(&source->replay, source->resolver, false, now_ns, &has_moved);
    }
    return kvb_named_endpoint_look(&source->events, source->resolver, false, now_ns, &has_moved) ==
                   KVB_OK
               ? open_event_sub(source)
               : KVB_OK;
}

kvb_status kvb_source_open(
    struct kvb_zmq *zmq, const struct kvb_source_options *options, struct kvb_source **out_source,
    struct kvb_detail *detail)
{
    struct kvb_source *source = calloc(1, sizeof *source);

    if (!source) {
        return KVB_NO_MEMORY;
    }
    source->zmq = zmq;
    source->context = kvb_zmq_context(zmq, options->owner);
    source->poller = options->poller;
    source->resolver = options->resolver;
    source->owner = options->owner;
    source->is_bound = options->bind;
    source->replay_request = options->replay_request;
    source->replies.max_bytes = options->max_replay_bytes;
    /* From here on kvb_source_close() may be called. */
    (void)zmq_msg_init(&source->reply.payload); /* cannot fail */
    kvb_peers_init(&source->peers);
    kvb_status status = set_source_addresses(source, options);
    if (status == KVB_OK) {
        status = connect_first(source);
    }
    if (status != KVB_OK) {
        kvb_detail_set(
            detail, "%s %s: %s", options->bind ? "bind" : "connect", options->events,
            zmq_strerror(errno));
        kvb_source_close(source);
        return status;
    }
    *out_source = source;
    return KVB_OK;
}

void kvb_source_close(struct kvb_source *source)
{
    if (!source) {
        return;
    }
    kvb_source_replay_stop(source);
    close_event_sub(source);
    kvb_peers_done(&source->peers);
    free(source);
}

/* ---- Live ---- */

/* The descriptor of the sender's connection.  Peers with ZMTP below 3 have none.  No engine is so
 * old, but the bytes of a port scanner may look like old ZMTP. */
static int sender_of(const struct kvb_source *source, struct kvb_zmq_message *message)
{
    if (!source->is_bound) {
        return kvb_any_peer;
    }
    const int fd = zmq_msg_get(&message->parts[0], ZMQ_SRCFD);
    return fd >= 0 ? fd : kvb_unknown_peer;
}

/* Prefetches the first bytes of a payload while the rest of the run is received.  libzmq's thread
 * wrote them on another core.  The hardware prefetcher loads the rest of longer payloads. */
static void fetch_ahead(kvb_span payload)
{
    enum { line_bytes = 64, max_bytes = 256 };
    const size_t len = payload.len < max_bytes ? payload.len : max_bytes;

    for (size_t at = 0; at < len; at += line_bytes) {
        __builtin_prefetch(payload.data + at);
    }
}

/* A message of another topic came because the SUB listens to all. */
static bool is_of_topic(const struct kvb_source *source, const struct kvb_frames *frames)
{
    const size_t len = strlen(source->topic);

    return frames->frame[0].len >= len && memcmp(frames->frame[0].data, source->topic, len) == 0;
}

static void note_other_topic(struct kvb_source_strays *strays, kvb_span topic)
{
    const size_t room = sizeof strays->topic - 1;
    const size_t len = topic.len < room ? topic.len : room;

    strays->other_topics++;
    for (size_t i = 0; i < len; i++) {
        char byte = (char)topic.data[i];
        if (byte < ' ' || byte > '~') {
            byte = '?';
        }
        strays->topic[i] = byte;
    }
    strays->topic[len] = '\0';
}

static void note_taken(struct kvb_source *source, int sender, uint64_t bytes)
{
    for (size_t i = 0; i < max_backlogs; i++) {
        struct kvb_backlog *backlog = &source->backlogs[i];
        /* A SUB that connects has one connection, whoever the message names. */
        if (backlog->connection.fd >= 0 &&
            (!source->is_bound || backlog->connection.fd == sender)) {
            kvb_backlog_take(backlog, bytes);
            return;
        }
    }
}

static void note_empty(struct kvb_source *source)
{
    for (size_t i = 0; i < max_backlogs; i++) {
        kvb_backlog_found_empty(&source->backlogs[i]);
    }
}

void kvb_source_end_floods(struct kvb_source *source, uint64_t now_ns)
{
    for (size_t i = 0; i < max_backlogs; i++) {
        struct kvb_backlog *backlog = &source->backlogs[i];
        if (backlog->connection.fd >= 0 &&
            kvb_backlog_is_above(backlog, kvb_max_engine_backlog_bytes, now_ns)) {
            /* It may have ended by itself meanwhile, which is no flood. */
            source->counters.floods += kvb_connection_end(&backlog->connection);
            backlog->connection = kvb_connection_none();
        }
    }
}

/* Drops what a lost connection has left in the SUB. */
static void drop_leftovers(struct kvb_source *source)
{
    struct kvb_zmq_message message;

    for (size_t i = 0; i < drops_a_turn; i++) {
        const kvb_status status = kvb_zmq_message_receive(source->sub, &message);
        if (status != KVB_OK) {
            /* An error is no empty socket: the poller must ask again. */
            source->is_drained = status == KVB_AGAIN;
            return;
        }
        kvb_zmq_message_close(&message);
    }
}

size_t kvb_source_receive(
    struct kvb_source *source, struct kvb_source_batch out_batches[kvb_source_run],
    uint64_t *out_refused)
{
    struct kvb_zmq *zmq = source->zmq;
    size_t batches = 0;
    size_t bytes = 0;

    /* The payloads of the run before were borrowed until now. */
    kvb_zmq_close_run(zmq);
    *out_refused = 0;
    source->is_drained = false;
    if (source->link == LINK_LOST || source->link == LINK_STALE) {
        drop_leftovers(source);
        return 0;
    }
    while (zmq->run_count < kvb_source_run && bytes < kvb_source_run_bytes) {
        struct kvb_zmq_message *message = &zmq->run[zmq->run_count];
        struct kvb_source_batch *batch = &out_batches[batches];
        const kvb_status status = kvb_zmq_message_receive(source->sub, message);
        if (status != KVB_OK) {
            source->is_drained = status == KVB_AGAIN;
            break;
        }
        /* Kept even when it is no batch: the next call closes it with the run. */
        zmq->run_count++;
        batch->sender = sender_of(source, message);
        note_taken(source, batch->sender, kvb_zmq_message_wire_bytes(message));
        if (kvb_frames_read_live(&message->frames, &batch->seq, &batch->payload) != KVB_OK) {
            source->strays.unnumbered++;
            source->strays.frames = message->frames.count;
            (*out_refused)++;
        } else if (!is_of_topic(source, &message->frames)) {
            note_other_topic(&source->strays, message->frames.frame[0]);
        } else {
            fetch_ahead(batch->payload);
            bytes += batch->payload.len;
            batches++;
        }
    }
    if (source->is_drained) {
        note_empty(source);
    } else {
        kvb_source_end_floods(source, kvb_clock_monotonic_ns()); /* more waits than a run takes */
    }
    return batches;
}

/* ---- The monitor ---- */

static void note_connection(struct kvb_source *source, int fd)
{
    struct kvb_backlog *backlog = &source->backlogs[source->is_bound ? source->next_backlog : 0];

    *backlog = kvb_backlog_of(fd, kvb_clock_monotonic_ns());
    source->next_backlog = (source->next_backlog + 1) % max_backlogs;
}

static void note_end(struct kvb_source *source, int fd)
{
    for (size_t i = 0; i < max_backlogs; i++) {
        if (source->backlogs[i].connection.fd == fd) {
            source->backlogs[i].connection = kvb_connection_none();
        }
    }
}

static void note_loss(struct kvb_source *source, struct kvb_source_link *link)
{
    struct kvb_source_counters *counters = &source->counters;

    /* libzmq reports a new attempt soon, unless a protocol error has ended the connection. */
    source->renewal.retry = RETRY_OWED;
    link->was_lost = true;
    /* Without a completed handshake it is a failed attempt, and no loss. */
    if (source->is_bound) {
        counters->disconnects += counters->disconnects < counters->connects;
    } else if (source->link == LINK_UP) {
        counters->disconnects++;
        source->link = LINK_LOST;
    }
}

/* libzmq tries again to connect, after a loss or a failed attempt. */
static void note_retry(struct kvb_source *source)
{
    source->counters.retries++;
    source->renewal.retry = RETRY_NOT_OWED;
    /* The attempt after a loss is no failure: that one has worked. */
    if (source->link == LINK_LOST) {
        source->link = LINK_STALE;
        return;
    }
    source->counters.failures++;
    if (source->link == LINK_TRYING) {
        source->link = LINK_FAILED;
    }
}

/* Makes libzmq send the subscription on a new connection of a socket that has tried before, which
 * it does when ZMQ_EVENTS is read. Done before a replay is requested, so that all batches after the
 * replay are received live. */
static void subscribe_new_connection(struct kvb_source *source)
{
    int events = 0;
    size_t size = sizeof events;

    (void)zmq_getsockopt(source->sub, ZMQ_EVENTS, &events, &size);
    source->is_drained = false;
}

static void
follow_monitor(struct kvb_source *source, uint16_t event, int fd, struct kvb_source_link *link)
{
    switch (event) {
    case ZMQ_EVENT_CONNECTED:
        note_connection(source, fd);
        break;
    case ZMQ_EVENT_ACCEPTED:
        kvb_peers_accepted(&source->peers, fd);
        note_connection(source, fd);
        break;
    case ZMQ_EVENT_HANDSHAKE_SUCCEEDED:
        if (source->link == LINK_LOST || source->link == LINK_STALE) {
            break; /* libzmq was faster than kvb_source_renew(), which makes another connection */
        }
        source->link = source->is_bound ? source->link : LINK_UP;
        source->counters.connects++;
        /* What strayed before came on another connection. */
        source->strays = (struct kvb_source_strays){ 0 };
        subscribe_new_connection(source);
        kvb_address_choice_connected(&source->events.choice);
        source->renewal.retry = RETRY_NOT_OWED;
        kvb_peers_shook_hands(&source->peers);
        break;
    case ZMQ_EVENT_DISCONNECTED:
        note_end(source, fd);
        /* Of a bound SUB, scanners that leave are no loss. */
        if (!source->is_bound || kvb_peers_left(&source->peers, fd)) {
            note_loss(source, link);
        }
        break;
    case ZMQ_EVENT_CONNECT_RETRIED:
        note_retry(source);
        break;
    default:
        if (source->is_bound && (event & kvb_failed_handshake_events) != 0) {
            kvb_peers_failed(&source->peers);
        } /* else: the monitor stopped, or a new attempt follows */
    }
}

struct kvb_source_link kvb_source_read_monitor(struct kvb_source *source)
{
    struct kvb_source_link link = { .was_lost = false };
    kvb_status status = KVB_OK;
    uint16_t event = 0;
    int value = 0;

    while ((status = kvb_zmq_monitor_next(source->monitor, &event, &value)) == KVB_OK) {
        follow_monitor(source, event, value, &link);
        source->renewal.is_received = true;
    }
    /* Both sockets of this kind were found empty, so the poller need not ask them. */
    if (status == KVB_AGAIN && source->is_drained) {
        kvb_poller_set_drained(source->poller, source->owner, kvb_ready_live);
    }
    source->is_drained = false;
    const size_t engines = kvb_peers_count(&source->peers);
    link.is_up = source->is_bound ? engines == 1 : source->link == LINK_UP;
    link.is_crowded = source->is_bound && engines > 1;
    return link;
}

/* ---- The name of the engine's host ---- */

/* Looks the host up.  Without an address it closes the SUB, whose old address may belong to another
 * host now. */
static kvb_status look_up(struct kvb_source *source, bool has_failed, uint64_t now_ns, bool *moved)
{
    const kvb_status status =
        kvb_named_endpoint_look(&source->events, source->resolver, has_failed, now_ns, moved);

    if (status != KVB_OK) {
        close_event_sub(source);
    }
    return status;
}

/* Without a connection: looks the host up, and takes the next address after a failed attempt. */
static kvb_status follow_name(struct kvb_source *source, uint64_t now_ns, bool *out_has_moved)
{
    const bool has_failed = source->link == LINK_FAILED;

    *out_has_moved = false;
    /* A connection that works, or is being tried, stays whatever the name says. */
    if (!has_failed && source->link != LINK_CLOSED && source->link != LINK_STALE) {
        return KVB_OK;
    }
    KVB_TRY(look_up(source, has_failed, now_ns, out_has_moved));
    if (has_failed) {
        source->link = LINK_TRYING; /* libzmq goes on by itself if the address is the same */
    }
    return KVB_OK;
}

static kvb_status reopen_event_sub(struct kvb_source *source)
{
    close_event_sub(source);
    const kvb_status status = open_event_sub(source);
    if (status != KVB_OK) {
        close_event_sub(source); /* without a socket, receiving fails */
    }
    return status;
}

/* ---- Renewal ---- */

/* True when libzmq will not connect again by itself. */
static bool is_connection_given_up(struct kvb_source *source, uint64_t now_ns)
{
    struct renewal *renewal = &source->renewal;

    if (source->link == LINK_UP) {
        renewal->quiet_ns = 0;
        renewal->up_ns = renewal->up_ns == 0 ? now_ns : renewal->up_ns;
        if (now_ns - renewal->up_ns >= steady_ns) {
            renewal->pauses = (struct kvb_backoff){ 0 };
        }
        return false;
    }
    renewal->up_ns = 0;
    /* Any event shows that libzmq is still at it, and begins the silence anew. */
    if (renewal->is_received || renewal->quiet_ns == 0) {
        renewal->is_received = false;
        renewal->quiet_ns = now_ns;
    }
    /* libzmq would have reported by now: it has given up, as after a protocol error. */
    if (renewal->retry == RETRY_OWED && now_ns - renewal->quiet_ns >= between_renewals.first_ns) {
        renewal->retry = RETRY_MISSED;
        source->counters.protocol_errors++;
    }
    const uint64_t wait_ns = renewal->pauses.pause_ns > between_renewals.first_ns
                                 ? renewal->pauses.pause_ns
                                 : between_renewals.first_ns;
    /* Nothing is under way, so the pause alone counts; else libzmq has 30 s. */
    const bool is_idle = renewal->retry != RETRY_NOT_OWED || !source->sub;
    return now_ns - renewal->quiet_ns >= (is_idle ? wait_ns : max_silence_ns);
}

static const char *reason_of(const struct kvb_source *source)
{
    const struct renewal *renewal = &source->renewal;

    if (!source->sub) {
        return source->open_why.text[0] ? source->open_why.text : "its sockets could not be opened";
    }
    if (renewal->retry == RETRY_NOT_OWED) {
        return "no handshake and no new attempt for 30 s";
    }
    return source->link == LINK_LOST
               ? "protocol error: a message above 16 MiB, or bytes that are not ZMTP"
               : "handshake failed: another protocol, socket type or ZMQ mechanism at this port";
}

static kvb_status
renew_connection(struct kvb_source *source, uint64_t now_ns, const char **out_reason)
{
    struct renewal *renewal = &source->renewal;
    bool has_moved = false;

    /* Before the state is reset: the reason is read from it. */
    *out_reason = reason_of(source);
    source->counters.renewals++;
    *renewal = (struct renewal){ .pauses = renewal->pauses };
    (void)kvb_backoff_fail(&renewal->pauses, &between_renewals, now_ns);
    /* As after a failed attempt: another address of the name may be better. */
    KVB_TRY(look_up(source, true, now_ns, &has_moved));
    return reopen_event_sub(source);
}

kvb_status kvb_source_renew(struct kvb_source *source, uint64_t now_ns, const char **out_reason)
{
    bool has_moved = false;
    const kvb_status status = follow_name(source, now_ns, &has_moved);

    *out_reason = source->sub ? "" : source->open_why.text;
    if (status == KVB_NOT_FOUND || status == KVB_BAD_INPUT) {
        *out_reason = source->events.why.text;
        return status;
    }
    KVB_TRY(status);
    if (has_moved || source->link == LINK_STALE) {
        source->renewal.retry = RETRY_NOT_OWED; /* what was owed was owed to the old SUB */
        source->renewal.is_received = false;
        source->renewal.quiet_ns = now_ns;
        (void)reopen_event_sub(source); /* after a failure, a later call opens it */
        return KVB_AGAIN;
    }
    /* A bound SUB needs nothing while it listens: its engine connects again. */
    if ((source->is_bound && source->sub) || !is_connection_given_up(source, now_ns)) {
        return KVB_AGAIN;
    }
    return renew_connection(source, now_ns, out_reason);
}

bool kvb_source_is_of_engine(struct kvb_source *source, const struct kvb_source_batch *batch)
{
    if (!source->is_bound) {
        return true;
    }
    /* First: the message may show which of the connections is the engine's. */
    kvb_peers_received(&source->peers, batch->sender);
    return batch->sender == source->peers.only;
}

const struct kvb_source_counters *kvb_source_count(const struct kvb_source *source)
{
    return &source->counters;
}

const struct kvb_source_strays *kvb_source_strays(const struct kvb_source *source)
{
    return &source->strays;
}

void kvb_source_listen_to_all(struct kvb_source *source, bool listens)
{
    if (!source->sub || source->topic[0] == '\0' || source->listens_to_all == listens) {
        return;
    }
    const int option = listens ? ZMQ_SUBSCRIBE : ZMQ_UNSUBSCRIBE;
    if (zmq_setsockopt(source->sub, option, "", 0) == 0) { /* else: the next call tries again */
        source->listens_to_all = listens;
    }
}

/* ---- Replay ---- */

static kvb_status send_request(const struct kvb_source *source, uint64_t from)
{
    struct kvb_frames frames;
    uint8_t seq[8];

    kvb_frames_of_request(source->replay_request, from, seq, &frames);
    for (size_t i = 0; i < frames.count; i++) {
        const int more = i + 1 < frames.count ? ZMQ_SNDMORE : 0;
        const kvb_span frame = frames.frame[i];
        if (zmq_send(source->dealer, frame.data, frame.len, ZMQ_DONTWAIT | more) < 0) {
            return KVB_IO;
        }
    }
    return KVB_OK;
}

static kvb_status open_dealer(struct kvb_source *source)
{
    /* Replies are moved from libzmq to a bounded queue at once.  No pings: a replay without a reply
     * is given up by its deadline. */
    const struct kvb_zmq_socket_options as = { .type = ZMQ_DEALER,
                                               .max_bytes = kvb_max_payload_bytes,
                                               .is_ipv6 =
                                                   kvb_named_endpoint_is_ipv6(&source->replay) };
    char address[kvb_zmq_address_bytes];

    kvb_named_endpoint_write(&source->replay, address);
    KVB_TRY(kvb_zmq_socket_open(source->context, &as, &source->dealer));
    KVB_TRY(kvb_poller_add_socket(source->poller, source->owner, kvb_ready_reply, source->dealer));
    return zmq_connect(source->dealer, address) == 0 ? KVB_OK : KVB_IO;
}

/* Chooses the address of the replay socket.  A name may have the addresses of several engines, so a
 * replay from the same host uses the address from which events are read. */
static kvb_status look_up_replay(struct kvb_source *source)
{
    const bool has_failed = source->is_unanswered;
    bool has_moved = false;

    /* Until a reply comes; without one the next request takes another address. */
    source->is_unanswered = true;
    if (source->replay.host[0] != '\0' && strcmp(source->replay.host, source->events.host) == 0) {
        source->replay.choice = source->events.choice;
        return KVB_OK;
    }
    return kvb_named_endpoint_look(
        &source->replay, source->resolver, has_failed, kvb_clock_monotonic_ns(), &has_moved);
}

/* True when two more files can be opened: libzmq needs one for a mailbox and one for a connection.
 * libzmq's thread opens the connection, and would not report a failure. */
static bool may_open_files(void)
{
    int fds[2] = { -1, -1 };

    if (pipe2(fds, O_CLOEXEC) != 0) {
        return errno != EMFILE && errno != ENFILE;
    }
    (void)close(fds[0]);
    (void)close(fds[1]);
    return true;
}

kvb_status kvb_source_replay_start(struct kvb_source *source, uint64_t from)
{
    /* A new socket for each: late replies of an earlier request have no way into this one. */
    kvb_source_replay_stop(source);
    KVB_TRY(look_up_replay(source));
    kvb_status status = may_open_files() ? open_dealer(source) : KVB_TOO_LARGE;
    if (status == KVB_OK) {
        status = send_request(source, from);
    }
    if (status != KVB_OK) {
        kvb_source_replay_stop(source);
    }
    return status;
}

void kvb_source_replay_stop(struct kvb_source *source)
{
    (void)zmq_msg_close(&source->reply.payload);
    (void)zmq_msg_init(&source->reply.payload);
    kvb_reply_queue_done(&source->replies);
    source->is_cut = false;
    kvb_poller_set_pending(source->poller, source->owner, 0);
    close_watched(source, &source->dealer);
}

void kvb_source_replay_drain(struct kvb_source *source)
{
    struct kvb_zmq_message message;
    kvb_status status = KVB_OK;

    while (source->dealer &&
           (status = kvb_zmq_message_receive(source->dealer, &message)) == KVB_OK) {
        source->is_unanswered = false;
        if (kvb_reply_queue_put(&source->replies, &message) != KVB_OK) {
            kvb_zmq_message_close(&message);
            /* Without the socket libzmq cannot go on to fill its own queue, which has no limit. */
            close_watched(source, &source->dealer);
            source->is_cut = true;
            source->counters.cuts++;
        }
    }
    if (status == KVB_AGAIN) {
        kvb_poller_set_drained(source->poller, source->owner, kvb_ready_reply);
    }
    /* The queue is no socket: the poller learns of what waits there in this way alone. */
    const bool has_more = source->is_cut || kvb_reply_queue_count(&source->replies) > 0;
    kvb_poller_set_pending(source->poller, source->owner, has_more ? kvb_ready_reply : 0);
}

kvb_status kvb_source_replay_receive(
    struct kvb_source *source, enum kvb_source_reply *out_kind, struct kvb_source_batch *out_batch)
{
    (void)zmq_msg_close(&source->reply.payload);
    (void)zmq_msg_init(&source->reply.payload);
    if (kvb_reply_queue_take(&source->replies, &source->reply) != KVB_OK) {
        /* Said after the last reply, so that what was received is applied first. */
        *out_kind = KVB_REPLY_CUT;
        return source->is_cut ? KVB_OK : KVB_AGAIN;
    }
    if (source->reply.kind == kvb_reply_bad) {
        return KVB_BAD_INPUT;
    }
    *out_kind = source->reply.kind == kvb_reply_end ? KVB_REPLY_END : KVB_REPLY_BATCH;
    *out_batch =
        (struct kvb_source_batch){ .seq = source->reply.seq,
                                   .has_topic = source->reply.has_topic,
                                   .payload = { .data = zmq_msg_data(&source->reply.payload),
                                                .len = zmq_msg_size(&source->reply.payload) } };
    return KVB_OK;
}
