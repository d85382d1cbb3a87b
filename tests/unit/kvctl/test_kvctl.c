#include "bus/bus.h"
#include "core/own.h"
#include "process.h"

#include "kvb_test.h"

#include <stdio.h>
#include <string.h>

/* Runs kvctl as a program, against a real nats-server and answers that the test writes. */

enum { patience_ms = 15000, text_bytes = 16384, max_words = 16 };

/* ---- Running it ------------------------------------------------------------------------ */

struct run {
    int exit;
    char out[text_bytes];
    char err[text_bytes];
};

/* words ends with NULL; --nats is added only where a test gives it. */
static void kvctl(struct run *run, const char *url, const char *const words[])
{
    const char *argv[max_words + 8] = { "sh", "-c",
                                        "out=$1; shift; exec \"$@\" >\"$out.out\" 2>\"$out.err\"",
                                        "sh" };
    char folder[64];
    char base[96];
    char path[128];
    size_t n = 4;
    pid_t pid = 0;

    assert_ok(folder_make(folder));
    (void)snprintf(base, sizeof base, "%s/kvctl", folder);
    argv[n++] = base;
    argv[n++] = KVB_KVCTL;
    if (url) {
        argv[n++] = "--nats";
        argv[n++] = url;
    }
    while (*words && n < KVB_COUNT_OF(argv) - 1) {
        argv[n++] = *words++;
    }
    argv[n] = NULL;
    assert_ok(process_start(argv, NULL, &pid));
    assert_ok(process_end(pid, 0, patience_ms, &run->exit));
    (void)snprintf(path, sizeof path, "%s.out", base);
    assert_ok(file_read(path, run->out, sizeof run->out));
    (void)snprintf(path, sizeof path, "%s.err", base);
    assert_ok(file_read(path, run->err, sizeof run->err));
    folder_remove(folder);
}

#define WORDS(...) ((const char *const[]){ __VA_ARGS__, NULL })

static void assert_contains(const char *text, const char *part)
{
    if (!strstr(text, part)) {
        print_error("\"%s\" is not in:\n%s\n", part, text);
        fail();
    }
}

/* ---- An aggregator of canned answers ------------------------------------------------------ */

struct fake {
    struct kvb_bus *bus;
    struct kvb_bus_subscription *subscription;
    const char *answers[3]; /* sent one after the other; the last one is repeated */
    unsigned asked;
    char questions[3][256];
};

static void answer(void *context, const struct kvb_bus_message *message)
{
    struct fake *fake = context;
    const unsigned at = fake->asked < 2 && fake->answers[fake->asked] ? fake->asked : 0;
    const char *text = fake->answers[at];

    (void)snprintf(
        fake->questions[at], sizeof fake->questions[at], "%.*s", (int)message->payload.len,
        (const char *)message->payload.data);
    fake->asked++;
    assert_non_null(message->reply);
    assert_ok(kvb_bus_publish(
        fake->bus, message->reply, (kvb_span){ (const uint8_t *)text, strlen(text) }));
}

static bool is_up(void *context)
{
    return kvb_bus_is_connected(context);
}

static void start_fake(struct fake *fake, const char *url, const char *subject)
{
    const struct kvb_bus_options options = { .url = url, .name = "fake" };

    assert_ok(kvb_bus_open(&options, &fake->bus, NULL));
    assert_true(wait_until(is_up, fake->bus, patience_ms));
    assert_ok(kvb_bus_subscribe(fake->bus, subject, answer, fake, &fake->subscription));
    assert_ok(kvb_bus_flush(fake->bus, patience_ms));
}

static void stop_fake(struct fake *fake)
{
    kvb_bus_unsubscribe(fake->subscription);
    kvb_bus_close(fake->bus);
}

/* ---- Tests -------------------------------------------------------------------------------- */

static const char match_answer[] =
    "{\"block_size\":16,\"blocks\":3,\"workers\":[{\"worker_id\":18446744073709551615,\"dp_rank\":"
    "1,"
    "\"namespace\":\"dynamo\",\"component\":\"V\",\"state\":\"EXACT\",\"reason\":\"\",\"blocks\":2,"
    "\"percent\":66.6666667,\"tokens\":{\"device\":32,\"host\":0,\"disk\":0}},"
    "{\"worker_id\":7,\"dp_rank\":0,\"namespace\":\"dynamo\",\"component\":\"a\\u001b\\u009bb\","
    "\"state\":\"PARTIAL\",\"reason\":\"gone\",\"blocks\":1,\"percent\":33.3,"
    "\"tokens\":{\"device\":16,\"host\":16,\"disk\":0}}]}";

