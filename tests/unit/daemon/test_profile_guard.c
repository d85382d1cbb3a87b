#include "kvb_test.h"

#include "core/clock.h"
#include "daemon/profile_guard.h"

#include <stdio.h>
#include <string.h>

static void hear(struct kvb_profile_guard *guard, const char *json)
{
    const struct kvb_bus_message message = {
        .subject = "s", .payload = { .data = (const uint8_t *)json, .len = strlen(json) }
    };
    kvb_profile_guard_hear(guard, &message);
}

struct heard {
    const char *json;
    bool may_publish;
};

static void another_profile_on_the_component_stops_us(void **state)
{
    (void)state;
    const struct heard cases[] = {
        { "{\"bridge_id\":\"other\",\"profile\":\"json\"}", true },
        { "{\"bridge_id\":\"other\",\"profile\":\"protobuf\"}", false },
        { "{\"bridge_id\":\"other\",\"profile\":\"of a later version\"}", false },
        { "{\"bridge_id\":\"me\",\"profile\":\"protobuf\"}", true }, /* our own, echoed */
        { "not JSON", true },
        { "{\"profile\":\"protobuf\"}", true }, /* no bridge's */
    };

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct kvb_profile_guard guard;
        struct kvb_detail why = { .text = "" };
        const uint64_t now_ns = kvb_clock_monotonic_ns();
        kvb_profile_guard_init(&guard, "me", KVB_PROFILE_JSON);
        kvb_profile_guard_begin(&guard, now_ns);
        hear(&guard, cases[i].json);
        assert_int_equal(
            kvb_profile_guard_allows(&guard, now_ns + 2 * KVB_NS_PER_S, &why),
            cases[i].may_publish);
        assert_int_equal(strstr(why.text, "other") != NULL, !cases[i].may_publish);
        assert_true(kvb_profile_guard_allows(&guard, now_ns + 9 * KVB_NS_PER_S, &why));
        kvb_profile_guard_done(&guard);
    }
}

static void nothing_is_published_before_the_first_listening_is_over(void **state)
{
    (void)state;
    struct kvb_profile_guard guard;
    struct kvb_detail why = { .text = "" };
    const uint64_t now_ns = KVB_NS_PER_S;

    kvb_profile_guard_init(&guard, "me", KVB_PROFILE_JSON);
    assert_false(kvb_profile_guard_allows(&guard, now_ns, &why));
    kvb_profile_guard_begin(&guard, now_ns);
    assert_false(kvb_profile_guard_allows(&guard, now_ns + 1400 * KVB_NS_PER_MS, &why));
    assert_true(kvb_profile_guard_allows(&guard, now_ns + 1600 * KVB_NS_PER_MS, &why));
    kvb_profile_guard_begin(&guard, now_ns + 1600 * KVB_NS_PER_MS); /* a reconnection */
    assert_true(kvb_profile_guard_allows(&guard, now_ns + 1700 * KVB_NS_PER_MS, &why));
    kvb_profile_guard_done(&guard);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(another_profile_on_the_component_stops_us),
        cmocka_unit_test(nothing_is_published_before_the_first_listening_is_over),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
