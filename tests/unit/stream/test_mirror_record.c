#include "kvb_test.h"

#include "batch_maker.h"
#include "stream/mirror/mirror.h"
#include "stream/mirror/record.h"

#include <string.h>

/* Records that no mirror writes must be refused. The first entry is rooted, used, and has one
 * certain copy in tier 0. */

enum {
    at_id = 0,
    at_placement = 12,
    at_flags = 13,
    at_group = 14,
    at_size = 15,
    at_most_counted = 16,
    at_least_counted = 32,
    at_most = 16,
    at_least = 20
};

static void make_record(uint8_t record[kvb_mirror_record_bytes])
{
    memset(record, 0, kvb_mirror_record_bytes);
    memset(record + 4, 0xff, 8); /* no older and no newer entry */
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
    assert_ok(take_with(at_placement, 0));
    assert_int_equal(take_with(at_id, 1), KVB_BAD_INPUT);        /* leaves an id out */
    assert_int_equal(take_with(at_placement, 4), KVB_BAD_INPUT); /* there is no such placement */
    assert_int_equal(take_with(at_flags, 4 | 8), KVB_BAD_INPUT);
    /* marked as doubtful, but it is not */
    assert_int_equal(take_with(at_flags, 4 | 2), KVB_BAD_INPUT);
    assert_int_equal(take_with(at_least, 0), KVB_BAD_INPUT);     /* doubtful, but not marked */
    assert_int_equal(take_with(at_least, 2), KVB_BAD_INPUT);     /* at least 2, at most 1 */
    assert_int_equal(take_with(at_least + 1, 1), KVB_BAD_INPUT); /* at least 1, at most 0 */
    assert_int_equal(take_with(at_group, 32), KVB_BAD_INPUT);
    assert_int_equal(take_with(at_size, kvb_max_tier_shapes + 1), KVB_BAD_INPUT);
    assert_int_equal(take_with(at_most, 0), KVB_BAD_INPUT); /* used, but without a copy */
}

/* ---- The ends record of a mirror with that entry and one group ---- */

enum {
    at_entry_end = 0,
    at_flag_word = 32,
    at_tokenless = 36,
    at_group_count = 40,
    at_shape_count = 44,
    at_first_group = 48,
    at_kind = at_first_group + 4,
    at_tiers = at_first_group + 12,
    at_second_group = at_first_group + 16,
    at_first_shape = 560,
    at_most_proven = 656
};

static void make_ends(uint8_t ends[kvb_mirror_ends_bytes])
{
    memset(ends, 0, kvb_mirror_ends_bytes);
    memset(ends + 4, 0xff, 20); /* no free entries, no doubtful ones */
    ends[at_entry_end] = 1;
    ends[at_group_count] = 1;
    ends[at_tiers] = 1;
    ends[at_shape_count] = 1;
    ends[at_first_shape + 4] = 16;
    ends[at_most_proven] = 1;
}

static kvb_status settle_with(size_t at, uint8_t value)
{
    const struct kvb_mirror_options options = { .max_blocks = 10, .tiers = 1 };
    const struct kvb_digest_key key = { 0 };
    uint8_t record[kvb_mirror_record_bytes];
    uint8_t ends[kvb_mirror_ends_bytes];
    struct kvb_mirror *mirror = NULL;

    make_record(record);
    make_ends(ends);
    ends[at] = value;
    assert_ok(kvb_mirror_new(&options, &mirror));
    assert_ok(kvb_mirror_take_record(mirror, record));
    const kvb_status status = kvb_mirror_settle(mirror, ends, &key, &(bool){ false });
    kvb_mirror_free(mirror);
    return status;
}

