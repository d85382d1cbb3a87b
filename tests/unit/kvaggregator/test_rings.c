#include "bus/bus.h"
#include "control/control.h"
#include "core/clock.h"
#include "core/limits.h"
#include "core/own.h"
#include "core/ring.h"
#include "fail_alloc.h"
#include "index/index.h"
#include "kvaggregator/config.h"
#include "kvaggregator/doors/doors.h"
#include "kvaggregator/group.h"
#include "kvaggregator/intake.h"
#include "kvaggregator/loop.h"
#include "kvaggregator/metrics.h"
#include "kvaggregator/parts.h"
#include "kvaggregator/pending.h"
#include "kvaggregator/queries.h"
#include "kvaggregator/report.h"
#include "kvaggregator/service.h"
#include "kvb_test.h"

#include <stdlib.h>
#include <string.h>

/* The rings between the threads of an aggregator, tested without threads: an aggregator of which
 * only these parts are made. */

enum { places = 16 };

struct half {
    struct kvb_aggregator aggregator;
    struct kvb_aggregator_config config;
    struct kvb_intake intake;
    struct kvb_queries queries;
    struct kvb_loop loop;
    struct kvb_group group;
    struct kvb_report report;
    struct kvb_aggregator_service service;
    struct kvb_query_context ctx;
    struct kvb_metrics metrics;
    _Atomic uint64_t values[kvb_aggregator_metric_count];
    struct kvb_prefix_index *index;
};

static void make_half(struct half *half)
{
    struct kvb_aggregator *aggregator = &half->aggregator;
    const struct kvb_prefix_index_options index = { .max_nodes = 100, .max_slots = 10 };

    *half = (struct half){ .config.limits.query_ring = places };
    *aggregator = (struct kvb_aggregator){ .config = &half->config,
                                           .intake = &half->intake,
                                           .queries = &half->queries,
                                           .loop = &half->loop,
                                           .group = &half->group,
                                           .report = &half->report,
                                           .service = &half->service,
                                           .ctx = &half->ctx,
                                           .metrics = &half->metrics };
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
    aggregator->loop->turn =
        (struct kvb_replica_turn){ .followers = aggregator->followers, .next_tick_ns = UINT64_MAX };
    half->ctx = (struct kvb_query_context){ .index = half->index,
                                            .followers = aggregator->followers,
                                            .default_model = "" };
    kvb_queries_init(aggregator->queries);
    aggregator->queries->bytes.limit_bytes = 1 << 16;
    assert_ok(kvb_control_new(&aggregator->control)); /* its thread does not run */
    assert_ok(kvb_queries_open(aggregator));
    assert_ok(kvb_door_open_prompts(aggregator));
    assert_ok(kvb_intake_init(aggregator->intake, places));
    (void)pthread_mutex_init(&aggregator->service->lock, NULL);
    half->metrics = (struct kvb_metrics){ .rows = kvb_aggregator_metric_rows,
                                          .values = half->values,
                                          .count = kvb_aggregator_metric_count };
}

static void take_messages(struct half *half, uint64_t now_ns)
{
    while (kvb_intake_take(&half->aggregator, now_ns)) {
    }
}

