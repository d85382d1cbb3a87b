#include "fake_engine.h"
#include "fake_pages.h"

#include "ingest/http/scraper.h"
#include "ingest/zmq/context.h"
#include "ingest/zmq/event_server.h"
#include "ingest/zmq/load_source.h"
#include "ingest/zmq/poller.h"
#include "ingest/zmq/source.h"

#include <stdlib.h>
#include <string.h>

enum { max_items = 600, seq_bytes = 8, max_sources = 16 };

/* A message in a queue; its bytes are kept until the queue is emptied. */
struct item {
    uint8_t *bytes; /* owned; frames, [length as 4 bytes, bytes...] each */
    size_t len;
    bool is_cut;
};

struct queue {
    struct item items[max_items];
    size_t at, count;
};

struct socket {
    const struct fake_engine *engine; /* borrowed */
    enum fake_replay replay;
    bool is_up, was_lost;
    struct queue live, replies, raw;
};

struct kvb_source {
    size_t number; /* fake_sockets: nobody listens there */
    size_t owner;
    struct kvb_source_counters counters;
};

struct kvb_poller {
    size_t at; /* of sources, in this turn */
    size_t pages_owner;
};

static struct socket sockets[fake_sockets];
static struct kvb_source *sources[max_sources];
static void (*take_turn)(void);
static struct kvb_poller the_poller;

/* ---- Queues ---- */

static void empty(struct queue *queue)
{
    for (size_t i = 0; i < queue->count; i++) {
        free(queue->items[i].bytes);
    }
    queue->at = queue->count = 0;
}

static void put(struct queue *queue, const struct item *item)
{
    if (queue->at > 0 && queue->at == queue->count) {
        empty(queue); /* nobody borrows from the messages that were read */
    }
    if (queue->count == max_items) {
        free(item->bytes); /* as a high-water mark does */
        return;
    }
    queue->items[queue->count++] = *item;
}

static void put_copy(struct queue *queue, const uint8_t *bytes, size_t len)
{
    const struct item item = { malloc(len ? len : 1), len, false };

    if (!item.bytes) {
        abort();
    }
    if (len > 0) {
        memcpy(item.bytes, bytes, len);
    }
    put(queue, &item);
}

/* From frames with lengths of one byte to frames with lengths of four. */
static void put_raw(struct queue *queue, const uint8_t *data, size_t size)
{
    uint8_t *bytes = malloc(4 * size + 4);
    size_t len = 0;

    if (!bytes) {
        abort();
    }
    for (size_t at = 0; at < size;) {
        const size_t left = size - at - 1;
        const uint32_t frame = data[at] < left ? data[at] : (uint32_t)left;
        memcpy(bytes + len, &frame, sizeof frame);
        memcpy(bytes + len + 4, data + at + 1, frame);
        len += 4 + frame;
        at += 1 + frame;
    }
    put_copy(queue, bytes, len);
    free(bytes);
}

/* An empty topic of a live message and the empty delimiter of a reply look the same. */
static void put_message(struct queue *queue, uint64_t seq, const uint8_t *payload, size_t size)
{
    const uint32_t lengths[] = { 0, seq_bytes, (uint32_t)size };
    uint8_t *bytes = malloc(sizeof lengths + seq_bytes + size);
    uint8_t *at = bytes;

    if (!bytes) {
        abort();
    }
    memcpy(at, &lengths[0], 4);
    memcpy(at + 4, &lengths[1], 4);
    kvb_frames_write_seq(seq, at + 8);
    memcpy(at + 8 + seq_bytes, &lengths[2], 4);
    if (size > 0) {
        memcpy(at + 12 + seq_bytes, payload, size);
    }
    put_copy(queue, bytes, sizeof lengths + seq_bytes + size);
    free(bytes);
}

static void put_end(struct queue *queue)
{
    put_message(queue, UINT64_MAX, NULL, 0);
}

static struct kvb_frames frames_of(const struct item *item)
{
    struct kvb_frames frames = { .count = 0 };

    for (size_t at = 0; at + 4 <= item->len; frames.count++) {
        uint32_t len = 0;
        memcpy(&len, item->bytes + at, sizeof len);
        if (frames.count < kvb_max_frames) {
            frames.frame[frames.count] = (kvb_span){ len ? item->bytes + at + 4 : NULL, len };
        }
        at += 4 + len;
    }
    return frames;
}

/* A message to a socket that nobody has opened is lost. */
static struct queue *live_of(size_t number)
{
    static struct queue nowhere;

