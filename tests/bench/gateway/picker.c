/* An endpoint picker that picks at once: engines in turn, as soon as a body has ended.  What
 * kvaggregator's pick costs is what it takes longer than this one, behind the same Envoy.
 *
 *     bench_picker PORT ENDPOINT...
 *
 * Bodies FULL_DUPLEX_STREAMED, or none; answers that are shown go back the same way. */

#include "control/control.h"
#include "core/limits.h"
#include "core/own.h"
#include "grpc/server.h"
#include "wire/gateway/messages.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

enum { max_parts = 1024 }; /* of a body that waits for its end */

struct picker {
    char **endpoints;
    int endpoint_count;
    unsigned turn;
};

/* A request whose body is gathered. */
struct exchange {
    struct kvb_buf parts[max_parts]; /* owned; messages, as they came */
    kvb_span bodies[max_parts];      /* in them */
    size_t count;
    bool is_picked;
};

static void send_empty(struct kvb_grpc_stream *stream, enum kvb_ext_proc_part part)
{
    (void)!kvb_grpc_stream_send(
        stream, kvb_ext_proc_empty_answer(part), (kvb_span){ 0 }, &(struct kvb_buf){ 0 });
}

static void
send_pick(struct picker *picker, struct kvb_grpc_stream *stream, struct exchange *exchange)
{
    KVB_OWN(kvb_buf_done) struct kvb_buf answer = { 0 };
    const struct kvb_gateway_pick pick = {
        .answers = KVB_PART_REQUEST_HEADERS,
        .endpoints = picker->endpoints[picker->turn++ % (unsigned)picker->endpoint_count],
    };

    kvb_buf_init(&answer, kvb_max_gateway_answer_bytes);
    exchange->is_picked = true;
    if (kvb_ext_proc_pick_encode(&pick, &answer) != KVB_OK ||
        kvb_grpc_stream_send_copy(stream, kvb_buf_span(&answer)) != KVB_OK) {
        abort();
    }
}

/* Gives back the bytes of one message, and the message with the last of them. */
static void send_echo(
    struct kvb_grpc_stream *stream, enum kvb_ext_proc_part part, kvb_span body, bool is_last,
    struct kvb_buf *message)
{
    do {
        uint8_t head[kvb_ext_proc_echo_head_bytes];
        const size_t len =
            body.len < kvb_max_gateway_echo_bytes ? body.len : kvb_max_gateway_echo_bytes;
        const bool is_end = len == body.len;
        const size_t head_len = kvb_ext_proc_echo_head_write(part, len, is_last && is_end, head);
        struct kvb_buf none = { 0 };
        (void)!kvb_grpc_stream_send(
            stream, (kvb_span){ head, head_len }, (kvb_span){ body.data, len },
            is_end ? message : &none);
        body.data += len;
        body.len -= len;
    } while (body.len > 0);
}

static void take_body(
    struct picker *picker, struct kvb_grpc_stream *stream, struct exchange *exchange,
    const struct kvb_ext_proc_request *request, struct kvb_buf *message)
{
    if (exchange->is_picked || exchange->count == max_parts) {
        return; /* an end that came twice, or a body beyond what this program is for */
    }
    exchange->bodies[exchange->count] = request->body;
    exchange->parts[exchange->count] = *message;
    exchange->count++;
    *message = (struct kvb_buf){ 0 };
    if (!request->end_of_stream) {
        return;
    }
    send_pick(picker, stream, exchange);
    for (size_t i = 0; i < exchange->count; i++) {
        const bool is_last = i + 1 == exchange->count;
        if (exchange->bodies[i].len == 0 && !is_last) {
            kvb_grpc_stream_drop(stream, &exchange->parts[i]);
            continue;
        }
        send_echo(stream, KVB_PART_REQUEST_BODY, exchange->bodies[i], is_last, &exchange->parts[i]);
    }
    exchange->count = 0;
}

static void on_open(void *context, struct kvb_grpc_stream *stream)
{
    (void)context;
    kvb_grpc_stream_set_owner(stream, calloc(1, sizeof(struct exchange)));
}

