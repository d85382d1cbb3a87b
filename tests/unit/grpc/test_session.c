#include "kvb_test.h"

#include "core/clock.h"
#include "core/own.h"
#include "fail_alloc.h"
#include "grpc/session.h"

#include <nghttp2/nghttp2.h>
#include <stdlib.h>
#include <string.h>

#define TALK "/x.Y/Talk"
#define PATH "/kv_indexer.v1.KVIndexer/MatchExternalKvPrefix"

/* A session and a client of nghttp2, which exchange bytes in memory. */

enum { max_calls = 2048, message_max = 8 << 20, under_way_max = 32, none = -2 };

static const struct kvb_grpc_method methods[] = {
    { .path = PATH, .kind = KVB_GRPC_UNARY, .max_message_bytes = message_max },
    { .path = TALK, .kind = KVB_GRPC_STREAM, .max_message_bytes = message_max },
};

struct call { /* as the client sees it */
    const uint8_t *body;
    size_t len, sent, piece; /* piece: bytes of one DATA frame; 0: as many as are allowed */
    bool is_open_ended;      /* its end is not sent */
    int http_status, grpc_status;
    uint8_t answer[64];
    size_t answer_len;
    bool is_closed;
    uint32_t code;
};

struct scene {
    struct kvb_grpc_gate gate;
    struct kvb_grpc_session *session;
    nghttp2_session *client;
    uint64_t now_ns;
    struct call calls[max_calls]; /* by stream id / 2 */
    enum kvb_grpc_status at_once; /* what on_request returns */
    int32_t requests[max_calls];
    size_t request_count;
    size_t request_bytes; /* of the newest message */
    uint64_t deadline_ns; /* of the newest */
    size_t gone_count;
    size_t status_count[KVB_GRPC_STATUS_COUNT + 1]; /* KVB_GRPC_LATER first */
    uint32_t goaway_code;
    size_t goaways;
    kvb_status received;
};

static enum kvb_grpc_status on_request(
    void *context, void *connection, int32_t stream, size_t method, kvb_span message,
    uint64_t deadline_ns)
{
    struct scene *scene = context;

    assert_int_equal(method, 0);

    assert_ptr_equal(connection, scene);
    scene->request_bytes = message.len;
    scene->deadline_ns = deadline_ns;
    scene->requests[scene->request_count++] = stream;
    return scene->at_once;
}

static void on_gone(void *context, void *connection, int32_t stream)
{
    struct scene *scene = context;

    assert_ptr_equal(connection, scene);
    assert_true(stream > 0);
    scene->gone_count++;
}

static void on_status(void *context, enum kvb_grpc_status status)
{
    struct scene *scene = context;

    scene->status_count[status + 1]++;
}

static struct call *call_of(struct scene *scene, int32_t stream)
{
    return &scene->calls[stream / 2];
}

static int client_header(
    nghttp2_session *client, const nghttp2_frame *frame, const uint8_t *name, size_t name_len,
    const uint8_t *value, size_t value_len, uint8_t flags, void *context)
{
    struct call *call = call_of(context, frame->hd.stream_id);
    char text[16] = "";

    (void)client;
    (void)flags;
    memcpy(text, value, value_len < sizeof text ? value_len : sizeof text - 1);
    if (name_len == 7 && memcmp(name, ":status", 7) == 0) {
        call->http_status = (int)strtol(text, NULL, 10);
    } else if (name_len == 11 && memcmp(name, "grpc-status", 11) == 0) {
        call->grpc_status = (int)strtol(text, NULL, 10);
    }
    return 0;
}

static int client_data(
    nghttp2_session *client, uint8_t flags, int32_t stream, const uint8_t *bytes, size_t len,
    void *context)
{
    struct call *call = call_of(context, stream);

    (void)client;
    (void)flags;
    if (call->answer_len + len <= sizeof call->answer) {
        memcpy(call->answer + call->answer_len, bytes, len);
    }
    call->answer_len += len;
    return 0;
}

static int client_close(nghttp2_session *client, int32_t stream, uint32_t code, void *context)
{
    struct call *call = call_of(context, stream);

    (void)client;
    call->is_closed = true;
    call->code = code;
    return 0;
}

static int client_frame(nghttp2_session *client, const nghttp2_frame *frame, void *context)
{
    struct scene *scene = context;

    (void)client;
    if (frame->hd.type == NGHTTP2_GOAWAY) {
        scene->goaway_code = frame->goaway.error_code;
        scene->goaways++;
    }
    return 0;
}

static void make_client(struct scene *scene)
{
    nghttp2_session_callbacks *callbacks = NULL;
    nghttp2_option *option = NULL;

    assert_int_equal(nghttp2_session_callbacks_new(&callbacks), 0);
    assert_int_equal(nghttp2_option_new(&option), 0);
    nghttp2_session_callbacks_set_on_header_callback(callbacks, client_header);
    nghttp2_session_callbacks_set_on_data_chunk_recv_callback(callbacks, client_data);
    nghttp2_session_callbacks_set_on_stream_close_callback(callbacks, client_close);
    nghttp2_session_callbacks_set_on_frame_recv_callback(callbacks, client_frame);
    nghttp2_option_set_peer_max_concurrent_streams(option, max_calls);
    assert_int_equal(nghttp2_session_client_new2(&scene->client, callbacks, scene, option), 0);
    assert_int_equal(nghttp2_submit_settings(scene->client, NGHTTP2_FLAG_NONE, NULL, 0), 0);
    nghttp2_option_del(option);
    nghttp2_session_callbacks_del(callbacks);
}

