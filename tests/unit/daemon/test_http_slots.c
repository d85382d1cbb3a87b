#include "core/clock.h"
#include "daemon/http_slots.h"

#include "kvb_test.h"

enum { max = 8, extra = 4, max_client = 6, own = 100, max_held = 1000, max_client_held = 600 };

static const uint64_t second = KVB_NS_PER_S;
static const uint64_t start_ns = 1000 * KVB_NS_PER_S;

static void init(struct kvb_http_slots *slots)
{
    const struct kvb_http_slots_options options = {
        .max_connections = max,
        .max_extra = extra,
        .max_per_client = max_client,
        .max_held_bytes = max_held,
        .max_client_bytes = max_client_held,
        .own_bytes = own,
        .grace_ns = 10 * KVB_NS_PER_S,
        .young_ns = KVB_NS_PER_S,
        .bytes_a_second = 1000,
    };

    assert_ok(kvb_http_slots_init(slots, &options));
}

/* Opens a connection for which no other has to be closed. */
static struct kvb_http_slot *
open_one(struct kvb_http_slots *slots, uint64_t client, int fd, uint64_t now_ns)
{
    struct kvb_http_victim victim = { .fd = 0 };
    struct kvb_http_slot *slot = kvb_http_slots_open(slots, client, fd, now_ns, &victim);

    assert_non_null(slot);
    assert_int_equal(victim.fd, -1);
    return slot;
}

/* Opens connections of clients 1 and 2 alternately, one each millisecond. */
static void fill(struct kvb_http_slots *slots, struct kvb_http_slot *out[max])
{
    for (int i = 0; i < max; i++) {
        out[i] = open_one(slots, 1 + i % 2, i, start_ns + (uint64_t)i * KVB_NS_PER_MS);
        assert_false(out[i]->is_extra);
    }
}

static bool next_late(struct kvb_http_slots *slots, uint64_t now_ns, int fd, enum kvb_http_end why)
{
    struct kvb_http_victim victim = { .fd = -1 };

    return kvb_http_slots_next_late(slots, now_ns, &victim) && victim.fd == fd && victim.why == why;
}

static bool is_anyone_late(struct kvb_http_slots *slots, uint64_t now_ns)
{
    struct kvb_http_victim victim = { .fd = -1 };

    return kvb_http_slots_next_late(slots, now_ns, &victim);
}

/* ---- Which connection is closed for a new one ---- */

static void young_connections_do_not_make_room_and_the_newcomer_gets_an_extra_slot(void **state)
{
    struct kvb_http_slots slots;
    struct kvb_http_slot *slot[max];

    (void)state;
    init(&slots);
    fill(&slots, slot);
    assert_true(open_one(&slots, 3, 50, start_ns + second / 2)->is_extra);
    kvb_http_slots_done(&slots);
}

/* A burst of one client must not close another client's connection that may be about to show its
 * token. */
static void an_extra_connection_makes_room_for_its_own_client_first(void **state)
{
    struct kvb_http_slots slots;
    struct kvb_http_slot *slot[max];
    struct kvb_http_victim victim;

    (void)state;
    init(&slots);
    fill(&slots, slot);
    const uint64_t now_ns = start_ns + second / 2;
    assert_true(open_one(&slots, 8, 50, now_ns)->is_extra);
    assert_true(open_one(&slots, 9, 51, now_ns)->is_extra);
    for (int fd = 52; fd < 60; fd++) { /* now half of the extra places are taken */
        struct kvb_http_slot *one = kvb_http_slots_open(&slots, 9, fd, now_ns, &victim);
        assert_non_null(one);
        assert_int_equal(victim.fd, fd - 1);
        for (size_t i = 0; i < slots.slot_count; i++) {
            if (slots.slots[i].fd == victim.fd) {
                kvb_http_slots_close(&slots, &slots.slots[i]);
            }
        }
    }
    assert_non_null(kvb_http_slots_open(&slots, 7, 60, now_ns + 1, &victim));
    assert_int_equal(victim.fd, 50); /* of all clients, when this client has none */
    kvb_http_slots_done(&slots);
}

/* Otherwise many connections without a request would keep out a probe of /livez. */
static void an_extra_connection_makes_room_for_another_however_young_it_is(void **state)
{
    struct kvb_http_slots slots;
    struct kvb_http_slot *slot[max];
    struct kvb_http_victim victim;
    int gone = 0;

    (void)state;
    init(&slots);
    fill(&slots, slot);
    for (int i = 0; i < 100; i++) {
        struct kvb_http_slot *one =
            kvb_http_slots_open(&slots, 3, 100 + i, start_ns + second / 2, &victim);
        assert_non_null(one);
        assert_true(one->is_extra);
        for (size_t at = 0; at < slots.slot_count; at++) {
            if (slots.slots[at].phase == KVB_HTTP_CLOSING) {
                assert_true(slots.slots[at].is_extra);
                kvb_http_slots_close(&slots, &slots.slots[at]);
                gone++;
            }
        }
    }
    assert_int_equal(gone, 100 - extra / 2);
    kvb_http_slots_done(&slots);
}

