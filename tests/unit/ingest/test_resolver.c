#include "kvb_test.h"

#include "core/clock.h"
#include "core/limits.h"
#include "core/own.h"
#include "fail_alloc.h"
#include "ingest/dns/resolver.h"
#include "name_server.h"

#include <poll.h>
#include <stdio.h>
#include <string.h>

/* Each test has its own name server, at another loopback address. */

enum { patience_ms = 60000 };

/* clang-format off */
static const struct name_row rows[] = {
    { "engine-1.fleet", "127.0.0.11", name_has },
    { "engine-6.fleet", "fd00::6", name_has },
    { "silent.fleet", "", name_silent },
    { "*.silent", "", name_silent },
    { "broken.fleet", "", name_fails },
    { .name = NULL },
};
/* clang-format on */

struct world {
    struct name_server *server;
    struct kvb_resolver *resolver;
};

/* A silent name server is asked `attempts` times, for timeout_s each: the C library allows 5 and
 * 30. */
static void begin(struct world *world, const char *address, int attempts, int timeout_s)
{
    char settings[128];

    (void)snprintf(
        settings, sizeof settings,
        "nameserver %s\nsearch fleet\noptions ndots:2 attempts:%d timeout:%d\n", address, attempts,
        timeout_s);
    name_server_settings(settings, "127.0.0.13 listed.fleet\n");
    world->server = name_server_start(address, rows);
    assert_ok(kvb_resolver_new(&world->resolver));
}

static void end(struct world *world)
{
    kvb_resolver_free(world->resolver);
    name_server_stop(world->server);
}

static struct kvb_dns_answer look_at(struct world *world, const char *host, uint64_t now_ns)
{
    struct kvb_dns_answer answer;

    kvb_resolver_look(world->resolver, host, now_ns, &answer);
    return answer;
}

static struct kvb_dns_answer look(struct world *world, const char *host)
{
    return look_at(world, host, kvb_clock_monotonic_ns());
}

static struct kvb_dns_answer
wait_for_answer_at(struct world *world, const char *host, uint64_t now_ns)
{
    const uint64_t deadline = kvb_clock_monotonic_ns() + patience_ms * KVB_NS_PER_MS;
    struct kvb_dns_answer answer = look_at(world, host, now_ns);

    while (answer.is_queried) {
        assert_true(kvb_clock_monotonic_ns() < deadline);
        (void)poll(NULL, 0, 1);
        answer = look_at(world, host, now_ns);
    }
    return answer;
}

static struct kvb_dns_answer wait_for_answer(struct world *world, const char *host)
{
    return wait_for_answer_at(world, host, kvb_clock_monotonic_ns());
}

static void names_have_their_addresses(void **state)
{
    (void)state;
    const struct {
        const char *host;
        const char *address;
    } cases[] = {
        { "engine-1.fleet", "127.0.0.11" },
        { "engine-1", "127.0.0.11" }, /* with the search domain */
        { "engine-6.fleet", "fd00::6" },
        { "listed.fleet", "127.0.0.13" }, /* in /etc/hosts */
        { "localhost", "127.0.0.1" },
    };
    struct world world;

    begin(&world, "127.0.53.1", 2, 1);
    for (size_t i = 0; i < KVB_COUNT_OF(cases); i++) {
        const struct kvb_dns_answer answer = wait_for_answer(&world, cases[i].host);
        assert_int_equal(answer.result, KVB_DNS_OK);
        assert_string_equal(answer.addresses.text[0], cases[i].address);
    }
    assert_int_equal(name_server_asked(world.server, "listed.fleet"), 0);
    assert_int_equal(name_server_asked(world.server, "localhost"), 0);
    end(&world);
}

static void an_answer_is_kept_for_5_s(void **state)
{
    (void)state;
    struct world world;

    begin(&world, "127.0.53.2", 2, 1);
    const uint64_t now_ns = kvb_clock_monotonic_ns();
    (void)wait_for_answer_at(&world, "engine-1.fleet", now_ns);
    const uint64_t later_ns = now_ns + 5 * KVB_NS_PER_S;
    for (int i = 0; i < 1000; i++) {
        assert_int_equal(look_at(&world, "engine-1.fleet", later_ns - 1).addresses.count, 1);
    }
    assert_int_equal(kvb_resolver_count(world.resolver).questions, 1);
    assert_int_equal(name_server_asked(world.server, "engine-1.fleet"), 1);

    const struct kvb_dns_answer answer = look_at(&world, "engine-1.fleet", later_ns);
    assert_int_equal(answer.addresses.count, 1);
    assert_true(answer.is_queried);
    assert_int_equal(kvb_resolver_count(world.resolver).questions, 2);
    end(&world);
}

static void failures_have_their_reasons(void **state)
{
    (void)state;
    const struct {
        const char *host;
        enum kvb_dns_result result;
    } cases[] = {
        { "nobody.fleet", KVB_DNS_NO_NAME },
        { "broken.fleet", KVB_DNS_FAILURE },
        { "silent.fleet", KVB_DNS_FAILURE },
    };
    struct world world;

    begin(&world, "127.0.53.3", 2, 1);
    for (size_t i = 0; i < KVB_COUNT_OF(cases); i++) {
        const struct kvb_dns_answer answer = wait_for_answer(&world, cases[i].host);
        assert_int_equal(answer.addresses.count, 0);
        assert_int_equal(answer.result, cases[i].result);
    }
    const struct kvb_resolver_counters counters = kvb_resolver_count(world.resolver);
    assert_int_equal(counters.questions, 3);
    assert_int_equal(counters.results[KVB_DNS_NO_NAME], 1);
    assert_int_equal(counters.results[KVB_DNS_FAILURE], 2);
    end(&world);
}