static struct scene *new_scene(void)
{
    struct scene *scene = calloc(1, sizeof *scene);

    assert_non_null(scene);
    scene->gate = (struct kvb_grpc_gate){ .methods = methods,
                                          .method_count = KVB_COUNT_OF(methods),
                                          .max_streams = kvb_grpc_max_streams,
                                          .max_all_streams = SIZE_MAX,
                                          .max_under_way = under_way_max,
                                          .max_held_bytes = 64 << 20,
                                          .on_request = on_request,
                                          .on_gone = on_gone,
                                          .on_status = on_status,
                                          .context = scene };
    scene->at_once = KVB_GRPC_LATER;
    scene->now_ns = 100 * KVB_NS_PER_S;
    make_client(scene);
    assert_ok(kvb_grpc_session_new(&scene->gate, scene, scene->now_ns, &scene->session));
    return scene;
}

static void drop_scene(struct scene *scene)
{
    kvb_grpc_session_free(scene->session);
    nghttp2_session_del(scene->client);
    assert_int_equal(scene->gate.held_bytes, 0);
    free(scene);
}

/* The session's bytes to the client. */
static bool to_client(struct scene *scene)
{
    struct kvb_buf out;

    kvb_buf_init(&out, 1 << 20);
    const kvb_status status = kvb_grpc_session_write(scene->session, &out, 64 << 10, scene->now_ns);
    if (out.len > 0) {
        assert_int_equal(nghttp2_session_mem_recv(scene->client, out.data, out.len), out.len);
    }
    const bool had_any = status == KVB_OK && out.len > 0;
    kvb_buf_done(&out);
    return had_any;
}

/* The client's bytes to the session, in pieces of at most `most` bytes. */
static bool to_session(struct scene *scene, size_t most)
{
    const uint8_t *bytes = NULL;
    const ssize_t len = nghttp2_session_mem_send(scene->client, &bytes);

    for (ssize_t at = 0; at < len && scene->received == KVB_OK;) {
        const size_t left = (size_t)(len - at);
        const size_t piece = left < most ? left : most;
        scene->received = kvb_grpc_session_receive(
            scene->session, (kvb_span){ bytes + at, piece }, scene->now_ns);
        at += (ssize_t)piece;
    }
    return len > 0;
}

static void pump_pieces(struct scene *scene, size_t most)
{
    bool had_any = true;

    while (had_any) {
        had_any = to_session(scene, most);
        had_any = to_client(scene) || had_any;
    }
}

static void pump(struct scene *scene)
{
    pump_pieces(scene, SIZE_MAX);
}

static ssize_t read_body(
    nghttp2_session *client, int32_t stream, uint8_t *out, size_t len, uint32_t *flags,
    nghttp2_data_source *source, void *context)
{
    struct call *call = source->ptr;
    size_t part = call->len - call->sent;

    (void)client;
    (void)stream;
    (void)context;
    part = part < len ? part : len;
    part = call->piece > 0 && part > call->piece ? call->piece : part;
    if (part == 0 && call->is_open_ended) {
        return NGHTTP2_ERR_DEFERRED;
    }
    memcpy(out, call->body + call->sent, part);
    call->sent += part;
    if (call->sent == call->len && !call->is_open_ended) {
        *flags |= NGHTTP2_DATA_FLAG_EOF;
    }
    return (ssize_t)part;
}

static uint8_t *bytes_of_text(const char *text)
{
    const union {
        const char *text;
        uint8_t *bytes;
    } same = { .text = text };

    return same.bytes;
}

static nghttp2_nv nv(const char *name, const char *value)
{
    return (nghttp2_nv){ bytes_of_text(name), bytes_of_text(value), strlen(name), strlen(value),
                         NGHTTP2_NV_FLAG_NONE };
}

struct request {
    const char *method, *path, *type, *timeout, *more; /* NULL: the usual value, or none */
    const void *body;
    size_t len, piece;
    bool is_open_ended;
};

static int32_t send_request(struct scene *scene, const struct request *request)
{
    nghttp2_nv headers[8] = {
        nv(":method", request->method ? request->method : "POST"),
        nv(":scheme", "http"),
        nv(":path", request->path ? request->path : PATH),
        nv(":authority", "index"),
        nv("te", "trailers"),
        nv("content-type", request->type ? request->type : "application/grpc"),
    };
    size_t count = 6;
    nghttp2_data_provider body = { .read_callback = read_body };

    if (request->timeout) {
        headers[count++] = nv("grpc-timeout", request->timeout);
    }
    if (request->more) {
        headers[count++] = nv("x-more", request->more);
    }
    const int32_t next = (int32_t)nghttp2_session_get_next_stream_id(scene->client);
    struct call *call = call_of(scene, next);
    *call = (struct call){ .body = request->body,
                           .len = request->len,
                           .piece = request->piece,
                           .is_open_ended = request->is_open_ended,
                           .grpc_status = none };
    body.source.ptr = call;
    assert_int_equal(
        nghttp2_submit_request(scene->client, NULL, headers, count, &body, NULL), next);
    return next;
}

