#pragma once

#include "core/conf.h"
#include "core/log.h"
#include "core/status.h"
#include "daemon/file_watch.h"
#include "daemon/notify.h"
#include "model/liveness.h"

#include <signal.h>
#include <stdbool.h>
#include <stdint.h>

/* What the main functions of both daemons share: the command line, signals, notifications to the
 * service manager, and log lines of start and stop.  Threads: only the main thread. */

/* ---- The command line ---- */

/* Read before any other thread starts:
 *
 *     --config FILE  --check  --log-level LEVEL  --version  --help */

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

/* ---- Signals, and what is logged ---- */

/* Blocks the signals that the main thread waits for in kvb_daemon_wait_for_end().  Call it before
 * any thread starts, so that all threads inherit the mask.  SIGIO is for file_watch.h.  SIGPIPE is
 * ignored: a peer that closes its connection must not end the process. */
void kvb_daemon_block_signals(sigset_t *out_signals);

/* Logs the errors of a rejected configuration at a reload, one line for each. */
void kvb_daemon_log_errors(
    struct kvb_log *log, const char *name, const struct kvb_conf_errors *errors);

/* Logs the warnings that --check would print. */
void kvb_daemon_log_warnings(
    struct kvb_log *log, const char *name, const struct kvb_conf_errors *errors);

/* Logs why a changed NATS login was rejected; nothing when status is KVB_OK. */
void kvb_daemon_log_renewal(
    struct kvb_log *log, const char *name, kvb_status status, const struct kvb_detail *why);

/* Waits at most wait_ns for SIGTERM or SIGINT; true: one came.  SIGHUP stays pending. */
bool kvb_daemon_is_ended_within(uint64_t wait_ns);

/* A daemon that has started; all borrowed. */
struct kvb_daemon_running {
    const char *name;
    struct kvb_log *log;
    uint16_t http_port;
    const void *daemon; /* the argument of read_liveness */
    void (*read_liveness)(const void *daemon, struct kvb_liveness *out_liveness);
    void *reloader; /* the argument of reload */
    /* Called at SIGHUP, and when a watched file has changed; NULL: no reload. */
    void (*reload)(void *reloader);
    struct kvb_file_watch *watch; /* NULL: no file is watched */
};

/* Logs the start, then notifies the service manager and reloads until SIGTERM or SIGINT comes. */
void kvb_daemon_wait_for_end(
    const sigset_t *signals, struct kvb_notify *notify, const struct kvb_daemon_running *running);

/* Logs why the daemon could not start; returns the exit status for that. */
int kvb_daemon_say_not_started(
    struct kvb_log *log, const char *name, kvb_status status, const struct kvb_detail *detail);
