#include "core/clock.h"
#include "grpc/session.h"
#include "target.h"
#include "wire/query/indexer.h"

#include <stdlib.h>
#include <string.h>

/* Two connections of one gate, as a program of operations says, a byte each and their operands:
 *
 *     0 n bytes       n bytes, as they are
 *     1               the beginning of a client
 *     2 t f s n bytes a frame of type t with flags f, of stream s, with n bytes of payload
 *     3 f s           a good header of a request, with flags f
 *     4 f s n bytes   a DATA frame: a message of n bytes behind its head
 *     5 k st n        answers the kth request that waits, with the status and n bytes
 *     6 n             n * 100 ms pass
 *     7               this side ends the connection
 *     8               what is to be sent is sent
 *     9 c             the other operations are of connection c from now on
 *     10              the connection ends, and there is another one
 *
 * Checked: no ceiling is exceeded; each request that was taken is answered or reported as gone,
 * once; each stream ends at most once, and nothing is sent after its end. */

enum {
    connections = 2,
    max_under_way = 4,
    max_message = 2048,
    max_held = 4096,
    max_waiting = 64,
    max_stream = 512, /* s is a byte: 2 * s + 1; raw bytes have other streams, too */
    out_bytes = 1 << 20
};

struct waiting {
    struct connection *connection;
    int32_t stream;
    bool is_gone;
};

struct connection {
    struct world *world;
    struct kvb_grpc_session *session;
    bool is_closed; /* the session has returned KVB_CLOSED, so nothing more is received */
    bool was_taken[max_stream];
    bool is_ended[max_stream];
    struct kvb_buf out;
};

struct world {
    struct kvb_grpc_gate gate;
    struct connection connections[connections];
    struct connection *at;
    struct waiting waiting[max_waiting];
    size_t waiting_count;
    size_t status_count;
    uint64_t now_ns;
    const uint8_t *data, *end;
};

/* Once for each stream.  Those that only raw bytes have are too many to note. */
static void note_once(bool noted[max_stream], int32_t stream)
{
    check(stream > 0);
    if (stream < max_stream) {
        check(!noted[stream]);
        noted[stream] = true;
    }
}

/* ---- What a session calls ---- */

static enum kvb_grpc_status
take_message(kvb_span message, struct kvb_query *query, uint64_t deadline_ns, uint64_t now_ns)
{
    check(deadline_ns > now_ns);
    check(message.len <= max_message);
    if (kvb_indexer_request_decode(message, query, NULL) != KVB_OK) {
        return KVB_GRPC_INVALID_ARGUMENT;
    }
    check(query->count > 0 && query->count * 8 <= message.len);
    return KVB_GRPC_LATER;
}

static enum kvb_grpc_status on_request(
    void *context, void *from, int32_t stream, size_t method, kvb_span message,
    uint64_t deadline_ns)
{
    struct world *world = context;
    struct connection *connection = from;
    struct kvb_query query = { 0 };

    check(method == 0);
    check(world->gate.under_way <= max_under_way);
    note_once(connection->was_taken, stream);
    const enum kvb_grpc_status status = take_message(message, &query, deadline_ns, world->now_ns);
    kvb_query_done(&query);
    if (status == KVB_GRPC_LATER) {
        check(world->waiting_count < max_under_way);
        world->waiting[world->waiting_count++] =
            (struct waiting){ .connection = connection, .stream = stream };
    }
    return status;
}

static void on_gone(void *context, void *from, int32_t stream)
{
    struct world *world = context;

    for (size_t i = 0; i < world->waiting_count; i++) {
        struct waiting *waiting = &world->waiting[i];
        if (waiting->connection == from && waiting->stream == stream && !waiting->is_gone) {
            waiting->is_gone = true;
            return;
        }
    }
    abort(); /* the request does not wait, or was reported as gone before */
}

static void on_status(void *context, enum kvb_grpc_status status)
{
    struct world *world = context;
    static const int may_be[] = { -1, 0, 3, 4, 8, 11, 12, 14 };
    bool is_known = false;

    for (size_t i = 0; i < sizeof may_be / sizeof may_be[0]; i++) {
        is_known = is_known || may_be[i] == (int)status;
    }
    check(is_known);
    world->status_count++;
}

/* ---- What is sent ---- */

enum { frame_head = 9, type_data = 0, type_headers = 1, flag_end_stream = 1 };

