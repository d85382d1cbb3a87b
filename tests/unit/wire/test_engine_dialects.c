#include "kvb_test.h"

#include "batch_line.h"

/* How engines and stores other than vLLM encode events, form by form. */

static void every_form_of_a_hash_is_read(void **state)
{
    (void)state;
    const struct case_of_hex cases[] = {
        { "92 01 91 92 " REMOVED "94 01 ff d3 8000000000000000 cf ffffffffffffffff",
          "removed device 1,ffffffffffffffff,8000000000000000,ffffffffffffffff;" },
        /* of 8, 9 and 20 bytes the last 8 count */
        { "92 01 91 92 " REMOVED "93 c4 08 0102030405060708 c4 09 ff0102030405060708"
          " c4 14 000000000000000000000000 0102030405060708",
          "removed device 102030405060708,102030405060708,102030405060708;" },
        /* "42", "0x2A"; of "0x" with 17 digits the last 16 count */
        { "92 01 91 92 " REMOVED
          "93 a2 3432 a4 30783241 b3 3078 46 30303030303030303030303030303031",
          "removed device 2a,2a,1;" },
        { "92 01 91 92 " REMOVED "91 a1 61", "skipped bad_removed;" },   /* "a" */
        { "92 01 91 92 " REMOVED "91 a2 3078", "skipped bad_removed;" }, /* "0x" */
        { "92 01 91 92 " REMOVED "91 a0", "skipped bad_removed;" },
        /* 2^64 as digits, -1 as digits, a float, a nil */
        { "92 01 91 92 " REMOVED "91 b4 3138343436373434303733373039353531363136",
          "skipped bad_removed;" },
        { "92 01 91 92 " REMOVED "91 a2 2d31", "skipped bad_removed;" },
        { "92 01 91 92 " REMOVED "91 ca 00000000", "skipped bad_removed;" },
        { "92 01 91 92 " REMOVED "91 c0", "skipped bad_removed;" },
    };
    CHECK_CASES(cases);
}

/* fs_backend: parent 0 without tokens means no parent. With tokens, 0 is an ordinary hash. */
static void every_form_of_no_parent_is_read(void **state)
{
    (void)state;
    const struct case_of_hex cases[] = {
        { "92 01 91 97 " STORED "91 05 00 90 00 c0 a7 53544f52414745",
          "stored disk root 5 size 0 tokens;" },
        { "92 01 91 95 " STORED "91 05 00 91 01 01", "stored device root 5 size 1 tokens 1;" },
        { "92 01 91 95 " STORED "91 05 07 90 00", "stored device after 7 5 size 0 tokens;" },
    };
    CHECK_CASES(cases);
}

#define TYPE_STORED "aa 6576656e745f74797065 a6 73746f726564 "
#define TYPE_REMOVED "aa 6576656e745f74797065 a7 72656d6f766564 "
#define TYPE_CLEARED "aa 6576656e745f74797065 a7 636c6561726564 "
#define SEQ_HASHES "aa 7365715f686173686573 "
#define MEDIUM "a6 6d656469756d "

static void maps_may_use_mooncakes_keys(void **state)
{
    (void)state;
    const struct case_of_hex cases[] = {
        { "93 01 91 83 " TYPE_STORED SEQ_HASHES "92 05 cf fffffffffffffffe " MEDIUM "a3 637075 00",
          "stored host root 5,fffffffffffffffe size 0 tokens; rank 0" },
        { "92 01 91 83 " TYPE_REMOVED SEQ_HASHES "91 05 " MEDIUM "a4 6469736b", "removed disk 5;" },
        { "92 01 91 82 " TYPE_REMOVED SEQ_HASHES "90", "removed device;" },
        { "92 01 91 81 " TYPE_CLEARED, "cleared all;" },
        /* an unknown type beside a known event_type; the other way round; both unknown */
        { "92 01 91 82 a4 74797065 a1 78 " TYPE_CLEARED, "cleared all;" },
        { "92 01 91 82 a4 74797065 b0 416c6c426c6f636b73436c6561726564"
          " aa 6576656e745f74797065 a1 78",
          "cleared all;" },
        { "92 01 91 81 aa 6576656e745f74797065 a1 78", "skipped unknown_event;" },
        { "92 01 91 81 aa 6576656e745f74797065 a0", "skipped unknown_event;" },
        { "92 01 91 81 " TYPE_STORED, "skipped bad_stored;" }, /* no key of hashes */
        { "92 01 91 81 " TYPE_REMOVED, "skipped bad_removed;" },
        /* parent_hash */
        { "92 01 91 83 " TYPE_STORED SEQ_HASHES "91 05 ab 706172656e745f68617368 07",
          "stored device after 7 5 size 0 tokens;" },
    };
    CHECK_CASES(cases);
}