    for (size_t i = 0; i < max_sources && number < fake_sockets; i++) {
        if (sources[i] && sources[i]->number == number && sockets[number].is_up) {
            return &sockets[number].live;
        }
    }
    empty(&nowhere);
    return &nowhere;
}

/* ---- For the target ---- */

void fake_sockets_reset(void (*turn)(void))
{
    memset(sockets, 0, sizeof sockets);
    memset((void *)sources, 0, sizeof sources);
    for (size_t i = 0; i < fake_sockets; i++) {
        sockets[i].is_up = true;
    }
    take_turn = turn;
}

void fake_sockets_done(void)
{
    for (size_t i = 0; i < fake_sockets; i++) {
        empty(live_of(fake_sockets)); /* what was lost */
        empty(&sockets[i].live);
        empty(&sockets[i].replies);
        empty(&sockets[i].raw);
    }
}

void fake_socket_set_engine(size_t number, const struct fake_engine *engine)
{
    sockets[number].engine = engine;
}

void fake_socket_set_replay(size_t number, enum fake_replay replay)
{
    sockets[number].replay = replay;
}

void fake_socket_send(size_t number, const struct fake_message *message)
{
    put_message(live_of(number), message->seq, message->bytes, message->len);
}

void fake_socket_send_raw(size_t number, const uint8_t *data, size_t size)
{
    put_raw(live_of(number), data, size);
}

void fake_socket_add_reply(size_t number, const uint8_t *data, size_t size)
{
    put_raw(&sockets[number].raw, data, size);
}

void fake_socket_send_payload(size_t number, uint64_t seq, const uint8_t *data, size_t size)
{
    put_message(live_of(number), seq, data, size);
}

void fake_socket_set_up(size_t number, bool is_up)
{
    sockets[number].was_lost |= !is_up;
    sockets[number].is_up = is_up;
}

bool fake_socket_is_idle(size_t number)
{
    return sockets[number].live.at == sockets[number].live.count;
}

/* ---- ingest/zmq/source.h ---- */

kvb_status kvb_source_open(
    struct kvb_zmq *zmq, const struct kvb_source_options *options, struct kvb_source **out_source,
    struct kvb_detail *detail)
{
    const char *last = options->events + strlen(options->events);
    struct kvb_source *source = calloc(1, sizeof *source);

    (void)zmq;
    (void)detail;
    if (!source) {
        return KVB_NO_MEMORY;
    }
    source->owner = options->owner;
    source->number = last > options->events ? (size_t)(uint8_t)(last[-1] - '0') : fake_sockets;
    if (source->number > fake_sockets) {
        source->number = fake_sockets;
    }
    for (size_t i = 0; i < max_sources; i++) {
        if (!sources[i]) {
            sources[i] = source;
            *out_source = source;
            return KVB_OK;
        }
    }
    free(source);
    return KVB_IO;
}

void kvb_source_close(struct kvb_source *source)
{
    for (size_t i = 0; i < max_sources; i++) {
        if (source && sources[i] == source) {
            sources[i] = NULL;
        }
    }
    if (source && source->number < fake_sockets) {
        empty(&sockets[source->number].live);
        empty(&sockets[source->number].replies);
    }
    free(source);
}

static struct socket *socket_of(const struct kvb_source *source)
{
    return source->number < fake_sockets ? &sockets[source->number] : NULL;
}

size_t kvb_source_receive(
    struct kvb_source *source, struct kvb_source_batch out_batches[kvb_source_run],
    uint64_t *out_refused)
{
    struct socket *socket = socket_of(source);
    size_t count = 0;

    *out_refused = 0;
    while (socket && count < kvb_source_run && socket->live.at < socket->live.count) {
        const struct kvb_frames frames = frames_of(&socket->live.items[socket->live.at++]);
        struct kvb_source_batch *out = &out_batches[count];
        *out = (struct kvb_source_batch){ 0 };
        if (kvb_frames_read_live(&frames, &out->seq, &out->payload) == KVB_OK) {
            count++;
        } else {
            ++*out_refused;
        }
    }
    return count;
}

struct kvb_source_link kvb_source_read_monitor(struct kvb_source *source)
{
    struct socket *socket = socket_of(source);
    struct kvb_source_link link = { 0 };

    if (socket) {
        link = (struct kvb_source_link){ .was_lost = socket->was_lost, .is_up = socket->is_up };
        socket->was_lost = false;
    }
    return link;
}

bool kvb_source_is_of_engine(struct kvb_source *source, const struct kvb_source_batch *batch)
{
    (void)source;
    (void)batch;
    return true;
}

