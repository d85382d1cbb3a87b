#include "core/clock.h"
#include "core/limits.h"
#include "core/own.h"
#include "core/ring.h"
#include "daemon/http.h"
#include "fake_bus.h"
#include "fake_clock.h"
#include "fake_engine.h"
#include "kvaggregator/aggregator.h"
#include "kvaggregator/doors/doors.h"
#include "kvaggregator/intake.h"
#include "kvaggregator/loop.h"
#include "kvaggregator/parts.h"
#include "kvaggregator/queries.h"
#include "model/digest.h"
#include "program.h"
#include "wire/load/json.h"
#include "wire/router/heartbeat.h"
#include "wire/router/json.h"
#include "wire/router/proto.h"
#include "wire/router/sync.h"

#include <fcntl.h>
#include <json-c/json.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* A whole kvaggregator in one thread, and a program of operations that the input is:
 *
 *     bridge of stream 1 (attacked, forged) --+
 *     bridge of stream 2 (left alone) --------+--> NATS --> kvaggregator --> answers
 *     garbage, requests, HTTP, books ---------+
 *
 * Each operation is a byte and its arguments.  Whenever the aggregator is idle and says that
 * stream 2 is EXACT, its list has as many blocks as the bridge holds.  After the last operation
 * both bridges go on honestly.  Then both streams have to become EXACT, and queries for each path
 * of the tree have to be answered as the sets say.  Whatever is answered has to be JSON. */

enum {
    attacked = 1,
    left_alone = 2,
    streams = 3, /* number 0 is not used */
    max_past = 64,
    turn_ms = 50,
    beat_ms = 1000,
    min_repair_ms = 8000,
    max_repair_ms = 90000,
    inbox_bytes = 64
};

/* ---- A plain bridge: a set of blocks of the tree of fake_engine.h ---- */

enum sync_answer { SYNC_HONEST, SYNC_MUTE, SYNC_BUSY, SYNC_GONE, SYNC_RAW, SYNC_ANSWER_COUNT };

struct bridge {
    uint64_t worker_id;
    kvb_epoch epoch;
    uint64_t seed; /* of digests */
    uint64_t first_id, last_id;
    bool held[fake_blocks];
    enum sync_answer answer;
    uint64_t next_beat_ns;
};

struct past_message {
    const char *subject;
    uint8_t *bytes; /* owned */
    size_t len;
};

static struct {
    struct kvb_aggregator *aggregator;
    struct kvb_aggregator_config config;
    struct kvb_log log;
    struct bridge bridges[streams];
    struct past_message past[max_past];
    size_t past_count;
    struct kvb_router_batch batch;
    struct kvb_buf buf;
    kvb_span raw_answer; /* borrowed from the input */
    uint64_t loses;      /* so many of the next messages of stream 1 */
    json_object *answer; /* owned; the newest one to _INBOX.query.7 */
    bool is_repairing;
    uint64_t repair_ms;
} world;

static const char events_subject[] = "namespace.n.component.c.kv_events";
static const char beats_subject[] = "namespace.n.component.c.kv_heartbeat";

/* ---- What bridges publish ---- */

static void remember(const char *subject, kvb_span payload)
{
    struct past_message *past = &world.past[world.past_count % max_past];

    free(past->bytes);
    *past = (struct past_message){ subject, malloc(payload.len + 1), payload.len };
    check(past->bytes != NULL);
    memcpy(past->bytes, payload.data, payload.len);
    world.past_count++;
}

static void deliver(const char *subject, kvb_span payload)
{
    if (fake_bus_is_whole()) {
        fake_bus_deliver(subject, NULL, payload);
    }
}

static void begin_batch(const struct bridge *bridge)
{
    kvb_router_batch_reset(&world.batch);
    world.batch.worker_id = bridge->worker_id;
    world.batch.dp_rank = 0;
    world.batch.has_epoch = true;
    world.batch.epoch = bridge->epoch;
}

