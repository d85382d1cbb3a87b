#include "core/clock.h"
#include "core/limits.h"
#include "core/own.h"
#include "fake_bus.h"
#include "fake_clock.h"
#include "fake_engine.h"
#include "fake_pages.h"
#include "ingest/http/fetch.h"
#include "kvbridge/bridge.h"
#include "kvbridge/ingest.h"
#include "kvbridge/membership.h"
#include "kvbridge/parts.h"
#include "kvbridge/shown.h"
#include "program.h"
#include "wire/json/tree.h"
#include "wire/load/json.h"
#include "wire/router/bridge_status.h"
#include "wire/router/heartbeat.h"
#include "wire/router/proto.h"
#include "wire/router/sync.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* A whole kvbridge in one thread, and a program of operations that the input is:
 *
 *     engine 1 (attacked) --+                     +--> reader: a set of names for each stream
 *     engine 2 (left alone) +--> kvbridge --> NATS
 *     pages of metrics -----------+
 *     requests, HTTP, configuration files ----+
 *
 * Byte 0 chooses the formats and the engines' dialect.  Then each operation is a byte and its
 * arguments.  After the last one all is repaired: NATS is connected, the configuration is the
 * first one again, engine 1 restarts.  Then both streams have to become EXACT, and the reader's
 * sets have to be what the engines hold.  All that is published has to be readable. */

enum {
    attacked = 1,
    left_alone = 2,
    streams = 3, /* number 0 is not used */
    max_names = 2048,
    turn_ms = 50,
    sign_of_life_ms = 1000,
    max_repair_ms = 120000
};

struct reader {
    uint64_t names[max_names];
    size_t count;
    bool has_beat;
    enum kvb_stream_state state;
    enum kvb_stream_reason reason;
    uint64_t blocks; /* that the newest heartbeat counts */
};

static struct {
    struct kvb_bridge *bridge;
    struct kvb_bridge_config config;
    struct kvb_log log;
    struct fake_engine engines[streams];
    struct reader readers[streams];
    struct kvb_router_batch batch;
    struct kvb_sync_reply_parts parts;
    bool is_repairing;
    uint64_t repair_ms;
    uint8_t kind; /* byte 0 */
} world;

/* ---- The reader ---- */

static size_t find_name(const struct reader *reader, uint64_t name)
{
    size_t at = 0;

    while (at < reader->count && reader->names[at] != name) {
        at++;
    }
    return at;
}

static void apply_block(struct reader *reader, enum kvb_router_kind kind, uint64_t name)
{
    const size_t at = find_name(reader, name);

    if (kind == KVB_ROUTER_STORED && at == reader->count) {
        check(reader->count < max_names);
        reader->names[reader->count++] = name;
    }
    if (kind == KVB_ROUTER_REMOVED && at < reader->count) {
        reader->names[at] = reader->names[--reader->count];
    }
}

static void read_events(kvb_span payload)
{
    const struct kvb_router_batch *batch = &world.batch;

    check(kvb_router_payload_decode(payload, &world.batch) == KVB_OK);
    if ((world.kind & 1) && !batch->has_epoch) {
        return; /* JSON beside protobuf */
    }
    if (batch->worker_id == 0 || batch->worker_id >= streams) {
        return; /* the stream of a registered worker */
    }
    struct reader *reader = &world.readers[batch->worker_id];
    for (size_t i = 0; i < batch->event_count; i++) {
        const struct kvb_router_event *event = &batch->events[i];
        if (event->kind == KVB_ROUTER_CLEARED) {
            reader->count = 0;
        }
        for (uint32_t j = 0; event->tier == KVB_TIER_DEVICE && j < event->block_count; j++) {
            apply_block(reader, event->kind, batch->blocks[event->block_at + j].value);
        }
    }
}

static void read_beat(kvb_span payload)
{
    struct kvb_heartbeat beat;

    check(kvb_heartbeat_decode(payload, &beat) == KVB_OK);
    if (beat.worker_id > 0 && beat.worker_id < streams) {
        struct reader *reader = &world.readers[beat.worker_id];
        reader->has_beat = !beat.is_bye;
        reader->state = beat.state;
        reader->reason = beat.reason;
        reader->blocks = beat.tiers[KVB_TIER_DEVICE].blocks;
    }
}

