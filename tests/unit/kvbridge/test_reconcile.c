#include "kvb_test.h"

#include "core/own.h"
#include "fail_alloc.h"
#include "kvbridge/reconcile.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- Lists, and a table that runs what plans say ----------------------------------------------
 */

enum { max_ranks = 64 };

struct worker {
    uint64_t id;
    unsigned port; /* of rank 0, at host 10.0.0.1 */
    uint32_t ranks;
    uint32_t block_size;
    const char *pod_uid;
    const char *tokenize; /* a fact */
    bool has_load;
    bool is_republished;
};

static void add(struct kvb_worker_list *list, struct worker worker)
{
    struct kvb_worker_spec spec;
    char events[64];

    kvb_worker_spec_init(&spec);
    (void)snprintf(events, sizeof events, "tcp://10.0.0.1:%u", worker.port);
    spec.id = worker.id;
    spec.events = events;
    spec.model = "m";
    spec.ranks = worker.ranks ? worker.ranks : 1;
    spec.block_size = worker.block_size ? worker.block_size : 16;
    spec.pod_uid = worker.pod_uid ? worker.pod_uid : "";
    spec.facts.tokenize = worker.tokenize ? worker.tokenize : "";
    spec.load.zmq = worker.has_load ? "tcp://10.0.0.1:1" : "";
    spec.republish.events = worker.is_republished ? "tcp://*:6000" : "";
    assert_ok(kvb_worker_list_add(list, &spec));
}

/* Carries a plan out at once. */
static void run(struct kvb_part_table *running, uint32_t source, const struct kvb_plan *plan)
{
    for (size_t i = 0; i < plan->action_count; i++) {
        const struct kvb_plan_action *action = &plan->actions[i];
        uint32_t number = 0;
        switch (action->kind) {
        case KVB_PLAN_CLOSE:
            kvb_part_table_remove(running, action->number);
            break;
        case KVB_PLAN_CHANGE_FACTS:
            kvb_part_table_renew(running, action->number, action->part);
            break;
        default:
            assert_ok(kvb_part_table_put(running, action->part, source, NULL, &number));
            running->slots[number].is_draining = action->is_draining;
        }
    }
}

static struct kvb_reconcile_input
input_of(struct kvb_part_table *running, uint32_t source, const struct kvb_worker_list *list)
{
    return (struct kvb_reconcile_input){ .running = running,
                                         .source = source,
                                         .workers = list->items,
                                         .worker_count = list->count,
                                         .may_leave_out = true,
                                         .max_new_ranks = SIZE_MAX,
                                         .max_ranks = max_ranks };
}

/* Decides for a whole list and runs it.  The caller frees the plan. */
static struct kvb_plan
give(struct kvb_part_table *running, uint32_t source, const struct kvb_worker_list *list)
{
    const struct kvb_reconcile_input input = input_of(running, source, list);
    struct kvb_plan plan = { 0 };

    assert_ok(kvb_reconcile(&input, &plan));
    run(running, source, &plan);
    assert_int_equal(plan.ranks, running->ranks);
    assert_int_equal(plan.republished_ranks, running->republished_ranks);
    assert_int_equal(plan.load_sources, running->load_sources);
    return plan;
}

static bool is_running(const struct kvb_part_table *running, uint64_t id, uint32_t dp_rank)
{
    return kvb_part_table_find(running, KVB_PART_RANK, id, dp_rank, KVB_ANY_SOURCE) != KVB_NO_ID;
}

/* ---- The difference ----------------------------------------------------------------------------
 */

static void another_key_closes_and_opens_and_another_fact_does_not(void **state)
{
    KVB_OWN(kvb_part_table_done) struct kvb_part_table running = { 0 };
    KVB_OWN(kvb_worker_list_done) struct kvb_worker_list one = { 0 };
    KVB_OWN(kvb_worker_list_done) struct kvb_worker_list two = { 0 };

    (void)state;
    add(&one, (struct worker){ .id = 7, .port = 5557, .ranks = 2, .has_load = true });
    add(&one, (struct worker){ .id = 8, .port = 6557 });
    struct kvb_plan plan = give(&running, KVB_SOURCE_FILE, &one);
    kvb_plan_done(&plan);
    add(&two, (struct worker){
                  .id = 7, .port = 5557, .ranks = 2, .has_load = true, .tokenize = "http://h" });
    add(&two, (struct worker){ .id = 8, .port = 6557, .block_size = 32 });
    plan = give(&running, KVB_SOURCE_FILE, &two);
    assert_true(plan.same == 2 && plan.updated == 2 && plan.changed == 1 && plan.added == 0);
    assert_int_equal(plan.action_count, 5); /* facts of two ranks and the load; 8/0 twice */
    assert_int_equal(plan.actions[0].kind, KVB_PLAN_CHANGE_FACTS);
    assert_int_equal(plan.actions[3].kind, KVB_PLAN_CLOSE);
    assert_int_equal(plan.actions[4].kind, KVB_PLAN_OPEN);
    const uint32_t number = kvb_part_table_find(&running, KVB_PART_RANK, 7, 1, KVB_SOURCE_FILE);
    assert_string_equal(running.slots[number].part->worker->facts.tokenize, "http://h");
    kvb_plan_done(&plan);
}

