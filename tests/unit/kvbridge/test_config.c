#include "config_text.h"
#include "core/hash.h"
#include "core/own.h"
#include "fail_alloc.h"
#include "kvbridge/config.h"
#include "kvbridge/dns_list.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define SAMPLE KVB_DATA "/../../etc/kvbridge.cfg"

static void the_sample_reads_without_error_and_has_every_key(void **state)
{
    (void)state;
    struct kvb_conf_errors errors = { 0 };
    struct kvb_bridge_config config = { 0 };

    const kvb_status status = kvb_bridge_config_read(SAMPLE, &config, &errors);
    kvb_conf_errors_print(&errors, stderr);
    assert_ok(status);
    assert_int_equal(config.workers.count, 2);
    assert_int_equal(config.workers.items[0].spec->ranks, 2);
    assert_true(config.workers.items[1].spec->id == UINT64_C(9007199254740993));
    /* Whoever copies it has it found. */
    assert_int_equal(config.workers.items[0].spec->speculative_drop, KVB_DROP_DETECT);
    assert_int_equal(config.defaults.spec->speculative_drop, KVB_DROP_DETECT);
    kvb_bridge_config_done(&config);
    assert_sample_has_every_key("kvbridge.cfg", kvb_bridge_config_keys());
}

static void missing_keys_have_the_documented_defaults(void **state)
{
    (void)state;
    struct kvb_bridge_config config =
        read_good(PUBLISH "workers = (" WORKER("5", "events = \"tcp://h:1\";") ");");

    assert_string_equal(config.nats.url, "nats://127.0.0.1:4222");
    assert_string_equal(config.publish.name_space, "n");
    assert_int_equal(config.publish.formats, 1U << KVB_FORMAT_JSON);
    assert_int_equal(config.workers.items[0].spec->hashes, KVB_HASHES_CANONICAL);
    assert_int_equal(config.publish.tiers, KVB_PUBLISH_DEVICE);
    assert_false(config.workers.items[0].spec->store);
    assert_int_equal(config.publish.copies, KVB_COPIES_INTERVAL);
    assert_int_equal(config.publish.reannounce, KVB_REANNOUNCE_AUTO);
    assert_int_equal(config.publish.refresh_s, 60);
    assert_true(kvb_bridge_config_refreshes(&config));
    assert_int_equal(config.publish.down_clear_ms, 5000);
    assert_int_equal(config.publish.load_period_ms, 100);
    assert_int_equal(config.publish.heartbeat_ms, 1000);
    assert_string_equal(config.http, "127.0.0.1:9401");
    assert_int_equal(config.log.level, KVB_LOG_INFO);
    assert_int_equal(config.log.format, KVB_LOG_TEXT);
    assert_int_equal(config.workers.count, 1);
    assert_int_equal(config.workers.items[0].spec->id, 5);
    assert_string_equal(config.workers.items[0].spec->events, "tcp://h:1");
    assert_string_equal(config.workers.items[0].spec->replay, "");
    assert_string_equal(config.workers.items[0].spec->load.zmq, "");
    assert_string_equal(config.workers.items[0].spec->load.prometheus, "");
    assert_string_equal(config.workers.items[0].spec->load.coordinator, "");
    assert_int_equal(config.workers.items[0].spec->load.scrape_ms, 1000);
    assert_int_equal(config.workers.items[0].spec->ranks, 1);
    assert_false(config.workers.items[0].spec->bind);
    assert_int_equal(config.workers.items[0].spec->speculative_drop, KVB_DROP_DETECT);
    kvb_bridge_config_done(&config);
    kvb_bridge_config_done(&config); /* {0} as the initial value is enough */
}

static void republishing_is_off_unless_an_address_is_given(void **state)
{
    (void)state;
    struct kvb_bridge_config config =
        read_good(PUBLISH "workers = (" WORKER("5", "events = \"tcp://h:1\";") ", " WORKER(
            "6", "events = \"tcp://h:2\"; ranks = 2; "
                 "republish = { events = "
                 "\"tcp://127.0.0.1:5657\"; };") ");");

    assert_false(kvb_worker_is_republished(config.workers.items[0].spec));
    assert_true(kvb_worker_is_republished(config.workers.items[1].spec));
    assert_int_equal(kvb_republished_ranks(&config), 2);
    assert_int_equal(config.workers.items[1].spec->republish.style, KVB_REPUBLISH_VLLM);
    kvb_bridge_config_done(&config);
}

