#include "kvb_test.h"

#include "core/limits.h"
#include "core/own.h"
#include "core/random.h"
#include "fail_alloc.h"
#include "pods/table.h"

#include <stdio.h>
#include <string.h>

enum { source = 3 };

static struct kvb_pod pod_of(const char *name, const char *uid, const char *ip, uint64_t id)
{
    struct kvb_pod pod = { .state = KVB_POD_TAKEN, .id = id, .events_port = 5557, .ranks = 1 };

    (void)snprintf(pod.facts.pod, sizeof pod.facts.pod, "%s", name);
    (void)snprintf(pod.facts.pod_namespace, sizeof pod.facts.pod_namespace, "n");
    (void)snprintf(pod.uid, sizeof pod.uid, "%s", uid);
    (void)snprintf(pod.ip, sizeof pod.ip, "%s", ip);
    (void)snprintf(pod.created, sizeof pod.created, "2026-01-02T03:04:%.2s", uid);
    return pod;
}

static enum kvb_pod_change put(struct kvb_pods *pods, const struct kvb_pod *pod)
{
    enum kvb_pod_change change = KVB_POD_SAME;

    assert_ok(kvb_pods_put(pods, source, pod, &change));
    assert_ok(kvb_pods_settle(pods));
    return change;
}

static enum kvb_pod_state verdict_of(const struct kvb_pods *pods, const char *uid)
{
    for (size_t i = 0; i < pods->count; i++) {
        if (strcmp(pods->pods[i]->uid, uid) == 0) {
            return pods->pods[i]->verdict;
        }
    }
    return KVB_POD_STATE_COUNT;
}

static void a_list_removes_what_it_no_longer_has(void **state)
{
    KVB_OWN(kvb_pods_done) struct kvb_pods pods = { 0 };
    const struct kvb_pod one = pod_of("a", "01", "10.0.0.1", 1);
    const struct kvb_pod two = pod_of("b", "02", "10.0.0.2", 2);
    enum kvb_pod_change change;

    (void)state;
    kvb_pods_begin_list(&pods, source);
    assert_int_equal(put(&pods, &one), KVB_POD_CHANGED);
    assert_int_equal(put(&pods, &two), KVB_POD_CHANGED);
    assert_int_equal(kvb_pods_end_list(&pods, source), KVB_POD_SAME);
    kvb_pods_begin_list(&pods, source);
    assert_int_equal(put(&pods, &two), KVB_POD_SAME);
    assert_int_equal(pods.count, 2); /* a list that breaks off here removes nothing */
    kvb_pods_begin_list(&pods, source + 1);
    const struct kvb_pod other = pod_of("z", "09", "10.0.0.9", 9);
    assert_ok(kvb_pods_put(&pods, source + 1, &other, &change));
    assert_int_equal(kvb_pods_end_list(&pods, source), KVB_POD_CHANGED);
    assert_int_equal(verdict_of(&pods, "01"), KVB_POD_STATE_COUNT);
    assert_int_equal(pods.count, 2); /* b, and the pod of the other list */
}

static void changes_of_facts_and_restarts_are_told_apart(void **state)
{
    KVB_OWN(kvb_pods_done) struct kvb_pods pods = { 0 };
    struct kvb_pod pod = pod_of("a", "01", "10.0.0.1", 1);

    (void)state;
    assert_int_equal(put(&pods, &pod), KVB_POD_CHANGED);
    (void)snprintf(pod.version, sizeof pod.version, "18");
    assert_int_equal(put(&pods, &pod), KVB_POD_SAME);
    pod.facts.ready = KVB_READY_YES;
    assert_int_equal(put(&pods, &pod), KVB_POD_CHANGED);
    pod.facts.restarts = 1;
    assert_int_equal(put(&pods, &pod), KVB_POD_RESTARTED);
    assert_int_equal(put(&pods, &pod), KVB_POD_SAME);
}

static void the_same_name_with_another_uid_replaces_a_pod(void **state)
{
    KVB_OWN(kvb_pods_done) struct kvb_pods pods = { 0 };
    const struct kvb_pod old = pod_of("a", "01", "10.0.0.1", 1);
    const struct kvb_pod new = pod_of("a", "02", "10.0.0.2", 1);

    (void)state;
    (void)put(&pods, &old);
    assert_int_equal(put(&pods, &new), KVB_POD_CHANGED);
    assert_int_equal(pods.count, 1);
    assert_int_equal(verdict_of(&pods, "02"), KVB_POD_TAKEN);
    assert_int_equal(
        kvb_pods_drop(&pods, source, &old), KVB_POD_SAME); /* a late event about the old pod */
    assert_int_equal(pods.count, 1);
}

