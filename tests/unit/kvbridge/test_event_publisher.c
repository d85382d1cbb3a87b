#include "kvb_test.h"

#include "bus_publish.h"

#include "core/limits.h"
#include "core/own.h"
#include "kvbridge/event_publisher.h"
#include "model/event_log.h"
#include "wire/router/json.h"
#include "wire/router/proto.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

/* Captures each message that the publisher sends. The linker puts the functions below in the place
 * of those of the bus (--wrap). */
enum { max_messages = 256 };

static const unsigned json = 1U << KVB_FORMAT_JSON;
static const unsigned protobuf = 1U << KVB_FORMAT_PROTOBUF;
static const unsigned all_lists = (1U << KVB_LIST_COUNT) - 1;

static struct {
    struct kvb_router_batch messages[max_messages]; /* decoded as a reader does */
    /* number sent to the subject of window events */
    bool is_window[max_messages];
    size_t count;
    size_t takes; /* after this many messages NATS is away */
    size_t max_payload;
} nats;

static kvb_status take_message(kvb_span payload)
{
    if (nats.takes == 0) {
        return KVB_AGAIN;
    }
    nats.takes--;
    if (payload.len > nats.max_payload) {
        return KVB_TOO_LARGE;
    }
    assert_true(nats.count < max_messages);
    assert_ok(kvb_router_payload_decode(payload, &nats.messages[nats.count++]));
    return KVB_OK;
}

static kvb_status publish_one(const char *subject, kvb_span payload)
{
    const bool is_window = strcmp(subject, "namespace.a.component.b.kv_window_events") == 0;

    if (!is_window) {
        assert_string_equal(
            subject, payload.len > 0 && payload.data[0] == '{'
                         ? "namespace.a.component.b.kv_events"
                         : "namespace.a.component.b.kv_events_pb");
    }
    nats.is_window[nats.count] = is_window;
    return take_message(payload);
}

/* The linker prescribes these names. NOLINTBEGIN(bugprone-*,cert-*,readability-*) */
kvb_status __wrap_kvb_bus_publish_many(
    struct kvb_bus *bus, const char *subject, const kvb_span *payloads, size_t count,
    size_t *out_sent);
kvb_status __wrap_kvb_bus_publish_many(
    struct kvb_bus *bus, const char *subject, const kvb_span *payloads, size_t count,
    size_t *out_sent)
{
    kvb_status status = KVB_OK;

    (void)bus;
    for (*out_sent = 0; *out_sent < count && status == KVB_OK; *out_sent += status == KVB_OK) {
        status = publish_one(subject, payloads[*out_sent]);
    }
    return status;
}

size_t __wrap_kvb_bus_max_payload(const struct kvb_bus *bus);
size_t __wrap_kvb_bus_max_payload(const struct kvb_bus *bus)
{
    (void)bus;
    return nats.max_payload;
}
/* NOLINTEND(bugprone-*,cert-*,readability-*) */

/* The logs of the streams, by worker and rank, with what a stream keeps of each. */
static struct stream_log {
    uint64_t worker_id;
    uint32_t dp_rank;
    struct kvb_event_log *log;
    uint64_t next_id;
} logs[4];

static struct stream_log *log_of(uint64_t worker_id, uint32_t dp_rank)
{
    struct stream_log *log = logs;

    while (log->log && (log->worker_id != worker_id || log->dp_rank != dp_rank)) {
        log++;
    }
    assert_true(log < logs + KVB_COUNT_OF(logs));
    if (!log->log) {
        *log = (struct stream_log){ .worker_id = worker_id, .dp_rank = dp_rank };
        assert_ok(kvb_event_log_new(kvb_publisher_log_blocks, &log->log));
    }
    return log;
}

/* Puts the events into the log of their stream, as the stream does, and publishes them. */
static kvb_status
add_batch(struct kvb_event_publisher *publisher, const struct kvb_router_batch *batch)
{
    struct stream_log *log = log_of(batch->worker_id, batch->dp_rank);

    if (batch->events[0].event_id != log->next_id) {
        kvb_event_log_begin_range(log->log);
    }
    log->next_id = batch->events[batch->event_count - 1].event_id + 1;
    kvb_event_log_add(log->log, batch);
    return kvb_event_publisher_add(publisher, batch, log->log);
}

