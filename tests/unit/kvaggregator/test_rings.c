#include "kvaggregator/inside.h"

#include "core/clock.h"
#include "fail_alloc.h"
#include "kvb_test.h"

#include <stdlib.h>
#include <string.h>

/* The rings between the threads of an aggregator, tested without threads: an aggregator of which
 * only these parts are made. */

enum { places = 16 };

struct half {
    struct kvb_aggregator aggregator;
    struct kvb_prefix_index *index;
};

static void make_half(struct half *half)
{
    struct kvb_aggregator *aggregator = &half->aggregator;
    const struct kvb_prefix_index_options index = { .max_nodes = 100, .max_slots = 10 };

    *half = (struct half){ 0 };
    assert_ok(kvb_prefix_index_new(&index, &half->index));
    const struct kvb_followers_options followers = { .max_streams = 10,
                                                     .heartbeat_ms = 1000,
                                                     .forget_ms = 60000,
                                                     .max_window_blocks = 10,
                                                     .index = half->index };
    assert_ok(kvb_followers_new(&followers, &aggregator->followers));
    assert_ok(kvb_requests_new(
        &(struct kvb_requests_options){ .max_requests = 10, .max_streams = 10 },
        &aggregator->requests));
    assert_ok(kvb_predictions_new(
        &(struct kvb_predictions_options){ .max_blocks = 10, .max_streams = 10 },
        &aggregator->predictions));
    assert_ok(kvb_audit_new(
        &(struct kvb_audit_options){
            .max_streams = 10, .honest_loss = 0.005, .lie = 0.05, .false_alarm_requests = 1e8 },
        &aggregator->audit));
    aggregator->turn = (struct kvb_replica_turn){ .world = &kvb_aggregator_world,
                                                  .context = aggregator,
                                                  .followers = aggregator->followers };
    assert_ok(kvb_ring_new(places, kvb_aggregator_drop_query, &aggregator->queries));
    assert_ok(kvb_ring_new(places, kvb_aggregator_drop_event, &aggregator->events));
    kvb_aggregator_init_pool(aggregator);
    kvb_byte_budget_init(&aggregator->query_bytes, 1 << 16);
    (void)pthread_mutex_init(&aggregator->service.lock, NULL);
    aggregator->metrics = (struct kvb_metrics){ .rows = kvb_aggregator_metric_rows,
                                                .values = aggregator->values,
                                                .count = kvb_aggregator_metric_count };
}

static void take_messages(struct half *half, uint64_t now_ns)
{
    while (kvb_aggregator_take_message(&half->aggregator, now_ns)) {
    }
}

static void drop_half(struct half *half)
{
    struct kvb_aggregator *aggregator = &half->aggregator;

    kvb_ring_free(aggregator->queries);
    kvb_ring_free(aggregator->events);
    kvb_aggregator_done_pool(aggregator);
    assert_int_equal(aggregator->query_bytes.taken_bytes, 0);
    kvb_byte_budget_done(&aggregator->query_bytes);
    (void)pthread_mutex_destroy(&aggregator->service.lock);
    kvb_bus_close(aggregator->bus);
    kvb_predictions_free(aggregator->predictions);
    kvb_requests_free(aggregator->requests);
    kvb_audit_free(aggregator->audit);
    kvb_followers_free(aggregator->followers);
    kvb_router_batch_done(&aggregator->batch);
    kvb_prefix_index_free(half->index);
}

/* Without subscribers: nobody receives the refusals. */
static void open_bus(struct half *half)
{
    const struct kvb_bus_options options = { .url = "nats://127.0.0.1:1", .name = "test" };
    struct kvb_detail detail = { { 0 } };

    assert_ok(kvb_bus_open(&options, &half->aggregator.bus, &detail));
}

static uint64_t metric(const struct half *half, enum kvb_aggregator_metric metric)
{
    return kvb_metric_get(&half->aggregator.metrics, metric);
}

/* ---- Queries ---- */

/* Its tokens take about 40 KiB in the queue. */
static void make_large_query(struct kvb_buf *buf)
{
    kvb_buf_init(buf, 1 << 20);
    assert_ok(kvb_buf_append_text(buf, "{\"token_ids\":[1"));
    for (int i = 1; i < 10000; i++) {
        assert_ok(kvb_buf_append_text(buf, ",1"));
    }
    assert_ok(kvb_buf_append_text(buf, "]}"));
}

static void on_message(struct half *half, const struct kvb_buf *body)
{
    const struct kvb_bus_message message = { .subject =
                                                 "namespace.dynamo.component.Router.kv_match",
                                             .reply = "inbox",
                                             .payload = kvb_buf_span(body) };

    kvb_aggregator_receive_query(&half->aggregator, &message);
}