static void check_frame(struct connection *connection, const uint8_t *frame, size_t len)
{
    const uint32_t stream = (uint32_t)(frame[5] & 0x7f) << 24 | (uint32_t)frame[6] << 16 |
                            (uint32_t)frame[7] << 8 | frame[8];

    check(len <= (16 << 10));
    if (frame[3] != type_data && frame[3] != type_headers) {
        return;
    }
    check(stream > 0 && (stream >= max_stream || !connection->is_ended[stream]));
    if (frame[4] & flag_end_stream) {
        note_once(connection->is_ended, (int32_t)stream);
    }
}

static void send_out(struct world *world, struct connection *connection)
{
    struct kvb_buf *out = &connection->out;
    size_t at = 0;

    kvb_buf_reset(out);
    if (kvb_grpc_session_write(connection->session, out, out_bytes / 2, world->now_ns) != KVB_OK) {
        connection->is_closed = true;
    }
    while (at + frame_head <= out->len) {
        const size_t len =
            (size_t)out->data[at] << 16 | (size_t)out->data[at + 1] << 8 | out->data[at + 2];
        check(at + frame_head + len <= out->len); /* whole frames */
        check_frame(connection, out->data + at, len);
        at += frame_head + len;
    }
    check(at == out->len);
}

static void check_ceilings(const struct world *world)
{
    check(world->gate.under_way == world->waiting_count);
    check(world->gate.under_way <= max_under_way);
    check(world->gate.held_bytes <= max_held);
    for (size_t i = 0; i < connections; i++) {
        check(kvb_grpc_session_streams(world->connections[i].session) <= kvb_grpc_max_streams);
    }
}

/* ---- Operations ---- */

static uint8_t next_byte(struct world *world)
{
    return world->data < world->end ? *world->data++ : 0;
}

static kvb_span next_bytes(struct world *world, size_t len)
{
    const size_t left = (size_t)(world->end - world->data);
    const kvb_span bytes = { world->data, len < left ? len : left };

    world->data += bytes.len;
    return bytes;
}

static void receive(struct world *world, kvb_span bytes)
{
    struct connection *connection = world->at;

    if (!connection->is_closed) {
        connection->is_closed =
            kvb_grpc_session_receive(connection->session, bytes, world->now_ns) != KVB_OK;
    }
}

static void receive_frame(
    struct world *world, uint8_t type, uint8_t flags, uint8_t stream, kvb_span one, kvb_span other)
{
    const size_t len = one.len + other.len;
    const uint32_t id = type == 4 || type == 6 || type == 7 ? stream & 1U : 2U * stream + 1;
    const uint8_t head[frame_head] = { 0, (uint8_t)(len >> 8), (uint8_t)len, type, flags, 0,
                                       0, (uint8_t)(id >> 8),  (uint8_t)id };

    receive(world, (kvb_span){ head, sizeof head });
    receive(world, one);
    receive(world, other);
}

/* :method POST, :scheme http, and literals that no table keeps. */
static kvb_span good_header(void)
{
    static const char header[] =
        "\x83\x86\x04\x2e/kv_indexer.v1.KVIndexer/MatchExternalKvPrefix\x01\x01x"
        "\x0f\x10\x10"
        "application/grpc"
        "\x00\x0cgrpc-timeout\x02"
        "1S";

    return (kvb_span){ (const uint8_t *)header, sizeof header - 1 };
}

static void answer_one(struct world *world, uint8_t which, uint8_t status, uint8_t len)
{
    static const enum kvb_grpc_status statuses[] = { KVB_GRPC_OK, KVB_GRPC_RESOURCE_EXHAUSTED,
                                                     KVB_GRPC_DEADLINE_EXCEEDED,
                                                     KVB_GRPC_UNAVAILABLE };
    static const uint8_t message[256];

    if (world->waiting_count == 0) {
        return;
    }
    const size_t at = which % world->waiting_count;
    const struct waiting waiting = world->waiting[at];
    world->waiting[at] = world->waiting[--world->waiting_count];
    world->gate.under_way--;
    const size_t before = world->status_count;
    if (!waiting.is_gone) {
        kvb_grpc_session_answer(
            waiting.connection->session, waiting.stream, statuses[status % 4],
            (kvb_span){ message, len }, world->now_ns);
        check(world->status_count == before + 1);
    }
}

static void open_connection(struct world *world, struct connection *connection)
{
    *connection = (struct connection){ .world = world };
    kvb_buf_init(&connection->out, out_bytes);
    check(
        kvb_grpc_session_new(&world->gate, connection, world->now_ns, &connection->session) ==
        KVB_OK);
}

