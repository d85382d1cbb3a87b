#include "kvb_test.h"

#include "core/own.h"
#include "daemon/service.h"
#include "fail_alloc.h"

#include <stdio.h>
#include <string.h>

enum { answer_bytes = 4 << 20, max_workers = 1500 };

/* ---- A bridge with workers ---- */

static const struct kvb_service bridge = {
    .name = "dynamo_vllmworker",
    .id = "0f1e2d3c4b5a69780f1e2d3c4b5a6978",
    .version = "0.1.0",
    .description = "a bridge",
    .facts = { { "namespace", "dynamo" }, { "component", "VllmWorker" } },
    .started = "2026-08-01T13:44:05.678Z",
};

static void fill_worker(const void *context, size_t i, struct kvb_service_endpoint *out_endpoint)
{
    const struct kvb_worker_load *workers = context;

    kvb_service_name_worker(bridge.name, workers[i].worker_id, out_endpoint);
    out_endpoint->worker = workers[i];
}

static struct kvb_service_endpoints list_of(const struct kvb_worker_load *workers, size_t count)
{
    return (
        struct kvb_service_endpoints){ .count = count, .fill = fill_worker, .context = workers };
}

static const struct kvb_worker_load loaded = {
    .worker_id = 0x1a2b3c,
    .has_load = true,
    .load = { .request_active_slots = 7,
              .request_total_slots = 256,
              .kv_active_blocks = 1000,
              .kv_total_blocks = 4096,
              .num_requests_waiting = 5,
              .gpu_cache_usage_perc = 0.25F,
              .gpu_prefix_cache_hit_rate = 1 },
};

/* ---- Requests ---- */

static kvb_status request_part(
    const struct kvb_service_endpoints *list, struct kvb_service_request ask, size_t *next,
    struct kvb_buf *out)
{
    return kvb_service_answer(&bridge, list, ask, next, out);
}

static void assert_answer(
    const struct kvb_service_endpoints *list, enum kvb_service_verb verb, const char *text)
{
    KVB_OWN(kvb_buf_done) struct kvb_buf out = { 0 };
    const struct kvb_service_request ask = { .verb = verb, .max_bytes = answer_bytes };
    size_t next = 0;

    kvb_buf_init(&out, answer_bytes);
    assert_ok(request_part(list, ask, &next, &out));
    assert_ok(kvb_buf_append(&out, "", 1));
    assert_string_equal((const char *)out.data, text);
    assert_int_equal(next, list ? list->count : 0);
}

#define HEAD(verb)                                                                                 \
    "{\"type\":\"io.nats.micro.v1." verb "_response\",\"name\":\"dynamo_vllmworker\","             \
    "\"id\":\"0f1e2d3c4b5a69780f1e2d3c4b5a6978\",\"version\":\"0.1.0\","                           \
    "\"metadata\":{\"namespace\":\"dynamo\",\"component\":\"VllmWorker\"}"
#define NAMES                                                                                      \
    "{\"name\":\"dynamo_vllmworker-load_metrics-1a2b3c\","                                         \
    "\"subject\":\"dynamo_vllmworker.load_metrics-1a2b3c\",\"queue_group\":\"q\","
#define COUNTS                                                                                     \
    "\"num_requests\":0,\"num_errors\":0,\"last_error\":\"\",\"processing_time\":0,"               \
    "\"average_processing_time\":0,"

/* Compared byte by byte: shares with a decimal point, counts without, flat and nested form, null
 * for the rank of a worker with several ranks. */
static void stats_carry_the_load_flat_and_nested(void **state)
{
    (void)state;
    const struct kvb_service_endpoints list = list_of(&loaded, 1);

    assert_answer(
        &list, KVB_SERVICE_STATS,
        HEAD("stats") ",\"started\":\"2026-08-01T13:44:05.678Z\",\"endpoints\":[" NAMES COUNTS
                      "\"data\":{\"request_active_slots\":7,\"request_total_slots\":256,"
                      "\"kv_active_blocks\":1000,\"kv_total_blocks\":4096,"
                      "\"gpu_cache_usage_perc\":0.25,\"gpu_prefix_cache_hit_rate\":1.0,"
                      "\"num_requests_waiting\":5,"
                      "\"worker_stats\":{\"data_parallel_rank\":null,\"request_active_slots\":7,"
                      "\"request_total_slots\":256,\"num_requests_waiting\":5},"
                      "\"kv_stats\":{\"kv_active_blocks\":1000,\"kv_total_blocks\":4096,"
                      "\"gpu_cache_usage_perc\":0.25,\"gpu_prefix_cache_hit_rate\":1.0},"
                      "\"spec_decode_stats\":null}}]}");
}

static void fill_question(const void *context, size_t i, struct kvb_service_endpoint *out_endpoint)
{
    (void)i;
    *out_endpoint = *(const struct kvb_service_endpoint *)context;
}

static void stats_tell_errors_and_the_average(void **state)
{
    (void)state;
    const struct kvb_service_endpoint question = { .name = "kv_match",
                                                   .subject = "a.b",
                                                   .queue_group = "",
                                                   .num_requests = 3,
                                                   .num_errors = 1,
                                                   .processing_ns = 11,
                                                   .last_error = "a \"bad\" \x01 \xff one" };
    const struct kvb_service_endpoints list = { .count = 1,
                                                .fill = fill_question,
                                                .context = &question };

    assert_answer(
        &list, KVB_SERVICE_STATS,
        HEAD("stats") ",\"started\":\"2026-08-01T13:44:05.678Z\",\"endpoints\":["
                      "{\"name\":\"kv_match\",\"subject\":\"a.b\",\"queue_group\":\"\","
                      "\"num_requests\":3,\"num_errors\":1,"
                      "\"last_error\":\"a \\\"bad\\\" \\u0001 \xef\xbf\xbd one\","
                      "\"processing_time\":11,\"average_processing_time\":3,\"data\":null}]}");
}