static void mistakes_in_republish_are_named(void **state)
{
    (void)state;
    assert_wrong(
        PUBLISH "workers = (" WORKER(
            "1", "events = \"tcp://h:1\";\n"
                 "republish = { replay = \"tcp://127.0.0.1:5\"; };") ");",
        "3: workers[0].republish.events: is missing: replay alone republishes nothing");
    assert_wrong(
        PUBLISH "workers = (" WORKER(
            "1", "events = \"tcp://h:1\"; store = true;\n"
                 "republish = { events = \"tcp://127.0.0.1:5\"; };") ");",
        "3: workers[0].republish.events: leave it out: a store's events have no tokens");
    assert_wrong(
        PUBLISH "workers = (" WORKER(
            "1", "events = \"tcp://h:1\";\n"
                 "republish = { events = \"inproc://x\"; };") ");",
        "3: workers[0].republish.events: inproc:// reaches no other process");
    assert_wrong(
        PUBLISH "workers = (" WORKER(
            "1", "events = \"tcp://127.0.0.1:5657\";\n"
                 "republish = { events = \"tcp://127.0.0.1:5657\"; };") ");",
        "3: workers[0].republish.events: its ports 5657 .. 5657 are also those of");
    static const char *const names[] = { "localhost", "router-0.routers.svc" };
    for (size_t i = 0; i < KVB_COUNT_OF(names); i++) {
        char text[512];
        char says[128];
        (void)snprintf(
            text, sizeof text,
            PUBLISH "workers = (" WORKER(
                "1", "events = \"tcp://h:1\";\n"
                     "republish = { events = \"tcp://127.0.0.1:1\"; replay = "
                     "\"tcp://%s:5657\"; };") ");",
            names[i]);
        (void)snprintf(
            says, sizeof says, "3: workers[0].republish.replay: %s is a name: a socket listens",
            names[i]);
        assert_wrong(text, says);
    }
}

static size_t count_warnings_of_republish(const char *address)
{
    struct config_file file;
    struct kvb_conf_errors errors = { 0 };
    struct kvb_bridge_config config = { 0 };
    char text[1024];
    size_t found = 0;

    (void)snprintf(
        text, sizeof text,
        PUBLISH
        "workers = (" WORKER("1", "events = \"tcp://h:1\"; republish = { events = \"%s\"; };") ");",
        address);
    config_file_write(&file, text, strlen(text));
    assert_ok(kvb_bridge_config_read(file.path, &config, &errors));
    for (size_t i = 0; i < errors.warning_count; i++) {
        found += strstr(errors.warnings[i].text, "republish.events") != NULL &&
                 strstr(errors.warnings[i].text, "token ids of prompts leave this host") != NULL;
    }
    kvb_bridge_config_done(&config);
    config_file_remove(&file);
    return found;
}

static void republishing_beyond_this_host_is_a_warning(void **state)
{
    (void)state;
    static const char *const open[] = { "tcp://*:5657", "tcp://0.0.0.0:5657", "tcp://10.0.0.7:5657",
                                        "tcp://[::]:5657" };
    static const char *const closed[] = { "tcp://127.0.0.1:5657", "tcp://127.9.9.9:5657",
                                          "tcp://[::1]:5657", "ipc:///run/kv" };

    for (size_t i = 0; i < KVB_COUNT_OF(open); i++) {
        assert_int_equal(count_warnings_of_republish(open[i]), 1);
    }
    for (size_t i = 0; i < KVB_COUNT_OF(closed); i++) {
        assert_int_equal(count_warnings_of_republish(closed[i]), 0);
    }
}

static void a_key_that_is_gone_is_named_with_what_serves_instead(void **state)
{
    static const char text[] =
        "publish = { namespace = \"n\"; component = \"c\"; standby = true; clear = \"event\"; };\n"
        "workers = ({ model = \"m\"; block_size = 16; events = \"tcp://h:1\"; curve = { };\n"
        "             republish = { curve = { }; form = \"map\"; }; });\n"
        "dns = { name = \"h\"; curve = { }; port = 1; };\n"
        "register = { networks = (); };\n"
        "discover = { networks = (); };\n"
        "kubernetes = { api = \"https://h\"; model = \"m\"; tokenize = true; discover = true; };\n"
        "defaults = { model = \"m\"; block_size = 16; };\n";

    (void)state;
    assert_wrong(
        text, "1: publish.standby: this key is gone", "1: publish.clear: this key is gone",
        "4: dns.curve: this key is gone: no engine uses CURVE; keep the sockets on loopback",
        "4: dns.port: this key is gone: defaults.events_port serves every source of workers",
        "5: register.networks: this key is gone: link-local addresses and metadata services",
        "6: discover: this key is gone",
        "7: kubernetes.api: this key is gone: a kubeconfig says it (kubernetes.kubeconfig)",
        "7: kubernetes.model: this key is gone: defaults.model serves every source of workers",
        "7: kubernetes.tokenize: this key is gone: defaults.tokenize = \"address\" serves",
        "7: kubernetes.discover: this key is gone: defaults.discover = \"address\" serves",
        "2: workers[0].curve: this key is gone", "3: workers[0].republish.curve: this key is gone",
        "3: workers[0].republish.form: this key is gone: republish.style says it");
}

