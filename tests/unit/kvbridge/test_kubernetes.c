#include "kvb_test.h"

#include "config_file.h"
#include "core/own.h"
#include "kvbridge/kubernetes.h"

#include <stdio.h>
#include <string.h>

#define BEGIN "publish = { namespace = \"n\"; component = \"c\"; };\n"

/* The caller frees it. */
static struct kvb_bridge_config config_of(const char *defaults)
{
    struct config_file file;
    struct kvb_conf_errors errors = { 0 };
    struct kvb_bridge_config config = { 0 };
    char text[1024];

    (void)snprintf(text, sizeof text, BEGIN "kubernetes = { };\ndefaults = { %s };\n", defaults);
    config_file_write(&file, text, strlen(text));
    const kvb_status status = kvb_bridge_config_read(file.path, &config, &errors);
    kvb_conf_errors_print(&errors, stderr);
    assert_ok(status);
    config_file_remove(&file);
    return config;
}

static void assert_wrong(const char *keys, const char *sentence)
{
    struct config_file file;
    struct kvb_conf_errors errors = { 0 };
    struct kvb_bridge_config config = { 0 };
    char text[1024];

    (void)snprintf(text, sizeof text, BEGIN "kubernetes = { %s };\n", keys);
    config_file_write(&file, text, strlen(text));
    assert_int_equal(kvb_bridge_config_read(file.path, &config, &errors), KVB_BAD_CONFIG);
    config_file_remove(&file);
    assert_int_equal(errors.count, 1);
    if (!strstr(errors.texts[0].text, sentence)) {
        fail_msg("%s", errors.texts[0].text);
    }
}

static struct kvb_pod pod_at(const char *ip)
{
    struct kvb_pod pod = { .id = 7,
                           .events_port = 5557,
                           .replay_port = 6557,
                           .http_port = 8000,
                           .metrics_port = 8001,
                           .ranks = 2,
                           .facts = { .role = KVB_ROLE_DECODE } };

    (void)snprintf(pod.ip, sizeof pod.ip, "%s", ip);
    (void)snprintf(pod.uid, sizeof pod.uid, "u-1");
    (void)snprintf(pod.model, sizeof pod.model, "m");
    return pod;
}

/* Borrowed from the list, which gets the pod as its newest worker. */
static const struct kvb_worker_spec *worker_of(
    const struct kvb_bridge_config *config, const struct kvb_pod *pod, struct kvb_worker_list *list)
{
    assert_ok(kvb_kubernetes_add(&config->defaults, pod, list));
    return list->items[list->count - 1].spec;
}

static void a_pod_is_a_worker_with_its_addresses(void **state)
{
    KVB_OWN(kvb_bridge_config_done)
    struct kvb_bridge_config config = config_of("block_size = 32; topic = \"kv\";");
    KVB_OWN(kvb_worker_list_done) struct kvb_worker_list list = { 0 };
    struct kvb_pod pod = pod_at("10.0.0.7");

    (void)state;
    const struct kvb_worker_spec *worker = worker_of(&config, &pod, &list);
    assert_true(worker->id == 7 && worker->ranks == 2 && worker->block_size == 32);
    assert_string_equal(worker->events, "tcp://10.0.0.7:5557");
    assert_string_equal(worker->replay, "tcp://10.0.0.7:6557");
    assert_string_equal(worker->load.prometheus, "http://10.0.0.7:8001/metrics");
    assert_string_equal(worker->topic, "kv");
    assert_string_equal(worker->pod_uid, "u-1");
    assert_int_equal(worker->facts.role, KVB_ROLE_DECODE);
    assert_string_equal(list.items[0].parts.items[1]->events, "tcp://10.0.0.7:5558");
    pod = pod_at("fd00::7");
    pod.replay_port = 0;
    pod.metrics_port = 0;
    pod.block_size = 64;
    worker = worker_of(&config, &pod, &list);
    assert_string_equal(worker->events, "tcp://[fd00::7]:5557");
    assert_string_equal(worker->replay, "");
    assert_string_equal(worker->load.prometheus, "");
    assert_int_equal(worker->block_size, 64);
}

static void its_http_address_serves_for_texts_and_discovery(void **state)
{
    KVB_OWN(kvb_bridge_config_done)
    struct kvb_bridge_config config = config_of("tokenize = \"address\"; discover = \"address\";");
    KVB_OWN(kvb_bridge_config_done) struct kvb_bridge_config plain = config_of("");
    KVB_OWN(kvb_worker_list_done) struct kvb_worker_list list = { 0 };
    struct kvb_pod pod = pod_at("10.0.0.7");

    (void)state;
    (void)snprintf(pod.facts.address, sizeof pod.facts.address, "http://10.0.0.7:8000");
    const struct kvb_worker_spec *worker = worker_of(&config, &pod, &list);
    assert_string_equal(worker->facts.tokenize, "http://10.0.0.7:8000");
    assert_string_equal(worker->discover, "http://10.0.0.7:8000");
    assert_int_equal(list.items[0].parts.count, 0); /* until the engine has answered */
    worker = worker_of(&plain, &pod, &list);
    assert_string_equal(worker->facts.tokenize, "");
    assert_string_equal(worker->discover, "");
    assert_int_equal(worker->block_size, 16);
}

static void an_empty_group_is_enough(void **state)
{
    KVB_OWN(kvb_bridge_config_done) struct kvb_bridge_config config = config_of("");

    (void)state;
    assert_true(config.kubernetes.is_on);
    assert_true(config.kubernetes.rules.events_port == KVB_POD_PORT_OF_PRESET);
    assert_int_equal(config.kubernetes.rules.id_from, KVB_POD_ID_OF_NAME);
    assert_wrong("enabled = false;", "kubernetes.enabled: this key is gone: without the group");
}

SUITE(kubernetes)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_pod_is_a_worker_with_its_addresses),
        cmocka_unit_test(its_http_address_serves_for_texts_and_discovery),
        cmocka_unit_test(an_empty_group_is_enough),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
