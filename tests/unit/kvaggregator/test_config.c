#include "kvb_test.h"

#include "config_file.h"
#include "core/own.h"
#include "fail_alloc.h"
#include "kvaggregator/config.h"

#include <stdio.h>
#include <string.h>

#define SAMPLE KVB_DATA "/../../etc/kvaggregator.cfg"

static void read_bad(const char *text, const char *const expected[])
{
    struct config_file file;
    struct kvb_conf_errors errors = { 0 };
    struct kvb_aggregator_config config = { .forget_ms = 77 };

    config_file_write(&file, text, strlen(text));
    const kvb_status status = kvb_aggregator_config_read(file.path, &config, &errors);
    assert_errors(&file, &errors, expected);
    assert_int_equal(status, KVB_BAD_CONFIG);
    assert_int_equal(config.forget_ms, 77); /* stays as it was */
    config_file_remove(&file);
}

#define assert_wrong(text, ...) read_bad(text, (const char *const[]){ __VA_ARGS__, NULL })

/* The caller frees it. */
static struct kvb_aggregator_config read_good(const char *text)
{
    struct config_file file;
    struct kvb_conf_errors errors = { 0 };
    struct kvb_aggregator_config config = { .forget_ms = 0 };

    config_file_write(&file, text, strlen(text));
    const kvb_status status = kvb_aggregator_config_read(file.path, &config, &errors);
    assert_errors(&file, &errors, (const char *const[]){ NULL });
    assert_ok(status);
    config_file_remove(&file);
    return config;
}

/* The sample says that it shows the defaults. */
static void the_sample_is_the_defaults_and_has_every_key(void **state)
{
    (void)state;
    struct kvb_conf_errors errors = { 0 };
    struct kvb_aggregator_config sample;
    struct kvb_aggregator_config defaults = read_good("");

    memset(&sample, 0, sizeof sample);
    const kvb_status status = kvb_aggregator_config_read(SAMPLE, &sample, &errors);
    kvb_conf_errors_print(&errors, stderr);
    assert_ok(status);
    assert_string_equal(sample.subscribe.name_space, defaults.subscribe.name_space);
    assert_string_equal(sample.router.component, defaults.router.component);
    assert_true(sample.router.overlap_weight == defaults.router.overlap_weight);
    assert_memory_equal(&sample.load, &defaults.load, sizeof sample.load);
    assert_memory_equal(&sample.limits, &defaults.limits, sizeof sample.limits);
    assert_int_equal(sample.forget_ms, defaults.forget_ms);
    assert_string_equal(sample.http, defaults.http);
    kvb_aggregator_config_done(&sample);
    kvb_aggregator_config_done(&defaults);
    assert_sample_has_every_key("kvaggregator.cfg", kvb_aggregator_config_keys());
}

static void all_given_values_are_read(void **state)
{
    (void)state;
    struct kvb_aggregator_config config =
        read_good("nats = { url = \"nats://a:1,nats://b:2\"; };\n"
                  "subscribe = { namespace = \"n\"; component = \"c\";"
                  "  default = { model = \"m\"; block_size = 64; }; };\n"
                  "router = { namespace = \"r\"; overlap_weight = 2; temperature = 0.5;"
                  "  hit_rate_alias = true; queue_group = \"a.b-1\"; ready_exact = 0.9; };\n"
                  "load = { statistic = \"active_blocks\"; }; log = { level = \"debug\";"
                  "  format = \"json\"; }; http = \"\";");

    assert_string_equal(config.nats.url, "nats://a:1,nats://b:2");
    assert_string_equal(config.subscribe.fallback.model, "m");
    assert_int_equal(config.subscribe.fallback.block_size, 64);
    assert_string_equal(config.router.name_space, "r");
    assert_true(config.router.overlap_weight == 2.0);
    assert_true(config.router.temperature == 0.5);
    assert_true(config.router.hit_rate_alias);
    assert_string_equal(config.router.queue_group, "a.b-1");
    assert_true(config.router.ready_exact == 0.9);
    assert_int_equal(config.load.statistic, KVB_LOAD_ACTIVE_BLOCKS);
    assert_int_equal(config.log.level, KVB_LOG_DEBUG);
    assert_int_equal(config.log.format, KVB_LOG_JSON);
    assert_string_equal(config.http, "");
    kvb_aggregator_config_done(&config);
}