/* A pool whose events contain no tokens, beside engines whose events do. */
static void hashes_may_differ_by_worker(void **state)
{
    (void)state;
    struct kvb_bridge_config config =
        read_good(PUBLISH "defaults = { hashes = \"engine\"; };\n"
                          "workers = (" WORKER("1", "events = \"tcp://h:1\";") "," WORKER(
                              "2", "events = \"tcp://h:2\"; hashes = \"canonical\";") ");");

    assert_int_equal(config.workers.items[0].spec->hashes, KVB_HASHES_ENGINE);
    assert_int_equal(config.workers.items[1].spec->hashes, KVB_HASHES_CANONICAL);
    kvb_bridge_config_done(&config);
}

static void role_and_address_may_be_keys_or_labels(void **state)
{
    (void)state;
    struct kvb_bridge_config config =
        read_good("publish = { namespace = \"n\"; component = \"c\"; labels = ( \"zone\", \"b/c\" ); };\n"
                  "workers = ( " WORKER("1", "events = \"tcp://h:1\"; role = \"both\";"
                                             "address = \"http://h:8000\";") ",\n"
                  WORKER("2", "events = \"tcp://h:2\"; labels = { role = \"decode\";"
                              "address = \"h:8001\"; };") ");");

    assert_int_equal(config.workers.items[0].spec->facts.role, KVB_ROLE_BOTH);
    assert_string_equal(config.workers.items[0].spec->facts.address, "http://h:8000");
    assert_int_equal(config.workers.items[1].spec->facts.role, KVB_ROLE_DECODE);
    assert_string_equal(config.workers.items[1].spec->facts.address, "h:8001");
    assert_int_equal(config.workers.items[1].spec->facts.ready, KVB_READY_UNKNOWN);
    assert_int_equal(config.publish.labels.count, 2);
    assert_string_equal(config.publish.labels.names[1], "b/c");
    kvb_bridge_config_done(&config);
}

static void a_worker_says_one_role_and_one_address(void **state)
{
    (void)state;
    assert_wrong(
        PUBLISH "workers = ( " WORKER(
            "1",
            "events = \"tcp://h:1\"; role = \"prefill\";\n"
            "labels = { role = \"decode\"; };") ",\n" WORKER("2", "events = \"tcp://h:2\"; address = \"a\"; labels = { address = \"b\"; };") ",\n" WORKER("3", "events = \"tcp://h:3\"; role = \"router\"; address = \"\\xff\"; tokenize = \"h:1\";") ");",
        "5: workers[2].role: expected \"\" or \"prefill\" or \"decode\" or \"both\"",
        "3: workers[0].labels: role: differs from labels.role; give one of them",
        "4: workers[1].labels: address: differs from labels.address; give one of them",
        "5: workers[2].address: is not UTF-8: save the file as UTF-8",
        "5: workers[2].tokenize: expected http://host:port or https://host:port");
    assert_wrong(
        "publish = { namespace = \"n\"; component = \"c\"; labels = ( \"a b\" ); };\n"
        "workers = ( " WORKER("1", "events = \"tcp://h:1\";") ");",
        "1: publish.labels: entry 0: the name of a label has 1 to 63 bytes");
    assert_wrong(
        "publish = { namespace = \"n\"; component = \"c\"; labels = \"zone\"; };\n"
        "workers = ( " WORKER("1", "events = \"tcp://h:1\";") ");",
        "1: publish.labels: expected a list of strings ( \"a\", \"b\" )");
    assert_wrong(
        "publish = { namespace = \"n\"; component = \"c\"; labels = [ 1 ]; };\n"
        "workers = ( " WORKER("1", "events = \"tcp://h:1\";") ");",
        "1: publish.labels: entry 0: expected a string in quotes");
}

static void keys_without_a_default_are_required(void **state)
{
    (void)state;
    assert_wrong(
        "", "1: publish.namespace: is missing", "1: publish.component: is missing",
        "1: workers: is empty: add a group, or set workers_file, kubernetes, dns.name, or "
        "register.token_file");
    assert_wrong(
        PUBLISH "workers = (\n{} );", "3: workers[0].model: is missing",
        "3: workers[0].block_size: is missing", "3: workers[0].events: is missing");
    assert_wrong(PUBLISH "workers = ();", "2: workers: is empty");
}