static void a_client_above_its_share_makes_room_itself(void **state)
{
    struct kvb_http_slots slots;
    struct kvb_http_victim victim;

    (void)state;
    init(&slots);
    (void)open_one(&slots, 2, 90, start_ns);
    for (int i = 0; i < max_client; i++) {
        assert_false(open_one(&slots, 1, i, start_ns + 1)->is_extra);
    }
    assert_true(open_one(&slots, 1, 50, start_ns + second / 2)->is_extra);
    assert_non_null(kvb_http_slots_open(&slots, 1, 51, start_ns + 2 * second, &victim));
    assert_int_equal(victim.fd, 0); /* not one of client 2, which has been idle longer */
    assert_false(open_one(&slots, 2, 91, start_ns + second / 2)->is_extra);
    kvb_http_slots_done(&slots);
}

/* Closed connections that never sent a request must not cost those that did. */
static void an_unproven_connection_makes_room_before_a_proven_one(void **state)
{
    struct kvb_http_slots slots;
    struct kvb_http_slot *slot[max];
    struct kvb_http_victim victim;

    (void)state;
    init(&slots);
    fill(&slots, slot);
    for (int i = 0; i < max; i++) {
        slot[i]->is_proven = i != 5;
    }
    assert_non_null(kvb_http_slots_open(&slots, 3, 50, start_ns + 2 * second, &victim));
    assert_int_equal(victim.fd, 5);
    kvb_http_slots_done(&slots);
}

static void unproven_connections_have_a_share_and_make_room_themselves(void **state)
{
    struct kvb_http_slots slots;
    struct kvb_http_victim victim;

    (void)state;
    init(&slots);
    slots.options.max_unproven = 2;
    struct kvb_http_slot *proven = open_one(&slots, 1, 1, start_ns);
    proven->is_proven = true;
    (void)open_one(&slots, 2, 2, start_ns + 1);
    (void)open_one(&slots, 3, 3, start_ns + 2);
    assert_non_null(kvb_http_slots_open(&slots, 4, 4, start_ns + 2 * second, &victim));
    assert_int_equal(victim.fd, 2);
    assert_int_equal(proven->phase, KVB_HTTP_HEADER);
    kvb_http_slots_done(&slots);
}

static void a_proven_connection_takes_no_slot_of_the_unproven(void **state)
{
    struct kvb_http_slots slots;
    struct kvb_http_slot *slot = NULL;

    (void)state;
    init(&slots);
    slots.options.max_unproven = 2;
    (void)open_one(&slots, 1, 1, start_ns);
    (void)open_one(&slots, 2, 2, start_ns);
    for (int i = 3; i <= max; i++) { /* the unproven ones are too young to make room */
        slot = open_one(&slots, (uint64_t)i, i, start_ns + 1);
        assert_true(slot->is_extra);
        kvb_http_slots_prove(&slots, slot);
        assert_true(slot->is_proven);
        assert_false(slot->is_extra);
    }
    slot = open_one(&slots, 9, 9, start_ns + 1);
    kvb_http_slots_prove(&slots, slot);
    assert_true(slot->is_extra); /* all places are taken */
    kvb_http_slots_done(&slots);
}

static void a_proven_client_gets_no_larger_share(void **state)
{
    struct kvb_http_slots slots;

    (void)state;
    init(&slots);
    for (int i = 0; i < max_client; i++) {
        kvb_http_slots_prove(&slots, open_one(&slots, 1, i, start_ns));
    }
    struct kvb_http_slot *slot = open_one(&slots, 1, 50, start_ns + 1);
    kvb_http_slots_prove(&slots, slot);
    assert_true(slot->is_extra);
    kvb_http_slots_done(&slots);
}

static void without_a_free_slot_no_connection_is_accepted(void **state)
{
    struct kvb_http_slots slots;
    struct kvb_http_slot *slot[max];
    struct kvb_http_victim victim;

    (void)state;
    init(&slots);
    fill(&slots, slot);
    for (int i = 0; i < extra; i++) {
        struct kvb_http_slot *one =
            kvb_http_slots_open(&slots, 3, 100 + i, start_ns + second / 2, &victim);
        kvb_http_slots_enter(one, KVB_HTTP_ANSWER, start_ns);
    }
    assert_null(kvb_http_slots_open(&slots, 3, 200, start_ns + second / 2, &victim));
    assert_int_equal(victim.fd, -1);
    assert_int_equal(slots.open_count, max + extra);
    kvb_http_slots_done(&slots);
}

/* ---- Deadlines ---- */