static void ends_that_no_mirror_writes_are_refused(void **state)
{
    (void)state;
    assert_ok(settle_with(at_kind, 0));
    assert_int_equal(settle_with(at_entry_end, 2), KVB_BAD_INPUT);
    assert_int_equal(settle_with(4, 0), KVB_BAD_INPUT); /* the used entry is in the free list */
    /* an entry that is not doubtful is in the doubtful list */
    assert_int_equal(settle_with(8, 0), KVB_BAD_INPUT);
    assert_int_equal(settle_with(16, 0), KVB_BAD_INPUT); /* the same in the list of window blocks */
    assert_int_equal(settle_with(at_flag_word, 64), KVB_BAD_INPUT);
    assert_int_equal(settle_with(at_tokenless, 16), KVB_BAD_INPUT);
    assert_int_equal(settle_with(at_tokenless + 1, 16), KVB_BAD_INPUT); /* reset tiers */
    assert_int_equal(settle_with(at_group_count, 0), KVB_BAD_INPUT);
    /* the same group number twice */
    assert_int_equal(settle_with(at_group_count, 2), KVB_BAD_INPUT);
    assert_int_equal(settle_with(at_group_count, 33), KVB_BAD_INPUT);
    /* set behind the last group */
    assert_int_equal(settle_with(at_second_group, 1), KVB_BAD_INPUT);
    /* blocks of such a group are not kept */
    assert_int_equal(settle_with(at_kind, 2), KVB_BAD_INPUT);
    assert_int_equal(settle_with(at_kind, 3), KVB_BAD_INPUT);
    /* a group that never stored on the device */
    assert_int_equal(settle_with(at_tiers, 2), KVB_BAD_INPUT);
    assert_int_equal(settle_with(at_tiers, 0x11), KVB_BAD_INPUT);
    assert_int_equal(settle_with(at_shape_count, 0), KVB_BAD_INPUT); /* set behind the last shape */
    assert_int_equal(settle_with(at_shape_count, 9), KVB_BAD_INPUT);
    assert_int_equal(settle_with(at_first_shape, 4), KVB_BAD_INPUT);     /* there is no such tier */
    assert_int_equal(settle_with(at_first_shape + 4, 0), KVB_BAD_INPUT); /* a shape of no tokens */
    /* 256 tokens of lookahead */
    assert_int_equal(settle_with(at_first_shape + 9, 1), KVB_BAD_INPUT);
    /* but one entry is proven */
    assert_int_equal(settle_with(at_most_proven, 0), KVB_BAD_INPUT);
}

/* ---- More copies than a byte can count ---- */

enum { many = 300, records = 16 };

static void apply_many(struct kvb_mirror *mirror, struct kvb_event_batch *batch, int times)
{
    struct kvb_router_batch out = { 0 };

    for (int i = 0; i < times; i++) {
        for (size_t at = 0; at < batch->event_count; at++) {
            assert_ok(apply_event(mirror, batch, at, UINT64_MAX, &out));
        }
    }
    kvb_event_batch_reset(batch);
    kvb_router_batch_done(&out);
}

static size_t
save(struct kvb_mirror *mirror, struct kvb_buf *out, uint8_t ends[kvb_mirror_ends_bytes])
{
    size_t place = 0;
    size_t count = 0;

    assert_ok(kvb_mirror_watch(mirror));
    assert_ok(kvb_mirror_put_changed(mirror, records, &place, out, &count));
    kvb_mirror_put_ends(mirror, ends);
    assert_int_equal(out->len, count * kvb_mirror_record_bytes);
    return count;
}

static void what_is_known_of_the_tiers_is_kept(void **state)
{
    (void)state;
    const struct kvb_mirror_options options = { .max_blocks = 10, .tiers = 3 };
    const struct kvb_digest_key key = { 0 };
    const uint64_t hashes[] = { 901, 902 };
    const uint32_t tokens[] = { 1, 2 };
    uint8_t ends[kvb_mirror_ends_bytes];
    struct kvb_mirror *mirror = NULL;
    struct kvb_mirror *other = NULL;
    struct kvb_event_batch batch = { 0 };
    struct kvb_router_batch out = { 0 };
    struct kvb_buf bytes;

    kvb_buf_init(&bytes, (size_t)records * kvb_mirror_record_bytes);
    assert_ok(kvb_mirror_new(&options, &mirror));
    assert_ok(kvb_mirror_new(&options, &other));
    add_stored(&batch, NULL, hashes, tokens, 2); /* a chunk, named before the device names salts */
    last_event(&batch)->tier = KVB_TIER_HOST;
    last_event(&batch)->is_of_connector = true;
    add_cleared(&batch);
    last_event(&batch)->leaves_tiers = true;
    add_stored(&batch, NULL, hashes, tokens, 2);
    last_event(&batch)->has_extra_keys = true;
    apply_batch(mirror, &batch, &out);
    const size_t count = save(mirror, &bytes, ends);
    for (size_t i = 0; i < count; i++) {
        assert_ok(kvb_mirror_take_record(other, bytes.data + i * kvb_mirror_record_bytes));
    }
    assert_ok(kvb_mirror_settle(other, ends, &key, &(bool){ false }));
    assert_int_equal(kvb_mirror_chunk_blocks(other), 2);
    assert_int_equal(kvb_mirror_unsaid_tiers(other), 1U << KVB_TIER_HOST);
    assert_int_equal(kvb_mirror_reset_tiers(other), kvb_mirror_reset_tiers(mirror));
    assert_true(kvb_mirror_reset_tiers(other) >> KVB_TIER_HOST & 1);
    kvb_mirror_free(mirror);
    kvb_mirror_free(other);
    kvb_event_batch_done(&batch);
    kvb_router_batch_done(&out);
    kvb_buf_done(&bytes);
}