static void match_prints_an_aligned_table(void **state)
{
    const struct nats_server *server = *state;
    struct fake fake = { .answers = { match_answer } };
    struct run run;

    start_fake(&fake, server->url, "namespace.dynamo.component.Router.kv_match");
    kvctl(&run, server->url, WORDS("match", "--tokens", "1,2, 3", "--model", "m\"x"));
    stop_fake(&fake);
    assert_int_equal(run.exit, 0);
    assert_string_equal(fake.questions[0], "{\"token_ids\":[1,2,3],\"model\":\"m\\\"x\"}");
    assert_string_equal(
        run.out,
        "3 complete blocks of 16 tokens; DEVICE, HOST, DISK in tokens\n"
        "              WORKER  RANK  BLOCKS  PERCENT  DEVICE  HOST  DISK  STATE    REASON  "
        "NAMESPACE  COMPONENT\n"
        "18446744073709551615     1       2  66.6667      32     0     0  EXACT    -       "
        "dynamo     V\n"
        "                   7     0       1     33.3      16    16     0  PARTIAL  gone    "
        "dynamo     a???b\n");
}

static void json_is_printed_unchanged(void **state)
{
    const struct nats_server *server = *state;
    struct fake fake = { .answers = { match_answer } };
    struct run run;

    start_fake(&fake, server->url, "namespace.dynamo.component.Router.kv_match");
    kvctl(&run, server->url, WORDS("--json", "match", "--tokens", "1"));
    stop_fake(&fake);
    assert_int_equal(run.exit, 0);
    assert_int_equal(strncmp(run.out, match_answer, sizeof match_answer - 1), 0);
    assert_string_equal(run.out + sizeof match_answer - 1, "\n");
}

static void an_error_in_the_answer_goes_to_stderr(void **state)
{
    const struct nats_server *server = *state;
    struct fake fake = { .answers = { "{\"error\":\"no model m\"}" } };
    struct run run;

    start_fake(&fake, server->url, "namespace.a.component.b.kv_route");
    kvctl(
        &run, server->url, WORDS("--namespace", "a", "--component", "b", "route", "--tokens", "1"));
    stop_fake(&fake);
    assert_int_equal(run.exit, 1);
    assert_string_equal(run.out, "");
    assert_string_equal(run.err, "kvctl: no model m\n");
}

static void a_missing_aggregator_is_an_error_with_a_remedy(void **state)
{
    const struct nats_server *server = *state;
    struct run run;
    uint16_t port = 0;
    char url[64];

    kvctl(&run, server->url, WORDS("load"));
    assert_int_equal(run.exit, 1);
    assert_contains(
        run.err, "nobody answers namespace.dynamo.component.Router.kv_get.load, asked twice: is "
                 "kvaggregator running with router.namespace = \"dynamo\"");
    assert_ok(free_port(&port));
    (void)snprintf(url, sizeof url, "nats://127.0.0.1:%u", port);
    kvctl(&run, url, WORDS("load", "--timeout", "100"));
    assert_int_equal(run.exit, 1);
    assert_contains(run.err, "does not answer: is it running?  Give --nats URL");
}

static void wrong_usage_exits_64(void **state)
{
    static const char *const uses[][6] = {
        { NULL },
        { "dance", NULL },
        { "match", NULL },
        { "match", "--tokens", "1", "--tokens-file", "x", NULL },
        { "match", "--tokens", "1,-2", NULL },
        { "match", "--tokens", "4294967296", NULL },
        { "match", "--tokens", "1.5", NULL },
        { "match", "--tokens-file", "/nowhere", NULL },
        { "load", "extra", NULL },
        { "check", NULL },
        { "watch", "--kind", "lost", NULL },
        { "watch", "--worker", "-1", NULL },
        { "watch", "--rank", "4294967296", NULL },
        { "top", "--interval", "10", NULL },
        { "top", "--json", NULL },
        { "top", NULL },
        { "top", "--once", NULL },
        { "top", "--sort", "nonsense", NULL },
        { "watch", "--namespace", "a b", NULL },
        { "watch", "--all", "--rank", "1", NULL },
        { "load", "--namespace", "*", NULL },
        { "load", "--timeout", "soon", NULL },
        { "load", "--nats", "http://h", NULL },
    };
    const struct nats_server *server = *state;
    struct run run;

    for (size_t i = 0; i < KVB_COUNT_OF(uses); i++) {
        kvctl(&run, server->url, uses[i]);
        if (run.exit != 64) {
            print_error("use %zu: exit %d\n%s\n", i, run.exit, run.err);
        }
        assert_int_equal(run.exit, 64);
        assert_string_not_equal(run.err, "");
    }
}