/* A POST /drain holds while the worker's keys change.  A new pod of the same name is another
 * worker, and not draining. */
static void a_rank_stays_draining_unless_it_is_another_pod(void **state)
{
    KVB_OWN(kvb_part_table_done) struct kvb_part_table running = { 0 };
    struct kvb_worker_list lists[3] = { { 0 } };

    (void)state;
    add(&lists[0], (struct worker){ .id = 7, .port = 5557, .pod_uid = "a" });
    add(&lists[1], (struct worker){ .id = 7, .port = 5557, .pod_uid = "a", .block_size = 32 });
    add(&lists[2], (struct worker){ .id = 7, .port = 5557, .pod_uid = "b", .block_size = 32 });
    for (size_t i = 0; i < 3; i++) {
        struct kvb_plan plan = give(&running, KVB_SOURCE_KUBERNETES, &lists[i]);
        const uint32_t number = kvb_part_table_find(&running, KVB_PART_RANK, 7, 0, KVB_ANY_SOURCE);
        assert_int_equal(running.slots[number].is_draining, i == 1);
        running.slots[number].is_draining = true;
        kvb_plan_done(&plan);
        kvb_worker_list_done(&lists[i]); /* what runs has references of its own */
    }
}

/* ---- Collisions --------------------------------------------------------------------------------
 */

static void what_another_source_has_is_left_out_or_refuses_the_list(void **state)
{
    KVB_OWN(kvb_part_table_done) struct kvb_part_table running = { 0 };
    KVB_OWN(kvb_worker_list_done) struct kvb_worker_list file = { 0 };
    KVB_OWN(kvb_worker_list_done) struct kvb_worker_list pods = { 0 };

    (void)state;
    add(&file, (struct worker){ .id = 7, .port = 5557 });
    struct kvb_plan plan = give(&running, KVB_SOURCE_FILE, &file);
    kvb_plan_done(&plan);
    add(&pods, (struct worker){ .id = 7, .port = 6557, .ranks = 2, .has_load = true });
    add(&pods, (struct worker){ .id = 8, .port = 5556, .ranks = 2 }); /* rank 1 is at port 5557 */
    add(&pods, (struct worker){ .id = 9, .port = 7557 });

    struct kvb_reconcile_input input = input_of(&running, KVB_SOURCE_KUBERNETES, &pods);
    input.may_leave_out = false;
    assert_int_equal(kvb_reconcile(&input, &plan), KVB_BAD_CONFIG);
    assert_string_equal(plan.why.text, "instance 7 dp_rank 0 is in the configuration file");

    plan = give(&running, KVB_SOURCE_KUBERNETES, &pods);
    assert_int_equal(plan.verdicts[0], KVB_VERDICT_ID_TAKEN);
    assert_int_equal(plan.verdicts[1], KVB_VERDICT_ADDRESS_TAKEN);
    assert_int_equal(plan.verdicts[2], KVB_VERDICT_TAKEN);
    assert_int_equal(plan.left_out, 4); /* a worker is left out as a whole */
    assert_int_equal(plan.action_count, 1);
    assert_non_null(
        strstr(plan.why.text, "endpoint: tcp://10.0.0.1:5557 is read already, as instance 7"));
    assert_true(is_running(&running, 9, 0) && running.load_sources == 0);
    kvb_plan_done(&plan);

    kvb_worker_list_done(&file); /* an empty list: now there is room */
    plan = give(&running, KVB_SOURCE_FILE, &file);
    kvb_plan_done(&plan);
    plan = give(&running, KVB_SOURCE_KUBERNETES, &pods);
    assert_true(plan.left_out == 0 && plan.added == 4 && plan.same == 1);
    kvb_plan_done(&plan);
}

/* ---- Room
 * ---------------------------------------------------------------------------------------- */