#define STORE "af 426c6f636b53746f72654576656e74 "
#define UPDATE "b0 426c6f636b5570646174654576656e74 "
#define KEY_42 "a2 3432 "
#define MEMORY "92 a6 6d656d6f7279 a1 78 "
#define DISK "92 a4 6469736b a1 78 "
#define LOCAL_DISK "92 aa 6c6f63616c5f6469736b a1 78 "
#define MODEL_512 "a1 6d cd 0200 "

static void objects_of_a_pool_become_events_by_tier(void **state)
{
    (void)state;
    const struct case_of_hex cases[] = {
        /* block_hash "0x7", parent "5", tokens 1 2: one block of two, in two tiers */
        { "92 01 91 98 " STORE KEY_42 "93 " MEMORY DISK LOCAL_DISK MODEL_512
          "a3 307837 a1 35 92 01 02",
          "stored host after 5 7 size 2 tokens 1 2 by key model m; "
          "stored disk after 5 7 size 2 tokens 1 2 by key model m; "
          "stored external after 5 7 size 2 tokens 1 2 by key model m;" },
        /* few fields are set: the hash is read from the key, and there is no parent */
        { "92 01 91 98 " STORE KEY_42 "91 " MEMORY "a0 10 a0 a0 90",
          "stored host root 2a size 0 tokens by key;" },
        { "92 01 91 98 " STORE KEY_42 "91 " MEMORY "c0 10 00 00 c0",
          "stored host root 2a size 0 tokens by key;" },
        { "92 01 91 93 " UPDATE KEY_42 "91 " DISK,
          "stored disk root 2a size 0 tokens by key; removed host 2a by key; "
          "removed external 2a by key;" },
        { "92 01 91 93 " UPDATE KEY_42 "90",
          "removed host 2a by key; removed disk 2a by key; removed external 2a by key;" },
        /* an unknown medium: external */
        { "92 01 91 93 " UPDATE KEY_42 "91 92 a1 78 a0",
          "stored external root 2a size 0 tokens by key; removed host 2a by key; "
          "removed disk 2a by key;" },
        { "92 01 91 91 ae 52656d6f7665416c6c4576656e74", "cleared all;" },
    };
    CHECK_CASES(cases);
}

static void an_undecodable_object_costs_what_it_may_hide(void **state)
{
    (void)state;
    const struct case_of_hex cases[] = {
        { "92 01 91 98 " STORE KEY_42 "90 " MODEL_512 "a1 37 a0 90", "skipped bad_stored;" },
        { "92 01 91 98 " STORE KEY_42 "91 " MEMORY MODEL_512 "ca 00000000 a0 90",
          "skipped bad_stored;" },
        { "92 01 91 98 " STORE KEY_42 "91 " MEMORY MODEL_512 "a1 37 ca 00000000 90",
          "skipped bad_stored;" },
        { "92 01 91 98 " STORE KEY_42 "91 " MEMORY MODEL_512 "a1 37 a0 91 ff",
          "skipped bad_stored;" },
        { "92 01 91 98 " STORE "a0 91 " MEMORY MODEL_512 "a1 37 a0 90", "skipped bad_stored;" },
        { "92 01 91 92 " UPDATE KEY_42, "skipped bad_removed;" }, /* the target is missing */
        { "92 01 91 93 " UPDATE "c0 90", "skipped bad_removed;" },
        { "92 01 91 92 " UPDATE "90", "skipped bad_removed;" },
        /* a store without a block size, or cut off */
        { "92 01 91 98 " STORE KEY_42 "91 " MEMORY "a1 6d 00 a1 37 a0 90", "skipped bad_stored;" },
        { "92 01 91 98 " STORE KEY_42 "91 " MEMORY "a1 6d c0 a1 37 a0 90", "skipped bad_stored;" },
        { "92 01 91 98 " STORE KEY_42 "91 " MEMORY "a1 6d a0 a1 37 a0 90", "skipped bad_stored;" },
        { "92 01 91 97 " STORE KEY_42 "91 " MEMORY MODEL_512 "a1 37 a0", "skipped bad_stored;" },
        { "92 01 91 93 " STORE KEY_42 "91 " MEMORY, "skipped bad_stored;" },
        { "92 01 91 91 " STORE, "skipped bad_stored;" },
    };
    CHECK_CASES(cases);
}