static void add_block(enum kvb_router_kind kind, uint64_t event_id, unsigned block)
{
    struct kvb_router_event event = { .kind = kind, .event_id = event_id };

    if (kind == KVB_ROUTER_STORED && block > 0) {
        event.has_parent = true;
        event.parent = fake_block_name((block - 1) / 2);
    }
    check(kvb_router_batch_add_event(&world.batch, &event) == KVB_OK);
    if (kind != KVB_ROUTER_CLEARED) {
        check(
            kvb_router_batch_add_block(
                &world.batch, fake_block_name(block),
                kind == KVB_ROUTER_STORED ? fake_block_tokens_hash(block)
                                          : (kvb_tokens_hash){ 0 }) == KVB_OK);
    }
}

static void send_batch(const struct bridge *bridge)
{
    kvb_buf_reset(&world.buf);
    check(kvb_router_proto_encode(&world.batch, 0, world.batch.event_count, &world.buf) == KVB_OK);
    const kvb_span payload = kvb_buf_span(&world.buf);
    if (bridge->worker_id == attacked) {
        remember(events_subject, payload);
        if (world.loses > 0 && !world.is_repairing) {
            world.loses--;
            return;
        }
    }
    deliver(events_subject, payload);
}

static void publish(struct bridge *bridge, enum kvb_router_kind kind, unsigned block)
{
    begin_batch(bridge);
    add_block(kind, ++bridge->last_id, block);
    send_batch(bridge);
}

static bool has_child(const struct bridge *bridge, unsigned block)
{
    const unsigned left = 2 * block + 1;

    return left < fake_blocks && (bridge->held[left] || bridge->held[left + 1]);
}

static void touch(struct bridge *bridge, unsigned block)
{
    if (!bridge->held[block] && (block == 0 || bridge->held[(block - 1) / 2])) {
        bridge->held[block] = true;
        publish(bridge, KVB_ROUTER_STORED, block);
    } else if (bridge->held[block] && !has_child(bridge, block)) {
        bridge->held[block] = false;
        publish(bridge, KVB_ROUTER_REMOVED, block);
    }
}

static void open_epoch(struct bridge *bridge)
{
    memset(bridge->held, 0, sizeof bridge->held);
    bridge->epoch.bytes[0]++;
    bridge->epoch.bytes[15] = (uint8_t)bridge->worker_id;
    bridge->seed++;
    bridge->first_id = kvb_clock_wall_us();
    bridge->last_id = bridge->first_id - 1;
    publish(bridge, KVB_ROUTER_CLEARED, 0);
}

static struct kvb_hash128 digest_of(const struct bridge *bridge, uint64_t *out_blocks)
{
    const struct kvb_digest_key key = { bridge->worker_id, 0, bridge->seed };
    struct kvb_digest digest = { 0 };

    *out_blocks = 0;
    for (unsigned block = 0; block < fake_blocks; block++) {
        if (bridge->held[block]) {
            kvb_digest_add(&digest, &key, KVB_TIER_DEVICE, fake_block_name(block));
            ++*out_blocks;
        }
    }
    return digest.total;
}

static struct kvb_heartbeat beat_of(const struct bridge *bridge)
{
    struct kvb_heartbeat beat = { .worker_id = bridge->worker_id,
                                  .epoch = bridge->epoch,
                                  .epoch_first_id = bridge->first_id,
                                  .last_id = bridge->last_id,
                                  .state = KVB_STREAM_EXACT,
                                  .formats = 1U << KVB_FORMAT_PROTOBUF,
                                  .model = "m",
                                  .block_size = fake_block_tokens,
                                  .period_ms = beat_ms,
                                  .publisher = bridge->worker_id,
                                  .digest_seed = bridge->seed };

    beat.tiers[KVB_TIER_DEVICE].digest = digest_of(bridge, &beat.tiers[KVB_TIER_DEVICE].blocks);
    return beat;
}

static void send_beat(const struct bridge *bridge, bool is_bye)
{
    struct kvb_heartbeat beat = beat_of(bridge);

    beat.is_bye = is_bye;
    kvb_buf_reset(&world.buf);
    check(kvb_heartbeat_encode(&beat, &world.buf) == KVB_OK);
    if (bridge->worker_id == attacked) {
        remember(beats_subject, kvb_buf_span(&world.buf));
    }
    deliver(beats_subject, kvb_buf_span(&world.buf));
}