static void what_finds_no_room_is_left_out_from_the_end(void **state)
{
    KVB_OWN(kvb_part_table_done) struct kvb_part_table running = { 0 };
    KVB_OWN(kvb_worker_list_done) struct kvb_worker_list list = { 0 };
    struct kvb_plan plan = { 0 };

    (void)state;
    for (unsigned i = 0; i < 4; i++) {
        add(&list, (struct worker){
                       .id = 7 + i, .port = 5000 + 10 * i, .ranks = 2, .is_republished = true });
    }
    struct kvb_reconcile_input input = input_of(&running, KVB_SOURCE_DNS, &list);
    input.max_ranks = 5;
    assert_ok(kvb_reconcile(&input, &plan));
    assert_int_equal(plan.verdicts[1], KVB_VERDICT_TAKEN);
    assert_int_equal(plan.verdicts[2], KVB_VERDICT_FULL);
    assert_true(plan.ranks == 4 && plan.republished_ranks == 4 && plan.left_out == 4);
    kvb_plan_done(&plan);
    input.may_leave_out = false;
    assert_int_equal(kvb_reconcile(&input, &plan), KVB_TOO_LARGE);
    assert_string_equal(plan.why.text, "the bridge is full: it reads at most 5 ranks");
}

/* ---- The answer of one engine
 * -------------------------------------------------------------------- */

static void an_answer_changes_the_ranks_of_its_worker_alone(void **state)
{
    static const struct kvb_event_sources two = {
        .sources = { { .dp_rank = 0, .endpoint = "tcp://*:41001" },
                     { .dp_rank = 1, .endpoint = "tcp://*:41002" } },
        .count = 2,
    };
    static const struct kvb_event_sources one = {
        .sources = { { .dp_rank = 0, .endpoint = "tcp://*:41009" } }, .count = 1
    };
    KVB_OWN(kvb_part_table_done) struct kvb_part_table running = { 0 };
    KVB_OWN(kvb_worker_list_done) struct kvb_worker_list list = { 0 };
    struct kvb_worker_spec spec;
    struct kvb_detail why;

    (void)state;
    add(&list, (struct worker){ .id = 8, .port = 5557 });
    kvb_worker_spec_init(&spec);
    spec.id = 7;
    spec.discover = "http://engine:8000";
    spec.ranks = 1;
    assert_ok(kvb_worker_list_add(&list, &spec));
    struct kvb_plan plan = give(&running, KVB_SOURCE_FILE, &list);
    assert_int_equal(plan.added, 1); /* nobody has answered */
    kvb_plan_done(&plan);

    struct kvb_listed_worker *worker = &list.items[1];
    for (size_t i = 0; i < 2; i++) {
        kvb_parts_done(&worker->parts);
        assert_ok(kvb_parts_of_answer(
            worker->spec, i == 0 ? &two : &one, KVB_SPECULATION_UNKNOWN, &worker->parts, &why));
        struct kvb_reconcile_input input = input_of(&running, KVB_SOURCE_FILE, &list);
        input.workers = worker;
        input.worker_count = 1;
        input.is_one_worker = true;
        assert_ok(kvb_reconcile(&input, &plan));
        run(&running, KVB_SOURCE_FILE, &plan);
        assert_true(
            i == 0 ? plan.added == 2 && plan.gone == 0 : plan.changed == 1 && plan.gone == 1);
        kvb_plan_done(&plan);
        assert_true(is_running(&running, 8, 0) && is_running(&running, 7, 0));
    }
    /* The whole list has the answer too. */
    plan = give(&running, KVB_SOURCE_FILE, &list);
    assert_int_equal(plan.action_count, 0);
    kvb_plan_done(&plan);
}

/* ---- At random
 * ------------------------------------------------------------------------------------ */

static uint64_t next_random(uint64_t *seed)
{
    *seed = *seed * 6364136223846793005U + 1442695040888963407U;
    return *seed >> 33;
}

static void make_random_list(struct kvb_worker_list *list, uint32_t source, uint64_t *seed)
{
    bool has_id[8] = { false };

    for (size_t i = next_random(seed) % 6; i > 0; i--) {
        const unsigned id = (unsigned)(next_random(seed) % 8);
        if (has_id[id]) {
            continue;
        }
        has_id[id] = true;
        /* Within a list addresses are unique; between sources they collide. */
        add(list, (struct worker){ .id = id,
                                   .port = 5000 + 10 * ((id + 3 * source) % 8),
                                   .ranks = 1 + (uint32_t)(next_random(seed) % 3),
                                   .block_size = 16U << (next_random(seed) % 2),
                                   .tokenize = next_random(seed) % 2 ? "http://a" : "http://b",
                                   .has_load = next_random(seed) % 2 });
    }
}

