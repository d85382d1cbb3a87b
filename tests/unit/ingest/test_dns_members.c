#include "kvb_test.h"

#include "core/own.h"
#include "fail_alloc.h"
#include "ingest/dns/members.h"

#include <stdio.h>
#include <string.h>

/* NULL ends the list. */
static struct kvb_dns_members list_of(const char *const texts[])
{
    struct kvb_dns_members found = { 0 };

    for (; *texts; texts++) {
        assert_ok(kvb_dns_members_add(&found, *texts));
    }
    return found;
}

static bool answer(struct kvb_dns_members *members, const char *const texts[])
{
    KVB_OWN(kvb_dns_members_done) struct kvb_dns_members found = list_of(texts);
    bool has_changed = false;

    assert_ok(kvb_dns_members_answered(members, &found, &has_changed));
    return has_changed;
}

#define LIST(...) ((const char *const[]){ __VA_ARGS__, NULL })

static void assert_members(const struct kvb_dns_members *members, const char *const texts[])
{
    size_t count = 0;

    for (; texts[count]; count++) {
        assert_in_range(count + 1, 1, members->count);
        assert_string_equal(members->items[count].host, texts[count]);
    }
    assert_int_equal(members->count, count);
}

static void members_are_sorted_and_unique(void **state)
{
    (void)state;
    KVB_OWN(kvb_dns_members_done) struct kvb_dns_members members = { 0 };

    assert_true(answer(&members, LIST("c", "a", "c", "b", "a")));
    assert_members(&members, LIST("a", "b", "c"));
    assert_false(answer(&members, LIST("b", "c", "a")));
}

/* A reference table: for each host, the number of answers since it was last listed. */
enum { hosts = 12, never = 99 };

struct plain_table {
    unsigned since[hosts];
    size_t count; /* number of members */
    bool has_changed;
    uint32_t seed;
};

/* Gives a random answer to the product and to the reference table. */
static struct kvb_dns_members draw_answer(struct plain_table *plain)
{
    struct kvb_dns_members found = { 0 };

    plain->count = 0;
    plain->has_changed = false;
    for (size_t i = 0; i < hosts; i++) {
        const unsigned before = plain->since[i];
        const char host[2] = { (char)('a' + i), '\0' };
        plain->seed = plain->seed * 1664525 + 1013904223;
        const bool is_listed = (plain->seed >> 16) % 3 == 0;
        unsigned now = is_listed ? 0 : before == never ? never : before + 1;
        now = now >= kvb_dns_misses ? never : now;
        plain->since[i] = now;
        plain->has_changed |= (now == never) != (before == never);
        plain->count += now != never;
        if (is_listed) {
            assert_ok(kvb_dns_members_add(&found, host));
        }
    }
    return found;
}

static void agrees_with_a_reference_table_over_random_answers(void **state)
{
    (void)state;
    KVB_OWN(kvb_dns_members_done) struct kvb_dns_members members = { 0 };
    struct plain_table plain = { .seed = 7 };

    for (size_t i = 0; i < hosts; i++) {
        plain.since[i] = never;
    }
    for (size_t turn = 0; turn < 2000; turn++) {
        KVB_OWN(kvb_dns_members_done) struct kvb_dns_members found = draw_answer(&plain);
        bool has_changed = false;
        assert_ok(kvb_dns_members_answered(&members, &found, &has_changed));
        assert_int_equal(has_changed, plain.has_changed);
        assert_int_equal(members.count, plain.count);
        for (size_t i = 0; i < members.count; i++) {
            assert_true(plain.since[members.items[i].host[0] - 'a'] == members.items[i].misses);
        }
    }
}

static void there_is_a_ceiling(void **state)
{
    (void)state;
    KVB_OWN(kvb_dns_members_done) struct kvb_dns_members members = { 0 };
    char host[kvb_address_bytes];

    for (size_t i = 0; i < kvb_max_dns_members; i++) {
        (void)snprintf(host, sizeof host, "%04zu", i);
        assert_ok(kvb_dns_members_add(&members, host));
    }
    assert_int_equal(kvb_dns_members_add(&members, "a"), KVB_TOO_LARGE);
    /* One that has no room changes nothing; one that comes before others does. */
    assert_false(answer(&members, LIST("a")));
    assert_int_equal(members.count, kvb_max_dns_members);
    assert_true(answer(&members, LIST("00001")));
    assert_int_equal(members.count, kvb_max_dns_members);
}

static void an_allocation_that_fails_changes_nothing(void **state)
{
    (void)state;
    KVB_OWN(kvb_dns_members_done) struct kvb_dns_members members = { 0 };
    KVB_OWN(kvb_dns_members_done) struct kvb_dns_members found = list_of(LIST("c", "a", "d"));
    bool has_changed = false;

    assert_true(answer(&members, LIST("a", "b")));
    kvb_status status = KVB_NO_MEMORY;
    for (long n = 0; status == KVB_NO_MEMORY; n++) {
        assert_members(&members, LIST("a", "b"));
        fail_alloc_after(n);
        status = kvb_dns_members_answered(&members, &found, &has_changed);
        fail_alloc_after(-1);
        assert_true(n < 20);
    }
    assert_ok(status);
    assert_members(&members, LIST("a", "b", "c", "d"));
}

SUITE(dns_members)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(members_are_sorted_and_unique),
        cmocka_unit_test(agrees_with_a_reference_table_over_random_answers),
        cmocka_unit_test(there_is_a_ceiling),
        cmocka_unit_test(an_allocation_that_fails_changes_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