static void send_due_beats(void)
{
    for (size_t i = attacked; i < streams; i++) {
        struct bridge *bridge = &world.bridges[i];
        if (fake_clock_now_ns() >= bridge->next_beat_ns) {
            bridge->next_beat_ns = fake_clock_now_ns() + beat_ms * KVB_NS_PER_MS;
            send_beat(bridge, false);
        }
    }
}

/* ---- Requests of the aggregator to bridges ---- */

static void reply_to(const char *subject, const struct kvb_sync_reply *reply)
{
    struct kvb_buf buf;

    kvb_buf_init(&buf, 1 << 18);
    check(kvb_sync_reply_encode(reply, &buf) == KVB_OK);
    fake_bus_deliver(subject, NULL, kvb_buf_span(&buf));
    kvb_buf_done(&buf);
}

/* Answers with all that is held, in one chunk.  Any other request may get GONE from a bridge. */
static void
answer_honestly(const struct bridge *bridge, const struct kvb_sync_request *request, const char *to)
{
    struct kvb_sync_reply reply = { .answer = KVB_SYNC_GONE,
                                    .worker_id = bridge->worker_id,
                                    .epoch = bridge->epoch,
                                    .is_last = true,
                                    .barrier_id = bridge->last_id,
                                    .last_id = bridge->last_id,
                                    .digest_seed = bridge->seed };

    if (request->kind == KVB_SYNC_SNAPSHOT && !request->has_buckets) {
        begin_batch(bridge);
        for (unsigned block = 0; block < fake_blocks; block++) {
            if (bridge->held[block]) {
                add_block(KVB_ROUTER_STORED, world.batch.event_count, block);
            }
        }
        reply.answer = KVB_SYNC_BLOCKS;
        reply.events = &world.batch;
    }
    reply_to(to, &reply);
}

static void answer_sync(const char *subject, const char *to, kvb_span payload)
{
    struct kvb_sync_request request;
    const char *tail = strstr(subject, "kv_sync.");

    check(to && tail && kvb_sync_request_decode(payload, &request) == KVB_OK);
    const uint64_t worker = strtoull(tail + strlen("kv_sync."), NULL, 10);
    if (worker == 0 || worker >= streams) {
        return; /* the stream is forged: nobody answers */
    }
    const struct bridge *bridge = &world.bridges[worker];
    const struct kvb_sync_reply refusal = {
        .answer = bridge->answer == SYNC_BUSY ? KVB_SYNC_BUSY : KVB_SYNC_GONE,
        .worker_id = worker,
        .epoch = bridge->epoch,
        .is_last = true,
        .retry_ms = 200,
    };
    if (bridge->answer == SYNC_HONEST) {
        answer_honestly(bridge, &request, to);
    } else if (bridge->answer == SYNC_RAW) {
        fake_bus_deliver(to, NULL, world.raw_answer);
    } else if (bridge->answer != SYNC_MUTE) {
        reply_to(to, &refusal);
    }
}

/* ---- What the aggregator publishes ---- */

static json_object *parse(kvb_span text)
{
    struct json_tokener *tokener = json_tokener_new_ex(64);

    check(tokener != NULL);
    json_tokener_set_flags(tokener, JSON_TOKENER_STRICT);
    json_object *json = json_tokener_parse_ex(tokener, (const char *)text.data, (int)text.len);
    check(json_tokener_get_error(tokener) == json_tokener_success);
    json_tokener_free(tokener);
    return json;
}

static void published(const char *subject, const char *reply, kvb_span payload)
{
    if (strcmp(subject, world.aggregator->intake->subscriptions[KVB_INTAKE_ECHO].subject) == 0) {
        fake_bus_deliver(subject, NULL, payload);
        return;
    }
    if (strstr(subject, ".kv_sync.")) {
        answer_sync(subject, reply, payload);
        return;
    }
    json_object *json = parse(payload);
    if (strcmp(subject, "_INBOX.query.7") == 0) {
        json_object_put(world.answer);
        world.answer = json;
    } else {
        json_object_put(json);
    }
}