static const uint8_t good[] = { 0, 0, 0, 0, 3, 'a', 'b', 'c' };

static int32_t send_good(struct scene *scene)
{
    return send_request(scene, &(struct request){ .body = good, .len = sizeof good });
}

static void answer(struct scene *scene, int32_t stream, const char *text)
{
    kvb_grpc_session_answer(scene->session, stream, KVB_GRPC_OK, kvb_span_of(text), scene->now_ns);
    scene->gate.under_way--;
}

/* ---- Answers ---- */

static void answers_with_a_message_and_trailers(void **state)
{
    struct scene *scene = new_scene();
    const int32_t stream = send_good(scene);

    (void)state;
    pump(scene);
    assert_int_equal(scene->request_count, 1);
    assert_int_equal(scene->request_bytes, 3);
    assert_true(scene->deadline_ns == UINT64_MAX);
    assert_int_equal(scene->gate.under_way, 1);
    answer(scene, stream, "xyz");
    pump(scene);
    const struct call *call = call_of(scene, stream);
    assert_int_equal(call->http_status, 200);
    assert_int_equal(call->grpc_status, 0);
    assert_int_equal(call->answer_len, 8);
    assert_memory_equal(call->answer, "\0\0\0\0\3xyz", 8);
    assert_true(call->is_closed);
    assert_int_equal(call->code, NGHTTP2_NO_ERROR);
    assert_int_equal(kvb_grpc_session_streams(scene->session), 0);
    assert_int_equal(scene->status_count[KVB_GRPC_OK + 1], 1);
    assert_int_equal(scene->gone_count, 0);
    drop_scene(scene);
}

static void answers_in_any_order(void **state)
{
    struct scene *scene = new_scene();
    const int32_t first = send_good(scene);
    const int32_t second = send_good(scene);

    (void)state;
    pump(scene);
    answer(scene, second, "2");
    pump(scene);
    assert_int_equal(call_of(scene, second)->grpc_status, 0);
    assert_false(call_of(scene, first)->is_closed);
    answer(scene, first, "1");
    answer(scene, first, "again"); /* skipped */
    scene->gate.under_way++;
    pump(scene);
    assert_int_equal(call_of(scene, first)->answer_len, 6);
    assert_memory_equal(
        call_of(scene, first)->answer,
        "\0\0\0\0\1"
        "1",
        6);
    drop_scene(scene);
}

/* ---- Refusals ---- */

static void refuses_with_the_status_that_a_router_understands(void **state)
{
    static const uint8_t compressed[] = { 1, 0, 0, 0, 0 };
    static const uint8_t odd_flag[] = { 2, 0, 0, 0, 0 };
    static const uint8_t too_long[] = { 0, 0, 0x80, 0, 1 };
    static const uint8_t two[] = { 0, 0, 0, 0, 1, 'a', 0, 0, 0, 0, 0 };
    /* clang-format off */
    static const struct {
        struct request request;
        int http, grpc;
    } rows[] = {
        { { .body = good, .len = 5, .path = "/kv_indexer.v1.KVIndexer/ApplyExternalKvBatch" }, 200, 12 },
        { { .body = good, .len = sizeof good, .path = PATH "x" },               200, 12 },
        { { .body = compressed, .len = sizeof compressed },                     200, 12 },
        { { .body = odd_flag, .len = sizeof odd_flag },                         200, 3 },
        { { .body = too_long, .len = sizeof too_long },                         200, 11 },
        { { .body = good, .len = 0 },                                           200, 3 },
        { { .body = good, .len = 4 },                                           200, 3 },
        { { .body = good, .len = 6 },                                           200, 3 },
        { { .body = two, .len = sizeof two },                                   200, 3 },
        { { .body = good, .len = sizeof good, .timeout = "0m" },                200, 4 },
        { { .body = good, .len = sizeof good, .timeout = "soon" },              200, 3 },
        { { .body = good, .len = sizeof good, .method = "GET" },                405, none },
        { { .body = good, .len = sizeof good, .type = "application/json" },     415, none },
        { { .body = good, .len = sizeof good, .type = "application/grpcx" },    415, none },
    };
    /* clang-format on */

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct scene *scene = new_scene();
        const int32_t stream = send_request(scene, &rows[i].request);
        pump(scene);
        assert_int_equal(call_of(scene, stream)->http_status, rows[i].http);
        assert_int_equal(call_of(scene, stream)->grpc_status, rows[i].grpc);
        assert_true(call_of(scene, stream)->is_closed);
        assert_int_equal(scene->request_count, 0);
        assert_int_equal(scene->status_count[rows[i].grpc == none ? 0 : rows[i].grpc + 1], 1);
        /* the connection goes on */
        const int32_t next = send_good(scene);
        pump(scene);
        answer(scene, next, "");
        pump(scene);
        assert_int_equal(call_of(scene, next)->grpc_status, 0);
        drop_scene(scene);
    }
}