/* No two ranks have one id or one address. */
static void check_unique(const struct kvb_part_table *running)
{
    for (size_t i = 0; i < running->slot_count; i++) {
        const struct kvb_part *one = running->slots[i].part;
        for (size_t k = 0; one && one->kind == KVB_PART_RANK && k < i; k++) {
            const struct kvb_part *other = running->slots[k].part;
            if (other && other->kind == KVB_PART_RANK) {
                assert_true(one->id != other->id || one->dp_rank != other->dp_rank);
                assert_string_not_equal(one->events, other->events);
            }
        }
    }
}

/* What the list has runs, with its facts, unless its worker was left out. */
static void check_list(
    const struct kvb_part_table *running, uint32_t source, const struct kvb_worker_list *list,
    const struct kvb_plan *plan)
{
    size_t expected = 0;
    size_t found = 0;

    for (size_t i = 0; i < list->count; i++) {
        for (size_t k = 0; k < list->items[i].parts.count; k++) {
            const struct kvb_part *part = list->items[i].parts.items[k];
            const uint32_t number =
                kvb_part_table_find(running, part->kind, part->id, part->dp_rank, source);
            if (plan->verdicts[i] == KVB_VERDICT_TAKEN) {
                assert_true(number != KVB_NO_ID);
            }
            if (number != KVB_NO_ID) {
                assert_true(kvb_parts_are_same(running->slots[number].part, part));
                assert_true(kvb_part_facts_are_same(running->slots[number].part, part));
                expected++;
            }
        }
    }
    for (size_t i = 0; i < running->slot_count; i++) {
        found += running->slots[i].part && running->slots[i].source == source;
    }
    assert_int_equal(found, expected); /* nothing else of the source runs */
}

static void lists_at_random_run_as_they_say(void **state)
{
    KVB_OWN(kvb_part_table_done) struct kvb_part_table running = { 0 };
    uint64_t seed = 1;

    (void)state;
    for (size_t turn = 0; turn < 3000; turn++) {
        const uint32_t source = (uint32_t)(next_random(&seed) % KVB_SOURCE_COUNT);
        struct kvb_worker_list list = { 0 };
        make_random_list(&list, source, &seed);
        struct kvb_plan plan = give(&running, source, &list);
        check_unique(&running);
        check_list(&running, source, &list, &plan);
        kvb_plan_done(&plan);
        plan = give(&running, source, &list);
        assert_int_equal(plan.action_count, 0);
        kvb_plan_done(&plan);
        kvb_worker_list_done(&list);
    }
}

static void without_memory_there_is_no_plan(void **state)
{
    KVB_OWN(kvb_part_table_done) struct kvb_part_table running = { 0 };
    KVB_OWN(kvb_worker_list_done) struct kvb_worker_list one = { 0 };
    KVB_OWN(kvb_worker_list_done) struct kvb_worker_list two = { 0 };
    struct kvb_plan plan = { 0 };
    kvb_status status = KVB_NO_MEMORY;

    (void)state;
    add(&one, (struct worker){ .id = 7, .port = 5557, .ranks = 2 });
    struct kvb_plan first = give(&running, KVB_SOURCE_FILE, &one);
    kvb_plan_done(&first);
    add(&two, (struct worker){ .id = 7, .port = 5557, .ranks = 3, .tokenize = "http://h" });
    const struct kvb_reconcile_input input = input_of(&running, KVB_SOURCE_FILE, &two);
    for (long n = 0; status == KVB_NO_MEMORY; n++) {
        fail_alloc_after(n);
        status = kvb_reconcile(&input, &plan);
        fail_alloc_after(-1);
        assert_true(n < 10);
    }
    assert_ok(status);
    kvb_plan_done(&plan);
}

SUITE(reconcile)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(another_key_closes_and_opens_and_another_fact_does_not),
        cmocka_unit_test(a_rank_stays_draining_unless_it_is_another_pod),
        cmocka_unit_test(what_another_source_has_is_left_out_or_refuses_the_list),
        cmocka_unit_test(what_finds_no_room_is_left_out_from_the_end),
        cmocka_unit_test(an_answer_changes_the_ranks_of_its_worker_alone),
        cmocka_unit_test(lists_at_random_run_as_they_say),
        cmocka_unit_test(without_memory_there_is_no_plan),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