/* ---- Operations ---- */

static void op_pass_time(void)
{
    fake_clock_advance_ms(10 * (uint64_t)next_byte());
}

static void op_touch(void)
{
    touch(&world.bridges[attacked], next_byte() % fake_blocks);
}

static void op_touch_other(void)
{
    touch(&world.bridges[left_alone], next_byte() % fake_blocks);
}

static void op_lose(void)
{
    world.loses = next_byte() % 8;
}

/* True: a block has its name, and the tokens or the parent of another. */
static bool is_misnamed(kvb_block_hash name, kvb_tokens_hash tokens, uint64_t parent)
{
    for (unsigned block = 0; block < fake_blocks; block++) {
        if (fake_block_name(block).value == name.value) {
            return tokens.value != fake_block_tokens_hash(block).value ||
                   parent != (block > 0 ? fake_block_name((block - 1) / 2).value : 0);
        }
    }
    return false;
}

/* True: an event stores a block under the name of another.  Nobody notices it, because a digest is
 * of names alone. */
static bool has_misnamed(const struct kvb_router_batch *batch)
{
    for (size_t i = 0; i < batch->event_count; i++) {
        const struct kvb_router_event *event = &batch->events[i];
        uint64_t parent = event->has_parent ? event->parent.value : 0;
        for (uint32_t j = 0; event->kind == KVB_ROUTER_STORED && j < event->block_count; j++) {
            const size_t at = event->block_at + j;
            if (is_misnamed(batch->blocks[at], batch->tokens[at], parent)) {
                return true;
            }
            parent = batch->blocks[at].value;
        }
    }
    return false;
}

/* False: the message is of stream 2, which nobody attacks, or a lie that cannot be found. */
static bool is_allowed(const char *tail, kvb_span payload)
{
    struct kvb_heartbeat beat;

    if (strstr(tail, "events")) {
        return kvb_router_payload_decode(payload, &world.batch) != KVB_OK ||
               (world.batch.worker_id != left_alone && !has_misnamed(&world.batch));
    }
    return kvb_heartbeat_decode(payload, &beat) != KVB_OK || beat.worker_id != left_alone;
}

static void op_raw(void)
{
    static const char *const tails[] = { "kv_events",     "kv_events_pb", "kv_window_events",
                                         "kv_heartbeat",  "load_metrics", "kv_heartbeat_json",
                                         "bridge_status", "kv_sync.1.0",  "load_stats" };
    const char *tail = tails[next_byte() % KVB_COUNT_OF(tails)];
    const kvb_span payload = next_span();
    char subject[128];

    (void)snprintf(subject, sizeof subject, "namespace.n.component.c.%s", tail);
    if (is_allowed(tail, payload)) {
        fake_bus_deliver(subject, NULL, payload);
    }
}

/* Well-formed events of stream 1, or of one that no bridge has. */
static void op_forge_events(void)
{
    const uint8_t what = next_byte();
    struct bridge forger = world.bridges[what & 1 ? attacked : 0];

    forger.worker_id = what & 1 ? attacked : 7 + (what >> 6);
    forger.epoch.bytes[1] ^= what & 2;
    begin_batch(&forger);
    world.batch.dp_rank = what >> 5 & 1;
    add_block(
        (enum kvb_router_kind)(what >> 2 & 1 ? KVB_ROUTER_REMOVED : KVB_ROUTER_STORED),
        forger.last_id + next_byte() % 8, next_byte() % fake_blocks);
    kvb_buf_reset(&world.buf);
    if (what & 16) {
        check(kvb_router_json_encode(&world.batch, 0, &world.buf) == KVB_OK);
    } else {
        check(kvb_router_proto_encode(&world.batch, 0, 1, &world.buf) == KVB_OK);
    }
    fake_bus_deliver(
        what & 8 ? "namespace.n.component.c.kv_window_events" : events_subject, NULL,
        kvb_buf_span(&world.buf));
}

