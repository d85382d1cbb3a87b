#include "kvb_test.h"

#include "core/clock.h"
#include "stream/silence.h"

#include <string.h>

enum { block = 16, many = 16 * block };

static const uint64_t now_ns = 100 * KVB_NS_PER_S;

/* Connected for a minute, and nothing came. */
static struct kvb_silence_facts silent(void)
{
    return (struct kvb_silence_facts){ .is_connected = true,
                                       .was_connected = true,
                                       .waited_ns = 60 * KVB_NS_PER_S,
                                       .is_unproven = true };
}

static void assert_found(const struct kvb_silence_facts *facts, enum kvb_silence silence)
{
    assert_int_equal((int)kvb_silence_find(facts, now_ns), (int)silence);
}

static void the_first_cause_that_holds_is_found(void **state)
{
    struct kvb_silence_facts facts = silent();

    (void)state;
    assert_found(&facts, KVB_SILENCE_IDLE);
    facts.is_unproven = false; /* another reason, such as no_replay, says what is wrong */
    assert_found(&facts, KVB_SILENCE_NONE);
    facts.is_unproven = true;
    facts.has_list = true;
    assert_found(&facts, KVB_SILENCE_UNPROVEN);
    facts.page.grown_ns = now_ns - 5 * KVB_NS_PER_S;
    assert_found(&facts, KVB_SILENCE_NOT_FED);
    facts.page.grown_ns++; /* its event may still come */
    assert_found(&facts, KVB_SILENCE_UNPROVEN);
    facts.is_replay_foreign = true;
    assert_found(&facts, KVB_SILENCE_FOREIGN_REPLAY);
    facts.page.is_caching_off = true;
    assert_found(&facts, KVB_SILENCE_FOREIGN_REPLAY); /* it has published something */
    facts.has_list = false;
    assert_found(&facts, KVB_SILENCE_CACHING_OFF);
    facts.other_topics = 1;
    assert_found(&facts, KVB_SILENCE_OTHER_TOPIC);
    facts.unnumbered = 1;
    assert_found(&facts, KVB_SILENCE_NO_NUMBER);
    facts.has_live = true; /* whatever else came */
    assert_found(&facts, KVB_SILENCE_FOREIGN_REPLAY);
    facts.is_replay_foreign = false;
    assert_found(&facts, KVB_SILENCE_NONE);
}

static void an_address_without_a_connection_is_named_after_five_seconds(void **state)
{
    struct kvb_silence_facts facts = { .waited_ns = 5 * KVB_NS_PER_S - 1 };

    (void)state;
    assert_found(&facts, KVB_SILENCE_NONE);
    facts.waited_ns++;
    assert_found(&facts, KVB_SILENCE_NOBODY_LISTENS);
    facts.is_bound = true;
    assert_found(&facts, KVB_SILENCE_NOBODY_CONNECTS);
    facts.was_connected = true; /* it has gone away */
    assert_found(&facts, KVB_SILENCE_NONE);
}

static void a_page_counts_what_is_new_since_the_last_batch(void **state)
{
    struct kvb_silence_page page = { 0 };
    struct kvb_cache_signs signs = { .has_prefix = true,
                                     .prefix = { .queried_tokens = 5000, .cached_tokens = 1000 } };

    (void)state;
    kvb_silence_read_page(&page, &signs, 0, block, 1); /* what came before is not known */
    assert_int_equal(page.grown_ns, 0);
    signs.prefix.queried_tokens += 100000; /* all found in the cache */
    signs.prefix.cached_tokens += 100000;
    kvb_silence_read_page(&page, &signs, 0, block, 2);
    signs.prefix.queried_tokens += many - 1;
    kvb_silence_read_page(&page, &signs, 0, block, 3);
    assert_int_equal(page.grown_ns, 0);
    signs.prefix.queried_tokens++;
    kvb_silence_read_page(&page, &signs, 0, block, 4);
    signs.prefix.queried_tokens++;
    kvb_silence_read_page(&page, &signs, 0, block, 5);
    assert_int_equal(page.grown_ns, 4);
    assert_int_equal(page.grown, many + 1);
    kvb_silence_read_page(&page, &signs, 1, block, 6); /* a batch */
    assert_int_equal(page.grown_ns, 0);
    signs.prefix.queried_tokens = 10; /* another process */
    signs.prefix.cached_tokens = 0;
    kvb_silence_read_page(&page, &signs, 1, block, 7);
    signs.prefix.queried_tokens = 10 + many;
    kvb_silence_read_page(&page, &signs, 1, block, 8);
    assert_int_equal(page.grown_ns, 8);
    signs = (struct kvb_cache_signs){ .is_prefix_caching_off = true };
    kvb_silence_read_page(&page, &signs, 1, block, 9);
    assert_true(page.is_caching_off && page.grown_ns == 0);
    signs = (struct kvb_cache_signs){ .has_occupancy = true, .evictable_tokens = 1 }; /* SGLang */
    kvb_silence_read_page(&page, &signs, 1, block, 10);
    signs.used_tokens = many;
    kvb_silence_read_page(&page, &signs, 1, block, 11);
    assert_int_equal(page.grown_ns, 11);
}

static void each_cause_names_what_is_at_fault(void **state)
{
    const struct kvb_silence_names names = { .events = "tcp://10.0.0.9:5557",
                                             .replay = "tcp://10.0.0.9:5558",
                                             .topic = "kv-events",
                                             .other_topic = "kv@1",
                                             .frames = 2,
                                             .tokens = 777 };
    static const char *const said[KVB_SILENCE_COUNT] = {
        [KVB_SILENCE_NOBODY_LISTENS] = "without a * in its endpoint the engine connects",
        [KVB_SILENCE_NOBODY_CONNECTS] = "bind must be false",
        [KVB_SILENCE_NO_NUMBER] = "the newest has 2 frames",
        [KVB_SILENCE_OTHER_TOPIC] = "under the topic \"kv@1\", and `topic` of this worker is "
                                    "\"kv-events\"",
        [KVB_SILENCE_CACHING_OFF] = "prefix caching off",
        [KVB_SILENCE_FOREIGN_REPLAY] = "tcp://10.0.0.9:5558",
        [KVB_SILENCE_NOT_FED] = "777 new tokens",
        [KVB_SILENCE_UNPROVEN] = "by replay",
        [KVB_SILENCE_IDLE] = "idle",
    };
    struct kvb_detail why = { .text = "?" };

    (void)state;
    kvb_silence_explain(KVB_SILENCE_NONE, &names, &why);
    assert_string_equal(why.text, "");
    for (unsigned i = KVB_SILENCE_NONE + 1; i < KVB_SILENCE_COUNT; i++) {
        kvb_silence_explain((enum kvb_silence)i, &names, &why);
        assert_non_null(strstr(why.text, said[i]));
        assert_non_null(strstr(why.text, names.events));
        assert_true(strlen(why.text) < sizeof why.text - 1); /* not cut */
    }
}

SUITE(silence)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_first_cause_that_holds_is_found),
        cmocka_unit_test(an_address_without_a_connection_is_named_after_five_seconds),
        cmocka_unit_test(a_page_counts_what_is_new_since_the_last_batch),
        cmocka_unit_test(each_cause_names_what_is_at_fault),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