static void waiting_queries_are_bounded_in_bytes_too(void **state)
{
    (void)state;
    struct half half;
    struct kvb_buf body;
    make_half(&half);
    open_bus(&half);
    make_large_query(&body);

    on_message(&half, &body);
    assert_int_equal(kvb_ring_count(half.aggregator.queries), 1);
    on_message(&half, &body); /* there are free places, but no bytes left */
    assert_int_equal(kvb_ring_count(half.aggregator.queries), 1);
    assert_int_equal(metric(&half, kvb_aggregator_queries_memory), 1);
    assert_int_equal(metric(&half, kvb_aggregator_queries_refused), 0);

    void *item = NULL;
    assert_ok(kvb_ring_take(half.aggregator.queries, &item));
    kvb_aggregator_drop_query(item); /* which releases its bytes */
    on_message(&half, &body);
    assert_int_equal(kvb_ring_count(half.aggregator.queries), 1);
    assert_int_equal(metric(&half, kvb_aggregator_queries_memory), 1);
    kvb_buf_done(&body);
    drop_half(&half);
}

static void a_full_ring_is_busy_and_keeps_no_bytes(void **state)
{
    (void)state;
    struct half half;
    struct kvb_buf body;
    make_half(&half);
    open_bus(&half);
    kvb_buf_init(&body, 4096);
    assert_ok(kvb_buf_append_text(&body, "{\"token_ids\":[1]}"));

    for (int i = 0; i < 20; i++) {
        on_message(&half, &body);
    }
    assert_int_equal(metric(&half, kvb_aggregator_queries_refused), 4);
    assert_int_equal(metric(&half, kvb_aggregator_queries_memory), 0);
    kvb_buf_done(&body);
    drop_half(&half); /* checks that all bytes were released */
}

/* ---- Long prompts over NATS ---- */

/* 64 KiB and more. */
static void make_long_query(struct kvb_buf *buf)
{
    kvb_buf_init(buf, 1 << 20);
    assert_ok(kvb_buf_append_text(buf, "{\"token_ids\":[1"));
    for (int i = 1; i < 40000; i++) {
        assert_ok(kvb_buf_append_text(buf, ",1"));
    }
    assert_ok(kvb_buf_append_text(buf, "]}"));
}

static void make_half_with_long_queries(struct half *half)
{
    make_half(half);
    open_bus(half);
    kvb_byte_budget_init(&half->aggregator.query_bytes, 1 << 20);
    assert_ok(kvb_aggregator_make_long_queries(&half->aggregator));
}

/* The thread ends when all are read. */
static void read_long_queries(struct half *half)
{
    kvb_ring_close(half->aggregator.long_queries);
    assert_null(kvb_aggregator_read_long_queries(&half->aggregator));
}

static void drop_half_with_long_queries(struct half *half)
{
    kvb_ring_free(half->aggregator.long_queries);
    drop_half(half); /* checks that all bytes were released */
}

static void a_long_prompt_that_finds_no_place_is_read_at_once(void **state)
{
    enum { long_places = 64 };
    (void)state;
    struct half half;
    struct kvb_buf body;
    make_half_with_long_queries(&half);
    make_long_query(&body);

    for (int i = 0; i < long_places + 1; i++) {
        on_message(&half, &body);
    }
    assert_int_equal(kvb_ring_count(half.aggregator.long_queries), long_places);
    assert_int_equal(kvb_ring_count(half.aggregator.queries), 1);
    kvb_buf_done(&body);
    drop_half_with_long_queries(&half);
}

static void a_long_prompt_for_which_there_is_no_memory_is_refused(void **state)
{
    (void)state;
    struct half half;
    struct kvb_buf body;
    make_half_with_long_queries(&half);
    kvb_byte_budget_init(&half.aggregator.query_bytes, 1 << 16);
    make_long_query(&body);

    on_message(&half, &body); /* alone it is accepted */
    on_message(&half, &body);
    read_long_queries(&half);
    assert_int_equal(kvb_ring_count(half.aggregator.queries), 1);
    assert_int_equal(metric(&half, kvb_aggregator_queries_memory), 1);
    kvb_buf_done(&body);
    drop_half_with_long_queries(&half);
}

/* ---- The rest of a message that was applied in part ---- */

static void leave_rest(struct half *half, uint64_t worker_id)
{
    struct kvb_aggregator *aggregator = &half->aggregator;
    const struct kvb_router_event event = { .kind = KVB_ROUTER_CLEARED, .event_id = 1 };

    kvb_router_batch_reset(&aggregator->batch);
    assert_ok(kvb_router_batch_add_event(&aggregator->batch, &event));
    aggregator->next_event = 0;
    aggregator->batch_id = (struct kvb_stream_id){ .worker_id = worker_id };
}

