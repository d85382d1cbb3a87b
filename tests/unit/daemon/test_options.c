#include "kvb_test.h"

#include "daemon/run.h"

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
        cmocka_unit_test(mistakes_are_reported_on_stderr),
        cmocka_unit_test(lack_of_memory_is_reported_and_is_no_configuration_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
