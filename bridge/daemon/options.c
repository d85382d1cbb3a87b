#include "daemon/options.h"

#include <argp.h>
#include <errno.h>
#include <string.h>

/* NOLINTBEGIN(concurrency-mt-unsafe): argp runs before any thread is started */

enum { key_check = 1000, key_log_level, key_version, key_usage, key_help };

static const struct argp_option table[] = {
    { "config", 'c', "FILE", 0, "Read this configuration", 0 },
    { "check", key_check, NULL, 0, "Report mistakes in the configuration, and exit", 0 },
    { "log-level", key_log_level, "LEVEL", 0, "error, warning, info or debug", 0 },
    { "version", key_version, NULL, 0, "Print the version, and exit", -1 },
    { "help", key_help, NULL, 0, "Print this and all configuration keys, and exit", -1 },
    { "usage", key_usage, NULL, OPTION_HIDDEN, NULL, -1 }, /* argp's error texts mention it */
    { NULL, 0, NULL, 0, NULL, 0 },
};

struct parsing {
    const struct kvb_daemon_program *program;
    struct kvb_daemon_options options;
};

static error_t take_level(struct parsing *parsing, const char *name, struct argp_state *state)
{
    for (unsigned i = 0; i < KVB_LOG_LEVEL_COUNT; i++) {
        if (strcmp(kvb_log_level_name((enum kvb_log_level)i), name) == 0) {
            parsing->options.log_level = (enum kvb_log_level)i;
            parsing->options.has_log_level = true;
            return 0;
        }
    }
    argp_error(state, "--log-level: expected error, warning, info or debug, got \"%.32s\"", name);
    return EINVAL;
}

/* ECANCELED ends the parsing after --version or --help has been printed. */
static error_t print_daemon_version(struct argp_state *state)
{
    (void)fprintf(state->out_stream, "%s " KVB_VERSION "\n", state->name);
    return ECANCELED;
}

static error_t print_usage(struct argp_state *state)
{
    argp_state_help(state, state->out_stream, ARGP_HELP_USAGE);
    return ECANCELED;
}

static error_t print_help(struct parsing *parsing, struct argp_state *state)
{
    argp_state_help(
        state, state->out_stream,
        ARGP_HELP_USAGE | ARGP_HELP_PRE_DOC | ARGP_HELP_LONG | ARGP_HELP_POST_DOC);
    (void)fprintf(state->out_stream, "\nConfiguration keys:\n");
    kvb_conf_help(parsing->program->keys(), state->out_stream);
    return ECANCELED;
}

static error_t parse_option(int key, char *value, struct argp_state *state)
{
    struct parsing *parsing = state->input;

    switch (key) {
    case 'c':
        parsing->options.config_path = value;
        return 0;
    case key_check:
        parsing->options.task = KVB_DAEMON_CHECK;
        return 0;
    case key_log_level:
        return take_level(parsing, value, state);
    case key_version:
        return print_daemon_version(state);
    case key_usage:
        return print_usage(state);
    case key_help:
        return print_help(parsing, state);
    case ARGP_KEY_ARG:
        argp_error(state, "\"%.80s\": nothing may stand behind the options", value);
        return EINVAL;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

kvb_status kvb_daemon_options_parse(
    const struct kvb_daemon_program *program, int argc, char **argv,
    struct kvb_daemon_options *out_options)
{
    const struct argp argp = { .options = table, .parser = parse_option, .doc = program->about };
    struct parsing parsing = { .program = program,
                               .options = { .config_path = program->default_config } };
    /* Only main() ends the program. */
    const error_t error =
        argp_parse(&argp, argc, argv, ARGP_NO_HELP | ARGP_NO_EXIT, NULL, &parsing);

    if (error != 0 && error != ECANCELED) {
        return KVB_BAD_CONFIG;
    }
    if (error == ECANCELED) {
        parsing.options.task = KVB_DAEMON_DONE;
    }
    *out_options = parsing.options;
    return KVB_OK;
}

/* NOLINTEND(concurrency-mt-unsafe) */

bool kvb_daemon_options_settle(
    const struct kvb_daemon_options *options, kvb_status status,
    const struct kvb_conf_errors *errors, int *out_exit)
{
    if (status == KVB_OK && options->task == KVB_DAEMON_RUN) {
        return true;
    }
    if (status == KVB_OK) {
        kvb_conf_errors_print(errors, stderr); /* there are only warnings */
        (void)printf("%s: ok\n", options->config_path);
        *out_exit = 0;
        return false;
    }
    kvb_conf_errors_print(errors, stderr);
    if (errors->count == 0) {
        (void)fprintf(stderr, "%s: %s\n", options->config_path, kvb_status_name(status));
    }
    *out_exit = status == KVB_BAD_CONFIG ? kvb_daemon_exit_config : kvb_daemon_exit_failed;
    return false;
}