static void takes_each_kind_of_grpc(void **state)
{
    static const char *const types[] = { "application/grpc+proto", "application/grpc;x=y" };
    struct scene *scene = new_scene();

    (void)state;
    for (size_t i = 0; i < 2; i++) {
        send_request(
            scene, &(struct request){ .body = good, .len = sizeof good, .type = types[i] });
    }
    pump(scene);
    assert_int_equal(scene->request_count, 2);
    drop_scene(scene);
}

/* A request is refused as soon as the reason is known, without waiting for the rest of it. */
static void refuses_before_the_body_is_there(void **state)
{
    static const uint8_t too_long[] = { 0, 0xff, 0xff, 0xff, 0xff, 'a' };
    struct scene *scene = new_scene();
    const int32_t stream =
        send_request(scene, &(struct request){ .body = too_long, .len = 6, .is_open_ended = true });

    (void)state;
    pump(scene);
    assert_int_equal(call_of(scene, stream)->grpc_status, 11);
    assert_true(call_of(scene, stream)->is_closed);
    assert_int_equal(call_of(scene, stream)->code, NGHTTP2_NO_ERROR);
    assert_int_equal(kvb_grpc_session_streams(scene->session), 0);
    drop_scene(scene);
}

static void a_deadline_counts_from_the_header(void **state)
{
    struct scene *scene = new_scene();
    const int32_t stream = send_request(
        scene,
        &(struct request){ .body = good, .len = 5, .timeout = "100000u", .is_open_ended = true });
    const uint64_t began_ns = scene->now_ns;

    (void)state;
    pump(scene);
    struct call *call = call_of(scene, stream);
    call->body = good;
    call->len = sizeof good;
    call->is_open_ended = false;
    scene->now_ns += 99 * KVB_NS_PER_MS;
    assert_int_equal(nghttp2_session_resume_data(scene->client, stream), 0);
    pump(scene);
    assert_int_equal(scene->request_count, 1);
    assert_true(scene->deadline_ns == began_ns + 100 * KVB_NS_PER_MS);
    /* and a late one */
    const int32_t late = send_request(
        scene,
        &(struct request){ .body = good, .len = 5, .timeout = "100m", .is_open_ended = true });
    pump(scene);
    call = call_of(scene, late);
    call->len = sizeof good;
    call->is_open_ended = false;
    scene->now_ns += 100 * KVB_NS_PER_MS;
    assert_int_equal(nghttp2_session_resume_data(scene->client, late), 0);
    pump(scene);
    assert_int_equal(call->grpc_status, 4);
    assert_int_equal(scene->request_count, 1);
    drop_scene(scene);
}

static void an_answer_at_once_takes_no_place(void **state)
{
    struct scene *scene = new_scene();

    (void)state;
    scene->at_once = KVB_GRPC_UNAVAILABLE;
    for (size_t i = 0; i < (size_t)2 * under_way_max; i++) {
        const int32_t stream = send_good(scene);
        pump(scene);
        assert_int_equal(call_of(scene, stream)->grpc_status, 14);
    }
    assert_int_equal(scene->gate.under_way, 0);
    drop_scene(scene);
}

/* ---- Ceilings ---- */

/* A reset does not free the place of a request, because its look-up still runs. */
static void a_reset_request_keeps_its_place(void **state)
{
    struct scene *scene = new_scene();

    (void)state;
    for (size_t i = 0; i < 100; i++) {
        const int32_t stream = send_good(scene);
        pump(scene);
        assert_int_equal(
            nghttp2_submit_rst_stream(scene->client, NGHTTP2_FLAG_NONE, stream, NGHTTP2_CANCEL), 0);
        pump(scene);
    }
    assert_int_equal(scene->request_count, under_way_max);
    assert_int_equal(scene->gone_count, under_way_max);
    assert_int_equal(scene->gate.under_way, under_way_max);
    assert_int_equal(scene->status_count[0], under_way_max);
    assert_int_equal(kvb_grpc_session_streams(scene->session), 0);
    drop_scene(scene);
}

static void bodies_take_no_more_memory_than_there_is(void **state)
{
    enum { each = 1000 };
    struct scene *scene = new_scene();
    uint8_t body[each + 5] = { 0, 0, 0, each >> 8, each & 0xff };
    int32_t streams[4];

    (void)state;
    scene->gate.max_held_bytes = (size_t)8 * each;
    scene->gate.held_bytes = (size_t)2 * each; /* other connections' */
    for (size_t i = 0; i < 4; i++) {
        streams[i] = send_request(
            scene, &(struct request){ .body = body, .len = sizeof body, .is_open_ended = true });
        pump(scene);
        assert_true(scene->gate.held_bytes <= (size_t)5 * each);
    }
    for (size_t i = 0; i < 3; i++) { /* holds 3, leaves 3 */
        assert_int_equal(call_of(scene, streams[i])->grpc_status, none);
    }
    assert_int_equal(call_of(scene, streams[3])->grpc_status, 8);
    assert_int_equal(scene->gate.held_bytes, 5 * each);
    scene->gate.held_bytes -= (size_t)2 * each;
    drop_scene(scene);
}