/* ---- workers_file ---------------------------------------------------------------------------- */

/* A configuration with two workers, the second of them in a workers_file. */
static kvb_status read_two_files(
    const char *first, const char *second, struct kvb_bridge_config *out_config,
    struct kvb_conf_errors *errors, struct config_file *out_second)
{
    struct config_file file;
    char text[1024];

    config_file_write(out_second, second, strlen(second));
    (void)snprintf(
        text, sizeof text, PUBLISH "workers_file = \"%s\";\n%s", out_second->path, first);
    config_file_write(&file, text, strlen(text));
    const kvb_status status = kvb_bridge_config_read(file.path, out_config, errors);
    config_file_remove(&file);
    config_file_remove(out_second);
    return status;
}

static void assert_second_wrong(const char *first, const char *second_text, const char *expected)
{
    struct kvb_conf_errors errors = { 0 };
    struct config_file second;
    struct kvb_bridge_config config = { 0 };

    assert_int_equal(read_two_files(first, second_text, &config, &errors, &second), KVB_BAD_CONFIG);
    assert_errors(&second, &errors, (const char *const[]){ expected, NULL });
}

static void mistakes_in_a_workers_file_name_that_file_and_its_lines(void **state)
{
    (void)state;
    assert_second_wrong("", "\n", "1: workers: is missing: write workers = (); for an empty list");
    assert_second_wrong(
        "", "workers = ();\nhttp = \"off\";", "2: http: unknown key: --help lists the known ones");
    assert_second_wrong(
        "workers = (" WORKER("7", "events = \"tcp://a:1\";") ");",
        "workers = (\n" WORKER("8", "events = \"a\";") ");",
        "2: workers[0].events: expected tcp://host:port");
    assert_second_wrong(
        "workers = (" WORKER("7", "events = \"tcp://a:1\";") ");",
        "workers = (\n" WORKER("7", "events = \"tcp://a:2\";") ");",
        "2: workers[0].id: worker id 7 is used in line 3 of /tmp/");
    assert_second_wrong(
        "workers = (" WORKER("7", "events = \"tcp://a:1\";") ");",
        "workers = (\n" WORKER("8", "events = \"tcp://a:1\";") ");",
        "2: workers[0].events: its ports 1 .. 1 are also those of workers[0].events in line 3 of "
        "/tmp/");
    assert_second_wrong("", "workers = (", "1: syntax error");
}

/* ---- dns ------------------------------------------------------------------------------------- */

static void mistakes_in_dns_are_named(void **state)
{
    (void)state;
    assert_wrong(
        PUBLISH "dns = {\n name = \"vllm\"; srv = \"_a._tcp.vllm\"; };",
        "3: dns.srv: this key is gone: dns.name with an A or AAAA record for each engine",
        "1: defaults.model: is missing", "1: defaults.block_size: is missing");
    assert_wrong(
        PUBLISH "dns = { name = \"v\"; };\n"
                "defaults = { model = \"m\"; block_size = 16;\n events_port = 65535; ranks = 2;\n"
                " tokenize = \"address\"; };",
        "5: defaults.tokenize: the engines behind dns.name have an address only with",
        "4: defaults.ranks: the port of the last rank is beyond 65535");
}

/* ---- defaults -------------------------------------------------------------------------------- */

static void workers_have_the_defaults_that_they_do_not_replace(void **state)
{
    (void)state;
    KVB_OWN(kvb_bridge_config_done)
    struct kvb_bridge_config config = read_good(
        PUBLISH "defaults = { model = \"m\"; block_size = 32; salts = false; ranks = 2;\n"
                " tokenize = \"address\"; load = { scrape_ms = 500; }; };\n"
                "workers = ( { id = 1; events = \"tcp://h:1\"; address = \"http://h:8000\"; },\n"
                " { id = 2; events = \"tcp://h:9\"; model = \"n\"; ranks = 1; salts = true;\n"
                "   address = \"http://h:8001\"; tokenize = \"\"; },\n"
                " { id = 3; discover = \"address\"; address = \"http://h:8002\"; } );");

    assert_string_equal(config.workers.items[0].spec->model, "m");
    assert_int_equal(config.workers.items[0].spec->block_size, 32);
    assert_int_equal(config.workers.items[0].spec->ranks, 2);
    assert_false(config.workers.items[0].spec->has_salts);
    assert_string_equal(config.workers.items[0].spec->facts.tokenize, "http://h:8000");
    assert_int_equal(config.workers.items[0].spec->load.scrape_ms, 500);
    assert_string_equal(config.workers.items[1].spec->model, "n");
    assert_int_equal(config.workers.items[1].spec->ranks, 1);
    assert_true(config.workers.items[1].spec->has_salts);
    assert_string_equal(config.workers.items[1].spec->facts.tokenize, "");
    assert_string_equal(config.workers.items[2].spec->discover, "http://h:8002");
}

