#include "kvb_test.h"

#include "core/own.h"
#include "wire/load/engine_message.h"
#include "wire/vector_file.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct kvb_coordinator_update update; /* large */

static kvb_status decode(const char *hex)
{
    size_t len = 0;
    uint8_t *bytes = bytes_of_hex(hex, &len);
    const kvb_status status = kvb_coordinator_decode((kvb_span){ bytes, len }, &update);

    free(bytes);
    return status;
}

/* The recorded frames of two ranks: waiting and running requests, and blocks in use out of 63. */
static const struct {
    unsigned waiting, running, blocks;
} recorded[][2] = {
    { { 0, 0, 0 }, { 0, 0, 0 } },   { { 0, 0, 0 }, { 1, 0, 0 } },   { { 0, 1, 6 }, { 0, 2, 12 } },
    { { 1, 1, 6 }, { 0, 2, 12 } },  { { 0, 2, 12 }, { 0, 3, 19 } }, { { 0, 3, 18 }, { 0, 3, 19 } },
    { { 0, 3, 18 }, { 1, 3, 35 } }, { { 0, 3, 18 }, { 0, 4, 41 } }, { { 1, 3, 36 }, { 0, 4, 41 } },
    { { 0, 4, 42 }, { 0, 4, 41 } }, { { 2, 4, 42 }, { 2, 4, 41 } }, { { 2, 4, 42 }, { 3, 3, 53 } },
    { { 2, 4, 42 }, { 3, 2, 35 } }, { { 2, 4, 42 }, { 0, 4, 40 } }, { { 3, 3, 54 }, { 0, 4, 40 } },
    { { 1, 4, 53 }, { 0, 4, 40 } }, { { 0, 4, 42 }, { 0, 3, 26 } }, { { 0, 3, 24 }, { 0, 3, 26 } },
    { { 0, 3, 24 }, { 0, 2, 24 } }, { { 0, 2, 25 }, { 0, 2, 24 } }, { { 0, 2, 25 }, { 0, 1, 18 } },
    { { 0, 0, 0 }, { 0, 0, 0 } },   { { 0, 0, 0 }, { 1, 0, 0 } },   { { 0, 0, 0 }, { 0, 0, 0 } },
    { { 0, 0, 0 }, { 0, 0, 0 } },   { { 0, 0, 0 }, { 0, 0, 0 } },   { { 0, 0, 0 }, { 0, 0, 0 } },
    { { 0, 0, 0 }, { 0, 0, 0 } },   { { 0, 0, 0 }, { 0, 0, 0 } },   { { 0, 0, 0 }, { 0, 0, 0 } },
};

static void the_recorded_run_is_read_by_rank(void **state)
{
    (void)state;
    const unsigned stats =
        1U << KVB_FIGURE_WAITING | 1U << KVB_FIGURE_ACTIVE_SLOTS | 1U << KVB_FIGURE_USAGE;
    char *text = read_text_file("vllm-0.32/coordinator-dp2.txt");
    size_t frame = 0;

    for (const char *at = text; (at = strchr(at, ' ')); frame++) {
        assert_true(frame < KVB_COUNT_OF(recorded));
        assert_ok(decode(++at)); /* up to the end of the line */
        assert_true(update.has_ranks);
        assert_int_equal(update.rank_count, 2);
        assert_int_equal(update.count, 2);
        assert_int_equal(update.refused, 0);
        for (uint32_t rank = 0; rank < 2; rank++) {
            const struct kvb_load_sample *sample = &update.samples[rank];
            assert_true(sample->has_rank && sample->dp_rank == rank && sample->stats == stats);
            assert_int_equal(sample->load.num_requests_waiting, recorded[frame][rank].waiting);
            assert_int_equal(sample->load.request_active_slots, recorded[frame][rank].running);
            assert_int_equal(
                kvb_load_active_blocks((double)sample->load.gpu_cache_usage_perc, 63),
                recorded[frame][rank].blocks);
        }
    }
    assert_int_equal(frame, KVB_COUNT_OF(recorded));
    free(text);
}

SUITE(coordinator)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_recorded_run_is_read_by_rank),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