static void an_answer_without_memory_is_a_status(void **state)
{
    struct scene *scene = new_scene();
    const int32_t stream = send_good(scene);

    (void)state;
    pump(scene);
    scene->gate.max_held_bytes = 10;
    answer(scene, stream, "more than ten bytes");
    pump(scene);
    assert_int_equal(call_of(scene, stream)->grpc_status, 8);
    assert_int_equal(call_of(scene, stream)->answer_len, 0);
    drop_scene(scene);
}

static void a_header_has_an_end(void **state)
{
    struct scene *scene = new_scene();
    char *more = calloc(1, kvb_grpc_max_header_bytes + 1);

    (void)state;
    assert_non_null(more);
    memset(more, 'a', kvb_grpc_max_header_bytes);
    const int32_t stream =
        send_request(scene, &(struct request){ .body = good, .len = sizeof good, .more = more });
    pump(scene);
    assert_int_equal(call_of(scene, stream)->code, NGHTTP2_ENHANCE_YOUR_CALM);
    const int32_t next = send_good(scene);
    pump(scene);
    assert_int_equal(scene->request_count, 1);
    assert_int_equal(scene->requests[0], next);
    drop_scene(scene);
    free(more);
}

static void rapid_resets_end_the_connection_calmly(void **state)
{
    struct scene *scene = new_scene();
    size_t resets = 0;

    (void)state;
    const int32_t under_way = send_good(scene);
    while (!kvb_grpc_session_is_finished(scene->session) && resets < max_calls - 4) {
        const int32_t stream =
            send_request(scene, &(struct request){ .body = good, .len = 1, .is_open_ended = true });
        pump(scene);
        (void)nghttp2_submit_rst_stream(scene->client, NGHTTP2_FLAG_NONE, stream, NGHTTP2_CANCEL);
        pump(scene);
        resets++;
    }
    assert_int_equal(resets, kvb_grpc_reset_burst + 1);
    assert_int_equal(scene->goaway_code, NGHTTP2_ENHANCE_YOUR_CALM);
    assert_true(kvb_grpc_session_has_failed(scene->session));
    assert_true(call_of(scene, under_way)->is_closed); /* by the GOAWAY: it is above its last */
    drop_scene(scene);
}

/* 32 requests whose deadline of 100 ms passes again and again. */
static void deadlines_that_pass_are_no_rapid_resets(void **state)
{
    struct scene *scene = new_scene();

    (void)state;
    for (size_t i = 0; i < max_calls - 2; i++) {
        const int32_t stream =
            send_request(scene, &(struct request){ .body = good, .len = 1, .is_open_ended = true });
        pump(scene);
        (void)nghttp2_submit_rst_stream(scene->client, NGHTTP2_FLAG_NONE, stream, NGHTTP2_CANCEL);
        pump(scene);
        scene->now_ns += 100 * KVB_NS_PER_MS / 32;
        assert_ok(scene->received);
    }
    drop_scene(scene);
}

/* ---- Time ---- */

static void a_body_that_does_not_come_is_given_up(void **state)
{
    struct scene *scene = new_scene();
    const int32_t stream =
        send_request(scene, &(struct request){ .body = good, .len = 6, .is_open_ended = true });

    (void)state;
    pump(scene);
    scene->now_ns += kvb_grpc_grace_s * KVB_NS_PER_S - 1;
    assert_ok(kvb_grpc_session_expire(scene->session, scene->now_ns));
    pump(scene);
    assert_false(call_of(scene, stream)->is_closed);
    scene->now_ns += 1;
    assert_ok(kvb_grpc_session_expire(scene->session, scene->now_ns));
    pump(scene);
    assert_true(call_of(scene, stream)->is_closed);
    assert_int_equal(call_of(scene, stream)->code, NGHTTP2_CANCEL);
    assert_int_equal(scene->status_count[0], 1);
    drop_scene(scene);
}

static void a_client_that_sends_gets_more_time(void **state)
{
    enum { sent = 2 * kvb_grpc_bytes_a_second + 5 };
    struct scene *scene = new_scene();
    uint8_t *body = calloc(1, sent);

    (void)state;
    assert_non_null(body);
    body[1] = 0;
    body[2] = 0x40; /* 4 MiB are announced */
    const int32_t stream =
        send_request(scene, &(struct request){ .body = body, .len = sent, .is_open_ended = true });
    pump(scene);
    scene->now_ns += (kvb_grpc_grace_s + 2) * KVB_NS_PER_S - 1;
    assert_ok(kvb_grpc_session_expire(scene->session, scene->now_ns));
    pump(scene);
    assert_false(call_of(scene, stream)->is_closed);
    scene->now_ns += 1;
    assert_ok(kvb_grpc_session_expire(scene->session, scene->now_ns));
    pump(scene);
    assert_true(call_of(scene, stream)->is_closed);
    drop_scene(scene);
    free(body);
}

