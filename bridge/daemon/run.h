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

/* What the main functions of both daemons share: signals, notifications to the service
 * manager, and log lines of start and stop.  Threads: only the main thread. */

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