static void errors_in_the_rest_of_a_message_are_counted_by_kind(void **state)
{
    (void)state;
    struct half half;
    make_half(&half);

    leave_rest(&half, 0);
    fail_alloc_after(0);
    take_messages(&half, 1);
    fail_alloc_after(-1);
    assert_int_equal(metric(&half, kvb_aggregator_refused_no_memory), 1);
    assert_int_equal(metric(&half, kvb_aggregator_refused_stream), 0);
    for (uint64_t worker = 0; worker < 10; worker++) {
        const struct kvb_stream_id id = { .worker_id = worker };
        const struct kvb_heartbeat heartbeat = { .worker_id = worker };
        assert_ok(kvb_followers_heartbeat(half.aggregator.followers, &id, &heartbeat, 1));
    }
    leave_rest(&half, 10); /* one more than the ceiling */
    take_messages(&half, 1);
    assert_int_equal(metric(&half, kvb_aggregator_refused_no_memory), 1);
    assert_int_equal(metric(&half, kvb_aggregator_refused_stream), 1);
    drop_half(&half);
}

/* ---- Lag ---- */

static void receive(struct half *half, enum intake_kind kind, const char *subject, kvb_span payload)
{
    struct intake intake = { .aggregator = &half->aggregator, .kind = kind };
    const struct kvb_bus_message message = { .subject = subject, .payload = payload };

    kvb_aggregator_receive(&intake, &message);
}

static void receive_event(struct half *half)
{
    static const char event[] = "{\"worker_id\":1,\"event\":{\"event_id\":1,\"data\":\"cleared\"}}";

    receive(half, KVB_INTAKE_EVENTS, "namespace.dynamo.component.W.kv_events", kvb_span_of(event));
}

static void receive_echo(struct half *half, uint64_t number)
{
    const struct kvb_echo echo = { .connects = 1, .number = number };

    receive(
        half, KVB_INTAKE_ECHO, "_INBOX.me.echo.0",
        (kvb_span){ .data = (const uint8_t *)&echo, .len = sizeof echo });
}

static const char *state_after(struct half *half, uint64_t now_ns)
{
    kvb_replica_watch_lag(&half->aggregator.turn, now_ns);
    return kvb_stream_reason_name(kvb_followers_at(half->aggregator.followers, 0)->reason);
}

static void make_half_with_echo(struct half *half)
{
    make_half(half);
    kvb_byte_budget_init(&half->aggregator.event_bytes, 1 << 16);
    receive_event(half);
    take_messages(half, 1);
}

static void drop_half_that_received(struct half *half)
{
    drop_half(half);
    kvb_byte_budget_done(&half->aggregator.event_bytes);
}

static void applied_messages_give_their_bytes_back_before_the_thread_waits(void **state)
{
    (void)state;
    struct half half;
    make_half_with_echo(&half);
    struct kvb_aggregator *aggregator = &half.aggregator;

    receive_event(&half);
    receive_event(&half);
    const size_t bytes = aggregator->event_bytes.taken_bytes;
    assert_true(bytes > 0);
    assert_true(kvb_aggregator_take_message(aggregator, 1));
    assert_int_equal(aggregator->event_bytes.taken_bytes, bytes); /* freed with the next ones */
    take_messages(&half, 1);
    assert_int_equal(aggregator->event_bytes.taken_bytes, 0);
    assert_int_equal(aggregator->received_pool.spare_count, 2);
    receive_event(&half);
    assert_int_equal(aggregator->received_pool.spare_count, 1); /* nothing is allocated */
    drop_half_that_received(&half);
}

static void many_applied_messages_give_their_bytes_back_at_once(void **state)
{
    (void)state;
    struct half half;
    make_half_with_echo(&half);

    for (int i = 0; i < kvb_aggregator_applied_messages; i++) {
        assert_true(half.aggregator.event_bytes.taken_bytes > 0 || i == 0);
        receive_event(&half);
        assert_true(kvb_aggregator_take_message(&half.aggregator, 1));
    }
    assert_int_equal(half.aggregator.event_bytes.taken_bytes, 0);
    drop_half_that_received(&half);
}

static void the_rest_of_a_message_has_waited_as_long_as_its_beginning(void **state)
{
    (void)state;
    struct half half;
    make_half_with_echo(&half);

    leave_rest(&half, 1);
    half.aggregator.batch_arrived_ns = 1;
    assert_string_equal(state_after(&half, 1 + KVB_NS_PER_S), "lagging");
    half.aggregator.next_event = half.aggregator.batch.event_count;
    assert_string_equal(state_after(&half, 2 * KVB_NS_PER_S), "no_heartbeat");
    drop_half_that_received(&half);
}

/* ---- Losses ---- */

