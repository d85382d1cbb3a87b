#include "kvb_test.h"

#include "wire/engine/fields.h"

#include <string.h>

#define SHA "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff"
#define FIRST_8 0x0011223344556677U
#define LAST_8 0x8899aabbccddeeffU

static struct kvb_object_key read_key(const char *text)
{
    struct kvb_object_key key = { 0 };

    if (kvb_object_key_read(kvb_span_of(text), &key) != KVB_OK) {
        fail_msg("not read: %s", text);
    }
    assert_true(key.family > 0 && key.family < 1U << 24);
    return key;
}

static void the_block_is_named_as_the_engines_events_name_it(void **state)
{
    (void)state;
    const struct {
        const char *key;
        uint64_t hash;
        const char *model;
    } cases[] = {
        { "m@tp_rank:0@pcp0@dcp0@pp_rank:0@group:0@" SHA, LAST_8, "m" },
        { "m@tp_rank:11@pcp0@dcp0@pp_rank:0@" SHA, LAST_8, "m" },
        { "prefix@m@tp_rank:0@pcp0@dcp0@pp_rank:0@group:0@" SHA, LAST_8, "m" },
        { "m@pcp0@dcp0@head_or_tp_rank:0@pp_rank:0@" SHA, LAST_8, "m" },
        { "m@tp_rank:0@pcp0@dcp0@pp_rank:0@group:0@8899AABBCCDDEEFF", LAST_8, "m" },
        { SHA "_0_k", FIRST_8, "" },
        { SHA "_13_v", FIRST_8, "" },
        { SHA "_k", FIRST_8, "" },
        { SHA "_1_2_k", FIRST_8, "" },
        { "42", 42, "" },
        { "18446744073709551615", UINT64_MAX, "" },
        { "-2", UINT64_MAX - 1, "" },
        { "0x2a", 42, "" },
        { "0x7f68b47816831f2b", 0x7f68b47816831f2bU, "" },
    };

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const struct kvb_object_key key = read_key(cases[i].key);
        assert_int_equal(key.hash, cases[i].hash);
        assert_true(kvb_span_is(key.model, cases[i].model));
    }
}

static void a_key_of_another_form_is_refused(void **state)
{
    (void)state;
    static const char *const keys[] = {
        "",
        "-",
        "--2",
        "weights/layer.0",
        "18446744073709551616",
        "0x",
        SHA,      /* the first 8 bytes or the last ones */
        SHA "_0", /* neither keys nor values */
        SHA "_0_x",
        SHA "_0_kv",
        SHA "__k",
        SHA "x0_k",
        "0" SHA "_0_k",
        "m@" SHA, /* no rank */
        "m@pp_rank:0@" SHA,
        "m@tp_rank:x@pcp0@dcp0@pp_rank:0@group:0@" SHA,
        "m@tp_rank:0@pcp0@dcp0@pp_rank:0@group:0@6130", /* too short for 8 bytes */
        "m@tp_rank:0@pcp0@dcp0@pp_rank:0@group:0@xyz",
        "m@tp_rank:0@pcp0@dcp0@pp_rank:0@group:0@",
        "m@pcp0@dcp0@head_or_tp_rank:0@" SHA "@3", /* one layer of a block */
        "@tp_rank:0@pcp0@dcp0@pp_rank:0@group:0@" SHA,
        "tp_rank:0@pcp0@dcp0@pp_rank:0@group:0@" SHA,
    };

    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        struct kvb_object_key key = { 0 };
        if (kvb_object_key_read(kvb_span_of(keys[i]), &key) != KVB_BAD_INPUT) {
            fail_msg("read: %s", keys[i]);
        }
    }
}

static void shards_of_a_block_are_of_one_family(void **state)
{
    (void)state;
    const struct {
        const char *one;
        const char *other;
        bool is_one_family;
        bool is_one_shard;
    } cases[] = {
        { "m@tp_rank:0@pcp0@dcp0@pp_rank:0@group:0@" SHA,
          "m@tp_rank:0@pcp0@dcp0@pp_rank:0@group:0@0000000000000001", true, true },
        { "m@tp_rank:0@pcp0@dcp0@pp_rank:0@group:0@" SHA,
          "m@tp_rank:1@pcp0@dcp0@pp_rank:0@group:0@" SHA, true, false },
        { "m@tp_rank:0@pcp0@dcp0@pp_rank:0@group:0@" SHA,
          "m@tp_rank:0@pcp0@dcp0@pp_rank:1@group:0@" SHA, true, false },
        { "m@tp_rank:0@pcp0@dcp0@pp_rank:0@group:0@" SHA,
          "n@tp_rank:0@pcp0@dcp0@pp_rank:0@group:0@" SHA, false, false },
        { "m@tp_rank:0@pcp0@dcp0@pp_rank:0@group:0@" SHA,
          "p@m@tp_rank:0@pcp0@dcp0@pp_rank:0@group:0@" SHA, false, false },
        { SHA "_0_k", SHA "_0_v", true, false },
        { SHA "_0_k", SHA "_1_k", true, false },
        { SHA "_0_k", "42", false, false },
        { "0x2a", "7", true, true },
    };

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const struct kvb_object_key one = read_key(cases[i].one);
        const struct kvb_object_key other = read_key(cases[i].other);
        assert_int_equal(one.family == other.family, cases[i].is_one_family);
        assert_int_equal(one.shard == other.shard, cases[i].is_one_shard);
    }
}

SUITE(object_key)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_block_is_named_as_the_engines_events_name_it),
        cmocka_unit_test(a_key_of_another_form_is_refused),
        cmocka_unit_test(shards_of_a_block_are_of_one_family),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