static void an_answer_that_nobody_reads_is_given_up(void **state)
{
    static const nghttp2_settings_entry no_window[] = { { NGHTTP2_SETTINGS_INITIAL_WINDOW_SIZE,
                                                          0 } };
    struct scene *scene = new_scene();

    (void)state;
    assert_int_equal(nghttp2_submit_settings(scene->client, NGHTTP2_FLAG_NONE, no_window, 1), 0);
    const int32_t stream = send_good(scene);
    pump(scene);
    answer(scene, stream, "xyz");
    pump(scene);
    assert_int_equal(call_of(scene, stream)->http_status, 200);
    assert_false(call_of(scene, stream)->is_closed);
    assert_true(scene->gate.held_bytes > 0);
    scene->now_ns += kvb_grpc_grace_s * KVB_NS_PER_S;
    assert_ok(kvb_grpc_session_expire(scene->session, scene->now_ns));
    pump(scene);
    assert_int_equal(call_of(scene, stream)->code, NGHTTP2_CANCEL);
    assert_int_equal(scene->gate.held_bytes, 0);
    drop_scene(scene);
}

static void a_request_under_way_is_waited_for(void **state)
{
    struct scene *scene = new_scene();
    const int32_t stream = send_good(scene);

    (void)state;
    pump(scene);
    scene->now_ns += 1000 * KVB_NS_PER_S;
    assert_ok(kvb_grpc_session_expire(scene->session, scene->now_ns));
    pump(scene);
    assert_false(call_of(scene, stream)->is_closed);
    drop_scene(scene);
}

/* HEADERS without END_HEADERS: nothing else may follow on this connection. */
static void a_header_that_does_not_end_closes_the_connection(void **state)
{
    static const uint8_t begun[] = { 0, 0, 1, NGHTTP2_HEADERS, 0, 0, 0, 0, 1, 0x83 };
    struct scene *scene = new_scene();

    (void)state;
    pump(scene);
    assert_ok(
        kvb_grpc_session_receive(scene->session, (kvb_span){ begun, sizeof begun }, scene->now_ns));
    scene->now_ns += kvb_grpc_grace_s * KVB_NS_PER_S;
    assert_int_equal(kvb_grpc_session_expire(scene->session, scene->now_ns), KVB_CLOSED);
    drop_scene(scene);
}

/* ---- The end ---- */

/* The code of the GOAWAY becomes UNAVAILABLE in sgl-router's client, also for requests under way
 * and for those that cross it. */
static void ends_a_connection_with_all_its_requests(void **state)
{
    struct scene *scene = new_scene();
    const int32_t answered = send_good(scene);
    const int32_t under_way = send_good(scene);
    const uint8_t *bytes = NULL;

    (void)state;
    pump(scene);
    answer(scene, answered, "in time");
    while (to_client(scene)) {
    }
    const int32_t crossing = send_good(scene);
    assert_true(nghttp2_session_mem_send(scene->client, &bytes) > 0); /* on its way */
    kvb_grpc_session_end(scene->session);
    while (to_client(scene)) {
    }
    assert_int_equal(scene->goaway_code, NGHTTP2_REFUSED_STREAM);
    assert_int_equal(call_of(scene, answered)->grpc_status, 0);
    assert_true(call_of(scene, under_way)->is_closed);
    assert_true(call_of(scene, crossing)->is_closed);
    assert_true(kvb_grpc_session_is_finished(scene->session));
    assert_false(kvb_grpc_session_has_failed(scene->session));
    drop_scene(scene);
}

static void the_end_of_a_connection_tells_of_each_request(void **state)
{
    struct scene *scene = new_scene();

    (void)state;
    send_good(scene);
    send_good(scene);
    pump(scene);
    kvb_grpc_session_free(scene->session);
    scene->session = NULL;
    assert_int_equal(scene->gone_count, 2);
    assert_int_equal(scene->status_count[0], 2);
    drop_scene(scene);
}

/* ---- grpc-timeout ---- */

static void reads_timeouts(void **state)
{
    static const struct {
        const char *text;
        uint64_t ns; /* 0: refused */
    } rows[] = {
        { "100000u", 100000000 },
        { "100m", 100000000 },
        { "1S", 1000000000 },
        { "2M", UINT64_C(120000000000) },
        { "1H", UINT64_C(3600000000000) },
        { "7n", 7 },
        { "99999999H", UINT64_MAX },
        { "99999999S", UINT64_C(99999999000000000) },
        { "", 0 },
        { "u", 0 },
        { "100", 0 },
        { "100x", 0 },
        { "123456789u", 0 },
        { "-1u", 0 },
        { " 1u", 0 },
    };
    uint64_t ns = 0;

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const kvb_status status = kvb_grpc_timeout_read(kvb_span_of(rows[i].text), &ns);
        assert_int_equal(status, rows[i].ns > 0 ? KVB_OK : KVB_BAD_INPUT);
        assert_true(status != KVB_OK || ns == rows[i].ns);
    }
    assert_ok(kvb_grpc_timeout_read(kvb_span_of("0m"), &ns));
    assert_true(ns == 0);
}

/* ---- Torture ---- */

/* The client's bytes of a connection with one request, recorded while no allocation failed. */
struct recording {
    uint8_t bytes[512];
    size_t len;
};

static void record_client(struct recording *recording)
{
    struct scene *scene = new_scene();
    const uint8_t *bytes = NULL;

    recording->len = 0;
    send_good(scene);
    for (ssize_t len = 0; (len = nghttp2_session_mem_send(scene->client, &bytes)) > 0;) {
        assert_true(recording->len + (size_t)len <= sizeof recording->bytes);
        memcpy(recording->bytes + recording->len, bytes, (size_t)len);
        recording->len += (size_t)len;
    }
    drop_scene(scene);
}

