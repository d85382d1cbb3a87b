#include "kvb_test.h"

#include "stream/mirror.h"
#include "stream/mirror_record.h"

#include <string.h>

/* Records that no mirror writes.  The first entry: rooted, used, one certain copy in tier 0. */

enum { at_id = 0, at_standing = 16, at_flags = 17, at_least = 18, at_rest = 19, at_most = 20 };

static void make_record(uint8_t record[kvb_mirror_record_bytes])
{
    memset(record, 0, kvb_mirror_record_bytes);
    memset(record + 8, 0xff, 8); /* no older, no newer */
    record[at_flags] = 4;
    record[at_least] = 1;
    record[at_most] = 1;
}

static kvb_status take_with(size_t at, uint8_t value)
{
    const struct kvb_mirror_options options = { .max_blocks = 10, .tiers = 1 };
    uint8_t record[kvb_mirror_record_bytes];
    struct kvb_mirror *mirror = NULL;

    make_record(record);
    record[at] = value;
    assert_ok(kvb_mirror_new(&options, &mirror));
    const kvb_status status = kvb_mirror_take_record(mirror, record);
    kvb_mirror_free(mirror);
    return status;
}

static void a_record_that_no_mirror_writes_is_refused(void **state)
{
    (void)state;
    assert_ok(take_with(at_standing, 0));
    assert_int_equal(take_with(at_id, 1), KVB_BAD_INPUT);       /* skips an id */
    assert_int_equal(take_with(at_standing, 3), KVB_BAD_INPUT); /* none such */
    assert_int_equal(take_with(at_flags, 4 | 8), KVB_BAD_INPUT);
    assert_int_equal(take_with(at_flags, 4 | 2), KVB_BAD_INPUT); /* doubtful, and is not */
    assert_int_equal(take_with(at_least, 0), KVB_BAD_INPUT);     /* is, and says it not */
    assert_int_equal(take_with(at_least, 3), KVB_BAD_INPUT);     /* at least 1, at most 0 */
    assert_int_equal(take_with(at_least, 0x11), KVB_BAD_INPUT);  /* no such tier */
    assert_int_equal(take_with(at_rest, 1), KVB_BAD_INPUT);
    assert_int_equal(take_with(at_most, 0), KVB_BAD_INPUT); /* used, and has no copy */
}

/* Each record of an entry holds in place of those before it. */
static void the_last_record_of_an_entry_holds(void **state)
{
    (void)state;
    const struct kvb_mirror_options options = { .max_blocks = 10, .tiers = 1 };
    const struct kvb_mirror_ends ends = { .entry_end = 1,
                                          .first_free = UINT32_MAX,
                                          .oldest_doubtful = UINT32_MAX,
                                          .newest_doubtful = UINT32_MAX };
    const struct kvb_digest_key key = { 0 };
    uint8_t record[kvb_mirror_record_bytes];
    struct kvb_mirror *mirror = NULL;

    assert_ok(kvb_mirror_new(&options, &mirror));
    make_record(record);
    record[at_flags] = 4 | 2;
    record[at_least] = 0;
    assert_ok(kvb_mirror_take_record(mirror, record)); /* doubtful at first */
    make_record(record);
    assert_ok(kvb_mirror_take_record(mirror, record));
    assert_ok(kvb_mirror_settle(mirror, &ends, &key));
    assert_int_equal(kvb_mirror_count(mirror)->doubtful, 0);
    assert_int_equal(kvb_mirror_count(mirror)->held[KVB_TIER_DEVICE], 1);
    kvb_mirror_free(mirror);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_record_that_no_mirror_writes_is_refused),
        cmocka_unit_test(the_last_record_of_an_entry_holds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
