#include "kvb_test.h"

#include "core/clock.h"
#include "core/random.h"
#include "load/peers.h"

#include <stdio.h>
#include <string.h>

#define S KVB_NS_PER_S
#define MS KVB_NS_PER_MS

static struct kvb_books_sender sender(const char *id, uint64_t start)
{
    struct kvb_books_sender sender = { .start = start };

    (void)snprintf(sender.id, sizeof sender.id, "%s", id);
    return sender;
}

static struct kvb_peers peers_of(const char *self)
{
    return (struct kvb_peers){ .self = sender(self, 1) };
}

static enum kvb_peer_message
receive(struct kvb_peers *peers, const char *id, uint64_t start, bool is_ready, uint64_t now_ns)
{
    const struct kvb_aggregator_status status = { .sender = sender(id, start),
                                                  .is_ready = is_ready };

    return kvb_peers_take_status(peers, &status, now_ns);
}

static void the_ready_one_with_the_lowest_id_leads(void **state)
{
    (void)state;
    struct kvb_peers peers = peers_of("b");

    assert_true(kvb_peers_leads(&peers, true, S));
    assert_int_equal(receive(&peers, "c", 9, true, S), KVB_PEER_OTHER);
    assert_true(kvb_peers_leads(&peers, true, S));
    assert_false(kvb_peers_leads(&peers, false, S)); /* c is ready, this aggregator is not */
    (void)receive(&peers, "a", 9, false, S);
    assert_true(kvb_peers_leads(&peers, true, S));
    (void)receive(&peers, "a", 9, true, S);
    assert_false(kvb_peers_leads(&peers, true, S));
}

static void without_a_ready_one_the_lowest_id_leads(void **state)
{
    (void)state;
    struct kvb_peers peers = peers_of("b");

    (void)receive(&peers, "c", 9, false, S);
    assert_true(kvb_peers_leads(&peers, false, S));
    (void)receive(&peers, "a", 9, false, S);
    assert_false(kvb_peers_leads(&peers, false, S));
}

static void a_silent_leader_is_replaced_after_three_seconds_and_a_leaving_one_at_once(void **state)
{
    (void)state;
    struct kvb_peers peers = peers_of("b");
    const struct kvb_aggregator_status bye = { .sender = sender("a", 9), .is_bye = true };

    (void)receive(&peers, "a", 9, true, S);
    assert_false(kvb_peers_leads(&peers, true, 4 * S - 1));
    assert_true(kvb_peers_leads(&peers, true, 4 * S));
    kvb_peers_expire(&peers, 4 * S);
    assert_int_equal(peers.count, 0);
    (void)receive(&peers, "a", 9, true, 5 * S);
    assert_false(kvb_peers_leads(&peers, true, 5 * S));
    (void)kvb_peers_take_status(&peers, &bye, 5 * S);
    assert_int_equal(peers.count, 0);
    assert_true(kvb_peers_leads(&peers, true, 5 * S));
}

static void an_aggregator_that_has_just_connected_listens_first(void **state)
{
    (void)state;
    struct kvb_peers peers = peers_of("b");

    kvb_peers_listen(&peers, S);
    assert_false(kvb_peers_leads(&peers, true, S + 1499 * MS));
    assert_true(kvb_peers_leads(&peers, true, S + 1500 * MS));
}

static void two_with_one_id_are_detected_and_one_of_them_leads(void **state)
{
    (void)state;
    struct kvb_peers peers = peers_of("b");

    assert_int_equal(receive(&peers, "b", 1, true, S), KVB_PEER_SELF);
    assert_int_equal(peers.count, 0);
    assert_false(kvb_peers_has_same_id(&peers, S));
    assert_int_equal(receive(&peers, "b", 2, true, S), KVB_PEER_SAME_ID);
    assert_true(kvb_peers_has_same_id(&peers, S));
    assert_true(kvb_peers_leads(&peers, true, S)); /* its count of decisions started lower */
    (void)receive(&peers, "b", 0, true, S);
    assert_false(kvb_peers_leads(&peers, true, S));
    assert_false(kvb_peers_has_same_id(&peers, 4 * S));
}

static void missing_decisions_are_counted_and_repeated_ones_dropped(void **state)
{
    (void)state;
    struct kvb_peers peers = peers_of("b");
    const struct kvb_books_sender a = sender("a", 9);
    const struct kvb_books_sender again = sender("a", 10);

    /* it joined late, so nothing counts as missing */
    assert_true(kvb_peers_take_sequence(&peers, &a, 7, S));
    assert_true(kvb_peers_take_sequence(&peers, &a, 8, S));
    assert_false(kvb_peers_take_sequence(&peers, &a, 8, S));
    assert_int_equal(peers.missing, 0);
    assert_true(kvb_peers_take_sequence(&peers, &a, 12, S));
    assert_int_equal(peers.missing, 3);
    assert_false(kvb_peers_take_sequence(&peers, &a, 10, S));
    assert_true(kvb_peers_take_sequence(&peers, &again, 1, S)); /* the peer was restarted */
    assert_int_equal(peers.missing, 3);
}

