#include "kvb_test.h"

#include "core/own.h"
#include "fail_alloc.h"
#include "kvbridge/endpoint.h"
#include "kvbridge/worker_list.h"

#include <malloc.h>
#include <stdio.h>
#include <string.h>

/* ---- Copies
 * -------------------------------------------------------------------------------------- */

static struct kvb_worker_spec spec_of(uint64_t id, const char *events, uint32_t ranks)
{
    struct kvb_worker_spec spec;

    kvb_worker_spec_init(&spec);
    spec.id = id;
    spec.events = events;
    spec.model = "m";
    spec.block_size = 16;
    spec.ranks = ranks;
    return spec;
}

static struct kvb_worker_spec *copy_of(const struct kvb_worker_spec *spec)
{
    struct kvb_worker_spec *copy = NULL;

    assert_ok(kvb_worker_spec_new(spec, &copy));
    return copy;
}

static void a_copy_has_its_own_texts(void **state)
{
    uint64_t ids[2] = { 7, 8 };
    char events[] = "tcp://h:5557";
    struct kvb_worker_facts facts = { .role = KVB_ROLE_DECODE, .restarts = 3 };
    struct kvb_worker_facts expanded;
    struct kvb_worker_spec spec = spec_of(0, events, 2);

    (void)state;
    assert_ok(kvb_labels_add(&facts.labels, "zone", "b", NULL));
    (void)snprintf(facts.pod, sizeof facts.pod, "vllm-0");
    spec.ids = ids;
    spec.id_count = 2;
    spec.facts = kvb_spec_facts_of(&facts);
    struct kvb_worker_spec *copy = copy_of(&spec);
    assert_true(kvb_worker_specs_are_same(copy, &spec));
    assert_true(kvb_spec_facts_are_same(&copy->facts, &spec.facts));
    events[6] = 'x';
    ids[1] = 9;
    assert_string_equal(copy->events, "tcp://h:5557");
    assert_true(kvb_worker_id_of_rank(copy, 1) == 8);
    assert_false(kvb_worker_specs_are_same(copy, &spec));
    kvb_spec_facts_expand(&copy->facts, &expanded);
    assert_true(kvb_worker_facts_are_same(&expanded, &facts));
    assert_ok(kvb_labels_add(&facts.labels, "team", "x", NULL));
    const struct kvb_spec_facts other = kvb_spec_facts_of(&facts);
    assert_false(kvb_spec_facts_are_same(&copy->facts, &other));
    assert_ptr_equal(kvb_worker_spec_ref(copy), copy);
    kvb_worker_spec_unref(copy);
    kvb_worker_spec_unref(copy);
}

/* ---- Parts
 * --------------------------------------------------------------------------------------- */

static void each_rank_has_its_own_address_and_the_load_is_one(void **state)
{
    struct kvb_worker_spec spec = spec_of(7, "tcp://h:5557", 2);
    struct kvb_parts parts = { 0 };

    (void)state;
    spec.first_rank = 3;
    spec.load.zmq = "tcp://h:1";
    spec.republish.events = "tcp://*:5657";
    struct kvb_worker_spec *worker = copy_of(&spec);
    assert_ok(kvb_parts_of_spec(worker, &parts));
    assert_int_equal(parts.count, 3);
    assert_string_equal(parts.items[0]->events, "tcp://h:5560");
    assert_string_equal(parts.items[1]->events, "tcp://h:5561");
    assert_string_equal(parts.items[1]->republish_events, "tcp://*:5661");
    assert_true(parts.items[1]->id == 7 && parts.items[1]->dp_rank == 4);
    assert_int_equal(parts.items[2]->kind, KVB_PART_LOAD);
    assert_true(parts.items[2]->dp_rank == 3 && parts.items[2]->ranks == 2);
    kvb_parts_done(&parts);
    kvb_worker_spec_unref(worker);
}

