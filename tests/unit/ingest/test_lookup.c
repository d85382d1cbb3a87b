#include "kvb_test.h"

#include "core/clock.h"
#include "core/own.h"
#include "fail_alloc.h"
#include "ingest/dns/lookup.h"
#include "name_server.h"

#include <poll.h>
#include <stdio.h>
#include <string.h>

enum { patience_ms = 60000 };

static const struct name_row rows[] = {
    { "both.fleet", "127.0.0.11", name_has },
    { "six.fleet", "fd00::6", name_has },
    { "pods.a.test", "127.0.0.12", name_has },
    { "gone.a.test", "", name_fails },
    { "mute.a.test", "", name_silent },
    { "pods.b.test", "127.0.0.13", name_has },
    { "gone.b.test", "127.0.0.14", name_has },
    { "half.fleet", "", name_half_fails },
    { "half6.fleet", "fd00::7", name_half_fails },
    { "silent.fleet", "", name_silent },
    { .name = NULL },
};

static struct name_server *server;

/* A silent name server is asked `attempts` times, for timeout_s each: the C library allows 5 and
 * 30. */
static void set_up(const char *search, int attempts, int timeout_s)
{
    char settings[160];

    (void)snprintf(
        settings, sizeof settings, "nameserver 127.0.53.1\n%s\noptions attempts:%d timeout:%d\n",
        search, attempts, timeout_s);
    name_server_settings(settings, "127.0.0.15 listed.fleet\n");
}

static enum kvb_dns_result
look_up(const char *name, enum kvb_lookup_kind kind, struct kvb_dns_members *out_found)
{
    const uint64_t deadline = kvb_clock_monotonic_ns() + patience_ms * KVB_NS_PER_MS;
    struct kvb_lookup *lookup = NULL;
    enum kvb_dns_result result = KVB_DNS_RESULT_COUNT;

    assert_ok(kvb_lookup_start(name, kind, &lookup));
    while (kvb_lookup_take(lookup, &result, out_found) == KVB_AGAIN) {
        assert_true(kvb_clock_monotonic_ns() < deadline);
        (void)poll(NULL, 0, 1);
    }
    return result;
}

struct expected {
    const char *name;
    enum kvb_lookup_kind kind;
    enum kvb_dns_result result;
    const char *address; /* NULL: none */
};

static void assert_answers(const struct expected cases[])
{
    for (; cases->name; cases++) {
        KVB_OWN(kvb_dns_members_done) struct kvb_dns_members found = { 0 };
        print_message("%s\n", cases->name);
        assert_int_equal(look_up(cases->name, cases->kind, &found), cases->result);
        assert_int_equal(found.count, cases->address ? 1 : 0);
        if (cases->address) {
            assert_string_equal(found.items[0].host, cases->address);
        }
    }
}

static void hosts_and_members_are_found(void **state)
{
    (void)state;
    const struct expected cases[] = {
        { "both.fleet", KVB_LOOKUP_HOST, KVB_DNS_OK, "127.0.0.11" },
        { "six.fleet", KVB_LOOKUP_HOST, KVB_DNS_OK, "fd00::6" },
        { "listed.fleet", KVB_LOOKUP_HOST, KVB_DNS_OK, "127.0.0.15" },
        { "nobody.fleet", KVB_LOOKUP_HOST, KVB_DNS_NO_NAME, NULL },
        { "both.fleet", KVB_LOOKUP_MEMBERS, KVB_DNS_OK, "127.0.0.11" },
        { "both.fleet.", KVB_LOOKUP_MEMBERS, KVB_DNS_OK, "127.0.0.11" },
        { "six.fleet", KVB_LOOKUP_MEMBERS, KVB_DNS_OK, "fd00::6" },
        { "nobody.fleet", KVB_LOOKUP_MEMBERS, KVB_DNS_NO_NAME, NULL },
        { .name = NULL },
    };

    set_up("", 2, 1);
    assert_answers(cases);
}

/* A failure is no proof that a name does not exist, or that only its other family exists. */
static void a_failure_for_one_family_is_a_failure(void **state)
{
    (void)state;
    const struct expected cases[] = {
        { "half.fleet", KVB_LOOKUP_HOST, KVB_DNS_FAILURE, NULL },
        { "half6.fleet", KVB_LOOKUP_HOST, KVB_DNS_FAILURE, NULL },
        { "half.fleet", KVB_LOOKUP_MEMBERS, KVB_DNS_FAILURE, NULL },
        { "half6.fleet", KVB_LOOKUP_MEMBERS, KVB_DNS_FAILURE, NULL },
        { "silent.fleet", KVB_LOOKUP_HOST, KVB_DNS_FAILURE, NULL },
        { .name = NULL },
    };

    set_up("", 2, 1);
    assert_answers(cases);
}

