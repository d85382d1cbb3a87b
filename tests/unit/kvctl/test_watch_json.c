#include "kvctl/watch_json.h"

#include "core/own.h"
#include "fail_alloc.h"
#include "kvb_test.h"
#include "wire/router/heartbeat.h"
#include "wire/router/proto.h"
#include "wire/router/sync.h"

#include <stdio.h>
#include <string.h>

#define P "namespace.n.component.c."

enum { line_bytes = 1 << 16 };

struct printed {
    struct kvb_buf out; /* ends with a NUL */
    struct kvb_router_batch batch;
    uint64_t lines;
};

static void printed_done(struct printed *printed)
{
    kvb_buf_done(&printed->out);
    kvb_router_batch_done(&printed->batch);
}

static kvb_status
print(struct printed *printed, const struct kvb_bus_message *message, uint64_t max_lines)
{
    *printed = (struct printed){ 0 };
    kvb_buf_init(&printed->out, line_bytes);
    KVB_TRY(kvb_watch_message_json(
        message, max_lines, &printed->batch, &printed->out, &printed->lines));
    return kvb_buf_append(&printed->out, "", 1);
}

/* Prints one message and compares the output. */
static void
assert_prints(const char *subject, const char *reply, kvb_span payload, const char *want)
{
    KVB_OWN(printed_done) struct printed printed;
    const struct kvb_bus_message message = { subject, reply, payload, NULL, NULL };

    assert_ok(print(&printed, &message, UINT64_MAX));
    assert_string_equal((const char *)printed.out.data, want);
    assert_int_equal(printed.lines, 1);
}

static void fill_batch(struct kvb_router_batch *batch)
{
    const struct kvb_router_event stored = {
        .kind = KVB_ROUTER_STORED, .event_id = 4, .has_parent = true, .parent = { 5 }
    };
    const struct kvb_router_event removed = { .kind = KVB_ROUTER_REMOVED,
                                              .tier = KVB_TIER_HOST,
                                              .event_id = 5 };
    const struct kvb_router_event cleared = { .kind = KVB_ROUTER_CLEARED, .event_id = 6 };

    *batch = (struct kvb_router_batch){ .worker_id = 7, .dp_rank = 2, .has_epoch = true };
    assert_ok(kvb_router_batch_add_event(batch, &stored));
    assert_ok(
        kvb_router_batch_add_block(batch, (kvb_block_hash){ UINT64_MAX }, (kvb_tokens_hash){ 3 }));
    assert_ok(kvb_router_batch_add_event(batch, &removed));
    assert_ok(kvb_router_batch_add_block(batch, (kvb_block_hash){ 8 }, (kvb_tokens_hash){ 0 }));
    assert_ok(kvb_router_batch_add_event(batch, &cleared));
}

static const char event_lines[] =
    "{\"subject\":\"" P "kv_events\",\"data\":{\"worker_id\":7,\"dp_rank\":2,\"event_id\":4,"
    "\"kind\":\"stored\",\"tier\":\"device\",\"parent_hash\":5,"
    "\"blocks\":[{\"block_hash\":18446744073709551615,\"tokens_hash\":3}]}}\n"
    "{\"subject\":\"" P "kv_events\",\"data\":{\"worker_id\":7,\"dp_rank\":2,\"event_id\":5,"
    "\"kind\":\"removed\",\"tier\":\"host\",\"blocks\":[{\"block_hash\":8}]}}\n"
    "{\"subject\":\"" P "kv_events\",\"data\":{\"worker_id\":7,\"dp_rank\":2,\"event_id\":6,"
    "\"kind\":\"cleared\",\"blocks\":[]}}\n";

static void events_in_protobuf_are_a_line_each(void **state)
{
    (void)state;
    KVB_OWN(kvb_router_batch_done) struct kvb_router_batch batch;
    KVB_OWN(kvb_buf_done) struct kvb_buf bytes;
    KVB_OWN(printed_done) struct printed printed;

    fill_batch(&batch);
    kvb_buf_init(&bytes, line_bytes);
    assert_ok(kvb_router_proto_encode(&batch, 0, 3, &bytes));
    const struct kvb_bus_message message = { P "kv_events", NULL, kvb_buf_span(&bytes), NULL,
                                             NULL };
    assert_ok(print(&printed, &message, UINT64_MAX));
    assert_string_equal((const char *)printed.out.data, event_lines);
    assert_int_equal(printed.lines, 3);
}

static void no_more_lines_are_printed_than_asked_for(void **state)
{
    (void)state;
    KVB_OWN(kvb_router_batch_done) struct kvb_router_batch batch;
    KVB_OWN(kvb_buf_done) struct kvb_buf bytes;
    KVB_OWN(printed_done) struct printed printed;

    fill_batch(&batch);
    kvb_buf_init(&bytes, line_bytes);
    assert_ok(kvb_router_proto_encode(&batch, 0, 3, &bytes));
    const struct kvb_bus_message message = { P "kv_events", NULL, kvb_buf_span(&bytes), NULL,
                                             NULL };
    assert_ok(print(&printed, &message, 2));
    assert_int_equal(printed.lines, 2);
    assert_int_equal(strncmp((const char *)printed.out.data, event_lines, printed.out.len - 1), 0);
}