/* Each change by itself. */
static void whatever_changes_a_rank_makes_another_rank(void **state)
{
    enum { changes = 21 };
    const struct kvb_worker_spec spec = spec_of(7, "tcp://h:5557", 1);
    struct kvb_worker_spec changed[changes];
    struct kvb_worker_spec *one = copy_of(&spec);
    struct kvb_parts of_one = { 0 };

    (void)state;
    for (size_t i = 0; i < changes; i++) {
        changed[i] = spec;
    }
    changed[0].model = "n";
    changed[1].lora = "a";
    changed[2].block_size = 32;
    changed[3].replay = "tcp://h:6557";
    changed[4].topic = "kv";
    changed[5].bind = true;
    changed[6].load.total_slots = 1;
    changed[7].hashes = KVB_HASHES_ENGINE;
    changed[8].unknown_medium = KVB_TIER_HOST;
    changed[9].offload_removals = KVB_OFFLOAD_COMPLETE;
    changed[10].total_blocks = 1;
    changed[11].speculative_drop = 1;
    changed[12].speculative_drop_groups = 2;
    changed[13].attention_chunk = 64;
    changed[14].offload_chunk_blocks = 4;
    changed[15].has_salts = true;
    changed[16].is_sglang_hybrid = true;
    changed[17].store = true;
    changed[18].republish.events = "tcp://*:1";
    changed[19].republish.style = KVB_REPUBLISH_AIBRIX;
    changed[20].pod_uid = "1c8f";
    assert_ok(kvb_parts_of_spec(one, &of_one));
    for (size_t i = 0; i < changes; i++) {
        struct kvb_parts of_other = { 0 };
        struct kvb_worker_spec *other = copy_of(&changed[i]);
        assert_ok(kvb_parts_of_spec(other, &of_other));
        assert_false(kvb_parts_are_same(of_one.items[0], of_other.items[0]));
        assert_false(kvb_worker_specs_are_same(one, other));
        kvb_parts_done(&of_other);
        kvb_worker_spec_unref(other);
    }
    kvb_parts_done(&of_one);
    kvb_worker_spec_unref(one);
}

/* Another way to write the same ranks, and what is not theirs. */
static void other_groups_loads_and_facts_leave_a_rank_the_same(void **state)
{
    const struct kvb_worker_spec two = spec_of(7, "tcp://h:5557", 2);
    struct kvb_worker_spec second = spec_of(7, "tcp://h:5557", 1);
    struct kvb_parts of_two = { 0 };
    struct kvb_parts of_second = { 0 };

    (void)state;
    second.first_rank = 1;
    second.load.zmq = "tcp://h:1";
    second.facts.address = "http://h:8000";
    struct kvb_worker_spec *one = copy_of(&two);
    struct kvb_worker_spec *other = copy_of(&second);
    assert_ok(kvb_parts_of_spec(one, &of_two));
    assert_ok(kvb_parts_of_spec(other, &of_second));
    assert_true(kvb_parts_are_same(of_two.items[1], of_second.items[0]));
    assert_false(kvb_part_facts_are_same(of_two.items[1], of_second.items[0]));
    kvb_parts_done(&of_two);
    kvb_parts_done(&of_second);
    kvb_worker_spec_unref(one);
    kvb_worker_spec_unref(other);
}

/* ---- Parts that an engine has named
 * -------------------------------------------------------------- */

static const struct kvb_event_sources two_sources = {
    .sources = { { .dp_rank = 0,
                   .endpoint = "tcp://*:41001",
                   .replay_endpoint = "tcp://0.0.0.0:41003",
                   .topic = "kv" },
                 { .dp_rank = 3, .endpoint = "tcp://10.0.0.9:41002" } },
    .count = 2,
};

/* The caller frees the parts, which keep the worker. */
static kvb_status answer_of(
    const struct kvb_worker_spec *spec, const struct kvb_event_sources *sources,
    struct kvb_parts *out_parts, struct kvb_detail *why)
{
    struct kvb_worker_spec *worker = copy_of(spec);
    const kvb_status status =
        kvb_parts_of_answer(worker, sources, KVB_SPECULATION_UNKNOWN, out_parts, why);

    kvb_worker_spec_unref(worker);
    return status;
}

static struct kvb_worker_spec discovered(void)
{
    struct kvb_worker_spec spec = spec_of(7, "", 1);

    spec.discover = "http://engine:8000";
    return spec;
}

static void an_engine_names_the_addresses_of_its_ranks(void **state)
{
    const struct kvb_worker_spec spec = discovered();
    struct kvb_parts parts = { 0 };
    struct kvb_worker_spec *worker = copy_of(&spec);

    (void)state;
    assert_ok(kvb_parts_of_spec(worker, &parts));
    assert_int_equal(parts.count, 0); /* it has not answered */
    kvb_worker_spec_unref(worker);
    assert_ok(answer_of(&spec, &two_sources, &parts, NULL));
    assert_int_equal(parts.count, 3);
    assert_string_equal(parts.items[0]->events, "tcp://engine:41001");
    assert_string_equal(parts.items[0]->replay, "tcp://engine:41003");
    assert_string_equal(parts.items[0]->topic, "kv");
    assert_string_equal(parts.items[1]->events, "tcp://10.0.0.9:41002");
    assert_int_equal(parts.items[1]->dp_rank, 3);
    assert_true(parts.items[0]->is_advertised);
    assert_int_equal(parts.items[2]->kind, KVB_PART_LOAD);
    assert_int_equal(parts.items[2]->ranks, 4);
    kvb_parts_done(&parts);
}