static void close_connection(struct world *world, struct connection *connection)
{
    send_out(world, connection);
    kvb_grpc_session_free(connection->session);
    for (size_t i = 0; i < world->waiting_count; i++) {
        check(world->waiting[i].connection != connection || world->waiting[i].is_gone);
    }
    kvb_buf_done(&connection->out);
}

static void pass_time(struct world *world, uint8_t tenths)
{
    world->now_ns += (uint64_t)tenths * 100 * KVB_NS_PER_MS;
    for (size_t i = 0; i < connections; i++) {
        struct connection *connection = &world->connections[i];
        if (kvb_grpc_session_expire(connection->session, world->now_ns) != KVB_OK) {
            connection->is_closed = true;
        }
    }
}

/* ---- Each with its operands ---- */

static void run_bytes(struct world *world)
{
    receive(world, next_bytes(world, next_byte(world)));
}

static void run_hello(struct world *world)
{
    static const uint8_t hello[] = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0";

    receive(world, (kvb_span){ hello, sizeof hello });
}

static void run_frame(struct world *world)
{
    const uint8_t type = next_byte(world);
    const uint8_t flags = next_byte(world);
    const uint8_t stream = next_byte(world);
    const uint8_t len = next_byte(world);

    receive_frame(world, type, flags, stream, next_bytes(world, len), (kvb_span){ 0 });
}

static void run_header(struct world *world)
{
    const uint8_t flags = next_byte(world);

    receive_frame(world, type_headers, flags, next_byte(world), good_header(), (kvb_span){ 0 });
}

static void run_message(struct world *world)
{
    const uint8_t flags = next_byte(world);
    const uint8_t stream = next_byte(world);
    const kvb_span message = next_bytes(world, next_byte(world));
    const uint8_t head[5] = { 0, 0, 0, 0, (uint8_t)message.len };

    receive_frame(world, type_data, flags, stream, (kvb_span){ head, sizeof head }, message);
}

static void run_answer(struct world *world)
{
    const uint8_t which = next_byte(world);
    const uint8_t status = next_byte(world);

    answer_one(world, which, status, next_byte(world));
}

static void run_time(struct world *world)
{
    pass_time(world, next_byte(world));
}

static void run_goaway(struct world *world)
{
    kvb_grpc_session_end(world->at->session);
}

static void run_send(struct world *world)
{
    send_out(world, world->at);
}

static void run_choice(struct world *world)
{
    world->at = &world->connections[next_byte(world) % connections];
}

/* Not while its requests wait: the next connection would have the same address. */
static void run_end(struct world *world)
{
    for (size_t i = 0; i < world->waiting_count; i++) {
        if (world->waiting[i].connection == world->at) {
            return;
        }
    }
    close_connection(world, world->at);
    open_connection(world, world->at);
}

/* In the order of the table above. */
static void (*const operations[])(struct world *world) = {
    run_bytes, run_hello,  run_frame, run_header, run_message, run_answer,
    run_time,  run_goaway, run_send,  run_choice, run_end,
};

static void run_operation(struct world *world, uint8_t operation)
{
    operations[operation % (sizeof operations / sizeof operations[0])](world);
}

static const struct kvb_grpc_method methods[] = {
    { .path = "/kv_indexer.v1.KVIndexer/MatchExternalKvPrefix",
      .kind = KVB_GRPC_UNARY,
      .max_message_bytes = max_message },
};

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct world *world = calloc(1, sizeof *world);

    check(world != NULL);
    world->gate = (struct kvb_grpc_gate){ .methods = methods,
                                          .method_count = 1,
                                          .max_streams = kvb_grpc_max_streams,
                                          .max_all_streams = SIZE_MAX,
                                          .max_under_way = max_under_way,
                                          .max_held_bytes = max_held,
                                          .on_request = on_request,
                                          .on_gone = on_gone,
                                          .on_status = on_status,
                                          .context = world };
    world->now_ns = KVB_NS_PER_S;
    world->data = data;
    world->end = data + size;
    world->at = world->connections;
    for (size_t i = 0; i < connections; i++) {
        open_connection(world, &world->connections[i]);
    }
    while (world->data < world->end) {
        run_operation(world, next_byte(world));
        check_ceilings(world);
    }
    for (size_t i = 0; i < connections; i++) {
        close_connection(world, &world->connections[i]);
    }
    check(world->gate.held_bytes == 0);
    free(world);
    return 0;
}
