#include "core/own.h"
#include "wire/query/dynamo_worker.h"

#include "kvb_test.h"
#include "vector_file.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char select_service[] = "vectors/dynamo-select-service-http-1.6.1.txt";
static const char indexer[] = "vectors/dynamo-indexer-http-1.6.1.txt";

static const struct kvb_dynamo_worker worker = { .worker_id = 7,
                                                 .rank_id = 7,
                                                 .block_size = 16,
                                                 .max_batched_tokens = 8192,
                                                 .events = "tcp://127.0.0.1:15657",
                                                 .replay = "tcp://127.0.0.1:16657",
                                                 .model = "m",
                                                 .address = "http://10.0.0.1:8000" };

/* Expects this body in the recording of the real program, at this path. */
static void assert_recorded(const char *file, const char *before, const struct kvb_buf *body)
{
    char *text = read_text_file(file);
    char line[1024];

    assert_non_null(text);
    (void)snprintf(line, sizeof line, "%s%.*s\n", before, (int)body->len, (const char *)body->data);
    if (!strstr(text, line)) {
        fail_msg("%s", line);
    }
    free(text);
}

static void bodies_equal_those_that_the_real_program_accepted(void **state)
{
    KVB_OWN(kvb_buf_done) struct kvb_buf buf = { 0 };
    const struct kvb_dynamo_worker bare = { .worker_id = 4,
                                            .rank_id = 8,
                                            .dp_rank = 1,
                                            .block_size = 16,
                                            .events = "tcp://127.0.0.1:15657",
                                            .model = "m" };
    const char *of_indexer =
        "{\"instance_id\":7,\"endpoint\":\"tcp://127.0.0.1:15657\",\"replay_endpoint\":"
        "\"tcp://127.0.0.1:16657\",\"model_name\":\"m\",\"block_size\":16,\"dp_rank\":0}";
    const char *removal = "{\"instance_id\":4,\"model_name\":\"m\",\"dp_rank\":1}";

    (void)state;
    kvb_buf_init(&buf, 4096);
    assert_ok(kvb_dynamo_add_encode(KVB_DYNAMO_SELECT_SERVICE, &worker, &buf));
    assert_recorded(select_service, "> POST /workers ", &buf);
    kvb_buf_reset(&buf);
    assert_ok(kvb_dynamo_add_encode(KVB_DYNAMO_UNKNOWN, &bare, &buf));
    assert_recorded(select_service, "> POST /workers ", &buf);
    kvb_buf_reset(&buf);
    assert_ok(kvb_dynamo_add_encode(KVB_DYNAMO_INDEXER, &worker, &buf));
    assert_int_equal(buf.len, strlen(of_indexer));
    assert_memory_equal(buf.data, of_indexer, buf.len);
    kvb_buf_reset(&buf);
    assert_ok(kvb_dynamo_remove_encode(&bare, &buf));
    assert_int_equal(buf.len, strlen(removal));
    assert_memory_equal(buf.data, removal, buf.len);
}

struct lists {
    char text[1024];
};

static void note_listed(void *context, const struct kvb_dynamo_listed *listed)
{
    struct lists *lists = context;
    const size_t len = strlen(lists->text);

    (void)snprintf(
        lists->text + len, sizeof lists->text - len, "%s %u/%u %s %s %u %.24s [%s %s %u]\n",
        kvb_dynamo_api_name(listed->api), (unsigned)listed->id, listed->dp_rank, listed->events,
        listed->model, (unsigned)listed->block_size, listed->why,
        listed->replay ? listed->replay : "?", listed->address ? listed->address : "?",
        (unsigned)listed->max_batched_tokens);
}