static void mistakes_in_defaults_are_named(void **state)
{
    (void)state;
    assert_wrong(
        PUBLISH "defaults = { id = 7; discover = \"http://h\";\n tokenize = \"h\"; };\n"
                "workers = ( " WORKER("1", "discover = \"address\";") " );",
        "2: defaults.id: has no default: each group gives its own",
        "4: workers[0].discover: is \"address\", and this worker has no `address`",
        "2: defaults.discover: expected \"address\"",
        "3: defaults.tokenize: expected \"address\", or a URL for all workers");
    assert_wrong(
        PUBLISH "workers = ( " WORKER("1", "events = \"tcp://h:1\"; events_port = 2;") " );",
        "2: workers[0].events_port: is a default alone: move it to `defaults`");
}

#define UNNAMED(more) "{ model = \"m\"; block_size = 16; " more "}"

static uint64_t made_id(const char *worker)
{
    char text[1024];

    (void)snprintf(text, sizeof text, "%sworkers = (%s);", PUBLISH, worker);
    struct kvb_bridge_config config = read_good(text);
    const uint64_t id = config.workers.items[0].spec->id;
    assert_true(config.workers.items[0].spec->is_id_made);
    kvb_bridge_config_done(&config);
    return id;
}

static void a_worker_without_an_id_gets_one_from_its_address(void **state)
{
    (void)state;
    const uint64_t id = made_id(UNNAMED("events = \"tcp://10.0.0.7:5557\";"));

    /* XXH3-64 of " tcp://10.0.0.7:5557", below 2^53. The value must never change. */
    assert_true(id == UINT64_C(6177855544601522));
    assert_true(
        made_id(UNNAMED("lora = \"x\"; events = \"tcp://10.0.0.7:5557\"; replay = "
                        "\"tcp://10.0.0.7:6557\";")) == id);
    assert_true(made_id(UNNAMED("events = \"tcp://10.0.0.7:5558\";")) != id);
    assert_true(
        made_id(UNNAMED("events = \"tcp://10.0.0.7:5556\"; first_rank = 1;")) ==
        id); /* port 5557 */
}

static void loopback_addresses_give_another_id_on_another_host(void **state)
{
    struct kvb_worker_spec worker;
    char host[64] = "";
    char text[128];

    (void)state;
    kvb_worker_spec_init(&worker);
    worker.events = "tcp://127.0.0.1:5557";
    assert_int_equal(gethostname(host, sizeof host - 1), 0);
    const int len = snprintf(text, sizeof text, "%s tcp://127.0.0.1:5557", host);
    const uint64_t hash = kvb_hash64((kvb_span){ (const uint8_t *)text, (size_t)len }, 0);
    assert_true(kvb_worker_id_of_address(&worker) == (hash & ((UINT64_C(1) << 53) - 1)));
}

static void a_derived_id_that_is_used_already_is_an_error(void **state)
{
    (void)state;
    assert_wrong(
        PUBLISH "workers = (\n" UNNAMED("events = \"tcp://10.0.0.7:5557\";") ",\n" WORKER(
            "6177855544601522L", "events = \"tcp://h:2\";") ");",
        "4: workers[1].id: worker id 6177855544601522 is used in line 3 already");
}

static void load_sources_are_addresses(void **state)
{
    (void)state;
    assert_wrong(
        PUBLISH "workers = (\n"
                "{ id = 1; model = \"m\"; block_size = 16; events = \"tcp://h:1\";\n"
                "  load = { prometheus = \"h:8000/metrics\";\n"
                "  coordinator = \"http://h:1\";\n"
                "  scrape_ms = 10; }; },\n"
                "{ id = 2; model = \"m\"; block_size = 16; events = \"tcp://h:2\";\n"
                "  load = { prometheus = \"http://h:8000/metrics\";\n"
                "  coordinator = \"tcp://h:1\"; }; } );",
        "6: workers[0].load.scrape_ms: 10 is out of range: give 50 .. 60000",
        "4: workers[0].load.prometheus: expected http://host:port/path",
        "5: workers[0].load.coordinator: expected tcp://host:port",
        "9: workers[1].load.coordinator: its ports 1 .. 1 are also those of workers[0].events");
}