/* ---- Names ---- */

static void names_follow_dynamos_rules(void **state)
{
    (void)state;
    static const struct {
        const char *name_space;
        const char *component;
        const char *expected;
    } rows[] = {
        { "dynamo", "VllmWorker", "dynamo_vllmworker" },
        { "Dynamo-2", "Z", "dynamo-2_z" },
        { "_a", "_b_", "a__b_" }, /* leading underscores are removed, others stay */
        { "__", "_", "____" },    /* nothing else is left */
        /* has the same service name as a, b_c: the metadata distinguishes them */
        { "a_b", "c", "a_b_c" },
    };

    for (size_t i = 0; i < KVB_COUNT_OF(rows); i++) {
        char name[kvb_service_name_bytes];
        kvb_service_name_of(rows[i].name_space, rows[i].component, name);
        assert_string_equal(name, rows[i].expected);
    }
}

static void the_longest_names_fit(void **state)
{
    (void)state;
    char word[kvb_name_bytes + 1];
    char made[kvb_service_name_bytes];
    struct kvb_service_endpoint endpoint = { 0 };

    memset(word, 'N', kvb_name_bytes);
    word[kvb_name_bytes] = '\0';
    kvb_service_name_of(word, word, made);
    assert_int_equal(strlen(made), (2 * kvb_name_bytes) + 1);
    kvb_service_name_worker(made, INT64_MAX, &endpoint);
    assert_int_equal(strlen(endpoint.name), strlen(made) + strlen("-load_metrics-") + 16);
    assert_non_null(strstr(endpoint.subject, ".load_metrics-7fffffffffffffff"));
}

/* ---- Long lists ---- */

static size_t count_of(const struct kvb_buf *buf, const char *word)
{
    size_t count = 0;
    const char *at = (const char *)buf->data;

    while ((at = strstr(at, word)) != NULL) {
        count++;
        at += strlen(word);
    }
    return count;
}

/* Every endpoint appears once, in parts no longer than allowed (but at least one endpoint each).
 * Each part says how many endpoints are still to come. */
static void assert_parts(const struct kvb_service_endpoints *list, size_t max_bytes)
{
    const struct kvb_service_request ask = { .verb = KVB_SERVICE_STATS, .max_bytes = max_bytes };
    size_t next = 0;

    do {
        KVB_OWN(kvb_buf_done) struct kvb_buf out = { 0 };
        char more[32];
        const size_t before = next;
        kvb_buf_init(&out, answer_bytes);
        assert_ok(request_part(list, ask, &next, &out));
        assert_true(next > before);
        assert_true(out.len <= max_bytes || next == before + 1);
        assert_ok(kvb_buf_append(&out, "", 1));
        assert_int_equal(count_of(&out, "\"queue_group\""), next - before);
        (void)snprintf(more, sizeof more, "}],\"more\":%zu}", list->count - next);
        assert_int_equal(count_of(&out, next < list->count ? more : "}]}"), 1);
    } while (next < list->count);
}

static struct kvb_worker_load many[max_workers];

static struct kvb_service_endpoints many_workers(void)
{
    for (size_t i = 0; i < max_workers; i++) {
        many[i] = loaded;
        many[i].worker_id = INT64_MAX - i;
        many[i].load.kv_total_blocks = UINT64_MAX - i;
    }
    return list_of(many, max_workers);
}

static void long_lists_are_sent_in_parts(void **state)
{
    (void)state;
    static const size_t sizes[] = { 0, 1, 1000, 3000, 65536, 960 << 10, 1 << 20, 4 << 20 };
    const struct kvb_service_endpoints list = many_workers();

    for (size_t i = 0; i < KVB_COUNT_OF(sizes); i++) {
        assert_parts(&list, sizes[i]);
    }
}

static void survives_every_failing_allocation(void **state)
{
    (void)state;
    const struct kvb_service_endpoints list = many_workers();
    const struct kvb_service_request ask = { .verb = KVB_SERVICE_STATS, .max_bytes = 1 << 20 };
    kvb_status status = KVB_NO_MEMORY;

    for (long n = 0; status != KVB_OK; n++) {
        KVB_OWN(kvb_buf_done) struct kvb_buf out = { 0 };
        size_t next = 0;
        kvb_buf_init(&out, answer_bytes);
        fail_alloc_after(n);
        status = request_part(&list, ask, &next, &out);
        fail_alloc_after(-1);
        assert_true(status == KVB_OK || (status == KVB_NO_MEMORY && next == 0));
    }
}

SUITE(service)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(stats_carry_the_load_flat_and_nested),
        cmocka_unit_test(stats_tell_errors_and_the_average),
        cmocka_unit_test(names_follow_dynamos_rules),
        cmocka_unit_test(the_longest_names_fit),
        cmocka_unit_test(long_lists_are_sent_in_parts),
        cmocka_unit_test(survives_every_failing_allocation),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
