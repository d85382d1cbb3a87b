#include "core/clock.h"
#include "kvbridge/challenges.h"

#include "kvb_test.h"

#include <string.h>

struct given {
    char text[kvb_forward_challenge_bytes];
};

static struct given give(struct kvb_challenges *challenges, uint8_t first, uint64_t now_ns)
{
    const uint8_t random[16] = { first, 0xab };
    struct given given;

    kvb_challenges_give(challenges, random, now_ns, given.text);
    return given;
}

static void a_challenge_is_valid_once(void **state)
{
    struct kvb_challenges challenges = { .next = 0 };
    const struct given one = give(&challenges, 1, 5);
    const struct given other = give(&challenges, 2, 5);

    (void)state;
    assert_string_equal(one.text, "01ab0000000000000000000000000000");
    assert_true(kvb_challenges_use(&challenges, one.text, 6));
    assert_false(kvb_challenges_use(&challenges, one.text, 6));
    assert_true(kvb_challenges_use(&challenges, other.text, 6));
}

static void a_challenge_is_valid_for_ten_seconds(void **state)
{
    struct kvb_challenges challenges = { .next = 0 };
    const struct given early = give(&challenges, 1, 5);
    const struct given late = give(&challenges, 2, 5);

    (void)state;
    assert_true(kvb_challenges_use(&challenges, early.text, 5 + 10 * KVB_NS_PER_S - 1));
    assert_false(kvb_challenges_use(&challenges, late.text, 5 + 10 * KVB_NS_PER_S));
}

static void nothing_else_is_valid(void **state)
{
    struct kvb_challenges challenges = { .next = 0 };

    (void)state;
    /* a value that equals free places of the table */
    assert_false(kvb_challenges_use(&challenges, "", 0));
    assert_false(kvb_challenges_use(&challenges, "01ab0000000000000000000000000000", 0));
}

static void the_oldest_of_too_many_is_dropped(void **state)
{
    struct kvb_challenges challenges = { .next = 0 };
    const struct given first = give(&challenges, 0, 5);
    const struct given second = give(&challenges, 1, 5);

    (void)state;
    for (int i = 2; i <= kvb_challenges_max; i++) {
        (void)give(&challenges, (uint8_t)i, 5);
    }
    assert_false(kvb_challenges_use(&challenges, first.text, 6));
    assert_true(kvb_challenges_use(&challenges, second.text, 6));
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_challenge_is_valid_once),
        cmocka_unit_test(a_challenge_is_valid_for_ten_seconds),
        cmocka_unit_test(nothing_else_is_valid),
        cmocka_unit_test(the_oldest_of_too_many_is_dropped),
    };

    return cmocka_run_group_tests_name("kvbridge/challenges", tests, NULL, NULL);
}
