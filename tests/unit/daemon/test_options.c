#include "kvb_test.h"

#include "daemon/options.h"

#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static const struct kvb_conf_table *keys(void)
{
    static const struct kvb_conf_key rows[] = { { .path = "the.key",
                                                  .type = KVB_CONF_U32,
                                                  .fallback = "1",
                                                  .max = 9,
                                                  .help = "It is\n\"the\" key." } };
    static const struct kvb_conf_table table = { .keys = rows,
                                                 .count = 1,
                                                 .bytes = sizeof(uint32_t) };

    return &table;
}

static const struct kvb_daemon_program program = {
    .about = "What it is for." KVB_DAEMON_EXITS,
    .default_config = "etc/x.cfg",
    .keys = keys,
};

/* Redirects stdout and stderr to memory while it runs. */
struct captured {
    kvb_status status;
    struct kvb_daemon_options options;
    bool goes_on;
    int exit;
    char out[4096];
    char err[4096];
};

/* One of the process's descriptors, while another file is in its place. */
struct stand_in {
    int fd;
    int saved;
    int memory;
};

static struct stand_in divert(FILE *stream)
{
    struct stand_in place = { .fd = fileno(stream), .memory = memfd_create("out", MFD_CLOEXEC) };

    assert_int_equal(fflush(stream), 0);
    place.saved = dup(place.fd);
    assert_true(place.saved >= 0 && dup2(place.memory, place.fd) >= 0);
    return place;
}

static void restore(struct stand_in *place, FILE *stream, char text[4096])
{
    (void)fflush(stream);
    const ssize_t len = pread(place->memory, text, 4095, 0);
    (void)dup2(place->saved, place->fd);
    (void)close(place->saved);
    (void)close(place->memory);
    text[len > 0 ? len : 0] = '\0';
}

/* words: the command line, separated by blanks. */
static void parse(struct captured *captured, const char *words)
{
    char copy[256];
    char *argv[8] = { NULL };
    int argc = 0;
    char *rest = copy;

    (void)snprintf(copy, sizeof copy, "%s", words);
    while (argc < 7 && (argv[argc] = strsep(&rest, " "))) {
        argc++;
    }
    *captured = (struct captured){ .exit = -1 };
    struct stand_in out = divert(stdout);
    struct stand_in err = divert(stderr);
    captured->status = kvb_daemon_options_parse(&program, argc, argv, &captured->options);
    restore(&err, stderr, captured->err);
    restore(&out, stdout, captured->out);
}

static void settle(
    struct captured *captured, enum kvb_daemon_task task, kvb_status status,
    const struct kvb_conf_errors *errors)
{
    const struct kvb_daemon_options options = { .task = task, .config_path = "etc/x.cfg" };

    *captured = (struct captured){ .exit = -1 };
    struct stand_in out = divert(stdout);
    struct stand_in err = divert(stderr);
    captured->goes_on = kvb_daemon_options_settle(&options, status, errors, &captured->exit);
    restore(&err, stderr, captured->err);
    restore(&out, stdout, captured->out);
}

static void without_options_it_runs_with_the_usual_file(void **state)
{
    (void)state;
    struct captured captured;

    parse(&captured, "kvx");
    assert_ok(captured.status);
    assert_int_equal(captured.options.task, KVB_DAEMON_RUN);
    assert_string_equal(captured.options.config_path, "etc/x.cfg");
    assert_false(captured.options.has_log_level);
    assert_string_equal(captured.out, "");
}

static void options_are_read(void **state)
{
    (void)state;
    struct captured captured;

    parse(&captured, "kvx --config=a.cfg --check --log-level debug");
    assert_ok(captured.status);
    assert_int_equal(captured.options.task, KVB_DAEMON_CHECK);
    assert_true(captured.options.has_log_level);
    assert_int_equal(captured.options.log_level, KVB_LOG_DEBUG);
    parse(&captured, "kvx -c b.cfg --log-level error");
    assert_ok(captured.status);
    assert_int_equal(captured.options.log_level, KVB_LOG_ERROR);
}

