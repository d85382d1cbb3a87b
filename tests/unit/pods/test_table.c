#include "kvb_test.h"

#include "core/limits.h"
#include "core/own.h"
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
        cmocka_unit_test(without_memory_nothing_is_put_or_settled),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