static void op_forge_beat(void)
{
    struct kvb_heartbeat beat = beat_of(&world.bridges[attacked]);
    const uint8_t what = next_byte();

    beat.last_id += what & 1 ? next_number() : 0;
    beat.epoch.bytes[2] ^= what & 2;
    beat.state = (enum kvb_stream_state)(what >> 2 & 3);
    beat.tiers[KVB_TIER_DEVICE].blocks += what & 16;
    beat.publisher += what & 32;
    beat.is_bye = (what & 64) != 0;
    beat.block_size = what & 128 ? next_byte() : beat.block_size;
    kvb_buf_reset(&world.buf);
    if (kvb_heartbeat_encode(&beat, &world.buf) == KVB_OK) {
        fake_bus_deliver(beats_subject, NULL, kvb_buf_span(&world.buf));
    }
}

/* A message of stream 1 once more, perhaps with a byte changed. */
static void op_repeat(void)
{
    const uint8_t which = next_byte();
    const uint8_t where = next_byte();
    const uint8_t what = next_byte();

    if (world.past_count == 0) {
        return;
    }
    const size_t count = world.past_count < max_past ? world.past_count : max_past;
    const struct past_message *past = &world.past[which % count];
    uint8_t *copy = malloc(past->len + 1);
    check(copy != NULL);
    memcpy(copy, past->bytes, past->len);
    copy[where % (past->len + 1)] ^= what;
    const kvb_span payload = { copy, past->len };
    if (is_allowed(past->subject, payload)) {
        fake_bus_deliver(past->subject, NULL, payload);
    }
    free(copy);
}

static void op_restart(void)
{
    open_epoch(&world.bridges[attacked]);
}

static void op_sync_way(void)
{
    world.bridges[attacked].answer = (enum sync_answer)(next_byte() % SYNC_ANSWER_COUNT);
    world.raw_answer = next_span();
}

/* Answers a request that may be under way. */
static void op_answer(void)
{
    char subject[kvb_subject_bytes + 20];
    const uint64_t token = next_byte();

    (void)snprintf(
        subject, sizeof subject, "%s.%016lx", world.aggregator->intake->inbox,
        (unsigned long)token);
    fake_bus_deliver(subject, NULL, next_span());
}

static void op_nats(void)
{
    if (next_byte() & 1) {
        fake_bus_disconnect();
    } else {
        fake_bus_connect();
    }
}

static void op_request(void)
{
    static const char *const tails[] = { "kv_match",       "kv_route",           "kv_get.state",
                                         "kv_get.load",    "kv_get.dump",        "kv_get.streams",
                                         "kv_get.nothing", "kv_get.state.nobody" };
    const char *tail = tails[next_byte() % KVB_COUNT_OF(tails)];
    char subject[128];

    (void)snprintf(subject, sizeof subject, "namespace.n.component.Router.%s", tail);
    fake_bus_deliver(subject, "_INBOX.any.7", next_span());
}

static size_t path_to(unsigned block, unsigned *out_path)
{
    unsigned reverse[8];
    size_t count = 0;

    for (unsigned at = block + 1; at > 0; at /= 2) {
        reverse[count++] = at - 1;
    }
    for (size_t i = 0; i < count; i++) {
        out_path[i] = reverse[count - 1 - i];
    }
    return count;
}

/* {"token_ids":[...]} of all blocks on the way to this one. */
static void make_query(unsigned block, const char *more, struct kvb_buf *out)
{
    unsigned path[8];
    const size_t count = path_to(block, path);
    char text[24];

    check(kvb_buf_append_text(out, "{\"model\":\"m\",\"token_ids\":[") == KVB_OK);
    for (size_t i = 0; i < count * fake_block_tokens; i++) {
        uint32_t tokens[fake_block_tokens];
        fake_block_fill(path[i / fake_block_tokens], tokens);
        (void)snprintf(text, sizeof text, "%s%u", i ? "," : "", tokens[i % fake_block_tokens]);
        check(kvb_buf_append_text(out, text) == KVB_OK);
    }
    check(kvb_buf_append_text(out, "]") == KVB_OK);
    check(kvb_buf_append_text(out, more) == KVB_OK);
    check(kvb_buf_append_text(out, "}") == KVB_OK);
}