static void read_status(kvb_span payload)
{
    struct kvb_json_budget budget = { .depth = 8, .containers = 1 << 10, .values = 1 << 14 };
    struct json_object *root = NULL;

    check(kvb_json_parse(payload, &budget, &root) == KVB_OK);
    kvb_json_drop(&root);
}

static void read_streams(kvb_span payload)
{
    static struct kvb_bridge_streams of_bridge;

    check(kvb_bridge_streams_decode(payload, &of_bridge) == KVB_OK);
}

static void read_sync(kvb_span payload)
{
    struct kvb_sync_reply reply;

    check(kvb_sync_reply_decode(payload, &world.parts, &reply) == KVB_OK);
}

static void read_load(kvb_span payload)
{
    struct kvb_load_report report;

    check(kvb_load_json_decode(payload, &report) == KVB_OK);
}

static void published(const char *subject, const char *reply, kvb_span payload)
{
    static const struct {
        const char *tail;
        void (*read)(kvb_span payload);
    } kinds[] = {
        { ".kv_events", read_events },       { ".kv_events_pb", read_events },
        { ".kv_heartbeat", read_beat },      { ".bridge_status", read_status },
        { ".load_metrics", read_load },      { "_INBOX.sync.7", read_sync },
        { ".bridge_streams", read_streams },
    };
    const size_t len = strlen(subject);

    (void)reply;
    for (size_t i = 0; i < KVB_COUNT_OF(kinds); i++) {
        const size_t tail = strlen(kinds[i].tail);
        if (len >= tail && strcmp(subject + len - tail, kinds[i].tail) == 0) {
            kinds[i].read(payload);
        }
    }
}

/* ---- Configuration ---- */

static int config_fd = -1;
static char config_path[64];

/* workers 1 and 2, and what byte 0 chooses. */
static kvb_span make_config(char *text, size_t size)
{
    static const char *const formats[] = { "\"json\"", "\"protobuf\"", "\"json\"",
                                           "\"json\", \"protobuf\"" };
    const int len = snprintf(
        text, size,
        "publish = { namespace = \"n\"; component = \"c\"; formats = [%s];\n"
        "  reannounce = \"on_loss\"; };\n"
        "workers = ( { id = 1; model = \"m\"; block_size = 4; salts = false;\n"
        "              load = { prometheus = \"http://127.0.0.1:7001/metrics\"; };\n"
        "              events = \"tcp://127.0.0.1:5001\"; replay = \"tcp://127.0.0.1:6001\";\n"
        "              republish = { events = \"ipc:///fuzz\"; style = \"aibrix\"; }; },\n"
        "            { id = 2; model = \"m\"; block_size = 4; salts = false;\n"
        "              events = \"tcp://127.0.0.1:5002\"; replay = \"tcp://127.0.0.1:6002\"; } );\n"
        "limits = { max_stream_blocks = 4096; };\n"
        "http = \"\";\n",
        formats[world.kind & 3]);

    return (kvb_span){ (const uint8_t *)text, (size_t)len };
}

static void write_config(kvb_span text)
{
    if (config_fd < 0) {
        config_fd = memfd_create("kvbridge.cfg", 0);
        check(config_fd >= 0);
        (void)snprintf(config_path, sizeof config_path, "/proc/self/fd/%d", config_fd);
    }
    check(ftruncate(config_fd, 0) == 0);
    check(pwrite(config_fd, text.data, text.len, 0) == (ssize_t)text.len);
}

static kvb_status read_config(kvb_span text, struct kvb_bridge_config *out_config)
{
    struct kvb_conf_errors *errors = calloc(1, sizeof *errors);

    check(errors != NULL);
    write_config(text);
    const kvb_status status = kvb_bridge_config_read(config_path, out_config, errors);
    check(status == KVB_OK || errors->count > 0);
    free(errors);
    return status;
}

static void reload(kvb_span text)
{
    struct kvb_bridge_config config = { 0 };
    struct kvb_membership_result answer = { 0 };

    if (read_config(text, &config) == KVB_OK) {
        (void)kvb_bridge_take_list(world.bridge, KVB_SOURCE_FILE, &config.workers, NULL, &answer);
    }
    kvb_bridge_config_done(&config);
}