static void there_is_one_id_for_each_rank_or_one_for_all(void **state)
{
    static const uint64_t ids[4] = { 5, 6, 7, 8 };
    struct kvb_worker_spec spec = discovered();
    struct kvb_parts parts = { 0 };
    struct kvb_detail why = { "" };

    (void)state;
    spec.ids = ids;
    spec.id_count = 1;
    assert_int_equal(answer_of(&spec, &two_sources, &parts, &why), KVB_BAD_CONFIG);
    assert_non_null(strstr(why.text, "the engine has rank 3, but `ids` has only 1 ids"));
    spec.id_count = 4;
    assert_ok(answer_of(&spec, &two_sources, &parts, &why));
    assert_true(parts.items[0]->id == 5 && parts.items[1]->id == 8);
    kvb_parts_done(&parts);
}

static void an_address_that_nobody_reaches_is_refused(void **state)
{
    static const char *const rows[][2] = {
        { "nonsense", "nonsense is not a socket address" },
        { "inproc://kv", "inproc://kv is reachable only inside the engine's process" },
    };
    const struct kvb_worker_spec spec = discovered();

    (void)state;
    for (size_t i = 0; i < KVB_COUNT_OF(rows); i++) {
        struct kvb_event_sources bad = { .count = 1 };
        struct kvb_parts parts = { 0 };
        struct kvb_detail why = { "" };
        (void)snprintf(bad.sources[0].endpoint, sizeof bad.sources[0].endpoint, "%s", rows[i][0]);
        assert_int_equal(answer_of(&spec, &bad, &parts, &why), KVB_BAD_CONFIG);
        assert_non_null(strstr(why.text, rows[i][1]));
        assert_null(parts.items);
    }
}

/* ---- Lists
 * ---------------------------------------------------------------------------------------- */

static void an_earlier_list_gives_what_is_the_same(void **state)
{
    KVB_OWN(kvb_worker_list_done) struct kvb_worker_list earlier = { 0 };
    KVB_OWN(kvb_worker_list_done) struct kvb_worker_list list = { 0 };
    struct kvb_worker_spec spec = discovered();
    const struct kvb_worker_spec plain = spec_of(8, "tcp://h:1", 1);

    (void)state;
    assert_ok(kvb_worker_list_add(&earlier, &spec));
    assert_ok(kvb_worker_list_add(&earlier, &plain));
    struct kvb_listed_worker *answered = &earlier.items[0];
    assert_ok(kvb_parts_of_answer(
        answered->spec, &two_sources, KVB_SPECULATION_UNKNOWN, &answered->parts, NULL));
    answered->is_known = true;
    spec.facts.address = "http://engine:8000"; /* another fact */
    assert_ok(kvb_worker_list_add(&list, &spec));
    assert_ok(kvb_worker_list_add(&list, &plain));
    assert_ok(kvb_worker_list_inherit(&list, &earlier));
    assert_true(list.items[0].is_known && list.items[0].parts.count == 3);
    assert_ptr_equal(list.items[0].parts.items[0]->worker, list.items[0].spec);
    assert_string_equal(list.items[0].spec->facts.address, "http://engine:8000");
    assert_ptr_equal(list.items[1].spec, earlier.items[1].spec);
    assert_ptr_equal(list.items[1].parts.items[0], earlier.items[1].parts.items[0]);
}

static void a_worker_at_a_host_has_an_address_for_each_port(void **state)
{
    static const struct kvb_host_ports some = { .events = 5557 };
    static const struct kvb_host_ports all = {
        .events = 5557, .replay = 6557, .metrics = 8001, .http = 8000
    };
    KVB_OWN(kvb_worker_list_done) struct kvb_worker_list list = { 0 };
    struct kvb_worker_spec spec = spec_of(7, "", 2);

    (void)state;
    spec.discover = spec.facts.tokenize = KVB_AT_ADDRESS;
    assert_ok(kvb_worker_list_add_at(&list, &spec, "10.0.0.7", &all));
    const struct kvb_worker_spec *worker = list.items[0].spec;
    assert_string_equal(worker->events, "tcp://10.0.0.7:5557");
    assert_string_equal(worker->replay, "tcp://10.0.0.7:6557");
    assert_string_equal(worker->load.prometheus, "http://10.0.0.7:8001/metrics");
    assert_string_equal(worker->facts.address, "http://10.0.0.7:8000");
    assert_string_equal(worker->facts.tokenize, "http://10.0.0.7:8000");
    assert_string_equal(worker->discover, "http://10.0.0.7:8000");
    assert_int_equal(list.items[0].parts.count, 0); /* until the engine has answered */
    spec.is_id_made = true;
    assert_ok(kvb_worker_list_add_at(&list, &spec, "fd00::7", &some));
    worker = list.items[1].spec;
    assert_string_equal(worker->events, "tcp://[fd00::7]:5557");
    assert_string_equal(worker->replay, "");
    assert_string_equal(worker->load.prometheus, "");
    assert_string_equal(worker->facts.tokenize, "");
    assert_true(worker->id == kvb_worker_id_of_address(worker) && worker->id != 7);
    assert_int_equal(list.items[1].parts.count, 2);
}

