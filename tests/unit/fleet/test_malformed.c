#include "fleet/malformed.h"

#include "core/limits.h"
#include "core/own.h"
#include "fleet/dialects/encode.h"
#include "kvb_test.h"
#include "model/event_batch.h"
#include "wire/engine/batch.h"

/* A BlockStored of one block and a BlockRemoved, as the dialect encodes them. */
static void write_good(enum kvb_dialect dialect, struct kvb_buf *out)
{
    kvb_engine_hash hashes[] = { { 901 }, { 902 } };
    uint32_t tokens[] = { 1, 2 };
    struct kvb_engine_event events[] = {
        { .kind = KVB_EVENT_STORED, .block_size = 2, .hash_count = 1, .token_count = 2 },
        { .kind = KVB_EVENT_REMOVED, .hash_at = 1, .hash_count = 1 },
    };
    const struct kvb_event_batch batch = { .timestamp_s = 1700000000.5,
                                           .events = events,
                                           .event_count = KVB_COUNT_OF(events),
                                           .hashes = hashes,
                                           .tokens = tokens };

    kvb_buf_reset(out);
    assert_ok(kvb_engine_batch_encode(&batch, dialect, out));
}

static void every_kind_is_refused_in_every_dialect(void **state)
{
    (void)state;
    KVB_OWN(kvb_event_batch_done) struct kvb_event_batch batch = { 0 };
    KVB_OWN(kvb_buf_done) struct kvb_buf good = { 0 };
    KVB_OWN(kvb_buf_done) struct kvb_buf bad = { 0 };

    kvb_buf_init(&good, kvb_max_payload_bytes);
    kvb_buf_init(&bad, kvb_max_payload_bytes);
    for (int dialect = 0; dialect < KVB_DIALECT_COUNT; dialect++) {
        write_good((enum kvb_dialect)dialect, &good);
        for (size_t kind = 0; kind < kvb_malformed_kinds; kind++) {
            kvb_buf_reset(&bad);
            assert_ok(kvb_malformed_make(kind, kvb_buf_span(&good), &bad));
            assert_true(bad.len > 0);
            const kvb_status status = kvb_engine_batch_decode(kvb_buf_span(&bad), &batch);
            if (status != KVB_BAD_INPUT && status != KVB_TOO_LARGE) {
                fail_msg("%s: %s", kvb_malformed_name(kind), kvb_status_name(status));
            }
        }
    }
}

SUITE(malformed)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_kind_is_refused_in_every_dialect),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