/* The name of an engine whose name server never answers. */
static const char *silent_name(size_t number, char out_name[32])
{
    (void)snprintf(out_name, 32, "engine-%zu.silent.", number);
    return out_name;
}

/* The look-ups of the silent names last 150 s: longer than the test. */
static void names_without_an_answer_delay_no_other_and_no_stop(void **state)
{
    (void)state;
    struct world world;
    char name[32];

    begin(&world, "127.0.53.4", 5, 30);
    for (size_t i = 0; i + 1 < kvb_max_lookups; i++) {
        assert_true(look(&world, silent_name(i, name)).is_queried);
    }
    assert_int_equal(wait_for_answer(&world, "engine-1.fleet").addresses.count, 1);
    assert_true(look(&world, silent_name(0, name)).is_queried); /* still no answer */
    const uint64_t before_ns = kvb_clock_monotonic_ns();
    end(&world);
    assert_true(kvb_clock_monotonic_ns() - before_ns < 60 * KVB_NS_PER_S);
}

/* Names that wait in vain again and again leave half of the places to others. */
static void names_that_have_failed_leave_places_to_others(void **state)
{
    (void)state;
    struct world world;
    char name[32];

    begin(&world, "127.0.53.8", 2, 1);
    const uint64_t now_ns = kvb_clock_monotonic_ns();
    for (size_t i = 0; i < kvb_max_lookups; i++) {
        assert_true(look_at(&world, silent_name(i, name), now_ns).is_queried);
    }
    for (size_t i = 0; i < kvb_max_lookups; i++) {
        assert_int_equal(
            wait_for_answer_at(&world, silent_name(i, name), now_ns).result, KVB_DNS_FAILURE);
    }
    name_server_settings("nameserver 127.0.53.8\noptions attempts:5 timeout:30\n", "");
    const uint64_t later_ns = now_ns + 2 * KVB_NS_PER_S;
    for (size_t i = 0; i < kvb_max_lookups; i++) {
        assert_true(look_at(&world, silent_name(i, name), later_ns).is_queried);
    }
    assert_int_equal(wait_for_answer_at(&world, "engine-1.fleet", later_ns).addresses.count, 1);
    assert_int_equal(wait_for_answer_at(&world, "engine-6.fleet", later_ns).addresses.count, 1);
    assert_int_equal(
        kvb_resolver_count(world.resolver).questions, kvb_max_lookups + kvb_max_lookups / 2 + 2);
    end(&world);
}

static void other_settings_are_read(void **state)
{
    (void)state;
    struct world world;

    begin(&world, "127.0.53.5", 2, 1);
    name_server_stop(world.server);
    (void)wait_for_answer(&world, "engine-1.fleet"); /* refused */
    world.server = name_server_start("127.0.53.6", rows);
    name_server_settings("nameserver 127.0.53.6\n", "");
    const struct kvb_dns_answer answer = wait_for_answer(&world, "engine-6.fleet");
    assert_int_equal(answer.result, KVB_DNS_OK);
    assert_string_equal(answer.addresses.text[0], "fd00::6");
    end(&world);
}

static void without_a_resolver_no_name_is_resolved(void **state)
{
    (void)state;
    struct kvb_dns_answer answer;

    kvb_resolver_look(NULL, "engine-1.fleet", 1, &answer);
    assert_int_equal(answer.addresses.count, 0);
    assert_int_equal(answer.result, KVB_DNS_FAILURE);
    assert_true(kvb_host_is_numeric("10.0.0.1"));
    assert_true(kvb_host_is_numeric("fd00::1"));
    assert_true(kvb_host_is_numeric("[fd00::1]"));
    assert_false(kvb_host_is_numeric("10.0.0.1.fleet"));
}

static void a_name_that_found_no_memory_is_queried_later(void **state)
{
    (void)state;
    struct kvb_resolver *resolver = NULL;
    struct kvb_dns_answer answer;

    fail_alloc_after(0);
    assert_int_equal(kvb_resolver_new(&resolver), KVB_NO_MEMORY);
    fail_alloc_after(1);
    assert_ok(kvb_resolver_new(&resolver));
    kvb_resolver_look(resolver, "engine-1.fleet", 1, &answer);
    fail_alloc_after(-1);
    assert_int_equal(answer.result, KVB_DNS_FAILURE);
    kvb_resolver_look(resolver, "engine-1.fleet", 1, &answer);
    assert_true(answer.is_queried);
    kvb_resolver_free(resolver);
}

SUITE(resolver)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_have_their_addresses),
        cmocka_unit_test(an_answer_is_kept_for_5_s),
        cmocka_unit_test(failures_have_their_reasons),
        cmocka_unit_test(names_without_an_answer_delay_no_other_and_no_stop),
        cmocka_unit_test(names_that_have_failed_leave_places_to_others),
        cmocka_unit_test(other_settings_are_read),
        cmocka_unit_test(without_a_resolver_no_name_is_resolved),
        cmocka_unit_test(a_name_that_found_no_memory_is_queried_later),
    };

    if (!name_server_isolate()) {
        print_message("this machine permits no new namespaces: nothing was tested\n");
        return 0;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