static void drop_half(struct half *half)
{
    struct kvb_aggregator *aggregator = &half->aggregator;

    kvb_door_close_prompts(aggregator);
    kvb_queries_close(aggregator);
    kvb_control_free(aggregator->control);
    kvb_query_context_done(aggregator->ctx);
    kvb_intake_done(aggregator->intake);
    assert_int_equal(aggregator->queries->bytes.taken_bytes, 0);
    assert_int_equal(aggregator->queries->large_answers, 0);
    kvb_queries_done(aggregator->queries);
    (void)pthread_mutex_destroy(&aggregator->service->lock);
    kvb_bus_close(aggregator->bus);
    kvb_predictions_free(aggregator->predictions);
    kvb_requests_free(aggregator->requests);
    kvb_audit_free(aggregator->audit);
    kvb_followers_free(aggregator->followers);
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
    return kvb_metric_get(half->aggregator.metrics, metric);
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

    kvb_door_receive_nats(&half->aggregator, &message);
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
    assert_int_equal(kvb_ring_count(half.aggregator.queries->ring), 1);
    on_message(&half, &body); /* there are free places, but no bytes left */
    assert_int_equal(kvb_ring_count(half.aggregator.queries->ring), 1);
    assert_int_equal(metric(&half, kvb_aggregator_queries_memory), 1);
    assert_int_equal(metric(&half, kvb_aggregator_queries_refused), 0);

    void *item = NULL;
    assert_ok(kvb_ring_take(half.aggregator.queries->ring, &item));
    kvb_pending_drop(item); /* which releases its bytes */
    on_message(&half, &body);
    assert_int_equal(kvb_ring_count(half.aggregator.queries->ring), 1);
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

static void a_prompt_that_cannot_be_read_needs_no_index(void **state)
{
    (void)state;
    struct half half;
    struct kvb_buf body;
    make_half(&half);
    open_bus(&half);
    kvb_buf_init(&body, 4096);
    assert_ok(kvb_buf_append_text(&body, "{\"token_ids\":7}"));

    on_message(&half, &body);
    assert_int_equal(kvb_ring_count(half.aggregator.queries->ring), 0);
    assert_int_equal(metric(&half, kvb_aggregator_queries_failed), 1);
    assert_int_equal(half.aggregator.service->counts[0].errors, 1);
    kvb_buf_done(&body);
    drop_half(&half);
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
    half->aggregator.queries->bytes.limit_bytes = 1 << 20;
}

static void a_long_prompt_for_which_there_is_no_memory_is_refused(void **state)
{
    (void)state;
    struct half half;
    struct kvb_buf body;
    make_half_with_long_queries(&half);
    half.aggregator.queries->bytes.limit_bytes = 1 << 16;
    make_long_query(&body);

    on_message(&half, &body); /* alone it is accepted */
    on_message(&half, &body);
    kvb_door_read_prompts(&half.aggregator);
    assert_int_equal(kvb_ring_count(half.aggregator.queries->ring), 1);
    assert_int_equal(metric(&half, kvb_aggregator_queries_memory), 1);
    kvb_buf_done(&body);
    drop_half(&half); /* checks that all bytes were released */
}

static void long_prompts_are_read_at_the_end_too(void **state)
{
    (void)state;
    struct half half;
    struct kvb_buf body;
    make_half_with_long_queries(&half);
    make_long_query(&body);

    on_message(&half, &body);
    assert_int_equal(kvb_ring_count(half.aggregator.queries->ring), 0);
    kvb_door_close_prompts(&half.aggregator);
    assert_int_equal(kvb_ring_count(half.aggregator.queries->ring), 1);
    on_message(&half, &body); /* its subscription is still there */
    assert_int_equal(kvb_ring_count(half.aggregator.queries->ring), 2);
    kvb_buf_done(&body);
    drop_half(&half); /* checks that all bytes were released */
}

/* ---- The ends of a query over HTTP ---- */

static void request_http(
    struct half *half, const char *method, const char *path, const char *body,
    struct kvb_http_answer *answer)
{
    const struct kvb_http_request request = { .method = method,
                                              .path = path,
                                              .parameters = "",
                                              .content_type = "application/json",
                                              .authorization = "",
                                              .if_none_match = "",
                                              .body = kvb_span_of(body) };

    *answer = (struct kvb_http_answer){ 0 };
    kvb_buf_init(&answer->body, kvb_max_answer_bytes);
    kvb_door_receive_http(&half->aggregator, &request, answer);
}

/* Nobody has heard of a stream, so the answer is 404. */
static void query_http(struct half *half, struct kvb_http_answer *answer)
{
    request_http(half, "POST", "/query", "{\"token_ids\":[1,2,3]}", answer);
}

static bool has_words(const struct kvb_http_answer *answer, const char *words)
{
    const kvb_span body = kvb_buf_span(&answer->body);

    return memmem(body.data, body.len, words, strlen(words)) != NULL;
}

static void a_connection_that_is_closed_leaves_its_query_to_the_index_thread(void **state)
{
    (void)state;
    struct half half;
    struct kvb_http_answer answer;
    make_half(&half);

    query_http(&half, &answer);
    answer.drop(answer.parts);
    assert_int_equal(kvb_ring_count(half.aggregator.queries->ring), 1);
    assert_true(half.aggregator.queries->bytes.taken_bytes > 0);
    assert_true(kvb_queries_take(&half.aggregator));
    assert_int_equal(half.aggregator.queries->bytes.taken_bytes, 0);
    kvb_buf_done(&answer.body);

    query_http(&half, &answer); /* the same when it was answered before */
    assert_true(kvb_queries_take(&half.aggregator));
    assert_true(half.aggregator.queries->bytes.taken_bytes > 0);
    answer.drop(answer.parts);
    assert_int_equal(half.aggregator.queries->bytes.taken_bytes, 0);
    kvb_buf_done(&answer.body);
    drop_half(&half);
}

static void a_query_that_waits_too_long_is_refused_and_ends_later(void **state)
{
    (void)state;
    struct half half;
    struct kvb_http_answer answer;
    make_half(&half);

    query_http(&half, &answer);
    answer.finish(answer.parts, &answer); /* the server's time for it is over */
    assert_int_equal(answer.status, 503);
    assert_null(answer.drop);
    assert_int_equal(metric(&half, kvb_aggregator_queries_late), 1);
    assert_true(kvb_queries_take(&half.aggregator));
    assert_int_equal(half.aggregator.queries->bytes.taken_bytes, 0);
    assert_int_equal(metric(&half, kvb_aggregator_queries_failed), 0); /* it was not answered */
    kvb_buf_done(&answer.body);
    drop_half(&half);
}

static void what_is_left_when_the_aggregator_stops_is_refused(void **state)
{
    (void)state;
    struct half half;
    struct kvb_http_answer waiting;
    struct kvb_http_answer later;
    make_half(&half);

    query_http(&half, &waiting);
    kvb_ring_close(half.aggregator.queries->ring);
    query_http(&half, &later);
    assert_null(later.finish);
    assert_int_equal(later.status, 503);
    assert_true(has_words(&later, "stopping"));
    kvb_door_close_prompts(&half.aggregator);
    kvb_queries_close(&half.aggregator);
    waiting.finish(waiting.parts, &waiting);
    assert_int_equal(waiting.status, 503);
    assert_true(has_words(&waiting, "stopping"));
    assert_int_equal(metric(&half, kvb_aggregator_queries_refused), 2);
    assert_int_equal(metric(&half, kvb_aggregator_queries_failed), 0); /* each is counted once */
    kvb_buf_done(&waiting.body);
    kvb_buf_done(&later.body);
    drop_half(&half);
}

/* Each allocation of the way fails once. */
static void a_query_without_memory_ends_where_it_is_received(void **state)
{
    (void)state;
    bool is_over = false;

    for (int n = 0; !is_over; n++) {
        struct half half;
        struct kvb_http_answer answer;
        make_half(&half);
        fail_alloc_after(n);
        query_http(&half, &answer);
        is_over = answer.finish != NULL;
        if (answer.finish) {
            fail_alloc_after(-1);
            assert_true(kvb_queries_take(&half.aggregator));
            answer.finish(answer.parts, &answer);
            assert_int_equal(answer.status, 404);
        }
        fail_alloc_after(-1);
        assert_true(answer.status >= 400);
        assert_null(answer.drop);
        assert_int_equal(
            metric(&half, kvb_aggregator_queries_refused) +
                metric(&half, kvb_aggregator_queries_failed),
            1);
        kvb_buf_done(&answer.body);
        drop_half(&half);
    }
}

static void a_dump_gives_its_place_among_large_answers_back(void **state)
{
    (void)state;
    struct half half;
    struct kvb_http_answer answers[kvb_max_large_dumps + 1];
    make_half(&half);
    half.aggregator.queries->bytes.limit_bytes = 1 << 20;

    for (size_t i = 0; i < KVB_COUNT_OF(answers); i++) {
        request_http(&half, "GET", "/dump", "", &answers[i]);
    }
    assert_int_equal(answers[kvb_max_large_dumps].status, 503);
    assert_int_equal(half.aggregator.queries->large_answers, kvb_max_large_dumps);
    while (kvb_queries_take(&half.aggregator)) {
    }
    for (size_t i = 0; i < kvb_max_large_dumps; i++) {
        answers[i].finish(answers[i].parts, &answers[i]);
        assert_int_equal(answers[i].status, 200);
    }
    for (size_t i = 0; i < KVB_COUNT_OF(answers); i++) {
        kvb_buf_done(&answers[i].body);
    }
    drop_half(&half);
}

/* ---- The rest of a message that was applied in part ---- */

static void leave_rest(struct half *half, uint64_t worker_id)
{
    struct kvb_aggregator *aggregator = &half->aggregator;
    const struct kvb_router_event event = { .kind = KVB_ROUTER_CLEARED, .event_id = 1 };

    kvb_router_batch_reset(&aggregator->intake->batch);
    assert_ok(kvb_router_batch_add_event(&aggregator->intake->batch, &event));
    aggregator->intake->next_event = 0;
    aggregator->intake->batch_id = (struct kvb_stream_id){ .worker_id = worker_id };
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

static void
receive(struct half *half, enum kvb_intake_kind kind, const char *subject, kvb_span payload)
{
    struct kvb_intake_subscription intake = { .aggregator = &half->aggregator, .kind = kind };
    const struct kvb_bus_message message = { .subject = subject, .payload = payload };

    kvb_loop_receive(&intake, &message);
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
    const struct kvb_replica_facts facts = { .now_ns = now_ns,
                                             .lag_ns =
                                                 kvb_intake_lag_ns(&half->aggregator, now_ns) };

    struct kvb_replica_turn *turn = &half->aggregator.loop->turn;
    struct kvb_replica_action action;
    turn->step = KVB_REPLICA_QUERIES; /* the messages of this turn are applied */
    turn->looked_ns = 0;              /* and it was never paused */
    assert_true(kvb_replica_next(turn, &facts, &action));
    return kvb_stream_reason_name(kvb_followers_at(half->aggregator.followers, 0)->reason);
}

/* Afterwards no applied message is kept, and items are spare. */
static void make_half_with_echo(struct half *half)
{
    make_half(half);
    kvb_byte_budget_init(&half->aggregator.intake->bytes, 1 << 16);
    for (int i = 0; i < kvb_intake_applied_messages; i++) {
        receive_event(half);
        take_messages(half, 1);
    }
}

static void applied_messages_are_freed_together_and_their_items_used_again(void **state)
{
    (void)state;
    struct half half;
    make_half_with_echo(&half);
    struct kvb_intake *intake = half.aggregator.intake;
    const size_t spare = intake->pool.spare_count;

    assert_int_equal(intake->bytes.taken_bytes, 0);
    for (int i = 0; i < kvb_intake_applied_messages - 1; i++) {
        receive_event(&half);
        take_messages(&half, 1);
        assert_true(intake->bytes.taken_bytes > 0); /* also while no more wait */
    }
    assert_true(intake->pool.spare_count < spare); /* nothing was allocated */
    receive_event(&half);
    take_messages(&half, 1);
    assert_int_equal(intake->bytes.taken_bytes, 0);
    assert_int_equal(intake->pool.spare_count, spare);
    drop_half(&half);
}

static void the_rest_of_a_message_has_waited_as_long_as_its_beginning(void **state)
{
    (void)state;
    struct half half;
    make_half_with_echo(&half);

    leave_rest(&half, 1);
    half.aggregator.intake->batch_arrived_ns = 1;
    assert_string_equal(state_after(&half, 1 + KVB_NS_PER_S), "lagging");
    half.aggregator.intake->next_event = half.aggregator.intake->batch.event_count;
    assert_string_equal(state_after(&half, 2 * KVB_NS_PER_S), "no_heartbeat");
    drop_half(&half);
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
    assert_int_equal(kvb_ring_count(half.aggregator.intake->events), places);
    assert_int_equal(metric(&half, kvb_aggregator_refused_ring_full), 3);
    take_messages(&half, 1);
    assert_string_equal(reason_now(&half), "lagging"); /* also when nothing comes after them */
    receive_event(&half);
    assert_int_equal(metric(&half, kvb_aggregator_refused_ring_full), 3);
    drop_half(&half);
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
    assert_true(kvb_intake_take(&half.aggregator, 1));
    receive_event(&half); /* the first one behind the loss */
    for (int i = 0; i < places - 1; i++) {
        assert_true(kvb_intake_take(&half.aggregator, 1));
    }
    assert_string_not_equal(reason_now(&half), "lagging");
    assert_true(kvb_intake_take(&half.aggregator, 1));
    assert_string_equal(reason_now(&half), "lagging");
    drop_half(&half);
}

static void bytes_and_memory_that_are_short_lose_messages_too(void **state)
{
    (void)state;
    struct half half;
    make_half_with_echo(&half);

    half.aggregator.intake->bytes.limit_bytes = 1; /* alone it is accepted */
    receive_event(&half);
    receive_event(&half);
    assert_int_equal(metric(&half, kvb_aggregator_refused_ring_full), 1);
    half.aggregator.intake->bytes.limit_bytes = 1 << 16;
    fail_alloc_after(0);
    receive_event(&half);
    receive_event(&half); /* the first one may have used what was spare */
    fail_alloc_after(-1);
    assert_true(metric(&half, kvb_aggregator_refused_no_memory) > 0);
    assert_int_equal(
        half.aggregator.intake->lost, 1 + metric(&half, kvb_aggregator_refused_no_memory));
    drop_half(&half);
}

static void an_echo_is_applied_behind_all_that_came_before_it(void **state)
{
    (void)state;
    struct half half;
    make_half_with_echo(&half);

    receive_event(&half);
    receive_echo(&half, 7);
    receive_event(&half);
    assert_int_equal(
        half.aggregator.intake->echo_returned, 7); /* NATS works, however long the ring is */
    assert_true(kvb_intake_take(&half.aggregator, 1));
    assert_int_equal(half.aggregator.intake->echo_applied, 0);
    assert_true(kvb_intake_take(&half.aggregator, 1));
    assert_int_equal(half.aggregator.intake->echo_applied, 7);
    drop_half(&half);
}

SUITE(rings)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(waiting_queries_are_bounded_in_bytes_too),
        cmocka_unit_test(a_full_ring_is_busy_and_keeps_no_bytes),
        cmocka_unit_test(a_prompt_that_cannot_be_read_needs_no_index),
        cmocka_unit_test(a_long_prompt_for_which_there_is_no_memory_is_refused),
        cmocka_unit_test(long_prompts_are_read_at_the_end_too),
        cmocka_unit_test(a_connection_that_is_closed_leaves_its_query_to_the_index_thread),
        cmocka_unit_test(a_query_that_waits_too_long_is_refused_and_ends_later),
        cmocka_unit_test(what_is_left_when_the_aggregator_stops_is_refused),
        cmocka_unit_test(a_query_without_memory_ends_where_it_is_received),
        cmocka_unit_test(a_dump_gives_its_place_among_large_answers_back),
        cmocka_unit_test(errors_in_the_rest_of_a_message_are_counted_by_kind),
        cmocka_unit_test(applied_messages_are_freed_together_and_their_items_used_again),
        cmocka_unit_test(the_rest_of_a_message_has_waited_as_long_as_its_beginning),
        cmocka_unit_test(what_finds_no_room_in_the_ring_is_dropped_and_counted),
        cmocka_unit_test(a_loss_is_known_where_it_happened_among_the_messages),
        cmocka_unit_test(bytes_and_memory_that_are_short_lose_messages_too),
        cmocka_unit_test(an_echo_is_applied_behind_all_that_came_before_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