/* ---- Operations ---- */

static void publish_block(size_t number, uint8_t block)
{
    struct fake_engine *engine = &world.engines[number];
    const struct fake_message *message = block < 8 * fake_blocks
                                             ? fake_engine_touch(engine, block % fake_blocks)
                                             : fake_engine_clear(engine);

    if (message) {
        fake_socket_send(number, message);
    }
}

static void op_pass_time(void)
{
    fake_clock_advance_ms(10 * (uint64_t)next_byte());
}

static void op_publish(void)
{
    publish_block(attacked, next_byte());
}

static void op_publish_other(void)
{
    publish_block(left_alone, next_byte());
}

/* The engine numbers a message that is never sent. */
static void op_lose(void)
{
    (void)fake_engine_touch(&world.engines[attacked], next_byte() % fake_blocks);
}

static void op_frames(void)
{
    const kvb_span frames = next_span();

    fake_socket_send_raw(attacked, frames.data, frames.len);
}

static void op_payload(void)
{
    const uint64_t seq = next_byte();
    const kvb_span payload = next_span();

    fake_socket_send_payload(attacked, seq, payload.data, payload.len);
}

static void op_far_payload(void)
{
    const uint64_t seq = next_number();
    const kvb_span payload = next_span();

    fake_socket_send_payload(attacked, seq, payload.data, payload.len);
}

/* A message of the engine with changed bytes, perhaps under another number. */
static void op_spoilt(void)
{
    const struct fake_engine *engine = &world.engines[attacked];
    const uint8_t which = next_byte();
    const uint8_t where = next_byte();
    const uint8_t what = next_byte();
    const uint8_t shift = next_byte();

    if (engine->count == 0) {
        return;
    }
    const struct fake_message *message = &engine->messages[which % engine->count];
    uint8_t *copy = malloc(message->len);
    check(copy != NULL);
    memcpy(copy, message->bytes, message->len);
    copy[where % message->len] ^= what;
    fake_socket_send_payload(attacked, message->seq + shift, copy, message->len);
    free(copy);
}

static void op_reply(void)
{
    const kvb_span frames = next_span();

    fake_socket_add_reply(attacked, frames.data, frames.len);
}

static void op_replay(void)
{
    fake_socket_set_replay(attacked, (enum fake_replay)(next_byte() % FAKE_REPLAY_COUNT));
}

static void op_link(void)
{
    const uint8_t what = next_byte();

    if (what & 2) {
        fake_engine_restart(&world.engines[attacked]);
    }
    if (what & 4) {
        fake_socket_set_up(attacked, false);
    }
    fake_socket_set_up(attacked, (what & 1) == 0);
}

static void op_nats(void)
{
    static void (*const ways[])(void) = { fake_bus_go_deaf, fake_bus_disconnect, fake_bus_connect };

    ways[next_byte() % KVB_COUNT_OF(ways)]();
}

static void op_sync(void)
{
    const uint8_t to = next_byte();
    const kvb_span request = next_span();
    char subject[64];

    (void)snprintf(
        subject, sizeof subject, "namespace.n.component.c.kv_sync.%u.%u", to % 4, to / 128);
    fake_bus_deliver(subject, to & 64 ? NULL : "_INBOX.sync.7", request);
}

/* A well-formed request for a stream that exists. */
static void op_sync_right(void)
{
    const uint8_t what = next_byte();
    struct kvb_sync_request request = { .kind = (enum kvb_sync_kind)(what % KVB_SYNC_KIND_COUNT) };
    struct kvb_buf buf;

    request.from_id = next_number();
    request.to_id = request.from_id + next_byte();
    request.has_buckets = (what & 16) != 0 && request.kind == KVB_SYNC_SNAPSHOT;
    request.buckets.words[0] = request.from_id;
    kvb_buf_init(&buf, 1 << 16);
    if (kvb_sync_request_encode(&request, &buf) == KVB_OK) {
        fake_bus_deliver(
            what & 32 ? "namespace.n.component.c.kv_sync.1.0"
                      : "namespace.n.component.c.kv_sync.2.0",
            "_INBOX.sync.7", kvb_buf_span(&buf));
    }
    kvb_buf_done(&buf);
}