static void peers_above_the_ceiling_are_not_tracked_but_their_decisions_count(void **state)
{
    (void)state;
    struct kvb_peers peers = peers_of("a");
    const struct kvb_books_sender late = sender("late", 9);
    char id[16];

    for (unsigned i = 0; i < kvb_max_aggregators; i++) {
        (void)snprintf(id, sizeof id, "p%u", i);
        assert_int_equal(receive(&peers, id, 9, true, S), KVB_PEER_OTHER);
    }
    assert_int_equal(receive(&peers, "late", 9, true, S), KVB_PEER_REFUSED);
    /* the decision is entered nevertheless */
    assert_true(kvb_peers_take_sequence(&peers, &late, 1, S));
    assert_int_equal(peers.refused, 2);
    assert_int_equal(
        receive(&peers, "late", 9, true, 4 * S), KVB_PEER_OTHER); /* the other peers are gone */
    assert_int_equal(peers.count, 1);
}

/* ---- A fleet that receives its own messages: at most one leads at each moment ---- */

enum { fleet = 5 };

struct member {
    struct kvb_peers peers;
    bool is_up, is_ready;
    uint64_t next_ns;
};

static void tell_all(struct member *members, size_t from, bool is_bye, uint64_t now_ns)
{
    const struct kvb_aggregator_status status = { .sender = members[from].peers.self,
                                                  .is_ready = members[from].is_ready,
                                                  .is_bye = is_bye };

    for (size_t i = 0; i < fleet; i++) {
        if (members[i].is_up) {
            (void)kvb_peers_take_status(&members[i].peers, &status, now_ns);
        }
    }
}

static void start_member(struct member *members, size_t i, uint64_t *random, uint64_t now_ns)
{
    members[i] = (struct member){ .is_up = true,
                                  .is_ready = kvb_random_below(random, 4) > 0,
                                  .next_ns = now_ns };
    members[i].peers.self = sender("", kvb_random_next(random));
    members[i].peers.self.id[0] = (char)('a' + kvb_random_below(random, 26));
    kvb_peers_listen(&members[i].peers, now_ns);
}

static bool change_fleet(struct member *members, uint64_t *random, uint64_t now_ns)
{
    const size_t i = (size_t)kvb_random_below(random, fleet);

    if (kvb_random_below(random, 100) > 0) {
        return false;
    }
    if (!members[i].is_up) {
        start_member(members, i, random, now_ns);
    } else if (kvb_random_below(random, 2)) {
        members[i].is_up = false; /* killed */
    } else {
        tell_all(members, i, true, now_ns);
        members[i].is_up = false;
    }
    return true;
}

static size_t count_leaders(const struct member *members, uint64_t now_ns, size_t *out_up)
{
    size_t leaders = 0;

    *out_up = 0;
    for (size_t i = 0; i < fleet; i++) {
        *out_up += members[i].is_up;
        leaders +=
            members[i].is_up && kvb_peers_leads(&members[i].peers, members[i].is_ready, now_ns);
    }
    return leaders;
}

static void one_leads_whatever_happens_to_the_others(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 50; seed++) {
        struct member members[fleet] = { 0 };
        uint64_t random = seed;
        uint64_t changed_ns = 0;
        for (uint64_t now_ns = S; now_ns < 120 * S; now_ns += 100 * MS) {
            size_t up = 0;
            if (change_fleet(members, &random, now_ns)) {
                changed_ns = now_ns;
            }
            for (size_t i = 0; i < fleet; i++) {
                if (members[i].is_up && now_ns >= members[i].next_ns) {
                    members[i].next_ns = now_ns + S;
                    tell_all(members, i, false, now_ns);
                }
            }
            const size_t leaders = count_leaders(members, now_ns, &up);
            assert_true(leaders <= 1);
            assert_true(leaders == 1 || up == 0 || now_ns < changed_ns + 4 * S);
        }
    }
}

SUITE(peers)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_ready_one_with_the_lowest_id_leads),
        cmocka_unit_test(without_a_ready_one_the_lowest_id_leads),
        cmocka_unit_test(a_silent_leader_is_replaced_after_three_seconds_and_a_leaving_one_at_once),
        cmocka_unit_test(an_aggregator_that_has_just_connected_listens_first),
        cmocka_unit_test(two_with_one_id_are_detected_and_one_of_them_leads),
        cmocka_unit_test(missing_decisions_are_counted_and_repeated_ones_dropped),
        cmocka_unit_test(peers_above_the_ceiling_are_not_tracked_but_their_decisions_count),
        cmocka_unit_test(one_leads_whatever_happens_to_the_others),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