static void engines_are_sent_no_requests_unless_networks_are_listed(void **state)
{
    (void)state;
    struct kvb_aggregator_config config = read_good("");

    assert_int_equal(config.tokenize.networks.count, 0);
    assert_int_equal(config.tokenize.deadline_ms, 50);
    assert_int_equal(config.tokenize.cache_bytes, 64 << 20);
    kvb_aggregator_config_done(&config);
    config = read_good("tokenize = { networks = (\"10.0.0.0/8\", \"fd00::/8\"); };");
    assert_int_equal(config.tokenize.networks.count, 2);
    kvb_aggregator_config_done(&config);
    assert_wrong(
        "tokenize = { networks = (\"10.0.0.1/8\");\n deadline_ms = 0; };",
        "1: tokenize.networks: entry 0: \"10.0.0.1/8\" has bits beyond its prefix",
        "2: tokenize.deadline_ms: 0 is out of range");
}

static void policies_that_are_gone_and_their_keys_are_named(void **state)
{
    (void)state;
    assert_wrong(
        "router = { policy = \"p2c\";\n prefix_share = 0.5;\n load_std_factor = 1.0;\n"
        " weights = { prefix = 3.0; }; };",
        "2: router.prefix_share: this key is gone: only the policy prefix_threshold read it",
        "3: router.load_std_factor: this key is gone: only the policy prefix_threshold read it",
        "4: router.weights: this key is gone: only the policy weighted read it",
        "1: router.policy: \"p2c\" is gone: \"least_requests\" serves in its place");
}

/* A blank would end the name in the protocol; the others are probably mistakes. */
static void an_invalid_name_of_a_queue_group_is_refused(void **state)
{
    static const char *const bad[] = { "a b", "a\\tb", "*", "q.>", ".q", "q.", "a..b" };
    char text[64];

    (void)state;
    for (size_t i = 0; i < KVB_COUNT_OF(bad); i++) {
        (void)snprintf(text, sizeof text, "router = { queue_group = \"%s\"; };", bad[i]);
        assert_wrong(text, "1: router.queue_group: ");
    }
    assert_wrong(
        "router = { queue_group = \"a b\"; ready_exact = 1.1; };",
        "1: router.ready_exact: is out of range",
        "1: router.queue_group: \"a b\" cannot name a queue group: use letters");
    struct kvb_aggregator_config none = read_good("router = { queue_group = \"\"; };");
    assert_string_equal(none.router.queue_group, "");
    kvb_aggregator_config_done(&none);
}

static void all_errors_are_reported_at_once(void **state)
{
    (void)state;
    assert_wrong(
        "nats = { ca_file = \"/nowhere/ca.pem\"; };\n"
        "subscribe = { namespace = \"a.b\"; component = \">\"; };\n"
        "router = { namespace = \"*\"; policy = \"best\"; temperature = -1; };\n"
        "limits = { event_ring = 2000000; query_ring = 0; rings = 1; };\n"
        "http = \"9402\";\n"
        "workers = ();\n",
        "4: limits.rings: unknown key", "6: workers: unknown key",
        "3: router.policy: expected \"kv\"", "3: router.temperature: is out of range",
        "4: limits.event_ring: 2000000 is out of range: give 64 .. 1048576",
        "4: limits.query_ring: 0 is out of range", "1: nats.ca_file: cannot read /nowhere/ca.pem",
        "2: subscribe.namespace: \"a.b\" cannot stand in a subject",
        "2: subscribe.component: \">\" cannot", "3: router.namespace: \"*\" cannot",
        "5: http: expected address:port");
}

/* Unless the configuration says otherwise, only this host can ask which worker holds which blocks.
 */
