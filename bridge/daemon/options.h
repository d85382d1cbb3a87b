#pragma once

#include "core/conf.h"
#include "core/log.h"
#include "core/status.h"

#include <stdbool.h>

/* The command line that both daemons share:
 *
 *     --config FILE  --check  --log-level LEVEL  --version  --help
 *
 * Threads: only the main thread, before any other starts. */

/* What each daemon adds to the command line. */
struct kvb_daemon_program {
    const char *about;          /* one or two sentences for --help, then KVB_DAEMON_EXITS */
    const char *default_config; /* the file to read when there is no --config */
    const struct kvb_conf_table *(*keys)(void);
};

/* The text below the options in --help. */
#define KVB_DAEMON_EXITS                                                                           \
    "\vExit status: 0 ended by SIGTERM or SIGINT, 64 wrong usage, 70 could not start, 78 wrong "   \
    "configuration: starting it again would not help."

enum kvb_daemon_task {
    KVB_DAEMON_RUN,
    KVB_DAEMON_CHECK, /* read the configuration, print its errors, exit */
    KVB_DAEMON_DONE   /* --help or --version has been answered: exit with 0 */
};

struct kvb_daemon_options {
    enum kvb_daemon_task task;
    const char *config_path; /* borrowed from argv or the program */
    bool has_log_level;      /* --log-level replaces log.level of the file */
    enum kvb_log_level log_level;
};

/* KVB_BAD_CONFIG: the error was printed on stderr; exit with kvb_daemon_exit_usage. */
kvb_status kvb_daemon_options_parse(
    const struct kvb_daemon_program *program, int argc, char **argv,
    struct kvb_daemon_options *out_options);

/* sysexits(3) */
enum { kvb_daemon_exit_usage = 64, kvb_daemon_exit_failed = 70, kvb_daemon_exit_config = 78 };

/* Decides whether to run, given the status of reading the configuration.  True: run.  False: exit
 * with *out_exit; the errors were printed on stderr, or, for --check, "FILE: ok" on stdout. */
bool kvb_daemon_options_settle(
    const struct kvb_daemon_options *options, kvb_status status,
    const struct kvb_conf_errors *errors, int *out_exit);