/* Its list can be proven, and so become doubtful. */
static void hear_of_stream(struct half *half)
{
    const struct kvb_stream_id id = { .name_space = "dynamo", .component = "W", .worker_id = 1 };
    const struct kvb_heartbeat heartbeat = { .worker_id = 1, .last_id = 1 };

    assert_ok(kvb_followers_heartbeat(half->aggregator.followers, &id, &heartbeat, 1));
}

static const char *reason_now(const struct half *half)
{
    return kvb_stream_reason_name(kvb_followers_at(half->aggregator.followers, 0)->reason);
}

static void what_finds_no_room_in_the_ring_is_dropped_and_counted(void **state)
{
    (void)state;
    struct half half;
    make_half_with_echo(&half);

    hear_of_stream(&half);
    assert_string_not_equal(reason_now(&half), "lagging");
    for (int i = 0; i < places + 3; i++) {
        receive_event(&half); /* returns: other subscriptions share its thread */
    }
    assert_int_equal(kvb_ring_count(half.aggregator.events), places);
    assert_int_equal(metric(&half, kvb_aggregator_refused_ring_full), 3);
    take_messages(&half, 1);
    assert_string_equal(reason_now(&half), "lagging"); /* also when nothing comes after them */
    assert_int_equal(half.aggregator.event_bytes.taken_bytes, 0);
    receive_event(&half);
    assert_int_equal(metric(&half, kvb_aggregator_refused_ring_full), 3);
    drop_half_that_received(&half);
}

/* A heartbeat from before a loss may prove a list, one from behind it may not. */
static void a_loss_is_known_where_it_happened_among_the_messages(void **state)
{
    (void)state;
    struct half half;
    make_half_with_echo(&half);

    hear_of_stream(&half);
    for (int i = 0; i < places + 1; i++) {
        receive_event(&half);
    }
    assert_true(kvb_aggregator_take_message(&half.aggregator, 1));
    receive_event(&half); /* the first one behind the loss */
    for (int i = 0; i < places - 1; i++) {
        assert_true(kvb_aggregator_take_message(&half.aggregator, 1));
    }
    assert_string_not_equal(reason_now(&half), "lagging");
    assert_true(kvb_aggregator_take_message(&half.aggregator, 1));
    assert_string_equal(reason_now(&half), "lagging");
    drop_half_that_received(&half);
}

static void bytes_and_memory_that_are_short_lose_messages_too(void **state)
{
    (void)state;
    struct half half;
    make_half_with_echo(&half);

    half.aggregator.event_bytes.limit_bytes = 1; /* alone it is accepted */
    receive_event(&half);
    receive_event(&half);
    assert_int_equal(metric(&half, kvb_aggregator_refused_ring_full), 1);
    half.aggregator.event_bytes.limit_bytes = 1 << 16;
    fail_alloc_after(0);
    receive_event(&half);
    receive_event(&half); /* the first one may have used what was spare */
    fail_alloc_after(-1);
    assert_true(metric(&half, kvb_aggregator_refused_no_memory) > 0);
    assert_int_equal(half.aggregator.lost, 1 + metric(&half, kvb_aggregator_refused_no_memory));
    drop_half_that_received(&half);
}

static void an_echo_is_applied_behind_all_that_came_before_it(void **state)
{
    (void)state;
    struct half half;
    make_half_with_echo(&half);

    receive_event(&half);
    receive_echo(&half, 7);
    receive_event(&half);
    assert_int_equal(half.aggregator.echo_returned, 7); /* NATS works, however long the ring is */
    assert_true(kvb_aggregator_take_message(&half.aggregator, 1));
    assert_int_equal(half.aggregator.echo_applied, 0);
    assert_true(kvb_aggregator_take_message(&half.aggregator, 1));
    assert_int_equal(half.aggregator.echo_applied, 7);
    drop_half_that_received(&half);
}

SUITE(rings)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(waiting_queries_are_bounded_in_bytes_too),
        cmocka_unit_test(a_full_ring_is_busy_and_keeps_no_bytes),
        cmocka_unit_test(a_long_prompt_that_finds_no_place_is_read_at_once),
        cmocka_unit_test(a_long_prompt_for_which_there_is_no_memory_is_refused),
        cmocka_unit_test(errors_in_the_rest_of_a_message_are_counted_by_kind),
        cmocka_unit_test(applied_messages_give_their_bytes_back_before_the_thread_waits),
        cmocka_unit_test(many_applied_messages_give_their_bytes_back_at_once),
        cmocka_unit_test(the_rest_of_a_message_has_waited_as_long_as_its_beginning),
        cmocka_unit_test(what_finds_no_room_in_the_ring_is_dropped_and_counted),
        cmocka_unit_test(a_loss_is_known_where_it_happened_among_the_messages),
        cmocka_unit_test(bytes_and_memory_that_are_short_lose_messages_too),
        cmocka_unit_test(an_echo_is_applied_behind_all_that_came_before_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