static void a_bad_replica_costs_no_other(void **state)
{
    (void)state;
#define NO_DISKS "removed disk 2a by key; removed external 2a by key; "
    const struct case_of_hex cases[] = {
        { "92 01 91 98 " STORE KEY_42 "92 05 " MEMORY MODEL_512 "a1 37 a0 90",
          "stored host root 7 size 0 tokens by key model m; skipped bad_replica;" },
        { "92 01 91 98 " STORE KEY_42 "91 05 " MODEL_512 "a1 37 a0 90", "skipped bad_stored;" },
        { "92 01 91 93 " UPDATE KEY_42 "92 " MEMORY "05",
          "stored host root 2a size 0 tokens by key; " NO_DISKS "skipped bad_replica;" },
        { "92 01 91 93 " UPDATE KEY_42 "92 " MEMORY "91 a4 6469736b",
          "stored host root 2a size 0 tokens by key; " NO_DISKS "skipped bad_replica;" },
        { "92 01 91 93 " UPDATE KEY_42 "92 " MEMORY "92 a4 6469736b 05",
          "stored host root 2a size 0 tokens by key; " NO_DISKS "skipped bad_replica;" },
        { "92 01 91 93 " UPDATE KEY_42 "92 " MEMORY "93 a4 6469736b a0 a0",
          "stored host root 2a size 0 tokens by key; " NO_DISKS "skipped bad_replica;" },
        /* none can be read: the object may be anywhere, and is listed nowhere */
        { "92 01 91 93 " UPDATE KEY_42 "91 90",
          "removed host 2a by key; " NO_DISKS "skipped bad_replica;" },
    };
    CHECK_CASES(cases);
}

static void unknown_media_are_counted_and_placed(void **state)
{
    (void)state;
    struct kvb_event_batch batch = { 0 };

    /* "New" stored and removed, "gpu" removed, and an undecodable store in "New" */
    assert_ok(decode_hex(
        "92 01 94 97 " STORED "91 01 c0 91 05 01 c0 a3 4e6577 93 " REMOVED
        "91 01 a3 4e6577 93 " REMOVED "91 02 a3 677075 97 " STORED "91 01 c0 91 ff 01 c0 a3 4e6577",
        &batch));
    assert_int_equal(batch.unknown_media, 2);
    kvb_event_batch_place_unknown(&batch, KVB_TIER_HOST);
    assert_string_equal(
        line_of(&batch), "stored host root 1 size 1 tokens 5; removed host 1; "
                         "removed device 2; skipped bad_stored;");
    kvb_event_batch_done(&batch);
}

static void times_are_converted_to_seconds(void **state)
{
    (void)state;
    struct kvb_event_batch batch = { 0 };

    assert_ok(decode_hex("92 cf 0000018bcfe5687b 90", &batch)); /* 1700000000123 ms */
    assert_true(batch.timestamp_s == 1700000000.123);
    assert_ok(decode_hex("92 ce 6553f100 90", &batch));
    assert_true(batch.timestamp_s == 1700000000.0);
    assert_ok(decode_hex("92 cb 4278bcfe5687b000 90", &batch)); /* a float is seconds */
    assert_true(batch.timestamp_s > 1e12);
    kvb_event_batch_done(&batch);
}

static void mooncakes_form_shows_that_it_counts_from_one(void **state)
{
    (void)state;
    struct kvb_event_batch batch = { 0 };

    assert_ok(decode_hex("92 01 91 81 " TYPE_CLEARED, &batch));
    assert_true(batch.counts_from_one);
    assert_ok(decode_hex("92 01 91 91 ae 52656d6f7665416c6c4576656e74", &batch));
    assert_false(batch.counts_from_one);
    kvb_event_batch_done(&batch);
}

SUITE(engine_dialects)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_form_of_a_hash_is_read),
        cmocka_unit_test(every_form_of_no_parent_is_read),
        cmocka_unit_test(maps_may_use_mooncakes_keys),
        cmocka_unit_test(objects_of_a_pool_become_events_by_tier),
        cmocka_unit_test(an_undecodable_object_costs_what_it_may_hide),
        cmocka_unit_test(a_bad_replica_costs_no_other),
        cmocka_unit_test(unknown_media_are_counted_and_placed),
        cmocka_unit_test(times_are_converted_to_seconds),
        cmocka_unit_test(mooncakes_form_shows_that_it_counts_from_one),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
