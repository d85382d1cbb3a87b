#include "kvb_test.h"

#include "core/clock.h"
#include "kvbridge/profile_guard.h"

#include <stdio.h>
#include <string.h>

static void on_message(struct kvb_profile_guard *guard, const char *json)
{
    const struct kvb_bus_message message = {
        .subject = "s", .payload = { .data = (const uint8_t *)json, .len = strlen(json) }
    };
    kvb_profile_guard_receive(guard, &message);
}

struct received {
    const char *json;
    bool we_publish; /* when the status arrives */
    bool may_publish;
};

#define OTHER(id, profile, publishing)                                                             \
    "{\"bridge_id\":\"" id "\",\"profile\":\"" profile "\",\"publishing\":" publishing "}"

/* This bridge has the id "me" and publishes json. */
static void of_two_bridges_with_other_profiles_one_stops(void **state)
{
    (void)state;
    const struct received cases[] = {
        { OTHER("a", "json", "true"), false, true },
        { OTHER("z", "protobuf", "true"), false, false },
        { OTHER("z", "of a later version", "true"), false, false },
        { OTHER("a", "protobuf", "false"), true, true },   /* the other bridge is new */
        { OTHER("a", "protobuf", "false"), false, false }, /* both are new: the smaller id wins */
        { OTHER("z", "protobuf", "false"), false, true },
        { OTHER("a", "protobuf", "true"), true, false },
        { OTHER("z", "protobuf", "true"), true, true },
        /* this bridge's own status */
        { OTHER("me", "protobuf", "true"), false, true },
        /* a status without a profile */
        { "{\"bridge_id\":\"z\",\"profile\":\"protobuf\"}", false, false },
        { "not JSON", false, true },
        { "{\"profile\":\"protobuf\"}", false, true }, /* not the status of a bridge */
    };

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct kvb_profile_guard guard;
        struct kvb_detail why = { .text = "" };
        const uint64_t now_ns = kvb_clock_monotonic_ns();
        const uint64_t later_ns = now_ns + 2 * KVB_NS_PER_S;
        kvb_profile_guard_init(&guard, "me", KVB_PROFILE_JSON);
        kvb_profile_guard_begin(&guard, now_ns);
        if (cases[i].we_publish) {
            assert_true(kvb_profile_guard_allows(&guard, later_ns, &why));
        }
        on_message(&guard, cases[i].json);
        assert_int_equal(kvb_profile_guard_allows(&guard, later_ns, &why), cases[i].may_publish);
        assert_int_equal(strstr(why.text, "publishes profile") != NULL, !cases[i].may_publish);
        assert_true(kvb_profile_guard_allows(&guard, now_ns + 9 * KVB_NS_PER_S, &why));
        kvb_profile_guard_done(&guard);
    }
}

static void a_bridge_of_another_profile_is_said_once_with_both_names(void **state)
{
    static const struct {
        const char *json;
        const char *said;
    } rows[] = {
        { OTHER("z", "protobuf", "true"),
          "bridge z has profile protobuf and this bridge, me, has json: one component speaks one "
          "profile, so this one publishes nothing" },
        { OTHER("z", "protobuf", "false"), "so the other publishes nothing" },
    };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct kvb_profile_guard guard;
        struct kvb_detail why = { .text = "" };
        const uint64_t now_ns = kvb_clock_monotonic_ns();
        kvb_profile_guard_init(&guard, "me", KVB_PROFILE_JSON);
        on_message(&guard, OTHER("b", "json", "true"));
        assert_false(kvb_profile_guard_take_conflict(&guard, now_ns, &why));
        on_message(&guard, rows[i].json);
        assert_true(kvb_profile_guard_take_conflict(&guard, now_ns, &why));
        assert_non_null(strstr(why.text, rows[i].said));
        on_message(&guard, rows[i].json);
        assert_false(kvb_profile_guard_take_conflict(&guard, now_ns, &why));
        kvb_profile_guard_done(&guard);
    }
}

static void nothing_is_published_during_the_first_listening_period(void **state)
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
    kvb_profile_guard_begin(&guard, now_ns + 1600 * KVB_NS_PER_MS); /* after a reconnect */
    assert_true(kvb_profile_guard_allows(&guard, now_ns + 1700 * KVB_NS_PER_MS, &why));
    kvb_profile_guard_done(&guard);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(of_two_bridges_with_other_profiles_one_stops),
        cmocka_unit_test(a_bridge_of_another_profile_is_said_once_with_both_names),
        cmocka_unit_test(nothing_is_published_during_the_first_listening_period),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
