#include "kvb_test.h"

#include "core/clock.h"
#include "core/own.h"
#include "fail_alloc.h"
#include "ingest/dns/resolver.h"
#include "name_server.h"

#include <poll.h>
#include <stdio.h>
#include <string.h>

/* Each test has its own name server, at another loopback address. */

enum { patience_ms = 20000 };

static const struct name_row rows[] = {
    { "engine-1.fleet", "127.0.0.11", name_has, 3600 },
    { "engine-6.fleet", "fd00::6", name_has, 3600 },
    { "short.fleet", "127.0.0.12", name_has, 0 },
    { "silent.fleet", "", name_silent, 0 },
    { "broken.fleet", "", name_fails, 0 },
    { .name = NULL },
};

struct world {
    struct name_server *server;
    struct kvb_resolver *resolver;
};

static void begin(struct world *world, const char *address)
{
    char settings[128];

    (void)snprintf(
        settings, sizeof settings, "nameserver %s\nsearch fleet\noptions ndots:2\n", address);
    name_server_settings(settings, "127.0.0.13 listed.fleet\n");
    world->server = name_server_start(address, rows);
    assert_ok(kvb_resolver_new(&world->resolver));
}

static void end(struct world *world)
{
    kvb_resolver_free(world->resolver);
    name_server_stop(world->server);
}

static struct kvb_dns_answer look(struct world *world, const char *host)
{
    struct kvb_dns_answer answer;

    kvb_resolver_look(world->resolver, host, kvb_clock_monotonic_ns(), &answer);
    return answer;
}

static struct kvb_dns_answer wait_for_answer(struct world *world, const char *host)
{
    const uint64_t deadline = kvb_clock_monotonic_ns() + patience_ms * KVB_NS_PER_MS;
    struct kvb_dns_answer answer = look(world, host);

    while (answer.is_queried) {
        assert_true(kvb_clock_monotonic_ns() < deadline);
        (void)poll(NULL, 0, 1);
        answer = look(world, host);
    }
    return answer;
}

static void names_have_their_addresses(void **state)
{
    (void)state;
    const struct {
        const char *host;
        const char *address;
    } cases[] = {
        /* resolved with the search domain */
        { "engine-1.fleet", "127.0.0.11" },
        { "engine-1", "127.0.0.11" },
        /* resolved with /etc/hosts */
        { "engine-6.fleet", "fd00::6" },
        { "listed.fleet", "127.0.0.13" },
        { "localhost", "127.0.0.1" },
    };
    struct world world;

    begin(&world, "127.0.53.1");
    for (size_t i = 0; i < KVB_COUNT_OF(cases); i++) {
        const struct kvb_dns_answer answer = wait_for_answer(&world, cases[i].host);
        assert_int_equal(answer.result, KVB_DNS_OK);
        assert_string_equal(answer.addresses.text[0], cases[i].address);
    }
    assert_int_equal(name_server_asked(world.server, "listed.fleet"), 0);
    assert_int_equal(name_server_asked(world.server, "localhost"), 0);
    end(&world);
}

static void an_answer_is_kept_for_its_ttl(void **state)
{
    (void)state;
    struct world world;

    begin(&world, "127.0.53.2");
    (void)wait_for_answer(&world, "engine-1.fleet");
    (void)wait_for_answer(&world, "short.fleet");
    const size_t asked = name_server_asked(world.server, NULL);
    for (int i = 0; i < 1000; i++) {
        assert_int_equal(look(&world, "engine-1.fleet").addresses.count, 1);
    }
    assert_int_equal(name_server_asked(world.server, NULL), asked);
    const uint64_t deadline = kvb_clock_monotonic_ns() + patience_ms * KVB_NS_PER_MS;
    /* queries for A and AAAA of two names */
    while (name_server_asked(world.server, "short.fleet") < 4) {
        /* and so while the answers are valid */
        assert_int_equal(look(&world, "short.fleet").addresses.count, 1);
        assert_true(kvb_clock_monotonic_ns() < deadline);
        (void)poll(NULL, 0, 10);
    }
    assert_int_equal(name_server_asked(world.server, "engine-1.fleet"), 2);
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
        { "silent.fleet", KVB_DNS_TIMEOUT },
    };
    struct world world;

    begin(&world, "127.0.53.3");
    for (size_t i = 0; i < KVB_COUNT_OF(cases); i++) {
        const struct kvb_dns_answer answer = wait_for_answer(&world, cases[i].host);
        assert_int_equal(answer.addresses.count, 0);
        assert_int_equal(answer.result, cases[i].result);
    }
    const struct kvb_resolver_counters counters = kvb_resolver_count(world.resolver);
    assert_int_equal(counters.questions, 3);
    assert_int_equal(counters.results[KVB_DNS_NO_NAME], 1);
    assert_int_equal(counters.results[KVB_DNS_FAILURE], 1);
    assert_int_equal(counters.results[KVB_DNS_TIMEOUT], 1);
    end(&world);
}

static void a_name_without_an_answer_delays_no_other_and_no_stop(void **state)
{
    (void)state;
    struct world world;

    begin(&world, "127.0.53.4");
    assert_true(look(&world, "silent.fleet").is_queried);
    assert_int_equal(wait_for_answer(&world, "engine-1.fleet").addresses.count, 1);
    assert_true(look(&world, "silent.fleet").is_queried); /* still no answer */
    end(&world);
}

static void other_settings_are_read(void **state)
{
    (void)state;
    struct world world;

    begin(&world, "127.0.53.5");
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
        cmocka_unit_test(an_answer_is_kept_for_its_ttl),
        cmocka_unit_test(failures_have_their_reasons),
        cmocka_unit_test(a_name_without_an_answer_delays_no_other_and_no_stop),
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