static void tokens_can_be_read_from_a_file(void **state)
{
    const struct nats_server *server = *state;
    struct fake fake = { .answers = { match_answer } };
    struct run run;
    char folder[64];
    char path[96];

    assert_ok(folder_make(folder));
    (void)snprintf(path, sizeof path, "%s/tokens", folder);
    FILE *file = fopen(path, "we");
    assert_non_null(file);
    fputs("[1, 2,\n 4294967295]\n", file);
    assert_int_equal(fclose(file), 0);
    start_fake(&fake, server->url, "namespace.dynamo.component.Router.kv_match");
    kvctl(&run, server->url, WORDS("match", "--tokens-file", path, "--lora", "l", "--salt", "s"));
    stop_fake(&fake);
    folder_remove(folder);
    assert_int_equal(run.exit, 0);
    assert_string_equal(
        fake.questions[0],
        "{\"token_ids\":[1,2,4294967295],\"lora_name\":\"l\",\"cache_salt\":\"s\"}");
}

static void check_reports_errors_and_exits_78(void **state)
{
    struct run run;
    char folder[64];
    char path[96];

    (void)state;
    assert_ok(folder_make(folder));
    (void)snprintf(path, sizeof path, "%s/a.cfg", folder);
    FILE *file = fopen(path, "we");
    assert_non_null(file);
    fputs("nats = { url = 5; };\nnonsense = 1;\n", file);
    assert_int_equal(fclose(file), 0);
    kvctl(&run, NULL, WORDS("check", path));
    assert_int_equal(run.exit, 78);
    assert_contains(run.err, "a.cfg:1: nats.url");
    assert_contains(run.err, "a.cfg:2: nonsense");
    kvctl(&run, NULL, WORDS("--json", "check", path));
    assert_int_equal(run.exit, 78);
    assert_contains(run.out, "\"errors\":[\"");
    folder_remove(folder);
    kvctl(&run, NULL, WORDS("check", path));
    assert_int_equal(run.exit, 78);
    assert_contains(run.err, path);
}

static void check_distinguishes_the_configurations_of_the_two_programs(void **state)
{
    static const struct {
        const char *text;
        const char *said;
    } files[] = {
        { "nats = { url = \"nats://127.0.0.1:4222\"; };\nsubscribe = { namespace = \"dynamo\"; "
          "component = \"*\"; };\nrouter = { namespace = 5; };\n",
          "read as a kvaggregator configuration" },
        { "nats = { url = \"nats://127.0.0.1:4222\"; };\npublish = { namespace = \"dynamo\"; "
          "component = 5; };\nworkers = ( );\n",
          "read as a kvbridge configuration" },
    };
    struct run run;
    char folder[64];
    char path[96];

    (void)state;
    assert_ok(folder_make(folder));
    (void)snprintf(path, sizeof path, "%s/a.cfg", folder);
    for (size_t i = 0; i < KVB_COUNT_OF(files); i++) {
        FILE *file = fopen(path, "we");
        assert_non_null(file);
        fputs(files[i].text, file);
        assert_int_equal(fclose(file), 0);
        kvctl(&run, NULL, WORDS("check", path));
        assert_int_equal(run.exit, 78);
        assert_contains(run.err, files[i].said);
    }
    folder_remove(folder);
}

SUITE(kvctl)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(match_prints_an_aligned_table),
        cmocka_unit_test(json_is_printed_unchanged),
        cmocka_unit_test(an_error_in_the_answer_goes_to_stderr),
        cmocka_unit_test(a_missing_aggregator_is_an_error_with_a_remedy),
        cmocka_unit_test(wrong_usage_exits_64),
        cmocka_unit_test(tokens_can_be_read_from_a_file),
        cmocka_unit_test(check_reports_errors_and_exits_78),
        cmocka_unit_test(check_distinguishes_the_configurations_of_the_two_programs),
    };

    return cmocka_run_group_tests(tests, nats_server_for_group, nats_server_after_group);
}