static void of_two_pods_with_one_id_the_younger_is_refused_until_the_older_goes(void **state)
{
    KVB_OWN(kvb_pods_done) struct kvb_pods pods = { 0 };
    const struct kvb_pod young = pod_of("a", "20", "10.0.0.1", 7);
    struct kvb_pod old = pod_of("b", "10", "10.0.0.2", 7);

    (void)state;
    (void)put(&pods, &young);
    assert_int_equal(verdict_of(&pods, "20"), KVB_POD_TAKEN);
    (void)put(&pods, &old);
    assert_int_equal(verdict_of(&pods, "20"), KVB_POD_ID_TAKEN);
    assert_int_equal(verdict_of(&pods, "10"), KVB_POD_TAKEN);
    old.facts.is_draining = true;
    assert_int_equal(kvb_pods_drop(&pods, source, &old), KVB_POD_CHANGED);
    assert_ok(kvb_pods_settle(&pods));
    assert_int_equal(verdict_of(&pods, "20"), KVB_POD_TAKEN);
}

static void of_two_pods_with_one_address_the_older_is_refused(void **state)
{
    KVB_OWN(kvb_pods_done) struct kvb_pods pods = { 0 };
    struct kvb_pod old = pod_of("a", "10", "10.0.0.1", 1);
    const struct kvb_pod young = pod_of("b", "20", "10.0.0.1", 2);
    struct kvb_pod beside = pod_of("c", "30", "10.0.0.1", 3);

    (void)state;
    old.ranks = 4; /* ports 5557 to 5560 */
    beside.events_port = 5561;
    (void)put(&pods, &old);
    (void)put(&pods, &young);
    (void)put(&pods, &beside); /* a pod on the host's network, with another port */
    assert_int_equal(verdict_of(&pods, "10"), KVB_POD_ADDRESS_TAKEN);
    assert_int_equal(verdict_of(&pods, "20"), KVB_POD_TAKEN);
    assert_int_equal(verdict_of(&pods, "30"), KVB_POD_TAKEN);
}

static void a_pod_that_no_longer_matches_is_remembered_as_relabelled(void **state)
{
    KVB_OWN(kvb_pods_done) struct kvb_pods pods = { 0 };
    const struct kvb_pod pod = pod_of("a", "01", "10.0.0.1", 1);
    struct kvb_pod ended = pod_of("b", "02", "10.0.0.2", 2);
    size_t counts[KVB_POD_STATE_COUNT];

    (void)state;
    (void)put(&pods, &pod);
    (void)put(&pods, &ended);
    assert_int_equal(kvb_pods_drop(&pods, source, &pod), KVB_POD_CHANGED);
    ended.state = KVB_POD_PHASE;
    assert_int_equal(kvb_pods_drop(&pods, source, &ended), KVB_POD_CHANGED);
    assert_ok(kvb_pods_settle(&pods));
    kvb_pods_count(&pods, counts);
    assert_int_equal(counts[KVB_POD_RELABELLED], 1);
    assert_int_equal(pods.count, 1);
    assert_int_equal(put(&pods, &pod), KVB_POD_CHANGED); /* the pod matches again */
    assert_int_equal(verdict_of(&pods, "01"), KVB_POD_TAKEN);
}

static void above_the_ceiling_pods_are_refused_and_counted(void **state)
{
    KVB_OWN(kvb_pods_done) struct kvb_pods pods = { 0 };
    enum kvb_pod_change change = KVB_POD_SAME;
    char text[16];

    (void)state;
    kvb_pods_begin_list(&pods, source);
    for (uint32_t i = 0; i < kvb_max_workers + 3; i++) {
        (void)snprintf(text, sizeof text, "%05u", i);
        const struct kvb_pod pod = pod_of(text, text, text, i);
        const kvb_status status = kvb_pods_put(&pods, source, &pod, &change);
        assert_int_equal(status, i < kvb_max_workers ? KVB_OK : KVB_TOO_LARGE);
    }
    (void)kvb_pods_end_list(&pods, source);
    for (int i = 0; i < 5; i++) { /* five events of one pod count as one pod */
        const struct kvb_pod again = pod_of("again", "again", "again", 9);
        assert_int_equal(kvb_pods_put(&pods, source, &again, &change), KVB_TOO_LARGE);
    }
    assert_int_equal(kvb_pods_beyond(&pods), 3);
    assert_ok(kvb_pods_settle(&pods));
    const struct kvb_pod leaves = *pods.pods[17];
    const struct kvb_pod comes = pod_of("new", "99", "new", 99999);
    assert_int_equal(kvb_pods_drop(&pods, source, &leaves), KVB_POD_CHANGED);
    assert_int_equal(pods.count, kvb_max_workers); /* a relabelled pod makes room for another */
    assert_ok(kvb_pods_put(&pods, source, &comes, &change));
    assert_ok(kvb_pods_settle(&pods));
    assert_int_equal(verdict_of(&pods, "99"), KVB_POD_TAKEN);
}