/* One page and one coordinator serve the ranks of several workers. */
static void load_sources_may_be_shared(void **state)
{
    (void)state;
    const char *const load = "load = { prometheus = \"http://h:8000/metrics\"; scrape_ms = 50; "
                             "coordinator = \"tcp://h:9\"; };";
    char text[1024];

    (void)snprintf(
        text, sizeof text,
        PUBLISH "workers = (" WORKER("1", "events = \"tcp://h:1\"; %s") "," WORKER(
            "2", "events = \"tcp://h:1\"; first_rank = 1; %s") ");",
        load, load);
    struct kvb_bridge_config config = read_good(text);
    assert_string_equal(config.workers.items[1].spec->load.coordinator, "tcp://h:9");
    assert_string_equal(config.workers.items[1].spec->load.prometheus, "http://h:8000/metrics");
    assert_int_equal(config.workers.items[1].spec->load.scrape_ms, 50);
    kvb_bridge_config_done(&config);
}

static void worker_ids_go_up_to_the_maximum_of_routers(void **state)
{
    (void)state;
    struct kvb_bridge_config config = read_good(
        PUBLISH "workers = (" WORKER("9223372036854775807L", "events = \"tcp://h:1\";") "," WORKER(
            "\"9223372036854775806\"",
            "events = \"tcp://h:2\";") "," WORKER("0", "events = \"tcp://h:3\";") ");");

    assert_true(config.workers.items[0].spec->id == INT64_MAX);
    assert_true(config.workers.items[1].spec->id == INT64_MAX - 1);
    assert_int_equal(config.workers.items[2].spec->id, 0);
    kvb_bridge_config_done(&config);
    assert_wrong(
        PUBLISH "workers = (\n" WORKER("\"9223372036854775808\"", "events = \"tcp://h:1\";") ");",
        "3: workers[0].id: 9223372036854775808 is out of range");
}

static void each_rank_may_have_an_id_of_its_own(void **state)
{
    (void)state;
    struct kvb_bridge_config config = read_good(
        PUBLISH "workers = ({ ids = (7, \"9223372036854775807\"); model = \"m\"; block_size = 16;"
                "events = \"tcp://h:1\"; ranks = 2; first_rank = 3; }, " WORKER(
                    "8", "events = \"tcp://h:9\";") ");");

    assert_true(kvb_worker_id_of_rank(config.workers.items[0].spec, 0) == 7);
    assert_true(kvb_worker_id_of_rank(config.workers.items[0].spec, 1) == INT64_MAX);
    assert_true(kvb_worker_id_of_rank(config.workers.items[1].spec, 0) == 8);
    kvb_bridge_config_done(&config);
}

#define RANKS(ids) "{ " ids " model = \"m\"; block_size = 16; ranks = 2; events = \"tcp://h:1\"; }"

static void ids_need_one_unique_id_for_each_rank(void **state)
{
    (void)state;
    assert_wrong(
        PUBLISH "workers = (\n" RANKS("ids = (7, 8, 9);") ");",
        "3: workers[0].ids: has 3 ids for 2 ranks: give one for each");
    assert_wrong(
        PUBLISH "workers = (\n" RANKS("ids = (7,\n7);") ");",
        "4: workers[0].ids[1]: worker id 7 is used in line 3 already");
    assert_wrong(
        PUBLISH "workers = (\n" RANKS("ids = (7, 8); id = 9;") ");",
        "3: workers[0].id: leave it out: `ids` replaces it");
    assert_wrong(
        PUBLISH "workers = (\n" RANKS("ids = (7, -1);") ");",
        "3: workers[0].ids: -1 is out of range");
    assert_wrong(
        PUBLISH "workers = (\n" RANKS("ids = 7;") ");",
        "3: workers[0].ids: expected numbers ( 1, 2 )");
}

/* An engine's own endpoint, copied to its reader, and what no process can reach. */
static void an_endpoint_that_nothing_can_connect_to_is_refused(void **state)
{
    static const struct {
        const char *keys;
        const char *error;
    } rows[] = {
        { "events = \"tcp://*:5557\";",
          "3: workers[0].events: * is where an engine listens, and a bridge cannot connect to it: "
          "write the engine's host instead of *, or set bind = true" },
        { "events = \"tcp://h:5557\"; replay = \"tcp://*:6557\";",
          "3: workers[0].replay: * is where an engine listens" },
        { "events = \"tcp://*:5557\"; bind = true; replay = \"tcp://*:6557\";",
          "3: workers[0].replay: * is where an engine listens" },
        { "events = \"tcp://h:5557\"; load = { zmq = \"tcp://*:7557\"; };",
          "3: workers[0].load.zmq: * is where an engine listens" },
        { "events = \"inproc://kv\";", "3: workers[0].events: inproc:// reaches no other process" },
        { "events = \"tcp://::1:5557\";",
          "3: workers[0].events: an address of IPv6 needs brackets: tcp://[::1]:5557" },
        { "events = \"tcp://h:5557\"; replay = \"tcp://fd00::7:6557\";",
          "3: workers[0].replay: an address of IPv6 needs brackets: tcp://[fd00::7]:6557" },
        { "events = \"tcp://[::1:5557\";", "3: workers[0].events: in brackets: expected" },
        { "events = \"tcp://[h]:5557\";", "3: workers[0].events: in brackets: expected" },
    };

    (void)state;
    for (size_t i = 0; i < KVB_COUNT_OF(rows); i++) {
        char text[600];
        (void)snprintf(
            text, sizeof text,
            PUBLISH "workers = (\n{ id = 1; model = \"m\"; block_size = 16; %s });", rows[i].keys);
        assert_wrong(text, rows[i].error);
    }
    struct kvb_bridge_config config = read_good(
        PUBLISH "workers = (" WORKER("1", "events = \"tcp://*:5557\"; bind = true;") "," WORKER(
            "2", "events = \"tcp://[fe80::1%eth0]:5557\"; replay = \"tcp://[::1]:6557\";") ");");
    kvb_bridge_config_done(&config);
}

