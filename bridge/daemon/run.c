#include "daemon/run.h"

#include "core/clock.h"

#include <argp.h>
#include <errno.h>
#include <string.h>
#include <time.h>

/* ---- The command line ---- */

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
    /* A check, which prints; a daemon has a log, and its warnings go there. */
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

/* ---- Signals, and what is logged ---- */

void kvb_daemon_block_signals(sigset_t *out_signals)
{
    const struct sigaction ignore = { .sa_handler = SIG_IGN };

    (void)sigemptyset(out_signals); /* these fail only for invalid signal numbers */
    (void)sigaddset(out_signals, SIGINT);
    (void)sigaddset(out_signals, SIGTERM);
    (void)sigaddset(out_signals, SIGHUP);
    (void)sigaddset(out_signals, SIGIO);
    /* Before any thread is started: all inherit it, and only the main thread takes signals. */
    (void)pthread_sigmask(SIG_BLOCK, out_signals, NULL);
    /* Libraries write to sockets that their peer has closed: the error of the write is enough. */
    (void)sigaction(SIGPIPE, &ignore, NULL);
}

void kvb_daemon_log_warnings(
    struct kvb_log *log, const char *name, const struct kvb_conf_errors *errors)
{
    for (size_t i = 0; i < errors->warning_count; i++) {
        kvb_log_write(
            log, KVB_LOG_WARNING, name, "configuration", "why", errors->warnings[i].text, NULL);
    }
}

void kvb_daemon_log_errors(
    struct kvb_log *log, const char *name, const struct kvb_conf_errors *errors)
{
    for (size_t i = 0; i < errors->count && i < kvb_conf_max_errors; i++) {
        kvb_log_write(
            log, KVB_LOG_ERROR, name, "configuration", "why", errors->texts[i].text, NULL);
    }
    kvb_log_write(
        log, KVB_LOG_ERROR, name, "configuration rejected; keeping the running one", "mistakes",
        KVB_LOG_U64(errors->count), NULL);
}

void kvb_daemon_log_renewal(
    struct kvb_log *log, const char *name, kvb_status status, const struct kvb_detail *why)
{
    if (status != KVB_OK) {
        kvb_log_write(
            log, KVB_LOG_ERROR, name, "the login of NATS was not changed", "why",
            why->text[0] ? why->text : kvb_status_name(status), NULL);
    }
}

/* When the next task without a signal is due; UINT64_MAX: never. */
static uint64_t
next_task_ns(const struct kvb_notify *notify, const struct kvb_file_watch *watch, uint64_t now_ns)
{
    const uint64_t notify_ns =
        notify->fd >= 0 ? now_ns + kvb_notify_update_pause_ns(&notify->update) : UINT64_MAX;
    const uint64_t compare_ns = watch ? kvb_file_watch_due_ns(watch) : UINT64_MAX;

    return notify_ns < compare_ns ? notify_ns : compare_ns;
}

/* Waits for the next signal; 0: none came until due_ns. */
static int wait_for_signal(const sigset_t *signals, uint64_t due_ns)
{
    int number = 0;

    if (due_ns == UINT64_MAX) {
        (void)sigwait(signals, &number); /* fails only for an invalid set */
        return number;
    }
    const uint64_t now_ns = kvb_clock_monotonic_ns();
    const uint64_t pause_ns = due_ns > now_ns ? due_ns - now_ns : 0;
    const struct timespec pause = { .tv_sec = (time_t)(pause_ns / KVB_NS_PER_S),
                                    .tv_nsec = (long)(pause_ns % KVB_NS_PER_S) };
    number = sigtimedwait(signals, NULL, &pause);
    return number > 0 ? number : 0;
}

/* True when the configuration must be read again. */
static bool wants_reload(const struct kvb_daemon_running *running, int signal_number)
{
    if (!running->reload) {
        return false;
    }
    if (signal_number == SIGIO && running->watch) {
        kvb_file_watch_take_events(running->watch, kvb_clock_monotonic_ns());
    }
    /* Files are compared after each wait, because a change need not have sent a signal. */
    return signal_number == SIGHUP ||
           (running->watch && kvb_file_watch_has_changed(running->watch, kvb_clock_monotonic_ns()));
}

bool kvb_daemon_is_ended_within(uint64_t wait_ns)
{
    sigset_t ends;

    (void)sigemptyset(&ends); /* cannot fail, like the next two */
    (void)sigaddset(&ends, SIGINT);
    (void)sigaddset(&ends, SIGTERM);
    /* A SIGHUP is not among them: it stays pending until kvb_daemon_wait_for_end(). */
    return wait_for_signal(&ends, kvb_clock_monotonic_ns() + wait_ns) > 0;
}

static bool is_end_signal(int signal_number)
{
    return signal_number == SIGTERM || signal_number == SIGINT;
}

void kvb_daemon_wait_for_end(
    const sigset_t *signals, struct kvb_notify *notify, const struct kvb_daemon_running *running)
{
    int number = 0;

    kvb_log_write(
        running->log, KVB_LOG_INFO, running->name, "started", "version", KVB_VERSION, "http_port",
        KVB_LOG_U64(running->http_port), NULL);
    while (!is_end_signal(number)) {
        struct kvb_liveness liveness = { .turns = 0 };
        running->read_liveness(running->daemon, &liveness);
        kvb_notify_look(notify, &liveness);
        const uint64_t due_ns = next_task_ns(notify, running->watch, kvb_clock_monotonic_ns());
        number = wait_for_signal(signals, due_ns);
        if (!is_end_signal(number) && wants_reload(running, number)) {
            kvb_notify_say_reloading(notify);
            running->reload(running->reloader);
            kvb_notify_say_reloaded(notify);
        }
    }
    kvb_notify_say_stopping(notify);
    kvb_log_write(
        running->log, KVB_LOG_INFO, running->name, "stopping", "signal",
        number == SIGINT ? "SIGINT" : "SIGTERM", NULL);
}

int kvb_daemon_say_not_started(
    struct kvb_log *log, const char *name, kvb_status status, const struct kvb_detail *detail)
{
    kvb_log_write(
        log, KVB_LOG_ERROR, name, "cannot start", "reason",
        detail->text[0] ? detail->text : kvb_status_name(status), NULL);
    return status == KVB_BAD_CONFIG ? kvb_daemon_exit_config : kvb_daemon_exit_failed;
}