kvb_status kvb_source_renew(struct kvb_source *source, uint64_t now_ns, const char **out_reason)
{
    (void)source;
    (void)now_ns;
    (void)out_reason;
    return KVB_AGAIN;
}

const struct kvb_source_counters *kvb_source_count(const struct kvb_source *source)
{
    return &source->counters;
}

const struct kvb_source_strays *kvb_source_strays(const struct kvb_source *source)
{
    static const struct kvb_source_strays none = { .topic = "" };

    (void)source;
    return &none;
}

void kvb_source_listen_to_all(struct kvb_source *source, bool listens)
{
    (void)source;
    (void)listens;
}

void kvb_source_end_floods(struct kvb_source *source, uint64_t now_ns)
{
    (void)source;
    (void)now_ns;
}

/* ---- Replays ---- */

static void put_log(struct socket *socket, const struct fake_engine *engine, uint64_t from)
{
    const size_t end = socket->replay == FAKE_REPLAY_CUT ? engine->count / 2 : engine->count;

    for (size_t i = 0; i < end; i++) {
        const struct fake_message *message = &engine->messages[i];
        const bool is_hole = socket->replay == FAKE_REPLAY_HOLES && i % 3 == 2;
        if (message->seq >= from && !is_hole) {
            put_message(&socket->replies, message->seq, message->bytes, message->len);
        }
    }
}

static void put_raw_replies(struct socket *socket)
{
    for (size_t i = 0; i < socket->raw.count; i++) {
        const struct item *item = &socket->raw.items[i];
        put_copy(&socket->replies, item->bytes, item->len);
    }
    empty(&socket->raw);
}

static void answer_replay(struct socket *socket, size_t number, uint64_t from)
{
    const struct fake_engine *engine = socket->engine;

    if (socket->replay == FAKE_REPLAY_OTHER && sockets[(number + 1) % fake_sockets].engine) {
        engine = sockets[(number + 1) % fake_sockets].engine;
    }
    if (socket->replay == FAKE_REPLAY_RAW) {
        put_raw_replies(socket);
        return;
    }
    if (socket->replay == FAKE_REPLAY_MUTE || !engine) {
        return;
    }
    if (socket->replay != FAKE_REPLAY_EMPTY) {
        put_log(socket, engine, from);
    }
    if (socket->replay == FAKE_REPLAY_CUT) {
        put(&socket->replies, &(struct item){ .is_cut = true });
    } else {
        put_end(&socket->replies);
    }
}

kvb_status kvb_source_replay_start(struct kvb_source *source, uint64_t from)
{
    struct socket *socket = socket_of(source);

    if (socket) {
        empty(&socket->replies);
        if (socket->is_up) {
            answer_replay(socket, source->number, from);
        }
    }
    return KVB_OK;
}

void kvb_source_replay_stop(struct kvb_source *source)
{
    if (source && socket_of(source)) {
        empty(&socket_of(source)->replies);
    }
}

void kvb_source_replay_drain(struct kvb_source *source)
{
    (void)source;
}

kvb_status kvb_source_replay_receive(
    struct kvb_source *source, enum kvb_source_reply *out_kind, struct kvb_source_batch *out_batch)
{
    struct socket *socket = socket_of(source);
    enum kvb_replay_frame kind = KVB_REPLAY_END;

    if (!socket || socket->replies.at == socket->replies.count) {
        return KVB_AGAIN;
    }
    const struct item *item = &socket->replies.items[socket->replies.at++];
    if (item->is_cut) {
        *out_kind = KVB_REPLY_CUT;
        return KVB_OK;
    }
    const struct kvb_frames frames = frames_of(item);
    KVB_TRY(kvb_frames_read_replay(&frames, &kind, &out_batch->seq, &out_batch->payload));
    *out_kind = kind == KVB_REPLAY_BATCH ? KVB_REPLY_BATCH : KVB_REPLY_END;
    return KVB_OK;
}

/* ---- ingest/zmq/poller.h: every wait is one turn of the target ---- */

kvb_status kvb_poller_new(size_t owners, struct kvb_poller **out_poller)
{
    (void)owners;
    *out_poller = &the_poller;
    return KVB_OK;
}

void kvb_poller_free(struct kvb_poller *poller)
{
    (void)poller;
}

kvb_status kvb_poller_add_fd(struct kvb_poller *poller, size_t owner, int fd)
{
    if (fd == kvb_scraper_fd(NULL)) {
        poller->pages_owner = owner;
    }
    return KVB_OK;
}

kvb_status kvb_poller_wait(struct kvb_poller *poller, int timeout_ms)
{
    (void)timeout_ms;
    poller->at = 0;
    take_turn();
    return KVB_OK;
}