static void op_route(void)
{
    static const char *const more[] = { "",
                                        ",\"request_id\":\"a\"",
                                        ",\"request_id\":\"b\"",
                                        ",\"dry_run\":true",
                                        ",\"policy\":\"round_robin\"",
                                        ",\"policy\":\"ttft\"",
                                        ",\"candidates\":[1]" };
    const uint8_t block = next_byte() % fake_blocks;

    kvb_buf_reset(&world.buf);
    make_query(block, more[next_byte() % KVB_COUNT_OF(more)], &world.buf);
    fake_bus_deliver(
        "namespace.n.component.Router.kv_route", "_INBOX.any.7", kvb_buf_span(&world.buf));
}

/* The index thread goes on. */
static void while_waiting(void)
{
    fake_clock_advance_ms(1);
    while (kvb_intake_take(world.aggregator, kvb_clock_monotonic_ns())) {
    }
    (void)kvb_queries_take(world.aggregator);
}

static void wait_for_answer(struct kvb_http_answer *answer)
{
    while (kvb_ring_count(world.aggregator->queries->ring) > 0) {
        while_waiting();
    }
    answer->finish(answer->parts, answer);
}

static void finish_answer(struct kvb_http_answer *answer)
{
    kvb_status status = KVB_AGAIN;

    for (int i = 0; answer->next && status == KVB_AGAIN && i < 64; i++) {
        kvb_buf_reset(&answer->body);
        status = answer->next(answer->parts, &answer->body);
    }
    if (answer->drop && answer->parts) {
        answer->drop(answer->parts);
    }
}

static void op_http(void)
{
    static const struct {
        const char *method, *path, *parameters;
    } routes[] = { { "POST", "/query", "" },         { "POST", "/query", "tiers=1&down=1" },
                   { "POST", "/query_by_hash", "" }, { "POST", "/route", "" },
                   { "POST", "/finished", "" },      { "POST", "/first_token", "" },
                   { "GET", "/workers", "" },        { "GET", "/streams", "from=0&max=1" },
                   { "GET", "/load", "" },           { "GET", "/dump", "" },
                   { "GET", "/dump", "tiers=all" },  { "GET", "/health", "" },
                   { "GET", "/overview", "" },       { "GET", "/history", "since=0" },
                   { "GET", "/metrics", "" },        { "GET", "/readyz", "exact=0.5" },
                   { "GET", "/livez", "" },          { "PUT", "/query", "" } };
    const uint8_t which = next_byte() % KVB_COUNT_OF(routes);
    const struct kvb_http_request request = { .method = routes[which].method,
                                              .path = routes[which].path,
                                              .parameters = routes[which].parameters,
                                              .content_type = "application/json",
                                              .authorization = "",
                                              .if_none_match = "",
                                              .body = next_span() };
    struct kvb_http_answer answer = { .status = 0 };

    kvb_buf_init(&answer.body, kvb_max_answer_bytes);
    kvb_door_receive_http(world.aggregator, &request, &answer);
    if (answer.finish) {
        wait_for_answer(&answer);
    }
    check(answer.status >= 200 && answer.status < 600);
    if (!answer.next && answer.content_type && answer.body.len > 0 &&
        strcmp(answer.content_type, "application/json") == 0) {
        json_object_put(parse(kvb_buf_span(&answer.body)));
    }
    finish_answer(&answer);
    kvb_buf_done(&answer.body);
}

static void op_books(void)
{
    static const char *const tails[] = { "kv_routed", "kv_finished", "kv_first_token",
                                         "aggregator_status" };
    const char *tail = tails[next_byte() % KVB_COUNT_OF(tails)];
    char subject[128];

    (void)snprintf(subject, sizeof subject, "namespace.n.component.Router.%s", tail);
    fake_bus_deliver(subject, NULL, next_span());
}

static void op_load(void)
{
    const uint8_t what = next_byte();
    struct kvb_load_report report = { .worker_id = 1 + (what & 3), .dp_rank = what >> 2 & 1 };

    report.load.request_total_slots = next_byte();
    report.load.request_active_slots = next_byte();
    report.load.kv_total_blocks = next_byte();
    report.load.num_requests_waiting = next_byte();
    kvb_buf_reset(&world.buf);
    if (kvb_load_json_encode(&report, &world.buf) == KVB_OK) {
        fake_bus_deliver("namespace.n.component.c.load_metrics", NULL, kvb_buf_span(&world.buf));
    }
}