static void on_message(void *context, struct kvb_grpc_stream *stream, struct kvb_buf *message)
{
    struct picker *picker = context;
    struct exchange *exchange = kvb_grpc_stream_owner(stream);
    struct kvb_ext_proc_request request;

    if (!exchange || kvb_ext_proc_request_decode(kvb_buf_span(message), &request) != KVB_OK) {
        abort();
    }
    if (request.is_observed) {
        return;
    }
    switch (request.part) {
    case KVB_PART_REQUEST_HEADERS:
        if (request.end_of_stream) {
            send_pick(picker, stream, exchange);
        }
        break;
    case KVB_PART_REQUEST_BODY:
        take_body(picker, stream, exchange, &request, message);
        break;
    case KVB_PART_RESPONSE_BODY:
        send_echo(stream, request.part, request.body, request.end_of_stream, message);
        break;
    case KVB_PART_RESPONSE_HEADERS:
    case KVB_PART_RESPONSE_TRAILERS:
        send_empty(stream, request.part);
        break;
    default:
        break;
    }
}

static void on_end(void *context, struct kvb_grpc_stream *stream)
{
    (void)context;
    kvb_grpc_stream_finish(stream, KVB_GRPC_OK);
}

static void on_close(void *context, struct kvb_grpc_stream *stream)
{
    struct exchange *exchange = kvb_grpc_stream_owner(stream);

    (void)context;
    for (size_t i = 0; exchange && i < exchange->count; i++) {
        kvb_grpc_stream_drop(stream, &exchange->parts[i]);
    }
    free(exchange);
}

static uint64_t on_turn(void *context, uint64_t now_ns)
{
    (void)context;
    (void)now_ns;
    return UINT64_MAX;
}

static void on_sent(void *context, const struct kvb_grpc_counts *counts)
{
    (void)context;
    (void)counts;
}

static void on_drain(void *context)
{
    (void)context;
}

static enum kvb_grpc_status
answer_health(void *context, struct kvb_grpc_call *call, size_t method, kvb_span message)
{
    const kvb_span serving = kvb_health_answer(true);

    (void)context;
    (void)method;
    (void)message;
    const kvb_status status =
        kvb_buf_append(kvb_grpc_call_message(call), serving.data, serving.len);
    kvb_grpc_call_finish(call, status == KVB_OK ? KVB_GRPC_OK : KVB_GRPC_UNAVAILABLE);
    return KVB_GRPC_LATER;
}

int main(int argc, char **argv)
{
    static const struct kvb_grpc_method methods[] = {
        { "/grpc.health.v1.Health/Check", KVB_GRPC_UNARY, 4096 },
        { "/envoy.service.ext_proc.v3.ExternalProcessor/Process", KVB_GRPC_STREAM, 33 << 20 },
    };
    static const struct kvb_grpc_talk talk = {
        .on_open = on_open,
        .on_message = on_message,
        .on_end = on_end,
        .on_close = on_close,
        .on_turn = on_turn,
        .on_sent = on_sent,
        .on_drain = on_drain,
        .max_all_streams = 16384,
        .max_streams = 4096,
        .max_held_bytes = 256 << 20,
    };
    struct picker picker = { .endpoints = argv + 2, .endpoint_count = argc - 2 };
    struct kvb_control *control = NULL;
    struct kvb_grpc *grpc = NULL;
    struct kvb_detail detail = { "" };
    struct sockaddr_storage address = { 0 };
    struct sockaddr_in loopback = { .sin_family = AF_INET,
                                    .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    sigset_t ends;
    int signal = 0;

    if (argc < 3) {
        (void)fprintf(stderr, "usage: bench_picker PORT ENDPOINT...\n");
        return 64;
    }
    loopback.sin_port = htons((uint16_t)strtoul(argv[1], NULL, 10));
    memcpy(&address, &loopback, sizeof loopback);
    (void)sigemptyset(&ends);
    (void)sigaddset(&ends, SIGTERM);
    (void)sigaddset(&ends, SIGINT);
    (void)pthread_sigmask(SIG_BLOCK, &ends, NULL); /* before the control thread */
    const struct kvb_grpc_options options = {
        .address = &address,
        .listen = argv[1],
        .listener = KVB_LISTENER_GRPC,
        .methods = methods,
        .method_count = KVB_COUNT_OF(methods),
        .talk = &talk,
        .max_under_way = 16,
        .handler = answer_health,
        .context = &picker,
    };
    if (kvb_control_new(&control) != KVB_OK || kvb_control_start(control) != KVB_OK) {
        return 1;
    }
    struct kvb_grpc_options with_control = options;
    with_control.control = control;
    if (kvb_grpc_start(&with_control, &grpc, &detail) != KVB_OK) {
        (void)fprintf(stderr, "%s\n", detail.text);
        return 1;
    }
    (void)sigwait(&ends, &signal);
    kvb_grpc_stop(grpc);
    kvb_control_stop(control);
    kvb_grpc_free(grpc);
    kvb_control_free(control);
    return 0;
}