/* True: the exchange was complete. */
static bool try_exchange(struct scene *scene, const struct recording *recording)
{
    struct kvb_buf out;
    bool is_fine = false;

    kvb_buf_init(&out, 4096);
    if (kvb_grpc_session_new(&scene->gate, scene, scene->now_ns, &scene->session) == KVB_OK &&
        kvb_grpc_session_receive(
            scene->session, (kvb_span){ recording->bytes, recording->len }, scene->now_ns) ==
            KVB_OK &&
        scene->request_count == 1) {
        kvb_grpc_session_answer(
            scene->session, scene->requests[0], KVB_GRPC_OK, kvb_span_of("xyz"), scene->now_ns);
        is_fine = kvb_grpc_session_write(scene->session, &out, 4096, scene->now_ns) == KVB_OK;
    }
    kvb_grpc_session_free(scene->session);
    scene->session = NULL;
    kvb_buf_done(&out);
    return is_fine && scene->status_count[KVB_GRPC_OK + 1] == 1;
}

static void survives_each_failing_allocation(void **state)
{
    struct recording recording;
    bool is_fine = false;
    long allocations = 0;

    (void)state;
    record_client(&recording);
    for (; !is_fine; allocations++) {
        struct scene *scene = new_scene();
        kvb_grpc_session_free(scene->session);
        scene->session = NULL;
        fail_alloc_after(allocations);
        is_fine = try_exchange(scene, &recording);
        fail_alloc_after(-1);
        assert_int_equal(scene->gate.held_bytes, 0);
        drop_scene(scene);
        assert_true(allocations < 1000);
    }
    assert_true(allocations > 10);
}

/* ---- Messages both ways ---- */

struct talk {
    size_t opened, messages, ended, closed, bytes;
    bool finishes; /* after the first message */
};

static void talk_open(void *context, struct kvb_grpc_stream *stream)
{
    struct talk *talk = context;

    kvb_grpc_stream_set_owner(stream, talk);
    talk->opened++;
}

/* The same message goes back, in two parts, without a copy. */
static void talk_message(void *context, struct kvb_grpc_stream *stream, struct kvb_buf *message)
{
    struct talk *talk = context;
    const size_t half = message->len / 2;
    const kvb_span first = { message->data, half };
    const kvb_span second = { message->data + half, message->len - half };

    assert_ptr_equal(kvb_grpc_stream_owner(stream), talk);
    talk->messages++;
    talk->bytes += message->len;
    if (message->len == 0) {
        assert_ok(kvb_grpc_stream_send(stream, kvb_span_of("p"), (kvb_span){ 0 }, NULL));
    } else {
        assert_ok(kvb_grpc_stream_send(stream, kvb_span_of("p"), first, NULL));
        assert_ok(kvb_grpc_stream_send(stream, (kvb_span){ 0 }, second, message));
        assert_null(message->data); /* taken */
    }
    if (talk->finishes) {
        kvb_grpc_stream_finish(stream, KVB_GRPC_OK);
        assert_int_equal(
            kvb_grpc_stream_send(stream, (kvb_span){ 0 }, (kvb_span){ 0 }, NULL), KVB_CLOSED);
    }
}

static void talk_end(void *context, struct kvb_grpc_stream *stream)
{
    struct talk *talk = context;

    talk->ended++;
    kvb_grpc_stream_finish(stream, KVB_GRPC_OK);
}

static void talk_close(void *context, struct kvb_grpc_stream *stream)
{
    struct talk *talk = context;

    (void)stream;
    talk->closed++;
}

static struct scene *new_talk(struct talk *talk)
{
    struct scene *scene = new_scene();

    scene->gate.on_open = talk_open;
    scene->gate.on_message = talk_message;
    scene->gate.on_end = talk_end;
    scene->gate.on_close = talk_close;
    scene->gate.stream_context = talk;
    scene->gate.expects_resets = true;
    return scene;
}

/* A message of gRPC with so many bytes; the caller frees it. */
static uint8_t *long_message(size_t len)
{
    uint8_t *bytes = calloc(1, len + 5);

    assert_non_null(bytes);
    bytes[1] = (uint8_t)(len >> 24);
    bytes[2] = (uint8_t)(len >> 16);
    bytes[3] = (uint8_t)(len >> 8);
    bytes[4] = (uint8_t)len;
    return bytes;
}

/* The client's windows have 64 KiB, which is HTTP/2's default. */
static void long_messages_go_both_ways_through_small_windows(void **state)
{
    enum { len = 6 << 20 };
    struct talk talk = { 0 };
    struct scene *scene = new_talk(&talk);
    uint8_t *bytes = long_message(len);

    (void)state;
    const int32_t stream =
        send_request(scene, &(struct request){ .path = TALK, .body = bytes, .len = len + 5 });
    pump(scene);
    assert_int_equal(talk.messages, 1);
    assert_int_equal(talk.ended, 1);
    assert_int_equal(talk.closed, 1);
    assert_int_equal(call_of(scene, stream)->grpc_status, 0);
    /* Two messages, each with a head, and one byte of prefix. */
    assert_int_equal(call_of(scene, stream)->answer_len, len + 1 + 2 * 5);
    assert_int_equal(scene->gate.held_bytes, 0);
    assert_int_equal(scene->gate.stream_count, 0);
    free(bytes);
    drop_scene(scene);
}