static void op_service(void)
{
    const uint8_t what = next_byte();

    fake_bus_deliver(what & 1 ? "$SRV.PING" : "$SRV.STATS", "_INBOX.any.7", next_span());
}

static void op_goodbye(void)
{
    send_beat(&world.bridges[attacked], true);
}

static void (*const operations[])(void) = {
    op_pass_time,    op_touch,      op_touch_other, op_lose,    op_raw,
    op_forge_events, op_forge_beat, op_repeat,      op_restart, op_sync_way,
    op_answer,       op_nats,       op_request,     op_route,   op_http,
    op_books,        op_load,       op_service,     op_goodbye,
};

/* ---- What must hold ---- */

static const struct kvb_follower *follower_of(uint64_t worker_id)
{
    const struct kvb_followers *followers = world.aggregator->followers;

    for (size_t i = 0; i < kvb_followers_limit(followers); i++) {
        const struct kvb_follower *follower = kvb_followers_at(followers, i);
        if (follower && follower->id.worker_id == worker_id && follower->id.dp_rank == 0 &&
            strcmp(follower->id.component, "c") == 0 && strcmp(follower->id.name_space, "n") == 0) {
            return follower;
        }
    }
    return NULL;
}

static bool is_exact(uint64_t worker_id)
{
    const struct kvb_follower *follower = follower_of(worker_id);

    return follower && follower->state == KVB_STREAM_EXACT;
}

static void check_left_alone(void)
{
    uint64_t blocks = 0;

    (void)digest_of(&world.bridges[left_alone], &blocks);
    if (is_exact(left_alone)) {
        check(
            kvb_followers_blocks(
                world.aggregator->followers, follower_of(left_alone), KVB_TIER_DEVICE) == blocks);
    }
}

/* The number of blocks of the path that the worker holds, by the answer. */
static int64_t answered_blocks(uint64_t worker_id)
{
    json_object *workers = NULL;

    check(world.answer && json_object_object_get_ex(world.answer, "workers", &workers));
    for (size_t i = 0; i < json_object_array_length(workers); i++) {
        json_object *row = json_object_array_get_idx(workers, i);
        json_object *value = NULL;
        check(json_object_object_get_ex(row, "worker_id", &value));
        const bool is_it = json_object_get_uint64(value) == worker_id;
        check(json_object_object_get_ex(row, "dp_rank", &value));
        if (is_it && json_object_get_int64(value) == 0) {
            check(json_object_object_get_ex(row, "blocks", &value));
            return json_object_get_int64(value);
        }
    }
    return 0;
}

static int64_t held_of_path(const struct bridge *bridge, unsigned block)
{
    unsigned path[8];
    const size_t count = path_to(block, path);
    int64_t held = 0;

    while ((size_t)held < count && bridge->held[path[held]]) {
        held++;
    }
    return held;
}

static bool is_query_sent;
static unsigned queried_block;

/* Sends one query a turn, for one path, and checks its answer in the next turn.  True: all paths
 * were checked and were right. */
static bool check_answers(void)
{
    if (is_query_sent) {
        for (size_t i = attacked; i < streams; i++) {
            check(answered_blocks(i) == held_of_path(&world.bridges[i], queried_block));
        }
        queried_block++;
        is_query_sent = false;
    }
    if (queried_block == fake_blocks) {
        return true;
    }
    kvb_buf_reset(&world.buf);
    make_query(queried_block, "", &world.buf);
    is_query_sent = true;
    fake_bus_deliver(
        "namespace.n.component.Router.kv_match", "_INBOX.query.7", kvb_buf_span(&world.buf));
    return false;
}

static void begin_repair(void)
{
    world.is_repairing = true;
    fake_bus_connect();
    for (size_t i = attacked; i < streams; i++) {
        world.bridges[i].answer = SYNC_HONEST;
    }
}

