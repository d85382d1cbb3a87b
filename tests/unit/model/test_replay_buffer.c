#include "model/replay_buffer.h"

#include "fail_alloc.h"
#include "kvb_test.h"

#include <string.h>

static struct kvb_replay_buffer *buffer_of(size_t batches, size_t bytes)
{
    struct kvb_replay_buffer *buffer = NULL;

    assert_ok(kvb_replay_buffer_new(batches, bytes, &buffer));
    return buffer;
}

static kvb_status put(struct kvb_replay_buffer *buffer, uint64_t seq, const char *payload)
{
    return kvb_replay_buffer_put(
        buffer, seq, (kvb_span){ (const uint8_t *)payload, strlen(payload) });
}

static void assert_at(
    const struct kvb_replay_buffer *buffer, size_t at, uint64_t expected_seq, const char *expected)
{
    uint64_t seq = 0;
    const kvb_span payload = kvb_replay_buffer_at(buffer, at, &seq);

    assert_int_equal(seq, expected_seq);
    assert_int_equal(payload.len, strlen(expected));
    assert_memory_equal(payload.data, expected, payload.len);
}

static void keeps_no_more_bytes_than_allowed(void **state)
{
    (void)state;
    struct kvb_replay_buffer *buffer = buffer_of(10, 8);

    assert_ok(put(buffer, 0, "abc"));
    assert_ok(put(buffer, 1, "def"));
    assert_ok(put(buffer, 2, "gh"));
    assert_int_equal(kvb_replay_buffer_count(buffer), 3);
    assert_ok(put(buffer, 3, "ijkl"));
    assert_int_equal(kvb_replay_buffer_count(buffer), 2);
    assert_at(buffer, 0, 2, "gh");
    assert_int_equal(put(buffer, 4, "far too long"), KVB_TOO_LARGE);
    assert_int_equal(kvb_replay_buffer_count(buffer), 2);
    kvb_replay_buffer_free(buffer);
}

static void finds_the_first_batch_at_or_after_a_start(void **state)
{
    (void)state;
    struct kvb_replay_buffer *buffer = buffer_of(4, 1000);

    assert_int_equal(kvb_replay_buffer_find(buffer, 0), 0);
    for (uint64_t seq = 0; seq < 7; seq++) {
        if (seq != 5) { /* a sequence number that was never put in */
            assert_ok(put(buffer, seq, "x"));
        }
    }
    /* 2 3 4 6 */
    assert_int_equal(kvb_replay_buffer_find(buffer, 0), 0);
    assert_int_equal(kvb_replay_buffer_find(buffer, 2), 0);
    assert_int_equal(kvb_replay_buffer_find(buffer, 3), 1);
    assert_int_equal(kvb_replay_buffer_find(buffer, 5), 3);
    assert_int_equal(kvb_replay_buffer_find(buffer, 6), 3);
    assert_int_equal(kvb_replay_buffer_find(buffer, 7), 4);
    kvb_replay_buffer_free(buffer);
}

static void survives_each_failing_allocation(void **state)
{
    (void)state;
    kvb_status status = KVB_NO_MEMORY;

    for (long fail_at = 0; status == KVB_NO_MEMORY; fail_at++) {
        struct kvb_replay_buffer *buffer = NULL;
        fail_alloc_after(fail_at);
        status = kvb_replay_buffer_new(2, 100, &buffer);
        if (status == KVB_OK) {
            status = put(buffer, 0, "abc");
        }
        fail_alloc_after(-1);
        if (buffer) {
            assert_int_equal(kvb_replay_buffer_count(buffer), status == KVB_OK);
        }
        kvb_replay_buffer_free(buffer);
    }
    assert_ok(status);
}

SUITE(replay_buffer)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(keeps_no_more_bytes_than_allowed),
        cmocka_unit_test(finds_the_first_batch_at_or_after_a_start),
        cmocka_unit_test(survives_each_failing_allocation),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