static void several_messages_cut_anywhere_are_each_delivered(void **state)
{
    static const uint8_t three[] = { 0, 0, 0, 0, 2, 'a', 'b', 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 'c' };

    (void)state;
    for (size_t piece = 1; piece <= sizeof three; piece++) {
        struct talk talk = { 0 };
        struct scene *scene = new_talk(&talk);
        (void)send_request(
            scene,
            &(struct request){ .path = TALK, .body = three, .len = sizeof three, .piece = piece });
        pump_pieces(scene, 3);
        assert_int_equal(talk.messages, 3);
        assert_int_equal(talk.bytes, 3);
        assert_int_equal(talk.closed, 1);
        drop_scene(scene);
    }
}

/* As Envoy does with each stream.  Streams that never had a message are counted. */
static void resets_after_a_message_are_no_abuse(void **state)
{
    struct talk talk = { .finishes = false };
    struct scene *scene = new_talk(&talk);

    (void)state;
    for (int i = 0; i < kvb_grpc_reset_burst + 1; i++) {
        const int32_t stream = send_request(
            scene, &(struct request){
                       .path = TALK, .body = good, .len = sizeof good, .is_open_ended = true });
        pump(scene);
        assert_int_equal(
            nghttp2_submit_rst_stream(
                scene->client, NGHTTP2_FLAG_NONE, stream, NGHTTP2_INTERNAL_ERROR),
            0);
        pump(scene);
    }
    assert_int_equal(talk.messages, 1001);
    assert_int_equal(talk.closed, 1001);
    assert_int_equal(scene->goaways, 0);
    assert_false(kvb_grpc_session_has_failed(scene->session));
    drop_scene(scene);
}

static void a_finished_stream_takes_no_more(void **state)
{
    struct talk talk = { .finishes = true };
    struct scene *scene = new_talk(&talk);
    const int32_t stream = send_request(
        scene,
        &(struct request){ .path = TALK, .body = good, .len = sizeof good, .is_open_ended = true });

    (void)state;
    pump(scene);
    assert_int_equal(call_of(scene, stream)->grpc_status, 0);
    assert_true(call_of(scene, stream)->is_closed);
    assert_int_equal(talk.closed, 1);
    drop_scene(scene);
}

static void draining_lets_open_streams_go_on(void **state)
{
    struct talk talk = { 0 };
    struct scene *scene = new_talk(&talk);
    const int32_t stream = send_request(
        scene,
        &(struct request){ .path = TALK, .body = good, .len = sizeof good, .is_open_ended = true });

    (void)state;
    pump(scene);
    kvb_grpc_session_drain(scene->session);
    pump(scene);
    assert_int_equal(scene->goaways, 1);
    assert_int_equal(scene->goaway_code, NGHTTP2_NO_ERROR);
    assert_false(kvb_grpc_session_has_failed(scene->session));
    assert_false(call_of(scene, stream)->is_closed);
    assert_int_equal(talk.closed, 0);
    drop_scene(scene);
    assert_int_equal(talk.closed, 1);
}

SUITE(session)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(long_messages_go_both_ways_through_small_windows),
        cmocka_unit_test(several_messages_cut_anywhere_are_each_delivered),
        cmocka_unit_test(resets_after_a_message_are_no_abuse),
        cmocka_unit_test(a_finished_stream_takes_no_more),
        cmocka_unit_test(draining_lets_open_streams_go_on),
        cmocka_unit_test(answers_with_a_message_and_trailers),
        cmocka_unit_test(answers_in_any_order),
        cmocka_unit_test(refuses_with_the_status_that_a_router_understands),
        cmocka_unit_test(takes_each_kind_of_grpc),
        cmocka_unit_test(refuses_before_the_body_is_there),
        cmocka_unit_test(a_deadline_counts_from_the_header),
        cmocka_unit_test(an_answer_at_once_takes_no_place),
        cmocka_unit_test(a_reset_request_keeps_its_place),
        cmocka_unit_test(bodies_take_no_more_memory_than_there_is),
        cmocka_unit_test(an_answer_without_memory_is_a_status),
        cmocka_unit_test(a_header_has_an_end),
        cmocka_unit_test(rapid_resets_end_the_connection_calmly),
        cmocka_unit_test(deadlines_that_pass_are_no_rapid_resets),
        cmocka_unit_test(a_body_that_does_not_come_is_given_up),
        cmocka_unit_test(a_client_that_sends_gets_more_time),
        cmocka_unit_test(an_answer_that_nobody_reads_is_given_up),
        cmocka_unit_test(a_request_under_way_is_waited_for),
        cmocka_unit_test(a_header_that_does_not_end_closes_the_connection),
        cmocka_unit_test(ends_a_connection_with_all_its_requests),
        cmocka_unit_test(the_end_of_a_connection_tells_of_each_request),
        cmocka_unit_test(reads_timeouts),
        cmocka_unit_test(survives_each_failing_allocation),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