static bool collide(const struct kvb_pod *one, const struct kvb_pod *other)
{
    const bool is_same_address = strcmp(one->ip, other->ip) == 0 &&
                                 one->events_port < other->events_port + other->ranks &&
                                 other->events_port < one->events_port + one->ranks;

    return one != other && other->state == KVB_POD_TAKEN &&
           (one->id == other->id || is_same_address);
}

static void check_verdict(const struct kvb_pods *pods, const struct kvb_pod *pod)
{
    bool has_rival = false;

    for (size_t i = 0; i < pods->count; i++) {
        if (collide(pod, pods->pods[i])) {
            has_rival = true;
            assert_false(pod->verdict == KVB_POD_TAKEN && pods->pods[i]->verdict == KVB_POD_TAKEN);
        }
    }
    assert_true(has_rival || pod->state != KVB_POD_TAKEN || pod->verdict == KVB_POD_TAKEN);
}

/* Whatever is put and dropped, pods that are taken have unique ids and addresses, and each that is
 * not taken conflicts with another one. */
static void taken_pods_never_collide(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 300; seed++) {
        KVB_OWN(kvb_pods_done) struct kvb_pods pods = { 0 };
        uint64_t random = seed;
        for (int i = 0; i < 60; i++) {
            char name[8];
            char uid[8];
            char ip[8];
            (void)snprintf(name, sizeof name, "%u", (unsigned)kvb_random_below(&random, 12));
            (void)snprintf(uid, sizeof uid, "%02u", (unsigned)kvb_random_below(&random, 60));
            (void)snprintf(ip, sizeof ip, "%u", (unsigned)kvb_random_below(&random, 6));
            struct kvb_pod pod = pod_of(name, uid, ip, kvb_random_below(&random, 6));
            pod.ranks = 1 + (uint32_t)kvb_random_below(&random, 3);
            pod.events_port += (uint32_t)kvb_random_below(&random, 4);
            if (kvb_random_chance(&random, 0.2)) {
                (void)kvb_pods_drop(&pods, source, &pod);
            } else {
                (void)put(&pods, &pod);
            }
        }
        assert_ok(kvb_pods_settle(&pods));
        for (size_t at = 0; at < pods.count; at++) {
            check_verdict(&pods, pods.pods[at]);
        }
    }
}

static void without_memory_nothing_is_put_or_settled(void **state)
{
    KVB_OWN(kvb_pods_done) struct kvb_pods pods = { 0 };
    const struct kvb_pod pod = pod_of("a", "01", "10.0.0.1", 1);
    enum kvb_pod_change change = KVB_POD_SAME;

    (void)state;
    for (long n = 0; n < 2; n++) {
        fail_alloc_after(n);
        const kvb_status status = kvb_pods_put(&pods, source, &pod, &change);
        fail_alloc_after(-1);
        assert_int_equal(status, KVB_NO_MEMORY);
        assert_int_equal(pods.count, 0);
    }
    (void)put(&pods, &pod);
    fail_alloc_after(0);
    const kvb_status status = kvb_pods_settle(&pods);
    fail_alloc_after(-1);
    assert_int_equal(status, KVB_NO_MEMORY);
    assert_int_equal(verdict_of(&pods, "01"), KVB_POD_TAKEN);
}

SUITE(table)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_list_removes_what_it_no_longer_has),
        cmocka_unit_test(changes_of_facts_and_restarts_are_told_apart),
        cmocka_unit_test(the_same_name_with_another_uid_replaces_a_pod),
        cmocka_unit_test(of_two_pods_with_one_id_the_younger_is_refused_until_the_older_goes),
        cmocka_unit_test(of_two_pods_with_one_address_the_older_is_refused),
        cmocka_unit_test(a_pod_that_no_longer_matches_is_remembered_as_relabelled),
        cmocka_unit_test(above_the_ceiling_pods_are_refused_and_counted),
        cmocka_unit_test(taken_pods_never_collide),
        cmocka_unit_test(without_memory_nothing_is_put_or_settled),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