static struct kvb_event_publisher *begin(unsigned formats)
{
    struct kvb_event_publisher *publisher = malloc(sizeof *publisher);

    assert_non_null(publisher);
    nats.takes = SIZE_MAX;
    nats.max_payload = 1 << 20;
    assert_ok(kvb_event_publisher_init(publisher, NULL, formats, all_lists, "a", "b"));
    return publisher;
}

static void end(struct kvb_event_publisher *publisher)
{
    kvb_event_publisher_done(publisher);
    free(publisher);
    for (size_t i = 0; i < nats.count; i++) {
        kvb_router_batch_done(&nats.messages[i]);
        nats.messages[i] = (struct kvb_router_batch){ 0 };
    }
    nats.count = 0;
    for (size_t i = 0; i < KVB_COUNT_OF(logs); i++) {
        kvb_event_log_free(logs[i].log);
        logs[i] = (struct stream_log){ .log = NULL };
    }
}

/* Adds the stored event `id` with this many blocks, of this worker and rank, in epoch `epoch`. */
static kvb_status add_of(
    struct kvb_event_publisher *publisher, uint64_t worker_id, uint32_t dp_rank, uint8_t epoch,
    uint64_t id, uint32_t blocks)
{
    struct kvb_router_batch batch = { .worker_id = worker_id,
                                      .dp_rank = dp_rank,
                                      .has_epoch = true,
                                      .epoch = { .bytes = { epoch } } };
    const struct kvb_router_event event = { .kind = KVB_ROUTER_STORED, .event_id = id };

    assert_ok(kvb_router_batch_add_event(&batch, &event));
    for (uint32_t i = 0; i < blocks; i++) {
        assert_ok(kvb_router_batch_add_block(
            &batch, (kvb_block_hash){ 1000 * id + i }, (kvb_tokens_hash){ i }));
    }
    const kvb_status status = add_batch(publisher, &batch);
    kvb_router_batch_done(&batch);
    return status;
}

/* The same for worker 7. */
static kvb_status
add(struct kvb_event_publisher *publisher, uint8_t epoch, uint64_t id, uint32_t blocks)
{
    return add_of(publisher, 7, 0, epoch, id, blocks);
}

static void assert_message(size_t number, uint64_t first_id, size_t events)
{
    const struct kvb_router_batch *message = &nats.messages[number];

    assert_true(number < nats.count);
    assert_int_equal(message->worker_id, 7);
    assert_int_equal(message->event_count, events);
    for (size_t i = 0; i < events; i++) {
        const struct kvb_router_event *event = &message->events[i];
        assert_int_equal(event->event_id, first_id + i);
        for (uint32_t at = 0; at < event->block_count; at++) {
            assert_int_equal(
                message->blocks[event->block_at + at].value, 1000 * (first_id + i) + at);
        }
    }
}

static void an_event_that_does_not_follow_starts_a_new_message(void **state)
{
    (void)state;
    struct kvb_event_publisher *publisher = begin(protobuf);

    assert_ok(add(publisher, 1, 5, 1));
    assert_ok(add(publisher, 1, 7, 1)); /* an id is missing before it */
    assert_ok(add(publisher, 2, 8, 1)); /* another epoch */
    assert_ok(kvb_event_publisher_send(publisher));
    assert_int_equal(nats.count, 3);
    assert_message(0, 5, 1);
    assert_message(1, 7, 1);
    assert_message(2, 8, 1);
    assert_int_equal(nats.messages[1].epoch.bytes[0], 1);
    assert_int_equal(nats.messages[2].epoch.bytes[0], 2);
    end(publisher);
}

/* Adds stored events from id 1 on, in one batch. */
static kvb_status add_many(struct kvb_event_publisher *publisher, uint64_t events, uint32_t blocks)
{
    struct kvb_router_batch batch = { .worker_id = 7, .has_epoch = true };

    for (uint64_t id = 1; id <= events; id++) {
        const struct kvb_router_event event = {
            .kind = KVB_ROUTER_STORED, .event_id = id, .has_parent = true, .parent = { UINT64_MAX }
        };
        assert_ok(kvb_router_batch_add_event(&batch, &event));
        for (uint32_t i = 0; i < blocks; i++) {
            assert_ok(kvb_router_batch_add_block(
                &batch, (kvb_block_hash){ UINT64_MAX - i }, (kvb_tokens_hash){ UINT64_MAX - i }));
        }
    }
    const kvb_status status = add_batch(publisher, &batch);
    kvb_router_batch_done(&batch);
    return status;
}