static void op_refresh(void)
{
    const uint8_t what = next_byte();

    fake_bus_deliver(
        "namespace.n.component.c.kv_refresh", what & 1 ? "_INBOX.refresh.7" : NULL, next_span());
}

static void op_streams(void)
{
    fake_bus_deliver("namespace.n.component.c.bridge_streams", NULL, next_span());
}

static void op_service(void)
{
    const uint8_t what = next_byte();

    fake_bus_deliver(what & 1 ? "$SRV.PING" : "$SRV.STATS", "_INBOX.service.7", next_span());
}

static void op_http(void)
{
    static const struct {
        const char *method, *path;
    } routes[] = { { "GET", "/state" },       { "GET", "/metrics" }, { "GET", "/readyz" },
                   { "POST", "/register" },   { "POST", "/drain" },  { "POST", "/undrain" },
                   { "POST", "/unregister" }, { "GET", "/livez" },   { "PUT", "/state" },
                   { "GET", "/nothing" } };
    const uint8_t which = next_byte() % KVB_COUNT_OF(routes);
    const struct kvb_http_request request = { .method = routes[which].method,
                                              .path = routes[which].path,
                                              .parameters = "",
                                              .content_type = "application/json",
                                              .authorization = "",
                                              .if_none_match = "",
                                              .body = next_span() };
    struct kvb_http_answer answer = { .status = 0 };

    kvb_buf_init(&answer.body, kvb_max_state_bytes);
    kvb_bridge_answer(world.bridge, &request, &answer);
    check(answer.status >= 200 && answer.status < 600);
    kvb_buf_done(&answer.body);
}

static void op_config_raw(void)
{
    reload(next_span());
}

/* The correct file with arbitrary bytes in its middle. */
static void op_config_spoilt(void)
{
    char text[2048];
    const kvb_span right = make_config(text, sizeof text);
    const size_t at = ((size_t)next_byte() << 8 | next_byte()) % right.len;
    const kvb_span more = next_span();
    const size_t len = more.len < right.len - at ? more.len : right.len - at;

    memcpy(text + at, more.data, len);
    reload((kvb_span){ (const uint8_t *)text, right.len });
}

/* A correct file with only some of the workers. */
static void op_config_other(void)
{
    static const char only_two[] =
        "publish = { namespace = \"n\"; component = \"c\"; };\n"
        "workers = ( { id = 2; model = \"m\"; block_size = 4; salts = false;\n"
        "  events = \"tcp://127.0.0.1:5002\"; replay = \"tcp://127.0.0.1:6002\"; } );\n";

    reload((kvb_span){ (const uint8_t *)only_two, sizeof only_two - 1 });
}

/* A page with the engine's load, or another outcome of its request. */
static void op_page(void)
{
    const enum kvb_fetch_outcome outcome =
        (enum kvb_fetch_outcome)(next_byte() % KVB_FETCH_OUTCOME_COUNT);

    fake_pages_deliver(outcome, next_span());
}

static void (*const operations[])(void) = {
    op_pass_time,   op_publish,       op_publish_other, op_lose,    op_frames,  op_payload,
    op_far_payload, op_spoilt,        op_reply,         op_replay,  op_link,    op_nats,
    op_sync,        op_sync_right,    op_refresh,       op_service, op_service, op_http,
    op_config_raw,  op_config_spoilt, op_config_other,
};

/* Later operations have numbers of their own, so that inputs saved before keep their meaning. */
static void operate(void)
{
    static void (*const later[])(void) = { op_streams, op_refresh, op_refresh, op_page };
    const uint8_t which = next_byte();
    const size_t from = UINT8_MAX + 1 - KVB_COUNT_OF(later);

    if (which >= from) {
        later[which - from]();
    } else {
        operations[which % KVB_COUNT_OF(operations)]();
    }
}

/* ---- Repair, and what must hold then ---- */