/* The bridge looks a name up before it listens; which address that is, --check cannot know. */
static void a_name_to_listen_at_is_a_warning(void **state)
{
    static const struct {
        const char *keys;
        bool is_warned;
    } rows[] = {
        { "events = \"tcp://myhost:5557\"; bind = true;", true },
        { "events = \"tcp://localhost:5557\"; bind = true;", true },
        { "events = \"tcp://myhost:5557\";", false },
        { "events = \"tcp://*:5557\"; bind = true;", false },
        { "events = \"tcp://lo:5557\"; bind = true;", false }, /* an interface */
        { "events = \"tcp://127.0.0.1:5557\"; bind = true;", false },
        { "events = \"tcp://[::1]:5557\"; bind = true;", false },
        { "events = \"ipc:///run/kv\"; bind = true;", false },
    };

    (void)state;
    for (size_t i = 0; i < KVB_COUNT_OF(rows); i++) {
        struct config_file file;
        struct kvb_bridge_config config = { 0 };
        struct kvb_conf_errors errors = { 0 };
        char text[600];
        (void)snprintf(
            text, sizeof text,
            PUBLISH "workers = (\n{ id = 1; model = \"m\"; block_size = 16; %s });", rows[i].keys);
        config_file_write(&file, text, strlen(text));
        assert_ok(kvb_bridge_config_read(file.path, &config, &errors));
        config_file_remove(&file);
        assert_int_equal(errors.count, 0);
        assert_int_equal(errors.warning_count, rows[i].is_warned);
        if (rows[i].is_warned) {
            assert_non_null(strstr(
                errors.warnings[0].text, "3: warning: workers[0].events: with bind = true, "));
        }
        kvb_bridge_config_done(&config);
    }
}

static void port_ranges_of_different_workers_must_not_overlap(void **state)
{
    (void)state;
    assert_wrong(
        PUBLISH "workers = (\n" WORKER("1", "events = \"tcp://localhost:5557\"; first_rank = 2;") ",\n" WORKER(
            "2",
            "events = \"tcp://127.0.0.1:5559\";") ",\n" WORKER("3", "events = \"tcp://h:1\"; load = { zmq = \"tcp://localhost:5559\"; };") ");",
        "4: workers[1].events: its ports 5559 .. 5559 are also those of workers[0].events in line "
        "3",
        "5: workers[2].load.zmq: its ports 5559 .. 5559 are also those of workers[0].events");
}

static void names_must_fit_into_a_subject(void **state)
{
    (void)state;
    static const char *const bad[] = { "a.b", "a b", "*", ">", "\xc3\xbc", "a/b" };

    for (size_t i = 0; i < KVB_COUNT_OF(bad); i++) {
        char text[256];
        (void)snprintf(
            text, sizeof text,
            "publish={namespace=\"%s\";component=\"%s\";};workers=(" WORKER(
                "1", "events=\"tcp://h:1\";") ");",
            bad[i], bad[i]);
        assert_wrong(text, "1: publish.namespace: \"", "1: publish.component: \"");
    }
}