static void work_repair(void)
{
    world.repair_ms += turn_ms;
    if (world.repair_ms > max_repair_ms) {
        for (size_t i = attacked; i < streams; i++) {
            const struct kvb_follower *follower = follower_of(i);
            (void)fprintf(
                stderr, "stream %zu: %s %s\n", i,
                follower ? kvb_stream_state_name(follower->state) : "unknown",
                follower ? kvb_stream_reason_name(follower->reason) : "");
        }
        abort();
    }
    if (is_query_sent ||
        (world.repair_ms >= min_repair_ms && is_exact(attacked) && is_exact(left_alone))) {
        atomic_store(&world.aggregator->loop->is_stopping, check_answers());
    }
}

/* ---- A turn: whenever the aggregator waits ---- */

static void turn(void)
{
    check_left_alone();
    fake_clock_advance_ms(turn_ms);
    send_due_beats();
    if (world.is_repairing) {
        work_repair();
    } else if (next_operation()) {
        operations[next_byte() % KVB_COUNT_OF(operations)]();
    } else {
        begin_repair();
    }
}

/* The name is the linker's.  NOLINTBEGIN(bugprone-*,cert-*,readability-identifier-naming) */
int __real_poll(struct pollfd *fds, nfds_t count, int timeout_ms);
int __wrap_poll(struct pollfd *fds, nfds_t count, int timeout_ms);
int __wrap_poll(struct pollfd *fds, nfds_t count, int timeout_ms)
{
    if (!world.aggregator) {
        return __real_poll(fds, count, timeout_ms);
    }
    for (nfds_t i = 0; i < count; i++) {
        fds[i].revents = 0;
    }
    turn();
    return 0;
}
/* NOLINTEND(bugprone-*,cert-*,readability-identifier-naming) */

/* ---- Beginning and end ---- */

static void read_config(void)
{
    static const char text[] =
        "router = { namespace = \"n\"; component = \"Router\"; queue_group = \"\"; };\n"
        "limits = { max_index_blocks = 65536; event_ring = 1024; query_ring = 64; };\n"
        "http = \"\";\n";
    struct kvb_conf_errors *errors = calloc(1, sizeof *errors);
    const int fd = memfd_create("kvaggregator.cfg", 0);
    char path[64];

    check(errors && fd >= 0 && write(fd, text, sizeof text - 1) == (ssize_t)(sizeof text - 1));
    (void)snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    check(kvb_aggregator_config_read(path, &world.config, errors) == KVB_OK);
    (void)close(fd);
    free(errors);
}

static void begin(void)
{
    struct kvb_detail detail = { { 0 } };
    struct kvb_aggregator *aggregator = NULL;

    fake_clock_reset();
    fake_threads_hold(kvb_loop_run, while_waiting); /* each wait is one for that thread */
    fake_bus_reset(&(struct fake_bus_options){ published });
    kvb_buf_init(&world.buf, 1 << 20);
    world.log = (struct kvb_log){ .level = KVB_LOG_ERROR, .fd = open("/dev/null", O_WRONLY) };
    read_config();
    check(kvb_aggregator_start(&world.config, &world.log, &aggregator, &detail) == KVB_OK);
    world.aggregator = aggregator;
    for (size_t i = attacked; i < streams; i++) {
        struct bridge *bridge = &world.bridges[i];
        bridge->worker_id = i;
        open_epoch(bridge);
        for (unsigned block = 0; block < 4; block++) {
            touch(bridge, block);
        }
    }
    is_query_sent = false;
    queried_block = 0;
}

static void end(void)
{
    struct kvb_aggregator *aggregator = world.aggregator;

    world.aggregator = NULL; /* poll() is the real one again */
    fake_bus_disconnect();   /* what is published from here on is not read */
    kvb_aggregator_stop(aggregator);
    fake_threads_release();
    kvb_aggregator_config_done(&world.config);
    kvb_router_batch_done(&world.batch);
    kvb_buf_done(&world.buf);
    json_object_put(world.answer);
    for (size_t i = 0; i < max_past; i++) {
        free(world.past[i].bytes);
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