static void begin_repair(void)
{
    char text[2048];

    world.is_repairing = true;
    fake_bus_connect();
    fake_socket_set_replay(attacked, FAKE_REPLAY_HONEST);
    fake_socket_set_up(attacked, false);
    fake_engine_restart(&world.engines[attacked]);
    reload(make_config(text, sizeof text));
    fake_socket_set_up(attacked, true);
    for (unsigned block = 0; block < 6; block++) {
        publish_block(attacked, (uint8_t)block);
    }
}

static bool is_right(size_t number)
{
    const struct fake_engine *engine = &world.engines[number];
    const struct reader *reader = &world.readers[number];
    size_t held = 0;

    for (unsigned block = 0; block < fake_blocks; block++) {
        held += engine->held[block];
        if (engine->held[block] &&
            find_name(reader, fake_block_name(block).value) == reader->count) {
            return false;
        }
    }
    return reader->has_beat && reader->state == KVB_STREAM_EXACT && reader->count == held &&
           reader->blocks == held;
}

static void show_stream(size_t number)
{
    const struct reader *reader = &world.readers[number];

    (void)fprintf(
        stderr, "stream %zu: %s(%s), %zu names listed, %lu counted, engine has %zu messages\n",
        number, kvb_stream_state_name(reader->state), kvb_stream_reason_name(reader->reason),
        reader->count, (unsigned long)reader->blocks, world.engines[number].count);
}

/* A list becomes EXACT when a replay contains a batch that came live, so the engines go on sending.
 */
static void work_repair(void)
{
    world.repair_ms += turn_ms;
    if (world.repair_ms % sign_of_life_ms == 0) {
        publish_block(attacked, (uint8_t)(world.repair_ms / sign_of_life_ms % fake_blocks));
        publish_block(left_alone, (uint8_t)(world.repair_ms / sign_of_life_ms % fake_blocks));
        return;
    }
    if (is_right(attacked) && is_right(left_alone)) {
        atomic_store(&world.bridge->is_stopping, true);
    } else if (world.repair_ms > max_repair_ms) {
        show_stream(attacked);
        show_stream(left_alone);
        abort();
    }
}

static void turn(void)
{
    fake_clock_advance_ms(turn_ms);
    if (world.is_repairing) {
        work_repair();
    } else if (next_operation()) {
        operate();
    } else {
        begin_repair();
    }
}

static void while_waiting(void)
{
    fake_clock_advance_ms(1);
    (void)kvb_bridge_work_membership(world.bridge, kvb_clock_monotonic_ns());
}

/* ---- Beginning and end ---- */

static void begin(void)
{
    static const enum kvb_dialect dialects[] = { KVB_DIALECT_VLLM_0_11, KVB_DIALECT_VLLM_0_31,
                                                 KVB_DIALECT_SGLANG_MAP, KVB_DIALECT_VLLM_0_9 };
    struct kvb_detail detail = { { 0 } };
    char text[2048];

    fake_clock_reset();
    fake_threads_hold(kvb_bridge_run, while_waiting);
    fake_bus_reset(&(struct fake_bus_options){ published });
    fake_sockets_reset(turn);
    world.kind = next_byte();
    for (size_t i = attacked; i < streams; i++) {
        world.engines[i].dialect = dialects[world.kind >> 2 & 3];
        fake_engine_restart(&world.engines[i]);
        fake_socket_set_engine(i, &world.engines[i]);
    }
    world.log = (struct kvb_log){ .level = KVB_LOG_ERROR, .fd = open("/dev/null", O_WRONLY) };
    check(read_config(make_config(text, sizeof text), &world.config) == KVB_OK);
    check(kvb_bridge_start(&world.config, &world.log, &world.bridge, &detail) == KVB_OK);
    for (uint8_t block = 0; block < 4; block++) {
        publish_block(left_alone, block);
    }
}

static void end(void)
{
    kvb_bridge_stop(world.bridge);
    fake_threads_release();
    kvb_bridge_config_done(&world.config);
    kvb_router_batch_done(&world.batch);
    kvb_sync_reply_parts_done(&world.parts);
    fake_sockets_done();
    for (size_t i = attacked; i < streams; i++) {
        fake_engine_done(&world.engines[i]);
    }
    (void)close(world.log.fd);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    memset(&world, 0, sizeof world);
    program = (struct program){ .data = data, .size = size };
    begin();
    check(fake_thread_run());
    end();
    return 0;
}