/* A list of as many pods as a bridge takes, as the source hands it over. */
static void a_list_of_8192_pods_takes_less_than_10_mb(void **state)
{
    KVB_OWN(kvb_worker_list_done) struct kvb_worker_list list = { 0 };
    struct kvb_worker_facts facts = { .role = KVB_ROLE_DECODE };
    char events[64];
    char replay[64];
    char page[64];
    const size_t before = mallinfo2().uordblks;

    (void)state;
    (void)snprintf(facts.pod_namespace, sizeof facts.pod_namespace, "inference");
    assert_ok(kvb_labels_add(&facts.labels, "topology.kubernetes.io/zone", "eu-central-1b", NULL));
    assert_ok(kvb_labels_add(&facts.labels, "llm-d.ai/role", "decode", NULL));
    for (unsigned i = 0; i < 8192; i++) {
        struct kvb_worker_spec spec = spec_of(1943803597606491 + i, events, 1);
        (void)snprintf(events, sizeof events, "tcp://10.128.%u.%u:5557", i / 256, i % 256);
        (void)snprintf(replay, sizeof replay, "tcp://10.128.%u.%u:6557", i / 256, i % 256);
        (void)snprintf(page, sizeof page, "http://10.128.%u.%u:8000/metrics", i / 256, i % 256);
        (void)snprintf(
            facts.address, sizeof facts.address, "http://10.128.%u.%u:8000", i / 256, i % 256);
        (void)snprintf(facts.pod, sizeof facts.pod, "vllm-llama-70b-decode-6c9f7d5b8-%05u", i);
        (void)snprintf(facts.node, sizeof facts.node, "gpu-node-%u.eu-central-1.internal", i / 8);
        spec.replay = replay;
        spec.model = "meta-llama/Llama-3.3-70B-Instruct";
        spec.model_rule = "argument --served-model-name";
        spec.pod_uid = "7d9f3c1e-0a52-4c7e-9a55-3f6f1f0c2b11";
        spec.load.prometheus = page;
        spec.facts = kvb_spec_facts_of(&facts);
        assert_ok(kvb_worker_list_add(&list, &spec));
    }
    const size_t bytes = mallinfo2().uordblks - before; /* 0 under a sanitizer */
    print_message("8,192 pods: %zu bytes\n", bytes);
    assert_true(bytes < 10000000);
}

static void without_memory_a_list_stays_as_it_was(void **state)
{
    KVB_OWN(kvb_worker_list_done) struct kvb_worker_list list = { 0 };
    struct kvb_worker_spec spec = spec_of(7, "tcp://h:1", 2);
    kvb_status status = KVB_NO_MEMORY;

    (void)state;
    spec.load.zmq = "tcp://h:9";
    for (long n = 0; status == KVB_NO_MEMORY; n++) {
        fail_alloc_after(n);
        status = kvb_worker_list_add(&list, &spec);
        fail_alloc_after(-1);
        assert_int_equal(list.count, status == KVB_OK);
        assert_true(n < 12);
    }
    assert_ok(status);
}

SUITE(worker_spec)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_copy_has_its_own_texts),
        cmocka_unit_test(each_rank_has_its_own_address_and_the_load_is_one),
        cmocka_unit_test(whatever_changes_a_rank_makes_another_rank),
        cmocka_unit_test(other_groups_loads_and_facts_leave_a_rank_the_same),
        cmocka_unit_test(an_engine_names_the_addresses_of_its_ranks),
        cmocka_unit_test(there_is_one_id_for_each_rank_or_one_for_all),
        cmocka_unit_test(an_address_that_nobody_reaches_is_refused),
        cmocka_unit_test(an_earlier_list_gives_what_is_the_same),
        cmocka_unit_test(a_worker_at_a_host_has_an_address_for_each_port),
        cmocka_unit_test(a_list_of_8192_pods_takes_less_than_10_mb),
        cmocka_unit_test(without_memory_a_list_stays_as_it_was),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