static void grpc_listens_on_loopback_unless_configured_otherwise(void **state)
{
    static const char *const good[] = {
        "grpc = { listen = \"127.0.0.1:50051\"; };",
        "grpc = { listen = \"[::1]:0\"; model = \"m\"; };",
        "grpc = { listen = \"0.0.0.0:50051\"; insecure = true; };",
        "grpc = { listen = \"\"; };",
    };

    (void)state;
    for (size_t i = 0; i < KVB_COUNT_OF(good); i++) {
        struct kvb_aggregator_config config = read_good(good[i]);
        assert_string_equal(config.grpc.model, i == 1 ? "m" : "");
        kvb_aggregator_config_done(&config);
    }
    assert_wrong(
        "grpc = { listen = \"0.0.0.0:50051\"; };",
        "1: grpc.listen: 0.0.0.0:50051 is not loopback: set grpc.insecure = true where");
    assert_wrong(
        "grpc = { listen = \"[::]:50051\"; };\nhttp_security = { insecure = true; };",
        "1: grpc.listen: [::]:50051 is not loopback");
    assert_wrong(
        "grpc = { listen = \"localhost:50051\"; };", "1: grpc.listen: expected address:port");
    assert_wrong("grpc = { listen = \"50051\"; };", "1: grpc.listen: expected address:port");
    assert_wrong(
        "grpc = { listen = \"[::1]:0\";\n tls = { client_ca_file = \"ca.pem\"; }; };",
        "2: grpc.tls.client_ca_file: this key is gone: require a token");
    assert_wrong(
        "grpc = { listen = \"[::1]:0\";\n tls = { cert_file = \"a.pem\"; }; };",
        "2: grpc.tls.key_file: cert_file and key_file belong together");
}

static void a_default_model_and_its_block_size_belong_together(void **state)
{
    (void)state;
    assert_wrong(
        "subscribe = {\n default = { model = \"m\"; }; };",
        "2: subscribe.default.block_size: model and block_size belong together");
    assert_wrong(
        "subscribe = {\n default = { block_size = 16; }; };",
        "2: subscribe.default.model: model and block_size belong together");
}

static void a_load_is_forgotten_only_after_it_expires(void **state)
{
    (void)state;
    assert_wrong(
        "load = { expire_ms = 5000; };\nforget_ms = 4000;",
        "2: forget_ms: 4000 is below load.expire_ms (5000)");
}

static void the_losses_of_the_audit_are_shares(void **state)
{
    (void)state;
    assert_wrong(
        "audit = { honest_loss = 0.0; };", "1: audit.honest_loss: expected a share above 0");
    assert_wrong("audit = { lie = 0.0; };", "1: audit.lie: expected a share above 0");
    assert_wrong(
        "audit = { honest_loss = 0.5;\n lie = 0.5; };", "2: audit.lie: expected a share above 0");
    assert_wrong(
        "audit = { false_alarm_requests = 1.0; };",
        "1: audit.false_alarm_requests: is out of range");
}

static void survives_every_allocation_failing(void **state)
{
    (void)state;
    kvb_status status = KVB_NO_MEMORY;

    for (long n = 0; status == KVB_NO_MEMORY; n++) {
        struct kvb_conf_errors errors = { 0 };
        struct kvb_aggregator_config config = { .forget_ms = 0 };
        fail_alloc_after(n);
        status = kvb_aggregator_config_read(SAMPLE, &config, &errors);
        fail_alloc_after(-1);
        assert_int_equal(errors.count, 0);
        kvb_aggregator_config_done(&config);
        assert_true(n < 20);
    }
    assert_ok(status);
}

SUITE(config)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_sample_is_the_defaults_and_has_every_key),
        cmocka_unit_test(all_given_values_are_read),
        cmocka_unit_test(policies_that_are_gone_and_their_keys_are_named),
        cmocka_unit_test(an_invalid_name_of_a_queue_group_is_refused),
        cmocka_unit_test(grpc_listens_on_loopback_unless_configured_otherwise),
        cmocka_unit_test(all_errors_are_reported_at_once),
        cmocka_unit_test(a_default_model_and_its_block_size_belong_together),
        cmocka_unit_test(a_load_is_forgotten_only_after_it_expires),
        cmocka_unit_test(engines_are_sent_no_requests_unless_networks_are_listed),
        cmocka_unit_test(the_losses_of_the_audit_are_shares),
        cmocka_unit_test(survives_every_allocation_failing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