static void http_is_an_address_with_a_port_or_off(void **state)
{
    (void)state;
    static const struct {
        const char *listen;
        bool is_good;
    } cases[] = {
        { "", true },
        { "127.0.0.1:0", true },
        { "[::1]:9401", true },
        { "127.255.255.254:65535", true },
        { ":9401", false },
        { "9401", false },
        { "localhost:1", false },
        { "127.0.0.1", false },
        { "127.0.0.1:65536", false },
        { "127.0.0.1:x", false },
        { "::1:9401", false },
        { "1.2.3.4:1:2", false },
        { "[1.2.3.4]:1", false },
        { "*:1", false },
    };

    for (size_t i = 0; i < KVB_COUNT_OF(cases); i++) {
        char text[256];
        (void)snprintf(
            text, sizeof text,
            PUBLISH "workers=(" WORKER("1", "events=\"tcp://h:1\";") ");http=\"%s\";",
            cases[i].listen);
        if (cases[i].is_good) {
            struct kvb_bridge_config config = read_good(text);
            assert_string_equal(config.http, cases[i].listen);
            kvb_bridge_config_done(&config);
        } else {
            assert_wrong(text, "2: http: expected address:port in numbers");
        }
    }
}

/* 1,024 equal workers: one line each, and the check takes no quadratic time. */
static void a_whole_list_of_clashes_is_bounded(void **state)
{
    (void)state;
    enum { workers = 1024 };
    char *text = NULL;
    size_t len = 0;
    struct config_file file;
    struct kvb_conf_errors errors = { 0 };
    struct kvb_bridge_config config = { 0 };
    FILE *out = open_memstream(&text, &len);

    (void)fprintf(out, PUBLISH "workers = (");
    for (int i = 0; i < workers; i++) {
        (void)fprintf(
            out, "%s" WORKER("%d", "events = \"tcp://h:1\"; ranks = 128;"), i ? "," : "", i);
    }
    (void)fprintf(out, ");");
    (void)fclose(out);
    config_file_write(&file, text, len);
    assert_int_equal(kvb_bridge_config_read(file.path, &config, &errors), KVB_BAD_CONFIG);
    assert_int_equal(errors.count, 1 + workers - 1); /* one rank more makes too many streams */
    assert_non_null(strstr(
        errors.texts[0].text, "workers: has 131072 ranks in all: one bridge reads at most 65536"));
    config_file_remove(&file);
    free(text);
}

static void survives_every_allocation_failing(void **state)
{
    (void)state;
    kvb_status status = KVB_NO_MEMORY;

    for (long n = 0; status == KVB_NO_MEMORY; n++) {
        struct kvb_conf_errors errors = { 0 };
        struct kvb_bridge_config config = { 0 };
        fail_alloc_after(n);
        status = kvb_bridge_config_read(SAMPLE, &config, &errors);
        fail_alloc_after(-1);
        assert_int_equal(errors.count, 0);
        kvb_bridge_config_done(&config);
        assert_true(n < 20);
    }
    assert_ok(status);
}

SUITE(config)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_sample_reads_without_error_and_has_every_key),
        cmocka_unit_test(missing_keys_have_the_documented_defaults),
        cmocka_unit_test(hashes_may_differ_by_worker),
        cmocka_unit_test(role_and_address_may_be_keys_or_labels),
        cmocka_unit_test(a_worker_says_one_role_and_one_address),
        cmocka_unit_test(keys_without_a_default_are_required),
        cmocka_unit_test(load_sources_may_be_shared),
        cmocka_unit_test(a_worker_without_an_id_gets_one_from_its_address),
        cmocka_unit_test(loopback_addresses_give_another_id_on_another_host),
        cmocka_unit_test(a_derived_id_that_is_used_already_is_an_error),
        cmocka_unit_test(worker_ids_go_up_to_the_maximum_of_routers),
        cmocka_unit_test(each_rank_may_have_an_id_of_its_own),
        cmocka_unit_test(ids_need_one_unique_id_for_each_rank),
        cmocka_unit_test(an_endpoint_that_nothing_can_connect_to_is_refused),
        cmocka_unit_test(a_name_to_listen_at_is_a_warning),
        cmocka_unit_test(port_ranges_of_different_workers_must_not_overlap),
        cmocka_unit_test(names_must_fit_into_a_subject),
        cmocka_unit_test(load_sources_are_addresses),
        cmocka_unit_test(http_is_an_address_with_a_port_or_off),
        cmocka_unit_test(a_whole_list_of_clashes_is_bounded),
        cmocka_unit_test(mistakes_in_a_workers_file_name_that_file_and_its_lines),
        cmocka_unit_test(mistakes_in_dns_are_named),
        cmocka_unit_test(workers_have_the_defaults_that_they_do_not_replace),
        cmocka_unit_test(mistakes_in_defaults_are_named),
        cmocka_unit_test(republishing_is_off_unless_an_address_is_given),
        cmocka_unit_test(mistakes_in_republish_are_named),
        cmocka_unit_test(republishing_beyond_this_host_is_a_warning),
        cmocka_unit_test(a_key_that_is_gone_is_named_with_what_serves_instead),
        cmocka_unit_test(survives_every_allocation_failing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