static void transferred_bytes_extend_the_deadline(void **state)
{
    struct kvb_http_slots slots;

    (void)state;
    init(&slots);
    struct kvb_http_slot *slot = open_one(&slots, 1, 7, start_ns);
    kvb_http_slots_enter(slot, KVB_HTTP_BODY, start_ns + second);
    slot->moved_bytes = 2000;
    assert_false(is_anyone_late(&slots, start_ns + 13 * second - 1));
    kvb_http_slots_enter(slot, KVB_HTTP_WORK, start_ns + 12 * second);
    /* the server's own time has no limit */
    assert_false(is_anyone_late(&slots, start_ns + 99 * second));
    kvb_http_slots_enter(slot, KVB_HTTP_ANSWER, start_ns + 100 * second);
    /* bytes of the request no longer count */
    assert_false(is_anyone_late(&slots, start_ns + 110 * second - 1));
    slot->moved_bytes = 1000;
    assert_false(is_anyone_late(&slots, start_ns + 111 * second - 1));
    assert_true(next_late(&slots, start_ns + 111 * second, 7, KVB_HTTP_END_LATE));
    kvb_http_slots_enter(slot, KVB_HTTP_HEADER, start_ns + 112 * second);
    assert_int_equal(slot->phase, KVB_HTTP_CLOSING);
    kvb_http_slots_done(&slots);
}

/* ---- Bytes ---- */

static void bodies_and_answers_share_one_budget(void **state)
{
    struct kvb_http_slots slots;

    (void)state;
    init(&slots);
    struct kvb_http_slot *one = open_one(&slots, 1, 1, start_ns);
    struct kvb_http_slot *two = open_one(&slots, 2, 2, start_ns);
    struct kvb_http_slot *three = open_one(&slots, 3, 3, start_ns);

    assert_ok(kvb_http_slots_hold(&slots, one, own + 500));
    assert_ok(kvb_http_slots_hold(&slots, two, own + 400));
    assert_int_equal(slots.held_bytes, 900);
    assert_int_equal(kvb_http_slots_hold(&slots, three, own + 101), KVB_AGAIN);
    assert_int_equal(three->held_bytes, 0);
    assert_ok(kvb_http_slots_hold(&slots, three, own)); /* each may always have this much */
    assert_ok(kvb_http_slots_hold(&slots, three, own + 100));
    assert_ok(kvb_http_slots_hold(&slots, one, own + 10)); /* a reduction is always granted */
    kvb_http_slots_close(&slots, two);
    assert_int_equal(slots.held_bytes, 110);
    kvb_http_slots_done(&slots);
}

static void no_client_gets_all_bytes(void **state)
{
    struct kvb_http_slots slots;

    (void)state;
    init(&slots);
    struct kvb_http_slot *one = open_one(&slots, 1, 1, start_ns);
    struct kvb_http_slot *two = open_one(&slots, 1, 2, start_ns);
    struct kvb_http_slot *other = open_one(&slots, 2, 3, start_ns);

    assert_ok(kvb_http_slots_hold(&slots, one, own + 300));
    assert_int_equal(kvb_http_slots_hold(&slots, two, own + 301), KVB_AGAIN);
    assert_ok(kvb_http_slots_hold(&slots, two, own + 300));
    assert_ok(kvb_http_slots_hold(&slots, other, own + 400));
    kvb_http_slots_done(&slots);
}

static void an_oversized_answer_passes_when_it_is_alone(void **state)
{
    struct kvb_http_slots slots;

    (void)state;
    init(&slots);
    struct kvb_http_slot *one = open_one(&slots, 1, 1, start_ns);
    struct kvb_http_slot *two = open_one(&slots, 2, 2, start_ns);

    assert_ok(kvb_http_slots_hold(&slots, one, own + 5000));
    assert_int_equal(kvb_http_slots_hold(&slots, two, own + 1), KVB_AGAIN);
    kvb_http_slots_close(&slots, one);
    assert_ok(kvb_http_slots_hold(&slots, two, own + 1));
    kvb_http_slots_done(&slots);
}

SUITE(http_slots)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(young_connections_do_not_make_room_and_the_newcomer_gets_an_extra_slot),
        cmocka_unit_test(an_extra_connection_makes_room_for_its_own_client_first),
        cmocka_unit_test(an_extra_connection_makes_room_for_another_however_young_it_is),
        cmocka_unit_test(a_client_above_its_share_makes_room_itself),
        cmocka_unit_test(an_unproven_connection_makes_room_before_a_proven_one),
        cmocka_unit_test(unproven_connections_have_a_share_and_make_room_themselves),
        cmocka_unit_test(a_proven_connection_takes_no_slot_of_the_unproven),
        cmocka_unit_test(a_proven_client_gets_no_larger_share),
        cmocka_unit_test(without_a_free_slot_no_connection_is_accepted),
        cmocka_unit_test(transferred_bytes_extend_the_deadline),
        cmocka_unit_test(bodies_and_answers_share_one_budget),
        cmocka_unit_test(no_client_gets_all_bytes),
        cmocka_unit_test(an_oversized_answer_passes_when_it_is_alone),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