static void a_request_for_a_refresh_says_whose_blocks(void **state)
{
    (void)state;
    static const struct {
        const char *body, *data;
    } requests[] = {
        { "", "{}" },
        { "{}", "{}" },
        { "{\"worker_id\" : 7, \"more\":1}", "{\"worker_id\":7}" },
        { "{\"worker_id\":7,\"dp_rank\":0}", "{\"worker_id\":7,\"dp_rank\":0}" },
    };

    for (size_t i = 0; i < KVB_COUNT_OF(requests); i++) {
        char want[256];
        (void)snprintf(
            want, sizeof want, "{\"subject\":\"%s\",\"reply\":\"_INBOX.1\",\"data\":%s}\n",
            P "kv_refresh", requests[i].data);
        assert_prints(P "kv_refresh", "_INBOX.1", kvb_span_of(requests[i].body), want);
    }
}

static void a_heartbeat_has_the_keys_of_its_json_form(void **state)
{
    (void)state;
    KVB_OWN(kvb_buf_done) struct kvb_buf bytes;
    KVB_OWN(printed_done) struct printed printed;
    KVB_OWN(kvb_buf_done) struct kvb_buf want;
    const struct kvb_heartbeat heartbeat = {
        .worker_id = 7, .model = "m", .block_size = 16, .formats = 1U << KVB_FORMAT_JSON
    };

    kvb_buf_init(&bytes, line_bytes);
    assert_ok(kvb_heartbeat_encode(&heartbeat, &bytes));
    const struct kvb_bus_message message = { P "kv_heartbeat", NULL, kvb_buf_span(&bytes), NULL,
                                             NULL };
    assert_ok(print(&printed, &message, UINT64_MAX));
    kvb_buf_init(&want, line_bytes);
    assert_ok(kvb_buf_append_text(&want, "{\"subject\":\"" P "kv_heartbeat\",\"data\":"));
    struct kvb_json_writer json = kvb_json_writer_of(&want);
    kvb_heartbeat_json_write(&heartbeat, &json);
    assert_ok(kvb_buf_append(&want, "}\n", 3));
    assert_string_equal((const char *)printed.out.data, (const char *)want.data);
}

static void json_is_printed_unchanged_on_one_line(void **state)
{
    (void)state;

    assert_prints(
        P "load_metrics", NULL, kvb_span_of("{\"a\" :\n\t18446744073709551615,\"b\":0.0}\n"),
        "{\"subject\":\"" P
        "load_metrics\",\"data\":{\"a\" :  18446744073709551615,\"b\":0.0} }\n");
    assert_prints(
        "namespace.n.kv-hit-rate", NULL, kvb_span_of("[]"),
        "{\"subject\":\"namespace.n.kv-hit-rate\",\"data\":[]}\n");
    assert_prints(
        P "kv_heartbeat_json", NULL, kvb_span_of("{}"),
        "{\"subject\":\"" P "kv_heartbeat_json\",\"data\":{}}\n");
}

static void a_request_shows_where_its_answer_goes(void **state)
{
    (void)state;
    KVB_OWN(kvb_buf_done) struct kvb_buf bytes;
    const struct kvb_sync_request request = { .kind = KVB_SYNC_RANGE, .from_id = 3, .to_id = 9 };

    assert_prints(
        P "kv_get.state", "_INBOX.1", kvb_span_of(""),
        "{\"subject\":\"" P "kv_get.state\",\"reply\":\"_INBOX.1\",\"data\":null}\n");
    kvb_buf_init(&bytes, line_bytes);
    assert_ok(kvb_sync_request_encode(&request, &bytes));
    assert_prints(
        P "kv_sync.7.0", "_INBOX.2", kvb_buf_span(&bytes),
        "{\"subject\":\"" P "kv_sync.7.0\",\"reply\":\"_INBOX.2\","
        "\"data\":{\"kind\":\"range\",\"from_id\":3,\"to_id\":9}}\n");
}

static void a_malformed_message_is_a_line_with_its_size(void **state)
{
    (void)state;
    static const char *const subjects[] = { P "kv_events",   P "kv_window_events", P "kv_heartbeat",
                                            P "kv_sync.7.0", P "kv_refresh",       P "load_metrics",
                                            "namespace.n.x" };

    for (size_t i = 0; i < KVB_COUNT_OF(subjects); i++) {
        char want[256];
        (void)snprintf(
            want, sizeof want, "{\"subject\":\"%s\",\"bytes\":3,\"error\":\"bad_input\"}\n",
            subjects[i]);
        assert_prints(subjects[i], NULL, kvb_span_of("{\"\xff"), want);
    }
}

static void survives_every_allocation_that_fails(void **state)
{
    (void)state;
    const struct kvb_bus_message message = { P "load_metrics", NULL,
                                             kvb_span_of("{\"a\":[1,2,{\"b\":\"c\"}]}"), NULL,
                                             NULL };
    kvb_status status = KVB_NO_MEMORY;
    long n = 0;

    for (; status != KVB_OK; n++) {
        KVB_OWN(printed_done) struct printed printed;
        fail_alloc_after(n);
        status = print(&printed, &message, UINT64_MAX);
        fail_alloc_after(-1);
        assert_true(status == KVB_OK || status == KVB_NO_MEMORY);
        assert_true(n < 100);
    }
    assert_true(n > 3);
}

SUITE(watch_json)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(events_in_protobuf_are_a_line_each),
        cmocka_unit_test(no_more_lines_are_printed_than_asked_for),
        cmocka_unit_test(a_request_for_a_refresh_says_whose_blocks),
        cmocka_unit_test(a_heartbeat_has_the_keys_of_its_json_form),
        cmocka_unit_test(json_is_printed_unchanged_on_one_line),
        cmocka_unit_test(a_request_shows_where_its_answer_goes),
        cmocka_unit_test(a_malformed_message_is_a_line_with_its_size),
        cmocka_unit_test(survives_every_allocation_that_fails),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
