#include "fleet/truth_commands.h"

#include "core/own.h"
#include "fail_alloc.h"
#include "kvb_test.h"

#include <string.h>

static const uint32_t tokens[] = { 5, 6, 7, 8, 4294967295, 0 };

static struct kvb_truth sample(struct kvb_truth_block blocks[3])
{
    blocks[0] = (struct kvb_truth_block){ .tokens = tokens, .parent = kvb_no_parent };
    blocks[1] = (struct kvb_truth_block){ .tokens = tokens + 2, .parent = 0, .copies = 2 };
    blocks[2] = (struct kvb_truth_block){ .tokens = tokens + 4, .parent = 1, .copies = 1 };
    return (struct kvb_truth){
        .worker_id = 9223372036854775807U,
        .rank = 1,
        .has_seq = true,
        .seq = 41,
        .unsent = 2,
        .block_size = 2,
        .count = 3,
        .blocks = blocks,
    };
}

static const char expected[] =
    "{\"worker_id\":9223372036854775807,\"dp_rank\":1,\"seq\":41,\"unsent\":2,\"block_size\":2,"
    "\"blocks\":[{\"tokens\":[5,6],\"parent\":-1,\"copies\":0},"
    "{\"tokens\":[7,8],\"parent\":0,\"copies\":2},"
    "{\"tokens\":[4294967295,0],\"parent\":1,\"copies\":1}]}\n";

static void assert_text(const struct kvb_buf *buf, const char *text)
{
    assert_int_equal(buf->len, strlen(text));
    assert_memory_equal(buf->data, text, buf->len);
}

static void writes_blocks_with_their_tokens_and_parents(void **state)
{
    (void)state;
    KVB_OWN(kvb_buf_done) struct kvb_buf out = { 0 };
    struct kvb_truth_block blocks[3];
    const struct kvb_truth truth = sample(blocks);

    kvb_buf_init(&out, 1000);
    assert_ok(kvb_truth_format(&truth, &out));
    assert_text(&out, expected);
}

static void survives_each_failing_allocation(void **state)
{
    (void)state;
    struct kvb_truth_block blocks[3];
    const struct kvb_truth truth = sample(blocks);
    kvb_status status = KVB_NO_MEMORY;

    for (long fail_at = 0; status == KVB_NO_MEMORY; fail_at++) {
        KVB_OWN(kvb_buf_done) struct kvb_buf out = { 0 };
        kvb_buf_init(&out, 1000);
        fail_alloc_after(fail_at);
        status = kvb_truth_format(&truth, &out);
        fail_alloc_after(-1);
    }
    assert_ok(status);
}

static void log_of_a_life(struct kvb_content_log *log)
{
    const struct kvb_block_content first = { .hash = { 1 }, .tokens = tokens, .salt = "tenant" };
    const struct kvb_block_content second = { .hash = { 2 }, .tokens = tokens + 4 };

    assert_ok(kvb_content_log_init(log, 4, 2));
    log->now_ns = 50;
    kvb_content_log_stored(log, &first, first.hash);
    kvb_content_log_stored(log, &second, first.hash);
    log->now_ns = 60;
    kvb_content_log_removed(log, (kvb_engine_hash){ UINT64_MAX });
    kvb_content_log_cleared(log);
}

static const struct kvb_changes_head head = { .worker_id = 7, .rank = 1, .now_ns = 70 };

static void writes_changes_with_their_times(void **state)
{
    (void)state;
    KVB_OWN(kvb_buf_done) struct kvb_buf out = { 0 };
    struct kvb_content_log log = { 0 };

    log_of_a_life(&log);
    kvb_buf_init(&out, 1000);
    assert_ok(kvb_changes_format(&head, &log, &out));
    assert_text(
        &out, "{\"worker_id\":7,\"dp_rank\":1,\"now_ns\":70,\"lost\":0,\"next\":4,\"changes\":["
              "[\"stored\",50,1,1,[5,6],\"tenant\"],[\"stored\",50,2,1,[4294967295,0]],"
              "[\"removed\",60,18446744073709551615],[\"cleared\",60]]}\n");
    kvb_content_log_done(&log);
}

SUITE(truth_commands)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(writes_changes_with_their_times),
        cmocka_unit_test(writes_blocks_with_their_tokens_and_parents),
        cmocka_unit_test(survives_each_failing_allocation),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
