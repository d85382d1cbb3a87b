#include "kvb_test.h"

#include "core/own.h"
#include "wire/load/coordinator.h"
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

/* ---- A real coordinator ---- */

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

/* ---- Other shapes ---- */

static void pairs_and_nils_are_read(void **state)
{
    (void)state;
    const unsigned pair = 1U << KVB_FIGURE_WAITING | 1U << KVB_FIGURE_ACTIVE_SLOTS;

    /* [[[5, 6], nil, [nil, 7], [nil, nil, nil], [], [1, 2, 1.0, "x"]], 3, true, "more"] */
    assert_ok(decode("9496920506c092c00793c0c0c09094010201a17803c3a46d6f7265"));
    assert_true(update.has_ranks);
    assert_int_equal(update.rank_count, 6);
    assert_int_equal(update.count, 3);
    assert_int_equal(update.samples[0].dp_rank, 0);
    assert_int_equal(update.samples[0].stats, pair);
    assert_int_equal(update.samples[0].load.num_requests_waiting, 5);
    assert_int_equal(update.samples[0].load.request_active_slots, 6);
    assert_int_equal(update.samples[1].dp_rank, 2);
    assert_int_equal(update.samples[1].stats, 1U << KVB_FIGURE_ACTIVE_SLOTS);
    assert_int_equal(update.samples[1].load.request_active_slots, 7);
    assert_int_equal(update.samples[2].dp_rank, 5);
    assert_int_equal(update.samples[2].stats, pair | 1U << KVB_FIGURE_USAGE);
    assert_true(update.samples[2].load.gpu_cache_usage_perc == 1);

    /* [nil, 4, false]: a wave ends; [[], 4, false]: no rank is left */
    assert_ok(decode("93c004c2"));
    assert_false(update.has_ranks);
    assert_int_equal(update.count, 0);
    assert_ok(decode("939004c2"));
    assert_true(update.has_ranks);
    assert_int_equal(update.rank_count, 0);
}

static void impossible_figures_are_counted(void **state)
{
    (void)state;
    /* [[[-1, 2, 1.5], [nan, 1e300, -0.1], [3, 4, nan]], 0, false] */
    assert_ok(decode("939393ff02cb3ff800000000000093cb7ff8000000000000cb7e37e43c8800759c"
                     "cbbfb999999999999a930304cb7ff800000000000000c2"));
    assert_int_equal(update.refused, 6);
    assert_int_equal(update.count, 2);
    assert_int_equal(update.samples[0].stats, 1U << KVB_FIGURE_ACTIVE_SLOTS);
    assert_int_equal(update.samples[1].dp_rank, 2);
    assert_int_equal(update.samples[1].load.request_active_slots, 4);
}

static void other_messages_are_refused(void **state)
{
    (void)state;
    const char *const bad[] = {
        "",
        "c0",
        "90",
        "93c000",           /* truncated */
        "92c000",           /* two values */
        "93c0c2c2",         /* a wave that is no number */
        "93c0ffc2",         /* a negative one */
        "93c00000",         /* neither true nor false */
        "930000c2",         /* counts that are a number */
        "93a17800c2",       /* counts that are a text */
        "93910000c2",       /* an entry that is no list */
        "939192a1780000c2", /* a count that is a text */
        "93c000c2c0",       /* bytes after it */
        "83c000c200c300",   /* a map */
        "93dd05f5e10000c2", /* a hundred million entries in a few bytes */
        "01",               /* sent by a front end, not by a coordinator */
    };
    for (size_t i = 0; i < KVB_COUNT_OF(bad); i++) {
        if (decode(bad[i]) != KVB_BAD_INPUT) {
            fail_msg("taken: %s", bad[i]);
        }
    }
}

static void too_many_ranks_are_refused(void **state)
{
    (void)state;
    uint8_t bytes[3 + kvb_max_ranks + 1 + 3] = { 0x93, 0xdc, 0, 0 };

    for (unsigned ranks = kvb_max_ranks; ranks <= kvb_max_ranks + 1; ranks++) {
        size_t len = 4;
        bytes[2] = (uint8_t)(ranks >> 8);
        bytes[3] = (uint8_t)ranks;
        memset(bytes + len, 0xc0, ranks);
        len += ranks;
        bytes[len++] = 0;
        bytes[len++] = 0xc2;
        assert_int_equal(
            kvb_coordinator_decode((kvb_span){ bytes, len }, &update),
            ranks > kvb_max_ranks ? KVB_TOO_LARGE : KVB_OK);
    }
    static uint8_t large[kvb_max_load_payload_bytes + 1];
    assert_int_equal(
        kvb_coordinator_decode((kvb_span){ large, sizeof large }, &update), KVB_TOO_LARGE);
}

SUITE(coordinator)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_recorded_run_is_read_by_rank),
        cmocka_unit_test(pairs_and_nils_are_read),
        cmocka_unit_test(impossible_figures_are_counted),
        cmocka_unit_test(other_messages_are_refused),
        cmocka_unit_test(too_many_ranks_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