/* So it is for each search domain, as of pods. */
static void a_failure_in_one_search_domain_is_a_failure_unless_another_has_the_name(void **state)
{
    (void)state;
    const struct expected cases[] = {
        { "pods", KVB_LOOKUP_MEMBERS, KVB_DNS_OK, "127.0.0.12" },
        { "both.fleet", KVB_LOOKUP_MEMBERS, KVB_DNS_OK, "127.0.0.11" },
        { "gone", KVB_LOOKUP_MEMBERS, KVB_DNS_OK, "127.0.0.14" },
        { "mute", KVB_LOOKUP_MEMBERS, KVB_DNS_FAILURE, NULL },
        { "nobody", KVB_LOOKUP_MEMBERS, KVB_DNS_NO_NAME, NULL },
        { "pods.", KVB_LOOKUP_MEMBERS, KVB_DNS_NO_NAME, NULL },
        { .name = NULL },
    };

    set_up("search a.test b.test\noptions ndots:5", 2, 1);
    assert_answers(cases);
    const struct expected alone[] = {
        { "pods.a.test", KVB_LOOKUP_MEMBERS, KVB_DNS_OK, "127.0.0.12" },
        { "nobody", KVB_LOOKUP_MEMBERS, KVB_DNS_NO_NAME, NULL },
        { .name = NULL },
    };
    set_up("search .", 2, 1);
    assert_answers(alone);
}

static void a_dropped_look_up_is_waited_for_by_nobody(void **state)
{
    (void)state;
    const uint64_t before_ns = kvb_clock_monotonic_ns();

    set_up("", 5, 30);
    for (int i = 0; i < 2; i++) {
        struct kvb_lookup *lookup = NULL;
        enum kvb_dns_result result = KVB_DNS_RESULT_COUNT;
        struct kvb_dns_members found = { 0 };
        const size_t asked = name_server_asked(server, "silent.fleet");
        assert_ok(kvb_lookup_start(
            "silent.fleet", i > 0 ? KVB_LOOKUP_HOST : KVB_LOOKUP_MEMBERS, &lookup));
        while (name_server_asked(server, "silent.fleet") == asked) {
            assert_int_equal(kvb_lookup_take(lookup, &result, &found), KVB_AGAIN);
            (void)poll(NULL, 0, 1);
        }
        kvb_lookup_drop(lookup);
    }
    kvb_lookup_drop(NULL);
    assert_true(kvb_clock_monotonic_ns() - before_ns < 60 * KVB_NS_PER_S);
}

static void a_name_that_is_too_long_and_memory_that_is_missing_are_errors(void **state)
{
    (void)state;
    char name[kvb_host_bytes + 1];
    struct kvb_lookup *lookup = NULL;
    struct kvb_dns_members found = { 0 };

    memset(name, 'a', sizeof name);
    name[kvb_host_bytes] = '\0';
    assert_int_equal(kvb_lookup_start(name, KVB_LOOKUP_HOST, &lookup), KVB_TOO_LARGE);
    fail_alloc_after(0);
    assert_int_equal(kvb_lookup_start("both.fleet", KVB_LOOKUP_HOST, &lookup), KVB_NO_MEMORY);
    fail_alloc_after(1); /* on the thread */
    assert_int_equal(look_up("both.fleet", KVB_LOOKUP_HOST, &found), KVB_DNS_FAILURE);
    fail_alloc_after(-1);
}

SUITE(lookup)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(hosts_and_members_are_found),
        cmocka_unit_test(a_failure_for_one_family_is_a_failure),
        cmocka_unit_test(a_failure_in_one_search_domain_is_a_failure_unless_another_has_the_name),
        cmocka_unit_test(a_dropped_look_up_is_waited_for_by_nobody),
        cmocka_unit_test(a_name_that_is_too_long_and_memory_that_is_missing_are_errors),
    };

    if (!name_server_isolate()) {
        print_message("this machine permits no new namespaces: nothing was tested\n");
        return 0;
    }
    server = name_server_start("127.0.53.1", rows);
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    name_server_stop(server);
    return failed;
}