static void version_and_help_are_answered_on_stdout(void **state)
{
    (void)state;
    struct captured captured;

    parse(&captured, "kvx --version");
    assert_ok(captured.status);
    assert_int_equal(captured.options.task, KVB_DAEMON_DONE);
    assert_string_equal(captured.out, "kvx " KVB_VERSION "\n");
    parse(&captured, "kvx --help");
    assert_ok(captured.status);
    assert_int_equal(captured.options.task, KVB_DAEMON_DONE);
    assert_non_null(strstr(captured.out, "--log-level=LEVEL"));
    assert_non_null(strstr(captured.out, "What it is for."));
    const char *end = strstr(captured.out, "\nConfiguration keys:\n");
    assert_non_null(end);
    assert_string_equal(
        end,
        "\nConfiguration keys:\n  the.key = 1\n      It is\n      \"the\" key.\n      0 .. 9\n");
}

static void mistakes_are_reported_on_stderr(void **state)
{
    (void)state;
    static const char *const bad[][2] = {
        { "kvx --log-level loud", "expected error, warning, info or debug, got \"loud\"" },
        { "kvx --nonsense", "--nonsense" },
        { "kvx a.cfg", "\"a.cfg\": nothing may stand behind the options" },
        { "kvx --config", "requires an argument" },
    };

    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct captured captured;
        parse(&captured, bad[i][0]);
        assert_int_equal(captured.status, KVB_BAD_CONFIG);
        assert_non_null(strstr(captured.err, bad[i][1]));
        assert_string_equal(captured.out, "");
    }
}

static void a_good_configuration_runs_or_is_reported_ok(void **state)
{
    (void)state;
    const struct kvb_conf_errors errors = { 0 };
    struct captured captured;

    settle(&captured, KVB_DAEMON_RUN, KVB_OK, &errors);
    assert_true(captured.goes_on);
    assert_string_equal(captured.out, "");
    settle(&captured, KVB_DAEMON_CHECK, KVB_OK, &errors);
    assert_false(captured.goes_on);
    assert_int_equal(captured.exit, 0);
    assert_string_equal(captured.out, "etc/x.cfg: ok\n");
}

static void a_bad_configuration_ends_with_78_and_all_errors(void **state)
{
    (void)state;
    const struct kvb_conf_errors errors = {
        .count = 2, .texts = { { "etc/x.cfg:1: a: is wrong" }, { "etc/x.cfg:2: b: is wrong" } }
    };
    struct captured captured;

    for (int task = KVB_DAEMON_RUN; task <= KVB_DAEMON_CHECK; task++) {
        settle(&captured, (enum kvb_daemon_task)task, KVB_BAD_CONFIG, &errors);
        assert_false(captured.goes_on);
        assert_int_equal(captured.exit, 78);
        assert_string_equal(captured.err, "etc/x.cfg:1: a: is wrong\netc/x.cfg:2: b: is wrong\n");
        assert_string_equal(captured.out, "");
    }
}

static void lack_of_memory_is_reported_and_is_no_configuration_error(void **state)
{
    (void)state;
    const struct kvb_conf_errors errors = { 0 };
    struct captured captured;

    settle(&captured, KVB_DAEMON_RUN, KVB_NO_MEMORY, &errors);
    assert_false(captured.goes_on);
    assert_int_equal(captured.exit, 70);
    assert_string_equal(captured.err, "etc/x.cfg: no_memory\n");
}

SUITE(options)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(without_options_it_runs_with_the_usual_file),
        cmocka_unit_test(options_are_read),
        cmocka_unit_test(version_and_help_are_answered_on_stdout),
        cmocka_unit_test(mistakes_are_reported_on_stderr),
        cmocka_unit_test(a_good_configuration_runs_or_is_reported_ok),
        cmocka_unit_test(a_bad_configuration_ends_with_78_and_all_errors),
        cmocka_unit_test(lack_of_memory_is_reported_and_is_no_configuration_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