static void all_messages_fit_the_servers_max_payload(void **state)
{
    static const struct {
        uint64_t events;
        uint32_t blocks;
    } shapes[] = { { 40, kvb_max_event_blocks }, { 9000, 1 }, { 6000, 2 } };

    (void)state;
    for (size_t i = 0; i < KVB_COUNT_OF(shapes); i++) {
        struct kvb_event_publisher *publisher = begin(protobuf);
        nats.max_payload = kvb_min_nats_payload_bytes;
        assert_ok(add_many(publisher, shapes[i].events, shapes[i].blocks));
        assert_ok(kvb_event_publisher_send(publisher));
        assert_int_equal(publisher->events, shapes[i].events);
        assert_in_range(nats.count, 2, shapes[i].events / 4); /* and the messages are well filled */
        end(publisher);
    }
}

static void the_largest_event_fits_as_json(void **state)
{
    (void)state;
    struct kvb_event_publisher *publisher = begin(json);

    nats.max_payload = kvb_min_nats_payload_bytes;
    assert_ok(add_many(publisher, 3, kvb_max_event_blocks));
    assert_ok(kvb_event_publisher_send(publisher));
    assert_int_equal(publisher->messages, 3);
    end(publisher);
}

static void waiting_events_are_bounded(void **state)
{
    (void)state;
    struct kvb_event_publisher *publisher = begin(protobuf);
    const uint32_t half = kvb_publisher_waiting_blocks / 2;

    assert_ok(add(publisher, 1, 1, half));
    /* both events with their overhead are above the ceiling */
    assert_ok(add(publisher, 1, 2, half));
    assert_int_equal(nats.count, 1);
    /* flushes nothing else first */
    assert_ok(add(publisher, 1, 3, 2 * kvb_publisher_waiting_blocks));
    assert_int_equal(nats.count, 3);
    assert_message(0, 1, 1);
    assert_message(1, 2, 1);
    assert_message(2, 3, 1);
    end(publisher);
}

/* What waits lies in the rings of the log: also where they end, and with a slice behind it. */
static void events_that_wait_outlive_a_slice_wherever_they_are(void **state)
{
    (void)state;
    struct kvb_event_publisher *publisher = begin(protobuf);
    uint64_t id = 1;

    for (uint32_t blocks = 1; blocks < 60; blocks++) {
        uint64_t events = 0;
        for (; events < kvb_publisher_waiting_blocks / (blocks + 1); events++) {
            assert_ok(add(publisher, 1, id + events, blocks));
        }
        for (; events < kvb_stream_slice_work / kvb_max_event_blocks; events++) {
            assert_ok(add(publisher, 1, id + events, kvb_max_event_blocks));
        }
        assert_ok(kvb_event_publisher_send(publisher));
        for (size_t i = 0; i < nats.count; i++) {
            assert_message(i, id, nats.messages[i].event_count);
            id += nats.messages[i].event_count;
            kvb_router_batch_done(&nats.messages[i]);
        }
        assert_int_equal(publisher->events, id - 1);
        nats.count = 0;
    }
    end(publisher);
}

/* The log has lost them: no memory, or too many at once.  Others follow nevertheless. */
static void events_that_the_log_has_dropped_are_lost_and_counted(void **state)
{
    (void)state;
    struct kvb_event_publisher *publisher = begin(protobuf);

    assert_ok(add(publisher, 1, 1, 1));
    kvb_event_log_clear(log_of(7, 0)->log);
    assert_int_equal(kvb_event_publisher_send(publisher), KVB_AGAIN);
    assert_int_equal(publisher->failures, 1);
    assert_int_equal(nats.count, 0);
    assert_ok(add(publisher, 1, 2, 1));
    assert_ok(kvb_event_publisher_send(publisher));
    assert_int_equal(nats.count, 1);
    assert_message(0, 2, 1);
    end(publisher);
}

