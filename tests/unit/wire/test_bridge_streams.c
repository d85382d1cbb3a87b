#include "kvb_test.h"

#include "core/limits.h"
#include "core/own.h"
#include "wire/router/bridge_status.h"

#include <stdlib.h>
#include <string.h>

static struct kvb_bridge_streams heard; /* 16 KiB */

static kvb_status decode(const char *json)
{
    return kvb_bridge_streams_decode(kvb_span_of(json), &heard);
}

static void a_message_names_the_bridge_and_its_streams(void **state)
{
    const struct kvb_bridge_stream streams[] = { { 7, 0 }, { UINT64_MAX, UINT32_MAX } };
    struct kvb_buf buf;

    (void)state;
    kvb_buf_init(&buf, 1 << 16);
    assert_ok(kvb_bridge_streams_encode("host-1-ab", streams, KVB_COUNT_OF(streams), &buf));
    assert_int_equal(kvb_buf_append(&buf, "", 1), KVB_OK);
    const char *text = (const char *)kvb_buf_span(&buf).data;
    assert_string_equal(
        text,
        "{\"bridge_id\":\"host-1-ab\",\"streams\":[[7,0],[18446744073709551615,4294967295]]}");
    assert_ok(decode(text));
    assert_string_equal(heard.bridge_id, "host-1-ab");
    assert_int_equal(heard.count, 2);
    assert_true(heard.streams[1].worker_id == UINT64_MAX);
    assert_int_equal(heard.streams[1].dp_rank, UINT32_MAX);
    kvb_buf_done(&buf);
}

static void the_longest_message_fits_and_a_longer_one_is_refused(void **state)
{
    struct kvb_bridge_stream *streams = malloc((kvb_bridge_streams_most + 1) * sizeof *streams);
    char bridge_id[kvb_bridge_id_bytes + 2];
    struct kvb_buf buf;

    (void)state;
    assert_non_null(streams);
    memset(bridge_id, 'b', kvb_bridge_id_bytes);
    bridge_id[kvb_bridge_id_bytes] = '\0';
    for (size_t i = 0; i <= kvb_bridge_streams_most; i++) {
        streams[i] = (struct kvb_bridge_stream){ UINT64_MAX, UINT32_MAX };
    }
    kvb_buf_init(&buf, kvb_min_nats_payload_bytes);
    assert_ok(kvb_bridge_streams_encode(bridge_id, streams, kvb_bridge_streams_most, &buf));
    assert_ok(kvb_bridge_streams_decode(kvb_buf_span(&buf), &heard));
    assert_string_equal(heard.bridge_id, bridge_id);
    assert_int_equal(heard.count, kvb_bridge_streams_most);
    kvb_buf_reset(&buf);
    assert_ok(kvb_bridge_streams_encode(bridge_id, streams, kvb_bridge_streams_most + 1, &buf));
    assert_int_equal(kvb_bridge_streams_decode(kvb_buf_span(&buf), &heard), KVB_TOO_LARGE);
    kvb_buf_reset(&buf);
    memset(bridge_id, 'b', kvb_bridge_id_bytes + 1);
    bridge_id[kvb_bridge_id_bytes + 1] = '\0';
    assert_ok(kvb_bridge_streams_encode(bridge_id, streams, 1, &buf));
    assert_int_equal(kvb_bridge_streams_decode(kvb_buf_span(&buf), &heard), KVB_BAD_INPUT);
    kvb_buf_done(&buf);
    free(streams);
}

SUITE(bridge_streams)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_message_names_the_bridge_and_its_streams),
        cmocka_unit_test(the_longest_message_fits_and_a_longer_one_is_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
