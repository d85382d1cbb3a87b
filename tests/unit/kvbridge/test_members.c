#include "kvb_test.h"

#include "core/own.h"
#include "fail_alloc.h"
#include "kvbridge/members.h"

#include <stdio.h>

static struct kvb_worker_config worker_of(uint64_t id, unsigned port, uint32_t ranks)
{
    struct kvb_worker_config worker = { .id = id, .block_size = 16, .ranks = ranks };

    (void)snprintf(worker.model, sizeof worker.model, "m");
    (void)snprintf(worker.events, sizeof worker.events, "tcp://h:%u", port);
    (void)snprintf(worker.replay, sizeof worker.replay, "tcp://h:%u", port + 1000);
    return worker;
}

static const struct kvb_label_names all_labels = { 0 };

static struct kvb_members members_of(const struct kvb_worker_config *workers, size_t count)
{
    struct kvb_members members = { 0 };

    assert_ok(kvb_members_of(workers, count, &all_labels, &members));
    return members;
}

/* ---- Two lists ---- */

static struct kvb_member_changes
compare(const struct kvb_members *old, const struct kvb_members *new)
{
    const struct kvb_worker_config *list[8];
    struct kvb_member_changes changes = { 0 };

    for (size_t i = 0; i < old->rank_count; i++) {
        list[i] = &old->ranks[i];
    }
    assert_ok(kvb_members_compare(list, old->rank_count, new->ranks, new->rank_count, &changes));
    return changes;
}

static void put_model(struct kvb_worker_config *worker)
{
    (void)snprintf(worker->model, sizeof worker->model, "other");
}

static void put_block_size(struct kvb_worker_config *worker)
{
    worker->block_size = 32;
}

static void put_replay(struct kvb_worker_config *worker)
{
    (void)snprintf(worker->replay, sizeof worker->replay, "tcp://h:9557");
}

static void put_topic(struct kvb_worker_config *worker)
{
    (void)snprintf(worker->topic, sizeof worker->topic, "kv");
}

static void put_bind(struct kvb_worker_config *worker)
{
    worker->bind = true;
}

static void put_slots(struct kvb_worker_config *worker)
{
    worker->load.total_slots = 5;
}

static void put_hashes(struct kvb_worker_config *worker)
{
    worker->hashes = 1;
}

static void put_replay_request(struct kvb_worker_config *worker)
{
    worker->replay_request = (enum kvb_replay_request)(worker->replay_request + 1);
}

static void put_unknown_medium(struct kvb_worker_config *worker)
{
    worker->unknown_medium = KVB_TIER_EXTERNAL;
}

static void put_total_blocks(struct kvb_worker_config *worker)
{
    worker->total_blocks = 5;
}

static void put_uid(struct kvb_worker_config *worker)
{
    (void)snprintf(worker->pod_uid, sizeof worker->pod_uid, "1c8f");
}

typedef void worker_change(struct kvb_worker_config *worker);
typedef void
changes_check(const struct kvb_member_changes *changes, const struct kvb_members *after);

/* Applies each change by itself to a worker of two ranks. */
static void check_each_change(worker_change *const *each, size_t count, changes_check *check)
{
    const struct kvb_worker_config old = worker_of(7, 5557, 2);
    KVB_OWN(kvb_members_done) struct kvb_members before = members_of(&old, 1);

    for (size_t i = 0; i < count; i++) {
        struct kvb_worker_config new = old;
        each[i](&new);
        KVB_OWN(kvb_members_done) struct kvb_members after = members_of(&new, 1);
        KVB_OWN(kvb_member_changes_done)
        struct kvb_member_changes changes = compare(&before, &after);
        check(&changes, &after);
    }
}

static void
assert_replaced(const struct kvb_member_changes *changes, const struct kvb_members *after)
{
    (void)after;
    assert_true(changes->changed == 2 && changes->same == 0 && changes->gone == 0);
    assert_true(changes->is_removed[0] && changes->is_added[0]);
}

static void whatever_changes_a_rank_closes_and_opens_it(void **state)
{
    static worker_change *const changes_of[] = {
        put_model,  put_block_size,     put_replay,         put_topic,        put_bind, put_slots,
        put_hashes, put_replay_request, put_unknown_medium, put_total_blocks, put_uid,
    };

    (void)state;
    check_each_change(changes_of, KVB_COUNT_OF(changes_of), assert_replaced);
}

/* Another way to write the same ranks: the second worker as a pod of its own. */
static void the_same_ranks_in_other_groups_are_unchanged(void **state)
{
    const struct kvb_worker_config one = worker_of(7, 5557, 2);
    struct kvb_worker_config two[2] = { worker_of(7, 5557, 1), worker_of(7, 5557, 1) };
    two[0].first_rank = 1;
    KVB_OWN(kvb_members_done) struct kvb_members before = members_of(&one, 1);
    KVB_OWN(kvb_members_done) struct kvb_members after = members_of(two, 2);
    KVB_OWN(kvb_member_changes_done) struct kvb_member_changes changes = compare(&before, &after);

    (void)state;
    assert_int_equal(changes.same, 2);
}

/* An error names the worker of the configuration, not one of its ranks. */
static void each_rank_and_load_knows_its_worker(void **state)
{
    struct kvb_worker_config workers[2] = { worker_of(7, 5557, 2), worker_of(8, 6557, 1) };

    (void)state;
    (void)snprintf(workers[1].load.zmq, sizeof workers[1].load.zmq, "tcp://h:1");
    KVB_OWN(kvb_members_done) struct kvb_members members = members_of(workers, 2);
    assert_int_equal(members.rank_count, 3);
    assert_int_equal(members.worker_of_rank[1], 0);
    assert_int_equal(members.worker_of_rank[2], 1);
    assert_int_equal(members.worker_of_load[members.load_count - 1], 1);
}

static void without_memory_nothing_is_made(void **state)
{
    const struct kvb_worker_config worker = worker_of(7, 5557, 2);
    const struct kvb_worker_config *old[1] = { &worker };
    struct kvb_members members = { 0 };
    struct kvb_member_changes changes = { 0 };

    (void)state;
    for (long n = 0; n < 4; n++) {
        fail_alloc_after(n);
        const kvb_status status = kvb_members_of(&worker, 1, &all_labels, &members);
        fail_alloc_after(-1);
        assert_int_equal(status, KVB_NO_MEMORY);
        assert_null(members.ranks);
    }
    for (long n = 0; n < 4; n++) {
        fail_alloc_after(n);
        const kvb_status status = kvb_members_compare(old, 1, &worker, 1, &changes);
        fail_alloc_after(-1);
        assert_int_equal(status, KVB_NO_MEMORY);
        assert_null(changes.is_removed);
    }
}

SUITE(members)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(whatever_changes_a_rank_closes_and_opens_it),
        cmocka_unit_test(the_same_ranks_in_other_groups_are_unchanged),
        cmocka_unit_test(each_rank_and_load_knows_its_worker),
        cmocka_unit_test(without_memory_nothing_is_made),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