/* Reads the last list of the recording. */
static void read_recorded(const char *file, struct lists *out)
{
    char *text = read_text_file(file);
    const char *list = "";

    assert_non_null(text);
    for (char *at = text; (at = strstr(at, "> GET /workers None\n< 200 application/json ["));) {
        at = strchr(at, '[');
        list = at[1] == ']' ? list : at;
    }
    const kvb_span json = { .data = (const uint8_t *)list, .len = strcspn(list, "\n") };
    assert_ok(kvb_dynamo_list_decode(json, note_listed, out));
    free(text);
}

static void lists_of_the_real_programs_are_read(void **state)
{
    struct lists select = { .text = "" };
    struct lists of_indexer = { .text = "" };

    (void)state;
    read_recorded(select_service, &select);
    assert_string_equal(
        select.text, "select_service 7/0 tcp://127.0.0.1:15658 m 16  "
                     "[tcp://127.0.0.1:16657 http://10.0.0.1:8000 8192]\n"
                     "select_service 8/1 tcp://127.0.0.1:15657 m 16 endpoint is required [  0]\n"
                     "select_service 9/0 tcp://127.0.0.1:15657 m 32 reconciliation failed: b "
                     "[tcp://127.0.0.1:16657 http://10.0.0.1:8000 8192]\n");
    read_recorded(indexer, &of_indexer);
    assert_string_equal(
        of_indexer.text, "indexer 2/1 tcp://127.0.0.1:35854 m 16  [? ? 0]\n"
                         "indexer 1/0 tcp://127.0.0.1:39463 m 16  [? ? 0]\n");
}

static void an_invalid_list_is_refused_and_unknown_entries_are_skipped(void **state)
{
    static const char *const bad[] = { "", "{}", "null", "[1]", "[{}", "{\"error\":\"x\"}" };
    static const char strange[] =
        "[{},{\"worker_id\":\"x\"},{\"worker_id\":-1},{\"instance_id\":1},"
        "{\"instance_id\":2,\"endpoints\":{\"x\":\"a\",\"-1\":\"a\",\"\":\"a\",\"3\":7}}]";
    struct lists lists = { .text = "" };

    (void)state;
    for (size_t i = 0; i < KVB_COUNT_OF(bad); i++) {
        if (kvb_dynamo_list_decode(kvb_span_of(bad[i]), note_listed, &lists) != KVB_BAD_INPUT) {
            fail_msg("%s", bad[i]);
        }
    }
    assert_ok(kvb_dynamo_list_decode(kvb_span_of(strange), note_listed, &lists));
    assert_string_equal(lists.text, "indexer 2/3   0  [? ? 0]\n");
}

static void the_reason_in_an_answer_is_found(void **state)
{
    static const struct {
        const char *answer;
        const char *reason;
    } rows[] = {
        { "", "" },
        { "[]", "" },
        { "{\"status\":\"ok\"}", "" },
        { "{\"error\":\"instance 1 dp_rank 0 already registered\"}",
          "instance 1 dp_rank 0 already registered" },
        { "{\"worker_id\":8,\"not_schedulable_reasons\":[\"endpoint is required\",\"more\"]}",
          "endpoint is required" },
        { "{\"not_schedulable_reasons\":[]}", "" },
        { "Expected request with `Content-Type`", "Expected request with `Content-Type`" },
        { "bad \x1b[31m", "a text of strange bytes" },
    };

    (void)state;
    for (size_t i = 0; i < KVB_COUNT_OF(rows); i++) {
        struct kvb_detail reason = { .text = "before" };
        kvb_dynamo_reason_decode(kvb_span_of(rows[i].answer), &reason);
        assert_string_equal(reason.text, rows[i].reason);
    }
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(bodies_equal_those_that_the_real_program_accepted),
        cmocka_unit_test(lists_of_the_real_programs_are_read),
        cmocka_unit_test(an_invalid_list_is_refused_and_unknown_entries_are_skipped),
        cmocka_unit_test(the_reason_in_an_answer_is_found),
    };

    return cmocka_run_group_tests_name("wire/dynamo_worker", tests, NULL, NULL);
}