static void many_copies_are_kept(void **state)
{
    (void)state;
    const struct kvb_mirror_options options = { .max_blocks = 10,
                                                .tiers = 1,
                                                .copies = KVB_COPIES_COUNTED };
    const struct kvb_digest_key key = { 0 };
    const uint64_t hashes[] = { 901, 902 };
    const uint32_t tokens[] = { 1, 2 };
    uint8_t ends[kvb_mirror_ends_bytes];
    struct kvb_mirror *mirror = NULL;
    struct kvb_mirror *other = NULL;
    struct kvb_event_batch batch = { 0 };
    struct kvb_buf bytes;

    kvb_buf_init(&bytes, (size_t)records * kvb_mirror_record_bytes);
    assert_ok(kvb_mirror_new(&options, &mirror));
    assert_ok(kvb_mirror_new(&options, &other));
    add_stored(&batch, NULL, hashes, tokens, 2);
    apply_many(mirror, &batch, many);
    add_removed(&batch, hashes, 1);
    apply_many(mirror, &batch, many - 1);
    const size_t count = save(mirror, &bytes, ends);
    assert_int_equal(count, 3); /* of the second entry, two copies */
    for (size_t i = 0; i < count; i++) {
        assert_ok(kvb_mirror_take_record(other, bytes.data + i * kvb_mirror_record_bytes));
    }
    assert_ok(kvb_mirror_settle(other, ends, &key, &(bool){ false }));
    assert_int_equal(kvb_mirror_count(other)->proven_copies, many + 1);
    add_removed(&batch, &hashes[1], 1);
    apply_many(other, &batch, many - 1);
    assert_int_equal(kvb_mirror_count(other)->held[KVB_TIER_DEVICE], 2);
    add_removed(&batch, &hashes[1], 1);
    apply_many(other, &batch, 1);
    assert_int_equal(kvb_mirror_count(other)->held[KVB_TIER_DEVICE], 1);
    kvb_mirror_free(mirror);
    kvb_mirror_free(other);
    kvb_event_batch_done(&batch);
    kvb_buf_done(&bytes);
}

/* Takes the record of an entry with 255 or more copies, one of them certain, and then this one. */
static kvb_status take_counts_with(size_t at, uint8_t value)
{
    const struct kvb_mirror_options options = { .max_blocks = 10, .tiers = 1 };
    uint8_t record[kvb_mirror_record_bytes];
    struct kvb_mirror *mirror = NULL;

    make_record(record);
    record[at_most] = 255;
    assert_ok(kvb_mirror_new(&options, &mirror));
    assert_ok(kvb_mirror_take_record(mirror, record));
    memset(record, 0, sizeof record);
    record[at_flags] = 8;
    record[at_most_counted + 1] = 1; /* 256 copies */
    record[at_least_counted] = 1;
    record[at] = value;
    const kvb_status status = kvb_mirror_take_record(mirror, record);
    kvb_mirror_free(mirror);
    return status;
}

static void counts_that_no_mirror_writes_are_refused(void **state)
{
    (void)state;
    assert_ok(take_counts_with(at_flags, 8));
    assert_int_equal(take_counts_with(at_id, 1), KVB_BAD_INPUT); /* there is no such entry */
    assert_int_equal(take_counts_with(at_most_counted + 1, 0), KVB_BAD_INPUT);
    /* of an entry without copies */
    assert_int_equal(take_counts_with(at_most_counted + 4, 1), KVB_BAD_INPUT);
    assert_int_equal(take_counts_with(at_least_counted, 0), KVB_BAD_INPUT);
    assert_int_equal(take_counts_with(at_least_counted + 3, 1), KVB_BAD_INPUT);
}

/* ---- The reason why groups are unsupported ---- */

/* The reason that a mirror with this ends record gives, or "refused". */
static const char *why_odd(const uint8_t ends[kvb_mirror_ends_bytes])
{
    const struct kvb_mirror_options options = { .max_blocks = 10, .tiers = 1 };
    const struct kvb_digest_key key = { 0 };
    struct kvb_mirror *mirror = NULL;

    assert_ok(kvb_mirror_new(&options, &mirror));
    const char *why = kvb_mirror_settle(mirror, ends, &key, &(bool){ false }) == KVB_OK
                          ? kvb_mirror_odd_groups_why(mirror)
                          : "refused";
    kvb_mirror_free(mirror);
    return why;
}