static void messages_that_nats_refuses_are_dropped_and_counted(void **state)
{
    static const unsigned formats[] = { json, protobuf };

    (void)state;
    for (size_t i = 0; i < KVB_COUNT_OF(formats); i++) {
        struct kvb_event_publisher *publisher = begin(formats[i]);
        assert_ok(add(publisher, 1, 1, 1));
        nats.takes = 0;
        assert_int_equal(kvb_event_publisher_send(publisher), KVB_AGAIN);
        nats.takes = SIZE_MAX;
        assert_ok(kvb_event_publisher_send(publisher)); /* nothing is left */
        assert_int_equal(nats.count, 0);
        assert_int_equal(publisher->failures, 1);
        assert_int_equal(publisher->events, 0);
        assert_ok(add(publisher, 1, 2, 1));
        assert_ok(kvb_event_publisher_send(publisher));
        assert_message(0, 2, 1);
        end(publisher);
    }
}

/* ---- The window list ---- */

/* An event of one block of the window list, or a clear of all lists. */
static void add_to_list(
    struct kvb_event_publisher *publisher, enum kvb_router_kind kind, enum kvb_tier list,
    uint64_t id)
{
    struct kvb_router_batch batch = { .worker_id = 7, .has_epoch = true };
    const struct kvb_router_event event = { .kind = kind, .tier = list, .event_id = id };

    assert_ok(kvb_router_batch_add_event(&batch, &event));
    if (kind != KVB_ROUTER_CLEARED) {
        assert_ok(kvb_router_batch_add_block(
            &batch, (kvb_block_hash){ 1000 * id }, (kvb_tokens_hash){ 1 }));
    }
    assert_ok(add_batch(publisher, &batch));
    kvb_router_batch_done(&batch);
}

static void json_window_events_have_a_subject_of_their_own(void **state)
{
    (void)state;
    static const struct {
        enum kvb_router_kind kind;
        enum kvb_tier list;
        bool is_window;
    } events[] = {
        { KVB_ROUTER_CLEARED, KVB_TIER_DEVICE, false },
        { KVB_ROUTER_STORED, KVB_TIER_DEVICE, false },
        { KVB_ROUTER_STORED, KVB_LIST_WINDOW, true },
        { KVB_ROUTER_REMOVED, KVB_LIST_WINDOW, true },
        { KVB_ROUTER_STORED, KVB_TIER_HOST, false },
        { KVB_ROUTER_STORED, KVB_LIST_WINDOW, true },
        { KVB_ROUTER_CLEARED, KVB_TIER_DEVICE, false },
    };
    struct kvb_event_publisher *publisher = begin(json);

    for (size_t i = 0; i < KVB_COUNT_OF(events); i++) {
        add_to_list(publisher, events[i].kind, events[i].list, i + 1);
    }
    assert_ok(kvb_event_publisher_send(publisher));
    assert_int_equal(nats.count, KVB_COUNT_OF(events));
    assert_int_equal(publisher->messages, KVB_COUNT_OF(events));
    /* in the order of their ids, on both subjects together */
    for (size_t i = 0; i < nats.count; i++) {
        assert_int_equal(nats.messages[i].events[0].event_id, i + 1);
        assert_int_equal(nats.messages[i].events[0].tier, events[i].list);
        assert_int_equal(nats.is_window[i], events[i].is_window);
    }
    end(publisher);
}

SUITE(event_publisher)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_event_that_does_not_follow_starts_a_new_message),
        cmocka_unit_test(all_messages_fit_the_servers_max_payload),
        cmocka_unit_test(the_largest_event_fits_as_json),
        cmocka_unit_test(waiting_events_are_bounded),
        cmocka_unit_test(events_that_wait_outlive_a_slice_wherever_they_are),
        cmocka_unit_test(events_that_the_log_has_dropped_are_lost_and_counted),
        cmocka_unit_test(messages_that_nats_refuses_are_dropped_and_counted),
        cmocka_unit_test(json_window_events_have_a_subject_of_their_own),
    };
    on_bus_publish = publish_one;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