void kvb_poller_pause(uint64_t pause_ns)
{
    (void)pause_ns;
}

bool kvb_poller_is_idle(const struct kvb_poller *poller)
{
    (void)poller;
    return false; /* so there is one wait a turn */
}

bool kvb_poller_next(struct kvb_poller *poller, size_t *out_owner, unsigned *out_kinds)
{
    while (poller->at < max_sources) {
        const struct kvb_source *source = sources[poller->at++];
        if (source) {
            *out_owner = source->owner;
            *out_kinds = kvb_ready_live | kvb_ready_reply;
            return true;
        }
    }
    *out_owner = poller->pages_owner;
    *out_kinds = kvb_ready_live;
    return poller->at++ == max_sources && fake_pages_are_there(); /* once a turn */
}

/* ---- ingest/zmq/context.h, load_source.h ---- */

kvb_status kvb_zmq_raise_limits(const struct kvb_zmq_size *size, struct kvb_detail *detail)
{
    (void)size;
    (void)detail;
    return KVB_OK;
}

kvb_status kvb_zmq_new(struct kvb_control *control, struct kvb_zmq **out_zmq)
{
    (void)control;
    *out_zmq = NULL;
    return KVB_OK;
}

void kvb_zmq_expect(struct kvb_zmq *zmq, size_t publishers)
{
    (void)zmq;
    (void)publishers;
}

void kvb_zmq_free(struct kvb_zmq *zmq)
{
    (void)zmq;
}

kvb_status kvb_load_source_open(
    struct kvb_zmq *zmq, const struct kvb_load_source_options *options,
    struct kvb_load_source **out_source, struct kvb_detail *detail)
{
    (void)zmq;
    (void)options;
    (void)out_source;
    kvb_detail_set(detail, "no sockets of load here");
    return KVB_BAD_CONFIG;
}

void kvb_load_source_close(struct kvb_load_source *source)
{
    (void)source;
}

kvb_status
kvb_load_source_connect(struct kvb_load_source *source, uint64_t now_ns, const char **out_why)
{
    (void)source;
    (void)now_ns;
    (void)out_why;
    return KVB_AGAIN;
}

bool kvb_load_source_is_cut(struct kvb_load_source *source, uint64_t now_ns)
{
    (void)source;
    (void)now_ns;
    return false;
}

kvb_status kvb_load_source_renew(struct kvb_load_source *source, uint64_t now_ns)
{
    (void)source;
    (void)now_ns;
    return KVB_AGAIN;
}

kvb_status
kvb_load_source_receive(struct kvb_load_source *source, struct kvb_load_sample *out_sample)
{
    (void)source;
    (void)out_sample;
    return KVB_AGAIN;
}

kvb_status kvb_load_source_receive_coordinator(
    struct kvb_load_source *source, struct kvb_coordinator_update *out_update)
{
    (void)source;
    (void)out_update;
    return KVB_AGAIN;
}

/* ---- Nobody reads republished events here ---- */

struct kvb_event_server {
    uint64_t newest; /* numbers go up */
};

kvb_status kvb_event_server_open(
    struct kvb_zmq *zmq, const struct kvb_event_server_options *options,
    struct kvb_event_server **out_server, struct kvb_detail *detail)
{
    (void)zmq;
    (void)options;
    (void)detail;
    *out_server = calloc(1, sizeof **out_server);
    return *out_server ? KVB_OK : KVB_NO_MEMORY;
}

void kvb_event_server_close(struct kvb_event_server *server, int linger_ms)
{
    (void)linger_ms;
    free(server);
}

uint64_t kvb_event_server_take_ended(struct kvb_event_server *server)
{
    (void)server;
    return 0;
}

bool kvb_event_server_receive(
    struct kvb_event_server *server, struct kvb_event_server_received *out_received)
{
    (void)server;
    (void)out_received;
    return false;
}

kvb_status kvb_event_server_publish(struct kvb_event_server *server, uint64_t seq, kvb_span payload)
{
    if (seq <= server->newest || payload.len == 0) {
        abort();
    }
    server->newest = seq;
    return KVB_OK;
}

kvb_status kvb_event_server_reply(
    struct kvb_event_server *server, kvb_span identity, uint64_t seq, kvb_span payload)
{
    (void)server;
    (void)identity;
    (void)seq;
    (void)payload;
    return KVB_NOT_FOUND;
}

kvb_status kvb_event_server_end(struct kvb_event_server *server, kvb_span identity)
{
    (void)server;
    (void)identity;
    return KVB_NOT_FOUND;
}