static void the_reason_why_groups_are_unsupported_is_kept(void **state)
{
    (void)state;
    const struct kvb_mirror_options options = { .max_blocks = 10, .tiers = 1 };
    const struct kvb_engine_event skipped = { .group = 3, .group_kind = KVB_GROUP_CROSS };
    uint8_t even[kvb_mirror_ends_bytes];
    uint8_t odd[kvb_mirror_ends_bytes];
    struct kvb_mirror *mirror = NULL;

    assert_ok(kvb_mirror_new(&options, &mirror));
    kvb_mirror_put_ends(mirror, even);
    kvb_mirror_meet_other_group(mirror, &skipped);
    kvb_mirror_put_ends(mirror, odd);
    assert_null(why_odd(even));
    assert_non_null(strstr(why_odd(odd), "cross"));
    size_t flags = 0;
    while (even[flags] == odd[flags] || !(odd[flags] & 2)) {
        flags++;
    }
    odd[flags + 1] = 0; /* checkpoints of earlier versions have no reason */
    assert_non_null(strstr(why_odd(odd), "before the restart"));
    odd[flags + 1] = 200;
    assert_string_equal(why_odd(odd), "refused");
    odd[flags + 1] = 2;
    odd[flags] = even[flags]; /* a reason although the groups are supported */
    assert_string_equal(why_odd(odd), "refused");
    kvb_mirror_free(mirror);
}

/* ---- Shards of a store's objects ---- */

static void add_object(
    struct kvb_event_batch *batch, bool is_stored, uint64_t block, uint32_t shard, uint32_t family)
{
    if (is_stored) {
        add_stored(batch, NULL, &block, NULL, 1);
    } else {
        add_removed(batch, &block, 1);
    }
    struct kvb_engine_event *event = last_event(batch);
    event->tier = KVB_TIER_HOST;
    event->key = ((uint64_t)family << 40U) + block * 1000 + shard;
    event->group = shard;
    event->family = family;
}

static void shards_of_a_store_are_kept(void **state)
{
    (void)state;
    enum { one = 0xabcdef, other_one = 1 };
    const struct kvb_mirror_options options = { .max_blocks = 10,
                                                .hashes = KVB_HASHES_ENGINE,
                                                .tiers = 1U << KVB_TIER_HOST };
    const struct kvb_digest_key key = { 0 };
    uint8_t ends[kvb_mirror_ends_bytes];
    struct kvb_mirror *mirror = NULL;
    struct kvb_mirror *restored = NULL;
    struct kvb_event_batch batch = { 0 };
    struct kvb_buf bytes;

    kvb_buf_init(&bytes, (size_t)records * kvb_mirror_record_bytes);
    assert_ok(kvb_mirror_new(&options, &mirror));
    assert_ok(kvb_mirror_new(&options, &restored));
    add_object(&batch, true, 5, 100, one); /* both shards */
    add_object(&batch, true, 5, 101, one);
    add_object(&batch, true, 6, 100, one);       /* one of two */
    add_object(&batch, true, 7, 200, other_one); /* the only one of its family */
    apply_many(mirror, &batch, 1);
    assert_int_equal(kvb_mirror_count(mirror)->held[KVB_TIER_HOST], 2);
    const size_t count = save(mirror, &bytes, ends);
    for (size_t i = 0; i < count; i++) {
        assert_ok(kvb_mirror_take_record(restored, bytes.data + i * kvb_mirror_record_bytes));
    }
    assert_ok(kvb_mirror_settle(restored, ends, &key, &(bool){ false }));
    assert_int_equal(kvb_mirror_count(restored)->held[KVB_TIER_HOST], 2);
    add_object(&batch, true, 6, 101, one);
    apply_many(restored, &batch, 1);
    assert_int_equal(kvb_mirror_count(restored)->held[KVB_TIER_HOST], 3);
    add_object(&batch, false, 5, 101, one);
    apply_many(restored, &batch, 1);
    assert_int_equal(kvb_mirror_count(restored)->held[KVB_TIER_HOST], 2);
    kvb_mirror_free(mirror);
    kvb_mirror_free(restored);
    kvb_event_batch_done(&batch);
    kvb_buf_done(&bytes);
}

SUITE(mirror_record)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_record_that_no_mirror_writes_is_refused),
        cmocka_unit_test(ends_that_no_mirror_writes_are_refused),
        cmocka_unit_test(what_is_known_of_the_tiers_is_kept),
        cmocka_unit_test(many_copies_are_kept),
        cmocka_unit_test(counts_that_no_mirror_writes_are_refused),
        cmocka_unit_test(the_reason_why_groups_are_unsupported_is_kept),
        cmocka_unit_test(shards_of_a_store_are_kept),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
